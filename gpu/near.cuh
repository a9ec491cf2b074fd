/*
 * near.cuh
 *		A query's half copy, and its margin, which near.cu proves.
 */
#ifndef GV_NEAR_CUH
#define GV_NEAR_CUH

#include "select.cuh"
#include "gv_cuda.h"
#include "mma.cuh"

#define GV_NEAR_AHEAD		16	/* loads on their way, from the host perhaps */

static __device__ __forceinline__ float
gv_near_add(float sum)
{
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		sum += __shfl_xor_sync(GV_FULL_WARP, sum, half);
	return sum;
}

/* At least the length of a vector of up to 16,000 squares, added in fp32. */
static __device__ __forceinline__ float
gv_near_length(float square)
{
	return sqrtf(square) * 1.0001f + 1e-18f;
}

/* 2 eps, and infinite where that cannot be trusted; see near.cu. */
static __device__ __forceinline__ float
gv_near_margin(const GvCardModel &card, float query, float query_error)
{
	float		c = card.d_limits->length;
	float		c_error = card.d_limits->error;
	float		all = query + query_error + c + c_error;
	float		dot = query_error * (c + c_error) + query * c_error +
		(query + query_error) * (c + c_error) * (card.dims + 32) * 0x1p-22f;
	float		eps = (card.metric == GV_IP ? 1.0f : 2.0f) * dot +
		all * all * (card.dims / 16 + 64) * 0x1p-24f + 0x1p-100f;

	return eps < 1e30f ? 2.0f * 1.001f * eps : __int_as_float(0x7F800000);
}

/* By a warp: d_halves and d_margins of a query, from where it lies. */
static __device__ __forceinline__ void
gv_near_halve(const GvCardModel &card, const GvBatch &batch, int query,
			  const float *from)
{
	int			lane = threadIdx.x % GV_WARP;
	uint16_t   *to = batch.near.d_halves + (int64_t) query * card.half_dims;
	float		square = 0.0f;
	float		error = 0.0f;

	for (int first = lane; first < card.half_dims;
		 first += GV_NEAR_AHEAD * GV_WARP)
	{
		float		x[GV_NEAR_AHEAD];

#pragma unroll
		for (int i = 0; i < GV_NEAR_AHEAD; i++)
			x[i] = first + i * GV_WARP < card.dims ?
				from[first + i * GV_WARP] : 0.0f;
#pragma unroll
		for (int i = 0; i < GV_NEAR_AHEAD; i++)
		{
			uint16_t	half = gv_to_half(x[i]);
			float		diff = x[i] - gv_from_half(half);

			if (first + i * GV_WARP < card.half_dims)
				to[first + i * GV_WARP] = half;
			square += x[i] * x[i];
			error += diff * diff;
		}
	}
	square = gv_near_add(square);
	error = gv_near_add(error);
	if (lane == 0)
		batch.near.d_margins[query] =
			gv_near_margin(card, gv_near_length(square),
						   gv_near_length(error));
}

#endif							/* GV_NEAR_CUH */
