/*
 * check_keys.c
 *		Conditions on keys by every level's kernels, against naive loops: which
 *		postings of a block satisfy them, whether its heads may say that none
 *		does, and scans under them.
 */
#include "keys.h"

/* ---------- conditions ---------- */

/* Counts of results, so that no check passes because nothing ever matches. */
typedef struct Seen
{
	long		blocks;
	long		none;			/* blocks without a posting that matches */
	long		passed_over;	/* of these, that heads tell */
	long		postings;
} Seen;

static void
check_match(const GvCondition *condition, const void *keys, Seen *seen)
{
	uint32_t	want = naive_match(condition, keys);
	uint32_t	got = gv_match(condition, keys);
	bool		may = gv_may_match(condition, keys);

	CHECK(got == want, "%x is not %x, %d tests, first of kind %d, width %d",
		  got, want, condition->ntests,
		  condition->ntests > 0 ? (int) condition->tests[0].kind : 0,
		  condition->ntests > 0 ?
		  condition->form.width[condition->tests[0].key] : 0);
	CHECK(may || want == 0, "heads hide %x", want);
	seen->blocks++;
	seen->none += want == 0;
	seen->passed_over += !may;
	seen->postings += __builtin_popcount(want);
}

static void
check_conditions(void)
{
	Seen		seen = {0};
	int			rounds = unit_small ? 300 : 10000;
	int			round;

	for (round = 0; round < rounds; round++)
	{
		GvKeyForm	form = unit_form((int) (unit_random() % (GV_MAX_KEYS + 1)));
		int			ntests = (int) (unit_random() %
									(round % 50 == 0 ? GV_MAX_TESTS + 1 : 4));
		OWN char   *keys = unit_alloc(gv_keys_bytes(&form));
		UnitCondition made;
		int			b;

		unit_make_condition(&made, &form, ntests);
		CHECK(gv_condition_valid(&made.condition), "round %d", round);
		for (b = 0; b < 4; b++)
		{
			unit_make_keys(&form, b < 2 ? 0 : 1 + (int) (unit_random() % 250),
						   keys);
			check_match(&made.condition, keys, &seen);
		}
		unit_free_condition(&made);
	}
	CHECK(seen.postings > seen.blocks && seen.none > seen.blocks / 10 &&
		  seen.passed_over > seen.none / 10 && seen.passed_over < seen.none,
		  "%ld copies match in %ld blocks, %ld have none, %ld are passed over",
		  seen.postings, seen.blocks, seen.none, seen.passed_over);
}

/*
 * Each kind of test of each width at its extremes: every one of the
 * abbreviated keys 0, 1, the middle ones and the last against every pair of
 * limits.
 */
static void
check_extremes(int width)
{
	uint64_t	most = unit_most(width);
	uint64_t	odd[] = {0, 1, most / 2, most / 2 + 1, most - 1, most};
	GvKeyForm	form = {1, {GV_KEY_ORDERED}, {(uint8_t) width}};
	OWN char   *keys = unit_alloc(gv_keys_bytes(&form));
	GvKeyTest	test = {0};
	GvCondition condition = {form, 1, &test};
	Seen		seen = {0};
	int			a;
	int			b;
	int			i;

	memset(keys, 0, gv_keys_bytes(&form));
	((GvKeyHead *) keys)->high = most;
	for (i = 0; i < GV_BLOCK; i++)
		memcpy(keys + gv_keys_at(&form, 0) + i * width, &odd[i % 6], width);
	for (a = 0; a < 6; a++)
		for (b = 0; b < 6; b++)
		{
			condition.form.kind[0] = GV_KEY_ORDERED;
			test = (GvKeyTest) {0, GV_TEST_RANGE, odd[a], odd[b], 0, NULL};
			check_match(&condition, keys, &seen);
			test = (GvKeyTest) {0, GV_TEST_SET, 0, 0, a < b ? b - a : 0, odd + a};
			check_match(&condition, keys, &seen);
			condition.form.kind[0] = GV_KEY_SIGNATURE;
			((GvKeyHead *) keys)->low = most;
			test = (GvKeyTest) {0, GV_TEST_ANY_BIT, odd[a], 0, 0, NULL};
			check_match(&condition, keys, &seen);
			test.kind = GV_TEST_ALL_BITS;
			check_match(&condition, keys, &seen);
			((GvKeyHead *) keys)->low = 0;
		}
}

/* Conditions that break the contract are told from those that do not. */
#define BAD(change) \
	do { \
		bad = good; \
		bad_test = test; \
		change; \
		bad.tests = &bad_test; \
		CHECK(!gv_condition_valid(&bad), "accepted"); \
	} while (0)

static void
check_invalid_conditions(void)
{
	static const uint64_t values[] = {3, 3, 256};
	GvKeyTest	test = {0, GV_TEST_RANGE, 1, 2, 0, NULL};
	GvKeyTest	bad_test;
	GvCondition good = {{3, {GV_KEY_ORDERED, GV_KEY_HASH, GV_KEY_SIGNATURE},
	{1, 4, 8}}, 1, &test};
	GvCondition bad;

	CHECK(gv_condition_valid(&good), "refused");
	CHECK(!gv_condition_valid(NULL) && !gv_form_valid(NULL), "accepted");
	BAD(bad.form.nkeys = -1);
	BAD(bad.form.nkeys = GV_MAX_KEYS + 1);
	BAD(bad.form.kind[1] = 0);
	BAD(bad.form.kind[1] = 4);
	BAD(bad.form.width[2] = 3);
	BAD(bad.ntests = -1);
	BAD(bad.ntests = GV_MAX_TESTS + 1);
	BAD(bad_test.key = -1);
	BAD(bad_test.key = 3);
	BAD(bad_test.kind = (GvTestKind) 0);
	BAD(bad_test.kind = (GvTestKind) 7);
	BAD(bad_test.high = 256);
	BAD((bad_test.low = 256, bad_test.high = 0));
	BAD(bad_test.key = 1);		/* a range of hashes */
	BAD(bad_test.key = 2);
	BAD(bad_test.kind = GV_TEST_ANY_BIT);
	BAD((bad_test.kind = GV_TEST_SET, bad_test.nvalues = -1));
	BAD((bad_test.kind = GV_TEST_SET, bad_test.nvalues = 1));
	BAD((bad_test.kind = GV_TEST_SET, bad_test.values = values,
		 bad_test.nvalues = 2));
	BAD((bad_test.kind = GV_TEST_SET, bad_test.values = values + 1,
		 bad_test.nvalues = 2));
	BAD((bad_test.kind = GV_TEST_SET, bad_test.values = values,
		 bad_test.nvalues = 1, bad_test.key = 2));
	good.tests = NULL;
	CHECK(!gv_condition_valid(&good), "accepted");
}

/* ---------- scans ---------- */

static void
check_scans(void)
{
	int			round;

	for (round = 0; round < (unit_small ? 60 : 600); round++)
	{
		GvKeyForm	form = unit_form(1 + (int) (unit_random() % GV_MAX_KEYS));
		UnitCondition made;
		UnitList	list = unit_list(1 + (int32_t) (unit_random() % 60),
									 (int32_t) (unit_random() % 10), 1.0f,
									 &form);

		unit_make_condition(&made, &form, (int) (unit_random() % 3));
		check_scan(&list, 0.5f, &made.condition);
		unit_free_condition(&made);
		unit_free_list(&list);
	}
}

/* Keys that are missing or lie askew, and a condition that is none. */
static void
check_invalid_scans(void)
{
	GvKeyForm	form = {1, {GV_KEY_ORDERED}, {4}};
	GvKeyTest	test = {0, GV_TEST_NULL, 0, 0, 0, NULL};
	GvCondition condition = {form, 1, &test};
	OwnTopK		top = new_topk(3, false);
	UnitList	list = unit_list(20, 1, 1.0f, &form);
	GvScan		scan;

	list.blocks[0].keys = NULL;
	list.blocks[0].live = 1;
	scan = begin_scan(&list.model, list.table, &top);
	CHECK(gv_scan(&scan, 0, list.blocks, 1) == GV_OK, "no condition");
	scan.condition = &condition;
	CHECK(gv_scan_begin(&scan) == GV_OK, "begin");
	CHECK(gv_scan(&scan, 0, list.blocks, 1) == GV_INVALID, "no keys");
	list.blocks[0].keys = list.keys + 4;
	CHECK(gv_scan(&scan, 0, list.blocks, 1) == GV_INVALID, "askew");
	list.blocks[0].live = 0;
	CHECK(gv_scan(&scan, 0, list.blocks, 1) == GV_OK, "nothing is live");
	test.key = 1;
	CHECK(gv_scan_begin(&scan) == GV_INVALID, "no such key");
	scan.condition = NULL;
	finish_scan(&scan);
	unit_free_list(&list);
}

void
test_keys(void)
{
	GvSimd		level;
	int			w;

	for (level = GV_SIMD_PORTABLE; level < GV_NSIMD; level++)
	{
		if (!gv_simd_has(level))
			continue;
		gv_simd_use(level);
		check_conditions();
		for (w = 0; w < 4; w++)
			check_extremes(unit_widths[w]);
		check_scans();
	}
	check_invalid_conditions();
	check_invalid_scans();
	gv_simd_use(unit_simd());
}
