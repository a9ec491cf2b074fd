/*
 * depth.c
 *		Decides the depth and the search parameters of the next batch of a
 *		scan, and whether another source of rows is better.
 *
 * Calibration gives the search parameters for the nearest n rows.  Only some
 * of these rows match, which means that they satisfy the filter and that the
 * snapshot sees them.  If ten rows are needed and the selectivity is a tenth,
 * the scan must search for a hundred rows.  At first, the selectivity is the
 * planner's estimate.  Later it is computed from the rows of the batches so
 * far.  In a plain scan it is 1, unless statistics or the rows fetched show
 * otherwise.  With key quals, all depths count only rows that satisfy the key
 * quals.
 *
 * The batches of a plain scan search down to the depths of IvfpqBatchRows: the
 * first batch to the smallest depth that is not below LIMIT, if LIMIT is
 * known, and each later batch to the next depth.  These depths do not depend
 * on OFFSET, so statements that differ only in OFFSET see the rows in the same
 * order.
 *
 * The quota of a batch is the number of matching rows among the nearest n
 * rows, as ranked by the scores of the candidates.  So it does not matter
 * whether the matching rows are near the query or far from it.
 *
 * The search parameters for n rows reach the target recall even among the last
 * of these n rows, and exceed it among all n.  Matching rows are most likely
 * spread over all n rows, so the search parameters for fewer rows suffice to
 * find them.  If most of the matching rows lie beyond those fewer rows, the
 * quota is made smaller.  A later batch returns only the last of its n rows,
 * so it takes the search parameters for n.
 *
 * Rows that a batch has missed are found by the next batch, out of order.  If
 * they are more than a fraction of 1 - recall of the rows returned,
 * calibration does not hold for this query, and later batches take the search
 * parameters for more rows.
 *
 * A radius ends a scan.  Rows leave the queue nearest first.  If a row outside
 * of the radius leaves the queue before the quota of the batch is used up, the
 * batch has read everything within the radius, at the target recall.  But if
 * few rows match a filter, it may happen that no row leaves the queue.  So
 * when the quota is used up, some candidates around the last rank of the depth
 * are reranked, whether they match or not.  If all of them are outside, fewer
 * rows than the depth are within the radius.  Otherwise the batch was not deep
 * enough, and the number of rows within the radius is estimated.  If most of
 * the rows reranked so far are outside, few of the rows not fetched yet are
 * within the radius.  Otherwise the distances at two ranks show how fast
 * distances grow.
 */
#include "postgres.h"

#include <math.h>

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "catalog/pg_index.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/float.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/scan/scan.h"
#include "client/client.h"
#include "page/injection.h"

/* Assumed number of rows needed, if the real number is not known. */
#define DEFAULT_ROWS_NEEDED		10

/*
 * If n rows are needed, a batch searches for n + MARGIN * sqrt(n) matching
 * rows, because the number of matching rows found varies by about sqrt(n).
 * The margin costs less than another batch would.
 */
#define MARGIN				1.2

/*
 * The calibrated ranks are the ranks up to the depth that the search
 * parameters are calibrated for.  If matching rows are spread over the depth,
 * the quota counts all matching rows in these ranks, and at most MOST_BEHIND *
 * h matching rows beyond them, where h matching rows are in the first half of
 * the calibrated ranks.
 */
#define MOST_BEHIND			2.0

/*
 * If m rows match within the depth, they are taken to be spread over the depth
 * if at least m / LEAST_NEARER of them lie in the first half of the calibrated
 * ranks.  If the planner expected more than FAR_FEWER * m matching rows, at
 * least m / LEAST_NEARER_OF_FEW of them must lie there.
 */
#define LEAST_NEARER		8
#define LEAST_NEARER_OF_FEW	3
#define FAR_FEWER			4

/*
 * The depth of the first batch follows from the planner's estimate of the
 * selectivity if this depth is at most MOST_FIRST * n, where n rows are
 * needed.  Otherwise the batch is a trial, whose depth is at most MOST_TRIED *
 * n.
 */
#define MOST_FIRST			150
#define MOST_TRIED			10

/*
 * Least and greatest depth of a later batch, as multiples of the previous
 * batch's depth.
 */
#define LEAST_GROWTH		2
#define MOST_GROWTH			16

/*
 * The selectivity is known well once SOME_MATCHED rows have matched, if the
 * planner's estimate is about right, or MANY_MATCHED rows, if the estimate is
 * wrong.  Once FEW_MATCHED rows have matched, the selectivity is computed from
 * the number of matching rows alone.
 */
#define SOME_MATCHED			2
#define FEW_MATCHED			5
#define MANY_MATCHED			8

/*
 * Postings of a batch's lists are counted if there are to be more candidates
 * than this fraction of the postings that so many lists have on average.
 */
#define COUNTED_FRACTION	0.25

/* Another index may be used once this many rows were rejected. */
#define LEAST_REJECTED		500

/*
 * Limits of a batch's time, as fractions of the time of the best other source.
 * BATCHES_FRACTION holds in general, and SURE_BATCHES_FRACTION if the
 * selectivity is known well.  If the selectivity is not known well, a batch
 * may be a trial that measures it.  The limit is TRIAL_FRACTION if the first
 * batch is a trial, and MORE_TRIAL_FRACTION if a later batch is a trial.
 */
#define BATCHES_FRACTION		0.25
#define SURE_BATCHES_FRACTION	0.6
#define TRIAL_FRACTION			0.08
#define MORE_TRIAL_FRACTION	0.15

/*
 * A full pass reads the remaining rows if the rows out of order exceed
 * MOST_OUT_OF_ORDER * (1 - recall) of the rows returned.  This is tested only
 * after LEAST_RETURNED rows were returned.  Until the full pass, if rows were
 * out of order, a batch for n rows takes the search parameters for up to
 * MOST_SCALE * n rows.
 */
#define MOST_OUT_OF_ORDER			2.0
#define LEAST_RETURNED		100
#define MOST_SCALE			16.0

/* A later batch for n rows takes the parameters for LATER_SCALE * n rows. */
#define LATER_SCALE			1.6

/*
 * At a depth at which calibration did not reach the recall, a full pass
 * replaces the batch if the quota would exceed MOST_UNKNOWN * (1 - recall) of
 * all rows, or MOST_UNKNOWN_FILTERED * (1 - recall) in a filtered scan.
 */
#define MOST_UNKNOWN		1.0
#define MOST_UNKNOWN_FILTERED	2.0

/*
 * The number of rows within a radius is estimated from the distances at two
 * ranks: the last rank of the depth, and that rank divided by NEARER_PART.  Of
 * the rows reranked around each rank, the snapshot must see at least
 * LEAST_SEEN.
 */
#define NEARER_PART		4
#define LEAST_SEEN		3

/*
 * With a radius, the depth of a batch is at most RADIUS_MARGIN times the
 * estimated number of rows within the radius.  If there is no estimate, the
 * depth is at most USUAL_GROWTH times the previous batch's depth.
 */
#define RADIUS_MARGIN	1.4
#define USUAL_GROWTH	4

/*
 * If at most WITHIN_PART of the rows counted are within the radius, few of the
 * rows not fetched yet are within it.  This is tested only after LEAST_COUNTED
 * rows were counted.
 */
#define LEAST_COUNTED	10
#define WITHIN_PART		(1.0 / 3)

/* A batch that has no other limit is limited to this many candidates. */
#define ALL_CANDIDATES	(PG_INT32_MAX / 4)

/*
 * Bytes for each probed list, for each posting in an answer of gpuvecd, and for
 * its row's distance.
 */
#define LIST_BYTES		(64 + 2 * sizeof(IvfpqDirEntry))
#define ANSWER_BYTES	(32 + sizeof(IvfpqKnownRecord))
#define DISTANCE_BYTES	(sizeof(GvRowDistance) + sizeof(IvfpqKnownDistance))

/* Times in nanoseconds, in addition to those of params.h. */
#define CANDIDATE_NS		250.0	/* a candidate, besides scanning lists */
#define PAGE_NS				180.0	/* a page of a sequential scan */
#define ROW_NS				70.0	/* a row on such a page */
#define KEYS_NS				6.0 /* testing a posting's keys */
#define MATCH_NS			150.0	/* a row that another index finds */
#define SORT_NS				200.0	/* sorting a row */
#define TOAST_NS			4000.0	/* reading a toasted vector */
#define COLD_PAGE_NS		5000.0	/* page of a sequential scan, from disk */
#define COLD_FETCH_NS		20000.0 /* page of a single row, from disk */

/* Counts of rows in the batches so far, and estimates from them. */
typedef struct Matching
{
	double		looked;			/* number of nearest rows examined */
	double		matched;		/* number of examined rows that match and pass
								 * late_qual */
	double		selectivity;	/* estimated selectivity of the rows that were
								 * not examined */
	bool		is_sure;		/* the selectivity is known well */
} Matching;

/*
 * Returns whether matching rows are probably spread at random among all rows.
 * Otherwise matching rows may resemble each other, and so be clustered in
 * lists of their own, far from the query.  A search finds fewer of these rows
 * than calibration predicts.
 */
static bool
matches_are_spread(const IvfpqScanRun *run)
{
	const IvfpqScanDepth *depth = &run->depth;
	double		expected;

	if (!run->is_filtered || run->search.addresses ||
		run->filter->radius.is_set)
		return true;
	expected = run->filter->goal.selectivity * depth->visible * depth->rows;
	if (depth->matched < FEW_MATCHED)
		return depth->matched + 1 + 2 * sqrt(expected) >= expected;
	return depth->matched_near * (depth->matched * FAR_FEWER < expected ?
								  LEAST_NEARER_OF_FEW : LEAST_NEARER) >=
		depth->matched;
}

/* Sets *matching from the counts of the batches so far. */
static void
count_matching(const IvfpqScanRun *run, Matching *matching)
{
	const IvfpqScanRows *rows = &run->rows;
	double		guess = run->filter->goal.selectivity * run->depth.visible;
	double		expected;
	bool		agrees;

	matching->looked = run->depth.rows;
	matching->matched = run->depth.matched;
	if (rows->bounded)
	{
		matching->looked = rows->popped;
		matching->matched = rows->returned;
		if (!run->is_filtered)	/* popped does not count invisible rows */
			matching->looked += (double) rows->invisible;
	}
	else if (rows->popped > 0)
		matching->matched *= (double) rows->returned / rows->popped;
	expected = guess * matching->looked;
	agrees = fabs(matching->matched - expected) <= 1 + 2 * sqrt(expected);
	matching->is_sure = matches_are_spread(run) &&
		matching->matched >= (agrees ? SOME_MATCHED : MANY_MATCHED);
	if ((agrees && matching->matched < FEW_MATCHED) || matching->looked == 0)
		matching->selectivity = guess;
	else if (matching->matched >= FEW_MATCHED)
		matching->selectivity = matching->matched / matching->looked;
	else						/* assume that the next row matches */
		matching->selectivity = (matching->matched + 1) / matching->looked;
	matching->selectivity =
		Max(Min(matching->selectivity, 1), IVFPQ_LEAST_SELECTIVITY);
}

/* Returns how many rows in total the scan needs after the next batch. */
static double
needed_rows(const IvfpqScanRun *run)
{
	const IvfpqMetaData *meta = &run->model->meta;
	double		rows_needed = run->depth.rows_needed;

	if (!run->is_filtered)
		rows_needed = IvfpqBatchRows(run->index, meta, rows_needed);
	else if (rows_needed <= 0)
		rows_needed = DEFAULT_ROWS_NEEDED;
	while (rows_needed <= run->rows.returned)
		rows_needed = IvfpqBatchRows(run->index, meta, rows_needed + 1);
	return rows_needed;
}

/*
 * Returns whether the rows needed are assumed to be spread over the depth.
 * With a radius they are not, because the last rows of the depth end the scan.
 * In a later batch they are not, because it returns only the last rows of its
 * depth.  Without a filter and key quals, all rows of the depth are returned.
 * In a filtered scan with refine records, the rank of a matching row is not
 * known.
 */
static bool
needed_are_spread(const IvfpqScanRun *run)
{
	if (run->rows.returned > 0)
		return false;
	if (!run->is_filtered)
		return run->keys.any;
	return !run->search.addresses && !run->filter->radius.is_set;
}

/*
 * Returns whether the number of rows out of order is significantly above
 * `factor` times the expected number.
 */
static bool
is_out_of_order_beyond(const IvfpqScanRun *run, double factor)
{
	double		most = factor * (1 - run->query.recall) *
	(double) run->rows.returned;

	return run->rows.out_of_order > most + 2 * sqrt(most) + 1;
}

/*
 * Returns whether so many rows were out of order that a full pass must return
 * the next rows.  If gpuvec.max_probes limits the lists, there is no such full
 * pass.
 */
bool
IvfpqDepthNeedsFullPass(const IvfpqScanRun *run)
{
	return run->rows.out_of_order > 0 && run->query.strict &&
		run->query.recall < 1 && ivfpq_max_probes == 0 &&
		run->rows.returned >= LEAST_RETURNED &&
		is_out_of_order_beyond(run, MOST_OUT_OF_ORDER);
}

/* Sets *params for a batch of this depth. */
static void
params_at(const IvfpqScanRun *run, double depth, IvfpqSearchParams *params)
{
	double		expected = (1 - run->query.recall) *
	(double) run->rows.returned;	/* rows expected out of order */
	double		scale = run->rows.returned > 0 ? LATER_SCALE : 1;
	double		among;
	double		spread;

	depth = Min(depth, ALL_CANDIDATES);

	/*
	 * Take the parameters for more rows in a later batch, which returns only
	 * the last of its rows, and after too many rows were out of order.  If
	 * calibration reached the recall for the rows of this depth, take at most
	 * the rows for which it reached the recall.
	 */
	if (run->query.strict && run->rows.out_of_order > 0 &&
		run->query.recall < 1 && is_out_of_order_beyond(run, 1))
		scale = Max(Min(run->rows.out_of_order / expected, MOST_SCALE),
					scale);
	among = depth / run->keys.selectivity;
	if (scale != 1)
	{
		double		known = IvfpqKnownRows(&run->model->meta,
										   run->query.recall);

		among = among > known ? among * scale : Min(among * scale, known);
	}
	spread = among;
	if (needed_are_spread(run))
		spread = IvfpqSpreadRows(among, !run->is_filtered);
	IvfpqParamsForMatches(params, run->index, &run->model->meta,
						  run->query.recall, among, spread);
	if (run->keys.any)
		params->candidates = IvfpqKeyCandidates(params->candidates,
												run->keys.selectivity);
	if (run->is_filtered)
		params->candidates = Max(params->candidates, (int) depth);
	params->quota = (int64) depth;
}

/* Estimates the time to rerank a row that has been fetched. */
static double
rerank_ns(const IvfpqScanRun *run)
{
	int			dims = run->model->meta.dims;

	return IVFPQ_DIMENSION_NS * dims +
		(dims * sizeof(float) > TOAST_TUPLE_THRESHOLD ? TOAST_NS : 0);
}

/* Estimates the time to fetch a row by its TID and test the filter on it. */
static double
fetch_ns(const IvfpqScanRun *run)
{
	return (IvfpqRerankReadsFromDisk(run->rerank) ? COLD_FETCH_NS :
			IVFPQ_FETCH_NS) + run->filter->goal.qual_ns;
}

/* Estimates the time of a batch of this depth. */
static double
batch_ns(const IvfpqScanRun *run, double depth, double selectivity)
{
	const IvfpqMetaData *meta = &run->model->meta;
	IvfpqSearchParams params;
	double		postings;
	double		fetched;
	double		records = 0;

	params_at(run, depth, &params);
	postings = Min(meta->rows_at_calibration,
				   IvfpqRowsAbout(run->index, meta)) * meta->lists_per_row *
		params.probes / meta->nlists;
	fetched = params.candidates;
	if (run->search.addresses)
	{
		records = fetched;
		fetched = depth;
	}
	return postings * meta->pq_dim * IVFPQ_LOOKUP_NS +
		records * (IVFPQ_RECORD_NS + IVFPQ_RECORD_DIMENSION_NS * meta->dims) +
		params.candidates * CANDIDATE_NS +
		Max(fetched - run->rows.fetched, 0) *
		(fetch_ns(run) + selectivity * rerank_ns(run));
}

/* Estimates the number of rows of the table. */
static double
table_rows(const IvfpqScanRun *run)
{
	return Max(run->rerank->heap->rd_rel->reltuples,
			   IvfpqRowsAbout(run->index, &run->model->meta));
}

/* Estimates the number of rows of the index, which may be partial. */
static double
index_rows(const IvfpqScanRun *run)
{
	double		rows = IvfpqRowsAbout(run->index, &run->model->meta);

	if (rows <= 0 || heap_attisnull(run->index->rd_indextuple,
									Anum_pg_index_indpred, NULL))
		return table_rows(run);
	return rows;
}

/* Estimates the time to read the table and find all matching rows in it. */
static double
table_ns(const IvfpqScanRun *run, double selectivity)
{
	return (IvfpqRerankReadsFromDisk(run->rerank) ? COLD_PAGE_NS : PAGE_NS) *
		run->rerank->heap_blocks +
		table_rows(run) * (ROW_NS + run->filter->goal.qual_ns) +
		index_rows(run) * run->keys.selectivity * selectivity *
		(rerank_ns(run) + SORT_NS);
}

/*
 * Estimates the time to find the remaining rows from the best source other
 * than batches, and sets *source to that source.  Another index is considered
 * only if `must` is set, or once LEAST_REJECTED rows were rejected.
 */
static double
rest_ns(const IvfpqScanRun *run, const Matching *matching, bool must,
		IvfpqRestSource *source)
{
	double		rest = table_ns(run, matching->selectivity);
	double		rows = index_rows(run);
	double		matched;
	double		lists;
	double		bitmap;

	/* the time to test the keys of all postings */
	lists = rows * run->model->meta.lists_per_row * KEYS_NS +
		run->keys.selectivity * rows *
		(SORT_NS + fetch_ns(run) +
		 matching->selectivity * (rerank_ns(run) + SORT_NS));
	*source = IVFPQ_REST_TABLE;
	if (run->keys.any && lists < rest)
	{
		*source = IVFPQ_REST_LISTS;
		rest = lists;
	}

	/* the time to find the rows through another index */
	if (run->filter->next_bitmap_row == NULL ||
		(!must && run->rows.rejected < LEAST_REJECTED))
		return rest;
	matched = run->keys.selectivity * matching->selectivity * rows;
	bitmap = Max(run->filter->goal.bitmap_rows, matched) *
		(MATCH_NS + fetch_ns(run)) + matched * (rerank_ns(run) + SORT_NS);
	if (bitmap < rest)
		*source = IVFPQ_REST_BITMAP;
	return Min(bitmap, rest);
}

/*
 * Halves `depth` until a batch of that depth takes at most the fraction
 * `allowed` of the time `rest`.  Does not go below IVFPQ_FIRST_WITHIN.
 */
static double
depth_within(const IvfpqScanRun *run, const Matching *matching, double depth,
			 double allowed, double rest)
{
	while (depth / 2 >= IVFPQ_FIRST_WITHIN &&
		   batch_ns(run, depth, matching->selectivity) > allowed * rest)
		depth /= 2;
	return depth;
}

/*
 * Returns the depth of the next batch.  `needed` is the estimated depth of the
 * rows needed.  With a radius, the likely number of rows within the radius
 * also limits the depth.
 */
static double
radius_depth(const IvfpqScanRun *run, double needed)
{
	const IvfpqScanRadius *radius = &run->depth.radius;
	double		depth = run->depth.rows;
	double		within;			/* rows within the radius, matching or not */

	if (!run->filter->radius.is_set)
		return needed;
	if (run->depth.batches == 0)
		return Min(needed, IVFPQ_FIRST_WITHIN);

	/* estimate by ranks and, if enough rows were counted, by the counts */
	within = radius->est_within > 0 ? radius->est_within :
		USUAL_GROWTH / RADIUS_MARGIN * depth;
	if (radius->counted >= LEAST_COUNTED)
	{
		double		counted = (double) radius->counted_within /
		radius->counted *
		Max(run->rows.fetched - run->rows.invisible, radius->counted);

		if (radius->counted_within <= WITHIN_PART * radius->counted)
			within = counted;
		else
			within = Max(counted, within);
	}
	return Min(needed, Max(LEAST_GROWTH * depth,
						   Min(RADIUS_MARGIN * within, MOST_GROWTH * depth)));
}

/*
 * Returns the depth of the first batch of a filtered scan.  `needed` is the
 * estimated depth of the rows needed.  If it is too deep for a first batch and
 * another index can find the remaining rows, the batch is just deep enough to
 * reject LEAST_REJECTED rows, because that index is considered only after so
 * many rows were rejected.  Without such an index, the batch is a trial that
 * costs little.
 */
static double
first_depth(const IvfpqScanRun *run, const Matching *matching, double needed)
{
	double		rows_needed = Max(run->filter->goal.rows_needed,
								  DEFAULT_ROWS_NEEDED);
	double		rest = table_ns(run, matching->selectivity);

	if (needed <= MOST_FIRST * rows_needed &&
		batch_ns(run, needed, matching->selectivity) <=
		BATCHES_FRACTION * rest)
		return needed;
	if (run->filter->next_bitmap_row != NULL)
		return Min(needed, 1.1 * LEAST_REJECTED);
	return depth_within(run, matching, Min(needed, MOST_TRIED * rows_needed),
						TRIAL_FRACTION, rest);
}

/*
 * Returns the depth of a later batch of a filtered scan, or 0 if another
 * source of the remaining rows is better.  If the selectivity is not known
 * well, the batch may be a trial that costs little.
 */
static double
later_depth(const IvfpqScanRun *run, const Matching *matching, double needed)
{
	double		least = LEAST_GROWTH * run->depth.rows;
	double		most = Max(least, Min(needed, MOST_GROWTH * run->depth.rows));
	IvfpqRestSource source;
	double		rest = rest_ns(run, matching, false, &source);
	bool		by_bitmap = source == IVFPQ_REST_BITMAP;
	double		allowed = by_bitmap ? 1 :
	matching->is_sure ? SURE_BATCHES_FRACTION : BATCHES_FRACTION;

	if (batch_ns(run, radius_depth(run, needed), matching->selectivity) <=
		allowed * rest)
		return most;
	if (by_bitmap || matching->is_sure || run->filter->radius.is_set)
		return 0;
	most = depth_within(run, matching, most, MORE_TRIAL_FRACTION, rest);
	return most >= least &&
		most * matching->selectivity >= SOME_MATCHED ? most : 0;
}

/* Returns the depth of the next batch, or 0 if another source is better. */
static double
next_depth(const IvfpqScanRun *run, const Matching *matching)
{
	double		needed = needed_rows(run);

	/* enough rows must match within the depth */
	if (run->is_filtered || matching->selectivity < 1)
		needed = Max((needed + MARGIN * sqrt(needed)) / matching->selectivity,
					 IVFPQ_FIRST_ROWS);
	if (run->is_filtered)
		return run->depth.batches == 0 ? first_depth(run, matching, needed) :
			later_depth(run, matching, needed);
	return run->depth.batches == 0 ? needed :
		IvfpqBatchRows(run->index, &run->model->meta, run->depth.rows + 1);
}

/* Sets run->depth.params, the search parameters of the next batch. */
void
IvfpqDepthNext(IvfpqScanRun *run)
{
	Matching	matching;
	double		depth;

	count_matching(run, &matching);
	depth = next_depth(run, &matching);

	/*
	 * if another source is better, this batch is done only if
	 * gpuvec.max_probes excludes that source
	 */
	if (depth == 0)
		depth = LEAST_GROWTH * run->depth.rows;
	params_at(run, radius_depth(run, depth), &run->depth.params);
}

/*
 * Returns whether the next batch would return too many rows at a depth at
 * which calibration did not reach the recall.
 *
 * A scan in strict order leaves out rows that are nearer than rows returned
 * before.  If a condition has rejected most rows so far, the rows left out may
 * be the only ones that satisfy it.  A full pass leaves out only rows that are
 * nearer than the last row returned before the pass.  So the fraction of rows
 * left out is at most the fraction of rows returned before the pass, and this
 * function limits that fraction.
 *
 * At a depth at which calibration reached the recall, the recall holds for
 * such a condition, too.  At other depths, the limit does not apply to the
 * first rows.  In a filtered scan these are the rows of the first batch.  In
 * other scans they are as many rows as the first two batches of a scan without
 * LIMIT return, or the first such batch alone if the target recall is 1.
 */
static bool
is_unknown(const IvfpqScanRun *run)
{
	const IvfpqMetaData *meta = &run->model->meta;
	const IvfpqSearchParams *params = &run->depth.params;
	double		fraction = 1 - run->query.recall;
	bool		is_first = run->depth.batches == 0;

	if (!run->is_filtered)
	{
		double		first_rows = 0;

		for (int i = 0; i < (fraction > 0 ? 2 : 1); i++)
			first_rows = IvfpqBatchRows(run->index, meta, first_rows + 1);
		is_first = needed_rows(run) <= first_rows;
	}
	if (!run->query.strict || params->calibrated || is_first)
		return false;
	fraction *= run->is_filtered ? MOST_UNKNOWN_FILTERED : MOST_UNKNOWN;
	return fraction <= 0 ||
		!IvfpqHasRows(run->index, meta,
					  params->quota / run->keys.selectivity / fraction);
}

/*
 * Returns whether a batch of this many candidates would rerank such a large
 * fraction of the table that a full pass is better.
 */
bool
IvfpqDepthIsTooLarge(Relation index, const IvfpqMetaData *meta,
					 int candidates)
{
	return candidates > IVFPQ_MIN_RERANKED &&
		!IvfpqHasRows(index, meta, candidates / IVFPQ_RERANKED_FRACTION);
}

/*
 * Chooses the source of the next rows.  IVFPQ_REST_NONE means the batch that
 * run->depth.params describes.  If `must` is set, that batch is not chosen.
 */
IvfpqRestSource
IvfpqDepthRest(const IvfpqScanRun *run, bool must)
{
	const IvfpqSearchParams *params = &run->depth.params;
	bool		leaves = must || is_unknown(run) ||
	IvfpqDepthNeedsFullPass(run);
	Matching	matching;
	IvfpqRestSource source;

	if (!run->is_filtered)
	{
		/*
		 * A full pass is better than a later batch if the batch has too many
		 * candidates, or if calibration did not reach the target recall at
		 * its depth.  With key quals only the number of candidates counts,
		 * because a batch can then take all lists.
		 */
		if (!leaves && run->depth.batches > 0)
			leaves = (params->recall_unreached && !run->keys.any) ||
				IvfpqDepthIsTooLarge(run->index, &run->model->meta,
									 params->candidates);
		return !leaves ? IVFPQ_REST_NONE :
			run->keys.any ? IVFPQ_REST_LISTS : IVFPQ_REST_TABLE;
	}
	count_matching(run, &matching);
	(void) rest_ns(run, &matching, must, &source);
	return leaves || next_depth(run, &matching) == 0 ? source :
		IVFPQ_REST_NONE;
}

static double
set_bytes(double n)
{
	return sizeof(TidSetEntry) *
		(double) pg_nextpower2_64((uint64) (n / 0.9) + 2);
}

/*
 * Returns whether a batch of this size may begin.  The memory that the scan
 * holds, plus the memory that the batch adds, must not exceed
 * get_hash_memory_limit().
 */
bool
IvfpqDepthFits(const IvfpqScanRun *run, int probes, int64 candidates)
{
	double		postings = (double) candidates *
	run->model->meta.lists_per_row;
	double		found;			/* bytes of the postings found, the lists
								 * probed and gpuvecd's answers */
	double		search;			/* bytes of the search's scratch and its table
								 * of distinct rows */
	double		rows;			/* bytes of the queue and rows.seen; most are
								 * used while rows.seen is enlarged */
	Size		row_bytes = sizeof(IvfpqQueuedRow);

	if (candidates <= IVFPQ_FEW_CANDIDATES)
		return true;
	found = postings * (sizeof(float) + sizeof(uint64)) + probes * LIST_BYTES;
	if (IvfpqServerIsWanted())
		found += postings * (ANSWER_BYTES + (run->search.asked != NULL ?
											 DISTANCE_BYTES : 0));
	search = gv_scan_scratch(run->model->gv.m,
							 (int32) Min(postings, PG_INT32_MAX)) +
		set_bytes(candidates);
	if (run->search.addresses || run->search.asked != NULL)
		/* for bounds and prefetching */
		row_bytes += sizeof(IvfpqQueuedRow) + sizeof(IvfpqNextRow) +
			sizeof(IvfpqRowBounds) + 2 * sizeof(uint64);
	rows = candidates * row_bytes +
		1.5 * set_bytes((double) run->rows.seen->members + candidates);
	return MemoryContextMemAllocated(run->context, true) + found +
		Max(search, rows) <= get_hash_memory_limit();
}

/*
 * Limits the probes of a batch to the lists that may be probed, and sets *most
 * to the number of these lists.  If the previous batch found all rows of its
 * lists, ndrained is the number of these lists, else 0.  This batch then
 * probes more than ndrained lists, even if a damaged calibration says
 * otherwise.
 *
 * If another source of the next rows is better (is_rest), returns false,
 * unless gpuvec.max_probes is set.  In that case a full pass would read lists
 * that may not be probed, so instead one last batch takes all lists that may
 * be probed.
 */
bool
IvfpqDepthLimitProbes(IvfpqSearchParams *params, Relation index,
					  const IvfpqMetaData *meta, double recall, bool is_rest,
					  int ndrained, int *most)
{
	*most = meta->nlists;
	if (is_rest && ivfpq_max_probes == 0)
		return false;
	if (ivfpq_max_probes > 0)
	{
		IvfpqSearchParams first;

		IvfpqParamsForBatch(&first, index, meta, recall, 0);
		*most = Min(*most, Max(ivfpq_max_probes, first.probes));
	}
	if (is_rest)
	{
		params->probes = *most;
		params->candidates = ALL_CANDIDATES;
	}
	if (params->probes <= ndrained)
		params->probes = 2 * ndrained;
	params->probes = Min(params->probes, *most);
	return true;
}

/*
 * Limits run->depth.params to the lists that may be probed, and to the number
 * of postings in them.  With key quals, also sets the goal of the batch.
 * Returns false if a full pass is better.
 */
bool
IvfpqDepthLimit(IvfpqScanRun *run)
{
	IvfpqScanDepth *depth = &run->depth;
	IvfpqSearchParams *params = &depth->params;
	bool		is_rest = IvfpqDepthRest(run, false) != IVFPQ_REST_NONE;
	int			probes;			/* lists whose postings may be candidates */
	int			most;

	if (!IvfpqDepthLimitProbes(params, run->index, &run->model->meta,
							   run->query.recall, is_rest, depth->ndrained,
							   &most))
		return false;
	depth->is_last = params->probes == most;
	probes = params->probes;
	depth->wanted = params->candidates;
	if (run->keys.any)
	{
		IvfpqKeyGoal *goal = &run->keys.goal;
		double		rows = IvfpqRowsAbout(run->index, &run->model->meta);

		goal->recall = run->query.recall;
		goal->rows = Max(params->quota, 1);
		probes = most;
		goal->most_probes = most;
		goal->selectivity = run->keys.selectivity;
		goal->guess = 0;
		if (!run->is_filtered && depth->planned_rows > 0 && rows > 0)
			goal->guess = Min(Max(depth->planned_rows / rows,
								  IVFPQ_LEAST_SELECTIVITY), 1);
		goal->is_spread = needed_are_spread(run);
		goal->is_far = false;
		goal->by_keys = !run->is_filtered;
		/* the last batch must find all rows that satisfy the key quals */
		goal->reads_all = is_rest;
		depth->wanted = is_rest ? ALL_CANDIDATES :
			IvfpqKeyCapacity(&run->search, goal);
		run->keys.aim = *goal;
	}

	/*
	 * Take at most the number of postings in these lists, plus one.  Because
	 * of this additional candidate, a search that finds fewer candidates
	 * proves that there are no more.  Do not count postings that surely
	 * suffice: to find the lists takes a deep scan a quarter of its time if
	 * gpuvecd does the rest.
	 */
	params->candidates = depth->wanted;
	if (depth->wanted > IVFPQ_FEW_CANDIDATES &&
		depth->wanted > COUNTED_FRACTION * probes *
		IvfpqRowsAbout(run->index, &run->model->meta) *
		run->model->meta.lists_per_row / run->model->meta.nlists)
	{
		int64		postings = IvfpqSearchCount(&run->search, probes);

		IvfpqInjectionPoint("scan: counted");
		params->candidates = (int) Min(depth->wanted, postings + 1);
	}
	return IvfpqDepthFits(run, params->probes, params->candidates);
}

/*
 * Returns how many rows of its quota a batch may return, if `invisible` of
 * `fetched` candidates were invisible so far.  A batch has more candidates
 * than its quota, because scores are not exact.  This surplus makes up for
 * invisible candidates as long as at most half of it is lost.  If more is
 * lost, the quota shrinks to the fraction that the snapshot sees.
 */
double
IvfpqDepthVisibleQuota(int64 quota, int64 candidates, int64 fetched,
					   int64 invisible)
{
	double		seen;

	Assert(quota > 0);
	if (invisible == 0)
		return quota;
	seen = 1 - (double) invisible / fetched;
	return candidates * seen < (candidates + quota) / 2.0 ?
		quota * seen : quota;
}

/*
 * Counts the matching rows within the depth of the batch, whose candidates are
 * ids [count], the best first.  Returns the quota of the batch, which is the
 * number of rows that may leave the queue.  Also chooses the rows that
 * IvfpqRadiusIsRead will rerank.
 */
int64
IvfpqDepthQuota(IvfpqScanRun *run, const uint64 *ids, int64 count)
{
	IvfpqScanDepth *depth = &run->depth;
	IvfpqScanRadius *radius = &depth->radius;
	int64		n = (int64) Min(depth->rows, count);
	int64		sure = (int64) depth->rows; /* number of calibrated ranks */
	int64		quota = depth->params.quota;
	bool		ignores_invisible = !run->is_filtered &&
	IvfpqDepthVisibleQuota(quota, IvfpqCandidatesFound(&run->search),
						   run->rows.fetched, run->rows.invisible) >= quota;
	int64		matched = 0;
	int64		nearer = 0;		/* matching rows among the first sure / 2
								 * candidates */
	int64		within = 0;

	radius->nprobed = 0;
	if (run->filter->radius.is_set && run->filter->radius.ends_on_any_row &&
		count >= NEARER_PART * IVFPQ_PROBED_RANKS / 2)
	{
		radius->nprobed = IVFPQ_PROBED_RANKS;
		memcpy(radius->last, ids + count - IVFPQ_PROBED_RANKS,
			   IVFPQ_PROBED_RANKS * sizeof(uint64));
		memcpy(radius->nearer,
			   ids + Max(count / NEARER_PART - IVFPQ_PROBED_RANKS / 2, 0),
			   IVFPQ_PROBED_RANKS * sizeof(uint64));
	}

	if (ignores_invisible && !run->rows.counts_matching)
		return depth->matched = (int64) depth->rows;
	if (needed_are_spread(run))
		sure = (int64) (IvfpqSpreadRows(depth->rows / run->keys.selectivity,
										!run->is_filtered) *
						run->keys.selectivity);
	for (int64 i = 0; i < n; i++)
	{
		TidSetEntry *entry = tidset_lookup(run->rows.seen, ids[i]);

		matched += entry != NULL && entry->matched &&
			(!entry->invisible || ignores_invisible);
		if (i < sure / 2)
			nearer = matched;
		if (i < sure)
			within = matched;
	}
	depth->matched = matched;
	depth->matched_near = nearer;
	if (!run->is_filtered)		/* only rechecks of keys reject rows */
		return matched;
	if (!matches_are_spread(run))
		return nearer;
	return Min(matched, within + (int64) (MOST_BEHIND * nearer));
}

/* qsort comparator for doubles */
static int
compare_doubles(const void *a, const void *b)
{
	return float8_cmp_internal(*(const double *) a, *(const double *) b);
}

/*
 * Reranks the rows ids [n], whether they match or not, and sets `distances` to
 * their distances in ascending order.  Returns the number of rows that the
 * snapshot sees, which is also the number of distances.
 */
static int
rerank_probed(IvfpqScanRun *run, const uint64 *ids, int n, double *distances)
{
	IvfpqEarlyQual early_qual = run->rerank->early_qual;
	int			seen = 0;

	run->rerank->early_qual = NULL;
	for (int i = 0; i < n; i++)
		if (IvfpqRerankRow(run->rerank, ids[i], &distances[seen]))
			seen++;
	run->rerank->early_qual = early_qual;
	run->report.counts[IVFPQ_COUNT_RERANKED] += seen;
	qsort(distances, seen, sizeof(double), compare_doubles);
	return seen;
}

/*
 * Returns whether all rows within the radius have been read.  Called when the
 * quota of the batch is used up.  If rows may be left, sets radius.est_within
 * to the estimated number of rows within the radius.
 */
bool
IvfpqRadiusIsRead(IvfpqScanRun *run)
{
	const IvfpqRadius *asked = &run->filter->radius;
	IvfpqScanRadius *radius = &run->depth.radius;
	double		last[IVFPQ_PROBED_RANKS];
	double		nearer[IVFPQ_PROBED_RANKS];
	int			nlast;
	int			nnearer;
	bool		is_read;

	radius->est_within = 0;
	if (!asked->is_set || radius->nprobed == 0)
		return false;
	nlast = rerank_probed(run, radius->last, radius->nprobed, last);
	is_read = nlast >= LEAST_SEEN && IvfpqIsOutside(asked, last[0]);
	if (nlast >= LEAST_SEEN && !is_read)
	{
		nnearer = rerank_probed(run, radius->nearer, radius->nprobed, nearer);
		if (nnearer >= LEAST_SEEN && isfinite(asked->most))
		{
			/*
			 * depth.rows rows are within distance `outer`, and depth.rows /
			 * NEARER_PART rows are within distance `inner`.  If `inner` is
			 * above 0, the number of rows is assumed to grow as a power of
			 * the distance, otherwise exponentially.
			 */
			double		inner = nearer[nnearer / 2];
			double		outer = last[nlast / 2];
			double		steps = 0;

			if (inner < outer)
				steps = inner > 0 ?
					log(asked->most / outer) / log(outer / inner) :
					(asked->most - outer) / (outer - inner);
			radius->est_within = run->depth.rows * pow(NEARER_PART, steps);
		}
	}
	IvfpqRerankReleasePages(run->rerank);
	return is_read;
}
