/*
 * sqldistance.h
 *		Arrays of numbers as vectors (sqldistance.c).
 */
#ifndef IVFPQ_SQLDISTANCE_H
#define IVFPQ_SQLDISTANCE_H

#include "fmgr.h"
#include "utils/array.h"
#include "utils/palloc.h"

#include "page/page.h"

/*
 * real[] as a vector: one dimension, at least one element, at most
 * IVFPQ_MAX_DIMS, no NULL, all finite; else an error.  The result points into
 * the array, or for other element types into palloc'd memory.
 */
extern const float *IvfpqArrayFloats(ArrayType *array, int *dims);

/* ERROR unless all values [n] are finite. */
extern void IvfpqCheckFinite(const float *values, int n);

extern bool IvfpqIsRealVector(ArrayType *array, int dims);
extern const float *IvfpqRealFloats(ArrayType *array, int dims);

typedef double (*IvfpqRealDistance) (const float *a, const float *b,
									 int32_t dims);

extern IvfpqRealDistance IvfpqRealDistanceOf(const FmgrInfo *function);
extern ArrayType *IvfpqMakeReal(const float *vector, int dims);

/*
 * The last value that a function converted and what came of it, kept beside
 * its FmgrInfo, because a scan passes the same query thousands of times.
 */
typedef struct IvfpqMemo
{
	struct varlena *source;		/* NULL = holds nothing */
	void	   *result;
} IvfpqMemo;


/* ----
 * Vectors as values of a type of pgvector (sqldistance.c).
 */

typedef struct IvfpqCast
{
	bool		is_real;		/* the type is real[], else */
	FmgrInfo	function;		/* casts real[] to it */
} IvfpqCast;

extern void IvfpqCastBegin(IvfpqCast *cast, Oid type);
extern Datum IvfpqCastVector(IvfpqCast *cast, const float *vector, int dims);
extern Datum IvfpqCastReal(Oid type, const float *vector, int dims);

#endif							/* IVFPQ_SQLDISTANCE_H */
