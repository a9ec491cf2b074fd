/*
 * parallel.c
 *		The participants of a build or of training: a leader, and parallel
 *		workers if there are any.
 *
 * Workers begin before training and wait for jobs.  The leader lays out the
 * memory that all participants see, starts a job, takes part in it, and waits
 * until all participants have reached its end.  A job consists of phases.
 * When all participants have reached the end of a phase, the leader does the
 * work that only one process can do, and then starts the next phase.  A leader
 * that is alone goes through the same steps without waiting.
 *
 * One parallel context serves both training and the build.  Its segment of
 * shared memory has the data that is known when workers begin.  The results of
 * training are parts of a dynamic shared area, which remains when the workers
 * end.  The leader uses the same copy, because the centroids of a million
 * lists take gigabytes.
 *
 * Records that participants pass to one another go through temporary files,
 * which are divided into ranges.  Each participant has its own file for each
 * range.  Other participants may read these files when all participants have
 * put their records.  We use files because shared memory may be small
 * (containers have 64 MB).  A record is read soon after it is written, so it
 * still is in the system's cache.
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

/* Minimum maintenance_work_mem of a participant, the same as in core. */
#define LEAST_MEMORY_KB	32768

/* Bytes of shared memory without workers, and additional bytes per worker. */
#define PARALLEL_BYTES		((Size) 2 * 1024 * 1024)
#define WORKER_BYTES	((Size) 64 * 1024)

#define PROGRESS_MS		200		/* interval of progress reports while the
								 * leader waits */

#define NAME_BYTES		64		/* length of a temporary file's name */

/*
 * Keys of the segment's contents.  A worker loads the library that is
 * installed when the worker begins, so the worker's version may differ from
 * that of the leader.  Therefore the first key must change whenever
 * IvfpqParallelShared, its parts, or the records in files change.
 */
enum
{
	KEY_SHARED = 200,			/* IvfpqParallelShared */
	KEY_QUERY,					/* the leader's query text, for views */
	KEY_WAL,					/* WalUsage [nworkers] */
	KEY_BUFFERS					/* BufferUsage [nworkers] */
};

/*
 * Returns the number of workers to ask for: one for each
 * min_parallel_table_scan_size of the table, including its TOAST table, unless
 * the table's options or the settings allow fewer.  We do not call
 * plan_create_index_workers, which considers only the cost of scanning the
 * table, because placing a row takes longer than reading it.
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

/* Initializes the shared state, with no work done yet. */
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

/* Initializes a leader without workers, in the current memory context. */
void
IvfpqParallelInitSerial(IvfpqParallel *parallel)
{
	memset(parallel, 0, sizeof(*parallel));
	parallel->shared = palloc(sizeof(IvfpqParallelShared));
	parallel_init(parallel->shared);
	parallel->shared->size = 1;
	parallel->shared->nparts = 1;
}

/* Allocates *arg bytes of shared memory, and frees them at once. */
static void
try_memory(void *arg)
{
	dsm_detach(dsm_create(*(Size *) arg, 0));
	IvfpqInjectionPoint("team: memory");
}

/*
 * Returns whether there is shared memory for the workers and `bytes` bytes of
 * parts.  Must be called before parallel mode begins, because an error in
 * parallel mode would end the statement.
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
			(errmsg("could not allocate shared memory for parallel workers"),
			 errdetail("The build continues without them.  %lld bytes were requested: %s.",
					   (long long) wanted, error->message),
			 errhint("Containers may need more shared memory, for example by the option --shm-size.")));
	FreeErrorData(error);
	return false;
}

/* Allocates memory in the segment, where workers find it by its key. */
static void *
take(ParallelContext *context, uint64 key, Size bytes)
{
	void	   *memory = shm_toc_allocate(context->toc, bytes);

	shm_toc_insert(context->toc, key, memory);
	return memory;
}

/*
 * Enters parallel mode, and makes the segment and the area.  If there is no
 * memory for the segment, leaves parallel mode again and returns false.
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
 * Initializes the leader, and launches as many workers as are available.  If
 * in_place is true, the workers take part in training only.  The parts will
 * take about `bytes` bytes.  Memory comes from the current context.  Workers
 * begin with the leader's active snapshot, which must stay until this function
 * returns.  A leader that has workers is in parallel mode until
 * IvfpqParallelEndWorkers.
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

	/* if a worker died, fail here instead of waiting for it forever */
	WaitForParallelWorkersToAttach(parallel->context);
	(void) IvfpqParallelEndPhase(parallel);
}

/* Ends the workers.  The leader goes on alone and keeps all parts. */
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

/* Joins the leader.  A worker calls this when it begins. */
void
IvfpqParallelAttach(IvfpqParallel *parallel, dsm_segment *seg, shm_toc *toc)
{
	memset(parallel, 0, sizeof(*parallel));
	parallel->shared = shm_toc_lookup(toc, KEY_SHARED, true);
	if (parallel->shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("parallel worker has loaded another version of gpuvec than this session"),
				 errhint("Reconnect to the server.  The library was replaced while this session was running.")));
	debug_query_string = shm_toc_lookup(toc, KEY_QUERY, true);
	pgstat_report_activity(STATE_RUNNING, debug_query_string);
	parallel->me = ParallelWorkerNumber + 1;
	parallel->has_workers = true;
	SharedFileSetAttach(&parallel->shared->files, seg);
	parallel->area = dsa_attach(parallel->shared->area);
	InstrStartParallelQuery();
}

/*
 * Reports a worker's buffer and WAL usage to the leader, and detaches from the
 * shared memory.  A worker calls this when it ends.
 */
void
IvfpqParallelDetach(IvfpqParallel *parallel, shm_toc *toc)
{
	WalUsage   *wal = shm_toc_lookup(toc, KEY_WAL, false);
	BufferUsage *buffers = shm_toc_lookup(toc, KEY_BUFFERS, false);

	InstrEndParallelQuery(&buffers[ParallelWorkerNumber],
						  &wal[ParallelWorkerNumber]);
	dsa_detach(parallel->area);
}

/*
 * Shows the progress of all participants.  Only the leader shows it, because
 * views read only the leader's numbers.
 */
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

/*
 * Starts a job for all participants.  The leader calls this, and ends the job
 * with IvfpqParallelEndPhase.
 */
void
IvfpqParallelStartJob(IvfpqParallel *parallel, IvfpqJob job)
{
	parallel->shared->job = job;
	IvfpqParallelStartPhase(parallel);
}

/*
 * Ends a phase for this participant.  The leader waits until all participants
 * have ended the phase, and returns true.  Then the leader does the work
 * between the phases, and calls IvfpqParallelStartPhase.  A worker waits for
 * that call, and returns false.
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

/*
 * Starts the next phase, and lets waiting workers go on.  No work of the phase
 * is claimed or done yet.  The leader calls this.
 */
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

/* Claims a piece of this phase's work.  Returns false if no piece is left. */
bool
IvfpqParallelNext(IvfpqParallel *parallel, int64 npieces, int64 *piece)
{
	*piece = (int64) pg_atomic_fetch_add_u64(&parallel->shared->next, 1);
	return *piece < npieces;
}

/*
 * Allocates `bytes` bytes for a part, and frees the part's old memory.  The
 * leader calls this while workers wait, or in a phase in which they do not
 * read the part.
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

/* Returns the memory of a part, or NULL if the part has none. */
void *
IvfpqParallelMemory(const IvfpqParallel *parallel, IvfpqParallelPart part)
{
	return parallel->area == NULL ? parallel->own[part] :
		dsa_get_address(parallel->area, parallel->shared->parts[part]);
}

/* Frees a part's memory, if any.  The leader calls this while workers wait. */
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

/* Stops reading the file that is open, if there is one. */
static void
close_file(IvfpqTempFile *temp)
{
	if (temp->file != NULL && temp->files != NULL)
		BufFileClose(temp->file);
	temp->file = NULL;
}

/* Initializes empty temporary files, in the current memory context. */
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

/*
 * Lets other participants read this participant's records.  Called when this
 * participant has put all its records.
 */
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
 * Begins to read the records that participants first .. end - 1 have put into
 * a range.  A range may be read more than once.
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
 * Reads the next record, of `bytes` bytes.  Returns false if there are no more
 * records.  A caller that reads a record in several parts must open the file
 * of one participant at a time, so that all parts come from the same file.
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
				elog(ERROR, "could not rewind temporary file");
		}
		if (temp->file != NULL)
			got = BufFileRead(temp->file, record, bytes);
		if (got != 0 && got != bytes)
			elog(ERROR, "unexpected end of temporary file");
		if (got != 0)
			return true;
		close_file(temp);
	}
	return false;
}

/*
 * Stops reading, and deletes the files of this participant.  Called when all
 * participants have read these files.
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
