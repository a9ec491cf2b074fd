/*
 * wrap.c
 *		The hooks: paths of ours in the place of core's.
 *
 * set_rel_pathlist_hook is called when core has made all paths of a base
 * relation.  Those by indexes of ours go; in their place come ordered paths
 * where orderedpath.c wants them, and paths for bounds on the distance.  Where
 * the table has conditions of its own the index path is the child of a custom
 * path, so core plans it, opens the index and builds keys that are known only
 * at run time.  The second child, where another index knows which rows match,
 * is a bitmap heap scan.
 */
#include "postgres.h"

#include <math.h>

#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/restrictinfo.h"
#include "utils/spccache.h"

#include "am/common/options.h"
#include "am/filter/customscan.h"
#include "am/scan/scan.h"
#include "pgcompat.h"

/* Of all rows those likely to be within a radius, for what that costs. */
#define WITHIN_SELECTIVITY	0.001

bool		ivfpq_enable_custom_scan = true;
double		ivfpq_radius_recall = 1;

static set_rel_pathlist_hook_type previous_pathlist_hook = NULL;
static set_join_pathlist_hook_type previous_join_hook = NULL;

const CustomPathMethods ivfpq_path_methods = {
	.CustomName = IVFPQ_CUSTOM_NAME,
	.PlanCustomPath = IvfpqPlanFilter,
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
	custom->custom_private = list_make2(IvfpqMakeNumber(matches),
										IvfpqMakeNumber(wrapped->indexselectivity));
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
		IvfpqOfferOrdered(root, rel, wrap_if_filtered(root, rel, path)))
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
			IvfpqAppendOrdered(root, rel, key);
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
	IvfpqJoinOrdered(root, joinrel, outerrel, innerrel, jointype, extra);
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
