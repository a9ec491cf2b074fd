/*
 * fewrows.cu
 *		Short rows, few wanted: a row in the registers of a warp.
 *
 * A bound is guessed and counted until what is before it is k or more and no
 * more than the warp sorts; a guess is where such a bound would be if values
 * were spread evenly between two that were counted, and the first mostly
 * does.  What is before it goes to shared memory and is sorted.  Where values
 * are equal or infinite and no bound is found the row is counted by keys.
 */
#include "teamrow.cuh"
#include "warpsort.cuh"

#define WARPS_A_BLOCK	4
#define MOST_GUESSES	12		/* of a bound */
#ifndef FEW_BLOCKS
#define FEW_BLOCKS		8		/* resident */
#endif

/*
 * A number that so many of a warp's values are before, k or more and `most` or
 * fewer; mask tells of this lane's, the first in the highest of KEYS bits.
 * Guessed between two numbers that were counted, and at first between what
 * each SAMPLED-th value says.  NaN: it was not found.
 */
template <int KEYS>
static __device__ __forceinline__ float
find_bound(const float (&values)[KEYS], uint32_t n, uint32_t k, uint32_t most,
		   uint32_t *mask)
{
	constexpr int SAMPLED = KEYS / 8;
	float		aim = 0.5f * (float) (k + most);
	float		lower = INFINITY;
	float		upper = -INFINITY;
	float		below = SAMPLED;
	float		within = (float) n;

#pragma unroll
	for (int r = 0; r < KEYS; r += SAMPLED)
		if (fabsf(values[r]) < INFINITY)
		{
			lower = fminf(lower, values[r]);
			upper = fmaxf(upper, values[r]);
		}
	lower = gv_unordered(~__reduce_max_sync(GV_FULL_WARP, ~gv_ordered(lower)));
	upper = gv_unordered(__reduce_max_sync(GV_FULL_WARP, gv_ordered(upper)));
#pragma unroll 1
	for (int round = 0; round < MOST_GUESSES; round++)
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
		}
		else
		{
			upper = middle;
			within = (float) count;
		}
	}
	return NAN;
}

/*
 * Give the k first of a row by a warp, 32 R of which it sorts in shared
 * memory; false: a bound was not found, or many are equal.
 */
template <int KEYS, int R>
static __device__ __forceinline__ bool
give_few(const float *row, uint32_t n, GvTaken *taken, const GvRowsOut &out,
		 int64_t number)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	mask = 0;
	uint32_t	mine;
	uint32_t	at;
	float		values[KEYS];
	float		bound;
	GvTaken    *to;

	gv_load_row<GV_WARP>(row, n, lane, values);
	bound = find_bound(values, n, (uint32_t) out.k, R * GV_WARP, &mask);
	if (bound != bound)
		return false;
	mine = (uint32_t) __popc(mask);
	at = mine;
#pragma unroll
	for (uint32_t d = 1; d < GV_WARP; d *= 2)
	{
		uint32_t	before = __shfl_up_sync(GV_FULL_WARP, at, d);

		at += lane >= d ? before : 0;
	}
	n = __shfl_sync(GV_FULL_WARP, at, GV_WARP - 1);
	to = taken + (at - mine);
#pragma unroll
	for (int r = 0; r < KEYS; r++)
		if (values[r] < bound)
			*to++ = {values[r], r * GV_WARP + lane};
	__syncwarp();
	return gv_warp_give<R>(taken, n, out, number);
}

/*
 * A row a warp, most of them by give_few.  Shared: items [WARPS_A_BLOCK]
 * [room].
 */
template <int KEYS, int R>
static __global__ void __launch_bounds__(WARPS_A_BLOCK *GV_WARP, FEW_BLOCKS)
few_kernel(GvRowsCall call, uint32_t room, uint32_t most)
{
	GV_SHARED(memory);
	__shared__ uint32_t counts[WARPS_A_BLOCK];
	int			warp = threadIdx.x / GV_WARP;
	int64_t		number = (int64_t) blockIdx.x * WARPS_A_BLOCK + warp;
	uint64_t   *items = (uint64_t *) memory + (int64_t) warp * room;
	GvTeamRow<GV_WARP, KEYS> row;

	gv_step_begins();
	if (number >= call.rows)
		return;
	number += call.first;
	row.me = threadIdx.x % GV_WARP;
	row.n = (uint32_t) call.columns;
	if (give_few<KEYS, R>(gv_row(call, number), row.n, (GvTaken *) items,
						  call.out, number))
		return;
	__syncwarp();
	if (row.me == 0)
		counts[warp] = 0;
	__syncwarp();
	gv_select_counted(gv_row(call, number), row, (uint32_t) call.out.k, most,
				   items, &counts[warp]);
	__syncwarp();
	gv_team_give<GV_WARP>(items, counts[warp], call.out, number);
}

template <int KEYS, int R>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	int64_t		k = call->out.k;
	int64_t		most = gv_counted_most(k);
	int64_t		room = gv_power(R * GV_WARP, GV_WARP);

	room = most > room ? most : room;
	return gv_launch_early(selector->overlap, few_kernel<KEYS, R>,
						   (call->rows + WARPS_A_BLOCK - 1) / WARPS_A_BLOCK,
						   WARPS_A_BLOCK * GV_WARP,
						   sizeof(uint64_t) * room * WARPS_A_BLOCK, stream,
						   *call, (uint32_t) room, (uint32_t) most);
}

/* Rows of up to GV_WARP_COLUMNS, k <= GV_WARP_FEW. */
GvStatus
gv_rows_few(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	constexpr int SHORT = GV_WARP_COLUMNS / 4 / GV_WARP;
	constexpr int ALL = GV_WARP_COLUMNS / GV_WARP;
	int64_t		k = call->out.k;

	if (call->columns <= GV_WARP_COLUMNS / 4)
	{
		if (k <= 24)
			return launch<SHORT, 1>(selector, call, stream);
		if (k <= 120)
			return launch<SHORT, 4>(selector, call, stream);
		return launch<SHORT, 8>(selector, call, stream);
	}
	if (k <= 24)
		return launch<ALL, 1>(selector, call, stream);
	if (k <= 56)
		return launch<ALL, 2>(selector, call, stream);
	if (k <= 120)
		return launch<ALL, 4>(selector, call, stream);
	if (k <= 184)
		return launch<ALL, 6>(selector, call, stream);
	return launch<ALL, 8>(selector, call, stream);
}
