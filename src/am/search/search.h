/*
 * search.h
 *		From a query to candidates.
 *
 * ivfpqsearch.c asks gpuvecd (remote.c) or has the session's engine scan lists
 * (candidates.c), which nearestlists.c finds.  refinerecord.c bounds the rows
 * of candidates.
 */
#ifndef IVFPQ_SEARCH_H
#define IVFPQ_SEARCH_H

#include "am/common/model.h"
#include "engine/gv_engine.h"
#include "page/listread.h"
#include "page/page.h"
#include "page/refinepage.h"

/*
 * nearestlists.c
 */

/* A transformed vector, a query or a row, whose nearest lists are needed. */
typedef struct IvfpqQuery
{
	GvModel		gv;				/* the index's; of rows for L2 in any case */
	float	   *vector;			/* [dims] */
	float	   *table;			/* gv_table's, once IvfpqQueryTable made it */
	bool		tabled;
	bool		deep;			/* all lists are compared: more than
								 * IVFPQ_PARENTS_ROWS rows are needed */
	float	   *list_scores;	/* [nlists] of those compared by centroids,
								 * else NaN; NULL: not kept */
} IvfpqQuery;

extern void IvfpqQueryInit(IvfpqQuery *query, const IvfpqModel *model,
						   GvMetric metric);
extern void IvfpqQuerySet(IvfpqQuery *query, const float *vector);
extern const float *IvfpqQueryTable(IvfpqQuery *query);
extern void IvfpqQueryKeepScores(IvfpqQuery *query, int nlists);
extern void IvfpqQueryDropScores(IvfpqQuery *query);

extern int	IvfpqListsToCompare(const IvfpqMetaData *meta, int probes,
								bool deep);
extern int	IvfpqCentroidsToCompare(const IvfpqMetaData *meta, int probes,
									bool deep);
extern void IvfpqSortParents(Relation index, const IvfpqModel *model,
							 const GvModel *gv, const float *vector,
							 GvTopK *parents);
extern void IvfpqNearestLists(Relation index, const IvfpqModel *model,
							  IvfpqQuery *query,
							  const float *const *vectors, int n,
							  GvTopK *lists);

/* builds: the codes of centroids */
extern void IvfpqCodedWrite(Relation index, const IvfpqMetaData *meta,
							const GvModel *model, const GvTree *tree,
							bool shared);

/*
 * Searches.  IvfpqRemote is remote.c's part of one.
 */

/*
 * Counts of the work of scans.  All are sums, and what is counted for several
 * scans is the sum of their counts.
 */
typedef enum IvfpqCount
{
	/* columns of gpuvec_stat_indexes, in this order */
	IVFPQ_COUNT_SCANS,
	IVFPQ_COUNT_BATCHES,
	IVFPQ_COUNT_LISTS,			/* read */
	IVFPQ_COUNT_POSTINGS,		/* read */
	IVFPQ_COUNT_MATCHED,		/* postings that satisfy the key quals; only
								 * these are scored */
	IVFPQ_COUNT_RERANKED,		/* rows fetched from the heap */
	IVFPQ_COUNT_RETURNED,		/* rows returned */
	IVFPQ_COUNT_OUT_OF_ORDER,	/* rows left out to keep the order */
	IVFPQ_COUNT_FULL_PASSES,	/* scans that ended in a pass over the whole
								 * table */
	IVFPQ_NCOUNTERS,

	IVFPQ_COUNT_REFINED = IVFPQ_NCOUNTERS,	/* refine records read */
	IVFPQ_COUNT_STALE_LISTS,	/* read again: the mirror's were stale */
	IVFPQ_COUNT_TAIL_POSTINGS,	/* scored here: the mirror lacked them */

	/* these tell nothing about rows */
	IVFPQ_COUNT_QUEUED_US,		/* waiting in gpuvecd */
	IVFPQ_COUNT_ENGINE_US,
	IVFPQ_COUNT_TRIP_US,		/* from question to answer */
	IVFPQ_NCOUNTS
} IvfpqCount;

/* The work of a scan, for gpuvec_last_scan. */
typedef struct IvfpqScanReport
{
	Oid			index;
	double		recall;			/* target */
	int			probes;			/* of the first batch */
	int			candidates;
	bool		asks_keys;		/* there are key quals */
	int			source;			/* IvfpqRestSource of its last rows */
	int64		counts[IVFPQ_NCOUNTS];

	/* the part of gpuvecd */
	char		engine[16];		/* that answered so far; "" = none yet */
	const char *fallback;		/* why gpuvecd last did not, or NULL */
	bool		asked;			/* at least once, */
	bool		answered;		/* and it answered */
	uint32		batch_size;		/* searches answered together, the last time */
} IvfpqScanReport;

/* A refine record, as an answer describes it. */
typedef struct IvfpqKnownRecord
{
	uint64		address;
	uint64		tid;			/* of the row */
	float		bound;			/* the engine's */
	bool		is_known;
} IvfpqKnownRecord;

typedef struct IvfpqRemote
{
	IvfpqKnownRecord *known;	/* [nknown] of the last search's candidates,
								 * in their order, and of other postings */
	int			nknown;
	int			known_capacity;
	IvfpqDirEntry *entries;		/* [capacity] of the probed lists, as now */
	uint8	   *list_status;	/* [capacity] of the mirror's states of these;
								 * a brief answer has neither */
	int			capacity;
	uint32		nearest;		/* list, of the last answer */
} IvfpqRemote;

/*
 * Postings of a list that was read, and those of them that satisfy the key
 * quals.
 */
typedef struct IvfpqListCount
{
	int64		postings;
	int64		matched;
} IvfpqListCount;

/*
 * Sums of these over lists that were read, and the same where the nearest lists
 * count most (ivfpqsearch.c).
 */
typedef struct IvfpqListSums
{
	double		postings;
	double		matched;
	double		weighted_postings;
	double		weighted_matched;
} IvfpqListSums;

/*
 * The rank of matching postings in the sample: of its postings, `nearer` are
 * no farther than the nearest `matched` ones that satisfy the key quals.
 */
typedef struct IvfpqNearCount
{
	double		matched;		/* 0: nothing is known */
	double		nearer;
	double		variance;		/* of that, by clumps */
} IvfpqNearCount;

/*
 * The best of all postings, whether they satisfy the key quals or not, in a
 * sample of the blocks read (ivfpqsearch.c).
 */
typedef struct IvfpqBlockSample
{
	bool		is_open;
	GvScan		scan;
	GvTopK		best;			/* ids: GV_BLOCK times the number of the
								 * block, and which of its postings */
	uint32		nblocks;		/* taken into the sample */
	void	   *memory;			/* of the scan's scratch */
} IvfpqBlockSample;

typedef struct IvfpqSearch
{
	Relation	index;
	const IvfpqModel *model;
	bool		addresses;		/* ids of candidates are addresses of refine
								 * records, else TIDs */
	IvfpqScanReport *report;	/* gets the part of gpuvecd; not needed by
								 * those who never ask it */

	/* the query, and its nearest lists */
	IvfpqQuery	query;
	GvTopK		lists;

	/* found in these */
	GvTopK		candidates;		/* best postings, then best rows */
	bool		found_all;		/* fewer were found than could be kept */

	/* reading and scanning lists */
	IvfpqListReader reader;
	GvScan		scan;
	void	   *scan_memory;
	Size		scan_bytes;		/* of the scan's scratch */

	/* work done for the query so far */
	int64		lists_read;
	int64		postings_read;
	int64		matched;		/* postings read that satisfy the condition */

	/* with key quals */
	const GvCondition *condition;	/* NULL: there are none */
	IvfpqListCount *counts;		/* [counts_capacity] of lists that were read
								 * here, or that a full answer names */
	int			counts_capacity;
	int			ncounts;		/* lists that were read */
	IvfpqBlockSample sample;
	IvfpqListSums sums;			/* of lists that gpuvecd read, */
	IvfpqNearCount near_count;	/* and of its sample */

	IvfpqRemote remote;
} IvfpqSearch;

/*
 * candidates.c
 */
extern void IvfpqSearchInit(IvfpqSearch *search, Relation index,
							const IvfpqModel *model);
extern void IvfpqSearchCondition(IvfpqSearch *search,
								 const GvCondition *condition);
extern void IvfpqSearchQuery(IvfpqSearch *search, const float *query);
extern void IvfpqSearchNearest(IvfpqSearch *search, int probes);
extern int64 IvfpqSearchCount(IvfpqSearch *search, int probes);

/* one search, from Open to Take */
extern void IvfpqSearchOpen(IvfpqSearch *search, int capacity);
extern void IvfpqSearchBlock(IvfpqSearch *search, int i,
							 const IvfpqBlockView *view);
extern void IvfpqSearchList(IvfpqSearch *search, int i);
extern void IvfpqSearchLists(IvfpqSearch *search, int first, int end);
extern void IvfpqSearchSettle(IvfpqSearch *search);
extern bool IvfpqSearchWiden(IvfpqSearch *search, int capacity);
extern void IvfpqSearchTake(IvfpqSearch *search, int candidates);

extern int	IvfpqDistinct(const uint64 *numbers, int n, int most, int *first);
extern void IvfpqSearchDistinct(IvfpqSearch *search, int n);
extern void IvfpqCountsReserve(IvfpqSearch *search, int nlists);
extern IvfpqListSums IvfpqSumCounts(const IvfpqListCount *counts, int n,
									double part);

/* many searches, for which each list is read once */
#define IVFPQ_TOGETHER	64		/* searches, at most */

extern void IvfpqSearchTogether(IvfpqSearch *searches, int n, int candidates);

/*
 * remote.c
 */
extern void IvfpqReportEngine(IvfpqScanReport *report, const char *engine);
extern void IvfpqSearchNoServer(IvfpqSearch *search, const char *reason);
extern bool IvfpqSearchRemote(IvfpqSearch *search, int probes, int capacity,
							  double part, int rank);
extern void IvfpqSearchBulkRemote(IvfpqSearch *search, const float *queries,
								  int n, int probes, int candidates,
								  void (*take) (void *arg,
												IvfpqSearch *search,
												int number, bool found),
								  void *arg);

/*
 * ivfpqsearch.c
 */
extern void IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates);

/* The goal of a search with key quals, and its result. */
typedef struct IvfpqKeyGoal
{
	/* in */
	double		recall;			/* target, */
	double		rows;			/* for the nearest rows that match */
	bool		is_spread;		/* these are spread among the nearest rows;
								 * out: unless the sample says otherwise */
	bool		by_keys;		/* key quals are the only condition */
	int			most_probes;
	double		guess;			/* the planner's estimate of the selectivity
								 * of all rows; 0 = none */
	bool		reads_all;		/* read all lists, whatever the selectivity */

	/* in and out */
	double		selectivity;	/* of the key quals near the query: an
								 * estimate; as measured */
	int			candidates;		/* kept at most; more if few postings match */

	/* out */
	bool		is_far;			/* matching rows form a far cluster, so all
								 * lists must be read */
	bool		is_all;			/* all rows that match were found */
	bool		everything;		/* only a full pass reaches the recall */
} IvfpqKeyGoal;

extern int	IvfpqKeyCapacity(const IvfpqSearch *search,
							 const IvfpqKeyGoal *goal);
extern void IvfpqSearchKeys(IvfpqSearch *search, IvfpqKeyGoal *goal);

/*
 * refinerecord.c
 */

/* Bounds of the distance that the operator returns for a row. */
typedef struct IvfpqRowBounds
{
	double		least;
	double		most;
} IvfpqRowBounds;

extern void IvfpqRecordCheckDims(Relation index, int dims);
extern IvfpqRecord *IvfpqRecordAlloc(IvfpqRefine refine, int dims);
extern void IvfpqRecordMake(IvfpqRefine refine, IvfpqRecord *record,
							const GvModel *gv, const float *vector,
							bool boundable, const ItemPointerData *tid);
extern void IvfpqRecordAllow(const GvModel *gv, const float *vectors, int64 n,
							 float *errors);
extern bool IvfpqQueryIsBoundable(const GvModel *gv, const float *asked,
								  const float *query);
extern int64 IvfpqRecordBounds(const IvfpqSearch *search, const float *query,
							   uint64 *ids, int64 n, IvfpqRowBounds *bounds);

/* A refine record in half precision, for the engine. */
static inline GvHalfRecord
IvfpqHalfRecord(const IvfpqRecord *record)
{
	GvHalfRecord half = {record->error,
	(const uint16 *) (const void *) record->codes};

	return half;
}

#endif							/* IVFPQ_SEARCH_H */
