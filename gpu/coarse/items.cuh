/*
 * items.cuh
 *		A query's lists in shared memory, for choose.cu: gathered, scored
 *		exactly, sorted, by a block of threads.
 */
#ifndef GV_ITEMS_CUH
#define GV_ITEMS_CUH

#include <stdint.h>

#include "gpu/coarse/score.cuh"
#include "gpu/common/bisect.cuh"
#include "gpu/common/gv_card.h"

#define GV_LAST_ITEM		UINT64_C(0xFFFFFFFFFFFFFFFF)

/* Keys for gv_find_bound: in shared memory, of scores, of items as below. */
struct GvSharedKeys
{
	const uint32_t *keys;

	__device__ __forceinline__ uint32_t
	operator()(uint32_t i) const
	{
		return keys[i];
	}
};

struct GvScoreKeys
{
	const float *scores;

	__device__ __forceinline__ uint32_t
	operator()(uint32_t i) const
	{
		return gv_ordered(scores[i]);
	}
};

struct GvItemKeys
{
	const uint64_t *items;

	__device__ __forceinline__ uint32_t
	operator()(uint32_t i) const
	{
		return (uint32_t) (items[i] >> 32);
	}
};

/* Lists in shared memory: items are key << 32 | list. */
struct GvItems
{
	uint64_t   *items;			/* [capacity] */
	uint32_t   *count;			/* shared; may exceed room */
	uint32_t	capacity;

	/* Append the items of those lanes of a warp that have one. */
	__device__ __forceinline__ void
	append(bool mine, uint32_t key, uint32_t list)
	{
		uint32_t	lanes = __ballot_sync(GV_FULL_WARP, mine);
		uint32_t	at;

		if (lanes == 0)
			return;
		at = gv_take_place(lanes, count);
		if (mine && at < capacity)
			items[at] = (uint64_t) key << 32 | list;
	}

	/* An item to a place that gv_reserve gave. */
	__device__ __forceinline__ void
	put(uint32_t at, uint32_t key, uint32_t list)
	{
		if (at < capacity)
			items[at] = (uint64_t) key << 32 | list;
	}

	/* How many, after a barrier. */
	__device__ __forceinline__ uint32_t
	total()
	{
		__syncthreads();
		return *count;
	}

	/* Begin anew; all threads have read the count before. */
	__device__ __forceinline__ void
	clear()
	{
		__syncthreads();
		if (threadIdx.x == 0)
			*count = 0;
		__syncthreads();
	}
};

/*
 * Exact keys in the place of approximate ones; four lanes a list, AHEAD loads
 * of each on their way.
 */
template <bool PRODUCT, int AHEAD>
static __device__ __forceinline__ void
gv_score_items(const GvDeviceModel &model, const float *query, uint64_t *items,
			uint32_t n)
{
	uint32_t	quad = threadIdx.x / GV_QUAD;

	for (uint32_t first = 0; first < n; first += blockDim.x / GV_QUAD)
	{
		uint32_t	i = first + quad;
		bool		there = i < n && items[i] != GV_LAST_ITEM;
		uint32_t	list = there ? (uint32_t) items[i] : 0;
		float		score = gv_quad_score<PRODUCT, AHEAD>(query,
														  model.d_centroids +
														  (int64_t) list *
														  model.dims,
														  model.dims);

		__syncwarp();			/* all four have read which list it is */
		if (threadIdx.x % GV_QUAD == 0 && there)
			items[i] = (uint64_t) gv_ordered(score) << 32 | list;
	}
}

/* Sort items [n], up to one for four lanes, ascending, by counting. */
static __device__ __forceinline__ void
gv_rank_items(uint64_t *items, uint32_t n)
{
	uint32_t	i = threadIdx.x / GV_QUAD;
	uint64_t	item;
	uint32_t	rank = 0;

	__syncthreads();
	item = i < n ? items[i] : GV_LAST_ITEM;
#pragma unroll 4
	for (uint32_t j = threadIdx.x % GV_QUAD; j < n; j += GV_QUAD)
		rank += items[j] < item;
	rank += __shfl_xor_sync(GV_FULL_WARP, rank, 1);
	rank += __shfl_xor_sync(GV_FULL_WARP, rank, 2);
	__syncthreads();
	if (threadIdx.x % GV_QUAD == 0 && i < n)
		items[rank] = item;
	__syncthreads();
}

/* Sort items [n], n a power of 2, ascending. */
static __device__ __forceinline__ void
gv_sort_items(uint64_t *items, uint32_t n)
{
	for (uint32_t size = 2; size <= n; size *= 2)
		for (uint32_t stride = size / 2; stride > 0; stride /= 2)
		{
			__syncthreads();
			for (uint32_t i = threadIdx.x; i < n / 2; i += blockDim.x)
			{
				uint32_t	low = 2 * i - (i & (stride - 1));
				bool		up = (low & size) == 0;
				uint64_t	a = items[low];
				uint64_t	b = items[low + stride];

				if ((b < a) == up)
				{
					items[low] = b;
					items[low + stride] = a;
				}
			}
		}
	__syncthreads();
}

#endif							/* GV_ITEMS_CUH */
