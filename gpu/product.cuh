/*
 * product.cuh
 *		What becomes of the sums of a matrix product of queries and lists, the
 *		same for all cards (product.cu, hopper.cu).
 */
#ifndef GV_PRODUCT_CUH
#define GV_PRODUCT_CUH

#include "select.cuh"
#include "gv_cuda.h"

/*
 * Scores of a query and two lists side by side, of which perhaps not both are,
 * to where they belong.
 */
static __device__ __forceinline__ void
gv_put_pair(const GvCardModel &card, float *to, int list, float2 pair)
{
	if (list < card.nlists)
		to[0] = pair.x;
	if (list + 1 < card.nlists)
		to[1] = pair.y;
}

/*
 * A warp's sums, [QM * 16 queries][NTILES * 8 lists] as mma.cuh has D, to
 * scores, and the least of every run of 32 lists.  Beyond the last list scores
 * are infinite.
 */
template <int QM, int NTILES>
static __device__ __forceinline__ void
gv_put_sums(const GvCardModel &card, const GvBatch &batch,
			float (&sums)[QM][NTILES][4], int query, int list)
{
	constexpr int TILES = GV_RUN / 8;	/* of a run */
	int			lane = threadIdx.x % GV_WARP;
	int			nruns = gv_nruns(card.nlists);
	float		infinite = __int_as_float(0x7F800000);
	float		weight = card.metric == GV_IP ? -1.0f : -2.0f;

#pragma unroll
	for (int r = 0; r < NTILES / TILES; r++)
	{
		int			run = list / GV_RUN + r;
		int			mine = run * GV_RUN + lane % 4 * 2; /* and the one after */
		bool		aligned = card.nlists % 2 == 0 &&
			(run + 1) * GV_RUN <= card.nlists;
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
			if (q >= batch.n)
				continue;
#pragma unroll
			for (int j = 0; j < TILES; j++)
				if (aligned)
					*(float2 *) (to + j * 8) = scores[j];
				else
					gv_put_pair(card, to + j * 8, mine + j * 8, scores[j]);
			if (lane % 4 == 0 && run < nruns)
				batch.near.d_least[(int64_t) q * nruns + run] = least;
		}
	}
}

#endif							/* GV_PRODUCT_CUH */
