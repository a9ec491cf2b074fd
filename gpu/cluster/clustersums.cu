/*
 * clustersums.cu
 *		What a pass makes of its clusters: rows grouped, errors and farthest
 *		rows, means, and reseeded centroids.
 *
 * All sums are in double and in the order of rows, which a stable radix sort
 * by cluster keeps, so every sum is one thread's, and it is the clusters and
 * dimensions that are many.  A row of a cluster is read whole, by neighboring
 * lanes, 8 rows at once, or 32 where clusters are too few to keep the device
 * busy.
 */
#include "gpu/cluster/clusters.cuh"
#include "gpu/common/gv_group.h"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define MEAN_THREADS	128
#define MANY_BLOCKS		8		/* for each SM; of fewer each has more rows */

static __global__ void __launch_bounds__(THREADS)
number_kernel(GvClusters cl)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < cl.n)
		cl.d_all[i] = (uint32_t) i;
}

/* d_all, once. */
GvStatus
gv_gpu_number_rows(const GvClusters *cl, cudaStream_t stream)
{
	GV_LAUNCH(number_kernel, gv_blocks_for(cl->n, THREADS), THREADS, 0, stream,
			  *cl);
	return gv_cuda_status(cudaGetLastError());
}

/* d_order and d_starts from d_nearest. */
GvStatus
gv_gpu_group_clusters(const GvClusters *cl, cudaStream_t stream)
{
	GvGroup		group = {cl->n, (uint32_t) cl->k, cl->d_nearest, cl->d_all,
		cl->d_keys, cl->d_order, cl->d_starts, cl->d_sort, cl->sort_bytes};

	return gv_gpu_group(&group, stream);
}

/*
 * A warp a cluster: the sum of its rows' squared distances, in their order,
 * and the first of its farthest rows.
 */
static __global__ void __launch_bounds__(THREADS)
errors_kernel(GvClusters cl)
{
	int			c = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	start;
	uint32_t	end;
	double		sum = 0.0;
	uint64_t	farthest = 0;

	if (c >= cl.k)
		return;
	start = cl.d_starts[c];
	end = cl.d_starts[c + 1];
	for (uint32_t first = start; first < end; first += GV_WARP)
	{
		uint32_t	n = min(end - first, (uint32_t) GV_WARP);
		uint32_t	row = lane < n ? cl.d_order[first + lane] : 0;
		float		mine = lane < n ? cl.d_sqdist[row] : 0.0f;

		/* larger and, of equal ones, earlier, which is the smaller row */
		if (lane < n)
			farthest = max(farthest, (uint64_t) __float_as_uint(mine) << 32 |
						   ~row);
		for (uint32_t l = 0; l < n; l++)
			sum += (double) __shfl_sync(GV_FULL_WARP, mine, (int) l);
	}
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		farthest = max(farthest, __shfl_xor_sync(GV_FULL_WARP, farthest, half));
	if (lane > 0)
		return;
	cl.d_errors[c] = sum;
	cl.d_far[c] = __uint_as_float((uint32_t) (farthest >> 32));
	cl.d_far_rows[c] = ~(uint32_t) farthest;
}

/* d_errors, d_far, d_far_rows of grouped rows. */
GvStatus
gv_gpu_errors(const GvClusters *cl, cudaStream_t stream)
{
	GV_LAUNCH(errors_kernel, gv_blocks_for(cl->k, WARPS), THREADS, 0, stream,
			  *cl);
	return gv_cuda_status(cudaGetLastError());
}

/*
 * `lanes` threads have a cluster and as many of its dimensions, those from
 * blockIdx.y * lanes on, one each; AHEAD rows are on their way.
 */
template <int AHEAD>
static __global__ void __launch_bounds__(MEAN_THREADS)
means_kernel(GvClusters cl, int lanes)
{
	int			c = blockIdx.x * (MEAN_THREADS / lanes) + threadIdx.x / lanes;
	int			d = blockIdx.y * lanes + threadIdx.x % lanes;
	const float *column = cl.d_rows + d;
	uint32_t	start;
	uint32_t	end;
	uint32_t	i;
	double		sum = 0.0;

	if (c >= cl.k || d >= cl.dims)
		return;
	start = cl.d_starts[c];
	end = cl.d_starts[c + 1];
	if (start == end)
		return;
	for (i = start; i + AHEAD <= end; i += AHEAD)
	{
		float		values[AHEAD];

#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			values[j] = column[(int64_t) cl.d_order[i + j] * cl.dims];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			sum += (double) values[j];
	}
	for (; i < end; i++)
		sum += (double) column[(int64_t) cl.d_order[i] * cl.dims];
	cl.d_centroids[(int64_t) c * cl.dims + d] =
		(float) (sum / (double) (end - start));
}

/* d_centroids become the means of grouped rows; of no rows: as they were. */
GvStatus
gv_gpu_means(const GvClusters *cl, cudaStream_t stream)
{
	int			lanes = MEAN_THREADS;
	dim3		grid;

	while (lanes / 2 >= cl->dims && lanes > 1)
		lanes /= 2;
	grid = dim3(gv_blocks_for(cl->k, MEAN_THREADS / lanes),
				gv_blocks_for(cl->dims, lanes));
	if ((int64_t) grid.x * grid.y < MANY_BLOCKS * cl->nsms)
		GV_LAUNCH(means_kernel<32>, grid, MEAN_THREADS, 0, stream, *cl, lanes);
	else
		GV_LAUNCH(means_kernel<8>, grid, MEAN_THREADS, 0, stream, *cl, lanes);
	return gv_cuda_status(cudaGetLastError());
}

/* A block a centroid that is reseeded. */
static __global__ void __launch_bounds__(THREADS)
reseed_kernel(GvClusters cl)
{
	GvReseed		reseed = cl.d_reseeds[blockIdx.x];
	const float *row = cl.d_rows + (int64_t) cl.d_far_rows[reseed.giver] * cl.dims;

	for (int d = threadIdx.x; d < cl.dims; d += THREADS)
		cl.d_centroids[(int64_t) reseed.taker * cl.dims + d] = row[d];
}

/* See gv_clusters.h. */
GvStatus
gv_gpu_reseed(const GvClusters *cl, int32_t n, cudaStream_t stream)
{
	GV_LAUNCH(reseed_kernel, n, THREADS, 0, stream, *cl);
	return gv_cuda_status(cudaGetLastError());
}
