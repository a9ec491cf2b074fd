/*
 * hostrows.cu
 *		In the test build: selections of rows that the host has, there and
 *		back.
 */
#include "gpu/select/rows.cuh"

/* The call's arrays on the device; NULL until taken. */
struct HostRows
{
	float	   *d_memory;		/* of the values, and some in front */
	float	   *d_values;
	uint32_t   *d_positions;
	float	   *d_selected;
	cudaStream_t stream;
};

/* Bring values [n] to where they lie as with the host, modulo 16 bytes. */
static GvStatus
bring(HostRows *rows, const float *values, int64_t n)
{
	size_t		shift = (uintptr_t) values / sizeof(float) % 4;

	GV_CUDA_TRY(cudaStreamCreateWithFlags(&rows->stream,
										  cudaStreamNonBlocking));
	GV_CUDA_TRY(cudaMalloc((void **) &rows->d_memory,
						   sizeof(float) * ((size_t) n + shift)));
	rows->d_values = rows->d_memory + shift;
	return gv_cuda_status(cudaMemcpyAsync(rows->d_values, values,
										  sizeof(float) * (size_t) n,
										  cudaMemcpyHostToDevice,
										  rows->stream));
}

static void
drop(HostRows *rows)
{
	if (rows->stream != NULL)
	{
		(void) cudaStreamSynchronize(rows->stream);
		(void) cudaStreamDestroy(rows->stream);
	}
	(void) cudaFree(rows->d_memory);
	(void) cudaFree(rows->d_positions);
	(void) cudaFree(rows->d_selected);
}

static GvStatus
select_and_fetch(HostRows *rows, GvSelector *selector, const GvSelect *spec,
				 GvRowsWay way, uint32_t *positions, float *selected)
{
	size_t		n = (size_t) spec->rows * (size_t) spec->k;

	GV_CUDA_TRY(cudaMalloc((void **) &rows->d_positions,
						   sizeof(uint32_t) * n));
	GV_CUDA_TRY(cudaMalloc((void **) &rows->d_selected, sizeof(float) * n));
	GV_TRY(gv_gpu_select_rows(selector, spec, way, rows->d_values,
							  rows->d_positions, rows->d_selected,
							  rows->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(positions, rows->d_positions,
								sizeof(uint32_t) * n, cudaMemcpyDeviceToHost,
								rows->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(selected, rows->d_selected, sizeof(float) * n,
								cudaMemcpyDeviceToHost, rows->stream));
	return gv_cuda_status(cudaStreamSynchronize(rows->stream));
}

extern "C" GvStatus
gv_gpu_select_host(GvSelector *selector, const GvSelect *spec, GvRowsWay way,
				   const float *values, uint32_t *positions, float *selected)
{
	HostRows	rows = {};
	GvStatus	status = bring(&rows, values, spec->rows * spec->columns);

	if (status == GV_OK)
		status = select_and_fetch(&rows, selector, spec, way, positions,
								  selected);
	drop(&rows);
	return status;
}

extern "C" GvStatus
gv_gpu_quantiles_host(GvSelector *selector, const float *values, int64_t n,
					  const int64_t *ranks, int32_t nranks, bool approximate,
					  float *quantiles, int64_t *rank_errors)
{
	HostRows	rows = {};
	GvStatus	status = bring(&rows, values, n);

	if (status == GV_OK)
		status = gv_gpu_quantiles(selector, rows.d_values, n, ranks, nranks,
								  approximate, quantiles, rank_errors,
								  rows.stream);
	drop(&rows);
	return status;
}
