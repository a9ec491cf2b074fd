/*
 * rescore.cu
 *		S of the postings that a scan by lists has found near, as it is
 *		defined.
 *
 * Their approximate scores give a narrower limit than they were noted by: k of
 * them are within the k-th and the margin, and what is farther from that than
 * the margin is none of the k best.  The others get the scores that a scan
 * gives, where a scan that filters leaves them, so what selects sees no
 * difference.  Queries of whom more were noted than fit, or of whom nothing is
 * known, are left to the scan (GvBatch.d_whole).
 */
#include "gpu/common/bisect.cuh"
#include "gpu/index/gv_listscan.h"
#include "gpu/index/scan.cuh"

#define THREADS			128
#define GROUP			8		/* chunks of codes on their way at once */

/*
 * Query blockIdx.x of a part.
 * Shared: table [chunks * 32][16] floats.
 */
static __global__ void __launch_bounds__(THREADS)
rescore_kernel(GvDeviceModel model, GvBatch batch, GvListScan lists)
{
	GV_SHARED(table);
	__shared__ GvKept kept;
	__shared__ uint32_t places[GV_NEAR_CAPACITY];
	__shared__ uint32_t said[2][GV_WARP];
	__shared__ uint32_t count;
	int			query = blockIdx.x;
	int64_t		first_posting = (int64_t) query * batch.postings;
	const GvNearScore *near = lists.d_near + (int64_t) query *
		GV_NEAR_CAPACITY;
	uint32_t	n = lists.d_counts[query];
	uint32_t	k = batch.d_wanted[query].capacity;
	uint32_t	last = 0xFFFFFFFFu;
	GvTalk		talk = {said, 0};
	GvProbes	probes;

	if (threadIdx.x == 0)
	{
		lists.d_whole[query] = n > GV_NEAR_CAPACITY;
		count = 0;
	}
	if (n > GV_NEAR_CAPACITY)
		return;
	(void) gv_scan_begins<THREADS>(model, batch, query, 0, table, &kept, probes);
	__syncthreads();

	/* 1. those within a narrower limit */
	if (n > k)
		last = gv_ordered(gv_unordered(gv_find_bound([&](uint32_t i)
		{
			return gv_ordered(near[i].score);
		}, n, max(k, 1u), k / 8, talk).key) +
						  2.01f * lists.d_aims[query].margin);
	for (uint32_t some = threadIdx.x / GV_WARP * GV_WARP; some < n;
		 some += THREADS)
	{
		uint32_t	i = some + threadIdx.x % GV_WARP;
		GvNearScore mine = i < n ? near[i] : GvNearScore {0.0f, 0};
		bool		is_near = i < n && gv_ordered(mine.score) <= last;
		uint32_t	at = gv_take_place(__ballot_sync(GV_FULL_WARP, is_near),
										   &count);

		if (is_near)
			places[at] = mine.place;
	}
	__syncthreads();

	/* 2. their scores */
	for (uint32_t i = threadIdx.x; i < count; i += THREADS)
	{
		uint32_t	b = places[i] / GV_WARP;
		int			posting = places[i] % GV_WARP;
		int			probe = probes.one_of(kept, b);
		float		base;
		const uint8_t *block = probes.block_of(kept, b, probe,
											   model.shape.block_bytes, &base);
		float		t = ((const float *) (block + model.shape.t))[posting];
		uint64_t	id = gv_id_in(block, model.shape, posting, probe);
		float		sum = gv_add_codes<GROUP>((const uint4 *) block + posting,
											  model.shape.chunks,
											  (const char *) table);

		batch.d_scores[first_posting + i] =
			gv_device_score(__fadd_rn(__fadd_rn(base, t), sum));
		batch.d_ids[first_posting + i] = id;
	}
	if (threadIdx.x == 0)
		batch.d_kept[query] = count;
}

/* d_scores, d_ids and d_kept of a part, and d_whole. */
GvStatus
gv_gpu_rescore(const GvDeviceModel *model, const GvBatch *batch,
			   const GvListScan *lists, cudaStream_t stream)
{
	return gv_launch_early(false, rescore_kernel, batch->n, THREADS,
						   model->shape.chunks * GV_CHUNK_BYTES, stream,
							*model,
						   *batch, *lists);
}
