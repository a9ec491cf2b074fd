/*
 * gv_level.h
 *		Kernels that all levels have in common: four rows at a time, a query's
 *		table, and the table of kernels.
 *
 * Included once, at the end of a level's file, because functions cannot be
 * shared between levels.  The file defines compare_some, residual_products,
 * compare64, multiply_some, estimate_some, within, below, nearest_word,
 * find_entries, find_range, put_bytes, sum_some, gather, filter,
 * record_squares, record_products, half_squares, half_products,
 * compare_abbrevs, compare_values and find_abbrevs, and these macros:
 *	LEVEL				the attribute of the level's functions
 *	KERNELS				the name of the level's table
 *	AT_ONCE				centroids that multiply_some handles in one call
 *	ESTIMATE_AT_ONCE	centroids that estimate_some handles in one call
 *	SUM_AT_ONCE			postings that sum_some adds up in one call, at most; at
 *						least GV_BLOCK
 */
#include "cpu/simd/gv_images.h"
#include "cpu/simd/kernels.h"

static inline LEVEL void
compare(const float *q, const float *rows, int32_t n, int32_t dims,
		bool product, float *out)
{
	int32_t		i;

	for (i = 0; i + 4 <= n; i += 4)
		compare_some(q, rows + (size_t) i * dims, 4, dims, product, out + i);
	for (; i < n; i++)
		compare_some(q, rows + (size_t) i * dims, 1, dims, product, out + i);
}

static LEVEL void
dots(const float *q, const float *rows, int32_t n, int32_t dims,
	 float *products)
{
	compare(q, rows, n, dims, true, products);
}

static LEVEL void
sqdists(const float *q, const float *rows, int32_t n, int32_t dims,
		float *squares)
{
	compare(q, rows, n, dims, false, squares);
}

static LEVEL double
dot64(const float *a, const float *b, int32_t dims)
{
	return compare64(a, b, dims, true);
}

static LEVEL double
sqdist64(const float *a, const float *b, int32_t dims)
{
	return compare64(a, b, dims, false);
}

static LEVEL void
multiply(const float *x, int32_t stride, int nrows, int32_t len,
		 const float *panel, float *products)
{
	int			c;
	int			r;

	for (c = 0; c < GV_CPU_TILE_CENTS; c += AT_ONCE)
	{
		float	   *to = products + c;

		for (r = 0; r + 4 <= nrows; r += 4)
			multiply_some(x + (size_t) r * stride, stride, 4, len, panel + c,
						  to + r * GV_CPU_TILE_CENTS);
		for (; r < nrows; r++)
			multiply_some(x + (size_t) r * stride, stride, 1, len, panel + c,
						  to + r * GV_CPU_TILE_CENTS);
	}
}

static LEVEL void
estimate(const float *x, int32_t stride, int nrows, int32_t len,
		 const float *panel, float *products)
{
	int			c;
	int			r;

	for (c = 0; c < GV_CPU_TILE_CENTS; c += ESTIMATE_AT_ONCE)
	{
		float	   *to = products + c;

		for (r = 0; r + 4 <= nrows; r += 4)
			estimate_some(x + (size_t) r * stride, stride, 4, len, panel + c,
						  to + r * GV_CPU_TILE_CENTS);
		for (; r < nrows; r++)
			estimate_some(x + (size_t) r * stride, stride, 1, len, panel + c,
						  to + r * GV_CPU_TILE_CENTS);
	}
}

static LEVEL void
add_distances(const float *x, size_t stride, int nrows, const float *words,
			  int32_t dims, int32_t len, float *dist)
{
	gv_add_distances(x, stride, nrows, words, dims, len, dist);
}

static LEVEL void
nearest_words(const float *dist, int nrows, float *best, int32_t *code)
{
	gv_nearest_words(dist, nrows, best, code);
}

static LEVEL void
sum_postings(const float *table, int32_t m, const uint8_t *codes,
			 int32_t stride, int32_t n, float *sums)
{
	int32_t		i;

	for (i = 0; i + SUM_AT_ONCE <= n; i += SUM_AT_ONCE)
		sum_some(table, m, codes + i, stride, SUM_AT_ONCE, sums + i);
	for (; i < n; i += GV_BLOCK)
		sum_some(table, m, codes + i, stride, GV_BLOCK, sums + i);
}

#include "cpu/simd/table.h"

const GvKernels KERNELS = {
	.filters = true,
	.dots = dots,
	.sqdists = sqdists,
	.residual_products = residual_products,
	.dot64 = dot64,
	.sqdist64 = sqdist64,
	.multiply = multiply,
	.estimate = estimate,
	.within = within,
	.below = below,
	.add_distances = add_distances,
	.nearest_words = nearest_words,
	.nearest_word = nearest_word,
	.table = make_table,
	.sum_postings = sum_postings,
	.gather = gather,
	.filter = filter,
	.match = match,
	.record_squares = record_squares,
	.record_products = record_products,
	.half_squares = half_squares,
	.half_products = half_products,
};
