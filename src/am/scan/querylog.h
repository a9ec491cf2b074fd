/*
 * querylog.h
 *		The last queries that an index was asked (querylog.c).
 */
#ifndef IVFPQ_QUERYLOG_H
#define IVFPQ_QUERYLOG_H

#include "utils/relcache.h"

/* For _PG_init, while the library is preloaded. */
extern void IvfpqQueryLogInit(void);

/* Call it only if ivfpq_keep_queries. */
extern void IvfpqLogQuery(Relation index, const float *query, int dims);

#endif							/* IVFPQ_QUERYLOG_H */
