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
 */
#include "postgres.h"

#include <math.h>

#include "access/heaptoast.h"
#include "utils/rel.h"

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

/*
 * The first batch believes the planner, but not far, and less where that takes
 * long; later ones go at least and at most so many times as deep as the one
 * before.
 */
#define MOST_FIRST			50
#define MOST_COSTLY_FIRST	10
#define LEAST_GROWTH		2
#define MOST_GROWTH			16

/* Rows that pass, from which on their share is known. */
#define FEW_PASSED			5
#define MANY_PASSED			8

/* Rows that did not pass, from which on another index may be asked. */
#define LEAST_REJECTED		500

/*
 * Of what the rest would take, batches may take this share; more where so many
 * passed that their share is known well, or as many as the planner expected.
 */
#define BATCHES_SHARE		0.25
#define SURE_BATCHES_SHARE	0.6

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

static void
count_passing(const IvfpqScan *state, Passing *passing)
{
	double		guess;
	double		expected;
	bool		agrees;

	passing->looked = state->search.addresses ? state->taken : state->depth;
	passing->passed = state->search.addresses ? state->given : state->quota;
	if (!state->search.addresses && state->taken > 0)
		passing->passed *= (double) state->given / state->taken;
	guess = state->filter->share;
	expected = guess * passing->looked;
	agrees = fabs(passing->passed - expected) <= 1 + 2 * sqrt(expected);
	passing->is_sure = agrees || passing->passed >= MANY_PASSED;
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

/* A batch that goes so deep. */
static double
batch_ns(const IvfpqScan *state, double depth, double share)
{
	const IvfpqMetaData *meta = &state->model->meta;
	IvfpqEffort effort;
	double		copies;
	double		fetched;
	double		records = 0;

	IvfpqScanEffort(state, depth, &effort);
	copies = (double) meta->rows_at_calibration * meta->copies *
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
	return Max(Max(state->measure->heap->rd_rel->reltuples,
				   state->index->rd_rel->reltuples),
			   state->model->meta.rows_at_calibration);
}

/* Everything that passes, by reading the table. */
static double
pass_ns(const IvfpqScan *state, double share)
{
	double		rows = table_rows(state);

	return (IvfpqMeasureIsCold(state->measure) ? COLD_PAGE_NS : PAGE_NS) *
		state->measure->heap_blocks +
		rows * (ROW_NS + state->filter->pass_ns +
				state->key_share * share * (measure_ns(state) + SORT_NS));
}

/* The same by the keys of all lists. */
static double
lists_ns(const IvfpqScan *state, double share)
{
	const IvfpqMetaData *meta = &state->model->meta;
	double		rows = table_rows(state);

	return rows * meta->copies * KEYS_NS +
		state->key_share * rows * (SORT_NS + fetch_ns(state) +
								   share * (measure_ns(state) + SORT_NS));
}

/* The same by another index. */
static double
matches_ns(const IvfpqScan *state, double share)
{
	double		rows = state->key_share * share * table_rows(state);
	double		matches = Max(state->filter->matches, rows);

	return matches * (MATCH_NS + fetch_ns(state)) +
		rows * (measure_ns(state) + SORT_NS);
}

/* How deep the next batch goes, and what that takes: state->effort. */
void
IvfpqDepthNext(IvfpqScan *state)
{
	Passing		passing;
	double		needed;
	double		wanted = Max(state->filter->wanted, USUAL_WANTED);

	count_passing(state, &passing);
	needed = needed_depth(state, &passing);
	if (state->batch == 0)
	{
		needed = Min(needed, MOST_FIRST * wanted);
		if (needed > MOST_COSTLY_FIRST * wanted &&
			batch_ns(state, needed, passing.share) >
			BATCHES_SHARE * pass_ns(state, passing.share))
			needed = MOST_COSTLY_FIRST * wanted;
	}
	else
		needed = Max(LEAST_GROWTH * state->depth,
					 Min(needed, MOST_GROWTH * state->depth));
	needed = IvfpqRadiusDepth(state, needed);
	IvfpqScanEffort(state, needed, &state->effort);
}

/*
 * Which way to the rest: by reading the table, by the index's keys, or by the
 * other index; or by the batch that state->effort describes, unless the rest
 * has to come.
 */
IvfpqRest
IvfpqDepthRest(const IvfpqScan *state, bool must)
{
	const IvfpqFilter *filter = state->filter;
	Passing		passing;
	double		depth;
	double		batches;
	double		rest;
	double		allowed;
	IvfpqRest	way = IVFPQ_REST_PASS;

	count_passing(state, &passing);
	rest = pass_ns(state, passing.share);
	if (state->asks_keys && lists_ns(state, passing.share) < rest)
	{
		way = IVFPQ_REST_LISTS;
		rest = lists_ns(state, passing.share);
	}
	if (filter->next_match != NULL &&
		(must || state->report.filter.rejected >= LEAST_REJECTED))
	{
		double		matches = matches_ns(state, passing.share);

		if (matches < rest)
			way = IVFPQ_REST_MATCHES;
		rest = Min(rest, matches);
	}
	if (must)
		return way;
	if (state->batch == 0)
		return IVFPQ_REST_NONE;

	depth = IvfpqRadiusDepth(state, needed_depth(state, &passing));
	batches = batch_ns(state, depth, passing.share);
	allowed = way == IVFPQ_REST_MATCHES ? 1 :
		passing.is_sure ? SURE_BATCHES_SHARE : BATCHES_SHARE;
	return batches > allowed * rest ? way : IVFPQ_REST_NONE;
}

/*
 * The rows that pass among the nearest ones that the batch is good for; ids
 * [count] are its candidates, the best first.
 */
int64
IvfpqDepthQuota(const IvfpqScan *state, const uint64 *ids, int64 count)
{
	int64		n = (int64) Min(state->depth, count);
	int64		passed = 0;

	for (int64 i = 0; i < n; i++)
	{
		TidSetEntry *entry = tidset_lookup(state->measured, ids[i]);

		passed += entry != NULL && entry->passed;
	}
	return passed;
}
