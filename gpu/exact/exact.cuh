/*
 * exact.cuh
 *		Device code that the files of exact search share: the filter's scores,
 *		thresholds, candidates, and the order of neighbors.
 *
 * The filter works as follows; gpu/README has the proof.  A vector x becomes
 *		r(x) = (u(x) - m) scale,	m a mean of rows, scale a power of two
 *		u(x) = x (L2, inner product), x / |x| (cosine), or x less its own mean,
 *		divided by its length (Pearson)
 * and a query p(q), likewise for L2, and without m for the others.  A row is
 * near if its score is large,
 *		S = <p, r> + b,		b = -|r|^2 / 2 for L2, else 0
 * because |q - x|^2 scale^2 = |p|^2 - 2 S, and <u(q), u(x)> is S / unit plus a
 * number that depends only on the query.  With half copies p' and r' the
 * device computes
 *		A = <p', r'> + bias,	bias = b + e(x)
 * in fp32, and has S - e(q) <= A <= S + e(q) + 2 e(x).  So rows that reach
 * S >= threshold all reach A >= threshold - e(q).
 *
 * Rows that half precision cannot hold have bias = +infinity and a half copy
 * of 0, so all queries rerank them.  Rows from which all distances are NaN
 * have bias = -infinity.
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
