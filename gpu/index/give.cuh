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
gv_select_downloads(const GvBatch &batch)
{
	return batch.out_bounds == NULL;
}

/* A GvHit; the row id's 48 bits are two numbers. */
static __device__ __forceinline__ void
gv_download_hit(const GvBatch &batch, int64_t at, uint32_t key, uint32_t high,
			uint32_t low, uint32_t probe)
{
	uint4		hit = make_uint4(__float_as_uint(gv_unordered(key)), probe,
								 high >> 16 | high << 16, low);

	if (gv_select_downloads(batch))
		batch.out_hits[at] = hit;
	else
		batch.d_hits[at] = hit;
}

/* The result of the choice of lists, when that is over: see gv_early. */
static __device__ __forceinline__ GvFound
gv_early_found(const GvBatch &batch, int query)
{
	static_assert(sizeof(GvFound) == 3 * sizeof(uint64_t), "three words");
	const uint64_t *from = (const uint64_t *) &batch.d_found[query];
	union
	{
		uint64_t	words[3];
		GvFound		found;
	};

	for (int i = 0; i < 3; i++)
		words[i] = gv_early(from + i);
	return found;
}

/* A query's probes, by all threads of a block. */
static __device__ __forceinline__ void
gv_download_probes(const GvBatch &batch, int query, int nprobed)
{
	int64_t		first = (int64_t) query * batch.probes;

	for (int p = threadIdx.x; p < nprobed && batch.out_probed != batch.d_probed;
		 p += blockDim.x)
		batch.out_probed[first + p] = batch.d_probed[first + p];
}

/*
 * Downloads the counts of a query with nhits hits; by one thread.  A batch's
 * spare places, which probe nothing, are the next part's in the host's memory.
 */
static __device__ __forceinline__ void
gv_download_found(const GvBatch &batch, int query, GvFound found, int nhits)
{
	found.nhits = nhits;
	batch.d_found[query] = found;
	if (gv_select_downloads(batch) && found.nprobed > 0)
		batch.out_found[query] = found;
}

/*
 * By all threads of a block: how many postings of each sampled block, of a
 * query's nblocks, are not beyond `last`, a warp a block.  The first thread
 * has the result.
 */
template <int THREADS>
static __device__ __forceinline__ GvNear
gv_count_near(const GvBatch &batch, int query, uint32_t nblocks, float last)
{
	constexpr int warps = THREADS / GV_WARP;
	__shared__ GvNear counted[warps];
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	const float *scores = batch.d_sampled + (int64_t) query * batch.postings +
		lane;
	GvNear		near = {};

#pragma unroll 4
	for (uint32_t b = warp; b < nblocks; b += warps)
	{
		int			count = __popc(__ballot_sync(GV_FULL_WARP,
												 scores[(int64_t) b * GV_WARP] <=
												 last));

		near.postings += count;
		near.squares += count * count;
	}
	if (lane == 0)
		counted[warp] = near;
	__syncthreads();
	near = counted[0];
	for (int w = 1; w < warps; w++)
	{
		near.postings += counted[w].postings;
		near.squares += counted[w].squares;
	}
	return near;
}

/*
 * By all THREADS threads of a block, of a batch with conditions, whose hits
 * are on the device: the matches of a query's probes, and of the sample what
 * is as near as its hit number `rank`, or as a limit.
 */
template <int THREADS>
static __device__ __forceinline__ void
gv_download_matches(const GvBatch &batch, int query, const GvFound &found)
{
	int64_t		first_probe = (int64_t) query * batch.probes;
	int64_t		first_hit = (int64_t) query * batch.capacity;
	GvNear		near = {};
	GvRank		asked;

	for (int p = threadIdx.x; p < found.nprobed; p += THREADS)
		batch.out_matches[first_probe + p] = batch.d_matches[first_probe + p];
	/* a batch's spare places are the next part's in the host's memory */
	if (!batch.sampled || found.nprobed == 0)
		return;
	asked = batch.d_ranks[query];
	if (asked.rank > 0 && found.nhits >= asked.rank)
		asked.limit = __uint_as_float(batch.d_hits[first_hit +
												   asked.rank - 1].x);
	if (asked.rank < 0 || (asked.rank > 0 && found.nhits >= asked.rank))
		near = gv_count_near<THREADS>(batch, query, batch.d_nsampled[query],
									  asked.limit);
	if (threadIdx.x == 0)
		batch.out_near[query] = near;
}

#endif							/* GV_GIVE_CUH */
