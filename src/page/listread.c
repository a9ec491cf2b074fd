/*
 * listread.c
 *		Reading inverted lists.
 *
 * Read protocol.  A reader copies a list's directory entry and then reads the
 * list's blocks, from the newest to the oldest, with one share lock at a time.
 * Meanwhile VACUUM may rewrite the list and free its old blocks, whose slots
 * any list may take.  A reader that finds another block in a slot, or none,
 * reads the list again from its entry.  In that case postings may be returned
 * a second time.  A second mismatch under the same gen means that the index is
 * damaged.
 *
 * Copies and optimistic reads.  IvfpqListNext copies each block while the
 * block's page is locked.  Searches read lists by IvfpqListReaderNext, which
 * returns up to four blocks of a page in place, with a pin and no lock.  The
 * search then calls IvfpqListReaderConfirm, which checks the headers again
 * under the lock.  What the search has read is valid only if the blocks have
 * not changed (README, "Optimistic Reads").  If one of the blocks has changed,
 * all of them are returned again, the first block as a copy.
 * IvfpqListReaderNext always copies if blocks have several parts, if key quals
 * filter blocks, if a list is read again, or if IvfpqListOpen has opened the
 * list.
 *
 * Looking ahead.  A core that waits for one page after another reads memory at
 * a third of the possible speed.  So while a block is scanned, another block
 * is fetched into the processor's cache.  An optimistic read fetches a block
 * that comes a few pages later, at a place that is computed from directory
 * entries: in a list that was written as a whole, the older blocks are in the
 * slots after the newest block.  If a page has moved to another buffer, or if
 * the list continues elsewhere, the wrong bytes are fetched, which does no
 * harm.  Besides, the page that is read next is pinned, unless blocks have
 * several parts.  A reader that copies blocks fetches the slots of that page
 * into the cache.  An optimistic read does so too if the addresses of later
 * pages are not known, as in the first search of a backend.
 *
 * Files.  Each block of a list names the next block, so a reader whose list is
 * in no buffer waits for its pages one after another.  Therefore, if pages
 * have to come from files, the pages of many lists are prefetched together:
 * first the pages of all newest blocks, which the directory names, and then
 * the pages that these blocks name.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"

#include "page/bufcache.h"
#include "page/injection.h"
#include "page/listread.h"
#include "page/listwrite.h"
#include "page/metapage.h"
#include "page/page.h"

/* Blocks are fetched into the processor's cache this many blocks ahead. */
#define FETCHED_BLOCKS	12

/*
 * locate_lists touches the pages of LISTS_TOGETHER lists at a time, but at
 * most PAGES_TOGETHER pages of each list.
 */
#define LISTS_TOGETHER	8
#define PAGES_TOGETHER	16

/* About this many pages of lists are prefetched from files together. */
#define MOST_PAGES		256

/*
 * Returns the ordinal of the block to read next.  Blocks are read from the
 * newest to the oldest, which has ordinal 0, and nleft > 0 postings are left.
 * All older blocks are full, so ordinal * IVFPQ_BLOCK_POSTINGS postings are
 * left after this block.
 */
static inline uint32
newest_ordinal(uint32 nleft)
{
	return (nleft - 1) / IVFPQ_BLOCK_POSTINGS;
}

/* Returns the address of the next older block of the list. */
static inline IvfpqAddress
older_block(const IvfpqSlotHeader *header)
{
	IvfpqAddress address = {.page = header->prev_page,
	.slot = header->prev_slot};

	return address;
}

/* Releases the page whose blocks are read optimistically. */
static void
drop_optimistic(IvfpqListReader *reader)
{
	if (BufferIsValid(reader->optimistic))
		ReleaseBuffer(reader->optimistic);
	reader->optimistic = InvalidBuffer;
}

/* Releases the page that will be read next. */
static void
drop_prefetched(IvfpqListReader *reader)
{
	if (BufferIsValid(reader->prefetched))
		ReleaseBuffer(reader->prefetched);
	reader->prefetched = InvalidBuffer;
	reader->fetch_at = reader->fetch_end = NULL;
}

/*
 * Pins the page that will be read after the slot with header `last`: the page
 * of the next older block or, after the oldest block, the page of the newest
 * block of the following list.  The slots from that block's slot on, as many
 * as the list has blocks left, will be fetched into the processor's cache.
 * They hold these blocks if the list was written as a whole.
 */
static void
prefetch_next(IvfpqListReader *reader, const IvfpqSlotHeader *last)
{
	const IvfpqLayout *layout = &reader->layout;
	uint32		slots = layout->slots_per_page;
	const IvfpqDirEntry *following = reader->following;
	IvfpqAddress address;
	uint32		nblocks;
	Page		page;

	if (last->list != reader->list || last->gen != reader->entry.gen ||
		layout->nparts > 1 || (last->ordinal == 0 && following == NULL))
		return;
	if (last->ordinal > 0)
	{
		address = older_block(last);
		nblocks = last->ordinal;
	}
	else
	{
		address = following->head;
		nblocks = (following->nitems + IVFPQ_BLOCK_POSTINGS - 1) /
			IVFPQ_BLOCK_POSTINGS;
	}

	drop_prefetched(reader);
	if (nblocks == 0 || address.slot >= slots ||
		!IvfpqBlockExists(reader->index, address.page))
		return;
	reader->prefetched = IvfpqBufHintRead(reader->index, address.page,
										  reader->strategy);
	page = BufferGetPage(reader->prefetched);
	reader->fetch_at = (const char *)
		IvfpqSlabSlot(page, layout, address.slot);
	reader->fetch_end = reader->fetch_at +
		Min(nblocks, slots - address.slot) * layout->slot_bytes;

	/* the reader looks at these bytes first */
	__builtin_prefetch(page);
	__builtin_prefetch(page + BLCKSZ - 1);

	/* page address.page + 1 is likely to be read after this page */
	IvfpqBufHintFetch(reader->index, address.page + 1, 0, 0);
}

/* Pins a page of the list, or returns InvalidBuffer if it does not exist. */
static Buffer
pin_page(IvfpqListReader *reader, BlockNumber blkno)
{
	Buffer		buf = reader->prefetched;

	if (BufferIsValid(buf) && BufferGetBlockNumber(buf) == blkno)
	{
		reader->prefetched = InvalidBuffer;
		return buf;
	}
	if (!IvfpqBlockExists(reader->index, blkno))
		return InvalidBuffer;
	return IvfpqBufHintRead(reader->index, blkno, reader->strategy);
}

/*
 * Touches pages of the next lists, so that the processor translates their
 * addresses before the pages are needed.  The processor has to wait for the
 * translation of each 4 kB page and of each buffer's header, but several such
 * waits at once take hardly longer than one wait.
 */
static void
locate_lists(IvfpqFetchPlace *place, Relation index, uint32 slots)
{
	for (int i = 0; i < LISTS_TOGETHER && place->located < place->end; i++)
	{
		const IvfpqDirEntry *entry = place->located++;
		uint32		npages;

		if (entry->nitems == 0 || entry->head.slot >= slots)
			continue;
		npages = (entry->head.slot + newest_ordinal(entry->nitems)) / slots + 1;
		for (uint32 p = 0; p < Min(npages, PAGES_TOGETHER); p++)
			IvfpqBufHintFetch(index, entry->head.page + p, BLCKSZ / 2, 1);
	}
}

/*
 * Advances the place by one block.  Returns the address at which the block's
 * slot most likely is in memory, where it may be prefetched but must not be
 * read.  Returns NULL if the address is not known or there are no more blocks.
 */
static const char *
next_to_fetch(IvfpqFetchPlace *place, Relation index,
			  const IvfpqLayout *layout)
{
	uint32		slots = layout->slots_per_page;
	const char *slot = NULL;

	while (place->nblocks == 0)
	{
		const IvfpqDirEntry *entry = place->entry;

		if (entry == place->end)
			return NULL;
		place->entry++;
		if (entry + LISTS_TOGETHER / 2 >= place->located)
			locate_lists(place, index, slots);
		/* a damaged entry is reported when its list is read */
		if (entry->nitems == 0 || entry->head.slot >= slots)
			continue;
		place->nblocks = newest_ordinal(entry->nitems) + 1;
		place->next = entry->head;
		place->page = IvfpqBufHintFetch(index, place->next.page, 0, 0);
	}
	if (place->page != NULL)
		slot = place->page + MAXALIGN(SizeOfPageHeaderData) +
			place->next.slot * layout->slot_bytes;
	place->nblocks--;
	if (++place->next.slot == slots && place->nblocks > 0)
	{
		/* the list probably goes on at the beginning of the next page */
		place->next.page++;
		place->next.slot = 0;
		place->page = IvfpqBufHintFetch(index, place->next.page, 0, 0);
	}
	return slot;
}

/* Prepares a reader of lists, with memory from the current context. */
void
IvfpqListReaderInit(IvfpqListReader *reader, Relation index,
					const IvfpqMetaData *meta, const IvfpqLayout *layout,
					BufferAccessStrategy strategy)
{
	memset(reader, 0, sizeof(*reader));
	reader->index = index;
	reader->meta = meta;
	reader->strategy = strategy;
	if (layout != NULL)
		reader->layout = *layout;
	else if (!IvfpqLayoutGet(&reader->layout, meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");
	reader->page = palloc(BLCKSZ);
	if (reader->layout.nparts > 1)
		reader->body = palloc(reader->layout.nparts * reader->layout.part_bytes);
}

/* Frees the reader's memory, and releases its pages. */
void
IvfpqListReaderFree(IvfpqListReader *reader)
{
	drop_optimistic(reader);
	drop_prefetched(reader);
	pfree(reader->page);
	if (reader->body)
		pfree(reader->body);
}

/* Goes to the list's newest block, as reader->entry gives it. */
static void
start_reading(IvfpqListReader *reader)
{
	reader->next = reader->entry.head;
	reader->nleft = reader->entry.nitems;
	reader->cached = InvalidBlockNumber;	/* copy may be older than entry */
	reader->copies_next = false;
	drop_optimistic(reader);
}

/*
 * Opens a list for IvfpqListNext, without looking ahead.  The list need not be
 * read to its end.
 */
void
IvfpqListOpen(IvfpqListReader *reader, uint32 list)
{
	reader->list = list;
	reader->reread = false;
	IvfpqDirEntryRead(reader->index, reader->meta, list, &reader->entry);
	reader->following = NULL;
	reader->looks_ahead = false;
	start_reading(reader);
}

/*
 * Copies a slot of a locked page to the same place of reader->page.  Then
 * follows the list, and copies its older blocks as well, as long as they are
 * on this page.  If the heads of a block's keys show that the caller needs
 * none of its postings, copies only the slot's header and the heads.  Returns
 * the header of the last slot that was copied.
 */
static const IvfpqSlotHeader *
copy_slots(IvfpqListReader *reader, Page page, BlockNumber blkno, uint32 slot)
{
	const IvfpqLayout *layout = &reader->layout;
	int			heads = (int) sizeof(IvfpqSlotHeader) + layout->keys_at;

	reader->copied = reader->passed = 0;
	for (;;)
	{
		const IvfpqSlotHeader *from = IvfpqSlabSlot(page, layout, slot);
		IvfpqSlotHeader *header = IvfpqSlabSlot((Page) reader->page, layout,
												slot);

		reader->copied |= 1U << slot;
		if (reader->wants == NULL || layout->keys.nkeys == 0 ||
			from->part != 0 ||
			reader->wants(reader->wants_arg, from, (const char *) from + heads))
			memcpy(header, from, layout->slot_bytes);
		else
		{
			memcpy(header, from, sizeof(IvfpqSlotHeader));
			memcpy((char *) header + heads, (const char *) from + heads,
				   layout->keys.nkeys * sizeof(IvfpqKeyHead));
			reader->passed |= 1U << slot;
		}
		if (header->list != reader->list ||
			header->gen != reader->entry.gen || header->ordinal == 0 ||
			header->prev_page != blkno ||
			header->prev_slot >= layout->slots_per_page ||
			(reader->copied & 1U << header->prev_slot) != 0)
			return header;
		slot = header->prev_slot;
	}
}

/*
 * Returns a copy of a slot, or NULL if the slot does not hold this part of the
 * block that will be read next.  Copies the slot to reader->page, with other
 * blocks of its page, unless they were copied before.
 */
static IvfpqSlotHeader *
copy_part(IvfpqListReader *reader, BlockNumber blkno, uint32 slot, int part)
{
	IvfpqSlotHeader *header;

	if (slot >= (uint32) reader->layout.slots_per_page)
		return NULL;
	if (reader->cached != blkno || (reader->copied >> slot & 1) == 0)
	{
		const IvfpqSlotHeader *last = NULL;
		Buffer		buf;

		reader->cached = InvalidBlockNumber;
		buf = pin_page(reader, blkno);
		if (!BufferIsValid(buf))
			return NULL;
		LockBuffer(buf, BUFFER_LOCK_SHARE);
		if (IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_SLAB))
			last = copy_slots(reader, BufferGetPage(buf), blkno, slot);
		UnlockReleaseBuffer(buf);
		if (last == NULL)
			return NULL;
		reader->cached = blkno;
		if (reader->looks_ahead)
			prefetch_next(reader, last);
	}
	header = IvfpqSlabSlot((Page) reader->page, &reader->layout, slot);
	if (header->list != reader->list || header->gen != reader->entry.gen ||
		header->ordinal != newest_ordinal(reader->nleft) ||
		header->part != part)
		return NULL;
	return header;
}

/*
 * Copies the block at reader->next.  Returns false if the block is not there.
 * Sets *body to the block's body, and *header to a copy of its header, because
 * gathering parts reuses the memory of reader->page.  If the caller needs no
 * posting of the block, sets *passed to true.  Then the body has only the
 * heads of keys, and the other part of the block is not read.
 */
static bool
copy_block(IvfpqListReader *reader, IvfpqSlotHeader *header, char **body,
		   bool *passed)
{
	IvfpqSlotHeader *slot;
	int			part_bytes = reader->layout.part_bytes;

	slot = copy_part(reader, reader->next.page, reader->next.slot, 0);
	if (slot == NULL)
		return false;
	*header = *slot;
	*body = (char *) (slot + 1);
	*passed = (reader->passed >> reader->next.slot & 1) != 0;
	if (reader->layout.nparts == 1 || *passed)
		return true;

	memcpy(reader->body, *body, part_bytes);
	for (int p = 1; p < reader->layout.nparts; p++)
	{
		slot = copy_part(reader, slot->next_part, 0, p);
		if (slot == NULL)
			return false;
		memcpy(reader->body + p * part_bytes, slot + 1, part_bytes);
	}
	*body = reader->body;
	return true;
}

/*
 * Raises an error unless the spare nibbles of codes are 0.  If the number of
 * sub-quantizers is odd, the last byte of each code has a spare nibble.
 */
static void
check_nibbles(const IvfpqListReader *reader, const IvfpqBlockView *view)
{
	const uint8 *last = view->codes +
	(reader->layout.code_bytes - 1) * IVFPQ_BLOCK_POSTINGS;

	for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
		if ((view->live & (1U << i)) && (last[i] & 0xF0) != 0)
			IvfpqCorrupted(reader->index, reader->next.page,
						   "code of posting %d in slot %u is out of range", i,
						   reader->next.slot);
}

/*
 * Sets *view to a copy of the next block of the list, from the newest to the
 * oldest.  Returns false after the oldest block.  The view is valid until the
 * next call.  If reader->reread is set, postings of the block may have been
 * returned before.
 */
bool
IvfpqListNext(IvfpqListReader *reader, IvfpqBlockView *view)
{
	const IvfpqLayout *layout = &reader->layout;
	IvfpqSlotHeader header;
	char	   *body;
	bool		passed;

	reader->noptimistic = 0;
	reader->copies_next = false;

	/* fetch a slot of the page that is read next into the cache */
	if (reader->fetch_at != NULL)
	{
		const char *slot = reader->fetch_at;
		const char *end = Min(slot + layout->slot_bytes, reader->fetch_end);

		if (!reader->passing)
			IvfpqFetch(slot, end);
		else if (end - slot >= layout->codes)
		{
			/*
			 * the caller did not need the last block, so probably only the
			 * header and the keys of this block will be read
			 */
			IvfpqFetch(slot, slot + sizeof(IvfpqSlotHeader));
			IvfpqFetch(slot + sizeof(IvfpqSlotHeader) + layout->keys_at,
					   slot + sizeof(IvfpqSlotHeader) + layout->codes);
		}
		reader->fetch_at = end;
	}

	for (;;)
	{
		BlockNumber blkno = reader->next.page;
		uint32		gen = reader->entry.gen;
		uint32		ordinal;

		CHECK_FOR_INTERRUPTS();
		if (reader->nleft == 0)
		{
			/* a page is still pinned only if lists were rewritten meanwhile */
			if (reader->following == NULL)
				drop_prefetched(reader);
			return false;
		}
		if (blkno != InvalidBlockNumber &&
			copy_block(reader, &header, &body, &passed))
			break;

		/*
		 * A block is not where it should be, so read the list again.  If this
		 * happens for the second time under the same gen, it is damage.
		 */
		ordinal = newest_ordinal(reader->nleft);
		IvfpqDirEntryRead(reader->index, reader->meta, reader->list,
						  &reader->entry);
		start_reading(reader);
		if (reader->reread && reader->entry.gen == gen)
			IvfpqCorrupted(reader->index,
						   blkno == InvalidBlockNumber ?
						   IvfpqDirectoryPage(reader->meta, reader->list) :
						   blkno,
						   "block %u of list %u is missing", ordinal,
						   reader->list);
		reader->reread = true;
	}

	IvfpqBodyView(layout, body,
				  reader->nleft - header.ordinal * IVFPQ_BLOCK_POSTINGS,
				  &header, view);
	view->passed_over = reader->passing = passed;
	if (reader->meta->pq_dim % 2 != 0 && !passed)
		check_nibbles(reader, view);
	reader->nleft = header.ordinal * IVFPQ_BLOCK_POSTINGS;
	reader->next = older_block(&header);
	return true;
}

/*
 * Sets views [IVFPQ_OPTIMISTIC_BLOCKS] to the next blocks of the list, from
 * the newest to the oldest, and returns their number, or 0 after the oldest
 * block.  The views are valid until the next call.
 *
 * If reader->noptimistic is 0 afterwards, the only view is a copy, as from
 * IvfpqListNext, and need not be confirmed.
 *
 * If reader->noptimistic is greater than 0, the views show the blocks in
 * place, as many as are on one page, and no lock is held.  The caller has to
 * call IvfpqListReaderConfirm next.  What the caller has read of the blocks is
 * valid only if IvfpqListReaderConfirm returns true.
 */
int
IvfpqListReaderNext(IvfpqListReader *reader, IvfpqBlockView *views)
{
	const IvfpqLayout *layout = &reader->layout;
	IvfpqAddress next = reader->next;
	uint32		nleft = reader->nleft;
	int			n = 0;
	bool		more = true;
	Page		page;

	/* IvfpqListNext also deals with a wrong address, and with the list's end */
	if (!reader->looks_ahead || reader->reread || reader->copies_next ||
		reader->wants != NULL || layout->nparts > 1 ||
		nleft == 0 || next.slot >= (uint32) layout->slots_per_page)
		return IvfpqListNext(reader, views);
	CHECK_FOR_INTERRUPTS();
	if (!BufferIsValid(reader->optimistic))
	{
		reader->optimistic = pin_page(reader, next.page);
		if (!BufferIsValid(reader->optimistic))
			return IvfpqListNext(reader, views);

		/*
		 * On a standby the page may be all zero, because redo is restoring it
		 * from a full-page image under the page's lock.  Once we have got the
		 * lock, redo has finished.  The page cannot become all zero again,
		 * because a pinned page stays in its buffer.
		 */
		if (RecoveryInProgress())
		{
			LockBuffer(reader->optimistic, BUFFER_LOCK_SHARE);
			LockBuffer(reader->optimistic, BUFFER_LOCK_UNLOCK);
		}
	}

	/*
	 * Until IvfpqListReaderConfirm, other processes may write anything to the
	 * blocks.  So make all decisions from copies of the headers, because an
	 * address must not change between being checked and being used.
	 */
	page = BufferGetPage(reader->optimistic);
	while (more && n < IVFPQ_OPTIMISTIC_BLOCKS)
	{
		IvfpqSlotHeader *slot = IvfpqSlabSlot(page, layout, next.slot);
		IvfpqSlotHeader *header = &reader->headers[n];
		uint32		ordinal = newest_ordinal(nleft);

		*header = *slot;
		pg_compiler_barrier();
		if (header->list != reader->list ||
			header->gen != reader->entry.gen ||
			header->ordinal != ordinal || header->part != 0)
			break;
		IvfpqBodyView(layout, (const char *) (slot + 1),
					  nleft - ordinal * IVFPQ_BLOCK_POSTINGS, header,
					  &views[n]);
		reader->slots[n++] = next.slot;
		nleft = ordinal * IVFPQ_BLOCK_POSTINGS;
		more = ordinal > 0 && header->prev_page == next.page &&
			header->prev_slot < (uint32) layout->slots_per_page;
		next = older_block(header);
	}
	if (n == 0)
		drop_optimistic(reader);
	else if (!more)
		prefetch_next(reader, &reader->headers[n - 1]);

	/*
	 * For each of these blocks, fetch a later block into the processor's
	 * cache, but only the bytes before its keys and codes.  The scan fetches
	 * the codes while it works.
	 */
	for (int i = 0; i < n; i++)
	{
		const char *ahead = next_to_fetch(&reader->fetching, reader->index,
										  layout);

		if (ahead == NULL && reader->fetch_at < reader->fetch_end)
		{
			ahead = reader->fetch_at;
			reader->fetch_at += layout->slot_bytes;
		}
		if (ahead == NULL)
			continue;			/* views[i].ahead is NULL */
		IvfpqFetch(ahead, ahead + sizeof(IvfpqSlotHeader) + layout->keys_at);
		views[i].ahead = (const uint8 *) ahead + sizeof(IvfpqSlotHeader) +
			layout->codes;
	}
	reader->noptimistic = n;
	IvfpqInjectionPoint("list: tried");
	return n > 0 ? n : IvfpqListNext(reader, views);
}

/*
 * Returns whether the blocks that IvfpqListReaderNext returned last did not
 * change while they were read; always true for a copy.  If true, the data read
 * is valid, and IvfpqListReaderNext continues with the next blocks.  If false,
 * the data read is invalid, and IvfpqListReaderNext returns the blocks again,
 * beginning with a copy of the first block.
 */
bool
IvfpqListReaderConfirm(IvfpqListReader *reader, const IvfpqBlockView *views)
{
	BlockNumber blkno = reader->next.page;
	Page		page;
	bool		valid;

	if (reader->noptimistic == 0)
		return true;
	page = BufferGetPage(reader->optimistic);
	pg_read_barrier();			/* the blocks are read before this */
	LockBuffer(reader->optimistic, BUFFER_LOCK_SHARE);
	valid = IvfpqPageIs(page, IVFPQ_KIND_SLAB);

	/*
	 * Each block must still be there, with the same postings.  `secondary` is
	 * not compared, because a bit may have been set for a posting that the
	 * entry does not count.
	 */
	for (int i = 0; i < reader->noptimistic && valid; i++)
	{
		const IvfpqSlotHeader *header = &reader->headers[i];
		const IvfpqSlotHeader *now = IvfpqSlabSlot(page, &reader->layout,
												   reader->slots[i]);

		valid = header->list == now->list && header->gen == now->gen &&
			header->ordinal == now->ordinal && header->part == now->part &&
			header->dead == now->dead &&
			header->prev_page == now->prev_page &&
			header->prev_slot == now->prev_slot;
	}
	for (int i = 0; i < reader->noptimistic && valid; i++)
	{
		if (reader->meta->pq_dim % 2 != 0)
			check_nibbles(reader, &views[i]);
		reader->nleft = reader->headers[i].ordinal * IVFPQ_BLOCK_POSTINGS;
		reader->next = older_block(&reader->headers[i]);
	}
	LockBuffer(reader->optimistic, BUFFER_LOCK_UNLOCK);

	reader->copies_next = !valid;
	if (!valid || reader->nleft == 0 || reader->next.page != blkno)
		drop_optimistic(reader);
	return valid;
}

/*
 * Returns an upper limit of the number of pages of a list that was written as
 * a whole, but at most MOST_PAGES.
 */
static int
list_pages(const IvfpqLayout *layout, const IvfpqDirEntry *entry)
{
	uint32		nblocks = entry->nitems / IVFPQ_BLOCK_POSTINGS + 1;

	return (int) Min(nblocks / layout->slots_per_page + 2, MOST_PAGES);
}

/*
 * Follows a list from `slot` of a locked page, as long as its blocks are on
 * this page.  Returns the header of the oldest of these blocks, or NULL if the
 * list is not there, because it was rewritten.
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
 * Sets `pages` to the pages on which a list continues, and returns their
 * number.  `blkno` is the list's first page, and `last` is the header of the
 * list's oldest block on that page.  The first page is that of the next older
 * block.  If this is page blkno + 1, the list was probably written as a whole.
 * In this case adds the following pages that the list then occupies, up to
 * `most` pages in all.
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

/*
 * Reads the first page of each list i of the reader, first <= i < end, into
 * shared buffers.  Sets `older` to the pages on which these lists continue,
 * and returns the number of these pages.
 */
static int
read_first_pages(const IvfpqListReader *reader, int first, int end,
				 uint64 *older)
{
	const IvfpqLayout *layout = &reader->layout;
	uint64	   *pages = palloc((end - first) * sizeof(uint64));
	int			npages = 0;
	int			nolder = 0;
	IvfpqPrefetch prefetch;

	for (int i = first; i < end; i++)
		if (reader->entries[i].nitems > 0)
			pages[npages++] = (uint64) reader->entries[i].head.page << 32 |
				(uint32) i;
	IvfpqSortNumbers(pages, npages);
	IvfpqPrefetchBegin(&prefetch, reader->index, pages, npages, 32);
	for (int j = 0; j < npages; j++)
	{
		BlockNumber blkno = (BlockNumber) (pages[j] >> 32);
		uint32		i = (uint32) pages[j];
		const IvfpqDirEntry *entry = &reader->entries[i];
		const IvfpqSlotHeader *last;
		Buffer		buf;

		CHECK_FOR_INTERRUPTS();
		if (!IvfpqBlockExists(reader->index, blkno))
			break;
		IvfpqPrefetchTo(&prefetch, blkno);
		buf = ReadBuffer(reader->index, blkno);
		LockBuffer(buf, BUFFER_LOCK_SHARE);
		last = oldest_here(layout, BufferGetPage(buf), blkno,
						   entry->head.slot, (uint32) reader->lists[i],
						   entry->gen);
		if (last != NULL && layout->nparts == 1)
			nolder += note_older(layout, blkno, last,
								 list_pages(layout, entry), older + nolder);
		UnlockReleaseBuffer(buf);
	}
	IvfpqPrefetchEnd(&prefetch);
	pfree(pages);
	return nolder;
}

/*
 * Reads the pages of at least one of the reader's lists, from list `first` on,
 * into shared buffers, about MOST_PAGES pages in all.  Returns the first list
 * whose pages were not read.  The contents of pages are only hints here,
 * because they may change before the lists are read.
 */
static int
prefetch_lists(const IvfpqListReader *reader, int first)
{
	Relation	index = reader->index;
	int			end = first;
	int			npages = 0;
	int			nolder;
	uint64	   *older;
	IvfpqPrefetch prefetch;

	do
		npages += list_pages(&reader->layout, &reader->entries[end++]);
	while (end < reader->nlists && npages < MOST_PAGES);
	older = palloc(npages * sizeof(uint64));
	nolder = read_first_pages(reader, first, end, older);

	/* read the other pages into shared buffers, without using them */
	IvfpqSortNumbers(older, nolder);
	IvfpqPrefetchBegin(&prefetch, index, older, nolder, 32);
	for (int i = 0; i < nolder; i++)
	{
		BlockNumber blkno = (BlockNumber) (older[i] >> 32);

		CHECK_FOR_INTERRUPTS();
		if (!IvfpqBlockExists(index, blkno))
			break;
		IvfpqPrefetchTo(&prefetch, blkno);
		ReleaseBuffer(ReadBuffer(index, blkno));
	}
	IvfpqPrefetchEnd(&prefetch);
	pfree(older);
	return end;
}

/*
 * Prepares to read lists [n], and copies their directory entries.  The caller
 * opens each list in turn and reads it to its end, and keeps the array until
 * IvfpqListReaderStop.  Memory comes from the current memory context.
 */
void
IvfpqListReaderStart(IvfpqListReader *reader, const uint64 *lists, int n)
{
	reader->had_read = IvfpqCountReads();
	reader->lists = lists;
	reader->nlists = n;
	reader->nprefetched = 0;
	reader->entries = palloc_extended(Max(n, 1) * sizeof(IvfpqDirEntry),
									  MCXT_ALLOC_HUGE);
	IvfpqDirEntriesRead(reader->index, reader->meta, lists, n,
						reader->entries);

	memset(&reader->fetching, 0, sizeof(reader->fetching));
	if (reader->wants != NULL || reader->layout.nparts > 1)
		return;					/* no block is read optimistically */
	reader->fetching.entry = reader->entries;
	reader->fetching.end = reader->entries + n;
	reader->fetching.located = reader->entries;
	for (int i = 0; i < FETCHED_BLOCKS; i++)
	{
		const char *slot = next_to_fetch(&reader->fetching, reader->index,
										 &reader->layout);

		if (slot != NULL)
			IvfpqFetch(slot, slot + reader->layout.slot_bytes);
	}
}

/*
 * Opens the i-th list for IvfpqListReaderNext.  When the list has been read to
 * its end, a page of the next list, if there is one, remains pinned.
 */
void
IvfpqListReaderOpen(IvfpqListReader *reader, int i)
{
	/* prefetch pages of further lists, if pages have come from files lately */
	if (IvfpqPrefetchNotice(reader->index, &reader->had_read) &&
		i >= reader->nprefetched)
		reader->nprefetched = prefetch_lists(reader, i);

	reader->list = (uint32) reader->lists[i];
	reader->reread = false;
	reader->entry = reader->entries[i];
	reader->following = i + 1 < reader->nlists ? &reader->entries[i + 1] : NULL;
	reader->looks_ahead = true;
	if (reader->following != NULL)
		IvfpqBufHintFetch(reader->index, reader->following->head.page, 0, 0);
	start_reading(reader);
}

/* Ends the reading of the lists, all of which were read to their ends. */
void
IvfpqListReaderStop(IvfpqListReader *reader)
{
	pfree(reader->entries);
	reader->entries = NULL;
	reader->following = NULL;
	memset(&reader->fetching, 0, sizeof(reader->fetching));
}
