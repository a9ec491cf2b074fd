/*
 * listwrite.c
 *		Slots of slab pages, and the blocks they hold.
 *
 * A slab page is an array of equal slots owned by any lists.  Its free slots
 * are found through the free space map (slots x slot_bytes), which is only a
 * hint: the page decides.
 */
#include "postgres.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/freespace.h"
#include "utils/rel.h"

#include "page/delta.h"
#include "page/listread.h"
#include "page/page.h"
#include "page/pending.h"
#include "pgcompat.h"

static void block_release(Relation index, const IvfpqLayout *layout,
							  IvfpqBlockPages *block);

/* Pages offered by hints that are tried before extending. */
#define MAX_TRIES	8

/* Slot number `slot` of a slab page. */
IvfpqSlotHeader *
IvfpqSlabSlot(Page page, const IvfpqLayout *layout, uint32 slot)
{
	Assert(slot < (uint32) layout->slots_per_page);
	return (IvfpqSlotHeader *) (PageGetContents(page) +
								(Size) slot * layout->slot_bytes);
}

/* The part of a block's body that a slot holds. */
char *
IvfpqSlabBody(IvfpqSlotHeader *slot)
{
	return (char *) slot + sizeof(IvfpqSlotHeader);
}

/* Make a slab page of free slots. */
static void
slab_init(Page page, const IvfpqLayout *layout)
{
	IvfpqPageInit(page, IVFPQ_KIND_SLAB);
	for (int i = 0; i < layout->slots_per_page; i++)
		IvfpqSlabSlot(page, layout, i)->list = IVFPQ_NO_LIST;
}

/* How many slots are free? */
static int
slab_free_slots(Page page, const IvfpqLayout *layout)
{
	int			nfree = 0;

	for (int i = 0; i < layout->slots_per_page; i++)
		nfree += IvfpqSlabSlot(page, layout, i)->list == IVFPQ_NO_LIST;
	return nfree;
}

/*
 * Is the page taken for an earlier part?  A local buffer's lock cannot tell.
 */
static bool
is_taken(const IvfpqBlockPages *block, int nparts, BlockNumber blkno)
{
	for (int p = 0; p < nparts; p++)
		if (BufferGetBlockNumber(block->buffers[p]) == blkno)
			return true;
	return false;
}

/*
 * Lock a page that a hint offers and find a free slot, or take the page whole
 * (*init).  False, with nothing held, when there is none or it is busy.
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
 * Lock a page with a free slot for part p: this backend's last page, one that
 * the free space map offers, or a new one.
 */
static void
find_slot(Relation index, const IvfpqLayout *layout, IvfpqBlockPages *block,
		  int p)
{
	BlockNumber blkno = RelationGetTargetBlock(index);

	for (int tries = 0; tries <= MAX_TRIES; tries++)
	{
		if (tries > 0)
			blkno = GetPageWithFreeSpace(index, layout->slot_bytes);
		if (blkno == InvalidBlockNumber && tries > 0)
			break;
		if (blkno != InvalidBlockNumber && !is_taken(block, p, blkno) &&
			try_page(index, layout, blkno, &block->buffers[p],
					 &block->slots[p], &block->init[p]))
			return;
	}

	block->buffers[p] = IvfpqExtend(index);
	block->slots[p] = 0;
	block->init[p] = true;
}

/*
 * Finds free slots for a new block: gets its pages, exclusively locked.  The
 * caller may hold a directory page: pages that others hold are passed over, so
 * this never waits for one.  block_release unlocks pages that were not
 * used.
 */
static void
block_allocate(Relation index, const IvfpqLayout *layout,
				   IvfpqBlockPages *block)
{
	block->nparts = layout->nparts;
	for (int p = 0; p < layout->nparts; p++)
		find_slot(index, layout, block, p);
}

/* Does the slot hold this part of this block? */
static bool
slot_is(Page page, const IvfpqLayout *layout, uint32 slot, uint32 list,
		uint32 gen, uint32 ordinal, int part)
{
	IvfpqSlotHeader *header;

	if (!IvfpqPageIs(page, IVFPQ_KIND_SLAB) ||
		slot >= (uint32) layout->slots_per_page)
		return false;
	header = IvfpqSlabSlot(page, layout, slot);
	return header->list == list && header->gen == gen &&
		header->ordinal == ordinal && header->part == part;
}

/*
 * Lock all pages of a block that the caller knows to be there, because it
 * holds the directory page or is the only one that rewrites lists.
 */
static void
block_lock(Relation index, const IvfpqLayout *layout,
			   IvfpqAddress address, uint32 list, uint32 gen,
			   uint32 ordinal, IvfpqBlockPages *block)
{
	BlockNumber blkno = address.page;

	block->nparts = layout->nparts;
	for (int p = 0; p < layout->nparts; p++)
	{
		uint32		slot = p == 0 ? address.slot : 0;
		Buffer		buf;

		/* or we would wait for ourselves */
		if (is_taken(block, p, blkno))
			IvfpqCorrupted(index, blkno,
						   "parts of block %u of list %u are on one page",
						   ordinal, list);
		buf = IvfpqReadPage(index, blkno, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_SLAB, NULL);
		if (!slot_is(BufferGetPage(buf), layout, slot, list, gen, ordinal, p))
			IvfpqCorrupted(index, blkno,
						   "slot %u does not hold part %d of block %u of list %u",
						   slot, p, ordinal, list);
		block->buffers[p] = buf;
		block->slots[p] = slot;
		block->init[p] = false;
		if (p + 1 < layout->nparts)
			blkno = IvfpqSlabSlot(BufferGetPage(buf), layout, slot)->next_part;
	}
}

/* Enter a block's pages into a record; headers [nparts] of the page images. */
static void
block_register(GenericXLogState *state, const IvfpqLayout *layout,
				   const IvfpqBlockPages *block, IvfpqSlotHeader **headers)
{
	for (int p = 0; p < block->nparts; p++)
	{
		Page		page;

		page = GenericXLogRegisterBuffer(state, block->buffers[p],
										 block->init[p] ? GENERIC_XLOG_FULL_IMAGE : 0);
		if (block->init[p])
			slab_init(page, layout);
		headers[p] = IvfpqSlabSlot(page, layout, block->slots[p]);
	}
}

/* Write the headers of a newly allocated block. */
static void
block_occupy(const IvfpqBlockPages *block, IvfpqSlotHeader **headers,
				 uint32 list, uint32 gen, uint32 ordinal, IvfpqAddress prev)
{
	for (int p = 0; p < block->nparts; p++)
	{
		IvfpqSlotHeader *header = headers[p];

		header->list = list;
		header->gen = gen;
		header->ordinal = ordinal;
		header->dead = 0;
		header->secondary = 0;
		header->prev_page = prev.page;
		header->prev_slot = prev.slot;
		header->part = p;
		header->next_part = p + 1 < block->nparts ?
			BufferGetBlockNumber(block->buffers[p + 1]) : InvalidBlockNumber;
	}
}

/* Where the block starts. */
static IvfpqAddress
block_address(const IvfpqBlockPages *block)
{
	IvfpqAddress address = {BufferGetBlockNumber(block->buffers[0]),
	block->slots[0]};

	return address;
}

/*
 * Unlock a block's pages, and tell the free space map about slots left on
 * pages it does not know.  A page taken but not written is still free.
 */
static void
block_release(Relation index, const IvfpqLayout *layout,
				  IvfpqBlockPages *block)
{
	for (int p = 0; p < block->nparts; p++)
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

/* ----
 * Appending to inverted lists.
 */

/*
 * Appends postings, no more than fit the newest block or a new one, to a
 * list whose entry is *entry, as part of a record that may
 * already hold the directory page.  Updates *entry.  The block's pages stay
 * locked until the caller has finished the record.
 */
static void
append_postings(Relation index, const IvfpqLayout *layout, uint32 list,
				IvfpqDirEntry *entry, const IvfpqPosting *postings,
				int npostings,
				GenericXLogState *state, IvfpqBlockPages *block)
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

	block_register(state, layout, block, headers);
	if (used == 0)
		block_occupy(block, headers, list, entry->gen, ordinal,
						 entry->head);
	for (int p = 0; p < layout->nparts; p++)
		parts[p] = IvfpqSlabBody(headers[p]);
	for (int i = 0; i < npostings; i++)
	{
		IvfpqBodySet(layout, headers[0], parts, used + i, &postings[i]);
		entry->nfirst += !postings[i].secondary;
	}

	entry->head = block_address(block);
	entry->nitems += npostings;
}

/*
 * Appends a posting to the newest block of a list, which is not full, as a
 * record of known changes: the directory page, exclusively locked, and the
 * block's pages, which stay locked.
 */
static void
patch_list(Relation index, const IvfpqLayout *layout, uint32 list,
		   Buffer dirbuf, const IvfpqPosting *posting, IvfpqBlockPages *block)
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
 * the newest block or of a new one and, when the row is pending, its page,
 * from which it is removed.  The directory page is locked throughout, so no
 * other process appends to the list or rewrites it.
 */
void
IvfpqListAppend(Relation index, const IvfpqMetaData *meta, uint32 list,
				const IvfpqPosting *posting, const IvfpqPendingPlace *pending)
{
	IvfpqLayout layout;
	IvfpqBlockPages block;
	Buffer		dirbuf;
	Buffer		pendbuf = InvalidBuffer;
	Page		page;

	if (!IvfpqLayoutGet(&layout, meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");

	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	page = BufferGetPage(dirbuf);
	if (pending == NULL && IvfpqDirEntryGet(page, list)->nitems %
		IVFPQ_BLOCK_POSTINGS > 0)
		patch_list(index, &layout, list, dirbuf, posting, &block);
	else
	{
		GenericXLogState *state = GenericXLogStart(index);

		page = GenericXLogRegisterBuffer(state, dirbuf, 0);
		if (pending != NULL)
			pendbuf = IvfpqPendingRemove(index, pending, &posting->tid, state);
		append_postings(index, &layout, list, IvfpqDirEntryGet(page, list),
						posting, 1, state, &block);
		GenericXLogFinish(state);
	}

	if (BufferIsValid(pendbuf))
		UnlockReleaseBuffer(pendbuf);
	UnlockReleaseBuffer(dirbuf);
	block_release(index, &layout, &block);
}

/*
 * Appends postings to a chain that no directory entry shows yet: a list being
 * rewritten.  No more than fit its newest block or a new one.
 * One record: the pages of the block.
 */
static void
chain_append(Relation index, const IvfpqLayout *layout, uint32 list,
				 IvfpqDirEntry *chain, const IvfpqPosting *postings,
				 int npostings)
{
	IvfpqBlockPages block;
	GenericXLogState *state;

	state = GenericXLogStart(index);
	append_postings(index, layout, list, chain, postings, npostings, state,
					&block);
	GenericXLogFinish(state);
	block_release(index, layout, &block);
}

/* ----
 * Writing lists, front to back, and the directory.
 *
 * A list's blocks lie one after another in the order in which readers want
 * them, newest first: the block that is not full comes first.  Pages are
 * filled in memory and then put to blocks reserved for them, so no lock is
 * held while postings are asked for.  When others use the index, and so extend
 * it too, each page is logged as it is put; an index that is being built is
 * logged when it is finished (IvfpqLogBuild).  Several writers, each with
 * lists of its own, may be at work on an index that is being built.
 */

/* Slabs are reserved in runs of this many pages, a multiple of all nparts. */
#define RUN_PAGES		16384

/* Pages that the lists' blocks fill, one behind the other. */
static BlockNumber
slab_pages(const IvfpqLayout *layout, const uint32 *counts, int nlists)
{
	int64		nblocks = 0;

	for (int list = 0; list < nlists; list++)
		nblocks += (counts[list] + IVFPQ_BLOCK_POSTINGS - 1) /
			IVFPQ_BLOCK_POSTINGS;
	return (BlockNumber) ((nblocks * layout->nparts +
						   layout->slots_per_page - 1) /
						  layout->slots_per_page);
}

/*
 * Begins to write lists of counts [nlists] postings; memory from the current
 * context.
 */
void
IvfpqWriterInit(IvfpqWriter *writer, Relation index,
				const IvfpqMetaData *meta, const uint32 *counts, int nlists,
				bool shared)
{
	memset(writer, 0, sizeof(*writer));
	writer->index = index;
	writer->shared = shared;
	if (!IvfpqLayoutGet(&writer->layout, meta))
		elog(ERROR, "pq_dim %d has no page layout", meta->pq_dim);
	writer->nleft = slab_pages(&writer->layout, counts, nlists);
	writer->slab_blkno = InvalidBlockNumber;
	writer->slab = palloc(BLCKSZ);
	writer->body = palloc0(writer->layout.nparts * writer->layout.part_bytes);
}

/* The n-th page to be filled from now on, reserving pages as needed. */
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

/* Put the page of slots that is full, or the last, in its place. */
static void
put_slab(IvfpqWriter *writer)
{
	if (writer->slab_blkno != InvalidBlockNumber)
		IvfpqPutPage(writer->index, writer->slab_blkno, (Page) writer->slab,
					 writer->shared);
	writer->slab_blkno = InvalidBlockNumber;
}

/* Have a page with a free slot at hand. */
static void
next_slot(IvfpqWriter *writer)
{
	if (writer->slab_blkno != InvalidBlockNumber &&
		writer->slot < (uint32) writer->layout.slots_per_page)
		return;
	put_slab(writer);
	writer->slab_blkno = coming_page(writer, 0);
	if (++writer->reserved[0].next == writer->reserved[0].end)
	{
		writer->reserved[0] = writer->reserved[1];
		memset(&writer->reserved[1], 0, sizeof(writer->reserved[1]));
	}
	slab_init((Page) writer->slab, &writer->layout);
	writer->slot = 0;
}

/* Where the block after one whose part 0 is about to be written will start. */
static IvfpqAddress
following(IvfpqWriter *writer)
{
	IvfpqAddress next = {writer->slab_blkno, writer->slot + 1};

	if (next.slot >= (uint32) writer->layout.slots_per_page)
	{
		next.page = coming_page(writer, writer->layout.nparts - 1);
		next.slot = 0;
	}
	return next;
}

/* Write writer->body as a block; returns where. */
static IvfpqAddress
write_block(IvfpqWriter *writer, uint32 list, uint32 ordinal)
{
	const IvfpqLayout *layout = &writer->layout;
	IvfpqAddress here = {InvalidBlockNumber, 0};

	for (int p = 0; p < layout->nparts; p++)
	{
		IvfpqAddress prev = {InvalidBlockNumber, 0};
		IvfpqSlotHeader *header;

		next_slot(writer);
		if (p == 0)
		{
			here.page = writer->slab_blkno;
			here.slot = writer->slot;
			if (ordinal > 0)
				prev = following(writer);
		}
		header = IvfpqSlabSlot((Page) writer->slab, layout, writer->slot++);
		header->list = list;
		header->gen = 0;
		header->ordinal = ordinal;
		header->dead = 0;
		header->secondary = p == 0 ? writer->secondary : 0;
		header->prev_page = prev.page;
		header->prev_slot = prev.slot;
		header->part = p;
		header->next_part = p + 1 < layout->nparts ? coming_page(writer, 0) :
			InvalidBlockNumber;
		memcpy(IvfpqSlabBody(header), writer->body + p * layout->part_bytes,
			   layout->part_bytes);
	}
	return here;
}

/*
 * Writes a list of nitems > 0 postings, which `next` returns one by one, and
 * make its entry, which was all zero.
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

/* Write the last slab page. */
void
IvfpqWriterFinish(IvfpqWriter *writer)
{
	put_slab(writer);
	pfree(writer->slab);
	pfree(writer->body);
}

/*
 * Write the directory of entries [meta->nlists], those of empty lists all
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

/* Log pages first .. end - 1 of a finished build. */
void
IvfpqLogBuild(Relation index, BlockNumber first, BlockNumber end)
{
	if (RelationNeedsWAL(index))
		log_newpage_range(index, MAIN_FORKNUM, first, end, true);
}

/* ----
 * VACUUM's side of lists: marking postings dead, rewriting lists, and
 * giving slots back.
 *
 * Only one VACUUM works on an index at a time, and only VACUUM changes a
 * list's gen or frees slots.  A list is rewritten beside itself: a new chain
 * under gen + 1, invisible until one record switches the directory entry to
 * it; then the old blocks are freed.  A crash in between leaves slots whose
 * gen is not their list's: the next VACUUM's pass over the slabs frees them,
 * before it rewrites any list and so before that gen can become current.
 */

/* A list is rewritten when at least one posting in this many is dead. */
#define REWRITE_DIVISOR	10

/* Times a rewrite catches up with inserts before it leaves the list alone. */
#define MAX_CATCH_UP	10

/*
 * Copy a slab page out.  A page that is unused is offered to the free space
 * map instead, and a page of another kind passed over: false.
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
 * Tell the free space map about free slots of a slab page, of which it may
 * not know after a crash.
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
 * Set dead flags of a block of the list, under its directory entry's lock.
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
 * Free a slot if it still belongs to this list and gen.  The last slot of a
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

	/* to the map's upper levels too, so that the next rewrite finds it */
	RecordPageWithFreeSpace(index, address.page,
							nfree == layout->slots_per_page ?
							BLCKSZ - 1 : nfree * layout->slot_bytes);
	FreeSpaceMapVacuumRange(index, address.page, address.page + 1);
}

static uint32
blocks_for(uint32 postings)
{
	return (postings + IVFPQ_BLOCK_POSTINGS - 1) / IVFPQ_BLOCK_POSTINGS;
}

/* Free every block of a chain that no reader can find any more. */
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

/* Postings on their way from the old chain to the new one, at most a block. */
typedef struct Batch
{
	IvfpqPosting postings[IVFPQ_BLOCK_POSTINGS];
	IvfpqKeyAbbrevs keys[IVFPQ_BLOCK_POSTINGS];
	uint8	   *codes;			/* [IVFPQ_BLOCK_POSTINGS][code_bytes] */
	int			n;
} Batch;

static void
flush_batch(Batch *batch, IvfpqListReader *reader, IvfpqDirEntry *chain)
{
	if (batch->n > 0)
		chain_append(reader->index, &reader->layout, reader->list, chain,
						 batch->postings, batch->n);
	batch->n = 0;
}

/*
 * Adds posting i of a block to the batch; write it when the new block is full.
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
 * Switch the list to `chain` if nothing was appended since `nitems`.  One
 * record: the directory page.  *old gets the entry replaced.
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

/* Would a rewrite give blocks back, and is enough of the list dead? */
static bool
worth_rewriting(const IvfpqDirEntry *entry)
{
	return (uint64) entry->ndead * REWRITE_DIVISOR >= entry->nitems &&
		blocks_for(entry->nitems) > blocks_for(entry->nitems - entry->ndead);
}

/*
 * Rewrites a list without its dead postings, if that gives space back.
 * Inserts go on meanwhile; what they append is copied in further rounds.  The
 * caller is the only VACUUM and holds no lock on any page.
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
	if (old.ndead == 0 || !worth_rewriting(&old))
		return false;

	memset(&chain, 0, sizeof(chain));
	chain.gen = old.gen + 1;
	chain.head.page = InvalidBlockNumber;
	IvfpqListReaderInit(&reader, index, meta, strategy);
	for (int round = 0; round < MAX_CATCH_UP && !switched; round++)
	{
		done = copy_live(&reader, list, done, &chain);
		switched = switch_list(index, meta, list, done, &chain, &old);
	}
	free_chain(index, &reader.layout, list, switched ? &old : &chain);
	IvfpqListReaderFree(&reader);
	return switched;
}
