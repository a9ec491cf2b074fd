/*
 * assign.c
 *		The nearest centroid of each of many vectors.
 *
 * The answer is defined by one function: the centroid with the least
 * gv_cpu_sqdist, ties to the smaller number.  Most of the work is a cheaper
 * filter: |x - c|^2 = |x|^2 + |c|^2 - 2 <x, c> with the products from a
 * blocked matrix product.  The filter keeps every centroid that, within the
 * bound of the filter's rounding errors, might be the nearest, and only these
 * few are rescored.  So the answer depends neither on blocking nor on how far
 * the data are from the origin: a large offset costs time, not accuracy.
 *
 * The bound.  With u = 2^-24, a product <x, c> of the tiles below has an error
 * below (dims + 4) u |x| |c| (gv_estimate_error), and 16-lane sums have an
 * error below (dims / 16 + 6) u times the sum of magnitudes.  Let slack =
 * (dims + 64) u, which is more than both together.  Then
 *	|c|^2 (1 - 2 slack) - 2 <x, c>  >
 *		best (1 + 2 slack) - |x|^2 (1 - 2 slack) + (something denormal)
 * proves that c is farther than the best centroid rescored so far.
 */
#include <math.h>
#include <string.h>

#include "cpu/code/gv_assign.h"
#include "engine/gv_call.h"

#define TILE_ROWS	GV_CPU_TILE_ROWS
#define TILE_CENTS	GV_CPU_TILE_CENTS
#define SLICE		GV_CPU_SLICE_DIMS
#define FEW_ROWS	4			/* with fewer rows than this a tile does not
								 * pay */
#define HUGE_SQUARE	GV_CPU_HUGE_SQUARE

/* The vectors of a tile, and the best centroid found so far for each. */
typedef struct Tile
{
	int32_t		dims;
	int			nrows;			/* <= TILE_ROWS */
	double		slack;
	const float *x;				/* [nrows][dims] */
	int32_t    *nearest;		/* [nrows] */
	float		best[TILE_ROWS];	/* squared distance to nearest */
	double		square[TILE_ROWS];	/* |x|^2 */
	float		limit[TILE_ROWS];	/* limit of the filter: a centroid above
									 * it is not the nearest */
} Tile;

/*
 * Rescores centroid c for a row of the tile.  Returns true if c is nearer than
 * the best centroid so far.
 */
static bool
rerank(Tile *tile, int row, const float *centroid, int32_t c)
{
	float		dist = gv_score(gv_cpu_sqdist(tile->x +
											  (size_t) row * tile->dims,
											  centroid, tile->dims));

	if (dist > tile->best[row] ||
		(dist == tile->best[row] && c >= tile->nearest[row]))
		return false;
	tile->best[row] = dist;
	tile->nearest[row] = c;
	return true;
}

/* Sets the filter's limit of a row after its best distance has changed. */
static void
set_limit(Tile *tile, int row)
{
	if (tile->best[row] < HUGE_SQUARE && tile->square[row] < HUGE_SQUARE)
		tile->limit[row] =
			(float) (tile->best[row] * (1.0 + 2.0 * tile->slack) -
					 tile->square[row] * (1.0 - 2.0 * tile->slack) +
					 FLT_MIN);
	else
		tile->limit[row] = HUGE_VALF;
}

/*
 * Begins a tile of n rows.  `nearest` has an estimate of each row's nearest
 * centroid, or -1.  Rescores only these estimates, to set the filter's limits;
 * any other centroid may still be the nearest.
 */
static void
start_tile(Tile *tile, const float *centroids, int32_t dims, const float *x,
		   int n, int32_t *nearest)
{
	int			row;

	tile->dims = dims;
	tile->nrows = n;
	tile->slack = gv_cpu_slack(dims);
	tile->x = x;
	tile->nearest = nearest;
	for (row = 0; row < n; row++)
	{
		const float *vector = x + (size_t) row * dims;

		tile->best[row] = GV_SCORE_MAX;
		tile->square[row] = -gv_distance_ip(vector, vector, dims);
		tile->limit[row] = HUGE_VALF;
		if (nearest[row] < 0)
			nearest[row] = 0;
		else
		{
			tile->best[row] =
				gv_score(gv_cpu_sqdist(vector, centroids +
									   (size_t) nearest[row] * dims, dims));
			set_limit(tile, row);
		}
	}
}

/*
 * Copies four centroids at a time, because the elements of one centroid go to
 * addresses that are TILE_CENTS apart.
 */
void
gv_cpu_pack(const float *centroids, int32_t dims, int ncents, int32_t first,
			int32_t len, float *restrict panel)
{
	int			c;
	int32_t		d;

	for (c = 0; c + 4 <= ncents; c += 4)
	{
		const float *from = centroids + (size_t) c * dims + first;

		for (d = 0; d < len; d++)
		{
			float	   *to = panel + d * TILE_CENTS + c;

			to[0] = from[d];
			to[1] = from[dims + d];
			to[2] = from[2 * (size_t) dims + d];
			to[3] = from[3 * (size_t) dims + d];
		}
	}
	for (; c < ncents; c++)
		for (d = 0; d < len; d++)
			panel[d * TILE_CENTS + c] =
				centroids[(size_t) c * dims + first + d];
	for (d = 0; d < len; d++)
		for (c = ncents; c < TILE_CENTS; c++)
			panel[d * TILE_CENTS + c] = 0.0f;
	for (d = len * TILE_CENTS; d < SLICE * TILE_CENTS; d++)
		panel[d] = 0.0f;
}

/*
 * Computes the products of a tile, by the kernel for estimates or by the other
 * one.
 */
static void
multiply_tile(const float *x, int nrows, const float *centroids, int ncents,
			  int32_t dims, bool estimates, float *products)
{
	float		panel[SLICE * TILE_CENTS];
	int32_t		first;

	memset(products, 0, sizeof(float) * nrows * TILE_CENTS);
	for (first = 0; first < dims; first += SLICE)
	{
		int32_t		len = dims - first < SLICE ? dims - first : SLICE;

		gv_cpu_pack(centroids, dims, ncents, first, len, panel);
		if (estimates)
			gv_kernels->estimate(x + first, dims, nrows, len, panel,
								 products);
		else
			gv_kernels->multiply(x + first, dims, nrows, len, panel,
								 products);
	}
}

void
gv_cpu_products(const float *x, int nrows, const float *centroids,
				int ncents, int32_t dims, float *products)
{
	multiply_tile(x, nrows, centroids, ncents, dims, false, products);
}

void
gv_cpu_estimates(const float *x, int nrows, const float *centroids,
				 int ncents, int32_t dims, float *products)
{
	multiply_tile(x, nrows, centroids, ncents, dims, true, products);
}

void
gv_cpu_lower_squares(const float *centroids, int ncents, int32_t dims,
					 float *squares)
{
	double		kept = 1.0 - 2.0 * gv_cpu_slack(dims);
	int			c;

	for (c = 0; c < ncents; c++)
	{
		const float *centroid = centroids + (size_t) c * dims;
		float		square = gv_cpu_dot(centroid, centroid, dims);

		squares[c] = square < HUGE_SQUARE ? (float) (square * kept) :
			-HUGE_VALF;
	}
	for (; c < TILE_CENTS; c++)
		squares[c] = HUGE_VALF;
}

/*
 * Rescores for one row those of the centroids c0 .. c0 + ncents - 1 that the
 * row's filter lets through.  The most promising centroid is rescored first,
 * so that the others are compared with a tight limit.
 */
static void
filter_row(Tile *tile, int row, const float *centroids, int32_t c0,
		   int ncents, const float *squares, const float *products)
{
	uint64_t	hits = gv_kernels->within(squares, products,
										  tile->limit[row]);
	float		least = HUGE_VALF;
	int			first = -1;
	uint64_t	left;

	if (ncents < TILE_CENTS)
		hits &= (UINT64_C(1) << ncents) - 1;
	for (left = hits; left != 0; left &= left - 1)
	{
		int			c = __builtin_ctzll(left);
		float		value = squares[c] - 2.0f * products[c];

		if (first < 0 || value < least)
		{
			least = value;
			first = c;
		}
	}
	if (first >= 0 &&
		rerank(tile, row, centroids + (size_t) first * tile->dims,
			   c0 + first))
		set_limit(tile, row);
	for (left = hits; left != 0; left &= left - 1)
	{
		int			c = __builtin_ctzll(left);

		if (c == first || squares[c] - 2.0f * products[c] > tile->limit[row])
			continue;
		if (rerank(tile, row, centroids + (size_t) c * tile->dims, c0 + c))
			set_limit(tile, row);
	}
}

/*
 * Compares the tile's rows with `ncents` centroids by the filter.  c0 is the
 * number of the first centroid.
 */
static void
filter_tile(Tile *tile, const float *centroids, int32_t c0, int ncents)
{
	float		products[TILE_ROWS * TILE_CENTS];
	float		squares[TILE_CENTS];	/* |c|^2, lowered by its slack */
	int			row;

	gv_cpu_lower_squares(centroids, ncents, tile->dims, squares);
	gv_cpu_estimates(tile->x, tile->nrows, centroids, ncents, tile->dims,
					 products);
	for (row = 0; row < tile->nrows; row++)
		filter_row(tile, row, centroids, c0, ncents, squares,
				   products + row * TILE_CENTS);
}

/* Rescores all of `ncents` centroids for all rows of the tile. */
static void
rerank_tile(Tile *tile, const float *centroids, int32_t c0, int ncents)
{
	int			row;
	int			c;

	for (row = 0; row < tile->nrows; row++)
		for (c = 0; c < ncents; c++)
			(void) rerank(tile, row, centroids + (size_t) c * tile->dims,
						  c0 + c);
}

GvStatus
gv_cpu_assign_estimated(int32_t dims, const float *centroids /* [k][dims] */ ,
						int32_t k, const float *x /* [n][dims] */ , int64_t n,
						int32_t *nearest, float *sqdist, const GvStop *stop)
{
	GvPoll		poll = {stop, 0};
	int64_t		done;

	for (done = 0; done < n; done += TILE_ROWS)
	{
		Tile		tile;
		int64_t		left = n - done;
		int			nrows = left < TILE_ROWS ? (int) left : TILE_ROWS;
		int32_t		c;
		int			row;

		start_tile(&tile, centroids, dims, x + (size_t) done * dims, nrows,
				   nearest + done);
		for (c = 0; c < k; c += TILE_CENTS)
		{
			int			ncents = k - c < TILE_CENTS ? k - c : TILE_CENTS;
			const float *some = centroids + (size_t) c * dims;

			if (gv_poll(&poll, (int64_t) nrows * ncents * dims))
				return GV_CANCELED;
			if (nrows < FEW_ROWS)
				rerank_tile(&tile, some, c, ncents);
			else
				filter_tile(&tile, some, c, ncents);
		}
		if (sqdist != NULL)
			for (row = 0; row < nrows; row++)
				sqdist[done + row] = tile.best[row];
	}
	return GV_OK;
}

GvStatus
gv_cpu_assign(int32_t dims, const float *centroids, int32_t k,
			  const float *x, int64_t n, int32_t *nearest, float *sqdist,
			  const GvStop *stop)
{
	int64_t		i;

	for (i = 0; i < n; i++)
		nearest[i] = -1;
	return gv_cpu_assign_estimated(dims, centroids, k, x, n, nearest, sqdist,
								   stop);
}

GvStatus
gv_assign(int32_t dims, const float *centroids, int32_t k, const float *x,
		  int64_t n, int32_t *nearest, float *sqdist, const GvStop *stop)
{
	GV_CALL(gv_engine_calls, gv_valid_dims(dims) && centroids != NULL &&
			k >= 1 && x != NULL && n >= 1 && nearest != NULL &&
			gv_valid_stop(stop));
	return gv_cpu_assign(dims, centroids, k, x, n, nearest, sqdist, stop);
}
