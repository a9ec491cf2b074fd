/*
 * device.h
 *		Declarations that all modules of the CUDA backend share: errors,
 *		launches, memory, devices, grouping by key, and the sets.
 *
 * Host functions return a GvStatus; nothing exits, aborts or prints.  Every
 * CUDA call goes through GV_CUDA_TRY.  Device pointers begin with d_.
 */
#ifndef GV_DEVICE_H
#define GV_DEVICE_H

#include <stdint.h>
#include <stdlib.h>

#include <cuda_runtime.h>

extern "C"
{
#include "engine/gv_call.h"
#include "engine/gv_set.h"
#include "engine/gv_test.h"
#include "engine/mirror/gv_mirror.h"
}

#define GV_WARP			32
#define GV_FULL_WARP	0xFFFFFFFFu

/* -- errors */

/* Notes a rejected call, so that gv_rejection can report it. */
extern GvStatus gv_note_rejection(const char *what, const char *file,
								  int line);

/*
 * Converts the result of a CUDA call to a status.  Two kinds of errors leave
 * the device usable, so that the process can continue: there was no memory, or
 * CUDA rejected the call or launch because of its arguments, which is a bug of
 * ours.
 */
static inline GvStatus
gv_cuda_status_at(cudaError_t error, const char *file, int line)
{
	if (error == cudaSuccess)
		return GV_OK;
	(void) cudaGetLastError();	/* or the next launch reports it again */
	switch (error)
	{
		case cudaErrorMemoryAllocation:
			return GV_NO_MEMORY;
		case cudaErrorInvalidValue:
		case cudaErrorInvalidConfiguration:
		case cudaErrorLaunchOutOfResources:
		case cudaErrorCooperativeLaunchTooLarge:
		case cudaErrorNotSupported:
			break;
		default:
			/* a graph whose recording failed */
			if (error < cudaErrorStreamCaptureUnsupported ||
				error > cudaErrorStreamCaptureWrongThread)
				return GV_FAILED;
	}
	return gv_note_rejection(cudaGetErrorString(error), file, line);
}

#define gv_cuda_status(error) gv_cuda_status_at(error, __FILE__, __LINE__)

#define GV_TRY(call) \
	do { \
		GvStatus	status_ = (call); \
		if (status_ != GV_OK) \
			return status_; \
	} while (0)
#define GV_CUDA_TRY(call)	GV_TRY(gv_cuda_status(call))

/*
 * Converts the status of a step of a mirror's change, when the host has
 * recorded the change already.  The change cannot be undone, so any error,
 * even a rejected call, becomes GV_FAILED.
 */
static inline GvStatus
gv_noted_status(GvStatus status)
{
	return status == GV_OK ? GV_OK : GV_FAILED;
}

/* -- launches */

/*
 * Declares a block's dynamic shared memory.  The second definition is for the
 * checks, which compile kernels without nvcc (test/unit/gpu).
 */
#ifdef __CUDACC__
#define GV_SHARED(name)		extern __shared__ uint4 name[]
#else
#define GV_SHARED(name)		uint4 *name = gv_emulated_shared()
#endif

#define GV_USUAL_SHARED		(32 * 1024) /* bytes that every kernel may have */
#define GV_PDL_ARCH		900		/* __CUDA_ARCH__ from which on kernels wait */

/* 1 in code for sm_90a and for emulated threads, else 0 */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#define GV_HOPPER			1
#else
#define GV_HOPPER			0
#endif

/*
 * Allows a kernel at least `bytes` bytes of dynamic shared memory on the
 * chosen device.  This must be called before a launch with more than
 * GV_USUAL_SHARED bytes.
 */
extern GvStatus gv_allow_shared(const void *kernel, size_t bytes);

/*
 * Sets *pdl to whether kernels that begin with gv_pdl_wait may be launched
 * early.  Kernels must not be launched early if the device runs code for older
 * devices, because gv_pdl_wait is empty in that code.
 */
extern GvStatus gv_gpu_has_pdl(bool *pdl);

/*
 * Launches a kernel that begins with gv_pdl_wait.  If pdl is true, the kernel
 * may start while the kernel before it still runs; see gv_gpu_has_pdl.
 */
template <typename... Parameters, typename... Arguments>
static inline GvStatus
gv_launch_pdl(bool pdl, void (*kernel) (Parameters...), dim3 grid, int threads,
			  size_t shared_bytes, cudaStream_t stream,
			  const Arguments &... arguments)
{
	if (shared_bytes > GV_USUAL_SHARED)
		GV_TRY(gv_allow_shared((const void *) kernel, shared_bytes));
#ifdef __CUDACC__
	cudaLaunchConfig_t config = {};
	cudaLaunchAttribute attribute = {};

	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared_bytes;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = pdl ? 1 : 0;
	return gv_cuda_status(cudaLaunchKernelEx(&config, kernel, arguments...));
#else
	return gv_cuda_status(gv_emulate_launch(pdl, grid, threads, shared_bytes,
											stream, kernel, arguments...));
#endif
}

/* Launches a kernel behind all that the stream has. */
template <typename... Parameters, typename... Arguments>
static inline GvStatus
gv_launch(void (*kernel) (Parameters...), dim3 grid, int threads,
		  size_t shared_bytes, cudaStream_t stream,
		  const Arguments &... arguments)
{
	return gv_launch_pdl(false, kernel, grid, threads, shared_bytes, stream,
						 arguments...);
}

/*
 * Returns how many blocks of `threads` threads n items need, one thread for
 * each item.
 */
static inline int
gv_blocks_for(int64_t n, int threads)
{
	return (int) ((n + threads - 1) / threads);
}

/* -- memory */

/* Memory of n elements on the device. */
template <typename T>
static inline cudaError_t
gv_device_alloc(T **memory, int64_t n)
{
	return cudaMalloc((void **) memory, (size_t) (n > 0 ? n : 1) * sizeof(T));
}

/*
 * These three functions copy n elements to the device, copy n elements from
 * the device, and clear n elements on the device.
 */
template <typename T>
static inline cudaError_t
gv_upload(T *d_to, const T *from, int64_t n, cudaStream_t stream)
{
	return cudaMemcpyAsync(d_to, from, (size_t) n * sizeof(T),
						   cudaMemcpyHostToDevice, stream);
}

template <typename T>
static inline cudaError_t
gv_download(T *to, const T *d_from, int64_t n, cudaStream_t stream)
{
	return cudaMemcpyAsync(to, d_from, (size_t) n * sizeof(T),
						   cudaMemcpyDeviceToHost, stream);
}

template <typename T>
static inline cudaError_t
gv_clear(T *d_memory, int64_t n, cudaStream_t stream)
{
	return cudaMemsetAsync((void *) d_memory, 0, (size_t) n * sizeof(T),
						   stream);
}

/*
 * A buffer of device memory or pinned host memory, which grows as needed and
 * is kept for later calls.
 */
struct GvBuffer
{
	void	   *memory;
	size_t		bytes;
	bool		pinned;			/* host memory that the device can reach */
};

/*
 * Makes sure that a buffer has at least `bytes` bytes.  A buffer that grows
 * loses its contents.
 */
extern GvStatus gv_buffer_need(GvBuffer *buffer, size_t bytes);
extern void gv_buffer_free(GvBuffer *buffer);

/*
 * Advances *next by `bytes`, rounded up to a multiple of 256.  Returns the old
 * *next.
 */
static inline size_t
gv_carve(size_t *next, size_t bytes)
{
	size_t		start = *next;

	*next += (bytes + 255) / 256 * 256;
	return start;
}

/*
 * Places an array of n elements at offset *bytes of `memory`: sets *array to
 * its address, and advances *bytes past it.  If memory is NULL, only *bytes
 * advances.
 */
template <typename T>
static inline void
gv_place(T **array, char *memory, size_t *bytes, int64_t n)
{
	size_t		at = gv_carve(bytes, (size_t) n * sizeof(T));

	*array = memory == NULL ? NULL : (T *) (memory + at);
}

/*
 * Allocates an object whose bytes are 0, and calls fill(object) to initialize
 * it.  If fill fails, drop(object) frees the object and everything that fill
 * allocated until then.
 */
template <typename T, typename Fill, typename Drop>
static inline GvStatus
gv_make(T **made, const Fill &fill, const Drop &drop)
{
	T		   *object = (T *) calloc(1, sizeof(T));
	GvStatus	status;

	if (object == NULL)
		return GV_NO_MEMORY;
	status = fill(object);
	if (status != GV_OK)
	{
		drop(object);
		return status;
	}
	*made = object;
	return GV_OK;
}

/* -- devices, by their number among those that were opened */

extern GvStatus gv_gpu_open(const char *devices, GvDevice *found,
							int32_t *nfound);
extern void gv_gpu_rejection(char *text, size_t size);

/* Chooses the device to which this thread's CUDA calls go from here on. */
extern GvStatus gv_choose_device(int32_t device);

/* Returns how many bytes of shared memory a block may have. */
extern size_t gv_most_shared(int32_t device);

/*
 * Returns whether the device runs code that is for compute capability 9.0
 * alone.
 */
extern "C" bool gv_has_hopper(int32_t device);

/*
 * The first returns the number of SMs of the chosen device; the second creates
 * a stream on it with the lowest priority, so that searches run first.
 */
extern GvStatus gv_gpu_nsms(int *nsms);
extern GvStatus gv_gpu_low_stream(cudaStream_t *stream);

/*
 * Returns the bytes of work memory that one sub-batch of searches may have on
 * the chosen device, which has `total` bytes of memory.
 */
extern int64_t gv_gpu_stream_bytes(size_t total);

/* -- grouping: numbers in the order of their keys */

struct GvGroup
{
	int64_t		n;				/* below 2^31 */
	uint32_t	nkeys;
	const uint32_t *d_keys;		/* [n] below nkeys */
	const uint32_t *d_numbers;	/* [n] */
	uint32_t   *d_sorted;		/* [n] the keys, ascending */
	uint32_t   *d_order;		/* [n] d_numbers in the order of d_sorted;
								 * numbers with equal keys keep their order */
	uint32_t   *d_starts;		/* [nkeys + 1] where each key begins in both */
	void	   *d_memory;		/* gv_gpu_group_bytes */
	size_t		bytes;
};

/*
 * Returns an upper bound of the temporary bytes that CUB's radix sort of n
 * items needs besides its input and output: another copy of the items, and 1
 * KB for each tile of 2,048 or more items.  CUB can compute the exact number,
 * but only while a device is chosen.
 */
static inline int64_t
gv_sort_most_bytes(int64_t n, int64_t item_bytes)
{
	return n * item_bytes + n / 2 + (1 << 20);
}

/*
 * The first returns the bytes of d_memory that grouping n numbers needs; the
 * second groups the numbers by a stable sort.
 */
extern GvStatus gv_gpu_group_bytes(int64_t n, size_t *bytes);
extern GvStatus gv_gpu_group(const GvGroup *group, cudaStream_t stream);

/* -- sets: a table of functions for each kind of work (see gv_cuda_sets) */

extern "C" const GvSetOps gv_gpu_exact_set;
extern "C" const GvSetOps gv_gpu_kmeans_set;
extern "C" const GvSetOps gv_gpu_select_set;
extern "C" const GvSetOps gv_gpu_quantiles_set;

static inline bool
gv_is_stopped(const GvStop *stop)
{
	return stop != NULL && stop->requested(stop->arg);
}

#endif							/* GV_DEVICE_H */
