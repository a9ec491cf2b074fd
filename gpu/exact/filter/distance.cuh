/*
 * distance.cuh
 *		Distances in double, in the order of operations of gv_set_distance.
 *
 * Eight lanes, a team, take a pair of query and row: lane l has partial sum l,
 * of dimensions l, l + 8, ..., and the sums are added l + 4, l + 2, l + 1.  So
 * a lane's loads are 32 bytes side by side with its neighbors', and all that a
 * kernel has registers for are on their way at once.
 */
#ifndef GV_DISTANCE_CUH
#define GV_DISTANCE_CUH

#include <stdint.h>

#include "gpu/exact/filter/exact.cuh"

#define LANES			8		/* partial sums of gv_set_distance */
#define TEAMS			(GV_WARP / LANES)
#define AHEAD			8		/* loads in flight, of a row */

/* Partial sums of a team, in its first lane in the order that counts. */
static __device__ __forceinline__ double
add_lanes(double sum)
{
#pragma unroll
	for (int half = LANES / 2; half > 0; half /= 2)
		sum = __dadd_rn(sum, __shfl_down_sync(GV_FULL_WARP, sum, half, LANES));
	return __shfl_sync(GV_FULL_WARP, sum, 0, LANES);
}

/* Returns the sum of f(a[i], b[i]) in double. */
template <typename Term>
static __device__ __forceinline__ double
add_terms(const float *a, const float *b, int dims, const Term &term)
{
	double		sum = 0.0;

	for (int i = threadIdx.x % LANES; i < dims; i += AHEAD * LANES)
	{
		float		x[AHEAD] = {};
		float		y[AHEAD] = {};

#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (i + j * LANES < dims)
			{
				x[j] = a[i + j * LANES];
				y[j] = b[i + j * LANES];
			}
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (i + j * LANES < dims)
				sum = __dadd_rn(sum, term((double) x[j], (double) y[j]));
	}
	return add_lanes(sum);
}

static __device__ __forceinline__ double
dot(const float *a, const float *b, int dims)
{
	return add_terms(a, b, dims, [] (double x, double y)
	{
		return __dmul_rn(x, y);
	});
}

static __device__ __forceinline__ double
mean(const float *a, int dims)
{
	return __ddiv_rn(add_terms(a, a, dims, [] (double x, double)
	{
		return x;
	}), (double) dims);
}

static __device__ __forceinline__ double
centered_dot(const float *a, double a_mean, const float *b, double b_mean,
			int dims)
{
	return add_terms(a, b, dims, [=] (double x, double y)
	{
		return __dmul_rn(__dadd_rn(x, -a_mean), __dadd_rn(y, -b_mean));
	});
}

/* One minus a cosine, which is kept within -1 and 1. */
static __device__ __forceinline__ double
one_minus(double product, double squares)
{
	double		cosine = __ddiv_rn(product, __dsqrt_rn(squares));

	if (cosine > 1.0)
		cosine = 1.0;
	else if (cosine < -1.0)
		cosine = -1.0;
	return __dadd_rn(1.0, -cosine);
}

/* By all teams of a warp: gv_set_distance to the last bit, but of NaN. */
template <int METRIC>
static __device__ __forceinline__ double
distance_of(const float *a, const float *b, int dims)
{
	if (METRIC == GV_SET_L2)
		return __dsqrt_rn(add_terms(a, b, dims, [] (double x, double y)
		{
			double		diff = __dadd_rn(x, -y);

			return __dmul_rn(diff, diff);
		}));
	if (METRIC == GV_SET_IP)
		return -dot(a, b, dims);
	if (METRIC == GV_SET_COSINE)
		return one_minus(dot(a, b, dims),
						 __dmul_rn(dot(a, a, dims),
								   dot(b, b, dims)));

	double		a_mean = mean(a, dims);
	double		b_mean = mean(b, dims);

	double		a_square = centered_dot(a, a_mean, a, a_mean, dims);
	double		b_square = centered_dot(b, b_mean, b, b_mean, dims);

	return one_minus(centered_dot(a, a_mean, b, b_mean, dims),
					 __dmul_rn(a_square, b_square));
}

/* A pair that a team reranks. */
struct GvExactPair
{
	double		distance;
	uint32_t	row;
};

/*
 * By all teams of a warp: of query number `query` and a slot.  A query's own
 * row becomes a free place.
 */
template <int METRIC>
static __device__ __forceinline__ GvExactPair
gv_exact_rerank(const GvExactRows &rows, const GvExactQueries &queries,
				 int dims, int64_t position, int64_t query, uint32_t slot)
{
	int64_t		row = gv_exact_row(rows, slot);
	double		distance =
		distance_of<METRIC>(queries.d_queries + query * dims,
								   rows.d_rows + row * dims, dims);

	if (queries.d_self != NULL && queries.d_self[query] == position + row)
		return {GV_EXACT_NAN, GV_EXACT_NO_ROW};
	return {distance, (uint32_t) row};
}

#endif							/* GV_DISTANCE_CUH */
