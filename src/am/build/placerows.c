/*
 * placerows.c
 *		Rows get lists, codes and refine records, by gpuvecd or by the
 *		backend's own engine.
 *
 * When gpuvecd fails, the rows that it was sent and has not answered are
 * placed here, like all rows after them; centroids and codebooks are the same.
 *
 * gpuvecd has the rows of the sample, so a pass over the table may leave them
 * out (IvfpqSharing).  When it fails, another pass is needed for those that it
 * has not encoded.
 *
 * Keys do not travel: they wait here for the lists and codes of their rows,
 * which come back in the order in which rows were sent.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/float.h"
#include "utils/memutils.h"

#include "am/build/placerows.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/search/search.h"
#include "page/injection.h"

/*
 * Memory for rows that are placed at once: BATCH_BYTES, or the limit divided
 * by BATCH_DIVISOR if that is more.
 */
#define BATCH_BYTES		(4 * 1024 * 1024)
#define BATCH_DIVISOR		32
#define SENT_ROWS		8192	/* whose keys wait, to begin with */

/* IvfpqEncodedSink: takes rows that gpuvecd has encoded. */
static void
take_encoded(void *arg, const uint64 *ids, const GvEncoded *encoded, int n)
{
	IvfpqPlacer *placer = arg;

	if (placer->calibration)
		IvfpqCalibrationTake(placer->calibration, encoded->neighbors,
							 encoded->nneighbors, ids);
	if (placer->sent != NULL && placer->end_sent - placer->first_sent < n)
		elog(ERROR, "gpuvecd has encoded more rows than it was given");
	placer->sink(placer->sink_arg, ids, placer->sent == NULL ? NULL :
				 placer->sent + placer->first_sent, encoded, n);
	placer->first_sent += n;
	IvfpqInjectionPoint("build: encoded");
}

/* A row goes to gpuvecd: keep its keys. */
static void
keep_sent(IvfpqPlacer *placer, const IvfpqKeyAbbrevs *keys)
{
	int64		n = placer->end_sent - placer->first_sent;

	if (placer->sent == NULL)
	{
		placer->max_sent = SENT_ROWS;
		placer->sent = MemoryContextAlloc(placer->context, placer->max_sent *
										  sizeof(IvfpqKeyAbbrevs));
	}
	else if (placer->end_sent == placer->max_sent)
	{
		if (n > placer->max_sent / 2)
		{
			placer->max_sent *= 2;
			placer->sent = repalloc_huge(placer->sent, placer->max_sent *
										 sizeof(IvfpqKeyAbbrevs));
		}
		memmove(placer->sent, placer->sent + placer->first_sent,
				n * sizeof(IvfpqKeyAbbrevs));
		placer->first_sent = 0;
		placer->end_sent = n;
	}
	placer->sent[placer->end_sent++] = *keys;
}

/*
 * Begins, with the builder that trained, or one that joined it, if there is
 * one; with `sharing` its sample is not added again.  Memory from the current
 * context.
 */
void
IvfpqPlacerBegin(IvfpqPlacer *placer, Relation index,
				 const IvfpqTraining *training, int nparts,
				 IvfpqSharing *sharing, IvfpqCalibration *calibration,
				 IvfpqRefine refine, IvfpqPlacedSink sink, void *sink_arg)
{
	memset(placer, 0, sizeof(*placer));
	placer->index = index;
	IvfpqTypeInit(&placer->type, index);
	placer->training = training;
	placer->nparts = nparts;
	placer->builder = training->builder;
	placer->sharing = sharing;
	placer->calibration = calibration;
	placer->refine = refine;
	placer->sink = sink;
	placer->sink_arg = sink_arg;
	placer->context = AllocSetContextCreate(CurrentMemoryContext,
											"gpuivfpq rows to place",
											ALLOCSET_DEFAULT_SIZES);
	if (placer->builder)
		IvfpqBuilderTo(placer->builder, take_encoded, placer);
}

/* Allocates memory for rows that are placed here, with or without keys. */
static void
make_batch(IvfpqPlacer *placer, bool keys)
{
	const IvfpqTraining *training = placer->training;
	MemoryContext oldcontext = MemoryContextSwitchTo(placer->context);
	int			dims = training->gv.dims;
	GvEncoded  *encoded = &placer->encoded;
	void	   *chunk;
	int			n;
	int			postings;

	(void) IvfpqAllocGroups(training, &placer->groups);
	n = IvfpqRowsToPlace(&placer->groups,
						 Max(BATCH_BYTES, IvfpqMemoryLimit() / BATCH_DIVISOR /
							 placer->nparts));
	postings = n * training->lists_per_row;
	placer->batch_rows = n;
	placer->batch = palloc((Size) n * dims * sizeof(float));
	placer->ids = palloc(n * sizeof(uint64));
	if (keys)
		placer->keys = palloc(n * sizeof(IvfpqKeyAbbrevs));
	placer->scratch = IvfpqAllocScratch(gv_place_scratch(&placer->groups, n,
														 training->lists_per_row),
										&chunk);
	encoded->lists = palloc(postings * sizeof(int32));
	encoded->t = palloc(postings * sizeof(float));
	encoded->codes = palloc((Size) postings * gv_code_bytes(training->gv.m));
	if (placer->refine != IVFPQ_REFINE_NONE)
	{
		encoded->min = palloc0(n * sizeof(float));
		encoded->step = palloc0(n * sizeof(float));
		encoded->error = palloc(n * sizeof(float));
		encoded->records = palloc((Size) n *
								  IvfpqRecordCodeBytes(placer->refine, dims));
		placer->boundable = palloc(n * sizeof(bool));
	}
	MemoryContextSwitchTo(oldcontext);
}

/* Encodes the refine records of the n rows that wait here, transformed. */
static void
encode_records(IvfpqPlacer *placer, int n)
{
	GvEncoded  *encoded = &placer->encoded;
	int			dims = placer->training->gv.dims;

	if (placer->refine == IVFPQ_REFINE_HALF)
		IvfpqCheckStatus(gv_half_encode(dims, placer->batch, n,
										(uint16 *) (void *) encoded->records,
										encoded->error));
	else
		IvfpqCheckStatus(gv_refine_encode(dims, placer->batch, n,
										  encoded->records, encoded->min,
										  encoded->step, encoded->error));
	IvfpqRecordAllow(&placer->training->gv, placer->batch, n, encoded->error);
	for (int i = 0; i < n; i++)
		if (!placer->boundable[i])
			encoded->error[i] = get_float4_infinity();
}

/* Place and encode the rows that wait here. */
static void
flush_batch(IvfpqPlacer *placer)
{
	const IvfpqTraining *training = placer->training;
	GvEncoded  *encoded = &placer->encoded;
	int			lists_per_row = training->lists_per_row;
	int			n = placer->nbatch;

	if (n == 0)
		return;
	gv_transform(&training->gv, placer->batch, n, placer->batch);
	IvfpqCheckStatus(gv_place(&placer->groups, placer->batch, n, lists_per_row,
							  encoded->lists, placer->scratch, &ivfpq_stop));
	IvfpqCheckStatus(gv_encode(&training->gv, placer->batch,
							   training->centroids, encoded->lists, n,
							   lists_per_row,
							   encoded->codes, encoded->t));
	if (placer->refine != IVFPQ_REFINE_NONE)
		encode_records(placer, n);
	if (placer->calibration)
		IvfpqCalibrationOffer(placer->calibration, placer->batch, placer->ids,
							  n);
	placer->nbatch = 0;
	placer->sink(placer->sink_arg, placer->ids, placer->keys, encoded, n);
	CHECK_FOR_INTERRUPTS();
}

/* Let a raw row [dims] wait for its batch here. */
static void
add_here(IvfpqPlacer *placer, const float *row, uint64 id,
		 const IvfpqKeyAbbrevs *keys)
{
	int			dims = placer->training->gv.dims;

	if (placer->batch_rows == 0)
		make_batch(placer, keys != NULL);
	memcpy(placer->batch + (Size) placer->nbatch * dims, row,
		   dims * sizeof(float));
	if (placer->refine != IVFPQ_REFINE_NONE)
		placer->boundable[placer->nbatch] =
			IvfpqIsBoundable(&placer->type, row, dims);
	if (keys != NULL)
		placer->keys[placer->nbatch] = *keys;
	placer->ids[placer->nbatch++] = id;
	if (placer->nbatch == placer->batch_rows)
		flush_batch(placer);
}

/*
 * gpuvecd has failed: places the rows here that it has not answered.  The
 * first participant of a build that finds the failure reports it.
 */
static void
take_over(IvfpqPlacer *placer)
{
	IvfpqBuilder *builder = placer->builder;
	IvfpqSharing *sharing = placer->sharing;
	int			dims = placer->training->gv.dims;
	const float *rows;
	const uint64 *ids;
	int			n;

	placer->builder = NULL;
	if (sharing == NULL || pg_atomic_exchange_u32(&sharing->failed, 1) == 0)
		IvfpqBuilderFailed(placer->index, IvfpqBuilderReason(builder), true);
	while (IvfpqBuilderUnanswered(builder, &rows, &ids, &n))
		for (int i = 0; i < n; i++)
			add_here(placer, rows + (Size) i * dims, ids[i],
					 placer->sent == NULL ? NULL :
					 &placer->sent[placer->first_sent++]);
	IvfpqBuilderEnd(builder);
}

/* Returns whether a row that a pass over the table finds is to be added. */
bool
IvfpqPlacerWants(IvfpqPlacer *placer, uint64 id)
{
	return placer->sharing == NULL ||
		IvfpqSharingWants(placer->sharing, id, &placer->at);
}

/* Ends a pass over the table: waits until gpuvecd has answered all rows. */
void
IvfpqPlacerFlush(IvfpqPlacer *placer)
{
	if (placer->builder && !IvfpqBuilderFlush(placer->builder))
		take_over(placer);
	placer->at = 0;
}

/*
 * Let a raw row [dims], with this TID and keys, or NULL, be placed.  gpuvecd
 * does not know what the operator makes of a row: records that bound nothing
 * are made here.
 */
void
IvfpqPlacerAdd(IvfpqPlacer *placer, const float *row, uint64 id,
			   const IvfpqKeyAbbrevs *keys)
{
	if (placer->builder == NULL ||
		(placer->refine != IVFPQ_REFINE_NONE &&
		 !IvfpqIsBoundable(&placer->type, row, placer->training->gv.dims)))
	{
		add_here(placer, row, id, keys);
		return;
	}
	if (keys != NULL)
		keep_sent(placer, keys);
	if (!IvfpqBuilderAdd(placer->builder, row, id))
		take_over(placer);
}

/*
 * There are no more rows: places those that still wait, and frees the memory
 * for them, because writing lists uses all that is allowed.  Returns the
 * builder if it has answered all rows that it was sent, else NULL.
 */
IvfpqBuilder *
IvfpqPlacerEnd(IvfpqPlacer *placer)
{
	IvfpqPlacerFlush(placer);
	if (placer->batch_rows > 0)
		flush_batch(placer);
	MemoryContextDelete(placer->context);
	placer->context = NULL;
	return placer->builder;
}
