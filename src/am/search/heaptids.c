/*
 * heaptids.c
 *		Every TID of an index, in heap order.
 */
#include "postgres.h"

#include "access/xact.h"
#include "am/search/rerank.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/tuplesort.h"

#include "am/common/enginecall.h"
#include "am/search/heaptids.h"
#include "page/injection.h"
#include "page/listread.h"
#include "page/pending.h"

static void
put_tids(Tuplesortstate *sort, const ItemPointerData *tids, int count,
		 uint32 live)
{
	for (int i = 0; i < count; i++)
		if (live & (1U << (i % IVFPQ_BLOCK_POSTINGS)))
			tuplesort_putdatum(sort,
							   Int64GetDatum((int64) IvfpqTidToId(&tids[i])),
							   false);
}

/* The pending rows on pages before `end`. */
static void
put_pending(Tuplesortstate *sort, Relation index, const IvfpqMetaData *meta,
			BlockNumber end)
{
	IvfpqPendingReader reader;
	int			count;

	IvfpqPendingOpen(&reader, index, meta);
	while (reader.next != end && IvfpqPendingNext(&reader, &count))
	{
		put_tids(sort, reader.tids, count, 0xFFFFFFFF);
		IvfpqInjectionPoint("read: pending page");
	}
	IvfpqPendingClose(&reader);
}

/* Those in lists; with a condition on keys only those that satisfy it. */
static void
put_lists(Tuplesortstate *sort, Relation index, const IvfpqMetaData *meta,
		  const GvCondition *condition)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	IvfpqListReader reader;
	IvfpqBlockView view;

	IvfpqListReaderInit(&reader, index, meta, strategy);
	if (condition != NULL)
		reader.wants = IvfpqWantsBlock;
	reader.wants_arg = condition;
	for (int list = 0; list < meta->nlists; list++)
	{
		CHECK_FOR_INTERRUPTS();
		IvfpqListOpen(&reader, list);
		while (IvfpqListNext(&reader, &view))
		{
			uint32		wanted = view.live;

			if (view.passed_over)
				continue;
			if (condition != NULL)
				wanted &= gv_match(condition, view.keys);
			put_tids(sort, view.tids, IVFPQ_BLOCK_POSTINGS, wanted);
		}
	}
	IvfpqListReaderFree(&reader);
	FreeAccessStrategy(strategy);
}

static Tuplesortstate *
begin_sort(int sort_mem)
{
	return tuplesort_begin_datum(INT8OID, Int8LessOperator, InvalidOid, false,
								 sort_mem, NULL, TUPLESORT_NONE);
}

/*
 * Sort the TIDs of all entries that are not dead, as int8 (IvfpqTidToId); one
 * may come more than once.  Ready to be read; the caller ends the sort.  With
 * a condition on keys those whose abbreviated keys do not satisfy it are left
 * out, but not those pending, of which nothing is known.
 *
 * Rows move from the pending list to lists, never back, and an untrained
 * index may be trained at any moment.  So pending rows come first, and only
 * then the metapage says which lists there are.
 */
Tuplesortstate *
IvfpqSortTids(Relation index, const GvCondition *condition, int sort_mem)
{
	Tuplesortstate *sort = begin_sort(sort_mem);
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	put_pending(sort, index, &meta, InvalidBlockNumber);
	IvfpqMetaRead(index, &meta);
	if (meta.nlists > 0)
		put_lists(sort, index, &meta, condition);
	tuplesort_performsort(sort);
	return sort;
}

/* The same of the rows that were pending when the list was cut. */
Tuplesortstate *
IvfpqSortFrozen(Relation index, const IvfpqFrozen *frozen, int sort_mem)
{
	Tuplesortstate *sort = begin_sort(sort_mem);
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	meta.pending_head = frozen->head;
	meta.pending_head_seq = frozen->head_seq;
	put_pending(sort, index, &meta, frozen->tail);
	tuplesort_performsort(sort);
	return sort;
}

/* ----
 * How many dimensions the rows of an index have, where its declaration
 * leaves that to them.
 *
 * The first row decides, and the metapage says so (page/pending.c).  A build
 * also makes dead rows of another length pending, which older snapshots may
 * see.  In such an index the rows that came first are asked, and what is
 * pending in another length is passed over.
 */

/* Rows that are asked, at most. */
#define MAX_ASKED	100

/* Pending rows that are asked for their dimensions. */
typedef struct Inquiry
{
	Relation	heap;
	Relation	index;
	IvfpqType	type;
	IvfpqRerank rows;			/* fetches them */
	IvfpqPendingReader reader;
	int			count;			/* TIDs of the reader's page */
	int			next;			/* of them to be looked at */
	Snapshot	snapshot;
	MemoryContext context;
	MemoryContext oldcontext;
} Inquiry;

/* Begin with the oldest pending row, as of now. */
static void
begin_inquiry(Inquiry *inquiry, Relation heap, Relation index,
			  const IvfpqMetaData *meta)
{
	memset(inquiry, 0, sizeof(*inquiry));
	inquiry->heap = heap;
	inquiry->index = index;
	inquiry->context = AllocSetContextCreate(CurrentMemoryContext,
											 "gpuivfpq dimensions",
											 ALLOCSET_DEFAULT_SIZES);
	inquiry->oldcontext = MemoryContextSwitchTo(inquiry->context);
	inquiry->snapshot = RegisterSnapshot(IsInParallelMode() ?
										 GetActiveSnapshot() :
										 GetLatestSnapshot());
	IvfpqTypeInit(&inquiry->type, index);
	IvfpqRerankBegin(&inquiry->rows, heap, index, inquiry->snapshot);
	IvfpqPendingOpen(&inquiry->reader, index, meta);
	inquiry->reader.place.page = InvalidBlockNumber;
}

static void
end_inquiry(Inquiry *inquiry)
{
	IvfpqPendingClose(&inquiry->reader);
	IvfpqRerankEnd(&inquiry->rows);
	UnregisterSnapshot(inquiry->snapshot);
	MemoryContextSwitchTo(inquiry->oldcontext);
	MemoryContextDelete(inquiry->context);
}

/* The next pending TID; false at the end. */
static bool
next_tid(Inquiry *inquiry, ItemPointer tid)
{
	CHECK_FOR_INTERRUPTS();
	while (inquiry->next == inquiry->count)
	{
		int			count;

		if (!IvfpqPendingNext(&inquiry->reader, &count))
			return false;
		inquiry->count = count;
		inquiry->next = 0;
	}
	*tid = inquiry->reader.tids[inquiry->next++];
	return true;
}

/* The next visible pending row, and its dimensions; false at the end. */
static bool
next_dims(Inquiry *inquiry, ItemPointer tid, int *dims)
{
	while (next_tid(inquiry, tid))
	{
		MemoryContext oldcontext;
		Datum		value;

		if (!IvfpqRerankFetch(&inquiry->rows, IvfpqTidToId(tid), &value))
			continue;
		oldcontext = MemoryContextSwitchTo(inquiry->rows.context);
		(void) IvfpqValueFloats(&inquiry->type, value, dims);
		MemoryContextSwitchTo(oldcontext);
		IvfpqRerankDone(&inquiry->rows);
		return true;
	}
	return false;
}

/*
 * The dimensions that the index's rows have: as the metapage says or, where it
 * does not, as most of the first pending rows have; 0 if there are none.
 */
int
IvfpqRowDims(Relation heap, Relation index, const IvfpqMetaData *meta)
{
	Inquiry		inquiry;
	ItemPointerData tid;
	int			dims = 0;
	int			votes = 0;
	int			one;

	if (meta->dims > 0 || meta->pending_head == InvalidBlockNumber)
		return meta->dims;
	begin_inquiry(&inquiry, heap, index, meta);
	for (int n = 0; n < MAX_ASKED && next_dims(&inquiry, &tid, &one); n++)
	{
		if (votes == 0)
			dims = one;
		votes += one == dims ? 1 : -1;
	}
	end_inquiry(&inquiry);
	return dims;
}

/*
 * How many visible pending rows have other dimensions than *dims, which is
 * set to what rows should have; *first gets the first of them, *first_dims
 * its dimensions.
 */
int64
IvfpqFindMismatched(Relation heap, Relation index, const IvfpqMetaData *meta,
					int *dims, ItemPointer first, int *first_dims)
{
	Inquiry		inquiry;
	ItemPointerData tid;
	int64		count = 0;
	int			one;

	*dims = IvfpqRowDims(heap, index, meta);
	if (*dims == 0 || (meta->dims_flags & IVFPQ_DIMS_CHECKED) ||
		meta->pending_head == InvalidBlockNumber)
		return 0;
	begin_inquiry(&inquiry, heap, index, meta);
	while (inquiry.type.typmod_dims == 0 && next_dims(&inquiry, &tid, &one))
	{
		if (one == *dims)
			continue;
		if (count++ > 0)
			continue;
		*first = tid;
		*first_dims = one;
	}
	end_inquiry(&inquiry);
	return count;
}

/*
 * Must a query of an untrained index have the dimensions that its rows decided
 * on?  Not before one of them is committed, nor when all are gone.
 */
bool
IvfpqDimsBind(Relation heap, Relation index, const IvfpqMetaData *meta)
{
	Inquiry		inquiry;
	ItemPointerData tid;
	bool		sees = false;

	if (meta->dims > 0 && !(meta->dims_flags & IVFPQ_DIMS_BY_ROW))
		return true;
	begin_inquiry(&inquiry, heap, index, meta);
	while (!sees && next_tid(&inquiry, &tid))
		sees = IvfpqRerankSees(&inquiry.rows, IvfpqTidToId(&tid));
	end_inquiry(&inquiry);
	return sees;
}

/*
 * If no snapshot will ever see a pending row, the rows that decided on the
 * dimensions were rolled back or deleted: let the next row decide.  While all
 * others are of transactions that may yet be rolled back, wait for one of
 * these, as a unique index does.  True: the dimensions may be others now;
 * false if there is a row that may be seen.  tid: the row that is inserted.
 */
bool
IvfpqFreeDims(Relation heap, Relation index, const IvfpqMetaData *meta,
			  ItemPointer tid)
{
	Inquiry		inquiry;
	SnapshotData dirty;
	ItemPointerData pending;
	TransactionId awaited = InvalidTransactionId;
	bool		dead = true;

	if (!(meta->dims_flags & IVFPQ_DIMS_BY_ROW))
		return false;
	begin_inquiry(&inquiry, heap, index, meta);
	InitDirtySnapshot(dirty);
	inquiry.rows.snapshot = &dirty;
	inquiry.rows.asks_dead = true;
	while (dead && next_tid(&inquiry, &pending))
	{
		/* an expression is not computed: who inserts may not see the row */
		if (!IvfpqRerankSees(&inquiry.rows, IvfpqTidToId(&pending)))
			dead = inquiry.rows.all_dead;
		else if (TransactionIdIsValid(dirty.xmin))
			awaited = dirty.xmin;
		else
			dead = false;
	}
	IvfpqInjectionPoint("dims: asked");
	if (dead && !TransactionIdIsValid(awaited))
		dead = IvfpqPendingFreeDims(index, &inquiry.reader, inquiry.count);
	end_inquiry(&inquiry);
	if (dead && TransactionIdIsValid(awaited))
		XactLockTableWait(awaited, heap, tid, XLTW_InsertIndex);
	return dead;
}
