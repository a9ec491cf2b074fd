/*
 * custompath.c
 *		The hooks: paths of ours in the place of core's.
 *
 * set_rel_pathlist_hook is called when core has made all paths of a base
 * relation.  Those by indexes of ours go; in their place come ordered paths
 * where custompath.c wants them, and paths for bounds on the distance.  Where
 * the table has conditions of its own the index path is the child of a custom
 * path, so core plans it, opens the index and builds keys that are known only
 * at run time.  The second child, where another index knows which rows match,
 * is a bitmap heap scan.
 */
#include "postgres.h"

#include <math.h>

#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/appendinfo.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"
#include "optimizer/restrictinfo.h"
#include "optimizer/tlist.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/spccache.h"

#include "am/common/options.h"
#include "am/scan/scan.h"
#include "planner/planner.h"
#include "pgcompat.h"

static Node *make_number(double number);
static Plan *plan_filter(PlannerInfo *root, RelOptInfo *rel,
							 CustomPath *path, List *tlist, List *clauses,
							 List *plans);
static bool offer_ordered(PlannerInfo *root, RelOptInfo *rel, Path *path);
static void append_ordered(PlannerInfo *root, RelOptInfo *rel,
							   PathKey *key);
static void join_ordered(PlannerInfo *root, RelOptInfo *joinrel,
							 RelOptInfo *outerrel, RelOptInfo *innerrel,
							 JoinType jointype, JoinPathExtraData *extra);

/* Of all rows those likely to be within a radius, for what that costs. */
#define WITHIN_SELECTIVITY	0.001

bool		ivfpq_enable_custom_scan = true;
double		ivfpq_radius_recall = 1;

static set_rel_pathlist_hook_type previous_pathlist_hook = NULL;
static set_join_pathlist_hook_type previous_join_hook = NULL;

const CustomPathMethods ivfpq_path_methods = {
	.CustomName = IVFPQ_CUSTOM_NAME,
	.PlanCustomPath = plan_filter,
	.ReparameterizeCustomPathByChild = NULL
};

/* Is there a condition that rows differ in? */
static bool
has_conditions(const List *clauses)
{
	ListCell   *lc;

	foreach(lc, clauses)
	{
		if (!lfirst_node(RestrictInfo, lc)->pseudoconstant)
			return true;
	}
	return false;
}

/*
 * A path by which a bitmap of the rows that match can be made: the cheapest of
 * those that there are, or NULL.
 */
static Path *
best_bitmap(List *paths)
{
	Path	   *best = NULL;
	Cost		least = 0;
	ListCell   *lc;

	foreach(lc, paths)
	{
		Path	   *path = lfirst(lc);
		IndexPath  *index = (IndexPath *) path;
		Cost		cost;
		Selectivity selectivity;

		if (path->param_info != NULL)
			continue;
		if (IsA(path, BitmapHeapPath))
			path = ((BitmapHeapPath *) path)->bitmapqual;
		else if (!IsA(path, IndexPath) || index->indexclauses == NIL ||
				 index->indexorderbys != NIL ||
				 !index->indexinfo->amhasgetbitmap)
			continue;
		cost_bitmap_tree_node(path, &cost, &selectivity);
		if (best != NULL && cost >= least)
			continue;
		best = path;
		least = cost;
	}
	return best;
}

/*
 * The other indexes' paths, also those that core has dropped because they seem
 * to bring too many rows: the planner may be wrong about these.
 */
static List *
other_paths(PlannerInfo *root, RelOptInfo *rel)
{
	RelOptInfo *others = makeNode(RelOptInfo);
	ListCell   *lc;

	memcpy(others, rel, sizeof(*others));
	others->pathlist = others->partial_pathlist = NIL;
	others->indexlist = NIL;
	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst(lc);

		if (info->amhasgetbitmap && !info->hypothetical)
			others->indexlist = lappend(others->indexlist, info);
	}
	if (others->indexlist != NIL)
		create_index_paths(root, others);
	return others->pathlist;
}

/* A bitmap heap scan of the rows that match, or NULL; *matches: how many. */
static Path *
bitmap_path(PlannerInfo *root, RelOptInfo *rel, double *matches)
{
	Path	   *bitmap;
	Cost		cost;
	Selectivity selectivity;

	*matches = 0;
	if (!enable_bitmapscan)
		return NULL;
	bitmap = best_bitmap(rel->pathlist);
	if (bitmap == NULL)
		bitmap = best_bitmap(other_paths(root, rel));
	if (bitmap == NULL)
		return NULL;
	cost_bitmap_tree_node(bitmap, &cost, &selectivity);
	*matches = selectivity * rel->tuples;
	return (Path *) create_bitmap_heap_path(root, rel, bitmap, NULL, 1.0, 0);
}

/*
 * The rows that the limit asks for cost what the index takes to go so deep
 * that as many pass, or what reading the table takes, if that is less.  The
 * planner takes the limit's share of a path's cost; so all rows cost as many
 * times more as there are more of them.  Of rows within a radius the planner
 * knows nothing: few.
 */
static void
cost_path(PlannerInfo *root, RelOptInfo *rel, Path *path,
		  const IndexPath *index)
{
	QualCost	conditions;
	double		seq_page;
	double		rows_needed = IvfpqRowsNeeded(root, path);
	double		part = 1;
	double		depth;
	double		recall;
	Cost		startup = index->path.startup_cost;
	Cost		deep;
	Cost		full_pass;

	cost_qual_eval(&conditions, rel->baserestrictinfo, root);
	get_tablespace_page_costs(rel->reltablespace, NULL, &seq_page);
	full_pass = seq_page * rel->pages +
		rel->tuples * (cpu_tuple_cost + conditions.per_tuple) +
		path->rows * 2 * cpu_operator_cost;
	if (rows_needed > 0 && rows_needed < path->rows)
		part = rows_needed / path->rows;
	depth = part * index->indexinfo->tuples;
	if (IvfpqIsBounded(rel, linitial(index->indexorderbys)))
		depth = Min(depth, Max(WITHIN_SELECTIVITY * index->indexinfo->tuples,
							   IVFPQ_FIRST_WITHIN));
	recall = path->pathkeys == NIL ? ivfpq_radius_recall : ivfpq_recall;
	deep = IvfpqDepthCost(root, index, recall, depth, conditions.per_tuple);
	path->startup_cost = startup;
	path->total_cost = startup + Min(Max(deep - startup, 0), full_pass) / part;
}

/* The custom path of which an index path is the child. */
static Path *
wrap_path(PlannerInfo *root, RelOptInfo *rel, IndexPath *wrapped,
		  bool is_ordered)
{
	CustomPath *custom = makeNode(CustomPath);
	Path	   *path = &custom->path;
	Path	   *index = &wrapped->path;
	double		matches;
	Path	   *bitmap = bitmap_path(root, rel, &matches);

	path->pathtype = T_CustomScan;
	path->parent = rel;
	path->pathtarget = index->pathtarget;
	path->parallel_safe = index->parallel_safe;
	path->rows = index->rows;
	path->pathkeys = is_ordered ? index->pathkeys : NIL;
	IvfpqCopyDisabled(path, index);
	cost_path(root, rel, path, wrapped);
	custom->flags = CUSTOMPATH_SUPPORT_PROJECTION;
	custom->custom_paths = list_make1(index);
	if (bitmap != NULL)
		custom->custom_paths = lappend(custom->custom_paths, bitmap);
	custom->custom_private = list_make2(make_number(matches),
										make_number(wrapped->indexselectivity));
	custom->methods = &ivfpq_path_methods;
	return path;
}

/*
 * An ordered path that the executor runs, or one of which a node of ours is
 * the parent, as there are conditions that the executor would have to ask.
 */
static Path *
wrap_if_filtered(PlannerInfo *root, RelOptInfo *rel, IndexPath *path)
{
	IndexOptInfo *info = path->indexinfo;

	if (!ivfpq_enable_custom_scan ||
		!has_conditions(IvfpqUnanswered(info->indrestrictinfo, path)) ||
		IvfpqWouldLeak(root, info, true))
		return (Path *) path;
	return wrap_path(root, rel, path, true);
}

/*
 * Take the paths by an index that core has made from the relation's; returns
 * the clauses that it has found for one of them.
 */
static List *
remove_paths(RelOptInfo *rel, const IndexOptInfo *info)
{
	List	   *found = NIL;
	ListCell   *lc;

	foreach(lc, rel->pathlist)
	{
		IndexPath  *path = lfirst(lc);

		if (!IsA(path, IndexPath) || path->indexinfo != info)
			continue;
		if (path->path.param_info == NULL)
			found = path->indexclauses;
		rel->pathlist = foreach_delete_current(rel->pathlist, lc);
	}
	return found;
}

/*
 * Take the paths that bring the order of the first key by an index of another
 * method from the relation's.  The last path stays, and costs more than ours.
 */
static void
remove_rivals(RelOptInfo *rel, const PathKey *key)
{
	ListCell   *lc;

	foreach(lc, rel->pathlist)
	{
		IndexPath  *path = lfirst(lc);

		if (IsA(path, IndexPath) && path->indexorderbys != NIL &&
			!IvfpqIsOursToPlan(path->indexinfo) &&
			path->path.pathkeys != NIL &&
			linitial(path->path.pathkeys) == key)
		{
			if (list_length(rel->pathlist) > 1)
			{
				rel->pathlist = foreach_delete_current(rel->pathlist, lc);
				continue;
			}
			path->path.startup_cost += disable_cost;
			path->path.total_cost += disable_cost;
			IvfpqDisablePath(&path->path);
		}
	}
}

/* Paths by an index of ours, in the place of core's. */
static void
change_paths_of(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	List	   *found = remove_paths(rel, info);
	IndexPath  *path = IvfpqOrderedPath(root, info, found);

	if (path != NULL && ivfpq_use_index == IVFPQ_USE_ALWAYS)
		remove_rivals(rel, linitial(path->path.pathkeys));
	if (path != NULL &&
		offer_ordered(root, rel, wrap_if_filtered(root, rel, path)))
		return;
	path = ivfpq_enable_custom_scan ?
		IvfpqRadiusPath(root, rel, info, found) : NULL;
	if (path != NULL)
		add_path(rel, wrap_path(root, rel, path, false));
}

/* set_rel_pathlist_hook */
static void
change_paths(PlannerInfo *root, RelOptInfo *rel, Index rti,
			 RangeTblEntry *rte)
{
	PathKey    *key;
	ListCell   *lc;

	if (previous_pathlist_hook)
		previous_pathlist_hook(root, rel, rti, rte);
	if (rte->inh)
	{
		key = IvfpqRequestedOrder(root);
		if (key != NULL && !IS_DUMMY_REL(rel) &&
			bms_is_empty(rel->lateral_relids))
			append_ordered(root, rel, key);
	}
	else if (rte->rtekind == RTE_RELATION)
		foreach(lc, rel->indexlist)
	{
		if (IvfpqIsOursToPlan(lfirst(lc)))
			change_paths_of(root, rel, lfirst(lc));
	}
}

/* set_join_pathlist_hook */
static void
add_joins(PlannerInfo *root, RelOptInfo *joinrel, RelOptInfo *outerrel,
		  RelOptInfo *innerrel, JoinType jointype, JoinPathExtraData *extra)
{
	if (previous_join_hook)
		previous_join_hook(root, joinrel, outerrel, innerrel, jointype, extra);
	join_ordered(root, joinrel, outerrel, innerrel, jointype, extra);
}

/* Call once a process. */
void
IvfpqInitFilter(void)
{
	RegisterCustomScanMethods(&ivfpq_scan_methods);
	IvfpqInitExplain();
	previous_pathlist_hook = set_rel_pathlist_hook;
	set_rel_pathlist_hook = change_paths;
	previous_join_hook = set_join_pathlist_hook;
	set_join_pathlist_hook = add_joins;
}

/* ----
 * The plan of a filtered scan: which conditions are asked when, and the
 * columns of its rows.
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
 * Note a condition that bounds the distance, and may: see clauses.c.  It is
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
static Node *
make_number(double number)
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
						 make_number(IvfpqRowsNeeded(root, &path->path)),
						 make_number(filter_selectivity(root, path,
															division)),
						 make_number(qual_ns(root, division->early)),
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
static Plan *
plan_filter(PlannerInfo *root, RelOptInfo *rel, CustomPath *path,
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

/* ----
 * Where a scan in the order of a distance may stand in a plan.
 *
 * An index scan of ours is approximate: rows without a vector are missing, so
 * are those that probing did not reach, and strict order leaves out rows that
 * are found too late.  For the first rows by distance that is what a user asks
 * for; below a node that reads all its input it would lose rows of a join, a
 * group or a count.  So an ordered path exists only where
 *
 *	(a) the query level sorts by the distance, first of all, and has no groups,
 * aggregates or set-returning targets;
 *	(b) the level stops early: a LIMIT, a cursor, or a LIMIT of the level
 * above;
 * enable_seqscan = off or enable_sort = off stand in for that;
 *	(c) all nodes above it in its level hand on its rows one by one: nested
 * loops with it outside, MergeAppend, Incremental Sort, Unique, LockRows,
 * Result, Limit, and WindowAgg over rows up to the current one.
 *
 * The planner keeps what is cheap, wherever that stands.  So our paths are no
 * paths of their relation but where it is the only one of its level: they are
 * kept beside, a parent of partitions or of UNION ALL gets a MergeAppend of
 * its children's, a join a nested loop with such a path outside, and only the
 * join of the whole level gets them by add_path.  GEQO, whose joins come and
 * go, and joins for which the planner does not call its hook do without.
 *
 * A sort, hash or Append above could still take such a path for the cheapest
 * one of a relation and read all of it.  Where there may be one, the path
 * costs more than the cheapest other.  (PostgreSQL 15 may also sort the
 * cheapest path anew for further keys of ORDER BY.  It does where LIMIT asks
 * for all rows anyway.)
 */

/* More than add_path takes for the same. */
#define DEARER		1.02

/* ---- (a), (b) and what (c) says of windows */

/*
 * Is the level core's rewrite of min(distance), as build_minmax_path() makes
 * it?  An aggregate is exact.
 */
static bool
is_minmax(const PlannerInfo *root)
{
	const PlannerInfo *parent = root->parent_root;
	const TargetEntry *target;

	if (parent == NULL || parent->simple_rel_array != NULL ||
		!parent->parse->hasAggs || list_length(root->parse->targetList) != 1)
		return false;
	target = linitial_node(TargetEntry, root->parse->targetList);
	return target->resname != NULL &&
		strcmp(target->resname, "agg_target") == 0;
}

/* Has the level a LIMIT?  OFFSET alone leaves the rest to be read. */
static bool
has_limit(const Query *query)
{
	const Node *count = query->limitCount;

	return count != NULL &&
		!(IsA(count, Const) && ((const Const *) count)->constisnull);
}

/*
 * (b).  A sub-select of an expression is planned before the relations of its
 * level: of IN (SELECT ...) the planner expects half of the rows, which is no
 * reason to leave out others.  UNION without ALL reads all, and so may a
 * window of the level above.
 */
static bool
stops_early(const PlannerInfo *root)
{
	const PlannerInfo *parent = root->parent_root;

	return root->tuple_fraction > 0 &&
		(parent == NULL || has_limit(root->parse) ||
		 (parent->simple_rel_array != NULL &&
		  parent->parse->setOperations == NULL &&
		  !parent->parse->hasWindowFuncs && stops_early(parent)));
}

/*
 * Does a window function need no more rows than those up to the current one?
 */
static bool
is_running(Oid function)
{
	switch (function)
	{
		case F_ROW_NUMBER:
		case F_RANK_:
		case F_DENSE_RANK_:
		case F_LAG_ANYELEMENT:
		case F_LAG_ANYELEMENT_INT4:
		case F_LAG_ANYCOMPATIBLE_INT4_ANYCOMPATIBLE:
		case F_LEAD_ANYELEMENT:
		case F_LEAD_ANYELEMENT_INT4:
		case F_LEAD_ANYCOMPATIBLE_INT4_ANYCOMPATIBLE:
		case F_FIRST_VALUE:
		case F_LAST_VALUE:
		case F_NTH_VALUE:
			return true;
		default:
			return false;
	}
}

static bool
has_reading_function(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, WindowFunc) && !((WindowFunc *) node)->winagg &&
		!is_running(((WindowFunc *) node)->winfnoid))
		return true;
	return expression_tree_walker(node, has_reading_function, context);
}

/* Do all windows run along with the order of the level's first key? */
static bool
windows_run_along(const Query *query)
{
	const		SortGroupClause *first = linitial(query->sortClause);
	ListCell   *lc;

	if (!query->hasWindowFuncs)
		return true;
	foreach(lc, query->windowClause)
	{
		WindowClause *window = lfirst_node(WindowClause, lc);
		int			frame = window->frameOptions;

		if (window->partitionClause != NIL || window->orderClause == NIL ||
			!equal(linitial(window->orderClause), first) ||
			!(frame & FRAMEOPTION_START_UNBOUNDED_PRECEDING) ||
			!(frame & FRAMEOPTION_END_CURRENT_ROW) ||
			(frame & FRAMEOPTION_EXCLUSION))
			return false;
	}
	return !has_reading_function((Node *) query->targetList, NULL);
}

/*
 * The key that an ordered path of the level has to bring, or NULL: there is to
 * be none.
 */
PathKey *
IvfpqRequestedOrder(const PlannerInfo *root)
{
	const Query *query = root->parse;

	if (root->sort_pathkeys == NIL || root->query_pathkeys == NIL ||
		linitial(root->sort_pathkeys) != linitial(root->query_pathkeys) ||
		query->groupClause != NIL || query->groupingSets != NIL ||
		query->hasAggs || root->hasHavingQual || query->hasTargetSRFs ||
		is_minmax(root) || !windows_run_along(query) ||
		(enable_seqscan && enable_sort && !stops_early(root)) ||
		(ivfpq_order == IVFPQ_ORDER_RELAXED && IvfpqReliesOnOrder(root)) ||
		(list_length(root->query_pathkeys) > 1 && !enable_incremental_sort))
		return NULL;
	return linitial(root->sort_pathkeys);
}

/* ---- paths beside those of their relations */

/* Ordered paths of a relation: the list of `paths`, as add_path keeps it. */
typedef struct Beside
{
	RelOptInfo *rel;
	RelOptInfo *paths;
} Beside;

/* Of a query level, as long as what the planner makes of it is there. */
typedef struct LevelPaths
{
	PlannerInfo *root;
	List	   *beside;			/* of Beside */
	MemoryContextCallback callback;
	struct LevelPaths *next;
} LevelPaths;

static LevelPaths *levels = NULL;

static void
forget_level(void *arg)
{
	for (LevelPaths **level = &levels; *level != NULL;
		 level = &(*level)->next)
		if (*level == arg)
		{
			*level = (*level)->next;
			return;
		}
}

static LevelPaths *
find_level(PlannerInfo *root)
{
	for (LevelPaths *level = levels; level != NULL; level = level->next)
		if (level->root == root)
			return level;
	return NULL;
}

/* The relation's entry of a level, which may be NULL; NULL: it has none. */
static Beside *
find_beside(const LevelPaths *level, const RelOptInfo *rel)
{
	ListCell   *lc;

	if (level != NULL)
		foreach(lc, level->beside)
	{
		Beside	   *beside = lfirst(lc);

		if (beside->rel == rel)
			return beside;
	}
	return NULL;
}

/* The ordered paths beside those of the relation. */
static List *
paths_beside(PlannerInfo *root, const RelOptInfo *rel)
{
	const Beside *beside = find_beside(find_level(root), rel);

	return beside == NULL ? NIL : beside->paths->pathlist;
}

static void
add_beside(PlannerInfo *root, RelOptInfo *rel, Path *path)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(root->planner_cxt);
	LevelPaths *level = find_level(root);
	Beside	   *beside = find_beside(level, rel);

	if (level == NULL)
	{
		level = palloc0(sizeof(LevelPaths));
		level->root = root;
		level->callback.func = forget_level;
		level->callback.arg = level;
		level->next = levels;
		MemoryContextRegisterResetCallback(root->planner_cxt,
										   &level->callback);
		levels = level;
	}
	if (beside == NULL)
	{
		beside = palloc(sizeof(Beside));
		beside->rel = rel;
		beside->paths = makeNode(RelOptInfo);
		level->beside = lappend(level->beside, beside);
	}
	add_path(beside->paths, path);
	MemoryContextSwitchTo(oldcontext);
}

/* May a hash for DISTINCT, or a sort between windows, read all of a path? */
static bool
may_be_read_up(const PlannerInfo *root)
{
	const Query *query = root->parse;
	ListCell   *lc;

	if (query->distinctClause != NIL && !query->hasDistinctOn)
		return true;
	if (!query->hasWindowFuncs)
		return false;
	foreach(lc, query->windowClause)
	{
		if (list_length(lfirst_node(WindowClause, lc)->orderClause) > 1)
			return true;
	}
	return list_length(root->sort_pathkeys) > 1 ||
		query->distinctClause != NIL;
}

/*
 * Let a path cost more than the cheapest of the relation.  Where that is
 * disabled (enable_seqscan = off), so is the path, but not one that is merged
 * only: PostgreSQL 18 counts no disabled node below an Append of one child, so
 * the path would lose to a sort of the cheapest.
 */
static void
make_dearer(const PlannerInfo *root, const RelOptInfo *rel, Path *path)
{
	Path	   *cheapest = NULL;
	ListCell   *lc;

	foreach(lc, rel->pathlist)
	{
		Path	   *other = lfirst(lc);

		if (other->param_info == NULL &&
			(cheapest == NULL ||
			 compare_path_costs(other, cheapest, TOTAL_COST) < 0))
			cheapest = other;
	}
	if (cheapest == NULL)
		return;
	path->total_cost = Max(path->total_cost, DEARER * cheapest->total_cost);
	if (may_be_read_up(root))
		IvfpqCopyDisabled(path, cheapest);
}

/*
 * Let the level have an ordered path of a relation: among its paths, if this
 * is all of the level or a child of that, else beside them.  Returns whether
 * among them.  Of the only relation of a level the planner merges children
 * itself, more than once; what it reads whole, it takes from the cheapest of
 * their paths.
 */
static bool
offer_ordered(PlannerInfo *root, RelOptInfo *rel, Path *path)
{
	if (!bms_equal(IS_OTHER_REL(rel) ? rel->top_parent_relids : rel->relids,
				   IvfpqAllRels(root)))
	{
		add_beside(root, rel, path);
		return false;
	}
	if (IS_OTHER_REL(rel) || may_be_read_up(root))
		make_dearer(root, rel, path);
	add_path(rel, path);
	return true;
}

/* ---- parents, and joins */

/*
 * The path of these that brings the order at least cost for the rows wanted.
 */
static Path *
best_of(const PlannerInfo *root, const RelOptInfo *rel, List *paths,
		PathKey *key)
{
	double		fraction = root->tuple_fraction;

	if (fraction >= 1)
		fraction = Min(fraction / Max(rel->rows, 1), 1);
	return get_cheapest_fractional_path_for_pathkeys(paths, list_make1(key),
													 NULL, fraction);
}

/*
 * A parent gets a MergeAppend of its children's ordered paths, if one of them
 * has such; of a child that has none, of what orders it otherwise.
 */
static void
append_ordered(PlannerInfo *root, RelOptInfo *rel, PathKey *key)
{
	List	   *paths = NIL;
	bool		has_ours = false;
	ListCell   *lc;

	foreach(lc, root->append_rel_list)
	{
		AppendRelInfo *info = lfirst_node(AppendRelInfo, lc);
		RelOptInfo *child;
		Path	   *path;

		if (info->parent_relid != rel->relid)
			continue;
		child = root->simple_rel_array[info->child_relid];
		if (IS_DUMMY_REL(child))
			continue;
		path = best_of(root, child, paths_beside(root, child), key);
		if (path != NULL)
			has_ours = true;
		else
			path = best_of(root, child, child->pathlist, key);
		if (path == NULL)
			path = child->cheapest_total_path;
		if (path->param_info != NULL)
			return;
		paths = lappend(paths, path);
	}
	if (has_ours)
		(void) offer_ordered(root, rel,
								 IvfpqMergeAppendPath(root, rel, paths,
													  list_make1(key)));
}

/* A nested loop with an ordered path outside, if this inner one suits. */
static void
offer_loop(PlannerInfo *root, RelOptInfo *joinrel, Path *outer, Path *inner,
		   JoinType jointype, JoinPathExtraData *extra)
{
	JoinCostWorkspace workspace;

	if (!bms_is_subset(PATH_REQ_OUTER(inner), outer->parent->relids))
		return;
	IvfpqCostNestLoop(root, &workspace, jointype, outer, inner, extra);
	(void) offer_ordered(root, joinrel, (Path *)
							 create_nestloop_path(root, joinrel, jointype,
												  &workspace, extra, outer,
												  inner, extra->restrictlist,
												  outer->pathkeys, NULL));
}

/* Nested loops with the ordered paths of a relation outside. */
static void
join_ordered(PlannerInfo *root, RelOptInfo *joinrel, RelOptInfo *outerrel,
				 RelOptInfo *innerrel, JoinType jointype,
				 JoinPathExtraData *extra)
{
	List	   *outer_paths = paths_beside(root, outerrel);
	Path	   *cheapest = innerrel->cheapest_total_path;
	ListCell   *lc;
	ListCell   *inner;

	if (outer_paths == NIL || IS_OTHER_REL(joinrel) ||
		!bms_is_empty(joinrel->lateral_relids) ||
		(jointype != JOIN_INNER && jointype != JOIN_LEFT &&
		 jointype != JOIN_SEMI && jointype != JOIN_ANTI))
		return;
	/* joins of GEQO's trials are gone before the level is */
	if (IvfpqIsGeqo(root) &&
		!bms_equal(joinrel->relids, IvfpqAllRels(root)))
		return;
	foreach(lc, outer_paths)
	{
		foreach(inner, innerrel->cheapest_parameterized_paths)
			offer_loop(root, joinrel, lfirst(lc), lfirst(inner), jointype,
					   extra);
		if (IvfpqMaterializes(extra) && cheapest->param_info == NULL &&
			!ExecMaterializesOutput(cheapest->pathtype))
			offer_loop(root, joinrel, lfirst(lc),
					   IvfpqMaterialPath(innerrel, cheapest), jointype,
					   extra);
	}
}
