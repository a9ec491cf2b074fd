/*
 * custompath.c
 *		Decides where a plan may have scans in the order of a distance, and
 *		plans such scans together with conditions.
 *
 * Core calls set_rel_pathlist_hook when it has made all paths of a base
 * relation.  We remove the paths that core made for our indexes.  In their
 * place we add ordered paths, where the rule below allows them, and paths for
 * bounds on the distance.  If the table has conditions of its own, the index
 * path becomes the child of a custom path, so core plans the child, opens the
 * index and builds keys that are known only at run time.  If another index can
 * find the rows that match, a bitmap heap scan is the second child.
 *
 * The rule.  An index scan of ours is approximate: it misses rows without a
 * vector, rows that probing did not reach and, in strict order, rows that are
 * found too late.  Users who ask for the first rows by distance accept that.
 * But below a node that reads all its input, for a join, a group or a count,
 * the missing rows would make the result wrong.  So an ordered path exists
 * only where
 *
 *	(a) the first sort key of the query level is the distance, and the level
 *		has no groups, aggregates or set-returning targets;
 *	(b) the level stops early, because of a LIMIT, a cursor, or a LIMIT of the
 *		level above, or enable_seqscan or enable_sort is off;
 *	(c) all nodes above the path in its level pass on its rows one by one:
 *		nested loops with the path as the outer path, MergeAppend, Incremental
 *		Sort, Unique, LockRows, Result, Limit, and WindowAgg with a frame that
 *		ends at the current row.
 *
 * The planner uses the cheapest path of a relation anywhere in the plan.  So
 * an ordered path is added to the paths of its relation only if the relation
 * is the only one of its level.  Otherwise ordered paths are kept beside the
 * paths of the relation.  A parent of partitions or of UNION ALL gets a
 * MergeAppend of the ordered paths of its children.  A join gets a nested loop
 * with an ordered path as the outer path.  Only the join of the whole level
 * gets these paths by add_path.  Two kinds of joins do not get ordered paths:
 * joins that GEQO only tries, because GEQO frees them, and joins for which the
 * planner does not call set_join_pathlist_hook.
 *
 * A sort, hash or Append above could still take an ordered path as the
 * cheapest path of a relation, and read all its rows.  If there may be such a
 * node, the ordered path is made to cost more than the cheapest other path.
 * (PostgreSQL 15 may also sort the cheapest path again for further keys of
 * ORDER BY.  It does so only where LIMIT asks for all rows anyway.)
 *
 * Conditions.  Early conditions are evaluated on every candidate, before its
 * vector is read.  Late conditions are evaluated when a row leaves the queue
 * in its order.  Volatile conditions are late, because users can see how often
 * they are called.  Conditions with sub-plans, and costly conditions, are
 * late, because they would run for rows that nobody needs.  Conditions that
 * use the distance are late, because the distance is not known before.
 *
 * Conditions are evaluated in the order of create_plan, which puts cheap
 * conditions first, and conditions of a policy or a security barrier before
 * all conditions that may leak.  So once a condition is late, all conditions
 * after it are late, too.  A condition on the distance is an exception:
 * conditions of the same security level that come after it may be early, as if
 * the condition on the distance were an index condition.
 *
 * The distance is a column of the node's rows.  Core replaces the distance by
 * this column wherever the plan's target list or conditions contain it.
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

/* Fraction of all rows that is assumed to be within a radius. */
#define WITHIN_SELECTIVITY	0.001

/* Factor that makes a path cost more; add_path ignores 1 % or less. */
#define DEARER		1.02

/* Conditions that cost more than this many operators are late. */
#define MOST_OPERATORS		100

/* Time that an operator takes, in nanoseconds. */
#define OPERATOR_NS			15.0

/*
 * The ordered paths that are kept beside the paths of a relation.  `paths` is
 * a RelOptInfo so that add_path can keep the list.  An entry lives as long as
 * its relation, in planner_cxt of the relation's level, so `rel` identifies
 * the relation.
 */
typedef struct Beside
{
	dlist_node	node;
	const RelOptInfo *rel;
	RelOptInfo *paths;
	MemoryContextCallback callback;
} Beside;

/* The conditions of a filtered scan, by the time of their evaluation. */
typedef struct Division
{
	List	   *early;
	List	   *late;
	List	   *bounds;			/* each is a list, as in custom_exprs */
	List	   *others;			/* RestrictInfos of the conditions that are
								 * not bounds */
	bool		ends_on_any_row;	/* see IvfpqRadius */
} Division;

bool		ivfpq_enable_custom_scan = true;

static dlist_head besides = DLIST_STATIC_INIT(besides);
static set_rel_pathlist_hook_type previous_pathlist_hook = NULL;
static set_join_pathlist_hook_type previous_join_hook = NULL;

/*
 * Returns the number of rows that a limit will need from a path, or 0 if there
 * is no limit.  If the path does not provide the query's order, a sort above
 * needs all rows, so the result is 0, too.  If the path provides only the
 * first key of the order, one row is added, because a sort by the further keys
 * must read the next row to know whether it has the same distance.
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

/* Returns the cheapest path that makes a bitmap of matching rows, or NULL. */
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
 * Makes a bitmap heap scan of the rows that match.  Returns NULL if no path
 * can make a bitmap.  If core has not kept such a path, also considers paths
 * that core dropped because they were estimated to return too many rows, since
 * the estimate may be wrong.
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
 * Sets the path's costs.  The scan searches until enough rows match for the
 * limit, or reads the table if that costs less.  The planner multiplies the
 * cost beyond start-up by the fraction of the rows that the limit asks for.
 * So the cost set here is the cost of finding these rows, divided by that
 * fraction.  The planner does not know how many rows are within a radius, so
 * WITHIN_SELECTIVITY is assumed.
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

/* Makes a custom path that has the given index path as its child. */
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

/* Removes an entry of `besides` when the memory of its level is freed. */
static void
forget_beside(void *arg)
{
	dlist_delete(&((Beside *) arg)->node);
}

/* Returns the ordered paths kept beside the relation's paths, or NULL. */
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
 * Keeps an ordered path beside the paths of the relation.  Does nothing for a
 * join that is not allocated in planner_cxt, because GEQO only tries such a
 * join and frees it.
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
 * Returns whether a hash for DISTINCT, or a sort for window functions, may be
 * above the path and read all its rows.
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
 * Makes a path cost more than the cheapest path of the relation.
 *
 * If the cheapest path is disabled (enable_seqscan = off), also disables the
 * path, unless only a MergeAppend may read it.  PostgreSQL 18 does not count
 * disabled nodes below an Append of one child, so a path that is both disabled
 * and merged would lose to a sort of the cheapest path.
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
 * Offers an ordered path to its query level.  If the relation is the whole
 * level, or a child of such a relation, adds the path to the relation's paths
 * and returns true.  Otherwise keeps the path beside the relation's paths and
 * returns false.
 *
 * If a relation is the only one of its level, the planner itself makes several
 * paths that merge or append the paths of its children.  If all rows of the
 * children are read, it takes the cheapest path of each child, so ordered
 * paths of children are made to cost more.
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
 * Returns the cheapest path in the key's order for the rows the query needs.
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
 * If ordered paths are kept beside the paths of any child, offers a
 * MergeAppend for the parent.  For a child without such a path, uses the
 * child's cheapest other path in that order or, if there is no such path, the
 * child's cheapest path.
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

/*
 * Offers a nested loop with an ordered outer path and the given inner path,
 * unless the inner path has parameters of other relations.
 */
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
 * set_join_pathlist_hook.  Offers nested loops whose outer path is one of the
 * ordered paths kept beside the paths of outerrel.
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
	/* GEQO frees the joins that it tries before the level is planned */
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
 * Removes a relation's paths that core has made for an index.  Returns the
 * index clauses of a removed path without parameters, or NIL.
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
 * Removes those paths of a relation that provide the order of `key` by an
 * index of another access method.  The last path of a relation is not removed,
 * but is made to cost more than ours.
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
 * Replaces the paths that core has made for an index of ours.  An ordered path
 * becomes the child of a custom path if there are conditions that the executor
 * would have to evaluate.  Otherwise it is run as a plain index scan.
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
	path = ivfpq_radius_recall < 1 ?
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

/* Returns whether the expression contains the distance. */
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
 * If the condition bounds the distance, adds it to the bounds and returns
 * true.  Otherwise adds the condition to division->others and returns false.
 * The caller makes every bound a late condition, too.
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
 * Divides the conditions, which are in the order of their evaluation.  A
 * condition that comes after a late condition of a lower security level is not
 * used as a bound, see am/scan/README, "Bounds on the distance".
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
 * the index's rows that match, without regard to bounds.  If there are key
 * quals, the selectivity is the fraction of matching rows among the rows that
 * satisfy the key quals.
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

	/* if cpu_operator_cost is 0 or costs are infinite, count conditions */
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
 * Removes the conditions of the children, because children only provide rows
 * and their order, and the node evaluates the conditions.
 *
 * Core puts conditions that do not depend on rows into a Result above each
 * child and above the node.  The Result above the node is enough, so the
 * Results above the children are removed.  If no column and no condition of a
 * bitmap heap scan is needed, core may return its rows without reading them.
 * To prevent that, the scan gets a column.
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
	List	   *exprs;			/* all expressions computed from table rows */
	List	   *columns;
	int			ncolumns;		/* number of columns of the table */

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

/* Installs the hooks.  Called once in a process. */
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
