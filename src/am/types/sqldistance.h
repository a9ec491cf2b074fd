/*
 * sqldistance.h
 *		SQL's distance functions, and the conversion of vectors to values of
 *		any type of vectors (sqldistance.c).
 */
#ifndef IVFPQ_SQLDISTANCE_H
#define IVFPQ_SQLDISTANCE_H

#include "fmgr.h"

#include "engine/gv_engine.h"

typedef double (*IvfpqRealDistance) (const float *a, const float *b,
									 int32_t dims);

extern IvfpqRealDistance IvfpqRealDistanceOf(const FmgrInfo *function);
extern IvfpqRealDistance IvfpqDistanceOfMetric(GvMetric metric);

/* Converts vectors to values of one type. */
typedef struct IvfpqCast
{
	bool		is_real;		/* the type is real[], and `function` is
								 * unused */
	FmgrInfo	function;		/* casts real[] to the type */
} IvfpqCast;

extern void IvfpqCastBegin(IvfpqCast *cast, Oid type);
extern Datum IvfpqCastVector(IvfpqCast *cast, const float *vector, int dims);
extern Datum IvfpqCastReal(Oid type, const float *vector, int dims);

#endif							/* IVFPQ_SQLDISTANCE_H */
