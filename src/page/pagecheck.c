/*
 * pagecheck.c
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
#include "nodes/pg_list.h"
#include "port/pg_bitutils.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"

#include "page/array.h"
#include "page/attempt.h"
#include "page/pagecheck.h"
#include "page/pending.h"
#include "page/refinepage.h"
#include "pgcompat.h"

static bool check_entry(IvfpqChecker *checker, uint32 list,
							IvfpqDirEntry *entry);
static bool check_address(IvfpqChecker *checker,
							  const ItemPointerData *address);
static void check_record_page(IvfpqChecker *checker, BlockNumber blkno);

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
static bool
check_copy_page(IvfpqChecker *checker, BlockNumber blkno)
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
static bool
check_tid(IvfpqChecker *checker, const ItemPointerData *tid)
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
	if (!check_copy_page(checker, IVFPQ_METAPAGE))
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
	if (!check_copy_page(checker, blkno))
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
		if (!check_copy_page(checker, blkno))
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
static void
check_reached(IvfpqChecker *checker, BlockNumber blkno, uint32 slot)
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

	if (!check_copy_page(checker, blkno))
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
			check_record_page(checker, blkno);
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

	if (!check_copy_page(checker, blkno) ||
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
			readable = check_entry(checker, list, &entry);
		}
		if (is_reached(checker, leftover->address.page,
					   leftover->address.slot))
			continue;
		if (leftover->list != IVFPQ_NO_LIST)
		{
			if (readable)
				report_slot(checker, leftover, entry.gen, sound);
		}
		else if (check_copy_page(checker, leftover->address.page) &&
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

/* ----
 * Looking for damage in chains: lists of blocks, and the pending list.
 *
 * A chain is followed by the same read protocol that scans obey.  A problem
 * that one reading finds counts only if nothing rewrote the chain meanwhile
 * and a second reading finds it again; then the problems of the last reading
 * are reported.
 */

/* Something that one reading found. */
typedef struct Finding
{
	BlockNumber blkno;
	char	   *text;
} Finding;

/* One reading of a chain. */
typedef struct Reading
{
	IvfpqChecker *checker;
	MemoryContext context;		/* of findings and TIDs; reset by a reading */
	uint32		list;			/* IVFPQ_NO_LIST: the pending list */
	IvfpqDirEntry entry;		/* as it was at the start */
	List	   *findings;
	bool		complete;		/* reached the end */
	uint32		ndead;			/* dead flags seen */
	bool		stray_flags;	/* flags of postings that are not there */
	uint32		nfirst;			/* live primary postings seen */
	IvfpqFound *found;			/* [nfound] entries that are not dead */
	int64		nfound;
	int64		max_found;
} Reading;

static void find(Reading *reading, BlockNumber blkno, const char *fmt,...)
			__attribute__((format(printf, 3, 4)));

static void
find(Reading *reading, BlockNumber blkno, const char *fmt,...)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(reading->context);
	Finding    *finding = palloc(sizeof(Finding));
	char		message[256];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	finding->blkno = blkno;
	finding->text = pstrdup(message);
	reading->findings = lappend(reading->findings, finding);
	MemoryContextSwitchTo(oldcontext);
}

/* Begin a reading; the pages of an earlier one may be out of date. */
static void
begin_reading(Reading *reading)
{
	MemoryContextReset(reading->context);
	reading->findings = NIL;
	reading->complete = false;
	reading->ndead = 0;
	reading->stray_flags = false;
	reading->nfirst = 0;
	reading->found = NULL;
	reading->nfound = 0;
	reading->max_found = 0;
	reading->checker->cached = InvalidBlockNumber;
}

static void
init_reading(Reading *reading, IvfpqChecker *checker, uint32 list)
{
	memset(reading, 0, sizeof(*reading));
	reading->checker = checker;
	reading->list = list;
	reading->context = AllocSetContextCreate(CurrentMemoryContext,
											 "gpuivfpq check",
											 ALLOCSET_DEFAULT_SIZES);
}

/* Report what the last reading found; true if that is nothing. */
static bool
end_reading(Reading *reading, bool silent)
{
	IvfpqChecker *checker = reading->checker;
	bool		sound = reading->findings == NIL;
	ListCell   *cell;

	if (!silent)
	{
		foreach(cell, reading->findings)
		{
			Finding    *finding = lfirst(cell);

			checker->report(checker->arg, true, finding->blkno,
							reading->list, finding->text);
		}
		if (reading->nfound > 0)
			checker->take(checker->arg, reading->found, reading->nfound);
	}
	MemoryContextDelete(reading->context);
	return sound;
}

/* Keep a live entry. */
static void
keep_entry(Reading *reading, const IvfpqFound *found)
{

	if (reading->nfound == reading->max_found)
	{
		reading->max_found = Max(256, 2 * reading->max_found);
		reading->found = reading->found == NULL ?
			MemoryContextAlloc(reading->context,
							   reading->max_found * sizeof(IvfpqFound)) :
			repalloc_huge(reading->found,
						  reading->max_found * sizeof(IvfpqFound));
	}
	reading->found[reading->nfound++] = *found;
}

/* Read a list's entry; false if its directory page cannot be had. */
static bool
check_entry(IvfpqChecker *checker, uint32 list, IvfpqDirEntry *entry)
{
	if (!check_copy_page(checker, IvfpqDirectoryPage(&checker->meta, list)) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_DIRECTORY))
		return false;
	*entry = *IvfpqDirEntryGet((Page) checker->page, list);
	return true;
}

/* The slot, if it holds this part of this block of the list. */
static const IvfpqSlotHeader *
get_slot(Reading *reading, BlockNumber blkno, uint32 slot, uint32 ordinal,
		 int part)
{
	IvfpqChecker *checker = reading->checker;
	const IvfpqSlotHeader *header;

	if (IvfpqIsFixedPage(&checker->meta, blkno) ||
		slot >= (uint32) checker->layout.slots_per_page ||
		(checker->cached != blkno && !check_copy_page(checker, blkno)) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_SLAB))
		return NULL;
	header = IvfpqSlabSlot((Page) checker->page, &checker->layout, slot);
	if (header->list != reading->list || header->gen != reading->entry.gen ||
		header->ordinal != ordinal || header->part != part)
		return NULL;
	check_reached(checker, blkno, slot);
	return header;
}

/* Returns whether the spare nibble of posting i's code, if any, is 0. */
static bool
spare_is_zero(const IvfpqChecker *checker, const uint8 *codes, int i)
{
	int			last = checker->layout.code_bytes - 1;

	return checker->meta.pq_dim % 2 == 0 ||
		(codes[last * IVFPQ_BLOCK_POSTINGS + i] & 0xF0) == 0;
}

/*
 * Checks the keys of a block's postings that exist, dead ones included: heads
 * cover all of them, and what is unused is zero.
 */
static void
check_keys(Reading *reading, BlockNumber blkno, uint32 ordinal,
		   const char *body, uint32 exist)
{
	const IvfpqLayout *layout = &reading->checker->layout;
	const IvfpqKeyForm *form = &layout->keys;
	const char *keys = body + layout->keys_at;
	const IvfpqKeyHead *heads = (const IvfpqKeyHead *) keys;

	for (int k = 0; k < form->nkeys; k++)
		if (heads[k].unused != 0 || (heads[k].nulls & ~exist) != 0 ||
			(form->kind[k] != IVFPQ_KEY_ORDERED && heads[k].high != 0))
			find(reading, blkno, "the head of key %d of block %u is out of range",
				 k + 1, ordinal);
	for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
	{
		IvfpqKeyAbbrevs abbrevs;

		if (!(exist & (1U << i)))
			continue;
		IvfpqKeyAbbrevsGet(form, keys, i, &abbrevs);
		for (int k = 0; k < form->nkeys; k++)
		{
			if ((abbrevs.nulls >> k & 1) != 0 && abbrevs.abbrev[k] != 0)
				find(reading, blkno, "key %d of copy %d of block %u is NULL and has a value",
					 k + 1, i, ordinal);
			if (!IvfpqKeyHeadCovers(form, k, &heads[k], &abbrevs))
				find(reading, blkno, "the head of key %d of block %u does not tell of copy %d",
					 k + 1, ordinal, i);
		}
	}
}

/* Returns the digest of posting i's keys; 0 without keys. */
static uint64
keys_digest(const IvfpqLayout *layout, const char *body, int i)
{
	IvfpqKeyAbbrevs abbrevs;

	if (layout->keys.nkeys == 0)
		return 0;
	IvfpqKeyAbbrevsGet(&layout->keys, body + layout->keys_at, i, &abbrevs);
	return IvfpqKeyAbbrevsDigest(&layout->keys, &abbrevs);
}

/*
 * Reports the `count` postings of a block, without the dead ones; with codes
 * NULL, as far as part 0 tells.
 */
static void
check_postings(Reading *reading, BlockNumber blkno, uint32 ordinal,
			   const char *body, const uint8 *codes, uint32 live,
			   uint32 secondary)
{
	const ItemPointerData *tids = (const ItemPointerData *) body;
	const float4 *t = (const float4 *) (tids + IVFPQ_BLOCK_POSTINGS);
	const ItemPointerData *addresses =
	(const ItemPointerData *) (t + IVFPQ_BLOCK_POSTINGS);

	for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
	{
		IvfpqFound	found = {.tid = tids[i], .place = secondary & (1U << i) ?
		IVFPQ_SECONDARY_POSTING : IVFPQ_PRIMARY_POSTING};

		if (!(live & (1U << i)))
			continue;
		if (check_address(reading->checker, &addresses[i]))
			found.refine = addresses[i];
		else if (reading->checker->layout.refine)
			find(reading, blkno,
				 "copy %d of block %u points to refine record (%u,%u), which cannot be",
				 i, ordinal, ItemPointerGetBlockNumberNoCheck(&addresses[i]),
				 ItemPointerGetOffsetNumberNoCheck(&addresses[i]));
		found.keys = keys_digest(&reading->checker->layout, body, i);
		if (check_tid(reading->checker, &tids[i]))
			keep_entry(reading, &found);
		else
			find(reading, blkno,
				 "copy %d of block %u points to (%u,%u), which is not in the table",
				 i, ordinal, ItemPointerGetBlockNumberNoCheck(&tids[i]),
				 ItemPointerGetOffsetNumberNoCheck(&tids[i]));
		if (!isfinite(t[i]))
			find(reading, blkno, "T of copy %d of block %u is not finite", i,
				 ordinal);
		if (codes != NULL && !spare_is_zero(reading->checker, codes, i))
			find(reading, blkno, "code of copy %d of block %u is out of range",
				 i, ordinal);
	}
}

/*
 * Gather the parts of a block whose part 0 is at hand; the body, or NULL.
 * Leaves checker->page with another page.
 */
static const char *
gather_parts(Reading *reading, const IvfpqSlotHeader *header,
			 const char *body)
{
	IvfpqChecker *checker = reading->checker;
	int			part_bytes = checker->layout.part_bytes;
	BlockNumber blkno = header->next_part;

	memcpy(checker->body, body, part_bytes);
	for (int p = 1; p < checker->layout.nparts; p++)
	{
		const IvfpqSlotHeader *slot = get_slot(reading, blkno, 0,
											   header->ordinal, p);

		if (slot == NULL)
		{
			find(reading, blkno, "part %d of block %u is not there", p,
				 header->ordinal);
			return NULL;
		}
		memcpy(checker->body + p * part_bytes,
			   (const char *) slot + sizeof(IvfpqSlotHeader), part_bytes);
		blkno = slot->next_part;
	}
	return checker->body;
}

/* One block of a list; false if it is not there.  *header gets its header. */
static bool
check_block(Reading *reading, IvfpqAddress address, uint32 ordinal, int count,
			IvfpqSlotHeader *header)
{
	IvfpqChecker *checker = reading->checker;
	uint32		exist = 0xFFFFFFFF >> (IVFPQ_BLOCK_POSTINGS - count);
	const IvfpqSlotHeader *slot;
	const char *body;
	const uint8 *codes = NULL;

	slot = get_slot(reading, address.page, address.slot, ordinal, 0);
	if (slot == NULL)
		return false;
	*header = *slot;
	reading->ndead += pg_popcount32(header->dead & exist);
	reading->nfirst +=
		pg_popcount32(exist & ~header->dead & ~header->secondary);
	reading->stray_flags |= (header->dead & ~exist) != 0;

	body = (const char *) slot + sizeof(IvfpqSlotHeader);
	check_keys(reading, address.page, ordinal, body, exist);
	if (checker->layout.nparts > 1)
	{
		const char *whole = gather_parts(reading, header, body);

		body = checker->body;
		if (whole == NULL)
		{
			check_postings(reading, address.page, ordinal, body, NULL,
						   exist & ~header->dead, header->secondary);
			return true;
		}
	}
	codes = (const uint8 *) body + checker->layout.codes;
	check_postings(reading, address.page, ordinal, body, codes,
				   exist & ~header->dead, header->secondary);
	return true;
}

/* Follow a list's chain, newest block first, as its entry describes it. */
static void
read_chain(Reading *reading)
{
	IvfpqAddress next = reading->entry.head;
	uint32		nleft = reading->entry.nitems;

	while (nleft > 0)
	{
		uint32		ordinal = (nleft - 1) / IVFPQ_BLOCK_POSTINGS;
		int			count = (nleft - 1) % IVFPQ_BLOCK_POSTINGS + 1;
		IvfpqSlotHeader header;

		if (!check_block(reading, next, ordinal, count, &header))
		{
			if (next.page == InvalidBlockNumber)
				find(reading, IvfpqDirectoryPage(&reading->checker->meta,
												 reading->list),
					 "the chain ends before block %u", ordinal);
			else
				find(reading, next.page,
					 "slot %u does not hold block %u, which the chain leads to",
					 next.slot, ordinal);
			return;
		}
		nleft -= count;
		if (nleft == 0 && header.prev_page != InvalidBlockNumber)
			find(reading, next.page, "the chain goes on behind its oldest block");
		next.page = header.prev_page;
		next.slot = header.prev_slot;
	}
	reading->complete = true;
}

/* Compare the dead flags with an entry that did not change meanwhile. */
static void
check_dead(Reading *reading)
{
	const IvfpqDirEntry *entry = &reading->entry;
	BlockNumber blkno = IvfpqDirectoryPage(&reading->checker->meta,
										   reading->list);

	if (!reading->complete)
		return;
	if (reading->ndead != entry->ndead)
		find(reading, blkno, "%u copies are dead, the directory says %u",
			 reading->ndead, entry->ndead);
	if (reading->nfirst != entry->nfirst)
		find(reading, blkno, "%u live copies are first ones, the directory says %u",
			 reading->nfirst, entry->nfirst);
	if (reading->stray_flags)
		find(reading, blkno, "copies behind the last one are marked dead");
}

/*
 * Check one list.  With silent, only note which slots it reaches.  True if it
 * is sound.
 */
bool
IvfpqCheckList(IvfpqChecker *checker, uint32 list, bool silent)
{
	Reading		reading;
	IvfpqDirEntry after;
	bool		again = false;

	init_reading(&reading, checker, list);
	for (;;)
	{
		begin_reading(&reading);
		if (!check_entry(checker, list, &reading.entry))
			break;				/* its page is reported already */
		read_chain(&reading);
		if (!check_entry(checker, list, &after))
			break;
		if (after.gen != reading.entry.gen)
		{
			again = false;
			continue;
		}
		if (after.del_seq == reading.entry.del_seq &&
			after.nitems == reading.entry.nitems)
			check_dead(&reading);
		if (reading.findings == NIL || again)
			break;
		again = true;
	}
	return end_reading(&reading, silent);
}

/* Read the ends of the pending list; false if the metapage cannot be had. */
static bool
read_ends(IvfpqChecker *checker, IvfpqMetaData *meta)
{
	if (!check_copy_page(checker, IVFPQ_METAPAGE) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_META))
		return false;
	*meta = *(IvfpqMetaData *) PageGetContents((Page) checker->page);
	return true;
}

/* The TIDs of the pending page in checker->page. */
static void
check_pending_tids(Reading *reading, BlockNumber blkno,
				   const IvfpqPendingHeader *header)
{
	const ItemPointerData *tids = (const ItemPointerData *) (header + 1);

	for (uint32 i = 0; i < header->count; i++)
	{
		if (check_tid(reading->checker, &tids[i]))
		{
			IvfpqFound	found = {.tid = tids[i], .place = IVFPQ_PENDING};

			keep_entry(reading, &found);
		}
		else
			find(reading, blkno,
				 "pending entry %u points to (%u,%u), which is not in the table",
				 i, ItemPointerGetBlockNumberNoCheck(&tids[i]),
				 ItemPointerGetOffsetNumberNoCheck(&tids[i]));
	}
}

/*
 * Check a page of the pending list, whose seq must be `seq`; its header, or
 * NULL if it is another page.
 */
static const IvfpqPendingHeader *
check_pending_page(Reading *reading, BlockNumber blkno, uint64 seq)
{
	IvfpqChecker *checker = reading->checker;
	const IvfpqPendingHeader *header;

	if (IvfpqIsFixedPage(&checker->meta, blkno) ||
		!check_copy_page(checker, blkno) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_PENDING))
		return NULL;
	header = (const IvfpqPendingHeader *) PageGetContents((Page) checker->page);
	if (header->seq != seq || header->count > (uint32) IVFPQ_PENDING_PER_PAGE)
		return NULL;
	check_reached(checker, blkno, 0);
	return header;
}

/* Hand over the TIDs of one page, so that they take no memory for long. */
static void
take_tids(Reading *reading, bool silent)
{
	IvfpqChecker *checker = reading->checker;

	if (!silent && reading->nfound > 0)
		checker->take(checker->arg, reading->found, reading->nfound);
	reading->nfound = 0;
}

/*
 * Follow the pending list from the head that `ends` gives.  It has to come by
 * the tail of then; behind that there may be pages added since.
 */
static void
read_pending(Reading *reading, const IvfpqMetaData *ends, bool silent)
{
	BlockNumber blkno = ends->pending_head;
	BlockNumber last = InvalidBlockNumber;
	uint64		seq = ends->pending_head_seq;
	bool		passed_tail = false;

	while (blkno != InvalidBlockNumber)
	{
		const IvfpqPendingHeader *header = check_pending_page(reading, blkno,
															  seq);

		if (header == NULL)
		{
			find(reading, blkno, "it is not the next page of the pending list");
			return;
		}
		check_pending_tids(reading, blkno, header);
		take_tids(reading, silent);
		if (header->next != InvalidBlockNumber && header->next_seq <= seq)
		{
			find(reading, blkno, "the pending list leads back to block %u",
				 header->next);
			return;
		}
		passed_tail |= blkno == ends->pending_tail;
		last = blkno;
		blkno = header->next;
		seq = header->next_seq;
	}
	if (!passed_tail && ends->pending_tail != last)
		find(reading, IVFPQ_METAPAGE,
			 "the pending list does not come by its tail, block %u",
			 ends->pending_tail);
}

/*
 * Check the pending list.  With silent, only note which pages it reaches.
 */
void
IvfpqCheckPending(IvfpqChecker *checker, bool silent)
{
	Reading		reading;
	IvfpqMetaData before;
	IvfpqMetaData after;
	bool		again = false;

	init_reading(&reading, checker, IVFPQ_NO_LIST);
	for (;;)
	{
		begin_reading(&reading);
		if (!silent)
			checker->forget(checker->arg);
		if (!read_ends(checker, &before))
			break;
		read_pending(&reading, &before, silent);
		if (reading.findings == NIL || !read_ends(checker, &after))
			break;
		if (after.pending_head_seq != before.pending_head_seq ||
			after.build_id != before.build_id)
			again = false;
		else if (again)
			break;
		else
			again = true;
	}
	end_reading(&reading, silent);
}

/* ----
 * Looking for damage in refine pages, and in the chain of those with free
 * slots.
 */

/* Readings of a chain that inserts and VACUUM keep changing. */
#define MAX_READINGS	10

static void record_problem(IvfpqChecker *checker, BlockNumber blkno,
					const char *fmt,...)
			__attribute__((format(printf, 3, 4)));

static void
record_problem(IvfpqChecker *checker, BlockNumber blkno, const char *fmt,...)
{
	char		message[256];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	checker->report(checker->arg, true, blkno, IVFPQ_NO_LIST, message);
}

/*
 * Returns whether a refine record can be here.  Never in an index that has
 * none, whose postings have no such addresses.
 */
static bool
check_address(IvfpqChecker *checker, const ItemPointerData *address)
{
	return checker->layout.refine && ItemPointerIsValid(address) &&
		ItemPointerGetOffsetNumberNoCheck(address) <=
		IvfpqRecordSlots(IvfpqRecordCodeBytes(checker->meta.refine,
											  checker->meta.dims)) &&
		IvfpqBlockExists(checker->index,
						 ItemPointerGetBlockNumberNoCheck(address));
}

/* Returns whether all half-precision values of a record are numbers. */
static bool
are_finite(const IvfpqRecord *record, int dims)
{
	for (int i = 0; i < dims; i++)
	{
		uint16		half;

		memcpy(&half, record->codes + i * sizeof(half), sizeof(half));
		if ((half & 0x7C00) == 0x7C00)
			return false;
	}
	return true;
}

/* A record's numbers; its row need not be there any more. */
static void
check_record(IvfpqChecker *checker, BlockNumber blkno, int slot,
			 const IvfpqRecord *record)
{
	if (!check_tid(checker, &record->tid))
		record_problem(checker, blkno,
				"refine record %d is of (%u,%u), which is not in the table",
				slot + 1, ItemPointerGetBlockNumberNoCheck(&record->tid),
				ItemPointerGetOffsetNumberNoCheck(&record->tid));
	if (!isfinite(record->min) || !(record->step >= 0) ||
		!isfinite(record->step) || !(record->error >= 0) ||
		(checker->meta.refine == IVFPQ_REFINE_HALF &&
		 (record->min != 0 || record->step != 0 ||
		  !are_finite(record, checker->meta.dims))))
		record_problem(checker, blkno, "numbers of refine record %d are out of range",
				slot + 1);
}

/* The refine page in checker->page; hands it on. */
static void
check_record_page(IvfpqChecker *checker, BlockNumber blkno)
{
	int			code_bytes = IvfpqRecordCodeBytes(checker->meta.refine,
												  checker->meta.dims);
	int			nslots = IvfpqRecordSlots(code_bytes);
	int			nused = 0;
	int			counted;

	counted = IvfpqRecordPageHeader((Page) checker->page)->nused;
	for (int i = 0; i < nslots; i++)
	{
		const IvfpqRecord *record =
		IvfpqRecordGet((Page) checker->page, code_bytes, i);

		if (ItemPointerGetOffsetNumberNoCheck(&record->tid) ==
			InvalidOffsetNumber)
			continue;
		nused++;
		check_record(checker, blkno, i, record);
	}
	if (nused != counted)
		record_problem(checker, blkno, "%d refine records are in use, it counts %d",
				nused, counted);
	checker->records(checker->arg, blkno, (Page) checker->page, nslots);
}

/* Read the chain's head; false if the metapage cannot be had. */
static bool
read_head(IvfpqChecker *checker, BlockNumber *head)
{
	if (!check_copy_page(checker, IVFPQ_METAPAGE) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_META))
		return false;
	*head = ((IvfpqMetaData *)
			 PageGetContents((Page) checker->page))->refine_head;
	return true;
}

/*
 * Follow the chain from its head; InvalidBlockNumber if it is sound, else the
 * page that does not belong there.
 */
static BlockNumber
follow_chain(IvfpqChecker *checker, BlockNumber head)
{
	BlockNumber most = RelationGetNumberOfBlocks(checker->index);
	BlockNumber blkno = head;

	for (BlockNumber n = 0; blkno != InvalidBlockNumber; n++)
	{
		const IvfpqRecordHeader *header;

		if (n > most || !check_copy_page(checker, blkno) ||
			!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_REFINE))
			return blkno;
		header = IvfpqRecordPageHeader((Page) checker->page);
		if (!header->chained)
			return blkno;
		blkno = header->next;
	}
	return InvalidBlockNumber;
}

/*
 * Check the chain of refine pages with free slots.  A record_problem counts only if
 * the head is the same at a second reading.
 */
void
IvfpqCheckRecordChain(IvfpqChecker *checker)
{
	BlockNumber last = InvalidBlockNumber;

	for (int i = 0; i < MAX_READINGS; i++)
	{
		BlockNumber head;
		BlockNumber wrong;

		CHECK_FOR_INTERRUPTS();
		if (!read_head(checker, &head))
			return;
		wrong = follow_chain(checker, head);
		if (wrong == InvalidBlockNumber)
			return;
		if (head == last)
		{
			record_problem(checker, wrong,
					"it is not the next of the refine pages with free slots");
			return;
		}
		last = head;
	}
}
