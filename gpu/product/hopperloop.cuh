/*
 * hopperloop.cuh
 *		The product of loop.cuh on devices of compute capability 9.0, by what
 *		only they have: products of a warpgroup that take their operands from
 *		shared memory, and copies that one thread asks for (hopperring.cuh).
 *
 * A tile is 128 rows x COLUMNS columns.  There is a block for each SM, which
 * takes tile after tile: slices of the next one come while the sums of this
 * one are looked at.  Where rows meet all columns a block has all tiles of its
 * rows.
 *
 * Bytes from L2: a slice of 128 x 256 is 48 KB for 2 M products, 1,024 clocks;
 * L2 gives an SM some 31 a clock when all read, so a slice takes 1,500, and it
 * is the sum of rows and columns that counts, 4 clocks each.  A score goes out
 * at some 24 bytes a clock and SM, 21 clocks a column of 128 rows.
 *
 * A product's tiles seldom fill all SMs evenly: 500 x 8,450 are 136 tiles of
 * 128 x 256, two rounds for 132 SMs, but 120 of 128 x 288.  So there are tiles
 * of several widths, and the one is taken that takes the fewest clocks by this
 * model.  Where a block has all columns of its rows the width changes nothing.
 */
#ifndef GV_HOPPERLOOP_CUH
#define GV_HOPPERLOOP_CUH

#include <stdint.h>

#include "gpu/common/common.cuh"
#include "gpu/common/hopperring.cuh"
#include "gpu/product/become.cuh"
#include "gpu/product/gv_product.h"

#define GV_TILE_ROWS	(64 * GV_RING_GROUPS)

/* A slice: rows, then PARTS times WIDTH columns. */
template <typename F, int WIDTH, int PARTS>
struct GvHopperShape
{
	static constexpr int COLUMNS = WIDTH * PARTS;
	static constexpr int BYTES = (GV_TILE_ROWS + COLUMNS) * GV_HOPPER_ROW;
	/* a block has 3 KB more, of which alignment and barriers take 2 */
	static constexpr int STAGES =
		(GV_RING_BYTES + 1024 -
		 GV_TILE_ROWS * (int) sizeof(typename F::Row)) / BYTES;

	static_assert(WIDTH % GV_RUN == 0, "sums are looked at by runs");
	static_assert(STAGES >= 4, "three slices are on their way");
};

/* The tiles of a block, one after the other. */
template <bool WHOLE>
struct GvHopperWalk
{
	int			nrows;			/* tiles there are, */
	int			ncolumns;
	int			row;			/* and the one that it is at */
	int			column;

	__host__ __device__ __forceinline__
	GvHopperWalk(const GvMatmul &matmul, int columns, int first)
		: nrows((matmul.nrows + GV_TILE_ROWS - 1) / GV_TILE_ROWS),
		ncolumns((matmul.ncolumns + columns - 1) / columns),
		row(WHOLE ? first : first % nrows),
		column(WHOLE ? 0 : first / nrows)
	{
	}

	/* Blocks that have work. */
	__host__ __device__ __forceinline__ int
	blocks() const
	{
		return WHOLE ? nrows : nrows * ncolumns;
	}

	__device__ __forceinline__ bool
	there() const
	{
		return WHOLE ? row < nrows : column < ncolumns;
	}

	__device__ __forceinline__ void
	advance()
	{
		if (WHOLE)
		{
			if (++column < ncolumns)
				return;
			column = 0;
			row += gridDim.x;
		}
		else
		{
			int			tile = column * nrows + row + gridDim.x;

			row = tile % nrows;
			column = tile / nrows;
		}
	}
};

#if GV_HOPPER

/* Ask for the columns of a slice, and expect its rows, too. */
template <int WIDTH, int PARTS>
static __device__ __forceinline__ void
gv_send_columns(const GvRing &ring, GvPlace place, const GvRingMaps &maps,
				int column, int step)
{
	ring.expect(place, ring.bytes);
	gv_copy_boxes<PARTS>(ring.slices + place.stage * ring.bytes +
						 GV_TILE_ROWS * GV_HOPPER_ROW, &maps.rows, step,
						 column * WIDTH * PARTS, WIDTH,
						 &ring.full[place.stage]);
}

/*
 * By one thread: ask for all slices of the block's tiles, as there is room;
 * the first ones of columns before the rows are there, where steps overlap.
 */
template <int WIDTH, int PARTS, bool WHOLE>
static __device__ __forceinline__ void
gv_send_tiles(const GvRing &ring, const GvRingMaps &maps,
			  GvHopperWalk<WHOLE> walk, int nsteps)
{
	int			ahead = min(ring.stages, nsteps);
	GvPlace		place = {0, 0};
	GvPlace		early = {0, 0};

	for (int step = 0; step < ahead; step++, early.advance(ring.stages))
		gv_send_columns<WIDTH, PARTS>(ring, early, maps, walk.column, step);
	gv_step_begins();
	for (; walk.there(); walk.advance(), ahead = 0)
		for (int step = 0; step < nsteps; step++, place.advance(ring.stages))
		{
			if (step >= ahead)
				gv_send_columns<WIDTH, PARTS>(ring, place, maps, walk.column,
											  step);
			gv_copy_boxes<1>(ring.slices + place.stage * ring.bytes,
							 &maps.queries, step, walk.row * GV_TILE_ROWS,
							 GV_TILE_ROWS, &ring.full[place.stage]);
		}
}

#endif							/* GV_HOPPER */

/*
 * Shared: STAGES slices, from a multiple of 1,024 on.  Code for other devices
 * is empty.
 */
template <typename F, int WIDTH, int PARTS, bool WHOLE>
static __global__ void __launch_bounds__(GV_RING_THREADS, 1)
hopper_kernel(GvMatmul matmul, F epilogue,
			  const __grid_constant__ GvRingMaps maps)
{
#if GV_HOPPER
	using Shape = GvHopperShape<F, WIDTH, PARTS>;
	GV_SHARED(memory);
	__shared__ uint64_t barriers[2][Shape::STAGES];
	__shared__ typename F::Row rows[GV_TILE_ROWS];
	uint32_t	offset = -gv_shared_address(memory) % GV_RING_ALIGNMENT;
	GvRing		ring = {(char *) memory + offset, barriers[0], barriers[1],
	Shape::BYTES, Shape::STAGES};
	GvHopperWalk<WHOLE> walk(matmul, Shape::COLUMNS, blockIdx.x);
	int			group = threadIdx.x / GV_WARPGROUP;
	int			lane = threadIdx.x % GV_WARP;
	int			mine = threadIdx.x / GV_WARP * 16;	/* the warp's first row */
	int			nsteps = (matmul.half_dims + GV_HOPPER_SLICE - 1) /
		GV_HOPPER_SLICE;
	GvPlace		place = {0, 0};

	ring.prepare();

	/* 1. one thread of the last group copies */
	if (group == GV_RING_GROUPS)
	{
		gv_registers_give<GV_COPY_REGISTERS>();
		if (threadIdx.x % GV_WARPGROUP == 0)
			gv_send_tiles<WIDTH, PARTS>(ring, maps, walk, nsteps);
		return;
	}

	/* 2. the others multiply what comes, and look at it */
	gv_registers_take<GV_MANY_REGISTERS>();
	gv_step_begins();
	for (; walk.there(); walk.advance())
	{
		int			row = walk.row * GV_TILE_ROWS + mine;
		float		sums[PARTS][WIDTH / 8][4] = {};

		if ((!WHOLE || walk.column == 0) && lane < 16)
			epilogue.begin(&rows[mine + lane], row + lane);
		__syncwarp();
		gv_ring_multiply<1, false>(sums, ring, place, nsteps, NULL, group, []
		{
		});
#pragma unroll
		for (int p = 0; p < PARTS; p++)
			gv_apply_epilogue<1>(epilogue, rows + mine, &sums[p], row,
						 walk.column * Shape::COLUMNS + p * WIDTH);
		__syncwarp();
		if ((!WHOLE || walk.column + 1 == walk.ncolumns) && lane < 16)
			epilogue.end(&rows[mine + lane], row + lane);
	}
#endif
}

template <int WIDTH, int PARTS, bool WHOLE, typename F>
static GvStatus
gv_hopper_launch(const GvMatmulContext *by, const GvMatmul *matmul,
				 const F &epilogue)
{
	using Shape = GvHopperShape<F, WIDTH, PARTS>;
	GvHopperWalk<WHOLE> walk(*matmul, Shape::COLUMNS, 0);
	GvRingMaps	maps;

	GV_TRY(gv_gpu_hopper_map(&maps.queries, matmul->d_rows, matmul->nrows,
							 matmul->half_dims, GV_TILE_ROWS));
	GV_TRY(gv_gpu_hopper_map(&maps.rows, matmul->d_columns,
							 matmul->ncolumns, matmul->half_dims, WIDTH));
	return gv_launch_early(by->overlap, hopper_kernel<F, WIDTH, PARTS, WHOLE>,
						   min(walk.blocks(), by->nsms), GV_RING_THREADS,
						   Shape::STAGES * Shape::BYTES + GV_RING_ALIGNMENT,
						   by->stream, *matmul, epilogue, maps);
}

/* Clocks that all tiles of `columns` columns take; see above. */
static inline int64_t
gv_hopper_clocks(const GvMatmul *matmul, int nsms, int columns)
{
	GvHopperWalk<false> walk(*matmul, columns, 0);
	int64_t		rounds = (walk.blocks() + nsms - 1) / nsms;
	int64_t		nsteps = (matmul->half_dims + GV_HOPPER_SLICE - 1) /
		GV_HOPPER_SLICE;

	return rounds * (nsteps * (GV_TILE_ROWS + columns) * 4 + columns * 21 +
					 500);
}

/* Tiles of the width that is best, or that a check wants. */
template <typename F>
static GvStatus
gv_hopper_best(const GvMatmulContext *by, const GvMatmul *matmul,
			   const F &epilogue)
{
	static const struct
	{
		int			columns;
		GvStatus	(*launch) (const GvMatmulContext *by,
							   const GvMatmul *matmul, const F &epilogue);
	}			widths[] = {
		{320, gv_hopper_launch<160, 2, false, F>},
		{288, gv_hopper_launch<96, 3, false, F>},
		{256, gv_hopper_launch<128, 2, false, F>},
		{192, gv_hopper_launch<96, 2, false, F>},
		{160, gv_hopper_launch<160, 1, false, F>},
		{128, gv_hopper_launch<128, 1, false, F>},
		{96, gv_hopper_launch<96, 1, false, F>}
	};
	int64_t		fewest = INT64_MAX;
	size_t		best = 0;

	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
	{
		int64_t		clocks = widths[i].columns == gv_matmul_forced() ? 0 :
			gv_hopper_clocks(matmul, by->nsms, widths[i].columns);

		if (clocks < fewest)
		{
			fewest = clocks;
			best = i;
		}
	}
	return widths[best].launch(by, matmul, epilogue);
}

/* See gv_gpu_matmul. */
template <bool WHOLE, typename F>
static GvStatus
gv_hopper_matmul(const GvMatmulContext *by, const GvMatmul *matmul,
				  const F &epilogue)
{
	if constexpr (!WHOLE)
		return gv_hopper_best(by, matmul, epilogue);
	else if (matmul->ncolumns <= 128)
		return gv_hopper_launch<128, 1, true>(by, matmul, epilogue);
	else
		return gv_hopper_launch<128, 2, true>(by, matmul, epilogue);
}

#endif							/* GV_HOPPERLOOP_CUH */
