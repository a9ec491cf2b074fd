/*
 * become.cuh
 *		What becomes of the sums of a product.
 *
 * Sums are looked at 32 columns of a row at a time, a run, by four lanes: lane
 * l of these has columns j * 8 + 2 l and the next, j < 4, as mma.sync leaves
 * them (mma.cuh).  An epilogue uses them: a struct, passed by value, with
 *
 *	struct Row			a row's data, in shared memory
 *	struct Columns		the data of a lane's columns of a run, in registers
 *	begin(Row *, row)	by a thread, before its sums; there may be no such row
 *	columns(run)		of a run, which may be beyond the last column
 *	take(columns, Row *, row, run, sums)
 *						by all lanes of a warp, of 8 rows.  Sums of rows and
 *						columns that are not there mean nothing
 *	end(Row *, row)		by a thread, after its last sums
 *
 * All runs of a row are taken by one block, in ascending order, or by several.
 */
#ifndef GV_BECOME_CUH
#define GV_BECOME_CUH

#include "gpu/common/warpselect.cuh"
#include "gpu/product/gv_product.h"

/* For what needs to know nothing of a row: its Row, begin and end. */
struct GvNoRow
{
	struct Row
	{
	};

	__device__ __forceinline__ void
	begin(Row *, int) const
	{
	}

	__device__ __forceinline__ void
	end(Row *, int) const
	{
	}
};

/*
 * A warp's sums of QM x 16 rows and NTILES x 8 columns, as mma.cuh has D,
 * become what they are to: `column` is the warp's first, `row` too, which in
 * `rows` is the first.
 */
template <int QM, typename F, int NTILES>
static __device__ __forceinline__ void
gv_apply_epilogue(const F &epilogue, typename F::Row *rows,
				  float (*sums)[NTILES][4],
		  int row, int column)
{
	constexpr int TILES = GV_RUN / 8;
	int			mine = threadIdx.x % GV_WARP / 4;

#pragma unroll
	for (int r = 0; r < NTILES / TILES; r++)
	{
		int			run = column / GV_RUN + r;
		typename F::Columns columns = epilogue.columns(run);

#pragma unroll
		for (int i = 0; i < 2 * QM; i++)
		{
			float2		own[TILES];

#pragma unroll
			for (int j = 0; j < TILES; j++)
			{
				const float *pair = sums[i / 2][r * TILES + j] + i % 2 * 2;

				own[j] = make_float2(pair[0], pair[1]);
			}
			epilogue.take(columns, rows + i * 8 + mine, row + i * 8 + mine,
						 run, own);
		}
	}
}

#endif							/* GV_BECOME_CUH */
