/*
 * guessrows.cu
 *		The k first of rows in the registers of a warp or a block, by an
 *		estimated bound.
 *
 * See guess.cuh; where no bound is found, as values are equal or infinite, the
 * row is counted by keys.
 */
#include "gpu/select/guess.cuh"
#include "gpu/select/teamrow.cuh"

#define WARPS_A_BLOCK	4		/* each with a row */
#define WARP_BLOCKS		6		/* resident; more have too few registers */
#define SHORT_KEYS		8		/* of a lane, where a warp has a short row */
#define WARP_KEYS		32
#define BLOCK_KEYS		32		/* of a thread, where a block has one */
#define MOST_THREADS	(GV_TEAM_COLUMNS / BLOCK_KEYS)
#define SM_THREADS		1024	/* of such, resident */

/* A row a warp, or a block of more threads, which is a team. */
template <int THREADS>
struct Estimated
{
	static constexpr int TEAMS = THREADS == GV_WARP ? WARPS_A_BLOCK : 1;
	static constexpr int BLOCK = THREADS * TEAMS;
	static constexpr int BLOCKS = THREADS == GV_WARP ? WARP_BLOCKS :
		SM_THREADS / THREADS;
};

/* Most rows by gv_write_estimated.  Shared: items [TEAMS][capacity]. */
template <int THREADS, int KEYS, int R>
static __global__ void __launch_bounds__(Estimated<THREADS>::BLOCK,
										 Estimated<THREADS>::BLOCKS)
estimate_kernel(GvRowsCall call, uint32_t capacity, uint32_t most)
{
	GV_SHARED(memory);
	[[maybe_unused]] __shared__ uint32_t said[2][GV_WARP];
	__shared__ uint32_t counts[Estimated<THREADS>::TEAMS];
	int			team = threadIdx.x / THREADS;
	int64_t		number = (int64_t) blockIdx.x * Estimated<THREADS>::TEAMS +
		team;
	uint64_t   *items = (uint64_t *) memory + (int64_t) team * capacity;
	GvTeamRow<THREADS, KEYS> row;

	/* 1. the row */
	gv_step_begins();
	if (number >= call.rows)
		return;
	number += call.first;
	row.me = threadIdx.x % THREADS;
	row.n = (uint32_t) call.columns;
	row.team = {{said, 0}};
	if (row.me == 0)
		counts[team] = 0;
	gv_team_sync<THREADS>();

	/* 2. by a bound */
	{
		float		values[KEYS];

		gv_load_row<THREADS>(gv_row(call, number), row.n, row.me, values);
		if (gv_write_estimated<R>(values, [=](int r)
		{
			return r * THREADS + row.me;
		}, row.n, row.team, (GvTaken *) items, &counts[team], call.out,
						   number))
			return;
	}

	/* 3. by counting all */
	gv_team_sync<THREADS>();
	if (row.me == 0)
		counts[team] = 0;
	gv_team_sync<THREADS>();
	gv_select_counted(gv_row(call, number), row, (uint32_t) call.out.k, most,
					  items, &counts[team]);
	gv_team_sync<THREADS>();
	gv_team_write<THREADS>(items, counts[team], call.out, number);
}

template <int THREADS, int KEYS, int R>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	constexpr int TEAMS = Estimated<THREADS>::TEAMS;
	int64_t		most = gv_counted_most(call->out.k);
	int64_t		capacity = most > R * GV_WARP ? most : R * GV_WARP;

	return gv_launch_early(selector->overlap, estimate_kernel<THREADS, KEYS,
						   R>,
						   (call->rows + TEAMS - 1) / TEAMS,
						   Estimated<THREADS>::BLOCK,
						   sizeof(uint64_t) * capacity * TEAMS, stream,
						   *call, (uint32_t) capacity, (uint32_t) most);
}

/*
 * 32 R are sorted, and k to be some less than that, see gv_estimate_bound;
 * minima of more warps let more pass.
 */
template <int THREADS, int KEYS>
static GvStatus
launch_blocks(GvSelector *selector, const GvRowsCall *call,
			  cudaStream_t stream)
{
	int64_t		k = call->out.k;

	if (k <= 56 && THREADS < MOST_THREADS)
		return launch<THREADS, KEYS, 2>(selector, call, stream);
	if (k <= 120)
		return launch<THREADS, KEYS, 4>(selector, call, stream);
	return launch<THREADS, KEYS, 8>(selector, call, stream);
}

template <int KEYS>
static GvStatus
launch_warps(GvSelector *selector, const GvRowsCall *call,
			 cudaStream_t stream)
{
	int64_t		k = call->out.k;

	if (k <= 24)
		return launch<GV_WARP, KEYS, 1>(selector, call, stream);
	if (k <= 56 && KEYS > SHORT_KEYS)
		return launch<GV_WARP, KEYS, 2>(selector, call, stream);
	if (k <= 120)
		return launch<GV_WARP, KEYS, 4>(selector, call, stream);
	if (k <= 184 && KEYS > SHORT_KEYS)
		return launch<GV_WARP, KEYS, 6>(selector, call, stream);
	if (k <= 248 || KEYS == SHORT_KEYS)
		return launch<GV_WARP, KEYS, 8>(selector, call, stream);
	if constexpr (KEYS > SHORT_KEYS)
		return launch<GV_WARP, KEYS, 12>(selector, call, stream);
	return GV_FAILED;
}

/* See rows.cuh: some less than are sorted, or all. */
int64_t
gv_estimate_most(int64_t columns)
{
	if (columns <= SHORT_KEYS * GV_WARP)
		return columns;
	return columns <= WARP_KEYS * GV_WARP ? 376 : 248;
}

/* Rows of up to GV_TEAM_COLUMNS, k <= gv_estimate_most. */
GvStatus
gv_rows_estimate(GvSelector *selector, const GvRowsCall *call,
			  cudaStream_t stream)
{
	if (call->columns <= SHORT_KEYS * GV_WARP)
		return launch_warps<SHORT_KEYS>(selector, call, stream);
	if (call->columns <= WARP_KEYS * GV_WARP)
		return launch_warps<WARP_KEYS>(selector, call, stream);
	if (call->columns <= BLOCK_KEYS * 64)
		return launch_blocks<64, BLOCK_KEYS>(selector, call, stream);
	if (call->columns <= BLOCK_KEYS * 128)
		return launch_blocks<128, BLOCK_KEYS>(selector, call, stream);
	if (call->columns <= BLOCK_KEYS * 256)
		return launch_blocks<256, BLOCK_KEYS>(selector, call, stream);
	if (call->columns <= 20 * MOST_THREADS)
		return launch_blocks<MOST_THREADS, 20>(selector, call, stream);
	return launch_blocks<MOST_THREADS, BLOCK_KEYS>(selector, call, stream);
}
