/*
 * fewscan.cuh
 *		Products of 16 rows of a warp and a few queries, for fewscan.cu.
 *
 * Tensor cores multiply 16 rows by GV_FEW_COLUMNS x 8 queries (mma.cuh), those
 * that there are not being zeros.  Dimensions may be in any order, as long as
 * rows and queries have the same: of 32 dimensions lane t of a row has
 * eight side by side, 16 bytes, and gives four of them to each of two
 * products, so rows come to registers as they lie in memory.
 */
#ifndef GV_FEWSCAN_CUH
#define GV_FEWSCAN_CUH

#include <stdint.h>

#include "gpu/common/mma.cuh"
#include "gpu/exact/filter/exact.cuh"

#define GV_FEW_ROWS		16		/* of a warp */
#define GV_FEW_TILE		8		/* queries of a product */
#define GV_FEW_COLUMNS	2		/* products side by side */
#define GV_FEW_DEPTH	32		/* dimensions of a lane's load of a row */

/*
 * Halves from a row or query of half_dims to the next in shared memory: no two
 * meet in a bank, and there is memory for a multiple of GV_FEW_DEPTH.
 */
static __host__ __device__ inline int
gv_exact_few_stride(int half_dims)
{
	return (half_dims + 63) / 64 * 64 + 32;
}

/* By all threads of a block: queries [COLUMNS * TILE][stride], shared. */
static __device__ __forceinline__ void
gv_exact_few_queries(uint16_t *queries, const uint16_t *d_queries, int n,
					 int half_dims)
{
	int			stride = gv_exact_few_stride(half_dims);

	for (int i = threadIdx.x; i < GV_FEW_COLUMNS * GV_FEW_TILE * stride;
		 i += blockDim.x)
	{
		int			q = i / stride;
		int			d = i % stride;

		queries[i] = q < n && d < half_dims ? d_queries[q * half_dims + d] : 0;
	}
}

/* Products of two rows' pieces and those of a query of each tile. */
static __device__ __forceinline__ void
gv_exact_few_multiply(float (&sums)[GV_FEW_COLUMNS][4], const uint4 &low,
					  const uint4 &high, const uint16_t *query, int stride)
{
	uint32_t	first[4] = {low.x, high.x, low.y, high.y};
	uint32_t	second[4] = {low.z, high.z, low.w, high.w};

#pragma unroll
	for (int j = 0; j < GV_FEW_COLUMNS; j++)
	{
		uint4		q = *(const uint4 *) (query + j * GV_FEW_TILE * stride);

		gv_mma(sums[j], first, q.x, q.y);
		gv_mma(sums[j], second, q.z, q.w);
	}
}

#endif							/* GV_FEWSCAN_CUH */
