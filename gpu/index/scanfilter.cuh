/*
 * scanfilter.cuh
 *		The postings of a scan that may be among the k best, by a block of
 *		threads: the others' scores are never written.
 *
 * The first postings give a bound that k of them do not exceed
 * (gv_sift_bound), and what is beyond is not taken.  The k-th of some postings
 * is no less than the k-th of all, so what is left has the k best, with all
 * that are equal to the last.  Lists come by their distances, so few of the
 * others are within the bound.  The block's warps add these to an array in
 * shared memory; as often as it may be full they meet and, where it is half
 * full, find a tighter bound.
 */
#ifndef GV_SCANFILTER_CUH
#define GV_SCANFILTER_CUH

#include <stdint.h>

#include "gpu/common/bisect.cuh"
#include "gpu/common/common.cuh"
#include "gpu/common/sift.cuh"

#define GV_FILTER_CAPACITY		2048	/* postings */
#define GV_FILTER_WANTED	512		/* of k, at most */
#define GV_FILTER_FIRST		2		/* of a warp's blocks give the first
									 * bound */

/* In shared memory. */
template <int THREADS>
struct GvFilter
{
	uint32_t	keys[GV_FILTER_CAPACITY];
	uint32_t	places[GV_FILTER_CAPACITY];	/* numbers of postings of the
											 * query */
	uint32_t	said[2][GV_WARP];	/* see GvTalk */
	alignas(16) uint32_t bounds[GV_SIFT_WARPS];
	uint32_t	count;

	/* By all threads; used after a barrier. */
	__device__ __forceinline__ void
	begin()
	{
		if (threadIdx.x == 0)
			count = 0;
		if (threadIdx.x < GV_SIFT_WARPS)
			bounds[threadIdx.x] = 0;
	}

	/*
	 * By all threads: a bound of the k best of the first postings, or
	 * +infinity.  Warps take 4 that lie side by side in turn, because those of
	 * one list do.  Begins with a barrier, and ends before one.
	 */
	__device__ __forceinline__ float
	first_bound(uint32_t k)
	{
		/* a sift has GV_SIFT_WARPS warps, and asks each for its share of k */
		constexpr int fewer = GV_SIFT_WARPS * GV_WARP / THREADS;
		int			lane = threadIdx.x % GV_WARP;
		uint32_t	mine = (lane / 4 * (THREADS / GV_WARP) +
							threadIdx.x / GV_WARP) * 4 + lane % 4;
		uint32_t	own[GV_FILTER_FIRST];

		__syncthreads();
#pragma unroll
		for (int i = 0; i < GV_FILTER_FIRST; i++)
			own[i] = i * THREADS + mine < count ? keys[i * THREADS + mine] :
				gv_ordered(__int_as_float(0x7F800000));
		return k > THREADS ? __int_as_float(0x7F800000) :
			gv_unordered(gv_sift_bound(own, fewer * k, bounds));
	}

	/* By a warp: one posting of each lane, or none. */
	__device__ __forceinline__ void
	offer(bool near, float score, uint32_t place)
	{
		uint32_t	mask = __ballot_sync(GV_FULL_WARP, near);
		uint32_t	at;

		if (mask == 0)
			return;
		at = gv_take_place(mask, &count);
		if (near)
		{
			keys[at] = gv_ordered(score);
			places[at] = place;
		}
	}

	/*
	 * By all threads, between barriers: where the array is half full, postings
	 * beyond a bound of the k best go, and *limit becomes the bound.  Returns
	 * for how many blocks of each warp there is room; 0 where too many are
	 * equal, and then they are as they were.
	 */
	__device__ __forceinline__ uint32_t
	tighten(uint32_t k, float *limit)
	{
		constexpr int each = GV_FILTER_CAPACITY / THREADS;
		uint32_t	spare = k / 8 + GV_WARP;
		uint32_t	n = count;
		uint32_t	own_keys[each];
		uint32_t	own_places[each];
		GvTalk		talk = {said, 0};
		GvLimit		bound;

		if (n <= GV_FILTER_CAPACITY / 2)
			return (GV_FILTER_CAPACITY - n) / THREADS;
		bound = gv_find_bound([&](uint32_t i)
		{
			return keys[i];
		}, n, k, spare, talk);
		if (bound.count > GV_FILTER_CAPACITY - THREADS)
			return 0;
#pragma unroll
		for (int i = 0; i < each; i++)
		{
			uint32_t	at = i * THREADS + threadIdx.x;

			own_keys[i] = at < n ? keys[at] : 0xFFFFFFFFu;
			own_places[i] = at < n ? places[at] : 0;
		}
		__syncthreads();
		if (threadIdx.x == 0)
			count = 0;
		__syncthreads();
#pragma unroll
		for (int i = 0; i < each; i++)
			if (own_keys[i] <= bound.key)
			{
				uint32_t	at = atomicAdd(&count, 1u);

				keys[at] = own_keys[i];
				places[at] = own_places[i];
			}
		*limit = gv_unordered(bound.key);
		return (GV_FILTER_CAPACITY - bound.count) / THREADS;
	}
};

#endif							/* GV_SCANFILTER_CUH */
