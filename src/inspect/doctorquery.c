/*
 * doctorquery.c
 *		gpuvec_doctor(query): why a statement does not use an index.
 *
 * The statement is planned, as EXPLAIN plans it, and never executed.  While
 * the planner works it is observed: when it has made all paths of a table with
 * an index of ours, the doctor notes what can be said of that table.  Where an
 * index is not used although it could provide the order, the statement is
 * planned once more, with no other path to that table: the difference is what
 * the planner takes the index to cost more.
 *
 * Parameters have the types that the statement gives them, and no values: the
 * plan is the generic one.
 *
 * Where a foreign table's server is not asked for the order, all of its rows
 * come here to be sorted.  postgres_fdw sends an order by operators of those
 * extensions that the server's option "extensions" names.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/pg_operator.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "nodes/plannodes.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/paths.h"
#include "optimizer/plancat.h"
#include "optimizer/planner.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "am/common/options.h"
#include "inspect/doctor.h"
#include "pgcompat.h"
#include "planner/planner.h"

/* A table of fewer rows is read faster than an index of it. */
#define FEW_ROWS		10000

/* Requested rows are many from this fraction of all on. */
#define LARGE_FRACTION		0.05

/*
 * A table with an index of ours, or one that lacks it, as the planner saw it.
 */
typedef struct Sight
{
	Oid			table;
	Oid			index;			/* InvalidOid: it has none */
	bool		is_foreign;		/* its server may provide the order */
	IvfpqReason why;			/* it has no path by the index's order */
	List	   *filters;		/* IvfpqReason: conditions on keys, joins */
	double		tuples;
	double		limit;			/* rows requested; 0 = not known */
	bool		is_unlimited;	/* the whole order is requested */
	bool		limit_is_known; /* when planned */
	bool		is_joined;
	bool		is_kept;		/* all joins are outer ones keeping its rows */
} Sight;

/*
 * State that the hooks work for.  They stay in place: a library that is loaded
 * while a statement is planned chains to them.
 */
typedef struct Watch
{
	MemoryContext context;
	List	   *sights;
	Oid			only_table;		/* may be read by only_index's order only */
	Oid			only_index;		/* or 0 */
	int			depth;			/* 1 = it is the statement that is planned */
} Watch;

/* Looks for the scan of a table in a finished plan. */
typedef struct PlanSearch
{
	const PlannedStmt *stmt;
	Oid			table;
	Oid			index;			/* the index to find, by its order; or
								 * InvalidOid: any scan of the table */
	Plan	   *found;
	bool		is_limited;		/* a Limit is above it */
	bool		is_sorted;		/* a Sort is, with no Limit between */
} PlanSearch;

static Watch *observer = NULL;	/* NULL: no statement is observed */
static bool is_hooked = false;
static planner_hook_type previous_planner = NULL;
static set_rel_pathlist_hook_type previous_pathlist = NULL;
static IvfpqInfoHook previous_info = NULL;

PG_FUNCTION_INFO_V1(gpuvec_doctor_statement);

static bool find_scan(Plan *plan, PlanSearch *search);

/*
 * Returns whether left joins alone add to the rows of a table, so that its
 * first rows in their order come first in the statement, each once or more
 * often.
 */
static bool
is_only_added_to(PlannerInfo *root, const RelOptInfo *rel)
{
	const Query *parse = root->parse;
	Node	   *from;
	ListCell   *lc;

	if (list_length(parse->jointree->fromlist) != 1 ||
		parse->limitOffset != NULL || parse->groupClause != NIL ||
		parse->groupingSets != NIL || parse->hasAggs ||
		parse->hasWindowFuncs || parse->hasTargetSRFs ||
		parse->distinctClause != NIL || parse->rowMarks != NIL ||
		parse->limitOption != LIMIT_OPTION_COUNT ||
		!bms_is_subset(pull_varnos(root, parse->jointree->quals),
					   rel->relids))
		return false;
	foreach(lc, parse->sortClause)
	{
		Node	   *key = get_sortgroupclause_expr(lfirst(lc),
												   root->processed_tlist);

		if (!bms_is_subset(pull_varnos(root, key), rel->relids))
			return false;
	}
	from = linitial(parse->jointree->fromlist);
	while (IsA(from, JoinExpr) && ((JoinExpr *) from)->jointype == JOIN_LEFT)
		from = ((JoinExpr *) from)->larg;
	return IsA(from, RangeTblRef) &&
		((RangeTblRef *) from)->rtindex == (int) rel->relid;
}

static Sight *
add_sight(PlannerInfo *root, const RelOptInfo *rel, Oid index)
{
	Sight	   *sight = palloc0(sizeof(Sight));
	Node	   *limit = root->parse->limitCount;

	sight->table = planner_rt_fetch(rel->relid, root)->relid;
	sight->index = index;
	sight->tuples = rel->tuples;
	sight->limit = Max(root->limit_tuples, 0);
	sight->is_unlimited = root->tuple_fraction <= 0;
	sight->limit_is_known = limit == NULL || IsA(limit, Const);
	sight->is_joined = bms_membership(root->all_baserels) == BMS_MULTIPLE &&
		!IS_OTHER_REL(rel);
	sight->is_kept = sight->is_joined && is_only_added_to(root, rel);
	observer->sights = lappend(observer->sights, sight);
	return sight;
}

/* Notes what can be said of an index. */
static void
see_index(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	Sight	   *sight;
	IndexPath  *path;

	if (IvfpqIsNoSearch(root, rel, info))
		return;
	sight = add_sight(root, rel, info->indexoid);
	path = IvfpqOrderedPath(root, info, NIL);
	sight->why = IvfpqWhyNoOrder(root, rel, info, path != NULL);
	if (info->nkeycolumns > 1 && IvfpqIsOrderedBy(root, rel, info))
	{
		IvfpqWhyFilters(root, info,
						path && IsA(path, IndexPath) ? path : NULL,
						&sight->filters);
		IvfpqWhyJoins(root, info, &sight->filters);
	}
}

static IndexOptInfo *
find_info(const RelOptInfo *rel, Oid index)
{
	ListCell   *lc;

	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst(lc);

		if (info->indexoid == index)
			return info;
	}
	return NULL;
}

/* Notes an index of ours that the planner was not shown. */
static void
see_left_out(PlannerInfo *root, const RelOptInfo *rel, Oid indexoid)
{
	Sight	   *sight = add_sight(root, rel, indexoid);
	Relation	index = index_open(indexoid, NoLock);
	char	   *name = IvfpqRelationName(indexoid);

	if (!index->rd_index->indisvalid)
	{
		sight->why.state = "the index is not valid: its build failed, or is under way";
		sight->why.advice = psprintf("if none is: REINDEX INDEX CONCURRENTLY %s",
									 name);
	}
	else if (index->rd_index->indcheckxmin)
	{
		sight->why.state = "the index is younger than this transaction, and rows were changed while it was built";
		sight->why.advice = "begin a new transaction";
	}
	else
		sight->why.state = "the planner leaves the index out";
	index_close(index, NoLock);
}

/* Notes all that can be said of a table. */
static void
see_table(PlannerInfo *root, RelOptInfo *rel, Oid tableoid)
{
	Relation	table = table_open(tableoid, NoLock);
	List	   *indexes = RelationGetIndexList(table);
	bool		has_ours = false;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		IndexOptInfo *info = find_info(rel, lfirst_oid(lc));

		if (!IvfpqIsOursByOid(lfirst_oid(lc)))
			continue;
		has_ours = true;
		if (info != NULL)
			see_index(root, rel, info);
		else
			see_left_out(root, rel, lfirst_oid(lc));
	}
	if (!has_ours)
	{
		IvfpqReason why = IvfpqWhyNoIndex(root, rel);

		if (why.state != NULL)
			add_sight(root, rel, InvalidOid)->why = why;
	}
	list_free(indexes);
	table_close(table, NoLock);
}

/* Returns whether a path of the table provides the statement's first key. */
static bool
is_order_sent(const PlannerInfo *root, const RelOptInfo *rel)
{
	ListCell   *lc;

	if (root->query_pathkeys == NIL)
		return false;
	foreach(lc, rel->pathlist)
	{
		const Path *path = lfirst(lc);

		if (path->pathkeys != NIL &&
			linitial(path->pathkeys) == linitial(root->query_pathkeys))
			return true;
	}
	return false;
}

/* Returns the server's option "extensions", or NULL. */
static char *
option_extensions(const ForeignServer *server)
{
	ListCell   *lc;

	foreach(lc, server->options)
	{
		DefElem    *option = lfirst(lc);

		if (strcmp(option->defname, "extensions") == 0)
			return defGetString(option);
	}
	return NULL;
}

static bool
has_name(const char *names, const char *name)
{
	List	   *list;
	ListCell   *lc;

	if (names == NULL || !SplitIdentifierString(pstrdup(names), ',', &list))
		return false;
	foreach(lc, list)
	{
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	}
	return false;
}

/*
 * Returns why no path of a foreign table provides an order by such an
 * operator, and what to do.
 */
static IvfpqReason
why_not_sent(Oid table, Oid operator)
{
	static const char *const all[] = {"vector", "gpuvec", "gpuvec_pgvector"};
	static const char *const own[] = {"gpuvec"};
	ForeignServer *server = GetForeignServer(GetForeignTable(table)->serverid);
	char	   *extension = get_extension_name(getExtensionOfObject(OperatorRelationId,
																	operator));
	const char *names = option_extensions(server);
	char	   *wanted = names ? pstrdup(names) : "";
	bool		is_own = extension && strcmp(extension, "gpuvec") == 0;
	const char *const *needed = is_own ? own : all;
	IvfpqReason why = {"its server is not asked for the order: all rows are fetched from there and sorted here", NULL};

	if (extension == NULL ||
		strcmp(GetForeignDataWrapper(server->fdwid)->fdwname,
			   "postgres_fdw") != 0)
		return why;
	if (has_name(names, extension))
	{
		why.advice = "order by a distance to a constant, a parameter or a sub-select, by functions that the server has, too";
		return why;
	}
	for (int i = 0; i < (int) (is_own ? lengthof(own) : lengthof(all)); i++)
	{
		if (!has_name(names, needed[i]))
			wanted = psprintf("%s%s%s", wanted, wanted[0] ? ", " : "",
							  needed[i]);
	}
	why.advice = psprintf("ALTER SERVER %s OPTIONS (%s extensions %s)",
						  quote_identifier(server->servername),
						  names ? "SET" : "ADD",
						  quote_literal_cstr(wanted));
	return why;
}

static void
see_foreign(PlannerInfo *root, RelOptInfo *rel)
{
	Var		   *column;
	char	   *class;
	OpExpr	   *distance = IvfpqOrderedDistance(root, rel, &column, &class);
	Sight	   *sight;

	if (distance == NULL)
		return;
	sight = add_sight(root, rel, InvalidOid);
	sight->is_foreign = true;
	if (!is_order_sent(root, rel))
		sight->why = why_not_sent(sight->table, distance->opno);
}

/*
 * Makes all paths of a table but the one in the order of an index cost what no
 * plan would.  In a join the ordered path is not among them (custompath.c).
 */
static void
keep_only(RelOptInfo *rel, Oid index)
{
	ListCell   *lc;

	foreach(lc, rel->pathlist)
	{
		Path	   *path = lfirst(lc);
		const IndexPath *scan = (IndexPath *) path;

		if (IsA(path, CustomPath) &&
			((CustomPath *) path)->methods == &ivfpq_path_methods)
			scan = linitial(((CustomPath *) path)->custom_paths);
		if (IsA(scan, IndexPath) && scan->indexinfo->indexoid == index &&
			path->pathkeys != NIL)
			continue;
		path->startup_cost += disable_cost;
		path->total_cost += disable_cost;
	}
	rel->partial_pathlist = NIL;
}

/*
 * Returns whether this is the planner's own "ORDER BY ... LIMIT 1" for min()
 * or max().  The aggregate that it was made of has been seen.
 */
static bool
is_minmax(const PlannerInfo *root)
{
	const TargetEntry *target = linitial_node(TargetEntry,
											  root->processed_tlist);

	return root->parent_root != NULL && root->parent_root->parse->hasAggs &&
		target->resname != NULL && strcmp(target->resname, "agg_target") == 0;
}

/* set_rel_pathlist_hook */
static void
watch_paths(PlannerInfo *root, RelOptInfo *rel, Index rti,
			RangeTblEntry *rte)
{
	MemoryContext oldcontext;

	if (previous_pathlist)
		previous_pathlist(root, rel, rti, rte);
	if (observer == NULL || observer->depth != 1 ||
		rte->rtekind != RTE_RELATION || rte->inh || IS_DUMMY_REL(rel) ||
		(rte->relkind != RELKIND_RELATION && rte->relkind != RELKIND_MATVIEW &&
		 rte->relkind != RELKIND_FOREIGN_TABLE) ||
		(root->processed_tlist != NIL && is_minmax(root)))
		return;
	if (OidIsValid(observer->only_table))
	{
		if (rte->relid == observer->only_table)
			keep_only(rel, observer->only_index);
		return;
	}
	oldcontext = MemoryContextSwitchTo(observer->context);
	if (rte->relkind == RELKIND_FOREIGN_TABLE)
		see_foreign(root, rel);
	else
		see_table(root, rel, rte->relid);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * IVFPQ_INFO_HOOK.  Indexes that provide the same order would drive the only
 * one out before paths can be chosen, so they are removed.
 */
static void
watch_info(IVFPQ_INFO_PARAMS)
{
	List	   *kept = NIL;
	ListCell   *lc;

	if (previous_info)
		previous_info(IVFPQ_INFO_ARGS);
	if (observer == NULL || observer->depth != 1 ||
		IVFPQ_INFO_TABLE != observer->only_table)
		return;
	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst(lc);

		if (!info->amcanorderbyop || info->indexoid == observer->only_index)
			kept = lappend(kept, info);
	}
	rel->indexlist = kept;
}

static PlannedStmt *
plan_unwatched(IVFPQ_PLANNER_PARAMS)
{
	return previous_planner ? previous_planner(IVFPQ_PLANNER_ARGS) :
		standard_planner(IVFPQ_PLANNER_ARGS);
}

/*
 * planner_hook.  To simplify an expression the planner calls functions, and
 * these may have statements of their own planned, with the rights of others.
 * The doctor tells nothing of such statements and does not change their plans.
 */
static PlannedStmt *
watch_planner(IVFPQ_PLANNER_PARAMS)
{
	PlannedStmt *plan = NULL;

	if (observer == NULL)
		return plan_unwatched(IVFPQ_PLANNER_ARGS);
	observer->depth++;
	PG_TRY();
	{
		plan = plan_unwatched(IVFPQ_PLANNER_ARGS);
	}
	PG_FINALLY();
	{
		observer->depth--;
	}
	PG_END_TRY();
	return plan;
}

static void
set_hooks(void)
{
	if (is_hooked)
		return;
	previous_pathlist = set_rel_pathlist_hook;
	previous_info = IVFPQ_INFO_HOOK;
	previous_planner = planner_hook;
	planner_hook = watch_planner;
	set_rel_pathlist_hook = watch_paths;
	IVFPQ_INFO_HOOK = watch_info;
	is_hooked = true;
}

/* Plans a statement while it is observed. */
static PlannedStmt *
plan_watched(Query *query, const char *source, Watch *how)
{
	PlannedStmt *plan = NULL;

	if (observer != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("gpuvec_doctor is called while it plans a statement")));

	set_hooks();
	observer = how;
	PG_TRY();
	{
		plan = IvfpqPlanQuery(copyObject(query), source,
							  CURSOR_OPT_PARALLEL_OK);
	}
	PG_FINALLY();
	{
		observer = NULL;
	}
	PG_END_TRY();
	return plan;
}

static bool
is_foreign_scan_of(const ForeignScan *scan, const PlanSearch *search)
{
	int			relid = -1;

	while ((relid = bms_next_member(scan->fs_relids, relid)) >= 0)
	{
		if (rt_fetch(relid, search->stmt->rtable)->relid == search->table)
			return true;
	}
	return false;
}

static bool
is_scan_of(Plan *plan, const PlanSearch *search)
{
	Index		relid;

	if (OidIsValid(search->index))
		return IsA(plan, IndexScan) &&
			((IndexScan *) plan)->indexid == search->index &&
			((IndexScan *) plan)->indexorderby != NIL;
	switch (nodeTag(plan))
	{
		case T_SeqScan:
		case T_SampleScan:
		case T_IndexScan:
		case T_IndexOnlyScan:
		case T_BitmapHeapScan:
		case T_TidScan:
		case T_TidRangeScan:
		case T_CustomScan:
			relid = ((Scan *) plan)->scanrelid;
			return relid > 0 &&
				rt_fetch(relid, search->stmt->rtable)->relid == search->table;
		case T_ForeignScan:
			return is_foreign_scan_of((ForeignScan *) plan, search);
		default:
			return false;
	}
}

static bool
find_among(const List *plans, PlanSearch *search)
{
	ListCell   *lc;

	foreach(lc, plans)
	{
		if (find_scan(lfirst(lc), search))
			return true;
	}
	return false;
}

static bool
find_below(Plan *plan, PlanSearch *search)
{
	if (IsA(plan, Append) &&
		find_among(((Append *) plan)->appendplans, search))
		return true;
	if (IsA(plan, MergeAppend) &&
		find_among(((MergeAppend *) plan)->mergeplans, search))
		return true;
	if (IsA(plan, CustomScan) &&
		find_among(((CustomScan *) plan)->custom_plans, search))
		return true;
	if (IsA(plan, SubqueryScan) &&
		find_scan(((SubqueryScan *) plan)->subplan, search))
		return true;
	return find_scan(plan->lefttree, search) ||
		find_scan(plan->righttree, search);
}

/* Finds the first node for which is_scan_of is true. */
static bool
find_scan(Plan *plan, PlanSearch *search)
{
	if (plan == NULL)
		return false;
	if (is_scan_of(plan, search))
	{
		search->found = plan;
		return true;
	}
	if (!find_below(plan, search))
		return false;
	if (IsA(plan, Limit))
		search->is_limited = true;
	else if (IsA(plan, Sort) && !search->is_limited)
		search->is_sorted = true;
	return true;
}

static void
find_in_statement(PlanSearch *search)
{
	if (!find_scan(search->stmt->planTree, search))
		(void) find_among(search->stmt->subplans, search);
}

/*
 * Returns the scan by which a plan reads a table, in the order of an index or
 * in any way; or NULL.
 */
static Plan *
scan_in_plan(const PlannedStmt *stmt, Oid table, Oid index)
{
	PlanSearch	search = {.stmt = stmt, .table = table, .index = index};

	find_in_statement(&search);
	return search.found;
}

/*
 * Returns whether rows of a table are sorted before a LIMIT takes the first
 * ones.
 */
static bool
is_sorted_in_plan(const PlannedStmt *stmt, Oid table)
{
	PlanSearch	search = {.stmt = stmt, .table = table};

	find_in_statement(&search);
	return search.is_sorted;
}

/* Names the scan that reads a table. */
static char *
name_scan(const Plan *plan)
{
	if (plan == NULL)
		return "another plan";
	switch (nodeTag(plan))
	{
		case T_SeqScan:
			return "a sequential scan";
		case T_IndexScan:
			return psprintf("index %s",
							IvfpqRelationName(((const IndexScan *) plan)->indexid));
		case T_IndexOnlyScan:
			return psprintf("index %s",
							IvfpqRelationName(((const IndexOnlyScan *) plan)->indexid));
		case T_BitmapHeapScan:
			return "a bitmap of other indexes";
		case T_CustomScan:
			return "a filtered scan by another index";
		default:
			return "another plan";
	}
}

/*
 * Returns the access method of an index not of ours in whose order a scan
 * reads, or NULL.
 */
static char *
other_method(const Plan *scan)
{
	Oid			oid;
	Relation	index;
	char	   *method;

	if (scan == NULL || !IsA(scan, IndexScan) ||
		((const IndexScan *) scan)->indexorderby == NIL)
		return NULL;
	oid = ((const IndexScan *) scan)->indexid;
	if (IvfpqIsOursByOid(oid))
		return NULL;
	index = index_open(oid, AccessShareLock);
	method = get_am_name(index->rd_rel->relam);
	index_close(index, AccessShareLock);
	return method;
}

/*
 * Returns why the index seems to cost more, if there is more to say than
 * numbers, and what to do.
 */
static IvfpqReason
why_dearer(const Sight *sight, const Plan *chosen)
{
	IvfpqReason why = {NULL, NULL};
	char	   *method = other_method(chosen);

	if (method != NULL)
	{
		why.state = psprintf("that one, of %s, brings the same order",
							 method);
		why.advice = "SET gpuvec.use_index = always, and compare their times";
	}
	else if (sight->limit == 0 && !sight->limit_is_known)
	{
		why.state = "LIMIT is not known when this is planned, so a tenth of all rows is taken to be wanted";
		why.advice = "write a number, or SET plan_cache_mode = force_custom_plan";
	}
	else if (sight->is_unlimited)
		why.state = "no LIMIT, the whole order is wanted";
	else if (sight->is_kept && sight->limit <= sight->tuples * LARGE_FRACTION)
		why.advice = "put the table, with its conditions, ORDER BY and LIMIT, into a sub-select, LEFT JOIN what it finds, and keep ORDER BY and LIMIT outside";
	else if (sight->tuples < FEW_ROWS)
		why.state = "of so few rows that is quicker";
	else if (sight->limit > sight->tuples * LARGE_FRACTION)
		why.state = psprintf("LIMIT asks for %.0f of %.0f rows", sight->limit,
							 sight->tuples);
	else if (sight->is_joined)
		why.state = "rows of a join are wanted, which may take many of the nearest";
	else if (sight->filters == NIL)
		why.advice = psprintf("ANALYZE %s, if its statistics are old",
							  IvfpqRelationName(sight->table));
	return why;
}

/* Reports an index that could provide the order, and is not used. */
static void
find_cost(IvfpqFindings *findings, Query *query, const char *source,
		  const PlannedStmt *chosen, const Sight *sight)
{
	Watch		only = {
		.context = CurrentMemoryContext,
		.only_table = sight->table,
		.only_index = sight->index
	};
	PlannedStmt *forced = plan_watched(query, source, &only);
	Plan	   *scan = scan_in_plan(chosen, sight->table, InvalidOid);
	IvfpqReason why = why_dearer(sight, scan);
	Cost		cost = chosen->planTree->total_cost;
	Cost		by_index = forced->planTree->total_cost;
	char	   *state;

	if (!enable_indexscan)
	{
		state = "enable_indexscan is off";
		why.state = NULL;
		why.advice = "SET enable_indexscan = on";
	}
	else if (scan_in_plan(forced, sight->table, sight->index) == NULL)
		state = "the plan that the order of this index would serve is not among those that the planner looks at";
	else
		state = psprintf("the planner takes the statement to cost %.0f by this index and %.0f by %s, %.1f times as much",
						 by_index, cost, name_scan(scan),
						 by_index / Max(cost, 0.01));
	IvfpqFind(findings, IvfpqRelationName(sight->index),
			  psprintf("not used: %s%s%s", state, why.state ? ": " : "",
					   why.state ? why.state : ""),
			  why.advice);
}

/* Adds the rows of one index. */
static void
find_sight(IvfpqFindings *findings, Query *query, const char *source,
		   const PlannedStmt *plan, const Sight *sight)
{
	char	   *name = IvfpqRelationName(OidIsValid(sight->index) ?
										 sight->index : sight->table);
	ListCell   *lc;

	if (OidIsValid(sight->index) &&
		scan_in_plan(plan, sight->table, sight->index) != NULL)
		IvfpqFind(findings, name, "used", NULL);
	else if (sight->why.state != NULL)
		IvfpqFind(findings, name,
				  psprintf(OidIsValid(sight->index) ? "not used: %s" : "%s",
						   sight->why.state), sight->why.advice);
	else if (sight->is_foreign && !is_sorted_in_plan(plan, sight->table))
		IvfpqFind(findings, name, "its server brings the order", NULL);
	else if (sight->is_foreign)
	{
		IvfpqReason why = why_dearer(sight, NULL);

		IvfpqFind(findings, name,
				  psprintf("its server could bring the order; the planner takes it to cost less to fetch and to sort all rows%s%s",
						   why.state ? ": " : "", why.state ? why.state : ""),
				  why.advice);
	}
	else
		find_cost(findings, query, source, plan, sight);
	foreach(lc, sight->filters)
	{
		const IvfpqReason *reason = lfirst(lc);

		IvfpqFind(findings, name, reason->state, reason->advice);
	}
}

/*
 * Returns whether the same was said of an index before: a statement may name a
 * table twice.
 */
static bool
is_repeated(const List *sights, const Sight *sight)
{
	ListCell   *lc;

	foreach(lc, sights)
	{
		const Sight *earlier = lfirst(lc);

		if (earlier == sight)
			return false;
		if (earlier->table == sight->table && earlier->index == sight->index &&
			earlier->filters == NIL && sight->filters == NIL &&
			(earlier->why.state == NULL) == (sight->why.state == NULL) &&
			(sight->why.state == NULL ||
			 strcmp(earlier->why.state, sight->why.state) == 0))
			return true;
	}
	return false;
}

/* Error context callback: a position is one in the doctor's argument. */
static void
show_position(void *arg)
{
	int			position = geterrposition();

	if (position <= 0)
		return;
	errposition(0);
	internalerrposition(position);
	internalerrquery((const char *) arg);
}

/* Analyzes the one SELECT in the text, with views and policies in it. */
static Query *
analyze(const char *source)
{
	List	   *statements = pg_parse_query(source);
	RawStmt    *statement;
	List	   *queries = NIL;
	Query	   *query = NULL;
	Oid		   *types = NULL;
	int			ntypes = 0;

	if (list_length(statements) == 1)
	{
		statement = linitial_node(RawStmt, statements);
		if (IsA(statement->stmt, SelectStmt))
			queries = pg_analyze_and_rewrite_varparams(statement, source,
													   &types, &ntypes, NULL);
	}
	if (list_length(queries) == 1)
		query = linitial_node(Query, queries);
	if (query == NULL || query->commandType != CMD_SELECT ||
		query->utilityStmt != NULL || query->hasModifyingCTE)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("this is not one SELECT that changes nothing"),
				 errhint("Give the SELECT of a statement that does more.")));
	return query;
}

/* gpuvec_doctor(query text) */
Datum
gpuvec_doctor_statement(PG_FUNCTION_ARGS)
{
	IvfpqFindings findings = {(ReturnSetInfo *) fcinfo->resultinfo, 0};
	char	   *source = text_to_cstring(PG_GETARG_TEXT_PP(0));
	Watch		all = {.context = CurrentMemoryContext};
	ErrorContextCallback context = {error_context_stack, show_position, source};
	Query	   *query;
	PlannedStmt *plan;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	error_context_stack = &context;
	query = analyze(source);
	plan = plan_watched(query, source, &all);
	error_context_stack = context.previous;
	IvfpqCheckPermissions(plan);
	foreach(lc, all.sights)
	{
		if (!is_repeated(all.sights, lfirst(lc)))
			find_sight(&findings, query, source, plan, lfirst(lc));
	}
	if (findings.n == 0)
		IvfpqFind(&findings, "statement",
				  "it reads no table that has a gpuivfpq index, or could do with one",
				  NULL);
	return (Datum) 0;
}
