/*
 * graph.c
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

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "am/common/options.h"
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
static IvfpqPairRows *
pair_rows_begin(const ReturnSetInfo *rsinfo, bool in_arrays)
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

/* ----
 * The nearest rows of one table to every row of another or the same: the
 * body of gpuvec_knn_graph and gpuvec_knn_join.
 *
 * Exact: Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014: all rows against all, and a selection.  Through
 * an index: after Johnson, Douze, Jegou, 2017, section 6.6, every row is a
 * query, but compared, exactly, with all rows of the lists near to its own.
 */

/* Where the neighbors found go. */
typedef struct Found
{
	const IvfpqPairs *pairs;
	IvfpqSampled *sampled;		/* or NULL: they are exact */
} Found;

/* The neighbors of one row, from the engine. */
static void
take_neighbors(void *arg, int64 query, const int64 *positions,
			   const double *distances)
{
	const Found *found = arg;
	const IvfpqPairs *pairs = found->pairs;

	if (found->sampled != NULL)
		IvfpqSampledNote(found->sampled, query, distances);
	IvfpqPutNeighbors(pairs->result, pairs->queries->keys[query],
					  pairs->rows->keys, positions, distances, pairs->k);
}

/* lists: only rows of `probes` near ones count; NULL: all. */
static void
find(Found *found, const IvfpqLists *lists, int probes)
{
	const IvfpqPairs *pairs = found->pairs;
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.k = pairs->k, .nqueries = pairs->queries->nrows,
		.from = pairs->queries, .self = pairs->self,
		.lists = lists, .probes = probes,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = take_neighbors, .arg = found};

	IvfpqFindNeighbors(&wanted);
}

/* Probes are as many as the user says, or as the recall asked for takes. */
static void
find_through_index(const IvfpqPairs *pairs)
{
	IvfpqLists *lists = IvfpqListsGet(pairs->rows, pairs->metric);
	IvfpqSampled *sampled = IvfpqSampledBegin(pairs);
	Found		found = {pairs, sampled};
	int			probes = ivfpq_probes > 0 ? Min(ivfpq_probes, lists->n) :
	IvfpqProbesFor(sampled, lists, ivfpq_recall);

	find(&found, lists, probes);
	IvfpqSampledEnd(sampled,
					psprintf("Each row was compared with those of %d of %d lists.",
							 probes, lists->n));
}

/* All pairs into pairs->rsinfo, see set.h. */
static void
find_pairs(const IvfpqPairs *pairs, IvfpqMethod method)
{
	Found		exact = {pairs, NULL};

	switch (method)
	{
		case IVFPQ_METHOD_EXACT:
			find(&exact, NULL, 0);
			break;
		case IVFPQ_METHOD_INDEX:
			find_through_index(pairs);
			break;
	}
}

/* ----
 * gpuvec_knn_graph, in pairs or arrays, and gpuvec_knn_join: the nearest
 * rows of a table to each of its own rows, or to each row of another.
 */

PG_FUNCTION_INFO_V1(gpuvec_knn_graph);
PG_FUNCTION_INFO_V1(gpuvec_knn_graph_arrays);
PG_FUNCTION_INFO_V1(gpuvec_knn_join);

#define NAME_ARGUMENT(n)	NameStr(*PG_GETARG_NAME(n))

static void
check_k(int k)
{
	IvfpqCheckRange("k", k, 1, GV_SET_MAX_K,
					"k is how many neighbors of each row are wanted.");
}

/* Is there an index to make a graph through? */
static bool
has_index(IvfpqTable *table, GvSetMetric metric)
{
	Relation	index = IvfpqListsIndex(table, metric);

	if (index == NULL)
		return false;
	index_close(index, NoLock);
	return true;
}

/* The graph of fcinfo's arguments, which are those of both functions. */
static void
return_graph(FunctionCallInfo fcinfo, bool in_arrays)
{
	IvfpqTable	table;
	IvfpqPairs	pairs = {.queries = &table, .rows = &table, .self = true};
	int			k = PG_GETARG_INT32(3);
	IvfpqMethod method;

	pairs.metric = IvfpqMetricArgument(PG_GETARG_TEXT_PP(4));
	method = IvfpqMethodArgument(PG_GETARG_TEXT_PP(5));
	check_k(k);
	InitMaterializedSRF(fcinfo, 0);
	pairs.result = pair_rows_begin((ReturnSetInfo *) fcinfo->resultinfo,
									  in_arrays);
	IvfpqTableOpen(&table, PG_GETARG_OID(0), NAME_ARGUMENT(1),
				   NAME_ARGUMENT(2));
	IvfpqProgressBegin(IVFPQ_PROGRESS_GRAPH, PG_GETARG_OID(0));
	IvfpqTableSurvey(&table, IvfpqWorkSpareMemory(),
					 method == IVFPQ_METHOD_INDEX &&
					 has_index(&table, pairs.metric));
	pairs.k = (int) Min((int64) k, table.nrows - 1);
	if (pairs.k > 0 && !(method == IVFPQ_METHOD_INDEX &&
						 IvfpqFindPairsBySearch(&pairs)))
		find_pairs(&pairs, method);
	if (table.nrows == 1)		/* a key, but no neighbors */
		IvfpqPutNeighbors(pairs.result, table.keys[0], NULL, NULL, NULL, 0);
	IvfpqProgressEnd();
	IvfpqTableClose(&table);
}

/*
 * gpuvec_knn_graph(rel regclass, key_column name, vector_column name,
 *		k integer, metric text, method text)
 */
Datum
gpuvec_knn_graph(PG_FUNCTION_ARGS)
{
	return_graph(fcinfo, false);
	return (Datum) 0;
}

/*
 * gpuvec_knn_graph_arrays(rel regclass, key_column name, vector_column name,
 *		k integer, metric text, method text)
 *
 * A row for each key, also for one of which no neighbors were found.
 */
Datum
gpuvec_knn_graph_arrays(PG_FUNCTION_ARGS)
{
	return_graph(fcinfo, true);
	return (Datum) 0;
}

/* Compare the tables, of which the right one is read, too. */
static void
join_whole(IvfpqPairs *pairs, IvfpqMethod method)
{
	IvfpqTable *left = pairs->queries;
	IvfpqTable *right = pairs->rows;

	IvfpqTableSurvey(right, IvfpqWorkSpareMemory() / 2, false);
	pairs->k = (int) Min((int64) pairs->k, right->nrows);
	if (left->nrows == 0 || right->nrows == 0)
		return;
	IvfpqCheckSameDims(RelationGetRelationName(left->rel), left->dims,
					   RelationGetRelationName(right->rel), right->dims);
	find_pairs(pairs, method);
}

/*
 * gpuvec_knn_join(left_rel regclass, left_key name, left_vector name,
 *		right_rel regclass, right_key name, right_vector name, k integer,
 *		metric text, method text)
 *
 * A row of a table that stands on both sides is a neighbor of itself.
 */
Datum
gpuvec_knn_join(PG_FUNCTION_ARGS)
{
	IvfpqTable	left;
	IvfpqTable	right;
	IvfpqPairs	pairs = {.queries = &left, .rows = &right};
	int			k = PG_GETARG_INT32(6);
	IvfpqMethod method;

	pairs.metric = IvfpqMetricArgument(PG_GETARG_TEXT_PP(7));
	method = IvfpqMethodArgument(PG_GETARG_TEXT_PP(8));
	check_k(k);
	InitMaterializedSRF(fcinfo, 0);
	pairs.result = pair_rows_begin((ReturnSetInfo *) fcinfo->resultinfo,
									  false);
	IvfpqTableOpen(&left, PG_GETARG_OID(0), NAME_ARGUMENT(1),
				   NAME_ARGUMENT(2));
	IvfpqTableOpen(&right, PG_GETARG_OID(3), NAME_ARGUMENT(4),
				   NAME_ARGUMENT(5));
	IvfpqProgressBegin(IVFPQ_PROGRESS_JOIN, PG_GETARG_OID(0));
	IvfpqTableSurvey(&left, IvfpqWorkSpareMemory() / 2, false);
	pairs.k = k;
	if (method == IVFPQ_METHOD_EXACT || left.nrows == 0 ||
		!IvfpqFindPairsBySearch(&pairs))
		join_whole(&pairs, method);
	IvfpqProgressEnd();
	IvfpqTableClose(&right);
	IvfpqTableClose(&left);
	return (Datum) 0;
}
