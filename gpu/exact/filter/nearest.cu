/*
 * nearest.cu
 *		What the filter let pass is reranked, ordered and merged with a query's
 *		neighbors by one launch, where its slots fit a block's memory.
 *
 * Of many queries a block takes one, and the host need not know how many slots
 * there are; of a few, several blocks rerank, and the one that is the last to
 * be ready does the rest.
 */
#include "gpu/exact/filter/distance.cuh"
#include "gpu/exact/filter/order.cuh"

#define MANY_THREADS	128
#define FEW_THREADS		256		/* of a block of several for a query */
#define MOST_BLOCKS		512		/* for all queries, if several for one */
#define MOST_SLOTS		4096	/* 12 bytes each, shared */

/* Slots of the filter's i-th query; every across-th as many as teams. */
template <int METRIC>
static __device__ __forceinline__ void
rerank(const GvExactNearest &nearest, int i, int64_t query, uint32_t count)
{
	uint32_t	teams = blockDim.x / LANES;
	int64_t		at = (int64_t) i * nearest.filter.capacity;
	uint32_t	share = blockIdx.x % nearest.across;

	for (uint32_t first = share * teams; first < count;
		 first += nearest.across * teams)
	{
		uint32_t	c = first + threadIdx.x / LANES;
		GvExactPair pair =
			gv_exact_rerank<METRIC>(nearest.rows, nearest.queries,
									 nearest.dims, nearest.position, query,
									 c < count ?
									 nearest.filter.d_slots[at + c] : 0);

		if (threadIdx.x % LANES != 0 || c >= count)
			continue;
		nearest.found.d_distances[at + c] = pair.distance;
		nearest.filter.d_slots[at + c] = pair.row;
	}
}

/* All threads of a block: is it the last of the query's? */
static __device__ __forceinline__ bool
is_last(const GvExactNearest &nearest, int i)
{
	__shared__ bool last;

	if (nearest.across > 1)
	{
		__threadfence();
		__syncthreads();
		if (threadIdx.x == 0)
		{
			last = atomicAdd(&nearest.found.d_ready[i], 1u) ==
				(uint32_t) nearest.across - 1;
			if (last)
				nearest.found.d_ready[i] = 0;	/* as it was */
		}
	}
	__syncthreads();
	if (nearest.across == 1)
		return true;
	if (last)
		__threadfence();
	return last;
}

/* Merge a query's reranked rows, in order, with its neighbors so far. */
static __device__ __forceinline__ void
merge(const GvExactNearest &nearest, int i, int64_t query, uint32_t count,
	  double *distances, uint32_t *rows)
{
	int64_t		at = (int64_t) i * nearest.filter.capacity;
	int64_t		k = nearest.queries.k;
	double	   *merged = nearest.found.d_merged + i * k;
	int64_t    *merged_positions = nearest.found.d_merged_positions + i * k;
	GvExactMerge from = {k, query, nearest.queries.d_distances,
		nearest.queries.d_positions, min((int64_t) count, k), distances, rows,
	nearest.position};
	uint32_t	size = 2;

	while (size < count)
		size *= 2;
	for (uint32_t c = threadIdx.x; c < size; c += blockDim.x)
	{
		distances[c] = c < count ? nearest.found.d_distances[at + c] :
			GV_EXACT_NAN;
		rows[c] = c < count ? nearest.filter.d_slots[at + c] :
			GV_EXACT_NO_ROW;
	}
	gv_exact_sort(distances, rows, size);
	for (int64_t j = threadIdx.x; j < k + from.count; j += blockDim.x)
		gv_exact_place(from, j, merged, merged_positions);
	__syncthreads();
	for (int64_t j = threadIdx.x; j < k; j += blockDim.x)
	{
		nearest.queries.d_distances[query * k + j] = merged[j];
		nearest.queries.d_positions[query * k + j] = merged_positions[j];
	}
}

/*
 * Blocks i * across .. are the i-th query's.  Shared: distances, then rows,
 * [capacity], a power of two.
 */
template <int METRIC>
static __global__ void __launch_bounds__(FEW_THREADS)
nearest_kernel(GvExactNearest nearest, uint32_t capacity)
{
	GV_SHARED(memory);
	double	   *distances = (double *) memory;
	int			i = blockIdx.x / nearest.across;
	int64_t		query;
	uint32_t	count;

	gv_step_begins();
	query = gv_exact_query(nearest.part, i);
	count = nearest.filter.d_counts[i];
	if (count > nearest.filter.capacity)
	{
		if (blockIdx.x % nearest.across == 0 && threadIdx.x == 0)
			gv_exact_put_into(nearest.d_list_count, nearest.d_list, query);
		return;
	}
	if (count == 0)
		return;
	rerank<METRIC>(nearest, i, query, count);
	if (is_last(nearest, i))
		merge(nearest, i, query, count, distances,
			  (uint32_t *) (distances + capacity));
}

template <int METRIC>
static GvStatus
launch(const GvExactNearest &nearest, cudaStream_t stream)
{
	uint32_t	capacity = 2;

	while (capacity < nearest.filter.capacity)
		capacity *= 2;
	return gv_launch_early(nearest.filter.overlap, nearest_kernel<METRIC>,
						   nearest.part.n * nearest.across,
						   nearest.across > 1 ? FEW_THREADS : MANY_THREADS,
						   capacity * (sizeof(double) + sizeof(uint32_t)),
						   stream, nearest, capacity);
}

/* See gv_exact.h. */
bool
gv_gpu_exact_nearest_fits(const GvExactFilter *filter)
{
	return filter->capacity <= MOST_SLOTS;
}

/* See gv_exact.h. */
GvStatus
gv_gpu_exact_nearest(const GvExactSpace *space, const GvExactNearest *given,
					 cudaStream_t stream)
{
	GvExactNearest nearest = *given;
	int			across = MOST_BLOCKS / nearest.part.n;
	int			most = gv_exact_blocks(nearest.filter.capacity,
									   FEW_THREADS / LANES);

	across = across < most ? across : most;
	nearest.across = across > 1 ? across : 1;
	nearest.dims = space->dims;
	switch (space->metric)
	{
		case GV_SET_L2:
			return launch<GV_SET_L2>(nearest, stream);
		case GV_SET_IP:
			return launch<GV_SET_IP>(nearest, stream);
		case GV_SET_COSINE:
			return launch<GV_SET_COSINE>(nearest, stream);
		default:
			return launch<GV_SET_PEARSON>(nearest, stream);
	}
}
