/*
 * filterproduct.cu
 *		Scores of queries and rows by mma.sync, as every card can, and what
 *		reaches a query's cut; or all of them, to memory.
 *
 * Tiles, slices and their order are those of product.cu.
 */
#include "gpu/common/slices.cuh"
#include "gpu/exact/filter/exact.cuh"

#define STAGES			4
#define QUERIES			128		/* of a tile */
#define ROWS			128
#define ACROSS			4		/* warps stand 2 x ACROSS */
#define THREADS			(2 * ACROSS * GV_WARP)
#define QM				(QUERIES / 2 / 16)
#define LN				(ROWS / ACROSS / 16)
#define STAGE			((QUERIES + ROWS) * GV_PIECES)

/* Slice number `step` of a tile. */
static __device__ __forceinline__ void
send(const GvExactProduct &product, int query, int row, int step,
	 uint4 *stage)
{
	gv_send_rows<QUERIES, THREADS>(stage, product.d_queries, query, product.n,
								   product.half_dims, step);
	gv_send_rows<ROWS, THREADS>(stage + QUERIES * GV_PIECES, product.d_halves,
								row, (int) product.nslots, product.half_dims,
								step);
}

/* A warp's sums, [QM * 16 queries][LN * 16 rows] as mma.cuh has D, to memory. */
static __device__ __forceinline__ void
put_scores(const GvExactProduct &product, float (&sums)[QM][2 * LN][4],
		   int query, int row)
{
	int			lane = threadIdx.x % GV_WARP;

#pragma unroll
	for (int j = 0; j < 2 * LN; j++)
#pragma unroll
		for (int c = 0; c < 2; c++)
		{
			int			r = row + j * 8 + lane % 4 * 2 + c;
			float		bias;

			if (r >= (int) product.nslots)
				continue;
			bias = product.d_bias[r];
#pragma unroll
			for (int i = 0; i < 2 * QM; i++)
			{
				int			q = query + i * 8 + lane / 4;

				if (q < product.n)
					product.d_scores[(int64_t) q * product.nslots + r] =
						sums[i / 2][j][i % 2 * 2 + c] + bias;
			}
		}
}

/* ... or what reaches the cuts to candidates. */
static __device__ __forceinline__ void
put_candidates(const GvExactProduct &product, float (&sums)[QM][2 * LN][4],
		 int query, int row)
{
	int			lane = threadIdx.x % GV_WARP;
	float		cuts[2 * QM];

#pragma unroll
	for (int i = 0; i < 2 * QM; i++)
	{
		int			q = query + i * 8 + lane / 4;

		/* rows that cannot be held reach everything but NaN */
		cuts[i] = q < product.n ? product.filter.d_cuts[q] :
			__int_as_float(0x7FC00000);
	}
#pragma unroll
	for (int j = 0; j < 2 * LN; j++)
#pragma unroll
		for (int c = 0; c < 2; c++)
		{
			int			r = row + j * 8 + lane % 4 * 2 + c;
			float		bias = r < (int) product.nslots ? product.d_bias[r] :
				__int_as_float(0xFF800000);

#pragma unroll
			for (int i = 0; i < 2 * QM; i++)
				if (sums[i / 2][j][i % 2 * 2 + c] + bias >= cuts[i])
					gv_exact_append(product.filter, query + i * 8 + lane / 4,
									product.first + r);
		}
}

/*
 * Tile number blockIdx.x; those of the same rows side by side.
 * Shared: STAGES slices of QUERIES rows, then of ROWS.
 */
template <bool STORES>
static __global__ void __launch_bounds__(THREADS)
exact_product_kernel(GvExactProduct product)
{
	GV_SHARED(memory);
	int			ntiles = (product.n + QUERIES - 1) / QUERIES;
	int			warp = threadIdx.x / GV_WARP;
	int			warp_query = warp / ACROSS * (QUERIES / 2);
	int			warp_row = warp % ACROSS * (ROWS / ACROSS);
	int			query = blockIdx.x % ntiles * QUERIES;
	int			row = blockIdx.x / ntiles * ROWS;
	int			nsteps = (product.half_dims + GV_SLICE - 1) / GV_SLICE;
	float		sums[QM][2 * LN][4] = {};

	/* 1. the first slices; beyond the last one a group is empty */
	for (int step = 0; step < STAGES - 1; step++)
	{
		if (step < nsteps)
			send(product, query, row, step, memory + step * STAGE);
		gv_commit_copies();
	}

	/* 2. one slice after the other; the barrier is for both its rows, which
	 * all threads sent, and the slice before it, whose memory is filled anew */
	for (int step = 0; step < nsteps; step++)
	{
		uint4	   *stage = memory + step % STAGES * STAGE;
		int			ahead = step + STAGES - 1;

		gv_wait_copies<STAGES - 2>();
		__syncthreads();
		if (ahead < nsteps)
			send(product, query, row, ahead, memory + ahead % STAGES * STAGE);
		gv_commit_copies();
		gv_multiply_slice<QM, LN>(sums, stage, warp_query,
								  stage + QUERIES * GV_PIECES, warp_row);
	}

	/* 3. out */
	if (STORES)
		put_scores(product, sums, query + warp_query, row + warp_row);
	else
		put_candidates(product, sums, query + warp_query, row + warp_row);
}

template <bool STORES>
static GvStatus
launch(const GvExactProduct *product, cudaStream_t stream)
{
	constexpr int bytes = STAGES * STAGE * (int) sizeof(uint4);
	int			ntiles = (product->n + QUERIES - 1) / QUERIES;
	int			across = (int) ((product->nslots + ROWS - 1) / ROWS);

	GV_TRY(gv_allow_shared((const void *) exact_product_kernel<STORES>,
						   bytes));
	GV_LAUNCH(exact_product_kernel<STORES>, ntiles * across, THREADS, bytes,
			  stream, *product);
	return gv_cuda_status(cudaGetLastError());
}

/* See gv_exact.h. */
GvStatus
gv_gpu_exact_product(const GvExactProduct *product, cudaStream_t stream)
{
	return product->d_scores != NULL ? launch<true>(product, stream) :
		launch<false>(product, stream);
}
