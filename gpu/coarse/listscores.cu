/*
 * listscores.cu
 *		Approximate scores of all lists for many queries: a matrix product of
 *		half-precision copies (gpu/product), with sums in fp32.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/product/product.cuh"

#define TILES	(GV_RUN / 8)

/*
 * A query's scores of a run of lists, of which each of four lanes has two in
 * every 8, to where they belong, if the query is there; all lanes of a warp
 * call this.  `to` is the place of the lane's first, `list` its list.  Two are
 * written at once where that is aligned: in a row that begins at an odd place
 * a lane's second and the next lane's first.
 */
static __device__ __forceinline__ void
put_run(const GvDeviceModel &model, float *to, int list, bool there, bool odd,
		const float2 (&scores)[TILES])
{
	int			lane = threadIdx.x % 4;
	float		after[TILES] = {};	/* each second; of odd nlists */

	if (model.nlists % 2 != 0)
	{
#pragma unroll
		for (int j = 0; j < TILES; j++)
			after[j] = __shfl_sync(GV_FULL_WARP,
								   lane > 0 || j + 1 == TILES ?
								   scores[j].x : scores[j + 1].x, lane + 1, 4);
	}
	if (!there)
		return;
	if (list - lane * 2 + GV_RUN > model.nlists)
	{
#pragma unroll
		for (int j = 0; j < TILES; j++)
		{
			if (list + j * 8 < model.nlists)
				to[j * 8] = scores[j].x;
			if (list + j * 8 + 1 < model.nlists)
				to[j * 8 + 1] = scores[j].y;
		}
		return;
	}
	if (!odd)
	{
#pragma unroll
		for (int j = 0; j < TILES; j++)
			*(float2 *) (to + j * 8) = scores[j];
		return;
	}
	if (lane == 0)
		to[0] = scores[0].x;
#pragma unroll
	for (int j = 0; j < TILES; j++)
		if (lane < 3 || j + 1 < TILES)
			*(float2 *) (to + j * 8 + 1) = make_float2(scores[j].y, after[j]);
		else
			to[j * 8 + 1] = scores[j].y;
}

/*
 * Sums of queries and lists become approximate scores, ALL of which go to
 * memory or none, and the least of every run, which do: see
 * gpu/product/become.cuh.  Beyond the last list scores are infinite.
 */
template <bool ALL>
struct ListScores : GvNoRow
{
	GvDeviceModel model;
	GvBatch		batch;

	struct Columns
	{
		float2		squares[TILES];
	};

	__device__ __forceinline__ float
	square(int list) const
	{
		/* such a load may be moved before what is stored of the run before */
		return list < model.nlists ? __ldg(&model.d_squares[list]) :
			__int_as_float(0x7F800000);
	}

	__device__ __forceinline__ Columns
	columns(int run) const
	{
		int			mine = run * GV_RUN + threadIdx.x % 4 * 2;
		Columns		found;

#pragma unroll
		for (int j = 0; j < TILES; j++)
			found.squares[j] = make_float2(square(mine + j * 8),
										   square(mine + j * 8 + 1));
		return found;
	}

	__device__ __forceinline__ void
	take(const Columns &of, Row *, int q, int run,
		 const float2 (&sums)[TILES]) const
	{
		int			mine = run * GV_RUN + threadIdx.x % 4 * 2;
		int			nruns = gv_nruns(model.nlists);
		float		weight = model.metric == GV_IP ? -1.0f : -2.0f;
		float2		scores[TILES];
		float		least = __int_as_float(0x7F800000);

#pragma unroll
		for (int j = 0; j < TILES; j++)
		{
			/* the product is exact */
			scores[j] = make_float2(fmaf(weight, sums[j].x, of.squares[j].x),
									fmaf(weight, sums[j].y, of.squares[j].y));
			least = fminf(least, fminf(scores[j].x, scores[j].y));
		}
		least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 1));
		least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 2));
		if (ALL)
			put_run(model, batch.d_coarse + (int64_t) q * model.nlists + mine,
					mine, q < batch.n, (q & model.nlists & 1) != 0, scores);
		if (threadIdx.x % 4 == 0 && q < batch.n && run < nruns)
			batch.approx.d_least[(int64_t) q * nruns + run] = least;
	}
};

/* d_coarse, approximate, if it is to be made, and d_least of a batch. */
GvStatus
gv_gpu_list_scores(const GvDeviceModel *model, const GvBatch *batch,
				   const GvSearcher *searcher)
{
	GvMatmul	matmul =
		{batch->approx.d_half_queries, batch->n, model->d_half_centroids,
	model->nlists, model->half_dims};
	GvMatmulContext by = {searcher->blas, searcher->hopper, searcher->nsms,
	batch->overlap, searcher->stream};

	if (gv_gpu_least_alone(model, batch))
		return gv_gpu_matmul<false>(&by, &matmul,
									 ListScores<false> {{}, *model, *batch});
	return gv_gpu_matmul<false>(&by, &matmul,
								 ListScores<true> {{}, *model, *batch});
}
