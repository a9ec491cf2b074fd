/*
 * truth.c
 *		Ground truth of calibration queries: their nearest rows, which are
 *		found by exact distance during a pass over the table.
 *
 * A calibration query is a row moved a little (train.c).  The query's own row,
 * and rows that equal this row, are left out of the query's answer.  At later
 * levels the rows themselves are the queries.  A user may also give queries.
 * The pass that places the rows of a build, or a pass of gpuvec_calibrate,
 * offers every row to all queries.
 *
 * For the first ten and the first hundred rows, all exact neighbors are found.
 * For the first ten thousand rows a sample is enough: if one row in a hundred
 * is drawn by its TID, the hundred drawn rows nearest to a query lie roughly
 * among the query's ten thousand nearest rows.  So each level looks for the
 * same number of neighbors, in a smaller part of the table than the previous
 * level.  Later levels have fewer queries, because each query costs more.
 *
 * Each participant of a build finds the neighbors among its own rows.  To get
 * the neighbors among all rows, participants pass the rows that they found to
 * one another, through temporary files.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "am/build/truth.h"
#include "am/common/enginecall.h"

/* Rows of the second level that are offered at once. */
#define SAMPLED_ROWS	256

/*
 * Rows that gpuvecd compares at once.  They take little memory there, so that
 * no mirror has to be evicted.
 */
#define PORTION_ROWS(dims)	((8 << 20) / (dims))

/*
 * Scores of equal vectors differ by at most SAME_SCORE times the score plus
 * SAME_SQUARE times the square of the vector.
 */
#define SAME_SCORE		1e-6
#define SAME_SQUARE		1e-12

/* Minimum fraction of the queries that must have neighbors besides copies. */
#define LEAST_KNOWN		0.1

const int	ivfpq_depths[IVFPQ_DEPTHS] = IVFPQ_DEPTH_ROWS;
const double ivfpq_recalls[IVFPQ_TARGETS] = IVFPQ_TARGET_RECALLS;

const IvfpqLevel ivfpq_levels[IVFPQ_LEVELS] = {
	{1, PG_INT32_MAX, 0, 2},
	{10, 100, 2, 4},
	{100, 32, 4, IVFPQ_DEPTHS}
};

/*
 * Begins to look for the training->depth rows nearest to each query of a
 * training, including the query's own row and its copies.  Memory comes from
 * the current context.
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
 * Offers transformed rows [n][dims] to the queries of a level.  Every row of
 * the index must be offered once to the queries of level 0.
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
 * Takes rows that gpuvecd found to be among the nearest so far.  ids are the
 * TIDs of all rows in the batch that gpuvecd has compared.
 */
void
IvfpqCalibrationTake(IvfpqCalibration *calibration,
					 const GvNeighbor *neighbors, int n, const uint64 *ids)
{
	for (int i = 0; i < n; i++)
		gv_topk_push(&calibration->levels[0].nearest[neighbors[i].query],
					 neighbors[i].score, ids[neighbors[i].row]);
}

/* Begins a portion of rows.  Returns false if gpuvecd failed. */
static bool
begin_portion(IvfpqCalibration *calibration)
{
	const IvfpqTraining *training = calibration->training;
	const IvfpqLevelTruth *truth = &calibration->levels[0];
	int			nrows = PORTION_ROWS(training->gv.dims);
	GvSetSpec	spec = {.kind = GV_SET_EXACT,
		.metric = training->gv.metric == GV_IP ? GV_SET_IP : GV_SET_L2,
		.dims = training->gv.dims, .k = training->depth,
	.nqueries = truth->nqueries, .nrows = nrows};

	if (calibration->portion_ids == NULL)
		calibration->portion_ids = palloc(nrows * sizeof(uint64));
	calibration->nportion = 0;
	calibration->portion = IvfpqRemoteSetBegin(&spec);
	return calibration->portion != NULL &&
		IvfpqRemoteSetPut(calibration->portion, GV_SET_QUERIES,
						  truth->queries, truth->nqueries);
}

/*
 * Takes the rows of the portion that are nearest to each query of level 0, and
 * ends the portion.  Called after the last row, too.  Returns false if gpuvecd
 * failed.
 */
bool
IvfpqCalibrationSent(IvfpqCalibration *calibration)
{
	IvfpqLevelTruth *truth = &calibration->levels[0];
	int			depth = calibration->training->depth;
	bool		is_l2 = calibration->training->gv.metric != GV_IP;
	int64		n = (int64) truth->nqueries * depth;
	int64	   *positions;
	double	   *distances;
	GvSetDone	done;
	bool		worked;

	if (calibration->portion == NULL)
		return true;
	positions = palloc(n * sizeof(int64));
	distances = palloc(n * sizeof(double));
	worked = IvfpqRemoteSetRun(calibration->portion, &done) &&
		IvfpqRemoteSetGet(calibration->portion, GV_SET_POSITIONS, 0, n,
						  positions) &&
		IvfpqRemoteSetGet(calibration->portion, GV_SET_DISTANCES, 0, n,
						  distances);
	for (int64 i = 0; worked && i < n; i++)
		if (positions[i] >= 0)
			gv_topk_push(&truth->nearest[i / depth], (float)
						 (is_l2 ? distances[i] * distances[i] : distances[i]),
						 calibration->portion_ids[positions[i]]);
	IvfpqRemoteSetEnd(calibration->portion);
	calibration->portion = NULL;
	pfree(positions);
	pfree(distances);
	return worked;
}

/*
 * Like IvfpqCalibrationOffer for level 0, but gpuvecd compares the rows with
 * the queries.  Only for queries that were not made of rows, because scores
 * are rounded in another way than that of a query's own row.  Returns false if
 * gpuvecd failed.  Then all rows must be offered to a new calibration.
 */
bool
IvfpqCalibrationSend(IvfpqCalibration *calibration, const float *rows,
					 const uint64 *ids, int64 n)
{
	if (calibration->portion != NULL &&
		calibration->nportion + n > PORTION_ROWS(calibration->training->gv.dims) &&
		!IvfpqCalibrationSent(calibration))
		return false;
	if (calibration->portion == NULL && !begin_portion(calibration))
		return false;
	memcpy(calibration->portion_ids + calibration->nportion, ids,
		   n * sizeof(uint64));
	calibration->nportion += n;
	return IvfpqRemoteSetPut(calibration->portion, GV_SET_ROWS, rows, n);
}

/* Offers the sampled rows that have not been offered yet. */
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

		/* move the rows that this level looks at to the front */
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

/* Offers a raw row [dims] of level 1 (IvfpqLevelHas).  Called once per row. */
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
 * Offers the sampled rows that are left, and passes the nearest rows found to
 * other participants.  Called when this participant has offered all its rows.
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

/* Takes the nearest rows that the other participants found. */
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
					elog(ERROR, "unexpected end of temporary file");
				for (int i = 0; i < n; i++)
					gv_topk_push(&calibration->levels[level].nearest[q],
								 scores[i], ids[i]);
			}
	}
	IvfpqTempFileEnd(&files);
}

/*
 * Returns whether a row with this TID and score is the row that query q was
 * made of, or a copy of that row.
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
 * Returns how many of the rows found for a query are certain to be the
 * nearest.  If as many rows were found as asked for, and the last two rows are
 * equally far, the table may have thousands more at that distance, all with
 * the same vector.  All rows at that distance are left out: a search finds
 * some by chance, and counting them would hide that the search misses other
 * neighbors.
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
 * Sets *truth to the ground truth of query q of a level: the nearest rows that
 * the level looks at, except the row that the query was made of and copies of
 * that row.  Returns the number of these neighbors.
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
 * Determines the ground truth of each query.  Called when all participants
 * have offered their rows.  If hardly any query has neighbors besides copies,
 * rows have more copies than we look for, and copies count as neighbors.
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
			/* scores of copies may have been rounded differently */
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
