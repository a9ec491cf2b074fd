/*
 * pairrows.c
 *		What graphs and joins return, into the tuplestore of a function: a row
 *		(key, neighbor, rank, distance) for each pair, or one (key, neighbors,
 *		distances) with two arrays for each key.
 *
 * There may be a hundred million.  So one tuple is made, which holds each in
 * turn, and the tuplestore copies it: to form a tuple of Datums takes as long
 * as to store it.  Where arrays are as long as those before them, only their
 * elements are new.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/tuplestore.h"

#include "set/set.h"

/*
 * The columns of a pair as a tuple has them: each of a fixed length and none
 * NULL, they are aligned as a struct's members.
 */
typedef struct Pair
{
	int64		key;
	int64		neighbor;
	int32		rank;			/* from 1 */
	float8		distance;
} Pair;

struct IvfpqPairRows
{
	Tuplestorestate *store;
	TupleTableSlot *slot;		/* with */
	MinimalTuple tuple;
	Size		capacity;		/* bytes of it */
	bool		in_arrays;
	int			n;				/* elements that arrays have, -1: no tuple */
	int64	   *neighbors;		/* [n], in the tuple */
	float8	   *distances;		/* the same */
};

StaticAssertDecl(sizeof(int64) == sizeof(float8) &&
				 MAXIMUM_ALIGNOF >= sizeof(float8),
				 "both arrays are as long, and so aligned");

/* The columns of the tuple. */
static void *
columns(const IvfpqPairRows *rows)
{
	return (char *) rows->tuple + rows->tuple->t_hoff - MINIMAL_TUPLE_OFFSET;
}

/*
 * A tuple with `bytes` bytes of columns, none of them NULL; it lives as long
 * as rows do, for sinks are called in other contexts, which end before.
 */
static void
make_tuple(IvfpqPairRows *rows, Size bytes)
{
	Size		header = MAXALIGN(SizeofHeapTupleHeader) -
	MINIMAL_TUPLE_OFFSET;

	if (rows->capacity < header + bytes)
	{
		rows->capacity = header + bytes;
		rows->tuple = rows->tuple == NULL ?
			MemoryContextAllocZero(GetMemoryChunkContext(rows),
								   rows->capacity) :
			repalloc(rows->tuple, rows->capacity);
	}
	rows->tuple->t_len = header + bytes;
	rows->tuple->t_infomask2 = rows->slot->tts_tupleDescriptor->natts;
	rows->tuple->t_infomask = rows->in_arrays ? HEAP_HASVARWIDTH : 0;
	rows->tuple->t_hoff = header + MINIMAL_TUPLE_OFFSET;
	ExecStoreMinimalTuple(rows->tuple, rows->slot, false);
}

/*
 * An array of n elements of 8 bytes, one-dimensional from 1; where these are.
 * It has a header of 4 bytes, however short it is: a reader need not copy it.
 */
static void *
make_array(void *memory, Size bytes, int n, Oid type)
{
	ArrayType  *array = memory;

	SET_VARSIZE(array, bytes);
	array->ndim = n > 0 ? 1 : 0;
	array->dataoffset = 0;
	array->elemtype = type;
	if (n > 0)
	{
		ARR_DIMS(array)[0] = n;
		ARR_LBOUND(array)[0] = 1;
	}
	return ARR_DATA_PTR(array);
}

/* Let arrays have n elements. */
static void
make_arrays(IvfpqPairRows *rows, int n)
{
	Size		bytes = n > 0 ? ARR_OVERHEAD_NONULLS(1) + n * sizeof(int64) :
	ARR_OVERHEAD_NONULLS(0);
	char	   *memory;

	make_tuple(rows, sizeof(int64) + 2 * bytes);
	memory = (char *) columns(rows) + sizeof(int64);
	rows->neighbors = make_array(memory, bytes, n, INT8OID);
	rows->distances = make_array(memory + bytes, bytes, n, FLOAT8OID);
	rows->n = n;
}

/* Rows for rsinfo, after InitMaterializedSRF; until memory ends. */
IvfpqPairRows *
IvfpqPairRowsBegin(const ReturnSetInfo *rsinfo, bool in_arrays)
{
	IvfpqPairRows *rows = palloc0(sizeof(IvfpqPairRows));

	Assert(rsinfo->setDesc->natts == (in_arrays ? 3 : 4));
	rows->store = rsinfo->setResult;
	rows->slot = MakeSingleTupleTableSlot(rsinfo->setDesc,
										  &TTSOpsMinimalTuple);
	rows->in_arrays = in_arrays;
	rows->n = -1;
	if (!in_arrays)
		make_tuple(rows, sizeof(Pair));
	return rows;
}

/* A row for each neighbor. */
static void
put_pairs(IvfpqPairRows *rows, int64 key, const int64 *keys,
		  const int64 *positions, const double *distances, int n)
{
	Pair	   *pair = columns(rows);

	pair->key = key;
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		pair->neighbor = keys[positions == NULL ? i : positions[i]];
		pair->rank = i + 1;
		pair->distance = distances[i];
		tuplestore_puttupleslot(rows->store, rows->slot);
	}
}

/* A row for all. */
static void
put_arrays(IvfpqPairRows *rows, int64 key, const int64 *keys,
		   const int64 *positions, const double *distances, int n)
{
	CHECK_FOR_INTERRUPTS();
	if (n != rows->n)
		make_arrays(rows, n);
	*(int64 *) columns(rows) = key;
	for (int i = 0; i < n; i++)
	{
		rows->neighbors[i] = keys[positions == NULL ? i : positions[i]];
		rows->distances[i] = distances[i];
	}
	tuplestore_puttupleslot(rows->store, rows->slot);
}

/* The neighbors of a key, see set.h. */
void
IvfpqPutNeighbors(IvfpqPairRows *rows, int64 key, const int64 *keys,
				  const int64 *positions, const double *distances, int k)
{
	int			n = 0;

	while (n < k && (positions == NULL || positions[n] >= 0))
		n++;
	if (rows->in_arrays)
		put_arrays(rows, key, keys, positions, distances, n);
	else
		put_pairs(rows, key, keys, positions, distances, n);
}
