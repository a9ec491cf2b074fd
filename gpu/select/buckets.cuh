/*
 * buckets.cuh
 *		Sorting items whose values lie about evenly, by a block of threads.
 *
 * The items that a threshold has let pass are the first of many, in random
 * order.  A bitonic network takes log^2 steps for each; here an item goes to
 * the bucket where its value would be if values were spread evenly, and counts
 * the few in the bucket that are before it.  An item takes a dozen steps
 * whatever their number; where a bucket gets too many, the network sorts them.
 */
#ifndef GV_BUCKETS_CUH
#define GV_BUCKETS_CUH

#include <stdint.h>

#include "gpu/select/rows.cuh"

#define GV_SORT_BUCKETS		2048
#define GV_SORT_CROWD		48	/* most items of a bucket */
#define GV_SORT_WHOLE			128 /* items that a network sorts as quickly */

/*
 * A block's shared memory for room items, a multiple of 8, of which k are
 * wanted; the network takes a power of two of items, and nothing else.
 */
static inline size_t
gv_bucket_bytes(uint32_t capacity, uint32_t k)
{
	size_t		bytes = sizeof(uint64_t) * capacity +
		sizeof(uint32_t) * GV_SORT_BUCKETS +
		sizeof(uint16_t) * (capacity + (k + 7) / 8 * 8);
	size_t		network = sizeof(uint64_t) * gv_power(capacity, GV_WARP);

	return bytes > network ? bytes : network;
}

/* Items and where they belong, in that memory. */
struct GvBuckets
{
	uint64_t   *items;			/* [capacity] */
	uint32_t   *ends;			/* [GV_SORT_BUCKETS] of buckets, in order */
	uint16_t   *order;			/* [capacity] items, bucket by bucket */
	uint16_t   *places;			/* [k] items, in order */
	float		least;
	float		scale;

	__device__ __forceinline__
	GvBuckets(void *memory, uint32_t capacity)
	{
		items = (uint64_t *) memory;
		ends = (uint32_t *) (items + capacity);
		order = (uint16_t *) (ends + GV_SORT_BUCKETS);
		places = order + capacity;
		least = scale = 0.0f;
	}

	/* Ascends with the value, whatever rounding does. */
	__device__ __forceinline__ uint32_t
	bucket(uint64_t item) const
	{
		return min((uint32_t) ((gv_item_value(item) - least) * scale),
				   (uint32_t) GV_SORT_BUCKETS - 1);
	}
};

/* Can values be spread?  Not if they are equal or infinite. */
template <int THREADS>
static __device__ __forceinline__ bool
gv_buckets_spread(GvBuckets &buckets, uint32_t count, GvTalk &talk)
{
	uint32_t	first = 0;
	uint32_t	last = 0;
	float		width;

	for (uint32_t i = threadIdx.x; i < count; i += THREADS)
	{
		uint32_t	key = (uint32_t) (buckets.items[i] >> 32);

		first = max(first, ~key);
		last = max(last, key);
	}
	buckets.least = gv_unordered(~talk.most(first));
	width = gv_unordered(talk.most(last)) - buckets.least;
	if (!(width > 1e-30f && width < 1e30f))
		return false;
	buckets.scale = (GV_SORT_BUCKETS - 1) / width;
	return true;
}

/* Counts of buckets become ranks they begin with; false: one is crowded. */
template <int THREADS>
static __device__ __forceinline__ bool
gv_buckets_sum(GvBuckets &buckets, GvTalk &talk)
{
	constexpr int EACH = GV_SORT_BUCKETS / THREADS;
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	counts[EACH];
	uint32_t	sum = 0;
	uint32_t	crowd = 0;
	uint32_t	upto;
	uint32_t	start;

#pragma unroll
	for (int e = 0; e < EACH; e++)
	{
		counts[e] = buckets.ends[threadIdx.x * EACH + e];
		sum += counts[e];
		crowd = max(crowd, counts[e]);
	}
	if (talk.most(crowd) > GV_SORT_CROWD)
		return false;
	upto = gv_upto_lane(sum);
	start = talk.tell(__shfl_sync(GV_FULL_WARP, upto, GV_WARP - 1));
	start = __reduce_add_sync(GV_FULL_WARP, lane < threadIdx.x / GV_WARP ?
							  start : 0) + upto - sum;
#pragma unroll
	for (int e = 0; e < EACH; e++)
	{
		buckets.ends[threadIdx.x * EACH + e] = start;
		start += counts[e];
	}
	__syncthreads();
	return true;
}

/*
 * The k first of count items, in order, into buckets.places; false: they are
 * as they were.  By all threads of the block, for which the items are there.
 */
template <int THREADS>
static __device__ __forceinline__ bool
gv_buckets_sort(GvBuckets &buckets, uint32_t count, uint32_t k)
{
	__shared__ uint32_t said[2][GV_WARP];
	GvTalk		talk = {said, 0};

	for (uint32_t i = threadIdx.x; i < GV_SORT_BUCKETS; i += THREADS)
		buckets.ends[i] = 0;
	if (!gv_buckets_spread<THREADS>(buckets, count, talk))
		return false;
	for (uint32_t i = threadIdx.x; i < count; i += THREADS)
		atomicAdd(&buckets.ends[buckets.bucket(buckets.items[i])], 1u);
	__syncthreads();
	if (!gv_buckets_sum<THREADS>(buckets, talk))
		return false;

	/* an item enters where its bucket ends so far */
	for (uint32_t i = threadIdx.x; i < count; i += THREADS)
	{
		uint32_t	b = buckets.bucket(buckets.items[i]);

		buckets.order[atomicAdd(&buckets.ends[b], 1u)] = (uint16_t) i;
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < count; i += THREADS)
	{
		uint64_t	item = buckets.items[i];
		uint32_t	b = buckets.bucket(item);
		uint32_t	begin = b > 0 ? buckets.ends[b - 1] : 0;
		uint32_t	end = buckets.ends[b];
		uint32_t	rank = begin;

		if (begin >= k)
			continue;
		for (uint32_t j = begin; j < end; j++)
			rank += buckets.items[buckets.order[j]] < item;
		if (rank < k)
			buckets.places[rank] = (uint16_t) i;
	}
	__syncthreads();
	return true;
}

/* Give the k first of count items, in shared memory made for it. */
template <int THREADS>
static __device__ __forceinline__ void
gv_buckets_write(GvBuckets &buckets, uint32_t count, const GvRowsOut &out,
				int64_t row)
{
	if (count > GV_SORT_WHOLE &&
		gv_buckets_sort<THREADS>(buckets, count, (uint32_t) out.k))
	{
		for (uint32_t i = threadIdx.x; i < out.k; i += THREADS)
			gv_write_item(out, row, i, buckets.items[buckets.places[i]]);
		return;
	}
	gv_team_write<THREADS>(buckets.items, count, out, row);
}

#endif							/* GV_BUCKETS_CUH */
