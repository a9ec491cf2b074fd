/*
 * rotation.c
 *		A rotation of an index's vectors, learned from the sample.
 *
 * Codes are made of residuals, so residuals decide.  Those of a few lists made
 * for this are as good as those of the index's lists, which do not exist yet:
 * from here on all vectors are rotated, those that lists are made of, too.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/train/train.h"

/* Rows to learn from, and their number for each list. */
#define MOST_ROWS		8192
#define ROWS_A_LIST		128
#define ITERATIONS		4
#define MAX_IMBALANCE		2.0

/* Times the usual length: a longer row is left out. */
#define OUTLIER			16.0

/* ERROR if the rows of an index that is to be rotated have too many dims. */
void
IvfpqRotationCheckDims(Relation index, int dims)
{
	if (IvfpqGetOptions(index)->rotate && dims > GV_MAX_ROTATED)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("option rotate takes %d dimensions at most, not %d",
						GV_MAX_ROTATED, dims),
				 errhint("Create the index without rotate.")));
}

/*
 * Returns how many of `count` rows the rotation is learned from: as many as a
 * quarter of the memory holds, besides what learning takes, which must fit
 * into half of it.
 */
static int64
choose_rows(const IvfpqTraining *training, int64 count)
{
	int			dims = training->gv.dims;
	Size		size = gv_learn_rotation_scratch(dims, training->gv.m) +
	(Size) dims * dims * sizeof(float);

	if (size > IvfpqMemoryLimit() / 2)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("learning a rotation of %d dimensions needs %zu MB, maintenance_work_mem is %d MB",
						dims, 2 * size / (1024 * 1024) + 1,
						maintenance_work_mem / 1024),
				 errhint("Set maintenance_work_mem higher, or create the index without rotate.")));
	return Max(1, Min(Min(count, MOST_ROWS),
					  (int64) (IvfpqMemoryLimit() / 4 /
							   (dims * sizeof(float)))));
}

/* Rows of the sample in the engine's space, those far outside left out. */
static int64
take_rows(const IvfpqTraining *training, const IvfpqSample *sample, int64 n,
		  float *rows)
{
	int			dims = training->gv.dims;
	int64		count = 0;

	for (int64 i = 0; i < n; i++)
	{
		float	   *row = rows + count * dims;

		gv_transform(&training->gv, sample->rows + i * dims, 1, row);
		if (-gv_distance_ip(row, row, dims) <= OUTLIER * OUTLIER)
			count++;
	}
	return count;
}

/* Turns rows [n][dims] into residuals to the nearest of a few centroids. */
static void
subtract_centroids(float *rows, int64 n, int dims)
{
	GvKmeans	spec = {.dims = dims, .n = n,
		.k = (int32) Max(1, n / ROWS_A_LIST),
		.iterations = ITERATIONS, .max_imbalance = MAX_IMBALANCE,
	.seed = IVFPQ_TRAINING_SEED};
	float	   *centroids = palloc((Size) spec.k * dims * sizeof(float));
	int32	   *nearest = palloc(n * sizeof(int32));
	int32		found;
	void	   *chunk;
	void	   *scratch = IvfpqAllocScratch(gv_kmeans_scratch(&spec), &chunk);

	IvfpqCheckStatus(gv_kmeans(&spec, rows, centroids, &found, scratch,
							   &ivfpq_stop));
	IvfpqCheckStatus(gv_assign(dims, centroids, found, rows, n, nearest, NULL,
							   &ivfpq_stop));
	for (int64 i = 0; i < n * dims; i++)
		rows[i] = gv_difference(rows[i],
								centroids[(Size) nearest[i / dims] * dims +
										  i % dims]);
	pfree(chunk);
	pfree(nearest);
	pfree(centroids);
}

/*
 * Learns the rotation from raw rows of the sample; mean, scale and the number
 * of sub-quantizers are known.
 */
void
IvfpqLearnRotation(IvfpqTraining *training, IvfpqParallel *parallel,
				   const IvfpqSample *sample)
{
	int			dims = training->gv.dims;
	int64		n = choose_rows(training, sample->count);
	float	   *rows = palloc_extended(n * dims * sizeof(float),
									   MCXT_ALLOC_HUGE);
	void	   *chunk;
	void	   *scratch;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CODES);
	n = take_rows(training, sample, n, rows);
	if (n > 0)
		subtract_centroids(rows, n, dims);
	else
	{
		/* all rows are outliers, of which nothing can be learned */
		memset(rows, 0, dims * sizeof(float));
		n = 1;
	}
	training->rotation = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_ROTATION,
											(Size) dims * dims * sizeof(float));
	scratch = IvfpqAllocScratch(gv_learn_rotation_scratch(dims,
														  training->gv.m),
								&chunk);
	IvfpqCheckStatus(gv_learn_rotation(dims, training->gv.m, rows, n,
									   training->rotation, scratch,
									   &ivfpq_stop));
	pfree(chunk);
	pfree(rows);
	training->gv.rotation = training->rotation;
	training->gv.rotation_error = gv_rotation_error(dims);
}
