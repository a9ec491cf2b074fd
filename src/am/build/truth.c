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

const int	ivfpq_depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
const double ivfpq_recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

const IvfpqLevel ivfpq_levels[IVFPQ_LEVELS] = {
	{1, PG_INT32_MAX, 0, 2},
	{10, 200, 2, 4},
	{100, 50, 4, IVFPQ_DEPTHS}
};

/*
 * Begins to look for the rows nearest to each query of a training, `depth` of
 * them.  A query's own row and its copies are among these.  Memory from the
 * current context.
 */
IvfpqCalibration *
IvfpqCalibrationBegin(const IvfpqTraining *training)
{
	IvfpqCalibration *calibration = palloc0(sizeof(IvfpqCalibration));

	calibration->training = training;
	for (int level = 0; level < IVFPQ_LEVELS; level++)
	{
		IvfpqLevelTruth *truth = &calibration->levels[level];
		int			n = Min(training->nqueries, ivfpq_levels[level].nqueries);

		truth->nqueries = n;
		truth->queries = level == 0 ? training->queries : training->held_out;
		truth->nearest = palloc0(n * sizeof(GvTopK));
		for (int q = 0; q < n; q++)
			IvfpqTopKResize(&truth->nearest[q], training->depth);
		truth->own = palloc(n * sizeof(float));
		truth->margin = palloc(n * sizeof(float));
	}
	calibration->sampled = palloc((Size) SAMPLED_ROWS * training->gv.dims *
								  sizeof(float));
	calibration->sampled_ids = palloc(SAMPLED_ROWS * sizeof(uint64));
	return calibration;
}

/*
 * Offers transformed rows [n][dims] to the queries of a level: in the end,
 * every row of the index to those of level 0, once.
 */
void
IvfpqCalibrationOffer(IvfpqCalibration *calibration, int level,
					  const float *rows, const uint64 *ids, int64 n)
{
	const GvModel *gv = &calibration->training->gv;
	IvfpqLevelTruth *truth = &calibration->levels[level];

	IvfpqCheckStatus(gv_exact(gv->metric, gv->dims, truth->queries,
							  truth->nqueries, rows, n, ids, truth->nearest,
							  &ivfpq_stop));
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
		gv_topk_push(&calibration->levels[0].nearest[neighbors[i].query],
					 neighbors[i].score, ids[neighbors[i].row]);
}

/* Offers the sampled rows that wait. */
static void
flush_sampled(IvfpqCalibration *calibration)
{
	const GvModel *gv = &calibration->training->gv;
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
			IvfpqCalibrationOffer(calibration, level, rows, ids, n);
	}
}

/*
 * Offers a raw row [dims] that IvfpqLevelHas at the second level; each once.
 */
void
IvfpqCalibrationSample(IvfpqCalibration *calibration, const float *row,
					   uint64 id)
{
	int			dims = calibration->training->gv.dims;

	memcpy(calibration->sampled + (Size) calibration->nsampled * dims, row,
		   dims * sizeof(float));
	calibration->sampled_ids[calibration->nsampled++] = id;
	if (calibration->nsampled == SAMPLED_ROWS)
		flush_sampled(calibration);
}

/*
 * This participant has offered all its rows: offers the sampled ones that
 * still wait, and writes the rows that it found, for the other participants.
 */
void
IvfpqCalibrationFlush(IvfpqCalibration *calibration, IvfpqParallel *parallel)
{
	IvfpqTempFile file;

	flush_sampled(calibration);
	if (!parallel->has_workers)
		return;
	IvfpqTempFileBegin(&file, parallel, "truth", 1);
	for (int level = 0; level < IVFPQ_LEVELS; level++)
		for (int q = 0; q < calibration->levels[level].nqueries; q++)
		{
			GvTopK	   *heap = &calibration->levels[level].nearest[q];

			IvfpqTempFilePut(&file, 0, &heap->count, sizeof(heap->count));
			IvfpqTempFilePut(&file, 0, heap->scores,
							 heap->count * sizeof(float));
			IvfpqTempFilePut(&file, 0, heap->ids,
							 heap->count * sizeof(uint64));
		}
	IvfpqTempFileDone(&file);
}

/* Takes the rows that all other participants found. */
static void
take_others(IvfpqCalibration *calibration, IvfpqParallel *parallel)
{
	IvfpqTempFile files;
	float		scores[GV_MAX_DEPTH];
	uint64		ids[GV_MAX_DEPTH];

	IvfpqTempFileBegin(&files, parallel, "truth", 1);
	for (int from = 0; from < parallel->shared->size; from++)
	{
		if (from == parallel->me)
			continue;
		IvfpqTempFileOpen(&files, 0, from, from + 1);
		for (int level = 0; level < IVFPQ_LEVELS; level++)
			for (int q = 0; q < calibration->levels[level].nqueries; q++)
			{
				int32		n;

				if (!IvfpqTempFileRead(&files, &n, sizeof(n)) ||
					n > GV_MAX_DEPTH ||
					(n > 0 &&
					 (!IvfpqTempFileRead(&files, scores, n * sizeof(float)) ||
					  !IvfpqTempFileRead(&files, ids, n * sizeof(uint64)))))
					elog(ERROR, "a temporary file of the build ends early");
				for (int i = 0; i < n; i++)
					gv_topk_push(&calibration->levels[level].nearest[q],
								 scores[i], ids[i]);
			}
	}
	IvfpqTempFileEnd(&files);
}

/*
 * Returns whether a row with this TID and score is the one that query q of a
 * level was made of, or its copy.
 */
static bool
is_own(const IvfpqCalibration *calibration, const IvfpqLevelTruth *truth,
	   int q, uint64 id, float score)
{
	return id == calibration->training->query_ids[q] ||
		(!truth->has_copies &&
		 fabsf(score - truth->own[q]) <= truth->margin[q]);
}

/*
 * Counts the rows of a level that are known to be the nearest to a query, of
 * those found.  If the heap is full, and its last rows lie equally far, there
 * may be more rows at that distance, as of a vector that thousands of rows
 * have.  Such rows are left out: which of them a search finds is chance, and
 * finding some would hide that rows between them are missed.
 */
static int
count_known(const IvfpqLevelTruth *truth, const GvTopK *top)
{
	int			n = top->count;

	if (truth->has_copies || n < 2 || n < top->capacity ||
		top->scores[n - 2] != top->scores[n - 1])
		return n;
	while (n > 0 && top->scores[n - 1] == top->scores[top->count - 1])
		n--;
	return n;
}

/*
 * Sets *truth to that of query q: a level's rows nearest to it but the one that
 * it was made of and that one's copies.  Returns the number of these neighbors.
 */
int
IvfpqCalibrationGroundTruth(const IvfpqCalibration *calibration, int level,
							int q, IvfpqGroundTruth *truth)
{
	const IvfpqLevelTruth *found = &calibration->levels[level];
	const GvTopK *top = &found->nearest[q];
	int			known = count_known(found, top);

	truth->nneighbors = truth->nown = 0;
	for (int i = 0; i < top->count; i++)
		if (is_own(calibration, found, q, top->ids[i], top->scores[i]))
			truth->own[truth->nown++] = top->ids[i];
		else if (i < known && truth->nneighbors < IVFPQ_GROUND_TRUTH_ROWS)
		{
			truth->scores[truth->nneighbors] = top->scores[i];
			truth->neighbors[truth->nneighbors++] = top->ids[i];
		}
	return truth->nneighbors;
}

/*
 * All participants have offered their rows: determines the ground truth of
 * each query.  Where nearly no query has neighbors besides copies, more rows
 * are copies than are looked for, and copies count as neighbors, too.
 */
void
IvfpqCalibrationSettle(IvfpqCalibration *calibration, IvfpqParallel *parallel)
{
	const IvfpqTraining *training = calibration->training;
	const GvModel *gv = &training->gv;

	if (parallel->has_workers)
		take_others(calibration, parallel);
	for (int level = 0; level < IVFPQ_LEVELS; level++)
	{
		IvfpqLevelTruth *truth = &calibration->levels[level];

		for (int q = 0; q < truth->nqueries; q++)
		{
			const float *row = training->held_out + (Size) q * gv->dims;
			const float *query = truth->queries + (Size) q * gv->dims;
			uint64_t	id;
			GvTopK		own = {.capacity = 1, .scores = &truth->own[q],
			.ids = &id};

			gv_topk_sort(&truth->nearest[q]);
			truth->own[q] = 0;
			truth->margin[q] = -1;
			if (training->query_ids[q] == IVFPQ_NO_ROW)
				continue;
			IvfpqCheckStatus(gv_exact(gv->metric, gv->dims, query, 1, row, 1,
									  &training->query_ids[q], &own,
									  &ivfpq_stop));
			/* scores of copies may have been rounded otherwise */
			truth->margin[q] =
				(float) Min(SAME_SCORE * fabsf(truth->own[q]) +
							SAME_SQUARE * gv_square(row, gv->dims), FLT_MAX);
		}
		for (;;)
		{
			IvfpqGroundTruth ignored;

			truth->nknown = 0;
			for (int q = 0; q < truth->nqueries; q++)
				truth->nknown +=
					IvfpqCalibrationGroundTruth(calibration, level, q,
												&ignored) > 0;
			if (truth->has_copies ||
				truth->nknown >= truth->nqueries * LEAST_KNOWN)
				break;
			truth->has_copies = true;
		}
	}
}
