/*
 * exact.cuh
 *		What the files of exact search on the device share: rows and queries as
 *		the filter sees them, what may be among the nearest, and what is.
 *
 * The filter (see "Proof" in README).  A vector x is seen as
 *		r(x) = (u(x) - m) scale,	m a mean of rows, scale a power of two
 *		u(x) = x (L2, inner product), x / |x| (cosine), or x less its own mean,
 *		divided by its length (Pearson)
 * a query as p(q), likewise for L2, and without m for the others.  A row is
 * near where its score is large,
 *		S = <p, r> + b,		b = -|r|^2 / 2 for L2, else 0
 * because |q - x|^2 scale^2 = |p|^2 - 2 S, and <u(q), u(x)> is S / unit and a
 * number of the query alone.  With half copies p' and r' the device computes
 *		A = <p', r'> + bias,	bias = b + e(x)
 * in fp32, and has S - e(q) <= A <= S + e(q) + 2 e(x).  So rows that reach
 * S >= cut all reach A >= cut - e(q).
 *
 * Rows that half precision cannot hold have bias = +infinity and 0 for a half
 * copy, so all queries rerank them; rows from which all distances are NaN have
 * -infinity.
 *
 * Slots: rows of a batch are taken in the order of slots, slot i being row i *
 * stride modulo n, so that each run of slots is much like a sample of the
 * whole batch, however rows are ordered; or in an order that is given.
 */
#ifndef GV_EXACT_CUH
#define GV_EXACT_CUH

#include "gpu/device/warp.cuh"
#include "gpu/exact/exact.h"

#define GV_EXACT_CLAMP	1e38f	/* no score of a finite bias is so large */
#define GV_EXACT_NAN	((double) GV_NAN)

enum GvExactKind
{
	GV_EXACT_PLAIN,
	GV_EXACT_UNDEFINED,				/* all its distances are NaN */
	GV_EXACT_UNHELD				/* half precision cannot hold it */
};

/* A relative bound of what sums are off by: gpu/product/product.h. */
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

/* The least A of a row that may be nearer to a query than distance `last`. */
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
 * The cut that follows from a query's last neighbor so far.  Where it has no
 * such neighbor, the cut is NaN for a void query, which no row reaches, and
 * -infinity for others, which every row reaches.
 */
static __device__ __forceinline__ float
gv_exact_neighbor_threshold(const GvExactNormalization &norm,
							const GvExactQueries &queries,
							const GvExactQuery &form, int64_t query)
{
	double		last = queries.d_distances[query * queries.k + queries.k - 1];

	if (form.kind == GV_EXACT_PLAIN && last == last)
		return gv_exact_threshold_at(norm, form, last);
	return form.kind == GV_EXACT_UNDEFINED ? GV_NAN :
		-GV_INFINITY;
}

/*
 * The larger of a query's cut and the one that follows from k rows, or k + 1
 * where the query is itself a row, whose A - 2 e(x) is at least `least`.
 */
static __device__ __forceinline__ float
gv_exact_raise_threshold(float threshold, float least, float error_bound,
						 int half_dims)
{
	float		gamma = (float) gv_exact_gamma(half_dims);

	least -= 1.01f * (2.0f * error_bound + (gamma + 0x1p-20f) * fabsf(least));
	return least > threshold ? least : threshold;
}

/* Is a neighbor before another?  NaN is last; free places have NaN, too. */
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

/* A query's slots, as far as there is room; they are counted all the same. */
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

/* By a thread: a query goes another way. */
static __device__ __forceinline__ void
gv_exact_put_into(uint32_t *count, uint32_t *list, int64_t query)
{
	list[atomicAdd(count, 1u)] = (uint32_t) query;
}

#endif							/* GV_EXACT_CUH */
