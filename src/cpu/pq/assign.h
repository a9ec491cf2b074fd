/*
 * assign.h
 *		The blocked matrix product, and the nearest centroid of each of many
 *		vectors.
 */
#ifndef GV_ASSIGN_H
#define GV_ASSIGN_H

#include "cpu/simd/kernels.h"

#define GV_CPU_TILE_ROWS	128

/*
 * Computes a tile of the blocked product: products [nrows][GV_CPU_TILE_CENTS]
 * = <x, c> of x [nrows][dims], nrows <= GV_CPU_TILE_ROWS, and centroids
 * [ncents][dims], ncents <= GV_CPU_TILE_CENTS.  A product's error is below
 * (dims / 4 + 6) 2^-24 |x| |c|.
 */
extern void gv_cpu_products(const float *x, int nrows, const float *centroids,
							int ncents, int32_t dims, float *products);

/*
 * Like gv_cpu_products, but with estimates, whose error is below
 * gv_estimate_error(dims) |x| |c|.
 */
extern void gv_cpu_estimates(const float *x, int nrows,
							 const float *centroids, int ncents, int32_t dims,
							 float *products);

/*
 * Vectors with squared lengths from here on are not filtered, because sums
 * might overflow.
 */
#define GV_CPU_HUGE_SQUARE	1e36

/* Returns the relative error for which a filter allows (see kmeans.c). */
static inline double
gv_cpu_slack(int32_t dims)
{
	return (dims + 64) / 16777216.0;
}

/*
 * Computes |c|^2 (1 - 2 slack) of centroids [ncents][dims], ncents <=
 * GV_CPU_TILE_CENTS, into squares [GV_CPU_TILE_CENTS].  A centroid that the
 * filter must let through gets -HUGE_VALF.  The places from ncents on get
 * HUGE_VALF.
 */
extern void gv_cpu_lower_squares(const float *centroids, int ncents,
								 int32_t dims, float *squares);

/*
 * Copies dimensions first .. first + len - 1 of centroids [ncents][dims],
 * ncents <= GV_CPU_TILE_CENTS, to panel
 * [GV_CPU_SLICE_DIMS][GV_CPU_TILE_CENTS], so that the values of one dimension
 * are side by side.  The rest of the panel is 0.
 */
extern void gv_cpu_pack(const float *centroids, int32_t dims, int ncents,
						int32_t first, int32_t len, float *panel);

/* gv_assign without its argument checks, for use within another operation. */
extern GvStatus gv_cpu_assign(int32_t dims, const float *centroids, int32_t k,
							  const float *x, int64_t n, int32_t *nearest,
							  float *sqdist, const GvStop *stop);

/*
 * Like gv_cpu_assign, but faster, because nearest [n] has estimates of the
 * answer when it is called.  An estimate of -1 means that there is none.
 */

#endif							/* GV_ASSIGN_H */
