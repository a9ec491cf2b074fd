/*
 * nearmany.c
 *		The lists nearest to many vectors: to each those that nearestlists.c
 *		finds for it.
 *
 * For one vector a hundred centroids lie on as many pages, and to look a page
 * up takes longer than to compare its centroids.  Here each comes once for all
 * vectors.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "am/common/enginecall.h"
#include "am/search/search.h"
#include "page/array.h"

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
		IvfpqCodedOffer(index, model, query, &parents[i],
						IvfpqCountParents(model, &parents[i], wanted), chosen);
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
