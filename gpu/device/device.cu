/*
 * device.cu
 *		The devices in use, the part of their memory that is kept for searches,
 *		the limits of kernels' shared memory, and the grouping of numbers by
 *		key.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cub/device/device_radix_sort.cuh>

#include "gpu/device/device.h"

#define MOST_WORK		((int64_t) 1 << 29) /* of a sub-batch */

/*
 * The fraction of a device's memory that is kept for searches.  It is a tenth,
 * or more if a tenth is too little for all streams: two searchers take turns,
 * and each has two streams.  It is at most a quarter; if the streams need more
 * than that, sub-batches are smaller.  A buffer is a quarter larger than the
 * bytes requested.
 */
#define KEPT_FRACTION		0.1
#define MOST_KEPT_FRACTION	0.25
#define STREAMS			4
#define SEARCHER_STREAMS	2
#define STREAM_BYTES(work)	((work) + (work) / 4)

/* A device's properties. */
struct KnownDevice
{
	int			number;			/* CUDA's */
	size_t		most_shared;	/* bytes that a block may have */
	bool		hopper;			/* see gv_has_hopper */
};

static KnownDevice known_devices[GV_MAX_DEVICES];

/*
 * An empty kernel, compiled for the same devices as all others.  Reading its
 * attributes shows whether a device can run our code.
 */
static __global__ void
empty_kernel()
{
}

/* -- errors */

/* The last call that was rejected. */
static char rejection[160];
static pthread_mutex_t rejection_lock = PTHREAD_MUTEX_INITIALIZER;

GvStatus
gv_note_rejection(const char *what, const char *file, int line)
{
	const char *name = strrchr(file, '/');

	pthread_mutex_lock(&rejection_lock);
	snprintf(rejection, sizeof(rejection), "%s, at %s:%d", what,
			 name != NULL ? name + 1 : file, line);
	pthread_mutex_unlock(&rejection_lock);
	return GV_REJECTED;
}

/* See gv_rejection. */
void
gv_gpu_rejection(char *text, size_t size)
{
	pthread_mutex_lock(&rejection_lock);
	snprintf(text, size, "%s", rejection);
	pthread_mutex_unlock(&rejection_lock);
}

/* -- launches */

/*
 * The dynamic shared memory that a kernel may have on a device, until the
 * process ends.
 *
 * The limit belongs to the kernel and the device, not to a launch, and the
 * launches of many threads share it.  So one thread at a time raises the
 * limit, and no thread lowers it.  A launch that found the limit high enough
 * can therefore rely on it when the driver checks it, and so can a launch that
 * a graph contains.
 */
struct Allowed
{
	const void *kernel;
	int			device;			/* CUDA's number */
	size_t		bytes;			/* only grows */
	Allowed    *next;
};

static Allowed *all_allowed;
static pthread_mutex_t allowed_lock = PTHREAD_MUTEX_INITIALIZER;

/*
 * Raises the limit to `bytes` bytes if it is lower; the caller holds
 * allowed_lock.
 */
static GvStatus
raise_allowed(const void *kernel, int device, size_t bytes)
{
	Allowed    *allowed = all_allowed;

	while (allowed != NULL &&
		   (allowed->kernel != kernel || allowed->device != device))
		allowed = allowed->next;
	if (allowed == NULL)
	{
		allowed = (Allowed *) malloc(sizeof(Allowed));
		if (allowed == NULL)
			return GV_NO_MEMORY;
		*allowed = {kernel, device, GV_USUAL_SHARED, all_allowed};
		all_allowed = allowed;
	}
	if (allowed->bytes >= bytes)
		return GV_OK;
	GV_CUDA_TRY(cudaFuncSetAttribute(kernel,
									 cudaFuncAttributeMaxDynamicSharedMemorySize,
									 (int) bytes));
	allowed->bytes = bytes;
	return GV_OK;
}

GvStatus
gv_allow_shared(const void *kernel, size_t bytes)
{
	int			device;
	GvStatus	status;

	GV_CUDA_TRY(cudaGetDevice(&device));
	pthread_mutex_lock(&allowed_lock);
	status = raise_allowed(kernel, device, bytes);
	pthread_mutex_unlock(&allowed_lock);
	return status;
}

GvStatus
gv_gpu_has_pdl(bool *pdl)
{
	cudaFuncAttributes attributes;

	GV_CUDA_TRY(cudaFuncGetAttributes(&attributes,
									  (const void *) empty_kernel));
	/*
	 * this is the PTX's version even if the driver compiled the PTX for a
	 * newer device
	 */
	*pdl = attributes.ptxVersion * 10 >= GV_PDL_ARCH;
	return GV_OK;
}

/* -- memory */

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

/* Returns how many of a device's `total` bytes are kept for searches. */
static int64_t
kept_bytes(size_t total)
{
	double		kept = KEPT_FRACTION * total;

	if (kept < (double) (STREAMS * STREAM_BYTES(MOST_WORK)))
		kept = (double) (STREAMS * STREAM_BYTES(MOST_WORK));
	if (kept > MOST_KEPT_FRACTION * total)
		kept = MOST_KEPT_FRACTION * total;
	return (int64_t) kept;
}

int64_t
gv_gpu_stream_bytes(size_t total)
{
	int64_t		share = kept_bytes(total) / STREAMS / 5 * 4;

	return share < MOST_WORK ? share : MOST_WORK;
}

/* -- devices */

GvStatus
gv_choose_device(int32_t device)
{
	return gv_cuda_status(cudaSetDevice(known_devices[device].number));
}

size_t
gv_most_shared(int32_t device)
{
	return known_devices[device].most_shared;
}

bool
gv_has_hopper(int32_t device)
{
	return known_devices[device].hopper;
}

GvStatus
gv_gpu_nsms(int *nsms)
{
	int			device;

	GV_CUDA_TRY(cudaGetDevice(&device));
	return gv_cuda_status(cudaDeviceGetAttribute(nsms,
												 cudaDevAttrMultiProcessorCount,
												 device));
}

GvStatus
gv_gpu_low_stream(cudaStream_t *stream)
{
	int			least;
	int			most;

	GV_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &most));
	return gv_cuda_status(cudaStreamCreateWithPriority(stream,
													   cudaStreamNonBlocking,
													   least));
}

#ifdef __CUDACC__
/*
 * The host reads this constant to learn whether its device runs code for
 * sm_90a.
 */
static __constant__ int compiled_for_hopper = GV_HOPPER;
#endif

/* Returns whether the chosen device runs code for sm_90a. */
static bool
runs_hopper_code()
{
#ifdef __CUDACC__
	int			compiled = 0;

	if (cudaMemcpyFromSymbol(&compiled, compiled_for_hopper,
							 sizeof(compiled)) != cudaSuccess)
		(void) cudaGetLastError();
	return compiled;
#else
	return gv_emulated_capability == 90 && gv_emulated_code == 90;
#endif
}

/*
 * Converts a CUDA error to the status of opening a device.  Errors that are
 * permanent become GV_INVALID.  All other errors may be gone in a minute, for
 * example if the device is busy, is being reset, or has memory errors.  The
 * cases are numbers because the emulated runtime has no names for most of
 * these errors.
 */
static GvStatus
open_status(cudaError_t error)
{
	switch ((int) error)
	{
		case 35:				/* cudaErrorInsufficientDriver */
		case 98:				/* cudaErrorInvalidDeviceFunction */
		case 100:				/* cudaErrorNoDevice */
		case 101:				/* cudaErrorInvalidDevice */
		case 209:				/* cudaErrorNoKernelImageForDevice */
			return GV_INVALID;
		default:
			return gv_cuda_status(error);
	}
}

/* Reads a device's properties, and tests whether the device works. */
static cudaError_t
ask_device(int number, cudaDeviceProp *properties, size_t *nfree,
		   size_t *total)
{
	cudaFuncAttributes attributes;
	cudaError_t error = cudaGetDeviceProperties(properties, number);

	if (error == cudaSuccess)
		error = cudaSetDevice(number);
	if (error != cudaSuccess)
		return error;
	error = cudaFuncGetAttributes(&attributes, empty_kernel);
	if (error == cudaSuccess)
		error = cudaMemGetInfo(nfree, total);
	/* give back the memory that the attempt took */
	if (error != cudaSuccess)
		(void) cudaDeviceReset();
	return error;
}

/*
 * Opens a device and fills *device and *known.  If the device cannot be used,
 * device->name is set to the reason.
 */
static GvStatus
inspect(int number, GvDevice *device, KnownDevice *known)
{
	cudaDeviceProp properties;
	size_t		nfree;
	size_t		total;
	cudaError_t error = ask_device(number, &properties, &nfree, &total);

	if (error != cudaSuccess)
	{
		snprintf(device->name, sizeof(device->name), "card %d: %s", number,
				 cudaGetErrorString(error));
		(void) cudaGetLastError();
		return open_status(error);
	}
	known->number = number;
	known->most_shared = properties.sharedMemPerBlockOptin;
	known->hopper = runs_hopper_code();
	device->number = number;
	device->memory = (int64_t) nfree - kept_bytes(total);
	device->kept = kept_bytes(total);
	device->searcher = SEARCHER_STREAMS *
		STREAM_BYTES(gv_gpu_stream_bytes(total));
	if (device->memory <= 0)
	{
		snprintf(device->name, sizeof(device->name),
				 "card %d: %.80s has no memory left", number, properties.name);
		(void) cudaDeviceReset();
		return GV_NO_MEMORY;
	}
	snprintf(device->name, sizeof(device->name), "%.120s", properties.name);
	return GV_OK;
}

/*
 * Opens the devices numbers [n]; `count` devices exist.  Stores the devices
 * that can be used in found and sets *nfound to their number.  Behind them it
 * stores the other devices, whose names say why they cannot be used.  If no
 * device can be used, returns the status that is most likely to be temporary.
 */
static GvStatus
open_devices(int count, const int32_t *numbers, int32_t n, GvDevice *found,
			 int32_t *nfound)
{
	GvDevice	lost[GV_MAX_DEVICES];
	GvStatus	status = GV_INVALID;
	int32_t		nlost = 0;

	*nfound = 0;
	for (int32_t i = 0; i < n; i++)
	{
		GvDevice	device = {};
		GvStatus	one = GV_INVALID;

		if (numbers[i] >= count)
			snprintf(device.name, sizeof(device.name),
					 "there is no card %d", numbers[i]);
		else
			one = inspect(numbers[i], &device, &known_devices[*nfound]);
		if (one == GV_OK)
			found[(*nfound)++] = device;
		else
		{
			status = one > status ? one : status;
			lost[nlost++] = device;
		}
	}
	for (int32_t i = 0; i < nlost; i++)
		found[*nfound + i] = lost[i];
	return *nfound > 0 ? GV_OK : status;
}

/*
 * Stores in found->name why there are no devices at all.  CUDA reports a
 * missing driver and a driver that is too old by the same error, so the
 * versions tell them apart.
 */
static void
explain_no_devices(cudaError_t error, GvDevice *found)
{
	int			driver = 0;
	int			own = 0;

	if (error != cudaErrorInsufficientDriver ||
		cudaDriverGetVersion(&driver) != cudaSuccess ||
		cudaRuntimeGetVersion(&own) != cudaSuccess)
		snprintf(found->name, sizeof(found->name), "%s",
				 cudaGetErrorString(error));
	else if (driver == 0)
		snprintf(found->name, sizeof(found->name), "no NVIDIA driver");
	else
		snprintf(found->name, sizeof(found->name),
				 "the NVIDIA driver is for CUDA %d.%d, older than %d.%d",
				 driver / 1000, driver % 1000 / 10, own / 1000,
				 own % 1000 / 10);
	(void) cudaGetLastError();
}

/* See gv_mirrors_open. */
GvStatus
gv_gpu_open(const char *devices, GvDevice *found, int32_t *nfound)
{
	int32_t		numbers[GV_MAX_DEVICES];
	int32_t		n = gv_parse_devices(devices, numbers);
	int			count = 0;
	cudaError_t error;

	if (n < 0)
	{
		snprintf(found->name, sizeof(found->name),
				 "malformed list of devices");
		return GV_INVALID;
	}
	error = cudaGetDeviceCount(&count);
	if (error != cudaSuccess)
	{
		explain_no_devices(error, found);
		return open_status(error);
	}
	if (devices[0] == '\0')
		for (n = 0; n < count && n < GV_MAX_DEVICES; n++)
			numbers[n] = n;
	return open_devices(count, numbers, n, found, nfound);
}

/* -- grouping */

#define THREADS			256

GvStatus
gv_gpu_group_bytes(int64_t n, size_t *bytes)
{
	const uint32_t *from = NULL;
	uint32_t   *to = NULL;

	*bytes = 0;
	return gv_cuda_status(cub::DeviceRadixSort::SortPairs(NULL, *bytes, from,
														  to, from, to, n));
}

/*
 * A thread finds where a key begins in d_sorted: at the first element that is
 * not less than the key.
 */
static __global__ void __launch_bounds__(THREADS)
starts_kernel(GvGroup group)
{
	int64_t		key = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	uint32_t	low = 0;
	uint32_t	high = (uint32_t) group.n;

	if (key > group.nkeys)
		return;
	while (low < high)
	{
		uint32_t	middle = low + (high - low) / 2;

		if ((int64_t) group.d_sorted[middle] < key)
			low = middle + 1;
		else
			high = middle;
	}
	group.d_starts[key] = low;
}

GvStatus
gv_gpu_group(const GvGroup *group, cudaStream_t stream)
{
	size_t		bytes = group->bytes;
	int			bits = 1;		/* of nkeys */

	while (bits < 32 && group->nkeys >> bits != 0)
		bits++;
	GV_CUDA_TRY(cub::DeviceRadixSort::SortPairs(group->d_memory, bytes,
												group->d_keys, group->d_sorted,
												group->d_numbers,
												group->d_order, group->n, 0,
												bits, stream));
	return gv_launch(starts_kernel, (int) (group->nkeys / THREADS + 1),
					 THREADS, 0, stream, *group);
}
