/*
 * teamrow.cuh
 *		A row in the registers of a team, which is a warp or a block, and where
 *		its k first end, by counting.
 *
 * Quickselect moves what it splits, so that the next split has less to look
 * at.  In registers looking at all again costs less than moving, so here a
 * pivot is only counted: how many keys are not beyond it.  Two of them enclose
 * the k-th key; the next is where it would be if keys were spread evenly
 * between them, or, every second time, halves the keys there can be.  That
 * ends as soon as no more items are left than are sorted anyway, an eighth
 * more than k at least.  Where too many are equal the same is done with
 * positions.
 *
 * Source: Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014.
 */
#ifndef GV_TEAMROW_CUH
#define GV_TEAMROW_CUH

#include <stdint.h>

#include "gpu/select/rows.cuh"

/* The most items that a team sorts where all of a row was counted. */
static inline int64_t
gv_counted_most(int64_t k)
{
	/* more than k, so that few pivots are needed */
	return gv_power(k + k / 8 + 8, GV_WARP);
}

/* The share of a team's keys that a thread has. */
template <int THREADS, int KEYS>
struct GvTeamRow
{
	uint32_t	keys[KEYS];		/* of positions THREADS r + this thread's */
	uint32_t	me;
	uint32_t	n;
	GvTeam<THREADS> team;

	__device__ __forceinline__ void
	take(const float *row)
	{
#pragma unroll
		for (int r = 0; r < KEYS; r++)
		{
			uint32_t	i = r * THREADS + me;

			keys[r] = i < n ? gv_row_key(row[i]) : GV_NO_KEY;
		}
	}

	/* How many keys are not beyond this one? */
	__device__ __forceinline__ uint32_t
	count(uint32_t key)
	{
		uint32_t	mine = 0;

#pragma unroll
		for (int r = 0; r < KEYS; r++)
			mine += keys[r] <= key;
		return team.sum(mine);
	}

	/* How many items are not after this key at this position? */
	__device__ __forceinline__ uint32_t
	count(uint32_t key, uint32_t position)
	{
		int			reach = (int) position - (int) me;
		uint32_t	mine = 0;

		/* no position of each key: they would be held in registers */
#pragma unroll
		for (int r = 0; r < KEYS; r++)
			mine += keys[r] < key || (keys[r] == key && r * THREADS <= reach);
		return team.sum(mine);
	}
};

/* Items up to and with this one are k or more, and no more than wanted. */
struct GvLast
{
	uint32_t	key;
	uint32_t	position;
};

/* A key between two counted ones, where the one of rank `aim` may be. */
static __device__ __forceinline__ uint32_t
gv_estimate_key(uint32_t lower, uint32_t upper, float fraction)
{
	uint32_t	key = gv_ordered((1.0f - fraction) * gv_unordered(lower) +
								 fraction * gv_unordered(upper));

	/* of infinities and NaN comes what may */
	return key > lower && key < upper ? key : lower + (upper - lower) / 2;
}

/* A key that at least k of a row's are not beyond; how many that are. */
struct GvCounted
{
	uint32_t	key;
	uint32_t	within;			/* above most only where many are equal */
};

template <typename Row>
static __device__ __forceinline__ GvCounted
gv_find_key(Row &row, uint32_t k, uint32_t most)
{
	uint32_t	least = GV_NO_KEY;
	uint32_t	greatest = 0;
	uint32_t	below = 0;
	uint32_t	within = row.n;
	uint32_t	lower;
	uint32_t	upper;

#pragma unroll
	for (uint32_t key : row.keys)
	{
		least = min(least, key);
		if (key != GV_NO_KEY)
			greatest = max(greatest, key);
	}
	lower = ~row.team.most(~least) - 1;	/* no float has key 0 */
	upper = row.team.most(greatest);
#pragma unroll 1
	for (int round = 0; within > most && lower + 1 < upper; round++)
	{
		uint32_t	middle = lower + (upper - lower) / 2;
		uint32_t	count;

		if (round % 2 == 0)
			middle = gv_estimate_key(lower, upper, ((k + most) / 2 - below) /
						   (float) (within - below));
		count = row.count(middle);
		if (count >= k)
		{
			upper = middle;
			within = count;
		}
		else
		{
			lower = middle;
			below = count;
		}
	}
	return {upper, within};
}

template <typename Row>
static __device__ __forceinline__ GvLast
gv_find_last(Row &row, uint32_t k, uint32_t most)
{
	GvCounted		found = gv_find_key(row, k, most);
	GvLast		last = {found.key, row.n - 1};

	for (uint32_t first = 0; found.within > most;)
	{
		uint32_t	middle = first + (last.position - first) / 2;
		uint32_t	count = row.count(last.key, middle);

		if (count >= k)
		{
			last.position = middle;
			found.within = count;
		}
		else
			first = middle + 1;
	}
	return last;
}

/* This thread's share of a row, NaN where there is none. */
template <int THREADS, int KEYS>
static __device__ __forceinline__ void
gv_load_row(const float *row, uint32_t n, uint32_t me, float (&values)[KEYS])
{
	const float *mine = row + me;
	int			left = (int) n - (int) me;

	if (n == THREADS * KEYS)
	{
#pragma unroll
		for (int r = 0; r < KEYS; r++)
			values[r] = __ldcs(&mine[r * THREADS]);
		return;
	}
#pragma unroll
	for (int r = 0; r < KEYS; r++)
	{
		values[r] = __uint_as_float(0x7FC00000u);
		if (r * THREADS < left)
			values[r] = __ldcs(&mine[r * THREADS]);
	}
}

/*
 * Where the k first of a row end, about, and those into items [most], behind
 * count, which is shared and 0.
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ void
gv_select_counted(const float *values, GvTeamRow<THREADS, KEYS> &row,
				  uint32_t k, uint32_t most, uint64_t *items, uint32_t *count)
{
	GvLast		last;

	row.take(values);
	last = gv_find_last(row, k, min(most, row.n));
	gv_team_sync<THREADS>();
#pragma unroll
	for (int r = 0; r < KEYS; r++)
	{
		uint32_t	i = r * THREADS + row.me;

		if (row.keys[r] < last.key ||
			(row.keys[r] == last.key && i <= last.position))
			items[atomicAdd(count, 1u)] = (uint64_t) row.keys[r] << 32 | i;
	}
	gv_team_sync<THREADS>();
}

#endif							/* GV_TEAMROW_CUH */
