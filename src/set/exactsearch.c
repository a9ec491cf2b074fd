/*
 * exactsearch.c
 *		Exact search for any number of queries.
 *
 * Queries are taken in tiles, as many as memory allows (IvfpqWorkQueries); the
 * table is read once for each tile.  If gpuvecd fails, what it has not
 * answered is cut into tiles for this session.
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

/* Neighbors that are fetched from the engine at a time, about. */
#define RESULTS			65536

/* A neighbor's key or TID is prefetched this many neighbors ahead. */
#define PREFETCHED		64

/*
 * Work that this session's engine gets at a time, so that its progress shows:
 * about this many products of numbers, but some rows in any case.
 */
#define PRODUCTS		((int64) 8000000000)
#define LEAST_ROWS		1024

/* Ways to search, in the order in which they are tried. */
typedef enum Way
{
	WAY_ASKED,					/* gpuvecd has the rows (table->work) */
	WAY_OWN,					/* it gets them, queries are among them */
	WAY_PLAIN,					/* it gets both */
	WAY_HERE					/* this session */
} Way;

typedef struct Tile
{
	const IvfpqNeighbors *wanted;
	IvfpqWork  *work;
	bool		is_asked;		/* rows are there */
	bool		is_own;			/* queries are among them */
	int64		first;			/* number of its first query */
	int64		nqueries;
	int64		taken;			/* queries whose neighbors the sink has */
	int64		done_before;	/* rows read for tiles before this one */
	float	   *batch;			/* [batch_rows][dims] */
	int			batch_rows;
	int			rows_at_a_time; /* to compare with these queries */
	int64	   *positions;		/* [result_queries][k] */
	double	   *distances;		/* the same */
	int64		result_queries;
} Tile;

static bool
put_queries(Tile *tile)
{
	const IvfpqNeighbors *wanted = tile->wanted;
	const float *vectors;
	int64		n;

	if (tile->is_own)
		return true;
	if (wanted->from == NULL)
		return IvfpqWorkPut(tile->work, GV_SET_QUERIES,
							wanted->vectors + tile->first * wanted->rows->dims,
							tile->nqueries);
	for (int64 put = 0; put < tile->nqueries; put += n)
	{
		n = IvfpqTableRead(wanted->from, tile->first + put,
						   (int) Min(tile->batch_rows, tile->nqueries - put),
						   tile->batch, &vectors);
		if (!IvfpqWorkPut(tile->work, GV_SET_QUERIES, vectors, n))
			return false;
	}
	return true;
}

/* The rows that queries are themselves. */
static bool
put_selves(Tile *tile)
{
	const IvfpqNeighbors *wanted = tile->wanted;
	int64		numbers[1024];
	int64		n;

	if (!wanted->self || tile->is_own)
		return true;
	if (wanted->selves != NULL)
		return IvfpqWorkPut(tile->work, GV_SET_SELF,
							wanted->selves + tile->first, tile->nqueries);
	for (int64 put = 0; put < tile->nqueries; put += n)
	{
		n = Min((int64) lengthof(numbers), tile->nqueries - put);
		for (int64 i = 0; i < n; i++)
			numbers[i] = tile->first + put + i;
		if (!IvfpqWorkPut(tile->work, GV_SET_SELF, numbers, n))
			return false;
	}
	return true;
}

static bool
put_lists(Tile *tile)
{
	const IvfpqNeighbors *wanted = tile->wanted;

	return wanted->lists == NULL ||
		IvfpqWorkPut(tile->work, GV_SET_LISTS, wanted->lists->centroids,
					 wanted->lists->n);
}

static bool
put_rows(Tile *tile)
{
	IvfpqTable *rows = tile->wanted->rows;
	const float *vectors;
	int64		n;

	if (tile->is_asked)
	{
		/* they are there */
		IvfpqProgressDone(tile->done_before + rows->nrows);
		return true;
	}
	for (int64 put = 0; put < rows->nrows; put += n)
	{
		n = IvfpqTableRead(rows, put,
						   (int) Min(tile->rows_at_a_time, rows->nrows - put),
						   tile->batch, &vectors);
		if (!IvfpqWorkPut(tile->work, GV_SET_ROWS, vectors, n))
			return false;
		IvfpqProgressDone(tile->done_before + put + n);
	}
	return true;
}

/*
 * Hand on n queries' neighbors.  A sink looks up keys or TIDs of rows, which
 * lie anywhere in memory: each would be waited for.
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

/* Those of some queries, from `first` on, are taken next. */
static void
prefetch(const Tile *tile, int64 first)
{
	int			k = tile->wanted->k;
	int64		n = Min(tile->result_queries, tile->nqueries - first);

	if (n <= 0)
		return;
	IvfpqWorkPrefetch(tile->work, GV_SET_POSITIONS, first * k, n * k);
	IvfpqWorkPrefetch(tile->work, GV_SET_DISTANCES, first * k, n * k);
}

/* Hand on what was not handed on yet. */
static bool
take_results(Tile *tile)
{
	int			k = tile->wanted->k;

	while (tile->taken < tile->nqueries)
	{
		int64		nleft = tile->nqueries - tile->taken;
		int64		n = Min(tile->result_queries, nleft);

		if (!IvfpqWorkGet(tile->work, GV_SET_POSITIONS, tile->taken * k, n * k,
						  tile->positions) ||
			!IvfpqWorkGet(tile->work, GV_SET_DISTANCES, tile->taken * k, n * k,
						  tile->distances))
			return false;
		prefetch(tile, tile->taken + n);
		hand_on(tile, n);
		tile->taken += n;
	}
	return true;
}

/* Search; tile->taken says how far it came before gpuvecd failed. */
static void
search_tile(Tile *tile, const GvSetSpec *spec, IvfpqWorkPlace place)
{
	GvSetSpec	tile_spec = *spec;
	GvSetDone	done;

	tile_spec.nqueries = tile->nqueries;
	if (tile->is_own)
		tile_spec.first = tile->first;
	tile->rows_at_a_time = tile->batch_rows;
	if (place == IVFPQ_WORK_HERE)
		tile->rows_at_a_time = (int) Min(tile->batch_rows,
										 Max(PRODUCTS / spec->dims /
											 tile->nqueries, LEAST_ROWS));
	tile->taken = 0;
	tile->work = tile->is_asked ? tile->wanted->rows->work :
		IvfpqWorkBegin(&tile_spec, place);
	(void) ((!tile->is_asked || IvfpqWorkAsk(tile->work, &tile_spec)) &&
			put_queries(tile) && put_selves(tile) && put_lists(tile) &&
			put_rows(tile) && IvfpqWorkRun(tile->work, &done) &&
			take_results(tile));
	if (!tile->is_asked)
		IvfpqWorkEnd(tile->work);
}

/* Are queries rows of the table that is searched? */
static bool
are_rows(const IvfpqNeighbors *wanted)
{
	return wanted->self && wanted->selves == NULL &&
		wanted->from == wanted->rows;
}

/* Is it a way to search? */
static bool
is_way(const IvfpqNeighbors *wanted, const GvSetSpec *spec, Way way)
{
	switch (way)
	{
		case WAY_ASKED:
			return wanted->rows->work != NULL;
		case WAY_OWN:

			/*
			 * where lists are near a GPU has most rows at once in any case
			 */
			return are_rows(wanted) && wanted->lists != NULL &&
				IvfpqWorkKeeps(wanted->rows->nrows, wanted->rows->dims) &&
				IvfpqWorkChoose(spec) == IVFPQ_WORK_SERVER;
		case WAY_PLAIN:
			return IvfpqWorkChoose(spec) == IVFPQ_WORK_SERVER;
		case WAY_HERE:
			break;
	}
	return true;
}

/* Search all from tile->first on, or as far as gpuvecd comes. */
static void
search_tiles(Tile *tile, GvSetSpec *spec, Way way)
{
	IvfpqTable *rows = tile->wanted->rows;
	IvfpqWorkPlace place = way == WAY_HERE ? IVFPQ_WORK_HERE :
	IVFPQ_WORK_SERVER;
	int64		nleft = spec->nqueries - tile->first;
	int64		at_a_time;
	int64		ntiles;

	tile->is_asked = way == WAY_ASKED;
	tile->is_own = way <= WAY_OWN && are_rows(tile->wanted);
	spec->nrows = tile->is_asked ? rows->work_rows : rows->nrows;
	spec->own = tile->is_own;
	spec->self = tile->wanted->self && !tile->is_own;
	at_a_time = IvfpqWorkQueries(spec, place);
	ntiles = (nleft + at_a_time - 1) / at_a_time;

	/* tiles of one size, for the last reading costs as much as any */
	at_a_time = (nleft + ntiles - 1) / ntiles;
	tile->done_before = 0;
	IvfpqProgressPhaseOf(tile->wanted->phase,
						 ntiles * tile->wanted->rows->nrows);
	while (tile->first < spec->nqueries)
	{
		tile->nqueries = Min(at_a_time, spec->nqueries - tile->first);
		search_tile(tile, spec, place);
		tile->first += tile->taken;
		if (tile->taken < tile->nqueries)
			return;
		tile->done_before += tile->wanted->rows->nrows;
	}
}

static void
init_tile(Tile *tile, const IvfpqNeighbors *wanted)
{
	IvfpqTable *rows = wanted->rows;

	memset(tile, 0, sizeof(*tile));
	tile->wanted = wanted;
	tile->batch_rows = IvfpqTableBatch(rows);
	tile->batch = palloc((Size) tile->batch_rows * rows->dims * sizeof(float));
	tile->result_queries = Max(RESULTS / wanted->k, 1);
	tile->positions = palloc_extended(tile->result_queries * wanted->k *
									  sizeof(int64), MCXT_ALLOC_HUGE);
	tile->distances = palloc_extended(tile->result_queries * wanted->k *
									  sizeof(double), MCXT_ALLOC_HUGE);
}

/* Find neighbors, see set.h. */
void
IvfpqFindNeighbors(const IvfpqNeighbors *wanted)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT, .metric = wanted->metric,
		.dims = wanted->rows->dims, .k = wanted->k,
	.nqueries = wanted->nqueries, .nrows = wanted->rows->nrows};
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuvec neighbors",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	Tile		tile;

	if (wanted->lists != NULL)
	{
		spec.nlists = wanted->lists->n;
		spec.probes = wanted->probes;
	}
	init_tile(&tile, wanted);
	for (Way way = WAY_ASKED; tile.first < wanted->nqueries; way++)
	{
		if (way == WAY_HERE)
		{
			/* a set of this session takes the memory of vectors */
			IvfpqTableForget(wanted->rows);
			if (wanted->from != NULL)
				IvfpqTableForget(wanted->from);
		}
		if (is_way(wanted, &spec, way))
			search_tiles(&tile, &spec, way);
		if (tile.first < wanted->nqueries)
			IvfpqTableStopAsking(wanted->rows);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
}

/* ----
 * gpuvec_exact_search: the nearest rows of a table to some vectors, with
 * no index.
 */

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
