/*
 * exactmeet.c
 *		Compares a panel of rows with a tile of queries, and rescores pairs.
 */
#include "cpu/exact/gv_exactset.h"

#include <math.h>
#include <string.h>

#define MANY_LEFT		8		/* rows left from which on it pays to look for
								 * twins */

bool
gv_exact_rerank(GvExact *exact, int64_t query, const float *row,
				int64_t position, GvReranked *reranked)
{
	const GvSetSpec *spec = &exact->spec;
	GvKnn	   *nearest = gv_exact_knn(exact, query);
	GvKnn		last = nearest[0];

	if (gv_exact_is_self(exact, query, position))
		return false;

	/*
	 * All distances of this query are NaN, so the smallest positions count.
	 * Rows do not come in the order of their positions, so without this test
	 * many would be rescored.
	 */
	if (exact->lists != NULL && last.distance != last.distance &&
		last.position < position && exact->prefiltered[query].is_null)
		return false;
	if (reranked->row == NULL ||
		memcmp(reranked->row, row, sizeof(float) * (size_t) spec->dims) != 0)
		reranked->distance = gv_set_distance((GvSetMetric) spec->metric,
											 exact->queries +
											 query * spec->dims, row,
											 spec->dims);
	reranked->row = row;
	gv_knn_push(nearest, exact->kept, reranked->distance, position);
	return nearest[0].position != last.position;
}

/*
 * Returns the limit of a query's estimates, which follows from the neighbors
 * that the query has found.
 */
static float
limit_of(const GvExact *exact, int64_t query)
{
	const GvPrefiltered *prefiltered = &exact->prefiltered[query];

	/* rows with smaller positions may still come, and all have distance NaN */
	if (exact->lists != NULL && prefiltered->is_null)
		return HUGE_VALF;
	return gv_prefilter_limit(&exact->prefilter, prefiltered,
							  gv_exact_knn(exact, query)[0]);
}

bool
gv_exact_prepare(GvExact *exact, const float *rows, int64_t n, GvPoll *poll)
{
	const GvSetSpec *spec = &exact->spec;
	int64_t		query;

	gv_prefilter_fit(&exact->prefilter, rows,
					 n < GV_EXACT_QUERIES ? n : GV_EXACT_QUERIES,
					 exact->placed);
	for (query = 0; query < spec->nqueries; query++)
	{
		if (gv_poll(poll, 8 * (int64_t) spec->dims))
			return false;
		exact->prefiltered[query] =
			gv_prefilter_query(&exact->prefilter,
							   exact->queries + query * spec->dims,
							   exact->placed);
		exact->limits[query] = limit_of(exact, query);
	}
	return true;
}

/*
 * Finds for each row of a panel its twin: the first row of the panel that has
 * the same bits.
 */
static void
find_twins(GvExact *exact, const GvPairing *pairing)
{
	size_t		bytes = sizeof(float) * (size_t) exact->spec.dims;
	const char *rows = (const char *) pairing->rows;
	int			row;

	for (row = 0; row < pairing->nrows; row++)
	{
		int			twin = 0;

		/*
		 * rows with the same bits have the same square, and few other rows
		 * have it
		 */
		while (twin < row &&
			   (pairing->squares[twin] != pairing->squares[row] ||
				memcmp(rows + pairing->places[twin] * bytes,
					   rows + pairing->places[row] * bytes, bytes) != 0))
			twin++;
		exact->twins[row] = (uint8_t) twin;
	}
	exact->has_twins = true;
}

/*
 * Returns whether a row that was rescored, and did not change the query's last
 * neighbor, was too far away.  If so, every later row with the same bits is
 * too far, too, because it comes after this one.
 */
static bool
is_refused(const GvExact *exact, int64_t query, int64_t position)
{
	return gv_exact_knn(exact, query)[0].position != GV_NO_ROW &&
		!gv_exact_is_self(exact, query, position);
}

/*
 * Rescores the rows of a panel that the prefilter of one query lets through.
 * Returns false if the caller must give up.
 */
static bool
sift(GvExact *exact, const GvPairing *pairing, int i, GvPoll *poll)
{
	uint64_t	refused = 0;	/* twins whose other rows are not rescored */
	const float *products = exact->products + i * GV_PREFILTER_ROWS;
	int64_t		query = pairing->queries[i];
	float	   *limit = &exact->limits[query];
	uint64_t	left = gv_kernels->within(pairing->squares, products, *limit);
	GvReranked	reranked = {NULL, 0.0};

	if (pairing->nrows < GV_PREFILTER_ROWS)
		left &= (UINT64_C(1) << pairing->nrows) - 1;
	if (!exact->has_twins && __builtin_popcountll(left) >= MANY_LEFT)
		find_twins(exact, pairing);
	for (; left != 0; left &= left - 1)
	{
		int			row = __builtin_ctzll(left);
		int			twin = exact->has_twins ? exact->twins[row] : row;
		int64_t		place;

		if ((refused >> twin & 1) != 0)
			continue;

		/*
		 * the limit may have fallen since the estimates were compared with it
		 */
		if (pairing->squares[row] - 2.0f * products[row] > *limit)
			continue;
		if (gv_poll(poll, 4 * (int64_t) exact->spec.dims + GV_KNN_WORK))
			return false;
		place = pairing->places[row];
		if (gv_exact_rerank(exact, query,
							pairing->rows + place * exact->spec.dims,
							pairing->first + place, &reranked))
			*limit = limit_of(exact, query);
		else if (is_refused(exact, query, pairing->first + place))
			refused |= UINT64_C(1) << twin;
	}
	return true;
}

bool
gv_exact_pairs(GvExact *exact, const GvPairing *pairing, GvPoll *poll)
{
	int32_t		dims = exact->spec.dims;
	int32_t		first;
	int			i;

	if (gv_poll(poll, (int64_t) pairing->nqueries * GV_PREFILTER_ROWS * dims))
		return false;
	exact->has_twins = false;
	memset(exact->products, 0,
		   sizeof(float) * pairing->nqueries * GV_PREFILTER_ROWS);
	for (first = 0; first < dims; first += GV_CPU_SLICE_DIMS)
		gv_kernels->estimate(exact->placed + first, dims, pairing->nqueries,
							 dims - first < GV_CPU_SLICE_DIMS ?
							 dims - first : GV_CPU_SLICE_DIMS,
							 pairing->panel + (size_t) first *
							 GV_PREFILTER_ROWS,
							 exact->products);
	for (i = 0; i < pairing->nqueries; i++)
		if (!sift(exact, pairing, i, poll))
			return false;
	return true;
}

void
gv_exact_place(GvExact *exact, const int64_t *queries, int n)
{
	int64_t		dims = exact->spec.dims;
	int			i;

	for (i = 0; i < n; i++)
		gv_prefilter_place(&exact->prefilter, &exact->prefiltered[queries[i]],
						   exact->queries + queries[i] * dims,
						   exact->placed + i * dims);
}
