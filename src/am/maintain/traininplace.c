/*
 * traininplace.c
 *		Trains an index that is in use, and flushes its pending rows to lists,
 *		for gpuvec_train and for the background worker.
 *
 * An untrained index answers from its pending list.  Training gives it
 * centroids, codes and lists while scans and inserts go on.  All of these are
 * written to pages that no reader can find.  Then one WAL record, which
 * changes the metapage only, publishes the new pages in place of the frozen
 * pending pages.  A crash before that record leaves the index as it was,
 * except for unused pages, which the next attempt or VACUUM frees.
 *
 * Rows that our snapshot does not see stay pending.  Such a row may be
 * uncommitted, or it may be dead to us and alive to older snapshots.  The row
 * is not even read, because the TOAST values of a dead row may be gone.
 *
 * Rows that were inserted while the index was trained, and rows that training
 * could not see, are flushed one by one.  One WAL record removes a row from
 * the pending list and appends its first posting to a list.  A second WAL
 * record appends the secondary posting.  A crash between the two records
 * leaves the row with one posting, which is legal.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "commands/progress.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
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
#include "page/listread.h"
#include "page/listwrite.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "page/refinepage.h"
#include "pgcompat.h"

/* Number of rows that training reads under one snapshot. */
#define ROWS_A_SNAPSHOT		1024

/*
 * A new training is published when the old lists get no more than this many
 * rows while the rows before them are appended to the new lists, and if no more
 * than MOST_KEPT rows will be pending besides, all of which each scan reads.
 */
#define FEW_ROWS		1000
#define MOST_KEPT		10000

/* Time between two looks at rows that are too many to be pending; looks. */
#define WAIT_MS			1000
#define MOST_WAITS		10

/*
 * An index that this process trains or flushes.  The expressions of an index
 * may call gpuvec_train, and the lock of the table does not keep out the
 * session that holds it.
 */
typedef struct Busy
{
	Oid			index;
	const struct Busy *outer;	/* whose expressions called gpuvec_train */
} Busy;

/* Reads pending rows from the table, under snapshots of its own. */
typedef struct RowReader
{
	Relation	heap;
	Relation	index;
	IvfpqType	type;
	IvfpqKeys	keys;
	IvfpqRerank fetch;			/* valid between begin_rows and end_rows */
} RowReader;

/* The state of training in place. */
typedef struct InPlace
{
	RowReader	rows;
	IvfpqTraining training;
	IvfpqParallel parallel;		/* has workers only during training */

	/* the trained index */
	IvfpqMetaData meta;
	IvfpqBulkLoad load;

	/* lists that an earlier training made */
	IvfpqMetaData old;			/* old.nlists is 0 if there are none */
	uint32	   *taken;			/* [old.nlists] postings that were read */

	/* the pending list */
	IvfpqFrozen frozen;
	ItemPointerData *kept;		/* [nkept] rows that will be pending */
	int64		nkept;
	int64		max_kept;		/* capacity of `kept` */
} InPlace;

PG_FUNCTION_INFO_V1(gpuvec_train);

/*
 * Begins to read rows under a new snapshot.  Callers take a new snapshot after
 * ROWS_A_SNAPSHOT rows, or after each page of the pending list, because an old
 * snapshot keeps VACUUM from removing dead rows.  Rows need not share a
 * snapshot, because each row is handled independently of other rows.
 */
static void
begin_rows(RowReader *rows)
{
	PushActiveSnapshot(GetLatestSnapshot());
	IvfpqRerankBegin(&rows->fetch, rows->heap, rows->index,
					 GetActiveSnapshot());
}

/* Ends the reading that begin_rows began, and releases its snapshot. */
static void
end_rows(RowReader *rows)
{
	IvfpqRerankEnd(&rows->fetch);
	PopActiveSnapshot();
	IvfpqSnapshotForget();
}

/*
 * Fetches a row, and sets *visible to whether the snapshot sees the row.
 * Returns the row's raw vector if the row is visible and can be indexed with
 * `dims` dimensions, otherwise NULL.  If a vector is returned and the index
 * has keys, sets *keys to the row's keys.  The vector and the keys are valid
 * until IvfpqRerankDone.
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
 * Sorts the TIDs of the rows that the old lists got since the last call, and
 * of those that were kept, which are not kept any more.  Returns the number of
 * the former.  Each row has a live primary posting.  No posting changes its
 * position meanwhile, as VACUUM is excluded.
 */
static int64
sort_postings(InPlace *state, IvfpqSort *tids)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	IvfpqListReader reader;
	IvfpqBlockView view;
	int64		n = 0;

	IvfpqSortBegin(tids, INT8OID, InvalidOid, 0, work_mem);
	for (int64 i = 0; i < state->nkept; i++)
		IvfpqSortPut(tids,
					 Int64GetDatum((int64) IvfpqTidToId(&state->kept[i])),
					 0, NULL);
	state->nkept = 0;
	IvfpqListReaderInit(&reader, state->rows.index, &state->old, NULL,
						strategy);
	for (int list = 0; list < state->old.nlists; list++)
	{
		uint32		taken = state->taken[list];

		CHECK_FOR_INTERRUPTS();
		IvfpqListOpen(&reader, list);
		while (reader.nleft > taken && IvfpqListNext(&reader, &view))
			for (uint32 i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
				if ((view.live & ~view.secondary & (1U << i)) != 0 &&
					reader.nleft + i >= taken)
				{
					IvfpqSortPut(tids,
								 Int64GetDatum((int64) IvfpqTidToId(&view.tids[i])),
								 0, NULL);
					n++;
				}
		state->taken[list] = reader.entry.nitems;
	}
	IvfpqListReaderFree(&reader);
	FreeAccessStrategy(strategy);
	IvfpqSortPerform(tids);
	return n;
}

/* Adds a row to those that will be pending. */
static void
keep_row(InPlace *state, uint64 id)
{
	IvfpqGrow(state->kept, state->nkept, state->max_kept);
	IvfpqIdToTid(id, &state->kept[state->nkept++]);
}

/* Appends a row that fetch_row has returned to its lists. */
static void
place_row(RowReader *rows, const IvfpqModel *model, const float *raw,
		  ItemPointer tid, const IvfpqKeyAbbrevs *keys,
		  const IvfpqPendingPlace *place, IvfpqRecordBuilder *records)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(rows->fetch.context);
	float	   *vector = palloc(model->meta.dims * sizeof(float));

	IvfpqTransform(rows->index, model, raw, vector);
	if (!IvfpqInsertPostings(rows->index, model, vector,
							 IvfpqIsBoundable(&rows->type, raw,
											  model->meta.dims),
							 tid, keys, place, records))
		elog(ERROR, "lists of index \"%s\" are frozen",
			 RelationGetRelationName(rows->index));
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Reads rows, each once, in heap order, and ends the sort of their TIDs.  Rows
 * go to the bulk load or, if `model` is not NULL, are appended to this model's
 * lists.  Rows that the snapshot does not see, and rows that cannot be indexed,
 * are kept pending.
 */
static void
read_rows(InPlace *state, IvfpqSort *tids, const IvfpqModel *model,
		  IvfpqRecordBuilder *records)
{
	RowReader  *rows = &state->rows;
	uint64		id = 0;
	int64		n = 0;

	begin_rows(rows);
	while (IvfpqNextTid(tids, &id))
	{
		ItemPointerData tid;
		IvfpqKeyAbbrevs keys;
		bool		visible;
		const float *raw = fetch_row(rows, id, state->training.gv.dims,
									 &visible, &keys);

		IvfpqIdToTid(id, &tid);
		if (raw == NULL)
			keep_row(state, id);
		else if (model != NULL)
			place_row(rows, model, raw, &tid, &keys, NULL, records);
		else
			IvfpqBulkLoadRow(&state->load, raw, id, &keys,
							 IvfpqBulkLoadWants(&state->load, id));
		if (visible)
			IvfpqRerankDone(&rows->fetch);
		if (++n % ROWS_A_SNAPSHOT == 0)
		{
			end_rows(rows);
			begin_rows(rows);
		}
	}
	end_rows(rows);
	IvfpqSortEnd(tids);
}

/*
 * Assigns the rows of the old lists or, if there are none, of the frozen part
 * of the pending list to their lists.
 */
static void
assign_rows(InPlace *state)
{
	Relation	index = state->rows.index;
	IvfpqSort	tids;

	if (state->old.nlists > 0)
		(void) sort_postings(state, &tids);
	else
		IvfpqSortFrozen(&tids, index, &state->frozen, work_mem);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_ASSIGNING);
	IvfpqBulkLoadBegin(&state->load, index, &state->training,
					   &state->parallel, &state->meta, true);
	read_rows(state, &tids, NULL, NULL);
}

/*
 * Appends the rows that the old lists got since the last time, and kept rows
 * that are visible now, to the new lists, which are not published.  Returns the
 * number of the former.
 */
static int64
append_new_rows(InPlace *state, const IvfpqModel *model,
				IvfpqRecordBuilder *records)
{
	IvfpqSort	tids;
	int64		appended = sort_postings(state, &tids);

	read_rows(state, &tids, model, records);
	return appended;
}

/*
 * Appends rows that came meanwhile to the new lists, round by round.  The rows
 * that come during the last round will be pending, so it ends when these are
 * few, or are more than half of those of the round before.  If too many rows
 * will be pending, because our snapshots do not see them, waits a while for
 * their transactions, and then raises an error.
 */
static void
catch_up(InPlace *state)
{
	Relation	index = state->rows.index;
	IvfpqMetaData *meta = &state->meta;
	IvfpqModel *model = IvfpqModelLoad(index, meta);
	IvfpqRecordBuilder records;
	pg_atomic_uint32 head;
	int64		n = PG_INT64_MAX;
	int64		last;
	int			waits = 0;

	if (meta->refine != IVFPQ_REFINE_NONE)
		IvfpqRecordBuilderInit(&records, index, meta->training,
							   IvfpqRecordCodeBytes(meta->refine, meta->dims),
							   true);
	do
	{
		last = n;
		n = append_new_rows(state, model, &records);
		if (state->nkept > MOST_KEPT)
		{
			(void) WaitLatch(MyLatch,
							 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 WAIT_MS, PG_WAIT_EXTENSION);
			ResetLatch(MyLatch);
			waits++;
		}
		IvfpqInjectionPoint("train: caught up");
		CHECK_FOR_INTERRUPTS();
	} while ((n > FEW_ROWS && n < last / 2) ||
			 (state->nkept > MOST_KEPT && waits < MOST_WAITS));
	if (meta->refine != IVFPQ_REFINE_NONE)
	{
		pg_atomic_init_u32(&head, meta->refine_head);
		IvfpqRecordBuilderFinish(&records, &head);
		meta->refine_head = pg_atomic_read_u32(&head);
	}
	if (state->nkept > MOST_KEPT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot train index \"%s\" again now",
						RelationGetRelationName(index)),
				 errdetail("%lld of its rows are not committed, or dead but visible to older transactions.",
						   (long long) state->nkept),
				 errhint("Try again when these transactions have ended, and after VACUUM.")));
}

/*
 * Has the old lists take no more rows, and keeps those pending that they got
 * while the others were assigned, and those that are pending already.
 */
static void
freeze_old_lists(InPlace *state)
{
	Relation	index = state->rows.index;
	IvfpqSort	tids;
	uint64		id = 0;

	IvfpqFreezeLists(index, &state->old, true);
	IvfpqInjectionPoint("train: lists frozen");
	(void) sort_postings(state, &tids);
	while (IvfpqNextTid(&tids, &id))
		keep_row(state, id);
	IvfpqSortEnd(&tids);

	(void) IvfpqPendingFreeze(index, &state->frozen, true,
							  Max(state->nkept, 1));
	IvfpqInjectionPoint("train: pending frozen");
	IvfpqSortFrozen(&tids, index, &state->frozen, work_mem);
	id = 0;
	while (IvfpqNextTid(&tids, &id))
		keep_row(state, id);
	IvfpqSortEnd(&tids);
}

/*
 * Writes the lists of the trained model, with the rows of the old lists or, if
 * there are none, with those of the pending list, which is frozen.  Publishes
 * them in the metapage (README, "Training in Place").  Each injection point is
 * named after the step that has just been done.
 */
static void
write_and_publish(InPlace *state)
{
	Relation	index = state->rows.index;
	bool		retrains = state->old.nlists > 0;

	if (!retrains && !IvfpqPendingFreeze(index, &state->frozen, false, 0))
		return;
	IvfpqInjectionPoint("train: sealed");
	IvfpqMetaInit(&state->meta, state->rows.type.metric,
				  state->training.gv.dims, &state->rows.keys.form);
	state->meta.refine = IvfpqGetOptions(index)->refine;
	if (retrains)
	{
		state->meta.training = (state->old.training + 1) & 0xFFFF;
		state->taken = palloc_extended(state->old.nlists * sizeof(uint32),
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	}
	assign_rows(state);
	IvfpqBulkLoadWrite(&state->load);
	IvfpqBulkLoadFinish(&state->load);
	IvfpqInjectionPoint("train: written");
	if (retrains)
	{
		catch_up(state);
		freeze_old_lists(state);
	}
	IvfpqPendingKeep(index, &state->frozen, state->kept, state->nkept,
					 &state->meta);
	IvfpqPendingPublish(index, &state->old, &state->meta);
	IvfpqInjectionPoint("train: published");
	IvfpqPendingFree(index, &state->frozen);

	/* replan, because cached plans expect the index to read all rows */
	CacheInvalidateRelcache(state->rows.heap);
}

/*
 * Raises an error if the transaction sees fewer than half of the index's rows.
 * Training samples rows under the transaction's snapshot, which may be old at
 * REPEATABLE READ or above.  With an old snapshot, training would
 * underestimate the number of rows and make too few lists.
 */
static void
check_snapshot(Relation index, const IvfpqTraining *training)
{
	IvfpqMetaData meta;
	int64		rows;

	if (!IsolationUsesXactSnapshot())
		return;
	IvfpqMetaRead(index, &meta);
	rows = IvfpqCountPending(index, &meta) + IvfpqCountRows(index, &meta);
	if (training->rows < rows / 2)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot train index \"%s\" in this transaction",
						RelationGetRelationName(index)),
				 errdetail("The snapshot sees %.0f of %lld rows.", training->rows,
						   (long long) rows),
				 errhint("Call gpuvec_train in a separate transaction, or at isolation level READ COMMITTED.")));
}

/*
 * Trains an index, which may be trained already, if its table has enough rows.
 * The caller holds ShareUpdateExclusiveLock on the table, acts as the table's
 * owner and has an active snapshot.  Progress is reported as for CREATE INDEX.
 */
static void
train_in_place(Relation heap, Relation index, IvfpqTrainResult *result)
{
	InPlace		state = {.rows = {.heap = heap, .index = index}};
	IndexInfo  *indexInfo;
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
	IvfpqReclaimAll(index, IvfpqMayFreeRetired(index),
					GetAccessStrategy(BAS_VACUUM));
	IvfpqSnapshotTake();

	indexInfo = IvfpqIndexInfo(index);
	indexInfo->ii_Concurrent = true;	/* read rows as a snapshot sees them */
	IvfpqTypeInit(&state.rows.type, index);
	IvfpqKeysInit(&state.rows.keys, index);

	/* the index is about to be trained, so its dimensions become final */
	IvfpqMetaRead(index, &state.old);
	dims = IvfpqRowDims(heap, index, &state.old);
	if (dims > 0 && state.old.nlists == 0)
		dims = IvfpqPendingSettleDims(index, dims);
	IvfpqTrain(&state.training, &state.parallel, heap, index, indexInfo,
			   &state.rows.type, dims, true);
	IvfpqParallelEndWorkers(&state.parallel);
	check_snapshot(index, &state.training);
	IvfpqSnapshotDrop();
	if (state.training.nlists > 0)
	{
		if (state.old.nlists > 0)
			IvfpqReclaimLater(index);
		write_and_publish(&state);
	}
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

/*
 * Returns whether pages of earlier trainings may be freed: no snapshot is as
 * old as the end of the last of these trainings.  The caller has the table's
 * lock, and frees them next.  On standbys, queries with such snapshots are
 * canceled before that.
 */
bool
IvfpqMayFreeRetired(Relation index)
{
	IvfpqMetaData meta;
	FullTransactionId xid;

	IvfpqMetaRead(index, &meta);
	if (meta.retired_xid == 0)
		return true;
	xid = FullTransactionIdFromU64(meta.retired_xid);
	if (!GlobalVisCheckRemovableFullXid(NULL, xid))
		return false;
	IvfpqLogReuse(index, xid);
	return true;
}

/*
 * Frees the pages of other trainings, if there are any: those of attempts that
 * died at once, those of earlier trainings if that may be.
 */
void
IvfpqFreeRetired(Relation index, BufferAccessStrategy strategy)
{
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	if (meta.retired_xid != 0)
		IvfpqReclaimAll(index, IvfpqMayFreeRetired(index), strategy);
}

/* Appends a pending row to its lists, if it is visible and can be indexed. */
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
		place_row(rows, model, raw, tid, &keys, place, NULL);
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
 * Flushes the pending list of a trained index, page by page, with a snapshot
 * for each page.  The caller holds ShareUpdateExclusiveLock on the table and
 * acts as the table's owner.
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

		/* mark the page, so that VACUUM does not start a worker for it */
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
 * IvfpqTrainOrFlush, for an index that is not being trained already.  Lists
 * that an attempt to train has left frozen take rows again.  Rows are flushed
 * before the index is trained again, because training is the faster way for
 * rows in lists.
 */
static void
train_or_flush(Relation heap, Relation index, bool again,
			   IvfpqTrainResult *result)
{
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	if (meta.nlists > 0)
		IvfpqFreezeLists(index, &meta, false);
	if (meta.nlists > 0 && again)
	{
		IvfpqTrainResult flushed = {0};

		IvfpqSnapshotDrop();
		flush_pending(heap, index, &flushed);
		IvfpqSnapshotTake();
	}
	if (meta.nlists == 0 || again)
		train_in_place(heap, index, result);
	IvfpqMetaRead(index, &meta);
	result->nlists = meta.nlists;
	IvfpqSnapshotDrop();
	if (meta.nlists > 0)
		flush_pending(heap, index, result);
	IvfpqSnapshotTake();
}

/*
 * Trains the index if it is untrained or `again` is true, then flushes its
 * pending rows.  The caller holds ShareUpdateExclusiveLock on the table, acts
 * as the table's owner and has an active snapshot.
 */
void
IvfpqTrainOrFlush(Relation heap, Relation index, bool again,
				  IvfpqTrainResult *result)
{
	static const Busy *busy = NULL;
	const Busy	self = {RelationGetRelid(index), busy};

	memset(result, 0, sizeof(*result));
	for (const Busy *other = busy; other != NULL; other = other->outer)
		if (other->index == self.index)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_IN_USE),
					 errmsg("cannot train index \"%s\" because it is being trained in this session",
							RelationGetRelationName(index)),
					 errhint("Functions of an index must not train it.")));
	busy = &self;
	PG_TRY();
	{
		train_or_flush(heap, index, again, result);
	}
	PG_FINALLY();
	{
		busy = self.outer;
	}
	PG_END_TRY();
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

/* Tells the user why no row was moved, or why some rows stay pending. */
static void
report_result(Relation index, const IvfpqTrainResult *result)
{
	const char *name = RelationGetRelationName(index);

	if (result->nlists == 0 && result->waits)
		ereport(NOTICE,
				(errmsg("index \"%s\" is not trained because nearly all of its %.0f rows are equal",
						name, result->rows),
				 errhint("Call gpuvec_train when 1 %% of the rows, or %d rows, differ from the others.",
						 IvfpqLeastRows(index))));
	else if (result->nlists == 0)
		ereport(NOTICE,
				(errmsg_plural("index \"%s\" is not trained because the table has only %.0f row to index",
							   "index \"%s\" is not trained because the table has only %.0f rows to index",
							   (unsigned long) result->rows,
							   name, result->rows),
				 errhint("Training requires at least %d rows.", IvfpqLeastRows(index))));
	else if (result->mismatched > 0)
		ereport(WARNING,
				(errmsg_plural("%lld row of index \"%s\" remains pending because its dimensions do not match",
							   "%lld rows of index \"%s\" remain pending because their dimensions do not match",
							   (unsigned long) result->mismatched,
							   (long long) result->mismatched, name)));
	else if (result->moved == 0)
		ereport(NOTICE,
				(errmsg("index \"%s\" is already trained and has no pending rows",
						name)));
}

/*
 * gpuvec_train(index regclass, again boolean): trains an untrained index, or a
 * trained one again, or flushes the pending rows of a trained index.  Returns
 * the number of rows put into lists.
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
				 errmsg("cannot train indexes during recovery"),
				 errhint("Train the index on the primary server.")));
	PreventCommandIfParallelMode("gpuvec_train()");
	index = IvfpqOpenToChange(PG_GETARG_OID(0), check_may_train, &heap);

	IvfpqActAsOwner(&caller, heap);
	IvfpqTrainOrFlush(heap, index, PG_GETARG_BOOL(1), &result);
	IvfpqActAsCaller(&caller);
	report_result(index, &result);

	/* the locks stay until the end of the transaction */
	relation_close(index, NoLock);
	table_close(heap, NoLock);
	PG_RETURN_INT64(result.moved);
}
