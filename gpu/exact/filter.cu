/*
 * filter.cu
 *		The filter's product on every device: computes the scores of queries
 *		and rows, and either stores all scores or appends the slots that reach
 *		a query's threshold.
 *
 * For many queries gpu/product multiplies.  For up to GV_EXACT_FEW queries,
 * most time is spent reading the rows, so the rows are read only once: tensor
 * cores multiply 16 rows of a warp by COLUMNS x 8 queries (mma.cuh), with
 * zeros for missing queries.  Dimensions may be in any order that rows and
 * queries share.  So of 32 dimensions of a row, lane t of the row's four lanes
 * loads eight consecutive ones, which are 16 bytes, and gives four of them to
 * each of two products.  In this way rows stay in registers as they are in
 * memory.  A lane has 2 * AHEAD loads of rows in flight, and a warp has 4 KB.
 */
#include "gpu/device/mma.cuh"
#include "gpu/exact/exact.cuh"
#include "gpu/product/product.cuh"

#define TILES			(GV_COLUMN_GROUP / 8)
#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define BLOCKS			2		/* blocks of an SM */
#define ROWS			16		/* rows that a warp multiplies at once */
#define TILE			8		/* queries of a tensor core product */
#define COLUMNS			2		/* products for the same rows */
#define DEPTH			32		/* dimensions of a row that its four lanes load
								 * at once */
#define AHEAD			4
#define MOST_SCANNED	(96 * 1024) /* maximum bytes of queries in shared
									 * memory */

/*
 * If `stores` is true, stores the score of a query and a row, if both exist.
 * Otherwise appends the row to the query's candidates if the score reaches the
 * threshold.
 */
static __device__ __forceinline__ void
put_score(const GvExactMatmul &matmul, bool stores, int q, int64_t row,
		  float score, float threshold)
{
	if (stores)
	{
		if (q < matmul.n && row < matmul.nslots)
			matmul.d_scores[(int64_t) q * matmul.nslots + row] = score;
	}
	else if (score >= threshold)
		gv_exact_append(matmul.filter, q, matmul.first + (uint32_t) row);
}

/* -- many queries */

/* The epilogue that stores scores, or appends slots that reach a threshold. */
template <bool STORES>
struct Scores
{
	GvExactMatmul matmul;

	/* the biases of a lane's rows in a group of GV_COLUMN_GROUP rows */
	struct ColumnState
	{
		float2		bias[TILES];
	};

	struct Row
	{
		float		threshold;
	};

	/*
	 * Columns beyond the last query get the threshold NaN, which no row
	 * reaches.  Rows that half precision cannot hold reach all other
	 * thresholds.
	 */
	__device__ __forceinline__ void
	begin(Row *mine, int query) const
	{
		mine->threshold = !STORES && query < matmul.n ?
			matmul.filter.d_thresholds[query] : GV_NAN;
	}

	__device__ __forceinline__ void
	end(Row *, int) const
	{
	}

	__device__ __forceinline__ float
	bias_of(int row) const
	{
		return row < (int) matmul.nslots ? matmul.d_bias[row] : -GV_INFINITY;
	}

	__device__ __forceinline__ ColumnState
	column_state(int group) const
	{
		int			row = group * GV_COLUMN_GROUP + threadIdx.x % 4 * 2;
		ColumnState found;

#pragma unroll
		for (int j = 0; j < TILES; j++)
			found.bias[j] = make_float2(bias_of(row + j * 8),
										bias_of(row + j * 8 + 1));
		return found;
	}

	__device__ __forceinline__ void
	consume(const ColumnState &of, const Row *mine, int query, int group,
			const float2 (&sums)[TILES]) const
	{
		int			row = group * GV_COLUMN_GROUP + threadIdx.x % 4 * 2;
		float		threshold = mine->threshold;

#pragma unroll
		for (int j = 0; j < TILES; j++)
		{
			put_score(matmul, STORES, query, row + j * 8,
					  sums[j].x + of.bias[j].x, threshold);
			put_score(matmul, STORES, query, row + j * 8 + 1,
					  sums[j].y + of.bias[j].y, threshold);
		}
	}
};

GvStatus
gv_gpu_exact_matmul(const GvExactMatmul *exact, const GvBlas *blas,
					cudaStream_t stream)
{
	GvMatmul	matmul = {exact->d_queries, exact->n, exact->d_half_rows,
		(int32_t) exact->nslots, exact->half_dims};
	/* false: Hopper's instructions are used by hopperfilter.cu */
	GvMatmulContext context = {blas, false, 0, false, stream};

	if (exact->d_scores != NULL)
		return gv_gpu_matmul<false>(&context, &matmul, Scores<true> {*exact});
	return gv_gpu_matmul<false>(&context, &matmul, Scores<false> {*exact});
}

/* -- few queries */

/*
 * Returns the stride of queries in shared memory, in halves.  With this stride
 * different queries cause no bank conflicts, and each query has memory for a
 * multiple of DEPTH dimensions.
 */
static __host__ __device__ inline int
stride_of(int half_dims)
{
	return (half_dims + 63) / 64 * 64 + 32;
}

/*
 * Adds to `sums` the products of a piece of two rows with the same piece of a
 * query of each tile.
 */
static __device__ __forceinline__ void
multiply_pieces(float (&sums)[COLUMNS][4], const uint4 &low, const uint4 &high,
				const uint16_t *query, int stride)
{
	uint32_t	first[4] = {low.x, high.x, low.y, high.y};
	uint32_t	second[4] = {low.z, high.z, low.w, high.w};

#pragma unroll
	for (int j = 0; j < COLUMNS; j++)
	{
		uint4		q = *(const uint4 *) (query + j * TILE * stride);

		gv_mma(sums[j], first, q.x, q.y);
		gv_mma(sums[j], second, q.z, q.w);
	}
}

/*
 * Returns the address of this lane's part of a row.  If there are fewer rows,
 * returns this lane's part of the last row.
 */
static __device__ __forceinline__ const uint16_t *
row_at(const GvExactMatmul &matmul, int64_t row)
{
	return matmul.d_half_rows + min(row, (int64_t) matmul.nslots - 1) *
		matmul.half_dims + threadIdx.x % 4 * 8;
}

/*
 * Computes the sums of ROWS rows in layout D of mma.cuh.  `query` is the
 * address of this lane's part of its first query.
 */
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
				multiply_pieces(sums, low[i], high[i], query + d + i * DEPTH,
								stride);
	}
}

/*
 * Computes the scores of few queries.  The warps of the grid take ROWS rows
 * each in turn.  Shared memory: the queries [COLUMNS * TILE][stride].
 */
static __global__ void __launch_bounds__(THREADS, BLOCKS)
scan_rows_kernel(GvExactMatmul matmul)
{
	GV_SHARED(memory);
	uint16_t   *queries = (uint16_t *) memory;
	int			stride = stride_of(matmul.half_dims);
	int			lane = threadIdx.x % GV_WARP;
	const uint16_t *query = queries + lane / 4 * stride + lane % 4 * 8;
	float		thresholds[COLUMNS][2]; /* no score reaches NaN */

	gv_pdl_wait();
	for (int i = threadIdx.x; i < COLUMNS * TILE * stride; i += THREADS)
	{
		int			q = i / stride;
		int			d = i % stride;

		queries[i] = q < matmul.n && d < matmul.half_dims ?
			matmul.d_queries[q * matmul.half_dims + d] : 0;
	}
#pragma unroll
	for (int i = 0; i < 2 * COLUMNS; i++)
	{
		int			q = i / 2 * TILE + lane % 4 * 2 + i % 2;

		thresholds[i / 2][i % 2] = q < matmul.n && matmul.d_scores == NULL ?
			matmul.filter.d_thresholds[q] : GV_NAN;
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
				put_score(matmul, matmul.d_scores != NULL,
						  i / 2 * TILE + lane % 4 * 2 + i % 2, row,
						  sums[i / 2][2 * h + i % 2] + bias,
						  thresholds[i / 2][i % 2]);
		}
	}
}

static size_t
query_bytes(const GvExactMatmul *matmul)
{
	return COLUMNS * TILE * stride_of(matmul->half_dims) * sizeof(uint16_t);
}

bool
gv_gpu_exact_scan_fits(const GvExactMatmul *matmul)
{
	return matmul->n <= GV_EXACT_FEW && query_bytes(matmul) <= MOST_SCANNED;
}

GvStatus
gv_gpu_exact_scan(const GvExactMatmul *matmul, int nsms, cudaStream_t stream)
{
	int			blocks = gv_blocks_for(matmul->nslots, WARPS * ROWS);

	return gv_launch_pdl(matmul->filter.pdl, scan_rows_kernel,
						 min(blocks, BLOCKS * nsms), THREADS,
						 query_bytes(matmul), stream, *matmul);
}
