/*
 * center.cu
 *		Rows and centroids moved to their middle and scaled, in half precision,
 *		and what rounding did to them: see gv_clusters.h.
 *
 * Distances do not change when everything is moved, but what half precision
 * loses does: it is relative to lengths.  The middle is the mean of the first
 * centroids; the scale brings the largest number to at most 2^14, so that
 * numbers 2^28 times smaller keep all of their bits.
 */
#include "gpu/cluster/clusters.cuh"
#include "gpu/common/gv_batch.h"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define STRANDS			8		/* parts of a mean */
#define INFINITE		__int_as_float(0x7F800000)

/*
 * The mean of the centroids: block x has 32 dimensions, STRANDS sums of each.
 */
static __global__ void __launch_bounds__(GV_WARP *STRANDS)
middle_kernel(GvClusters cl)
{
	__shared__ double sums[STRANDS][GV_WARP];
	int			lane = threadIdx.x % GV_WARP;
	int			strand = threadIdx.x / GV_WARP;
	int			d = blockIdx.x * GV_WARP + lane;
	double		sum = 0.0;

	if (d < cl.dims)
	{
#pragma unroll 4
		for (int c = strand; c < cl.k; c += STRANDS)
			sum += (double) cl.d_centroids[(int64_t) c * cl.dims + d];
	}
	sums[strand][lane] = sum;
	__syncthreads();
	if (strand > 0 || d >= cl.dims)
		return;
	for (int s = 1; s < STRANDS; s++)
		sum += sums[s][lane];
	cl.d_middle[d] = gv_device_clamp(sum / cl.k);
}

/* The largest number; a warp a row, in turn. */
static __global__ void __launch_bounds__(THREADS)
most_kernel(GvClusters cl)
{
	int			lane = threadIdx.x % GV_WARP;
	int64_t		nwarps = (int64_t) gridDim.x * WARPS;
	float		most = 0.0f;

	for (int64_t row = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
		 row < cl.n; row += nwarps)
		for (int d = lane; d < cl.dims; d += GV_WARP)
			most = fmaxf(most, fabsf(cl.d_rows[row * cl.dims + d] -
									 cl.d_middle[d]));
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		most = fmaxf(most, __shfl_xor_sync(GV_FULL_WARP, most, half));
	/* what is not negative ascends as its bits do */
	if (lane == 0)
		atomicMax(cl.d_most, __float_as_uint(most));
}

/*
 * By a warp: the half copy of a vector, to [half_dims]; at least its length
 * and, in y, the length of what was lost.
 */
static __device__ __forceinline__ float2
to_half_vector(const GvClusters &cl, const float *from, float scale,
			   uint16_t *to)
{
	GvHalfRounding<double> rounding = gv_to_half_vector<double,
		true>([&](int d)
	{
		return d < cl.dims ? (from[d] - cl.d_middle[d]) * scale : 0.0f;
	}, cl.half_dims, to);
	float		length = (float) (sqrt(rounding.square) * (1.0 + 0x1p-21));

	return make_float2(length, (float) (sqrt(rounding.error) *
										(1.0 + 0x1p-20)) +
					   length * 0x1p-22f + 1e-18f);
}

/* A warp a row. */
static __global__ void __launch_bounds__(THREADS)
rows_to_half_kernel(GvClusters cl)
{
	int64_t		row = (int64_t) blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	float2		lengths;

	if (row >= cl.n)
		return;
	lengths =
		to_half_vector(cl, cl.d_rows + row * cl.dims, gv_clusters_scale(cl),
					cl.d_half_rows + row * cl.half_dims);
	if (threadIdx.x % GV_WARP == 0)
		cl.d_lengths[row] = lengths;
}

/* A block a run of centroids, a warp each in turn. */
static __global__ void __launch_bounds__(THREADS)
runs_to_half_kernel(GvClusters cl)
{
	__shared__ float lengths[GV_RUN];
	__shared__ float lost[GV_RUN];
	float		scale = gv_clusters_scale(cl);
	float		length = 0.0f;
	float		error = 0.0f;

	for (int i = threadIdx.x / GV_WARP; i < GV_RUN; i += WARPS)
	{
		int64_t		c = (int64_t) blockIdx.x * GV_RUN + i;
		float2		found = {0.0f, 0.0f};

		if (c < cl.k)
			found = to_half_vector(cl, cl.d_centroids + c * cl.dims, scale,
						  cl.d_half_centroids + c * cl.half_dims);
		if (threadIdx.x % GV_WARP == 0)
		{
			lengths[i] = found.x;
			lost[i] = found.y;
			/* a bit more than |C|^2, by less than 22 2^-24 of it */
			cl.d_squares[c] = c < cl.k ? found.x * found.x : INFINITE;
		}
	}
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	for (int i = 0; i < GV_RUN; i++)
	{
		length = fmaxf(length, lengths[i]);
		error = fmaxf(error, lost[i]);
	}
	cl.d_spans[blockIdx.x] = make_float4(2.0f * (length + error), 2.0f * error,
										 gv_clusters_rest(cl, length + error,
														  scale), 0.0f);
}

/* The middle and the scale, of centroids and rows that are there; the rows. */
GvStatus
gv_gpu_center(const GvClusters *cl, cudaStream_t stream)
{
	GV_LAUNCH(middle_kernel, gv_blocks_for(cl->dims, GV_WARP),
			  GV_WARP * STRANDS, 0, stream, *cl);
	GV_CUDA_TRY(cudaGetLastError());
	GV_CUDA_TRY(cudaMemsetAsync(cl->d_most, 0, sizeof(uint32_t), stream));
	GV_LAUNCH(most_kernel, gv_blocks_for(cl->n, WARPS) < 16 * cl->nsms ?
			  gv_blocks_for(cl->n, WARPS) : 16 * cl->nsms, THREADS, 0, stream,
			  *cl);
	GV_CUDA_TRY(cudaGetLastError());
	GV_LAUNCH(rows_to_half_kernel, gv_blocks_for(cl->n, WARPS), THREADS, 0,
			  stream, *cl);
	return gv_cuda_status(cudaGetLastError());
}

/* The centroids as they are now. */
GvStatus
gv_gpu_to_half(const GvClusters *cl, cudaStream_t stream)
{
	GV_LAUNCH(runs_to_half_kernel, cl->padded_k / GV_RUN, THREADS, 0, stream,
			  *cl);
	return gv_cuda_status(cudaGetLastError());
}
