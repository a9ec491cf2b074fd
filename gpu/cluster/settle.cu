/*
 * settle.cu
 *		From close centroids to the nearest: exact scores, gv_assign's to the
 *		last bit.
 *
 *		bounds	before candidates.cu: the score of the centroid that was
 *				nearest in the last pass is a bound, and often the answer
 *		rescore	of the close centroids the nearest; rows that have too many are
 *				listed
 *		whole	these, four at a time, against all centroids
 *
 * Of equal scores the smaller number comes first.  Floats that are not
 * negative ascend as their bits do, so score << 32 | number is an order.
 */
#include "gpu/cluster/clusters.cuh"
#include "gpu/coarse/score.cuh"

#define THREADS			256
#define TEAMS			(THREADS / GV_QUAD)
#define ROWS			4		/* hard ones, at once */
#define LAST_ITEM		UINT64_C(0xFFFFFFFFFFFFFFFF)

static __device__ __forceinline__ uint64_t
item_of(float score, uint32_t c)
{
	return (uint64_t) __float_as_uint(score) << 32 | c;
}

/* Four lanes a row; all of a warp call it.  The score is in the first. */
static __device__ __forceinline__ float
score_of(const GvClusters &cl, int64_t row, uint32_t c)
{
	return gv_quad_score<false>(cl.d_rows + row * cl.dims,
								cl.d_centroids + (int64_t) c * cl.dims,
								cl.dims);
}

/*
 * s^2 S - |X|^2 + Q^2: Q^2 is above |X|^2 by less than 2^-18 of it.  Infinite
 * where that is not a number.
 */
static __device__ __forceinline__ float
bound_from(const GvClusters &cl, float score, float length)
{
	float		scale = gv_clusters_scale(cl);
	float		bound = score * scale * scale * (1.0f + 0x1p-20f) +
		length * length * 0x1p-18f + 1e-30f;

	return bound < FLT_MAX ? bound : __int_as_float(0x7F800000);
}

/* Rows of a piece, four lanes each. */
static __global__ void __launch_bounds__(THREADS)
bounds_kernel(GvClusters cl, int64_t first, int n, bool known)
{
	int			i = blockIdx.x * TEAMS + threadIdx.x / GV_QUAD;
	int64_t		row = first + min(i, n - 1);
	float		bound = __int_as_float(0x7F800000);

	if (known)
	{
		float		score = score_of(cl, row, cl.d_nearest[row]);

		if (threadIdx.x % GV_QUAD == 0 && i < n)
		{
			cl.d_sqdist[row] = score;
			bound = bound_from(cl, score, cl.d_lengths[row].x);
		}
	}
	if (threadIdx.x % GV_QUAD == 0 && i < n)
		cl.d_reach[i] = bound;
}

/* The same; see gv_clusters.h for what `known` means. */
static __global__ void __launch_bounds__(THREADS)
rescore_kernel(GvClusters cl, int64_t first, int n, bool known)
{
	int			i = blockIdx.x * TEAMS + threadIdx.x / GV_QUAD;
	int			at = min(i, n - 1);
	int64_t		row = first + at;
	const GvClose *close = cl.d_close + (int64_t) at * GV_CLOSE_CAPACITY;
	uint32_t	count = i < n ? cl.d_counts[at] : 0;
	bool		hard = count > GV_CLOSE_CAPACITY;
	float		bound = cl.d_reach[at];
	uint32_t	own = 0;
	uint64_t	best = LAST_ITEM;
	uint32_t	j = 0;

	if (hard)
		count = 0;
	if (known)
	{
		own = cl.d_nearest[row];
		best = item_of(cl.d_sqdist[row], own);
	}
	for (;;)
	{
		uint32_t	c = 0;
		float		score;

		/* the next that is within what the bound has become; NaN is */
		for (; j < count; j++)
		{
			GvClose		one = close[j];

			c = one.number;
			if (!(one.score > bound) && !(known && c == own))
				break;
		}
		if (!__any_sync(GV_FULL_WARP, j < count))
			break;
		score = score_of(cl, row, j < count ? c : 0);
		if (threadIdx.x % GV_QUAD == 0 && j < count)
			best = min(best, item_of(score, c));
		j++;
	}
	if (threadIdx.x % GV_QUAD != 0 || i >= n)
		return;
	if (hard)
	{
		cl.d_hard[atomicAdd(cl.d_nhard, 1u)] = (uint32_t) row;
		GV_TEST_ONLY(atomicAdd(cl.d_nhard + 1, 1u);)
	}
	else
	{
		cl.d_nearest[row] = (uint32_t) best;
		cl.d_sqdist[row] = __uint_as_float((uint32_t) (best >> 32));
	}
}

/* A lane's sums of ROWS rows and a centroid. */
template <bool ALIGNED>
static __device__ __forceinline__ void
add_rows(const GvClusters &cl, const float *const (&rows)[ROWS],
		 const float *centroid, float (&sums)[ROWS][4])
{
#pragma unroll 2
	for (int d = threadIdx.x % GV_QUAD * 4; d < cl.dims; d += GV_SUMS)
	{
		float4		y = gv_load_four<ALIGNED>(centroid, d, cl.dims);

#pragma unroll
		for (int r = 0; r < ROWS; r++)
			gv_add_four<false>(sums[r], gv_load_four<ALIGNED>(rows[r], d,
															  cl.dims), y);
	}
}

/* Of hard rows, ROWS a block in turn, the nearest of all centroids. */
template <bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
whole_kernel(GvClusters cl)
{
	__shared__ unsigned long long best[ROWS];
	int			nhard = (int) *cl.d_nhard;

	for (int first = blockIdx.x * ROWS; first < nhard;
		 first += gridDim.x * ROWS)
	{
		const float *rows[ROWS];
		uint64_t	mine[ROWS];

		__syncthreads();
		if (threadIdx.x < ROWS)
			best[threadIdx.x] = LAST_ITEM;
		__syncthreads();
#pragma unroll
		for (int r = 0; r < ROWS; r++)
		{
			rows[r] = cl.d_rows +
				(int64_t) cl.d_hard[min(first + r, nhard - 1)] * cl.dims;
			mine[r] = LAST_ITEM;
		}
		for (int start = 0; start < cl.k; start += TEAMS)
		{
			int			c = start + threadIdx.x / GV_QUAD;
			float		sums[ROWS][4] = {};

			add_rows<ALIGNED>(cl, rows, cl.d_centroids +
							  (int64_t) min(c, cl.k - 1) * cl.dims, sums);
#pragma unroll
			for (int r = 0; r < ROWS; r++)
			{
				float		score = gv_add_sums<false>(sums[r]);

				if (c < cl.k)
					mine[r] = min(mine[r], item_of(score, (uint32_t) c));
			}
		}
#pragma unroll
		for (int r = 0; r < ROWS; r++)
			if (threadIdx.x % GV_QUAD == 0)
				atomicMin(&best[r], (unsigned long long) mine[r]);
		__syncthreads();
		if (threadIdx.x < ROWS && first + (int) threadIdx.x < nhard)
		{
			uint32_t	row = cl.d_hard[first + threadIdx.x];

			cl.d_nearest[row] = (uint32_t) best[threadIdx.x];
			cl.d_sqdist[row] =
				__uint_as_float((uint32_t) (best[threadIdx.x] >> 32));
		}
	}
}

/* See gv_clusters.h. */
GvStatus
gv_gpu_bounds(const GvClusters *cl, int64_t first, int32_t n, bool known,
			  cudaStream_t stream)
{
	GV_LAUNCH(bounds_kernel, gv_blocks_for(n, TEAMS), THREADS, 0, stream, *cl,
			  first, (int) n, known);
	return gv_cuda_status(cudaGetLastError());
}

/* See gv_clusters.h. */
GvStatus
gv_gpu_rescore_close(const GvClusters *cl, int64_t first, int32_t n,
					 bool known,
			  cudaStream_t stream)
{
	int			blocks = gv_blocks_for(n, ROWS);

	if (blocks > 4 * cl->nsms)
		blocks = 4 * cl->nsms;
	GV_CUDA_TRY(cudaMemsetAsync(cl->d_nhard, 0, sizeof(uint32_t), stream));
	GV_LAUNCH(rescore_kernel, gv_blocks_for(n, TEAMS), THREADS, 0, stream, *cl,
			  first, (int) n, known);
	GV_CUDA_TRY(cudaGetLastError());
	/* it is not known here whether there are any */
	if (cl->dims % 4 == 0)
		GV_LAUNCH(whole_kernel<true>, blocks, THREADS, 0, stream, *cl);
	else
		GV_LAUNCH(whole_kernel<false>, blocks, THREADS, 0, stream, *cl);
	return gv_cuda_status(cudaGetLastError());
}
