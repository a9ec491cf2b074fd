/*
 * keys.c
 *		Keys: the columns of an index behind the vector, abbreviated keys of
 *		their values, and key quals, the conditions that a scan has on them.
 *
 * The abbreviated key of an integer, and of a type stored as one, is its
 * distance from the least value of the type.  The abbreviated key of a float
 * is its bits, changed so that they ascend as btree orders: -0 is 0, and every
 * NaN is above infinity.  A numeric has the abbreviated key of the nearest
 * double precision, an enum its OID, other types a hash.
 *
 * Sets have signatures of 64 bits.  An array has a bit for each element that
 * is not NULL, which is all that && and @> compare.  A document has one for
 * each scalar in it, which stands for its value and the nearest key around it:
 * @> goes down two documents in step, so that a scalar it finds is below the
 * same key in both.
 *
 * A comparison with a value becomes a key range: the abbreviated keys that
 * satisfy it, with perhaps too many of them, never too few.  The value need
 * not be one that the key can have: an int4 is compared with 5,000,000,000, a
 * real with 0.1.  So the value becomes a range bound first: the abbreviated
 * key nearest to it, and the side of the value that this is on.
 *
 * If a range has too many abbreviated keys, or may have, the condition is
 * rechecked on the row by its own function, as the executor would.  A
 * condition that is not understood here is rechecked, too.  That an operator's
 * strategy says what it does follows from its class (validate.c); nothing else
 * is known of operators.
 *
 * page/README, "Format", tells how abbreviated keys lie in blocks, and
 * am/search/README how a search uses them.  planner/clauses.c finds a
 * statement's conditions on keys, and maintain/verify.c compares abbreviated
 * keys with the table's values.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_type_d.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/catcache.h"
#include "utils/date.h"
#include "utils/float.h"
#include "utils/inval.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

#include "am/types/keys.h"
#include "am/types/vector.h"
#include "page/page.h"

/*
 * Time zones are less than a week apart from UTC, whatever a user sets.
 * Comparisons of local with absolute time are rechecked.
 */
#define ZONE_USECS		(8 * USECS_PER_DAY)

/*
 * Sets of more values become a range and are rechecked: each block is compared
 * with all values of a set.
 */
#define MOST_VALUES		65536

/* A type whose abbreviated keys ascend, or are the value. */
typedef struct OrderedType
{
	Oid			type;
	int			width;			/* bytes of an abbreviated key */
	bool		is_exact;
	bool		is_integer;
	int64		least;			/* of integers */
	int64		greatest;
} OrderedType;

/* Abbreviated keys low .. high of a key; none if low is above high. */
typedef struct KeyRange
{
	uint64		low;
	uint64		high;
	bool		is_exact;		/* all their values satisfy the comparison */
} KeyRange;

/* The place of a value among a key's abbreviated keys. */
typedef struct RangeBound
{
	uint64		abbrev;			/* nearest to the value */
	int			side;			/* -1, 0, 1: that key's value is below the
								 * value, equal to it, above it */
} RangeBound;

/* An argument of equality. */
typedef struct Argument
{
	uint64		abbrev;
	Datum		value;
} Argument;

/* A condition on a key: a scan key taken apart. */
typedef struct KeyQual
{
	IvfpqKey   *key;
	int			column;			/* of the key, counted from 0 */
	int			strategy;
	Oid			subtype;		/* of its values */
	bool		is_exact;		/* abbreviated keys decide it */
} KeyQual;

static const OrderedType ordered_types[] = {
	{BOOLOID, 1, true, true, 0, 1},
	{INT2OID, 2, true, true, PG_INT16_MIN, PG_INT16_MAX},
	{INT4OID, 4, true, true, PG_INT32_MIN, PG_INT32_MAX},
	{INT8OID, 8, true, true, PG_INT64_MIN, PG_INT64_MAX},
	{OIDOID, 4, true, true, 0, PG_UINT32_MAX},
	{DATEOID, 4, true, true, PG_INT32_MIN, PG_INT32_MAX},
	{TIMESTAMPOID, 8, true, true, PG_INT64_MIN, PG_INT64_MAX},
	{TIMESTAMPTZOID, 8, true, true, PG_INT64_MIN, PG_INT64_MAX},
	{FLOAT4OID, 4, true, false, 0, 0},
	{FLOAT8OID, 8, true, false, 0, 0},
	{NUMERICOID, 8, false, false, 0, 0},
	{ANYENUMOID, 4, true, false, 0, 0}
};

static const KeyRange nothing = {1, 0, true};

PG_FUNCTION_INFO_V1(gpuvec_array_signature);
PG_FUNCTION_INFO_V1(gpuvec_jsonb_signature);

static const OrderedType *
ordered_type(Oid type)
{
	for (size_t i = 0; i < lengthof(ordered_types); i++)
		if (ordered_types[i].type == type)
			return &ordered_types[i];
	return NULL;
}

/* Returns whether a class of the type needs no support function. */
bool
IvfpqIsOrderedKey(Oid type)
{
	return ordered_type(type) != NULL;
}

/*
 * Initializes a key whose class has no support function, so that its type must
 * be one of ordered_types.
 */
static void
init_ordered(IvfpqKey *key, Relation index, int attno)
{
	const OrderedType *type = ordered_type(key->type);

	if (type == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column %d of index \"%s\" cannot be a key: type %s is not supported",
						attno, RelationGetRelationName(index),
						format_type_be(key->type)),
				 errhint("Leave the column out: the executor asks conditions that an index has no column for.")));
	key->kind = IVFPQ_KEY_ORDERED;
	key->width = type->width;
	key->is_exact = type->is_exact;
	key->is_integer = type->is_integer;
	key->least = type->least;
	key->greatest = type->greatest;
	if (key->type == ANYENUMOID)
		key->type = getBaseType(TupleDescAttr(RelationGetDescr(index),
											  attno - 1)->atttypid);
}

static void
init_key(IvfpqKey *key, Relation index, int attno)
{
	Oid			collation = index->rd_indcollation[attno - 1];
	int			procnum;

	key->type = index->rd_opcintype[attno - 1];
	key->family = index->rd_opfamily[attno - 1];
	key->collation = collation;
	if (IvfpqIsVectorColumn(index, attno))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column %d of index \"%s\" is a second vector",
						attno, RelationGetRelationName(index)),
				 errhint("Give each vector an index of its own.")));
	/* text of other bytes could be equal */
	if (OidIsValid(collation) && !get_collation_isdeterministic(collation))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column %d of index \"%s\" has a nondeterministic collation",
						attno, RelationGetRelationName(index)),
				 errhint("Leave the column out, the condition on it to the executor; or give it another collation.")));

	if (OidIsValid(index_getprocid(index, attno, IVFPQ_HASH_PROC)))
	{
		key->kind = IVFPQ_KEY_HASH;
		key->width = sizeof(uint32);
		procnum = IVFPQ_HASH_PROC;
	}
	else if (OidIsValid(index_getprocid(index, attno, IVFPQ_SIGNATURE_PROC)))
	{
		key->kind = IVFPQ_KEY_SIGNATURE;
		key->width = sizeof(uint64);
		procnum = IVFPQ_SIGNATURE_PROC;
	}
	else
	{
		init_ordered(key, index, attno);
		return;
	}
	key->is_exact = false;
	fmgr_info_copy(&key->function, index_getprocinfo(index, attno, procnum),
				   CurrentMemoryContext);
}

/*
 * Initializes the keys of an open index.  Raises an error if a column cannot
 * be a key.  Functions are looked up in the current memory context, which must
 * live as long as *keys does.
 */
void
IvfpqKeysInit(IvfpqKeys *keys, Relation index)
{
	int			ncolumns = IndexRelationGetNumberOfKeyAttributes(index);

	memset(keys, 0, sizeof(*keys));
	if (ncolumns > 1 + IVFPQ_MAX_KEYS)
		ereport(ERROR,
				(errcode(ERRCODE_TOO_MANY_COLUMNS),
				 errmsg("index \"%s\" has more than %d columns",
						RelationGetRelationName(index), 1 + IVFPQ_MAX_KEYS),
				 errhint("Leave columns out: the executor asks conditions that an index has no column for.")));

	keys->nkeys = ncolumns - 1;
	keys->form.nkeys = keys->nkeys;
	for (int k = 0; k < keys->nkeys; k++)
	{
		init_key(&keys->keys[k], index, k + 2);
		keys->form.kind[k] = keys->keys[k].kind;
		keys->form.width[k] = keys->keys[k].width;
	}
}

/*
 * Returns a value of an integer key's type, or of another type of its family,
 * as an integer.
 */
static int64
key_integer(Oid type, Datum value)
{
	switch (type)
	{
		case BOOLOID:
			return DatumGetBool(value);
		case INT2OID:
			return DatumGetInt16(value);
		case OIDOID:
			return DatumGetObjectId(value);
		case INT4OID:
		case DATEOID:
			return DatumGetInt32(value);
		default:				/* int8, timestamp, timestamptz */
			return DatumGetInt64(value);
	}
}

/*
 * Returns the abbreviated key of an integer between the key's least and
 * greatest.
 */
static uint64
key_integer_abbrev(const IvfpqKey *key, int64 value)
{
	return (uint64) value - (uint64) key->least;
}

static uint64
key_float4_abbrev(float4 value)
{
	uint32		bits;

	if (isnan(value))
		return PG_UINT32_MAX;
	value += 0.0f;				/* -0 becomes 0 */
	memcpy(&bits, &value, sizeof(bits));
	return (bits & 0x80000000) != 0 ? (uint32) ~bits : bits | 0x80000000;
}

static uint64
key_float8_abbrev(float8 value)
{
	uint64		bits;
	const uint64 sign = UINT64CONST(1) << 63;

	if (isnan(value))
		return PG_UINT64_MAX;
	value += 0.0;				/* -0 becomes 0 */
	memcpy(&bits, &value, sizeof(bits));
	return (bits & sign) != 0 ? ~bits : bits | sign;
}

/*
 * Returns the abbreviated key of a value, not NULL, of the key's type.  Uses
 * memory: call in a context that is reset between rows.
 */
static uint64
key_abbrev(IvfpqKey *key, Datum value)
{
	if (key->is_integer)
		return key_integer_abbrev(key, key_integer(key->type, value));

	switch (key->kind)
	{
		case IVFPQ_KEY_HASH:
			return DatumGetUInt32(FunctionCall1Coll(&key->function,
													key->collation, value));
		case IVFPQ_KEY_SIGNATURE:
			return (uint64) DatumGetInt64(FunctionCall1Coll(&key->function,
															key->collation,
															value));
		case IVFPQ_KEY_ORDERED:
			break;
	}

	switch (key->type)
	{
		case FLOAT4OID:
			return key_float4_abbrev(DatumGetFloat4(value));
		case FLOAT8OID:
			return key_float8_abbrev(DatumGetFloat8(value));
		case NUMERICOID:
			return key_float8_abbrev(DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
																		value)));
		default:				/* an enum */
			return DatumGetObjectId(value);
	}
}

/*
 * Sets *abbrevs to the abbreviated keys of an index tuple's values [1 +
 * nkeys]; the vector, the first value, is not read.  Memory as with
 * key_abbrev.
 */
void
IvfpqKeysMake(IvfpqKeys *keys, const Datum *values, const bool *isnull,
			  IvfpqKeyAbbrevs *abbrevs)
{
	memset(abbrevs, 0, sizeof(*abbrevs));
	for (int k = 0; k < keys->nkeys; k++)
	{
		if (isnull[1 + k])
			abbrevs->nulls |= 1U << k;
		else
			abbrevs->abbrev[k] = key_abbrev(&keys->keys[k], values[1 + k]);
	}
}

/* Returns the bit of a signature that stands for a hash. */
static uint64
bit_of(uint32 hash)
{
	return UINT64CONST(1) << (murmurhash32(hash) & 63);
}

/* gpuvec_signature(anyarray) -> bigint */
Datum
gpuvec_array_signature(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	TypeCacheEntry *type = fcinfo->flinfo->fn_extra;
	ArrayIterator iterator;
	uint64		signature = 0;
	Datum		element;
	bool		isnull;

	/* the elements' hash function is looked up once a caller and type */
	if (type == NULL || type->type_id != ARR_ELEMTYPE(array))
	{
		type = lookup_type_cache(ARR_ELEMTYPE(array),
								 TYPECACHE_HASH_PROC_FINFO);
		if (!OidIsValid(type->hash_proc_finfo.fn_oid))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_FUNCTION),
					 errmsg("could not identify a hash function for type %s",
							format_type_be(ARR_ELEMTYPE(array)))));
		fcinfo->flinfo->fn_extra = type;
	}

	iterator = array_create_iterator(array, 0, NULL);
	while (array_iterate(iterator, &element, &isnull))
		if (!isnull)
			signature |= bit_of(DatumGetUInt32(FunctionCall1Coll(&type->hash_proc_finfo,
																 PG_GET_COLLATION(),
																 element)));
	array_free_iterator(iterator);
	PG_FREE_IF_COPY(array, 0);
	PG_RETURN_INT64((int64) signature);
}

/*
 * Returns the bits of all scalars in a container of a document.  The container
 * is the value of a key, whose hash is `key`.
 */
static uint64
container_bits(JsonbContainer *container, uint32 key)
{
	JsonbIterator *iterator = JsonbIteratorInit(container);
	JsonbIteratorToken token;
	JsonbValue	value;
	uint64		bits = 0;

	check_stack_depth();
	while ((token = JsonbIteratorNext(&iterator, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			key = DatumGetUInt32(hash_any((unsigned char *) value.val.string.val,
										  value.val.string.len));
		else if (token != WJB_VALUE && token != WJB_ELEM)
			continue;
		else if (value.type == jbvBinary)
			bits |= container_bits(value.val.binary.data, key);
		else
		{
			uint32		hash = key;

			JsonbHashScalarValue(&value, &hash);
			bits |= bit_of(hash);
		}
	}
	return bits;
}

/* gpuvec_signature(jsonb) -> bigint */
Datum
gpuvec_jsonb_signature(PG_FUNCTION_ARGS)
{
	Jsonb	   *jsonb = PG_GETARG_JSONB_P(0);
	uint64		signature = container_bits(&jsonb->root, 0);

	PG_FREE_IF_COPY(jsonb, 0);
	PG_RETURN_INT64((int64) signature);
}

/* Returns the range of all abbreviated keys of a key. */
static KeyRange
full_range(const IvfpqKey *key, bool is_exact)
{
	KeyRange	all = {0, PG_UINT64_MAX, is_exact};

	if (key->width < 8)
		all.high = (UINT64CONST(1) << 8 * key->width) - 1;
	return all;
}

static RangeBound
integer_bound(const IvfpqKey *key, int64 value)
{
	RangeBound	bound;
	int64		nearest = Min(Max(value, key->least), key->greatest);

	bound.abbrev = key_integer_abbrev(key, nearest);
	bound.side = nearest < value ? -1 : nearest > value;
	return bound;
}

static RangeBound
float4_bound(float8 value)
{
	RangeBound	bound;
	float4		nearest = (float4) value;

	bound.abbrev = key_float4_abbrev(nearest);
	/* with NaN neither comparison is true */
	bound.side = nearest < value ? -1 : nearest > value;
	return bound;
}

/*
 * Returns the key range for which the strategy holds with a value between two
 * bounds.  These are the same, unless it is not known where the value is.
 */
static KeyRange
between(const IvfpqKey *key, int strategy, RangeBound from, RangeBound to,
		bool is_exact)
{
	KeyRange	result = full_range(key, is_exact);
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

		if (!included && from.abbrev == full_range(key, true).high)
			return nothing;
		result.low = included ? from.abbrev : from.abbrev + 1;
	}
	return result;
}

/*
 * Returns a date or time in microseconds.  A date that no timestamp can be is
 * after all timestamps, and before infinity.
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

/*
 * Returns the range bound of a time among a key's values, which are in days or
 * microseconds.
 */
static RangeBound
time_bound(const IvfpqKey *key, int64 time)
{
	int64		days;
	RangeBound	bound;

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

/* Adds to a finite time; the result is clamped to finite times. */
static int64
moved_time(int64 time, int64 by)
{
	if (by < 0)
		return time < DT_NOBEGIN + 1 - by ? DT_NOBEGIN + 1 : time + by;
	return time > DT_NOEND - 1 - by ? DT_NOEND - 1 : time + by;
}

/*
 * Returns the key range for which the strategy holds with a date or time of
 * another type than the key's.
 */
static KeyRange
time_range(const IvfpqKey *key, int strategy, Oid subtype, Datum value)
{
	int64		time = microseconds(subtype, value);
	bool		zoned = (key->type == TIMESTAMPTZOID) !=
	(subtype == TIMESTAMPTZOID);
	RangeBound	from;
	RangeBound	to;

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
 * Returns the hash of a value as a key range.  The value may be of any type of
 * the family that has a hash function.
 */
static KeyRange
hash_key_range(IvfpqKey *key, Oid subtype, Datum value)
{
	KeyRange	result = {0, 0, false};

	if (subtype == key->type)
		result.low = key_abbrev(key, value);
	else
	{
		Oid			function = get_opfamily_proc(key->family, subtype,
												 subtype,
												 IVFPQ_HASH_PROC);

		if (!OidIsValid(function))
			return full_range(key, false);
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
 * Returns the key range for which the strategy holds with a value, not NULL,
 * of type subtype.
 */
static KeyRange
key_range(IvfpqKey *key, int strategy, Oid subtype, Datum value)
{
	RangeBound	bound = {0, 0};
	bool		same = subtype == key->type || subtype == ANYENUMOID;

	if (key->kind == IVFPQ_KEY_HASH &&
		strategy == BTEqualStrategyNumber)
		return hash_key_range(key, subtype, value);
	if (key->kind != IVFPQ_KEY_ORDERED ||
		strategy < BTLessStrategyNumber ||
		strategy > BTGreaterStrategyNumber)
		return full_range(key, false);

	if (is_time(key->type) && is_time(subtype) && !same)
		return time_range(key, strategy, subtype, value);
	else if (key->is_integer && (same || (is_int(key->type) && is_int(subtype))))
		bound = integer_bound(key, key_integer(subtype, value));
	else if (key->type == FLOAT4OID && subtype == FLOAT8OID)
		bound = float4_bound(DatumGetFloat8(value));
	else if (key->type == FLOAT8OID && subtype == FLOAT4OID)
		bound.abbrev = key_float8_abbrev(DatumGetFloat4(value));
	else if (same)
		bound.abbrev = key_abbrev(key, value);
	else
		return full_range(key, false);
	return between(key, strategy, bound, bound, key->is_exact);
}

/*
 * Adds a test to the condition, or merges it with another test of the same
 * key.  Returns false if the condition is full.
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

/* Adds a condition that the abbreviated keys of a key range satisfy. */
static void
add_range(IvfpqKeyQuals *quals, KeyQual *qual, KeyRange range)
{
	GvKeyTest	test = {.key = qual->column, .kind = GV_TEST_RANGE};
	KeyRange	all = full_range(qual->key, true);
	bool		is_all = range.low == all.low && range.high == all.high;

	quals->never |= range.low > range.high;
	/* one hash can be told from others, but hashes have no order */
	if (is_all || (qual->key->kind != IVFPQ_KEY_ORDERED &&
				   range.low != range.high))
		test.kind = GV_TEST_NOT_NULL;
	else
	{
		test.low = range.low;
		test.high = range.high;
	}
	qual->is_exact = add_test(quals, &test) && range.is_exact;
}

/* Adds a condition that abbreviated keys [n], which ascend, satisfy. */
static void
add_set(IvfpqKeyQuals *quals, KeyQual *qual, uint64 *abbrevs, int n,
		bool is_exact)
{
	GvKeyTest	test = {.key = qual->column, .kind = GV_TEST_SET};
	int			ndistinct = 0;

	for (int i = 0; i < n; i++)
		if (i == 0 || abbrevs[i] != abbrevs[i - 1])
			abbrevs[ndistinct++] = abbrevs[i];

	if (ndistinct == 0)
		add_range(quals, qual, nothing);
	else if (ndistinct == 1 || ndistinct > MOST_VALUES)
	{
		KeyRange	hull = {abbrevs[0], abbrevs[ndistinct - 1],
		is_exact && ndistinct == 1};

		add_range(quals, qual, hull);
	}
	else
	{
		test.nvalues = ndistinct;
		test.values = abbrevs;
		qual->is_exact = add_test(quals, &test) && is_exact;
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
 * Adds the condition of equality with one of these arguments, each of which
 * has one abbreviated key.  The row qual gets the arguments in the order of
 * these keys.
 */
static void
add_points(IvfpqKeyQuals *quals, KeyQual *qual, IvfpqRowQual *row,
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
	add_set(quals, qual, abbrevs, n, is_exact);
}

/* Adds the condition that holds with one of the row qual's arguments. */
static void
add_values(IvfpqKeyQuals *quals, KeyQual *qual, IvfpqRowQual *row)
{
	Argument   *arguments = palloc(row->narguments * sizeof(Argument));
	bool		are_points = qual->strategy == BTEqualStrategyNumber;
	KeyRange	hull = nothing;
	int			n = 0;

	for (int i = 0; i < row->narguments; i++)
	{
		KeyRange	range = key_range(qual->key, qual->strategy,
									  qual->subtype,
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
	 * A comparison that is not equality has a range that begins or ends where
	 * the key's abbreviated keys do, at the same end for all arguments.  So
	 * exact ranges leave no gap between them, and their hull is exact, too.
	 */
	if (are_points)
		add_points(quals, qual, row, arguments, n, hull.is_exact);
	else
		add_range(quals, qual, hull);
	pfree(arguments);
}

/*
 * Returns whether the scan key's operator holds for a value and one of these
 * arguments [n].
 */
static bool
holds_with_one(ScanKey scan_key, Datum value, const Datum *arguments, int n)
{
	LOCAL_FCINFO(fcinfo, 2);
	Datum		result;

	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		InitFunctionCallInfoData(*fcinfo, &scan_key->sk_func, 2,
								 scan_key->sk_collation, NULL, NULL);
		fcinfo->args[0].value = value;
		fcinfo->args[0].isnull = false;
		fcinfo->args[1].value = arguments[i];
		fcinfo->args[1].isnull = false;
		result = FunctionCallInvoke(fcinfo);
		if (!fcinfo->isnull && DatumGetBool(result))
			return true;
	}
	return false;
}

/*
 * Adds the condition that holds with one of these values of an enum.  The
 * members have an order that their OIDs may not have, so the members for which
 * the condition holds become a set.
 *
 * Another session may have added members, and rows that have them, since this
 * transaction locked the table.  So invalidations are accepted first.
 */
static void
add_members(IvfpqKeyQuals *quals, KeyQual *qual, ScanKey scan_key,
			const Datum *values, int n)
{
	CatCList   *list;
	int			nmembers;
	uint64	   *members;
	int			nfound = 0;

	AcceptInvalidationMessages();
	list = SearchSysCacheList1(ENUMTYPOIDNAME,
							   ObjectIdGetDatum(qual->key->type));
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
	add_set(quals, qual, members, nfound, true);
}

/* Adds a condition of sets that holds with one of these values. */
static void
add_signatures(IvfpqKeyQuals *quals, KeyQual *qual, const Datum *values, int n)
{
	bool		overlap = qual->strategy == IVFPQ_OVERLAP_STRATEGY;
	GvKeyTest	test = {.key = qual->column};

	if ((qual->subtype != qual->key->type &&
		 qual->subtype != ANYARRAYOID) ||
		(!overlap && qual->strategy != IVFPQ_CONTAINS_STRATEGY))
	{
		add_range(quals, qual, full_range(qual->key, false));
		return;
	}
	test.kind = overlap ? GV_TEST_ANY_BIT : GV_TEST_ALL_BITS;
	test.low = overlap ? 0 : PG_UINT64_MAX;
	for (int i = 0; i < n; i++)
	{
		uint64		signature = key_abbrev(qual->key, values[i]);

		if (overlap)
			test.low |= signature;
		else
			test.low &= signature;
	}
	(void) add_test(quals, &test);
	qual->is_exact = false;
}

/*
 * Adds a condition IS [NOT] NULL.  Returns whether abbreviated keys decide it.
 */
static bool
add_null_test(IvfpqKeyQuals *quals, ScanKey scan_key)
{
	bool		is_null = (scan_key->sk_flags & SK_SEARCHNULL) != 0;
	GvKeyTest	test = {.kind = is_null ? GV_TEST_NULL : GV_TEST_NOT_NULL};

	if (scan_key->sk_attno == 1)
	{
		/* such a scan costs too much to be planned (planner/cost.c) */
		if (is_null)
			elog(ERROR, "an index has no rows whose vector is NULL");
		return true;
	}
	test.key = scan_key->sk_attno - 2;
	return add_test(quals, &test);
}

/* Sets the row qual's arguments to those of its scan key, without NULLs. */
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

/*
 * Takes a scan key apart and adds its condition.  Returns whether abbreviated
 * keys decide it.
 */
static bool
add_scan_key(IvfpqKeyQuals *quals, IvfpqRowQual *row)
{
	ScanKey		scan_key = row->scan_key;
	KeyQual		qual = {.strategy = scan_key->sk_strategy};

	if ((scan_key->sk_flags & (SK_SEARCHNULL | SK_SEARCHNOTNULL)) != 0)
		return add_null_test(quals, scan_key);

	qual.column = scan_key->sk_attno - 2;
	Assert(qual.column >= 0 && qual.column < quals->keys->nkeys);
	qual.key = &quals->keys->keys[qual.column];
	qual.subtype = OidIsValid(scan_key->sk_subtype) ? scan_key->sk_subtype :
		qual.key->type;
	read_arguments(scan_key, row);

	if (row->narguments == 0)
		add_range(quals, &qual, nothing);
	else if (qual.key->kind == IVFPQ_KEY_SIGNATURE)
		add_signatures(quals, &qual, row->arguments, row->narguments);
	else if (qual.subtype == ANYENUMOID &&
			 qual.strategy != BTEqualStrategyNumber)
		add_members(quals, &qual, scan_key, row->arguments, row->narguments);
	else
		add_values(quals, &qual, row);
	return qual.is_exact;
}

/*
 * Makes key quals of scan keys [n].  These are not copied, nor are their
 * arguments.  Memory is of the current context.
 */
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

/* Returns whether the condition holds for a row's value, not NULL. */
static bool
row_holds(const IvfpqKeyQuals *quals, const IvfpqRowQual *row, Datum value)
{
	uint64		abbrev;
	int			low = 0;
	int			high = row->narguments;

	if (row->abbrevs == NULL)
		return holds_with_one(row->scan_key, value, row->arguments,
							  row->narguments);

	abbrev = key_abbrev(&quals->keys->keys[row->scan_key->sk_attno - 2],
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

/*
 * Returns whether a row with these values of the index's columns satisfies all
 * key quals or, with only_rechecks, those that abbreviated keys do not decide.
 * Uses memory: call in a context that is reset between rows.
 */
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
