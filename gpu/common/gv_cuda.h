/*
 * gv_cuda.h
 *		What all files of the CUDA engine share: errors, launches, memory and
 *		devices.
 *
 * Host functions return a GvStatus; nothing exits, aborts or prints.  Every
 * CUDA call goes through GV_CUDA_TRY.  Device pointers begin with d_.
 */
#ifndef GV_CUDA_H
#define GV_CUDA_H

#include <cuda_runtime.h>

extern "C"
{
#include "engine/gv_call.h"
#include "engine/gv_test.h"
#include "engine/mirror/gv_mirror.h"
}

/* device.cu: note a call that was rejected, for gv_rejection. */
extern GvStatus gv_note_rejection(const char *what, const char *file,
								  int line);

/*
 * A call's failure.  Two leave the device as it was, and are survivable:
 * memory that is not there, and a call or launch that is rejected for what it
 * asks, which is a fault of ours.  All else is not.
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

/*
 * The same of a step of a change to a mirror that the host has noted already:
 * there is no way back, so even a launch that is rejected is not survivable.
 */
static inline GvStatus
gv_noted_status(cudaError_t error)
{
	return gv_cuda_status(error) == GV_OK ? GV_OK : GV_FAILED;
}

#define GV_CUDA_TRY(call) \
	do { \
		GvStatus	status_ = gv_cuda_status(call); \
		if (status_ != GV_OK) \
			return status_; \
	} while (0)

/*
 * Launches and a block's dynamic shared memory, by name, because the checks
 * compile these files without nvcc, too (test/unit/gpu).  Lines: it begins
 * with one of 128 bytes, for bulk copies of lines.
 */
#ifdef __CUDACC__
#define GV_LAUNCH(kernel, grid, threads, shared_bytes, stream, ...) \
	kernel<<<grid, threads, shared_bytes, stream>>>(__VA_ARGS__)
#define GV_SHARED(name)		extern __shared__ uint4 name[]
#define GV_SHARED_LINES(name)	extern __shared__ __align__(128) uint4 name[]
#else
#define GV_LAUNCH(kernel, grid, threads, shared_bytes, stream, ...) \
	(void) gv_emulate_launch(false, grid, threads, shared_bytes, stream, \
							 kernel, __VA_ARGS__)
#define GV_SHARED(name)		uint4 *name = gv_emulated_shared()
#define GV_SHARED_LINES(name)	GV_SHARED(name)
#endif

#define GV_USUAL_SHARED		(32 * 1024) /* bytes that are there unasked */
#define GV_EARLY_CODE		900 /* __CUDA_ARCH__ from which on kernels wait */

/* launch.cu */

/*
 * Before a launch with more than that: allows a kernel `bytes` bytes of
 * dynamic shared memory on the chosen device from now on.
 */
extern GvStatus gv_allow_shared(const void *kernel, size_t bytes);

/*
 * May kernels that begin with gv_step_begins be launched early?  Not where
 * they run code in which that is empty, made for older devices than the chosen
 * device.
 */
extern GvStatus gv_gpu_overlaps(bool *overlaps);

/*
 * Launch a kernel that begins with gv_step_begins: with overlap, see
 * gv_gpu_overlaps, while the one before it still runs.
 */
template <typename... Parameters, typename... Arguments>
static inline GvStatus
gv_launch_early(bool overlap, void (*kernel) (Parameters...), dim3 grid,
				int threads, size_t shared_bytes, cudaStream_t stream,
				const Arguments &... arguments)
{
	if (shared_bytes > GV_USUAL_SHARED)
	{
		GvStatus	status = gv_allow_shared((const void *) kernel,
											 shared_bytes);

		if (status != GV_OK)
			return status;
	}
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
	config.numAttrs = overlap ? 1 : 0;
	return gv_cuda_status(cudaLaunchKernelEx(&config, kernel, arguments...));
#else
	return gv_cuda_status(gv_emulate_launch(overlap, grid, threads,
											shared_bytes, stream, kernel,
											arguments...));
#endif
}

/* The same for what returns a GvStatus itself. */
#define GV_TRY(call) \
	do { \
		GvStatus	status_ = (call); \
		if (status_ != GV_OK) \
			return status_; \
	} while (0)

/* Device memory that grows and is kept. */
struct GvBuffer
{
	void	   *memory;
	size_t		bytes;
	bool		pinned;			/* host memory that the device can reach */
};

/* Advance *next by bytes, rounded up; returns what it was. */
static inline size_t
gv_carve(size_t *next, size_t bytes)
{
	size_t		start = *next;

	*next += (bytes + 255) / 256 * 256;
	return start;
}

/* Give an array of n its place in memory; without memory it only counts. */
template <typename T>
static inline void
gv_place(T **array, char *memory, size_t *bytes, int64_t n)
{
	size_t		at = gv_carve(bytes, (size_t) n * sizeof(T));

	*array = memory == NULL ? NULL : (T *) (memory + at);
}

/* device.cu */
extern GvStatus gv_gpu_open(const char *devices, GvDevice *found,
							int32_t *nfound);
extern size_t gv_most_shared(int32_t device);
extern "C" bool gv_has_hopper(int32_t device);
extern void gv_gpu_rejection(char *text, size_t size);
extern GvStatus gv_choose_device(int32_t device);
extern GvStatus gv_buffer_need(GvBuffer *buffer, size_t bytes);
extern void gv_buffer_free(GvBuffer *buffer);

/*
 * Bytes that a part of a batch of searches may have on the chosen device,
 * which has `total` bytes.
 */
extern int64_t gv_gpu_stream_bytes(size_t total);

/*
 * hopper.cu: what only devices of compute capability 9.0 have (hopper.cuh).
 * Is the chosen device such, and code for it there?  And can the driver
 * describe arrays for it?
 */
extern bool gv_gpu_hopper_works();
extern "C" bool gv_gpu_hopper_multiplies();

#endif							/* GV_CUDA_H */
