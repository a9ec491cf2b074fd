/*
 * set.h
 *		Types and functions that several whole-table functions share, grouped
 *		by the file that defines the functions.
 */
#ifndef IVFPQ_SET_H
#define IVFPQ_SET_H

#include "funcapi.h"

#include "set/localset.h"
#include "set/setargs.h"
#include "set/settable.h"

/* exactsearch.c: exact neighbors of any number of queries */

/*
 * Lists of a table's rows.  A search that uses lists compares a query only
 * with the rows of the lists that are near the query's own list.  gv_set.h
 * defines which lists are near each other.
 */
typedef struct IvfpqLists
{
	GvSetMetric metric;
	int			dims;
	int			n;				/* at least one */
	float	   *centroids;		/* [n][dims] */
} IvfpqLists;

typedef struct IvfpqNeighbors
{
	IvfpqTable *rows;			/* surveyed, not empty */
	GvSetMetric metric;
	int			k;				/* 1 .. rows->nrows */
	int64		nqueries;		/* at least one */
	IvfpqTable *from;			/* the table whose rows are the queries; NULL
								 * if the queries are in `vectors` */
	const float *vectors;		/* [nqueries][rows->dims] */
	bool		self;			/* the queries are rows of `rows`, and a query
								 * is not returned as its own neighbor */
	const int64 *selves;		/* [nqueries] if `self`: the position of each
								 * query in `rows`; NULL if a query's position
								 * is its number */
	const IvfpqLists *lists;	/* NULL to compare with all rows */
	int			probes;			/* number of lists near each list, if `lists`
								 * is not NULL */
	IvfpqProgressPhase phase;	/* in which progress is reported */

	/*
	 * receives the k neighbors of one query, nearest first; a position of -1
	 * means that there are no more neighbors
	 */
	void		(*sink) (void *arg, int64 query, const int64 *positions,
						 const double *distances);
	void	   *arg;
} IvfpqNeighbors;

/*
 * Finds the neighbors and passes them to the sink, in the order of the
 * queries.  Reads the table once for each group of queries that fits into
 * memory.  May free the vectors that a survey kept (IvfpqTableForget).
 */
extern void IvfpqFindNeighbors(const IvfpqNeighbors *wanted);

/*
 * graph.c: a graph or join, which finds the nearest rows of one table to each
 * row of another table, or of the same table.
 */
typedef struct IvfpqPairs
{
	IvfpqTable *queries;		/* both tables have keys */
	IvfpqTable *rows;			/* for a graph, the same as `queries` */
	bool		self;			/* true for a graph, where a row is not its
								 * own neighbor */
	GvSetMetric metric;
	int			k;
	struct IvfpqPairRows *result;	/* receives each query's neighbors */
} IvfpqPairs;

/* graphlists.c: lists of a table's rows, from the centroids of an index */

/*
 * Opens a gpuivfpq index that is not partial, for this metric and the table's
 * vector column.  Returns NULL if the table has no such index.
 */
extern Relation IvfpqListsIndex(IvfpqTable *rows, GvSetMetric metric);

/*
 * Returns lists of about a thousand rows each, but not more lists than the
 * index for this metric has.  Raises an ERROR if the table has no index that
 * IvfpqListsIndex can open.
 */
extern IvfpqLists *IvfpqListsGet(IvfpqTable *rows, GvSetMetric metric);

/* A sample of the queries with their exact neighbors. */
typedef struct IvfpqRecallSample
{
	const IvfpqPairs *pairs;
	int			n;				/* queries in the sample */
	int64	   *positions;		/* [n] ascending, in pairs->queries */
	float	   *vectors;		/* [n][dims] */
	int64	   *neighbors;		/* [n][k] positions of the exact neighbors; -1
								 * where a query has fewer than k */
	double	   *distances;		/* [n][k] distances of the exact neighbors;
								 * NaN where a query has fewer than k */

	/* counted by IvfpqRecallSampleNote */
	int			noted;			/* queries of the sample that were counted or
								 * passed over */
	int64		hits;			/* exact neighbors of these queries that were
								 * found */
	int64		possible;		/* all exact neighbors of these queries */
} IvfpqRecallSample;

/* Chooses a sample and finds its exact neighbors. */
extern IvfpqRecallSample *IvfpqRecallSampleBegin(const IvfpqPairs *pairs);

/*
 * If the query is in the sample, counts how many of its exact neighbors were
 * found.  `distances` [k] are the ascending distances of the neighbors that
 * were found, followed by NaN if fewer than k were found.  The caller has to
 * pass the queries in ascending order.
 */
extern void IvfpqRecallSampleNote(IvfpqRecallSample *sampled, int64 query,
								  const double *distances);

/*
 * Reports the recall to the user.  `how` is a sentence that says how the
 * neighbors were found.
 */
extern void IvfpqRecallSampleEnd(const IvfpqRecallSample *sampled,
								 const char *how);

/*
 * Returns the smallest number of probes that almost certainly reaches a
 * recall.
 */
extern int	IvfpqProbesFor(const IvfpqRecallSample *sampled,
						   const IvfpqLists *lists, double recall);

/*
 * clustering.c: clusters n vectors [n][dims] in memory by k-means.  May
 * multiply the vectors, in place, by a power of two.  Sets centroids
 * [k][dims], and returns the number of centroids, which is at most k.  k must
 * not be larger than n.
 */
extern int IvfpqCluster (float *vectors, int n, int dims, int k,
						 int iterations, int seed, float *centroids);

#endif							/* IVFPQ_SET_H */
