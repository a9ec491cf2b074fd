/*
 * cuda_runtime.h
 *		Stands in for CUDA's header of that name, so that gpu/ can be compiled
 *		by g++ and its kernels run on the host, one block after the other.
 *
 * Only what gpu/ uses.  Device memory is host memory, and every thread of a
 * block is a fiber (emulate.cpp) that runs until it has to wait for others.
 * Streams do their work as late as they may, when somebody waits for one of
 * them or asks: of all that can go on, which comes next is random, from
 * GPUVEC_EMULATED_SEED.  So host code, indexing, synchronization of threads
 * and streams and the order of arithmetic are checked without a device, by the
 * sanitizers too; races within a warp and speed are not.  There are two
 * devices: memory and streams belong to the one that was chosen when they were
 * made, and the program aborts when work for one is given another's, or begins
 * while another is chosen.
 *
 * Tests of other programs, gpuvecd say, can cause faults: the file that
 * GPUVEC_EMULATED_FAULTS names is read whenever it matters, so it may come,
 * change and go while they run.  Lines of it:
 *		hang DEVICE			no stream of it does another step: one that was
 *							told something is never done, and a thread that
 *							waits for it, or frees memory there, never
 *							returns (until the line is gone)
 *		lost DEVICE ERROR	it cannot be chosen or asked: a cudaError_t, 46
 *							(busy) where there is none; 214: memory errors
 * and, within a program, gv_emulated_hung has a bit for each device that
 * hangs.
 *
 * Devices are of compute capability gv_emulated_capability
 * (GPUVEC_EMULATED_CARD; 90, as they say 9.0), and code is compiled for
 * gv_emulated_code (GPUVEC_EMULATED_CODE; the device's): below 90 it neither
 * lets other grids begin early nor waits for them, on whatever device.
 *
 * Here is what kernels use, and the fibers and streams; calls of the host are
 * in cuda_runtime_api.h.
 */
#ifndef CUDA_RUNTIME_H
#define CUDA_RUNTIME_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __constant__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
/*
 * Blocks run one at a time, so what they share may be static; it is put aside
 * while another one begins early.
 */
#if defined(__SANITIZE_ADDRESS__)
#define __shared__ static
#else
#define __shared__ static __attribute__((section("gv_shared")))
#endif

struct dim3
{
	unsigned	x, y, z;

	dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)
		: x(x_), y(y_), z(z_) {}
};

struct alignas(16) uint4
{
	unsigned	x, y, z, w;
};

static inline uint4
make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
	return {x, y, z, w};
}

struct alignas(16) float4
{
	float		x, y, z, w;
};

struct alignas(8) float2
{
	float		x, y;
};

static inline float4
make_float4(float x, float y, float z, float w)
{
	return {x, y, z, w};
}

static inline float2 make_float2(float x, float y) { return {x, y}; }

using std::min;
using std::max;

/* -- threads: emulate.cpp */

/* A kernel with its arguments, and how it was launched. */
struct gv_emulated_kernel
{
	std::function<void()> work; /* of one thread */
	const void *code;
	dim3		grid;
	dim3		threads;
	size_t		shared_bytes;
	bool		early;			/* may begin before the grid before is over */
};

/* The launches of a graph. */
typedef std::vector<std::shared_ptr<gv_emulated_kernel>> *cudaGraph_t;
typedef cudaGraph_t cudaGraphExec_t;

extern dim3 threadIdx;			/* of the fiber that runs */
extern dim3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

#define GV_EMULATED_DEVICES	4

/* The device that a thread has chosen. */
extern __thread int gv_emulated_device;

/* The driver's start in a program that has not used it before. */
extern void gv_emulated_start_driver();

/* See above. */
enum cudaError_t : int;
extern int	gv_emulated_capability;
extern int	gv_emulated_code;

/* Bit i: device i hangs. */
extern unsigned gv_emulated_hung;

/* How often an event was recorded, and how often streams have come to that. */
struct gv_emulated_event
{
	int64_t		recorded;
	std::shared_ptr<int64_t> passed;
};

/* A step of a stream, once an event, if any, has passed `needed` times. */
struct gv_emulated_step
{
	std::function<void()> work;
	std::shared_ptr<int64_t> passed;
	int64_t		needed;
	std::shared_ptr<gv_emulated_kernel> kernel = {};	/* or that, instead */
};

struct gv_emulated_grid;

struct gv_emulated_stream
{
	int			device;
	bool		records;		/* events, now and then */
	int64_t		unrecorded;		/* work since the last one, then */
	cudaGraph_t capture;		/* NULL: launches become steps */
	std::deque<gv_emulated_step> steps;
	std::deque<std::shared_ptr<gv_emulated_grid>> grids;	/* begun */
};

/* Work of all streams that no event tells of, though others do. */
extern int64_t gv_emulated_unrecorded;

typedef struct gv_emulated_stream *cudaStream_t;
typedef struct gv_emulated_event *cudaEvent_t;

#define GV_EMULATED_HOST	(-1)	/* pinned memory is no device's */

/* Memory of a device, or pinned, comes and goes. */
extern void gv_emulated_take(void *memory, size_t bytes, int device);
extern void gv_emulated_give(void *memory);
extern bool gv_emulated_pinned(const void *memory);

/* Streams come, are told, do all they were told or some of it, and go. */
extern cudaStream_t gv_emulated_begin();
extern void gv_emulated_tell(cudaStream_t stream,
							 const gv_emulated_step &step);
extern void gv_emulated_catch_up(cudaStream_t stream);
extern bool gv_emulated_catches_up(cudaStream_t stream);
extern void gv_emulated_catch_up_device();
extern void gv_emulated_end(cudaStream_t stream);

/* Work for a stream: is it of the device that is chosen?  Abort if not. */
extern void gv_emulated_check_stream(cudaStream_t stream);

/* The same for a pointer to another device's memory among these words. */
extern void gv_emulated_check_words(const void *words, size_t bytes);

#define GV_EMULATED_UNASKED	(47 * 1024) /* 48, less what kernels declare */

/* Shared memory that a kernel may have on the chosen device. */
extern void gv_emulated_allow(const void *kernel, size_t shared_bytes);

/* The result of a graph's launch, and of a kernel's. */
extern cudaError_t gv_emulated_check_kernel(const gv_emulated_kernel &kernel);
extern cudaError_t gv_emulated_launch(cudaStream_t stream,
									  std::shared_ptr<gv_emulated_kernel> launch);

/* Calls of threads of kernels that may be launched early. */
extern void gv_emulated_let_next_begin();
extern void gv_emulated_wait_for_grids();

/* Wait until other threads of the block have said so. */
extern void gv_emulated_wait_until(const std::function<bool()> &said);

/* That a launch was refused is an error, to whom asks for the last one. */
extern cudaError_t gv_emulated_fail(cudaError_t error);

/* A launch, which a stream that is captured only keeps. */
template <typename Kernel, typename... Arguments>
static inline cudaError_t
gv_emulate_launch(bool early, dim3 grid, dim3 threads, size_t shared_bytes,
				  cudaStream_t stream, Kernel kernel, Arguments... arguments)
{
	std::shared_ptr<gv_emulated_kernel> launch =
		std::make_shared<gv_emulated_kernel>(gv_emulated_kernel
											 {[=] { kernel(arguments...); },
											 (const void *) kernel, grid,
											 threads, shared_bytes, early});

	gv_emulated_check_stream(stream);
	(gv_emulated_check_words(&arguments, sizeof(arguments)), ...);
	return gv_emulated_launch(stream, launch);
}

extern uint4 *gv_emulated_shared();
extern uint64_t gv_emulated_exchange(uint64_t value, int lane);
extern void gv_emulated_share(uint64_t value, uint64_t values[32]);
extern void __syncthreads();

template <typename T>
static inline T
gv_from_lane(T value, int lane)
{
	uint64_t	bits = 0;

	static_assert(sizeof(T) <= sizeof(bits), "shuffles take 8 bytes");
	memcpy(&bits, &value, sizeof(T));
	bits = gv_emulated_exchange(bits, lane);
	memcpy(&value, &bits, sizeof(T));
	return value;
}

template <typename T> static inline T __ldg(const T *at) { return *at; }
template <typename T> static inline T __ldcs(const T *at) { return *at; }
template <typename T> static inline T __ldcg(const T *at) { return *at; }

template <typename T>
static inline T
__shfl_sync(unsigned mask, T value, int source, int width = 32)
{
	return gv_from_lane(value, (int) threadIdx.x % 32 / width * width + source % width);
}

template <typename T>
static inline T
__shfl_xor_sync(unsigned mask, T value, int lanes)
{
	return gv_from_lane(value, (int) threadIdx.x % 32 ^ lanes);
}

template <typename T>
static inline T
__shfl_up_sync(unsigned mask, T value, unsigned delta)
{
	int			lane = threadIdx.x % 32;

	return gv_from_lane(value, lane >= (int) delta ? lane - (int) delta : lane);
}

template <typename T>
static inline T
__shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
	int			lane = threadIdx.x % 32;
	bool		inside = lane % width + (int) delta < width;

	return gv_from_lane(value, inside ? lane + (int) delta : lane);
}

static inline unsigned
__ballot_sync(unsigned mask, bool value)
{
	uint64_t	values[32];
	unsigned	lanes = 0;

	gv_emulated_share(value, values);
	for (int i = 0; i < 32; i++)
		lanes |= (unsigned) (values[i] != 0) << i;
	return lanes;
}

static inline void
__syncwarp()
{
	uint64_t	values[32];

	gv_emulated_share(false, values);
}

static inline bool
__any_sync(unsigned mask, bool value)
{
	return __ballot_sync(mask, value) != 0;
}

/* what one thread has done the others see at once */
static inline void __threadfence() {}

static inline unsigned
__reduce_add_sync(unsigned mask, unsigned value)
{
	uint64_t	values[32];
	unsigned	sum = 0;

	gv_emulated_share(value, values);
	for (int i = 0; i < 32; i++)
		sum += (unsigned) values[i];
	return sum;
}

static inline unsigned
__reduce_max_sync(unsigned mask, unsigned value)
{
	uint64_t	values[32];

	gv_emulated_share(value, values);
	return (unsigned) *std::max_element(values, values + 32);
}

static inline int __popc(unsigned value) { return __builtin_popcount(value); }

static inline int
__clz(int value)
{
	return value == 0 ? 32 : __builtin_clz((unsigned) value);
}

static inline int
__clzll(long long value)
{
	return value == 0 ? 64 : __builtin_clzll((unsigned long long) value);
}

static inline int __ffs(unsigned value) { return __builtin_ffs((int) value); }

template <typename T>
static inline T
atomicAdd(T *address, T value)
{
	T			old = *address;

	*address = old + value;
	return old;
}

template <typename T>
static inline T
atomicMax(T *address, T value)
{
	T			old = *address;

	*address = std::max(old, value);
	return old;
}

/* Bytes of y (4 to 7) and x (0 to 3), one by each digit of the selector. */
static inline unsigned
__byte_perm(unsigned x, unsigned y, unsigned selector)
{
	uint64_t	bytes = (uint64_t) y << 32 | x;
	unsigned	result = 0;

	for (int i = 0; i < 4; i++)
		result |= (unsigned) (bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) <<
			8 * i;
	return result;
}

template <typename T>
static inline T
atomicMin(T *address, T value)
{
	T			old = *address;

	*address = std::min(old, value);
	return old;
}

/* -- arithmetic, rounded to nearest at every step (-ffp-contract=off) */

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }

static inline unsigned
__float_as_uint(float value)
{
	unsigned	bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float
__uint_as_float(unsigned bits)
{
	float		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline long long
__double_as_longlong(double value)
{
	long long	bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline double
__longlong_as_double(long long bits)
{
	double		value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline int
__float_as_int(float value)
{
	return (int) __float_as_uint(value);
}

static inline float
__int_as_float(int bits)
{
	return __uint_as_float((unsigned) bits);
}

#include "cuda_runtime_api.h"

#endif							/* CUDA_RUNTIME_H */
