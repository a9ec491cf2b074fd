/*
 * scan.cu
 *		The score S of every live copy of the probed lists.
 *
 * The unit of work is a block of 32 copies, one to a lane, so short lists
 * cost no more than long ones: the blocks of all probes of a query are
 * numbered through and dealt to warps.  S is computed as it is defined: fp32
 * table, fp32 sum in the order of the sub-quantizers, no contraction.  A row
 * of the table is 16 words in 16 banks, so look-ups never conflict.
 */
#include "select.cuh"
#include "gv_cuda.h"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define CHUNK_CODES		(2 * GV_CHUNK)	/* sub-quantizers in 16 bytes */

/* Add the table entries of four bytes, eight codes, lowest first. */
static __device__ __forceinline__ float
add_word(float sum, uint32_t word, const float *rows /* [8][16] */ )
{
#pragma unroll
	for (int j = 0; j < 8; j++)
		sum = __fadd_rn(sum, rows[j * GV_CODEWORDS + (word >> 4 * j & 15)]);
	return sum;
}

/*
 * Block (x, y): query y, its blocks x, x + gridDim.x, ... by warps.
 * Shared: table [chunks * 32][16] floats.
 */
static __global__ void __launch_bounds__(THREADS)
scan_kernel(GvCardModel card, GvBatch batch)
{
	GV_SHARED(memory);
	float	   *table = (float *) memory;
	int			query = blockIdx.y;
	int			lane = threadIdx.x % GV_WARP;
	int			nfloats = card.shape.chunks * CHUNK_CODES * GV_CODEWORDS;
	const uint4 *made;
	int			nprobed = batch.d_found[query].nprobed;
	const GvProbe *probed = batch.d_probed + (int64_t) query * batch.probes;
	const uint32_t *starts = batch.d_starts +
		(int64_t) query * (batch.probes + 1);
	float	   *scores = batch.d_scores + (int64_t) query * batch.copies;
	uint32_t	nblocks = starts[nprobed];

	/* 1. the table */
	if (blockIdx.x * WARPS >= nblocks)
		return;
	made = (const uint4 *) (batch.d_tables + (int64_t) query * nfloats);
	for (int i = threadIdx.x; i < nfloats / 4; i += THREADS)
		memory[i] = made[i];
	__syncthreads();

	/* 2. a block of copies a warp */
	for (uint32_t b = blockIdx.x * WARPS + threadIdx.x / GV_WARP; b < nblocks;
		 b += gridDim.x * WARPS)
	{
		int			probe = gv_probe_of(starts, nprobed, b);
		const uint8_t *block = card.d_lists[probed[probe].list].d_blocks +
			(int64_t) (b - starts[probe]) * card.shape.block_bytes;
		const uint4 *codes = (const uint4 *) block + lane;
		float		t = ((const float *) (block + card.shape.t))[lane];
		uint32_t	live = *(const uint32_t *) (block + card.shape.live);
		float		sum = 0.0f;

#pragma unroll 4
		for (int c = 0; c < card.shape.chunks; c++)
		{
			uint4		word = codes[c * GV_WARP];
			const float *rows = table + c * CHUNK_CODES * GV_CODEWORDS;

			sum = add_word(sum, word.x, rows);
			sum = add_word(sum, word.y, rows + 8 * GV_CODEWORDS);
			sum = add_word(sum, word.z, rows + 16 * GV_CODEWORDS);
			sum = add_word(sum, word.w, rows + 24 * GV_CODEWORDS);
		}
		sum = __fadd_rn(__fadd_rn(probed[probe].base, t), sum);
		scores[(int64_t) b * GV_WARP + lane] = live >> lane & 1 ?
			gv_card_score(sum) : __int_as_float(0x7F800000);
	}
}

/* d_scores [n][copies] of a batch, in the order of its blocks. */
GvStatus
gv_gpu_scan(const GvCardModel *card, const GvBatch *batch,
			GvSearcher *searcher)
{
	int			table_bytes = gv_table_floats(&card->shape) *
		(int) sizeof(float);
	int64_t		most = (batch->copies / GV_WARP + WARPS - 1) / WARPS;
	int64_t		share = (2 * searcher->nsms + batch->n - 1) / batch->n;
	dim3		grid((unsigned) (share < most ? share : most), batch->n);

	if (grid.x == 0)
		return GV_OK;
	if (table_bytes > 48 * 1024)
		GV_CUDA_TRY(cudaFuncSetAttribute(scan_kernel,
										 cudaFuncAttributeMaxDynamicSharedMemorySize,
										 table_bytes));
	GV_LAUNCH(scan_kernel, grid, THREADS, table_bytes, searcher->stream, *card,
			  *batch);
	return gv_cuda_status(cudaGetLastError());
}
