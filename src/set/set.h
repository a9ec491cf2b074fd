/*
 * set.h
 *		What functions over sets of rows have of each other, by the file that
 *		has it.
 */
#ifndef IVFPQ_SET_H
#define IVFPQ_SET_H

#include "funcapi.h"

#include "set/localset.h"
#include "set/setargs.h"
#include "set/settable.h"

/*
 * graphlists.c: lists of a table's rows, from the centroids of an index.
 */
typedef struct IvfpqLists
{
	GvSetMetric metric;
	int			dims;
	int			n;				/* at least one */
	float	   *centroids;		/* [n][dims] */
} IvfpqLists;

extern Relation IvfpqListsIndex(IvfpqTable *rows, GvSetMetric metric);
extern IvfpqLists *IvfpqListsGet(IvfpqTable *rows, GvSetMetric metric);

/*
 * exactsearch.c: exact neighbors of any number of queries, in as many
 * readings of the table as memory asks for.
 */
typedef struct IvfpqNeighbors
{
	IvfpqTable *rows;			/* surveyed, not empty */
	GvSetMetric metric;
	int			k;				/* 1 .. rows->nrows */
	int64		nqueries;		/* at least one */
	IvfpqTable *from;			/* whose rows are the queries; or NULL and */
	const float *vectors;		/* [nqueries][rows->dims] */
	bool		self;			/* a query is no neighbor of its own: */
	const int64 *selves;		/* [nqueries] its position in rows, or NULL:
								 * its number */
	const IvfpqLists *lists;	/* then only rows of near lists count, or */
	int			probes;			/* NULL; see gv_set.h */
	IvfpqProgressPhase phase;	/* which this is of the command */

	/* gets k neighbors of each query, ascending; position -1: no more */
	void		(*sink) (void *arg, int64 query, const int64 *positions,
						 const double *distances);
	void	   *arg;
} IvfpqNeighbors;

extern void IvfpqFindNeighbors(const IvfpqNeighbors *wanted);

/*
 * graph.c: what graphs and joins return, a row for each pair or, in arrays,
 * one for each key.
 *
 * IvfpqPutNeighbors: those of a key, nearest first, given their positions
 * among `keys`, k or up to the first that is -1; or without positions the
 * first k keys.  A key that has none gives a row with empty arrays, or no
 * pairs.
 */
typedef struct IvfpqPairRows IvfpqPairRows;

extern void IvfpqPutNeighbors(IvfpqPairRows *rows, int64 key,
							  const int64 *keys, const int64 *positions,
							  const double *distances, int k);

/*
 * graph.c: the body of graphs and joins: the nearest rows of one table to
 * every row of another, or of the same.
 */
typedef struct IvfpqPairs
{
	IvfpqPairRows *result;		/* gets each query's neighbors */
	IvfpqTable *queries;		/* both with keys */
	IvfpqTable *rows;			/* the same one for a graph */
	bool		self;			/* then no row is its own neighbor */
	GvSetMetric metric;
	int			k;
} IvfpqPairs;


/*
 * graphsearch.c: the same by searches through an index, if there is one and that
 * is better.  The queries have been surveyed, other rows not.
 */
extern bool IvfpqFindPairsBySearch(const IvfpqPairs *pairs);

/*
 * graphlists.c: some rows whose exact neighbors are known, and how many of
 * them an approximate answer has.
 */
typedef struct IvfpqSampled
{
	const IvfpqPairs *pairs;
	int			n;				/* rows of the sample */
	int64	   *positions;		/* [n] ascending, of pairs->queries */
	float	   *vectors;		/* [n][dims] */
	int64	   *neighbors;		/* [n][k] positions, exact; -1: no more */
	double	   *distances;		/* [n][k] of these */
	int			noted;			/* rows that are done with */
	int64		hits;			/* of their neighbors */
	int64		possible;
} IvfpqSampled;

extern IvfpqSampled *IvfpqSampledBegin(const IvfpqPairs *pairs);
extern void IvfpqSampledNote(IvfpqSampled *sampled, int64 query,
							 const double *distances);
extern void IvfpqSampledEnd(const IvfpqSampled *sampled, const char *how);

/* graphlists.c: how many lists have to be near, by a sample */
extern int	IvfpqProbesFor(const IvfpqSampled *sampled,
						   const IvfpqLists *lists, double recall);

/*
 * clustering.c: seeds, the first centroids of k-means.
 */
typedef struct IvfpqKmeansSeeds IvfpqKmeansSeeds;

extern IvfpqKmeansSeeds *IvfpqKmeansSeedsBegin(int k, int seed);
extern void IvfpqKmeansSeedsOffer(IvfpqKmeansSeeds *seeds, int64 position,
								  const float *vector, int dims);
extern const int64 *IvfpqKmeansSeedsEnd(IvfpqKmeansSeeds *seeds);

/*
 * clustering.c: vectors of very large or very small numbers, for k-means.
 */
typedef struct IvfpqMagnitude
{
	int			most;			/* largest exponent of an element */
	int64		sum;			/* of the largest exponents of vectors */
	int64		n;				/* vectors that are not 0 */
} IvfpqMagnitude;

extern void IvfpqMagnitudeNote(IvfpqMagnitude *magnitude,
							   const float *vector, int dims);
extern int	IvfpqMagnitudeScale(const IvfpqMagnitude *magnitude);
extern void IvfpqScale(const float *from, int64 n, int exponent, float *to);

#endif							/* IVFPQ_SET_H */
