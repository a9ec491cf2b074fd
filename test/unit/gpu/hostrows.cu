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
	char	   *d_memory;		/* of the values, and some in front */
	char	   *d_values;
	uint32_t   *d_positions;
	char	   *d_selected;
	cudaStream_t stream;
};

static size_t
value_bytes(bool doubles)
{
	return doubles ? sizeof(double) : sizeof(float);
}

/* Copies `bytes` of values to an address that is the host's modulo 16. */
static GvStatus
copy_values(HostRows *rows, const void *values, size_t bytes)
{
	size_t		shift = (uintptr_t) values % 16;

	GV_CUDA_TRY(cudaStreamCreateWithFlags(&rows->stream,
										  cudaStreamNonBlocking));
	GV_CUDA_TRY(cudaMalloc((void **) &rows->d_memory, bytes + shift));
	rows->d_values = rows->d_memory + shift;
	return gv_cuda_status(cudaMemcpyAsync(rows->d_values, values, bytes,
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
				 uint32_t *positions, void *selected)
{
	size_t		n = (size_t) spec->rows * (size_t) spec->k;
	size_t		bytes = n * value_bytes(spec->doubles);

	GV_CUDA_TRY(cudaMalloc((void **) &rows->d_positions,
						   sizeof(uint32_t) * n));
	GV_CUDA_TRY(cudaMalloc((void **) &rows->d_selected, bytes));
	GV_TRY(gv_gpu_select_rows(selector, spec, rows->d_values,
							  rows->d_positions, rows->d_selected,
							  rows->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(positions, rows->d_positions,
								sizeof(uint32_t) * n, cudaMemcpyDeviceToHost,
								rows->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(selected, rows->d_selected, bytes,
								cudaMemcpyDeviceToHost, rows->stream));
	return gv_cuda_status(cudaStreamSynchronize(rows->stream));
}

/* gv_gpu_select_rows of values [rows][columns]. */
extern "C" GvStatus
select_host(GvSelector *selector, const GvSelect *spec, const void *values,
			uint32_t *positions, void *selected)
{
	HostRows	rows = {};
	GvStatus	status = copy_values(&rows, values, value_bytes(spec->doubles) *
									 (size_t) (spec->rows * spec->columns));

	if (status == GV_OK)
		status = select_and_fetch(&rows, selector, spec, positions, selected);
	drop(&rows);
	return status;
}

/* gv_gpu_quantiles of values [n]. */
extern "C" GvStatus
quantiles_host(GvSelector *selector, const GvQuantiles *spec,
			   const void *values, const int64_t *ranks, void *quantiles,
			   int64_t *rank_errors)
{
	HostRows	rows = {};
	GvStatus	status = copy_values(&rows, values, value_bytes(spec->doubles) *
									 (size_t) spec->n);

	if (status == GV_OK)
		status = gv_gpu_quantiles(selector, spec, rows.d_values, ranks,
								  quantiles, rank_errors, rows.stream);
	drop(&rows);
	return status;
}
