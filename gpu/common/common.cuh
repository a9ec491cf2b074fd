/*
 * common.cuh
 *		Device code that several kernels use.
 */
#ifndef GV_COMMON_CUH
#define GV_COMMON_CUH

#include <stdint.h>

#include "gpu/common/gv_cuda.h"
#include "gpu/common/warpselect.cuh"

/*
 * Of a grid that was perhaps launched early, see gv_launch_early: the next one
 * may be, too.
 */
static __device__ __forceinline__ void
gv_let_next_begin()
{
#ifndef __CUDACC__
	gv_emulated_let_next_begin();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= GV_EARLY_CODE
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Nothing of the last one's may be touched before this returns. */
static __device__ __forceinline__ void
gv_wait_for_last()
{
#ifndef __CUDACC__
	gv_emulated_wait_for_grids();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= GV_EARLY_CODE
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Both, as steps begin. */
static __device__ __forceinline__ void
gv_step_begins()
{
	gv_let_next_begin();
	gv_wait_for_last();
}

/*
 * The same, but the next step begins only now: so what it reads before it
 * waits (gv_early) may be what steps before this one left, for these are over.
 */
static __device__ __forceinline__ void
gv_step_follows()
{
	gv_wait_for_last();
	gv_let_next_begin();
}

/* Past the L1 cache, which may still have what was there before. */
template <typename T>
static __device__ __forceinline__ T
gv_early(const T *from)
{
	return __ldcg(from);
}

/* A number that ascends as the float does; -0 and 0 are one. */
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

/*
 * The id of a posting: its row id's 48 bits, as in a block, which decide
 * between equal scores, and the probe.
 */
static __device__ __forceinline__ uint64_t
gv_posting_id(uint32_t high, uint32_t low, int probe)
{
	return (uint64_t) high << 32 | low << 16 | (uint32_t) probe;
}

/* The score of an overflow or of NaN is GV_SCORE_MAX. */
static __device__ __forceinline__ float
gv_device_score(float value)
{
	return value < GV_SCORE_MAX ? value : GV_SCORE_MAX;
}

/*
 * By a warp: places behind *count, side by side, for the lanes of a mask; each
 * such lane's own.
 */
static __device__ __forceinline__ uint32_t
gv_take_place(uint32_t mask, uint32_t *count)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	at = 0;

	if (lane == 0 && mask != 0)
		at = atomicAdd(count, (uint32_t) __popc(mask));
	return __shfl_sync(GV_FULL_WARP, at, 0) + __popc(mask & ((1u << lane) - 1));
}

#define GV_L2_LINE			128		/* bytes that come to L2 at once */

/* Have a line come to L2, for a step to come. */
static __device__ __forceinline__ void
gv_bring_line(const void *from)
{
#ifdef __CUDACC__
	asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
#endif
}

/*
 * Which probe does block b of a search belong to?  starts [n + 1] ascends from
 * 0; the last probe that starts at or before b and is not empty.
 */
static __device__ __forceinline__ int
gv_probe_of(const uint32_t *starts, int n, uint32_t b)
{
	int			low = 0;
	int			high = n - 1;

	while (low < high)
	{
		int			middle = (low + high + 1) / 2;

		if (starts[middle] <= b)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

#endif							/* GV_COMMON_CUH */
