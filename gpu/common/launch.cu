/*
 * launch.cu
 *		What launches need to know: how much shared memory a kernel was
 *		allowed, and whether the code that runs waits for the step before.
 *
 * A kernel's greatest dynamic shared memory belongs to the kernel and device,
 * not to a launch, and launches of many threads share it.  So it is raised,
 * one thread at a time, and never lowered: a launch that found enough still
 * has it when the driver looks, and so has one that a graph holds.
 */
#include <pthread.h>
#include <stdlib.h>

#include "gpu/common/gv_cuda.h"

#define NCHAINS			64

/*
 * The shared memory that a kernel was allowed on a device, until the process
 * ends.
 */
struct Allowed
{
	const void *kernel;
	int			device;			/* as CUDA has it */
	size_t		bytes;			/* only grows */
	Allowed    *next;
};

static Allowed *chains[NCHAINS];	/* entries come under the lock, in front */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static Allowed **
chain_of(const void *kernel)
{
	return &chains[(uintptr_t) kernel / 16 % NCHAINS];
}

/* Takes no lock; NULL: there is none. */
static Allowed *
find_allowed(const void *kernel, int device)
{
	Allowed    *found = __atomic_load_n(chain_of(kernel), __ATOMIC_ACQUIRE);

	while (found != NULL &&
		   (found->kernel != kernel || found->device != device))
		found = found->next;
	return found;
}

static GvStatus
raise(const void *kernel, int device, size_t bytes)
{
	Allowed    *allowed = find_allowed(kernel, device);

	if (allowed != NULL && allowed->bytes >= bytes)
		return GV_OK;
	GV_CUDA_TRY(cudaFuncSetAttribute(kernel,
									 cudaFuncAttributeMaxDynamicSharedMemorySize,
									 (int) bytes));
	if (allowed == NULL)
	{
		allowed = (Allowed *) malloc(sizeof(Allowed));
		/* what was allowed is not noted: the next launch asks again */
		if (allowed == NULL)
			return GV_NO_MEMORY;
		*allowed = {kernel, device, bytes, *chain_of(kernel)};
		__atomic_store_n(chain_of(kernel), allowed, __ATOMIC_RELEASE);
	}
	else
		__atomic_store_n(&allowed->bytes, bytes, __ATOMIC_RELEASE);
	return GV_OK;
}

/* See gv_cuda.h. */
GvStatus
gv_allow_shared(const void *kernel, size_t bytes)
{
	int			device;
	Allowed    *allowed;
	GvStatus	status;

	GV_CUDA_TRY(cudaGetDevice(&device));
	allowed = find_allowed(kernel, device);
	if (allowed != NULL &&
		__atomic_load_n(&allowed->bytes, __ATOMIC_ACQUIRE) >= bytes)
		return GV_OK;
	pthread_mutex_lock(&lock);
	status = raise(kernel, device, bytes);
	pthread_mutex_unlock(&lock);
	return status;
}

/* As all kernels are compiled. */
static __global__ void
waits_kernel()
{
}

/* See gv_cuda.h. */
GvStatus
gv_gpu_overlaps(bool *overlaps)
{
	cudaFuncAttributes attributes;

	GV_CUDA_TRY(cudaFuncGetAttributes(&attributes, (const void *)
									  waits_kernel));
	/* the PTX's version, also of code made from that for a newer device */
	*overlaps = attributes.ptxVersion * 10 >= GV_EARLY_CODE;
	return GV_OK;
}
