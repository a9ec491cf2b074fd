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
#define FEW_QUERIES		4		/* up to here, thread blocks are small */

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
				words[i] = codes[(first + i) * GV_WARP];
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

/*
 * gv_probe_of(starts, nprobed, b) for a warp, where `probe` is known to start
 * at or before b.
 */
static __device__ __forceinline__ int
next_probe(const uint32_t *starts, int nprobed, uint32_t b, int probe)
{
	int			first = probe / GV_WARP * GV_WARP;
	int			n;

	do
	{
		int			p = first + threadIdx.x % GV_WARP;

		n = __popc(__ballot_sync(GV_FULL_WARP,
								 p < nprobed && starts[p] <= b));
		first += n;
	} while (n == GV_WARP);
	return first - 1;
}

/*
 * Block (x, y): query y, its blocks x, x + gridDim.x, ... by warps.
 * Shared: table [chunks * 32][16] floats.
 */
template <int THREADS>
static __global__ void __launch_bounds__(THREADS)
scan_kernel(GvCardModel card, GvBatch batch)
{
	constexpr int warps = THREADS / GV_WARP;
	GV_SHARED(table);
	int			query = blockIdx.y;
	int			lane = threadIdx.x % GV_WARP;
	int			npieces = card.shape.chunks * CHUNK_BYTES / GV_CHUNK;
	const uint4 *made = (const uint4 *) batch.d_tables +
		(int64_t) query * npieces;
	int			nprobed;
	const GvProbe *probed = batch.d_probed + (int64_t) query * batch.probes;
	const uint32_t *starts = batch.d_starts +
		(int64_t) query * (batch.probes + 1);
	float	   *scores = batch.d_scores + (int64_t) query * batch.copies;
	uint32_t	nblocks;
	uint32_t	b = blockIdx.x * warps + threadIdx.x / GV_WARP;
	uint4		ahead[AHEAD];
	int			probe = 0;

	gv_step_begins();
	nprobed = batch.d_found[query].nprobed;
	nblocks = starts[nprobed];

	/* 1. the table, on its way while the warp's first probe is found */
	if (blockIdx.x * warps >= nblocks)
		return;
#pragma unroll
	for (int i = 0; i < AHEAD; i++)
		if (i * THREADS + (int) threadIdx.x < npieces)
			ahead[i] = made[i * THREADS + threadIdx.x];
	if (nprobed > 4 * GV_WARP)
		probe = gv_probe_of(starts, nprobed, b);
	probe = next_probe(starts, nprobed, b, probe);
#pragma unroll
	for (int i = 0; i < AHEAD; i++)
		if (i * THREADS + (int) threadIdx.x < npieces)
			table[i * THREADS + threadIdx.x] = ahead[i];
	for (int i = AHEAD * THREADS + threadIdx.x; i < npieces; i += THREADS)
		table[i] = made[i];
	__syncthreads();

	/* 2. a block of copies a warp */
	for (; b < nblocks; b += gridDim.x * warps)
	{
		const uint8_t *block;
		uint32_t	live;
		float		base;
		float		sum;
		float		t;

		probe = next_probe(starts, nprobed, b, probe);
		base = probed[probe].base;
		block = card.d_lists[probed[probe].list].d_blocks +
			(int64_t) (b - starts[probe]) * card.shape.block_bytes;
		t = ((const float *) (block + card.shape.t))[lane];
		live = *(const uint32_t *) (block + card.shape.live);
		sum = add_codes((const uint4 *) block + lane, card.shape.chunks,
						(const char *) table);
		sum = __fadd_rn(__fadd_rn(base, t), sum);
		scores[(int64_t) b * GV_WARP + lane] = live >> lane & 1 ?
			gv_card_score(sum) : __int_as_float(0x7F800000);
	}
}

template <int THREADS>
static GvStatus
launch(const GvCardModel *card, const GvBatch *batch, GvSearcher *searcher)
{
	constexpr int warps = THREADS / GV_WARP;
	int			table_bytes = card->shape.chunks * CHUNK_BYTES;
	int64_t		most = (batch->copies / GV_WARP + warps - 1) / warps;
	int64_t		share = (4 * searcher->nsms + batch->n - 1) / batch->n;
	dim3		grid((unsigned) (share < most ? share : most), batch->n);

	if (grid.x == 0)
		return GV_OK;
	if (table_bytes > 48 * 1024)
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
