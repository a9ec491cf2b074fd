/*
 * remotetrain.c
 *		From a sample of the table to centroids and codebooks, by gpuvecd.
 *
 * Rows go there raw, as they are read.  A failure leaves nothing behind but
 * memory, so that the backend's own engine can begin from the start.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"

#include "am/common/options.h"
#include "am/common/util.h"
#include "am/train/train.h"
#include "page/injection.h"

/* Sends the rest of the sample, after n rows of it. */
static bool
send_rest(IvfpqReader *reader, IvfpqParallel *parallel, IvfpqBuilder *builder,
		  int64 n, int64 nrows)
{
	IvfpqReaderSkip(reader, reader->training->query_ids,
					reader->training->nqueries);
	IvfpqReaderSkip(reader, reader->sample->ids, n);
	return IvfpqSendRows(reader, parallel, builder, nrows - n);
}

/*
 * Sends the queries, then the sample: first rows in random order, of which
 * codebooks are made, then, unless these are all, rows that are read.
 */
static bool
send_sample(const IvfpqTraining *training, IvfpqParallel *parallel,
			const IvfpqSample *sample, IvfpqBuilder *builder, int64 nrows,
			IvfpqReader *reader)
{
	int64		n = sample->whole ? sample->count :
	Min(sample->count, GV_CODEBOOK_ROWS);

	return IvfpqBuilderTrainOn(builder, GV_QUERIES, training->queries, NULL,
							   training->nqueries) &&
		IvfpqBuilderTrainEnd(builder, GV_QUERIES) &&
		IvfpqBuilderTrainOn(builder, GV_SAMPLE, sample->rows, sample->ids,
							n) &&
		IvfpqBuilderTrainEnd(builder, GV_SAMPLE) &&
		(sample->whole || n >= nrows ||
		 send_rest(reader, parallel, builder, n, nrows));
}

/* Has gpuvecd train, and gets what it made. */
static bool
get_model(IvfpqTraining *training, IvfpqParallel *parallel,
		  IvfpqBuilder *builder)
{
	Size		row = training->gv.dims * sizeof(float);
	GvTrained	trained;

	if (!IvfpqBuilderTrain(builder, &trained))
		return false;
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_CODES);
	training->codebooks =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_CODEBOOKS,
						   GV_CODEWORDS * row);
	training->parents = IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_PARENTS,
										   trained.nparents * row);
	training->parent_offsets =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_PARENT_OFFSETS,
						   (trained.nparents + 1) * sizeof(int32));
	training->centroids =
		IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_CENTROIDS,
						   trained.nlists * row);
	if (!IvfpqBuilderArray(builder, GV_CODEBOOKS, training->codebooks) ||
		!IvfpqBuilderArray(builder, GV_PARENTS, training->parents) ||
		!IvfpqBuilderArray(builder, GV_PARENT_OFFSETS,
						   training->parent_offsets) ||
		!IvfpqBuilderArray(builder, GV_CENTROIDS, training->centroids))
		return false;
	training->gv.codebooks = training->codebooks;
	training->nlists = trained.nlists;
	training->nparents = trained.nparents;
	training->builder = builder;
	return true;
}

/*
 * Sends the sample, has gpuvecd train, and gets the model; false: it failed.
 * Injection points are named for what has been done.
 */
static bool
train(IvfpqTraining *training, IvfpqParallel *parallel,
	  const IvfpqSample *sample,
	  IvfpqBuilder *builder, int64 nrows, IvfpqReader *reader)
{
	IvfpqInjectionPoint("build: begun");
	if (!send_sample(training, parallel, sample, builder, nrows, reader))
		return false;
	IvfpqInjectionPoint("build: sent");
	if (!get_model(training, parallel, builder))
		return false;
	IvfpqInjectionPoint("build: trained");
	return true;
}

StaticAssertDecl((int) IVFPQ_REFINE_SQ8 == (int) GV_RECORDS_BYTES &&
				 (int) IVFPQ_REFINE_HALF == (int) GV_RECORDS_HALF,
				 "the engine knows kinds of records by the same numbers");

/*
 * Trains `lists` lists on about reader->rows_needed rows, or on the sample if
 * that is the whole table; neither it nor the queries are transformed yet.  On
 * success training->builder is there to encode rows.
 */
bool
IvfpqTrainRemote(IvfpqTraining *training, IvfpqParallel *parallel,
				 Relation index,
				 const IvfpqSample *sample, int lists, IvfpqReader *reader)
{
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
	if (train(training, parallel, sample, builder, nrows, reader))
		return true;
	IvfpqBuilderFailed(index, IvfpqBuilderReason(builder), false);
	IvfpqBuilderEnd(builder);
	return false;
}
