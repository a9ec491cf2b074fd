/*
 * split.cu
 *		Clusters that are too big, each divided by a few steps of 2-means.
 *
 * A block has one; its warps measure rows, its threads add up dimensions.  A
 * thousand rows, spread over the cluster, tell where its halves are: the next
 * pass assigns all of them anyway.
 */
#include "gpu/build/build.h"
#include "gpu/common/common.cuh"
#include "gpu/common/warpselect.cuh"

#define THREADS			128
#define WARPS			(THREADS / GV_WARP)
#define MOST_ROWS		1024	/* of a cluster that are looked at */
#define STEPS			4

/* A cluster as a block sees it. */
struct Cluster
{
	const float *x;				/* [][dims] */
	int			dims;
	const uint32_t *rows;		/* [count] */
	uint32_t	count;
	uint32_t	taken;			/* rows that are looked at */

	__device__ __forceinline__ const float *
	row(uint32_t i) const
	{
		uint32_t	at = (uint32_t) ((uint64_t) i * count / taken);

		return x + (int64_t) rows[at] * dims;
	}
};

/* Squared distance, by a warp, about. */
static __device__ __forceinline__ float
distance(const float *a, const float *b, int dims)
{
	float		sum = 0.0f;

	for (int d = threadIdx.x % GV_WARP; d < dims; d += GV_WARP)
		sum += (a[d] - b[d]) * (a[d] - b[d]);
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		sum += __shfl_xor_sync(GV_FULL_WARP, sum, half);
	return gv_device_score(sum);
}

/* The row farthest from `from`, in all threads; false: none is elsewhere. */
static __device__ __forceinline__ bool
find_farthest(const Cluster &cluster, const float *from, uint32_t *farthest)
{
	__shared__ float best[WARPS];
	__shared__ uint32_t place[WARPS];
	int			warp = threadIdx.x / GV_WARP;
	float		mine = 0.0f;
	uint32_t	at = 0;

	for (uint32_t i = warp; i < cluster.taken; i += WARPS)
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
	for (int w = 0; w < WARPS; w++)
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
	for (int d = threadIdx.x; d < dims; d += THREADS)
		to[d] = from[d];
}

/* Which rows are nearer to b than to a; returns how many. */
static __device__ __forceinline__ uint32_t
choose_sides(const Cluster &cluster, const float *a, const float *b,
			 uint8_t *sides)
{
	uint32_t	n = 0;

	for (uint32_t i = threadIdx.x / GV_WARP; i < cluster.taken; i += WARPS)
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

/* a and b become the means of their rows. */
static __device__ __forceinline__ void
move_both(const Cluster &cluster, const uint8_t *sides, uint32_t nsecond,
		  float *a, float *b)
{
	for (int d = threadIdx.x; d < cluster.dims; d += THREADS)
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

static __global__ void __launch_bounds__(THREADS)
split_kernel(const float *x, int dims, const uint32_t *order,
			 const uint32_t *starts, const GvSplit *splits, uint64_t seed,
			 float *centroids, int32_t *done)
{
	__shared__ uint8_t sides[MOST_ROWS];
	GvSplit		split = splits[blockIdx.x];
	uint32_t	start = starts[split.big];
	uint32_t	count = starts[split.big + 1] - start;
	Cluster		cluster = {x, dims, order + start, count,
	min(count, (uint32_t) MOST_ROWS)};
	float	   *a = centroids + (int64_t) split.big * dims;
	float	   *b = centroids + (int64_t) split.small * dims;
	uint64_t	random = seed + (uint64_t) split.big;
	uint32_t	first = (uint32_t) (gv_device_random(&random) % cluster.taken);
	const float *seed_row = cluster.row(first);
	uint32_t	farthest = 0;
	bool		apart = find_farthest(cluster, seed_row, &farthest);
	const float *other_row = cluster.row(farthest);

	/* all of them only when those looked at do not differ */
	if (!apart && cluster.taken < count)
	{
		Cluster		whole = {x, dims, order + start, count, count};

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
	for (int step = 0; step < STEPS; step++)
	{
		uint32_t	nsecond = choose_sides(cluster, a, b, sides);

		/* means that rounding let coincide tell nothing apart */
		if (nsecond == 0 || nsecond == cluster.taken)
			break;
		__syncthreads();
		move_both(cluster, sides, nsecond, a, b);
		__syncthreads();
	}
}

/*
 * Split clusters [nsplits], whose rows are d_order [d_starts[c] ..
 * d_starts[c + 1] - 1]; d_done says which rows could be told apart.
 */
GvStatus
gv_gpu_split(const float *d_x, int32_t dims, const uint32_t *d_order,
			 const uint32_t *d_starts, const GvSplit *d_splits,
			 int32_t nsplits, uint64_t seed, float *d_centroids,
			 int32_t *d_done, cudaStream_t stream)
{
	GV_LAUNCH(split_kernel, nsplits, THREADS, 0, stream, d_x, dims, d_order,
			  d_starts, d_splits, seed, d_centroids, d_done);
	return gv_cuda_status(cudaGetLastError());
}
