/*
 * multirows.cu
 *		Quick multi-select: many rows of one matrix, each in the registers of a
 *		team, which is a warp or a block.
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
#include "rows.cuh"

#define WARPS_A_BLOCK	8		/* where a team is a warp */
#define WARP_COLUMNS	1024	/* that one has */
#define WARP_MAX_K		256

/* The share of a team's keys that a thread has, and what the team says. */
template <int THREADS, int KEYS>
struct TeamRow
{
	uint32_t	keys[KEYS];		/* of positions THREADS r + this thread's */
	uint32_t	me;
	uint32_t	n;
	GvTalk		talk;			/* of a block */

	__device__ __forceinline__ uint32_t
	sum(uint32_t mine)
	{
		if constexpr (THREADS == GV_WARP)
			return __reduce_add_sync(GV_FULL_WARP, mine);
		else
			return talk.sum(mine);
	}

	__device__ __forceinline__ uint32_t
	most(uint32_t mine)
	{
		if constexpr (THREADS == GV_WARP)
			return __reduce_max_sync(GV_FULL_WARP, mine);
		else
			return talk.most(mine);
	}

	__device__ __forceinline__ void
	load(const float *row)
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
		return sum(mine);
	}

	/* ... items that are not after that key at that position? */
	__device__ __forceinline__ uint32_t
	count(uint32_t key, uint32_t position)
	{
		uint32_t	mine = 0;

#pragma unroll
		for (int r = 0; r < KEYS; r++)
			mine += keys[r] < key ||
				(keys[r] == key && r * THREADS + me <= position);
		return sum(mine);
	}
};

/* Items up to and with this one are k or more, and no more than wanted. */
struct Last
{
	uint32_t	key;
	uint32_t	position;
};

/* A key between two counted ones, where the one of rank `aim` may be. */
static __device__ __forceinline__ uint32_t
guess(uint32_t lower, uint32_t upper, float share)
{
	uint32_t	key = gv_ordered((1.0f - share) * gv_unordered(lower) +
								 share * gv_unordered(upper));

	/* of infinities and NaN comes what may */
	return key > lower && key < upper ? key : lower + (upper - lower) / 2;
}

template <typename Row>
static __device__ __forceinline__ Last
find_last(Row &row, uint32_t k, uint32_t most)
{
	uint32_t	least = GV_NO_KEY;
	uint32_t	greatest = 0;
	uint32_t	below = 0;
	uint32_t	within = row.n;
	uint32_t	lower;
	uint32_t	upper;
	Last		last;

#pragma unroll
	for (uint32_t key : row.keys)
	{
		least = min(least, key);
		if (key != GV_NO_KEY)
			greatest = max(greatest, key);
	}
	lower = ~row.most(~least) - 1;	/* no float has key 0 */
	upper = row.most(greatest);
#pragma unroll 1
	for (int round = 0; within > most && lower + 1 < upper; round++)
	{
		uint32_t	middle = lower + (upper - lower) / 2;
		uint32_t	count;

		if (round % 2 == 0)
			middle = guess(lower, upper, ((k + most) / 2 - below) /
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
	last = {upper, row.n - 1};
	for (uint32_t first = 0; within > most;)
	{
		uint32_t	middle = first + (last.position - first) / 2;
		uint32_t	count = row.count(upper, middle);

		if (count >= k)
		{
			last.position = middle;
			within = count;
		}
		else
			first = middle + 1;
	}
	return last;
}

/*
 * A row a team, a warp or all of the block.  Shared: items [teams][room], room
 * for k and some more, a power of two.
 */
template <int THREADS, int KEYS, int TEAMS>
static __global__ void __launch_bounds__(THREADS *TEAMS)
team_kernel(GvRowsCall call, uint32_t room)
{
	GV_SHARED(memory);
	[[maybe_unused]] __shared__ uint32_t said[TEAMS == 1 ? 2 : 1][GV_WARP];
	__shared__ uint32_t counts[TEAMS];
	int			team = threadIdx.x / THREADS;
	int64_t		number = (int64_t) blockIdx.x * TEAMS + team;
	uint64_t   *items = (uint64_t *) memory + (int64_t) team * room;
	uint32_t	k = (uint32_t) call.out.k;
	TeamRow<THREADS, KEYS> row;
	Last		last;

	gv_step_begins();
	if (number >= call.rows)
		return;
	number += call.first;

	/* 1. the row, and where its k first end, about */
	row.me = threadIdx.x % THREADS;
	row.n = (uint32_t) call.columns;
	if constexpr (TEAMS == 1)
		row.talk = {said, 0};
	row.load(gv_row(call, number));
	if (row.me == 0)
		counts[team] = 0;
	last = find_last(row, k, min(room, row.n));
	gv_team_sync<THREADS>();

	/* 2. those */
#pragma unroll
	for (int r = 0; r < KEYS; r++)
	{
		uint32_t	i = r * THREADS + row.me;

		if (row.keys[r] < last.key ||
			(row.keys[r] == last.key && i <= last.position))
			items[atomicAdd(&counts[team], 1u)] =
				(uint64_t) row.keys[r] << 32 | i;
	}
	gv_team_sync<THREADS>();

	/* 3. in order */
	gv_team_give<THREADS>(items, counts[team], call.out, number);
}

template <int THREADS, int KEYS, int TEAMS>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	/* more than k, so that few pivots are needed */
	int64_t		room = gv_power(call->out.k + call->out.k / 8 + 8, GV_WARP);

	if (room > gv_power(call->columns, GV_WARP))
		room = gv_power(call->columns, GV_WARP);
	return gv_launch_rows(team_kernel<THREADS, KEYS, TEAMS>,
						  (call->rows + TEAMS - 1) / TEAMS, THREADS * TEAMS,
						  sizeof(uint64_t) * room * TEAMS, selector, stream,
						  *call, (uint32_t) room);
}

/* Rows of up to GV_TEAM_COLUMNS, k <= GV_ROWS_MAX_K. */
GvStatus
gv_rows_team(GvSelector *selector, const GvRowsCall *call,
			 cudaStream_t stream)
{
	if (call->columns <= WARP_COLUMNS && call->out.k <= WARP_MAX_K)
	{
		if (call->columns <= WARP_COLUMNS / 4)
			return launch<GV_WARP, WARP_COLUMNS / 4 / GV_WARP,
						  WARPS_A_BLOCK>(selector, call, stream);
		return launch<GV_WARP, WARP_COLUMNS / GV_WARP,
					  WARPS_A_BLOCK>(selector, call, stream);
	}
	if (call->columns <= 4096)
		return launch<256, 16, 1>(selector, call, stream);
	return launch<512, GV_TEAM_COLUMNS / 512, 1>(selector, call, stream);
}
