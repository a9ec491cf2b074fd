/*
 * manyrows.h
 *		Many searches for other code of this backend (manyrows.c).
 */
#ifndef IVFPQ_MANYROWS_H
#define IVFPQ_MANYROWS_H

#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

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

#endif							/* IVFPQ_MANYROWS_H */
