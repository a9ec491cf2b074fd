/*
 * radius.c
 *		Scans for the rows within a distance: whether everything within has
 *		been read, and the depth of the next batch.
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
#include "postgres.h"

#include <math.h>

#include "utils/float.h"

#include "am/scan/scan.h"

/*
 * Ranks that are reranked: the last, and others at the depth divided by this.
 */
#define NEARER_PART		4

/* The snapshot has to see this many of those reranked. */
#define LEAST_SEEN		3

/*
 * The depth that is searched, in multiples of the rows that seem to be within.
 */
#define MARGIN			1.4

/*
 * If at most WITHIN_PART of the rows counted are within, there are hardly
 * others; fewer than LEAST_COUNTED rows tell nothing.
 */
#define LEAST_COUNTED	10
#define WITHIN_PART		(1.0 / 3)

/*
 * The depth of the next batch, in multiples of the last one's.
 */
#define LEAST_GROWTH	2
#define USUAL_GROWTH	4
#define MOST_GROWTH		16

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
 * The depth of the next batch, where `needed` suffices for the rows needed.
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
