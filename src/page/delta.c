/*
 * delta.c
 *		Generic records of changes that are known.
 *
 * GenericXLogFinish finds out what was changed by comparing pages byte by byte
 * with their copies, which takes some 4 us a page, and all that time they are
 * locked.  An insert mostly adds a posting to a block and a record to a refine
 * page, and there we know every byte; so these functions make the record
 * themselves.  It is the same kind of record: redo is PostgreSQL's, for which
 * the bytes stand as delta.h draws them, in all versions that we support, and
 * wal_consistency_checking = generic compares what it makes of them.
 *
 * Our pages have no hole, pd_lower being pd_upper, so there is none to clear.
 */
#include "postgres.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "page/delta.h"

#ifdef IVFPQ_PLAIN_BUFFERS

/* The same without relying on PostgreSQL's internals: see README. */
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
 * Change the pages, and log it: one record.  The buffers are distinct and
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
