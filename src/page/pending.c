/*
 * pending.c
 *		The pending list: TIDs of rows that have no list, because the index is
 *		untrained or was when the row came.
 *
 * Pages are chained from old to new, with ascending sequence numbers, which a
 * page names for its successor too: a reader that follows a link to a page
 * used again for something else, or further on in the chain, sees the wrong
 * number and starts again.  VACUUM removes TIDs within a page, unlinks empty
 * pages at the head, and writes the list anew when it is sparse
 * (compact.c); the tail stays.  How rows come: pend.c; rows
 * that training or flushing moves to lists: unpend.c.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/freespace.h"

#include "page/pending.h"
#include "page/stoppoint.h"
#include "pgcompat.h"

/* The header of a pending page. */
IvfpqPendingHeader *
IvfpqPendingGet(Page page)
{
	return (IvfpqPendingHeader *) PageGetContents(page);
}

/* Is this the page of the chain that has the number?  Else it is damaged. */
bool
IvfpqPendingIs(Page page, uint64 seq)
{
	IvfpqPendingHeader *header = IvfpqPendingGet(page);

	return IvfpqPageIs(page, IVFPQ_KIND_PENDING) && header->seq == seq &&
		header->count <= (uint32) IVFPQ_PENDING_PER_PAGE &&
		(header->next == InvalidBlockNumber || header->next_seq > seq);
}

/* The TIDs of a pending page. */
ItemPointerData *
IvfpqPendingTids(Page page)
{
	return (ItemPointerData *) (IvfpqPendingGet(page) + 1);
}

/* Make a pending page that holds the TIDs. */
void
IvfpqPendingInit(Page page, uint64 seq, BlockNumber next, uint64 next_seq,
				 const ItemPointerData *tids, int count)
{
	IvfpqPendingHeader *header;

	IvfpqPageInit(page, IVFPQ_KIND_PENDING);
	header = IvfpqPendingGet(page);
	header->seq = seq;
	header->next_seq = next_seq;
	header->next = next;
	header->count = count;
	for (int i = 0; i < count; i++)
		IvfpqPendingTids(page)[i] = tids[i];
}

/*
 * Begin to read, from the head that a metapage read after the snapshot gives.
 */
void
IvfpqPendingOpen(IvfpqPendingReader *reader, Relation index,
				 const IvfpqMetaData *meta)
{
	reader->index = index;
	reader->next = meta->pending_head;
	reader->next_seq = meta->pending_head_seq;
	reader->restarted = false;
	reader->restarted_at = 0;
	reader->build_id = meta->build_id;
	reader->tids = palloc(IVFPQ_PENDING_PER_PAGE * sizeof(ItemPointerData));
}

/* Begins to read the frozen part; the caller stops at its end. */
void
IvfpqPendingOpenFrozen(IvfpqPendingReader *reader, Relation index,
					   const IvfpqFrozen *frozen)
{
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	meta.pending_head = frozen->head;
	meta.pending_head_seq = frozen->head_seq;
	IvfpqPendingOpen(reader, index, &meta);
}

void
IvfpqPendingClose(IvfpqPendingReader *reader)
{
	pfree(reader->tids);
}

/* Copy the page at reader->next; false if it is not the page looked for. */
static bool
copy_pending(IvfpqPendingReader *reader, int *count)
{
	IvfpqPendingHeader *header;
	Buffer		buf;
	Page		page;
	bool		found = false;

	if (!IvfpqBlockExists(reader->index, reader->next))
		return false;
	buf = ReadBuffer(reader->index, reader->next);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buf);
	header = IvfpqPendingGet(page);
	if (IvfpqPendingIs(page, reader->next_seq))
	{
		reader->place.page = reader->next;
		reader->place.seq = header->seq;
		reader->lsn = PageGetLSN(page);
		reader->mismatched =
			(IvfpqPageSpecial(page)->flags & IVFPQ_PENDING_MISMATCHED) != 0;
		*count = header->count;
		memcpy(reader->tids, IvfpqPendingTids(page),
			   header->count * sizeof(ItemPointerData));
		reader->next = header->next;
		reader->next_seq = header->next_seq;
		found = true;
	}
	UnlockReleaseBuffer(buf);
	return found;
}

/*
 * Copy the next page's TIDs into reader->tids; false at the end.  When VACUUM
 * or training has freed a page on the way, the list is read again from its
 * head, and TIDs that were returned before come again.  Training has moved
 * rows that did not come to lists: a reader that needs all rows reads the
 * metapage again after the end, and then the lists.
 */
bool
IvfpqPendingNext(IvfpqPendingReader *reader, int *count)
{
	while (reader->next != InvalidBlockNumber)
	{
		IvfpqMetaData meta;
		BlockNumber missed = reader->next;

		CHECK_FOR_INTERRUPTS();
		if (copy_pending(reader, count))
			return true;

		/* damage, unless the head has moved since the last time */
		IvfpqMetaRead(reader->index, &meta);
		if (meta.pending_head_seq == reader->restarted_at &&
			meta.build_id == reader->build_id)
			IvfpqCorrupted(reader->index, missed,
						   "it is not the next page of the pending list");
		reader->restarted = true;
		reader->restarted_at = meta.pending_head_seq;
		reader->build_id = meta.build_id;
		reader->next = meta.pending_head;
		reader->next_seq = meta.pending_head_seq;
	}
	return false;
}

/* Is there a pending row that lists may take, for all that is known? */
bool
IvfpqPendingMayLeave(Relation index, const IvfpqMetaData *meta)
{
	IvfpqPendingReader reader;
	bool		found = false;
	int			count;

	IvfpqPendingOpen(&reader, index, meta);
	while (!found && IvfpqPendingNext(&reader, &count))
		found = count > 0 && !reader.mismatched;
	IvfpqPendingClose(&reader);
	return found;
}

/*
 * About how many TIDs are pending, from the ends of the chain alone, so too
 * many by what VACUUM removed from pages in between.  The metapage stays
 * locked, or the tail might be freed by training.
 */
int64
IvfpqPendingEstimate(Relation index)
{
	int64		count = 0;
	Buffer		metabuf;
	IvfpqMetaData *meta;

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_SHARE,
							IVFPQ_KIND_META, NULL);
	meta = IvfpqMetaGet(index, BufferGetPage(metabuf));
	if (meta->pending_tail != InvalidBlockNumber)
	{
		Buffer		buf = IvfpqReadPage(index, meta->pending_tail,
										BUFFER_LOCK_SHARE,
										IVFPQ_KIND_PENDING, NULL);
		IvfpqPendingHeader *header = IvfpqPendingGet(BufferGetPage(buf));
		uint64		npages = header->seq - meta->pending_head_seq;

		/* of a damaged page it may be anything */
		npages = Min(npages, RelationGetNumberOfBlocks(index));
		count = (int64) npages * IVFPQ_PENDING_PER_PAGE + header->count;
		UnlockReleaseBuffer(buf);
	}
	UnlockReleaseBuffer(metabuf);
	return count;
}

/*
 * Remove dead TIDs from page *blkno, number *seq.  One record, one page.
 * Returns how many; *left gets what remains, *blkno and *seq the next page.
 */
static int
vacuum_page(Relation index, BlockNumber *blkno, uint64 *seq,
			IndexBulkDeleteCallback callback, void *callback_state,
			int *left)
{
	Buffer		buf;
	GenericXLogState *state;
	IvfpqPendingHeader *header;
	ItemPointerData *tids;
	Page		page;
	int			kept = 0;
	int			removed;

	buf = IvfpqReadPage(index, *blkno, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_PENDING, NULL);
	if (!IvfpqPendingIs(BufferGetPage(buf), *seq))
		IvfpqCorrupted(index, *blkno,
					   "it is not the next page of the pending list");
	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqPendingGet(page);
	tids = IvfpqPendingTids(page);
	for (uint32 i = 0; i < header->count; i++)
	{
		if (!ItemPointerIsValid(&tids[i]))
			IvfpqCorrupted(index, *blkno, "TID %u is not valid", i);
		if (!callback(&tids[i], callback_state))
			tids[kept++] = tids[i];
	}
	removed = header->count - kept;
	header->count = kept;
	*blkno = header->next;
	*seq = header->next_seq;
	*left = kept;
	if (removed > 0)
		GenericXLogFinish(state);
	else
		GenericXLogAbort(state);
	UnlockReleaseBuffer(buf);
	return removed;
}

/*
 * Unlink the head page if it is empty and not the tail.  One record: metapage
 * and head page.
 */
static bool
unlink_head(Relation index)
{
	Buffer		metabuf;
	Buffer		buf;
	BlockNumber head;
	IvfpqMetaData *meta;
	IvfpqPendingHeader *header;
	bool		unlinked = false;

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	meta = IvfpqMetaGet(index, BufferGetPage(metabuf));
	head = meta->pending_head;
	if (head == meta->pending_tail)
	{
		UnlockReleaseBuffer(metabuf);
		return false;
	}
	buf = IvfpqReadPage(index, head, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_PENDING, NULL);
	header = IvfpqPendingGet(BufferGetPage(buf));
	if (header->count == 0)
	{
		GenericXLogState *state = GenericXLogStart(index);

		meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, metabuf, 0));
		meta->pending_head = header->next;
		meta->pending_head_seq = header->next_seq;
		IvfpqPageInit(GenericXLogRegisterBuffer(state, buf,
												GENERIC_XLOG_FULL_IMAGE),
					  IVFPQ_KIND_FREE);
		GenericXLogFinish(state);
		unlinked = true;
	}
	UnlockReleaseBuffer(buf);
	UnlockReleaseBuffer(metabuf);
	if (unlinked)
		RecordPageWithFreeSpace(index, head, BLCKSZ - 1);
	return unlinked;
}

/*
 * Give the empty pages at the head back; returns how many.  Only VACUUM and
 * training, which exclude each other, may.
 */
int64
IvfpqPendingTrim(Relation index)
{
	IvfpqMetaData meta;
	int64		freed = 0;

	IvfpqMetaRead(index, &meta);
	while (meta.pending_head != InvalidBlockNumber && unlink_head(index))
	{
		freed++;
		IvfpqInjectionPoint("trim");
		CHECK_FOR_INTERRUPTS();
	}
	return freed;
}

/*
 * VACUUM: ask the callback about every pending TID, remove those it names,
 * give pages back.  Returns the number removed; *nleft the rest.
 */
int64
IvfpqPendingVacuum(Relation index, IndexBulkDeleteCallback callback,
				   void *callback_state, int64 *nleft)
{
	IvfpqMetaData meta;
	BlockNumber blkno;
	uint64		seq;
	int64		removed = 0;
	int64		npages = 0;

	IvfpqMetaRead(index, &meta);
	*nleft = 0;
	blkno = meta.pending_head;
	seq = meta.pending_head_seq;
	while (blkno != InvalidBlockNumber)
	{
		int			left;

		IvfpqVacuumDelayPoint();
		removed += vacuum_page(index, &blkno, &seq, callback, callback_state,
							   &left);
		*nleft += left;
		npages++;
	}
	npages -= IvfpqPendingTrim(index);
	if (IvfpqPendingIsSparse(npages, *nleft))
		IvfpqPendingCompact(index);
	return removed;
}
