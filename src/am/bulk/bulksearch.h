/*
 * bulksearch.h
 *		The nearest rows of many queries at once: for other code of this
 *		backend, and between the two files that search and rerank.
 */
#ifndef IVFPQ_BULKSEARCH_H
#define IVFPQ_BULKSEARCH_H

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

/* The largest k.  A scan whose LIMIT is larger is as good. */
#define IVFPQ_BULK_MOST_K	10000

/* Queries of a portion, at most: bulkrerank.c numbers them in 16 bits. */
#define IVFPQ_BULK_PORTION	65536

typedef struct IvfpqBulkRow
{
	double		distance;
	uint64		id;				/* of the index's entry: ties go by it */
	ItemPointerData tid;		/* where the row is */
} IvfpqBulkRow;

/* Gets the rows [n] of a query, counted from 0, nearest first. */
typedef void (*IvfpqBulkSink) (void *arg, int64 query,
							   const IvfpqBulkRow *rows, int n);

/* Queries of one index. */
typedef struct IvfpqBulkRequest
{
	Relation	heap;			/* the caller's user may see all its rows */
	Relation	index;			/* IvfpqBulkServes returned true for it */
	Snapshot	snapshot;		/* registered */
	const float *vectors;		/* [n][dims] finite */
	int			n;
	int			dims;
	int			k;
	bool		more;			/* gpuvec_last_scan adds it to the call before */
	IvfpqBulkSink sink;
	void	   *arg;
} IvfpqBulkRequest;

/* A row with a lower bound of its distance. */
typedef struct IvfpqBulkBound
{
	double		bound;
	uint64		id;
} IvfpqBulkBound;

typedef struct IvfpqBulkQuery
{
	Datum		value;			/* of the column's type; 0: not made yet */
	const float *vector;		/* [dims] transformed; NULL: untrained */
	bool		is_boundable;	/* refine records prove bounds for it */
	IvfpqBulkRow *rows;			/* [k] nearest so far: a heap, the farthest
								 * first, until IvfpqBulkSort; part of
								 * IvfpqBulk.rows */
	int			nrows;

	/* of the round under way */
	uint32		nearest;		/* list */
	uint64	   *ids;			/* [ncandidates] of rows, or NULL: bounds */
	int			ncandidates;
	bool		is_drained;		/* they are all rows of its lists */
	IvfpqBulkBound *bounds;		/* [ncandidates], or NULL */
	int			nfetched;		/* rows of ids or bounds that were fetched */
	int			invisible;		/* of these, those the snapshot does not see */
} IvfpqBulkQuery;

typedef struct IvfpqBulk
{
	Relation	heap;
	Relation	index;
	Snapshot	snapshot;
	IvfpqModel *model;
	IvfpqType	type;
	IvfpqCast	cast;			/* of queries to this type */
	IvfpqQueries queries;		/* all that were asked */
	int			k;
	FmgrInfo	distance;
	IvfpqRealDistance real_distance;	/* what that computes, or NULL */
	bool		is_cosine;		/* it is a cosine, computed with `squares` */
	IvfpqRerank rerank;
	int			pending_dims;	/* pending rows may have others; 0 = no */
	bool		warned_mismatched;

	uint64	   *pending;		/* [npending] rows, ascending */
	int64		npending;
	bool		everything;		/* all rows are reranked: the index is
								 * untrained, or too many rows are pending */
	tidset_hash *pending_set;	/* the same rows, if there are any */

	IvfpqSearch *searches;		/* [nsearches], when trained */
	int			nsearches;		/* at most IVFPQ_TOGETHER */
	MemoryContext portion;		/* reset with every portion */
	MemoryContext round;		/* reset with every slice of a round */
	IvfpqBulkQuery *asked;		/* [nasked] of the portion */
	int			nasked;

	/*
	 * The inputs of every distance, [nasked], apart from the queries: queries
	 * come in no order, and are more than the processor's cache holds.
	 */
	const float *floats;		/* [dims] each as it was asked */
	float	   *vectors;		/* [dims] each transformed; NULL: untrained */
	double	   *squares;		/* <floats, floats>, where a cosine takes it */
	double	   *farthest;		/* rows [0].distance; NaN: fewer than k rows */
	IvfpqBulkRow *rows;			/* [k] each */
	IvfpqScanReport report;
} IvfpqBulk;

/* bulksearch.c: for code that knows the caller's rights */

/*
 * Returns whether the index, a valid one, has all rows of the table that the
 * snapshot sees, of that many dimensions, and runs no code of its owner.  Rows
 * without a place (NULL, a zero vector under cosine) do not count.
 */
extern bool IvfpqBulkServes(Relation heap, Relation index, int dims);

/*
 * Estimates the nanoseconds that n queries for k rows take.  Sets *rows to an
 * estimate of the index's rows.
 */
extern double IvfpqBulkCost(Relation heap, Relation index, double n, int dims,
							int k, double *rows);

/* Searches as gpuvec_search does. */
extern void IvfpqBulkFind(const IvfpqBulkRequest *request);

/* bulkrerank.c: queries are named by their number in the portion */

/*
 * Notes the candidates of a search for the query of that number.  `nearest` is
 * its nearest list; `candidates` is how many the search was asked for.
 */
extern void IvfpqBulkTake(IvfpqBulk *bulk, const IvfpqSearch *search,
						  int number, uint32 nearest, int candidates);

/*
 * Reranks the candidates noted for the active queries [n], and brings these
 * into another order.
 */
extern void IvfpqBulkRerankFound(IvfpqBulk *bulk, int *active, int n);

/*
 * Reranks pending rows for the active queries [n], in place of the rows kept
 * so far.
 */
extern void IvfpqBulkRerankPending(IvfpqBulk *bulk, const int *active, int n);

/*
 * Reranks all rows of the index for the active queries [n], in place of the
 * rows kept so far.
 */
extern void IvfpqBulkRerankAll(IvfpqBulk *bulk, const int *active, int n);

/* Brings a query's rows into the order of the answer. */
extern void IvfpqBulkSort(IvfpqBulkQuery *query);

#endif							/* IVFPQ_BULKSEARCH_H */
