/*
 * plancheck.c
 *		Checks, in tests, that no finished plan has an ordered scan where it
 *		must not have one.
 *
 * custompath.c has the rule that says where a scan in the order of a distance
 * may be in a plan, and the planner must not make a plan that breaks the rule.
 * This file is compiled only into the test build (make TEST_BUILD=1), and
 * checks each plan before it is run.  Between a LIMIT and an ordered scan
 * below it there must be only nodes that pass on rows one by one.  For a
 * cursor, the same rule applies between the top of the plan and the scan.  If
 * settings allow an ordered scan without LIMIT, plans are not checked, because
 * a plan does not show where its query levels begin.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "executor/executor.h"
#include "nodes/plannodes.h"
#include "optimizer/cost.h"

#include "am/common/options.h"
#include "planner/planner.h"

static ExecutorStart_hook_type previous_start = NULL;

/* Returns whether the plan is an ordered scan of ours. */
static bool
is_ordered_scan(const Plan *plan)
{
	IvfpqFilterPlan filter;

	if (IsA(plan, IndexScan))
		return ((const IndexScan *) plan)->indexorderby != NIL &&
			IvfpqIsOursByOid(((const IndexScan *) plan)->indexid);
	if (!IvfpqIsFilterScan(plan))
		return false;
	IvfpqFilterPlanOf((const CustomScan *) plan, &filter);
	return !filter.any_order;
}

/*
 * Returns whether a node passes on rows one by one, as it gets them from its
 * outer plan.  am/scan/ivfpqscan.c has a different list, of the nodes that
 * need about as many rows as they return.
 */
static bool
hands_on(const Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_NestLoop:
			return ((const NestLoop *) plan)->join.jointype != JOIN_RIGHT &&
				((const NestLoop *) plan)->join.jointype != JOIN_FULL;
		case T_WindowAgg:
			return ((const WindowAgg *) plan)->partNumCols == 0 &&
				((const WindowAgg *) plan)->ordNumCols > 0 &&
				(((const WindowAgg *) plan)->frameOptions &
				 FRAMEOPTION_END_CURRENT_ROW);
		case T_Sort:			/* sorts again, by further keys */
			return ((const Sort *) plan)->numCols > 1;
		case T_Gather:
			return ((const Gather *) plan)->single_copy;
		case T_Append:
		case T_MergeAppend:
		case T_IncrementalSort:
		case T_Unique:
		case T_LockRows:
		case T_Result:
		case T_ProjectSet:
		case T_Material:
		case T_SubqueryScan:
		case T_ModifyTable:
			return true;
		default:
			return false;
	}
}

/*
 * Raises an error if an ordered scan is where it must not be.  `open` is true
 * if all nodes from here up to a LIMIT, or to the top, pass on rows one by
 * one.
 */
static void
check_plan(const Plan *plan, bool open)
{
	ListCell   *lc;

	if (plan == NULL)
		return;
	if (is_ordered_scan(plan))
	{
		if (!open)
			elog(ERROR, "a plan has an ordered scan of gpuivfpq below a node that reads all its rows");
		return;
	}

	/* a node that returns rows in any order may be anywhere in a plan */
	if (IvfpqIsFilterScan(plan))
		return;
	open = IsA(plan, Limit) || (open && hands_on(plan));
	foreach(lc, IvfpqFurtherChildren(plan))
		check_plan(lfirst(lc), open);
	check_plan(outerPlan(plan), open);
	check_plan(innerPlan(plan), false);
}

/* ExecutorStart_hook */
static void
check_and_start(QueryDesc *query, int eflags)
{
	ListCell   *lc;

	if (enable_seqscan && enable_sort && !IsParallelWorker())
	{
		check_plan(query->plannedstmt->planTree, true);
		foreach(lc, query->plannedstmt->subplans)
			check_plan(lfirst(lc), false);
	}
	if (previous_start)
		previous_start(query, eflags);
	else
		standard_ExecutorStart(query, eflags);
}

/* Called once in a process. */
void
IvfpqInitPlanCheck(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = check_and_start;
}
