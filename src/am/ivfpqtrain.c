/*
 * ivfpqtrain.c
 *		From a sample of the table to centroids and codebooks.
 *
 * The sample comes from PostgreSQL's block sampler and reservoir.  All that
 * training holds at once stays within maintenance_work_mem: the sample, the
 * centroids, and the engine's scratch.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/sampling.h"

#include "am/ivfpq.h"
#include "utils/backend_progress.h"

/* Rows of the sample that k-means wants for a list, and can do with. */
#define SAMPLES_PER_LIST		64
#define MIN_SAMPLES_PER_LIST	32
#define MIN_SAMPLES_GIVEN		4	/* when the user sets lists */

#define MAX_SAMPLES				((int64) 1 << 24)
#define CODEBOOK_SAMPLES		16384
#define FIT_VALUES				((int64) 1 << 24)	/* floats that mean and scale need */
#define KMEANS_ITERATIONS		10

/*
 * Lists of the sample hold at most this many times the mean; lists of the
 * whole table then keep below four times it.
 */
#define MAX_SHARE				2.0

#define TRAINING_SEED			UINT64CONST(0x67707576656331)

/* The sample while it is taken. */
typedef struct Sample
{
	IvfpqType  *type;
	int			dims;			/* 0 = not known yet */
	int64		capacity;		/* rows the memory holds */
	int64		count;
	double		seen;			/* rows that could have been taken */
	double		skip;			/* rows to pass over before the next */
	float	   *rows;			/* [capacity][dims] */
	ReservoirStateData reservoir;
	MemoryContext tmp;
} Sample;

static Size
memory_limit(void)
{
	return (Size) maintenance_work_mem * 1024;
}

/* Memory that k-means on n rows holds at once, the sample included. */
static Size
training_size(int64 n, int nlists, int dims)
{
	GvKmeans	spec = {.dims = dims,.n = n,.k = nlists,
	.iterations = KMEANS_ITERATIONS,.max_share = MAX_SHARE};

	return (Size) n * dims * sizeof(float) +
		(Size) nlists * dims * sizeof(float) + gv_kmeans_scratch(&spec);
}

/* Rows of `dims` floats that fit beside nlists lists; 0 = none do. */
static int64
samples_that_fit(int nlists, int dims, int64 most)
{
	int64		low = 0;
	int64		high = most;

	while (low < high)
	{
		int64		mid = low + (high - low + 1) / 2;

		if (training_size(mid, nlists, dims) <= memory_limit())
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

/* The dimension tells how many rows fit. */
static void
size_sample(Sample *sample)
{
	sample->capacity = Max(samples_that_fit(1, sample->dims, MAX_SAMPLES), 1);
	reservoir_init_selection_state(&sample->reservoir, sample->capacity);
}

/* Room for one more row: doubled as needed, so small tables take little. */
static void
grow_sample(Sample *sample)
{
	Size		row = sample->dims * sizeof(float);
	int64		n = sample->count;

	if (sample->rows == NULL)
		sample->rows = palloc_extended(row * Min(sample->capacity, 1024),
									   MCXT_ALLOC_HUGE);
	else if (n >= 1024 && (n & (n - 1)) == 0)
		sample->rows = repalloc_huge(sample->rows,
									 row * Min(sample->capacity, 2 * n));
}

/* Put a row into the sample, or in place of another, or nowhere. */
static void
take_row(Sample *sample, const float *row)
{
	int64		at;

	if (sample->count < sample->capacity)
	{
		grow_sample(sample);
		at = sample->count++;
	}
	else
	{
		if (sample->skip < 0)
			sample->skip = reservoir_get_next_S(&sample->reservoir,
												sample->seen,
												sample->capacity);
		sample->skip -= 1;
		if (sample->skip >= 0)
			return;
		at = (int64) (sample->capacity *
					  sampler_random_fract(&sample->reservoir.randstate));
	}
	memcpy(sample->rows + at * sample->dims, row,
		   sample->dims * sizeof(float));
}

/* Called for every row of the sampled blocks. */
static void
sample_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				bool alive, void *arg)
{
	Sample	   *sample = arg;
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	if (isnull[0] || !alive)
		return;

	oldcontext = MemoryContextSwitchTo(sample->tmp);
	row = IvfpqValueFloats(sample->type, values[0], &dims);
	MemoryContextSwitchTo(oldcontext);

	IvfpqCheckDims(sample->dims, dims);
	if (IvfpqIsPlaceable(sample->type, row, dims))
	{
		take_row(sample, row);
		sample->seen += 1;
	}
	MemoryContextReset(sample->tmp);
}

/* Called for rows of the first blocks until one tells the dimension. */
static void
peek_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
			  bool alive, void *arg)
{
	Sample	   *sample = arg;
	MemoryContext oldcontext;

	if (isnull[0] || !alive || sample->dims > 0)
		return;
	oldcontext = MemoryContextSwitchTo(sample->tmp);
	(void) IvfpqValueFloats(sample->type, values[0], &sample->dims);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(sample->tmp);
}

/*
 * Sample the table.  Blocks are drawn until they could fill the sample, so a
 * table that fits is read whole, and its rows counted rather than estimated.
 */
static void
take_sample(Sample *sample, Relation heap, Relation index,
			IndexInfo *indexInfo, double *rows)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);
	BlockSamplerData sampler;
	int64		blocks = 0;

	sample->skip = -1;
	sample->tmp = AllocSetContextCreate(CurrentMemoryContext,
										"gpuivfpq sample",
										ALLOCSET_DEFAULT_SIZES);
	for (BlockNumber blkno = 0; blkno < nblocks && sample->dims == 0; blkno++)
	{
		CHECK_FOR_INTERRUPTS();
		table_index_build_range_scan(heap, index, indexInfo, false, false,
									 false, blkno, 1, peek_callback, sample,
									 NULL);
	}
	if (sample->dims == 0)
	{
		*rows = 0;
		return;
	}

	size_sample(sample);
	BlockSampler_Init(&sampler, nblocks, Min(nblocks, sample->capacity),
					  (uint32) TRAINING_SEED);
	while (BlockSampler_HasMore(&sampler))
	{
		BlockNumber blkno = BlockSampler_Next(&sampler);

		CHECK_FOR_INTERRUPTS();
		table_index_build_range_scan(heap, index, indexInfo, false, false,
									 false, blkno, 1, sample_callback, sample,
									 NULL);
		blocks++;
	}
	*rows = blocks > 0 ? sample->seen / blocks * nblocks : 0;
	MemoryContextDelete(sample->tmp);
}

/* Complain when what the user asked for cannot be trained in the memory. */
static void
check_memory(int64 nsamples, int nlists, int dims)
{
	Size		size = training_size(nsamples, nlists, dims);

	if (size > memory_limit())
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("training %d lists of %d dimensions needs %zu MB, maintenance_work_mem is %d MB",
						nlists, dims, size / (1024 * 1024) + 1,
						maintenance_work_mem / 1024),
				 errhint("Set maintenance_work_mem higher, or use fewer lists.")));
}

/*
 * How many lists to train; *nsamples is cut to what fits and is of use.
 */
static int
choose_lists(Relation index, const Sample *sample, double rows,
			 int64 *nsamples)
{
	IvfpqOptions *options = (IvfpqOptions *) index->rd_options;
	int			given = options ? options->lists : 0;
	int			lists = given > 0 ? given : IvfpqDefaultLists(rows);
	int64		fit;

	lists = (int) Min(lists, sample->count);
	if (given > 0)
		check_memory(Min((int64) lists * MIN_SAMPLES_GIVEN, sample->count),
					 lists, sample->dims);

	*nsamples = sample->count;
	fit = samples_that_fit(lists, sample->dims, *nsamples);
	while (given == 0 && lists > 1 && fit < *nsamples &&
		   fit < (int64) lists * MIN_SAMPLES_PER_LIST)
	{
		lists -= (lists + 9) / 10;
		fit = samples_that_fit(lists, sample->dims, *nsamples);
	}
	*nsamples = Min(fit, Max((int64) lists * SAMPLES_PER_LIST,
							 CODEBOOK_SAMPLES));
	*nsamples = Min(*nsamples, sample->count);
	check_memory(Max(*nsamples, lists), lists, sample->dims);
	return lists;
}

/* Keep a random choice of n rows, in random order; a sample fills in order. */
static void
shuffle_sample(Sample *sample, int64 n)
{
	pg_prng_state prng;
	Size		row = sample->dims * sizeof(float);
	float	   *swap = palloc(row);

	pg_prng_seed(&prng, TRAINING_SEED);
	for (int64 i = 0; i < n && i < sample->count - 1; i++)
	{
		int64		j = pg_prng_uint64_range(&prng, i, sample->count - 1);
		float	   *a = sample->rows + i * sample->dims;
		float	   *b = sample->rows + j * sample->dims;

		CHECK_FOR_INTERRUPTS();
		memcpy(swap, a, row);
		memcpy(a, b, row);
		memcpy(b, swap, row);
	}
	pfree(swap);
	sample->rows = repalloc_huge(sample->rows, row * n);
}

/* Find mean and scale, and move the first n rows of the sample by them. */
static void
transform_sample(IvfpqTraining *training, Sample *sample, int64 n)
{
	int			dims = sample->dims;

	training->mean = palloc(dims * sizeof(float));
	gv_fit_transform(training->gv.metric, dims, sample->rows,
					 Min(n, FIT_VALUES / dims), training->mean,
					 &training->gv.scale);
	training->gv.mean = training->mean;
	for (int64 i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		gv_transform(&training->gv, sample->rows + i * dims, 1,
					 sample->rows + i * dims);
	}
}

static void *
alloc_scratch(Size size, void **chunk)
{
	*chunk = palloc_extended(size + GV_ALIGN, MCXT_ALLOC_HUGE);
	return (void *) TYPEALIGN(GV_ALIGN, *chunk);
}

/* Centroids from the first n rows of the sample. */
static void
train_centroids(IvfpqTraining *training, const Sample *sample, int64 n,
				int lists)
{
	GvKmeans	spec = {.dims = sample->dims,.n = n,.k = lists,
		.iterations = KMEANS_ITERATIONS,.max_share = MAX_SHARE,
	.seed = TRAINING_SEED};
	void	   *chunk;
	void	   *scratch = alloc_scratch(gv_kmeans_scratch(&spec), &chunk);

	training->centroids = palloc_extended((Size) lists * sample->dims *
										  sizeof(float), MCXT_ALLOC_HUGE);
	IvfpqCheckStatus(gv_kmeans(&spec, sample->rows, training->centroids,
							   &training->nlists, scratch, &ivfpq_stop));
	pfree(chunk);
}

/* Codebooks from residuals, which take the place of the sample's rows. */
static void
train_codebooks(IvfpqTraining *training, Sample *sample, int64 n)
{
	int			dims = sample->dims;
	int32	   *lists;
	void	   *chunk;
	void	   *scratch;

	n = Min(n, CODEBOOK_SAMPLES);
	lists = palloc(n * sizeof(int32));
	IvfpqCheckStatus(gv_assign(dims, training->centroids, training->nlists,
							   sample->rows, n, lists, NULL, &ivfpq_stop));
	for (int64 i = 0; i < n; i++)
	{
		const float *centroid = training->centroids + (Size) lists[i] * dims;

		for (int d = 0; d < dims; d++)
			sample->rows[i * dims + d] -= centroid[d];
	}
	pfree(lists);

	training->codebooks = palloc((Size) GV_CODEWORDS * dims * sizeof(float));
	scratch = alloc_scratch(gv_codebooks_scratch(dims, training->gv.m, n),
							&chunk);
	IvfpqCheckStatus(gv_codebooks(dims, training->gv.m, n, sample->rows,
								  TRAINING_SEED, training->codebooks, scratch,
								  &ivfpq_stop));
	pfree(chunk);
	training->gv.codebooks = training->codebooks;
}

/* Sub-quantizers: the option, checked against the dimension, or the default. */
static int
choose_pq_dim(Relation index, int dims)
{
	IvfpqOptions *options = (IvfpqOptions *) index->rd_options;
	int			given = options ? options->pq_dim : 0;
	int			most = Min(dims, IvfpqMaxPqDim());

	if (given > most)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("pq_dim %d is too large for %d dimensions", given, dims),
				 errhint("Use %d at most, or 0 to let it follow from the dimension.",
						 most)));
	return given > 0 ? given : IvfpqDefaultPqDim(dims);
}

/*
 * Train from the table, unless it has too few rows (training->nlists = 0).
 * training->gv.dims is what the rows have, or 0 when there are none.
 */
void
IvfpqTrain(IvfpqTraining *training, Relation heap, Relation index,
		   IndexInfo *indexInfo, IvfpqType *type)
{
	IvfpqOptions *options = (IvfpqOptions *) index->rd_options;
	Sample		sample = {.type = type};
	int64		nsamples;
	int			lists;
	int			enough = IVFPQ_MIN_TRAIN_ROWS;

	memset(training, 0, sizeof(*training));
	sample.dims = IvfpqIndexDims(index, type);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_SAMPLING);
	take_sample(&sample, heap, index, indexInfo, &training->rows);

	training->gv.metric = type->metric;
	training->gv.dims = sample.dims;
	if (options && options->lists > 0)
		enough = Min(enough, options->lists);
	if (sample.dims > 0)
		training->gv.m = choose_pq_dim(index, sample.dims);
	if (sample.count < enough)
		return;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CLUSTERING);
	lists = choose_lists(index, &sample, training->rows, &nsamples);
	shuffle_sample(&sample, nsamples);
	transform_sample(training, &sample, nsamples);
	train_centroids(training, &sample, nsamples, lists);

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CODES);
	train_codebooks(training, &sample, nsamples);
	pfree(sample.rows);
}
