/*
 * recallgrid.c
 *		Recall grids: the recall that calibration queries reach with each
 *		number of lists and candidates, and the cheapest pair for each target.
 *
 * We search for each query with ever more lists, in steps, and find the rank
 * of each exact neighbor among the candidates.  A search with a step's lists
 * finds the neighbor if this rank is below the search's number of candidates.
 * In a build, all participants take groups of queries, in phases that the
 * leader starts.  A group is searched together, so that a step reads each list
 * once for all queries of the group.
 *
 * Ranks are counted, so that nothing has to be sorted.  A query has at most
 * two hundred postings of neighbors, and a binary search among their scores
 * shows which of them a posting precedes.  One pass over the postings found
 * gives the ranks at all steps (count_ranks).
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
#include "utils/float.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/build/recallgrid.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
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
 * Maximum bytes of memory for the queries that a participant searches
 * together, and its maximum fraction of maintenance_work_mem.  One query may
 * take more.
 */
#define GROUP_BYTES		((Size) 32 << 20)
#define GROUP_DIVISOR	4

/* Maximum number of thresholds: a row has at most two postings. */
#define MAX_THRESHOLDS	(2 * IVFPQ_GROUND_TRUTH_ROWS)

/* A row in a RowTable. */
typedef struct RowEntry
{
	uint64		id;				/* IvfpqTidToId */
	uint32		round;			/* the entry is free unless this equals
								 * RowTable.round */
	int32		value;
} RowEntry;

/*
 * A hash table of rows, with open addressing, which is at most half full.  To
 * empty it, `round` is incremented: entries of older rounds are free.
 */
typedef struct RowTable
{
	uint32		mask;			/* number of entries in use - 1 */
	uint32		round;
	uint64		allocated;
	RowEntry   *entries;		/* [allocated] */
} RowTable;

/* Value of the query's own row and its copies, which take no rank. */
#define OWN_ROW			(-1)

/* A posting that a query's searches found. */
typedef struct FoundPosting
{
	uint64		id;				/* IvfpqTidToId of its row */
	float		score;
	int			step;			/* first step whose lists have it */
} FoundPosting;

/* A posting of a neighbor. */
typedef struct Threshold
{
	FoundPosting posting;
	int			neighbor;
} Threshold;

/*
 * The postings that the searches for a query have found.  A posting whose score
 * is above the reach of its step is left out, unless all neighbors precede it.
 */
typedef struct QueryFound
{
	IvfpqGroundTruth truth;
	int			nfound;			/* number of neighbors found */
	float		best[IVFPQ_GROUND_TRUTH_ROWS];	/* best score of a neighbor's
												 * postings; infinite if none
												 * is found */
	int			nthresholds;
	Threshold	thresholds[MAX_THRESHOLDS];
	float		reach[MAX_STEPS];	/* a search with the step's lists keeps no
									 * posting with a greater score */
	int64		npostings;
	int64		allocated;
	FoundPosting *postings;		/* [allocated] */
	int			nscores;
	float	   *scores;			/* [2 * capacity] the best `capacity` scores
								 * found, in no order */
} QueryFound;

struct IvfpqRecallGrid
{
	const IvfpqCalibration *calibration;
	IvfpqCalibMirror *mirror;	/* calibration mirror, or NULL */
	IvfpqParallel *parallel;
	IvfpqSearch search;			/* finds nearest lists */

	/* the current grid */
	MemoryContext memory;		/* has the arrays */
	IvfpqGridSpec spec;			/* size */
	int			nsteps;
	int			probes[MAX_STEPS];
	int			nwidths;
	int			widths[MAX_WIDTHS]; /* numbers of candidates */

	int			stride;			/* of the level */
	int			capacity;		/* maximum number of the level's postings to
								 * keep */
	int			group;			/* queries that are searched together */
	IvfpqSearch *searches;		/* [group] */
	GvTopK	   *nearest;		/* [group] nearest lists */
	MemoryContext tmp;			/* reset after every group */
	RowTable	rows;			/* rows of one query */
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

/*
 * Asks gpuvecd for the `ranked` lists nearest to each of queries [n][dims], and
 * sets lists [n] to them, nearest first.  Returns false if there is no mirror,
 * which may be NULL, or if gpuvecd fails.
 */
bool
IvfpqCalibMirrorRank(IvfpqCalibMirror *mirror, const IvfpqMetaData *meta,
					 const float *queries, int n, int ranked, GvTopK *lists)
{
	IvfpqRemoteQuery question = {
		.queries = queries,
		.n = n,
		.probes = ranked,
		.compare = meta->nlists,
		.capacity = 1
	};
	IvfpqRemoteResult *answers;

	if (mirror == NULL || !has_mirror(mirror) || ranked > GV_MAX_PROBES ||
		n > IvfpqMaxQueries(meta, &question, false))
		return false;
	answers = palloc(n * sizeof(IvfpqRemoteResult));
	if (!IvfpqBuilderSearch(mirror->builder, &question, answers))
	{
		give_up(mirror, true);
		return false;
	}
	for (int q = 0; q < n; q++)
	{
		lists[q].count = answers[q].head.nprobed;
		for (int i = 0; i < lists[q].count; i++)
		{
			lists[q].ids[i] = (uint64) answers[q].probed[i].list;
			lists[q].scores[i] = answers[q].probed[i].base;
		}
	}
	pfree(answers);
	return true;
}

/* Empties grid->rows, and makes room for n rows. */
static void
begin_rows(IvfpqRecallGrid *grid, int64 n)
{
	RowTable   *rows = &grid->rows;
	uint64		nentries = pg_nextpower2_64(2 * Max(n, 1));

	if (nentries > rows->allocated)
	{
		if (rows->entries != NULL)
			pfree(rows->entries);
		rows->entries =
			MemoryContextAllocExtended(grid->memory,
									   nentries * sizeof(RowEntry),
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
		rows->allocated = nentries;
		rows->round = 0;
	}
	rows->mask = (uint32) (nentries - 1);
	if (++rows->round == 0)
	{
		memset(rows->entries, 0, rows->allocated * sizeof(RowEntry));
		rows->round = 1;
	}
}

/* Returns the entry of a row, or the free entry where it would be. */
static inline RowEntry *
find_row(const RowTable *rows, uint64 id)
{
	uint32		i = murmurhash32((uint32) id ^
								 (uint32) (id >> 32) * UINT32_C(0x9E3779B1));
	RowEntry   *row = &rows->entries[i & rows->mask];

	while (row->round == rows->round && row->id != id)
		row = &rows->entries[++i & rows->mask];
	return row;
}

/* Sets a free entry that find_row returned. */
static inline void
enter_row(const RowTable *rows, RowEntry *row, uint64 id, int32 value)
{
	row->id = id;
	row->round = rows->round;
	row->value = value;
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
	grid->memory = AllocSetContextCreate(CurrentMemoryContext,
										 "gpuivfpq recall grid",
										 ALLOCSET_DEFAULT_SIZES);
	IvfpqSearchInit(&grid->search, index, model);
	return grid;
}

/*
 * Sets grid->group, and prepares to search for this many queries together.
 * There is a group for each participant at least, if there are enough queries.
 */
static void
prepare_group(IvfpqRecallGrid *grid)
{
	const IvfpqModel *model = grid->search.model;
	Size		nkept = grid->capacity;
	Size		bytes = gv_table_bytes(model->gv.m) +
	gv_scan_scratch(model->gv.m, grid->capacity) +
	nkept * (3 * sizeof(float) + sizeof(uint64) + 2 * sizeof(FoundPosting)) +
	(Size) grid->spec.most * 2 * (sizeof(float) + sizeof(uint64)) +
	model->meta.nlists / BITS_PER_BYTE;
	Size		most = Min(GROUP_BYTES, IvfpqMemoryLimit() / GROUP_DIVISOR /
						   grid->parallel->shared->nparts);
	int			share = (grid->spec.nqueries - 1) /
	grid->parallel->shared->size + 1;

	grid->group = (int) Max(1, Min(Min(share, IVFPQ_TOGETHER),
								   (int64) (most / bytes)));
	grid->searches = palloc(grid->group * sizeof(IvfpqSearch));
	grid->nearest = palloc0(grid->group * sizeof(GvTopK));
	grid->tmp = AllocSetContextCreate(CurrentMemoryContext,
									  "gpuivfpq calibration queries",
									  ALLOCSET_DEFAULT_SIZES);

	/* measure_group() works in a context that is reset, so allocate here */
	for (int i = 0; i < grid->group; i++)
	{
		IvfpqSearchInit(&grid->searches[i], grid->search.index, model);
		IvfpqTopKResize(&grid->searches[i].lists, grid->spec.most);
		IvfpqTopKResize(&grid->nearest[i], grid->spec.most);
		IvfpqSearchOpen(&grid->searches[i], grid->capacity);
	}
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
	MemoryContext oldcontext;

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

	/*
	 * enough for all postings of the level's share of most_width rows, and of
	 * the query's own row
	 */
	grid->stride = ivfpq_levels[spec->level].stride;
	grid->capacity = (spec->most_width / grid->stride + 2) *
		grid->search.model->meta.lists_per_row;

	MemoryContextReset(grid->memory);
	memset(&grid->rows, 0, sizeof(grid->rows));
	oldcontext = MemoryContextSwitchTo(grid->memory);
	grid->nneighbors = palloc0(spec->nqueries * sizeof(int));
	grid->found = palloc_extended((Size) spec->nqueries * grid->nsteps *
								  IVFPQ_GROUND_TRUTH_ROWS, MCXT_ALLOC_HUGE);
	MemoryContextSwitchTo(oldcontext);
}

/* Begins to take the postings that searches for query q find. */
static void
begin_query(IvfpqRecallGrid *grid, QueryFound *query, int q)
{
	query->nfound = query->nthresholds = 0;
	query->npostings = 0;
	for (int i = 0; i < IVFPQ_GROUND_TRUTH_ROWS; i++)
		query->best[i] = get_float4_infinity();
	grid->nneighbors[q] =
		IvfpqCalibrationGroundTruth(grid->calibration, grid->spec.level, q,
									&query->truth);
}

/* Makes room for n more postings.  Memory comes from the current context. */
static void
reserve_postings(QueryFound *query, int64 n)
{
	if (query->npostings + n <= query->allocated)
		return;
	query->allocated = Max(2 * query->allocated, query->npostings + n);
	query->postings = query->postings == NULL ?
		palloc_extended(query->allocated * sizeof(FoundPosting),
						MCXT_ALLOC_HUGE) :
		repalloc_huge(query->postings,
					  query->allocated * sizeof(FoundPosting));
}

/* Moves scores [n] below a limit to the front, and returns their number. */
static inline int
split_scores(float *scores, int n, float limit)
{
	int			nbelow = 0;

	/* without a branch, because its outcome could not be predicted */
	for (int i = 0; i < n; i++)
	{
		float		moved = scores[i];

		scores[i] = scores[nbelow];
		scores[nbelow] = moved;
		nbelow += moved < limit;
	}
	return nbelow;
}

/*
 * Moves the best k of scores [n >= k >= 1] to the front, and returns the
 * farthest of them.
 */
static float
select_scores(float *scores, int n, int k)
{
	for (;;)
	{
		float		pivot = scores[n / 2];
		int			nbelow = split_scores(scores, n, pivot);
		int			nsame;

		if (k <= nbelow)
		{
			n = nbelow;
			continue;
		}
		scores += nbelow;
		nsame = split_scores(scores, n - nbelow,
							 nextafterf(pivot, get_float4_infinity()));
		if (k <= nbelow + nsame)
			return pivot;
		scores += nsame;
		n -= nbelow + nsame;
		k -= nbelow + nsame;
	}
}

/* Enters the query's own rows and its neighbors into grid->rows. */
static void
enter_truth(IvfpqRecallGrid *grid, const IvfpqGroundTruth *truth)
{
	begin_rows(grid, GV_MAX_DEPTH + IVFPQ_GROUND_TRUTH_ROWS);
	for (int i = 0; i < truth->nown; i++)
		enter_row(&grid->rows, find_row(&grid->rows, truth->own[i]),
				  truth->own[i], OWN_ROW);
	for (int i = 0; i < truth->nneighbors; i++)
		enter_row(&grid->rows, find_row(&grid->rows, truth->neighbors[i]),
				  truth->neighbors[i], i);
}

/*
 * Takes a posting that a query's search has found.  grid->rows has the rows of
 * enter_truth.  The row that the query was made of and copies of this row are
 * left out, because a user's query has no such rows.
 */
static inline void
take_posting(const IvfpqRecallGrid *grid, QueryFound *query, float score,
			 uint64 id, int step)
{
	const RowEntry *row = find_row(&grid->rows, id);
	FoundPosting posting = {id, score, step};

	if (row->round == grid->rows.round)
	{
		int			i = row->value;

		if (i == OWN_ROW)
			return;
		query->nfound += isinf(query->best[i]);
		query->best[i] = Min(query->best[i], score);
		if (query->nthresholds < MAX_THRESHOLDS)
		{
			query->thresholds[query->nthresholds].posting = posting;
			query->thresholds[query->nthresholds++].neighbor = i;
		}
	}
	query->postings[query->npostings++] = posting;
}

/* Returns whether posting a precedes posting b in the order of results. */
static inline bool
precedes(const FoundPosting *a, const FoundPosting *b)
{
	return a->score < b->score || (a->score == b->score && a->id < b->id);
}

static int
compare_thresholds(const void *a, const void *b)
{
	const Threshold *left = a;
	const Threshold *right = b;

	return precedes(&left->posting, &right->posting) ? -1 :
		precedes(&right->posting, &left->posting) ? 1 : 0;
}

/*
 * Records, for each neighbor of query q and each step, the smallest width that
 * finds the neighbor.  A width finds a neighbor if the neighbor's rank is
 * below the width: the number of other rows that have a posting in the step's
 * lists before the neighbor's best one.  If the level looks at one row in
 * `stride`, a width has width / stride of these rows.
 *
 * counts[s][t] is the number of postings that step s adds between threshold
 * t - 1 and threshold t.  If both postings of a row precede a threshold, the
 * row must count once, from the step on that has both.  So one is subtracted
 * where the later step and the later threshold of the two meet.
 */
static void
count_ranks(IvfpqRecallGrid *grid, QueryFound *query, int q)
{
	const IvfpqGroundTruth *truth = &query->truth;
	Threshold  *thresholds = query->thresholds;
	int			n = query->nthresholds;
	bool		twice = grid->search.model->meta.lists_per_row > 1;
	int			counts[MAX_STEPS][MAX_THRESHOLDS];
	int			ranks[MAX_THRESHOLDS] = {0};
	float		scores[MAX_THRESHOLDS]; /* of the thresholds */
	int64		nbefore = 0;

	qsort(thresholds, n, sizeof(Threshold), compare_thresholds);
	for (int t = 0; t < n; t++)
		scores[t] = thresholds[t].posting.score;
	for (int s = 0; s < grid->nsteps; s++)
		memset(counts[s], 0, n * sizeof(int));
	for (int64 p = 0; p < query->npostings && n > 0; p++)
	{
		const FoundPosting *last = &thresholds[n - 1].posting;

		query->postings[nbefore] = query->postings[p];
		nbefore += precedes(&query->postings[p], last);
	}
	if (twice)
		begin_rows(grid, nbefore);
	for (int64 p = 0; p < nbefore; p++)
	{
		const FoundPosting *posting = &query->postings[p];
		int			step = posting->step;
		int			low = 0;

		/* find the first threshold that the posting precedes */
		for (int left = n; left > 1; left -= left / 2)
			low += scores[low + left / 2 - 1] <= posting->score ? left / 2 : 0;
		while (low > 0 && precedes(posting, &thresholds[low - 1].posting))
			low--;
		counts[step][low]++;
		if (twice)
		{
			RowEntry   *row = find_row(&grid->rows, posting->id);

			if (row->round != grid->rows.round)
				enter_row(&grid->rows, row, posting->id,
						  step * MAX_THRESHOLDS + low);
			else
				counts[Max(step, row->value / MAX_THRESHOLDS)]
					[Max(low, row->value % MAX_THRESHOLDS)]--;
		}
	}

	for (int s = 0; s < grid->nsteps; s++)
	{
		uint8	   *widths = found_at(grid, q, s);
		bool		seen[IVFPQ_GROUND_TRUTH_ROWS] = {false};
		int			width = 0;
		int			rank = 0;

		memset(widths, grid->nwidths, IVFPQ_GROUND_TRUTH_ROWS);
		for (int t = 0; t < n; t++)
		{
			const Threshold *threshold = &thresholds[t];

			ranks[t] += counts[s][t];
			rank += ranks[t];
			if (threshold->posting.step > s || seen[threshold->neighbor] ||
				threshold->posting.score > query->reach[s])
				continue;
			seen[threshold->neighbor] = true;
			while (width < grid->nwidths &&
				   (rank + 1) * grid->stride > grid->widths[width])
				width++;
			widths[threshold->neighbor] = width;
		}

		/* neighbors with equal scores are interchangeable: sort their widths */
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
}

/*
 * Fills grid->nearest [n] with the lists nearest to vectors [n] that a scan
 * with the step's probes would search.  A scan with fewer probes compares
 * fewer lists with the query, so it may choose other lists.  From the first
 * step on that compares all lists, the lists of each step are the first of
 * those of the last step.  That holds but for few lists if they are chosen by
 * codes (search/README).  *all says whether grid->nearest has these.
 */
static void
find_nearest(IvfpqRecallGrid *grid, const float *const *vectors, int n,
			 int step, bool *all)
{
	const IvfpqModel *model = grid->search.model;
	IvfpqQuery *query = &grid->search.query;

	if (*all)
		return;
	*all = IvfpqListsToCompare(&model->meta, grid->probes[step],
							   query->deep) == model->meta.nlists;
	for (int i = 0; i < n; i++)
		grid->nearest[i].capacity = grid->probes[*all ? grid->nsteps - 1 : step];
	IvfpqNearestLists(grid->search.index, model, query, vectors, n,
					  grid->nearest);
}

/* IvfpqPostingChoice.  Chooses the postings of the rows of a level. */
static uint32
choose_sampled(int level, const IvfpqBlockView *view)
{
	uint32		chosen = 0;

	for (uint32 live = view->live; live != 0; live &= live - 1)
	{
		int			i = pg_rightmost_one_pos32(live);

		if (IvfpqLevelHas(level, IvfpqTidToId(&view->tids[i])))
			chosen |= UINT32_C(1) << i;
	}
	return chosen;
}

/*
 * Searches for queries first .. first + n - 1 with every number of lists of
 * the grid.
 *
 * A step searches the lists that a scan with the step's probes would search,
 * except those that an earlier step has searched.  Postings are ignored if
 * they cannot be among the best `capacity` of all lists searched so far, or if
 * all neighbors of the query have been found and precede them.
 */
static void
measure_group(IvfpqRecallGrid *grid, int first, int n)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(grid->tmp);
	QueryFound *queries = palloc0(n * sizeof(QueryFound));
	const float *vectors[IVFPQ_TOGETHER];
	Bitmapset  *searched[IVFPQ_TOGETHER] = {NULL};
	bool		all = false;

	for (int i = 0; i < n; i++)
	{
		IvfpqSearch *search = &grid->searches[i];

		vectors[i] = grid->calibration->levels[grid->spec.level].queries +
			(Size) (first + i) * search->model->meta.dims;
		IvfpqSearchQuery(search, vectors[i]);
		(void) IvfpqQueryTable(&search->query);
		begin_query(grid, &queries[i], first + i);
		queries[i].scores = palloc_extended(2 * (Size) grid->capacity *
											sizeof(float), MCXT_ALLOC_HUGE);
	}
	for (int step = 0; step < grid->nsteps; step++)
	{
		CHECK_FOR_INTERRUPTS();
		find_nearest(grid, vectors, n, step, &all);
		for (int i = 0; i < n; i++)
		{
			IvfpqSearch *search = &grid->searches[i];
			QueryFound *query = &queries[i];
			const GvTopK *nearest = &grid->nearest[i];
			int			nnew = 0;

			for (int l = 0; l < Min(nearest->count, grid->probes[step]) &&
				 query->truth.nneighbors > 0; l++)
			{
				int			list = (int) nearest->ids[l];

				if (bms_is_member(list, searched[i]))
					continue;
				searched[i] = bms_add_member(searched[i], list);
				search->lists.scores[nnew] = nearest->scores[l];
				search->lists.ids[nnew++] = list;
			}
			search->lists.count = nnew;
			IvfpqSearchOpen(search, grid->capacity);
			query->reach[step] = step > 0 ? query->reach[step - 1] :
				GV_SCORE_MAX;
			search->scan.reach = query->reach[step];
			if (query->nfound == query->truth.nneighbors)
			{
				float		farthest = -GV_SCORE_MAX;

				for (int j = 0; j < query->nfound; j++)
					farthest = Max(farthest, query->best[j]);
				search->scan.reach = Min(farthest, search->scan.reach);
			}
		}
		IvfpqSearchListsTogether(grid->searches, n,
								 grid->spec.level > 0 ? choose_sampled : NULL,
								 grid->spec.level);
		for (int i = 0; i < n; i++)
		{
			GvTopK	   *found = &grid->searches[i].candidates;
			QueryFound *query = &queries[i];

			IvfpqSearchSettle(&grid->searches[i]);
			if (found->count == 0)
				continue;
			memcpy(query->scores + query->nscores, found->scores,
				   found->count * sizeof(float));
			query->nscores += found->count;
			if (query->nscores >= grid->capacity)
			{
				query->reach[step] = select_scores(query->scores,
												   query->nscores,
												   grid->capacity);
				query->nscores = grid->capacity;
			}
			reserve_postings(query, found->count);
			enter_truth(grid, &query->truth);
			for (int j = 0; j < found->count; j++)
				take_posting(grid, query, found->scores[j], found->ids[j],
							 step);
		}
	}
	for (int i = 0; i < n; i++)
		count_ranks(grid, &queries[i], first + i);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(grid->tmp);
}

/*
 * Lets gpuvecd search for all queries, each once, with the last step's lists.
 * gpuvecd compares all lists, so the number of a hit's probe shows from which
 * step on a search has the hit.  Returns false if there is no calibration
 * mirror, if the grid has too many candidates for gpuvecd, or if gpuvecd
 * fails.
 *
 * A hit that is not among the best `capacity` of the last step is not known,
 * though an earlier step might have kept it.  So a neighbor of such a rank
 * counts as missing at all steps.
 */
static bool
measure_remote(IvfpqRecallGrid *grid)
{
	const IvfpqMetaData *meta = &grid->search.model->meta;
	const IvfpqGridSpec *spec = &grid->spec;
	IvfpqRemoteQuery question = {
		.probes = spec->most,
		.compare = meta->nlists,
		.capacity = (spec->most_width + 1) * meta->lists_per_row
	};
	QueryFound *query;
	IvfpqRemoteResult *answers;
	int			most;

	if (grid->mirror == NULL || !has_mirror(grid->mirror) ||
		question.capacity > GV_MAX_HITS)
		return false;

	query = palloc0(sizeof(QueryFound));
	for (int step = 0; step < grid->nsteps; step++)
		query->reach[step] = GV_SCORE_MAX;
	most = Min(spec->nqueries, IvfpqMaxQueries(meta, &question, false));
	answers = palloc(most * sizeof(IvfpqRemoteResult));
	for (int first = 0; first < spec->nqueries; first += most)
	{
		CHECK_FOR_INTERRUPTS();
		question.n = Min(most, spec->nqueries - first);
		question.queries = grid->calibration->levels[spec->level].queries +
			(Size) first * meta->dims;
		if (!IvfpqBuilderSearch(grid->mirror->builder, &question, answers))
		{
			give_up(grid->mirror, true);
			break;
		}
		for (int i = 0; i < question.n; i++)
		{
			const IvfpqRemoteResult *answer = &answers[i];

			begin_query(grid, query, first + i);
			reserve_postings(query, answer->head.nhits);
			enter_truth(grid, &query->truth);
			for (int j = 0; j < answer->head.nhits; j++)
			{
				const GvHit *hit = &answer->hits[j];
				uint64		id = IvfpqWordsToId(hit->rowid);
				int			step = 0;

				if (!IvfpqLevelHas(spec->level, id))
					continue;
				while (hit->probe >= (uint32) grid->probes[step])
					step++;
				take_posting(grid, query, hit->score, id, step);
			}
			count_ranks(grid, query, first + i);
		}
	}
	if (query->postings != NULL)
		pfree(query->postings);
	pfree(query);
	pfree(answers);
	return grid->mirror->builder != NULL;
}

/*
 * Takes one group of queries after another, and searches for them with every
 * number of lists.  Writes the results to the file, unless `file` is NULL.
 */
static void
measure_local(IvfpqRecallGrid *grid, IvfpqTempFile *file)
{
	Size		bytes = (Size) grid->nsteps * IVFPQ_GROUND_TRUTH_ROWS;
	int			nqueries = grid->spec.nqueries;
	MemoryContext oldcontext = MemoryContextSwitchTo(grid->memory);
	int64		taken;

	prepare_group(grid);
	MemoryContextSwitchTo(oldcontext);
	while (IvfpqParallelNext(grid->parallel,
							 (nqueries - 1) / grid->group + 1, &taken))
	{
		int			first = (int) taken * grid->group;
		int			end = Min(first + grid->group, nqueries);

		measure_group(grid, first, end - first);
		for (int q = first; q < end && file != NULL; q++)
		{
			if (grid->nneighbors[q] == 0)
				continue;
			IvfpqTempFilePut(file, 0, &q, sizeof(q));
			IvfpqTempFilePut(file, 0, &grid->nneighbors[q], sizeof(int));
			IvfpqTempFilePut(file, 0, found_at(grid, q, 0), bytes);
		}
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
