/*
 * measure.c
 *		The operator's own distance of a row, from the heap's value that the
 *		scan's snapshot sees.
 */
#include "postgres.h"

#include <math.h>

#include "access/heapam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/codelimit.h"
#include "am/common/identity.h"
#include "am/common/tid.h"
#include "am/heap/measure.h"
#include "page/buffer/bufhint.h"

/* Is a column of the index an expression? */
static bool
has_expression(Relation index)
{
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
		if (index->rd_index->indkey.values[i] == 0)
			return true;
	return false;
}

/* Begin to fetch rows; memory from the current context. */
void
IvfpqMeasureBegin(IvfpqMeasure *measure, Relation heap, Relation index,
				  Snapshot snapshot)
{
	memset(measure, 0, sizeof(*measure));
	measure->index = index;
	measure->heap = heap;
	measure->heap_blocks = RelationGetNumberOfBlocks(heap);
	measure->snapshot = snapshot;
	measure->fetch = table_index_fetch_begin(heap);
	measure->slot = table_slot_create(heap, NULL);
	measure->is_heap = heap->rd_tableam == GetHeapamTableAmRoutine();
	measure->attnum = index->rd_index->indkey.values[0];
	if (has_expression(index))
	{
		MemoryContext oldcontext;

		measure->estate = CreateExecutorState();
		oldcontext = MemoryContextSwitchTo(measure->estate->es_query_cxt);
		measure->indexInfo = IvfpqIndexInfo(index);
		MemoryContextSwitchTo(oldcontext);
	}
	measure->context = AllocSetContextCreate(CurrentMemoryContext,
											 "gpuivfpq measure",
											 ALLOCSET_DEFAULT_SIZES);
	IvfpqMeasurePrefetch(measure, NULL, 0);
}

/* What to measure from now on: distance(row's value, query). */
void
IvfpqMeasureQuery(IvfpqMeasure *measure, FmgrInfo *distance, Oid collation,
				  Datum query)
{
	measure->distance = distance;
	measure->collation = collation;
	measure->query = query;
}

/* All that the index has of a row. */
static void
index_values(IvfpqMeasure *measure, TupleTableSlot *row, Datum *values,
			 bool *isnulls)
{
	GetPerTupleExprContext(measure->estate)->ecxt_scantuple = row;
	FormIndexDatum(measure->indexInfo, row, measure->estate, values, isnulls);
	IvfpqRowDone();
}

/* The indexed value of a row. */
static Datum
indexed_value(IvfpqMeasure *measure, TupleTableSlot *row, bool *isnull)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnulls[INDEX_MAX_KEYS];

	if (measure->attnum != 0)
		return slot_getattr(row, measure->attnum, isnull);
	index_values(measure, row, values, isnulls);
	*isnull = isnulls[0];
	return values[0];
}

/* Free what was computed of a row. */
static void
forget_row(IvfpqMeasure *measure)
{
	MemoryContextReset(measure->context);
	if (measure->estate)
		ResetPerTupleExprContext(measure->estate);
}

/* Rows that do not fulfill these tests do not pass. */
void
IvfpqMeasureKeys(IvfpqMeasure *measure, const IvfpqKeyTests *tests)
{
	measure->tests = tests;
}

/*
 * Do a row's keys fulfill what is asked of them: all of it, or what images do
 * not answer?  Nothing of the vector is touched, unless it is an expression.
 */
bool
IvfpqMeasureMatches(IvfpqMeasure *measure, TupleTableSlot *row, bool asks_all)
{
	const IvfpqKeyTests *tests = measure->tests;
	int			n = asks_all ? tests->nrows : tests->nrechecks;
	Datum		values[INDEX_MAX_KEYS] = {0};
	bool		isnulls[INDEX_MAX_KEYS] = {0};
	MemoryContext oldcontext;
	bool		matches;

	if (n == 0)
		return true;
	oldcontext = MemoryContextSwitchTo(measure->context);
	if (measure->indexInfo != NULL)
		index_values(measure, row, values, isnulls);
	else
		for (int i = 0; i < n; i++)
		{
			int			column = tests->rows[i].scan_key->sk_attno - 1;

			/* of the vector it is asked only that there is one, as there is */
			if (column > 0)
				values[column] =
					slot_getattr(row,
								 measure->index->rd_index->indkey.values[column],
								 &isnulls[column]);
		}
	matches = IvfpqKeyTestsFulfilled(tests, values, isnulls, !asks_all);
	MemoryContextSwitchTo(oldcontext);
	forget_row(measure);
	return matches;
}

/*
 * A damaged index may name a row that no table could have.  The table cannot
 * have been truncated since the entry was read, because that takes a lock
 * which the running statement excludes.
 */
static void
check_tid(IvfpqMeasure *measure, const ItemPointerData *tid)
{
	BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(tid);

	if (blkno >= measure->heap_blocks)
		measure->heap_blocks = RelationGetNumberOfBlocks(measure->heap);
	if (blkno >= measure->heap_blocks || !ItemPointerIsValid(tid))
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" points to row (%u,%u), which table \"%s\" cannot have",
						RelationGetRelationName(measure->index), blkno,
						ItemPointerGetOffsetNumberNoCheck(tid),
						RelationGetRelationName(measure->heap)),
				 errhint("Rebuild it with REINDEX; gpuvec_verify_index says where it is damaged.")));
}

/* Do rows mostly come from files, so that it helps to prefetch their pages? */
bool
IvfpqMeasureIsCold(const IvfpqMeasure *measure)
{
	return measure->is_heap && IvfpqPrefetchHelps(measure->heap);
}

/*
 * Pass over rows that have other dimensions, with one warning, unless *told;
 * dims = 0: measure all.
 */
void
IvfpqMeasureDims(IvfpqMeasure *measure, int dims, bool *told)
{
	measure->dims = dims;
	measure->told = told;
	if (dims > 0)
		IvfpqTypeInit(&measure->type, measure->index);
}

/*
 * Prefetch the pages of rows [n] that may be fetched, in this order, before
 * IvfpqMeasurePause; ids must stay as they are until then.  What pages rows
 * are on is known of heaps only.
 */
void
IvfpqMeasurePrefetch(IvfpqMeasure *measure, const uint64 *ids, int64 n)
{
	IvfpqPrefetchBegin(&measure->prefetch, measure->heap, ids,
					   measure->is_heap ? n : 0, IVFPQ_ID_SHIFT);
}

/* Are there rows left whose pages are to be prefetched? */
bool
IvfpqMeasureIsPrefetching(const IvfpqMeasure *measure)
{
	return measure->prefetch.next < measure->prefetch.n;
}

/*
 * The same of rows [n] of ascending ids that will all be fetched: they are
 * brought into the processor's cache as well.
 */
void
IvfpqMeasurePrefetchSorted(IvfpqMeasure *measure, const uint64 *ids, int64 n)
{
	IvfpqMeasurePrefetch(measure, ids, n);
	if (measure->is_heap)
		IvfpqPrefetchRowBegin(&measure->prefetch_row, measure->heap, ids, n);
}

/*
 * Have a heap's fetch begin with a page, which it would look for in the hash
 * table otherwise; its pin, `held` or one of our own, becomes the fetch's.
 */
static void
give_page(Relation heap, IndexFetchTableData *scan, BlockNumber blkno,
		  Buffer held)
{
	IndexFetchHeapData *fetch = (IndexFetchHeapData *) scan;

	if (BufferIsValid(fetch->xs_cbuf) &&
		BufferGetBlockNumber(fetch->xs_cbuf) == blkno)
	{
		if (BufferIsValid(held))
			ReleaseBuffer(held);
		return;
	}
	if (!BufferIsValid(held))
		held = IvfpqBufHintRead(heap, blkno, NULL);
	if (BufferIsValid(fetch->xs_cbuf))
		ReleaseBuffer(fetch->xs_cbuf);
	fetch->xs_cbuf = held;
	heap_page_prune_opt(heap, held);
}

/* Fetch the row that an index entry points to, if the snapshot sees one. */
static bool
fetch_row(IvfpqMeasure *measure, uint64 id)
{
	ItemPointerData tid;
	bool		call_again = false;

	IvfpqIdToTid(id, &tid);
	check_tid(measure, &tid);
	IvfpqPrefetchTo(&measure->prefetch, ItemPointerGetBlockNumber(&tid));
	if (measure->is_heap)
		give_page(measure->heap, measure->fetch,
				  ItemPointerGetBlockNumber(&tid),
				  IvfpqPrefetchRowTake(&measure->prefetch_row, id));
	return table_index_fetch_tuple(measure->fetch, &tid, measure->snapshot,
								   measure->slot, &call_again,
								   measure->asks_dead ?
								   &measure->all_dead : NULL);
}

/* Does the snapshot see the row that an index entry points to? */
bool
IvfpqMeasureSees(IvfpqMeasure *measure, uint64 id)
{
	bool		sees = fetch_row(measure, id);

	ExecClearTuple(measure->slot);
	return sees;
}

/*
 * Somebody else will fetch the row that an index entry points to: for
 * prefetching, which goes on, it is as if the page was read here.
 */
void
IvfpqMeasureForesee(IvfpqMeasure *measure, uint64 id)
{
	ItemPointerData tid;

	IvfpqIdToTid(id, &tid);
	check_tid(measure, &tid);
	IvfpqPrefetchTo(&measure->prefetch, ItemPointerGetBlockNumber(&tid));
	table_index_fetch_reset(measure->fetch);
}

/*
 * The executor will fetch the row that an index entry points to by a fetch of
 * its own: spare it the look for the page.
 */
void
IvfpqMeasureHandOver(const IvfpqMeasure *measure, IndexFetchTableData *fetch,
					 uint64 id)
{
	if (measure->is_heap)
		give_page(measure->heap, fetch, (BlockNumber) (id >> IVFPQ_ID_SHIFT),
				  InvalidBuffer);
}

/*
 * Get the indexed value of the row that an index entry points to, good until
 * IvfpqMeasureDone.  False when the snapshot sees no row there, or NULL, or
 * one that does not pass, which measure->rejected tells.
 */
bool
IvfpqMeasureFetch(IvfpqMeasure *measure, uint64 id, Datum *value)
{
	MemoryContext oldcontext;
	bool		isnull;

	measure->rejected = false;
	if (!fetch_row(measure, id))
		return false;
	if ((measure->tests != NULL &&
		 !IvfpqMeasureMatches(measure, measure->slot, measure->asks_all)) ||
		(measure->passes != NULL &&
		 !measure->passes(measure->passes_arg, measure->slot)))
	{
		measure->rejected = true;
		ExecClearTuple(measure->slot);
		return false;
	}

	oldcontext = MemoryContextSwitchTo(measure->context);
	*value = indexed_value(measure, measure->slot, &isnull);
	MemoryContextSwitchTo(oldcontext);
	if (isnull)
		IvfpqMeasureDone(measure);
	return !isnull;
}

/*
 * Values of all columns of the index, [INDEX_MAX_KEYS], of the row fetched;
 * good as long as its indexed value.
 */
void
IvfpqMeasureColumns(IvfpqMeasure *measure, Datum *values, bool *isnull)
{
	Relation	index = measure->index;
	MemoryContext oldcontext = MemoryContextSwitchTo(measure->context);

	if (measure->indexInfo != NULL)
		index_values(measure, measure->slot, values, isnull);
	else
		for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
			values[i] = slot_getattr(measure->slot,
									 index->rd_index->indkey.values[i],
									 &isnull[i]);
	MemoryContextSwitchTo(oldcontext);
}

/* Let go of the row fetched, and of all that was made in measure->context. */
void
IvfpqMeasureDone(IvfpqMeasure *measure)
{
	forget_row(measure);
	ExecClearTuple(measure->slot);
}

/* A row has other dimensions than the index, and is not measured: say so. */
static void
tell_odd(IvfpqMeasure *measure, const ItemPointerData *tid, int dims)
{
	if (*measure->told)
		return;
	*measure->told = true;
	ereport(WARNING,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("row (%u,%u) of table \"%s\" has %d dimensions, not the %d of index \"%s\", and is left out",
					ItemPointerGetBlockNumber(tid),
					ItemPointerGetOffsetNumber(tid),
					RelationGetRelationName(measure->heap), dims,
					measure->dims,
					RelationGetRelationName(measure->index)),
			 errhint("gpuvec_verify_index names all such rows; delete or update them.")));
}

/*
 * Has the indexed value of the row at tid the dimensions measure->dims?  *value
 * may become whole.  Call in measure->context.
 */
static bool
has_dims(IvfpqMeasure *measure, Datum *value, const ItemPointerData *tid)
{
	int			dims;

	if (measure->dims == 0)
		return true;
	if (!measure->type.has_toreal)
		*value = PointerGetDatum(PG_DETOAST_DATUM(*value));
	(void) IvfpqValueFloats(&measure->type, *value, &dims);
	if (dims == measure->dims)
		return true;
	tell_odd(measure, tid, dims);
	return false;
}

/*
 * Measure the indexed value of the row at tid.  False when it has other
 * dimensions than measure->dims.  Call in measure->context.
 */
static bool
measure_value(IvfpqMeasure *measure, Datum value, const ItemPointerData *tid,
			  double *distance)
{
	if (!has_dims(measure, &value, tid))
		return false;
	*distance = DatumGetFloat8(FunctionCall2Coll(measure->distance,
												 measure->collation,
												 value, measure->query));
	return true;
}

/*
 * Measure the row that an index entry points to.  False when the snapshot
 * sees no row there, one that does not pass (measure->rejected), or one of
 * other dimensions than measure->dims.
 */
bool
IvfpqMeasureRow(IvfpqMeasure *measure, uint64 id, double *distance)
{
	MemoryContext oldcontext;
	ItemPointerData tid;
	Datum		value;
	bool		measured;

	if (!IvfpqMeasureFetch(measure, id, &value))
		return false;
	IvfpqIdToTid(id, &tid);
	oldcontext = MemoryContextSwitchTo(measure->context);
	measured = measure_value(measure, value, &tid, distance);
	MemoryContextSwitchTo(oldcontext);
	IvfpqMeasureDone(measure);
	return measured;
}

/*
 * The same of a row that will be measured for many queries: its value whole in
 * memory, good until IvfpqMeasureDone; its TID is in measure->slot.
 */
bool
IvfpqMeasureWhole(IvfpqMeasure *measure, uint64 id, Datum *value)
{
	MemoryContext oldcontext;
	ItemPointerData tid;
	bool		fits;

	if (!IvfpqMeasureFetch(measure, id, value))
		return false;
	IvfpqIdToTid(id, &tid);
	oldcontext = MemoryContextSwitchTo(measure->context);
	*value = PointerGetDatum(PG_DETOAST_DATUM(*value));
	fits = has_dims(measure, value, &tid);
	MemoryContextSwitchTo(oldcontext);
	if (!fits)
		IvfpqMeasureDone(measure);
	return fits;
}

/*
 * Get ready to measure rows that do not come by the index, and may not be in
 * it: also without a query.
 */
void
IvfpqMeasureOthers(IvfpqMeasure *measure)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(measure->index);

	IvfpqTypeInit(&measure->type, measure->index);
	if (indexInfo->ii_Predicate == NIL)
		return;
	if (measure->estate == NULL)
		measure->estate = CreateExecutorState();
	measure->predicate = ExecPrepareQual(indexInfo->ii_Predicate,
										 measure->estate);
}

/* Is the row within the index's predicate? */
bool
IvfpqMeasureAdmits(IvfpqMeasure *measure, TupleTableSlot *row)
{
	MemoryContext oldcontext;
	ExprContext *context;
	bool		admits;

	if (measure->predicate == NULL)
		return true;
	oldcontext = MemoryContextSwitchTo(measure->context);
	context = GetPerTupleExprContext(measure->estate);
	context->ecxt_scantuple = row;
	admits = ExecQual(measure->predicate, context);
	MemoryContextSwitchTo(oldcontext);
	forget_row(measure);
	return admits;
}

/*
 * Measure a row that the snapshot sees, within the predicate.  False when it is
 * not in the index: NULL, without a place, or of other dimensions.  Without a
 * query the distance is 0.
 */
bool
IvfpqMeasureOther(IvfpqMeasure *measure, TupleTableSlot *row,
				  double *distance)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(measure->context);
	bool		isnull;
	Datum		value = indexed_value(measure, row, &isnull);
	bool		is_indexed = !isnull;

	if (is_indexed && measure->distance == NULL)
	{
		is_indexed = IvfpqHasPlace(&measure->type, value, measure->dims);
		*distance = 0;
	}
	else if (is_indexed)
		is_indexed = measure_value(measure, value, &row->tts_tid, distance) &&
			(!isnan(*distance) ||
			 IvfpqHasPlace(&measure->type, value, measure->dims));
	MemoryContextSwitchTo(oldcontext);
	forget_row(measure);
	return is_indexed;
}

/* Let go of pages between batches; no row is prefetched any more. */
void
IvfpqMeasurePause(IvfpqMeasure *measure)
{
	IvfpqPrefetchRowEnd(&measure->prefetch_row);
	IvfpqPrefetchEnd(&measure->prefetch);
	IvfpqMeasurePrefetch(measure, NULL, 0);
	table_index_fetch_reset(measure->fetch);
}

/* Let go of everything. */
void
IvfpqMeasureEnd(IvfpqMeasure *measure)
{
	IvfpqPrefetchRowEnd(&measure->prefetch_row);
	ExecDropSingleTupleTableSlot(measure->slot);
	table_index_fetch_end(measure->fetch);
	if (measure->estate)
		FreeExecutorState(measure->estate);
	MemoryContextDelete(measure->context);
}
