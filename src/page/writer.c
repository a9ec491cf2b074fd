/*
 * writer.c
 *		Writing lists, front to back, and the directory.
 *
 * A list's blocks lie one after another in the order in which readers want
 * them, newest first: the block that is not full comes first.  Pages are
 * filled in memory and then put to blocks reserved for them, so no lock is
 * held while postings are asked for.  When others use the index, and so extend
 * it too, each page is logged as it is put; an index that is being built is
 * logged when it is finished (IvfpqLogBuild).  Several writers, each with
 * lists of its own, may be at work on an index that is being built.
 */
#include "postgres.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/rel.h"

#include "page/page.h"

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
