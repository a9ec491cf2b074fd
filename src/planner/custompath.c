/*
 * custompath.c
 *		Where scans in the order of a distance stand in a plan, and how a scan
 *		with conditions is planned.
 *
 * set_rel_pathlist_hook is called when core has made all paths of a base
 * relation.  Those by indexes of ours go.  In their place come ordered paths
 * where the rule below allows them, and paths for bounds on the distance.
 * Where the table has conditions of its own, the index path is the child of a
 * custom path, so core plans it, opens the index and builds keys that are
 * known only at run time.  The second child, where another index knows which
 * rows match, is a bitmap heap scan.
 *
 * The rule.  An index scan of ours is approximate: rows without a vector are
 * missing, so are those that probing did not reach, and strict order leaves
 * out rows that are found too late.  For the first rows by distance that is
 * what a user asks for.  Below a node that reads all its input it would lose
 * rows of a join, a group or a count.  So an ordered path exists only where
 *
 *	(a) the query level sorts by the distance, first of all, and has no groups,
 *		aggregates or set-returning targets;
 *	(b) the level stops early: a LIMIT, a cursor, or a LIMIT of the level
 *		above; enable_seqscan = off or enable_sort = off stand in for that;
 *	(c) all nodes above it in its level hand on its rows one by one: nested
 *		loops with it outside, MergeAppend, Incremental Sort, Unique, LockRows,
 *		Result, Limit, and WindowAgg over rows up to the current one.
 *
 * The planner keeps what is cheap, wherever that stands.  So our paths are
 * paths of their relation only if it is the only one of its level.  Otherwise
 * they are kept beside the relation's: a parent of partitions or of UNION ALL
 * gets a MergeAppend of its children's, a join a nested loop with such a path
 * outside, and only the join of the whole level gets them by add_path.  GEQO,
 * whose joins come and go, and joins for which the planner does not call its
 * hook do without.
 *
 * A sort, hash or Append above could still take such a path for the cheapest
 * one of a relation and read all of it.  Where there may be one, the path
 * costs more than the cheapest other.  (PostgreSQL 15 may also sort the
 * cheapest path anew for further keys of ORDER BY.  It does so where LIMIT
 * asks for all rows anyway.)
 *
 * Conditions.  Early conditions are evaluated on every candidate, before its
 * vector is touched.  The others wait until a row is popped in its order:
 * volatile ones, because their number of calls can be seen; those with
 * sub-plans and costly ones, which would run for rows that nobody needs; those
 * that name the distance, which is not known before.
 *
 * Their order is that of create_plan, which puts cheap conditions first, and
 * those of a policy or a security barrier before all that may leak.  So once
 * one is late, so are those after it.  A condition on the distance lets the
 * others of its security level pass, as a condition that an index answers
 * does.
 *
 * The distance is a column of the node's rows: core finds it by the expression
 * wherever the plan's target list or conditions have it.
 */
#include "postgres.h"

#include <math.h>

#include "executor/executor.h"
#include "lib/ilist.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"
#include "optimizer/restrictinfo.h"
#include "optimizer/tlist.h"
#include "utils/memutils.h"
#include "utils/spccache.h"

#include "am/common/options.h"
#include "pgcompat.h"
#include "planner/planner.h"

/* Fraction of all rows taken to be within a radius, to estimate the cost. */
#define WITHIN_SELECTIVITY	0.001

/* A factor beyond which two costs are not the same to add_path. */
#define DEARER		1.02

/* Conditions that cost more operators than this are late. */
#define MOST_OPERATORS		100

/* Time that an operator takes, in nanoseconds. */
#define OPERATOR_NS			15.0

/*
 * Ordered paths beside those of a relation: the list of `paths`, as add_path
 * keeps it.  They live as long as the relation, in its level's planner_cxt; so
 * no other relation, of any level, has its address.
 */
typedef struct Beside
{
	dlist_node	node;
	const RelOptInfo *rel;
	RelOptInfo *paths;
	MemoryContextCallback callback;
} Beside;

/* The conditions of a filtered scan, by when they are evaluated. */
typedef struct Division
{
	List	   *early;
	List	   *late;
	List	   *bounds;			/* of lists, as in custom_exprs */
	List	   *others;			/* RestrictInfos of all but bounds */
	bool		ends_on_any_row;	/* see IvfpqRadius */
} Division;

bool		ivfpq_enable_custom_scan = true;

static dlist_head besides = DLIST_STATIC_INIT(besides);
static set_rel_pathlist_hook_type previous_pathlist_hook = NULL;
static set_join_pathlist_hook_type previous_join_hook = NULL;

/*
 * Returns how many rows will be asked of a path, as far as a limit tells; 0 if
 * it does not.  Without the path's order a sort above wants all rows.  A sort
 * for further keys sees from the next row that no more rows have the last
 * one's distance.
 */
static double
needed_rows(const PlannerInfo *root, const Path *path)
{
	int			nkeys = list_length(path->pathkeys);
	int			asked = list_length(root->query_pathkeys);

	if (root->limit_tuples <= 0 || (nkeys == 0 && asked > 0))
		return 0;
	return root->limit_tuples + (nkeys < asked);
}

/*
 * Returns the cheapest of the paths by which a bitmap of the rows that match
 * can be made, or NULL.
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
 * Returns a bitmap heap scan of the rows that match, or NULL.  Where core has
 * kept no path that makes a bitmap, takes those that it has dropped because
 * they seem to bring too many rows: the planner may be wrong about these.
 */
static Path *
bitmap_path(PlannerInfo *root, RelOptInfo *rel)
{
	Path	   *bitmap;

	if (!enable_bitmapscan)
		return NULL;
	bitmap = best_bitmap(rel->pathlist);
	if (bitmap == NULL)
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
		bitmap = best_bitmap(others->pathlist);
	}
	return bitmap == NULL ? NULL :
		(Path *) create_bitmap_heap_path(root, rel, bitmap, NULL, 1.0, 0);
}

/*
 * Sets the path's costs.  The rows that the limit asks for cost what the index
 * takes to go deep enough for that many rows to match, or what reading the
 * table takes, if that is less.  The planner will take the limit's fraction of
 * the path's cost, so the total cost is that cost divided by the fraction.
 * The planner does not know how many rows are within a radius; few are
 * assumed.
 */
static void
cost_path(PlannerInfo *root, RelOptInfo *rel, Path *path,
		  const IndexPath *index)
{
	QualCost	conditions;
	double		seq_page;
	double		rows_needed = needed_rows(root, path);
	double		part = 1;
	double		depth;
	double		recall;
	Cost		startup = index->path.startup_cost;
	Cost		deep;
	Cost		full_pass;
	IvfpqBound	bound;
	ListCell   *lc;

	cost_qual_eval(&conditions, rel->baserestrictinfo, root);
	get_tablespace_page_costs(rel->reltablespace, NULL, &seq_page);
	full_pass = seq_page * rel->pages +
		rel->tuples * (cpu_tuple_cost + conditions.per_tuple) +
		path->rows * 2 * cpu_operator_cost;
	if (rows_needed > 0 && rows_needed < path->rows)
		part = rows_needed / path->rows;
	depth = part * index->indexinfo->tuples;
	foreach(lc, rel->baserestrictinfo)
	{
		if (IvfpqMatchBound(lfirst(lc), linitial(index->indexorderbys),
							&bound))
			depth = Min(depth,
						Max(WITHIN_SELECTIVITY * index->indexinfo->tuples,
							IVFPQ_FIRST_WITHIN));
	}
	recall = path->pathkeys == NIL ? ivfpq_radius_recall : ivfpq_recall;
	deep = IvfpqDepthCost(root, index, recall, depth, conditions.per_tuple);
	path->startup_cost = startup;
	path->total_cost = startup + Min(Max(deep - startup, 0), full_pass) / part;
}

/* Makes the custom path of which an index path is the child. */
static Path *
wrap_path(PlannerInfo *root, RelOptInfo *rel, IndexPath *wrapped,
		  bool is_ordered)
{
	CustomPath *custom = makeNode(CustomPath);
	Path	   *path = &custom->path;
	Path	   *index = &wrapped->path;
	Path	   *bitmap = bitmap_path(root, rel);

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
	custom->methods = &ivfpq_path_methods;
	return path;
}

/* MemoryContextCallback: the level has been planned. */
static void
forget_beside(void *arg)
{
	dlist_delete(&((Beside *) arg)->node);
}

/* Returns the ordered paths beside those of the relation, or NULL. */
static RelOptInfo *
find_beside(const RelOptInfo *rel)
{
	dlist_iter	iter;

	dlist_foreach(iter, &besides)
	{
		Beside	   *beside = dlist_container(Beside, node, iter.cur);

		if (beside->rel == rel)
			return beside->paths;
	}
	return NULL;
}

/*
 * Adds an ordered path beside those of the relation.  A join that a search of
 * join orders only tries, in memory that it frees, gets none.
 */
static void
add_beside(PlannerInfo *root, RelOptInfo *rel, Path *path)
{
	MemoryContext oldcontext;
	RelOptInfo *paths = find_beside(rel);

	if (GetMemoryChunkContext(rel) != root->planner_cxt)
		return;
	oldcontext = MemoryContextSwitchTo(root->planner_cxt);
	if (paths == NULL)
	{
		Beside	   *beside = palloc0(sizeof(Beside));

		paths = makeNode(RelOptInfo);
		beside->rel = rel;
		beside->paths = paths;
		beside->callback.func = forget_beside;
		beside->callback.arg = beside;
		dlist_push_head(&besides, &beside->node);
		MemoryContextRegisterResetCallback(root->planner_cxt,
										   &beside->callback);
	}
	add_path(paths, path);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Returns whether a hash for DISTINCT, or a sort between windows, may read all
 * of a path.
 */
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
 * Makes a path cost more than the cheapest of the relation.  If that one is
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
 * Offers the level an ordered path of a relation: among the relation's paths,
 * if it is all of the level or a child of that, else beside them.  Returns
 * whether among them.  If a relation is the only one of its level, the planner
 * merges its children itself, more than once; for what it reads whole it takes
 * the cheapest of their paths.
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

/*
 * Returns the path of these that provides the order at least cost for the rows
 * needed.
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
 * Gives a parent a MergeAppend of its children's ordered paths, if one of them
 * has such; of a child that has none, the path that orders it otherwise.
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
		const RelOptInfo *beside;
		Path	   *path;

		if (info->parent_relid != rel->relid)
			continue;
		child = root->simple_rel_array[info->child_relid];
		if (IS_DUMMY_REL(child))
			continue;
		beside = find_beside(child);
		path = beside == NULL ? NULL :
			best_of(root, child, beside->pathlist, key);
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

/* Offers a nested loop of an ordered path and an inner one, if that suits. */
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

/*
 * set_join_pathlist_hook: offers nested loops with the ordered paths of a
 * relation outside.
 */
static void
add_joins(PlannerInfo *root, RelOptInfo *joinrel, RelOptInfo *outerrel,
		  RelOptInfo *innerrel, JoinType jointype, JoinPathExtraData *extra)
{
	const RelOptInfo *beside = find_beside(outerrel);
	Path	   *cheapest = innerrel->cheapest_total_path;
	ListCell   *lc;
	ListCell   *inner;

	if (previous_join_hook)
		previous_join_hook(root, joinrel, outerrel, innerrel, jointype, extra);
	if (beside == NULL || IS_OTHER_REL(joinrel) ||
		!bms_is_empty(joinrel->lateral_relids) ||
		(jointype != JOIN_INNER && jointype != JOIN_LEFT &&
		 jointype != JOIN_SEMI && jointype != JOIN_ANTI))
		return;
	/* joins of GEQO's trials are gone before the level is */
	if (IvfpqIsGeqo(root) &&
		!bms_equal(joinrel->relids, IvfpqAllRels(root)))
		return;
	foreach(lc, beside->pathlist)
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

/*
 * Removes from a relation the paths by an index that core has made.  Returns
 * the clauses that core has found for one of them.
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
 * Removes from a relation the paths that provide the order of the first key by
 * an index of another method.  The last path stays, but costs more than ours.
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

/*
 * Replaces the paths by an index of ours that core has made.  The executor
 * runs an ordered path itself, unless there are conditions that it would have
 * to evaluate: then a node of ours is the parent.
 */
static void
change_paths_of(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	List	   *found = remove_paths(rel, info);
	IndexPath  *path = IvfpqOrderedPath(root, info, found);

	if (path != NULL)
	{
		Path	   *ordered = &path->path;

		if (ivfpq_use_index == IVFPQ_USE_ALWAYS)
			remove_rivals(rel, linitial(ordered->pathkeys));
		if (ivfpq_enable_custom_scan &&
			IvfpqUnanswered(info->indrestrictinfo, path) != NIL &&
			!IvfpqWouldLeak(root, info, true))
			ordered = wrap_path(root, rel, path, true);
		if (offer_ordered(root, rel, ordered))
			return;
	}
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
	{
		foreach(lc, rel->indexlist)
		{
			if (IvfpqIsOursToPlan(lfirst(lc)))
				change_paths_of(root, rel, lfirst(lc));
		}
	}
}

/* Returns whether the distance is in the expression. */
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
 * Adds a condition to the bounds if it bounds the distance, and to the others
 * if not.  Returns whether it is a bound.  A bound is a late condition, too.
 */
static bool
note_bound(RelOptInfo *rel, RestrictInfo *info, Expr *distance,
		   Division *division)
{
	IvfpqBound	bound;
	List	   *exprs;

	if (!IvfpqMatchBound(info, distance, &bound))
	{
		division->others = lappend(division->others, info);
		return false;
	}
	exprs = lappend(list_make5(info->clause, bound.from, bound.less,
							   bound.query, bound.ordered),
					makeBoolConst(bound.with_nan, false));
	division->bounds = lappend(division->bounds, copyObject(exprs));
	division->ends_on_any_row &= restriction_is_securely_promotable(info, rel);
	return true;
}

/*
 * Divides conditions, which come in the order in which they are asked.  After
 * a late condition of a lower security level a condition is no bound: README,
 * "Bounds on the Distance".
 */
static void
divide_conditions(PlannerInfo *root, RelOptInfo *rel, List *clauses,
				  Expr *distance, Division *division)
{
	Expr	   *exchanged = IvfpqExchanged(distance);
	bool		all_late = false;
	Index		late_level = 0;
	ListCell   *lc;

	memset(division, 0, sizeof(*division));
	division->ends_on_any_row = true;
	foreach(lc, clauses)
	{
		RestrictInfo *info = lfirst_node(RestrictInfo, lc);
		Node	   *condition = (Node *) info->clause;
		bool		on_distance = has_distance(condition, distance) ||
		has_distance(condition, exchanged);

		if (division->late == NIL || info->security_level <= late_level)
			on_distance |= note_bound(rel, info, distance, division);
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

/*
 * Sets the estimates of a filtered scan.  The selectivity is the fraction of
 * the index's rows that match, bounds aside.  If keys answer conditions, it is
 * the fraction of the rows that satisfy those.
 */
static void
set_goal(PlannerInfo *root, const CustomPath *path, const Division *division,
		 IvfpqFilterGoal *goal)
{
	const IndexPath *index = linitial(path->custom_paths);
	QualCost	early;
	double		operators;

	goal->rows_needed = needed_rows(root, &path->path);
	if (division->bounds == NIL && index->indexclauses == NIL)
		goal->selectivity =
			Min(path->path.rows / Max(index->indexinfo->tuples, 1), 1);
	else
		goal->selectivity = clauselist_selectivity(root, division->others, 0,
												   JOIN_INNER, NULL);
	goal->key_selectivity = index->indexselectivity;

	/*
	 * cpu_operator_cost may be 0, and costs infinite; then each condition
	 * counts as one operator.
	 */
	cost_qual_eval(&early, division->early, root);
	operators = early.per_tuple / cpu_operator_cost;
	if (!isfinite(operators))
		operators = list_length(division->early);
	goal->qual_ns = operators * OPERATOR_NS;

	goal->bitmap_rows = 0;
	if (list_length(path->custom_paths) > 1)
	{
		const BitmapHeapPath *bitmap = lsecond(path->custom_paths);
		Cost		cost;
		Selectivity selectivity;

		cost_bitmap_tree_node(bitmap->bitmapqual, &cost, &selectivity);
		goal->bitmap_rows = selectivity * path->path.parent->tuples;
	}
}

/*
 * Takes the children's conditions away: the children provide rows and order,
 * and the node evaluates conditions.  Those that do not depend on rows core
 * has put above each child, and above the node: once is enough.  From a bitmap
 * of which neither a column nor a condition is needed core may make rows
 * without reading them: so it gets a column.
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
	Expr	   *exchanged;
	Division	division;
	IvfpqFilterPlan plan;
	List	   *exprs;			/* all that is computed of the table's rows */
	List	   *columns;
	int			ncolumns;		/* of the table */

	take_conditions(plans);
	index = linitial_node(IndexScan, plans);
	distance = linitial(index->indexorderbyorig);
	exchanged = IvfpqExchanged(distance);
	divide_conditions(root, rel,
					  IvfpqUnanswered(clauses, linitial(path->custom_paths)),
					  distance, &division);
	scan->scan.plan.targetlist = tlist;
	scan->scan.scanrelid = rel->relid;
	scan->flags = path->flags;
	scan->custom_plans = plans;
	scan->custom_exprs = list_make3(division.early, division.late,
									division.bounds);

	exprs = list_make4(scan->custom_exprs, tlist, rel->reltarget->exprs,
					   index->indexorderbyorig);
	columns = add_to_flat_tlist(NIL, pull_var_clause((Node *) exprs,
													 PVC_RECURSE_AGGREGATES |
													 PVC_RECURSE_WINDOWFUNCS |
													 PVC_RECURSE_PLACEHOLDERS));
	ncolumns = list_length(columns);
	columns = add_to_flat_tlist(columns, list_make1(distance));
	if (has_distance((Node *) exprs, exchanged))
		columns = add_to_flat_tlist(columns, list_make1(exchanged));
	scan->custom_scan_tlist = columns;

	set_goal(root, path, &division, &plan.goal);
	plan.ndistances = list_length(columns) - ncolumns;
	plan.ends_on_any_row = division.ends_on_any_row;
	plan.any_order = path->path.pathkeys == NIL;
	scan->custom_private = IvfpqFilterPrivate(&plan);
	scan->methods = &ivfpq_scan_methods;
	return &scan->scan.plan;
}

const CustomPathMethods ivfpq_path_methods = {
	.CustomName = IVFPQ_CUSTOM_NAME,
	.PlanCustomPath = plan_filter,
	.ReparameterizeCustomPathByChild = NULL
};

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
