/*
 * opq.c
 *		A rotation before product quantization.
 *
 * All sub-quantizers have the same number of codewords, whether their
 * dimensions vary much or hardly, and a sub-quantizer cannot use the
 * correlation of its dimensions with those of others.  A rotation leaves
 * distances as they are, and can give the vectors better dimensions: principal
 * components, distributed so that the products of the variances of all
 * sub-quantizers are about the same.  This is the parametric solution of Ge,
 * He, Ke, Sun, "Optimized product quantization", 2013.  They then improve
 * codebooks and rotation in turns, which gains nothing here
 * (test/bench/RESULTS.md).
 */
#include <math.h>
#include <string.h>

#include "cpu/code/gv_assign.h"
#include "cpu/code/gv_eigen.h"
#include "engine/gv_call.h"

#define TILE_ROWS	GV_CPU_TILE_ROWS
#define TILE_CENTS	GV_CPU_TILE_CENTS
#define CHUNK		1024		/* vectors whose columns are summed together */
#define STEPS		2			/* steps that make eigenvectors orthogonal */

/* State of learning.  The arrays are in the caller's scratch. */
typedef struct Learning
{
	GvModel		model;
	float	   *columns;		/* [dims][CHUNK] columns of some vectors */
	float	   *covariance;		/* [dims][dims] times n */
	double	   *rows;			/* [dims][dims] scratch of gv_cpu_eigen */
	double	   *values;			/* [dims] eigenvalues */
	int32_t    *order;			/* [dims] component in each row of the
								 * rotation */
	float	   *vectors;		/* [dims][dims] eigenvectors */
	GvPoll		poll;
} Learning;

/*
 * Lays out the scratch and returns its size.  If `scratch` is NULL, only
 * computes the size.
 */
static size_t
carve(Learning *learning, int32_t dims, char *scratch)
{
	size_t		square = (size_t) dims * dims;
	size_t		next = 0;
	size_t		columns = gv_carve(&next, sizeof(float) * CHUNK * dims);
	size_t		covariance = gv_carve(&next, sizeof(float) * square);
	size_t		rows = gv_carve(&next, sizeof(double) * square);
	size_t		values = gv_carve(&next, sizeof(double) * dims);
	size_t		order = gv_carve(&next, sizeof(int32_t) * dims);
	size_t		vectors = gv_carve(&next, sizeof(float) * square);

	if (scratch != NULL)
	{
		learning->columns = (float *) (scratch + columns);
		learning->covariance = (float *) (scratch + covariance);
		learning->rows = (double *) (scratch + rows);
		learning->values = (double *) (scratch + values);
		learning->order = (int32_t *) (scratch + order);
		learning->vectors = (float *) (scratch + vectors);
	}
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
	return is_valid(dims, m) ? carve(NULL, dims, NULL) : 0;
}

/*
 * Adds the products of columns [dims][len] to the covariance.  Returns false
 * if the caller must give up.
 */
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
			int			ncents = dims - first < TILE_CENTS ? dims - first :
			TILE_CENTS;
			int			nrows = dims - row < TILE_ROWS ? dims - row : TILE_ROWS;

			if (gv_poll(&learning->poll, (int64_t) nrows * ncents * len))
				return false;
			gv_cpu_products(learning->columns + (size_t) row * len, nrows,
							learning->columns + (size_t) first * len, ncents,
							len, products);
			for (i = 0; i < nrows; i++)
				for (c = 0; c < ncents; c++)
					learning->covariance[(size_t) (row + i) * dims + first + c]
						+= products[i * TILE_CENTS + c];
		}
	return true;
}

/*
 * Computes the covariance of x [n][dims], times n.  Returns false if the
 * caller must give up.
 */
static bool
find_covariance(Learning *learning, const float *x, int64_t n)
{
	int32_t		dims = learning->model.dims;
	int64_t		done;

	memset(learning->covariance, 0, sizeof(float) * dims * dims);
	for (done = 0; done < n; done += CHUNK)
	{
		int32_t		len = n - done < CHUNK ? (int32_t) (n - done) : CHUNK;
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

/* Returns whether the covariance can be decomposed. */
static bool
tells(const Learning *learning)
{
	int32_t		dims = learning->model.dims;
	double		trace = 0.0;
	int32_t		i;

	for (i = 0; i < dims; i++)
		trace += learning->covariance[(size_t) i * dims + i];
	return gv_is_finite(learning->covariance, (int64_t) dims * dims) &&
		trace > FLT_MIN && trace < FLT_MAX;
}

/*
 * Distributes the components, in descending order of their variances.  Each
 * goes to the sub-quantizer that is not full and has the least product of
 * variances so far.  Row i of the rotation is component order[i].
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
		 * divide by the least variance, so that no component lowers a product
		 */
		products[best] += log(learning->values[i] / least);
	}
}

/*
 * Computes the rotation from the covariance, orthogonal as far as fp32
 * permits.  Returns false if the caller must give up.
 */
static bool
find_rotation(Learning *learning, float *rotation)
{
	int32_t		dims = learning->model.dims;
	int32_t		i;

	if (!gv_cpu_eigen(learning->covariance, dims, learning->values,
					  learning->vectors, learning->rows, &learning->poll))
		return false;
	hand_out(learning);
	for (i = 0; i < dims; i++)
		memcpy(rotation + (size_t) i * dims, learning->vectors +
			   (size_t) learning->order[i] * dims, sizeof(float) * dims);
	return gv_cpu_orthogonalize(rotation, dims, STEPS,
								(float *) learning->rows, &learning->poll);
}

/* Returns whether the rotation's error is within gv_rotation_error. */
static bool
keeps_promise(const Learning *learning, const float *rotation)
{
	int32_t		dims = learning->model.dims;
	double		defect = 0.0;
	int32_t		i;

	for (i = 0; i < dims; i++)
		defect += gv_rotation_defect(dims, rotation, i);
	return gv_is_rotation(dims, defect);
}

GvStatus
gv_learn_rotation(int32_t dims, int32_t m, const float *x /* [n][dims] */ ,
				  int64_t n, float *rotation, void *scratch,
				  const GvStop *stop)
{
	Learning	learning = {.poll = {stop, 0}};
	bool		found;
	int32_t		i;

	GV_CALL(gv_engine_calls, is_valid(dims, m) && x != NULL && n >= 1 &&
			rotation != NULL && gv_valid_scratch(scratch) &&
			gv_valid_stop(stop));
	learning.model.dims = dims;
	learning.model.m = m;
	(void) carve(&learning, dims, scratch);
	if (!find_covariance(&learning, x, n))
		return GV_CANCELED;
	found = tells(&learning);
	if (found && !find_rotation(&learning, rotation))
		return GV_CANCELED;
	if (found && keeps_promise(&learning, rotation))
		return GV_OK;
	memset(rotation, 0, sizeof(float) * dims * dims);
	for (i = 0; i < dims; i++)
		rotation[(size_t) i * dims + i] = 1.0f;
	return GV_OK;
}
