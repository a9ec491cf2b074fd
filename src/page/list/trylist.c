/*
 * trylist.c
 *		Optimistic reads: blocks of lists are scanned where they lie.
 *
 * With a pin and no lock: nothing that was read counts before a look under the
 * lock has shown that the blocks still are what they were (../README,
 * "Optimistic reads").  Those that are not are read by the read protocol
 * (list.c).
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "port/atomics.h"

#include "page/list/reader.h"
#include "page/page.h"
#include "page/stoppoint.h"

/*
 * Pin a page of the list, if there is such a page, to read it without its
 * lock.  On a standby a page may be zeros into which redo restores a page
 * image: not so once its lock was to be had, since a page that is pinned is
 * not read again.
 */
static Buffer
pin_optimistic(IvfpqListReader *reader, BlockNumber blkno)
{
	Buffer		buf = IvfpqReaderPin(reader, blkno);

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
		IvfpqReaderDropOptimistic(reader);
	else if (!more)
		IvfpqReaderPrefetchNext(reader, &reader->headers[n - 1]);
	for (int i = 0; i < n; i++)
		views[i].ahead = IvfpqReaderFetchAhead(reader);
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
			IvfpqReaderCheckNibbles(reader, &views[i]);
		reader->nleft -= IvfpqPostingsInBlock(reader->nleft);
		reader->next = IvfpqOlderBlock(&reader->headers[i]);
	}
	LockBuffer(reader->optimistic, BUFFER_LOCK_UNLOCK);

	if (!valid || reader->nleft == 0 || reader->next.page != blkno)
		IvfpqReaderDropOptimistic(reader);
	return valid;
}
