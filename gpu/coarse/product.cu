/*
 * product.cu
 *		Approximate scores of all lists for many queries: a matrix product of
 *		half-precision copies, with sums in fp32; as every card can.  Those of
 *		compute capability 9.0 have hopperproduct.cu instead.
 *
 * A block of threads has a tile of queries x lists, each of its warps a part
 * of it.  Slices of the tile's rows (slices.cuh) come to shared memory STAGES -
 * 1 ahead of the products.
 *
 * Bytes from L2: a slice of a tile of 128 x 256 is 24 KB for 1 M products,
 * 1,024 clocks of an SM, or 24 a clock and SM; of 128 x 128 it would be 32, and
 * all SMs together more than L2 gives.  Tiles of the same lists follow each
 * other, so that centroids in the card's memory are read once.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/coarse/product.cuh"
#include "gpu/common/common.cuh"
#include "gpu/common/mma.cuh"
#include "gpu/common/slices.cuh"
#include "gpu/common/warpselect.cuh"

#define STAGES			4
#define SMALL_BATCH		128		/* queries */

/* A slice of a tile's lists, behind its queries. */
template <int QUERIES, int LISTS, int THREADS>
static __device__ __forceinline__ void
send_lists(const GvCardModel &card, int list, int step, uint4 *stage)
{
	gv_send_rows<LISTS, THREADS>(stage + QUERIES * GV_PIECES, card.d_halves,
								 list, card.nlists, card.half_dims, step);
}

/*
 * Tile number blockIdx.x, ntiles of them side by side for the same lists:
 * QUERIES queries x LISTS lists; warps stand 2 x ACROSS.
 * Shared: STAGES slices of QUERIES rows, then of LISTS.
 */
template <int QUERIES, int LISTS, int ACROSS>
static __global__ void __launch_bounds__(2 * ACROSS *GV_WARP)
product_kernel(GvCardModel card, GvBatch batch)
{
	constexpr int THREADS = 2 * ACROSS * GV_WARP;
	constexpr int QM = QUERIES / 2 / 16;
	constexpr int LN = LISTS / ACROSS / 16;
	constexpr int STAGE = (QUERIES + LISTS) * GV_PIECES;
	GV_SHARED(memory);
	int			ntiles = (batch.n + QUERIES - 1) / QUERIES;
	int			warp = threadIdx.x / GV_WARP;
	int			warp_query = warp / ACROSS * (QUERIES / 2);
	int			warp_list = warp % ACROSS * (LISTS / ACROSS);
	int			query = blockIdx.x % ntiles * QUERIES;
	int			list = blockIdx.x / ntiles * LISTS;
	int			nsteps = (card.half_dims + GV_SLICE - 1) / GV_SLICE;
	float		sums[QM][2 * LN][4] = {};

	/* 1. the first slices, of lists before the queries are there; beyond the
	 * last one a group is empty */
	for (int step = 0; step < min(STAGES - 1, nsteps); step++)
		send_lists<QUERIES, LISTS, THREADS>(card, list, step,
											memory + step * STAGE);
	gv_step_begins();
	for (int step = 0; step < STAGES - 1; step++)
	{
		if (step < nsteps)
			gv_send_rows<QUERIES, THREADS>(memory + step * STAGE,
										   batch.approx.d_halves, query, batch.n,
										   card.half_dims, step);
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
		{
			uint4	   *next = memory + ahead % STAGES * STAGE;

			send_lists<QUERIES, LISTS, THREADS>(card, list, ahead, next);
			gv_send_rows<QUERIES, THREADS>(next, batch.approx.d_halves, query,
										   batch.n, card.half_dims, ahead);
		}
		gv_commit_copies();
		gv_multiply_slice<QM, LN>(sums, stage, warp_query,
								  stage + QUERIES * GV_PIECES, warp_list);
	}

	/* 3. out */
	gv_put_sums<QM>(card, batch, sums, query + warp_query, list + warp_list);
}

template <int QUERIES, int LISTS, int ACROSS>
static GvStatus
launch(const GvCardModel *card, const GvBatch *batch, cudaStream_t stream)
{
	constexpr int bytes = STAGES * (QUERIES + LISTS) * GV_PIECES *
		(int) sizeof(uint4);
	int			ntiles = (batch->n + QUERIES - 1) / QUERIES;
	int			across = (card->nlists + LISTS - 1) / LISTS;

	return gv_launch_step(product_kernel<QUERIES, LISTS, ACROSS>,
						  ntiles * across, 2 * ACROSS * GV_WARP, bytes, stream,
						  card, batch);
}

/* d_coarse, approximate, and d_least of a batch. */
GvStatus
gv_gpu_product(const GvCardModel *card, const GvBatch *batch,
			   const GvSearcher *searcher)
{
	if (gv_gpu_hopper_fits(batch, searcher) && gv_gpu_hopper_multiplies())
		return gv_gpu_hopper_product(card, batch, searcher);
	/* few large tiles leave SMs without work */
	if (batch->n <= SMALL_BATCH)
		return launch<32, 64, 2>(card, batch, searcher->stream);
	return launch<128, 256, 4>(card, batch, searcher->stream);
}
