/*
 * cardquantiles.cu
 *		Several ranks of one array at once, exactly or nearly.
 *
 * One level of SampleSelect counts the buckets, in one read; a splitter's rank
 * is how many items are in the buckets before it, which is all that an
 * approximate answer needs.  Exactly: a second read gathers the buckets that
 * hold a wanted rank, which are then sorted together, and a rank of the array
 * is one of those, once the buckets that were left out are subtracted.
 *
 * Source: Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019.
 */
#include <stdlib.h>

#include "gpu/select/samples.cuh"

#define BLOCKS_A_SM		2
#define SORTED_WHOLE	GV_SAMPLED	/* values that are sorted whole */

/* The part of a division that the host reads. */
struct Buckets
{
	uint64_t	sorted[GV_TREE_SPLITTERS];
	uint32_t	gathered;
	uint32_t	unused;
	uint32_t	counts[GV_TREE_BUCKETS];
	uint32_t	wanted[GV_TREE_BUCKETS];
};

/* All items of an array, a thread each. */
static __global__ void __launch_bounds__(GV_SAMPLERS)
items_kernel(const float *values, int64_t n, uint64_t *items)
{
	int64_t		i = (int64_t) blockIdx.x * GV_SAMPLERS + threadIdx.x;

	if (i < n)
		items[i] = gv_row_item(values[i], i);
}

/*
 * Counts of all buckets; every block has the splitters for itself.  Shared:
 * items [GV_SAMPLED].
 */
static __global__ void __launch_bounds__(GV_SAMPLERS)
bucket_kernel(const float *values, int64_t n, Buckets *buckets)
{
	GV_SHARED(memory);
	__shared__ GvTree256 tree;
	__shared__ uint32_t counts[GV_TREE_BUCKETS];

	if (threadIdx.x < GV_TREE_BUCKETS)
		counts[threadIdx.x] = 0;
	gv_plant(values, n, (uint64_t *) memory, &tree);
#pragma unroll 1
	for (int64_t first = (int64_t) blockIdx.x * GV_CHUNK_STEP; first < n;
		 first += (int64_t) gridDim.x * GV_CHUNK_STEP)
	{
		float		some[GV_CHUNK_VALUES];

		gv_load_chunk(values, n, first, some);
#pragma unroll
		for (int r = 0; r < GV_CHUNK_VALUES; r++)
		{
			int64_t		i = first + r * GV_SAMPLERS + threadIdx.x;

			gv_count_bucket(counts, gv_tree_bucket(&tree,
												   gv_row_item(some[r], i)),
							i < n);
		}
	}
	__syncthreads();
	if (threadIdx.x < GV_TREE_BUCKETS && counts[threadIdx.x] > 0)
		atomicAdd(&buckets->counts[threadIdx.x], counts[threadIdx.x]);
	if (blockIdx.x == 0 && threadIdx.x < GV_TREE_SPLITTERS)
		buckets->sorted[threadIdx.x] = tree.sorted[threadIdx.x];
}

/* Items of buckets that are wanted, capacity of them. */
static __global__ void __launch_bounds__(GV_SAMPLERS)
gather_kernel(const float *values, int64_t n, Buckets *buckets,
			  uint64_t *items, uint32_t capacity)
{
	GV_SHARED(memory);
	__shared__ GvTree256 tree;
	__shared__ uint32_t wanted[GV_TREE_BUCKETS];

	if (threadIdx.x < GV_TREE_BUCKETS)
		wanted[threadIdx.x] = buckets->wanted[threadIdx.x];
	gv_plant(values, n, (uint64_t *) memory, &tree);
#pragma unroll 1
	for (int64_t first = (int64_t) blockIdx.x * GV_CHUNK_STEP; first < n;
		 first += (int64_t) gridDim.x * GV_CHUNK_STEP)
	{
		float		some[GV_CHUNK_VALUES];
		uint32_t	mask = 0;

		gv_load_chunk(values, n, first, some);
#pragma unroll
		for (int r = 0; r < GV_CHUNK_VALUES; r++)
		{
			int64_t		i = first + r * GV_SAMPLERS + threadIdx.x;

			if (i < n &&
				wanted[gv_tree_bucket(&tree, gv_row_item(some[r], i))])
				mask |= 1u << r;
		}
		gv_append(some, first, mask, &buckets->gathered, items, capacity);
	}
}

/* The items of some ranks among sorted ones, a thread each. */
static __global__ void __launch_bounds__(GV_SAMPLERS)
pick_kernel(const uint64_t *sorted, const int64_t *ranks, int32_t nranks,
			float *quantiles)
{
	int			i = blockIdx.x * GV_SAMPLERS + threadIdx.x;

	if (i < nranks)
		quantiles[i] = gv_item_value(sorted[ranks[i]]);
}

/* The state of a call. */
struct Quantiles
{
	GvSelector *selector;
	const float *d_values;		/* [n] */
	int64_t		n;
	const int64_t *ranks;		/* [nranks] */
	int32_t		nranks;
	float	   *quantiles;		/* [nranks] */
	cudaStream_t stream;
	int			nblocks;
	Buckets    *d_buckets;
	Buckets		buckets;
	int64_t		starts[GV_TREE_BUCKETS + 1];	/* rank of each one's first */
	int64_t		kept[GV_TREE_BUCKETS + 1];	/* the same among those wanted */
};

static GvStatus
wait_for(const Quantiles *q)
{
	return gv_cuda_status(cudaStreamSynchronize(q->stream));
}

/* Count the buckets. */
static GvStatus
divide(Quantiles *q)
{
	GV_TRY(gv_buffer_need(&q->selector->d_list, sizeof(Buckets)));
	q->d_buckets = (Buckets *) q->selector->d_list.memory;
	GV_CUDA_TRY(cudaMemsetAsync(q->d_buckets, 0, sizeof(Buckets), q->stream));
	GV_LAUNCH(bucket_kernel, q->nblocks, GV_SAMPLERS,
			  sizeof(uint64_t) * GV_SAMPLED, q->stream, q->d_values, q->n,
			  q->d_buckets);
	GV_CUDA_TRY(cudaGetLastError());
	GV_CUDA_TRY(cudaMemcpyAsync(&q->buckets, q->d_buckets, sizeof(Buckets),
								cudaMemcpyDeviceToHost, q->stream));
	GV_TRY(wait_for(q));
	for (int b = 0; b < GV_TREE_BUCKETS; b++)
		q->starts[b + 1] = q->starts[b] + q->buckets.counts[b];
	return GV_OK;
}

static int
bucket_of_rank(const Quantiles *q, int64_t rank)
{
	int			low = 0;
	int			high = GV_TREE_BUCKETS - 1;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (q->starts[middle + 1] > rank)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/* Items of ranks of sorted ones, each rank lowered by what was left out. */
static GvStatus
pick(const Quantiles *q, const uint64_t *d_sorted, bool lowered)
{
	GvBuffer   *memory = &q->selector->d_sort;
	size_t		rank_bytes = sizeof(int64_t) * (size_t) q->nranks;
	int64_t    *ranks = (int64_t *) malloc(rank_bytes);
	int64_t    *d_ranks;
	float	   *d_quantiles;
	GvStatus	status = ranks == NULL ? GV_NO_MEMORY :
		gv_buffer_need(memory, rank_bytes + sizeof(float) * q->nranks);

	for (int32_t i = 0; status == GV_OK && i < q->nranks; i++)
	{
		int			b = lowered ? bucket_of_rank(q, q->ranks[i]) : 0;

		ranks[i] = q->ranks[i] - (lowered ? q->starts[b] - q->kept[b] : 0);
	}
	d_ranks = (int64_t *) memory->memory;
	if (status == GV_OK)
		status = gv_cuda_status(cudaMemcpyAsync(d_ranks, ranks, rank_bytes,
												cudaMemcpyHostToDevice,
												q->stream));
	if (status == GV_OK)
	{
		d_quantiles = (float *) (d_ranks + q->nranks);
		GV_LAUNCH(pick_kernel,
				  (unsigned) ((q->nranks + GV_SAMPLERS - 1) / GV_SAMPLERS),
				  GV_SAMPLERS, 0, q->stream, d_sorted, d_ranks, q->nranks,
				  d_quantiles);
		status = gv_cuda_status(cudaGetLastError());
	}
	if (status == GV_OK)
		status = gv_cuda_status(cudaMemcpyAsync(q->quantiles, d_quantiles,
												sizeof(float) * q->nranks,
												cudaMemcpyDeviceToHost,
												q->stream));
	if (status == GV_OK)
		status = wait_for(q);
	free(ranks);
	return status;
}

/* Sort `count` items of d_work and pick from them. */
static GvStatus
sort_and_pick(const Quantiles *q, int64_t count, bool lowered)
{
	const uint64_t *d_sorted;

	GV_TRY(gv_sort_items((uint64_t *) q->selector->d_work.memory, count,
						 &q->selector->d_sort, &d_sorted, q->stream));
	return pick(q, d_sorted, lowered);
}

/* Few values: no need of buckets. */
static GvStatus
pick_from_all(const Quantiles *q)
{
	GV_TRY(gv_buffer_need(&q->selector->d_work,
						  2 * sizeof(uint64_t) * (size_t) q->n));
	GV_LAUNCH(items_kernel,
			  (unsigned) ((q->n + GV_SAMPLERS - 1) / GV_SAMPLERS),
			  GV_SAMPLERS, 0, q->stream, q->d_values, q->n,
			  (uint64_t *) q->selector->d_work.memory);
	GV_CUDA_TRY(cudaGetLastError());
	return sort_and_pick(q, q->n, false);
}

static GvStatus
pick_from_buckets(Quantiles *q)
{
	GV_TRY(divide(q));
	for (int32_t i = 0; i < q->nranks; i++)
		q->buckets.wanted[bucket_of_rank(q, q->ranks[i])] = 1;
	for (int b = 0; b < GV_TREE_BUCKETS; b++)
		q->kept[b + 1] = q->kept[b] +
			(q->buckets.wanted[b] ? q->buckets.counts[b] : 0);
	GV_TRY(gv_buffer_need(&q->selector->d_work, 2 * sizeof(uint64_t) *
						  (size_t) q->kept[GV_TREE_BUCKETS]));
	GV_CUDA_TRY(cudaMemcpyAsync(q->d_buckets, &q->buckets, sizeof(Buckets),
								cudaMemcpyHostToDevice, q->stream));
	GV_LAUNCH(gather_kernel, q->nblocks, GV_SAMPLERS,
			  sizeof(uint64_t) * GV_SAMPLED, q->stream, q->d_values, q->n,
			  q->d_buckets, (uint64_t *) q->selector->d_work.memory,
			  (uint32_t) q->kept[GV_TREE_BUCKETS]);
	GV_CUDA_TRY(cudaGetLastError());
	return sort_and_pick(q, q->kept[GV_TREE_BUCKETS], true);
}

/* Of the splitters the one of nearest rank, the smaller of two as near. */
static GvStatus
answer_by_splitters(Quantiles *q, int64_t *rank_errors)
{
	GV_TRY(divide(q));
	for (int32_t i = 0; i < q->nranks; i++)
	{
		/* splitter s has rank starts[s + 1] */
		int			s = bucket_of_rank(q, q->ranks[i]);
		uint64_t	item;

		if (s == GV_TREE_SPLITTERS ||
			(s > 0 && q->ranks[i] - q->starts[s] <=
			 q->starts[s + 1] - q->ranks[i]))
			s--;
		item = q->buckets.sorted[s];
		q->quantiles[i] = gv_select_value((uint32_t) (item >> 32));
		rank_errors[i] = q->starts[s + 1] - q->ranks[i];
	}
	return GV_OK;
}

extern "C" GvStatus
gv_gpu_quantiles(GvSelector *selector, const float *d_values, int64_t n,
				 const int64_t *ranks, int32_t nranks, bool approximate,
				 float *quantiles, int64_t *rank_errors, void *stream)
{
	Quantiles	q = {};

	q.selector = selector;
	q.d_values = d_values;
	q.n = n;
	q.ranks = ranks;
	q.nranks = nranks;
	q.quantiles = quantiles;
	q.stream = (cudaStream_t) stream;
	q.nblocks = BLOCKS_A_SM * selector->nsms;
	if (approximate && n > SORTED_WHOLE)
		return answer_by_splitters(&q, rank_errors);
	for (int32_t i = 0; i < nranks; i++)
		rank_errors[i] = 0;
	return n <= SORTED_WHOLE ? pick_from_all(&q) : pick_from_buckets(&q);
}
