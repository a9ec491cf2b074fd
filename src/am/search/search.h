/*
 * search.h
 *		From a query to candidates (candidates.c): the nearest lists
 *		(nearestlists.c, nearestlists.c), their best postings here or by gpuvecd
 *		(remote.c), and bounds of their rows (refinerecord.c).
 */
#ifndef IVFPQ_SEARCH_H
#define IVFPQ_SEARCH_H

#include "am/common/model.h"
#include "engine/gv_engine.h"
#include "page/listread.h"
#include "page/page.h"
#include "page/refinepage.h"

/*
 * nearestlists.c: a transformed vector, a query or a row, and the lists
 * nearest to it.
 */
typedef struct IvfpqQuery
{
	GvModel		gv;				/* the index's; of rows for L2 in any case */
	float	   *vector;			/* [dims] */
	float	   *table;			/* gv_table's, when it was asked for */
	bool		tabled;
	bool		deep;			/* more than IVFPQ_PARENTS_ROWS are needed */
	float	   *list_scores;	/* [nlists] of those compared by centroids,
								 * else NaN; NULL: not kept */
} IvfpqQuery;

/*
 * A search for up to this many rows goes through parents; for more all lists
 * are compared.
 */
#define IVFPQ_PARENTS_ROWS	100

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
							  IvfpqQuery *query, GvTopK *lists);

/* nearestlists.c: the same for many vectors */
extern void IvfpqNearestListsBulk(Relation index, const IvfpqModel *model,
								  IvfpqQuery *query,
								  const float *const *vectors, int n,
								  GvTopK *lists);

/* candidates.c */
extern int	IvfpqDistinct(const uint64 *numbers, int n, int most, int *first);

/*
 * nearestlists.c: the nearest lists, by codes of centroids.
 */
extern void IvfpqCodedWrite(Relation index, const IvfpqMetaData *meta,
							const GvModel *model, const GvTree *tree,
							bool shared);

/*
 * remote.c: from a query to candidates, by gpuvecd.
 */
typedef struct IvfpqRemoteReport
{
	char		engine[16];		/* that answered so far; "" = none yet */
	const char *fallback;		/* why gpuvecd last did not, or NULL */
	bool		asked;			/* at least once, */
	bool		answered;		/* and it answered */
	uint32		batch_size;		/* searches answered together, the last time */
	int64		stale_lists;	/* read again: the mirror's were stale */
	int64		tail_postings;	/* scored here: the mirror lacked them */
	int64		queued_us;		/* times of all searches added up */
	int64		engine_us;
	int64		trip_us;		/* from question to answer */
} IvfpqRemoteReport;

/* Bounds of the distance that the operator returns for a row. */
typedef struct IvfpqRowBounds
{
	double		least;
	double		most;
} IvfpqRowBounds;

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
	uint8	   *ages;			/* [capacity] of the mirror's state of these;
								 * a brief answer has neither */
	int			capacity;
	uint32		nearest;		/* list, of the last answer */
	IvfpqRemoteReport report;
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

/* Sums of these over lists that were read. */
typedef struct IvfpqListSums
{
	double		postings;
	double		matched;		/* those that satisfy it */
	double		weighted_postings;	/* the same where the nearest lists count
									 * most: see ivfpqsearch.c */
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

/* The best of all postings in a sample of the blocks read: see ivfpqsearch.c. */
typedef struct IvfpqBlockSample
{
	bool		is_open;
	GvScan		scan;
	GvTopK		best;			/* ids: GV_BLOCK times the number of the
								 * block, and which of its postings */
	uint32		nblocks;		/* taken into the sample */
	void	   *memory;			/* of the scan's scratch */
} IvfpqBlockSample;

/*
 * candidates.c: from a query to candidates.
 */
typedef struct IvfpqSearch
{
	Relation	index;
	const IvfpqModel *model;
	IvfpqQuery	query;
	IvfpqListReader reader;
	GvTopK		lists;			/* nearest lists */
	GvTopK		candidates;		/* best postings; ids as `addresses` says */
	bool		found_all;		/* fewer were found than could be kept */
	GvScan		scan;			/* which finds them */
	void	   *scan_memory;
	Size		scan_bytes;		/* of the scan's scratch */
	int64		lists_read;		/* by this search so far */
	int64		postings_read;
	const GvCondition *condition;	/* on keys; NULL: none */
	int64		matched;		/* postings read that satisfy it */
	IvfpqListCount *counts;		/* [counts_capacity] of lists that were read
								 * here, or that a full answer names */
	int			counts_capacity;
	int			ncounts;		/* lists that were read, with a condition */
	IvfpqListSums sums;			/* of those that gpuvecd read, */
	IvfpqNearCount near_count;	/* and its sample's */
	IvfpqBlockSample sample;
	bool		addresses;		/* ids are addresses of refine records, else
								 * TIDs */
	IvfpqRemote remote;
} IvfpqSearch;

extern void IvfpqSearchInit(IvfpqSearch *search, Relation index,
							const IvfpqModel *model);
extern void IvfpqSearchCondition(IvfpqSearch *search,
								 const GvCondition *condition);
extern void IvfpqSearchQuery(IvfpqSearch *search, const float *query);
extern void IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates);
extern void IvfpqSearchNearest(IvfpqSearch *search, int probes);
extern int64 IvfpqSearchCount(IvfpqSearch *search, int probes);
extern void IvfpqSearchOpen(IvfpqSearch *search, int capacity);
extern void IvfpqSearchList(IvfpqSearch *search, int i);
extern void IvfpqSearchBlock(IvfpqSearch *search, int i,
							 const IvfpqBlockView *view, bool again);
extern void IvfpqSearchSettle(IvfpqSearch *search);
extern bool IvfpqSearchWiden(IvfpqSearch *search, int capacity);
extern void IvfpqSearchLists(IvfpqSearch *search, int first, int end);
extern void IvfpqSearchTake(IvfpqSearch *search, int candidates);
extern void IvfpqSearchDistinct(IvfpqSearch *search, int n);

/* candidates.c: many searches, for which each list is read once */
#define IVFPQ_TOGETHER	64		/* searches, at most */

extern void IvfpqSearchTogether(IvfpqSearch *searches, int n, int candidates);

/*
 * ivfpqsearch.c: from a query to candidates that satisfy the key quals.
 */
typedef struct IvfpqKeyGoal
{
	double		recall;			/* target, */
	double		rows;			/* for the nearest rows that match */
	bool		is_spread;		/* these are spread among the nearest rows */
	bool		by_keys;		/* key quals are the only condition */
	bool		is_far;			/* out: they may be anywhere */
	int			most_probes;
	double		selectivity;	/* of the key quals near the query: in, an
								 * estimate; out, as measured */
	double		guess;			/* the planner's estimate of the selectivity
								 * of all rows; 0 = none */
	bool		reads_all;		/* read all lists, whatever the selectivity */
	int			candidates;		/* kept at most */
	bool		is_all;			/* out: all rows that match were found */
	bool		everything;		/* out: only a full pass reaches the recall */
} IvfpqKeyGoal;

extern int	IvfpqKeyCapacity(const IvfpqSearch *search,
							 const IvfpqKeyGoal *goal);
extern void IvfpqSearchKeys(IvfpqSearch *search, IvfpqKeyGoal *goal);
extern void IvfpqCountsReserve(IvfpqSearch *search, int nlists);
extern IvfpqListSums IvfpqSumCounts(const IvfpqListCount *counts, int n,
									double part);

/* ivfpqsearch.c */
extern bool IvfpqSampleWants(const void *arg, const IvfpqSlotHeader *header,
							 const char *keys);
extern void IvfpqSampleBlock(IvfpqSearch *search, float base,
							 const GvBlock *block);

/* remote.c */
extern void IvfpqReportEngine(IvfpqRemoteReport *report, const char *engine);
extern void IvfpqSearchAlone(IvfpqSearch *search, const char *reason);
extern void IvfpqSearchBulkRemote(IvfpqSearch *search, const float *queries,
								  int n, int probes, int candidates,
								  void (*take) (void *arg,
												IvfpqSearch *search,
												int number, bool found),
								  void *arg);
extern bool IvfpqSearchRemote(IvfpqSearch *search, int probes, int capacity,
							  double part, int rank);


/* refinerecord.c: records that bound distances */
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
