/*
 * calibrate.c
 *		What a recall costs on this index: probes and candidates, measured.
 *
 * Rows of the table serve as queries, each left out of its own answer; those
 * of a build are rows that training has not seen.  The pass that places the
 * rows finds the queries' true neighbours (gv_exact).  Then each query is
 * searched with ever more lists (ladder.c).  Of all pairs (probes,
 * candidates) whose recall, at the lower end of its 95 % interval, reaches a
 * target, the cheapest is kept.
 */
#include "postgres.h"

#include <math.h>

#include "commands/progress.h"
#include "utils/backend_progress.h"
#include "utils/timestamp.h"

#include "am/calibrate/ladder.h"
#include "am/common/engine.h"
#include "am/common/phase.h"
#include "am/scan/effort.h"

#define FEW_QUERIES		48		/* tell how many lists the others need */
#define MORE_PROBES		1.5		/* for their intervals, and for chance */

#define USUAL_WIDTH		500
#define MOST_WIDTH		20000

/*
 * Nanoseconds of one core, for weighing probes against candidates: with
 * AVX-512, pages in shared buffers but not in the processor's cache.
 */
#define LOOKUP_NS		0.06	/* a sub-quantizer of a copy, reading it, too */
#define FETCH_NS		400.0	/* a row of the heap */
#define DIMENSION_NS	0.8		/* of that row's distance */
#define RECORD_NS		300.0	/* a refine record instead */
#define RECORD_DIMENSION_NS	0.4

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

/*
 * Begin, with transformed queries that stay where they are; memory from the
 * current context.
 */
IvfpqCalibration *
IvfpqCalibrationBegin(const GvModel *gv, int nqueries, const float *queries,
					  const uint64 *ids)
{
	IvfpqCalibration *calibration = palloc(sizeof(IvfpqCalibration));

	calibration->metric = gv->metric;
	calibration->dims = gv->dims;
	calibration->nqueries = nqueries;
	calibration->queries = queries;
	calibration->ids = ids;
	calibration->truth = palloc0(nqueries * sizeof(GvTopK));
	for (int i = 0; i < nqueries; i++)	/* its own row comes on top */
		IvfpqTopKResize(&calibration->truth[i], IVFPQ_DEEP_ROWS + 1);
	return calibration;
}

/* Offer transformed rows [n][dims]; in the end, every row of the index. */
void
IvfpqCalibrationOffer(IvfpqCalibration *calibration, const float *rows,
					  const uint64 *ids, int64 n)
{
	IvfpqCheckStatus(gv_exact(calibration->metric, calibration->dims,
							  calibration->queries, calibration->nqueries,
							  rows, n, ids, calibration->truth,
							  &ivfpq_stop));
}

/*
 * Take rows that gpuvecd found to be among the nearest so far; ids are the
 * batch's TIDs.
 */
void
IvfpqCalibrationTake(IvfpqCalibration *calibration,
					 const GvNeighbour *neighbours, int n, const uint64 *ids)
{
	for (int i = 0; i < n; i++)
		gv_topk_push(&calibration->truth[neighbours[i].query],
					 neighbours[i].score, ids[neighbours[i].row]);
}

/*
 * The rows nearest to query q but its own, at most so many, nearest first;
 * returns how many.
 */
int
IvfpqCalibrationNearest(const IvfpqCalibration *calibration, int q, int most,
						uint64 *ids)
{
	GvTopK	   *top = &calibration->truth[q];
	int			n = 0;

	gv_topk_sort(top);
	for (int i = 0; i < top->count && n < most; i++)
		if (top->ids[i] != calibration->ids[q])
			ids[n++] = top->ids[i];
	return n;
}

/* The lower end of the recall's interval, of z standard errors. */
static double
lower_bound(const IvfpqLadder *ladder, double z, int depth, int step,
			int width)
{
	const IvfpqTally *found = &ladder->found;
	double		n = Max(found->nqueries, 2);
	double		mean = found->sum[depth][step][width] / n / depths[depth];
	double		squares = (double) found->squares[depth][step][width] /
	depths[depth] / depths[depth];
	double		variance = (squares - n * mean * mean) / (n - 1);

	/* queries that all came out alike tell nothing of their spread */
	variance = Max(variance, mean * (1 - mean) / n);
	return mean - z * sqrt(variance / n);
}

/*
 * The least probes, between the ladder's steps, that reach the recall with so
 * many candidates; 0 when none do.
 */
static int
least_probes(const IvfpqLadder *ladder, double z, int depth, int width,
			 double recall)
{
	double		before = 0;

	for (int step = 0; step < ladder->nsteps; step++)
	{
		double		bound = lower_bound(ladder, z, depth, step, width);

		if (bound >= recall)
		{
			double		to = ladder->probes[step];
			double		from = step > 0 ? ladder->probes[step - 1] : to;

			if (step > 0 && bound > before)
				to = from * pow(to / from, (recall - before) / (bound - before));
			return (int) Max(1, Min(ceil(to), ladder->probes[step]));
		}
		before = bound;
	}
	return 0;
}

/*
 * The cheapest way to a target; false when the ladder does not reach it.
 * Rows beyond the tenth lose those that come too late for their place: of the
 * first ten's 10 (1 / recall - 1) that were missed.
 */
static bool
find_target(const IvfpqLadder *ladder, double z, int depth, double recall,
			double rows, IvfpqTarget *target)
{
	const IvfpqMetaData *meta = &ladder->search.model->meta;
	double		list = rows * meta->copies / meta->nlists;
	double		candidate = meta->refine == IVFPQ_REFINE_NONE ?
	FETCH_NS + DIMENSION_NS * meta->dims :
	RECORD_NS + RECORD_DIMENSION_NS * meta->dims;
	double		least = 0;

	if (depth > 0)
		recall += (1 - recall) * depths[0] / depths[depth];
	target->probes = 0;
	for (int w = 0; w < ladder->nwidths; w++)
	{
		int			probes = least_probes(ladder, z, depth, w, recall);
		double		cost = probes * list * meta->pq_dim * LOOKUP_NS +
		ladder->widths[w] * candidate;

		if (probes == 0 || (target->probes > 0 && cost >= least))
			continue;
		least = cost;
		target->probes = probes;
		target->candidates = ladder->widths[w];
	}
	return target->probes > 0;
}

/* All targets; false when some are out of reach of this ladder. */
static bool
find_targets(const IvfpqLadder *ladder, double z, double rows,
			 IvfpqMetaData *meta)
{
	bool		all = true;

	memset(meta->targets, 0, sizeof(meta->targets));
	for (int t = 0; t < IVFPQ_TARGETS; t++)
	{
		IvfpqTarget *first = &meta->targets[0][t];
		IvfpqTarget *deep = &meta->targets[1][t];

		all &= find_target(ladder, z, 0, recalls[t], rows, first);
		all &= find_target(ladder, z, 1, recalls[t], rows, deep);
		if (first->candidates == 0)
			deep->candidates = 0;
		deep->probes = Max(deep->probes, first->probes);
	}
	return all;
}

/*
 * Search for so many queries with *probes lists and *width candidates at most,
 * and then with more, until all targets can be told.
 */
static void
climb_until(IvfpqLadder *ladder, IvfpqTrial *trial, int nqueries, double z,
			int *probes, int *width, IvfpqMetaData *meta)
{
	double		rows = (double) meta->rows_at_calibration;

	for (;;)
	{
		IvfpqLadderClimb(ladder, trial, nqueries, *probes, *width);
		if (find_targets(ladder, z, rows, meta) ||
			(*probes == meta->nlists && *width >= Min(rows, MOST_WIDTH)))
			return;
		if (*probes == meta->nlists)
			*width = Min(4 * *width, MOST_WIDTH);
		*probes = Min(3 * *probes, meta->nlists);
	}
}

/*
 * Most lists that a target takes; all of them when one is out of reach.
 */
static int
most_probes(const IvfpqMetaData *meta)
{
	int			most = 1;

	for (int d = 0; d < IVFPQ_DEPTHS; d++)
		for (int t = 0; t < IVFPQ_TARGETS; t++)
			most = Max(most, meta->targets[d][t].candidates == 0 ?
					   meta->nlists : meta->targets[d][t].probes);
	return most;
}

/*
 * Find what each target takes on an index whose pages are all written,
 * though the metapage may not show them yet; into *meta, which describes
 * them.  Every row was offered.  A trial, which gpuvecd has of the same
 * index, or NULL, takes most of the work; else the team does it: the leader
 * calls this, while workers wait for the end of a round.
 */
void
IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
					IvfpqMetaData *meta, IvfpqTrial *trial, IvfpqTeam *team)
{
	IvfpqModel *model = IvfpqModelLoad(index, meta);
	int			probes = Min(2.5 * IvfpqFormulaProbes(meta), meta->nlists);
	int			width = Max(USUAL_WIDTH, 4 * IvfpqFormulaCandidates(meta));
	TimestampTz begun = GetCurrentTimestamp();
	TimestampTz shared;
	IvfpqLadder *ladder;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CALIBRATING);
	meta->coarse_share = IvfpqBreadthFind(calibration, index, model);
	shared = GetCurrentTimestamp();
	model->meta.coarse_share = meta->coarse_share;
	meta->calibration_queries = calibration->nqueries;

	/* far more lists may be needed than usual: a few queries find out */
	ladder = IvfpqLadderBegin(calibration, index, model, team);
	climb_until(ladder, trial, Min(FEW_QUERIES, calibration->nqueries), 0,
				&probes, &width, meta);
	probes = Min(MORE_PROBES * most_probes(meta), meta->nlists);
	climb_until(ladder, trial, calibration->nqueries, IVFPQ_Z_95, &probes,
				&width, meta);
	IvfpqLadderEnd(ladder);
	ereport(DEBUG1,
			(errmsg_internal("gpuivfpq calibrated with %d queries in %.0f ms, searches compare %g of the lists, which took %.0f ms of them to find",
							 calibration->nqueries,
							 (GetCurrentTimestamp() - begun) / 1000.0,
							 meta->coarse_share, (shared - begun) / 1000.0)));
}
