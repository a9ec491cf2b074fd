/*
 * product.h
 *		Products of two half-precision matrices, all rows with all columns.
 *		They are made by cuBLAS (cublas.cu), by a loop for every device
 *		(mmaloop.cuh), or by a loop for devices of compute capability 9.0 only
 *		(wgmma.cuh).
 *
 * The only entry point is gv_gpu_matmul in product.cuh.
 *
 * The error bound of a sum holds for any code and any order of additions.  A
 * product of two half-precision numbers has 22 bits, so fp32 represents it
 * exactly.  The sum of n of them is a tree, each node of which adds the
 * results below it to a number of 24 bits or more:
 *	- a node with two below it is an addition of fp32, rounded or cut: it is
 *	  off by at most 2^-23 of the sum of its inputs' magnitudes
 *	- a node of a tensor core has g >= 4 products and at most one sum below it,
 *	  aligns them to the largest, cuts each to 24 bits or more, and cuts the
 *	  result again: at most (g + 2) 2^-23 of that sum (Fasi, Higham,
 *	  Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021;
 *	  groups of 4 to 16; on 9.0 of 16 with 25 bits, Xie, Wang, Yang, Yang,
 *	  "MMA-Sim", 2025)
 * The magnitudes of a node's inputs add up to at most P, the sum of the
 * magnitudes of all products, times 1 + n 2^-21 for the errors of nodes below.
 * A tree has fewer than n / 4 nodes of the second kind, 6 n / 4 units of
 * 2^-23, and fewer than n / 4 of the first to add up their results; or fewer
 * than n of the first alone.  So a sum is off by at most 1.75 n 2^-23 P < n
 * 2^-22 P, and P <= |x||y| by Cauchy and Schwarz.  Zeros beyond dims may
 * change only the bits that are cut off: all proofs use the bound (dims + 32)
 * 2^-22 |x||y|.
 */
#ifndef GV_PRODUCT_H
#define GV_PRODUCT_H

#include "gpu/device/device.h"

#define GV_COLUMN_GROUP				32	/* columns side by side */

static __host__ __device__ inline int32_t
gv_ncolumn_groups(int32_t ncolumns)
{
	return (ncolumns + GV_COLUMN_GROUP - 1) / GV_COLUMN_GROUP;
}

/* Two matrices on the device. */
struct GvMatmul
{
	const uint16_t *d_rows;		/* [nrows][half_dims] */
	int32_t		nrows;
	const uint16_t *d_columns;	/* [ncolumns][half_dims] */
	int32_t		ncolumns;
	int32_t		half_dims;		/* a multiple of 16 */
};

/* A tile of a product, and where its sums are stored. */
struct GvMatmulTile
{
	int32_t		row;			/* the first, a multiple of GV_COLUMN_GROUP */
	int32_t		nrows;
	int32_t		column;			/* the first, likewise */
	int32_t		ncolumns;
	int32_t		stride;			/* floats from one row of sums to the next */
	float	   *d_sums;			/* [nrows][stride] */
	bool		pdl;			/* the next kernel may be launched early */
};

/*
 * cuBLAS for one stream: its handle, a workspace, and the memory of a tile.
 * A NULL pointer means that our own loops make the products of this stream.
 */
struct GvBlas;

/* How a product is made, and on which stream. */
struct GvMatmulContext
{
	const GvBlas *blas;			/* NULL: loops of ours */
	bool		hopper;			/* see gv_has_hopper */
	int			nsms;
	bool		pdl;			/* the loop may be launched early, because the
								 * columns exist already */
	cudaStream_t stream;
};

/*
 * Number of columns of a tile of wgmma.cuh.  If 0, the loop for every device
 * is used instead; if negative, the best number of columns.
 */
inline GV_TUNABLE int32_t gv_matmul_width = -1;

/*
 * Up to this number of rows, large tiles and the tiles of wgmma.cuh would
 * leave SMs without work.  The second limit is for products in which a block
 * has all columns of its rows.
 */
#define GV_SMALL_ROWS			128
#define GV_SMALL_FULL_ROWS		4096

/*
 * Decides from the setting gv_matmul_used which devices use cuBLAS.  If a
 * device should use cuBLAS and cannot, appends the name of the missing package
 * to the device's name.  But if the setting asks for cuBLAS by name, replaces
 * the first device's name by the reason and returns GV_INVALID.
 */
extern "C" GvStatus gv_blas_open(GvDevice *devices, int32_t n);

/*
 * Returns how many bytes of a device's memory gv_blas_create takes for
 * products over `dims` dimensions, or 0 if cuBLAS is not used.  dims = 0
 * stands for any number of dimensions.
 */
extern "C" int64_t gv_blas_bytes(int32_t device, int32_t dims);

/*
 * Creates *blas for products over `dims` dimensions on a stream of the chosen
 * device.  dims = 0 stands for any number of dimensions.  Sets *blas to NULL
 * if cuBLAS is not used.
 */
extern GvStatus gv_blas_create(int32_t device, int32_t dims,
							   cudaStream_t stream, GvBlas **blas);
extern void gv_blas_drop(GvBlas *blas);

/*
 * Returns whether cuBLAS makes a product: never if blas is NULL, always if the
 * setting asks for cuBLAS, and otherwise if there are enough dimensions that
 * the multiplication takes longer than writing the sums to memory and reading
 * them back.
 */
extern bool gv_blas_multiplies(const GvBlas *blas, const GvMatmul *matmul);

/*
 * Computes the sums of the tile that begins at row and column, and describes
 * it in *tile.  The tile is as large as the memory for sums allows; if tall,
 * it has many rows and few columns.
 */
extern GvStatus gv_blas_multiply(const GvBlas *blas, const GvMatmul *matmul,
								 int32_t row, int32_t column, bool tall,
								 GvMatmulTile *tile);

/*
 * -- epilogues
 *
 * An epilogue consumes the sums of a row in groups of 32 columns.  Four lanes
 * have the sums of a group: lane l of the four has columns j * 8 + 2 l and j *
 * 8 + 2 l + 1 for j < 4, as mma.sync leaves them (mma.cuh).  An epilogue is a
 * struct, passed by value, with
 *
 *	struct Row			a row's data, in shared memory
 *	struct ColumnState	the data of a lane's columns of a group, in registers
 *	begin(Row *, row)	by a thread, before the row's sums; a row of this
 *						number may not exist
 *	column_state(group)	of a group, which may lie beyond the last column
 *	consume(state, Row *, row, group, sums)
 *						by all lanes of a warp, for 8 rows.  Sums of rows and
 *						columns that do not exist are undefined
 *	end(Row *, row)		by a thread, after the row's last sums
 *
 * One block consumes all groups of a row in ascending order, or several blocks
 * share them.
 */

/* Base of an epilogue that keeps no data for each row. */
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
 * Passes a warp's sums of QM x 16 rows and NTILES x 8 columns, laid out as D
 * in mma.cuh, to the epilogue.  row and column are the warp's first row and
 * column, and rows[0] is the data of row `row`.
 */
template <int QM, typename F, int NTILES>
static __device__ __forceinline__ void
gv_apply_epilogue(const F &epilogue, typename F::Row *rows,
				  float (*sums)[NTILES][4], int row, int column)
{
	constexpr int TILES = GV_COLUMN_GROUP / 8;
	int			mine = threadIdx.x % GV_WARP / 4;

#pragma unroll
	for (int r = 0; r < NTILES / TILES; r++)
	{
		int			group = column / GV_COLUMN_GROUP + r;
		typename F::ColumnState columns = epilogue.column_state(group);

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
			epilogue.consume(columns, rows + i * 8 + mine, row + i * 8 + mine,
							 group, own);
		}
	}
}

#endif							/* GV_PRODUCT_H */
