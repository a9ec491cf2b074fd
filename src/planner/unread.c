/*
 * unread.c
 *		Removes distances that no node reads from finished plans, so that they
 *		are not computed.
 *
 * ORDER BY v <-> query puts v <-> query among the columns of the index scan,
 * marked as junk, because a sort above the scan would need it.  If the scan is
 * ordered already, nothing above it needs this column.  But the projection of
 * the scan, or of a join that keeps its order, still calls the operator for
 * every row, which detoasts the row and the query once more.  So when a plan
 * is finished, such columns are replaced by NULL if it can be proved that no
 * node reads them.
 *
 * A column of a node is read by the node above, in expressions or by a list of
 * column numbers.  Some nodes, like Limit, pass on the column under the same
 * number, so the node above such a node may read it.  Nobody reads junk at the
 * top of a statement, because the executor filters it out of the result
 * (execJunk.c); at the top of a sub-select that is used as an expression,
 * because the executor takes only the columns before the junk (nodeSubplan.c);
 * or at the top of a common table expression, because no Var can name it.
 * Plans that change rows have ModifyTable on top.  Sort, MergeAppend, Gather,
 * LockRows and all other nodes for which this file has no rule are assumed to
 * read everything.
 *
 * Without shared_preload_libraries the library, with its hook, is loaded only
 * when a session first plans for such an index.  This first plan still
 * computes its distances.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/plannodes.h"
#include "optimizer/planner.h"
#include "parser/parsetree.h"

#include "am/common/options.h"
#include "pgcompat.h"
#include "planner/planner.h"

/* The node above a plan, which may read the plan's columns. */
typedef struct Reader
{
	Plan	   *plan;
	int			varno;			/* varno of Vars in `plan` that refer to
								 * columns of its child */
	const struct Reader *above; /* the node above `plan`; NULL if no node
								 * reads junk columns of `plan` */
} Reader;

/* A column to look for in expressions. */
typedef struct Column
{
	int			varno;
	AttrNumber	number;
} Column;

static planner_hook_type previous_planner = NULL;

/*
 * Returns whether an expression reads a column.  Whole-row references do not
 * count, because the executor leaves junk out of them (ExecInitWholeRowVar).
 */
static bool
mentions(Node *node, void *context)
{
	const Column *column = context;

	if (node == NULL)
		return false;
	if (IsA(node, Var))
		return ((Var *) node)->varno == column->varno &&
			((Var *) node)->varattno == column->number;
	return expression_tree_walker(node, mentions, context);
}

/* Returns whether a node may read a junk column of the plan below `reader`. */
static bool
column_is_read(const Reader *reader, AttrNumber number)
{
	Plan	   *plan;
	Column		column;
	TargetEntry *entry;
	ListCell   *lc;

	if (reader == NULL)
		return false;
	plan = reader->plan;
	column.varno = reader->varno;
	column.number = number;
	switch (nodeTag(plan))
	{
		case T_Limit:
		case T_Material:
		case T_Memoize:
			/* WITH TIES compares columns */
			if (IsA(plan, Limit) &&
				((Limit *) plan)->limitOption != LIMIT_OPTION_COUNT)
				return true;
			/* these nodes pass on the column under the same number */
			entry = get_tle_by_resno(plan->targetlist, number);
			return entry == NULL || !entry->resjunk ||
				column_is_read(reader->above, number);
		case T_SubqueryScan:
			break;
		case T_NestLoop:
			foreach(lc, ((NestLoop *) plan)->nestParams)
			{
				NestLoopParam *param = lfirst(lc);

				if (mentions((Node *) param->paramval, &column))
					return true;
			}
			if (mentions((Node *) ((Join *) plan)->joinqual, &column))
				return true;
			break;
		case T_HashJoin:
			if (mentions((Node *) ((Join *) plan)->joinqual, &column) ||
				mentions((Node *) ((HashJoin *) plan)->hashclauses, &column) ||
				mentions((Node *) ((HashJoin *) plan)->hashkeys, &column))
				return true;
			break;
		case T_Agg:
			/* grouping sets also sort, by their own lists of columns */
			if (((Agg *) plan)->chain != NIL)
				return true;
			for (int i = 0; i < ((Agg *) plan)->numCols; i++)
				if (((Agg *) plan)->grpColIdx[i] == number)
					return true;
			break;
		default:
			return true;
	}
	if (mentions((Node *) plan->qual, &column))
		return true;
	/* check whether a node above reads a junk column that is only passed on */
	foreach(lc, plan->targetlist)
	{
		entry = lfirst(lc);
		if (mentions((Node *) entry->expr, &column) &&
			(!entry->resjunk || !IsA(entry->expr, Var) ||
			 column_is_read(reader->above, entry->resno)))
			return true;
	}
	return false;
}

/*
 * In an expression of a join, replaces columns of the outer plan by the
 * expressions that compute these columns.
 */
static Node *
as_outer_plan(Node *node, void *context)
{
	Plan	   *outer = context;

	if (node != NULL && IsA(node, Var) && ((Var *) node)->varno == OUTER_VAR)
	{
		TargetEntry *entry = get_tle_by_resno(outer->targetlist,
											  ((Var *) node)->varattno);

		if (entry != NULL)
			return copyObject((Node *) entry->expr);
	}
	return expression_tree_mutator(node, as_outer_plan, context);
}

/*
 * Returns whether an expression is a distance by which an ordered scan of ours
 * returns its rows.  A nested loop keeps the order of its outer plan, and its
 * expressions may compute the distance from columns of that plan.
 */
static bool
is_distance(Plan *plan, Node *expr)
{
	IndexScan  *scan = (IndexScan *) plan;

	if (IsA(plan, NestLoop))
		return is_distance(plan->lefttree,
						   as_outer_plan(expr, plan->lefttree));
	if (IvfpqIsFilterScan(plan))
		return IvfpqIsFilterDistance((CustomScan *) plan, expr);
	return IsA(plan, IndexScan) &&
		(list_member(scan->indexorderbyorig, expr) ||
		 list_member(scan->indexorderbyorig, IvfpqExchanged((Expr *) expr))) &&
		IvfpqIsOursByOid(scan->indexid);
}

/* Replaces distances in a plan's target list by NULL if no node reads them. */
static void
drop_distances(Plan *plan, const Reader *above)
{
	for (int i = 0; i < list_length(plan->targetlist); i++)
	{
		TargetEntry *entry = list_nth(plan->targetlist, i);
		Node	   *expr = (Node *) entry->expr;

		if (!entry->resjunk || column_is_read(above, entry->resno) ||
			!is_distance(plan, expr))
			continue;
		/* change copies, because other nodes may use the list and the entry */
		entry = flatCopyTargetEntry(entry);
		entry->expr = (Expr *) makeNullConst(exprType(expr), exprTypmod(expr),
											 exprCollation(expr));
		plan->targetlist = list_copy(plan->targetlist);
		lfirst(list_nth_cell(plan->targetlist, i)) = entry;
	}
}

/* Returns a node's children other than its outer and inner plans. */
List *
IvfpqFurtherChildren(const Plan *plan)
{
	switch (nodeTag(plan))
	{
		case T_Append:
			return ((const Append *) plan)->appendplans;
		case T_MergeAppend:
			return ((const MergeAppend *) plan)->mergeplans;
		case T_CustomScan:
			return ((const CustomScan *) plan)->custom_plans;
		case T_SubqueryScan:
			return list_make1(((const SubqueryScan *) plan)->subplan);
		default:
			return NIL;
	}
}

/* Removes unread distances from a plan and from all plans below it. */
static void
walk_plan(Plan *plan, const Reader *above)
{
	Reader		reader = {plan, OUTER_VAR, above};
	ListCell   *lc;

	if (plan == NULL)
		return;
	check_stack_depth();
	if (IsA(plan, NestLoop) ||
		(IsA(plan, IndexScan) &&
		 ((IndexScan *) plan)->indexorderbyorig != NIL))
		drop_distances(plan, above);
	if (IsA(plan, SubqueryScan))
		reader.varno = (int) ((SubqueryScan *) plan)->scan.scanrelid;

	/* leave out plans below custom scans, which may read all columns */
	if (!IsA(plan, CustomScan))
	{
		foreach(lc, IvfpqFurtherChildren(plan))
			walk_plan(lfirst(lc), &reader);
	}
	walk_plan(plan->lefttree, &reader);
	reader.varno = INNER_VAR;
	walk_plan(plan->righttree, &reader);
}

/* planner_hook */
static PlannedStmt *
plan_statement(IVFPQ_PLANNER_PARAMS)
{
	PlannedStmt *statement;
	ListCell   *lc;

	if (previous_planner)
		statement = previous_planner(IVFPQ_PLANNER_ARGS);
	else
		statement = standard_planner(IVFPQ_PLANNER_ARGS);
	walk_plan(statement->planTree, NULL);
	foreach(lc, statement->subplans)
		walk_plan(lfirst(lc), NULL);
	return statement;
}

/* Called once in a process. */
void
IvfpqInitPlanner(void)
{
	previous_planner = planner_hook;
	planner_hook = plan_statement;
}
