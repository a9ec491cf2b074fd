/*
 * vacuum.c
 *		VACUUM: flags dead postings, rewrites lists, frees space, and asks for
 *		a worker if the index needs one.
 *
 * VACUUM makes one pass over the small-list pages and refine pages, in
 * physical order, and calls the callback for every TID.  So it visits every
 * slot, and also frees slots that a crash left without a list.  After the pass
 * it rewrites the lists that have enough dead postings.
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

/* The list that a slot belongs to, and the list's directory entry. */
typedef struct SlotOwner
{
	uint32		list;
	IvfpqDirEntry entry;
} SlotOwner;

typedef struct Vacuum
{
	/* arguments from PostgreSQL */
	BufferAccessStrategy strategy;
	IndexBulkDeleteCallback callback;
	void	   *callback_state;
	IndexBulkDeleteResult *stats;

	Relation	index;
	IvfpqMetaData meta;
	IvfpqLayout layout;
	IvfpqReclaim reclaim;		/* frees pages that training left behind */
	char	   *page;			/* [BLCKSZ] copy of a small-list page */
	SlotOwner  *owners;			/* [slots_per_page] owners of the slots of
								 * `page` */
} Vacuum;

/*
 * Calls the callback for every posting that the block had when its list's
 * entry was read, and flags the dead postings.
 */
static void
vacuum_block(Vacuum *vacuum, IvfpqAddress address, IvfpqSlotHeader *slot,
			 const IvfpqDirEntry *entry)
{
	ItemPointerData *tids = (ItemPointerData *) (slot + 1);
	int64		count = (int64) entry->nitems -
	(int64) slot->ordinal * IVFPQ_BLOCK_POSTINGS;
	uint32		dead = 0;

	for (int i = 0; i < Min(count, IVFPQ_BLOCK_POSTINGS); i++)
	{
		if (slot->dead & (1U << i))
			continue;
		if (!ItemPointerIsValid(&tids[i]))
			IvfpqCorrupted(vacuum->index, address.page,
						   "posting %d in slot %u has no valid TID", i,
						   address.slot);
		if (vacuum->callback(&tids[i], vacuum->callback_state))
			dead |= 1U << i;
		else if (!(slot->secondary & (1U << i)))
			vacuum->stats->num_index_tuples += 1;
	}
	if (dead != 0)
	{
		IvfpqMarkDead(vacuum->index, &vacuum->meta, &vacuum->layout, address,
					  slot->list, slot->gen, dead);
		vacuum->stats->tuples_removed +=
			pg_popcount32(dead & ~slot->secondary);
	}
}

/*
 * Vacuums one page.  A small-list page is copied twice: first to find out
 * which lists its slots belong to, then, after the directory entries of these
 * lists were read, for its contents.  So the second copy has every posting
 * that an entry counts.  A slot that was free in the first copy is skipped,
 * because it can hold only rows newer than this VACUUM.
 */
static void
vacuum_page(Vacuum *vacuum, BlockNumber blkno)
{
	Relation	index = vacuum->index;
	const IvfpqMetaData *meta = &vacuum->meta;
	const IvfpqLayout *layout = &vacuum->layout;
	Page		page = (Page) vacuum->page;

	if (!IvfpqSlabRead(index, layout, blkno, vacuum->strategy, vacuum->page))
	{
		if (meta->refine != IVFPQ_REFINE_NONE)
			IvfpqRecordVacuum(index, meta, blkno, vacuum->strategy,
							  vacuum->callback, vacuum->callback_state);
		IvfpqReclaimPage(&vacuum->reclaim, blkno, vacuum->strategy);
		return;
	}
	for (int i = 0; i < layout->slots_per_page; i++)
	{
		SlotOwner  *owner = &vacuum->owners[i];

		owner->list = IvfpqSlabSlot(page, layout, i)->list;
		if (owner->list < (uint32) meta->nlists)
			IvfpqDirEntryRead(index, meta, owner->list, &owner->entry);
		else if (owner->list != IVFPQ_NO_LIST)
			IvfpqCorrupted(index, blkno, "slot %d belongs to list %u of %d",
						   i, owner->list, meta->nlists);
	}

	if (!IvfpqSlabRead(index, layout, blkno, vacuum->strategy, vacuum->page))
		return;
	IvfpqSlabRecordFree(index, layout, blkno, page);
	for (int i = 0; i < layout->slots_per_page; i++)
	{
		IvfpqSlotHeader *slot = IvfpqSlabSlot(page, layout, i);
		const SlotOwner *owner = &vacuum->owners[i];
		IvfpqAddress address = {blkno, i};

		if (owner->list == IVFPQ_NO_LIST)
			continue;
		if (slot->gen != owner->entry.gen)
			IvfpqSlabReclaim(index, layout, address, slot->list, slot->gen);
		else if (slot->part == 0)
			vacuum_block(vacuum, address, slot, &owner->entry);
	}
}

/*
 * ambulkdelete callback.  CREATE INDEX CONCURRENTLY also calls it, to get all
 * TIDs.
 *
 * An index of an older format is skipped, so that its table can be vacuumed
 * and frozen.  The index keeps TIDs of removed rows, but nothing reads them:
 * scans and INSERT refuse the index, and REINDEX reads only the table.
 */
IndexBulkDeleteResult *
ivfpqbulkdelete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
				IndexBulkDeleteCallback callback, void *callback_state)
{
	Relation	index = info->index;
	Vacuum		vacuum = {.index = index, .strategy = info->strategy,
	.callback = callback, .callback_state = callback_state};
	BlockNumber nblocks;
	int64		pending;

	if (stats == NULL)
		stats = palloc0(sizeof(IndexBulkDeleteResult));
	stats->num_index_tuples = 0;
	stats->estimated_count = IvfpqIsOutdated(index);
	if (stats->estimated_count)
		return stats;
	vacuum.stats = stats;

	stats->tuples_removed += IvfpqPendingVacuum(index, callback,
												callback_state, &pending);
	stats->num_index_tuples += pending;
	IvfpqMetaRead(index, &vacuum.meta);
	if (vacuum.meta.nlists == 0)
	{
		IvfpqReclaimAll(index, true, info->strategy);
		return stats;
	}

	if (!IvfpqLayoutGet(&vacuum.layout, &vacuum.meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE,
					   "its parameters are out of range");
	vacuum.page = palloc(BLCKSZ);
	vacuum.owners = palloc(vacuum.layout.slots_per_page * sizeof(SlotOwner));
	IvfpqReclaimBegin(&vacuum.reclaim, index, IvfpqMayFreeRetired(index));
	nblocks = RelationGetNumberOfBlocks(index);
	for (BlockNumber blkno = 0; blkno < nblocks; blkno++)
	{
		if (IvfpqIsFixedPage(&vacuum.meta, blkno))
			continue;
		IvfpqVacuumDelayPoint();
		vacuum_page(&vacuum, blkno);
	}
	/* lists with few dead postings stay as they are */
	for (int list = 0; list < vacuum.meta.nlists; list++)
	{
		IvfpqVacuumDelayPoint();
		IvfpqListRewrite(index, &vacuum.meta, &vacuum.layout, list,
						 info->strategy);
	}
	IvfpqReclaimEnd(&vacuum.reclaim);
	pfree(vacuum.page);
	pfree(vacuum.owners);
	return stats;
}

/*
 * amvacuumcleanup callback.  Updates the free space map's upper levels and the
 * number of pages, and asks for a worker if the index needs one.  If
 * ambulkdelete was not called before, there are no stats to update, and the
 * number of index entries in the catalog stays as it was.
 */
IndexBulkDeleteResult *
ivfpqvacuumcleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
	if (info->analyze_only)
		return stats;
	if (IvfpqIsOutdated(info->index))
	{
		ereport(WARNING,
				(errmsg("skipping vacuum of index \"%s\" because it has the format of an older version of gpuvec",
						RelationGetRelationName(info->index)),
				 errhint("Rebuild the index with REINDEX INDEX %s.",
						 quote_identifier(RelationGetRelationName(info->index)))));
		return stats;
	}
	if (stats == NULL)
		IvfpqFreeRetired(info->index, info->strategy);
	IvfpqAskForWorker(info);
	if (stats == NULL)
		return NULL;

	IndexFreeSpaceMapVacuum(info->index);
	stats->num_pages = RelationGetNumberOfBlocks(info->index);
	return stats;
}
