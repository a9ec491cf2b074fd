/*
 * cheapest.c
 *		The cheapest probes and candidates that reach each target, from a
 *		recall grid.
 *
 * Only rows that strict order returns count.  A scan returns the first ten
 * rows from what the first target's search found, then those behind them from
 * what the next one finds, and so on; a row that a later search finds nearer
 * than the last one returned is out of order.  So of every query it is known
 * how far the target of one depth came, and for the next depth only neighbors
 * behind that place count.  Where only some rows are looked at, a query's own
 * place is a matter of chance, and the mean is taken.
 *
 * A target holds for the first n rows, with the lower end of its 95 %
 * interval, and for the last fifth of them: a condition may match no others.
 */
#include "postgres.h"

#include <math.h>

#include "am/calibrate/ladder.h"
#include "am/search/params.h"

/*
 * A sample can prove a recall if at least this many of its neighbors may be
 * missed.
 */
#define LEAST_MISSED	10

#define LAST_PART		0.2		/* of the ranks, for which targets hold, too */

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

/* How far strict order has come with a query. */
typedef struct Place
{
	double		returned;		/* neighbors returned */
	int			next;			/* behind the last of them */
} Place;

/* Neighbors that a depth's pairs find, summed over queries. */
typedef struct Tally
{
	int			nqueries;
	int			rows_needed;	/* neighbors of a query */
	int			nlast;			/* neighbors in the last part */
	double		sum[IVFPQ_MAX_STEPS][IVFPQ_MAX_WIDTHS];
	double		squares[IVFPQ_MAX_STEPS][IVFPQ_MAX_WIDTHS];
	double		last[IVFPQ_MAX_STEPS][IVFPQ_MAX_WIDTHS];
} Tally;

/*
 * Returns the number of neighbors of the grid's level among the first rows of
 * a depth.
 */
static int
rows_needed_at(const IvfpqRecallGrid *grid, int depth)
{
	return depths[depth] / ivfpq_levels[grid->spec.level].stride;
}

/*
 * Returns whether the sample of a depth's level can tell this recall from 1.
 */
static bool
is_provable(const IvfpqRecallGrid *grid, int depth, double recall)
{
	int			level = 0;

	while (ivfpq_levels[level].end <= depth)
		level++;
	return recall <= IVFPQ_SURE_RECALL ||
		(1 - recall) * depths[depth] / ivfpq_levels[level].stride *
		grid->calibration->nknown[level] >=
		LEAST_MISSED * (1 - 1e-9);
}

/* Returns what was found for query q at a step. */
static const uint8 *
found_at(const IvfpqRecallGrid *grid, int q, int step)
{
	return grid->found[q * grid->nsteps + step].widths;
}

/* Adds the neighbors behind its place that query q finds with each pair. */
static void
tally_query(const IvfpqRecallGrid *grid, int q, const Place *place,
			Tally *tally)
{
	int			rows_needed = Min(tally->rows_needed, grid->nneighbors[q]);
	int			last = rows_needed - Min(tally->nlast, rows_needed);
	double		scale = (double) tally->rows_needed / rows_needed;
	double		last_scale = (double) tally->nlast / (rows_needed - last);

	for (int step = 0; step < grid->nsteps; step++)
	{
		const uint8 *widths = found_at(grid, q, step);
		int			counts[IVFPQ_MAX_WIDTHS + 1] = {0};
		int			lasts[IVFPQ_MAX_WIDTHS + 1] = {0};
		double		found = place->returned;
		int			found_last = 0;

		for (int r = place->next; r < rows_needed; r++)
		{
			counts[widths[r]]++;
			lasts[widths[r]] += r >= last;
		}
		for (int w = 0; w < grid->nwidths; w++)
		{
			double		n;

			found += counts[w];
			found_last += lasts[w];
			n = Min(found, rows_needed) * scale;
			tally->sum[step][w] += n;
			tally->squares[step][w] += n * n;
			tally->last[step][w] += found_last * last_scale;
		}
	}
	tally->nqueries++;
}

/* Sums the neighbors that all queries find at a depth with each pair. */
static void
tally_depth(const IvfpqRecallGrid *grid, const Place *places, int depth,
			Tally *tally)
{
	memset(tally, 0, sizeof(*tally));
	tally->rows_needed = rows_needed_at(grid, depth);
	tally->nlast = (int) ceil(tally->rows_needed * LAST_PART);
	for (int q = 0; q < grid->spec.nqueries; q++)
		if (grid->nneighbors[q] > 0)
			tally_query(grid, q, &places[q], tally);
}

/*
 * Returns the recall of a pair: the lower end of its interval, of z standard
 * errors, or the recall of the last part if that is less.
 */
static double
recall_of(const Tally *tally, double z, int step, int width)
{
	double		n = Max(tally->nqueries, 2);
	double		mean = tally->sum[step][width] / n / tally->rows_needed;
	double		squares = tally->squares[step][width] / tally->rows_needed /
	tally->rows_needed;
	double		last = tally->last[step][width] / n / tally->nlast;
	double		variance = (squares - n * mean * mean) / (n - 1);

	/* queries that all came out alike tell nothing of their spread */
	variance = Max(variance, mean * (1 - mean) / n);
	return Min(mean - z * sqrt(variance / n), last);
}

/*
 * Returns the least probes, interpolated between the grid's steps, that reach
 * the recall with the candidates of a width; 0 when none do.
 */
static int
least_probes(const IvfpqRecallGrid *grid, const Tally *tally, double z,
			 int width, double recall)
{
	double		before = 0;

	for (int step = 0; step < grid->nsteps; step++)
	{
		double		bound = recall_of(tally, z, step, width);

		if (bound >= recall)
		{
			double		to = grid->probes[step];
			double		from = step > 0 ? grid->probes[step - 1] : to;

			if (step > 0 && bound > before)
				to = from * pow(to / from, (recall - before) / (bound - before));
			return (int) Max(1, Min(ceil(to), grid->probes[step]));
		}
		before = bound;
	}
	return 0;
}

/*
 * Finds the cheapest way to a recall; false when the grid does not reach it.
 */
static bool
find_target(const IvfpqRecallGrid *grid, const Tally *tally, double z,
			double recall, IvfpqTarget *target)
{
	const IvfpqMetaData *meta = &grid->search.model->meta;
	double		list = (double) meta->rows_at_calibration *
	meta->lists_per_row /
	meta->nlists;
	double		candidate = meta->refine == IVFPQ_REFINE_NONE ?
	IVFPQ_FETCH_NS + IVFPQ_DIMENSION_NS * meta->dims :
	IVFPQ_RECORD_NS + IVFPQ_RECORD_DIMENSION_NS *
	IvfpqRecordCodeBytes(meta->refine, meta->dims);
	double		least = 0;

	target->probes = target->candidates = 0;
	for (int w = 0; w < grid->nwidths; w++)
	{
		int			probes = least_probes(grid, tally, z, w, recall);
		double		cost = probes * list * meta->pq_dim * IVFPQ_LOOKUP_NS +
		grid->widths[w] * candidate;

		if (probes == 0 || (target->probes > 0 && cost >= least))
			continue;
		least = cost;
		target->probes = probes;
		target->candidates = grid->widths[w];
	}
	return target->probes > 0;
}

/*
 * Returns the last of ascending numbers [n] not above the limit, or the first.
 */
static int
last_within(const int *numbers, int n, int limit)
{
	int			i = 0;

	while (i + 1 < n && numbers[i + 1] <= limit)
		i++;
	return i;
}

/*
 * Advances the places of all queries behind a depth's rows, returned with a
 * target.
 */
static void
advance(const IvfpqRecallGrid *grid, int depth, const IvfpqTarget *target,
		double recall, Place *places)
{
	int			step = last_within(grid->probes, grid->nsteps,
								   target->probes);
	int			width = last_within(grid->widths, grid->nwidths,
									target->candidates);
	int			rows_needed = rows_needed_at(grid, depth);

	for (int q = 0; q < grid->spec.nqueries; q++)
	{
		Place	   *place = &places[q];
		const uint8 *widths = found_at(grid, q, step);

		if (grid->spec.level > 0)
		{
			place->returned = recall * rows_needed;
			place->next = rows_needed;
			continue;
		}
		for (int r = place->next;
			 r < grid->nneighbors[q] && place->returned < rows_needed; r++)
			if (widths[r] <= width)
			{
				place->returned++;
				place->next = r + 1;
			}
	}
}

/*
 * Finds all depths of a target at the grid's level.  Returns how many are
 * within reach: behind one that is not, none is.  A depth whose recall the
 * sample cannot prove is passed over: a scan takes more than the target below
 * it says.
 */
static int
find_depths(const IvfpqRecallGrid *grid, double z, int t, Tally *tally,
			IvfpqMetaData *meta)
{
	const IvfpqLevel *level = &ivfpq_levels[grid->spec.level];
	Place	   *places = palloc0(grid->spec.nqueries * sizeof(Place));
	IvfpqTarget before = {0, 0};	/* of the last depth that is known */
	bool		reached = true;
	int			nreached = 0;

	for (int d = 0; reached && d < Min(level->end, meta->calibrated_depths);
		 d++)
	{
		IvfpqTarget *target = &meta->targets[d][t];

		if (!is_provable(grid, d, recalls[t]))
			continue;
		if (d >= level->first)
		{
			tally_depth(grid, places, d, tally);
			if (find_target(grid, tally, z, recalls[t], target))
			{
				target->probes = Max(target->probes, before.probes);
				target->candidates = Max(target->candidates,
										 before.candidates);
			}
		}
		before = *target;
		reached = before.candidates > 0;
		nreached += reached && d >= level->first;
		if (reached)
			advance(grid, d, &before, recalls[t], places);
	}
	pfree(places);
	return nreached;
}

/*
 * Finds all targets of the grid's level, into *meta.  Returns how many of
 * those that every calibration is to tell are within reach of this grid.
 */
int
IvfpqCheapest(const IvfpqRecallGrid *grid, double z, IvfpqMetaData *meta)
{
	const IvfpqLevel *level = &ivfpq_levels[grid->spec.level];
	Tally	   *tally = palloc(sizeof(Tally));
	int			nreached = 0;

	for (int d = level->first; d < level->end; d++)
		memset(meta->targets[d], 0, sizeof(meta->targets[d]));
	for (int t = 0; t < IVFPQ_TARGETS; t++)
	{
		int			n = find_depths(grid, z, t, tally, meta);

		nreached += recalls[t] <= IVFPQ_SURE_RECALL ? n : 0;
	}
	pfree(tally);
	return nreached;
}
