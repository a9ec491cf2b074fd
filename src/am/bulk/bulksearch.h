/*
 * bulksearch.h
 *		Finding the nearest rows of many queries at once: the interface for
 *		other code of this backend, and the one between bulksearch.c and
 *		bulkrerank.c.
 */
#ifndef IVFPQ_BULKSEARCH_H
#define IVFPQ_BULKSEARCH_H

#include <math.h>

#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "am/common/enginecall.h"
#include "am/scan/scan.h"
#include "am/search/params.h"
#include "am/search/rerank.h"
#include "am/search/search.h"
#include "am/types/queries.h"
#include "am/types/sqldistance.h"

/* The largest k.  For more rows, scans with a LIMIT are as good. */
#define IVFPQ_BULK_MOST_K	10000

/* Maximum size of a portion: bulkrerank.c numbers queries in 16 bits. */
#define IVFPQ_BULK_PORTION	65536

typedef struct IvfpqBulkRow
{
	double		distance;
	uint64		id;				/* id of the index entry; rows of equal
								 * distance are ordered by id */
	ItemPointerData tid;		/* of the row's tuple */
} IvfpqBulkRow;

/* Receives the rows [n] of query `query` (from 0), the nearest row first. */
typedef void (*IvfpqBulkSink) (void *arg, int64 query,
							   const IvfpqBulkRow *rows, int n);

/* A request to find the nearest rows of many queries in one index. */
typedef struct IvfpqBulkRequest
{
	Relation	heap;			/* the current user may see all rows of the
								 * table */
	Relation	index;			/* IvfpqBulkServes returned true for it */
	Snapshot	snapshot;		/* registered */
	const float *vectors;		/* [n][dims], all finite */
	int			n;
	int			dims;
	int			k;
	bool		more;			/* in gpuvec_last_scan, add the work of this
								 * request to that of the previous request */
	IvfpqBulkSink sink;
	void	   *arg;
} IvfpqBulkRequest;

/*
 * A candidate, with a lower bound of its distance.  If the query's bounds are
 * exact (IvfpqBulkQuery.is_exact), the bound is the distance itself, or
 * IVFPQ_BULK_UNKNOWN.
 */
#define IVFPQ_BULK_UNKNOWN	(-INFINITY)

typedef struct IvfpqBulkBound
{
	double		bound;
	uint64		id;
} IvfpqBulkBound;

typedef struct IvfpqBulkQuery
{
	Datum		value;			/* the query in the column's type, for the
								 * operator's function; 0 = not made yet */
	IvfpqBulkRow *rows;			/* [k] the nearest rows so far, a part of
								 * IvfpqBulk.rows; a heap with the farthest
								 * row first, until IvfpqBulkSort sorts them */
	int			nrows;

	/* of the current round: */
	uint32		nearest;		/* the nearest list */
	uint64	   *ids;			/* [ncandidates] ids of the candidates; NULL
								 * if `bounds` has them */
	int			ncandidates;
	bool		is_drained;		/* all rows of the query's lists are
								 * candidates */
	IvfpqBulkBound *bounds;		/* [ncandidates] the candidates; NULL if `ids`
								 * has them */
	bool		is_exact;		/* gpuvecd has told distances, in `bounds` */
	int			nunknown;		/* if so, how many of them are not known */
	int			nfetched;		/* candidates that were fetched */
	int			invisible;		/* fetched candidates that the snapshot does
								 * not see */
} IvfpqBulkQuery;

typedef struct IvfpqBulk
{
	Relation	heap;
	Relation	index;
	Snapshot	snapshot;
	IvfpqModel *model;
	IvfpqType	type;
	IvfpqCast	cast;			/* casts queries to this type */
	IvfpqQueries queries;		/* all queries of the request */
	int			k;

	/* conditions on keys */
	int			nconditions;
	ScanKey		conditions;		/* [nconditions] */
	IvfpqKeys	keys;
	IvfpqKeyQuals quals;		/* of the conditions */
	IvfpqKeyGoal goal;			/* of a search for a query in this round; its
								 * request to gpuvecd, and the selectivity
								 * that the last search found, as `guess` */
	uint64	   *matching;		/* [nmatching] ids of all rows that may match,
								 * ascending; NULL: too many, or not read */
	int64		nmatching;

	FmgrInfo	distance;		/* the operator's function */
	IvfpqRealDistance engine_distance;	/* the engine's function, which
										 * computes the same distance in
										 * double; NULL: there is none */
	bool		casts_queries;	/* the column's type stores other elements
								 * than were asked */
	bool		is_cosine;		/* engine_distance is the cosine, which uses
								 * `squares` */
	bool		sees_pages;		/* pages tell which rows are visible
								 * (IvfpqRerankMayLook) */
	IvfpqRerank rerank;
	int			pending_dims;	/* dimensions that pending rows must have; 0 =
								 * any */
	bool		warned_mismatched;

	uint64	   *pending;		/* [npending] ids of the pending rows,
								 * ascending */
	int64		npending;
	bool		everything;		/* rerank all rows, because the index is
								 * untrained or has too many pending rows */
	tidset_hash *pending_set;	/* the ids in `pending`; NULL if there are
								 * none */

	IvfpqSearch *searches;		/* [nsearches]; NULL if untrained */
	int			nsearches;		/* at most IVFPQ_TOGETHER */
	struct IvfpqBulkNearest *nearest;	/* what answers of gpuvecd are taken
										 * with; NULL if untrained */
	MemoryContext portion;		/* memory of one portion at a time */
	MemoryContext round;		/* memory of a slice of a round, reset after
								 * each slice */
	IvfpqBulkQuery *asked;		/* [nasked] queries of the portion */
	int			nasked;

	/*
	 * The data that distances are computed from, for all queries of the
	 * portion.  They are in arrays of their own, so that computing a distance
	 * does not read `asked`: queries are visited in no particular order, and
	 * do not all fit in the processor's cache.
	 */
	const float *floats;		/* [nasked][dims] the queries, as the column's
								 * type stores them */
	float	   *cast_floats;	/* [nasked][dims] `floats`, if casts_queries;
								 * else NULL */
	double	   *squares;		/* [nasked] <floats, floats>, if is_cosine */
	double	   *farthest;		/* [nasked] distance of the query's farthest
								 * row; NaN while the query has fewer than k
								 * rows */
	IvfpqBulkRow *rows;			/* [nasked][k] the nearest rows so far */
	IvfpqScanReport report;
} IvfpqBulk;

/* bulksearch.c: for code that has checked the user's rights */

/*
 * Returns whether a valid index is trained, has vectors of `dims` dimensions
 * and neither expressions nor a predicate, and has all rows of the table that
 * the snapshot sees, except those that no index holds (NULL, or a zero vector
 * under cosine).
 */
extern bool IvfpqBulkServes(Relation heap, Relation index, int dims);

/*
 * Estimates the total time of n queries for k rows each, in nanoseconds.  Sets
 * *rows to an estimate of the index's rows.
 */
extern double IvfpqBulkCost(Relation heap, Relation index, double n, int dims,
							int k, double *rows);

/* Answers a request as gpuvec_search does, and gives the rows to its sink. */
extern void IvfpqBulkFind(const IvfpqBulkRequest *request);

/* bulkrerank.c: queries are identified by their numbers in the portion */

/*
 * Notes the candidates that a search has found for query `number`.  `nearest`
 * is the query's nearest list.  The search was asked for `candidates`
 * candidates.
 */
extern void IvfpqBulkTake(IvfpqBulk *bulk, const IvfpqSearch *search,
						  int number, uint32 nearest, int candidates);

extern void IvfpqBulkNearestInit(IvfpqBulk *bulk);

/*
 * Takes the k nearest rows from an answer to query `number` that has distances,
 * and whose lists are all current.  The answer may have `capacity` hits, and
 * the first `candidates` rows of the hits are the candidates.  Returns false if
 * the candidates have to be taken by IvfpqBulkTake: if there are pending rows,
 * if k is large, or if some distance is not known.
 *
 * The rows are the answer once IvfpqBulkSettle has been called, except for
 * those queries, put into `again` and counted, for which the snapshot does not
 * see all of them.  The candidates of these have to be taken by IvfpqBulkTake.
 */
extern bool IvfpqBulkTakeNearest(IvfpqBulk *bulk,
								 const IvfpqRemoteResult *answer, int number,
								 int capacity, int candidates);
extern int	IvfpqBulkSettle(IvfpqBulk *bulk, int *again);

/* Reranks the candidates of the active queries [n].  Reorders `active`. */
extern void IvfpqBulkRerankFound(IvfpqBulk *bulk, int *active, int n);

/*
 * Reads the rows that may match, and returns true, unless lists have more than
 * `most` postings of them.
 */
extern bool IvfpqBulkReadMatching(IvfpqBulk *bulk, int64 most);

/*
 * Forget the rows kept for the active queries [n], and rerank pending rows, or
 * the rows that IvfpqBulkReadMatching has read.
 */
extern void IvfpqBulkRerankPending(IvfpqBulk *bulk, const int *active, int n);
extern void IvfpqBulkRerankMatching(IvfpqBulk *bulk, const int *active, int n);

/*
 * Forgets the rows kept for the active queries [n], and reranks all rows that
 * may match.
 */
extern void IvfpqBulkRerankAll(IvfpqBulk *bulk, const int *active, int n);

extern void IvfpqBulkSort(IvfpqBulkQuery *query);

#endif							/* IVFPQ_BULKSEARCH_H */
