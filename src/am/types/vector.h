/*
 * vector.h
 *		Vectors: operator classes, conversion to floats, whether an index can
 *		hold a vector, and centroids (vector.c).
 */
#ifndef IVFPQ_VECTOR_H
#define IVFPQ_VECTOR_H

#include "fmgr.h"
#include "utils/array.h"
#include "utils/relcache.h"

#include "engine/gv_engine.h"

/* Strategy numbers of the ordering operators.  Each stands for a metric. */
#define IVFPQ_L2_STRATEGY		1
#define IVFPQ_IP_STRATEGY		2
#define IVFPQ_COSINE_STRATEGY	3
#define IVFPQ_NSTRATEGIES		3

/*
 * Support function 1 takes (type, int4, bool) and returns the value as a
 * real[], as pgvector's own cast functions do.  A class for real[] itself has
 * no support function 1.
 */
#define IVFPQ_TOREAL_PROC		1

/* How values of a type are stored, as far as we know. */
typedef enum IvfpqStored
{
	IVFPQ_STORED_SOMEHOW,		/* unknown: only the cast can read a value */
	IVFPQ_STORED_FLOATS,		/* vector */
	IVFPQ_STORED_HALF			/* halfvec */
} IvfpqStored;

/* The type of an index's vectors, as their operator class determines it. */
typedef struct IvfpqType
{
	GvMetric	metric;
	Oid			type;			/* the operator class's input type */
	Oid			collation;
	bool		has_toreal;		/* false if the type is real[] */
	FmgrInfo	toreal;			/* support function 1 */
	int			typmod_dims;	/* dimensions given by the column's type
								 * modifier, or 0 */
	IvfpqStored stored;
	bool		is_stored_so;	/* reading a value as `stored` says gave the
								 * same floats as its cast */
} IvfpqType;

/* Operator classes */
extern Oid	IvfpqDistanceOperator(Oid family, Oid type, int *strategy);
extern void IvfpqTypeInit(IvfpqType *type, Relation index);
extern void IvfpqTypeStudy(IvfpqType *type);
extern int	IvfpqIndexDims(Relation index, const IvfpqType *type);

/* Arrays as vectors */
extern const float *IvfpqArrayFloats(ArrayType *array, int *dims);
extern const float *IvfpqRealFloats(ArrayType *array, int dims);
extern ArrayType *IvfpqMakeReal(const float *vector, int dims);

/* Values and queries */
extern const float *IvfpqValueFloats(IvfpqType *type, Datum value, int *dims);
extern const float *IvfpqQueryFloats(IvfpqType *type, Oid subtype,
									 Datum value, int *dims);
extern bool IvfpqIsVector(IvfpqType *type, Datum value, int dims);
extern uint64 IvfpqVectorHash(const float *vector, int dims, uint64 seed);

/* Tests whether an index can hold a vector */
extern void IvfpqCheckDims(int expected, int dims);
extern bool IvfpqHasDims(IvfpqType *type, Datum value, int dims);
extern bool IvfpqIsPlaceable(const IvfpqType *type, const float *vector,
							 int dims);
extern const float *IvfpqRowVector(IvfpqType *type, Datum value, bool isnull,
								   int *dims, bool lenient,
								   MemoryContext context);
extern bool IvfpqHasPlace(IvfpqType *type, Datum value, int dims);
extern bool IvfpqIsBoundable(const IvfpqType *type, const float *vector,
							 int dims);

/* Centroids */
extern float *IvfpqCentroids(Relation index, int dims, int *n);

#endif							/* IVFPQ_VECTOR_H */
