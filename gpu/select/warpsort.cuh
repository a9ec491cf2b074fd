/*
 * warpsort.cuh
 *		Up to 384 items in order, by a warp in its registers.
 *
 * An item is twice as wide as what a lane exchanges and compares at once.  So
 * what is sorted is the key's distance from the least, without its lowest bits
 * where they have no room, and the item's number behind it.  A lane has R
 * numbers that follow each other, so that half of all exchanges are its own.
 * Where two of the first are the same but for the items' numbers, ties among
 * them, neighbors change places until they are in order.
 */
#ifndef GV_WARPSORT_CUH
#define GV_WARPSORT_CUH

#include <stdint.h>

#include "gpu/select/rows.cuh"

#define GV_TIED_ROUNDS	8		/* of neighbors; then it is left to others */

static __device__ __forceinline__ void
gv_in_order(uint32_t &a, uint32_t &b)
{
	uint32_t	first = min(a, b);

	b = max(a, b);
	a = first;
}

/* Sort N numbers, from `at` on, that rise to one of them and then fall, or
 * fall and then rise. */
template <int AT, int N, int R>
static __device__ __forceinline__ void
gv_sort_bitonic(uint32_t (&numbers)[R])
{
	if constexpr (N == 3)
	{
		gv_in_order(numbers[AT], numbers[AT + 2]);
		gv_in_order(numbers[AT], numbers[AT + 1]);
		gv_in_order(numbers[AT + 1], numbers[AT + 2]);
	}
	else if constexpr (N > 1)
	{
		static_assert(N % 2 == 0, "two halves");

#pragma unroll
		for (int r = AT; r < AT + N / 2; r++)
			gv_in_order(numbers[r], numbers[r + N / 2]);
		gv_sort_bitonic<AT, N / 2>(numbers);
		gv_sort_bitonic<AT + N / 2, N / 2>(numbers);
	}
}

/* Sort a lane's numbers; a network of Batcher's. */
template <int R>
static __device__ __forceinline__ void
gv_lane_sort(uint32_t (&numbers)[R])
{
#pragma unroll
	for (int p = 1; p < R; p *= 2)
#pragma unroll
		for (int apart = p; apart > 0; apart /= 2)
#pragma unroll
			for (int r = 0; r + apart < R; r++)
				if (r >= apart % p && (r - apart % p) / apart % 2 == 0 &&
					r / (2 * p) == (r + apart) / (2 * p))
					gv_in_order(numbers[r], numbers[r + apart]);
}

/* Sort a warp's numbers; the i-th goes to register i % R of lane i / R. */
template <int R>
static __device__ __forceinline__ void
gv_warp_sort(uint32_t (&numbers)[R])
{
	uint32_t	lane = threadIdx.x % GV_WARP;

	gv_lane_sort(numbers);
#pragma unroll 1
	for (uint32_t lanes = 2; lanes <= GV_WARP; lanes *= 2)
	{
		uint32_t	others[R];

		/* two that ascend: the first of one meets the last of the other */
#pragma unroll
		for (int r = 0; r < R; r++)
			others[r] = __shfl_xor_sync(GV_FULL_WARP, numbers[R - 1 - r],
										(int) lanes - 1);
#pragma unroll
		for (int r = 0; r < R; r++)
			if ((others[r] < numbers[r]) == ((lane & lanes / 2) == 0))
				numbers[r] = others[r];
#pragma unroll 1
		for (uint32_t stride = lanes / 4; stride > 0; stride /= 2)
		{
			bool		first = (lane & stride) == 0;

#pragma unroll
			for (int r = 0; r < R; r++)
			{
				uint32_t	other = __shfl_xor_sync(GV_FULL_WARP, numbers[r],
													(int) stride);

				if ((other < numbers[r]) == first)
					numbers[r] = other;
			}
		}
		gv_sort_bitonic<0, R>(numbers);
	}
}

/*
 * Let neighbors change places, in all of a warp, until all are in order;
 * false: it would take too long.
 */
template <int R>
static __device__ __forceinline__ bool
gv_settle_ties(GvTaken (&taken)[R], uint32_t count)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint64_t	items[R];
	bool		settled = false;

#pragma unroll
	for (int r = 0; r < R; r++)
		items[r] = lane * R + r < count ?
			gv_row_item(taken[r].value, taken[r].position) : GV_NO_ITEM;
#pragma unroll 1
	for (uint32_t round = 0; round < GV_TIED_ROUNDS && !settled; round++)
	{
		bool		changed = false;
		uint64_t	next;
		uint64_t	before;

#pragma unroll
		for (int r = 0; r + 1 < R; r++)
			if (items[r + 1] < items[r])
			{
				uint64_t	item = items[r];

				items[r] = items[r + 1];
				items[r + 1] = item;
				changed = true;
			}
		/* of one a lane, each second lane looks ahead */
		next = __shfl_down_sync(GV_FULL_WARP, items[0], 1);
		before = __shfl_up_sync(GV_FULL_WARP, items[R - 1], 1);
		if (lane + 1 < GV_WARP && next < items[R - 1] &&
			(R > 1 || lane % 2 == round % 2))
		{
			items[R - 1] = next;
			changed = true;
		}
		else if (R == 1 && lane > 0 && items[0] < before &&
				 lane % 2 != round % 2)
			items[0] = before;
		if (R > 1 && lane > 0 && items[0] < before)
			items[0] = before;
		settled = !__any_sync(GV_FULL_WARP, changed) &&
			(R > 1 || round % 2 == 1);
	}
#pragma unroll
	for (int r = 0; r < R; r++)
		taken[r] = {gv_item_value(items[r]), (uint32_t) items[r]};
	return settled;
}

/* Are two of a warp's first k, side by side, alike but in `bits`? */
template <int R>
static __device__ __forceinline__ bool
gv_warp_alike(const uint32_t (&numbers)[R], uint32_t k, int bits)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	next = __shfl_down_sync(GV_FULL_WARP, numbers[0], 1);
	bool		alike = false;

#pragma unroll
	for (int r = 0; r < R; r++)
	{
		uint32_t	other = r + 1 < R ? numbers[(r + 1) % R] : next;

		alike |= (numbers[r] ^ other) >> bits == 0 && lane * R + r < k &&
			(r + 1 < R || lane + 1 < GV_WARP);
	}
	return __any_sync(GV_FULL_WARP, alike);
}

/* A warp's numbers of what was taken; GV_NO_KEY behind. */
template <int R>
static __device__ __forceinline__ void
gv_warp_number(const GvTaken *taken, uint32_t count, int bits,
			   uint32_t (&numbers)[R])
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	least = GV_NO_KEY;
	uint32_t	most = 0;
	int			shift;

#pragma unroll
	for (uint32_t r = 0; r < R; r++)
	{
		numbers[r] = GV_NO_KEY;
		if (r * GV_WARP + lane < count)
		{
			numbers[r] = gv_ordered(taken[r * GV_WARP + lane].value);
			most = max(most, numbers[r]);
		}
		least = min(least, numbers[r]);
	}
	least = ~__reduce_max_sync(GV_FULL_WARP, ~least);
	most = __reduce_max_sync(GV_FULL_WARP, most);
	shift = max(0, bits - __clz((int) (most - least)));
#pragma unroll
	for (uint32_t r = 0; r < R; r++)
		if (r * GV_WARP + lane < count)
			numbers[r] = (numbers[r] - least) >> shift << bits |
				(r * GV_WARP + lane);
}

/*
 * Give the k first of count taken, 32 R at most, in shared memory, by a warp
 * for which they are there; false: many are equal, nothing has been given.
 */
template <int R>
static __device__ __forceinline__ bool
gv_warp_write(const GvTaken *taken, uint32_t count, const GvRowsOut &out,
			 int64_t row)
{
	constexpr int BITS = R == 1 ? 5 : R == 2 ? 6 : R <= 4 ? 7 : R <= 8 ? 8 : 9;
	static_assert(R * GV_WARP <= 1 << BITS, "numbers of items");
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	numbers[R];
	GvTaken		first[R];

	gv_warp_number(taken, count, BITS, numbers);
	gv_warp_sort(numbers);
#pragma unroll
	for (uint32_t r = 0; r < R; r++)
		first[r] = taken[numbers[r] % (1 << BITS)];
	if (gv_warp_alike(numbers, (uint32_t) out.k, BITS) &&
		!gv_settle_ties(first, count))
		return false;
#pragma unroll
	for (uint32_t r = 0; r < R; r++)
		if (lane * R + r < out.k)
		{
			int64_t		i = row * out.k + lane * R + r;

			out.d_positions[i] = first[r].position;
			/* no -0 */
			out.d_selected[i] = first[r].value + 0.0f;
		}
	return true;
}

#endif							/* GV_WARPSORT_CUH */
