/*
 * approximate.cuh
 *		A query's half copy, and its margin, which approximate.cu proves: how far the
 *		approximate score of one of the nearest lists may lie behind that of
 *		another list; infinite: nobody knows.
 */
#ifndef GV_APPROXIMATE_CUH
#define GV_APPROXIMATE_CUH

#include <stdint.h>

#include "gpu/common/gv_batch.h"
#include "gpu/common/mma.cuh"
#include "gpu/common/warpselect.cuh"

#define GV_APPROX_AHEAD		16	/* loads on their way */

static __device__ __forceinline__ float
gv_approx_add(float sum)
{
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		sum += __shfl_xor_sync(GV_FULL_WARP, sum, half);
	return sum;
}

/* At least the length of a vector of up to 16,000 squares, added in fp32. */
static __device__ __forceinline__ float
gv_approx_length(float square)
{
	return sqrtf(square) * 1.0001f + 1e-18f;
}

/* 2 eps, and infinite where that cannot be trusted; see approximate.cu. */
static __device__ __forceinline__ float
gv_approx_margin(const GvCardModel &card, float query, float query_error)
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

/* Round a dimension, and add its squares. */
static __device__ __forceinline__ uint16_t
gv_approx_round(float x, float2 *squares)
{
	uint16_t	half = gv_to_half(x);
	float		diff = x - gv_from_half(half);

	squares->x += x * x;
	squares->y += diff * diff;
	return half;
}

/* By a warp: the margin of a query, in all lanes. */
static __device__ __forceinline__ float
gv_approx_margin_of(const GvCardModel &card, const GvBatch &batch,
						 int query)
{
	const float2 *parts = batch.approx.d_squares +
		(int64_t) query * batch.approx.nparts;
	float2		squares = {0.0f, 0.0f};

	for (int p = threadIdx.x % GV_WARP; p < batch.approx.nparts; p += GV_WARP)
	{
		squares.x += parts[p].x;
		squares.y += parts[p].y;
	}
	return gv_approx_margin(card,
								 gv_approx_length(gv_approx_add(squares.x)),
						  gv_approx_length(gv_approx_add(squares.y)));
}

/* By a warp: d_halves and d_squares of a query in one part. */
static __device__ __forceinline__ void
gv_approx_halve(const GvCardModel &card, const GvBatch &batch, int query)
{
	int			lane = threadIdx.x % GV_WARP;
	uint16_t   *to = batch.approx.d_halves + (int64_t) query * card.half_dims;
	const float *from = batch.d_queries + (int64_t) query * card.dims;
	float2		squares = {0.0f, 0.0f};

	for (int first = lane; first < card.half_dims;
		 first += GV_APPROX_AHEAD * GV_WARP)
	{
		float		x[GV_APPROX_AHEAD];

#pragma unroll
		for (int i = 0; i < GV_APPROX_AHEAD; i++)
			x[i] = first + i * GV_WARP < card.dims ?
				from[first + i * GV_WARP] : 0.0f;
#pragma unroll
		for (int i = 0; i < GV_APPROX_AHEAD; i++)
		{
			uint16_t	half = gv_approx_round(x[i], &squares);

			if (first + i * GV_WARP < card.half_dims)
				to[first + i * GV_WARP] = half;
		}
	}
	squares = {gv_approx_add(squares.x), gv_approx_add(squares.y)};
	if (lane == 0)
		batch.approx.d_squares[query] = squares;
}

#endif							/* GV_APPROXIMATE_CUH */
