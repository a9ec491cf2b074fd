/*
 * exact.cuh
 *		Device code that the files of exact search share: the filter's scores,
 *		thresholds, candidates, and the order of neighbors.
 *
 * The filter (see "Proof" in README).  A vector x becomes
 *		r(x) = (u(x) - m) scale,	m a mean of rows, scale a power of two
 *		u(x) = x (L2, inner product), x / |x| (cosine), or x less its own mean,
 *		divided by its length (Pearson)
 * and a query p(q), likewise for L2, and without m for the others.  A row is
 * near if its score is large,
 *		S = <p, r> + b,		b = -|r|^2 / 2 for L2, else 0
 * because |q - x|^2 scale^2 = |p|^2 - 2 S, and <u(q), u(x)> is S / unit and a
 * number of the query alone.  With half copies p' and r' the device computes
 *		A = <p', r'> + bias,	bias = b + e(x)
 * in fp32, and has S - e(q) <= A <= S + e(q) + 2 e(x).  So rows that reach
 * S >= threshold all reach A >= threshold - e(q).
 *
 * Rows that half precision cannot hold have bias = +infinity and a half copy
 * of 0, so all queries rerank them.  Rows from which all distances are NaN
 * have bias = -infinity.
 *
 * Rows of a batch are taken in the order of slots.  Slot i is row i * stride
 * modulo n, so that each run of slots is much like a sample of the batch,
 * whatever the order of its rows; or slots follow a given order.
 */
#ifndef GV_EXACT_CUH
#define GV_EXACT_CUH

#include "gpu/device/warp.cuh"
#include "gpu/exact/exact.h"

#define GV_EXACT_CLAMP	1e38f	/* no score with a finite bias is as large */
#define GV_EXACT_NAN	((double) GV_NAN)

enum GvExactKind
{
	GV_EXACT_PLAIN,
	GV_EXACT_UNDEFINED,			/* all its distances are NaN */
	GV_EXACT_UNHELD				/* half precision cannot hold it */
};

/* Returns a relative error bound of sums: gpu/product/product.h. */
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

/* Returns the least A of a row that may be nearer to a query than `last`. */
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
 * Returns the threshold that follows from a query's last neighbor.  If it has
 * fewer neighbors, the threshold is NaN for an undefined query, which no row
 * reaches, and -infinity for others, which every row reaches.
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
 * Returns the larger of a query's threshold and the one that follows from k
 * rows, or k + 1 if the query is itself a row, whose A - 2 e(x) is at least
 * `least`.
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
 * Is a neighbor before another?  NaN is last, also that of a missing neighbor.
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
 * Appends a candidate of a query, if there is room, and counts it in any case.
 */
static __device__ __forceinline__ void
gv_exact_append(const GvExactFilter &filter, int i, uint32_t slot)
{
	uint32_t	at = atomicAdd(&filter.d_counts[i], 1u);

	if (at < filter.capacity)
		filter.d_candidates[(int64_t) i * filter.capacity + at] = slot;
}

/* Returns the number of the i-th query of a part. */
static __device__ __forceinline__ int64_t
gv_exact_query(const GvExactPart &part, int64_t i)
{
	return part.d_list != NULL ? (int64_t) part.d_list[i] : part.first + i;
}

/* Appends a query to a list. */
static __device__ __forceinline__ void
gv_exact_put_into(uint32_t *count, uint32_t *list, int64_t query)
{
	list[atomicAdd(count, 1u)] = (uint32_t) query;
}

#endif							/* GV_EXACT_CUH */
