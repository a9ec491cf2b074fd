/*
 * nearest.cu
 *		Reranks the candidates, sorts them by exact distances, and merges them
 *		with the neighbors that a query has so far.
 *
 * If a query's candidates fit a block's shared memory, one launch does all
 * three.  If there are many queries, a block takes one, and the host need not
 * know how many candidates there are.  If there are few, several blocks
 * rerank, and the last one to finish does the rest.  More candidates take a
 * launch for each step: reranking, sorts of RUN rows in shared memory, merges
 * of pairs of runs, as many as the capacity requires, and the merge with the
 * neighbors.
 *
 * Distances are computed in double, in the order of operations of
 * gv_set_distance.  Eight lanes, a team, take a pair of query and row: lane l
 * has partial sum l, of dimensions l, l + 8, ..., and the sums are added l +
 * 4, l + 2, l + 1.  So the loads of a team are consecutive, and as many are in
 * flight as registers allow.
 *
 * Two sorted arrays are merged by ranks: an item's place is its own plus the
 * number of items in the other array that are before it, found by halving.  No
 * two rows are equal in order; of missing neighbors, which are equal, the
 * older ones come first.
 */
#include <algorithm>

#include "gpu/exact/exact.cuh"

#define LANES			8		/* partial sums of gv_set_distance */
#define TEAMS			(GV_WARP / LANES)
#define AHEAD			8		/* loads of a row in flight */
#define MANY_THREADS	128
#define FEW_THREADS		256		/* of a block, if there are several for a
								 * query */
#define MOST_BLOCKS		512		/* of all queries, if there are several for
								 * one */
#define MOST_SLOTS		4096	/* candidates in shared memory, 12 bytes
								 * each */
#define THREADS			256
#define RUN				1024	/* rows that a block sorts */

/* -- distances */

/* Returns the sum of a team's partial sums, to all of its lanes. */
static __device__ __forceinline__ double
add_lanes(double sum)
{
#pragma unroll
	for (int half = LANES / 2; half > 0; half /= 2)
		sum = __dadd_rn(sum, __shfl_down_sync(GV_FULL_WARP, sum, half, LANES));
	return __shfl_sync(GV_FULL_WARP, sum, 0, LANES);
}

/* Returns the sum of f(a[i], b[i]) in double. */
template <typename Term>
static __device__ __forceinline__ double
add_terms(const float *a, const float *b, int dims, const Term &term)
{
	double		sum = 0.0;

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
				sum = __dadd_rn(sum, term((double) x[j], (double) y[j]));
	}
	return add_lanes(sum);
}

static __device__ __forceinline__ double
dot(const float *a, const float *b, int dims)
{
	return add_terms(a, b, dims, [] (double x, double y)
	{
		return __dmul_rn(x, y);
	});
}

static __device__ __forceinline__ double
mean(const float *a, int dims)
{
	return __ddiv_rn(add_terms(a, a, dims, [] (double x, double)
	{
		return x;
	}), (double) dims);
}

static __device__ __forceinline__ double
centered_dot(const float *a, double a_mean, const float *b, double b_mean,
			 int dims)
{
	return add_terms(a, b, dims, [=] (double x, double y)
	{
		return __dmul_rn(__dadd_rn(x, -a_mean), __dadd_rn(y, -b_mean));
	});
}

/* Returns one minus a cosine, which is limited to -1 .. 1. */
static __device__ __forceinline__ double
one_minus(double product, double squares)
{
	double		cosine = __ddiv_rn(product, __dsqrt_rn(squares));

	if (cosine > 1.0)
		cosine = 1.0;
	else if (cosine < -1.0)
		cosine = -1.0;
	return __dadd_rn(1.0, -cosine);
}

/*
 * Returns gv_set_distance, bit for bit unless NaN; all teams of a warp call.
 */
template <int METRIC>
static __device__ __forceinline__ double
distance_of(const float *a, const float *b, int dims)
{
	if (METRIC == GV_SET_L2)
		return __dsqrt_rn(add_terms(a, b, dims, [] (double x, double y)
		{
			double		diff = __dadd_rn(x, -y);

			return __dmul_rn(diff, diff);
		}));
	if (METRIC == GV_SET_IP)
		return -dot(a, b, dims);
	if (METRIC == GV_SET_COSINE)
		return one_minus(dot(a, b, dims),
						 __dmul_rn(dot(a, a, dims), dot(b, b, dims)));

	double		a_mean = mean(a, dims);
	double		b_mean = mean(b, dims);

	double		a_square = centered_dot(a, a_mean, a, a_mean, dims);
	double		b_square = centered_dot(b, b_mean, b, b_mean, dims);

	return one_minus(centered_dot(a, a_mean, b, b_mean, dims),
					 __dmul_rn(a_square, b_square));
}

/* A pair that a team reranks. */
struct Pair
{
	double		distance;
	uint32_t	row;
};

/*
 * Reranks a slot for query number `query`; all teams of a warp call.  A
 * query's own row becomes a missing neighbor.
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

/* Returns the first i of low .. high - 1 with !before(i), or high. */
template <typename Before>
static __device__ __forceinline__ int64_t
count_before(int64_t low, int64_t high, const Before &before)
{
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
 * Sorts shared arrays [size], size a power of two, by a bitonic network and
 * all threads of a block.  Begins and ends with a barrier.
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

/* The inputs of a query's merge: its k neighbors, and its nearest new rows. */
struct MergeInputs
{
	int64_t		k;
	int64_t		query;
	const double *d_distances;	/* [][k] of all queries */
	const int64_t *d_positions;
	int64_t		count;			/* of rows, at most k */
	const double *distances;	/* [count] in order */
	const uint32_t *rows;
	int64_t		position;		/* of row 0 */
};

static __device__ __forceinline__ int64_t
position_of(const MergeInputs &merge, int64_t i)
{
	return merge.rows[i] == GV_EXACT_NO_ROW ? INT64_MAX :
		merge.position + merge.rows[i];
}

/* Stores item j of k neighbors and `count` rows in merged arrays [k]. */
static __device__ __forceinline__ void
place_item(const MergeInputs &merge, int64_t j, double *merged,
		   int64_t *merged_positions)
{
	int64_t		k = merge.k;
	const double *distances = merge.d_distances + merge.query * k;
	const int64_t *positions = merge.d_positions + merge.query * k;
	double		distance;
	int64_t		position;
	int64_t		place;

	if (j < k)
	{
		distance = distances[j];
		position = positions[j];
		place = j + count_before(0, merge.count, [&] (int64_t other)
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
		place = j - k + count_before(0, k, [&] (int64_t other)
		{
			return !gv_exact_before(distance, position, distances[other],
									positions[other]);
		});
	}
	if (place < k)
	{
		merged[place] = distance;
		merged_positions[place] = position;
	}
}

/* -- one launch */

/* Reranks this block's share of the candidates of the filter's i-th query. */
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
		Pair pair =
			rerank_pair<METRIC>(nearest.rows, nearest.queries, nearest.dims,
								nearest.position, query, c < count ?
								nearest.filter.d_candidates[at + c] : 0);

		if (threadIdx.x % LANES != 0 || c >= count)
			continue;
		nearest.found.d_distances[at + c] = pair.distance;
		nearest.filter.d_candidates[at + c] = pair.row;
	}
}

/* Returns whether this block is the last of its query's; all threads call. */
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

/* Sorts a query's reranked rows and merges them with its neighbors so far. */
static __device__ __forceinline__ void
merge(const GvExactNearest &nearest, int i, int64_t query, uint32_t count,
	  double *distances, uint32_t *rows)
{
	int64_t		at = (int64_t) i * nearest.filter.capacity;
	int64_t		k = nearest.queries.k;
	double	   *merged = nearest.found.d_merged + i * k;
	int64_t    *merged_positions = nearest.found.d_merged_positions + i * k;
	MergeInputs from = {k, query, nearest.queries.d_distances,
		nearest.queries.d_positions, min((int64_t) count, k), distances, rows,
		nearest.position};
	uint32_t	size = 2;

	while (size < count)
		size *= 2;
	for (uint32_t c = threadIdx.x; c < size; c += blockDim.x)
	{
		distances[c] = c < count ? nearest.found.d_distances[at + c] :
			GV_EXACT_NAN;
		rows[c] = c < count ? nearest.filter.d_candidates[at + c] :
			GV_EXACT_NO_ROW;
	}
	sort_rows(distances, rows, size);
	for (int64_t j = threadIdx.x; j < k + from.count; j += blockDim.x)
		place_item(from, j, merged, merged_positions);
	__syncthreads();
	for (int64_t j = threadIdx.x; j < k; j += blockDim.x)
	{
		nearest.queries.d_distances[query * k + j] = merged[j];
		nearest.queries.d_positions[query * k + j] = merged_positions[j];
	}
}

/*
 * Reranks, sorts and merges.  Blocks i * across .. own the i-th query.
 * Shared: distances, then rows, [capacity], a power of two.
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

	gv_pdl_wait();
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

/* -- a launch for each step */

/* Reranks candidates.  Blocks i * across .. own the i-th query. */
template <int METRIC>
static __global__ void __launch_bounds__(FEW_THREADS)
rerank_kernel(GvExactNearest nearest)
{
	int			i = blockIdx.x / nearest.across;

	rerank<METRIC>(nearest, i, gv_exact_query(nearest.part, i),
				   nearest.filter.d_counts[i]);
}

/* A thread lists a query with too many candidates, and drops these. */
static __global__ void __launch_bounds__(THREADS)
overflows_kernel(GvExactPart part, GvExactFilter filter, uint32_t *d_count,
				 uint32_t *d_list)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i >= part.n || filter.d_counts[i] <= filter.capacity)
		return;
	filter.d_counts[i] = 0;
	gv_exact_put_into(d_count, d_list, part.d_list != NULL ?
					  part.d_list[i] : part.first + i);
}

/* Rows of a query, and their distances. */
struct Rows
{
	const double *distances;
	const uint32_t *rows;

	/* Is row i before such a one? */
	__device__ __forceinline__ bool
	before(uint32_t i, double distance, int64_t row) const
	{
		return gv_exact_before(distances[i], (int64_t) rows[i], distance, row);
	}
};

/* A block sorts run blockIdx.y of query blockIdx.x. */
static __global__ void __launch_bounds__(THREADS)
runs_kernel(GvExactFilter filter, double *d_distances)
{
	__shared__ double distances[RUN];
	__shared__ uint32_t rows[RUN];
	int64_t		at = (int64_t) blockIdx.x * filter.capacity +
		(int64_t) blockIdx.y * RUN;
	int64_t		left = (int64_t) filter.d_counts[blockIdx.x] -
		(int64_t) blockIdx.y * RUN;
	uint32_t	n = left < RUN ? (uint32_t) left : RUN;
	uint32_t	size = 2;

	if (left <= 0)
		return;
	while (size < n)
		size *= 2;
	for (uint32_t i = threadIdx.x; i < size; i += THREADS)
	{
		distances[i] = i < n ? d_distances[at + i] : GV_EXACT_NAN;
		rows[i] = i < n ? filter.d_candidates[at + i] : GV_EXACT_NO_ROW;
	}
	sort_rows(distances, rows, size);
	for (uint32_t i = threadIdx.x; i < n; i += THREADS)
	{
		d_distances[at + i] = distances[i];
		filter.d_candidates[at + i] = rows[i];
	}
}

/* Merges pairs of runs of `width` rows; a thread a row. */
static __global__ void __launch_bounds__(THREADS)
pass_kernel(GvExactFilter filter, const double *d_distances,
			double *d_to_distances, uint32_t *d_to_rows, uint32_t width,
			int blocks)
{
	int64_t		query = blockIdx.x / blocks;
	uint32_t	j = blockIdx.x % blocks * THREADS + threadIdx.x;
	uint32_t	count = filter.d_counts[query];
	int64_t		at = query * filter.capacity;
	Rows		all = {d_distances + at, filter.d_candidates + at};
	uint32_t	run;
	int64_t		other;
	int64_t		end;
	int64_t		place;

	if (j >= count)
		return;
	run = j / width;
	other = (int64_t) (run ^ 1) * width;
	end = min(other + (int64_t) width, (int64_t) count);
	place = (int64_t) (run / 2) * 2 * width + j % width;
	if (other < (int64_t) count)
		place += count_before(other, end, [&] (int64_t i)
		{
			return all.before((uint32_t) i, all.distances[j], all.rows[j]);
		}) - other;
	d_to_distances[at + place] = all.distances[j];
	d_to_rows[at + place] = all.rows[j];
}

/* Merges with the neighbors, by `each` threads a query, an item each. */
static __global__ void __launch_bounds__(THREADS)
merge_kernel(GvExactNearest nearest, int64_t each)
{
	int64_t		at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		i = at / each;
	int64_t		j = at % each;
	int64_t		capacity = nearest.filter.capacity;
	MergeInputs from;

	if (i >= nearest.part.n || nearest.filter.d_counts[i] == 0)
		return;
	from = {nearest.queries.k, gv_exact_query(nearest.part, i),
		nearest.queries.d_distances, nearest.queries.d_positions,
		min((int64_t) nearest.filter.d_counts[i], nearest.queries.k),
		nearest.found.d_distances + i * capacity,
		nearest.filter.d_candidates + i * capacity, nearest.position};
	if (j < from.k + from.count)
		place_item(from, j, nearest.found.d_merged + i * from.k,
				   nearest.found.d_merged_positions + i * from.k);
}

/* Copies merged neighbors back to their queries; a thread a neighbor. */
static __global__ void __launch_bounds__(THREADS)
put_back_kernel(GvExactNearest nearest)
{
	int64_t		at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		k = nearest.queries.k;
	int64_t		i = at / k;
	int64_t		to;

	if (i >= nearest.part.n || nearest.filter.d_counts[i] == 0)
		return;
	to = gv_exact_query(nearest.part, i) * k + at % k;
	nearest.queries.d_distances[to] = nearest.found.d_merged[at];
	nearest.queries.d_positions[to] = nearest.found.d_merged_positions[at];
}

/* Sorts reranked rows and merges them with the neighbors of a part. */
static GvStatus
merge_runs(GvExactNearest nearest, cudaStream_t stream)
{
	GvExactFilter &from = nearest.filter;
	GvExactFound &found = nearest.found;
	int			n = nearest.part.n;
	int			blocks = gv_blocks_for(from.capacity, THREADS);
	int64_t		k = nearest.queries.k;
	int64_t		each = k + std::min(k, (int64_t) from.capacity);

	GV_TRY(gv_launch(runs_kernel, dim3(n, gv_blocks_for(from.capacity, RUN)),
					 THREADS, 0, stream, from, found.d_distances));
	for (uint32_t width = RUN; width < from.capacity; width *= 2)
	{
		GV_TRY(gv_launch(pass_kernel, n * blocks, THREADS, 0, stream, from,
						 found.d_distances, found.d_other, found.d_other_rows,
						 width, blocks));
		std::swap(found.d_distances, found.d_other);
		std::swap(from.d_candidates, found.d_other_rows);
	}
	GV_TRY(gv_launch(merge_kernel, gv_blocks_for(n * each, THREADS), THREADS,
					 0, stream, nearest, each));
	return gv_launch(put_back_kernel, gv_blocks_for(n * k, THREADS), THREADS,
					 0, stream, nearest);
}

template <int METRIC>
static GvStatus
launch(const GvExactNearest &nearest, cudaStream_t stream)
{
	const GvExactFilter &filter = nearest.filter;
	int			nblocks = nearest.part.n * nearest.across;
	uint32_t	capacity = 2;

	if (filter.capacity > MOST_SLOTS)
	{
		GV_TRY(gv_launch(overflows_kernel,
						 gv_blocks_for(nearest.part.n, THREADS), THREADS, 0,
						 stream, nearest.part, filter, nearest.d_list_count,
						 nearest.d_list));
		GV_TRY(gv_launch(rerank_kernel<METRIC>, nblocks, FEW_THREADS, 0,
						 stream, nearest));
		return merge_runs(nearest, stream);
	}
	while (capacity < filter.capacity)
		capacity *= 2;
	return gv_launch_pdl(filter.pdl, nearest_kernel<METRIC>, nblocks,
						 nearest.across > 1 ? FEW_THREADS : MANY_THREADS,
						 capacity * (sizeof(double) + sizeof(uint32_t)),
						 stream, nearest, capacity);
}

GvStatus
gv_gpu_exact_nearest(GvExactNearest *nearest, int32_t metric,
					 cudaStream_t stream)
{
	nearest->across = std::max(1,
							   std::min(MOST_BLOCKS / nearest->part.n,
										gv_blocks_for(nearest->filter.capacity,
													  FEW_THREADS / LANES)));
	switch (metric)
	{
		case GV_SET_L2:
			return launch<GV_SET_L2>(*nearest, stream);
		case GV_SET_IP:
			return launch<GV_SET_IP>(*nearest, stream);
		case GV_SET_COSINE:
			return launch<GV_SET_COSINE>(*nearest, stream);
		default:
			return launch<GV_SET_PEARSON>(*nearest, stream);
	}
}
