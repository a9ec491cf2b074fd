/*
 * many.h
 *		gpuvec_search: the nearest rows of many queries at once.
 *
 * Queries are taken in portions, as many as memory allows.  A portion is
 * searched in rounds (rounds.c), each of which measures its candidates in heap
 * order (byrow.c).
 */
#ifndef IVFPQ_MANY_H
#define IVFPQ_MANY_H

#include "am/heap/measure.h"
#include "am/scan/scan.h"
#include "am/search/effort.h"
#include "am/search/search.h"
#include "am/search/tidset.h"
#include "am/value/mixed.h"
#include "am/value/queries.h"
#include "am/value/real.h"

/* Queries of a portion, at most: a number of 16 bits, see IVFPQ_MANY_KEY. */
#define IVFPQ_MANY_PORTION	65536

/* Rows that a second round is for, at least. */
#define IVFPQ_MANY_SECOND	100

/* A row that a query wants measured: the row's id, then the query's number. */
#define IVFPQ_MANY_KEY(id, query)	((id) << 16 | (uint64) (query))
#define IVFPQ_MANY_ROW(key)			((key) >> 16)
#define IVFPQ_MANY_QUERY(key)		((int) ((key) & 0xFFFF))

typedef struct IvfpqManyRow
{
	double		distance;
	uint64		id;				/* of the index's entry: ties go by it */
	ItemPointerData tid;		/* where the row is */
} IvfpqManyRow;

/* A row with a lower bound of its distance. */
typedef struct IvfpqManyBound
{
	double		bound;
	uint64		id;
} IvfpqManyBound;

typedef struct IvfpqManyQuery
{
	Datum		value;			/* of the column's type */
	const float *floats;		/* [dims] as it was asked */
	float	   *vector;			/* [dims] transformed; NULL: untrained */
	bool		is_boundable;	/* refine records say something of it */
	IvfpqManyRow *rows;			/* [k] nearest so far: a heap, the farthest
								 * first, until IvfpqManySort */
	int			nrows;

	/* of the round under way */
	int			ncandidates;
	bool		is_drained;		/* they are all rows of its lists */
	int			tried;			/* rows fetched, */
	int			gone;			/* that the snapshot does not see */
	IvfpqManyBound *bounds;		/* [ncandidates] ascending, or NULL */
	int			nfetched;		/* of these */
} IvfpqManyQuery;

typedef struct IvfpqMany
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
	IvfpqMeasure measure;
	int			pending_dims;	/* pending rows may have others; 0 = no */
	bool		told_odd;

	uint64	   *pending;		/* [npending] rows, ascending, unless */
	int64		npending;
	bool		everything;		/* they are so many that all rows are measured */
	tidset_hash *pending_set;	/* the same rows, if there are any */
	double		most_rows;		/* that the index may have; 0 = not known yet */

	IvfpqSearch *searches;		/* [nsearches], when trained */
	int			nsearches;		/* at most IVFPQ_TOGETHER */
	MemoryContext portion;		/* reset with every portion, */
	MemoryContext round;		/* and with every slice of a round */
	IvfpqManyQuery *asked;		/* [nasked] of the portion */
	int			nasked;
	IvfpqScanReport report;
} IvfpqMany;

/* size.c */
extern bool IvfpqManyEffort(IvfpqMany *many, double rows, int drained,
							IvfpqEffort *effort, bool *is_last);
extern Size IvfpqManySliceBytes(const IvfpqMany *many,
								const IvfpqEffort *effort);
extern int	IvfpqManyTogether(const IvfpqMany *many, const IvfpqEffort *effort);
extern bool IvfpqManyFits(const IvfpqMany *many, const IvfpqEffort *effort);
extern int	IvfpqManyPortion(IvfpqMany *many);

/* rounds.c */
extern void IvfpqManyBegin(IvfpqMany *many);
extern int	IvfpqManyNext(IvfpqMany *many, int first);
extern void IvfpqManyEnd(IvfpqMany *many);

/* byrow.c */
extern void IvfpqManyMeasure(IvfpqMany *many, uint64 *keys, int64 n);
extern void IvfpqManyMeasurePending(IvfpqMany *many, const int *active, int n);
extern void IvfpqManyMeasureAll(IvfpqMany *many, const int *active, int n);
extern void IvfpqManySort(IvfpqManyQuery *query);

#endif							/* IVFPQ_MANY_H */
