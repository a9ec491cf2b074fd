/*
 * assign.h
 *		The blocked matrix product, and the nearest centroid of each of many
 *		vectors.
 */
#ifndef GV_ASSIGN_H
#define GV_ASSIGN_H

#include <math.h>

#include "cpu/simd/kernels.h"

#define GV_CPU_TILE_ROWS	128

/*
 * Computes a tile of the blocked product: products [nrows][GV_CPU_TILE_CENTS]
 * of each of the vectors x [nrows][dims], nrows <= GV_CPU_TILE_ROWS, with each
 * of centroids [ncents][dims], ncents <= GV_CPU_TILE_CENTS.  The error of a
 * product is below (dims / 4 + 6) 2^-24 |x| |c| or, if `estimates` is true,
 * below gv_estimate_error(dims) |x| |c|.
 */
extern void gv_cpu_products(const float *x, int nrows, const float *centroids,
							int ncents, int32_t dims, bool estimates,
							float *products);

/*
 * Vectors whose squared length is at least this are not filtered, because sums
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
 * Returns the limit of a filter for a vector x with the squared length
 * `square`.  A centroid c is farther from x than the squared distance `best`
 * if |c|^2 (1 - 2 slack) - 2 <x, c> is above the limit.
 */
static inline float
gv_cpu_limit(double best, double square, double slack)
{
	if (!(best < GV_CPU_HUGE_SQUARE && square < GV_CPU_HUGE_SQUARE))
		return HUGE_VALF;
	return (float) (best * (1.0 + 2.0 * slack) -
					square * (1.0 - 2.0 * slack) + FLT_MIN);
}

/*
 * Computes |c|^2 (1 - 2 slack) of centroids [ncents][dims], ncents <=
 * GV_CPU_TILE_CENTS, into squares [GV_CPU_TILE_CENTS].  The square of a
 * centroid that the filter must let through is -HUGE_VALF.  Squares from
 * element ncents on are HUGE_VALF.
 */
extern void gv_cpu_lower_squares(const float *centroids, int ncents,
								 int32_t dims, float *squares);

/*
 * Returns the number of floats in a panel, which consists of slices
 * [GV_CPU_SLICE_DIMS][GV_CPU_TILE_CENTS].
 */
static inline size_t
gv_cpu_panel(int32_t dims)
{
	int32_t		n = (dims + GV_CPU_SLICE_DIMS - 1) / GV_CPU_SLICE_DIMS;

	return (size_t) n * GV_CPU_SLICE_DIMS * GV_CPU_TILE_CENTS;
}

/*
 * gv_cpu_pack copies centroids [ncents][dims], ncents <= GV_CPU_TILE_CENTS, to
 * a panel [gv_cpu_panel(dims)], so that the values of one dimension are side
 * by side.  Zeros fill the rest of the panel.  gv_cpu_multiply computes
 * estimates as gv_cpu_products does, but from a panel.
 */
extern void gv_cpu_pack(const float *centroids, int32_t dims, int ncents,
						float *panel);
extern void gv_cpu_multiply(const float *x, int32_t dims, int nrows,
							const float *panel, float *products);

/*
 * Like gv_assign, but does not check the arguments.  On entry, nearest [n] has
 * an estimate of each vector's nearest centroid, or -1.  Better estimates make
 * the function faster, and do not change the result.
 */
extern GvStatus gv_cpu_assign(int32_t dims, const float *centroids, int32_t k,
							  const float *x, int64_t n, int32_t *nearest,
							  float *sqdist, const GvStop *stop);

#endif							/* GV_ASSIGN_H */
