/*
 * check.c
 *		Looking for damage: metapage, arrays, directory, slab pages.
 *
 * Pages are copied out one at a time, so nothing is held while a copy is
 * looked at.  A page that the buffer manager refuses (checksum, header, end
 * of file) is damage like any other.
 */
#include "postgres.h"

#include <math.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "page/array.h"
#include "page/check/attempt.h"
#include "page/check/check.h"
#include "page/refinepage.h"
#include "pgcompat.h"

/* A slot, or with list IVFPQ_NO_LIST a pending page, that no chain reaches. */
typedef struct IvfpqLeftover
{
	IvfpqAddress address;
	uint32		list;
	uint32		gen;
	uint32		ordinal;
} IvfpqLeftover;

static void problem(IvfpqChecker *checker, bool error, BlockNumber blkno,
					uint32 list, const char *fmt,...)
			__attribute__((format(printf, 5, 6)));

static void
problem(IvfpqChecker *checker, bool error, BlockNumber blkno, uint32 list,
		const char *fmt,...)
{
	char		message[512];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	checker->report(checker->arg, error, blkno, list, message);
}

/* A page to copy. */
typedef struct PageCopy
{
	IvfpqChecker *checker;
	BlockNumber blkno;
} PageCopy;

/* Copy it into checker->page; may raise errors.  For IvfpqAttempt. */
static void
copy_page(void *arg)
{
	PageCopy   *copy = arg;
	Buffer		buf;

	buf = ReadBufferExtended(copy->checker->index, MAIN_FORKNUM, copy->blkno,
							 RBM_NORMAL, copy->checker->strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	memcpy(copy->checker->page, BufferGetPage(buf), BLCKSZ);
	UnlockReleaseBuffer(buf);
}

/*
 * Copy a page into checker->page.  False when it cannot be read, with the
 * reason in checker->message.  The buffer manager says that by an error, and
 * what it had begun by then only the end of a subtransaction cleans up.
 */
bool
IvfpqCheckCopyPage(IvfpqChecker *checker, BlockNumber blkno)
{
	PageCopy	copy = {checker, blkno};
	ErrorData  *error;

	CHECK_FOR_INTERRUPTS();
	checker->cached = InvalidBlockNumber;
	if (!IvfpqBlockExists(checker->index, blkno))
	{
		strlcpy(checker->message, "the block does not exist",
				sizeof(checker->message));
		return false;
	}

	error = IvfpqAttempt(copy_page, &copy);
	if (error == NULL)
	{
		checker->cached = blkno;
		return true;
	}
	if (error->sqlerrcode != ERRCODE_DATA_CORRUPTED &&
		error->sqlerrcode != ERRCODE_IO_ERROR)
		ReThrowError(error);
	strlcpy(checker->message, error->message, sizeof(checker->message));
	FreeErrorData(error);
	return false;
}

/* Is this a row of the table, as far as an address can tell? */
bool
IvfpqCheckTid(IvfpqChecker *checker, const ItemPointerData *tid)
{
	BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(tid);

	if (!ItemPointerIsValid(tid))
		return false;
	if (blkno >= checker->heap_blocks)
		checker->heap_blocks = RelationGetNumberOfBlocks(checker->heap);
	return blkno < checker->heap_blocks;
}

/* Do the metapage's values make sense?  Then there is a layout. */
static bool
check_parameters(IvfpqChecker *checker)
{
	const IvfpqMetaData *meta = &checker->meta;

	if (IvfpqMetaIsInRange(meta) &&
		(meta->nlists == 0 || IvfpqLayoutGet(&checker->layout, meta)))
		return true;
	problem(checker, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
			"its parameters are out of range");
	return false;
}

/* Do arrays and directory lie one behind the other? */
static bool
check_places(IvfpqChecker *checker)
{
	const IvfpqMetaData *meta = &checker->meta;
	IvfpqMetaData placed = *meta;
	BlockNumber end;

	if (meta->nlists == 0)
		return true;
	end = IvfpqMetaPlace(&placed, meta->mean);
	if (meta->mean > IVFPQ_METAPAGE && meta->mean < end &&
		end <= checker->nblocks && placed.codebooks == meta->codebooks &&
		placed.parents == meta->parents &&
		placed.parent_offsets == meta->parent_offsets &&
		placed.centroids == meta->centroids && placed.codes == meta->codes &&
		(!meta->rotated || placed.rotation == meta->rotation) &&
		placed.directory == meta->directory)
		return true;
	problem(checker, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
			"arrays and directory are not in their places");
	return false;
}

/*
 * Begin: check the metapage of an index of the metric.  The caller has set
 * relations and callbacks, the rest is set here.  False when nothing can be
 * found without it.
 */
bool
IvfpqCheckMeta(IvfpqChecker *checker, int metric)
{
	IvfpqMetaData *meta = &checker->meta;
	Size		nslots;

	checker->strategy = GetAccessStrategy(BAS_BULKREAD);
	checker->page = palloc(BLCKSZ);
	checker->nblocks = RelationGetNumberOfBlocks(checker->index);
	if (!IvfpqCheckCopyPage(checker, IVFPQ_METAPAGE))
		problem(checker, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
				"it cannot be read: %s", checker->message);
	else if (!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_META))
		problem(checker, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
				"it is not a metapage");
	else
	{
		*meta = *(IvfpqMetaData *) PageGetContents((Page) checker->page);
		if (meta->magic != IVFPQ_MAGIC)
			problem(checker, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
					"bad magic number 0x%08X", meta->magic);
		else if (meta->version != IVFPQ_VERSION)
			problem(checker, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
					"format version %u, this gpuvec reads %d",
					meta->version, IVFPQ_VERSION);
		else if (check_parameters(checker) && check_places(checker))
		{
			if (meta->metric != metric)
				problem(checker, true, IVFPQ_METAPAGE, IVFPQ_NO_LIST,
						"metric %u, the operator class has %d",
						meta->metric, metric);
			if (meta->nlists == 0)
				checker->layout.slots_per_page = 1;
			nslots = (Size) checker->nblocks * checker->layout.slots_per_page;
			checker->reached = palloc_extended(nslots / 8 + 1,
											   MCXT_ALLOC_HUGE |
											   MCXT_ALLOC_ZERO);
			if (checker->layout.nparts > 1)
				checker->body = palloc(checker->layout.nparts *
									   checker->layout.part_bytes);
			return true;
		}
	}
	return false;
}

/*
 * Values from number `done` on of an array, on a page that is readable and of
 * its kind; NULL if it is not.  *n: how many.
 */
static const float4 *
array_page(IvfpqChecker *checker, const char *name, BlockNumber blkno,
		   int64 nvalues, int64 done, int64 *n)
{
	*n = Min(IVFPQ_FLOATS_PER_PAGE, nvalues - done);
	if (!IvfpqCheckCopyPage(checker, blkno))
		problem(checker, true, blkno, IVFPQ_NO_LIST,
				"it cannot be read: %s", checker->message);
	else if (!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_ARRAY))
		problem(checker, true, blkno, IVFPQ_NO_LIST,
				"it does not hold %s", name);
	else
		return (const float4 *) PageGetContents((Page) checker->page);
	return NULL;
}

/* One array: all its values are finite, if they are numbers. */
static void
check_array(IvfpqChecker *checker, const char *name, BlockNumber blkno,
			int64 nvalues, bool numbers)
{
	int64		n;

	for (int64 done = 0; done < nvalues; done += n, blkno++)
	{
		const float4 *values = array_page(checker, name, blkno, nvalues,
										  done, &n);
		bool		finite = true;

		for (int64 i = 0; numbers && values != NULL && i < n; i++)
			finite &= isfinite(values[i]) != 0;
		if (!finite)
			problem(checker, true, blkno, IVFPQ_NO_LIST,
					"a value of %s is not finite", name);
	}
}

/* The parents' first lists: from 0 to the number of lists, ascending. */
static void
check_parent_offsets(IvfpqChecker *checker)
{
	const IvfpqMetaData *meta = &checker->meta;
	BlockNumber blkno = meta->parent_offsets;
	int64		nvalues = meta->nparents + 1;
	int32		last = -1;
	int64		n;

	for (int64 done = 0; done < nvalues; done += n, blkno++)
	{
		const int32 *parent_offsets = (const int32 *)
		array_page(checker, "the parents' lists", blkno, nvalues, done, &n);

		if (parent_offsets == NULL)
			return;
		for (int64 i = 0; i < n; i++)
		{
			if (parent_offsets[i] <= last ||
				(done + i == 0 && parent_offsets[i] != 0) ||
				(done + i == meta->nparents &&
				 parent_offsets[i] != meta->nlists))
			{
				problem(checker, true, blkno, IVFPQ_NO_LIST,
						"the parents' lists do not follow each other");
				return;
			}
			last = parent_offsets[i];
		}
	}
}

/* Check what training wrote: arrays, and the directory's pages. */
void
IvfpqCheckModel(IvfpqChecker *checker)
{
	const IvfpqMetaData *meta = &checker->meta;
	int64		dims = meta->dims;

	if (meta->nlists == 0)
		return;
	check_array(checker, "the mean", meta->mean, dims, true);
	check_array(checker, "codebooks", meta->codebooks, 16 * dims, true);
	check_array(checker, "parents", meta->parents, meta->nparents * dims,
				true);
	check_parent_offsets(checker);
	check_array(checker, "centroids", meta->centroids, meta->nlists * dims,
				true);
	check_array(checker, "the centroids' codes", meta->codes,
				IvfpqCodeBlocks(meta) * IvfpqCodeBlockFloats(meta), false);
	if (meta->rotated)
		check_array(checker, "the rotation", meta->rotation, dims * dims, true);
	for (BlockNumber blkno = meta->directory;
		 IvfpqIsFixedPage(meta, blkno); blkno++)
	{
		if (!IvfpqCheckCopyPage(checker, blkno))
			problem(checker, true, blkno, IVFPQ_NO_LIST,
					"it cannot be read: %s", checker->message);
		else if (!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_DIRECTORY))
			problem(checker, true, blkno, IVFPQ_NO_LIST,
					"it is not a page of the directory");
	}
}

static Size
slot_number(const IvfpqChecker *checker, BlockNumber blkno, uint32 slot)
{
	return (Size) blkno * checker->layout.slots_per_page + slot;
}

/* A chain reaches the slot.  Pages younger than the check do not matter. */
void
IvfpqCheckReached(IvfpqChecker *checker, BlockNumber blkno, uint32 slot)
{
	Size		n = slot_number(checker, blkno, slot);

	if (blkno < checker->nblocks)
		checker->reached[n / 8] |= 1 << (n % 8);
}

static bool
is_reached(const IvfpqChecker *checker, BlockNumber blkno, uint32 slot)
{
	Size		n = slot_number(checker, blkno, slot);

	return (checker->reached[n / 8] & (1 << (n % 8))) != 0;
}

/* Keep a slot or page in mind, to be looked at again at the end. */
static void
keep_leftover(IvfpqChecker *checker, const IvfpqLeftover *leftover)
{
	if (checker->nleftovers == checker->max_leftovers)
	{
		checker->max_leftovers = Max(64, 2 * checker->max_leftovers);
		checker->leftovers = checker->leftovers == NULL ?
			palloc(checker->max_leftovers * sizeof(IvfpqLeftover)) :
			repalloc_huge(checker->leftovers,
						  checker->max_leftovers * sizeof(IvfpqLeftover));
	}
	checker->leftovers[checker->nleftovers++] = *leftover;
}

/* The slots of the slab page in checker->page. */
static void
check_slots(IvfpqChecker *checker, BlockNumber blkno)
{
	for (int i = 0; i < checker->layout.slots_per_page; i++)
	{
		const IvfpqSlotHeader *slot = IvfpqSlabSlot((Page) checker->page,
													&checker->layout, i);
		IvfpqLeftover leftover = {{blkno, i}, slot->list, slot->gen,
		slot->ordinal};

		if (slot->list == IVFPQ_NO_LIST)
			continue;
		if (slot->list >= (uint32) checker->meta.nlists)
			problem(checker, true, blkno, IVFPQ_NO_LIST,
					"slot %d belongs to list %u of %d", i, slot->list,
					checker->meta.nlists);
		else if (!is_reached(checker, blkno, i))
			keep_leftover(checker, &leftover);
	}
}

/*
 * Might training have left the page?  A pending page that is not in the list,
 * and while the index is untrained all that a trained one consists of.
 */
static bool
is_training_leftover(const IvfpqChecker *checker, Page page)
{
	return IvfpqPageIs(page, IVFPQ_KIND_PENDING) ||
		(checker->meta.nlists == 0 && IvfpqPageIsTrained(page));
}

/* A page that is none of the metapage, arrays and directory. */
static void
check_page(IvfpqChecker *checker, BlockNumber blkno)
{
	Page		page = (Page) checker->page;

	if (!IvfpqCheckCopyPage(checker, blkno))
		problem(checker, true, blkno, IVFPQ_NO_LIST, "it cannot be read: %s",
				checker->message);
	else if (PageIsNew(page) || IvfpqPageIs(page, IVFPQ_KIND_FREE))
		return;
	else if (is_training_leftover(checker, page))
	{
		IvfpqLeftover leftover = {{blkno, 0}, IVFPQ_NO_LIST, 0, 0};

		if (!is_reached(checker, blkno, 0))
			keep_leftover(checker, &leftover);
	}
	else if (IvfpqPageIs(page, IVFPQ_KIND_SLAB) && checker->meta.nlists > 0)
		check_slots(checker, blkno);
	else if (IvfpqPageIs(page, IVFPQ_KIND_REFINE) &&
			 checker->meta.refine != IVFPQ_REFINE_NONE)
	{
		if (checker->meta.nlists > 0)
			IvfpqCheckRecordPage(checker, blkno);
	}
	else
		problem(checker, true, blkno, IVFPQ_NO_LIST,
				"it is of no kind that belongs here");
}

static int
compare_leftovers(const void *a, const void *b)
{
	const IvfpqLeftover *x = a;
	const IvfpqLeftover *y = b;

	if (x->list != y->list)
		return x->list < y->list ? -1 : 1;
	if (x->address.page != y->address.page)
		return x->address.page < y->address.page ? -1 : 1;
	return (x->address.slot > y->address.slot) -
		(x->address.slot < y->address.slot);
}

/* Report a slot of a list that is still what it was and still not reached. */
static void
report_slot(IvfpqChecker *checker, const IvfpqLeftover *leftover,
			uint32 gen, bool sound)
{
	BlockNumber blkno = leftover->address.page;
	const IvfpqSlotHeader *slot;

	if (!IvfpqCheckCopyPage(checker, blkno) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_SLAB))
		return;
	slot = IvfpqSlabSlot((Page) checker->page, &checker->layout,
						 leftover->address.slot);
	if (slot->list != leftover->list || slot->gen != leftover->gen ||
		slot->ordinal != leftover->ordinal)
		return;
	if (slot->gen != gen)
		problem(checker, false, blkno, slot->list,
				"slot %u is left over from an earlier state of its list, VACUUM frees it",
				leftover->address.slot);
	else if (sound)
		problem(checker, true, blkno, slot->list,
				"slot %u says that it holds block %u of its list, but is not in it",
				leftover->address.slot, slot->ordinal);
}

/*
 * Checks again the slots that no chain reached: inserts may have made it
 * since, and then its list, read again, reaches it.
 */
static void
check_leftovers(IvfpqChecker *checker)
{
	uint32		list = IVFPQ_NO_LIST;
	IvfpqDirEntry entry = {0};
	IvfpqMetaData meta;
	bool		readable = false;
	bool		sound = false;

	IvfpqMetaRead(checker->index, &meta);
	if (meta.nlists != checker->meta.nlists)
		return;					/* trained since: that is what they are */
	qsort(checker->leftovers, checker->nleftovers, sizeof(IvfpqLeftover),
		  compare_leftovers);
	IvfpqCheckPending(checker, true);
	for (int64 i = 0; i < checker->nleftovers; i++)
	{
		const IvfpqLeftover *leftover = &checker->leftovers[i];

		if (leftover->list != list && leftover->list != IVFPQ_NO_LIST)
		{
			list = leftover->list;
			sound = IvfpqCheckList(checker, list, true);
			readable = IvfpqCheckEntry(checker, list, &entry);
		}
		if (is_reached(checker, leftover->address.page,
					   leftover->address.slot))
			continue;
		if (leftover->list != IVFPQ_NO_LIST)
		{
			if (readable)
				report_slot(checker, leftover, entry.gen, sound);
		}
		else if (IvfpqCheckCopyPage(checker, leftover->address.page) &&
				 is_training_leftover(checker, (Page) checker->page))
			problem(checker, false, leftover->address.page, IVFPQ_NO_LIST,
					"it is left over from training or VACUUM, the next VACUUM frees it");
	}
}

/*
 * Check small-list pages and pages of pending rows, after both were followed:
 * their kinds, and that all that are in use are reached.  Pages that VACUUM
 * and training write beside a list, or have not freed yet, look just like
 * those that a crash leaves.  So these are reported only when the lock shows
 * that neither is running; on a standby, where the lock cannot be had, never.
 */
void
IvfpqCheckSlabs(IvfpqChecker *checker)
{
	for (BlockNumber blkno = 0; blkno < checker->nblocks; blkno++)
		if (!IvfpqIsFixedPage(&checker->meta, blkno))
			check_page(checker, blkno);

	if (checker->nleftovers > 0 && !RecoveryInProgress() &&
		ConditionalLockRelation(checker->heap, ShareUpdateExclusiveLock))
	{
		check_leftovers(checker);
		UnlockRelation(checker->heap, ShareUpdateExclusiveLock);
	}
}
