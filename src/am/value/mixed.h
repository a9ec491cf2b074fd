/*
 * mixed.h
 *		Vectors as values of a type of pgvector (mixed.c).
 */
#ifndef IVFPQ_MIXED_H
#define IVFPQ_MIXED_H

extern Datum IvfpqCastReal(Oid type, const float *vector, int dims);

#endif							/* IVFPQ_MIXED_H */
