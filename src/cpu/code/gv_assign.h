/*
 * gv_assign.h
 *		The blocked product, and the nearest centroid of each of many vectors.
 */
#ifndef GV_ASSIGN_H
#define GV_ASSIGN_H

#include "cpu/simd/gv_kernels.h"

#define GV_CPU_TILE_ROWS	128

/*
 * A tile of the blocked product: products [nrows][GV_CPU_TILE_CENTS] = <x, c>
 * of x [nrows][dims], nrows <= GV_CPU_TILE_ROWS, and centroids
 * [ncents][dims], ncents <= GV_CPU_TILE_CENTS.  A product's error is below
 * (dims / 4 + 6) 2^-24 |x| |c|.
 */
extern void gv_cpu_products(const float *x, int nrows, const float *centroids,
							int ncents, int32_t dims, float *products);

/* The same by estimates: an error below gv_estimate_error (dims) |x| |c|. */
extern void gv_cpu_estimates(const float *x, int nrows,
							 const float *centroids, int ncents, int32_t dims,
							 float *products);

/* Squared lengths from here on are not filtered: sums might overflow. */
#define GV_CPU_HUGE_SQUARE	1e36

/* How much a filter allows for: see assign.c. */
static inline double
gv_cpu_slack(int32_t dims)
{
	return (dims + 64) / 16777216.0;
}

/*
 * |c|^2 (1 - 2 slack) of ncents <= GV_CPU_TILE_CENTS centroids [ncents][dims]
 * into squares [GV_CPU_TILE_CENTS]; what is not to be filtered is infinitely
 * near, and what is missing infinitely far.
 */
extern void gv_cpu_lower_squares(const float *centroids, int ncents,
								 int32_t dims, float *squares);

/*
 * Copy dimensions first .. first + len - 1 of ncents centroids [ncents][dims],
 * ncents <= GV_CPU_TILE_CENTS, so that a dimension's values lie side by side:
 * panel [GV_CPU_SLICE_DIMS][GV_CPU_TILE_CENTS], where what is missing is 0.
 */
extern void gv_cpu_pack(const float *centroids, int32_t dims, int ncents,
						int32_t first, int32_t len, float *panel);

/* gv_assign without its checks: as a step of another operation. */
extern GvStatus gv_cpu_assign(int32_t dims, const float *centroids, int32_t k,
							  const float *x, int64_t n, int32_t *nearest,
							  float *sqdist, const GvStop *stop);

/* The same, faster: nearest [n] has estimates of the answer, or -1. */
extern GvStatus gv_cpu_assign_estimated(int32_t dims, const float *centroids,
										int32_t k, const float *x, int64_t n,
										int32_t *nearest, float *sqdist,
										const GvStop *stop);

#endif							/* GV_ASSIGN_H */
