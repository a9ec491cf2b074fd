/*
 * thresholds.cu
 *		The thresholds that scores must reach: from a query's neighbors so far,
 *		or from the scores of many rows.
 *
 * A query with k neighbors, the last at distance t, needs no rows beyond t: in
 * exact numbers these have S < threshold(t), so A < threshold(t) - e(q)
 * discards them.  A query with fewer neighbors gets its threshold from full
 * scores: A - 2 e(x) - e(q) is a lower bound of S.  Let l be the k-th largest
 * of these bounds.  Then k rows have S >= l, so the k nearest have, too, and
 * reach A >= l - e(q).
 */
#include "gpu/device/kbound.cuh"
#include "gpu/exact/exact.cuh"

#define THREADS			256
#define MOST_THREADS	1024	/* of a block, if there are enough SMs */
#define FEW_QUERIES		128
#define ALL_SHARED		16384	/* most scores that a block keeps */

/*
 * A thread stores a query's threshold and clears its candidates.  With lists,
 * queries without a threshold are listed and get NaN, which no row reaches
 * (rows that half precision cannot hold would reach infinity).  Without lists
 * they get -infinity, which every row reaches.  The threshold of undefined
 * queries is always NaN.
 */
static __global__ void __launch_bounds__(THREADS)
neighbor_thresholds_kernel(GvExactNormalization norm, GvExactQueries queries,
						   GvExactPart part, GvExactFilter filter,
						   GvExactOverflowed lists)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;
	int64_t		query;
	GvExactQuery form;

	if (i >= part.n)
		return;
	query = gv_exact_query(part, i);
	form = queries.d_forms[query];
	filter.d_counts[i] = 0;
	filter.d_thresholds[i] = gv_exact_neighbor_threshold(norm, queries, form,
														 query);
	if (lists.d_counts == NULL || filter.d_thresholds[i] != -GV_INFINITY)
		return;
	filter.d_thresholds[i] = GV_NAN;
	if (form.kind == GV_EXACT_PLAIN)
		gv_exact_put_into(&lists.d_counts[0], lists.d_full_scores, query);
	else
		gv_exact_put_into(&lists.d_counts[1], lists.d_brute_force, query);
}

/* Lists undefined queries with too few neighbors for brute force. */
static __global__ void __launch_bounds__(THREADS)
undefined_kernel(GvExactQueries queries, GvExactOverflowed lists)
{
	int64_t		query = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (query < queries.n &&
		queries.d_forms[query].kind == GV_EXACT_UNDEFINED &&
		queries.d_positions[query * queries.k + queries.k - 1] == INT64_MAX)
		gv_exact_put_into(&lists.d_counts[1], lists.d_brute_force, query);
}

/*
 * Keys for gv_find_kth_bound: those of the largest A - 2 e(x) are the least.
 */
struct Keys
{
	const float *scores;
	const float *error_bound;
	const uint32_t *kept;		/* shared, or NULL */

	__device__ __forceinline__ uint32_t
	make(uint32_t i) const
	{
		float		score = scores[i];

		/* a row that half precision cannot hold may be anywhere */
		return gv_ordered(score < GV_INFINITY ? 2.0f * error_bound[i] - score :
						  GV_INFINITY);
	}

	__device__ __forceinline__ uint32_t
	operator()(uint32_t i) const
	{
		return kept != NULL ? kept[i] : make(i);
	}
};

/*
 * A block chooses the threshold and the candidates of a query from full
 * scores.  Shared: keys [nslots], if these are not too many.
 */
static __global__ void __launch_bounds__(MOST_THREADS)
choose_rows_kernel(GvExactQueries queries, GvExactPart part,
				   GvExactMatmul matmul, const float *d_error_bounds)
{
	GV_SHARED(memory);
	__shared__ uint32_t slots[2][GV_WARP];
	int			i = blockIdx.x;
	int64_t		query = gv_exact_query(part, i);
	uint32_t	n = matmul.nslots;
	/* one more, which may be the query's own row */
	uint32_t	wanted = (uint32_t) queries.k + (queries.d_self != NULL);
	float		threshold = matmul.filter.d_thresholds[i];
	float		error_bound = queries.d_forms[query].error_bound;
	GvBlockReduce reduce = {slots, 0};
	Keys		keys = {matmul.d_scores + (int64_t) i * n, d_error_bounds,
		NULL};

	if (wanted <= n)
	{
		float		least;

		if (n <= ALL_SHARED)
		{
			uint32_t   *kept = (uint32_t *) memory;

			for (uint32_t s = threadIdx.x; s < n; s += blockDim.x)
				kept[s] = keys.make(s);
			keys.kept = kept;
			__syncthreads();
		}
		least = -gv_unordered(gv_find_kth_bound(keys, n, wanted, wanted / 8,
												reduce));
		threshold = gv_exact_raise_threshold(threshold, least, error_bound,
											 matmul.half_dims);
	}
	for (uint32_t s = threadIdx.x; s < n; s += blockDim.x)
		if (keys.scores[s] >= threshold)
			gv_exact_append(matmul.filter, i, matmul.first + s);
	if (threadIdx.x == 0)
		matmul.filter.d_thresholds[i] = threshold;
}

/* The key of a thread's rows in first_thresholds_kernel. */
struct OwnKey
{
	uint32_t	own;

	__device__ __forceinline__ uint32_t
	operator()(uint32_t) const
	{
		return own;
	}
};

/* The least 2 e(x) - A of a thread's rows, and the largest A. */
struct Best
{
	float		least;
	float		score;
};

static __device__ __forceinline__ void
add_score(Best *best, float score, float error_bound)
{
	if (score < GV_INFINITY)
		best->least = fminf(best->least, 2.0f * error_bound - score);
	best->score = fmaxf(best->score, score);
}

/* Returns the best of scores 4 threadIdx.x .., every 4 blockDim.x. */
static __device__ __forceinline__ Best
best_of(const float *scores, const float *error_bound, uint32_t n)
{
	Best		best = {GV_INFINITY, -GV_INFINITY};

#pragma unroll 4
	for (uint32_t s = threadIdx.x; s < n / 4; s += blockDim.x)
	{
		float4		a = ((const float4 *) scores)[s];
		float4		e = ((const float4 *) error_bound)[s];

		add_score(&best, a.x, e.x);
		add_score(&best, a.y, e.y);
		add_score(&best, a.z, e.z);
		add_score(&best, a.w, e.w);
	}
	return best;
}

/* Makes a query overflow, so that it is searched again. */
static __device__ __forceinline__ void
give_up(const GvExactFilter &filter, int i)
{
	filter.d_counts[i] = filter.capacity + 1;
	filter.d_thresholds[i] = GV_NAN;
}

/*
 * A block finds a query's threshold, from its neighbors and from the scores of
 * slots matmul.first .., a multiple of four, and appends those of these slots
 * that reach it; it clears the lists, if there are any.  The best of each
 * thread's rows counts for the bound: k of these are k rows, and not far from
 * the k best, which are mostly of different threads.
 */
static __global__ void __launch_bounds__(MOST_THREADS)
first_thresholds_kernel(GvExactNormalization norm, GvExactQueries queries,
						GvExactPart part, GvExactMatmul matmul,
						const float *d_error_bounds, GvExactOverflowed lists)
{
	__shared__ uint32_t slots[2][GV_WARP];
	int			i = blockIdx.x;
	uint32_t	n = matmul.nslots;
	const float *scores = matmul.d_scores + (int64_t) i * n;
	GvBlockReduce reduce = {slots, 0};
	int64_t		query;
	GvExactQuery form;
	Best		best;
	float		least;
	float		threshold;

	gv_pdl_wait();
	query = gv_exact_query(part, i);
	form = queries.d_forms[query];
	best = best_of(scores, d_error_bounds, n);
	threshold = gv_exact_neighbor_threshold(norm, queries, form, query);
	if (threadIdx.x == 0)
		matmul.filter.d_counts[i] = 0;
	if (threadIdx.x < 2 && i == 0 && lists.d_counts != NULL)
		lists.d_counts[threadIdx.x] = 0;

	uint32_t	wanted = (uint32_t) queries.k + (queries.d_self != NULL);
	OwnKey		keys = {gv_ordered(best.least)};

	/* this has barriers, so nothing is appended before d_counts is cleared */
	least = -gv_unordered(gv_find_kth_bound(keys, blockDim.x, wanted,
											wanted / 8, reduce));
	threshold = gv_exact_raise_threshold(threshold, least, form.error_bound,
										 norm.half_dims);
	if (matmul.more && threshold == -GV_INFINITY)
	{
		if (threadIdx.x == 0)
			give_up(matmul.filter, i);
		return;
	}
	if (best.score >= threshold)
		for (uint32_t s = threadIdx.x; s < n / 4; s += blockDim.x)
			for (uint32_t j = 4 * s; j < 4 * s + 4; j++)
				if (scores[j] >= threshold)
					gv_exact_append(matmul.filter, i, matmul.first + j);
	if (threadIdx.x == 0)
		matmul.filter.d_thresholds[i] = threshold;
}

/* A thread appends one of slots first .. first + nslots - 1 for a query. */
static __global__ void __launch_bounds__(THREADS)
all_candidates_kernel(GvExactPart part, GvExactFilter filter, uint32_t first,
					  uint32_t nslots)
{
	int64_t		at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		i = at / nslots;
	uint32_t	s = (uint32_t) (at % nslots);

	if (i >= part.n)
		return;
	filter.d_candidates[i * filter.capacity + s] = first + s;
	if (s == 0)
		filter.d_counts[i] = nslots;
}

GvStatus
gv_gpu_exact_thresholds(const GvExactSearch *search, const GvExactPart *part,
						const GvExactOverflowed *lists)
{
	return gv_launch(neighbor_thresholds_kernel,
					 gv_blocks_for(part->n, THREADS), THREADS, 0,
					 search->work->stream, *search->norm, *search->queries,
					 *part, search->work->filter,
					 lists != NULL ? *lists : GvExactOverflowed {});
}

GvStatus
gv_gpu_exact_undefined(const GvExactSearch *search,
					   const GvExactOverflowed *lists)
{
	return gv_launch(undefined_kernel,
					 gv_blocks_for(search->queries->n, THREADS), THREADS, 0,
					 search->work->stream, *search->queries, *lists);
}

GvStatus
gv_gpu_exact_choose(const GvExactSearch *search, const GvExactPart *part,
					const GvExactMatmul *matmul)
{
	int			bytes = matmul->nslots <= ALL_SHARED ?
		(int) (matmul->nslots * sizeof(uint32_t)) : 0;

	return gv_launch(choose_rows_kernel, part->n,
					 part->n <= FEW_QUERIES ? MOST_THREADS : THREADS, bytes,
					 search->work->stream, *search->queries, *part, *matmul,
					 search->rows->d_error_bounds + matmul->first);
}

/*
 * Returns the threads of a block of first_thresholds_kernel.  Each has one row
 * for the bound of a query's k nearest, and there are eight threads for each
 * of these, so about one in 16 of the k nearest is not the best row of its
 * thread.
 */
static int
first_threads(const GvExactQueries *queries, int32_t n)
{
	int			threads = n <= FEW_QUERIES ? MOST_THREADS : THREADS;

	while (threads < 8 * (queries->k + 1) && threads < MOST_THREADS)
		threads *= 2;
	return threads;
}

bool
gv_gpu_exact_first_fits(const GvExactQueries *queries, int64_t nslots)
{
	return nslots % 4 == 0 && 8 * (queries->k + 1) <= MOST_THREADS;
}

GvStatus
gv_gpu_exact_first(const GvExactSearch *search, const GvExactPart *part,
				   const GvExactMatmul *matmul, const GvExactOverflowed *lists)
{
	return gv_launch_pdl(matmul->filter.pdl, first_thresholds_kernel,
						 matmul->n, first_threads(search->queries, part->n), 0,
						 search->work->stream, *search->norm, *search->queries,
						 *part, *matmul, search->rows->d_error_bounds,
						 lists != NULL ? *lists : GvExactOverflowed {});
}

/* At most as many slots as a query has memory for. */
GvStatus
gv_gpu_exact_all_candidates(const GvExactSearch *search,
							const GvExactPart *part, uint32_t first,
							uint32_t nslots)
{
	return gv_launch(all_candidates_kernel,
					 gv_blocks_for((int64_t) part->n * nslots, THREADS),
					 THREADS, 0, search->work->stream, *part,
					 search->work->filter, first, nslots);
}
