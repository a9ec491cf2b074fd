/*
 * listpages.c
 *		Pages of lists are pinned, and what comes next is fetched, while a list
 *		is read.
 */
#include "postgres.h"

#include "page/bufcache.h"
#include "page/list/reader.h"
#include "page/page.h"

/* Blocks that are fetched into the cache before they are scanned. */
#define FETCHED_BLOCKS	12

/* Releases the page whose blocks are read optimistically. */
void
IvfpqReaderDropOptimistic(IvfpqListReader *reader)
{
	if (BufferIsValid(reader->optimistic))
		ReleaseBuffer(reader->optimistic);
	reader->optimistic = InvalidBuffer;
}

/* Release the page that was prefetched. */
void
IvfpqReaderDropPrefetched(IvfpqListReader *reader)
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

	IvfpqReaderDropPrefetched(reader);
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
void
IvfpqReaderPrefetchNext(IvfpqListReader *reader, const IvfpqSlotHeader *last)
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
Buffer
IvfpqReaderPin(IvfpqListReader *reader, BlockNumber blkno)
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
void
IvfpqReaderFetchSlot(IvfpqListReader *reader)
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
const uint8 *
IvfpqReaderFetchAhead(IvfpqListReader *reader)
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
		const char *slot = IvfpqFetchNext(&reader->fetching, reader->index,
										  &reader->layout);

		if (slot != NULL)
			IvfpqFetch(slot, slot + reader->layout.slot_bytes);
	}
}
