/*
 * limit.h
 *		How many rows a statement wants of its ordered scans (limit.c).
 */
#ifndef IVFPQ_LIMIT_H
#define IVFPQ_LIMIT_H

#include "access/skey.h"
#include "nodes/execnodes.h"

extern const LimitState *IvfpqLimitOf(ScanKey orderbys, double *planned);
extern double IvfpqLimitRows(const LimitState *limit);
extern void IvfpqInitLimit(void);

#endif							/* IVFPQ_LIMIT_H */
