/*
 * nearestlists.c
 *		The lists nearest to a vector, through two levels of centroids.
 *
 * All parents are compared, then the children of the nearest parents until
 * enough lists have been compared; or all lists, where that is hardly more
 * work.  Where few of those are needed, their codes are scored first
 * (coded.c), and only the nearest by score are compared by their centroids.
 */
#include "postgres.h"

#include <math.h>

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "page/array.h"

/*
 * Lists to compare for every list needed, and the least fraction of all lists
 * to compare: a list's parent may rank well behind the list itself (README,
 * "Nearest lists").  Calibration finds the coarse fraction of each index.
 */
#define LISTS_PER_PROBE		10
#define LEAST_FRACTION			0.25
#define LISTS_PER_PROBE_CALIBRATED	2

/*
 * Lists compared by their centroids for every list needed, and some more,
 * because codes are not exact.
 */
#define CENTROIDS_PER_PROBE	2
#define MORE_CENTROIDS		16

/* Where these are more than one of this many lists, codes save nothing. */
#define MOST_FRACTION			2

/*
 * Where fewer lists than this are compared for each list needed, the nearest
 * are selected at the end: otherwise the next list would often enter the heap,
 * at a place that no processor predicts.
 */
#define SORTED_PER_LIST		5

/* Centroids on their way into the processor's cache. */
#define PREFETCHED_CENTROIDS	4

/* Prepares *query for vectors of an index; memory from the current context. */
void
IvfpqQueryInit(IvfpqQuery *query, const IvfpqModel *model, GvMetric metric)
{
	query->gv = model->gv;
	query->gv.metric = metric;
	query->vector = palloc(model->meta.dims * sizeof(float));
	query->table = palloc(gv_table_bytes(model->gv.m));
	query->tabled = false;
	query->deep = false;
	query->list_scores = NULL;
}

/* Sets the query to a transformed vector [dims]. */
void
IvfpqQuerySet(IvfpqQuery *query, const float *vector)
{
	memcpy(query->vector, vector, query->gv.dims * sizeof(float));
	query->tabled = false;
}

/* Returns the query's look-up table, made when it is needed. */
const float *
IvfpqQueryTable(IvfpqQuery *query)
{
	if (!query->tabled)
		IvfpqCheckStatus(gv_table(&query->gv, query->vector, query->table));
	query->tabled = true;
	return query->table;
}

/*
 * Keeps the scores of lists that are compared from now on, for lists that are
 * ranked again.
 */
void
IvfpqQueryKeepScores(IvfpqQuery *query, int nlists)
{
	query->list_scores = palloc_extended(nlists * sizeof(float),
										 MCXT_ALLOC_HUGE);
	for (int i = 0; i < nlists; i++)
		query->list_scores[i] = NAN;
}

void
IvfpqQueryDropScores(IvfpqQuery *query)
{
	pfree(query->list_scores);
	query->list_scores = NULL;
}

/*
 * The number of lists to compare with a query to find its `probes` nearest
 * ones; all of them in a deep search, or where going through the parents would
 * be hardly less work.
 */
int
IvfpqListsToCompare(const IvfpqMetaData *meta, int probes, bool deep)
{
	double		fraction = meta->coarse_fraction > 0 ? meta->coarse_fraction : LEAST_FRACTION;
	int			each = meta->coarse_fraction > 0 ? LISTS_PER_PROBE_CALIBRATED :
	LISTS_PER_PROBE;
	int			wanted = (int) Min(Max((double) probes * each,
									   meta->nlists * fraction), meta->nlists);

	if (deep || meta->nparents == 1 ||
		(int64) wanted + meta->nparents >= meta->nlists)
		return meta->nlists;
	return wanted;
}

/*
 * The number of these to compare by their centroids: those that codes choose
 * or, where that would be hardly fewer, all.
 */
int
IvfpqCentroidsToCompare(const IvfpqMetaData *meta, int probes, bool deep)
{
	int			lists = IvfpqListsToCompare(meta, probes, deep);
	int64		chosen = (int64) probes * CENTROIDS_PER_PROBE + MORE_CENTROIDS;

	return chosen <= lists / MOST_FRACTION ? (int) chosen : lists;
}

/* Offer lists first .. first + n - 1 to `best`. */
static void
compare_lists(Relation index, const IvfpqModel *model, const IvfpqQuery *query,
			  int first, int n, GvTopK *best)
{
	const IvfpqMetaData *meta = &model->meta;
	IvfpqArrayReader reader;
	const float *run;
	int			count;

	IvfpqArrayOpen(&reader, index, meta->centroids, meta->dims, first + n);
	reader.next = first;
	reader.fetches = true;
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		IvfpqCheckStatus(gv_coarse(&query->gv, query->vector, run, count, first,
								   best));
		first += count;
	}
	IvfpqArrayClose(&reader);
}

/* Sorts all parents, nearest first; memory from the current context. */
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
 * The number of the nearest parents that have at least `wanted` lists
 * together.
 */
int
IvfpqCountParents(const IvfpqModel *model, const GvTopK *parents, int wanted)
{
	int			seen = 0;
	int			n = 0;

	while (n < parents->count && seen < wanted)
	{
		int			p = (int) parents->ids[n++];

		seen += model->parent_offsets[p + 1] - model->parent_offsets[p];
	}
	return n;
}

/* The score of a list, which the reader's next run begins with. */
static float
compare_list(const IvfpqQuery *query, IvfpqArrayReader *reader)
{
	float		score;
	uint64_t	id;
	GvTopK		only = {.capacity = 1, .scores = &score, .ids = &id};
	int			count;
	const float *centroid = IvfpqArrayNext(reader, &count);

	IvfpqCheckStatus(gv_coarse(&query->gv, query->vector, centroid, 1, 0,
							   &only));
	return score;
}

/*
 * Offers those of lists chosen [n] whose scores are known, and moves the
 * others, which have to be compared, to the front; returns their number.
 */
static int
offer_known(const IvfpqQuery *query, uint64_t *chosen, int n, GvTopK *lists)
{
	int			nunknown = 0;

	if (query->list_scores == NULL)
		return n;
	for (int i = 0; i < n; i++)
	{
		float		score = query->list_scores[chosen[i]];

		if (isnan(score))
			chosen[nunknown++] = chosen[i];
		else
			gv_topk_push(lists, score, chosen[i]);
	}
	return nunknown;
}

/*
 * Offers lists [n] that codes have chosen, by their centroids.  Reorders them,
 * because near lists often share a page.
 */
static void
compare_chosen(Relation index, const IvfpqModel *model, const IvfpqQuery *query,
			   uint64_t *chosen, int n, GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	IvfpqArrayReader reader;

	n = offer_known(query, chosen, n, lists);
	IvfpqSortNumbers(chosen, n);
	IvfpqArrayOpen(&reader, index, meta->centroids, meta->dims, 0);
	for (int i = 0; i < Min(n, PREFETCHED_CENTROIDS); i++)
		IvfpqArrayPrefetch(&reader, chosen[i]);
	for (int i = 0; i < n; i++)
	{
		float		score;

		if (i + PREFETCHED_CENTROIDS < n)
			IvfpqArrayPrefetch(&reader, chosen[i + PREFETCHED_CENTROIDS]);
		reader.next = chosen[i];
		reader.nvectors = reader.next + 1;
		score = compare_list(query, &reader);
		if (query->list_scores != NULL)
			query->list_scores[chosen[i]] = score;
		gv_topk_push(lists, score, chosen[i]);
	}
	IvfpqArrayClose(&reader);
}

/* Offers those of the lists of the parents [n] that codes choose. */
static void
compare_coded(Relation index, const IvfpqModel *model, IvfpqQuery *query,
			  const GvTopK *parents, int n, int ncentroids, GvTopK *lists)
{
	GvTopK		chosen = {0};

	IvfpqTopKResize(&chosen, ncentroids);
	IvfpqCodedOffer(index, model, query, parents, n, &chosen);
	compare_chosen(index, model, query, chosen.ids, chosen.count, lists);
	pfree(chosen.scores);
	pfree(chosen.ids);
}

/* Offer the lists of the parents [n] by their centroids. */
static void
compare_parents(Relation index, const IvfpqModel *model,
				const IvfpqQuery *query, const GvTopK *parents, int n,
				GvTopK *lists)
{
	for (int i = 0; i < n; i++)
	{
		int			p = (int) parents->ids[i];
		int			first = model->parent_offsets[p];

		compare_lists(index, model, query, first,
					  model->parent_offsets[p + 1] - first, lists);
	}
}

/* Offer all lists that are to be compared with the query. */
static void
offer_lists(Relation index, const IvfpqModel *model, IvfpqQuery *query,
			int wanted, int ncentroids, GvTopK *lists)
{
	bool		coded = ncentroids < wanted;
	GvTopK		parents;
	int			n;

	if (!coded && wanted == model->meta.nlists)
	{
		compare_lists(index, model, query, 0, wanted, lists);
		return;
	}
	IvfpqSortParents(index, model, &query->gv, query->vector, &parents);
	n = IvfpqCountParents(model, &parents, wanted);
	if (coded)
		compare_coded(index, model, query, &parents, n, ncentroids, lists);
	else
		compare_parents(index, model, query, &parents, n, lists);
	pfree(parents.scores);
	pfree(parents.ids);
}

/*
 * The nearest lists of the query into *lists, which has its memory and
 * capacity, nearest first.
 */
void
IvfpqNearestLists(Relation index, const IvfpqModel *model, IvfpqQuery *query,
				  GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	int			most = lists->capacity;
	int			wanted = IvfpqListsToCompare(meta, most, query->deep);
	int			ncentroids = IvfpqCentroidsToCompare(meta, most, query->deep);
	int			ncompared = ncentroids < wanted ? ncentroids : meta->nlists;
	GvTopK		all = {0};

	gv_topk_reset(lists);
	if (ncompared / SORTED_PER_LIST >= most)
	{
		offer_lists(index, model, query, wanted, ncentroids, lists);
		gv_topk_sort(lists);
		return;
	}
	/* capacity for one more, so that it is never full and becomes no heap */
	IvfpqTopKResize(&all, ncompared + 1);
	offer_lists(index, model, query, wanted, ncentroids, &all);
	gv_topk_first(&all, most);
	memcpy(lists->scores, all.scores, all.count * sizeof(float));
	memcpy(lists->ids, all.ids, all.count * sizeof(uint64_t));
	lists->count = all.count;
	pfree(all.scores);
	pfree(all.ids);
}
