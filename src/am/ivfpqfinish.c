/*
 * ivfpqfinish.c
 *		How a scan ends that has to read everything: all TIDs of the index in
 *		heap order, each row measured once, and a sort by distance.  Both
 *		sorts spill to disk beyond work_mem.
 */
#include "postgres.h"

#include "access/tupdesc.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"

#include "am/ivfpqscan.h"

/* Rows fetched with pages ahead of them on their way. */
#define ROWS_AT_ONCE	1024

#define SORT_DISTANCE	1
#define SORT_ID			2

/* A sort of (distance, TID), and the slot that its rows go through. */
static TupleDesc
begin_distance_sort(IvfpqScan *state)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_ID);
	AttrNumber	columns[] = {SORT_DISTANCE, SORT_ID};
	Oid			operators[] = {Float8LessOperator, Int8LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};

	TupleDescInitEntry(desc, SORT_DISTANCE, "distance", FLOAT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_ID, "tid", INT8OID, -1, 0);
	state->finish_sort = tuplesort_begin_heap(desc, 2, columns, operators,
											  collations, nulls_first,
											  work_mem, NULL, TUPLESORT_NONE);
	state->finish_slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	return desc;
}

static void
put_row(IvfpqScan *state, uint64 id, double distance)
{
	TupleTableSlot *slot = state->finish_slot;

	ExecClearTuple(slot);
	slot->tts_values[SORT_DISTANCE - 1] = Float8GetDatum(distance);
	slot->tts_values[SORT_ID - 1] = Int64GetDatum((int64) id);
	slot->tts_isnull[SORT_DISTANCE - 1] = false;
	slot->tts_isnull[SORT_ID - 1] = false;
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(state->finish_sort, slot);
}

/* Put rows [n] of ascending ids into the sort. */
static void
put_rows(IvfpqScan *state, uint64 *ids, int n)
{
	if (!state->null_query)
		IvfpqMeasureRows(state, ids, n, put_row);
	else
		for (int i = 0; i < n; i++)
			put_row(state, ids[i], 0);
}

/* Measure every row of the index that was not measured before. */
static void
measure_rest(IvfpqScan *state)
{
	Tuplesortstate *tids = IvfpqSortTids(state->index, work_mem);
	uint64		ids[ROWS_AT_ONCE];
	uint64		last = 0;
	int			n = 0;
	Datum		value;
	bool		isnull;

	while (GvTuplesortGetDatum(tids, &value, &isnull))
	{
		uint64		id = (uint64) DatumGetInt64(value);

		CHECK_FOR_INTERRUPTS();
		if (id == last)
			continue;
		last = id;
		if (tidset_lookup(state->measured, id) != NULL)
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

/*
 * Sort all rows not given out yet, those in the queue included; rows that are
 * only bounded are measured in the pass, in heap order.  From here on they
 * come from the sort.
 */
void
IvfpqFinishBegin(IvfpqScan *state)
{
	TupleDesc	desc = begin_distance_sort(state);
	IvfpqQueuedRow *row;

	while ((row = IvfpqQueueTake(&state->queue)) != NULL)
	{
		if (row->bounded)
			tidset_delete(state->measured, row->id);
		else
			put_row(state, row->id, row->distance);
	}
	if (!state->null_query)
		IvfpqRerankDims(state->rerank, state->pending_dims, &state->told_odd);
	measure_rest(state);
	tuplesort_performsort(state->finish_sort);

	ExecDropSingleTupleTableSlot(state->finish_slot);
	state->finish_slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
	state->finishing = true;
	state->exhausted = true;
}

/* The next nearest row; false at the end. */
bool
IvfpqFinishNext(IvfpqScan *state, double *distance, uint64 *id)
{
	bool		isnull;

	if (!tuplesort_gettupleslot(state->finish_sort, true, false,
								state->finish_slot, NULL))
		return false;
	*distance = DatumGetFloat8(slot_getattr(state->finish_slot, SORT_DISTANCE,
											&isnull));
	*id = (uint64) DatumGetInt64(slot_getattr(state->finish_slot, SORT_ID,
											  &isnull));
	return true;
}

/* Close the sort, with its files. */
void
IvfpqFinishEnd(IvfpqScan *state)
{
	if (state->finish_slot)
		ExecDropSingleTupleTableSlot(state->finish_slot);
	if (state->finish_sort)
		tuplesort_end(state->finish_sort);
	state->finish_slot = NULL;
	state->finish_sort = NULL;
	state->finishing = false;
}
