/*
 * build.c
 *		CREATE INDEX, and a parallel worker's side of it: train, then assign
 *		every row; or keep all rows pending.
 *
 * The leader trains (train.c) and places the rows of the table (bulkload.c),
 * with the help of parallel workers (parallel.c).  A worker joins the leader,
 * and does its part of each job: reading rows to train on, training lists, and
 * the build.  Only the leader writes the metapage.
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

/* Pages that a participant logs at a time. */
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
	IvfpqParallel parallel;		/* if there are rows to train on */
	IvfpqBulkLoad load;
	MemoryContext tmp;			/* has the row that was read last */
	double		heap_tuples;
	double		index_tuples;

	/* rows of other dimensions, which only older snapshots see */
	uint64	   *mismatched_ids;
	int64		nmismatched;
	int64		max_mismatched;
} IvfpqBuild;

/* This statement has reported an untrained index. */
static bool said_untrained = false;

/*
 * Initializes a build whose relations are set; memory from the current
 * context.
 */
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
 * Returns whether only old snapshots see the row, and its value is no vector,
 * or one of other dims.  Such a row does not fail the build: a scan that sees
 * it raises the error when it reranks it, as a sort would.
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

/* Called for every row of the table. */
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

/*
 * Scans this participant's part of the table; returns the number of its rows.
 */
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
 * lists, calibrates, logs pages.  Only the leader writes the metapage.
 */
static void
build_work(IvfpqBuild *build)
{
	IvfpqParallel *parallel = &build->parallel;
	IvfpqParallelShared *shared = parallel->shared;
	IvfpqSharing *sharing =
	IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING);
	Relation	index = build->index;
	int64		npages;
	int64		piece;

	IvfpqBulkLoadBegin(&build->load, index, &build->training, parallel,
					   &build->meta, false);
	build->heap_tuples = scan_table(build);
	if (sharing != NULL)
	{
		/* rows that gpuvecd had, and lost as it failed, take another pass */
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

	/* build_trained takes these reports */
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
 * The leader sets up the memory that all participants see.  Returns the
 * snapshot by which they scan the table: SnapshotAny, or a registered snapshot
 * for CONCURRENTLY.
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
		/* only the pass over the table knows keys, so it sends all rows */
		if (build->keys.nkeys > 0)
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

/* Called for every row when there is no training: it is pending. */
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
		 * CONCURRENTLY: the first row may have come since the sample was
		 * taken
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

/* Called when the statement ends. */
static void
forget_statement(void *arg)
{
	said_untrained = false;
}

/*
 * Returns whether the user should be told that an index is not trained: only
 * by a statement that asks for an index, and once, because it may build one
 * for each of a thousand partitions.  TRUNCATE, ALTER TABLE and CREATE TABLE
 * build indexes, too, and so does every COMMIT that deletes the rows of a
 * temporary table.
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

/* Builds an index on a small table, or of placeholders: all rows pending. */
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
			 errmsg("index \"%s\" is not trained, nearly all of its %.0f rows are equal",
					RelationGetRelationName(build->index),
					build->index_tuples) :
			 errmsg("index \"%s\" is not trained, the table has only %.0f rows to index",
					RelationGetRelationName(build->index),
					build->index_tuples),
			 build->index->rd_rel->relispartition ?
			 errdetail("Queries are answered exactly, from the table.  It may be so with other partitions, too.") :
			 errdetail("Queries are answered exactly, from the table."),
			 is_temporary ?
			 errhint("Call gpuvec_train when the table has its rows.") :
			 waits ?
			 errhint("Once VACUUM or autovacuum finds that one of a hundred rows, or %d in all, differ from the others, it trains itself; gpuvec_train does that at once.",
					 IvfpqLeastRows(build->index)) :
			 errhint("Once VACUUM or autovacuum finds %d rows in it, it trains itself; gpuvec_train does that at once.",
					 IvfpqTrainRows(build->index))));
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
	IvfpqBuild	build = {.heap = heap, .index = index, .indexInfo = indexInfo};
	IvfpqIdentity caller;

	if (RelationGetNumberOfBlocks(index) != 0)
		elog(ERROR, "index \"%s\" already contains data",
			 RelationGetRelationName(index));

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq build",
									ALLOCSET_DEFAULT_SIZES);
	/* PostgreSQL acts as the owner already, but before 17 keeps the path */
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

/* ambuildempty: makes the init fork of an unlogged index. */
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
 * Entry point of a worker.  For a build it takes the same locks as the
 * leader.  In place it takes weaker ones, since the leader's locks are held
 * for it, too.
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

	/* does one job after the other, each in a memory context of its own */
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
			IvfpqSharing *sharing =
			IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING);

			IvfpqTrainingOpen(&build.training, parallel);
			if (sharing != NULL)
				build.training.builder = IvfpqBuilderJoin(&sharing->ticket,
														  sharing);
			build_work(&build);
		}
		MemoryContextReset(context);
		memset(&build.training, 0, sizeof(build.training));
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);

	/* a parallel worker has to end with the snapshots that it began with */
	IvfpqSnapshotTake();
	index_close(build.index, index_lock);
	table_close(build.heap, heap_lock);
	IvfpqParallelDetach(parallel, toc);
}
