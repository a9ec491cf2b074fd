/*
 * train.c
 *		Trains centroids and codebooks on a sample of the table, with the
 *		backend's own engine or with gpuvecd.
 *
 * The sample (sample.c) takes a quarter of maintenance_work_mem.  Mean, scale,
 * parents and codebooks come from the sample.  If there are few lists, they
 * are trained on the sample, too; if there are many, on rows that are read
 * later (cluster.c).  Some rows are held out of the sample, and calibration
 * queries are made of them.  With option rotate, a rotation of all vectors is
 * learned from the sample.
 *
 * gpuvecd gets the rows as they are read.  If training by gpuvecd fails, the
 * index has not changed yet, so the backend's own engine can begin from the
 * start.  All participants read the rows.  Each worker joins the build, sends
 * the rows of the blocks that it claims, and receives the numbers that gpuvecd
 * has assigned to these rows.  If a worker cannot join, other participants
 * read the worker's blocks.  If a worker fails later, the numbers of its rows
 * are lost, and the build by gpuvecd has failed.
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

#define MIN_SAMPLES				4	/* minimum number of the sample's rows per
									 * list trained on the sample */
#define FIT_VALUES				((int64) 1 << 24)	/* number of floats that
													 * is enough for mean and
													 * scale */

/* Rows of the sample for mean, scale and queries, when gpuvecd trains. */
#define REMOTE_SAMPLE			12288

/*
 * Rows for each list when gpuvecd trains all lists at once.  This is half of
 * IVFPQ_SAMPLES_PER_LIST, because reading rows takes most of the time.  The
 * lists still are better than lists trained in two levels.
 */
#define REMOTE_SAMPLES_PER_LIST	32

/*
 * Training of an index is deferred if at most this fraction of its rows
 * differs from the most frequent row.
 */
#define NEARLY_ONE				0.01

/*
 * There is one calibration query per ROWS_PER_QUERY rows of the table, but at
 * least LEAST_QUERIES, which determine the targets, and at most MAX_QUERIES.
 */
#define LEAST_QUERIES			200
#define MAX_QUERIES				1000
#define ROWS_PER_QUERY			150

#define AROUND			4		/* number of rows that a query is moved away
								 * from */
#define MOST_QUERY_ROWS		4096	/* maximum number of rows among which the
									 * AROUND nearest rows are searched */
#define MOST_VALUES		(1 << 22)	/* limit for the floats in these rows */

/*
 * A row and a query differ by rounding alone if their squared distance is at
 * most this fraction of the query's squared length.
 */
#define SAME_SQUARE		1e-12

/* Maximum number of copies of a query's own row that we look for. */
#define MOST_COPIES				400

/* Fraction of the queries for which we look for all copies of their rows. */
#define MOST_QUERIES_FRACTION	0.9

/*
 * A rotation is learned from ROTATION_ROWS rows, which k-means divides into
 * lists of ROTATION_ROWS_A_LIST rows each, in ROTATION_ITERATIONS iterations.
 */
#define ROTATION_ROWS			8192
#define ROTATION_ROWS_A_LIST	128
#define ROTATION_ITERATIONS		4

/* Rows longer than this times the usual length are not used for a rotation. */
#define OUTLIER			16.0

/* State of the participants that send rows (IVFPQ_PARALLEL_SENT). */
typedef struct Sent
{
	IvfpqBuildHandle ticket;
	uint64		most;			/* number of rows to send */
	pg_atomic_uint64 nsent;		/* number of rows sent; may exceed `most` */
	pg_atomic_uint32 failed;	/* 1: a participant could not send */
	char		reason[160];	/* why it could not send */
} Sent;

/* The state with which one participant sends rows. */
typedef struct Sender
{
	Sent	   *sent;
	IvfpqBuilder *builder;
} Sender;

StaticAssertDecl((int) IVFPQ_REFINE_SQ8 == (int) GV_RECORDS_BYTES &&
				 (int) IVFPQ_REFINE_HALF == (int) GV_RECORDS_HALF,
				 "the engine knows kinds of records by the same numbers");

/*
 * Returns the number of centroids to make of the sample: the number of parents
 * if there are several parents, else the number of lists.
 */
static int
from_sample(int lists)
{
	return IvfpqParents(lists) > 1 ? IvfpqParents(lists) : lists;
}

/*
 * Returns the number of lists to train.  If the user gives no number, this is
 * IvfpqDefaultLists(), limited so that the centroids fit into a quarter of the
 * memory, and that a sample of part of the table has MIN_SAMPLES rows for each
 * list trained on the sample.  If the user gives a number, raises an error
 * unless the centroids fit into half of the memory, and MIN_SAMPLES rows for
 * each centroid made of the sample fit into a quarter of the memory.
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
				 errmsg("\"maintenance_work_mem\" is too low to train %d lists",
						lists),
				 errdetail("%zu MB are required for %d dimensions.",
						   size / (1024 * 1024) + 1, sample->dims),
				 errhint("Increase \"maintenance_work_mem\", or use fewer lists.")));
	return lists;
}

/*
 * Returns the maintenance_work_mem with which choose_lists() allows this many
 * lists.  A quarter of this memory holds the centroids, or the sample that the
 * centroids are trained on.
 */
Size
IvfpqMemoryForLists(int lists, int dims)
{
	Size		rows = IvfpqParents(lists) > 1 ? lists : lists * MIN_SAMPLES;

	return 4 * rows * (dims * sizeof(float) + sizeof(uint64));
}

/*
 * Returns the number of sub-quantizers: the option pq_dim, checked against the
 * dimensions, or the default.
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
				 errmsg("value %d of option \"pq_dim\" is too large for %d dimensions", given, dims),
				 errhint("Use at most %d, or 0 to derive it from the number of dimensions.",
						 most)));
	if (given > 0)
		return given;
	return IvfpqDefaultPqDim(dims, IvfpqGetOptions(index)->refine !=
							 IVFPQ_REFINE_NONE, &keys.form);
}

/*
 * Returns whether nearly all of `rows` rows equal one vector, and fewer than
 * `least` rows differ from this vector.  Then training is deferred, because
 * the vector is most likely a placeholder, and says nothing about the vectors
 * that will replace it.  An index is trained on at least `least` rows.
 */
bool
IvfpqIsNearlyOne(double others, double rows, int least)
{
	return others < least && others <= rows * NEARLY_ONE;
}

/* Returns the number of calibration queries; 0 = there are too few rows. */
int
IvfpqCalibrationQueries(double rows)
{
	if (rows < 2 * LEAST_QUERIES)
		return 0;
	return (int) Max(LEAST_QUERIES, Min(MAX_QUERIES, rows / ROWS_PER_QUERY));
}

/* Returns the maximum number of rows to search for rows around a query. */
int
IvfpqRowsAround(int dims)
{
	return Min(MOST_QUERY_ROWS, Max(AROUND, MOST_VALUES / dims));
}

/*
 * Chooses the rows of a sample that calibration queries are made of.  The
 * sample's distinct rows come first.  There are min(n, max(ndistinct,
 * LEAST_QUERIES)) queries, so a row may be used more than once.
 *
 * Also sets held->depth, the number of rows to find near each query:
 * IVFPQ_GROUND_TRUTH_ROWS neighbors, the query's own row, and a number of
 * copies of that row, which is enough for MOST_QUERIES_FRACTION of the
 * queries.  This number is estimated for a table of `rows` rows.
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
 * Moves a query [dims] away from the mean of the AROUND rows nearest to it, by
 * half of the query's distance from this mean.  So the query moves a little
 * where rows are dense, and far where rows are sparse.  Rows that equal the
 * query do not count.  `around` has the positions of the nearest rows in rows
 * [][dims].
 *
 * Every operation here is exact, or rounds once and has no product that could
 * be fused with a sum, so that all processors make the same queries.
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
 * Makes calibration queries [n][dims].  Sets held_out [n][dims] to the raw
 * rows that the queries are made of, and ids [n] to the TIDs of these rows.
 * If the metric is cosine, no row of a sample is zero, and rows are scaled to
 * length 1 before they are moved.
 *
 * Applications seldom search with rows.  Their queries are farther from the
 * nearest rows than a row is from its neighbors.  So each row that a query is
 * made of is moved away from the rows around it (README, "Calibration
 * Queries").
 *
 * Only one of several equal rows is drawn, and its copies do not count among
 * the rows around it.  Otherwise the query would not be moved and would lie
 * among these copies, which any search finds.  The rows around a query are
 * searched among the sample's distinct rows that are not used for queries, or
 * among all distinct rows if more than half of them are used for queries.
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
	for (int i = 0; i < held->n; i++)	/* one may be the query's row */
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
 * Takes up to half of the rows out of the sample, and makes calibration
 * queries of them.  Training does not see these rows, so the queries show how
 * well the index answers new queries.  Takes no rows if there would be too few
 * queries, or if fewer rows than centroids would be left in the sample or the
 * table.
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

	/*
	 * some steps use only the first rows, in which each vector must be as
	 * frequent as in the table
	 */
	if (sample->ndistinct < sample->count + held.taken)
		IvfpqSampleShuffle(sample);
}

/*
 * Returns the number of rows, out of `count`, from which the rotation is
 * learned: at most ROTATION_ROWS, in at most a quarter of the memory.  Raises
 * an error if the rest of the memory needed for learning exceeds half of
 * maintenance_work_mem.
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
				 errmsg("\"maintenance_work_mem\" is too low to learn a rotation"),
				 errdetail("%zu MB are required for %d dimensions.",
						   2 * size / (1024 * 1024) + 1, dims),
				 errhint("Increase \"maintenance_work_mem\", or create the index without option \"rotate\".")));
	return Max(1, Min(Min(count, ROTATION_ROWS),
					  (int64) (IvfpqMemoryLimit() / 4 /
							   (dims * sizeof(float)))));
}

/*
 * Learns the rotation from raw rows of the sample, without outliers.  The
 * mean, the scale and the number of sub-quantizers are known already.
 *
 * Codes are made of residuals, so the rotation is learned from residuals.  The
 * index's centroids do not exist yet, because they will be made of rotated
 * vectors.  So a few centroids are trained for this step only.  Residuals to
 * them serve as well as residuals to the index's centroids.
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
		/* all rows are outliers, from which nothing can be learned */
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

/* Computes the residuals of rows [n] to their lists.  Returns their number. */
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

/* Trains codebooks on residuals of the sample. */
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

/* Trains lists and codebooks with the backend's own engine. */
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
 * cannot if there is a row whose distances no refine record can bound, because
 * gpuvecd cannot detect such rows.
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

/* Records that sending rows failed, and the reason if none is recorded yet. */
static void
fail(Sent *sent, IvfpqBuilder *builder)
{
	if (pg_atomic_exchange_u32(&sent->failed, 1) == 0)
		strlcpy(sent->reason, IvfpqBuilderReason(builder),
				sizeof(sent->reason));
}

/* IvfpqRowSink.  Sends raw rows [n][dims] to gpuvecd. */
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

/* Does a participant's part of send_read_rows: reads rows and sends them. */
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
 * Makes all participants read rows and send them, until gpuvecd has nrows
 * rows.  The first n rows of the sample have been sent already.  Returns false
 * if the build by gpuvecd has failed.
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
	IvfpqTrainingShare(reader->training, parallel);
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

/* Joins the leader in send_read_rows.  A worker calls this. */
void
IvfpqSendHelp(IvfpqReader *reader, IvfpqParallel *parallel)
{
	Sent	   *sent = IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SENT);
	IvfpqBuilder *builder;

	IvfpqTrainingOpen(reader->training, parallel);
	builder = IvfpqBuilderJoin(&sent->ticket, &reader->training->gv, NULL);
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
 * Sends the queries, and then the sample in random order, because codebooks
 * are trained on the residuals of the sample's first rows.  If more rows are
 * needed, participants read and send them.  Returns false if gpuvecd has
 * failed.
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

/* Makes gpuvecd train, and gets the model from it. */
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
 * Trains `lists` lists with gpuvecd, on about reader->rows_needed rows, or on
 * the sample if it is the whole table.  The sample and the queries must not be
 * transformed yet.  On success sets training->builder, which encodes rows.
 * Returns false if gpuvecd is not used or has failed.  Each injection point is
 * named for the step before it.
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
		.dims = training->gv.dims,
		.m = training->gv.m,
		.lists_per_row = training->lists_per_row,
		.refine = IvfpqGetOptions(index)->refine,
		.nlists = lists,
		.nparents = IvfpqParents(lists),
		.nqueries = training->nqueries,
		.depth = training->depth,
		.iterations = IVFPQ_ITERATIONS,
		.max_imbalance = IVFPQ_MAX_IMBALANCE,
		.seed = IVFPQ_TRAINING_SEED,
		.sample_rows = nrows
	};
	IvfpqBuilder *builder;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CLUSTERING);
	builder = IvfpqBuilderBegin(index, &spec, &training->gv);
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
 * Trains an index.  If the table has too few rows, leaves training->nlists 0.
 * If nearly all of its rows are equal, does the same and sets training->waits.
 *
 * Sets training->gv.dims to `dims` or, if that is 0, to the dimensions of the
 * first row, or to 0 if there are no rows.  If in_place is true, the index is
 * in use while it is trained, and the caller goes on without parallel workers
 * afterwards.  Otherwise a row of other dimensions is an error.
 *
 * If there are enough rows, this function begins *parallel, and the caller
 * ends it.
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
	if (IvfpqServerIsWanted())
	{
		/* gpuvecd gets rows as they are read, so a small sample is enough */
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
				 errmsg("option \"rotate\" supports at most %d dimensions, not %d",
						GV_MAX_ROTATED, dims),
				 errhint("Create the index without option \"rotate\".")));
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

	/* in place, launch workers only if rows are to be read or clustered */
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
	if (!may_send_sample(&sample) ||
		!train_remote(training, parallel, &reader, lists))
		train_here(training, parallel, &sample, &reader, lists);
	IvfpqTransformRows(training, training->queries, training->nqueries);
	IvfpqTransformRows(training, training->held_out, training->nqueries);
	IvfpqTrainingShare(training, parallel);
	IvfpqSnapshotTake();
	pfree(sample.rows);
}
