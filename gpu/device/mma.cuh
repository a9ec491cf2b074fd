/*
 * mma.cuh
 *		Matrix products of half-precision tiles on tensor cores, and the loads
 *		that feed them: what every device since sm_80 has.
 *
 * Methods of a warp are called by all its lanes together.  Where g = lane / 4
 * and t = lane % 4, a lane holds of the matrices (PTX, m16n8k16)
 *		A [16][16]	a[0], a[2]: row g, columns 2t, 2t + 1 and 2t + 8, 2t + 9;
 *					a[1], a[3]: row g + 8, the same columns
 *		B [16][8]	b[0], b[1]: column g, rows 2t, 2t + 1 and 2t + 8, 2t + 9
 *		D [16][8]	d[0], d[1]: row g, columns 2t and 2t + 1; d[2], d[3]: row
 *					g + 8
 * The sums are fp32, in an order and with a rounding that the device chooses.
 * Of numbers of 8 bits (m16n8k32) a lane holds fours side by side, a register
 * each: where there are columns or rows 2t, 2t + 1 above, 4t .. 4t + 3, and in
 * the place of 2t + 8, 4t + 16 .. 4t + 19; sums are int32, and exact.
 *
 * Without nvcc (test/unit/gpu) the same is computed from what all lanes hold.
 */
#ifndef GV_MMA_CUH
#define GV_MMA_CUH

#include "gpu/device/warp.cuh"

#ifndef __CUDACC__
#include <emulated_mma.h>
#else

static __device__ __forceinline__ uint32_t
gv_shared_address(const void *shared)
{
	return (uint32_t) __cvta_generic_to_shared(shared);
}

/* D += A B. */
static __device__ __forceinline__ void
gv_mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same of numbers of 8 bits. */
static __device__ __forceinline__ void
gv_mma_bytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The sum of four products of numbers of 8 bits. */
static __device__ __forceinline__ int32_t
gv_dot_bytes(uint32_t a, uint32_t b)
{
	return __dp4a((int) a, (int) b, 0);
}

/*
 * Four matrices of 8 rows of 16 bytes; lanes 8m .. 8m + 7 bring the addresses
 * of the rows of matrix m.  words[m] gets word t of its row g.
 */
static __device__ __forceinline__ void
gv_load_matrices(uint32_t (&words)[4], const void *shared_row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
				 "{%0, %1, %2, %3}, [%4];"
				 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]),
					 "=r"(words[3]) : "r"(gv_shared_address(shared_row)) :
					 "memory");
}

/* 16 bytes on their way to shared memory, or zeros. */
static __device__ __forceinline__ void
gv_copy_async(void *shared, const void *global, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
				 :: "r"(gv_shared_address(shared)), "l"(global),
					 "r"(there ? 16 : 0) : "memory");
}

/* Close a group: the copies that this thread began since the last time. */
static __device__ __forceinline__ void
gv_commit_copies()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait until all but this thread's last LEFT groups are there. */
template <int LEFT>
static __device__ __forceinline__ void
gv_wait_copies()
{
	asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

#endif

#endif							/* GV_MMA_CUH */
