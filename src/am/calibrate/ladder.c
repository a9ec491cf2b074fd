/*
 * ladder.c
 *		What a calibration's queries find with ever more lists and candidates.
 *
 * Each query is searched with ever more lists, and for every number of lists
 * the rank of each true neighbor among the candidates is looked up: it is
 * found with that many lists whenever there are more candidates than its
 * rank.  In a build all participants take queries, in rounds that the leader
 * begins.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "utils/memutils.h"

#include "am/calibrate/ladder.h"
#include "am/common/engine.h"
#include "am/common/tid.h"
#include "am/search/effort.h"
#include "am/team/tempfile.h"
#include "page/stoppoint.h"

#define STEP			1.7		/* from one number of probes to the next */
#define DEEP_STEP		2.2		/* of later levels, whose searches cost more */
#define WIDTH_STEP		1.2		/* ... of candidates */
#define LEAST_WIDTH		40		/* fewer fail rows unlike those of training */

#define MOST_TRIES		GV_MAX_TRIES	/* queries that gpuvecd gets at once */

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;

/* The neighbors of query q. */
static void
find_truth(const IvfpqLadder *ladder, int q, IvfpqTruth *truth)
{
	IvfpqCalibrationTruth(ladder->calibration, ladder->climb.level, q, truth);
	ladder->nneighbors[q] = truth->nneighbors;
}

/* Take up query q. */
static void
begin_query(IvfpqLadder *ladder, int q)
{
	IvfpqCalibration *calibration = ladder->calibration;

	find_truth(ladder, q, ladder->truth);
	IvfpqSearchQuery(&ladder->search,
					 IvfpqLevelQuery(calibration, ladder->climb.level, q));
	IvfpqSearchOpen(&ladder->search, ladder->search.candidates.capacity);
}

/*
 * Of equal scores, rank for rank, any neighbor is as good as another: those
 * found first take the first places.
 */
static void
settle_ties(const IvfpqTruth *truth, uint8 *widths)
{
	for (int i = 1; i < truth->nneighbors; i++)
	{
		uint8		width = widths[i];
		int			at = i;

		for (; at > 0 && truth->scores[at - 1] == truth->scores[i] &&
			 widths[at - 1] > width; at--)
			widths[at] = widths[at - 1];
		widths[at] = width;
	}
}

/*
 * Note which neighbors of query q were found at a step among candidates [n],
 * best first: one whose rank among distinct rows is below a width is found by
 * that many candidates.  The row beside the query and its copies, which users'
 * queries do not have, take no rank.
 */
static void
note_found(IvfpqLadder *ladder, const IvfpqTruth *truth, int q, int step,
		   const uint64 *ids, int n)
{
	uint8	   *widths = ladder->found[q * ladder->nsteps + step].widths;
	int			width = 0;
	int			rank = 0;
	int			place;

	memset(widths, ladder->nwidths, IVFPQ_TRUTH_ROWS);
	IvfpqAnswerRowsForget(&ladder->rows);
	for (int i = 0; i < truth->nown; i++)
		(void) IvfpqAnswerRowsMeet(&ladder->rows, truth->own[i], &place);
	for (int i = 0; i < truth->nneighbors; i++)
		IvfpqAnswerRowsAwait(&ladder->rows, truth->neighbors[i], i);
	for (int i = 0; i < n; i++)
	{
		if (!IvfpqAnswerRowsMeet(&ladder->rows, ids[i], &place))
			continue;
		while (width < ladder->nwidths && rank >= ladder->widths[width])
			width++;
		if (width == ladder->nwidths)
			break;
		rank++;
		if (place >= 0)
			widths[place] = width;
	}
	settle_ties(truth, widths);
}

/*
 * Search the lists that a scan with a step's probes finds to be the nearest,
 * but those that were searched at a step before.  That compares fewer lists
 * than one with more probes, and may find others.
 */
static void
search_step(IvfpqLadder *ladder, int step, Bitmapset **searched)
{
	IvfpqSearch *search = &ladder->search;

	/* in memory that lay_ladder has found for the last step */
	search->lists.capacity = ladder->probes[step];
	IvfpqNearestLists(search->index, search->model, &search->query,
					  &search->lists);
	for (int i = 0; i < search->lists.count; i++)
	{
		int			list = (int) search->lists.ids[i];

		if (bms_is_member(list, *searched))
			continue;
		*searched = bms_add_member(*searched, list);
		IvfpqSearchList(search, i);
	}
	IvfpqSearchSettle(search);
}

/* Search for query q with every number of lists of the ladder. */
static void
climb(IvfpqLadder *ladder, int q)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(ladder->tmp);
	const GvTopK *candidates = &ladder->search.candidates;
	GvTopK	   *sorted = &ladder->sorted;
	Bitmapset  *searched = NULL;

	begin_query(ladder, q);
	for (int step = 0; step < ladder->nsteps && ladder->truth->nneighbors > 0;
		 step++)
	{
		CHECK_FOR_INTERRUPTS();
		search_step(ladder, step, &searched);
		sorted->count = candidates->count;
		memcpy(sorted->scores, candidates->scores,
			   candidates->count * sizeof(float));
		memcpy(sorted->ids, candidates->ids,
			   candidates->count * sizeof(uint64));
		gv_topk_sort(sorted);
		note_found(ladder, ladder->truth, q, step, sorted->ids, sorted->count);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(ladder->tmp);
}

/* What was found for queries q .. q + n - 1 at a step, hits side by side. */
static void
note_hits(IvfpqLadder *ladder, const IvfpqTruth *truths, int step, int q,
		  int n, const int32 *nhits, const ItemPointerData *tids)
{
	uint64	   *ids = ladder->sorted.ids;

	for (int i = 0; i < n; i++)
	{
		for (int j = 0; j < nhits[i]; j++)
			ids[j] = IvfpqTidToId(&tids[j]);
		tids += nhits[i];
		if (truths[i].nneighbors > 0)
			note_found(ladder, &truths[i], q + i, step, ids, nhits[i]);
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
		find_truth(ladder, q + i, &truths[i]);
	for (int step = 0; step < ladder->nsteps && done; step++)
	{
		const int32 *nhits;
		const ItemPointerData *tids;

		done = IvfpqTrialSearch(trial, IvfpqLevelQuery(calibration,
													   ladder->climb.level,
													   q), n,
								calibration->gv->dims, ladder->probes[step],
								IvfpqListsToCompare(meta, ladder->probes[step],
													ladder->search.query.deep),
								ladder->sorted.capacity, &nhits, &tids);
		if (done)
			note_hits(ladder, truths, step, q, n, nhits, tids);
		CHECK_FOR_INTERRUPTS();
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(ladder->tmp);
	return done;
}

/*
 * Steps from `least` lists to `most`, widths to most_width.  Memory is the
 * ladder's, and gone when the next one is laid.
 */
static void
lay_ladder(IvfpqLadder *ladder, const IvfpqClimb *climb)
{
	const IvfpqMetaData *meta = &ladder->search.model->meta;
	int			capacity = (climb->most_width + 1) * meta->lists_per_row;
	double		step = climb->level == 0 ? STEP : DEEP_STEP;
	double		probes = climb->least;
	double		width = Max(LEAST_WIDTH,
							depths[ivfpq_levels[climb->level].first]);

	ladder->climb = *climb;
	ladder->search.query.deep =
		depths[ivfpq_levels[climb->level].first] > IVFPQ_PARENTS_ROWS;
	ladder->nsteps = 0;
	for (; ladder->nsteps < IVFPQ_MAX_STEPS - 1 && ceil(probes) < climb->most;
		 probes *= step)
		ladder->probes[ladder->nsteps++] = (int) ceil(probes);
	ladder->probes[ladder->nsteps++] = climb->most;

	ladder->nwidths = 0;
	for (; ladder->nwidths < IVFPQ_MAX_WIDTHS - 1 && width < climb->most_width;
		 width *= WIDTH_STEP)
		ladder->widths[ladder->nwidths++] = (int) width;
	ladder->widths[ladder->nwidths++] = climb->most_width;

	/* here, because queries are climbed in a context of their own */
	IvfpqTopKResize(&ladder->search.lists, climb->most);
	/* each row's two copies, and the query's own */
	IvfpqSearchOpen(&ladder->search, capacity);
	IvfpqTopKResize(&ladder->sorted, capacity);
	IvfpqAnswerRowsResize(&ladder->rows, capacity + IVFPQ_TRUTH_ROWS +
						  ladder->calibration->depth);
	if (ladder->found != NULL)
	{
		pfree(ladder->nneighbors);
		pfree(ladder->found);
	}
	ladder->nneighbors = palloc0(climb->nqueries * sizeof(int));
	ladder->found = palloc_extended((Size) climb->nqueries * ladder->nsteps *
									sizeof(IvfpqFound), MCXT_ALLOC_HUGE);
}

/* Search for all queries by gpuvecd, if there is a trial; false: it failed. */
static bool
climb_there(IvfpqLadder *ladder, IvfpqTrial *trial, int nqueries)
{
	int			capacity = ladder->sorted.capacity;
	int			most = Min(MOST_TRIES, GV_MAX_TRIED_HITS / capacity);

	if (trial == NULL || trial->builder == NULL || capacity > GV_MAX_HITS)
		return false;
	for (int q = 0; q < nqueries; q += most)
		if (!climb_together(ladder, trial, q, Min(most, nqueries - q)))
			return false;
	return true;
}

/*
 * Search for queries that no other participant has taken; with a file what was
 * found goes there.
 */
static void
climb_here(IvfpqLadder *ladder, IvfpqTempFile *file)
{
	Size		bytes = ladder->nsteps * sizeof(IvfpqFound);
	int64		taken;

	while (IvfpqTeamTake(ladder->team, ladder->climb.nqueries, &taken))
	{
		int			q = (int) taken;

		climb(ladder, q);
		if (file == NULL || ladder->nneighbors[q] == 0)
			continue;
		IvfpqTempFilePut(file, 0, &q, sizeof(q));
		IvfpqTempFilePut(file, 0, &ladder->nneighbors[q], sizeof(int));
		IvfpqTempFilePut(file, 0, &ladder->found[q * ladder->nsteps], bytes);
	}
	IvfpqStopPoint("build: climbed");
}

/* Take what another participant has found. */
static void
take_found(IvfpqLadder *ladder, int from)
{
	Size		bytes = ladder->nsteps * sizeof(IvfpqFound);
	IvfpqTempFile files;
	BufFile    *file;
	int			q;

	IvfpqTempFileBegin(&files, ladder->team, "found", 1);
	file = IvfpqTempFileOpen(&files, 0, from);
	if (file == NULL)
		return;
	while (IvfpqTempFileRead(file, &q, sizeof(q)))
		if (!IvfpqTempFileRead(file, &ladder->nneighbors[q], sizeof(int)) ||
			!IvfpqTempFileRead(file, &ladder->found[q * ladder->nsteps],
							   bytes))
			elog(ERROR, "a temporary file of the build ends early");
	IvfpqTempFileClose(&files, file);
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
 * The leader has the climb's queries searched for: by gpuvecd, or by all
 * participants.  Workers wait for the end of a round before and after.
 */
void
IvfpqLadderClimb(IvfpqLadder *ladder, IvfpqTrial *trial,
				 const IvfpqClimb *climb)
{
	IvfpqTeamShared *team = ladder->team->shared;

	lay_ladder(ladder, climb);
	if (climb_there(ladder, trial, climb->nqueries))
		return;

	team->meta = ladder->search.model->meta;
	team->climb = *climb;
	IvfpqTeamRelease(ladder->team);
	climb_here(ladder, NULL);
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

	IvfpqCalibrationSettle(calibration);
	while (team->shared->climb.nqueries > 0)
	{
		lay_ladder(ladder, &team->shared->climb);
		IvfpqTempFileBegin(&file, team, "found", 1);
		climb_here(ladder, &file);
		IvfpqTempFileDone(&file);
		(void) IvfpqTeamGather(team);
		IvfpqTempFileEnd(&file);
	}
	IvfpqLadderEnd(ladder);
}
