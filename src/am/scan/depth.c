/*
 * depth.c
 *		The depth of the next batch of a scan, its search parameters, and
 *		the choice of another way to the remaining rows.
 *
 * Calibration gives the search parameters for the nearest n rows.  Of these
 * only some match: they satisfy the filter, and the snapshot sees them.  So
 * where ten rows are needed and the selectivity is a tenth, the scan searches
 * for a hundred rows.  The selectivity is the planner's estimate at first, and
 * later what the batches show.  In a plain scan it is 1, unless statistics or
 * the rows fetched say otherwise.
 *
 * The first batch goes for the rows of LIMIT, if that is known, each later one
 * for the next of the depths that calibration knows.  So statements that
 * differ in OFFSET alone return parts of one order.
 *
 * The quota of a batch is the number of rows that match among the nearest n,
 * by the scores of its candidates.  So it does not matter whether rows that
 * match are near the query or far from it.
 *
 * The search parameters for n rows reach the target recall even among the
 * last of these rows, and exceed it among all n.  Rows that match are most
 * likely spread over all n, so the parameters for fewer rows suffice to find
 * them.  Where most of them lie behind those fewer rows, the quota is smaller.
 * A later batch returns the last rows alone, and takes the parameters for n.
 *
 * Rows that a batch missed are found by the next one, out of order.  Where
 * they are more than 1 - recall of those returned, calibration does not hold
 * for the query, and batches take more.
 */
#include "postgres.h"

#include <math.h>

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "catalog/pg_index.h"
#include "executor/executor.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "nodes/extensible.h"
#include "nodes/nodeFuncs.h"
#include "utils/float.h"
#include "utils/rel.h"

#include "am/common/model.h"
#include "am/common/options.h"
#include "am/scan/scan.h"

static double radius_depth(const IvfpqScan *state, double needed);

/* Rows needed, where that is not known. */
#define DEFAULT_ROWS_NEEDED		10

/*
 * Rows that are read beyond those that seem to be needed, in standard
 * deviations of the rows that match: a further batch costs more.
 */
#define MARGIN				1.2

/* Matching rows in the quota behind those, for each in the nearer half. */
#define MOST_BEHIND			2.0

/*
 * Matching rows are not spread where fewer than one of LEAST_NEARER lies in
 * that half; or one of LEAST_NEARER_OF_FEW, where the planner expected
 * FAR_FEWER times the matching rows.
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
 * planner's estimate is about right, MANY_MATCHED if not.
 */
#define SOME_MATCHED			2
#define FEW_MATCHED			5
#define MANY_MATCHED			8

/* Rejected rows, from which on another index may be asked. */
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
 * A full pass brings the rest when the rows out of order, of those returned,
 * exceed MOST_OUT_OF_ORDER * (1 - recall); fewer than LEAST_RETURNED rows tell
 * nothing.  Until then batches are scaled up, at most by MOST_SCALE.
 */
#define MOST_OUT_OF_ORDER			2.0
#define LEAST_RETURNED		100
#define MOST_SCALE			16.0

/* A later batch takes the search parameters for the rows times this. */
#define LATER_SCALE			1.6

/*
 * Where calibration knows nothing of a depth, a full pass comes when the quota
 * would reach this times (1 - recall) of the rows.
 */
#define MOST_UNKNOWN		1.0
#define MOST_UNKNOWN_FILTERED	2.0

/* Nanoseconds, beside those of params.h. */
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
	double		selectivity;	/* of those further on, likely */
	bool		is_sure;		/* that is not off by much */
} Matching;

/*
 * Returns whether rows that match lie among all others by chance.  If not,
 * they may be far from the query because of what they have in common, in lists
 * that hardly any other row of their distance is in.  Then the search finds
 * fewer of them than calibration says.
 */
static bool
is_spread(const IvfpqScan *state)
{
	double		expected;

	if (state->filter == NULL || state->search.addresses ||
		state->filter->radius.is_set)
		return true;
	expected = state->filter->selectivity * state->visible * state->depth;
	if (state->matched < FEW_MATCHED)
		return state->matched + 1 + 2 * sqrt(expected) >= expected;
	return state->matched_near * (state->matched * FAR_FEWER < expected ?
								  LEAST_NEARER_OF_FEW : LEAST_NEARER) >=
		state->matched;
}

/* Returns whether a filter chooses rows. */
static bool
is_filtered(const IvfpqScan *state)
{
	return state->filter != NULL;
}

/* Estimates the selectivity near the query, before any row is seen. */
static double
estimated_selectivity(const IvfpqScan *state)
{
	return (is_filtered(state) ? state->filter->selectivity : 1) *
		state->visible;
}

static void
count_matching(const IvfpqScan *state, Matching *matching)
{
	double		guess = estimated_selectivity(state);
	double		expected;
	bool		agrees;

	matching->looked = state->depth;
	matching->matched = state->matched;
	if (state->search.addresses)
	{
		matching->looked = state->taken;
		matching->matched = state->returned;
		if (!is_filtered(state))	/* invisible rows did not come up */
			matching->looked += (double) state->invisible;
	}
	else if (state->taken > 0)
		matching->matched *= (double) state->returned / state->taken;
	expected = guess * matching->looked;
	agrees = fabs(matching->matched - expected) <= 1 + 2 * sqrt(expected);
	matching->is_sure = is_spread(state) &&
		matching->matched >= (agrees ? SOME_MATCHED : MANY_MATCHED);
	if ((agrees && matching->matched < FEW_MATCHED) || matching->looked == 0)
		matching->selectivity = guess;
	else if (matching->matched >= FEW_MATCHED)
		matching->selectivity = matching->matched / matching->looked;
	else						/* the next one may have been about to come */
		matching->selectivity = (matching->matched + 1) / matching->looked;
	matching->selectivity =
		Max(Min(matching->selectivity, 1), IVFPQ_LEAST_SELECTIVITY);
}

/* The rows that the next batch is to have returned, with those before it. */
static double
needed_rows(const IvfpqScan *state)
{
	const IvfpqMetaData *meta = &state->model->meta;
	double		rows_needed = state->rows_needed;

	if (!is_filtered(state))
		rows_needed = IvfpqBatchRows(state->index, meta, rows_needed);
	else if (rows_needed <= 0)
		rows_needed = DEFAULT_ROWS_NEEDED;
	while (rows_needed <= state->returned)
		rows_needed = IvfpqBatchRows(state->index, meta, rows_needed + 1);
	return rows_needed;
}

/* Estimates the depth at which the rows needed match. */
static double
needed_depth(const IvfpqScan *state, const Matching *matching)
{
	double		rows_needed = needed_rows(state);

	if (!is_filtered(state) && matching->selectivity >= 1)
		return rows_needed;
	return Max((rows_needed + MARGIN * sqrt(rows_needed)) /
			   matching->selectivity,
			   IVFPQ_FIRST_ROWS);
}

/* The time to rerank a row that has been fetched. */
static double
rerank_ns(const IvfpqScan *state)
{
	int			dims = state->model->meta.dims;

	return IVFPQ_DIMENSION_NS * dims +
		(dims * sizeof(float) > TOAST_TUPLE_THRESHOLD ? TOAST_NS : 0);
}

/* The time to fetch a row by its TID and test the filter. */
static double
fetch_ns(const IvfpqScan *state)
{
	return (IvfpqRerankIsCold(state->rerank) ? COLD_FETCH_NS :
			IVFPQ_FETCH_NS) + state->filter->qual_ns;
}

/*
 * Returns whether the rows needed are taken as spread over the depth.  They
 * are not with a radius, where the last rows of the depth end the scan; with
 * refine records, which do not tell the rank of a row that matches; and in a
 * later batch, which returns the last rows.
 */
static bool
depth_is_spread(const IvfpqScan *state)
{
	if (state->returned > 0)
		return false;
	if (!is_filtered(state))
		return state->asks_keys;
	return !state->search.addresses && !state->filter->radius.is_set;
}

/* The rows that calibration is asked for, in a batch of this depth. */
static double
calibrated_depth(const IvfpqScan *state, double depth)
{
	if (!depth_is_spread(state))
		return depth;
	return IvfpqSpreadRows(depth / state->key_selectivity,
						   !is_filtered(state)) *
		state->key_selectivity;
}

/* Rows that may be out of order, of those returned. */
static double
expected_out_of_order(const IvfpqScan *state)
{
	return (1 - state->recall) * (double) state->returned;
}

/*
 * Returns whether rows out of order exceed `factor` times those expected,
 * beyond chance.
 */
static bool
is_out_of_order_beyond(const IvfpqScan *state, double factor)
{
	double		most = factor * expected_out_of_order(state);

	return state->out_of_order > most + 2 * sqrt(most) + 1;
}

/*
 * The rows that calibration is asked for, where a batch is to return the
 * nearest `rows`.  They are more in a later batch, which returns the last rows
 * alone, and where rows were out of order.  But they do not exceed the rows
 * that calibration knows, unless `rows` does.
 */
static double
with_margin(const IvfpqScan *state, double rows)
{
	double		scale = state->returned > 0 ? LATER_SCALE : 1;
	double		known;

	if (state->is_strict && state->out_of_order > 0 && state->recall < 1 &&
		is_out_of_order_beyond(state, 1))
		scale = Max(Min(state->out_of_order / expected_out_of_order(state),
						MOST_SCALE),
					scale);
	if (scale == 1)
		return rows;
	known = IvfpqKnownRows(&state->model->meta, state->recall);
	return rows > known ? rows * scale : Min(rows * scale, known);
}

/*
 * Returns whether too many rows came out of order, so that a full pass is to
 * bring the next ones.  There is none where gpuvec.max_probes limits lists.
 */
bool
IvfpqDepthNeedsFullPass(const IvfpqScan *state)
{
	return state->out_of_order > 0 && state->is_strict && state->recall < 1 &&
		ivfpq_max_probes == 0 && state->returned >= LEAST_RETURNED &&
		is_out_of_order_beyond(state, MOST_OUT_OF_ORDER);
}

/*
 * Sets *params for a batch of this depth, which counts rows that satisfy the
 * key quals.
 */
static void
params_at(const IvfpqScan *state, double depth, IvfpqSearchParams *params)
{
	const IvfpqMetaData *meta = &state->model->meta;
	double		among;
	double		spread;

	depth = Min(depth, PG_INT32_MAX / 4);
	among = with_margin(state, depth / state->key_selectivity);
	spread = among;
	if (depth_is_spread(state))
		spread = IvfpqSpreadRows(among, !is_filtered(state));
	IvfpqParamsForMatches(params, state->index, meta, state->recall, among,
						  spread);
	if (state->asks_keys)
		params->candidates = IvfpqKeyCandidates(params->candidates,
												state->key_selectivity);
	if (is_filtered(state))
		params->candidates = Max(params->candidates, (int) depth);
	params->quota = (int64) depth;
}

/* The time of a batch of this depth. */
static double
batch_ns(const IvfpqScan *state, double depth, double selectivity)
{
	const IvfpqMetaData *meta = &state->model->meta;
	IvfpqSearchParams params;
	double		postings;
	double		fetched;
	double		records = 0;

	params_at(state, depth, &params);
	postings = Min(meta->rows_at_calibration,
				   IvfpqRowsAbout(state->index, meta)) * meta->lists_per_row *
		params.probes / meta->nlists;
	fetched = params.candidates;
	if (state->search.addresses)
	{
		records = fetched;
		fetched = depth;
	}
	return postings * meta->pq_dim * IVFPQ_LOOKUP_NS +
		records * (IVFPQ_RECORD_NS + IVFPQ_RECORD_DIMENSION_NS * meta->dims) +
		params.candidates * CANDIDATE_NS +
		Max(fetched - state->fetched, 0) *
		(fetch_ns(state) + selectivity * rerank_ns(state));
}

/* The number of rows of the table. */
static double
table_rows(const IvfpqScan *state)
{
	return Max(state->rerank->heap->rd_rel->reltuples,
			   IvfpqRowsAbout(state->index, &state->model->meta));
}

/* The number of rows of the index, which may have a predicate. */
static double
index_rows(const IvfpqScan *state)
{
	double		rows = IvfpqRowsAbout(state->index, &state->model->meta);

	if (rows <= 0 || heap_attisnull(state->index->rd_indextuple,
									Anum_pg_index_indpred, NULL))
		return table_rows(state);
	return rows;
}

/* The time to find all rows that match by reading the table. */
static double
full_pass_ns(const IvfpqScan *state, double selectivity)
{
	return (IvfpqRerankIsCold(state->rerank) ? COLD_PAGE_NS : PAGE_NS) *
		state->rerank->heap_blocks +
		table_rows(state) * (ROW_NS + state->filter->qual_ns) +
		index_rows(state) * state->key_selectivity * selectivity *
		(rerank_ns(state) + SORT_NS);
}

/* The same by the keys of all lists. */
static double
lists_ns(const IvfpqScan *state, double selectivity)
{
	const IvfpqMetaData *meta = &state->model->meta;
	double		rows = index_rows(state);

	return rows * meta->lists_per_row * KEYS_NS +
		state->key_selectivity * rows * (SORT_NS + fetch_ns(state) +
										 selectivity * (rerank_ns(state) + SORT_NS));
}

/* The same by another index. */
static double
matches_ns(const IvfpqScan *state, double selectivity)
{
	double		rows = state->key_selectivity * selectivity *
	index_rows(state);
	double		matches = Max(state->filter->matches, rows);

	return matches * (MATCH_NS + fetch_ns(state)) +
		rows * (rerank_ns(state) + SORT_NS);
}

/*
 * The depth of the deepest batch, at most `depth`, that takes no more than the
 * fraction `allowed` of the time `rest`.
 */
static double
depth_within(const IvfpqScan *state, const Matching *matching, double depth,
			 double allowed, double rest)
{
	while (depth / 2 >= IVFPQ_FIRST_WITHIN &&
		   batch_ns(state, depth, matching->selectivity) > allowed * rest)
		depth /= 2;
	return depth;
}

/*
 * The time to find the remaining rows, and the best way: by reading the table,
 * by the index's keys, or by the other index.
 */
static double
rest_ns(const IvfpqScan *state, const Matching *matching, bool must,
		IvfpqRest *way)
{
	double		rest = full_pass_ns(state, matching->selectivity);
	double		lists = lists_ns(state, matching->selectivity);
	double		matches;

	*way = IVFPQ_REST_FULL_PASS;
	if (state->asks_keys && lists < rest)
	{
		*way = IVFPQ_REST_LISTS;
		rest = lists;
	}
	if (state->filter->next_match == NULL ||
		(!must && state->report.filter.rejected < LEAST_REJECTED))
		return rest;
	matches = matches_ns(state, matching->selectivity);
	if (matches < rest)
		*way = IVFPQ_REST_MATCHES;
	return Min(matches, rest);
}

/*
 * The depth of the first batch, where the estimate is `needed`.  Where another
 * index may bring the rest, the batch is deep enough that it may reject
 * LEAST_REJECTED rows, after which that index is asked.
 */
static double
first_depth(const IvfpqScan *state, const Matching *matching, double needed)
{
	double		rows_needed =
	Max(state->filter->rows_needed, DEFAULT_ROWS_NEEDED);
	double		rest = full_pass_ns(state, matching->selectivity);

	if (needed <= MOST_FIRST * rows_needed &&
		batch_ns(state, needed, matching->selectivity) <= BATCHES_FRACTION *
		rest)
		return needed;
	if (state->filter->next_match != NULL)
		return Min(needed, 1.1 * LEAST_REJECTED);
	return depth_within(state, matching, Min(needed, MOST_TRIED * rows_needed),
						TRIAL_FRACTION, rest);
}

/*
 * The depth of a later batch; 0 if another way to the rest is better.  Where
 * the selectivity is not known, a batch that costs little may tell it.
 */
static double
later_depth(const IvfpqScan *state, const Matching *matching, double needed)
{
	double		least = LEAST_GROWTH * state->depth;
	double		most = Max(least, Min(needed, MOST_GROWTH * state->depth));
	IvfpqRest	way;
	double		rest = rest_ns(state, matching, false, &way);
	bool		by_index = way == IVFPQ_REST_MATCHES;
	double		allowed = by_index ? 1 :
	matching->is_sure ? SURE_BATCHES_FRACTION : BATCHES_FRACTION;

	if (batch_ns(state, radius_depth(state, needed),
				 matching->selectivity) <=
		allowed * rest)
		return most;
	if (by_index || matching->is_sure || state->filter->radius.is_set)
		return 0;
	most = depth_within(state, matching, most, MORE_TRIAL_FRACTION, rest);
	return most >= least &&
		most * matching->selectivity >= SOME_MATCHED ? most : 0;
}

/* The depth of the next batch; 0 if another way to the rest is better. */
static double
next_depth(const IvfpqScan *state, const Matching *matching)
{
	double		needed = needed_depth(state, matching);

	if (!is_filtered(state))
		return state->batch == 0 ? needed :
			IvfpqBatchRows(state->index, &state->model->meta,
						   state->depth + 1);
	return state->batch == 0 ? first_depth(state, matching, needed) :
		later_depth(state, matching, needed);
}

/* Sets state->params, the search parameters of the next batch. */
void
IvfpqDepthNext(IvfpqScan *state)
{
	Matching	matching;
	double		depth;

	count_matching(state, &matching);
	depth = next_depth(state, &matching);
	if (depth == 0)				/* all that may be read */
		depth = LEAST_GROWTH * state->depth;
	if (is_filtered(state))
		depth = radius_depth(state, depth);
	params_at(state, depth, &state->params);
}

/* The rows that the first n batches return of a scan that knows no limit. */
static double
first_rows(const IvfpqScan *state, int n)
{
	double		rows = 0;

	for (int i = 0; i < n; i++)
		rows = IvfpqBatchRows(state->index, &state->model->meta, rows + 1);
	return rows;
}

/*
 * Returns whether the next batch would return too many rows at a depth that
 * calibration does not know.  Strict order leaves out rows nearer than those
 * returned, and a condition that has rejected most rows so far may need just
 * these.  Those that a full pass finds too late lie among the rows returned
 * before it, so they are at most that fraction of all.  Where calibration
 * knows the depth, the recall holds for such a condition, too; otherwise only
 * the first rows are exempt.
 */
static bool
is_unknown(const IvfpqScan *state)
{
	const IvfpqSearchParams *params = &state->params;
	double		fraction = 1 - state->recall;
	bool		is_first = state->batch == 0;

	if (!is_filtered(state))
		is_first = needed_rows(state) <=
			first_rows(state, fraction > 0 ? 2 : 1);
	if (!state->is_strict || params->calibrated || is_first)
		return false;
	fraction *= is_filtered(state) ? MOST_UNKNOWN_FILTERED : MOST_UNKNOWN;
	return fraction <= 0 ||
		!IvfpqHasRows(state->index, &state->model->meta,
					  params->quota / state->key_selectivity / fraction);
}

/*
 * Returns whether a full pass is better than the batch that state->params
 * describes, in a scan without a filter.  It is when the batch would rerank a
 * large fraction of the rows, or where calibration did not reach the recall at
 * this depth, unless key quals are answered from all lists then.
 */
static bool
full_pass_is_better(const IvfpqScan *state)
{
	const IvfpqSearchParams *params = &state->params;

	if (state->batch > 0 && params->recall_unreached && !state->asks_keys)
		return true;
	return state->batch > 0 && params->candidates > IVFPQ_MIN_RERANKED &&
		!IvfpqHasRows(state->index, &state->model->meta,
					  params->candidates / IVFPQ_RERANKED_FRACTION);
}

/*
 * Chooses the way to the remaining rows: IVFPQ_REST_NONE is the batch that
 * state->params describes, which `must` excludes.
 */
IvfpqRest
IvfpqDepthRest(const IvfpqScan *state, bool must)
{
	bool		leaves = must || is_unknown(state) ||
	IvfpqDepthNeedsFullPass(state);
	Matching	matching;
	IvfpqRest	way;

	if (!is_filtered(state))
		return !leaves && !full_pass_is_better(state) ? IVFPQ_REST_NONE :
			state->asks_keys ? IVFPQ_REST_LISTS : IVFPQ_REST_FULL_PASS;
	count_matching(state, &matching);
	(void) rest_ns(state, &matching, must, &way);
	return leaves || next_depth(state, &matching) == 0 ? way : IVFPQ_REST_NONE;
}

/*
 * Returns whether the snapshot does not see too many candidates.  Candidates
 * beyond the quota, which are there because scores are not exact, make up for
 * them; half of these may be lost.
 */
bool
IvfpqDepthManyInvisible(const IvfpqScan *state)
{
	int32		candidates = state->search.candidates.count;
	double		seen;

	if (state->invisible == 0)
		return false;
	seen = 1 - (double) state->invisible / state->fetched;
	return candidates * seen < (candidates + state->params.quota) / 2.0;
}

/*
 * Counts the rows that match within the batch's depth, and returns its quota,
 * the rows that may come up; ids [count] are its candidates, the best first.
 */
int64
IvfpqDepthQuota(IvfpqScan *state, const uint64 *ids, int64 count)
{
	int64		n = (int64) Min(state->depth, count);
	int64		sure = (int64) calibrated_depth(state, state->depth);
	bool		ignores_invisible = !is_filtered(state) &&
	!IvfpqDepthManyInvisible(state);
	int64		matched = 0;
	int64		nearer = 0;		/* in the nearer half of those */
	int64		within = 0;

	if (ignores_invisible && !IvfpqScanAsksRows(state))
		return state->matched = (int64) state->depth;
	for (int64 i = 0; i < n; i++)
	{
		TidSetEntry *entry = tidset_lookup(state->reranked, ids[i]);

		matched += entry != NULL && entry->matched &&
			(!entry->invisible || ignores_invisible);
		if (i < sure / 2)
			nearer = matched;
		if (i < sure)
			within = matched;
	}
	state->matched = matched;
	state->matched_near = nearer;
	if (!is_filtered(state))	/* not rejected by rechecks of keys */
		return matched;
	if (!is_spread(state))
		return nearer;
	return Min(matched, within + (int64) (MOST_BEHIND * nearer));
}

/* ----
 * Scans for the rows within a distance: whether everything within has
 * been read, and the depth of the next batch.
 *
 * Rows come up the nearest first.  When a row comes up that is outside, and
 * the quota of the batch is not used up, the batch has read everything within,
 * at the target recall.
 *
 * Where few rows match a filter, none may come up at all.  So when the quota
 * of a batch is used up, some of its candidates about the last rank of its
 * depth are reranked, whether they match or not.  If all of these are outside,
 * fewer rows than the depth are within.
 *
 * A batch that was not deep enough has reranked more rows than its depth.  If
 * most of these are outside, those within are nearly all that there are.
 * Otherwise these ranks tell how fast distances grow, and so an estimate of
 * the rows within.
 */

/*
 * Ranks that are reranked: the last, and others at the depth divided by this.
 */
#define NEARER_PART		4

/* The snapshot has to see this many of those reranked. */
#define LEAST_SEEN		3

/*
 * The depth that is searched, in multiples of the rows that seem to be within.
 */
#define RADIUS_MARGIN			1.4

/*
 * If at most WITHIN_PART of the rows counted are within, there are hardly
 * others; fewer than LEAST_COUNTED rows tell nothing.
 */
#define LEAST_COUNTED	10
#define WITHIN_PART		(1.0 / 3)

/*
 * The depth of the next batch, in multiples of the last one's.
 */
#define LEAST_RADIUS_GROWTH	2
#define USUAL_GROWTH	4
#define MOST_RADIUS_GROWTH		16

/* Returns whether a distance is beyond the radius. */
bool
IvfpqIsOutside(const IvfpqScan *state, double distance)
{
	const IvfpqRadius *radius;

	if (state->filter == NULL || !state->filter->radius.is_set)
		return false;
	radius = &state->filter->radius;
	if (isnan(radius->most))
		return false;
	return isnan(distance) ? !radius->with_nan : distance > radius->most;
}

/*
 * Returns whether a row that is no nearer than this bound is outside, and may
 * end the scan, though it was not tested whether it matches.
 */
bool
IvfpqIsBoundOutside(const IvfpqScan *state, double bound)
{
	return IvfpqIsOutside(state, bound) && state->filter->radius.by_all;
}

/* Counts a row that has got a distance, or a bound. */
void
IvfpqRadiusCount(IvfpqScan *state, double distance)
{
	state->counted++;
	state->counted_within += !IvfpqIsOutside(state, distance);
}

/*
 * Notes the rows that IvfpqRadiusIsRead reranks; ids [n] are the best
 * candidates of the batch, up to its depth.
 */
void
IvfpqRadiusWatch(IvfpqScan *state, const uint64 *ids, int64 n)
{
	IvfpqWatched *watched = &state->watched;

	watched->n = 0;
	if (!state->filter->radius.is_set || !state->filter->radius.by_all ||
		n < NEARER_PART * IVFPQ_WATCHED / 2)
		return;
	watched->n = IVFPQ_WATCHED;
	memcpy(watched->last, ids + n - IVFPQ_WATCHED,
		   IVFPQ_WATCHED * sizeof(uint64));
	memcpy(watched->nearer, ids + Max(n / NEARER_PART - IVFPQ_WATCHED / 2, 0),
		   IVFPQ_WATCHED * sizeof(uint64));
}

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
rerank_watched(IvfpqScan *state, const uint64 *ids, int n, double *distances)
{
	IvfpqSatisfies satisfies = state->rerank->satisfies;
	int			seen = 0;

	state->rerank->satisfies = NULL;
	for (int i = 0; i < n; i++)
		if (IvfpqRerankRow(state->rerank, ids[i], &distances[seen]))
			seen++;
	state->rerank->satisfies = satisfies;
	state->report.reranked += seen;
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
 * Returns whether everything within has been read, when the quota of the batch
 * is used up.  If not, state->within is set to the estimated number of rows
 * within; 0 = not known.
 */
bool
IvfpqRadiusIsRead(IvfpqScan *state)
{
	const IvfpqRadius *radius = &state->filter->radius;
	IvfpqWatched *watched = &state->watched;
	double		last[IVFPQ_WATCHED];
	double		nearer[IVFPQ_WATCHED];
	int			nlast;
	int			nnearer;
	bool		is_read;

	state->within = 0;
	if (!radius->is_set || watched->n == 0)
		return false;
	nlast = rerank_watched(state, watched->last, watched->n, last);
	is_read = nlast >= LEAST_SEEN && IvfpqIsOutside(state, last[0]);
	if (nlast >= LEAST_SEEN && !is_read)
	{
		nnearer = rerank_watched(state, watched->nearer, watched->n, nearer);
		if (nnearer >= LEAST_SEEN && isfinite(radius->most))
			state->within = rows_within(radius->most, state->depth,
										nearer[nnearer / 2], last[nlast / 2]);
	}
	IvfpqRerankPause(state->rerank);
	return is_read;
}

/* Estimates the number of rows within, whether they match or not. */
static double
likely_within(const IvfpqScan *state)
{
	double		by_ranks = state->within > 0 ? state->within :
	USUAL_GROWTH / RADIUS_MARGIN * state->depth;
	double		counted;

	if (state->counted < LEAST_COUNTED)
		return by_ranks;
	counted = (double) state->counted_within / state->counted *
		Max(state->fetched - state->invisible, state->counted);
	if (state->counted_within <= WITHIN_PART * state->counted)
		return counted;
	return Max(counted, by_ranks);
}

/*
 * The depth of the next batch, where `needed` suffices for the rows needed.
 */
static double
radius_depth(const IvfpqScan *state, double needed)
{
	if (!state->filter->radius.is_set)
		return needed;
	if (state->batch == 0)
		return Min(needed, IVFPQ_FIRST_WITHIN);
	return Min(needed, Max(LEAST_RADIUS_GROWTH * state->depth,
						   Min(RADIUS_MARGIN * likely_within(state),
							   MOST_RADIUS_GROWTH * state->depth)));
}

/* ----
 * Conditions on keys, in a scan: how it begins and aims its batches.
 *
 * A scan with such conditions goes through batches as any other, but the rows
 * that it counts are those that satisfy them.
 */

/*
 * Is anything asked of keys?  That the vector is not NULL is true of all rows.
 */
static bool
asks_keys(IndexScanDesc scan)
{
	for (int i = 0; i < scan->numberOfKeys; i++)
	{
		ScanKey		scan_key = &scan->keyData[i];

		if (scan_key->sk_attno > 1 ||
			(scan_key->sk_flags & SK_SEARCHNOTNULL) == 0)
			return true;
	}
	return false;
}

/* Take the scan's conditions; false if no row satisfies them. */
bool
IvfpqScanBeginKeys(IndexScanDesc scan)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;

	state->asks_keys = asks_keys(scan);
	state->key_selectivity = 1;
	if (!state->asks_keys)
		return true;
	IvfpqKeysInit(&state->keys, state->index);
	IvfpqModelCheckKeys(state->index, state->model, &state->keys.form);
	IvfpqKeyQualsMake(&state->quals, &state->keys, scan->keyData,
					  scan->numberOfKeys);
	if (state->filter != NULL)
		state->key_selectivity = Min(Max(state->filter->key_selectivity,
										 IVFPQ_LEAST_SELECTIVITY), 1);
	return !state->quals.never;
}

/*
 * Is it told only by rows themselves which candidates may come up?  If so,
 * those count that passed.
 */
bool
IvfpqScanAsksRows(const IvfpqScan *state)
{
	return state->filter != NULL ||
		(state->asks_keys && state->quals.nrechecks > 0);
}

/*
 * Of all rows those that the planner expects to satisfy them; 0 = not known.
 */
static double
planned_selectivity(const IvfpqScan *state)
{
	double		rows = IvfpqRowsAbout(state->index, &state->model->meta);

	if (state->filter != NULL || state->planned <= 0 || rows <= 0)
		return 0;
	return Min(Max(state->planned / rows, IVFPQ_LEAST_SELECTIVITY), 1);
}

/*
 * Sets the goal of the next batch among rows that satisfy the conditions: as
 * the search parameters say or, in the last batch, all of them in most_probes
 * lists.
 */
void
IvfpqScanAimKeys(IvfpqScan *state, int most_probes, bool is_last)
{
	IvfpqKeyGoal *goal = &state->goal;

	goal->recall = state->recall;
	goal->rows = Max(state->params.quota, 1);
	goal->most_probes = most_probes;
	goal->selectivity = state->key_selectivity;
	goal->guess = planned_selectivity(state);
	goal->is_spread = depth_is_spread(state);
	goal->is_far = false;
	goal->by_keys = state->filter == NULL;
	goal->reads_all = is_last;
	state->wanted = is_last ? PG_INT32_MAX / 4 :
		IvfpqKeyCapacity(&state->search, goal);
	goal->candidates = IvfpqScanCandidates(state, most_probes);
	state->params.candidates = goal->candidates;
}

/* ----
 * The rows that a statement needs from its ordered scans, as the
 * executor knows them: for LIMIT $1 and LIMIT (SELECT ...), too.
 *
 * When a statement starts its finished plan is walked, and each index scan of
 * ours below a Limit is noted with that node.  The node has computed its
 * numbers when it asks for its first row, and again after each rescan; so the
 * scan reads them when it begins.  Nodes between the two may drop or multiply
 * rows, so the number is a hint, and recall does not depend on it.
 *
 * The access method does not see its node, but its rescan gets the node's
 * array of order keys, which is no other node's.  Notes live in the memory of
 * the statement, as plan and scan do, and are freed with it.
 */

/* An index scan of ours. */
typedef struct Note
{
	dlist_node	node;
	const IndexScanState *scan;
	const LimitState *limit;	/* the next one above, or NULL */
	MemoryContextCallback callback;
} Note;

/* The state of a walk. */
typedef struct Walk
{
	PlanState  *above;			/* the node above, or NULL */
	const LimitState *limit;	/* limits that node's rows, or NULL */
	MemoryContext context;		/* of the statement */
} Walk;

static dlist_head notes = DLIST_STATIC_INIT(notes);
static ExecutorStart_hook_type previous_start = NULL;

/* MemoryContextCallback: the statement is over. */
static void
forget(void *arg)
{
	dlist_delete(&((Note *) arg)->node);
}

static void
take_note(const IndexScanState *scan, const Walk *walk)
{
	Note	   *note;

	/* EXPLAIN opens no index */
	if (scan->iss_RelationDesc == NULL || scan->iss_NumOrderByKeys == 0 ||
		scan->iss_RelationDesc->rd_indam->amgettuple != ivfpqgettuple)
		return;
	note = MemoryContextAllocZero(walk->context, sizeof(Note));
	note->scan = scan;
	note->limit = walk->limit;
	note->callback.func = forget;
	note->callback.arg = note;
	dlist_push_head(&notes, &note->node);
	MemoryContextRegisterResetCallback(walk->context, &note->callback);
}

/* Returns whether a node is among others [n]. */
static bool
is_among(const PlanState *node, PlanState **others, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (others[i] == node)
			return true;
	}
	return false;
}

/*
 * Returns whether `above` needs about as many rows of the node below it as it
 * returns itself.  These are fewer nodes than those of ../filter/plancheck.c,
 * below which a scan may be: ProjectSet, for example, hands on rows one by
 * one, but makes several of one.
 */
static bool
hands_on(PlanState *above, PlanState *node)
{
	switch (nodeTag(above))
	{
		case T_AppendState:
			return is_among(node, ((AppendState *) above)->appendplans,
							((AppendState *) above)->as_nplans);
		case T_MergeAppendState:
			return is_among(node, ((MergeAppendState *) above)->mergeplans,
							((MergeAppendState *) above)->ms_nplans);
		case T_SubqueryScanState:
			return node == ((SubqueryScanState *) above)->subplan;
		case T_CustomScanState:
			return strcmp(((CustomScanState *) above)->methods->CustomName,
						  IVFPQ_CUSTOM_NAME) == 0 &&
				node == linitial(((CustomScanState *) above)->custom_ps);
		case T_LimitState:
		case T_ResultState:
		case T_LockRowsState:
		case T_NestLoopState:
		case T_IncrementalSortState:
		case T_UniqueState:
		case T_WindowAggState:
			return node == outerPlanState(above);
		default:
			return false;
	}
}

/* Takes notes of a node and those below it when a statement starts. */
static bool
walk_plan(PlanState *node, void *context)
{
	const Walk *walk = context;
	Walk		below = {node, NULL, walk->context};

	check_stack_depth();
	if (IsA(node, LimitState))
		below.limit = (LimitState *) node;
	else if (walk->above != NULL && hands_on(walk->above, node))
		below.limit = walk->limit;
	if (IsA(node, IndexScanState))
		take_note((IndexScanState *) node, &below);
	return planstate_tree_walker(node, walk_plan, &below);
}

/* ExecutorStart_hook */
static void
start_statement(QueryDesc *query, int eflags)
{
	Walk		walk = {0};

	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	if (query->planstate == NULL || (eflags & EXEC_FLAG_EXPLAIN_ONLY))
		return;
	walk.context = query->estate->es_query_cxt;
	(void) walk_plan(query->planstate, &walk);
}

/*
 * The Limit above the scan that has these order keys, or NULL.  *planned: the
 * rows that the planner expects of the scan, or 0.
 */
const LimitState *
IvfpqLimitOf(ScanKey orderbys, double *planned)
{
	dlist_iter	iter;

	*planned = 0;
	dlist_foreach(iter, &notes)
	{
		const Note *note = dlist_container(Note, node, iter.cur);

		if (note->scan->iss_OrderByKeys != orderbys)
			continue;
		*planned = note->scan->ss.ps.plan->plan_rows;
		return note->limit;
	}
	return NULL;
}

/*
 * The rows that a Limit returns, without those of OFFSET; 0 if that is not
 * known.  WITH TIES counts as one row more, though any number may follow.
 */
double
IvfpqLimitRows(const LimitState *limit)
{
	if (limit == NULL || limit->lstate == LIMIT_INITIAL || limit->noCount)
		return 0;
	return (double) limit->count +
		(limit->limitOption == LIMIT_OPTION_WITH_TIES);
}

/* Call once a process. */
void
IvfpqInitLimit(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = start_statement;
}
