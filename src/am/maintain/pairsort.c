/*
 * pairsort.c
 *		Pairs of numbers, sorted, on disk where they are many.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"

#include "am/maintain/pairsort.h"
#include "pgcompat.h"

#define SORT_FIRST		1
#define SORT_SECOND		2

void
IvfpqPairSortBegin(IvfpqPairSort *sort)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_SECOND);
	AttrNumber	columns[] = {SORT_FIRST, SORT_SECOND};
	Oid			operators[] = {Int8LessOperator, Int8LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};

	TupleDescInitEntry(desc, SORT_FIRST, "first", INT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_SECOND, "second", INT8OID, -1, 0);
	IvfpqFinishTupleDesc(desc);
	sort->state =
		tuplesort_begin_heap(desc, SORT_SECOND, columns, operators, collations,
							 nulls_first, Max(maintenance_work_mem / 2, 64),
							 NULL, TUPLESORT_NONE);
	sort->slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
}

void
IvfpqPairSortPut(IvfpqPairSort *sort, uint64 first, uint64 second)
{
	TupleTableSlot *slot = sort->slot;

	ExecClearTuple(slot);
	slot->tts_values[SORT_FIRST - 1] = Int64GetDatum((int64) first);
	slot->tts_values[SORT_SECOND - 1] = Int64GetDatum((int64) second);
	memset(slot->tts_isnull, 0, SORT_SECOND * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(sort->state, slot);
}

void
IvfpqPairSortPerform(IvfpqPairSort *sort)
{
	TupleDesc	desc = sort->slot->tts_tupleDescriptor;

	tuplesort_performsort(sort->state);
	ExecDropSingleTupleTableSlot(sort->slot);
	sort->slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

bool
IvfpqPairSortNext(IvfpqPairSort *sort, uint64 *first, uint64 *second)
{
	TupleTableSlot *slot = sort->slot;
	bool		isnull;

	if (!tuplesort_gettupleslot(sort->state, true, false, slot, NULL))
		return false;
	*first = (uint64) DatumGetInt64(slot_getattr(slot, SORT_FIRST, &isnull));
	*second = (uint64) DatumGetInt64(slot_getattr(slot, SORT_SECOND, &isnull));
	return true;
}

void
IvfpqPairSortEnd(IvfpqPairSort *sort)
{
	ExecDropSingleTupleTableSlot(sort->slot);
	tuplesort_end(sort->state);
}
