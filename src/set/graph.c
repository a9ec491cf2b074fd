/*
 * graph.c
 *		gpuvec_knn_graph, in pairs or arrays, and gpuvec_knn_join: the nearest
 *		rows of a table to each of its own rows, or to each row of another.
 */
#include "postgres.h"

#include "access/genam.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "set/set.h"

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
	pairs.result = IvfpqPairRowsBegin((ReturnSetInfo *) fcinfo->resultinfo,
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
		IvfpqFindPairs(&pairs, method);
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
	IvfpqFindPairs(pairs, method);
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
	pairs.result = IvfpqPairRowsBegin((ReturnSetInfo *) fcinfo->resultinfo,
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
