/*
 * ladder.c
 *		Recall grids: what calibration queries find with ever more lists and
 *		candidates.
 *
 * Each query is searched with ever more lists, and for every number of lists
 * the rank of each exact neighbor among the candidates is looked up: the
 * neighbor is found with that many lists whenever there are more candidates
 * than its rank.  In a build all participants take queries, in phases that the
 * leader begins.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "utils/memutils.h"

#include "am/calibrate/ladder.h"
#include "am/common/enginecall.h"
#include "am/search/params.h"
#include "am/team/tempfile.h"
#include "page/injection.h"

#define STEP			1.7		/* from one number of probes to the next */
#define DEEP_STEP		2.2		/* of later levels, whose searches cost more */
#define WIDTH_STEP		1.2		/* from one number of candidates on */
#define LEAST_WIDTH		40		/* fewer miss rows unlike those of training */

#define MOST_TRIES		GV_MAX_TRIES	/* queries that gpuvecd gets at once */

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;

/* Finds the neighbors of query q. */
static void
find_ground_truth(const IvfpqRecallGrid *grid, int q,
				  IvfpqGroundTruth *ground_truth)
{
	IvfpqCalibrationGroundTruth(grid->calibration, grid->spec.level, q,
								ground_truth);
	grid->nneighbors[q] = ground_truth->nneighbors;
}

/* Begins with query q. */
static void
begin_query(IvfpqRecallGrid *grid, int q)
{
	IvfpqCalibration *calibration = grid->calibration;

	find_ground_truth(grid, q, grid->ground_truth);
	IvfpqSearchQuery(&grid->search,
					 IvfpqLevelQuery(calibration, grid->spec.level, q));
	gv_topk_reset(&grid->sorted);
}

/*
 * Any of the neighbors with equal scores is as good as another, rank for rank:
 * sorts their widths, so that those found first take the first places.
 */
static void
settle_ties(const IvfpqGroundTruth *ground_truth, uint8 *widths)
{
	for (int i = 1; i < ground_truth->nneighbors; i++)
	{
		uint8		width = widths[i];
		int			at = i;

		for (; at > 0 &&
			 ground_truth->scores[at - 1] == ground_truth->scores[i] &&
			 widths[at - 1] > width; at--)
			widths[at] = widths[at - 1];
		widths[at] = width;
	}
}

/*
 * Notes which neighbors of query q were found at a step among candidates [n],
 * best first: one whose rank among distinct rows is below a width is found by
 * that many candidates.  The row that the query was made of and its copies,
 * which users' queries do not have, take no rank.
 */
static void
note_found(IvfpqRecallGrid *grid, const IvfpqGroundTruth *ground_truth, int q,
		   int step,
		   const uint64 *ids, int n)
{
	uint8	   *widths = grid->found[q * grid->nsteps + step].widths;
	int			width = 0;
	int			rank = 0;
	int			place;

	memset(widths, grid->nwidths, IVFPQ_GROUND_TRUTH_ROWS);
	IvfpqAnswerRowsForget(&grid->rows);
	for (int i = 0; i < ground_truth->nown; i++)
		(void) IvfpqAnswerRowsMeet(&grid->rows, ground_truth->own[i], &place);
	for (int i = 0; i < ground_truth->nneighbors; i++)
		IvfpqAnswerRowsAwait(&grid->rows, ground_truth->neighbors[i], i);
	for (int i = 0; i < n; i++)
	{
		if (!IvfpqAnswerRowsMeet(&grid->rows, ids[i], &place))
			continue;
		while (width < grid->nwidths && rank >= grid->widths[width])
			width++;
		if (width == grid->nwidths)
			break;
		rank++;
		if (place >= 0)
			widths[place] = width;
	}
	settle_ties(ground_truth, widths);
}

/*
 * Merges postings into others, both nearest first as gv_topk_sort has them, and
 * keeps the nearest `capacity`.  *sorted has memory for all.
 */
static void
merge_postings(GvTopK *sorted, const GvTopK *found, int capacity)
{
	int			old = sorted->count - 1;
	int			new = found->count - 1;

	/* from the end, so that none is overwritten before it has moved */
	for (int to = old + new + 1; new >= 0; to--)
		if (old >= 0 &&
			(sorted->scores[old] > found->scores[new] ||
			 (sorted->scores[old] == found->scores[new] &&
			  sorted->ids[old] > found->ids[new])))
		{
			sorted->scores[to] = sorted->scores[old];
			sorted->ids[to] = sorted->ids[old--];
		}
		else
		{
			sorted->scores[to] = found->scores[new];
			sorted->ids[to] = found->ids[new--];
		}
	sorted->count = Min(sorted->count + found->count, capacity);
}

/*
 * Searches the lists that a scan with a step's probes finds to be the nearest,
 * but those that were searched at a step before.  Such a scan compares fewer
 * lists with the query than one with more probes, and may find others.
 *
 * No list is searched twice.  So the nearest `capacity` postings of all lists
 * searched so far are among the nearest of the steps before and the nearest of
 * this step, and only the latter have to be sorted.  Once `capacity` postings
 * are kept, a step needs none that scores above the last of them.
 */
static void
search_step(IvfpqRecallGrid *grid, int step, Bitmapset **searched)
{
	IvfpqSearch *search = &grid->search;

	/* make_grid has given it capacity for the last step */
	search->lists.capacity = grid->probes[step];
	IvfpqNearestLists(search->index, search->model, &search->query,
					  &search->lists);
	IvfpqSearchOpen(search, grid->capacity);
	if (grid->sorted.count == grid->capacity)
		search->scan.reach = grid->sorted.scores[grid->capacity - 1];
	for (int i = 0; i < search->lists.count; i++)
	{
		int			list = (int) search->lists.ids[i];

		if (bms_is_member(list, *searched))
			continue;
		*searched = bms_add_member(*searched, list);
		IvfpqSearchList(search, i);
	}
	IvfpqSearchSettle(search);
	gv_topk_sort(&search->candidates);
	merge_postings(&grid->sorted, &search->candidates, grid->capacity);
}

/* Searches for query q with every number of lists of the grid. */
static void
measure_query(IvfpqRecallGrid *grid, int q)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(grid->tmp);
	const GvTopK *sorted = &grid->sorted;
	Bitmapset  *searched = NULL;

	begin_query(grid, q);
	for (int step = 0; step < grid->nsteps &&
		 grid->ground_truth->nneighbors > 0;
		 step++)
	{
		CHECK_FOR_INTERRUPTS();
		search_step(grid, step, &searched);
		note_found(grid, grid->ground_truth, q, step, sorted->ids,
				   sorted->count);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(grid->tmp);
}

/*
 * Notes what was found for queries q .. q + n - 1 at a step, hits side by
 * side.
 */
static void
note_hits(IvfpqRecallGrid *grid, const IvfpqGroundTruth *ground_truths,
		  int step, int q,
		  int n, const int32 *nhits, const ItemPointerData *tids)
{
	uint64	   *ids = grid->sorted.ids;

	for (int i = 0; i < n; i++)
	{
		for (int j = 0; j < nhits[i]; j++)
			ids[j] = IvfpqTidToId(&tids[j]);
		tids += nhits[i];
		if (ground_truths[i].nneighbors > 0)
			note_found(grid, &ground_truths[i], q + i, step, ids, nhits[i]);
	}
}

/*
 * Does as measure_query for queries q .. q + n - 1 by gpuvecd; false: it
 * failed.
 */
static bool
measure_query_batch(IvfpqRecallGrid *grid, IvfpqCalibMirror *mirror, int q,
					int n)
{
	IvfpqCalibration *calibration = grid->calibration;
	MemoryContext oldcontext = MemoryContextSwitchTo(grid->tmp);
	const IvfpqMetaData *meta = &grid->search.model->meta;
	IvfpqGroundTruth *ground_truths = palloc(n * sizeof(IvfpqGroundTruth));
	bool		done = true;

	for (int i = 0; i < n; i++)
		find_ground_truth(grid, q + i, &ground_truths[i]);
	for (int step = 0; step < grid->nsteps && done; step++)
	{
		const int32 *nhits;
		const ItemPointerData *tids;

		done = IvfpqCalibMirrorSearch(mirror, IvfpqLevelQuery(calibration,
															  grid->spec.level,
															  q), n,
									  calibration->gv->dims, grid->probes[step],
									  IvfpqListsToCompare(meta, grid->probes[step],
														  grid->search.query.deep),
									  grid->capacity, &nhits, &tids);
		if (done)
			note_hits(grid, ground_truths, step, q, n, nhits, tids);
		CHECK_FOR_INTERRUPTS();
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(grid->tmp);
	return done;
}

/*
 * Lays out a grid: steps from `least` lists to `most`, widths to most_width.
 * Its arrays are freed when the next one is laid out.
 */
static void
make_grid(IvfpqRecallGrid *grid, const IvfpqGridSpec *spec)
{
	const IvfpqMetaData *meta = &grid->search.model->meta;
	double		step = spec->level == 0 ? STEP : DEEP_STEP;
	double		probes = spec->least;
	double		width = Max(LEAST_WIDTH,
							depths[ivfpq_levels[spec->level].first]);

	grid->spec = *spec;
	grid->search.query.deep =
		depths[ivfpq_levels[spec->level].first] > IVFPQ_PARENTS_ROWS;
	grid->nsteps = 0;
	for (; grid->nsteps < IVFPQ_MAX_STEPS - 1 && ceil(probes) < spec->most;
		 probes *= step)
		grid->probes[grid->nsteps++] = (int) ceil(probes);
	grid->probes[grid->nsteps++] = spec->most;

	grid->nwidths = 0;
	for (; grid->nwidths < IVFPQ_MAX_WIDTHS - 1 && width < spec->most_width;
		 width *= WIDTH_STEP)
		grid->widths[grid->nwidths++] = (int) width;
	grid->widths[grid->nwidths++] = spec->most_width;

	/* each row's two postings, and those of the query's own row */
	grid->capacity = (spec->most_width + 1) * meta->lists_per_row;

	/* here, because queries are searched in a context of their own */
	IvfpqTopKResize(&grid->search.lists, spec->most);
	IvfpqSearchOpen(&grid->search, grid->capacity);
	IvfpqTopKResize(&grid->sorted, 2 * grid->capacity);
	IvfpqAnswerRowsResize(&grid->rows, grid->capacity + IVFPQ_GROUND_TRUTH_ROWS +
						  grid->calibration->depth);
	if (grid->found != NULL)
	{
		pfree(grid->nneighbors);
		pfree(grid->found);
	}
	grid->nneighbors = palloc0(spec->nqueries * sizeof(int));
	grid->found = palloc_extended((Size) spec->nqueries * grid->nsteps *
								  sizeof(IvfpqGridFound), MCXT_ALLOC_HUGE);
}

/*
 * Searches for all queries by gpuvecd; false: there is no calibration mirror,
 * or it failed.
 */
static bool
measure_remote(IvfpqRecallGrid *grid, IvfpqCalibMirror *mirror, int nqueries)
{
	int			capacity = grid->capacity;
	int			most = Min(MOST_TRIES, GV_MAX_TRIED_HITS / capacity);

	if (mirror == NULL || mirror->builder == NULL || capacity > GV_MAX_HITS)
		return false;
	for (int q = 0; q < nqueries; q += most)
		if (!measure_query_batch(grid, mirror, q, Min(most, nqueries - q)))
			return false;
	return true;
}

/*
 * Searches for queries that no other participant has taken; with a file writes
 * there what was found.
 */
static void
measure_local(IvfpqRecallGrid *grid, IvfpqTempFile *file)
{
	Size		bytes = grid->nsteps * sizeof(IvfpqGridFound);
	int64		taken;

	while (IvfpqParallelNext(grid->parallel, grid->spec.nqueries, &taken))
	{
		int			q = (int) taken;

		measure_query(grid, q);
		if (file == NULL || grid->nneighbors[q] == 0)
			continue;
		IvfpqTempFilePut(file, 0, &q, sizeof(q));
		IvfpqTempFilePut(file, 0, &grid->nneighbors[q], sizeof(int));
		IvfpqTempFilePut(file, 0, &grid->found[q * grid->nsteps], bytes);
	}
	IvfpqInjectionPoint("build: climbed");
}

/* Takes what another participant has found. */
static void
take_found(IvfpqRecallGrid *grid, int from)
{
	Size		bytes = grid->nsteps * sizeof(IvfpqGridFound);
	IvfpqTempFile files;
	BufFile    *file;
	int			q;

	IvfpqTempFileBegin(&files, grid->parallel, "found", 1);
	file = IvfpqTempFileOpen(&files, 0, from);
	if (file == NULL)
		return;
	while (IvfpqTempFileRead(file, &q, sizeof(q)))
		if (!IvfpqTempFileRead(file, &grid->nneighbors[q], sizeof(int)) ||
			!IvfpqTempFileRead(file, &grid->found[q * grid->nsteps],
							   bytes))
			elog(ERROR, "a temporary file of the build ends early");
	IvfpqTempFileClose(&files, file);
}

/* Begins; memory from the current context. */
IvfpqRecallGrid *
IvfpqRecallGridBegin(IvfpqCalibration *calibration, Relation index,
					 const IvfpqModel *model, IvfpqParallel *parallel)
{
	IvfpqRecallGrid *grid = palloc0(sizeof(IvfpqRecallGrid));

	grid->calibration = calibration;
	grid->parallel = parallel;
	grid->ground_truth = palloc(sizeof(IvfpqGroundTruth));
	grid->tmp = AllocSetContextCreate(CurrentMemoryContext,
									  "gpuivfpq calibration query",
									  ALLOCSET_DEFAULT_SIZES);
	IvfpqSearchInit(&grid->search, index, model);
	return grid;
}

void
IvfpqRecallGridEnd(IvfpqRecallGrid *grid)
{
	MemoryContextDelete(grid->tmp);
}

/*
 * The leader has a grid measured: by gpuvecd, or by all participants.  Workers
 * wait for the end of a phase before and after.
 */
void
IvfpqRecallGridMeasure(IvfpqRecallGrid *grid, IvfpqCalibMirror *mirror,
					   const IvfpqGridSpec *spec)
{
	IvfpqParallelShared *parallel = grid->parallel->shared;

	make_grid(grid, spec);
	if (measure_remote(grid, mirror, spec->nqueries))
		return;

	parallel->meta = grid->search.model->meta;
	parallel->grid_spec = *spec;
	IvfpqParallelStartPhase(grid->parallel);
	measure_local(grid, NULL);
	(void) IvfpqParallelEndPhase(grid->parallel);
	for (int from = 1; from < parallel->size; from++)
		take_found(grid, from);
	parallel->grid_spec.nqueries = 0;
}

/*
 * Workers search as long as the leader has grids measured; *calibration has
 * what all participants offered.
 */
void
IvfpqRecallGridHelp(IvfpqCalibration *calibration, Relation index,
					IvfpqParallel *parallel)
{
	const IvfpqModel *model = IvfpqModelLoad(index, &parallel->shared->meta);
	IvfpqRecallGrid *grid =
	IvfpqRecallGridBegin(calibration, index, model, parallel);
	IvfpqTempFile file;

	IvfpqCalibrationSettle(calibration);
	while (parallel->shared->grid_spec.nqueries > 0)
	{
		make_grid(grid, &parallel->shared->grid_spec);
		IvfpqTempFileBegin(&file, parallel, "found", 1);
		measure_local(grid, &file);
		IvfpqTempFileDone(&file);
		(void) IvfpqParallelEndPhase(parallel);
		IvfpqTempFileEnd(&file);
	}
	IvfpqRecallGridEnd(grid);
}
