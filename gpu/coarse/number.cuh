/*
 * number.cuh
 *		What any choice of lists leaves to the scan: probes, and a numbering of
 *		the blocks in them.
 */
#ifndef GV_NUMBER_CUH
#define GV_NUMBER_CUH

#include <stdint.h>

#include "gpu/common/common.cuh"
#include "gpu/common/gv_batch.h"
#include "gpu/common/warpselect.cuh"

/*
 * A query's k probes, a running sum of their blocks by the first warp, and
 * where these are, so that the scan need not go by way of the lists.
 * at(i) is item i of the nearest, a GvNearestList.
 */
template <typename At>
static __device__ __forceinline__ void
gv_number_lists(const GvCardModel &card, const GvBatch &batch, int query,
				int k, At at)
{
	GvProbe    *probed = batch.d_probed + (int64_t) query * batch.probes;
	uint32_t   *starts = batch.d_starts + (int64_t) query * (batch.probes + 1);
	uint32_t	sum = 0;
	int64_t		copies = 0;

	for (int i = threadIdx.x; i < k; i += blockDim.x)
	{
		GvNearestList	near = at(i);

		probed[i] = {(int32_t) near.list, gv_unordered(near.key)};
	}
	if (threadIdx.x >= GV_WARP)
		return;
	for (int first = 0; first < k; first += GV_WARP)
	{
		int			i = first + threadIdx.x;
		GvCardList	list = {};
		uint32_t	mine;
		uint32_t	upto;

		if (i < k)
			list = card.d_lists[at(i).list];
		if (i < k && batch.d_first != NULL)
			batch.d_first[(int64_t) query * batch.probes + i] = list.d_blocks;
		mine = upto = list.nblocks;
		copies += list.nlive;

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
#pragma unroll
	for (int mask = GV_WARP / 2; mask > 0; mask /= 2)
		copies += __shfl_xor_sync(GV_FULL_WARP, copies, mask);
	if (threadIdx.x == 0)
	{
		starts[k] = sum;
		batch.d_found[query] = {k, 0, copies, sum};
	}
}

#endif							/* GV_NUMBER_CUH */
