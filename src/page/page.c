/*
 * page.c
 *		Pages of any kind: made, checked, read, allocated and freed.
 *
 * Every page has 8 bytes of special space that tell its kind.  A page is read
 * as the kind that a link to it promises, so that damage is reported and not
 * followed.  The free space map offers pages that were freed, or added and
 * never used.  That is only a hint: under its lock a page is taken if it is new
 * or of the kind IVFPQ_KIND_FREE, and else passed over.
 *
 * Builds and training fill runs of new pages.  They make a page in memory and
 * put it to a block that was reserved for it, so they hold no lock while they
 * compute what stands there.
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

/* Pages from the free space map that are tried before the file is extended. */
#define MAX_FSM_TRIES	10

/*
 * Makes an empty page of the kind.  pd_lower is set to pd_upper, because
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
 * hole, as damage may leave it, is none of ours: the next generic record would
 * zero the hole.
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

/* Returns whether the page is of a kind that only a trained index has. */
bool
IvfpqPageIsTrained(Page page)
{
	return IvfpqPageIs(page, IVFPQ_KIND_ARRAY) ||
		IvfpqPageIs(page, IVFPQ_KIND_DIRECTORY) ||
		IvfpqPageIs(page, IVFPQ_KIND_SLAB) ||
		IvfpqPageIs(page, IVFPQ_KIND_REFINE);
}

/* Raises the error for a damaged index; no other place does. */
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
 * Returns whether the block exists.  The cached size of the relation is never
 * too large but may be too small, so it proves only that a block exists.
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
 * Returns a page that must exist and be of the kind; anything else is damage.
 * It is pinned, and locked in lockmode; the caller releases both.  With
 * BUFFER_LOCK_UNLOCK the page, which must be one that never changes, is only
 * pinned.
 *
 * The kind is checked before the page is locked, too.  Damage may lead to a
 * page that the caller has locked, and it would wait for itself forever; such
 * a page is of another kind, or the caller compares block numbers.  A page's
 * kind is written before any link to the page, so this check rejects no valid
 * page, except on a standby.  There, redo may be restoring the page from a
 * full-page image, under its lock, in a buffer that is all zero before.  So on
 * a standby we wait for the lock, unless the link leads to the metapage: no
 * reader holds the lock of any other page while it locks a page.
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

/* Adds a page to the file; returns it exclusively locked, all zero. */
Buffer
IvfpqExtend(Relation index)
{
	return IvfpqExtendRelation(index);
}

/*
 * Returns a page for any use, exclusively locked, from the free space map or
 * by extending the file.  Its old contents mean nothing.  Callers may hold
 * locks on other pages, because a busy page is passed over, never waited for.
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

/* Frees a page that is exclusively locked.  One record, one page. */
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
 * Adds npages consecutive pages for IvfpqFillPage and returns the first.  With
 * `shared` others use the index.  A crash can leave a free space map that
 * knows blocks behind the end of the file, so the new pages are taken out of
 * it, lest another backend find them there.
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

/*
 * Writes a whole page to a block that was reserved and is new yet.  With `log`
 * that is one WAL record, of the whole page.
 */
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
 * Writes a whole page in builds and training.  With `shared` others use the
 * index, and the page is logged; else the caller logs the finished index.
 */
void
IvfpqPutPage(Relation index, BlockNumber blkno, Page page, bool shared)
{
	IvfpqFillPage(index, blkno, page, shared && RelationNeedsWAL(index));
	if (shared)
		IvfpqInjectionPoint("train: page");
}
