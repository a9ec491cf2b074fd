/*
 * approximate.cuh
 *		A query's margin, which approximate.cu proves: how far the approximate
 *		score of one of the nearest lists may lie behind that of another list;
 *		infinite: it is not known.
 */
#ifndef GV_APPROXIMATE_CUH
#define GV_APPROXIMATE_CUH

#include <stdint.h>

#include "gpu/common/gv_batch.h"
#include "gpu/common/half.cuh"

/* At least the length of a vector of up to 16,000 squares, added in fp32. */
static __device__ __forceinline__ float
gv_approx_length(float square)
{
	return sqrtf(square) * 1.0001f + 1e-18f;
}

/* 2 eps, and infinite where that cannot be trusted; see approximate.cu. */
static __device__ __forceinline__ float
gv_approx_margin(const GvDeviceModel &model, float query, float query_error)
{
	float		c = model.d_limits->length;
	float		c_error = model.d_limits->error;
	float		all = query + query_error + c + c_error;
	float		dot = query_error * (c + c_error) + query * c_error +
		(query + query_error) * (c + c_error) * (model.dims + 32) * 0x1p-22f;
	float		eps = (model.metric == GV_IP ? 1.0f : 2.0f) * dot +
		all * all * (model.dims / 16 + 64) * 0x1p-24f + 0x1p-100f;

	return eps < 1e30f ? 2.0f * 1.001f * eps : __int_as_float(0x7F800000);
}

/* By a warp: the margin of a query, in all lanes. */
static __device__ __forceinline__ float
gv_approx_margin_of(const GvDeviceModel &model, const GvBatch &batch,
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
	return gv_approx_margin(model, gv_approx_length(gv_add_warp(squares.x)),
							gv_approx_length(gv_add_warp(squares.y)));
}

#endif							/* GV_APPROXIMATE_CUH */
