/*
 * parallel.c
 *		CREATE INDEX with parallel workers: what they see, how they begin and
 *		end.
 *
 * Workers begin when there is a model.  It lies in shared memory, once, for
 * the leader as well: of a million lists its centroids are gigabytes.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/instrument.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/build/build.h"
#include "am/common/identity.h"
#include "am/team/segment.h"

/* What lies in the segment of shared memory. */
enum
{
	KEY_SHARED = 1,				/* IvfpqTeamShared */
	KEY_SCAN,					/* of the table */
	KEY_TRAINING,				/* IvfpqTraining and its arrays */
	KEY_SHARING,				/* IvfpqSharing, if gpuvecd builds */
	KEY_ENTRIES,				/* IvfpqListEntry [nlists] */
	KEY_QUERY,					/* its text */
	KEY_WAL,					/* WalUsage [nworkers] */
	KEY_BUFFERS					/* BufferUsage [nworkers] */
};

/* The leader's hold on its workers. */
typedef struct IvfpqWorkers
{
	ParallelContext *context;
	Snapshot	snapshot;
	WalUsage   *wal;
	BufferUsage *buffers;
} IvfpqWorkers;

/* The arrays of a model in one piece of memory; or just their size. */
static Size
place_arrays(IvfpqTraining *training, char *memory)
{
	Size		dims = training->gv.dims;
	Size		queries = training->nqueries;
	const struct
	{
		void	  **array;
		Size		bytes;
	}			parts[] = {
		{(void **) &training->query_ids, queries * sizeof(uint64)},
		{(void **) &training->mean, dims * sizeof(float)},
		{(void **) &training->codebooks, GV_CODEWORDS * dims * sizeof(float)},
		{(void **) &training->parents,
		training->nparents * dims * sizeof(float)},
		{(void **) &training->starts,
		(training->nparents + 1) * sizeof(int32)},
		{(void **) &training->centroids,
		training->nlists * dims * sizeof(float)},
		{(void **) &training->queries, queries * dims * sizeof(float)}
	};
	Size		used = MAXALIGN(sizeof(IvfpqTraining));

	for (int i = 0; i < (int) lengthof(parts); i++)
	{
		if (memory != NULL)
		{
			/* the leader's own memory; there is none yet for a worker */
			if (*parts[i].array != NULL)
			{
				memcpy(memory + used, *parts[i].array, parts[i].bytes);
				pfree(*parts[i].array);
			}
			*parts[i].array = memory + used;
		}
		used += MAXALIGN(parts[i].bytes);
	}
	training->gv.mean = training->mean;
	training->gv.codebooks = training->codebooks;
	return used;
}

/* The model moves to shared memory. */
static void
share_training(IvfpqTraining *training, char *memory)
{
	(void) place_arrays(training, memory);
	memcpy(memory, training, sizeof(*training));
}

/* A worker sets its pointers to it. */
static void
open_training(IvfpqTraining *training, char *memory)
{
	*training = *(IvfpqTraining *) memory;
	training->query_ids = NULL;
	training->mean = training->codebooks = NULL;
	training->parents = training->centroids = training->queries = NULL;
	training->starts = NULL;
	training->builder = NULL;
	(void) place_arrays(training, memory);
}

/* Make the segment; false: there is none to be had. */
static bool
make_segment(IvfpqWorkers *workers, Relation heap, IvfpqTraining *training)
{
	ParallelContext *context = workers->context;
	Size		n = context->nworkers;

	IvfpqSegmentAsk(context, sizeof(IvfpqTeamShared));
	IvfpqSegmentAsk(context,
					table_parallelscan_estimate(heap, workers->snapshot));
	IvfpqSegmentAsk(context, place_arrays(training, NULL));
	if (training->builder != NULL)
		IvfpqSegmentAsk(context, IvfpqSharingSize(training->builder));
	IvfpqSegmentAsk(context, training->nlists * sizeof(IvfpqListEntry));
	IvfpqSegmentAskQuery(context);
	IvfpqSegmentAsk(context, n * sizeof(WalUsage));
	IvfpqSegmentAsk(context, n * sizeof(BufferUsage));
	InitializeParallelDSM(context);
	return context->seg != NULL;
}

/* Fill it with the state of a build. */
static void
fill_segment(IvfpqTeam *team, Relation heap, Relation index,
			 bool concurrent, IvfpqTraining *training)
{
	IvfpqWorkers *workers = team->workers;
	ParallelContext *context = workers->context;
	Size		n = context->nworkers;
	Size		bytes = training->nlists * sizeof(IvfpqListEntry);

	team->shared = IvfpqSegmentTake(context, KEY_SHARED,
									sizeof(IvfpqTeamShared));
	IvfpqTeamInit(team->shared);
	team->shared->heap = RelationGetRelid(heap);
	team->shared->index = RelationGetRelid(index);
	team->shared->concurrent = concurrent;
	team->shared->nparts = context->nworkers + 1;
	SharedFileSetInit(&team->shared->files, context->seg);
	team->scan = IvfpqSegmentTake(context, KEY_SCAN,
								  table_parallelscan_estimate(heap,
															  workers->snapshot));
	table_parallelscan_initialize(heap, team->scan, workers->snapshot);
	if (training->builder != NULL)
	{
		team->sharing = IvfpqSegmentTake(context, KEY_SHARING,
										 IvfpqSharingSize(training->builder));
		IvfpqSharingInit(team->sharing, training->builder);
	}
	share_training(training,
				   IvfpqSegmentTake(context, KEY_TRAINING,
									place_arrays(training, NULL)));
	team->entries = IvfpqSegmentTake(context, KEY_ENTRIES, bytes);
	memset(team->entries, 0, bytes);
	IvfpqSegmentGiveQuery(context, KEY_QUERY);
	workers->wal = IvfpqSegmentTake(context, KEY_WAL, n * sizeof(WalUsage));
	workers->buffers = IvfpqSegmentTake(context, KEY_BUFFERS,
										n * sizeof(BufferUsage));
}

/* Let go of context and snapshot. */
static void
end_workers(IvfpqWorkers *workers)
{
	if (IsMVCCSnapshot(workers->snapshot))
		UnregisterSnapshot(workers->snapshot);
	DestroyParallelContext(workers->context);
	ExitParallelMode();
}

/* Start workers; false: there is no shared memory for them. */
static bool
begin_workers(IvfpqTeam *team, int nworkers, Relation heap, Relation index,
			  bool concurrent, IvfpqTraining *training)
{
	IvfpqWorkers *workers = palloc0(sizeof(IvfpqWorkers));

	EnterParallelMode();
	workers->context = CreateParallelContext("gpuvec", "IvfpqWorkerMain",
											 nworkers);
	/* as everywhere in builds: all versions of rows, or those of a snapshot */
	workers->snapshot = concurrent ?
		RegisterSnapshot(GetTransactionSnapshot()) : SnapshotAny;
	if (!make_segment(workers, heap, training))
	{
		end_workers(workers);
		return false;
	}
	memset(team, 0, sizeof(*team));
	team->workers = workers;
	team->parallel = true;
	fill_segment(team, heap, index, concurrent, training);
	LaunchParallelWorkers(workers->context);
	team->shared->size = workers->context->nworkers_launched + 1;
	ereport(DEBUG1,
			(errmsg_internal("using %d parallel workers",
							 workers->context->nworkers_launched)));
	/* a worker that dies before it attaches would be waited for */
	WaitForParallelWorkersToAttach(workers->context);
	return true;
}

/*
 * The leader begins, with as many workers as are wanted and can be had;
 * the arrays of *training may move.  Memory from the current context.
 */
void
IvfpqTeamBegin(IvfpqTeam *team, Relation heap, Relation index,
			   IndexInfo *indexInfo, IvfpqTraining *training)
{
	int			nworkers = IvfpqCountWorkers(heap, index);

	if (nworkers > 0 && begin_workers(team, nworkers, heap, index,
									  indexInfo->ii_Concurrent, training))
		return;
	IvfpqTeamAlone(team, training->nlists);
	if (training->builder != NULL)
	{
		team->sharing = palloc_extended(IvfpqSharingSize(training->builder),
										MCXT_ALLOC_HUGE);
		IvfpqSharingInit(team->sharing, training->builder);
	}
}

/* All work is done.  What training made is gone, if it was shared. */
void
IvfpqTeamEnd(IvfpqTeam *team)
{
	IvfpqWorkers *workers = team->workers;

	if (workers == NULL)
		return;
	WaitForParallelWorkersToFinish(workers->context);
	for (int i = 0; i < workers->context->nworkers_launched; i++)
		InstrAccumParallelQuery(&workers->buffers[i], &workers->wal[i]);
	end_workers(workers);
}

/* What a worker sees of the build. */
static void
join_team(IvfpqBuild *build, dsm_segment *seg, shm_toc *toc)
{
	IvfpqTeam  *team = &build->team;

	team->me = ParallelWorkerNumber + 1;
	team->parallel = true;
	SharedFileSetAttach(&team->shared->files, seg);
	team->scan = shm_toc_lookup(toc, KEY_SCAN, false);
	team->entries = shm_toc_lookup(toc, KEY_ENTRIES, false);
	team->sharing = shm_toc_lookup(toc, KEY_SHARING, true);
	open_training(&build->training, shm_toc_lookup(toc, KEY_TRAINING, false));
	if (team->sharing != NULL)
		build->training.builder = IvfpqBuilderJoin(&team->sharing->ticket,
												   team->sharing);
}

/* Entry point of a worker. */
void
IvfpqWorkerMain(dsm_segment *seg, shm_toc *toc)
{
	IvfpqBuild	build = {0};
	IvfpqTeamShared *shared = shm_toc_lookup(toc, KEY_SHARED, false);

	/* the locks that the leader has */
	LOCKMODE	heap_lock = shared->concurrent ? ShareUpdateExclusiveLock :
	ShareLock;
	LOCKMODE	index_lock = shared->concurrent ? RowExclusiveLock :
	AccessExclusiveLock;
	WalUsage   *wal = shm_toc_lookup(toc, KEY_WAL, false);
	BufferUsage *buffers = shm_toc_lookup(toc, KEY_BUFFERS, false);

	IvfpqSegmentReportQuery(toc, KEY_QUERY);
	build.heap = table_open(shared->heap, heap_lock);
	build.index = index_open(shared->index, index_lock);
	build.indexInfo = IvfpqIndexInfo(build.index);
	build.indexInfo->ii_Concurrent = shared->concurrent;
	IvfpqBuildInit(&build);
	build.team.shared = shared;
	join_team(&build, seg, toc);

	InstrStartParallelQuery();
	IvfpqBuildWork(&build);
	InstrEndParallelQuery(&buffers[ParallelWorkerNumber],
						  &wal[ParallelWorkerNumber]);

	index_close(build.index, index_lock);
	table_close(build.heap, heap_lock);
}
