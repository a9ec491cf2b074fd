/*
 * mmaloop.cuh
 *		The product of two matrices by mma.sync, which every device has.  The
 *		sums never leave registers.
 *
 * A block owns a tile of ROWS rows and multiplies them with some columns,
 * COLUMNS at a time; each of its warps has a part of the rows and of the
 * columns.  The block loads slices of 32 dimensions to shared memory, STAGES -
 * 1 slices ahead of the products.  While the sums of some columns go to the
 * epilogue, the slices of the next columns arrive.  Rows of up to 128
 * dimensions stay in shared memory if they are multiplied with many columns,
 * because loading these rows again for each tile would be a third of the bytes
 * from L2.
 *
 * If a block multiplies its rows with all columns, tiles are 128 x 256.
 * Otherwise they are 128 x 128, which is 64 sums a thread, so that an SM has
 * two blocks, and one block runs its epilogue while the other multiplies.
 * Bytes from L2: a slice of a tile of 128 x 256 is 24 KB for 1 M products,
 * which take an SM 1,024 clocks; so each SM reads 24 bytes a clock.  With
 * tiles of 128 x 128 each SM reads 32 bytes a clock, as many as L2 delivers,
 * and is still faster (H200, 2026-11-23: .85 to .97 of the time, 128 to 768
 * dimensions; 1.2 for 1,000 columns of 128).  Tiles of the same columns have
 * consecutive block numbers, so that columns are read from the device's memory
 * only once.
 *
 * A slice is 32 dimensions of some rows, which cp.async copies in pieces of 16
 * bytes.  A row of a slice is 64 bytes, so two rows fill all banks once.
 * Piece c of row r is stored as piece c ^ (r / 2 % 4) of its row, so that the
 * 8 rows that ldmatrix reads at a time are in 8 different groups of banks.
 */
#ifndef GV_MMALOOP_CUH
#define GV_MMALOOP_CUH

#include "gpu/device/mma.cuh"
#include "gpu/product/product.h"

#define GV_SLICE		32		/* dimensions at a time */
#define GV_PIECES		4		/* of a slice of a row */
#define GV_LOOP_HELD	4		/* slices of rows that may stay */
#define GV_LOOP_NARROW	64		/* up to this number of columns, large tiles
								 * would be mostly empty */

static __device__ __forceinline__ uint4 *
gv_piece_at(uint4 *rows, int row, int piece)
{
	return rows + row * GV_PIECES + (piece ^ (row / 2 % GV_PIECES));
}

/*
 * Begins to copy slice `step` of rows first .. first + COUNT - 1 of an array
 * [nrows][half_dims] to shared memory.  Rows and dimensions that do not exist
 * become 0.
 */
template <int COUNT, int THREADS>
static __device__ __forceinline__ void
gv_send_rows(uint4 *rows, const uint16_t *array, int first, int nrows,
			 int half_dims, int step)
{
	constexpr int ROWS = THREADS / GV_PIECES;	/* copied together */
	int			piece = threadIdx.x % GV_PIECES;
	int			d = step * GV_SLICE + piece * 8;

#pragma unroll
	for (int i = 0; i < COUNT / ROWS; i++)
	{
		int			row = i * ROWS + threadIdx.x / GV_PIECES;
		bool		there = first + row < nrows && d < half_dims;

		gv_copy_async(gv_piece_at(rows, row, piece), array +
					  (there ? (int64_t) (first + row) * half_dims + d : 0),
					  there);
	}
}

/*
 * Adds a warp's products of a slice to sums.  The warp has QM x 16 queries,
 * from row `query` on, and LN x 16 lists, from row `list` on.
 */
template <int QM, int LN>
static __device__ __forceinline__ void
gv_multiply_slice(float (&sums)[QM][2 * LN][4], uint4 *queries, int query,
				  uint4 *lists, int list)
{
	int			lane = threadIdx.x % GV_WARP;

#pragma unroll
	for (int k = 0; k < GV_SLICE / 16; k++)
	{
		uint32_t	a[QM][4];
		uint32_t	b[LN][4];

#pragma unroll
		for (int i = 0; i < QM; i++)
			gv_load_matrices(a[i], gv_piece_at(queries, query + i * 16 +
											   lane % 16, 2 * k + lane / 16));
#pragma unroll
		for (int j = 0; j < LN; j++)
			gv_load_matrices(b[j], gv_piece_at(lists, list + j * 16 +
											   lane / 16 * 8 + lane % 8,
											   2 * k + lane / 8 % 2));
#pragma unroll
		for (int i = 0; i < QM; i++)
#pragma unroll
			for (int j = 0; j < LN; j++)
			{
				gv_mma(sums[i][2 * j], a[i], b[j][0], b[j][1]);
				gv_mma(sums[i][2 * j + 1], a[i], b[j][2], b[j][3]);
			}
	}
}

/*
 * The layout of shared memory.  If NHELD > 0, the rows stay: first come NHELD
 * slices of rows, then STAGES slices of COLUMNS columns.  If NHELD is 0, there
 * are STAGES slices of rows and columns, each with its rows first.
 */
template <int ROWS, int COLUMNS, int NHELD>
struct GvLoopShape
{
	static constexpr int STAGES = NHELD > 0 ? 3 : 4;
	static constexpr int ROW_PIECES = ROWS * GV_PIECES;
	static constexpr int STAGE = (NHELD > 0 ? 0 : ROW_PIECES) +
		COLUMNS * GV_PIECES;
	static constexpr int BYTES = (NHELD * ROW_PIECES + STAGES * STAGE) *
		(int) sizeof(uint4);
};

/*
 * A block's position: number `slice` of all its slices, which is slice `step`
 * of tile `tile`.
 */
struct GvLoopPlace
{
	int			slice;
	int			step;
	int			tile;

	__device__ __forceinline__ void
	advance(int nsteps)
	{
		slice++;
		if (++step == nsteps)
		{
			step = 0;
			tile++;
		}
	}
};

/*
 * Copies a block's slices to shared memory, one after the other, for one tile
 * after the other.
 */
template <int ROWS, int COLUMNS, int NHELD, int THREADS>
struct GvLoop
{
	using Shape = GvLoopShape<ROWS, COLUMNS, NHELD>;

	uint4	   *memory;
	int			row;			/* the block's first */
	int			column;
	int			total;			/* slices */

	__device__ __forceinline__ uint4 *
	rows(GvLoopPlace at) const
	{
		return memory + (NHELD > 0 ? at.step * Shape::ROW_PIECES :
						 at.slice % Shape::STAGES * Shape::STAGE);
	}

	__device__ __forceinline__ uint4 *
	columns(GvLoopPlace at) const
	{
		return memory + (NHELD > 0 ? NHELD : 1) * Shape::ROW_PIECES +
			at.slice % Shape::STAGES * Shape::STAGE;
	}

	__device__ __forceinline__ void
	send_rows(const GvMatmul &matmul, GvLoopPlace at) const
	{
		if (at.slice < total && (NHELD == 0 || at.tile == 0))
			gv_send_rows<ROWS, THREADS>(rows(at), matmul.d_rows, row,
										matmul.nrows, matmul.half_dims,
										at.step);
	}

	__device__ __forceinline__ void
	send_columns(const GvMatmul &matmul, GvLoopPlace at) const
	{
		if (at.slice < total)
			gv_send_rows<COLUMNS, THREADS>(columns(at), matmul.d_columns,
										   column + at.tile * COLUMNS,
										   matmul.ncolumns, matmul.half_dims,
										   at.step);
	}
};

/*
 * A block owns the ROWS rows of tile blockIdx.x % ntiles and multiplies them
 * with `walk` tiles of columns.  Its warps form a grid of 2 x ACROSS over a
 * tile.  Shared memory: see GvLoopShape.
 */
template <typename F, int ROWS, int COLUMNS, int ACROSS, int NHELD>
static __global__ void __launch_bounds__(2 * ACROSS *GV_WARP)
loop_kernel(GvMatmul matmul, F epilogue, int ntiles, int walk)
{
	constexpr int THREADS = 2 * ACROSS * GV_WARP;
	constexpr int QM = ROWS / 2 / 16;
	constexpr int LN = COLUMNS / ACROSS / 16;
	using Shape = GvLoopShape<ROWS, COLUMNS, NHELD>;
	GV_SHARED(memory);
	__shared__ typename F::Row rows[ROWS];
	int			warp = threadIdx.x / GV_WARP;
	int			warp_row = warp / ACROSS * (ROWS / 2);
	int			warp_column = warp % ACROSS * (COLUMNS / ACROSS);
	int			row = blockIdx.x % ntiles * ROWS;
	int			column = blockIdx.x / ntiles * walk * COLUMNS;
	int			nsteps = (matmul.half_dims + GV_SLICE - 1) / GV_SLICE;
	int			tiles = min(walk, (matmul.ncolumns - column + COLUMNS - 1) /
							COLUMNS);
	GvLoop<ROWS, COLUMNS, NHELD, THREADS> loop = {memory, row, column,
		nsteps * tiles};
	GvLoopPlace sent = {0, 0, 0};
	GvLoopPlace at = {0, 0, 0};
	float		sums[QM][2 * LN][4] = {};

	/*
	 * 1. Copy the first slices.  Slices of columns are copied before the
	 * kernel waits for the rows.  If there are fewer slices than stages, the
	 * remaining groups of copies are empty.
	 */
	for (; sent.slice < Shape::STAGES - 1; sent.advance(nsteps))
		loop.send_columns(matmul, sent);
	gv_pdl_wait();
	sent = {0, 0, 0};
	for (; sent.slice < Shape::STAGES - 1; sent.advance(nsteps))
	{
		loop.send_rows(matmul, sent);
		gv_commit_copies();
	}
	if (threadIdx.x < ROWS)
		epilogue.begin(&rows[threadIdx.x], row + (int) threadIdx.x);

	/*
	 * 2. Multiply one slice after the other.  The barrier makes the slice
	 * visible that all threads copied together.  After it the memory of the
	 * slice before this one may be overwritten.
	 */
	for (; at.slice < loop.total; at.advance(nsteps), sent.advance(nsteps))
	{
		gv_wait_copies<Shape::STAGES - 2>();
		__syncthreads();
		loop.send_columns(matmul, sent);
		loop.send_rows(matmul, sent);
		gv_commit_copies();
		gv_multiply_slice<QM, LN>(sums, loop.rows(at), warp_row,
								  loop.columns(at), warp_column);
		if (at.step + 1 < nsteps)
			continue;
		gv_apply_epilogue<QM>(epilogue, rows + warp_row, sums, row + warp_row,
							  column + at.tile * COLUMNS + warp_column);
#pragma unroll
		for (int i = 0; i < QM; i++)
#pragma unroll
			for (int j = 0; j < 2 * LN; j++)
#pragma unroll
				for (int d = 0; d < 4; d++)
					sums[i][j][d] = 0.0f;
	}
	__syncthreads();
	if (threadIdx.x < ROWS)
		epilogue.end(&rows[threadIdx.x], row + (int) threadIdx.x);
}

template <int ROWS, int COLUMNS, int ACROSS, int NHELD, bool FULL_ROWS,
	typename F> static GvStatus gv_loop_launch(const GvMatmul *matmul,
											   const F &epilogue, bool pdl,
											   cudaStream_t stream)
{
	int			ntiles = (matmul->nrows + ROWS - 1) / ROWS;
	int			across = (matmul->ncolumns + COLUMNS - 1) / COLUMNS;
	int			walk = FULL_ROWS ? across : 1;

	return gv_launch_pdl(pdl, loop_kernel<F, ROWS, COLUMNS, ACROSS, NHELD>,
						 ntiles * ((across + walk - 1) / walk),
						 2 * ACROSS * GV_WARP,
						 GvLoopShape<ROWS, COLUMNS, NHELD>::BYTES, stream,
						 *matmul, epilogue, ntiles, walk);
}

template <bool FULL_ROWS, typename F>
static GvStatus
gv_loop_matmul(const GvMatmul *matmul, const F &epilogue, bool pdl,
			   cudaStream_t stream)
{
	if (matmul->nrows <= (FULL_ROWS ? GV_SMALL_FULL_ROWS : GV_SMALL_ROWS) ||
		matmul->ncolumns <= GV_LOOP_NARROW)
		return gv_loop_launch<32, 64, 2, 0, FULL_ROWS>(matmul, epilogue, pdl,
													   stream);
	if constexpr (!FULL_ROWS)
		return gv_loop_launch<128, 128, 4, 0, false>(matmul, epilogue, pdl,
													 stream);
	else if (matmul->half_dims <= GV_LOOP_HELD * GV_SLICE)
		return gv_loop_launch<128, 256, 4, GV_LOOP_HELD, true>
			(matmul, epilogue, pdl, stream);
	else
		return gv_loop_launch<128, 256, 4, 0, true>(matmul, epilogue, pdl,
													stream);
}

#endif							/* GV_MMALOOP_CUH */
