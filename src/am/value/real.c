/*
 * real.c
 *		Arrays as vectors: checked access to their elements, and the distance
 *		functions of real[].
 *
 * The right side may also be an array of double precision, smallint, integer,
 * bigint or numeric.  Its elements are rounded to real first, as a cast to
 * real[] would, so that a query gives the same distances whichever way a
 * driver sends it.
 */
#include "postgres.h"

#include <math.h>

#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "am/value/real.h"
#include "engine/gv_engine.h"

/* Larger values are not remembered: comparing would cost too much. */
#define MEMO_MAX_BYTES	(256 * 1024)


PG_FUNCTION_INFO_V1(gpuvec_l2_distance);
PG_FUNCTION_INFO_V1(gpuvec_negative_inner_product);
PG_FUNCTION_INFO_V1(gpuvec_cosine_distance);

/* ERROR unless the array has the shape of a vector and no NULL in it. */
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

/* Report element i, counted from 0, which is not finite. */
static void
report_not_finite(float4 value, int i)
{
	if (isnan(value))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("NaN not allowed in vector"),
				 errdetail("Element %d is NaN.", i + 1)));
	ereport(ERROR,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("infinite value not allowed in vector"),
			 errdetail("Element %d is %s.", i + 1,
					   value > 0 ? "Infinity" : "-Infinity")));
}

/* All are finite, see real.h. */
void
IvfpqCheckFinite(const float *values, int n)
{
	if (gv_is_finite(values, n))
		return;
	for (int i = 0; i < n; i++)
		if (!isfinite(values[i]))
			report_not_finite(values[i], i);
}

/* double precision [n] rounded to real; what is too small becomes 0. */
static float4 *
round_doubles(const float8 *x, int n)
{
	float4	   *values = palloc(n * sizeof(float4));

	for (int i = 0; i < n; i++)
	{
		values[i] = (float4) x[i];
		if (isinf(values[i]) && !isinf(x[i]))
			ereport(ERROR,
					(errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
					 errmsg("\"%g\" is out of range for type real", x[i]),
					 errdetail("It is element %d of a vector.", i + 1)));
	}
	return values;
}

/* smallint [n] as real. */
static float4 *
round_shorts(const int16 *x, int n)
{
	float4	   *values = palloc(n * sizeof(float4));

	for (int i = 0; i < n; i++)
		values[i] = (float4) x[i];
	return values;
}

/* integer [n] rounded to real. */
static float4 *
round_integers(const int32 *x, int n)
{
	float4	   *values = palloc(n * sizeof(float4));

	for (int i = 0; i < n; i++)
		values[i] = (float4) x[i];
	return values;
}

/* bigint [n] rounded to real. */
static float4 *
round_bigints(const int64 *x, int n)
{
	float4	   *values = palloc(n * sizeof(float4));

	for (int i = 0; i < n; i++)
		values[i] = (float4) x[i];
	return values;
}

/* The elements of numeric[], which has no NULLs, rounded to real. */
static float4 *
round_numerics(ArrayType *array, int n)
{
	float4	   *values = palloc(n * sizeof(float4));
	Datum	   *elements;
	int			nelements;

	deconstruct_array(array, NUMERICOID, -1, false, TYPALIGN_INT,
					  &elements, NULL, &nelements);
	Assert(nelements == n);
	for (int i = 0; i < n; i++)
		values[i] = DatumGetFloat4(DirectFunctionCall1(numeric_float4,
													   elements[i]));
	pfree(elements);
	return values;
}

/*
 * The elements of a detoasted array as floats, *dims of them.  The result
 * points into the array if it is a real[], else to palloc'd memory.  ERROR
 * if the array is no vector.
 */
const float *
IvfpqArrayFloats(ArrayType *array, int *dims)
{
	const float4 *values;
	int			n;

	check_shape(array);
	n = ARR_DIMS(array)[0];
	switch (ARR_ELEMTYPE(array))
	{
		case FLOAT4OID:
			values = (const float4 *) ARR_DATA_PTR(array);
			break;
		case FLOAT8OID:
			values = round_doubles((const float8 *) ARR_DATA_PTR(array), n);
			break;
		case INT2OID:
			values = round_shorts((const int16 *) ARR_DATA_PTR(array), n);
			break;
		case INT4OID:
			values = round_integers((const int32 *) ARR_DATA_PTR(array), n);
			break;
		case INT8OID:
			values = round_bigints((const int64 *) ARR_DATA_PTR(array), n);
			break;
		case NUMERICOID:
			values = round_numerics(array, n);
			break;
		default:
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("array of %s cannot be used as a vector",
							format_type_be(ARR_ELEMTYPE(array))),
					 errhint("Cast it to real[].")));
	}
	IvfpqCheckFinite(values, n);
	*dims = n;
	return values;
}

/*
 * The elements of a detoasted real[] that has the shape of a vector of `dims`
 * dimensions (0 = any), which may not be finite; else NULL.
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

/*
 * Returns whether a detoasted real[] is a vector of `dims` dimensions (0 =
 * any).  IvfpqArrayFloats reports why it is none.
 */
bool
IvfpqIsRealVector(ArrayType *array, int dims)
{
	const float *values = IvfpqRealFloats(array, dims);

	return values != NULL && gv_is_finite(values, ARR_DIMS(array)[0]);
}

/*
 * Is value the one remembered?  Compares bytes, so a value that only points
 * to others (TOAST, expanded) never matches: what it points to can change.
 */
bool
IvfpqMemoMatches(const IvfpqMemo *memo, const struct varlena *value)
{
	return memo->source != NULL && !VARATT_IS_EXTERNAL(value) &&
		VARSIZE_ANY(memo->source) == VARSIZE_ANY(value) &&
		memcmp(memo->source, value, VARSIZE_ANY(value)) == 0;
}

/*
 * Remember value and its result, copies of both in context, in place of what
 * memo held.  Values that cannot be compared cheaply are not kept.
 */
void
IvfpqMemoSet(IvfpqMemo *memo, MemoryContext context,
			 const struct varlena *value,
			 const void *result, Size result_size)
{
	struct varlena *source;

	if (VARATT_IS_EXTERNAL(value) || VARSIZE_ANY(value) > MEMO_MAX_BYTES)
		return;

	if (memo->source != NULL)
		pfree(memo->source);
	memo->source = NULL;
	if (memo->result != NULL)
		pfree(memo->result);
	memo->result = NULL;

	memo->result = MemoryContextAlloc(context, result_size);
	memcpy(memo->result, result, result_size);
	source = MemoryContextAlloc(context, VARSIZE_ANY(value));
	memcpy(source, value, VARSIZE_ANY(value));
	memo->source = source;
}

/*
 * The floats of a numeric[], whose conversion takes longer than anything
 * else here, remembered from call to call.  The array is detoasted and at
 * most MEMO_MAX_BYTES long; the result belongs to flinfo.
 */
static const float *
numeric_floats(FmgrInfo *flinfo, ArrayType *array, int *dims)
{
	IvfpqMemo  *memo = flinfo->fn_extra;
	const struct varlena *value = (const struct varlena *) array;

	if (memo == NULL)
	{
		memo = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(IvfpqMemo));
		flinfo->fn_extra = memo;
	}
	if (!IvfpqMemoMatches(memo, value))
	{
		const float *values = IvfpqArrayFloats(array, dims);

		IvfpqMemoSet(memo, flinfo->fn_mcxt, value, values,
					 *dims * sizeof(float4));
		pfree(unconstify(float *, values));
	}
	*dims = ARR_DIMS(array)[0];
	return memo->result;
}

/*
 * Distance of a real[] (argument 0) and an array of any number type that
 * IvfpqArrayFloats takes (argument 1).  ERROR if their dimensions differ.
 * Leaves no memory behind.
 */
static float8
compute_distance(FunctionCallInfo fcinfo, IvfpqRealDistance function)
{
	ArrayType  *a = PG_GETARG_ARRAYTYPE_P(0);
	ArrayType  *b = PG_GETARG_ARRAYTYPE_P(1);
	int			a_dims;
	int			b_dims;
	const float *x = IvfpqArrayFloats(a, &a_dims);
	const float *y;
	float8		distance;
	bool		remember;

	remember = ARR_ELEMTYPE(b) == NUMERICOID && fcinfo->flinfo != NULL &&
		VARSIZE(b) <= MEMO_MAX_BYTES;
	if (remember)
		y = numeric_floats(fcinfo->flinfo, b, &b_dims);
	else
		y = IvfpqArrayFloats(b, &b_dims);
	if (a_dims != b_dims)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("different vector dimensions %d and %d",
						a_dims, b_dims)));

	distance = function(x, y, a_dims);

	if (!remember && ARR_ELEMTYPE(b) != FLOAT4OID)
		pfree(unconstify(float *, y));
	PG_FREE_IF_COPY(a, 0);
	PG_FREE_IF_COPY(b, 1);
	return distance;
}

/* gpuvec_l2_distance(real[], real[] or other): Euclidean distance */
Datum
gpuvec_l2_distance(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(compute_distance(fcinfo, gv_distance_l2));
}

/* gpuvec_negative_inner_product(real[], real[] or other) */
Datum
gpuvec_negative_inner_product(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(compute_distance(fcinfo, gv_distance_ip));
}

/* gpuvec_cosine_distance(real[], real[] or other): 1 - cosine, or NaN */
Datum
gpuvec_cosine_distance(PG_FUNCTION_ARGS)
{
	PG_RETURN_FLOAT8(compute_distance(fcinfo, gv_distance_cosine));
}

/*
 * Returns the function that one of those above computes a distance with; NULL:
 * it is none of them.
 */
IvfpqRealDistance
IvfpqRealDistanceOf(const FmgrInfo *function)
{
	if (function->fn_addr == gpuvec_l2_distance)
		return gv_distance_l2;
	if (function->fn_addr == gpuvec_negative_inner_product)
		return gv_distance_ip;
	if (function->fn_addr == gpuvec_cosine_distance)
		return gv_distance_cosine;
	return NULL;
}

/* A vector [dims] as a real[], palloc'd in the current context. */
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
