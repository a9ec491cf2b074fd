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
 * compared, exactly, with all rows of the lists near its own list.  A search
 * looks up the neighbors of each query in the index, as gpuvec_search does,
 * with many queries at a time.  A search reads some hundred rows for each
 * query, while the comparison list by list reads the whole table several
 * times.  So the comparison is worthwhile on a GPU, or if there are enough
 * queries to share its cost.
 *
 * Under cosine, an index does not contain rows without a direction (zero
 * vectors), and a search finds no neighbors for them.  Queries that lack
 * neighbors after the search are compared with all rows.
 *
 * The lists are those of a gpuivfpq index.  An index has lists of some hundred
 * rows, so that a scan reads few rows.  Here all queries of one list are
 * compared with all rows of another list at a time, so larger lists are better.
 * Therefore k-means over the centroids of the index merges its lists.
 *
 * A sample of the queries, whose exact neighbors are found, serves to choose
 * the number of near lists (probes), and to report the recall.  With n probes,
 * a neighbor is found if its list is among the n lists nearest to the query's
 * list.  So if all lists are ranked by their distances from the query's list,
 * the rank of the neighbor's list says how many probes find the neighbor.  The
 * ranks for all neighbors in the sample give the recall for every number of
 * probes.
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
#include "catalog/pg_index.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/tuplestore.h"

#include "am/bulk/bulksearch.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/params.h"
#include "client/client.h"
#include "set/set.h"

/* Average number of rows in a list, if the index has enough lists. */
#define ROWS_OF_LIST	1000

/* Number of lists from which on assigning rows to more lists takes longer. */
#define MOST_LISTS		32768

/* Iterations of k-means over the centroids, and its random seed. */
#define ITERATIONS		5
#define SEED			0

/*
 * The sample has SAMPLE queries, or fewer if so many queries and their
 * neighbors would take more than SAMPLE_BYTES.
 */
#define SAMPLE			200
#define SAMPLE_BYTES	(16 * 1024 * 1024)

/*
 * Ranks are found for at most JUDGED neighbors of each query.  If k is larger
 * than JUDGED, these neighbors are spread evenly over the k neighbors.
 */
#define JUDGED			100

/*
 * The sample's recall minus STANDARD_ERRORS standard errors has to reach the
 * target recall.  That difference is the lower end of the one-sided 95 %
 * confidence interval.
 */
#define STANDARD_ERRORS	1.645

/*
 * The cost model of the comparison list by list assumes that the table is read
 * READINGS times, and that the number of lists near a query's own list is
 * NEAR_FRACTION of all lists, but at most NEAR_LISTS.
 */
#define READINGS		4
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
typedef struct PairRows
{
	Tuplestorestate *store;
	TupleTableSlot *slot;		/* contains the tuple */
	MinimalTuple tuple;
	Size		capacity;		/* of the tuple, in bytes */
	int			n;				/* length of the arrays; -1 if there is no
								 * tuple yet */
	int64	   *neighbors;		/* [n] elements of the first array in the
								 * tuple */
	float8	   *distances;		/* [n] elements of the second array */
} PairRows;

/* A sample of the queries with their exact neighbors. */
typedef struct Sample
{
	int			n;				/* queries in the sample; 0 if recall is not
								 * measured */
	int64	   *positions;		/* [n] of the queries, ascending */
	float	   *vectors;		/* [n][dims] */
	int64	   *neighbors;		/* [n][k] positions of the exact neighbors; -1
								 * where a query has fewer than k */
	double	   *distances;		/* [n][k] distances of the exact neighbors;
								 * NaN where a query has fewer than k */

	/* counted by note_found() */
	int			noted;			/* queries of the sample that were counted or
								 * passed over */
	int64		hits;			/* exact neighbors of these queries that were
								 * found */
	int64		possible;		/* all exact neighbors of these queries */
} Sample;

/* A graph or join. */
typedef struct Pairs
{
	IvfpqTable *queries;		/* both tables have keys */
	IvfpqTable *rows;			/* for a graph, the same as `queries` */
	bool		self;			/* true for a graph, where a row is not its
								 * own neighbor */
	GvSetMetric metric;
	int			k;
	bool		by_index;		/* the method is "index" */
	Relation	index;			/* see open_index(); NULL if the method is
								 * "exact" */
	PairRows	result;			/* receives each query's neighbors */
	bool		in_arrays;		/* a row of the result has arrays, not one
								 * pair */
	Sample		sample;
} Pairs;

/* A neighbor of a query in the sample. */
typedef struct Neighbor
{
	int			query;			/* number in the sample */
	int64		position;		/* the neighbor's position */
	int64		list;			/* the neighbor's list */
	int64		rank;			/* of that list, from 0 */
} Neighbor;

/* The ranks of the lists of the neighbors of all queries in the sample. */
typedef struct Ranks
{
	const Pairs *pairs;
	const IvfpqLists *lists;
	Neighbor   *neighbors;		/* [n] sorted by position */
	int			n;
} Ranks;

/* Numbers of some of the queries, ascending. */
typedef struct Some
{
	int64	   *numbers;		/* [n] */
	int64		n;
	int64		capacity;
} Some;

/*
 * State of searches through an index.  Sinks are called in memory contexts
 * that end earlier.  So a sink must not allocate an array; it may enlarge one,
 * because the array then stays in its own context.
 */
typedef struct GraphSearch
{
	Pairs	   *pairs;

	/* the queries of a batch, which are searched for together */
	int64	   *numbers;		/* [nbatch] */
	int			nbatch;
	float	   *vectors;		/* [nbatch][dims] */

	/* the neighbors of one query of the batch, nearest first */
	double	   *distances;		/* [k + 1] */
	int64	   *keys;			/* [k + 1] */

	Some		alike;			/* queries without a direction */
	Some		lacking;		/* queries for which the search found too few
								 * neighbors, and which are compared with all
								 * rows afterwards */
	int64		first;			/* index in `lacking` of the first query that
								 * is being compared */
	int			nexact;			/* number of neighbors that the comparison
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
columns(const PairRows *rows)
{
	return (char *) rows->tuple + rows->tuple->t_hoff - MINIMAL_TUPLE_OFFSET;
}

/*
 * Makes a tuple with `bytes` bytes of columns, none of them NULL.  The tuple
 * must not move to another memory context, because sinks are called in
 * contexts that end earlier.
 */
static void
make_tuple(PairRows *rows, Size bytes, int infomask)
{
	Size		header = MAXALIGN(SizeofHeapTupleHeader) -
	MINIMAL_TUPLE_OFFSET;

	if (rows->capacity < header + bytes)
	{
		rows->capacity = header + bytes;
		rows->tuple = repalloc(rows->tuple, rows->capacity);
	}
	rows->tuple->t_len = header + bytes;
	rows->tuple->t_infomask2 = rows->slot->tts_tupleDescriptor->natts;
	rows->tuple->t_infomask = infomask;
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
 * Adds a row to the result for each of n neighbors.  The arguments are as in
 * put_neighbors().
 */
static void
put_pairs(Pairs *pairs, int64 query, const int64 *keys,
		  const int64 *positions, const double *distances, int n)
{
	PairRows   *rows = &pairs->result;
	Pair	   *pair = columns(rows);

	pair->key = pairs->queries->keys[query];
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		pair->neighbor = positions == NULL ? keys[i] :
			pairs->rows->keys[positions[i]];
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
put_arrays(Pairs *pairs, int64 query, const int64 *keys,
		   const int64 *positions, const double *distances, int n)
{
	PairRows   *rows = &pairs->result;

	CHECK_FOR_INTERRUPTS();
	if (n != rows->n)
	{
		Size		bytes = n > 0 ?
		ARR_OVERHEAD_NONULLS(1) + n * sizeof(int64) : ARR_OVERHEAD_NONULLS(0);
		char	   *memory;

		make_tuple(rows, sizeof(int64) + 2 * bytes, HEAP_HASVARWIDTH);
		memory = (char *) columns(rows) + sizeof(int64);
		rows->neighbors = make_array(memory, bytes, n, INT8OID);
		rows->distances = make_array(memory + bytes, bytes, n, FLOAT8OID);
		rows->n = n;
	}
	*(int64 *) columns(rows) = pairs->queries->keys[query];
	for (int i = 0; i < n; i++)
	{
		rows->neighbors[i] = positions == NULL ? keys[i] :
			pairs->rows->keys[positions[i]];
		rows->distances[i] = distances[i];
	}
	tuplestore_puttupleslot(rows->store, rows->slot);
}

/*
 * Adds the neighbors of a query to the result, nearest first.  `keys` are the
 * keys of k neighbors or, if `positions` is not NULL, positions [k] are the
 * positions of the neighbors, of which the first -1 and all later ones are
 * ignored.  For a query without neighbors, a row with empty arrays is added to
 * a result of arrays, and nothing is added to a result of pairs.
 */
static void
put_neighbors(Pairs *pairs, int64 query, const int64 *keys,
			  const int64 *positions, const double *distances, int k)
{
	int			n = 0;

	while (n < k && (positions == NULL || positions[n] >= 0))
		n++;
	if (pairs->in_arrays)
		put_arrays(pairs, query, keys, positions, distances, n);
	else
		put_pairs(pairs, query, keys, positions, distances, n);
}

/* Lists of the rows of a table */

/*
 * Returns whether this is a valid gpuivfpq index on this column that is not
 * partial.  Looks for a predicate in the catalog, because
 * RelationGetIndexPredicate would run the owner's code to simplify the
 * predicate.
 */
static bool
holds_column(Relation index, AttrNumber column)
{
	Form_pg_index form = index->rd_index;

	return IvfpqIsOurs(index) &&
		form->indisvalid && form->indkey.values[0] == column &&
		heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/*
 * Opens a gpuivfpq index that is not partial, for this metric and the table's
 * vector column.  Returns NULL if the table has no such index.
 */
static Relation
open_index(const IvfpqTable *rows, GvSetMetric metric)
{
	List	   *oids = RelationGetIndexList(rows->rel);
	ListCell   *cell;

	foreach(cell, oids)
	{
		Relation	index = index_open(lfirst_oid(cell), AccessShareLock);
		IvfpqType	type;

		if (holds_column(index, rows->vector_column))
		{
			IvfpqTypeInit(&type, index);
			if ((int) type.metric == (int) metric)
			{
				list_free(oids);
				return index;
			}
		}
		index_close(index, AccessShareLock);
	}
	list_free(oids);
	return NULL;
}

/*
 * Returns lists of about ROWS_OF_LIST rows each, but not more lists than the
 * index has.  Raises an ERROR if there is no index.
 */
static IvfpqLists
get_lists(const Pairs *pairs)
{
	IvfpqLists	lists = {0};
	const IvfpqTable *rows = pairs->rows;
	int64		most = Min(Max(rows->nrows / ROWS_OF_LIST, 1), MOST_LISTS);

	if (pairs->index == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" has no gpuivfpq index for metric %s on column \"%s\"",
						RelationGetRelationName(rows->rel),
						IvfpqMetricName(pairs->metric),
						get_attname(RelationGetRelid(rows->rel),
									rows->vector_column, false)),
				 pairs->metric == GV_SET_PEARSON ?
				 errhint("Use method \"exact\", because no index supports correlation.") :
				 errhint("Create a non-partial index with the operator class of that metric, or use method \"exact\".")));
	lists.centroids = IvfpqCentroids(pairs->index, rows->dims, &lists.n);
	if (lists.n == 0)
	{
		/* the index is not trained: make one list of all rows */
		lists.n = 1;
		lists.centroids = palloc0(rows->dims * sizeof(float));
	}
	if (lists.n > most)
	{
		float	   *merged = palloc_extended((Size) most * rows->dims *
											 sizeof(float), MCXT_ALLOC_HUGE);

		lists.n = IvfpqCluster (lists.centroids, lists.n, rows->dims,
								(int) most, ITERATIONS, SEED, merged);

		pfree(lists.centroids);
		lists.centroids = merged;
	}
	return lists;
}

/*
 * Sets found [spec->nqueries] to the number of the centroid nearest to each
 * vector.  Returns false if gpuvecd failed.
 */
static bool
try_to_find(const IvfpqLists *lists, const GvSetSpec *spec,
			const float *vectors, IvfpqLocalSetPlace place, int64 *found)
{
	IvfpqLocalSet *work = IvfpqLocalSetBegin(spec, place);
	int			most = IvfpqRowsAtATime(spec->dims);
	GvSetDone	done;
	bool		worked;

	worked = IvfpqLocalSetPut(work, GV_SET_QUERIES, vectors, spec->nqueries);
	for (int put = 0; worked && put < lists->n; put += most)
		worked = IvfpqLocalSetPut(work, GV_SET_ROWS, lists->centroids +
								  (Size) put * spec->dims,
								  Min(most, lists->n - put));
	worked = worked && IvfpqLocalSetRun(work, &done) &&
		IvfpqLocalSetGet(work, GV_SET_POSITIONS, 0, spec->nqueries, found);
	IvfpqLocalSetEnd(work);
	return worked;
}

/*
 * Sets found [nvectors] to the number of each vector's list.  gv_set.h defines
 * to which list a vector belongs.
 */
static void
find_nearest_lists(const Pairs *pairs, const IvfpqLists *lists,
				   const float *vectors, int nvectors, int64 *found)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,
		.metric = pairs->metric == GV_SET_IP ? GV_SET_L2 : pairs->metric,
		.dims = pairs->rows->dims, .k = 1, .nqueries = nvectors,
	.nrows = lists->n};

	if (!try_to_find(lists, &spec, vectors, IvfpqLocalSetChoose(&spec), found))
		(void) try_to_find(lists, &spec, vectors, IVFPQ_WORK_HERE, found);
}

/* The sample, and the number of probes */

/*
 * Sink of IvfpqFindNeighbors: stores the exact neighbors of a query in the
 * sample.
 */
static void
take_sample(void *arg, int64 query, const int64 *positions,
			const double *distances)
{
	const Pairs *pairs = arg;
	int			k = pairs->k;

	memcpy(pairs->sample.neighbors + query * k, positions, k * sizeof(int64));
	memcpy(pairs->sample.distances + query * k, distances, k * sizeof(double));
}

/* Chooses the sample and finds its exact neighbors. */
static void
begin_sample(Pairs *pairs)
{
	Sample	   *sample = &pairs->sample;
	int			dims = pairs->rows->dims;
	Size		bytes = dims * sizeof(float) +
	pairs->k * (sizeof(int64) + sizeof(double));
	int64		most = Max(Min(SAMPLE_BYTES / bytes, SAMPLE), 1);
	int64		nqueries = pairs->queries->nrows;
	int			n = (int) Min(most, nqueries);
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.k = pairs->k, .self = pairs->self, .phase = IVFPQ_PROGRESS_RECALL,
	.sink = take_sample, .arg = pairs};

	sample->n = n;
	sample->positions = palloc(n * sizeof(int64));
	sample->vectors = palloc((Size) n * dims * sizeof(float));
	sample->neighbors = palloc((Size) n * pairs->k * sizeof(int64));
	sample->distances = palloc((Size) n * pairs->k * sizeof(double));
	for (int i = 0; i < n; i++)
	{
		sample->positions[i] = nqueries / n * i + nqueries % n * i / n;
		memcpy(sample->vectors + (Size) i * dims,
			   IvfpqTableVector(pairs->queries, sample->positions[i]),
			   dims * sizeof(float));
	}
	wanted.nqueries = n;
	wanted.vectors = sample->vectors;
	wanted.selves = pairs->self ? sample->positions : NULL;
	IvfpqFindNeighbors(&wanted);
}

/*
 * If the query is in the sample, counts how many of its exact neighbors were
 * found.  `distances` [k] are the ascending distances of the neighbors that
 * were found, followed by NaN if fewer than k were found.  The caller has to
 * pass the queries in ascending order.
 *
 * A row counts as found if its distance is not larger than that of the last
 * exact neighbor.  So a row that is equally far may take the place of an exact
 * neighbor.  A query without exact neighbors does not count.
 */
static void
note_found(Pairs *pairs, int64 query, const double *distances)
{
	Sample	   *sample = &pairs->sample;
	const double *exact;
	int			possible = 0;

	while (sample->noted < sample->n &&
		   sample->positions[sample->noted] < query)
		sample->noted++;
	if (sample->noted == sample->n ||
		query != sample->positions[sample->noted])
		return;
	exact = sample->distances + (Size) sample->noted * pairs->k;
	while (possible < pairs->k && !isnan(exact[possible]))
		possible++;
	for (int i = 0; i < possible; i++)
		sample->hits += distances[i] <= exact[possible - 1];
	sample->possible += possible;
	sample->noted++;
}

/*
 * Reports the recall to the user.  `how` is a sentence that says how the
 * neighbors were found.
 */
static void
report_recall(const Pairs *pairs, const char *how)
{
	const Sample *sample = &pairs->sample;

	if (sample->possible > 0)
		ereport(NOTICE,
				(errmsg("recall@%d is about %.3f (%d rows compared)",
						pairs->k, (double) sample->hits / sample->possible,
						sample->n),
				 errdetail("%s", how)));
}

static int
compare_positions(const void *a, const void *b)
{
	int64		x = ((const Neighbor *) a)->position;
	int64		y = ((const Neighbor *) b)->position;

	return x < y ? -1 : x > y;
}

/*
 * Chooses the neighbors whose ranks are found.  Neighbors whose distance is
 * NaN do not count.
 */
static void
choose_neighbors(Ranks *ranks)
{
	const Sample *sample = &ranks->pairs->sample;
	int64		k = ranks->pairs->k;
	int			judged = (int) Min(k, JUDGED);

	ranks->neighbors = palloc(sample->n * judged * sizeof(Neighbor));
	for (int query = 0; query < sample->n; query++)
		for (int i = 0; i < judged; i++)
		{
			Size		item = query * k + i * k / judged;

			if (!isnan(sample->distances[item]))
				ranks->neighbors[ranks->n++] = (Neighbor)
			{
				.query = query, .position = sample->neighbors[item]
			};
		}
	qsort(ranks->neighbors, ranks->n, sizeof(Neighbor), compare_positions);
}

/* Finds the lists of all neighbors, a batch at a time. */
static void
find_lists(Ranks *ranks)
{
	IvfpqTable *rows = ranks->pairs->rows;
	Size		dims = rows->dims;
	int			batch = IvfpqRowsAtATime(rows->dims);
	float	   *vectors = palloc(batch * dims * sizeof(float));
	int64	   *found = palloc(batch * sizeof(int64));

	for (int first = 0; first < ranks->n; first += batch)
	{
		Neighbor   *neighbors = ranks->neighbors + first;
		int			n = Min(batch, ranks->n - first);

		for (int i = 0; i < n; i++)
		{
			int64		position = neighbors[i].position;
			const float *vector;

			/* several queries may have the same neighbor */
			if (i > 0 && position == neighbors[i - 1].position)
				vector = vectors + (i - 1) * dims;
			else
				vector = IvfpqTableVector(rows, position);
			memcpy(vectors + i * dims, vector, dims * sizeof(float));
		}
		find_nearest_lists(ranks->pairs, ranks->lists, vectors, n, found);
		for (int i = 0; i < n; i++)
			neighbors[i].list = found[i];
	}
	pfree(found);
	pfree(vectors);
}

/*
 * Returns the rank of a list, counted from 0, among n lists that are ordered
 * by (distance, number).  Counts the lists before this one, which takes less
 * time than a sort.
 */
static int64
rank_among(const double *distances, int n, int64 list)
{
	double		distance = distances[list];
	int64		rank = 0;

	for (int i = 0; i < n; i++)
		rank += distances[i] < distance ||
			(distances[i] == distance && i < list);
	return rank;
}

/*
 * Finds the rank of each neighbor's list among all lists, which are ordered by
 * their distances from the list of the neighbor's query.
 */
static void
find_ranks(Ranks *ranks)
{
	const Sample *sample = &ranks->pairs->sample;
	const float *centroids = ranks->lists->centroids;
	Size		dims = ranks->pairs->rows->dims;
	int			nlists = ranks->lists->n;
	int64	   *own = palloc(sample->n * sizeof(int64));
	double	   *distances = palloc_extended(nlists * sizeof(double),
											MCXT_ALLOC_HUGE);

	find_nearest_lists(ranks->pairs, ranks->lists, sample->vectors, sample->n,
					   own);
	for (int query = 0; query < sample->n; query++)
	{
		for (int i = 0; i < nlists; i++)
		{
			double		distance = gv_set_distance(ranks->pairs->metric,
												   centroids +
												   own[query] * dims,
												   centroids + i * dims,
												   (int) dims);

			CHECK_FOR_INTERRUPTS();
			/* NaN comes last; all other distances are finite */
			distances[i] = isnan(distance) ? get_float8_infinity() : distance;
		}
		for (int i = 0; i < ranks->n; i++)
			if (ranks->neighbors[i].query == query)
				ranks->neighbors[i].rank = rank_among(distances, nlists,
													  ranks->neighbors[i].list);
	}
	pfree(own);
	pfree(distances);
}

/* Returns whether the sample reaches a recall with this number of probes. */
static bool
suffices(const Ranks *ranks, int probes, double recall)
{
	int			possible[SAMPLE] = {0};
	int			found[SAMPLE] = {0};
	double		sum = 0.0;
	double		squares = 0.0;
	double		mean;
	double		variance;
	int			n = 0;

	for (int i = 0; i < ranks->n; i++)
	{
		possible[ranks->neighbors[i].query]++;
		found[ranks->neighbors[i].query] += ranks->neighbors[i].rank < probes;
	}
	for (int query = 0; query < ranks->pairs->sample.n; query++)
	{
		double		fraction;

		if (possible[query] == 0)
			continue;
		fraction = (double) found[query] / possible[query];
		sum += fraction;
		squares += fraction * fraction;
		n++;
	}
	if (n == 0)
		return true;
	mean = sum / n;
	variance = Max(squares / n - mean * mean, 0.0);
	return mean - STANDARD_ERRORS * sqrt(variance / n) >= recall;
}

/*
 * Returns the least number of probes with which the sample reaches a recall.
 */
static int
least_lists(const Ranks *ranks, double recall)
{
	int			low = 1;
	int			high = ranks->lists->n;

	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (suffices(ranks, middle, recall))
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/*
 * Returns the smallest number of probes that almost certainly reaches a
 * recall.  For recall 1 all lists are probed, so that the answer is exact.
 * Indexes are calibrated up to IVFPQ_SURE_RECALL.  For a higher recall the
 * sample is too small, too, so the number of probes is extrapolated, as it is
 * for a scan.
 */
static int
choose_probes(const Pairs *pairs, const IvfpqLists *lists, double recall)
{
	Ranks		ranks = {.pairs = pairs, .lists = lists};
	int			probes;

	if (recall >= 1)
		return lists->n;
	choose_neighbors(&ranks);
	find_lists(&ranks);
	find_ranks(&ranks);
	probes = least_lists(&ranks, Min(recall, IVFPQ_SURE_RECALL));
	if (recall > IVFPQ_SURE_RECALL)
	{
		int			lower = least_lists(&ranks, IVFPQ_LOWER_RECALL);

		probes = (int) Min(ceil(IvfpqBeyondTargets(recall, IVFPQ_SURE_RECALL,
												   lower, probes)),
						   lists->n);
	}
	pfree(ranks.neighbors);
	return probes;
}

/* Comparing queries with all rows, or list by list */

/* Sink of IvfpqFindNeighbors: adds one query's neighbors to the result. */
static void
take_neighbors(void *arg, int64 query, const int64 *positions,
			   const double *distances)
{
	Pairs	   *pairs = arg;

	note_found(pairs, query, distances);
	put_neighbors(pairs, query, NULL, positions, distances, pairs->k);
}

/*
 * Finds all pairs by comparing queries with rows.  With method "index", the
 * number of near lists is gpuvec.probes or, if that is not set, the number
 * that the target recall needs.
 */
static void
find_by_comparing(Pairs *pairs)
{
	IvfpqLists	lists;
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.k = pairs->k, .nqueries = pairs->queries->nrows,
		.from = pairs->queries, .self = pairs->self,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = take_neighbors, .arg = pairs};

	if (pairs->by_index)
	{
		lists = get_lists(pairs);
		begin_sample(pairs);
		lists.probes = ivfpq_probes > 0 ? Min(ivfpq_probes, lists.n) :
			choose_probes(pairs, &lists, ivfpq_recall);
		wanted.lists = &lists;
	}
	IvfpqFindNeighbors(&wanted);
	if (pairs->by_index)
		report_recall(pairs,
					  psprintf("Each row was compared with those of %d of %d lists.",
							   lists.probes, lists.n));
}

/* Searching through an index */

/*
 * Estimates how many nanoseconds it takes to compare all queries, list by
 * list, with a table of nrows rows.
 */
static double
comparing_cost(const Pairs *pairs, double nrows)
{
	double		n = pairs->queries->nrows;
	int			dims = pairs->queries->dims;
	double		lists = nrows / ROWS_OF_LIST;
	double		pairs_of_row = Min(n, SAMPLE) + lists +
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
search_pays(const Pairs *pairs)
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
		!IvfpqBulkServes(pairs->rows->rel, pairs->index, dims))
		return false;
	cost = IvfpqBulkCost(pairs->rows->rel, pairs->index,
						 pairs->queries->nrows, dims, k, &nrows);
	/* each neighbor's row is fetched once more, because the row has the key */
	cost += (double) pairs->queries->nrows * k *
		(IvfpqServerHasDevice() ? DEVICE_NEIGHBOR_NS : IVFPQ_FETCH_NS);
	return nrows >= (double) LEAST_TIMES * k &&
		cost < comparing_cost(pairs, nrows);
}

/* Fetches a row that the search found, and returns its key. */
static int64
fetch_neighbor(const Pairs *pairs, const IvfpqBulkRow *row)
{
	IvfpqTable *rows = pairs->rows;
	ItemPointerData tid = row->tid;
	int64		key;

	if (!table_tuple_fetch_row_version(rows->rel, &tid, rows->snapshot,
									   rows->slot))
		elog(ERROR, "table \"%s\" has lost rows",
			 RelationGetRelationName(rows->rel));
	key = IvfpqTableKey(rows, rows->slot);
	ExecClearTuple(rows->slot);
	return key;
}

static Some
begin_some(void)
{
	Some		some = {.capacity = 64};

	some.numbers = palloc(some.capacity * sizeof(int64));
	return some;
}

/* Appends a query's number. */
static void
append(Some *some, int64 query)
{
	IvfpqGrow(some->numbers, some->n, some->capacity);
	some->numbers[some->n++] = query;
}

/*
 * Sink of IvfpqBulkFind: adds the rows that were found for a query of the
 * batch to the result, the nearest first.  In a graph, leaves out the query
 * itself.  If fewer than k rows are left, appends the query to `lacking`
 * instead.
 */
static void
take_found(void *arg, int64 query, const IvfpqBulkRow *rows, int n)
{
	GraphSearch *searched = arg;
	Pairs	   *pairs = searched->pairs;
	int64		number = searched->numbers[query];
	int			count = 0;

	for (int i = 0; i < n; i++)
	{
		double		distance = rows[i].distance;
		int64		key = fetch_neighbor(pairs, &rows[i]);

		if (isnan(distance) ||
			(pairs->self && key == pairs->queries->keys[number]))
			continue;
		searched->distances[count] = distance;
		searched->keys[count++] = key;
	}
	if (number % NOTED_ROWS == 0)
		IvfpqProgressDone(number);
	for (int i = count; i < pairs->k; i++)
		searched->distances[i] = get_float8_nan();
	note_found(pairs, number, searched->distances);
	if (count < pairs->k)
		append(&searched->lacking, number);
	else
		put_neighbors(pairs, number, searched->keys, NULL,
					  searched->distances, pairs->k);
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
	searched->nbatch = 0;
	for (int i = 0; i < n; i++)
	{
		const float *vector = searched->vectors + (Size) i * dims;

		if (searched->pairs->metric == GV_SET_COSINE &&
			gv_square(vector, dims) == 0)
		{
			append(&searched->alike, first + i);
			continue;
		}
		if (searched->nbatch < i)
			memcpy(searched->vectors + (Size) searched->nbatch * dims, vector,
				   dims * sizeof(float));
		searched->numbers[searched->nbatch++] = first + i;
	}
	return n;
}

/*
 * Searches the index for all queries.  A batch has as many queries as fit into
 * half of maintenance_work_mem.
 */
static void
search_for_all(GraphSearch *searched)
{
	const Pairs *pairs = searched->pairs;
	IvfpqTable *queries = pairs->queries;
	Size		bytes = queries->dims * sizeof(float);
	Size		fit = Max(IvfpqMemoryLimit() / 2 / bytes, 1);
	int			capacity = (int) Min(Min(fit, (Size) queries->nrows), INT_MAX);
	int64		done = 0;
	IvfpqBulkRequest request = {
		.heap = pairs->rows->rel,
		.index = pairs->index,
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
	searched->numbers = palloc_extended(capacity * sizeof(int64),
										MCXT_ALLOC_HUGE);
	searched->distances = palloc(request.k * sizeof(double));
	searched->keys = palloc(request.k * sizeof(int64));
	request.vectors = searched->vectors;
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_SEARCHING, queries->nrows);
	while (done < queries->nrows)
	{
		done += read_batch(searched, done, capacity);
		request.n = searched->nbatch;
		if (request.n > 0)
		{
			IvfpqBulkFind(&request);
			request.more = true;
		}
		IvfpqProgressDone(done);
	}
	pfree(searched->numbers);
	pfree(searched->vectors);
}

/*
 * Sink of IvfpqFindNeighbors: adds the exact neighbors of a query in `lacking`
 * to the result.
 */
static void
take_lacking(void *arg, int64 query, const int64 *positions,
			 const double *distances)
{
	const GraphSearch *searched = arg;

	put_neighbors(searched->pairs,
				  searched->lacking.numbers[searched->first + query], NULL,
				  positions, distances, searched->nexact);
}

/* Compares the queries that lack neighbors with all rows. */
static void
compare_lacking(GraphSearch *searched)
{
	const Pairs *pairs = searched->pairs;
	IvfpqTable *queries = pairs->queries;
	Size		bytes = queries->dims * sizeof(float);
	int64		nlacking = searched->lacking.n;
	int64		capacity = Max(Min((int64) (IvfpqMemoryLimit() / 2 / bytes),
								   nlacking), 1);
	float	   *vectors = palloc_extended(capacity * bytes, MCXT_ALLOC_HUGE);
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.vectors = vectors, .self = pairs->self,
		.phase = IVFPQ_PROGRESS_SEARCHING,
	.sink = take_lacking, .arg = searched};

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
 * Adds the neighbors of queries without a direction to the result.  All rows
 * have distance NaN from such a query, so its neighbors are the first k rows,
 * in a graph without the query itself.
 */
static void
put_alike(GraphSearch *searched)
{
	Pairs	   *pairs = searched->pairs;

	for (int64 i = 0; i < searched->alike.n; i++)
	{
		int64		number = searched->alike.numbers[i];
		int			n = 0;

		CHECK_FOR_INTERRUPTS();
		for (int64 position = 0; n < pairs->k &&
			 position < pairs->rows->nrows; position++)
		{
			if (pairs->self && position == number)
				continue;
			searched->keys[n] = pairs->rows->keys[position];
			searched->distances[n++] = get_float8_nan();
		}
		put_neighbors(pairs, number, searched->keys, NULL,
					  searched->distances, n);
	}
}

/*
 * Finds all pairs by searches through the index.  Does nothing and returns
 * false if there is no suitable index, or if comparing list by list is
 * cheaper.  The caller must have surveyed the table of the queries but, for a
 * join, not the other table.
 */
static bool
find_by_search(Pairs *pairs)
{
	GraphSearch searched = {.pairs = pairs};
	const char *name;

	if (pairs->index == NULL || !search_pays(pairs))
		return false;
	name = RelationGetRelationName(pairs->index);
	searched.lacking = begin_some();
	searched.alike = begin_some();
	/* the second table of a join is not read, so its recall is not known */
	if (pairs->self)
		begin_sample(pairs);
	search_for_all(&searched);
	if (pairs->self)
		report_recall(pairs,
					  psprintf("Each row was searched for with index \"%s\".",
							   name));
	else
		ereport(NOTICE,
				(errmsg("searched for each row of table \"%s\" with index \"%s\"",
						RelationGetRelationName(pairs->queries->rel), name)));

	if (searched.lacking.n + searched.alike.n > 0 && !pairs->self)
		IvfpqTableSurvey(pairs->rows, 0, false);
	if (searched.lacking.n > 0)
		compare_lacking(&searched);
	put_alike(&searched);
	return true;
}

/* SQL functions */

/*
 * Reads the arguments k, metric and method, of which k has number `first`, and
 * begins the result.
 */
static void
begin_pairs(Pairs *pairs, FunctionCallInfo fcinfo, int first)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	PairRows   *rows = &pairs->result;
	const char *method;

	pairs->k = PG_GETARG_INT32(first);
	pairs->metric = IvfpqMetricArgument(PG_GETARG_TEXT_PP(first + 1));
	method = text_to_cstring(PG_GETARG_TEXT_PP(first + 2));
	pairs->by_index = strcmp(method, "index") == 0;
	if (!pairs->by_index && strcmp(method, "exact") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unknown method \"%s\"", method),
				 errhint("Use \"exact\" or \"index\".")));
	IvfpqCheckRange("k", pairs->k, 1, GV_SET_MAX_K,
					"\"k\" is the number of neighbors to return for each row.");
	InitMaterializedSRF(fcinfo, 0);
	rows->store = rsinfo->setResult;
	rows->slot = MakeSingleTupleTableSlot(rsinfo->setDesc,
										  &TTSOpsMinimalTuple);
	rows->capacity = MAXALIGN(SizeofMinimalTupleHeader) + sizeof(Pair);
	rows->tuple = palloc0(rows->capacity);
	rows->n = -1;
	Assert(rsinfo->setDesc->natts == (pairs->in_arrays ? 3 : 4));
	if (!pairs->in_arrays)
		make_tuple(rows, sizeof(Pair), 0);
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
	Pairs		pairs = {.queries = &table, .rows = &table, .self = true,
	.in_arrays = in_arrays};

	begin_pairs(&pairs, fcinfo, 3);
	IvfpqTableOpen(&table, PG_GETARG_OID(0), NAME_ARGUMENT(1),
				   NAME_ARGUMENT(2));
	IvfpqProgressBegin(IVFPQ_PROGRESS_GRAPH, PG_GETARG_OID(0));
	if (pairs.by_index)
		pairs.index = open_index(&table, pairs.metric);

	/*
	 * send rows only if there is an index: without one an ERROR will follow,
	 * and rows would be sent to gpuvecd in vain
	 */
	IvfpqTableSurvey(&table, spare_memory(), pairs.index != NULL);
	pairs.k = (int) Min((int64) pairs.k, table.nrows - 1);
	if (pairs.k > 0 && !find_by_search(&pairs))
		find_by_comparing(&pairs);
	if (table.nrows == 1)		/* a key, but no neighbors */
		put_neighbors(&pairs, 0, NULL, NULL, NULL, 0);
	if (pairs.index != NULL)
		index_close(pairs.index, NoLock);
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
	Pairs		pairs = {.queries = &left, .rows = &right};

	begin_pairs(&pairs, fcinfo, 6);
	IvfpqTableOpen(&left, PG_GETARG_OID(0), NAME_ARGUMENT(1),
				   NAME_ARGUMENT(2));
	IvfpqTableOpen(&right, PG_GETARG_OID(3), NAME_ARGUMENT(4),
				   NAME_ARGUMENT(5));
	IvfpqProgressBegin(IVFPQ_PROGRESS_JOIN, PG_GETARG_OID(0));
	IvfpqTableSurvey(&left, spare_memory() / 2, false);
	if (pairs.by_index && left.nrows > 0)
		pairs.index = open_index(&right, pairs.metric);
	if (!find_by_search(&pairs))
	{
		IvfpqTableSurvey(&right, spare_memory() / 2, false);
		pairs.k = (int) Min((int64) pairs.k, right.nrows);
		if (left.nrows > 0 && right.nrows > 0)
		{
			IvfpqCheckSameDims(RelationGetRelationName(left.rel), left.dims,
							   RelationGetRelationName(right.rel), right.dims);
			find_by_comparing(&pairs);
		}
	}
	if (pairs.index != NULL)
		index_close(pairs.index, NoLock);
	IvfpqProgressEnd();
	IvfpqTableClose(&right);
	IvfpqTableClose(&left);
	return (Datum) 0;
}
