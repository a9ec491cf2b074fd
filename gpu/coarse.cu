/*
 * coarse.cu
 *		The list scores of a batch of queries: distances to all centroids.
 *
 * Scores are gv_coarse's to the last bit: dimension i goes to partial sum
 * i mod 16, and half a warp has one lane for each partial sum.  Its lanes then
 * read 16 neighbouring dimensions of a centroid at a time.
 */
#include "select.cuh"
#include "gv_cuda.h"

#define LANES			16		/* partial sums of a score */
#define THREADS			256
#define TEAMS			(THREADS / LANES)	/* half warps */
#define SLICE			512		/* dimensions in shared memory at a time */

/*
 * A team takes CENTROIDS centroids and QUERIES queries: every value it loads
 * serves several products.  Block (x, y) has the centroids from
 * x * TEAMS * CENTROIDS on and the queries from y * QUERIES on.
 * Shared: queries [QUERIES][SLICE].
 */
template <int CENTROIDS, int QUERIES, bool PRODUCT>
static __global__ void __launch_bounds__(THREADS)
coarse_kernel(GvCardModel card, GvBatch batch)
{
	__shared__ float shared[QUERIES][SLICE];
	int			lane = threadIdx.x % LANES;
	int			first = (blockIdx.x * TEAMS + threadIdx.x / LANES) * CENTROIDS;
	int			query = blockIdx.y * QUERIES;
	float		sums[CENTROIDS][QUERIES] = {};

	for (int start = 0; start < card.dims; start += SLICE)
	{
		int			ndims = min(SLICE, card.dims - start);

		__syncthreads();
		for (int q = 0; q < QUERIES; q++)
			for (int i = threadIdx.x; i < ndims; i += THREADS)
				shared[q][i] = query + q < batch.n ?
					batch.d_queries[(int64_t) (query + q) * card.dims +
									start + i] : 0.0f;
		__syncthreads();

		for (int i = lane; i < ndims; i += LANES)
		{
#pragma unroll
			for (int c = 0; c < CENTROIDS; c++)
			{
				int			list = min(first + c, card.nlists - 1);
				float		x = card.d_centroids[(int64_t) list * card.dims +
												 start + i];

#pragma unroll
				for (int q = 0; q < QUERIES; q++)
				{
					float		y = shared[q][i];
					float		diff = PRODUCT ? 0.0f : __fsub_rn(y, x);

					sums[c][q] = __fadd_rn(sums[c][q], PRODUCT ?
										   __fmul_rn(y, x) :
										   __fmul_rn(diff, diff));
				}
			}
		}
	}

#pragma unroll
	for (int c = 0; c < CENTROIDS; c++)
#pragma unroll
		for (int q = 0; q < QUERIES; q++)
		{
			float		sum = sums[c][q];

#pragma unroll
			for (int half = LANES / 2; half > 0; half /= 2)
				sum = __fadd_rn(sum, __shfl_down_sync(GV_FULL_WARP, sum, half,
													  LANES));
			if (lane == 0 && first + c < card.nlists && query + q < batch.n)
				batch.d_coarse[(int64_t) (query + q) * card.nlists + first + c] =
					gv_card_score(PRODUCT ? -sum : sum);
		}
}

template <int CENTROIDS, int QUERIES>
static GvStatus
launch(const GvCardModel *card, const GvBatch *batch, cudaStream_t stream)
{
	int			span = TEAMS * CENTROIDS;
	dim3		grid((card->nlists + span - 1) / span,
					 (batch->n + QUERIES - 1) / QUERIES);

	if (card->metric == GV_IP)
		GV_LAUNCH((coarse_kernel<CENTROIDS, QUERIES, true>), grid, THREADS, 0,
				  stream, *card, *batch);
	else
		GV_LAUNCH((coarse_kernel<CENTROIDS, QUERIES, false>), grid, THREADS, 0,
				  stream, *card, *batch);
	return gv_cuda_status(cudaGetLastError());
}

/* d_coarse [n][nlists] of a batch. */
GvStatus
gv_gpu_coarse(const GvCardModel *card, const GvBatch *batch,
			  cudaStream_t stream)
{
	if (batch->n == 1)
		return launch<1, 1>(card, batch, stream);
	return launch<4, 8>(card, batch, stream);
}
