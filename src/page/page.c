/*
 * page.c
 *		Pages of any kind: making, checking, finding and giving back.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xloginsert.h"
#include "miscadmin.h"
#include "storage/freespace.h"
#include "storage/indexfsm.h"
#include "storage/smgr.h"

#include "page/bufcache.h"
#include "page/injection.h"
#include "page/page.h"
#include "pgcompat.h"

/* Pages offered by the free space map that are tried before extending. */
#define MAX_FSM_TRIES	10

/*
 * Make an empty page of the kind.  pd_lower is put at pd_upper, because
 * GenericXLog zeroes what lies between them.
 */
void
IvfpqPageInit(Page page, IvfpqPageKind kind)
{
	IvfpqSpecial special;

	PageInit(page, BLCKSZ, sizeof(IvfpqSpecialData));
	((PageHeader) page)->pd_lower = ((PageHeader) page)->pd_upper;
	special = IvfpqPageSpecial(page);
	special->kind = kind;
	special->flags = 0;
	special->unused = 0;
	special->page_id = IVFPQ_PAGE_ID;
}

/*
 * Returns whether this is one of our pages, and of the kind.  A page with a
 * hole, as damage may make it, is not: the next generic record would clear
 * what is there.
 */
bool
IvfpqPageIs(Page page, IvfpqPageKind kind)
{
	return !PageIsNew(page) &&
		PageGetSpecialSize(page) == MAXALIGN(sizeof(IvfpqSpecialData)) &&
		((PageHeader) page)->pd_lower == ((PageHeader) page)->pd_upper &&
		IvfpqPageSpecial(page)->page_id == IVFPQ_PAGE_ID &&
		IvfpqPageSpecial(page)->kind == kind;
}

/* Is the page of a kind that only a trained index has? */
bool
IvfpqPageIsTrained(Page page)
{
	return IvfpqPageIs(page, IVFPQ_KIND_ARRAY) ||
		IvfpqPageIs(page, IVFPQ_KIND_DIRECTORY) ||
		IvfpqPageIs(page, IVFPQ_KIND_SLAB) ||
		IvfpqPageIs(page, IVFPQ_KIND_REFINE);
}

/* Report a damaged index; the one place that does. */
void
IvfpqCorrupted(Relation index, BlockNumber blkno, const char *fmt,...)
{
	char		problem[256];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(problem, sizeof(problem), fmt, args);
	va_end(args);

	ereport(ERROR,
			(errcode(ERRCODE_INDEX_CORRUPTED),
			 errmsg("index \"%s\" is damaged at block %u: %s",
					RelationGetRelationName(index), blkno, problem),
			 errhint("Rebuild it with REINDEX.")));
}

/*
 * Does the block exist?  The cached length is only ever too small, so it can
 * say yes but not no.
 */
bool
IvfpqBlockExists(Relation index, BlockNumber blkno)
{
	BlockNumber cached =
	RelationGetSmgr(index)->smgr_cached_nblocks[MAIN_FORKNUM];

	if (cached != InvalidBlockNumber && blkno < cached)
		return true;
	return blkno < RelationGetNumberOfBlocks(index);
}

/*
 * Read and lock a page that must exist and be of the kind; anything else is
 * damage.  The caller releases pin and lock.  BUFFER_LOCK_UNLOCK: a page that
 * does not change is only pinned.
 *
 * The kind is looked at before the page is locked, too, because damage may
 * lead to a page that the caller has locked, for which it would wait without
 * end; those are of other kinds, or the caller compares their numbers.  What
 * leads to a page was written after its kind, so this finds no sound page
 * wanting; but on a standby, where redo may be restoring it from a full-page
 * image, under its lock, in a buffer that is all zero before.  There the lock
 * is waited for: no page but the metapage is locked by a reader of another.
 */
Buffer
IvfpqReadPage(Relation index, BlockNumber blkno, int lockmode,
			  IvfpqPageKind kind, BufferAccessStrategy strategy)
{
	Buffer		buf;

	if (!IvfpqBlockExists(index, blkno))
		IvfpqCorrupted(index, blkno, "the block does not exist");
	buf = IvfpqBufHintRead(index, blkno, strategy);
	if (lockmode != BUFFER_LOCK_UNLOCK &&
		(IvfpqPageIs(BufferGetPage(buf), kind) ||
		 (RecoveryInProgress() &&
		  (blkno != IVFPQ_METAPAGE || kind == IVFPQ_KIND_META))))
		LockBuffer(buf, lockmode);
	if (!IvfpqPageIs(BufferGetPage(buf), kind))
		IvfpqCorrupted(index, blkno, "it is not a page of kind %d", kind);
	return buf;
}

/* Add a page at the end; returned pinned and exclusively locked, all zero. */
Buffer
IvfpqExtend(Relation index)
{
	return IvfpqExtendRelation(index);
}

/*
 * Add npages consecutive pages for IvfpqFillPage; returns the first.  With
 * `shared` the index is in use: no backend may find the pages by what the free
 * space map knows of an earlier end of the file, as a crash can leave it.
 */
BlockNumber
IvfpqReserve(Relation index, BlockNumber npages, bool shared)
{
	BlockNumber first = IvfpqExtendRelationBy(index, npages);

	for (BlockNumber i = 0; shared && i < npages; i++)
	{
		CHECK_FOR_INTERRUPTS();
		RecordPageWithFreeSpace(index, first + i, 0);
	}
	return first;
}

/* Write a whole page that was reserved; with `log` it is one record. */
void
IvfpqFillPage(Relation index, BlockNumber blkno, Page page, bool log)
{
	Buffer		buf = ReadBuffer(index, blkno);

	LockBuffer(buf, BUFFER_LOCK_EXCLUSIVE);
	if (!PageIsNew(BufferGetPage(buf)))
		elog(ERROR, "block %u of index \"%s\" was taken by someone else",
			 blkno, RelationGetRelationName(index));
	START_CRIT_SECTION();
	memcpy(BufferGetPage(buf), page, BLCKSZ);
	MarkBufferDirty(buf);
	if (log)
		log_newpage_buffer(buf, true);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buf);
}

/*
 * The same in training: with `shared` it is one record, else the caller logs
 * the finished index.
 */
void
IvfpqPutPage(Relation index, BlockNumber blkno, Page page, bool shared)
{
	IvfpqFillPage(index, blkno, page, shared && RelationNeedsWAL(index));
	if (shared)
		IvfpqInjectionPoint("train: page");
}

/* Make an exclusively locked page free.  One record, one page. */
void
IvfpqFreePage(Relation index, Buffer buf)
{
	GenericXLogState *state = GenericXLogStart(index);

	IvfpqPageInit(GenericXLogRegisterBuffer(state, buf,
											GENERIC_XLOG_FULL_IMAGE),
				  IVFPQ_KIND_FREE);
	GenericXLogFinish(state);
}

/*
 * Get a page to use for anything, from the free space map or by extension;
 * pinned and exclusively locked, its old contents meaningless.  Callers may
 * hold other locks: a page that is busy is passed over, never waited for.
 */
Buffer
IvfpqGetFreePage(Relation index)
{
	for (int tries = 0; tries < MAX_FSM_TRIES; tries++)
	{
		BlockNumber blkno = GetPageWithFreeSpace(index, IVFPQ_PAGE_BYTES);
		Buffer		buf;

		if (blkno == InvalidBlockNumber)
			break;
		RecordPageWithFreeSpace(index, blkno, 0);
		if (!IvfpqBlockExists(index, blkno))
			continue;
		buf = ReadBuffer(index, blkno);
		if (!ConditionalLockBuffer(buf))
		{
			ReleaseBuffer(buf);
			continue;
		}
		if (PageIsNew(BufferGetPage(buf)) ||
			IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_FREE))
			return buf;
		UnlockReleaseBuffer(buf);
	}
	return IvfpqExtend(index);
}
