/*
 * coded.c
 *		Coarse search in bytes: which centroids may be nearest.
 *
 * A vector x is kept as x^ = step * w, w in -127 .. 127 a dimension, with a
 * bound e of |x - x^|.  Of a query q and a centroid c the product <v, w> of
 * their bytes, exact in integers, tells
 *		d = |q^|^2 - 2 <q^, c^> + |c^|^2, or d = -<q^, c^>,
 * and so, by the triangle inequality, where the list score must lie:
 *		L2, cosine		(sqrt(d) - E)^2 .. (sqrt(d) + E)^2, E = e_q + e_c
 *		inner product	d - E .. d + E, E = e_q |c^| + |q^| e_c + e_q e_c
 *
 * Rounding.  With u = 2^-24 and s = 2 (dims + 64) u, the score's own fp32 sum
 * has an error below s / 2 of the score, of (|q^| + e_q) (|c^| + e_c) for the
 * inner product.  A value d in fp32 has one below s (|q^| + |c^|)^2, and the
 * rest of s is for the few operations on it; FLT_MIN is for what underflows.
 */
#include <math.h>

#include "cpu/gv_kernels.h"

#define RUN			64			/* centroids compared at a time */
#define LEVELS		127

/* Lengths from here on prove nothing: squares might overflow. */
#define HUGE_LENGTH	1e18f

/* s */
static inline float
slack(int32_t dims)
{
	return (float) (2.0 * (dims + 64) / 16777216.0);
}

/* E, with what rounding of the score adds to it for the inner product. */
static inline float
error_of(const GvCodedQuery *query, float length, float error)
{
	float		s = slack(query->dims);

	if (query->metric != GV_IP)
		return (query->error + error) * (1.0f + s);
	return (query->error * length + query->length * error +
			query->error * error) * (1.0f + s) + s * query->length * length;
}

/* By how much d may be off. */
static inline float
slack_of(const GvCodedQuery *query, float length)
{
	float		both = query->length + length;

	return slack(query->dims) * both * both + FLT_MIN;
}

/* What the list score of centroid i is not above. */
static float
most(const GvCodedQuery *query, const GvCoded *coded, int32_t i, float value)
{
	double		error = error_of(query, coded->lengths[i], coded->errors[i]);
	double		most = (double) value + slack_of(query, coded->lengths[i]);

	if (value == -HUGE_VALF)
		return GV_SCORE_MAX;
	if (query->metric == GV_IP)
		most += error;
	else
	{
		most = sqrt(most > 0.0 ? most : 0.0) + error;
		most *= most * (1.0 + slack(query->dims));
	}
	return gv_score((float) (most + fabs(most) * 1e-7 + FLT_MIN));
}

/* One vector; see gv_coarse_encode. */
static void
encode(int32_t dims, const float *restrict x, int8_t *restrict codes,
	   float *step, float *length, float *error)
{
	float		largest = 0.0f;
	double		missed = 0.0;
	int64_t		square = 0;
	float		inverse;
	int32_t		i;

	for (i = 0; i < dims; i++)
		largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
	*step = largest / LEVELS;
	inverse = *step >= FLT_MIN ? 1.0f / *step : 0.0f;
	for (i = 0; i < dims; i++)
	{
		float		level = x[i] * inverse;
		int32_t		w = (int32_t) (level + (level < 0.0f ? -0.5f : 0.5f));
		double		diff = x[i] - (double) *step * w;

		codes[i] = (int8_t) w;
		square += w * w;
		missed += diff * diff;
	}
	*length = (float) (*step * sqrt((double) square));
	*error = (float) (sqrt(missed) * (1.0 + 1e-6)) + FLT_MIN;
}

/* See gv_coarse_encode. */
GvStatus
gv_cpu_coarse_encode(int32_t dims, const float *x, int64_t n,
					 const GvCoded *coded)
{
	int64_t		row;

	for (row = 0; row < n; row++)
		encode(dims, x + (size_t) row * dims,
			   coded->codes + (size_t) row * dims, &coded->steps[row],
			   &coded->lengths[row], &coded->errors[row]);
	return GV_OK;
}

/*
 * values [n] = d of centroids whose products with the query are known, or
 * -HUGE_VALF where nothing is known.
 */
static void
find_values(const GvCodedQuery *query, const float *restrict steps,
			const float *restrict lengths, const int32_t *restrict products,
			int32_t n, float *restrict values)
{
	bool		inner = query->metric == GV_IP;
	float		most = query->length < HUGE_LENGTH ? HUGE_LENGTH : 0.0f;
	float		square = inner ? 0.0f : query->length * query->length;
	float		weight = inner ? 0.0f : 1.0f;
	float		factor = (inner ? -1.0f : -2.0f) * query->step;
	int32_t		i;

	for (i = 0; i < n; i++)
		values[i] = factor * steps[i] * (float) products[i] + square +
			weight * lengths[i] * lengths[i];
	/* apart, so that compilers make vector code of the loop above */
	for (i = 0; i < n; i++)
		if (!(lengths[i] < most))
			values[i] = -HUGE_VALF;
}

/* See gv_coarse_offer. */
GvStatus
gv_cpu_coarse_offer(const GvCodedQuery *query, const GvCoded *coded,
					int32_t n, uint64_t first_id, float *values,
					GvTopK *best)
{
	int32_t		products[RUN];
	int32_t		done;
	int32_t		i;

	for (done = 0; done < n; done += RUN)
	{
		int32_t		count = n - done < RUN ? n - done : RUN;

		gv_kernels->byte_dots(query->codes,
							  coded->codes + (size_t) done * query->dims,
							  count, query->dims, products);
		find_values(query, coded->steps + done, coded->lengths + done,
					products, count, values + done);
		for (i = done; i < done + count; i++)
			if (best->count < best->capacity || values[i] < best->scores[0])
				gv_topk_push(best, most(query, coded, i, values[i]),
							 first_id + (uint64_t) i);
	}
	return GV_OK;
}

/* Which of n centroids may have a score within reach? */
static void
compare_values(const GvCodedQuery *query, const float *restrict lengths,
			   const float *restrict errors, const float *restrict values,
			   int32_t n, float reach, int32_t *restrict may)
{
	float		more = 1.0f + 2.0f * slack(query->dims);
	float		length = sqrtf((reach > 0.0f ? reach : 0.0f) * more + FLT_MIN);
	int32_t		i;

	if (query->metric == GV_IP)
	{
		reach += fabsf(reach) * 1e-6f;
		for (i = 0; i < n; i++)
			may[i] = !(values[i] - slack_of(query, lengths[i]) >
					   reach + error_of(query, lengths[i], errors[i]));
		return;
	}
	for (i = 0; i < n; i++)
	{
		float		far = length + (query->error + errors[i]);

		may[i] = !(values[i] - slack_of(query, lengths[i]) >
				   far * far * more);	/* true for NaN */
	}
}

/* See gv_coarse_keep. */
GvStatus
gv_cpu_coarse_keep(const GvCodedQuery *query, const GvCoded *coded,
				   const float *values, int32_t n, float reach,
				   int32_t *kept, int32_t *nkept)
{
	int32_t		may[RUN];
	int32_t		count = 0;
	int32_t		done;
	int32_t		i;

	for (done = 0; done < n; done += RUN)
	{
		int32_t		some = n - done < RUN ? n - done : RUN;

		compare_values(query, coded->lengths + done, coded->errors + done,
					   values + done, some, reach, may);
		for (i = 0; i < some; i++)
			if (may[i])
				kept[count++] = done + i;
	}
	*nkept = count;
	return GV_OK;
}
