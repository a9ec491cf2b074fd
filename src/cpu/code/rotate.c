/*
 * rotate.c
 *		Vectors times an orthogonal matrix, and what that costs in accuracy.
 *
 * A rotation R is rounded from an orthogonal matrix Q.  With f >= |R R' - 1|,
 * by the sum of squares, singular values of R are within f of 1, so
 * |R x - Q x| <= f |x| for the Q nearest to R.  Sums in double lose less than
 * 1e-11 |x|; rounding them to fp32 costs u = 2^-24 of what they are, and where
 * that underflows less than FLT_MIN.  gv_learn_rotation sees to f <= rho / 2.
 */
#include <math.h>

#include "cpu/simd/gv_kernels.h"
#include "engine/gv_call.h"

/* See gv_engine.h. */
float
gv_rotation_error(int32_t dims)
{
	return (float) ((sqrt(dims) + 8.0) / (1 << 22));
}

/* See gv_engine.h. */
double
gv_rotation_defect(int32_t dims, const float *rotation, int32_t row)
{
	const float *x = rotation + (size_t) row * dims;
	double		diff = gv_kernels->dot64(x, x, dims) - 1.0;
	double		defect = diff * diff;
	int32_t		i;

	for (i = 0; i < row; i++)
	{
		diff = gv_kernels->dot64(x, rotation + (size_t) i * dims, dims);
		defect += 2.0 * diff * diff;
	}
	return defect;
}

/* See gv_engine.h. */
bool
gv_is_rotation(int32_t dims, double defect)
{
	return defect <= gv_rotation_error(dims) * gv_rotation_error(dims) / 4.0;
}

/* See gv_engine.h. */
void
gv_rotate(int32_t dims, const float *rows, int32_t n, const float *x, float *y)
{
	int32_t		i;

	for (i = 0; i < n; i++)
		y[i] = gv_clamp(gv_kernels->dot64(rows + (size_t) i * dims, x, dims));
}
