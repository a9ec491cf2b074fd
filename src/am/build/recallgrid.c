/*
 * recallgrid.c
 *		Recall grids: the recall that calibration queries reach with each
 *		number of lists and candidates, and the cheapest pair for each target.
 *
 * We search for each query with ever more lists, and look up the rank of each
 * exact neighbor among the candidates.  A search with that many lists finds
 * the neighbor if this rank is below the search's number of candidates.  In a
 * build, all participants take queries, in phases that the leader starts.
 *
 * If gpuvecd builds the index, it searches in place of the participants, in
 * its calibration mirror of the index.  Postings are sent to the mirror when
 * they are written to pages.  This mirror has no refine records, so it names
 * rows by their TIDs.  If gpuvecd fails, the participants search the pages of
 * the index.  That is no error, whatever gpuvec.on_gpu_error says, because the
 * index is built already.
 *
 * Of all pairs (probes, candidates) that reach a target, the cheapest is
 * taken.  We count only rows that a scan in strict order returns.  Such a scan
 * returns the first ten rows from the results of the first target's search,
 * the next rows from the results of the second target's search, and so on.  If
 * a later search finds a row nearer than the last row returned, this row is
 * out of order and does not count.  So for each query we record the position
 * of the last neighbor that a scan returns at one depth, and count only
 * neighbors beyond that position at the next depth.  At levels that sample
 * rows, the position for a single query is a matter of chance, so we assume
 * the target's recall for every query.
 *
 * The recall for the first n rows must reach a target with the lower end of
 * its 95 % interval.  The recall for the last fifth of these rows must reach
 * the target, too, because a condition may match only rows in that fifth.
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

#define STEP			1.7		/* factor from one number of probes to the
								 * next */
#define DEEP_STEP		2.2		/* factor at later levels, whose searches cost
								 * more */
#define MAX_STEPS		48
#define WIDTH_STEP		1.2		/* factor from one number of candidates to the
								 * next */
#define LEAST_WIDTH		40		/* minimum number of candidates, because rows
								 * unlike the training sample have less exact
								 * codes */
#define MAX_WIDTHS		36

#define MESSAGE_BYTES	((Size) 8 << 20)

/*
 * A recall above IVFPQ_SURE_RECALL is measured only if a search with exactly
 * this recall would miss at least LEAST_MISSED neighbors, over all queries.
 */
#define LEAST_MISSED	10

#define LAST_PART		0.2		/* a target must also hold for this last
								 * fraction of a depth's rows */

/*
 * Values of AnswerRow.place: UNEXPECTED for a row that is no neighbor, SEEN
 * for a row that takes no rank because it is the query's own row or was
 * counted before.
 */
#define UNEXPECTED		(-1)
#define SEEN			(-2)

/* A row of an answer. */
typedef struct AnswerRow
{
	uint64		id;				/* IvfpqTidToId */
	uint32		round;			/* the entry is free unless this equals
								 * AnswerRows.round */
	int32		place;			/* number of the neighbor, or UNEXPECTED or
								 * SEEN */
} AnswerRow;

/*
 * A hash table of the rows of an answer, each counted once, and of the query's
 * neighbors.  It is filled anew for every query and every number of lists.  To
 * empty it, `round` is incremented: entries of older rounds are free.  The
 * table uses open addressing, and is at most half full.
 */
typedef struct AnswerRows
{
	uint32		mask;			/* number of entries - 1 */
	uint32		round;
	AnswerRow  *entries;		/* [mask + 1] */
} AnswerRows;

struct IvfpqRecallGrid
{
	const IvfpqCalibration *calibration;
	IvfpqCalibMirror *mirror;	/* calibration mirror, or NULL */
	IvfpqParallel *parallel;
	IvfpqSearch search;
	MemoryContext tmp;			/* reset after every query */
	IvfpqGridSpec spec;			/* size of the current grid */
	int			nsteps;
	int			probes[MAX_STEPS];
	int			nwidths;
	int			widths[MAX_WIDTHS]; /* numbers of candidates */

	int			capacity;		/* maximum number of postings kept */
	GvTopK		sorted;			/* postings kept for the current query,
								 * nearest first; arrays [2 * capacity] */
	AnswerRows	rows;			/* rows of the current answer */
	int		   *nneighbors;		/* [spec.nqueries] number of neighbors */
	uint8	   *found;			/* [spec.nqueries][nsteps]
								 * [IVFPQ_GROUND_TRUTH_ROWS] index into
								 * `widths` of the smallest width that finds
								 * the neighbor, or nwidths */
};

/* Progress of a scan in strict order for one query. */
typedef struct Place
{
	double		returned;		/* number of neighbors returned */
	int			next;			/* first neighbor after those returned */
} Place;

/*
 * Numbers of neighbors found at a depth with the probes of step s and the
 * candidates of width w, summed over queries q.  A query should have R
 * neighbors at the depth, and L neighbors in the last part.  Query q has n <=
 * R neighbors, and counts are scaled as if it had R.  width(q, s, r) is from
 * IvfpqRecallGrid.found, returned(q) and next(q) are from the query's Place.
 *
 *		found(q, s, w) = min(returned(q) + |{r : next(q) <= r < n,
 *							 width(q, s, r) <= w}|, n) * R / n
 *		last(q, s, w) = |{r : max(next(q), n - L) <= r < n,
 *						width(q, s, r) <= w}| * L / min(L, n)
 */
typedef struct Tally
{
	int			nqueries;		/* queries that have neighbors */
	int			rows_needed;	/* R */
	int			nlast;			/* L */
	double		sum[MAX_STEPS][MAX_WIDTHS]; /* of found(q, s, w) */
	double		squares[MAX_STEPS][MAX_WIDTHS]; /* of found(q, s, w)^2 */
	double		last[MAX_STEPS][MAX_WIDTHS];	/* of last(q, s, w) */
} Tally;

/*
 * Gives up the mirror, and makes the other participants give it up.  If
 * `failed` is true, the first participant to do so reports that gpuvecd
 * failed.  Also ends the builder, which a build does not need after the
 * mirror.
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
				 errdetail("The index is calibrated without a GPU, which takes longer.")));
	IvfpqBuilderEnd(mirror->builder);
	mirror->builder = NULL;
}

/*
 * Returns whether there is a mirror.  If another participant has given it up,
 * this participant gives it up, too.
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
 * Begins a mirror of the postings that all participants have added.  There is
 * no mirror if builder is NULL.  Memory comes from the current context.
 * Called when all rows are placed.  The leader calls this first, while workers
 * wait, because the leader's call makes gpuvecd begin the mirror.
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
	mirror->chunks = palloc_extended(mirror->capacity, MCXT_ALLOC_HUGE);
	if (parallel->me == 0 &&
		!IvfpqBuilderCalibMirror(builder,
								 pg_atomic_read_u64(&parallel->shared->npostings)))
		give_up(mirror, true);
}

/* Sends the message to gpuvecd, if any chunks have been put into it. */
void
IvfpqCalibMirrorFlush(IvfpqCalibMirror *mirror)
{
	if (mirror->builder == NULL || mirror->used == 0)
		return;
	if (!IvfpqBuilderLists(mirror->builder, mirror->nchunks, mirror->chunks,
						   mirror->used))
		give_up(mirror, true);
	mirror->used = 0;
	mirror->nchunks = 0;
}

/* Begins a list of npostings postings, which IvfpqCalibMirrorAdd will add. */
void
IvfpqCalibMirrorList(IvfpqCalibMirror *mirror, int list, uint32 npostings)
{
	GvChunk		chunk = {list, 0, gv_blocks_of(npostings), 0, {0, npostings, 0}};
	Size		bytes = gv_chunk_bytes(&chunk, mirror->code_bytes, 0);
	Size		most = GV_MAX_MESSAGE - sizeof(GvListsRequest);
	char	   *next;

	if (mirror->used + bytes > mirror->capacity)
		IvfpqCalibMirrorFlush(mirror);
	if (mirror->builder == NULL)
		return;
	if (bytes > most)
	{
		/* this list has most of the rows, and is too large for a message */
		give_up(mirror, false);
		return;
	}
	if (bytes > mirror->capacity)
	{
		mirror->capacity = most;
		mirror->chunks = repalloc_huge(mirror->chunks, mirror->capacity);
	}
	next = mirror->chunks + mirror->used;
	mirror->nchunks++;
	mirror->used += bytes;
	memset(next, 0, bytes);
	memcpy(next, &chunk, sizeof(chunk));
	mirror->arrays = gv_chunk_arrays((GvChunk *) next, 0);
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
	codes = mirror->arrays.codes + (Size) (i / GV_BLOCK) *
		mirror->code_bytes * GV_BLOCK + i % GV_BLOCK;
	mirror->arrays.live[i / GV_BLOCK] |= UINT32_C(1) << i % GV_BLOCK;
	mirror->arrays.t[i] = posting->t;
	memcpy(mirror->arrays.rowids + 3 * i, &posting->tid, sizeof(posting->tid));
	for (int b = 0; b < mirror->code_bytes; b++)
		codes[(Size) b * GV_BLOCK] = posting->code[b];
	mirror->count++;
}

/* Returns the entry of a row.  If the row is new, enters it as UNEXPECTED. */
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
 * Returns the part of grid->found that belongs to query q at a step: for each
 * neighbor of the query, the smallest width that finds it.
 */
static uint8 *
found_at(const IvfpqRecallGrid *grid, int q, int step)
{
	return grid->found + ((Size) q * grid->nsteps + step) *
		IVFPQ_GROUND_TRUTH_ROWS;
}

/*
 * Returns a new state for measuring grids, without a grid yet.  Memory comes
 * from the current context.  The leader lets gpuvecd do the searches if there
 * is a calibration mirror.
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
 * Lays out a grid, with steps from spec->least to spec->most lists, and widths
 * up to spec->most_width candidates.  Frees the arrays of the previous grid.
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

	/* enough for all postings of most_width rows and of the query's own row */
	grid->capacity = (spec->most_width + 1) *
		grid->search.model->meta.lists_per_row;

	/* measure_query() works in a context that is reset, so allocate here */
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
 * Records, for each neighbor of query q, the smallest width that finds the
 * neighbor at a step.  ids [n] are the rows of the postings found, nearest
 * first.  A width finds a neighbor if the neighbor's rank among the distinct
 * rows is below the width.  The row that the query was made of and copies of
 * this row take no rank, because a user's query has no such rows.
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

	/* Neighbors with equal scores are interchangeable: sort their widths. */
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
 * Merges the postings of *found into *sorted, and keeps the nearest `capacity`
 * postings.  Both arrays are in the order of gv_topk_sort, nearest first.
 * *sorted has memory for all postings of both arrays.
 */
static void
merge_postings(GvTopK *sorted, const GvTopK *found, int capacity)
{
	int			old = sorted->count - 1;
	int			new = found->count - 1;

	/* from the end, so that no posting is overwritten before it has moved */
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
 * A step searches the lists that a scan with the step's probes would search,
 * except those that an earlier step has searched.  A scan with fewer probes
 * compares fewer lists with the query, so it may choose other lists.
 *
 * The nearest `capacity` postings of all lists searched so far are among the
 * postings kept at the previous step and the nearest postings of this step.
 * So only the postings of this step have to be sorted.  Once `capacity`
 * postings are kept, a step can ignore postings with scores above the score of
 * the last posting kept.
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
		/* make_grid() has allocated memory for the lists of the last step */
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
 * Lets gpuvecd search for all queries.  Returns false if there is no
 * calibration mirror, if the grid has too many candidates for gpuvecd, or if
 * gpuvecd fails.
 */
static bool
measure_remote(IvfpqRecallGrid *grid)
{
	const IvfpqCalibration *calibration = grid->calibration;
	const IvfpqMetaData *meta = &grid->search.model->meta;
	const IvfpqGridSpec *spec = &grid->spec;
	uint64	   *ids = grid->sorted.ids;
	IvfpqRemoteQuery question = {
		.probes = grid->probes[grid->nsteps - 1],
		.capacity = grid->capacity
	};
	IvfpqGroundTruth *truths;
	IvfpqRemoteResult *answers;
	int			most;

	if (grid->mirror == NULL || !has_mirror(grid->mirror) ||
		grid->capacity > GV_MAX_HITS)
		return false;

	/*
	 * as many as the largest step allows; then all steps have the same
	 * queries
	 */
	most = Min(spec->nqueries, IvfpqMaxQueries(meta, &question, false));
	truths = palloc(most * sizeof(IvfpqGroundTruth));
	answers = palloc(most * sizeof(IvfpqRemoteResult));
	for (int first = 0; first < spec->nqueries; first += most)
	{
		question.n = Min(most, spec->nqueries - first);
		question.queries = calibration->levels[spec->level].queries +
			(Size) first * meta->dims;
		for (int i = 0; i < question.n; i++)
			grid->nneighbors[first + i] =
				IvfpqCalibrationGroundTruth(calibration, spec->level,
											first + i, &truths[i]);
		for (int step = 0; step < grid->nsteps; step++)
		{
			question.probes = grid->probes[step];
			question.compare = IvfpqListsToCompare(meta, question.probes,
												   grid->search.query.deep);
			if (!IvfpqBuilderSearch(grid->mirror->builder, &question, answers))
			{
				give_up(grid->mirror, true);
				break;
			}
			for (int i = 0; i < question.n; i++)
			{
				const IvfpqRemoteResult *answer = &answers[i];

				for (int j = 0; j < answer->head.nhits; j++)
					ids[j] = IvfpqWordsToId(answer->hits[j].rowid);
				if (truths[i].nneighbors > 0)
					note_found(grid, &truths[i], first + i, step, ids,
							   answer->head.nhits);
			}
			CHECK_FOR_INTERRUPTS();
		}
		if (grid->mirror->builder == NULL)
			break;
	}
	pfree(truths);
	pfree(answers);
	return grid->mirror->builder != NULL;
}

/*
 * Takes one query after another, and searches for it with every number of
 * lists.  Writes the results to the file, unless `file` is NULL.
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
 * Measures grids as long as the leader has grids to measure.  A worker calls
 * this.  *calibration has the nearest rows that this participant found.
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
 * Returns R, the number of neighbors that a query has at a depth, among the
 * rows that the grid's level looks at.
 */
static int
rows_needed_at(const IvfpqRecallGrid *grid, int depth)
{
	return ivfpq_depths[depth] / ivfpq_levels[grid->spec.level].stride;
}

/* Returns whether a depth's level has enough queries to measure a recall. */
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

/* Computes the Tally of the neighbors that each pair finds at a depth. */
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
 * Returns the recall of a pair: the lower end of its confidence interval, z
 * standard errors below the mean, or the recall of the last part if that is
 * less.  With N queries
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

	/* equal results of all queries would hide the variance */
	variance = Max(variance, mean * (1 - mean) / n);
	return Min(mean - z * sqrt(variance / n), last);
}

/*
 * Returns the smallest number of probes that reaches the recall with a width's
 * candidates, interpolated between steps, or 0 if no step reaches the recall.
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
 * Sets *target to the cheapest pair that reaches a recall.  Returns false if
 * no pair of the grid does.
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
 * Returns the position of the last of the ascending numbers [n] that does not
 * exceed the limit, or 0 if all exceed it.
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
 * Advances each query's Place past the rows that a scan returns at a depth.
 * The scan takes these rows from the results of a search with *target.
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
 * Finds all targets of the grid's level, and stores them in *meta.  Returns
 * the number of targets that this grid reaches, counting only targets for
 * recalls up to IVFPQ_SURE_RECALL.
 *
 * If the grid does not reach a recall at a depth, greater depths are not
 * tried.  A depth with too few queries to measure a recall is skipped.  At a
 * skipped depth, a scan takes the target for the next lower recall, and adds
 * probes and candidates.
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
		IvfpqTarget before = {0, 0};	/* target of the previous depth that
										 * was not skipped */

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
 * Measures a grid, by gpuvecd or by all participants, and stores the targets
 * of its level in *meta.  A pair reaches a recall if the mean recall less z
 * standard errors reaches it.  Returns the number of targets reached, as
 * find_targets does.  The leader calls this.  Before and after, workers wait
 * for the next phase.
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
				elog(ERROR, "unexpected end of temporary file");
	}
	shared->grid_spec.nqueries = 0;
	return find_targets(grid, z, meta);
}
