/*
 * coarse.cu
 *		Computes the list scores of a batch of queries: the distances to all
 *		centroids.
 *
 * For one query, the time depends on the bytes of the centroids, so a lane has
 * many loads of 16 bytes in flight at a time.  For more queries the time
 * depends on arithmetic, so a group of four lanes takes two centroids and four
 * or eight queries, and every loaded value is used for several terms.  Blocks
 * are small, so that even 8,192 lists are divided among all SMs.  Only a few
 * blocks have to fit on an SM, so that the compiler has enough registers to
 * load values ahead.
 */
#include "gpu/search/coarse.cuh"
#include "gpu/search/search.h"

#define THREADS			64
#define LANE_GROUPS		(THREADS / GV_LANE_GROUP)	/* in a block */
#define CENTROIDS		2		/* of a lane group */
#define SLICE			512		/* dimensions in shared memory at a time */
#define AHEAD			8		/* 16-byte pieces of a centroid in registers */

/*
 * A lane group owns a centroid, for one query.  Centroids exist before the
 * query arrives, so each lane group loads as much of its centroid as fits in
 * registers while the query crosses the bus.
 */
template <bool PRODUCT, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, 8)
coarse_one_kernel(GvDeviceModel model, GvBatch batch)
{
	int			list = blockIdx.x * LANE_GROUPS + threadIdx.x / GV_LANE_GROUP;
	int			first = threadIdx.x % GV_LANE_GROUP * 4;
	const float *centroid = model.d_centroids +
		(int64_t) min(list, model.nlists - 1) * model.dims;
	float		sums[4] = {};
	float		score;
	float4		ahead[AHEAD];

#pragma unroll
	for (int j = 0; j < AHEAD; j++)
		if (first + j * GV_SUMS < model.dims)
			ahead[j] = gv_load_four<ALIGNED>(centroid, first + j * GV_SUMS,
											 model.dims);
	gv_pdl_wait();
#pragma unroll
	for (int j = 0; j < AHEAD; j++)
		if (first + j * GV_SUMS < model.dims)
			gv_add_four<PRODUCT>(sums,
								 gv_load_four<ALIGNED>(batch.d_queries,
													   first + j * GV_SUMS,
													   model.dims), ahead[j]);
	gv_add_rows<PRODUCT, ALIGNED, GV_AHEAD>(sums, batch.d_queries, centroid,
								  first + AHEAD * GV_SUMS, model.dims);
	score = gv_add_sums<PRODUCT>(sums);
	if (threadIdx.x % GV_LANE_GROUP == 0 && list < model.nlists)
		batch.d_coarse[list] = score;
}

/*
 * Block (x, y) owns LANE_GROUPS * CENTROIDS centroids, from x times this
 * number on, and QUERIES queries, from y * QUERIES on.  Shared memory: queries
 * [QUERIES][SLICE].
 */
template <int QUERIES, bool PRODUCT, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS, 6)
coarse_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ float4 shared[QUERIES][SLICE / 4];
	int			lane_group =
		blockIdx.x * LANE_GROUPS + threadIdx.x / GV_LANE_GROUP;
	int			first = lane_group * CENTROIDS;
	int			query = blockIdx.y * QUERIES;
	float		sums[CENTROIDS][QUERIES][4] = {};

	gv_pdl_wait();
	for (int start = 0; start < model.dims; start += SLICE)
	{
		int			end = min(SLICE, model.dims - start);

		__syncthreads();
		for (int q = 0; q < QUERIES; q++)
			for (int i = threadIdx.x; 4 * i < end; i += THREADS)
				shared[q][i] = query + q < batch.n ?
					gv_load_four<ALIGNED>(batch.d_queries +
										  (int64_t) (query + q) * model.dims,
										  start + 4 * i, model.dims) :
					make_float4(0.0f, 0.0f, 0.0f, 0.0f);
		__syncthreads();

#pragma unroll 4
		for (int i = threadIdx.x % GV_LANE_GROUP; 4 * i < end;
			 i += GV_LANE_GROUP)
		{
			float4		x[CENTROIDS];

#pragma unroll
			for (int c = 0; c < CENTROIDS; c++)
				x[c] = gv_load_four<ALIGNED>(model.d_centroids +
											 (int64_t) min(first + c,
														   model.nlists - 1) *
											 model.dims, start + 4 * i,
											 model.dims);
#pragma unroll
			for (int q = 0; q < QUERIES; q++)
			{
				float4		y = shared[q][i];

#pragma unroll
				for (int c = 0; c < CENTROIDS; c++)
					gv_add_four<PRODUCT>(sums[c][q], y, x[c]);
			}
		}
	}

#pragma unroll
	for (int c = 0; c < CENTROIDS; c++)
#pragma unroll
		for (int q = 0; q < QUERIES; q++)
		{
			float		score = gv_add_sums<PRODUCT>(sums[c][q]);
			float	   *to = batch.d_coarse +
				(query + q) * gv_score_stride(model.nlists) + first + c;

			if (threadIdx.x % GV_LANE_GROUP == 0 && first + c < model.nlists &&
				query + q < batch.n)
				*to = score;
		}
}

template <bool PRODUCT, bool ALIGNED>
static GvStatus
launch(const GvDeviceModel *model, const GvBatch *batch, cudaStream_t stream)
{
	int			queries = batch->n <= 4 ? 4 : 8;
	dim3		grid(gv_blocks_for(model->nlists, LANE_GROUPS * CENTROIDS),
					 gv_blocks_for(batch->n, queries));

	if (batch->n == 1)
		return gv_launch_step(coarse_one_kernel<PRODUCT, ALIGNED>,
							  gv_blocks_for(model->nlists, LANE_GROUPS),
							  THREADS, 0, stream, model, batch);
	return gv_launch_step(queries == 4 ? coarse_kernel<4, PRODUCT, ALIGNED> :
						  coarse_kernel<8, PRODUCT, ALIGNED>, grid, THREADS,
						  0, stream, model, batch);
}

/* Launches the kernel that makes d_coarse of a batch. */
GvStatus
gv_gpu_coarse(const GvDeviceModel *model, const GvBatch *batch,
			  cudaStream_t stream)
{
	if (model->dims % 4 == 0)
		return (model->metric == GV_IP ? launch<true, true> :
				launch<false, true>) (model, batch, stream);
	return (model->metric == GV_IP ? launch<true, false> :
			launch<false, false>) (model, batch, stream);
}
