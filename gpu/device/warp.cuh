/*
 * warp.cuh
 *		Device code that kernels of all modules use: launches that overlap,
 *		integer keys that sort as floats do, sums over warps and blocks,
 *		reservation of places in arrays, half copies of vectors and their
 *		errors.
 */
#ifndef GV_WARP_CUH
#define GV_WARP_CUH

#include <cuda_fp16.h>

#include "gpu/device/device.h"

#define GV_INFINITY			__int_as_float(0x7F800000)
#define GV_NAN				__int_as_float(0x7FC00000)
#define GV_L2_LINE			128 /* bytes that come to L2 at once */
#define GV_MOST_HALF		65504.0f

/* -- launches that overlap, see gv_launch_pdl */

/* The next kernel of the stream may begin. */
static __device__ __forceinline__ void
gv_griddep_launch()
{
#ifndef __CUDACC__
	gv_emulated_let_next_begin();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= GV_PDL_ARCH
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until the kernel before this one is over. */
static __device__ __forceinline__ void
gv_griddep_wait()
{
#ifndef __CUDACC__
	gv_emulated_wait_for_grids();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= GV_PDL_ARCH
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/*
 * A kernel that may be launched early calls gv_pdl_wait or
 * gv_pdl_trigger_after_wait first.  Before this call returns, the kernel must
 * not read results of the kernel before it.
 *
 * gv_pdl_trigger_after_wait lets the next kernel begin only after this
 * kernel's own wait.  When the next kernel begins, all kernels before this one
 * are therefore over, and the next kernel may read their results even before
 * its own wait, by gv_read_before_wait.
 */
static __device__ __forceinline__ void
gv_pdl_wait()
{
	gv_griddep_launch();
	gv_griddep_wait();
}

static __device__ __forceinline__ void
gv_pdl_trigger_after_wait()
{
	gv_griddep_wait();
	gv_griddep_launch();
}

/* Reads a value from L2, because the L1 cache may still contain older data. */
template <typename T>
static __device__ __forceinline__ T
gv_read_before_wait(const T *from)
{
	return __ldcg(from);
}

/* Brings a line to L2, for a later step. */
static __device__ __forceinline__ void
gv_bring_line(const void *from)
{
#ifdef __CUDACC__
	asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
#endif
}

/* -- keys */

/*
 * Converts a float to a key.  Keys compare as the floats do; -0 and 0 have
 * equal keys.
 */
static __device__ __forceinline__ uint32_t
gv_ordered(float value)
{
	uint32_t	bits = __float_as_uint(value + 0.0f);

	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ float
gv_unordered(uint32_t key)
{
	return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

/* Returns a score, or GV_SCORE_MAX if the score overflowed or is NaN. */
static __device__ __forceinline__ float
gv_device_score(float value)
{
	return value < GV_SCORE_MAX ? value : GV_SCORE_MAX;
}

/* -- sums and reserved places; all lanes of a warp call these together */

/* Returns, to all lanes, the sum of all lanes' numbers. */
template <typename Sum>
static __device__ __forceinline__ Sum
gv_add_warp(Sum sum)
{
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		sum += __shfl_xor_sync(GV_FULL_WARP, sum, half);
	return sum;
}

/* Returns the sum of the numbers of this lane and of all lower lanes. */
static __device__ __forceinline__ uint32_t
gv_upto_lane(uint32_t mine)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	upto = mine;

#pragma unroll
	for (uint32_t d = 1; d < GV_WARP; d *= 2)
	{
		uint32_t	before = __shfl_up_sync(GV_FULL_WARP, upto, d);

		upto += lane >= d ? before : 0;
	}
	return upto;
}

/*
 * Reserves one place for each lane in mask, and advances *count by their
 * number.  Returns this lane's place; the result is meaningless for a lane
 * that is not in mask.
 */
static __device__ __forceinline__ uint32_t
gv_take_place(uint32_t mask, uint32_t *count)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	at = 0;

	if (lane == 0 && mask != 0)
		at = atomicAdd(count, (uint32_t) __popc(mask));
	return __shfl_sync(GV_FULL_WARP, at,
					   0) + __popc(mask & ((1u << lane) - 1));
}

/*
 * Reserves `mine` consecutive places for each lane, and advances *count, which
 * is in shared memory, by their total.  Returns the first of this lane's
 * places.
 */
static __device__ __forceinline__ uint32_t
gv_reserve(uint32_t mine, uint32_t *count)
{
	uint32_t	upto = gv_upto_lane(mine);
	uint32_t	at = 0;

	if (threadIdx.x % GV_WARP == GV_WARP - 1 && upto > 0)
		at = atomicAdd(count, upto);
	return __shfl_sync(GV_FULL_WARP, at, GV_WARP - 1) + upto - mine;
}

/* Reductions over all threads of a block.  Each reduction has one barrier. */
struct GvBlockReduce
{
	uint32_t	(*slots)[GV_WARP];	/* shared [2], used alternately; one number
									 * for each warp */
	int			phase;

	/*
	 * Stores this warp's number.  Returns the number that warp `lane` stored,
	 * or 0 if there are fewer warps.
	 */
	__device__ __forceinline__ uint32_t
	exchange(uint32_t warps_number)
	{
		uint32_t	lane = threadIdx.x % GV_WARP;

		phase ^= 1;
		if (lane == 0)
			slots[phase][threadIdx.x / GV_WARP] = warps_number;
		__syncthreads();
		return lane < blockDim.x / GV_WARP ? slots[phase][lane] : 0;
	}

	__device__ __forceinline__ uint32_t
	sum(uint32_t mine)
	{
		mine = exchange(__reduce_add_sync(GV_FULL_WARP, mine));
		return __reduce_add_sync(GV_FULL_WARP, mine);
	}

	__device__ __forceinline__ uint32_t
	largest(uint32_t mine)
	{
		mine = exchange(__reduce_max_sync(GV_FULL_WARP, mine));
		return __reduce_max_sync(GV_FULL_WARP, mine);
	}
};

/* -- half copies of vectors; the proofs of all filters use their errors */

/*
 * Convert a float to the bits of the nearest half-precision number, and back.
 */
static __device__ __forceinline__ uint16_t
gv_to_half(float value)
{
	return __half_as_ushort(__float2half_rn(value));
}

static __device__ __forceinline__ float
gv_from_half(uint16_t bits)
{
	return __half2float(__ushort_as_half(bits));
}

/*
 * |v|^2 and |v - v'|^2 of a vector v and its half copy v', as sums over the
 * dimensions that were added so far.
 */
template <typename Sum>
struct GvHalfRounding
{
	Sum			square;
	Sum			error;

	/* Adds a dimension, and returns its half. */
	template <bool FINITE = false>
	__device__ __forceinline__ uint16_t
	round(Sum x)
	{
		float		held = FINITE ?
			fminf(fmaxf((float) x, -GV_MOST_HALF), GV_MOST_HALF) : (float) x;
		uint16_t	half = gv_to_half(held);
		Sum			diff = x - (Sum) gv_from_half(half);

		square += x * x;
		error += diff * diff;
		return half;
	}
};

/*
 * Stores the half copy [half_dims] of a vector; called by a whole warp.  v(d)
 * returns dimension d, or 0 beyond the last one.  If FINITE, numbers beyond
 * the range of half precision become the limits of this range, so that
 * products are finite.  Returns the GvHalfRounding of the whole vector to all
 * lanes.
 */
template <typename Sum, bool FINITE = false, typename Vector>
static __device__ __forceinline__ GvHalfRounding<Sum>
gv_to_half_vector(const Vector &v, int half_dims, uint16_t *half_vector)
{
	constexpr int AHEAD = 32 / (int) sizeof(Sum);	/* loads in flight */
	GvHalfRounding<Sum> rounding = {};

	for (int first = threadIdx.x % GV_WARP; first < half_dims;
		 first += AHEAD * GV_WARP)
	{
		Sum			x[AHEAD];

#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			x[i] = v(first + i * GV_WARP);
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
		{
			uint16_t	half = rounding.template round<FINITE>(x[i]);

			if (first + i * GV_WARP < half_dims)
				half_vector[first + i * GV_WARP] = half;
		}
	}
	return {gv_add_warp(rounding.square), gv_add_warp(rounding.error)};
}

#endif							/* GV_WARP_CUH */
