/*
 * scanfilter.h
 *		Filtered scans: the callbacks and estimates that the executor node of a
 *		filtered scan (src/planner/customscan.c) gives to the access method.
 */
#ifndef IVFPQ_SCANFILTER_H
#define IVFPQ_SCANFILTER_H

#include <math.h>

#include "access/genam.h"
#include "executor/tuptable.h"

#include "am/search/rerank.h"

/* Name of the custom scan node that runs filtered scans. */
#define IVFPQ_CUSTOM_NAME	"GpuvecScan"

/* Where the remaining rows come from when batches end. */
typedef enum IvfpqRestSource
{
	IVFPQ_REST_NONE,			/* batches were enough */
	IVFPQ_REST_TABLE,			/* all rows of the table */
	IVFPQ_REST_BITMAP,			/* the rows in a bitmap of another index */
	IVFPQ_REST_LISTS			/* the rows whose keys in the lists satisfy
								 * the key quals */
} IvfpqRestSource;

/*
 * The greatest depth of the first batch of a scan with a radius.  If a batch
 * of any scan would take too long, its depth is halved, but not below this
 * value.
 */
#define IVFPQ_FIRST_WITHIN	20

/*
 * A radius: a distance beyond which the statement needs no row (depth.c).  The
 * filter itself rejects rows outside of the radius, so the scan may read
 * beyond it.
 */
typedef struct IvfpqRadius
{
	bool		is_set;
	bool		is_empty;		/* no distance is within the radius */
	double		most;			/* the greatest distance that is within the
								 * radius */
	bool		with_nan;		/* a distance of NaN counts as within the
								 * radius */
	bool		ends_on_any_row;	/* a row outside of the radius may end the
									 * scan even if it fails the other
									 * conditions */
} IvfpqRadius;

/* The planner's estimates of a filtered scan. */
typedef struct IvfpqFilterGoal
{
	double		rows_needed;	/* rows that the statement needs; 0 = not
								 * known */
	double		selectivity;	/* fraction of rows that match, counting only
								 * rows that satisfy the key quals */
	double		key_selectivity;	/* fraction of the index's rows that
									 * satisfy the key quals */
	double		qual_ns;		/* time of early_qual for a row, in
								 * nanoseconds */
	double		bitmap_rows;	/* rows that next_bitmap_row returns */
} IvfpqFilterGoal;

/*
 * A filter.  Rows are passed in slots of the table's slot type
 * (table_slot_callbacks).  While a callback runs, no lock is held and no
 * request to gpuvecd is under way, because conditions may run searches
 * themselves.
 */
typedef struct IvfpqScanFilter
{
	/*
	 * Returns whether a candidate matches.  Called before its distance is
	 * known.
	 */
	IvfpqEarlyQual early_qual;

	/* Returns whether the row in slot `row`, which left the queue, matches. */
	bool		(*late_qual) (void *arg, double distance);

	/*
	 * Returns the next row that may match, in any order, or NULL if there are
	 * no more.  The first call of a scan starts from the first row.  The
	 * pointer itself is NULL if no other index can find these rows.
	 */
	TupleTableSlot *(*next_bitmap_row) (void *arg);

	void	   *arg;			/* first argument of all three callbacks */
	TupleTableSlot *row;		/* slot of the row that late_qual tests */
	double		recall;			/* target recall */
	bool		any_order;		/* rows may be returned in any order */
	IvfpqRadius radius;
	IvfpqFilterGoal goal;
} IvfpqScanFilter;

/* The filter of a plain scan.  It has no callbacks, and every row matches. */
extern const IvfpqScanFilter ivfpq_no_filter;

/*
 * Returns whether a distance is beyond the radius.  NaN sorts above all other
 * distances, so if the radius is NaN, no distance is beyond it.
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
