/*
 * ivfpqwriter.c
 *		Writing all lists and the directory, front to back.
 *
 * A list's blocks lie one after another in the order in which readers want
 * them, newest first: the block that is not full comes first.  Pages are
 * filled in memory and then put to blocks reserved for them, so no lock is
 * held while copies are asked for.  When others use the index, and so extend
 * it too, each page is logged as it is put; an index that is being built is
 * logged at once when it is finished (IvfpqLogBuild).
 */
#include "postgres.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/rel.h"

#include "page/ivfpqpage.h"

/* Slabs are reserved in runs of this many pages, a multiple of all nparts. */
#define RUN_PAGES		16384

/* Pages that the lists' blocks fill, one behind the other. */
static BlockNumber
slab_pages(const IvfpqLayout *layout, const uint32 *counts, int nlists)
{
	int64		nblocks = 0;

	for (int list = 0; list < nlists; list++)
		nblocks += (counts[list] + IVFPQ_BLOCK_COPIES - 1) /
			IVFPQ_BLOCK_COPIES;
	return (BlockNumber) ((nblocks * layout->nparts +
						   layout->slots_per_page - 1) /
						  layout->slots_per_page);
}

/* Begin a directory page of empty lists. */
static void
begin_directory(IvfpqWriter *writer, BlockNumber blkno)
{
	Page		page = (Page) writer->directory;

	IvfpqPageInit(page, IVFPQ_KIND_DIRECTORY);
	for (int i = 0; i < IVFPQ_ENTRIES_PER_PAGE; i++)
		IvfpqDirectoryEntry(page, i)->head.page = InvalidBlockNumber;
	writer->directory_blkno = blkno;
}

/*
 * Begin to write lists of counts [nlists] copies, and the directory to the
 * place that *meta has for it; memory from the current context.
 */
void
IvfpqWriterInit(IvfpqWriter *writer, Relation index,
				const IvfpqMetaData *meta, const uint32 *counts, bool shared)
{
	memset(writer, 0, sizeof(*writer));
	writer->index = index;
	writer->meta = meta;
	writer->shared = shared;
	if (!IvfpqLayoutInit(&writer->layout, meta->pq_dim, meta->refine))
		elog(ERROR, "pq_dim %d has no page layout", meta->pq_dim);
	writer->nleft = slab_pages(&writer->layout, counts, meta->nlists);
	writer->slab_blkno = InvalidBlockNumber;
	writer->slab = palloc(BLCKSZ);
	writer->directory = palloc(BLCKSZ);
	writer->body = palloc0(writer->layout.nparts * writer->layout.part_bytes);
	begin_directory(writer, meta->directory);
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
	IvfpqSlabInit((Page) writer->slab, &writer->layout);
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
		header = IvfpqSlotGet((Page) writer->slab, layout, writer->slot++);
		header->list = list;
		header->gen = 0;
		header->ordinal = ordinal;
		header->dead = 0;
		header->second = p == 0 ? writer->second : 0;
		header->prev_page = prev.page;
		header->prev_slot = prev.slot;
		header->part = p;
		header->next_part = p + 1 < layout->nparts ? coming_page(writer, 0) :
			InvalidBlockNumber;
		memcpy(IvfpqSlotBody(header), writer->body + p * layout->part_bytes,
			   layout->part_bytes);
	}
	return here;
}

/* Put directory pages in their places up to the one numbered blkno. */
static void
put_directory(IvfpqWriter *writer, BlockNumber blkno)
{
	while (writer->directory_blkno < blkno)
	{
		IvfpqPutPage(writer->index, writer->directory_blkno,
					 (Page) writer->directory, writer->shared);
		begin_directory(writer, writer->directory_blkno + 1);
	}
}

/* Enter the list's first block in the directory. */
static void
write_entry(IvfpqWriter *writer, uint32 list, uint32 nitems,
			IvfpqAddress head)
{
	IvfpqListEntry *entry;

	put_directory(writer, IvfpqDirectoryPage(writer->meta, list));
	entry = IvfpqDirectoryEntry((Page) writer->directory, list);
	entry->nitems = nitems;
	entry->nfirst = writer->nfirst;
	entry->head = head;
}

/*
 * Write a list of nitems > 0 copies, which `next` hands out one by one.
 * Lists come in ascending order.
 */
void
IvfpqWriterList(IvfpqWriter *writer, uint32 list, uint32 nitems,
				void (*next) (void *arg, IvfpqCopy *copy), void *arg)
{
	const IvfpqLayout *layout = &writer->layout;
	IvfpqAddress head = {InvalidBlockNumber, 0};
	char	   *parts[IVFPQ_MAX_PARTS];
	uint32		left = nitems;

	writer->nfirst = 0;
	for (int p = 0; p < layout->nparts; p++)
		parts[p] = writer->body + p * layout->part_bytes;

	while (left > 0)
	{
		uint32		count = (left - 1) % IVFPQ_BLOCK_COPIES + 1;
		IvfpqSlotHeader header = {0};
		IvfpqAddress here;

		for (uint32 i = 0; i < count; i++)
		{
			IvfpqCopy	copy;

			next(arg, &copy);
			IvfpqBodySet(layout, &header, parts, i, &copy);
		}
		writer->second = header.second;
		writer->nfirst += count - pg_popcount32(header.second);
		left -= count;
		here = write_block(writer, list, left / IVFPQ_BLOCK_COPIES);
		if (head.page == InvalidBlockNumber)
			head = here;
		CHECK_FOR_INTERRUPTS();
	}
	write_entry(writer, list, nitems, head);
}

/* Write what is left: the last slab page, the rest of the directory. */
void
IvfpqWriterFinish(IvfpqWriter *writer)
{
	const IvfpqMetaData *meta = writer->meta;

	put_slab(writer);
	put_directory(writer, IvfpqDirectoryPage(meta, meta->nlists - 1) + 1);
	pfree(writer->slab);
	pfree(writer->directory);
	pfree(writer->body);
}

/* Log every page of a finished build. */
void
IvfpqLogBuild(Relation index)
{
	if (RelationNeedsWAL(index))
		log_newpage_range(index, MAIN_FORKNUM, 0,
						  RelationGetNumberOfBlocks(index), true);
}
