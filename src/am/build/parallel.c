/*
 * parallel.c
 *		Participants work in phases: when all have come to the end of one, the
 *		leader does what only one can do, and the next begins.  And the memory
 *		that all of them see.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "optimizer/paths.h"
#include "storage/dsm.h"
#include "storage/lwlock.h"
#include "tcop/tcopprot.h"
#include "utils/backend_progress.h"
#include "utils/backend_status.h"
#include "utils/rel.h"
#include "utils/wait_event.h"

#include "am/build/parallel.h"
#include "am/common/identity.h"
#include "page/attempt.h"
#include "page/injection.h"

#define PROGRESS_MS		200		/* between updates while the leader waits */

/* Nothing has been done. */
static void
parallel_init(IvfpqParallelShared *shared)
{
	memset(shared, 0, sizeof(*shared));
	ConditionVariableInit(&shared->changed);
	SpinLockInit(&shared->mutex);
	pg_atomic_init_u64(&shared->done, 0);
	pg_atomic_init_u64(&shared->next, 0);
	pg_atomic_init_u64(&shared->npostings, 0);
	pg_atomic_init_u32(&shared->refine_head, InvalidBlockNumber);
}

/* A leader without workers; memory from the current context. */
void
IvfpqParallelInitSerial(IvfpqParallel *parallel)
{
	memset(parallel, 0, sizeof(*parallel));
	parallel->shared = palloc(sizeof(IvfpqParallelShared));
	parallel_init(parallel->shared);
	parallel->shared->size = 1;
	parallel->shared->nparts = 1;
}

/* Show progress of all; views show the leader's numbers only. */
static void
show_progress(IvfpqParallel *parallel)
{
	if (parallel->me == 0)
		pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
									 pg_atomic_read_u64(&parallel->shared->done));
}

/* Counts n more rows as done. */
void
IvfpqParallelProgress(IvfpqParallel *parallel, int64 n)
{
	pg_atomic_fetch_add_u64(&parallel->shared->done, n);
	show_progress(parallel);
}

/* Arrive; returns the phase. */
static int
arrive(IvfpqParallelShared *shared)
{
	int			phase;

	SpinLockAcquire(&shared->mutex);
	shared->narrived++;
	phase = shared->phase;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
	return phase;
}

/* Have all arrived; or, for a worker, has the leader let go? */
static bool
is_over(IvfpqParallel *parallel, int phase)
{
	IvfpqParallelShared *shared = parallel->shared;
	bool		over;

	SpinLockAcquire(&shared->mutex);
	over = parallel->me == 0 ? shared->narrived == shared->size :
		shared->phase != phase;
	SpinLockRelease(&shared->mutex);
	return over;
}

/*
 * A phase is over for this participant.  True for the leader, once it is over
 * for all: the leader does what is to be done in between and calls
 * IvfpqParallelStartPhase.  False for workers, after that call.
 */
bool
IvfpqParallelEndPhase(IvfpqParallel *parallel)
{
	int			phase = arrive(parallel->shared);

	if (parallel->has_workers)
	{
		ConditionVariablePrepareToSleep(&parallel->shared->changed);
		while (!is_over(parallel, phase))
		{
			ConditionVariableTimedSleep(&parallel->shared->changed,
										parallel->me == 0 ? PROGRESS_MS : -1,
										WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
			show_progress(parallel);
		}
		ConditionVariableCancelSleep();
	}
	return parallel->me == 0;
}

/* The leader lets workers go on, with nothing done of the next phase. */
void
IvfpqParallelStartPhase(IvfpqParallel *parallel)
{
	IvfpqParallelShared *shared = parallel->shared;

	pg_atomic_write_u64(&shared->done, 0);
	pg_atomic_write_u64(&shared->next, 0);
	SpinLockAcquire(&shared->mutex);
	shared->narrived = 0;
	shared->phase++;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
}

/* The leader has all begin a job; IvfpqParallelEndPhase ends it. */
void
IvfpqParallelStartJob(IvfpqParallel *parallel, IvfpqJob job)
{
	parallel->shared->job = job;
	IvfpqParallelStartPhase(parallel);
}

/* A piece of this phase that is still to be done; false: none is left. */
bool
IvfpqParallelNext(IvfpqParallel *parallel, int64 npieces, int64 *piece)
{
	*piece = (int64) pg_atomic_fetch_add_u64(&parallel->shared->next, 1);
	return *piece < npieces;
}

/*
 * The leader, while workers wait: allocates bytes for a part, in place of its
 * memory before.
 */
void *
IvfpqParallelAlloc(IvfpqParallel *parallel, IvfpqParallelPart part, Size bytes)
{
	IvfpqParallelFree(parallel, part);
	if (parallel->area != NULL)
		parallel->shared->parts[part] = dsa_allocate_extended(parallel->area,
															  Max(bytes, 1),
															  DSA_ALLOC_HUGE);
	else
		parallel->own[part] = palloc_extended(bytes, MCXT_ALLOC_HUGE);
	return IvfpqParallelMemory(parallel, part);
}

/* A part; NULL: there is none. */
void *
IvfpqParallelMemory(const IvfpqParallel *parallel, IvfpqParallelPart part)
{
	return parallel->area == NULL ? parallel->own[part] :
		dsa_get_address(parallel->area, parallel->shared->parts[part]);
}

/* The leader, while workers wait: a part is not needed any more. */
void
IvfpqParallelFree(IvfpqParallel *parallel, IvfpqParallelPart part)
{
	if (parallel->area != NULL &&
		DsaPointerIsValid(parallel->shared->parts[part]))
		dsa_free(parallel->area, parallel->shared->parts[part]);
	else if (parallel->own[part] != NULL)
		pfree(parallel->own[part]);
	parallel->shared->parts[part] = InvalidDsaPointer;
	parallel->own[part] = NULL;
}

/* ----
 * The parallel workers of a leader: how many, how they begin and end.
 *
 * One parallel context serves training and the build.  Its segment of shared
 * memory has the data known when workers begin.  The results of training lie
 * in a dynamic shared area, once, for the leader as well: of a million lists
 * the centroids are gigabytes.  The area stays when workers are dismissed.
 */

/* maintenance_work_mem that a participant should have, as core has it. */
#define LEAST_MEMORY_KB	32768

/* Bytes of the segment and an empty area, and of a worker in the segment. */
#define PARALLEL_BYTES		((Size) 2 * 1024 * 1024)
#define WORKER_BYTES	((Size) 64 * 1024)

/* Keys of the segment's contents. */
enum
{
	KEY_SHARED = 1,				/* IvfpqParallelShared */
	KEY_QUERY,					/* the leader's, for views */
	KEY_WAL,					/* WalUsage [nworkers] */
	KEY_BUFFERS					/* BufferUsage [nworkers] */
};

/* Pages of the table, and of its values that are out of line. */
static int64
count_pages(Relation heap)
{
	int64		npages = RelationGetNumberOfBlocks(heap);

	if (OidIsValid(heap->rd_rel->reltoastrelid))
	{
		Relation	toast = table_open(heap->rd_rel->reltoastrelid,
									   AccessShareLock);

		npages += RelationGetNumberOfBlocks(toast);
		table_close(toast, AccessShareLock);
	}
	return npages;
}

/*
 * Workers to ask for.  plan_create_index_workers goes by what a scan of the
 * table costs.  But placing a row takes longer than reading it, and values out
 * of line count as well.  So there is one worker for each
 * min_parallel_table_scan_size of the table, unless table or settings say
 * less.
 */
int
IvfpqCountWorkers(Relation heap, Relation index)
{
	int			most = max_parallel_maintenance_workers;
	int			given = RelationGetParallelWorkers(heap, -1);

	if (!IsUnderPostmaster || most == 0 ||
		heap->rd_rel->relpersistence == RELPERSISTENCE_TEMP ||
		!IvfpqIsParallelSafe(RelationGetIndexExpressions(index),
							 RelationGetIndexPredicate(index)))
		return 0;
	if (given >= 0)
		return Min(given, most);
	most = (int) Min(most, count_pages(heap) /
					 Max(min_parallel_table_scan_size, 1));
	return Max(0, Min(most, maintenance_work_mem / LEAST_MEMORY_KB - 1));
}

/* Asks for memory in the segment, before it is made. */
static void
ask(ParallelContext *context, Size bytes)
{
	shm_toc_estimate_chunk(&context->estimator, bytes);
	shm_toc_estimate_keys(&context->estimator, 1);
}

/* Memory that was asked for, which workers find by its key. */
static void *
take(ParallelContext *context, uint64 key, Size bytes)
{
	void	   *memory = shm_toc_allocate(context->toc, bytes);

	shm_toc_insert(context->toc, key, memory);
	return memory;
}

/* Make the segment; false: there is none to be had. */
static bool
make_segment(ParallelContext *context)
{
	Size		n = context->nworkers;

	ask(context, sizeof(IvfpqParallelShared));
	if (debug_query_string)
		ask(context, strlen(debug_query_string) + 1);
	ask(context, n * sizeof(WalUsage));
	ask(context, n * sizeof(BufferUsage));
	InitializeParallelDSM(context);
	return context->seg != NULL;
}

/* Fill it, and make the area. */
static void
fill_segment(IvfpqParallel *parallel)
{
	ParallelContext *context = parallel->context;
	Size		n = context->nworkers;

	parallel->shared = take(context, KEY_SHARED, sizeof(IvfpqParallelShared));
	parallel_init(parallel->shared);
	parallel->shared->nparts = context->nworkers + 1;
	SharedFileSetInit(&parallel->shared->files, context->seg);
	parallel->area = dsa_create(LWTRANCHE_PARALLEL_QUERY_DSA);
	parallel->shared->area = dsa_get_handle(parallel->area);
	if (debug_query_string)
		strcpy(take(context, KEY_QUERY, strlen(debug_query_string) + 1),
			   debug_query_string);
	parallel->wal = take(context, KEY_WAL, n * sizeof(WalUsage));
	parallel->buffers = take(context, KEY_BUFFERS, n * sizeof(BufferUsage));
}

/* For a moment, shared memory of *arg bytes. */
static void
try_memory(void *arg)
{
	dsm_detach(dsm_create(*(Size *) arg, 0));
	IvfpqInjectionPoint("team: memory");
}

/*
 * Returns whether there is shared memory for the workers and for the parts.
 * Called before parallel mode begins: an error in it would end the statement.
 */
static bool
has_memory(int nworkers, Size bytes)
{
	Size		wanted = PARALLEL_BYTES + nworkers * WORKER_BYTES + bytes;
	ErrorData  *error = IvfpqAttempt(try_memory, &wanted);

	if (error == NULL)
		return true;
	if (ERRCODE_TO_CATEGORY(error->sqlerrcode) !=
		ERRCODE_INSUFFICIENT_RESOURCES)
		ReThrowError(error);
	ereport(WARNING,
			(errmsg("no parallel workers, because there is too little shared memory for them"),
			 errdetail("%lld bytes are needed: %s.", (long long) wanted,
					   error->message),
			 errhint("The build goes on without them; containers may need more, as by --shm-size.")));
	FreeErrorData(error);
	return false;
}

/* Prepare for workers; false: there is no shared memory for them. */
static bool
prepare(IvfpqParallel *parallel, int nworkers)
{
	EnterParallelMode();
	memset(parallel, 0, sizeof(*parallel));
	parallel->context = CreateParallelContext("gpuvec", "IvfpqWorkerMain",
											  nworkers);
	if (make_segment(parallel->context))
	{
		fill_segment(parallel);
		parallel->has_workers = true;
		return true;
	}
	DestroyParallelContext(parallel->context);
	ExitParallelMode();
	return false;
}

/* Start workers, and wait until they have begun. */
static void
launch(IvfpqParallel *parallel)
{
	LaunchParallelWorkers(parallel->context);
	parallel->shared->size = parallel->context->nworkers_launched + 1;
	ereport(DEBUG1,
			(errmsg_internal("using %d parallel workers",
							 parallel->context->nworkers_launched)));
	/* a worker that dies before it attaches would be waited for */
	WaitForParallelWorkersToAttach(parallel->context);
	(void) IvfpqParallelEndPhase(parallel);
}

/*
 * The leader begins, with as many of nworkers workers as can be had; with
 * in_place they take part in training alone.  Parts are going to take about
 * `bytes` bytes.  Memory from the current context.  Workers begin with the
 * leader's active snapshot, which must stay until this returns.  The leader is
 * in parallel mode until IvfpqParallelEndWorkers.
 */
void
IvfpqParallelBegin(IvfpqParallel *parallel, int nworkers, Relation heap,
				   Relation index,
				   IndexInfo *indexInfo, Size bytes, bool in_place)
{
	if (nworkers == 0 || !has_memory(nworkers, bytes) ||
		!prepare(parallel, nworkers))
	{
		IvfpqParallelInitSerial(parallel);
		return;
	}
	parallel->shared->heap = RelationGetRelid(heap);
	parallel->shared->index = RelationGetRelid(index);
	parallel->shared->concurrent = indexInfo->ii_Concurrent;
	parallel->shared->in_place = in_place;
	launch(parallel);
}

/* Workers are done; the leader goes on alone, and keeps all parts. */
void
IvfpqParallelEndWorkers(IvfpqParallel *parallel)
{
	ParallelContext *context = parallel->context;
	IvfpqParallel alone;

	if (context == NULL)
		return;
	IvfpqParallelStartJob(parallel, IVFPQ_JOB_END);
	WaitForParallelWorkersToFinish(context);
	for (int i = 0; i < context->nworkers_launched; i++)
		InstrAccumParallelQuery(&parallel->buffers[i], &parallel->wal[i]);
	IvfpqParallelInitSerial(&alone);
	memcpy(alone.shared->parts, parallel->shared->parts,
		   sizeof(alone.shared->parts));
	alone.area = parallel->area;
	*parallel = alone;
	DestroyParallelContext(context);
	ExitParallelMode();
}

/* All is done; what the parts had is gone. */
void
IvfpqParallelEnd(IvfpqParallel *parallel)
{
	IvfpqParallelEndWorkers(parallel);
	if (parallel->area != NULL)
		dsa_detach(parallel->area);
	parallel->area = NULL;
}

/* A worker joins the leader. */
void
IvfpqParallelAttach(IvfpqParallel *parallel, dsm_segment *seg, shm_toc *toc)
{
	memset(parallel, 0, sizeof(*parallel));
	debug_query_string = shm_toc_lookup(toc, KEY_QUERY, true);
	pgstat_report_activity(STATE_RUNNING, debug_query_string);
	parallel->shared = shm_toc_lookup(toc, KEY_SHARED, false);
	parallel->me = ParallelWorkerNumber + 1;
	parallel->has_workers = true;
	SharedFileSetAttach(&parallel->shared->files, seg);
	parallel->area = dsa_attach(parallel->shared->area);
	InstrStartParallelQuery();
}

/* A worker leaves. */
void
IvfpqParallelDetach(IvfpqParallel *parallel, shm_toc *toc)
{
	WalUsage   *wal = shm_toc_lookup(toc, KEY_WAL, false);
	BufferUsage *buffers = shm_toc_lookup(toc, KEY_BUFFERS, false);

	InstrEndParallelQuery(&buffers[ParallelWorkerNumber],
						  &wal[ParallelWorkerNumber]);
	dsa_detach(parallel->area);
}

/* ----
 * Records on their way between participants, cut into ranges, in
 * temporary files.
 *
 * Each participant has a file of its own for each range, which others may read
 * when all participants have put their records.  These are files because
 * shared memory may be small (containers have 64 MB); what is written here is
 * read at once, from the system's cache.  A leader that is alone needs no
 * shared memory for its files.
 */

#define NAME_BYTES		64

/* The name of a participant's file. */
static const char *
name_of(const IvfpqTempFile *temp, char *name, int range, int from)
{
	snprintf(name, NAME_BYTES, "%s.%d.%d", temp->what, range, from);
	return name;
}

/* Begin with nothing; memory from the current context. */
void
IvfpqTempFileBegin(IvfpqTempFile *temp, IvfpqParallel *parallel,
				   const char *what,
				   int nranges)
{
	temp->files = parallel->has_workers ? &parallel->shared->files : NULL;
	temp->what = what;
	temp->me = parallel->me;
	temp->nranges = nranges;
	temp->ranges = palloc0(nranges * sizeof(BufFile *));
}

/* Put a record into a range. */
void
IvfpqTempFilePut(IvfpqTempFile *temp, int range, void *record,
				 Size bytes)
{
	char		name[NAME_BYTES];

	if (temp->ranges[range] == NULL)
		temp->ranges[range] = temp->files == NULL ?
			BufFileCreateTemp(false) :
			BufFileCreateFileSet(&temp->files->fs,
								 name_of(temp, name, range, temp->me));
	BufFileWrite(temp->ranges[range], record, bytes);
}

/* All records of this participant have been put: others may read them. */
void
IvfpqTempFileDone(IvfpqTempFile *temp)
{
	if (temp->files == NULL)
		return;
	for (int range = 0; range < temp->nranges; range++)
		if (temp->ranges[range] != NULL)
		{
			BufFileExportFileSet(temp->ranges[range]);
			BufFileClose(temp->ranges[range]);
		}
}

/*
 * A participant's records of a range, from the first one on; NULL: there are
 * none.  By IvfpqTempFileRead; one reader at a time where the leader is alone.
 */
BufFile *
IvfpqTempFileOpen(IvfpqTempFile *temp, int range, int from)
{
	char		name[NAME_BYTES];
	BufFile    *file;

	if (temp->files != NULL)
		return BufFileOpenFileSet(&temp->files->fs,
								  name_of(temp, name, range, from), O_RDONLY,
								  true);
	file = temp->ranges[range];
	if (file != NULL && BufFileSeek(file, 0, 0, SEEK_SET) != 0)
		elog(ERROR, "could not rewind a temporary file");
	return file;
}

/* Read n bytes; false: the file was at its end. */
bool
IvfpqTempFileRead(BufFile *file, void *bytes, Size n)
{
	Size		got = BufFileRead(file, bytes, n);

	if (got != 0 && got != n)
		elog(ERROR, "a temporary file of the build ends early");
	return got != 0;
}

/* They have been read; the file stays. */
void
IvfpqTempFileClose(IvfpqTempFile *temp, BufFile *file)
{
	if (temp->files != NULL)
		BufFileClose(file);
}

/* All have read what this participant has put: its files go. */
void
IvfpqTempFileEnd(IvfpqTempFile *temp)
{
	char		name[NAME_BYTES];

	for (int range = 0; range < temp->nranges; range++)
		if (temp->ranges[range] == NULL)
			continue;
		else if (temp->files == NULL)
			BufFileClose(temp->ranges[range]);
		else
			BufFileDeleteFileSet(&temp->files->fs,
								 name_of(temp, name, range, temp->me), false);
	pfree(temp->ranges);
}
