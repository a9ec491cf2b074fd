/*
 * multirows.cu
 *		Quick multi-select: many rows of one matrix, each in the registers of a
 *		block; of a warp where fewrows.cu can.
 *
 * The row is counted, see teamrow.cuh.  For small k it is the minima that are
 * looked at first, one of each thread: where k of them are not after some
 * value, k of the row are not, and few more, since the k first lie in
 * different threads mostly.  Those go to shared memory and are sorted.  Only
 * where they are too many, for ties mostly, is all the row counted.
 *
 * Source: Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014.
 */
#include "teamrow.cuh"

#define BLOCK_ROOM		1024	/* items not after a bound of minima */

/* What a block sorts at most: by minima, and where all the row was counted. */
struct Room
{
	uint32_t	items;			/* powers of two */
	uint32_t	most;
};

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
 * A value that k of a row's are not after, by the least that each thread has:
 * the last of what its warps' minima of one rank are, which makes k.  NaN:
 * there are not so many but NaN.
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ float
bound_of_minima(const float (&values)[KEYS], uint32_t k,
				GvTeamRow<THREADS, KEYS> &row)
{
	constexpr int WARPS = THREADS / GV_WARP;
	float		least = values[0];

#pragma unroll
	for (int r = 1; r < KEYS; r++)
		least = fminf(least, values[r]);
	return gv_unordered(row.talk.most(warp_ranked(gv_row_key(least),
												  (k + WARPS - 1) / WARPS)));
}

/*
 * Those of a row that are not after a bound by minima into items [room],
 * behind count, which is shared and 0.  More than there is room for are not
 * all there.  Returns count.
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ uint32_t
collect_few(const float *row_values, GvTeamRow<THREADS, KEYS> &row, uint32_t k,
			uint64_t *items, uint32_t room, uint32_t *count)
{
	float		values[KEYS];
	float		bound;
	uint32_t	mine = 0;
	uint32_t	at;

	gv_load_row<THREADS>(row_values, row.n, row.me, values);
	bound = bound_of_minima(values, k, row);
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
	__syncthreads();
	mine = *count;
	for (uint32_t i = row.me; i < min(mine, room); i += THREADS)
		items[i] = gv_row_item(__uint_as_float((uint32_t) (items[i] >> 32)),
							   (uint32_t) items[i]);
	return mine;
}

/* A row a block.  Shared: items [room.items]. */
template <int THREADS, int KEYS, bool BY_MINIMA, int BLOCKS>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
team_kernel(GvRowsCall call, Room room)
{
	GV_SHARED(memory);
	[[maybe_unused]] __shared__ uint32_t said[2][GV_WARP];
	__shared__ uint32_t found;
	int64_t		number = call.first + blockIdx.x;
	uint64_t   *items = (uint64_t *) memory;
	uint32_t	k = (uint32_t) call.out.k;
	uint32_t	count = 0;
	GvTeamRow<THREADS, KEYS> row;

	gv_step_begins();

	/* 1. the row */
	row.me = threadIdx.x;
	row.n = (uint32_t) call.columns;
	row.talk = {said, 0};
	if (row.me == 0)
		found = 0;
	__syncthreads();

	/* 2. those that minima say may be among the k first, or by counting all */
	if constexpr (BY_MINIMA)
		count = collect_few(gv_row(call, number), row, k, items, room.items,
							&found);
	if (count < k || count > room.items)
	{
		__syncthreads();
		if (row.me == 0)
			found = 0;
		__syncthreads();
		gv_select_counted(gv_row(call, number), row, k, room.most, items,
						  &found);
		count = found;
	}

	/* 3. in order */
	__syncthreads();
	gv_team_give<THREADS>(items, count, call.out, number);
}

template <int THREADS, int KEYS, bool BY_MINIMA, int BLOCKS>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	int64_t		all = gv_power(call->columns, GV_WARP);
	int64_t		most = gv_counted_most(call->out.k);
	int64_t		items;

	most = most < all ? most : all;
	items = BY_MINIMA && most < BLOCK_ROOM ? BLOCK_ROOM : most;
	return gv_launch_early(selector->overlap,
						   team_kernel<THREADS, KEYS, BY_MINIMA, BLOCKS>,
						   call->rows, THREADS, sizeof(uint64_t) * items,
						   stream, *call,
						   Room{(uint32_t) items, (uint32_t) most});
}

/* Rows that a block has: of little k by minima, 16 of a warp's 32 at most. */
template <int THREADS, int KEYS, int BLOCKS>
static GvStatus
launch_blocks(GvSelector *selector, const GvRowsCall *call,
			  cudaStream_t stream)
{
	if (call->out.k <= THREADS / 2)
		return launch<THREADS, KEYS, true, BLOCKS>(selector, call, stream);
	return launch<THREADS, KEYS, false, BLOCKS>(selector, call, stream);
}

/* Rows of up to GV_TEAM_COLUMNS, k <= GV_ROWS_MAX_K. */
GvStatus
gv_rows_team(GvSelector *selector, const GvRowsCall *call,
			 cudaStream_t stream)
{
	if (call->columns <= GV_WARP_COLUMNS && call->out.k <= GV_WARP_FEW)
		return gv_rows_few(selector, call, stream);
	if (call->columns <= 4096)
		return launch_blocks<256, 16, 4>(selector, call, stream);
	if (call->columns <= 10240)
		return launch_blocks<512, 20, 2>(selector, call, stream);
	return launch_blocks<512, GV_TEAM_COLUMNS / 512, 2>(selector, call,
														stream);
}
