/*
 * queries.c
 *		Queries that a user passes to a function: an array of vectors, or the
 *		name of a table and of its column of vectors.
 *
 * The table is read through SPI, by a SELECT that runs as the caller.  So the
 * table may be a view or a foreign table, rights and policies apply as in any
 * SELECT, and the column may have any type that can be cast to real[].
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "am/types/queries.h"
#include "page/format.h"

#define FETCH_ROWS	100			/* rows of a table fetched at a time */

/* The state of reading queries from a table. */
typedef struct Reading
{
	MemoryContext context;		/* in which vectors are allocated */
	float	   *vectors;		/* [capacity][dims] */
	int			capacity;
	int			n;
	int			dims;			/* dimensions of the first query */
} Reading;

/*
 * Returns the queries in a real[][].  The result points into the array.  An
 * array of one dimension is one query.  Raises an error if any element is
 * NULL, NaN or infinite.
 */
IvfpqQueries
IvfpqQueriesOfArray(ArrayType *array)
{
	int			ndim = ARR_NDIM(array);
	IvfpqQueries queries = {.vectors = (const float *) ARR_DATA_PTR(array)};

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
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("NULL element not allowed in queries"),
				 errhint("Remove queries without a vector.")));
	if (!gv_is_finite(queries.vectors, (int64) queries.n * queries.dims))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("NaN or infinite value not allowed in queries"),
				 errhint("Remove queries with such elements.")));
	return queries;
}

/* Appends a vector to the queries read so far. */
static void
add_vector(Reading *reading, Datum value)
{
	int			dims;
	ArrayType  *array = DatumGetArrayTypeP(value);
	const float *vector = IvfpqArrayFloats(array, &dims);

	if (reading->n == 0)
		reading->dims = dims;
	if (dims != reading->dims)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("queries must have the same number of dimensions"),
				 errdetail("Some queries have %d dimensions, others have %d.",
						   Min(dims, reading->dims),
						   Max(dims, reading->dims)),
				 errhint("Remove queries whose dimensions are not those of the index, for example with a view.")));
	if (reading->n == reading->capacity)
	{
		Size		size;

		reading->capacity = Max(2 * reading->capacity, FETCH_ROWS);
		size = (Size) reading->capacity * dims * sizeof(float);
		reading->vectors = reading->vectors == NULL ?
			MemoryContextAllocHuge(reading->context, size) :
			repalloc_huge(reading->vectors, size);
	}
	memcpy(reading->vectors + (Size) reading->n * dims, vector,
		   dims * sizeof(float));
	reading->n++;
	if ((Pointer) array != DatumGetPointer(value))
		pfree(array);
}

/*
 * Reads queries from a column of a table: at most `most` rows, drawn at random
 * from those in which the column is not NULL.
 */
static IvfpqQueries
read_table(Oid relid, const char *column, int most)
{
	Reading		reading = {.context = CurrentMemoryContext};
	IvfpqQueries queries;
	char	   *name;
	StringInfoData sql;
	Portal		cursor;

	SPI_connect();
	name = get_rel_name(relid);
	if (name == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	column = quote_identifier(column);
	initStringInfo(&sql);
	appendStringInfo(&sql,
					 "SELECT q.v::pg_catalog.float4[] FROM "
					 "(SELECT t.%s AS v FROM %s AS t WHERE t.%s IS NOT NULL "
					 "ORDER BY pg_catalog.random() LIMIT %d) AS q",
					 column,
					 quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
												name),
					 column, most);
	cursor = SPI_cursor_open_with_args(NULL, sql.data, 0, NULL, NULL, NULL,
									   true, 0);
	for (SPI_cursor_fetch(cursor, true, FETCH_ROWS); SPI_processed > 0;
		 SPI_cursor_fetch(cursor, true, FETCH_ROWS))
	{
		for (uint64 i = 0; i < SPI_processed; i++)
		{
			bool		isnull;
			Datum		value = SPI_getbinval(SPI_tuptable->vals[i],
											  SPI_tuptable->tupdesc, 1,
											  &isnull);

			CHECK_FOR_INTERRUPTS();
			if (!isnull)		/* a cast may return NULL */
				add_vector(&reading, value);
		}
		SPI_freetuptable(SPI_tuptable);
	}
	SPI_cursor_close(cursor);
	SPI_finish();
	queries.vectors = reading.vectors;
	queries.n = reading.n;
	queries.dims = reading.dims;
	return queries;
}

/*
 * Reads the queries that the user has passed to a function.  The function has
 * three arguments for them, from number `first` on: queries real[],
 * queries_table regclass, queries_column name.  At most `most` queries are
 * drawn from a table.  Returns false if all three arguments are NULL.  Raises
 * an error if the array or the table contains no queries.
 *
 * This runs a SELECT with the caller's rights.  So call it while acting as the
 * caller, and before opening anything that the SELECT might change.
 */
bool
IvfpqQueriesArgument(FunctionCallInfo fcinfo, int first, int most,
					 IvfpqQueries *queries)
{
	bool		array = !PG_ARGISNULL(first);
	bool		table = !PG_ARGISNULL(first + 1);

	if (table == PG_ARGISNULL(first + 2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"queries_table\" and \"queries_column\" must be specified together"),
				 errhint("Specify a table and its column of vectors.")));
	if (array && table)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cannot specify both \"queries\" and \"queries_table\""),
				 errhint("Specify either an array of vectors or a table and its column.")));
	if (array)
		*queries = IvfpqQueriesOfArray(PG_GETARG_ARRAYTYPE_P(first));
	else if (table)
		*queries = read_table(PG_GETARG_OID(first + 1),
							  NameStr(*PG_GETARG_NAME(first + 2)), most);
	else
		return false;
	if (queries->n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no query vectors specified"),
				 array ? errdetail("The array is empty.") :
				 errdetail("The table has no visible row with a vector.")));
	return true;
}

/*
 * Prepares queries for a search of an index.  Raises an error unless they have
 * `dims` dimensions, as the index's rows do (0 = the index has no rows).
 * Under cosine, leaves out zero vectors and reports this by a NOTICE.
 */
void
IvfpqQueriesFit(IvfpqQueries *queries, const IvfpqType *type, int dims)
{
	const float *vectors = queries->vectors;
	float	   *kept;
	int			n = queries->n;
	int			own = queries->dims;

	if (dims > 0)
		IvfpqCheckDims(dims, own);
	kept = palloc_extended((Size) n * own * sizeof(float), MCXT_ALLOC_HUGE);
	queries->vectors = kept;
	queries->n = 0;
	for (int i = 0; i < n; i++)
	{
		const float *vector = vectors + (Size) i * own;

		if (IvfpqIsPlaceable(type, vector, own))
			memcpy(kept + (Size) queries->n++ * own, vector,
				   own * sizeof(float));
	}
	if (queries->n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("no query vectors specified"),
				 errdetail("All of them are zero vectors, which have no cosine distance.")));
	if (queries->n < n)
		ereport(NOTICE,
				(errmsg("skipping %d of %d queries", n - queries->n, n),
				 errdetail("They are zero vectors, which have no cosine distance.")));
}

/* Shuffles queries and keeps at most `most` of them. */
void
IvfpqQueriesDraw(IvfpqQueries *queries, int most)
{
	int			n = Min(queries->n, most);
	Size		size = queries->dims * sizeof(float);
	float	   *drawn = palloc_extended(n * size, MCXT_ALLOC_HUGE);
	int		   *order = palloc(queries->n * sizeof(int));

	for (int i = 0; i < queries->n; i++)
		order[i] = i;
	for (int i = 0; i < n; i++)
	{
		int			j = (int) pg_prng_uint64_range(&pg_global_prng_state, i,
												   queries->n - 1);
		int			q = order[j];

		order[j] = order[i];
		memcpy(drawn + (Size) i * queries->dims,
			   queries->vectors + (Size) q * queries->dims, size);
	}
	pfree(order);
	queries->vectors = drawn;
	queries->n = n;
}
