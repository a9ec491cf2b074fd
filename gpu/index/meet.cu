/*
 * meet.cu
 *		Which queries meet a list: counted by aim_kernel, brought together
 *		here.
 *
 * Their order within a list is that in which they come, so it differs from run
 * to run; what becomes of them does not.
 */
#include "gpu/common/bisect.cuh"
#include "gpu/common/common.cuh"
#include "gpu/index/gv_listscan.h"

#define PAIR_THREADS	256

/*
 * A thread a list: d_starts from its number of pairs to where they begin, and
 * its groups.  A warp takes room for its lists' at once, so they lie in no
 * order, on which nothing depends.
 */
static __global__ void __launch_bounds__(PAIR_THREADS)
group_kernel(GvDeviceModel model, GvListScan lists)
{
	uint32_t	list = blockIdx.x * PAIR_THREADS + threadIdx.x;
	uint32_t	n = (int) list < model.nlists ? lists.d_starts[list] : 0;
	uint32_t	ngroups = (n + GV_PAIRS_TOGETHER - 1) / GV_PAIRS_TOGETHER;
	uint32_t	start = gv_upto_lane(n);
	uint32_t	group = gv_upto_lane(ngroups);
	unsigned long long before = 0;

	if (threadIdx.x % GV_WARP == GV_WARP - 1)
		before = atomicAdd(lists.d_totals,
						   (unsigned long long) group << 32 | start);
	before = __shfl_sync(GV_FULL_WARP, before, GV_WARP - 1);
	start += (uint32_t) before - n;
	group += (uint32_t) (before >> 32) - ngroups;
	if ((int) list < model.nlists)
		lists.d_starts[list] = start;
	for (uint32_t i = 0; i < ngroups; i++)
		lists.d_groups[group + i] = {list, start + i * GV_PAIRS_TOGETHER,
			min(n - i * GV_PAIRS_TOGETHER, (uint32_t) GV_PAIRS_TOGETHER), 0};
}

/* Of a part, a thread for a probe of a query. */
static __global__ void __launch_bounds__(PAIR_THREADS)
pair_kernel(GvBatch batch, GvListScan lists)
{
	int			i = blockIdx.x * PAIR_THREADS + threadIdx.x;
	int			query = i / batch.probes;
	int			p = i % batch.probes;
	GvProbe		probe;
	GvAim		aim;

	if (query >= batch.n || p >= batch.d_found[query].nprobed ||
		lists.d_counts[query] > 0)
		return;
	probe = batch.d_probed[i];
	aim = lists.d_aims[query];
	lists.d_pairs[atomicAdd(&lists.d_starts[probe.list], 1u)] =
		{aim.scale, aim.limit - probe.base + aim.margin, probe.base,
		 fabsf(aim.limit) <= aim.most && fabsf(probe.base) <= aim.most ?
		 aim.most : -1.0f, (uint32_t) (lists.first + query),
		 batch.d_starts[(int64_t) query * (batch.probes + 1) + p] * GV_BLOCK,
		 {}};
}

/* Before any are entered: d_starts, d_groups and d_totals. */
GvStatus
gv_gpu_order_pairs(const GvDeviceModel *model, const GvListScan *lists,
			cudaStream_t stream)
{
	return gv_launch_early(false, group_kernel,
						   (model->nlists + PAIR_THREADS - 1) / PAIR_THREADS,
						   PAIR_THREADS, 0, stream, *model, *lists);
}

/* A part's d_pairs. */
GvStatus
gv_gpu_enter(const GvBatch *batch, const GvListScan *lists,
			 cudaStream_t stream)
{
	return gv_launch_early(false, pair_kernel,
						   (batch->n * batch->probes + PAIR_THREADS - 1) /
						   PAIR_THREADS, PAIR_THREADS, 0, stream, *batch,
						   *lists);
}
