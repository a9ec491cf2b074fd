/*
 * bufcache.c
 *		In which shared buffers a backend found pages lately.
 *
 * A query reads some hundred pages, of index and table, and to find one in
 * PostgreSQL's hash table takes a chain of accesses to memory that is not
 * in the cache, a third of a microsecond each time.  Most pages are where
 * they were the last time, and there is a function to look whether one still
 * is: ReadRecentBuffer.
 *
 * It does not raise a buffer's usage count, though, and pages that are only
 * read so would be the first to be thrown out.  So it is used where the count
 * cannot be raised any more; all others go the usual way.  Which pages stay is
 * thus the same with and without.
 *
 * Many pages share a slot of the table, which has the one that was read last.
 * ReadRecentBuffer checks the slot's buffer again, so the table needs neither
 * names nor invalidation.
 */
#include "postgres.h"

#include "executor/instrument.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "utils/spccache.h"

#include "page/bufcache.h"

#ifndef IVFPQ_PLAIN_BUFFERS
#include "storage/buf_internals.h"
#endif
#include "utils/memutils.h"
#include "utils/rel.h"

#include "page/bufcache.h"
#include "pgcompat.h"

#ifdef IVFPQ_PLAIN_BUFFERS

/* The same without relying on PostgreSQL's internals: see README. */

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

const char *
IvfpqBufHintFetch(Relation rel, BlockNumber blkno, Size offset, Size bytes)
{
	return NULL;
}

#else

#define MOST_PLACES		(1 << 18)	/* 1 MB */

static Buffer *places = NULL;	/* [nplaces] or InvalidBuffer */
static uint32 nplaces;

/* No more than there are buffers. */
static void
make_places(void)
{
	uint32		n = pg_nextpower2_32(Min(Max(NBuffers, 16), MOST_PLACES));

	places = MemoryContextAllocZero(TopMemoryContext, n * sizeof(Buffer));
	nplaces = n;
}

/* Where a page's buffer is noted: neighbors' side by side. */
static inline Buffer *
place_of(Relation rel, BlockNumber blkno)
{
	return &places[(RelationGetRelid(rel) * 0x9E3779B1U + blkno) &
				   (nplaces - 1)];
}

/* Would another use leave the buffer's count as it is? */
static inline bool
is_hot(Buffer buffer)
{
	BufferDesc *desc = GetBufferDescriptor(buffer - 1);

	return IvfpqBufferUsage(desc) == BM_MAX_USAGE_COUNT;
}

/* See bufcache.h. */
Buffer
IvfpqBufHintPin(Relation rel, BlockNumber blkno)
{
	Buffer		buffer;

	if (places == NULL || RelationUsesLocalBuffers(rel))
		return InvalidBuffer;
	buffer = *place_of(rel, blkno);
	if (!BufferIsValid(buffer) || !is_hot(buffer) ||
		!IvfpqReadRecentBuffer(rel, blkno, buffer))
		return InvalidBuffer;
	pgstat_count_buffer_read(rel);
	pgstat_count_buffer_hit(rel);
	return buffer;
}

/* See bufcache.h. */
Buffer
IvfpqBufHintRead(Relation rel, BlockNumber blkno,
				 BufferAccessStrategy strategy)
{
	Buffer		buffer;

	if (strategy != NULL || RelationUsesLocalBuffers(rel))
		return ReadBufferExtended(rel, MAIN_FORKNUM, blkno, RBM_NORMAL,
								  strategy);
	if (places == NULL)
		make_places();
	buffer = IvfpqBufHintPin(rel, blkno);
	if (!BufferIsValid(buffer))
		*place_of(rel, blkno) = buffer = ReadBuffer(rel, blkno);
	return buffer;
}

/* See bufcache.h. */
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

/* ----
 * Pages asked for before they are read.
 *
 * To ask for a page takes a look into the table of buffers, and a query has a
 * hundred pages; so that is done only after a page had to be read from a file,
 * and until a good many in a row did not.  Tables and indexes are told apart,
 * because often the one fits into shared buffers and the other does not.
 *
 * Why not read streams: see src/page/README, "Pages on their way".
 */

/* Pages that come from buffers before we believe that all do. */
#define WARM_AFTER		64

/* Of tables, of indexes: pages until then. */
static int	cold_pages[2];

static int *
cold_pages_of(Relation rel)
{
	return &cold_pages[rel->rd_rel->relkind == RELKIND_INDEX];
}

/* Pages that this backend has read from files. */
int64
IvfpqCountReads(void)
{
	return pgBufferUsage.shared_blks_read + pgBufferUsage.local_blks_read;
}

/*
 * A page of the relation was read: where from?  *had_read: what
 * IvfpqCountReads said before; becomes what it says now.
 */
void
IvfpqPrefetchNotice(Relation rel, int64 *had_read)
{
	int		   *cold = cold_pages_of(rel);
	int64		has_read = IvfpqCountReads();

	if (has_read != *had_read)
		*cold = WARM_AFTER;
	else if (*cold > 0)
		(*cold)--;
	*had_read = has_read;
}

/* Is there any use in asking for pages of the relation? */
bool
IvfpqPrefetchHelps(Relation rel)
{
	return *cold_pages_of(rel) > 0;
}

static BlockNumber
block_of(const IvfpqPrefetch *prefetch, int64 i)
{
	return (BlockNumber) (prefetch->numbers[i] >> prefetch->shift);
}

/* The first number from i on that is of another page than i. */
static int64
pass_page(const IvfpqPrefetch *prefetch, int64 i)
{
	BlockNumber blkno = block_of(prefetch, i);

	while (i < prefetch->n && block_of(prefetch, i) == blkno)
		i++;
	return i;
}

/*
 * Pages of these numbers [n] will be read, in their order.  The numbers stay
 * the caller's, who leaves them as they are until IvfpqPrefetchEnd.
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
 * Ask for pages, until as many are on their way as effective_io_concurrency
 * says.  Pages that a damaged index names need not exist; then asking ends,
 * and the reader of the page reports it.
 */
static void
ask(IvfpqPrefetch *prefetch)
{
	Oid			tablespace = prefetch->rel->rd_rel->reltablespace;

	if (prefetch->most < 0)
		prefetch->most = get_tablespace_io_concurrency(tablespace);
	while (prefetch->count < prefetch->most && prefetch->asked < prefetch->n)
	{
		BlockNumber blkno = block_of(prefetch, prefetch->asked);

		if (blkno >= prefetch->nblocks)
			prefetch->nblocks = RelationGetNumberOfBlocks(prefetch->rel);
		if (blkno >= prefetch->nblocks)
			return;
		PrefetchBuffer(prefetch->rel, MAIN_FORKNUM, blkno);
		prefetch->asked = pass_page(prefetch, prefetch->asked);
		prefetch->count++;
	}
}

/* The page will be read now. */
void
IvfpqPrefetchTo(IvfpqPrefetch *prefetch, BlockNumber blkno)
{
	int64		i = prefetch->next;

	if (blkno == prefetch->current)
		return;
	prefetch->current = blkno;
	IvfpqPrefetchNotice(prefetch->rel, &prefetch->had_read);
	if (!IvfpqPrefetchHelps(prefetch->rel))
		return;

	while (i < prefetch->n && block_of(prefetch, i) != blkno)
		i++;
	if (i == prefetch->n)
		return;					/* not one of those */
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
	ask(prefetch);
}

/* All pages are read. */
void
IvfpqPrefetchEnd(IvfpqPrefetch *prefetch)
{
	IvfpqPrefetchNotice(prefetch->rel, &prefetch->had_read);
}
