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

/* Pages that this session has read from files. */
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
IvfpqAheadNotice(Relation rel, int64 *had_read)
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
IvfpqAheadHelps(Relation rel)
{
	return *cold_pages_of(rel) > 0;
}

static BlockNumber
block_of(const IvfpqAhead *ahead, int64 i)
{
	return (BlockNumber) (ahead->numbers[i] >> ahead->shift);
}

/* The first number from i on that is of another page than i. */
static int64
pass_page(const IvfpqAhead *ahead, int64 i)
{
	BlockNumber blkno = block_of(ahead, i);

	while (i < ahead->n && block_of(ahead, i) == blkno)
		i++;
	return i;
}

/*
 * Pages of these numbers [n] will be read, in their order.  The numbers stay
 * the caller's, who leaves them as they are until IvfpqAheadEnd.
 */
void
IvfpqAheadBegin(IvfpqAhead *ahead, Relation rel, const uint64 *numbers,
				int64 n, int shift)
{
	memset(ahead, 0, sizeof(*ahead));
	ahead->rel = rel;
	ahead->numbers = numbers;
	ahead->n = n;
	ahead->shift = shift;
	ahead->most = -1;
	ahead->current = InvalidBlockNumber;
	ahead->had_read = IvfpqCountReads();
}

/*
 * Ask for pages, until as many are on their way as effective_io_concurrency
 * says.  What a damaged index names need not exist; then asking ends, and
 * whoever comes to read it says what is wrong.
 */
static void
ask(IvfpqAhead *ahead)
{
	if (ahead->most < 0)
		ahead->most =
			get_tablespace_io_concurrency(ahead->rel->rd_rel->reltablespace);
	while (ahead->count < ahead->most && ahead->asked < ahead->n)
	{
		BlockNumber blkno = block_of(ahead, ahead->asked);

		if (blkno >= ahead->nblocks)
			ahead->nblocks = RelationGetNumberOfBlocks(ahead->rel);
		if (blkno >= ahead->nblocks)
			return;
		PrefetchBuffer(ahead->rel, MAIN_FORKNUM, blkno);
		ahead->asked = pass_page(ahead, ahead->asked);
		ahead->count++;
	}
}

/* The page will be read now. */
void
IvfpqAheadTo(IvfpqAhead *ahead, BlockNumber blkno)
{
	int64		i = ahead->next;

	if (blkno == ahead->current)
		return;
	ahead->current = blkno;
	IvfpqAheadNotice(ahead->rel, &ahead->had_read);
	if (!IvfpqAheadHelps(ahead->rel))
		return;

	while (i < ahead->n && block_of(ahead, i) != blkno)
		i++;
	if (i == ahead->n)
		return;					/* not one of those */
	while (ahead->next <= i)
	{
		ahead->next = pass_page(ahead, ahead->next);
		ahead->count--;
	}
	if (ahead->asked < ahead->next)
	{
		ahead->asked = ahead->next;
		ahead->count = 0;
	}
	ask(ahead);
}

/* All pages are read. */
void
IvfpqAheadEnd(IvfpqAhead *ahead)
{
	IvfpqAheadNotice(ahead->rel, &ahead->had_read);
}
