/*
 * rotation.c
 *		A rotation before product quantization.
 *
 * All sub-quantizers have the same number of codewords, whether the variance
 * of their dimensions is large or small, and a sub-quantizer cannot use the
 * correlation of its dimensions with those of other sub-quantizers.  A
 * rotation leaves distances as they are, and can give the vectors better
 * dimensions: principal components, distributed so that the products of the
 * variances of all sub-quantizers are about the same.  This is the parametric
 * solution of Ge, He, Ke, Sun, "Optimized product quantization", 2013.  The
 * authors then improve the codebooks and the rotation in turns, which gains
 * nothing here (test/bench/RESULTS.md, "rotation").
 */
#include <math.h>
#include <string.h>

#include "cpu/pq/assign.h"
#include "engine/gv_call.h"

/* ----
 * Products of vectors with an orthogonal matrix, and the errors of these
 * products.
 *
 * A rotation R is an orthogonal matrix Q, rounded.  Let f >= |R R' - 1|, the
 * root of the sum of squares.  Then the singular values of R are within f of
 * 1, so |R x - Q x| <= f |x| for the Q nearest to R.  Sums in double lose less
 * than 1e-11 |x|.  Rounding a sum to fp32 loses at most u = 2^-24 times the
 * sum or, if it underflows, less than FLT_MIN.  gv_learn_rotation ensures that
 * f <= rho / 2.
 */

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

/* ----
 * Finds the eigenvectors of a symmetric matrix, and makes a matrix orthogonal.
 *
 * Each pair of the matrix's rows is rotated in the plane of the two rows,
 * until all rows are at right angles.  A row is then its eigenvector times the
 * eigenvalue (one-sided Jacobi: Hestenes, "Inversion of matrices by
 * biorthogonalization", 1958).  Every level of instructions gives the same
 * bits.
 */

#define LANES			GV_CPU_LANES64
#define SWEEPS			16		/* at most; about ten are enough */
#define STEPS			2		/* steps that make eigenvectors orthogonal */
#define RIGHT_ANGLE		1e-6	/* rows with a smaller cosine stay as is */
#define LEAST_FRACTION		1e-7	/* this fraction of the mean eigenvalue is
									 * added to each eigenvalue, so that every
									 * eigenvector has a direction */

/*
 * Returns the product of two rows.  The terms are added in lanes, which a
 * compiler can keep in registers.
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
 * Rotates rows a and b so that they are at right angles and a is the longer
 * one. *a_square and *b_square are the squared lengths of the rows, and are
 * updated.  Returns false if the rows did not have to be rotated.
 *
 * With t the tangent, a + t b and b - t a are at right angles if t^2 + t
 * (|a|^2 - |b|^2) / <a, b> = 1.  The two roots have the product -1; the root
 * that has the sign of <a, b> makes a longer.
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
 * Computes the eigenvalues of c [dims][dims] in descending order, and stores
 * them in values [dims].  The eigenvectors, which are nearly orthogonal,
 * become the rows of vectors [dims][dims].  c is symmetric and not zero, and
 * has no negative eigenvalue.  rows [dims][dims] is scratch.
 */
static bool
find_eigenvectors(const float *c, int32_t dims, double *values, float *vectors,
				  double *rows, GvPoll *poll)
{
	double		trace = 0.0;
	bool		turned = true;
	int			sweep;
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
	for (sweep = 0; sweep < SWEEPS && turned; sweep++)
	{
		turned = false;
		for (i = 0; i < dims; i++)
			for (d = i + 1; d < dims; d++)
			{
				if (gv_poll(poll, 8 * (int64_t) dims))
					return false;
				turned |= turn_rows(rows + (size_t) i * dims,
									rows + (size_t) d * dims, dims,
									&values[i], &values[d]);
			}
	}
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
 * Computes c [n][n], whose element (i, j) is the product of row i of a [n][n]
 * and row j of b [n][n], summed in double.
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
 * Makes x [dims][dims], which is nearly orthogonal, as orthogonal as fp32
 * permits.  spare [2 * dims * dims] is scratch.  Returns false if the caller
 * must give up.
 *
 * Each step, x <- (3 - x x') / 2 x, squares the distance from an orthogonal
 * matrix (Newton and Schulz: Higham, "Functions of Matrices", 2008, chapter
 * 8).
 */
static bool
orthogonalize(float *x, int32_t dims, float *spare, GvPoll *poll)
{
	size_t		n = (size_t) dims * dims;
	float	   *factor = spare;
	float	   *columns = spare + n;
	int			step;
	int32_t		i;

	for (step = 0; step < STEPS; step++)
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

/* ---- learning a rotation ---- */

#define TILE_ROWS	GV_CPU_TILE_ROWS
#define TILE_CENTS	GV_CPU_TILE_CENTS
#define CHUNK		1024		/* vectors whose columns are summed together */

/* State of learning.  The arrays are in the caller's scratch. */
typedef struct Learning
{
	GvModel		model;
	float	   *columns;		/* [dims][CHUNK] columns of some vectors */
	float	   *covariance;		/* [dims][dims] times n */
	double	   *rows;			/* [dims][dims] scratch of find_eigenvectors */
	double	   *values;			/* [dims] eigenvalues */
	int32_t    *order;			/* [dims] component in each row of the
								 * rotation */
	float	   *vectors;		/* [dims][dims] eigenvectors */
	GvPoll		poll;
} Learning;

/* Lays out the scratch, and returns its size. */
static size_t
carve(Learning *learning, int32_t dims, char *scratch)
{
	size_t		square = (size_t) dims * dims;
	size_t		next = 0;

	learning->columns = gv_carve(scratch, &next, sizeof(float) * CHUNK * dims);
	learning->covariance = gv_carve(scratch, &next, sizeof(float) * square);
	learning->rows = gv_carve(scratch, &next, sizeof(double) * square);
	learning->values = gv_carve(scratch, &next, sizeof(double) * dims);
	learning->order = gv_carve(scratch, &next, sizeof(int32_t) * dims);
	learning->vectors = gv_carve(scratch, &next, sizeof(float) * square);
	return next;
}

static bool
is_valid(int32_t dims, int32_t m)
{
	return gv_valid_shape(dims, m) && dims <= GV_MAX_ROTATED;
}

/* Returns 0 for invalid arguments. */
size_t
gv_learn_rotation_scratch(int32_t dims, int32_t m)
{
	Learning	learning;

	return is_valid(dims, m) ? carve(&learning, dims, NULL) : 0;
}

/* Adds the products of columns [dims][len] to the covariance. */
static bool
add_products(Learning *learning, int32_t len)
{
	float		products[TILE_ROWS * TILE_CENTS];
	int32_t		dims = learning->model.dims;
	int32_t		first;
	int32_t		row;
	int			i;
	int			c;

	for (first = 0; first < dims; first += TILE_CENTS)
		for (row = 0; row < dims; row += TILE_ROWS)
		{
			int			ncents = gv_at_most(dims - first, TILE_CENTS);
			int			nrows = gv_at_most(dims - row, TILE_ROWS);

			if (gv_poll(&learning->poll, (int64_t) nrows * ncents * len))
				return false;
			gv_cpu_products(learning->columns + (size_t) row * len, nrows,
							learning->columns + (size_t) first * len, ncents,
							len, false, products);
			for (i = 0; i < nrows; i++)
				for (c = 0; c < ncents; c++)
					learning->covariance[(size_t) (row + i) * dims + first + c]
						+= products[i * TILE_CENTS + c];
		}
	return true;
}

/* Computes the covariance of x [n][dims], times n. */
static bool
find_covariance(Learning *learning, const float *x, int64_t n)
{
	int32_t		dims = learning->model.dims;
	int64_t		done;

	memset(learning->covariance, 0, sizeof(float) * dims * dims);
	for (done = 0; done < n; done += CHUNK)
	{
		int32_t		len = gv_at_most(n - done, CHUNK);
		int32_t		i;
		int32_t		d;

		for (i = 0; i < len; i++)
			for (d = 0; d < dims; d++)
				learning->columns[(size_t) d * len + i] =
					x[(size_t) (done + i) * dims + d];
		if (!add_products(learning, len))
			return false;
	}
	return true;
}

/*
 * Distributes the principal components among the sub-quantizers, in descending
 * order of variance.  Among the sub-quantizers that are not full, a component
 * goes to the one whose product of variances is least so far.  Row i of the
 * rotation is component order[i].
 */
static void
hand_out(Learning *learning)
{
	const GvModel *model = &learning->model;
	double		least = learning->values[model->dims - 1];
	double		products[GV_MAX_ROTATED] = {0}; /* logarithms of the products
												 * of variances */
	int32_t		counts[GV_MAX_ROTATED] = {0};
	int32_t		i;
	int32_t		j;

	for (i = 0; i < model->dims; i++)
	{
		int32_t		best = -1;

		for (j = 0; j < model->m; j++)
			if (gv_sub_start(model, j) + counts[j] <
				gv_sub_start(model, j + 1) &&
				(best < 0 || products[j] < products[best]))
				best = j;
		learning->order[gv_sub_start(model, best) + counts[best]++] = i;

		/*
		 * divide by the least variance, so that every factor is at least 1
		 * and a product never falls
		 */
		products[best] += log(learning->values[i] / least);
	}
}

GvStatus
gv_learn_rotation(int32_t dims, int32_t m, const float *x /* [n][dims] */ ,
				  int64_t n, float *rotation, void *scratch,
				  const GvStop *stop)
{
	Learning	learning = {.model = {.dims = dims, .m = m}, .poll = {stop, 0}};
	double		trace = 0.0;
	double		defect = 0.0;
	int32_t		i;

	GV_CALL(gv_engine_calls, is_valid(dims, m) && x != NULL && n >= 1 &&
			rotation != NULL && gv_valid_scratch(scratch) &&
			gv_valid_stop(stop));
	(void) carve(&learning, dims, scratch);
	if (!find_covariance(&learning, x, n))
		return GV_CANCELED;
	for (i = 0; i < dims; i++)
		trace += learning.covariance[(size_t) i * dims + i];

	/*
	 * rotate only if the covariance can be decomposed, and if the result is
	 * orthogonal within the error
	 */
	if (gv_is_finite(learning.covariance, (int64_t) dims * dims) &&
		trace > FLT_MIN && trace < FLT_MAX)
	{
		if (!find_eigenvectors(learning.covariance, dims, learning.values,
							   learning.vectors, learning.rows,
							   &learning.poll))
			return GV_CANCELED;
		hand_out(&learning);
		for (i = 0; i < dims; i++)
			memcpy(rotation + (size_t) i * dims, learning.vectors +
				   (size_t) learning.order[i] * dims, sizeof(float) * dims);
		if (!orthogonalize(rotation, dims, (float *) learning.rows,
						   &learning.poll))
			return GV_CANCELED;
		for (i = 0; i < dims; i++)
			defect += gv_rotation_defect(dims, rotation, i);
		if (gv_is_rotation(dims, defect))
			return GV_OK;
	}
	memset(rotation, 0, sizeof(float) * dims * dims);
	for (i = 0; i < dims; i++)
		rotation[(size_t) i * dims + i] = 1.0f;
	return GV_OK;
}
