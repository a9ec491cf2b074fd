/*
 * bulkload.c
 *		From rows to inverted lists, in bulk: have every row placed and
 *		encoded, write its refine record, gather the postings by list, write
 *		centroids, codebooks, directory and lists.
 *
 * CREATE INDEX feeds it from the table, training in place from the pending
 * list.  Until the caller writes the metapage no reader finds any of it.
 *
 * Every participant of a build has an IvfpqBulkLoad, and places the rows that
 * it reads.  When all rows are placed, lists are written in ranges; a
 * participant that has written one range takes the next.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"

#include "am/build/bulkload.h"
#include "am/calibrate/ladder.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "page/array.h"
#include "page/injection.h"

/* Ranges of lists for each participant, so that none waits long for others. */
#define RANGES_EACH		4

/* Writes the refine record of row i; returns its address. */
static ItemPointerData
write_record(IvfpqBulkLoad *load, const GvEncoded *encoded, int i, uint64 id)
{
	int			code_bytes = load->refine.code_bytes;
	IvfpqRecord *record = load->record;
	ItemPointerData address;

	record->min = encoded->min[i];
	record->step = encoded->step[i];
	record->error = encoded->error[i];
	IvfpqIdToTid(id, &record->tid);
	memcpy(record->codes, encoded->records + (Size) i * code_bytes,
		   code_bytes);
	IvfpqRecordBuilderAdd(&load->refine, record, &address);
	return address;
}

/* Adds a posting to a list. */
static void
put_posting(IvfpqBulkLoad *load, uint32 list, const IvfpqPosting *posting)
{
	if (load->parallel->has_workers)
	{
		IvfpqStorePosting(&load->form, load->item, list, posting);
		IvfpqTempFilePut(&load->ranges,
						 IvfpqTempFileRange(&load->ranges, (int) list,
											load->training->nlists),
						 load->item, load->form.bytes);
	}
	else
		IvfpqPostingsPut(&load->postings, list, posting);
	load->npostings++;
}

/* IvfpqPlacedSink: rows [n] with these TIDs have been placed. */
static void
take_rows(void *arg, const uint64 *ids, const IvfpqKeyAbbrevs *keys,
		  const GvEncoded *encoded, int n)
{
	IvfpqBulkLoad *load = arg;
	int			lists_per_row = load->training->lists_per_row;
	int			code_bytes = gv_code_bytes(load->training->gv.m);

	for (int i = 0; i < n; i++)
	{
		IvfpqPosting posting = {.keys = keys == NULL ? NULL : &keys[i]};

		IvfpqIdToTid(ids[i], &posting.tid);
		if (load->record != NULL)
			posting.refine = write_record(load, encoded, i, ids[i]);
		for (int c = 0; c < lists_per_row; c++)
		{
			int			at = i * lists_per_row + c;

			if (encoded->lists[at] < 0)
				continue;
			posting.t = encoded->t[at];
			posting.code = encoded->codes + (Size) at * code_bytes;
			posting.secondary = c > 0;
			put_posting(load, encoded->lists[at], &posting);
		}
	}
	IvfpqParallelProgress(load->parallel, n);
}

/*
 * Returns the bytes of memory for this participant's postings: its fraction of
 * the limit, less the groups through which it places rows.  The lists'
 * centroids, which all share, are deducted before.
 */
static Size
postings_limit(const IvfpqBulkLoad *load)
{
	const IvfpqTraining *training = load->training;
	GvTree		tree = IvfpqTree(training);
	Size		used = (Size) training->nlists * training->gv.dims *
	sizeof(float);
	Size		limit = IvfpqMemoryLimit();
	Size		part = limit > used ? (limit - used) / load->parallel->shared->nparts : 0;

	used = gv_groups_bytes(&tree);
	return part > used ? part - used : 0;
}

/*
 * The leader allocates the entries of the directory before participants begin.
 */
void
IvfpqBulkLoadPrepare(IvfpqParallel *parallel, const IvfpqTraining *training)
{
	Size		bytes = training->nlists * sizeof(IvfpqDirEntry);

	memset(IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_ENTRIES, bytes), 0,
		   bytes);
}

/*
 * Begins; memory from the current context.  *meta says whether there are keys
 * and refine records; the index has no records yet.  With `log` each page of
 * records is logged when it is full, because the index is not logged as a
 * whole.
 */
void
IvfpqBulkLoadBegin(IvfpqBulkLoad *load, Relation index,
				   const IvfpqTraining *training, IvfpqParallel *parallel,
				   const IvfpqMetaData *meta, bool log)
{
	int			dims = training->gv.dims;
	IvfpqRefine refine = meta->refine;
	IvfpqKeyForm keys;

	memset(load, 0, sizeof(*load));
	(void) IvfpqKeyFormGet(meta, &keys);
	IvfpqStoredInit(&load->form, gv_code_bytes(training->gv.m), &keys);
	load->training = training;
	load->parallel = parallel;
	if (refine != IVFPQ_REFINE_NONE)
	{
		load->record = IvfpqRecordAlloc(refine, dims);
		IvfpqRecordBuilderInit(&load->refine, index,
							   IvfpqRecordCodeBytes(refine, dims), log);
	}
	if (parallel->has_workers)
	{
		IvfpqTempFileBegin(&load->ranges, parallel, "copies",
						   Min(RANGES_EACH * parallel->shared->nparts,
							   training->nlists));
		load->item = palloc(load->form.bytes);
	}
	else
		IvfpqPostingsBegin(&load->postings, training->nlists, &load->form,
						   postings_limit(load));
	if (training->nqueries > 0)
		load->calibration = IvfpqCalibrationBegin(&training->gv,
												  training->nqueries,
												  training->queries,
												  training->held_out,
												  training->query_ids,
												  training->depth);
	IvfpqPlacerBegin(&load->placer, index, training, parallel->shared->nparts,
					 IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING),
					 load->calibration, refine, take_rows, load);
}

/*
 * Returns how a row that a pass over the table finds is to be used.  gpuvecd
 * has the rows of the sample, so the first pass leaves them out; a second pass
 * is for those that it has lost.
 */
IvfpqRowUse
IvfpqBulkLoadWants(IvfpqBulkLoad *load, uint64 id)
{
	const IvfpqSharing *sharing = load->placer.sharing;
	int			use = IVFPQ_ROW_NONE;

	if (IvfpqPlacerWants(&load->placer, id))
		use |= IVFPQ_ROW_PLACED;
	if (load->calibration && (sharing == NULL || !sharing->recovering) &&
		IvfpqLevelHas(1, id))
		use |= IVFPQ_ROW_SAMPLED;
	return use;
}

/* Takes a raw vector [dims], of the row with this TID and these keys. */
void
IvfpqBulkLoadRow(IvfpqBulkLoad *load, const float *row, uint64 id,
				 const IvfpqKeyAbbrevs *keys, IvfpqRowUse use)
{
	if (use & IVFPQ_ROW_SAMPLED)
		IvfpqCalibrationSample(load->calibration, row, id);
	if (use & IVFPQ_ROW_PLACED)
		IvfpqPlacerAdd(&load->placer, row, id,
					   load->form.keys.nkeys > 0 ? keys : NULL);
}

/*
 * This participant has no more rows: places those that still wait, and passes
 * on what belongs to others.
 */
static void
finish_rows(IvfpqBulkLoad *load, Relation index)
{
	IvfpqParallel *parallel = load->parallel;
	IvfpqBuilder *builder = IvfpqPlacerEnd(&load->placer);

	if (load->record != NULL)
		IvfpqRecordBuilderFinish(&load->refine,
								 &parallel->shared->refine_head);
	if (parallel->has_workers)
		IvfpqTempFileDone(&load->ranges);
	if (load->calibration)
		IvfpqCalibrationFlush(load->calibration);
	if (load->calibration && parallel->has_workers)
		IvfpqGroundTruthExport(load->calibration, parallel);
	pg_atomic_fetch_add_u64(&parallel->shared->npostings, load->npostings);
	IvfpqCalibMirrorJoin(&load->calib_mirror, index,
						 load->calibration ? builder : NULL,
						 IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING),
						 gv_code_bytes(load->training->gv.m));
}

/* All rows are placed: writes the arrays of the model, and fills in *meta. */
static void
write_model(IvfpqBulkLoad *load, Relation index, IvfpqMetaData *meta,
			bool shared)
{
	const IvfpqTraining *training = load->training;
	IvfpqParallelShared *parallel = load->parallel->shared;
	int			dims = training->gv.dims;
	GvTree		tree = IvfpqTree(training);

	load->rows = (int64) pg_atomic_read_u64(&parallel->done);
	meta->refine_head = pg_atomic_read_u32(&parallel->refine_head);
	meta->dims = dims;
	meta->pq_dim = training->gv.m;
	meta->nlists = training->nlists;
	meta->nparents = training->nparents;
	meta->lists_per_row = training->lists_per_row;
	meta->scale = training->gv.scale;
	meta->rotated = training->rotation != NULL;
	meta->rows_at_training = load->rows;
	IvfpqMetaPlace(meta, 0);
	IvfpqMetaPlace(meta, IvfpqReserve(index, IvfpqModelPages(meta), shared));

	IvfpqArrayWrite(index, meta->mean, training->mean, dims, shared);
	IvfpqArrayWrite(index, meta->codebooks, training->codebooks,
					(int64) GV_CODEWORDS * dims, shared);
	IvfpqArrayWrite(index, meta->parents, training->parents,
					(int64) training->nparents * dims, shared);
	IvfpqArrayWrite(index, meta->parent_offsets,
					(const float *) training->parent_offsets,
					training->nparents + 1, shared);
	IvfpqArrayWrite(index, meta->centroids, training->centroids,
					(int64) training->nlists * dims, shared);
	IvfpqCodedWrite(index, meta, &training->gv, &tree, shared);
	if (meta->rotated)
		IvfpqArrayWrite(index, meta->rotation, training->rotation,
						(int64) dims * dims, shared);
}

/* The leader's work between placing rows and writing lists. */
static void
begin_writing(IvfpqBulkLoad *load, Relation index, IvfpqMetaData *meta,
			  bool shared)
{
	IvfpqParallelShared *parallel = load->parallel->shared;

	if (load->calibration && load->parallel->has_workers)
		IvfpqGroundTruthImport(load->calibration, load->parallel);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_WRITING);
	write_model(load, index, meta, shared);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 load->rows);
	IvfpqCalibMirrorAgree(&load->calib_mirror);
	IvfpqCalibMirrorBegin(&load->calib_mirror,
						  pg_atomic_read_u64(&parallel->npostings));
	parallel->meta = *meta;
}

/*
 * Returns the next posting for the pages, and adds it to the calibration
 * mirror.
 */
static void
next_posting(void *arg, IvfpqPosting *posting)
{
	IvfpqBulkLoad *load = arg;

	IvfpqPostingsNext(&load->postings, posting);
	IvfpqCalibMirrorAdd(&load->calib_mirror, posting);
}

/* Sorts the postings, of lists from `first` on, and writes these lists. */
static void
write_lists(IvfpqBulkLoad *load, Relation index, const IvfpqMetaData *meta,
			int first, bool shared)
{
	IvfpqPostings *postings = &load->postings;
	const uint32 *counts = postings->counts;
	IvfpqDirEntry *entries = IvfpqParallelMemory(load->parallel,
												 IVFPQ_PARALLEL_ENTRIES);
	IvfpqWriter writer;

	IvfpqPostingsSort(postings);
	IvfpqWriterInit(&writer, index, meta, counts, postings->nlists, shared);
	for (int i = 0; i < postings->nlists; i++)
	{
		if (counts[i] == 0)
			continue;
		IvfpqCalibMirrorList(&load->calib_mirror, first + i, counts[i]);
		IvfpqWriterList(&writer, first + i, counts[i], next_posting, load,
						&entries[first + i]);
		IvfpqParallelProgress(load->parallel, entries[first + i].nfirst);
	}
	IvfpqWriterFinish(&writer);
	IvfpqPostingsEnd(postings);
}

/*
 * Gathers the postings that all participants have put for a range of lists,
 * from `first` on.
 */
static void
gather_range(IvfpqBulkLoad *load, int range, int first)
{
	for (int from = 0; from < load->parallel->shared->size; from++)
	{
		BufFile    *file = IvfpqTempFileOpen(&load->ranges, range, from);

		if (file == NULL)
			continue;
		while (IvfpqTempFileRead(file, load->item, load->form.bytes))
		{
			IvfpqPosting posting;
			IvfpqKeyAbbrevs keys;

			CHECK_FOR_INTERRUPTS();
			IvfpqTakePosting(&load->form, (const char *) load->item, &posting,
							 &keys);
			IvfpqPostingsPut(&load->postings, load->item->list - first,
							 &posting);
		}
		IvfpqTempFileClose(&load->ranges, file);
	}
}

/* Writes ranges of lists that no other participant writes. */
static void
write_ranges(IvfpqBulkLoad *load, Relation index, const IvfpqMetaData *meta,
			 bool shared)
{
	const IvfpqTempFile *ranges = &load->ranges;
	int			nlists = load->training->nlists;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq range of lists",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	int64		range;

	while (IvfpqParallelNext(load->parallel, ranges->nranges, &range))
	{
		int			first = IvfpqTempFileFirst(ranges, (int) range, nlists);
		int			end = IvfpqTempFileFirst(ranges, (int) range + 1, nlists);

		IvfpqPostingsBegin(&load->postings, end - first, &load->form,
						   postings_limit(load));
		gather_range(load, (int) range, first);
		write_lists(load, index, meta, first, shared);
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * Places the rows that still wait and, when all participants have done so,
 * writes the model's arrays and the lists to pages added for them.  With
 * `shared` others use the index meanwhile.  Fills in what *meta says of them.
 * IvfpqBulkLoadFinish does the rest when all participants have returned from
 * here.
 */
void
IvfpqBulkLoadWrite(IvfpqBulkLoad *load, Relation index, IvfpqMetaData *meta,
				   bool shared)
{
	IvfpqParallel *parallel = load->parallel;

	finish_rows(load, index);
	if (IvfpqParallelEndPhase(parallel))
	{
		begin_writing(load, index, meta, shared);
		IvfpqParallelStartPhase(parallel);
	}
	*meta = parallel->shared->meta;
	/* the leader may not have been able to begin the mirror */
	IvfpqCalibMirrorAgree(&load->calib_mirror);
	if (parallel->has_workers)
		write_ranges(load, index, meta, shared);
	else
		write_lists(load, index, meta, 0, shared);
	IvfpqCalibMirrorFlush(&load->calib_mirror);
	IvfpqInjectionPoint("build: written");
}

/*
 * All lists are written: the leader writes the directory and calibrates, with
 * the workers, which wait for the end of a phase.  The caller writes *meta.
 */
void
IvfpqBulkLoadFinish(IvfpqBulkLoad *load, Relation index, IvfpqMetaData *meta,
					bool shared)
{
	IvfpqDirectoryWrite(index, meta,
						IvfpqParallelMemory(load->parallel,
											IVFPQ_PARALLEL_ENTRIES),
						shared);
	IvfpqCalibMirrorAgree(&load->calib_mirror);
	if (load->calibration)
	{
		meta->rows_at_calibration = load->rows;
		IvfpqCalibrationRun(load->calibration, index, meta,
							&load->calib_mirror,
							load->parallel);
	}
	if (load->placer.builder)
		IvfpqBuilderEnd(load->placer.builder);
}

/* A worker helps to calibrate, if the leader asks for it. */
void
IvfpqBulkLoadHelp(IvfpqBulkLoad *load, Relation index)
{
	if (load->parallel->shared->grid_spec.nqueries == 0)
		return;
	IvfpqGroundTruthImport(load->calibration, load->parallel);
	IvfpqRecallGridHelp(load->calibration, index, load->parallel);
}
