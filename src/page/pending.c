/*
 * pending.c
 *		The pending list: TIDs of rows that are in no list, because the index
 *		is untrained, or was untrained when they were inserted.
 *
 * The pages of the pending list form a chain from the oldest to the newest,
 * with ascending sequence numbers.  A page names the next page and the
 * sequence number of that page.  The next page may have been freed since, and
 * used for something else or for a later page of the chain.  A reader that
 * follows the link then sees a wrong number, and starts again.
 *
 * Inserts append rows to the tail.  If the declaration of an index does not
 * say how many dimensions rows have, the first row determines that.  A row is
 * compared with the metapage under the lock under which it is appended.  So if
 * two sessions insert first rows with different dimensions at the same time,
 * one row is rejected.
 *
 * Training in place freezes the list (IvfpqPendingFreeze), writes inverted
 * lists with the frozen rows, and writes the rows that have to stay pending to
 * a chain that leads to the new tail (IvfpqPendingKeep).  One WAL record makes
 * both visible in place of the frozen pages (IvfpqPendingPublish), which are
 * then freed (IvfpqPendingFree).  Flushing removes single rows
 * (IvfpqPendingRemove).
 *
 * VACUUM removes dead TIDs within a page, and unlinks empty pages at the head,
 * but never the tail.  It can unlink only the head, because each other page
 * has a link that leads to it.  So a single old row would keep all pages after
 * it in the list.  A list that consists mostly of holes is therefore compacted
 * (IvfpqPendingCompact).  The list is frozen up to its tail, its TIDs are
 * written to new pages that lead to the new tail, and one WAL record makes the
 * first new page the head.  A reader that is still in the old pages comes to
 * the new tail as well or, if the old pages are freed before that, starts
 * again.  The new pages have the sequence numbers just below that of the tail.
 * Freezing skipped these numbers, so no page ever had them.
 *
 * Training in place writes to pages that no reader finds until it publishes
 * them, and frees the pending pages that it emptied only after that.  If it
 * dies, unused pages remain.  In an untrained index, all pages except the
 * metapage and those of the pending list are unused.  In a trained index,
 * pending pages that are not in the pending list are unused, and pages of
 * later trainings than the metapage's.  Pages of earlier trainings are unused
 * when no snapshot is as old as their end.  VACUUM reclaims such pages
 * (IvfpqReclaimPage).
 *
 * Training, flushing, VACUUM and reclaiming exclude each other by the table's
 * lock, which their callers hold.  Rows may be appended meanwhile.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/freespace.h"
#include "utils/memutils.h"

#include "page/injection.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* VACUUM compacts a list of more than 2 * pages_needed + SPARE_PAGES pages. */
#define SPARE_PAGES		2

/* Result of comparing a row's dimensions with those in the metapage. */
typedef enum DimsVerdict
{
	DIMS_FIT,
	DIMS_UNSET,					/* the metapage must be updated first */
	DIMS_DIFFER
} DimsVerdict;

/* State of a compaction, while it writes the new pages. */
typedef struct Compaction
{
	Relation	index;
	const IvfpqFrozen *frozen;
	Buffer		buf;			/* page to fill, pinned; taken for this list */
	uint64		seq;			/* sequence number of that page */
	ItemPointerData *tids;		/* [IVFPQ_PENDING_PER_PAGE] TIDs gathered */
	int			count;
	bool		mismatched;		/* all these TIDs come from mismatched pages */
} Compaction;

/* Returns the number of pages that ntids TIDs need. */
static int64
pages_needed(int64 ntids)
{
	return (ntids + IVFPQ_PENDING_PER_PAGE - 1) / IVFPQ_PENDING_PER_PAGE;
}

/* Returns the header of a pending page. */
static IvfpqPendingHeader *
pending_get(Page page)
{
	return (IvfpqPendingHeader *) PageGetContents(page);
}

/* Returns the TIDs of a pending page. */
static ItemPointerData *
pending_tids(Page page)
{
	return (ItemPointerData *) (pending_get(page) + 1);
}

/*
 * Returns whether this is the page of the chain with the sequence number
 * `seq`, and its header is sound.  If no other backend can have freed the
 * page, false means damage.
 */
static bool
pending_is(Page page, uint64 seq)
{
	IvfpqPendingHeader *header = pending_get(page);

	return IvfpqPageIs(page, IVFPQ_KIND_PENDING) && header->seq == seq &&
		header->count <= (uint32) IVFPQ_PENDING_PER_PAGE &&
		(header->next == InvalidBlockNumber || header->next_seq > seq);
}

/* Initializes a pending page that holds the TIDs. */
static void
pending_init(Page page, uint64 seq, BlockNumber next, uint64 next_seq,
			 const ItemPointerData *tids, int count)
{
	IvfpqPendingHeader *header;

	IvfpqPageInit(page, IVFPQ_KIND_PENDING);
	header = pending_get(page);
	header->seq = seq;
	header->next_seq = next_seq;
	header->next = next;
	header->count = count;
	for (int i = 0; i < count; i++)
		pending_tids(page)[i] = tids[i];
}

/*
 * Prepares to read the pending list from the head that *meta gives.  The
 * caller has read *meta after its snapshot was taken.
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

/* Prepares to read the frozen part; the caller must stop at its end. */
static void
pending_open_frozen(IvfpqPendingReader *reader, Relation index,
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

/*
 * Copies the next page's TIDs into reader->tids, and sets *count to their
 * number.  Returns false at the end of the list.
 *
 * If VACUUM or training has freed the page, reads the list again from its head
 * and sets reader->restarted.  Then TIDs may be returned twice, and the only
 * rows missed are those that training has moved to lists.  So a reader that
 * needs all rows reads the metapage again after the end of the pending list,
 * and then reads the lists.
 */
bool
IvfpqPendingNext(IvfpqPendingReader *reader, int *count)
{
	while (reader->next != InvalidBlockNumber)
	{
		BlockNumber blkno = reader->next;
		bool		found = false;
		IvfpqMetaData meta;

		CHECK_FOR_INTERRUPTS();
		if (IvfpqBlockExists(reader->index, blkno))
		{
			Buffer		buf = ReadBuffer(reader->index, blkno);
			Page		page = BufferGetPage(buf);
			IvfpqPendingHeader *header = pending_get(page);

			LockBuffer(buf, BUFFER_LOCK_SHARE);
			found = pending_is(page, reader->next_seq);
			if (found)
			{
				reader->place.page = blkno;
				reader->place.seq = header->seq;
				reader->lsn = PageGetLSN(page);
				reader->mismatched =
					(IvfpqPageSpecial(page)->flags & IVFPQ_PENDING_MISMATCHED) != 0;
				*count = header->count;
				memcpy(reader->tids, pending_tids(page),
					   header->count * sizeof(ItemPointerData));
				reader->next = header->next;
				reader->next_seq = header->next_seq;
			}
			UnlockReleaseBuffer(buf);
		}
		if (found)
			return true;

		/* this is damage unless the head has moved since the last restart */
		IvfpqMetaRead(reader->index, &meta);
		if (meta.pending_head_seq == reader->restarted_at &&
			meta.build_id == reader->build_id)
			IvfpqCorrupted(reader->index, blkno,
						   "it is not the next page of the pending list");
		reader->restarted = true;
		reader->restarted_at = meta.pending_head_seq;
		reader->build_id = meta.build_id;
		reader->next = meta.pending_head;
		reader->next_seq = meta.pending_head_seq;
	}
	return false;
}

/*
 * Returns whether the index still has the model and lists that *meta
 * describes.  A reader that needs all rows, and has read *meta before the
 * pending list, calls this after the pending list.  If the result is false, a
 * training may have put rows into lists that *meta does not know, or rows of
 * lists that *meta knows back into the pending list.
 */
bool
IvfpqPendingWasRead(Relation index, const IvfpqMetaData *meta)
{
	IvfpqMetaData now;

	IvfpqMetaRead(index, &now);
	return now.build_id == meta->build_id && now.nlists == meta->nlists;
}

/* Returns whether there may be a pending row that a list can take. */
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
 * Estimates the number of pending TIDs from the head and the tail of the chain
 * alone.  The estimate still includes TIDs that VACUUM has removed from pages
 * in between.  The metapage stays locked meanwhile, because training might
 * otherwise free the tail.
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
		IvfpqPendingHeader *header = pending_get(BufferGetPage(buf));
		uint64		npages = header->seq - meta->pending_head_seq;

		/* a damaged page may have any sequence number */
		npages = Min(npages, RelationGetNumberOfBlocks(index));
		count = (int64) npages * IVFPQ_PENDING_PER_PAGE + header->count;
		UnlockReleaseBuffer(buf);
	}
	UnlockReleaseBuffer(metabuf);
	return count;
}

/*
 * Adds a new tail page that holds the TID, or is empty if tid is NULL.  Skips
 * `gap` sequence numbers before the new page's number.  If there is no list
 * yet, the page is also its head.  The caller has
 * exclusively locked the metapage and the old tail, if any.  Writes one WAL
 * record, which covers the metapage, the old tail, if any, and the new page.
 */
static void
pending_add_tail(Relation index, Buffer metabuf, Buffer tailbuf,
				 const ItemPointerData *tid, uint64 gap)
{
	GenericXLogState *state;
	Buffer		buf = IvfpqGetFreePage(index);
	BlockNumber blkno = BufferGetBlockNumber(buf);
	IvfpqMetaData *meta;
	IvfpqPendingHeader *header;
	uint64		seq;

	state = GenericXLogStart(index);
	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, metabuf, 0));
	seq = meta->pending_head_seq + gap;
	if (BufferIsValid(tailbuf))
	{
		header = pending_get(GenericXLogRegisterBuffer(state, tailbuf, 0));
		seq = header->seq + 1 + gap;
		header->next = blkno;
		header->next_seq = seq;
	}
	else
	{
		meta->pending_head = blkno;
		meta->pending_head_seq = seq;
	}
	meta->pending_tail = blkno;

	pending_init(GenericXLogRegisterBuffer(state, buf,
										   GENERIC_XLOG_FULL_IMAGE),
				 seq, InvalidBlockNumber, 0, tid, tid != NULL);
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);
}

/*
 * Sets dims and dims_flags in a metapage that the caller has locked
 * exclusively.  Writes one WAL record, which covers the metapage only.
 */
static void
set_dims(Relation index, Buffer metabuf, int dims, int flags)
{
	GenericXLogState *state = GenericXLogStart(index);
	IvfpqMetaData *meta;

	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, metabuf, 0));
	meta->dims = dims;
	meta->dims_flags = flags;
	GenericXLogFinish(state);
}

/*
 * Compares a row's dimensions with a metapage that the caller has locked.
 * Returns DIMS_UNSET if record_dims must change the metapage first.
 */
static DimsVerdict
check_dims(const IvfpqMetaData *meta, int dims)
{
	if (dims == 0)
		return meta->dims_flags & IVFPQ_DIMS_CHECKED ? DIMS_UNSET : DIMS_FIT;
	if (meta->dims == 0)
		return DIMS_UNSET;
	return meta->dims == dims ? DIMS_FIT : DIMS_DIFFER;
}

/*
 * Records the dimensions of the row that is about to be added, because
 * check_dims returned DIMS_UNSET: the metapage then has these dimensions.  If
 * dims is 0, records that not all pending rows are checked.  The caller has
 * locked the metapage exclusively.  Writes one WAL record, which covers the
 * metapage only.
 */
static void
record_dims(Relation index, Buffer metabuf, int dims)
{
	IvfpqMetaData meta = *IvfpqMetaGet(index, BufferGetPage(metabuf));

	if (dims == 0)
		set_dims(index, metabuf, meta.dims,
				 meta.dims_flags & ~IVFPQ_DIMS_CHECKED);
	else
		set_dims(index, metabuf, dims,
				 meta.dims_flags | IVFPQ_DIMS_BY_ROW |
				 (meta.pending_head == InvalidBlockNumber ?
				  IVFPQ_DIMS_CHECKED : 0));
}

/*
 * Makes `dims` the dimensions that rows must have, unless they are set
 * already.  Returns the dimensions that rows must have.  Writes no WAL record,
 * or one that covers the metapage only.
 */
int
IvfpqPendingSettleDims(Relation index, int dims)
{
	Buffer		metabuf;

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	if (check_dims(IvfpqMetaGet(index, BufferGetPage(metabuf)),
				   dims) == DIMS_UNSET)
		record_dims(index, metabuf, dims);
	dims = IvfpqMetaGet(index, BufferGetPage(metabuf))->dims;
	UnlockReleaseBuffer(metabuf);
	return dims;
}

/*
 * Lets the next row of an untrained index determine the dimensions anew,
 * because all pending rows are dead.  The caller has read the pending list and
 * has found no row that any snapshot may ever see.  `last` is the caller's
 * reader, at the last page of the list, which has `count` TIDs.
 *
 * Returns false if no row has determined the dimensions, or if rows were
 * appended after that page was read.  Also compares the page's LSN and TIDs,
 * because VACUUM may have removed as many rows as were appended.  If the
 * result is true, writes one WAL record, which covers the metapage only.
 */
bool
IvfpqPendingFreeDims(Relation index, const IvfpqPendingReader *last, int count)
{
	Buffer		metabuf;
	IvfpqMetaData meta;
	bool		may;

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	meta = *IvfpqMetaGet(index, BufferGetPage(metabuf));
	may = meta.nlists == 0 && meta.dims > 0 &&
		(meta.dims_flags & IVFPQ_DIMS_BY_ROW) &&
		meta.pending_tail == last->place.page;
	if (may && meta.pending_tail != InvalidBlockNumber)
	{
		Buffer		buf = IvfpqReadPage(index, meta.pending_tail,
										BUFFER_LOCK_SHARE,
										IVFPQ_KIND_PENDING, NULL);
		Page		page = BufferGetPage(buf);

		/* an index that is not WAL-logged has no LSNs */
		may = pending_is(page, last->place.seq) &&
			pending_get(page)->count == (uint32) count &&
			(!RelationNeedsWAL(index) || PageGetLSN(page) == last->lsn) &&
			memcmp(pending_tids(page), last->tids,
				   count * sizeof(ItemPointerData)) == 0;
		UnlockReleaseBuffer(buf);
	}
	if (may)
		set_dims(index, metabuf, 0,
				 meta.dims_flags & ~IVFPQ_DIMS_BY_ROW);
	UnlockReleaseBuffer(metabuf);
	return may;
}

/*
 * Appends the TID of a row with `dims` dimensions, and returns the dimensions
 * that rows must have, which the first row determines.  A row with other
 * dimensions is not appended.  If dims is 0, the row's dimensions are not
 * compared, because the row is dead to nearly all snapshots.
 *
 * Inserters take a share lock on the metapage, and lock the tail one after
 * another.  The WAL record that appends the TID covers the tail only.  An
 * inserter that finds the tail full, or inserts the first row, locks the
 * metapage exclusively and checks again.
 */
int
IvfpqPendingAppend(Relation index, ItemPointer tid, int dims)
{
	int			mode = BUFFER_LOCK_SHARE;
	bool		done = false;

	while (!done)
	{
		Buffer		metabuf;
		Buffer		tailbuf = InvalidBuffer;
		BlockNumber tail;
		DimsVerdict verdict;

		metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, mode, IVFPQ_KIND_META,
								NULL);
		verdict = check_dims(IvfpqMetaGet(index, BufferGetPage(metabuf)),
							 dims);
		if (verdict == DIMS_DIFFER)
		{
			dims = IvfpqMetaGet(index, BufferGetPage(metabuf))->dims;
			UnlockReleaseBuffer(metabuf);
			return dims;
		}
		if (verdict == DIMS_UNSET && mode == BUFFER_LOCK_EXCLUSIVE)
		{
			record_dims(index, metabuf, dims);
			verdict = DIMS_FIT;
		}
		tail = IvfpqMetaGet(index, BufferGetPage(metabuf))->pending_tail;
		if (verdict == DIMS_FIT && tail != InvalidBlockNumber)
		{
			tailbuf = IvfpqReadPage(index, tail, BUFFER_LOCK_EXCLUSIVE,
									IVFPQ_KIND_PENDING, NULL);
			if (pending_get(BufferGetPage(tailbuf))->count <
				(uint32) IVFPQ_PENDING_PER_PAGE)
			{
				GenericXLogState *state = GenericXLogStart(index);
				Page		page = GenericXLogRegisterBuffer(state, tailbuf, 0);

				pending_tids(page)[pending_get(page)->count++] = *tid;
				IvfpqPageSpecial(page)->flags &= ~IVFPQ_PENDING_MISMATCHED;
				GenericXLogFinish(state);
				done = true;
			}
		}
		if (!done && mode == BUFFER_LOCK_EXCLUSIVE)
		{
			pending_add_tail(index, metabuf, tailbuf, tid, 0);
			done = true;
		}
		if (BufferIsValid(tailbuf))
			UnlockReleaseBuffer(tailbuf);
		UnlockReleaseBuffer(metabuf);
		mode = BUFFER_LOCK_EXCLUSIVE;
	}
	return dims;
}

/*
 * Freezes the pending list up to its last TID.  From then on the tail is an
 * empty page, which takes the rows that come later.  If `renumber` is true, as
 * many sequence numbers as the list has are left free below the new tail's
 * number, and enough for `more` TIDs besides, for pages that will replace the
 * frozen ones.  Returns false if there is no list and `more` is 0.
 *
 * Writes one WAL record, which covers the metapage, the old tail and the new
 * tail, unless the tail is empty already and `renumber` is false.
 */
bool
IvfpqPendingFreeze(Relation index, IvfpqFrozen *frozen, bool renumber,
				   int64 more)
{
	Buffer		metabuf;
	Buffer		tailbuf;
	IvfpqMetaData *meta;
	bool		exists;
	uint64		gap = pages_needed(more);

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	meta = IvfpqMetaGet(index, BufferGetPage(metabuf));
	if (meta->pending_tail == InvalidBlockNumber && more > 0)
		pending_add_tail(index, metabuf, InvalidBuffer, NULL, 0);
	exists = meta->pending_tail != InvalidBlockNumber;
	if (exists)
	{
		tailbuf = IvfpqReadPage(index, meta->pending_tail,
								BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_PENDING,
								NULL);
		frozen->head = meta->pending_head;
		frozen->head_seq = meta->pending_head_seq;
		frozen->tail_seq = pending_get(BufferGetPage(tailbuf))->seq;
		/* other sequence numbers are computed from those of head and tail */
		if (frozen->head == meta->pending_tail ?
			frozen->head_seq != frozen->tail_seq :
			frozen->head_seq >= frozen->tail_seq)
			IvfpqCorrupted(index, IVFPQ_METAPAGE,
						   "the pending list's pages do not ascend");
		frozen->least_seq = frozen->head_seq;
		if (renumber)
		{
			gap += frozen->tail_seq - frozen->head_seq + 1;
			frozen->least_seq = frozen->tail_seq + 1;
		}
		if (renumber || pending_get(BufferGetPage(tailbuf))->count > 0)
		{
			pending_add_tail(index, metabuf, tailbuf, NULL, gap);
			frozen->tail_seq += gap + 1;
		}
		frozen->tail = meta->pending_tail;
		UnlockReleaseBuffer(tailbuf);
	}
	UnlockReleaseBuffer(metabuf);
	return exists;
}

/*
 * Writes TIDs to new pending pages, which lead to the tail after the frozen
 * part.  Makes the first of these pages the pending head in *meta.  No reader
 * finds the pages until *meta is published.  Writes one WAL record for each
 * page.
 *
 * The new pages take the highest sequence numbers below that of the tail.
 * These are numbers of frozen pages, which hold at least as many TIDs, or
 * numbers that freezing left free.
 */
void
IvfpqPendingKeep(Relation index, const IvfpqFrozen *frozen,
				 const ItemPointerData *tids, int64 ntids,
				 IvfpqMetaData *meta)
{
	meta->pending_head = frozen->tail;
	meta->pending_head_seq = frozen->tail_seq;
	while (ntids > 0)
	{
		int			count = (int) Min(ntids, IVFPQ_PENDING_PER_PAGE);
		GenericXLogState *state;
		Buffer		buf;

		CHECK_FOR_INTERRUPTS();
		if (meta->pending_head_seq <= frozen->least_seq)
			elog(ERROR, "number of pending rows increased");
		ntids -= count;
		buf = IvfpqGetFreePage(index);
		state = GenericXLogStart(index);
		pending_init(GenericXLogRegisterBuffer(state, buf,
											   GENERIC_XLOG_FULL_IMAGE),
					 meta->pending_head_seq - 1, meta->pending_head,
					 meta->pending_head_seq, tids + ntids, count);
		GenericXLogFinish(state);
		meta->pending_head = BufferGetBlockNumber(buf);
		meta->pending_head_seq--;
		UnlockReleaseBuffer(buf);
		IvfpqInjectionPoint("train: kept");
	}
}

/*
 * Atomically turns the index, which had *old, into the trained index that
 * *trained describes.  Keeps the pending tail and the dims flags, which may
 * have changed during training.  If the index was trained before, notes the
 * next XID.  A backend that still reads the old pages has a snapshot or an XID
 * that is older.  Writes one WAL record, which covers the metapage only.
 */
void
IvfpqPendingPublish(Relation index, const IvfpqMetaData *old,
					const IvfpqMetaData *trained)
{
	Buffer		metabuf;
	GenericXLogState *state;
	IvfpqMetaData *meta;
	BlockNumber tail;
	int			flags;

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	state = GenericXLogStart(index);
	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, metabuf, 0));
	if (meta->build_id != old->build_id || meta->nlists != old->nlists)
		elog(ERROR, "index \"%s\" was trained concurrently",
			 RelationGetRelationName(index));
	if (meta->dims != trained->dims)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("dimensions of index \"%s\" changed from %d to %d during training",
						RelationGetRelationName(index), trained->dims,
						meta->dims),
				 errhint("Call gpuvec_train again.")));
	tail = meta->pending_tail;
	flags = meta->dims_flags;
	*meta = *trained;
	meta->pending_tail = tail;
	meta->dims_flags = flags;
	if (old->nlists > 0)
		meta->retired_xid = U64FromFullTransactionId(ReadNextFullTransactionId());
	GenericXLogFinish(state);
	UnlockReleaseBuffer(metabuf);
}

/*
 * Frees the frozen pages, to which no link leads any more.  Writes one WAL
 * record for each page.  If a crash leaves some of them, VACUUM reclaims them.
 */
void
IvfpqPendingFree(Relation index, const IvfpqFrozen *frozen)
{
	BlockNumber blkno = frozen->head;
	uint64		seq = frozen->head_seq;

	while (blkno != frozen->tail)
	{
		Buffer		buf;
		IvfpqPendingHeader header;

		CHECK_FOR_INTERRUPTS();
		buf = IvfpqReadPage(index, blkno, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_PENDING, NULL);
		if (!pending_is(BufferGetPage(buf), seq))
			IvfpqCorrupted(index, blkno,
						   "it is not the next page of the pending list");
		header = *pending_get(BufferGetPage(buf));
		IvfpqFreePage(index, buf);
		UnlockReleaseBuffer(buf);
		RecordPageWithFreeSpace(index, blkno, BLCKSZ - 1);
		blkno = header.next;
		seq = header.next_seq;
		IvfpqInjectionPoint("pending: freed");
	}
	FreeSpaceMapVacuum(index);
}

/*
 * Removes the TID from the page at `place`, as part of the WAL record `state`.
 * The page's last TID takes the position of the removed TID.  Returns the
 * page's buffer, which stays locked until the caller has finished the WAL
 * record.
 */
Buffer
IvfpqPendingRemove(Relation index, const IvfpqPendingPlace *place,
				   const ItemPointerData *tid, GenericXLogState *state)
{
	Buffer		buf;
	IvfpqPendingHeader *header;
	ItemPointerData *tids;
	uint32		i = 0;
	Page		page;

	buf = IvfpqReadPage(index, place->page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_PENDING, NULL);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = pending_get(page);
	tids = pending_tids(page);
	if (!pending_is(page, place->seq))
		IvfpqCorrupted(index, place->page,
					   "it is not the next page of the pending list");
	while (i < header->count &&
		   memcmp(&tids[i], tid, sizeof(ItemPointerData)) != 0)
		i++;
	if (i == header->count)
		elog(ERROR, "row (%u,%u) is not pending",
			 ItemPointerGetBlockNumberNoCheck(tid),
			 ItemPointerGetOffsetNumberNoCheck(tid));
	tids[i] = tids[--header->count];
	return buf;
}

/*
 * Marks the page at `place` as mismatched, because no list can take any of its
 * `count` rows.  Does nothing if the page has another number of rows now.
 * Writes one WAL record, which covers this page only.
 */
void
IvfpqPendingSetMismatched(Relation index, const IvfpqPendingPlace *place,
						  int count)
{
	GenericXLogState *state;
	Buffer		buf;
	Page		page;

	buf = IvfpqReadPage(index, place->page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_PENDING, NULL);
	page = BufferGetPage(buf);
	if (pending_is(page, place->seq) &&
		pending_get(page)->count == (uint32) count)
	{
		state = GenericXLogStart(index);
		page = GenericXLogRegisterBuffer(state, buf, 0);
		IvfpqPageSpecial(page)->flags |= IVFPQ_PENDING_MISMATCHED;
		GenericXLogFinish(state);
	}
	UnlockReleaseBuffer(buf);
}

/*
 * Allocates a page for the compacted list, and returns its buffer, pinned but
 * not locked.  Immediately makes the page a pending page, because a free page
 * could be taken by another backend that got its number from the free space
 * map earlier.  Writes one WAL record, which covers this page only.
 */
static Buffer
take_page(Relation index, uint64 seq)
{
	Buffer		buf = IvfpqGetFreePage(index);
	GenericXLogState *state = GenericXLogStart(index);

	pending_init(GenericXLogRegisterBuffer(state, buf,
										   GENERIC_XLOG_FULL_IMAGE),
				 seq, InvalidBlockNumber, 0, NULL, 0);
	GenericXLogFinish(state);
	LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	return buf;
}

/*
 * Writes the gathered TIDs to page to->buf.  Unless it is the last page, also
 * allocates the next page.  Writes one WAL record for each of the two pages.
 */
static void
write_page(Compaction *to)
{
	Relation	index = to->index;
	bool		last = to->seq + 1 == to->frozen->tail_seq;
	Buffer		next = last ? InvalidBuffer : take_page(index, to->seq + 1);
	GenericXLogState *state;
	Page		page;

	LockBuffer(to->buf, BUFFER_LOCK_EXCLUSIVE);
	if (!pending_is(BufferGetPage(to->buf), to->seq))
		elog(ERROR, "block %u of index \"%s\" is already in use",
			 BufferGetBlockNumber(to->buf), RelationGetRelationName(index));
	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, to->buf, GENERIC_XLOG_FULL_IMAGE);
	pending_init(page, to->seq,
				 last ? to->frozen->tail : BufferGetBlockNumber(next),
				 to->seq + 1, to->tids, to->count);
	if (to->mismatched)
		IvfpqPageSpecial(page)->flags |= IVFPQ_PENDING_MISMATCHED;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(to->buf);
	to->buf = next;
	to->seq++;
	to->count = 0;
	to->mismatched = true;
	IvfpqInjectionPoint("compact: page");
}

/*
 * Rewrites the pending list without holes.  When the new pages are written,
 * one WAL record, which covers the metapage only, makes the first new page the
 * head of the list.
 */
void
IvfpqPendingCompact(Relation index)
{
	IvfpqFrozen frozen;
	IvfpqPendingReader reader;
	Compaction	to = {.index = index, .frozen = &frozen, .mismatched = true};
	BlockNumber head;
	uint64		head_seq;
	int64		ntids = 0;
	int64		npages;
	int			count;
	Buffer		metabuf;
	GenericXLogState *state;
	IvfpqMetaData *meta;

	if (!IvfpqPendingFreeze(index, &frozen, true, 0))
		return;
	IvfpqInjectionPoint("compact: sealed");

	/* count the TIDs, which says how many pages they need */
	pending_open_frozen(&reader, index, &frozen);
	while (reader.next != frozen.tail && IvfpqPendingNext(&reader, &count))
		ntids += count;
	IvfpqPendingClose(&reader);
	npages = pages_needed(ntids);
	head = frozen.tail;
	head_seq = frozen.tail_seq - npages;
	if (npages > 0)
	{
		to.tids = palloc(IVFPQ_PENDING_PER_PAGE * sizeof(ItemPointerData));
		to.seq = head_seq;
		to.buf = take_page(index, to.seq);
		head = BufferGetBlockNumber(to.buf);

		pending_open_frozen(&reader, index, &frozen);
		while (reader.next != frozen.tail &&
			   IvfpqPendingNext(&reader, &count))
		{
			IvfpqVacuumDelayPoint();
			for (int i = 0; i < count; i++)
			{
				if (to.count == IVFPQ_PENDING_PER_PAGE)
					write_page(&to);
				to.tids[to.count++] = reader.tids[i];
				to.mismatched &= reader.mismatched;
			}
		}
		write_page(&to);
		IvfpqPendingClose(&reader);
		pfree(to.tids);
	}

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	state = GenericXLogStart(index);
	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, metabuf, 0));
	meta->pending_head = head;
	meta->pending_head_seq = head_seq;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(metabuf);
	IvfpqInjectionPoint("compact: switched");
	IvfpqPendingFree(index, &frozen);
}

/*
 * Unlinks the head page if it is empty and is not the tail, and returns
 * whether it did.  Writes one WAL record, which covers the metapage and the
 * head page.
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
	header = pending_get(BufferGetPage(buf));
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
 * Frees the empty pages at the head of the list, and returns their number.
 * Only VACUUM and training may call this, because they exclude each other.
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
 * For VACUUM.  Calls the callback for every pending TID, removes the TIDs that
 * are dead, and frees pages that are not needed.  Returns the number of TIDs
 * that were removed, and sets *nleft to the number of TIDs that remain.
 * Writes one WAL record for each page that has dead TIDs, which covers this
 * page only.
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
		Buffer		buf;
		GenericXLogState *state;
		IvfpqPendingHeader *header;
		ItemPointerData *tids;
		Page		page;
		int			kept = 0;
		int			ndead;

		IvfpqVacuumDelayPoint();
		buf = IvfpqReadPage(index, blkno, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_PENDING, NULL);
		if (!pending_is(BufferGetPage(buf), seq))
			IvfpqCorrupted(index, blkno,
						   "it is not the next page of the pending list");
		state = GenericXLogStart(index);
		page = GenericXLogRegisterBuffer(state, buf, 0);
		header = pending_get(page);
		tids = pending_tids(page);
		for (uint32 i = 0; i < header->count; i++)
		{
			if (!ItemPointerIsValid(&tids[i]))
				IvfpqCorrupted(index, blkno, "TID %u is not valid", i);
			if (!callback(&tids[i], callback_state))
				tids[kept++] = tids[i];
		}
		ndead = header->count - kept;
		header->count = kept;
		blkno = header->next;
		seq = header->next_seq;
		if (ndead > 0)
			GenericXLogFinish(state);
		else
			GenericXLogAbort(state);
		UnlockReleaseBuffer(buf);
		removed += ndead;
		*nleft += kept;
		npages++;
	}
	npages -= IvfpqPendingTrim(index);
	if (npages > 2 * pages_needed(*nleft) + SPARE_PAGES)
		IvfpqPendingCompact(index);
	return removed;
}

/*
 * Prepares to reclaim pages: notes which pages are in the pending list, with
 * memory from the current context.  `retired` says whether pages of earlier
 * trainings may be freed, because nobody can read them any more.
 */
void
IvfpqReclaimBegin(IvfpqReclaim *reclaim, Relation index, bool retired)
{
	IvfpqMetaData meta;
	IvfpqPendingReader reader;
	int			count;

	IvfpqMetaRead(index, &meta);
	reclaim->index = index;
	reclaim->meta = meta;
	reclaim->retired = retired;
	reclaim->nblocks = RelationGetNumberOfBlocks(index);
	reclaim->listed = palloc_extended(reclaim->nblocks / 8 + 1,
									  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	reclaim->last_seq = 0;
	IvfpqPendingOpen(&reader, index, &meta);
	while (IvfpqPendingNext(&reader, &count))
	{
		if (reader.place.page < reclaim->nblocks)
			reclaim->listed[reader.place.page / 8] |=
				1 << (reader.place.page % 8);
		reclaim->last_seq = reader.place.seq;
	}
	IvfpqPendingClose(&reader);
}

/*
 * Returns whether the page is left over from training or a compaction that was
 * cut short, or from an earlier training whose pages may be freed.  A pending
 * page is not left over if its sequence number is higher than that of the last
 * page noted, because it was added after the list was read.
 */
static bool
is_left_over(const IvfpqReclaim *reclaim, BlockNumber blkno, Page page)
{
	int			training;

	if (IvfpqPageIs(page, IVFPQ_KIND_PENDING))
		return pending_get(page)->seq <= reclaim->last_seq &&
			(reclaim->listed[blkno / 8] & (1 << (blkno % 8))) == 0;
	if (IvfpqPageIs(page, IVFPQ_KIND_FREE))
		return !IvfpqPageIsFree(page);
	if (!IvfpqPageIsTrained(page))
		return false;
	if (reclaim->meta.nlists == 0)
		return true;
	training = IvfpqPageTraining(page, reclaim->meta.training);
	return training > 0 || (training < 0 && reclaim->retired);
}

/*
 * Frees the page if it is left over.  Writes one WAL record, which covers this
 * page only.  The page must not be a fixed page (IvfpqIsFixedPage).
 */
void
IvfpqReclaimPage(IvfpqReclaim *reclaim, BlockNumber blkno,
				 BufferAccessStrategy strategy)
{
	Buffer		buf;
	Page		page;
	bool		left_over;
	bool		is_free;

	if (blkno >= reclaim->nblocks)
		return;
	buf = ReadBufferExtended(reclaim->index, MAIN_FORKNUM, blkno, RBM_NORMAL,
							 strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buf);
	left_over = is_left_over(reclaim, blkno, page);
	is_free = PageIsNew(page) || IvfpqPageIs(page, IVFPQ_KIND_FREE);
	LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	if (left_over)
	{
		LockBuffer(buf, BUFFER_LOCK_EXCLUSIVE);
		if (is_left_over(reclaim, blkno, page))
		{
			IvfpqFreePage(reclaim->index, buf);
			is_free = true;
		}
		LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	}
	ReleaseBuffer(buf);
	if (is_free)
		RecordPageWithFreeSpace(reclaim->index, blkno, BLCKSZ - 1);
	if (left_over)
		IvfpqInjectionPoint("sweep");
}

/* Sets retired_xid.  Writes one WAL record, which covers the metapage only. */
static void
set_retired(Relation index, uint64 xid)
{
	Buffer		buf = IvfpqReadPage(index, IVFPQ_METAPAGE,
									BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_META,
									NULL);
	GenericXLogState *state = GenericXLogStart(index);
	Page		page = GenericXLogRegisterBuffer(state, buf, 0);

	IvfpqMetaGet(index, page)->retired_xid = xid;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);
}

/*
 * Ends a pass over all pages.  If it freed those of earlier trainings, notes
 * that there are none, by one WAL record, which covers the metapage only.
 */
void
IvfpqReclaimEnd(IvfpqReclaim *reclaim)
{
	pfree(reclaim->listed);
	if (reclaim->retired && reclaim->meta.retired_xid != 0)
		set_retired(reclaim->index, 0);
}

/*
 * Notes that pages of another training are about to be written, so that VACUUM
 * looks for them.  Writes no WAL record, or one that covers the metapage only.
 * The caller has a lock that keeps other processes from changing retired_xid.
 */
void
IvfpqReclaimLater(Relation index)
{
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	if (meta.retired_xid == 0)
		set_retired(index,
					U64FromFullTransactionId(ReadNextFullTransactionId()));
}

/* Reclaims all pages that are left over. */
void
IvfpqReclaimAll(Relation index, bool retired, BufferAccessStrategy strategy)
{
	IvfpqReclaim reclaim;

	IvfpqReclaimBegin(&reclaim, index, retired);
	for (BlockNumber blkno = IVFPQ_METAPAGE + 1;
		 blkno < reclaim.nblocks; blkno++)
	{
		IvfpqVacuumDelayPoint();
		if (!IvfpqIsFixedPage(&reclaim.meta, blkno))
			IvfpqReclaimPage(&reclaim, blkno, strategy);
	}
	IvfpqReclaimEnd(&reclaim);
	FreeSpaceMapVacuum(index);
}
