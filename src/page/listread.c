/*
 * listread.c
 *		Reading inverted lists.
 *
 * Read protocol.  A reader copies a list's directory entry and then reads its
 * blocks, from the newest to the oldest, one share lock at a time.  VACUUM may
 * rewrite the list meanwhile and hand its old blocks to any list.  The reader
 * sees that as a slot that is not the block it looks for, and reads the list
 * again from its entry; then postings may come a second time.  A second
 * mismatch under an unchanged gen is damage.
 *
 * Copies and optimistic reads.  IvfpqListNext copies each block under its
 * page's lock.  Searches read lists by IvfpqListReaderNext, which returns up
 * to four blocks of a page where they lie, with a pin and no lock.  Nothing
 * that was read there counts before a second look, under the lock, has shown
 * that the blocks still are what they were (README, "Optimistic Reads"); a
 * block that is not comes again as a copy.  IvfpqListReaderNext copies from
 * the start where blocks have several parts, where key quals filter blocks,
 * where a list is read again, and where IvfpqListOpen has opened it.
 *
 * Looking ahead.  A core that waits for one page after another gets a third of
 * what memory gives.  So while a block is scanned another one is fetched into
 * the processor's cache.  An optimistic read fetches a block that comes a few
 * pages later, by what directory entries say: in a list written at once the
 * older blocks are in the slots behind the newest.  If a page is not where it
 * was the last time, or the list goes on elsewhere, the wrong bytes are
 * fetched, and nothing else happens.  The page that is read next is pinned as
 * well, but for blocks of several parts.  Its slots are what copies fetch, and
 * what an optimistic read fetches if nothing is known of later pages, as in
 * the first search of a backend.
 *
 * Files.  Each block of a list names the next one, so a reader of a list from
 * files waits for its pages one after another.  If pages have to come from
 * files, those of many lists are therefore prefetched together: first the
 * pages of all their newest blocks, which the directory names, then those that
 * these name.
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

/* Blocks that are fetched into the cache before they are scanned. */
#define FETCHED_BLOCKS	12

/* Lists whose pages' addresses are looked up together, and pages of each. */
#define LISTS_TOGETHER	8
#define PAGES_TOGETHER	16

/* Pages of lists that are prefetched from files together. */
#define MOST_PAGES		256

/* Returns the bytes of a slot before its keys. */
static inline int
before_keys(const IvfpqLayout *layout)
{
	return (int) sizeof(IvfpqSlotHeader) + layout->keys_at;
}

/*
 * Returns the number, from 0 for the oldest, of the newest of the blocks that
 * have the nleft > 0 oldest postings.
 */
static inline uint32
newest_ordinal(uint32 nleft)
{
	return (nleft - 1) / IVFPQ_BLOCK_POSTINGS;
}

/* Returns the number of postings in that block. */
static inline int
newest_postings(uint32 nleft)
{
	return (nleft - 1) % IVFPQ_BLOCK_POSTINGS + 1;
}

/* Returns the address of the next older block. */
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

/* Releases the page that is read next. */
static void
drop_prefetched(IvfpqListReader *reader)
{
	if (BufferIsValid(reader->prefetched))
		ReleaseBuffer(reader->prefetched);
	reader->prefetched = InvalidBuffer;
	reader->fetch_at = reader->fetch_end = NULL;
}

/*
 * Pins the page that is read next: nblocks blocks, from the slot at the
 * address on.  A list that was written at once has its older blocks in the
 * slots behind.
 */
static void
prefetch_page(IvfpqListReader *reader, IvfpqAddress address, uint32 nblocks)
{
	const IvfpqLayout *layout = &reader->layout;
	uint32		slots = layout->slots_per_page;
	Page		page;

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

	/* these are looked at first */
	__builtin_prefetch(page);
	__builtin_prefetch(page + BLCKSZ - 1);

	/* likely the next but one */
	IvfpqBufHintFetch(reader->index, address.page + 1, 0, 0);
}

/*
 * Pins the page that is read after the slots of the current one: `last` is the
 * header of the last of these.
 */
static void
prefetch_next(IvfpqListReader *reader, const IvfpqSlotHeader *last)
{
	const IvfpqDirEntry *following = reader->following;

	if (last->list != reader->list || last->gen != reader->entry.gen ||
		reader->layout.nparts > 1)
		return;
	if (last->ordinal > 0)
		prefetch_page(reader, older_block(last), last->ordinal);
	else if (following != NULL)
		prefetch_page(reader, following->head,
					  (following->nitems + IVFPQ_BLOCK_POSTINGS - 1) /
					  IVFPQ_BLOCK_POSTINGS);
}

/* Pins a page of the list; returns InvalidBuffer if there is no such page. */
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

/* Fetches a slot of the page that is read next, for a copy. */
static void
fetch_slot(IvfpqListReader *reader)
{
	const char *end;

	if (reader->fetch_at == NULL)
		return;
	end = Min(reader->fetch_at + reader->layout.slot_bytes,
			  reader->fetch_end);
	if (!reader->passing)
		IvfpqFetch(reader->fetch_at, end);
	else if (end - reader->fetch_at >= reader->layout.codes)
	{
		/* adjacent blocks mostly are all read or all passed over */
		IvfpqFetch(reader->fetch_at,
				   reader->fetch_at + sizeof(IvfpqSlotHeader));
		IvfpqFetch(reader->fetch_at + before_keys(&reader->layout),
				   reader->fetch_at + sizeof(IvfpqSlotHeader) +
				   reader->layout.codes);
	}
	reader->fetch_at = end;
}

/* Goes to a block on a page that the place was not on before. */
static void
go_to(IvfpqFetchPlace *place, Relation index, IvfpqAddress next)
{
	place->next = next;
	place->page = IvfpqBufHintFetch(index, next.page, 0, 0);
}

/*
 * Touches pages of the next lists, so that the processor looks up where these
 * are in memory.  It waits for each page's address, of a page of 4 kB as of a
 * buffer's header, and for several at once hardly longer.
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
 * Advances the place by a block.  Returns where in memory the block's slot
 * most likely is, to be fetched and never to be read; NULL if that is not
 * known, or there is no block.
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
		/* damage is for the list's reader to report */
		if (entry->nitems == 0 || entry->head.slot >= slots)
			continue;
		place->nblocks = newest_ordinal(entry->nitems) + 1;
		go_to(place, index, entry->head);
	}
	if (place->page != NULL)
		slot = place->page + MAXALIGN(SizeOfPageHeaderData) +
			place->next.slot * layout->slot_bytes;
	place->nblocks--;
	if (++place->next.slot == slots && place->nblocks > 0)
	{
		IvfpqAddress behind = {.page = place->next.page + 1};

		go_to(place, index, behind);
	}
	return slot;
}

/*
 * Fetches what comes before the codes of a later block, for an optimistic
 * read.  Returns where the codes are, for the scan to fetch them meanwhile;
 * NULL if that is not known.
 */
static const uint8 *
fetch_ahead(IvfpqListReader *reader)
{
	const IvfpqLayout *layout = &reader->layout;
	const char *slot = next_to_fetch(&reader->fetching, reader->index, layout);

	if (slot == NULL && reader->fetch_at < reader->fetch_end)
	{
		slot = reader->fetch_at;
		reader->fetch_at += layout->slot_bytes;
	}
	if (slot == NULL)
		return NULL;
	IvfpqFetch(slot, slot + before_keys(layout));
	return (const uint8 *) slot + sizeof(IvfpqSlotHeader) + layout->codes;
}

/* Prepares to read lists; memory from the current context. */
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

/* Frees the memory, and releases pages. */
void
IvfpqListReaderFree(IvfpqListReader *reader)
{
	drop_optimistic(reader);
	drop_prefetched(reader);
	pfree(reader->page);
	if (reader->body)
		pfree(reader->body);
}

/* Goes to the newest block, by reader->entry. */
static void
start_reading(IvfpqListReader *reader)
{
	reader->next = reader->entry.head;
	reader->nleft = reader->entry.nitems;
	reader->cached = InvalidBlockNumber;	/* may be older than the entry */
	reader->copies_next = false;
	drop_optimistic(reader);
}

/*
 * Opens a list, which need not be read to its end, for IvfpqListNext.  Looks
 * ahead at nothing.
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
 * Copies a slot.  If the heads of its keys say that none of its postings is
 * needed, copies only what comes before the abbreviated keys and codes.
 */
static void
copy_slot(IvfpqListReader *reader, const char *from, char *to, uint32 slot)
{
	const IvfpqLayout *layout = &reader->layout;
	int			heads = before_keys(layout);

	reader->copied |= 1U << slot;
	if (reader->wants == NULL || layout->keys.nkeys == 0 ||
		((const IvfpqSlotHeader *) from)->part != 0 ||
		reader->wants(reader->wants_arg, (const IvfpqSlotHeader *) from,
					  from + heads))
		memcpy(to, from, layout->slot_bytes);
	else
	{
		memcpy(to, from, sizeof(IvfpqSlotHeader));
		memcpy(to + heads, from + heads, IvfpqKeyHeadsBytes(&layout->keys));
		reader->passed |= 1U << slot;
	}
}

/*
 * Copies a slot of a locked page, and those on the same page in which the list
 * goes on, to the same places of the reader's page.  Returns the header of the
 * last one.
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
		copy_slot(reader, (const char *) IvfpqSlabSlot(page, layout, slot),
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

/*
 * Makes sure that reader->page has a copy of a slot.  Returns false if there
 * is no such small-list page.
 */
static bool
copy_page(IvfpqListReader *reader, BlockNumber blkno, uint32 slot)
{
	const IvfpqSlotHeader *last = NULL;
	Buffer		buf;

	if (reader->cached == blkno && (reader->copied >> slot & 1) != 0)
		return true;
	reader->cached = InvalidBlockNumber;
	buf = pin_page(reader, blkno);
	if (!BufferIsValid(buf))
		return false;
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	if (IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_SLAB))
		last = copy_slots(reader, BufferGetPage(buf), blkno, slot);
	UnlockReleaseBuffer(buf);
	if (last == NULL)
		return false;
	reader->cached = blkno;
	if (reader->looks_ahead)
		prefetch_next(reader, last);
	return true;
}

/*
 * Returns the copy of a slot, or NULL if it does not hold this part of the
 * block that comes next.
 */
static IvfpqSlotHeader *
copy_part(IvfpqListReader *reader, BlockNumber blkno, uint32 slot, int part)
{
	IvfpqSlotHeader *header;

	if (slot >= (uint32) reader->layout.slots_per_page ||
		!copy_page(reader, blkno, slot))
		return NULL;
	header = IvfpqSlabSlot((Page) reader->page, &reader->layout, slot);
	if (header->list != reader->list || header->gen != reader->entry.gen ||
		header->ordinal != newest_ordinal(reader->nleft) ||
		header->part != part)
		return NULL;
	return header;
}

/*
 * Copies the block at reader->next.  Returns false if something else is there.
 * Sets *body to its body and *header to its header, a copy because gathering
 * parts reuses the page memory.  If the block is passed over (*passed), the
 * body has only heads of keys, and no other part is looked at.
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
	*body = IvfpqSlabBody(slot);
	*passed = (reader->passed >> reader->next.slot & 1) != 0;
	if (reader->layout.nparts == 1 || *passed)
		return true;

	memcpy(reader->body, *body, part_bytes);
	for (int p = 1; p < reader->layout.nparts; p++)
	{
		slot = copy_part(reader, slot->next_part, 0, p);
		if (slot == NULL)
			return false;
		memcpy(reader->body + p * part_bytes, IvfpqSlabBody(slot), part_bytes);
	}
	*body = reader->body;
	return true;
}

/*
 * Starts to read the list again, because a block was not where it should be.
 * Raises an error if that happens a second time under the same gen.
 */
static void
handle_mismatch(IvfpqListReader *reader)
{
	BlockNumber blkno = reader->next.page;
	uint32		gen = reader->entry.gen;
	uint32		ordinal = newest_ordinal(reader->nleft);
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
 * Raises an error unless the spare nibbles of codes are 0: with an odd number
 * of sub-quantizers the last byte of a code has one.
 */
static void
check_nibbles(const IvfpqListReader *reader, const IvfpqBlockView *view)
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
 * Returns a copy of the next block of the list, newest first; false after the
 * oldest.  The view is valid until the next call.  If reader->reread is set,
 * its postings may have come before.
 */
bool
IvfpqListNext(IvfpqListReader *reader, IvfpqBlockView *view)
{
	IvfpqSlotHeader header;
	char	   *body;
	bool		passed;
	int			count;

	reader->noptimistic = 0;
	reader->copies_next = false;
	fetch_slot(reader);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (reader->nleft == 0)
		{
			/* there may be one only if lists were rewritten meanwhile */
			if (reader->following == NULL)
				drop_prefetched(reader);
			return false;
		}
		if (reader->next.page != InvalidBlockNumber &&
			copy_block(reader, &header, &body, &passed))
			break;
		handle_mismatch(reader);
	}

	count = newest_postings(reader->nleft);
	IvfpqBodyView(&reader->layout, body, count, &header, view);
	view->passed_over = reader->passing = passed;
	if (reader->meta->pq_dim % 2 != 0 && !passed)
		check_nibbles(reader, view);
	reader->nleft -= count;
	reader->next = older_block(&header);
	return true;
}

/* Returns whether blocks are read optimistically, as long as these stay. */
static bool
is_optimistic(const IvfpqListReader *reader)
{
	return reader->wants == NULL && reader->layout.nparts == 1;
}

/*
 * Reads the next blocks of the list optimistically, newest first, as far as
 * they are on one page.  Returns their number; 0 if the next block has to be
 * copied.  Anything may be written to the blocks until IvfpqListReaderConfirm.
 *
 * Headers are copied, and all that follows is taken from the copies: the place
 * to look at next must not change between being checked and being used.
 */
static int
next_optimistic(IvfpqListReader *reader, IvfpqBlockView *views)
{
	const IvfpqLayout *layout = &reader->layout;
	IvfpqAddress next = reader->next;
	uint32		nleft = reader->nleft;
	int			n = 0;
	bool		more = true;
	Page		page;

	if (nleft == 0 || next.slot >= (uint32) layout->slots_per_page)
		return 0;
	CHECK_FOR_INTERRUPTS();
	if (!BufferIsValid(reader->optimistic))
	{
		reader->optimistic = pin_page(reader, next.page);
		if (!BufferIsValid(reader->optimistic))
			return 0;

		/*
		 * On a standby the page may be zeros into which redo restores a page
		 * image under its lock.  Once we have had the lock that is over,
		 * since a page that is pinned is not read again.
		 */
		if (RecoveryInProgress())
		{
			LockBuffer(reader->optimistic, BUFFER_LOCK_SHARE);
			LockBuffer(reader->optimistic, BUFFER_LOCK_UNLOCK);
		}
	}
	page = BufferGetPage(reader->optimistic);
	while (more && n < IVFPQ_OPTIMISTIC_BLOCKS)
	{
		IvfpqSlotHeader *slot = IvfpqSlabSlot(page, layout, next.slot);
		IvfpqSlotHeader *header = &reader->headers[n];
		int			count = newest_postings(nleft);

		*header = *slot;
		pg_compiler_barrier();
		if (header->list != reader->list ||
			header->gen != reader->entry.gen ||
			header->ordinal != newest_ordinal(nleft) || header->part != 0)
			break;
		IvfpqBodyView(layout, IvfpqSlabBody(slot), count, header, &views[n]);
		reader->slots[n++] = next.slot;
		nleft -= count;
		more = header->ordinal > 0 && header->prev_page == next.page &&
			header->prev_slot < (uint32) layout->slots_per_page;
		next = older_block(header);
	}
	if (n == 0)
		drop_optimistic(reader);
	else if (!more)
		prefetch_next(reader, &reader->headers[n - 1]);
	for (int i = 0; i < n; i++)
		views[i].ahead = fetch_ahead(reader);
	reader->noptimistic = n;
	IvfpqInjectionPoint("list: tried");
	return n;
}

/*
 * Sets views [IVFPQ_OPTIMISTIC_BLOCKS] to the next blocks of the list, newest
 * first, and returns their number; 0 after the oldest.  They are blocks where
 * they lie or, if reader->noptimistic is 0, one copy; if reader->reread is
 * set, its postings may have come before.  The views are valid until the next
 * call.
 *
 * Nothing that was read of blocks where they lie counts until
 * IvfpqListReaderConfirm, which has to follow, has returned true.  No lock is
 * held in between.  A copy need not be confirmed.
 */
int
IvfpqListReaderNext(IvfpqListReader *reader, IvfpqBlockView *views)
{
	int			n = 0;

	if (reader->looks_ahead && !reader->reread && !reader->copies_next &&
		is_optimistic(reader))
		n = next_optimistic(reader, views);
	if (n == 0 && IvfpqListNext(reader, views))
		n = 1;
	return n;
}

/*
 * Returns whether the block that was read is still there, with the same
 * postings.
 */
static bool
is_unchanged(const IvfpqSlotHeader *header, const IvfpqSlotHeader *now)
{
	/*
	 * `secondary` may have got a bit for a posting that the entry does not
	 * count
	 */
	return header->list == now->list && header->gen == now->gen &&
		header->ordinal == now->ordinal && header->part == now->part &&
		header->dead == now->dead &&
		header->prev_page == now->prev_page &&
		header->prev_slot == now->prev_slot;
}

/*
 * Returns whether all blocks that IvfpqListReaderNext returned last stayed
 * valid while they were read; a copy always does.  If so they count, and the
 * next ones follow.  If not, nothing that was read of them counts, and they
 * come again, the first of them as a copy.
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
	pg_read_barrier();			/* what was read of them was read before */
	LockBuffer(reader->optimistic, BUFFER_LOCK_SHARE);
	valid = IvfpqPageIs(page, IVFPQ_KIND_SLAB);
	for (int i = 0; i < reader->noptimistic && valid; i++)
		valid = is_unchanged(&reader->headers[i],
							 IvfpqSlabSlot(page, &reader->layout,
										   reader->slots[i]));
	for (int i = 0; i < reader->noptimistic && valid; i++)
	{
		if (reader->meta->pq_dim % 2 != 0)
			check_nibbles(reader, &views[i]);
		reader->nleft -= newest_postings(reader->nleft);
		reader->next = older_block(&reader->headers[i]);
	}
	LockBuffer(reader->optimistic, BUFFER_LOCK_UNLOCK);

	reader->copies_next = !valid;
	if (!valid || reader->nleft == 0 || reader->next.page != blkno)
		drop_optimistic(reader);
	return valid;
}

/* Returns the number of pages of a list that was written at once, at most. */
static int
list_pages(const IvfpqLayout *layout, const IvfpqDirEntry *entry)
{
	uint32		nblocks = entry->nitems / IVFPQ_BLOCK_POSTINGS + 1;

	return (int) Min(nblocks / layout->slots_per_page + 2, MOST_PAGES);
}

/*
 * Returns the header of the list's oldest block on a locked page, from a slot
 * on; NULL if the list is not there, because it was rewritten.
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
 * Puts the pages on which a list goes on into `pages` and returns their
 * number: the page that the last block on its first page names and, if that is
 * the page behind, as in a list written at once, all pages that the list then
 * has.
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
 * Reads the first pages of the reader's lists first .. end - 1 into shared
 * buffers.  Puts the pages on which these lists go on into `older`, and
 * returns their number.
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
 * Reads pages [n] into shared buffers, without a look at them; reorders them.
 */
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
 * Reads pages of the reader's lists from `first` on into shared buffers: at
 * least one list, and about MOST_PAGES pages.  Returns the first list after
 * these.  The pages' contents are hints here, since a reader of the lists goes
 * by the contents at that time.
 */
static int
prefetch_lists(const IvfpqListReader *reader, int first)
{
	int			end = first;
	int			npages = 0;
	int			nolder;
	uint64	   *older;

	do
		npages += list_pages(&reader->layout, &reader->entries[end++]);
	while (end < reader->nlists && npages < MOST_PAGES);
	older = palloc(npages * sizeof(uint64));
	nolder = read_first_pages(reader, first, end, older);
	read_pages(reader->index, older, nolder);
	pfree(older);
	return end;
}

/*
 * Prepares to read lists [n], which stay until IvfpqListReaderStop: the caller
 * opens each of them in turn, and reads it to its end.  Copies their directory
 * entries, with memory from the current context.
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
	if (!is_optimistic(reader))
		return;
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
 * Opens the i-th list for IvfpqListReaderNext.  When it has been read to its
 * end, a page of the list that follows, if there is one, is left pinned.
 */
void
IvfpqListReaderOpen(IvfpqListReader *reader, int i)
{
	/* pages that were prefetched are there when the list is read */
	IvfpqPrefetchNotice(reader->index, &reader->had_read);
	if (i >= reader->nprefetched && IvfpqPrefetchHelps(reader->index))
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

/* Ends the reading of these lists; all of them were read to their ends. */
void
IvfpqListReaderStop(IvfpqListReader *reader)
{
	pfree(reader->entries);
	reader->entries = NULL;
	reader->following = NULL;
	memset(&reader->fetching, 0, sizeof(reader->fetching));
}
