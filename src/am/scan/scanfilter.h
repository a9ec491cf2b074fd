/*
 * scanfilter.h
 *		Filtered scans: the callbacks and estimates that the node which runs
 *		one (src/planner/customscan.c) gives the access method.
 */
#ifndef IVFPQ_SCANFILTER_H
#define IVFPQ_SCANFILTER_H

#include <math.h>

#include "access/genam.h"
#include "executor/tuptable.h"

#include "am/search/rerank.h"

/* The custom scan that runs filtered scans. */
#define IVFPQ_CUSTOM_NAME	"GpuvecScan"

/* The source of the remaining rows when batches end. */
typedef enum IvfpqRestSource
{
	IVFPQ_REST_NONE,			/* batches were enough */
	IVFPQ_REST_TABLE,			/* all rows of the table */
	IVFPQ_REST_BITMAP,			/* the rows that another index names */
	IVFPQ_REST_LISTS			/* the rows that the index's keys name */
} IvfpqRestSource;

/*
 * The greatest depth of the first batch of a scan with a radius.  No batch is
 * halved below this depth to save time.
 */
#define IVFPQ_FIRST_WITHIN	20

/*
 * A distance beyond which no row is needed (depth.c).  The filter refuses
 * rows outside by itself; the scan may read beyond the radius.
 */
typedef struct IvfpqRadius
{
	bool		is_set;
	bool		is_empty;		/* no row is within */
	double		most;			/* the greatest distance within */
	bool		with_nan;		/* NaN is within, too */
	bool		ends_on_any_row;	/* a row outside that fails the conditions
									 * may end the scan, too */
} IvfpqRadius;

/* The planner's estimates of a filtered scan. */
typedef struct IvfpqFilterGoal
{
	double		rows_needed;	/* 0 = not known */
	double		selectivity;	/* fraction of the index's rows, or of those
								 * that satisfy the key quals, that match */
	double		key_selectivity;	/* fraction of the index's rows that
									 * satisfy the key quals */
	double		qual_ns;		/* the time that early_qual takes for a row */
	double		bitmap_rows;	/* the number of next_bitmap_row's rows */
} IvfpqFilterGoal;

/*
 * A filter.  Rows are the table's, in a slot of its kind.  While a callback
 * runs no lock is held and no request to gpuvecd is under way, because
 * conditions may themselves search.
 */
typedef struct IvfpqScanFilter
{
	/*
	 * Returns whether a candidate matches; called before its distance is
	 * computed.
	 */
	IvfpqEarlyQual early_qual;

	/*
	 * Returns whether a row that left the queue matches; the row is in `row`.
	 */
	bool		(*late_qual) (void *arg, double distance);

	/*
	 * Returns the next of all rows that may match, in any order; NULL at
	 * their end.  The first call starts from the beginning.  NULL: no other
	 * index knows these rows.
	 */
	TupleTableSlot *(*next_bitmap_row) (void *arg);

	void	   *arg;			/* first argument of all three */
	TupleTableSlot *row;		/* the argument of late_qual */
	double		recall;			/* target */
	bool		any_order;		/* rows may come in any order */
	IvfpqRadius radius;
	IvfpqFilterGoal goal;
} IvfpqScanFilter;

/* The filter of a plain scan, which has no callbacks: every row matches. */
extern const IvfpqScanFilter ivfpq_no_filter;

/*
 * Returns whether a distance is beyond the radius.  NaN sorts above all other
 * distances, so a radius of NaN contains every distance.
 */
static inline bool
IvfpqIsOutside(const IvfpqRadius *radius, double distance)
{
	if (!radius->is_set || isnan(radius->most))
		return false;
	return isnan(distance) ? !radius->with_nan : distance > radius->most;
}

extern void IvfpqScanSetFilter(IndexScanDesc scan,
							   const IvfpqScanFilter *filter);
extern bool IvfpqScanIsOfNull(IndexScanDesc scan);

#endif							/* IVFPQ_SCANFILTER_H */
