/*
 * score.cuh
 *		One list score, by four lanes: gv_coarse's to the last bit.
 *
 * Dimension i goes to partial sum i mod 16; lane l of the four has sums 4l ..
 * 4l + 3, so that it reads 16 bytes at once.
 */
#ifndef GV_SCORE_CUH
#define GV_SCORE_CUH

#include "gv_cuda.h"

#define GV_QUAD			4		/* lanes that share a score */
#define GV_SUMS			16		/* partial sums of a score */

template <bool PRODUCT>
static __device__ __forceinline__ float
gv_add_term(float sum, float x, float y)
{
	float		diff = PRODUCT ? 0.0f : __fsub_rn(x, y);

	return __fadd_rn(sum, PRODUCT ? __fmul_rn(x, y) : __fmul_rn(diff, diff));
}

/*
 * The score of centroid [dims] for query [dims]; lane 0 of the four has it.
 * All lanes of a warp call it together.
 */
template <bool PRODUCT>
static __device__ __forceinline__ float
gv_quad_score(const float *query, const float *centroid, int dims)
{
	int			lane = threadIdx.x % GV_QUAD;
	float		sums[4] = {};
	float		sum;

	if (dims % 4 == 0)
	{
		/* rows begin at multiples of 16 bytes */
#pragma unroll 8
		for (int i = 4 * lane; i < dims; i += GV_SUMS)
		{
			float4		x = *(const float4 *) (query + i);
			float4		y = *(const float4 *) (centroid + i);

			sums[0] = gv_add_term<PRODUCT>(sums[0], x.x, y.x);
			sums[1] = gv_add_term<PRODUCT>(sums[1], x.y, y.y);
			sums[2] = gv_add_term<PRODUCT>(sums[2], x.z, y.z);
			sums[3] = gv_add_term<PRODUCT>(sums[3], x.w, y.w);
		}
	}
	else
		for (int i = 4 * lane; i < dims; i += GV_SUMS)
#pragma unroll
			for (int j = 0; j < 4; j++)
				if (i + j < dims)
					sums[j] = gv_add_term<PRODUCT>(sums[j], query[i + j],
												   centroid[i + j]);

	/* sums 8 apart are two lanes apart, sums 4 apart one */
#pragma unroll
	for (int apart = 2; apart > 0; apart /= 2)
#pragma unroll
		for (int j = 0; j < 4; j++)
			sums[j] = __fadd_rn(sums[j], __shfl_down_sync(0xFFFFFFFFu, sums[j],
														  apart, GV_QUAD));
	sum = __fadd_rn(__fadd_rn(sums[0], sums[2]), __fadd_rn(sums[1], sums[3]));
	return gv_card_score(PRODUCT ? -sum : sum);
}

#endif							/* GV_SCORE_CUH */
