/*
 * kbound.cuh
 *		An upper bound of the k-th smallest of many keys.  The bound is close:
 *		few more than k keys do not exceed it.  All threads of a block call
 *		these functions together.
 */
#ifndef GV_KBOUND_CUH
#define GV_KBOUND_CUH

#include "gpu/device/warp.cuh"

/* -- by minima of warps: one barrier */

/*
 * Returns a key that at least k items do not exceed, if there are at least k
 * items.  Each of the W warps sorts its lanes' smallest keys.  If every warp
 * has at least j keys at or below some key, then at least W * j items have
 * keys at or below this key.  With j = k / W, rounded up, the largest of the
 * warps' j-th keys is therefore at least the k-th smallest of all keys.
 * bounds is shared and aligned to 16 bytes.
 */
template <int KEYS, int WARPS>
static __device__ __forceinline__ uint32_t
gv_minima_bound(const uint32_t (&keys)[KEYS], int k, uint32_t (&bounds)[WARPS])
{
	int			lane = threadIdx.x % GV_WARP;
	int			each = (k + WARPS - 1) / WARPS;
	uint32_t	least = keys[0];
	uint32_t	bound = 0;

#pragma unroll
	for (int r = 1; r < KEYS; r++)
		least = min(least, keys[r]);
#pragma unroll
	for (int size = 2; size <= GV_WARP; size *= 2)
#pragma unroll
		for (int stride = size / 2; stride > 0; stride /= 2)
		{
			uint32_t	other = __shfl_xor_sync(GV_FULL_WARP, least, stride);
			bool		up = (lane & size) == 0;

			least = up == ((lane & stride) == 0) ? min(least, other) :
				max(least, other);
		}
	least = __shfl_sync(GV_FULL_WARP, least, each - 1);
	if (lane == 0)
		bounds[threadIdx.x / GV_WARP] = least;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < WARPS; w += 4)
	{
		uint4		some = *(const uint4 *) &bounds[w];

		bound = max(bound, max(max(some.x, some.y), max(some.z, some.w)));
	}
	return bound;
}

/*
 * -- a bound found by halving an interval and counting the keys below its
 * middle, with one barrier for each step
 */

#define GV_BY_VALUE		16		/* steps that halve values, at first */

/*
 * Returns a key that at least p of n keys do not exceed, and at most p + spare
 * keys unless more keys are equal to the returned key.  least and most are the
 * smallest and the largest of this thread's keys.  count_mine(key) returns how
 * many of this thread's keys do not exceed key.
 */
template <typename CountMine>
static __device__ __forceinline__ uint32_t
gv_narrow_bound(uint32_t least, uint32_t most, uint32_t n, uint32_t p,
				uint32_t spare, const CountMine &count_mine,
				GvBlockReduce &reduce)
{
	/*
	 * no key is this small, so fewer than p keys do not exceed it; it cannot
	 * wrap around because no float has key 0
	 */
	uint32_t	lower = ~reduce.largest(~least) - 1;
	uint32_t	bound = reduce.largest(most);

	for (int round = 0; n > p + spare && lower + 1 < bound; round++)
	{
		uint32_t	middle = lower + (bound - lower) / 2;
		uint32_t	count;

		/*
		 * First halve the interval of scores, because scores are spread more
		 * evenly than keys.  Then halve the interval of keys, because only
		 * this is sure to end.
		 */
		if (round < GV_BY_VALUE)
		{
			uint32_t	value = gv_ordered(0.5f * gv_unordered(lower) +
										   0.5f * gv_unordered(bound));

			if (value > lower && value < bound)
				middle = value;
		}
		count = reduce.sum(count_mine(middle));
		if (count >= p)
		{
			bound = middle;
			n = count;
		}
		else
			lower = middle;
	}
	return bound;
}

/* Like gv_narrow_bound, for the keys keys(0) .. keys(n - 1). */
template <typename Keys>
static __device__ __forceinline__ uint32_t
gv_find_kth_bound(const Keys &keys, uint32_t n, uint32_t p, uint32_t spare,
				  GvBlockReduce &reduce)
{
	uint32_t	own = threadIdx.x < n ? keys(threadIdx.x) : 0xFFFFFFFFu;
	uint32_t	least = own;
	uint32_t	most = threadIdx.x < n ? own : 0;

	/*
	 * a thread's first key is in a register already, so begin with its second
	 * one
	 */
	for (uint32_t i = threadIdx.x + blockDim.x; i < n; i += blockDim.x)
	{
		uint32_t	key = keys(i);

		least = min(least, key);
		most = max(most, key);
	}
	return gv_narrow_bound(least, most, n, p, spare, [&](uint32_t key)
	{
		uint32_t	count = threadIdx.x < n && own <= key;

		for (uint32_t i = threadIdx.x + blockDim.x; i < n; i += blockDim.x)
			count += keys(i) <= key;
		return count;
	}, reduce);
}

#endif							/* GV_KBOUND_CUH */
