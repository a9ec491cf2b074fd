/*
 * check_level_scans.c
 *		Tables and filters by the kernels of every level, against the portable
 *		ones, bit for bit; scans at every level, against a sort of all scores.
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

/* S as gv_engine.h states it. */
static float
naive_score(const UnitList *list, float base, const GvBlock *block, int i)
{
	float		sum = 0.0f;
	int32_t		j;

	for (j = 0; j < list->model.m; j++)
	{
		int			byte = block->codes[j / 2 * GV_BLOCK + i];
		float		entry = list->table[j * GV_CODEWORDS +
										(byte >> (j % 2 * 4) & 15)];

		sum = j == 0 ? entry : sum + entry;
	}
	return score_of((base + block->t[i]) + sum);
}

/*
 * The live postings of the first nblocks blocks that satisfy a condition, which
 * may be NULL.
 */
static int
expect_pairs(const UnitList *list, float base, int32_t nblocks,
			 const GvCondition *condition, Pair *pairs)
{
	int			n = 0;
	int32_t		b;
	int			i;

	for (b = 0; b < nblocks; b++)
	{
		const GvBlock *block = &list->blocks[b];
		uint32_t	bits = block->live;

		if (condition != NULL)
			bits &= naive_match(condition, block->keys);
		for (i = 0; i < GV_BLOCK; i++)
		{
			const uint16_t *w = block->rowids == NULL ? NULL :
				block->rowids + 3 * i;

			if ((bits >> i & 1) == 0)
				continue;
			pairs[n].score = naive_score(list, base, block, i);
			pairs[n++].id = w == NULL ? block->first_id + (uint64_t) i :
				(uint64_t) w[0] << 32 | (uint64_t) w[1] << 16 | w[2];
		}
	}
	return n;
}

static int
compare_ids(const void *a, const void *b)
{
	const Pair *x = a;
	const Pair *y = b;

	return x->id != y->id ? (x->id < y->id ? -1 : 1) : compare_pairs(a, b);
}

/*
 * By optimistic reads, of which those that fail show postings nearer than they
 * are, so that what they leave behind is found.
 */
static inline void
scan_optimistic(GvScan *scan, float base, const GvBlock *blocks,
				int32_t nblocks)
{
	int32_t		b = 0;

	while (b < nblocks)
	{
		int32_t		n = 1 + (int32_t) (unit_random() % GV_OPTIMISTIC_BLOCKS);
		bool		valid = unit_random() % 2;

		n = n < nblocks - b ? n : nblocks - b;
		CHECK(gv_scan_optimistic(scan,
								 valid ? base : base - fabsf(base) - 1.0f,
						  blocks + b, n) == GV_OK, "try");
		CHECK(gv_scan_commit(scan, valid) == GV_OK, "tried");
		b += valid ? n : 0;
	}
}

/* Half of the list comes twice, the second time from another list's base. */
void
check_scan(const UnitList *list, float base, const GvCondition *condition)
{
	int32_t		capacity = 1 + (int32_t) (unit_random() %
										  (unit_random() % 8 == 0 ? 3000 : 60));
	bool		unique = unit_random() % 2;
	OwnTopK		top = new_topk(capacity, unique);
	GvScan		scan = begin_scan(&list->model, list->table, &top);
	int32_t		half = list->nblocks / 2;
	FREED Pair *pairs = malloc(sizeof(Pair) * GV_BLOCK *
							   (list->nblocks + half + 1));
	int			n = expect_pairs(list, base, list->nblocks, condition, pairs);
	int			nunique = 0;
	int			i;

	scan.condition = condition;
	scan.matched = -1;
	OK(gv_scan_begin(&scan));
	if (!unique && unit_random() % 2)
		scan_optimistic(&scan, base, list->blocks, list->nblocks);
	else
		OK(gv_scan(&scan, base, list->blocks, list->nblocks));
	OK(gv_scan(&scan, base / 2, list->blocks, half));
	finish_scan(&scan);
	n += expect_pairs(list, base / 2, half, condition, pairs + n);
	CHECK(scan.matched == n, "%ld are not %d", (long) scan.matched, n);
	if (unique)
	{
		qsort(pairs, n, sizeof(Pair), compare_ids);
		for (i = 0; i < n; i++)
			if (nunique == 0 || pairs[i].id != pairs[nunique - 1].id)
				pairs[nunique++] = pairs[i];
		n = nunique;
	}
	check_topk(&top, pairs, n);
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
check_lists(const GvKernels *kernels)
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
		check_scan(&list, base, NULL);
		check_filter(kernels, &list, base, &nkept, &nall);
		unit_free_list(&list);
	}
	CHECK(nkept > 0 && nkept < nall * 3 / 4, "%ld of %ld kept", nkept, nall);
}

/* Tables that no filter can be made of, or only just. */
void
check_odd_tables(void)
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
		check_scan(&list, round % 2 ? 0.0f : GV_SCORE_MAX, NULL);
		unit_free_list(&list);
	}
}
