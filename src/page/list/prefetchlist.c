/*
 * prefetchlist.c
 *		Pages of lists on their way into shared buffers before they are read.
 *
 * Each block of a list names the next one, so a reader of a list from files
 * waits for its pages one after another.  Here those of many lists come
 * together: first the pages of all their newest blocks, which the directory
 * names, then those that these name.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "page/bufcache.h"
#include "page/list/list.h"
#include "page/page.h"

/* Pages that lists brought in together may have. */
#define MOST_PAGES		256

/* Pages of a list that was written at once, at most. */
static int
list_pages(const IvfpqLayout *layout, const IvfpqDirEntry *entry)
{
	uint32		nblocks = entry->nitems / IVFPQ_BLOCK_POSTINGS + 1;

	return (int) Min(nblocks / layout->slots_per_page + 2, MOST_PAGES);
}

/*
 * Lists that have so many pages together, at least one; *npages: how many
 * pages.
 */
static int
count_lists(const IvfpqLayout *layout, const IvfpqDirEntry *entries, int n,
			int *npages)
{
	int			count = 0;

	*npages = 0;
	do
		*npages += list_pages(layout, &entries[count++]);
	while (count < n && *npages < MOST_PAGES);
	return count;
}

/*
 * The oldest block of a list on a locked page, from a slot on; NULL when the
 * list is not there, as may be when it was rewritten.
 */
static const IvfpqSlotHeader *
oldest_here(const IvfpqLayout *layout, Page page, BlockNumber blkno,
			uint32 slot, uint32 list, uint32 gen)
{
	const IvfpqSlotHeader *header = NULL;

	if (!IvfpqPageIs(page, IVFPQ_KIND_SLAB))
		return NULL;
	for (int i = 0; i < layout->slots_per_page; i++)
	{
		if (slot >= (uint32) layout->slots_per_page)
			return NULL;
		header = IvfpqSlabSlot(page, layout, slot);
		if (header->list != list || header->gen != gen)
			return NULL;
		if (header->ordinal == 0 || header->prev_page != blkno)
			break;
		slot = header->prev_slot;
	}
	return header;
}

/*
 * Note pages that a list goes on on: what the last block of its first page
 * names, and if that is the page behind, as in a list written at once, all
 * pages that the list then has.  Returns how many.
 */
static int
note_older(const IvfpqLayout *layout, BlockNumber blkno,
		   const IvfpqSlotHeader *last, int most, uint64 *pages)
{
	int			count = 0;
	int64		nolder = last->ordinal;
	BlockNumber page = last->prev_page;

	if (nolder == 0 || page == InvalidBlockNumber)
		return 0;
	pages[count++] = (uint64) page << 32;
	nolder -= layout->slots_per_page - last->prev_slot;
	if (page != blkno + 1)
		return count;
	for (; nolder > 0 && count < most; nolder -= layout->slots_per_page)
		pages[count++] = (uint64) ++page << 32;
	return count;
}

/* Read pages [n], which are not looked at; reorders them. */
static void
read_pages(Relation index, uint64 *pages, int n)
{
	IvfpqPrefetch prefetch;

	IvfpqSortNumbers(pages, n);
	IvfpqPrefetchBegin(&prefetch, index, pages, n, 32);
	for (int i = 0; i < n; i++)
	{
		BlockNumber blkno = (BlockNumber) (pages[i] >> 32);

		CHECK_FOR_INTERRUPTS();
		if (!IvfpqBlockExists(index, blkno))
			break;
		IvfpqPrefetchTo(&prefetch, blkno);
		ReleaseBuffer(ReadBuffer(index, blkno));
	}
	IvfpqPrefetchEnd(&prefetch);
}

/*
 * Bring the first pages of lists [n] into shared buffers, where the reader
 * finds them; the pages that they go on on come to `older`.  Returns how many
 * these are.
 */
static int
read_first_pages(const IvfpqListReader *reader, const uint64 *lists,
				 const IvfpqDirEntry *entries, int n, uint64 *older)
{
	const IvfpqLayout *layout = &reader->layout;
	uint64	   *pages = palloc(n * sizeof(uint64));
	int			npages = 0;
	int			nolder = 0;
	IvfpqPrefetch prefetch;

	for (int i = 0; i < n; i++)
		if (entries[i].nitems > 0)
			pages[npages++] = (uint64) entries[i].head.page << 32 | (uint32) i;
	IvfpqSortNumbers(pages, npages);
	IvfpqPrefetchBegin(&prefetch, reader->index, pages, npages, 32);
	for (int j = 0; j < npages; j++)
	{
		BlockNumber blkno = (BlockNumber) (pages[j] >> 32);
		uint32		i = (uint32) pages[j];
		const IvfpqSlotHeader *last;
		Buffer		buf;

		CHECK_FOR_INTERRUPTS();
		if (!IvfpqBlockExists(reader->index, blkno))
			break;
		IvfpqPrefetchTo(&prefetch, blkno);
		buf = ReadBuffer(reader->index, blkno);
		LockBuffer(buf, BUFFER_LOCK_SHARE);
		last = oldest_here(layout, BufferGetPage(buf), blkno,
						   entries[i].head.slot, (uint32) lists[i],
						   entries[i].gen);
		if (last != NULL && layout->nparts == 1)
			nolder += note_older(layout, blkno, last,
								 list_pages(layout, &entries[i]),
								 older + nolder);
		UnlockReleaseBuffer(buf);
	}
	IvfpqPrefetchEnd(&prefetch);
	pfree(pages);
	return nolder;
}

/*
 * Bring pages of the first few of these lists [n] into shared buffers; returns
 * of how many.  Worth it where IvfpqPrefetchHelps.  The pages' contents are
 * hints: a reader of the lists goes by the contents at that time.
 */
int
IvfpqPrefetchLists(const IvfpqListReader *reader, const uint64 *lists,
				   const IvfpqDirEntry *entries, int n)
{
	int			npages;
	int			count = count_lists(&reader->layout, entries, n, &npages);
	uint64	   *older = palloc(npages * sizeof(uint64));
	int			nolder = read_first_pages(reader, lists, entries, count, older);

	read_pages(reader->index, older, nolder);
	pfree(older);
	return count;
}
