/*
 * select.cu
 *		The nearest lists of a query, and the best copies in them, by
 *		WarpSelect (select.cuh).
 *
 * One block of threads a query.  Each warp selects from its share of the
 * scores; the bound of one is a bound for all, through shared memory; then
 * the warps' queues are merged.  What is longer than WarpSelect takes goes to
 * sort.cu.
 */
#include "select.cuh"
#include "gv_cuda.h"

#define MAX_SELECT		2048
#define MAX_PROBES		65536	/* GvNearCopy has 16 bits for the probe */
#define OWN_SHARED		64		/* bytes that the kernels themselves declare */

/*
 * Lower the block's bound to this warp's, and this warp's to the block's.
 * shared_key: an upper bound of the k-th key of all; only keys are shared, so
 * an item with the same key still counts.
 */
template <typename Select>
static __device__ __forceinline__ void
share_bound(Select &select, uint32_t *shared_key)
{
	uint32_t	key = select.bound.key;

	if (threadIdx.x % GV_WARP == 0)
		key = min(key, atomicMin(shared_key, key));
	select.limit_key(__shfl_sync(GV_FULL_WARP, key, 0));
}

/* How many of the first k items of a sorted array are real? */
template <typename Item>
static __device__ __forceinline__ int
count_real(const Item *items, int k)
{
	int			low = 0;
	int			high = k;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (items[middle].key != 0xFFFFFFFFu)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * The nearest lists of query blockIdx.x, in order, and where their blocks
 * start.  Shared: items [warps / 2 or 1][32 NW].
 */
template <int NW, int NT, int WARPS>
static __global__ void __launch_bounds__(WARPS *GV_WARP)
probe_kernel(GvCardModel card, GvBatch batch)
{
	GV_SHARED(memory);
	__shared__ uint32_t bound;
	GvNearList *items = (GvNearList *) memory;
	int			query = blockIdx.x;
	int			k = min(batch.d_wanted[query].probes, card.nlists);
	const float *scores = batch.d_coarse + (int64_t) query * card.nlists;
	GvProbe    *probed = batch.d_probed + (int64_t) query * batch.probes;
	uint32_t   *starts = batch.d_starts + (int64_t) query * (batch.probes + 1);
	GvWarpSelect<GvNearList, NW, NT> select;

	/* 1. every warp its share of the lists */
	if (threadIdx.x == 0)
		bound = 0xFFFFFFFFu;
	__syncthreads();
	select.begin(k);
	for (int first = 0; first < card.nlists; first += WARPS * GV_WARP)
	{
		int			list = first + threadIdx.x;
		GvNearList	item = GvNearList::worst();

		if (list < card.nlists)
			item = {gv_ordered(scores[list]), (uint32_t) list};
		select.offer(item);
		share_bound(select, &bound);
	}
	select.flush();

	/* 2. the warps' together */
	gv_block_merge(select, items);
	if (threadIdx.x < GV_WARP)
		select.store(items);
	__syncthreads();

	/* 3. out, with a running sum of their blocks by the first warp */
	for (int i = threadIdx.x; i < k; i += WARPS * GV_WARP)
		probed[i] = {(int32_t) items[i].list, gv_unordered(items[i].key)};
	if (threadIdx.x < GV_WARP)
	{
		uint32_t	sum = 0;

		for (int first = 0; first < k; first += GV_WARP)
		{
			int			i = first + threadIdx.x;
			uint32_t	mine = i < k ? card.d_lists[items[i].list].nblocks : 0;
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
}

/*
 * The best copies of query blockIdx.x, ascending by (S, row id).
 * Shared: items [warps / 2 or 1][32 NW].
 */
template <int NW, int NT, int WARPS>
static __global__ void __launch_bounds__(WARPS *GV_WARP)
copy_kernel(GvCardModel card, GvBatch batch)
{
	GV_SHARED(memory);
	__shared__ uint32_t bound;
	GvNearCopy *items = (GvNearCopy *) memory;
	int			query = blockIdx.x;
	int			lane = threadIdx.x % GV_WARP;
	int			k = batch.d_wanted[query].capacity;
	int			nprobed = batch.d_found[query].nprobed;
	const GvProbe *probed = batch.d_probed + (int64_t) query * batch.probes;
	const uint32_t *starts = batch.d_starts +
		(int64_t) query * (batch.probes + 1);
	const float *scores = batch.d_scores + (int64_t) query * batch.copies;
	GvHit	   *hits = batch.d_hits + (int64_t) query * batch.capacity;
	uint32_t	nblocks = starts[nprobed];
	GvWarpSelect<GvNearCopy, NW, NT> select;
	int			count;

	/* 1. every warp its share of the blocks; row ids only where they matter */
	if (threadIdx.x == 0)
		bound = 0xFFFFFFFFu;
	__syncthreads();
	select.begin(k);
	for (uint32_t b = threadIdx.x / GV_WARP; b < nblocks; b += WARPS)
	{
		uint32_t	key = gv_ordered(scores[(int64_t) b * GV_WARP + lane]);
		bool		near = key <= select.bound.key &&
			key < gv_ordered(__int_as_float(0x7F800000));
		GvNearCopy	item = GvNearCopy::worst();

		if (__any_sync(GV_FULL_WARP, near))
		{
			int			probe = gv_probe_of(starts, nprobed, b);
			const uint8_t *block = card.d_lists[probed[probe].list].d_blocks +
				(int64_t) (b - starts[probe]) * card.shape.block_bytes;

			if (near)
			{
				item.key = key;
				item.high = ((const uint32_t *) (block + card.shape.high))[lane];
				item.low = (uint32_t)
					((const uint16_t *) (block + card.shape.low))[lane] << 16 |
					probe;
			}
			select.offer(item);
			share_bound(select, &bound);
		}
	}
	select.flush();

	/* 2. the warps' together */
	gv_block_merge(select, items);
	if (threadIdx.x < GV_WARP)
		select.store(items);
	__syncthreads();

	/* 3. out */
	count = count_real(items, k);
	for (int i = threadIdx.x; i < count; i += WARPS * GV_WARP)
	{
		GvHit		hit;

		hit.score = gv_unordered(items[i].key);
		hit.probe = items[i].low & 0xFFFF;
		hit.rowid[0] = items[i].high >> 16;
		hit.rowid[1] = items[i].high & 0xFFFF;
		hit.rowid[2] = items[i].low >> 16;
		hit.unused = 0;
		hits[i] = hit;
	}
	if (threadIdx.x == 0)
		batch.d_found[query].nhits = count;
}

/* One block of WARPS warps a query, with shared memory for their queues. */
template <typename Item, int NW, int WARPS, typename Kernel>
static GvStatus
launch(Kernel kernel, const GvCardModel *card, const GvBatch *batch,
	   cudaStream_t stream)
{
	constexpr int bytes = (WARPS > 1 ? WARPS / 2 : 1) * NW * GV_WARP *
		(int) sizeof(Item);

	if (bytes + OWN_SHARED > 48 * 1024)
		GV_CUDA_TRY(cudaFuncSetAttribute(kernel,
										 cudaFuncAttributeMaxDynamicSharedMemorySize,
										 bytes));
	GV_LAUNCH(kernel, batch->n, WARPS * GV_WARP, bytes, stream, *card, *batch);
	return gv_cuda_status(cudaGetLastError());
}

template <int NW, int NT, int WARPS>
static GvStatus
launch_probes(const GvCardModel *card, const GvBatch *batch,
			  cudaStream_t stream)
{
	return launch<GvNearList, NW, WARPS>(probe_kernel<NW, NT, WARPS>, card,
										 batch, stream);
}

template <int NW, int NT, int WARPS>
static GvStatus
launch_copies(const GvCardModel *card, const GvBatch *batch,
			  cudaStream_t stream)
{
	return launch<GvNearCopy, NW, WARPS>(copy_kernel<NW, NT, WARPS>, card,
										 batch, stream);
}

/* d_probed, d_starts and nprobed of a batch, from d_coarse. */
GvStatus
gv_gpu_probes(const GvCardModel *card, const GvBatch *batch,
			  GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int			k = batch->probes;

	if (k > MAX_SELECT)
		return gv_gpu_sort_probes(card, batch, searcher);
	if (k <= 32)
		return launch_probes<1, 1, 16>(card, batch, stream);
	if (k <= 64)
		return launch_probes<2, 2, 16>(card, batch, stream);
	if (k <= 128)
		return launch_probes<4, 2, 16>(card, batch, stream);
	if (k <= 256)
		return launch_probes<8, 4, 16>(card, batch, stream);
	if (k <= 512)
		return launch_probes<16, 8, 8>(card, batch, stream);
	if (k <= 1024)
		return launch_probes<32, 8, 8>(card, batch, stream);
	return launch_probes<64, 8, 4>(card, batch, stream);
}

/* d_hits and nhits of a batch, from d_scores. */
GvStatus
gv_gpu_select(const GvCardModel *card, const GvBatch *batch,
			  GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int			k = batch->capacity;

	if (k > MAX_SELECT || batch->probes > MAX_PROBES)
		return gv_gpu_sort_copies(card, batch, searcher);
	if (k <= 32)
		return launch_copies<1, 1, 16>(card, batch, stream);
	if (k <= 64)
		return launch_copies<2, 2, 16>(card, batch, stream);
	if (k <= 128)
		return launch_copies<4, 2, 16>(card, batch, stream);
	if (k <= 256)
		return launch_copies<8, 4, 16>(card, batch, stream);
	if (k <= 512)
		return launch_copies<16, 8, 8>(card, batch, stream);
	if (k <= 1024)
		return launch_copies<32, 8, 4>(card, batch, stream);
	return launch_copies<64, 8, 4>(card, batch, stream);
}
