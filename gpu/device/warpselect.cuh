/*
 * warpselect.cuh
 *		WarpSelect: finds the k smallest items of a stream, in a warp's
 *		registers.
 *
 * After Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs",
 * section 4.2.  Each lane has a short thread queue of items that may belong to
 * the k smallest, and the warp has a long sorted warp queue.  One comparison
 * drops an item that does not sort before the k-th item of the warp queue.
 * When the thread queue of any lane is full, all thread queues are sorted
 * together by a bitonic network and merged into the warp queue.  The warp
 * queue is longer than the sorted thread queues, so the merge compares only
 * the tail of the warp queue with the reversed thread queues, and a bitonic
 * merge does the rest.  Unlike in the paper, a thread queue is not kept
 * sorted: its items are sorted only once, at the merge.
 *
 * Item is a struct with
 *		bool before(const Item &other) const	a strict total order
 *		static Item worst()						after every real item
 *		static Item beyond(uint32_t key)		after every item of that key,
 *												before those of the next
 *		uint32_t key							the first part of the order
 *		static Item pick(bool yes, Item a, Item b)	a or b, field by field: a
 *												choice between structs would
 *												put them into memory
 *		Item across(int mask) const				the item of lane ^ mask
 *		Item of(int lane) const					the item of that lane
 * NW and NT, powers of two, NT <= NW: registers of a lane for the warp queue
 * (32 NW items) and for its own queue (NT items).
 *
 * All 32 lanes of a warp call all methods together.
 */
#ifndef GV_WARPSELECT_CUH
#define GV_WARPSELECT_CUH

#include "gpu/device/device.h"

/* A list and its score, loaded at once. */
struct alignas(8) GvListItem
{
	uint32_t	key;			/* gv_ordered(score) */
	uint32_t	list;

	__device__ __forceinline__ bool
	before(const GvListItem &other) const
	{
		return key < other.key || (key == other.key && list < other.list);
	}

	static __device__ __forceinline__ GvListItem
	worst()
	{
		return {0xFFFFFFFFu, 0xFFFFFFFFu};
	}

	static __device__ __forceinline__ GvListItem
	beyond(uint32_t key)
	{
		return {key, 0xFFFFFFFFu};
	}

	static __device__ __forceinline__ GvListItem
	pick(bool yes, GvListItem a, GvListItem b)
	{
		return {yes ? a.key : b.key, yes ? a.list : b.list};
	}

	__device__ __forceinline__ GvListItem
	across(int mask) const
	{
		return {__shfl_xor_sync(GV_FULL_WARP, key, mask),
			__shfl_xor_sync(GV_FULL_WARP, list, mask)};
	}

	__device__ __forceinline__ GvListItem
	of(int lane) const
	{
		return {__shfl_sync(GV_FULL_WARP, key, lane),
			__shfl_sync(GV_FULL_WARP, list, lane)};
	}
};

template <typename Item>
static __device__ __forceinline__ Item
gv_smaller(Item a, Item b)
{
	return Item::pick(b.before(a), b, a);
}

/*
 * Does one step of a bitonic network over items[N], where register r of a lane
 * holds item r * 32 + lane.  Compares items that are STRIDE apart and
 * exchanges them if needed.  Runs of SIZE items ascend and descend
 * alternately: in an ascending run the smaller item goes first, in a
 * descending run last.
 */
template <int SIZE, int STRIDE, typename Item, int N>
static __device__ __forceinline__ void
gv_exchange(Item (&items)[N])
{
	int			lane = threadIdx.x % GV_WARP;

	if constexpr (STRIDE >= GV_WARP)
	{
#pragma unroll
		for (int r = 0; r < N; r++)
		{
			constexpr int apart = STRIDE / GV_WARP;

			if ((r & apart) == 0)
			{
				bool		up = ((r * GV_WARP) & SIZE) == 0;
				Item		a = items[r];
				Item		b = items[r + apart];
				bool		swap = b.before(a) == up;

				items[r] = Item::pick(swap, b, a);
				items[r + apart] = Item::pick(swap, a, b);
			}
		}
	}
	else
	{
#pragma unroll
		for (int r = 0; r < N; r++)
		{
			bool		up = ((r * GV_WARP + lane) & SIZE) == 0;
			bool		lower = (lane & STRIDE) == 0;
			Item		other = items[r].across(STRIDE);

			items[r] = Item::pick(other.before(items[r]) == (up == lower),
								  other, items[r]);
		}
	}
}

/*
 * Does all steps for runs of SIZE items, with strides from STRIDE down to 1.
 */
template <int SIZE, int STRIDE, typename Item, int N>
static __device__ __forceinline__ void
gv_steps(Item (&items)[N])
{
	gv_exchange<SIZE, STRIDE>(items);
	if constexpr (STRIDE > 1)
		gv_steps<SIZE, STRIDE / 2>(items);
}

/* Sorts items[N], ascending over the whole warp. */
template <int SIZE = 2, typename Item, int N>
static __device__ __forceinline__ void
gv_sort(Item (&items)[N])
{
	gv_steps<SIZE, SIZE / 2>(items);
	if constexpr (SIZE < N * GV_WARP)
		gv_sort<SIZE * 2>(items);
}

/* Sorts items[N] that are a bitonic sequence. */
template <typename Item, int N>
static __device__ __forceinline__ void
gv_merge(Item (&items)[N])
{
	gv_steps<2 * N * GV_WARP, N * GV_WARP / 2>(items);
}

template <typename Item, int NW, int NT>
struct GvWarpSelect
{
	static_assert(NT <= NW && (NW & (NW - 1)) == 0 && (NT & (NT - 1)) == 0,
				  "queues are powers of two");

	Item		warp_queue[NW]; /* ascending: item r * 32 + lane */
	Item		thread_queue[NT];	/* of this lane, in no order */
	int			nqueued;
	Item		bound;			/* items that do not sort before this one are
								 * dropped: the k-th item of this queue, or of
								 * a queue that shares its k-th key */
	int			k;				/* 1 .. 32 NW */

	__device__ __forceinline__ void
	reset(int nwanted)
	{
		k = nwanted;
		nqueued = 0;
		bound = Item::worst();
#pragma unroll
		for (int r = 0; r < NW; r++)
			warp_queue[r] = Item::worst();
#pragma unroll
		for (int r = 0; r < NT; r++)
			thread_queue[r] = Item::worst();
	}

	/* Adds an item of this lane.  A lane without an item passes worst(). */
	__device__ __forceinline__ void
	add(const Item &item)
	{
		if (item.before(bound))
		{
#pragma unroll
			for (int r = NT - 1; r > 0; r--)
				thread_queue[r] = thread_queue[r - 1];
			thread_queue[0] = item;
			nqueued++;
		}
		if (__any_sync(GV_FULL_WARP, nqueued == NT))
			merge_queues();
	}

	/*
	 * Lowers the bound: from here on, items that do not sort before `item` are
	 * dropped.
	 */
	__device__ __forceinline__ void
	lower_bound(const Item &item)
	{
		if (item.before(bound))
			bound = item;
	}

	/*
	 * Lowers the bound: from here on, items whose keys are larger than `key`
	 * are dropped.  Items with this key stay.
	 */
	__device__ __forceinline__ void
	lower_bound_to(uint32_t key)
	{
		if (key < bound.key)
			bound = Item::beyond(key);
	}

	/* Merges the thread queues into the warp queue. */
	__device__ __forceinline__ void
	merge_queues()
	{
		gv_sort(thread_queue);
#pragma unroll
		for (int r = 0; r < NT; r++)
			warp_queue[NW - NT + r] =
				gv_smaller(warp_queue[NW - NT + r],
						   thread_queue[NT - 1 - r].across(GV_WARP - 1));
		gv_merge(warp_queue);
		nqueued = 0;
#pragma unroll
		for (int r = 0; r < NT; r++)
			thread_queue[r] = Item::worst();
		lower_bound(at(k - 1));
	}

	/* Merges the array sorted [32 NW] in shared memory into the warp queue. */
	__device__ __forceinline__ void
	merge_sorted(const Item *sorted)
	{
		int			lane = threadIdx.x % GV_WARP;

#pragma unroll
		for (int r = 0; r < NW; r++)
			warp_queue[r] = gv_smaller(warp_queue[r], sorted[NW * GV_WARP - 1 -
												 (r * GV_WARP + lane)]);
		gv_merge(warp_queue);
	}

	/* Returns, to all lanes, item i of the warp queue. */
	__device__ __forceinline__ Item
	at(int i) const
	{
		Item		mine = warp_queue[0];

#pragma unroll
		for (int r = 1; r < NW; r++)
			mine = Item::pick(r == i / GV_WARP, warp_queue[r], mine);
		return mine.of(i % GV_WARP);
	}

	__device__ __forceinline__ void
	store(Item *sorted) const
	{
#pragma unroll
		for (int r = 0; r < NW; r++)
			sorted[r * GV_WARP + threadIdx.x % GV_WARP] = warp_queue[r];
	}
};

/*
 * Merges the queues of all warps of a block into the first warp's queue;
 * called by all threads.  The number of warps is a power of two.  In each step
 * half of the remaining warps store their queues in shared memory [warps /
 * 2][32 NW], and the other half merge them into theirs, until one warp is
 * left.
 */
template <typename Item, int NW, int NT>
static __device__ __forceinline__ void
gv_block_merge(GvWarpSelect<Item, NW, NT> &select, Item *shared)
{
	int			warp = threadIdx.x / GV_WARP;

	for (int half = blockDim.x / GV_WARP / 2; half > 0; half /= 2)
	{
		if (warp >= half && warp < 2 * half)
			select.store(shared + (warp - half) * NW * GV_WARP);
		__syncthreads();
		if (warp < half)
			select.merge_sorted(shared + warp * NW * GV_WARP);
		__syncthreads();
	}
}

#endif							/* GV_WARPSELECT_CUH */
