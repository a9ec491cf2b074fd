/*
 * give.cuh
 *		What the last steps of a batch write into the host's memory.
 *
 * Writes cross the bus, so they are long and side by side where they can be,
 * and nobody reads there what he wrote.
 */
#ifndef GV_GIVE_CUH
#define GV_GIVE_CUH

#include "select.cuh"
#include "gv_cuda.h"

static_assert(sizeof(GvHit) == sizeof(uint4), "hits are written whole");

/* A GvHit into both arrays of hits; the row id's 48 bits are two numbers. */
static __device__ __forceinline__ void
gv_give_hit(const GvBatch &batch, int64_t at, uint32_t key, uint32_t high,
			uint32_t low, uint32_t probe)
{
	uint4		hit = make_uint4(__float_as_uint(gv_unordered(key)), probe,
								 high >> 16 | high << 16, low);

	batch.d_hits[at] = hit;
	batch.out_hits[at] = hit;
}

/* A probe; returns what is in its list. */
static __device__ __forceinline__ GvCardList
gv_give_probe(const GvCardModel &card, const GvBatch &batch, int64_t at)
{
	GvProbe		probe = batch.d_probed[at];

	batch.out_probed[at] = probe;
	return card.d_lists[probe.list];
}

/* How much was found; one thread. */
static __device__ __forceinline__ void
gv_give_found(const GvBatch &batch, int query, int nprobed, int nhits,
			  int64_t copies)
{
	GvFound		found = {nprobed, nhits, copies};

	batch.d_found[query].nhits = nhits;
	batch.out_found[query] = found;
}

/* All probes of a query and how much was found, by one warp. */
static __device__ __forceinline__ void
gv_give_probes(const GvCardModel &card, const GvBatch &batch, int query,
			   int nhits)
{
	int			nprobed = batch.d_found[query].nprobed;
	int64_t		copies = 0;

	for (int p = threadIdx.x % GV_WARP; p < nprobed; p += GV_WARP)
		copies += gv_give_probe(card, batch,
								(int64_t) query * batch.probes + p).nlive;
#pragma unroll
	for (int mask = GV_WARP / 2; mask > 0; mask /= 2)
		copies += __shfl_xor_sync(GV_FULL_WARP, copies, mask);
	if (threadIdx.x % GV_WARP == 0)
		gv_give_found(batch, query, nprobed, nhits, copies);
}

#endif							/* GV_GIVE_CUH */
