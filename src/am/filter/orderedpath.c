/*
 * orderedpath.c
 *		Where a scan in the order of a distance may stand in a plan.
 *
 * An index scan of ours is approximate: rows without a vector are missing, so
 * are those that probing did not reach, and strict order leaves out rows that
 * are found too late.  For the first rows by distance that is what a user asks
 * for; below a node that reads all its input it would lose rows of a join, a
 * group or a count.  So an ordered path exists only where
 *
 *	(a) the query level sorts by the distance, first of all, and has no groups,
 *		aggregates or set-returning targets;
 *	(b) the level stops early: a LIMIT, a cursor, or a LIMIT of the level
 *		above;
 *		enable_seqscan = off or enable_sort = off stand in for that;
 *	(c) all nodes above it in its level hand on its rows one by one: nested
 *		loops with it outside, MergeAppend, Incremental Sort, Unique, LockRows,
 *		Result, Limit, and WindowAgg over rows up to the current one.
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
#include "postgres.h"

#include "nodes/nodeFuncs.h"
#include "optimizer/appendinfo.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/planner.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"

#include "am/common/options.h"
#include "am/filter/customscan.h"
#include "am/scan/scan.h"
#include "pgcompat.h"

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
bool
IvfpqOfferOrdered(PlannerInfo *root, RelOptInfo *rel, Path *path)
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
void
IvfpqAppendOrdered(PlannerInfo *root, RelOptInfo *rel, PathKey *key)
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
		(void) IvfpqOfferOrdered(root, rel,
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
	(void) IvfpqOfferOrdered(root, joinrel, (Path *)
							 create_nestloop_path(root, joinrel, jointype,
												  &workspace, extra, outer,
												  inner, extra->restrictlist,
												  outer->pathkeys, NULL));
}

/* Nested loops with the ordered paths of a relation outside. */
void
IvfpqJoinOrdered(PlannerInfo *root, RelOptInfo *joinrel, RelOptInfo *outerrel,
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
