/*
 * graphlists.c
 *		Lists of a table's rows, from the centroids of a gpuivfpq index.
 *
 * An index has lists of some hundred rows, so that a scan reads few of them.
 * Where every row is a query, larger ones are better: all queries of a list
 * are compared with all rows of a list at a time.  So centroids are merged, by
 * k-means over them, until lists have about a thousand rows.
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

/* Rows of a list, on an average. */
#define ROWS_OF_LIST	1000

/* Of k-means over centroids, and the seed of its first ones. */
#define ITERATIONS		5
#define SEED			0

/*
 * Is it an index on that column, of all rows?  RelationGetIndexPredicate would
 * run the owner's code, to simplify a predicate.
 */
static bool
holds_column(Relation index, AttrNumber column)
{
	Form_pg_index form = index->rd_index;

	return IvfpqIsOurs(index) &&
		form->indisvalid && form->indkey.values[0] == column &&
		heap_attisnull(index->rd_indextuple, Anum_pg_index_indpred, NULL);
}

/* Open the index to use; NULL if there is none. */
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

static void
report_no_index(const IvfpqTable *rows, GvSetMetric metric)
{
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
}

/* Those of the index; of one without any there is one, of all rows. */
static void
read_centroids(Relation index, IvfpqLists *lists)
{
	lists->centroids = IvfpqCentroids(index, lists->dims, &lists->n);
	if (lists->n > 0)
		return;
	lists->n = 1;
	lists->centroids = palloc0(lists->dims * sizeof(float));
}

/* Centroids as input of some work, some at a time. */
static bool
put_centroids(IvfpqWork *work, const IvfpqLists *lists)
{
	int			most = (int) Max(IVFPQ_BATCH_BYTES / sizeof(float) /
								 lists->dims, 1);
	int			n;

	for (int put = 0; put < lists->n; put += n)
	{
		n = Min(most, lists->n - put);
		if (!IvfpqWorkPut(work, GV_SET_ROWS,
						  lists->centroids + (Size) put * lists->dims, n))
			return false;
	}
	return true;
}

/* k-means over centroids; false: gpuvecd failed. */
static bool
try_to_merge(const IvfpqLists *lists, const GvSetSpec *spec,
			 const int64 *seeds, IvfpqWorkPlace place, IvfpqLists *merged)
{
	IvfpqWork  *work = IvfpqWorkBegin(spec, place);
	GvSetDone	done = {.again = true};
	bool		worked = true;

	for (int i = 0; worked && i < spec->k; i++)
		worked = IvfpqWorkPut(work, GV_SET_SEEDS,
							  lists->centroids + seeds[i] * lists->dims, 1);
	while (worked && !done.finished)
	{
		worked = (!done.again || put_centroids(work, lists)) &&
			IvfpqWorkRun(work, &done);
		IvfpqProgressDone(done.passes * spec->nrows);
	}
	worked = worked && IvfpqWorkGet(work, GV_SET_CENTROIDS, 0, done.found,
									merged->centroids);
	IvfpqWorkEnd(work);
	merged->n = done.found;
	return worked;
}

/* Make k-means possible; returns the power of two that they grow by. */
static int
scale_centroids(IvfpqLists *lists)
{
	IvfpqMagnitude magnitude = {0};
	int			exponent;

	for (int i = 0; i < lists->n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		IvfpqMagnitudeNote(&magnitude,
						   lists->centroids + (Size) i * lists->dims,
						   lists->dims);
	}
	exponent = IvfpqMagnitudeScale(&magnitude);
	IvfpqScale(lists->centroids, (int64) lists->n * lists->dims, exponent,
			   lists->centroids);
	return exponent;
}

/* Fewer lists: k of them, about. */
static void
merge(IvfpqLists *lists, int k)
{
	GvSetSpec	spec = {.kind = GV_SET_KMEANS, .dims = lists->dims, .k = k,
	.iterations = ITERATIONS, .nrows = lists->n};
	IvfpqKmeansSeeds *seeds = IvfpqKmeansSeedsBegin(k, SEED);
	IvfpqLists	merged = *lists;
	const int64 *firsts;
	int			exponent = scale_centroids(lists);

	for (int i = 0; i < lists->n; i++)
		IvfpqKmeansSeedsOffer(seeds, i,
							  lists->centroids + (Size) i * lists->dims,
							  lists->dims);
	firsts = IvfpqKmeansSeedsEnd(seeds);
	merged.centroids = palloc_extended((Size) k * lists->dims * sizeof(float),
									   MCXT_ALLOC_HUGE);
	IvfpqProgressPhaseOf(IVFPQ_PROGRESS_CLUSTERING,
						 (spec.iterations + 1) * spec.nrows);
	if (!try_to_merge(lists, &spec, firsts, IvfpqWorkChoose(&spec), &merged))
		try_to_merge(lists, &spec, firsts, IVFPQ_WORK_HERE, &merged);
	IvfpqScale(merged.centroids, (int64) merged.n * merged.dims, -exponent,
			   merged.centroids);
	pfree(lists->centroids);
	*lists = merged;
}

/*
 * Lists of a table's rows, about a thousand in each but no more than its index
 * has; ERROR if no index serves.
 */
IvfpqLists *
IvfpqListsGet(IvfpqTable *rows, GvSetMetric metric)
{
	IvfpqLists *lists = palloc0(sizeof(IvfpqLists));
	int64		most = Min(Max(rows->nrows / ROWS_OF_LIST, 1), GV_SET_MAX_K);
	Relation	index = IvfpqListsIndex(rows, metric);

	if (index == NULL)
		report_no_index(rows, metric);
	lists->metric = metric;
	lists->dims = rows->dims;
	read_centroids(index, lists);
	index_close(index, NoLock);
	if (lists->n > most)
		merge(lists, (int) most);
	return lists;
}

/* The centroids nearest to vectors; false: gpuvecd failed. */
static bool
try_to_find(const IvfpqLists *lists, const GvSetSpec *spec,
			const float *vectors, IvfpqWorkPlace place, int64 *found)
{
	IvfpqWork  *work = IvfpqWorkBegin(spec, place);
	GvSetDone	done;
	bool		worked;

	worked = IvfpqWorkPut(work, GV_SET_QUERIES, vectors, spec->nqueries) &&
		put_centroids(work, lists) && IvfpqWorkRun(work, &done) &&
		IvfpqWorkGet(work, GV_SET_POSITIONS, 0, spec->nqueries, found);
	IvfpqWorkEnd(work);
	return worked;
}

/* The list of each vector, as gv_set.h has it. */
static void
lists_nearest(const IvfpqLists *lists, const float *vectors, int nvectors,
				  int64 *found)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,
		.metric = lists->metric == GV_SET_IP ? GV_SET_L2 : lists->metric,
		.dims = lists->dims, .k = 1, .nqueries = nvectors,
	.nrows = lists->n};

	if (!try_to_find(lists, &spec, vectors, IvfpqWorkChoose(&spec), found))
		(void) try_to_find(lists, &spec, vectors, IVFPQ_WORK_HERE, found);
}

/* How far all lists are from a list, [n], by which others are near to it. */
static void
lists_distances(const IvfpqLists *lists, int64 list, double *distances)
{
	const float *own = lists->centroids + list * lists->dims;

	for (int i = 0; i < lists->n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		distances[i] = gv_set_distance(lists->metric, own,
									   lists->centroids +
									   (Size) i * lists->dims, lists->dims);
	}
}

/* ----
 * How good approximate neighbors are: some rows, evenly spread over the
 * table, whose exact neighbors are found under the same snapshot.
 */

/* Rows to compare, and fewer if they take more than SAMPLE_BYTES. */
#define SAMPLE			200
#define SAMPLE_BYTES	(16 * 1024 * 1024)

/* Which rows, and their vectors. */
static void
read_sample(IvfpqSampled *sampled)
{
	IvfpqTable *queries = sampled->pairs->queries;
	int64		nqueries = queries->nrows;
	int			n = sampled->n;

	for (int i = 0; i < n; i++)
	{
		int64		position = nqueries / n * i + nqueries % n * i / n;

		sampled->positions[i] = position;
		memcpy(sampled->vectors + (Size) i * queries->dims,
			   IvfpqTableVector(queries, position),
			   queries->dims * sizeof(float));
	}
}

static void
take_exact(void *arg, int64 query, const int64 *positions,
		   const double *distances)
{
	IvfpqSampled *sampled = arg;
	int			k = sampled->pairs->k;

	memcpy(sampled->neighbors + query * k, positions, k * sizeof(int64));
	memcpy(sampled->distances + query * k, distances, k * sizeof(double));
}

/* Choose rows and find their exact neighbors. */
IvfpqSampled *
IvfpqSampledBegin(const IvfpqPairs *pairs)
{
	int			dims = pairs->rows->dims;
	IvfpqSampled *sampled = palloc0(sizeof(IvfpqSampled));
	Size		bytes = dims * sizeof(float) +
	pairs->k * (sizeof(int64) + sizeof(double));
	int64		n = Max(Min(SAMPLE_BYTES / bytes, SAMPLE), 1);
	IvfpqNeighbors wanted = {.rows = pairs->rows, .metric = pairs->metric,
		.k = pairs->k, .self = pairs->self, .phase = IVFPQ_PROGRESS_RECALL,
	.sink = take_exact, .arg = sampled};

	sampled->pairs = pairs;
	sampled->n = (int) Min(n, pairs->queries->nrows);
	sampled->positions = palloc(sampled->n * sizeof(int64));
	sampled->vectors = palloc((Size) sampled->n * dims * sizeof(float));
	sampled->neighbors = palloc((Size) sampled->n * pairs->k *
								sizeof(int64));
	sampled->distances = palloc((Size) sampled->n * pairs->k *
								sizeof(double));
	read_sample(sampled);
	wanted.nqueries = sampled->n;
	wanted.vectors = sampled->vectors;
	wanted.selves = pairs->self ? sampled->positions : NULL;
	IvfpqFindNeighbors(&wanted);
	return sampled;
}

/*
 * Counts the distances [k] found for a query, NaN where there is no neighbor;
 * they ascend, and queries come ascending.  A distance equal to the largest of
 * the exact ones counts as found.  Queries without neighbors add nothing.
 */
void
IvfpqSampledNote(IvfpqSampled *sampled, int64 query, const double *distances)
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

/* Tell the user; how rows were found is a sentence. */
void
IvfpqSampledEnd(const IvfpqSampled *sampled, const char *how)
{
	if (sampled->possible > 0)
		ereport(NOTICE,
				(errmsg("recall@%d is about %.3f (%d rows compared)",
						sampled->pairs->k,
						(double) sampled->hits / sampled->possible,
						sampled->n),
				 errdetail("%s", how)));
}

/* ----
 * How many lists have to be near so that a graph or join has the recall
 * that is asked for.
 *
 * Of a sample the exact neighbors are known (graphlists.c).  A neighbor is
 * found if its list is among those near to the list of its row; so its list's
 * rank among these says how many probes that takes, and ranks of all
 * neighbors say the recall for every number of probes.
 */

/* Neighbors of a row whose ranks are found, evenly spread if k is more. */
#define JUDGED			100

/*
 * The sample's recall less STANDARD_ERRORS standard errors has to reach the
 * target recall: it is the lower end of a one-sided interval of 95 %.
 */
#define STANDARD_ERRORS	1.645

/* A neighbor of a row of the sample. */
typedef struct Neighbor
{
	int64		position;		/* its row; -1: there is none */
	int			row;			/* of the sample */
	int64		list;
	int64		rank;			/* of its list, from 0 */
} Neighbor;

typedef struct Ranks
{
	const IvfpqSampled *sampled;
	const IvfpqLists *lists;
	int			judged;			/* neighbors of a row */
	Neighbor   *neighbors;		/* [sampled->n][judged] by row */
	Neighbor  **by_position;	/* those there are, [n], by position */
	int			n;
} Ranks;

static int
compare_positions(const void *a, const void *b)
{
	int64		x = (*(Neighbor *const *) a)->position;
	int64		y = (*(Neighbor *const *) b)->position;

	return x < y ? -1 : x > y;
}

/* Which neighbors count: not those whose distance is NaN. */
static void
choose_neighbors(Ranks *ranks)
{
	const IvfpqSampled *sampled = ranks->sampled;
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
			neighbor->row = row;
			neighbor->position = isnan(sampled->distances[item]) ? -1 :
				sampled->neighbors[item];
			if (neighbor->position >= 0)
				ranks->by_position[ranks->n++] = neighbor;
		}
	qsort(ranks->by_position, ranks->n, sizeof(Neighbor *),
		  compare_positions);
}

/* The lists of neighbors first .. first + n - 1, given their vectors. */
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

/* The lists of neighbors. */
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
		/* several rows may have the same neighbor */
		if (i == 0 || position != ranks->by_position[i - 1]->position)
			vector = IvfpqTableVector(rows, position);
		memcpy(vectors + (Size) (i - first) * rows->dims, vector,
			   rows->dims * sizeof(float));
	}
	find_some_lists(ranks, first, ranks->n - first, vectors);
	pfree(vectors);
}

/*
 * The rank of a list among those near to another, which are n so far away, by
 * (distance, number), NaN behind all others.
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

/* The ranks of lists. */
static void
find_ranks(Ranks *ranks)
{
	const IvfpqSampled *sampled = ranks->sampled;
	int			nlists = ranks->lists->n;
	int64	   *own = palloc(sampled->n * sizeof(int64));
	double	   *distances = palloc_extended(nlists * sizeof(double),
											MCXT_ALLOC_HUGE);

	lists_nearest(ranks->lists, sampled->vectors, sampled->n, own);
	for (int row = 0; row < sampled->n; row++)
	{
		Neighbor   *neighbors = ranks->neighbors + row * ranks->judged;

		lists_distances(ranks->lists, own[row], distances);
		for (int i = 0; i < ranks->judged; i++)
			if (neighbors[i].position >= 0)
				neighbors[i].rank = rank_among(distances, nlists,
											   neighbors[i].list);
	}
	pfree(own);
	pfree(distances);
}

/* Is the target recall reached with this number of probes? */
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

/* The least number of lists with which the neighbors have that recall. */
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
 * The number of lists with which neighbors have that recall; all of them for
 * 1, so that the answer is exact.  So few rows cannot tell what a recall takes
 * that is higher than indexes are calibrated for: that grows as a scan's lists
 * do.
 */
int
IvfpqProbesFor(const IvfpqSampled *sampled, const IvfpqLists *lists,
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
		probes = (int) Min(ceil(IvfpqBeyondTargets(recall, IVFPQ_SURE_RECALL,
												   least_lists(&ranks, IVFPQ_LOWER_RECALL),
												   probes)),
						   lists->n);
	pfree(ranks.neighbors);
	pfree(ranks.by_position);
	return probes;
}
