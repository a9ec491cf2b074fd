/*
 * bisect.cuh
 *		A bound that the k smallest of many keys do not exceed, and few others:
 *		by halving an interval and counting, all threads of a block together.
 */
#ifndef GV_BISECT_CUH
#define GV_BISECT_CUH

#include <stdint.h>

#include "gpu/common/common.cuh"
#include "gpu/common/warpselect.cuh"

#define GV_BY_VALUE		16		/* times that values are halved, at first */

/* The sum of a lane's number and those of the lanes before. */
static __device__ __forceinline__ uint32_t
gv_upto_lane(uint32_t mine)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	upto = mine;

#pragma unroll
	for (uint32_t d = 1; d < GV_WARP; d *= 2)
	{
		uint32_t	before = __shfl_up_sync(GV_FULL_WARP, upto, d);

		upto += lane >= d ? before : 0;
	}
	return upto;
}

/*
 * Room behind *count, which is shared, for a number of items of each lane of a
 * warp; returns the place of this lane's first.
 */
static __device__ __forceinline__ uint32_t
gv_reserve(uint32_t mine, uint32_t *count)
{
	uint32_t	upto = gv_upto_lane(mine);
	uint32_t	at = 0;

	if (threadIdx.x % GV_WARP == GV_WARP - 1 && upto > 0)
		at = atomicAdd(count, upto);
	return __shfl_sync(GV_FULL_WARP, at, GV_WARP - 1) + upto - mine;
}

/* Exchange of numbers between the threads of a block, one barrier a time. */
struct GvTalk
{
	uint32_t	(*said)[GV_WARP];	/* [2], in turn; a number of each warp */
	int			turn;

	/* This lane's of the numbers of all warps; 0 when there are fewer. */
	__device__ __forceinline__ uint32_t
	tell(uint32_t warps_number)
	{
		uint32_t	lane = threadIdx.x % GV_WARP;

		turn ^= 1;
		if (lane == 0)
			said[turn][threadIdx.x / GV_WARP] = warps_number;
		__syncthreads();
		return lane < blockDim.x / GV_WARP ? said[turn][lane] : 0;
	}

	/* The sum of all threads' numbers. */
	__device__ __forceinline__ uint32_t
	sum(uint32_t mine)
	{
		mine = tell(__reduce_add_sync(GV_FULL_WARP, mine));
		return __reduce_add_sync(GV_FULL_WARP, mine);
	}

	/* The largest. */
	__device__ __forceinline__ uint32_t
	most(uint32_t mine)
	{
		mine = tell(__reduce_max_sync(GV_FULL_WARP, mine));
		return __reduce_max_sync(GV_FULL_WARP, mine);
	}
};

/* count keys do not exceed key; lower is one that fewer than p do not. */
struct GvLimit
{
	uint32_t	key;
	uint32_t	count;			/* >= p */
	uint32_t	lower;
	uint32_t	lower_count;	/* < p */
};

/*
 * Narrows a bound until at most p + spare keys do not exceed it, if they are
 * not equal.  count_mine(key) returns how many of this thread's keys do not
 * exceed key.
 */
template <typename CountMine>
static __device__ __forceinline__ GvLimit
gv_narrow_bound(GvLimit bound, uint32_t p, uint32_t spare,
				const CountMine &count_mine, GvTalk &talk)
{
	for (int round = 0; bound.count > p + spare &&
		 bound.lower + 1 < bound.key; round++)
	{
		uint32_t	middle = bound.lower + (bound.key - bound.lower) / 2;
		uint32_t	count;

		/* scores lie evenly between bounds, keys do not; but keys end */
		if (round < GV_BY_VALUE)
		{
			uint32_t	value = gv_ordered(0.5f * gv_unordered(bound.lower) +
										   0.5f * gv_unordered(bound.key));

			if (value > bound.lower && value < bound.key)
				middle = value;
		}
		count = talk.sum(count_mine(middle));
		if (count >= p)
		{
			bound.key = middle;
			bound.count = count;
		}
		else
		{
			bound.lower = middle;
			bound.lower_count = count;
		}
	}
	return bound;
}

/*
 * A bound of keys(0) .. keys(n - 1) with a count of at most p + spare.  When
 * more than that are equal, key is theirs and lower the number before it.
 */
template <typename Keys>
static __device__ __forceinline__ GvLimit
gv_find_bound(const Keys &keys, uint32_t n, uint32_t p, uint32_t spare,
			  GvTalk &talk)
{
	uint32_t	own = threadIdx.x < n ? keys(threadIdx.x) : 0xFFFFFFFFu;
	uint32_t	least = own;
	uint32_t	most = threadIdx.x < n ? own : 0;
	GvLimit		bound;

	/* the first of a thread's keys stays in a register */
	for (uint32_t i = threadIdx.x + blockDim.x; i < n; i += blockDim.x)
	{
		uint32_t	key = keys(i);

		least = min(least, key);
		most = max(most, key);
	}
	/* no float has key 0 */
	bound.lower = ~talk.most(~least) - 1;
	bound.lower_count = 0;
	bound.key = talk.most(most);
	bound.count = n;
	return gv_narrow_bound(bound, p, spare, [&](uint32_t key)
	{
		uint32_t	count = threadIdx.x < n && own <= key;

		for (uint32_t i = threadIdx.x + blockDim.x; i < n; i += blockDim.x)
			count += keys(i) <= key;
		return count;
	}, talk);
}

#endif							/* GV_BISECT_CUH */
