/*
 * check_level_scans.c
 *		Tables, filters and scans by the kernels of every level, against the
 *		portable ones, bit for bit.
 */
#include "keys.h"
#include "levels.h"

/* The same entries, and the same filter, wherever the memory lies. */
static void
check_table(const GvKernels *kernels, int32_t dims, int32_t m, float size)
{
	GvModel		model = {.metric = (GvMetric) (1 + unit_random() % 3),
	.dims = dims,.m = m};
	OWN float  *random = unit_floats((size_t) (GV_CODEWORDS + 1) * dims, size);
	size_t		entries = sizeof(float) * (size_t) GV_CODEWORDS * m;
	OWN char   *memory = NULL;
	float	   *query = shifted(random, (size_t) (GV_CODEWORDS + 1) * dims,
								4 * (int) (unit_random() % 16), &memory);
	int			shift = 4 * (int) (unit_random() % 16);
	OWN float  *want = unit_alloc(gv_table_bytes(m));
	OWN char   *got_memory = unit_alloc(gv_table_bytes(m) + shift);
	float	   *got = (float *) (got_memory + shift);
	const GvFilter *want_filter = gv_filter_of(want, m);
	const GvFilter *got_filter = gv_filter_of(got, m);

	model.codebooks = query + dims;
	portable->table(&model, query, want);
	kernels->table(&model, query, got);
	CHECK(memcmp(want, got, entries) == 0, "dims %d, m %d", dims, m);
	CHECK(want_filter->usable == got_filter->usable, "dims %d, m %d", dims, m);
	if (want_filter->usable)
		CHECK(memcmp(want_filter, got_filter, offsetof(GvFilter, unused)) == 0 &&
			  memcmp(want_filter->bytes, got_filter->bytes,
					 gv_filter_place((m + 3) / 4 * 4)) == 0,
			  "filter, dims %d, m %d", dims, m);
}

/* Postings with a bit, side by side; and sums of any number of postings. */
static void
check_gathered(const GvKernels *kernels, int32_t m)
{
	int32_t		code_bytes = gv_code_bytes(m);
	int32_t		n = 1 + (int32_t) (unit_random() % (3 * GV_BLOCK));
	int32_t		whole = (n + GV_BLOCK - 1) / GV_BLOCK * GV_BLOCK;
	size_t		bytes = (size_t) (code_bytes - 1) * GV_GATHERED_STRIDE + whole;
	int			shift = (int) (unit_random() % 16);
	OWN char   *memory = unit_alloc((size_t) code_bytes * GV_BLOCK + shift);
	uint8_t    *codes = (uint8_t *) memory + shift;
	OWN uint8_t *want = unit_alloc(bytes);
	OWN uint8_t *got = unit_alloc(bytes);
	OWN float  *table = unit_floats((size_t) m * GV_CODEWORDS, 1.0f);
	OWN float  *want_sums = unit_alloc(sizeof(float) * whole);
	OWN float  *got_sums = unit_alloc(sizeof(float) * whole);
	uint32_t	wanted = (uint32_t) (unit_random() >> unit_random() % 64);
	size_t		i;
	int32_t		p;
	int			nwrong = 0;

	for (i = 0; i < (size_t) code_bytes * GV_BLOCK; i++)
		codes[i] = (uint8_t) unit_random();
	portable->gather(codes, code_bytes, wanted, want);
	kernels->gather(codes, code_bytes, wanted, got);
	for (p = 0; p < code_bytes; p++)
		nwrong += memcmp(want + p * GV_GATHERED_STRIDE,
						 got + p * GV_GATHERED_STRIDE,
						 __builtin_popcount(wanted)) != 0;
	CHECK(nwrong == 0, "%d of %d columns, %x", nwrong, code_bytes, wanted);
	for (i = 0; i < bytes; i++)
		got[i] = (uint8_t) unit_random();
	portable->sum_postings(table, m, got, GV_GATHERED_STRIDE, n, want_sums);
	kernels->sum_postings(table, m, got, GV_GATHERED_STRIDE, n, got_sums);
	CHECK(memcmp(want_sums, got_sums, sizeof(float) * n) == 0,
		  "m %d, %d copies", m, n);
}

/* Tables and gathered postings, of codes as long as dims. */
void
check_scanning(const GvKernels *kernels, int32_t dims)
{
	check_table(kernels, dims, 1 + (int32_t) (unit_random() % dims),
				dims % 9 == 8 ? 1e19f : 1.0f);
	check_table(kernels, dims, (dims + 1) / 2, 1.0f);
	check_gathered(kernels, dims);
}

/*
 * The sorted result of a scan by kernels, of blocks that it reads
 * optimistically or does not.
 */
static GvTopK
scan_by(GvSimd simd, const UnitList *list, float base, int32_t capacity,
		bool unique, bool tries)
{
	GvTopK		top = new_topk(capacity, unique);
	GvScan		scan;

	gv_simd_use(simd);
	scan = begin_scan(&list->model, list->table, &top);
	if (tries)
		scan_optimistic(&scan, base, list->blocks, list->nblocks);
	else
		CHECK(gv_scan(&scan, base, list->blocks, list->nblocks) == GV_OK, "scan");
	OK(gv_scan(&scan, base / 2, list->blocks, list->nblocks / 2));
	finish_scan(&scan);
	gv_topk_sort(&top);
	return top;
}

static void
check_scans(GvSimd level, const UnitList *list, float base)
{
	int32_t		capacity = 1 + (int32_t) (unit_random() %
										  (unit_random() % 8 == 0 ? 3000 : 60));
	bool		unique = unit_random() % 2;
	OwnTopK		want = scan_by(GV_SIMD_PORTABLE, list, base, capacity, unique,
							   false);
	OwnTopK		got = scan_by(level, list, base, capacity, unique,
							  !unique && unit_random() % 2);

	CHECK(want.count == got.count &&
		  memcmp(want.scores, got.scores, sizeof(float) * got.count) == 0 &&
		  memcmp(want.ids, got.ids, sizeof(uint64_t) * got.count) == 0,
		  "%s, m %d, %d blocks", gv_simd_name(level), list->model.m, list->nblocks);
}

/*
 * A filter keeps what the portable one keeps, which is never a posting whose S
 * is below the worst that is kept, and not all of them.
 */
static void
check_filter(const GvKernels *kernels, const UnitList *list, float base,
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

		portable->sum_postings(list->table, list->model.m, block->codes,
							 GV_BLOCK, GV_BLOCK, want);
		kernels->sum_postings(list->table, list->model.m, block->codes,
							GV_BLOCK, GV_BLOCK, got);
		CHECK(memcmp(want, got, sizeof(want)) == 0, "m %d", list->model.m);

		/* exactly the score of a posting, and the next smaller one */
		worst = score_of((base + block->t[0]) + want[0]);
		if (unit_random() % 2)
			worst = nextafterf(worst, -HUGE_VALF);
		if (!gv_filter_cut(filter, worst, &cut))
			continue;
		kept = kernels->filter(filter->bytes, list->model.m, block->codes,
							   block->t, &cut,
							   block->ahead ? block->ahead : block->codes);
		CHECK(kept == portable->filter(filter->bytes, list->model.m,
									   block->codes, block->t, &cut, NULL),
			  "m %d", list->model.m);
		for (i = 0; i < GV_BLOCK; i++)
			nwrong += (kept >> i & 1) == 0 &&
				score_of((base + block->t[i]) + want[i]) <= worst;
		CHECK(nwrong == 0, "%d left out, m %d", nwrong, list->model.m);
		*nkept += __builtin_popcount(kept);
		*nall += GV_BLOCK;
	}
}

/* Lists of any length, and what is found in them. */
void
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
		UnitList	list;

		if (round % 50 == 49)
			m = 4000 * (int32_t) (1 + unit_random() % 4);
		list = unit_list(m, nblocks, size, NULL);
		if (nblocks > 0 && round % 4 == 0)
			((float *) list.blocks[0].t)[unit_random() % GV_BLOCK] =
				unit_random() % 2 ? FLT_MAX : -FLT_MAX;
		check_scans(level, &list, base);
		check_filter(kernels, &list, base, &nkept, &nall);
		unit_free_list(&list);
	}
	CHECK(nkept > 0 && nkept < nall * 3 / 4, "%ld of %ld kept", nkept, nall);
}

/* Tables that no filter can be made of, or only just. */
void
check_odd_tables(GvSimd level)
{
	static const float values[] = {0.0f, -0.0f, 1e-45f, 1e-38f, 1e37f, 3e38f,
	-3e38f, 1.0f};
	int			round;

	for (round = 0; round < (unit_small ? 50 : 300); round++)
	{
		UnitList	list;
		size_t		i;

		list = unit_list(1 + (int32_t) (unit_random() % 40), 8, 1.0f, NULL);
		for (i = 0; i < (size_t) GV_CODEWORDS * list.model.m; i++)
			if (unit_random() % 8 < 3 || round % 5 == 0)
				list.table[i] = values[unit_random() % (round % 3 == 0 ? 8 : 5)];
		if (round % 5 == 0)		/* all the same */
			for (i = 1; i < (size_t) GV_CODEWORDS * list.model.m; i++)
				list.table[i] = list.table[0];
		gv_filter_make(list.table, list.model.m);
		check_scans(level, &list, round % 2 ? 0.0f : GV_SCORE_MAX);
		unit_free_list(&list);
	}
}
