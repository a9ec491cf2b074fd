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
#include "access/xact.h"
#include "access/xlog.h"
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

/* Rows that are pending, read from the table under snapshots of their own. */
typedef struct RowReader
{
	Relation	heap;
	Relation	index;
	IvfpqType	type;
	IvfpqKeys	keys;
	IvfpqRerank fetch;			/* between begin_rows and end_rows */
} RowReader;

/* The state of training in place. */
typedef struct InPlace
{
	RowReader	rows;
	IvfpqTraining training;
	IvfpqParallel parallel;		/* trains; after that the leader is alone */

	/* the trained index */
	IvfpqMetaData meta;
	IvfpqBulkLoad load;

	/* the pending list */
	IvfpqFrozen frozen;
	ItemPointerData *kept;		/* [nkept] rows that stay pending */
	int64		nkept;
	int64		max_kept;		/* capacity of `kept` */
} InPlace;

PG_FUNCTION_INFO_V1(gpuvec_train);

/*
 * Begins to read rows under a new snapshot.  The caller takes another one
 * after ROWS_A_SNAPSHOT rows, or a page of the pending list: each row is
 * judged by itself, so rows need not share a snapshot, and VACUUM spares all
 * that an old one sees.
 */
static void
begin_rows(RowReader *rows)
{
	PushActiveSnapshot(GetLatestSnapshot());
	IvfpqRerankBegin(&rows->fetch, rows->heap, rows->index,
					 GetActiveSnapshot());
}

/* Lets go of what begin_rows took. */
static void
end_rows(RowReader *rows)
{
	IvfpqRerankEnd(&rows->fetch);
	PopActiveSnapshot();
	IvfpqSnapshotForget();
}

/*
 * Fetches a row, and sets *visible to whether the snapshot sees it.  Returns
 * its raw vector, and its keys in *keys if the index has keys, both good until
 * IvfpqRerankDone; or NULL unless the row is visible and lists of `dims`
 * dimensions can take it.
 */
static const float *
fetch_row(RowReader *rows, uint64 id, int dims, bool *visible,
		  IvfpqKeyAbbrevs *keys)
{
	const float *raw;
	int			has_dims;

	raw = IvfpqRerankFetchVector(&rows->fetch, &rows->type, id, &has_dims);
	*visible = raw != NULL;
	if (raw == NULL || has_dims != dims ||
		!IvfpqIsPlaceable(&rows->type, raw, dims))
		return NULL;
	IvfpqRerankMakeKeys(&rows->fetch, &rows->keys, keys);
	return raw;
}

/*
 * Assigns the rows of the frozen part to their lists, in heap order, each
 * once.  Those that the snapshot does not see, or lists cannot take, are kept
 * pending.
 */
static void
assign_rows(InPlace *state)
{
	RowReader  *rows = &state->rows;
	int			dims = state->training.gv.dims;
	IvfpqSort	tids;
	uint64		id = 0;
	int64		n = 0;

	IvfpqSortFrozen(&tids, rows->index, &state->frozen, work_mem);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_ASSIGNING);
	begin_rows(rows);
	IvfpqBulkLoadBegin(&state->load, rows->index, &state->training,
					   &state->parallel, &state->meta, true);
	while (IvfpqNextTid(&tids, &id))
	{
		IvfpqKeyAbbrevs keys;
		bool		visible;
		const float *raw = fetch_row(rows, id, dims, &visible, &keys);

		if (raw != NULL)
			IvfpqBulkLoadRow(&state->load, raw, id, &keys,
							 IvfpqBulkLoadWants(&state->load, id));
		else
		{
			IvfpqGrow(state->kept, state->nkept, state->max_kept);
			IvfpqIdToTid(id, &state->kept[state->nkept++]);
		}
		if (visible)
			IvfpqRerankDone(&rows->fetch);
		if (++n % ROWS_A_SNAPSHOT == 0)
		{
			end_rows(rows);
			begin_rows(rows);
		}
	}
	end_rows(rows);
	IvfpqSortEnd(&tids);
}

/*
 * Takes the steps from a trained model to a trained index (README, "Training
 * in Place").  Each injection point is named for the step that is done.
 */
static void
write_and_publish(InPlace *state)
{
	Relation	index = state->rows.index;

	if (!IvfpqPendingFreeze(index, &state->frozen, false))
		return;
	IvfpqInjectionPoint("train: sealed");
	IvfpqMetaInit(&state->meta, state->rows.type.metric,
				  state->training.gv.dims, &state->rows.keys.form);
	state->meta.refine = IvfpqGetOptions(index)->refine;
	assign_rows(state);
	IvfpqBulkLoadWrite(&state->load);
	IvfpqBulkLoadFinish(&state->load);
	IvfpqInjectionPoint("train: written");
	IvfpqPendingKeep(index, &state->frozen, state->kept, state->nkept,
					 &state->meta);
	IvfpqPendingPublish(index, &state->meta);
	IvfpqInjectionPoint("train: published");
	IvfpqPendingFree(index, &state->frozen);

	/* cached plans take the index for one that reads the whole table */
	CacheInvalidateRelcache(state->rows.heap);
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
 * Trains an untrained index, if its table has enough rows.  The caller holds
 * ShareUpdateExclusiveLock on the table, acts as its owner and has an active
 * snapshot.  Progress is shown as that of an index build.
 */
static void
train_in_place(Relation heap, Relation index, IvfpqTrainResult *result)
{
	InPlace		state = {.rows = {.heap = heap, .index = index}};
	IndexInfo  *indexInfo;
	IvfpqMetaData meta;
	int			dims;
	MemoryContext context;
	MemoryContext oldcontext;

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq training",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	pgstat_progress_start_command(PROGRESS_COMMAND_CREATE_INDEX,
								  RelationGetRelid(heap));
	pgstat_progress_update_param(PROGRESS_CREATEIDX_COMMAND,
								 PROGRESS_CREATEIDX_COMMAND_CREATE);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_INDEX_OID,
								 RelationGetRelid(index));
	pgstat_progress_update_param(PROGRESS_CREATEIDX_ACCESS_METHOD_OID,
								 index->rd_rel->relam);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_PHASE,
								 PROGRESS_CREATEIDX_PHASE_BUILD);
	IvfpqSnapshotDrop();
	IvfpqReclaimUntrained(index, GetAccessStrategy(BAS_VACUUM));
	IvfpqSnapshotTake();

	indexInfo = IvfpqIndexInfo(index);
	indexInfo->ii_Concurrent = true;	/* rows as a snapshot sees them */
	IvfpqTypeInit(&state.rows.type, index);
	IvfpqKeysInit(&state.rows.keys, index);

	/* the index is about to be trained, so its dimensions become final */
	IvfpqMetaRead(index, &meta);
	dims = IvfpqRowDims(heap, index, &meta);
	if (dims > 0)
		dims = IvfpqPendingSettleDims(index, dims);
	IvfpqTrain(&state.training, &state.parallel, heap, index, indexInfo,
			   &state.rows.type, dims, true);
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

/* Appends a row to its lists if the snapshot sees it and lists can take it. */
static void
flush_row(RowReader *rows, const IvfpqModel *model, ItemPointer tid,
		  const IvfpqPendingPlace *place, IvfpqTrainResult *result)
{
	int			dims = model->meta.dims;
	IvfpqKeyAbbrevs keys;
	bool		visible;
	const float *raw;

	raw = fetch_row(rows, IvfpqTidToId(tid), dims, &visible, &keys);
	if (raw != NULL)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(rows->fetch.context);
		float	   *vector = palloc(dims * sizeof(float));

		IvfpqTransform(rows->index, model, raw, vector);
		IvfpqInsertPostings(rows->index, model, vector,
							IvfpqIsBoundable(&rows->type, raw, dims), tid,
							&keys, place);
		MemoryContextSwitchTo(oldcontext);
		result->moved++;
	}
	else if (visible)
		result->mismatched++;
	else
		result->kept++;
	if (visible)
		IvfpqRerankDone(&rows->fetch);
}

/*
 * Flushes the pending list of a trained index, page by page, each under a
 * snapshot of its own.  The caller holds ShareUpdateExclusiveLock on the table
 * and acts as its owner.
 */
static void
flush_pending(Relation heap, Relation index, IvfpqTrainResult *result)
{
	RowReader	rows = {.heap = heap, .index = index};
	const IvfpqModel *model;
	IvfpqPendingReader reader;
	MemoryContext context;
	MemoryContext oldcontext;
	int			count;

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq drain",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	IvfpqTypeInit(&rows.type, index);
	IvfpqKeysInit(&rows.keys, index);
	model = IvfpqModelGet(index);
	IvfpqModelCheckKeys(index, model, &rows.keys.form);
	IvfpqPendingOpen(&reader, index, &model->meta);
	while (IvfpqPendingNext(&reader, &count))
	{
		int64		mismatched = result->mismatched;
		int64		kept = result->kept;

		begin_rows(&rows);
		for (int i = 0; i < count; i++)
		{
			CHECK_FOR_INTERRUPTS();
			flush_row(&rows, model, &reader.tids[i], &reader.place, result);
		}
		end_rows(&rows);

		/* so that the next VACUUM asks no worker to read them again */
		mismatched = result->mismatched - mismatched;
		if (mismatched > 0 && result->kept == kept && !reader.mismatched)
			IvfpqPendingSetMismatched(index, &reader.place, (int) mismatched);
	}
	IvfpqPendingClose(&reader);
	(void) IvfpqPendingTrim(index);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
}

/*
 * Trains the index if it is untrained, then flushes its pending rows.  The
 * caller holds ShareUpdateExclusiveLock on the table, acts as its owner and
 * has an active snapshot.
 */
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
