/*
 * limit.c
 *		The rows that a statement needs from its ordered scans, as the
 *		executor knows them: for LIMIT $1 and LIMIT (SELECT ...), too.
 *
 * When a statement starts its finished plan is walked, and each index scan of
 * ours below a Limit is noted with that node.  The node has computed its
 * numbers when it asks for its first row, and again after each rescan; so the
 * scan reads them when it begins.  Nodes between the two may drop or multiply
 * rows, so the number is a hint, and recall does not depend on it.
 *
 * The access method does not see its node, but its rescan gets the node's
 * array of order keys, which is no other node's.  Notes live in the memory of
 * the statement, as plan and scan do, and are freed with it.
 */
#include "postgres.h"

#include "executor/executor.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "nodes/extensible.h"
#include "nodes/nodeFuncs.h"
#include "utils/rel.h"

#include "am/scan/limit.h"
#include "am/scan/scan.h"

/* An index scan of ours. */
typedef struct Note
{
	dlist_node	node;
	const IndexScanState *scan;
	const LimitState *limit;	/* the next one above, or NULL */
	MemoryContextCallback callback;
} Note;

/* The state of a walk. */
typedef struct Walk
{
	PlanState  *above;			/* the node above, or NULL */
	const LimitState *limit;	/* limits that node's rows, or NULL */
	MemoryContext context;		/* of the statement */
} Walk;

static dlist_head notes = DLIST_STATIC_INIT(notes);
static ExecutorStart_hook_type previous_start = NULL;

/* MemoryContextCallback: the statement is over. */
static void
forget(void *arg)
{
	dlist_delete(&((Note *) arg)->node);
}

static void
take_note(const IndexScanState *scan, const Walk *walk)
{
	Note	   *note;

	/* EXPLAIN opens no index */
	if (scan->iss_RelationDesc == NULL || scan->iss_NumOrderByKeys == 0 ||
		scan->iss_RelationDesc->rd_indam->amgettuple != ivfpqgettuple)
		return;
	note = MemoryContextAllocZero(walk->context, sizeof(Note));
	note->scan = scan;
	note->limit = walk->limit;
	note->callback.func = forget;
	note->callback.arg = note;
	dlist_push_head(&notes, &note->node);
	MemoryContextRegisterResetCallback(walk->context, &note->callback);
}

/* Returns whether a node is among others [n]. */
static bool
is_among(const PlanState *node, PlanState **others, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (others[i] == node)
			return true;
	}
	return false;
}

/*
 * Returns whether `above` needs about as many rows of the node below it as it
 * returns itself.  These are fewer nodes than those of ../filter/plancheck.c,
 * below which a scan may be: ProjectSet, for example, hands on rows one by
 * one, but makes several of one.
 */
static bool
hands_on(PlanState *above, PlanState *node)
{
	switch (nodeTag(above))
	{
		case T_AppendState:
			return is_among(node, ((AppendState *) above)->appendplans,
							((AppendState *) above)->as_nplans);
		case T_MergeAppendState:
			return is_among(node, ((MergeAppendState *) above)->mergeplans,
							((MergeAppendState *) above)->ms_nplans);
		case T_SubqueryScanState:
			return node == ((SubqueryScanState *) above)->subplan;
		case T_CustomScanState:
			return strcmp(((CustomScanState *) above)->methods->CustomName,
						  IVFPQ_CUSTOM_NAME) == 0 &&
				node == linitial(((CustomScanState *) above)->custom_ps);
		case T_LimitState:
		case T_ResultState:
		case T_LockRowsState:
		case T_NestLoopState:
		case T_IncrementalSortState:
		case T_UniqueState:
		case T_WindowAggState:
			return node == outerPlanState(above);
		default:
			return false;
	}
}

/* Takes notes of a node and those below it when a statement starts. */
static bool
walk_plan(PlanState *node, void *context)
{
	const Walk *walk = context;
	Walk		below = {node, NULL, walk->context};

	check_stack_depth();
	if (IsA(node, LimitState))
		below.limit = (LimitState *) node;
	else if (walk->above != NULL && hands_on(walk->above, node))
		below.limit = walk->limit;
	if (IsA(node, IndexScanState))
		take_note((IndexScanState *) node, &below);
	return planstate_tree_walker(node, walk_plan, &below);
}

/* ExecutorStart_hook */
static void
start_statement(QueryDesc *query, int eflags)
{
	Walk		walk = {0};

	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
	if (query->planstate == NULL || (eflags & EXEC_FLAG_EXPLAIN_ONLY))
		return;
	walk.context = query->estate->es_query_cxt;
	(void) walk_plan(query->planstate, &walk);
}

/*
 * The Limit above the scan that has these order keys, or NULL.  *planned: the
 * rows that the planner expects of the scan, or 0.
 */
const LimitState *
IvfpqLimitOf(ScanKey orderbys, double *planned)
{
	dlist_iter	iter;

	*planned = 0;
	dlist_foreach(iter, &notes)
	{
		const Note *note = dlist_container(Note, node, iter.cur);

		if (note->scan->iss_OrderByKeys != orderbys)
			continue;
		*planned = note->scan->ss.ps.plan->plan_rows;
		return note->limit;
	}
	return NULL;
}

/*
 * The rows that a Limit returns, without those of OFFSET; 0 if that is not
 * known.  WITH TIES counts as one row more, though any number may follow.
 */
double
IvfpqLimitRows(const LimitState *limit)
{
	if (limit == NULL || limit->lstate == LIMIT_INITIAL || limit->noCount)
		return 0;
	return (double) limit->count +
		(limit->limitOption == LIMIT_OPTION_WITH_TIES);
}

/* Call once a process. */
void
IvfpqInitLimit(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = start_statement;
}
