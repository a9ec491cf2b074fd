/*
 * device.cu
 *		The devices that are used, what of their memory searches keep, and
 *		memory that grows.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "gpu/common/gv_cuda.h"

#define MOST_WORK		((int64_t) 1 << 29)	/* of a part of a batch */

/*
 * The share of a device's memory that is kept for searches: a tenth, or more
 * where the streams, two of each of two searchers that take turns, do not fit
 * in a tenth; at most a quarter, and then the streams have to do with that.
 * Buffers are a quarter larger than what is asked for.
 */
#define KEPT_FRACTION		0.1
#define MOST_KEPT_FRACTION	0.25
#define STREAMS			4
#define SEARCHER_STREAMS	2
#define STREAM_BYTES(work)	((work) + (work) / 4)

/* A device's properties. */
struct KnownDevice
{
	int			number;			/* as CUDA has it */
	size_t		most_shared;	/* bytes a block of threads may have */
	bool		hopper;			/* see gv_has_hopper */
};

static KnownDevice known_devices[GV_MAX_DEVICES];

/* The last call that was rejected. */
static char rejection[160];
static pthread_mutex_t rejection_lock = PTHREAD_MUTEX_INITIALIZER;

/* See gv_cuda.h. */
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

/* Bytes kept for searches of a device with `total` bytes. */
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

/* Bytes that mirrors may have of a device with `nfree` free bytes. */
static int64_t
budget(size_t nfree, size_t total)
{
	return (int64_t) nfree - kept_bytes(total);
}

/* See gv_cuda.h. */
int64_t
gv_gpu_stream_bytes(size_t total)
{
	int64_t		share = kept_bytes(total) / STREAMS / 5 * 4;

	return share < MOST_WORK ? share : MOST_WORK;
}

/* A thread's calls go to this device from now on, until it says otherwise. */
GvStatus
gv_choose_device(int32_t device)
{
	return gv_cuda_status(cudaSetDevice(known_devices[device].number));
}

/* Bytes of shared memory that a block of threads may have. */
size_t
gv_most_shared(int32_t device)
{
	return known_devices[device].most_shared;
}

/* Can what is for compute capability 9.0 alone work on a device? */
bool
gv_has_hopper(int32_t device)
{
	return known_devices[device].hopper;
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

/* A kernel for ask_device, compiled for the same devices as all others. */
static __global__ void
nothing_kernel()
{
}

/*
 * Is there nothing to wait for?  By their numbers, because the emulated
 * runtime lacks names for most.  Anything else, a device that is busy, is
 * reset, or counts errors of its memory, may be over in a minute.
 */
static bool
is_for_good(cudaError_t error)
{
	switch ((int) error)
	{
		case 35:				/* cudaErrorInsufficientDriver */
		case 98:				/* cudaErrorInvalidDeviceFunction */
		case 100:				/* cudaErrorNoDevice */
		case 101:				/* cudaErrorInvalidDevice */
		case 209:				/* cudaErrorNoKernelImageForDevice */
			return true;
		default:
			return false;
	}
}

/* The status that opening returns for an error. */
static GvStatus
open_status(cudaError_t error)
{
	return is_for_good(error) ? GV_INVALID : gv_cuda_status(error);
}

/* Ask a device what it is, and whether it works. */
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
	error = cudaFuncGetAttributes(&attributes, nothing_kernel);
	if (error == cudaSuccess)
		error = cudaMemGetInfo(nfree, total);
	/* others may need what looking at it took */
	if (error != cudaSuccess)
		(void) cudaDeviceReset();
	return error;
}

/*
 * Look at a device, and say what it is or, in the place of its name, why it
 * cannot be used.
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
	known->hopper = gv_gpu_hopper_works();
	device->number = number;
	device->memory = budget(nfree, total);
	device->kept = kept_bytes(total);
	device->searcher = SEARCHER_STREAMS *
		STREAM_BYTES(gv_gpu_stream_bytes(total));
	if (device->memory <= 0)
	{
		snprintf(device->name, sizeof(device->name),
				 "card %d: %.80s has no memory left", number,
				 properties.name);
		(void) cudaDeviceReset();
		return GV_NO_MEMORY;
	}
	snprintf(device->name, sizeof(device->name), "%.120s", properties.name);
	return GV_OK;
}

/* The better of two reasons for having no device: the one that may pass. */
static GvStatus
more_hopeful(GvStatus one, GvStatus other)
{
	return one > other ? one : other;
}

/*
 * The devices of a list [n] that can be used, of `count` that there are;
 * behind them, why others cannot.  None: for what reason.
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
			status = more_hopeful(status, one);
			lost[nlost++] = device;
		}
	}
	for (int32_t i = 0; i < nlost; i++)
		found[*nfound + i] = lost[i];
	return *nfound > 0 ? GV_OK : status;
}

/* Why there are no devices at all: CUDA has one word for two reasons. */
static void
say_why(cudaError_t error, GvDevice *found)
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
		say_why(error, found);
		return open_status(error);
	}
	if (devices[0] == '\0')
		for (n = 0; n < count && n < GV_MAX_DEVICES; n++)
			numbers[n] = n;
	return open_devices(count, numbers, n, found, nfound);
}
