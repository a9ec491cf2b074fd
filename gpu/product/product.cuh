/*
 * product.cuh
 *		A product of two matrices, all sums of which are looked at.
 *
 * become.cuh says how a struct tells what that is.
 */
#ifndef GV_PRODUCT_CUH
#define GV_PRODUCT_CUH

#include <stdint.h>

#include "gpu/product/gv_product.h"
#include "gpu/product/loop.cuh"

#define GV_LOOK_WARPS		4
#define GV_LOOK_THREADS		(GV_LOOK_WARPS * GV_WARP)
#define GV_LOOK_GROUPS		4	/* of 8 rows, of a warp */
#define GV_LOOK_ROWS		(GV_LOOK_GROUPS * 8)
#define GV_LOOK_BLOCKS		2048	/* are enough for any card */

/*
 * A block's rows blockIdx.x * 128 .. of a tile, 32 a warp, and its runs from
 * blockIdx.y * nruns on.
 */
template <typename F>
static __global__ void __launch_bounds__(GV_LOOK_THREADS)
look_kernel(F becomes, GvProductTile tile, int nruns)
{
	__shared__ typename F::Row rows[GV_LOOK_THREADS];
	int			lane = threadIdx.x % GV_WARP;
	int			own = threadIdx.x - lane + lane / 4;	/* the first of its
														 * rows, in rows */
	int			first = blockIdx.x * GV_LOOK_THREADS;
	int			last = (tile.ncolumns + GV_RUN - 1) / GV_RUN;
	const float *sums = tile.d_sums + (int64_t) (first + own) * tile.stride +
		lane % 4 * 2;

	gv_step_begins();
	becomes.begin(&rows[threadIdx.x], tile.row + first + (int) threadIdx.x);
	__syncwarp();
	for (int run = blockIdx.y * nruns;
		 run < min((int) (blockIdx.y + 1) * nruns, last); run++)
	{
		typename F::Columns columns = becomes.columns(tile.column / GV_RUN +
													  run);
		float2		own_sums[GV_LOOK_GROUPS][GV_RUN / 8];

#pragma unroll
		for (int g = 0; g < GV_LOOK_GROUPS; g++)
#pragma unroll
			for (int j = 0; j < GV_RUN / 8; j++)
				own_sums[g][j] = first + own + g * 8 < tile.nrows ?
					*(const float2 *) (sums + (int64_t) g * 8 * tile.stride +
									   run * GV_RUN + j * 8) :
					make_float2(0.0f, 0.0f);
#pragma unroll
		for (int g = 0; g < GV_LOOK_GROUPS; g++)
			becomes.take(columns, &rows[own + g * 8],
						 tile.row + first + own + g * 8,
						 tile.column / GV_RUN + run, own_sums[g]);
	}
	__syncwarp();
	becomes.end(&rows[threadIdx.x], tile.row + first + (int) threadIdx.x);
}

/* Launched by gv_blas_product: the sums of a tile. */
template <typename F>
static GvStatus
look_at(const GvProductTile *tile, const F &becomes, bool whole, bool overlap,
		cudaStream_t stream)
{
	int			across = (tile->nrows + GV_LOOK_THREADS - 1) / GV_LOOK_THREADS;
	int			nruns = (tile->ncolumns + GV_RUN - 1) / GV_RUN;
	int			share = (int) ((int64_t) nruns * across / GV_LOOK_BLOCKS) + 1;

	if (whole)
		share = nruns;
	return gv_launch_early(overlap, look_kernel<F>,
						   dim3(across, (nruns + share - 1) / share),
						   GV_LOOK_THREADS, 0, stream, becomes, *tile, share);
}

/* ... by cuBLAS, tile by tile. */
template <typename F>
static GvStatus
gv_blas_product(const GvBlas *blas, const GvProduct *product,
				const F &becomes, bool whole, bool overlap,
				cudaStream_t stream)
{
	GvProductTile tile;

	for (int32_t row = 0; row < product->nrows; row += tile.nrows)
		for (int32_t column = 0; column < product->ncolumns;
			 column += tile.ncolumns)
		{
			tile = gv_blas_tile(blas, product, row, column);
			GV_TRY(gv_blas_multiply(blas, product, &tile));
			GV_TRY(look_at(&tile, becomes, whole, overlap, stream));
		}
	return GV_OK;
}

/*
 * All sums of a product become what `becomes` says; by cuBLAS unless blas is
 * NULL.  WHOLE: a block has all columns of its rows, so begin and end are called
 * once, by cuBLAS once a tile, one after the other.  overlap: this may begin
 * early, see gv_launch_early.
 */
template <bool WHOLE, typename F>
static GvStatus
gv_gpu_product(const GvBlas *blas, const GvProduct *product, const F &becomes,
			   bool overlap, cudaStream_t stream)
{
	if (blas != NULL)
		return gv_blas_product(blas, product, becomes, WHOLE, overlap, stream);
	return gv_loop_product<WHOLE>(product, becomes, overlap, stream);
}

#endif							/* GV_PRODUCT_CUH */
