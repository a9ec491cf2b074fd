/*
 * recallgrid.c
 *		Recall grids: the recall that calibration queries reach with ever more
 *		lists and candidates, and the cheapest pair for each target.
 *
 * Each query is searched with ever more lists, and for every number of lists
 * the rank of each exact neighbor among the candidates is looked up: the
 * neighbor is found with that many lists whenever there are more candidates
 * than its rank.  In a build all participants take queries, in phases that the
 * leader begins.
 *
 * Where gpuvecd builds, it searches instead, in the calibration mirror that it
 * has of the index: postings go there as they go to pages.  A calibration
 * mirror has no refine records: rows are named by their TIDs.  When gpuvecd
 * fails there is no mirror any more, and participants search the index's
 * pages.  That is no error whatever gpuvec.on_gpu_error says: by then the
 * index is built.
 *
 * Of all pairs (probes, candidates) that reach a target the cheapest is taken.
 * Only rows that strict order returns count.  A scan returns the first ten
 * rows from the results of the first target's search, the rows after them from
 * the results of the next one, and so on; a row that a later search finds
 * nearer than the last one returned is out of order.  So of every query it is
 * known how far the target of one depth came, and for the next depth only
 * neighbors after that place count.  Where only some rows are looked at, a
 * query's own place is a matter of chance, and the mean is taken.
 *
 * A target holds for the first n rows, with the lower end of its 95 %
 * interval, and for the last fifth of them: a condition may match no others.
 */
#include "postgres.h"

#include <math.h>

#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/bitmapset.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/build/recallgrid.h"
#include "am/common/enginecall.h"
#include "am/search/params.h"
#include "am/search/search.h"
#include "page/injection.h"

#define STEP			1.7		/* from one number of probes to the next */
#define DEEP_STEP		2.2		/* of later levels, whose searches cost more */
#define MAX_STEPS		48
#define WIDTH_STEP		1.2		/* from one number of candidates on */
#define LEAST_WIDTH		40		/* fewer miss rows unlike the sample */
#define MAX_WIDTHS		36

#define MESSAGE_BYTES	((Size) 8 << 20)

/*
 * A sample can prove a recall if at least this many of its neighbors may be
 * missed.
 */
#define LEAST_MISSED	10

#define LAST_PART		0.2		/* of the ranks; targets hold there, too */

/* An AnswerRow's place, if it is not that of an expected row. */
#define UNEXPECTED		(-1)
#define SEEN			(-2)

/* A row of an answer. */
typedef struct AnswerRow
{
	uint64		id;				/* IvfpqTidToId */
	uint32		round;			/* equals the table's, or the entry is free */
	int32		place;			/* of a row that is expected, >= 0, until it
								 * is seen */
} AnswerRow;

/*
 * Rows of an answer, each counted once, and the places of those expected.
 * Calibration goes through the candidates of every query at every number of
 * lists, so this is a hash table that is emptied by counting `round` up:
 * entries of older rounds are free.  Open addressing, half full at most.
 */
typedef struct AnswerRows
{
	uint32		mask;			/* entries - 1 */
	uint32		round;
	AnswerRow  *entries;		/* [mask + 1] */
} AnswerRows;

struct IvfpqRecallGrid
{
	const IvfpqCalibration *calibration;
	IvfpqCalibMirror *mirror;	/* of gpuvecd, or NULL */
	IvfpqParallel *parallel;
	IvfpqSearch search;
	MemoryContext tmp;			/* reset after every query */
	IvfpqGridSpec spec;			/* which the grid is laid out for */
	int			nsteps;
	int			probes[MAX_STEPS];
	int			nwidths;
	int			widths[MAX_WIDTHS]; /* candidates */

	int			capacity;		/* postings that are kept */
	GvTopK		sorted;			/* of the current query so far, nearest first;
								 * arrays [2 * capacity] */
	AnswerRows	rows;			/* of the current answer */
	int		   *nneighbors;		/* [spec.nqueries]; 0: nothing to find */
	uint8	   *found;			/* [spec.nqueries][nsteps]
								 * [IVFPQ_GROUND_TRUTH_ROWS] of each neighbor
								 * the first width that finds it; nwidths:
								 * none does */
};

/* How far strict order has come with a query. */
typedef struct Place
{
	double		returned;		/* neighbors returned */
	int			next;			/* the first neighbor after them */
} Place;

/*
 * Sums over queries q of the neighbors that each pair of a step s and a width
 * w finds at a depth.  A depth has R neighbors of a query, the last part of
 * which are L.  A query with only n < R neighbors counts as if it had R; for
 * the others n = R.  With width(q, s, r) from IvfpqRecallGrid.found, and
 * returned(q) and next(q) from the query's Place,
 *
 *		found(q, s, w) = min(returned(q) + |{r : next(q) <= r < n,
 *							 width(q, s, r) <= w}|, n) * R / n
 *		last(q, s, w) = |{r : max(next(q), n - L) <= r < n,
 *						width(q, s, r) <= w}| * L / min(L, n)
 */
typedef struct Tally
{
	int			nqueries;		/* that have neighbors */
	int			rows_needed;	/* R */
	int			nlast;			/* L */
	double		sum[MAX_STEPS][MAX_WIDTHS]; /* of found(q, s, w) */
	double		squares[MAX_STEPS][MAX_WIDTHS]; /* of found(q, s, w)^2 */
	double		last[MAX_STEPS][MAX_WIDTHS];	/* of last(q, s, w) */
} Tally;

/*
 * Ends this participant's part in the mirror, and has the others end theirs.
 * With `failed`, the first participant reports that gpuvecd failed.  A build
 * needs nothing of gpuvecd after the mirror.
 */
static void
give_up(IvfpqCalibMirror *mirror, bool failed)
{
	bool		is_first = mirror->sharing == NULL ||
	pg_atomic_exchange_u32(&mirror->sharing->failed, 1) == 0;

	if (is_first && failed)
		ereport(NOTICE,
				(errmsg("gpuvecd could not calibrate index \"%s\": %s",
						RelationGetRelationName(mirror->index),
						IvfpqBuilderReason(mirror->builder)),
				 errdetail("It is calibrated without a card, which takes longer.")));
	IvfpqBuilderEnd(mirror->builder);
	mirror->builder = NULL;
}

/*
 * Returns whether there is a mirror.  Ends this participant's part in it if
 * gpuvecd has failed another one.
 */
static bool
has_mirror(IvfpqCalibMirror *mirror)
{
	if (mirror->builder != NULL && mirror->sharing != NULL &&
		pg_atomic_read_u32(&mirror->sharing->failed) != 0)
		give_up(mirror, false);
	return mirror->builder != NULL;
}

/*
 * Takes part in a mirror of all postings that participants have put, if there
 * is a builder; memory from the current context.  All rows are placed.  The
 * leader calls this first, while workers wait, because it has gpuvecd begin the
 * mirror.
 */
void
IvfpqCalibMirrorBegin(IvfpqCalibMirror *mirror, Relation index,
					  IvfpqBuilder *builder, IvfpqParallel *parallel,
					  int code_bytes)
{
	memset(mirror, 0, sizeof(*mirror));
	mirror->index = index;
	mirror->builder = builder;
	mirror->sharing = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING);
	mirror->code_bytes = code_bytes;
	if (!has_mirror(mirror))
		return;
	mirror->capacity = MESSAGE_BYTES;
	mirror->message = palloc_extended(mirror->capacity, MCXT_ALLOC_HUGE);
	if (parallel->me == 0 &&
		!IvfpqBuilderCalibMirror(builder,
								 pg_atomic_read_u64(&parallel->shared->npostings)))
		give_up(mirror, true);
}

/* Sends the chunks that are there. */
void
IvfpqCalibMirrorFlush(IvfpqCalibMirror *mirror)
{
	if (mirror->builder == NULL || mirror->used == 0)
		return;
	if (!IvfpqBuilderChunks(mirror->builder, mirror->message, mirror->used))
		give_up(mirror, true);
	mirror->used = 0;
}

/* Begins a list of npostings postings, to be added by IvfpqCalibMirrorAdd. */
void
IvfpqCalibMirrorList(IvfpqCalibMirror *mirror, int list, uint32 npostings)
{
	int			nblocks = (npostings + GV_BLOCK - 1) / GV_BLOCK;
	GvChunk		chunk = {list, 0, nblocks, 0, {0, npostings, 0}};
	Size		bytes = gv_chunk_bytes(&chunk, mirror->code_bytes, 0);
	char	   *next;

	if (mirror->used + bytes > mirror->capacity)
		IvfpqCalibMirrorFlush(mirror);
	if (mirror->builder == NULL)
		return;
	if (mirror->used == 0)
	{
		mirror->used = sizeof(GvListsRequest);
		memset(mirror->message, 0, mirror->used);
	}
	if (mirror->used + bytes > GV_MAX_MESSAGE)
	{
		/* only a list with most of the rows does not fit into a message */
		give_up(mirror, false);
		return;
	}
	if (mirror->used + bytes > mirror->capacity)
	{
		mirror->capacity = GV_MAX_MESSAGE;
		mirror->message = repalloc_huge(mirror->message, mirror->capacity);
	}
	((GvListsRequest *) mirror->message)->nchunks++;
	next = mirror->message + mirror->used;
	mirror->used += bytes;
	memset(next, 0, bytes);
	memcpy(next, &chunk, sizeof(chunk));
	mirror->live = (uint32 *) (next + sizeof(chunk));
	mirror->t = (float *) (mirror->live + nblocks);
	mirror->tids = (ItemPointerData *) (mirror->t + (Size) nblocks * GV_BLOCK);
	mirror->codes = (uint8 *) (mirror->tids + (Size) nblocks * GV_BLOCK);
	mirror->count = 0;
}

/* Adds a posting to the list begun last. */
void
IvfpqCalibMirrorAdd(IvfpqCalibMirror *mirror, const IvfpqPosting *posting)
{
	uint32		i = mirror->count;
	uint8	   *codes;

	if (mirror->builder == NULL)
		return;
	codes = mirror->codes + (Size) (i / GV_BLOCK) * mirror->code_bytes *
		GV_BLOCK + i % GV_BLOCK;
	mirror->live[i / GV_BLOCK] |= UINT32_C(1) << i % GV_BLOCK;
	mirror->t[i] = posting->t;
	mirror->tids[i] = posting->tid;
	for (int b = 0; b < mirror->code_bytes; b++)
		codes[(Size) b * GV_BLOCK] = posting->code[b];
	mirror->count++;
}

/* Returns the entry of a row, which is UNEXPECTED if it is new. */
static inline AnswerRow *
enter_row(AnswerRows *rows, uint64 id)
{
	uint32		i = murmurhash32((uint32) id ^
								 (uint32) (id >> 32) * UINT32_C(0x9E3779B1));
	AnswerRow  *row = &rows->entries[i & rows->mask];

	while (row->round == rows->round && row->id != id)
		row = &rows->entries[++i & rows->mask];
	if (row->round != rows->round)
	{
		row->id = id;
		row->round = rows->round;
		row->place = UNEXPECTED;
	}
	return row;
}

/*
 * Returns the widths [IVFPQ_GROUND_TRUTH_ROWS] that first find each neighbor of
 * query q at a step.
 */
static uint8 *
found_at(const IvfpqRecallGrid *grid, int q, int step)
{
	return grid->found + ((Size) q * grid->nsteps + step) *
		IVFPQ_GROUND_TRUTH_ROWS;
}

/*
 * Begins, with no grid laid out; memory from the current context.  gpuvecd
 * searches for the leader, if there is a calibration mirror.
 */
IvfpqRecallGrid *
IvfpqRecallGridBegin(const IvfpqCalibration *calibration, Relation index,
					 const IvfpqModel *model, IvfpqCalibMirror *mirror,
					 IvfpqParallel *parallel)
{
	IvfpqRecallGrid *grid = palloc0(sizeof(IvfpqRecallGrid));

	grid->calibration = calibration;
	grid->mirror = mirror;
	grid->parallel = parallel;
	grid->tmp = AllocSetContextCreate(CurrentMemoryContext,
									  "gpuivfpq calibration query",
									  ALLOCSET_DEFAULT_SIZES);
	IvfpqSearchInit(&grid->search, index, model);
	return grid;
}

/*
 * Lays out a grid: steps from `least` lists to `most`, widths to most_width.
 * Its arrays are freed when the next one is laid out.
 */
static void
make_grid(IvfpqRecallGrid *grid, const IvfpqGridSpec *spec)
{
	int			first_rows = ivfpq_depths[ivfpq_levels[spec->level].first];
	double		step = spec->level == 0 ? STEP : DEEP_STEP;
	double		probes = spec->least;
	double		width = Max(LEAST_WIDTH, first_rows);
	Size		nentries;

	grid->spec = *spec;
	grid->search.query.deep = first_rows > IVFPQ_PARENTS_ROWS;
	grid->nsteps = 0;
	for (; grid->nsteps < MAX_STEPS - 1 && ceil(probes) < spec->most;
		 probes *= step)
		grid->probes[grid->nsteps++] = (int) ceil(probes);
	grid->probes[grid->nsteps++] = spec->most;

	grid->nwidths = 0;
	for (; grid->nwidths < MAX_WIDTHS - 1 && width < spec->most_width;
		 width *= WIDTH_STEP)
		grid->widths[grid->nwidths++] = (int) width;
	grid->widths[grid->nwidths++] = spec->most_width;

	/* each row's two postings, and those of the query's own row */
	grid->capacity = (spec->most_width + 1) *
		grid->search.model->meta.lists_per_row;

	/* here, because queries are searched in a context of their own */
	IvfpqTopKResize(&grid->search.lists, spec->most);
	IvfpqSearchOpen(&grid->search, grid->capacity);
	IvfpqTopKResize(&grid->sorted, 2 * grid->capacity);
	if (grid->found != NULL)
	{
		pfree(grid->rows.entries);
		pfree(grid->nneighbors);
		pfree(grid->found);
	}
	nentries = pg_nextpower2_32(2 * (grid->capacity + IVFPQ_GROUND_TRUTH_ROWS +
									 grid->calibration->training->depth));
	grid->rows.mask = nentries - 1;
	grid->rows.round = 0;
	grid->rows.entries = palloc_extended(nentries * sizeof(AnswerRow),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	grid->nneighbors = palloc0(spec->nqueries * sizeof(int));
	grid->found = palloc_extended((Size) spec->nqueries * grid->nsteps *
								  IVFPQ_GROUND_TRUTH_ROWS, MCXT_ALLOC_HUGE);
}

/*
 * Notes which neighbors of query q were found at a step among postings [n],
 * nearest first: a neighbor is found with a width's candidates if its rank
 * among distinct rows is below the width.  The row that the query was made of
 * and its copies, which users' queries do not have, take no rank.
 */
static void
note_found(IvfpqRecallGrid *grid, const IvfpqGroundTruth *truth, int q,
		   int step, const uint64 *ids, int n)
{
	AnswerRows *rows = &grid->rows;
	uint8	   *widths = found_at(grid, q, step);
	int			width = 0;
	int			rank = 0;

	memset(widths, grid->nwidths, IVFPQ_GROUND_TRUTH_ROWS);
	if (++rows->round == 0)
	{
		memset(rows->entries, 0, ((Size) rows->mask + 1) * sizeof(AnswerRow));
		rows->round = 1;
	}
	for (int i = 0; i < truth->nown; i++)
		enter_row(rows, truth->own[i])->place = SEEN;
	for (int i = 0; i < truth->nneighbors; i++)
		enter_row(rows, truth->neighbors[i])->place = i;
	for (int i = 0; i < n; i++)
	{
		AnswerRow  *row = enter_row(rows, ids[i]);

		if (row->place == SEEN)
			continue;
		while (width < grid->nwidths && rank >= grid->widths[width])
			width++;
		if (width == grid->nwidths)
			break;
		rank++;
		if (row->place != UNEXPECTED)
			widths[row->place] = width;
		row->place = SEEN;
	}

	/*
	 * Of neighbors with equal scores those found first take the first places:
	 * any of them is as good as another, rank for rank.
	 */
	for (int i = 1; i < truth->nneighbors; i++)
	{
		uint8		moved = widths[i];
		int			at = i;

		for (; at > 0 && truth->scores[at - 1] == truth->scores[i] &&
			 widths[at - 1] > moved; at--)
			widths[at] = widths[at - 1];
		widths[at] = moved;
	}
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
 * Searches for query q with every number of lists of the grid.
 *
 * A step searches the lists that a scan with its probes finds to be the
 * nearest, but those that were searched at a step before.  Such a scan compares
 * fewer lists with the query than one with more probes, and may find others.
 *
 * No list is searched twice.  So the nearest `capacity` postings of all lists
 * searched so far are among the nearest of the steps before and the nearest of
 * this step, and only the latter have to be sorted.  Once `capacity` postings
 * are kept, a step needs none that scores above the last of them.
 */
static void
measure_query(IvfpqRecallGrid *grid, int q)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(grid->tmp);
	const IvfpqCalibration *calibration = grid->calibration;
	int			level = grid->spec.level;
	IvfpqSearch *search = &grid->search;
	GvTopK	   *sorted = &grid->sorted;
	Bitmapset  *searched = NULL;
	IvfpqGroundTruth truth;

	grid->nneighbors[q] = IvfpqCalibrationGroundTruth(calibration, level, q,
													  &truth);
	IvfpqSearchQuery(search, calibration->levels[level].queries +
					 (Size) q * search->model->meta.dims);
	gv_topk_reset(sorted);
	for (int step = 0; step < grid->nsteps && truth.nneighbors > 0; step++)
	{
		CHECK_FOR_INTERRUPTS();
		/* make_grid has given the lists capacity for the last step */
		search->lists.capacity = grid->probes[step];
		IvfpqNearestLists(search->index, search->model, &search->query, NULL,
						  1, &search->lists);
		IvfpqSearchOpen(search, grid->capacity);
		if (sorted->count == grid->capacity)
			search->scan.reach = sorted->scores[grid->capacity - 1];
		for (int i = 0; i < search->lists.count; i++)
		{
			int			list = (int) search->lists.ids[i];

			if (bms_is_member(list, searched))
				continue;
			searched = bms_add_member(searched, list);
			IvfpqSearchList(search, i);
		}
		IvfpqSearchSettle(search);
		gv_topk_sort(&search->candidates);
		merge_postings(sorted, &search->candidates, grid->capacity);
		note_found(grid, &truth, q, step, sorted->ids, sorted->count);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(grid->tmp);
}

/*
 * Searches for all queries by gpuvecd.  Returns false if there is no
 * calibration mirror, or it failed.
 */
static bool
measure_remote(IvfpqRecallGrid *grid)
{
	const IvfpqCalibration *calibration = grid->calibration;
	const IvfpqMetaData *meta = &grid->search.model->meta;
	const IvfpqGridSpec *spec = &grid->spec;
	uint64	   *ids = grid->sorted.ids;
	int			most = Min(GV_MAX_TRIES, GV_MAX_TRIED_HITS / grid->capacity);
	IvfpqGroundTruth *truths;

	if (grid->mirror == NULL || !has_mirror(grid->mirror) ||
		grid->capacity > GV_MAX_HITS)
		return false;
	truths = palloc(most * sizeof(IvfpqGroundTruth));
	for (int first = 0; first < spec->nqueries; first += most)
	{
		int			n = Min(most, spec->nqueries - first);
		const float *queries = calibration->levels[spec->level].queries +
		(Size) first * meta->dims;

		for (int i = 0; i < n; i++)
			grid->nneighbors[first + i] =
				IvfpqCalibrationGroundTruth(calibration, spec->level,
											first + i, &truths[i]);
		for (int step = 0; step < grid->nsteps; step++)
		{
			GvTryRequest request = {
				n, grid->probes[step],
				IvfpqListsToCompare(meta, grid->probes[step],
									grid->search.query.deep),
				grid->capacity
			};
			const int32 *nhits;
			const char *rowids;
			const ItemPointerData *tids;

			if (!IvfpqBuilderTry(grid->mirror->builder, &request, queries,
								 (Size) n * meta->dims * sizeof(float),
								 &nhits, &rowids))
			{
				give_up(grid->mirror, true);
				pfree(truths);
				return false;
			}
			/* the hits of all queries side by side, nearest first */
			tids = (const ItemPointerData *) rowids;
			for (int i = 0; i < n; i++)
			{
				for (int j = 0; j < nhits[i]; j++)
					ids[j] = IvfpqTidToId(tids++);
				if (truths[i].nneighbors > 0)
					note_found(grid, &truths[i], first + i, step, ids,
							   nhits[i]);
			}
			CHECK_FOR_INTERRUPTS();
		}
	}
	pfree(truths);
	return true;
}

/*
 * Searches for queries that no other participant has taken; writes the results
 * to the file, if there is one.
 */
static void
measure_local(IvfpqRecallGrid *grid, IvfpqTempFile *file)
{
	Size		bytes = (Size) grid->nsteps * IVFPQ_GROUND_TRUTH_ROWS;
	int64		taken;

	while (IvfpqParallelNext(grid->parallel, grid->spec.nqueries, &taken))
	{
		int			q = (int) taken;

		measure_query(grid, q);
		if (file == NULL || grid->nneighbors[q] == 0)
			continue;
		IvfpqTempFilePut(file, 0, &q, sizeof(q));
		IvfpqTempFilePut(file, 0, &grid->nneighbors[q], sizeof(int));
		IvfpqTempFilePut(file, 0, found_at(grid, q, 0), bytes);
	}
	IvfpqInjectionPoint("build: climbed");
}

/*
 * A worker searches as long as the leader has grids measured.  *calibration has
 * the rows that this participant found.
 */
void
IvfpqRecallGridHelp(IvfpqCalibration *calibration, Relation index,
					IvfpqParallel *parallel)
{
	const IvfpqModel *model = IvfpqModelLoad(index, &parallel->shared->meta);
	IvfpqRecallGrid *grid = IvfpqRecallGridBegin(calibration, index, model,
												 NULL, parallel);

	IvfpqCalibrationSettle(calibration, parallel);
	while (parallel->shared->grid_spec.nqueries > 0)
	{
		IvfpqTempFile file;

		make_grid(grid, &parallel->shared->grid_spec);
		IvfpqTempFileBegin(&file, parallel, "found", 1);
		measure_local(grid, &file);
		IvfpqTempFileDone(&file);
		(void) IvfpqParallelEndPhase(parallel);
		IvfpqTempFileEnd(&file);
	}
}

/*
 * Returns the number of neighbors of the grid's level among the first rows of
 * a depth.
 */
static int
rows_needed_at(const IvfpqRecallGrid *grid, int depth)
{
	return ivfpq_depths[depth] / ivfpq_levels[grid->spec.level].stride;
}

/*
 * Returns whether the sample of a depth's level can distinguish this recall
 * from 1.
 */
static bool
is_provable(const IvfpqRecallGrid *grid, int depth, double recall)
{
	int			level = 0;

	while (ivfpq_levels[level].end <= depth)
		level++;
	return recall <= IVFPQ_SURE_RECALL ||
		(1 - recall) * ivfpq_depths[depth] / ivfpq_levels[level].stride *
		grid->calibration->levels[level].nknown >=
		LEAST_MISSED * (1 - 1e-9);
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
	{
		int			n = Min(tally->rows_needed, grid->nneighbors[q]);
		int			nlast = Min(tally->nlast, n);
		double		scale;
		double		last_scale;

		if (n == 0)
			continue;
		tally->nqueries++;
		scale = (double) tally->rows_needed / n;
		last_scale = (double) tally->nlast / nlast;
		for (int step = 0; step < grid->nsteps; step++)
		{
			const uint8 *widths = found_at(grid, q, step);
			int			counts[MAX_WIDTHS + 1] = {0};
			int			lasts[MAX_WIDTHS + 1] = {0};
			double		found = places[q].returned;
			int			found_last = 0;

			for (int r = places[q].next; r < n; r++)
			{
				counts[widths[r]]++;
				lasts[widths[r]] += r >= n - nlast;
			}
			for (int w = 0; w < grid->nwidths; w++)
			{
				double		value;

				found += counts[w];
				found_last += lasts[w];
				value = Min(found, n) * scale;
				tally->sum[step][w] += value;
				tally->squares[step][w] += value * value;
				tally->last[step][w] += found_last * last_scale;
			}
		}
	}
}

/*
 * Returns the recall of a pair: the lower end of its interval, of z standard
 * errors, or the recall of the last part if that is less.  With N queries
 *
 *		mean = sum / N / R
 *		variance = (squares / R^2 - N mean^2) / (N - 1)
 *		recall = min(mean - z sqrt(variance / N), last / N / L)
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

	/* equal results of all queries show nothing of their variance */
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
 * Finds the cheapest way to a recall; returns false when the grid does not
 * reach it.
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
 * Advances the places of all queries past a depth's rows, returned with a
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
 * Finds all targets of the grid's level, into *meta.  Returns how many of
 * those that every calibration determines are within reach of this grid.
 *
 * Of one recall, after a depth that is not within reach none is.  A depth whose
 * recall the sample cannot prove is skipped: a scan takes more there than the
 * target below says.
 */
static int
find_targets(const IvfpqRecallGrid *grid, double z, IvfpqMetaData *meta)
{
	const IvfpqLevel *level = &ivfpq_levels[grid->spec.level];
	Tally	   *tally = palloc(sizeof(Tally));
	Place	   *places = palloc(grid->spec.nqueries * sizeof(Place));
	int			nreached = 0;

	for (int d = level->first; d < level->end; d++)
		memset(meta->targets[d], 0, sizeof(meta->targets[d]));
	for (int t = 0; t < IVFPQ_TARGETS; t++)
	{
		IvfpqTarget before = {0, 0};	/* of the last depth that is known */

		memset(places, 0, grid->spec.nqueries * sizeof(Place));
		for (int d = 0; d < IvfpqLevelEnd(meta, grid->spec.level); d++)
		{
			IvfpqTarget *target = &meta->targets[d][t];

			if (!is_provable(grid, d, ivfpq_recalls[t]))
				continue;
			if (d >= level->first)
			{
				tally_depth(grid, places, d, tally);
				if (find_target(grid, tally, z, ivfpq_recalls[t], target))
				{
					target->probes = Max(target->probes, before.probes);
					target->candidates = Max(target->candidates,
											 before.candidates);
				}
			}
			before = *target;
			if (before.candidates == 0)
				break;
			nreached += d >= level->first &&
				ivfpq_recalls[t] <= IVFPQ_SURE_RECALL;
			advance(grid, d, &before, ivfpq_recalls[t], places);
		}
	}
	pfree(places);
	pfree(tally);
	return nreached;
}

/*
 * The leader has a grid measured, by gpuvecd or by all participants, and finds
 * the targets of its level, which hold with z standard errors, into *meta.
 * Returns how many of those that every calibration determines are within reach
 * of this grid.  Workers wait for the end of a phase before and after.
 */
int
IvfpqRecallGridMeasure(IvfpqRecallGrid *grid, const IvfpqGridSpec *spec,
					   double z, IvfpqMetaData *meta)
{
	IvfpqParallelShared *shared = grid->parallel->shared;
	Size		bytes;
	IvfpqTempFile files;
	int			q;

	make_grid(grid, spec);
	if (measure_remote(grid))
		return find_targets(grid, z, meta);

	shared->meta = grid->search.model->meta;
	shared->grid_spec = *spec;
	IvfpqParallelStartPhase(grid->parallel);
	measure_local(grid, NULL);
	(void) IvfpqParallelEndPhase(grid->parallel);
	bytes = (Size) grid->nsteps * IVFPQ_GROUND_TRUTH_ROWS;
	IvfpqTempFileBegin(&files, grid->parallel, "found", 1);
	for (int from = 1; from < shared->size; from++)
	{
		IvfpqTempFileOpen(&files, 0, from, from + 1);
		while (IvfpqTempFileRead(&files, &q, sizeof(q)))
			if (q < 0 || q >= spec->nqueries ||
				!IvfpqTempFileRead(&files, &grid->nneighbors[q],
								   sizeof(int)) ||
				!IvfpqTempFileRead(&files, found_at(grid, q, 0), bytes))
				elog(ERROR, "a temporary file of the build ends early");
	}
	shared->grid_spec.nqueries = 0;
	return find_targets(grid, z, meta);
}
