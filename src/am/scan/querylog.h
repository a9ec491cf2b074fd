/*
 * querylog.h
 *		The query log: the last queries of each index.
 */
#ifndef IVFPQ_QUERYLOG_H
#define IVFPQ_QUERYLOG_H

#include "utils/relcache.h"

/* For _PG_init, while the library is preloaded. */
extern void IvfpqQueryLogInit(void);

/*
 * Keeps the query of a scan that begins, unless it is this library that asks,
 * to measure (gpuvec_recall).  Call only if ivfpq_keep_queries is on.
 */
extern void IvfpqLogQuery(Relation index, const float *query, int dims);

#endif							/* IVFPQ_QUERYLOG_H */
