/*
 * unread.c
 *		Distances that no node reads are not computed.
 *
 * ORDER BY v <-> query leaves v <-> query among the columns of the index scan,
 * marked as junk, because a sort above would need it.  Nothing above a scan
 * that is ordered already does, and yet the projection of the scan, or of a
 * join that keeps its order, calls the operator for every row, which detoasts
 * the row and the query once more.  So when a plan is finished, such columns
 * become NULL where it can be proved that no node reads them.
 *
 * A column of a node is read by the node above, in its expressions or by a
 * list of column numbers.  Some nodes hand it on under the same number (Limit
 * and the like): then the node above those may read it.  At the top of a
 * statement, of a sub-select used as an expression and of a common table
 * expression junk is not read: the executor filters it out of what a statement
 * returns (execJunk.c); of a sub-select it takes only the columns that are no
 * junk, which come first (nodeSubplan.c); and no Var can name a CTE's junk.
 * Plans that change rows have ModifyTable on top.  Nodes that this file does
 * not know are taken to read everything: Sort, MergeAppend, Gather, LockRows
 * and all others.
 *
 * The hook comes with the library, which without shared_preload_libraries is
 * loaded when a session first plans for such an index: that one plan computes
 * its distances.
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
	int			varno;			/* of the Vars by which it reads them */
	const struct Reader *above; /* reads its own columns; NULL = junk among
								 * them is not read */
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
 * count: the executor leaves junk out of those (ExecInitWholeRowVar).
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

/* Returns whether anything may read a junk column of the reader's subplan. */
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
			/* WITH TIES compares columns */
			if (((Limit *) plan)->limitOption != LIMIT_OPTION_COUNT)
				return true;
			/* FALLTHROUGH */
		case T_Material:
		case T_Memoize:
			/* hands the column on under the same number */
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
			/* grouping sets sort in between, by lists of their own */
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
	/* what the target list only hands on a node above has to read */
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

/* Rewrites an expression over a join's outer plan as that plan computes it. */
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
 * returns its rows.  A nested loop keeps the order of its outer plan, and
 * computes what that plan does not have.
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

/* Makes NULL of distances among a plan's columns that no node reads. */
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
		/* copies, because others may point to list and entry, too */
		entry = flatCopyTargetEntry(entry);
		entry->expr = (Expr *) makeNullConst(exprType(expr), exprTypmod(expr),
											 exprCollation(expr));
		plan->targetlist = list_copy(plan->targetlist);
		lfirst(list_nth_cell(plan->targetlist, i)) = entry;
	}
}

/*
 * Returns the plans below a node that are neither its outer nor its inner
 * plan.
 */
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

/* Drops distances in a plan and all plans below it. */
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
	/* how a custom scan uses its plans is not known, and ours reads all */
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

/* Call once a process. */
void
IvfpqInitPlanner(void)
{
	previous_planner = planner_hook;
	planner_hook = plan_statement;
}
