/*
 * scanstats.h
 *		What scans of each index have done since the server's start
 *		(scanstats.c).
 */
#ifndef IVFPQ_SCANSTATS_H
#define IVFPQ_SCANSTATS_H

#include "datatype/timestamp.h"

#include "am/scan/scan.h"

/* Counters: columns of gpuvec_stat_indexes, in this order. */
typedef enum IvfpqCounter
{
	IVFPQ_COUNT_SCANS,
	IVFPQ_COUNT_BATCHES,
	IVFPQ_COUNT_LISTS,
	IVFPQ_COUNT_POSTINGS,
	IVFPQ_COUNT_MATCHED,
	IVFPQ_COUNT_RERANKED,
	IVFPQ_COUNT_RETURNED,
	IVFPQ_COUNT_OUT_OF_ORDER,
	IVFPQ_COUNT_FULL_PASSES,
	IVFPQ_NCOUNTERS
} IvfpqCounter;

typedef struct IvfpqCounts
{
	int64		counts[IVFPQ_NCOUNTERS];
	TimestampTz since;			/* 0 = no scan yet */
} IvfpqCounts;

/* For _PG_init, while the library is preloaded. */
extern void IvfpqCountersInit(void);

extern void IvfpqCountersOpen(void);
extern bool IvfpqCountersGet(Oid index, IvfpqCounts *counts);

#endif							/* IVFPQ_SCANSTATS_H */
