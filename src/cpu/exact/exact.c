/*
 * exact.c
 *		The nearest of many rows to each of many queries, exactly.
 *
 * Scores are the ones that gv_coarse would compute.  For most pairs of a query
 * and a row no score is computed, because a blocked product, whose rounding
 * errors are bounded as in kmeans.c, proves that the row cannot be among the
 * nearest.
 */
#include <math.h>

#include "cpu/pq/assign.h"
#include "engine/gv_call.h"

#define TILE_QUERIES	GV_CPU_TILE_ROWS
#define TILE_ROWS		GV_CPU_TILE_CENTS
#define HUGE_SQUARE		GV_CPU_HUGE_SQUARE

/*
 * At most TILE_QUERIES queries, and the rows that are nearest to each query so
 * far.
 */
typedef struct Tile
{
	GvMetric	metric;
	int32_t		dims;
	int			n;				/* number of queries */
	double		slack;			/* see kmeans.c */
	const float *queries;		/* [n][dims] */
	double		squares[TILE_QUERIES];	/* |q|^2 */
	GvTopK	   *best;			/* [n] */
} Tile;

/*
 * Returns the limit of a query's filter: rows whose value is above the limit
 * are farther than all rows that are kept.  The value of a row x is
 * |x|^2 (1 - 2 slack) - 2 <q, x> or, for GV_IP, -2 slack |q| |x| - 2 <q, x>.
 */
static float
query_limit(const Tile *tile, int query)
{
	const GvTopK *best = &tile->best[query];
	double		worst = best->scores[0];

	if (best->count < best->capacity)
		return HUGE_VALF;
	if (tile->metric != GV_IP)
		return gv_cpu_limit(worst, tile->squares[query], tile->slack);
	if (fabs(worst) >= HUGE_SQUARE || tile->squares[query] >= HUGE_SQUARE)
		return HUGE_VALF;
	return (float) (2.0 * (worst + fabs(worst) * tile->slack + FLT_MIN));
}

/*
 * Computes -2 slack |x| of rows, for GV_IP.  The results are infinite in the
 * same cases as those of gv_cpu_lower_squares.  FLT_MIN is more than the error
 * of squares that are too small for a float.
 */
static void
lower_lengths(const Tile *tile, const float *rows, int nrows, float *lengths)
{
	int			i;

	for (i = 0; i < nrows; i++)
	{
		const float *row = rows + (size_t) i * tile->dims;
		double		square = gv_cpu_dot(row, row, tile->dims);

		lengths[i] = square < HUGE_SQUARE ?
			(float) (-2.0 * tile->slack * sqrt(square + FLT_MIN)) : -HUGE_VALF;
	}
	for (; i < TILE_ROWS; i++)
		lengths[i] = HUGE_VALF;
}

/*
 * Offers nrows rows to a query.  `products` has the products of these rows
 * with the query.  `squares` has the results of gv_cpu_lower_squares or, for
 * GV_IP, those of lower_lengths.
 */
static void
filter_query(const Tile *tile, int query, const float *rows, int nrows,
			 const uint64_t *ids, const float *squares, const float *products)
{
	const float *q = tile->queries + (size_t) query * tile->dims;
	float		limit = query_limit(tile, query);
	float		length = (float) sqrt(tile->squares[query]);
	float		scaled[TILE_ROWS];
	uint64_t	hits;
	int			i;

	if (tile->metric == GV_IP)
	{
		for (i = 0; i < TILE_ROWS; i++)
			scaled[i] = squares[i] * length;
		squares = scaled;
	}
	hits = gv_kernels->within(squares, products, limit);
	if (nrows < TILE_ROWS)
		hits &= (UINT64_C(1) << nrows) - 1;
	for (; hits != 0; hits &= hits - 1)
	{
		const float *row;
		float		score;

		i = __builtin_ctzll(hits);
		if (squares[i] - 2.0f * products[i] > limit)
			continue;
		row = rows + (size_t) i * tile->dims;
		score = tile->metric == GV_IP ? -gv_cpu_dot(q, row, tile->dims) :
			gv_cpu_sqdist(q, row, tile->dims);
		gv_topk_push(&tile->best[query], gv_score(score), ids[i]);
		limit = query_limit(tile, query);
	}
}

/* Offers nrows <= TILE_ROWS rows to the queries of the tile. */
static void
filter_tile(const Tile *tile, const float *rows, int nrows,
			const uint64_t *ids)
{
	float		products[TILE_QUERIES * TILE_ROWS];
	float		squares[TILE_ROWS];
	int			i;

	if (tile->metric == GV_IP)
		lower_lengths(tile, rows, nrows, squares);
	else
		gv_cpu_lower_squares(rows, nrows, tile->dims, squares);
	gv_cpu_products(tile->queries, tile->n, rows, nrows, tile->dims, true,
					products);
	for (i = 0; i < tile->n; i++)
		filter_query(tile, i, rows, nrows, ids, squares,
					 products + i * TILE_ROWS);
}

GvStatus
gv_exact(GvMetric metric, int32_t dims,
		 const float *queries /* [nqueries][dims] */ , int32_t nqueries,
		 const float *x /* [n][dims] */ , int64_t n,
		 const uint64_t *ids /* [n] */ , GvTopK *best /* [nqueries] */ ,
		 const GvStop *stop)
{
	GvPoll		poll = {stop, 0};
	int32_t		first;
	int64_t		row;
	int			i;

	GV_CALL(gv_engine_calls, gv_valid_metric(metric) && gv_valid_dims(dims) &&
			queries != NULL && x != NULL && n >= 1 && ids != NULL &&
			best != NULL && nqueries >= 1 && gv_valid_stop(stop));
	for (i = 0; i < nqueries; i++)
		if (!gv_valid_topk(&best[i]))
			return GV_INVALID;
	for (first = 0; first < nqueries; first += TILE_QUERIES)
	{
		Tile		tile = {.metric = metric, .dims = dims,
			.n = gv_at_most(nqueries - first, TILE_QUERIES),
			.slack = gv_cpu_slack(dims),
			.queries = queries + (size_t) first * dims,
		.best = best + first};

		for (i = 0; i < tile.n; i++)
		{
			const float *q = tile.queries + (size_t) i * dims;

			tile.squares[i] = gv_square(q, dims);
		}
		for (row = 0; row < n; row += TILE_ROWS)
		{
			int			nrows = gv_at_most(n - row, TILE_ROWS);

			if (gv_poll(&poll, (int64_t) tile.n * nrows * dims))
				return GV_CANCELED;
			filter_tile(&tile, x + row * dims, nrows, ids + row);
		}
	}
	return GV_OK;
}
