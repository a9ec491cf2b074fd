/*
 * device.cu
 *		The card that is used, and memory that grows.
 */
#include <stdio.h>
#include <stdlib.h>

#include "gv_cuda.h"

#define KEPT_SHARE		0.1		/* of the card's memory, for searches */

/* A thread's calls go to card 0 unless it says otherwise. */
static int	chosen_device;
static size_t most_shared;

GvStatus
gv_choose_device(void)
{
	return gv_cuda_status(cudaSetDevice(chosen_device));
}

/* Bytes of shared memory that a block of threads may have. */
size_t
gv_most_shared(void)
{
	return most_shared;
}

/* Grow a searcher's buffer; what it held is lost. */
GvStatus
gv_buffer_need(GvBuffer *buffer, size_t bytes)
{
	size_t		wanted = bytes + bytes / 4 + 4096;

	if (buffer->bytes >= bytes)
		return GV_OK;
	gv_buffer_free(buffer);
	if (buffer->pinned)
		GV_CUDA_TRY(cudaMallocHost(&buffer->memory, wanted));
	else
		GV_CUDA_TRY(cudaMalloc(&buffer->memory, wanted));
	buffer->bytes = wanted;
	return GV_OK;
}

void
gv_buffer_free(GvBuffer *buffer)
{
	if (buffer->memory != NULL)
		(void) (buffer->pinned ? cudaFreeHost(buffer->memory) :
				cudaFree(buffer->memory));
	buffer->memory = NULL;
	buffer->bytes = 0;
}

/* The first of the devices named, "" = 0. */
GvStatus
gv_gpu_open(const char *devices, GvDevice *device)
{
	cudaDeviceProp properties;
	size_t		nfree;
	size_t		total;
	char	   *end;
	long		number = strtol(devices, &end, 10);
	int			count = 0;
	cudaError_t error = cudaGetDeviceCount(&count);

	device->memory = 0;
	if (error == cudaSuccess && number >= 0 && number < count &&
		(*end == 0 || *end == ','))
		error = cudaSetDevice(chosen_device = (int) number);
	else if (error == cudaSuccess)
		error = cudaErrorInvalidDevice;
	if (error == cudaSuccess)
		error = cudaGetDeviceProperties(&properties, (int) number);
	if (error == cudaSuccess)
		error = cudaMemGetInfo(&nfree, &total);
	if (error != cudaSuccess)
	{
		snprintf(device->name, sizeof(device->name), "%s",
				 cudaGetErrorString(error));
		(void) cudaGetLastError();
		return GV_FAILED;
	}
	most_shared = properties.sharedMemPerBlockOptin;
	device->memory = (int64_t) (nfree - KEPT_SHARE * total);
	if (device->memory <= 0)
	{
		snprintf(device->name, sizeof(device->name),
				 "%.80s has no memory left", properties.name);
		return GV_NO_MEMORY;
	}
	snprintf(device->name, sizeof(device->name), "%.120s", properties.name);
	return GV_OK;
}
