/*
 * pend.c
 *		Rows become pending, and decide what dimensions the rows of an index
 *		have where its declaration does not.
 *
 * A row is compared with the metapage under the lock under which it is
 * appended, so of two first rows that differ one is refused.
 */
#include "postgres.h"

#include "page/pending.h"

/*
 * Adds the TID to a locked tail page unless it is full.  One record, one page.
 */
static bool
append_to_tail(Relation index, Buffer buf, ItemPointer tid)
{
	GenericXLogState *state;
	Page		page;
	IvfpqPendingHeader *header;

	if (IvfpqPendingGet(BufferGetPage(buf))->count >=
		(uint32) IVFPQ_PENDING_PER_PAGE)
		return false;
	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqPendingGet(page);
	IvfpqPendingTids(page)[header->count++] = *tid;
	IvfpqPageSpecial(page)->flags &= ~IVFPQ_PENDING_MISMATCHED;
	GenericXLogFinish(state);
	return true;
}

/*
 * Add a tail page that holds the TID or, without one, is empty.  `gap` numbers
 * are left out before its own.  One record: metapage, old tail if any, new
 * page.  The metapage is exclusively locked.
 */
void
IvfpqPendingAddTail(Relation index, Buffer metabuf, Buffer tailbuf,
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
	seq = meta->pending_head_seq;
	if (BufferIsValid(tailbuf))
	{
		header = IvfpqPendingGet(GenericXLogRegisterBuffer(state, tailbuf, 0));
		seq = header->seq + 1 + gap;
		header->next = blkno;
		header->next_seq = seq;
	}
	else
		meta->pending_head = blkno;
	meta->pending_tail = blkno;

	IvfpqPendingInit(GenericXLogRegisterBuffer(state, buf,
											   GENERIC_XLOG_FULL_IMAGE),
					 seq, InvalidBlockNumber, 0, tid, tid != NULL);
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);
}

/* Change what an exclusively locked metapage says of dims.  One record. */
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
 * The locked metapage's answer to a row of `dims` dimensions that is to be
 * appended.  It may have to say more first, which takes an exclusive lock: that
 * this row decides, or, dims being 0, that not all rows are checked.
 */
typedef enum DimsVerdict
{
	DIMS_FIT,
	DIMS_UNSAID,
	DIMS_DIFFER
} DimsVerdict;

static DimsVerdict
judge_dims(const IvfpqMetaData *meta, int dims)
{
	if (dims == 0)
		return meta->dims_flags & IVFPQ_DIMS_CHECKED ? DIMS_UNSAID : DIMS_FIT;
	if (meta->dims == 0)
		return DIMS_UNSAID;
	return meta->dims == dims ? DIMS_FIT : DIMS_DIFFER;
}

/* Say it. */
static void
say_dims(Relation index, Buffer metabuf, int dims)
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
 * Let rows have `dims` dimensions from now on, unless that is decided.
 * Returns how many they have to have.  One record, the metapage, or none.
 */
int
IvfpqPendingSettleDims(Relation index, int dims)
{
	Buffer		metabuf;

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	if (judge_dims(IvfpqMetaGet(index, BufferGetPage(metabuf)),
				   dims) == DIMS_UNSAID)
		say_dims(index, metabuf, dims);
	dims = IvfpqMetaGet(index, BufferGetPage(metabuf))->dims;
	UnlockReleaseBuffer(metabuf);
	return dims;
}

/*
 * Let the next row of an untrained index decide on dimensions, because no row
 * is left of those that did: the caller has read the pending list to its last
 * page, where the reader is, with `count` TIDs, and found none of a row that
 * anyone may ever see.  False if rows have come since, also where VACUUM has
 * removed as many, or if it was no row that decided.  One record: the
 * metapage.
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

		/* what is not logged has no LSNs */
		may = IvfpqPendingIs(page, last->place.seq) &&
			IvfpqPendingGet(page)->count == (uint32) count &&
			(!RelationNeedsWAL(index) || PageGetLSN(page) == last->lsn) &&
			memcmp(IvfpqPendingTids(page), last->tids,
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
 * Append a TID of a row of `dims` dimensions.  The first row decides on those
 * of all; one of others is not appended.  Returns how many it should have.
 * dims = 0: whatever they are, it is a row that hardly anyone sees.
 *
 * Inserters share the metapage and take the tail one after another; whoever
 * finds it full, or is the first, takes the metapage exclusively and checks
 * again.
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
		verdict = judge_dims(IvfpqMetaGet(index, BufferGetPage(metabuf)),
							 dims);
		if (verdict == DIMS_DIFFER)
		{
			dims = IvfpqMetaGet(index, BufferGetPage(metabuf))->dims;
			UnlockReleaseBuffer(metabuf);
			return dims;
		}
		if (verdict == DIMS_UNSAID && mode == BUFFER_LOCK_EXCLUSIVE)
		{
			say_dims(index, metabuf, dims);
			verdict = DIMS_FIT;
		}
		tail = IvfpqMetaGet(index, BufferGetPage(metabuf))->pending_tail;
		if (verdict == DIMS_FIT && tail != InvalidBlockNumber)
		{
			tailbuf = IvfpqReadPage(index, tail, BUFFER_LOCK_EXCLUSIVE,
									IVFPQ_KIND_PENDING, NULL);
			done = append_to_tail(index, tailbuf, tid);
		}
		if (!done && mode == BUFFER_LOCK_EXCLUSIVE)
		{
			IvfpqPendingAddTail(index, metabuf, tailbuf, tid, 0);
			done = true;
		}
		if (BufferIsValid(tailbuf))
			UnlockReleaseBuffer(tailbuf);
		UnlockReleaseBuffer(metabuf);
		mode = BUFFER_LOCK_EXCLUSIVE;
	}
	return dims;
}
