/*
 * cuda_runtime_api.h
 *		Stands in for CUDA's header of that name: what the host calls, memory,
 *		streams, events and graphs.
 *
 * The last part of cuda_runtime.h, which is to be included instead.
 */
#ifndef CUDA_RUNTIME_API_H
#define CUDA_RUNTIME_API_H

#include <unistd.h>

#define CUDART_VERSION	13000

enum cudaError_t : int
{
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorInvalidConfiguration = 9,
	cudaErrorInsufficientDriver = 35,
	cudaErrorDevicesUnavailable = 46,
	cudaErrorInvalidDevice = 101,
	cudaErrorECCUncorrectable = 214,
	cudaErrorNotReady = 600,
	cudaErrorLaunchOutOfResources = 701,
	cudaErrorCooperativeLaunchTooLarge = 720,
	cudaErrorNotSupported = 801,
	cudaErrorStreamCaptureUnsupported = 900,
	cudaErrorStreamCaptureWrongThread = 908
};

enum cudaMemcpyKind
{
	cudaMemcpyHostToDevice,
	cudaMemcpyDeviceToHost,
	cudaMemcpyDeviceToDevice,
	cudaMemcpyDefault
};

struct cudaDeviceProp
{
	char		name[256];
	size_t		sharedMemPerBlockOptin;
};

#define cudaStreamNonBlocking	1
#define cudaStreamCaptureModeThreadLocal	1
#define cudaEventDisableTiming	2
#define cudaDevAttrMultiProcessorCount	16
#define cudaDevAttrComputeCapabilityMajor	75
#define cudaFuncAttributeMaxDynamicSharedMemorySize	8

/* A call that does this, and succeeds. */
#define GV_SUCCEEDS(name, arguments, ...) \
	static inline cudaError_t name arguments { __VA_ARGS__; return cudaSuccess; }

/* A device's fault, if it has one: see cuda_runtime.h. */
extern cudaError_t gv_emulated_device_error(int device);

/* The n-th allocation, or launch, from now on fails; 0: none. */
extern int64_t gv_emulated_fault;
extern int64_t gv_emulated_refusal;
extern size_t gv_emulated_memory;

/* The most shared memory that a block may have. */
static inline size_t
gv_emulated_most_shared()
{
	return (gv_emulated_capability >= 90 ? 227 : 99) * 1024;
}

static inline cudaError_t
cudaMallocHost(void **memory, size_t bytes)
{
	*memory = NULL;
	if (gv_emulated_fault > 0 && --gv_emulated_fault == 0)
		return cudaErrorMemoryAllocation;
	/* cudaMalloc aligns to 256 bytes */
	*memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
	if (*memory == NULL)
		return cudaErrorMemoryAllocation;
	memset(*memory, 0xA5, bytes);
	gv_emulated_take(*memory, bytes, GV_EMULATED_HOST);
	return cudaSuccess;
}

static inline cudaError_t
cudaMalloc(void **memory, size_t bytes)
{
	cudaError_t error = cudaMallocHost(memory, bytes);

	if (error == cudaSuccess)
		gv_emulated_take(*memory, bytes, gv_emulated_device);
	return error;
}

GV_SUCCEEDS(cudaFreeHost, (void *memory),
			gv_emulated_give(memory); free(memory))

static inline cudaError_t
cudaFree(void *memory)
{
	if (memory != NULL)
		gv_emulated_catch_up_device();
	return cudaFreeHost(memory);
}

/* Of memory that is not pinned the call returns when that is free again. */
static inline cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
				cudaStream_t stream)
{
	const void *ends[] = {to, from};
	std::vector<char> kept;

	gv_emulated_check_stream(stream);
	gv_emulated_check_words(ends, sizeof(ends));
	/* cudaMemcpyDefault: nobody here has it bring what is on the device */
	if ((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDefault) &&
		!gv_emulated_pinned(from))
	{
		kept.assign((const char *) from, (const char *) from + bytes);
		gv_emulated_tell(stream, {[=] { memcpy(to, kept.data(), bytes); },
						 NULL, 0});
		return cudaSuccess;
	}
	gv_emulated_tell(stream, {[=] { memcpy(to, from, bytes); }, NULL, 0});
	if (kind == cudaMemcpyDeviceToHost && !gv_emulated_pinned(to))
		gv_emulated_catch_up(stream);
	return cudaSuccess;
}

static inline cudaError_t
cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
	gv_emulated_check_stream(stream);
	gv_emulated_check_words(&memory, sizeof(memory));
	gv_emulated_tell(stream, {[=] { memset(memory, value, bytes); }, NULL, 0});
	return cudaSuccess;
}

GV_SUCCEEDS(cudaMemGetInfo, (size_t *nfree, size_t *total),
			*nfree = *total = gv_emulated_memory)
GV_SUCCEEDS(cudaGetDeviceCount, (int *count), *count = GV_EMULATED_DEVICES)
GV_SUCCEEDS(cudaDriverGetVersion, (int *version), *version = 13000)
GV_SUCCEEDS(cudaRuntimeGetVersion, (int *version), *version = 13000)

static inline cudaError_t
cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
	strcpy(properties->name, "emulated card");
	properties->sharedMemPerBlockOptin = gv_emulated_most_shared();
	return gv_emulated_device_error(device);
}

GV_SUCCEEDS(cudaDeviceGetAttribute, (int *value, int attribute, int device),
			*value = attribute == cudaDevAttrComputeCapabilityMajor ?
			gv_emulated_capability / 10 : 3)

template <typename T>
static inline cudaError_t
cudaFuncSetAttribute(T *function, int attribute, int value)
{
	if ((size_t) value > gv_emulated_most_shared())
		return cudaErrorInvalidValue;
	gv_emulated_allow((const void *) function, (size_t) value);
	usleep(20);					/* others have time to do the same */
	return cudaSuccess;
}

struct cudaFuncAttributes
{
	int			ptxVersion;
};

template <typename T>
GV_SUCCEEDS(cudaFuncGetAttributes,
			(cudaFuncAttributes *attributes, T *function),
			attributes->ptxVersion = gv_emulated_code)

static inline const char *
cudaGetErrorString(cudaError_t error)
{
	return error == cudaSuccess ? "no error" : "error";
}

static inline cudaError_t
cudaSetDevice(int device)
{
	cudaError_t error = gv_emulated_device_error(device);

	gv_emulated_start_driver();
	if (error == cudaSuccess)
		gv_emulated_device = device;
	return error;
}

GV_SUCCEEDS(cudaGetDevice, (int *device), *device = gv_emulated_device)
GV_SUCCEEDS(cudaDeviceReset, (), (void) 0)
GV_SUCCEEDS(cudaStreamSynchronize, (cudaStream_t stream),
			gv_emulated_catch_up(stream))
GV_SUCCEEDS(cudaStreamDestroy, (cudaStream_t stream), gv_emulated_end(stream))
GV_SUCCEEDS(cudaEventDestroy, (cudaEvent_t event), delete event)
GV_SUCCEEDS(cudaStreamWaitEvent,
			(cudaStream_t stream, cudaEvent_t event, int flags),
			gv_emulated_tell(stream, {[] {}, event->passed, event->recorded}))

/* The last error; that a stream is busy is one, too. */
extern __thread cudaError_t gv_emulated_error;

static inline cudaError_t
cudaGetLastError()
{
	cudaError_t error = gv_emulated_error;

	gv_emulated_error = cudaSuccess;
	return error;
}

static inline cudaError_t
cudaStreamQuery(cudaStream_t stream)
{
	if (gv_emulated_catches_up(stream))
		return cudaSuccess;
	return gv_emulated_fail(cudaErrorNotReady);
}

static inline cudaError_t
cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	std::shared_ptr<int64_t> passed = event->passed;
	int64_t		time = ++event->recorded;

	gv_emulated_unrecorded -= stream->unrecorded;
	stream->unrecorded = 0;
	stream->records = true;
	gv_emulated_tell(stream, {[=] { *passed = time; }, NULL, 0});
	return cudaSuccess;
}

GV_SUCCEEDS(cudaStreamBeginCapture, (cudaStream_t stream, int mode),
			gv_emulated_check_stream(stream);
			stream->capture =
			new std::vector<std::shared_ptr<gv_emulated_kernel>>)
GV_SUCCEEDS(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t *graph),
			*graph = stream->capture; stream->capture = NULL)
GV_SUCCEEDS(cudaGraphInstantiate,
			(cudaGraphExec_t *made, cudaGraph_t graph, unsigned flags),
			*made = new std::vector<std::shared_ptr<gv_emulated_kernel>>(*graph))

static inline cudaError_t
cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
	gv_emulated_check_stream(stream);
	for (const std::shared_ptr<gv_emulated_kernel> &kernel : *graph)
	{
		cudaError_t error = gv_emulated_check_kernel(*kernel);

		if (error != cudaSuccess)
			return gv_emulated_fail(error);
	}
	for (const std::shared_ptr<gv_emulated_kernel> &kernel : *graph)
		gv_emulated_tell(stream, {[] {}, NULL, 0, kernel});
	return cudaSuccess;
}

GV_SUCCEEDS(cudaGraphDestroy, (cudaGraph_t graph), delete graph)

static inline cudaError_t
cudaGraphExecDestroy(cudaGraphExec_t graph)
{
	return cudaGraphDestroy(graph);
}

GV_SUCCEEDS(cudaStreamCreateWithFlags, (cudaStream_t *stream, int flags),
			*stream = gv_emulated_begin())

static inline cudaError_t
cudaStreamCreateWithPriority(cudaStream_t *stream, int flags, int priority)
{
	return cudaStreamCreateWithFlags(stream, flags);
}

GV_SUCCEEDS(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest),
			*least = 0; *greatest = -1)
GV_SUCCEEDS(cudaEventCreateWithFlags, (cudaEvent_t *event, int flags),
			*event = new gv_emulated_event {0, std::make_shared<int64_t>(0)})

#endif							/* CUDA_RUNTIME_API_H */
