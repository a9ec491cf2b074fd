/*
 * prefetch.c
 *		Pages asked for before they are read.
 *
 * To ask for a page takes a look into the table of buffers, and a query has a
 * hundred pages; so that is done only after a page had to be read from a file,
 * and until a good many in a row did not.  Tables and indexes are told apart,
 * because often the one fits into shared buffers and the other does not.
 *
 * Why not read streams: see src/page/README, "Pages on their way".
 */
#include "postgres.h"

#include "executor/instrument.h"
#include "storage/bufmgr.h"
#include "utils/spccache.h"

#include "page/buffer/prefetch.h"

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
