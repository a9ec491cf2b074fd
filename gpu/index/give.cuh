/*
 * give.cuh
 *		What the last steps of a batch write into the host's memory.
 *
 * Writes cross the bus, so they are long and side by side where they can be,
 * and no thread reads there what it wrote.
 */
#ifndef GV_GIVE_CUH
#define GV_GIVE_CUH

#include <stdint.h>

#include "gpu/common/common.cuh"
#include "gpu/common/gv_batch.h"
#include "gpu/common/warpselect.cuh"

static_assert(sizeof(GvHit) == sizeof(uint4), "hits are written whole");

/*
 * Does a batch's select write there?  Where bounds follow, their step does: a
 * step is over when its writes have crossed the bus, and the next one waits
 * for that.
 */
static __device__ __forceinline__ bool
gv_select_gives(const GvBatch &batch)
{
	return batch.out_bounds == NULL;
}

/* A GvHit; the row id's 48 bits are two numbers. */
static __device__ __forceinline__ void
gv_give_hit(const GvBatch &batch, int64_t at, uint32_t key, uint32_t high,
			uint32_t low, uint32_t probe)
{
	uint4		hit = make_uint4(__float_as_uint(gv_unordered(key)), probe,
								 high >> 16 | high << 16, low);

	if (gv_select_gives(batch))
		batch.out_hits[at] = hit;
	else
		batch.d_hits[at] = hit;
}

/* A query's probes, by all threads of a block. */
static __device__ __forceinline__ void
gv_give_probes(const GvBatch &batch, int query, int nprobed)
{
	int64_t		first = (int64_t) query * batch.probes;

	for (int p = threadIdx.x; p < nprobed && batch.out_probed != batch.d_probed;
		 p += blockDim.x)
		batch.out_probed[first + p] = batch.d_probed[first + p];
}

/*
 * How much was found; one thread.  A batch's spare places, which probe
 * nothing, are the next part's in the host's memory.
 */
static __device__ __forceinline__ void
gv_give_found(const GvBatch &batch, int query, int nhits, int64_t copies)
{
	GvFound		found = batch.d_found[query];

	found.nhits = nhits;
	found.copies = copies;
	batch.d_found[query] = found;
	if (gv_select_gives(batch) && found.nprobed > 0)
		batch.out_found[query] = found;
}

/* All probes of a query and how much was found, by one warp. */
static __device__ __forceinline__ void
gv_give_all(const GvCardModel &card, const GvBatch &batch, int query,
			int nhits)
{
	int64_t		first = (int64_t) query * batch.probes;
	int			nprobed = batch.d_found[query].nprobed;
	int64_t		copies = 0;

	for (int p = threadIdx.x % GV_WARP; p < nprobed; p += GV_WARP)
	{
		GvProbe		probe = batch.d_probed[first + p];

		copies += card.d_lists[probe.list].nlive;
		if (gv_select_gives(batch))
			batch.out_probed[first + p] = probe;
	}
#pragma unroll
	for (int mask = GV_WARP / 2; mask > 0; mask /= 2)
		copies += __shfl_xor_sync(GV_FULL_WARP, copies, mask);
	if (threadIdx.x % GV_WARP == 0)
		gv_give_found(batch, query, nhits, copies);
}

#endif							/* GV_GIVE_CUH */
