/*
 * slab.c
 *		Slots of slab pages, and the blocks they hold.
 *
 * A slab page is an array of equal slots owned by any lists.  Its free slots
 * are found through the free space map (slots x slot_bytes), which is only a
 * hint: the page decides.
 */
#include "postgres.h"

#include "storage/freespace.h"
#include "utils/rel.h"

#include "page/page.h"
#include "pgcompat.h"

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
void
IvfpqSlabInit(Page page, const IvfpqLayout *layout)
{
	IvfpqPageInit(page, IVFPQ_KIND_SLAB);
	for (int i = 0; i < layout->slots_per_page; i++)
		IvfpqSlabSlot(page, layout, i)->list = IVFPQ_NO_LIST;
}

/* How many slots are free? */
int
IvfpqSlabFreeSlots(Page page, const IvfpqLayout *layout)
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
 * this never waits for one.  IvfpqBlockRelease unlocks pages that were not
 * used.
 */
void
IvfpqBlockAllocate(Relation index, const IvfpqLayout *layout,
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
void
IvfpqBlockLock(Relation index, const IvfpqLayout *layout,
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
void
IvfpqBlockRegister(GenericXLogState *state, const IvfpqLayout *layout,
				   const IvfpqBlockPages *block, IvfpqSlotHeader **headers)
{
	for (int p = 0; p < block->nparts; p++)
	{
		Page		page;

		page = GenericXLogRegisterBuffer(state, block->buffers[p],
										 block->init[p] ? GENERIC_XLOG_FULL_IMAGE : 0);
		if (block->init[p])
			IvfpqSlabInit(page, layout);
		headers[p] = IvfpqSlabSlot(page, layout, block->slots[p]);
	}
}

/* Write the headers of a newly allocated block. */
void
IvfpqBlockOccupy(const IvfpqBlockPages *block, IvfpqSlotHeader **headers,
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
IvfpqAddress
IvfpqBlockAddress(const IvfpqBlockPages *block)
{
	IvfpqAddress address = {BufferGetBlockNumber(block->buffers[0]),
	block->slots[0]};

	return address;
}

/*
 * Unlock a block's pages, and tell the free space map about slots left on
 * pages it does not know.  A page taken but not written is still free.
 */
void
IvfpqBlockRelease(Relation index, const IvfpqLayout *layout,
				  IvfpqBlockPages *block)
{
	for (int p = 0; p < block->nparts; p++)
	{
		BlockNumber blkno = BufferGetBlockNumber(block->buffers[p]);
		Page		page = BufferGetPage(block->buffers[p]);
		Size		freespace = BLCKSZ - 1;

		if (IvfpqPageIs(page, IVFPQ_KIND_SLAB))
			freespace = IvfpqSlabFreeSlots(page, layout) * layout->slot_bytes;
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
