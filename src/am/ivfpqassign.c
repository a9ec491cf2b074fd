/*
 * ivfpqassign.c
 *		From rows to inverted lists, in bulk: place and encode every row, sort
 *		the copies by list, write centroids, codebooks, directory and lists.
 *
 * CREATE INDEX feeds it from the table, training in place from the pending
 * list.  Until the caller writes the metapage nobody finds any of it.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "commands/progress.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/tuplesort.h"

#include "am/ivfpqassign.h"

/* Rows placed at once: enough to keep the engine busy, and in the cache. */
#define BATCH_ROWS		2048
#define BATCH_BYTES		(4 * 1024 * 1024)

/*
 * Columns of the sort: list, TID * 2 + whether it is the second copy; T, code
 * and address of the refine record.
 */
#define SORT_LIST		1
#define SORT_TID		2
#define SORT_COPY		3

/* Begin; memory from the current context. */
void
IvfpqAssignBegin(IvfpqAssign *assign, const IvfpqTraining *training)
{
	AttrNumber	columns[] = {SORT_LIST, SORT_TID};
	Oid			operators[] = {Int4LessOperator, Int8LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};
	int			row_bytes = training->gv.dims * sizeof(float);
	Size		copy_bytes = VARHDRSZ + sizeof(float4) +
		gv_code_bytes(training->gv.m);
	int64		used;
	GvTree		tree = IvfpqTree(training);
	void	   *chunk;

	memset(assign, 0, sizeof(*assign));
	assign->training = training;
	assign->batch_rows = Max(16, Min(BATCH_ROWS, BATCH_BYTES / row_bytes));
	assign->batch = palloc((Size) assign->batch_rows * row_bytes);
	assign->batch_ids = palloc(assign->batch_rows * sizeof(uint64));
	assign->batch_lists = palloc(assign->batch_rows * training->copies *
								 sizeof(int32));
	assign->scratch = IvfpqAllocScratch(gv_place_scratch(&tree,
														 assign->batch_rows),
										&chunk);
	assign->counts = palloc0(training->nlists * sizeof(uint32));
	assign->copy = palloc(copy_bytes + sizeof(ItemPointerData));
	SET_VARSIZE(assign->copy, copy_bytes);

	assign->sort_desc = CreateTemplateTupleDesc(SORT_COPY);
	TupleDescInitEntry(assign->sort_desc, SORT_LIST, "list", INT4OID, -1, 0);
	TupleDescInitEntry(assign->sort_desc, SORT_TID, "tid", INT8OID, -1, 0);
	TupleDescInitEntry(assign->sort_desc, SORT_COPY, "copy", BYTEAOID, -1, 0);
	assign->sort_slot = MakeSingleTupleTableSlot(assign->sort_desc,
												 &TTSOpsVirtual);

	used = ((int64) training->nlists * row_bytes +
			(int64) assign->batch_rows * row_bytes) / 1024;
	if (training->nqueries > 0)
		assign->calibration = IvfpqCalibrationBegin(&training->gv,
													training->nqueries,
													training->queries,
													training->query_ids);
	assign->sort = tuplesort_begin_heap(assign->sort_desc, 2, columns,
										operators, collations, nulls_first,
										(int) Max(maintenance_work_mem - used, 64),
										NULL, TUPLESORT_NONE);
}

/*
 * Write refine records as well, to an index that has none yet; each page
 * logged when it is full, if the index as a whole will not be.
 */
void
IvfpqAssignRefine(IvfpqAssign *assign, Relation index, bool log)
{
	int			dims = assign->training->gv.dims;

	assign->record = IvfpqRefineAlloc(dims);
	SET_VARSIZE(assign->copy,
				VARSIZE(assign->copy) + sizeof(ItemPointerData));
	IvfpqRefineBuilderInit(&assign->refine, index, dims, log);
}

/* Write the refine record of a row; its address into assign->address. */
static void
write_record(IvfpqAssign *assign, const float *vector, uint64 id)
{
	ItemPointerData tid;

	IvfpqIdToTid(id, &tid);
	IvfpqRefineMake(assign->record, vector, assign->training->gv.dims, &tid);
	IvfpqRefineBuilderAdd(&assign->refine, assign->record, &assign->address);
}

/* Put one encoded copy of a row into the sort. */
static void
sort_copy(IvfpqAssign *assign, const float *vector, int32 list, uint64 id,
		  bool second)
{
	const IvfpqTraining *training = assign->training;
	float4	   *t = (float4 *) VARDATA(assign->copy);
	TupleTableSlot *slot = assign->sort_slot;

	IvfpqCheckStatus(gv_encode(&training->gv, vector,
							   training->centroids + (Size) list * training->gv.dims,
							   1, (uint8 *) (t + 1), t));
	if (assign->record != NULL)
		memcpy((char *) (t + 1) + gv_code_bytes(training->gv.m),
			   &assign->address, sizeof(ItemPointerData));
	ExecClearTuple(slot);
	slot->tts_values[SORT_LIST - 1] = Int32GetDatum(list);
	slot->tts_values[SORT_TID - 1] = Int64GetDatum((int64) (id * 2 + second));
	slot->tts_values[SORT_COPY - 1] = PointerGetDatum(assign->copy);
	memset(slot->tts_isnull, 0, SORT_COPY * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(assign->sort, slot);
	assign->counts[list]++;
}

/* Place and encode the rows that wait. */
static void
flush_batch(IvfpqAssign *assign)
{
	const IvfpqTraining *training = assign->training;
	GvTree		tree = IvfpqTree(training);
	int			dims = training->gv.dims;
	int			copies = training->copies;

	if (assign->nbatch == 0)
		return;
	gv_transform(&training->gv, assign->batch, assign->nbatch, assign->batch);
	IvfpqCheckStatus(gv_place(&tree, assign->batch, assign->nbatch, copies,
							  assign->batch_lists, assign->scratch,
							  &ivfpq_stop));
	for (int i = 0; i < assign->nbatch * copies; i++)
	{
		const float *vector = assign->batch + (Size) (i / copies) * dims;
		uint64		id = assign->batch_ids[i / copies];

		if (assign->record != NULL && i % copies == 0)
			write_record(assign, vector, id);
		if (assign->batch_lists[i] >= 0)
			sort_copy(assign, vector, assign->batch_lists[i], id,
					  i % copies > 0);
	}

	if (assign->calibration)
		IvfpqCalibrationOffer(assign->calibration, assign->batch,
							  assign->batch_ids, assign->nbatch);
	assign->rows += assign->nbatch;
	assign->nbatch = 0;
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
								 assign->rows);
	CHECK_FOR_INTERRUPTS();
}

/* Let a raw vector [dims], of the row with this TID, wait for its batch. */
void
IvfpqAssignRow(IvfpqAssign *assign, const float *row, uint64 id)
{
	int			dims = assign->training->gv.dims;

	memcpy(assign->batch + (Size) assign->nbatch * dims, row,
		   dims * sizeof(float));
	assign->batch_ids[assign->nbatch++] = id;
	if (assign->nbatch == assign->batch_rows)
		flush_batch(assign);
}

/* Hands the writer the next sorted copy. */
static void
next_copy(void *arg, IvfpqCopy *copy)
{
	IvfpqAssign *assign = arg;
	TupleTableSlot *slot = assign->sort_slot;
	const char *data;
	uint64		id;
	bool		isnull;

	if (!tuplesort_gettupleslot(assign->sort, true, false, slot, NULL))
		elog(ERROR, "rows were lost while sorting by list");
	id = (uint64) DatumGetInt64(slot_getattr(slot, SORT_TID, &isnull));
	IvfpqIdToTid(id / 2, &copy->tid);
	copy->second = id % 2 > 0;
	data = VARDATA_ANY(DatumGetPointer(slot_getattr(slot, SORT_COPY, &isnull)));
	memcpy(&copy->t, data, sizeof(float4));
	copy->code = (const uint8 *) data + sizeof(float4);
	if (assign->record != NULL)
		memcpy(&copy->refine,
			   copy->code + gv_code_bytes(assign->training->gv.m),
			   sizeof(ItemPointerData));
}

/* Sort the copies and write the lists. */
static void
write_lists(IvfpqAssign *assign, Relation index, const IvfpqMetaData *meta,
			bool shared)
{
	IvfpqWriter writer;
	int64		done = 0;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_WRITING);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 assign->rows);
	tuplesort_performsort(assign->sort);
	ExecDropSingleTupleTableSlot(assign->sort_slot);
	assign->sort_slot = MakeSingleTupleTableSlot(assign->sort_desc,
												 &TTSOpsMinimalTuple);

	IvfpqWriterInit(&writer, index, meta, assign->counts, shared);
	for (int list = 0; list < meta->nlists; list++)
	{
		if (assign->counts[list] > 0)
			IvfpqWriterList(&writer, list, assign->counts[list], next_copy,
							assign);
		done += assign->counts[list];
		pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
									 done / meta->copies);
	}
	IvfpqWriterFinish(&writer);
	ExecDropSingleTupleTableSlot(assign->sort_slot);
	tuplesort_end(assign->sort);
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

	flush_batch(assign);
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
		IvfpqCalibrationRun(assign->calibration, index, meta);
	}
}
