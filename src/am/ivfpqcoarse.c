/*
 * ivfpqcoarse.c
 *		The lists nearest to a vector, through two levels of centroids.
 *
 * All parents are compared, then the children of the nearest parents until
 * enough lists have been seen; or all lists, where that is hardly more work.
 */
#include "postgres.h"

#include "am/ivfpq.h"

/*
 * Lists to compare for every list that is wanted, and the share of all lists
 * to compare at least: a list's parent may rank well behind the list itself
 * (src/README, "Two levels").  Calibration finds a share for each index.
 */
#define LISTS_PER_PROBE		10
#define LEAST_SHARE			0.25
#define LISTS_PER_PROBE_CALIBRATED	2

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
 * The nearest lists of a transformed vector by the metric (of inserts: L2,
 * whatever the index's own) into *lists, which has its memory and capacity,
 * nearest first.
 */
void
IvfpqNearestLists(Relation index, const IvfpqModel *model, GvMetric metric,
				  const float *vector, GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	GvModel		gv = model->gv;
	int			wanted;
	int			seen = 0;
	GvTopK		parents;

	gv.metric = metric;
	gv_topk_reset(lists);
	wanted = IvfpqListsToCompare(meta, lists->capacity);
	if (wanted == meta->nlists)
		compare_lists(index, model, &gv, vector, 0, meta->nlists, lists);
	else
	{
		IvfpqSortParents(index, model, &gv, vector, &parents);
		for (int i = 0; i < parents.count && seen < wanted; i++)
		{
			int			p = (int) parents.ids[i];
			int			first = model->starts[p];
			int			n = model->starts[p + 1] - first;

			compare_lists(index, model, &gv, vector, first, n, lists);
			seen += n;
		}
		pfree(parents.scores);
		pfree(parents.ids);
	}
	gv_topk_sort(lists);
}
