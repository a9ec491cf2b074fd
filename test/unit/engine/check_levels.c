/*
 * check_levels.c
 *		The kernels of every level that this processor has, against the
 *		portable ones, bit for bit.
 */
#include "cpu/pq/assign.h"
#include "levels.h"

/* Dimensions below this are all tried. */
#define ALL_DIMS	(unit_small ? 300 : 2101)

/* ---------- distances ---------- */

static void
check_distances(const GvKernels *kernels, int32_t dims, int32_t n, float size)
{
	OWN float  *random = unit_floats((size_t) (n + 1) * dims, size);
	OWN char   *memory = NULL;
	float	   *q = shifted(random, (size_t) (n + 1) * dims,
							4 * (int) (unit_random() % 16), &memory);
	const float *rows = q + dims;
	OWN float  *want = unit_alloc(sizeof(float) * n);
	OWN float  *got = unit_alloc(sizeof(float) * n);
	const float *last = rows + (size_t) (n - 1) * dims;
	float		want_sums[GV_CPU_LANES];
	float		got_sums[GV_CPU_LANES];
	double		want64;
	double		got64;

	portable->dots(q, rows, n, dims, want);
	kernels->dots(q, rows, n, dims, got);
	CHECK(memcmp(want, got, sizeof(float) * n) == 0, "dots %d", dims);
	portable->sqdists(q, rows, n, dims, want);
	kernels->sqdists(q, rows, n, dims, got);
	CHECK(memcmp(want, got, sizeof(float) * n) == 0, "sqdists %d", dims);
	portable->residual_products(q, rows, last, dims, want_sums);
	kernels->residual_products(q, rows, last, dims, got_sums);
	CHECK(memcmp(want_sums, got_sums, sizeof(want_sums)) == 0,
		  "residual products %d", dims);
	want64 = portable->dot64(q, rows, dims);
	got64 = kernels->dot64(q, rows, dims);
	CHECK(memcmp(&want64, &got64, sizeof(double)) == 0, "dot64 %d", dims);
	want64 = portable->sqdist64(q, rows, dims);
	got64 = kernels->sqdist64(q, rows, dims);
	CHECK(memcmp(&want64, &got64, sizeof(double)) == 0, "sqdist64 %d", dims);
}

/* Records of bytes and, as the other argument, of halves. */
static void
check_record(const GvKernels *kernels, int32_t dims)
{
	OWN float  *q = unit_floats(dims, 3.0f);
	OWN uint8_t *codes = unit_alloc(dims);
	OWN uint16_t *half_vector = unit_alloc(sizeof(uint16_t) * (size_t) dims);
	GvRefine	bytes = {unit_float(), unit_float() / 100, 0, codes};
	float		want[2][GV_CPU_LANES];
	float		got[2][GV_CPU_LANES];
	int			half;
	int32_t		i;

	for (i = 0; i < dims; i++)
	{
		codes[i] = (uint8_t) unit_random();
		/* finite halves, of which a few are subnormal */
		half_vector[i] = (uint16_t) (unit_random() % 0x7C00);
		if (unit_random() % 4 == 0)
			half_vector[i] &= 0x3FF;
		half_vector[i] |= unit_random() % 2 << 15;
	}
	for (half = 0; half < 2; half++)
	{
		const GvRefine *record = half ? NULL : &bytes;
		const uint16_t *values = half ? half_vector : NULL;

		portable->record_sums(q, record, values, dims, want[0], NULL);
		kernels->record_sums(q, record, values, dims, got[0], NULL);
		CHECK(memcmp(want[0], got[0], sizeof(want[0])) == 0,
			  "squares %d, half %d", dims, half);
		portable->record_sums(q, record, values, dims, want[0], want[1]);
		kernels->record_sums(q, record, values, dims, got[0], got[1]);
		CHECK(memcmp(want, got, sizeof(want)) == 0, "products %d, half %d",
			  dims, half);
	}
}

/* Every half there is, by itself; NaN may be any. */
static void
check_every_half(const GvKernels *kernels)
{
	float		q = 1.0f;
	int			i;

	for (i = 0; i < 65536; i++)
	{
		uint16_t	half = (uint16_t) i;
		float		want[2][GV_CPU_LANES];
		float		got[2][GV_CPU_LANES];
		float		value = 0.0f;

		portable->record_sums(&q, NULL, &half, 1, want[0], want[1]);
		kernels->record_sums(&q, NULL, &half, 1, got[0], got[1]);
		gv_from_half(&half, 1, &value);
		CHECK((isnan(want[0][0]) && isnan(got[0][0])) ||
			  memcmp(want, got, sizeof(want)) == 0, "half %04x", i);
		if ((i & 0x7C00) != 0x7C00)
			CHECK(want[0][0] == value, "half %04x is %g", i, want[0][0]);
		else
			CHECK(!isfinite(want[0][0]), "half %04x is %g", i, want[0][0]);
	}
}

static void
check_multiply(const GvKernels *kernels)
{
	int			nrows = 1 + (int) (unit_random() % 20);
	int32_t		len = 1 + (int32_t) (unit_random() % GV_CPU_SLICE_DIMS);
	int32_t		stride = len + (int32_t) (unit_random() % 5);
	size_t		bytes = sizeof(float) * nrows * GV_CPU_TILE_CENTS;
	OWN float  *x = unit_floats((size_t) stride * (nrows - 1) + len, 1.0f);
	OWN float  *panel = unit_floats(GV_CPU_SLICE_DIMS * GV_CPU_TILE_CENTS,
									1.0f);
	OWN float  *want = unit_floats((size_t) nrows * GV_CPU_TILE_CENTS, 1.0f);
	OWN float  *got = unit_alloc(bytes);

	memcpy(got, want, bytes);
	memset(panel + len * GV_CPU_TILE_CENTS, 0, sizeof(float) *
		   (GV_CPU_SLICE_DIMS - len) * GV_CPU_TILE_CENTS);
	portable->multiply(x, stride, nrows, len, panel, want);
	kernels->multiply(x, stride, nrows, len, panel, got);
	CHECK(memcmp(want, got, bytes) == 0, "%d rows, %d dimensions", nrows, len);
}

/*
 * Estimates of a few rows over `dims` dimensions, panel by panel, keep to
 * their bound; at each level they are others.
 */
static void
check_estimate(const GvKernels *kernels, int32_t dims)
{
	int			nrows = 1 + (int) (unit_random() % 9);
	OWN float  *x = unit_floats((size_t) nrows * dims, 1.0f);
	OWN float  *rows = unit_floats((size_t) GV_CPU_TILE_CENTS * dims, 1.0f);
	OWN float  *panel = unit_alloc(sizeof(float) * gv_cpu_panel(dims));
	OWN float  *got = unit_alloc(sizeof(float) * nrows * GV_CPU_TILE_CENTS);
	int64_t		nwrong = 0;
	int32_t		first;
	int			i;

	gv_cpu_pack(rows, dims, GV_CPU_TILE_CENTS, panel);
	memset(got, 0, sizeof(float) * nrows * GV_CPU_TILE_CENTS);
	for (first = 0; first < dims; first += GV_CPU_SLICE_DIMS)
	{
		int32_t		left = dims - first;
		int32_t		len = left < GV_CPU_SLICE_DIMS ? left : GV_CPU_SLICE_DIMS;
		float	   *slice = panel + (size_t) first * GV_CPU_TILE_CENTS;

		memset(slice + len * GV_CPU_TILE_CENTS, 0xFF, sizeof(float) *
			   (GV_CPU_SLICE_DIMS - len) * GV_CPU_TILE_CENTS);	/* not read */
		kernels->estimate(x + first, dims, nrows, len, slice, got);
	}
	for (i = 0; i < nrows * GV_CPU_TILE_CENTS; i++)
	{
		const float *a = x + (size_t) (i / GV_CPU_TILE_CENTS) * dims;
		const float *b = rows + (size_t) (i % GV_CPU_TILE_CENTS) * dims;
		double		size = portable->dot64(a, a, dims) *
			portable->dot64(b, b, dims);

		nwrong += !(fabs(got[i] - portable->dot64(a, b, dims)) <=
					gv_estimate_error(dims) * sqrt(size));
	}
	CHECK(nwrong == 0, "%ld of %d rows, %d dimensions", (long) nwrong, nrows,
		  dims);
}

static void
check_within(const GvKernels *kernels)
{
	static const float odd[] = {NAN, HUGE_VALF, -HUGE_VALF, FLT_MAX, 0.0f};
	OWN float  *squares = unit_floats(GV_CPU_TILE_CENTS, 2.0f);
	OWN float  *products = unit_floats(GV_CPU_TILE_CENTS, 1.0f);
	int			place = (int) (unit_random() % GV_CPU_TILE_CENTS);
	float		limit = squares[place] - 2.0f * products[place];
	uint64_t	want = 0;
	int			i;

	for (i = 0; i < 6; i++)
	{
		squares[unit_random() % GV_CPU_TILE_CENTS] = odd[unit_random() % 5];
		products[unit_random() % GV_CPU_TILE_CENTS] = odd[unit_random() % 5];
	}
	if (unit_random() % 4 == 0)
		limit = odd[unit_random() % 5];
	for (i = 0; i < GV_CPU_TILE_CENTS; i++)
		if (!(squares[i] - 2.0f * products[i] > limit))
			want |= UINT64_C(1) << i;
	CHECK(kernels->within(squares, products, limit) == want, "limit %g",
		  limit);
}

static void
check_below(const GvKernels *kernels)
{
	static const float odd[] = {NAN, -NAN, HUGE_VALF, -HUGE_VALF, -0.0f, 0.0f};
	OWN float  *values = unit_floats(GV_CPU_COMPARED, 1.0f);
	float		limit = values[unit_random() % GV_CPU_COMPARED];
	uint64_t	want = 0;
	int			i;

	for (i = 0; i < 6; i++)
		values[unit_random() % GV_CPU_COMPARED] = odd[unit_random() % 6];
	if (unit_random() % 4 == 0)
		limit = odd[unit_random() % 6];
	for (i = 0; i < GV_CPU_COMPARED; i++)
		if (isnan(values[i]) || isnan(limit) || values[i] < limit)
			want |= UINT64_C(1) << i;
	CHECK(kernels->below(values, limit) == want, "limit %g", limit);
}

/* ---------- codes ---------- */

static void
check_words(const GvKernels *kernels)
{
	int			nrows = 1 + (int) (unit_random() % GV_CPU_WORD_ROWS);
	int32_t		dims = 1 + (int32_t) (unit_random() % 9);
	int32_t		len = 1 + (int32_t) (unit_random() % dims);
	size_t		stride = nrows + unit_random() % 9;
	OWN float  *x = unit_floats(stride * len, 1.0f);
	OWN float  *words = unit_floats((size_t) GV_CODEWORDS * dims, 1.0f);
	float		want[GV_CODEWORDS * GV_CPU_WORD_ROWS] = {0};
	float		got[GV_CODEWORDS * GV_CPU_WORD_ROWS] = {0};
	OWN float  *best = unit_alloc(sizeof(float) * 2 * nrows);
	OWN int32_t *code = unit_alloc(sizeof(int32_t) * 2 * nrows);

	memcpy(words, words + dims, sizeof(float) * dims);	/* a tie */
	portable->add_distances(x, stride, nrows, words, dims, len, want);
	kernels->add_distances(x, stride, nrows, words, dims, len, got);
	CHECK(memcmp(want, got, sizeof(want)) == 0, "%d rows, %d of %d", nrows,
		  len, dims);
	portable->nearest_words(want, nrows, best, code);
	kernels->nearest_words(got, nrows, best + nrows, code + nrows);
	CHECK(memcmp(best, best + nrows, sizeof(float) * nrows) == 0 &&
		  memcmp(code, code + nrows, sizeof(int32_t) * nrows) == 0,
		  "%d rows", nrows);
}

/* A vector alone, as among many. */
static void
check_word(const GvKernels *kernels)
{
	int32_t		dims = 1 + (int32_t) (unit_random() % 70);
	OWN float  *x = unit_floats(dims, 1.0f);
	OWN float  *words = unit_floats((size_t) GV_CODEWORDS * dims, 1.0f);
	int			copied = (int) (unit_random() % GV_CODEWORDS);
	float		dist[GV_CODEWORDS * GV_CPU_WORD_ROWS] = {0};
	float		best;
	int32_t		want;
	int32_t		got;

	if (unit_random() % 4 == 0)	/* ties */
		memcpy(words + (size_t) copied * dims, words, sizeof(float) * dims);
	if (unit_random() % 8 == 0)	/* squares overflow, of one or of all */
		words[unit_random() % (GV_CODEWORDS * dims)] = 1e30f;
	if (unit_random() % 16 == 0)
		x[unit_random() % dims] = -FLT_MAX;
	portable->add_distances(x, 1, 1, words, dims, dims, dist);
	portable->nearest_words(dist, 1, &best, &want);
	got = kernels->nearest_word(x, words, dims);
	CHECK(got == want, "%d is not %d, of %d dimensions", got, want, dims);
}

/* ---------- all of it ---------- */

static void
check_level(GvSimd level)
{
	static const int32_t long_dims[] = {4095, 4096, 4097, 9999, 16000};
	const GvKernels *kernels;
	int32_t		dims;
	int			i;

	gv_simd_use(level);
	kernels = gv_kernels;
	for (dims = 1; dims < ALL_DIMS; dims++)
	{
		check_distances(kernels, dims, 1 + dims % 6,
						dims % 9 == 8 ? 1e19f : 1.0f);
		check_record(kernels, dims);
		check_scanning(kernels, dims);
	}
	for (i = 0; i < 5; i++)
	{
		check_distances(kernels, long_dims[i], 3, 1.0f);
		check_record(kernels, long_dims[i]);
		check_estimate(kernels, long_dims[i]);
		check_scanning(kernels, long_dims[i]);
	}
	for (i = 0; i < 300; i++)
	{
		check_multiply(kernels);
		check_estimate(kernels, 1 + i);
		check_within(kernels);
		check_below(kernels);
		check_words(kernels);
		check_word(kernels);
	}
	check_every_half(kernels);
	check_lists(kernels);
	check_odd_tables();
}

void
test_levels(void)
{
	GvSimd		level;

	CHECK(gv_simd_has(GV_SIMD_AUTO) && gv_simd_has(GV_SIMD_PORTABLE), "no C");
	for (level = GV_SIMD_PORTABLE; level < GV_NSIMD; level++)
		if (gv_simd_has(level))
			check_level(level);
		else
		{
			gv_simd_use(GV_SIMD_PORTABLE);
			gv_simd_use(level);
			CHECK(gv_kernels == portable, "took %s", gv_simd_name(level));
		}
	gv_simd_use(unit_simd());
}
