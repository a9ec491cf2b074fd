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
	int64		counts[IVFPQ_NCOUNTERS];	/* indexed by IvfpqCount */
	TimestampTz since;			/* when counting began; 0 = no scan was
								 * counted yet */
} IvfpqCounts;

/* Requests shared memory.  Called by _PG_init if the library is preloaded. */
extern void IvfpqCountersInit(void);

/*
 * Opens the counters, if this server can have any.  A scan must not fail
 * because of its counters, so an error is only logged, unless it cancels the
 * statement.  Does nothing in parallel mode, where subtransactions are not
 * allowed.
 */
extern void IvfpqCountersOpen(void);

/*
 * Sets *counts to the counters of an index of this database.  Returns false if
 * nothing is counted.
 */
extern bool IvfpqCountersGet(Oid index, IvfpqCounts *counts);

#endif							/* IVFPQ_SCANSTATS_H */
