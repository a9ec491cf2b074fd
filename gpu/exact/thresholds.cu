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

/*
 * A thread stores a query's threshold and clears its candidates.  Queries
 * without a threshold are listed and get NaN, which no row reaches (rows that
 * half precision cannot hold would reach infinity).  The threshold of
 * undefined queries is always NaN.
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
	if (filter.d_thresholds[i] != -GV_INFINITY)
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
 * A block finds a query's threshold, from its neighbors and from the scores of
 * slots matmul.first .., and appends those of these slots that reach it; it
 * clears the lists, if there are any.  If of_threads, only the best row of
 * each thread counts for the bound: k of these are k rows, and not far from
 * the k best, which are mostly of different threads.
 */
static __global__ void __launch_bounds__(MOST_THREADS)
score_thresholds_kernel(GvExactNormalization norm, GvExactQueries queries,
						GvExactPart part, GvExactMatmul matmul,
						const float *d_error_bounds, GvExactOverflowed lists,
						GvExactUse use, bool of_threads)
{
	__shared__ uint32_t slots[2][GV_WARP];
	int			i = blockIdx.x;
	uint32_t	n = matmul.nslots;
	const float *scores = matmul.d_scores + (int64_t) i * n;
	/* one more, which may be the query's own row */
	uint32_t	wanted = (uint32_t) queries.k + (queries.d_self != NULL);
	GvBlockReduce reduce = {slots, 0};
	uint32_t	bound = gv_ordered(GV_INFINITY);
	float		most = GV_INFINITY; /* no A of this thread's rows is larger */
	int64_t		query;
	GvExactQuery form;
	float		threshold;

	/* the largest A - 2 e(x) have the least keys */
	auto		key_of = [&] (uint32_t s)
	{
		float		score = scores[s];

		/* a row that half precision cannot hold may be anywhere */
		return gv_ordered(score < GV_INFINITY ?
						  2.0f * d_error_bounds[s] - score : GV_INFINITY);
	};

	gv_pdl_wait();
	query = gv_exact_query(part, i);
	form = queries.d_forms[query];
	threshold = gv_exact_neighbor_threshold(norm, queries, form, query);
	if (threadIdx.x == 0)
		matmul.filter.d_counts[i] = 0;
	if (threadIdx.x < 2 && i == 0 && lists.d_counts != NULL)
		lists.d_counts[threadIdx.x] = 0;
	__syncthreads();

	/* 1. the bound */
	if (of_threads)
	{
		uint32_t	best = bound;

		most = -GV_INFINITY;
#pragma unroll 8
		for (uint32_t s = threadIdx.x; s < n; s += blockDim.x)
		{
			most = fmaxf(most, scores[s]);
			best = min(best, key_of(s));
		}
		bound = gv_find_kth_bound([=] (uint32_t) { return best; }, blockDim.x,
								  wanted, wanted / 8, reduce);
	}
	else if (wanted <= n)
		bound = gv_find_kth_bound(key_of, n, wanted, wanted / 8, reduce);
	threshold = gv_exact_raise_threshold(threshold, -gv_unordered(bound),
										 form.error_bound, norm.half_dims);

	/* 2. the slots that reach it, or more than there is room for */
	if (use == GV_FOR_OTHERS && threshold == -GV_INFINITY)
	{
		threshold = GV_NAN;
		if (threadIdx.x == 0)
			matmul.filter.d_counts[i] = matmul.filter.capacity + 1;
	}
	if (most >= threshold)
		for (uint32_t s = threadIdx.x; s < n; s += blockDim.x)
			if (scores[s] >= threshold)
				gv_exact_append(matmul.filter, i, matmul.first + s);
	if (threadIdx.x == 0)
		matmul.filter.d_thresholds[i] = threshold;
}

GvStatus
gv_gpu_exact_thresholds(const GvExactSearch *search, const GvExactPart *part)
{
	return gv_launch(neighbor_thresholds_kernel,
					 gv_blocks_for(part->n, THREADS), THREADS, 0,
					 search->work->stream, *search->norm, *search->queries,
					 *part, search->work->filter, search->work->lists);
}

GvStatus
gv_gpu_exact_undefined(const GvExactSearch *search,
					   const GvExactOverflowed *lists)
{
	return gv_launch(undefined_kernel,
					 gv_blocks_for(search->queries->n, THREADS), THREADS, 0,
					 search->work->stream, *search->queries, *lists);
}

/*
 * The bound is from the best rows of threads if there are eight threads for
 * each of the k nearest, so that about one in 16 of these is not the best row
 * of its thread.
 */
GvStatus
gv_gpu_exact_score_thresholds(const GvExactSearch *search,
							  const GvExactPart *part,
							  const GvExactMatmul *matmul, GvExactUse use,
							  const GvExactOverflowed *lists)
{
	int64_t		wanted = 8 * (search->queries->k + 1);
	bool		of_threads =
		use != GV_FOR_OVERFLOWED && wanted <= MOST_THREADS;
	int			threads = part->n <= FEW_QUERIES ? MOST_THREADS : THREADS;

	while (of_threads && threads < wanted)
		threads *= 2;
	return gv_launch_pdl(matmul->filter.pdl, score_thresholds_kernel, part->n,
						 threads, 0, search->work->stream, *search->norm,
						 *search->queries, *part, *matmul,
						 search->rows->d_error_bounds + matmul->first,
						 lists != NULL ? *lists : GvExactOverflowed {}, use,
						 of_threads);
}
