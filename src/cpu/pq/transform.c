/*
 * transform.c
 *		Moves raw vectors into the space in which the engine works.
 *
 * The mean is subtracted because an offset that all vectors share would cost
 * digits of fp32.  The scale keeps squares far from the ends of the range of
 * floats.  It is a power of two, so that multiplying by it rounds nothing.  A
 * rotation comes last (rotation.c).
 */
#include <math.h>

#include "cpu/cpu.h"

#define CHUNK	1024			/* dimensions summed at a time, on the stack */
#define PROBES	255				/* rows from which the usual length is found */
#define OUTLIER	16.0			/* rows that are longer than this many times
								 * the usual length are not used */

#define MAX_EXPONENT	126		/* maximum magnitude of the scale's exponent;
								 * 2^-126 is the smallest normal float */

/*
 * Returns the factor by which a row x is multiplied before the mean is
 * subtracted: 1 / |x| for cosine, or 0 if the length of x is zero; 1 for other
 * metrics.
 */
static double
row_factor(GvMetric metric, const float *x, int32_t dims)
{
	double		square;

	if (metric != GV_COSINE)
		return 1.0;
	square = gv_square(x, dims);
	return square > 0.0 ? 1.0 / sqrt(square) : 0.0;
}

int64_t
gv_transform(const GvModel *model, const float *x, int64_t n, float *y)
{
	int32_t		dims = model->dims;
	double		scale = model->scale;
	int64_t		nzero = 0;
	int64_t		row;
	int32_t		i;

	for (row = 0; row < n; row++)
	{
		const float *from = x + (size_t) row * dims;
		float	   *to = y + (size_t) row * dims;
		double		factor = row_factor(model->metric, from, dims);
		float		placed[GV_MAX_ROTATED];

		if (factor == 0.0)
			nzero++;
		if (model->rotation != NULL)
			to = placed;
		for (i = 0; i < dims; i++)
			to[i] = gv_clamp((from[i] * factor - model->mean[i]) * scale);
		if (model->rotation != NULL)
			gv_rotate(dims, model->rotation, dims, placed,
					  y + (size_t) row * dims);
	}
	return nzero;
}

/*
 * Returns the squared length above which a row is an outlier: OUTLIER^2 times
 * the median squared length of rows spread over the sample.  Without this
 * limit, a single row with elements of 1e38 would determine the mean and the
 * scale, and all other rows would lose their digits.
 */
static double
outlier_square(int32_t dims, const float *x, int64_t n)
{
	double		squares[PROBES];
	int			count = gv_at_most(n, PROBES);
	int			i;

	for (i = 0; i < count; i++)
	{
		const float *row = x + (size_t) (n / count * i) * dims;
		double		square = gv_square(row, dims);
		int			at = i;

		for (; at > 0 && squares[at - 1] > square; at--)
			squares[at] = squares[at - 1];
		squares[at] = square;
	}
	if (squares[count / 2] > 0.0)
		return squares[count / 2] * OUTLIER * OUTLIER;
	return squares[count - 1];
}

/* Computes the mean of dimensions first .. first + len - 1, len <= CHUNK. */
static void
mean_of_chunk(GvMetric metric, int32_t dims, const float *x, int64_t n,
			  double outlier, int32_t first, int32_t len, float *mean)
{
	double		sums[CHUNK] = {0};
	int64_t		count = 0;
	int64_t		row;
	int32_t		i;

	for (row = 0; row < n; row++)
	{
		const float *from = x + (size_t) row * dims;
		double		factor = row_factor(metric, from, dims);

		if (gv_square(from, dims) > outlier)
			continue;
		count++;
		for (i = 0; i < len; i++)
			sums[i] += from[first + i] * factor;
	}
	for (i = 0; i < len && count > 0; i++)
		mean[first + i] = gv_clamp(sums[i] / (double) count);
}

/*
 * Returns the mean of |f x - mean|^2 over the rows x that are not outliers,
 * where f is the row's factor (row_factor).
 */
static double
mean_square(GvMetric metric, int32_t dims, const float *x, int64_t n,
			double outlier, const float *mean)
{
	double		total = 0.0;
	int64_t		count = 0;
	int64_t		row;
	int32_t		i;

	for (row = 0; row < n; row++)
	{
		const float *from = x + (size_t) row * dims;
		double		factor = row_factor(metric, from, dims);
		double		sum = 0.0;

		if (gv_square(from, dims) > outlier)
			continue;
		count++;
		for (i = 0; i < dims; i++)
		{
			double		diff = from[i] * factor - mean[i];

			sum += diff * diff;
		}
		total += sum;
	}
	return count > 0 ? total / (double) count : 0.0;
}

void
gv_fit_transform(GvMetric metric, int32_t dims, const float *x, int64_t n,
				 float *mean, float *scale)
{
	double		outlier;
	double		square;
	int			exponent;
	int32_t		i;

	for (i = 0; i < dims; i++)
		mean[i] = 0.0f;
	*scale = 1.0f;
	if (n < 1)
		return;

	outlier = outlier_square(dims, x, n);
	if (metric != GV_IP)
		for (i = 0; i < dims; i += CHUNK)
			mean_of_chunk(metric, dims, x, n, outlier, i,
						  gv_at_most(dims - i, CHUNK), mean);

	square = mean_square(metric, dims, x, n, outlier, mean);
	if (square > 0.0)
	{
		/* sqrt(square) = fraction * 2^exponent, fraction in [1/2, 1) */
		if (frexp(sqrt(square), &exponent) < 0.70710678)
			exponent--;
		exponent = exponent > MAX_EXPONENT ? MAX_EXPONENT : exponent;
		exponent = exponent < -MAX_EXPONENT ? -MAX_EXPONENT : exponent;
		*scale = (float) ldexp(1.0, -exponent);
	}
}
