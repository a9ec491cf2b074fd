/*
 * check_levels.c
 *		The kernels of every level that this processor has, against the
 *		portable ones, bit for bit.
 */
#include "cpu/gv_kernels.h"
#include "unit.h"

/* Dimensions below this are all tried. */
#define ALL_DIMS	(unit_small ? 300 : 2101)

static const GvKernels *const portable = &gv_portable_kernels;

/* n numbers that begin `shift` bytes behind aligned memory. */
static float *
shifted(const float *x, size_t n, int shift, char **memory)
{
	*memory = unit_alloc(n * sizeof(float) + (size_t) shift);
	return memcpy(*memory + shift, x, n * sizeof(float));
}

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
	double		want64;
	double		got64;

	portable->dots(q, rows, n, dims, want);
	kernels->dots(q, rows, n, dims, got);
	CHECK(memcmp(want, got, sizeof(float) * n) == 0, "dots %d", dims);
	portable->sqdists(q, rows, n, dims, want);
	kernels->sqdists(q, rows, n, dims, got);
	CHECK(memcmp(want, got, sizeof(float) * n) == 0, "sqdists %d", dims);
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

/* ---------- scan ---------- */

/* A list; its memory lies anywhere. */
typedef struct List
{
	GvModel		model;
	float	   *query;
	float	   *books;
	float	   *table;
	int32_t		nblocks;
	GvBlock    *blocks;
	char	   *memory;
	uint16_t   *rowids;
} List;

static void
make_list(List *list, int32_t m, int32_t nblocks, float size)
{
	size_t		codes_bytes = (size_t) gv_code_bytes(m) * GV_BLOCK;
	size_t		stride = codes_bytes + sizeof(float) * GV_BLOCK + 4;
	int			dead = (int) (unit_random() % 3);
	char	   *next;
	size_t		i;
	int32_t		b;

	list->query = unit_floats(m, size);
	list->books = unit_floats((size_t) GV_CODEWORDS * m, size);
	list->model = (GvModel) {.metric = (GvMetric) (1 + unit_random() % 3),
	.dims = m,.m = m,.codebooks = list->books};
	list->table = unit_alloc(gv_table_bytes(m));
	(void) gv_table(&list->model, list->query, list->table);
	list->nblocks = nblocks;
	list->blocks = unit_alloc(sizeof(GvBlock) * (nblocks + 1));
	list->rowids = unit_alloc(sizeof(uint16_t) * 3 * GV_BLOCK * (nblocks + 1));
	for (i = 0; i < (size_t) 3 * GV_BLOCK * nblocks; i++)
		list->rowids[i] = (uint16_t) (unit_random() % 64);
	list->memory = unit_alloc(stride * nblocks);
	next = list->memory;
	for (b = 0; b < nblocks; b++)
	{
		/* codes at any byte, T at any float */
		float	   *t = (float *) next;
		uint8_t    *codes = (uint8_t *) (t + GV_BLOCK) + unit_random() % 5;

		for (i = 0; i < GV_BLOCK; i++)
			t[i] = unit_float() * size * 3.0f;
		for (i = 0; i < codes_bytes; i++)
			codes[i] = (uint8_t) unit_random();
		list->blocks[b] = (GvBlock) {codes, t, list->rowids + 96 * b,
			dead == 0 ? UINT32_MAX : (uint32_t) unit_random()
		};
		if (dead == 2 && unit_random() % 2 == 0)
			list->blocks[b].live = 0;
		next += stride;
	}
}

static void
free_list(List *list)
{
	unit_free(list->query);
	unit_free(list->books);
	unit_free(list->table);
	unit_free(list->blocks);
	unit_free(list->memory);
	unit_free(list->rowids);
}

/* What a scan by kernels leaves, sorted. */
static GvTopK
scan_by(GvSimd simd, const List *list, float base, int32_t capacity,
		bool unique)
{
	GvTopK		top = new_topk(capacity, unique);
	GvScan		scan;

	gv_simd_use(simd);
	scan = begin_scan(&list->model, list->table, &top);
	CHECK(gv_scan(&scan, base, list->blocks, list->nblocks) == GV_OK, "scan");
	CHECK(gv_scan(&scan, base / 2, list->blocks, list->nblocks / 2) == GV_OK,
		  "scan");
	finish_scan(&scan);
	gv_topk_sort(&top);
	return top;
}

static void
check_scans(GvSimd level, const List *list, float base)
{
	int32_t		capacity = 1 + (int32_t) (unit_random() % 60);
	bool		unique = unit_random() % 2;
	GvTopK		want = scan_by(GV_SIMD_PORTABLE, list, base, capacity, unique);
	GvTopK		got = scan_by(level, list, base, capacity, unique);

	CHECK(want.count == got.count &&
		  memcmp(want.scores, got.scores, sizeof(float) * got.count) == 0 &&
		  memcmp(want.ids, got.ids, sizeof(uint64_t) * got.count) == 0,
		  "%s, m %d, %d blocks", gv_simd_name(level), list->model.m, list->nblocks);
	free_topk(&want);
	free_topk(&got);
}

/*
 * A filter keeps what the portable one keeps, which is never a copy whose S is
 * below the worst that is held, and not all of them.
 */
static void
check_filter(const GvKernels *kernels, const List *list, float base,
			 long *nkept, long *nall)
{
	const GvFilter *filter = gv_filter_of(list->table, list->model.m);
	int32_t		b;

	for (b = 0; b < list->nblocks; b++)
	{
		const GvBlock *block = &list->blocks[b];
		float		want[GV_BLOCK];
		float		got[GV_BLOCK];
		float		worst;
		GvCut		cut = {.base = base};
		uint32_t	kept;
		int			nwrong = 0;
		int			i;

		portable->sum_copies(list->table, list->model.m, block->codes,
							 GV_BLOCK, GV_BLOCK, want);
		kernels->sum_copies(list->table, list->model.m, block->codes,
							GV_BLOCK, GV_BLOCK, got);
		CHECK(memcmp(want, got, sizeof(want)) == 0, "m %d", list->model.m);

		/* exactly the score of a copy, and the next smaller one */
		worst = score_of((base + block->t[0]) + want[0]);
		if (unit_random() % 2)
			worst = nextafterf(worst, -HUGE_VALF);
		if (!gv_filter_cut(filter, worst, &cut))
			continue;
		kept = kernels->filter(filter->bytes, list->model.m, block->codes,
							   block->t, &cut);
		CHECK(kept == portable->filter(filter->bytes, list->model.m,
									   block->codes, block->t, &cut),
			  "m %d", list->model.m);
		for (i = 0; i < GV_BLOCK; i++)
			nwrong += (kept >> i & 1) == 0 &&
				score_of((base + block->t[i]) + want[i]) <= worst;
		CHECK(nwrong == 0, "%d left out, m %d", nwrong, list->model.m);
		*nkept += __builtin_popcount(kept);
		*nall += GV_BLOCK;
	}
}

static void
check_lists(GvSimd level, const GvKernels *kernels)
{
	int			rounds = unit_small ? 60 : 400;
	long		nkept = 0;
	long		nall = 0;
	int			round;

	for (round = 0; round < rounds; round++)
	{
		int32_t		m = round < 40 ? round + 1 :
			1 + (int32_t) (unit_random() % (round % 10 == 0 ? 2100 : 300));
		int32_t		nblocks = (int32_t) (unit_random() %
										 (round % 7 == 0 ? 101 : 9));
		float		sizes[] = {1.0f, 1.0f, 1e-20f, 1e18f, 2e19f, 1e-3f};
		float		size = sizes[unit_random() % 6];
		float		base = round % 9 == 0 ? GV_SCORE_MAX : unit_float() * size;
		List		list;

		if (round % 50 == 49)
			m = 4000 * (int32_t) (1 + unit_random() % 4);
		make_list(&list, m, nblocks, size);
		if (nblocks > 0 && round % 4 == 0)
			((float *) list.blocks[0].t)[unit_random() % GV_BLOCK] =
				unit_random() % 2 ? FLT_MAX : -FLT_MAX;
		check_scans(level, &list, base);
		check_filter(kernels, &list, base, &nkept, &nall);
		free_list(&list);
	}
	CHECK(nkept > 0 && nkept < nall * 3 / 4, "%ld of %ld kept", nkept, nall);
}

/* Tables that no filter can be made of, or only just. */
static void
check_odd_tables(GvSimd level)
{
	static const float values[] = {0.0f, -0.0f, 1e-45f, 1e-38f, 1e37f, 3e38f,
	-3e38f, 1.0f};
	int			round;

	for (round = 0; round < (unit_small ? 50 : 300); round++)
	{
		List		list;
		size_t		i;

		make_list(&list, 1 + (int32_t) (unit_random() % 40), 8, 1.0f);
		for (i = 0; i < (size_t) GV_CODEWORDS * list.model.m; i++)
			if (unit_random() % 8 < 3 || round % 5 == 0)
				list.table[i] = values[unit_random() % (round % 3 == 0 ? 8 : 5)];
		if (round % 5 == 0)		/* all the same */
			for (i = 1; i < (size_t) GV_CODEWORDS * list.model.m; i++)
				list.table[i] = list.table[0];
		gv_filter_make(list.table, list.model.m);
		check_scans(level, &list, round % 2 ? 0.0f : GV_SCORE_MAX);
		free_list(&list);
	}
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
	}
	for (i = 0; i < 5; i++)
	{
		check_distances(kernels, long_dims[i], 3, 1.0f);
		check_record(kernels, long_dims[i]);
		check_byte_dots(kernels, long_dims[i]);
	}
	check_all_coded();
	for (i = 0; i < 300; i++)
	{
		check_multiply(kernels);
		check_words(kernels);
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
