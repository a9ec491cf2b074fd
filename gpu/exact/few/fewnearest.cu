/*
 * fewnearest.cu
 *		The second launch of a search of few queries: of what was measured the
 *		nearest, and what blocks of fewqueries.cu left.
 */
#include "gpu/common/bisect.cuh"
#include "gpu/exact/few/fewqueries.cuh"

#if GV_HOPPER

/* By a block: what blocks that left have of the q-th query. */
template <int METRIC>
static __device__ __forceinline__ void
take_left(const GvExactFew &few, const GvExactFewShape &shape, int q)
{
	uint32_t	own = gv_exact_own_tiles(shape);
	uint32_t	nwarps = shape.blocks * WARPS;
	const float *scores = few.d_scores + (int64_t) q * own * nwarps * ROWS;
	float		cut = few.nearest.filter.d_cuts[q];

	for (uint32_t i = threadIdx.x / GV_WARP;
		 i < few.d_turn->nleft * WARPS * own; i += blockDim.x / GV_WARP)
	{
		uint32_t	warp = few.d_turn->left[i / (WARPS * own)] * WARPS +
			i / own % WARPS;
		int64_t		row = ((int64_t) (i % own) * nwarps + warp) * ROWS +
			threadIdx.x % GV_WARP;

		bool		found = threadIdx.x % GV_WARP < ROWS &&
			row < few.nearest.rows.n && scores[row] >= cut;

		gv_exact_rerank_found<METRIC>(few.nearest, found, q, (uint32_t) row);
	}
	__syncthreads();
}

/* A query's reranked rows, in shared memory. */
struct Found
{
	uint32_t	count;
	double	   *distances;		/* [count] */
	uint32_t   *rows;
	uint32_t   *kept;			/* which may be among the nearest */

	/* Keys that ascend as distances do; NaN is last. */
	__device__ __forceinline__ uint32_t
	operator()(uint32_t i) const
	{
		return distances[i] != distances[i] ? 0xFFFFFFFFu :
			gv_ordered((float) distances[i]);
	}
};

/* By a block: found.kept; returns how many, k or not many more. */
static __device__ __forceinline__ uint32_t
keep_nearest(const GvExactNearest &nearest, int q, const Found &found)
{
	__shared__ uint32_t said[2][GV_WARP];
	__shared__ uint32_t nkept;
	uint32_t	k = (uint32_t) nearest.queries.k;
	int64_t		at = (int64_t) q * nearest.filter.capacity;
	uint32_t	limit = 0xFFFFFFFFu;
	GvTalk		talk = {said, 0};

	for (uint32_t c = threadIdx.x; c < found.count; c += blockDim.x)
	{
		found.distances[c] = __ldcg(nearest.found.d_distances + at + c);
		found.rows[c] = __ldcg(nearest.filter.d_slots + at + c);
	}
	if (threadIdx.x == 0)
		nkept = 0;
	__syncthreads();
	if (found.count > k)
		limit = gv_find_bound(found, found.count, k, k / 4, talk).key;
	for (uint32_t c = threadIdx.x; c < found.count; c += blockDim.x)
		if (found(c) <= limit)
			found.kept[atomicAdd(&nkept, 1u)] = c;
	__syncthreads();
	return nkept;
}

/*
 * By a block: the k nearest of what was reranked of a query and of its
 * neighbors so far.  A place is the number of those that are before; of free
 * places, which are equal, the neighbors' come first.
 */
static __device__ __forceinline__ void
put_nearest(const GvExactNearest &nearest, int q, const Found &found)
{
	__shared__ double distances[MOST_NEIGHBORS];
	__shared__ int64_t positions[MOST_NEIGHBORS];
	uint32_t	k = (uint32_t) nearest.queries.k;
	double	   *d_distances = nearest.queries.d_distances + (int64_t) q * k;
	int64_t    *d_positions = nearest.queries.d_positions + (int64_t) q * k;
	bool		begun = nearest.position > 0;	/* else all places are free */
	uint32_t	nkept;

	for (uint32_t j = threadIdx.x; j < k; j += blockDim.x)
	{
		distances[j] = begun ? d_distances[j] : GV_EXACT_NAN;
		positions[j] = begun ? d_positions[j] : INT64_MAX;
	}
	/* threads meet */
	nkept = keep_nearest(nearest, q, found);
	for (uint32_t i = threadIdx.x; i < k + nkept; i += blockDim.x)
	{
		uint32_t	c = i < k ? 0 : found.kept[i - k];
		double		distance = i < k ? distances[i] : found.distances[c];
		int64_t		position = i < k ? positions[i] :
			found.rows[c] == GV_EXACT_NO_ROW ? INT64_MAX :
			nearest.position + found.rows[c];
		uint32_t	place = i < k ? i : 0;

		for (uint32_t j = 0; i >= k && j < k; j++)
			place += !gv_exact_before(distance, position, distances[j],
									  positions[j]);
		for (uint32_t j = 0; j < nkept; j++)
		{
			uint32_t	other = found.kept[j];

			place += gv_exact_before(found.distances[other],
									 found.rows[other] == GV_EXACT_NO_ROW ?
									 INT64_MAX :
									 nearest.position + found.rows[other],
									 distance, position);
		}
		if (place < k)
		{
			d_distances[place] = distance;
			d_positions[place] = position;
		}
	}
}

/*
 * A block a query: its nearest; the last one tells the host which queries go
 * another way, and leaves d_turn as it was.  Void queries with free places go
 * to the slow ones.
 * Shared: distances, rows, and which are kept, [capacity] each.
 */
template <int METRIC>
static __global__ void __launch_bounds__(THREADS)
few_nearest_kernel(const __grid_constant__ GvExactFew few,
				   GvExactFewShape shape, uint32_t capacity)
{
	GV_SHARED(memory);
	int			q = blockIdx.x;
	const GvExactQueries &queries = few.nearest.queries;
	GvExactTurn *turn = few.d_turn;
	Found		found = {0, (double *) memory, NULL, NULL};
	bool		is_void;

	gv_step_begins();
	is_void = queries.d_seen[q].kind == GV_EXACT_VOID;
	found.count = __ldcg(few.nearest.filter.d_counts + q);
	if (turn->nleft > 0)
	{
		take_left<METRIC>(few, shape, q);
		found.count = __ldcg(few.nearest.filter.d_counts + q);
	}
	found.rows = (uint32_t *) (found.distances + capacity);
	found.kept = found.rows + capacity;
	if (is_void)
	{
		if (threadIdx.x == 0 &&
			queries.d_positions[(q + 1) * queries.k - 1] == INT64_MAX)
			gv_exact_put_into(&few.lists.d_counts[1], few.lists.d_slow, q);
	}
	else if (found.count > few.nearest.filter.capacity)
	{
		if (threadIdx.x == 0)
			gv_exact_put_into(&few.lists.d_counts[0], few.lists.d_matrix, q);
	}
	else if (found.count > 0)
		put_nearest(few.nearest, q, found);
	__syncthreads();
	if (threadIdx.x != 0)
		return;
	__threadfence();
	if (atomicAdd(&turn->finished, 1u) != gridDim.x - 1)
		return;
	__threadfence();
	few.counts[0] = __ldcg(few.lists.d_counts);
	few.counts[1] = __ldcg(few.lists.d_counts + 1);
	turn->arrived = turn->ready = turn->next = turn->finished = 0;
	turn->nleft = 0;
}

#else

template <int METRIC>
static __global__ void
few_nearest_kernel(const __grid_constant__ GvExactFew few,
				   GvExactFewShape shape, uint32_t room)
{
}

#endif

template <int METRIC>
static GvStatus
launch(const GvExactFew &few, const GvExactFewShape &shape,
	   cudaStream_t stream)
{
	uint32_t	capacity = few.nearest.filter.capacity;

	capacity += capacity % 2;
	return gv_launch_early(few.nearest.filter.overlap,
						   few_nearest_kernel<METRIC>, few.nearest.part.n,
						   THREADS,
						   capacity * (sizeof(double) + 2 * sizeof(uint32_t)),
						   stream, few, shape, capacity);
}

/* See fewqueries.cuh. */
GvStatus
gv_gpu_exact_few_nearest(const GvExactFew *few, const GvExactFewShape *shape,
						 cudaStream_t stream)
{
	switch (few->space.metric)
	{
		case GV_SET_L2:
			return launch<GV_SET_L2>(*few, *shape, stream);
		case GV_SET_IP:
			return launch<GV_SET_IP>(*few, *shape, stream);
		case GV_SET_COSINE:
			return launch<GV_SET_COSINE>(*few, *shape, stream);
		default:
			return launch<GV_SET_PEARSON>(*few, *shape, stream);
	}
}
