/*
 * check_halves.c
 *		Records in half precision: ranges that contain the true value, and are
 *		narrow.
 */
#include "unit.h"

/* The records of n vectors, in memory of their own. */
typedef struct Records
{
	uint16_t   *values;
	float	   *error;
	GvHalfRecord   *records;
} Records;

static Records
encode_rows(int32_t dims, const float *x, int64_t n)
{
	Records		r;
	int64_t		i;

	r.values = unit_alloc(sizeof(uint16_t) * (size_t) n * dims);
	r.error = unit_alloc(sizeof(float) * n);
	r.records = unit_alloc(sizeof(GvHalfRecord) * n);
	CHECK(gv_half_encode(dims, x, n, r.values, r.error) == GV_OK, "encode");
	for (i = 0; i < n; i++)
		r.records[i] =
			(GvHalfRecord) {r.error[i], r.values + (size_t) i * dims};
	return r;
}

static void
free_records(Records *r)
{
	unit_free(r->values);
	unit_free(r->error);
	unit_free(r->records);
}

/*
 * The true value, and what sums in fp32 give, forwards and backwards: the
 * least and the greatest of them.
 */
static void
truth(GvMetric metric, const float *q, const float *x, int32_t dims,
	  long double *least, long double *most)
{
	long double sum = 0.0;
	float		plain[2] = {0.0f, 0.0f};
	int32_t		i;

	for (i = 0; i < dims; i++)
	{
		long double diff = (long double) q[i] - x[i];

		sum += metric == GV_IP ? (long double) -q[i] * x[i] : diff * diff;
		plain[0] -= q[i] * x[i];
		plain[1] -= q[dims - 1 - i] * x[dims - 1 - i];
	}
	*least = *most = metric == GV_IP ? sum : sqrtl(sum);
	for (i = 0; metric == GV_IP && i < 2; i++)
		if (isfinite(plain[i]))
		{
			*least = plain[i] < *least ? plain[i] : *least;
			*most = plain[i] > *most ? plain[i] : *most;
		}
}

/*
 * Is a record within error of its vector, and the error no larger than due
 * where half-precision values have their eleven bits?
 */
static void
check_records(int32_t dims, const float *x, int64_t n, const Records *r)
{
	int64_t		row;
	int32_t		i;

	for (row = 0; row < n; row++)
	{
		const GvHalfRecord *record = &r->records[row];
		long double square = 0.0;
		long double length = 0.0;
		bool		fits = true;

		for (i = 0; i < dims; i++)
		{
			float		element = x[row * dims + i];
			float		value;
			long double diff;

			gv_from_half(&record->values[i], 1, &value);
			diff = (long double) element - value;
			square += diff * diff;
			length += (long double) element * element;
			fits = fits && fabsf(element) < 65504.0f;
		}
		CHECK(sqrtl(square) <= record->error, "error %g, dims %d",
			  record->error, dims);
		CHECK(!fits || record->error <= sqrtl(length) * 4.89e-4 +
			  sqrt(dims) * 3e-8, "error %g of length %Lg, dims %d",
			  record->error, sqrtl(length), dims);
	}
}

/* Ranges of rows x [n][dims] and of the query, for every metric. */
static void
check_ranges(int32_t dims, const float *q, const float *x, int64_t n,
			 bool close, const char *what)
{
	Records		r = encode_rows(dims, x, n);
	GvRange    *ranges = unit_alloc(sizeof(GvRange) * n);
	int			metric;
	int64_t		row;

	check_records(dims, x, n, &r);
	for (metric = GV_L2; metric <= GV_COSINE; metric++)
	{
		CHECK(gv_half_range(metric, dims, q, r.records, n, ranges) == GV_OK,
			  "%s", what);
		for (row = 0; row < n; row++)
		{
			double		length = sqrt(-gv_distance_ip(q, q, dims));
			double		width = (double) ranges[row].most - ranges[row].least;
			double		due = 2.0 * r.error[row] *
				(metric == GV_IP ? length : 1.0);
			double		slack = 4.0 * (dims + 64) / 16777216.0 * dims / 2 + 1e-3;
			long double least;
			long double most;

			truth(metric, q, x + row * dims, dims, &least, &most);
			CHECK(ranges[row].least <= least && ranges[row].most >= most,
				  "%s: %g .. %g is not around %Lg .. %Lg, dims %d", what,
				  ranges[row].least, ranges[row].most, least, most, dims);
			CHECK(metric == GV_IP || ranges[row].least >= 0.0f, "%s: %g",
				  what, ranges[row].least);
			CHECK(!close || width <= due + slack,
				  "%s: %g wide, %g is due, dims %d", what, width, due, dims);
		}
	}
	unit_free(ranges);
	free_records(&r);
}

static void
test_random(void)
{
	static const float factors[] = {1.0f, 1e-3f, 1e3f, 1e-6f, 1e6f, 1e-22f,
	1e-42f, 1e15f, 1e19f, 3e38f};
	int			i;
	int			f;
	int			g;

	for (i = 0; i < NDIMS; i++)
		for (f = 0; f < 10; f++)
			for (g = 0; g < 10; g += 1 + (f + g) % 3)
			{
				int32_t		dims = all_dims[i];
				int64_t		n = dims > 1000 ? 2 : 8;
				float	   *x = unit_floats((size_t) n * dims, factors[f]);
				float	   *q = unit_floats(dims, factors[g]);

				check_ranges(dims, q, x, n, f == 0 && g == 0, "random");
				if (f == g)
					check_ranges(dims, x, x, n, false, "itself");
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
		check_ranges(dims, q, x, 3, false, "special");
		x[0] = 1e6f;			/* beyond half precision */
		x[dims] = -3e38f;
		x[2 * dims] = 1e-45f;
		check_ranges(dims, q, x, 3, false, "one large");
		for (d = 0; d < dims; d++)
			q[d] = x[d] * (1.0f + 1e-6f * unit_float());
		check_ranges(dims, q, x, 3, false, "near");
		memset(q, 0, sizeof(float) * dims);
		check_ranges(dims, q, x, 3, false, "zero");
		unit_free(x);
		unit_free(q);
	}
}

/*
 * An element that is too long, which may have been cut to the range of floats,
 * says nothing however short the query is.
 */
static void
test_cut(void)
{
	float		x[3] = {1.0f, FLT_MAX, 0.0f};
	float		q[3] = {0.0f, 1e-20f, 0.0f};
	uint16_t	half_vector[3];
	float		error;
	GvHalfRecord	record = {0, half_vector};
	GvRange		range;

	CHECK(gv_half_encode(3, x, 1, half_vector, &error) == GV_OK &&
		  error == HUGE_VALF, "error %g", error);
	record.error = error;
	CHECK(gv_half_range(GV_IP, 3, q, &record, 1, &range) == GV_OK &&
		  range.least == -HUGE_VALF && range.most == HUGE_VALF, "%g .. %g",
		  range.least, range.most);
}

/* Values that only a damaged page has bound nothing, and do no harm. */
static void
test_damaged(void)
{
	static const float odd[] = {NAN, INFINITY, 3e38f};
	static const uint16_t none[] = {0x7C00, 0xFC00, 0x7E01, 0xFFFF};
	uint16_t	half_vector[17] = {0x3C00, 1, 0, 0x8001};
	float		q[17] = {0.5f, 1.0f, -2.0f};
	int			metric;
	int			i;

	for (metric = GV_L2; metric <= GV_COSINE; metric++)
	{
		float		least = metric == GV_IP ? -HUGE_VALF : 0.0f;
		GvHalfRecord	record = {0.3f, half_vector};
		GvRange		range;

		for (i = 0; i < 3; i++)
		{
			record.error = odd[i];
			CHECK(gv_half_range(metric, 17, q, &record, 1, &range) ==
				  GV_OK && range.least == least && range.most == HUGE_VALF,
				  "%g .. %g from %g", range.least, range.most, odd[i]);
		}
		record.error = 0.3f;
		for (i = 0; i < 4; i++)
		{
			half_vector[1] = none[i];
			CHECK(gv_half_range(metric, 17, q, &record, 1, &range) ==
				  GV_OK && range.least == least && range.most == HUGE_VALF,
				  "%g .. %g from %04x", range.least, range.most, none[i]);
		}
		half_vector[1] = 1;
		record.error = -1.0f;
		CHECK(gv_half_range(metric, 17, q, &record, 1, &range) == GV_OK &&
			  !isnan(range.least) && !isnan(range.most), "negative error");
	}
}

void
test_halves(void)
{
	float		x[4] = {0};
	uint16_t	half_vector[4] = {0};
	GvHalfRecord	record = {0, half_vector};
	GvRange		range;

	test_random();
	test_special();
	test_cut();
	test_damaged();
	CHECK(gv_half_encode(0, x, 1, half_vector, x) == GV_INVALID, "dims 0");
	CHECK(gv_half_encode(4, x, 0, half_vector, x) == GV_INVALID, "n 0");
	CHECK(gv_half_encode(4, NULL, 1, half_vector, x) == GV_INVALID, "no x");
	CHECK(gv_half_encode(4, x, 1, NULL, x) == GV_INVALID, "no halves");
	CHECK(gv_half_range((GvMetric) 9, 4, x, &record, 1, &range) ==
		  GV_INVALID, "metric");
	CHECK(gv_half_range(GV_L2, 4, NULL, &record, 1, &range) == GV_INVALID,
		  "no query");
	record.values = NULL;
	CHECK(gv_half_range(GV_L2, 4, x, &record, 1, &range) == GV_INVALID,
		  "no halves");
}
