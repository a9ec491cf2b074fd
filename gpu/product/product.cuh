/*
 * product.cuh
 *		Multiplies two matrices and passes all sums to an epilogue (product.h).
 */
#ifndef GV_PRODUCT_CUH
#define GV_PRODUCT_CUH

#include "gpu/product/mmaloop.cuh"
#include "gpu/product/wgmma.cuh"

#define GV_EPILOGUE_WARPS		4
#define GV_EPILOGUE_THREADS		(GV_EPILOGUE_WARPS * GV_WARP)
#define GV_EPILOGUE_LOADS		4	/* loads in flight, each of 8 rows x a
									 * column group */
#define GV_EPILOGUE_BLOCKS		1024	/* are enough for any device */

/*
 * A warp owns ROW_GROUPS * 8 rows of the tile and ngroups column groups of
 * these rows, from blockIdx.y * ngroups on.  It takes GV_EPILOGUE_LOADS /
 * ROW_GROUPS column groups at a time.
 */
template <typename F, int ROW_GROUPS>
static __global__ void __launch_bounds__(GV_EPILOGUE_THREADS)
epilogue_kernel(F epilogue, GvMatmulTile tile, int ngroups)
{
	constexpr int COLUMN_GROUPS = GV_EPILOGUE_LOADS / ROW_GROUPS;
	constexpr int TILES = GV_COLUMN_GROUP / 8;
	__shared__ typename F::Row rows[GV_EPILOGUE_WARPS][ROW_GROUPS * 8];
	int			lane = threadIdx.x % GV_WARP;
	typename F::Row *own = rows[threadIdx.x / GV_WARP];
	int			first =
		(blockIdx.x * GV_EPILOGUE_WARPS + threadIdx.x / GV_WARP) *
		ROW_GROUPS * 8;			/* the warp's first row in the tile */
	int			last = min((int) (blockIdx.y + 1) * ngroups,
						   gv_ncolumn_groups(tile.ncolumns));
	const float *sums = tile.d_sums + (int64_t) (first + lane / 4) *
		tile.stride + lane % 4 * 2;

	gv_pdl_wait();
	if (first >= tile.nrows)
		return;
	if (lane < ROW_GROUPS * 8)
		epilogue.begin(&own[lane], tile.row + first + lane);
	__syncwarp();
	for (int group = blockIdx.y * ngroups; group < last;
		 group += COLUMN_GROUPS)
	{
		float2		some[COLUMN_GROUPS][ROW_GROUPS][TILES] = {};

#pragma unroll
		for (int r = 0; r < COLUMN_GROUPS; r++)
#pragma unroll
			for (int g = 0; g < ROW_GROUPS; g++)
				if (group + r < last && first + g * 8 + lane / 4 < tile.nrows)
#pragma unroll
					for (int j = 0; j < TILES; j++)
						some[r][g][j] = *(const float2 *)
							(sums + (int64_t) g * 8 * tile.stride +
							 (group + r) * GV_COLUMN_GROUP + j * 8);
#pragma unroll
		for (int r = 0; r < COLUMN_GROUPS; r++)
		{
			int			of = tile.column / GV_COLUMN_GROUP + group + r;
			typename F::ColumnState columns;

			if (group + r >= last)
				break;
			columns = epilogue.column_state(of);
#pragma unroll
			for (int g = 0; g < ROW_GROUPS; g++)
				epilogue.consume(columns, &own[g * 8 + lane / 4], tile.row +
								 first + g * 8 + lane / 4, of, some[r][g]);
		}
	}
	__syncwarp();
	if (lane < ROW_GROUPS * 8)
		epilogue.end(&own[lane], tile.row + first + lane);
}

/* Makes a product by cuBLAS, tile by tile. */
template <bool FULL_ROWS, typename F>
static GvStatus
gv_blas_matmul(const GvBlas *blas, const GvMatmul *matmul, const F &epilogue,
			   cudaStream_t stream)
{
	constexpr int ROW_GROUPS = FULL_ROWS ? 1 : GV_EPILOGUE_LOADS;
	GvMatmulTile tile;

	for (int32_t row = 0; row < matmul->nrows; row += tile.nrows)
		for (int32_t column = 0; column < matmul->ncolumns;
			 column += tile.ncolumns)
		{
			int			across;
			int			ngroups;
			int			share;

			GV_TRY(gv_blas_multiply(blas, matmul, row, column, FULL_ROWS,
									&tile));
			across = gv_blocks_for(tile.nrows,
								   GV_EPILOGUE_WARPS * ROW_GROUPS * 8);
			ngroups = gv_ncolumn_groups(tile.ncolumns);
			share = FULL_ROWS ? ngroups :
				(int) ((int64_t) ngroups * across / GV_EPILOGUE_BLOCKS) + 1;
			GV_TRY(gv_launch_pdl(tile.pdl, epilogue_kernel<F, ROW_GROUPS>,
								 dim3(across, gv_blocks_for(ngroups, share)),
								 GV_EPILOGUE_THREADS, 0, stream, epilogue,
								 tile, share));
		}
	return GV_OK;
}

/*
 * Makes a product and passes all its sums to the epilogue.  If FULL_ROWS, one
 * block has all columns of its rows, so begin and end are called once for each
 * row.  With cuBLAS they are then called once for each tile of a row, one tile
 * after the other.
 */
template <bool FULL_ROWS, typename F>
static GvStatus
gv_gpu_matmul(const GvMatmulContext *context, const GvMatmul *matmul,
			  const F &epilogue)
{
	if (gv_blas_multiplies(context->blas, matmul))
		return gv_blas_matmul<FULL_ROWS>(context->blas, matmul, epilogue,
										 context->stream);
	if (context->hopper &&
		matmul->nrows > (FULL_ROWS ? GV_SMALL_FULL_ROWS : GV_SMALL_ROWS) &&
		gv_matmul_width != 0 && gv_gpu_hopper_multiplies())
		return gv_hopper_matmul<FULL_ROWS>(context, matmul, epilogue);
	return gv_loop_matmul<FULL_ROWS>(matmul, epilogue, context->pdl,
									 context->stream);
}

#endif							/* GV_PRODUCT_CUH */
