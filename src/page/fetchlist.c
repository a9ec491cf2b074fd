/*
 * fetchlist.c
 *		Blocks of lists on their way into the processor's cache before they are
 *		scanned.
 *
 * A core that waits for one page after another gets a third of what memory
 * gives.  So while blocks are scanned, as many are fetched that come a few pages
 * later: by what the directory's entries say, in lists written at once, which
 * have their older blocks in the slots behind.  Where a page is not where it was
 * the last time, or the list goes on elsewhere, the wrong bytes are fetched, and
 * nothing else happens.
 */
#include "postgres.h"

#include "page/buffer/bufhint.h"
#include "page/page.h"

/* Go on to the next list that has blocks; false if there is none. */
static bool
next_list(IvfpqFetchPlace *place)
{
	while (place->nblocks == 0 && place->entry < place->end)
	{
		place->nblocks = (place->entry->nitems + IVFPQ_BLOCK_COPIES - 1) /
			IVFPQ_BLOCK_COPIES;
		place->next = place->entry->head;
		place->entry++;
	}
	return place->nblocks > 0;
}

/* Have the processor fetch the next n blocks. */
void
IvfpqFetchBlocks(IvfpqFetchPlace *place, Relation index,
				 const IvfpqLayout *layout, int n)
{
	uint32		slots = layout->slots_per_page;

	while (n > 0 && next_list(place))
	{
		uint32		slot = place->next.slot;
		uint32		count;

		if (slot >= slots)
		{
			place->nblocks = 0; /* damage, which the list's reader reports */
			continue;
		}
		count = Min(Min(place->nblocks, slots - slot), (uint32) n);
		IvfpqBufHintFetch(index, place->next.page,
						  MAXALIGN(SizeOfPageHeaderData) +
						  slot * layout->slot_bytes,
						  count * layout->slot_bytes);
		n -= count;
		place->nblocks -= count;
		place->next.slot += count;
		if (place->next.slot == slots)
		{
			place->next.page++;
			place->next.slot = 0;
		}
	}
}
