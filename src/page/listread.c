/*
 * listread.c
 *		Reading inverted lists.
 *
 * Read protocol.  A reader copies a list's directory entry and then, one
 * share lock at a time, its blocks from the newest to the oldest.  VACUUM may
 * rewrite the list meanwhile and hand its old blocks to any list; the reader
 * sees that as a slot that is not the block it looks for, and reads the list
 * again from its entry; then postings may come a second time.  A second
 * mismatch under an unchanged gen is damage.
 *
 * A search does not copy blocks but reads them optimistically (listread.c);
 * those that turn out to be invalid come again as above.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"

#include "page/bufcache.h"
#include "page/injection.h"
#include "page/listread.h"
#include "page/page.h"

static void reader_drop_optimistic(IvfpqListReader *reader);
static void reader_drop_prefetched(IvfpqListReader *reader);
static void reader_prefetch_next(IvfpqListReader *reader,
									const IvfpqSlotHeader *last);
static Buffer reader_pin(IvfpqListReader *reader, BlockNumber blkno);
static void reader_fetch_slot(IvfpqListReader *reader);
static const uint8 *reader_fetch_ahead(IvfpqListReader *reader);
static const char *fetch_next(IvfpqFetchPlace *place, Relation index,
								  const IvfpqLayout *layout);

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
	reader_drop_optimistic(reader);
	reader_drop_prefetched(reader);
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
	reader_drop_optimistic(reader);
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
	buf = reader_pin(reader, blkno);
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
		reader_prefetch_next(reader, last);
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
static void
reader_check_nibbles(const IvfpqListReader *reader, const IvfpqBlockView *view)
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

	reader_fetch_slot(reader);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (reader->nleft == 0)
		{
			/* there may be one only where lists were rewritten meanwhile */
			if (reader->following == NULL)
				reader_drop_prefetched(reader);
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
		reader_check_nibbles(reader, view);
	reader->nleft -= count;
	reader->next = IvfpqOlderBlock(&header);
	return true;
}

/* ----
 * Optimistic reads: blocks of lists are scanned where they lie.
 *
 * With a pin and no lock: nothing that was read counts before a look under the
 * lock has shown that the blocks still are what they were (../README,
 * "Optimistic reads").  Those that are not are read by the read protocol
 * (listread.c).
 */

/*
 * Pin a page of the list, if there is such a page, to read it without its
 * lock.  On a standby a page may be zeros into which redo restores a page
 * image: not so once its lock was to be had, since a page that is pinned is
 * not read again.
 */
static Buffer
pin_optimistic(IvfpqListReader *reader, BlockNumber blkno)
{
	Buffer		buf = reader_pin(reader, blkno);

	if (BufferIsValid(buf) && RecoveryInProgress())
	{
		LockBuffer(buf, BUFFER_LOCK_SHARE);
		LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	}
	return buf;
}

/*
 * Returns whether the slot is the block that comes next, where nleft postings
 * are left.
 */
static inline bool
is_block(const IvfpqListReader *reader, const IvfpqSlotHeader *header,
		 uint32 nleft)
{
	return header->list == reader->list &&
		header->gen == reader->entry.gen &&
		header->ordinal == (nleft - 1) / IVFPQ_BLOCK_POSTINGS &&
		header->part == 0;
}

/* Does the list go on in another slot of the same page? */
static inline bool
goes_on(const IvfpqListReader *reader, const IvfpqSlotHeader *header,
		BlockNumber blkno)
{
	return header->ordinal > 0 && header->prev_page == blkno &&
		header->prev_slot < (uint32) reader->layout.slots_per_page;
}

/*
 * Reads the next blocks of the list optimistically, newest first, as far as
 * they are on one page: returns views of where they lie, at most
 * IVFPQ_OPTIMISTIC_BLOCKS.  Anything may be written there until
 * IvfpqListConfirm, which must follow, has been asked.  0: the next block is
 * to be read by IvfpqListNext.
 *
 * Headers are copied, and what follows is taken from the copies: where else to
 * look must not change between being checked and being used.
 */
int
IvfpqListNextOptimistic(IvfpqListReader *reader, IvfpqBlockView *views)
{
	const IvfpqLayout *layout = &reader->layout;
	IvfpqAddress next = reader->next;
	uint32		nleft = reader->nleft;
	int			n = 0;
	bool		more = true;
	Page		page;

	if (!reader->prefetches || reader->reread ||
		!IvfpqReaderIsOptimistic(reader) ||
		nleft == 0 || next.slot >= (uint32) layout->slots_per_page)
		return 0;
	CHECK_FOR_INTERRUPTS();
	if (!BufferIsValid(reader->optimistic))
		reader->optimistic = pin_optimistic(reader, next.page);
	if (!BufferIsValid(reader->optimistic))
		return 0;
	page = BufferGetPage(reader->optimistic);
	while (more && n < IVFPQ_OPTIMISTIC_BLOCKS)
	{
		IvfpqSlotHeader *slot = IvfpqSlabSlot(page, layout, next.slot);
		IvfpqSlotHeader *header = &reader->headers[n];
		int			count = IvfpqPostingsInBlock(nleft);

		*header = *slot;
		pg_compiler_barrier();
		if (!is_block(reader, header, nleft))
			break;
		IvfpqBodyView(layout, IvfpqSlabBody(slot), count, header, &views[n]);
		reader->slots[n++] = next.slot;
		nleft -= count;
		more = goes_on(reader, header, next.page);
		next = IvfpqOlderBlock(header);
	}
	if (n == 0)
		reader_drop_optimistic(reader);
	else if (!more)
		reader_prefetch_next(reader, &reader->headers[n - 1]);
	for (int i = 0; i < n; i++)
		views[i].ahead = reader_fetch_ahead(reader);
	reader->noptimistic = n;
	IvfpqInjectionPoint("list: tried");
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
 * Returns whether all blocks that were read optimistically stayed valid
 * meanwhile.  If so they count, and the next come; if not, nothing that was
 * read of them counts, and they come again, by IvfpqListNext.
 */
bool
IvfpqListConfirm(IvfpqListReader *reader, const IvfpqBlockView *views)
{
	BlockNumber blkno = reader->next.page;
	Page		page = BufferGetPage(reader->optimistic);
	bool		valid;

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
			reader_check_nibbles(reader, &views[i]);
		reader->nleft -= IvfpqPostingsInBlock(reader->nleft);
		reader->next = IvfpqOlderBlock(&reader->headers[i]);
	}
	LockBuffer(reader->optimistic, BUFFER_LOCK_UNLOCK);

	if (!valid || reader->nleft == 0 || reader->next.page != blkno)
		reader_drop_optimistic(reader);
	return valid;
}

/* ----
 * Pages of lists are pinned, and what comes next is fetched, while a list
 * is read.
 */

/* Blocks that are fetched into the cache before they are scanned. */
#define FETCHED_BLOCKS	12

/* Releases the page whose blocks are read optimistically. */
static void
reader_drop_optimistic(IvfpqListReader *reader)
{
	if (BufferIsValid(reader->optimistic))
		ReleaseBuffer(reader->optimistic);
	reader->optimistic = InvalidBuffer;
}

/* Release the page that was prefetched. */
static void
reader_drop_prefetched(IvfpqListReader *reader)
{
	if (BufferIsValid(reader->prefetched))
		ReleaseBuffer(reader->prefetched);
	reader->prefetched = InvalidBuffer;
	reader->fetch_at = reader->fetch_end = NULL;
}

/*
 * Pin the page that is read next, from the slot at the address on, where
 * nblocks blocks are wanted.  A list that was written at once has its older
 * blocks in the slots behind.
 */
static void
prefetch_page(IvfpqListReader *reader, IvfpqAddress address, uint32 nblocks)
{
	const IvfpqLayout *layout = &reader->layout;
	uint32		slots = layout->slots_per_page;
	Page		page;

	reader_drop_prefetched(reader);
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

/* Prefetch the page that comes after the slots that were copied. */
static void
reader_prefetch_next(IvfpqListReader *reader, const IvfpqSlotHeader *last)
{
	IvfpqAddress prev = {.page = last->prev_page, .slot = last->prev_slot};
	const IvfpqDirEntry *following = reader->following;

	if (last->list != reader->list || last->gen != reader->entry.gen ||
		reader->layout.nparts > 1)
		return;
	if (last->ordinal > 0)
		prefetch_page(reader, prev, last->ordinal);
	else if (following != NULL)
		prefetch_page(reader, following->head,
					  (following->nitems + IVFPQ_BLOCK_POSTINGS - 1) /
					  IVFPQ_BLOCK_POSTINGS);
}

/* Pin a page of the list, if there is such a page. */
static Buffer
reader_pin(IvfpqListReader *reader, BlockNumber blkno)
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
 * Have the processor fetch a slot's worth of the prefetched page, while it is
 * busy with another.
 */
static void
reader_fetch_slot(IvfpqListReader *reader)
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
		/* as blocks that lie side by side are mostly wanted or not alike */
		IvfpqFetch(reader->fetch_at,
				   reader->fetch_at + sizeof(IvfpqSlotHeader));
		IvfpqFetch(reader->fetch_at + IvfpqBeforeKeys(&reader->layout),
				   reader->fetch_at + sizeof(IvfpqSlotHeader) +
				   reader->layout.codes);
	}
	reader->fetch_at = end;
}

/*
 * Have the processor fetch of a later block what comes before its codes.
 * Returns where these are, for whoever scans to fetch them meanwhile; NULL if
 * that is not known.  The first search of a backend does not know it, but has
 * pinned the next page.
 */
static const uint8 *
reader_fetch_ahead(IvfpqListReader *reader)
{
	const IvfpqLayout *layout = &reader->layout;
	const char *slot = fetch_next(&reader->fetching, reader->index, layout);

	if (slot == NULL && reader->fetch_at < reader->fetch_end)
	{
		slot = reader->fetch_at;
		reader->fetch_at += layout->slot_bytes;
	}
	if (slot == NULL)
		return NULL;
	IvfpqFetch(slot, slot + IvfpqBeforeKeys(layout));
	return (const uint8 *) slot + sizeof(IvfpqSlotHeader) + layout->codes;
}

/*
 * Lists with these entries [n] will be opened by IvfpqListOpenAt one after
 * another, and read to their ends; the entries stay until then.
 */
void
IvfpqListsBegin(IvfpqListReader *reader, const IvfpqDirEntry *entries, int n)
{
	memset(&reader->fetching, 0, sizeof(reader->fetching));
	if (!IvfpqReaderIsOptimistic(reader))
		return;
	reader->fetching.entry = entries;
	reader->fetching.end = entries + n;
	reader->fetching.sought = entries;
	for (int i = 0; i < FETCHED_BLOCKS; i++)
	{
		const char *slot = fetch_next(&reader->fetching, reader->index,
										  &reader->layout);

		if (slot != NULL)
			IvfpqFetch(slot, slot + reader->layout.slot_bytes);
	}
}

/* ----
 * Blocks of lists on their way into the processor's cache before they are
 * scanned.
 *
 * A core that waits for one page after another gets a third of what memory
 * gives.  So while a block is scanned another is fetched that comes a few pages
 * later: by what the directory's entries say, in lists written at once, which
 * have their older blocks in the slots behind.  Where a page is not where it was
 * the last time, or the list goes on elsewhere, the wrong bytes are fetched, and
 * nothing else happens.
 */

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
static const char *
fetch_next(IvfpqFetchPlace *place, Relation index,
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

/* ----
 * Pages of lists on their way into shared buffers before they are read.
 *
 * Each block of a list names the next one, so a reader of a list from files
 * waits for its pages one after another.  Here those of many lists come
 * together: first the pages of all their newest blocks, which the directory
 * names, then those that these name.
 */

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
