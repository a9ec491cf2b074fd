/*
 * ivfpqbuild.c
 *		CREATE INDEX: train, assign and encode every row, sort by list, write.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "catalog/index.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "commands/progress.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/tuplesort.h"

#include "am/ivfpqtrain.h"

/* Rows assigned at once: enough to keep the engine busy, and in the cache. */
#define BATCH_ROWS		2048
#define BATCH_BYTES		(4 * 1024 * 1024)

/* Columns of the sort: list, TID * 2 + whether it is the second copy, T and code. */
#define SORT_LIST		1
#define SORT_TID		2
#define SORT_COPY		3

/* State of one build. */
typedef struct Build
{
	Relation	heap;
	Relation	index;
	IndexInfo  *indexInfo;
	IvfpqType	type;
	IvfpqMetaData meta;
	IvfpqTraining training;
	MemoryContext tmp;			/* reset after every row */
	double		heap_tuples;
	double		index_tuples;

	/* rows waiting to be assigned */
	int			batch_rows;		/* capacity */
	int			nbatch;
	float	   *batch;			/* [batch_rows][dims] */
	uint64	   *batch_ids;		/* [batch_rows] TIDs */
	int32	   *batch_lists;	/* [batch_rows][copies] */
	void	   *scratch;		/* of gv_place */

	/* assigned rows on their way to the pages */
	Tuplesortstate *sort;
	TupleDesc	sort_desc;
	TupleTableSlot *sort_slot;
	bytea	   *copy;			/* T, then the code */
	uint32	   *counts;			/* [nlists] rows of each list */

	/* rows that only older snapshots see and whose dimension is another */
	uint64	   *odd_ids;
	int64		nodd;
	int64		max_odd;
} Build;

/* Keep the TID of a row that no list can hold, for the pending list. */
static void
keep_odd(Build *build, ItemPointer tid)
{
	if (build->nodd == build->max_odd)
	{
		build->max_odd = Max(64, 2 * build->max_odd);
		build->odd_ids = build->odd_ids == NULL ?
			palloc(build->max_odd * sizeof(uint64)) :
			repalloc_huge(build->odd_ids, build->max_odd * sizeof(uint64));
	}
	build->odd_ids[build->nodd++] = IvfpqTidToId(tid);
}

/* Put one encoded copy of a row into the sort. */
static void
sort_copy(Build *build, const float *vector, int32 list, uint64 id,
		  bool second)
{
	const IvfpqTraining *training = &build->training;
	float4	   *t = (float4 *) VARDATA(build->copy);
	TupleTableSlot *slot = build->sort_slot;

	IvfpqCheckStatus(gv_encode(&training->gv, vector,
							   training->centroids + (Size) list * training->gv.dims,
							   1, (uint8 *) (t + 1), t));
	ExecClearTuple(slot);
	slot->tts_values[SORT_LIST - 1] = Int32GetDatum(list);
	slot->tts_values[SORT_TID - 1] = Int64GetDatum((int64) (id * 2 + second));
	slot->tts_values[SORT_COPY - 1] = PointerGetDatum(build->copy);
	memset(slot->tts_isnull, 0, SORT_COPY * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(build->sort, slot);
	build->counts[list]++;
}

/* Assign and encode the rows that wait. */
static void
flush_batch(Build *build)
{
	const IvfpqTraining *training = &build->training;
	GvTree		tree = IvfpqTree(training);
	int			dims = training->gv.dims;
	int			copies = training->copies;

	if (build->nbatch == 0)
		return;
	gv_transform(&training->gv, build->batch, build->nbatch, build->batch);
	IvfpqCheckStatus(gv_place(&tree, build->batch, build->nbatch, copies,
							  build->batch_lists, build->scratch,
							  &ivfpq_stop));
	for (int i = 0; i < build->nbatch * copies; i++)
		if (build->batch_lists[i] >= 0)
			sort_copy(build, build->batch + (Size) (i / copies) * dims,
					  build->batch_lists[i], build->batch_ids[i / copies],
					  i % copies > 0);

	build->index_tuples += build->nbatch;
	build->nbatch = 0;
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
								 (int64) build->index_tuples);
	CHECK_FOR_INTERRUPTS();
}

/* Called for every row of the table: let it wait for its batch. */
static void
assign_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				bool alive, void *arg)
{
	Build	   *build = arg;
	const IvfpqTraining *training = &build->training;
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	if (isnull[0])
		return;

	oldcontext = MemoryContextSwitchTo(build->tmp);
	row = IvfpqValueFloats(&build->type, values[0], &dims);
	MemoryContextSwitchTo(oldcontext);
	if (dims != training->gv.dims && !alive)
		keep_odd(build, tid);
	else
	{
		IvfpqCheckDims(training->gv.dims, dims);
		if (IvfpqIsPlaceable(&build->type, row, dims))
		{
			memcpy(build->batch + (Size) build->nbatch * dims, row,
				   dims * sizeof(float));
			build->batch_ids[build->nbatch++] = IvfpqTidToId(tid);
		}
	}
	MemoryContextReset(build->tmp);
	if (build->nbatch == build->batch_rows)
		flush_batch(build);
}

/* Called for every row when there is no training: it is pending. */
static void
pending_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				 bool alive, void *arg)
{
	Build	   *build = arg;
	MemoryContext oldcontext;
	const float *row;
	int			dims;

	if (isnull[0])
		return;

	oldcontext = MemoryContextSwitchTo(build->tmp);
	row = IvfpqValueFloats(&build->type, values[0], &dims);
	if (build->meta.dims > 0 && alive)
		IvfpqCheckDims(build->meta.dims, dims);
	if (IvfpqIsPlaceable(&build->type, row, dims))
	{
		IvfpqPendingAppend(index, tid);
		build->index_tuples += 1;
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(build->tmp);
}

/* Memory and sort for the pass over the table. */
static void
begin_sort(Build *build)
{
	IvfpqTraining *training = &build->training;
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

	build->batch_rows = Max(16, Min(BATCH_ROWS, BATCH_BYTES / row_bytes));
	build->batch = palloc((Size) build->batch_rows * row_bytes);
	build->batch_ids = palloc(build->batch_rows * sizeof(uint64));
	build->batch_lists = palloc(build->batch_rows * training->copies *
								sizeof(int32));
	build->scratch = IvfpqAllocScratch(gv_place_scratch(&tree,
														build->batch_rows),
									   &chunk);
	build->counts = palloc0(training->nlists * sizeof(uint32));
	build->copy = palloc(copy_bytes);
	SET_VARSIZE(build->copy, copy_bytes);

	build->sort_desc = CreateTemplateTupleDesc(SORT_COPY);
	TupleDescInitEntry(build->sort_desc, SORT_LIST, "list", INT4OID, -1, 0);
	TupleDescInitEntry(build->sort_desc, SORT_TID, "tid", INT8OID, -1, 0);
	TupleDescInitEntry(build->sort_desc, SORT_COPY, "copy", BYTEAOID, -1, 0);
	build->sort_slot = MakeSingleTupleTableSlot(build->sort_desc,
												&TTSOpsVirtual);

	used = ((int64) training->nlists * row_bytes +
			(int64) build->batch_rows * row_bytes) / 1024;
	build->sort = tuplesort_begin_heap(build->sort_desc, 2, columns, operators,
									   collations, nulls_first,
									   (int) Max(maintenance_work_mem - used, 64),
									   NULL, TUPLESORT_NONE);
}

/* Hands the writer the next sorted row. */
static void
next_copy(void *arg, IvfpqCopy *copy)
{
	Build	   *build = arg;
	TupleTableSlot *slot = build->sort_slot;
	const char *data;
	uint64		id;
	bool		isnull;

	if (!tuplesort_gettupleslot(build->sort, true, false, slot, NULL))
		elog(ERROR, "rows were lost while sorting by list");
	id = (uint64) DatumGetInt64(slot_getattr(slot, SORT_TID, &isnull));
	IvfpqIdToTid(id / 2, &copy->tid);
	copy->second = id % 2 > 0;
	data = VARDATA_ANY(DatumGetPointer(slot_getattr(slot, SORT_COPY, &isnull)));
	memcpy(&copy->t, data, sizeof(float4));
	copy->code = (const uint8 *) data + sizeof(float4);
}

/* Sort the rows and write the lists. */
static void
write_lists(Build *build)
{
	IvfpqWriter writer;
	int64		done = 0;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_WRITING);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 (int64) build->index_tuples);
	tuplesort_performsort(build->sort);
	ExecDropSingleTupleTableSlot(build->sort_slot);
	build->sort_slot = MakeSingleTupleTableSlot(build->sort_desc,
												&TTSOpsMinimalTuple);

	IvfpqWriterInit(&writer, build->index, &build->meta);
	for (int list = 0; list < build->meta.nlists; list++)
	{
		if (build->counts[list] > 0)
			IvfpqWriterList(&writer, list, build->counts[list], next_copy,
							build);
		done += build->counts[list];
		pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
									 done / build->meta.copies);
	}
	IvfpqWriterFinish(&writer);
	ExecDropSingleTupleTableSlot(build->sort_slot);
	tuplesort_end(build->sort);
}

/* A trained index: arrays, directory, lists, metapage, in this order. */
static void
build_trained(Build *build)
{
	IvfpqTraining *training = &build->training;
	IvfpqMetaData *meta = &build->meta;
	Relation	index = build->index;
	int			dims = training->gv.dims;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_ASSIGNING);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 (int64) training->rows);
	begin_sort(build);
	build->heap_tuples =
		table_index_build_scan(build->heap, index, build->indexInfo, true,
							   true, assign_callback, build, NULL);
	flush_batch(build);

	meta->dims = dims;
	meta->pq_dim = training->gv.m;
	meta->nlists = training->nlists;
	meta->nparents = training->nparents;
	meta->copies = training->copies;
	meta->scale = training->gv.scale;
	meta->rows_at_training = (int64) build->index_tuples;
	meta->mean = IvfpqArrayBuild(index, training->mean, dims);
	meta->codebooks = IvfpqArrayBuild(index, training->codebooks,
									  (int64) GV_CODEWORDS * dims);
	meta->parents = IvfpqArrayBuild(index, training->parents,
									(int64) training->nparents * dims);
	meta->starts = IvfpqArrayBuild(index, (const float *) training->starts,
								   training->nparents + 1);
	meta->centroids = IvfpqArrayBuild(index, training->centroids,
									  (int64) training->nlists * dims);
	meta->directory = IvfpqDirectoryBuild(index, training->nlists);
	write_lists(build);
	IvfpqMetaRewrite(index, meta);
	IvfpqLogBuild(index);

	for (int64 i = 0; i < build->nodd; i++)
	{
		ItemPointerData tid;

		IvfpqIdToTid(build->odd_ids[i], &tid);
		IvfpqPendingAppend(index, &tid);
	}
	build->index_tuples += build->nodd;
}

/* An index on a small table: every row is pending. */
static void
build_untrained(Build *build)
{
	IvfpqLogBuild(build->index);
	build->heap_tuples =
		table_index_build_scan(build->heap, build->index, build->indexInfo,
							   true, true, pending_callback, build, NULL);
	ereport(NOTICE,
			(errmsg("index \"%s\" is not trained, the table has only %.0f rows to index",
					RelationGetRelationName(build->index),
					build->index_tuples),
			 errdetail("Queries are answered exactly, from the table."),
			 errhint("REINDEX the index when the table has at least %d rows.",
					 IVFPQ_MIN_TRAIN_ROWS)));
}

/*
 * ambuild.  The index belongs to us alone until the transaction commits.
 */
IndexBuildResult *
ivfpqbuild(Relation heap, Relation index, IndexInfo *indexInfo)
{
	IndexBuildResult *result;
	MemoryContext context;
	MemoryContext oldcontext;
	Build		build = {.heap = heap,.index = index,.indexInfo = indexInfo};

	if (RelationGetNumberOfBlocks(index) != 0)
		elog(ERROR, "index \"%s\" already contains data",
			 RelationGetRelationName(index));

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq build",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	build.tmp = AllocSetContextCreate(context, "gpuivfpq build row",
									  ALLOCSET_DEFAULT_SIZES);

	IvfpqTypeInit(&build.type, index);
	IvfpqMetaInit(&build.meta, build.type.metric,
				  IvfpqIndexDims(index, &build.type));
	IvfpqTrain(&build.training, heap, index, indexInfo, &build.type);
	IvfpqMetaCreate(index, MAIN_FORKNUM, &build.meta);
	if (build.training.nlists > 0)
		build_trained(&build);
	else
		build_untrained(&build);

	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	result = palloc(sizeof(IndexBuildResult));
	result->heap_tuples = build.heap_tuples;
	result->index_tuples = build.index_tuples;
	return result;
}

/* ambuildempty: the init fork of an unlogged index. */
void
ivfpqbuildempty(Relation index)
{
	IvfpqMetaData meta;
	IvfpqType	type;

	IvfpqTypeInit(&type, index);
	IvfpqMetaInit(&meta, type.metric, IvfpqIndexDims(index, &type));
	meta.build_id = 0;
	IvfpqMetaCreate(index, INIT_FORKNUM, &meta);
}
