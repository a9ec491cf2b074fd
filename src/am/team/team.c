/*
 * team.c
 *		Participants work in phases: when all have come to the end of one, the
 *		leader does what only one can do, and the next begins.  And the memory
 *		that all of them see.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "utils/backend_progress.h"
#include "utils/wait_event.h"

#include "am/team/team.h"

#define PROGRESS_MS		200		/* between updates while the leader waits */

/* Nothing has been done. */
void
IvfpqParallelInit(IvfpqParallelShared *shared)
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
	IvfpqParallelInit(parallel->shared);
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
