/*
 * conditions.c
 *		Searches under conditions on keys: one of each key, that a key is NULL,
 *		and several at once.
 */
#include "samples.h"

#include "am/common/model.h"
#include "am/search/params.h"
#include "am/search/search.h"

/* The row whose keys conditions ask for. */
#define ASKED_ROW	23

/* More copies than any of the indexes has. */
#define MOST_POSTINGS	100000

/* A test of key k that the row fulfills, and others. */
static GvKeyTest
make_test(const IvfpqKeyForm *form, int k, const IvfpqKeyAbbrevs *abbrevs)
{
	uint64		abbrev = abbrevs->abbrev[k];
	GvKeyTest	test = {.key = k, .low = abbrev, .high = abbrev};

	switch (form->kind[k])
	{
		case IVFPQ_KEY_ORDERED:
			test.kind = GV_TEST_RANGE;
			test.low = abbrev / 2;
			break;
		case IVFPQ_KEY_HASH:
			test.kind = GV_TEST_SET;
			test.nvalues = 1;
			test.values = &abbrevs->abbrev[k];
			break;
		default:
			test.kind = k % 2 ? GV_TEST_ANY_BIT : GV_TEST_ALL_BITS;
	}
	return test;
}

static bool
matches(const GvKeyTest *test, const IvfpqKeyAbbrevs *abbrevs)
{
	uint64		abbrev = abbrevs->abbrev[test->key];
	bool		is_null = abbrevs->nulls >> test->key & 1;

	switch (test->kind)
	{
		case GV_TEST_NULL:
			return is_null;
		case GV_TEST_RANGE:
		case GV_TEST_SET:
			return !is_null && test->low <= abbrev && abbrev <= test->high;
		case GV_TEST_ANY_BIT:
			return !is_null && (abbrev & test->low) != 0;
		default:
			return !is_null && (abbrev & test->low) == test->low;
	}
}

/* How many rows in lists fulfill all tests. */
static int
count_rows(int sample, const GvKeyTest *tests, int ntests)
{
	int			n = 0;

	for (int row = 0; row < sample_kinds[sample].nrows; row++)
	{
		IvfpqKeyAbbrevs abbrevs;
		bool		all = true;

		sample_abbrevs(&sample_kinds[sample].keys, row, &abbrevs);
		for (int i = 0; i < ntests; i++)
			all &= matches(&tests[i], &abbrevs);
		n += all;
	}
	return n;
}

/*
 * As scans do: some lists, then all; returns the rows found in all, or -1 where
 * that asks for more memory than a scan would take (IvfpqBatchFits).
 */
static int
search_lists(IvfpqSearch *search, const GvCondition *condition)
{
	IvfpqKeyGoal goal = {.recall = 0.95, .rows = 10, .is_spread = true,
		.by_keys = true, .most_probes = search->model->meta.nlists,
	.selectivity = 0.1};
	int64		postings;

	IvfpqSearchCondition(search, condition);
	postings = IvfpqSearchCount(search, goal.most_probes);
	if (postings > MOST_POSTINGS)
		return -1;
	goal.candidates = (int) Min(IvfpqKeyCapacity(search, &goal), postings + 1);
	IvfpqSearchKeys(search, &goal);
	goal.reads_all = true;
	goal.selectivity = 0.1;
	goal.candidates = (int) postings + 1;
	IvfpqSearchKeys(search, &goal);
	return search->candidates.count;
}

void
search_conditions(void *arg)
{
	const Conditions *conditions = arg;
	const IvfpqKeyForm *form = &sample_kinds[conditions->sample].keys;
	IvfpqModel *model = IvfpqModelGet(&backend_index);
	int			dims = model->meta.dims;
	GvKeyTest	tests[IVFPQ_MAX_KEYS + 1];
	GvCondition condition = {.form.nkeys = form->nkeys, .tests = tests};
	IvfpqKeyAbbrevs abbrevs;
	IvfpqSearch search;
	float	   *query;

	if (model->meta.nlists == 0 || form->nkeys == 0)
		return;
	IvfpqModelCheckKeys(&backend_index, model, form);
	memcpy(condition.form.kind, form->kind, IVFPQ_MAX_KEYS);
	memcpy(condition.form.width, form->width, IVFPQ_MAX_KEYS);
	sample_abbrevs(form, ASKED_ROW, &abbrevs);
	query = palloc(dims * sizeof(float));
	sample_vector(dims, 77, query);
	IvfpqSearchInit(&search, &backend_index, model);
	search.addresses = model->meta.refine != IVFPQ_REFINE_NONE;
	IvfpqSearchQuery(&search, query);
	for (int k = 0; k <= form->nkeys; k++)
	{
		GvKeyTest	is_null = {.key = 0, .kind = GV_TEST_NULL};
		int			found;
		int			right;

		/* the last one: all that the row fulfills */
		condition.ntests = k < form->nkeys ? 1 : form->nkeys;
		for (int i = 0; i < condition.ntests; i++)
			tests[i] = make_test(form, k < form->nkeys ? k : i, &abbrevs);
		for (int turn = 0; turn < 2; turn++)
		{
			found = search_lists(&search, &condition);
			right = count_rows(conditions->sample, tests, condition.ntests);
			if (conditions->sound && found != right)
				FAULT("sound, but condition %d finds %d rows, not %d", k,
					  found, right);
			tests[0] = is_null;
		}
	}
	IvfpqListReaderFree(&search.reader);
}
