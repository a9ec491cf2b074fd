/*
 * plancheck.c
 *		In tests: no finished plan has an ordered scan where it must not stand.
 *
 * custompath.c has the rule where a scan in the order of a distance may stand,
 * and the planner is to have no other plan.  The test build (make
 * TEST_BUILD=1), which alone has this file, looks at each plan that it is
 * about to run.  From below LIMIT, or from the top for cursors, down to a scan
 * there are only nodes that hand on rows one by one.  Where settings let a
 * scan stand without LIMIT a plan does not show where its query levels begin,
 * so such plans are not checked.
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
 * Returns whether a node hands on rows one by one, as it gets them from its
 * outer plan.  The list in am/scan/depth.c is of nodes that need about as many
 * rows as they return.
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
		case T_Sort:			/* anew, for further keys: custompath.c */
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
 * Raises an error if an ordered scan stands where it must not.  `open`: rows
 * from here are handed on one by one up to LIMIT, or the top.
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
	/* its rows may come in any order, whatever that of the scan in it */
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

/* Call once a process. */
void
IvfpqInitPlanCheck(void)
{
	previous_start = ExecutorStart_hook;
	ExecutorStart_hook = check_and_start;
}
