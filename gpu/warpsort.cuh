/*
 * warpsort.cuh
 *		Up to 128 items in order, by a warp in its registers.
 *
 * An item is twice as wide as what a lane exchanges and compares at once.  So
 * what is sorted is the key's distance from the least, without its lowest bits
 * where it has more than 25, and the item's number behind it.  Where two of
 * the first are the same then, ties among them, nothing is known of their
 * order, and the caller has to sort items as a whole.
 */
#ifndef GV_WARPSORT_CUH
#define GV_WARPSORT_CUH

#include "rows.cuh"

#define GV_NUMBER_BITS	7		/* of an item */

/*
 * The steps of a size within 32 numbers.  Not unrolled: what each compares
 * would be held in registers beforehand.
 */
template <int R>
static __device__ __forceinline__ void
gv_lane_steps(uint32_t (&numbers)[R], uint32_t size)
{
	uint32_t	lane = threadIdx.x % GV_WARP;

#pragma unroll 1
	for (uint32_t stride = min(size, (uint32_t) GV_WARP) / 2; stride > 0;
		 stride /= 2)
#pragma unroll
		for (uint32_t r = 0; r < R; r++)
		{
			uint32_t	other = __shfl_xor_sync(GV_FULL_WARP, numbers[r],
												(int) stride);
			bool		up = ((r * GV_WARP + lane) & size) == 0;

			numbers[r] = up == ((lane & stride) == 0) ?
				min(numbers[r], other) : max(numbers[r], other);
		}
}

/* Sort a warp's numbers; the i-th goes to register i / 32 of lane i % 32. */
template <int R>
static __device__ __forceinline__ void
gv_warp_sort(uint32_t (&numbers)[R])
{
#pragma unroll 1
	for (uint32_t size = 2; size <= GV_WARP; size *= 2)
		gv_lane_steps(numbers, size);
#pragma unroll
	for (uint32_t chunks = 2; chunks <= R; chunks *= 2)
	{
#pragma unroll
		for (uint32_t apart = chunks / 2; apart > 0; apart /= 2)
#pragma unroll
			for (uint32_t r = 0; r < R; r++)
				if ((r & apart) == 0)
				{
					uint32_t	a = numbers[r];
					uint32_t	b = numbers[r | apart];
					bool		up = (r & chunks) == 0;

					numbers[r] = up ? min(a, b) : max(a, b);
					numbers[r | apart] = up ? max(a, b) : min(a, b);
				}
		gv_lane_steps(numbers, chunks * GV_WARP);
	}
}

/* Are two side by side, of the first k of count, alike but in the number? */
template <int R>
static __device__ __forceinline__ bool
gv_warp_alike(const uint32_t (&numbers)[R], uint32_t count, uint32_t k)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	bool		alike = false;

#pragma unroll
	for (uint32_t r = 0; r < R; r++)
	{
		uint32_t	i = r * GV_WARP + lane;
		uint32_t	next = __shfl_down_sync(GV_FULL_WARP, numbers[r], 1);

		if (r + 1 < R)
		{
			uint32_t	first = __shfl_sync(GV_FULL_WARP,
											numbers[(r + 1) % R], 0);

			next = lane == GV_WARP - 1 ? first : next;
		}
		alike |= i < k && i + 1 < count &&
			next >> GV_NUMBER_BITS == numbers[r] >> GV_NUMBER_BITS;
	}
	return __any_sync(GV_FULL_WARP, alike);
}

/*
 * Give the k first of count items, 32 R at most, in shared memory, by a warp
 * for which they are there; false: nothing has been given or changed.
 */
template <int R>
static __device__ __forceinline__ bool
gv_warp_give(const uint64_t *items, uint32_t count, const GvRowsOut &out,
			 int64_t row)
{
	static_assert(R * GV_WARP <= 1 << GV_NUMBER_BITS, "numbers of items");
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	least = GV_NO_KEY;
	uint32_t	most = 0;
	uint32_t	numbers[R];
	int			shift;

#pragma unroll
	for (uint32_t r = 0; r < R; r++)
	{
		numbers[r] = GV_NO_KEY;
		if (r * GV_WARP + lane < count)
		{
			numbers[r] = (uint32_t) (items[r * GV_WARP + lane] >> 32);
			most = max(most, numbers[r]);
		}
		least = min(least, numbers[r]);
	}
	least = ~__reduce_max_sync(GV_FULL_WARP, ~least);
	most = __reduce_max_sync(GV_FULL_WARP, most);
	shift = max(0, GV_NUMBER_BITS - __clz((int) (most - least)));
#pragma unroll
	for (uint32_t r = 0; r < R; r++)
		if (r * GV_WARP + lane < count)
			numbers[r] = (numbers[r] - least) >> shift << GV_NUMBER_BITS |
				(r * GV_WARP + lane);
	gv_warp_sort(numbers);
	if (gv_warp_alike(numbers, count, (uint32_t) out.k))
		return false;
#pragma unroll
	for (uint32_t r = 0; r < R; r++)
		if (r * GV_WARP + lane < out.k)
			gv_give_item(out, row, r * GV_WARP + lane,
						 items[numbers[r] % (1 << GV_NUMBER_BITS)]);
	return true;
}

#endif							/* GV_WARPSORT_CUH */
