/*
 * guess.cuh
 *		The first of many values that a team has in its registers.
 *
 * A bound is estimated and counted until what is before it is k or more and no
 * more than a warp sorts.  For small k the first estimate is by threads'
 * minima: where k of them are not after some value, k of all are not, and few
 * more, since the k first lie in different threads mostly.  Another estimate
 * is where the bound would be if values were spread evenly between two that
 * were counted.  Items before it go to shared memory and are sorted.
 *
 * Source of the minima: Komarov, Dashti, D'Souza, "Fast k-NNG construction
 * with GPU-based quick multi-select", 2014.
 */
#ifndef GV_GUESS_CUH
#define GV_GUESS_CUH

#include <stdint.h>

#include "gpu/select/warpsort.cuh"

#define GV_MOST_ESTIMATES	12		/* of a bound */

template <int THREADS>
static __device__ __forceinline__ float
gv_least_of(GvTeam<THREADS> &team, float value)
{
	return gv_unordered(~team.most(~gv_ordered(value)));
}

/* The number of that rank, from 1, of a warp's. */
static __device__ __forceinline__ uint32_t
gv_warp_ranked(uint32_t key, uint32_t rank)
{
	uint32_t	lane = threadIdx.x % GV_WARP;

#pragma unroll 1
	for (uint32_t size = 2; size <= GV_WARP; size *= 2)
#pragma unroll 1
		for (uint32_t stride = size / 2; stride > 0; stride /= 2)
		{
			uint32_t	other = __shfl_xor_sync(GV_FULL_WARP, key,
												(int) stride);
			bool		first = ((lane & size) == 0) ==
				((lane & stride) == 0);

			key = first ? min(key, other) : max(key, other);
		}
	return __shfl_sync(GV_FULL_WARP, key, (int) rank - 1);
}

/*
 * A number that k of a team's values are before, k its threads at most: behind
 * the last of what its warps' minima of one rank are, which makes k.
 * NaN, or a number that no value is after: there are fewer.  Never +0, before
 * whose key no value's is (gv_ordered).
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ float
gv_bound_of_minima(const float (&values)[KEYS], uint32_t k,
				   GvTeam<THREADS> &team)
{
	constexpr int WARPS = THREADS / GV_WARP;
	float		least = values[0];

#pragma unroll
	for (int r = 1; r < KEYS; r++)
		least = fminf(least, values[r]);
	return gv_unordered(team.most(gv_warp_ranked(gv_row_key(least),
												 (k + WARPS - 1) / WARPS)) +
						1);
}

/*
 * Between which two values a bound is, and by how many too few and too many
 * are before these.
 */
struct GvEstimate
{
	float		lower;
	float		upper;
	float		too_few;
	float		too_many;
	float		middle;
	int			side;			/* -1, 1: lower, upper was found last */

	/* lower + fraction * (upper - lower); 0 is -0, see gv_mark_before */
	__device__ __forceinline__ void
	next(float fraction)
	{
		middle = -(fraction * (lower - upper) - lower);
	}

	/* Where it would be if values were spread evenly. */
	__device__ __forceinline__ void
	next()
	{
		next(__fdividef(too_few, too_few + too_many));
	}

	/* Of two that are too low one after the other, the upper one is too far
	 * away: it counts half.  (The Illinois way of false position.) */
	__device__ __forceinline__ void
	is_low(float by)
	{
		lower = middle;
		too_few = by;
		if (side < 0)
			too_many *= 0.5f;
		side = -1;
	}

	__device__ __forceinline__ void
	is_high(float by)
	{
		upper = middle;
		too_many = by;
		if (side > 0)
			too_few *= 0.5f;
		side = 1;
	}
};

/*
 * The first estimate: by minima, or between what each SAMPLED-th value says.
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ GvEstimate
gv_first_estimate(const float (&values)[KEYS], uint32_t n, uint32_t k,
				  float aim,
			   GvTeam<THREADS> &team)
{
	constexpr int SAMPLED = KEYS / 8;
	GvEstimate		estimate =
		{INFINITY, -INFINITY, aim - SAMPLED, (float) n - aim,
	0.0f, 0};

	if (k <= THREADS / 4 * 3)
	{
		estimate.lower = -INFINITY;
		estimate.upper = INFINITY;
		estimate.middle = gv_bound_of_minima(values, k, team);
		return estimate;
	}
#pragma unroll
	for (int r = 0; r < KEYS; r += SAMPLED)
		if (fabsf(values[r]) < INFINITY)
		{
			estimate.lower = fminf(estimate.lower, values[r]);
			estimate.upper = fmaxf(estimate.upper, values[r]);
		}
	estimate.lower = gv_least_of(team, estimate.lower);
	estimate.upper = gv_unordered(team.most(gv_ordered(estimate.upper)));
	estimate.next();
	return estimate;
}

/*
 * A number that k or more, and `most` or fewer, of a team's values are before;
 * mask tells of this thread's, the first in the highest of KEYS bits.
 * NaN: it was not found.
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ float
gv_estimate_bound(const float (&values)[KEYS], uint32_t n, uint32_t k,
			   uint32_t most, uint32_t *mask, GvTeam<THREADS> &team)
{
	float		aim = 0.5f * (float) (k + most);
	GvEstimate		estimate = gv_first_estimate(values, n, k, aim, team);
	bool		sure = false;	/* lower was counted, or is the least */

#pragma unroll 1
	for (int round = 0; round < GV_MOST_ESTIMATES; round++)
	{
		uint32_t	count;

		if (!(estimate.middle > estimate.lower &&
			  estimate.middle < estimate.upper))
			break;
		*mask = 0;
#pragma unroll
		for (int r = 0; r < KEYS; r++)
			*mask = gv_mark_before(*mask, values[r], estimate.middle);
		count = team.sum((uint32_t) __popc(*mask));
		if (count >= k && count <= most)
			return estimate.middle;
		if (count < k)
			estimate.is_low(aim - (float) count);
		else
			estimate.is_high((float) count - aim);
		if (count >= k && !sure)
		{
			estimate.lower = values[0];
#pragma unroll
			for (int r = 1; r < KEYS; r++)
				estimate.lower = fminf(estimate.lower, values[r]);
			estimate.lower = gv_least_of(team, estimate.lower);
			estimate.too_few = aim;
		}
		sure = true;
		if (round % 4 == 3)
			estimate.next(0.5f);
		else
			estimate.next();
	}
	return NAN;
}

/*
 * A bound that all n values, no more than are sorted, are before; NaN: not all
 * are finite.
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ float
gv_bound_all(const float (&values)[KEYS], uint32_t n, uint32_t *mask,
			 GvTeam<THREADS> &team)
{
	*mask = 0;
#pragma unroll
	for (int r = 0; r < KEYS; r++)
		*mask = *mask << 1 | (uint32_t) (values[r] < INFINITY);
	return team.sum((uint32_t) __popc(*mask)) == n ? INFINITY : NAN;
}

/*
 * A place for `mine` items of this thread among the team's, whose number is in
 * *count from when they meet; it is shared, and 0 before where a block is the
 * team.
 */
template <int THREADS>
static __device__ __forceinline__ uint32_t
gv_team_place(uint32_t mine, uint32_t *count)
{
	if constexpr (THREADS == GV_WARP)
	{
		uint32_t	upto = gv_upto_lane(mine);

		if (threadIdx.x % GV_WARP == GV_WARP - 1)
			*count = upto;
		return upto - mine;
	}
	else
		return gv_reserve(mine, count);
}

/*
 * Give the k first of n values that a team has, THREADS KEYS or fewer and NaN
 * for the rest; position(r) is the r-th's of this thread.  32 R of them are
 * sorted, by a warp, in shared memory; count is there, too, and 0.  false: no
 * bound was found, or many are equal.
 */
template <int R, int THREADS, int KEYS, typename Position>
static __device__ __forceinline__ bool
gv_write_estimated(const float (&values)[KEYS], Position position, uint32_t n,
			GvTeam<THREADS> &team, GvTaken *taken, uint32_t *count,
			const GvRowsOut &out, int64_t row)
{
	constexpr uint32_t MOST = R * GV_WARP;
	uint32_t	mask = 0;
	float		bound = n <= MOST ? gv_bound_all(values, n, &mask, team) :
		gv_estimate_bound(values, n, (uint32_t) out.k, MOST, &mask, team);
	GvTaken    *to;

	if (bound != bound)
		return false;
	to = taken + gv_team_place<THREADS>((uint32_t) __popc(mask), count);
#pragma unroll
	for (int r = 0; r < KEYS; r++)
		if (values[r] < bound)
			*to++ = {values[r], position(r)};
	gv_team_sync<THREADS>();
	if constexpr (THREADS == GV_WARP)
		return gv_warp_write<R>(taken, *count, out, row);
	else
	{
		__shared__ bool written;

		if (threadIdx.x < GV_WARP)
		{
			bool		done = gv_warp_write<R>(taken, *count, out, row);

			if (threadIdx.x == 0)
				written = done;
		}
		__syncthreads();
		return written;
	}
}

#endif							/* GV_GUESS_CUH */
