/*
 * conditions.c
 *		The plan of a filtered scan: which conditions are asked when, and the
 *		columns of its rows.
 *
 * Early conditions are asked of every candidate, before its vector is touched.
 * The others wait until a row comes up in its order: volatile ones, for how
 * often they run shows; those with sub-plans and costly ones, which would run
 * for rows that nobody wants; those that name the distance, which is not known
 * before.
 *
 * Order is that of create_plan, which puts cheap conditions first, and those
 * of a policy or a security barrier before all that may leak.  So once one is
 * late, so are those behind it.  A condition on the distance lets the others
 * of its security level pass, as a condition that an index answers does.
 *
 * The distance is a column of the node's rows: core finds it by the expression
 * wherever the plan's target list or conditions have it.
 */
#include "postgres.h"

#include <math.h>

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/restrictinfo.h"
#include "optimizer/tlist.h"

#include "am/filter/customscan.h"

/* Conditions that cost more operators than this are late. */
#define MOST_OPERATORS		100

/* The time that an operator takes, in nanoseconds. */
#define OPERATOR_NS			15.0

/* custom_private */
enum
{
	PRIVATE_NEARLY,
	PRIVATE_ROWS_NEEDED,
	PRIVATE_SELECTIVITY,
	PRIVATE_QUAL_NS,
	PRIVATE_MATCHES,
	PRIVATE_KEY_SELECTIVITY,
	PRIVATE_NDISTANCES,
	PRIVATE_NBOUNDS,
	PRIVATE_BY_ALL,
	PRIVATE_ANY_ORDER
};

/* Conditions, divided. */
typedef struct Division
{
	List	   *early;
	List	   *late;
	List	   *bounds;			/* what custom_exprs has of bounds */
	List	   *others;			/* RestrictInfos of all but bounds */
	bool		by_all;
} Division;

/* Is the distance in the expression? */
static bool
has_distance(Node *node, void *distance)
{
	if (node == NULL || distance == NULL)
		return false;
	return equal(node, distance) ||
		expression_tree_walker(node, has_distance, distance);
}

static bool
is_early(PlannerInfo *root, Node *condition)
{
	QualCost	cost;

	cost_qual_eval_node(&cost, condition, root);
	return cost.per_tuple <= MOST_OPERATORS * cpu_operator_cost &&
		!contain_volatile_functions(condition) &&
		!contain_subplans(condition);
}

/*
 * Note a condition that bounds the distance, and may: see within.c.  It is
 * late, too.  False: it is none.
 */
static bool
note_bound(RelOptInfo *rel, RestrictInfo *info, Expr *distance,
		   Expr *exchanged, Division *division)
{
	IvfpqBound	bound;

	if (!IvfpqMatchBound(info, distance, exchanged, &bound))
	{
		division->others = lappend(division->others, info);
		return false;
	}
	division->bounds =
		list_concat(division->bounds,
					copyObject(list_make5(info->clause, bound.from, bound.less,
										  bound.query, bound.ordered)));
	division->bounds = lappend(division->bounds,
							   makeBoolConst(bound.with_nan, false));
	division->by_all &= restriction_is_securely_promotable(info, rel);
	return true;
}

/* Divide conditions, in the order in which they are asked. */
static void
divide_conditions(PlannerInfo *root, RelOptInfo *rel, List *clauses,
				  Expr *distance, Division *division)
{
	Expr	   *exchanged = IvfpqExchanged(distance);
	bool		all_late = false;
	Index		late_level = 0;
	ListCell   *lc;

	memset(division, 0, sizeof(*division));
	division->by_all = true;
	foreach(lc, clauses)
	{
		RestrictInfo *info = lfirst_node(RestrictInfo, lc);
		Node	   *condition = (Node *) info->clause;
		bool		on_distance = has_distance(condition, distance) ||
		has_distance(condition, exchanged);

		if (info->pseudoconstant)	/* a Result above asks them */
			continue;
		if (division->late == NIL || info->security_level <= late_level)
			on_distance |= note_bound(rel, info, distance, exchanged,
									  division);
		else
		{
			all_late = true;
			division->others = lappend(division->others, info);
		}
		if (!all_late && !on_distance && is_early(root, condition))
		{
			division->early = lappend(division->early, condition);
			continue;
		}
		late_level = division->late == NIL ? info->security_level :
			Min(late_level, info->security_level);
		all_late = all_late || !on_distance;
		division->late = lappend(division->late, condition);
	}
}

/* Columns of the table in the expressions, added to a target list. */
static List *
add_columns(List *tlist, List *exprs)
{
	return add_to_flat_tlist(tlist,
							 pull_var_clause((Node *) exprs,
											 PVC_RECURSE_AGGREGATES |
											 PVC_RECURSE_WINDOWFUNCS |
											 PVC_RECURSE_PLACEHOLDERS));
}

/* With an exponent, for a plan that is sent to a worker is read again. */
Node *
IvfpqMakeNumber(double number)
{
	return (Node *) makeFloat(psprintf("%.9e", number));
}

/*
 * Of the index's rows those that pass, wherever they are; of one with keys, of
 * the rows whose keys satisfy what is asked of them.
 */
static double
filter_selectivity(PlannerInfo *root, const CustomPath *path,
				   const Division *division)
{
	const IndexPath *index = linitial(path->custom_paths);

	if (division->bounds == NIL && index->indexclauses == NIL)
		return Min(path->path.rows / Max(index->indexinfo->tuples, 1), 1);
	return clauselist_selectivity(root, division->others, 0, JOIN_INNER,
								  NULL);
}

/*
 * Returns the nanoseconds that evaluating the early conditions for a row
 * takes.  cpu_operator_cost may be 0, and costs infinite; then each condition
 * counts as one operator.
 */
static double
qual_ns(PlannerInfo *root, List *early)
{
	QualCost	cost;
	double		operators;

	cost_qual_eval(&cost, early, root);
	operators = cost.per_tuple / cpu_operator_cost;
	if (!isfinite(operators))
		operators = list_length(early);
	return operators * OPERATOR_NS;
}

/* Returns custom_private, in the order of PRIVATE_NEARLY and so on. */
static List *
private_of(PlannerInfo *root, const CustomPath *path,
		   const Division *division, int ndistances)
{
	List	   *private;

	private = list_make5(makeInteger(list_length(division->early)),
						 IvfpqMakeNumber(IvfpqRowsNeeded(root, &path->path)),
						 IvfpqMakeNumber(filter_selectivity(root, path,
															division)),
						 IvfpqMakeNumber(qual_ns(root, division->early)),
						 linitial(path->custom_private));
	private = lappend(private, lsecond(path->custom_private));
	private = lappend(private, makeInteger(ndistances));
	private = lappend(private,
					  makeInteger(list_length(division->bounds) /
								  IVFPQ_BOUND_EXPRS));
	private = lappend(private, makeInteger(division->by_all));
	return lappend(private, makeInteger(path->path.pathkeys == NIL));
}

/*
 * Put the distance behind the columns, also with its sides exchanged, where it
 * is written so; returns how often.
 */
static int
add_distances(CustomScan *scan, Expr *distance, const RelOptInfo *rel)
{
	Expr	   *exchanged = IvfpqExchanged(distance);
	List	   *columns = scan->custom_scan_tlist;
	int			n = list_length(columns);
	int			ndistances = 1;

	columns = lappend(columns, makeTargetEntry(copyObject(distance), n + 1,
											   NULL, false));
	if (has_distance((Node *) scan->scan.plan.targetlist, exchanged) ||
		has_distance((Node *) rel->reltarget->exprs, exchanged) ||
		has_distance((Node *) scan->custom_exprs, exchanged))
	{
		columns = lappend(columns, makeTargetEntry(copyObject(exchanged),
												   n + 2, NULL, false));
		ndistances++;
	}
	scan->custom_scan_tlist = columns;
	return ndistances;
}

/*
 * The children bring rows and order; conditions are asked by the node.  Those
 * that do not depend on rows core has put above each child, and above the
 * node: once is enough.  From a bitmap of which neither a column nor a
 * condition is wanted core may make rows without reading them: so one of it
 * is.
 */
static void
take_conditions(List *plans)
{
	ListCell   *lc;

	foreach(lc, plans)
	{
		Plan	   *plan = lfirst(lc);

		while (IsA(plan, Result))
			plan = outerPlan(plan);
		plan->qual = NIL;
		if (IsA(plan, BitmapHeapScan) && plan->targetlist == NIL)
			plan->targetlist =
				list_make1(makeTargetEntry((Expr *) makeBoolConst(true, false),
										   1, NULL, false));
		lfirst(lc) = plan;
	}
}

/* PlanCustomPath */
Plan *
IvfpqPlanFilter(PlannerInfo *root, RelOptInfo *rel, CustomPath *path,
				List *tlist, List *clauses, List *plans)
{
	CustomScan *scan = makeNode(CustomScan);
	IndexScan  *index;
	Expr	   *distance;
	Division	division;
	List	   *conditions;
	List	   *columns;
	int			ndistances;

	take_conditions(plans);
	index = linitial_node(IndexScan, plans);
	distance = linitial(index->indexorderbyorig);
	divide_conditions(root, rel,
					  IvfpqUnanswered(clauses, linitial(path->custom_paths)),
					  distance, &division);
	conditions = list_concat_copy(division.early, division.late);
	columns = add_columns(NIL, conditions);
	columns = add_columns(columns, tlist);
	columns = add_columns(columns, rel->reltarget->exprs);
	columns = add_columns(columns, index->indexorderbyorig);

	scan->scan.plan.targetlist = tlist;
	scan->scan.scanrelid = rel->relid;
	scan->flags = path->flags;
	scan->custom_plans = plans;
	scan->custom_exprs = list_concat(conditions, division.bounds);
	scan->custom_scan_tlist = columns;
	ndistances = add_distances(scan, distance, rel);
	scan->custom_private = private_of(root, path, &division, ndistances);
	scan->methods = &ivfpq_scan_methods;
	return &scan->scan.plan;
}

static double
number_at(const CustomScan *scan, int which)
{
	return floatVal(list_nth(scan->custom_private, which));
}

/* Sets *plan from custom_private. */
void
IvfpqFilterPlanOf(const CustomScan *scan, IvfpqFilterPlan *plan)
{
	List	   *private = scan->custom_private;

	plan->nearly = intVal(list_nth(private, PRIVATE_NEARLY));
	plan->rows_needed = number_at(scan, PRIVATE_ROWS_NEEDED);
	plan->selectivity = number_at(scan, PRIVATE_SELECTIVITY);
	plan->qual_ns = number_at(scan, PRIVATE_QUAL_NS);
	plan->matches = number_at(scan, PRIVATE_MATCHES);
	plan->key_selectivity = number_at(scan, PRIVATE_KEY_SELECTIVITY);
	plan->ndistances = intVal(list_nth(private, PRIVATE_NDISTANCES));
	plan->nbounds = intVal(list_nth(private, PRIVATE_NBOUNDS));
	plan->by_all = intVal(list_nth(private, PRIVATE_BY_ALL));
	plan->any_order = intVal(list_nth(private, PRIVATE_ANY_ORDER));
}

/* Columns of the node's rows become those of the table's. */
Node *
IvfpqAsTableColumns(Node *node, void *columns)
{
	if (node != NULL && IsA(node, Var) && ((Var *) node)->varno == INDEX_VAR)
	{
		TargetEntry *column = list_nth(columns, ((Var *) node)->varattno - 1);

		return copyObject((Node *) column->expr);
	}
	return expression_tree_mutator(node, IvfpqAsTableColumns, columns);
}

/* Is the plan a node of ours? */
bool
IvfpqIsFilterScan(const Plan *plan)
{
	return IsA(plan, CustomScan) &&
		((const CustomScan *) plan)->methods == &ivfpq_scan_methods;
}

/*
 * Is an expression over the rows of a finished node the distance by which it
 * gives them out?
 */
bool
IvfpqIsFilterDistance(const CustomScan *scan, Node *expr)
{
	List	   *columns = scan->custom_scan_tlist;
	Node	   *computed = IvfpqAsTableColumns(expr, columns);
	IvfpqFilterPlan plan;

	IvfpqFilterPlanOf(scan, &plan);
	for (int i = list_length(columns) - plan.ndistances;
		 i < list_length(columns); i++)
		if (equal(computed, list_nth_node(TargetEntry, columns, i)->expr))
			return true;
	return false;
}
