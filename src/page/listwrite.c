/*
 * listwrite.c
 *		Changing inverted lists: appends, bulk writes, and VACUUM's changes.
 *
 * A list's directory entry names its newest block, and each block the next
 * older one.  A block takes a slot of a small-list page or, if it has two
 * parts, a slot on each of two pages.  Any list may own any slot of a page.
 * Pages with free slots are found through the free space map (slots x
 * slot_bytes), which is only a hint: the page decides.
 *
 * Inserts and flushing append a posting to the newest block, or to a new one
 * if that block is full.  The directory page stays locked meanwhile, so that
 * no other process appends to the list or rewrites it.
 *
 * Builds and training write whole lists, front to back.  A list's blocks are
 * adjacent and in the order in which readers want them, newest first: the
 * block that is not full comes first.  Pages are filled in memory and then put
 * to blocks reserved for them, so no lock is held while the caller produces
 * postings.  If others use the index, and so extend it too, each page is
 * logged as it is put; an index that is being built is logged when it is
 * finished (IvfpqLogBuild).  Several writers, each with its own lists, may be
 * at work on an index that is being built.
 *
 * VACUUM marks postings dead, rewrites lists without them, and frees slots.
 * Only one VACUUM works on an index at a time, and only VACUUM changes a
 * list's gen or frees slots.  It rewrites a list as a new chain under gen + 1,
 * which is invisible until one record switches the directory entry to it; then
 * it frees the old blocks.  A crash in between leaves slots whose gen is not
 * their list's.  The next VACUUM's pass over the small-list pages frees these,
 * before it rewrites any list and so before that gen can become current.
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

/* Pages offered by hints that are tried before the index is extended. */
#define MAX_TRIES	8

/* Pages are reserved in runs of this many, a multiple of all nparts. */
#define RUN_PAGES	16384

/* A list is rewritten if at least one posting in this many is dead. */
#define REWRITE_DIVISOR	10

/* Times a rewrite catches up with inserts before it leaves the list alone. */
#define MAX_CATCH_UP	10

/*
 * The pages of a block, [nparts], while it is changed: exclusively locked,
 * part by part.  Every part is on a page of its own, so nothing is locked
 * twice.
 */
typedef struct BlockPages
{
	Buffer		buffers[IVFPQ_MAX_PARTS];
	uint32		slots[IVFPQ_MAX_PARTS];
	bool		init[IVFPQ_MAX_PARTS];	/* page has to be initialized */
} BlockPages;

/* Postings on their way from the old chain to the new one, at most a block. */
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

/* Makes a small-list page of free slots. */
static void
slab_init(Page page, const IvfpqLayout *layout)
{
	IvfpqPageInit(page, IVFPQ_KIND_SLAB);
	for (int i = 0; i < layout->slots_per_page; i++)
		IvfpqSlabSlot(page, layout, i)->list = IVFPQ_NO_LIST;
}

/* Returns the number of free slots. */
static int
slab_free_slots(Page page, const IvfpqLayout *layout)
{
	int			nfree = 0;

	for (int i = 0; i < layout->slots_per_page; i++)
		nfree += IvfpqSlabSlot(page, layout, i)->list == IVFPQ_NO_LIST;
	return nfree;
}

/* Writes the header of one part of a new block without postings. */
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
 * Returns whether one of the first nparts parts is on the page.  A conditional
 * lock does not tell, because local buffers have no locks.
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
 * Locks a page that a hint offers, and finds a free slot on it or takes the
 * whole page (*init).  Returns false, with nothing held, if the page has no
 * free slot or is busy.
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
	*init = PageIsNew(page) || IvfpqPageIs(page, IVFPQ_KIND_FREE);
	if (*init)
		return true;
	if (IvfpqPageIs(page, IVFPQ_KIND_SLAB))
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
 * Finds free slots for a new block: for each part on this backend's last page,
 * on one that the free space map offers, or on a new page.  Leaves the pages
 * exclusively locked.  The caller may hold a directory page: pages that others
 * hold are passed over, so this never waits for one.  block_release is
 * for them all, used or not.
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
			block->buffers[p] = IvfpqExtend(index);
			block->slots[p] = 0;
			block->init[p] = true;
		}
	}
}

/*
 * Locks all pages of a block.  The caller knows that the block is there,
 * because it holds the directory page or is the only process that rewrites
 * lists.
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

		/* we would wait for ourselves */
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
 * Unlocks a block's pages, and tells the free space map about slots left on
 * pages that it does not know.  A page taken but not written is still free.
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
 * Appends postings, no more than fit the newest block or a new one, to the
 * list whose entry is *entry, as part of a record that may already hold the
 * directory page.  Updates *entry.  Adds the block's pages to the record; they
 * stay locked until the caller has finished it.
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
		parts[p] = IvfpqSlabBody(headers[p]);
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
 * Appends a posting to the newest block of a list, which is not full, as a
 * record of known changes: the directory page, which the caller has locked
 * exclusively, and the block's pages, which stay locked.
 */
static void
patch_list(Relation index, const IvfpqLayout *layout, uint32 list,
		   Buffer dirbuf, const IvfpqPosting *posting, BlockPages *block)
{
	Page		page = BufferGetPage(dirbuf);
	const IvfpqDirEntry *from = IvfpqDirEntryGet(page, list);
	IvfpqDirEntry entry = *from;
	IvfpqPatch	patches[1 + IVFPQ_MAX_PARTS];
	const IvfpqSlotHeader *header = NULL;
	int			slots_at[IVFPQ_MAX_PARTS];

	block_lock(index, layout, entry.head, list, entry.gen,
			   entry.nitems / IVFPQ_BLOCK_POSTINGS, block);
	for (int p = layout->nparts - 1; p >= 0; p--)
	{
		Page		part = BufferGetPage(block->buffers[p]);

		header = IvfpqSlabSlot(part, layout, block->slots[p]);
		slots_at[p] = (int) ((const char *) header - part);
		IvfpqPatchInit(&patches[1 + p], block->buffers[p]);
	}
	IvfpqBodyPatch(layout, header, slots_at,
				   entry.nitems % IVFPQ_BLOCK_POSTINGS, posting, patches + 1);

	entry.nitems++;
	entry.nfirst += !posting->secondary;
	IvfpqPatchInit(&patches[0], dirbuf);
	IvfpqPatchAdd(&patches[0], (const char *) from - page, &entry,
				  offsetof(IvfpqDirEntry, del_seq));
	IvfpqPatchLog(index, patches, 1 + layout->nparts);
}

/*
 * Appends a posting to a list.  One record: the directory page, the pages of
 * the newest block or of a new one and, if the row is pending, its page, from
 * which it is removed.  The directory page is locked throughout, so no other
 * process appends to the list or rewrites it.
 */
void
IvfpqListAppend(Relation index, const IvfpqMetaData *meta, uint32 list,
				const IvfpqPosting *posting, const IvfpqPendingPlace *pending)
{
	IvfpqLayout layout;
	BlockPages	block;
	Buffer		dirbuf;
	Buffer		pendbuf = InvalidBuffer;
	IvfpqDirEntry *entry;

	if (!IvfpqLayoutGet(&layout, meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");

	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	entry = IvfpqDirEntryGet(BufferGetPage(dirbuf), list);
	if (pending == NULL && entry->nitems % IVFPQ_BLOCK_POSTINGS > 0)
		patch_list(index, &layout, list, dirbuf, posting, &block);
	else
	{
		GenericXLogState *state = GenericXLogStart(index);

		entry = IvfpqDirEntryGet(GenericXLogRegisterBuffer(state, dirbuf, 0),
								 list);
		if (pending != NULL)
			pendbuf = IvfpqPendingRemove(index, pending, &posting->tid, state);
		append_postings(index, &layout, list, entry, posting, 1, state,
						&block);
		GenericXLogFinish(state);
	}

	if (BufferIsValid(pendbuf))
		UnlockReleaseBuffer(pendbuf);
	UnlockReleaseBuffer(dirbuf);
	block_release(index, &layout, &block);
}

/*
 * Begins to write lists of counts [nlists] postings; memory comes from the
 * current context.
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

/*
 * Returns the n-th page, from 0, of those still to be filled.  Reserves pages
 * as needed.
 */
static BlockNumber
coming_page(IvfpqWriter *writer, BlockNumber n)
{
	for (int run = 0; run < 2; run++)
	{
		if (writer->reserved[run].next == writer->reserved[run].end &&
			writer->nleft > 0)
		{
			BlockNumber npages = Min(writer->nleft, RUN_PAGES);

			writer->reserved[run].next = IvfpqReserve(writer->index, npages,
													  writer->shared);
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

/* Puts the page of slots, which is full or the last one, in its place. */
static void
put_slab(IvfpqWriter *writer)
{
	if (writer->slab_blkno != InvalidBlockNumber)
		IvfpqPutPage(writer->index, writer->slab_blkno, (Page) writer->slab,
					 writer->shared);
	writer->slab_blkno = InvalidBlockNumber;
}

/* Writes writer->body as a block, and returns the block's address. */
static IvfpqAddress
write_block(IvfpqWriter *writer, uint32 list, uint32 ordinal)
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
		/* the next older block is written next, right after this one */
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
			header->secondary = writer->secondary;
		memcpy(IvfpqSlabBody(header), writer->body + p * layout->part_bytes,
			   layout->part_bytes);
	}
	return here;
}

/*
 * Writes a list of nitems > 0 postings, which `next` returns one by one, and
 * fills in its entry, which was all zero.
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
		writer->secondary = header.secondary;
		entry->nfirst += count - pg_popcount32(header.secondary);
		left -= count;
		here = write_block(writer, list, left / IVFPQ_BLOCK_POSTINGS);
		if (entry->nitems == 0)
			entry->head = here;
		entry->nitems += count;
		CHECK_FOR_INTERRUPTS();
	}
}

/* Writes the last page of slots, and frees the memory. */
void
IvfpqWriterFinish(IvfpqWriter *writer)
{
	put_slab(writer);
	pfree(writer->slab);
	pfree(writer->body);
}

/*
 * Writes the directory of entries [meta->nlists], those of empty lists all
 * zero, to the place that *meta has for it.
 */
void
IvfpqDirectoryWrite(Relation index, const IvfpqMetaData *meta,
					const IvfpqDirEntry *entries, bool shared)
{
	char	   *page = palloc(BLCKSZ);

	for (int list = 0; list < meta->nlists; list += IVFPQ_ENTRIES_PER_PAGE)
	{
		IvfpqPageInit((Page) page, IVFPQ_KIND_DIRECTORY);
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

/* Logs pages first .. end - 1 of a finished build. */
void
IvfpqLogBuild(Relation index, BlockNumber first, BlockNumber end)
{
	if (RelationNeedsWAL(index))
		log_newpage_range(index, MAIN_FORKNUM, first, end, true);
}

/*
 * Copies a small-list page out.  Returns false if the page is of another kind;
 * an unused page is then offered to the free space map.
 */
bool
IvfpqSlabRead(Relation index, BlockNumber blkno,
			  BufferAccessStrategy strategy, char *page)
{
	Buffer		buf;
	bool		is_slab;
	bool		is_free;

	buf = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	is_slab = IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_SLAB);
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
 * Tells the free space map about free slots of a small-list page, which the
 * map may not know after a crash.
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
 * Sets dead flags of a block of the list, under its directory entry's lock.
 * One record: the directory page and the block's first page.
 */
void
IvfpqMarkDead(Relation index, const IvfpqMetaData *meta,
			  IvfpqAddress address, uint32 list, uint32 gen, uint32 dead)
{
	IvfpqLayout layout;
	Buffer		dirbuf;
	Buffer		buf;
	GenericXLogState *state;
	IvfpqDirEntry *entry;
	IvfpqSlotHeader *header;
	Page		page;

	if (!IvfpqLayoutGet(&layout, meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");
	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	buf = IvfpqReadPage(index, address.page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_SLAB, NULL);

	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, dirbuf, 0);
	entry = IvfpqDirEntryGet(page, list);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqSlabSlot(page, &layout, address.slot);
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
 * Frees a slot if it still belongs to this list and gen.  The last slot of a
 * page frees the page for any use.  One record, one page.
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

	/* in the map's upper levels too, so that the next rewrite finds it */
	RecordPageWithFreeSpace(index, address.page,
							nfree == layout->slots_per_page ?
							BLCKSZ - 1 : nfree * layout->slot_bytes);
	FreeSpaceMapVacuumRange(index, address.page, address.page + 1);
}

/* Frees every block of a chain that no reader can find any more. */
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
 * Appends the postings of the batch to a chain that no directory entry shows
 * yet.  One record: the pages of the block.
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
 * Adds posting i of a block to the batch, and writes the batch when it fills
 * the new block.
 */
static void
batch_posting(Batch *batch, const IvfpqBlockView *view, int i,
			  IvfpqListReader *reader, IvfpqDirEntry *chain)
{
	int			code_bytes = reader->layout.code_bytes;
	uint8	   *code = batch->codes + batch->n * code_bytes;

	for (int p = 0; p < code_bytes; p++)
		code[p] = view->codes[p * IVFPQ_BLOCK_POSTINGS + i];
	batch->postings[batch->n].tid = view->tids[i];
	batch->postings[batch->n].t = view->t[i];
	batch->postings[batch->n].code = code;
	batch->postings[batch->n].secondary = (view->secondary & (1U << i)) != 0;
	if (view->refine)
		batch->postings[batch->n].refine = view->refine[i];
	if (view->keys)
	{
		IvfpqKeyAbbrevsGet(&reader->layout.keys, view->keys, i,
						   &batch->keys[batch->n]);
		batch->postings[batch->n].keys = &batch->keys[batch->n];
	}
	batch->n++;
	if ((chain->nitems + batch->n) % IVFPQ_BLOCK_POSTINGS == 0)
		flush_batch(batch, reader, chain);
}

/*
 * Appends to `chain` the live postings of the list at positions from `from`
 * on, as of one reading.  Returns the position to go on from.
 */
static uint32
copy_live(IvfpqListReader *reader, uint32 list, uint32 from,
		  IvfpqDirEntry *chain)
{
	IvfpqBlockView view;
	Batch		batch;

	batch.codes = palloc(IVFPQ_BLOCK_POSTINGS * reader->layout.code_bytes);
	batch.n = 0;
	IvfpqListOpen(reader, list);
	while (reader->nleft > from && IvfpqListNext(reader, &view))
	{
		for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
			if ((view.live & (1U << i)) && reader->nleft + i >= from)
				batch_posting(&batch, &view, i, reader, chain);
		CHECK_FOR_INTERRUPTS();
	}
	flush_batch(&batch, reader, chain);
	pfree(batch.codes);
	return reader->entry.nitems;
}

/*
 * Switches the list to `chain` if nothing was appended since `nitems`, and
 * returns whether it did.  One record: the directory page.  *old gets the
 * entry that is or would be replaced.
 */
static bool
switch_list(Relation index, const IvfpqMetaData *meta, uint32 list,
			uint32 nitems, const IvfpqDirEntry *chain, IvfpqDirEntry *old)
{
	Buffer		dirbuf;
	bool		same;

	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	*old = *IvfpqDirEntryGet(BufferGetPage(dirbuf), list);
	same = old->nitems == nitems;
	if (same)
	{
		GenericXLogState *state = GenericXLogStart(index);
		Page		page = GenericXLogRegisterBuffer(state, dirbuf, 0);
		IvfpqDirEntry *entry = IvfpqDirEntryGet(page, list);

		*entry = *chain;
		entry->del_seq = old->del_seq + 1;
		GenericXLogFinish(state);
	}
	UnlockReleaseBuffer(dirbuf);
	return same;
}

/*
 * Rewrites a list without its dead postings, if enough of it is dead and the
 * rewrite gives blocks back.  Inserts go on meanwhile; what they append is
 * copied in further rounds.  The caller is the only VACUUM and holds no lock
 * on any page.  Returns whether the list was rewritten.
 */
bool
IvfpqListRewrite(Relation index, const IvfpqMetaData *meta, uint32 list,
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
	IvfpqListReaderInit(&reader, index, meta, NULL, strategy);
	for (int round = 0; round < MAX_CATCH_UP && !switched; round++)
	{
		done = copy_live(&reader, list, done, &chain);
		switched = switch_list(index, meta, list, done, &chain, &old);
	}
	free_chain(index, &reader.layout, list, switched ? &old : &chain);
	IvfpqListReaderFree(&reader);
	return switched;
}
