/*
 * sweep.c
 *		Reclaiming pages that a crash left unused.
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
IvfpqReclaimBegin(IvfpqReclaim *reclaim, Relation index)
{
	IvfpqMetaData meta;
	IvfpqPendingReader reader;
	int			count;

	IvfpqMetaRead(index, &meta);
	reclaim->index = index;
	reclaim->trained = meta.nlists > 0;
	reclaim->nblocks = RelationGetNumberOfBlocks(index);
	reclaim->listed = palloc_extended(reclaim->nblocks / 8 + 1,
									  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	reclaim->last_seq = 0;
	IvfpqPendingOpen(&reader, index, &meta);
	while (IvfpqPendingNext(&reader, &count))
	{
		if (reader.place.page < reclaim->nblocks)
			reclaim->listed[reader.place.page / 8] |=
				1 << (reader.place.page % 8);
		reclaim->last_seq = reader.place.seq;
	}
	IvfpqPendingClose(&reader);
}

/*
 * Is the page unused?  A pending page with a higher number was added to the
 * list since it was read.
 */
static bool
is_left_over(const IvfpqReclaim *reclaim, BlockNumber blkno, Page page)
{
	if (IvfpqPageIs(page, IVFPQ_KIND_PENDING))
		return IvfpqPendingGet(page)->seq <= reclaim->last_seq &&
			(reclaim->listed[blkno / 8] & (1 << (blkno % 8))) == 0;
	return !reclaim->trained && IvfpqPageIsTrained(page);
}

/*
 * Look at one page, none of the metapage, arrays and directory, and free it
 * if it is left over.  One record, one page.
 */
void
IvfpqReclaimPage(IvfpqReclaim *reclaim, BlockNumber blkno,
				 BufferAccessStrategy strategy)
{
	Buffer		buf;
	Page		page;
	bool		left_over;
	bool		is_free;

	if (blkno >= reclaim->nblocks)
		return;
	buf = ReadBufferExtended(reclaim->index, MAIN_FORKNUM, blkno, RBM_NORMAL,
							 strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buf);
	left_over = is_left_over(reclaim, blkno, page);
	is_free = PageIsNew(page) || IvfpqPageIs(page, IVFPQ_KIND_FREE);
	LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	if (left_over)
	{
		LockBuffer(buf, BUFFER_LOCK_EXCLUSIVE);
		if (is_left_over(reclaim, blkno, page))
		{
			IvfpqFreePage(reclaim->index, buf);
			is_free = true;
		}
		LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	}
	ReleaseBuffer(buf);
	if (is_free)
		RecordPageWithFreeSpace(reclaim->index, blkno, BLCKSZ - 1);
	if (left_over)
		IvfpqInjectionPoint("sweep");
}

/* Reclaims the pages of an untrained index. */
void
IvfpqReclaimUntrained(Relation index, BufferAccessStrategy strategy)
{
	IvfpqReclaim reclaim;

	IvfpqReclaimBegin(&reclaim, index);
	for (BlockNumber blkno = IVFPQ_METAPAGE + 1;
		 blkno < reclaim.nblocks; blkno++)
	{
		IvfpqVacuumDelayPoint();
		IvfpqReclaimPage(&reclaim, blkno, strategy);
	}
	IvfpqReclaimEnd(&reclaim);
	FreeSpaceMapVacuum(index);
}

void
IvfpqReclaimEnd(IvfpqReclaim *reclaim)
{
	pfree(reclaim->listed);
}
