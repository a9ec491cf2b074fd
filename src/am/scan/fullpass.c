/*
 * fullpass.c
 *		The end of a scan that reads everything: all TIDs of the index in heap
 *		order, each row reranked once, and a sort by distance.  Both sorts go
 *		to disk beyond work_mem.  This file also says when a scan needs it.
 */
#include "postgres.h"

#include "access/tupdesc.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/nodeHash.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/model.h"
#include "am/common/options.h"
#include "am/scan/scan.h"
#include "am/search/heaptids.h"
#include "client/client.h"
#include "pgcompat.h"

/* Memory of a search for a list and, where gpuvecd answers, for a posting. */
#define LIST_BYTES		(64 + 2 * sizeof(IvfpqDirEntry))
#define ANSWER_BYTES	(32 + sizeof(IvfpqKnownRecord))

/* The least memory that a sort takes. */
#define SORT_KB			64

/* Rows whose pages are prefetched together. */
#define ROWS_AT_ONCE	1024

#define SORT_DISTANCE	1
#define SORT_ID			2

/* Bytes of a set of n rows. */
static double
set_bytes(double n)
{
	return sizeof(TidSetEntry) *
		(double) pg_nextpower2_64((uint64) (n / 0.9) + 2);
}

/*
 * May a batch of that size begin?  All that a scan holds, with what the batch
 * adds to it, stays within what a hash table may take.
 */
bool
IvfpqBatchFits(const IvfpqScan *state, int probes, int64 candidates)
{
	const IvfpqMetaData *meta = &state->model->meta;
	double		postings = (double) candidates * meta->lists_per_row;
	double		found;			/* the best postings */
	double		search;			/* scratch, and the rows of these postings */
	double		rows;			/* in the queue, and in the set, which grows */
	Size		row_bytes = sizeof(IvfpqQueuedRow);

	if (candidates <= IVFPQ_FEW_CANDIDATES)
		return true;
	found = postings * (sizeof(float) + sizeof(uint64)) + probes * LIST_BYTES;
	if (IvfpqServerIsWanted())
		found += postings * ANSWER_BYTES;
	search = gv_scan_scratch(state->model->gv.m,
							 (int32) Min(postings, PG_INT32_MAX)) +
		set_bytes(candidates);
	if (state->search.addresses)	/* bounds, and what is prefetched */
		row_bytes += sizeof(IvfpqQueuedRow) + sizeof(IvfpqNextRow) +
			sizeof(IvfpqRowBounds) + 2 * sizeof(uint64);
	rows = candidates * row_bytes +
		1.5 * set_bytes((double) state->reranked->members + candidates);
	return MemoryContextMemAllocated(state->context, true) + found +
		Max(search, rows) <= get_hash_memory_limit();
}

/*
 * Memory for each of the pass's two sorts: half of what the scan does not hold
 * already.
 */
static int
sort_memory(const IvfpqScan *state)
{
	double		left = (double) get_hash_memory_limit() -
	MemoryContextMemAllocated(state->context, true);

	return (int) Min(work_mem, Max(SORT_KB, left / 2 / 1024));
}

/* A sort of (distance, TID), and the slot that its rows go through. */
static TupleDesc
begin_distance_sort(IvfpqScan *state, int sort_mem)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_ID);
	AttrNumber	columns[] = {SORT_DISTANCE, SORT_ID};
	Oid			operators[] = {Float8LessOperator, Int8LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};

	TupleDescInitEntry(desc, SORT_DISTANCE, "distance", FLOAT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_ID, "tid", INT8OID, -1, 0);
	IvfpqFinishTupleDesc(desc);
	state->full_pass_sort = tuplesort_begin_heap(desc, 2, columns, operators,
												 collations, nulls_first,
												 sort_mem, NULL, TUPLESORT_NONE);
	state->full_pass_slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	return desc;
}

static void
put_row(IvfpqScan *state, uint64 id, double distance)
{
	TupleTableSlot *slot = state->full_pass_slot;

	ExecClearTuple(slot);
	slot->tts_values[SORT_DISTANCE - 1] = Float8GetDatum(distance);
	slot->tts_values[SORT_ID - 1] = Int64GetDatum((int64) id);
	slot->tts_isnull[SORT_DISTANCE - 1] = false;
	slot->tts_isnull[SORT_ID - 1] = false;
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(state->full_pass_sort, slot);
}

/* Put rows [n] of ascending ids into the sort. */
static void
put_rows(IvfpqScan *state, uint64 *ids, int n)
{
	Datum		value;

	if (!state->null_query)
	{
		IvfpqScanRerank(state, ids, n, put_row);
		return;
	}
	for (int i = 0; i < n; i++)
	{
		/* without conditions there is nothing to ask of rows */
		if (state->rerank != NULL &&
			!IvfpqRerankFetch(state->rerank, ids[i], &value))
			continue;
		if (state->rerank != NULL)
			IvfpqRerankDone(state->rerank);
		put_row(state, ids[i], 0);
	}
}

/*
 * Rerank every row of the index that was not reranked before; with conditions
 * on keys those that may satisfy them.
 */
static void
rerank_rest(IvfpqScan *state, int sort_mem)
{
	Tuplesortstate *tids = IvfpqSortTids(state->index,
										 state->asks_keys ?
										 &state->quals.condition : NULL,
										 sort_mem);
	uint64		ids[ROWS_AT_ONCE];
	uint64		last = 0;
	int			n = 0;
	Datum		value;
	bool		isnull;

	while (IvfpqTuplesortGetDatum(tids, &value, &isnull))
	{
		uint64		id = (uint64) DatumGetInt64(value);

		CHECK_FOR_INTERRUPTS();
		if (id == last)
			continue;
		last = id;
		if (tidset_lookup(state->reranked, id) != NULL)
			continue;
		ids[n++] = id;
		if (n == ROWS_AT_ONCE)
		{
			put_rows(state, ids, n);
			n = 0;
		}
	}
	put_rows(state, ids, n);
	tuplesort_end(tids);
}

/* Rows of the queue go into the sort, unless they are only bounded. */
static void
empty_queue(IvfpqScan *state)
{
	IvfpqQueuedRow *row;

	while ((row = IvfpqQueueTake(&state->queue)) != NULL)
	{
		if (row->bounded)
			tidset_delete(state->reranked, row->id);
		else
			put_row(state, row->id, row->distance);
	}
}

/*
 * Sort all rows not returned yet, those in the queue included; rows that are
 * only bounded are reranked in the pass, in heap order.  From here on they
 * come from the sort.  A filtered scan that reads the table finds those in the
 * queue again.
 */
void
IvfpqFullPassBegin(IvfpqScan *state)
{
	int			sort_mem = sort_memory(state);
	TupleDesc	desc = begin_distance_sort(state, sort_mem);
	IvfpqRest	rest = state->asks_keys ? IVFPQ_REST_LISTS :
	IVFPQ_REST_FULL_PASS;
	bool		by_lists = state->filter == NULL;

	if (state->filter != NULL)
	{
		rest = IvfpqDepthRest(state, true);
		by_lists = rest == IVFPQ_REST_LISTS;
	}
	state->report.filter.rest = rest;
	if (by_lists)
		empty_queue(state);
	MemoryContextDelete(state->batches);
	state->in_full_pass = true;
	state->exhausted = true;
	if (state->rerank != NULL)
	{
		IvfpqRerankDims(state->rerank, state->pending_dims, &state->warned_mismatched);
		state->rerank->asks_all = true;
	}
	if (!by_lists)
		IvfpqFilterFullPass(state, put_row);
	else
		rerank_rest(state, sort_mem);
	tuplesort_performsort(state->full_pass_sort);

	ExecDropSingleTupleTableSlot(state->full_pass_slot);
	state->full_pass_slot =
		MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

/* The next nearest row; false at the end. */
bool
IvfpqFullPassNext(IvfpqScan *state, IvfpqNextRow *row)
{
	bool		isnull;

	if (!tuplesort_gettupleslot(state->full_pass_sort, true, false,
								state->full_pass_slot, NULL))
		return false;
	row->least = row->most =
		DatumGetFloat8(slot_getattr(state->full_pass_slot, SORT_DISTANCE,
									&isnull));
	row->id =
		(uint64) DatumGetInt64(slot_getattr(state->full_pass_slot, SORT_ID,
											&isnull));
	row->reranked = true;
	return true;
}

/* Close the sort, with its files. */
void
IvfpqFullPassEnd(IvfpqScan *state)
{
	if (state->full_pass_slot)
		ExecDropSingleTupleTableSlot(state->full_pass_slot);
	if (state->full_pass_sort)
		tuplesort_end(state->full_pass_sort);
	state->full_pass_slot = NULL;
	state->full_pass_sort = NULL;
	state->in_full_pass = false;
}
