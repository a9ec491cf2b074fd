/*
 * bench_engine.c
 *		Timings of the engine on one core, with each level of instructions.
 */
#include <time.h>

#include "unit.h"

static double
seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double) now.tv_sec + 1e-9 * (double) now.tv_nsec;
}

/* The best k of nblocks blocks. */
static void
bench_scan(int32_t m, int32_t nblocks, int32_t k)
{
	size_t		code_bytes = (size_t) gv_code_bytes(m) * GV_BLOCK;
	OWN float  *query = unit_floats(m, 1.0f);
	OWN float  *books = unit_floats((size_t) GV_CODEWORDS * m, 1.0f);
	GvModel		model = {.metric = GV_L2,.dims = m,.m = m,.codebooks = books};
	OWN float  *table = unit_alloc(gv_table_bytes(m));
	OWN uint8_t *codes = unit_alloc(code_bytes * nblocks);
	OWN float  *t = unit_floats((size_t) nblocks * GV_BLOCK, 1.0f);
	uint16_t	rowids[3 * GV_BLOCK] = {0};
	OWN GvBlock *blocks = unit_alloc(sizeof(GvBlock) * nblocks);
	OwnTopK		top = new_topk(k, false);
	GvScan		scan = begin_scan(&model, table, &top);
	double		best = 1e9;
	size_t		i;
	int			round;

	(void) gv_table(&model, query, table);
	for (i = 0; i < code_bytes * nblocks; i++)
		codes[i] = (uint8_t) unit_random();
	for (i = 0; i < (size_t) nblocks; i++)
		blocks[i] = (GvBlock) {
			.codes = codes + i * code_bytes,.t = t + i * GV_BLOCK,
			.rowids = rowids,.live = UINT32_MAX
		};
	for (round = 0; round < 30; round++)
	{
		double		start = seconds();

		gv_topk_reset(&top);
		(void) gv_scan_begin(&scan);
		(void) gv_scan(&scan, 0.0f, blocks, nblocks);
		(void) gv_scan_finish(&scan);
		best = fmin(best, seconds() - start);
	}
	best /= nblocks * GV_BLOCK;
	printf("scan m %d, best %d of %d: %.1f ns a copy, %.2f GB/s of codes\n", m,
		   k, nblocks * GV_BLOCK, best * 1e9, gv_code_bytes(m) / best / 1e9);
	finish_scan(&scan);
}

/* One test of a key, and of many blocks' heads, which never tell. */
static void
bench_test(const char *what, int width, GvTestKind kind, int32_t nvalues)
{
	enum
	{
		NBLOCKS = 2000
	};
	GvKeyForm	form = {1, {GV_KEY_ORDERED}, {(uint8_t) width}};
	uint64_t	most = UINT64_MAX >> (64 - 8 * width);
	size_t		bytes = gv_keys_bytes(&form);
	OWN char   *keys = unit_alloc(bytes * NBLOCKS);
	OWN uint64_t *values = unit_alloc(sizeof(uint64_t) * (nvalues + 1));
	GvKeyTest	test = {0, kind, most / 100, most / 50, nvalues, values};
	GvCondition condition = {form, 1, &test};
	double		heads = 1e9;
	double		abbrevs = 1e9;
	long		nmatch = 0;
	size_t		b;
	int			round;
	int32_t		i;

	for (i = 0; i < nvalues; i++)
		values[i] = most / (uint64_t) nvalues * (uint64_t) i;
	memset(keys, 0, bytes * NBLOCKS);
	for (b = 0; b < NBLOCKS; b++)
	{
		((GvKeyHead *) (keys + b * bytes))->high = most;
		for (i = 0; i < GV_BLOCK * width; i++)
			keys[b * bytes + sizeof(GvKeyHead) + i] = (char) unit_random();
	}
	for (round = 0; round < 30; round++)
	{
		double		start = seconds();

		for (b = 0; b < NBLOCKS; b++)
			nmatch += gv_may_match(&condition, keys + b * bytes);
		heads = fmin(heads, seconds() - start);
		start = seconds();
		for (b = 0; b < NBLOCKS; b++)
			nmatch += gv_match(&condition, keys + b * bytes);
		abbrevs = fmin(abbrevs, seconds() - start);
	}
	printf("%s, %d bytes: heads %.1f ns a block, images %.1f (%ld)\n", what,
		   width, heads * 1e9 / NBLOCKS, abbrevs * 1e9 / NBLOCKS, nmatch % 10);
}

static void
bench_keys(void)
{
	int			width;

	for (width = 1; width <= 8; width *= 2)
	{
		bench_test("range", width, GV_TEST_RANGE, 0);
		bench_test("set of 4", width, GV_TEST_SET, 4);
		bench_test("set of 30", width, GV_TEST_SET, 30);
		bench_test("set of 200", width, GV_TEST_SET, 200);
		if (width > 1)
			bench_test("set of 1000", width, GV_TEST_SET, 1000);
	}
}

static void
bench_search(int32_t dims, int32_t k, const float *x)
{
	OWN float  *books = unit_floats((size_t) GV_CODEWORDS * dims, 1.0f);
	GvModel		model = {.metric = GV_L2,.dims = dims,.m = dims / 2,
	.codebooks = books};
	OWN float  *table = unit_alloc(gv_table_bytes(dims / 2));
	OwnTopK		top = new_topk(32, false);
	double		start = seconds();
	int			round;

	for (round = 0; round < 100; round++)
	{
		gv_topk_reset(&top);
		(void) gv_coarse(&model, x, x, k, 0, &top);
	}
	start = seconds() - start;
	printf("coarse %d x %d: %.1f us, %.1f GB/s\n", k, dims, start * 1e4,
		   400.0 * k * dims / start / 1e9);
	start = seconds();
	for (round = 0; round < 1000; round++)
		(void) gv_table(&model, x, table);
	printf("table %d: %.1f us\n", dims, (seconds() - start) * 1e3);
}

static void
bench_training(int64_t n, int32_t dims, int32_t k, const float *x)
{
	GvKmeans	spec = {dims, n, k, 10, 2.0, 1};
	OWN float  *centroids = unit_alloc(sizeof(float) * k * dims);
	OWN float  *books = unit_alloc(sizeof(float) * GV_CODEWORDS * dims);
	OWN int32_t *nearest = unit_alloc(sizeof(int32_t) * n);
	OWN uint8_t *codes = unit_alloc((size_t) n * dims / 4);
	OWN float  *t = unit_alloc(sizeof(float) * n);
	GvModel		model = {.metric = GV_L2,.dims = dims,.m = dims / 2,
	.codebooks = books};
	void	   *scratch = unit_alloc(gv_kmeans_scratch(&spec));
	double		start = seconds();
	double		mse;
	int64_t		most;
	int32_t		found;

	(void) gv_kmeans(&spec, x, centroids, &found, scratch, NULL);
	printf("kmeans %d x %d, k %d, 10 iterations: %.2f s", (int) n, dims, k,
		   seconds() - start);
	most = biggest_cluster(dims, centroids, found, x, n, &mse);
	printf(", mse %.5f, biggest %.2f of the mean\n", mse,
		   (double) most * k / (double) n);
	unit_free(scratch);

	start = seconds();
	(void) gv_assign(dims, centroids, found, x, n / 4, nearest, NULL, NULL);
	start = seconds() - start;
	printf("assign %d x %d, k %d: %.3f s, %.1f GFLOP/s\n", (int) n / 4, dims,
		   found, start, 0.5e-9 * (double) n * dims * found / start);

	scratch = unit_alloc(gv_codebooks_scratch(dims, dims / 2, n));
	start = seconds();
	(void) gv_codebooks(dims, dims / 2, n, x, 1, books, scratch, NULL);
	printf("codebooks m %d: %.2f s\n", dims / 2, seconds() - start);
	start = seconds();
	memset(nearest, 0, sizeof(int32_t) * n);
	(void) gv_encode(&model, x, centroids, nearest, n, 1, codes, t);
	printf("encode m %d: %.2f us a row\n", dims / 2,
		   (seconds() - start) * 1e6 / (double) n);
	unit_free(scratch);
}

void
bench(void)
{
	OWN float  *x = clustered(40000, 384, 300, 0.3f);
	GvSimd		level;

	for (level = GV_SIMD_PORTABLE; level < GV_NSIMD; level++)
	{
		if (!gv_simd_has(level))
			continue;
		gv_simd_use(level);
		printf("---- %s\n", gv_simd_name(level));
		bench_keys();
		bench_scan(148, 300, 10);
		bench_scan(148, 300, 200);
		bench_scan(148, 8000, 10);
		bench_scan(148, 8000, 200);
		bench_search(384, 8192, x);
		bench_training(40000, 384, 1000, x);
	}
}
