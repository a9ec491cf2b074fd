/*
 * exactsearch.c
 *		gpuvec_exact_search: the nearest rows of a table to some vectors, with
 *		no index.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/tuplestore.h"

#include "am/types/queries.h"
#include "set/set.h"

PG_FUNCTION_INFO_V1(gpuvec_exact_search);

typedef struct Answer
{
	ReturnSetInfo *rsinfo;
	const IvfpqTable *table;
	int			k;
} Answer;

/* Rows (query, tid, distance) of one query. */
static void
put_answer(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	const Answer *answer = arg;

	for (int i = 0; i < answer->k && positions[i] >= 0; i++)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		/* there may be a million of them */
		CHECK_FOR_INTERRUPTS();
		values[0] = Int32GetDatum((int32) query + 1);
		values[1] = PointerGetDatum(&answer->table->tids[positions[i]]);
		values[2] = Float8GetDatum(distances[i]);
		tuplestore_putvalues(answer->rsinfo->setResult,
							 answer->rsinfo->setDesc, values, nulls);
	}
}

static void
search(IvfpqTable *table, const IvfpqQueries *queries, int k, GvSetMetric metric,
	   ReturnSetInfo *rsinfo)
{
	Answer		answer = {rsinfo, table, (int) Min((int64) k, table->nrows)};
	IvfpqNeighbors wanted = {.rows = table, .metric = metric, .k = answer.k,
		.nqueries = queries->n, .vectors = queries->vectors,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = put_answer, .arg = &answer};

	if (table->nrows == 0 || queries->n == 0)
		return;
	IvfpqCheckSameDims("the queries", queries->dims,
					   RelationGetRelationName(table->rel), table->dims);
	IvfpqFindNeighbors(&wanted);
}

/*
 * gpuvec_exact_search(rel regclass, vector_column name, queries real[][],
 *		k integer, metric text)
 */
Datum
gpuvec_exact_search(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			relid = PG_GETARG_OID(0);
	const char *column = NameStr(*PG_GETARG_NAME(1));
	IvfpqQueries queries = IvfpqQueriesOfArray(PG_GETARG_ARRAYTYPE_P(2));
	int			k = PG_GETARG_INT32(3);
	GvSetMetric metric = IvfpqMetricArgument(PG_GETARG_TEXT_PP(4));
	IvfpqTable	table;

	IvfpqCheckRange("k", k, 1, GV_SET_MAX_K,
					"k is how many neighbors of each query are wanted.");
	InitMaterializedSRF(fcinfo, 0);
	IvfpqTableOpen(&table, relid, NULL, column);
	IvfpqProgressBegin(IVFPQ_PROGRESS_EXACT, relid);
	IvfpqTableSurvey(&table, 0, false);
	search(&table, &queries, k, metric, rsinfo);
	IvfpqProgressEnd();
	IvfpqTableClose(&table);
	return (Datum) 0;
}
