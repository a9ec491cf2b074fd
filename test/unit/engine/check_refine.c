/*
 * check_refine.c
 *		Refine records: bounds never above the true value, and close to it.
 */
#include "unit.h"

/* The records of n vectors, in memory of their own. */
typedef struct Records
{
	uint8_t    *codes;
	float	   *min;
	float	   *step;
	float	   *error;
	GvRefine   *records;
} Records;

static Records
encode_rows(int32_t dims, const float *x, int64_t n)
{
	Records		r;
	int64_t		i;

	r.codes = unit_alloc((size_t) n * dims);
	r.min = unit_alloc(sizeof(float) * n);
	r.step = unit_alloc(sizeof(float) * n);
	r.error = unit_alloc(sizeof(float) * n);
	r.records = unit_alloc(sizeof(GvRefine) * n);
	CHECK(gv_refine_encode(dims, x, n, r.codes, r.min, r.step, r.error) ==
		  GV_OK, "encode");
	for (i = 0; i < n; i++)
		r.records[i] = (GvRefine) {r.min[i], r.step[i], r.error[i],
			r.codes + (size_t) i * dims};
	return r;
}

static void
free_records(Records *r)
{
	unit_free(r->codes);
	unit_free(r->min);
	unit_free(r->step);
	unit_free(r->error);
	unit_free(r->records);
}

/* The true value, and the least that a sum in fp32 one by one gives. */
static long double
truth(GvMetric metric, const float *q, const float *x, int32_t dims)
{
	long double sum = 0.0;
	float		plain = 0.0f;
	int32_t		i;

	for (i = 0; i < dims; i++)
	{
		long double diff = (long double) q[i] - x[i];

		sum += metric == GV_IP ? (long double) -q[i] * x[i] : diff * diff;
		plain -= q[i] * x[i];
	}
	if (metric != GV_IP)
		return sqrtl(sum);
	return isfinite(plain) && plain < sum ? plain : sum;
}

/*
 * Is a record within error of its vector, and the error no coarser than due?
 */
static void
check_records(int32_t dims, const float *x, int64_t n, const Records *r)
{
	int64_t		row;
	int32_t		i;

	for (row = 0; row < n; row++)
	{
		const GvRefine *record = &r->records[row];
		long double square = 0.0;

		for (i = 0; i < dims; i++)
		{
			float		product = record->step * (float) record->codes[i];
			long double diff = (long double) x[row * dims + i] -
				(record->min + product);

			square += diff * diff;
		}
		CHECK(sqrtl(square) <= record->error, "error %g, dims %d",
			  record->error, dims);
		CHECK(isinf(record->error) ||
			  record->error <= sqrt(dims) * (0.5001 * record->step +
											 2e-7 * fabs(record->min) + 1e-42),
			  "error %g for step %g, dims %d", record->error, record->step,
			  dims);
	}
}

/* Bounds of rows x [n][dims] and of the query, for every metric. */
static void
check_bounds(int32_t dims, const float *q, const float *x, int64_t n,
			 bool close, const char *what)
{
	Records		r = encode_rows(dims, x, n);
	float	   *bounds = unit_alloc(sizeof(float) * n);
	int			metric;
	int64_t		row;

	check_records(dims, x, n, &r);
	for (metric = GV_L2; metric <= GV_COSINE; metric++)
	{
		CHECK(gv_refine_bound(metric, dims, q, r.records, n, bounds) == GV_OK,
			  "%s", what);
		for (row = 0; row < n; row++)
		{
			long double value = truth(metric, q, x + row * dims, dims);
			double		length = sqrt(-gv_distance_ip(q, q, dims));
			double		loss = 2.0 * r.error[row] *
				(metric == GV_IP ? length : 1.0);

			CHECK(bounds[row] <= value, "%s: bound %g above %Lg, dims %d",
				  what, bounds[row], value, dims);
			CHECK(metric == GV_IP || bounds[row] >= 0.0f, "%s: bound %g",
				  what, bounds[row]);
			CHECK(!close || bounds[row] >= value - loss - 0.01 * dims / 100,
				  "%s: bound %g far below %Lg, dims %d", what, bounds[row],
				  value, dims);
		}
	}
	unit_free(bounds);
	free_records(&r);
}

static void
test_random(void)
{
	static const float factors[] = {1.0f, 1e-3f, 1e3f, 1e-22f, 1e-42f, 1e15f,
	1e19f, 3e38f};
	int			i;
	int			f;
	int			g;

	for (i = 0; i < NDIMS; i++)
		for (f = 0; f < 8; f++)
			for (g = 0; g < 8; g += 1 + (f + g) % 3)
			{
				int32_t		dims = all_dims[i];
				int64_t		n = dims > 1000 ? 2 : 8;
				float	   *x = unit_floats((size_t) n * dims, factors[f]);
				float	   *q = unit_floats(dims, factors[g]);

				check_bounds(dims, q, x, n, f == 0 && g == 0, "random");
				if (f == g)
					check_bounds(dims, x, x, n, false, "itself");
				unit_free(x);
				unit_free(q);
			}
}

static void
test_special(void)
{
	int			i;
	int32_t		d;

	for (i = 0; i < NDIMS; i++)
	{
		int32_t		dims = all_dims[i];
		float	   *x = unit_floats((size_t) 3 * dims, 1.0f);
		float	   *q = unit_floats(dims, 1.0f);

		for (d = 0; d < dims; d++)
		{
			x[d] = 0.37f;		/* constant */
			x[dims + d] = 1e4f + 1e-3f * unit_float();	/* an offset */
			x[2 * dims + d] = 0.0f;
		}
		check_bounds(dims, q, x, 3, false, "special");
		x[0] = 1e6f;			/* one element takes all steps */
		x[dims] = -3e38f;
		x[2 * dims] = 1e-45f;
		check_bounds(dims, q, x, 3, false, "one large");
		for (d = 0; d < dims; d++)
			q[d] = x[d] * (1.0f + 1e-6f * unit_float());
		check_bounds(dims, q, x, 3, false, "near");
		memset(q, 0, sizeof(float) * dims);
		check_bounds(dims, q, x, 3, false, "zero");
		unit_free(x);
		unit_free(q);
	}
}

/* Values that only a damaged page has bound nothing, and do no harm. */
static void
test_damaged(void)
{
	static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -1.0f};
	uint8_t		codes[17] = {255, 1, 0, 7};
	float		q[17] = {0.5f, 1.0f, -2.0f};
	int			where;
	int			i;
	int			metric;

	for (where = 0; where < 3; where++)
		for (i = 0; i < 5; i++)
			for (metric = GV_L2; metric <= GV_COSINE; metric++)
			{
				GvRefine	record = {0.1f, 0.2f, 0.3f, codes};
				float		bound = NAN;

				*(where == 0 ? &record.min : where == 1 ? &record.step :
				  &record.error) = odd[i];
				CHECK(gv_refine_bound(metric, 17, q, &record, 1, &bound) ==
					  GV_OK, "damaged");
				CHECK(!isnan(bound), "NaN from %d, %g", where, odd[i]);
			}
}

void
test_refine(void)
{
	float		x[4] = {0};
	uint8_t		codes[4];
	GvRefine	record = {0, 0, 0, codes};

	test_random();
	test_special();
	test_damaged();
	CHECK(gv_refine_encode(0, x, 1, codes, x, x, x) == GV_INVALID, "dims 0");
	CHECK(gv_refine_encode(4, x, 0, codes, x, x, x) == GV_INVALID, "n 0");
	CHECK(gv_refine_encode(4, NULL, 1, codes, x, x, x) == GV_INVALID, "no x");
	CHECK(gv_refine_encode(4, x, 1, NULL, x, x, x) == GV_INVALID, "no codes");
	CHECK(gv_refine_bound((GvMetric) 9, 4, x, &record, 1, x) == GV_INVALID,
		  "metric");
	CHECK(gv_refine_bound(GV_L2, 4, NULL, &record, 1, x) == GV_INVALID,
		  "no query");
	record.codes = NULL;
	CHECK(gv_refine_bound(GV_L2, 4, x, &record, 1, x) == GV_INVALID,
		  "no codes");
}
