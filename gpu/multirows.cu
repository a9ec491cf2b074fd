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
 * For small k it is the minima that are looked at first, one of each few
 * values that a thread has: where k of them are not beyond some value, k of
 * the row are not, and few more, since the k first lie in different threads
 * mostly.  Those go to shared memory and are sorted.  Only where they are too
 * many, for ties mostly, is all the row counted.
 *
 * Source: Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014.
 */
#include "warpsort.cuh"

#define WARPS_A_BLOCK	4		/* where a team is a warp */
#define WARP_COLUMNS	1024	/* that one has */
#define WARP_MAX_K		256
#define LANE_MAX_K		16		/* of 32 minima, one a lane */
#define FOURTH_MAX_K	40		/* ... 128 */
#define EIGHTH_MAX_K	128		/* ... 256 */
#define BLOCK_ROOM		1024	/* items not beyond a bound of minima */

/* What a team sorts at most: by minima, and where all the row was counted. */
struct Room
{
	uint32_t	items;			/* powers of two */
	uint32_t	most;
};

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
		return sum(mine);
	}

	/* ... items that are not after that key at that position? */
	__device__ __forceinline__ uint32_t
	count(uint32_t key, uint32_t position)
	{
		int			reach = (int) position - (int) me;
		uint32_t	mine = 0;

		/* no position of each key: they would be held in registers */
#pragma unroll
		for (int r = 0; r < KEYS; r++)
			mine += keys[r] < key || (keys[r] == key && r * THREADS <= reach);
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

/* A key that at least k of a row's are not beyond; how many that are. */
struct Found
{
	uint32_t	key;
	uint32_t	within;			/* above most only where many are equal */
};

template <typename Row>
static __device__ __forceinline__ Found
find_key(Row &row, uint32_t k, uint32_t most)
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
	return {upper, within};
}

template <typename Row>
static __device__ __forceinline__ Last
find_last(Row &row, uint32_t k, uint32_t most)
{
	Found		found = find_key(row, k, most);
	Last		last = {found.key, row.n - 1};

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
load(const float *row, uint32_t n, uint32_t me, float (&values)[KEYS])
{
	if (n == THREADS * KEYS)
	{
#pragma unroll
		for (int r = 0; r < KEYS; r++)
			values[r] = __ldcs(&row[r * THREADS + me]);
		return;
	}
#pragma unroll
	for (int r = 0; r < KEYS; r++)
	{
		uint32_t	i = r * THREADS + me;

		values[r] = i < n ? __ldcs(&row[i]) : __uint_as_float(0x7FC00000u);
	}
}

/* The number of that rank, from 1, of a warp's. */
static __device__ __forceinline__ uint32_t
warp_ranked(uint32_t key, uint32_t rank)
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
 * A value that k of a row's are not after, by the least of each KEYS / MINIMA
 * that a thread has; NaN: there are not so many but NaN.  Of a block: the last
 * of what its warps' minima of one rank are, which makes k.
 */
template <int MINIMA, int THREADS, int KEYS>
static __device__ __forceinline__ float
bound_of_minima(const float (&values)[KEYS], uint32_t k,
				TeamRow<THREADS, KEYS> &row)
{
	TeamRow<THREADS, MINIMA> minima;

#pragma unroll
	for (int m = 0; m < MINIMA; m++)
	{
		float		least = values[m];

#pragma unroll
		for (int r = m + MINIMA; r < KEYS; r += MINIMA)
			least = fminf(least, values[r]);
		minima.keys[m] = gv_row_key(least);
	}
	if constexpr (MINIMA > 1)
	{
		minima.me = row.me;
		minima.n = MINIMA * THREADS;
		return gv_unordered(find_key(minima, k, k + 2 + k / 32).key);
	}
	else if constexpr (THREADS == GV_WARP)
		return gv_unordered(warp_ranked(minima.keys[0], k));
	else
	{
		constexpr int WARPS = THREADS / GV_WARP;
		uint32_t	key = warp_ranked(minima.keys[0], (k + WARPS - 1) / WARPS);

		return gv_unordered(row.talk.most(key));
	}
}

/*
 * Those of a row that are not after a bound by minima into items [room],
 * behind count, which is shared and 0.  More than there is room for are not
 * all there.  Returns count.
 */
template <int MINIMA, int THREADS, int KEYS>
static __device__ __forceinline__ uint32_t
collect_few(const float *row_values, TeamRow<THREADS, KEYS> &row, uint32_t k,
			uint64_t *items, uint32_t room, uint32_t *count)
{
	float		values[KEYS];
	float		bound;
	uint32_t	mine = 0;
	uint32_t	at;

	load<THREADS>(row_values, row.n, row.me, values);
	bound = bound_of_minima<MINIMA>(values, k, row);
#pragma unroll
	for (int r = 0; r < KEYS; r++)
		mine += values[r] <= bound;
	at = gv_reserve(mine, count);
	if (at + mine <= room)
	{
#pragma unroll
		for (int r = 0; r < KEYS; r++)
			if (values[r] <= bound)
				items[at++] = (uint64_t) __float_as_uint(values[r]) << 32 |
					(r * THREADS + row.me);
	}
	gv_team_sync<THREADS>();
	mine = *count;
	for (uint32_t i = row.me; i < min(mine, room); i += THREADS)
		items[i] = gv_row_item(__uint_as_float((uint32_t) (items[i] >> 32)),
							   (uint32_t) items[i]);
	return mine;
}

/*
 * Where the k first of a row end, about, and those into items [most], behind
 * count, which is shared and 0.
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ void
select_counted(const float *values, TeamRow<THREADS, KEYS> &row, uint32_t k,
			   uint32_t most, uint64_t *items, uint32_t *count)
{
	Last		last;

	row.take(values);
	last = find_last(row, k, min(most, row.n));
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

/*
 * A row a team, a warp or all of the block.  Shared: items
 * [teams][room.items].  MINIMA of a thread, or 0, divide KEYS.
 */
template <int THREADS, int KEYS, int TEAMS, int MINIMA, int BLOCKS>
static __global__ void __launch_bounds__(THREADS *TEAMS, BLOCKS)
team_kernel(GvRowsCall call, Room room)
{
	GV_SHARED(memory);
	[[maybe_unused]] __shared__ uint32_t said[TEAMS == 1 ? 2 : 1][GV_WARP];
	__shared__ uint32_t counts[TEAMS];
	int			team = threadIdx.x / THREADS;
	int64_t		number = (int64_t) blockIdx.x * TEAMS + team;
	uint64_t   *items = (uint64_t *) memory + (int64_t) team * room.items;
	uint32_t	k = (uint32_t) call.out.k;
	uint32_t	count = 0;
	TeamRow<THREADS, KEYS> row;

	gv_step_begins();
	if (number >= call.rows)
		return;
	number += call.first;

	/* 1. the row */
	row.me = threadIdx.x % THREADS;
	row.n = (uint32_t) call.columns;
	if constexpr (TEAMS == 1)
		row.talk = {said, 0};
	if (row.me == 0)
		counts[team] = 0;
	gv_team_sync<THREADS>();

	/* 2. those that minima say may be among the k first, or by counting all */
	if constexpr (MINIMA > 0)
		count = collect_few<MINIMA>(gv_row(call, number), row, k, items,
									room.items, &counts[team]);
	if (count < k || count > room.items)
	{
		gv_team_sync<THREADS>();
		if (row.me == 0)
			counts[team] = 0;
		gv_team_sync<THREADS>();
		select_counted(gv_row(call, number), row, k, room.most, items,
					   &counts[team]);
		count = counts[team];
	}

	/* 3. in order */
	gv_team_sync<THREADS>();
	if constexpr (THREADS == GV_WARP && MINIMA > 0)
	{
		constexpr int R = MINIMA == 1 ? 1 : MINIMA == 4 ? 2 : 4;

		if (count <= R * GV_WARP &&
			gv_warp_give<R>(items, count, call.out, number))
			return;
	}
	gv_team_give<THREADS>(items, count, call.out, number);
}

template <int THREADS, int KEYS, int TEAMS, int MINIMA, int BLOCKS>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	int64_t		k = call->out.k;
	int64_t		all = gv_power(call->columns, GV_WARP);
	/* more than k, so that few pivots are needed */
	int64_t		most = gv_power(k + k / 8 + 8, GV_WARP);
	int64_t		items;

	most = most < all ? most : all;
	items = most;
	if (MINIMA > 0)
		items = TEAMS == 1 ? BLOCK_ROOM : gv_power(2 * k, 2 * GV_WARP);
	items = items > most ? items : most;
	return gv_launch_early(selector->overlap,
						   team_kernel<THREADS, KEYS, TEAMS, MINIMA, BLOCKS>,
						   (call->rows + TEAMS - 1) / TEAMS, THREADS * TEAMS,
						   sizeof(uint64_t) * items * TEAMS, stream, *call,
						   Room{(uint32_t) items, (uint32_t) most});
}

/* Rows that a warp has. */
static GvStatus
launch_warps(GvSelector *selector, const GvRowsCall *call,
			 cudaStream_t stream)
{
	constexpr int FEW = WARP_COLUMNS / 4 / GV_WARP;
	constexpr int ALL = WARP_COLUMNS / GV_WARP;
	int64_t		k = call->out.k;

	if (call->columns <= WARP_COLUMNS / 4)
	{
		if (k <= LANE_MAX_K)
			return launch<GV_WARP, FEW, WARPS_A_BLOCK, 1, 8>(selector, call,
															 stream);
		return launch<GV_WARP, FEW, WARPS_A_BLOCK, 0, 8>(selector, call,
														 stream);
	}
	if (k <= LANE_MAX_K)
		return launch<GV_WARP, ALL, WARPS_A_BLOCK, 1, 8>(selector, call,
														 stream);
	if (k <= FOURTH_MAX_K)
		return launch<GV_WARP, ALL, WARPS_A_BLOCK, 4, 8>(selector, call,
														 stream);
	if (k <= EIGHTH_MAX_K)
		return launch<GV_WARP, ALL, WARPS_A_BLOCK, 8, 7>(selector, call,
														  stream);
	return launch<GV_WARP, ALL, WARPS_A_BLOCK, 0, 8>(selector, call, stream);
}

/* Rows that a block has: of little k by minima, 16 of a warp's 32 at most. */
template <int THREADS, int KEYS, int BLOCKS>
static GvStatus
launch_blocks(GvSelector *selector, const GvRowsCall *call,
			  cudaStream_t stream)
{
	if (call->out.k <= THREADS / 2)
		return launch<THREADS, KEYS, 1, 1, BLOCKS>(selector, call, stream);
	return launch<THREADS, KEYS, 1, 0, BLOCKS>(selector, call, stream);
}

/* Rows of up to GV_TEAM_COLUMNS, k <= GV_ROWS_MAX_K. */
GvStatus
gv_rows_team(GvSelector *selector, const GvRowsCall *call,
			 cudaStream_t stream)
{
	if (call->columns <= WARP_COLUMNS && call->out.k <= WARP_MAX_K)
		return launch_warps(selector, call, stream);
	if (call->columns <= 4096)
		return launch_blocks<256, 16, 4>(selector, call, stream);
	if (call->columns <= 10240)
		return launch_blocks<512, 20, 2>(selector, call, stream);
	return launch_blocks<512, GV_TEAM_COLUMNS / 512, 2>(selector, call,
														stream);
}
