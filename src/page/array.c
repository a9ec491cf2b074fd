/*
 * array.c
 *		Immutable arrays of vectors: mean, codebooks, centroids, their codes.
 *
 * A page has IVFPQ_FLOATS_PER_PAGE floats of an array, so a vector may lie on
 * several pages.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "page/array.h"
#include "page/bufcache.h"

/* Prepares to read vectors [nvectors][dims], from page `first` on. */
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

/*
 * Pins the page that has float number `offset` of the array, and returns a
 * pointer to that float.  If reader->fetches is set, the caller reads all
 * pages in order.  In this case also prefetches the next page into the
 * processor's cache, because processors do not prefetch across pages by
 * themselves.
 */
static const float *
pin_float(IvfpqArrayReader *reader, int64 offset)
{
	int64		page = offset / IVFPQ_FLOATS_PER_PAGE;
	BlockNumber blkno = reader->first + (BlockNumber) page;

	if (!BufferIsValid(reader->buffer) ||
		BufferGetBlockNumber(reader->buffer) != blkno)
	{
		if (BufferIsValid(reader->buffer))
			ReleaseBuffer(reader->buffer);
		reader->buffer = InvalidBuffer;
		reader->buffer = IvfpqReadPage(reader->index, blkno, BUFFER_LOCK_UNLOCK,
									   IVFPQ_KIND_ARRAY, NULL);
		if (reader->fetches)
		{
			int64		left = reader->nvectors * reader->dims -
			(page + 1) * IVFPQ_FLOATS_PER_PAGE;

			if (left > 0)
				IvfpqBufHintFetch(reader->index, blkno + 1, 0,
								  MAXALIGN(SizeOfPageHeaderData) +
								  sizeof(float4) *
								  Min(left, IVFPQ_FLOATS_PER_PAGE));
		}
	}
	return (const float *) PageGetContents(BufferGetPage(reader->buffer)) +
		offset % IVFPQ_FLOATS_PER_PAGE;
}

/* Copies the vector at float `offset`, which may lie on several pages. */
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
 * Returns the next vectors that lie wholly on one page, as an array
 * [*count][dims], or NULL after the last vector.  A vector that lies on
 * several pages is returned alone, as a copy.  The result is valid until the
 * next call.
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
 * Prefetches vector i, which the caller will read soon, into the processor's
 * cache, from the buffers in which this backend last found the vector's pages.
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

		/* the page's kind, which is at its end, is checked first */
		IvfpqBufHintFetch(reader->index, blkno, BLCKSZ - 1, 1);
		IvfpqBufHintFetch(reader->index, blkno,
						  MAXALIGN(SizeOfPageHeaderData) + at * sizeof(float4),
						  n * sizeof(float4));
		offset += n;
	}
}

/* Releases the reader's page and memory. */
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

/* Copies vector i of an array to `out`. */
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
 * Copies vectors ids [n] to out [n][dims].  The vectors are read in the order
 * of their pages, because the vectors of the nearest lists often share a page,
 * which is then pinned only once.
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

/*
 * Writes an array of the index *meta to reserved pages, from page `first` on.  If `shared` is
 * true, other backends use the index, and each page is WAL-logged as it is
 * written (IvfpqPutPage).
 */
void
IvfpqArrayWrite(Relation index, const IvfpqMetaData *meta, BlockNumber first,
				const float *values, int64 nvalues, bool shared)
{
	char	   *page = palloc(BLCKSZ);

	for (int64 done = 0; done < nvalues; done += IVFPQ_FLOATS_PER_PAGE)
	{
		int64		n = Min(IVFPQ_FLOATS_PER_PAGE, nvalues - done);

		CHECK_FOR_INTERRUPTS();
		IvfpqTrainedPageInit((Page) page, IVFPQ_KIND_ARRAY, meta->training);
		memcpy(PageGetContents((Page) page), values + done, n * sizeof(float4));
		IvfpqPutPage(index, first++, (Page) page, shared);
	}
	pfree(page);
}
