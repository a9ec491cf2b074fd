/*
 * nearestlists.c
 *		The lists nearest to a vector, through two levels of centroids.
 *
 * All parents are compared, then the children of the nearest parents until
 * enough lists have been compared; or all lists, where that is hardly more
 * work.  Where few of those are needed, their codes are scored first
 * (nearestlists.c), and only the nearest by score are compared by their centroids.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "page/array.h"

static void coded_offer(Relation index, const IvfpqModel *model,
							IvfpqQuery *query, const GvTopK *parents,
							int nparents, GvTopK *lists);

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
static int
count_parents(const IvfpqModel *model, const GvTopK *parents, int wanted)
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
	coded_offer(index, model, query, parents, n, &chosen);
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
	n = count_parents(model, &parents, wanted);
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

/* ----
 * Centroids in codes: which lists are likely to be the nearest.
 *
 * To compare a query with all centroids takes reading them, 1.5 kB each at
 * d = 384.  So each of them is there a second time, as if it were a posting in
 * its parent's list: T and a code of the index's own codebooks, 78 bytes,
 * which the scanner of lists takes, with the look-up table that the query
 * needs anyway.  Only lists that are near by their codes are compared by their
 * centroids.
 */

/* Put the codes and T of some of a parent's centroids, [n], into a block. */
static void
fill_block(float *block, const uint8 *codes, const float *t, int n,
		   int code_bytes)
{
	uint8	   *bytes = (uint8 *) (block + GV_BLOCK);

	for (int i = 0; i < n; i++)
	{
		block[i] = t[i];
		for (int p = 0; p < code_bytes; p++)
			bytes[p * GV_BLOCK + i] = codes[i * code_bytes + p];
	}
}

/* Encode centroids [n], up to a block of them, of a parent. */
static void
encode_block(const GvModel *model, const GvTree *tree, int parent, int first,
			 int n, float *block)
{
	int			code_bytes = gv_code_bytes(model->m);
	uint8	   *codes = palloc(GV_BLOCK * code_bytes);
	float		t[GV_BLOCK];
	int32		parents[GV_BLOCK];

	for (int i = 0; i < n; i++)
		parents[i] = parent;
	IvfpqCheckStatus(gv_encode(model, tree->centroids +
							   (Size) first * model->dims, tree->parents,
							   parents, n, 1, codes, t));
	fill_block(block, codes, t, n, code_bytes);
	pfree(codes);
}

/*
 * Write the codes of a tree's centroids, to where *meta says.  T is that of
 * L2 also where the metric is the inner product, because inserts look for
 * the nearest lists by L2.
 */
void
IvfpqCodedWrite(Relation index, const IvfpqMetaData *meta,
				const GvModel *model, const GvTree *tree, bool shared)
{
	int			floats = IvfpqCodeBlockFloats(meta);
	int64		nvalues = IvfpqCodeBlocks(meta) * floats;
	float	   *blocks = palloc_extended(nvalues * sizeof(float),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	GvModel		gv = *model;

	gv.metric = GV_L2;
	for (int p = 0; p < tree->nparents; p++)
	{
		int			list = tree->parent_offsets[p];
		int			end = tree->parent_offsets[p + 1];
		float	   *block = blocks + IvfpqCodeBlock(p, list) * floats;

		CHECK_FOR_INTERRUPTS();
		for (; list < end; list += GV_BLOCK, block += floats)
			encode_block(&gv, tree, p, list, Min(GV_BLOCK, end - list),
						 block);
	}
	IvfpqArrayWrite(index, meta->codes, blocks, nvalues, shared);
	pfree(blocks);
}

/* Offer a parent's lists, given its score, to the scan. */
static void
offer_parent(IvfpqArrayReader *reader, const IvfpqModel *model, GvScan *scan,
			 int parent, float score)
{
	static const float no_t[GV_BLOCK] = {0};
	int			list = model->parent_offsets[parent];
	int			end = model->parent_offsets[parent + 1];
	const float *run;
	int			count;

	reader->next = IvfpqCodeBlock(parent, list);
	reader->nvectors = reader->next + (end - list + GV_BLOCK - 1) / GV_BLOCK;
	while ((run = IvfpqArrayNext(reader, &count)) != NULL)
		for (; count > 0; count--, list += GV_BLOCK, run += reader->dims)
		{
			int			n = Min(GV_BLOCK, end - list);
			GvBlock		block = {
				.codes = (const uint8 *) (run + GV_BLOCK),
				.t = scan->model->metric == GV_IP ? no_t : run,
				.first_id = list,
				.live = UINT32_MAX >> (GV_BLOCK - n)
			};

			IvfpqCheckStatus(gv_scan(scan, score, &block, 1));
		}
}

/*
 * Offer the lists of the parents [nparents] of *parents, nearest first, by
 * what their codes say their scores are.
 */
static void
coded_offer(Relation index, const IvfpqModel *model, IvfpqQuery *query,
				const GvTopK *parents, int nparents, GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	char	   *memory = palloc_extended(gv_scan_scratch(query->gv.m,
														 lists->capacity) +
										 GV_ALIGN, MCXT_ALLOC_HUGE);
	GvScan		scan = {
		.model = &query->gv,
		.table = IvfpqQueryTable(query),
		.best = lists,
		.reach = GV_SCORE_MAX,
		.scratch = (void *) TYPEALIGN(GV_ALIGN, memory)
	};
	IvfpqArrayReader reader;

	IvfpqArrayOpen(&reader, index, meta->codes, IvfpqCodeBlockFloats(meta), 0);
	IvfpqCheckStatus(gv_scan_begin(&scan));
	for (int i = 0; i < nparents; i++)
		offer_parent(&reader, model, &scan, (int) parents->ids[i],
					 parents->scores[i]);
	IvfpqCheckStatus(gv_scan_finish(&scan));
	IvfpqArrayClose(&reader);
	pfree(memory);
}

/* ----
 * The lists nearest to many vectors: to each those that nearestlists.c
 * finds for it.
 *
 * For one vector a hundred centroids lie on as many pages, and to look a page
 * up takes longer than to compare its centroids.  Here each comes once for all
 * vectors.
 */

/* Bytes that centroids and parents of vectors may take, which go together. */
#define MOST_BYTES		((Size) 4 * 1024 * 1024)

/* A list that codes have chosen for a vector. */
#define PLACE_LIST_SHIFT	32
#define PLACE(list, vector)	((list) << PLACE_LIST_SHIFT | (uint64) (vector))
#define PLACE_LIST(place)	((place) >> PLACE_LIST_SHIFT)
#define PLACE_VECTOR(place) ((uint32) (place))

/*
 * Empty tops [n >= 1] of such a capacity, whose memory begins at the first's.
 */
static GvTopK *
make_tops(int n, int capacity)
{
	GvTopK	   *tops = palloc0(n * sizeof(GvTopK));
	Size		total = (Size) n * capacity;
	float	   *scores = palloc_extended(total * sizeof(float), MCXT_ALLOC_HUGE);
	uint64	   *ids = palloc_extended(total * sizeof(uint64), MCXT_ALLOC_HUGE);

	for (int i = 0; i < n; i++)
	{
		tops[i].capacity = capacity;
		tops[i].scores = scores + (Size) i * capacity;
		tops[i].ids = ids + (Size) i * capacity;
	}
	return tops;
}

static void
free_tops(GvTopK *tops)
{
	pfree(tops[0].scores);
	pfree(tops[0].ids);
	pfree(tops);
}

/* Offer all of an array of centroids, for each of vectors [n] to its top. */
static void
offer_all(Relation index, const IvfpqModel *model, const GvModel *gv,
		  BlockNumber block, int ncentroids, const float *const *vectors, int n,
		  GvTopK *tops)
{
	IvfpqArrayReader reader;
	const float *run;
	int			first = 0;
	int			count;

	IvfpqArrayOpen(&reader, index, block, model->meta.dims, ncentroids);
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
 * Which lists the codes of near parents choose for vectors [n], ncentroids for
 * each, by list; *nplaces of them.
 */
static uint64 *
choose_coded(Relation index, const IvfpqModel *model, IvfpqQuery *query,
			 const float *const *vectors, int n, int wanted, int ncentroids,
			 int64 *nplaces)
{
	const IvfpqMetaData *meta = &model->meta;
	Size		capacity = (Size) n * ncentroids;
	uint64	   *places = palloc_extended(2 * capacity * sizeof(uint64),
										 MCXT_ALLOC_HUGE);
	GvTopK	   *parents = make_tops(n, meta->nparents);
	GvTopK	   *chosen = make_tops(1, ncentroids);

	*nplaces = 0;
	offer_all(index, model, &query->gv, meta->parents, meta->nparents, vectors,
			  n, parents);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		gv_topk_sort(&parents[i]);
		gv_topk_reset(chosen);
		IvfpqQuerySet(query, vectors[i]);
		coded_offer(index, model, query, &parents[i],
						count_parents(model, &parents[i], wanted), chosen);
		for (int c = 0; c < chosen->count; c++)
			places[(*nplaces)++] = PLACE(chosen->ids[c], i);
	}
	IvfpqSortBits(places, places + capacity, *nplaces, PLACE_LIST_SHIFT);
	free_tops(chosen);
	free_tops(parents);
	return places;
}

/* Offer the lists that codes choose by their centroids. */
static void
offer_coded(Relation index, const IvfpqModel *model, IvfpqQuery *query,
			const float *const *vectors, int n, int wanted, int ncentroids,
			GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	int64		nplaces;
	uint64	   *places = choose_coded(index, model, query, vectors, n, wanted,
									  ncentroids, &nplaces);
	const float *centroid = NULL;
	IvfpqArrayReader reader;
	int			count;

	IvfpqArrayOpen(&reader, index, meta->centroids, meta->dims, 0);
	for (int64 p = 0; p < nplaces; p++)
	{
		uint64		list = PLACE_LIST(places[p]);
		uint32		i = PLACE_VECTOR(places[p]);

		if (p == 0 || list != PLACE_LIST(places[p - 1]))
		{
			reader.next = (int64) list;
			reader.nvectors = reader.next + 1;
			centroid = IvfpqArrayNext(&reader, &count);
		}
		IvfpqCheckStatus(gv_coarse(&query->gv, vectors[i], centroid, 1, list,
								   &lists[i]));
	}
	IvfpqArrayClose(&reader);
	pfree(places);
}

/* Offer the lists that codes choose, to as many vectors at a time as fit. */
static void
offer_portions(Relation index, const IvfpqModel *model, IvfpqQuery *query,
			   const float *const *vectors, int n, int wanted, int ncentroids,
			   GvTopK *lists)
{
	Size		each = (Size) ncentroids * 2 * sizeof(uint64) +
	(Size) model->meta.nparents * (sizeof(float) + sizeof(uint64));
	int			at_a_time = (int) Max(MOST_BYTES / each, 1);

	for (int first = 0; first < n; first += at_a_time)
		offer_coded(index, model, query, vectors + first,
					Min(at_a_time, n - first), wanted, ncentroids,
					lists + first);
}

/*
 * The nearest lists of transformed vectors [n], of a search that is `deep` or
 * not as query->deep says, into lists [n], which have their memory and one
 * capacity, nearest first.  The query is overwritten.
 */
void
IvfpqNearestListsBulk(Relation index, const IvfpqModel *model,
					  IvfpqQuery *query, const float *const *vectors, int n,
					  GvTopK *lists)
{
	const IvfpqMetaData *meta = &model->meta;
	int			wanted = IvfpqListsToCompare(meta, lists[0].capacity,
											 query->deep);
	int			ncentroids = IvfpqCentroidsToCompare(meta, lists[0].capacity,
													 query->deep);

	for (int i = 0; i < n; i++)
		gv_topk_reset(&lists[i]);
	if (ncentroids < wanted)
		offer_portions(index, model, query, vectors, n, wanted, ncentroids,
					   lists);
	else if (wanted == meta->nlists)
		offer_all(index, model, &query->gv, meta->centroids, meta->nlists,
				  vectors, n, lists);
	else
		for (int i = 0; i < n; i++)
		{
			IvfpqQuerySet(query, vectors[i]);
			IvfpqNearestLists(index, model, query, &lists[i]);
		}
	if (ncentroids < wanted || wanted == meta->nlists)
		for (int i = 0; i < n; i++)
			gv_topk_sort(&lists[i]);
}
