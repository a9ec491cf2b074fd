/*
 * buildworker.c
 *		A parallel worker: joins the leader, and does its part of each job.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/index.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/build/build.h"
#include "am/common/identity.h"
#include "am/common/util.h"

/* Reads rows to train on. */
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
 * Places rows of the table, and takes part in all later phases of the build.
 */
static void
help_to_build(IvfpqBuild *build)
{
	IvfpqSharing *sharing = IvfpqParallelMemory(&build->parallel,
												IVFPQ_PARALLEL_SHARING);

	IvfpqTrainingOpen(&build->training, &build->parallel);
	if (sharing != NULL)
		build->training.builder = IvfpqBuilderJoin(&sharing->ticket, sharing);
	IvfpqBuildWork(build);
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
	IvfpqBuildInit(&build);
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
