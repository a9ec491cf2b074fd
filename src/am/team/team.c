/*
 * team.c
 *		Participants work in rounds: when all have come to the end of one, the
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
IvfpqTeamInit(IvfpqTeamShared *shared)
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
IvfpqTeamAlone(IvfpqTeam *team)
{
	memset(team, 0, sizeof(*team));
	team->shared = palloc(sizeof(IvfpqTeamShared));
	IvfpqTeamInit(team->shared);
	team->shared->size = 1;
	team->shared->nparts = 1;
}

/* Show progress of all; views show the leader's numbers only. */
static void
show_progress(IvfpqTeam *team)
{
	if (team->me == 0)
		pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE,
									 pg_atomic_read_u64(&team->shared->done));
}

/* So many rows more are done. */
void
IvfpqTeamDone(IvfpqTeam *team, int64 n)
{
	pg_atomic_fetch_add_u64(&team->shared->done, n);
	show_progress(team);
}

/* Arrive; returns the round. */
static int
arrive(IvfpqTeamShared *shared)
{
	int			round;

	SpinLockAcquire(&shared->mutex);
	shared->narrived++;
	round = shared->round;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
	return round;
}

/* Have all arrived; or, for a worker, has the leader let go? */
static bool
is_over(IvfpqTeam *team, int round)
{
	IvfpqTeamShared *shared = team->shared;
	bool		over;

	SpinLockAcquire(&shared->mutex);
	over = team->me == 0 ? shared->narrived == shared->size :
		shared->round != round;
	SpinLockRelease(&shared->mutex);
	return over;
}

/*
 * A round is over for this participant.  True for the leader, once it is over
 * for all: the leader does what is to be done in between and calls
 * IvfpqTeamRelease.  False for workers, after that call.
 */
bool
IvfpqTeamGather(IvfpqTeam *team)
{
	int			round = arrive(team->shared);

	if (team->parallel)
	{
		ConditionVariablePrepareToSleep(&team->shared->changed);
		while (!is_over(team, round))
		{
			ConditionVariableTimedSleep(&team->shared->changed,
										team->me == 0 ? PROGRESS_MS : -1,
										WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
			show_progress(team);
		}
		ConditionVariableCancelSleep();
	}
	return team->me == 0;
}

/* The leader lets workers go on, with nothing done of the next round. */
void
IvfpqTeamRelease(IvfpqTeam *team)
{
	IvfpqTeamShared *shared = team->shared;

	pg_atomic_write_u64(&shared->done, 0);
	pg_atomic_write_u64(&shared->next, 0);
	SpinLockAcquire(&shared->mutex);
	shared->narrived = 0;
	shared->round++;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
}

/* The leader has all begin a job; IvfpqTeamGather ends it. */
void
IvfpqTeamStart(IvfpqTeam *team, IvfpqJob job)
{
	team->shared->job = job;
	IvfpqTeamRelease(team);
}

/* A piece of this round that is still to be done; false: none is left. */
bool
IvfpqTeamTake(IvfpqTeam *team, int64 npieces, int64 *piece)
{
	*piece = (int64) pg_atomic_fetch_add_u64(&team->shared->next, 1);
	return *piece < npieces;
}

/*
 * The leader, while workers wait: memory of so many bytes for a part, in place
 * of what it had before.
 */
void *
IvfpqTeamAlloc(IvfpqTeam *team, IvfpqTeamPart part, Size bytes)
{
	IvfpqTeamFree(team, part);
	if (team->area != NULL)
		team->shared->parts[part] = dsa_allocate_extended(team->area,
														  Max(bytes, 1),
														  DSA_ALLOC_HUGE);
	else
		team->own[part] = palloc_extended(bytes, MCXT_ALLOC_HUGE);
	return IvfpqTeamMemory(team, part);
}

/* A part; NULL: there is none. */
void *
IvfpqTeamMemory(const IvfpqTeam *team, IvfpqTeamPart part)
{
	return team->area == NULL ? team->own[part] :
		dsa_get_address(team->area, team->shared->parts[part]);
}

/* The leader, while workers wait: a part is not needed any more. */
void
IvfpqTeamFree(IvfpqTeam *team, IvfpqTeamPart part)
{
	if (team->area != NULL && DsaPointerIsValid(team->shared->parts[part]))
		dsa_free(team->area, team->shared->parts[part]);
	else if (team->own[part] != NULL)
		pfree(team->own[part]);
	team->shared->parts[part] = InvalidDsaPointer;
	team->own[part] = NULL;
}
