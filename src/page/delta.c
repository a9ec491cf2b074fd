/*
 * delta.c
 *		Generic WAL records of changes that the caller knows.
 *
 * GenericXLogFinish finds the changes of a page by comparing it byte by byte
 * with its copy.  That takes some 4 us a page, during which all pages of the
 * record are locked.  Most inserts add a posting to a block and a record to a
 * refine page, and know every byte that changes, so they make the WAL record
 * here.  It is the same record: redo is PostgreSQL's, which expects the bytes
 * as delta.h draws them in all versions that we support, and
 * wal_consistency_checking = generic compares the pages that redo makes.
 *
 * GenericXLogFinish also zeroes the hole of a page.  Our pages have none:
 * pd_lower is pd_upper.
 */
#include "postgres.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "page/delta.h"

#ifdef IVFPQ_PLAIN_BUFFERS

/* Without PostgreSQL's internals: README, "Ways Around PostgreSQL". */
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
 * Changes the pages and logs that as one record.  The buffers are distinct and
 * exclusively locked; the caller unlocks them.
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
