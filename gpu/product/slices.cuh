/*
 * slices.cuh
 *		Slices of the rows of two matrices in shared memory, and their products
 *		by mma.sync: what every device can do.
 *
 * A slice is 32 dimensions of some rows, which come by cp.async in pieces of
 * 16 bytes.  A row of it is 64 bytes, two of them 128, all banks once: piece c
 * of row r stands at c ^ (r / 2 % 4) of its row, so that the 8 rows that
 * ldmatrix reads at a time are in 8 places of 16 bytes.
 */
#ifndef GV_SLICES_CUH
#define GV_SLICES_CUH

#include <stdint.h>

#include "gpu/common/mma.cuh"
#include "gpu/common/warpselect.cuh"

#define GV_SLICE		32		/* dimensions at a time */
#define GV_PIECES		4		/* of a slice of a row */

/* A piece of a slice of some rows in shared memory. */
static __device__ __forceinline__ uint4 *
gv_piece_at(uint4 *rows, int row, int piece)
{
	return rows + row * GV_PIECES + (piece ^ (row / 2 % GV_PIECES));
}

/*
 * Send slice number `step` of rows first .. first + COUNT - 1 of an array
 * [nrows][half_dims]; what there is not becomes 0.
 */
template <int COUNT, int THREADS>
static __device__ __forceinline__ void
gv_send_rows(uint4 *rows, const uint16_t *array, int first, int nrows,
			 int half_dims, int step)
{
	constexpr int ROWS = THREADS / GV_PIECES;	/* sent side by side */
	int			piece = threadIdx.x % GV_PIECES;
	int			d = step * GV_SLICE + piece * 8;

#pragma unroll
	for (int i = 0; i < COUNT / ROWS; i++)
	{
		int			row = i * ROWS + threadIdx.x / GV_PIECES;
		bool		there = first + row < nrows && d < half_dims;

		gv_copy_async(gv_piece_at(rows, row, piece),
					  array + (there ? (int64_t) (first + row) * half_dims + d :
							   0), there);
	}
}

/*
 * The products of a slice, a warp's part: QM x 16 queries from row `query` on,
 * LN x 16 lists from row `list` on.
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
			gv_load_matrices(a[i], gv_piece_at(queries,
											   query + i * 16 + lane % 16,
											   2 * k + lane / 16));
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

#endif							/* GV_SLICES_CUH */
