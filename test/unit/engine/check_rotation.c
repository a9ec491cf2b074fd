/*
 * check_rotation.c
 *		A rotation: orthogonal, distances kept within its error, codes that lose
 *		less, the same bits from every level.
 */
#include "unit.h"

/* n rows whose dims dimensions mix a few, and a little of their own. */
static float *
mixed(int64_t n, int32_t dims, float own)
{
	int32_t		few = (dims + 3) / 4;
	OWN float  *weights = unit_floats((size_t) dims * few, 1.0f);
	OWN float  *few_of = unit_alloc(sizeof(float) * few);
	float	   *x = unit_alloc(sizeof(float) * n * dims);
	int64_t		row;
	int32_t		d;
	int32_t		i;

	for (row = 0; row < n; row++)
	{
		for (i = 0; i < few; i++)
			few_of[i] = unit_float() + unit_float();
		for (d = 0; d < dims; d++)
		{
			float		sum = own * unit_float();

			for (i = 0; i < few; i++)
				sum += weights[d * few + i] * few_of[i];
			x[row * dims + d] = sum / sqrtf((float) dims);
		}
	}
	return x;
}

static float *
learn(int32_t dims, int32_t m, const float *x, int64_t n)
{
	float	   *rotation = unit_alloc(sizeof(float) * dims * dims);
	OWN void   *scratch = unit_alloc(gv_learn_rotation_scratch(dims, m));

	CHECK(gv_learn_rotation(dims, m, x, n, rotation, scratch, NULL) == GV_OK,
		  "dims %d", dims);
	return rotation;
}

static double
defect_of(int32_t dims, const float *rotation)
{
	double		defect = 0.0;
	int32_t		i;

	for (i = 0; i < dims; i++)
		defect += gv_rotation_defect(dims, rotation, i);
	return defect;
}

static double
length_of(const float *x, int32_t dims)
{
	return sqrt(-gv_distance_ip(x, x, dims));
}

/* Lengths, distances and products survive, as far as the error says. */
static void
check_kept(int32_t dims, const float *rotation)
{
	OWN float  *a = unit_floats(dims, 1.0f);
	OWN float  *b = unit_floats(dims, 100.0f);
	OWN float  *ra = unit_alloc(sizeof(float) * dims);
	OWN float  *rb = unit_alloc(sizeof(float) * dims);
	double		rho = gv_rotation_error(dims);
	double		lengths;

	gv_rotate(dims, rotation, dims, a, ra);
	gv_rotate(dims, rotation, dims, b, rb);
	lengths = length_of(a, dims) + length_of(b, dims);
	CHECK(fabs(length_of(ra, dims) - length_of(a, dims)) <=
		  rho * length_of(a, dims), "length, dims %d", dims);
	CHECK(fabs(gv_distance_l2(ra, rb, dims) - gv_distance_l2(a, b, dims)) <=
		  rho * lengths, "distance, dims %d", dims);
	CHECK(fabs(gv_distance_ip(ra, rb, dims) - gv_distance_ip(a, b, dims)) <=
		  2.1 * rho * length_of(a, dims) * length_of(b, dims),
		  "product, dims %d", dims);
}

/* gv_transform rotates last, also in place. */
static void
check_transformed(int32_t dims, const float *rotation)
{
	GvModel		model = {.metric = GV_COSINE,.dims = dims,.m = 1,.scale = 2};
	OWN float  *mean = unit_floats(dims, 0.1f);
	OWN float  *x = unit_floats(3 * (size_t) dims, 1.0f);
	OWN float  *want = unit_alloc(sizeof(float) * 3 * dims);
	OWN float  *placed = unit_alloc(sizeof(float) * 3 * dims);
	int			i;

	model.mean = mean;
	(void) gv_transform(&model, x, 3, placed);
	for (i = 0; i < 3; i++)
		gv_rotate(dims, rotation, dims, placed + i * dims, want + i * dims);
	model.rotation = rotation;
	(void) gv_transform(&model, x, 3, placed);
	CHECK(memcmp(placed, want, sizeof(float) * 3 * dims) == 0, "rotated");
	(void) gv_transform(&model, x, 3, x);
	CHECK(memcmp(x, want, sizeof(float) * 3 * dims) == 0, "in place");
}

/* The error of codes of codebooks that are trained for x [n][dims]. */
static double
trained_error(int32_t dims, int32_t m, const float *x, int64_t n)
{
	OWN float  *codebooks = unit_alloc(sizeof(float) * GV_CODEWORDS * dims);
	OWN void   *scratch = unit_alloc(gv_codebooks_scratch(dims, m, n));
	GvModel		model = {.metric = GV_L2,.dims = dims,.m = m,.scale = 1,
	.codebooks = codebooks};

	(void) gv_codebooks(dims, m, n, x, 1, codebooks, scratch, NULL);
	return code_error(&model, x, n);
}

static void
check_learned(int32_t dims, int32_t m, int64_t n)
{
	OWN float  *x = mixed(n, dims, 0.1f);
	OWN float  *rotated = unit_alloc(sizeof(float) * n * dims);
	OWN float  *rotation = learn(dims, m, x, n);
	OWN float  *again = NULL;
	double		rho = gv_rotation_error(dims);
	double		defect = sqrt(defect_of(dims, rotation));
	double		before = trained_error(dims, m, x, n);
	double		after;
	int64_t		row;
	int			i;

	CHECK(defect <= rho / 4, "defect %g of %g, dims %d", defect, rho, dims);
	CHECK(gv_is_rotation(dims, defect * defect), "dims %d", dims);
	for (i = 0; i < 10; i++)
		check_kept(dims, rotation);
	check_transformed(dims, rotation);
	for (row = 0; row < n; row++)
		gv_rotate(dims, rotation, dims, x + row * dims, rotated + row * dims);
	after = trained_error(dims, m, rotated, n);
	CHECK(dims < 8 || after < 0.7 * before, "%g, was %g, dims %d m %d", after,
		  before, dims, m);
	CHECK(after < 1.1 * before, "%g, was %g, dims %d m %d", after, before,
		  dims, m);

	gv_simd_use(GV_SIMD_PORTABLE);
	again = learn(dims, m, x, n);
	CHECK(memcmp(rotation, again, sizeof(float) * dims * dims) == 0,
		  "portable, dims %d", dims);
	gv_rotate(dims, rotation, dims, x, again);
	CHECK(memcmp(again, rotated, sizeof(float) * dims) == 0,
		  "rotated by portable, dims %d", dims);
	gv_simd_use(unit_simd());
}

/* Where nothing can be learned nothing is turned. */
static void
check_identity(const float *x, int64_t n, int32_t dims, const char *what)
{
	OWN float  *rotation = learn(dims, dims, x, n);
	int			nwrong = 0;
	int32_t		i;

	for (i = 0; i < dims * dims; i++)
		nwrong += rotation[i] != (i / dims == i % dims ? 1.0f : 0.0f);
	CHECK(nwrong == 0, "%s: %d", what, nwrong);
	CHECK(defect_of(dims, rotation) == 0.0, "%s", what);
}

static void
test_useless(void)
{
	float		zeros[40] = {0};
	float		huge[40];
	OWN float  *rotation = NULL;
	float		few[40] = {0};
	int			i;

	for (i = 0; i < 40; i++)
		huge[i] = i % 3 ? 1e38f : -1e30f;
	check_identity(zeros, 5, 8, "zeros");
	check_identity(huge, 5, 8, "huge");

	/* one direction only: a rotation all the same */
	few[3] = 1.0f;
	few[4] = 2.0f;
	rotation = learn(8, 4, few, 5);
	CHECK(gv_is_rotation(8, defect_of(8, rotation)), "of one row");
	rotation[9] += 1e-3f;
	CHECK(!gv_is_rotation(8, defect_of(8, rotation)), "changed");
	rotation[9] = NAN;
	CHECK(!gv_is_rotation(8, defect_of(8, rotation)), "not a number");
}

static void
test_refused(void)
{
	static char scratch[4096] __attribute__((aligned(64)));
	GvStop		stop = {unit_stop_now, NULL};
	GvStop		bad_stop = {NULL, NULL};
	OWN float  *x = unit_floats(4000 * 64, 1.0f);
	OWN float  *rotation = unit_alloc(sizeof(float) * 64 * 64);
	OWN void   *memory = unit_alloc(gv_learn_rotation_scratch(64, 8));

	CHECK(gv_learn_rotation_scratch(GV_MAX_ROTATED + 1, 8) == 0, "too many");
	CHECK(gv_learn_rotation_scratch(8, 9) == 0, "a bad shape");
	INVALID(gv_learn_rotation(GV_MAX_ROTATED + 1, 8, x, 1, rotation, scratch,
							  NULL));
	INVALID(gv_learn_rotation(8, 9, x, 1, rotation, scratch, NULL));
	INVALID(gv_learn_rotation(8, 4, NULL, 1, rotation, scratch, NULL));
	INVALID(gv_learn_rotation(8, 4, x, 0, rotation, scratch, NULL));
	INVALID(gv_learn_rotation(8, 4, x, 1, NULL, scratch, NULL));
	INVALID(gv_learn_rotation(8, 4, x, 1, rotation, NULL, NULL));
	INVALID(gv_learn_rotation(8, 4, x, 1, rotation, scratch + 4, NULL));
	INVALID(gv_learn_rotation(8, 4, x, 1, rotation, scratch, &bad_stop));
	CHECK(gv_learn_rotation(64, 8, x, 4000, rotation, memory, &stop) ==
		  GV_CANCELED, "canceled");
}

void
test_rotation(void)
{
	check_learned(1, 1, 50);
	check_learned(2, 1, 100);
	check_learned(7, 3, 500);
	check_learned(24, 6, 1500);
	check_learned(65, 16, 2100);
	if (!unit_small)
		check_learned(200, 50, 3000);
	test_useless();
	test_refused();
}
