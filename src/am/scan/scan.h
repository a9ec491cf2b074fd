/*
 * scan.h
 *		The state of an ordered scan, and the functions that the files of a
 *		scan share.
 *
 * Calls go one way: ivfpqscan.c (the callbacks, and the next row) -> batch.c
 * (the next batch, or the full pass) -> roworder.c (the rows in the queue or
 * the sort, and the rows returned) -> depth.c (how deep to search, and when to
 * read everything) -> am/search.
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

/* A scan may always rerank this many candidates or pending rows. */
#define IVFPQ_MIN_RERANKED		20000

/*
 * A batch may have more than IVFPQ_MIN_RERANKED candidates only if they are at
 * most this fraction of the table's rows.  Otherwise a full pass is better
 * (depth.c).
 */
#define IVFPQ_RERANKED_FRACTION	0.05

/* A batch of at most this many candidates needs no check of memory. */
#define IVFPQ_FEW_CANDIDATES	1000

/* A row in the queue.  If it is not reranked yet, it has only bounds. */
typedef struct IvfpqQueuedRow
{
	pairingheap_node node;
	/* bounds of the distance; both equal the distance after reranking */
	double		lower;
	double		upper;
	uint64		id;
	bool		bounded;		/* not reranked yet: only bounds are known */
} IvfpqQueuedRow;

/* A row of a batch that is only bounded, in the sorted part of the queue. */
typedef struct IvfpqSortedRow
{
	double		lower;
	double		upper;
	uint64		id;
} IvfpqSortedRow;

/* A row that was taken from the queue, or from the sort of the full pass. */
typedef struct IvfpqNextRow
{
	uint64		id;
	double		lower;
	double		upper;
	bool		reranked;
} IvfpqNextRow;

/* The query, and the order in which rows must be returned. */
typedef struct IvfpqScanQuery
{
	bool		is_null;		/* the query and all distances are NULL, so
								 * rows may come in any order */
	bool		strict;			/* leave out rows found out of order */
	double		recall;			/* target recall */
	const float *bound_query;	/* [dims] the transformed query, to compute
								 * bounds of distances; NULL if the bounds
								 * might be wrong */
	bool		is_exact;		/* the operator returns gv_set_distance */
	int			pending_dims;	/* dimensions that pending rows must have; 0 =
								 * any */
	bool	   *warned_mismatched;	/* whether a warning about rows of other
									 * dimensions was given */
} IvfpqScanQuery;

/* The key quals of a scan, and how many rows satisfy them. */
typedef struct IvfpqScanKeys
{
	bool		any;
	double		selectivity;	/* fraction of the rows near the query that
								 * satisfy the key quals; 1 if not known */
	IvfpqKeys	columns;
	IvfpqKeyQuals quals;
	IvfpqKeyGoal goal;			/* of the current batch */
	IvfpqKeyGoal aim;			/* the same, before the batch's search */
} IvfpqScanKeys;

/*
 * Number of rows around a rank that are reranked to see whether rows of that
 * rank are within the radius.
 */
#define IVFPQ_PROBED_RANKS	8

/*
 * Counts of rows (roworder.c) from which depth.c estimates how many rows are
 * within the radius.
 */
typedef struct IvfpqScanRadius
{
	int			nprobed;		/* number of ids in `last` and in `nearer`: 0
								 * or IVFPQ_PROBED_RANKS */
	uint64		last[IVFPQ_PROBED_RANKS];	/* ids of the last candidates
											 * within the depth */
	uint64		nearer[IVFPQ_PROBED_RANKS]; /* ids of the candidates around
											 * rank depth / NEARER_PART */
	double		est_within;		/* number of rows within the radius, estimated
								 * from last and nearer; 0 = not known */
	int64		counted;		/* rows that were reranked or bounded */
	int64		counted_within; /* counted rows that are within the radius */
} IvfpqScanRadius;

/* The depth of the batches, and the result of the current batch. */
typedef struct IvfpqScanDepth
{
	double		rows_needed;	/* rows that the statement needs, according to
								 * LIMIT or the planner; 0 = not known */
	double		planned_rows;	/* the planner's estimate of the rows that the
								 * scan returns; 0 = none */
	double		visible;		/* fraction of the index's rows that the
								 * snapshot sees, estimated from statistics */
	int			batches;		/* number of batches done */
	IvfpqSearchParams params;	/* search parameters of the current batch */
	bool		is_last;		/* the batch searches all lists that may be
								 * probed */
	int			wanted;			/* candidates of the batch, not yet limited to
								 * the number of postings in its lists */
	double		rows;			/* depth of the batch: the number of nearest
								 * rows that it covers, including rows that
								 * the filter rejects, but not rows that fail
								 * the key quals */
	int64		matched;		/* rows within the depth that match */
	int64		matched_near;	/* matching rows in the first half of the
								 * calibrated ranks (depth.c) */
	int			ndrained;		/* number of lists probed, if all their rows
								 * were candidates; else 0 */
	IvfpqScanRadius radius;
} IvfpqScanDepth;

/* The rows of a scan, from candidates to rows returned (roworder.c). */
typedef struct IvfpqScanRows
{
	bool		counts_matching;	/* the quota counts only rows that match,
									 * and a row must be fetched to see
									 * whether it matches */
	bool		needs_distance; /* rows are always reranked before they are
								 * returned */
	bool		bounded;		/* the last batch has only bounded most of its
								 * rows, and so has not seen whether they are
								 * visible */
	tidset_hash *seen;			/* rows that were reranked, bounded or found
								 * invisible */
	int64		fetched;		/* candidates fetched */
	int64		invisible;		/* fetched candidates that the snapshot does
								 * not see */
	int64		rejected;		/* rows that failed a qual before their
								 * distance was computed */

	/*
	 * the queue: a heap and, after a batch whose rows were bounded by
	 * distances, an array.  A row of the array is in `seen` once it has left
	 * the array.
	 */
	pairingheap *queue;
	IvfpqSortedRow *sorted;		/* [nsorted] by lower bound and TID */
	int64		nsorted;
	int64		next_sorted;	/* number of rows that have left `sorted` */
	IvfpqQueuedRow *next_slot;	/* next free element of the memory reserved
								 * for the rows of the batch */
	uint64	   *prefetch;		/* [nprefetch] ids of the batch's rows, in the
								 * order in which they will leave the queue */
	int64		nprefetch;
	int64		nprefetched;	/* number of elements of `prefetch` whose rows
								 * have left the queue */
	int64		nomitted;		/* candidates that gpuvecd's answer left out;
								 * they are no nearer than `omitted_lower`, so
								 * rows farther than that stay in the queue */
	double		omitted_lower;
	int64		quota;			/* rows that may leave the queue by the end of
								 * the batch, including those of earlier
								 * batches */
	int64		popped;			/* rows that have left the queue */

	/* the rows returned, to check the order of later rows: */
	int64		returned;
	int64		out_of_order;	/* rows left out to keep the order */
	bool		has_last;
	IvfpqNextRow last;			/* the last row returned that is known to be
								 * visible */
	IvfpqNextRow *unchecked;	/* [capacity] rows that were returned without
								 * being fetched, and may be invisible */
	int			nunchecked;
	int			nbefore_last;	/* number of rows in `unchecked` that were
								 * returned before `last` */
	int			capacity;
	tidset_hash *returned_tids; /* TIDs of the tuples returned by a filtered
								 * scan, because a posting may hold the TID of
								 * another tuple of the same HOT chain */
} IvfpqScanRows;

/* The full pass over all remaining rows (batch.c). */
typedef struct IvfpqFullPass
{
	bool		active;			/* the pass has begun, and rows come from
								 * `sort` */
	IvfpqRestSource source;		/* where the sort's rows come from;
								 * IVFPQ_REST_NONE before the pass begins */
	IvfpqSort	sort;			/* sorted by distance, then by TID */
} IvfpqFullPass;

/*
 * The state of a scan from its first row to its last.  All fields are zero
 * before the first row is requested.
 */
typedef struct IvfpqScanRun
{
	Relation	index;			/* NULL until the first row is requested */
	const IvfpqScanFilter *filter;
	bool		is_filtered;	/* the filter is not ivfpq_no_filter */
	MemoryContext context;		/* memory of the fields below */
	MemoryContext batches;		/* child of context, for the queue and the
								 * candidates */
	IvfpqModel *model;
	bool		exhausted;		/* another batch would find no more rows */
	IvfpqScanQuery query;
	IvfpqScanKeys keys;
	IvfpqSearch search;			/* initialized only if the index is trained */
	IvfpqRerank *rerank;		/* NULL if no row has to be fetched */
	IvfpqScanDepth depth;
	IvfpqScanRows rows;
	IvfpqFullPass pass;
	IvfpqScanReport report;		/* work done; IvfpqScanReportOf adds the
								 * counts that are kept in other fields */
} IvfpqScanRun;

/* scan->opaque */
typedef struct IvfpqScan
{
	Relation	index;
	MemoryContext context;		/* memory of the run; each rescan resets it */
	bool		keys_set;		/* the descriptor's scan keys hold functions
								 * from an earlier rescan */
	const LimitState *limit;	/* the Limit node that limits the scan's rows,
								 * or NULL */
	double		planned_rows;	/* the planner's estimate of the rows that the
								 * scan returns; 0 = none */
	bool		warned_mismatched;
	const IvfpqScanFilter *filter;	/* never NULL */
	IvfpqScanRun run;
	IvfpqScanReport last_report;	/* report of the run that the last rescan
									 * ended */
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

/* roworder.c */
extern void IvfpqRowsInit(IvfpqScanRun *run);
extern void IvfpqRowsReserve(IvfpqScanRows *rows, int64 n);
extern void IvfpqRowsAdd(IvfpqScanRun *run, uint64 id, double lower,
						 double upper, bool bounded);
extern void IvfpqRowsAddSorted(IvfpqScanRun *run, IvfpqSortedRow *rows,
							   int64 n);
extern void IvfpqRowsUnsort(IvfpqScanRun *run);
extern void IvfpqRowsSort(IvfpqScanRun *run, uint64 id, double distance);
extern void IvfpqRowsPrefetch(IvfpqScanRows *rows);
extern void IvfpqRowsPrefetchQueued(IvfpqScanRows *rows, int64 n);
extern IvfpqQueuedRow *IvfpqRowsPop(IvfpqScanRun *run);
extern void IvfpqRowsRerank(IvfpqScanRun *run, uint64 *ids, int64 count);
extern bool IvfpqRowsNext(IvfpqScanRun *run, IvfpqNextRow *next);
extern bool IvfpqRowsQuotaIsUsed(IvfpqScanRun *run);
extern bool IvfpqRowIsOutOfOrder(IvfpqScanRun *run, IvfpqNextRow *row);
extern void IvfpqRowReturned(IvfpqScanRun *run, const IvfpqNextRow *row);

/* depth.c */
extern void IvfpqDepthNext(IvfpqScanRun *run);
extern bool IvfpqDepthLimit(IvfpqScanRun *run);
extern bool IvfpqDepthFits(const IvfpqScanRun *run, int probes,
						   int64 candidates);
extern bool IvfpqDepthNeedsFullPass(const IvfpqScanRun *run);
extern IvfpqRestSource IvfpqDepthRest(const IvfpqScanRun *run, bool must);
extern int64 IvfpqDepthQuota(IvfpqScanRun *run, const uint64 *ids,
							 int64 count);
extern bool IvfpqRadiusIsRead(IvfpqScanRun *run);

/* depth.c: used by gpuvec_search, too */
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
extern void IvfpqReportScan(const IvfpqScanReport *report, bool more);

#endif							/* IVFPQ_SCAN_H */
