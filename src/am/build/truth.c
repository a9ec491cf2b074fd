/*
 * truth.c
 *		Ground truth of calibration queries: their nearest rows, found by exact
 *		distance while a pass over the table goes on.
 *
 * Calibration queries are rows moved a little (train.c); a query's own row,
 * and rows that equal it, are left out of its answer.  At later levels the
 * rows themselves are queries.  Or a user gives queries.  The pass that places
 * the rows of a build, or one for gpuvec_calibrate, offers every row to all
 * queries.
 *
 * The first ten and the first hundred rows are all looked for.  Of the first
 * ten thousand a sample is enough: of one row in a hundred, drawn by their
 * TIDs, the hundred nearest lie there.  So each level looks for the same
 * number of neighbors, in a smaller part of the table, and with fewer queries,
 * because each costs more.
 *
 * Each participant of a build knows the neighbors among its own rows, and
 * calibration needs those among all; participants pass them to one another by
 * temporary files.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "am/build/truth.h"
#include "am/common/enginecall.h"

/* Rows of the second level offered at once. */
#define SAMPLED_ROWS	256

/*
 * Scores of equal vectors differ by no more than these fractions of
 * themselves, and of the vector's square.
 */
#define SAME_SCORE		1e-6
#define SAME_SQUARE		1e-12

/* Fraction of the queries that have to have neighbors besides copies. */
#define LEAST_KNOWN		0.1

const IvfpqLevel ivfpq_levels[IVFPQ_LEVELS] = {
	{1, PG_INT32_MAX, 0, 2},
	{10, 200, 2, 4},
	{100, 50, 4, IVFPQ_DEPTHS}
};

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

/* Writes the rows nearest to a query, in any order. */
static void
put_heap(IvfpqTempFile *file, GvTopK *heap)
{
	IvfpqTempFilePut(file, 0, &heap->count, sizeof(heap->count));
	IvfpqTempFilePut(file, 0, heap->scores, heap->count * sizeof(float));
	IvfpqTempFilePut(file, 0, heap->ids, heap->count * sizeof(uint64));
}

/* Writes the rows that this participant found, for the others. */
void
IvfpqGroundTruthExport(IvfpqCalibration *calibration, IvfpqParallel *parallel)
{
	IvfpqTempFile file;

	IvfpqTempFileBegin(&file, parallel, "truth", 1);
	for (int level = 0; level < IVFPQ_LEVELS; level++)
		for (int q = 0; q < IvfpqLevelQueries(calibration, level); q++)
			put_heap(&file, &calibration->ground_truth[level][q]);
	IvfpqTempFileDone(&file);
}

/* Takes the rows that another participant found for a query. */
static void
take_heap(BufFile *file, GvTopK *heap)
{
	float		scores[GV_MAX_DEPTH];
	uint64		ids[GV_MAX_DEPTH];
	int32		count;

	if (!IvfpqTempFileRead(file, &count, sizeof(count)))
		elog(ERROR, "a temporary file of the build ends early");
	if (count == 0)
		return;
	if (count > GV_MAX_DEPTH ||
		!IvfpqTempFileRead(file, scores, count * sizeof(float)) ||
		!IvfpqTempFileRead(file, ids, count * sizeof(uint64)))
		elog(ERROR, "a temporary file of the build ends early");
	for (int i = 0; i < count; i++)
		gv_topk_push(heap, scores[i], ids[i]);
}

/* Takes the rows that all other participants found. */
void
IvfpqGroundTruthImport(IvfpqCalibration *calibration, IvfpqParallel *parallel)
{
	IvfpqTempFile files;

	IvfpqTempFileBegin(&files, parallel, "truth", 1);
	for (int from = 0; from < parallel->shared->size; from++)
	{
		BufFile    *file;

		if (from == parallel->me)
			continue;
		file = IvfpqTempFileOpen(&files, 0, from);
		if (file == NULL)
			elog(ERROR, "a temporary file of the build is not there");
		for (int level = 0; level < IVFPQ_LEVELS; level++)
			for (int q = 0; q < IvfpqLevelQueries(calibration, level); q++)
				take_heap(file, &calibration->ground_truth[level][q]);
		IvfpqTempFileClose(&files, file);
	}
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
 * those found.  If the heap is full, and its last rows lie equally far, there
 * may be more rows at that distance, as of a vector that thousands of rows
 * have.  Such rows are left out: which of them a search finds is chance, and
 * finding some would hide that rows between them are missed.
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
 * Sets *ground_truth to that of query q: a level's rows nearest to it but the
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
 * Every row was offered: determines the ground truth of each query.  Where
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
