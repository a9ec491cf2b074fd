/*
 * refine.c
 *		Refine records, which store vectors in 8 bits a dimension or in half
 *		precision, and the bounds on distances that follow from them.
 *
 * Sums are computed in fp32, as sixteen partial sums.  Everything that is
 * computed from a sum, and every margin, is a double and is rounded outwards
 * at the end.  gv_engine.h states the bounds.
 */
#include <math.h>

#include "cpu/simd/kernels.h"
#include "engine/gv_call.h"

#define LANES	GV_CPU_LANES
#define LEVELS	255				/* steps from the smallest to the largest */

/*
 * Elements and lengths from HUGE_LENGTH on, and sums from HUGE_SUM on, give no
 * useful bound.  Computations with them might overflow, and gv_transform might
 * have clamped such elements to the range of floats.
 */
#define HUGE_LENGTH	1e18
#define HUGE_SUM	1e37

/* A query, and the numbers from which all bounds of the query are computed. */
typedef struct Query
{
	const float *q;				/* [dims] */
	int32_t		dims;
	double		slack;			/* s of gv_engine.h */
	double		length;			/* |q| */
} Query;

static inline double
add_lanes(const float *sums /* [LANES] */ )
{
	double		total = 0.0;
	int			l;

	for (l = 0; l < LANES; l++)
		total += sums[l];
	return total;
}

/* Returns the largest float that is not above the value. */
static float
round_down(double value)
{
	float		rounded;

	if (value < -(double) FLT_MAX)
		return -HUGE_VALF;
	rounded = gv_clamp(value);
	if ((double) rounded > value)
		rounded = nextafterf(rounded, -HUGE_VALF);
	return rounded;
}

/* Returns the smallest float that is not below the value. */
static float
round_up(double value)
{
	return -round_down(-value);
}

/* Encodes one vector (see gv_refine_encode). */
static void
encode(int32_t dims, const float *restrict x, uint8_t *restrict codes,
	   float *min, float *step, float *error)
{
	float		least = x[0];
	float		most = x[0];
	double		levels;
	double		square = 0.0;
	int32_t		i;

	for (i = 1; i < dims; i++)
	{
		least = x[i] < least ? x[i] : least;
		most = x[i] > most ? x[i] : most;
	}
	*min = least;
	*step = (float) (((double) most - least) / LEVELS);
	levels = most > least ? LEVELS / ((double) most - least) : 0.0;
	for (i = 0; i < dims; i++)
	{
		uint8_t		code = (uint8_t) (((double) x[i] - least) * levels + 0.5);
		double		diff = (double) x[i] -
		gv_refine_decode(least, *step, code);

		codes[i] = code;
		square += diff * diff;
	}

	/* this factor is far larger than the error of a sum in double */
	*error = round_up(sqrt(square) * (1.0 + 1e-9));
	if (!(most < HUGE_LENGTH && least > -HUGE_LENGTH))
		*error = HUGE_VALF;
}

GvStatus
gv_refine_encode(int32_t dims, const float *x, int64_t n, uint8_t *codes,
				 float *min, float *step, float *error)
{
	int64_t		row;

	GV_CALL(gv_engine_calls, gv_valid_dims(dims) && x != NULL && n >= 1 &&
			codes != NULL && min != NULL && step != NULL && error != NULL);
	for (row = 0; row < n; row++)
		encode(dims, x + (size_t) row * dims, codes + (size_t) row * dims,
			   &min[row], &step[row], &error[row]);
	return GV_OK;
}

/*
 * Returns |q - x^| - error, lowered by the margins, or 0 if that is negative.
 */
static float
distance_bound(const Query *query, const GvRefine *record)
{
	float		sums[LANES];
	double		sum;
	double		square;
	double		bound;

	gv_kernels->record_sums(query->q, record, NULL, query->dims, sums, NULL);
	sum = add_lanes(sums);
	square = sum * (1.0 - query->slack) - FLT_MIN;
	if (!(sum < HUGE_SUM) || square <= 0.0)
		return 0.0f;
	bound = sqrt(square) * (1.0 - 1e-9) - record->error;
	return bound > 0.0 ? round_down(bound) : 0.0f;	/* 0 if the bound is NaN */
}

/* Returns -<q, x^> - |q| error, lowered by the margins. */
static float
product_bound(const Query *query, const GvRefine *record)
{
	double		error = query->length * record->error;
	float		sums[LANES];
	float		magnitudes[LANES];
	double		magnitude;
	double		bound;

	gv_kernels->record_sums(query->q, record, NULL, query->dims, sums,
							magnitudes);
	magnitude = add_lanes(magnitudes);
	bound = -add_lanes(sums) - error -
		2.0 * query->slack * (magnitude + error) -
		FLT_MIN * (1.0 + query->length);
	if (!(magnitude < HUGE_SUM) || !(query->length < HUGE_LENGTH) ||
		!(error < HUGE_SUM))
		return -HUGE_VALF;
	return round_down(bound);
}

GvStatus
gv_refine_bound(GvMetric metric, int32_t dims, const float *query,
				const GvRefine *records, int64_t n, float *bounds)
{
	Query		q = {query, dims, (dims + 64) / 16777216.0, 0.0};
	int64_t		i;

	GV_CALL(gv_engine_calls, gv_valid_metric(metric) && gv_valid_dims(dims) &&
			query != NULL && records != NULL && n >= 1 && bounds != NULL);
	for (i = 0; i < n; i++)
		if (records[i].codes == NULL)
			return GV_INVALID;
	if (metric == GV_IP)
		q.length = sqrt(gv_square(query, dims));
	for (i = 0; i < n; i++)
		bounds[i] = metric == GV_IP ? product_bound(&q, &records[i]) :
			distance_bound(&q, &records[i]);
	return GV_OK;
}

GvStatus
gv_half_encode(int32_t dims, const float *x, int64_t n, uint16_t *half_vectors,
			   float *error)
{
	int64_t		row;

	GV_CALL(gv_engine_calls, gv_valid_dims(dims) && x != NULL && n >= 1 &&
			half_vectors != NULL && error != NULL);
	for (row = 0; row < n; row++, x += dims, half_vectors += dims)
	{
		double		square = 0.0;
		bool		huge = false;
		int32_t		i;

		gv_to_half(x, dims, half_vectors);
		for (i = 0; i < dims; i++)
		{
			double		diff = (double) x[i] -
			(double) gv_half_value(half_vectors[i]);

			square += diff * diff;
			huge |= !(x[i] < HUGE_LENGTH && x[i] > -HUGE_LENGTH);
		}
		error[row] = huge ? HUGE_VALF :
			round_up(sqrt(square) * (1.0 + 1e-9));
	}
	return GV_OK;
}

/*
 * Returns the range |q - x^| +- error, widened by the margins.  Its lower end
 * is at least 0.
 */
static GvRange
distance_range(const Query *query, const GvHalfRecord *record)
{
	GvRange		range = {0.0f, HUGE_VALF};
	float		sums[LANES];
	double		sum;
	double		least;
	double		most;

	gv_kernels->record_sums(query->q, NULL, record->values, query->dims, sums,
							NULL);
	sum = add_lanes(sums);
	if (!(sum < HUGE_SUM) || !(record->error < HUGE_SUM))
		return range;
	least = sum * (1.0 - query->slack) - FLT_MIN;
	most = sqrt(sum * (1.0 + query->slack) + FLT_MIN) * (1.0 + 1e-9);
	if (least > 0.0)
		least = sqrt(least) * (1.0 - 1e-9) - record->error;
	if (least > 0.0)
		range.least = round_down(least);
	range.most = round_up(most + record->error);
	return range;
}

/* Returns the range -<q, x^> +- |q| error, widened by the margins. */
static GvRange
product_range(const Query *query, const GvHalfRecord *record)
{
	GvRange		range = {-HUGE_VALF, HUGE_VALF};
	double		error = query->length * record->error;
	float		sums[LANES];
	float		magnitudes[LANES];
	double		magnitude;
	double		product;
	double		margin;

	gv_kernels->record_sums(query->q, NULL, record->values, query->dims, sums,
							magnitudes);
	magnitude = add_lanes(magnitudes);
	product = -add_lanes(sums);
	margin = error + 2.0 * query->slack * (magnitude + error) +
		FLT_MIN * (1.0 + query->length);
	if (!(magnitude < HUGE_SUM) || !(query->length < HUGE_LENGTH) ||
		!(error < HUGE_SUM))
		return range;
	range.least = round_down(product - margin);
	range.most = round_up(product + margin);
	return range;
}

GvStatus
gv_half_range(GvMetric metric, int32_t dims, const float *query,
			  const GvHalfRecord *records, int64_t n, GvRange *ranges)
{
	Query		q = {query, dims, (dims + 64) / 16777216.0, 0.0};
	int64_t		i;

	GV_CALL(gv_engine_calls, gv_valid_metric(metric) && gv_valid_dims(dims) &&
			query != NULL && records != NULL && n >= 1 && ranges != NULL);
	for (i = 0; i < n; i++)
		if (records[i].values == NULL)
			return GV_INVALID;
	if (metric == GV_IP)
		q.length = sqrt(gv_square(query, dims));
	for (i = 0; i < n; i++)
		ranges[i] = metric == GV_IP ? product_range(&q, &records[i]) :
			distance_range(&q, &records[i]);
	return GV_OK;
}
