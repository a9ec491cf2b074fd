/*
 * vector.c
 *		Vectors: operator classes, conversion of values, arrays and queries to
 *		floats, tests whether an index can hold a vector, and centroids.
 *
 * Support function 1 of the operator class is the type's cast to real[], which
 * converts a value to floats.  Callers that read all rows of a table would
 * spend most of their time in that cast, because pgvector's cast makes an
 * array of Datums first.  In pgvector's types, the elements follow a short
 * header.  So we read the elements there, but only if IvfpqTypeStudy has
 * recognized pgvector's cast by its name and by its extension, `vector`, and
 * if the first value, read in both ways, gives the same floats.  Otherwise all
 * values are cast.  A value that does not have the expected length is cast,
 * too.
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

/*
 * If the square of a vector's length is between these limits, the sum of
 * squares in fp32, term by term, neither overflows nor loses digits.
 */
#define LEAST_SQUARE	(64.0 * FLT_MIN)
#define MOST_SQUARE		1e38

#define HASHED_DIMS		256		/* dimensions hashed at a time */

/* A value of one of pgvector's types, not toasted, as pgvector stores it. */
typedef struct Stored
{
	int32		header;
	int16		dims;
	int16		zero;
	char		elements[FLEXIBLE_ARRAY_MEMBER];	/* [dims] */
} Stored;

/*
 * Returns a family's ordering operator for (type, type) with this strategy
 * number, or InvalidOid if there is none.
 */
static Oid
ordering_operator(Oid family, Oid type, int strategy)
{
	Oid			op = get_opfamily_member(family, type, type, (int16) strategy);

	/* the classes of keys use the same numbers for search operators */
	if (!OidIsValid(op) || !OidIsValid(get_op_opfamily_sortfamily(op, family)))
		return InvalidOid;
	return op;
}

/*
 * Returns the family's ordering operator for (type, type), which computes the
 * distance, and sets *strategy to its strategy number.  Returns InvalidOid if
 * there is none.  The family of an index's first column has exactly one.
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
 * Fills *type from the operator class of an open index.  Looks up support
 * function 1 in the current context, which must live as long as *type.  Raises
 * an error unless the family of the first column has exactly one ordering
 * operator for two arguments of the class's own type.
 */
void
IvfpqTypeInit(IvfpqType *type, Relation index)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(index), 0);
	int32		typmod = att->atttypmod;
	int			found = 0;		/* the ordering operator's strategy number,
								 * which gives the metric */

	memset(type, 0, sizeof(*type));
	type->type = index->rd_opcintype[0];
	for (int strategy = 1; strategy <= IVFPQ_NSTRATEGIES; strategy++)
	{
		if (!OidIsValid(ordering_operator(index->rd_opfamily[0], type->type,
										  strategy)))
			continue;
		if (found != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("operator family of index \"%s\" has operators of more than one metric",
							RelationGetRelationName(index)),
					 errhint("Create a separate operator class and family for each metric.")));
		found = strategy;
	}
	switch (found)
	{
		case IVFPQ_L2_STRATEGY:
			type->metric = GV_L2;
			break;
		case IVFPQ_IP_STRATEGY:
			type->metric = GV_IP;
			break;
		case IVFPQ_COSINE_STRATEGY:
			type->metric = GV_COSINE;
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("first column of index \"%s\" must be a vector, not of type %s",
							RelationGetRelationName(index),
							format_type_be(type->type)),
					 errhint("Put the vector first.  The columns after it are keys.")));
	}
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
 * Returns the dimensions that the option dims or the column's type fixes.
 * Returns 0 if neither fixes them, so that the rows determine them; this is
 * allowed for real[] only.  Raises an error if the option and the type
 * contradict each other, or if required dimensions are missing.
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
				 errhint("Declare the dimensions in the column's type, or create the index WITH (dims = n).")));
	if (type->typmod_dims > 0 && option_dims > 0 &&
		option_dims != type->typmod_dims)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"dims\" is %d, but the column has %d dimensions",
						option_dims, type->typmod_dims),
				 errhint("Omit the option.  The column's type determines the dimensions.")));
	if (dims > IVFPQ_MAX_DIMS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("column cannot have more than %d dimensions for a gpuivfpq index",
						IVFPQ_MAX_DIMS)));
	return dims;
}

/*
 * Finds out how values of the type are stored, for a caller that will read
 * many of them.  Recognizes pgvector's casts by their names and by their
 * extension, `vector`.  Assumes nothing about values with another cast.
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
 * Returns the elements [n] of an array, which is not a real[], rounded to
 * real.  The result is palloc'd.  The array must not contain NULLs.  A double
 * that is too small becomes 0.
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
							 errdetail("The value is element %d of a vector.",
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
 * Returns the elements of a detoasted array of numbers as floats, and sets
 * *dims to their number.  The result points into the array if that is a
 * real[], else to palloc'd memory.  Raises an error unless the array is a
 * vector: one dimension, and 1 to IVFPQ_MAX_DIMS elements, all of them finite
 * and not NULL.
 */
const float *
IvfpqArrayFloats(ArrayType *array, int *dims)
{
	const float4 *values;
	int			n;

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("vector must be a one-dimensional array, not %d-dimensional",
						ARR_NDIM(array)),
				 errhint("Store one vector per row.")));
	if (ARR_NDIM(array) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("vector must have at least one dimension"),
				 errhint("Use NULL for a missing vector.")));
	n = ARR_DIMS(array)[0];
	if (n > IVFPQ_MAX_DIMS)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("vector cannot have more than %d dimensions",
						IVFPQ_MAX_DIMS),
				 errdetail("The vector has %d dimensions.", n)));
	if (array_contains_nulls(array))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("NULL element not allowed in vector"),
				 errhint("For a missing vector, use NULL instead of an array.")));
	if (ARR_ELEMTYPE(array) == FLOAT4OID)
		values = (const float4 *) ARR_DATA_PTR(array);
	else
		values = round_elements(array, n);
	check_finite(values, n);
	*dims = n;
	return values;
}

/*
 * Returns the elements of a detoasted real[], without checking that they are
 * finite.  Returns NULL if the array does not have the shape of a vector of
 * `dims` dimensions (0 = any) or contains NULLs.
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

/* Converts a value, not NULL, of the index's type to a detoasted real[]. */
static ArrayType *
as_real(IvfpqType *type, Datum value)
{
	if (type->has_toreal)
		value = FunctionCall3Coll(&type->toreal, type->collation, value,
								  Int32GetDatum(-1), BoolGetDatum(false));
	return DatumGetArrayTypeP(value);
}

/*
 * Returns the floats of a value that is stored as type->stored says, and sets
 * *dims to their number.  Returns NULL if the value does not have the expected
 * form.
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
 * Converts a value of the index's type, which must not be NULL, to floats, and
 * sets *dims to their number.  The result points into the value or to palloc'd
 * memory, so call this in a context that is reset between rows.
 */
const float *
IvfpqValueFloats(IvfpqType *type, Datum value, int *dims)
{
	const float *floats = NULL;

	if (type->stored != IVFPQ_STORED_SOMEHOW)
		floats = stored_floats(type, value, dims);
	if (floats != NULL && !type->is_stored_so)
	{
		/*
		 * Compare the first value with its cast, because pgvector may have
		 * changed its types since this was written.
		 */
		int			cast_dims;
		const float *cast = IvfpqArrayFloats(as_real(type, value), &cast_dims);

		type->is_stored_so = cast_dims == *dims &&
			memcmp(cast, floats, cast_dims * sizeof(float)) == 0;
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
 * Converts a query, which must not be NULL, to floats, and sets *dims to their
 * number.  `subtype` is that of the scan key.  It is InvalidOid or the index's
 * type, or else an array of numbers, because the family has operators with
 * such an array on the right.  Allocates memory as IvfpqValueFloats does.
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
					 errmsg("cannot search a gpuivfpq index for a value of type %s",
							format_type_be(subtype)),
					 errhint("Cast the value to the type of the indexed column.")));
	}
	return NULL;				/* keep compiler quiet */
}

/*
 * Returns whether a value, which must not be NULL, is a vector of `dims`
 * dimensions (0 = any).  Does not raise an error if the value is not a vector.
 * Allocates memory as IvfpqValueFloats does.
 */
bool
IvfpqIsVector(IvfpqType *type, Datum value, int dims)
{
	ArrayType  *array = as_real(type, value);
	const float *values = IvfpqRealFloats(array, dims);

	return values != NULL && gv_is_finite(values, ARR_DIMS(array)[0]);
}

/*
 * Returns a hash of a vector's numbers, in which 0 and -0 are the same.
 * Callers treat vectors with the same hash as equal.
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
 * Returns whether a value, which must not be NULL, has `dims` dimensions (0 =
 * any).  Allocates memory as IvfpqValueFloats does.
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
 * Returns whether a vector can be indexed under the metric.  Under cosine, a
 * row with a vector of zeros is not indexed, like a row with NULL.
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
 * Returns the vector of a row that a scan of the table has read, or NULL if
 * the row has no vector that can be indexed under the metric.
 *
 * All rows must have *dims dimensions.  If *dims is 0, it is set to the
 * dimensions of this row.  If the row has other dimensions, this raises an
 * error or, if `lenient`, returns NULL.  The vector is valid until the next
 * call, because each call resets the context.
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
 * Returns whether the index can hold a value, which must not be NULL.  The
 * rows of the index have `dims` dimensions (0 = any).  The index cannot hold a
 * vector of other dimensions or, if the metric is cosine, a vector of zeros.
 * Allocates memory as IvfpqValueFloats does.
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
 * Returns whether the vector is boundable.  Refine records can bound the
 * distance between two boundable vectors, because the operator's result for
 * them has no error other than rounding.  pgvector's operators sum squares and
 * products in fp32.  Very short vectors lose their digits there, and the sums
 * of very long vectors overflow.
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
 * Returns all centroids [*n][dims] of an index, palloc'd, transformed from the
 * engine's space, in which pages store them, to the space of the index's rows.
 * If the metric is cosine, centroids are means of vectors of length 1.  If the
 * index is not trained, sets *n to 0 and returns NULL.  Raises an error if the
 * index's vectors have other dimensions.
 */
float *
IvfpqCentroids(Relation index, int dims, int *n)
{
	IvfpqModel *model = IvfpqModelGet(index);
	const IvfpqMetaData *meta = &model->meta;
	IvfpqArrayReader reader;
	const float *run;
	float	   *centroids;
	float	   *to;
	float	   *back = NULL;	/* [dims][dims] inverse of the rotation */
	float	   *turned;
	int			count;

	*n = meta->nlists;
	if (meta->nlists == 0)
		return NULL;
	IvfpqCheckDims(meta->dims, dims);
	centroids = palloc_extended((Size) meta->nlists * dims * sizeof(float),
								MCXT_ALLOC_HUGE);
	turned = palloc(dims * sizeof(float));
	if (meta->rotated)
	{
		/* the inverse of a rotation is its transpose */
		back = IvfpqRotationLoad(index, meta);
		for (int i = 0; i < dims; i++)
			for (int j = 0; j < i; j++)
			{
				float		value = back[(Size) i * dims + j];

				back[(Size) i * dims + j] = back[(Size) j * dims + i];
				back[(Size) j * dims + i] = value;
			}
	}
	IvfpqArrayOpen(&reader, index, meta->centroids, dims, meta->nlists);
	to = centroids;
	while ((run = IvfpqArrayNext(&reader, &count)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < count; i++, run += dims, to += dims)
		{
			const float *centroid = run;

			if (back != NULL)
			{
				gv_rotate(dims, back, dims, run, turned);
				centroid = turned;
			}
			for (int d = 0; d < dims; d++)
			{
				double		value = centroid[d] / (double) model->gv.scale +
				model->gv.mean[d];

				to[d] = (float) Max(Min(value, FLT_MAX), -FLT_MAX);
			}
		}
	}
	IvfpqArrayClose(&reader);
	if (back != NULL)
		pfree(back);
	pfree(turned);
	pfree(model);
	return centroids;
}
