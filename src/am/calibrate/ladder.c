/*
 * ladder.c
 *		What a calibration's queries find with ever more lists and candidates.
 *
 * Each query is searched with ever more lists, and for every number of lists
 * the rank of each true neighbour among the candidates is looked up: it is
 * found with that many lists whenever there are more candidates than its
 * rank.  In a build all participants take queries, in rounds that the leader
 * begins.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/calibrate/ladder.h"
#include "am/common/engine.h"
#include "am/common/tid.h"
#include "am/scan/effort.h"
#include "am/team/tempfile.h"
#include "page/stoppoint.h"

#define STEP			1.7		/* from one number of probes to the next */
#define WIDTH_STEP		1.4		/* ... of candidates */
#define LEAST_WIDTH		40		/* fewer fail rows unlike those of training */

#define MOST_TRIES		GV_MAX_TRIES	/* queries that gpuvecd gets at once */

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;

/* The neighbours of query q. */
static void
find_truth(const IvfpqCalibration *calibration, int q, IvfpqTruth *truth)
{
	truth->nneighbours = IvfpqCalibrationNearest(calibration, q,
												 IVFPQ_DEEP_ROWS,
												 truth->neighbours);
}

/* Take up query q. */
static void
begin_query(IvfpqLadder *ladder, int q)
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
count_ranks(IvfpqLadder *ladder, const IvfpqTruth *truth, const uint64 *ids,
			int n, uint64 own, int counts[IVFPQ_DEPTHS][IVFPQ_MAX_WIDTHS])
{
	int			width = 0;
	int			rank = 0;
	int			place;

	memset(counts, 0, sizeof(int) * IVFPQ_DEPTHS * IVFPQ_MAX_WIDTHS);
	IvfpqAnswerRowsForget(&ladder->rows);
	(void) IvfpqAnswerRowsMeet(&ladder->rows, own, &place);
	for (int i = 0; i < truth->nneighbours; i++)
		IvfpqAnswerRowsAwait(&ladder->rows, truth->neighbours[i], i);
	for (int i = 0; i < n; i++)
	{
		if (!IvfpqAnswerRowsMeet(&ladder->rows, ids[i], &place))
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
count_step(IvfpqLadder *ladder, const IvfpqTruth *truth, int step,
		   const uint64 *ids, int n, uint64 own)
{
	int			counts[IVFPQ_DEPTHS][IVFPQ_MAX_WIDTHS];

	count_ranks(ladder, truth, ids, n, own, counts);
	for (int d = 0; d < IVFPQ_DEPTHS; d++)
	{
		int			wanted = Min(depths[d], truth->nneighbours);
		int			hits = 0;

		for (int w = 0; w < ladder->nwidths; w++)
		{
			int64		found;

			hits += counts[d][w];
			found = (int64) hits * depths[d] / wanted;
			ladder->found.sum[d][step][w] += found;
			ladder->found.squares[d][step][w] += found * found;
		}
	}
}

/* Search for query q with every number of lists of the ladder. */
static void
climb(IvfpqLadder *ladder, int q)
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
	ladder->found.nqueries += ladder->truth->nneighbours > 0;
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(ladder->tmp);
}

/* What was found for queries q .. q + n - 1 at a step, hits side by side. */
static void
count_hits(IvfpqLadder *ladder, const IvfpqTruth *truths, int step, int q,
		   int n, const int32 *nhits, const ItemPointerData *tids)
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
climb_together(IvfpqLadder *ladder, IvfpqTrial *trial, int q, int n)
{
	IvfpqCalibration *calibration = ladder->calibration;
	MemoryContext oldcontext = MemoryContextSwitchTo(ladder->tmp);
	const IvfpqMetaData *meta = &ladder->search.model->meta;
	IvfpqTruth *truths = palloc(n * sizeof(IvfpqTruth));
	bool		done = true;

	for (int i = 0; i < n; i++)
	{
		find_truth(calibration, q + i, &truths[i]);
		ladder->found.nqueries += truths[i].nneighbours > 0;
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

/* Steps from a few lists to `most`, widths to most_width. */
static void
lay_ladder(IvfpqLadder *ladder, int most, int most_width)
{
	const IvfpqMetaData *meta = &ladder->search.model->meta;
	double		probes = Max(1, IvfpqFormulaProbes(meta) / 10);
	double		width = LEAST_WIDTH;

	ladder->nsteps = 0;
	for (; ladder->nsteps < IVFPQ_MAX_STEPS - 1 && ceil(probes) < most;
		 probes *= STEP)
		ladder->probes[ladder->nsteps++] = (int) ceil(probes);
	ladder->probes[ladder->nsteps++] = most;

	ladder->nwidths = 0;
	for (; ladder->nwidths < IVFPQ_MAX_WIDTHS - 1 && width < most_width;
		 width *= WIDTH_STEP)
		ladder->widths[ladder->nwidths++] = (int) width;
	ladder->widths[ladder->nwidths++] = most_width;

	/* here, because queries are climbed in a context of their own */
	IvfpqTopKResize(&ladder->search.lists, most);
	/* each row's two copies, and the query's own */
	IvfpqSearchOpen(&ladder->search, (most_width + 1) * meta->copies);
	IvfpqTopKResize(&ladder->sorted, (most_width + 1) * meta->copies);
	IvfpqAnswerRowsResize(&ladder->rows, (most_width + 1) * meta->copies +
						  IVFPQ_DEEP_ROWS);
}

/* Search for all queries by gpuvecd, if there is a trial; false: it failed. */
static bool
climb_there(IvfpqLadder *ladder, IvfpqTrial *trial, int nqueries)
{
	int			most = Min(MOST_TRIES,
						   GV_MAX_TRIED_HITS / ladder->sorted.capacity);

	if (trial == NULL || trial->builder == NULL || most <= 0)
		return false;
	for (int q = 0; q < nqueries; q += most)
		if (!climb_together(ladder, trial, q, Min(most, nqueries - q)))
			return false;
	return true;
}

/* Search for queries that no other participant has taken. */
static void
climb_here(IvfpqLadder *ladder)
{
	int64		q;

	memset(&ladder->found, 0, sizeof(ladder->found));
	while (IvfpqTeamTake(ladder->team, ladder->team->shared->climb.nqueries,
						 &q))
		climb(ladder, (int) q);
	IvfpqStopPoint("build: climbed");
}

/* Add what another participant has found. */
static void
take_found(IvfpqLadder *ladder, int from)
{
	IvfpqTally *found = palloc(sizeof(IvfpqTally));
	int64	   *sums = (int64 *) &ladder->found;
	IvfpqTempFile files;
	BufFile    *file;

	IvfpqTempFileBegin(&files, ladder->team, "found", 1);
	file = IvfpqTempFileOpen(&files, 0, from);
	if (file == NULL || !IvfpqTempFileRead(file, found, sizeof(*found)))
		elog(ERROR, "a temporary file of the build is not there");
	for (Size i = 0; i < sizeof(IvfpqTally) / sizeof(int64); i++)
		sums[i] += ((const int64 *) found)[i];
	IvfpqTempFileClose(&files, file);
	pfree(found);
}

/* Begin; memory from the current context. */
IvfpqLadder *
IvfpqLadderBegin(IvfpqCalibration *calibration, Relation index,
				 const IvfpqModel *model, IvfpqTeam *team)
{
	IvfpqLadder *ladder = palloc0(sizeof(IvfpqLadder));

	ladder->calibration = calibration;
	ladder->team = team;
	ladder->truth = palloc(sizeof(IvfpqTruth));
	ladder->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq calibration query",
										ALLOCSET_DEFAULT_SIZES);
	IvfpqSearchInit(&ladder->search, index, model);
	return ladder;
}

void
IvfpqLadderEnd(IvfpqLadder *ladder)
{
	MemoryContextDelete(ladder->tmp);
}

/*
 * The leader has the first queries searched for, with up to `most` lists and
 * most_width candidates: by gpuvecd, or by all participants.  Workers wait for
 * the end of a round before and after.
 */
void
IvfpqLadderClimb(IvfpqLadder *ladder, IvfpqTrial *trial, int nqueries,
				 int most, int most_width)
{
	IvfpqTeamShared *team = ladder->team->shared;

	lay_ladder(ladder, most, most_width);
	memset(&ladder->found, 0, sizeof(ladder->found));
	if (climb_there(ladder, trial, nqueries))
		return;

	team->meta = ladder->search.model->meta;
	team->climb.nqueries = nqueries;
	team->climb.most = most;
	team->climb.most_width = most_width;
	IvfpqTeamRelease(ladder->team);
	climb_here(ladder);
	(void) IvfpqTeamGather(ladder->team);
	for (int from = 1; from < team->size; from++)
		take_found(ladder, from);
	team->climb.nqueries = 0;
}

/*
 * Workers search as long as the leader has them climb; *calibration has what
 * all participants offered.
 */
void
IvfpqLadderHelp(IvfpqCalibration *calibration, Relation index,
				IvfpqTeam *team)
{
	const IvfpqModel *model = IvfpqModelLoad(index, &team->shared->meta);
	IvfpqLadder *ladder = IvfpqLadderBegin(calibration, index, model, team);
	IvfpqTempFile file;

	while (team->shared->climb.nqueries > 0)
	{
		lay_ladder(ladder, team->shared->climb.most,
				   team->shared->climb.most_width);
		climb_here(ladder);
		IvfpqTempFileBegin(&file, team, "found", 1);
		IvfpqTempFilePut(&file, 0, &ladder->found, sizeof(ladder->found));
		IvfpqTempFileDone(&file);
		(void) IvfpqTeamGather(team);
		IvfpqTempFileEnd(&file);
	}
	IvfpqLadderEnd(ladder);
}
