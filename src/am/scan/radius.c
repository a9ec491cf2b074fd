/*
 * radius.c
 *		Scans for the rows within a distance: when everything within has been
 *		read, and how deep the next batch goes.
 *
 * Rows come up the nearest first.  When one comes up that is outside, and the
 * batch is good for more rows than came up before it, the batch has read
 * everything within, at the recall asked for.
 *
 * Where a filter lets few rows pass, none may come up at all.  So when all
 * rows have come up that a batch is good for, some of its candidates about
 * the rank that it is good for are reranked, whether they pass or not.  If
 * all of these are outside, fewer rows than that are within.
 *
 * A batch that was not deep enough has reranked more rows than it is good for.
 * If most of these are outside, those within are nearly all that there are.
 * Else it tells how fast distances grow with ranks, and so how many are
 * within, about.
 */
#include "postgres.h"

#include <math.h>

#include "utils/float.h"

#include "am/scan/scan.h"

/* Ranks that are looked at: the last, and others at a part of the depth. */
#define NEARER_PART		4

/* Of those looked at so many have to be seen by the snapshot. */
#define LEAST_SEEN		3

/* What is read beyond the rows that seem to be within. */
#define MARGIN			1.4

/*
 * If no more of those counted are within, there are hardly others; fewer
 * counted tell nothing.
 */
#define LEAST_COUNTED	10
#define WITHIN_PART		(1.0 / 3)

/*
 * The next batch goes so many times as deep, at least, usually, and at most.
 */
#define LEAST_GROWTH	2
#define USUAL_GROWTH	4
#define MOST_GROWTH		16

/* Is a distance beyond what is wanted? */
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
 * Is a row that is no nearer than this bound outside, and may that end the
 * scan, though nobody knows whether it passes?
 */
bool
IvfpqIsBoundOutside(const IvfpqScan *state, double bound)
{
	return IvfpqIsOutside(state, bound) && state->filter->radius.by_all;
}

/* A row has got a distance, or a bound: count it. */
void
IvfpqRadiusCount(IvfpqScan *state, double distance)
{
	state->counted++;
	state->counted_within += !IvfpqIsOutside(state, distance);
}

/*
 * Note which rows tell about the batch; ids [n] are the best it is good for.
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
 * Rerank rows [n], whether they pass or not, and sort their distances.
 * Returns how many the snapshot sees.
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
 * Rows within, if there are `depth` at distance `last` and a part of these at
 * `nearer`.  Where distances are above 0 ranks grow by a power of them, else,
 * and faster than that, by equal factors for equal steps.
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
 * All rows that the batch is good for have come up: is everything within read?
 * If not, state->within says how deep that is, likely; 0 = not known.
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

/* How many rows are within, whether they pass or not, as far as is known. */
static double
likely_within(const IvfpqScan *state)
{
	double		by_ranks = state->within > 0 ? state->within :
	USUAL_GROWTH / MARGIN * state->depth;
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
 * How deep the next batch goes, where `needed` would do for the rows wanted.
 */
double
IvfpqRadiusDepth(const IvfpqScan *state, double needed)
{
	if (!state->filter->radius.is_set)
		return needed;
	if (state->batch == 0)
		return Min(needed, IVFPQ_FIRST_WITHIN);
	return Min(needed, Max(LEAST_GROWTH * state->depth,
						   Min(MARGIN * likely_within(state),
							   MOST_GROWTH * state->depth)));
}
