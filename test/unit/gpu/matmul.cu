/*
 * matmul.cu
 *		The sums of a product as they are, for check_products_card.c: matrices
 *		are copied to the device and sums back.
 */
#include "gpu/product/product.cuh"

/* Returns whether products for compute capability 9.0 can be made. */
extern "C" bool
hopper_multiplies()
{
	return gv_gpu_hopper_multiplies();
}

/* Sums go to memory, and runs are counted: see gpu/product/product.h. */
struct Kept
{
	GvMatmul	matmul;
	float	   *d_sums;			/* [nrows][ncolumns] */
	uint32_t   *d_runs;			/* [nrows] those that were taken */

	struct Row
	{
		uint32_t	groups;
	};

	struct ColumnState
	{
	};

	__device__ __forceinline__ void
	begin(Row *mine, int row) const
	{
		mine->groups = row < matmul.nrows ? d_runs[row] : 0;
	}

	__device__ __forceinline__ void
	end(const Row *mine, int row) const
	{
		if (row < matmul.nrows)
			d_runs[row] = mine->groups;
	}

	__device__ __forceinline__ ColumnState
	column_state(int) const
	{
		return {};
	}

	__device__ __forceinline__ void
	consume(const ColumnState &, Row *mine, int row, int group,
		 const float2 (&sums)[GV_COLUMN_GROUP / 8]) const
	{
		int			column = group * GV_COLUMN_GROUP + threadIdx.x % 4 * 2;

		if (row >= matmul.nrows)
			return;
		if (threadIdx.x % 4 == 0 && column < matmul.ncolumns)
			atomicAdd(&mine->groups, 1u);
#pragma unroll
		for (int j = 0; j < GV_COLUMN_GROUP / 8; j++)
		{
			float	   *to = d_sums + (int64_t) row * matmul.ncolumns +
				column + j * 8;

			if (column + j * 8 < matmul.ncolumns)
				to[0] = sums[j].x;
			if (column + j * 8 + 1 < matmul.ncolumns)
				to[1] = sums[j].y;
		}
	}
};

/* The resources of a check; half made, it can be dropped. */
struct Check
{
	cudaStream_t stream;
	GvBlas	   *blas;
	uint16_t   *d_half;		/* rows, then columns */
	float	   *d_sums;
	uint32_t   *d_runs;
};

static GvStatus
multiply(Check *check, GvMatmul matmul, bool full_rows, float *sums,
		 uint32_t *groups)
{
	size_t		rows = (size_t) matmul.nrows * matmul.half_dims * 2;
	size_t		columns = (size_t) matmul.ncolumns * matmul.half_dims * 2;
	size_t		bytes = (size_t) matmul.nrows * matmul.ncolumns * 4;
	size_t		run_bytes = (size_t) matmul.nrows * sizeof(uint32_t);
	GvMatmulContext context = {};
	int			device;
	Kept		kept;

	GV_CUDA_TRY(cudaStreamCreateWithFlags(&check->stream,
										  cudaStreamNonBlocking));
	GV_TRY(gv_blas_create(0, matmul.half_dims, check->stream, &check->blas));
	GV_CUDA_TRY(cudaGetDevice(&device));
	context = {check->blas, gv_has_hopper(0), 0, false, check->stream};
	GV_CUDA_TRY(cudaDeviceGetAttribute(&context.nsms,
									   cudaDevAttrMultiProcessorCount,
									   device));
	GV_CUDA_TRY(cudaMalloc((void **) &check->d_half, rows + columns));
	GV_CUDA_TRY(cudaMalloc((void **) &check->d_sums, bytes));
	GV_CUDA_TRY(cudaMalloc((void **) &check->d_runs, run_bytes));
	GV_CUDA_TRY(cudaMemcpyAsync(check->d_half, matmul.d_rows, rows,
								cudaMemcpyHostToDevice, check->stream));
	GV_CUDA_TRY(cudaMemcpyAsync((char *) check->d_half + rows,
								matmul.d_columns, columns,
								cudaMemcpyHostToDevice, check->stream));
	GV_CUDA_TRY(cudaMemsetAsync(check->d_runs, 0, run_bytes, check->stream));
	matmul.d_rows = check->d_half;
	matmul.d_columns = check->d_half + rows / 2;
	kept = {matmul, check->d_sums, check->d_runs};
	if (full_rows)
		GV_TRY(gv_gpu_matmul<true>(&context, &matmul, kept));
	else
		GV_TRY(gv_gpu_matmul<false>(&context, &matmul, kept));
	GV_CUDA_TRY(cudaMemcpyAsync(sums, check->d_sums, bytes,
								cudaMemcpyDeviceToHost, check->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(groups, check->d_runs, run_bytes,
								cudaMemcpyDeviceToHost, check->stream));
	return gv_cuda_status(cudaStreamSynchronize(check->stream));
}

/*
 * Computes sums [nrows][ncolumns] of matrices in the host's memory, and how
 * many runs of each row were consumed, runs [nrows].  whole: see
 * gv_gpu_matmul.
 */
extern "C" GvStatus
matmul_sums(const uint16_t *rows, int32_t nrows, const uint16_t *columns,
				int32_t ncolumns, int32_t half_dims, bool full_rows, float *sums,
				uint32_t *groups)
{
	Check		check = {};
	GvStatus	status;

	GV_TRY(gv_choose_device(0));
	status = multiply(&check, {rows, nrows, columns, ncolumns, half_dims},
					  full_rows, sums, groups);
	gv_blas_drop(check.blas);
	(void) cudaFree(check.d_half);
	(void) cudaFree(check.d_sums);
	(void) cudaFree(check.d_runs);
	if (check.stream != NULL)
		(void) cudaStreamDestroy(check.stream);
	return status;
}
