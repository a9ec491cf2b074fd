/*
 * product.h
 *		Products of two half-precision matrices, all rows with all columns: by
 *		cuBLAS (cublas.cu), by a loop that every device has (mmaloop.cuh), or
 *		by one that only devices of compute capability 9.0 have (wgmma.cuh).
 *
 * product.cuh has the one entry point, gv_gpu_matmul.
 *
 * Error bound of a sum, by whatever code and in whatever order.  A product
 * of two halves has 22 bits, so fp32 holds it.  The sum of n of them is a
 * tree, each node of which adds the results below it to a number of 24 bits or
 * more:
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

#define GV_COLUMN_GROUP				32	/* columns side by side: lists, say */

/* Runs of a number of columns. */
static __host__ __device__ inline int32_t
gv_ncolumn_groups(int32_t ncolumns)
{
	return (ncolumns + GV_COLUMN_GROUP - 1) / GV_COLUMN_GROUP;
}

/* Two matrices, in the device's memory. */
struct GvMatmul
{
	const uint16_t *d_rows;		/* [nrows][half_dims] */
	int32_t		nrows;
	const uint16_t *d_columns;	/* [ncolumns][half_dims] */
	int32_t		ncolumns;
	int32_t		half_dims;		/* a multiple of 16 */
};

/* A part of a product, and where its sums go. */
struct GvMatmulTile
{
	int32_t		row;			/* the first, a multiple of GV_COLUMN_GROUP */
	int32_t		nrows;
	int32_t		column;			/* likewise */
	int32_t		ncolumns;
	int32_t		stride;			/* floats from one row of sums to the next */
	float	   *d_sums;			/* [nrows][stride] */
	bool		pdl;		/* what looks at them may be launched early */
};

/*
 * cuBLAS for one stream: its handle, a workspace, and the memory of a tile.
 * No such thing, NULL, is what streams have that multiply by loops of ours.
 */
struct GvBlas;

/* By whom a product is made, and where. */
struct GvMatmulContext
{
	const GvBlas *blas;			/* NULL: loops of ours */
	bool		hopper;			/* see gv_has_hopper */
	int			nsms;
	bool		pdl;		/* columns are there, and a loop may begin
								 * early: see gv_launch_pdl */
	cudaStream_t stream;
};

/*
 * The columns of a tile of 9.0; 0: the loop of every device is used; negative: as is
 * best.
 */
inline GV_TUNABLE int32_t gv_matmul_width = -1;

/*
 * Rows that are few: large tiles, and those of 9.0, leave SMs without work;
 * the latter of rows that meet all columns.
 */
#define GV_SMALL_ROWS			128
#define GV_SMALL_FULL_ROWS		4096

/*
 * gv_blas_open: which devices use cuBLAS, by gv_matmul_use; behind the name of
 * one that should and cannot, which package is missing.  GV_INVALID, with the
 * reason in the place of the first name, where it was asked for by name.
 */
extern "C" GvStatus gv_blas_open(GvDevice *devices, int32_t n);

/*
 * Bytes of a device's memory that gv_blas_create takes there for products over
 * `dims` dimensions, 0 for any; 0: none.
 */
extern "C" int64_t gv_blas_bytes(int32_t device, int32_t dims);

/*
 * For a stream of the chosen device, and products over `dims` dimensions, 0
 * for any; *blas is NULL where cuBLAS is not used.
 */
extern GvStatus gv_blas_create(int32_t device, int32_t dims,
							   cudaStream_t stream, GvBlas **blas);
extern void gv_blas_drop(GvBlas *blas);

/*
 * Returns whether cuBLAS makes a product: never where blas is NULL; always
 * with gv_matmul_use; else where there are enough dimensions for the
 * multiplication to take longer than bringing sums to memory and back.
 */
extern bool gv_blas_multiplies(const GvBlas *blas, const GvMatmul *matmul);

/* Sums of a tile. */
extern GvStatus gv_blas_multiply(const GvBlas *blas, const GvMatmul *matmul,
								 const GvMatmulTile *tile);

/*
 * The tile from there on, as large as there is memory for; of many rows if
 * tall.
 */
extern GvMatmulTile gv_blas_tile(const GvBlas *blas, const GvMatmul *matmul,
								 int32_t row, int32_t column, bool tall);

/* -- epilogues
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
