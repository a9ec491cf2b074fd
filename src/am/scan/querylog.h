/*
 * querylog.h
 *		The query log: the last queries of each index.
 */
#ifndef IVFPQ_QUERYLOG_H
#define IVFPQ_QUERYLOG_H

#include "utils/relcache.h"

/* Requests shared memory.  Called by _PG_init if the library is preloaded. */
extern void IvfpqQueryLogInit(void);

/*
 * Adds a query to the query log when its scan begins, unless this library runs
 * the scan itself to measure the recall (gpuvec_recall).  Must be called only
 * if ivfpq_keep_queries is on.
 */
extern void IvfpqLogQuery(Relation index, const float *query, int dims);

#endif							/* IVFPQ_QUERYLOG_H */
