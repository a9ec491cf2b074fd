/*
 * graph.c
 *		gpuvec_knn_graph, whose result is pairs or arrays, and gpuvec_knn_join.
 *		They find the nearest rows of a table to each of its own rows, or to
 *		each row of another table.
 *
 * Each row of the first table is a query.  There are three ways to find its
 * neighbors.
 *
 * Method "exact" compares every query with every row and selects the nearest
 * ones, after Komarov, Dashti, D'Souza, "Fast k-NNG construction with
 * GPU-based quick multi-select", 2014.
 *
 * Method "index" either compares list by list or searches.  The comparison
 * list by list follows Johnson, Douze, Jegou, 2017, section 6.6: each query is
 * compared, exactly, with all rows of the lists near its own list
 * (graphlists.c).  A search looks up the neighbors of each query in the index,
 * as gpuvec_search does, with many queries at a time.  A search reads some
 * hundred rows for each query, while the comparison list by list reads the
 * whole table several times.  So the comparison is worthwhile on a GPU, or if
 * there are enough queries to share its cost.
 *
 * Under cosine, an index does not contain rows without a direction (zero
 * vectors), and a search finds no neighbors for them.  Queries that lack
 * neighbors after the search are compared with all rows.  All queries without
 * a direction have the same neighbors, so one zero vector is compared for all
 * of them.
 *
 * The result goes into the function's tuplestore: a row (key, neighbor, rank,
 * distance) for each pair or, in arrays, a row (key, neighbors, distances) for
 * each key.  There may be a hundred million rows, and forming a tuple of
 * Datums takes as long as storing it.  So we keep one tuple and overwrite its
 * columns for each row; the tuplestore copies the tuple.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/tuplestore.h"

#include "am/bulk/bulksearch.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/params.h"
#include "client/client.h"
#include "set/set.h"

/*
 * The cost model of the comparison list by list assumes that the table is read
 * READINGS times, and that SAMPLED queries are compared with all rows to
 * measure the recall.
 */
#define READINGS		4
#define SAMPLED			200.0

/*
 * A list has about ROWS_OF_LIST rows.  The number of lists near a query's own
 * list is NEAR_FRACTION of all lists, but at most NEAR_LISTS.
 */
#define ROWS_OF_LIST	1000.0
#define NEAR_FRACTION	0.6
#define NEAR_LISTS		60.0

/*
 * To compare two vectors, this session takes PAIR_NS nanoseconds, and another
 * PRODUCT_NS nanoseconds for each dimension.
 */
#define PAIR_NS			0.27
#define PRODUCT_NS		0.011

/*
 * With a GPU, comparing list by list and searching have different costs, which
 * were measured separately.  Comparing two vectors takes DEVICE_FRACTION of
 * the time that this session takes.  Reading a row and sending the row to the
 * GPU takes DEVICE_READ_NS, and DEVICE_READ_DIMENSION_NS for each dimension.
 * A search takes DEVICE_NEIGHBOR_NS to fetch a neighbor's row, which has the
 * key, and to return the neighbor.
 */
#define DEVICE_FRACTION		0.02
#define DEVICE_READ_NS		40.0
#define DEVICE_READ_DIMENSION_NS	1.85
#define DEVICE_NEIGHBOR_NS	1000.0

/* Number of queries from one report of a search's progress to the next. */
#define NOTED_ROWS		256

/*
 * If an index has fewer than LEAST_TIMES * k rows, a search may not find k of
 * them.
 */
#define LEAST_TIMES		4

/*
 * The columns of a pair, as a tuple stores them.  Each column has a fixed
 * length and none is NULL, so the columns are aligned like the members of a
 * struct.
 */
typedef struct Pair
{
	int64		key;
	int64		neighbor;
	int32		rank;			/* from 1 */
	float8		distance;
} Pair;

/* The function's result, and the tuple that is overwritten for each row. */
typedef struct IvfpqPairRows
{
	Tuplestorestate *store;
	TupleTableSlot *slot;		/* contains the tuple */
	MinimalTuple tuple;
	Size		capacity;		/* of the tuple, in bytes */
	bool		in_arrays;		/* a row has arrays, not one pair */
	int			n;				/* length of the arrays; -1 if there is no
								 * tuple yet */
	int64	   *neighbors;		/* [n] elements of the first array in the
								 * tuple */
	float8	   *distances;		/* [n] elements of the second array */
} IvfpqPairRows;

/* State of a comparison, whose sink is take_neighbors(). */
typedef struct Found
{
	const IvfpqPairs *pairs;
	IvfpqRecallSample *sampled; /* measures recall; NULL if neighbors are
								 * exact */
} Found;

/* Numbers of some of the queries, ascending. */
typedef struct Some
{
	int64	   *numbers;		/* [n] */
	int64		n;
	int64		capacity;
} Some;

/* State of searches through an index. */
typedef struct GraphSearch
{
	const IvfpqPairs *pairs;
	IvfpqRecallSample *sampled; /* measures recall; NULL for a join, whose
								 * second table is not read */
	MemoryContext context;		/* owns the arrays below, because sinks are
								 * called in contexts that end earlier */

	/* the queries of a batch, which are searched for together */
	Some		batch;
	float	   *vectors;		/* [batch.n][dims] */

	/* the neighbors of one query of the batch, nearest first */
	double	   *distances;		/* [k + 1] */
	int64	   *keys;			/* [k + 1] */

	/* queries that are compared with all rows afterwards */
	Some		lacking;		/* queries for which the search found too few
								 * neighbors */
	int64		first;			/* index in `lacking` of the first query that
								 * is being compared */
	Some		alike;			/* queries without a direction */
	int			nexact;			/* number of neighbors that a comparison
								 * returns for each query */
} GraphSearch;

StaticAssertDecl(sizeof(int64) == sizeof(float8) &&
				 MAXIMUM_ALIGNOF >= sizeof(float8),
				 "both arrays have the same length and alignment");

PG_FUNCTION_INFO_V1(gpuvec_knn_graph);
PG_FUNCTION_INFO_V1(gpuvec_knn_graph_arrays);
PG_FUNCTION_INFO_V1(gpuvec_knn_join);

#define NAME_ARGUMENT(n)	NameStr(*PG_GETARG_NAME(n))

/* Result rows */

/* Returns a pointer to the tuple's first column. */
static void *
columns(const IvfpqPairRows *rows)
{
	return (char *) rows->tuple + rows->tuple->t_hoff - MINIMAL_TUPLE_OFFSET;
}

/*
 * Makes a tuple with `bytes` bytes of columns, none of them NULL.  The tuple
 * lives in the memory context of `rows`, because sinks are called in other
 * contexts, which end earlier.
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
 * Makes the header of a one-dimensional array of n elements of 8 bytes, with
 * lower bound 1, and returns a pointer to the array's elements.  The length
 * word has 4 bytes even if the array is short, so that a reader need not copy
 * the array to align it.
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

/*
 * Begins a result in rsinfo, for which InitMaterializedSRF must have been
 * called.  The returned struct lives as long as the current memory context.
 */
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

/*
 * Adds a row to the result for each of n neighbors.  The arguments are as in
 * put_neighbors().
 */
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

/*
 * Adds one row with all n neighbors to the result.  The arguments are as in
 * put_neighbors().  The arrays of the last row are used again if they have the
 * right length.
 */
static void
put_arrays(IvfpqPairRows *rows, int64 key, const int64 *keys,
		   const int64 *positions, const double *distances, int n)
{
	CHECK_FOR_INTERRUPTS();
	if (n != rows->n)
	{
		Size		bytes = n > 0 ?
		ARR_OVERHEAD_NONULLS(1) + n * sizeof(int64) : ARR_OVERHEAD_NONULLS(0);
		char	   *memory;

		make_tuple(rows, sizeof(int64) + 2 * bytes);
		memory = (char *) columns(rows) + sizeof(int64);
		rows->neighbors = make_array(memory, bytes, n, INT8OID);
		rows->distances = make_array(memory + bytes, bytes, n, FLOAT8OID);
		rows->n = n;
	}
	*(int64 *) columns(rows) = key;
	for (int i = 0; i < n; i++)
	{
		rows->neighbors[i] = keys[positions == NULL ? i : positions[i]];
		rows->distances[i] = distances[i];
	}
	tuplestore_puttupleslot(rows->store, rows->slot);
}

/*
 * Adds the neighbors of a key to the result, nearest first.  If `positions` is
 * not NULL, it has k indexes into `keys`, of which the first -1 and all later
 * ones are ignored.  If `positions` is NULL, the neighbors are the first k
 * keys.  For a key without neighbors, a row with empty arrays is added to a
 * result of arrays, and nothing is added to a result of pairs.
 */
static void
put_neighbors(IvfpqPairRows *rows, int64 key, const int64 *keys,
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

/* Comparing queries with all rows, or list by list */

/* Sink of IvfpqFindNeighbors: adds one query's neighbors to the result. */
static void
take_neighbors(void *arg, int64 query, const int64 *positions,
			   const double *distances)
{
	const Found *found = arg;
	const IvfpqPairs *pairs = found->pairs;

	if (found->sampled != NULL)
		IvfpqRecallSampleNote(found->sampled, query, distances);
	put_neighbors(pairs->result, pairs->queries->keys[query],
				  pairs->rows->keys, positions, distances, pairs->k);
}

/*
 * Finds all pairs by comparing queries with rows.  With method "index", the
 * number of near lists is gpuvec.probes or, if that is not set, the number
 * that the target recall needs.
 */
static void
find_by_comparing(const IvfpqPairs *pairs, IvfpqMethod method)
{
	Found		found = {.pairs = pairs};
	IvfpqLists *lists = NULL;
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.k = pairs->k, .nqueries = pairs->queries->nrows,
		.from = pairs->queries, .self = pairs->self,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = take_neighbors, .arg = &found};

	if (method == IVFPQ_METHOD_INDEX)
	{
		wanted.lists = lists = IvfpqListsGet(pairs->rows, pairs->metric);
		found.sampled = IvfpqRecallSampleBegin(pairs);
		wanted.probes = ivfpq_probes > 0 ? Min(ivfpq_probes, lists->n) :
			IvfpqProbesFor(found.sampled, lists, ivfpq_recall);
	}
	IvfpqFindNeighbors(&wanted);
	if (found.sampled != NULL)
		IvfpqRecallSampleEnd(found.sampled,
							 psprintf("Each row was compared with those of %d of %d lists.",
									  wanted.probes, lists->n));
}

/* Searching through an index */

/*
 * Estimates how many nanoseconds it takes to compare all queries, list by
 * list, with a table of nrows rows.
 */
static double
comparing_cost(const IvfpqPairs *pairs, double nrows)
{
	double		n = pairs->queries->nrows;
	int			dims = pairs->queries->dims;
	double		lists = nrows / ROWS_OF_LIST;
	double		pairs_of_row = Min(n, SAMPLED) + lists +
	n * Min(NEAR_LISTS / lists, NEAR_FRACTION);
	double		compared = pairs_of_row * (PAIR_NS + dims * PRODUCT_NS);

	if (IvfpqServerHasDevice())
		return nrows * (READINGS * (DEVICE_READ_NS +
									dims * DEVICE_READ_DIMENSION_NS) +
						compared * DEVICE_FRACTION);
	return nrows * (READINGS * (IVFPQ_FETCH_NS + dims * IVFPQ_DIMENSION_NS) +
					compared);
}

/*
 * Returns whether the index can be searched for each query, and whether that
 * is cheaper than comparing list by list.
 */
static bool
search_pays(const IvfpqPairs *pairs, Relation index)
{
	int			dims = pairs->queries->dims;
	int			k = pairs->k + pairs->self;
	double		nrows;
	double		cost;

	/*
	 * Do not search if gpuvec.probes is set, because that number is meant for
	 * comparing list by list.  Do not search for queries whose type is not
	 * the type of the indexed column, because the queries would be cast,
	 * which may round them.
	 */
	if (ivfpq_probes > 0 || k > IVFPQ_BULK_MOST_K ||
		(pairs->rows->type.has_toreal &&
		 pairs->rows->type.type != pairs->queries->type.type) ||
		!IvfpqBulkServes(pairs->rows->rel, index, dims))
		return false;
	cost = IvfpqBulkCost(pairs->rows->rel, index, pairs->queries->nrows, dims,
						 k, &nrows);
	/* each neighbor's row is fetched once more, because the row has the key */
	cost += (double) pairs->queries->nrows * k *
		(IvfpqServerHasDevice() ? DEVICE_NEIGHBOR_NS : IVFPQ_FETCH_NS);
	return nrows >= (double) LEAST_TIMES * k &&
		cost < comparing_cost(pairs, nrows);
}

/*
 * Fetches a row that the search found.  Returns its key, and sets *distance to
 * its exact distance from the query's vector.
 */
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
		*distance = get_float8_nan();	/* rows cannot be ordered by it */
	else if (rows->type.has_toreal)
	{
		/*
		 * compute the distance again, because the operator may sum up in
		 * single precision
		 */
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

/* Appends a query's number. */
static void
append(const GraphSearch *searched, Some *some, int64 query)
{
	MemoryContext old = MemoryContextSwitchTo(searched->context);

	IvfpqGrow(some->numbers, some->n, some->capacity);
	some->numbers[some->n++] = query;
	MemoryContextSwitchTo(old);
}

/*
 * Sink of IvfpqBulkFind: sorts the rows that were found for a query of the
 * batch by their exact distances, and adds the rows to the result.  In a
 * graph, leaves out the query itself.  If fewer than k rows are left, appends
 * the query to `lacking` instead.
 */
static void
take_found(void *arg, int64 query, const IvfpqBulkRow *rows, int n)
{
	GraphSearch *searched = arg;
	const IvfpqPairs *pairs = searched->pairs;
	int64		number = searched->batch.numbers[query];
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
		IvfpqRecallSampleNote(searched->sampled, number, searched->distances);
	if (count < pairs->k)
		append(searched, &searched->lacking, number);
	else
		put_neighbors(pairs->result, pairs->queries->keys[number],
					  searched->keys, NULL, searched->distances, pairs->k);
}

/*
 * Reads at most `capacity` queries, beginning with query number `first`, into
 * the batch.  Queries without a direction are appended to `alike` instead.
 * Returns the number of queries that were read.
 */
static int
read_batch(GraphSearch *searched, int64 first, int capacity)
{
	IvfpqTable *queries = searched->pairs->queries;
	int			dims = queries->dims;
	const float *vectors;
	int			n = IvfpqTableRead(queries, first,
								   (int) Min(capacity, queries->nrows - first),
								   searched->vectors, &vectors);

	/*
	 * search_for_all() freed the kept vectors, so the vectors are in our
	 * buffer
	 */
	Assert(vectors == searched->vectors);
	searched->batch.n = 0;
	for (int i = 0; i < n; i++)
	{
		const float *vector = searched->vectors + (Size) i * dims;
		int64		n_searched = searched->batch.n;

		if (searched->pairs->metric == GV_SET_COSINE &&
			gv_square(vector, dims) == 0)
		{
			append(searched, &searched->alike, first + i);
			continue;
		}
		if (n_searched < i)
			memcpy(searched->vectors + n_searched * dims, vector,
				   dims * sizeof(float));
		append(searched, &searched->batch, first + i);
	}
	return n;
}

/*
 * Searches the index for all queries.  A batch has as many queries as fit into
 * half of maintenance_work_mem.
 */
static void
search_for_all(GraphSearch *searched, Relation index)
{
	const IvfpqPairs *pairs = searched->pairs;
	IvfpqTable *queries = pairs->queries;
	Size		bytes = queries->dims * sizeof(float);
	Size		fit = Max(IvfpqMemoryLimit() / 2 / bytes, 1);
	int			capacity = (int) Min(Min(fit, (Size) queries->nrows), INT_MAX);
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

	/*
	 * free the vectors that the survey kept, because the batch needs the
	 * memory
	 */
	IvfpqTableForget(queries);

	/*
	 * For a join, the second table has not been read, so its number of
	 * dimensions is not known yet.  Set this number to that of the queries,
	 * so that fetching a vector of another length raises an ERROR.
	 */
	pairs->rows->dims = queries->dims;
	searched->vectors = palloc_extended(capacity * bytes, MCXT_ALLOC_HUGE);
	searched->distances = palloc(request.k * sizeof(double));
	searched->keys = palloc(request.k * sizeof(int64));
	request.vectors = searched->vectors;
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_SEARCHING, queries->nrows);
	while (done < queries->nrows)
	{
		done += read_batch(searched, done, capacity);
		request.n = (int) searched->batch.n;
		if (request.n > 0)
		{
			IvfpqBulkFind(&request);
			request.more = true;
		}
		IvfpqProgressDone(done);
	}
	pfree(searched->vectors);
}

/*
 * Sink of IvfpqFindNeighbors: adds the exact neighbors of a query in `lacking`
 * to the result.
 */
static void
take_exact(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	const GraphSearch *searched = arg;
	const IvfpqPairs *pairs = searched->pairs;
	int64		number = searched->lacking.numbers[searched->first + query];

	put_neighbors(pairs->result, pairs->queries->keys[number],
				  pairs->rows->keys, positions, distances, searched->nexact);
}

/* Compares the queries that lack neighbors with all rows. */
static void
compare_lacking(GraphSearch *searched)
{
	const IvfpqPairs *pairs = searched->pairs;
	IvfpqTable *queries = pairs->queries;
	Size		bytes = queries->dims * sizeof(float);
	int64		nlacking = searched->lacking.n;
	int64		capacity = Max(Min((int64) (IvfpqMemoryLimit() / 2 / bytes),
								   nlacking), 1);
	float	   *vectors = palloc_extended(capacity * bytes, MCXT_ALLOC_HUGE);
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

		wanted.nqueries = Min(capacity, nlacking - searched->first);
		wanted.selves = pairs->self ? lacking : NULL;
		for (int64 i = 0; i < wanted.nqueries; i++)
			memcpy(vectors + i * queries->dims,
				   IvfpqTableVector(queries, lacking[i]), bytes);
		IvfpqFindNeighbors(&wanted);
	}
	pfree(vectors);
}

/*
 * Sink of IvfpqFindNeighbors: adds the neighbors of the zero vector to the
 * result once for each query without a direction.  In a graph the comparison
 * has returned up to k + 1 neighbors, because the query itself is left out
 * here.
 */
static void
take_alike(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	GraphSearch *searched = arg;
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
		put_neighbors(pairs->result, pairs->queries->keys[number],
					  searched->keys, NULL, searched->distances, count);
	}
}

/*
 * Compares a zero vector with all rows, for all queries without a direction.
 */
static void
compare_alike(GraphSearch *searched)
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

/*
 * Finds all pairs by searches through an index.  Does nothing and returns
 * false if there is no suitable index, or if comparing list by list is
 * cheaper.  The caller must have surveyed the table of the queries but, for a
 * join, not the other table.
 */
static bool
find_by_search(const IvfpqPairs *pairs)
{
	Relation	index = IvfpqListsIndex(pairs->rows, pairs->metric);
	GraphSearch searched = {.pairs = pairs, .context = CurrentMemoryContext};
	const char *name;

	if (index == NULL)
		return false;
	if (!search_pays(pairs, index))
	{
		index_close(index, NoLock);
		return false;
	}

	if (pairs->self)
		searched.sampled = IvfpqRecallSampleBegin(pairs);
	search_for_all(&searched, index);
	name = RelationGetRelationName(index);
	if (searched.sampled != NULL)
		IvfpqRecallSampleEnd(searched.sampled,
							 psprintf("Each row was searched for through index \"%s\".",
									  name));
	else
		ereport(NOTICE,
				(errmsg("each row of table \"%s\" was searched for through index \"%s\"",
						RelationGetRelationName(pairs->queries->rel), name)));

	if (searched.lacking.n + searched.alike.n > 0 && !pairs->self)
		IvfpqTableSurvey(pairs->rows, 0, false);
	if (searched.lacking.n > 0)
		compare_lacking(&searched);
	if (searched.alike.n > 0)
		compare_alike(&searched);
	index_close(index, NoLock);
	return true;
}

/* SQL functions */

static void
check_k(int k)
{
	IvfpqCheckRange("k", k, 1, GV_SET_MAX_K,
					"k is how many neighbors of each row are wanted.");
}

/*
 * Returns how many bytes of vectors a session may keep: maintenance_work_mem
 * if gpuvecd will probably do the work, or 0 if the session's own engine needs
 * that memory.
 */
static Size
spare_memory(void)
{
	return IvfpqServerIsWanted() ? IvfpqMemoryLimit() : 0;
}

/* Does the work of both graph functions, which have the same arguments. */
static void
return_graph(FunctionCallInfo fcinfo, bool in_arrays)
{
	IvfpqTable	table;
	IvfpqPairs	pairs = {.queries = &table, .rows = &table, .self = true};
	int			k = PG_GETARG_INT32(3);
	IvfpqMethod method;
	Relation	index = NULL;

	pairs.metric = IvfpqMetricArgument(PG_GETARG_TEXT_PP(4));
	method = IvfpqMethodArgument(PG_GETARG_TEXT_PP(5));
	check_k(k);
	InitMaterializedSRF(fcinfo, 0);
	pairs.result = pair_rows_begin((ReturnSetInfo *) fcinfo->resultinfo,
								   in_arrays);
	IvfpqTableOpen(&table, PG_GETARG_OID(0), NAME_ARGUMENT(1),
				   NAME_ARGUMENT(2));
	IvfpqProgressBegin(IVFPQ_PROGRESS_GRAPH, PG_GETARG_OID(0));

	/*
	 * look for an index first: if there is none, an ERROR will follow, and
	 * rows would be sent to gpuvecd in vain
	 */
	if (method == IVFPQ_METHOD_INDEX)
		index = IvfpqListsIndex(&table, pairs.metric);
	IvfpqTableSurvey(&table, spare_memory(), index != NULL);
	if (index != NULL)
		index_close(index, NoLock);

	pairs.k = (int) Min((int64) k, table.nrows - 1);
	if (pairs.k > 0 &&
		!(method == IVFPQ_METHOD_INDEX && find_by_search(&pairs)))
		find_by_comparing(&pairs, method);
	if (table.nrows == 1)		/* a key, but no neighbors */
		put_neighbors(pairs.result, table.keys[0], NULL, NULL, NULL, 0);
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
 * Returns a row for each key, also for a key without neighbors.
 */
Datum
gpuvec_knn_graph_arrays(PG_FUNCTION_ARGS)
{
	return_graph(fcinfo, true);
	return (Datum) 0;
}

/*
 * gpuvec_knn_join(left_rel regclass, left_key name, left_vector name,
 *		right_rel regclass, right_key name, right_vector name, k integer,
 *		metric text, method text)
 *
 * If both tables are the same, a row is a neighbor of itself.
 */
Datum
gpuvec_knn_join(PG_FUNCTION_ARGS)
{
	IvfpqTable	left;
	IvfpqTable	right;
	IvfpqPairs	pairs = {.queries = &left, .rows = &right};
	IvfpqMethod method;

	pairs.k = PG_GETARG_INT32(6);
	pairs.metric = IvfpqMetricArgument(PG_GETARG_TEXT_PP(7));
	method = IvfpqMethodArgument(PG_GETARG_TEXT_PP(8));
	check_k(pairs.k);
	InitMaterializedSRF(fcinfo, 0);
	pairs.result = pair_rows_begin((ReturnSetInfo *) fcinfo->resultinfo,
								   false);
	IvfpqTableOpen(&left, PG_GETARG_OID(0), NAME_ARGUMENT(1),
				   NAME_ARGUMENT(2));
	IvfpqTableOpen(&right, PG_GETARG_OID(3), NAME_ARGUMENT(4),
				   NAME_ARGUMENT(5));
	IvfpqProgressBegin(IVFPQ_PROGRESS_JOIN, PG_GETARG_OID(0));
	IvfpqTableSurvey(&left, spare_memory() / 2, false);
	if (method == IVFPQ_METHOD_EXACT || left.nrows == 0 ||
		!find_by_search(&pairs))
	{
		IvfpqTableSurvey(&right, spare_memory() / 2, false);
		pairs.k = (int) Min((int64) pairs.k, right.nrows);
		if (left.nrows > 0 && right.nrows > 0)
		{
			IvfpqCheckSameDims(RelationGetRelationName(left.rel), left.dims,
							   RelationGetRelationName(right.rel), right.dims);
			find_by_comparing(&pairs, method);
		}
	}
	IvfpqProgressEnd();
	IvfpqTableClose(&right);
	IvfpqTableClose(&left);
	return (Datum) 0;
}
