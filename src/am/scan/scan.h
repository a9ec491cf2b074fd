/*
 * scan.h
 *		The ordered scan: its callbacks, and the state of one (ivfpqscan.c).
 */
#ifndef IVFPQ_SCAN_H
#define IVFPQ_SCAN_H

#include "access/amapi.h"
#include "access/skey.h"
#include "am/scan/scanfilter.h"
#include "lib/pairingheap.h"
#include "nodes/execnodes.h"
#include "nodes/pathnodes.h"
#include "utils/tuplesort.h"

#include "am/common/enginecall.h"
#include "am/search/params.h"
#include "am/search/rerank.h"
#include "am/search/search.h"

/* A scan reranks at least this many rows before it falls back on a pass. */
#define IVFPQ_MIN_RERANKED		20000

/* Of a table's rows no more than this fraction are reranked as candidates. */
#define IVFPQ_RERANKED_FRACTION	0.05

/* A batch may have this many candidates however little memory there is. */
#define IVFPQ_FEW_CANDIDATES	1000

/* A report on a scan, for gpuvec_last_scan. */
typedef struct IvfpqScanReport
{
	Oid			index;
	double		recall;			/* asked for */
	int			probes;			/* of the first batch */
	int			candidates;
	int			batches;
	int64		lists;			/* read */
	int64		postings;		/* read, */
	bool		asks_keys;		/* there are key quals: only postings that */
	int64		matched;		/* satisfy them are scored, `matched` */
	int64		refined;		/* refine records read */
	int64		reranked;		/* rows fetched from the heap */
	int64		returned;		/* rows returned */
	int64		out_of_order;	/* rows left out to keep the order */
	bool		full_pass;		/* with a pass over all rows */
	IvfpqFilterReport filter;
	IvfpqRemoteReport remote;
} IvfpqScanReport;

/* A row reranked, or bounded, and not returned yet. */
typedef struct IvfpqQueuedRow
{
	pairingheap_node node;
	double		distance;		/* or its lower bound, */
	double		most;			/* and its upper bound */
	uint64		id;
	bool		bounded;
} IvfpqQueuedRow;

/* A row that comes up; its distance is known where both are the same. */
typedef struct IvfpqNextRow
{
	uint64		id;
	double		least;
	double		most;
	bool		reranked;
} IvfpqNextRow;

/*
 * Rows returned, as far as the next ones need them (roworder.c): the last of
 * those that the snapshot sees, and those that were returned unfetched.
 */
typedef struct IvfpqReturned
{
	bool		has_last;
	IvfpqNextRow last;
	IvfpqNextRow *unseen;		/* [capacity] of which these are there: */
	int			nunseen;
	int			nolder;			/* the first of these, before `last` */
	int			capacity;
} IvfpqReturned;

typedef struct IvfpqQueue
{
	pairingheap *heap;
	IvfpqQueuedRow *next_row;	/* the next row's */
	uint64	   *prefetch;		/* [nprefetch] rows in the order of taking */
	int64		nprefetch;
	int64		ntaken;			/* of them are taken */
} IvfpqQueue;

/* Rows that tell how much is within a radius, of the batch's candidates. */
#define IVFPQ_WATCHED	8

typedef struct IvfpqWatched
{
	int			n;				/* 0 or IVFPQ_WATCHED */
	uint64		last[IVFPQ_WATCHED];	/* about the rank of its depth */
	uint64		nearer[IVFPQ_WATCHED];	/* about a fraction of that */
} IvfpqWatched;

typedef struct IvfpqScan
{
	Relation	index;
	MemoryContext context;		/* of the running scan; reset by rescan */
	MemoryContext batches;		/* in context: the queue and candidates */
	IvfpqModel *model;
	IvfpqSearch search;			/* when trained */
	IvfpqRerank *rerank;		/* unless the query is NULL */
	IvfpqSearchParams params;	/* of the batch under way */
	int			wanted;			/* its candidates, if lists have as many */
	IvfpqKeyGoal goal;			/* the same, with conditions on keys */
	IvfpqScanReport report;		/* less what is counted elsewhere */
	bool		has_keys;		/* of an earlier scan; they outlive it */
	bool		asks_keys;		/* conditions on keys are in `quals` */
	IvfpqKeys	keys;			/* then */
	IvfpqKeyQuals quals;
	double		key_selectivity;	/* of rows near the query, those that
									 * satisfy them, as far as is known; else
									 * 1 */
	bool		started;
	bool		null_query;		/* any order will do */
	bool		is_strict;		/* rows found out of order are left out */
	double		recall;			/* asked for */
	const LimitState *limit;	/* limits the scan's rows, or NULL */
	double		planned;		/* rows that the planner expects; 0 = none */
	double		rows_needed;	/* rows needed at first; 0 = not known */
	double		visible;		/* of the index's rows those that the snapshot
								 * sees, as far as statistics tell */
	int			pending_dims;	/* pending rows may have others; 0 = no */
	bool		warned_mismatched;	/* a warning of these was given */
	bool		exhausted;		/* no further batch can bring rows */
	int			batch;			/* batches done */
	bool		is_drained;		/* the last one has all rows of its lists, */
	int			drained;		/* the number of these lists */
	int64		returned;		/* rows returned */
	int64		taken;			/* rows that came up */
	int64		quota;			/* rows that may come up so far */
	int64		out_of_order;	/* rows left out to keep the order */
	int64		fetched;		/* candidates fetched */
	int64		invisible;		/* of these, those the snapshot does not see */
	IvfpqReturned rows_returned;
	const float *bound_query;	/* what bounds are of, or NULL for none */
	IvfpqQueue	queue;
	tidset_hash *reranked;		/* rows reranked, bounded or found invisible */
	IvfpqFilter *filter;		/* or NULL; outlives the running scan */
	double		depth;			/* depth of the batch: its nearest rows,
								 * whether they match or not, of those that
								 * satisfy the key quals */
	int64		matched;		/* of these, those that match, */
	int64		matched_near;	/* and the nearer of those */
	IvfpqWatched watched;		/* with a filter and a radius */
	double		within;			/* rows within that, as ranks tell; 0 = not
								 * known */
	int64		counted;		/* rows reranked, or bounded */
	int64		counted_within; /* of these, those within */
	tidset_hash *returned_tids; /* with a filter: where the rows returned are,
								 * which may be elsewhere than entries say */
	bool		in_full_pass;	/* rows come from full_pass_sort */
	Tuplesortstate *full_pass_sort; /* rows of the full pass, by distance */
	TupleTableSlot *full_pass_slot;
} IvfpqScan;

/* ivfpqscan.c */
extern IndexScanDesc ivfpqbeginscan(Relation index, int nkeys, int norderbys);
extern void ivfpqrescan(IndexScanDesc scan, ScanKey keys, int nkeys,
						ScanKey orderbys, int norderbys);
extern bool ivfpqgettuple(IndexScanDesc scan, ScanDirection dir);
extern void ivfpqendscan(IndexScanDesc scan);

/* batch.c */
extern bool IvfpqScanRerankRow(IvfpqScan *state, uint64 id,
							   double *distance);
extern int	IvfpqScanCandidates(IvfpqScan *state, int probes);
extern void IvfpqNextBatch(IvfpqScan *state);

/* cost.c */
extern void ivfpqcostestimate(PlannerInfo *root, IndexPath *path,
							  double loop_count, Cost *startup_cost,
							  Cost *total_cost, Selectivity *selectivity,
							  double *correlation, double *pages);
extern void IvfpqCostEstimate(PlannerInfo *root, IndexPath *path,
							  double loop_count, Cost *startup_cost,
							  Cost *total_cost, Selectivity *selectivity,
							  double *correlation, double *pages);
extern bool IvfpqWouldLeak(PlannerInfo *root, const IndexOptInfo *info,
						   bool by_full_pass);
extern bool IvfpqWantsNoVector(const List *clauses);
extern bool IvfpqReliesOnOrder(const PlannerInfo *root);
extern Cost IvfpqDepthCost(PlannerInfo *root, const IndexPath *path,
						   double recall, double depth, Cost per_row);

/* roworder.c */
extern void IvfpqQueueInit(IvfpqQueue *queue);
extern void IvfpqQueueReserve(IvfpqQueue *queue, int64 n);
extern void IvfpqQueueAdd(IvfpqQueue *queue, uint64 id, double distance);
extern void IvfpqQueueAddBounded(IvfpqQueue *queue, uint64 id,
								 const IvfpqRowBounds *bounds);
extern void IvfpqQueueReturn(IvfpqQueue *queue, IvfpqQueuedRow *row,
							 double distance);
extern void IvfpqQueuePrefetch(IvfpqQueue *queue, int64 n);
extern IvfpqQueuedRow *IvfpqQueueTake(IvfpqQueue *queue);
extern double IvfpqQueueLeast(const IvfpqQueue *queue);

/* roworder.c */
extern void IvfpqReturnedAdd(IvfpqScan *state, const IvfpqNextRow *row);
extern bool IvfpqReturnedCheck(IvfpqScan *state);
extern bool IvfpqReturnedIsOutOfOrder(IvfpqScan *state, IvfpqNextRow *row);

/* scanstats.c */
extern void IvfpqScanReportOf(const IvfpqScan *state, IvfpqScanReport *report);
extern bool IvfpqSeesAllRows(Oid index);
extern void IvfpqReportScan(const IvfpqScan *state);
extern void IvfpqReportBulk(const IvfpqScanReport *report, int64 searches,
							bool more);

/* depth.c */
extern bool IvfpqScanBeginKeys(IndexScanDesc scan);
extern bool IvfpqScanAsksRows(const IvfpqScan *state);
extern void IvfpqScanAimKeys(IvfpqScan *state, int most_probes, bool is_last);

/* depth.c */
extern void IvfpqDepthNext(IvfpqScan *state);
extern bool IvfpqDepthNeedsFullPass(const IvfpqScan *state);
extern bool IvfpqDepthManyInvisible(const IvfpqScan *state);
extern IvfpqRest IvfpqDepthRest(const IvfpqScan *state, bool must);
extern int64 IvfpqDepthQuota(IvfpqScan *state, const uint64 *ids,
							 int64 count);

/* depth.c */
extern bool IvfpqIsOutside(const IvfpqScan *state, double distance);
extern bool IvfpqIsBoundOutside(const IvfpqScan *state, double bound);
extern void IvfpqRadiusCount(IvfpqScan *state, double distance);
extern void IvfpqRadiusWatch(IvfpqScan *state, const uint64 *ids, int64 n);
extern bool IvfpqRadiusIsRead(IvfpqScan *state);

/* batch.c */
extern bool IvfpqFilterFetch(IndexScanDesc scan, uint64 id);

/* batch.c */
extern bool IvfpqBatchFits(const IvfpqScan *state, int probes,
						   int64 candidates);
extern void IvfpqFullPassBegin(IvfpqScan *state);
extern bool IvfpqFullPassNext(IvfpqScan *state, IvfpqNextRow *row);
extern void IvfpqFullPassEnd(IvfpqScan *state);

/* ----
 * How many rows a statement wants of its ordered scans (depth.c).
 */

extern const LimitState *IvfpqLimitOf(ScanKey orderbys, double *planned);
extern double IvfpqLimitRows(const LimitState *limit);
extern void IvfpqInitLimit(void);

#endif							/* IVFPQ_SCAN_H */
