/*
 * checklist.c
 *		Looking for damage in chains: lists of blocks, and the pending list.
 *
 * A chain is followed by the same read protocol that scans obey.  A problem
 * that one reading finds counts only if nothing rewrote the chain meanwhile
 * and a second reading finds it again; then the problems of the last reading
 * are reported.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"

#include "page/check/check.h"
#include "page/pending.h"
#include "page/refinepage.h"

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
bool
IvfpqCheckEntry(IvfpqChecker *checker, uint32 list, IvfpqDirEntry *entry)
{
	if (!IvfpqCheckCopyPage(checker, IvfpqDirectoryPage(&checker->meta, list)) ||
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
		(checker->cached != blkno && !IvfpqCheckCopyPage(checker, blkno)) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_SLAB))
		return NULL;
	header = IvfpqSlabSlot((Page) checker->page, &checker->layout, slot);
	if (header->list != reading->list || header->gen != reading->entry.gen ||
		header->ordinal != ordinal || header->part != part)
		return NULL;
	IvfpqCheckReached(checker, blkno, slot);
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
		if (IvfpqCheckAddress(reading->checker, &addresses[i]))
			found.refine = addresses[i];
		else if (reading->checker->layout.refine)
			find(reading, blkno,
				 "copy %d of block %u points to refine record (%u,%u), which cannot be",
				 i, ordinal, ItemPointerGetBlockNumberNoCheck(&addresses[i]),
				 ItemPointerGetOffsetNumberNoCheck(&addresses[i]));
		found.keys = keys_digest(&reading->checker->layout, body, i);
		if (IvfpqCheckTid(reading->checker, &tids[i]))
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
		if (!IvfpqCheckEntry(checker, list, &reading.entry))
			break;				/* its page is reported already */
		read_chain(&reading);
		if (!IvfpqCheckEntry(checker, list, &after))
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
	if (!IvfpqCheckCopyPage(checker, IVFPQ_METAPAGE) ||
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
		if (IvfpqCheckTid(reading->checker, &tids[i]))
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
		!IvfpqCheckCopyPage(checker, blkno) ||
		!IvfpqPageIs((Page) checker->page, IVFPQ_KIND_PENDING))
		return NULL;
	header = (const IvfpqPendingHeader *) PageGetContents((Page) checker->page);
	if (header->seq != seq || header->count > (uint32) IVFPQ_PENDING_PER_PAGE)
		return NULL;
	IvfpqCheckReached(checker, blkno, 0);
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
