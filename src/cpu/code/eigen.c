/*
 * eigen.c
 *		Eigenvectors of a symmetric matrix, and a matrix made orthogonal.
 *
 * Each pair of the matrix's rows is rotated in the plane of the two rows,
 * until all rows are at right angles.  A row is then its eigenvector times the
 * eigenvalue (one-sided Jacobi: Hestenes, "Inversion of matrices by
 * biorthogonalization", 1958).
 */
#include <math.h>
#include <string.h>

#include "cpu/code/gv_eigen.h"

#define LANES			GV_CPU_LANES64
#define SWEEPS			16		/* at most; about ten are enough */
#define RIGHT_ANGLE		1e-6	/* rows with a smaller cosine stay as is */
#define LEAST_FRACTION		1e-7	/* of the mean eigenvalue; added to each
									 * eigenvalue, so that every eigenvector
									 * has a direction */

/*
 * Returns the product of two rows, summed in lanes that a compiler can keep in
 * registers.
 */
static double
row_product(const double *a, const double *b, int32_t n)
{
	double		sums[LANES] = {0};
	int32_t		d;
	int			l;

	for (d = 0; d + LANES <= n; d += LANES)
		for (l = 0; l < LANES; l++)
			sums[l] += a[d + l] * b[d + l];
	for (l = 0; d + l < n; l++)
		sums[l] += a[d + l] * b[d + l];
	return gv_add_lanes64(sums);
}

/*
 * Rotates rows a and b until they are at right angles and a is the longer one.
 * *a_square and *b_square are their squared lengths, before and after.
 * Returns false if nothing had to be done.
 *
 * With t the tangent, a + t b and b - t a are at right angles if
 * t^2 + t (|a|^2 - |b|^2) / <a, b> = 1.  The two roots have the product -1;
 * the one with the sign of <a, b> makes a longer.
 */
static bool
turn_rows(double *restrict a, double *restrict b, int32_t n, double *a_square,
		  double *b_square)
{
	double		product = row_product(a, b, n);
	bool		right = fabs(product) <=
	RIGHT_ANGLE * sqrt(*a_square * *b_square);
	double		cosine = 0.0;
	double		sine = 1.0;
	int32_t		d;

	if (right && *a_square >= *b_square)
		return false;
	if (!right)
	{
		double		ratio = (*a_square - *b_square) / (2.0 * product);
		double		tangent = (ratio < 0.0 ? -1.0 : 1.0) /
		(fabs(ratio) + sqrt(1.0 + ratio * ratio));

		if (*a_square < *b_square)
			tangent = -1.0 / tangent;
		cosine = 1.0 / sqrt(1.0 + tangent * tangent);
		sine = cosine * tangent;
	}
	for (d = 0; d < n; d++)
	{
		double		from = a[d];

		a[d] = cosine * from + sine * b[d];
		b[d] = cosine * b[d] - sine * from;
	}
	*a_square = row_product(a, a, n);
	*b_square = row_product(b, b, n);
	return true;
}

/*
 * Rotates all pairs of rows until no pair needs it, or SWEEPS times.  Returns
 * false if the caller must give up.
 */
static bool
turn_all(double *rows, double *squares, int32_t dims, GvPoll *poll)
{
	bool		turned = true;
	int			sweep;
	int32_t		i;
	int32_t		j;

	for (sweep = 0; sweep < SWEEPS && turned; sweep++)
	{
		turned = false;
		for (i = 0; i < dims; i++)
			for (j = i + 1; j < dims; j++)
			{
				if (gv_poll(poll, 8 * (int64_t) dims))
					return false;
				turned |= turn_rows(rows + (size_t) i * dims,
									rows + (size_t) j * dims, dims,
									&squares[i], &squares[j]);
			}
	}
	return true;
}

bool
gv_cpu_eigen(const float *c, int32_t dims, double *values, float *vectors,
			 double *rows, GvPoll *poll)
{
	double		trace = 0.0;
	int32_t		i;
	int32_t		d;

	for (i = 0; i < dims; i++)
		trace += c[(size_t) i * dims + i];
	for (i = 0; i < dims; i++)
	{
		double	   *row = rows + (size_t) i * dims;

		for (d = 0; d < dims; d++)
			row[d] = c[(size_t) i * dims + d];
		row[i] += trace / dims * LEAST_FRACTION;
		values[i] = row_product(row, row, dims);
	}
	if (!turn_all(rows, values, dims, poll))
		return false;
	for (i = 0; i < dims; i++)
	{
		const double *row = rows + (size_t) i * dims;

		values[i] = sqrt(values[i]);
		for (d = 0; d < dims; d++)
			vectors[(size_t) i * dims + d] = (float) (row[d] / values[i]);
	}
	return true;
}

/*
 * Computes c [n][n], the products of the rows of a [n][n] with those of b
 * [n][n], summed in double.  Returns false if the caller must give up.
 */
static bool
multiply(const float *a, const float *b, int32_t n, float *c, GvPoll *poll)
{
	int32_t		i;
	int32_t		j;

	for (i = 0; i < n; i++)
	{
		if (gv_poll(poll, 2 * (int64_t) n * n))
			return false;
		for (j = 0; j < n; j++)
			c[(size_t) i * n + j] = (float)
				gv_kernels->dot64(a + (size_t) i * n, b + (size_t) j * n, n);
	}
	return true;
}

/*
 * Each step, x <- (3 - x x') / 2 x, squares the distance from an orthogonal
 * matrix (Newton and Schulz: Higham, "Functions of Matrices", 2008, chapter
 * 8).
 */
bool
gv_cpu_orthogonalize(float *x, int32_t dims, int steps, float *spare,
					 GvPoll *poll)
{
	size_t		n = (size_t) dims * dims;
	float	   *factor = spare;
	float	   *columns = spare + n;
	int			step;
	int32_t		i;

	for (step = 0; step < steps; step++)
	{
		if (!multiply(x, x, dims, factor, poll))
			return false;
		for (i = 0; i < dims; i++)
		{
			int32_t		j;

			for (j = 0; j < dims; j++)
			{
				size_t		at = (size_t) i * dims + j;

				factor[at] = (i == j ? 1.5f : 0.0f) - factor[at] / 2.0f;
				columns[(size_t) j * dims + i] = x[at];
			}
		}
		if (!multiply(factor, columns, dims, x, poll))
			return false;
	}
	return true;
}
