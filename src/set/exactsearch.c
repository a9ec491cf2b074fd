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

#include "am/common/real.h"
#include "set/set.h"

PG_FUNCTION_INFO_V1(gpuvec_exact_search);

/* Vectors that came as an array. */
typedef struct Queries
{
	const float *vectors;		/* [n][dims] */
	int			n;
	int			dims;
} Queries;

typedef struct Answer
{
	ReturnSetInfo *rsinfo;
	const IvfpqTable *table;
	int			k;
} Answer;

/* ERROR if there is a NULL, a NaN or an infinity among the elements. */
static void
CheckElements(ArrayType *array, const Queries *queries)
{
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("NULL element not allowed in queries"),
				 errhint("Leave out queries that have no vector.")));
	if (!gv_is_finite(queries->vectors, (int64) queries->n * queries->dims))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("NaN or infinite value not allowed in queries"),
				 errhint("Leave out queries with such elements.")));
}

/* real[][] as queries; an array of one dimension is one query. */
static Queries
ReadQueries(ArrayType *array)
{
	int			ndim = ARR_NDIM(array);
	Queries		queries = {.vectors = (const float *) ARR_DATA_PTR(array)};

	if (ndim > 2)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("queries must be a two-dimensional array, not %d-dimensional",
						ndim),
				 errhint("Pass one vector or an array of vectors.")));
	if (ndim == 0)
		return queries;
	queries.n = ndim == 2 ? ARR_DIMS(array)[0] : 1;
	queries.dims = ARR_DIMS(array)[ndim - 1];
	if (queries.dims > IVFPQ_MAX_DIMS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("vector cannot have more than %d dimensions",
						IVFPQ_MAX_DIMS)));
	CheckElements(array, &queries);
	return queries;
}

/* Rows (query, tid, distance) of one query. */
static void
PutAnswer(void *arg, int64 query, const int64 *positions,
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
Search(IvfpqTable *table, const Queries *queries, int k, GvSetMetric metric,
	   ReturnSetInfo *rsinfo)
{
	Answer		answer = {rsinfo, table, (int) Min((int64) k, table->nrows)};
	IvfpqNeighbours wanted = {.rows = table, .metric = metric, .k = answer.k,
		.nqueries = queries->n, .vectors = queries->vectors,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = PutAnswer, .arg = &answer};

	if (table->nrows == 0 || queries->n == 0)
		return;
	IvfpqCheckSameDims("the queries", queries->dims,
					   RelationGetRelationName(table->rel), table->dims);
	IvfpqFindNeighbours(&wanted);
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
	Queries		queries = ReadQueries(PG_GETARG_ARRAYTYPE_P(2));
	int			k = PG_GETARG_INT32(3);
	GvSetMetric metric = IvfpqMetricArgument(PG_GETARG_TEXT_PP(4));
	IvfpqTable	table;

	IvfpqCheckRange("k", k, 1, GV_SET_MAX_K,
					"k is how many neighbours of each query are wanted.");
	InitMaterializedSRF(fcinfo, 0);
	IvfpqTableOpen(&table, relid, NULL, column);
	IvfpqProgressBegin(IVFPQ_PROGRESS_EXACT, relid);
	IvfpqTableSurvey(&table);
	Search(&table, &queries, k, metric, rsinfo);
	IvfpqProgressEnd();
	IvfpqTableClose(&table);
	return (Datum) 0;
}
