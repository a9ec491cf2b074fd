/*
 * pagecheck.c
 *		Looking for damage.
 *
 * Pages are copied one at a time, so no lock or pin is held while a copy is
 * examined.  A page that the buffer manager refuses to read is damage, too: it
 * may have a wrong checksum or header, or lie beyond the end of the file.
 *
 * The metapage, the arrays and the directory are checked page by page.  Lists
 * and the pending list are chains, and are followed by the same read protocol
 * that scans use.  A problem that is found while a chain is read counts only
 * if nothing rewrote the chain meanwhile, and if there is a problem again when
 * the chain is read a second time.  Then the problems of the last reading are
 * reported.
 *
 * Finally all other pages are checked in physical order.  Each page must be of
 * a kind that belongs here.  Each slot or page in use, except refine pages,
 * must be reached by a chain.  Refine records must be sound.
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
#include "page/listwrite.h"
#include "page/metapage.h"
#include "page/pagecheck.h"
#include "page/refinepage.h"

/* The chain of refine pages is read at most this often, as it may change. */
#define MAX_READINGS	10

/* A slot that no chain reaches, or a page if list is IVFPQ_NO_LIST. */
typedef struct IvfpqLeftover
{
	IvfpqAddress address;
	uint32		list;
	uint32		gen;
	uint32		ordinal;
} IvfpqLeftover;

/* A problem found during a reading. */
typedef struct Finding
{
	BlockNumber blkno;
	char	   *message;
} Finding;

/* One reading of a chain: of an inverted list, or of the pending list. */
typedef struct IvfpqReading
{
	IvfpqChecker *checker;
	MemoryContext context;		/* findings and TIDs, reset by each reading */
	uint32		list;			/* IVFPQ_NO_LIST = the pending list */
	IvfpqDirEntry entry;		/* the list's entry when the reading began */
	List	   *findings;
	bool		complete;		/* the end of the chain was reached */
	uint32		ndead;			/* number of dead postings seen */
	bool		stray_flags;	/* a block has dead bits beyond its postings */
	uint32		nfirst;			/* number of live primary postings seen */
	IvfpqFound *found;			/* [nfound] rows and live postings */
	int64		nfound;
	int64		max_found;
} Reading;

/* Argument of copy_page_attempt: the page to copy. */
typedef struct PageCopy
{
	IvfpqChecker *checker;
	BlockNumber blkno;
} PageCopy;

static void problem(IvfpqChecker *checker, BlockNumber blkno,
					const char *fmt,...)
			__attribute__((format(printf, 3, 4)));

/*
 * Reports an error.  While a chain is read, keeps the error with the reading
 * instead, because the reading may be repeated.
 */
static void
problem(IvfpqChecker *checker, BlockNumber blkno, const char *fmt,...)
{
	Reading    *reading = checker->reading;
	char		message[512];
	va_list		args;

	va_start(args, fmt);
	vsnprintf(message, sizeof(message), fmt, args);
	va_end(args);
	if (reading == NULL)
		checker->report(checker->arg, true, blkno, IVFPQ_NO_LIST, message);
	else
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(reading->context);
		Finding    *finding = palloc(sizeof(Finding));

		finding->blkno = blkno;
		finding->message = pstrdup(message);
		reading->findings = lappend(reading->findings, finding);
		MemoryContextSwitchTo(oldcontext);
	}
}

/*
 * Makes room for one more element after the n elements of an array, and
 * returns the array.  If `items` is NULL, allocates the array in the context.
 */
static void *
make_room(void *items, int64 n, int64 *capacity, Size size,
		  MemoryContext context)
{
	if (n < *capacity)
		return items;
	*capacity = Max(256, 2 * *capacity);
	if (items == NULL)
		return MemoryContextAlloc(context, *capacity * size);
	return repalloc_huge(items, *capacity * size);
}

/* For IvfpqAttempt: copies a page to checker->page.  May raise an error. */
static void
copy_page_attempt(void *arg)
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
 * Copies a page to checker->page.  If the page cannot be read, returns false,
 * with the reason in checker->message.  In this case the buffer manager raises
 * an error, and only the end of a subtransaction cleans up what the buffer
 * manager had begun.
 */
static bool
copy_page(IvfpqChecker *checker, BlockNumber blkno)
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

	error = IvfpqAttempt(copy_page_attempt, &copy);
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

/* Does what copy_page does, and reports a page that cannot be read. */
static bool
copy_or_report(IvfpqChecker *checker, BlockNumber blkno)
{
	if (copy_page(checker, blkno))
		return true;
	problem(checker, blkno, "could not read the block: %s", checker->message);
	return false;
}

/* Reads the metapage again.  Returns false if it cannot be read. */
static bool
read_metapage(IvfpqChecker *checker, IvfpqMetaData *meta)
{
	if (!copy_page(checker, IVFPQ_METAPAGE) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_META))
		return false;
	*meta = *(IvfpqMetaData *) PageGetContents((Page) checker->page);
	return true;
}

/* Reads a list's entry.  Returns false if its page cannot be read. */
static bool
read_entry(IvfpqChecker *checker, uint32 list, IvfpqDirEntry *entry)
{
	if (!copy_page(checker, IvfpqDirectoryPage(&checker->meta, list)) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_DIRECTORY))
		return false;
	*entry = *IvfpqDirEntryGet((Page) checker->page, list);
	return true;
}

/* Returns whether a TID is valid and its block is in the table. */
static bool
is_in_table(IvfpqChecker *checker, const ItemPointerData *tid)
{
	BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(tid);

	if (!ItemPointerIsValid(tid))
		return false;
	if (blkno >= checker->heap_blocks)
		checker->heap_blocks = RelationGetNumberOfBlocks(checker->heap);
	return blkno < checker->heap_blocks;
}

/* Returns whether arrays and directory follow each other without gaps. */
static bool
is_laid_out(IvfpqChecker *checker)
{
	const IvfpqMetaData *meta = &checker->meta;
	IvfpqMetaData placed = *meta;
	BlockNumber end;

	if (meta->nlists == 0)
		return true;
	end = IvfpqMetaPlace(&placed, meta->mean);
	return meta->mean > IVFPQ_METAPAGE && meta->mean < end &&
		end <= checker->nblocks && placed.codebooks == meta->codebooks &&
		placed.parents == meta->parents &&
		placed.parent_offsets == meta->parent_offsets &&
		placed.centroids == meta->centroids && placed.codes == meta->codes &&
		(!meta->rotated || placed.rotation == meta->rotation) &&
		placed.directory == meta->directory;
}

/*
 * Begins a check of an index with the given metric, and checks the metapage.
 * The caller has set relations and callbacks, and all else to zero.  Returns
 * false if the metapage is so damaged that nothing else can be checked.
 */
bool
IvfpqCheckMeta(IvfpqChecker *checker, int metric)
{
	IvfpqMetaData *meta = &checker->meta;
	Size		nslots;

	checker->strategy = GetAccessStrategy(BAS_BULKREAD);
	checker->page = palloc(BLCKSZ);
	checker->nblocks = RelationGetNumberOfBlocks(checker->index);
	if (!copy_or_report(checker, IVFPQ_METAPAGE))
		return false;
	if (!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_META))
	{
		problem(checker, IVFPQ_METAPAGE, "it is not a metapage");
		return false;
	}
	*meta = *(IvfpqMetaData *) PageGetContents((Page) checker->page);
	if (meta->magic != IVFPQ_MAGIC)
	{
		problem(checker, IVFPQ_METAPAGE, "bad magic number 0x%08X",
				meta->magic);
		return false;
	}
	if (meta->version != IVFPQ_VERSION)
	{
		problem(checker, IVFPQ_METAPAGE,
				"format version %u, but this version of gpuvec supports only %d", meta->version,
				IVFPQ_VERSION);
		return false;
	}
	if (!IvfpqMetaIsInRange(meta) ||
		(meta->nlists > 0 && !IvfpqLayoutGet(&checker->layout, meta)))
	{
		problem(checker, IVFPQ_METAPAGE, "its parameters are out of range");
		return false;
	}
	if (!is_laid_out(checker))
	{
		problem(checker, IVFPQ_METAPAGE,
				"arrays and directory are not in their places");
		return false;
	}
	if (meta->metric != metric)
		problem(checker, IVFPQ_METAPAGE,
				"metric is %u, but the operator class has %d", meta->metric, metric);

	if (meta->nlists == 0)
		checker->layout.slots_per_page = 1;
	nslots = (Size) checker->nblocks * checker->layout.slots_per_page;
	checker->reached = palloc_extended(nslots / 8 + 1,
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	if (checker->layout.nparts > 1)
		checker->body = palloc(checker->layout.nparts *
							   checker->layout.part_bytes);
	return true;
}

/*
 * Reads page blkno of an array of nvalues values.  The page begins with value
 * number `done`.  Returns the page's values, and sets *n to their number.  If
 * the page cannot be read or is of another kind, reports that and returns
 * NULL.
 */
static const float4 *
array_page(IvfpqChecker *checker, const char *name, BlockNumber blkno,
		   int64 nvalues, int64 done, int64 *n)
{
	*n = Min(IVFPQ_FLOATS_PER_PAGE, nvalues - done);
	if (!copy_or_report(checker, blkno))
		return NULL;
	if (!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_ARRAY))
	{
		problem(checker, blkno, "it does not hold %s", name);
		return NULL;
	}
	return (const float4 *) PageGetContents((Page) checker->page);
}

/* Checks an array.  If `numbers` is true, its values must be finite. */
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
			problem(checker, blkno, "a value of %s is not finite", name);
	}
}

/* Checks that the parents' first lists ascend from 0 to meta->nlists. */
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
				problem(checker, blkno,
						"the parents' lists do not follow each other");
				return;
			}
			last = parent_offsets[i];
		}
	}
}

/* Checks the arrays.  Also checks that the directory's pages can be read. */
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
		check_array(checker, "the rotation", meta->rotation, dims * dims,
					true);
	for (BlockNumber blkno = meta->directory;
		 IvfpqIsFixedPage(meta, blkno); blkno++)
	{
		if (copy_or_report(checker, blkno) &&
			!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_DIRECTORY))
			problem(checker, blkno, "it is not a page of the directory");
	}
}

/* Returns the number of a slot's bit in checker->reached. */
static Size
slot_number(const IvfpqChecker *checker, BlockNumber blkno, uint32 slot)
{
	return (Size) blkno * checker->layout.slots_per_page + slot;
}

/* Notes that a chain reaches the slot.  Pages beyond nblocks are ignored. */
static void
note_reached(IvfpqChecker *checker, BlockNumber blkno, uint32 slot)
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

/* Prepares to read a chain, perhaps several times. */
static void
init_reading(Reading *reading, IvfpqChecker *checker, uint32 list)
{
	memset(reading, 0, sizeof(*reading));
	reading->checker = checker;
	reading->list = list;
	reading->context = AllocSetContextCreate(CurrentMemoryContext,
											 "gpuivfpq check",
											 ALLOCSET_DEFAULT_SIZES);
	checker->reading = reading;
}

/* Begins a reading, and discards the findings of the previous reading. */
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
	reading->checker->cached = InvalidBlockNumber;	/* copy may be outdated */
}

/*
 * Reports the findings of the last reading, unless `silent` is true.  Returns
 * whether the chain is sound.
 */
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
							reading->list, finding->message);
		}
		if (reading->nfound > 0)
			checker->take(checker->arg, reading->found, reading->nfound);
	}
	checker->reading = NULL;
	MemoryContextDelete(reading->context);
	return sound;
}

/* Adds a pending row or a live posting to those found during the reading. */
static void
keep_found(Reading *reading, const IvfpqFound *found)
{
	reading->found = make_room(reading->found, reading->nfound,
							   &reading->max_found, sizeof(IvfpqFound),
							   reading->context);
	reading->found[reading->nfound++] = *found;
}

/*
 * Returns the header of a slot, or NULL if the slot does not hold the given
 * part of block number `ordinal` of the list.
 */
static const IvfpqSlotHeader *
get_slot(Reading *reading, BlockNumber blkno, uint32 slot, uint32 ordinal,
		 int part)
{
	IvfpqChecker *checker = reading->checker;
	const IvfpqSlotHeader *header;

	if (IvfpqIsFixedPage(&checker->meta, blkno) ||
		slot >= (uint32) checker->layout.slots_per_page ||
		(checker->cached != blkno && !copy_page(checker, blkno)) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_SLAB) ||
		IvfpqPageTraining((Page) checker->page, checker->meta.training) != 0)
		return NULL;
	header = IvfpqSlabSlot((Page) checker->page, &checker->layout, slot);
	if (header->list != reading->list || header->gen != reading->entry.gen ||
		header->ordinal != ordinal || header->part != part)
		return NULL;
	note_reached(checker, blkno, slot);
	return header;
}

/*
 * Checks the keys of a block's postings, dead ones included; `exist` has a bit
 * for each posting.  The heads must cover all of these postings, and unused
 * bytes must be zero.
 */
static void
check_keys(Reading *reading, BlockNumber blkno, uint32 ordinal,
		   const char *body, uint32 exist)
{
	IvfpqChecker *checker = reading->checker;
	const IvfpqKeyForm *form = &checker->layout.keys;
	const char *keys = body + checker->layout.keys_at;
	const IvfpqKeyHead *heads = (const IvfpqKeyHead *) keys;

	for (int k = 0; k < form->nkeys; k++)
		if (heads[k].unused != 0 || (heads[k].nulls & ~exist) != 0 ||
			(form->kind[k] != IVFPQ_KEY_ORDERED && heads[k].high != 0))
			problem(checker, blkno,
					"the header of key %d of block %u is out of range",
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
				problem(checker, blkno,
						"key %d of posting %d of block %u is NULL and has a value",
						k + 1, i, ordinal);
			if (!IvfpqKeyHeadCovers(form, k, &heads[k], &abbrevs))
				problem(checker, blkno,
						"the header of key %d of block %u does not cover posting %d",
						k + 1, ordinal, i);
		}
	}
}

/* Returns whether a refine record can be at the address. */
static bool
can_be_record(IvfpqChecker *checker, const ItemPointerData *address)
{
	return ItemPointerIsValid(address) &&
		ItemPointerGetOffsetNumberNoCheck(address) <=
		IvfpqRecordSlots(IvfpqRecordCodeBytes(checker->meta.refine,
											  checker->meta.dims)) &&
		IvfpqBlockExists(checker->index,
						 ItemPointerGetBlockNumberNoCheck(address));
}

/*
 * Checks the live postings of a block, and keeps those that point to rows of
 * the table.  If `codes` is NULL, checks only what is in part 0.
 */
static void
check_postings(Reading *reading, BlockNumber blkno, uint32 ordinal,
			   const char *body, const uint8 *codes, uint32 live,
			   uint32 secondary)
{
	IvfpqChecker *checker = reading->checker;
	const IvfpqLayout *layout = &checker->layout;
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
		if (layout->refine)
		{
			if (can_be_record(checker, &addresses[i]))
				found.refine = addresses[i];
			else
				problem(checker, blkno,
						"posting %d of block %u points to refine record (%u,%u), which cannot exist",
						i, ordinal,
						ItemPointerGetBlockNumberNoCheck(&addresses[i]),
						ItemPointerGetOffsetNumberNoCheck(&addresses[i]));
		}
		if (layout->keys.nkeys > 0)
		{
			IvfpqKeyAbbrevs abbrevs;

			IvfpqKeyAbbrevsGet(&layout->keys, body + layout->keys_at, i,
							   &abbrevs);
			found.keys = IvfpqKeyAbbrevsDigest(&layout->keys, &abbrevs);
		}
		if (is_in_table(checker, &tids[i]))
			keep_found(reading, &found);
		else
			problem(checker, blkno,
					"posting %d of block %u points to (%u,%u), which is not in the table",
					i, ordinal, ItemPointerGetBlockNumberNoCheck(&tids[i]),
					ItemPointerGetOffsetNumberNoCheck(&tids[i]));
		if (!isfinite(t[i]))
			problem(checker, blkno, "T of posting %d of block %u is not finite",
					i, ordinal);
		/* if pq_dim is odd, a code's last nibble is spare and must be 0 */
		if (codes != NULL && checker->meta.pq_dim % 2 != 0 &&
			(codes[(layout->code_bytes - 1) * IVFPQ_BLOCK_POSTINGS + i] &
			 0xF0) != 0)
			problem(checker, blkno,
					"code of posting %d of block %u is out of range", i, ordinal);
	}
}

/*
 * Gathers the parts of a block in checker->body.  `header` and `body` are
 * those of part 0.  Returns false if another part is not there.  Overwrites
 * checker->page.
 */
static bool
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
			problem(checker, blkno, "part %d of block %u is missing", p,
					header->ordinal);
			return false;
		}
		memcpy(checker->body + p * part_bytes,
			   (const char *) slot + sizeof(IvfpqSlotHeader), part_bytes);
		blkno = slot->next_part;
	}
	return true;
}

/*
 * Checks one block of a list, which must have `count` postings, and sets
 * *header to the block's header.  Returns false if the block is not there.
 */
static bool
check_block(Reading *reading, IvfpqAddress address, uint32 ordinal, int count,
			IvfpqSlotHeader *header)
{
	IvfpqChecker *checker = reading->checker;
	uint32		exist = 0xFFFFFFFF >> (IVFPQ_BLOCK_POSTINGS - count);
	const IvfpqSlotHeader *slot;
	const char *body;
	const uint8 *codes;
	bool		complete = true;

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
		complete = gather_parts(reading, header, body);
		body = checker->body;
	}
	codes = (const uint8 *) body + checker->layout.codes;
	check_postings(reading, address.page, ordinal, body,
				   complete ? codes : NULL, exist & ~header->dead,
				   header->secondary);
	return true;
}

/* Follows the chain of reading->entry, from the newest block to the oldest. */
static void
read_chain(Reading *reading)
{
	IvfpqChecker *checker = reading->checker;
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
				problem(checker,
						IvfpqDirectoryPage(&checker->meta, reading->list),
						"the chain ends before block %u", ordinal);
			else
				problem(checker, next.page,
						"slot %u does not hold block %u, which the chain leads to",
						next.slot, ordinal);
			return;
		}
		nleft -= count;
		if (nleft == 0 && header.prev_page != InvalidBlockNumber)
			problem(checker, next.page,
					"the chain continues after its oldest block");
		next.page = header.prev_page;
		next.slot = header.prev_slot;
	}
	reading->complete = true;
}

/*
 * If the whole chain was read, compares the counts in the list's entry with
 * the flags of the postings.  The caller knows that the entry has not changed.
 */
static void
check_dead(Reading *reading)
{
	IvfpqChecker *checker = reading->checker;
	const IvfpqDirEntry *entry = &reading->entry;
	BlockNumber blkno = IvfpqDirectoryPage(&checker->meta, reading->list);

	if (!reading->complete)
		return;
	if (reading->ndead != entry->ndead)
		problem(checker, blkno, "%u postings are dead, but the directory counts %u",
				reading->ndead, entry->ndead);
	if (reading->nfirst != entry->nfirst)
		problem(checker, blkno,
				"%u live postings are primary, but the directory counts %u",
				reading->nfirst, entry->nfirst);
	if (reading->stray_flags)
		problem(checker, blkno, "postings after the last one are marked dead");
}

/*
 * Checks one list, and returns whether it is sound.  If `silent` is true,
 * reports nothing and only notes which slots the list reaches.
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
		if (!read_entry(checker, list, &reading.entry))
			break;				/* the directory page is reported already */
		read_chain(&reading);
		if (!read_entry(checker, list, &after))
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

/*
 * Follows the pending list from the head that *ends gives, and keeps the TIDs
 * that point to rows of the table.  The list must pass the tail that *ends
 * gives, but may go on, because pages may have been added.
 */
static void
read_pending(Reading *reading, const IvfpqMetaData *ends, bool silent)
{
	IvfpqChecker *checker = reading->checker;
	Page		page = (Page) checker->page;
	const IvfpqPendingHeader *header =
	(const IvfpqPendingHeader *) PageGetContents(page);
	const ItemPointerData *tids = (const ItemPointerData *) (header + 1);
	BlockNumber blkno = ends->pending_head;
	BlockNumber last = InvalidBlockNumber;
	uint64		seq = ends->pending_head_seq;
	bool		passed_tail = false;

	while (blkno != InvalidBlockNumber)
	{
		if (IvfpqIsFixedPage(&checker->meta, blkno) ||
			!copy_page(checker, blkno) ||
			!IvfpqPageIs(page, IVFPQ_KIND_PENDING) || header->seq != seq ||
			header->count > (uint32) IVFPQ_PENDING_PER_PAGE)
		{
			problem(checker, blkno,
					"it is not the next page of the pending list");
			return;
		}
		note_reached(checker, blkno, 0);
		for (uint32 i = 0; i < header->count; i++)
		{
			IvfpqFound	found = {.tid = tids[i], .place = IVFPQ_PENDING};

			if (is_in_table(checker, &tids[i]))
				keep_found(reading, &found);
			else
				problem(checker, blkno,
						"pending entry %u points to (%u,%u), which is not in the table",
						i, ItemPointerGetBlockNumberNoCheck(&tids[i]),
						ItemPointerGetOffsetNumberNoCheck(&tids[i]));
		}
		/* pass TIDs on page by page, so that they do not fill the memory */
		if (!silent && reading->nfound > 0)
			checker->take(checker->arg, reading->found, reading->nfound);
		reading->nfound = 0;
		if (header->next != InvalidBlockNumber && header->next_seq <= seq)
		{
			problem(checker, blkno,
					"the pending list has a cycle at block %u", header->next);
			return;
		}
		passed_tail |= blkno == ends->pending_tail;
		last = blkno;
		blkno = header->next;
		seq = header->next_seq;
	}
	if (!passed_tail && ends->pending_tail != last)
		problem(checker, IVFPQ_METAPAGE,
				"the pending list does not reach its tail, block %u",
				ends->pending_tail);
}

/*
 * Checks the pending list.  If `silent` is true, reports nothing and only
 * notes which pages the list reaches.
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
		if (!read_metapage(checker, &before))
			break;
		read_pending(&reading, &before, silent);
		if (reading.findings == NIL || !read_metapage(checker, &after))
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

/* Returns whether all half-precision values of a record are finite. */
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

/* Checks the refine page in checker->page, and passes it to the caller. */
static void
check_record_page(IvfpqChecker *checker, BlockNumber blkno)
{
	Page		page = (Page) checker->page;
	int			code_bytes = IvfpqRecordCodeBytes(checker->meta.refine,
												  checker->meta.dims);
	int			nslots = IvfpqRecordSlots(code_bytes);
	int			counted = IvfpqRecordPageHeader(page)->nused;
	int			nused = 0;

	for (int i = 0; i < nslots; i++)
	{
		const IvfpqRecord *record = IvfpqRecordGet(page, code_bytes, i);

		if (ItemPointerGetOffsetNumberNoCheck(&record->tid) ==
			InvalidOffsetNumber)
			continue;
		nused++;
		/* the row may be gone, but the table must have its block */
		if (!is_in_table(checker, &record->tid))
			problem(checker, blkno,
					"refine record %d belongs to (%u,%u), which is not in the table",
					i + 1, ItemPointerGetBlockNumberNoCheck(&record->tid),
					ItemPointerGetOffsetNumberNoCheck(&record->tid));
		if (!isfinite(record->min) || !(record->step >= 0) ||
			!isfinite(record->step) || !(record->error >= 0) ||
			(checker->meta.refine == IVFPQ_REFINE_HALF &&
			 (record->min != 0 || record->step != 0 ||
			  !are_finite(record, checker->meta.dims))))
			problem(checker, blkno,
					"values of refine record %d are out of range", i + 1);
	}
	if (nused != counted)
		problem(checker, blkno, "%d refine records are in use, but the page counts %d",
				nused, counted);
	checker->records(checker->arg, blkno, page, nslots);
}

/* Notes a slot or page to be examined again at the end of the check. */
static void
keep_leftover(IvfpqChecker *checker, const IvfpqLeftover *leftover)
{
	checker->leftovers = make_room(checker->leftovers, checker->nleftovers,
								   &checker->max_leftovers,
								   sizeof(IvfpqLeftover),
								   CurrentMemoryContext);
	checker->leftovers[checker->nleftovers++] = *leftover;
}

/* Checks the slots of the small-list page in checker->page. */
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
			problem(checker, blkno, "slot %d belongs to list %u of %d", i,
					slot->list, checker->meta.nlists);
		else if (!is_reached(checker, blkno, i))
			keep_leftover(checker, &leftover);
	}
}

/*
 * Returns whether the page is a leftover of training, unless a chain reaches
 * it.  It may be a pending page, or a page of a kind that only a trained index
 * has, in an untrained index or of another training than the index's.
 */
static bool
is_training_leftover(const IvfpqChecker *checker, Page page)
{
	return IvfpqPageIs(page, IVFPQ_KIND_PENDING) ||
		(IvfpqPageIsTrained(page) &&
		 (checker->meta.nlists == 0 ||
		  IvfpqPageTraining(page, checker->meta.training) != 0));
}

/*
 * Returns whether the page is of an earlier training.  VACUUM frees such pages
 * when nobody can read them any more.
 */
static bool
is_retired(const IvfpqChecker *checker, Page page)
{
	return checker->meta.nlists > 0 && checker->meta.retired_xid != 0 &&
		IvfpqPageIsTrained(page) &&
		IvfpqPageTraining(page, checker->meta.training) < 0;
}

/* Checks a page that is not fixed (IvfpqIsFixedPage). */
static void
check_page(IvfpqChecker *checker, BlockNumber blkno)
{
	Page		page = (Page) checker->page;

	if (!copy_or_report(checker, blkno) || PageIsNew(page) ||
		IvfpqPageIs(page, IVFPQ_KIND_FREE) || is_retired(checker, page))
		return;
	if (is_training_leftover(checker, page))
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
		problem(checker, blkno, "it has an unexpected page type");
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

/*
 * Reports a slot that no chain reaches, unless the slot has changed since it
 * was noted.  If the slot's gen differs from `gen`, the gen of its list,
 * reports a warning.  Otherwise reports an error if `sound` says that the list
 * is sound.
 */
static void
report_slot(IvfpqChecker *checker, const IvfpqLeftover *leftover,
			uint32 gen, bool sound)
{
	BlockNumber blkno = leftover->address.page;
	const IvfpqSlotHeader *slot;
	char	   *message;

	if (!copy_page(checker, blkno) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_SLAB))
		return;
	slot = IvfpqSlabSlot((Page) checker->page, &checker->layout,
						 leftover->address.slot);
	if (slot->list != leftover->list || slot->gen != leftover->gen ||
		slot->ordinal != leftover->ordinal)
		return;
	if (slot->gen != gen)
		message = psprintf("slot %u is left over from an earlier state of its list, and VACUUM will free it",
						   leftover->address.slot);
	else if (sound)
		message = psprintf("slot %u says that it holds block %u of its list, but is not in it",
						   leftover->address.slot, slot->ordinal);
	else
		return;
	checker->report(checker->arg, slot->gen == gen, blkno, slot->list,
					message);
	pfree(message);
}

/*
 * Examines the leftovers.  First reads their lists and the pending list again,
 * because an insert may have taken a slot or page meanwhile.
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
	if (meta.build_id != checker->meta.build_id ||
		meta.nlists != checker->meta.nlists)
		return;					/* training ran, and made the leftovers */
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
			readable = read_entry(checker, list, &entry);
		}
		if (is_reached(checker, leftover->address.page,
					   leftover->address.slot))
			continue;
		if (leftover->list != IVFPQ_NO_LIST)
		{
			if (readable)
				report_slot(checker, leftover, entry.gen, sound);
		}
		else if (copy_page(checker, leftover->address.page) &&
				 is_training_leftover(checker, (Page) checker->page))
			checker->report(checker->arg, false, leftover->address.page,
							IVFPQ_NO_LIST,
							"it is left over from training or VACUUM, and the next VACUUM will free it");
	}
}

/*
 * Checks small-list pages, refine pages and pending pages, after the lists and
 * the pending list were followed.
 *
 * While VACUUM and training run, they have pages that no chain reaches: pages
 * of a new list, and pages of an old list that they have not freed yet.  Such
 * pages look just like those that a crash leaves.  They are therefore reported
 * only if we get the table's lock, which shows that neither VACUUM nor
 * training is running.  On a standby we cannot get the lock, so they are never
 * reported there.
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

/*
 * Follows the chain of refine pages from its head.  Returns the first page
 * that does not belong there, or InvalidBlockNumber if the chain is sound.
 */
static BlockNumber
follow_record_chain(IvfpqChecker *checker, BlockNumber head)
{
	BlockNumber most = RelationGetNumberOfBlocks(checker->index);
	BlockNumber blkno = head;

	for (BlockNumber n = 0; blkno != InvalidBlockNumber; n++)
	{
		const IvfpqRecordHeader *header;

		if (n > most || !copy_page(checker, blkno) ||
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
 * Checks the chain of refine pages with free slots.  A problem counts only if
 * the chain has the same head when it is read again, and has a problem again.
 */
void
IvfpqCheckRecordChain(IvfpqChecker *checker)
{
	BlockNumber last = InvalidBlockNumber;

	for (int i = 0; i < MAX_READINGS; i++)
	{
		IvfpqMetaData meta;
		BlockNumber wrong;

		CHECK_FOR_INTERRUPTS();
		if (!read_metapage(checker, &meta))
			return;
		wrong = follow_record_chain(checker, meta.refine_head);
		if (wrong == InvalidBlockNumber)
			return;
		if (meta.refine_head == last)
		{
			problem(checker, wrong,
					"it is not the next refine page with free slots");
			return;
		}
		last = meta.refine_head;
	}
}
