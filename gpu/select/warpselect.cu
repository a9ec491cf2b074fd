/*
 * warpselect.cu
 *		WarpSelect over rows of a matrix.
 *
 * Source: Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs",
 * 2017.  Section 4.2 is in gpu/device/warpselect.cuh, which says where that
 * code differs.  This file divides large rows among warps and blocks.
 *
 * Section 4.2 gives a row to a warp and decomposes long rows recursively.
 * Here the warps of a block share a row, and take 32 values each in turn.  If
 * rows are too few to fill the device, each row is divided into pieces, one
 * for each block, and the last block to finish merges the items that were
 * found in all pieces, which is the second level of the decomposition (the
 * two-pass kernels of section 5.3).  A warp's k-th key is a bound for the
 * whole row.  So the warps of a block share the least k-th key through shared
 * memory, and the blocks of a row share it through the device's memory.
 */
#include <algorithm>

#include "gpu/device/warpselect.cuh"
#include "gpu/select/rows.cuh"

#define AHEAD			4		/* loads that a thread has in flight */
#define LEAST_PIECE		4096	/* least values of a piece */
#define MOST_PIECES		INT64_C(64) /* max pieces of a row, because one block
									 * merges them */
#define OFTEN			8		/* values that a thread takes between exchanges
								 * of the bound */

/* The memory that the blocks of a row share.  It is zero before a launch. */
struct RowState
{
	uint32_t	done;			/* number of blocks that are done */
	uint32_t	bound;			/* keys above ~bound are not wanted */
};

/*
 * Shares the k-th key with the warps of the block and, if with_row is true,
 * with all warps of the row.
 */
template <typename Select>
static __device__ __forceinline__ void
share_kth_key(Select &select, uint32_t *block_key, uint32_t *row_bound,
			  bool with_row)
{
	uint32_t	key = select.bound.key;

	if (threadIdx.x % GV_WARP == 0)
	{
		key = min(key, atomicMin(block_key, key));
		if (with_row)
			key = min(key, ~atomicMax(row_bound, ~key));
	}
	select.lower_bound_to(__shfl_sync(GV_FULL_WARP, key, 0));
}

/* Offers values begin .. end - 1 of a row to the block's warps. */
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
	/* call add() in one place only: the sorting network is inlined into it */
#pragma unroll 1
	for (int64_t first = begin; first < end; first += STEP, i += STEP)
	{
		GvListItem	item = GvListItem::worst();

		if (i < end)
			item = {gv_row_key(values[0]), (uint32_t) i};
#pragma unroll
		for (int a = 1; a < AHEAD; a++)
			values[a - 1] = values[a];
		if (i + AHEAD * STEP < end)
			values[AHEAD - 1] = __ldcs(&row[i + AHEAD * STEP]);
		select.add(item);
		if (turn++ % OFTEN == 0)
			share_kth_key(select, block_key, row_bound, !alone);
	}
	select.merge_queues();
}

/*
 * Selects from rows.  A block takes a piece of a row, and each of its WARPS
 * warps takes every WARPS-th 32 values of the piece.  Shared memory: items
 * [WARPS / 2][32 NW].
 */
template <int NW, int NT, int WARPS>
static __global__ void __launch_bounds__(WARPS *GV_WARP)
warpselect_kernel(GvRowsCall call, uint32_t pieces, RowState *states,
				  GvListItem *d_found)
{
	GV_SHARED(memory);
	__shared__ uint32_t block_key;
	__shared__ bool last;
	GvListItem *items = (GvListItem *) memory;
	int64_t		row = blockIdx.x / pieces;
	uint32_t	piece = blockIdx.x % pieces;
	int			warp = threadIdx.x / GV_WARP;
	RowState   *state = &states[row];
	GvListItem *found = d_found + row * pieces * NW * GV_WARP;
	GvWarpSelect<GvListItem, NW, NT> select;

	/* 1. the piece */
	gv_pdl_wait();
	if (threadIdx.x == 0)
		block_key = GV_NO_KEY;
	__syncthreads();
	select.reset((int) call.k);
	select_piece<WARPS>(call.d_values + row * call.columns,
						call.columns * piece / pieces,
						call.columns * (piece + 1) / pieces, select,
						&block_key, &state->bound, pieces == 1);

	/* 2. merge the block's warps and, by the row's last block, all pieces */
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
		select.reset((int) call.k);
#pragma unroll 1
		for (uint32_t p = warp; p < pieces; p += WARPS)
			select.merge_sorted(found + (int64_t) p * NW * GV_WARP);
	}

	/* 3. the answers */
	if (warp == 0)
		select.store(items);
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < call.k; i += WARPS * GV_WARP)
		gv_write_item(call, row, i,
					  (uint64_t) items[i].key << 32 | items[i].list);
}

/*
 * Returns the number of pieces of each row.  If the limits allow, the pieces
 * of all rows fill the device twice.
 */
static int64_t
pieces_of(const GvSelector *selector, const GvRowsCall *call)
{
	int64_t		pieces = std::min({2 * (int64_t) selector->nsms / call->rows,
		call->columns / LEAST_PIECE, MOST_PIECES});

	return std::max(pieces, INT64_C(1));
}

template <int NW, int NT, int WARPS>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	size_t		queue_bytes = sizeof(GvListItem) * NW * GV_WARP;
	int64_t		pieces = pieces_of(selector, call);
	size_t		found = queue_bytes * (size_t) (call->rows * pieces);
	GvListItem *d_found = NULL;
	RowState   *d_states = NULL;

	if (pieces > 1)
	{
		GV_TRY(gv_buffer_need(&selector->d_work, found +
							  sizeof(RowState) * (size_t) call->rows));
		d_found = (GvListItem *) selector->d_work.memory;
		d_states = (RowState *) ((char *) d_found + found);
		GV_CUDA_TRY(gv_clear(d_states, call->rows, stream));
	}
	/* a launch behind a memset cannot begin early */
	return gv_launch_pdl(selector->pdl && pieces == 1,
						 warpselect_kernel<NW, NT, WARPS>, call->rows * pieces,
						 WARPS * GV_WARP, queue_bytes * (WARPS / 2), stream,
						 *call, (uint32_t) pieces, d_states, d_found);
}

GvStatus
gv_rows_warp(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	if (call->k <= 128)
		return launch<4, 2, 8>(selector, call, stream);
	if (call->k <= 512)
		return launch<16, 4, 8>(selector, call, stream);
	return launch<64, 8, 4>(selector, call, stream);
}
