/*
 * page.c
 *		Pages of any kind: making, checking, reading, allocating, freeing.
 *
 * Every page has 8 bytes of special space, which say of what kind the page is.
 * A caller that follows a link to a page says which kind the page must have,
 * so that a wrong link is reported and not followed.
 *
 * The free space map offers pages that were freed, or that were added to the
 * file and never used.  The map is only a hint.  A page that it offers is
 * locked, and is taken if it is new or of the kind IVFPQ_KIND_FREE.  Otherwise
 * it is passed over.
 *
 * Builds and training fill runs of new pages.  They make each page in memory
 * and then write it to a block that was reserved for it, so they hold no lock
 * while they compute the contents of the page.
 */
#include "postgres.h"

#include "access/rmgr.h"
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
 * Initializes an empty page of the given kind.  Sets pd_lower to pd_upper,
 * because GenericXLog would zero the bytes between them.
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
	special->training = 0;
	special->page_id = IVFPQ_PAGE_ID;
}

/*
 * Initializes an empty page of a kind that only a trained index has, for the
 * training with this number.
 */
void
IvfpqTrainedPageInit(Page page, IvfpqPageKind kind, uint32 training)
{
	IvfpqPageInit(page, kind);
	IvfpqPageSpecial(page)->training = (uint16) training;
}

/*
 * Returns whether this is a page of our index, of the given kind.  Damage may
 * leave a page with a hole between pd_lower and pd_upper.  We reject such a
 * page, because the next generic WAL record would zero the bytes in the hole.
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

/*
 * Returns the number of the page's training, of a kind that only a trained
 * index has, relative to training number `training`: 0 if that wrote the page,
 * less than 0 if an earlier training did.
 */
int
IvfpqPageTraining(Page page, uint32 training)
{
	return (int16) (IvfpqPageSpecial(page)->training - (uint16) training);
}

/* Raises the error for a damaged index, which no other function raises. */
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
			 errhint("Rebuild the index with REINDEX.")));
}

/*
 * Returns whether the block exists.  The cached size of the relation may be
 * too small but is never too large, so it can prove only that a block exists.
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
 * Returns the buffer of a page that must exist and be of the given kind;
 * anything else is damage.  The buffer is pinned, and locked in lockmode; the
 * caller releases both.  If lockmode is BUFFER_LOCK_UNLOCK, the page must be
 * one that never changes, and is only pinned.
 *
 * The kind is also checked before the page is locked.  In a damaged index, a
 * link may lead to a page that the caller has already locked, and the caller
 * would wait for itself forever.  The check prevents this if the page is of
 * another kind.  If the page is of the same kind, the caller must compare
 * block numbers.
 *
 * A page's kind is written before any link to the page, so on a primary this
 * check rejects no valid page.  On a standby, the page may be all zero while
 * redo, which has locked it, restores it from a full-page image.  So on a
 * standby we wait for the lock even if the kind is wrong, unless the link
 * wrongly leads to the metapage.  The metapage is the only page that a reader
 * may have locked while it locks another page.
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

/* Returns whether the page is new or free, and not taken by a training. */
bool
IvfpqPageIsFree(Page page)
{
	return PageIsNew(page) ||
		(IvfpqPageIs(page, IVFPQ_KIND_FREE) &&
		 IvfpqPageSpecial(page)->flags == 0);
}

/*
 * Returns a free page that the free space map offers, exclusively locked, or
 * InvalidBuffer if there is none.  The caller may hold locks on other pages,
 * because this function passes over busy pages and never waits for them.
 */
static Buffer
find_free_page(Relation index)
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
		if (IvfpqPageIsFree(BufferGetPage(buf)))
			return buf;
		UnlockReleaseBuffer(buf);
	}
	return InvalidBuffer;
}

/*
 * Returns a page for any use, exclusively locked.  The page comes from the
 * free space map or, if none is found there, from extending the file.  The
 * caller must initialize it, and may hold locks on other pages.
 */
Buffer
IvfpqGetFreePage(Relation index)
{
	Buffer		buf = find_free_page(index);

	return BufferIsValid(buf) ? buf : IvfpqExtendRelation(index);
}

/*
 * Takes a free page that is exclusively locked, and unlocks it.  Writes one WAL
 * record, which marks the page: other backends may know it as free from the
 * map, or as the page that they used last.  Whoever reclaims pages after a
 * crash frees it.
 */
static void
take_page(Relation index, Buffer buf)
{
	GenericXLogState *state = GenericXLogStart(index);
	Page		page;

	page = GenericXLogRegisterBuffer(state, buf,
									 PageIsNew(BufferGetPage(buf)) ?
									 GENERIC_XLOG_FULL_IMAGE : 0);
	IvfpqPageInit(page, IVFPQ_KIND_FREE);
	IvfpqPageSpecial(page)->flags = IVFPQ_FREE_TAKEN;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);
}

/*
 * Takes a free page, for IvfpqFillPage to fill.  Returns InvalidBlockNumber if
 * the free space map offers none.
 */
BlockNumber
IvfpqTakeFreePage(Relation index)
{
	Buffer		buf = find_free_page(index);
	BlockNumber blkno = InvalidBlockNumber;

	if (BufferIsValid(buf))
	{
		blkno = BufferGetBlockNumber(buf);
		take_page(index, buf);
	}
	return blkno;
}

/*
 * Takes up to npages free pages from `first` on, one after the other, and
 * returns their number.
 */
static BlockNumber
take_pages(Relation index, BlockNumber first, BlockNumber npages)
{
	BlockNumber n;

	for (n = 0; n < npages; n++)
	{
		Buffer		buf = ReadBuffer(index, first + n);

		LockBuffer(buf, BUFFER_LOCK_EXCLUSIVE);
		if (!IvfpqPageIsFree(BufferGetPage(buf)))
		{
			UnlockReleaseBuffer(buf);
			break;
		}
		RecordPageWithFreeSpace(index, first + n, 0);
		take_page(index, buf);
	}
	return n;
}

/*
 * Takes npages consecutive free pages, for IvfpqFillPage to fill, and returns
 * the first.  Returns InvalidBlockNumber if the free space map has no such run.
 * If others have taken one of the pages, frees those before it.
 */
BlockNumber
IvfpqTakeRun(Relation index, BlockNumber npages)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(index);
	BlockNumber run = 0;

	for (BlockNumber blkno = IVFPQ_METAPAGE + 1; blkno < nblocks; blkno++)
	{
		BlockNumber first = blkno + 1 - npages;
		BlockNumber taken;

		CHECK_FOR_INTERRUPTS();
		run = GetRecordedFreeSpace(index, blkno) >= IVFPQ_PAGE_BYTES ?
			run + 1 : 0;
		if (run < npages)
			continue;
		taken = take_pages(index, first, npages);
		if (taken == npages)
			return first;
		while (taken-- > 0)
		{
			Buffer		buf = ReadBuffer(index, first + taken);

			LockBuffer(buf, BUFFER_LOCK_EXCLUSIVE);
			IvfpqFreePage(index, buf);
			UnlockReleaseBuffer(buf);
			RecordPageWithFreeSpace(index, first + taken, BLCKSZ - 1);
		}
		run = 0;
	}
	return InvalidBlockNumber;
}

/*
 * Frees a page that the caller has locked exclusively.  Writes one WAL record,
 * which covers this page only.
 */
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
 * Logs that pages which snapshots as old as `xid` may read are about to be
 * freed.  On standbys it cancels queries with such snapshots.  An extension
 * has no record for that.  nbtree's changes no page, and says just this.
 */
void
IvfpqLogReuse(Relation index, FullTransactionId xid)
{
	xl_btree_reuse_page record = IvfpqReuseRecord(index, xid);

	if (!XLogStandbyInfoActive() || !RelationNeedsWAL(index))
		return;
	XLogBeginInsert();
	XLogRegisterData((char *) &record, SizeOfBtreeReusePage);
	(void) XLogInsert(RM_BTREE_ID, XLOG_BTREE_REUSE_PAGE);
}

/*
 * Adds npages consecutive pages to the file, for IvfpqFillPage to fill.
 * Returns the block number of the first page.  If `shared` is true, other
 * backends use the index.  After a crash, the free space map may contain
 * blocks beyond the end of the file.  So the new pages are removed from the
 * map, where other backends could find them.
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
 * Writes a whole page to a block that was reserved and is still new, or that
 * was taken.  If `log` is true, logs the page in one WAL record.
 */
void
IvfpqFillPage(Relation index, BlockNumber blkno, Page page, bool log)
{
	Buffer		buf = ReadBuffer(index, blkno);

	LockBuffer(buf, BUFFER_LOCK_EXCLUSIVE);
	if (!PageIsNew(BufferGetPage(buf)) &&
		!(IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_FREE) &&
		  IvfpqPageSpecial(BufferGetPage(buf))->flags == IVFPQ_FREE_TAKEN))
		elog(ERROR, "block %u of index \"%s\" is already in use",
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
 * Writes a whole page in a build or in training.  If `shared` is true, other
 * backends use the index, and the page is WAL-logged.  Otherwise the caller
 * logs the finished index.
 */
void
IvfpqPutPage(Relation index, BlockNumber blkno, Page page, bool shared)
{
	IvfpqFillPage(index, blkno, page, shared && RelationNeedsWAL(index));
	if (shared)
		IvfpqInjectionPoint("train: page");
}
