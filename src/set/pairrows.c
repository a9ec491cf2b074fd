/*
 * pairrows.c
 *		Rows (key, neighbour, rank, distance), into the tuplestore of a function
 *		that returns them.
 *
 * There may be a hundred million.  So one tuple is made, which holds each in
 * turn, and the tuplestore copies it: to form a tuple of Datums takes as long
 * as to store it.
 */
#include "postgres.h"

#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/tuplestore.h"

#include "set/set.h"

/*
 * The columns as a tuple has them: each of a fixed length and none NULL, they
 * are aligned as a struct's members.
 */
typedef struct Columns
{
	int64		key;
	int64		neighbour;
	int32		rank;			/* from 1 */
	float8		distance;
} Columns;

struct IvfpqPairRows
{
	Tuplestorestate *store;
	TupleTableSlot *slot;		/* with the tuple of */
	Columns    *columns;
};

/* Rows for rsinfo, after InitMaterializedSRF; until memory ends. */
IvfpqPairRows *
IvfpqPairRowsBegin(const ReturnSetInfo *rsinfo)
{
	IvfpqPairRows *rows = palloc(sizeof(IvfpqPairRows));
	TupleTableSlot *zeros = MakeSingleTupleTableSlot(rsinfo->setDesc,
													 &TTSOpsVirtual);
	MinimalTuple tuple;

	Assert(rsinfo->setDesc->natts == 4);
	for (int i = 0; i < rsinfo->setDesc->natts; i++)
	{
		zeros->tts_isnull[i] = false;
		zeros->tts_values[i] = Int64GetDatum(0);
	}
	ExecStoreVirtualTuple(zeros);
	tuple = ExecCopySlotMinimalTuple(zeros);
	ExecDropSingleTupleTableSlot(zeros);
	rows->store = rsinfo->setResult;
	rows->slot = MakeSingleTupleTableSlot(rsinfo->setDesc,
										  &TTSOpsMinimalTuple);
	ExecStoreMinimalTuple(tuple, rows->slot, false);
	rows->columns = (Columns *) ((char *) tuple + tuple->t_hoff -
								 MINIMAL_TUPLE_OFFSET);
	Assert((char *) (rows->columns + 1) == (char *) tuple + tuple->t_len);
	return rows;
}

/* A row. */
void
IvfpqPutPair(IvfpqPairRows *rows, int64 key, int64 neighbour, int rank,
			 double distance)
{
	Columns    *columns = rows->columns;

	columns->key = key;
	columns->neighbour = neighbour;
	columns->rank = rank;
	columns->distance = distance;
	tuplestore_puttupleslot(rows->store, rows->slot);
}

/*
 * Rows of k neighbours of a key, nearest first, given their positions among
 * keys; -1: no more.
 */
void
IvfpqPutNeighbours(IvfpqPairRows *rows, int64 key, const int64 *keys,
				   const int64 *positions, const double *distances, int k)
{
	for (int i = 0; i < k && positions[i] >= 0; i++)
	{
		CHECK_FOR_INTERRUPTS();
		IvfpqPutPair(rows, key, keys[positions[i]], i + 1, distances[i]);
	}
}
