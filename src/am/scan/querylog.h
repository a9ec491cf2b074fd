/*
 * querylog.h
 *		The query log: the last queries of each index.
 */
#ifndef IVFPQ_QUERYLOG_H
#define IVFPQ_QUERYLOG_H

#include "utils/relcache.h"

#include "am/types/queries.h"
#include "page/format.h"

/* Time between two measurements of an index, in milliseconds. */
#define IVFPQ_CALIBRATE_INTERVAL	3600000
#ifdef GV_TEST_BUILD
extern int	ivfpq_calibrate_interval;
#else
#define ivfpq_calibrate_interval	IVFPQ_CALIBRATE_INTERVAL
#endif

/* Asks for a worker that calibrates an index.  Set when the library is loaded. */
extern void (*ivfpq_ask_for_calibration) (Relation index);

/* Requests shared memory.  Called by _PG_init if the library is preloaded. */
extern void IvfpqQueryLogInit(void);

/*
 * Adds a query [meta->dims] to the query log when its scan begins, unless this
 * library runs the scan itself to measure the recall (gpuvec_recall).
 * `recall` is the target recall of the scan; `filtered` says whether it has
 * conditions.
 */
extern void IvfpqLogQuery(Relation index, const IvfpqMetaData *meta,
						  const float *query, double recall, bool filtered);

/* Returns whether a scan has asked for a measurement of the index. */
extern bool IvfpqLogIsDue(Relation index);

/* Returns whether the log has enough queries to calibrate the index again. */
extern bool IvfpqLogSuffices(Relation index);

/*
 * Sets *queries to the queries in the log that differ, the newest first, and
 * *targets to the recall targets asked for since the last measurement: bit t
 * for target t, bit IVFPQ_TARGETS + t for the same with conditions.  The
 * measurement is no longer due.  Returns false if no queries are kept.
 */
extern bool IvfpqLogTake(Relation index, IvfpqQueries *queries,
						 uint32 *targets);

/*
 * Notes that the index was measured, so that its interval begins, after a
 * pause.
 */
extern void IvfpqLogDone(Relation index, int pause_ms);

#endif							/* IVFPQ_QUERYLOG_H */
