/*
 * list.c
 *		Reading inverted lists.
 *
 * Read protocol.  A reader copies a list's directory entry and then, one
 * share lock at a time, its blocks from the newest to the oldest.  VACUUM may
 * rewrite the list meanwhile and hand its old blocks to any list; the reader
 * sees that as a slot that is not the block it looks for, and reads the list
 * again from its entry, when copies may come a second time.  A second
 * mismatch under an unchanged gen is damage.
 *
 * A search does not copy blocks.  It tries them: reads them where they lie,
 * with a pin and no lock, and keeps nothing of it before a look under the lock
 * has shown that they still are what they were (../README, "Blocks that are
 * tried").  Blocks that are not come again as above.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"

#include "page/buffer/bufhint.h"
#include "page/page.h"
#include "page/stoppoint.h"
#include "pgcompat.h"

/* Blocks that are fetched into the cache before they are tried. */
#define FETCHED_BLOCKS	12

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

/* Release the page whose blocks are tried. */
static void
drop_tried(IvfpqListReader *reader)
{
	if (BufferIsValid(reader->tried))
		ReleaseBuffer(reader->tried);
	reader->tried = InvalidBuffer;
}

/* Release the page that was prefetched. */
static void
drop_prefetched(IvfpqListReader *reader)
{
	if (BufferIsValid(reader->prefetched))
		ReleaseBuffer(reader->prefetched);
	reader->prefetched = InvalidBuffer;
	reader->fetch_at = reader->fetch_end = NULL;
}

/* Free the memory, and release pages. */
void
IvfpqListReaderFree(IvfpqListReader *reader)
{
	drop_tried(reader);
	drop_prefetched(reader);
	pfree(reader->page);
	if (reader->body)
		pfree(reader->body);
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

/* Bytes of a slot before its keys, and up to the last of their heads. */
static inline int
before_keys(const IvfpqLayout *layout)
{
	return (int) sizeof(IvfpqSlotHeader) + layout->keys_at;
}

static inline int
front_bytes(const IvfpqLayout *layout)
{
	return before_keys(layout) + IvfpqKeyHeadsBytes(&layout->keys);
}

/*
 * Have the processor fetch a slot's worth of the prefetched page, while it is
 * busy with another.
 */
static inline void
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
		/* as blocks that lie side by side are mostly wanted or not alike */
		IvfpqFetch(reader->fetch_at,
				   reader->fetch_at + sizeof(IvfpqSlotHeader));
		IvfpqFetch(reader->fetch_at + before_keys(&reader->layout),
				   reader->fetch_at + sizeof(IvfpqSlotHeader) +
				   reader->layout.codes);
	}
	reader->fetch_at = end;
}

/*
 * Copy a slot, or what comes before its images and codes where the heads of
 * its keys say that no copy is wanted.
 */
static void
copy_slot_of(IvfpqListReader *reader, const char *from, char *to, uint32 slot)
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
		memcpy(to + heads, from + heads, front_bytes(layout) - heads);
		reader->passed |= 1U << slot;
	}
}

/* (Re)start at the newest block, by reader->entry. */
static void
start_reading(IvfpqListReader *reader)
{
	reader->next = reader->entry.head;
	reader->nleft = reader->entry.nitems;
	reader->cached = InvalidBlockNumber;	/* may be older than the entry */
	drop_tried(reader);
}

/* Can blocks be tried? */
static inline bool
may_try(const IvfpqListReader *reader)
{
	return reader->wants == NULL && reader->layout.nparts == 1;
}

/*
 * Lists with these entries [n] will be opened by IvfpqListOpenAt one after
 * another, and read to their ends; the entries stay until then.
 */
void
IvfpqListsBegin(IvfpqListReader *reader, const IvfpqListEntry *entries, int n)
{
	memset(&reader->fetching, 0, sizeof(reader->fetching));
	if (!may_try(reader))
		return;
	reader->fetching.entry = entries;
	reader->fetching.end = entries + n;
	for (int i = 0; i < FETCHED_BLOCKS; i++)
	{
		const char *slot = IvfpqFetchNext(&reader->fetching, reader->index,
										  &reader->layout);

		if (slot != NULL)
			IvfpqFetch(slot, slot + reader->layout.slot_bytes);
	}
}

/* Begin to read a list. */
void
IvfpqListOpen(IvfpqListReader *reader, uint32 list)
{
	IvfpqListEntry entry;

	IvfpqListEntryRead(reader->index, reader->meta, list, &entry);
	IvfpqListOpenAt(reader, list, &entry, NULL);
	reader->prefetches = false;
}

/*
 * Begin to read a list by an entry that was read before, and prefetch pages, in
 * the end those of the following list (NULL: there is none).  The caller must
 * read the list to its end; then a page of the following list, if there is one,
 * is left pinned.
 */
void
IvfpqListOpenAt(IvfpqListReader *reader, uint32 list,
				const IvfpqListEntry *entry, const IvfpqListEntry *following)
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

/*
 * Copy a slot of a locked page, and those that the list goes on in on the same
 * page, to where they lie there; returns the last one's header.
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

/* What comes after the slots that were copied? */
static void
prefetch_next(IvfpqListReader *reader, const IvfpqSlotHeader *last)
{
	IvfpqAddress prev = {.page = last->prev_page, .slot = last->prev_slot};
	const IvfpqListEntry *following = reader->following;

	if (last->list != reader->list || last->gen != reader->entry.gen ||
		reader->layout.nparts > 1)
		return;
	if (last->ordinal > 0)
		prefetch_page(reader, prev, last->ordinal);
	else if (following != NULL)
		prefetch_page(reader, following->head,
					  (following->nitems + IVFPQ_BLOCK_COPIES - 1) /
					  IVFPQ_BLOCK_COPIES);
}

/* Pin a page of the list, if there is such a page. */
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
 * Likewise, to read it without its lock.  On a standby a page may be zeros of
 * which redo makes what an image says: not so once its lock was to be had, since
 * a page that is pinned is not read again.
 */
static Buffer
pin_to_try(IvfpqListReader *reader, BlockNumber blkno)
{
	Buffer		buf = pin_page(reader, blkno);

	if (BufferIsValid(buf) && RecoveryInProgress())
	{
		LockBuffer(buf, BUFFER_LOCK_SHARE);
		LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	}
	return buf;
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
	if (reader->prefetches)
		prefetch_next(reader, last);
	return true;
}

/* The slot at the address, if it holds this part of the block we look for. */
static IvfpqSlotHeader *
copy_slot(IvfpqListReader *reader, BlockNumber blkno, uint32 slot, int part)
{
	uint32		ordinal = (reader->nleft - 1) / IVFPQ_BLOCK_COPIES;
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
	uint32		ordinal = (reader->nleft - 1) / IVFPQ_BLOCK_COPIES;
	bool		again = reader->reread;

	IvfpqListEntryRead(reader->index, reader->meta, reader->list,
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
check_spare_nibbles(const IvfpqListReader *reader, const IvfpqBlockView *view)
{
	const uint8 *last = view->codes +
	(reader->layout.code_bytes - 1) * IVFPQ_BLOCK_COPIES;

	for (int i = 0; i < IVFPQ_BLOCK_COPIES; i++)
		if ((view->live & (1U << i)) && (last[i] & 0xF0) != 0)
			IvfpqCorrupted(reader->index, reader->next.page,
						   "code of copy %d in slot %u is out of range", i,
						   reader->next.slot);
}

/* How many copies the newest of the blocks has that hold the last nleft. */
static inline int
copies_in_block(uint32 nleft)
{
	return (nleft - 1) % IVFPQ_BLOCK_COPIES + 1;
}

static inline IvfpqAddress
older_block(const IvfpqSlotHeader *header)
{
	IvfpqAddress address = {.page = header->prev_page,
	.slot = header->prev_slot};

	return address;
}

/*
 * The next block of the list, newest first; false after the oldest.  The view
 * is good until the next call.  When reader->reread is set, the copies before
 * may have come already.
 */
bool
IvfpqListNext(IvfpqListReader *reader, IvfpqBlockView *view)
{
	IvfpqSlotHeader header;
	char	   *body;
	bool		passed;
	int			count;

	fetch_slot(reader);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (reader->nleft == 0)
		{
			/* there may be one only where lists were rewritten meanwhile */
			if (reader->following == NULL)
				drop_prefetched(reader);
			return false;
		}
		if (reader->next.page != InvalidBlockNumber &&
			read_block(reader, &header, &body, &passed))
			break;
		handle_mismatch(reader);
	}

	count = copies_in_block(reader->nleft);
	IvfpqBodyView(&reader->layout, body, count, &header, view);
	view->passed_over = reader->passing = passed;
	if (reader->meta->pq_dim % 2 != 0 && !passed)
		check_spare_nibbles(reader, view);
	reader->nleft -= count;
	reader->next = older_block(&header);
	return true;
}

/*
 * Have the processor fetch of a later block what comes before its codes.
 * Returns where these are, for whoever scans to fetch them meanwhile; NULL if
 * that is not known.  The first search of a session does not know it, but has
 * pinned the next page.
 */
static const uint8 *
fetch_ahead(IvfpqListReader *reader)
{
	const IvfpqLayout *layout = &reader->layout;
	const char *slot = IvfpqFetchNext(&reader->fetching, reader->index, layout);

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

/* Is the slot the block that comes next, nleft copies being left? */
static inline bool
is_block(const IvfpqListReader *reader, const IvfpqSlotHeader *header,
		 uint32 nleft)
{
	return header->list == reader->list &&
		header->gen == reader->entry.gen &&
		header->ordinal == (nleft - 1) / IVFPQ_BLOCK_COPIES &&
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
 * Try the next blocks of the list, newest first, as far as they are on one
 * page: views of where they lie, at most IVFPQ_TRIED_BLOCKS.  Anything may be
 * written there until IvfpqListTried, which must follow, has been asked.  0:
 * the next block is to be read by IvfpqListNext.
 *
 * Headers are copied, and what follows is taken from the copies: where else to
 * look must not change between being checked and being used.
 */
int
IvfpqListTry(IvfpqListReader *reader, IvfpqBlockView *views)
{
	const IvfpqLayout *layout = &reader->layout;
	IvfpqAddress next = reader->next;
	uint32		nleft = reader->nleft;
	int			n = 0;
	bool		more = true;
	Page		page;

	if (!reader->prefetches || reader->reread || !may_try(reader) ||
		nleft == 0 || next.slot >= (uint32) layout->slots_per_page)
		return 0;
	CHECK_FOR_INTERRUPTS();
	if (!BufferIsValid(reader->tried))
		reader->tried = pin_to_try(reader, next.page);
	if (!BufferIsValid(reader->tried))
		return 0;
	page = BufferGetPage(reader->tried);
	while (more && n < IVFPQ_TRIED_BLOCKS)
	{
		IvfpqSlotHeader *slot = IvfpqSlabSlot(page, layout, next.slot);
		IvfpqSlotHeader *header = &reader->headers[n];
		int			count = copies_in_block(nleft);

		*header = *slot;
		pg_compiler_barrier();
		if (!is_block(reader, header, nleft))
			break;
		IvfpqBodyView(layout, IvfpqSlabBody(slot), count, header, &views[n]);
		reader->slots[n++] = next.slot;
		nleft -= count;
		more = goes_on(reader, header, next.page);
		next = older_block(header);
	}
	if (n == 0)
		drop_tried(reader);
	else if (!more)
		prefetch_next(reader, &reader->headers[n - 1]);
	for (int i = 0; i < n; i++)
		views[i].ahead = fetch_ahead(reader);
	reader->ntried = n;
	IvfpqStopPoint("list: tried");
	return n;
}

/* Is the block that was tried still there, with the same copies? */
static bool
is_unchanged(const IvfpqSlotHeader *header, const IvfpqSlotHeader *now)
{
	/* `second` may have got a bit for a copy that the entry does not count */
	return header->list == now->list && header->gen == now->gen &&
		header->ordinal == now->ordinal && header->part == now->part &&
		header->dead == now->dead &&
		header->prev_page == now->prev_page &&
		header->prev_slot == now->prev_slot;
}

/*
 * Did all blocks stand that were tried, while they were read?  If so they
 * count, and the next come; if not nothing that was read of them does, and they
 * come again, by IvfpqListNext.
 */
bool
IvfpqListTried(IvfpqListReader *reader, const IvfpqBlockView *views)
{
	BlockNumber blkno = reader->next.page;
	Page		page = BufferGetPage(reader->tried);
	bool		stood;

	pg_read_barrier();			/* what was read of them was read before */
	LockBuffer(reader->tried, BUFFER_LOCK_SHARE);
	stood = IvfpqPageIs(page, IVFPQ_KIND_SLAB);
	for (int i = 0; i < reader->ntried && stood; i++)
		stood = is_unchanged(&reader->headers[i],
							 IvfpqSlabSlot(page, &reader->layout,
										   reader->slots[i]));
	for (int i = 0; i < reader->ntried && stood; i++)
	{
		if (reader->meta->pq_dim % 2 != 0)
			check_spare_nibbles(reader, &views[i]);
		reader->nleft -= copies_in_block(reader->nleft);
		reader->next = older_block(&reader->headers[i]);
	}
	LockBuffer(reader->tried, BUFFER_LOCK_UNLOCK);

	if (!stood || reader->nleft == 0 || reader->next.page != blkno)
		drop_tried(reader);
	return stood;
}
