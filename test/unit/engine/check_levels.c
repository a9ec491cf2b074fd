/*
 * check_levels.c
 *		The kernels of every level that this processor has, against the
 *		portable ones, bit for bit.
 */
#include "levels.h"

/* Dimensions below this are all tried. */
#define ALL_DIMS	(unit_small ? 300 : 2101)

/* ---------- distances ---------- */

static void
check_distances(const GvKernels *kernels, int32_t dims, int32_t n, float size)
{
	float	   *random = unit_floats((size_t) (n + 1) * dims, size);
	char	   *memory;
	float	   *q = shifted(random, (size_t) (n + 1) * dims,
							4 * (int) (unit_random() % 16), &memory);
	const float *rows = q + dims;
	float	   *want = unit_alloc(sizeof(float) * n);
	float	   *got = unit_alloc(sizeof(float) * n);
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
	unit_free(random);
	unit_free(memory);
	unit_free(want);
	unit_free(got);
}

static void
check_record(const GvKernels *kernels, int32_t dims)
{
	float	   *q = unit_floats(dims, 3.0f);
	uint8_t    *codes = unit_alloc(dims);
	GvRefine	record = {unit_float(), unit_float() / 100, 0, codes};
	float		want[2][GV_CPU_LANES];
	float		got[2][GV_CPU_LANES];
	int32_t		i;

	for (i = 0; i < dims; i++)
		codes[i] = (uint8_t) unit_random();
	portable->record_squares(q, &record, dims, want[0]);
	kernels->record_squares(q, &record, dims, got[0]);
	CHECK(memcmp(want[0], got[0], sizeof(want[0])) == 0, "squares %d", dims);
	portable->record_products(q, &record, dims, want[0], want[1]);
	kernels->record_products(q, &record, dims, got[0], got[1]);
	CHECK(memcmp(want, got, sizeof(want)) == 0, "products %d", dims);
	unit_free(q);
	unit_free(codes);
}

static void
check_multiply(const GvKernels *kernels)
{
	int			nrows = 1 + (int) (unit_random() % 20);
	int32_t		len = 1 + (int32_t) (unit_random() % GV_CPU_SLICE_DIMS);
	int32_t		stride = len + (int32_t) (unit_random() % 5);
	size_t		bytes = sizeof(float) * nrows * GV_CPU_TILE_CENTS;
	float	   *x = unit_floats((size_t) stride * (nrows - 1) + len, 1.0f);
	float	   *panel = unit_floats(GV_CPU_SLICE_DIMS * GV_CPU_TILE_CENTS, 1.0f);
	float	   *want = unit_floats((size_t) nrows * GV_CPU_TILE_CENTS, 1.0f);
	float	   *got = unit_alloc(bytes);

	memcpy(got, want, bytes);
	memset(panel + len * GV_CPU_TILE_CENTS, 0, sizeof(float) *
		   (GV_CPU_SLICE_DIMS - len) * GV_CPU_TILE_CENTS);
	portable->multiply(x, stride, nrows, len, panel, want);
	kernels->multiply(x, stride, nrows, len, panel, got);
	CHECK(memcmp(want, got, bytes) == 0, "%d rows, %d dimensions", nrows, len);
	unit_free(x);
	unit_free(panel);
	unit_free(want);
	unit_free(got);
}

/* ---------- coarse search in bytes ---------- */

static void
check_byte_dots(const GvKernels *kernels, int32_t dims)
{
	int32_t		n = 1 + dims % 6;
	bool		extreme = dims % 5 == 0;
	int8_t	   *codes = unit_alloc((size_t) (n + 1) * dims);
	int32_t    *want = unit_alloc(sizeof(int32_t) * n);
	int32_t    *got = unit_alloc(sizeof(int32_t) * n);
	int32_t		i;

	for (i = 0; i < (n + 1) * dims; i++)
		codes[i] = (int8_t) (extreme ? i % 7 < 5 ? -127 : 127 :
							 (int) (unit_random() % 255) - 127);
	portable->byte_dots(codes, codes + dims, n, dims, want);
	kernels->byte_dots(codes, codes + dims, n, dims, got);
	CHECK(memcmp(want, got, sizeof(int32_t) * n) == 0, "dims %d", dims);
	unit_free(codes);
	unit_free(want);
	unit_free(got);
}

/*
 * All of the k nearest are kept, offered in two parts; returns how many are
 * kept in vain.
 */
static int
check_coded(GvMetric metric, int32_t dims, int32_t n, int32_t k, float size)
{
	GvModel		model = {.metric = metric,.dims = dims,.m = 1};
	int8_t	   *q_codes = unit_alloc(dims);
	GvCodedQuery query = {.metric = metric,.dims = dims,.codes = q_codes};
	GvCoded		q_coded = {q_codes, &query.step, &query.length, &query.error};
	float	   *numbers = unit_alloc(sizeof(float) * 3 * n);
	float	   *q = unit_floats(dims, size);
	float	   *x = unit_floats((size_t) n * dims, size);
	int8_t	   *codes = unit_alloc((size_t) n * dims);
	GvCoded		coded = {codes, numbers, numbers + n, numbers + 2 * n};
	GvCoded		second = coded;
	float	   *values = unit_alloc(sizeof(float) * n);
	int32_t    *kept = unit_alloc(sizeof(int32_t) * n);
	GvTopK		exact = new_topk(k, false);
	GvTopK		best = new_topk(k, false);
	GvTopK		found = new_topk(k, false);
	int32_t		half = n / 2;
	int32_t		nkept;
	int32_t		i;

	for (i = 0; i < dims && n > 3; i++)
		x[2 * dims + i] = i % 7 ? q[i] : 0.0f;
	if (n > 4)
		memset(x + 3 * dims, 0, sizeof(float) * dims);
	(void) gv_coarse(&model, q, x, n, 0, &exact);
	(void) gv_coarse_encode(dims, q, 1, &q_coded);
	CHECK(gv_coarse_encode(dims, x, n, &coded) == GV_OK, "encode");
	if (half > 0)
		(void) gv_coarse_offer(&query, &coded, half, 0, values, &best);
	second.codes += (size_t) half * dims;
	second.steps += half;
	second.lengths += half;
	second.errors += half;
	CHECK(gv_coarse_offer(&query, &second, n - half, half, values + half,
						  &best) == GV_OK, "offer");
	CHECK(best.count < k || best.scores[0] >= exact.scores[0],
		  "%g, %g", best.scores[0], exact.scores[0]);
	(void) gv_coarse_keep(&query, &coded, values, n,
						  best.count < k ? GV_SCORE_MAX : best.scores[0],
						  kept, &nkept);
	for (i = 0; i < nkept; i++)
		(void) gv_coarse(&model, q, x + (size_t) kept[i] * dims, 1, kept[i],
						 &found);
	gv_topk_sort(&exact);
	gv_topk_sort(&found);
	CHECK(exact.count == found.count &&
		  memcmp(exact.ids, found.ids, sizeof(uint64_t) * found.count) == 0,
		  "metric %d, dims %d, %d of %d", metric, dims, nkept, n);
	unit_free(q_codes);
	unit_free(q);
	unit_free(x);
	unit_free(codes);
	unit_free(numbers);
	unit_free(values);
	unit_free(kept);
	free_topk(&exact);
	free_topk(&best);
	free_topk(&found);
	return nkept - (n < k ? n : k);
}

static void
check_all_coded(void)
{
	static const float sizes[] = {1.0f, 1e-3f, 1e-20f, 1e17f, 1e19f, 3e38f};
	int			nvain = 0;
	int			round;

	for (round = 0; round < (unit_small ? 60 : 300); round++)
	{
		int32_t		n = 1 + (int32_t) (unit_random() % 200);
		int			vain = check_coded((GvMetric) (1 + round % 3),
									   1 + (int32_t) (unit_random() % 500), n,
									   1 + (int32_t) (unit_random() % 30),
									   sizes[round % 6]);

		if (round % 6 == 0)
			nvain += 100 * vain / n;
	}
	CHECK(nvain < 20 * round / 6, "%d in vain", nvain);
	(void) check_coded(GV_L2, 16000, 20, 3, 1.0f);
}

/* ---------- codes ---------- */

static void
check_words(const GvKernels *kernels)
{
	int			nrows = 1 + (int) (unit_random() % GV_CPU_WORD_ROWS);
	int32_t		dims = 1 + (int32_t) (unit_random() % 9);
	int32_t		len = 1 + (int32_t) (unit_random() % dims);
	size_t		stride = nrows + unit_random() % 9;
	float	   *x = unit_floats(stride * len, 1.0f);
	float	   *words = unit_floats((size_t) GV_CODEWORDS * dims, 1.0f);
	float		want[GV_CODEWORDS * GV_CPU_WORD_ROWS] = {0};
	float		got[GV_CODEWORDS * GV_CPU_WORD_ROWS] = {0};
	float	   *best = unit_alloc(sizeof(float) * 2 * nrows);
	int32_t    *code = unit_alloc(sizeof(int32_t) * 2 * nrows);

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
	unit_free(x);
	unit_free(words);
	unit_free(best);
	unit_free(code);
}

/* A vector alone, as among many. */
static void
check_word(const GvKernels *kernels)
{
	int32_t		dims = 1 + (int32_t) (unit_random() % 70);
	float	   *x = unit_floats(dims, 1.0f);
	float	   *words = unit_floats((size_t) GV_CODEWORDS * dims, 1.0f);
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
	unit_free(x);
	unit_free(words);
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
		check_byte_dots(kernels, dims);
		check_scanning(kernels, dims);
	}
	for (i = 0; i < 5; i++)
	{
		check_distances(kernels, long_dims[i], 3, 1.0f);
		check_record(kernels, long_dims[i]);
		check_byte_dots(kernels, long_dims[i]);
		check_scanning(kernels, long_dims[i]);
	}
	check_all_coded();
	for (i = 0; i < 300; i++)
	{
		check_multiply(kernels);
		check_words(kernels);
		check_word(kernels);
	}
	check_lists(level, kernels);
	check_odd_tables(level);
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
