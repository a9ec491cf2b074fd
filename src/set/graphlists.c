/*
 * graphlists.c
 *		Comparing list by list, for graphs and joins: the lists of a table's
 *		rows, a sample of queries whose exact neighbors are known, and the
 *		number of near lists (probes) that a target recall needs.
 *
 * The lists come from a gpuivfpq index.  An index has lists of some hundred
 * rows, so that a scan reads few rows.  Here every row is a query, and all
 * queries of one list are compared with all rows of another list at a time, so
 * larger lists are better.  Therefore k-means over the centroids of the index
 * merges its lists until a list has about a thousand rows.
 *
 * The sample is spread evenly over the queries, and its exact neighbors are
 * found under the same snapshot.  The sample is used to choose the number of
 * probes, and to report the recall.
 *
 * With n probes, a neighbor is found if its list is among the n lists nearest
 * to the query's list.  So if all lists are ranked by their distances from the
 * query's list, the rank of the neighbor's list says how many probes find the
 * neighbor.  The ranks for all neighbors in the sample give the recall for
 * every number of probes.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "am/common/options.h"
#include "am/search/params.h"
#include "am/types/vector.h"
#include "set/set.h"

/* Average number of rows in a list. */
#define ROWS_OF_LIST	1000

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

/* A neighbor of a query in the sample. */
typedef struct Neighbor
{
	int64		position;		/* the neighbor's position; -1 if there is no
								 * neighbor */
	int64		list;			/* the neighbor's list */
	int64		rank;			/* of that list, from 0 */
} Neighbor;

/* The ranks of the lists of the neighbors of all queries in the sample. */
typedef struct Ranks
{
	const IvfpqRecallSample *sampled;
	const IvfpqLists *lists;
	int			judged;			/* neighbors of each query */
	Neighbor   *neighbors;		/* [sampled->n][judged] */
	Neighbor  **by_position;	/* [n] neighbors that exist, sorted by
								 * position */
	int			n;
} Ranks;

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

Relation
IvfpqListsIndex(IvfpqTable *rows, GvSetMetric metric)
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
 * Passes all centroids, as rows, to a set, a batch at a time.  Returns false
 * if gpuvecd failed.
 */
static bool
put_centroids(IvfpqLocalSet *work, const IvfpqLists *lists)
{
	int			most = (int) Max(IVFPQ_BATCH_BYTES / sizeof(float) /
								 lists->dims, 1);
	int			n;

	for (int put = 0; put < lists->n; put += n)
	{
		n = Min(most, lists->n - put);
		if (!IvfpqLocalSetPut(work, GV_SET_ROWS,
							  lists->centroids + (Size) put * lists->dims, n))
			return false;
	}
	return true;
}

IvfpqLists *
IvfpqListsGet(IvfpqTable *rows, GvSetMetric metric)
{
	IvfpqLists *lists = palloc0(sizeof(IvfpqLists));
	int64		most = Min(Max(rows->nrows / ROWS_OF_LIST, 1), GV_SET_MAX_K);
	Relation	index = IvfpqListsIndex(rows, metric);

	if (index == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" has no gpuivfpq index for metric %s on column \"%s\"",
						RelationGetRelationName(rows->rel),
						IvfpqMetricName(metric),
						get_attname(RelationGetRelid(rows->rel),
									rows->vector_column, false)),
				 metric == GV_SET_PEARSON ?
				 errhint("No index orders by correlation; use method exact.") :
				 errhint("Create one, not partial, with the operator class of that metric, or use method exact.")));
	lists->metric = metric;
	lists->dims = rows->dims;
	lists->centroids = IvfpqCentroids(index, lists->dims, &lists->n);
	index_close(index, NoLock);
	if (lists->n == 0)
	{
		/* the index is not trained: make one list of all rows */
		lists->n = 1;
		lists->centroids = palloc0(lists->dims * sizeof(float));
	}
	if (lists->n > most)
	{
		float	   *merged = palloc_extended((Size) most * lists->dims *
											 sizeof(float), MCXT_ALLOC_HUGE);

		lists->n = IvfpqCluster (lists->centroids, lists->n, lists->dims,
								 (int) most, ITERATIONS, SEED, merged);

		pfree(lists->centroids);
		lists->centroids = merged;
	}
	return lists;
}

/*
 * Sets found [nqueries] to the number of the centroid nearest to each vector.
 * Returns false if gpuvecd failed.
 */
static bool
try_to_find(const IvfpqLists *lists, const GvSetSpec *spec,
			const float *vectors, IvfpqLocalSetPlace place, int64 *found)
{
	IvfpqLocalSet *work = IvfpqLocalSetBegin(spec, place);
	GvSetDone	done;
	bool		worked;

	worked = IvfpqLocalSetPut(work, GV_SET_QUERIES, vectors, spec->nqueries) &&
		put_centroids(work, lists) && IvfpqLocalSetRun(work, &done) &&
		IvfpqLocalSetGet(work, GV_SET_POSITIONS, 0, spec->nqueries, found);
	IvfpqLocalSetEnd(work);
	return worked;
}

/*
 * Sets found [nvectors] to the number of each vector's list.  gv_set.h defines
 * to which list a vector belongs.
 */
static void
lists_nearest(const IvfpqLists *lists, const float *vectors, int nvectors,
			  int64 *found)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,
		.metric = lists->metric == GV_SET_IP ? GV_SET_L2 : lists->metric,
		.dims = lists->dims, .k = 1, .nqueries = nvectors,
	.nrows = lists->n};

	if (!try_to_find(lists, &spec, vectors, IvfpqLocalSetChoose(&spec), found))
		(void) try_to_find(lists, &spec, vectors, IVFPQ_WORK_HERE, found);
}

/*
 * Sink of IvfpqFindNeighbors: stores the exact neighbors of a query in the
 * sample.
 */
static void
take_exact(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	IvfpqRecallSample *sampled = arg;
	int			k = sampled->pairs->k;

	memcpy(sampled->neighbors + query * k, positions, k * sizeof(int64));
	memcpy(sampled->distances + query * k, distances, k * sizeof(double));
}

IvfpqRecallSample *
IvfpqRecallSampleBegin(const IvfpqPairs *pairs)
{
	int			dims = pairs->rows->dims;
	IvfpqRecallSample *sampled = palloc0(sizeof(IvfpqRecallSample));
	Size		bytes = dims * sizeof(float) +
	pairs->k * (sizeof(int64) + sizeof(double));
	int64		n = Max(Min(SAMPLE_BYTES / bytes, SAMPLE), 1);
	int64		nqueries = pairs->queries->nrows;
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.k = pairs->k, .self = pairs->self, .phase = IVFPQ_PROGRESS_RECALL,
	.sink = take_exact, .arg = sampled};

	sampled->pairs = pairs;
	sampled->n = (int) Min(n, nqueries);
	sampled->positions = palloc(sampled->n * sizeof(int64));
	sampled->vectors = palloc((Size) sampled->n * dims * sizeof(float));
	sampled->neighbors = palloc((Size) sampled->n * pairs->k *
								sizeof(int64));
	sampled->distances = palloc((Size) sampled->n * pairs->k *
								sizeof(double));
	for (int i = 0; i < sampled->n; i++)
	{
		int64		position = nqueries / sampled->n * i +
		nqueries % sampled->n * i / sampled->n;

		sampled->positions[i] = position;
		memcpy(sampled->vectors + (Size) i * dims,
			   IvfpqTableVector(pairs->queries, position),
			   dims * sizeof(float));
	}
	wanted.nqueries = sampled->n;
	wanted.vectors = sampled->vectors;
	wanted.selves = pairs->self ? sampled->positions : NULL;
	IvfpqFindNeighbors(&wanted);
	return sampled;
}

/*
 * See set.h.  A row counts as found if its distance is not larger than that of
 * the last exact neighbor.  So a row that is equally far may take the place of
 * an exact neighbor.  A query without exact neighbors does not count.
 */
void
IvfpqRecallSampleNote(IvfpqRecallSample *sampled, int64 query,
					  const double *distances)
{
	int			k = sampled->pairs->k;
	const double *exact;
	int			possible = 0;

	while (sampled->noted < sampled->n &&
		   sampled->positions[sampled->noted] < query)
		sampled->noted++;
	if (sampled->noted == sampled->n ||
		query != sampled->positions[sampled->noted])
		return;
	exact = sampled->distances + (Size) sampled->noted * k;
	while (possible < k && !isnan(exact[possible]))
		possible++;
	for (int i = 0; i < possible; i++)
		sampled->hits += distances[i] <= exact[possible - 1];
	sampled->possible += possible;
	sampled->noted++;
}

void
IvfpqRecallSampleEnd(const IvfpqRecallSample *sampled, const char *how)
{
	if (sampled->possible > 0)
		ereport(NOTICE,
				(errmsg("recall@%d is about %.3f (%d rows compared)",
						sampled->pairs->k,
						(double) sampled->hits / sampled->possible,
						sampled->n),
				 errdetail("%s", how)));
}

static int
compare_positions(const void *a, const void *b)
{
	int64		x = (*(Neighbor *const *) a)->position;
	int64		y = (*(Neighbor *const *) b)->position;

	return x < y ? -1 : x > y;
}

/*
 * Chooses the neighbors whose ranks are found.  Neighbors whose distance is
 * NaN do not count.
 */
static void
choose_neighbors(Ranks *ranks)
{
	const IvfpqRecallSample *sampled = ranks->sampled;
	int64		k = sampled->pairs->k;

	ranks->judged = (int) Min(k, JUDGED);
	ranks->neighbors = palloc(sampled->n * ranks->judged *
							  sizeof(Neighbor));
	ranks->by_position = palloc(sampled->n * ranks->judged *
								sizeof(Neighbor *));
	for (int row = 0; row < sampled->n; row++)
		for (int i = 0; i < ranks->judged; i++)
		{
			Neighbor   *neighbor = ranks->neighbors +
			row * ranks->judged + i;
			Size		item = row * k + i * k / ranks->judged;

			memset(neighbor, 0, sizeof(*neighbor));
			neighbor->position = isnan(sampled->distances[item]) ? -1 :
				sampled->neighbors[item];
			if (neighbor->position >= 0)
				ranks->by_position[ranks->n++] = neighbor;
		}
	qsort(ranks->by_position, ranks->n, sizeof(Neighbor *),
		  compare_positions);
}

/*
 * Finds the lists of the neighbors by_position[first .. first + n - 1], whose
 * vectors [n] are given.
 */
static void
find_some_lists(Ranks *ranks, int first, int n, const float *vectors)
{
	int64	   *found = palloc(n * sizeof(int64));

	if (n > 0)
		lists_nearest(ranks->lists, vectors, n, found);
	for (int i = 0; i < n; i++)
		ranks->by_position[first + i]->list = found[i];
	pfree(found);
}

/* Finds the lists of all neighbors, a batch at a time. */
static void
find_lists(Ranks *ranks)
{
	IvfpqTable *rows = ranks->sampled->pairs->rows;
	int			batch = IvfpqTableBatch(rows);
	float	   *vectors = palloc((Size) batch * rows->dims * sizeof(float));
	const float *vector = NULL;
	int			first = 0;

	for (int i = 0; i < ranks->n; i++)
	{
		int64		position = ranks->by_position[i]->position;

		if (i == first + batch)
		{
			find_some_lists(ranks, first, batch, vectors);
			first = i;
		}
		/* several queries may have the same neighbor */
		if (i == 0 || position != ranks->by_position[i - 1]->position)
			vector = IvfpqTableVector(rows, position);
		memcpy(vectors + (Size) (i - first) * rows->dims, vector,
			   rows->dims * sizeof(float));
	}
	find_some_lists(ranks, first, ranks->n - first, vectors);
	pfree(vectors);
}

/*
 * Returns the rank of a list, counted from 0, among n lists that are ordered
 * by (distance, number).  Distances that are NaN come last.  Counts the lists
 * before this one, which takes less time than a sort.
 */
static int64
rank_among(const double *distances, int n, int64 list)
{
	double		distance = distances[list];
	int64		rank = 0;

	if (isnan(distance))
	{
		for (int i = 0; i < n; i++)
			rank += !isnan(distances[i]) || i < list;
		return rank;
	}
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
	const IvfpqRecallSample *sampled = ranks->sampled;
	const IvfpqLists *lists = ranks->lists;
	int			nlists = lists->n;
	int64	   *own = palloc(sampled->n * sizeof(int64));
	double	   *distances = palloc_extended(nlists * sizeof(double),
											MCXT_ALLOC_HUGE);

	lists_nearest(lists, sampled->vectors, sampled->n, own);
	for (int row = 0; row < sampled->n; row++)
	{
		Neighbor   *neighbors = ranks->neighbors + row * ranks->judged;

		for (int i = 0; i < nlists; i++)
		{
			CHECK_FOR_INTERRUPTS();
			distances[i] = gv_set_distance(lists->metric, lists->centroids +
										   own[row] * lists->dims,
										   lists->centroids +
										   (Size) i * lists->dims,
										   lists->dims);
		}
		for (int i = 0; i < ranks->judged; i++)
			if (neighbors[i].position >= 0)
				neighbors[i].rank = rank_among(distances, nlists,
											   neighbors[i].list);
	}
	pfree(own);
	pfree(distances);
}

/* Returns whether the sample reaches a recall with this number of probes. */
static bool
suffices(const Ranks *ranks, int probes, double recall)
{
	double		sum = 0.0;
	double		squares = 0.0;
	double		mean;
	double		variance;
	int			n = 0;

	for (int row = 0; row < ranks->sampled->n; row++)
	{
		const Neighbor *neighbors = ranks->neighbors +
		row * ranks->judged;
		int			possible = 0;
		int			found = 0;
		double		fraction;

		for (int i = 0; i < ranks->judged; i++)
		{
			possible += neighbors[i].position >= 0;
			found += neighbors[i].position >= 0 &&
				neighbors[i].rank < probes;
		}
		if (possible == 0)
			continue;
		fraction = (double) found / possible;
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
 * See set.h.  For recall 1 all lists are probed, so that the answer is exact.
 * Indexes are calibrated up to IVFPQ_SURE_RECALL.  For a higher recall the
 * sample is too small, too, so the number of probes is extrapolated, as it is
 * for a scan.
 */
int
IvfpqProbesFor(const IvfpqRecallSample *sampled, const IvfpqLists *lists,
			   double recall)
{
	Ranks		ranks = {.sampled = sampled, .lists = lists};
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
	pfree(ranks.by_position);
	return probes;
}
