/*
 * spans.c
 *		Key ranges: which abbreviated keys satisfy a comparison with a value.
 *
 * The value need not be one that the key can have: an int4 is compared with
 * 5,000,000,000, a real with 0.1.  So the value becomes a range bound: the
 * abbreviated key nearest to it, and the side of the value that this is on.
 * The abbreviated keys that satisfy the comparison are then a key range, which
 * may have too many of them, never too few.
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "utils/date.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

#include "am/keys/keys.h"

/*
 * Time zones are less than a week apart from UTC, whatever a user sets; what
 * compares local with absolute time is rechecked.
 */
#define ZONE_USECS		(8 * USECS_PER_DAY)

/* A range bound: where a value is among a key's abbreviated keys. */
typedef struct KeyBound
{
	uint64		abbrev;			/* nearest to the value */
	int			side;			/* -1, 0, 1: that key's value against it */
} KeyBound;

static const IvfpqKeyRange nothing = {1, 0, true};

/* Returns the range of all abbreviated keys of a key. */
IvfpqKeyRange
IvfpqKeyEverything(const IvfpqKey *key, bool is_exact)
{
	IvfpqKeyRange all = {0, PG_UINT64_MAX, is_exact};

	if (key->width < 8)
		all.high = (UINT64CONST(1) << 8 * key->width) - 1;
	return all;
}

static KeyBound
integer_bound(const IvfpqKey *key, int64 value)
{
	KeyBound	bound;
	int64		nearest = Min(Max(value, key->least), key->greatest);

	bound.abbrev = IvfpqKeyIntegerAbbrev(key, nearest);
	bound.side = nearest < value ? -1 : nearest > value;
	return bound;
}

static KeyBound
float4_bound(float8 value)
{
	KeyBound	bound;
	float4		nearest = (float4) value;

	bound.abbrev = IvfpqKeyFloat4Abbrev(nearest);
	/* of NaN neither is true */
	bound.side = nearest < value ? -1 : nearest > value;
	return bound;
}

/*
 * Returns the key range for which the strategy is true of a value between the
 * bounds.  They are the same, unless it is not known where the value is.
 */
static IvfpqKeyRange
between(const IvfpqKey *key, int strategy, KeyBound from, KeyBound to,
		bool is_exact)
{
	IvfpqKeyRange result = IvfpqKeyEverything(key, is_exact);
	bool		has_equal = is_exact ? strategy == BTLessEqualStrategyNumber ||
	strategy == BTEqualStrategyNumber ||
	strategy == BTGreaterEqualStrategyNumber : true;

	if (strategy <= BTEqualStrategyNumber)
	{
		bool		included = to.side < 0 || (to.side == 0 && has_equal);

		if (!included && to.abbrev == 0)
			return nothing;
		result.high = included ? to.abbrev : to.abbrev - 1;
	}
	if (strategy >= BTEqualStrategyNumber)
	{
		bool		included = from.side > 0 || (from.side == 0 && has_equal);

		if (!included && from.abbrev == IvfpqKeyEverything(key, true).high)
			return nothing;
		result.low = included ? from.abbrev : from.abbrev + 1;
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

/* Returns the range bound of a key, in days or microseconds, at a time. */
static KeyBound
time_bound(const IvfpqKey *key, int64 time)
{
	int64		days;
	KeyBound	bound;

	if (key->type != DATEOID)
		return integer_bound(key, time);
	if (TIMESTAMP_NOT_FINITE(time))
		return integer_bound(key,
							 TIMESTAMP_IS_NOBEGIN(time) ? DATEVAL_NOBEGIN :
							 DATEVAL_NOEND);

	days = time / USECS_PER_DAY;
	if (days * USECS_PER_DAY > time)
		days--;
	bound = integer_bound(key, days);
	if (days * USECS_PER_DAY < time)
		bound.side = -1;
	return bound;
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
static IvfpqKeyRange
time_range(const IvfpqKey *key, int strategy, Oid subtype, Datum value)
{
	int64		time = microseconds(subtype, value);
	bool		zoned = (key->type == TIMESTAMPTZOID) !=
	(subtype == TIMESTAMPTZOID);
	KeyBound	from;
	KeyBound	to;

	if (TIMESTAMP_NOT_FINITE(time) || !zoned)
	{
		from = time_bound(key, time);
		return between(key, strategy, from, from, true);
	}
	from = time_bound(key, moved_time(time, -ZONE_USECS));
	to = time_bound(key, moved_time(time, ZONE_USECS));
	return between(key, strategy, from, to, false);
}

/*
 * Returns the hash, as a key range, of a value of any type of the family that
 * has a hash function.
 */
static IvfpqKeyRange
hash_range(IvfpqKey *key, Oid subtype, Datum value)
{
	IvfpqKeyRange result = {0, 0, false};

	if (subtype == key->type)
		result.low = IvfpqKeyAbbrev(key, value);
	else
	{
		Oid			function = get_opfamily_proc(key->family, subtype,
												 subtype,
												 IVFPQ_HASH_PROC);

		if (!OidIsValid(function))
			return IvfpqKeyEverything(key, false);
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

/*
 * Returns the key range for which the strategy holds with a value, not NULL.
 */
IvfpqKeyRange
IvfpqKeyRangeOf(IvfpqKey *key, int strategy, Oid subtype, Datum value)
{
	KeyBound	bound = {0, 0};
	bool		same = subtype == key->type || subtype == ANYENUMOID;

	if (key->kind == IVFPQ_KEY_HASH &&
		strategy == BTEqualStrategyNumber)
		return hash_range(key, subtype, value);
	if (key->kind != IVFPQ_KEY_ORDERED ||
		strategy < BTLessStrategyNumber ||
		strategy > BTGreaterStrategyNumber)
		return IvfpqKeyEverything(key, false);

	if (is_time(key->type) && is_time(subtype) && !same)
		return time_range(key, strategy, subtype, value);
	else if (key->is_integer && (same || (is_int(key->type) && is_int(subtype))))
		bound = integer_bound(key, IvfpqKeyInteger(subtype, value));
	else if (key->type == FLOAT4OID && subtype == FLOAT8OID)
		bound = float4_bound(DatumGetFloat8(value));
	else if (key->type == FLOAT8OID && subtype == FLOAT4OID)
		bound.abbrev = IvfpqKeyFloat8Abbrev(DatumGetFloat4(value));
	else if (same)
		bound.abbrev = IvfpqKeyAbbrev(key, value);
	else
		return IvfpqKeyEverything(key, false);
	return between(key, strategy, bound, bound, key->is_exact);
}
