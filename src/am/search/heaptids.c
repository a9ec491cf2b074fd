/*
 * heaptids.c
 *		All TIDs of an index, in heap order, and the dimensions of its rows.
 *
 * TIDs.  Rows move from the pending list to lists, never back, until the index
 * is trained anew, which may happen at any moment.  So a reader of all TIDs
 * reads pending rows first, again if the index was trained meanwhile, and only
 * then the lists.
 *
 * Dimensions.  If the declaration of an index does not give the dimensions,
 * those of the first row are used, and the metapage records them
 * (page/pending.c).  Even so, pending rows may have other dimensions: a build
 * also makes dead rows of other dimensions pending, because older snapshots
 * may see them.  If the metapage does not give the dimensions, those of the
 * majority of the first rows are used, and pending rows of other dimensions
 * are left out.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/common/enginecall.h"
#include "am/search/heaptids.h"
#include "am/search/rerank.h"
#include "page/injection.h"
#include "page/listread.h"
#include "page/metapage.h"
#include "page/pending.h"

/* Maximum number of rows whose dimensions are examined. */
#define MAX_VOTES	100

/* The state of reading pending rows to find their dimensions or visibility. */
typedef struct PendingRows
{
	IvfpqType	type;
	IvfpqRerank rows;			/* fetches the rows */
	IvfpqPendingReader reader;
	int			count;			/* number of TIDs on the reader's page */
	int			next;			/* position of the next TID on that page */
	Snapshot	snapshot;
	MemoryContext context;
	MemoryContext oldcontext;
} PendingRows;

/* Puts those TIDs into the sort that are live, and returns their number. */
static int
put_tids(IvfpqSort *tids, const ItemPointerData *from, int count, uint32 live)
{
	int			n = 0;

	for (int i = 0; i < count; i++)
		if (live & (1U << (i % IVFPQ_BLOCK_POSTINGS)))
		{
			IvfpqSortPut(tids, Int64GetDatum((int64) IvfpqTidToId(&from[i])),
						 0, NULL);
			n++;
		}
	return n;
}

/* Puts the rows of pending pages before page `end` into the sort. */
static void
put_pending(IvfpqSort *tids, Relation index, const IvfpqMetaData *meta,
			BlockNumber end)
{
	IvfpqPendingReader reader;
	int			count;

	IvfpqPendingOpen(&reader, index, meta);
	while (reader.next != end && IvfpqPendingNext(&reader, &count))
	{
		(void) put_tids(tids, reader.tids, count, 0xFFFFFFFF);
		IvfpqInjectionPoint("read: pending page");
	}
	IvfpqPendingClose(&reader);
}

/*
 * Sorts the TIDs of all entries that are not dead.  The caller reads them with
 * IvfpqNextTid, and ends the sort.  With a condition on keys, leaves out those
 * rows in lists whose abbreviated keys do not satisfy it.  Pending rows have
 * no abbreviated keys, so none of them is left out.
 *
 * Returns false and stops reading if lists have more than `most` of these
 * entries.
 */
bool
IvfpqSortTids(IvfpqSort *tids, Relation index, const GvCondition *condition,
			  int64 most, int memory_kb)
{
	IvfpqMetaData meta;
	BufferAccessStrategy strategy;
	IvfpqListReader reader;
	IvfpqBlockView view;
	int64		n = 0;

	IvfpqSortBegin(tids, INT8OID, InvalidOid, 0, memory_kb);
	do
	{
		IvfpqMetaRead(index, &meta);
		put_pending(tids, index, &meta, InvalidBlockNumber);
	} while (!IvfpqPendingWasRead(index, &meta));
	if (meta.nlists > 0)
	{
		strategy = GetAccessStrategy(BAS_BULKREAD);
		IvfpqListReaderInit(&reader, index, &meta, NULL, strategy);
		if (condition != NULL)
			reader.wants = IvfpqWantsBlock;
		reader.wants_arg = condition;
		for (int list = 0; list < meta.nlists && n <= most; list++)
		{
			CHECK_FOR_INTERRUPTS();
			IvfpqListOpen(&reader, list);
			while (IvfpqListNext(&reader, &view))
			{
				uint32		live = view.live;

				if (view.passed_over)
					continue;
				if (condition != NULL)
					live &= gv_match(condition, view.keys);
				n += put_tids(tids, view.tids, IVFPQ_BLOCK_POSTINGS, live);
			}
		}
		IvfpqListReaderFree(&reader);
		FreeAccessStrategy(strategy);
	}
	IvfpqSortPerform(tids);
	return n <= most;
}

/* Like IvfpqSortTids, for the frozen part of the pending list. */
void
IvfpqSortFrozen(IvfpqSort *tids, Relation index, const IvfpqFrozen *frozen,
				int memory_kb)
{
	IvfpqMetaData meta;

	IvfpqSortBegin(tids, INT8OID, InvalidOid, 0, memory_kb);
	IvfpqMetaRead(index, &meta);
	meta.pending_head = frozen->head;
	meta.pending_head_seq = frozen->head_seq;
	put_pending(tids, index, &meta, frozen->tail);
	IvfpqSortPerform(tids);
}

/*
 * Sets *id to the next TID above *id, or returns false if there is none.  The
 * caller sets *id to 0 at first, which is no TID.  A TID is returned once,
 * even if its entry was read twice or its row has two postings.
 */
bool
IvfpqNextTid(IvfpqSort *tids, uint64 *id)
{
	uint64		last = *id;

	while (*id == last)
	{
		CHECK_FOR_INTERRUPTS();
		if (!IvfpqSortNext(tids))
			return false;
		*id = (uint64) DatumGetInt64(tids->keys[0]);
	}
	return true;
}

/* Opens the pending list at its oldest row, with the latest snapshot. */
static void
begin_pending(PendingRows *pending, Relation heap, Relation index,
			  const IvfpqMetaData *meta)
{
	memset(pending, 0, sizeof(*pending));
	pending->context = AllocSetContextCreate(CurrentMemoryContext,
											 "gpuivfpq dimensions",
											 ALLOCSET_DEFAULT_SIZES);
	pending->oldcontext = MemoryContextSwitchTo(pending->context);
	pending->snapshot = RegisterSnapshot(IsInParallelMode() ?
										 GetActiveSnapshot() :
										 GetLatestSnapshot());
	IvfpqTypeInit(&pending->type, index);
	IvfpqRerankBegin(&pending->rows, heap, index, pending->snapshot);
	IvfpqPendingOpen(&pending->reader, index, meta);
	pending->reader.place.page = InvalidBlockNumber;
}

static void
end_pending(PendingRows *pending)
{
	IvfpqPendingClose(&pending->reader);
	IvfpqRerankEnd(&pending->rows);
	UnregisterSnapshot(pending->snapshot);
	MemoryContextSwitchTo(pending->oldcontext);
	MemoryContextDelete(pending->context);
}

/* Sets *tid to the next pending row.  Returns false at the end. */
static bool
next_tid(PendingRows *pending, ItemPointer tid)
{
	CHECK_FOR_INTERRUPTS();
	while (pending->next == pending->count)
	{
		int			count;

		if (!IvfpqPendingNext(&pending->reader, &count))
			return false;
		pending->count = count;
		pending->next = 0;
	}
	*tid = pending->reader.tids[pending->next++];
	return true;
}

/*
 * Sets *tid to the next pending row that the snapshot sees, and *dims to its
 * dimensions.  Returns false at the end.
 */
static bool
next_dims(PendingRows *pending, ItemPointer tid, int *dims)
{
	while (next_tid(pending, tid))
	{
		if (IvfpqRerankFetchVector(&pending->rows, &pending->type,
								   IvfpqTidToId(tid), dims) == NULL)
			continue;
		IvfpqRerankDone(&pending->rows);
		return true;
	}
	return false;
}

/*
 * Returns the dimensions of the index's rows.  If the metapage does not give
 * them, returns those of the majority of the first visible pending rows, or 0
 * if no pending row is visible.
 */
int
IvfpqRowDims(Relation heap, Relation index, const IvfpqMetaData *meta)
{
	PendingRows pending;
	ItemPointerData tid;
	int			dims = 0;
	int			votes = 0;
	int			one;

	if (meta->dims > 0 || meta->pending_head == InvalidBlockNumber)
		return meta->dims;
	begin_pending(&pending, heap, index, meta);
	for (int n = 0; n < MAX_VOTES && next_dims(&pending, &tid, &one); n++)
	{
		if (votes == 0)
			dims = one;
		votes += one == dims ? 1 : -1;
	}
	end_pending(&pending);
	return dims;
}

/*
 * Sets *dims to the dimensions of the index's rows, and returns the number of
 * visible pending rows of other dimensions.  If the number is not 0, sets
 * *first and *first_dims to the TID and the dimensions of the first such row.
 */
int64
IvfpqFindMismatched(Relation heap, Relation index, const IvfpqMetaData *meta,
					int *dims, ItemPointer first, int *first_dims)
{
	PendingRows pending;
	ItemPointerData tid;
	int64		count = 0;
	int			one;

	*dims = IvfpqRowDims(heap, index, meta);
	if (*dims == 0 || (meta->dims_flags & IVFPQ_DIMS_CHECKED) ||
		meta->pending_head == InvalidBlockNumber)
		return 0;
	begin_pending(&pending, heap, index, meta);
	while (pending.type.typmod_dims == 0 && next_dims(&pending, &tid, &one))
	{
		if (one == *dims || count++ > 0)
			continue;
		*first = tid;
		*first_dims = one;
	}
	end_pending(&pending);
	return count;
}

/*
 * Returns whether a query of an untrained index must have the dimensions that
 * the metapage gives.  Dimensions that were taken from a row are required only
 * while some pending row is committed and not deleted.
 */
bool
IvfpqDimsBind(Relation heap, Relation index, const IvfpqMetaData *meta)
{
	PendingRows pending;
	ItemPointerData tid;
	bool		visible = false;

	if (meta->dims > 0 && !(meta->dims_flags & IVFPQ_DIMS_BY_ROW))
		return true;
	begin_pending(&pending, heap, index, meta);
	while (!visible && next_tid(&pending, &tid))
		visible = IvfpqRerankFetch(&pending.rows, IvfpqTidToId(&tid), NULL);
	end_pending(&pending);
	return visible;
}

/*
 * If all pending rows were rolled back or deleted, so that no snapshot will
 * ever see one of them, resets the dimensions, and the next row sets them.
 * Returns true if the dimensions may have changed, and false if some snapshot
 * may see a pending row.
 *
 * If all pending rows that are not dead belong to transactions that may still
 * be rolled back, waits for one of these transactions, as a unique index does,
 * and returns true.  An error during the wait names tid, the row that is being
 * inserted.
 */
bool
IvfpqFreeDims(Relation heap, Relation index, const IvfpqMetaData *meta,
			  ItemPointer tid)
{
	PendingRows pending;
	SnapshotData dirty;
	ItemPointerData other;
	TransactionId awaited = InvalidTransactionId;
	bool		dead = true;

	if (!(meta->dims_flags & IVFPQ_DIMS_BY_ROW))
		return false;
	begin_pending(&pending, heap, index, meta);
	InitDirtySnapshot(dirty);
	pending.rows.snapshot = &dirty;
	pending.rows.want_all_dead = true;
	while (dead && next_tid(&pending, &other))
	{
		/*
		 * Pass NULL, so that no expression is computed on a row that the
		 * inserter may be unable to see.
		 */
		if (!IvfpqRerankFetch(&pending.rows, IvfpqTidToId(&other), NULL))
			dead = pending.rows.all_dead;
		else if (TransactionIdIsValid(dirty.xmin))
			awaited = dirty.xmin;
		else
			dead = false;
	}
	IvfpqInjectionPoint("dims: asked");
	if (dead && !TransactionIdIsValid(awaited))
		dead = IvfpqPendingFreeDims(index, &pending.reader, pending.count);
	end_pending(&pending);
	if (dead && TransactionIdIsValid(awaited))
		XactLockTableWait(awaited, heap, tid, XLTW_InsertIndex);
	return dead;
}
