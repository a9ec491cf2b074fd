/*
 * multisearch.h
 *		Many searches for other code of this backend (multisearch.c).
 */
#ifndef IVFPQ_MULTISEARCH_H
#define IVFPQ_MULTISEARCH_H

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

/* A scan whose LIMIT is larger is as good. */
#define IVFPQ_BULK_MOST_K	10000

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
	Relation	heap;			/* of which the caller may see all rows */
	Relation	index;			/* see IvfpqBulkServes */
	Snapshot	snapshot;		/* registered */
	const float *vectors;		/* [n][dims] finite */
	int			n;
	int			dims;
	int			k;
	bool		more;			/* of the call before: see gpuvec_last_scan */
	IvfpqBulkSink sink;
	void	   *arg;
} IvfpqBulkRequest;

/*
 * Returns whether the index, a valid one, has all rows of the table that the
 * snapshot sees, of that many dimensions, and runs no code of its owner.  Rows
 * without a place (NULL, a zero vector under cosine) do not count.
 */
extern bool IvfpqBulkServes(Relation heap, Relation index, int dims);

/*
 * Nanoseconds, about, that n queries for k rows take.  *rows: those of the
 * index, about.
 */
extern double IvfpqBulkCost(Relation heap, Relation index, double n, int dims,
							int k, double *rows);

/* Search, as gpuvec_search does. */
extern void IvfpqBulkFind(const IvfpqBulkRequest *request);

/* ----
 * gpuvec_search: the nearest rows of many queries at once.
 *
 * Queries are taken in portions, as many as memory allows.  A portion is
 * searched in rounds (multisearch.c), each of which reranks its candidates in heap
 * order (multirerank.c).
 */

/* Queries of a portion, at most: a number of 16 bits, see IVFPQ_BULK_KEY. */
#define IVFPQ_BULK_PORTION	65536

/* Rows that a second round is for, at least. */
#define IVFPQ_BULK_SECOND	100

/* A row to be reranked for a query: the row's id, then the query's number. */
#define IVFPQ_BULK_ROW_SHIFT		16
#define IVFPQ_BULK_KEY(id, query) \
	((id) << IVFPQ_BULK_ROW_SHIFT | (uint64) (query))
#define IVFPQ_BULK_ROW(key)			((key) >> IVFPQ_BULK_ROW_SHIFT)
#define IVFPQ_BULK_QUERY(key)		((int) ((key) & 0xFFFF))

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
	int			fetched;		/* rows that are fetched, */
	int			invisible;		/* that the snapshot does not see */
	IvfpqBulkBound *bounds;		/* [ncandidates], or NULL */
	int			nfetched;		/* of ids or bounds */
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

	uint64	   *pending;		/* [npending] rows, ascending, unless */
	int64		npending;
	bool		everything;		/* pending rows are so many that all rows are
								 * reranked */
	tidset_hash *pending_set;	/* the same rows, if there are any */

	IvfpqSearch *searches;		/* [nsearches], when trained */
	int			nsearches;		/* at most IVFPQ_TOGETHER */
	MemoryContext portion;		/* reset with every portion, */
	MemoryContext round;		/* and with every slice of a round */
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

/* multisearch.c */

/* multisearch.c */

/* multisearch.c */

/* multirerank.c */
extern void IvfpqBulkTake(IvfpqBulk *bulk, const IvfpqSearch *search,
						  int number, uint32 nearest, int candidates);
extern void IvfpqBulkRerankFound(IvfpqBulk *bulk, int *active, int n);

/* multirerank.c */
extern void IvfpqBulkForget(IvfpqBulk *bulk, int number);
extern void IvfpqBulkRerankPending(IvfpqBulk *bulk, const int *active, int n);
extern void IvfpqBulkRerankAll(IvfpqBulk *bulk, const int *active, int n);
extern void IvfpqBulkSort(IvfpqBulkQuery *query);

#endif							/* IVFPQ_MULTISEARCH_H */
