/*
 * rotate.c
 *		Products of vectors with an orthogonal matrix, and the errors of these
 *		products.
 *
 * A rotation R is an orthogonal matrix Q, rounded.  Let f >= |R R' - 1|, the
 * root of the sum of squares.  Then the singular values of R are within f of
 * 1, so |R x - Q x| <= f |x| for the Q nearest to R.  Sums in double lose less
 * than 1e-11 |x|.  Rounding a sum to fp32 loses at most u = 2^-24 times the
 * sum or, if it underflows, less than FLT_MIN.  gv_learn_rotation ensures that
 * f <= rho / 2.
 */
#include <math.h>

#include "cpu/simd/kernels.h"
#include "engine/gv_call.h"

float
gv_rotation_error(int32_t dims)
{
	return (float) ((sqrt(dims) + 8.0) / (1 << 22));
}

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

bool
gv_is_rotation(int32_t dims, double defect)
{
	return defect <= gv_rotation_error(dims) * gv_rotation_error(dims) / 4.0;
}

void
gv_rotate(int32_t dims, const float *rows, int32_t n, const float *x, float *y)
{
	int32_t		i;

	for (i = 0; i < n; i++)
		y[i] = gv_clamp(gv_kernels->dot64(rows + (size_t) i * dims, x, dims));
}
