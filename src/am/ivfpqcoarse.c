/*
 * ivfpqcoarse.c
 *		The lists nearest to a vector, through two levels of centroids.
 *
 * All parents are compared, then the children of the nearest parents until
 * enough lists have been seen; or all lists, where that is hardly more work.
 * Where the backend has centroids in 8 bits, these are compared first, and then
 * only the few lists that they cannot prove too far; the result is the same.
 */
#include "postgres.h"

#include "am/ivfpqcoded.h"

/*
 * Lists to compare for every list that is wanted, and the share of all lists
 * to compare at least: a list's parent may rank well behind the list itself
 * (src/README, "Two levels").  Calibration finds a share for each index.
 */
#define LISTS_PER_PROBE		10
#define LEAST_SHARE			0.25
#define LISTS_PER_PROBE_CALIBRATED	2

/* Where more than this part of them is wanted, 8 bits save nothing. */
#define MOST_SHARE_CODED	4

/*
 * Lists to compare with a query to find the nearest so many; all of them where
 * going through the parents would be hardly less work.
 */
int
IvfpqListsToCompare(const IvfpqMetaData *meta, int probes)
{
	double		share = meta->coarse_share > 0 ? meta->coarse_share : LEAST_SHARE;
	int			each = meta->coarse_share > 0 ? LISTS_PER_PROBE_CALIBRATED :
		LISTS_PER_PROBE;
	int			wanted = (int) Min(Max((double) probes * each,
									   meta->nlists * share), meta->nlists);

	if (meta->nparents == 1 ||
		(int64) wanted + meta->nparents >= meta->nlists)
		return meta->nlists;
	return wanted;
}

/* Offer lists first .. first + n - 1 to `best`. */
static void
compare_lists(Relation index, const IvfpqModel *model, const GvModel *gv,
			  const float *vector, int first, int n, GvTopK *best)
{
	const IvfpqMetaData *meta = &model->meta;
	IvfpqArrayReader reader;
	const float *run;
	int			count;

	IvfpqArrayOpen(&reader, index, meta->centroids, meta->dims, first + n);
	reader.next = first;
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		IvfpqCheckStatus(gv_coarse(gv, vector, run, count, first, best));
		first += count;
	}
	IvfpqArrayClose(&reader);
}

/* All parents, nearest first; memory from the current context. */
void
IvfpqSortParents(Relation index, const IvfpqModel *model, const GvModel *gv,
				 const float *vector, GvTopK *parents)
{
	const IvfpqMetaData *meta = &model->meta;
	IvfpqArrayReader reader;
	const float *run;
	int			first = 0;
	int			count;

	memset(parents, 0, sizeof(*parents));
	parents->capacity = meta->nparents;
	parents->scores = palloc(meta->nparents * sizeof(float));
	parents->ids = palloc(meta->nparents * sizeof(uint64_t));
	IvfpqArrayOpen(&reader, index, meta->parents, meta->dims, meta->nparents);
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		IvfpqCheckStatus(gv_coarse(gv, vector, run, count, first, parents));
		first += count;
	}
	IvfpqArrayClose(&reader);
	gv_topk_sort(parents);
}

/*
 * Parents whose lists are to be compared, at least `wanted` lists in all, into
 * parents [nparents]; returns how many.
 */
static int
choose_parents(Relation index, const IvfpqModel *model, const GvModel *gv,
			   const float *vector, int wanted, int *parents)
{
	const IvfpqMetaData *meta = &model->meta;
	int			seen = 0;
	int			n = 0;
	GvTopK		sorted;

	if (wanted == meta->nlists)
	{
		for (; n < meta->nparents; n++)
			parents[n] = n;
		return n;
	}
	IvfpqSortParents(index, model, gv, vector, &sorted);
	while (n < sorted.count && seen < wanted)
	{
		int			p = (int) sorted.ids[n];

		parents[n++] = p;
		seen += model->starts[p + 1] - model->starts[p];
	}
	pfree(sorted.scores);
	pfree(sorted.ids);
	return n;
}

/* A score that as many of the parents' lists have as lists are wanted. */
static float
find_reach(Relation index, const IvfpqModel *model, IvfpqCoded *coded,
		   const GvCodedQuery *query, const int *parents, int n,
		   int capacity, float *values)
{
	GvTopK		best = {0};
	float		reach;

	IvfpqTopKResize(&best, capacity);
	for (int i = 0; i < n; i++)
	{
		int			first = model->starts[parents[i]];
		int			count = model->starts[parents[i] + 1] - first;
		GvCoded		children = IvfpqCodedParent(index, model, coded,
												parents[i]);

		IvfpqCheckStatus(gv_coarse_offer(query, &children, count, first,
										 values + first, &best));
	}
	reach = best.count < capacity ? GV_SCORE_MAX : best.scores[0];
	pfree(best.scores);
	pfree(best.ids);
	return reach;
}

/* Offer those of the parents' lists that 8 bits cannot prove too far. */
static void
compare_coded(Relation index, const IvfpqModel *model, const GvModel *gv,
			  IvfpqCoded *coded, const float *vector, const int *parents,
			  int n, GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	float	   *values = palloc(meta->nlists * sizeof(float));
	int32	   *kept = palloc(meta->nlists * sizeof(int32));
	int8	   *codes = palloc(meta->dims);
	GvCodedQuery query = {.metric = gv->metric,.dims = meta->dims,
	.codes = codes};
	GvCoded		one = {codes, &query.step, &query.length, &query.error};
	IvfpqArrayReader reader;
	float		reach;

	IvfpqCheckStatus(gv_coarse_encode(meta->dims, vector, 1, &one));
	reach = find_reach(index, model, coded, &query, parents, n,
					   lists->capacity, values);
	IvfpqArrayOpen(&reader, index, meta->centroids, meta->dims, 0);
	for (int i = 0; i < n; i++)
	{
		int			first = model->starts[parents[i]];
		int			count = model->starts[parents[i] + 1] - first;
		GvCoded		children = IvfpqCodedParent(index, model, coded,
												parents[i]);
		int			nkept;

		IvfpqCheckStatus(gv_coarse_keep(&query, &children, values + first,
										count, reach, kept, &nkept));
		for (int k = 0; k < nkept; k++)
		{
			reader.next = first + kept[k];
			reader.nvectors = reader.next + 1;
			IvfpqCheckStatus(gv_coarse(gv, vector,
									   IvfpqArrayNext(&reader, &count), 1,
									   first + kept[k], lists));
		}
	}
	IvfpqArrayClose(&reader);
	pfree(values);
	pfree(kept);
	pfree(codes);
}

/*
 * The nearest lists of a transformed vector by the metric (of inserts: L2,
 * whatever the index's own) into *lists, which has its memory and capacity,
 * nearest first.
 */
void
IvfpqNearestLists(Relation index, const IvfpqModel *model, GvMetric metric,
				  const float *vector, GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	int			wanted = IvfpqListsToCompare(meta, lists->capacity);
	int		   *parents = palloc(meta->nparents * sizeof(int));
	IvfpqCoded *coded = NULL;
	GvModel		gv = model->gv;
	int			n;

	if (lists->capacity <= wanted / MOST_SHARE_CODED)
		coded = IvfpqCodedGet(index, meta);
	gv.metric = metric;
	gv_topk_reset(lists);
	n = choose_parents(index, model, &gv, vector, wanted, parents);
	if (coded != NULL)
		compare_coded(index, model, &gv, coded, vector, parents, n, lists);
	else if (wanted == meta->nlists)
		compare_lists(index, model, &gv, vector, 0, meta->nlists, lists);
	else
		for (int i = 0; i < n; i++)
			compare_lists(index, model, &gv, vector,
						  model->starts[parents[i]],
						  model->starts[parents[i] + 1] -
						  model->starts[parents[i]], lists);
	pfree(parents);
	gv_topk_sort(lists);
}
