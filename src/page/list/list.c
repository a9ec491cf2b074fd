/*
 * list.c
 *		Reading inverted lists.
 *
 * Read protocol.  A reader copies a list's directory entry and then, one
 * share lock at a time, its blocks from the newest to the oldest.  VACUUM may
 * rewrite the list meanwhile and hand its old blocks to any list; the reader
 * sees that as a slot that is not the block it looks for, and reads the list
 * again from its entry; then postings may come a second time.  A second
 * mismatch under an unchanged gen is damage.
 *
 * A search does not copy blocks but reads them optimistically (trylist.c);
 * those that turn out to be invalid come again as above.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "page/bufcache.h"
#include "page/list/reader.h"
#include "page/page.h"

/* Prepare to read lists; memory from the current context. */
void
IvfpqListReaderInit(IvfpqListReader *reader, Relation index,
					const IvfpqMetaData *meta, BufferAccessStrategy strategy)
{
	memset(reader, 0, sizeof(*reader));
	reader->index = index;
	reader->meta = meta;
	reader->strategy = strategy;
	if (!IvfpqLayoutGet(&reader->layout, meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");
	reader->page = palloc(BLCKSZ);
	if (reader->layout.nparts > 1)
		reader->body = palloc(reader->layout.nparts * reader->layout.part_bytes);
}

/* Free the memory, and release pages. */
void
IvfpqListReaderFree(IvfpqListReader *reader)
{
	IvfpqReaderDropOptimistic(reader);
	IvfpqReaderDropPrefetched(reader);
	pfree(reader->page);
	if (reader->body)
		pfree(reader->body);
}

/* (Re)start at the newest block, by reader->entry. */
static void
start_reading(IvfpqListReader *reader)
{
	reader->next = reader->entry.head;
	reader->nleft = reader->entry.nitems;
	reader->cached = InvalidBlockNumber;	/* may be older than the entry */
	IvfpqReaderDropOptimistic(reader);
}

/* Begin to read a list. */
void
IvfpqListOpen(IvfpqListReader *reader, uint32 list)
{
	IvfpqDirEntry entry;

	IvfpqDirEntryRead(reader->index, reader->meta, list, &entry);
	IvfpqListOpenAt(reader, list, &entry, NULL);
	reader->prefetches = false;
}

/*
 * Begin to read a list by an entry that was read before, and prefetch pages,
 * in the end those of the following list (NULL: there is none).  The caller
 * must read the list to its end; then a page of the following list, if there
 * is one, is left pinned.
 */
void
IvfpqListOpenAt(IvfpqListReader *reader, uint32 list,
				const IvfpqDirEntry *entry, const IvfpqDirEntry *following)
{
	reader->list = list;
	reader->reread = false;
	reader->entry = *entry;
	reader->following = following;
	reader->prefetches = true;
	if (following != NULL)
		IvfpqBufHintFetch(reader->index, following->head.page, 0, 0);
	start_reading(reader);
}

/* Bytes of a slot up to the last of its keys' heads. */
static inline int
front_bytes(const IvfpqLayout *layout)
{
	return IvfpqBeforeKeys(layout) + IvfpqKeyHeadsBytes(&layout->keys);
}

/*
 * Copies a slot, or what comes before its abbreviated keys and codes where the
 * heads of its keys say that no posting is wanted.
 */
static void
copy_slot_of(IvfpqListReader *reader, const char *from, char *to, uint32 slot)
{
	const IvfpqLayout *layout = &reader->layout;
	int			heads = IvfpqBeforeKeys(layout);

	reader->copied |= 1U << slot;
	if (reader->wants == NULL || layout->keys.nkeys == 0 ||
		((const IvfpqSlotHeader *) from)->part != 0 ||
		reader->wants(reader->wants_arg, (const IvfpqSlotHeader *) from,
					  from + heads))
		memcpy(to, from, layout->slot_bytes);
	else
	{
		memcpy(to, from, sizeof(IvfpqSlotHeader));
		memcpy(to + heads, from + heads, front_bytes(layout) - heads);
		reader->passed |= 1U << slot;
	}
}

/*
 * Copies a slot of a locked page, and those on the same page in which the list
 * goes on, to the same places of the reader's page; returns the last one's
 * header.
 */
static const IvfpqSlotHeader *
copy_slots(IvfpqListReader *reader, Page page, BlockNumber blkno, uint32 slot)
{
	const IvfpqLayout *layout = &reader->layout;
	IvfpqSlotHeader *header;

	reader->copied = reader->passed = 0;
	for (;;)
	{
		header = IvfpqSlabSlot((Page) reader->page, layout, slot);
		copy_slot_of(reader, (const char *) IvfpqSlabSlot(page, layout, slot),
					 (char *) header, slot);
		if (header->list != reader->list ||
			header->gen != reader->entry.gen || header->ordinal == 0 ||
			header->prev_page != blkno ||
			header->prev_slot >= layout->slots_per_page ||
			(reader->copied & 1U << header->prev_slot) != 0)
			return header;
		slot = header->prev_slot;
	}
}

/* Copy a slot of a slab page into reader->page; false if there is none. */
static bool
copy_page(IvfpqListReader *reader, BlockNumber blkno, uint32 slot)
{
	const IvfpqSlotHeader *last = NULL;
	Buffer		buf;

	if (reader->cached == blkno && (reader->copied >> slot & 1) != 0)
		return true;
	reader->cached = InvalidBlockNumber;
	buf = IvfpqReaderPin(reader, blkno);
	if (!BufferIsValid(buf))
		return false;
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	if (IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_SLAB))
		last = copy_slots(reader, BufferGetPage(buf), blkno, slot);
	UnlockReleaseBuffer(buf);
	if (last == NULL)
		return false;
	reader->cached = blkno;
	if (reader->prefetches)
		IvfpqReaderPrefetchNext(reader, last);
	return true;
}

/* The slot at the address, if it holds this part of the block we look for. */
static IvfpqSlotHeader *
copy_slot(IvfpqListReader *reader, BlockNumber blkno, uint32 slot, int part)
{
	uint32		ordinal = (reader->nleft - 1) / IVFPQ_BLOCK_POSTINGS;
	IvfpqSlotHeader *header;

	if (slot >= (uint32) reader->layout.slots_per_page ||
		!copy_page(reader, blkno, slot))
		return NULL;
	header = IvfpqSlabSlot((Page) reader->page, &reader->layout, slot);
	if (header->list != reader->list || header->gen != reader->entry.gen ||
		header->ordinal != ordinal || header->part != part)
		return NULL;
	return header;
}

/*
 * Read the block at reader->next; false when something else is there.  The
 * body is in *body, the header in *header; a header's copy, because gathering
 * parts reuses the page memory.  Of a block that is passed over (*passed) the
 * body has heads of keys, and no other part is looked at.
 */
static bool
read_block(IvfpqListReader *reader, IvfpqSlotHeader *header, char **body,
		   bool *passed)
{
	IvfpqSlotHeader *slot;
	int			part_bytes = reader->layout.part_bytes;

	slot = copy_slot(reader, reader->next.page, reader->next.slot, 0);
	if (slot == NULL)
		return false;
	*header = *slot;
	*body = IvfpqSlabBody(slot);
	*passed = (reader->passed >> reader->next.slot & 1) != 0;
	if (reader->layout.nparts == 1 || *passed)
		return true;

	memcpy(reader->body, *body, part_bytes);
	for (int p = 1; p < reader->layout.nparts; p++)
	{
		slot = copy_slot(reader, slot->next_part, 0, p);
		if (slot == NULL)
			return false;
		memcpy(reader->body + p * part_bytes, IvfpqSlabBody(slot), part_bytes);
	}
	*body = reader->body;
	return true;
}

/* The block was not where it should be: read the list again, or give up. */
static void
handle_mismatch(IvfpqListReader *reader)
{
	BlockNumber blkno = reader->next.page;
	uint32		gen = reader->entry.gen;
	uint32		ordinal = (reader->nleft - 1) / IVFPQ_BLOCK_POSTINGS;
	bool		again = reader->reread;

	IvfpqDirEntryRead(reader->index, reader->meta, reader->list,
					  &reader->entry);
	start_reading(reader);
	if (again && reader->entry.gen == gen)
		IvfpqCorrupted(reader->index,
					   blkno == InvalidBlockNumber ?
					   IvfpqDirectoryPage(reader->meta, reader->list) : blkno,
					   "block %u of list %u is not there", ordinal,
					   reader->list);
	reader->reread = true;
}

/*
 * With an odd number of sub-quantizers the last byte of a code has a nibble
 * to spare, which must be 0.
 */
void
IvfpqReaderCheckNibbles(const IvfpqListReader *reader, const IvfpqBlockView *view)
{
	const uint8 *last = view->codes +
	(reader->layout.code_bytes - 1) * IVFPQ_BLOCK_POSTINGS;

	for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
		if ((view->live & (1U << i)) && (last[i] & 0xF0) != 0)
			IvfpqCorrupted(reader->index, reader->next.page,
						   "code of copy %d in slot %u is out of range", i,
						   reader->next.slot);
}

/*
 * The next block of the list, newest first; false after the oldest.  The view
 * is good until the next call.  When reader->reread is set, these postings may
 * have come already.
 */
bool
IvfpqListNext(IvfpqListReader *reader, IvfpqBlockView *view)
{
	IvfpqSlotHeader header;
	char	   *body;
	bool		passed;
	int			count;

	IvfpqReaderFetchSlot(reader);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (reader->nleft == 0)
		{
			/* there may be one only where lists were rewritten meanwhile */
			if (reader->following == NULL)
				IvfpqReaderDropPrefetched(reader);
			return false;
		}
		if (reader->next.page != InvalidBlockNumber &&
			read_block(reader, &header, &body, &passed))
			break;
		handle_mismatch(reader);
	}

	count = IvfpqPostingsInBlock(reader->nleft);
	IvfpqBodyView(&reader->layout, body, count, &header, view);
	view->passed_over = reader->passing = passed;
	if (reader->meta->pq_dim % 2 != 0 && !passed)
		IvfpqReaderCheckNibbles(reader, view);
	reader->nleft -= count;
	reader->next = IvfpqOlderBlock(&header);
	return true;
}
