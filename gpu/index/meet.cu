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

#define ORDER_THREADS	(GV_WARP * GV_WARP)
#define PAIR_THREADS	256

/*
 * One block, all lists: d_starts from counts to where the meetings of each
 * begin, and d_groups.  A thread has a list at a time, so that they are read
 * side by side; warps tell each other how many meetings and groups of them
 * they have.
 */
static __global__ void __launch_bounds__(ORDER_THREADS)
order_kernel(GvDeviceModel model, GvListScan lists)
{
	__shared__ uint32_t told[2][2][GV_WARP];
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	uint32_t	start = 0;		/* of all lists before, the same in all
								 * threads */
	uint32_t	at = 0;
	int			turn = 0;
	uint32_t	next = (int) threadIdx.x < model.nlists ?
		lists.d_starts[threadIdx.x] : 0;	/* on its way */

	for (int first = 0; first < model.nlists; first += ORDER_THREADS,
		 turn ^= 1)
	{
		uint32_t	list = first + threadIdx.x;
		uint32_t	n = next;
		uint32_t	groups = (n + GV_PAIRS_TOGETHER - 1) / GV_PAIRS_TOGETHER;
		uint32_t	upto_n = gv_upto_lane(n);
		uint32_t	upto_groups = gv_upto_lane(groups);
		uint32_t	mine;
		uint32_t	to;

		next = (int) list + ORDER_THREADS < model.nlists ?
			lists.d_starts[list + ORDER_THREADS] : 0;
		if (lane == GV_WARP - 1)
		{
			told[turn][0][warp] = upto_n;
			told[turn][1][warp] = upto_groups;
		}
		__syncthreads();
		mine = gv_upto_lane(told[turn][0][lane]);
		to = gv_upto_lane(told[turn][1][lane]);
		upto_n += start + (warp > 0 ?
						   __shfl_sync(GV_FULL_WARP, mine, warp - 1) : 0);
		upto_groups += at + (warp > 0 ?
							 __shfl_sync(GV_FULL_WARP, to, warp - 1) : 0);
		start += __shfl_sync(GV_FULL_WARP, mine, GV_WARP - 1);
		at += __shfl_sync(GV_FULL_WARP, to, GV_WARP - 1);
		if ((int) list < model.nlists)
			lists.d_starts[list] = upto_n - n;
		for (uint32_t i = 0; i < groups; i++)
			lists.d_groups[upto_groups - groups + i] = {list,
				upto_n - n + i * GV_PAIRS_TOGETHER,
				min(n - i * GV_PAIRS_TOGETHER, (uint32_t) GV_PAIRS_TOGETHER),
					0};
	}
	if (threadIdx.x == 0)
		*lists.d_ngroups = at;
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

/* Before any are entered: d_starts, d_groups and d_ngroups. */
GvStatus
gv_gpu_order_pairs(const GvDeviceModel *model, const GvListScan *lists,
			cudaStream_t stream)
{
	return gv_launch_early(false, order_kernel, 1, ORDER_THREADS, 0, stream,
						   *model, *lists);
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
