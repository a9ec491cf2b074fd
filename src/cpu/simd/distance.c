/*
 * distance.c
 *		Distances between two vectors.  Numbers are added in one fixed order,
 *		which is that of the kernels.
 */
#include <math.h>

#include "cpu/simd/gv_kernels.h"
#include "engine/gv_set.h"

#define LANES64	GV_CPU_LANES64

/*
 * The loop has no branch for each value, so that compilers use vector
 * instructions.
 */
bool
gv_is_finite(const float *x, int64_t n)
{
	uint32_t	bad = 0;
	int64_t		i;

	for (i = 0; i < n; i++)
		bad |= !(fabsf(x[i]) <= FLT_MAX);
	return bad == 0;
}

float
gv_cpu_dot(const float *a, const float *b, int32_t dims)
{
	float		product;

	gv_kernels->dots(a, b, 1, dims, &product);
	return product;
}

float
gv_cpu_sqdist(const float *a, const float *b, int32_t dims)
{
	float		square;

	gv_kernels->sqdists(a, b, 1, dims, &square);
	return square;
}

double
gv_distance_l2(const float *a, const float *b, int32_t dims)
{
	return sqrt(gv_kernels->sqdist64(a, b, dims));
}

double
gv_distance_ip(const float *a, const float *b, int32_t dims)
{
	return -gv_kernels->dot64(a, b, dims);
}

double
gv_square(const float *a, int32_t dims)
{
	return gv_kernels->dot64(a, a, dims);
}

/*
 * Returns the cosine distance of raw vectors, 0 to 2, or NaN if either has
 * length zero.  Squared lengths of finite floats neither overflow nor vanish
 * in double, and neither does their product.  The root of the product is such
 * that a vector has distance 0 from itself.
 */
double
gv_distance_cosine_of(const float *a, double a_square, const float *b,
					  double b_square, int32_t dims)
{
	double		cosine = gv_kernels->dot64(a, b, dims) /
	sqrt(a_square * b_square);

	if (cosine > 1.0)
		cosine = 1.0;
	else if (cosine < -1.0)
		cosine = -1.0;
	return 1.0 - cosine;
}

double
gv_distance_cosine(const float *a, const float *b, int32_t dims)
{
	return gv_distance_cosine_of(a, gv_square(a, dims), b, gv_square(b, dims),
								 dims);
}

double
gv_cpu_mean64(const float *a, int32_t dims)
{
	double		sums[LANES64] = {0};
	int32_t		i;
	int			l;

	for (i = 0; i + LANES64 <= dims; i += LANES64)
		for (l = 0; l < LANES64; l++)
			sums[l] += (double) a[i + l];
	for (l = 0; i < dims; i++, l++)
		sums[l] += (double) a[i];
	return gv_add_lanes64(sums) / dims;
}

double
gv_cpu_centered_dot64(const float *a, double a_mean, const float *b,
					  double b_mean, int32_t dims)
{
	double		sums[LANES64] = {0};
	int32_t		i;
	int			l;

	for (i = 0; i + LANES64 <= dims; i += LANES64)
		for (l = 0; l < LANES64; l++)
			sums[l] += ((double) a[i + l] - a_mean) *
				((double) b[i + l] - b_mean);
	for (l = 0; i < dims; i++, l++)
		sums[l] += ((double) a[i] - a_mean) * ((double) b[i] - b_mean);
	return gv_add_lanes64(sums);
}

/*
 * The result is NaN, from 0 / 0, if all numbers of a vector are equal.  Their
 * mean is then exactly that number, because their sums are exact in double.
 */
double
gv_distance_pearson(const float *a, const float *b, int32_t dims)
{
	double		a_mean = gv_cpu_mean64(a, dims);
	double		b_mean = gv_cpu_mean64(b, dims);
	double		product = gv_cpu_centered_dot64(a, a_mean, a, a_mean, dims) *
	gv_cpu_centered_dot64(b, b_mean, b, b_mean, dims);
	double		correlation =
	gv_cpu_centered_dot64(a, a_mean, b, b_mean, dims) / sqrt(product);

	if (correlation > 1.0)
		correlation = 1.0;
	else if (correlation < -1.0)
		correlation = -1.0;
	return 1.0 - correlation;
}

double
gv_set_distance(GvSetMetric metric, const float *a, const float *b,
				int32_t dims)
{
	switch (metric)
	{
		case GV_SET_L2:
			return gv_distance_l2(a, b, dims);
		case GV_SET_IP:
			return gv_distance_ip(a, b, dims);
		case GV_SET_COSINE:
			return gv_distance_cosine(a, b, dims);
		case GV_SET_PEARSON:
			return gv_distance_pearson(a, b, dims);
	}
	return 0.0;
}
