/*
 * update.cu
 *	Groups the rows of a pass by cluster, once each row has its nearest
 *	centroid, and computes the means of the clusters.
 *
 * All sums are in double and in the order of rows, or for sets in that of their
 * slices, which a stable radix sort by cluster keeps.  So one thread computes a
 * sum, and the parallelism is over clusters and dimensions.  Neighboring lanes
 * read a row of a cluster together.  A thread loads 8 rows at once, or 32 if
 * there are too few clusters to keep the device busy.
 */
#include "gpu/kmeans/kmeans.h"

#define MEAN_THREADS	128
#define MANY_BLOCKS		8		/* if there are fewer blocks than this for each
								 * SM, each thread reads more rows ahead */

GvStatus
gv_gpu_group_clusters(const GvClusters *cl, cudaStream_t stream)
{
	GvGroup		group = {cl->n, (uint32_t) cl->k, cl->d_nearest, cl->d_all,
		cl->d_keys, cl->d_order, cl->d_starts, cl->d_sort, cl->sort_bytes};

	return gv_gpu_group(&group, stream);
}

/*
 * Moves centroids to the means of their rows or, for a part, sums up the rows.
 * Each cluster has `lanes` threads of a block, and each of these threads has
 * one dimension, from blockIdx.y * lanes on.  A thread loads AHEAD rows before
 * it adds them.
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
	GvSliceSum	sum = {};

	if (c >= cl.k || d >= cl.dims)
		return;
	start = cl.d_starts[c];
	end = cl.d_starts[c + 1];
	for (i = start; i + AHEAD <= end; i += AHEAD)
	{
		float		values[AHEAD];
		bool		crosses = cl.d_order[i + AHEAD - 1] >=
			cl.slice_ends[sum.slice];

#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			values[j] = column[(int64_t) cl.d_order[i + j] * cl.dims];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
		{
			if (crosses)
				gv_slices_reach(&sum, cl, cl.d_order[i + j]);
			sum.sum += (double) values[j];
		}
	}
	for (; i < end; i++)
	{
		gv_slices_reach(&sum, cl, cl.d_order[i]);
		sum.sum += (double) column[(int64_t) cl.d_order[i] * cl.dims];
	}
	if (cl.d_sums != NULL)
		cl.d_sums[(int64_t) c * cl.dims + d] = gv_slices_total(&sum);
	else if (start < end)
		cl.d_centroids[(int64_t) c * cl.dims + d] =
			(float) (gv_slices_total(&sum) / (double) (end - start));
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
	return gv_launch((int64_t) grid.x * grid.y < MANY_BLOCKS * cl->nsms ?
					 means_kernel<32> : means_kernel<8>, grid, MEAN_THREADS, 0,
					 stream, *cl, lanes);
}
