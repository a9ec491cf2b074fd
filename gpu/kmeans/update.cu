/*
 * update.cu
 *	Groups the rows of a pass by cluster, once each row has its nearest
 *	centroid, and computes the means of the clusters.
 *
 * All sums are in double and in the order of rows, or for sets in that of their
 * slices, which a stable radix sort by cluster keeps.  So one thread computes a
 * sum, and the parallelism is over clusters, slices and dimensions.  Neighboring
 * lanes read a row of a cluster together.  A thread loads 8 rows at once, or 32
 * if there are too few clusters to keep the device busy.
 */
#include "gpu/kmeans/kmeans.h"

#define MEAN_THREADS	128
#define MANY_BLOCKS		8		/* if there are fewer blocks of MEAN_THREADS
								 * than this for each SM, each thread reads more
								 * rows ahead */

GvStatus
gv_gpu_group_clusters(const GvClusters *cl, cudaStream_t stream)
{
	GvGroup		group = {cl->n, (uint32_t) cl->k, cl->d_nearest, cl->d_all,
		cl->d_keys, cl->d_order, cl->d_starts, cl->d_sort, cl->sort_bytes};

	return gv_gpu_group(&group, stream);
}

/*
 * Moves centroids to the means of their rows or, for a part, sums up the rows.
 * Each slice of rows has MEAN_THREADS threads of a block, each cluster `lanes`
 * of these, and each of these threads one dimension, from blockIdx.y * lanes on.
 * A thread loads AHEAD rows before it adds them, without branches: beyond the
 * last row it loads that row again, and adds 0, which changes no sum, because a
 * sum is never -0.
 */
template <int AHEAD>
static __global__ void __launch_bounds__(MEAN_THREADS *GV_SET_SLICES)
means_kernel(GvClusters cl, int lanes)
{
	__shared__ double sums[GV_SET_SLICES][MEAN_THREADS];
	int			slice = threadIdx.x / MEAN_THREADS;
	int			thread = threadIdx.x % MEAN_THREADS;
	int			c = blockIdx.x * (MEAN_THREADS / lanes) + thread / lanes;
	int			d = blockIdx.y * lanes + thread % lanes;
	bool		is_used = c < cl.k && d < cl.dims;
	const float *column = cl.d_rows + d;
	uint32_t	start = is_used ? cl.d_starts[c] : 0;
	uint32_t	end = is_used ? cl.d_starts[c + 1] : 0;
	uint32_t	i = gv_slice_start(cl, slice, start, end);
	uint32_t	stop = gv_slice_start(cl, slice + 1, start, end);
	double		sum = 0.0;

	for (; i < stop; i += AHEAD)
	{
		float		values[AHEAD];

#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			values[j] = column[(int64_t) cl.d_order[min(i + j, stop - 1)] *
							   cl.dims];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			sum += i + j < stop ? (double) values[j] : 0.0;
	}
	sums[slice][thread] = sum;
	__syncthreads();
	if (slice > 0 || !is_used)
		return;
	sum = gv_slices_total(cl, &sums[0][thread], MEAN_THREADS);
	if (cl.d_sums != NULL)
		cl.d_sums[(int64_t) c * cl.dims + d] = sum;
	else if (start < end)
		cl.d_centroids[(int64_t) c * cl.dims + d] =
			(float) (sum / (double) (end - start));
}

GvStatus
gv_gpu_means(const GvClusters *cl, cudaStream_t stream)
{
	int			lanes = MEAN_THREADS;
	dim3		grid;

	while (lanes / 2 >= cl->dims && lanes > 1)
		lanes /= 2;
	grid = dim3(gv_blocks_for(cl->k, MEAN_THREADS / lanes),
				gv_blocks_for(cl->dims, lanes));
	return gv_launch((int64_t) grid.x * grid.y * cl->nslices <
					 MANY_BLOCKS * cl->nsms ? means_kernel<32> :
					 means_kernel<8>, grid, MEAN_THREADS * cl->nslices, 0,
					 stream, *cl, lanes);
}
