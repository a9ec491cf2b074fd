/*
 * fewrows.cu
 *		Short rows, few wanted: a row in the registers of a warp.
 *
 * See few.cuh; where no bound is found, as values are equal or infinite, the
 * row is counted by keys.
 */
#include "few.cuh"
#include "teamrow.cuh"

#define WARPS_A_BLOCK	4
#define FEW_BLOCKS		6		/* resident; more have too few registers */

/* Give the k first of a row, if that is possible by a bound. */
template <int KEYS, int R>
static __device__ __forceinline__ bool
has_given(const GvRowsCall &call, int64_t number, GvTaken *taken)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	n = (uint32_t) call.columns;
	float		values[KEYS];

	gv_load_row<GV_WARP>(gv_row(call, number), n, lane, values);
	return gv_give_few<R>(values, [=](int r)
	{
		return r * GV_WARP + lane;
	}, n, taken, call.out, number);
}

/*
 * A row a warp, most of them by gv_give_few.  Shared: items [WARPS_A_BLOCK]
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
	if (has_given<KEYS, R>(call, number, (GvTaken *) items))
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
