/*
 * nearestlists.c
 *		The lists nearest to a vector, found through two levels of centroids.
 *
 * All parents are compared with the vector.  Then the children of the nearest
 * parents are compared, until the number of lists compared is large enough.
 * If that is hardly less work than comparing all lists, all lists are
 * compared.  If few of the children are needed, their codes are scored first,
 * and only those with the best scores are compared by their centroids.
 *
 * Codes.  A centroid takes 1.5 kB at d = 384.  So each centroid is stored a
 * second time, as if it were a posting in its parent's list: T and a code of
 * the index's own codebooks, 78 bytes.  The engine scans these codes like a
 * list, with the look-up table that the query needs anyway.  If calibration
 * finds that codes miss lists, they are not used.
 *
 * Many vectors.  The hundred centroids that are compared with a vector lie on
 * about a hundred pages, and looking a page up takes longer than comparing its
 * centroids.  So each page is read once for many vectors.  The exception is a
 * search without codes: it reads the children of the parents separately for
 * each vector.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "page/array.h"

/*
 * At least LISTS_PER_PROBE lists are compared for every list needed, and at
 * least LEAST_FRACTION of all lists, because a list's parent may rank well
 * behind the list itself (README, "Nearest lists").  For a calibrated index,
 * LISTS_PER_PROBE_CALIBRATED and the coarse fraction that calibration found
 * are used instead.
 */
#define LISTS_PER_PROBE		10
#define LEAST_FRACTION			0.25
#define LISTS_PER_PROBE_CALIBRATED	2

/*
 * If lists are chosen by the codes of their centroids, CENTROIDS_PER_PROBE *
 * probes + MORE_CENTROIDS lists are chosen.  They are then compared by the
 * centroids themselves, because codes are inexact.
 */
#define CENTROIDS_PER_PROBE	2
#define MORE_CENTROIDS		16

/*
 * If more than 1 / MOST_FRACTION of the lists to compare would be chosen by
 * codes, codes save nothing.  Then all lists to compare are compared by their
 * centroids.
 */
#define MOST_FRACTION			2

/*
 * If one vector is compared with fewer than SORTED_PER_LIST lists for each
 * list needed, all compared lists are kept, and the nearest are selected at
 * the end.  If a heap kept only the nearest lists, many lists would be
 * inserted into it, and the branches of an insertion are hard to predict.
 */
#define SORTED_PER_LIST		5

/* Number of centroids that are being prefetched at any time. */
#define PREFETCHED_CENTROIDS	4

/* Maximum bytes for the parents and chosen lists of a group of vectors. */
#define MOST_BYTES		((Size) 4 * 1024 * 1024)

/* A list and the vector for which it was chosen by codes, as one number. */
#define PLACE_LIST_SHIFT	32
#define PLACE(list, vector)	((list) << PLACE_LIST_SHIFT | (uint64) (vector))
#define PLACE_LIST(place)	((place) >> PLACE_LIST_SHIFT)
#define PLACE_VECTOR(place) ((uint32) (place))

/* Prepares *query.  Allocates memory in the current context. */
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

/* Returns the query's look-up table, which the first call computes. */
const float *
IvfpqQueryTable(IvfpqQuery *query)
{
	if (!query->tabled)
		IvfpqCheckStatus(gv_table(&query->gv, query->vector, query->table));
	query->tabled = true;
	return query->table;
}

/*
 * Returns the number of lists to compare with a query to find its `probes`
 * nearest lists.  A deep search compares all lists.  All lists are also
 * compared if going through the parents would save hardly any work.
 */
int
IvfpqListsToCompare(const IvfpqMetaData *meta, int probes, bool deep)
{
	bool		calibrated = meta->coarse_fraction > 0;
	double		fraction = calibrated ? meta->coarse_fraction : LEAST_FRACTION;
	int			each = calibrated ? LISTS_PER_PROBE_CALIBRATED :
	LISTS_PER_PROBE;
	int			ncompared = (int) Min(Max((double) probes * each,
										  meta->nlists * fraction),
									  meta->nlists);

	if (deep || meta->nparents == 1 ||
		(int64) ncompared + meta->nparents >= meta->nlists)
		return meta->nlists;
	return ncompared;
}

/*
 * Returns the number of lists to compare by their centroids: the lists to be
 * chosen by codes or, if codes would save hardly any work, all lists to
 * compare.
 */
int
IvfpqCentroidsToCompare(const IvfpqMetaData *meta, int probes, bool deep)
{
	int			lists = IvfpqListsToCompare(meta, probes, deep);
	int64		chosen = (int64) probes * CENTROIDS_PER_PROBE + MORE_CENTROIDS;

	return !meta->codes_unused && chosen <= lists / MOST_FRACTION ?
		(int) chosen : lists;
}

/*
 * Compares the centroids first .. end - 1 of an array with vectors [n].
 * Offers each centroid, with its score for vector i, to tops[i].  If `fetches`
 * is true, prefetches the next page while one page is compared.
 */
static void
compare_array(Relation index, const GvModel *gv, BlockNumber block, int first,
			  int end, bool fetches, const float *const *vectors, int n,
			  GvTopK *tops)
{
	IvfpqArrayReader reader;
	const float *run;
	int			count;

	IvfpqArrayOpen(&reader, index, block, gv->dims, end);
	reader.next = first;
	reader.fetches = fetches;
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		for (int i = 0; i < n; i++)
			IvfpqCheckStatus(gv_coarse(gv, vectors[i], run, count, first,
									   &tops[i]));
		first += count;
	}
	IvfpqArrayClose(&reader);
}

/*
 * Sorts all parents by their scores for a vector, nearest first.  Memory comes
 * from the current context.
 */
void
IvfpqSortParents(Relation index, const IvfpqModel *model, const GvModel *gv,
				 const float *vector, GvTopK *parents)
{
	const IvfpqMetaData *meta = &model->meta;

	memset(parents, 0, sizeof(*parents));
	parents->capacity = meta->nparents;
	parents->scores = palloc(meta->nparents * sizeof(float));
	parents->ids = palloc(meta->nparents * sizeof(uint64_t));
	compare_array(index, gv, meta->parents, 0, meta->nparents, false, &vector,
				  1, parents);
	gv_topk_sort(parents);
}

/*
 * Uses codes to fill `chosen` with the best lists of the nearest nparents of
 * `parents`.
 */
static void
choose_by_codes(Relation index, const IvfpqModel *model, IvfpqQuery *query,
				const GvTopK *parents, int nparents, GvTopK *chosen)
{
	static const float no_t[GV_BLOCK] = {0};
	const IvfpqMetaData *meta = &model->meta;
	char	   *memory = palloc_extended(gv_scan_scratch(query->gv.m,
														 chosen->capacity) +
										 GV_ALIGN, MCXT_ALLOC_HUGE);
	GvScan		scan = {
		.model = &query->gv,
		.table = IvfpqQueryTable(query),
		.best = chosen,
		.reach = GV_SCORE_MAX,
		.scratch = (void *) TYPEALIGN(GV_ALIGN, memory)
	};
	IvfpqArrayReader reader;

	gv_topk_reset(chosen);
	IvfpqArrayOpen(&reader, index, meta->codes, IvfpqCodeBlockFloats(meta), 0);
	IvfpqCheckStatus(gv_scan_begin(&scan));
	for (int i = 0; i < nparents; i++)
	{
		int			parent = (int) parents->ids[i];
		int			list = model->parent_offsets[parent];
		int			end = model->parent_offsets[parent + 1];
		const float *run;
		int			count;

		reader.next = IvfpqCodeBlock(parent, list);
		reader.nvectors = reader.next +
			(end - list + GV_BLOCK - 1) / GV_BLOCK;
		while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
			for (; count > 0; count--, list += GV_BLOCK, run += reader.dims)
			{
				int			n = Min(GV_BLOCK, end - list);
				GvBlock		block = {
					.codes = (const uint8 *) (run + GV_BLOCK),
					.t = query->gv.metric == GV_IP ? no_t : run,
					.first_id = list,
					.live = UINT32_MAX >> (GV_BLOCK - n)
				};

				IvfpqCheckStatus(gv_scan(&scan, parents->scores[i], &block,
										 1));
			}
	}
	IvfpqCheckStatus(gv_scan_finish(&scan));
	IvfpqArrayClose(&reader);
	pfree(memory);
}

/*
 * Compares the vector of each of places [nplaces] with the centroid of the
 * place's list, and offers the list, with this score, to the vector's element
 * of `tops`.  Places are sorted by list, so that each centroid is looked up
 * once.
 */
static void
compare_places(Relation index, const IvfpqModel *model, IvfpqQuery *query,
			   const uint64 *places, int64 nplaces,
			   const float *const *vectors, GvTopK *tops)
{
	const IvfpqMetaData *meta = &model->meta;
	const float *centroid = NULL;
	IvfpqArrayReader reader;
	int			count;

	IvfpqArrayOpen(&reader, index, meta->centroids, meta->dims, 0);
	for (int64 p = 0; p < Min(nplaces, PREFETCHED_CENTROIDS); p++)
		IvfpqArrayPrefetch(&reader, PLACE_LIST(places[p]));
	for (int64 p = 0; p < nplaces; p++)
	{
		uint64		list = PLACE_LIST(places[p]);
		uint32		i = PLACE_VECTOR(places[p]);
		int64		ahead = p + PREFETCHED_CENTROIDS;
		float		score;
		uint64_t	id;
		GvTopK		only = {.capacity = 1, .scores = &score, .ids = &id};

		if (ahead < nplaces &&
			PLACE_LIST(places[ahead]) != PLACE_LIST(places[ahead - 1]))
			IvfpqArrayPrefetch(&reader, PLACE_LIST(places[ahead]));
		if (p == 0 || list != PLACE_LIST(places[p - 1]))
		{
			reader.next = (int64) list;
			reader.nvectors = reader.next + 1;
			centroid = IvfpqArrayNext(&reader, &count);
		}
		IvfpqCheckStatus(gv_coarse(&query->gv, vectors[i], centroid, 1, 0,
								   &only));
		if (query->list_scores != NULL)
			query->list_scores[list] = score;
		gv_topk_push(&tops[i], score, list);
	}
	IvfpqArrayClose(&reader);
}

/*
 * Offers lists of the nearest parents of each of vectors [n] to tops [n], with
 * the scores of their centroids.  Each vector gets at least ncompared lists.
 * But if ncentroids is less than ncompared, each vector gets only ncentroids
 * of these lists, chosen by codes.  A chosen list whose score for the query is
 * known is not compared again.
 */
static void
compare_through_parents(Relation index, const IvfpqModel *model,
						IvfpqQuery *query, int ncompared, int ncentroids,
						const float *const *vectors, int n, GvTopK *tops)
{
	const IvfpqMetaData *meta = &model->meta;
	Size		nparents = meta->nparents;
	GvTopK	   *parents = palloc0(n * sizeof(GvTopK));
	float	   *scores = palloc_extended(n * nparents * sizeof(float),
										 MCXT_ALLOC_HUGE);
	uint64	   *ids = palloc_extended(n * nparents * sizeof(uint64),
									  MCXT_ALLOC_HUGE);
	bool		by_codes = ncentroids < ncompared;
	Size		capacity = (Size) n * ncentroids;
	uint64	   *places = NULL;	/* [2][capacity] chosen lists, not compared
								 * yet; the second half is for sorting */
	int64		nplaces = 0;
	GvTopK		chosen = {0};

	for (int i = 0; i < n; i++)
	{
		parents[i].capacity = meta->nparents;
		parents[i].scores = scores + i * nparents;
		parents[i].ids = ids + i * nparents;
	}
	compare_array(index, &query->gv, meta->parents, 0, meta->nparents, false,
				  vectors, n, parents);
	for (int i = 0; i < n; i++)
		gv_topk_sort(&parents[i]);

	if (by_codes)
	{
		places = palloc_extended(2 * capacity * sizeof(uint64),
								 MCXT_ALLOC_HUGE);
		IvfpqTopKResize(&chosen, ncentroids);
	}
	for (int i = 0; i < n; i++)
	{
		int			nlists = 0;
		int			nnear = 0;

		/* take the nearest parents that together have ncompared lists */
		while (nnear < parents[i].count && nlists < ncompared)
		{
			int			p = (int) parents[i].ids[nnear++];

			nlists += model->parent_offsets[p + 1] - model->parent_offsets[p];
			if (!by_codes)
				compare_array(index, &query->gv, meta->centroids,
							  model->parent_offsets[p],
							  model->parent_offsets[p + 1], true,
							  vectors + i, 1, tops + i);
		}
		if (!by_codes)
			continue;

		CHECK_FOR_INTERRUPTS();
		if (vectors[i] != query->vector)
			IvfpqQuerySet(query, vectors[i]);
		choose_by_codes(index, model, query, &parents[i], nnear, &chosen);
		for (int c = 0; c < chosen.count; c++)
		{
			uint64		list = chosen.ids[c];

			if (query->list_scores != NULL && !isnan(query->list_scores[list]))
				gv_topk_push(&tops[i], query->list_scores[list], list);
			else
				places[nplaces++] = PLACE(list, i);
		}
	}
	if (by_codes)
	{
		/* sort by list, because near lists often share a page */
		if (n == 1)
			IvfpqSortNumbers(places, nplaces);
		else
			IvfpqSortBits(places, places + capacity, nplaces,
						  PLACE_LIST_SHIFT);
		compare_places(index, model, query, places, nplaces, vectors, tops);
		pfree(chosen.scores);
		pfree(chosen.ids);
		pfree(places);
	}
	pfree(ids);
	pfree(scores);
	pfree(parents);
}

/*
 * Fills lists [n] with the lists nearest to transformed vectors [n], nearest
 * first.  The caller has allocated the elements of lists, all with the same
 * capacity.  query->deep says whether the search is deep.  If vectors is NULL,
 * n is 1, and the lists nearest to the query's own vector are found.
 * Otherwise the query's own vector is overwritten.
 */
void
IvfpqNearestLists(Relation index, const IvfpqModel *model, IvfpqQuery *query,
				  const float *const *vectors, int n, GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	const float *own = query->vector;
	int			probes = lists[0].capacity;
	int			ncompared = IvfpqListsToCompare(meta, probes, query->deep);
	int			ncentroids = IvfpqCentroidsToCompare(meta, probes,
													 query->deep);
	int			noffered = ncentroids < ncompared ? ncentroids : meta->nlists;
	bool		sorts = n == 1 && noffered / SORTED_PER_LIST < probes;
	GvTopK		all = {0};
	GvTopK	   *tops = lists;

	if (vectors == NULL)
		vectors = &own;
	for (int i = 0; i < n; i++)
		gv_topk_reset(&lists[i]);
	if (sorts)
	{
		/* one more place, because a full GvTopK would become a heap */
		IvfpqTopKResize(&all, noffered + 1);
		tops = &all;
	}

	if (ncentroids == meta->nlists)
		compare_array(index, &query->gv, meta->centroids, 0, meta->nlists,
					  true, vectors, n, tops);
	else
	{
		Size		each = (Size) ncentroids * 2 * sizeof(uint64) +
		(Size) meta->nparents * (sizeof(float) + sizeof(uint64));
		int			at_a_time = (int) Max(MOST_BYTES / each, 1);

		for (int first = 0; first < n; first += at_a_time)
			compare_through_parents(index, model, query, ncompared, ncentroids,
									vectors + first,
									Min(at_a_time, n - first), tops + first);
	}

	if (!sorts)
	{
		for (int i = 0; i < n; i++)
			gv_topk_sort(&lists[i]);
		return;
	}
	gv_topk_first(&all, probes);
	memcpy(lists->scores, all.scores, all.count * sizeof(float));
	memcpy(lists->ids, all.ids, all.count * sizeof(uint64_t));
	lists->count = all.count;
	pfree(all.scores);
	pfree(all.ids);
}

/*
 * Returns what share of the `probes` lists nearest to queries [n][dims] a
 * search misses because it chooses lists by codes.
 */
double
IvfpqCodesMiss(Relation index, const IvfpqModel *model, const float *queries,
			   int n, int probes)
{
	IvfpqModel	uncoded = *model;
	int		   *found = palloc0(model->meta.nlists * sizeof(int));
	int64		nlists = 0;
	int64		nmissed = 0;
	IvfpqQuery	query;
	GvTopK		lists = {0};

	uncoded.meta.codes_unused = true;
	if (IvfpqCentroidsToCompare(&model->meta, probes, false) ==
		IvfpqCentroidsToCompare(&uncoded.meta, probes, false))
		return 0;
	IvfpqQueryInit(&query, model, model->gv.metric);
	IvfpqTopKResize(&lists, probes);
	for (int q = 1; q <= n; q++)
	{
		CHECK_FOR_INTERRUPTS();
		IvfpqQuerySet(&query, queries + (Size) (q - 1) * model->meta.dims);
		IvfpqNearestLists(index, model, &query, NULL, 1, &lists);
		for (int i = 0; i < lists.count; i++)
			found[lists.ids[i]] = q;
		IvfpqNearestLists(index, &uncoded, &query, NULL, 1, &lists);
		for (int i = 0; i < lists.count; i++)
			nmissed += found[lists.ids[i]] != q;
		nlists += lists.count;
	}
	pfree(found);
	return (double) nmissed / Max(nlists, 1);
}

/*
 * Writes the codes of a tree's centroids to the pages that *meta names.  T is
 * computed for L2 even if the metric is the inner product, because inserts
 * look for the nearest lists by L2.
 */
void
IvfpqCodedWrite(Relation index, const IvfpqMetaData *meta,
				const GvModel *model, const GvTree *tree, bool shared)
{
	int			floats = IvfpqCodeBlockFloats(meta);
	int64		nvalues = IvfpqCodeBlocks(meta) * floats;
	float	   *blocks = palloc_extended(nvalues * sizeof(float),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	int			code_bytes = gv_code_bytes(model->m);
	uint8	   *codes = palloc(GV_BLOCK * code_bytes);
	float		t[GV_BLOCK];
	int32		parents[GV_BLOCK];
	GvModel		gv = *model;

	gv.metric = GV_L2;
	for (int p = 0; p < tree->nparents; p++)
	{
		int			list = tree->parent_offsets[p];
		int			end = tree->parent_offsets[p + 1];
		float	   *block = blocks + IvfpqCodeBlock(p, list) * floats;

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < GV_BLOCK; i++)
			parents[i] = p;
		for (; list < end; list += GV_BLOCK, block += floats)
		{
			int			n = Min(GV_BLOCK, end - list);
			uint8	   *bytes = (uint8 *) (block + GV_BLOCK);

			IvfpqCheckStatus(gv_encode(&gv, tree->centroids +
									   (Size) list * gv.dims, tree->parents,
									   parents, n, 1, codes, t));
			for (int i = 0; i < n; i++)
			{
				block[i] = t[i];
				for (int b = 0; b < code_bytes; b++)
					bytes[b * GV_BLOCK + i] = codes[i * code_bytes + b];
			}
		}
	}
	IvfpqArrayWrite(index, meta, meta->codes, blocks, nvalues, shared);
	pfree(codes);
	pfree(blocks);
}
