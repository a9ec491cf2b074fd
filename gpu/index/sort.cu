/*
 * sort.cu
 *		Selections that are too long for registers, by CUB's radix sort.
 *
 * A scan that goes far asks for thousands of lists and postings.  Then one
 * query at a time is sorted whole.  Radix sort is stable, so postings are
 * sorted by row id first and by score after that; lists stand in their order
 * already.
 */
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "gpu/common/common.cuh"
#include "gpu/index/give.cuh"
#include "gpu/index/gv_index.h"

#define THREADS			256
#define ROWID_BITS		48

static int
blocks_for(int64_t n)
{
	return (int) ((n + THREADS - 1) / THREADS);
}

/* Where the arrays of one sort of n items lie in searcher->d_sort. */
struct SortMemory
{
	uint64_t   *keys[2];
	uint32_t   *values[2];
	void	   *temporary;
	size_t		temporary_bytes;
};

static GvStatus
sort_memory(GvSearcher *searcher, int64_t n, SortMemory *memory)
{
	size_t		bytes = 0;
	size_t		scan_bytes = 0;
	size_t		key_bytes = (n * sizeof(uint64_t) + 255) / 256 * 256;
	size_t		value_bytes = (n * sizeof(uint32_t) + 255) / 256 * 256;
	char	   *start;

	GV_CUDA_TRY(cub::DeviceRadixSort::SortPairs(NULL, bytes,
												(const uint64_t *) NULL,
												(uint64_t *) NULL,
												(const uint32_t *) NULL,
												(uint32_t *) NULL, n));
	GV_CUDA_TRY(cub::DeviceScan::ExclusiveSum(NULL, scan_bytes,
											  (const uint32_t *) NULL,
											  (uint32_t *) NULL, n));
	if (bytes < scan_bytes)
		bytes = scan_bytes;
	GV_TRY(gv_buffer_need(&searcher->d_sort,
						  2 * (key_bytes + value_bytes) + bytes));
	start = (char *) searcher->d_sort.memory;
	memory->keys[0] = (uint64_t *) start;
	memory->keys[1] = (uint64_t *) (start + key_bytes);
	memory->values[0] = (uint32_t *) (start + 2 * key_bytes);
	memory->values[1] = (uint32_t *) (start + 2 * key_bytes + value_bytes);
	memory->temporary = start + 2 * (key_bytes + value_bytes);
	memory->temporary_bytes = bytes;
	return GV_OK;
}

/* Sort keys[0], values[0] into keys[1], values[1]. */
static GvStatus
sort_pairs(const SortMemory *memory, int64_t n, int bits, cudaStream_t stream)
{
	size_t		bytes = memory->temporary_bytes;

	return gv_cuda_status(cub::DeviceRadixSort::SortPairs(memory->temporary,
														  bytes,
														  memory->keys[0],
														  memory->keys[1],
														  memory->values[0],
														  memory->values[1],
														  n, 0, bits, stream));
}

/* Keys and numbers of the lists, one a thread. */
static __global__ void
list_keys_kernel(const float *scores, int n, uint64_t *keys, uint32_t *lists)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
	{
		keys[i] = gv_ordered(scores[i]);
		lists[i] = i;
	}
}

/* The nearest lists, and their numbers of blocks for the sum to come. */
static __global__ void
list_out_kernel(GvDeviceModel model, GvBatch batch, int query,
				const uint64_t *keys, const uint32_t *lists,
				uint32_t *nblocks)
{
	int			k = min(batch.d_wanted[query].probes, model.nlists);
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < k)
	{
		batch.d_probed[(int64_t) query * batch.probes + i] =
			{(int32_t) lists[i], gv_unordered((uint32_t) keys[i])};
		if (batch.d_first != NULL)
			batch.d_first[(int64_t) query * batch.probes + i] =
				model.d_lists[lists[i]].d_blocks;
	}
	if (i <= k)
		nblocks[i] = i < k ? model.d_lists[lists[i]].nblocks : 0;
	if (i == 0)
		batch.d_found[query].nprobed = k;
}

/* See gv_gpu_probes. */
GvStatus
gv_gpu_sort_probes(const GvDeviceModel *model, const GvBatch *batch,
				   GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int64_t		n = model->nlists;
	SortMemory	memory;

	GV_TRY(sort_memory(searcher, n + 1, &memory));
	for (int query = 0; query < batch->n; query++)
	{
		size_t		bytes = memory.temporary_bytes;

		GV_LAUNCH(list_keys_kernel, blocks_for(n), THREADS, 0, stream,
				  batch->d_coarse + query * n, (int) n, memory.keys[0],
				  memory.values[0]);
		GV_TRY(sort_pairs(&memory, n, 32, stream));
		GV_LAUNCH(list_out_kernel, blocks_for(n + 1), THREADS, 0, stream,
				  *model, *batch, query, memory.keys[1], memory.values[1],
				  memory.values[0]);
		GV_CUDA_TRY(cudaGetLastError());
		/* what lies behind a query's own probes is never read */
		GV_CUDA_TRY(cub::DeviceScan::ExclusiveSum(memory.temporary, bytes,
												  memory.values[0],
												  batch->d_starts +
												  (int64_t) query *
												  (batch->probes + 1),
												  batch->probes + 1, stream));
	}
	return GV_OK;
}

/* The address of the block that holds a position of a query. */
static __device__ __forceinline__ const uint8_t *
block_at(const GvDeviceModel &model, const GvBatch &batch, int query,
		 uint32_t position, int *probe)
{
	const uint32_t *starts = batch.d_starts +
		(int64_t) query * (batch.probes + 1);
	uint32_t	b = position / GV_BLOCK;
	int			list;

	*probe = gv_probe_of(starts, batch.d_found[query].nprobed, b);
	list = batch.d_probed[(int64_t) query * batch.probes + *probe].list;
	return model.d_lists[list].d_blocks +
		(int64_t) (b - starts[*probe]) * model.shape.block_bytes;
}

static __device__ __forceinline__ uint64_t
rowid_at(const GvDeviceModel &model, const uint8_t *block, int i)
{
	return (uint64_t) ((const uint32_t *) (block +
										   model.shape.high))[i] << 16 |
		((const uint16_t *) (block + model.shape.low))[i];
}

/* Row ids of all postings, one a thread. */
static __global__ void
rowid_keys_kernel(GvDeviceModel model, GvBatch batch, int query, int64_t n,
				  uint64_t *keys, uint32_t *positions)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int			probe;

	if (i >= n)
		return;
	positions[i] = (uint32_t) i;
	if (i / GV_BLOCK < batch.d_starts[(int64_t) query * (batch.probes + 1) +
									  batch.d_found[query].nprobed])
		keys[i] = rowid_at(model, block_at(model, batch, query, (uint32_t) i,
										  &probe), i % GV_BLOCK);
	else
		keys[i] = 0;			/* room that this query does not need */
}

/* Scores in the order of row ids. */
static __global__ void
score_keys_kernel(GvBatch batch, GvDeviceModel model, int query, int64_t n,
				  const uint32_t *positions, uint64_t *keys,
				  uint32_t *again)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	uint32_t	p;

	if (i >= n)
		return;
	p = positions[i];
	again[i] = p;
	if (p / GV_BLOCK < batch.d_starts[(int64_t) query * (batch.probes + 1) +
									  batch.d_found[query].nprobed])
		keys[i] = gv_ordered(batch.d_scores[(int64_t) query * batch.postings + p]);
	else
		keys[i] = 0xFFFFFFFFu;
}

/* The best postings; the last real one tells how many there are. */
static __global__ void
download_hits_kernel(GvDeviceModel model, GvBatch batch, int query, int64_t n,
				const uint64_t *keys, const uint32_t *positions)
{
	uint64_t	dead = gv_ordered(__int_as_float(0x7F800000));
	int64_t		k = min((int64_t) batch.d_wanted[query].capacity, n);
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	const uint8_t *block;
	uint64_t	rowid;
	int			probe;

	if (i == 0 && (k == 0 || keys[0] >= dead))
		batch.d_found[query].nhits = 0;
	if (i >= k || keys[i] >= dead)
		return;
	if (i + 1 == k || keys[i + 1] >= dead)
		batch.d_found[query].nhits = (int32_t) i + 1;
	block = block_at(model, batch, query, positions[i], &probe);
	rowid = rowid_at(model, block, positions[i] % GV_BLOCK);
	gv_download_hit(batch, (int64_t) query * batch.capacity + i,
				(uint32_t) keys[i], (uint32_t) (rowid >> 16),
				(uint32_t) rowid & 0xFFFF, (uint32_t) probe);
}

/* Probes and numbers of query blockIdx.x, by a warp. */
static __global__ void
download_kernel(GvDeviceModel model, GvBatch batch)
{
	gv_download_all(model, batch, blockIdx.x, batch.postings > 0 ?
				batch.d_found[blockIdx.x].nhits : 0);
}

/* See gv_gpu_select. */
GvStatus
gv_gpu_sort_postings(const GvDeviceModel *model, const GvBatch *batch,
				   GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int64_t		n = batch->postings;
	SortMemory	memory;

	if (n > 0)
		GV_TRY(sort_memory(searcher, n, &memory));
	for (int query = 0; query < batch->n && n > 0; query++)
	{
		GV_LAUNCH(rowid_keys_kernel, blocks_for(n), THREADS, 0, stream, *model,
				  *batch, query, n, memory.keys[0], memory.values[0]);
		GV_TRY(sort_pairs(&memory, n, ROWID_BITS, stream));
		GV_LAUNCH(score_keys_kernel, blocks_for(n), THREADS, 0, stream, *batch,
				  *model, query, n, memory.values[1], memory.keys[0],
				  memory.values[0]);
		GV_TRY(sort_pairs(&memory, n, 32, stream));
		GV_LAUNCH(download_hits_kernel, blocks_for(n), THREADS, 0, stream,
				  *model,
				  *batch, query, n, memory.keys[1], memory.values[1]);
		GV_CUDA_TRY(cudaGetLastError());
	}
	GV_LAUNCH(download_kernel, batch->n, GV_WARP, 0, stream, *model, *batch);
	return gv_cuda_status(cudaGetLastError());
}
