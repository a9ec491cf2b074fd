/*
 * hopper.cuh
 *		What only devices of compute capability 9.0 have, in code for sm_90a:
 *		matrix products of a warpgroup, whose operands stay in shared memory,
 *		and copies of whole boxes to there that one thread asks for.
 *
 * An operand is a matrix of halves [rows][64], a row being 128 bytes, and
 * begins at a multiple of 1,024 bytes: 16-byte piece c of row r stands at
 * c ^ (r % 8) of its row, which is how the copies bring it (swizzle of 128
 * bytes) and the products take it.
 *
 * A barrier counts arrivals and bytes on their way; when both have come its
 * phase ends and the next begins.  Threads wait for the end of a phase by its
 * number's last bit.
 *
 * Source: PTX ISA, sections of wgmma, mbarrier and cp.async.bulk.tensor.
 *
 * Without nvcc (test/unit/gpu) the same is done by plain loops.
 */
#ifndef GV_HOPPER_CUH
#define GV_HOPPER_CUH

#include <stdint.h>

#include "engine/gv_engine.h"
#include "gpu/common/mma.cuh"

/* Is this code for sm_90a, or for emulated threads? */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#define GV_HOPPER			1
#else
#define GV_HOPPER			0
#endif

#define GV_HOPPER_ROW		128 /* bytes of a row: 64 halves */
#define GV_HOPPER_DEPTH		16	/* halves of each row in one product */
#define GV_WARPGROUP		128 /* threads */

#ifdef __CUDACC__
#include <cuda.h>
#else
#include <emulated_hopper.h>
#endif

/*
 * A map of an array of halves [nrows][half_dims] on the device, for copies of
 * boxes of box_rows rows and 64 halves, swizzled as above: hopperring.cuh.
 * Only where gv_gpu_hopper_multiplies.
 */
extern GvStatus gv_gpu_hopper_map(CUtensorMap *map, const uint16_t *array,
								  int64_t nrows, int half_dims, int box_rows);

#ifdef __CUDACC__

/* -- registers: all threads of a warpgroup give some back, or take some */

template <int COUNT>
static __device__ __forceinline__ void
gv_registers_give()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

template <int COUNT>
static __device__ __forceinline__ void
gv_registers_take()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

/* -- barriers, in shared memory */

static __device__ __forceinline__ void
gv_barrier_init(uint64_t *barrier, int arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
				 :: "r"(gv_shared_address(barrier)), "r"(arrivals) : "memory");
}

/* After gv_barrier_init, before the block's threads meet: copies see it. */
static __device__ __forceinline__ void
gv_barriers_ready()
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void
gv_barrier_arrive(uint64_t *barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
				 :: "r"(gv_shared_address(barrier)) : "memory");
}

/* Arrive, and say how many bytes will come in this phase. */
static __device__ __forceinline__ void
gv_barrier_expect(uint64_t *barrier, int bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
				 :: "r"(gv_shared_address(barrier)), "r"(bytes) : "memory");
}

/*
 * Wait for the end of a phase: of an even one where odd is 0, else of an odd
 * one.  Of a new barrier, phase 0 is under way, and one before it was odd.
 */
static __device__ __forceinline__ void
gv_barrier_wait(uint64_t *barrier, int odd)
{
	uint32_t	over;

	do
	{
		asm volatile("{\n"
					 ".reg .pred p;\n"
					 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
					 "selp.u32 %0, 1, 0, p;\n"
					 "}\n"
					 : "=r"(over)
					 : "r"(gv_shared_address(barrier)), "r"(odd) : "memory");
	} while (!over);
}

/*
 * Barriers by number, of which the block's own is 0: wait until nthreads
 * threads have come, or come without waiting.
 */
static __device__ __forceinline__ void
gv_turn_meet(int number, int nthreads)
{
	asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(nthreads) : "memory");
}

static __device__ __forceinline__ void
gv_turn_arrive(int number, int nthreads)
{
	asm volatile("bar.arrive %0, %1;"
				 :: "r"(number), "r"(nthreads) : "memory");
}

/* -- copies */

/*
 * The box of a map that begins at half `d` of row `row`, to shared memory; its
 * bytes count for the barrier.  Halves outside the map are 0, and count.
 */
static __device__ __forceinline__ void
gv_copy_box(void *shared, const CUtensorMap *map, int d, int row,
			uint64_t *barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier"
				 "::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
				 :: "r"(gv_shared_address(shared)), "l"(map), "r"(d), "r"(row),
				 "r"(gv_shared_address(barrier)) : "memory");
}

/* How L2 is to treat what is read once: give it up first. */
static __device__ __forceinline__ uint64_t
gv_read_once()
{
	uint64_t	policy;

	asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	return policy;
}

/*
 * Bytes that lie side by side to shared memory, a multiple of 16 at multiples
 * of 16; they count for the barrier.
 */
static __device__ __forceinline__ void
gv_copy_bytes(void *shared, const void *global, int bytes, uint64_t *barrier,
			  uint64_t policy)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier"
				 "::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
				 :: "r"(gv_shared_address(shared)), "l"(global), "r"(bytes),
				 "r"(gv_shared_address(barrier)), "l"(policy) : "memory");
}

/* Bytes that will be asked for: to L2, even while they are still written. */
static __device__ __forceinline__ void
gv_expect_bytes(const void *global, int bytes)
{
	asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;"
				 :: "l"(global), "r"(bytes) : "memory");
}

/* -- products, by all threads of a warpgroup together */

/*
 * An operand, as products want it described: its address in this block's
 * shared memory, rows by eights 1,024 bytes apart, both in units of 16 bytes,
 * and the swizzle.
 */
static __device__ __forceinline__ uint64_t
gv_operand(const void *shared)
{
	return UINT64_C(1) << 62 | (uint64_t) (8 * GV_HOPPER_ROW / 16) << 32 |
		UINT64_C(1) << 16 | (gv_shared_address(shared) & 0x3FFFF) / 16;
}

/* The same, from the k-th 16 halves of each row on. */
static __device__ __forceinline__ uint64_t
gv_operand_at(uint64_t operand, int k)
{
	return operand + k * (GV_HOPPER_DEPTH * 2 / 16);
}

/* Before the first product of some: what threads did to its sums is done. */
static __device__ __forceinline__ void
gv_products_begin()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Close a group: the products begun since the last time. */
static __device__ __forceinline__ void
gv_products_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Wait until all but the last LEFT groups are over. */
template <int LEFT>
static __device__ __forceinline__ void
gv_products_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}

/* Nothing is done to sums across this point, early or late. */
template <int N>
static __device__ __forceinline__ void
gv_sums_settle(float (&sums)[N][4])
{
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			asm volatile("" : "+f"(sums[j][i]) :: "memory");
}

/*
 * D += A B of A [64][16] and B [16][8 * N], in fp32.  Warp w of the group has
 * rows 16w .. 16w + 15 of D, in N tiles of 8 columns, each as in mma.cuh.
 */
#define SUMS_2(i) \
	"+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), \
	"+f"(d[i + 1][0]), "+f"(d[i + 1][1]), "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
#define SUMS_8(i)	SUMS_2(i), SUMS_2(i + 2), SUMS_2(i + 4), SUMS_2(i + 6)

static __device__ __forceinline__ void
gv_product(float (&d)[12][4], uint64_t a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, "
				 "%8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, "
				 "%24, %25, %26, %27, %28, %29, %30, %31, "
				 "%32, %33, %34, %35, %36, %37, %38, %39, "
				 "%40, %41, %42, %43, %44, %45, %46, %47"
				 "}, %48, %49, 1, 1, 1, 0, 0;"
				 : SUMS_8(0), SUMS_2(8), SUMS_2(10) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void
gv_product(float (&d)[16][4], uint64_t a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, "
				 "%8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, "
				 "%24, %25, %26, %27, %28, %29, %30, %31, "
				 "%32, %33, %34, %35, %36, %37, %38, %39, "
				 "%40, %41, %42, %43, %44, %45, %46, %47, "
				 "%48, %49, %50, %51, %52, %53, %54, %55, "
				 "%56, %57, %58, %59, %60, %61, %62, %63"
				 "}, %64, %65, 1, 1, 1, 0, 0;"
				 : SUMS_8(0), SUMS_8(8) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void
gv_product(float (&d)[20][4], uint64_t a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {"
				 "%0, %1, %2, %3, %4, %5, %6, %7, "
				 "%8, %9, %10, %11, %12, %13, %14, %15, "
				 "%16, %17, %18, %19, %20, %21, %22, %23, "
				 "%24, %25, %26, %27, %28, %29, %30, %31, "
				 "%32, %33, %34, %35, %36, %37, %38, %39, "
				 "%40, %41, %42, %43, %44, %45, %46, %47, "
				 "%48, %49, %50, %51, %52, %53, %54, %55, "
				 "%56, %57, %58, %59, %60, %61, %62, %63, "
				 "%64, %65, %66, %67, %68, %69, %70, %71, "
				 "%72, %73, %74, %75, %76, %77, %78, %79"
				 "}, %80, %81, 1, 1, 1, 0, 0;"
				 : SUMS_8(0), SUMS_8(8), SUMS_2(16), SUMS_2(18)
				 : "l"(a), "l"(b));
}

#undef SUMS_2
#undef SUMS_8

#endif							/* __CUDACC__ */

#endif							/* GV_HOPPER_CUH */
