/*
 * tests.c
 *		Key quals: conditions on keys, as tests of abbreviated keys and of
 *		rows.
 *
 * A comparison becomes a key range (spans.c), which may have too many
 * abbreviated keys, never too few.  Where it has, or may have, too many, the
 * condition is rechecked on the row by its own function, as the executor
 * would.  A condition that is not understood here is rechecked, too.
 *
 * That an operator's strategy says what it does follows from its class
 * (validate.c); nothing else is known of operators.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type_d.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/catcache.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "am/keys/keys.h"
#include "page/page.h"

/* Sets of more values are rechecked: each block is compared with all. */
#define MOST_VALUES		65536

static const IvfpqKeyRange nothing = {1, 0, true};

/* An argument of equality. */
typedef struct Argument
{
	uint64		abbrev;
	Datum		value;
} Argument;

/* A scan key taken apart. */
typedef struct Asked
{
	IvfpqKey   *key;
	int			column;			/* of the key, counted from 0 */
	int			strategy;
	Oid			subtype;		/* of its values */
	bool		is_exact;		/* abbreviated keys decide it */
} Asked;

/*
 * Adds a test to the condition, or merges it with another of the same key;
 * false if the condition is full.
 */
static bool
add_test(IvfpqKeyQuals *quals, const GvKeyTest *test)
{
	GvKeyTest  *all = unconstify(GvKeyTest *, quals->condition.tests);

	for (int i = 0; i < quals->condition.ntests; i++)
	{
		GvKeyTest  *other = &all[i];

		if (other->key != test->key)
			continue;
		if ((other->kind == GV_TEST_NULL) != (test->kind == GV_TEST_NULL))
			quals->never = true;
		if (other->kind != test->kind)
			continue;
		if (test->kind == GV_TEST_RANGE)
		{
			other->low = Max(other->low, test->low);
			other->high = Min(other->high, test->high);
			quals->never |= other->low > other->high;
		}
		if (test->kind == GV_TEST_RANGE || test->kind == GV_TEST_NULL ||
			test->kind == GV_TEST_NOT_NULL)
			return true;
	}

	if (quals->condition.ntests == GV_MAX_TESTS)
		return false;
	all[quals->condition.ntests++] = *test;
	return true;
}

/* The abbreviated keys of a key range satisfy the condition. */
static void
add_range(IvfpqKeyQuals *quals, Asked *asked, IvfpqKeyRange range)
{
	GvKeyTest	test = {.key = asked->column, .kind = GV_TEST_RANGE};
	IvfpqKeyRange all = IvfpqKeyEverything(asked->key, true);
	bool		is_all = range.low == all.low && range.high == all.high;

	quals->never |= range.low > range.high;
	/* one hash is told from others, but they have no order */
	if (is_all || (asked->key->kind != IVFPQ_KEY_ORDERED &&
				   range.low != range.high))
		test.kind = GV_TEST_NOT_NULL;
	else
	{
		test.low = range.low;
		test.high = range.high;
	}
	asked->is_exact = add_test(quals, &test) && range.is_exact;
}

/* Abbreviated keys [n], which ascend, satisfy the condition. */
static void
add_set(IvfpqKeyQuals *quals, Asked *asked, uint64 *abbrevs, int n,
		bool is_exact)
{
	GvKeyTest	test = {.key = asked->column, .kind = GV_TEST_SET};
	int			ndistinct = 0;

	for (int i = 0; i < n; i++)
		if (i == 0 || abbrevs[i] != abbrevs[i - 1])
			abbrevs[ndistinct++] = abbrevs[i];

	if (ndistinct == 0)
		add_range(quals, asked, nothing);
	else if (ndistinct == 1 || ndistinct > MOST_VALUES)
	{
		IvfpqKeyRange hull = {abbrevs[0], abbrevs[ndistinct - 1],
		is_exact && ndistinct == 1};

		add_range(quals, asked, hull);
	}
	else
	{
		test.nvalues = ndistinct;
		test.values = abbrevs;
		asked->is_exact = add_test(quals, &test) && is_exact;
	}
}

static int
compare_arguments(const void *a, const void *b)
{
	uint64		left = ((const Argument *) a)->abbrev;
	uint64		right = ((const Argument *) b)->abbrev;

	return left < right ? -1 : left > right;
}

/*
 * The condition is equality with one of these arguments, each of which has one
 * abbreviated key.  The row qual has them in the order of these.
 */
static void
add_points(IvfpqKeyQuals *quals, Asked *asked, IvfpqRowQual *row,
		   Argument *arguments, int n, bool is_exact)
{
	uint64	   *abbrevs = palloc(n * sizeof(uint64));

	qsort(arguments, n, sizeof(Argument), compare_arguments);
	row->narguments = n;
	row->arguments = palloc(n * sizeof(Datum));
	row->abbrevs = palloc(n * sizeof(uint64));
	for (int i = 0; i < n; i++)
	{
		row->arguments[i] = arguments[i].value;
		row->abbrevs[i] = arguments[i].abbrev;
		abbrevs[i] = arguments[i].abbrev;
	}
	add_set(quals, asked, abbrevs, n, is_exact);
}

/* The condition holds with one of the row qual's arguments. */
static void
add_values(IvfpqKeyQuals *quals, Asked *asked, IvfpqRowQual *row)
{
	Argument   *arguments = palloc(row->narguments * sizeof(Argument));
	bool		are_points = asked->strategy == BTEqualStrategyNumber;
	IvfpqKeyRange hull = nothing;
	int			n = 0;

	for (int i = 0; i < row->narguments; i++)
	{
		IvfpqKeyRange range = IvfpqKeyRangeOf(asked->key, asked->strategy,
											  asked->subtype,
											  row->arguments[i]);

		CHECK_FOR_INTERRUPTS();
		if (range.low > range.high)
			continue;
		are_points &= range.low == range.high;
		arguments[n].abbrev = range.low;
		arguments[n].value = row->arguments[i];
		if (n++ == 0)
			hull = range;
		hull.low = Min(hull.low, range.low);
		hull.high = Max(hull.high, range.high);
		hull.is_exact &= range.is_exact;
	}

	/*
	 * a comparison that is not equality has a range that begins or ends where
	 * the key's abbreviated keys do, at the same end for all arguments: no
	 * gap is left between exact ranges
	 */
	if (are_points)
		add_points(quals, asked, row, arguments, n, hull.is_exact);
	else
		add_range(quals, asked, hull);
	pfree(arguments);
}

/* Returns whether the scan key's operator holds of a value and an argument. */
static bool
holds(ScanKey scan_key, Datum value, Datum argument)
{
	LOCAL_FCINFO(fcinfo, 2);
	Datum		result;

	InitFunctionCallInfoData(*fcinfo, &scan_key->sk_func, 2,
							 scan_key->sk_collation, NULL, NULL);
	fcinfo->args[0].value = value;
	fcinfo->args[0].isnull = false;
	fcinfo->args[1].value = argument;
	fcinfo->args[1].isnull = false;
	result = FunctionCallInvoke(fcinfo);
	return !fcinfo->isnull && DatumGetBool(result);
}

static bool
holds_with_one(ScanKey scan_key, Datum value, const Datum *values, int n)
{
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (holds(scan_key, value, values[i]))
			return true;
	}
	return false;
}

/*
 * The condition holds with one of these values, of an enum.  Its members have
 * an order that OIDs may not have: those for which it holds are a set.
 *
 * Another session may have added members since this transaction locked the
 * table, and rows that have them.
 */
static void
add_members(IvfpqKeyQuals *quals, Asked *asked, ScanKey scan_key,
			const Datum *values, int n)
{
	CatCList   *list;
	int			nmembers;
	uint64	   *members;
	int			nfound = 0;

	AcceptInvalidationMessages();
	list = SearchSysCacheList1(ENUMTYPOIDNAME,
							   ObjectIdGetDatum(asked->key->type));
	nmembers = list->n_members;
	members = palloc(nmembers * sizeof(uint64));
	for (int i = 0; i < nmembers; i++)
		members[i] = ((Form_pg_enum)
					  GETSTRUCT(&list->members[i]->tuple))->oid;
	ReleaseCatCacheList(list);

	for (int i = 0; i < nmembers; i++)
		if (holds_with_one(scan_key, ObjectIdGetDatum((Oid) members[i]),
						   values, n))
			members[nfound++] = members[i];
	IvfpqSortNumbers(members, nfound);
	add_set(quals, asked, members, nfound, true);
}

/* The condition is one of sets, and holds with one of these values. */
static void
add_signatures(IvfpqKeyQuals *quals, Asked *asked, const Datum *values, int n)
{
	bool		overlap = asked->strategy == IVFPQ_OVERLAP_STRATEGY;
	GvKeyTest	test = {.key = asked->column};

	if ((asked->subtype != asked->key->type &&
		 asked->subtype != ANYARRAYOID) ||
		(!overlap && asked->strategy != IVFPQ_CONTAINS_STRATEGY))
	{
		add_range(quals, asked, IvfpqKeyEverything(asked->key, false));
		return;
	}
	test.kind = overlap ? GV_TEST_ANY_BIT : GV_TEST_ALL_BITS;
	test.low = overlap ? 0 : PG_UINT64_MAX;
	for (int i = 0; i < n; i++)
	{
		uint64		signature = IvfpqKeyAbbrev(asked->key, values[i]);

		if (overlap)
			test.low |= signature;
		else
			test.low &= signature;
	}
	(void) add_test(quals, &test);
	asked->is_exact = false;
}

/* IS [NOT] NULL; returns whether abbreviated keys decide it. */
static bool
add_null_test(IvfpqKeyQuals *quals, ScanKey scan_key)
{
	bool		is_null = (scan_key->sk_flags & SK_SEARCHNULL) != 0;
	GvKeyTest	test = {.kind = is_null ? GV_TEST_NULL : GV_TEST_NOT_NULL};

	if (scan_key->sk_attno == 1)
	{
		/* the planner is told that such a scan costs too much */
		if (is_null)
			elog(ERROR, "an index has no rows whose vector is NULL");
		return true;
	}
	test.key = scan_key->sk_attno - 2;
	return add_test(quals, &test);
}

/* The arguments of a scan key, those that are not NULL. */
static void
read_arguments(ScanKey scan_key, IvfpqRowQual *row)
{
	ArrayType  *array;
	int16		length;
	bool		by_value;
	char		align;
	bool	   *nulls;
	int			n;

	if ((scan_key->sk_flags & SK_ISNULL) != 0)
		return;
	if ((scan_key->sk_flags & SK_SEARCHARRAY) == 0)
	{
		row->arguments = &scan_key->sk_argument;
		row->narguments = 1;
		return;
	}

	array = DatumGetArrayTypeP(scan_key->sk_argument);
	get_typlenbyvalalign(ARR_ELEMTYPE(array), &length, &by_value, &align);
	deconstruct_array(array, ARR_ELEMTYPE(array), length, by_value, align,
					  &row->arguments, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			row->arguments[row->narguments++] = row->arguments[i];
}

/* Take a scan key apart; returns whether abbreviated keys decide it. */
static bool
add_scan_key(IvfpqKeyQuals *quals, IvfpqRowQual *row)
{
	ScanKey		scan_key = row->scan_key;
	Asked		asked = {.strategy = scan_key->sk_strategy};

	if ((scan_key->sk_flags & (SK_SEARCHNULL | SK_SEARCHNOTNULL)) != 0)
		return add_null_test(quals, scan_key);

	asked.column = scan_key->sk_attno - 2;
	Assert(asked.column >= 0 && asked.column < quals->keys->nkeys);
	asked.key = &quals->keys->keys[asked.column];
	asked.subtype = OidIsValid(scan_key->sk_subtype) ? scan_key->sk_subtype :
		asked.key->type;
	read_arguments(scan_key, row);

	if (row->narguments == 0)
		add_range(quals, &asked, nothing);
	else if (asked.key->kind == IVFPQ_KEY_SIGNATURE)
		add_signatures(quals, &asked, row->arguments, row->narguments);
	else if (asked.subtype == ANYENUMOID &&
			 asked.strategy != BTEqualStrategyNumber)
		add_members(quals, &asked, scan_key, row->arguments, row->narguments);
	else
		add_values(quals, &asked, row);
	return asked.is_exact;
}

/* See keys.h. */
void
IvfpqKeyQualsMake(IvfpqKeyQuals *quals, IvfpqKeys *keys, ScanKey scan_keys,
				  int n)
{
	IvfpqRowQual *decided = palloc(n * sizeof(IvfpqRowQual));
	int			ndecided = 0;

	memset(quals, 0, sizeof(*quals));
	quals->keys = keys;
	quals->nrows = n;
	quals->rows = palloc(n * sizeof(IvfpqRowQual));
	quals->condition.tests = palloc(GV_MAX_TESTS * sizeof(GvKeyTest));
	quals->condition.form.nkeys = keys->nkeys;
	memcpy(quals->condition.form.kind, keys->form.kind, IVFPQ_MAX_KEYS);
	memcpy(quals->condition.form.width, keys->form.width, IVFPQ_MAX_KEYS);

	for (int i = 0; i < n; i++)
	{
		IvfpqRowQual row = {.scan_key = &scan_keys[i]};

		if (add_scan_key(quals, &row))
			decided[ndecided++] = row;
		else
			quals->rows[quals->nrechecks++] = row;
	}
	memcpy(quals->rows + quals->nrechecks, decided,
		   ndecided * sizeof(IvfpqRowQual));
	pfree(decided);
}

/* Returns whether the condition holds of a row's value, not NULL. */
static bool
row_holds(const IvfpqKeyQuals *quals, const IvfpqRowQual *row, Datum value)
{
	uint64		abbrev;
	int			low = 0;
	int			high = row->narguments;

	if (row->abbrevs == NULL)
		return holds_with_one(row->scan_key, value, row->arguments,
							  row->narguments);

	abbrev = IvfpqKeyAbbrev(&quals->keys->keys[row->scan_key->sk_attno - 2],
							value);
	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (row->abbrevs[middle] < abbrev)
			low = middle + 1;
		else
			high = middle;
	}
	while (high < row->narguments && row->abbrevs[high] == abbrev)
		high++;
	return holds_with_one(row->scan_key, value, row->arguments + low,
						  high - low);
}

/* See keys.h. */
bool
IvfpqKeyQualsMatch(const IvfpqKeyQuals *quals, const Datum *values,
				   const bool *isnull, bool only_rechecks)
{
	int			n = only_rechecks ? quals->nrechecks : quals->nrows;

	for (int i = 0; i < n; i++)
	{
		const IvfpqRowQual *row = &quals->rows[i];
		int			column = row->scan_key->sk_attno - 1;

		if ((row->scan_key->sk_flags & SK_SEARCHNULL) != 0)
		{
			if (!isnull[column])
				return false;
		}
		else if (isnull[column])
			return false;
		else if ((row->scan_key->sk_flags & SK_SEARCHNOTNULL) == 0 &&
				 !row_holds(quals, row, values[column]))
			return false;
	}
	return true;
}
