/*
 * fetchlist.c
 *		Blocks of lists on their way into the processor's cache before they are
 *		scanned.
 *
 * A core that waits for one page after another gets a third of what memory
 * gives.  So while a block is scanned another is fetched that comes a few pages
 * later: by what the directory's entries say, in lists written at once, which
 * have their older blocks in the slots behind.  Where a page is not where it was
 * the last time, or the list goes on elsewhere, the wrong bytes are fetched, and
 * nothing else happens.
 */
#include "postgres.h"

#include "page/bufcache.h"
#include "page/list/list.h"
#include "page/page.h"

/* Lists whose pages are sought together, and how many of each at most. */
#define LISTS_TOGETHER	8
#define PAGES_SOUGHT	16

static void
come_to(IvfpqFetchPlace *place, Relation index, IvfpqAddress next)
{
	place->next = next;
	place->page = IvfpqBufHintFetch(index, next.page, 0, 0);
}

/*
 * Have the processor find out where in memory pages of the next lists are.  It
 * waits for each page's address, of a page of 4 kB as of a buffer's header, and
 * for several at once hardly longer: so theirs are sought together.
 */
static void
seek_lists(IvfpqFetchPlace *place, Relation index, uint32 slots)
{
	for (int i = 0; i < LISTS_TOGETHER && place->sought < place->end; i++)
	{
		const IvfpqDirEntry *entry = place->sought++;
		uint32		npages;

		if (entry->nitems == 0 || entry->head.slot >= slots)
			continue;
		npages = (entry->head.slot +
				  (entry->nitems - 1) / IVFPQ_BLOCK_POSTINGS) / slots + 1;
		for (uint32 p = 0; p < Min(npages, PAGES_SOUGHT); p++)
			IvfpqBufHintFetch(index, entry->head.page + p, BLCKSZ / 2, 1);
	}
}

/* Go on to the next list that has blocks; false if there is none. */
static bool
next_list(IvfpqFetchPlace *place, Relation index, uint32 slots)
{
	while (place->nblocks == 0 && place->entry < place->end)
	{
		const IvfpqDirEntry *entry = place->entry++;

		if (entry + LISTS_TOGETHER / 2 >= place->sought)
			seek_lists(place, index, slots);
		/* damage is for the list's reader to report */
		if (entry->nitems == 0 || entry->head.slot >= slots)
			continue;
		place->nblocks = (entry->nitems - 1) / IVFPQ_BLOCK_POSTINGS + 1;
		come_to(place, index, entry->head);
	}
	return place->nblocks > 0;
}

/*
 * Where in memory the slot of the next block most likely is: to be fetched,
 * never to be read.  NULL where that is not known, or there is none.
 */
const char *
IvfpqFetchNext(IvfpqFetchPlace *place, Relation index,
			   const IvfpqLayout *layout)
{
	uint32		slots = layout->slots_per_page;
	const char *slot = NULL;

	if (!next_list(place, index, slots))
		return NULL;
	if (place->page != NULL)
		slot = place->page + MAXALIGN(SizeOfPageHeaderData) +
			place->next.slot * layout->slot_bytes;
	place->nblocks--;
	if (++place->next.slot == slots && place->nblocks > 0)
	{
		IvfpqAddress behind = {.page = place->next.page + 1};

		come_to(place, index, behind);
	}
	return slot;
}
