/*
 * coded.c
 *		Coarse search over centroids in bytes: which of them may be nearest.
 *
 * Centroid c is kept as c^ = step * w, w in -127 .. 127 a dimension, one step
 * each, with a bound e of |c - c^|.  A product <q, w> tells
 *		v = |q - c^|^2 = |q|^2 - 2 step <q, w> + |c^|^2, or v = -step <q, w>
 * and so, by the triangle inequality, what the list score may be:
 *		L2, cosine		(sqrt(v) - e)^2 .. (sqrt(v) + e)^2
 *		inner product	v - |q| e .. v + |q| e
 *
 * Rounding.  With u = 2^-24 and s = 2 (dims + 64) u, sums over the dimensions
 * in fp32, those of v and those of the score itself, have errors below s / 2 of
 * their terms' magnitudes, which for v add up to no more than |q|^2 + |c^|^2
 * (|q| |c^| for the inner product); the rest of s is for the few operations
 * that follow, and FLT_MIN for what underflows.
 */
#include <math.h>

#include "cpu/gv_kernels.h"

#define RUN			64			/* centroids compared at a time */
#define LEVELS		127

/* Squares from here on prove nothing: sums might overflow. */
#define HUGE_SQUARE	1e36f

/* A query, as far as bounds go. */
typedef struct Query
{
	bool		product;
	float		square;			/* |q|^2 */
	double		length;			/* |q| */
	double		slack;			/* s */
} Query;

static Query
make_query(const GvModel *model, const float *query)
{
	double		square = -gv_distance_ip(query, query, model->dims);
	Query		q = {model->metric == GV_IP, gv_clamp(square), sqrt(square),
	2.0 * (model->dims + 64) / 16777216.0};

	return q;
}

/* By how much v may be off. */
static inline double
slack_of(const Query *q, const GvCoded *coded)
{
	return q->slack * (q->square + coded->square) + FLT_MIN;
}

/* What the list score is not above. */
static float
most(const Query *q, const GvCoded *coded, float value)
{
	double		most = value + slack_of(q, coded);

	if (value == -HUGE_VALF)
		return GV_SCORE_MAX;
	if (q->product)
		most += q->length * coded->error * (1.0 + q->slack);
	else
	{
		most = sqrt(most > 0.0 ? most : 0.0) + coded->error;
		most *= most * (1.0 + q->slack);
	}
	return gv_score((float) (most + fabs(most) * 1e-7 + FLT_MIN));
}

/* See gv_coarse_encode. */
GvStatus
gv_cpu_coarse_encode(int32_t dims, const float *x, int64_t n, int8_t *codes,
					 GvCoded *coded)
{
	int64_t		row;
	int32_t		i;

	for (row = 0; row < n; row++)
	{
		const float *from = x + (size_t) row * dims;
		int8_t	   *to = codes + (size_t) row * dims;
		float		largest = 0.0f;
		double		error = 0.0;
		int64_t		square = 0;
		float		step;
		float		inverse;

		for (i = 0; i < dims; i++)
			largest = fmaxf(largest, fabsf(from[i]));
		step = largest / LEVELS;
		inverse = step >= FLT_MIN ? 1.0f / step : 0.0f;
		for (i = 0; i < dims; i++)
		{
			float		level = from[i] * inverse;
			int32_t		w = (int32_t) (level + (level < 0.0f ? -0.5f : 0.5f));
			double		diff = from[i] - (double) step * w;

			to[i] = (int8_t) w;
			square += w * w;
			error += diff * diff;
		}
		coded[row].step = step;
		coded[row].square = (float) ((double) step * step * (double) square);
		coded[row].error = (float) (sqrt(error) * (1.0 + 1e-6)) + FLT_MIN;
		if (!(coded[row].square < HUGE_SQUARE))
			coded[row].square = HUGE_VALF;
	}
	return GV_OK;
}

/* See gv_coarse_offer. */
GvStatus
gv_cpu_coarse_offer(const GvModel *model, const float *query,
					const int8_t *codes, const GvCoded *coded, int32_t n,
					uint64_t first_id, float *values, GvTopK *best)
{
	Query		q = make_query(model, query);
	float		products[RUN];
	int32_t		done;
	int32_t		i;

	for (done = 0; done < n; done += RUN)
	{
		int32_t		count = n - done < RUN ? n - done : RUN;

		gv_kernels->byte_dots(query, codes + (size_t) done * model->dims,
							  count, model->dims, products);
		for (i = 0; i < count; i++)
		{
			const GvCoded *c = &coded[done + i];
			float		value = c->step * products[i];

			value = q.product ? -value : (q.square - 2.0f * value) + c->square;
			if (!(q.square < HUGE_SQUARE && c->square < HUGE_SQUARE))
				value = -HUGE_VALF;
			values[done + i] = value;
			if (best->count < best->capacity || value < best->scores[0])
				gv_topk_push(best, most(&q, c, value),
							 first_id + (uint64_t) (done + i));
		}
	}
	return GV_OK;
}

/* See gv_coarse_keep. */
GvStatus
gv_cpu_coarse_keep(const GvModel *model, const float *query,
				   const GvCoded *coded, const float *values, int32_t n,
				   float reach, int32_t *kept, int32_t *nkept)
{
	Query		q = make_query(model, query);
	double		length = sqrt((reach > 0.0f ? reach : 0.0) *
							  (1.0 + q.slack) + FLT_MIN);
	int32_t		count = 0;
	int32_t		i;

	for (i = 0; i < n; i++)
	{
		double		least = values[i] - slack_of(&q, &coded[i]);
		double		far = length + coded[i].error;

		if (q.product)
			far = reach + fabs(reach) * q.slack +
				q.length * coded[i].error * (1.0 + q.slack);
		else
			far *= far * (1.0 + q.slack);
		kept[count] = i;
		count += !(least > far);	/* NaN is kept */
	}
	*nkept = count;
	return GV_OK;
}
