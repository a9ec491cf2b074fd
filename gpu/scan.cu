/*
 * scan.cu
 *		The score S of every live copy of the probed lists.
 *
 * The unit of work is a block of 32 copies, one to a lane, so short lists
 * cost no more than long ones: the blocks of all probes of a query are
 * numbered through and dealt to warps.  S is computed as it is defined: fp32
 * table, fp32 sum in the order of the sub-quantizers, no contraction.
 *
 * A row of the table is 16 words in 16 banks, so look-ups never conflict.  A
 * byte of codes, masked and shifted, is an offset in bytes within a row: one
 * byte permutation puts it below the chunk's offset, the row's own is a
 * constant.  So a look-up is that, a load, an addition, and half an operation
 * for masks.
 */
#include "select.cuh"
#include "gv_cuda.h"

#define CHUNK_BYTES		(2 * GV_CHUNK * GV_CODEWORDS * 4)	/* of the table */
#define ROW_BYTES		(GV_CODEWORDS * 4)
#define GROUP			8		/* chunks of codes on their way at once */
#define AHEAD			4		/* 16-byte pieces of the table likewise */
#define KEPT			64		/* probes of a query that are */
#define FEW_QUERIES		4		/* up to here, thread blocks are small */
#define MOST_RESIDENT	1024	/* threads of an SM, for 64 registers each */
#define MOST_WAVES		4

/* Add the table entries of four bytes, eight codes, lowest first. */
static __device__ __forceinline__ float
add_word(float sum, uint32_t word, const char *rows, uint32_t chunk)
{
	uint32_t	low = word << 2 & 0x3C3C3C3C;
	uint32_t	high = word >> 2 & 0x3C3C3C3C;

#pragma unroll
	for (int i = 0; i < 4; i++)
	{
		/* the three upper bytes of chunk, above byte i of the other */
		uint32_t	even = __byte_perm(low, chunk, 0x7650 | i);
		uint32_t	odd = __byte_perm(high, chunk, 0x7650 | i);

		sum = __fadd_rn(sum, *(const float *) (rows + even +
											   2 * i * ROW_BYTES));
		sum = __fadd_rn(sum, *(const float *) (rows + odd +
											   (2 * i + 1) * ROW_BYTES));
	}
	return sum;
}

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
			{
				uint32_t	chunk = (first + i) * CHUNK_BYTES;

				sum = add_word(sum, words[i].x, table, chunk);
				sum = add_word(sum, words[i].y, table + 8 * ROW_BYTES, chunk);
				sum = add_word(sum, words[i].z, table + 16 * ROW_BYTES, chunk);
				sum = add_word(sum, words[i].w, table + 24 * ROW_BYTES, chunk);
			}
	}
	return sum;
}

/* The first probes of a query, in shared memory. */
struct Kept
{
	uint32_t	starts[KEPT];
	float		bases[KEPT];
	const uint8_t *firsts[KEPT];
};

static_assert(sizeof(Kept) <= GV_SCAN_OWN, "room beside a table");

/* The probes of a query: the first ones there as soon as the step begins. */
struct Probes
{
	const uint32_t *starts;		/* [nprobed + 1] */
	const uint8_t *const *firsts;
	const GvProbe *probed;
	int			nprobed;

	/* By all threads; whatever was found, there is room for batch.probes. */
	__device__ __forceinline__ void
	load(const GvBatch &batch, int query, Kept &kept)
	{
		int			p = threadIdx.x;

		starts = batch.d_starts + (int64_t) query * (batch.probes + 1);
		firsts = batch.d_first + (int64_t) query * batch.probes;
		probed = batch.d_probed + (int64_t) query * batch.probes;
		if (p < KEPT && p < batch.probes)
		{
			kept.starts[p] = starts[p];
			kept.firsts[p] = firsts[p];
			kept.bases[p] = probed[p].base;
		}
	}

	/* By a warp: the last probe that starts at or before block b. */
	__device__ __forceinline__ int
	find(const Kept &kept, uint32_t b) const
	{
		int			n = 0;

#pragma unroll
		for (int first = 0; first < KEPT; first += GV_WARP)
		{
			int			p = first + threadIdx.x % GV_WARP;

			n += __popc(__ballot_sync(GV_FULL_WARP,
									  p < nprobed && kept.starts[p] <= b));
		}
		if (n == KEPT && nprobed > n)
			n = gv_probe_of(starts, nprobed, b) + 1;
		return n - 1;
	}

	/* Where block b of a probe is, and the score that its list has. */
	__device__ __forceinline__ const uint8_t *
	block_of(const Kept &kept, uint32_t b, int probe, int block_bytes,
			 float *base) const
	{
		bool		is_kept = probe < KEPT;
		uint32_t	start = is_kept ? kept.starts[probe] : starts[probe];

		*base = is_kept ? kept.bases[probe] : probed[probe].base;
		return (is_kept ? kept.firsts[probe] : firsts[probe]) +
			(int64_t) (b - start) * block_bytes;
	}
};

/*
 * Block (x, y): query y, its blocks x, x + gridDim.x, ... by warps.
 * Shared: table [chunks * 32][16] floats.
 */
template <int THREADS>
static __global__ void __launch_bounds__(THREADS, MOST_RESIDENT / THREADS)
scan_kernel(GvCardModel card, GvBatch batch)
{
	constexpr int warps = THREADS / GV_WARP;
	GV_SHARED(table);
	__shared__ Kept kept;
	int			query = blockIdx.y;
	int			lane = threadIdx.x % GV_WARP;
	int			npieces = card.shape.chunks * CHUNK_BYTES / GV_CHUNK;
	const uint4 *made = (const uint4 *) batch.d_tables +
		(int64_t) query * npieces;
	int64_t		first_copy = (int64_t) query * batch.copies;
	uint32_t	nblocks;
	GvFound		found;
	uint4		ahead[AHEAD];
	Probes		probes;

	/* 1. all that is to be known, at once */
	gv_step_begins();
#pragma unroll
	for (int i = 0; i < AHEAD; i++)
		if (i * THREADS + (int) threadIdx.x < npieces)
			ahead[i] = made[i * THREADS + threadIdx.x];
	probes.load(batch, query, kept);
	found = batch.d_found[query];
	probes.nprobed = found.nprobed;
	nblocks = batch.probes > GV_MANY_PROBES ? probes.starts[found.nprobed] :
		found.nblocks;
	if (blockIdx.x * warps >= nblocks)
		return;
#pragma unroll
	for (int i = 0; i < AHEAD; i++)
		if (i * THREADS + (int) threadIdx.x < npieces)
			table[i * THREADS + threadIdx.x] = ahead[i];
	for (int i = AHEAD * THREADS + threadIdx.x; i < npieces; i += THREADS)
		table[i] = made[i];
	__syncthreads();

	/* 2. a block of copies a warp */
	for (uint32_t b = blockIdx.x * warps + threadIdx.x / GV_WARP; b < nblocks;
		 b += gridDim.x * warps)
	{
		int			probe = probes.find(kept, b);
		int64_t		to = first_copy + (int64_t) b * GV_WARP + lane;
		float		base;
		const uint8_t *block = probes.block_of(kept, b, probe,
											   card.shape.block_bytes, &base);
		float		t = __ldcs((const float *) (block + card.shape.t) + lane);
		uint32_t	live = *(const uint32_t *) (block + card.shape.live);
		uint32_t	high = __ldcs((const uint32_t *) (block + card.shape.high) +
								  lane);
		uint32_t	low = __ldcs((const uint16_t *) (block + card.shape.low) +
								 lane);
		float		sum = add_codes((const uint4 *) block + lane,
									card.shape.chunks, (const char *) table);

		sum = __fadd_rn(__fadd_rn(base, t), sum);
		batch.d_scores[to] = live >> lane & 1 ? gv_card_score(sum) :
			__int_as_float(0x7F800000);
		if (batch.d_ids != NULL)
			batch.d_ids[to] = gv_copy_id(high, low, probe);
	}
}

/*
 * Blocks of threads for each of n queries, where so many are resident: such
 * that their last wave leaves as little of the card without work as can be.
 */
static int64_t
share_of(int resident, int32_t n)
{
	int64_t		best = 1;
	double		best_use = 0;

	for (int waves = 1; waves <= MOST_WAVES; waves++)
	{
		int64_t		share = (int64_t) waves * resident / n;
		double		use = (double) (share * n) / (waves * resident);

		if (use > best_use + 0.02)
		{
			best = share;
			best_use = use;
		}
	}
	return best;
}

template <int THREADS>
static GvStatus
launch(const GvCardModel *card, const GvBatch *batch, GvSearcher *searcher)
{
	constexpr int warps = THREADS / GV_WARP;
	int			table_bytes = card->shape.chunks * CHUNK_BYTES;
	int64_t		most = (batch->copies / GV_WARP + warps - 1) / warps;
	int64_t		share = share_of(MOST_RESIDENT / THREADS * searcher->nsms,
								 batch->n);
	dim3		grid((unsigned) (share < most ? share : most), batch->n);

	if (grid.x == 0)
		return GV_OK;
	if (table_bytes + GV_SCAN_OWN > 48 * 1024)
		GV_CUDA_TRY(cudaFuncSetAttribute(scan_kernel<THREADS>,
										 cudaFuncAttributeMaxDynamicSharedMemorySize,
										 table_bytes));
	return gv_cuda_status(GV_LAUNCH_STEP(scan_kernel<THREADS>, grid, THREADS,
										 table_bytes, searcher->stream, card,
										 batch));
}

/* d_scores [n][copies] of a batch, in the order of its blocks. */
GvStatus
gv_gpu_scan(const GvCardModel *card, const GvBatch *batch,
			GvSearcher *searcher)
{
	/* a lone query's blocks are few: they should be on many processors */
	if (batch->n <= FEW_QUERIES)
		return launch<64>(card, batch, searcher);
	return launch<256>(card, batch, searcher);
}
