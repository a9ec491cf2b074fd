/*
 * readteam.c
 *		The rows that gpuvecd trains on, read by parallel workers.
 *
 * Each worker joins the build and sends the rows of the blocks that it claims;
 * gpuvecd says under which numbers it has them.  A worker that cannot join is
 * skipped: the others read its blocks.  A worker that fails later leaves rows
 * in gpuvecd whose numbers are lost, and then the build by gpuvecd has failed.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "miscadmin.h"
#include "utils/rel.h"

#include "am/common/identity.h"
#include "am/common/snapshot.h"
#include "am/team/segment.h"
#include "am/team/team.h"
#include "am/train/readteam.h"

/* What lies in the segment of shared memory. */
enum
{
	KEY_SHARED = 1,				/* Shared */
	KEY_BLOCKS,					/* BlockNumber [nblocks] to read */
	KEY_SKIP,					/* uint64 [nskip] rows to leave out */
	KEY_IDS,					/* uint64 [sample_rows] TIDs of the sample, 0:
								 * not sent by workers */
	KEY_QUERY					/* its text */
};

typedef struct Shared
{
	Oid			heap;
	Oid			index;
	bool		concurrent;
	int			dims;
	IvfpqTicket ticket;
	uint64		nblocks;
	int64		nskip;
	uint64		most;			/* rows to send */
	pg_atomic_uint64 nsent;		/* rows; may come to be more than `most` */
	pg_atomic_uint64 next;		/* block to be read */
	pg_atomic_uint32 failed;	/* 1: a participant could not send, */
	char		reason[160];	/* for this reason */
} Shared;

/* Rows on their way from one participant. */
typedef struct Sender
{
	Shared	   *shared;
	IvfpqBuilder *builder;
} Sender;

/* It failed here; the first reason counts. */
static void
fail(Shared *shared, IvfpqBuilder *builder)
{
	if (pg_atomic_exchange_u32(&shared->failed, 1) == 0)
		strlcpy(shared->reason, IvfpqBuilderReason(builder),
				sizeof(shared->reason));
}

/* IvfpqRowSink: raw rows [n][dims]. */
static bool
send_rows(void *arg, const float *rows, const uint64 *ids, int n)
{
	Sender	   *sender = arg;
	Shared	   *shared = sender->shared;
	uint64		at = pg_atomic_read_u32(&shared->failed) != 0 ? shared->most :
	pg_atomic_fetch_add_u64(&shared->nsent, n);

	if (at >= shared->most)
		return false;
	if (!IvfpqBuilderTrainOn(sender->builder, GV_SAMPLE, rows, ids,
							 Min(n, (int64) (shared->most - at))))
	{
		fail(shared, sender->builder);
		return false;
	}
	return at + n < shared->most;
}

/* A participant's part. */
static void
read_part(IvfpqReader *reader, Shared *shared, IvfpqBuilder *builder,
		  const BlockNumber *blocks)
{
	Sender		sender = {shared, builder};

	reader->sink = send_rows;
	reader->sink_arg = &sender;
	IvfpqReaderClaim(reader, blocks, shared->nblocks, &shared->next);
	if (pg_atomic_read_u32(&shared->failed) == 0 &&
		!IvfpqBuilderTrainEnd(builder, GV_SAMPLE))
		fail(shared, builder);
}

/* Make the segment; false: there is none to be had. */
static bool
make_segment(ParallelContext *context, Size ids, Size blocks, Size skip)
{
	IvfpqSegmentAsk(context, sizeof(Shared));
	IvfpqSegmentAsk(context, ids);
	IvfpqSegmentAsk(context, blocks);
	IvfpqSegmentAsk(context, skip);
	IvfpqSegmentAskQuery(context);
	InitializeParallelDSM(context);
	return context->seg != NULL;
}

/* What workers are to know. */
static Shared *
fill_segment(ParallelContext *context, const IvfpqReader *reader,
			 IvfpqBuilder *builder, const BlockNumber *blocks,
			 uint64 nblocks, int64 most)
{
	Shared	   *shared = IvfpqSegmentTake(context, KEY_SHARED,
										  sizeof(Shared));

	shared->heap = RelationGetRelid(reader->heap);
	shared->index = RelationGetRelid(reader->index);
	shared->concurrent = reader->indexInfo->ii_Concurrent;
	shared->dims = reader->sample->dims;
	shared->ticket = IvfpqBuilderTicket(builder);
	shared->nblocks = nblocks;
	shared->nskip = reader->nskip;
	shared->most = most;
	pg_atomic_init_u64(&shared->nsent, 0);
	pg_atomic_init_u64(&shared->next, 0);
	pg_atomic_init_u32(&shared->failed, 0);
	memcpy(IvfpqSegmentTake(context, KEY_BLOCKS,
							nblocks * sizeof(BlockNumber)),
		   blocks, nblocks * sizeof(BlockNumber));
	memcpy(IvfpqSegmentTake(context, KEY_SKIP,
							reader->nskip * sizeof(uint64)),
		   reader->skip, reader->nskip * sizeof(uint64));
	IvfpqSegmentGiveQuery(context, KEY_QUERY);
	return shared;
}

/*
 * Have the rows that `reader` wants read and sent by the leader and workers,
 * `most` of them, after those that *builder has; false: there are no workers,
 * and nothing has been done.  *failed: the build by gpuvecd has failed.
 */
bool
IvfpqReadTogether(IvfpqReader *reader, IvfpqBuilder *builder, int64 most,
				  bool *failed)
{
	int			nworkers = IvfpqCountWorkers(reader->heap, reader->index);
	Size		ids_bytes = IvfpqBuilderTicket(builder).spec.sample_rows *
	sizeof(uint64);
	ParallelContext *context;
	BlockNumber *blocks;
	uint64		nblocks;
	Shared	   *shared;
	uint64	   *ids;
	bool		made;

	if (nworkers == 0)
		return false;
	blocks = IvfpqReaderDraw(reader, &nblocks);
	/* workers begin with our snapshot, so it stays until they have */
	IvfpqSnapshotTake();
	EnterParallelMode();
	context = CreateParallelContext("gpuvec", "IvfpqReadMain", nworkers);
	made = make_segment(context, ids_bytes, nblocks * sizeof(BlockNumber),
						reader->nskip * sizeof(uint64));
	if (made)
	{
		shared = fill_segment(context, reader, builder, blocks, nblocks,
							  most);
		ids = IvfpqSegmentTake(context, KEY_IDS, ids_bytes);
		memset(ids, 0, ids_bytes);
		LaunchParallelWorkers(context);
		read_part(reader, shared, builder, blocks);
		WaitForParallelWorkersToFinish(context);
		*failed = pg_atomic_read_u32(&shared->failed) != 0;
		if (*failed)
			IvfpqBuilderLose(builder, shared->reason);
		IvfpqBuilderSampled(builder, ids,
							IvfpqBuilderTicket(builder).spec.sample_rows -
							most + Min(pg_atomic_read_u64(&shared->nsent),
									   shared->most));
	}
	DestroyParallelContext(context);
	ExitParallelMode();
	IvfpqSnapshotDrop();
	pfree(blocks);
	return made;
}

/* Entry point of a worker. */
void
IvfpqReadMain(dsm_segment *seg, shm_toc *toc)
{
	Shared	   *shared = shm_toc_lookup(toc, KEY_SHARED, false);
	IvfpqType	type;
	IvfpqTraining training = {0};
	IvfpqSample sample = {.type = &type, .dims = shared->dims};
	IvfpqReader reader = {.training = &training, .sample = &sample};
	IvfpqBuilder *builder;

	IvfpqSnapshotsAreOurs();
	IvfpqSegmentReportQuery(toc, KEY_QUERY);
	/* weaker locks than the leader's, which are held for the worker, too */
	reader.heap = table_open(shared->heap, AccessShareLock);
	reader.index = index_open(shared->index, AccessShareLock);
	reader.indexInfo = IvfpqIndexInfo(reader.index);
	reader.indexInfo->ii_Concurrent = shared->concurrent;
	reader.skip = shm_toc_lookup(toc, KEY_SKIP, false);
	reader.nskip = shared->nskip;
	IvfpqTypeInit(&type, reader.index);
	builder = IvfpqBuilderJoin(&shared->ticket, NULL);
	if (IvfpqBuilderIsOpen(builder))
	{
		IvfpqBuilderSample(builder, shm_toc_lookup(toc, KEY_IDS, false));
		read_part(&reader, shared, builder,
				  shm_toc_lookup(toc, KEY_BLOCKS, false));
	}
	IvfpqBuilderEnd(builder);
	index_close(reader.index, AccessShareLock);
	table_close(reader.heap, AccessShareLock);
}
