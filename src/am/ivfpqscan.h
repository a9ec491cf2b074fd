/*
 * ivfpqscan.h
 *		State of one scan, shared by ivfpqscan.c and ivfpqfinish.c.
 */
#ifndef IVFPQSCAN_H
#define IVFPQSCAN_H

#include "lib/pairingheap.h"
#include "utils/tuplesort.h"

#include "am/ivfpq.h"
#include "am/ivfpqtidset.h"

/* What a scan did, for gpuvec_last_scan. */
typedef struct IvfpqScanReport
{
	Oid			index;
	double		recall;			/* asked for */
	int			probes;			/* of the first batch */
	int			candidates;
	int			batches;
	int64		lists;			/* read */
	int64		copies;			/* scored */
	int64		refined;		/* compact copies of rows read */
	int64		measured;		/* rows fetched from the heap */
	int64		given;			/* rows given out */
	int64		late;			/* rows left out to keep the order */
	bool		finished;		/* with a pass over all rows */
	IvfpqRemoteReport remote;
} IvfpqScanReport;

typedef struct IvfpqScan
{
	Relation	index;
	MemoryContext context;		/* of the running scan; reset by rescan */
	IvfpqModel *model;
	IvfpqSearch search;			/* when trained */
	IvfpqRerank *rerank;		/* unless the query is NULL */
	IvfpqEffort effort;			/* of the batch under way */
	IvfpqScanReport report;		/* less what is counted elsewhere */
	bool		started;
	bool		null_query;		/* any order will do */
	bool		exhausted;		/* no further batch can bring rows */
	int			batch;			/* batches done */
	int64		given;			/* rows given out */
	int64		quota;			/* rows that may be given out so far */
	int64		late;			/* rows left out to keep the order */
	double		last_distance;	/* of the last row given out */
	const float *bound_query;	/* what bounds are of, or NULL for none */
	pairingheap *queue;			/* rows measured or bounded, not given out */
	tidset_hash *measured;		/* rows measured, bounded or found invisible */
	bool		finishing;		/* rows come from finish_sort */
	Tuplesortstate *finish_sort;	/* rows of the finishing pass, by distance */
	TupleTableSlot *finish_slot;
} IvfpqScan;

/* ivfpqscan.c */
extern bool IvfpqMeasure(IvfpqScan *state, uint64 id, double *distance);
extern bool IvfpqQueueTake(IvfpqScan *state, double *distance, uint64 *id,
						   bool *bounded);

/* ivfpqreport.c */
extern void IvfpqReportScan(const IvfpqScan *state);

/* ivfpqfinish.c */
extern void IvfpqFinishBegin(IvfpqScan *state);
extern bool IvfpqFinishNext(IvfpqScan *state, double *distance, uint64 *id);
extern void IvfpqFinishEnd(IvfpqScan *state);

#endif							/* IVFPQSCAN_H */
