/*
 * ivfpqcalibrate.c
 *		What a recall costs on this index: probes and candidates, measured.
 *
 * Rows of the table serve as queries, each left out of its own answer; those
 * of a build are rows that training has not seen.  The pass that places the
 * rows finds the queries' true neighbours (gv_exact).  Then each query is
 * searched with ever more lists, and for every number of lists the rank of
 * each true neighbour among the candidates is looked up: it is found with
 * that many lists whenever there are more candidates than its rank.  Of all
 * pairs (probes, candidates) whose recall, at the lower end of its 95 %
 * interval, reaches a target, the cheapest is kept.
 */
#include "postgres.h"

#include <math.h>

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "am/ivfpq.h"
#include "am/ivfpqrows.h"
#include "am/ivfpqtrial.h"

#define MIN_QUERIES		200
#define MAX_QUERIES		1000
#define ROWS_PER_QUERY	150		/* in between */

#define FEW_QUERIES		48		/* tell how many lists the others need */
#define MORE_PROBES		1.5		/* for their intervals, and for chance */

#define MAX_STEPS		48
#define MAX_WIDTHS		32
#define STEP			1.7		/* from one number of probes to the next */
#define WIDTH_STEP		1.4		/* ... of candidates */
#define LEAST_WIDTH		40		/* fewer fail rows unlike those of training */
#define USUAL_WIDTH		500
#define MOST_WIDTH		20000

#define MOST_TRIES		GV_MAX_TRIES	/* queries that gpuvecd gets at once */

/*
 * Nanoseconds of one core, for weighing probes against candidates: with
 * AVX-512, pages in shared buffers but not in the processor's cache.
 */
#define LOOKUP_NS		0.06	/* a sub-quantizer of a copy, reading it, too */
#define FETCH_NS		400.0	/* a row of the heap */
#define DIMENSION_NS	0.8		/* of that row's distance */
#define RECORD_NS		300.0	/* a refine record instead */
#define RECORD_DIMENSION_NS	0.4

static const int depths[IVFPQ_DEPTHS] = {IVFPQ_FIRST_ROWS, IVFPQ_DEEP_ROWS};
static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

/* What is to be found for a query. */
typedef struct Truth
{
	int			nneighbours;
	uint64		neighbours[IVFPQ_DEEP_ROWS];	/* ids, the nearest first */
} Truth;

typedef struct Ladder
{
	IvfpqCalibration *calibration;
	IvfpqSearch search;
	MemoryContext tmp;			/* reset after every query */
	int			nsteps;
	int			probes[MAX_STEPS];
	int			nwidths;
	int			widths[MAX_WIDTHS]; /* candidates */
	double		z;				/* standard errors that an interval has */

	Truth	   *truth;			/* of the query at hand */
	GvTopK		sorted;			/* copy of the candidates */
	IvfpqRows	rows;			/* of the answer at hand */

	/* recall at each depth, step and width, summed over queries */
	int			nqueries;
	double		sum[IVFPQ_DEPTHS][MAX_STEPS][MAX_WIDTHS];
	double		squares[IVFPQ_DEPTHS][MAX_STEPS][MAX_WIDTHS];
} Ladder;

/* Queries to calibrate an index of that many rows with; 0 = too few rows. */
int
IvfpqCalibrationQueries(double rows)
{
	if (rows < 2 * MIN_QUERIES)
		return 0;
	return (int) Max(MIN_QUERIES, Min(MAX_QUERIES, rows / ROWS_PER_QUERY));
}

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

/* The neighbours of query q. */
static void
find_truth(const IvfpqCalibration *calibration, int q, Truth *truth)
{
	truth->nneighbours = IvfpqCalibrationNearest(calibration, q,
												 IVFPQ_DEEP_ROWS,
												 truth->neighbours);
}

/* Take up query q. */
static void
begin_query(Ladder *ladder, int q)
{
	IvfpqCalibration *calibration = ladder->calibration;

	find_truth(calibration, q, ladder->truth);
	IvfpqSearchQuery(&ladder->search, calibration->queries +
					 (Size) q * calibration->dims);
	IvfpqSearchOpen(&ladder->search, ladder->search.candidates.capacity);
	IvfpqSearchNearest(&ladder->search, ladder->probes[ladder->nsteps - 1]);
}

/*
 * Count, among candidates [n], best first, the neighbours of each depth by
 * the rank they have: counts [depth][width] gets those whose rank is below
 * the width, the widths before it excluded.
 */
static void
count_ranks(Ladder *ladder, const Truth *truth, const uint64 *ids, int n,
			uint64 own, int counts[IVFPQ_DEPTHS][MAX_WIDTHS])
{
	int			width = 0;
	int			rank = 0;
	int			place;

	memset(counts, 0, sizeof(int) * IVFPQ_DEPTHS * MAX_WIDTHS);
	IvfpqRowsForget(&ladder->rows);
	(void) IvfpqRowsMeet(&ladder->rows, own, &place);
	for (int i = 0; i < truth->nneighbours; i++)
		IvfpqRowsExpect(&ladder->rows, truth->neighbours[i], i);
	for (int i = 0; i < n; i++)
	{
		if (!IvfpqRowsMeet(&ladder->rows, ids[i], &place))
			continue;
		while (width < ladder->nwidths && rank >= ladder->widths[width])
			width++;
		if (width == ladder->nwidths)
			break;
		rank++;
		for (int d = 0; place >= 0 && d < IVFPQ_DEPTHS; d++)
			counts[d][width] += place < depths[d];
	}
}

/* Add up what a query found at a step among candidates [n], best first. */
static void
count_step(Ladder *ladder, const Truth *truth, int step, const uint64 *ids,
		   int n, uint64 own)
{
	int			counts[IVFPQ_DEPTHS][MAX_WIDTHS];

	count_ranks(ladder, truth, ids, n, own, counts);
	for (int d = 0; d < IVFPQ_DEPTHS; d++)
	{
		double		share = 0;

		for (int w = 0; w < ladder->nwidths; w++)
		{
			share += (double) counts[d][w] /
				Min(depths[d], truth->nneighbours);
			ladder->sum[d][step][w] += share;
			ladder->squares[d][step][w] += share * share;
		}
	}
}

/* Search for query q with every number of lists of the ladder. */
static void
climb(Ladder *ladder, int q)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(ladder->tmp);
	const GvTopK *candidates = &ladder->search.candidates;
	GvTopK	   *sorted = &ladder->sorted;
	int			list = 0;

	begin_query(ladder, q);
	for (int step = 0; step < ladder->nsteps && ladder->truth->nneighbours > 0;
		 step++)
	{
		CHECK_FOR_INTERRUPTS();
		while (list < Min(ladder->probes[step], ladder->search.lists.count))
			IvfpqSearchList(&ladder->search, list++);
		IvfpqSearchSettle(&ladder->search);
		sorted->count = candidates->count;
		memcpy(sorted->scores, candidates->scores,
			   candidates->count * sizeof(float));
		memcpy(sorted->ids, candidates->ids,
			   candidates->count * sizeof(uint64));
		gv_topk_sort(sorted);
		count_step(ladder, ladder->truth, step, sorted->ids, sorted->count,
				   ladder->calibration->ids[q]);
	}
	ladder->nqueries += ladder->truth->nneighbours > 0;
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(ladder->tmp);
}

/* What was found for queries q .. q + n - 1 at a step, hits side by side. */
static void
count_hits(Ladder *ladder, const Truth *truths, int step, int q, int n,
		   const int32 *nhits, const ItemPointerData *tids)
{
	uint64	   *ids = ladder->sorted.ids;

	for (int i = 0; i < n; i++)
	{
		for (int j = 0; j < nhits[i]; j++)
			ids[j] = IvfpqTidToId(&tids[j]);
		tids += nhits[i];
		if (truths[i].nneighbours > 0)
			count_step(ladder, &truths[i], step, ids, nhits[i],
					   ladder->calibration->ids[q + i]);
	}
}

/* The same for queries q .. q + n - 1 by gpuvecd; false: it failed. */
static bool
climb_together(Ladder *ladder, IvfpqTrial *trial, int q, int n)
{
	IvfpqCalibration *calibration = ladder->calibration;
	MemoryContext oldcontext = MemoryContextSwitchTo(ladder->tmp);
	const IvfpqMetaData *meta = &ladder->search.model->meta;
	Truth	   *truths = palloc(n * sizeof(Truth));
	bool		done = true;

	for (int i = 0; i < n; i++)
	{
		find_truth(calibration, q + i, &truths[i]);
		ladder->nqueries += truths[i].nneighbours > 0;
	}
	for (int step = 0; step < ladder->nsteps && done; step++)
	{
		const int32 *nhits;
		const ItemPointerData *tids;

		done = IvfpqTrialSearch(trial, calibration->queries +
								(Size) q * calibration->dims, n,
								calibration->dims, ladder->probes[step],
								IvfpqListsToCompare(meta, ladder->probes[step]),
								ladder->sorted.capacity, &nhits, &tids);
		if (done)
			count_hits(ladder, truths, step, q, n, nhits, tids);
		CHECK_FOR_INTERRUPTS();
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(ladder->tmp);
	return done;
}

static void
clear_sums(Ladder *ladder)
{
	ladder->nqueries = 0;
	memset(ladder->sum, 0, sizeof(ladder->sum));
	memset(ladder->squares, 0, sizeof(ladder->squares));
}

/* Search for so many queries, by gpuvecd as long as there is a trial. */
static void
climb_all(Ladder *ladder, IvfpqTrial *trial, int nqueries)
{
	int			capacity = ladder->sorted.capacity;
	int			most = Min(MOST_TRIES, GV_MAX_TRIED_HITS / capacity);

	clear_sums(ladder);
	if (trial && trial->builder && most > 0)
	{
		int			q = 0;

		while (q < nqueries &&
			   climb_together(ladder, trial, q, Min(most, nqueries - q)))
			q += most;
		if (q >= nqueries)
			return;
		clear_sums(ladder);
	}
	for (int q = 0; q < nqueries; q++)
		climb(ladder, q);
}

/* Steps from a few lists to `most`, widths to most_width. */
static void
lay_ladder(Ladder *ladder, int most, int most_width)
{
	const IvfpqMetaData *meta = &ladder->search.model->meta;
	double		probes = Max(1, IvfpqFormulaProbes(meta) / 10);
	double		width = LEAST_WIDTH;

	ladder->nsteps = 0;
	for (; ladder->nsteps < MAX_STEPS - 1 && ceil(probes) < most;
		 probes *= STEP)
		ladder->probes[ladder->nsteps++] = (int) ceil(probes);
	ladder->probes[ladder->nsteps++] = most;

	ladder->nwidths = 0;
	for (; ladder->nwidths < MAX_WIDTHS - 1 && width < most_width;
		 width *= WIDTH_STEP)
		ladder->widths[ladder->nwidths++] = (int) width;
	ladder->widths[ladder->nwidths++] = most_width;

	/* here, because queries are climbed in a context of their own */
	IvfpqTopKResize(&ladder->search.lists, most);
	/* each row's two copies, and the query's own */
	IvfpqSearchOpen(&ladder->search, (most_width + 1) * meta->copies);
	IvfpqTopKResize(&ladder->sorted, (most_width + 1) * meta->copies);
	IvfpqRowsResize(&ladder->rows, (most_width + 1) * meta->copies +
					IVFPQ_DEEP_ROWS);
}

/* The lower end of the recall's interval at a step and width. */
static double
lower_bound(const Ladder *ladder, int depth, int step, int width)
{
	double		n = Max(ladder->nqueries, 2);
	double		mean = ladder->sum[depth][step][width] / n;
	double		variance = (ladder->squares[depth][step][width] -
							n * mean * mean) / (n - 1);

	/* queries that all came out alike tell nothing of their spread */
	variance = Max(variance, mean * (1 - mean) / n);
	return mean - ladder->z * sqrt(variance / n);
}

/*
 * The least probes, between the ladder's steps, that reach the recall with so
 * many candidates; 0 when none do.
 */
static int
least_probes(const Ladder *ladder, int depth, int width, double recall)
{
	double		before = 0;

	for (int step = 0; step < ladder->nsteps; step++)
	{
		double		bound = lower_bound(ladder, depth, step, width);

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
find_target(const Ladder *ladder, int depth, double recall,
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
		int			probes = least_probes(ladder, depth, w, recall);
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
find_targets(const Ladder *ladder, double rows, IvfpqMetaData *meta)
{
	bool		all = true;

	memset(meta->targets, 0, sizeof(meta->targets));
	for (int t = 0; t < IVFPQ_TARGETS; t++)
	{
		IvfpqTarget *first = &meta->targets[0][t];
		IvfpqTarget *deep = &meta->targets[1][t];

		all &= find_target(ladder, 0, recalls[t], rows, first);
		all &= find_target(ladder, 1, recalls[t], rows, deep);
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
climb_until(Ladder *ladder, IvfpqTrial *trial, int nqueries, double rows,
			int *probes, int *width, IvfpqMetaData *meta)
{
	for (;;)
	{
		lay_ladder(ladder, *probes, *width);
		climb_all(ladder, trial, nqueries);
		if (find_targets(ladder, rows, meta) ||
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
 * index, or NULL, takes most of the work.
 */
void
IvfpqCalibrationRun(IvfpqCalibration *calibration, Relation index,
					IvfpqMetaData *meta, IvfpqTrial *trial)
{
	Ladder	   *ladder = palloc0(sizeof(Ladder));
	IvfpqModel *model = IvfpqModelLoad(index, meta);
	double		rows = (double) meta->rows_at_calibration;
	int			probes = Min(2.5 * IvfpqFormulaProbes(meta), meta->nlists);
	int			width = Max(USUAL_WIDTH, 4 * IvfpqFormulaCandidates(meta));
	TimestampTz begun = GetCurrentTimestamp();
	TimestampTz shared;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CALIBRATING);
	ladder->calibration = calibration;
	ladder->truth = palloc(sizeof(Truth));
	ladder->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq calibration query",
										ALLOCSET_DEFAULT_SIZES);
	IvfpqSearchInit(&ladder->search, index, model);
	meta->coarse_share = IvfpqShareFind(calibration, index, model);
	shared = GetCurrentTimestamp();
	model->meta.coarse_share = meta->coarse_share;
	meta->calibration_queries = calibration->nqueries;

	/* far more lists may be needed than usual: let a few queries find out */
	ladder->z = 0;
	climb_until(ladder, trial, Min(FEW_QUERIES, calibration->nqueries), rows,
				&probes, &width, meta);
	probes = Min(MORE_PROBES * most_probes(meta), meta->nlists);
	ladder->z = IVFPQ_Z_95;
	climb_until(ladder, trial, calibration->nqueries, rows, &probes, &width,
				meta);
	MemoryContextDelete(ladder->tmp);
	ereport(DEBUG1,
			(errmsg_internal("gpuivfpq calibrated with %d queries in %.0f ms, searches compare %g of the lists, which took %.0f ms of them to find",
							 calibration->nqueries,
							 (GetCurrentTimestamp() - begun) / 1000.0,
							 meta->coarse_share, (shared - begun) / 1000.0)));
}
