/*
 * prefilter.c
 *		Discards pairs of a query and a row that are certainly too far apart
 *		(see exact.h).
 *
 * Let u = 2^-24 and v = 2^-53.  Let p(q) and p(x) be the placed vectors,
 * exact, and a and b the same vectors as stored.  |a - p(q)| <= u |a| + h,
 * where h is 0 except for cosine and Pearson, whose factors have an error in
 * double.  g bounds the error of products (gv_estimate_error):
 * P = <a, b> +- g |a| |b|.  slack = g + 8 u exceeds g by all roundings of the
 * steps below, and slack64 = (dims + 64) v covers those of a distance in
 * double, relative or, for cosine and Pearson, absolute.
 *
 * L2, cosine, Pearson.  D = |p(q) - p(x)| is the distance times the scale or,
 * for cosine and Pearson, sqrt(2 distance) times the scale.  Let R be 2 h more
 * than a number that D exceeds only if the distance in double exceeds the
 * farthest one kept.  D exceeds that number if
 *	|a - b| > R + u (|a| + |b|).
 * Because 2 s t <= s^2 + t^2, the square of the right side is at most
 *	R^2 (1 + 2 u) + (|a|^2 + |b|^2) (u + 2 u^2),
 * and the square of the left side is at least
 * |a|^2 + |b|^2 - 2 P - g (|a|^2 + |b|^2).  So it is enough that
 *	|b|^2 (1 - slack) - 2 P > R^2 (1 + 4 u) - |a|^2 (1 - slack) + tiny.
 * In fp32, the left side is off by less than 4 u (|a|^2 + |b|^2), and the
 * right side by less than u (R^2 + |a|^2).
 *
 * Inner product.  Let a = f q, which is exact because f is a power of two,
 * such that 1/2 <= |a| < 2.  With z = f scale, <q, x> z = <a, p(x)> + <q,
 * mean> z.  The negative product in double exceeds the last one kept, W, if
 *	-P - (g + u) |a| |b| - <q, mean> z - slack64 |q| |x| z > W z.
 * Because |x| scale <= |b| (1 + u) + |mean| scale, it is enough that
 *	-(4 g + 32 u) |b| - 2 P > 2 (W z + <q, mean> z) + 8 slack64 (..) + tiny,
 * where 32 u |b| covers the fp32 roundings of the left side.
 *
 * tiny is FLT_MIN and covers underflow.  Numbers of a and b, and products, are
 * then off by 2^-150 each, together by less than FLT_MIN + u (|a|^2 + |b|^2),
 * because squares from HUGE_SQUARE on are let through.
 */
#include <math.h>

#include "cpu/exact/exact.h"

#define UNIT		GV_FILTER_UNIT	/* u */
#define UNIT64		(1.0 / 9007199254740992.0)	/* v */
#define HUGE_SQUARE	GV_CPU_HUGE_SQUARE

/*
 * Returns whether the metric compares directions only, so that vectors are
 * scaled to length one.
 */
static bool
of_directions(const GvPrefilter *prefilter)
{
	return prefilter->metric == GV_SET_COSINE ||
		prefilter->metric == GV_SET_PEARSON;
}

/*
 * Finds the shift and factor of a row, or of a query if the metric is not
 * GV_SET_IP.  Returns false if all distances of the vector are NaN.
 */
static bool
find_factor(const GvPrefilter *prefilter, const float *x, double *shift,
			double *factor)
{
	double		square;

	*shift = 0.0;
	*factor = 1.0;
	if (!of_directions(prefilter))
		return true;
	if (prefilter->metric == GV_SET_PEARSON)
	{
		*shift = gv_cpu_mean64(x, prefilter->dims);
		square = gv_cpu_centered_dot64(x, *shift, x, *shift, prefilter->dims);
	}
	else
		square = gv_kernels->dot64(x, x, prefilter->dims);
	*factor = square > 0.0 ? 1.0 / sqrt(square) : 0.0;
	return square > 0.0;
}

/* Places a vector.  Numbers that overflow become infinite. */
static void
place(const GvPrefilter *prefilter, const float *x, double shift,
	  double factor, float *placed)
{
	double		scale = prefilter->scale;
	const float *mean = prefilter->mean;
	int32_t		i;

	for (i = 0; i < prefilter->dims; i++)
		placed[i] = (float) ((((double) x[i] - shift) * factor - mean[i]) *
							 scale);
}

void
gv_prefilter_fit(GvPrefilter *prefilter, GvSetMetric metric, int32_t dims,
				 const float *rows, int64_t n, float *placed)
{
	double		square;
	float		scale;
	int64_t		i;

	prefilter->metric = metric;
	prefilter->dims = dims;
	prefilter->slack = gv_estimate_error(dims) + 8.0 * UNIT;
	prefilter->slack64 = (dims + 64) * UNIT64;
	for (i = 0; i < dims; i++)
		prefilter->mean[i] = 0.0f;
	prefilter->scale = 1.0;
	for (i = 0; i < n; i++)
	{
		double		shift;
		double		factor;

		(void) find_factor(prefilter, rows + i * dims, &shift, &factor);
		place(prefilter, rows + i * dims, shift, factor, placed + i * dims);
	}
	gv_fit_transform(GV_L2, dims, placed, n, prefilter->mean, &scale);
	square = gv_kernels->dot64(prefilter->mean, prefilter->mean, dims);
	prefilter->scale = scale;
	prefilter->mean_length = sqrt(square) * prefilter->scale;
	prefilter->is_fitted = true;
}

GvPrefiltered
gv_prefilter_query(const GvPrefilter *prefilter, const float *query,
				   float *placed)
{
	int32_t		dims = prefilter->dims;
	GvPrefiltered prefiltered = {0};

	if (prefilter->metric != GV_SET_IP)
		prefiltered.is_null =
			!find_factor(prefilter, query, &prefiltered.shift,
						 &prefiltered.factor);
	else
	{
		double		square = gv_kernels->dot64(query, query, dims);
		int			exponent = 0;

		/*
		 * the factor is a power of two that brings the query to a length of
		 * 1/2 to 1
		 */
		(void) frexp(sqrt(square), &exponent);
		prefiltered.factor = ldexp(1.0, -exponent);
		prefiltered.unit = prefiltered.factor * prefilter->scale;
		prefiltered.offset =
			gv_kernels->dot64(query, prefilter->mean, dims) * prefiltered.unit;
	}
	gv_prefilter_place(prefilter, &prefiltered, query, placed);
	prefiltered.square = gv_kernels->dot64(placed, placed, dims);
	return prefiltered;
}

void
gv_prefilter_place(const GvPrefilter *prefilter,
				   const GvPrefiltered *prefiltered, const float *query,
				   float *placed)
{
	int32_t		i;

	if (prefilter->metric != GV_SET_IP)
		place(prefilter, query, prefiltered->shift, prefiltered->factor,
			  placed);
	else
		for (i = 0; i < prefilter->dims; i++)
			placed[i] = (float) (query[i] * prefiltered->factor);
}

void
gv_prefilter_rows(const GvPrefilter *prefilter, const float *rows, int n,
				  float *placed, float *panel, float *squares)
{
	int32_t		dims = prefilter->dims;
	int			i;

	for (i = 0; i < n; i++)
	{
		const float *row = rows + (size_t) i * dims;
		float	   *to = placed + (size_t) i * dims;
		double		shift;
		double		factor;
		bool		has_place = find_factor(prefilter, row, &shift, &factor);
		double		square;

		place(prefilter, row, shift, factor, to);
		square = gv_kernels->dot64(to, to, dims);

		/*
		 * if the row has no direction, its distances are NaN, and it comes
		 * after all neighbors that are kept (see gv_prefilter_limit)
		 */
		if (!has_place)
			squares[i] = HUGE_VALF;
		else if (!(square < HUGE_SQUARE))
			squares[i] = -HUGE_VALF;
		else
			squares[i] = (float) (prefilter->metric == GV_SET_IP ?
								  -sqrt(square) * 4.0 * prefilter->slack :
								  square * (1.0 - prefilter->slack));
	}
	for (; i < GV_PREFILTER_ROWS; i++)
		squares[i] = HUGE_VALF;
	gv_cpu_pack(placed, dims, n, panel);
}

/*
 * Returns the limit for L2, cosine and Pearson, as the head of this file says.
 */
static double
square_limit(const GvPrefilter *prefilter, const GvPrefiltered *prefiltered,
			 double last)
{
	double		reach;
	double		square;

	if (of_directions(prefilter))
		reach = (sqrt(2.0 * (last + 2.0 * prefilter->slack64)) +
				 4.0 * prefilter->slack64) * prefilter->scale;
	else
		reach = last * (1.0 + 2.0 * prefilter->slack64) * prefilter->scale;
	square = reach * reach;
	if (!(square < HUGE_SQUARE && prefiltered->square < HUGE_SQUARE))
		return HUGE_VAL;
	return square * (1.0 + 4.0 * UNIT) -
		prefiltered->square * (1.0 - prefilter->slack) + FLT_MIN;
}

/* Returns the limit for inner products, as the head of this file says. */
static double
product_limit(const GvPrefilter *prefilter, const GvPrefiltered *prefiltered,
			  double last)
{
	double		wanted = last * prefiltered->unit;
	double		limit = 2.0 * (wanted + prefiltered->offset) +
	8.0 * prefilter->slack64 * (prefilter->mean_length + fabs(wanted) +
								fabs(prefiltered->offset));

	if (!(fabs(limit) < HUGE_SQUARE))
		return HUGE_VAL;
	return limit + 2.0 * UNIT * fabs(limit) + FLT_MIN;
}

/*
 * If the last neighbor's distance is a number, rows at distance NaN are too
 * far.  If all distances of the query are NaN and no place is free, all later
 * rows are too far.
 */
float
gv_prefilter_limit(const GvPrefilter *prefilter,
				   const GvPrefiltered *prefiltered, GvKnn last)
{
	if (prefiltered->is_null && last.position != GV_NO_ROW)
		return -HUGE_VALF;
	if (last.distance != last.distance)
		return HUGE_VALF;
	return (float) (prefilter->metric == GV_SET_IP ?
					product_limit(prefilter, prefiltered, last.distance) :
					square_limit(prefilter, prefiltered, last.distance));
}
