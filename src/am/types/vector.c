/*
 * vector.c
 *		Vectors: the operator class of an index, values, arrays and queries as
 *		floats, what an index can hold, and its centroids.
 *
 * Support function 1 of the operator class, the type's cast to real[], turns a
 * value into floats.  Callers that read all rows of a table would spend most
 * of their time in that cast, because pgvector's makes an array of Datums
 * first.  Its types have their elements behind a head of their own, and
 * IvfpqTypeStudy finds out whether these can be read there: it knows the cast
 * by its name, in the extension `vector`, and the first value is read both
 * ways.  If the two differ, or if a value is not as long as it should be, the
 * cast is called as before.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "access/genam.h"
#include "catalog/dependency.h"
#include "catalog/pg_proc_d.h"
#include "catalog/pg_type_d.h"
#include "commands/extension.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/model.h"
#include "am/common/options.h"
#include "am/types/vector.h"
#include "page/array.h"

/* A vector's square between these keeps its digits in fp32, term by term. */
#define LEAST_SQUARE	(64.0 * FLT_MIN)
#define MOST_SQUARE		1e38

#define HASHED_DIMS		256		/* hashed at a time */

/* A value of pgvector's types, not toasted. */
typedef struct Stored
{
	int32		header;
	int16		dims;
	int16		zero;
	char		elements[FLEXIBLE_ARRAY_MEMBER];	/* [dims] */
} Stored;

/* Returns an ordering operator of a type by its family, or InvalidOid. */
static Oid
ordering_operator(Oid family, Oid type, int strategy)
{
	Oid			op = get_opfamily_member(family, type, type, (int16) strategy);

	/* classes of keys give the same numbers to operators that search */
	if (!OidIsValid(op) || !OidIsValid(get_op_opfamily_sortfamily(op, family)))
		return InvalidOid;
	return op;
}

/*
 * Returns the distance by which a family orders a type, and sets *strategy to
 * its number.  Returns InvalidOid if the family orders no values of the type.
 * The family of an index's first column has exactly one.
 */
Oid
IvfpqDistanceOperator(Oid family, Oid type, int *strategy)
{
	for (*strategy = 1; *strategy <= IVFPQ_NSTRATEGIES; (*strategy)++)
	{
		Oid			op = ordering_operator(family, type, *strategy);

		if (OidIsValid(op))
			return op;
	}
	return InvalidOid;
}

/*
 * Returns whether a column of an open index, counted from 1, is a vector by
 * its operator class.
 */
bool
IvfpqIsVectorColumn(Relation index, int attno)
{
	int			strategy;

	return OidIsValid(IvfpqDistanceOperator(index->rd_opfamily[attno - 1],
											index->rd_opcintype[attno - 1],
											&strategy));
}

/*
 * Returns the metric of an index.  It is named by the one strategy for which
 * the family of the first column has an ordering operator of the class's own
 * type.
 */
static GvMetric
index_metric(Relation index)
{
	Oid			family = index->rd_opfamily[0];
	Oid			type = index->rd_opcintype[0];
	int			found;

	(void) IvfpqDistanceOperator(family, type, &found);
	for (int strategy = found + 1; strategy <= IVFPQ_NSTRATEGIES; strategy++)
		if (OidIsValid(ordering_operator(family, type, strategy)))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("operator family of index \"%s\" has operators of more than one metric",
							RelationGetRelationName(index)),
					 errhint("Give every metric an operator class and family of its own.")));

	switch (found)
	{
		case IVFPQ_L2_STRATEGY:
			return GV_L2;
		case IVFPQ_IP_STRATEGY:
			return GV_IP;
		case IVFPQ_COSINE_STRATEGY:
			return GV_COSINE;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("the first column of index \"%s\" is not a vector: its operator family orders no values of type %s",
							RelationGetRelationName(index),
							format_type_be(type)),
					 errhint("Put the vector first; the columns behind it are keys.")));
	}
	return GV_L2;				/* keep compiler quiet */
}

/*
 * Fills *type from the operator class of an open index.  Support function 1
 * is looked up in the current memory context, which must live as long as
 * *type does.
 */
void
IvfpqTypeInit(IvfpqType *type, Relation index)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(index), 0);
	int32		typmod = att->atttypmod;

	memset(type, 0, sizeof(*type));
	type->metric = index_metric(index);
	type->type = index->rd_opcintype[0];
	type->collation = index->rd_indcollation[0];
	type->has_toreal = (type->type != FLOAT4ARRAYOID);
	if (!type->has_toreal)
		return;

	fmgr_info_copy(&type->toreal,
				   index_getprocinfo(index, 1, IVFPQ_TOREAL_PROC),
				   CurrentMemoryContext);
	/* a domain's own modifier counts only if the column has none */
	if (typmod < 0)
		getBaseTypeAndTypmod(att->atttypid, &typmod);
	type->typmod_dims = Max(typmod, 0);
}

/*
 * Returns the dimensions that the index's declaration fixes, by option or by
 * type; or 0 if rows are to decide, which only real[] allows.  Raises an error
 * if the two contradict each other, or if there is neither and must be one.
 */
int
IvfpqIndexDims(Relation index, const IvfpqType *type)
{
	int			option_dims = IvfpqGetOptions(index)->dims;
	int			dims = option_dims > 0 ? option_dims : type->typmod_dims;

	if (dims == 0 && type->has_toreal)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("column does not have dimensions"),
				 errhint("Give its type the dimensions, or create the index WITH (dims = n).")));
	if (type->typmod_dims > 0 && option_dims > 0 &&
		option_dims != type->typmod_dims)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option dims is %d, but the column has %d dimensions",
						option_dims, type->typmod_dims),
				 errhint("Leave out the option: the column's type fixes the dimensions.")));
	if (dims > IVFPQ_MAX_DIMS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("column cannot have more than %d dimensions for a gpuivfpq index",
						IVFPQ_MAX_DIMS)));
	return dims;
}

/*
 * Finds out how values are stored, for a caller that will read many.  Their
 * cast tells, by its name and if it belongs to the extension `vector`; other
 * casts may do anything.
 */
void
IvfpqTypeStudy(IvfpqType *type)
{
	Oid			cast = type->toreal.fn_oid;
	Oid			extension;
	char	   *name;

	type->stored = IVFPQ_STORED_SOMEHOW;
	type->is_stored_so = false;
	if (!type->has_toreal)
		return;
	extension = getExtensionOfObject(ProcedureRelationId, cast);
	name = OidIsValid(extension) ? get_extension_name(extension) : NULL;
	if (name == NULL || strcmp(name, "vector") != 0)
		return;
	name = get_func_name(cast);
	if (name != NULL && strcmp(name, "vector_to_float4") == 0)
		type->stored = IVFPQ_STORED_FLOATS;
	else if (name != NULL && strcmp(name, "halfvec_to_float4") == 0)
		type->stored = IVFPQ_STORED_HALF;
}

/*
 * Raises an error unless the array has the shape of a vector and no NULL in
 * it.
 */
static void
check_shape(ArrayType *array)
{
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("vector must be a one-dimensional array, not %d-dimensional",
						ARR_NDIM(array)),
				 errhint("Store one vector in a row.")));
	if (ARR_NDIM(array) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("vector must have at least one dimension"),
				 errhint("Use NULL for a missing vector.")));
	if (ARR_DIMS(array)[0] > IVFPQ_MAX_DIMS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("vector cannot have more than %d dimensions",
						IVFPQ_MAX_DIMS),
				 errdetail("It has %d dimensions.", ARR_DIMS(array)[0])));
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("NULL element not allowed in vector"),
				 errhint("Use NULL in place of the whole array for a missing vector.")));
}

/* Raises an error unless all values [n] are finite. */
static void
check_finite(const float *values, int n)
{
	if (gv_is_finite(values, n))
		return;
	for (int i = 0; i < n; i++)
	{
		if (isnan(values[i]))
			ereport(ERROR,
					(errcode(ERRCODE_DATA_EXCEPTION),
					 errmsg("NaN not allowed in vector"),
					 errdetail("Element %d is NaN.", i + 1)));
		if (isinf(values[i]))
			ereport(ERROR,
					(errcode(ERRCODE_DATA_EXCEPTION),
					 errmsg("infinite value not allowed in vector"),
					 errdetail("Element %d is %s.", i + 1,
							   values[i] > 0 ? "Infinity" : "-Infinity")));
	}
}

/*
 * Returns the elements [n] of an array of another number type rounded to real,
 * palloc'd.  The array has no NULLs.  A double that is too small becomes 0.
 */
static float4 *
round_elements(ArrayType *array, int n)
{
	const void *data = ARR_DATA_PTR(array);
	float4	   *values = palloc(n * sizeof(float4));
	Datum	   *numerics;
	int			nnumerics;

	switch (ARR_ELEMTYPE(array))
	{
		case FLOAT8OID:
			for (int i = 0; i < n; i++)
			{
				float8		x = ((const float8 *) data)[i];

				values[i] = (float4) x;
				if (isinf(values[i]) && !isinf(x))
					ereport(ERROR,
							(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
							 errmsg("\"%g\" is out of range for type real",
									x),
							 errdetail("It is element %d of a vector.",
									   i + 1)));
			}
			break;
		case INT2OID:
			for (int i = 0; i < n; i++)
				values[i] = (float4) ((const int16 *) data)[i];
			break;
		case INT4OID:
			for (int i = 0; i < n; i++)
				values[i] = (float4) ((const int32 *) data)[i];
			break;
		case INT8OID:
			for (int i = 0; i < n; i++)
				values[i] = (float4) ((const int64 *) data)[i];
			break;
		case NUMERICOID:
			deconstruct_array(array, NUMERICOID, -1, false, TYPALIGN_INT,
							  &numerics, NULL, &nnumerics);
			Assert(nnumerics == n);
			for (int i = 0; i < n; i++)
				values[i] = DatumGetFloat4(DirectFunctionCall1(numeric_float4,
															   numerics[i]));
			pfree(numerics);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("array of %s cannot be used as a vector",
							format_type_be(ARR_ELEMTYPE(array))),
					 errhint("Cast it to real[].")));
	}
	return values;
}

/*
 * Returns the elements of a detoasted array of numbers as floats, *dims of
 * them.  The result points into the array if that is a real[], else to
 * palloc'd memory.  Raises an error if the array is no vector: one dimension,
 * at least one element, at most IVFPQ_MAX_DIMS, no NULL, all finite.
 */
const float *
IvfpqArrayFloats(ArrayType *array, int *dims)
{
	const float4 *values;
	int			n;

	check_shape(array);
	n = ARR_DIMS(array)[0];
	if (ARR_ELEMTYPE(array) == FLOAT4OID)
		values = (const float4 *) ARR_DATA_PTR(array);
	else
		values = round_elements(array, n);
	check_finite(values, n);
	*dims = n;
	return values;
}

/*
 * Returns the elements of a detoasted real[], which may not be finite; or NULL
 * unless it has the shape of a vector of `dims` dimensions (0 = any).
 */
const float *
IvfpqRealFloats(ArrayType *array, int dims)
{
	if (ARR_NDIM(array) != 1 || ARR_DIMS(array)[0] > IVFPQ_MAX_DIMS ||
		(dims > 0 && ARR_DIMS(array)[0] != dims) ||
		array_contains_nulls(array))
		return NULL;
	return (const float4 *) ARR_DATA_PTR(array);
}

/* Returns a vector [dims] as a real[], palloc'd. */
ArrayType *
IvfpqMakeReal(const float *vector, int dims)
{
	Size		size = ARR_OVERHEAD_NONULLS(1) + dims * sizeof(float4);
	ArrayType  *result = palloc0(size);

	SET_VARSIZE(result, size);
	result->ndim = 1;
	result->elemtype = FLOAT4OID;
	ARR_DIMS(result)[0] = dims;
	ARR_LBOUND(result)[0] = 1;
	memcpy(ARR_DATA_PTR(result), vector, dims * sizeof(float4));
	return result;
}

/* Returns a value of the index's type, not NULL, as a real[], not toasted. */
static ArrayType *
as_real(IvfpqType *type, Datum value)
{
	if (type->has_toreal)
		value = FunctionCall3Coll(&type->toreal, type->collation, value,
								  Int32GetDatum(-1), BoolGetDatum(false));
	return DatumGetArrayTypeP(value);
}

/*
 * Returns a value's floats as they are stored, *dims of them; or NULL if it
 * does not look like a value of its type.
 */
static const float *
stored_floats(const IvfpqType *type, Datum value, int *dims)
{
	const Stored *stored = (const Stored *) PG_DETOAST_DATUM(value);
	Size		size = type->stored == IVFPQ_STORED_FLOATS ? sizeof(float) :
	sizeof(uint16);
	float	   *floats;

	if (VARSIZE(stored) < offsetof(Stored, elements) || stored->zero != 0 ||
		stored->dims < 1 || stored->dims > IVFPQ_MAX_DIMS ||
		VARSIZE(stored) != offsetof(Stored, elements) + stored->dims * size)
		return NULL;
	*dims = stored->dims;
	if (type->stored == IVFPQ_STORED_FLOATS)
		return (const float *) stored->elements;
	floats = palloc(*dims * sizeof(float));
	gv_from_half((const uint16 *) stored->elements, *dims, floats);
	return floats;
}

/*
 * Returns whether floats are those of the value's cast.  The first value that
 * is read tells whether pgvector's types are what they were when this was
 * written.
 */
static bool
is_cast(IvfpqType *type, Datum value, const float *floats, int dims)
{
	int			cast_dims;
	const float *cast = IvfpqArrayFloats(as_real(type, value), &cast_dims);

	return cast_dims == dims &&
		memcmp(cast, floats, dims * sizeof(float)) == 0;
}

/*
 * Returns a value of the index's type, not NULL, as floats, *dims of them.
 * The result points into the value or to palloc'd memory: call in a context
 * that is reset between rows.
 */
const float *
IvfpqValueFloats(IvfpqType *type, Datum value, int *dims)
{
	const float *floats = NULL;

	if (type->stored != IVFPQ_STORED_SOMEHOW)
		floats = stored_floats(type, value, dims);
	if (floats != NULL && !type->is_stored_so)
	{
		type->is_stored_so = is_cast(type, value, floats, *dims);
		if (!type->is_stored_so)
		{
			type->stored = IVFPQ_STORED_SOMEHOW;
			floats = NULL;
		}
	}
	if (floats == NULL)
		return IvfpqArrayFloats(as_real(type, value), dims);
	check_finite(floats, *dims);
	return floats;
}

/*
 * Returns a query, not NULL, as floats, *dims of them.  subtype is the scan
 * key's: InvalidOid or the index's type, or an array of numbers, which the
 * family's other operators have on their right.  Memory as with
 * IvfpqValueFloats.
 */
const float *
IvfpqQueryFloats(IvfpqType *type, Oid subtype, Datum value, int *dims)
{
	if (!OidIsValid(subtype) || subtype == type->type)
		return IvfpqValueFloats(type, value, dims);

	switch (subtype)
	{
		case FLOAT4ARRAYOID:
		case FLOAT8ARRAYOID:
		case INT2ARRAYOID:
		case INT4ARRAYOID:
		case INT8ARRAYOID:
		case NUMERICARRAYOID:
			return IvfpqArrayFloats(DatumGetArrayTypeP(value), dims);
		default:
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("value of type %s cannot be searched for with a gpuivfpq index",
							format_type_be(subtype)),
					 errhint("Cast it to the type of the indexed column.")));
	}
	return NULL;				/* keep compiler quiet */
}

/*
 * Returns whether a value, not NULL, is a vector of `dims` dimensions (0 =
 * any), and raises no error if it is none.  Memory as with IvfpqValueFloats.
 */
bool
IvfpqIsVector(IvfpqType *type, Datum value, int dims)
{
	ArrayType  *array = as_real(type, value);
	const float *values = IvfpqRealFloats(array, dims);

	return values != NULL && gv_is_finite(values, ARR_DIMS(array)[0]);
}

/*
 * Returns a hash of a vector's numbers, the same for 0 and -0.  Vectors with
 * the same 64 bits count as equal.
 */
uint64
IvfpqVectorHash(const float *vector, int dims, uint64 seed)
{
	float		some[HASHED_DIMS];

	for (int first = 0; first < dims; first += HASHED_DIMS)
	{
		int			n = Min(HASHED_DIMS, dims - first);

		for (int i = 0; i < n; i++)
			some[i] = vector[first + i] + 0.0f;
		seed = hash_bytes_extended((const unsigned char *) some,
								   n * sizeof(float), seed);
	}
	return seed;
}

/* Raises an error unless a value has the dimensions that the index expects. */
void
IvfpqCheckDims(int expected, int dims)
{
	if (dims != expected)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("expected %d dimensions, not %d", expected, dims),
				 errhint("All vectors of an index have the same number of dimensions.")));
}

/*
 * Returns whether a value, not NULL, has `dims` dimensions (0 = any).  Memory
 * as with IvfpqValueFloats.
 */
bool
IvfpqHasDims(IvfpqType *type, Datum value, int dims)
{
	int			has;

	if (dims == 0 || type->typmod_dims > 0)
		return true;
	(void) IvfpqValueFloats(type, value, &has);
	return has == dims;
}

/*
 * Returns whether the metric can place the vector.  Cosine cannot place one of
 * zeros; such rows are not indexed, like NULLs.
 */
bool
IvfpqIsPlaceable(const IvfpqType *type, const float *vector, int dims)
{
	if (type->metric != GV_COSINE)
		return true;
	for (int i = 0; i < dims; i++)
		if (vector[i] != 0)
			return true;
	return false;
}

/*
 * Returns the vector of a row that a scan of the table reads.  Returns NULL if
 * there is none, or if the metric cannot place it.
 *
 * Rows have *dims dimensions; if that is 0, it becomes those of this row.
 * Other dimensions are an error or, with `lenient`, NULL is returned.  The
 * vector is valid until the next call, because each call resets the context.
 */
const float *
IvfpqRowVector(IvfpqType *type, Datum value, bool isnull, int *dims,
			   bool lenient, MemoryContext context)
{
	MemoryContext oldcontext;
	const float *vector;
	int			row_dims;

	if (isnull)
		return NULL;
	MemoryContextReset(context);
	oldcontext = MemoryContextSwitchTo(context);
	vector = IvfpqValueFloats(type, value, &row_dims);
	MemoryContextSwitchTo(oldcontext);
	if (*dims == 0)
		*dims = row_dims;
	if (!lenient)
		IvfpqCheckDims(*dims, row_dims);
	if (row_dims != *dims || !IvfpqIsPlaceable(type, vector, row_dims))
		return NULL;
	return vector;
}

/*
 * Returns whether a value, not NULL, has a place in the index, whose rows have
 * `dims` dimensions (0 = any).  A zero vector has none under cosine, nor has
 * one of other dimensions.  Memory as with IvfpqValueFloats.
 */
bool
IvfpqHasPlace(IvfpqType *type, Datum value, int dims)
{
	const float *vector;

	if (!IvfpqHasDims(type, value, dims))
		return false;
	if (type->metric != GV_COSINE)
		return true;
	vector = IvfpqValueFloats(type, value, &dims);
	return IvfpqIsPlaceable(type, vector, dims);
}

/*
 * Returns whether refine records can bound the vector's distance: whether the
 * operator's result for the vector and another such is off by rounding alone.
 * pgvector's operators sum squares and products in fp32.  Those of very short
 * vectors lose their digits there, and those of very long ones overflow.
 */
bool
IvfpqIsBoundable(const IvfpqType *type, const float *vector, int dims)
{
	double		square;

	if (!type->has_toreal || type->metric == GV_L2)
		return true;
	square = -gv_distance_ip(vector, vector, dims);
	return square < MOST_SQUARE &&
		(type->metric == GV_IP || square > LEAST_SQUARE);
}

/*
 * Returns the inverse [dims][dims] of an index's rotation, which is its
 * transpose; palloc'd.
 */
static float *
load_inverse(Relation index, const IvfpqMetaData *meta)
{
	int			dims = meta->dims;
	float	   *inverse = IvfpqRotationLoad(index, meta);

	for (int i = 0; i < dims; i++)
		for (int j = 0; j < i; j++)
		{
			float		value = inverse[(Size) i * dims + j];

			inverse[(Size) i * dims + j] = inverse[(Size) j * dims + i];
			inverse[(Size) j * dims + i] = value;
		}
	return inverse;
}

/*
 * Moves a centroid, as pages have it, back from the engine's space.
 * back [dims][dims] undoes the rotation, or is NULL; turned [dims] is scratch.
 */
static void
untransform(const GvModel *model, const float *back, float *turned,
			const float *centroid, float *to)
{
	if (back != NULL)
	{
		gv_rotate(model->dims, back, model->dims, centroid, turned);
		centroid = turned;
	}
	for (int i = 0; i < model->dims; i++)
	{
		double		value = centroid[i] / (double) model->scale +
		model->mean[i];

		to[i] = (float) Max(Min(value, FLT_MAX), -FLT_MAX);
	}
}

/*
 * Returns all centroids [*n][dims] of an index in the space of its rows,
 * palloc'd.  By cosine they are means of vectors of length 1.  Returns NULL,
 * and *n is 0, before the index is trained.  Raises an error if its vectors
 * have another number of dimensions.
 */
float *
IvfpqCentroids(Relation index, int dims, int *n)
{
	IvfpqModel *model = IvfpqModelGet(index);
	const IvfpqMetaData *meta = &model->meta;
	IvfpqArrayReader reader;
	const float *run;
	float	   *centroids;
	float	   *back = NULL;
	float	   *turned;
	int			count;
	Size		read = 0;

	*n = meta->nlists;
	if (meta->nlists == 0)
		return NULL;
	IvfpqCheckDims(meta->dims, dims);
	centroids = palloc_extended((Size) meta->nlists * dims * sizeof(float),
								MCXT_ALLOC_HUGE);
	turned = palloc(dims * sizeof(float));
	if (meta->rotated)
		back = load_inverse(index, meta);
	IvfpqArrayOpen(&reader, index, meta->centroids, dims, meta->nlists);
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < count; i++)
			untransform(&model->gv, back, turned, run + (Size) i * dims,
						centroids + read++ * dims);
	}
	IvfpqArrayClose(&reader);
	if (back != NULL)
		pfree(back);
	pfree(turned);
	pfree(model);
	return centroids;
}
