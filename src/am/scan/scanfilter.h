/*
 * scanfilter.h
 *		A scan that knows which rows are wanted: what it asks of whoever runs
 *		it (../filter), and how it then reads (depth.c, batch.c).
 */
#ifndef IVFPQ_SCANFILTER_H
#define IVFPQ_SCANFILTER_H

#include "access/genam.h"
#include "executor/tuptable.h"

#include "am/search/rerank.h"

/* The custom scan that runs filtered scans. */
#define IVFPQ_CUSTOM_NAME	"GpuvecScan"

/* How the rows behind those of batches were found. */
typedef enum IvfpqRest
{
	IVFPQ_REST_NONE,			/* batches were enough */
	IVFPQ_REST_FULL_PASS,		/* the whole table was read */
	IVFPQ_REST_MATCHES,			/* another index said which rows match */
	IVFPQ_REST_LISTS			/* the index did so by its keys */
} IvfpqRest;

/* Rows that a filter's scan goes for first, where a radius bounds them. */
#define IVFPQ_FIRST_WITHIN	20

/*
 * A distance beyond which no row is wanted (depth.c).  The filter refuses
 * rows outside by itself; the scan may read on as far as it likes.
 */
typedef struct IvfpqRadius
{
	bool		is_set;
	bool		is_empty;		/* no row is within */
	double		most;			/* the greatest distance within */
	bool		with_nan;		/* NaN is within, too */
	bool		by_all;			/* rows that do not pass may end the scan */
} IvfpqRadius;

/*
 * A filter.  Rows are the table's, in a slot of its kind.  While a callback
 * runs no lock is held and gpuvecd is not asked anything: conditions may
 * search themselves.
 */
typedef struct IvfpqFilter
{
	/* Asked of every candidate, before its distance is known. */
	IvfpqSatisfies satisfies;

	/*
	 * Asked of a row that passed, when it comes up in its order; the row is
	 * in `row`.
	 */
	bool		(*admits) (void *arg, double distance);

	/*
	 * The next of all rows that may match, in any order; NULL at their end.
	 * The first call begins anew.  NULL: no other index knows.
	 */
	TupleTableSlot *(*next_match) (void *arg);

	void	   *arg;			/* of all three */
	TupleTableSlot *row;		/* the row that came up last */
	double		recall;			/* asked of the scan */
	bool		any_order;		/* rows may come in any */
	IvfpqRadius radius;
	double		rows_needed;	/* rows likely to be wanted; 0 = not known */
	double		selectivity;	/* of the index's rows, or of those that
								 * satisfy conditions on keys, those that
								 * pass, likely */
	double		key_selectivity;	/* of the index's rows that satisfy these,
									 * likely */
	double		qual_ns;		/* what `satisfies` takes for a row */
	double		matches;		/* rows that next_match brings, likely */
} IvfpqFilter;

/* Counts of a filtered scan, for EXPLAIN; any scan sets `rest`. */
typedef struct IvfpqFilterReport
{
	int64		rejected;		/* rows that did not pass */
	int64		refused;		/* rows that came up and were not admitted */
	IvfpqRest	rest;
} IvfpqFilterReport;

extern void IvfpqScanFilter(IndexScanDesc scan, IvfpqFilter *filter);
extern bool IvfpqScanIsOfNull(IndexScanDesc scan);

#endif							/* IVFPQ_SCANFILTER_H */
