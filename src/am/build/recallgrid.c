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

#define MOST_TRIES		GV_MAX_TRIES	/* queries that gpuvecd gets at once */
#define MESSAGE_BYTES	((Size) 8 << 20)

/*
 * A sample can prove a recall if at least this many of its neighbors may be
 * missed.
 */
#define LEAST_MISSED	10

#define LAST_PART		0.2		/* of the ranks; targets hold there, too */

static const int depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
static const double recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

/* A row of an answer. */
typedef struct AnswerRow
{
	uint64		id;				/* IvfpqTidToId */
	uint32		round;			/* equals the table's, or the entry is free */
	int32		place;			/* >= 0: expected, and not seen yet */
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

/* The neighbors of a query that were found at a step of the grid. */
typedef struct GridFound
{
	uint8		widths[IVFPQ_GROUND_TRUTH_ROWS];	/* the first that finds
													 * each neighbor; nwidths:
													 * none does */
} GridFound;

struct IvfpqRecallGrid
{
	IvfpqCalibration *calibration;
	IvfpqParallel *parallel;
	IvfpqSearch search;
	MemoryContext tmp;			/* reset after every query */
	IvfpqGridSpec spec;			/* which the grid is laid out for */
	int			nsteps;
	int			probes[MAX_STEPS];
	int			nwidths;
	int			widths[MAX_WIDTHS]; /* candidates */

	IvfpqGroundTruth *ground_truth; /* of the current query */
	int			capacity;		/* postings that are kept of a query */
	GvTopK		sorted;			/* those so far, nearest first; memory for twice
								 * as many */
	AnswerRows	rows;			/* of the current answer */
	int		   *nneighbors;		/* [spec.nqueries]; 0: nothing to find */
	GridFound  *found;			/* [spec.nqueries][nsteps] */
};

/* How far strict order has come with a query. */
typedef struct Place
{
	double		returned;		/* neighbors returned */
	int			next;			/* the first neighbor after them */
} Place;

/* Neighbors that a depth's pairs find, summed over queries. */
typedef struct Tally
{
	int			nqueries;
	int			rows_needed;	/* neighbors of a query */
	int			nlast;			/* neighbors in the last part */
	double		sum[MAX_STEPS][MAX_WIDTHS];
	double		squares[MAX_STEPS][MAX_WIDTHS];
	double		last[MAX_STEPS][MAX_WIDTHS];
} Tally;

/* Ends this participant's part in the mirror. */
static void
end_mirror(IvfpqCalibMirror *mirror)
{
	IvfpqBuilderEnd(mirror->builder);
	mirror->builder = NULL;
}

/*
 * Notes that there will be no mirror.  Returns whether this participant is the
 * first to say so.
 */
static bool
mark_failed(IvfpqCalibMirror *mirror)
{
	return mirror->sharing == NULL ||
		pg_atomic_exchange_u32(&mirror->sharing->failed, 1) == 0;
}

/*
 * Ends the mirror after gpuvecd has failed.  A build needs nothing of gpuvecd
 * after the mirror.
 */
static void
give_up(IvfpqCalibMirror *mirror)
{
	if (mark_failed(mirror))
		ereport(NOTICE,
				(errmsg("gpuvecd could not calibrate index \"%s\": %s",
						RelationGetRelationName(mirror->index),
						IvfpqBuilderReason(mirror->builder)),
				 errdetail("It is calibrated without a card, which takes longer.")));
	end_mirror(mirror);
}

static void
begin_message(IvfpqCalibMirror *mirror)
{
	mirror->used = sizeof(GvListsRequest);
	memset(mirror->message, 0, mirror->used);
}

/*
 * Takes part in a mirror, if there is a builder; memory from the current
 * context.  Only the builder's owner begins the mirror.
 */
void
IvfpqCalibMirrorJoin(IvfpqCalibMirror *mirror, Relation index,
					 IvfpqBuilder *builder,
					 IvfpqSharing *sharing, int code_bytes)
{
	memset(mirror, 0, sizeof(*mirror));
	mirror->index = index;
	mirror->builder = builder;
	mirror->sharing = sharing;
	mirror->code_bytes = code_bytes;
	if (builder == NULL)
		return;
	mirror->capacity = MESSAGE_BYTES;
	mirror->message = palloc_extended(mirror->capacity, MCXT_ALLOC_HUGE);
	begin_message(mirror);
}

/* Begins the mirror, for `postings` postings and no more. */
void
IvfpqCalibMirrorBegin(IvfpqCalibMirror *mirror, int64 postings)
{
	if (mirror->builder != NULL &&
		!IvfpqBuilderCalibMirror(mirror->builder, postings))
		give_up(mirror);
}

/*
 * All participants have done their work of a phase: ends the mirror if gpuvecd
 * has failed one of them.
 */
void
IvfpqCalibMirrorAgree(IvfpqCalibMirror *mirror)
{
	if (mirror->builder != NULL && mirror->sharing != NULL &&
		pg_atomic_read_u32(&mirror->sharing->failed) != 0)
		end_mirror(mirror);
}

/* Sends the chunks that are there. */
void
IvfpqCalibMirrorFlush(IvfpqCalibMirror *mirror)
{
	if (mirror->builder == NULL || mirror->used == sizeof(GvListsRequest))
		return;
	if (IvfpqBuilderChunks(mirror->builder, mirror->message, mirror->used))
		begin_message(mirror);
	else
		give_up(mirror);
}

/* Begins a list of npostings postings, to be added by IvfpqCalibMirrorAdd. */
void
IvfpqCalibMirrorList(IvfpqCalibMirror *mirror, int list, uint32 npostings)
{
	int			nblocks = (npostings + GV_BLOCK - 1) / GV_BLOCK;
	GvChunk		chunk = {list, 0, nblocks, 0, {0, npostings, 0}};
	Size		bytes = gv_chunk_bytes(&chunk, mirror->code_bytes, 0);
	char	   *next;

	if (mirror->builder != NULL && mirror->used + bytes > mirror->capacity)
		IvfpqCalibMirrorFlush(mirror);
	if (mirror->builder == NULL)
		return;
	if (mirror->used + bytes > GV_MAX_MESSAGE)
	{
		/* only a list with most of the rows does not fit into a message */
		(void) mark_failed(mirror);
		end_mirror(mirror);
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

/*
 * Searches for transformed queries [n][dims].  Sets *nhits to [n] counts and
 * *tids to the hits' TIDs, side by side, best first; both are valid until the
 * next search.  Returns false if gpuvecd failed: there is no mirror any more.
 */
static bool
calib_mirror_search(IvfpqCalibMirror *mirror, const float *queries, int n,
					int dims,
					int probes, int compare, int capacity, const int32 **nhits,
					const ItemPointerData **tids)
{
	GvTryRequest request = {n, probes, compare, capacity};

	if (IvfpqBuilderTry(mirror->builder, &request, queries,
						n * dims * sizeof(float), nhits,
						(const char **) tids))
		return true;
	give_up(mirror);
	return false;
}

/* Forgets all rows. */
static inline void
forget_rows(AnswerRows *rows)
{
	if (++rows->round != 0)
		return;
	memset(rows->entries, 0, ((Size) rows->mask + 1) * sizeof(AnswerRow));
	rows->round = 1;
}

/*
 * Empties the table and gives it capacity for n rows; memory from the current
 * context.
 */
static inline void
resize_rows(AnswerRows *rows, int n)
{
	Size		entries = pg_nextpower2_32(2 * n);

	if (rows->entries)
		pfree(rows->entries);
	rows->entries = palloc_extended(entries * sizeof(AnswerRow),
									MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	rows->mask = entries - 1;
	rows->round = 1;			/* new memory is of round 0 */
}

/* Returns the entry of a row, or the free one that it would take. */
static inline AnswerRow *
find_row(const AnswerRows *rows, uint64 id)
{
	uint32		i = murmurhash32((uint32) id ^
								 (uint32) (id >> 32) * UINT32_C(0x9E3779B1));
	AnswerRow  *row = &rows->entries[i & rows->mask];

	while (row->round == rows->round && row->id != id)
		row = &rows->entries[++i & rows->mask];
	return row;
}

/* Expects a row at a place >= 0. */
static inline void
expect_row(AnswerRows *rows, uint64 id, int place)
{
	AnswerRow  *row = find_row(rows, id);

	row->id = id;
	row->round = rows->round;
	row->place = place;
}

/*
 * Returns whether the row is seen for the first time, and sets *place to where
 * it is expected, or -1.
 */
static inline bool
see_row(AnswerRows *rows, uint64 id, int *place)
{
	AnswerRow  *row = find_row(rows, id);
	bool		is_new = row->round != rows->round;

	*place = is_new ? -1 : row->place;
	row->id = id;
	row->round = rows->round;
	row->place = -1;
	return is_new || *place >= 0;
}

/* Begins, with no grid laid out; memory from the current context. */
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
	grid->capacity = (spec->most_width + 1) * meta->lists_per_row;

	/* here, because queries are searched in a context of their own */
	IvfpqTopKResize(&grid->search.lists, spec->most);
	IvfpqSearchOpen(&grid->search, grid->capacity);
	IvfpqTopKResize(&grid->sorted, 2 * grid->capacity);
	resize_rows(&grid->rows, grid->capacity + IVFPQ_GROUND_TRUTH_ROWS +
				grid->calibration->depth);
	if (grid->found != NULL)
	{
		pfree(grid->nneighbors);
		pfree(grid->found);
	}
	grid->nneighbors = palloc0(spec->nqueries * sizeof(int));
	grid->found = palloc_extended((Size) spec->nqueries * grid->nsteps *
								  sizeof(GridFound), MCXT_ALLOC_HUGE);
}

/* Finds the neighbors of query q. */
static void
find_ground_truth(const IvfpqRecallGrid *grid, int q,
				  IvfpqGroundTruth *ground_truth)
{
	IvfpqCalibrationGroundTruth(grid->calibration, grid->spec.level, q,
								ground_truth);
	grid->nneighbors[q] = ground_truth->nneighbors;
}

/*
 * Sorts the widths of neighbors with equal scores, so that those found first
 * take the first places: any of them is as good as another, rank for rank.
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
 * best first: a neighbor is found with a width's candidates if its rank among
 * distinct rows is below the width.  The row that the query was made of and
 * its copies, which users' queries do not have, take no rank.
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
	forget_rows(&grid->rows);
	for (int i = 0; i < ground_truth->nown; i++)
		(void) see_row(&grid->rows, ground_truth->own[i], &place);
	for (int i = 0; i < ground_truth->nneighbors; i++)
		expect_row(&grid->rows, ground_truth->neighbors[i], i);
	for (int i = 0; i < n; i++)
	{
		if (!see_row(&grid->rows, ids[i], &place))
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

	/* make_grid has given the lists capacity for the last step */
	search->lists.capacity = grid->probes[step];
	IvfpqNearestLists(search->index, search->model, &search->query, NULL, 1,
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

	find_ground_truth(grid, q, grid->ground_truth);
	IvfpqSearchQuery(&grid->search,
					 IvfpqLevelQuery(grid->calibration, grid->spec.level, q));
	gv_topk_reset(&grid->sorted);
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
 * Notes the results of queries q .. q + n - 1 at a step, hits side by side.
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
 * Does as measure_query for queries q .. q + n - 1 by gpuvecd; returns false
 * if gpuvecd failed.
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

		done = calib_mirror_search(mirror, IvfpqLevelQuery(calibration,
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
 * Searches for all queries by gpuvecd.  Returns false if there is no
 * calibration mirror, or it failed.
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
 * Searches for queries that no other participant has taken; writes the results
 * to the file, if there is one.
 */
static void
measure_local(IvfpqRecallGrid *grid, IvfpqTempFile *file)
{
	Size		bytes = grid->nsteps * sizeof(GridFound);
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

/* Takes the results of another participant. */
static void
take_found(IvfpqRecallGrid *grid, int from)
{
	Size		bytes = grid->nsteps * sizeof(GridFound);
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

void
IvfpqRecallGridEnd(IvfpqRecallGrid *grid)
{
	MemoryContextDelete(grid->tmp);
}

/*
 * A worker searches as long as the leader has grids measured; *calibration has
 * the ground truth of all participants.
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
		(1 - recall) * depths[depth] / ivfpq_levels[level].stride *
		grid->calibration->nknown[level] >=
		LEAST_MISSED * (1 - 1e-9);
}

/* Returns the results of query q at a step. */
static const uint8 *
found_at(const IvfpqRecallGrid *grid, int q, int step)
{
	return grid->found[q * grid->nsteps + step].widths;
}

/* Adds the neighbors after its place that query q finds with each pair. */
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
		int			counts[MAX_WIDTHS + 1] = {0};
		int			lasts[MAX_WIDTHS + 1] = {0};
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
 * Finds a target at all depths of the grid's level.  Returns how many are
 * within reach: after one that is not, none is.  A depth whose recall the
 * sample cannot prove is skipped: a scan takes more there than the target
 * below says.
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
 * those that every calibration determines are within reach of this grid.
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
