/*
 * calibrate.c
 *		What each recall costs on this index: probes and candidates, measured.
 *
 * Calibration queries are rows moved a little (train/beside.c); a query's own
 * row, and rows that equal it, are left out of its answer.  At later levels
 * the rows themselves are queries.  Those of a build are rows that training
 * has not seen.  Or a user gives queries (targets.c).  The pass that places
 * the rows finds the ground truth (gv_exact).  Then each query is searched
 * with ever more lists, which makes a recall grid (ladder.c), and of all pairs
 * (probes, candidates) that reach a target the cheapest is kept (cheapest.c).
 *
 * The first ten and the first hundred rows are all looked for.  Of the first
 * ten thousand a sample is enough: of one row in a hundred, drawn by their
 * TIDs, the hundred nearest lie there.  So each level looks for as many
 * neighbors as the others, in a part of the table, and with fewer queries,
 * because each costs more.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "commands/progress.h"
#include "utils/backend_progress.h"
#include "utils/timestamp.h"

#include "am/calibrate/ladder.h"
#include "am/common/enginecall.h"
#include "am/common/util.h"
#include "am/search/params.h"

#define FEW_QUERIES		48		/* tell how many lists the others need */
#define FEWER			5		/* times, where the least are enough */
#define MORE_PROBES		1.5		/* for their intervals, and for chance */

/* The same of later levels, whose queries cost more. */
#define FEW_DEEP		16
#define MORE_DEEP		1.3		/* of lists and candidates */
#define DEEPER			3.0		/* lists for those of the level before, to
								 * begin with */
#define USUAL_EXCESS	3		/* candidates for each row, likewise */

#define USUAL_WIDTH		500
#define MOST_WIDTH		20000
#define MOST_FRACTION		0.05	/* of the rows, see FullPassIsBetter */
#define MOST_DEEP_WIDTH	60000

/*
 * Scores of equal vectors differ by no more than these fractions of
 * themselves, and of the vector's square; and the fraction of the queries that
 * have to have neighbors besides copies.
 */
#define SAME_SCORE		1e-6
#define SAME_SQUARE		1e-12
#define LEAST_KNOWN		0.1

/* Rows of the second level offered at once. */
#define SAMPLED_ROWS	256

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

const IvfpqLevel ivfpq_levels[IVFPQ_LEVELS] = {
	{1, PG_INT32_MAX, 0, 2},
	{10, 200, 2, 4},
	{100, 50, 4, IVFPQ_DEPTHS}
};

/*
 * Returns the number of depths that calibration looks at in a table of `rows`.
 */
static int
depths_for(int64 rows)
{
	int			n = ivfpq_levels[0].end;

	while (n < IVFPQ_DEPTHS && rows >= (int64) depths[n] * IVFPQ_ROWS_A_RANK)
		n++;
	return n;
}

/* Returns how many of the queries a level has: the first ones. */
int
IvfpqLevelQueries(const IvfpqCalibration *calibration, int level)
{
	return Min(calibration->nqueries, ivfpq_levels[level].nqueries);
}

/*
 * Begins to look for the `depth` rows nearest to each of the transformed
 * queries, which stay where they are.  A query's own row and its copies are
 * among these.  Memory from the current context.
 */
IvfpqCalibration *
IvfpqCalibrationBegin(const GvModel *gv, int nqueries, const float *queries,
					  const float *deep_queries, const uint64 *ids, int depth)
{
	IvfpqCalibration *calibration = palloc0(sizeof(IvfpqCalibration));

	calibration->gv = gv;
	calibration->nqueries = nqueries;
	calibration->queries = queries;
	calibration->deep_queries = deep_queries;
	calibration->ids = ids;
	calibration->depth = depth;
	for (int level = 0; level < IVFPQ_LEVELS; level++)
	{
		int			n = IvfpqLevelQueries(calibration, level);
		GvTopK	   *ground_truth = palloc0(n * sizeof(GvTopK));

		for (int i = 0; i < n; i++)
			IvfpqTopKResize(&ground_truth[i], depth);
		calibration->ground_truth[level] = ground_truth;
		calibration->own[level] = palloc(n * sizeof(float));
		calibration->margin[level] = palloc(n * sizeof(float));
	}
	calibration->sampled = palloc((Size) SAMPLED_ROWS * gv->dims *
								  sizeof(float));
	calibration->sampled_ids = palloc(SAMPLED_ROWS * sizeof(uint64));
	return calibration;
}

/* Offers transformed rows [n][dims] to the queries of a level. */
static void
offer(IvfpqCalibration *calibration, int level, const float *rows,
	  const uint64 *ids, int64 n)
{
	const GvModel *gv = calibration->gv;

	IvfpqCheckStatus(gv_exact(gv->metric, gv->dims,
							  IvfpqLevelQuery(calibration, level, 0),
							  IvfpqLevelQueries(calibration, level), rows, n,
							  ids, calibration->ground_truth[level],
							  &ivfpq_stop));
}

/* Offers transformed rows [n][dims]; in the end, every row of the index. */
void
IvfpqCalibrationOffer(IvfpqCalibration *calibration, const float *rows,
					  const uint64 *ids, int64 n)
{
	offer(calibration, 0, rows, ids, n);
}

/*
 * Takes rows that gpuvecd found to be among the nearest so far; ids are the
 * batch's TIDs.
 */
void
IvfpqCalibrationTake(IvfpqCalibration *calibration,
					 const GvNeighbor *neighbors, int n, const uint64 *ids)
{
	for (int i = 0; i < n; i++)
		gv_topk_push(&calibration->ground_truth[0][neighbors[i].query],
					 neighbors[i].score, ids[neighbors[i].row]);
}

/* Offers the sampled rows that wait. */
void
IvfpqCalibrationFlush(IvfpqCalibration *calibration)
{
	const GvModel *gv = calibration->gv;
	float	   *rows = calibration->sampled;
	uint64	   *ids = calibration->sampled_ids;
	int			n = calibration->nsampled;

	if (n == 0)
		return;
	calibration->nsampled = 0;
	gv_transform(gv, rows, n, rows);
	for (int level = 1; level < IVFPQ_LEVELS; level++)
	{
		int			kept = 0;

		/* rows that later levels look at move to the front */
		for (int i = 0; i < n; i++)
		{
			if (!IvfpqLevelHas(level, ids[i]))
				continue;
			memmove(rows + (Size) kept * gv->dims, rows + (Size) i * gv->dims,
					gv->dims * sizeof(float));
			ids[kept++] = ids[i];
		}
		n = kept;
		if (n > 0)
			offer(calibration, level, rows, ids, n);
	}
}

/*
 * Offers a raw row [dims] that IvfpqLevelHas at the second level; each once.
 */
void
IvfpqCalibrationSample(IvfpqCalibration *calibration, const float *row,
					   uint64 id)
{
	int			dims = calibration->gv->dims;

	memcpy(calibration->sampled + (Size) calibration->nsampled * dims, row,
		   dims * sizeof(float));
	calibration->sampled_ids[calibration->nsampled++] = id;
	if (calibration->nsampled == SAMPLED_ROWS)
		IvfpqCalibrationFlush(calibration);
}

/*
 * Computes the score of the row that query q of a level was made of, and how
 * near to it the scores of that row's copies are, which may have been rounded
 * otherwise.
 */
static void
find_own(IvfpqCalibration *calibration, int level, int q)
{
	const GvModel *gv = calibration->gv;
	const float *row = calibration->deep_queries + (Size) q * gv->dims;
	float	   *own = &calibration->own[level][q];
	GvTopK		top = {0};

	*own = 0;
	calibration->margin[level][q] = -1;
	if (calibration->ids[q] == IVFPQ_NO_ROW)
		return;
	IvfpqTopKResize(&top, 1);
	IvfpqCheckStatus(gv_exact(gv->metric, gv->dims,
							  IvfpqLevelQuery(calibration, level, q), 1, row,
							  1, &calibration->ids[q], &top, &ivfpq_stop));
	*own = top.scores[0];
	calibration->margin[level][q] =
		(float) Min(SAME_SCORE * fabsf(*own) +
					SAME_SQUARE * gv_square(row, gv->dims), FLT_MAX);
	pfree(top.scores);
	pfree(top.ids);
}

/*
 * Returns whether a row with this TID and score is the one that query q was
 * made of, or its copy.
 */
static bool
is_own(const IvfpqCalibration *calibration, int level, int q, uint64 id,
	   float score)
{
	return id == calibration->ids[q] ||
		(!calibration->has_copies[level] &&
		 fabsf(score - calibration->own[level][q]) <=
		 calibration->margin[level][q]);
}

/*
 * Counts the rows of a level that are known to be the nearest to query q, of
 * those found.  Where as many were found as are looked for, and the last ones
 * lie equally far, there may be more of the last, as of a vector that
 * thousands of rows have.  Such rows are left out: which of them a search
 * finds is chance, and finding some would hide that rows between them are
 * missed.
 */
static int
count_known(const IvfpqCalibration *calibration, int level, const GvTopK *top)
{
	int			n = top->count;

	if (calibration->has_copies[level] || n < 2 || n < top->capacity ||
		top->scores[n - 2] != top->scores[n - 1])
		return n;
	while (n > 0 && top->scores[n - 1] == top->scores[top->count - 1])
		n--;
	return n;
}

/*
 * Fills in the ground truth of query q: a level's rows nearest to it but the
 * one that it was made of and that one's copies.
 */
void
IvfpqCalibrationGroundTruth(const IvfpqCalibration *calibration, int level,
							int q,
							IvfpqGroundTruth *ground_truth)
{
	const GvTopK *top = &calibration->ground_truth[level][q];
	int			known = count_known(calibration, level, top);

	ground_truth->nneighbors = ground_truth->nown = 0;
	for (int i = 0; i < top->count; i++)
	{
		if (is_own(calibration, level, q, top->ids[i], top->scores[i]))
			ground_truth->own[ground_truth->nown++] = top->ids[i];
		else if (i < known &&
				 ground_truth->nneighbors < IVFPQ_GROUND_TRUTH_ROWS)
		{
			ground_truth->scores[ground_truth->nneighbors] = top->scores[i];
			ground_truth->neighbors[ground_truth->nneighbors++] = top->ids[i];
		}
	}
}

/*
 * Every row was offered: finds out the ground truth of each query.  Where
 * nearly no query has neighbors besides copies, more rows are copies than are
 * looked for, and copies count as neighbors, too.
 */
void
IvfpqCalibrationSettle(IvfpqCalibration *calibration)
{
	IvfpqGroundTruth *ground_truth = palloc(sizeof(IvfpqGroundTruth));

	for (int level = 0; level < IVFPQ_LEVELS; level++)
	{
		int			n = IvfpqLevelQueries(calibration, level);

		for (int q = 0; q < n; q++)
		{
			gv_topk_sort(&calibration->ground_truth[level][q]);
			find_own(calibration, level, q);
		}
		for (;;)
		{
			calibration->nknown[level] = 0;
			for (int q = 0; q < n; q++)
			{
				IvfpqCalibrationGroundTruth(calibration, level, q,
											ground_truth);
				calibration->nknown[level] += ground_truth->nneighbors > 0;
			}
			if (calibration->has_copies[level] ||
				calibration->nknown[level] >= n * LEAST_KNOWN)
				break;
			calibration->has_copies[level] = true;
		}
	}
	pfree(ground_truth);
}

/*
 * Returns the number of targets of a level that every calibration is to tell.
 */
static int
count_sure(const IvfpqMetaData *meta, int level)
{
	int			end = Min(ivfpq_levels[level].end, meta->calibrated_depths);
	int			n = 0;

	for (int t = 0; t < IVFPQ_TARGETS; t++)
		n += recalls[t] <= IVFPQ_SURE_RECALL;
	return n * (end - ivfpq_levels[level].first);
}

/*
 * Measures grids, each with more lists and candidates than the one before,
 * until `wanted` targets are within reach; *spec says how far the last grid
 * went.  Returns how many are within reach.
 */
static int
measure_until(IvfpqRecallGrid *grid, IvfpqCalibMirror *mirror,
			  IvfpqGridSpec *spec,
			  int most_width, double z, int wanted, IvfpqMetaData *meta)
{
	for (;;)
	{
		int			reached;

		IvfpqRecallGridMeasure(grid, mirror, spec);
		reached = IvfpqCheapest(grid, z, meta);
		if (reached >= wanted ||
			(spec->most == meta->nlists && spec->most_width >= most_width))
			return reached;
		if (spec->most == meta->nlists)
			spec->most_width = Min(4 * spec->most_width, most_width);
		spec->most = Min(3 * spec->most, meta->nlists);
	}
}

/*
 * Returns the most lists and candidates that a target of a level takes, of
 * those that every level tells and that are within reach.
 */
static void
most_of(const IvfpqMetaData *meta, int level, int *probes, int *candidates)
{
	*probes = *candidates = 1;
	for (int d = ivfpq_levels[level].first; d < ivfpq_levels[level].end; d++)
		for (int t = 0; t < IVFPQ_TARGETS; t++)
		{
			const IvfpqTarget *target = &meta->targets[d][t];

			if (d >= meta->calibrated_depths ||
				recalls[t] > IVFPQ_SURE_RECALL)
				continue;
			*probes = Max(*probes, target->probes);
			*candidates = Max(*candidates, target->candidates);
		}
}

/*
 * Returns the least number of lists that a target of a depth takes: a target
 * for a lower recall may take more lists, and fewer candidates.
 */
static int
least_of(const IvfpqMetaData *meta, int depth)
{
	int			probes = meta->nlists;

	for (int t = 0; t < IVFPQ_TARGETS; t++)
		if (meta->targets[depth][t].candidates > 0)
			probes = Min(probes, meta->targets[depth][t].probes);
	return probes;
}

/* Finds the targets of the first 10 and the first 100 rows. */
static void
measure_first_level(IvfpqRecallGrid *grid, IvfpqCalibMirror *mirror,
					IvfpqMetaData *meta)
{
	int			nqueries = grid->calibration->nqueries;
	int			most_width = Min(meta->rows_at_calibration, MOST_WIDTH);
	IvfpqGridSpec spec = {
		.nqueries = Min(FEW_QUERIES, nqueries),
		.least = Max(1, IvfpqFormulaProbes(meta) / 10),
		.most = Min(2.5 * IvfpqFormulaProbes(meta), meta->nlists),
		.most_width = Max(USUAL_WIDTH, 4 * IvfpqFormulaCandidates(meta))
	};
	int			all = count_sure(meta, 0);
	int			reached;
	int			probes;
	int			candidates;

	/* a few queries find out whether far more lists are needed, or fewer */
	for (;;)
	{
		reached = measure_until(grid, mirror, &spec, most_width, 0, all, meta);
		if (spec.least == 1 || least_of(meta, 0) > spec.least)
			break;
		spec.least = Max(1, spec.least / FEWER);
	}
	if (reached == all)
	{
		most_of(meta, 0, &probes, &candidates);
		spec.most = Min(MORE_PROBES * probes, meta->nlists);
	}
	spec.nqueries = nqueries;
	(void) measure_until(grid, mirror, &spec, most_width, IVFPQ_Z_95, all, meta);
}

/*
 * Finds the targets of a later level; its grid begins from those of the level
 * before.
 */
static void
measure_later_level(IvfpqRecallGrid *grid, IvfpqCalibMirror *mirror, int level,
					IvfpqMetaData *meta)
{
	int			first = ivfpq_levels[level].first;
	int			end = Min(ivfpq_levels[level].end, meta->calibrated_depths);
	int			nqueries = IvfpqLevelQueries(grid->calibration, level);
	int			most_width = (int)
	Min(meta->rows_at_calibration,
		Max(MOST_WIDTH, Min(MOST_DEEP_WIDTH,
							meta->rows_at_calibration * MOST_FRACTION)));
	IvfpqGridSpec spec = {
		.level = level,
		.nqueries = Min(FEW_DEEP, nqueries),
		.least = least_of(meta, first - 1),
		.most_width = Min(USUAL_EXCESS * depths[end - 1], most_width)
	};
	int			reached;
	int			probes;
	int			candidates;

	most_of(meta, level - 1, &probes, &candidates);
	spec.most = Min(DEEPER * probes, meta->nlists);
	reached = measure_until(grid, mirror, &spec, most_width, 0,
							count_sure(meta, level), meta);
	if (reached == 0)
		return;
	/* targets that these do not reach are not tried with all queries */
	most_of(meta, level, &probes, &candidates);
	spec.most = Min(MORE_DEEP * probes, meta->nlists);
	spec.most_width = Min(MORE_DEEP * candidates, most_width);
	spec.nqueries = nqueries;
	(void) measure_until(grid, mirror, &spec, most_width, IVFPQ_Z_95, reached,
						 meta);
}

/*
 * Finds what each target takes on an index whose pages are all written, though
 * the metapage may not show them yet; into *meta, which describes them.  Every
 * row was offered.  The calibration mirror, which gpuvecd has of the same
 * index, or NULL, does most of the work; else all participants do it.  The
 * leader calls this while workers wait for the end of a phase.
 */
void
IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
					IvfpqMetaData *meta, IvfpqCalibMirror *mirror,
					IvfpqParallel *parallel)
{
	IvfpqModel *model = IvfpqModelLoad(index, meta);
	TimestampTz begun = GetCurrentTimestamp();
	TimestampTz shared;
	TimestampTz deeper;
	IvfpqRecallGrid *grid;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CALIBRATING);
	IvfpqCalibrationSettle(calibration);
	meta->coarse_fraction = IvfpqFindCoarseFraction(calibration, index, model);
	shared = GetCurrentTimestamp();
	model->meta.coarse_fraction = meta->coarse_fraction;
	meta->calibration_queries = calibration->nqueries;
	memset(meta->targets, 0, sizeof(meta->targets));
	meta->calibrated_depths = depths_for(meta->rows_at_calibration);

	grid = IvfpqRecallGridBegin(calibration, index, model, parallel);
	measure_first_level(grid, mirror, meta);
	deeper = GetCurrentTimestamp();
	for (int level = 1; level < IVFPQ_LEVELS; level++)
		if (ivfpq_levels[level].first < meta->calibrated_depths)
			measure_later_level(grid, mirror, level, meta);
	IvfpqRecallGridEnd(grid);
	ereport(DEBUG1,
			(errmsg_internal("gpuivfpq calibrated with %d queries in %.0f ms, %.0f ms of them for more than 100 rows; searches compare %g of the lists, which took %.0f ms to find",
							 calibration->nqueries,
							 (GetCurrentTimestamp() - begun) / 1000.0,
							 (GetCurrentTimestamp() - deeper) / 1000.0,
							 meta->coarse_fraction,
							 (shared - begun) / 1000.0)));
}
