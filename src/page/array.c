/*
 * array.c
 *		Immutable arrays of vectors: mean, codebooks, centroids, their codes.
 *
 * An array is a stream of floats over consecutive pages,
 * IVFPQ_FLOATS_PER_PAGE on each.  It is written before anything points to it
 * and never changes, so readers need a pin but no lock.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "page/array.h"
#include "page/bufcache.h"

/* Begin to read `nvectors` vectors of `dims` floats. */
void
IvfpqArrayOpen(IvfpqArrayReader *reader, Relation index,
			   BlockNumber first, int dims, int64 nvectors)
{
	reader->index = index;
	reader->first = first;
	reader->dims = dims;
	reader->nvectors = nvectors;
	reader->next = 0;
	reader->buffer = InvalidBuffer;
	reader->spill = NULL;
	reader->fetches = false;
}

/* Let go of the page and the memory. */
void
IvfpqArrayClose(IvfpqArrayReader *reader)
{
	if (BufferIsValid(reader->buffer))
		ReleaseBuffer(reader->buffer);
	reader->buffer = InvalidBuffer;
	if (reader->spill)
		pfree(reader->spill);
	reader->spill = NULL;
}

/*
 * Have the processor fetch what will be read of a page, number `page` of the
 * array, from where it was lately.
 */
static void
fetch_page(const IvfpqArrayReader *reader, int64 page)
{
	int64		left = reader->nvectors * reader->dims -
	page * IVFPQ_FLOATS_PER_PAGE;

	if (left > 0)
		IvfpqBufHintFetch(reader->index, reader->first + (BlockNumber) page, 0,
						  MAXALIGN(SizeOfPageHeaderData) + sizeof(float4) *
						  Min(left, IVFPQ_FLOATS_PER_PAGE));
}

/*
 * Pin the page that holds float `offset` of the stream; point to it.  While it
 * is looked at the next one may be fetched, which no processor does by itself.
 */
static const float *
pin_float(IvfpqArrayReader *reader, int64 offset)
{
	BlockNumber blkno = reader->first +
	(BlockNumber) (offset / IVFPQ_FLOATS_PER_PAGE);

	if (!BufferIsValid(reader->buffer) ||
		BufferGetBlockNumber(reader->buffer) != blkno)
	{
		if (BufferIsValid(reader->buffer))
			ReleaseBuffer(reader->buffer);
		reader->buffer = InvalidBuffer;
		reader->buffer = IvfpqReadPage(reader->index, blkno, BUFFER_LOCK_UNLOCK,
									   IVFPQ_KIND_ARRAY, NULL);
		if (reader->fetches)
			fetch_page(reader, offset / IVFPQ_FLOATS_PER_PAGE + 1);
	}
	return (const float *) PageGetContents(BufferGetPage(reader->buffer)) +
		offset % IVFPQ_FLOATS_PER_PAGE;
}

/* Gather a vector that crosses pages. */
static void
gather(IvfpqArrayReader *reader, int64 offset, float *out)
{
	int			done = 0;

	while (done < reader->dims)
	{
		int64		left = IVFPQ_FLOATS_PER_PAGE -
		(offset + done) % IVFPQ_FLOATS_PER_PAGE;
		int			n = (int) Min(left, reader->dims - done);

		memcpy(out + done, pin_float(reader, offset + done), n * sizeof(float));
		done += n;
	}
}

/*
 * The next run of whole vectors, [*count][dims]; NULL after the last.  The
 * result is good until the next call.
 */
const float *
IvfpqArrayNext(IvfpqArrayReader *reader, int *count)
{
	int64		offset = reader->next * reader->dims;
	int64		whole;

	CHECK_FOR_INTERRUPTS();
	if (reader->next >= reader->nvectors)
		return NULL;

	whole = (IVFPQ_FLOATS_PER_PAGE - offset % IVFPQ_FLOATS_PER_PAGE) /
		reader->dims;
	if (whole > 0)
	{
		*count = (int) Min(whole, reader->nvectors - reader->next);
		reader->next += *count;
		return pin_float(reader, offset);
	}

	if (reader->spill == NULL)
		reader->spill = palloc(reader->dims * sizeof(float));
	gather(reader, offset, reader->spill);
	*count = 1;
	reader->next++;
	return reader->spill;
}

/*
 * Vector i will soon be read: have the processor fetch it from where its pages
 * were lately.
 */
void
IvfpqArrayPrefetch(const IvfpqArrayReader *reader, int64 i)
{
	int64		offset = i * reader->dims;
	int64		end = offset + reader->dims;

	while (offset < end)
	{
		BlockNumber blkno = reader->first +
		(BlockNumber) (offset / IVFPQ_FLOATS_PER_PAGE);
		int64		at = offset % IVFPQ_FLOATS_PER_PAGE;
		int64		n = Min(IVFPQ_FLOATS_PER_PAGE - at, end - offset);

		/* its kind stands at its end */
		IvfpqBufHintFetch(reader->index, blkno, BLCKSZ - 1, 1);
		IvfpqBufHintFetch(reader->index, blkno,
						  MAXALIGN(SizeOfPageHeaderData) + at * sizeof(float4),
						  n * sizeof(float4));
		offset += n;
	}
}

/* Copy vector i out. */
void
IvfpqArrayFetch(Relation index, BlockNumber first, int dims, int64 i,
				float *out)
{
	IvfpqArrayReader reader;

	IvfpqArrayOpen(&reader, index, first, dims, i + 1);
	gather(&reader, i * dims, out);
	IvfpqArrayClose(&reader);
}

/*
 * Copy vectors ids [n] out to out [n][dims], in the order in which they stand
 * on pages: near lists often share one, which is then pinned once.
 */
void
IvfpqArrayFetchSome(Relation index, BlockNumber first, int dims,
					const uint64 *ids, int n, float *out)
{
	uint64	   *places = palloc(n * sizeof(uint64));
	IvfpqArrayReader reader;

	for (int i = 0; i < n; i++)
		places[i] = ids[i] << 32 | (uint32) i;
	IvfpqSortNumbers(places, n);
	IvfpqArrayOpen(&reader, index, first, dims, 0);
	for (int i = 0; i < n; i++)
		gather(&reader, (int64) (places[i] >> 32) * dims,
			   out + (Size) (uint32) places[i] * dims);
	IvfpqArrayClose(&reader);
	pfree(places);
}

/* Write an array to pages that were reserved, from `first` on. */
void
IvfpqArrayWrite(Relation index, BlockNumber first, const float *values,
				int64 nvalues, bool shared)
{
	char	   *page = palloc(BLCKSZ);

	for (int64 done = 0; done < nvalues; done += IVFPQ_FLOATS_PER_PAGE)
	{
		int64		n = Min(IVFPQ_FLOATS_PER_PAGE, nvalues - done);

		CHECK_FOR_INTERRUPTS();
		IvfpqPageInit((Page) page, IVFPQ_KIND_ARRAY);
		memcpy(PageGetContents((Page) page), values + done, n * sizeof(float4));
		IvfpqPutPage(index, first++, (Page) page, shared);
	}
	pfree(page);
}
