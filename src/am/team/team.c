/*
 * team.c
 *		The participants of a build work in rounds: when all have come to the
 *		end of one, the leader does what only one can do, and the next begins.
 *
 * A leader that is alone goes through the same rounds without waiting.
 */
#include "postgres.h"

#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/backend_progress.h"
#include "utils/wait_event.h"

#include "am/team/team.h"

#define PROGRESS_MS		200		/* shown so often while others work */

/* Nothing has been done. */
void
IvfpqTeamInit(IvfpqTeamShared *shared)
{
	memset(shared, 0, sizeof(*shared));
	ConditionVariableInit(&shared->changed);
	SpinLockInit(&shared->mutex);
	pg_atomic_init_u64(&shared->done, 0);
	pg_atomic_init_u64(&shared->ncopies, 0);
	pg_atomic_init_u64(&shared->next_range, 0);
	pg_atomic_init_u64(&shared->next_page, 0);
	pg_atomic_init_u64(&shared->next_query, 0);
	pg_atomic_init_u32(&shared->refine_head, InvalidBlockNumber);
}

/* A leader without workers, for that many lists; in the current context. */
void
IvfpqTeamAlone(IvfpqTeam *team, int nlists)
{
	memset(team, 0, sizeof(*team));
	team->shared = palloc(sizeof(IvfpqTeamShared));
	IvfpqTeamInit(team->shared);
	team->shared->size = 1;
	team->shared->nshares = 1;
	team->entries = palloc_extended(nlists * sizeof(IvfpqListEntry),
									MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

/* Show how far all have come; only the leader's numbers are looked at. */
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
 * for all: he does what is to be done in between and calls IvfpqTeamRelease.
 * False for others, once he has.
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
			ConditionVariableTimedSleep(&team->shared->changed, PROGRESS_MS,
										WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
			show_progress(team);
		}
		ConditionVariableCancelSleep();
	}
	return team->me == 0;
}

/* The leader lets the others go on, with nothing done of the next phase. */
void
IvfpqTeamRelease(IvfpqTeam *team)
{
	IvfpqTeamShared *shared = team->shared;

	pg_atomic_write_u64(&shared->done, 0);
	SpinLockAcquire(&shared->mutex);
	shared->narrived = 0;
	shared->round++;
	SpinLockRelease(&shared->mutex);
	ConditionVariableBroadcast(&shared->changed);
}
