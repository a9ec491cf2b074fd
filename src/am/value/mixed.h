/*
 * mixed.h
 *		Vectors as values of a type of pgvector (mixed.c).
 */
#ifndef IVFPQ_MIXED_H
#define IVFPQ_MIXED_H

#include "fmgr.h"

typedef struct IvfpqCast
{
	bool		is_real;		/* the type is real[], else */
	FmgrInfo	function;		/* casts real[] to it */
} IvfpqCast;

extern void IvfpqCastBegin(IvfpqCast *cast, Oid type);
extern Datum IvfpqCastVector(IvfpqCast *cast, const float *vector, int dims);
extern Datum IvfpqCastReal(Oid type, const float *vector, int dims);

#endif							/* IVFPQ_MIXED_H */
