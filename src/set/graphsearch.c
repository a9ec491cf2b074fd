/*
 * graphsearch.c
 *		Graphs and joins of which each row is searched for through an index, as
 *		gpuvec_search does it, many at a time.
 *
 * An index reads some hundred rows for each, while comparing list by list
 * (graphlists.c) has to read all rows, and more than once.  So the comparison
 * list by list is left to GPUs, and to calls with enough rows to share its
 * cost.
 *
 * An index has no rows without a direction, and none are near to such a row.
 * Rows that lack neighbors for that reason are compared with all rows; rows
 * without a direction, which have the same neighbors, all together.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/tableam.h"
#include "miscadmin.h"
#include "utils/float.h"

#include "am/bulk/bulksearch.h"
#include "am/common/options.h"
#include "am/search/params.h"
#include "client/client.h"
#include "set/set.h"

/*
 * Readings of the table that lists of it take, and rows searched for exactly.
 */
#define READINGS		4
#define SAMPLED			200.0

/*
 * Rows of a list, and lists that are near: this fraction, but no more than so
 * many.
 */
#define ROWS_OF_LIST	1000.0
#define NEAR_FRACTION		0.6
#define NEAR_LISTS		60.0

/* Two vectors compared, and a product for it: of this session. */
#define PAIR_NS			0.27
#define PRODUCT_NS		0.011

/*
 * With a GPU both ways have been timed for themselves: its part of that; a
 * row read on its way there; a neighbor fetched for its key, and returned.
 */
#define DEVICE_FRACTION		0.02
#define DEVICE_READ_NS	40.0
#define DEVICE_READ_DIMENSION_NS	1.85
#define DEVICE_NEIGHBOR_NS	1000.0

/* Rows from one report of progress to the next. */
#define NOTED_ROWS		256

/* An index of fewer rows than LEAST_TIMES k may not have k. */
#define LEAST_TIMES		4

/* Some of the queries, by their numbers, ascending. */
typedef struct Some
{
	int64	   *numbers;		/* [n] */
	int64		n;
	int64		capacity;
} Some;

typedef struct Searched
{
	const IvfpqPairs *pairs;
	IvfpqSampled *sampled;		/* or NULL: that would be to read the table */
	Some		portion;		/* queries that are searched for together, */
	float	   *vectors;		/* and theirs */
	double	   *distances;		/* [k + 1] of one query's neighbors, */
	int64	   *keys;			/* and theirs */
	MemoryContext context;		/* sinks are called in others */
	Some		lacking;		/* those that lack neighbors */
	int64		first;			/* of these, to compare now */
	Some		alike;			/* those without a direction */
	int			nexact;			/* neighbors that each of them has */
} Searched;

/* Nanoseconds, about, that the whole table takes. */
static double
whole_cost(const IvfpqPairs *pairs, double nrows)
{
	double		n = pairs->queries->nrows;
	int			dims = pairs->queries->dims;
	double		lists = nrows / ROWS_OF_LIST;
	double		pairs_of_row = Min(n, SAMPLED) + lists +
	n * Min(NEAR_LISTS / lists, NEAR_FRACTION);
	double		compared = pairs_of_row * (PAIR_NS + dims * PRODUCT_NS);

	if (IvfpqServerHasDevice())
		return nrows * (READINGS * (DEVICE_READ_NS + dims * DEVICE_READ_DIMENSION_NS) +
						compared * DEVICE_FRACTION);
	return nrows * (READINGS * (IVFPQ_FETCH_NS + dims * IVFPQ_DIMENSION_NS) +
					compared);
}

/* Is it better to search for each row through the index? */
static bool
search_pays(const IvfpqPairs *pairs, Relation index)
{
	int			dims = pairs->queries->dims;
	int			k = pairs->k + pairs->self;
	double		nrows;
	double		cost;

	/* a query of another type than the column's is cast, which may round it */
	if (ivfpq_probes > 0 || k > IVFPQ_BULK_MOST_K ||
		(pairs->rows->type.has_toreal &&
		 pairs->rows->type.type != pairs->queries->type.type) ||
		!IvfpqBulkServes(pairs->rows->rel, index, dims))
		return false;
	cost = IvfpqBulkCost(pairs->rows->rel, index, pairs->queries->nrows, dims,
						 k, &nrows);
	/* and neighbors are fetched once more, for their keys */
	cost += (double) pairs->queries->nrows * k *
		(IvfpqServerHasDevice() ? DEVICE_NEIGHBOR_NS : IVFPQ_FETCH_NS);
	return nrows >= (double) LEAST_TIMES * k &&
		cost < whole_cost(pairs, nrows);
}

/* The row at a TID, its key and its distance from a query's vector. */
static int64
fetch_neighbor(const IvfpqPairs *pairs, const IvfpqBulkRow *row,
			   const float *vector, double *distance)
{
	IvfpqTable *rows = pairs->rows;
	ItemPointerData tid = row->tid;
	int64		key;

	if (!table_tuple_fetch_row_version(rows->rel, &tid, rows->snapshot,
									   rows->slot))
		elog(ERROR, "table \"%s\" has lost rows",
			 RelationGetRelationName(rows->rel));
	key = IvfpqTableKey(rows, rows->slot);
	*distance = row->distance;
	if (rows->type.has_toreal && !isfinite(row->distance))
		*distance = get_float8_nan();	/* it says nothing of an order */
	else if (rows->type.has_toreal)
	{
		/* the operator may sum in single precision */
		bool		isnull;

		rows->vector = slot_getattr(rows->slot, rows->vector_column, &isnull);
		Assert(!isnull);
		*distance = gv_set_distance(pairs->metric, vector,
									IvfpqTableFloats(rows),
									pairs->queries->dims);
	}
	ExecClearTuple(rows->slot);
	return key;
}

static void
note(const Searched *searched, Some *some, int64 query)
{
	if (some->n == some->capacity)
	{
		Size		size;

		some->capacity = Max(2 * some->capacity, 64);
		size = some->capacity * sizeof(int64);
		some->numbers = some->numbers == NULL ?
			MemoryContextAlloc(searched->context, size) :
			repalloc_huge(some->numbers, size);
	}
	some->numbers[some->n++] = query;
}

/*
 * Takes the rows found for a query of the portion, but for the query itself.
 * A query with fewer than k of them is noted as lacking.
 */
static void
take_found(void *arg, int64 query, const IvfpqBulkRow *rows, int n)
{
	Searched   *searched = arg;
	const IvfpqPairs *pairs = searched->pairs;
	int64		number = searched->portion.numbers[query];
	const float *vector = searched->vectors + query * pairs->queries->dims;
	int			count = 0;

	for (int i = 0; i < n; i++)
	{
		double		distance;
		int64		key = fetch_neighbor(pairs, &rows[i], vector, &distance);
		int			at = count;

		if (isnan(distance) ||
			(pairs->self && key == pairs->queries->keys[number]))
			continue;
		for (; at > 0 && searched->distances[at - 1] > distance; at--)
		{
			searched->distances[at] = searched->distances[at - 1];
			searched->keys[at] = searched->keys[at - 1];
		}
		searched->distances[at] = distance;
		searched->keys[at] = key;
		count++;
	}
	if (number % NOTED_ROWS == 0)
		IvfpqProgressDone(number);
	for (int i = count; i < pairs->k; i++)
		searched->distances[i] = get_float8_nan();
	if (searched->sampled != NULL)
		IvfpqSampledNote(searched->sampled, number, searched->distances);
	if (count < pairs->k)
	{
		note(searched, &searched->lacking, number);
		return;
	}
	IvfpqPutNeighbors(pairs->result, pairs->queries->keys[number],
					  searched->keys, NULL, searched->distances, pairs->k);
}

/*
 * Read the next portion, at most `capacity` rows from number `first` on, and
 * set those aside that have no direction; how many rows were read.
 */
static int
read_portion(Searched *searched, int64 first, int batch)
{
	IvfpqTable *queries = searched->pairs->queries;
	int			dims = queries->dims;
	const float *vectors;
	int			n = IvfpqTableRead(queries, first,
								   (int) Min(batch, queries->nrows - first),
								   searched->vectors, &vectors);

	/* none are kept, so they are in the portion's memory */
	Assert(vectors == searched->vectors);
	searched->portion.n = 0;
	for (int i = 0; i < n; i++)
	{
		const float *vector = searched->vectors + (Size) i * dims;
		int64		n_searched = searched->portion.n;

		if (searched->pairs->metric == GV_SET_COSINE &&
			gv_square(vector, dims) == 0)
		{
			note(searched, &searched->alike, first + i);
			continue;
		}
		if (n_searched < i)
			memcpy(searched->vectors + n_searched * dims, vector,
				   dims * sizeof(float));
		note(searched, &searched->portion, first + i);
	}
	return n;
}

/* Search for all rows, as many at a time as half of the memory holds. */
static void
search_for_all(Searched *searched, Relation index)
{
	const IvfpqPairs *pairs = searched->pairs;
	IvfpqTable *queries = pairs->queries;
	Size		bytes = queries->dims * sizeof(float);
	int			batch = (int) Max(Min(Min(IvfpqMemoryLimit() / 2 / bytes,
										  (Size) queries->nrows), INT_MAX), 1);
	int64		done = 0;
	IvfpqBulkRequest request = {
		.heap = pairs->rows->rel,
		.index = index,
		.snapshot = pairs->rows->snapshot,
		.dims = queries->dims,
		.k = pairs->k + pairs->self,
		.sink = take_found,
		.arg = searched
	};

	/* a portion takes their memory */
	IvfpqTableForget(queries);
	/* ERROR for any of another length, though no row was read yet */
	pairs->rows->dims = queries->dims;
	searched->vectors = palloc_extended(batch * bytes, MCXT_ALLOC_HUGE);
	searched->distances = palloc(request.k * sizeof(double));
	searched->keys = palloc(request.k * sizeof(int64));
	request.vectors = searched->vectors;
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_SEARCHING, queries->nrows);
	while (done < queries->nrows)
	{
		done += read_portion(searched, done, batch);
		request.n = (int) searched->portion.n;
		if (request.n > 0)
		{
			IvfpqBulkFind(&request);
			request.more = true;
		}
		IvfpqProgressDone(done);
	}
	pfree(searched->vectors);
}

/* The neighbors of one that lacked some, from the engine. */
static void
take_exact(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	const Searched *searched = arg;
	const IvfpqPairs *pairs = searched->pairs;
	int64		number = searched->lacking.numbers[searched->first + query];

	IvfpqPutNeighbors(pairs->result, pairs->queries->keys[number],
					  pairs->rows->keys, positions, distances,
					  searched->nexact);
}

/* Compare those that lack neighbors with all rows. */
static void
compare_lacking(Searched *searched)
{
	const IvfpqPairs *pairs = searched->pairs;
	IvfpqTable *queries = pairs->queries;
	Size		bytes = queries->dims * sizeof(float);
	int64		nlacking = searched->lacking.n;
	int64		batch = Max(Min((int64) (IvfpqMemoryLimit() / 2 / bytes),
								nlacking), 1);
	float	   *vectors = palloc_extended(batch * bytes, MCXT_ALLOC_HUGE);
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.vectors = vectors, .self = pairs->self,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = take_exact, .arg = searched};

	wanted.k = searched->nexact = (int) Min((int64) pairs->k,
											pairs->rows->nrows - pairs->self);
	for (searched->first = 0; wanted.k > 0 && searched->first < nlacking;
		 searched->first += wanted.nqueries)
	{
		const int64 *lacking = searched->lacking.numbers + searched->first;

		wanted.nqueries = Min(batch, nlacking - searched->first);
		wanted.selves = pairs->self ? lacking : NULL;
		for (int64 i = 0; i < wanted.nqueries; i++)
			memcpy(vectors + i * queries->dims,
				   IvfpqTableVector(queries, lacking[i]), bytes);
		IvfpqFindNeighbors(&wanted);
	}
	pfree(vectors);
}

/*
 * The neighbors of all that have no direction: one more where they are rows.
 */
static void
take_alike(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	Searched   *searched = arg;
	const IvfpqPairs *pairs = searched->pairs;

	for (int64 j = 0; j < searched->alike.n; j++)
	{
		int64		number = searched->alike.numbers[j];
		int			count = 0;

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < searched->nexact && positions[i] >= 0; i++)
		{
			if (count == pairs->k || (pairs->self && positions[i] == number))
				continue;
			searched->keys[count] = pairs->rows->keys[positions[i]];
			searched->distances[count++] = distances[i];
		}
		IvfpqPutNeighbors(pairs->result, pairs->queries->keys[number],
						  searched->keys, NULL, searched->distances, count);
	}
}

/* Compare one that has no direction with all rows, for all of them. */
static void
compare_alike(Searched *searched)
{
	const IvfpqPairs *pairs = searched->pairs;
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.vectors = palloc0(pairs->queries->dims * sizeof(float)),
		.nqueries = 1, .phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = take_alike, .arg = searched};

	wanted.k = searched->nexact = (int) Min((int64) pairs->k + pairs->self,
											pairs->rows->nrows);
	if (wanted.k > 0)
		IvfpqFindNeighbors(&wanted);
}

static void
tell_user(const Searched *searched, Relation index)
{
	const IvfpqPairs *pairs = searched->pairs;
	const char *name = RelationGetRelationName(index);

	if (searched->sampled != NULL)
		IvfpqSampledEnd(searched->sampled,
						psprintf("Each row was searched for through index \"%s\".",
								 name));
	else
		ereport(NOTICE,
				(errmsg("each row of table \"%s\" was searched for through index \"%s\"",
						RelationGetRelationName(pairs->queries->rel), name)));
}

/* See set.h. */
bool
IvfpqFindPairsBySearch(const IvfpqPairs *pairs)
{
	Relation	index = IvfpqListsIndex(pairs->rows, pairs->metric);
	Searched	searched = {.pairs = pairs, .context = CurrentMemoryContext};
	bool		is_better = index != NULL && search_pays(pairs, index);

	if (is_better)
	{
		/* a graph's table has been read already */
		if (pairs->self)
			searched.sampled = IvfpqSampledBegin(pairs);
		search_for_all(&searched, index);
		tell_user(&searched, index);
		if (searched.lacking.n + searched.alike.n > 0 && !pairs->self)
			IvfpqTableSurvey(pairs->rows, 0, false);
		if (searched.lacking.n > 0)
			compare_lacking(&searched);
		if (searched.alike.n > 0)
			compare_alike(&searched);
	}
	if (index != NULL)
		index_close(index, NoLock);
	return is_better;
}
