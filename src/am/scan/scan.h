/*
 * scan.h
 *		The state of an ordered scan, and the functions that its files call in
 *		each other.
 *
 * Calls go one way: ivfpqscan.c (callbacks, the next row) -> batch.c (the next
 * batch, or the pass over the rest) -> roworder.c (rows that wait, and rows
 * that were returned) -> depth.c (how deep to search, and when to read
 * everything) -> am/search.
 */
#ifndef IVFPQ_SCAN_H
#define IVFPQ_SCAN_H

#include "access/amapi.h"
#include "lib/pairingheap.h"
#include "nodes/execnodes.h"

#include "am/common/enginecall.h"
#include "am/common/util.h"
#include "am/scan/scanfilter.h"
#include "am/search/params.h"
#include "am/search/rerank.h"
#include "am/search/search.h"

/*
 * Up to this many candidates, or pending rows, are reranked however small the
 * table is.
 */
#define IVFPQ_MIN_RERANKED		20000

/*
 * A batch that has more candidates has at most this fraction of the table's
 * rows; otherwise a full pass is better (depth.c).
 */
#define IVFPQ_RERANKED_FRACTION	0.05

/* A batch may have this many candidates however little memory there is. */
#define IVFPQ_FEW_CANDIDATES	1000

/* A row that waits in the queue: reranked, or known by bounds only. */
typedef struct IvfpqQueuedRow
{
	pairingheap_node node;
	/* bounds of its distance, equal after reranking */
	double		lower;
	double		upper;
	uint64		id;
	bool		bounded;		/* not reranked yet */
} IvfpqQueuedRow;

/* A row that leaves the queue, or the sort of the full pass. */
typedef struct IvfpqNextRow
{
	uint64		id;
	double		lower;
	double		upper;
	bool		reranked;
} IvfpqNextRow;

/* The query, and the order of the rows returned. */
typedef struct IvfpqScanQuery
{
	bool		is_null;		/* and so are all distances: any order will do */
	bool		strict;			/* rows found out of order are left out */
	double		recall;			/* target */
	const float *bound_query;	/* [dims] the transformed query, to bound
								 * distances; NULL: bounds are of no use */
	int			pending_dims;	/* that pending rows must have; 0 = any */
	bool	   *warned_mismatched;	/* whether a warning of others was given */
} IvfpqScanQuery;

/* Key quals. */
typedef struct IvfpqScanKeys
{
	bool		any;
	double		selectivity;	/* near the query, as far as known; else 1 */
	IvfpqKeys	columns;
	IvfpqKeyQuals quals;
	IvfpqKeyGoal goal;			/* of the batch under way */
} IvfpqScanKeys;

/* Rows reranked about a rank, to see whether the radius reaches that far. */
#define IVFPQ_PROBED_RANKS	8

/* How far a radius reaches (depth.c). */
typedef struct IvfpqScanRadius
{
	int			nprobed;		/* 0 or IVFPQ_PROBED_RANKS */
	uint64		last[IVFPQ_PROBED_RANKS];	/* up to the rank of the depth */
	uint64		nearer[IVFPQ_PROBED_RANKS]; /* about a fraction of that rank */
	double		est_within;		/* rows within, estimated from these; 0 = not
								 * known */
	int64		counted;		/* rows reranked, or bounded */
	int64		counted_within; /* of these, those within */
} IvfpqScanRadius;

/* How deep batches go. */
typedef struct IvfpqScanDepth
{
	double		rows_needed;	/* by LIMIT or the planner; 0 = not known */
	double		planned_rows;	/* the planner's estimate; 0 = none */
	double		visible;		/* fraction of the index's rows that the
								 * snapshot sees, by statistics */
	int			batches;		/* done */
	IvfpqSearchParams params;	/* of the batch under way */
	int			wanted;			/* its candidates before they are limited to
								 * the postings of its lists */
	double		rows;			/* the batch's depth: its nearest rows,
								 * whether they match or not, of those that
								 * satisfy the key quals */
	int64		matched;		/* rows within the depth that match */
	int64		matched_near;	/* of these, those in the nearer half of the
								 * ranks asked of calibration */
	int			ndrained;		/* lists of the batch, if it found all their
								 * rows; else 0 */
	IvfpqScanRadius radius;
} IvfpqScanDepth;

/* Rows, from candidates until they are returned (roworder.c). */
typedef struct IvfpqScanRows
{
	bool		counts_matching;	/* the quota counts rows that match, which
									 * only the rows tell */
	bool		needs_distance; /* no row is returned by its bounds alone */
	tidset_hash *seen;			/* rows reranked, bounded or invisible */
	int64		fetched;		/* candidates fetched */
	int64		invisible;		/* of these, those the snapshot does not see */
	int64		rejected;		/* rows that failed a qual before their
								 * distance was computed */

	/* the queue: */
	pairingheap *queue;
	IvfpqQueuedRow *next_slot;	/* memory of the batch's rows, still free */
	uint64	   *prefetch;		/* [nprefetch] the batch's rows in the order
								 * in which they leave the queue */
	int64		nprefetch;
	int64		nprefetched;	/* of these, those that have left it */
	int64		quota;			/* rows that may leave the queue so far */
	int64		popped;			/* rows that have left it */

	/* rows returned, as far as the order of later ones depends on them: */
	int64		returned;
	int64		out_of_order;	/* rows left out to keep the order */
	bool		has_last;
	IvfpqNextRow last;			/* the last one known to be visible */
	IvfpqNextRow *unchecked;	/* [capacity] returned without being fetched */
	int			nunchecked;
	int			nbefore_last;	/* of these, those returned before `last` */
	int			capacity;
	tidset_hash *returned_tids; /* with a filter: where the rows returned are,
								 * which may be another tuple of the HOT chain
								 * than the posting names */
} IvfpqScanRows;

/* The pass over all remaining rows (batch.c). */
typedef struct IvfpqFullPass
{
	bool		active;			/* rows come from `sort` */
	IvfpqRestSource source;		/* the sort's; IVFPQ_REST_NONE before */
	IvfpqSort	sort;			/* by distance, then by TID */
} IvfpqFullPass;

/* A scan from its first row to its last; all zero before. */
typedef struct IvfpqScanRun
{
	Relation	index;			/* NULL before the first row */
	const IvfpqScanFilter *filter;
	MemoryContext context;		/* of all that follows */
	MemoryContext batches;		/* in context: queue and candidates */
	IvfpqModel *model;
	bool		exhausted;		/* no further batch can bring rows */
	IvfpqScanQuery query;
	IvfpqScanKeys keys;
	IvfpqSearch search;			/* when trained */
	IvfpqRerank *rerank;		/* NULL if no row is fetched */
	IvfpqScanDepth depth;
	IvfpqScanRows rows;
	IvfpqFullPass pass;
	IvfpqScanReport report;		/* except the counts that other fields have */
} IvfpqScanRun;

/* scan->opaque */
typedef struct IvfpqScan
{
	Relation	index;
	MemoryContext context;		/* of the run; each rescan resets it */
	bool		keys_set;		/* scan keys hold functions of an earlier
								 * rescan */
	const LimitState *limit;	/* limits the scan's rows, or NULL */
	double		planned_rows;	/* the planner's estimate; 0 = none */
	bool		warned_mismatched;
	const IvfpqScanFilter *filter;	/* never NULL */
	IvfpqScanRun run;
	IvfpqScanReport last_report;	/* of the run before */
} IvfpqScan;

/* ivfpqscan.c */
extern IndexScanDesc ivfpqbeginscan(Relation index, int nkeys, int norderbys);
extern void ivfpqrescan(IndexScanDesc desc, ScanKey keys, int nkeys,
						ScanKey orderbys, int norderbys);
extern bool ivfpqgettuple(IndexScanDesc desc, ScanDirection dir);
extern void ivfpqendscan(IndexScanDesc desc);
extern void IvfpqInitLimit(void);

/* batch.c */
extern void IvfpqScanNextBatch(IvfpqScanRun *run);
extern void IvfpqFullPassBegin(IvfpqScanRun *run);
extern bool IvfpqFullPassNext(IvfpqScanRun *run, IvfpqNextRow *row);
extern bool IvfpqFilterFetch(IvfpqScanRun *run, IndexScanDesc desc, uint64 id);

/* roworder.c */
typedef void (*IvfpqScanSink) (IvfpqScanRun *run, uint64 id, double distance);

extern void IvfpqRowsInit(IvfpqScanRun *run);
extern void IvfpqRowsReserve(IvfpqScanRows *rows, int64 n);
extern void IvfpqRowsAdd(IvfpqScanRows *rows, uint64 id, double lower,
						 double upper, bool bounded);
extern void IvfpqRowsPrefetch(IvfpqScanRows *rows, int64 n);
extern IvfpqQueuedRow *IvfpqRowsPop(IvfpqScanRows *rows);
extern void IvfpqRowsRerank(IvfpqScanRun *run, uint64 *ids, int64 count,
							IvfpqScanSink sink);
extern bool IvfpqRowsNext(IvfpqScanRun *run, IvfpqNextRow *next);
extern bool IvfpqRowsQuotaIsUsed(IvfpqScanRun *run);
extern bool IvfpqRowIsOutOfOrder(IvfpqScanRun *run, IvfpqNextRow *row);
extern void IvfpqRowReturned(IvfpqScanRun *run, const IvfpqNextRow *row);

/* depth.c */
extern void IvfpqDepthNext(IvfpqScanRun *run);
extern bool IvfpqDepthLimit(IvfpqScanRun *run, bool *last);
extern bool IvfpqDepthFits(const IvfpqScanRun *run, int probes,
						   int64 candidates);
extern bool IvfpqDepthNeedsFullPass(const IvfpqScanRun *run);
extern IvfpqRestSource IvfpqDepthRest(const IvfpqScanRun *run, bool must);
extern int64 IvfpqDepthQuota(IvfpqScanRun *run, const uint64 *ids,
							 int64 count);
extern void IvfpqRadiusCount(IvfpqScanRun *run, double distance);
extern void IvfpqRadiusProbeRanks(IvfpqScanRun *run, const uint64 *ids,
								  int64 n);
extern bool IvfpqRadiusIsRead(IvfpqScanRun *run);

/* depth.c: for gpuvec_search, too */
extern bool IvfpqDepthIsTooLarge(Relation index, const IvfpqMetaData *meta,
								 int candidates);
extern bool IvfpqDepthLimitProbes(IvfpqSearchParams *params, Relation index,
								  const IvfpqMetaData *meta, double recall,
								  bool is_rest, int ndrained, int *most);
extern double IvfpqDepthVisibleQuota(int64 quota, int64 candidates,
									 int64 fetched, int64 invisible);

/* scanstats.c */
extern void IvfpqScanReportOf(const IvfpqScan *scan,
							  IvfpqScanReport *report);
extern bool IvfpqSeesAllRows(Oid index);
extern void IvfpqReportScan(const IvfpqScanReport *report);
extern void IvfpqReportBulk(const IvfpqScanReport *report, bool more);

#endif							/* IVFPQ_SCAN_H */
