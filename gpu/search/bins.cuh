/*
 * bins.cuh
 *		The nearest of many items, sorted by counting them in bins, in few
 *		dependent steps, by all threads of a block together.
 *
 * Scores are spread about evenly between the least and the greatest.  So bins
 * of equal width have few items each.  Their running sum tells which bins have
 * the k nearest and where each begins, and the items of a bin are ordered by
 * counting: seven barriers, where a bound by halving has two for each bit and
 * a bitonic sort of 1,024 items 15, and 12 us where those take 33.  They
 * remain for other distributions.
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
#define GV_BIN_MOST			64	/* most items of a bin that are counted */

/* The scale of keys between the least and the greatest. */
struct GvBinScale
{
	float		least;
	float		bins;			/* bins of a unit of scores */

	/* Sets the scale.  Returns false if it cannot tell these keys apart. */
	__device__ __forceinline__ bool
	set(uint32_t first, uint32_t last)
	{
		least = gv_unordered(first);
		bins = GV_BINS / (gv_unordered(last) - least);
		return fabsf(least) < INFINITY && bins > 0.0f && bins < INFINITY;
	}

	/* Returns the bin of a key; it ascends as keys do. */
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
	uint32_t	ends[GV_BINS];	/* first the items of a bin, then where it
								 * begins among those taken, then where it
								 * ends */
	uint32_t	most[GV_WARP];	/* of each warp */
	uint32_t	least[GV_WARP];
	uint32_t	sums[GV_WARP];
	uint32_t	last;			/* the last bin that is taken */
	uint32_t	taken;			/* items of these bins */
	uint32_t	crowded;		/* not 0: one of them has too many items */

	/* Clears all bins, with all threads, before a barrier. */
	__device__ __forceinline__ void
	clear()
	{
		for (int i = threadIdx.x; i < GV_BINS; i += GV_BINS_THREADS)
			ends[i] = 0;
		if (threadIdx.x == 0)
			crowded = 0;
	}
};

/* Finds the least and the greatest key of all threads.  One barrier. */
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
 * Replaces the numbers of items in bins by where these begin, and finds the
 * last bin that has one of the first k items, k > 0.  Begins and ends with a
 * barrier.
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
 * Sorts items that are grouped by bins, of which there are at most ROOM.
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

			/* of equal items, a row that is stored twice, the first */
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
 * Stores the k smallest of n items, 0 < k <= n, and a few more, sorted, in items
 * [ROOM], which is shared.  Thread t has items r * GV_BINS_THREADS + t, of
 * which key_at(r), r < OWN, is the key.  Returns false, and stores nothing, if
 * scores are not spread evenly.  Ends with a barrier.
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
 * Sorts the k smallest of items [n], 0 < k <= n <= ROOM; the order of those
 * behind is undefined.  Begins with a barrier, and else is as above.
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
 * Sorts for any scores and any number of threads.  They begin and end with a
 * barrier.
 */

#define GV_QUAD			4		/* threads that compute an item's rank */

/*
 * Sorts items [n], at most one for every GV_QUAD threads, by counting the items
 * before each one.
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

		/* of equal items, a row that is stored twice, the first */
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
 * Sorts items [n] in memory for the next power of two, n > 32.  At strides up
 * to 32 a warp's pairs are 64 items of its own, so there are few barriers.
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
