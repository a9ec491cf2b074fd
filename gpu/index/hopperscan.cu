/*
 * hopperscan.cu
 *		The scan of scan.cu, of many queries, on cards of compute capability
 *		9.0.
 *
 * There the blocks of a warp come one after the other to registers, and
 * while it waits for one it adds nothing.  Here one lane asks for a whole
 * block, which comes to shared memory while the warp adds up the one before:
 * so fewer warps are enough to keep look-ups going, and there are registers
 * for more of those on their way.
 */
#include "gpu/common/hopper.cuh"
#include "gpu/index/gv_index.h"
#include "gpu/index/scan.cuh"

#define MOST_CHUNKS		8		/* of a copy's codes, in registers */
#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define RESIDENT		768		/* threads of an SM, for 80 registers each */

#if GV_HOPPER

/* A warp's place for a block of copies. */
struct Place
{
	char	   *bytes;			/* shared */
	uint64_t   *arrived;		/* likewise: a barrier */
	uint64_t	policy;
	int			odd;			/* phase of the barrier */

	/* By a warp that has read what was there: ask for another block. */
	__device__ __forceinline__ void
	ask(const uint8_t *block, int read_bytes)
	{
		__syncwarp();
		if (threadIdx.x % GV_WARP == 0)
		{
			gv_barrier_expect(arrived, read_bytes);
			gv_copy_bytes(bytes, block, read_bytes, arrived, policy);
		}
	}

	__device__ __forceinline__ void
	wait()
	{
		gv_barrier_wait(arrived, odd);
		odd ^= 1;
	}
};

/* Of a copy, what its lane takes from the place. */
struct Copy
{
	uint4		codes[MOST_CHUNKS];
	float		t;
	uint32_t	live;			/* the block's mask */
	uint32_t	high;
	uint32_t	low;

	__device__ __forceinline__ void
	take(const GvBlockShape &shape, const char *block)
	{
		int			lane = threadIdx.x % GV_WARP;

#pragma unroll
		for (int i = 0; i < MOST_CHUNKS; i++)
			if (i < shape.chunks)
				codes[i] = ((const uint4 *) block)[i * GV_WARP + lane];
		t = ((const float *) (block + shape.t))[lane];
		high = ((const uint32_t *) (block + shape.high))[lane];
		low = ((const uint16_t *) (block + shape.low))[lane];
		live = *(const uint32_t *) (block + shape.live);
	}

	/* The entries of all its codes. */
	__device__ __forceinline__ float
	sum(const GvBlockShape &shape, const char *table) const
	{
		int			words = (shape.code_bytes + 3) / 4;
		uint32_t	zero = blockIdx.z;	/* as no compiler knows: gv_add_chunk */
		float		sum = 0.0f;

#pragma unroll
		for (int i = 0; i < MOST_CHUNKS; i++)
			if (i < shape.chunks)
				sum = gv_add_chunk(sum, codes[i], words - i * GV_CHUNK_WORDS,
								   table, zero + i * GV_CHUNK_BYTES);
		return sum;
	}
};

#endif							/* GV_HOPPER */

/*
 * Block (x, y): query y, its blocks x, x + gridDim.x, ... by warps.
 * Shared: table [chunks * 32][16] floats, and a block of copies for each warp.
 * Code for other cards is empty.  Keys are left where they are: batches with
 * conditions go the way of scan.cu, where most codes are never read.
 */
static __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
scan_hopper_kernel(GvCardModel card, GvBatch batch)
{
#if GV_HOPPER
	GV_SHARED(table);
	__shared__ GvKept kept;
	__shared__ uint64_t arrived[WARPS];
	int			query = blockIdx.y;
	int			warp = threadIdx.x / GV_WARP;
	int			block_bytes = card.shape.block_bytes;
	int			read_bytes = card.shape.keys;
	int64_t		to = (int64_t) query * batch.copies + threadIdx.x % GV_WARP;
	Place		place = {(char *) table + card.shape.chunks * GV_CHUNK_BYTES +
		warp * read_bytes, &arrived[warp], gv_read_once(), 0};
	uint32_t	b = blockIdx.x * WARPS + warp;
	GvProbes	probes;
	uint32_t	nblocks;
	int			probe = 0;
	float		base = 0.0f;

	if (threadIdx.x % GV_WARP == 0)
	{
		gv_barrier_init(&arrived[warp], 1);
		gv_barriers_ready();
	}
	nblocks = gv_scan_begins<THREADS>(card, batch, query, blockIdx.x * WARPS,
									  table, &kept, probes);
	if (b < nblocks)
	{
		probe = probes.find(kept, b);
		place.ask(probes.block_of(kept, b, probe, block_bytes, &base),
				  read_bytes);
	}
	while (b < nblocks)
	{
		Copy		copy;
		int64_t		at = to + (int64_t) b * GV_WARP;
		int			its_probe = probe;
		float		score;

		place.wait();
		copy.take(card.shape, place.bytes);
		score = __fadd_rn(base, copy.t);
		b += gridDim.x * WARPS;
		if (b < nblocks)
		{
			probe = probes.find(kept, b);
			place.ask(probes.block_of(kept, b, probe, block_bytes, &base),
					  read_bytes);
		}
		score = __fadd_rn(score, copy.sum(card.shape, (const char *) table));
		gv_put_copy(batch, at, copy.live, score, copy.high, copy.low,
					its_probe);
	}
#endif
}

/* Shared memory that a block of threads asks for. */
static int
shared_bytes(const GvCardModel *card)
{
	return card->shape.chunks * GV_CHUNK_BYTES +
		WARPS * card->shape.keys;
}

/* See gv_index.h. */
bool
gv_gpu_hopper_scans(const GvCardModel *card)
{
	return card->shape.chunks <= MOST_CHUNKS;
}

/* d_scores [n][copies] of a batch, in the order of its blocks. */
GvStatus
gv_gpu_hopper_scan(const GvCardModel *card, const GvBatch *batch,
				   const GvSearcher *searcher)
{
	int64_t		most = (batch->copies / GV_WARP + WARPS - 1) / WARPS;
	int64_t		share = gv_share_of(RESIDENT / THREADS * searcher->nsms,
									batch->n);
	dim3		grid((unsigned) (share < most ? share : most), batch->n);
	int			bytes = shared_bytes(card);

	if (grid.x == 0)
		return GV_OK;
	return gv_launch_step(scan_hopper_kernel, grid, THREADS, bytes,
						  searcher->stream, card, batch);
}
