/*
 * sweep.c
 *		Freeing pages that a crash left unused.
 *
 * Training in place writes to pages that no reader finds until it publishes
 * them, and frees the pending pages that it emptied only after that.  If it
 * dies, such pages remain: in an untrained index everything but the pending
 * list, in a trained one pending pages that are not in the list.  The caller
 * excludes training and VACUUM by the table's lock.
 */
#include "postgres.h"

#include "storage/freespace.h"
#include "utils/memutils.h"

#include "page/pending.h"
#include "page/stoppoint.h"
#include "pgcompat.h"

/* Note the pages of the pending list; memory from the current context. */
void
IvfpqSweepBegin(IvfpqSweep *sweep, Relation index)
{
	IvfpqMetaData meta;
	IvfpqPendingReader reader;
	int			count;

	IvfpqMetaRead(index, &meta);
	sweep->index = index;
	sweep->trained = meta.nlists > 0;
	sweep->nblocks = RelationGetNumberOfBlocks(index);
	sweep->listed = palloc_extended(sweep->nblocks / 8 + 1,
									MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	sweep->last_seq = 0;
	IvfpqPendingOpen(&reader, index, &meta);
	while (IvfpqPendingNext(&reader, &count))
	{
		if (reader.place.page < sweep->nblocks)
			sweep->listed[reader.place.page / 8] |=
				1 << (reader.place.page % 8);
		sweep->last_seq = reader.place.seq;
	}
	IvfpqPendingClose(&reader);
}

/*
 * Is the page unused?  A pending page with a higher number was added to the
 * list since it was read.
 */
static bool
is_left_over(const IvfpqSweep *sweep, BlockNumber blkno, Page page)
{
	if (IvfpqPageIs(page, IVFPQ_KIND_PENDING))
		return IvfpqPendingGet(page)->seq <= sweep->last_seq &&
			(sweep->listed[blkno / 8] & (1 << (blkno % 8))) == 0;
	return !sweep->trained && IvfpqPageIsTrained(page);
}

/*
 * Look at one page, none of the metapage, arrays and directory, and free it
 * if it is left over.  One record, one page.
 */
void
IvfpqSweepPage(IvfpqSweep *sweep, BlockNumber blkno,
			   BufferAccessStrategy strategy)
{
	Buffer		buf;
	Page		page;
	bool		left_over;
	bool		is_free;

	if (blkno >= sweep->nblocks)
		return;
	buf = ReadBufferExtended(sweep->index, MAIN_FORKNUM, blkno, RBM_NORMAL,
							 strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buf);
	left_over = is_left_over(sweep, blkno, page);
	is_free = PageIsNew(page) || IvfpqPageIs(page, IVFPQ_KIND_FREE);
	LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	if (left_over)
	{
		LockBuffer(buf, BUFFER_LOCK_EXCLUSIVE);
		if (is_left_over(sweep, blkno, page))
		{
			IvfpqFreePage(sweep->index, buf);
			is_free = true;
		}
		LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	}
	ReleaseBuffer(buf);
	if (is_free)
		RecordPageWithFreeSpace(sweep->index, blkno, BLCKSZ - 1);
	if (left_over)
		IvfpqStopPoint("sweep");
}

/* Sweep every page of an untrained index. */
void
IvfpqSweepUntrained(Relation index, BufferAccessStrategy strategy)
{
	IvfpqSweep	sweep;

	IvfpqSweepBegin(&sweep, index);
	for (BlockNumber blkno = IVFPQ_METAPAGE + 1;
		 blkno < sweep.nblocks; blkno++)
	{
		IvfpqVacuumDelayPoint();
		IvfpqSweepPage(&sweep, blkno, strategy);
	}
	IvfpqSweepEnd(&sweep);
	FreeSpaceMapVacuum(index);
}

void
IvfpqSweepEnd(IvfpqSweep *sweep)
{
	pfree(sweep->listed);
}
