/*
 * vector.c
 *		What an index's operator class says, and indexed values and queries
 *		as arrays of floats.
 */
#include "postgres.h"

#include <float.h>

#include "access/genam.h"
#include "catalog/dependency.h"
#include "catalog/pg_proc_d.h"
#include "catalog/pg_type_d.h"
#include "commands/extension.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/model.h"
#include "am/common/options.h"
#include "am/types/sqldistance.h"
#include "am/types/vector.h"
#include "page/array.h"

/* A value of pgvector's types, not toasted. */
typedef struct Stored
{
	int32		header;
	int16		dims;
	int16		zero;
	char		elements[FLEXIBLE_ARRAY_MEMBER];	/* [dims] */
} Stored;

/* Between these a vector's square keeps its digits in fp32, term by term. */
#define LEAST_SQUARE	(64.0 * FLT_MIN)
#define MOST_SQUARE		1e38

#define HASHED_DIMS		256		/* at a time */

/* The ordering operator of the class's own type, if there is one. */
static Oid
ordering_operator(Relation index, int attno, int strategy)
{
	Oid			family = index->rd_opfamily[attno - 1];
	Oid			type = index->rd_opcintype[attno - 1];
	Oid			op = get_opfamily_member(family, type, type, strategy);

	/* keys' classes have the same numbers, of operators that search */
	if (!OidIsValid(op) || !OidIsValid(get_op_opfamily_sortfamily(op, family)))
		return InvalidOid;
	return op;
}

/* Is a column of an open index, counted from 1, a vector, by its class? */
bool
IvfpqIsVectorColumn(Relation index, int attno)
{
	for (int strategy = 1; strategy <= IVFPQ_NSTRATEGIES; strategy++)
		if (OidIsValid(ordering_operator(index, attno, strategy)))
			return true;
	return false;
}

/*
 * The metric of an index: the one strategy for which the family of its first
 * column has an ordering operator of the class's own type.
 */
static GvMetric
index_metric(Relation index)
{
	int			found = 0;

	for (int strategy = 1; strategy <= IVFPQ_NSTRATEGIES; strategy++)
	{
		if (!OidIsValid(ordering_operator(index, 1, strategy)))
			continue;
		if (found != 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
					 errmsg("operator family of index \"%s\" has operators of more than one metric",
							RelationGetRelationName(index)),
					 errhint("Give every metric an operator class and family of its own.")));
		found = strategy;
	}

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
							format_type_be(index->rd_opcintype[0])),
					 errhint("Put the vector first; the columns behind it are keys.")));
	}
	return GV_L2;				/* keep compiler quiet */
}

/*
 * The dimensions that the column's type modifier fixes, seen through
 * domains, or 0.
 */
static int
column_dims(Relation index)
{
	Form_pg_attribute att = TupleDescAttr(RelationGetDescr(index), 0);
	int32		typmod = att->atttypmod;

	/* a domain's own modifier counts only where the column has none */
	if (typmod < 0)
		getBaseTypeAndTypmod(att->atttypid, &typmod);
	return Max(typmod, 0);
}

/*
 * Fill *type from the operator class of an open index.  Support function 1
 * is looked up in the current memory context, which must live as long as
 * *type does.
 */
void
IvfpqTypeInit(IvfpqType *type, Relation index)
{
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
	type->typmod_dims = column_dims(index);
}

/*
 * The dimensions that index's declaration fixes, by option or by type; 0
 * when rows are to decide, which only real[] allows.  ERROR if the two
 * contradict each other, or if there is neither and must be one.
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
 * Many values will be read: see whether that takes their cast, which is
 * identified by its name, in the extension `vector`.  Others may do anything.
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

/* A value of the index's type, not NULL, as a real[], not toasted. */
static ArrayType *
as_real(IvfpqType *type, Datum value)
{
	if (type->has_toreal)
		value = FunctionCall3Coll(&type->toreal, type->collation, value,
								  Int32GetDatum(-1), BoolGetDatum(false));
	return DatumGetArrayTypeP(value);
}

/* A value as it is stored, as floats; NULL if it does not look like one. */
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
 * Are floats those of the value's cast?  The first value that is read tells
 * whether pgvector's types are what they were when this was written.
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
 * A value of the index's type, not NULL, as floats, *dims of them.  The
 * result points into the value or to palloc'd memory: call in a context that
 * is reset between rows.
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
	IvfpqCheckFinite(floats, *dims);
	return floats;
}

/*
 * Returns whether a value, not NULL, is a vector of `dims` dimensions (0 =
 * any).  No ERROR if it is none.  Memory as with IvfpqValueFloats.
 */
bool
IvfpqIsVector(IvfpqType *type, Datum value, int dims)
{
	return IvfpqIsRealVector(as_real(type, value), dims);
}

/*
 * A query, not NULL, as floats.  subtype is the scan key's: InvalidOid or the
 * index's type, or an array of numbers, which the family's other operators
 * have on their right.  Memory as with IvfpqValueFloats.
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

/* ERROR unless a value has the dimensions that the index expects. */
void
IvfpqCheckDims(int expected, int dims)
{
	if (dims != expected)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("expected %d dimensions, not %d", expected, dims),
				 errhint("All vectors of an index have the same number of dimensions.")));
}

/* Has the value, not NULL, these dimensions?  0 = any. */
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
 * Can the metric place the vector?  Cosine cannot place one of zeros; such
 * rows are not indexed, like NULLs.
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
 * Returns whether a value, not NULL, has a place in the index, whose rows have
 * `dims` dimensions (0 = any).  A zero vector has none under cosine, nor has
 * one of other dimensions.  Uses memory: call in a context that is reset
 * between rows.
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
 * Is what the operator makes of the vector, and of another such, off by
 * rounding alone, so that refine records can bound it?  pgvector's sum squares
 * and products in fp32: those of very short vectors lose their digits there,
 * those of very long ones overflow.
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
 * A hash of a vector's numbers, the same for 0 and -0.  Vectors with the same
 * one of 64 bits count as equal.
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

/* ----
 * The centroids of an index, as vectors in the space of its rows.
 */

/* The inverse [dims][dims] of an index's rotation, which is its transpose. */
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
 * A centroid as pages have it, back from the engine's space; back [dims][dims]
 * undoes the rotation, or is NULL.
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
 * All centroids [*n][dims], in memory of the current context; by cosine they
 * are means of vectors of length 1.  NULL and 0 before the index is trained;
 * ERROR if its vectors have another number of dimensions.
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
