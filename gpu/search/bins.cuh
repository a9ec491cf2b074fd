/*
 * bins.cuh
 *		Finds and sorts the nearest of many items by counting items in bins, in
 *		few dependent steps.  All threads of a block call these functions
 *		together.
 *
 * Scores are spread about evenly between the least and the greatest score, so
 * bins of equal width have few items each.  The running sum of the bins'
 * counts tells which bins contain the k nearest items and where each bin
 * begins, and the items within a bin are ordered by counting.  This takes
 * seven barriers and 12 us.  A bound by halving and a bitonic sort take 33 us,
 * because the bound has two barriers for each bit, and a bitonic sort of 1,024
 * items has 15.  They remain in use for scores that are not spread evenly.
 *
 * An Item has a key, and before() as in warpselect.cuh.
 */
#include <math.h>
#include "gpu/device/kbound.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/device/warpselect.cuh"

#define GV_BINS				2048
#define GV_BINS_THREADS		512
#define GV_BINS_OWN			(GV_BINS / GV_BINS_THREADS) /* bins of a thread */
#define GV_BIN_MOST			64	/* maximum items of a bin that are sorted by
								 * counting */

/* The mapping of keys to bins, between the least and the greatest key. */
struct GvBinScale
{
	float		least;
	float		bins;			/* bins of a unit of scores */

	/*
	 * Sets the scale for keys first .. last.  Returns false if bins cannot
	 * separate these keys.
	 */
	__device__ __forceinline__ bool
	set(uint32_t first, uint32_t last)
	{
		least = gv_unordered(first);
		bins = GV_BINS / (gv_unordered(last) - least);
		return fabsf(least) < INFINITY && bins > 0.0f && bins < INFINITY;
	}

	/* Returns the bin of a key.  A larger key never has a smaller bin. */
	__device__ __forceinline__ uint32_t
	bin(uint32_t key) const
	{
		return min((uint32_t) ((gv_unordered(key) - least) * bins),
				   (uint32_t) GV_BINS - 1);
	}
};

/* A block's shared memory. */
struct GvBins
{
	uint32_t	ends[GV_BINS];	/* first the number of items of each bin, then
								 * the offset in the sorted items where the bin
								 * begins, last the offset where it ends */
	uint32_t	most[GV_WARP];	/* of each warp */
	uint32_t	least[GV_WARP];
	uint32_t	sums[GV_WARP];
	uint32_t	last;			/* the last bin that is taken */
	uint32_t	taken;			/* items of these bins */
	uint32_t	crowded;		/* not 0: one of them has too many items */

	/* Clears all bins; called by all threads, before a barrier. */
	__device__ __forceinline__ void
	clear()
	{
		for (int i = threadIdx.x; i < GV_BINS; i += GV_BINS_THREADS)
			ends[i] = 0;
		if (threadIdx.x == 0)
			crowded = 0;
	}
};

/*
 * Replaces *least and *most by the least and the greatest key of all threads.
 * Has one barrier.
 */
static __device__ __forceinline__ void
gv_bins_range(GvBins &bins, uint32_t *least, uint32_t *most)
{
	int			lane = threadIdx.x % GV_WARP;
	bool		is_one = lane < GV_BINS_THREADS / GV_WARP;

	*least = __reduce_max_sync(GV_FULL_WARP, ~*least);
	*most = __reduce_max_sync(GV_FULL_WARP, *most);
	if (lane == 0)
	{
		bins.least[threadIdx.x / GV_WARP] = *least;
		bins.most[threadIdx.x / GV_WARP] = *most;
	}
	__syncthreads();
	*least = ~__reduce_max_sync(GV_FULL_WARP, is_one ? bins.least[lane] : 0);
	*most = __reduce_max_sync(GV_FULL_WARP, is_one ? bins.most[lane] : 0);
}

/*
 * Replaces the number of items of each bin by the offset where the bin begins,
 * and finds the last bin that contains one of the k smallest items, k > 0.
 * Begins and ends with a barrier.
 */
static __device__ __forceinline__ void
gv_bins_sum(GvBins &bins, uint32_t k)
{
	int			lane = threadIdx.x % GV_WARP;
	int			warp = threadIdx.x / GV_WARP;
	uint32_t   *own = bins.ends + threadIdx.x * GV_BINS_OWN;
	uint32_t	counts[GV_BINS_OWN];
	uint32_t	mine = 0;
	uint32_t	upto;
	uint32_t	begin;

	__syncthreads();
#pragma unroll
	for (int i = 0; i < GV_BINS_OWN; i++)
	{
		counts[i] = own[i];
		mine += counts[i];
	}
	upto = gv_upto_lane(mine);
	if (lane == GV_WARP - 1)
		bins.sums[warp] = upto;
	__syncthreads();
	begin = upto - mine +
		__reduce_add_sync(GV_FULL_WARP, lane < warp ? bins.sums[lane] : 0);
#pragma unroll
	for (int i = 0; i < GV_BINS_OWN; i++)
	{
		uint32_t	end = begin + counts[i];

		own[i] = begin;
		if (begin < k && counts[i] > GV_BIN_MOST)
			bins.crowded = 1;
		if (begin < k && end >= k)
		{
			bins.last = threadIdx.x * GV_BINS_OWN + i;
			bins.taken = end;
		}
		begin = end;
	}
	__syncthreads();
}

/*
 * Sorts items that are grouped by bin already.  There are at most ROOM items.
 * Begins and ends with a barrier.
 */
template <int ROOM, typename Item>
static __device__ __forceinline__ void
gv_bins_order(const GvBins &bins, const GvBinScale &scale, Item *items)
{
	constexpr int own = (ROOM + GV_BINS_THREADS - 1) / GV_BINS_THREADS;
	uint32_t	n = bins.taken;
	Item		mine[own];
	uint32_t	ranks[own];

	__syncthreads();
#pragma unroll
	for (int r = 0; r < own; r++)
	{
		uint32_t	i = r * GV_BINS_THREADS + threadIdx.x;
		uint32_t	bin;

		mine[r] = {};
		ranks[r] = i;
		if (i >= n)
			continue;
		mine[r] = items[i];
		bin = scale.bin(mine[r].key);
		ranks[r] = bin > 0 ? bins.ends[bin - 1] : 0;
		for (uint32_t j = ranks[r], end = bins.ends[bin]; j < end; j++)
		{
			Item		other = items[j];

			/* a row that is stored twice has equal items, kept in order */
			ranks[r] += j < i ? !mine[r].before(other) : other.before(mine[r]);
		}
	}
	__syncthreads();
#pragma unroll
	for (int r = 0; r < own; r++)
		if (r * GV_BINS_THREADS + threadIdx.x < n)
			items[ranks[r]] = mine[r];
	__syncthreads();
}

/*
 * Stores the k smallest of n items, 0 < k <= n, and a few more items, in
 * sorted order in items [ROOM], which is shared memory.  Thread t has the
 * items r * GV_BINS_THREADS + t, r < OWN; key_at(r) returns the key of such an
 * item, and item_at(r) the item.  If scores are not spread evenly enough,
 * stores nothing and returns false.  Ends with a barrier, unless it returns
 * false.
 */
template <int ROOM, int OWN, typename Item, typename KeyAt, typename ItemAt>
static __device__ __forceinline__ bool
gv_bins_nearest(Item *items, uint32_t n, uint32_t k, GvBins &bins,
				KeyAt key_at, ItemAt item_at)
{
	uint32_t	least = 0xFFFFFFFFu;
	uint32_t	most = 0;
	GvBinScale	scale;

	bins.clear();
#pragma unroll
	for (int r = 0; r < OWN; r++)
		if (r * GV_BINS_THREADS + threadIdx.x < n)
		{
			least = min(least, key_at(r));
			most = max(most, key_at(r));
		}
	gv_bins_range(bins, &least, &most);
	if (!scale.set(least, most))
		return false;
#pragma unroll
	for (int r = 0; r < OWN; r++)
		if (r * GV_BINS_THREADS + threadIdx.x < n)
			atomicAdd(&bins.ends[scale.bin(key_at(r))], 1u);
	gv_bins_sum(bins, k);
	if (bins.crowded || bins.taken > ROOM)
		return false;
#pragma unroll
	for (int r = 0; r < OWN; r++)
	{
		uint32_t	bin = r * GV_BINS_THREADS + threadIdx.x < n ?
			scale.bin(key_at(r)) : GV_BINS;

		if (bin <= bins.last)
			items[atomicAdd(&bins.ends[bin], 1u)] = item_at(r);
	}
	gv_bins_order<ROOM>(bins, scale, items);
	return true;
}

/*
 * Like gv_bins_nearest, for items [n] in shared memory, 0 < k <= n <= ROOM.
 * Afterwards the k smallest items are first, in sorted order; the items behind
 * them are undefined.  Begins with a barrier.
 */
template <int ROOM, typename Item>
static __device__ __forceinline__ bool
gv_bins_sort(Item *items, uint32_t n, uint32_t k, GvBins &bins)
{
	constexpr int own = ROOM / GV_BINS_THREADS;
	Item		mine[own];

	__syncthreads();
#pragma unroll
	for (int r = 0; r < own; r++)
	{
		uint32_t	i = r * GV_BINS_THREADS + threadIdx.x;

		mine[r] = {};
		if (i < n)
			mine[r] = items[i];
	}
	return gv_bins_nearest<ROOM, own>(items, n, k, bins, [&](int r)
	{
		return mine[r].key;
	}, [&](int r)
	{
		return mine[r];
	});
}

/*
 * ----
 * Sorts for any scores and any number of threads.  Each begins and ends with a
 * barrier.
 */

#define GV_QUAD			4		/* threads that compute an item's rank */

/*
 * Sorts items [n] by counting how many items are before each item.  There must
 * be at least GV_QUAD threads for each item.
 */
template <typename Item>
static __device__ __forceinline__ void
gv_sort_by_counting(Item *items, uint32_t n)
{
	uint32_t	mine = threadIdx.x / GV_QUAD;
	Item		item = Item::worst();
	uint32_t	rank = 0;

	__syncthreads();
	if (mine < n)
		item = items[mine];
#pragma unroll 4
	for (uint32_t i = threadIdx.x % GV_QUAD; i < n; i += GV_QUAD)
	{
		Item		other = items[i];

		/* a row that is stored twice has equal items, kept in order */
		rank += i < mine ? !item.before(other) : other.before(item);
	}
	rank += __shfl_xor_sync(GV_FULL_WARP, rank, 1);
	rank += __shfl_xor_sync(GV_FULL_WARP, rank, 2);
	__syncthreads();
	if (mine < n && threadIdx.x % GV_QUAD == 0)
		items[rank] = item;
	__syncthreads();
}

/*
 * Sorts items [n], n > 32.  The array must have memory for the next power of
 * two.  At strides up to 32, the pairs of a warp are within 64 items that only
 * this warp accesses, so there are few barriers.
 */
template <typename Item>
static __device__ __forceinline__ void
gv_bitonic_sort(Item *items, uint32_t n)
{
	uint32_t	capacity = 2 * GV_WARP;

	while (capacity < n)
		capacity *= 2;
	for (uint32_t i = n + threadIdx.x; i < capacity; i += blockDim.x)
		items[i] = Item::worst();
	__syncthreads();
	for (uint32_t size = 2; size <= capacity; size *= 2)
		for (uint32_t stride = size / 2; stride > 0; stride /= 2)
		{
			uint32_t	next = stride > 1 ? stride / 2 : size;

			for (uint32_t pair = threadIdx.x; pair < capacity / 2;
				 pair += blockDim.x)
			{
				uint32_t	low = 2 * pair - (pair & (stride - 1));
				Item		a = items[low];
				Item		b = items[low + stride];

				if (b.before(a) == ((low & size) == 0))
				{
					items[low] = b;
					items[low + stride] = a;
				}
			}
			if (stride > GV_WARP || next > GV_WARP)
				__syncthreads();
			else
				__syncwarp();
		}
}
