/*
 * listwrite.c
 *		Changing inverted lists: appends, bulk writes, and VACUUM's changes.
 *
 * A list's directory entry names the list's newest block, and each block names
 * the next older one.  A block takes a slot of a small-list page or, if it has
 * two parts, a slot on each of two pages.  Any list may own any slot of a
 * page.  Pages with free slots are found through the free space map, where the
 * space of a page is its number of free slots x slot_bytes.  The map is only a
 * hint, so each page is checked when it is locked.
 *
 * Inserts and flushing append a posting to the newest block or, if that block
 * is full, to a new block.  The directory page stays locked meanwhile, so that
 * no other process appends to the list or rewrites it.  When a new training is
 * about to replace all lists, a flag on each directory page freezes the lists,
 * and rows become pending instead.
 *
 * Builds and training write whole lists.  A list's blocks are adjacent, and in
 * the order in which readers read them, newest first.  So the block that is
 * not full comes first.  Pages are filled in memory and then written to blocks
 * that were taken or reserved for them, so no lock is held while the caller produces
 * postings.  If other backends use the index, they extend it too, and each
 * page is WAL-logged as it is written.  An index that is being built is logged
 * when it is finished (IvfpqLogBuild).  Several writers, each with its own
 * lists, may work on an index that is being built.
 *
 * VACUUM marks postings dead, rewrites lists without their dead postings, and
 * frees slots.  Only one VACUUM works on an index at a time, and only VACUUM
 * changes a list's gen or frees slots.  VACUUM rewrites a list as a new chain
 * of blocks under gen + 1.  The new chain is invisible until one WAL record
 * switches the directory entry to it; then VACUUM frees the old blocks.  A
 * crash in between leaves slots whose gen is not that of their list.  The next
 * VACUUM frees these slots when it passes over the small-list pages.  It does
 * so before it rewrites any list, and therefore before the gen of an abandoned
 * chain can become current.
 */
#include "postgres.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/freespace.h"
#include "utils/rel.h"

#include "page/delta.h"
#include "page/listread.h"
#include "page/listwrite.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* Pages from the free space map that are tried before the file is extended. */
#define MAX_TRIES	8

/* Pages in a reserved run, a multiple of every possible nparts. */
#define RUN_PAGES	16384

/* A list with at least nitems / REWRITE_DIVISOR dead postings is rewritten. */
#define REWRITE_DIVISOR	10

/* A rewrite gives up after this many rounds of catching up with inserts. */
#define MAX_CATCH_UP	10

/*
 * The pages [nparts] of a block that is being changed.  They are exclusively
 * locked, in the order of the parts.  Each part is on a page of its own, so no
 * page is locked twice.
 */
typedef struct BlockPages
{
	Buffer		buffers[IVFPQ_MAX_PARTS];
	uint32		slots[IVFPQ_MAX_PARTS];
	bool		init[IVFPQ_MAX_PARTS];	/* page must be initialized */
} BlockPages;

/* Postings to be copied from the old chain to the new one, at most a block. */
typedef struct Batch
{
	IvfpqPosting postings[IVFPQ_BLOCK_POSTINGS];
	IvfpqKeyAbbrevs keys[IVFPQ_BLOCK_POSTINGS];
	uint8	   *codes;			/* [IVFPQ_BLOCK_POSTINGS][code_bytes] */
	int			n;
} Batch;

/* Returns the number of blocks that npostings postings take. */
static uint32
blocks_for(uint32 npostings)
{
	return (npostings + IVFPQ_BLOCK_POSTINGS - 1) / IVFPQ_BLOCK_POSTINGS;
}

/* Initializes a small-list page, with all slots free. */
static void
slab_init(Page page, const IvfpqLayout *layout)
{
	IvfpqTrainedPageInit(page, IVFPQ_KIND_SLAB, layout->training);
	for (int i = 0; i < layout->slots_per_page; i++)
		IvfpqSlabSlot(page, layout, i)->list = IVFPQ_NO_LIST;
}

/* Returns the number of free slots on a small-list page. */
static int
slab_free_slots(Page page, const IvfpqLayout *layout)
{
	int			nfree = 0;

	for (int i = 0; i < layout->slots_per_page; i++)
		nfree += IvfpqSlabSlot(page, layout, i)->list == IVFPQ_NO_LIST;
	return nfree;
}

/* Writes the header of one part of a new block, which has no postings yet. */
static void
occupy_slot(IvfpqSlotHeader *header, uint32 list, uint32 gen, uint32 ordinal,
			IvfpqAddress prev, int part, BlockNumber next_part)
{
	header->list = list;
	header->gen = gen;
	header->ordinal = ordinal;
	header->dead = 0;
	header->secondary = 0;
	header->prev_page = prev.page;
	header->prev_slot = prev.slot;
	header->part = part;
	header->next_part = next_part;
}

/*
 * Returns whether one of the block's first nparts parts is on page blkno.  A
 * conditional lock would not show this, because local buffers have no locks.
 */
static bool
is_taken(const BlockPages *block, int nparts, BlockNumber blkno)
{
	for (int p = 0; p < nparts; p++)
		if (BufferGetBlockNumber(block->buffers[p]) == blkno)
			return true;
	return false;
}

/*
 * Tries to find a free slot on page blkno, which is only a hint.  If there is
 * one, returns true with the page locked, and sets *slot to the slot and *init
 * to whether the whole page is free.  If the page has no free slot or is busy,
 * returns false, with nothing held.
 */
static bool
try_page(Relation index, const IvfpqLayout *layout, BlockNumber blkno,
		 Buffer *buffer, uint32 *slot, bool *init)
{
	Page		page;

	if (!IvfpqBlockExists(index, blkno))
		return false;
	*buffer = ReadBuffer(index, blkno);
	if (!ConditionalLockBuffer(*buffer))
	{
		ReleaseBuffer(*buffer);
		return false;
	}

	page = BufferGetPage(*buffer);
	*slot = 0;
	*init = IvfpqPageIsFree(page);
	if (*init)
		return true;
	if (IvfpqPageIs(page, IVFPQ_KIND_SLAB) &&
		IvfpqPageTraining(page, layout->training) == 0)
	{
		for (; *slot < (uint32) layout->slots_per_page; (*slot)++)
			if (IvfpqSlabSlot(page, layout, *slot)->list == IVFPQ_NO_LIST)
				return true;
	}
	RecordPageWithFreeSpace(index, blkno, 0);
	UnlockReleaseBuffer(*buffer);
	return false;
}

/*
 * Finds free slots for a new block.  The slot of each part is on the page that
 * this backend used last, on a page that the free space map offers, or on a
 * new page.  Leaves the pages exclusively locked.  The caller has to call
 * block_release, whether it uses the slots or not.
 *
 * The caller may have locked a directory page, because this function never
 * waits for a page: it passes over pages that other processes have locked.
 */
static void
block_allocate(Relation index, const IvfpqLayout *layout, BlockPages *block)
{
	for (int p = 0; p < layout->nparts; p++)
	{
		BlockNumber blkno = RelationGetTargetBlock(index);
		bool		found = false;

		for (int tries = 0; tries <= MAX_TRIES && !found; tries++)
		{
			if (tries > 0)
			{
				blkno = GetPageWithFreeSpace(index, layout->slot_bytes);
				if (blkno == InvalidBlockNumber)
					break;
			}
			found = blkno != InvalidBlockNumber &&
				!is_taken(block, p, blkno) &&
				try_page(index, layout, blkno, &block->buffers[p],
						 &block->slots[p], &block->init[p]);
		}
		if (!found)
		{
			block->buffers[p] = IvfpqExtendRelation(index);
			block->slots[p] = 0;
			block->init[p] = true;
		}
	}
}

/*
 * Locks all pages of a block exclusively.  The caller knows that the block is
 * there, because it has locked the directory page or is the only process that
 * rewrites lists.
 */
static void
block_lock(Relation index, const IvfpqLayout *layout, IvfpqAddress address,
		   uint32 list, uint32 gen, uint32 ordinal, BlockPages *block)
{
	BlockNumber blkno = address.page;

	for (int p = 0; p < layout->nparts; p++)
	{
		uint32		slot = p == 0 ? address.slot : 0;
		const IvfpqSlotHeader *header = NULL;
		Buffer		buf;

		/* the page is locked already: we would wait for ourselves */
		if (is_taken(block, p, blkno))
			IvfpqCorrupted(index, blkno,
						   "parts of block %u of list %u are on one page",
						   ordinal, list);
		buf = IvfpqReadPage(index, blkno, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_SLAB, NULL);
		if (slot < (uint32) layout->slots_per_page)
			header = IvfpqSlabSlot(BufferGetPage(buf), layout, slot);
		if (header == NULL || header->list != list || header->gen != gen ||
			header->ordinal != ordinal || header->part != p)
			IvfpqCorrupted(index, blkno,
						   "slot %u does not hold part %d of block %u of list %u",
						   slot, p, ordinal, list);
		block->buffers[p] = buf;
		block->slots[p] = slot;
		block->init[p] = false;
		blkno = header->next_part;
	}
}

/*
 * Unlocks a block's pages.  If a page was initialized for the block, records
 * its free slots in the free space map, where they are missing.  If the page
 * was taken but not written, it is still free as a whole.
 */
static void
block_release(Relation index, const IvfpqLayout *layout, BlockPages *block)
{
	for (int p = 0; p < layout->nparts; p++)
	{
		BlockNumber blkno = BufferGetBlockNumber(block->buffers[p]);
		Page		page = BufferGetPage(block->buffers[p]);
		Size		freespace = BLCKSZ - 1;

		if (IvfpqPageIs(page, IVFPQ_KIND_SLAB))
			freespace = slab_free_slots(page, layout) * layout->slot_bytes;
		UnlockReleaseBuffer(block->buffers[p]);
		if (block->init[p])
		{
			RecordPageWithFreeSpace(index, blkno, freespace);
			if (freespace > 0)
			{
				FreeSpaceMapVacuumRange(index, blkno, blkno + 1);
				RelationSetTargetBlock(index, blkno);
			}
		}
	}
}

/*
 * Appends postings to the list whose entry is *entry, and updates *entry.  All
 * postings must fit into the newest block or, if that is full, into a new
 * block.
 *
 * Adds the block's pages to `state`, a generic WAL record, which may already
 * have the directory page.  The pages stay locked until the caller has
 * finished the record and calls block_release.
 */
static void
append_postings(Relation index, const IvfpqLayout *layout, uint32 list,
				IvfpqDirEntry *entry, const IvfpqPosting *postings,
				int npostings, GenericXLogState *state, BlockPages *block)
{
	IvfpqSlotHeader *headers[IVFPQ_MAX_PARTS];
	char	   *parts[IVFPQ_MAX_PARTS];
	uint32		ordinal = entry->nitems / IVFPQ_BLOCK_POSTINGS;
	int			used = entry->nitems % IVFPQ_BLOCK_POSTINGS;

	Assert(npostings > 0 && used + npostings <= IVFPQ_BLOCK_POSTINGS);
	if (used > 0)
		block_lock(index, layout, entry->head, list, entry->gen, ordinal,
				   block);
	else
		block_allocate(index, layout, block);

	for (int p = 0; p < layout->nparts; p++)
	{
		Page		page;

		page = GenericXLogRegisterBuffer(state, block->buffers[p],
										 block->init[p] ? GENERIC_XLOG_FULL_IMAGE : 0);
		if (block->init[p])
			slab_init(page, layout);
		headers[p] = IvfpqSlabSlot(page, layout, block->slots[p]);
		parts[p] = (char *) (headers[p] + 1);
		if (used == 0)
			occupy_slot(headers[p], list, entry->gen, ordinal, entry->head, p,
						p + 1 < layout->nparts ?
						BufferGetBlockNumber(block->buffers[p + 1]) :
						InvalidBlockNumber);
	}
	for (int i = 0; i < npostings; i++)
	{
		IvfpqBodySet(layout, headers[0], parts, used + i, &postings[i]);
		entry->nfirst += !postings[i].secondary;
	}

	entry->head.page = BufferGetBlockNumber(block->buffers[0]);
	entry->head.slot = block->slots[0];
	entry->nitems += npostings;
}

/*
 * Appends a posting to a list.  If the row is pending, also removes the row
 * from its pending page.  Writes one WAL record, which covers the directory
 * page, the pages of the newest block or of a new block, and the pending page
 * if there is one.  Returns false, and changes nothing, if the list is frozen.
 */
bool
IvfpqListAppend(Relation index, const IvfpqMetaData *meta,
				const IvfpqLayout *layout, uint32 list,
				const IvfpqPosting *posting, const IvfpqPendingPlace *pending)
{
	BlockPages	block;
	Buffer		dirbuf;
	Buffer		pendbuf = InvalidBuffer;
	Page		page;
	IvfpqDirEntry *entry;

	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	page = BufferGetPage(dirbuf);
	if (IvfpqPageSpecial(page)->flags & IVFPQ_DIRECTORY_FROZEN)
	{
		UnlockReleaseBuffer(dirbuf);
		return false;
	}
	entry = IvfpqDirEntryGet(page, list);
	if (pending == NULL && entry->nitems % IVFPQ_BLOCK_POSTINGS > 0)
	{
		/*
		 * The newest block is not full, so all changes are known beforehand,
		 * and IvfpqPatchLog can write the WAL record.
		 */
		IvfpqDirEntry changed = *entry;
		IvfpqPatch	patches[1 + IVFPQ_MAX_PARTS];
		const IvfpqSlotHeader *header = NULL;	/* that of part 0 */
		int			slots_at[IVFPQ_MAX_PARTS];

		block_lock(index, layout, changed.head, list, changed.gen,
				   changed.nitems / IVFPQ_BLOCK_POSTINGS, &block);
		for (int p = layout->nparts - 1; p >= 0; p--)
		{
			Page		part = BufferGetPage(block.buffers[p]);

			header = IvfpqSlabSlot(part, layout, block.slots[p]);
			slots_at[p] = (int) ((const char *) header - part);
			IvfpqPatchInit(&patches[1 + p], block.buffers[p]);
		}
		IvfpqBodyPatch(layout, header, slots_at,
					   changed.nitems % IVFPQ_BLOCK_POSTINGS, posting,
					   patches + 1);

		changed.nitems++;
		changed.nfirst += !posting->secondary;
		IvfpqPatchInit(&patches[0], dirbuf);
		IvfpqPatchAdd(&patches[0], (const char *) entry - page, &changed,
					  offsetof(IvfpqDirEntry, del_seq));
		IvfpqPatchLog(index, patches, 1 + layout->nparts);
	}
	else
	{
		GenericXLogState *state = GenericXLogStart(index);

		entry = IvfpqDirEntryGet(GenericXLogRegisterBuffer(state, dirbuf, 0),
								 list);
		if (pending != NULL)
			pendbuf = IvfpqPendingRemove(index, pending, &posting->tid, state);
		append_postings(index, layout, list, entry, posting, 1, state,
						&block);
		GenericXLogFinish(state);
	}

	if (BufferIsValid(pendbuf))
		UnlockReleaseBuffer(pendbuf);
	UnlockReleaseBuffer(dirbuf);
	block_release(index, layout, &block);
	return true;
}

/*
 * Freezes all lists, so that they take no more postings, or ends that.  The
 * caller has the table's lock.  Writes one WAL record for each directory
 * page that changes, which covers this page only.
 */
void
IvfpqFreezeLists(Relation index, const IvfpqMetaData *meta, bool freeze)
{
	for (BlockNumber i = 0; i < IvfpqDirectoryPages(meta); i++)
	{
		Buffer		buf = IvfpqReadPage(index, meta->directory + i,
										BUFFER_LOCK_EXCLUSIVE,
										IVFPQ_KIND_DIRECTORY, NULL);
		Page		page = BufferGetPage(buf);
		bool		frozen = (IvfpqPageSpecial(page)->flags &
							  IVFPQ_DIRECTORY_FROZEN) != 0;

		if (frozen != freeze)
		{
			GenericXLogState *state = GenericXLogStart(index);

			page = GenericXLogRegisterBuffer(state, buf, 0);
			IvfpqPageSpecial(page)->flags ^= IVFPQ_DIRECTORY_FROZEN;
			GenericXLogFinish(state);
		}
		UnlockReleaseBuffer(buf);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Prepares to write nlists lists.  List i has counts[i] postings.  Memory
 * comes from the current memory context.
 */
void
IvfpqWriterInit(IvfpqWriter *writer, Relation index,
				const IvfpqMetaData *meta, const uint32 *counts, int nlists,
				bool shared)
{
	int64		nblocks = 0;

	memset(writer, 0, sizeof(*writer));
	writer->index = index;
	writer->shared = shared;
	if (!IvfpqLayoutGet(&writer->layout, meta))
		elog(ERROR, "pq_dim %d has no page layout", meta->pq_dim);
	for (int list = 0; list < nlists; list++)
		nblocks += blocks_for(counts[list]);
	writer->nleft = (BlockNumber) ((nblocks * writer->layout.nparts +
									writer->layout.slots_per_page - 1) /
								   writer->layout.slots_per_page);
	writer->slab_blkno = InvalidBlockNumber;
	writer->slab = palloc(BLCKSZ);
	writer->body = palloc0(writer->layout.nparts * writer->layout.part_bytes);
}

/* Returns the n-th page to be filled (from 0); reserves pages as needed. */
static BlockNumber
coming_page(IvfpqWriter *writer, BlockNumber n)
{
	for (int run = 0; run < 2; run++)
	{
		if (writer->reserved[run].next == writer->reserved[run].end &&
			writer->nleft > 0)
		{
			BlockNumber npages = 1;
			BlockNumber first = InvalidBlockNumber;

			if (writer->shared)
				first = IvfpqTakeFreePage(writer->index);
			if (first == InvalidBlockNumber)
			{
				npages = Min(writer->nleft, RUN_PAGES);
				first = IvfpqReserve(writer->index, npages, writer->shared);
			}
			writer->reserved[run].next = first;
			writer->reserved[run].end = writer->reserved[run].next + npages;
			writer->nleft -= npages;
		}
		if (n < writer->reserved[run].end - writer->reserved[run].next)
			return writer->reserved[run].next + n;
		n -= writer->reserved[run].end - writer->reserved[run].next;
	}
	elog(ERROR, "the lists of index \"%s\" are longer than counted",
		 RelationGetRelationName(writer->index));
}

/* Writes the page of slots, which is full or the last page, to its block. */
static void
put_slab(IvfpqWriter *writer)
{
	if (writer->slab_blkno != InvalidBlockNumber)
		IvfpqPutPage(writer->index, writer->slab_blkno, (Page) writer->slab,
					 writer->shared);
	writer->slab_blkno = InvalidBlockNumber;
}

/*
 * Writes writer->body as a block, and returns the block's address.  Bit i of
 * `secondary` is set if posting i is secondary.
 */
static IvfpqAddress
write_block(IvfpqWriter *writer, uint32 list, uint32 ordinal, uint32 secondary)
{
	const IvfpqLayout *layout = &writer->layout;
	IvfpqAddress here = {InvalidBlockNumber, 0};

	for (int p = 0; p < layout->nparts; p++)
	{
		IvfpqAddress prev = {InvalidBlockNumber, 0};
		IvfpqSlotHeader *header;

		if (writer->slab_blkno == InvalidBlockNumber ||
			writer->slot >= (uint32) layout->slots_per_page)
		{
			put_slab(writer);
			writer->slab_blkno = coming_page(writer, 0);
			if (++writer->reserved[0].next == writer->reserved[0].end)
			{
				writer->reserved[0] = writer->reserved[1];
				memset(&writer->reserved[1], 0, sizeof(writer->reserved[1]));
			}
			slab_init((Page) writer->slab, layout);
			writer->slot = 0;
		}
		if (p == 0)
		{
			here.page = writer->slab_blkno;
			here.slot = writer->slot;
		}
		/* the next older block will be written right after this block */
		if (p == 0 && ordinal > 0)
		{
			prev.page = writer->slab_blkno;
			prev.slot = writer->slot + 1;
			if (prev.slot >= (uint32) layout->slots_per_page)
			{
				prev.page = coming_page(writer, layout->nparts - 1);
				prev.slot = 0;
			}
		}
		header = IvfpqSlabSlot((Page) writer->slab, layout, writer->slot++);
		occupy_slot(header, list, 0, ordinal, prev, p,
					p + 1 < layout->nparts ? coming_page(writer, 0) :
					InvalidBlockNumber);
		if (p == 0)
			header->secondary = secondary;
		memcpy(header + 1, writer->body + p * layout->part_bytes,
			   layout->part_bytes);
	}
	return here;
}

/*
 * Writes a list of nitems > 0 postings, which the callback `next` returns one
 * by one.  Fills in the list's entry, which the caller has set to zero.
 */
void
IvfpqWriterList(IvfpqWriter *writer, uint32 list, uint32 nitems,
				void (*next) (void *arg, IvfpqPosting *posting), void *arg,
				IvfpqDirEntry *entry)
{
	const IvfpqLayout *layout = &writer->layout;
	char	   *parts[IVFPQ_MAX_PARTS];
	uint32		left = nitems;

	for (int p = 0; p < layout->nparts; p++)
		parts[p] = writer->body + p * layout->part_bytes;

	while (left > 0)
	{
		uint32		count = (left - 1) % IVFPQ_BLOCK_POSTINGS + 1;
		IvfpqSlotHeader header = {0};
		IvfpqAddress here;

		for (uint32 i = 0; i < count; i++)
		{
			IvfpqPosting posting;

			next(arg, &posting);
			IvfpqBodySet(layout, &header, parts, i, &posting);
		}
		entry->nfirst += count - pg_popcount32(header.secondary);
		left -= count;
		here = write_block(writer, list, left / IVFPQ_BLOCK_POSTINGS,
						   header.secondary);
		if (entry->nitems == 0)
			entry->head = here;
		entry->nitems += count;
		CHECK_FOR_INTERRUPTS();
	}
}

/* Writes the last page of slots, and frees the writer's memory. */
void
IvfpqWriterFinish(IvfpqWriter *writer)
{
	put_slab(writer);
	pfree(writer->slab);
	pfree(writer->body);
}

/*
 * Writes entries [meta->nlists] to the pages that *meta has for the directory.
 * The caller has set the entries of empty lists to zero.
 */
void
IvfpqDirectoryWrite(Relation index, const IvfpqMetaData *meta,
					const IvfpqDirEntry *entries, bool shared)
{
	char	   *page = palloc(BLCKSZ);

	for (int list = 0; list < meta->nlists; list += IVFPQ_ENTRIES_PER_PAGE)
	{
		IvfpqTrainedPageInit((Page) page, IVFPQ_KIND_DIRECTORY,
							 meta->training);
		for (int i = 0; i < IVFPQ_ENTRIES_PER_PAGE; i++)
		{
			IvfpqDirEntry *entry = IvfpqDirEntryGet((Page) page, i);

			if (list + i < meta->nlists)
				*entry = entries[list + i];
			if (entry->nitems == 0)
				entry->head.page = InvalidBlockNumber;
		}
		IvfpqPutPage(index, IvfpqDirectoryPage(meta, list), (Page) page,
					 shared);
	}
	pfree(page);
}

/* WAL-logs the pages of a finished build, from `first` to end - 1. */
void
IvfpqLogBuild(Relation index, BlockNumber first, BlockNumber end)
{
	if (RelationNeedsWAL(index))
		log_newpage_range(index, MAIN_FORKNUM, first, end, true);
}

/*
 * Copies a small-list page to `page`.  Returns false for a page of another
 * kind or training, and records it in the free space map if it is unused.
 */
bool
IvfpqSlabRead(Relation index, const IvfpqLayout *layout, BlockNumber blkno,
			  BufferAccessStrategy strategy, char *page)
{
	Buffer		buf;
	bool		is_slab;
	bool		is_free;

	buf = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	is_slab = IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_SLAB) &&
		IvfpqPageTraining(BufferGetPage(buf), layout->training) == 0;
	is_free = PageIsNew(BufferGetPage(buf)) ||
		IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_FREE);
	if (is_slab)
		memcpy(page, BufferGetPage(buf), BLCKSZ);
	UnlockReleaseBuffer(buf);
	if (is_free)
		RecordPageWithFreeSpace(index, blkno, BLCKSZ - 1);
	return is_slab;
}

/*
 * Records the free slots of a small-list page in the free space map, where
 * they may be missing after a crash.
 */
void
IvfpqSlabRecordFree(Relation index, const IvfpqLayout *layout,
					BlockNumber blkno, Page page)
{
	int			nfree = slab_free_slots(page, layout);

	if (nfree > 0)
		RecordPageWithFreeSpace(index, blkno, nfree * layout->slot_bytes);
}

/*
 * Marks postings of a block dead; `dead` has a bit for each of them.  Locks
 * the directory page and the page of the block's part 0, and writes one WAL
 * record, which covers these two pages.
 */
void
IvfpqMarkDead(Relation index, const IvfpqMetaData *meta,
			  const IvfpqLayout *layout, IvfpqAddress address, uint32 list,
			  uint32 gen, uint32 dead)
{
	Buffer		dirbuf;
	Buffer		buf;
	GenericXLogState *state;
	IvfpqDirEntry *entry;
	IvfpqSlotHeader *header;
	Page		page;

	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	buf = IvfpqReadPage(index, address.page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_SLAB, NULL);

	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, dirbuf, 0);
	entry = IvfpqDirEntryGet(page, list);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqSlabSlot(page, layout, address.slot);
	if (header->list != list || header->gen != gen || entry->gen != gen)
		IvfpqCorrupted(index, address.page,
					   "slot %u changed hands during VACUUM", address.slot);
	dead &= ~header->dead;
	header->dead |= dead;
	entry->ndead += pg_popcount32(dead);
	entry->nfirst -= pg_popcount32(dead & ~header->secondary);
	entry->del_seq++;
	GenericXLogFinish(state);

	UnlockReleaseBuffer(buf);
	UnlockReleaseBuffer(dirbuf);
}

/*
 * Frees a slot if it still belongs to this list and gen.  If no other slot of
 * the page is in use, frees the page for any use.  Writes one WAL record,
 * which covers this page only.
 */
void
IvfpqSlabReclaim(Relation index, const IvfpqLayout *layout,
				 IvfpqAddress address, uint32 list, uint32 gen)
{
	Buffer		buf;
	GenericXLogState *state;
	IvfpqSlotHeader *header;
	Page		page;
	int			nfree;

	buf = IvfpqReadPage(index, address.page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_SLAB, NULL);
	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqSlabSlot(page, layout, address.slot);
	if (header->list != list || header->gen != gen)
	{
		GenericXLogAbort(state);
		UnlockReleaseBuffer(buf);
		return;
	}
	header->list = IVFPQ_NO_LIST;
	nfree = slab_free_slots(page, layout);
	if (nfree == layout->slots_per_page)
		IvfpqPageInit(page, IVFPQ_KIND_FREE);
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);

	/* update the map's upper levels, so the next rewrite finds the page */
	RecordPageWithFreeSpace(index, address.page,
							nfree == layout->slots_per_page ?
							BLCKSZ - 1 : nfree * layout->slot_bytes);
	FreeSpaceMapVacuumRange(index, address.page, address.page + 1);
}

/* Frees every block of a chain that no directory entry leads to. */
static void
free_chain(Relation index, const IvfpqLayout *layout, uint32 list,
		   const IvfpqDirEntry *chain)
{
	IvfpqAddress next = chain->head;

	for (uint32 left = blocks_for(chain->nitems); left > 0; left--)
	{
		IvfpqAddress here = next;

		for (int p = 0; p < layout->nparts; p++)
		{
			IvfpqSlotHeader header;
			Buffer		buf;

			CHECK_FOR_INTERRUPTS();
			buf = IvfpqReadPage(index, here.page, BUFFER_LOCK_SHARE,
								IVFPQ_KIND_SLAB, NULL);
			header = *IvfpqSlabSlot(BufferGetPage(buf), layout, here.slot);
			UnlockReleaseBuffer(buf);
			if (p == 0)
			{
				next.page = header.prev_page;
				next.slot = header.prev_slot;
			}
			IvfpqSlabReclaim(index, layout, here, list, chain->gen);
			here.page = header.next_part;
			here.slot = 0;
		}
	}
}

/*
 * Appends the postings of the batch to a chain that no directory entry leads
 * to yet.  Writes one WAL record, which covers the pages of the block.
 */
static void
flush_batch(Batch *batch, IvfpqListReader *reader, IvfpqDirEntry *chain)
{
	GenericXLogState *state;
	BlockPages	block;

	if (batch->n == 0)
		return;
	state = GenericXLogStart(reader->index);
	append_postings(reader->index, &reader->layout, reader->list, chain,
					batch->postings, batch->n, state, &block);
	GenericXLogFinish(state);
	block_release(reader->index, &reader->layout, &block);
	batch->n = 0;
}

/*
 * Appends to `chain` the list's live postings at position `from` and after it.
 * Returns the position at which the next call has to begin.
 */
static uint32
copy_live(IvfpqListReader *reader, uint32 list, uint32 from,
		  IvfpqDirEntry *chain)
{
	const IvfpqKeyForm *form = &reader->layout.keys;
	int			code_bytes = reader->layout.code_bytes;
	IvfpqBlockView view;
	Batch		batch;

	batch.codes = palloc(IVFPQ_BLOCK_POSTINGS * code_bytes);
	batch.n = 0;
	IvfpqListOpen(reader, list);
	while (reader->nleft > from && IvfpqListNext(reader, &view))
	{
		for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
		{
			IvfpqPosting *posting = &batch.postings[batch.n];
			IvfpqKeyAbbrevs *keys = &batch.keys[batch.n];
			uint8	   *code = batch.codes + batch.n * code_bytes;

			if (!(view.live & (1U << i)) || reader->nleft + i < from)
				continue;
			for (int p = 0; p < code_bytes; p++)
				code[p] = view.codes[p * IVFPQ_BLOCK_POSTINGS + i];
			posting->tid = view.tids[i];
			posting->t = view.t[i];
			posting->code = code;
			posting->secondary = (view.secondary & (1U << i)) != 0;
			if (view.refine)
				posting->refine = view.refine[i];
			if (view.keys)
			{
				IvfpqKeyAbbrevsGet(form, view.keys, i, keys);
				posting->keys = keys;
			}
			batch.n++;
			/* write the postings that fill the newest block of the chain */
			if ((chain->nitems + batch.n) % IVFPQ_BLOCK_POSTINGS == 0)
				flush_batch(&batch, reader, chain);
		}
		CHECK_FOR_INTERRUPTS();
	}
	flush_batch(&batch, reader, chain);
	pfree(batch.codes);
	return reader->entry.nitems;
}

/*
 * Rewrites a list without its dead postings, if enough postings are dead and
 * the rewrite frees blocks.  In further rounds copies the postings that other
 * processes append meanwhile.  When there are none, switches the list's entry
 * to the new chain by one WAL record, which covers the directory page only.
 * The caller is the only VACUUM and holds no lock on any page.  Returns
 * whether the list was rewritten.
 */
bool
IvfpqListRewrite(Relation index, const IvfpqMetaData *meta,
				 const IvfpqLayout *layout, uint32 list,
				 BufferAccessStrategy strategy)
{
	IvfpqListReader reader;
	IvfpqDirEntry old;
	IvfpqDirEntry chain;
	uint32		done = 0;
	bool		switched = false;

	IvfpqDirEntryRead(index, meta, list, &old);
	if (old.ndead == 0 ||
		(uint64) old.ndead * REWRITE_DIVISOR < old.nitems ||
		blocks_for(old.nitems) <= blocks_for(old.nitems - old.ndead))
		return false;

	memset(&chain, 0, sizeof(chain));
	chain.gen = old.gen + 1;
	chain.head.page = InvalidBlockNumber;
	IvfpqListReaderInit(&reader, index, meta, layout, strategy);
	for (int round = 0; round < MAX_CATCH_UP && !switched; round++)
	{
		Buffer		dirbuf;

		done = copy_live(&reader, list, done, &chain);
		dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
							   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY,
							   NULL);
		old = *IvfpqDirEntryGet(BufferGetPage(dirbuf), list);
		switched = old.nitems == done;
		if (switched)
		{
			GenericXLogState *state = GenericXLogStart(index);
			Page		page = GenericXLogRegisterBuffer(state, dirbuf, 0);
			IvfpqDirEntry *entry = IvfpqDirEntryGet(page, list);

			*entry = chain;
			entry->del_seq = old.del_seq + 1;
			GenericXLogFinish(state);
		}
		UnlockReleaseBuffer(dirbuf);
	}
	free_chain(index, layout, list, switched ? &old : &chain);
	IvfpqListReaderFree(&reader);
	return switched;
}
