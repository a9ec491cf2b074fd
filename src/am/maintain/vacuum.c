/*
 * vacuum.c
 *		VACUUM: flags dead postings, rewrites lists, frees space, and asks for
 *		a worker if the index needs one.
 *
 * One pass over slab and refine pages in physical order asks about every TID.
 * So VACUUM reads the file once, front to back, and comes to every slot; it
 * frees slots that a crash left without a list on the way.  Then it rewrites
 * lists that have enough dead postings.
 */
#include "postgres.h"

#include "access/genam.h"
#include "commands/vacuum.h"
#include "port/pg_bitutils.h"
#include "storage/indexfsm.h"
#include "utils/builtins.h"

#include "am/maintain/maintain.h"
#include "page/listread.h"
#include "page/listwrite.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "page/refinepage.h"
#include "pgcompat.h"

/* The list that a slot belongs to, and its entry. */
typedef struct SlotOwner
{
	uint32		list;
	IvfpqDirEntry entry;
} SlotOwner;

typedef struct Vacuum
{
	Relation	index;
	IvfpqMetaData meta;
	IvfpqLayout layout;
	BufferAccessStrategy strategy;
	IndexBulkDeleteCallback callback;
	void	   *callback_state;
	IndexBulkDeleteResult *stats;
	char	   *page;			/* [BLCKSZ] copy of a slab page */
	SlotOwner  *owners;			/* [slots_per_page] of that page */
	IvfpqReclaim reclaim;		/* of what training left */
} Vacuum;

/* Returns the postings of a block that its list had when the entry was read. */
static int
block_postings(const IvfpqDirEntry *entry, const IvfpqSlotHeader *slot)
{
	int64		count = (int64) entry->nitems -
	(int64) slot->ordinal * IVFPQ_BLOCK_POSTINGS;

	return (int) Max(0, Min(count, IVFPQ_BLOCK_POSTINGS));
}

/* Asks about every posting of a block, and flags those that are dead. */
static void
vacuum_block(Vacuum *vacuum, BlockNumber blkno, uint32 slotno,
			 const IvfpqDirEntry *entry)
{
	IvfpqSlotHeader *slot = IvfpqSlabSlot((Page) vacuum->page, &vacuum->layout,
										  slotno);
	ItemPointerData *tids = (ItemPointerData *) IvfpqSlabBody(slot);
	int			count = block_postings(entry, slot);
	uint32		dead = 0;
	IvfpqAddress address = {blkno, slotno};

	for (int i = 0; i < count; i++)
	{
		if (slot->dead & (1U << i))
			continue;
		if (!ItemPointerIsValid(&tids[i]))
			IvfpqCorrupted(vacuum->index, blkno,
						   "copy %d in slot %u has no valid TID", i, slotno);
		if (vacuum->callback(&tids[i], vacuum->callback_state))
			dead |= 1U << i;
		else if (!(slot->secondary & (1U << i)))
			vacuum->stats->num_index_tuples += 1;
	}
	if (dead != 0)
	{
		IvfpqMarkDead(vacuum->index, &vacuum->meta, address, slot->list,
					  slot->gen, dead);
		vacuum->stats->tuples_removed +=
			pg_popcount32(dead & ~slot->secondary);
	}
}

/* Reads which lists own the slots of vacuum->page, and these lists' entries. */
static void
read_owners(Vacuum *vacuum, BlockNumber blkno)
{
	for (int i = 0; i < vacuum->layout.slots_per_page; i++)
	{
		SlotOwner  *owner = &vacuum->owners[i];

		owner->list = IvfpqSlabSlot((Page) vacuum->page, &vacuum->layout,
									i)->list;
		if (owner->list < (uint32) vacuum->meta.nlists)
			IvfpqDirEntryRead(vacuum->index, &vacuum->meta, owner->list,
							  &owner->entry);
		else if (owner->list != IVFPQ_NO_LIST)
			IvfpqCorrupted(vacuum->index, blkno,
						   "slot %d belongs to list %u of %d", i, owner->list,
						   vacuum->meta.nlists);
	}
}

/*
 * Vacuums one page.  It is copied twice: first to learn which lists its slots
 * belong to, then, after the entries of these lists were read, for its
 * contents.  So the second copy has every posting that an entry counts.  Slots
 * taken in between hold only rows newer than this VACUUM.
 */
static void
vacuum_page(Vacuum *vacuum, BlockNumber blkno)
{
	const IvfpqLayout *layout = &vacuum->layout;

	if (!IvfpqSlabRead(vacuum->index, blkno, vacuum->strategy, vacuum->page))
	{
		if (vacuum->meta.refine != IVFPQ_REFINE_NONE)
			IvfpqRecordVacuum(vacuum->index,
							  IvfpqRecordCodeBytes(vacuum->meta.refine,
												   vacuum->meta.dims),
							  blkno, vacuum->strategy, vacuum->callback,
							  vacuum->callback_state);
		IvfpqReclaimPage(&vacuum->reclaim, blkno, vacuum->strategy);
		return;
	}
	read_owners(vacuum, blkno);
	if (!IvfpqSlabRead(vacuum->index, blkno, vacuum->strategy, vacuum->page))
		return;
	IvfpqSlabRecordFree(vacuum->index, layout, blkno, (Page) vacuum->page);

	for (int i = 0; i < layout->slots_per_page; i++)
	{
		IvfpqSlotHeader *slot = IvfpqSlabSlot((Page) vacuum->page, layout, i);
		const SlotOwner *owner = &vacuum->owners[i];
		IvfpqAddress address = {blkno, i};

		if (owner->list == IVFPQ_NO_LIST)
			continue;
		if (slot->gen != owner->entry.gen)
			IvfpqSlabReclaim(vacuum->index, layout, address, slot->list,
							 slot->gen);
		else if (slot->part == 0)
			vacuum_block(vacuum, blkno, i, &owner->entry);
	}
}

/*
 * ambulkdelete.  CREATE INDEX CONCURRENTLY also calls it, to learn all TIDs.
 *
 * An index of an older format is passed over, so that its table can be
 * vacuumed and frozen.  The index keeps TIDs of removed rows, but nothing
 * reads them: scans and INSERT refuse the index, and REINDEX reads the table
 * only.
 */
IndexBulkDeleteResult *
ivfpqbulkdelete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
				IndexBulkDeleteCallback callback, void *callback_state)
{
	Vacuum		vacuum = {.index = info->index, .strategy = info->strategy,
	.callback = callback, .callback_state = callback_state};
	BlockNumber nblocks;
	int64		pending;

	if (stats == NULL)
		stats = palloc0(sizeof(IndexBulkDeleteResult));
	stats->num_index_tuples = 0;
	stats->estimated_count = IvfpqIsOutdated(info->index);
	if (stats->estimated_count)
		return stats;
	vacuum.stats = stats;

	stats->tuples_removed += IvfpqPendingVacuum(info->index, callback,
												callback_state, &pending);
	stats->num_index_tuples += pending;
	IvfpqMetaRead(info->index, &vacuum.meta);
	if (vacuum.meta.nlists > 0)
	{
		if (!IvfpqLayoutGet(&vacuum.layout, &vacuum.meta))
			IvfpqCorrupted(info->index, IVFPQ_METAPAGE,
						   "its parameters are out of range");
		vacuum.page = palloc(BLCKSZ);
		vacuum.owners = palloc(vacuum.layout.slots_per_page *
							   sizeof(SlotOwner));
		IvfpqReclaimBegin(&vacuum.reclaim, info->index);
		nblocks = RelationGetNumberOfBlocks(info->index);
		for (BlockNumber blkno = 0; blkno < nblocks; blkno++)
		{
			if (IvfpqIsFixedPage(&vacuum.meta, blkno))
				continue;
			IvfpqVacuumDelayPoint();
			vacuum_page(&vacuum, blkno);
		}
		/* rewrites those with enough dead postings */
		for (int list = 0; list < vacuum.meta.nlists; list++)
		{
			IvfpqVacuumDelayPoint();
			IvfpqListRewrite(vacuum.index, &vacuum.meta, list,
							 vacuum.strategy);
		}
		IvfpqReclaimEnd(&vacuum.reclaim);
		pfree(vacuum.page);
		pfree(vacuum.owners);
	}
	else
		IvfpqReclaimUntrained(info->index, info->strategy);
	return stats;
}

/*
 * amvacuumcleanup.  Brings the upper levels of the free space map and the
 * sizes up to date, and asks for a worker to train.  Without an ambulkdelete
 * before, the number of entries stays as it was.
 */
IndexBulkDeleteResult *
ivfpqvacuumcleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	if (info->analyze_only)
		return stats;
	if (IvfpqIsOutdated(info->index))
	{
		ereport(WARNING,
				(errmsg("index \"%s\" has the format of an older gpuvec, VACUUM passes it over",
						RelationGetRelationName(info->index)),
				 errhint("Rebuild it with REINDEX INDEX %s.",
						 quote_identifier(RelationGetRelationName(info->index)))));
		return stats;
	}
	IvfpqAskForWorker(info);
	if (stats == NULL)
		return NULL;

	IndexFreeSpaceMapVacuum(info->index);
	stats->num_pages = RelationGetNumberOfBlocks(info->index);
	return stats;
}
