/*
 * fewscan.cu
 *		Scores of a few queries and many rows: rows are read once, which takes
 *		longer than all else.
 *
 * Products are those of fewscan.cuh.  A lane has 2 * AHEAD loads of rows on
 * their way, a warp 4 KB.
 */
#include "gpu/exact/few/fewscan.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define BLOCKS			2		/* of an SM */
#define COLUMNS			GV_FEW_COLUMNS
#define ROWS			GV_FEW_ROWS
#define DEPTH			GV_FEW_DEPTH
#define TILE			GV_FEW_TILE
#define AHEAD			4

/* A lane's part of a row, or of the last one. */
static __device__ __forceinline__ const uint16_t *
row_at(const GvExactMatmul &matmul, int64_t row)
{
	return matmul.d_half_rows + min(row, (int64_t) matmul.nslots - 1) *
		matmul.half_dims + threadIdx.x % 4 * 8;
}

/* Scores of ROWS rows, as mma.cuh has D; queries: this lane's, shared. */
static __device__ __forceinline__ void
multiply_rows(float (&sums)[COLUMNS][4], const GvExactMatmul &matmul,
			  int64_t row, const uint16_t *query, int stride)
{
	int			lane = threadIdx.x % GV_WARP;
	int			left = matmul.half_dims - lane % 4 * 8;
	const uint16_t *low_row = row_at(matmul, row + lane / 4);
	const uint16_t *high_row = row_at(matmul, row + lane / 4 + 8);

#pragma unroll 1
	for (int d = 0; d < matmul.half_dims; d += AHEAD * DEPTH)
	{
		uint4		low[AHEAD];
		uint4		high[AHEAD];

#pragma unroll
		for (int i = 0; i < AHEAD; i++)
		{
			int			at = d + i * DEPTH;

			low[i] = at < left ? *(const uint4 *) (low_row + at) :
				make_uint4(0, 0, 0, 0);
			high[i] = at < left ? *(const uint4 *) (high_row + at) :
				make_uint4(0, 0, 0, 0);
		}
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			if (d + i * DEPTH < matmul.half_dims)
				gv_exact_few_multiply(sums, low[i], high[i],
									  query + d + i * DEPTH, stride);
	}
}

/* Stores the score of a query and a row, or appends the row if in reach. */
static __device__ __forceinline__ void
put_score(const GvExactMatmul &matmul, int q, int64_t row, float score,
		  float cut)
{
	if (matmul.d_scores != NULL)
	{
		if (q < matmul.n)
			matmul.d_scores[(int64_t) q * matmul.nslots + row] = score;
	}
	else if (score >= cut)
		gv_exact_append(matmul.filter, q, matmul.first + (uint32_t) row);
}

/*
 * ROWS rows of each warp of the grid, and as many again.
 * Shared: the queries [COLUMNS * TILE][stride].
 */
static __global__ void __launch_bounds__(THREADS, BLOCKS)
scan_rows_kernel(GvExactMatmul matmul)
{
	GV_SHARED(memory);
	uint16_t   *queries = (uint16_t *) memory;
	int			stride = gv_exact_few_stride(matmul.half_dims);
	int			lane = threadIdx.x % GV_WARP;
	const uint16_t *query = queries + lane / 4 * stride + lane % 4 * 8;
	float		cuts[COLUMNS][2];	/* nothing reaches NaN */

	gv_step_begins();
	gv_exact_few_queries(queries, matmul.d_queries, matmul.n,
						 matmul.half_dims);
#pragma unroll
	for (int i = 0; i < 2 * COLUMNS; i++)
	{
		int			q = i / 2 * TILE + lane % 4 * 2 + i % 2;

		cuts[i / 2][i % 2] = q < matmul.n && matmul.d_scores == NULL ?
			matmul.filter.d_cuts[q] : __int_as_float(0x7FC00000);
	}
	__syncthreads();
	for (int64_t first = ((int64_t) blockIdx.x * WARPS +
						  threadIdx.x / GV_WARP) * ROWS;
		 first < matmul.nslots; first += (int64_t) gridDim.x * WARPS * ROWS)
	{
		float		sums[COLUMNS][4] = {};

		multiply_rows(sums, matmul, first, query, stride);
#pragma unroll
		for (int h = 0; h < 2; h++)
		{
			int64_t		row = first + lane / 4 + 8 * h;
			float		bias;

			if (row >= matmul.nslots)
				continue;
			bias = matmul.d_bias[row];
#pragma unroll
			for (int i = 0; i < 2 * COLUMNS; i++)
				put_score(matmul, i / 2 * TILE + lane % 4 * 2 + i % 2, row,
						  sums[i / 2][2 * h + i % 2] + bias,
						  cuts[i / 2][i % 2]);
		}
	}
}

/* See gv_exact.h. */
size_t
gv_exact_scan_bytes(const GvExactMatmul *matmul)
{
	return COLUMNS * TILE * gv_exact_few_stride(matmul->half_dims) *
		sizeof(uint16_t);
}

/* See gv_exact.h; up to GV_EXACT_FEW queries. */
GvStatus
gv_gpu_exact_scan(const GvExactMatmul *matmul, int nsms, cudaStream_t stream)
{
	int			blocks = gv_exact_blocks(matmul->nslots, WARPS * ROWS);

	return gv_launch_early(matmul->filter.overlap, scan_rows_kernel,
						   min(blocks, BLOCKS * nsms), THREADS,
						   gv_exact_scan_bytes(matmul), stream, *matmul);
}
