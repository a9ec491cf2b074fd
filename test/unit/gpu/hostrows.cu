/*
 * hostrows.cu
 *		Selections from arrays in the host's memory, for check_select_card.c:
 *		the values are copied to the device and the answers back.
 */
#include "gpu/device/device.h"
#include "gpu/select/select.h"

/* A call's arrays on the device; NULL until allocated. */
struct HostRows
{
	float	   *d_memory;		/* of the values, and some in front */
	float	   *d_values;
	uint32_t   *d_positions;
	float	   *d_selected;
	cudaStream_t stream;
};

/* Copies values [n] to an address that is the host's modulo 16 bytes. */
static GvStatus
copy_values(HostRows *rows, const float *values, int64_t n)
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
				 uint32_t *positions, float *selected)
{
	size_t		n = (size_t) spec->rows * (size_t) spec->k;

	GV_CUDA_TRY(cudaMalloc((void **) &rows->d_positions,
						   sizeof(uint32_t) * n));
	GV_CUDA_TRY(cudaMalloc((void **) &rows->d_selected, sizeof(float) * n));
	GV_TRY(gv_gpu_select_rows(selector, spec, rows->d_values,
							  rows->d_positions, rows->d_selected,
							  rows->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(positions, rows->d_positions,
								sizeof(uint32_t) * n, cudaMemcpyDeviceToHost,
								rows->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(selected, rows->d_selected, sizeof(float) * n,
								cudaMemcpyDeviceToHost, rows->stream));
	return gv_cuda_status(cudaStreamSynchronize(rows->stream));
}

/* gv_gpu_select_rows of values [rows][columns]. */
extern "C" GvStatus
select_host(GvSelector *selector, const GvSelect *spec, const float *values,
			uint32_t *positions, float *selected)
{
	HostRows	rows = {};
	GvStatus	status = copy_values(&rows, values, spec->rows * spec->columns);

	if (status == GV_OK)
		status = select_and_fetch(&rows, selector, spec, positions, selected);
	drop(&rows);
	return status;
}

/* gv_gpu_quantiles of values [n]. */
extern "C" GvStatus
quantiles_host(GvSelector *selector, const float *values, int64_t n,
			   const int64_t *ranks, int32_t nranks, bool approximate,
			   float *quantiles, int64_t *rank_errors)
{
	HostRows	rows = {};
	GvStatus	status = copy_values(&rows, values, n);

	if (status == GV_OK)
		status = gv_gpu_quantiles(selector, rows.d_values, n, ranks, nranks,
								  approximate, quantiles, rank_errors,
								  rows.stream);
	drop(&rows);
	return status;
}
