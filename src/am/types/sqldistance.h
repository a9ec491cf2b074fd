/*
 * sqldistance.h
 *		SQL's distance functions, and vectors as values of any type that has
 *		them (sqldistance.c).
 */
#ifndef IVFPQ_SQLDISTANCE_H
#define IVFPQ_SQLDISTANCE_H

#include "fmgr.h"

typedef double (*IvfpqRealDistance) (const float *a, const float *b,
									 int32_t dims);

extern IvfpqRealDistance IvfpqRealDistanceOf(const FmgrInfo *function);

/* Makes values of a type of vectors. */
typedef struct IvfpqCast
{
	bool		is_real;		/* the type is real[], else */
	FmgrInfo	function;		/* casts real[] to it */
} IvfpqCast;

extern void IvfpqCastBegin(IvfpqCast *cast, Oid type);
extern Datum IvfpqCastVector(IvfpqCast *cast, const float *vector, int dims);
extern Datum IvfpqCastReal(Oid type, const float *vector, int dims);

#endif							/* IVFPQ_SQLDISTANCE_H */
