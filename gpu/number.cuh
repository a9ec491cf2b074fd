/*
 * number.cuh
 *		What any choice of lists leaves to the scan: probes, and a numbering of
 *		the blocks in them.
 */
#ifndef GV_NUMBER_CUH
#define GV_NUMBER_CUH

#include "select.cuh"
#include "gv_cuda.h"

/*
 * A query's k probes, and a running sum of their blocks by the first warp.
 * at(i) is item i of the nearest, a GvNearList.
 */
template <typename At>
static __device__ __forceinline__ void
gv_number_lists(const GvCardModel &card, const GvBatch &batch, int query,
				int k, At at)
{
	GvProbe    *probed = batch.d_probed + (int64_t) query * batch.probes;
	uint32_t   *starts = batch.d_starts + (int64_t) query * (batch.probes + 1);
	uint32_t	sum = 0;

	for (int i = threadIdx.x; i < k; i += blockDim.x)
	{
		GvNearList	near = at(i);

		probed[i] = {(int32_t) near.list, gv_unordered(near.key)};
	}
	if (threadIdx.x >= GV_WARP)
		return;
	for (int first = 0; first < k; first += GV_WARP)
	{
		int			i = first + threadIdx.x;
		uint32_t	mine = i < k ? card.d_lists[at(i).list].nblocks : 0;
		uint32_t	upto = mine;

#pragma unroll
		for (int d = 1; d < GV_WARP; d *= 2)
		{
			uint32_t	before = __shfl_up_sync(GV_FULL_WARP, upto, d);

			if ((int) threadIdx.x >= d)
				upto += before;
		}
		if (i < k)
			starts[i] = sum + upto - mine;
		sum += __shfl_sync(GV_FULL_WARP, upto, GV_WARP - 1);
	}
	if (threadIdx.x == 0)
	{
		starts[k] = sum;
		batch.d_found[query].nprobed = k;
	}
}

#endif							/* GV_NUMBER_CUH */
