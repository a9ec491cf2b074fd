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
	MemoryContext tmp;			/* reset after every row */
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
	return !alive && !IvfpqIsVector(&build->type, value, dims);
}

/* Keeps the TID of a row that no list can hold, for the pending list. */
static void
keep_mismatched(IvfpqBuild *build, ItemPointer tid)
{
	if (build->nmismatched == build->max_mismatched)
	{
		build->max_mismatched = Max(64, 2 * build->max_mismatched);
		build->mismatched_ids = build->mismatched_ids == NULL ?
			palloc(build->max_mismatched * sizeof(uint64)) :
			repalloc_huge(build->mismatched_ids,
						  build->max_mismatched * sizeof(uint64));
	}
	build->mismatched_ids[build->nmismatched++] = IvfpqTidToId(tid);
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
	MemoryContext oldcontext;
	IvfpqKeyAbbrevs keys;
	const float *row = NULL;
	bool		mismatched;
	int			dims = build->training.gv.dims;

	if (use == IVFPQ_ROW_NONE)
		return;

	oldcontext = MemoryContextSwitchTo(build->tmp);
	mismatched = is_dead_mismatch(build, values[0], alive, dims);
	if (!mismatched)
	{
		row = IvfpqValueFloats(&build->type, values[0], &dims);
		IvfpqCheckDims(build->training.gv.dims, dims);
		IvfpqKeysMake(&build->keys, values, isnull, &keys);
	}
	MemoryContextSwitchTo(oldcontext);
	if (mismatched)
		keep_mismatched(build, tid);
	else if (IvfpqIsPlaceable(&build->type, row, dims))
		IvfpqBulkLoadRow(&build->load, row, id, &keys, use);
	MemoryContextReset(build->tmp);
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
								  build,
								  scan);
	IvfpqPlacerFlush(&build->load.placer);
	return rows;
}

/*
 * Places the rows of the table.  When gpuvecd fails, the rows that it had and
 * lost take another pass.
 */
static void
place_rows(IvfpqBuild *build)
{
	IvfpqParallel *parallel = &build->parallel;
	IvfpqSharing *sharing =
	IvfpqParallelMemory(parallel, IVFPQ_PARALLEL_SHARING);

	build->heap_tuples = scan_table(build);
	if (sharing == NULL)
		return;
	if (IvfpqParallelEndPhase(parallel))
	{
		uint64		done = pg_atomic_read_u64(&parallel->shared->done);
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

/* Logs all pages, together with the other participants. */
static void
log_pages(IvfpqBuild *build)
{
	int64		npages = build->parallel.shared->npages;
	int64		piece;

	while (IvfpqParallelNext(&build->parallel,
							 (npages + LOG_PAGES - 1) / LOG_PAGES,
							 &piece))
		IvfpqLogBuild(build->index, (BlockNumber) (piece * LOG_PAGES),
					  (BlockNumber) Min((piece + 1) * LOG_PAGES, npages));
}

/* Reports heap rows, broken HOT chains and mismatched rows to the leader. */
static void
report(IvfpqBuild *build)
{
	IvfpqParallelShared *parallel = build->parallel.shared;

	SpinLockAcquire(&parallel->mutex);
	parallel->heap_tuples += build->heap_tuples;
	parallel->broken_hot_chain |= build->indexInfo->ii_BrokenHotChain;
	SpinLockRelease(&parallel->mutex);
	if (build->parallel.me > 0 && build->nmismatched > 0)
	{
		IvfpqTempFile file;

		IvfpqTempFileBegin(&file, &build->parallel, "odd", 1);
		IvfpqTempFilePut(&file, 0, build->mismatched_ids,
						 build->nmismatched * sizeof(uint64));
		IvfpqTempFileDone(&file);
	}
}

/* The leader takes the reports of its workers. */
static void
take_reports(IvfpqBuild *build)
{
	IvfpqParallelShared *parallel = build->parallel.shared;
	IvfpqTempFile files;

	build->heap_tuples = parallel->heap_tuples;
	build->indexInfo->ii_BrokenHotChain = parallel->broken_hot_chain;
	IvfpqTempFileBegin(&files, &build->parallel, "odd", 1);
	for (int from = 1; from < parallel->size; from++)
	{
		BufFile    *file = IvfpqTempFileOpen(&files, 0, from);
		uint64		id;

		if (file == NULL)
			continue;
		while (IvfpqTempFileRead(file, &id, sizeof(id)))
		{
			ItemPointerData tid;

			IvfpqIdToTid(id, &tid);
			keep_mismatched(build, &tid);
		}
		IvfpqTempFileClose(&files, file);
	}
}

/*
 * Does a participant's part of building a trained index.  Only the leader
 * writes the metapage.
 */
static void
build_work(IvfpqBuild *build)
{
	IvfpqParallel *parallel = &build->parallel;
	Relation	index = build->index;

	IvfpqBulkLoadBegin(&build->load, index, &build->training, parallel,
					   &build->meta, false);
	place_rows(build);
	report(build);
	IvfpqBulkLoadWrite(&build->load, index, &build->meta, false);
	if (IvfpqParallelEndPhase(parallel))
	{
		IvfpqBulkLoadFinish(&build->load, index, &build->meta, false);
		IvfpqMetaRewrite(index, &build->meta);
		parallel->shared->npages = RelationGetNumberOfBlocks(index);
		IvfpqParallelStartPhase(parallel);
	}
	else
		IvfpqBulkLoadHelp(&build->load, index);
	log_pages(build);
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
	IvfpqBulkLoadPrepare(parallel, &build->training);
	return snapshot;
}

/* Builds a trained index, with the help of workers. */
static void
build_trained(IvfpqBuild *build)
{
	Snapshot	snapshot;

	pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE,
								 IVFPQ_PHASE_ASSIGNING);
	pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_TOTAL,
								 (int64) build->training.rows);
	snapshot = share_build(build);
	IvfpqParallelStartJob(&build->parallel, IVFPQ_JOB_BUILD);
	build_work(build);
	(void) IvfpqParallelEndPhase(&build->parallel);
	take_reports(build);
	if (IsMVCCSnapshot(snapshot))
		UnregisterSnapshot(snapshot);
	IvfpqParallelEnd(&build->parallel);

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
	MemoryContext oldcontext;
	const float *row = NULL;
	bool		mismatched;
	int			dims = 0;

	if (isnull[0])
		return;

	oldcontext = MemoryContextSwitchTo(build->tmp);
	mismatched = is_dead_mismatch(build, values[0], alive, build->meta.dims);
	if (!mismatched)
		row = IvfpqValueFloats(&build->type, values[0], &dims);
	if (alive)
	{
		/*
		 * CONCURRENTLY: the first row may have come since the sample was
		 * taken
		 */
		if (build->meta.dims == 0)
			build->meta.dims = dims;
		IvfpqCheckDims(build->meta.dims, dims);
	}
	if (mismatched || IvfpqIsPlaceable(&build->type, row, dims))
	{
		(void) IvfpqPendingAppend(index, tid,
								  dims == build->meta.dims ? dims : 0);
		build->index_tuples += 1;
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(build->tmp);
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
	IvfpqMetaData meta;
	IvfpqType	type;
	IvfpqKeys	keys;

	IvfpqTypeInit(&type, index);
	IvfpqKeysInit(&keys, index);
	IvfpqMetaInit(&meta, type.metric, IvfpqIndexDims(index, &type),
				  &keys.form);
	meta.build_id = 0;
	meta.refine = IvfpqGetOptions(index)->refine;
	IvfpqMetaCreate(index, INIT_FORKNUM, &meta);
}

/* Reads rows to train on, as a worker. */
static void
help_to_read(IvfpqBuild *build, IvfpqJob job)
{
	IvfpqSample sample = {.type = &build->type};
	IvfpqReader reader = {.training = &build->training, .sample = &sample,
		.heap = build->heap, .index = build->index,
	.indexInfo = build->indexInfo};

	if (job == IVFPQ_JOB_SEND)
		IvfpqSendHelp(&reader, &build->parallel);
	else
		IvfpqClusterHelp(&reader, &build->parallel);
}

/*
 * Places rows of the table, and takes part in all later phases of the build,
 * as a worker.
 */
static void
help_to_build(IvfpqBuild *build)
{
	IvfpqSharing *sharing = IvfpqParallelMemory(&build->parallel,
												IVFPQ_PARALLEL_SHARING);

	IvfpqTrainingOpen(&build->training, &build->parallel);
	if (sharing != NULL)
		build->training.builder = IvfpqBuilderJoin(&sharing->ticket, sharing);
	build_work(build);
}

/* Does one job after the other, each in a memory context of its own. */
static void
work(IvfpqBuild *build)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq job",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	IvfpqJob	job;

	for (;;)
	{
		(void) IvfpqParallelEndPhase(&build->parallel);
		job = build->parallel.shared->job;
		if (job == IVFPQ_JOB_END)
			break;
		if (job == IVFPQ_JOB_BUILD)
			help_to_build(build);
		else
			help_to_read(build, job);
		MemoryContextReset(context);
		build->training = (IvfpqTraining)
		{
			0
		};
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
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
	const IvfpqParallelShared *shared;
	LOCKMODE	heap_lock = ShareLock;
	LOCKMODE	index_lock = AccessExclusiveLock;

	IvfpqParallelAttach(&build.parallel, seg, toc);
	shared = build.parallel.shared;
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

	work(&build);

	/* a parallel worker has to end with the snapshots that it began with */
	IvfpqSnapshotTake();
	index_close(build.index, index_lock);
	table_close(build.heap, heap_lock);
	IvfpqParallelDetach(&build.parallel, toc);
}
