/*
 * check_refine.c
 *		Refine records, of bytes and in half precision: what they say contains
 *		the true value, and is close to it.
 */
#include "unit.h"

/* The records of n vectors; of bytes, what they say has no upper end. */
typedef struct Rows
{
	bool		half;
	uint8_t    *codes;			/* or halves [n][dims] */
	float	   *min;
	float	   *step;
	float	   *error;
	GvRefine   *bytes;
	GvHalfRecord *halves;
} Rows;

static Rows
encode_rows(bool half, int32_t dims, const float *x, int64_t n)
{
	Rows		r = {half, unit_alloc((size_t) n * dims * (half ? 2 : 1)),
		unit_alloc(sizeof(float) * n), unit_alloc(sizeof(float) * n),
		unit_alloc(sizeof(float) * n), unit_alloc(sizeof(GvRefine) * n),
	unit_alloc(sizeof(GvHalfRecord) * n)};
	uint16_t   *values = (uint16_t *) (void *) r.codes;
	int64_t		i;

	CHECK((half ? gv_half_encode(dims, x, n, values, r.error) :
		   gv_refine_encode(dims, x, n, r.codes, r.min, r.step, r.error)) ==
		  GV_OK, "encode");
	for (i = 0; i < n; i++)
	{
		r.bytes[i] = (GvRefine) {r.min[i], r.step[i], r.error[i],
			r.codes + (size_t) i * dims};
		r.halves[i] = (GvHalfRecord) {r.error[i], values + (size_t) i * dims};
	}
	return r;
}

static void
free_rows(Rows *r)
{
	unit_free(r->codes);
	unit_free(r->min);
	unit_free(r->step);
	unit_free(r->error);
	unit_free(r->bytes);
	unit_free(r->halves);
}

/*
 * The true value, and what sums in fp32 give, forwards and, of halves,
 * backwards: the least and the greatest of them.
 */
static void
truth(bool half, GvMetric metric, const float *q, const float *x, int32_t dims,
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
	for (i = 0; metric == GV_IP && i < (half ? 2 : 1); i++)
		if (isfinite(plain[i]))
		{
			*least = plain[i] < *least ? plain[i] : *least;
			*most = plain[i] > *most ? plain[i] : *most;
		}
}

/*
 * Is a record within error of its vector, and the error no coarser than due?
 * Of halves it is due where values have their eleven bits.
 */
static void
check_records(const Rows *r, int32_t dims, const float *x, int64_t n)
{
	int64_t		row;
	int32_t		i;

	for (row = 0; row < n; row++, x += dims)
	{
		const GvRefine *record = &r->bytes[row];
		long double square = 0.0;
		long double length = 0.0;
		bool		fits = true;
		double		due;

		for (i = 0; i < dims; i++)
		{
			float		value = record->step * (float) record->codes[i];
			long double diff;

			if (r->half)
				gv_from_half(&r->halves[row].values[i], 1, &value);
			else
				value += record->min;
			diff = (long double) x[i] - value;
			square += diff * diff;
			length += (long double) x[i] * x[i];
			fits = fits && fabsf(x[i]) < 65504.0f;
		}
		if (r->half)
			due = (double) sqrtl(length) * 4.89e-4 + sqrt(dims) * 3e-8;
		else
			due = sqrt(dims) * (0.5001 * record->step +
								2e-7 * fabs(record->min) + 1e-42);
		CHECK(sqrtl(square) <= record->error, "error %g, dims %d",
			  record->error, dims);
		CHECK((r->half ? !fits : isinf(record->error)) ||
			  record->error <= due, "error %g, %g is due, dims %d",
			  record->error, due, dims);
	}
}

/* What is said of rows x [n][dims] and of the query, for every metric. */
static void
check_rows(bool half, int32_t dims, const float *q, const float *x, int64_t n,
		   bool close, const char *what)
{
	UNIT_OWN(free_rows) Rows r = encode_rows(half, dims, x, n);
	OWN GvRange *ranges = unit_alloc(sizeof(GvRange) * n);
	OWN float  *bounds = unit_alloc(sizeof(float) * n);
	double		length = sqrt(-gv_distance_ip(q, q, dims));
	int			metric;
	int64_t		row;

	check_records(&r, dims, x, n);
	for (metric = GV_L2; metric <= GV_COSINE; metric++)
	{
		CHECK((half ? gv_half_range(metric, dims, q, r.halves, n, ranges) :
			   gv_refine_bound(metric, dims, q, r.bytes, n, bounds)) == GV_OK,
			  "%s", what);
		for (row = 0; row < n; row++)
		{
			double		loss = 2.0 * r.error[row] *
				(metric == GV_IP ? length : 1.0);
			double		slack = 2.0 * (dims + 64) / 16777216.0 * dims + 1e-3;
			GvRange		range = half ? ranges[row] :
				(GvRange) {bounds[row], HUGE_VALF};
			long double least;
			long double most;

			truth(half, metric, q, x + row * dims, dims, &least, &most);
			CHECK(range.least <= least && range.most >= most,
				  "%s: %g .. %g is not around %Lg .. %Lg, dims %d", what,
				  range.least, range.most, least, most, dims);
			CHECK(metric == GV_IP || range.least >= 0.0f, "%s: %g", what,
				  range.least);
			CHECK(!close || (half ? range.most - range.least <= loss + slack :
							 range.least >= least - loss - 0.01 * dims / 100),
				  "%s: %g .. %g, far from %Lg, dims %d", what, range.least,
				  range.most, least, dims);
		}
	}
}

static void
test_random(bool half)
{
	/* the last two are for halves */
	static const float factors[] = {1.0f, 1e-3f, 1e3f, 1e-22f, 1e-42f, 1e15f,
	1e19f, 3e38f, 1e-6f, 1e6f};
	int			nfactors = half ? 10 : 8;
	int			i;
	int			f;
	int			g;

	for (i = 0; i < NDIMS; i++)
		for (f = 0; f < nfactors; f++)
			for (g = 0; g < nfactors; g += 1 + (f + g) % 3)
			{
				int32_t		dims = all_dims[i];
				int64_t		n = dims > 1000 ? 2 : 8;
				OWN float  *x = unit_floats((size_t) n * dims, factors[f]);
				OWN float  *q = unit_floats(dims, factors[g]);

				check_rows(half, dims, q, x, n, f == 0 && g == 0, "random");
				if (f == g)
					check_rows(half, dims, x, x, n, false, "itself");
			}
}

static void
test_special(bool half)
{
	int			i;
	int32_t		d;

	for (i = 0; i < NDIMS; i++)
	{
		int32_t		dims = all_dims[i];
		OWN float  *x = unit_floats((size_t) 3 * dims, 1.0f);
		OWN float  *q = unit_floats(dims, 1.0f);

		for (d = 0; d < dims; d++)
		{
			x[d] = 0.37f;		/* constant */
			x[dims + d] = 1e4f + 1e-3f * unit_float();	/* an offset */
			x[2 * dims + d] = 0.0f;
		}
		check_rows(half, dims, q, x, 3, false, "special");
		x[0] = 1e6f;			/* takes all steps, or is beyond halves */
		x[dims] = -3e38f;
		x[2 * dims] = 1e-45f;
		check_rows(half, dims, q, x, 3, false, "one large");
		for (d = 0; d < dims; d++)
			q[d] = x[d] * (1.0f + 1e-6f * unit_float());
		check_rows(half, dims, q, x, 3, false, "near");
		memset(q, 0, sizeof(float) * dims);
		check_rows(half, dims, q, x, 3, false, "zero");
	}
}

static void
check_half(void)
{
	long		nwrong = 0;
	int			i;

	for (i = 0; i < 65536; i++)
	{
		uint16_t	half = (uint16_t) i;
		uint16_t	back;
		float		x;

		if ((half & 0x7C00) == 0x7C00)
			continue;
		gv_from_half(&half, 1, &x);
		gv_to_half(&x, 1, &back);
		nwrong += x != half_value(half) || back != half;
	}
	for (i = 0; i < 100000; i++)
	{
		float		x = ldexpf(unit_float(), (int) (unit_random() % 48) - 30);
		uint16_t	half;
		uint16_t	up;
		uint16_t	down;
		double		error;

		gv_to_half(&x, 1, &half);
		up = (uint16_t) (half + 1);
		down = (uint16_t) (half - 1);
		error = fabs(half_value(half) - x);
		if (fabsf(x) > 65504.0f)
			nwrong += (half & 0x7FFF) != 0x7BFF;
		else
			nwrong += ((half & 0x7FFF) < 0x7BFF &&
					   fabs(half_value(up) - x) < error) ||
				((half & 0x7FFF) > 0 && fabs(half_value(down) - x) < error);
	}
	CHECK(nwrong == 0, "%ld halves", nwrong);
}

/* Values that only a damaged page has bound nothing, and do no harm. */
static void
test_damaged_bytes(void)
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
					  GV_OK && !isnan(bound), "NaN from %d, %g", where,
					  odd[i]);
			}
}

static void
test_damaged_halves(void)
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
		GvHalfRecord record = {0.3f, half_vector};
		GvRange		range;

		for (i = 0; i < 7; i++)
		{
			record.error = i < 3 ? odd[i] : 0.3f;
			half_vector[1] = i < 3 ? 1 : none[i - 3];
			CHECK(gv_half_range(metric, 17, q, &record, 1, &range) ==
				  GV_OK && range.least == least && range.most == HUGE_VALF,
				  "%g .. %g from %g, %04x", range.least, range.most,
				  record.error, half_vector[1]);
		}
		half_vector[1] = 1;
		record.error = -1.0f;
		CHECK(gv_half_range(metric, 17, q, &record, 1, &range) == GV_OK &&
			  !isnan(range.least) && !isnan(range.most), "negative error");
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
	GvHalfRecord record = {0, half_vector};
	GvRange		range;

	CHECK(gv_half_encode(3, x, 1, half_vector, &error) == GV_OK &&
		  error == HUGE_VALF, "error %g", error);
	record.error = error;
	CHECK(gv_half_range(GV_IP, 3, q, &record, 1, &range) == GV_OK &&
		  range.least == -HUGE_VALF && range.most == HUGE_VALF, "%g .. %g",
		  range.least, range.most);
}

void
test_refine(void)
{
	float		x[4] = {0};
	uint8_t		codes[4];
	GvRefine	record = {0, 0, 0, codes};

	test_random(false);
	test_special(false);
	test_damaged_bytes();
	INVALID(gv_refine_encode(0, x, 1, codes, x, x, x));
	INVALID(gv_refine_encode(4, x, 0, codes, x, x, x));
	INVALID(gv_refine_encode(4, NULL, 1, codes, x, x, x));
	INVALID(gv_refine_encode(4, x, 1, NULL, x, x, x));
	INVALID(gv_refine_bound((GvMetric) 9, 4, x, &record, 1, x));
	INVALID(gv_refine_bound(GV_L2, 4, NULL, &record, 1, x));
	record.codes = NULL;
	INVALID(gv_refine_bound(GV_L2, 4, x, &record, 1, x));
}

void
test_halves(void)
{
	float		x[4] = {0};
	uint16_t	half_vector[4] = {0};
	GvHalfRecord record = {0, half_vector};
	GvRange		range;

	check_half();
	test_random(true);
	test_special(true);
	test_cut();
	test_damaged_halves();
	INVALID(gv_half_encode(0, x, 1, half_vector, x));
	INVALID(gv_half_encode(4, x, 0, half_vector, x));
	INVALID(gv_half_encode(4, NULL, 1, half_vector, x));
	INVALID(gv_half_encode(4, x, 1, NULL, x));
	INVALID(gv_half_range((GvMetric) 9, 4, x, &record, 1, &range));
	INVALID(gv_half_range(GV_L2, 4, NULL, &record, 1, &range));
	record.values = NULL;
	INVALID(gv_half_range(GV_L2, 4, x, &record, 1, &range));
}
