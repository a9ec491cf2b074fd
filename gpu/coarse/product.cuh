/*
 * product.cuh
 *		What becomes of the sums of a matrix product of queries and lists, the
 *		same for all cards (product.cu, hopperproduct.cu).
 */
#ifndef GV_PRODUCT_CUH
#define GV_PRODUCT_CUH

#include <stdint.h>

#include "gpu/common/gv_batch.h"
#include "gpu/common/warpselect.cuh"

#define GV_RUN_TILES	(GV_RUN / 8)

/*
 * A query's scores of a run of lists, of which each of four lanes has two in
 * every 8, to where they belong, if the query is there; all lanes of a warp
 * call this.  `to` is the place of the lane's first, `list` its list.  Two are
 * written at once where that is aligned: in a row that begins at an odd place
 * a lane's second and the next lane's first.
 */
static __device__ __forceinline__ void
gv_put_run(const GvCardModel &card, float *to, int list, bool there, bool odd,
		   const float2 (&scores)[GV_RUN_TILES])
{
	int			lane = threadIdx.x % 4;
	float		after[GV_RUN_TILES] = {};	/* each second; of odd nlists */

	if (card.nlists % 2 != 0)
	{
#pragma unroll
		for (int j = 0; j < GV_RUN_TILES; j++)
			after[j] = __shfl_sync(GV_FULL_WARP,
								   lane > 0 || j + 1 == GV_RUN_TILES ?
								   scores[j].x : scores[j + 1].x, lane + 1, 4);
	}
	if (!there)
		return;
	if (list - lane * 2 + GV_RUN > card.nlists)
	{
#pragma unroll
		for (int j = 0; j < GV_RUN_TILES; j++)
		{
			if (list + j * 8 < card.nlists)
				to[j * 8] = scores[j].x;
			if (list + j * 8 + 1 < card.nlists)
				to[j * 8 + 1] = scores[j].y;
		}
		return;
	}
	if (!odd)
	{
#pragma unroll
		for (int j = 0; j < GV_RUN_TILES; j++)
			*(float2 *) (to + j * 8) = scores[j];
		return;
	}
	if (lane == 0)
		to[0] = scores[0].x;
#pragma unroll
	for (int j = 0; j < GV_RUN_TILES; j++)
		if (lane < 3 || j + 1 < GV_RUN_TILES)
			*(float2 *) (to + j * 8 + 1) = make_float2(scores[j].y, after[j]);
		else
			to[j * 8 + 1] = scores[j].y;
}

/*
 * A warp's sums [QM], [QM * 16 queries][NTILES * 8 lists] as mma.cuh has D, to
 * scores, and the least of every run of 32 lists.  Beyond the last list scores
 * are infinite.
 */
template <int QM, int NTILES>
static __device__ __forceinline__ void
gv_put_sums(const GvCardModel &card, const GvBatch &batch,
			float (*sums)[NTILES][4], int query, int list)
{
	constexpr int TILES = GV_RUN_TILES;
	int			lane = threadIdx.x % GV_WARP;
	int			nruns = gv_nruns(card.nlists);
	float		infinite = __int_as_float(0x7F800000);
	float		weight = card.metric == GV_IP ? -1.0f : -2.0f;

#pragma unroll
	for (int r = 0; r < NTILES / TILES; r++)
	{
		int			run = list / GV_RUN + r;
		int			mine = run * GV_RUN + lane % 4 * 2; /* and the one after */
		float		squares[TILES][2];

#pragma unroll
		for (int j = 0; j < TILES; j++)
#pragma unroll
			for (int c = 0; c < 2; c++)
				squares[j][c] = mine + j * 8 + c < card.nlists ?
					card.d_squares[mine + j * 8 + c] : infinite;
#pragma unroll
		for (int i = 0; i < 2 * QM; i++)
		{
			int			q = query + i * 8 + lane / 4;
			float	   *to = batch.d_coarse + (int64_t) q * card.nlists + mine;
			float2		scores[TILES];
			float		least = infinite;

#pragma unroll
			for (int j = 0; j < TILES; j++)
			{
				float	   *pair = sums[i / 2][r * TILES + j] + i % 2 * 2;

				/* the product is exact */
				scores[j] = make_float2(fmaf(weight, pair[0], squares[j][0]),
										fmaf(weight, pair[1], squares[j][1]));
				least = fminf(least, fminf(scores[j].x, scores[j].y));
			}
			least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 1));
			least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 2));
			gv_put_run(card, to, mine, q < batch.n, (q & card.nlists & 1) != 0,
					   scores);
			if (lane % 4 == 0 && q < batch.n && run < nruns)
				batch.approx.d_least[(int64_t) q * nruns + run] = least;
		}
	}
}

#endif							/* GV_PRODUCT_CUH */
