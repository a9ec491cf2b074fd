/*
 * build.c
 *		CREATE INDEX, as the leader and the parallel workers carry it out.
 *
 * A build trains centroids and codebooks, and then assigns every row of the
 * table to lists.  If there are too few rows to train on, or nearly all are
 * equal, it leaves the index untrained and all rows pending.
 *
 * The leader trains (train.c) and places the rows of the table (bulkload.c).
 * Parallel workers (parallel.c) help.  Only the leader writes the metapage.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "utils/backend_progress.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/build/build.h"
#include "am/build/bulkload.h"
#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/common/util.h"
#include "am/types/keys.h"
#include "page/listwrite.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "pgcompat.h"

/* Number of pages that a participant logs at a time. */
#define LOG_PAGES		4096

/* A participant's state of a build. */
typedef struct IvfpqBuild
{
	Relation	heap;
	Relation	index;
	IndexInfo  *indexInfo;
	IvfpqType	type;
	IvfpqKeys	keys;
	IvfpqMetaData meta;
	IvfpqTraining training;
	IvfpqParallel parallel;		/* used only if the index is trained */
	IvfpqBulkLoad load;
	MemoryContext tmp;			/* holds the row that was read last */
	double		heap_tuples;
	double		index_tuples;

	/*
	 * TIDs of rows that only old snapshots see, and whose values are not
	 * vectors of the index's dimensions
	 */
	uint64	   *mismatched_ids;
	int64		nmismatched;
	int64		max_mismatched;
} IvfpqBuild;

/* True if this statement has already reported an untrained index. */
static bool said_untrained = false;

/* Initializes a build, except its relations, in the current memory context. */
static void
build_init(IvfpqBuild *build)
{
	build->tmp = AllocSetContextCreate(CurrentMemoryContext,
									   "gpuivfpq build row",
									   ALLOCSET_DEFAULT_SIZES);
	IvfpqTypeInit(&build->type, build->index);
	IvfpqTypeStudy(&build->type);
	IvfpqKeysInit(&build->keys, build->index);
	IvfpqMetaInit(&build->meta, build->type.metric,
				  IvfpqIndexDims(build->index, &build->type),
				  &build->keys.form);
	build->meta.refine = IvfpqGetOptions(build->index)->refine;
}

/*
 * Returns true if the row is visible only to old snapshots and its value is
 * not a vector of `dims` dimensions.  The build does not fail on such a row.
 * A scan that sees the row leaves it out if it has other dimensions, and
 * otherwise fails, as a sort would.
 */
static bool
is_dead_mismatch(IvfpqBuild *build, Datum value, bool alive, int dims)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(build->tmp);
	bool		mismatched = !alive && !IvfpqIsVector(&build->type, value, dims);

	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(build->tmp);
	return mismatched;
}

/* IndexBuildCallback.  Passes a row of the table to the bulk load. */
static void
assign_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				bool alive, void *arg)
{
	IvfpqBuild *build = arg;
	uint64		id = IvfpqTidToId(tid);
	IvfpqRowUse use = isnull[0] ? IVFPQ_ROW_NONE :
	IvfpqBulkLoadWants(&build->load, id);
	int			dims = build->training.gv.dims;
	MemoryContext oldcontext;
	IvfpqKeyAbbrevs keys;
	const float *row;

	if (use == IVFPQ_ROW_NONE)
		return;
	if (is_dead_mismatch(build, values[0], alive, dims))
	{
		IvfpqGrow(build->mismatched_ids, build->nmismatched,
				  build->max_mismatched);
		build->mismatched_ids[build->nmismatched++] = id;
		return;
	}
	row = IvfpqRowVector(&build->type, values[0], false, &dims, false,
						 build->tmp);
	if (row == NULL)
		return;
	oldcontext = MemoryContextSwitchTo(build->tmp);
	IvfpqKeysMake(&build->keys, values, isnull, &keys);
	MemoryContextSwitchTo(oldcontext);
	IvfpqBulkLoadRow(&build->load, row, id, &keys, use);
}

/* Scans this participant's part of the table.  Returns its number of rows. */
static double
scan_table(IvfpqBuild *build)
{
	IvfpqParallel *parallel = &build->parallel;
	ParallelTableScanDesc shared =
	IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SCAN);
	TableScanDesc scan = NULL;
	double		rows;

	if (shared != NULL)
		scan = IvfpqTableBeginParallelScan(build->heap, shared);
	rows = table_index_build_scan(build->heap, build->index, build->indexInfo,
								  true, parallel->me == 0, assign_callback,
								  build, scan);
	IvfpqBulkLoadEndPass(&build->load);
	return rows;
}

/*
 * Does a participant's part of building a trained index: reads rows, writes
 * lists, calibrates, and logs pages.
 */
static void
build_work(IvfpqBuild *build)
{
	IvfpqParallel *parallel = &build->parallel;
	IvfpqParallelShared *shared = parallel->shared;
	IvfpqBuildShared *sharing =
	IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING);
	Relation	index = build->index;
	int64		npages;
	int64		piece;

	IvfpqBulkLoadBegin(&build->load, index, &build->training, parallel,
					   &build->meta, false);
	build->heap_tuples = scan_table(build);
	if (sharing != NULL)
	{
		/*
		 * If gpuvecd has failed, the rows that only gpuvecd had are lost.
		 * Read the table again to get these rows.
		 */
		if (IvfpqParallelEndPhase(parallel))
		{
			uint64		done = pg_atomic_read_u64(&shared->done);
			ParallelTableScanDesc scan =
			IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SCAN);

			if (IvfpqSharingRecover(sharing) && scan != NULL)
				table_parallelscan_reinitialize(build->heap, scan);
			IvfpqParallelStartPhase(parallel);
			IvfpqParallelProgress(parallel, done);
		}
		if (sharing->recovering)
			(void) scan_table(build);
	}

	/* build_trained() reads these sums when all participants are done */
	SpinLockAcquire(&shared->mutex);
	shared->heap_tuples += build->heap_tuples;
	shared->broken_hot_chain |= build->indexInfo->ii_BrokenHotChain;
	SpinLockRelease(&shared->mutex);
	if (parallel->me > 0 && build->nmismatched > 0)
	{
		IvfpqTempFile file;

		IvfpqTempFileBegin(&file, parallel, "odd", 1);
		IvfpqTempFilePut(&file, 0, build->mismatched_ids,
						 build->nmismatched * sizeof(uint64));
		IvfpqTempFileDone(&file);
	}

	IvfpqBulkLoadWrite(&build->load);
	if (IvfpqParallelEndPhase(parallel))
	{
		IvfpqBulkLoadFinish(&build->load);
		IvfpqMetaRewrite(index, &build->meta);
		shared->npages = RelationGetNumberOfBlocks(index);
		IvfpqParallelStartPhase(parallel);
	}
	else
		IvfpqBulkLoadHelp(&build->load);

	npages = shared->npages;
	while (IvfpqParallelNext(parallel, (npages + LOG_PAGES - 1) / LOG_PAGES,
							 &piece))
		IvfpqLogBuild(index, (BlockNumber) (piece * LOG_PAGES),
					  (BlockNumber) Min((piece + 1) * LOG_PAGES, npages));
}

/*
 * Sets up the memory that all participants see.  The leader calls this.
 * Returns the snapshot with which participants scan the table: SnapshotAny, or
 * a registered snapshot for CREATE INDEX CONCURRENTLY.
 */
static Snapshot
share_build(IvfpqBuild *build)
{
	IvfpqParallel *parallel = &build->parallel;
	IvfpqBuilder *builder = build->training.builder;
	Snapshot	snapshot = SnapshotAny;

	if (parallel->has_workers)
	{
		if (build->indexInfo->ii_Concurrent)
			snapshot = RegisterSnapshot(GetTransactionSnapshot());
		table_parallelscan_initialize(build->heap,
									  IvfpqParallelAlloc(parallel,
														 IVFPQ_PARALLEL_SCAN,
														 table_parallelscan_estimate(build->heap,
																					 snapshot)),
									  snapshot);
	}
	if (builder != NULL)
	{
		/*
		 * Only the pass over the table reads the keys of rows.  So, if there
		 * are keys, the pass sends all rows to gpuvecd, even the sample's
		 * rows, which gpuvecd has already.  It also does so if refine records
		 * have to allow for a rotation (IvfpqRecordAllow), because only the
		 * pass has the rows' lengths.
		 */
		if (build->keys.nkeys > 0 ||
			(build->training.rotation != NULL &&
			 build->meta.refine != IVFPQ_REFINE_NONE))
			IvfpqBuilderSampled(builder, 0);
		IvfpqSharingInit(IvfpqParallelAlloc(parallel, IVFPQ_PARALLEL_SHARING,
											IvfpqSharingSize(builder)), builder);
		IvfpqParallelFree(parallel, IVFPQ_PARALLEL_SAMPLE);
	}
	return snapshot;
}

/* Builds a trained index, with the help of workers. */
static void
build_trained(IvfpqBuild *build)
{
	IvfpqParallel *parallel = &build->parallel;
	IvfpqTempFile files;
	Snapshot	snapshot;
	uint64		id;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_ASSIGNING);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 (int64) build->training.rows);
	snapshot = share_build(build);
	IvfpqParallelStartJob(parallel, IVFPQ_JOB_BUILD);
	build_work(build);
	(void) IvfpqParallelEndPhase(parallel);

	build->heap_tuples = parallel->shared->heap_tuples;
	build->indexInfo->ii_BrokenHotChain = parallel->shared->broken_hot_chain;
	IvfpqTempFileBegin(&files, parallel, "odd", 1);
	IvfpqTempFileOpen(&files, 0, 1, parallel->shared->size);
	while (IvfpqTempFileRead(&files, &id, sizeof(id)))
	{
		IvfpqGrow(build->mismatched_ids, build->nmismatched,
				  build->max_mismatched);
		build->mismatched_ids[build->nmismatched++] = id;
	}
	IvfpqTempFileEnd(&files);
	if (IsMVCCSnapshot(snapshot))
		UnregisterSnapshot(snapshot);
	IvfpqParallelEnd(parallel);

	for (int64 i = 0; i < build->nmismatched; i++)
	{
		ItemPointerData tid;

		IvfpqIdToTid(build->mismatched_ids[i], &tid);
		(void) IvfpqPendingAppend(build->index, &tid, 0);
	}
	build->index_tuples = (double) (build->load.rows + build->nmismatched);
}

/* IndexBuildCallback for an untrained index.  Makes the row pending. */
static void
pending_callback(Relation index, ItemPointer tid, Datum *values, bool *isnull,
				 bool alive, void *arg)
{
	IvfpqBuild *build = arg;
	int			dims = build->meta.dims;
	MemoryContext oldcontext;

	if (isnull[0])
		return;
	if (is_dead_mismatch(build, values[0], alive, dims))
		dims = 0;
	else
	{
		const float *row = IvfpqRowVector(&build->type, values[0], false,
										  &dims, false, build->tmp);

		/*
		 * In CREATE INDEX CONCURRENTLY, the table may have been empty when
		 * the sample was taken.  Then the first row sets the dimensions.
		 */
		if (alive)
			build->meta.dims = dims;
		if (row == NULL)
			return;
	}
	oldcontext = MemoryContextSwitchTo(build->tmp);
	(void) IvfpqPendingAppend(index, tid, dims == build->meta.dims ? dims : 0);
	MemoryContextSwitchTo(oldcontext);
	build->index_tuples += 1;
}

/* Callback of the portal's memory context, called when the statement ends. */
static void
forget_statement(void *arg)
{
	said_untrained = false;
}

/*
 * Returns whether to report to the user that an index is not trained.  Only
 * CREATE INDEX and REINDEX report it.  TRUNCATE, ALTER TABLE, CREATE TABLE and
 * every COMMIT that deletes the rows of a temporary table build indexes, too,
 * but their users did not ask for an index.  A statement that builds an index
 * for each of a thousand partitions reports it only once.
 */
static bool
is_news(void)
{
	Portal		portal = ActivePortal;
	MemoryContextCallback *callback;

	if (portal == NULL || said_untrained ||
		(portal->commandTag != CMDTAG_CREATE_INDEX &&
		 portal->commandTag != CMDTAG_REINDEX))
		return false;
	callback = MemoryContextAlloc(portal->portalContext, sizeof(*callback));
	callback->func = forget_statement;
	callback->arg = NULL;
	MemoryContextRegisterResetCallback(portal->portalContext, callback);
	said_untrained = true;
	return true;
}

/*
 * Builds an index without training, because the table is small or nearly all
 * of its rows are equal.  All rows become pending.
 */
static void
build_untrained(IvfpqBuild *build)
{
	bool		waits = build->training.waits;
	bool		is_temporary =
	build->index->rd_rel->relpersistence == RELPERSISTENCE_TEMP;

	IvfpqLogBuild(build->index, 0, RelationGetNumberOfBlocks(build->index));
	build->heap_tuples =
		table_index_build_scan(build->heap, build->index, build->indexInfo,
							   true, true, pending_callback, build, NULL);
	ereport(is_news() ? NOTICE : DEBUG1,
			(waits ?
			 errmsg("index \"%s\" is not trained because nearly all of its %.0f rows are equal",
					RelationGetRelationName(build->index),
					build->index_tuples) :
			 errmsg_plural("index \"%s\" is not trained because the table has only %.0f row to index",
						   "index \"%s\" is not trained because the table has only %.0f rows to index",
						   (unsigned long) build->index_tuples,
						   RelationGetRelationName(build->index),
						   build->index_tuples),
			 build->index->rd_rel->relispartition ?
			 errdetail("Queries return exact results from the table until the index is trained.  The same may apply to other partitions.") :
			 errdetail("Queries return exact results from the table until the index is trained."),
			 is_temporary ?
			 errhint("Call gpuvec_train after loading the table.") :
			 waits ?
			 errhint("VACUUM or autovacuum will train the index once 1 %% of its rows, or %d rows, differ from the others.  To train it then without waiting, call gpuvec_train.",
					 IvfpqLeastRows(build->index)) :
			 errhint("VACUUM or autovacuum will train the index once it has %d rows.  To train it earlier, call gpuvec_train.",
					 IvfpqTrainRows(build->index))));
}

/* ambuild callback.  No other session uses the index until we commit. */
IndexBuildResult *
ivfpqbuild(Relation heap, Relation index, IndexInfo *indexInfo)
{
	IndexBuildResult *result;
	MemoryContext context;
	MemoryContext oldcontext;
	IvfpqBuild	build = {.heap = heap, .index = index, .indexInfo = indexInfo};
	IvfpqIdentity caller;

	if (RelationGetNumberOfBlocks(index) != 0)
		elog(ERROR, "index \"%s\" already contains data",
			 RelationGetRelationName(index));

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq build",
									ALLOCSET_DEFAULT_SIZES);

	/*
	 * PostgreSQL already runs us as the table's owner, but before version 17
	 * it keeps the caller's search_path
	 */
	IvfpqActAsOwner(&caller, heap);
	IvfpqRenewExpressions(indexInfo, index);
	oldcontext = MemoryContextSwitchTo(context);
	build_init(&build);
	IvfpqTrain(&build.training, &build.parallel, heap, index, indexInfo,
			   &build.type, build.meta.dims, false);
	if (build.meta.dims == 0 && build.training.gv.dims > 0)
	{
		build.meta.dims = build.training.gv.dims;
		build.meta.dims_flags |= IVFPQ_DIMS_BY_ROW;
	}
	IvfpqMetaCreate(index, MAIN_FORKNUM, &build.meta);
	if (build.training.nlists > 0)
		build_trained(&build);
	else
		build_untrained(&build);

	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	IvfpqActAsCaller(&caller);

	result = palloc(sizeof(IndexBuildResult));
	result->heap_tuples = build.heap_tuples;
	result->index_tuples = build.index_tuples;
	return result;
}

/* ambuildempty callback.  Makes the init fork of an unlogged index. */
void
ivfpqbuildempty(Relation index)
{
	IvfpqBuild	build = {.index = index};

	build_init(&build);
	build.meta.build_id = 0;
	IvfpqMetaCreate(index, INIT_FORKNUM, &build.meta);
	MemoryContextDelete(build.tmp);
}

/*
 * Entry point of a parallel worker.  In a build, a worker takes the same locks
 * as the leader.  When an index is trained in place, a worker takes weaker
 * locks, because the leader's stronger locks protect the workers as well.
 */
void
IvfpqWorkerMain(dsm_segment *seg, shm_toc *toc)
{
	IvfpqBuild	build = {0};
	IvfpqParallel *parallel = &build.parallel;
	const IvfpqParallelShared *shared;
	LOCKMODE	heap_lock = ShareLock;
	LOCKMODE	index_lock = AccessExclusiveLock;
	MemoryContext context;
	MemoryContext oldcontext;

	IvfpqParallelAttach(parallel, seg, toc);
	shared = parallel->shared;
	if (shared->in_place)
		heap_lock = index_lock = AccessShareLock;
	else if (shared->concurrent)
	{
		heap_lock = ShareUpdateExclusiveLock;
		index_lock = RowExclusiveLock;
	}
	build.heap = table_open(shared->heap, heap_lock);
	build.index = index_open(shared->index, index_lock);
	build.indexInfo = IvfpqIndexInfo(build.index);
	build.indexInfo->ii_Concurrent = shared->concurrent;
	build_init(&build);
	if (shared->in_place)
	{
		IvfpqSnapshotsAreOurs();
		IvfpqSnapshotDrop();
	}

	/* do one job after another, and reset the memory context after each */
	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq job",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	for (;;)
	{
		IvfpqSample sample = {.heap = build.heap, .index = build.index,
		.indexInfo = build.indexInfo, .type = &build.type};
		IvfpqReader reader = {.training = &build.training, .sample = &sample};

		(void) IvfpqParallelEndPhase(parallel);
		if (shared->job == IVFPQ_JOB_END)
			break;
		if (shared->job == IVFPQ_JOB_SEND)
			IvfpqSendHelp(&reader, parallel);
		else if (shared->job == IVFPQ_JOB_CLUSTER)
			IvfpqClusterHelp(&reader, parallel);
		else if (shared->job == IVFPQ_JOB_BUILD)
		{
			IvfpqBuildShared *sharing =
			IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING);

			IvfpqTrainingOpen(&build.training, parallel);
			if (sharing != NULL)
				build.training.builder =
					IvfpqBuilderJoin(&sharing->ticket, &build.training.gv,
									 sharing);
			build_work(&build);
		}
		MemoryContextReset(context);
		memset(&build.training, 0, sizeof(build.training));
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	/* a parallel worker must end with the snapshots that it began with */
	IvfpqSnapshotTake();
	index_close(build.index, index_lock);
	table_close(build.heap, heap_lock);
	IvfpqParallelDetach(parallel, toc);
}
