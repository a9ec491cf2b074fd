/*
 * scan.cu
 *		The score S of every live posting of the probed lists.
 *
 * The unit of work is a block of 32 postings, one to a lane, so short lists
 * cost no more than long ones: the blocks of all probes of a query are
 * numbered through and dealt to warps.  S is computed as it is defined: fp32
 * table, fp32 sum in the order of the sub-quantizers, no contraction.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/index/gv_index.h"
#include "gpu/index/scan.cuh"

#define GROUP			8		/* chunks of codes on their way at once */
#define MOST_RESIDENT	1024	/* threads of an SM, for 64 registers each */
#define FEW_QUERIES		4		/* up to here, thread blocks are small */

/*
 * Block (x, y): query y, its blocks x, x + gridDim.x, ... by warps.  Of queries
 * that were scanned list by list only those of d_whole have anything to do; the
 * first block counts their scores.
 * Shared: table [chunks * 32][16] floats.
 */
template <int THREADS>
static __global__ void
__launch_bounds__(THREADS, MOST_RESIDENT / THREADS)
scan_kernel(GvDeviceModel model, GvBatch batch)
{
	constexpr int warps = THREADS / GV_WARP;
	GV_SHARED(table);
	__shared__ GvKept kept;
	int			query = blockIdx.y;
	int			lane = threadIdx.x % GV_WARP;
	int64_t		first_posting = (int64_t) query * batch.postings;
	GvProbes	probes;
	uint32_t	nblocks;

	if (batch.d_whole != NULL && !batch.d_whole[query])
		return;
	nblocks = gv_scan_begins<THREADS>(model, batch, query, blockIdx.x * warps,
									  table, &kept, probes);
	if (batch.d_whole != NULL && blockIdx.x == 0 && threadIdx.x == 0)
		batch.d_kept[query] = nblocks * GV_BLOCK;
	for (uint32_t b = blockIdx.x * warps + threadIdx.x / GV_WARP; b < nblocks;
		 b += gridDim.x * warps)
	{
		int			probe = probes.find(kept, b);
		float		base;
		const uint8_t *block = probes.block_of(kept, b, probe,
											   model.shape.block_bytes, &base);
		float		t = __ldcs((const float *) (block + model.shape.t) + lane);
		uint32_t	live = *(const uint32_t *) (block + model.shape.live);
		uint32_t	high = __ldcs((const uint32_t *) (block + model.shape.high) +
								  lane);
		uint32_t	low = __ldcs((const uint16_t *) (block + model.shape.low) +
								 lane);
		float		sum = gv_add_codes<GROUP>((const uint4 *) block + lane,
											  model.shape.chunks,
											  (const char *) table);

		gv_store_posting(batch, first_posting + (int64_t) b * GV_WARP + lane,
						 live,
					__fadd_rn(__fadd_rn(base, t), sum), high, low, probe);
	}
}

template <int THREADS>
static GvStatus
launch(const GvDeviceModel *model, const GvBatch *batch, GvSearcher *searcher)
{
	int			table_bytes = model->shape.chunks * GV_CHUNK_BYTES;
	dim3		grid = gv_scan_grid<THREADS>(*batch, *searcher, MOST_RESIDENT);

	if (grid.x == 0)
		return GV_OK;
	return gv_launch_step(scan_kernel<THREADS>, grid, THREADS, table_bytes,
						  searcher->stream, model, batch);
}

/* d_scores [n][postings] of a batch, or of the queries of d_whole. */
GvStatus
gv_gpu_scan(const GvDeviceModel *model, const GvBatch *batch,
			GvSearcher *searcher)
{
	if (batch->tests > 0)
		return gv_gpu_keyscan(model, batch, searcher);
	/* a lone query's blocks are few: they should be on many processors */
	if (batch->n <= FEW_QUERIES)
		return launch<64>(model, batch, searcher);
	return launch<256>(model, batch, searcher);
}
