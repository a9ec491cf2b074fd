/*
 * keys.c
 *		Keys, which are the columns of an index that follow the vector column:
 *		their abbreviated keys, and key quals, a scan's conditions on keys.
 *
 * Abbreviated keys.  The abbreviated key of an integer, or of a type that is
 * stored as an integer, is its distance from the least value of the type.  The
 * abbreviated key of a float is its bits, changed so that they ascend in
 * btree's order: -0 is equal to 0, and every NaN is above infinity.  A numeric
 * has the abbreviated key of the nearest double precision value, an enum has
 * its OID, and other types have a hash.
 *
 * Signatures.  Arrays and jsonb documents are sets and have signatures of 64
 * bits.  The signature of an array has a bit for each element that is not
 * NULL, because && and @> compare only such elements.  The signature of a
 * document has a bit for each scalar in the document.  The scalar's value and
 * the nearest object key around it determine the bit.  The object key may be
 * included because @> descends into both documents at the same time, so that a
 * scalar found in both is below the same object key in both.
 *
 * Key ranges.  A comparison with a value becomes a key range.  The range
 * contains all abbreviated keys that satisfy the comparison, and perhaps more.
 * The value may be one that the key cannot have: an int4 may be compared with
 * 5,000,000,000, and a real with 0.1.  So the value first becomes a range
 * bound: the abbreviated key nearest to the value, and the side of the value
 * on which that abbreviated key is.
 *
 * Rechecks.  If a range may contain too many abbreviated keys, the condition
 * is rechecked on the row: its own function is called, as the executor would
 * do.  A condition that this file does not understand is also rechecked.  We
 * rely on operator classes (validate.c) for one fact about operators: that an
 * operator does what its strategy number says.
 *
 * page/README, "Format", describes how blocks store abbreviated keys, and
 * am/search/README describes how a search uses them.
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
 * Time zones differ from UTC by less than a week, whatever a user sets.  So
 * when local time is compared with absolute time, the key range is widened by
 * this much at both ends, and the comparison is rechecked.
 */
#define ZONE_USECS		(8 * USECS_PER_DAY)

/*
 * Maximum number of values in the set of a condition.  A larger set is
 * replaced by a range and rechecked, because each block is compared with all
 * values.
 */
#define MOST_VALUES		65536

/*
 * A type that can be a key without a support function.  Its abbreviated keys
 * ascend as its values do or, for enums, are the values themselves.
 */
typedef struct OrderedType
{
	Oid			type;
	int			width;			/* bytes of an abbreviated key */
	bool		is_exact;
	bool		is_integer;
	int64		least;			/* least value, of integer types */
	int64		greatest;
} OrderedType;

/* The abbreviated keys low .. high of a key; none if low is above high. */
typedef struct KeyRange
{
	uint64		low;
	uint64		high;
	bool		is_exact;		/* all values in the range satisfy the
								 * comparison */
} KeyRange;

/* The place of a value among a key's abbreviated keys. */
typedef struct RangeBound
{
	uint64		abbrev;			/* the abbreviated key nearest to the value */
	int			side;			/* -1, 0, 1: abbrev stands for a value that is
								 * below, equal to, above the value */
} RangeBound;

/* A value with which a key is tested for equality, and its abbreviated key. */
typedef struct Argument
{
	uint64		abbrev;
	Datum		value;
} Argument;

/* A condition on a key, taken from a scan key. */
typedef struct KeyQual
{
	IvfpqKey   *key;
	int			column;			/* number of the key, counted from 0 */
	int			strategy;
	Oid			subtype;		/* type of the values that the key is compared
								 * with */
	bool		is_exact;		/* abbreviated keys suffice for the test */
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

/* Returns whether an operator class for the type needs no support function. */
bool
IvfpqIsOrderedKey(Oid type)
{
	return ordered_type(type) != NULL;
}

static void
init_key(IvfpqKey *key, Relation index, int attno)
{
	Oid			collation = index->rd_indcollation[attno - 1];
	const OrderedType *type;
	int			strategy;
	int			procnum;

	key->type = index->rd_opcintype[attno - 1];
	key->family = index->rd_opfamily[attno - 1];
	key->collation = collation;
	if (OidIsValid(IvfpqDistanceOperator(key->family, key->type, &strategy)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column %d of index \"%s\" is a second vector",
						attno, RelationGetRelationName(index)),
				 errhint("Create a separate index for each vector.")));
	/* texts with different bytes could be equal, but have different hashes */
	if (OidIsValid(collation) && !get_collation_isdeterministic(collation))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column %d of index \"%s\" has a nondeterministic collation",
						attno, RelationGetRelationName(index)),
				 errhint("Remove the column, or use a deterministic collation.")));

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
		type = ordered_type(key->type);
		if (type == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("column %d of index \"%s\" cannot be a key: type %s is not supported",
							attno, RelationGetRelationName(index),
							format_type_be(key->type)),
					 errhint("Remove the column.  Conditions on other columns are applied as filters.")));
		key->kind = IVFPQ_KEY_ORDERED;
		key->width = type->width;
		key->is_exact = type->is_exact;
		key->is_integer = type->is_integer;
		key->least = type->least;
		key->greatest = type->greatest;
		if (key->type == ANYENUMOID)
			key->type = getBaseType(TupleDescAttr(RelationGetDescr(index),
												  attno - 1)->atttypid);
		return;
	}

	/* the support function is called for each value */
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
				 errhint("Remove columns.  Conditions on other columns are applied as filters.")));

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
 * Returns a value as an integer.  The value has the type of an integer key, or
 * another type of that key's operator family.
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
 * Returns the abbreviated key of a value, which must have the key's type and
 * not be NULL.  May leave memory allocated, so call this in a context that is
 * reset between rows.
 */
static uint64
key_abbrev(IvfpqKey *key, Datum value)
{
	if (key->is_integer)
		return (uint64) key_integer(key->type, value) - (uint64) key->least;

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
 * Sets *abbrevs to the abbreviated keys of values [1 + nkeys] of an index
 * tuple.  Does not read the first value, the vector.  Allocates as
 * key_abbrev() does.
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

	/* look up the hash function once for each call site and element type */
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
 * Returns the signature of all scalars in a container of a document.  `key` is
 * the hash of the nearest object key around the container, or 0 at the root.
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

/* Returns the range that contains every abbreviated key of this width. */
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

	bound.abbrev = (uint64) nearest - (uint64) key->least;
	bound.side = nearest < value ? -1 : nearest > value;
	return bound;
}

/*
 * Returns the key range for a comparison by `strategy` with a value that lies
 * between two range bounds, which are equal if the value's exact place is
 * known.
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
 * Returns a date or time in microseconds.  A date that is too late to be a
 * timestamp is placed after all timestamps and before infinity.
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
 * Returns the range bound of a time, which is in microseconds.  The key's
 * values are in days or in microseconds, depending on its type.
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

/* Adds `by` to a finite time.  The result is clamped to finite times. */
static int64
moved_time(int64 time, int64 by)
{
	if (by < 0)
		return time < DT_NOBEGIN + 1 - by ? DT_NOBEGIN + 1 : time + by;
	return time > DT_NOEND - 1 - by ? DT_NOEND - 1 : time + by;
}

/*
 * Returns the key range for a comparison by `strategy` with a date or time
 * whose type, `subtype`, differs from the key's type.
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
 * Returns the key range for equality with a value of type `subtype`.  The
 * range contains only the hash of the value.  If the key's family has no hash
 * function for that type, the range contains all abbreviated keys.
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
 * Returns the key range for a comparison by `strategy` with a value of type
 * `subtype`, which must not be NULL.
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
	{
		float8		exact = DatumGetFloat8(value);
		float4		nearest = (float4) exact;

		bound.abbrev = key_float4_abbrev(nearest);
		/* if the value is NaN, neither comparison is true and the side is 0 */
		bound.side = nearest < exact ? -1 : nearest > exact;
	}
	else if (key->type == FLOAT8OID && subtype == FLOAT4OID)
		bound.abbrev = key_float8_abbrev(DatumGetFloat4(value));
	else if (same)
		bound.abbrev = key_abbrev(key, value);
	else
		return full_range(key, false);
	return between(key, strategy, bound, bound, key->is_exact);
}

/*
 * Adds a test to the condition, or merges it with an earlier test of the same
 * key.  If the two tests exclude each other, sets quals->never.  Returns false
 * if the condition is full.
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

/* Adds the condition that the key is in a range.  Sets qual->is_exact. */
static void
add_range(IvfpqKeyQuals *quals, KeyQual *qual, KeyRange range)
{
	GvKeyTest	test = {.key = qual->column, .kind = GV_TEST_RANGE};
	KeyRange	all = full_range(qual->key, true);
	bool		is_all = range.low == all.low && range.high == all.high;

	quals->never |= range.low > range.high;
	/* hashes have no order, so only a range of a single hash can be tested */
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

/*
 * Adds the condition that the abbreviated key is one of abbrevs [n], which
 * must be in ascending order.  Removes duplicates from abbrevs.  The condition
 * may keep a pointer to this array.  Sets qual->is_exact.
 */
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
 * Adds the condition that the comparison by qual->strategy is true for at
 * least one of the row qual's arguments.
 */
static void
add_values(IvfpqKeyQuals *quals, KeyQual *qual, IvfpqRowQual *row)
{
	Argument   *arguments = palloc(row->narguments * sizeof(Argument));
	bool		are_points = qual->strategy == BTEqualStrategyNumber;
	KeyRange	hull = nothing;
	int			n = 0;
	uint64	   *abbrevs;

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

	if (are_points)
	{
		/*
		 * The key must be equal to an argument, and each argument has a
		 * single abbreviated key.  Store the arguments in the row qual, in
		 * the order of these abbreviated keys.
		 */
		qsort(arguments, n, sizeof(Argument), compare_arguments);
		abbrevs = palloc(n * sizeof(uint64));
		row->narguments = n;
		row->arguments = palloc(n * sizeof(Datum));
		row->abbrevs = palloc(n * sizeof(uint64));
		for (int i = 0; i < n; i++)
		{
			row->arguments[i] = arguments[i].value;
			row->abbrevs[i] = arguments[i].abbrev;
			abbrevs[i] = arguments[i].abbrev;
		}
		add_set(quals, qual, abbrevs, n, hull.is_exact);
	}
	else
	{
		/*
		 * If the comparison is not equality, either the ranges of all
		 * arguments begin at the key's first abbreviated key, or all these
		 * ranges end at the key's last abbreviated key.  Exact ranges
		 * therefore have no gap between them, and their hull is exact, too.
		 */
		add_range(quals, qual, hull);
	}
	pfree(arguments);
}

/*
 * Returns whether the scan key's operator is true for a value and at least one
 * of the arguments [n].
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
 * Adds the condition that the scan key's operator is true for the key, an
 * enum, and at least one of the values [n].  The order of an enum's members
 * can differ from the order of their OIDs, which are their abbreviated keys.
 * So we find all members that satisfy the condition, and test whether the key
 * is one of them.
 *
 * Another session may have added members, and rows with them, since this
 * transaction locked the table.  So accept invalidations first.
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

/* Adds the condition that a set overlaps or contains one of the values [n]. */
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
 * Adds an IS NULL or IS NOT NULL condition.  Returns whether abbreviated keys
 * are enough to test the condition.
 */
static bool
add_null_test(IvfpqKeyQuals *quals, ScanKey scan_key)
{
	bool		is_null = (scan_key->sk_flags & SK_SEARCHNULL) != 0;
	GvKeyTest	test = {.kind = is_null ? GV_TEST_NULL : GV_TEST_NOT_NULL};

	if (scan_key->sk_attno == 1)
	{
		/*
		 * cannot happen: we make no path for IS NULL, and core's path costs
		 * too much (planner/cost.c)
		 */
		if (is_null)
			elog(ERROR, "an index has no rows whose vector is NULL");
		return true;
	}
	test.key = scan_key->sk_attno - 2;
	return add_test(quals, &test);
}

/* Sets the row qual's arguments to those of the scan key, except NULLs. */
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
 * Adds the condition of the row qual's scan key.  Returns whether abbreviated
 * keys are enough to test the condition.
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
 * Makes key quals from scan_keys [n].  The key quals point to the scan keys
 * and to their arguments, so these must live as long as *quals.  Allocates
 * memory in the current context.
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

/* Returns whether a row's value, not NULL, satisfies the row qual. */
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
 * Returns whether a row satisfies all key quals.  If only_rechecks is true,
 * tests only the key quals that must be rechecked.  `values` and `isnull` are
 * those of the index's columns.  May leave memory allocated, so call this in a
 * context that is reset between rows.
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
