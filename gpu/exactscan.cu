/*
 * exactscan.cu
 *		Scores of a few queries and many rows: rows are read once, which takes
 *		longer than all else.
 *
 * Half a warp takes AHEAD rows at a time, 16 bytes of each a lane, so that 64
 * bytes a lane are on their way; the queries are in shared memory, in fp32.
 * Sums are of products of halves, exact in fp32, one after the other in a lane
 * and then across 16 lanes: well within what tensor cores may do.
 */
#include "exact.cuh"
#include "mma.cuh"

#define THREADS			256
#define TEAM			16		/* lanes that share a row */
#define TEAMS			(THREADS / TEAM)
#define AHEAD			4		/* rows of a team */
#define BLOCKS			4		/* of an SM */

/* Eight halves of a row times those of all queries. */
template <int N>
static __device__ __forceinline__ void
add_piece(float (&sums)[N], uint4 piece, const float *queries, int half_dims,
		  int d)
{
	uint32_t	words[4] = {piece.x, piece.y, piece.z, piece.w};

#pragma unroll
	for (int w = 0; w < 4; w++)
	{
		float		low = gv_from_half((uint16_t) words[w]);
		float		high = gv_from_half((uint16_t) (words[w] >> 16));

#pragma unroll
		for (int q = 0; q < N; q++)
		{
			const float *query = queries + q * half_dims + d + 2 * w;

			sums[q] = fmaf(low, query[0], fmaf(high, query[1], sums[q]));
		}
	}
}

/* What is to become of the score of a query and a row. */
static __device__ __forceinline__ void
put_score(const GvExactProduct &product, int q, uint32_t row, float score,
		  float cut)
{
	if (product.d_scores != NULL)
		product.d_scores[(int64_t) q * product.nslots + row] = score;
	else if (score >= cut)
		gv_exact_append(product.filter, q, product.first + row);
}

/*
 * Rows of blockIdx.x's teams and every gridDim.x-th so many.
 * Shared: the queries [N][half_dims].
 */
template <int N>
static __global__ void __launch_bounds__(THREADS, N <= 4 ? BLOCKS : 2)
scan_rows_kernel(GvExactProduct product)
{
	GV_SHARED(memory);
	float	   *queries = (float *) memory;
	int			lane = threadIdx.x % TEAM;
	int			pieces = product.half_dims / 8;
	float		cut = 0.0f;		/* of query `lane` */

	for (int i = threadIdx.x; i < N * product.half_dims; i += THREADS)
		queries[i] = i < product.n * product.half_dims ?
			gv_from_half(product.d_queries[i]) : 0.0f;
	if (lane < product.n && product.d_scores == NULL)
		cut = product.filter.d_cuts[lane];
	__syncthreads();
	for (int64_t first = ((int64_t) blockIdx.x * TEAMS +
						  threadIdx.x / GV_WARP * 2) * AHEAD;
		 first < product.nslots; first += (int64_t) gridDim.x * TEAMS * AHEAD)
	{
		uint32_t	row = (uint32_t) first + threadIdx.x % GV_WARP / TEAM * AHEAD;
		float		sums[AHEAD][N] = {};

		for (int p = lane; p < pieces; p += TEAM)
		{
			uint4		x[AHEAD];

#pragma unroll
			for (int i = 0; i < AHEAD; i++)
				x[i] = row + i < product.nslots ? ((const uint4 *)
					(product.d_halves + (int64_t) (row + i) *
					 product.half_dims))[p] : make_uint4(0, 0, 0, 0);
#pragma unroll
			for (int i = 0; i < AHEAD; i++)
				add_piece<N>(sums[i], x[i], queries, product.half_dims, p * 8);
		}
		/* lane q of a team has query q's score in the end */
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
		{
			float		mine = 0.0f;

#pragma unroll
			for (int q = 0; q < N; q++)
			{
				float		sum = sums[i][q];

				for (int half = TEAM / 2; half > 0; half /= 2)
					sum += __shfl_xor_sync(GV_FULL_WARP, sum, half);
				mine = lane == q ? sum : mine;
			}
			if (lane < product.n && row + i < product.nslots)
				put_score(product, lane, row + i,
						  mine + product.d_bias[row + i], cut);
		}
	}
}

template <int N>
static GvStatus
launch(const GvExactProduct *product, int nsms, cudaStream_t stream)
{
	int			bytes = N * product->half_dims * (int) sizeof(float);
	int			blocks = gv_exact_blocks(product->nslots, TEAMS * AHEAD);

	if (bytes > 48 * 1024)
		GV_CUDA_TRY(cudaFuncSetAttribute(scan_rows_kernel<N>,
										 cudaFuncAttributeMaxDynamicSharedMemorySize,
										 bytes));
	GV_LAUNCH(scan_rows_kernel<N>, min(blocks, BLOCKS * nsms), THREADS, bytes,
			  stream, *product);
	return gv_cuda_status(cudaGetLastError());
}

/* See gv_exact.h; up to GV_EXACT_FEW queries, whose halves fit 96 KB. */
GvStatus
gv_gpu_exact_scan(const GvExactProduct *product, int nsms, cudaStream_t stream)
{
	if (product->n == 1)
		return launch<1>(product, nsms, stream);
	if (product->n <= 4)
		return launch<4>(product, nsms, stream);
	return launch<8>(product, nsms, stream);
}
