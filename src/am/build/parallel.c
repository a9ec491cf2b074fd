/*
 * parallel.c
 *		The participants of a build or of training: a leader, and parallel
 *		workers if there are any.
 *
 * Workers begin before training and wait.  The leader lays out memory that all
 * see, starts a job, takes part in it, and waits until all have come to its
 * end.  A job consists of phases: when all have come to the end of one, the
 * leader does what only one process can do, and the next begins.  A leader
 * that is alone goes through the same steps without waiting.
 *
 * One parallel context serves training and the build.  Its segment of shared
 * memory has the data known when workers begin.  The results of training are
 * parts of a dynamic shared area, once, for the leader as well: of a million
 * lists the centroids are gigabytes.  The area stays when workers are
 * dismissed.
 *
 * Records that participants pass to one another go through temporary files,
 * divided into ranges.  Each participant has a file of its own for each range,
 * which others may read when all participants have put their records.  These
 * are files because shared memory may be small (containers have 64 MB); a
 * record is read soon after it is written, from the system's cache.  A leader
 * that is alone needs no shared memory for its files.
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

/* maintenance_work_mem that a participant should have, as core has it. */
#define LEAST_MEMORY_KB	32768

/* Bytes of the segment and an empty area, and of a worker in the segment. */
#define PARALLEL_BYTES		((Size) 2 * 1024 * 1024)
#define WORKER_BYTES	((Size) 64 * 1024)

#define PROGRESS_MS		200		/* between updates while the leader waits */

#define NAME_BYTES		64		/* of a temporary file's name */

/*
 * Keys of the segment's contents.  A worker loads the library that is
 * installed, which may not be the leader's.  So the first key changes with
 * anything that leader and workers share: IvfpqParallelShared, its parts, and
 * records in files.
 */
enum
{
	KEY_SHARED = 200,			/* IvfpqParallelShared */
	KEY_QUERY,					/* the leader's query, for views */
	KEY_WAL,					/* WalUsage [nworkers] */
	KEY_BUFFERS					/* BufferUsage [nworkers] */
};

/*
 * Returns the number of workers to ask for.  plan_create_index_workers goes by
 * the cost of a scan of the table.  But placing a row takes longer than
 * reading it, and values out of line count as well.  So there is one worker
 * for each min_parallel_table_scan_size of the table, unless table or settings
 * say less.
 */
static int
count_workers(Relation heap, Relation index)
{
	int			most = max_parallel_maintenance_workers;
	int			given = RelationGetParallelWorkers(heap, -1);
	int64		npages;

	if (!IsUnderPostmaster || most == 0 ||
		heap->rd_rel->relpersistence == RELPERSISTENCE_TEMP ||
		!IvfpqIsParallelSafe(RelationGetIndexExpressions(index),
							 RelationGetIndexPredicate(index)))
		return 0;
	if (given >= 0)
		return Min(given, most);
	npages = RelationGetNumberOfBlocks(heap);
	if (OidIsValid(heap->rd_rel->reltoastrelid))
	{
		Relation	toast = table_open(heap->rd_rel->reltoastrelid,
									   AccessShareLock);

		npages += RelationGetNumberOfBlocks(toast);
		table_close(toast, AccessShareLock);
	}
	most = (int) Min(most, npages / Max(min_parallel_table_scan_size, 1));
	return Max(0, Min(most, maintenance_work_mem / LEAST_MEMORY_KB - 1));
}

/* Initializes the shared state, with nothing done. */
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

/* Begins as a leader without workers; memory from the current context. */
void
IvfpqParallelInitSerial(IvfpqParallel *parallel)
{
	memset(parallel, 0, sizeof(*parallel));
	parallel->shared = palloc(sizeof(IvfpqParallelShared));
	parallel_init(parallel->shared);
	parallel->shared->size = 1;
	parallel->shared->nparts = 1;
}

/* Holds shared memory of *arg bytes for a moment. */
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

/* Takes memory in the segment; workers find it by its key. */
static void *
take(ParallelContext *context, uint64 key, Size bytes)
{
	void	   *memory = shm_toc_allocate(context->toc, bytes);

	shm_toc_insert(context->toc, key, memory);
	return memory;
}

/*
 * Enters parallel mode, and makes segment and area.  Returns false, out of
 * parallel mode again, if there is no shared memory for the segment.
 */
static bool
make_segment(IvfpqParallel *parallel, int nworkers)
{
	ParallelContext *context;
	Size		query_bytes = debug_query_string == NULL ? 0 :
	strlen(debug_query_string) + 1;

	EnterParallelMode();
	memset(parallel, 0, sizeof(*parallel));
	context = CreateParallelContext("gpuvec", "IvfpqWorkerMain", nworkers);
	shm_toc_estimate_chunk(&context->estimator, sizeof(IvfpqParallelShared));
	shm_toc_estimate_chunk(&context->estimator, query_bytes);
	shm_toc_estimate_chunk(&context->estimator, nworkers * sizeof(WalUsage));
	shm_toc_estimate_chunk(&context->estimator,
						   nworkers * sizeof(BufferUsage));
	shm_toc_estimate_keys(&context->estimator, 4);
	InitializeParallelDSM(context);
	if (context->seg == NULL)
	{
		DestroyParallelContext(context);
		ExitParallelMode();
		return false;
	}

	nworkers = context->nworkers;
	parallel->context = context;
	parallel->has_workers = true;
	parallel->shared = take(context, KEY_SHARED, sizeof(IvfpqParallelShared));
	parallel_init(parallel->shared);
	parallel->shared->nparts = nworkers + 1;
	SharedFileSetInit(&parallel->shared->files, context->seg);
	parallel->area = dsa_create(LWTRANCHE_PARALLEL_QUERY_DSA);
	parallel->shared->area = dsa_get_handle(parallel->area);
	if (query_bytes > 0)
		memcpy(take(context, KEY_QUERY, query_bytes), debug_query_string,
			   query_bytes);
	parallel->wal = take(context, KEY_WAL, nworkers * sizeof(WalUsage));
	parallel->buffers = take(context, KEY_BUFFERS,
							 nworkers * sizeof(BufferUsage));
	return true;
}

/*
 * Begins as the leader, with the workers that there are; with in_place they
 * take part in training alone.  Parts are going to take about `bytes` bytes.
 * Memory from the current context.  Workers begin with the leader's active
 * snapshot, which must stay until this returns.  The leader is in parallel
 * mode until IvfpqParallelEndWorkers, unless it is alone.
 */
void
IvfpqParallelBegin(IvfpqParallel *parallel, Relation heap, Relation index,
				   IndexInfo *indexInfo, Size bytes, bool in_place)
{
	int			nworkers = count_workers(heap, index);

	if (nworkers == 0 || !has_memory(nworkers, bytes) ||
		!make_segment(parallel, nworkers))
	{
		IvfpqParallelInitSerial(parallel);
		return;
	}
	parallel->shared->heap = RelationGetRelid(heap);
	parallel->shared->index = RelationGetRelid(index);
	parallel->shared->concurrent = indexInfo->ii_Concurrent;
	parallel->shared->in_place = in_place;

	LaunchParallelWorkers(parallel->context);
	parallel->shared->size = parallel->context->nworkers_launched + 1;
	ereport(DEBUG1,
			(errmsg_internal("using %d parallel workers",
							 parallel->context->nworkers_launched)));
	/* a worker that dies before it attaches would be waited for */
	WaitForParallelWorkersToAttach(parallel->context);
	(void) IvfpqParallelEndPhase(parallel);
}

/* Ends the workers; the leader goes on alone, and keeps all parts. */
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

/* Ends the workers, and frees all parts. */
void
IvfpqParallelEnd(IvfpqParallel *parallel)
{
	IvfpqParallelEndWorkers(parallel);
	if (parallel->area != NULL)
		dsa_detach(parallel->area);
	parallel->area = NULL;
}

/* Joins the leader, as a worker. */
void
IvfpqParallelAttach(IvfpqParallel *parallel, dsm_segment *seg, shm_toc *toc)
{
	memset(parallel, 0, sizeof(*parallel));
	parallel->shared = shm_toc_lookup(toc, KEY_SHARED, true);
	if (parallel->shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("this session has loaded another gpuvec than its parallel workers"),
				 errhint("The library has been replaced.  Reconnect to the server.")));
	debug_query_string = shm_toc_lookup(toc, KEY_QUERY, true);
	pgstat_report_activity(STATE_RUNNING, debug_query_string);
	parallel->me = ParallelWorkerNumber + 1;
	parallel->has_workers = true;
	SharedFileSetAttach(&parallel->shared->files, seg);
	parallel->area = dsa_attach(parallel->shared->area);
	InstrStartParallelQuery();
}

/* Leaves, as a worker. */
void
IvfpqParallelDetach(IvfpqParallel *parallel, shm_toc *toc)
{
	WalUsage   *wal = shm_toc_lookup(toc, KEY_WAL, false);
	BufferUsage *buffers = shm_toc_lookup(toc, KEY_BUFFERS, false);

	InstrEndParallelQuery(&buffers[ParallelWorkerNumber],
						  &wal[ParallelWorkerNumber]);
	dsa_detach(parallel->area);
}

/* Shows the progress of all; views show the leader's numbers only. */
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

/* The leader has all begin a job; IvfpqParallelEndPhase ends it. */
void
IvfpqParallelStartJob(IvfpqParallel *parallel, IvfpqJob job)
{
	parallel->shared->job = job;
	IvfpqParallelStartPhase(parallel);
}

/*
 * Ends a phase for this participant.  Returns true in the leader, once the
 * phase is over for all: the leader does the work in between and calls
 * IvfpqParallelStartPhase.  Returns false in workers, after that call.
 */
bool
IvfpqParallelEndPhase(IvfpqParallel *parallel)
{
	IvfpqParallelShared *shared = parallel->shared;
	bool		is_leader = parallel->me == 0;
	int			phase;

	SpinLockAcquire(&shared->mutex);
	shared->narrived++;
	phase = shared->phase;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
	if (!parallel->has_workers)
		return true;

	ConditionVariablePrepareToSleep(&shared->changed);
	for (;;)
	{
		bool		is_over;

		SpinLockAcquire(&shared->mutex);
		is_over = is_leader ? shared->narrived == shared->size :
			shared->phase != phase;
		SpinLockRelease(&shared->mutex);
		if (is_over)
			break;
		ConditionVariableTimedSleep(&shared->changed,
									is_leader ? PROGRESS_MS : -1,
									WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
		show_progress(parallel);
	}
	ConditionVariableCancelSleep();
	return is_leader;
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

/* Claims a piece of this phase; returns false if none is left. */
bool
IvfpqParallelNext(IvfpqParallel *parallel, int64 npieces, int64 *piece)
{
	*piece = (int64) pg_atomic_fetch_add_u64(&parallel->shared->next, 1);
	return *piece < npieces;
}

/*
 * Allocates `bytes` bytes for a part, in place of its memory before.  The
 * leader calls this while workers wait, or do not read the part in this phase.
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

/* Returns a part, or NULL if there is none. */
void *
IvfpqParallelMemory(const IvfpqParallel *parallel, IvfpqParallelPart part)
{
	return parallel->area == NULL ? parallel->own[part] :
		dsa_get_address(parallel->area, parallel->shared->parts[part]);
}

/* Frees a part, if there is one.  The leader calls this while workers wait. */
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

/* Returns the name of a participant's file, written to name [NAME_BYTES]. */
static const char *
name_of(const IvfpqTempFile *temp, char *name, int range, int from)
{
	snprintf(name, NAME_BYTES, "%s.%d.%d", temp->what, range, from);
	return name;
}

/* Ends reading of the file that is open, if there is one. */
static void
close_file(IvfpqTempFile *temp)
{
	if (temp->file != NULL && temp->files != NULL)
		BufFileClose(temp->file);
	temp->file = NULL;
}

/* Begins files without records; memory from the current context. */
void
IvfpqTempFileBegin(IvfpqTempFile *temp, IvfpqParallel *parallel,
				   const char *what, int nranges)
{
	memset(temp, 0, sizeof(*temp));
	temp->files = parallel->has_workers ? &parallel->shared->files : NULL;
	temp->what = what;
	temp->me = parallel->me;
	temp->nranges = nranges;
	temp->ranges = palloc0(nranges * sizeof(BufFile *));
}

/* Puts a record into a range. */
void
IvfpqTempFilePut(IvfpqTempFile *temp, int range, void *record, Size bytes)
{
	char		name[NAME_BYTES];

	if (temp->ranges[range] == NULL)
		temp->ranges[range] = temp->files == NULL ?
			BufFileCreateTemp(false) :
			BufFileCreateFileSet(&temp->files->fs,
								 name_of(temp, name, range, temp->me));
	BufFileWrite(temp->ranges[range], record, bytes);
}

/* All records of this participant have been put: lets others read them. */
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
 * Begins to read records of a range, those that participants first .. end - 1
 * have put.  A leader that is alone may do so more than once.
 */
void
IvfpqTempFileOpen(IvfpqTempFile *temp, int range, int first, int end)
{
	close_file(temp);
	temp->range = range;
	temp->from = first;
	temp->end = end;
}

/*
 * Reads the next record of `bytes` bytes; returns false at the end.  A caller
 * that reads records in parts opens one participant's at a time, so that no
 * record ends in another one's file.
 */
bool
IvfpqTempFileRead(IvfpqTempFile *temp, void *record, Size bytes)
{
	char		name[NAME_BYTES];

	for (; temp->from < temp->end; temp->from++)
	{
		Size		got = 0;

		if (temp->file == NULL && temp->files != NULL)
			temp->file =
				BufFileOpenFileSet(&temp->files->fs,
								   name_of(temp, name, temp->range,
										   temp->from), O_RDONLY, true);
		else if (temp->file == NULL && temp->ranges[temp->range] != NULL)
		{
			temp->file = temp->ranges[temp->range];
			if (BufFileSeek(temp->file, 0, 0, SEEK_SET) != 0)
				elog(ERROR, "could not rewind a temporary file");
		}
		if (temp->file != NULL)
			got = BufFileRead(temp->file, record, bytes);
		if (got != 0 && got != bytes)
			elog(ERROR, "a temporary file of the build ends early");
		if (got != 0)
			return true;
		close_file(temp);
	}
	return false;
}

/*
 * Ends reading; all have read this participant's records: deletes its files.
 */
void
IvfpqTempFileEnd(IvfpqTempFile *temp)
{
	char		name[NAME_BYTES];

	close_file(temp);
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
