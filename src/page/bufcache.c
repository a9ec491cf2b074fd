/*
 * bufcache.c
 *		Finding pages fast, and prefetching them before they are needed.
 *
 * Buffers.  A query reads some hundred pages of the index and the table.
 * Finding a page in PostgreSQL's hash table of buffers takes a third of a
 * microsecond, because it takes several memory accesses, one after another,
 * that miss the processor's caches.  Most pages are in the same buffers as the
 * last time.  So each backend keeps a table of the buffers in which it found
 * pages, and uses ReadRecentBuffer to check whether a page is still there.
 * Many pages share one place in the table, which has the buffer of the page
 * that was read last.  Because ReadRecentBuffer checks which page a buffer
 * holds, the table needs neither page numbers nor invalidation.
 *
 * ReadRecentBuffer does not raise a buffer's usage count.  Pages that are read
 * in no other way would be the first to be evicted.  So we call
 * ReadRecentBuffer only if the buffer's usage count is at its maximum, and
 * read all other pages in the usual way.  As a result, the same pages stay in
 * shared buffers as without the table.
 *
 * Files.  PrefetchBuffer looks a page up in PostgreSQL's hash table once more,
 * and a query reads a hundred pages.  So a backend begins to prefetch only
 * when a page had to be read from a file, and stops when WARM_AFTER pages in a
 * row were found in buffers.  Tables and indexes are counted separately,
 * because often only one of them fits into shared buffers.  README,
 * "Prefetching", says why we use no read stream.
 */
#include "postgres.h"

#include "executor/instrument.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#ifndef IVFPQ_PLAIN_BUFFERS
#include "storage/buf_internals.h"
#endif
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/spccache.h"

#include "page/bufcache.h"
#include "pgcompat.h"

#define MOST_PLACES		(1 << 18)	/* places in the table: 1 MB */

/* Prefetching ends when this many pages in a row were found in buffers. */
#define WARM_AFTER		64

/* Buffer hits left until prefetching ends: [0] for tables, [1] for indexes. */
static int	cold_pages[2];

#ifdef IVFPQ_PLAIN_BUFFERS

/* See README, "Ways Around PostgreSQL": these functions use no internals. */

Buffer
IvfpqBufHintPin(Relation rel, BlockNumber blkno)
{
	return InvalidBuffer;
}

Buffer
IvfpqBufHintRead(Relation rel, BlockNumber blkno,
				 BufferAccessStrategy strategy)
{
	return ReadBufferExtended(rel, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
}

void
IvfpqBufHintSeek(Relation rel, BlockNumber blkno)
{
}

const char *
IvfpqBufHintFetch(Relation rel, BlockNumber blkno, Size offset, Size bytes)
{
	return NULL;
}

#else

/* The table of buffers, [nplaces], or NULL before the first page is read. */
static Buffer *places = NULL;
static uint32 nplaces;

/* Returns a page's place.  Neighboring pages have neighboring places. */
static inline Buffer *
place_of(Relation rel, BlockNumber blkno)
{
	return &places[(RelationGetRelid(rel) * 0x9E3779B1U + blkno) &
				   (nplaces - 1)];
}

Buffer
IvfpqBufHintPin(Relation rel, BlockNumber blkno)
{
	Buffer		buffer;

	if (places == NULL || RelationUsesLocalBuffers(rel))
		return InvalidBuffer;
	buffer = *place_of(rel, blkno);
	if (!BufferIsValid(buffer) ||
		IvfpqBufferUsage(GetBufferDescriptor(buffer - 1)) != BM_MAX_USAGE_COUNT ||
		!IvfpqReadRecentBuffer(rel, blkno, buffer))
		return InvalidBuffer;
	/* ReadRecentBuffer does not count the read for the relation */
	pgstat_count_buffer_read(rel);
	pgstat_count_buffer_hit(rel);
	return buffer;
}

Buffer
IvfpqBufHintRead(Relation rel, BlockNumber blkno,
				 BufferAccessStrategy strategy)
{
	Buffer		buffer;

	if (strategy != NULL || RelationUsesLocalBuffers(rel))
		return ReadBufferExtended(rel, MAIN_FORKNUM, blkno, RBM_NORMAL,
								  strategy);
	if (places == NULL)
	{
		uint32		n = pg_nextpower2_32(Min(Max(NBuffers, 16), MOST_PLACES));

		places = MemoryContextAllocZero(TopMemoryContext, n * sizeof(Buffer));
		nplaces = n;
	}
	buffer = IvfpqBufHintPin(rel, blkno);
	if (!BufferIsValid(buffer))
		*place_of(rel, blkno) = buffer = ReadBuffer(rel, blkno);
	return buffer;
}

void
IvfpqBufHintSeek(Relation rel, BlockNumber blkno)
{
	if (places != NULL)
		__builtin_prefetch(place_of(rel, blkno));
}

const char *
IvfpqBufHintFetch(Relation rel, BlockNumber blkno, Size offset, Size bytes)
{
	const char *page;
	Buffer		buffer;

	if (places == NULL || RelationUsesLocalBuffers(rel))
		return NULL;
	buffer = *place_of(rel, blkno);
	if (!BufferIsValid(buffer))
		return NULL;
	page = (const char *) BufferGetPage(buffer);
	__builtin_prefetch(GetBufferDescriptor(buffer - 1));
	__builtin_prefetch(page);
	IvfpqFetch(page + offset, page + offset + bytes);
	return page;
}

#endif

/* Returns the number of pages that this backend has read from files. */
int64
IvfpqCountReads(void)
{
	return pgBufferUsage.shared_blks_read + pgBufferUsage.local_blks_read;
}

/*
 * Notes whether the page of rel that was just read came from a file.
 * *had_read is the result of IvfpqCountReads before the read, and is updated
 * to the current result.  Returns what IvfpqPrefetchHelps returns afterwards.
 */
bool
IvfpqPrefetchNotice(Relation rel, int64 *had_read)
{
	int		   *cold = &cold_pages[rel->rd_rel->relkind == RELKIND_INDEX];
	int64		has_read = IvfpqCountReads();

	if (has_read != *had_read)
		*cold = WARM_AFTER;
	else if (*cold > 0)
		(*cold)--;
	*had_read = has_read;
	return *cold > 0;
}

/* Returns whether pages of the relation may have to be read from files. */
bool
IvfpqPrefetchHelps(Relation rel)
{
	return cold_pages[rel->rd_rel->relkind == RELKIND_INDEX] > 0;
}

static BlockNumber
block_of(const IvfpqPrefetch *prefetch, int64 i)
{
	return (BlockNumber) (prefetch->numbers[i] >> prefetch->shift);
}

/* Returns the first index after i whose page differs, or prefetch->n. */
static int64
pass_page(const IvfpqPrefetch *prefetch, int64 i)
{
	BlockNumber blkno = block_of(prefetch, i);

	while (i < prefetch->n && block_of(prefetch, i) == blkno)
		i++;
	return i;
}

/*
 * Prepares to prefetch the pages of numbers [n], which the caller will read in
 * this order.  The block of a page is number >> shift.  The caller must not
 * change the array until IvfpqPrefetchEnd.
 */
void
IvfpqPrefetchBegin(IvfpqPrefetch *prefetch, Relation rel,
				   const uint64 *numbers, int64 n, int shift)
{
	memset(prefetch, 0, sizeof(*prefetch));
	prefetch->rel = rel;
	prefetch->numbers = numbers;
	prefetch->n = n;
	prefetch->shift = shift;
	prefetch->most = -1;
	prefetch->current = InvalidBlockNumber;
	prefetch->had_read = IvfpqCountReads();
}

/*
 * Prefetches pages that come after page blkno, which the caller is about to
 * read.  The call does no harm if none of the numbers belongs to page blkno.
 */
void
IvfpqPrefetchTo(IvfpqPrefetch *prefetch, BlockNumber blkno)
{
	Relation	rel = prefetch->rel;
	int64		i = prefetch->next;

	if (blkno == prefetch->current)
		return;
	prefetch->current = blkno;
	if (!IvfpqPrefetchNotice(rel, &prefetch->had_read))
		return;

	while (i < prefetch->n && block_of(prefetch, i) != blkno)
		i++;
	if (i == prefetch->n)
		return;
	while (prefetch->next <= i)
	{
		prefetch->next = pass_page(prefetch, prefetch->next);
		prefetch->count--;
	}
	if (prefetch->asked < prefetch->next)
	{
		prefetch->asked = prefetch->next;
		prefetch->count = 0;
	}

	/* prefetch until effective_io_concurrency pages are being read */
	if (prefetch->most < 0)
		prefetch->most =
			get_tablespace_io_concurrency(rel->rd_rel->reltablespace);
	while (prefetch->count < prefetch->most && prefetch->asked < prefetch->n)
	{
		BlockNumber asked = block_of(prefetch, prefetch->asked);

		/*
		 * If the index is damaged, the numbers may name pages that do not
		 * exist.  Prefetching stops at such a page, and whoever reads the
		 * page reports it.
		 */
		if (asked >= prefetch->nblocks)
			prefetch->nblocks = RelationGetNumberOfBlocks(rel);
		if (asked >= prefetch->nblocks)
			return;
		PrefetchBuffer(rel, MAIN_FORKNUM, asked);
		prefetch->asked = pass_page(prefetch, prefetch->asked);
		prefetch->count++;
	}
}

/* Ends prefetching, after the last page was read. */
void
IvfpqPrefetchEnd(IvfpqPrefetch *prefetch)
{
	IvfpqPrefetchNotice(prefetch->rel, &prefetch->had_read);
}
