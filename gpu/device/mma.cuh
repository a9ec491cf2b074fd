/*
 * mma.cuh
 *		Matrix products of half-precision tiles on tensor cores, and the loads
 *		that feed them.  Every device since sm_80 has these instructions.
 *
 * All lanes of a warp call its functions together.  With g = lane / 4 and t =
 * lane % 4, a lane holds these elements of the matrices (PTX, m16n8k16):
 *		A [16][16]	a[0], a[2]: row g, columns 2t, 2t + 1 and 2t + 8, 2t + 9;
 *					a[1], a[3]: row g + 8, the same columns
 *		B [16][8]	b[0], b[1]: column g, rows 2t, 2t + 1 and 2t + 8, 2t + 9
 *		D [16][8]	d[0], d[1]: row g, columns 2t and 2t + 1; d[2], d[3]: row
 *					g + 8
 * The sums are fp32.  The device chooses their order and rounding.  With 8-bit
 * numbers (m16n8k32), a register holds four elements: columns or rows 4t .. 4t
 * + 3 in place of 2t and 2t + 1, and 4t + 16 .. 4t + 19 in place of 2t + 8 and
 * 2t + 9.  The sums of 8-bit numbers are int32, and exact.
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

/* D += A B of 8-bit numbers. */
static __device__ __forceinline__ void
gv_mma_bytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
		"{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
		: "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Returns the sum of four products of 8-bit numbers. */
static __device__ __forceinline__ int32_t
gv_dot_bytes(uint32_t a, uint32_t b)
{
	return __dp4a((int) a, (int) b, 0);
}

/*
 * Loads four matrices of 8 rows of 16 bytes.  Lanes 8m .. 8m + 7 pass the
 * addresses of the rows of matrix m.  words[m] becomes word t of row g of
 * matrix m.
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

/*
 * Begins to copy 16 bytes from global to shared memory.  If `there` is false,
 * stores zeros instead.
 */
static __device__ __forceinline__ void
gv_copy_async(void *shared, const void *global, bool there)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
				 :: "r"(gv_shared_address(shared)), "l"(global),
					 "r"(there ? 16 : 0) : "memory");
}

/*
 * Closes a group of copies: those that this thread began since its last call
 * of this function.
 */
static __device__ __forceinline__ void
gv_commit_copies()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/*
 * Waits until all groups of copies of this thread, except the last LEFT
 * groups, are complete.
 */
template <int LEFT>
static __device__ __forceinline__ void
gv_wait_copies()
{
	asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}

#endif

#endif							/* GV_MMA_CUH */
