/*
 * scan.cu
 *		The score S of every live copy of the probed lists.
 *
 * The unit of work is a block of 32 copies, one to a lane, so short lists
 * cost no more than long ones: the blocks of all probes of a query are
 * numbered through and dealt to warps.  S is computed as it is defined: fp32
 * table, fp32 sum in the order of the sub-quantizers, no contraction.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/index/condition.cuh"
#include "gpu/index/gv_index.h"
#include "gpu/index/scan.cuh"

#define GROUP			8		/* chunks of codes on their way at once */
#define FEW_QUERIES		4		/* up to here, thread blocks are small */
#define MOST_RESIDENT	1024	/* threads of an SM, for 64 registers each */

/* The entries of all codes of a copy. */
static __device__ __forceinline__ float
add_codes(const uint4 *codes, int chunks, const char *table)
{
	float		sum = 0.0f;

	for (int first = 0; first < chunks; first += GROUP)
	{
		uint4		words[GROUP];

#pragma unroll
		for (int i = 0; i < GROUP; i++)
			if (first + i < chunks)
				words[i] = __ldcs(codes + (first + i) * GV_WARP);
#pragma unroll
		for (int i = 0; i < GROUP; i++)
			if (first + i < chunks)
				sum = gv_add_chunk(sum, words[i], GV_CHUNK_WORDS, table,
								   (first + i) * GV_CHUNK_BYTES);
	}
	return sum;
}

/*
 * By a warp: the live copies of block b, of query's `probe`, that fulfil the
 * query's condition.  Their number is noted, and *to is where this lane's score
 * belongs, among the query's; where selections want scores side by side, lane 0
 * alone knows that of the first.  Where there is no copy, nothing is left to do.
 */
static __device__ __forceinline__ uint32_t
find_matching(const GvCardModel &card, const GvBatch &batch, int query,
			  int probe, uint32_t b, const uint8_t *block, uint32_t *to)
{
	uint32_t	live = *(const uint32_t *) (block + card.shape.live);
	uint32_t	matching = live &
		gv_card_match(batch.d_tests + (int64_t) query * batch.tests,
					  batch.tests, batch.d_values, block + card.shape.keys);
	int			lane = threadIdx.x % GV_WARP;
	uint32_t	count = __popc(matching);

	*to = b * GV_WARP + lane;
	if (matching == 0 && batch.d_ids == NULL)
		batch.d_scores[(int64_t) query * batch.copies + *to] =
			__int_as_float(0x7F800000);
	if (matching == 0)
		return 0;
	if (lane == 0)
		atomicAdd(&batch.d_matches[(int64_t) query * batch.probes + probe],
				  count);
	if (batch.d_ids != NULL && lane == 0)
		*to = atomicAdd(&batch.d_kept[query], count);
	return matching;
}

/* By a warp: this lane's score of a sampled block, whose live copies these are. */
static __device__ __forceinline__ void
put_sampled(const GvBatch &batch, int query, uint32_t live, float score)
{
	int			lane = threadIdx.x % GV_WARP;
	uint32_t	place = 0;

	if (lane == 0)
		place = atomicAdd(&batch.d_nsampled[query], 1u);
	place = __shfl_sync(GV_FULL_WARP, place, 0);
	batch.d_sampled[(int64_t) query * batch.copies +
					(int64_t) place * GV_WARP + lane] =
		live >> lane & 1 ? gv_card_score(score) : __int_as_float(0x7F800000);
}

/*
 * Block (x, y): query y, its blocks x, x + gridDim.x, ... by warps.
 * Shared: table [chunks * 32][16] floats.
 *
 * CONDITIONS: queries have conditions on keys, or none.  A lane whose copy does
 * not fulfil its query's reads no codes, and leaves no score where selections
 * want those that do side by side (gv_nscores).  Where the query asks of the
 * sample, all copies of its blocks leave a score there besides.
 */
template <int THREADS, bool CONDITIONS>
static __global__ void __launch_bounds__(THREADS, MOST_RESIDENT / THREADS)
scan_kernel(GvCardModel card, GvBatch batch)
{
	constexpr int warps = THREADS / GV_WARP;
	GV_SHARED(table);
	__shared__ GvKept kept;
	int			query = blockIdx.y;
	int			lane = threadIdx.x % GV_WARP;
	int64_t		first_copy = (int64_t) query * batch.copies;
	GvProbes	probes;
	uint32_t	nblocks = gv_scan_begins<THREADS>(card, batch, query,
												  blockIdx.x * warps, table,
												  kept, probes);

	for (uint32_t b = blockIdx.x * warps + threadIdx.x / GV_WARP; b < nblocks;
		 b += gridDim.x * warps)
	{
		int			probe = CONDITIONS ? probes.find_of_many(kept, b) :
			probes.find(kept, b);
		float		base;
		const uint8_t *block = probes.block_of(kept, b, probe,
											   card.shape.block_bytes, &base);
		uint32_t	matching = GV_FULL_WARP;
		uint32_t	scored = GV_FULL_WARP;
		uint32_t	to = b * GV_WARP + lane;
		bool		sampled = false;

		if (CONDITIONS)
		{
			if (batch.sampled && batch.d_ranks[query] > 0)
				sampled = gv_sampled((uint32_t) probes.probed[probe].list,
									 b - probes.start_of(kept, probe));
			matching = find_matching(card, batch, query, probe, b, block, &to);
			scored = sampled ? GV_FULL_WARP : matching;
			if (scored == 0)
				continue;
		}

		float		t = __ldcs((const float *) (block + card.shape.t) + lane);
		uint32_t	live = *(const uint32_t *) (block + card.shape.live);
		uint32_t	high = __ldcs((const uint32_t *) (block + card.shape.high) +
								  lane);
		uint32_t	low = __ldcs((const uint16_t *) (block + card.shape.low) +
								 lane);
		float		sum = 0.0f;

		if (!CONDITIONS || (scored >> lane & 1) != 0)
			sum = add_codes((const uint4 *) block + lane, card.shape.chunks,
							(const char *) table);
		if (CONDITIONS && sampled)
			put_sampled(batch, query, live,
						__fadd_rn(__fadd_rn(base, t), sum));
		/* only now, so that codes did not wait for what lane 0 asked for */
		if (CONDITIONS && batch.d_ids != NULL)
			to = __shfl_sync(GV_FULL_WARP, to, 0) +
				__popc(matching & ((1u << lane) - 1));
		if (!CONDITIONS || batch.d_ids == NULL || (matching >> lane & 1) != 0)
			gv_put_copy(batch, first_copy + to, live & matching,
						__fadd_rn(__fadd_rn(base, t), sum), high, low, probe);
	}
}

template <int THREADS, bool CONDITIONS>
static GvStatus
launch(const GvCardModel *card, const GvBatch *batch, GvSearcher *searcher)
{
	constexpr int warps = THREADS / GV_WARP;
	int			table_bytes = card->shape.chunks * GV_CHUNK_BYTES;
	int64_t		most = (batch->copies / GV_WARP + warps - 1) / warps;
	int64_t		share = gv_share_of(MOST_RESIDENT / THREADS * searcher->nsms,
								 batch->n);
	dim3		grid((unsigned) (share < most ? share : most), batch->n);

	if (grid.x == 0)
		return GV_OK;
	return gv_launch_step(scan_kernel<THREADS, CONDITIONS>, grid, THREADS, table_bytes,
						  searcher->stream, card, batch);
}

/* d_scores [n][copies] of a batch, in the order of its blocks. */
GvStatus
gv_gpu_scan(const GvCardModel *card, const GvBatch *batch,
			GvSearcher *searcher)
{
	if (batch->tests > 0)
		return batch->n <= FEW_QUERIES ?
			launch<64, true>(card, batch, searcher) :
			launch<256, true>(card, batch, searcher);
	if (gv_gpu_hopper_fits(batch, searcher) && gv_gpu_hopper_scans(card))
		return gv_gpu_hopper_scan(card, batch, searcher);
	/* a lone query's blocks are few: they should be on many processors */
	if (batch->n <= FEW_QUERIES)
		return launch<64, false>(card, batch, searcher);
	return launch<256, false>(card, batch, searcher);
}
