/*
 * thresholds.cu
 *		The thresholds that scores must reach.  They come from a query's
 *		neighbors so far, or from the scores of many rows.
 *
 * A query with k neighbors, the last of them at distance t, needs no rows
 * beyond t.  In exact numbers, a row is beyond t if S < threshold(t), so a row
 * with A < threshold(t) - e(q) is discarded.  A query with fewer neighbors
 * gets its threshold from full scores: A - 2 e(x) - e(q) is a lower bound of
 * S.  Let l be the k-th largest of these bounds.  Then k rows have S >= l, so
 * the k nearest rows have S >= l, too, and reach A >= l - e(q).
 */
#include "gpu/device/kbound.cuh"
#include "gpu/exact/exact.cuh"

#define THREADS			256
#define MOST_THREADS	1024	/* of a block if there are at most FEW_QUERIES
								 * queries */
#define FEW_QUERIES		128

/*
 * Computes thresholds from neighbors and clears the candidates, a thread for
 * each query.  A query without a threshold is appended to a list, and its
 * threshold is set to NaN, which no row reaches.  (Infinity would not do,
 * because rows that half precision cannot hold reach it.)  The threshold of an
 * undefined query is always NaN.
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

/*
 * Appends undefined queries that have fewer than k neighbors to the list for
 * brute force.
 */
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
 * Computes thresholds from neighbors and from the scores of the slots from
 * matmul.first on, a block for each query.  Appends the slots that reach the
 * threshold to the query's candidates, and clears the lists, if there are any.
 * If of_threads is true, the bound is computed from the best row of each
 * thread only.  This is a valid bound, because the best rows of k threads are
 * k rows.  It is not far from the bound of all rows, because the k best rows
 * mostly belong to different threads.
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
	/* one row more than k, because the query's own row may be one of them */
	uint32_t	wanted = (uint32_t) queries.k + (queries.d_self != NULL);
	GvBlockReduce reduce = {slots, 0};
	uint32_t	bound = gv_ordered(GV_INFINITY);
	float		most = GV_INFINITY; /* no score A of this thread's rows is
									 * larger */
	int64_t		query;
	GvExactQuery form;
	float		threshold;

	/* the largest A - 2 e(x) have the least keys */
	auto		key_of = [&] (uint32_t s)
	{
		float		score = scores[s];

		/* the score of a row that half precision cannot hold bounds nothing */
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

	/*
	 * 2. append the slots that reach the threshold.  If there is none and
	 * other slots are to be filtered, make the query overflow
	 */
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
 * Computes the bound from the best rows of threads if there are eight threads
 * for each of the k nearest rows.  Then about one in 16 of these rows is not
 * the best row of its thread.
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
