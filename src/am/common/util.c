/*
 * util.c
 *		The snapshots under which a background worker reads rows; and pairs of
 *		numbers, sorted.
 *
 * Reading rows takes an active snapshot, for values out of line and for the
 * functions of an index.  In a session this is the statement's, and stays.  A
 * worker runs no statement.  It takes newer snapshots as it goes on, and has
 * none while it computes: VACUUM, of any table, spares what the oldest
 * snapshot sees, and clustering may take hours.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "am/common/util.h"
#include "pgcompat.h"

/* Columns of a sort's tuples. */
#define SORT_FIRST		1
#define SORT_SECOND		2

/* True in a worker, on whose active snapshot no caller relies. */
static bool ours = false;

/* Declares that this process is a worker and may be without a snapshot. */
void
IvfpqSnapshotsAreOurs(void)
{
	ours = true;
}

/*
 * Takes a snapshot, in a worker, because rows are going to be read.  At READ
 * COMMITTED this is a new one, in parallel mode, too.
 */
void
IvfpqSnapshotTake(void)
{
	if (ours)
		PushActiveSnapshot(GetTransactionSnapshot());
}

/* Drops the snapshot, in a worker, because no rows are read for a while. */
void
IvfpqSnapshotDrop(void)
{
	if (ours)
		PopActiveSnapshot();
	IvfpqSnapshotForget();
}

/* Drops, in a worker, the snapshot that reading a catalog leaves behind. */
void
IvfpqSnapshotForget(void)
{
	if (ours)
		InvalidateCatalogSnapshot();
}

/*
 * Replaces the snapshot, in a worker, by a newer one: rows have been read, and
 * more will be.
 */
void
IvfpqSnapshotRenew(void)
{
	IvfpqSnapshotDrop();
	IvfpqSnapshotTake();
}

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
