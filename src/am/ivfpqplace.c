/*
 * ivfpqplace.c
 *		Rows get lists, codes and refine records, by gpuvecd or by the
 *		session's own engine.
 *
 * What gpuvecd was given and has not answered when it fails is placed here,
 * like all rows after that; centroids and codebooks are the same.
 *
 * gpuvecd has the rows of the sample, so a pass over the table may leave them
 * out (IvfpqPlacerReuse).  When it fails another pass is needed for those that
 * it has not encoded.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/ivfpqplace.h"
#include "page/ivfpqfault.h"

/* Rows placed at once: enough to keep the engine busy, and in the cache. */
#define BATCH_ROWS		2048
#define BATCH_BYTES		(4 * 1024 * 1024)

/* IvfpqEncodedSink: what gpuvecd made of rows. */
static void
take_encoded(void *arg, const uint64 *ids, const GvEncoded *encoded, int n)
{
	IvfpqPlacer *placer = arg;

	if (placer->calibration)
		IvfpqCalibrationTake(placer->calibration, encoded->neighbours,
							 encoded->nneighbours, ids);
	placer->sink(placer->sink_arg, ids, encoded, n);
	IvfpqFault("build: encoded");
}

/*
 * Begin, with the builder that trained, if one did; memory from the current
 * context.
 */
void
IvfpqPlacerBegin(IvfpqPlacer *placer, Relation index,
				 const IvfpqTraining *training,
				 IvfpqCalibration *calibration, bool refine,
				 IvfpqEncodedSink sink, void *sink_arg)
{
	memset(placer, 0, sizeof(*placer));
	placer->index = index;
	placer->training = training;
	placer->builder = training->builder;
	placer->calibration = calibration;
	placer->refine = refine;
	placer->sink = sink;
	placer->sink_arg = sink_arg;
	placer->context = CurrentMemoryContext;
	if (placer->builder)
		IvfpqBuilderTo(placer->builder, take_encoded, placer);
}

/* Memory for rows that are placed here. */
static void
make_batch(IvfpqPlacer *placer)
{
	const IvfpqTraining *training = placer->training;
	MemoryContext oldcontext = MemoryContextSwitchTo(placer->context);
	int			dims = training->gv.dims;
	int			n = Max(16, Min(BATCH_ROWS, BATCH_BYTES /
								(dims * sizeof(float))));
	int			copies = n * training->copies;
	GvEncoded  *encoded = &placer->encoded;
	GvTree		tree = IvfpqTree(training);
	void	   *chunk;

	placer->batch_rows = n;
	placer->batch = palloc((Size) n * dims * sizeof(float));
	placer->ids = palloc(n * sizeof(uint64));
	placer->scratch = IvfpqAllocScratch(gv_place_scratch(&tree, n), &chunk);
	encoded->lists = palloc(copies * sizeof(int32));
	encoded->t = palloc(copies * sizeof(float));
	encoded->codes = palloc((Size) copies * gv_code_bytes(training->gv.m));
	if (placer->refine)
	{
		encoded->min = palloc(n * sizeof(float));
		encoded->step = palloc(n * sizeof(float));
		encoded->error = palloc(n * sizeof(float));
		encoded->records = palloc((Size) n * dims);
	}
	MemoryContextSwitchTo(oldcontext);
}

/* Place and encode the rows that wait here. */
static void
flush_batch(IvfpqPlacer *placer)
{
	const IvfpqTraining *training = placer->training;
	GvEncoded  *encoded = &placer->encoded;
	GvTree		tree = IvfpqTree(training);
	int			dims = training->gv.dims;
	int			copies = training->copies;
	int			n = placer->nbatch;

	if (n == 0)
		return;
	gv_transform(&training->gv, placer->batch, n, placer->batch);
	IvfpqCheckStatus(gv_place(&tree, placer->batch, n, copies,
							  encoded->lists, placer->scratch, &ivfpq_stop));
	for (int i = 0; i < n * copies; i++)
		if (encoded->lists[i] >= 0)
			IvfpqCheckStatus(gv_encode(&training->gv, placer->batch +
									   (Size) (i / copies) * dims,
									   training->centroids +
									   (Size) encoded->lists[i] * dims, 1,
									   encoded->codes + (Size) i *
									   gv_code_bytes(training->gv.m),
									   &encoded->t[i]));
	if (placer->refine)
		IvfpqCheckStatus(gv_refine_encode(dims, placer->batch, n,
										  encoded->records, encoded->min,
										  encoded->step, encoded->error));
	if (placer->calibration)
		IvfpqCalibrationOffer(placer->calibration, placer->batch, placer->ids,
							  n);
	placer->nbatch = 0;
	placer->sink(placer->sink_arg, placer->ids, encoded, n);
	CHECK_FOR_INTERRUPTS();
}

/* Let a raw row [dims] wait for its batch here. */
static void
add_here(IvfpqPlacer *placer, const float *row, uint64 id)
{
	int			dims = placer->training->gv.dims;

	if (placer->batch_rows == 0)
		make_batch(placer);
	memcpy(placer->batch + (Size) placer->nbatch * dims, row,
		   dims * sizeof(float));
	placer->ids[placer->nbatch++] = id;
	if (placer->nbatch == placer->batch_rows)
		flush_batch(placer);
}

/* gpuvecd has failed: do here what it has not done. */
static void
take_over(IvfpqPlacer *placer)
{
	IvfpqBuilder *builder = placer->builder;
	int			dims = placer->training->gv.dims;
	const float *rows;
	const uint64 *ids;
	int			n;

	placer->builder = NULL;
	IvfpqBuilderFailed(placer->index, IvfpqBuilderReason(builder));
	while (IvfpqBuilderUnanswered(builder, &rows, &ids, &n))
	{
		if (rows == NULL)
		{
			memcpy(placer->lost + placer->nlost, ids, n * sizeof(uint64));
			placer->nlost += n;
		}
		for (int i = 0; i < n && rows != NULL; i++)
			add_here(placer, rows + (Size) i * dims, ids[i]);
	}
	IvfpqBuilderEnd(builder);
}

/*
 * Have the rows encoded that gpuvecd has from training, unless we place rows
 * ourselves.  From now on IvfpqPlacerWants tells which others are to be added.
 */
void
IvfpqPlacerReuse(IvfpqPlacer *placer)
{
	const uint64 *ids;
	Size		bytes;

	if (placer->builder == NULL)
		return;
	placer->nsampled = IvfpqBuilderReuse(placer->builder, &ids);
	bytes = placer->nsampled * sizeof(uint64);
	placer->sampled = palloc_extended(bytes, MCXT_ALLOC_HUGE);
	placer->lost = palloc_extended(bytes, MCXT_ALLOC_HUGE);
	memcpy(placer->sampled, ids, bytes);
	qsort(placer->sampled, placer->nsampled, sizeof(uint64), IvfpqCompareIds);
}

/* The first of ids [n], ascending, that is not below the id. */
static int64
find_id(const uint64 *ids, int64 n, uint64 id)
{
	int64		low = 0;
	int64		high = n;

	while (low < high)
	{
		int64		middle = low + (high - low) / 2;

		if (ids[middle] < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Is a row that a pass over the table comes to to be added? */
bool
IvfpqPlacerWants(IvfpqPlacer *placer, uint64 id)
{
	const uint64 *ids = placer->sampled;
	int64		n = placer->nsampled;
	int64		at = placer->at;

	/* rows come in the order of the table, by and large */
	if (at > 0 && ids[at - 1] >= id)
		at = find_id(ids, n, id);
	while (at < n && ids[at] < id)
		at++;
	placer->at = at;
	return (at < n && ids[at] == id) == placer->recovering;
}

/*
 * A pass over the table is over: true when another one is needed, for rows
 * that gpuvecd had and lost.
 */
bool
IvfpqPlacerRecover(IvfpqPlacer *placer)
{
	if (placer->builder && !IvfpqBuilderFlush(placer->builder))
		take_over(placer);
	if (placer->nlost == 0 || placer->recovering)
		return false;
	placer->recovering = true;
	placer->sampled = placer->lost;
	placer->nsampled = placer->nlost;
	placer->at = 0;
	qsort(placer->sampled, placer->nsampled, sizeof(uint64), IvfpqCompareIds);
	return true;
}

/* Let a raw row [dims], with this TID, be placed. */
void
IvfpqPlacerAdd(IvfpqPlacer *placer, const float *row, uint64 id)
{
	if (placer->builder == NULL)
		add_here(placer, row, id);
	else if (!IvfpqBuilderAdd(placer->builder, row, id))
		take_over(placer);
}

/*
 * There are no more rows: place those that still wait.  Returns the builder,
 * if it did all of them.
 */
IvfpqBuilder *
IvfpqPlacerEnd(IvfpqPlacer *placer)
{
	if (placer->builder && !IvfpqBuilderFlush(placer->builder))
		take_over(placer);
	if (placer->batch_rows > 0)
		flush_batch(placer);
	return placer->builder;
}
