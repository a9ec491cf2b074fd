/*
 * half.cuh
 *		Half copies of vectors, and what rounding did to them, measured: what
 *		the proofs of all filters begin with.
 */
#ifndef GV_HALF_CUH
#define GV_HALF_CUH

#include <stdint.h>
#include <cuda_fp16.h>

#include "gpu/common/warpselect.cuh"

#define GV_MOST_HALF	65504.0f

/* The bits of the nearest half, and back. */
static __device__ __forceinline__ uint16_t
gv_to_half(float value)
{
	return __half_as_ushort(__float2half_rn(value));
}

static __device__ __forceinline__ float
gv_from_half(uint16_t bits)
{
	return __half2float(__ushort_as_half(bits));
}

/* The sum of what all lanes bring, in all of them. */
template <typename Sum>
static __device__ __forceinline__ Sum
gv_add_warp(Sum sum)
{
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		sum += __shfl_xor_sync(GV_FULL_WARP, sum, half);
	return sum;
}

/* |v|^2 and |v - v'|^2 of a vector and its half copy, as far as added. */
template <typename Sum>
struct GvHalfRounding
{
	Sum			square;
	Sum			error;

	/* A dimension more, and its half. */
	template <bool FINITE = false>
	__device__ __forceinline__ uint16_t
	round(Sum x)
	{
		float		held = FINITE ?
			fminf(fmaxf((float) x, -GV_MOST_HALF), GV_MOST_HALF) : (float) x;
		uint16_t	half = gv_to_half(held);
		Sum			diff = x - (Sum) gv_from_half(half);

		square += x * x;
		error += diff * diff;
		return half;
	}
};

/*
 * By a warp: the half copy [half_dims] of v, of which v(d) is a dimension, or
 * 0 beyond the last.  FINITE: all of it is, so that products are.  Returns, in
 * all lanes, the rounding of all dimensions.
 */
template <typename Sum, bool FINITE = false, typename Vector>
static __device__ __forceinline__ GvHalfRounding<Sum>
gv_to_half_vector(const Vector &v, int half_dims, uint16_t *half_vector)
{
	constexpr int AHEAD = 32 / (int) sizeof(Sum);	/* on their way */
	GvHalfRounding<Sum> rounding = {};

	for (int first = threadIdx.x % GV_WARP; first < half_dims;
		 first += AHEAD * GV_WARP)
	{
		Sum			x[AHEAD];

#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			x[i] = v(first + i * GV_WARP);
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
		{
			uint16_t	half = rounding.template round<FINITE>(x[i]);

			if (first + i * GV_WARP < half_dims)
				half_vector[first + i * GV_WARP] = half;
		}
	}
	return {gv_add_warp(rounding.square), gv_add_warp(rounding.error)};
}

#endif							/* GV_HALF_CUH */
