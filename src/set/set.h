/*
 * set.h
 *		What the functions over sets of rows share, by the file that has it.
 */
#ifndef IVFPQ_SET_H
#define IVFPQ_SET_H

#include "funcapi.h"

#include "engine/gv_set.h"
#include "set/tablerows.h"
#include "set/work.h"

/*
 * argument.c: what users pass.
 */
typedef enum IvfpqMethod
{
	IVFPQ_METHOD_EXACT,			/* every row is compared */
	IVFPQ_METHOD_INDEX			/* those of near lists of a gpuivfpq index */
} IvfpqMethod;

extern GvSetMetric IvfpqMetricArgument(const text *name);
extern const char *IvfpqMetricName(GvSetMetric metric);
extern IvfpqMethod IvfpqMethodArgument(const text *name);
extern void IvfpqCheckRange(const char *name, int value, int least, int most,
							const char *hint);
extern void IvfpqCheckSameDims(const char *one, int one_dims,
							   const char *other, int other_dims);
extern Datum IvfpqMakeArray(const float *vector, int dims);

/*
 * progress.c: what gpuvec_progress shows of this session.  A slot begins
 * with zeros, which name nothing.
 */
typedef enum IvfpqProgressCommand
{
	IVFPQ_PROGRESS_EXACT = 1,
	IVFPQ_PROGRESS_GRAPH,
	IVFPQ_PROGRESS_JOIN,
	IVFPQ_PROGRESS_KMEANS,
	IVFPQ_PROGRESS_PATH
} IvfpqProgressCommand;

typedef enum IvfpqProgressPhase
{
	IVFPQ_PROGRESS_KEYS = 1,	/* rows */
	IVFPQ_PROGRESS_ROWS,
	IVFPQ_PROGRESS_SEARCHING,	/* rows, of all readings */
	IVFPQ_PROGRESS_RECALL,
	IVFPQ_PROGRESS_CLUSTERING,
	IVFPQ_PROGRESS_SORTING,		/* edges */
	IVFPQ_PROGRESS_JOINING,		/* edges, at most all */
	IVFPQ_PROGRESS_WALKING		/* edges, at most all that were joined */
} IvfpqProgressPhase;

extern void IvfpqProgressBegin(IvfpqProgressCommand command, Oid relid);
extern void IvfpqProgressPhaseOf(IvfpqProgressPhase phase, int64 total);
extern void IvfpqProgressDone(int64 done);
extern void IvfpqProgressEnd(void);

/*
 * indexlists.c: lists of a table's rows, from the centroids of an index.
 */
typedef struct IvfpqLists
{
	GvSetMetric metric;
	int			dims;
	int			n;				/* at least one */
	float	   *centroids;		/* [n][dims] */
} IvfpqLists;

extern IvfpqLists *IvfpqListsGet(IvfpqTable *rows, GvSetMetric metric);
extern void IvfpqListsNearest(const IvfpqLists *lists, const float *vectors,
							  int nvectors, int64 *found);
extern void IvfpqListsNear(const IvfpqLists *lists, int64 list, int64 *near);

/*
 * neighbours.c: exact neighbours of any number of queries, in as many
 * readings of the table as memory asks for.
 */
typedef struct IvfpqNeighbours
{
	IvfpqTable *rows;			/* surveyed, not empty */
	GvSetMetric metric;
	int			k;				/* 1 .. rows->nrows */
	int64		nqueries;		/* at least one */
	IvfpqTable *from;			/* whose rows are the queries; or NULL and */
	const float *vectors;		/* [nqueries][rows->dims] */
	bool		self;			/* a query is no neighbour of its own: */
	const int64 *selves;		/* [nqueries] its position in rows, or NULL:
								 * its number */
	const IvfpqLists *lists;	/* then only rows of near lists count, or */
	int			probes;			/* NULL; see gv_set.h */
	IvfpqProgressPhase phase;	/* which this is of the command */

	/* gets k neighbours of each query, ascending; position -1: no more */
	void		(*sink) (void *arg, int64 query, const int64 *positions,
						 const double *distances);
	void	   *arg;
} IvfpqNeighbours;

extern void IvfpqFindNeighbours(const IvfpqNeighbours *wanted);

/*
 * pairs.c: the body of graphs and joins: the nearest rows of one table to
 * every row of another, or of the same.
 */
typedef struct IvfpqPairs
{
	ReturnSetInfo *rsinfo;		/* gets (key, neighbour, rank, distance) */
	IvfpqTable *queries;		/* both with keys */
	IvfpqTable *rows;			/* the same one for a graph */
	bool		self;			/* then no row is its own neighbour */
	GvSetMetric metric;
	int			k;
} IvfpqPairs;

extern void IvfpqFindPairs(const IvfpqPairs *pairs, IvfpqMethod method);

/*
 * sampled.c: some rows whose exact neighbours are known, and how many of
 * them an approximate answer has.
 */
typedef struct IvfpqSampled
{
	const IvfpqPairs *pairs;
	int			n;				/* rows of the sample */
	int64	   *positions;		/* [n] ascending, of pairs->queries */
	float	   *vectors;		/* [n][dims] */
	int64	   *neighbours;		/* [n][k] positions, exact; -1: no more */
	double	   *distances;		/* [n][k] of these */
	int			noted;			/* rows of which the answer is known */
	int64		hits;			/* of their neighbours */
	int64		possible;
} IvfpqSampled;

extern IvfpqSampled *IvfpqSampledBegin(const IvfpqPairs *pairs);
extern void IvfpqSampledNote(IvfpqSampled *sampled, int64 query,
							 const double *distances);
extern void IvfpqSampledEnd(const IvfpqSampled *sampled,
							const IvfpqLists *lists, int probes);

/* probes.c: how many lists have to be near, by a sample */
extern int	IvfpqProbesFor(const IvfpqSampled *sampled,
						   const IvfpqLists *lists, double recall);

/*
 * store.c: vectors that are read again and again, in memory or, beyond
 * maintenance_work_mem, in a temporary file.
 */
typedef struct IvfpqStore IvfpqStore;

extern IvfpqStore *IvfpqStoreBegin(void);
extern void IvfpqStoreAdd(IvfpqStore *store, const float *vector, int dims);
extern int64 IvfpqStoreRows(const IvfpqStore *store);
extern int	IvfpqStoreRead(IvfpqStore *store, int64 first, int64 n,
						   const float **vectors);
extern void IvfpqStoreEnd(IvfpqStore *store);

/*
 * starts.c: first centroids for k-means.
 */
typedef struct IvfpqStarts IvfpqStarts;

extern IvfpqStarts *IvfpqStartsBegin(int k, int seed);
extern void IvfpqStartsOffer(IvfpqStarts *starts, int64 position,
							 const float *vector, int dims);
extern const int64 *IvfpqStartsEnd(IvfpqStarts *starts);

/*
 * scale.c: vectors of very large or very small numbers, for k-means.
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
