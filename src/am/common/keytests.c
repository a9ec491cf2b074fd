/*
 * keytests.c
 *		Conditions on keys, as tests of images and of rows.
 *
 * A condition compares a key with a value, which need not be one that the key
 * can have: an int4 with 5,000,000,000, a real with 0.1.  So the value becomes
 * a cut: the key's image nearest to it, and on which side of the value that
 * image is.  Images that fulfil the condition are then a span.
 *
 * An span may have images too many, never too few.  Where it has, or may
 * have, the row is asked: the condition is rechecked by its own function, as
 * the executor would.  What is not understood here is rechecked, too.
 *
 * That an operator's strategy says what it does follows from its class
 * (validate.c); nothing else is known of operators.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type_d.h"
#include "utils/array.h"
#include "utils/catcache.h"
#include "utils/date.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "am/common/keys.h"
#include "page/page.h"

/* Sets of more values are rechecked: each block is compared with all. */
#define MOST_VALUES		65536

/*
 * Time zones are less than a week apart from UTC, whatever a user sets; what
 * compares local with absolute time is rechecked.
 */
#define ZONE_USECS		(8 * USECS_PER_DAY)

/* Where a value is among a key's images. */
typedef struct Cut
{
	uint64		image;			/* nearest to the value */
	int			side;			/* that image's value compared with it */
} Cut;

/* Images low .. high; none where low is above high. */
typedef struct Span
{
	uint64		low;
	uint64		high;
	bool		is_exact;		/* every value that has one fulfils it */
} Span;

static const Span nothing = {1, 0, true};

/* An argument of equality. */
typedef struct Argument
{
	uint64		image;
	Datum		value;
} Argument;

/* A condition as it is taken apart. */
typedef struct Asked
{
	IvfpqKey   *key;
	int			column;			/* of the key, counted from 0 */
	int			strategy;
	Oid			subtype;		/* of its values */
	bool		is_exact;		/* images decide it */
} Asked;

/* All images of a key. */
static Span
everything(const IvfpqKey *key, bool is_exact)
{
	Span		all = {0, PG_UINT64_MAX, is_exact};

	if (key->width < 8)
		all.high = (UINT64CONST(1) << 8 * key->width) - 1;
	return all;
}

static Cut
integer_cut(const IvfpqKey *key, int64 value)
{
	Cut			cut;
	int64		nearest = Min(Max(value, key->least), key->greatest);

	cut.image = IvfpqKeyIntegerImage(key, nearest);
	cut.side = nearest < value ? -1 : nearest > value;
	return cut;
}

static Cut
float4_cut(float8 value)
{
	Cut			cut;
	float4		nearest = (float4) value;

	cut.image = IvfpqKeyFloat4Image(nearest);
	/* of NaN neither is true */
	cut.side = nearest < value ? -1 : nearest > value;
	return cut;
}

/*
 * The images of a key for which the strategy is true of values that are
 * between the cuts: both the same, unless it is not known where.
 */
static Span
between(const IvfpqKey *key, int strategy, Cut from, Cut to, bool is_exact)
{
	Span		result = everything(key, is_exact);
	bool		has_equal = is_exact ? strategy == BTLessEqualStrategyNumber ||
	strategy == BTEqualStrategyNumber ||
	strategy == BTGreaterEqualStrategyNumber : true;

	if (strategy <= BTEqualStrategyNumber)
	{
		bool		included = to.side < 0 || (to.side == 0 && has_equal);

		if (!included && to.image == 0)
			return nothing;
		result.high = included ? to.image : to.image - 1;
	}
	if (strategy >= BTEqualStrategyNumber)
	{
		bool		included = from.side > 0 || (from.side == 0 && has_equal);

		if (!included && from.image == everything(key, true).high)
			return nothing;
		result.low = included ? from.image : from.image + 1;
	}
	return result;
}

/*
 * A date or time in microseconds.  A date that no timestamp can be is after
 * all of them, and before infinity.
 */
static int64
microseconds(Oid type, Datum value)
{
	DateADT		date;

	if (type != DATEOID)
		return DatumGetInt64(value);
	date = DatumGetDateADT(value);
	if (DATE_IS_NOBEGIN(date))
		return DT_NOBEGIN;
	if (DATE_IS_NOEND(date) || date > DT_NOEND / USECS_PER_DAY)
		return DATE_IS_NOEND(date) ? DT_NOEND : DT_NOEND - 1;
	return date * USECS_PER_DAY;
}

/* The cut of a key, in days or microseconds, at a time. */
static Cut
time_cut(const IvfpqKey *key, int64 time)
{
	int64		days;
	Cut			cut;

	if (key->type != DATEOID)
		return integer_cut(key, time);
	if (TIMESTAMP_NOT_FINITE(time))
		return integer_cut(key, TIMESTAMP_IS_NOBEGIN(time) ? DATEVAL_NOBEGIN :
						   DATEVAL_NOEND);

	days = time / USECS_PER_DAY;
	if (days * USECS_PER_DAY > time)
		days--;
	cut = integer_cut(key, days);
	if (days * USECS_PER_DAY < time)
		cut.side = -1;
	return cut;
}

/* A finite time, so far away, and finite again. */
static int64
moved_time(int64 time, int64 by)
{
	if (by < 0)
		return time < DT_NOBEGIN + 1 - by ? DT_NOBEGIN + 1 : time + by;
	return time > DT_NOEND - 1 - by ? DT_NOEND - 1 : time + by;
}

/* A date or time, compared with one of another type. */
static Span
time_span(const Asked *asked, Datum value)
{
	const IvfpqKey *key = asked->key;
	int64		time = microseconds(asked->subtype, value);
	bool		zoned = (key->type == TIMESTAMPTZOID) !=
	(asked->subtype == TIMESTAMPTZOID);
	Cut			from;
	Cut			to;

	if (TIMESTAMP_NOT_FINITE(time) || !zoned)
	{
		from = time_cut(key, time);
		return between(key, asked->strategy, from, from, true);
	}
	from = time_cut(key, moved_time(time, -ZONE_USECS));
	to = time_cut(key, moved_time(time, ZONE_USECS));
	return between(key, asked->strategy, from, to, false);
}

/* The hash of a value of any type of the family that has a function for it. */
static Span
hash_span(const Asked *asked, Datum value)
{
	IvfpqKey   *key = asked->key;
	Span		result = {0, 0, false};

	if (asked->subtype == key->type)
		result.low = IvfpqKeyImage(key, value);
	else
	{
		Oid			function = get_opfamily_proc(key->family, asked->subtype,
												 asked->subtype,
												 IVFPQ_HASH_PROC);

		if (!OidIsValid(function))
			return everything(key, false);
		result.low = DatumGetUInt32(OidFunctionCall1Coll(function,
														 key->collation,
														 value));
	}
	result.high = result.low;
	return result;
}

static bool
is_int(Oid type)
{
	return type == INT2OID || type == INT4OID || type == INT8OID;
}

static bool
is_time(Oid type)
{
	return type == DATEOID || type == TIMESTAMPOID || type == TIMESTAMPTZOID;
}

/* Images of the key for which the strategy holds with a value, not NULL. */
static Span
value_span(const Asked *asked, Datum value)
{
	IvfpqKey   *key = asked->key;
	Oid			subtype = asked->subtype;
	Cut			cut = {0, 0};
	bool		same = subtype == key->type || subtype == ANYENUMOID;

	if (key->kind == IVFPQ_KEY_HASH &&
		asked->strategy == BTEqualStrategyNumber)
		return hash_span(asked, value);
	if (key->kind != IVFPQ_KEY_ORDERED ||
		asked->strategy < BTLessStrategyNumber ||
		asked->strategy > BTGreaterStrategyNumber)
		return everything(key, false);

	if (is_time(key->type) && is_time(subtype) && !same)
		return time_span(asked, value);
	else if (key->is_integer && (same || (is_int(key->type) && is_int(subtype))))
		cut = integer_cut(key, IvfpqKeyInteger(subtype, value));
	else if (key->type == FLOAT4OID && subtype == FLOAT8OID)
		cut = float4_cut(DatumGetFloat8(value));
	else if (key->type == FLOAT8OID && subtype == FLOAT4OID)
		cut.image = IvfpqKeyFloat8Image(DatumGetFloat4(value));
	else if (same)
		cut.image = IvfpqKeyImage(key, value);
	else
		return everything(key, false);
	return between(key, asked->strategy, cut, cut, key->is_exact);
}

/*
 * Add a test to the condition, or make one of it and another of the same key;
 * false if there is no room.
 */
static bool
add_test(IvfpqKeyTests *tests, const GvKeyTest *test)
{
	GvKeyTest  *all = unconstify(GvKeyTest *, tests->condition.tests);

	for (int i = 0; i < tests->condition.ntests; i++)
	{
		GvKeyTest  *other = &all[i];

		if (other->key != test->key)
			continue;
		if ((other->kind == GV_TEST_NULL) != (test->kind == GV_TEST_NULL))
			tests->never = true;
		if (other->kind != test->kind)
			continue;
		if (test->kind == GV_TEST_RANGE)
		{
			other->low = Max(other->low, test->low);
			other->high = Min(other->high, test->high);
			tests->never |= other->low > other->high;
		}
		if (test->kind == GV_TEST_RANGE || test->kind == GV_TEST_NULL ||
			test->kind == GV_TEST_NOT_NULL)
			return true;
	}

	if (tests->condition.ntests == GV_MAX_TESTS)
		return false;
	all[tests->condition.ntests++] = *test;
	return true;
}

/* Images of a span fulfil the condition. */
static void
add_span(IvfpqKeyTests *tests, Asked *asked, Span span)
{
	GvKeyTest	test = {.key = asked->column, .kind = GV_TEST_RANGE};
	Span		all = everything(asked->key, true);
	bool		is_all = span.low == all.low && span.high == all.high;

	tests->never |= span.low > span.high;
	/* one hash is told from others, but they have no order */
	if (is_all || (asked->key->kind != IVFPQ_KEY_ORDERED &&
				   span.low != span.high))
		test.kind = GV_TEST_NOT_NULL;
	else
	{
		test.low = span.low;
		test.high = span.high;
	}
	asked->is_exact = add_test(tests, &test) && span.is_exact;
}

/* Images [n], which ascend, fulfil the condition. */
static void
add_set(IvfpqKeyTests *tests, Asked *asked, uint64 *images, int n,
		bool is_exact)
{
	GvKeyTest	test = {.key = asked->column, .kind = GV_TEST_SET};
	int			ndistinct = 0;

	for (int i = 0; i < n; i++)
		if (i == 0 || images[i] != images[i - 1])
			images[ndistinct++] = images[i];

	if (ndistinct == 0)
		add_span(tests, asked, nothing);
	else if (ndistinct == 1 || ndistinct > MOST_VALUES)
	{
		Span		hull = {images[0], images[ndistinct - 1],
		is_exact && ndistinct == 1};

		add_span(tests, asked, hull);
	}
	else
	{
		test.nvalues = ndistinct;
		test.values = images;
		asked->is_exact = add_test(tests, &test) && is_exact;
	}
}

static int
compare_arguments(const void *a, const void *b)
{
	uint64		left = ((const Argument *) a)->image;
	uint64		right = ((const Argument *) b)->image;

	return left < right ? -1 : left > right;
}

/*
 * The condition is equality with one of these arguments, each of which has one
 * image.  The row test has them in the order of their images.
 */
static void
add_points(IvfpqKeyTests *tests, Asked *asked, IvfpqRowTest *row,
		   Argument *arguments, int n, bool is_exact)
{
	uint64	   *images = palloc(n * sizeof(uint64));

	qsort(arguments, n, sizeof(Argument), compare_arguments);
	row->narguments = n;
	row->arguments = palloc(n * sizeof(Datum));
	row->images = palloc(n * sizeof(uint64));
	for (int i = 0; i < n; i++)
	{
		row->arguments[i] = arguments[i].value;
		row->images[i] = arguments[i].image;
		images[i] = arguments[i].image;
	}
	add_set(tests, asked, images, n, is_exact);
}

/* The condition holds with one of the row test's arguments. */
static void
add_values(IvfpqKeyTests *tests, Asked *asked, IvfpqRowTest *row)
{
	Argument   *arguments = palloc(row->narguments * sizeof(Argument));
	bool		are_points = asked->strategy == BTEqualStrategyNumber;
	Span		hull = nothing;
	int			n = 0;

	for (int i = 0; i < row->narguments; i++)
	{
		Span		span = value_span(asked, row->arguments[i]);

		if (span.low > span.high)
			continue;
		are_points &= span.low == span.high;
		arguments[n].image = span.low;
		arguments[n].value = row->arguments[i];
		if (n++ == 0)
			hull = span;
		hull.low = Min(hull.low, span.low);
		hull.high = Max(hull.high, span.high);
		hull.is_exact &= span.is_exact;
	}

	/*
	 * what is not equality begins or ends where the key's images do, at the
	 * same end for all arguments: no gap is left between exact spans
	 */
	if (are_points)
		add_points(tests, asked, row, arguments, n, hull.is_exact);
	else
		add_span(tests, asked, hull);
	pfree(arguments);
}

/* Does the scan key's operator hold of a value and an argument? */
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
		if (holds(scan_key, value, values[i]))
			return true;
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
add_members(IvfpqKeyTests *tests, Asked *asked, ScanKey scan_key,
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
	qsort(members, nfound, sizeof(uint64), IvfpqCompareNumbers);
	add_set(tests, asked, members, nfound, true);
}

/* The condition is one of sets, and holds with one of these values. */
static void
add_signatures(IvfpqKeyTests *tests, Asked *asked, const Datum *values, int n)
{
	bool		overlap = asked->strategy == IVFPQ_OVERLAP_STRATEGY;
	GvKeyTest	test = {.key = asked->column};

	if ((asked->subtype != asked->key->type &&
		 asked->subtype != ANYARRAYOID) ||
		(!overlap && asked->strategy != IVFPQ_CONTAINS_STRATEGY))
	{
		add_span(tests, asked, everything(asked->key, false));
		return;
	}
	test.kind = overlap ? GV_TEST_ANY_BIT : GV_TEST_ALL_BITS;
	test.low = overlap ? 0 : PG_UINT64_MAX;
	for (int i = 0; i < n; i++)
	{
		uint64		signature = IvfpqKeyImage(asked->key, values[i]);

		if (overlap)
			test.low |= signature;
		else
			test.low &= signature;
	}
	(void) add_test(tests, &test);
	asked->is_exact = false;
}

/* IS [NOT] NULL; returns whether images decide it. */
static bool
add_null_test(IvfpqKeyTests *tests, ScanKey scan_key)
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
	return add_test(tests, &test);
}

/* The arguments of a scan key, those that are not NULL. */
static void
read_arguments(ScanKey scan_key, IvfpqRowTest *row)
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

/* Take a scan key apart; returns whether images decide it. */
static bool
add_scan_key(IvfpqKeyTests *tests, IvfpqRowTest *row)
{
	ScanKey		scan_key = row->scan_key;
	Asked		asked = {.strategy = scan_key->sk_strategy};

	if ((scan_key->sk_flags & (SK_SEARCHNULL | SK_SEARCHNOTNULL)) != 0)
		return add_null_test(tests, scan_key);

	asked.column = scan_key->sk_attno - 2;
	Assert(asked.column >= 0 && asked.column < tests->keys->nkeys);
	asked.key = &tests->keys->keys[asked.column];
	asked.subtype = OidIsValid(scan_key->sk_subtype) ? scan_key->sk_subtype :
		asked.key->type;
	read_arguments(scan_key, row);

	if (row->narguments == 0)
		add_span(tests, &asked, nothing);
	else if (asked.key->kind == IVFPQ_KEY_SIGNATURE)
		add_signatures(tests, &asked, row->arguments, row->narguments);
	else if (asked.subtype == ANYENUMOID &&
			 asked.strategy != BTEqualStrategyNumber)
		add_members(tests, &asked, scan_key, row->arguments, row->narguments);
	else
		add_values(tests, &asked, row);
	return asked.is_exact;
}

/* See keys.h. */
void
IvfpqKeyTestsMake(IvfpqKeyTests *tests, IvfpqKeys *keys, ScanKey scan_keys,
				  int n)
{
	IvfpqRowTest *decided = palloc(n * sizeof(IvfpqRowTest));
	int			ndecided = 0;

	memset(tests, 0, sizeof(*tests));
	tests->keys = keys;
	tests->nrows = n;
	tests->rows = palloc(n * sizeof(IvfpqRowTest));
	tests->condition.tests = palloc(GV_MAX_TESTS * sizeof(GvKeyTest));
	tests->condition.form.nkeys = keys->nkeys;
	memcpy(tests->condition.form.kind, keys->form.kind, IVFPQ_MAX_KEYS);
	memcpy(tests->condition.form.width, keys->form.width, IVFPQ_MAX_KEYS);

	for (int i = 0; i < n; i++)
	{
		IvfpqRowTest row = {.scan_key = &scan_keys[i]};

		if (add_scan_key(tests, &row))
			decided[ndecided++] = row;
		else
			tests->rows[tests->nrechecks++] = row;
	}
	memcpy(tests->rows + tests->nrechecks, decided,
		   ndecided * sizeof(IvfpqRowTest));
	pfree(decided);
}

/* Does the condition hold of a row's value, not NULL? */
static bool
row_holds(const IvfpqKeyTests *tests, const IvfpqRowTest *row, Datum value)
{
	uint64		image;
	int			low = 0;
	int			high = row->narguments;

	if (row->images == NULL)
		return holds_with_one(row->scan_key, value, row->arguments,
							  row->narguments);

	image = IvfpqKeyImage(&tests->keys->keys[row->scan_key->sk_attno - 2],
						  value);
	while (low < high)
	{
		int			middle = low + (high - low) / 2;

		if (row->images[middle] < image)
			low = middle + 1;
		else
			high = middle;
	}
	while (high < row->narguments && row->images[high] == image)
		high++;
	return holds_with_one(row->scan_key, value, row->arguments + low,
						  high - low);
}

/* See keys.h. */
bool
IvfpqKeyTestsFulfilled(const IvfpqKeyTests *tests, const Datum *values,
					   const bool *isnull, bool only_rechecks)
{
	int			n = only_rechecks ? tests->nrechecks : tests->nrows;

	for (int i = 0; i < n; i++)
	{
		const IvfpqRowTest *row = &tests->rows[i];
		int			column = row->scan_key->sk_attno - 1;

		if ((row->scan_key->sk_flags & SK_SEARCHNULL) != 0)
		{
			if (!isnull[column])
				return false;
		}
		else if (isnull[column])
			return false;
		else if ((row->scan_key->sk_flags & SK_SEARCHNOTNULL) == 0 &&
				 !row_holds(tests, row, values[column]))
			return false;
	}
	return true;
}
