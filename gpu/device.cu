/*
 * device.cu
 *		The cards that are used, and memory that grows.
 */
#include <stdio.h>
#include <string.h>

#include "gv_cuda.h"

/* What is known of a device. */
struct Card
{
	int			number;			/* as CUDA has it */
	size_t		most_shared;	/* bytes a block of threads may have */
	bool		hopper;			/* see gv_has_hopper */
};

static Card cards[GV_MAX_DEVICES];

/* A thread's calls go to this card from now on, until it says otherwise. */
GvStatus
gv_choose_device(int32_t device)
{
	return gv_cuda_status(cudaSetDevice(cards[device].number));
}

/* Bytes of shared memory that a block of threads may have. */
size_t
gv_most_shared(int32_t device)
{
	return cards[device].most_shared;
}

/* Can what is for compute capability 9.0 alone work on a device? */
bool
gv_has_hopper(int32_t device)
{
	return cards[device].hopper;
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

/* What every other kernel was compiled for, too. */
static __global__ void
nothing_kernel()
{
}

/*
 * Look at a card, and say what it is or, in the place of its name, why it
 * cannot be used.
 */
static GvStatus
inspect(int number, GvDevice *device, Card *card)
{
	cudaDeviceProp properties;
	cudaFuncAttributes attributes;
	size_t		nfree;
	size_t		total;
	cudaError_t error = cudaGetDeviceProperties(&properties, number);

	if (error == cudaSuccess)
		error = cudaSetDevice(number);
	if (error == cudaSuccess)
		error = cudaFuncGetAttributes(&attributes, nothing_kernel);
	if (error == cudaSuccess)
		error = cudaMemGetInfo(&nfree, &total);
	if (error != cudaSuccess)
	{
		snprintf(device->name, sizeof(device->name), "card %d: %s", number,
				 cudaGetErrorString(error));
		return gv_cuda_status(error);
	}
	card->number = number;
	card->most_shared = properties.sharedMemPerBlockOptin;
	card->hopper = gv_gpu_hopper_works();
	device->number = number;
	device->memory = gv_gpu_budget(nfree, total);
	if (device->memory <= 0)
	{
		snprintf(device->name, sizeof(device->name),
				 "card %d: %.80s has no memory left", number,
				 properties.name);
		return GV_NO_MEMORY;
	}
	snprintf(device->name, sizeof(device->name), "%.120s", properties.name);
	return GV_OK;
}

/*
 * All cards that can be used; none: why the last could not, but rather for
 * want of memory, which may come.
 */
static GvStatus
open_all(int count, GvDevice *found, int32_t *nfound)
{
	GvStatus	status = GV_FAILED;
	GvDevice	reason = {};
	int32_t		n = 0;

	for (int number = 0; number < count && n < GV_MAX_DEVICES; number++)
	{
		GvStatus	one = inspect(number, &found[n], &cards[n]);

		if (one == GV_OK)
		{
			n++;
			continue;
		}
		/* others may need what looking at it took */
		(void) cudaDeviceReset();
		(void) cudaGetLastError();
		if (status != GV_NO_MEMORY)
		{
			status = one;
			reason = found[n];
		}
		memset(&found[n], 0, sizeof(found[n]));
	}
	*nfound = n;
	if (n > 0)
		return GV_OK;
	found[0] = reason;
	return status;
}

/* The cards of a list, all of them. */
static GvStatus
open_listed(int count, const int32_t *numbers, int32_t n, GvDevice *found)
{
	for (int32_t i = 0; i < n; i++)
	{
		GvStatus	status = GV_FAILED;

		if (numbers[i] >= count)
			snprintf(found[i].name, sizeof(found[i].name),
					 "there is no card %d", numbers[i]);
		else
			status = inspect(numbers[i], &found[i], &cards[i]);
		if (status != GV_OK)
		{
			found[0] = found[i];
			return status;
		}
	}
	return GV_OK;
}

/* Why there are no cards at all: CUDA has one word for two reasons. */
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
	cudaError_t error = cudaGetDeviceCount(&count);

	if (error != cudaSuccess)
	{
		say_why(error, found);
		return GV_FAILED;
	}
	if (n < 0)
	{
		snprintf(found->name, sizeof(found->name),
				 "malformed list of devices");
		return GV_FAILED;
	}
	*nfound = n;
	return n > 0 ? open_listed(count, numbers, n, found) :
		open_all(count, found, nfound);
}
