/*
 * clusterteam.c
 *		The leader and parallel workers that train lists: what they share, how
 *		they begin and end.
 *
 * Everything that is shared lies in one piece of memory.  A leader that is
 * alone has it in its own.  In the end the leader takes lists and parents out
 * of it.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/identity.h"
#include "am/common/snapshot.h"
#include "am/team/segment.h"
#include "am/train/cluster.h"

/*
 * Files of rows that a participant may fill: enough for all to have their
 * turns in the end, and few enough for each to have a buffer.
 */
#define RANGES_PER_PARTICIPANT	8

/* What lies in the segment of shared memory. */
enum
{
	KEY_CLUSTER = 1,			/* IvfpqClusterShared and arrays */
	KEY_QUERY					/* its text */
};

/* Where the arrays lie behind *shared; returns the size of it all. */
static Size
place_arrays(IvfpqCluster *cluster, const IvfpqClusterShared *shared,
			 char *memory)
{
	IvfpqTraining *training = cluster->training;
	Size		row = shared->gv.dims * sizeof(float);
	Size		parents = shared->nparents;
	const struct
	{
		void	  **array;
		Size		bytes;
	}			parts[] = {
		{(void **) &cluster->counts, parents * sizeof(pg_atomic_uint64)},
		{(void **) &cluster->reader->skip, shared->nskip * sizeof(uint64)},
		{(void **) &cluster->blocks, shared->nblocks * sizeof(BlockNumber)},
		{(void **) &cluster->found, parents * sizeof(int32)},
		{(void **) &training->mean, row},
		{(void **) &training->parents, parents * row},
		{(void **) &training->starts, (parents + 1) * sizeof(int32)},
		{(void **) &training->centroids, (shared->lists + parents) * row}
	};
	Size		used = MAXALIGN(sizeof(IvfpqClusterShared));

	for (int i = 0; i < (int) lengthof(parts); i++)
	{
		if (memory != NULL)
			*parts[i].array = memory + used;
		used += MAXALIGN(parts[i].bytes);
	}
	return used;
}

/* Set the pointers to the arrays. */
static void
open_arrays(IvfpqCluster *cluster)
{
	IvfpqTraining *training = cluster->training;

	(void) place_arrays(cluster, cluster->shared, (char *) cluster->shared);
	training->gv.mean = training->mean;
	cluster->reader->nskip = cluster->shared->nskip;
}

/* What is to be done: everything but the memory that it is in. */
static void
describe(IvfpqClusterShared *shared, const IvfpqTraining *training,
		 int lists, const IvfpqReader *reader)
{
	memset(shared, 0, sizeof(*shared));
	shared->gv = training->gv;
	shared->lists = lists;
	shared->nparents = shared->parents_made = training->nparents;
	shared->nskip = reader->nskip;
}

/* The leader fills the memory that all participants see. */
static void
fill_memory(IvfpqCluster *cluster, const IvfpqClusterShared *begin,
			char *memory, const BlockNumber *blocks)
{
	IvfpqTraining *training = cluster->training;
	IvfpqReader *reader = cluster->reader;
	IvfpqClusterShared *shared = (IvfpqClusterShared *) memory;
	Size		row = begin->gv.dims * sizeof(float);
	uint64	   *skip = reader->skip;
	float	   *mean = training->mean;
	float	   *parents = training->parents;

	*shared = *begin;
	IvfpqTeamInit(&shared->team);
	shared->team.heap = RelationGetRelid(reader->heap);
	shared->team.index = RelationGetRelid(reader->index);
	shared->team.concurrent = reader->indexInfo->ii_Concurrent;
	pg_atomic_init_u64(&shared->next_block, 0);
	pg_atomic_init_u64(&shared->next, 0);
	cluster->shared = shared;
	cluster->team.shared = &shared->team;
	open_arrays(cluster);
	memcpy(reader->skip, skip, shared->nskip * sizeof(uint64));
	memcpy(cluster->blocks, blocks, shared->nblocks * sizeof(BlockNumber));
	memcpy(training->mean, mean, row);
	memcpy(training->parents, parents, shared->nparents * row);
	for (int p = 0; p < shared->nparents; p++)
		pg_atomic_init_u64(&cluster->counts[p], 0);
	pfree(parents);
}

/* Make the segment, and fill it; false: there is none to be had. */
static bool
make_segment(IvfpqCluster *cluster, const IvfpqClusterShared *begin,
			 const BlockNumber *blocks)
{
	ParallelContext *context = cluster->context;
	Size		bytes = place_arrays(cluster, begin, NULL);

	IvfpqSegmentAsk(context, bytes);
	IvfpqSegmentAskQuery(context);
	InitializeParallelDSM(context);
	if (context->seg == NULL)
		return false;
	fill_memory(cluster, begin, IvfpqSegmentTake(context, KEY_CLUSTER, bytes),
				blocks);
	SharedFileSetInit(&cluster->team.shared->files, context->seg);
	IvfpqSegmentGiveQuery(context, KEY_QUERY);
	return true;
}

/* Start workers; false: there is no shared memory for them. */
static bool
begin_workers(IvfpqCluster *cluster, int nworkers,
			  const IvfpqClusterShared *begin, const BlockNumber *blocks)
{
	EnterParallelMode();
	cluster->context = CreateParallelContext("gpuvec", "IvfpqClusterMain",
											 nworkers);
	if (!make_segment(cluster, begin, blocks))
	{
		DestroyParallelContext(cluster->context);
		ExitParallelMode();
		cluster->context = NULL;
		return false;
	}
	LaunchParallelWorkers(cluster->context);
	cluster->team.parallel = true;
	cluster->team.shared->size = cluster->context->nworkers_launched + 1;
	/* a worker that dies before it attaches would be waited for */
	WaitForParallelWorkersToAttach(cluster->context);
	return true;
}

/*
 * The leader begins: parents of *training are there.  Its arrays move to where
 * all see them.  Memory from the current context.  A worker's leader has a
 * snapshot again, until IvfpqClusterWork has read rows.
 */
void
IvfpqClusterBegin(IvfpqCluster *cluster, IvfpqTraining *training, int lists,
				  IvfpqReader *reader)
{
	IvfpqClusterShared begin;
	BlockNumber *blocks;
	int			nworkers;

	IvfpqSnapshotTake();
	nworkers = IvfpqCountWorkers(reader->heap, reader->index);
	memset(cluster, 0, sizeof(*cluster));
	cluster->training = training;
	cluster->reader = reader;
	describe(&begin, training, lists, reader);
	blocks = IvfpqReaderDraw(reader, &begin.nblocks);
	begin.nranges = Min(training->nparents,
						RANGES_PER_PARTICIPANT * (nworkers + 1));
	if (nworkers == 0 || !begin_workers(cluster, nworkers, &begin, blocks))
	{
		Size		bytes = place_arrays(cluster, &begin, NULL);

		fill_memory(cluster, &begin, palloc_extended(bytes, MCXT_ALLOC_HUGE),
					blocks);
		cluster->team.shared->size = 1;
	}
	pfree(blocks);
}

/* A copy of n bytes in the current memory context. */
static void *
take_out(const void *from, Size n)
{
	return memcpy(palloc_extended(n, MCXT_ALLOC_HUGE), from, n);
}

/* All work is done: the leader takes what was made, the rest goes. */
void
IvfpqClusterEnd(IvfpqCluster *cluster)
{
	IvfpqTraining *training = cluster->training;
	Size		row = training->gv.dims * sizeof(float);

	training->mean = take_out(training->mean, row);
	training->gv.mean = training->mean;
	training->parents = take_out(training->parents, training->nparents * row);
	training->starts = take_out(training->starts,
								(training->nparents + 1) * sizeof(int32));
	training->centroids = take_out(training->centroids,
								   training->nlists * row);
	cluster->reader->skip = NULL;
	cluster->reader->nskip = 0;
	if (cluster->context == NULL)
	{
		pfree(cluster->shared);
		return;
	}
	WaitForParallelWorkersToFinish(cluster->context);
	DestroyParallelContext(cluster->context);
	ExitParallelMode();
}

/* Entry point of a worker. */
void
IvfpqClusterMain(dsm_segment *seg, shm_toc *toc)
{
	IvfpqClusterShared *shared = shm_toc_lookup(toc, KEY_CLUSTER, false);
	IvfpqType	type;
	IvfpqTraining training = {.gv = shared->gv, .nparents = shared->nparents};
	IvfpqSample sample = {.type = &type, .dims = shared->gv.dims};
	IvfpqReader reader = {.training = &training, .sample = &sample,
	.transform = true};
	IvfpqCluster cluster = {.shared = shared, .training = &training,
	.reader = &reader};

	IvfpqSnapshotsAreOurs();
	IvfpqSegmentReportQuery(toc, KEY_QUERY);
	/* weaker locks than the leader's, which are held for the worker, too */
	reader.heap = table_open(shared->team.heap, AccessShareLock);
	reader.index = index_open(shared->team.index, AccessShareLock);
	reader.indexInfo = IvfpqIndexInfo(reader.index);
	reader.indexInfo->ii_Concurrent = shared->team.concurrent;
	IvfpqTypeInit(&type, reader.index);
	cluster.team.shared = &shared->team;
	cluster.team.me = ParallelWorkerNumber + 1;
	cluster.team.parallel = true;
	SharedFileSetAttach(&shared->team.files, seg);
	open_arrays(&cluster);
	IvfpqClusterWork(&cluster);
	/* which the parallel worker began with, and ends with */
	IvfpqSnapshotTake();
	index_close(reader.index, AccessShareLock);
	table_close(reader.heap, AccessShareLock);
}
