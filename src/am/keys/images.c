/*
 * images.c
 *		The keys of an index, and abbreviated keys of their values.
 *
 * The abbreviated key of an integer, and of what is stored as one, is its
 * distance from the least value of the type; that of a float is its bits, so
 * changed that they ascend as btree orders: -0 is 0, and every NaN is above
 * infinity.  A numeric has the abbreviated key of the nearest double
 * precision, an enum its OID.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "catalog/pg_type_d.h"
#include "utils/builtins.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "am/keys/keys.h"
#include "am/value/value.h"

/* Types whose abbreviated keys ascend, or are the value. */
typedef struct OrderedType
{
	Oid			type;
	int			width;			/* bytes of an abbreviated key */
	bool		is_exact;
	bool		is_integer;
	int64		least;			/* of integers */
	int64		greatest;
} OrderedType;

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

/* ERROR where text could be equal to text of other bytes. */
static void
check_collation(Relation index, int attno)
{
	Oid			collation = index->rd_indcollation[attno - 1];

	if (OidIsValid(collation) && !get_collation_isdeterministic(collation))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column %d of index \"%s\" has a nondeterministic collation",
						attno, RelationGetRelationName(index)),
				 errhint("Leave the column out, the condition on it to the executor; or give it another collation.")));
}

/*
 * Initializes a key whose class has a support function, which computes
 * abbreviated keys.
 */
static void
init_by_function(IvfpqKey *key, Relation index, int attno)
{
	bool		is_hash = OidIsValid(index_getprocid(index, attno,
													 IVFPQ_HASH_PROC));

	key->kind = is_hash ? IVFPQ_KEY_HASH : IVFPQ_KEY_SIGNATURE;
	key->width = is_hash ? sizeof(uint32) : sizeof(uint64);
	key->is_exact = false;
	fmgr_info_copy(&key->function,
				   index_getprocinfo(index, attno,
									 is_hash ? IVFPQ_HASH_PROC :
									 IVFPQ_SIGNATURE_PROC),
				   CurrentMemoryContext);
}

/*
 * Initializes a key whose class has no support function: its type is one of
 * those known here.
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
	key->type = index->rd_opcintype[attno - 1];
	key->family = index->rd_opfamily[attno - 1];
	key->collation = index->rd_indcollation[attno - 1];
	if (IvfpqIsVectorColumn(index, attno))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column %d of index \"%s\" is a second vector",
						attno, RelationGetRelationName(index)),
				 errhint("Give each vector an index of its own.")));
	check_collation(index, attno);
	if (OidIsValid(index_getprocid(index, attno, IVFPQ_HASH_PROC)) ||
		OidIsValid(index_getprocid(index, attno, IVFPQ_SIGNATURE_PROC)))
		init_by_function(key, index, attno);
	else
		init_ordered(key, index, attno);
}

/*
 * Initializes the keys of an open index; ERROR where a column cannot be a key.
 * Functions are looked up in the current memory context, which must live as
 * long as *keys does.
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

/* A value of an integer key's type, or of another type of its family. */
int64
IvfpqKeyInteger(Oid type, Datum value)
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
uint64
IvfpqKeyIntegerAbbrev(const IvfpqKey *key, int64 value)
{
	return (uint64) value - (uint64) key->least;
}

uint64
IvfpqKeyFloat4Abbrev(float4 value)
{
	uint32		bits;

	if (isnan(value))
		return PG_UINT32_MAX;
	value += 0.0f;				/* -0 becomes 0 */
	memcpy(&bits, &value, sizeof(bits));
	return (bits & 0x80000000) != 0 ? (uint32) ~bits : bits | 0x80000000;
}

uint64
IvfpqKeyFloat8Abbrev(float8 value)
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
uint64
IvfpqKeyAbbrev(IvfpqKey *key, Datum value)
{
	if (key->is_integer)
		return IvfpqKeyIntegerAbbrev(key, IvfpqKeyInteger(key->type, value));

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
			return IvfpqKeyFloat4Abbrev(DatumGetFloat4(value));
		case FLOAT8OID:
			return IvfpqKeyFloat8Abbrev(DatumGetFloat8(value));
		case NUMERICOID:
			return IvfpqKeyFloat8Abbrev(DatumGetFloat8(DirectFunctionCall1(numeric_float8_no_overflow,
																		   value)));
		default:				/* an enum */
			return DatumGetObjectId(value);
	}
}

/*
 * Sets *abbrevs to the abbreviated keys of an index tuple's values [1 +
 * nkeys]; the vector, the first value, is not read.  Memory as with
 * IvfpqKeyAbbrev.
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
			abbrevs->abbrev[k] = IvfpqKeyAbbrev(&keys->keys[k], values[1 + k]);
	}
}
