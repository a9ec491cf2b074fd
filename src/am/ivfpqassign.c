/*
 * ivfpqassign.c
 *		From rows to inverted lists, in bulk: have every row placed and
 *		encoded, write its refine record, gather the copies by list, write
 *		centroids, codebooks, directory and lists.
 *
 * CREATE INDEX feeds it from the table, training in place from the pending
 * list.  Until the caller writes the metapage nobody finds any of it.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"

#include "am/ivfpqassign.h"
#include "page/ivfpqfault.h"

/* Write the refine record of row i; returns its address. */
static ItemPointerData
write_record(IvfpqAssign *assign, const GvEncoded *encoded, int i, uint64 id)
{
	int			dims = assign->training->gv.dims;
	IvfpqRefineRecord *record = assign->record;
	ItemPointerData address;

	record->min = encoded->min[i];
	record->step = encoded->step[i];
	record->error = encoded->error[i];
	IvfpqIdToTid(id, &record->tid);
	memcpy(record->codes, encoded->records + (Size) i * dims, dims);
	IvfpqRefineBuilderAdd(&assign->refine, record, &address);
	return address;
}

/* IvfpqEncodedSink: rows [n] with these TIDs have been placed. */
static void
take_rows(void *arg, const uint64 *ids, const GvEncoded *encoded, int n)
{
	IvfpqAssign *assign = arg;
	int			ncopies = assign->training->copies;
	int			code_bytes = gv_code_bytes(assign->training->gv.m);

	for (int i = 0; i < n; i++)
	{
		IvfpqCopy	copy = {0};

		IvfpqIdToTid(ids[i], &copy.tid);
		if (assign->record != NULL)
			copy.refine = write_record(assign, encoded, i, ids[i]);
		for (int c = 0; c < ncopies; c++)
		{
			int			at = i * ncopies + c;

			if (encoded->lists[at] < 0)
				continue;
			copy.t = encoded->t[at];
			copy.code = encoded->codes + (Size) at * code_bytes;
			copy.second = c > 0;
			IvfpqCopiesPut(&assign->copies, encoded->lists[at], &copy);
		}
	}
	assign->rows += n;
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
								 assign->rows);
}

/*
 * Begin; memory from the current context.  With `refine` records are written
 * as well, to an index that has none yet, and with `log` each of their pages
 * is logged when it is full, because the index as a whole will not be.
 */
void
IvfpqAssignBegin(IvfpqAssign *assign, Relation index,
				 const IvfpqTraining *training, bool refine, bool log)
{
	int			dims = training->gv.dims;
	Size		limit = (Size) maintenance_work_mem * 1024;
	Size		used = (Size) training->nlists * dims * sizeof(float);

	memset(assign, 0, sizeof(*assign));
	assign->training = training;
	if (refine)
	{
		assign->record = IvfpqRefineAlloc(dims);
		IvfpqRefineBuilderInit(&assign->refine, index, dims, log);
	}
	IvfpqCopiesBegin(&assign->copies, training->nlists,
					 gv_code_bytes(training->gv.m),
					 limit > used ? limit - used : 0);
	if (training->nqueries > 0)
		assign->calibration = IvfpqCalibrationBegin(&training->gv,
													training->nqueries,
													training->queries,
													training->query_ids);
	IvfpqPlacerBegin(&assign->placer, index, training, assign->calibration,
					 refine, take_rows, assign);
}

/* Let a raw vector [dims], of the row with this TID, wait for its batch. */
void
IvfpqAssignRow(IvfpqAssign *assign, const float *row, uint64 id)
{
	IvfpqPlacerAdd(&assign->placer, row, id);
}

/* The next copy for the pages, and for the trial. */
static void
next_copy(void *arg, IvfpqCopy *copy)
{
	IvfpqAssign *assign = arg;

	IvfpqCopiesNext(&assign->copies, copy);
	IvfpqTrialAdd(&assign->trial, copy);
}

/* Sort the copies and write the lists. */
static void
write_lists(IvfpqAssign *assign, Relation index, const IvfpqMetaData *meta,
			bool shared)
{
	const uint32 *counts = assign->copies.counts;
	IvfpqWriter writer;
	int64		done = 0;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_WRITING);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 assign->rows);
	IvfpqCopiesSort(&assign->copies);
	IvfpqWriterInit(&writer, index, meta, counts, shared);
	for (int list = 0; list < meta->nlists; list++)
	{
		if (counts[list] > 0)
		{
			IvfpqTrialList(&assign->trial, list, counts[list]);
			IvfpqWriterList(&writer, list, counts[list], next_copy, assign);
		}
		done += counts[list];
		pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
									 done / meta->copies);
	}
	IvfpqTrialFlush(&assign->trial);
	IvfpqFault("build: written");
	IvfpqWriterFinish(&writer);
	IvfpqCopiesEnd(&assign->copies);
}

/*
 * Place what still waits, write all that training fixed, the directory and
 * the lists, to pages added for them, and calibrate.  With `shared` others
 * use the index meanwhile.  Fills in what *meta says of them; the caller
 * writes it.
 */
void
IvfpqAssignWrite(IvfpqAssign *assign, Relation index, IvfpqMetaData *meta,
				 bool shared)
{
	const IvfpqTraining *training = assign->training;
	int			dims = training->gv.dims;
	IvfpqBuilder *builder = IvfpqPlacerEnd(&assign->placer);

	IvfpqTrialBegin(&assign->trial, index,
					assign->calibration ? builder : NULL, assign->copies.n,
					gv_code_bytes(training->gv.m));
	if (assign->record != NULL)
		meta->refine_head = IvfpqRefineBuilderFinish(&assign->refine);
	meta->dims = dims;
	meta->pq_dim = training->gv.m;
	meta->nlists = training->nlists;
	meta->nparents = training->nparents;
	meta->copies = training->copies;
	meta->scale = training->gv.scale;
	meta->rows_at_training = assign->rows;
	IvfpqMetaPlace(meta, 0);
	IvfpqMetaPlace(meta, IvfpqReserve(index, IvfpqModelPages(meta), shared));

	IvfpqArrayWrite(index, meta->mean, training->mean, dims, shared);
	IvfpqArrayWrite(index, meta->codebooks, training->codebooks,
					(int64) GV_CODEWORDS * dims, shared);
	IvfpqArrayWrite(index, meta->parents, training->parents,
					(int64) training->nparents * dims, shared);
	IvfpqArrayWrite(index, meta->starts, (const float *) training->starts,
					training->nparents + 1, shared);
	IvfpqArrayWrite(index, meta->centroids, training->centroids,
					(int64) training->nlists * dims, shared);
	write_lists(assign, index, meta, shared);
	if (assign->calibration)
	{
		meta->rows_at_calibration = assign->rows;
		IvfpqCalibrationRun(assign->calibration, index, meta, &assign->trial);
	}
	if (builder)
		IvfpqBuilderEnd(builder);
}
