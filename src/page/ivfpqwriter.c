/*
 * ivfpqwriter.c
 *		Writing a whole index, front to back.
 *
 * Nobody else sees an index that is being built, so its pages are written
 * without locks to speak of and without WAL; IvfpqLogBuild logs the finished
 * file at once.  A list's blocks lie one after another in the order in which
 * readers want them, newest first: the block that is not full comes first.
 */
#include "postgres.h"

#include "access/xloginsert.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/rel.h"

#include "page/ivfpqpage.h"

/* Append an empty directory of nlists entries; returns its first page. */
BlockNumber
IvfpqDirectoryBuild(Relation index, int nlists)
{
	BlockNumber first = InvalidBlockNumber;

	for (int list = 0; list < nlists; list += IVFPQ_ENTRIES_PER_PAGE)
	{
		Buffer		buf = IvfpqExtend(index);
		Page		page = BufferGetPage(buf);

		if (first == InvalidBlockNumber)
			first = BufferGetBlockNumber(buf);
		IvfpqPageInit(page, IVFPQ_KIND_DIRECTORY);
		for (int i = 0; i < IVFPQ_ENTRIES_PER_PAGE; i++)
			IvfpqDirectoryEntry(page, list + i)->head.page = InvalidBlockNumber;
		MarkBufferDirty(buf);
		UnlockReleaseBuffer(buf);
	}
	return first;
}

/* Begin to write lists; memory from the current context. */
void
IvfpqWriterInit(IvfpqWriter *writer, Relation index,
				const IvfpqMetaData *meta)
{
	memset(writer, 0, sizeof(*writer));
	writer->index = index;
	writer->meta = meta;
	if (!IvfpqLayoutInit(&writer->layout, meta->pq_dim, meta->refine))
		elog(ERROR, "pq_dim %d has no page layout", meta->pq_dim);
	writer->slab = InvalidBuffer;
	writer->body = palloc0(writer->layout.nparts * writer->layout.part_bytes);
}

/* Hold the slab page with the next free slot, extending when it is full. */
static void
next_slot(IvfpqWriter *writer)
{
	if (BufferIsValid(writer->slab) &&
		writer->slot < (uint32) writer->layout.slots_per_page)
		return;
	if (BufferIsValid(writer->slab))
		UnlockReleaseBuffer(writer->slab);
	writer->slab = InvalidBuffer;
	writer->slab = IvfpqExtend(writer->index);
	IvfpqSlabInit(BufferGetPage(writer->slab), &writer->layout);
	MarkBufferDirty(writer->slab);
	writer->slot = 0;
}

/* Where the block after one that starts at `here` will start. */
static IvfpqAddress
following(const IvfpqWriter *writer, IvfpqAddress here)
{
	IvfpqAddress next = here;

	if (++next.slot >= (uint32) writer->layout.slots_per_page)
	{
		next.page += writer->layout.nparts;
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
		IvfpqSlotHeader *header;
		BlockNumber blkno;

		next_slot(writer);
		blkno = BufferGetBlockNumber(writer->slab);
		if (p == 0)
		{
			here.page = blkno;
			here.slot = writer->slot;
		}
		else if (blkno != here.page + p)
			elog(ERROR, "index \"%s\" is extended by someone else",
				 RelationGetRelationName(writer->index));

		header = IvfpqSlotGet(BufferGetPage(writer->slab), layout,
							  writer->slot++);
		header->list = list;
		header->gen = 0;
		header->ordinal = ordinal;
		header->dead = 0;
		header->second = p == 0 ? writer->second : 0;
		header->prev_page = InvalidBlockNumber;
		header->prev_slot = 0;
		header->part = p;
		header->next_part = p + 1 < layout->nparts ? blkno + 1 :
			InvalidBlockNumber;
		if (p == 0 && ordinal > 0)
		{
			IvfpqAddress prev = following(writer, here);

			header->prev_page = prev.page;
			header->prev_slot = prev.slot;
		}
		memcpy(IvfpqSlotBody(header), writer->body + p * layout->part_bytes,
			   layout->part_bytes);
		MarkBufferDirty(writer->slab);
	}
	return here;
}

/* Enter the list's first block in the directory. */
static void
write_entry(IvfpqWriter *writer, uint32 list, uint32 nitems,
			IvfpqAddress head)
{
	IvfpqListEntry *entry;
	Buffer		buf;

	buf = IvfpqReadPage(writer->index, IvfpqDirectoryPage(writer->meta, list),
						BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	entry = IvfpqDirectoryEntry(BufferGetPage(buf), list);
	entry->nitems = nitems;
	entry->nfirst = writer->nfirst;
	entry->head = head;
	MarkBufferDirty(buf);
	UnlockReleaseBuffer(buf);
}

/*
 * Write a list of nitems > 0 copies, which `next` hands out one by one.
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

/* Let go of the last page. */
void
IvfpqWriterFinish(IvfpqWriter *writer)
{
	if (BufferIsValid(writer->slab))
		UnlockReleaseBuffer(writer->slab);
	writer->slab = InvalidBuffer;
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
