/*
 * team.c
 *		The participants of a build work in rounds: when all have come to the
 *		end of one, the leader does what only one can do, and the next begins.
 *
 * A leader that is alone goes through the same rounds without waiting.
 */
#include "postgres.h"

#include "access/table.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "optimizer/clauses.h"
#include "optimizer/paths.h"
#include "utils/backend_progress.h"
#include "utils/rel.h"
#include "utils/wait_event.h"

#include "am/team/team.h"

#define PROGRESS_MS		200		/* between updates while the leader waits */

/* maintenance_work_mem that a participant should have, as core has it. */
#define LEAST_MEMORY_KB	32768

/* May expressions and predicate of the index be computed in workers? */
static bool
is_safe(Relation index)
{
	PlannerInfo *root = makeNode(PlannerInfo);

	root->glob = makeNode(PlannerGlobal);
	return is_parallel_safe(root,
							(Node *) RelationGetIndexExpressions(index)) &&
		is_parallel_safe(root, (Node *) RelationGetIndexPredicate(index));
}

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
		!is_safe(index))
		return 0;
	if (given >= 0)
		return Min(given, most);
	most = (int) Min(most, count_pages(heap) /
					 Max(min_parallel_table_scan_size, 1));
	return Max(0, Min(most, maintenance_work_mem / LEAST_MEMORY_KB - 1));
}

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
	team->shared->nparts = 1;
	team->entries = palloc_extended(nlists * sizeof(IvfpqListEntry),
									MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
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
			ConditionVariableTimedSleep(&team->shared->changed, PROGRESS_MS,
										WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
			show_progress(team);
		}
		ConditionVariableCancelSleep();
	}
	return team->me == 0;
}

/* The leader lets workers go on, with nothing done of the next phase. */
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
