/*
 * scanstats.h
 *		Counters of the scans of each index, since the server's start.
 */
#ifndef IVFPQ_SCANSTATS_H
#define IVFPQ_SCANSTATS_H

#include "datatype/timestamp.h"

#include "am/scan/scan.h"

typedef struct IvfpqCounts
{
	int64		counts[IVFPQ_NCOUNTERS];	/* by IvfpqCount */
	TimestampTz since;			/* 0 = no scan yet */
} IvfpqCounts;

/* For _PG_init, while the library is preloaded. */
extern void IvfpqCountersInit(void);

/*
 * Opens the counters, if there can be any.  A scan must not fail for this: an
 * error goes to the log, unless the statement was to end anyway.  Does nothing
 * in parallel mode, which has no subtransactions.
 */
extern void IvfpqCountersOpen(void);

/*
 * Sets *counts to those of an index of this database.  Returns false if scans
 * are not counted.
 */
extern bool IvfpqCountersGet(Oid index, IvfpqCounts *counts);

#endif							/* IVFPQ_SCANSTATS_H */
