/*
 * approximate.cu
 *		The nearest lists of many queries, or of very many lists: scores in
 *		half precision from tensor cores, and exact ones for the lists that may
 *		be among the nearest.
 *
 *		halve	queries to half precision, and what that can do to scores
 *				(in gv_gpu_table where queries come from the host)
 *		product	approximate scores of all lists (listscores.cu)
 *		choose	the lists near enough, their exact scores, the nearest
 *				(choose.cu)
 *
 * Proof.  Let q', c' be the half copies of q and c, and
 *		a = w * sum + |c|^2,  w = -2 and |c|^2 in fp32 (L2, cosine), or
 *		a = w * sum,          w = -1 (inner product)
 * the approximate score, sum being what tensor cores make of <q', c'>.  With
 * Q >= |q|, E >= |q - q'|, C >= |c|, F >= |c - c'| (measured, the latter two
 * the largest of any list):
 *	- |<q', c'> - <q, c>| <= E (C + F) + Q F, by Cauchy and Schwarz
 *	- sum differs from <q', c'> by at most (dims + 32) 2^-22 (Q + E)(C + F), in
 *	  whatever order it is made (gpu/product/gv_product.h)
 *	- the exact score, and |c|^2 and the last two roundings of a, have relative
 *	  errors below (dims / 16 + 32) 2^-24 of numbers below (Q + C + E + F)^2
 *	- underflow loses less than 2^-100
 * So a (plus |q|^2, of the query alone) and the fp32 score differ by at most
 * eps, the sum of these, the first two times |w|.  p lists have approximate
 * scores up to the p-th, a_p; the p-th exact score is then at most a_p + eps,
 * and a list that has no larger one has an approximate score up to
 * a_p + 2 eps: the margin.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/common/common.cuh"
#include "gpu/common/half.cuh"
#include "gpu/common/sift.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)

/*
 * Below both the exact scores cost less (H200, 2026-11-21, test/gpu/run.sh
 * lists): a filter takes 22 us for up to 64 queries of 8,192 x 384, the exact
 * lists of 16 queries, 50 M terms, 19 us, of 32 queries 25 us.  Of 500 x 50
 * the latter take 13 us for 128 queries, and longer only from 1,024 on, for
 * the choice among all scores.  Of hundreds of lists wanted a filter takes 60
 * us, for it scores as many exactly.
 */
#define LEAST_TERMS		((int64_t) 1 << 24)
#define LEAST_OF_MANY	((int64_t) 1 << 27)	/* where more are wanted than
											 * sifted */
#define MANY_QUERIES	1024

/*
 * Beyond this L2 does not hold the centroids, and even one query is faster
 * with half the bytes.
 */
#define LARGE_CENTROIDS	(INT64_C(32) << 20)

#define LEAST_FRACTION		4		/* a filter has to keep out most of the
									 * lists */

/*
 * For each list wanted the scores of a run are made again, and its half copies
 * read, at random.  Those are to be fewer bytes than half of what a score
 * written for each list takes (RESULTS, "card lists").
 */
#define AGAIN_BYTES		((int64_t) (GV_RUN * sizeof(uint16_t)))	/* a dimension */
#define SCORE_BYTES		((int64_t) sizeof(float))	/* a list */
#define AGAIN_FACTOR		2

/* A warp a query: d_half_queries and d_squares, in one part. */
static __global__ void __launch_bounds__(THREADS)
queries_to_half_kernel(GvDeviceModel model, GvBatch batch)
{
	int64_t		query = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	const float *from = batch.d_queries + query * model.dims;
	GvHalfRounding<float> rounding;

	gv_step_begins();
	if (query >= batch.n)
		return;
	rounding = gv_to_half_vector<float>([=](int d)
	{
		return d < model.dims ? from[d] : 0.0f;
	}, model.half_dims, batch.approx.d_half_queries + query * model.half_dims);
	if (threadIdx.x % GV_WARP == 0)
		batch.approx.d_squares[query] = {rounding.square, rounding.error};
}

/* see gv_gpu_approximate_from and gv_gpu_scores_kept */
static GV_TUNABLE int64_t approximate_from = -1;
static GV_TUNABLE int64_t scores_kept = GV_SCORES_KEPT;

#ifdef GV_TEST_BUILD

/* See gv_coarse.h. */
void
gv_gpu_approximate_from(int64_t terms)
{
	approximate_from = terms;
}

/* See gv_coarse.h. */
void
gv_gpu_scores_kept(int64_t scores)
{
	scores_kept = scores >= 0 ? scores : GV_SCORES_KEPT;
}

/* See gv_coarse.h. */
GvStatus
gv_gpu_approximate_ways(GvSearcher *searcher, uint32_t ways[GV_COARSE_WAYS])
{
	GV_TRY(gv_choose_device(searcher->device));
	GV_CUDA_TRY(cudaMemcpyAsync(ways, searcher->d_ways.memory,
								GV_COARSE_WAYS * sizeof(uint32_t),
								cudaMemcpyDeviceToHost, searcher->stream));
	return gv_cuda_status(cudaStreamSynchronize(searcher->stream));
}

#endif

/* From how many queries on do exact scores of all lists cost more? */
static int64_t
least_queries(const GvDeviceModel *model, int32_t probes)
{
	int64_t		terms = (int64_t) model->nlists * model->dims;
	int64_t		least = probes <= GV_SIFT_MOST ? LEAST_TERMS : LEAST_OF_MANY;

	if (approximate_from < 0 &&
		terms * (int64_t) sizeof(float) > LARGE_CENTROIDS)
		return 1;
	least = ((approximate_from >= 0 ? approximate_from : least) + terms - 1) /
		terms;
	return approximate_from >= 0 || least < MANY_QUERIES ? least :
		MANY_QUERIES;
}

/* Is this the way for a batch? */
bool
gv_gpu_approximate_fits(const GvDeviceModel *model, const GvBatch *batch)
{
	return batch->n >= least_queries(model, batch->probes) &&
		batch->probes <= GV_MANY_PROBES &&
		batch->probes <= model->nlists / LEAST_FRACTION;
}

/* See gv_coarse.h. */
int32_t
gv_gpu_coarse_rows(const GvDeviceModel *model, int32_t n, int32_t probes)
{
	int64_t		rows = scores_kept / model->nlists;
	int64_t		exact = least_queries(model, probes) - 1;

	if (probes > GV_MANY_PROBES ||
		probes * AGAIN_BYTES * model->half_dims * AGAIN_FACTOR >
		SCORE_BYTES * model->nlists)
		return n;
	if (rows < exact)
		rows = exact;
	return rows < n ? (int32_t) rows : n;
}

/* d_probed, d_starts and nprobed of a batch. */
GvStatus
gv_gpu_approximate(const GvDeviceModel *model, const GvBatch *batch,
			const GvSearcher *searcher)
{
	GV_TRY(gv_launch_step(queries_to_half_kernel,
						  (batch->n + WARPS - 1) / WARPS,
						  THREADS, 0, searcher->stream, model, batch));
	GV_TRY(gv_gpu_list_scores(model, batch, searcher));
	return gv_gpu_choose(model, batch, searcher->stream);
}
