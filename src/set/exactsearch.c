/*
 * exactsearch.c
 *		Exact search for any number of queries, and gpuvec_exact_search.
 *		Graphs and joins use the search, too.
 *
 * The queries are divided into tiles, each as large as memory allows
 * (IvfpqLocalSetQueries).  The table is read once for each tile, unless
 * gpuvecd keeps its rows.  If gpuvecd fails, or has no memory, the queries
 * that it has not answered are divided into new tiles, which are searched in
 * the next way (enum Way).
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/tuplestore.h"

#include "am/types/queries.h"
#include "set/set.h"

/* Approximate number of neighbors that are fetched from a set at a time. */
#define RESULTS			65536

/* A key or TID is prefetched this many neighbors before it is used. */
#define PREFETCHED		64

/*
 * This session's engine gets the rows chunk by chunk, so that the user sees
 * progress.  Comparing a chunk with a tile's queries takes about PRODUCTS
 * multiplications, but a chunk has at least LEAST_ROWS rows.
 */
#define PRODUCTS		((int64) 8000000000)
#define LEAST_ROWS		1024

/* Ways to search, in the order in which they are tried. */
typedef enum Way
{
	WAY_KEPT,					/* gpuvecd keeps the rows (table->work) */
	WAY_SENT,					/* gpuvecd gets rows and queries */
	WAY_HERE					/* this session searches */
} Way;

/* A tile of the queries, and the memory that all tiles use in turn. */
typedef struct Tile
{
	const IvfpqNeighbors *wanted;
	Way			way;
	GvSetSpec	spec;			/* its nqueries are those of this tile */
	IvfpqLocalSet *work;
	int64		first;			/* number of the tile's first query */
	int64		taken;			/* queries whose neighbors the sink has got */
	int64		done_before;	/* rows that were read for earlier tiles */

	float	   *batch;			/* [batch_rows][dims] */
	int			batch_rows;
	int64	   *positions;		/* [result_queries][k] */
	double	   *distances;		/* [result_queries][k] */
	int64		result_queries;
} Tile;

/* State of gpuvec_exact_search, for its sink put_answer(). */
typedef struct Answer
{
	ReturnSetInfo *rsinfo;
	const IvfpqTable *table;
	int			k;
} Answer;

PG_FUNCTION_INFO_V1(gpuvec_exact_search);

/*
 * Passes the vectors of the tile's queries to the set.  Returns false if
 * gpuvecd failed.
 */
static bool
put_queries(Tile *tile)
{
	const IvfpqNeighbors *wanted = tile->wanted;
	const float *vectors;
	int64		n;

	if (tile->spec.own)
		return true;
	if (wanted->from == NULL)
		return IvfpqLocalSetPut(tile->work, GV_SET_QUERIES,
								wanted->vectors +
								tile->first * wanted->rows->dims,
								tile->spec.nqueries);
	for (int64 put = 0; put < tile->spec.nqueries; put += n)
	{
		int64		left = tile->spec.nqueries - put;

		n = IvfpqTableRead(wanted->from, tile->first + put,
						   (int) Min(tile->batch_rows, left), tile->batch,
						   &vectors);
		if (!IvfpqLocalSetPut(tile->work, GV_SET_QUERIES, vectors, n))
			return false;
	}
	return true;
}

/*
 * If a query must not be returned as its own neighbor, passes each query's
 * position among the rows to the set.  Returns false if gpuvecd failed.
 */
static bool
put_selves(Tile *tile)
{
	const IvfpqNeighbors *wanted = tile->wanted;
	int64		numbers[1024];
	int64		n;

	if (!tile->spec.self)
		return true;
	if (wanted->selves != NULL)
		return IvfpqLocalSetPut(tile->work, GV_SET_SELF,
								wanted->selves + tile->first,
								tile->spec.nqueries);
	for (int64 put = 0; put < tile->spec.nqueries; put += n)
	{
		n = Min((int64) lengthof(numbers), tile->spec.nqueries - put);
		for (int64 i = 0; i < n; i++)
			numbers[i] = tile->first + put + i;
		if (!IvfpqLocalSetPut(tile->work, GV_SET_SELF, numbers, n))
			return false;
	}
	return true;
}

/*
 * Passes all rows of the table to the set, unless gpuvecd's set keeps the rows
 * already.  Returns false if gpuvecd failed.
 */
static bool
put_rows(Tile *tile)
{
	IvfpqTable *rows = tile->wanted->rows;
	int64		most = tile->batch_rows;
	const float *vectors;
	int64		n;

	if (tile->way == WAY_HERE)
		most = Min(most, Max(PRODUCTS / tile->spec.dims /
							 tile->spec.nqueries, LEAST_ROWS));
	if (tile->way == WAY_KEPT)
	{
		IvfpqProgressDone(tile->done_before + rows->nrows);
		return true;
	}
	for (int64 put = 0; put < rows->nrows; put += n)
	{
		n = IvfpqTableRead(rows, put,
						   (int) Min(most, rows->nrows - put),
						   tile->batch, &vectors);
		if (!IvfpqLocalSetPut(tile->work, GV_SET_ROWS, vectors, n))
			return false;
		IvfpqProgressDone(tile->done_before + put + n);
	}
	return true;
}

/*
 * Passes the neighbors of n queries to the sink.  A sink looks up the
 * neighbors' keys or TIDs, which are scattered over memory.  Without a
 * prefetch each look-up would be a cache miss.
 */
static void
hand_on(const Tile *tile, int64 n)
{
	const IvfpqNeighbors *wanted = tile->wanted;
	const int64 *keys = wanted->rows->keys;
	int64		k = wanted->k;
	int64		prefetched = 0;

	for (int64 i = 0; i < n; i++)
	{
		for (; prefetched < Min((i + 1) * k + PREFETCHED, n * k); prefetched++)
		{
			int64		position = Max(tile->positions[prefetched], 0);

			__builtin_prefetch(keys != NULL ? (const void *) &keys[position] :
							   (const void *) &wanted->rows->tids[position]);
		}
		wanted->sink(wanted->arg, tile->first + tile->taken + i,
					 tile->positions + i * k, tile->distances + i * k);
	}
}

/*
 * Fetches the tile's results, a part at a time, and passes them to the sink.
 * gpuvecd sends the next part while the sink processes the current one.
 * Returns false if gpuvecd failed.
 */
static bool
take_results(Tile *tile)
{
	int			k = tile->wanted->k;

	while (tile->taken < tile->spec.nqueries)
	{
		int64		nleft = tile->spec.nqueries - tile->taken;
		int64		n = Min(tile->result_queries, nleft);
		int64		next = tile->taken + n;
		int64		nnext = Min(tile->result_queries, nleft - n);

		if (!IvfpqLocalSetGet(tile->work, GV_SET_POSITIONS, tile->taken * k,
							  n * k,
							  tile->positions) ||
			!IvfpqLocalSetGet(tile->work, GV_SET_DISTANCES, tile->taken * k,
							  n * k,
							  tile->distances))
			return false;
		if (nnext > 0)
		{
			IvfpqLocalSetPrefetch(tile->work, GV_SET_POSITIONS, next * k,
								  nnext * k);
			IvfpqLocalSetPrefetch(tile->work, GV_SET_DISTANCES, next * k,
								  nnext * k);
		}
		hand_on(tile, n);
		tile->taken += n;
	}
	return true;
}

/*
 * Searches for the tile's queries.  Sets tile->taken to the number of queries
 * that were answered, which are not all queries if gpuvecd failed.
 */
static void
search_tile(Tile *tile)
{
	const IvfpqNeighbors *wanted = tile->wanted;
	bool		is_kept = tile->way == WAY_KEPT;
	GvSetDone	done;

	if (tile->spec.own)
		tile->spec.first = tile->first;
	tile->taken = 0;
	tile->work = is_kept ? wanted->rows->work :
		IvfpqLocalSetBegin(&tile->spec, tile->way == WAY_HERE ?
						   IVFPQ_WORK_HERE :
						   IVFPQ_WORK_SERVER);
	(void) ((!is_kept || IvfpqLocalSetAsk(tile->work, &tile->spec)) &&
			put_queries(tile) && put_selves(tile) &&
			(wanted->lists == NULL ||
			 IvfpqLocalSetPut(tile->work, GV_SET_LISTS,
							  wanted->lists->centroids,
							  wanted->lists->n)) &&
			put_rows(tile) && IvfpqLocalSetRun(tile->work, &done) &&
			take_results(tile));
	if (!is_kept)
		IvfpqLocalSetEnd(tile->work);
}

/*
 * Searches in one way for all queries from tile->first on, and stops if
 * gpuvecd fails.  Sets tile->first to the first query without an answer.
 * `all` describes the search for all queries.
 */
static void
search_tiles(Tile *tile, const GvSetSpec *all, Way way)
{
	const IvfpqNeighbors *wanted = tile->wanted;
	IvfpqTable *rows = wanted->rows;
	int64		nleft = all->nqueries - tile->first;
	int64		at_a_time;
	int64		ntiles;

	tile->way = way;
	tile->spec = *all;
	if (way == WAY_KEPT)
	{
		tile->spec.nrows = rows->work_rows;
		tile->spec.own = wanted->self && wanted->selves == NULL &&
			wanted->from == rows;
	}
	tile->spec.self = wanted->self && !tile->spec.own;
	at_a_time = IvfpqLocalSetQueries(&tile->spec, way == WAY_HERE ?
									 IVFPQ_WORK_HERE : IVFPQ_WORK_SERVER);
	ntiles = (nleft + at_a_time - 1) / at_a_time;

	/*
	 * Each tile, even a small one, costs one reading of the table.  So make
	 * all tiles equally large.
	 */
	at_a_time = (nleft + ntiles - 1) / ntiles;
	tile->done_before = 0;
	IvfpqProgressPhaseOf(wanted->phase, ntiles * rows->nrows);
	while (tile->first < all->nqueries)
	{
		tile->spec.nqueries = Min(at_a_time, all->nqueries - tile->first);
		search_tile(tile);
		tile->first += tile->taken;
		if (tile->taken < tile->spec.nqueries)
			return;
		tile->done_before += rows->nrows;
	}
}

void
IvfpqFindNeighbors(const IvfpqNeighbors *wanted)
{
	IvfpqTable *rows = wanted->rows;
	GvSetSpec	spec = {.kind = GV_SET_EXACT, .metric = wanted->metric,
		.dims = rows->dims, .k = wanted->k, .nqueries = wanted->nqueries,
	.nrows = rows->nrows};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuvec neighbors",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Tile		tile = {.wanted = wanted};

	if (wanted->lists != NULL)
	{
		spec.nlists = wanted->lists->n;
		spec.probes = wanted->lists->probes;
	}
	tile.batch_rows = IvfpqRowsAtATime(rows->dims);
	tile.batch = palloc((Size) tile.batch_rows * rows->dims * sizeof(float));
	tile.result_queries = Max(RESULTS / wanted->k, 1);
	tile.positions = palloc_extended(tile.result_queries * wanted->k *
									 sizeof(int64), MCXT_ALLOC_HUGE);
	tile.distances = palloc_extended(tile.result_queries * wanted->k *
									 sizeof(double), MCXT_ALLOC_HUGE);

	if (rows->work != NULL)
		search_tiles(&tile, &spec, WAY_KEPT);
	if (tile.first < wanted->nqueries)
	{
		IvfpqTableStopAsking(rows);
		if (IvfpqLocalSetChoose(&spec) == IVFPQ_WORK_SERVER)
			search_tiles(&tile, &spec, WAY_SENT);
	}
	if (tile.first < wanted->nqueries)
	{
		/* this session's set needs the memory of kept vectors */
		IvfpqTableForget(rows);
		if (wanted->from != NULL)
			IvfpqTableForget(wanted->from);
		search_tiles(&tile, &spec, WAY_HERE);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* Sink of IvfpqFindNeighbors: returns rows (query, tid, distance). */
static void
put_answer(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	const Answer *answer = arg;

	for (int i = 0; i < answer->k && positions[i] >= 0; i++)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		/* k may be a million */
		CHECK_FOR_INTERRUPTS();
		values[0] = Int32GetDatum((int32) query + 1);
		values[1] = PointerGetDatum(&answer->table->tids[positions[i]]);
		values[2] = Float8GetDatum(distances[i]);
		tuplestore_putvalues(answer->rsinfo->setResult,
							 answer->rsinfo->setDesc, values, nulls);
	}
}

/*
 * gpuvec_exact_search(rel regclass, vector_column name, queries real[][],
 *		k integer, metric text)
 *
 * Returns the nearest rows of a table to some vectors, without an index.
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
	Answer		answer = {.rsinfo = rsinfo, .table = &table};
	IvfpqNeighbors wanted = {.rows = &table, .metric = metric,
		.nqueries = queries.n, .vectors = queries.vectors,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = put_answer, .arg = &answer};

	IvfpqCheckRange("k", k, 1, GV_SET_MAX_K,
					"\"k\" is the number of neighbors to return for each query.");
	InitMaterializedSRF(fcinfo, 0);
	IvfpqTableOpen(&table, relid, NULL, column);
	IvfpqProgressBegin(IVFPQ_PROGRESS_EXACT, relid);
	IvfpqTableSurvey(&table, 0, false);
	if (table.nrows > 0 && queries.n > 0)
	{
		IvfpqCheckSameDims("the queries", queries.dims,
						   RelationGetRelationName(table.rel), table.dims);
		wanted.k = answer.k = (int) Min((int64) k, table.nrows);
		IvfpqFindNeighbors(&wanted);
	}
	IvfpqProgressEnd();
	IvfpqTableClose(&table);
	return (Datum) 0;
}
