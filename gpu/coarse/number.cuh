/*
 * number.cuh
 *		What any choice of lists leaves to the scan: probes, and a numbering of
 *		the blocks in them.
 */
#ifndef GV_NUMBER_CUH
#define GV_NUMBER_CUH

#include <stdint.h>

#include "gpu/common/bisect.cuh"
#include "gpu/common/common.cuh"
#include "gpu/common/gv_batch.h"
#include "gpu/common/warpselect.cuh"

/*
 * A query's k probes, a running sum of their blocks by the first warp, and
 * where these are, so that the scan need not go by way of the lists.
 * at(i) is item i of the nearest, a GvNearestList; list_at(i) the list, a
 * GvDeviceList.
 */
template <typename At, typename ListAt>
static __device__ __forceinline__ void
gv_number_lists(const GvDeviceModel &model, const GvBatch &batch, int query,
				int k, At at, ListAt list_at)
{
	GvProbe    *probed = batch.d_probed + (int64_t) query * batch.probes;
	uint32_t   *starts = batch.d_starts + (int64_t) query * (batch.probes + 1);
	uint32_t	sum = 0;
	int64_t		postings = 0;

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
		GvDeviceList	list = {};
		uint32_t	mine;
		uint32_t	upto;

		if (i < k)
			list = list_at(i);
		if (i < k && batch.d_first != NULL)
			batch.d_first[(int64_t) query * batch.probes + i] = list.d_blocks;
		mine = upto = list.nblocks;
		postings += list.nlive;

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
		postings += __shfl_xor_sync(GV_FULL_WARP, postings, mask);
	if (threadIdx.x == 0)
	{
		starts[k] = sum;
		batch.d_found[query] = {k, 0, postings, sum};
	}
}

/* The same where lists are not there yet. */
template <typename At>
static __device__ __forceinline__ void
gv_number_lists(const GvDeviceModel &model, const GvBatch &batch, int query,
				int k, At at)
{
	gv_number_lists(model, batch, query, k, at, [&](int i)
	{
		return model.d_lists[at(i).list];
	});
}

/* The shared memory of a block that gv_number_many needs. */
struct GvNumbering
{
	uint32_t	nblocks[GV_WARP];	/* of each warp's probes */
	int64_t		postings[GV_WARP];
};

/*
 * The same by all THREADS threads: each has some probes side by side, of
 * GV_MANY_PROBES at a time, so that what is read of their lists is in flight
 * at once.
 */
template <int THREADS, typename At>
static __device__ __forceinline__ void
gv_number_many(const GvDeviceModel &model, const GvBatch &batch, int query,
			   int k,
			   At at, GvNumbering &numbering)
{
	constexpr int each = GV_MANY_PROBES / THREADS;
	GvProbe    *probed = batch.d_probed + (int64_t) query * batch.probes;
	uint32_t   *starts = batch.d_starts + (int64_t) query * (batch.probes + 1);
	int			warp = threadIdx.x / GV_WARP;
	uint32_t	sum = 0;
	int64_t		postings = 0;

	for (int done = 0; done < k; done += GV_MANY_PROBES)
	{
		int			first = done + threadIdx.x * each;
		uint32_t	nblocks[each];
		uint32_t	mine = 0;
		uint32_t	upto;
		uint32_t	before = sum;
		int64_t		live = 0;

#pragma unroll
		for (int e = 0; e < each; e++)
		{
			int			i = first + e;
			GvNearestList	near = i < k ? at(i) : GvNearestList {0, 0};
			GvDeviceList	list = {};

			if (i < k)
			{
				list = model.d_lists[near.list];
				probed[i] = {(int32_t) near.list, gv_unordered(near.key)};
				if (batch.d_first != NULL)
					batch.d_first[(int64_t) query * batch.probes + i] =
						list.d_blocks;
			}
			nblocks[e] = list.nblocks;
			mine += list.nblocks;
			live += list.nlive;
		}
		upto = gv_upto_lane(mine);
#pragma unroll
		for (int mask = GV_WARP / 2; mask > 0; mask /= 2)
			live += __shfl_xor_sync(GV_FULL_WARP, live, mask);
		if (done > 0)
			__syncthreads();
		if (threadIdx.x % GV_WARP == GV_WARP - 1)
		{
			numbering.nblocks[warp] = upto;
			numbering.postings[warp] = live;
		}
		__syncthreads();
		for (int w = 0; w < THREADS / GV_WARP; w++)
		{
			before += w < warp ? numbering.nblocks[w] : 0;
			sum += numbering.nblocks[w];
			postings += numbering.postings[w];
		}
		before += upto - mine;
#pragma unroll
		for (int e = 0; e < each; e++)
		{
			if (first + e < k)
				starts[first + e] = before;
			before += nblocks[e];
		}
	}
	if (threadIdx.x == 0)
	{
		starts[k] = sum;
		batch.d_found[query] = {k, 0, postings, sum};
	}
}

#endif							/* GV_NUMBER_CUH */
