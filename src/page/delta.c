/*
 * delta.c
 *		Generic WAL records of changes that the caller knows.
 *
 * GenericXLogFinish finds the changes of a page by comparing the page byte by
 * byte with its changed copy.  That takes some 4 us a page, during which all
 * pages of the WAL record are locked.  Most inserts add a posting to a block
 * and a record to a refine page.  An inserter knows every byte that changes,
 * so its WAL record is made here.  This record has the same form as one of
 * GenericXLogFinish, and PostgreSQL's redo replays it.  In all versions that
 * we support, redo expects the bytes as delta.h draws them.  With
 * wal_consistency_checking = generic, the pages that redo makes are compared
 * with those of the primary.
 *
 * GenericXLogFinish also zeroes the bytes between pd_lower and pd_upper.  Our
 * pages have no such bytes, because their pd_lower equals pd_upper.
 */
#include "postgres.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "page/delta.h"

#ifdef IVFPQ_PLAIN_BUFFERS

/* Uses no internals of PostgreSQL: see README, "Ways Around PostgreSQL". */
void
IvfpqPatchLog(Relation index, IvfpqPatch *patches, int npatches)
{
	GenericXLogState *state = GenericXLogStart(index);

	for (int i = 0; i < npatches; i++)
		IvfpqPatchApply(&patches[i],
						GenericXLogRegisterBuffer(state, patches[i].buffer, 0));
	GenericXLogFinish(state);
}

#else

/*
 * Applies the patches to their pages, and logs all of them as one WAL record.
 * The buffers are distinct and exclusively locked; the caller unlocks them.
 */
void
IvfpqPatchLog(Relation index, IvfpqPatch *patches, int npatches)
{
	bool		log = RelationNeedsWAL(index);

	Assert(npatches <= IVFPQ_MAX_PATCHES);
	if (log)
		XLogBeginInsert();
	START_CRIT_SECTION();
	for (int i = 0; i < npatches; i++)
	{
		IvfpqPatchApply(&patches[i], BufferGetPage(patches[i].buffer));
		MarkBufferDirty(patches[i].buffer);
		if (log)
		{
			XLogRegisterBuffer(i, patches[i].buffer, REGBUF_STANDARD);
			XLogRegisterBufData(i, patches[i].bytes, patches[i].nbytes);
		}
	}
	if (log)
	{
		XLogRecPtr	lsn = XLogInsert(RM_GENERIC_ID, 0);

		for (int i = 0; i < npatches; i++)
			PageSetLSN(BufferGetPage(patches[i].buffer), lsn);
	}
	END_CRIT_SECTION();
}

#endif
