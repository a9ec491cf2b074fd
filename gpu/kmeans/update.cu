/*
 * update.cu
 *	The clusters of a pass, once each row has its nearest centroid: rows
 *	grouped, errors and farthest rows, means, reseeded and split clusters.
 *
 * All sums are in double and in the order of rows, which a stable radix sort
 * by cluster keeps.  So one thread computes a sum, and the parallelism is over
 * clusters and dimensions.  Neighboring lanes read a row of a cluster
 * together.  A thread loads 8 rows at once, or 32 if there are too few
 * clusters to keep the device busy.
 *
 * A cluster that is too large is divided by a few steps of 2-means over a
 * thousand of its rows, spread over the cluster.  This is enough to place the
 * halves, because the next pass assigns all rows anyway.
 */
#include "gpu/device/warp.cuh"
#include "gpu/kmeans/kmeans.h"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define MEAN_THREADS	128
#define MANY_BLOCKS		8		/* blocks for each SM; if there are fewer, each
								 * reads more rows ahead */
#define SPLIT_THREADS	128
#define SPLIT_WARPS		(SPLIT_THREADS / GV_WARP)
#define SPLIT_ROWS		1024	/* rows of a cluster that a split looks at */
#define SPLIT_STEPS		4

GvStatus
gv_gpu_group_clusters(const GvClusters *cl, cudaStream_t stream)
{
	GvGroup		group = {cl->n, (uint32_t) cl->k, cl->d_nearest, cl->d_all,
		cl->d_keys, cl->d_order, cl->d_starts, cl->d_sort, cl->sort_bytes};

	return gv_gpu_group(&group, stream);
}

/*
 * Computes the sum of a cluster's squared distances, in the order of rows, and
 * the first of its farthest rows.  Each warp has a cluster.  Lane 0 has the
 * results.
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

		/* the larger distance is kept and, of equal ones, the smaller row */
		if (lane < n)
			farthest = max(farthest, (uint64_t) __float_as_uint(mine) << 32 |
						   ~row);
		for (uint32_t l = 0; l < n; l++)
			sum += (double) __shfl_sync(GV_FULL_WARP, mine, (int) l);
	}
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		farthest = max(farthest,
					   __shfl_xor_sync(GV_FULL_WARP, farthest, half));
	if (lane > 0)
		return;
	cl.d_errors[c] = sum;
	cl.d_far[c] = __uint_as_float((uint32_t) (farthest >> 32));
	cl.d_far_rows[c] = ~(uint32_t) farthest;
}

GvStatus
gv_gpu_errors(const GvClusters *cl, cudaStream_t stream)
{
	return gv_launch(errors_kernel, gv_blocks_for(cl->k, WARPS), THREADS, 0,
					 stream, *cl);
}

/*
 * Moves centroids to the means of their rows.  `lanes` threads have a cluster,
 * and each of them one dimension, from blockIdx.y * lanes on.  A thread loads
 * AHEAD rows before it adds them.
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

/* Copies farthest rows to reseeded centroids, a block each. */
static __global__ void __launch_bounds__(THREADS)
reseed_kernel(GvClusters cl)
{
	GvReseed	reseed = cl.d_reseeds[blockIdx.x];
	const float *row = cl.d_rows +
		(int64_t) cl.d_far_rows[reseed.from] * cl.dims;

	for (int d = threadIdx.x; d < cl.dims; d += THREADS)
		cl.d_centroids[(int64_t) reseed.to * cl.dims + d] = row[d];
}

GvStatus
gv_gpu_reseed(const GvClusters *cl, int32_t n, cudaStream_t stream)
{
	return gv_launch(reseed_kernel, n, THREADS, 0, stream, *cl);
}

/* The cluster that a block splits, and the rows of it that it looks at. */
struct Cluster
{
	const float *x;				/* [n][dims] */
	int			dims;
	const uint32_t *rows;		/* [count] */
	uint32_t	count;
	uint32_t	taken;			/* number of rows looked at, spread over the
								 * cluster */

	__device__ __forceinline__ const float *
	row(uint32_t i) const
	{
		uint32_t	at = (uint32_t) ((uint64_t) i * count / taken);

		return x + (int64_t) rows[at] * dims;
	}
};

/* Returns about the squared distance, by all threads of a warp. */
static __device__ __forceinline__ float
distance(const float *a, const float *b, int dims)
{
	float		sum = 0.0f;

	for (int d = threadIdx.x % GV_WARP; d < dims; d += GV_WARP)
		sum += (a[d] - b[d]) * (a[d] - b[d]);
	return gv_device_score(gv_add_warp(sum));
}

/*
 * Finds the row that is farthest from `from`; all threads get it.  Returns
 * false if all rows are equal to `from`.
 */
static __device__ __forceinline__ bool
find_farthest(const Cluster &cluster, const float *from, uint32_t *farthest)
{
	__shared__ float best[SPLIT_WARPS];
	__shared__ uint32_t place[SPLIT_WARPS];
	int			warp = threadIdx.x / GV_WARP;
	float		mine = 0.0f;
	uint32_t	at = 0;

	for (uint32_t i = warp; i < cluster.taken; i += SPLIT_WARPS)
	{
		float		dist = distance(cluster.row(i), from, cluster.dims);

		if (dist > mine)
		{
			mine = dist;
			at = i;
		}
	}
	__syncthreads();
	if (threadIdx.x % GV_WARP == 0)
	{
		best[warp] = mine;
		place[warp] = at;
	}
	__syncthreads();
	mine = 0.0f;
	for (int w = 0; w < SPLIT_WARPS; w++)
		if (best[w] > mine || (best[w] == mine && best[w] > 0.0f &&
							   place[w] < *farthest))
		{
			mine = best[w];
			*farthest = place[w];
		}
	return mine > 0.0f;
}

static __device__ __forceinline__ void
copy_row(float *to, const float *from, int dims)
{
	for (int d = threadIdx.x; d < dims; d += SPLIT_THREADS)
		to[d] = from[d];
}

/*
 * Sets sides [taken] to 1 for rows that are nearer to b than to a.  Returns
 * the number of these rows.
 */
static __device__ __forceinline__ uint32_t
choose_sides(const Cluster &cluster, const float *a, const float *b,
			 uint8_t *sides)
{
	uint32_t	n = 0;

	for (uint32_t i = threadIdx.x / GV_WARP; i < cluster.taken;
		 i += SPLIT_WARPS)
	{
		const float *row = cluster.row(i);
		bool		second = !(distance(row, a, cluster.dims) <=
							   distance(row, b, cluster.dims));

		if (threadIdx.x % GV_WARP == 0)
			sides[i] = second;
	}
	__syncthreads();
	for (uint32_t i = 0; i < cluster.taken; i++)
		n += sides[i];
	return n;
}

/* Moves a and b to the means of their rows. */
static __device__ __forceinline__ void
move_both(const Cluster &cluster, const uint8_t *sides, uint32_t nsecond,
		  float *a, float *b)
{
	for (int d = threadIdx.x; d < cluster.dims; d += SPLIT_THREADS)
	{
		double		sums[2] = {0.0, 0.0};

		for (uint32_t i = 0; i < cluster.taken; i++)
		{
			double		value = (double) cluster.row(i)[d];

			sums[0] += sides[i] ? 0.0 : value;
			sums[1] += sides[i] ? value : 0.0;
		}
		a[d] = gv_device_clamp(sums[0] / (double) (cluster.taken - nsecond));
		b[d] = gv_device_clamp(sums[1] / (double) nsecond);
	}
}

/* Splits clusters, a block each; threads add up dimensions. */
static __global__ void __launch_bounds__(SPLIT_THREADS)
split_kernel(GvClusters cl, const GvSplit *splits, uint64_t seed,
			 int32_t *done)
{
	__shared__ uint8_t sides[SPLIT_ROWS];
	GvSplit		split = splits[blockIdx.x];
	int			dims = cl.dims;
	uint32_t	start = cl.d_starts[split.big];
	uint32_t	count = cl.d_starts[split.big + 1] - start;
	Cluster		cluster = {cl.d_rows, dims, cl.d_order + start, count,
		min(count, (uint32_t) SPLIT_ROWS)};
	float	   *a = cl.d_centroids + (int64_t) split.big * dims;
	float	   *b = cl.d_centroids + (int64_t) split.small * dims;
	uint64_t	random = seed + (uint64_t) split.big;
	uint32_t	first = (uint32_t) (gv_device_random(&random) % cluster.taken);
	const float *seed_row = cluster.row(first);
	uint32_t	farthest = 0;
	bool		apart = find_farthest(cluster, seed_row, &farthest);
	const float *other_row = cluster.row(farthest);

	/* if the rows looked at are all equal, look at all rows */
	if (!apart && cluster.taken < count)
	{
		Cluster		whole = cluster;

		whole.taken = count;
		apart = find_farthest(whole, seed_row, &farthest);
		other_row = whole.row(farthest);
	}
	if (threadIdx.x == 0)
		done[blockIdx.x] = apart;
	if (!apart)
		return;
	copy_row(a, seed_row, dims);
	copy_row(b, other_row, dims);
	__syncthreads();
	for (int step = 0; step < SPLIT_STEPS; step++)
	{
		uint32_t	nsecond = choose_sides(cluster, a, b, sides);

		/* rounding may have made the means equal */
		if (nsecond == 0 || nsecond == cluster.taken)
			break;
		__syncthreads();
		move_both(cluster, sides, nsecond, a, b);
		__syncthreads();
	}
}

GvStatus
gv_gpu_split(const GvClusters *cl, const GvSplit *d_splits, int32_t n,
			 uint64_t seed, int32_t *d_done, cudaStream_t stream)
{
	return gv_launch(split_kernel, n, SPLIT_THREADS, 0, stream, *cl, d_splits,
					 seed, d_done);
}
