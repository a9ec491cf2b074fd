/*
 * train.c
 *		From a sample of the table to centroids and codebooks.
 *
 * The sample (sample.c) takes a quarter of maintenance_work_mem.  Mean, scale,
 * parents and codebooks come from it; lists too when they are few, else from
 * rows that are read again, more than the sample has where it is not the whole
 * table (cluster.c).  A few rows are held out, of which calibration queries
 * are made.
 */
#include "postgres.h"

#include <math.h>

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/search.h"
#include "am/train/train.h"
#include "am/types/keys.h"

#define MIN_SAMPLES				4	/* rows of the sample for each list that
									 * is trained on them */
#define FIT_VALUES				((int64) 1 << 24)	/* floats that mean and
													 * scale need */
#define REMOTE_SAMPLE			12288	/* rows */

/* Calibration queries: the most, and the rows for each query; */
#define MAX_QUERIES				1000	/* IVFPQ_LEAST_QUERIES at least */
#define ROWS_PER_QUERY			150

/*
 * An index waits where no larger fraction of its rows differs from the others.
 */
#define NEARLY_ONE				0.01

/*
 * Returns the number of centroids to make of the sample: lists, or parents
 * where there are any.
 */
static int
from_sample(int lists)
{
	return IvfpqParents(lists) > 1 ? IvfpqParents(lists) : lists;
}

/*
 * Returns how many lists to train.  A number that we choose leaves three
 * quarters of the memory to all else, and a few rows of the sample to each
 * list if it is trained on these alone.  A number that the user asks for must
 * fit: the centroids in half of the memory, and a few rows for each one of the
 * upper level in the sample.
 */
static int
choose_lists(Relation index, const IvfpqSample *sample, double rows)
{
	int			given = IvfpqGetOptions(index)->lists;
	int			lists = given > 0 ? given : IvfpqDefaultLists(rows);
	Size		centroid = sample->dims * sizeof(float);
	double		upper;
	Size		size;

	lists = (int) Min(lists, Max(rows, 1));
	if (given == 0)
	{
		lists = (int) Min((Size) lists, IvfpqMemoryLimit() / 4 / centroid);
		if (!sample->whole && IvfpqParents(lists) == 1)
			lists = (int) Min(lists, sample->count / MIN_SAMPLES);
		return Max(1, lists);
	}

	upper = Min((double) from_sample(lists) * MIN_SAMPLES, sample->seen);
	size = centroid * (Size) Max(2.0 * lists, 4.0 * upper);
	if (size > IvfpqMemoryLimit())
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("training %d lists of %d dimensions needs %zu MB, maintenance_work_mem is %d MB",
						lists, sample->dims, size / (1024 * 1024) + 1,
						maintenance_work_mem / 1024),
				 errhint("Set maintenance_work_mem higher, or use fewer lists.")));
	return lists;
}

/*
 * Returns the maintenance_work_mem that `lists` lists take, if we choose the
 * number: a quarter of it holds their centroids, or the sample that they are
 * trained on.
 */
Size
IvfpqMemoryForLists(int lists, int dims)
{
	Size		rows = IvfpqParents(lists) > 1 ? lists : lists * MIN_SAMPLES;

	return 4 * rows * (dims * sizeof(float) + sizeof(uint64));
}

/* Returns the number of calibration queries of an index; 0 = too few rows. */
int
IvfpqCalibrationQueries(double rows)
{
	if (rows < 2 * IVFPQ_LEAST_QUERIES)
		return 0;
	return (int) Max(IVFPQ_LEAST_QUERIES, Min(MAX_QUERIES, rows / ROWS_PER_QUERY));
}

/*
 * Returns whether nearly all of `rows` rows equal one vector, and the others
 * are fewer than an index is trained on.  Such an index waits: a default, or
 * another placeholder, says nothing of the vectors that will take its place.
 */
bool
IvfpqIsNearlyOne(double others, double rows, int least)
{
	return others < least && others <= rows * NEARLY_ONE;
}

/*
 * Takes rows out of the sample, half of them at most.  Training does not see
 * them; the calibration queries made of them tell how well the index answers
 * queries.  Takes none where these would be too few, or where the sample or
 * the table would have less than a row for each centroid that is made of it.
 */
static void
hold_out_queries(IvfpqTraining *training, IvfpqParallel *parallel,
				 IvfpqSample *sample, int lists)
{
	double		rows = Max(sample->seen, training->rows);
	int			n = (int) Min(IvfpqCalibrationQueries(rows),
							  sample->count / 2);
	IvfpqHeldOut held;
	Size		bytes;

	if (n < IVFPQ_LEAST_QUERIES || sample->count - n < from_sample(lists) ||
		rows - n < lists)
		return;
	IvfpqHoldOut(sample, n, rows, &held);
	bytes = (Size) held.n * sample->dims * sizeof(float);
	training->nqueries = held.n;
	training->depth = held.depth;
	training->queries =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_QUERIES, bytes);
	training->held_out =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_HELD_OUT, bytes);
	training->query_ids =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_QUERY_IDS,
						   held.n * sizeof(uint64));
	IvfpqMakeCalibrationQueries(sample, &held, training->queries,
								training->held_out,
								training->query_ids);

	sample->count -= held.taken;
	memmove(sample->rows, sample->rows + (Size) held.taken * sample->dims,
			sample->count * sample->dims * sizeof(float));
	memmove(sample->ids, sample->ids + held.taken,
			sample->count * sizeof(uint64));
	/* users of the first rows need each as often as the table has it */
	if (sample->ndistinct < sample->count + held.taken)
		IvfpqSampleShuffle(sample);
}

/* Find mean and scale, from the sample. */
static void
fit_transform(IvfpqTraining *training, IvfpqParallel *parallel,
			  const IvfpqSample *sample)
{
	int			dims = sample->dims;

	training->mean = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_MEAN,
										dims * sizeof(float));
	gv_fit_transform(training->gv.metric, dims, sample->rows,
					 Min(sample->count, FIT_VALUES / dims), training->mean,
					 &training->gv.scale);
	training->gv.mean = training->mean;
}

/* Residuals of the rows [n] in each of their lists; returns how many. */
static int64
residuals_of(IvfpqTraining *training, const float *rows, int64 n,
			 float *residuals)
{
	int			dims = training->gv.dims;
	int			lists_per_row = training->lists_per_row;
	int32	   *lists = palloc(n * lists_per_row * sizeof(int32));
	int64		count = 0;
	GvGroups	groups;
	void	   *memory = IvfpqAllocGroups(training, &groups);
	void	   *chunk;
	void	   *scratch = IvfpqAllocScratch(gv_place_scratch(&groups, n, lists_per_row),
											&chunk);

	IvfpqCheckStatus(gv_place(&groups, rows, n, lists_per_row, lists, scratch,
							  &ivfpq_stop));
	for (int64 i = 0; i < n * lists_per_row; i++)
	{
		const float *row = rows + i / lists_per_row * dims;
		const float *centroid = training->centroids + (Size) lists[i] * dims;

		if (lists[i] < 0)
			continue;
		for (int d = 0; d < dims; d++)
			residuals[count * dims + d] = gv_difference(row[d], centroid[d]);
		count++;
	}
	pfree(chunk);
	pfree(memory);
	pfree(lists);
	return count;
}

/* Codebooks, from residuals of the sample. */
static void
train_codebooks(IvfpqTraining *training, IvfpqParallel *parallel,
				const IvfpqSample *sample)
{
	int			dims = sample->dims;
	int64		n = Min(sample->count, GV_CODEBOOK_ROWS);
	float	   *residuals;
	void	   *chunk;
	void	   *scratch;

	residuals =
		palloc_extended(n * training->lists_per_row * dims * sizeof(float),
						MCXT_ALLOC_HUGE);
	n = residuals_of(training, sample->rows, n, residuals);
	training->codebooks =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_CODEBOOKS,
						   (Size) GV_CODEWORDS * dims *
						   sizeof(float));
	scratch = IvfpqAllocScratch(gv_codebooks_scratch(dims, training->gv.m, n),
								&chunk);
	IvfpqCheckStatus(gv_codebooks(dims, training->gv.m, n, residuals,
								  IVFPQ_TRAINING_SEED, training->codebooks,
								  scratch, &ivfpq_stop));
	pfree(chunk);
	pfree(residuals);
	training->gv.codebooks = training->codebooks;
}

/*
 * Sub-quantizers: the option, checked against the dimension, or the default.
 */
static int
choose_pq_dim(Relation index, int dims)
{
	int			given = IvfpqGetOptions(index)->pq_dim;
	IvfpqKeys	keys;
	int			most;

	IvfpqKeysInit(&keys, index);
	most = Min(dims, IvfpqMaxPqDim(&keys.form));
	if (given > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("pq_dim %d is too large for %d dimensions", given, dims),
				 errhint("Use %d at most, or 0 to let it follow from the dimension.",
						 most)));
	if (given > 0)
		return given;
	return IvfpqDefaultPqDim(dims, IvfpqGetOptions(index)->refine !=
							 IVFPQ_REFINE_NONE, &keys.form);
}

/*
 * Returns whether gpuvecd can train on the sample, and encode its rows.  It
 * cannot if the record of one must bound nothing, which gpuvecd cannot know.
 */
static bool
may_send_sample(IvfpqReader *reader)
{
	const IvfpqSample *sample = reader->sample;

	for (int64 i = 0; i < sample->count; i++)
		if (!IvfpqMaySend(reader, sample->rows + i * sample->dims))
			return false;
	return true;
}

/* Trains lists and codebooks by the backend's own engine. */
static void
train_here(IvfpqTraining *training, IvfpqParallel *parallel,
		   IvfpqSample *sample,
		   IvfpqReader *reader, int lists)
{
	int64		rows_needed = (int64) lists * IVFPQ_SAMPLES_PER_LIST;
	int64		n;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CLUSTERING);
	IvfpqTransformRows(training, sample->rows, sample->count);
	reader->transform = true;
	n = Min(sample->count, Max(rows_needed, GV_CODEBOOK_ROWS));
	reader->rows_needed = sample->whole ? (int64) sample->seen : rows_needed;
	reader->nskip = 0;
	IvfpqReaderSkip(reader, training->query_ids, training->nqueries);
	IvfpqTrainLists(training, parallel, sample->rows, n, lists, reader);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CODES);
	train_codebooks(training, parallel, sample);
}

/*
 * Begins with parallel workers, if there is work for them.  In place they only
 * read and cluster rows.
 */
static void
begin_parallel(IvfpqParallel *parallel, const IvfpqReader *reader, int lists,
			   bool in_place)
{
	int			dims = reader->sample->dims;
	int64		vectors = lists + IvfpqParents(lists) +
	(IvfpqGetOptions(reader->index)->rotate ? dims : 0);
	bool		work = !in_place || IvfpqServerIsWanted() ||
	IvfpqParents(lists) > 1;

	IvfpqParallelBegin(parallel,
					   work ? IvfpqCountWorkers(reader->heap, reader->index) : 0,
					   reader->heap, reader->index, reader->indexInfo,
					   vectors * dims * sizeof(float), in_place);
}

/*
 * Train from the table, unless it has too few rows, or nearly all are equal
 * (training->nlists = 0; ->waits).  training->gv.dims is set to the rows'
 * dims: dims or, if that is 0, those of the first row; 0 when there are none.
 * A row of other dims is an error, but not in place: training of an index in
 * use, which goes on without parallel workers.  gpuvecd's builder does not
 * rotate, so an index with a rotation is trained and built here.  *parallel
 * begins if there are rows enough; the caller ends it.
 */
void
IvfpqTrain(IvfpqTraining *training, IvfpqParallel *parallel, Relation heap,
		   Relation index, IndexInfo *indexInfo, IvfpqType *type, int dims,
		   bool in_place)
{
	IvfpqSample sample = {.type = type, .dims = dims, .lenient = in_place};
	IvfpqReader reader = {.training = training, .sample = &sample, .heap = heap,
	.index = index, .indexInfo = indexInfo};
	bool		rotate = IvfpqGetOptions(index)->rotate;
	int			lists;

	memset(training, 0, sizeof(*training));
	memset(parallel, 0, sizeof(*parallel));
	training->lists_per_row = IvfpqGetOptions(index)->spill == 0 ? 1 : 2;
	if (IvfpqServerIsWanted() && !rotate)
	{
		/* rows go there as they are read; this makes mean, scale, queries */
		sample.capacity = REMOTE_SAMPLE;
		sample.sparing = true;
	}
	sample.least = IvfpqLeastRows(index);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_SAMPLING);
	IvfpqSampleTake(&sample, heap, index, indexInfo, &training->rows);

	training->gv.metric = type->metric;
	training->gv.dims = sample.dims;
	IvfpqRecordCheckDims(index, sample.dims);
	IvfpqRotationCheckDims(index, sample.dims);
	if (sample.dims > 0)
		training->gv.m = choose_pq_dim(index, sample.dims);
	if (sample.count == 0 || sample.seen < sample.least)
		return;
	IvfpqSampleShuffle(&sample);
	training->others = (1 - IvfpqSampleDistinct(&sample)) * training->rows;
	training->waits = IvfpqIsNearlyOne(training->others, training->rows,
									   sample.least);
	if (training->waits)
		return;

	lists = choose_lists(index, &sample, training->rows);
	begin_parallel(parallel, &reader, lists, in_place);
	IvfpqSnapshotDrop();
	hold_out_queries(training, parallel, &sample, lists);
	pfree(sample.counts);
	fit_transform(training, parallel, &sample);
	if (rotate)
		IvfpqLearnRotation(training, parallel, &sample);
	reader.rows_needed = (int64) lists * IVFPQ_REMOTE_SAMPLES;
	if (rotate || !may_send_sample(&reader) ||
		!IvfpqTrainRemote(training, parallel, index, &sample, lists, &reader))
		train_here(training, parallel, &sample, &reader, lists);
	IvfpqTransformRows(training, training->queries, training->nqueries);
	IvfpqTransformRows(training, training->held_out, training->nqueries);
	IvfpqTrainingShare(training, parallel);
	IvfpqSnapshotTake();
	pfree(sample.rows);
}
