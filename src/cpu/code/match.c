/*
 * match.c
 *		Conditions on keys (gv_keys.h defines their meaning).
 *
 * A block's heads are tested first, because they are only a few words.  Its
 * abbreviated keys are tested only if the heads show that a posting may match,
 * and only as long as a posting is left.
 */
#include "cpu/code/gv_scan.h"

/* Returns whether an abbreviated key fits the key's width. */
static bool
fits(uint64_t abbrev, int width)
{
	return width == 8 || abbrev >> 8 * width == 0;
}

static bool
valid_form(const GvKeyForm *form)
{
	int32_t		k;

	if (form->nkeys < 0 || form->nkeys > GV_MAX_KEYS)
		return false;
	for (k = 0; k <= GV_MAX_KEYS; k++)
	{
		int			width = form->width[k];

		if (k >= form->nkeys)
		{
			if (form->kind[k] != 0 || width != 0)
				return false;
			continue;
		}
		if (form->kind[k] < GV_KEY_ORDERED ||
			form->kind[k] > GV_KEY_SIGNATURE ||
			(width != 1 && width != 2 && width != 4 && width != 8))
			return false;
	}
	return true;
}

static bool
valid_set(const GvKeyTest *test, int width)
{
	if (test->nvalues < 0 || (test->values == NULL && test->nvalues > 0))
		return false;
	return test->nvalues == 0 || fits(test->values[test->nvalues - 1], width);
}

static bool
ascends(const GvKeyTest *test)
{
	int32_t		v;

	for (v = 1; v < test->nvalues; v++)
		if (test->values[v - 1] >= test->values[v])
			return false;
	return true;
}

/* Returns whether a key of this kind can have this test. */
static bool
valid_test(const GvKeyTest *test, GvKeyKind kind, int width)
{
	switch (test->kind)
	{
		case GV_TEST_RANGE:
			return fits(test->low, width) && fits(test->high, width) &&
				(kind == GV_KEY_ORDERED ||
				 (kind == GV_KEY_HASH && test->low >= test->high));
		case GV_TEST_SET:
			return kind != GV_KEY_SIGNATURE && valid_set(test, width);
		case GV_TEST_ANY_BIT:
		case GV_TEST_ALL_BITS:
			return kind == GV_KEY_SIGNATURE && fits(test->low, width);
		case GV_TEST_NULL:
		case GV_TEST_NOT_NULL:
			return true;
	}
	return false;
}

bool
gv_form_valid(const GvKeyForm *form)
{
	return form != NULL && valid_form(form);
}

/*
 * Returns whether a condition meets the contract.  Does not check the order of
 * sets, because that takes time, and there may be a scan for each list.
 */
bool
gv_condition_fits(const GvCondition *condition)
{
	int32_t		i;

	if (condition == NULL || !valid_form(&condition->form) ||
		condition->ntests < 0 || condition->ntests > GV_MAX_TESTS ||
		(condition->tests == NULL && condition->ntests > 0))
		return false;
	for (i = 0; i < condition->ntests; i++)
	{
		const GvKeyTest *test = &condition->tests[i];

		if (test->key < 0 || test->key >= condition->form.nkeys ||
			!valid_test(test, (GvKeyKind) condition->form.kind[test->key],
						condition->form.width[test->key]))
			return false;
	}
	return true;
}

bool
gv_condition_valid(const GvCondition *condition)
{
	int32_t		i;

	if (!gv_condition_fits(condition))
		return false;
	for (i = 0; i < condition->ntests; i++)
		if (condition->tests[i].kind == GV_TEST_SET &&
			!ascends(&condition->tests[i]))
			return false;
	return true;
}

/*
 * Returns the number of the first value in a set that is not below `abbrev`,
 * or nvalues if there is none.
 */
static int32_t
first_from(const GvKeyTest *test, uint64_t abbrev)
{
	int32_t		low = 0;
	int32_t		high = test->nvalues;

	while (low < high)
	{
		int32_t		middle = low + (high - low) / 2;

		if (test->values[middle] < abbrev)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Returns whether the abbreviated keys of an ordered key may satisfy a test.
 * The caller checks that head->low <= head->high.
 */
static bool
may_match_ordered(const GvKeyTest *test, const GvKeyHead *head)
{
	int32_t		first;

	switch (test->kind)
	{
		case GV_TEST_RANGE:
			return test->low <= test->high && test->low <= head->high &&
				test->high >= head->low;
		case GV_TEST_SET:
			first = first_from(test, head->low);
			return first < test->nvalues && test->values[first] <= head->high;
		default:
			return true;
	}
}

/*
 * Returns whether hashes or signatures may satisfy a test.  head->low has the
 * bits of all of them (GvKeyHead).
 */
static bool
may_match_bits(const GvKeyTest *test, const GvKeyHead *head)
{
	int32_t		v;

	switch (test->kind)
	{
		case GV_TEST_RANGE:
			return test->low == test->high &&
				(head->low >> test->low % 64 & 1) != 0;
		case GV_TEST_SET:
			for (v = 0; v < test->nvalues; v++)
				if ((head->low >> test->values[v] % 64 & 1) != 0)
					return true;
			return false;
		case GV_TEST_ANY_BIT:
			return (head->low & test->low) != 0;
		case GV_TEST_ALL_BITS:
			return (head->low & test->low) == test->low;
		default:
			return true;
	}
}

bool
gv_may_match(const GvCondition *condition, const void *keys)
{
	const GvKeyHead *heads = keys;
	int32_t		i;

	for (i = 0; i < condition->ntests; i++)
	{
		const GvKeyTest *test = &condition->tests[i];
		const GvKeyHead *head = &heads[test->key];
		bool		ordered = condition->form.kind[test->key] == GV_KEY_ORDERED;

		if (test->kind == GV_TEST_NULL ? head->nulls == 0 :
			head->nulls == UINT32_MAX ||
			(ordered ? head->low > head->high ||
			 !may_match_ordered(test, head) : !may_match_bits(test, head)))
			return false;
	}
	return true;
}

uint32_t
gv_match(const GvCondition *condition, const void *keys)
{
	const GvKeyForm *form = &condition->form;
	const GvKeyHead *heads = keys;
	uint32_t	matching = UINT32_MAX;
	int32_t		i;

	for (i = 0; i < condition->ntests && matching != 0; i++)
	{
		const GvKeyTest *test = &condition->tests[i];
		uint32_t	nulls = heads[test->key].nulls;

		matching &= test->kind == GV_TEST_NULL ? nulls : ~nulls;
		if (matching != 0 && test->kind < GV_TEST_NULL)
			matching &= gv_kernels->match(test, form->width[test->key],
										  (const char *) keys +
										  gv_keys_at(form, test->key));
	}
	return matching;
}
