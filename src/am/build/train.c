/*
 * train.c
 *		From a sample of the table to centroids and codebooks, by the backend's
 *		own engine or by gpuvecd.
 *
 * The sample (sample.c) takes a quarter of maintenance_work_mem.  Mean, scale,
 * parents and codebooks come from it; lists too when they are few, else from
 * rows that are read again, more than the sample has where it is not the whole
 * table (cluster.c).  A few rows are held out, of which calibration queries
 * are made.  With option rotate a rotation of all vectors is learned from the
 * sample.
 *
 * gpuvecd gets raw rows as they are read.  A failure of its training leaves
 * only memory behind, so that the backend's own engine can begin from the
 * start.  All participants read the rows: each worker joins the build and
 * sends the rows of the blocks that it claims; gpuvecd says under which
 * numbers it has them.  A worker that cannot join is skipped: the others read
 * its blocks.  A worker that fails later leaves rows in gpuvecd whose numbers
 * are lost, and then the build by gpuvecd has failed.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/build/train.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/search/search.h"
#include "am/types/keys.h"
#include "page/injection.h"

#define MIN_SAMPLES				4	/* rows of the sample for each list that
									 * is trained on them */
#define FIT_VALUES				((int64) 1 << 24)	/* floats that mean and
													 * scale need */

/* Rows of the sample in memory where gpuvecd trains. */
#define REMOTE_SAMPLE			12288

/*
 * Rows for each list where gpuvecd trains all lists at once, in place of
 * IVFPQ_SAMPLES_PER_LIST: reading rows takes most of its time, and with half
 * as many rows its lists are still better than those of two levels.
 */
#define REMOTE_SAMPLES_PER_LIST	32

/*
 * An index waits where no larger fraction of its rows differs from the others.
 */
#define NEARLY_ONE				0.01

/*
 * Calibration queries: the fewest that determine targets, the most, and the
 * rows of the table for each query.
 */
#define LEAST_QUERIES			200
#define MAX_QUERIES				1000
#define ROWS_PER_QUERY			150

#define AROUND			4		/* rows that a query is moved away from */
#define MOST_QUERY_ROWS		4096	/* rows these are chosen from, at most */
#define MOST_VALUES		(1 << 22)	/* floats of those rows, at most */

/*
 * Rows whose squared distance is this fraction of the query's square differ by
 * rounding alone.
 */
#define SAME_SQUARE		1e-12

/* The most copies of a query's own row that are looked for besides. */
#define MOST_COPIES				400

/* Fraction of the queries that have no more copies than are looked for. */
#define MOST_QUERIES_FRACTION	0.9

/* Rows that a rotation is learned from, and k-means of these. */
#define ROTATION_ROWS			8192
#define ROTATION_ROWS_A_LIST	128
#define ROTATION_ITERATIONS		4

/*
 * A row longer than this, times the usual length, is left out of these.
 */
#define OUTLIER			16.0

/* The state that all participants share (IVFPQ_PARALLEL_SENT). */
typedef struct Sent
{
	IvfpqTicket ticket;
	uint64		most;			/* rows to send */
	pg_atomic_uint64 nsent;		/* rows; may come to exceed `most` */
	pg_atomic_uint32 failed;	/* 1: a participant could not send, */
	char		reason[160];	/* for this reason */
} Sent;

/* Rows on their way from one participant. */
typedef struct Sender
{
	Sent	   *sent;
	IvfpqBuilder *builder;
} Sender;

StaticAssertDecl((int) IVFPQ_REFINE_SQ8 == (int) GV_RECORDS_BYTES &&
				 (int) IVFPQ_REFINE_HALF == (int) GV_RECORDS_HALF,
				 "the engine knows kinds of records by the same numbers");

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
choose_lists(const IvfpqSample *sample, double rows)
{
	int			given = IvfpqGetOptions(sample->index)->lists;
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

/*
 * Returns the number of sub-quantizers: the option, checked against the
 * dimension, or the default.
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
 * Returns whether nearly all of `rows` rows equal one vector, and the others
 * are fewer than an index is trained on.  Such an index waits: a default, or
 * another placeholder, says nothing of the vectors that will take its place.
 */
bool
IvfpqIsNearlyOne(double others, double rows, int least)
{
	return others < least && others <= rows * NEARLY_ONE;
}

/* Returns the number of calibration queries of an index; 0 = too few rows. */
int
IvfpqCalibrationQueries(double rows)
{
	if (rows < 2 * LEAST_QUERIES)
		return 0;
	return (int) Max(LEAST_QUERIES, Min(MAX_QUERIES, rows / ROWS_PER_QUERY));
}

/*
 * Returns the number of rows, at most, among which those around a query are
 * looked for.
 */
int
IvfpqRowsAround(int dims)
{
	return Min(MOST_QUERY_ROWS, Max(AROUND, MOST_VALUES / dims));
}

/*
 * Chooses rows of a sample, whose distinct ones come first, for n queries or,
 * if distinct rows are fewer, for one query each, but at least LEAST_QUERIES;
 * of a table of `rows`.  The rows near each query that are to be known are
 * IVFPQ_GROUND_TRUTH_ROWS besides its own row and the copies that most
 * queries' rows have in the table.
 */
void
IvfpqHoldOut(const IvfpqSample *sample, int n, double rows,
			 IvfpqHeldOut *held)
{
	uint64	   *copies;
	double		most = 0;

	held->n = (int) Min(n, Max(sample->ndistinct, LEAST_QUERIES));
	held->taken = (int) Min(held->n, sample->ndistinct);
	copies = palloc((held->taken + 1) * sizeof(uint64));
	for (int i = 0; i < held->taken; i++)
		copies[i] = (uint64) sample->counts[i] - 1;
	IvfpqSortNumbers(copies, (Size) held->taken);
	if (held->taken > 0)
		most = copies[(int) (MOST_QUERIES_FRACTION * (held->taken - 1))] *
			Max(rows / sample->count, 1);
	pfree(copies);
	held->depth = IVFPQ_GROUND_TRUTH_ROWS + 1 + (int) Min(most, MOST_COPIES);
}

/*
 * Moves a query [dims] away from the mean of the rows around it, nearest
 * first, without those that it equals: by half of its distance from them, a
 * little where rows are dense, far where they are thin.
 *
 * Every operation here is exact, or rounds once and has no product to be fused
 * with, so that all processors make the same queries.
 */
static void
move(float *query, const float *rows, int dims, GvTopK *around)
{
	double		same = SAME_SQUARE * gv_square(query, dims);
	int			first = 0;
	int			n;

	gv_topk_sort(around);
	while (first < around->count && around->scores[first] <= same)
		first++;
	n = Min(around->count - first, AROUND);
	if (n <= 0)
		return;
	for (int d = 0; d < dims; d++)
	{
		double		sum = 0;
		double		to;

		for (int i = first; i < first + n; i++)
			sum += rows[around->ids[i] * dims + d];
		to = query[d] + (query[d] - sum / n) / 2;
		query[d] = (float) Max(-FLT_MAX, Min(to, FLT_MAX));
	}
}

/*
 * Sets queries [n][dims], the raw rows [n][dims] that they are made of, and
 * these rows' TIDs [n].  The metric can place all rows of a sample; queries
 * have the length that it gives them.
 *
 * Hardly any application searches with rows: it asks questions of answers, and
 * finds them farther away, in more lists, than a row finds its own neighbors.
 * So each row that is to be a query is moved away from the rows around it.
 * README, "Calibration Queries", has the reasons for this way and against
 * others.
 *
 * Rows that equal others are drawn once, and do not count among those around
 * an equal one: a query that is not moved would lie among its copies, which
 * any search finds.  Rows around a query are those of the sample of which no
 * query is made, or all where copies leave fewer of them; IvfpqRowsAround() of
 * them are enough.
 */
void
IvfpqMakeCalibrationQueries(const IvfpqSample *sample,
							const IvfpqHeldOut *held,
							float *queries, float *held_out, uint64 *ids)
{
	int			dims = sample->dims;
	Size		row = dims * sizeof(float);
	int64		first = sample->ndistinct - held->taken < held->taken ? 0 :
	held->taken;
	int			nrows = (int) Min(sample->ndistinct - first,
								  IvfpqRowsAround(dims));
	GvModel		unmoved = {.metric = sample->type->metric, .dims = dims,
	.scale = 1};
	float	   *rows;
	uint64	   *numbers;
	GvTopK	   *around;

	for (int i = 0; i < held->n; i++)
	{
		int			from = i % held->taken;

		memcpy(held_out + (Size) i * dims,
			   sample->rows + (Size) from * dims, row);
		ids[i] = sample->ids[from];
	}
	memcpy(queries, held_out, held->n * row);
	if (nrows == 0)
		return;

	unmoved.mean = palloc0(row);
	rows = palloc((Size) nrows * row);
	numbers = palloc(nrows * sizeof(uint64));
	around = palloc0(held->n * sizeof(GvTopK));
	(void) gv_transform(&unmoved, sample->rows + first * dims, nrows, rows);
	(void) gv_transform(&unmoved, queries, held->n, queries);
	for (int i = 0; i < nrows; i++)
		numbers[i] = i;
	for (int i = 0; i < held->n; i++)	/* a query may be among them */
		IvfpqTopKResize(&around[i], Min(AROUND + 1, nrows));
	IvfpqCheckStatus(gv_exact(GV_L2, dims, queries, held->n, rows, nrows,
							  numbers, around, &ivfpq_stop));
	for (int i = 0; i < held->n; i++)
	{
		move(queries + (Size) i * dims, rows, dims, &around[i]);
		pfree(around[i].scores);
		pfree(around[i].ids);
	}
	pfree(around);
	pfree(numbers);
	pfree(rows);
	pfree((float *) unmoved.mean);
}

/*
 * Takes rows out of the sample, half of them at most.  Training does not see
 * them; the calibration queries made of them show how well the index answers
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

	if (n < LEAST_QUERIES || sample->count - n < from_sample(lists) ||
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
	/* where first rows are used, each must be as frequent as in the table */
	if (sample->ndistinct < sample->count + held.taken)
		IvfpqSampleShuffle(sample);
}

/*
 * Returns how many of `count` rows the rotation is learned from: as many as a
 * quarter of the memory holds, besides what learning takes, which must fit
 * into half of it.
 */
static int64
choose_rotation_rows(const IvfpqTraining *training, int64 count)
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
	return Max(1, Min(Min(count, ROTATION_ROWS),
					  (int64) (IvfpqMemoryLimit() / 4 /
							   (dims * sizeof(float)))));
}

/*
 * Learns the rotation from raw rows of the sample, outliers left out; mean,
 * scale and the number of sub-quantizers are known.
 *
 * Codes are made of residuals, so residuals decide.  Those to a few centroids
 * made for this are as good as those to the index's, which do not exist yet:
 * from here on all vectors are rotated, those that lists are made of, too.
 */
static void
learn_rotation(IvfpqTraining *training, IvfpqParallel *parallel,
			   const IvfpqSample *sample)
{
	int			dims = training->gv.dims;
	int64		most = choose_rotation_rows(training, sample->count);
	int64		n = 0;
	float	   *rows = palloc_extended(most * dims * sizeof(float),
									   MCXT_ALLOC_HUGE);
	void	   *chunk;
	void	   *scratch;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CODES);
	for (int64 i = 0; i < most; i++)
	{
		float	   *row = rows + n * dims;

		gv_transform(&training->gv, sample->rows + i * dims, 1, row);
		if (-gv_distance_ip(row, row, dims) <= OUTLIER * OUTLIER)
			n++;
	}
	if (n > 0)
	{
		int			k = (int) Max(1, n / ROTATION_ROWS_A_LIST);
		float	   *centroids = palloc((Size) k * dims * sizeof(float));
		int32	   *nearest = palloc(n * sizeof(int32));

		k = IvfpqKmeans(rows, n, dims, k, ROTATION_ITERATIONS, centroids);
		IvfpqCheckStatus(gv_assign(dims, centroids, k, rows, n, nearest, NULL,
								   &ivfpq_stop));
		for (int64 i = 0; i < n * dims; i++)
			rows[i] = gv_difference(rows[i],
									centroids[(Size) nearest[i / dims] * dims +
											  i % dims]);
		pfree(nearest);
		pfree(centroids);
	}
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

/*
 * Computes the residuals of the rows [n] in each of their lists; returns how
 * many.
 */
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

/* Trains codebooks, from residuals of the sample. */
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

/* Trains lists and codebooks by the backend's own engine. */
static void
train_here(IvfpqTraining *training, IvfpqParallel *parallel,
		   IvfpqSample *sample, IvfpqReader *reader, int lists)
{
	int64		rows_needed = (int64) lists * IVFPQ_SAMPLES_PER_LIST;
	int64		n = Min(sample->count, Max(rows_needed, GV_CODEBOOK_ROWS));

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CLUSTERING);
	IvfpqTransformRows(training, sample->rows, sample->count);
	reader->transform = true;
	reader->rows_needed = sample->whole ? (int64) sample->seen : rows_needed;
	IvfpqTrainLists(training, parallel, sample->rows, n, lists, reader);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CODES);
	train_codebooks(training, parallel, sample);
}

/*
 * Returns whether gpuvecd can train on the sample, and encode its rows.  It
 * cannot if the record of one must bound nothing, which gpuvecd cannot know.
 */
static bool
may_send_sample(const IvfpqSample *sample)
{
	if (IvfpqGetOptions(sample->index)->refine == IVFPQ_REFINE_NONE)
		return true;
	for (int64 i = 0; i < sample->count; i++)
		if (!IvfpqIsBoundable(sample->type, sample->rows + i * sample->dims,
							  sample->dims))
			return false;
	return true;
}

/* Notes that this participant could not send; the first reason counts. */
static void
fail(Sent *sent, IvfpqBuilder *builder)
{
	if (pg_atomic_exchange_u32(&sent->failed, 1) == 0)
		strlcpy(sent->reason, IvfpqBuilderReason(builder),
				sizeof(sent->reason));
}

/* IvfpqRowSink: sends raw rows [n][dims]. */
static bool
send_rows(void *arg, const float *rows, const uint64 *ids, int n)
{
	Sender	   *sender = arg;
	Sent	   *sent = sender->sent;
	uint64		at = pg_atomic_read_u32(&sent->failed) != 0 ? sent->most :
	pg_atomic_fetch_add_u64(&sent->nsent, n);

	if (at >= sent->most)
		return false;
	if (!IvfpqBuilderTrainOn(sender->builder, GV_SAMPLE, rows, ids,
							 Min(n, (int64) (sent->most - at))))
	{
		fail(sent, sender->builder);
		return false;
	}
	return at + n < sent->most;
}

/* Reads and sends a participant's part. */
static void
send_part(IvfpqReader *reader, IvfpqParallel *parallel, Sent *sent,
		  IvfpqBuilder *builder)
{
	Sender		sender = {sent, builder};

	IvfpqReaderRun(reader, parallel, send_rows, &sender);
	if (pg_atomic_read_u32(&sent->failed) == 0 &&
		!IvfpqBuilderTrainEnd(builder, GV_SAMPLE))
		fail(sent, builder);
}

/*
 * Has rows read and sent by all participants, after the n first ones of the
 * sample, which *builder has, until it has nrows.  Returns false if the build
 * by gpuvecd has failed.
 */
static bool
send_read_rows(IvfpqReader *reader, IvfpqParallel *parallel,
			   IvfpqBuilder *builder, int64 n, int64 nrows)
{
	Sent	   *sent =
	IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_SENT, sizeof(Sent));
	bool		failed;

	memset(sent, 0, sizeof(*sent));
	sent->ticket = IvfpqBuilderTicket(builder);
	sent->most = nrows - n;
	pg_atomic_init_u64(&sent->nsent, 0);
	pg_atomic_init_u32(&sent->failed, 0);
	IvfpqReaderShare(reader, parallel, n);
	IvfpqParallelStartJob(parallel, IVFPQ_JOB_SEND);
	send_part(reader, parallel, sent, builder);
	(void) IvfpqParallelEndPhase(parallel);

	failed = pg_atomic_read_u32(&sent->failed) != 0;
	if (failed)
		IvfpqBuilderLose(builder, sent->reason);
	else
		IvfpqBuilderSampled(builder,
							n + Min(pg_atomic_read_u64(&sent->nsent),
									sent->most));
	IvfpqParallelFree(parallel, IVFPQ_PARALLEL_READER);
	return !failed;
}

/* Does a worker's part of send_read_rows. */
void
IvfpqSendHelp(IvfpqReader *reader, IvfpqParallel *parallel)
{
	Sent	   *sent = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SENT);
	IvfpqBuilder *builder = IvfpqBuilderJoin(&sent->ticket, NULL);

	if (IvfpqBuilderIsOpen(builder))
	{
		IvfpqBuilderSample(builder,
						   IvfpqParallelMemory(parallel,
											   IVFPQ_PARALLEL_SAMPLE));
		send_part(reader, parallel, sent, builder);
	}
	IvfpqBuilderEnd(builder);
}

/*
 * Sends the queries, then the sample: first rows in random order, of which
 * codebooks are made, then, unless these are all, rows that are read.
 */
static bool
send_sample(IvfpqReader *reader, IvfpqParallel *parallel,
			IvfpqBuilder *builder, int64 nrows)
{
	const IvfpqTraining *training = reader->training;
	const IvfpqSample *sample = reader->sample;
	int64		n = sample->whole ? sample->count :
	Min(sample->count, GV_CODEBOOK_ROWS);

	return IvfpqBuilderTrainOn(builder, GV_QUERIES, training->queries, NULL,
							   training->nqueries) &&
		IvfpqBuilderTrainEnd(builder, GV_QUERIES) &&
		IvfpqBuilderTrainOn(builder, GV_SAMPLE, sample->rows, sample->ids,
							n) &&
		IvfpqBuilderTrainEnd(builder, GV_SAMPLE) &&
		(sample->whole || n >= nrows ||
		 send_read_rows(reader, parallel, builder, n, nrows));
}

/* Has gpuvecd train, and gets the model. */
static bool
get_model(IvfpqTraining *training, IvfpqParallel *parallel,
		  IvfpqBuilder *builder)
{
	GvTrained	trained;

	if (!IvfpqBuilderTrain(builder, &trained))
		return false;
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CODES);
	training->codebooks =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_CODEBOOKS,
						   (Size) GV_CODEWORDS * training->gv.dims *
						   sizeof(float));
	IvfpqTrainingAlloc(training, parallel, trained.nparents, trained.nlists);
	if (!IvfpqBuilderArray(builder, GV_CODEBOOKS, training->codebooks) ||
		!IvfpqBuilderArray(builder, GV_PARENTS, training->parents) ||
		!IvfpqBuilderArray(builder, GV_PARENT_OFFSETS,
						   training->parent_offsets) ||
		!IvfpqBuilderArray(builder, GV_CENTROIDS, training->centroids))
		return false;
	training->gv.codebooks = training->codebooks;
	training->nlists = trained.nlists;
	training->builder = builder;
	return true;
}

/*
 * Trains `lists` lists by gpuvecd, on about reader->rows_needed rows, or on
 * the sample if that is the whole table; neither it nor the queries are
 * transformed yet.  On success training->builder is there to encode rows.
 * Returns false if gpuvecd is not to be asked, or failed.  Injection points
 * are named for the step before them.
 */
static bool
train_remote(IvfpqTraining *training, IvfpqParallel *parallel,
			 IvfpqReader *reader, int lists)
{
	const IvfpqSample *sample = reader->sample;
	Relation	index = sample->index;
	int64		nrows = sample->whole ? sample->count :
	Max(reader->rows_needed, GV_CODEBOOK_ROWS);
	GvBuilderSpec spec = {
		.metric = training->gv.metric,
		.dims = training->gv.dims,
		.m = training->gv.m,
		.lists_per_row = training->lists_per_row,
		.refine = IvfpqGetOptions(index)->refine,
		.nlists = lists,
		.nparents = IvfpqParents(lists),
		.nqueries = training->nqueries,
		.depth = training->depth,
		.iterations = IVFPQ_ITERATIONS,
		.scale = training->gv.scale,
		.max_imbalance = IVFPQ_MAX_IMBALANCE,
		.seed = IVFPQ_TRAINING_SEED,
		.sample_rows = nrows
	};
	IvfpqBuilder *builder;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CLUSTERING);
	builder = IvfpqBuilderBegin(index, &spec, training->mean);
	if (builder == NULL)
		return false;
	IvfpqBuilderSample(builder,
					   IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_SAMPLE,
										  nrows * sizeof(uint64)));
	IvfpqInjectionPoint("build: begun");
	if (send_sample(reader, parallel, builder, nrows))
	{
		IvfpqInjectionPoint("build: sent");
		if (get_model(training, parallel, builder))
		{
			IvfpqInjectionPoint("build: trained");
			return true;
		}
	}
	IvfpqBuilderFailed(index, IvfpqBuilderReason(builder), false);
	IvfpqBuilderEnd(builder);
	return false;
}

/*
 * Trains from the table, unless it has too few rows (training->nlists = 0), or
 * nearly all are equal (->waits, too).  training->gv.dims is set to the rows'
 * dims: dims or, if that is 0, those of the first row; 0 when there are none.
 * A row of other dims is an error, but not with in_place, which trains an
 * index in use; the caller goes on without parallel workers then.  gpuvecd's
 * builder does not rotate, so an index with a rotation is trained and built
 * here.  *parallel begins if there are rows enough; the caller ends it.
 */
void
IvfpqTrain(IvfpqTraining *training, IvfpqParallel *parallel, Relation heap,
		   Relation index, IndexInfo *indexInfo, IvfpqType *type, int dims,
		   bool in_place)
{
	IvfpqSample sample = {.heap = heap, .index = index,
		.indexInfo = indexInfo, .type = type, .dims = dims,
	.lenient = in_place};
	IvfpqReader reader = {.training = training, .sample = &sample};
	bool		rotate = IvfpqGetOptions(index)->rotate;
	int			lists;

	memset(training, 0, sizeof(*training));
	memset(parallel, 0, sizeof(*parallel));
	training->lists_per_row = IvfpqGetOptions(index)->spill == 0 ? 1 : 2;
	if (IvfpqServerIsWanted() && !rotate)
	{
		/* gpuvecd gets rows as they are read; these give mean, scale, queries */
		sample.capacity = REMOTE_SAMPLE;
		sample.sparing = true;
	}
	sample.least = IvfpqLeastRows(index);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_SAMPLING);
	training->rows = IvfpqSampleTake(&sample);

	dims = sample.dims;
	training->gv.metric = type->metric;
	training->gv.dims = dims;
	IvfpqRecordCheckDims(index, dims);
	if (rotate && dims > GV_MAX_ROTATED)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("option rotate takes %d dimensions at most, not %d",
						GV_MAX_ROTATED, dims),
				 errhint("Create the index without rotate.")));
	if (dims > 0)
		training->gv.m = choose_pq_dim(index, dims);
	if (sample.count == 0 || sample.seen < sample.least)
		return;
	IvfpqSampleShuffle(&sample);
	training->others = (1 - IvfpqSampleDistinct(&sample)) * training->rows;
	training->waits = IvfpqIsNearlyOne(training->others, training->rows,
									   sample.least);
	if (training->waits)
		return;

	/* in place, workers only read and cluster rows */
	lists = choose_lists(&sample, training->rows);
	if (!in_place || IvfpqServerIsWanted() || IvfpqParents(lists) > 1)
	{
		int64		vectors = lists + IvfpqParents(lists) +
		(rotate ? dims : 0);

		IvfpqParallelBegin(parallel, heap, index, indexInfo,
						   vectors * dims * sizeof(float), in_place);
	}
	else
		IvfpqParallelInitSerial(parallel);
	IvfpqSnapshotDrop();
	hold_out_queries(training, parallel, &sample, lists);
	pfree(sample.counts);

	training->mean = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_MEAN,
										dims * sizeof(float));
	gv_fit_transform(type->metric, dims, sample.rows,
					 Min(sample.count, FIT_VALUES / dims), training->mean,
					 &training->gv.scale);
	training->gv.mean = training->mean;
	if (rotate)
		learn_rotation(training, parallel, &sample);
	reader.rows_needed = (int64) lists * REMOTE_SAMPLES_PER_LIST;
	if (rotate || !may_send_sample(&sample) ||
		!train_remote(training, parallel, &reader, lists))
		train_here(training, parallel, &sample, &reader, lists);
	IvfpqTransformRows(training, training->queries, training->nqueries);
	IvfpqTransformRows(training, training->held_out, training->nqueries);
	IvfpqTrainingShare(training, parallel);
	IvfpqSnapshotTake();
	pfree(sample.rows);
}
