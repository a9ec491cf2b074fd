/*
 * traininplace.c
 *		Trains an index that is in use, and flushes its pending rows to lists:
 *		gpuvec_train, and the same for the background worker.
 *
 * An untrained index answers from its pending list.  Training gives it
 * centroids, codes and lists while scans and inserts go on.  It writes all of
 * these to pages that no reader finds.  Then one WAL record, of the metapage,
 * publishes them in place of the pending pages.  A crash before that record
 * leaves the index as it was, with pages that the next attempt or VACUUM
 * frees.
 *
 * Rows that our snapshot does not see stay pending: they may be uncommitted,
 * or dead to us and alive to older snapshots.  The TOAST values of the latter
 * may be gone, so such rows are not even read.
 *
 * Rows that came while the index was trained, and rows that training could
 * not see, are flushed one by one.  One WAL record takes a row from the
 * pending list and appends its first posting to a list, a second record
 * appends the secondary posting.  A crash in between leaves the row with one
 * posting, which is legal.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "commands/progress.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/build/bulkload.h"
#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/maintain/maintain.h"
#include "am/search/heaptids.h"
#include "am/search/rerank.h"
#include "am/types/keys.h"
#include "page/injection.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* Rows that training reads under one snapshot. */
#define ROWS_A_SNAPSHOT		1024

/* The state of training in place. */
typedef struct InPlace
{
	Relation	heap;
	Relation	index;
	IvfpqType	type;
	IvfpqKeys	keys;
	IvfpqMetaData meta;
	IvfpqTraining training;
	IvfpqParallel parallel;		/* trains; after that the leader is alone */
	IvfpqBulkLoad load;
	IvfpqFrozen frozen;
	IvfpqRerank rows;			/* fetches them */
	ItemPointerData *kept;		/* [nkept] rows that stay pending */
	int64		nkept;
	int64		max_kept;
} InPlace;

/* The state of a flush. */
typedef struct Flush
{
	Relation	heap;
	Relation	index;
	IvfpqType	type;
	IvfpqKeys	keys;
	const IvfpqModel *model;
	IvfpqRerank rows;			/* fetches them */
	IvfpqTrainResult *result;
} Flush;

PG_FUNCTION_INFO_V1(gpuvec_train);

/* Keeps a row pending. */
static void
keep_row(InPlace *state, uint64 id)
{
	if (state->nkept == state->max_kept)
	{
		state->max_kept = Max(1024, 2 * state->max_kept);
		state->kept = state->kept == NULL ?
			palloc(state->max_kept * sizeof(ItemPointerData)) :
			repalloc_huge(state->kept,
						  state->max_kept * sizeof(ItemPointerData));
	}
	IvfpqIdToTid(id, &state->kept[state->nkept++]);
}

/*
 * Assigns a row to its lists if the snapshot sees it and it can be placed;
 * else keeps it pending.
 */
static void
assign_row(InPlace *state, uint64 id)
{
	IvfpqKeyAbbrevs keys;
	const float *vector;
	int			dims;

	vector = IvfpqRerankFetchVector(&state->rows, &state->type, id, &dims);
	if (vector == NULL)
	{
		keep_row(state, id);
		return;
	}
	IvfpqRerankMakeKeys(&state->rows, &state->keys, &keys);
	if (dims == state->training.gv.dims &&
		IvfpqIsPlaceable(&state->type, vector, dims))
		IvfpqBulkLoadRow(&state->load, vector, id, &keys,
						 IvfpqBulkLoadWants(&state->load, id));
	else
		keep_row(state, id);
	IvfpqRerankDone(&state->rows);
}

/*
 * Begins to read rows under a new snapshot.  The caller takes another one
 * after ROWS_A_SNAPSHOT rows: each row is judged by itself, so rows need not
 * share a snapshot, and VACUUM spares all that an old one sees.
 */
static void
begin_rows(InPlace *state)
{
	PushActiveSnapshot(GetLatestSnapshot());
	IvfpqRerankBegin(&state->rows, state->heap, state->index,
					 GetActiveSnapshot());
}

/* Lets go of what begin_rows took. */
static void
end_rows(InPlace *state)
{
	IvfpqRerankEnd(&state->rows);
	PopActiveSnapshot();
	IvfpqSnapshotForget();
}

/* Assigns the rows of the frozen part, in heap order, each once. */
static void
assign_rows(InPlace *state)
{
	Tuplesortstate *tids = IvfpqSortFrozen(state->index, &state->frozen,
										   work_mem);
	uint64		last = 0;
	int64		n = 0;
	Datum		value;
	bool		isnull;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_ASSIGNING);
	begin_rows(state);
	IvfpqBulkLoadPrepare(&state->parallel, &state->training);
	IvfpqBulkLoadBegin(&state->load, state->index, &state->training,
					   &state->parallel, &state->meta, true);
	while (IvfpqTuplesortGetDatum(tids, &value, &isnull))
	{
		uint64		id = (uint64) DatumGetInt64(value);

		CHECK_FOR_INTERRUPTS();
		if (id != last)
			assign_row(state, id);
		last = id;
		if (++n % ROWS_A_SNAPSHOT == 0)
		{
			end_rows(state);
			begin_rows(state);
		}
	}
	end_rows(state);
	tuplesort_end(tids);
}

/*
 * Takes the steps from a trained model to a trained index (README, "Training
 * in Place").  Each injection point is named for the step that is done.
 */
static void
write_and_publish(InPlace *state)
{
	Relation	index = state->index;

	if (!IvfpqPendingFreeze(index, &state->frozen, false))
		return;
	IvfpqInjectionPoint("train: sealed");
	IvfpqMetaInit(&state->meta, state->type.metric, state->training.gv.dims,
				  &state->keys.form);
	state->meta.refine = IvfpqGetOptions(index)->refine;
	assign_rows(state);
	IvfpqBulkLoadWrite(&state->load, index, &state->meta, true);
	IvfpqBulkLoadFinish(&state->load, index, &state->meta, true);
	IvfpqInjectionPoint("train: written");
	IvfpqPendingKeep(index, &state->frozen, state->kept, state->nkept,
					 &state->meta);
	IvfpqPendingPublish(index, &state->meta);
	IvfpqInjectionPoint("train: published");
	IvfpqPendingFree(index, &state->frozen);

	/* cached plans take the index for one that reads the whole table */
	CacheInvalidateRelcache(state->heap);
}

/* Shows progress as that of an index build. */
static void
begin_progress(Relation heap, Relation index)
{
	const int	params[] = {
		PROGRESS_CREATEIDX_COMMAND,
		PROGRESS_CREATEIDX_INDEX_OID,
		PROGRESS_CREATEIDX_ACCESS_METHOD_OID,
		PROGRESS_CREATEIDX_PHASE
	};
	const int64 values[] = {
		PROGRESS_CREATEIDX_COMMAND_CREATE,
		RelationGetRelid(index),
		index->rd_rel->relam,
		PROGRESS_CREATEIDX_PHASE_BUILD
	};

	pgstat_progress_start_command(PROGRESS_COMMAND_CREATE_INDEX,
								  RelationGetRelid(heap));
	pgstat_progress_update_multi_param(lengthof(params), params, values);
}

/*
 * Raises an error if the transaction does not see most of the rows.  Training
 * samples the rows that the transaction's snapshot sees.  If that snapshot is
 * old, as it may be from REPEATABLE READ on, training would take a large table
 * for a small one, and make lists for that.
 */
static void
check_snapshot(Relation index, const IvfpqTraining *training)
{
	IvfpqMetaData meta;
	int64		pending;

	if (!IsolationUsesXactSnapshot())
		return;
	IvfpqMetaRead(index, &meta);
	pending = IvfpqCountPending(index, &meta);
	if (training->rows < pending / 2)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot train index \"%s\", this transaction does not see most of its rows",
						RelationGetRelationName(index)),
				 errdetail("It sees %.0f of %lld.", training->rows,
						   (long long) pending),
				 errhint("Call gpuvec_train in a transaction of its own, or at READ COMMITTED.")));
}

/*
 * Returns the dimensions of the index's rows, or 0 if it has no row.  Records
 * them in the index as final, because it is about to be trained.
 */
static int
settle_dims(Relation heap, Relation index)
{
	IvfpqMetaData meta;
	int			dims;

	IvfpqMetaRead(index, &meta);
	dims = IvfpqRowDims(heap, index, &meta);
	return dims > 0 ? IvfpqPendingSettleDims(index, dims) : 0;
}

/*
 * Trains an untrained index, if its table has enough rows.  The caller holds
 * ShareUpdateExclusiveLock on the table, acts as its owner and has an active
 * snapshot.
 */
static void
train_in_place(Relation heap, Relation index, IvfpqTrainResult *result)
{
	InPlace		state = {.heap = heap, .index = index};
	IndexInfo  *indexInfo;
	MemoryContext context;
	MemoryContext oldcontext;
	BufferAccessStrategy strategy;

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq training",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	begin_progress(heap, index);
	strategy = GetAccessStrategy(BAS_VACUUM);
	IvfpqSnapshotDrop();
	IvfpqReclaimUntrained(index, strategy);
	IvfpqSnapshotTake();

	indexInfo = IvfpqIndexInfo(index);
	indexInfo->ii_Concurrent = true;	/* rows as a snapshot sees them */
	IvfpqTypeInit(&state.type, index);
	IvfpqKeysInit(&state.keys, index);
	IvfpqTrain(&state.training, &state.parallel, heap, index, indexInfo,
			   &state.type, settle_dims(heap, index), true);
	IvfpqParallelEndWorkers(&state.parallel);
	check_snapshot(index, &state.training);
	IvfpqSnapshotDrop();
	if (state.training.nlists > 0)
		write_and_publish(&state);
	IvfpqParallelEnd(&state.parallel);
	IvfpqSnapshotTake();

	result->trained = state.meta.nlists > 0;
	result->rows = state.training.rows;
	result->waits = state.training.waits;
	result->moved += state.load.rows;
	pgstat_progress_end_command();
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/* Appends a row to its lists if the snapshot sees it and it can be placed. */
static void
flush_row(Flush *flush, ItemPointer tid, const IvfpqPendingPlace *place)
{
	const IvfpqModel *model = flush->model;
	MemoryContext oldcontext;
	IvfpqKeyAbbrevs keys;
	const float *raw;
	float	   *vector;
	int			dims;

	raw = IvfpqRerankFetchVector(&flush->rows, &flush->type,
								 IvfpqTidToId(tid), &dims);
	if (raw == NULL)
	{
		flush->result->kept++;
		return;
	}
	oldcontext = MemoryContextSwitchTo(flush->rows.context);
	if (dims == model->meta.dims && IvfpqIsPlaceable(&flush->type, raw, dims))
	{
		vector = palloc(dims * sizeof(float));
		IvfpqTransform(flush->index, model, raw, vector);
		IvfpqRerankMakeKeys(&flush->rows, &flush->keys, &keys);
		IvfpqInsertPostings(flush->index, model, vector,
							IvfpqIsBoundable(&flush->type, raw, dims), tid,
							&keys, place);
		flush->result->moved++;
	}
	else
		flush->result->mismatched++;
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(&flush->rows);
}

/* Flushes the rows of one page, under a snapshot of their own. */
static void
flush_page(Flush *flush, IvfpqPendingReader *reader, int count)
{
	int64		mismatched = flush->result->mismatched;
	int64		kept = flush->result->kept;

	PushActiveSnapshot(GetLatestSnapshot());
	IvfpqRerankBegin(&flush->rows, flush->heap, flush->index,
					 GetActiveSnapshot());
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		flush_row(flush, &reader->tids[i], &reader->place);
	}
	IvfpqRerankEnd(&flush->rows);
	PopActiveSnapshot();
	IvfpqSnapshotForget();
	mismatched = flush->result->mismatched - mismatched;
	/* so that the next VACUUM asks no worker to read them again */
	if (mismatched > 0 && flush->result->kept == kept && !reader->mismatched)
		IvfpqPendingSetMismatched(flush->index, &reader->place,
								  (int) mismatched);
}

/*
 * Flushes the pending list of a trained index.  The caller holds
 * ShareUpdateExclusiveLock on the table and acts as its owner.
 */
static void
flush_pending(Relation heap, Relation index, IvfpqTrainResult *result)
{
	Flush		flush = {.heap = heap, .index = index, .result = result};
	IvfpqPendingReader reader;
	MemoryContext context;
	MemoryContext oldcontext;
	int			count;

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq drain",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	IvfpqTypeInit(&flush.type, index);
	IvfpqKeysInit(&flush.keys, index);
	flush.model = IvfpqModelGet(index);
	IvfpqModelCheckKeys(index, flush.model, &flush.keys.form);
	IvfpqPendingOpen(&reader, index, &flush.model->meta);
	while (IvfpqPendingNext(&reader, &count))
		flush_page(&flush, &reader, count);
	IvfpqPendingClose(&reader);
	(void) IvfpqPendingTrim(index);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

void
IvfpqTrainOrFlush(Relation heap, Relation index, IvfpqTrainResult *result)
{
	IvfpqMetaData meta;

	memset(result, 0, sizeof(*result));
	IvfpqMetaRead(index, &meta);
	if (meta.nlists == 0)
		train_in_place(heap, index, result);
	IvfpqMetaRead(index, &meta);
	result->nlists = meta.nlists;
	IvfpqSnapshotDrop();
	if (meta.nlists > 0)
		flush_pending(heap, index, result);
	IvfpqSnapshotTake();
}

/* Raises an error unless the current user may train this index. */
static void
check_may_train(Relation heap, Relation index)
{
	if (!IvfpqOwnsRelation(RelationGetRelid(heap), GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table \"%s\" to train index \"%s\"",
						RelationGetRelationName(heap),
						RelationGetRelationName(index))));
	IvfpqCheckValid(index);
}

/* Reports why no row was moved, or why some rows were not. */
static void
report_result(Relation index, const IvfpqTrainResult *result)
{
	const char *name = RelationGetRelationName(index);

	if (result->nlists == 0 && result->waits)
		ereport(NOTICE,
				(errmsg("index \"%s\" is not trained, nearly all of its %.0f rows are equal",
						name, result->rows),
				 errhint("Call gpuvec_train when one of a hundred rows, or %d in all, differ from the others.",
						 IvfpqLeastRows(index))));
	else if (result->nlists == 0)
		ereport(NOTICE,
				(errmsg("index \"%s\" is not trained, the table has only %.0f rows to index",
						name, result->rows),
				 errhint("Training needs %d.", IvfpqLeastRows(index))));
	else if (result->mismatched > 0)
		ereport(WARNING,
				(errmsg("%lld rows of index \"%s\" stay pending, they do not have its dimensions",
						(long long) result->mismatched, name)));
	else if (result->moved == 0)
		ereport(NOTICE,
				(errmsg("index \"%s\" is trained and has no pending row to put into a list",
						name)));
}

/*
 * gpuvec_train(index regclass): trains an untrained index, or flushes the
 * pending rows of a trained one.  Returns the number of rows that went to
 * lists.
 */
Datum
gpuvec_train(PG_FUNCTION_ARGS)
{
	Relation	heap;
	Relation	index;
	IvfpqIdentity caller;
	IvfpqTrainResult result;

	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("recovery is in progress"),
				 errhint("Indexes are trained on the primary.")));
	index = IvfpqOpenToChange(PG_GETARG_OID(0), check_may_train, &heap);

	IvfpqActAsOwner(&caller, heap);
	IvfpqTrainOrFlush(heap, index, &result);
	IvfpqActAsCaller(&caller);
	report_result(index, &result);

	/* the locks stay until the end of the transaction */
	relation_close(index, NoLock);
	table_close(heap, NoLock);
	PG_RETURN_INT64(result.moved);
}
