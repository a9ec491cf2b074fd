/*
 * inplace.c
 *		Training in place: an index that answered from its pending list gets
 *		centroids, codes and lists while it is in use.
 *
 * All of it is written to pages that no reader finds.  Then one record, of the
 * metapage, shows it in place of the pending pages.  A crash before that
 * record leaves the index as it was, with pages that the next attempt or
 * VACUUM frees.  Rows that our snapshot does not see stay pending: they may be
 * uncommitted, or dead for us and alive for older snapshots.  The TOAST values
 * of the latter may be gone, so such rows are not even read.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_am.h"
#include "commands/progress.h"
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
#include "page/pending.h"
#include "pgcompat.h"

/* Rows that are read under the same snapshot. */
#define ROWS_A_SNAPSHOT		1024

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

/* Let a row stay pending. */
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

/* Assigns a row to its lists if the snapshot sees it. */
static void
assign_row(InPlace *state, uint64 id)
{
	MemoryContext oldcontext;
	IvfpqKeyAbbrevs keys;
	const float *vector;
	Datum		value;
	int			dims;

	if (!IvfpqRerankFetch(&state->rows, id, &value))
	{
		keep_row(state, id);
		return;
	}
	oldcontext = MemoryContextSwitchTo(state->rows.context);
	vector = IvfpqValueFloats(&state->type, value, &dims);
	IvfpqFetchedKeys(&state->keys, &state->rows, &keys);
	MemoryContextSwitchTo(oldcontext);
	if (dims == state->training.gv.dims &&
		IvfpqIsPlaceable(&state->type, vector, dims))
		IvfpqBulkLoadRow(&state->load, vector, id, &keys,
						 IvfpqBulkLoadWants(&state->load, id));
	else
		keep_row(state, id);
	IvfpqRerankDone(&state->rows);
}

/*
 * Begins to read rows under a new snapshot.  Another one is taken after
 * ROWS_A_SNAPSHOT rows: each row is judged by itself, so rows need not share a
 * snapshot, and VACUUM spares all that an old one sees.
 */
static void
begin_rows(InPlace *state)
{
	PushActiveSnapshot(GetLatestSnapshot());
	IvfpqRerankBegin(&state->rows, state->heap, state->index,
					 GetActiveSnapshot());
}

static void
end_rows(InPlace *state)
{
	IvfpqRerankEnd(&state->rows);
	PopActiveSnapshot();
	IvfpqSnapshotForget();
}

/* Assigns all rows of the frozen part, in heap order, each once. */
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
 * The steps from a trained model to a trained index.  Injection points are
 * named for the step that is done.
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

	/* cached plans know an index that reads the whole table */
	CacheInvalidateRelcache(state->heap);
}

/* Show progress as that of an index build. */
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
 * Training samples what the transaction's snapshot sees.  Where that is old,
 * as it may be from REPEATABLE READ on, it would take a large table for a
 * small one, and make lists for that.
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
 * Returns the dimensions of the rows of an index, decided for good because it
 * is about to be trained; 0 if it has no row.
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
 * Train an untrained index, if its table has enough rows.  The caller holds
 * ShareUpdateExclusiveLock on the table, acts as its owner and has an active
 * snapshot.
 */
void
IvfpqTrainInPlace(Relation heap, Relation index, IvfpqTrainResult *result)
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
