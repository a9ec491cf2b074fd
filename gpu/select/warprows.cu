/*
 * warprows.cu
 *		WarpSelect (warpselect.cuh) over rows of a matrix.
 *
 * A row comes to one block or, where there are few, in pieces to several; a
 * block's warps take it in turn.  The bound of one warp is a bound for all of
 * the row: of its block through shared memory, of the others through the
 * device's.  The last block of a row merges what all have found.
 *
 * Source: Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs",
 * 2017, section 4.2.
 */
#include "gpu/select/rows.cuh"

#define AHEAD			4		/* turns that values are asked for before */
#define LEAST_PIECE		4096	/* values */
#define MOST_PIECES		64		/* of a row: one block merges them */
#define OFTEN			8		/* turns between looks at others' bound */

/* The queue's length for k, in registers of a lane. */
static int
queue_registers(int64_t k)
{
	return k <= 128 ? 4 : k <= 512 ? 16 : 64;
}

/* Tell other warps of the block, and of the row if there are, the bound. */
template <typename Select>
static __device__ __forceinline__ void
share_bound(Select &select, uint32_t *block_key, uint32_t *row_bound,
			bool with_row)
{
	uint32_t	key = select.bound.key;

	if (threadIdx.x % GV_WARP == 0)
	{
		key = min(key, atomicMin(block_key, key));
		if (with_row)
			key = min(key, ~atomicMax(row_bound, ~key));
	}
	select.limit_key(__shfl_sync(GV_FULL_WARP, key, 0));
}

/* A block's share of a row, by its warps. */
template <int WARPS, typename Select>
static __device__ __forceinline__ void
select_piece(const float *row, int64_t begin, int64_t end, Select &select,
			 uint32_t *block_key, uint32_t *row_bound, bool alone)
{
	constexpr int STEP = WARPS * GV_WARP;
	int64_t		i = begin + threadIdx.x;
	float		values[AHEAD];
	int			turn = 0;

#pragma unroll
	for (int a = 0; a < AHEAD; a++)
		values[a] = i + a * STEP < end ? __ldcs(&row[i + a * STEP]) : 0.0f;
	/* one place that offers, which is long: a queue is sorted in it */
#pragma unroll 1
	for (int64_t first = begin; first < end; first += STEP, i += STEP)
	{
		GvNearestList	item = GvNearestList::worst();

		if (i < end)
			item = {gv_row_key(values[0]), (uint32_t) i};
#pragma unroll
		for (int a = 1; a < AHEAD; a++)
			values[a - 1] = values[a];
		if (i + AHEAD * STEP < end)
			values[AHEAD - 1] = __ldcs(&row[i + AHEAD * STEP]);
		select.offer(item);
		if (turn++ % OFTEN == 0)
			share_bound(select, block_key, row_bound, !alone);
	}
	select.flush();
}

/*
 * A piece of a row a block.  Shared: items [warps / 2][32 NW], at least 32 NW.
 */
template <int NW, int NT, int WARPS>
static __global__ void __launch_bounds__(WARPS *GV_WARP)
warp_kernel(GvRowsCall call, uint32_t pieces, GvRowState *states,
			GvNearestList *d_found)
{
	GV_SHARED(memory);
	__shared__ uint32_t block_key;
	__shared__ bool last;
	GvNearestList *items = (GvNearestList *) memory;
	int64_t		slot = blockIdx.x / pieces;
	uint32_t	piece = blockIdx.x % pieces;
	int			warp = threadIdx.x / GV_WARP;
	GvRowState *state = &states[slot];
	GvNearestList *found = d_found + slot * pieces * NW * GV_WARP;
	GvWarpSelect<GvNearestList, NW, NT> select;

	/* 1. the piece */
	gv_step_begins();
	if (threadIdx.x == 0)
		block_key = GV_NO_KEY;
	__syncthreads();
	select.begin((int) call.out.k);
	select_piece<WARPS>(gv_row(call, call.first + slot),
						call.columns * piece / pieces,
						call.columns * (piece + 1) / pieces, select,
						&block_key, &state->bound, pieces == 1);

	/* 2. the block's warps and, by the last of several blocks, all pieces */
#pragma unroll 1
	for (bool again = pieces > 1;; again = false)
	{
		gv_block_merge(select, items);
		if (!again)
			break;
		if (warp == 0)
			select.store(found + (int64_t) piece * NW * GV_WARP);
		__threadfence();
		__syncthreads();
		if (threadIdx.x == 0)
			last = atomicAdd(&state->done, 1u) + 1 == pieces;
		__syncthreads();
		if (!last)
			return;
		__threadfence();
		select.begin((int) call.out.k);
#pragma unroll 1
		for (uint32_t p = warp; p < pieces; p += WARPS)
			select.absorb(found + (int64_t) p * NW * GV_WARP);
		if (threadIdx.x == 0)
		{
			state->done = 0;
			state->bound = 0;
		}
	}

	/* 3. out */
	if (warp == 0)
		select.store(items);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < call.out.k; i += WARPS * GV_WARP)
		gv_write_item(call.out, call.first + slot, i,
					 (uint64_t) items[i].key << 32 | items[i].list);
}

static int64_t
pieces_of(const GvSelector *selector, int64_t rows, int64_t columns)
{
	int64_t		pieces = 2 * (int64_t) selector->nsms / rows;

	if (pieces > columns / LEAST_PIECE)
		pieces = columns / LEAST_PIECE;
	if (pieces > MOST_PIECES)
		pieces = MOST_PIECES;
	return pieces < 1 ? 1 : pieces;
}

size_t
gv_warp_bytes(const GvSelector *selector, int64_t rows, int64_t columns,
			  int64_t k)
{
	int64_t		pieces = pieces_of(selector, rows, columns);

	return pieces == 1 ? 0 : sizeof(GvNearestList) * GV_WARP *
		queue_registers(k) * (size_t) pieces;
}

template <int NW, int NT, int WARPS>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	int64_t		pieces = pieces_of(selector, call->all_rows,
									   call->columns);

	return gv_launch_early(selector->overlap, warp_kernel<NW, NT, WARPS>,
						   call->rows * pieces, WARPS * GV_WARP,
						   sizeof(GvNearestList) * NW * GV_WARP * (WARPS / 2),
						   stream, *call, (uint32_t) pieces,
						   selector->d_states,
						   (GvNearestList *) selector->d_work.memory);
}

/* k <= GV_WARP_MAX_K. */
GvStatus
gv_rows_warp(GvSelector *selector, const GvRowsCall *call,
			 cudaStream_t stream)
{
	switch (queue_registers(call->out.k))
	{
		case 4:
			return launch<4, 2, 8>(selector, call, stream);
		case 16:
			return launch<16, 4, 8>(selector, call, stream);
		default:
			return launch<64, 8, 4>(selector, call, stream);
	}
}
