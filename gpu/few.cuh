/*
 * few.cuh
 *		The first of many values that a warp has in its registers.
 *
 * A bound is guessed and counted until what is before it is k or more and no
 * more than the warp sorts; a guess is where such a bound would be if values
 * were spread evenly between two that were counted, and the first mostly
 * does.  What is before it goes to shared memory and is sorted.
 */
#ifndef GV_FEW_CUH
#define GV_FEW_CUH

#include "warpsort.cuh"

#define GV_MOST_GUESSES	8		/* of a bound */

static __device__ __forceinline__ float
gv_least_of_warp(float value)
{
	return gv_unordered(~__reduce_max_sync(GV_FULL_WARP, ~gv_ordered(value)));
}

/*
 * A number that so many of a warp's values are before, k or more and `most` or
 * fewer; mask tells of this lane's, the first in the highest of KEYS bits.
 * Guessed between two numbers that were counted, and at first between what
 * each SAMPLED-th value says.  NaN: it was not found.
 */
template <int KEYS>
static __device__ __forceinline__ float
gv_guess_bound(const float (&values)[KEYS], uint32_t n, uint32_t k,
			   uint32_t most, uint32_t *mask)
{
	constexpr int SAMPLED = KEYS / 8;
	float		aim = 0.5f * (float) (k + most);
	float		lower = INFINITY;
	float		upper = -INFINITY;
	float		below = SAMPLED;
	float		within = (float) n;
	bool		sure = false;	/* lower was counted, or is the least */

#pragma unroll
	for (int r = 0; r < KEYS; r += SAMPLED)
		if (fabsf(values[r]) < INFINITY)
		{
			lower = fminf(lower, values[r]);
			upper = fmaxf(upper, values[r]);
		}
	lower = gv_least_of_warp(lower);
	upper = gv_unordered(__reduce_max_sync(GV_FULL_WARP, gv_ordered(upper)));
#pragma unroll 1
	for (int round = 0; round < GV_MOST_GUESSES; round++)
	{
		float		share = __fdividef(aim - below, within - below);
		float		middle;
		uint32_t	count;

		/* what is one-sided is halved now and then */
		if (round % 4 == 3)
			share = 0.5f;
		middle = lower + share * (upper - lower);
		if (!(middle > lower && middle < upper))
			break;
		*mask = 0;
#pragma unroll
		for (int r = 0; r < KEYS; r++)
			*mask = gv_mark_before(*mask, values[r], middle);
		count = __reduce_add_sync(GV_FULL_WARP, (uint32_t) __popc(*mask));
		if (count >= k && count <= most)
			return middle;
		if (count < k)
		{
			lower = middle;
			below = (float) count;
			sure = true;
			continue;
		}
		upper = middle;
		within = (float) count;
		if (!sure)
		{
#pragma unroll
			for (int r = 0; r < KEYS; r++)
				lower = fminf(lower, values[r]);
			lower = gv_least_of_warp(lower);
			below = 0.0f;
			sure = true;
		}
	}
	return NAN;
}

/*
 * Give the k first of n values that a warp has, 32 KEYS or fewer and NaN for
 * the rest; position(r) is the r-th's of this lane.  32 R of them are sorted,
 * in shared memory.  false: no bound was found, or many are equal.
 */
template <int R, int KEYS, typename Position>
static __device__ __forceinline__ bool
gv_give_few(const float (&values)[KEYS], Position position, uint32_t n,
			GvTaken *taken, const GvRowsOut &out, int64_t row)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	mask = 0;
	float		bound = gv_guess_bound(values, n, (uint32_t) out.k,
									   R * GV_WARP, &mask);
	uint32_t	mine = (uint32_t) __popc(mask);
	uint32_t	upto = mine;
	GvTaken    *to;

	if (bound != bound)
		return false;
#pragma unroll
	for (uint32_t d = 1; d < GV_WARP; d *= 2)
	{
		uint32_t	before = __shfl_up_sync(GV_FULL_WARP, upto, d);

		upto += lane >= d ? before : 0;
	}
	to = taken + (upto - mine);
#pragma unroll
	for (int r = 0; r < KEYS; r++)
		if (values[r] < bound)
			*to++ = {values[r], position(r)};
	upto = __shfl_sync(GV_FULL_WARP, upto, GV_WARP - 1);
	__syncwarp();
	return gv_warp_give<R>(taken, upto, out, row);
}

#endif							/* GV_FEW_CUH */
