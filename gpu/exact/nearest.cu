/*
 * nearest.cu
 *		Reranks the candidates, sorts them by exact distances, and merges them
 *		with the neighbors that a query has so far.
 *
 * One launch does all three, so the host need not know how many candidates
 * there are.  If there are many queries, each block takes one query.  If there
 * are few, several blocks rerank the candidates of a query, and the last block
 * to finish sorts and merges them.  Candidates are sorted in shared memory,
 * and merged, MOST_SLOTS at a time.
 *
 * A team of eight lanes takes a pair of a query and a row (distance.cuh).
 * Registers alone limit how many loads are in flight.
 *
 * Two sorted arrays are merged by ranks: an item's place in the merged array
 * is its place in its own array plus the number of items of the other array
 * that are before it, which a binary search finds.  No two rows are equal in
 * this order.  Missing neighbors are equal, and the older ones come first.
 */
#include <algorithm>

#include "gpu/device/distance.cuh"
#include "gpu/exact/exact.cuh"

#define LANES			GV_TEAM_LANES
#define TEAMS			(GV_WARP / LANES)
#define AHEAD			8		/* loads of a row in flight */
#define MANY_THREADS	128
#define FEW_THREADS		256		/* threads of a block if several blocks share a
								 * query or the capacity is above MOST_SLOTS */
#define MOST_BLOCKS		512		/* maximum blocks of a launch if several blocks
								 * share a query */
#define MOST_SLOTS		4096	/* max candidates in shared memory, 12 bytes
								 * each */

/* The arguments of the kernel. */
struct Nearest
{
	GvExactRows rows;
	GvExactQueries queries;
	GvExactPart part;
	GvExactSlots all;			/* the candidates; if this range is empty,
								 * those of the filter */
	GvExactFilter filter;
	GvExactFound found;
	uint32_t   *d_list_count;	/* number of queries in d_list, which had too
								 * many candidates */
	uint32_t   *d_list;
	int64_t		position;		/* of row 0 */
	int32_t		dims;
	int32_t		across;			/* number of blocks of each query */
};

/* -- distances */

/*
 * Calls add(a[i], b[i]) for each dimension of this lane, in ascending order.
 * The loads of a team are consecutive.
 */
template <typename Add>
static __device__ __forceinline__ void
each_pair(const float *a, const float *b, int dims, const Add &add)
{
	for (int i = threadIdx.x % LANES; i < dims; i += AHEAD * LANES)
	{
		float		x[AHEAD] = {};
		float		y[AHEAD] = {};

#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (i + j * LANES < dims)
			{
				x[j] = a[i + j * LANES];
				y[j] = b[i + j * LANES];
			}
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (i + j * LANES < dims)
				add((double) x[j], (double) y[j]);
	}
}

/*
 * Returns the distance that gv_set_distance returns, bit for bit unless the
 * distance is NaN.  Called by all teams of a warp.  Pearson's distance is the
 * cosine distance of the differences from the means.
 */
template <int METRIC>
static __device__ __forceinline__ double
distance_of(const float *a, const float *b, int dims)
{
	constexpr bool CENTERED = METRIC == GV_SET_PEARSON;
	GvDistanceSums<CENTERED ? (int) GV_SET_COSINE : METRIC> sums = {};
	double		a_mean = 0.0;
	double		b_mean = 0.0;

	if (CENTERED)
	{
		each_pair(a, b, dims, [&] (double x, double y)
		{
			a_mean = __dadd_rn(a_mean, x);
			b_mean = __dadd_rn(b_mean, y);
		});
		a_mean = __ddiv_rn(gv_add_team(a_mean), (double) dims);
		b_mean = __ddiv_rn(gv_add_team(b_mean), (double) dims);
	}
	each_pair(a, b, dims, [&] (double x, double y)
	{
		if (CENTERED)
			sums.add(__dadd_rn(x, -a_mean), __dadd_rn(y, -b_mean));
		else
			sums.add(x, y);
	});
	return sums.distance();
}

/* The result of reranking a pair of a query and a row. */
struct Pair
{
	double		distance;
	uint32_t	row;
};

/*
 * Reranks a slot for query number `query`.  A query's own row becomes a
 * missing neighbor.  Called by all teams of a warp.
 */
template <int METRIC>
static __device__ __forceinline__ Pair
rerank_pair(const GvExactRows &rows, const GvExactQueries &queries, int dims,
			int64_t position, int64_t query, uint32_t slot)
{
	int64_t		row = gv_exact_row(rows, slot);
	double		distance =
		distance_of<METRIC>(queries.d_queries + query * dims,
							rows.d_rows + row * dims, dims);

	if (queries.d_self != NULL && queries.d_self[query] == position + row)
		return {GV_EXACT_NAN, GV_EXACT_NO_ROW};
	return {distance, (uint32_t) row};
}

/* -- order */

/* Returns the first i < n with !before(i), or n. */
template <typename Before>
static __device__ __forceinline__ int64_t
count_before(int64_t n, const Before &before)
{
	int64_t		low = 0;
	int64_t		high = n;

	while (low < high)
	{
		int64_t		middle = (low + high) / 2;

		if (before(middle))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Sorts the arrays [size] in shared memory with a bitonic network, by all
 * threads of a block.  The size must be a power of two.  Begins and ends with
 * a barrier.
 */
static __device__ __forceinline__ void
sort_rows(double *distances, uint32_t *rows, uint32_t size)
{
	for (uint32_t width = 2; width <= size; width *= 2)
		for (uint32_t stride = width / 2; stride > 0; stride /= 2)
		{
			__syncthreads();
			for (uint32_t i = threadIdx.x; i < size / 2; i += blockDim.x)
			{
				uint32_t	low = 2 * i - (i & (stride - 1));
				uint32_t	high = low + stride;
				double		a = distances[low];
				double		b = distances[high];
				uint32_t	a_row = rows[low];
				uint32_t	b_row = rows[high];

				if (gv_exact_before(b, b_row, a, a_row) ==
					((low & width) == 0))
				{
					distances[low] = b;
					distances[high] = a;
					rows[low] = b_row;
					rows[high] = a_row;
				}
			}
		}
	__syncthreads();
}

/* The inputs of a merge: a query's k neighbors, and its nearest new rows. */
struct MergeInputs
{
	int64_t		k;
	const double *old_distances;	/* [k] */
	const int64_t *old_positions;
	int64_t		count;			/* number of new rows, at most k */
	const double *distances;	/* [count] of the new rows, in order */
	const uint32_t *rows;
	int64_t		position;		/* of row 0 */
};

static __device__ __forceinline__ int64_t
position_of(const MergeInputs &merge, int64_t i)
{
	return merge.rows[i] == GV_EXACT_NO_ROW ? INT64_MAX :
		merge.position + merge.rows[i];
}

/*
 * Stores item j at its place in the merged arrays [k], unless its place is
 * beyond them.  The first k items are the neighbors, and the next `count`
 * items are the new rows.
 */
static __device__ __forceinline__ void
place_item(const MergeInputs &merge, int64_t j, double *merged,
		   int64_t *merged_positions)
{
	int64_t		k = merge.k;
	double		distance;
	int64_t		position;
	int64_t		place;

	if (j < k)
	{
		distance = merge.old_distances[j];
		position = merge.old_positions[j];
		place = j + count_before(merge.count, [&] (int64_t other)
		{
			return gv_exact_before(merge.distances[other],
								   position_of(merge, other), distance,
								   position);
		});
	}
	else
	{
		distance = merge.distances[j - k];
		position = position_of(merge, j - k);
		place = j - k + count_before(k, [&] (int64_t other)
		{
			return !gv_exact_before(distance, position,
									merge.old_distances[other],
									merge.old_positions[other]);
		});
	}
	if (place < k)
	{
		merged[place] = distance;
		merged_positions[place] = position;
	}
}

/* -- the kernel */

/* Reranks this block's share of the candidates of query i of the part. */
template <int METRIC>
static __device__ __forceinline__ void
rerank(const Nearest &nearest, int i, int64_t query, uint32_t count)
{
	uint32_t	teams = blockDim.x / LANES;
	int64_t		at = (int64_t) i * nearest.filter.capacity;
	uint32_t	share = blockIdx.x % nearest.across;

	for (uint32_t first = share * teams; first < count;
		 first += nearest.across * teams)
	{
		uint32_t	c = first + threadIdx.x / LANES;
		uint32_t	slot = nearest.all.first + c;
		Pair		pair;

		if (nearest.all.n == 0)
			slot = c < count ? nearest.filter.d_candidates[at + c] : 0;
		else if (c >= count)
			slot = nearest.all.first;
		pair = rerank_pair<METRIC>(nearest.rows, nearest.queries, nearest.dims,
								   nearest.position, query, slot);
		if (threadIdx.x % LANES != 0 || c >= count)
			continue;
		nearest.found.d_distances[at + c] = pair.distance;
		nearest.filter.d_candidates[at + c] = pair.row;
	}
}

/*
 * Returns whether this block is the last one of its query to finish.  Called
 * by all threads of the block.
 */
static __device__ __forceinline__ bool
is_last(const Nearest &nearest, int i)
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
				nearest.found.d_ready[i] = 0;	/* for the next launch */
		}
	}
	__syncthreads();
	if (nearest.across == 1)
		return true;
	if (last)
		__threadfence();
	return last;
}

/*
 * Sorts a query's reranked rows and merges them with the neighbors so far, in
 * pieces of `slots` rows, which the shared arrays can hold.
 */
static __device__ __forceinline__ void
merge(const Nearest &nearest, int i, int64_t query, uint32_t count,
	  double *distances, uint32_t *rows, uint32_t slots)
{
	int64_t		k = nearest.queries.k;
	double	   *old_distances = nearest.queries.d_distances + query * k;
	int64_t    *old_positions = nearest.queries.d_positions + query * k;
	double	   *merged = nearest.found.d_merged + i * k;
	int64_t    *merged_positions = nearest.found.d_merged_positions + i * k;

	for (uint32_t first = 0; first < count; first += slots)
	{
		int64_t		at = (int64_t) i * nearest.filter.capacity + first;
		uint32_t	n = min(count - first, slots);
		MergeInputs from = {k, old_distances, old_positions,
			min((int64_t) n, k), distances, rows, nearest.position};
		uint32_t	size = 2;

		while (size < n)
			size *= 2;
		for (uint32_t c = threadIdx.x; c < size; c += blockDim.x)
		{
			distances[c] = c < n ? nearest.found.d_distances[at + c] :
				GV_EXACT_NAN;
			rows[c] = c < n ? nearest.filter.d_candidates[at + c] :
				GV_EXACT_NO_ROW;
		}
		sort_rows(distances, rows, size);
		for (int64_t j = threadIdx.x; j < k + from.count; j += blockDim.x)
			place_item(from, j, merged, merged_positions);
		__syncthreads();
		for (int64_t j = threadIdx.x; j < k; j += blockDim.x)
		{
			old_distances[j] = merged[j];
			old_positions[j] = merged_positions[j];
		}
	}
}

/*
 * Reranks, sorts and merges.  Query i of the part has the `across` blocks from
 * block i * across on.  Shared memory: distances [slots], then rows [slots];
 * slots is a power of two.
 */
template <int METRIC>
static __global__ void __launch_bounds__(FEW_THREADS)
nearest_kernel(Nearest nearest, uint32_t slots)
{
	GV_SHARED(memory);
	double	   *distances = (double *) memory;
	int			i = blockIdx.x / nearest.across;
	int64_t		query;
	uint32_t	count;

	gv_pdl_wait();
	query = gv_exact_query(nearest.part, i);
	count = nearest.all.n > 0 ? nearest.all.n : nearest.filter.d_counts[i];
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
			  (uint32_t *) (distances + slots), slots);
}

template <int METRIC>
static GvStatus
launch(const Nearest &nearest, cudaStream_t stream)
{
	bool		many = nearest.across == 1 &&
		nearest.filter.capacity <= MOST_SLOTS;
	uint32_t	slots = 2;

	while (slots < nearest.filter.capacity && slots < MOST_SLOTS)
		slots *= 2;
	return gv_launch_pdl(nearest.filter.pdl, nearest_kernel<METRIC>,
						 nearest.part.n * nearest.across,
						 many ? MANY_THREADS : FEW_THREADS,
						 slots * (sizeof(double) + sizeof(uint32_t)), stream,
						 nearest, slots);
}

GvStatus
gv_gpu_exact_nearest(const GvExactSearch *search, const GvExactPart *part,
					 GvExactSlots slots, uint32_t *d_count, uint32_t *d_list)
{
	const GvExactWork *work = search->work;
	int			across = std::min(MOST_BLOCKS / part->n,
								  gv_blocks_for(work->filter.capacity,
												FEW_THREADS / LANES));
	Nearest		nearest = {*search->rows, *search->queries, *part, slots,
		work->filter, work->found, d_count, d_list, work->seen,
		search->norm->dims, std::max(1, across)};

	switch (search->norm->metric)
	{
		case GV_SET_L2:
			return launch<GV_SET_L2>(nearest, work->stream);
		case GV_SET_IP:
			return launch<GV_SET_IP>(nearest, work->stream);
		case GV_SET_COSINE:
			return launch<GV_SET_COSINE>(nearest, work->stream);
		default:
			return launch<GV_SET_PEARSON>(nearest, work->stream);
	}
}
