/*
 * exact.cuh
 *		Device code that the files of exact search share: the filter's scores,
 *		thresholds, candidates, and the order of neighbors.
 *
 * Proof.  m and s, a power of two, are computed from 256 rows of the first
 * batch.
 *
 * Let u(x) be x (L2, inner product), x / |x| (cosine), or x less its mean and
 * divided by its length (Pearson); r = (u(x) - m) s; p = (u(q) - m) s for L2,
 * else u(q) s_q; and
 *
 *	S = <p, r> + b,		b = -|r|^2 / 2 for L2, else 0
 *
 * In exact numbers |q - x|^2 s^2 = |p|^2 - 2 S, and <u(q), u(x)> s s_q = S + s
 * s_q <u(q), m>.  So a row is at a distance of at most t if and only if S >=
 * threshold, with
 *
 *	threshold = (|p|^2 - t^2 s^2) / 2					L2
 *	threshold = (-t - <u(q), m>) s s_q					inner product
 *	threshold = (1 - t - <u(q), m>) s s_q				cosine, Pearson
 *
 * Let p', r' be the half copies, P >= |p|, E >= |p - p'|, C >= |r|, F >= |r -
 * r'|: measured in double from what is stored, so that underflow, subnormal
 * halves and the rounding to half precision are in E and F whatever they were
 * (a priori they are below u P and u C, u = 2^-11, and 2^-25 sqrt(dims): this
 * is the (2u + u^2) |q||x| that one would have without measuring, twice as
 * much).
 *
 *	- <p', r'> - <p, r> = <p' - p, r'> + <p, r' - r>, so it is at most
 *	  E (C + F) + P F (Cauchy, Schwarz)
 *	- fp32 sums, of products and of a number B that sums begin with or that is
 *	  added, are off by at most g ((P + E) (C + F) + |B|), g = (half_dims + 32)
 *	  2^-22, in whatever order: see product/product.h
 *	- m, s are what they are, numbers in double; what is rounded is u(x) - m,
 *	  u(x), |r|^2 and the distances that t is one of, sums of up to 16,000
 *	  terms in double: each below 2^-38 of |u(x)| + |m|, times s in r.  Of
 *	  Pearson's distances the same holds with |x| / |x - mean| for |u(x)|,
 *	  because a mean is rounded beside |x|.  Four such are below
 *	  2^-36 (|u(x)| + |m|) s, which F has besides, and E likewise; of L2
 *	  2^-34 (|p|^2 + t^2 s^2) is taken off the threshold
 *
 * With x y <= (x^2 / w + w y^2) / 2 the products of a query's and a row's
 * number become sums: of (E + g (P + E)) and (C + F) with w = 2^-12 + g, of P
 * and F with w = 2^-12.  Let e(q) and e(x) be the two parts, e(x) with g |b|,
 * a hundredth more, and 2^-40, so that all of this is strict.  The device
 * computes
 *
 *	A = fp32 of <p', r'> + b + e(x)
 *	S - e(q) < A < S + e(q) + 2 e(x)
 *
 * so each row of S >= threshold has A > threshold - e(q).  Where sums begin
 * with what is compared, too (hopperfilter.cu), they are off by g |threshold|
 * more, so the threshold is c - 1.01 (e(q) + (g + 2^-20) |c|), where c is the
 * one above: a row that does not reach it is no neighbor.  (The hundredth is
 * for g times what was taken off, as g < .004.)  For rows of equal length e(q)
 * + e(x) is the first sum; for others it is larger: that lets more pass, never
 * fewer.  A row with a component beyond 65,000 after scaling has A = +infinity
 * and is reranked for all queries; such a query reranks all rows.  Rows all of
 * whose distances are NaN have A = -infinity: they count only where a query
 * has fewer than k others, and then it has no threshold.
 *
 *	- t is the k-th distance so far.  A query with fewer neighbors takes its
 *	  threshold from scores of some thousand rows: k of them have S > l - e(q),
 *	  l the k-th largest of A - 2 e(x), or of those that are the largest of
 *	  some rows; so the k nearest have, too, and A > l - 2 e(q).  The threshold
 *	  is l - 1.01 (2 e(q) + (g + 2^-20) |l|), for the same reasons
 *	- more candidates than fit: that query is searched again among these rows
 *	  with full scores in memory and a threshold from them, and, where still
 *	  too many are that near (ties, say), by reranking all rows
 *	- a query that has no u(q) has NaN for all distances: its neighbors are
 *	  the rows that come first
 *
 * A row's bias is b + e(x).  A row that half precision cannot hold has a half
 * copy of 0.
 *
 * The rows of a batch are taken in the order of slots.  If the rows have a
 * given order (d_order), slots follow this order.  Otherwise slot i has row (i
 * * stride) modulo n, so that each run of slots is much like a random sample
 * of the batch, whatever order its rows have.
 */
#ifndef GV_EXACT_CUH
#define GV_EXACT_CUH

#include "gpu/device/warp.cuh"
#include "gpu/exact/exact.h"

#define GV_EXACT_CLAMP	1e38f	/* larger than any score with a finite bias */
#define GV_EXACT_NAN	((double) GV_NAN)

enum GvExactKind
{
	GV_EXACT_PLAIN,
	GV_EXACT_UNDEFINED,			/* all distances of the query are NaN */
	GV_EXACT_UNHELD				/* half precision cannot hold the query */
};

/* Returns a bound of the relative error of sums: see gpu/product/product.h. */
static __host__ __device__ inline double
gv_exact_gamma(int half_dims)
{
	return (half_dims + 32) * 0x1p-22;
}

static __device__ __forceinline__ int64_t
gv_exact_row(const GvExactRows &rows, uint32_t slot)
{
	if (rows.d_order != NULL)
		return rows.d_order[slot];
	return (int64_t) ((uint64_t) slot * (uint64_t) rows.stride %
					  (uint64_t) rows.n);
}

/*
 * Returns a threshold that is reached by the score A of every row whose
 * distance from the query is at most `last`.
 */
static __device__ __forceinline__ float
gv_exact_threshold_at(const GvExactNormalization &norm,
					  const GvExactQuery &form, double last)
{
	double		gamma = gv_exact_gamma(norm.half_dims);
	double		threshold;
	double		error_bound;

	if (norm.metric == GV_SET_L2)
	{
		double		scaled = last * norm.d_scale->scale;

		threshold = 0.5 * (form.square - scaled * scaled);
		error_bound = 0x1p-34 * (form.square + scaled * scaled);
	}
	else
	{
		double		near = form.unit *
			(norm.metric == GV_SET_IP ? -last : 1.0 - last);

		threshold = near - form.offset;
		error_bound = 0x1p-48 * (fabs(near) + fabs(form.offset) + form.unit);
	}
	threshold -= 1.01 * (form.error_bound + error_bound +
						 (gamma + 0x1p-20) * fabs(threshold));
	if (!(threshold > -(double) GV_EXACT_CLAMP))
		return -GV_EXACT_CLAMP;
	return threshold > (double) GV_EXACT_CLAMP ? GV_EXACT_CLAMP :
		(float) threshold;
}

/*
 * Returns the threshold that follows from the distance of a query's k-th
 * neighbor.  For an undefined query the threshold is NaN, which no row
 * reaches.  For a query that has fewer than k neighbors, or that half
 * precision cannot hold, the threshold is -infinity, which every row reaches.
 */
static __device__ __forceinline__ float
gv_exact_neighbor_threshold(const GvExactNormalization &norm,
							const GvExactQueries &queries,
							const GvExactQuery &form, int64_t query)
{
	double		last = queries.d_distances[query * queries.k + queries.k - 1];

	if (form.kind == GV_EXACT_PLAIN && last == last)
		return gv_exact_threshold_at(norm, form, last);
	return form.kind == GV_EXACT_UNDEFINED ? GV_NAN : -GV_INFINITY;
}

/*
 * Returns the larger of two thresholds of a query: the given one, and the one
 * that follows from k rows whose A - 2 e(x) is at least `least`.  If the query
 * is itself a row, there must be k + 1 of these rows.
 */
static __device__ __forceinline__ float
gv_exact_raise_threshold(float threshold, float least, float error_bound,
						 int half_dims)
{
	float		gamma = (float) gv_exact_gamma(half_dims);

	least -= 1.01f * (2.0f * error_bound + (gamma + 0x1p-20f) * fabsf(least));
	return least > threshold ? least : threshold;
}

/*
 * Returns whether a neighbor comes before another one.  Neighbors whose
 * distance is NaN come last, and a missing neighbor also has distance NaN.
 */
static __device__ __forceinline__ bool
gv_exact_before(double distance, int64_t position, double other,
				int64_t other_position)
{
	bool		none = distance != distance;
	bool		other_none = other != other;

	if (none != other_none)
		return other_none;
	if (!none && distance != other)
		return distance < other;
	return position < other_position;
}

/*
 * Appends a slot to the candidates of query i of a part, if their number is
 * below the capacity.  The slot is counted in any case.
 */
static __device__ __forceinline__ void
gv_exact_append(const GvExactFilter &filter, int i, uint32_t slot)
{
	uint32_t	at = atomicAdd(&filter.d_counts[i], 1u);

	if (at < filter.capacity)
		filter.d_candidates[(int64_t) i * filter.capacity + at] = slot;
}

/* Returns the number, among all queries, of query i of a part. */
static __device__ __forceinline__ int64_t
gv_exact_query(const GvExactPart &part, int64_t i)
{
	return part.d_list != NULL ? (int64_t) part.d_list[i] : part.first + i;
}

/* Appends a query to a list and counts the query. */
static __device__ __forceinline__ void
gv_exact_put_into(uint32_t *count, uint32_t *list, int64_t query)
{
	list[atomicAdd(count, 1u)] = (uint32_t) query;
}

#endif							/* GV_EXACT_CUH */
