/*
 * indexlists.c
 *		Lists of a table's rows, from the centroids of a gpuivfpq index.
 *
 * An index has lists of some hundred rows, so that a scan reads few of them.
 * Where every row is a query, larger ones are better: all queries of a list
 * are compared with all rows of a list at a time.  So centroids are merged, by
 * k-means over them, until lists have about a thousand rows.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "am/common/options.h"
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
void
IvfpqListsNearest(const IvfpqLists *lists, const float *vectors, int nvectors,
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
void
IvfpqListsDistances(const IvfpqLists *lists, int64 list, double *distances)
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
