/*
 * search.h
 *		From a query to candidates.
 *
 * ivfpqsearch.c asks gpuvecd (remote.c).  If no answer comes, the session's
 * engine scans the lists (candidates.c) that nearestlists.c finds.
 * refinerecord.c bounds the distances of the candidates' rows.
 */
#ifndef IVFPQ_SEARCH_H
#define IVFPQ_SEARCH_H

#include "am/common/model.h"
#include "engine/gv_engine.h"
#include "client/client.h"
#include "page/listread.h"
#include "page/page.h"
#include "page/refinepage.h"

/*
 * nearestlists.c
 */

/* A transformed vector, a query or a row, whose nearest lists are needed. */
typedef struct IvfpqQuery
{
	GvModel		gv;				/* the index's model; its metric is L2 if the
								 * vector is a row */
	float	   *vector;			/* [dims] */
	float	   *table;			/* look-up table (gv_table), if `tabled` */
	bool		tabled;
	bool		deep;			/* compare all lists, because more than
								 * IVFPQ_PARENTS_ROWS rows are needed */
	float	   *list_scores;	/* [nlists] scores of lists that were compared
								 * by their centroids, NaN for other lists;
								 * NULL: scores are not kept */
} IvfpqQuery;

extern void IvfpqQueryInit(IvfpqQuery *query, const IvfpqModel *model,
						   GvMetric metric);
extern void IvfpqQuerySet(IvfpqQuery *query, const float *vector);
extern const float *IvfpqQueryTable(IvfpqQuery *query);

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

extern double IvfpqCodesMiss(Relation index, const IvfpqModel *model,
							 const float *queries, int n, int probes);

/* for builds: writes the codes of centroids */
extern void IvfpqCodedWrite(Relation index, const IvfpqMetaData *meta,
							const GvModel *model, const GvTree *tree,
							bool shared);

/* The state of a search, in which remote.c fills in IvfpqRemote. */

/* Counters of the work of a scan, or of several scans, added up. */
typedef enum IvfpqCount
{
	/* columns of gpuvec_stat_indexes, in this order */
	IVFPQ_COUNT_SCANS,
	IVFPQ_COUNT_BATCHES,
	IVFPQ_COUNT_LISTS,			/* lists read */
	IVFPQ_COUNT_POSTINGS,		/* postings read */
	IVFPQ_COUNT_MATCHED,		/* postings that satisfy the key quals; only
								 * these are scored */
	IVFPQ_COUNT_RERANKED,		/* rows fetched from the heap */
	IVFPQ_COUNT_RETURNED,		/* rows returned */
	IVFPQ_COUNT_OUT_OF_ORDER,	/* rows omitted, because farther rows had been
								 * returned before */
	IVFPQ_COUNT_FULL_PASSES,	/* scans that ended in a pass over the whole
								 * table */
	IVFPQ_NCOUNTERS,

	IVFPQ_COUNT_REFINED = IVFPQ_NCOUNTERS,	/* rows whose distance was bounded
											 * by a refine record or by the
											 * mirror's row */
	IVFPQ_COUNT_STALE_LISTS,	/* lists that the session read because they
								 * were stale in the mirror */
	IVFPQ_COUNT_TAIL_POSTINGS,	/* postings that the mirror lacked and the
								 * session scored */

	/* times in microseconds; they reveal nothing about hidden rows */
	IVFPQ_COUNT_QUEUED_US,		/* time spent waiting in gpuvecd */
	IVFPQ_COUNT_ENGINE_US,
	IVFPQ_COUNT_TRIP_US,		/* time from the request to the answer */
	IVFPQ_NCOUNTS
} IvfpqCount;

/* The work of a scan, for gpuvec_last_scan. */
typedef struct IvfpqScanReport
{
	Oid			index;
	double		recall;			/* target recall */
	int			probes;			/* of the first batch */
	int			candidates;
	bool		asks_keys;		/* the query has key quals */
	int			source;			/* source of the last rows (IvfpqRestSource) */
	int64		counts[IVFPQ_NCOUNTS];

	/* gpuvecd's part in the scan */
	char		engine[16];		/* engine of all answers so far: "session",
								 * the name of an engine of gpuvecd, or
								 * "mixed"; "" = no answer yet */
	const char *fallback;		/* why gpuvecd did not answer the last search,
								 * or NULL */
	bool		asked;			/* gpuvecd was asked at least once */
	bool		answered;		/* gpuvecd answered at least once */
	uint32		batch_size;		/* searches in the batch that gpuvecd answered
								 * last */
} IvfpqScanReport;

/* A posting's refine record, as gpuvecd's answer describes it. */
typedef struct IvfpqKnownRecord
{
	uint64		address;
	uint64		tid;			/* of the record's row */
	float		bound;			/* lower bound of the row's distance, as the
								 * engine computes it */
	bool		is_known;
} IvfpqKnownRecord;

/* A posting's row whose distance gpuvecd's answer tells. */
typedef struct IvfpqKnownDistance
{
	float		score;			/* of the posting */
	float		magnitude;		/* as in GvRowDistance */
	uint64		tid;
	double		distance;
} IvfpqKnownDistance;

/* Maximum number of rows that a search reports as lacking in a mirror. */
#define IVFPQ_LACKING	64

typedef struct IvfpqRemote
{
	IvfpqKnownDistance *distances;	/* [ndistances] of the last answer's
									 * postings, by (score, TID) */
	int			ndistances;
	int			distances_capacity;
	int			nlacking;
	uint64		lacking[IVFPQ_LACKING]; /* [nlacking] TIDs of rows that the
										 * mirror lacks, if it has rows */
	int			nleft_out;		/* postings that the last answer leaves out */
	GvOmitted	omitted;		/* and their rows, which are candidates; if
								 * omitted.n > 0, the postings that the answer
								 * has are of different rows */
	IvfpqKnownRecord *known;	/* [nknown] records of the last answer's
								 * postings, in the answer's order; all
								 * candidates are among these postings */
	int			nknown;
	int			known_capacity;

	/* lists that the last answer probed; not set by a brief answer */
	IvfpqDirEntry *entries;		/* [capacity] read after the answer came */
	uint8	   *list_status;	/* [capacity] LIST_CURRENT, LIST_GREW or
								 * LIST_STALE */
	int			capacity;
	uint32		nearest;		/* nearest list that the last answer probed */
	bool		is_behind;		/* some list that the last answer probed was
								 * not current */
} IvfpqRemote;

/*
 * Returns what the last answer tells of the row of a candidate, or NULL.
 * Candidates must be looked up in their order, which is that of the answer:
 * *next is where to begin, 0 at first.
 */
static inline const IvfpqKnownDistance *
IvfpqNextDistance(const IvfpqRemote *remote, int *next, float score, uint64 tid)
{
	const IvfpqKnownDistance *known = &remote->distances[*next];
	const IvfpqKnownDistance *end = &remote->distances[remote->ndistances];

	while (known < end &&
		   (known->score < score || (known->score == score &&
									 known->tid < tid)))
		known++;
	*next = (int) (known - remote->distances);
	return known < end && known->score == score && known->tid == tid ?
		known : NULL;
}

/* Numbers of postings in a list: all, and those that satisfy the key quals. */
typedef struct IvfpqListCount
{
	int64		postings;
	int64		matched;
} IvfpqListCount;

/*
 * Sums of IvfpqListCount over the lists that were read.  In the weighted sums
 * the nearest lists count most (ivfpqsearch.c).
 */
typedef struct IvfpqListSums
{
	double		postings;
	double		matched;
	double		weighted_postings;
	double		weighted_matched;
} IvfpqListSums;

/*
 * Result of comparing the sample with the postings that satisfy the key quals:
 * `nearer` postings of the sample, matching or not, are no farther from the
 * query than the last of the `matched` nearest matching postings.
 */
typedef struct IvfpqNearCount
{
	double		matched;		/* 0: nothing is known */
	double		nearer;
	double		variance;		/* variance of `nearer`: sum, over blocks, of
								 * the square of each block's number */
} IvfpqNearCount;

/*
 * A sample of the blocks that are read.  All postings of a sampled block are
 * scored, whether they satisfy the key quals or not, and the best postings are
 * kept (ivfpqsearch.c).
 */
typedef struct IvfpqBlockSample
{
	bool		is_open;
	GvScan		scan;
	GvTopK		best;			/* ids are GV_BLOCK * number of the block in
								 * the sample + number of the posting in the
								 * block */
	uint32		nblocks;		/* blocks taken into the sample */
	void	   *memory;			/* for the scan's scratch */
} IvfpqBlockSample;

typedef struct IvfpqSearch
{
	Relation	index;
	const IvfpqModel *model;
	bool		addresses;		/* ids of candidates are addresses of refine
								 * records; false: they are TIDs */
	IvfpqScanReport *report;	/* notes gpuvecd's part in the scan; may be
								 * NULL if gpuvecd is never asked */
	const float *asked;			/* [dims] the query as its user asked it, to
								 * get distances from gpuvecd; or NULL */
	int			keep;			/* gpuvecd's answer may leave out candidates
								 * beyond so many of the nearest ones whose
								 * distances it tells; 0: it has all */

	/* the query, and its nearest lists */
	IvfpqQuery	query;
	GvTopK		lists;

	/* what was found in the lists */
	GvTopK		candidates;		/* the best postings; at the end of the
								 * search, the best rows */
	bool		found_all;		/* fewer postings were found than could be
								 * kept */

	/* reading and scanning lists */
	IvfpqListReader reader;
	GvScan		scan;
	void	   *scan_memory;
	Size		scan_bytes;		/* bytes of scratch in scan_memory */

	/* work done for the query so far */
	int64		lists_read;
	int64		postings_read;
	int64		matched;		/* postings read that satisfy the key quals */

	/* with key quals */
	const GvCondition *condition;	/* NULL: there are no key quals */
	IvfpqListCount *counts;		/* [counts_capacity] counts of lists that were
								 * read here or that a full answer names */
	int			counts_capacity;
	int			ncounts;		/* number of lists that were read */
	IvfpqBlockSample sample;
	IvfpqListSums sums;			/* of the lists that gpuvecd read */
	IvfpqNearCount near_count;	/* from gpuvecd's sample */

	IvfpqRemote remote;
} IvfpqSearch;

/* Forgets what the last answer of gpuvecd tells of rows. */
static inline void
IvfpqSearchForgetAnswer(IvfpqSearch *search)
{
	search->remote.nknown = 0;
	search->remote.ndistances = 0;
	search->remote.omitted.n = 0;
	search->remote.nleft_out = 0;
	search->remote.nlacking = 0;
}

/* Returns the number of candidates, with those that gpuvecd's answer left out. */
static inline int
IvfpqCandidatesFound(const IvfpqSearch *search)
{
	return search->candidates.count + search->remote.omitted.n;
}

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

/* one search, from IvfpqSearchOpen to IvfpqSearchTake */
extern void IvfpqSearchOpen(IvfpqSearch *search, int capacity);
extern void IvfpqSearchBlock(IvfpqSearch *search, int i,
							 const IvfpqBlockView *view);
extern void IvfpqSearchLists(IvfpqSearch *search, int first, int end);
extern void IvfpqSearchSettle(IvfpqSearch *search);
extern void IvfpqSearchTake(IvfpqSearch *search, int candidates);

/* Multiplied by a number, spreads it over the high bits. */
#define IVFPQ_GOLDEN_RATIO	UINT64CONST(0x9E3779B97F4A7C15)

extern int	IvfpqDistinct(const uint64 *numbers, int n, int most, int *first);
extern void IvfpqSearchDistinct(IvfpqSearch *search, int n);
extern void IvfpqCountsReserve(IvfpqSearch *search, int nlists);
extern IvfpqListSums IvfpqSumCounts(const IvfpqListCount *counts, int n,
									double part);

/* many searches that share the reading of lists */
#define IVFPQ_TOGETHER	64		/* maximum number of searches */

/* Returns a bit for each posting of a block, set if the posting is chosen. */
typedef uint32 (*IvfpqPostingChoice) (int arg, const IvfpqBlockView *view);

extern void IvfpqSearchListsTogether(IvfpqSearch *searches, int n,
									 IvfpqPostingChoice choice,
									 int choice_arg);
extern void IvfpqSearchTogether(IvfpqSearch *searches, int n, int candidates);

/*
 * remote.c
 */
extern void IvfpqReportEngine(IvfpqScanReport *report, const char *engine);
extern void IvfpqSearchNoServer(IvfpqSearch *search, const char *reason);
extern bool IvfpqSearchRemote(IvfpqSearch *search, int probes, int candidates,
							  double part, int rank);

/*
 * Callbacks of IvfpqSearchBulkRemote, which numbers queries from 0; `arg` is
 * their first argument.
 */
typedef struct IvfpqBulkTaker
{
	void	   *arg;

	IvfpqQueryPut transform;

	/*
	 * Takes an answer with distances, whose lists are all current; it may
	 * have `capacity` hits.  Returns false if the query has to be passed to
	 * `take`.
	 */
	bool		(*take_nearest) (void *arg, const IvfpqRemoteResult *answer,
								 int number, int capacity);

	/*
	 * Called after all answers of a message were passed to take_nearest. Puts
	 * queries that have to be passed to `take` after all into `again`, and
	 * returns their number.
	 */
	int			(*settle) (void *arg, int *again);

	/*
	 * Takes the candidates that were found for a query.  If `found` is false,
	 * the session has to find them.
	 */
	void		(*take) (void *arg, IvfpqSearch *search, int number,
						 bool found);
} IvfpqBulkTaker;

extern void IvfpqSearchBulkRemote(IvfpqSearch *search, const float *asked,
								  int n, int probes, int candidates,
								  double part, int rank,
								  const IvfpqBulkTaker *taker);

/*
 * ivfpqsearch.c
 */
extern void IvfpqSearchRun(IvfpqSearch *search, int probes, int candidates);

/* The goal of a search with key quals, and its result. */
typedef struct IvfpqKeyGoal
{
	/* in */
	double		recall;			/* target recall */
	double		rows;			/* number of nearest matching rows needed */
	bool		is_spread;		/* in: assume that matching rows are spread
								 * over the nearest rows; out: false if the
								 * sample disproves this */
	bool		by_keys;		/* key quals are the query's only condition */
	int			most_probes;
	double		guess;			/* the planner's estimate of the selectivity
								 * among all rows; 0 = none */
	bool		reads_all;		/* read all lists, whatever the selectivity */

	/* in and out */
	double		selectivity;	/* selectivity near the query; in: an
								 * estimate; out: the value measured in the
								 * lists read */
	int			candidates;		/* maximum number of candidates to keep;
								 * raised if few postings match */

	/* out */
	bool		is_far;			/* matching rows form a far cluster, so that
								 * all lists must be read */
	bool		is_all;			/* all rows that match were found */
	bool		everything;		/* only a full pass reaches the recall */
	int			probes;			/* lists and rows of the last request that
								 * gpuvecd has answered; 0 = none */
	int			asked;
} IvfpqKeyGoal;

extern int	IvfpqKeyCapacity(const IvfpqSearch *search,
							 const IvfpqKeyGoal *goal);
extern void IvfpqSearchKeys(IvfpqSearch *search, IvfpqKeyGoal *goal);
extern void IvfpqSearchKeysBulk(IvfpqSearch *search, const IvfpqKeyGoal *goal,
								const float *asked, int n,
								const IvfpqBulkTaker *taker);
extern bool IvfpqSearchKeysTake(IvfpqSearch *search, IvfpqKeyGoal *goal);

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
extern IvfpqRowBounds IvfpqDistanceBounds(const GvModel *gv, double distance,
										  float magnitude, bool is_exact);
extern int64 IvfpqKnownBounds(const IvfpqSearch *search, bool is_exact,
							  uint64 *ids, int64 n, IvfpqRowBounds *bounds);

/* Returns a half-precision refine record in the form that the engine takes. */
static inline GvHalfRecord
IvfpqHalfRecord(const IvfpqRecord *record)
{
	GvHalfRecord half = {record->error,
	(const uint16 *) (const void *) record->codes};

	return half;
}

#endif							/* IVFPQ_SEARCH_H */
