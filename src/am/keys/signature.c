/*
 * signature.c
 *		Signatures: abbreviated keys of sets, 64 bits.
 *
 * An array has a bit for each element that is not NULL, which is all that &&
 * and @> compare.  A document has one for each scalar in it, which stands for
 * its value and the nearest key around it: @> goes down two documents in step,
 * so that a scalar it finds is below the same key in both.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/typcache.h"

PG_FUNCTION_INFO_V1(gpuvec_array_signature);
PG_FUNCTION_INFO_V1(gpuvec_jsonb_signature);

static uint64
bit_of(uint32 hash)
{
	return UINT64CONST(1) << (murmurhash32(hash) & 63);
}

/* How elements of the type are hashed; kept with the caller. */
static TypeCacheEntry *
element_type(FmgrInfo *flinfo, Oid type)
{
	TypeCacheEntry *entry = flinfo->fn_extra;

	if (entry != NULL && entry->type_id == type)
		return entry;
	entry = lookup_type_cache(type, TYPECACHE_HASH_PROC_FINFO);
	if (!OidIsValid(entry->hash_proc_finfo.fn_oid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("could not identify a hash function for type %s",
						format_type_be(type))));
	flinfo->fn_extra = entry;
	return entry;
}

/* gpuvec_signature(anyarray) -> bigint */
Datum
gpuvec_array_signature(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	TypeCacheEntry *type = element_type(fcinfo->flinfo, ARR_ELEMTYPE(array));
	ArrayIterator iterator = array_create_iterator(array, 0, NULL);
	uint64		signature = 0;
	Datum		element;
	bool		isnull;

	while (array_iterate(iterator, &element, &isnull))
		if (!isnull)
			signature |= bit_of(DatumGetUInt32(FunctionCall1Coll(&type->hash_proc_finfo,
																 PG_GET_COLLATION(),
																 element)));
	array_free_iterator(iterator);
	PG_FREE_IF_COPY(array, 0);
	PG_RETURN_INT64((int64) signature);
}

/* Bits of all scalars in a container, which is the value of a key. */
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
