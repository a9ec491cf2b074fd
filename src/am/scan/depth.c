/*
 * depth.c
 *		How deep the next batch of a scan goes, its search parameters, and
 *		when another source of rows is better.
 *
 * Calibration gives the search parameters for the nearest n rows.  Of these
 * only some match: they satisfy the filter, and the snapshot sees them.  So
 * where ten rows are needed and the selectivity is a tenth, the scan searches
 * for a hundred rows.  The selectivity is the planner's estimate at first, and
 * later what the batches show.  In a plain scan it is 1, unless statistics or
 * the rows fetched say otherwise.  With key quals all depths count the rows
 * that satisfy them.
 *
 * The first batch goes for the rows of LIMIT, if that is known, each later one
 * for the next of the depths that calibration knows.  So statements that
 * differ in OFFSET alone return parts of one order.
 *
 * The quota of a batch is the number of rows that match among the nearest n,
 * by the scores of its candidates.  So it does not matter whether rows that
 * match are near the query or far from it.
 *
 * The search parameters for n rows reach the target recall even among the last
 * of these rows, and exceed it among all n.  Rows that match are most likely
 * spread over all n, so the parameters for fewer rows suffice to find them.
 * Where most of them lie beyond those fewer rows, the quota is smaller.  A
 * later batch returns the last rows alone, and takes the parameters for n.
 *
 * Rows that a batch missed are found by the next one, out of order.  Where
 * they are more than 1 - recall of those returned, calibration does not hold
 * for the query, and batches take more.
 *
 * A radius ends a scan.  Rows leave the queue nearest first: when one is
 * outside, and the quota of the batch is not used up, the batch has read
 * everything within, at the target recall.  Where few rows match a filter, no
 * row may leave the queue at all.  So when the quota of a batch is used up,
 * some of its candidates about the last rank of its depth are reranked,
 * whether they match or not.  If all of these are outside, fewer rows than the
 * depth are within.  A batch that was not deep enough has reranked more rows
 * than its depth.  If most of these are outside, those within are nearly all
 * that there are.  Otherwise these ranks tell how fast distances grow, and so
 * an estimate of the rows within.
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

/* Rows needed, where that is not known. */
#define DEFAULT_ROWS_NEEDED		10

/*
 * Rows that are read beyond those that seem to be needed, in standard
 * deviations of the rows that match: a further batch costs more.
 */
#define MARGIN				1.2

/*
 * Matching rows in the quota beyond the ranks asked of calibration, for each
 * one in the nearer half of those ranks.
 */
#define MOST_BEHIND			2.0

/*
 * Matching rows count as spread if at least one of LEAST_NEARER lies in that
 * half; one of LEAST_NEARER_OF_FEW if the planner expected more than FAR_FEWER
 * times as many.
 */
#define LEAST_NEARER		8
#define LEAST_NEARER_OF_FEW	3
#define FAR_FEWER			4

/*
 * The first batch trusts the planner's estimate if its depth is then at most
 * MOST_FIRST times the rows needed.  Otherwise it is a trial of at most
 * MOST_TRIED times the rows needed.
 */
#define MOST_FIRST			150
#define MOST_TRIED			10

/*
 * The depth of a later batch, in multiples of the depth of the one before.
 */
#define LEAST_GROWTH		2
#define MOST_GROWTH			16

/*
 * Rows that match, from which on the selectivity is known: SOME_MATCHED if the
 * planner's estimate is about right, MANY_MATCHED if not.  From FEW_MATCHED on
 * the count itself is the estimate.
 */
#define SOME_MATCHED			2
#define FEW_MATCHED			5
#define MANY_MATCHED			8

/* Rejected rows, from which on another index may be used. */
#define LEAST_REJECTED		500

/*
 * Batches may take this fraction of the time that the best other way takes;
 * more where the selectivity is known well, and less for a trial.
 */
#define BATCHES_FRACTION		0.25
#define SURE_BATCHES_FRACTION	0.6
#define TRIAL_FRACTION			0.08
#define MORE_TRIAL_FRACTION	0.15

/*
 * A full pass reads the remaining rows when the rows out of order, of those
 * returned, exceed MOST_OUT_OF_ORDER * (1 - recall); fewer than LEAST_RETURNED
 * rows tell nothing.  Until then batches are scaled up, at most by MOST_SCALE.
 */
#define MOST_OUT_OF_ORDER			2.0
#define LEAST_RETURNED		100
#define MOST_SCALE			16.0

/* A later batch takes the search parameters for this many times its rows. */
#define LATER_SCALE			1.6

/*
 * Where calibration knows nothing of a depth, a full pass comes when the quota
 * would reach this times (1 - recall) of the rows.
 */
#define MOST_UNKNOWN		1.0
#define MOST_UNKNOWN_FILTERED	2.0

/*
 * Ranks that tell how far a radius reaches: the last, and others at the depth
 * divided by NEARER_PART.  The snapshot has to see LEAST_SEEN of the rows
 * there.
 */
#define NEARER_PART		4
#define LEAST_SEEN		3

/*
 * The depth that is searched with a radius, in multiples of the rows that seem
 * to be within; and of the depth before where nothing tells those.
 */
#define RADIUS_MARGIN	1.4
#define USUAL_GROWTH	4

/*
 * If at most WITHIN_PART of the rows counted are within, there are hardly
 * others; fewer than LEAST_COUNTED rows tell nothing.
 */
#define LEAST_COUNTED	10
#define WITHIN_PART		(1.0 / 3)

/* A batch is limited to this many candidates where it has no other limit. */
#define ALL_CANDIDATES	(PG_INT32_MAX / 4)

/* Memory per probed list, and per posting of an answer of gpuvecd. */
#define LIST_BYTES		(64 + 2 * sizeof(IvfpqDirEntry))
#define ANSWER_BYTES	(32 + sizeof(IvfpqKnownRecord))

/* Nanoseconds, in addition to those of params.h. */
#define CANDIDATE_NS		250.0	/* a candidate found, beside its lists */
#define PAGE_NS				180.0	/* a page of the table, in its order */
#define ROW_NS				70.0	/* a row on such a page */
#define KEYS_NS				6.0 /* a posting's keys in its list */
#define MATCH_NS			150.0	/* a row that another index names */
#define SORT_NS				200.0	/* a row sorted */
#define TOAST_NS			4000.0	/* a vector out of line */
#define COLD_PAGE_NS		5000.0	/* a page read from a file, in order */
#define COLD_FETCH_NS		20000.0 /* a page read from a file, for one row */

/* Rows that match, as far as they are known. */
typedef struct Matching
{
	double		looked;			/* the nearest rows, as far as seen */
	double		matched;		/* of these, those matching and admitted */
	double		selectivity;	/* likely, of the rows beyond these */
	bool		is_sure;		/* the selectivity is not off by much */
} Matching;

/* Returns whether a filter chooses rows. */
static bool
is_filtered(const IvfpqScanRun *run)
{
	return run->filter != &ivfpq_no_filter;
}

/*
 * Returns whether rows that match lie among all others by chance.  If not,
 * they may be far from the query because of what they have in common, in lists
 * that hardly any other row of their distance is in.  Then the search finds
 * fewer of them than calibration says.
 */
static bool
matches_are_spread(const IvfpqScanRun *run)
{
	const IvfpqScanDepth *depth = &run->depth;
	double		expected;

	if (!is_filtered(run) || run->search.addresses ||
		run->filter->radius.is_set)
		return true;
	expected = run->filter->goal.selectivity * depth->visible * depth->rows;
	if (depth->matched < FEW_MATCHED)
		return depth->matched + 1 + 2 * sqrt(expected) >= expected;
	return depth->matched_near * (depth->matched * FAR_FEWER < expected ?
								  LEAST_NEARER_OF_FEW : LEAST_NEARER) >=
		depth->matched;
}

/* Sets *matching to what the batches so far have shown. */
static void
count_matching(const IvfpqScanRun *run, Matching *matching)
{
	const IvfpqScanRows *rows = &run->rows;
	double		guess = run->filter->goal.selectivity * run->depth.visible;
	double		expected;
	bool		agrees;

	matching->looked = run->depth.rows;
	matching->matched = run->depth.matched;
	if (run->search.addresses)
	{
		matching->looked = rows->popped;
		matching->matched = rows->returned;
		if (!is_filtered(run))	/* invisible rows did not leave the queue */
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
	else						/* the next one may just be missing */
		matching->selectivity = (matching->matched + 1) / matching->looked;
	matching->selectivity =
		Max(Min(matching->selectivity, 1), IVFPQ_LEAST_SELECTIVITY);
}

/*
 * Returns the number of rows that the scan is to have returned by the end of
 * the next batch.
 */
static double
needed_rows(const IvfpqScanRun *run)
{
	const IvfpqMetaData *meta = &run->model->meta;
	double		rows_needed = run->depth.rows_needed;

	if (!is_filtered(run))
		rows_needed = IvfpqBatchRows(run->index, meta, rows_needed);
	else if (rows_needed <= 0)
		rows_needed = DEFAULT_ROWS_NEEDED;
	while (rows_needed <= run->rows.returned)
		rows_needed = IvfpqBatchRows(run->index, meta, rows_needed + 1);
	return rows_needed;
}

/* Estimates the depth at which the rows needed match. */
static double
needed_depth(const IvfpqScanRun *run, const Matching *matching)
{
	double		rows_needed = needed_rows(run);

	if (!is_filtered(run) && matching->selectivity >= 1)
		return rows_needed;
	return Max((rows_needed + MARGIN * sqrt(rows_needed)) /
			   matching->selectivity,
			   IVFPQ_FIRST_ROWS);
}

/*
 * Returns whether the rows needed are taken as spread over the depth.  They
 * are not with a radius, where the last rows of the depth end the scan; with
 * refine records, which do not tell the rank of a row that matches; and in a
 * later batch, which returns the last rows.
 */
static bool
needed_are_spread(const IvfpqScanRun *run)
{
	if (run->rows.returned > 0)
		return false;
	if (!is_filtered(run))
		return run->keys.any;
	return !run->search.addresses && !run->filter->radius.is_set;
}

/*
 * Returns whether rows out of order exceed `factor` times those expected,
 * beyond chance.
 */
static bool
is_out_of_order_beyond(const IvfpqScanRun *run, double factor)
{
	double		most = factor * (1 - run->query.recall) *
	(double) run->rows.returned;

	return run->rows.out_of_order > most + 2 * sqrt(most) + 1;
}

/*
 * Returns the number of rows to ask calibration for if a batch is to return
 * the nearest `rows`.  They are more in a later batch, which returns the last
 * rows alone, and where rows were out of order.  But they do not exceed the
 * rows that calibration knows, unless `rows` does.
 */
static double
with_margin(const IvfpqScanRun *run, double rows)
{
	double		expected = (1 - run->query.recall) *
	(double) run->rows.returned;	/* rows out of order */
	double		scale = run->rows.returned > 0 ? LATER_SCALE : 1;
	double		known;

	if (run->query.strict && run->rows.out_of_order > 0 &&
		run->query.recall < 1 && is_out_of_order_beyond(run, 1))
		scale = Max(Min(run->rows.out_of_order / expected, MOST_SCALE),
					scale);
	if (scale == 1)
		return rows;
	known = IvfpqKnownRows(&run->model->meta, run->query.recall);
	return rows > known ? rows * scale : Min(rows * scale, known);
}

/*
 * Returns whether too many rows were out of order, so that a full pass is to
 * bring the next ones.  There is none where gpuvec.max_probes limits lists.
 */
bool
IvfpqDepthNeedsFullPass(const IvfpqScanRun *run)
{
	return run->rows.out_of_order > 0 && run->query.strict &&
		run->query.recall < 1 && ivfpq_max_probes == 0 &&
		run->rows.returned >= LEAST_RETURNED &&
		is_out_of_order_beyond(run, MOST_OUT_OF_ORDER);
}

/*
 * Sets *params for a batch of this depth, which counts rows that satisfy the
 * key quals.
 */
static void
params_at(const IvfpqScanRun *run, double depth, IvfpqSearchParams *params)
{
	double		among;
	double		spread;

	depth = Min(depth, ALL_CANDIDATES);
	among = with_margin(run, depth / run->keys.selectivity);
	spread = among;
	if (needed_are_spread(run))
		spread = IvfpqSpreadRows(among, !is_filtered(run));
	IvfpqParamsForMatches(params, run->index, &run->model->meta,
						  run->query.recall, among, spread);
	if (run->keys.any)
		params->candidates = IvfpqKeyCandidates(params->candidates,
												run->keys.selectivity);
	if (is_filtered(run))
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

/* Estimates the time to fetch a row by its TID and test the filter. */
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

/* Estimates the number of rows of the index, which may have a predicate. */
static double
index_rows(const IvfpqScanRun *run)
{
	double		rows = IvfpqRowsAbout(run->index, &run->model->meta);

	if (rows <= 0 || heap_attisnull(run->index->rd_indextuple,
									Anum_pg_index_indpred, NULL))
		return table_rows(run);
	return rows;
}

/* Estimates the time to find all rows that match by reading the table. */
static double
table_ns(const IvfpqScanRun *run, double selectivity)
{
	return (IvfpqRerankReadsFromDisk(run->rerank) ? COLD_PAGE_NS : PAGE_NS) *
		run->rerank->heap_blocks +
		table_rows(run) * (ROW_NS + run->filter->goal.qual_ns) +
		index_rows(run) * run->keys.selectivity * selectivity *
		(rerank_ns(run) + SORT_NS);
}

/* Estimates the time to find them by the keys of all lists. */
static double
lists_ns(const IvfpqScanRun *run, double selectivity)
{
	double		rows = index_rows(run);

	return rows * run->model->meta.lists_per_row * KEYS_NS +
		run->keys.selectivity * rows *
		(SORT_NS + fetch_ns(run) +
		 selectivity * (rerank_ns(run) + SORT_NS));
}

/* Estimates the time to find them by another index. */
static double
bitmap_ns(const IvfpqScanRun *run, double selectivity)
{
	double		rows = run->keys.selectivity * selectivity * index_rows(run);

	return Max(run->filter->goal.bitmap_rows, rows) *
		(MATCH_NS + fetch_ns(run)) + rows * (rerank_ns(run) + SORT_NS);
}

/*
 * Estimates the time to find the remaining rows, and sets *source to their
 * best source.  The other index counts only if `must` is set, or once
 * LEAST_REJECTED rows were rejected.
 */
static double
rest_ns(const IvfpqScanRun *run, const Matching *matching, bool must,
		IvfpqRestSource *source)
{
	double		rest = table_ns(run, matching->selectivity);
	double		lists = lists_ns(run, matching->selectivity);
	double		bitmap;

	*source = IVFPQ_REST_TABLE;
	if (run->keys.any && lists < rest)
	{
		*source = IVFPQ_REST_LISTS;
		rest = lists;
	}
	if (run->filter->next_bitmap_row == NULL ||
		(!must && run->rows.rejected < LEAST_REJECTED))
		return rest;
	bitmap = bitmap_ns(run, matching->selectivity);
	if (bitmap < rest)
		*source = IVFPQ_REST_BITMAP;
	return Min(bitmap, rest);
}

/*
 * Halves `depth` until a batch takes at most the fraction `allowed` of the
 * time `rest`, but not below IVFPQ_FIRST_WITHIN.
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
 * Estimates the number of rows within the radius, whether they match or not.
 */
static double
likely_within(const IvfpqScanRun *run)
{
	const IvfpqScanRadius *radius = &run->depth.radius;
	double		by_ranks = radius->est_within > 0 ? radius->est_within :
	USUAL_GROWTH / RADIUS_MARGIN * run->depth.rows;
	double		counted;

	if (radius->counted < LEAST_COUNTED)
		return by_ranks;
	counted = (double) radius->counted_within / radius->counted *
		Max(run->rows.fetched - run->rows.invisible, radius->counted);
	if (radius->counted_within <= WITHIN_PART * radius->counted)
		return counted;
	return Max(counted, by_ranks);
}

/*
 * The depth of the next batch, where `needed` suffices for the rows needed:
 * no deeper than what is likely within the radius.
 */
static double
radius_depth(const IvfpqScanRun *run, double needed)
{
	double		depth = run->depth.rows;

	if (!run->filter->radius.is_set)
		return needed;
	if (run->depth.batches == 0)
		return Min(needed, IVFPQ_FIRST_WITHIN);
	return Min(needed, Max(LEAST_GROWTH * depth,
						   Min(RADIUS_MARGIN * likely_within(run),
							   MOST_GROWTH * depth)));
}

/*
 * The depth of a filtered scan's first batch, where the estimate is `needed`.
 * Where another index may bring the rest, the batch is deep enough that it may
 * reject LEAST_REJECTED rows, after which that index is asked.
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
 * The depth of a filtered scan's later batch; 0 if another source of the rest
 * is better.  Where the selectivity is not known, a batch that costs little
 * may tell it.
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

/* The depth of the next batch; 0 if another source of the rest is better. */
static double
next_depth(const IvfpqScanRun *run, const Matching *matching)
{
	double		needed = needed_depth(run, matching);

	if (is_filtered(run))
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
	/* another source is better: only gpuvec.max_probes can exclude that */
	if (depth == 0)
		depth = LEAST_GROWTH * run->depth.rows;
	params_at(run, radius_depth(run, depth), &run->depth.params);
}

/*
 * Returns whether the next batch would return too many rows at a depth that
 * calibration does not know.  Strict order leaves out rows nearer than those
 * returned, and a condition that has rejected most rows so far may need just
 * these.  Those that a full pass finds too late lie among the rows returned
 * before it, so they are at most that fraction of all.  Where calibration
 * knows the depth, the recall holds for such a condition, too; otherwise only
 * the first rows are exempt: those of the first two batches of a scan that
 * knows no limit, or of one if no row may be missed.
 */
static bool
is_unknown(const IvfpqScanRun *run)
{
	const IvfpqMetaData *meta = &run->model->meta;
	const IvfpqSearchParams *params = &run->depth.params;
	double		fraction = 1 - run->query.recall;
	bool		is_first = run->depth.batches == 0;

	if (!is_filtered(run))
	{
		double		first_rows = 0;

		for (int i = 0; i < (fraction > 0 ? 2 : 1); i++)
			first_rows = IvfpqBatchRows(run->index, meta, first_rows + 1);
		is_first = needed_rows(run) <= first_rows;
	}
	if (!run->query.strict || params->calibrated || is_first)
		return false;
	fraction *= is_filtered(run) ? MOST_UNKNOWN_FILTERED : MOST_UNKNOWN;
	return fraction <= 0 ||
		!IvfpqHasRows(run->index, meta,
					  params->quota / run->keys.selectivity / fraction);
}

/*
 * Returns whether a batch of this many candidates would rerank such a large
 * fraction of the rows that a full pass is better.
 */
bool
IvfpqDepthIsTooLarge(Relation index, const IvfpqMetaData *meta,
					 int candidates)
{
	return candidates > IVFPQ_MIN_RERANKED &&
		!IvfpqHasRows(index, meta, candidates / IVFPQ_RERANKED_FRACTION);
}

/*
 * Returns whether a full pass is better than the batch that run->depth.params
 * describes, in a scan without a filter.  It is when the batch is too large,
 * or where calibration did not reach the recall at this depth, unless key
 * quals are answered from all lists then.
 */
static bool
full_pass_is_better(const IvfpqScanRun *run)
{
	const IvfpqSearchParams *params = &run->depth.params;

	if (run->depth.batches > 0 && params->recall_unreached && !run->keys.any)
		return true;
	return run->depth.batches > 0 &&
		IvfpqDepthIsTooLarge(run->index, &run->model->meta,
							 params->candidates);
}

/*
 * Chooses the source of the next rows: IVFPQ_REST_NONE is the batch that
 * run->depth.params describes, which `must` excludes.
 */
IvfpqRestSource
IvfpqDepthRest(const IvfpqScanRun *run, bool must)
{
	bool		leaves = must || is_unknown(run) ||
	IvfpqDepthNeedsFullPass(run);
	Matching	matching;
	IvfpqRestSource source;

	if (!is_filtered(run))
		return !leaves && !full_pass_is_better(run) ? IVFPQ_REST_NONE :
			run->keys.any ? IVFPQ_REST_LISTS : IVFPQ_REST_TABLE;
	count_matching(run, &matching);
	(void) rest_ns(run, &matching, must, &source);
	return leaves || next_depth(run, &matching) == 0 ? source :
		IVFPQ_REST_NONE;
}

/* Bytes of a set of n rows. */
static double
set_bytes(double n)
{
	return sizeof(TidSetEntry) *
		(double) pg_nextpower2_64((uint64) (n / 0.9) + 2);
}

/*
 * Returns whether a batch of that size may begin: all that a scan holds, with
 * what the batch adds to it, stays within what a hash table may take.
 */
bool
IvfpqDepthFits(const IvfpqScanRun *run, int probes, int64 candidates)
{
	double		postings = (double) candidates *
	run->model->meta.lists_per_row;
	double		found;			/* the best postings */
	double		search;			/* scratch, and the rows of these postings */
	double		rows;			/* in the queue, and in the set, which grows */
	Size		row_bytes = sizeof(IvfpqQueuedRow);

	if (candidates <= IVFPQ_FEW_CANDIDATES)
		return true;
	found = postings * (sizeof(float) + sizeof(uint64)) + probes * LIST_BYTES;
	if (IvfpqServerIsWanted())
		found += postings * ANSWER_BYTES;
	search = gv_scan_scratch(run->model->gv.m,
							 (int32) Min(postings, PG_INT32_MAX)) +
		set_bytes(candidates);
	if (run->search.addresses)	/* bounds, and what is prefetched */
		row_bytes += sizeof(IvfpqQueuedRow) + sizeof(IvfpqNextRow) +
			sizeof(IvfpqRowBounds) + 2 * sizeof(uint64);
	rows = candidates * row_bytes +
		1.5 * set_bytes((double) run->rows.seen->members + candidates);
	return MemoryContextMemAllocated(run->context, true) + found +
		Max(search, rows) <= get_hash_memory_limit();
}

/*
 * Returns depth.wanted, capped by the postings in that many lists, plus one: a
 * short result then proves that there are no more.
 */
static int
limit_candidates(IvfpqScanRun *run, int probes)
{
	int64		postings;

	if (run->depth.wanted <= IVFPQ_FEW_CANDIDATES)
		return run->depth.wanted;
	postings = IvfpqSearchCount(&run->search, probes);
	IvfpqInjectionPoint("scan: counted");
	return (int) Min(run->depth.wanted, postings + 1);
}

/*
 * Sets the goal of the next batch among rows that satisfy the key quals: as
 * the search parameters say or, in the last batch, all of them in most_probes
 * lists.
 */
static void
aim_keys(IvfpqScanRun *run, int most_probes, bool is_last)
{
	IvfpqKeyGoal *goal = &run->keys.goal;
	double		rows = IvfpqRowsAbout(run->index, &run->model->meta);

	goal->recall = run->query.recall;
	goal->rows = Max(run->depth.params.quota, 1);
	goal->most_probes = most_probes;
	goal->selectivity = run->keys.selectivity;
	goal->guess = 0;
	if (!is_filtered(run) && run->depth.planned_rows > 0 && rows > 0)
		goal->guess = Min(Max(run->depth.planned_rows / rows,
							  IVFPQ_LEAST_SELECTIVITY), 1);
	goal->is_spread = needed_are_spread(run);
	goal->is_far = false;
	goal->by_keys = !is_filtered(run);
	goal->reads_all = is_last;
	run->depth.wanted = is_last ? ALL_CANDIDATES :
		IvfpqKeyCapacity(&run->search, goal);
	goal->candidates = limit_candidates(run, most_probes);
}

/*
 * Limits the probes of a batch to the lists that may be probed, and sets *most
 * to their number.  If the batch before found all rows of its lists, ndrained
 * is their number, else 0.  Then more lists are probed, even if a damaged
 * calibration says otherwise.
 *
 * With is_rest another source of the next rows is better, and the function
 * returns false.  A full pass would read lists that may not be probed, if
 * gpuvec.max_probes is set; then all lists that may be probed are the last
 * batch instead.
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
 * Limits run->depth.params to the lists that may be probed and to the postings
 * that these have.  Sets *last if no more lists may be probed.  Returns false
 * when a full pass is better.
 */
bool
IvfpqDepthLimit(IvfpqScanRun *run, bool *last)
{
	IvfpqScanDepth *depth = &run->depth;
	IvfpqSearchParams *params = &depth->params;
	bool		is_rest = IvfpqDepthRest(run, false) != IVFPQ_REST_NONE;
	int			most;

	if (!IvfpqDepthLimitProbes(params, run->index, &run->model->meta,
							   run->query.recall, is_rest, depth->ndrained,
							   &most))
		return false;
	*last = params->probes == most;
	if (run->keys.any)
	{
		aim_keys(run, most, is_rest);
		params->candidates = run->keys.goal.candidates;
	}
	else
	{
		depth->wanted = params->candidates;
		params->candidates = limit_candidates(run, params->probes);
	}
	return IvfpqDepthFits(run, params->probes, params->candidates);
}

/*
 * Returns the rows of its quota that a batch is good for, when so far
 * `invisible` of `fetched` candidates were invisible.  Candidates beyond the
 * quota, which are there because scores are not exact, make up for them; half
 * of that surplus may be lost.  If more is lost, the quota shrinks to the
 * fraction that the snapshot sees.
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
 * Counts the rows that match within the batch's depth, and returns its quota,
 * the rows that may leave the queue; ids [count] are its candidates, the best
 * first.
 */
int64
IvfpqDepthQuota(IvfpqScanRun *run, const uint64 *ids, int64 count)
{
	IvfpqScanDepth *depth = &run->depth;
	int64		n = (int64) Min(depth->rows, count);
	int64		sure = (int64) depth->rows; /* ranks asked of calibration */
	int64		quota = depth->params.quota;
	bool		ignores_invisible = !is_filtered(run) &&
	IvfpqDepthVisibleQuota(quota, run->search.candidates.count,
						   run->rows.fetched, run->rows.invisible) >= quota;
	int64		matched = 0;
	int64		nearer = 0;		/* in the nearer half of those */
	int64		within = 0;

	if (ignores_invisible && !run->rows.counts_matching)
		return depth->matched = (int64) depth->rows;
	if (needed_are_spread(run))
		sure = (int64) (IvfpqSpreadRows(depth->rows / run->keys.selectivity,
										!is_filtered(run)) *
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
	if (!is_filtered(run))		/* not rejected by rechecks of keys */
		return matched;
	if (!matches_are_spread(run))
		return nearer;
	return Min(matched, within + (int64) (MOST_BEHIND * nearer));
}

/* Counts a row that was reranked or bounded, and whether it is within. */
void
IvfpqRadiusCount(IvfpqScanRun *run, double distance)
{
	run->depth.radius.counted++;
	run->depth.radius.counted_within += !IvfpqIsOutside(&run->filter->radius,
														distance);
}

/*
 * Notes the rows that IvfpqRadiusIsRead reranks; ids [n] are the best
 * candidates of the batch, up to its depth.
 */
void
IvfpqRadiusProbeRanks(IvfpqScanRun *run, const uint64 *ids, int64 n)
{
	IvfpqScanRadius *radius = &run->depth.radius;

	radius->nprobed = 0;
	if (!run->filter->radius.is_set || !run->filter->radius.ends_on_any_row ||
		n < NEARER_PART * IVFPQ_PROBED_RANKS / 2)
		return;
	radius->nprobed = IVFPQ_PROBED_RANKS;
	memcpy(radius->last, ids + n - IVFPQ_PROBED_RANKS,
		   IVFPQ_PROBED_RANKS * sizeof(uint64));
	memcpy(radius->nearer,
		   ids + Max(n / NEARER_PART - IVFPQ_PROBED_RANKS / 2, 0),
		   IVFPQ_PROBED_RANKS * sizeof(uint64));
}

/* qsort comparator */
static int
compare_doubles(const void *a, const void *b)
{
	return float8_cmp_internal(*(const double *) a, *(const double *) b);
}

/*
 * Reranks rows [n], whether they match or not, and sorts their distances.
 * Returns the number that the snapshot sees.
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
 * Estimates the rows within distance `most`, if `depth` rows are within `last`
 * and depth / NEARER_PART within `nearer`.  Where distances are above 0, ranks
 * grow by a power of them.  Otherwise they grow faster, by equal factors for
 * equal steps.
 */
static double
rows_within(double most, double depth, double nearer, double last)
{
	double		steps;

	if (!(nearer < last))
		return depth;
	steps = nearer > 0 ? log(most / last) / log(last / nearer) :
		(most - last) / (last - nearer);
	return depth * pow(NEARER_PART, steps);
}

/*
 * Returns whether everything within the radius has been read, when the quota
 * of the batch is used up.  If not, sets the estimated number of rows within.
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
			radius->est_within = rows_within(asked->most, run->depth.rows,
											 nearer[nnearer / 2],
											 last[nlast / 2]);
	}
	IvfpqRerankReleasePages(run->rerank);
	return is_read;
}
