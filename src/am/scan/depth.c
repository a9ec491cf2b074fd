/*
 * depth.c
 *		How far a filtered scan reads, and when it had better not read on.
 *
 * Calibration says what the nearest n rows take.  Of these only some pass.  So
 * where ten rows are wanted and a tenth passes, the scan reads what a hundred
 * rows take.  How many pass is the planner's guess at first, and from then on
 * what the batches show.
 *
 * A batch is good for the rows that pass among the nearest n, by the scores of
 * its candidates.  So it does not matter whether rows that pass are near the
 * query or far from it.
 *
 * What n rows take finds as much of the last ones as of all, and of all more
 * than was asked for.  Rows that pass are spread over all n, likely; so with what
 * fewer rows take the batch finds as much of n as was asked.  Where they are not,
 * and most of them lie behind those fewer rows, it is good for less.
 */
#include "postgres.h"

#include <math.h>

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "catalog/pg_index.h"
#include "utils/rel.h"

#include "am/common/count.h"
#include "am/common/options.h"
#include "am/scan/scan.h"

/* Rows wanted, where nobody has said how many. */
#define USUAL_WANTED		10
#define MORE_WANTED			4

/*
 * What is read beyond what seems to be needed, in standard deviations of the
 * rows that pass: a batch too many costs more.
 */
#define MARGIN				1.2

/* Rows that pass behind those, for each in the nearer half of them. */
#define MOST_BEHIND			2.0

/*
 * Where it is fewer than one of so many in that half, they are not spread; and
 * more are asked for where the planner expected so many times as many to pass.
 */
#define LEAST_NEARER		8
#define LEAST_NEARER_OF_FEW	3
#define FAR_FEWER			4

/*
 * The first batch believes the planner, if that takes it no deeper than so many
 * times the rows wanted; else it only tries, and goes no deeper than this.
 */
#define MOST_FIRST			150
#define MOST_TRIED			10

/* Later ones go so many times as deep as the one before, at least and at most. */
#define LEAST_GROWTH		2
#define MOST_GROWTH			16

/*
 * Rows that pass, from which on their share is known: if it is what the planner
 * expected, roughly, and if not.
 */
#define SOME_PASSED			2
#define FEW_PASSED			5
#define MANY_PASSED			8

/* Rows that did not pass, from which on another index may be asked. */
#define LEAST_REJECTED		500

/*
 * Of what the rest would take, batches may take this share; more where the share
 * that passes is known well; and to try less.
 */
#define BATCHES_SHARE		0.25
#define SURE_BATCHES_SHARE	0.6
#define TRIAL_SHARE			0.08
#define MORE_TRIAL_SHARE	0.15

/* Nanoseconds, beside those of effort.h. */
#define CANDIDATE_NS		250.0	/* a candidate found, beside its lists */
#define PAGE_NS				180.0	/* a page of the table, in its order */
#define ROW_NS				70.0	/* a row on such a page */
#define KEYS_NS				6.0 /* a copy's keys in its list */
#define MATCH_NS			150.0	/* a row that another index names */
#define SORT_NS				200.0	/* a row sorted */
#define TOAST_NS			4000.0	/* a vector out of line */
#define COLD_PAGE_NS		5000.0	/* a page that comes from a file, in order */
#define COLD_FETCH_NS		20000.0 /* ... or for a row of it */

/* What is known of the rows that pass. */
typedef struct Passing
{
	double		looked;			/* of the nearest so many rows */
	double		passed;			/* so many pass, and are admitted */
	double		share;			/* of those further on, likely */
	bool		is_sure;		/* that is not off by much */
} Passing;

/*
 * Do rows that pass lie among all others, by chance?  If not, they may be far
 * from the query because of what they have in common, and in lists that hardly
 * any other row as near is in.  Then they are found less surely than calibration
 * says.
 */
static bool
is_spread(const IvfpqScan *state)
{
	double		expected = state->filter->share * state->depth;

	if (state->search.addresses || state->filter->radius.is_set)
		return true;
	if (state->passed < FEW_PASSED)
		return state->passed + 1 + 2 * sqrt(expected) >= expected;
	return state->passed_near * (state->passed * FAR_FEWER < expected ?
								 LEAST_NEARER_OF_FEW : LEAST_NEARER) >=
		state->passed;
}

static void
count_passing(const IvfpqScan *state, Passing *passing)
{
	double		guess;
	double		expected;
	bool		agrees;

	passing->looked = state->search.addresses ? state->taken : state->depth;
	passing->passed = state->search.addresses ? state->given : state->passed;
	if (!state->search.addresses && state->taken > 0)
		passing->passed *= (double) state->given / state->taken;
	guess = state->filter->share;
	expected = guess * passing->looked;
	agrees = fabs(passing->passed - expected) <= 1 + 2 * sqrt(expected);
	passing->is_sure = is_spread(state) &&
		passing->passed >= (agrees ? SOME_PASSED : MANY_PASSED);
	if (agrees && passing->passed < FEW_PASSED)
		passing->share = guess;
	else if (passing->passed >= FEW_PASSED)
		passing->share = passing->passed / passing->looked;
	else						/* the next one may have been about to come */
		passing->share = (passing->passed + 1) / passing->looked;
	passing->share = Max(Min(passing->share, 1), IVFPQ_LEAST_SHARE);
}

/* The nearest rows of which as many as are wanted pass, likely. */
static double
needed_depth(const IvfpqScan *state, const Passing *passing)
{
	double		wanted = state->filter->wanted;

	if (wanted <= 0)
		wanted = USUAL_WANTED;
	while (wanted <= state->given)
		wanted *= MORE_WANTED;
	return Max((wanted + MARGIN * sqrt(wanted)) / passing->share,
			   IVFPQ_FIRST_ROWS);
}

/* What it takes to measure a row that has been fetched. */
static double
measure_ns(const IvfpqScan *state)
{
	int			dims = state->model->meta.dims;

	return IVFPQ_DIMENSION_NS * dims +
		(dims * sizeof(float) > TOAST_TUPLE_THRESHOLD ? TOAST_NS : 0);
}

/* A row fetched by its TID, and asked whether it passes. */
static double
fetch_ns(const IvfpqScan *state)
{
	return (IvfpqMeasureIsCold(state->measure) ? COLD_FETCH_NS :
			IVFPQ_FETCH_NS) + state->filter->pass_ns;
}

/* The rows that calibration is asked for, of a batch that goes so deep. */
static double
calibrated_depth(const IvfpqScan *state, double depth)
{
	if (!IvfpqScanIsSpread(state))
		return depth;
	return IvfpqSpreadRows(depth / state->key_share, false) *
		state->key_share;
}

/* What a batch takes that goes so deep. */
static void
effort_for(const IvfpqScan *state, double depth, IvfpqEffort *effort)
{
	depth = Min(depth, PG_INT32_MAX / 4);
	IvfpqScanEffort(state, depth, effort);
	effort->candidates = Max(effort->candidates, (int) depth);
	effort->quota = (int64) depth;
}

/* The time of that. */
static double
batch_ns(const IvfpqScan *state, double depth, double share)
{
	const IvfpqMetaData *meta = &state->model->meta;
	IvfpqEffort effort;
	double		copies;
	double		fetched;
	double		records = 0;

	effort_for(state, depth, &effort);
	copies = Min(meta->rows_at_calibration,
				 IvfpqRowsAbout(state->index, meta)) * meta->copies *
		effort.probes / meta->nlists;
	fetched = effort.candidates;
	if (state->search.addresses)
	{
		records = fetched;
		fetched = depth;
	}
	return copies * meta->pq_dim * IVFPQ_LOOKUP_NS +
		records * (IVFPQ_RECORD_NS + IVFPQ_RECORD_DIMENSION_NS * meta->dims) +
		effort.candidates * CANDIDATE_NS +
		Max(fetched - state->tried, 0) *
		(fetch_ns(state) + share * measure_ns(state));
}

/* The rows of the table. */
static double
table_rows(const IvfpqScan *state)
{
	return Max(state->measure->heap->rd_rel->reltuples,
			   IvfpqRowsAbout(state->index, &state->model->meta));
}

/* Those of the index, which may have a predicate. */
static double
index_rows(const IvfpqScan *state)
{
	double		rows = IvfpqRowsAbout(state->index, &state->model->meta);

	if (rows <= 0 || heap_attisnull(state->index->rd_indextuple,
									Anum_pg_index_indpred, NULL))
		return table_rows(state);
	return rows;
}

/* Everything that passes, by reading the table. */
static double
pass_ns(const IvfpqScan *state, double share)
{
	return (IvfpqMeasureIsCold(state->measure) ? COLD_PAGE_NS : PAGE_NS) *
		state->measure->heap_blocks +
		table_rows(state) * (ROW_NS + state->filter->pass_ns) +
		index_rows(state) * state->key_share * share *
		(measure_ns(state) + SORT_NS);
}

/* The same by the keys of all lists. */
static double
lists_ns(const IvfpqScan *state, double share)
{
	const IvfpqMetaData *meta = &state->model->meta;
	double		rows = index_rows(state);

	return rows * meta->copies * KEYS_NS +
		state->key_share * rows * (SORT_NS + fetch_ns(state) +
								   share * (measure_ns(state) + SORT_NS));
}

/* The same by another index. */
static double
matches_ns(const IvfpqScan *state, double share)
{
	double		rows = state->key_share * share * index_rows(state);
	double		matches = Max(state->filter->matches, rows);

	return matches * (MATCH_NS + fetch_ns(state)) +
		rows * (measure_ns(state) + SORT_NS);
}

/*
 * The deepest batch, no deeper than `depth`, that takes no more than this share
 * of the rest.
 */
static double
depth_within(const IvfpqScan *state, const Passing *passing, double depth,
			 double allowed, double rest)
{
	while (depth / 2 >= IVFPQ_FIRST_WITHIN &&
		   batch_ns(state, depth, passing->share) > allowed * rest)
		depth /= 2;
	return depth;
}

/*
 * What the rest takes, and which way: by reading the table, by the index's keys,
 * or by the other index.
 */
static double
rest_ns(const IvfpqScan *state, const Passing *passing, bool must,
		IvfpqRest *way)
{
	double		rest = pass_ns(state, passing->share);
	double		lists = lists_ns(state, passing->share);
	double		matches;

	*way = IVFPQ_REST_PASS;
	if (state->asks_keys && lists < rest)
	{
		*way = IVFPQ_REST_LISTS;
		rest = lists;
	}
	if (state->filter->next_match == NULL ||
		(!must && state->report.filter.rejected < LEAST_REJECTED))
		return rest;
	matches = matches_ns(state, passing->share);
	if (matches < rest)
		*way = IVFPQ_REST_MATCHES;
	return Min(matches, rest);
}

/*
 * How deep the first batch goes, when so many rows seem to be needed.  Where
 * another index may bring the rest it rejects enough for that to be asked.
 */
static double
first_depth(const IvfpqScan *state, const Passing *passing, double needed)
{
	double		wanted = Max(state->filter->wanted, USUAL_WANTED);
	double		rest = pass_ns(state, passing->share);

	if (needed <= MOST_FIRST * wanted &&
		batch_ns(state, needed, passing->share) <= BATCHES_SHARE * rest)
		return needed;
	if (state->filter->next_match != NULL)
		return Min(needed, 1.1 * LEAST_REJECTED);
	return depth_within(state, passing, Min(needed, MOST_TRIED * wanted),
						TRIAL_SHARE, rest);
}

/*
 * How deep a later batch goes; 0 if the rest had better come.  Where the share
 * that passes is not known, one that costs little may tell.
 */
static double
later_depth(const IvfpqScan *state, const Passing *passing, double needed)
{
	double		least = LEAST_GROWTH * state->depth;
	double		most = Max(least, Min(needed, MOST_GROWTH * state->depth));
	IvfpqRest	way;
	double		rest = rest_ns(state, passing, false, &way);
	bool		by_index = way == IVFPQ_REST_MATCHES;
	double		allowed = by_index ? 1 :
	passing->is_sure ? SURE_BATCHES_SHARE : BATCHES_SHARE;

	if (batch_ns(state, IvfpqRadiusDepth(state, needed), passing->share) <=
		allowed * rest)
		return most;
	if (by_index || passing->is_sure || state->filter->radius.is_set)
		return 0;
	most = depth_within(state, passing, most, MORE_TRIAL_SHARE, rest);
	return most >= least && most * passing->share >= SOME_PASSED ? most : 0;
}

/* How deep the next batch goes, and what that takes: state->effort. */
void
IvfpqDepthNext(IvfpqScan *state)
{
	Passing		passing;
	double		needed;
	double		depth;

	count_passing(state, &passing);
	needed = needed_depth(state, &passing);
	depth = state->batch == 0 ? first_depth(state, &passing, needed) :
		later_depth(state, &passing, needed);
	if (depth == 0)				/* all that may be read */
		depth = LEAST_GROWTH * state->depth;
	effort_for(state, IvfpqRadiusDepth(state, depth), &state->effort);
}

/*
 * Which way to the rest; or by the batch that state->effort describes, unless
 * the rest has to come.
 */
IvfpqRest
IvfpqDepthRest(const IvfpqScan *state, bool must)
{
	Passing		passing;
	IvfpqRest	way;

	count_passing(state, &passing);
	(void) rest_ns(state, &passing, must, &way);
	if (!must &&
		(state->batch == 0 ||
		 later_depth(state, &passing, needed_depth(state, &passing)) > 0))
		return IVFPQ_REST_NONE;
	return way;
}

/*
 * The rows that may come up of those that pass among the nearest ones, for
 * which the batch is good; ids [count] are its candidates, the best first.
 */
int64
IvfpqDepthQuota(IvfpqScan *state, const uint64 *ids, int64 count)
{
	int64		n = (int64) Min(state->depth, count);
	int64		sure = (int64) calibrated_depth(state, state->depth);
	int64		passed = 0;
	int64		nearer = 0;		/* in the nearer half of those */
	int64		within = 0;

	for (int64 i = 0; i < n; i++)
	{
		TidSetEntry *entry = tidset_lookup(state->measured, ids[i]);

		passed += entry != NULL && entry->passed;
		if (i < sure / 2)
			nearer = passed;
		if (i < sure)
			within = passed;
	}
	state->passed = passed;
	state->passed_near = nearer;
	if (state->filter == NULL)	/* not rejected by rechecks of keys */
		return passed;
	if (!is_spread(state))
		return nearer;
	return Min(passed, within + (int64) (MOST_BEHIND * nearer));
}
