/*
 * util.c
 *		Snapshots for background workers that read rows, and sorts of rows.
 *
 * Reading rows requires an active snapshot, for values stored out of line and
 * for the functions of an index.  In a session, the snapshot of the statement
 * is active and stays active.  A worker runs no statement.  It takes a newer
 * snapshot from time to time, and has none while it only computes.  Otherwise
 * VACUUM of any table would have to keep the rows that the worker's snapshot
 * sees, and clustering may take hours.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "utils/snapmgr.h"

#include "am/common/util.h"
#include "pgcompat.h"

volatile uint32 ivfpq_rows_done = 0;

/* True in a worker, where no caller relies on the active snapshot. */
static bool ours = false;

/* Declares that this process is a worker and may be without a snapshot. */
void
IvfpqSnapshotsAreOurs(void)
{
	ours = true;
}

/*
 * In a worker, takes a snapshot, because rows are going to be read.  At READ
 * COMMITTED this is a new snapshot, even in parallel mode.
 */
void
IvfpqSnapshotTake(void)
{
	if (ours)
		PushActiveSnapshot(GetTransactionSnapshot());
}

/* In a worker, drops the snapshot, as no rows will be read for a while. */
void
IvfpqSnapshotDrop(void)
{
	if (ours)
		PopActiveSnapshot();
	IvfpqSnapshotForget();
}

/* In a worker, drops the snapshot that is left after reading a catalog. */
void
IvfpqSnapshotForget(void)
{
	if (ours)
		InvalidateCatalogSnapshot();
}

/* In a worker, replaces the snapshot by a newer one between reads of rows. */
void
IvfpqSnapshotRenew(void)
{
	IvfpqSnapshotDrop();
	IvfpqSnapshotTake();
}

/*
 * Begins a sort by one or two keys.  `first` and `second` are the types of the
 * keys, INT8OID or FLOAT8OID.  `second` is InvalidOid if there is one key
 * only.  The sort uses at least 64 kB, even if memory_kb is less.  The current
 * context must live until IvfpqSortEnd.
 */
void
IvfpqSortBegin(IvfpqSort *sort, Oid first, Oid second, Size payload_bytes,
			   int memory_kb)
{
	int			nkeys = OidIsValid(second) ? 2 : 1;
	int			ncolumns = nkeys + (payload_bytes > 0 ? 1 : 0);
	Oid			types[] = {first, second};
	Oid			operators[2];
	AttrNumber	columns[] = {1, 2};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};
	TupleDesc	desc;

	memset(sort, 0, sizeof(*sort));
	sort->nkeys = nkeys;
	for (int i = 0; i < nkeys; i++)
		operators[i] = types[i] == FLOAT8OID ? Float8LessOperator :
			Int8LessOperator;
	if (ncolumns == 1)
	{
		sort->state = tuplesort_begin_datum(first, operators[0], InvalidOid,
											false, memory_kb, NULL,
											TUPLESORT_NONE);
		return;
	}

	desc = CreateTemplateTupleDesc(ncolumns);
	for (int i = 0; i < nkeys; i++)
		TupleDescInitEntry(desc, i + 1, NULL, types[i], -1, 0);
	if (payload_bytes > 0)
	{
		TupleDescInitEntry(desc, ncolumns, NULL, BYTEAOID, -1, 0);
		sort->item = palloc(VARHDRSZ + payload_bytes);
		SET_VARSIZE(sort->item, VARHDRSZ + payload_bytes);
	}
	IvfpqFinishTupleDesc(desc);
	sort->state = tuplesort_begin_heap(desc, nkeys, columns, operators,
									   collations, nulls_first, memory_kb,
									   NULL, TUPLESORT_NONE);
	sort->in = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	memset(sort->in->tts_isnull, 0, ncolumns * sizeof(bool));
	sort->out = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

/*
 * Puts a row into the sort.  Ignores `second` if the sort has one key only,
 * and `payload` if its rows have no payload.
 */
void
IvfpqSortPut(IvfpqSort *sort, Datum first, Datum second, const void *payload)
{
	TupleTableSlot *slot = sort->in;

	if (slot == NULL)
	{
		tuplesort_putdatum(sort->state, first, false);
		return;
	}
	ExecClearTuple(slot);
	slot->tts_values[0] = first;
	if (sort->nkeys == 2)
		slot->tts_values[1] = second;
	if (sort->item != NULL)
	{
		memcpy(VARDATA(sort->item), payload, VARSIZE(sort->item) - VARHDRSZ);
		slot->tts_values[sort->nkeys] = PointerGetDatum(sort->item);
	}
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(sort->state, slot);
}

void
IvfpqSortPerform(IvfpqSort *sort)
{
	tuplesort_performsort(sort->state);
}

/*
 * Reads the next row into sort->keys and sort->payload.  The payload is valid
 * until the next call.  Returns false if there are no more rows.
 */
bool
IvfpqSortNext(IvfpqSort *sort)
{
	TupleTableSlot *slot = sort->out;
	bool		isnull;

	if (slot == NULL)
		return IvfpqTuplesortGetDatum(sort->state, &sort->keys[0], &isnull);
	if (!tuplesort_gettupleslot(sort->state, true, false, slot, NULL))
		return false;
	slot_getallattrs(slot);
	for (int i = 0; i < sort->nkeys; i++)
		sort->keys[i] = slot->tts_values[i];
	if (sort->item != NULL)
		sort->payload =
			VARDATA_ANY(DatumGetPointer(slot->tts_values[sort->nkeys]));
	return true;
}

/* Ends the sort and removes its files.  Does nothing if no sort has begun. */
void
IvfpqSortEnd(IvfpqSort *sort)
{
	if (sort->state == NULL)
		return;
	if (sort->in != NULL)
	{
		ExecDropSingleTupleTableSlot(sort->in);
		ExecDropSingleTupleTableSlot(sort->out);
	}
	if (sort->item != NULL)
		pfree(sort->item);
	tuplesort_end(sort->state);
	sort->state = NULL;
}
