/*
 * doctorquery.c
 *		gpuvec_doctor(query): reports why a statement does not use an index.
 *
 * The statement is planned, as EXPLAIN plans it, and never executed.  While
 * the planner works, the doctor's hooks observe it: when the planner has made
 * all paths of a table with an index of ours, the doctor notes its findings on
 * that table.  If an index is not used although it could provide the order,
 * the doctor plans the statement once more and allows no other path to that
 * table.  The difference between the two plans' costs is the planner's
 * estimate of how much more the index costs.
 *
 * Parameters have the types that the statement gives them, and no values, so
 * the plan is the generic one.
 *
 * If the order is not requested from a foreign table's server, all rows of the
 * table are fetched and sorted here.  postgres_fdw requests an order by an
 * operator only if the server's option "extensions" names the operator's
 * extension.
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
#include "lib/stringinfo.h"
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
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "am/common/options.h"
#include "inspect/doctor.h"
#include "inspect/doctortexts.h"
#include "pgcompat.h"
#include "planner/planner.h"

/* Reading a table with fewer rows than this is faster than an index scan. */
#define FEW_ROWS		10000

/* A LIMIT is large if it is more than this fraction of the table's rows. */
#define LARGE_FRACTION		0.05

/* Costs are about the same if none is more than this many times the other. */
#define SAME_COST		1.1

/*
 * The planner's view of a table with an index of ours, or of a table that has
 * no such index but could use one.
 */
typedef struct TableReport
{
	Oid			table;
	Oid			index;			/* InvalidOid: the table has none */
	bool		is_foreign;		/* a foreign table, whose server may provide
								 * the order */
	IvfpqReason why;			/* why no path has the index's order */
	List	   *filters;		/* IvfpqReasons why conditions and joins on
								 * keys are not index conditions */
	double		tuples;
	double		limit;			/* rows requested; 0 = not known */
	bool		is_unlimited;	/* all rows are requested, in order */
	bool		limit_is_known; /* LIMIT is a constant, or there is none */
	bool		is_distinct;	/* DISTINCT requests more order than that of
								 * the distance */
	bool		is_joined;
	bool		is_kept;		/* all joins are left joins with this table on
								 * the outer side, so they keep its rows and
								 * their order */
} TableReport;

/*
 * State of the hooks that observe the planner.  The hooks are never removed,
 * because a library that is loaded while a statement is planned may have saved
 * our hooks, and may call them from its own hooks.
 */
typedef struct PlanWatch
{
	MemoryContext context;
	List	   *reports;		/* TableReport */
	Oid			only_table;		/* if valid, this table may be read only in
								 * the order of only_index */
	Oid			only_index;		/* InvalidOid if only_table is */
	int			depth;			/* depth of nested planner calls; 1 = the
								 * observed statement is planned */
} PlanWatch;

/* A search of a finished plan for the scan of a table, and the result. */
typedef struct PlanSearch
{
	const PlannedStmt *stmt;
	Oid			table;
	Oid			index;			/* find a scan in the order of this index;
								 * InvalidOid: find any scan of the table */
	Plan	   *found;
	bool		is_limited;		/* a Limit is above the scan */
	bool		is_sorted;		/* a Sort is above the scan, and no Limit is
								 * between the two */
} PlanSearch;

static PlanWatch *plan_watch = NULL;	/* NULL if no statement is observed */
static bool is_hooked = false;
static planner_hook_type previous_planner = NULL;
static set_rel_pathlist_hook_type previous_pathlist = NULL;
static IvfpqInfoHook previous_info = NULL;

PG_FUNCTION_INFO_V1(gpuvec_doctor_statement);

/*
 * Returns whether FROM is a chain of left joins that begins with this table,
 * and all conditions in WHERE and the whole ORDER BY are on this table.  In
 * this case the first rows of the result come from the first rows of the
 * table, though one row of the table may yield several rows of the result.
 */
static bool
is_only_added_to(PlannerInfo *root, const RelOptInfo *rel)
{
	const Query *parse = root->parse;
	Node	   *from;
	ListCell   *lc;

	if (list_length(parse->jointree->fromlist) != 1 ||
		!IvfpqIsPlainSelect(parse) ||
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

static TableReport *
add_report(PlannerInfo *root, const RelOptInfo *rel, Oid index)
{
	TableReport *report = palloc0(sizeof(TableReport));
	Node	   *limit = root->parse->limitCount;

	report->table = planner_rt_fetch(rel->relid, root)->relid;
	report->index = index;
	report->tuples = rel->tuples;
	report->limit = Max(root->limit_tuples, 0);
	report->is_unlimited = root->tuple_fraction <= 0;
	report->limit_is_known = limit == NULL || IsA(limit, Const);
	report->is_distinct = list_length(root->distinct_pathkeys) > 1;
	report->is_joined = bms_membership(root->all_baserels) == BMS_MULTIPLE &&
		!IS_OTHER_REL(rel);
	report->is_kept = report->is_joined && is_only_added_to(root, rel);
	plan_watch->reports = lappend(plan_watch->reports, report);
	return report;
}

/* Notes the doctor's findings on an index that the planner may use. */
static void
see_index(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	TableReport *report;
	IndexPath  *path;

	if (IvfpqIsNoSearch(root, rel, info))
		return;
	report = add_report(root, rel, info->indexoid);
	path = IvfpqOrderedPath(root, info, NIL);
	(void) IvfpqWhyNoOrder(root, rel, info, path != NULL, &report->why);
	if (info->nkeycolumns > 1 && IvfpqIsOrderedBy(root, rel, info))
		report->filters = IvfpqWhyFilters(root, info, path);
}

/* Notes why the planner does not consider an index of ours. */
static void
see_left_out(PlannerInfo *root, const RelOptInfo *rel, Oid indexoid)
{
	IvfpqReason *why = &add_report(root, rel, indexoid)->why;
	Relation	index = index_open(indexoid, NoLock);

	if (!index->rd_index->indisvalid)
	{
		why->state = DOCTOR_INVALID_INDEX;
		why->advice = psprintf(DOCTOR_REINDEX_INVALID,
							   IvfpqRelationName(indexoid));
	}
	else if (index->rd_index->indcheckxmin)
	{
		why->state = DOCTOR_YOUNG_INDEX;
		why->advice = DOCTOR_NEW_TRANSACTION;
	}
	else
		why->state = DOCTOR_LEFT_OUT;
	index_close(index, NoLock);
}

/* Notes findings on each of our indexes on a table, or that it has none. */
static void
see_table(PlannerInfo *root, RelOptInfo *rel, Oid tableoid)
{
	Relation	table = table_open(tableoid, NoLock);
	List	   *indexes = RelationGetIndexList(table);
	bool		has_ours = false;
	Var		   *column;
	char	   *class;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Oid			oid = lfirst_oid(lc);
		IndexOptInfo *info = NULL;
		ListCell   *cell;

		if (!IvfpqIsOursByOid(oid))
			continue;
		has_ours = true;
		foreach(cell, rel->indexlist)
			if (lfirst_node(IndexOptInfo, cell)->indexoid == oid)
			info = lfirst(cell);
		if (info != NULL)
			see_index(root, rel, info);
		else
			see_left_out(root, rel, oid);
	}
	if (!has_ours &&
		IvfpqOrderedDistance(root, rel, &column, &class) != NULL)
	{
		IvfpqReason *why = &add_report(root, rel, InvalidOid)->why;
		char	   *name = get_attname(tableoid, column->varattno, false);

		why->state = DOCTOR_NO_INDEX;
		why->advice = psprintf(DOCTOR_CREATE_INDEX,
							   IvfpqRelationName(tableoid),
							   quote_identifier(name), class);
	}
	list_free(indexes);
	table_close(table, NoLock);
}

static bool
has_name(const List *names, const char *name)
{
	ListCell   *lc;

	foreach(lc, names)
	{
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	}
	return false;
}

/*
 * Sets *why to the reason why no path of a foreign table provides an order by
 * this distance operator, with advice if there is any.
 */
static void
why_not_sent(Oid table, Oid operator, IvfpqReason *why)
{
	static const char *const ours[] = {"vector", "gpuvec", "gpuvec_pgvector"};
	ForeignServer *server = GetForeignServer(GetForeignTable(table)->serverid);
	char	   *extension = get_extension_name(getExtensionOfObject(OperatorRelationId,
																	operator));
	char	   *option = NULL;
	List	   *names = NIL;
	StringInfoData wanted;
	ListCell   *lc;

	why->state = DOCTOR_NOT_SENT;
	if (extension == NULL ||
		strcmp(GetForeignDataWrapper(server->fdwid)->fdwname,
			   "postgres_fdw") != 0)
		return;
	foreach(lc, server->options)
	{
		if (strcmp(lfirst_node(DefElem, lc)->defname, "extensions") == 0)
			option = defGetString(lfirst(lc));
	}
	if (option != NULL &&
		!SplitIdentifierString(pstrdup(option), ',', &names))
		names = NIL;
	if (has_name(names, extension))
	{
		why->advice = DOCTOR_ORDER_BY_CONSTANT;
		return;
	}
	initStringInfo(&wanted);
	appendStringInfoString(&wanted, option ? option : "");
	for (int i = 0; i < (int) lengthof(ours); i++)
	{
		/* an order by gpuvec's own operators needs no other extension */
		if (!has_name(names, ours[i]) &&
			(strcmp(extension, "gpuvec") != 0 ||
			 strcmp(ours[i], "gpuvec") == 0))
			appendStringInfo(&wanted, "%s%s", wanted.len > 0 ? ", " : "",
							 ours[i]);
	}
	why->advice = psprintf(DOCTOR_ALTER_SERVER,
						   quote_identifier(server->servername),
						   option ? "SET" : "ADD",
						   quote_literal_cstr(wanted.data));
}

/*
 * Notes the findings on a foreign table that the statement orders by distance.
 * A path with the statement's first sort key requests the order from the
 * table's server.  So if there is such a path, no reason is noted.
 */
static void
see_foreign(PlannerInfo *root, const RelOptInfo *rel)
{
	Var		   *column;
	char	   *class;
	OpExpr	   *distance = IvfpqOrderedDistance(root, rel, &column, &class);
	TableReport *report;
	ListCell   *lc;

	if (distance == NULL)
		return;
	report = add_report(root, rel, InvalidOid);
	report->is_foreign = true;
	foreach(lc, rel->pathlist)
	{
		const Path *path = lfirst(lc);

		if (path->pathkeys != NIL && root->query_pathkeys != NIL &&
			linitial(path->pathkeys) == linitial(root->query_pathkeys))
			return;
	}
	why_not_sent(report->table, distance->opno, &report->why);
}

/*
 * Makes all paths of a table, except searches by the index, so costly that no
 * plan uses them, if the query level can search by the index.  In a join,
 * rel->pathlist lacks the ordered path, which custompath.c keeps elsewhere, so
 * that path keeps its cost.
 */
static void
keep_only(PlannerInfo *root, RelOptInfo *rel, Oid index)
{
	bool		has_search = false;
	ListCell   *lc;

	foreach(lc, rel->indexlist)
	{
		IndexOptInfo *info = lfirst(lc);

		if (info->indexoid == index)
			has_search = IvfpqOrderedPath(root, info, NIL) != NULL ||
				(ivfpq_radius_recall < 1 &&
				 IvfpqRadiusPath(root, rel, info, NIL) != NULL);
	}
	if (!has_search)
		return;
	foreach(lc, rel->pathlist)
	{
		Path	   *path = lfirst(lc);
		const IndexPath *scan = (IndexPath *) path;

		if (IsA(path, CustomPath) &&
			((CustomPath *) path)->methods == &ivfpq_path_methods)
			scan = linitial(((CustomPath *) path)->custom_paths);
		if (IsA(scan, IndexPath) && scan->indexinfo->indexoid == index &&
			scan->indexorderbys != NIL)
			continue;
		path->startup_cost += disable_cost;
		path->total_cost += disable_cost;
	}
	rel->partial_pathlist = NIL;
}

/*
 * Returns whether this query level is the "ORDER BY ... LIMIT 1" that the
 * planner itself makes of min() or max().  The doctor has noted its findings
 * already at the level with the aggregate.
 */
static bool
is_minmax(const PlannerInfo *root)
{
	const TargetEntry *target = linitial_node(TargetEntry,
											  root->processed_tlist);

	return root->parent_root != NULL && root->parent_root->parse->hasAggs &&
		target->resname != NULL && strcmp(target->resname, "agg_target") == 0;
}

/*
 * set_rel_pathlist_hook.  Notes the findings on a table in the first planning,
 * and calls keep_only() in the second.
 */
static void
watch_paths(PlannerInfo *root, RelOptInfo *rel, Index rti,
			RangeTblEntry *rte)
{
	MemoryContext oldcontext;

	if (previous_pathlist)
		previous_pathlist(root, rel, rti, rte);
	if (plan_watch == NULL || plan_watch->depth != 1 ||
		rte->rtekind != RTE_RELATION || rte->inh || IS_DUMMY_REL(rel) ||
		(rte->relkind != RELKIND_RELATION && rte->relkind != RELKIND_MATVIEW &&
		 rte->relkind != RELKIND_FOREIGN_TABLE) ||
		(root->processed_tlist != NIL && is_minmax(root)))
		return;
	if (OidIsValid(plan_watch->only_table))
	{
		if (rte->relid == plan_watch->only_table)
			keep_only(root, rel, plan_watch->only_index);
		return;
	}
	oldcontext = MemoryContextSwitchTo(plan_watch->context);
	if (rte->relkind == RELKIND_FOREIGN_TABLE)
		see_foreign(root, rel);
	else
		see_table(root, rel, rte->relid);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * IVFPQ_INFO_HOOK.  Removes all indexes of the table, except only_index, that
 * provide an order by an operator.  If two indexes provide the same order, the
 * planner drops the path that costs more before keep_only() is called, and the
 * dropped path could be that of only_index.
 */
static void
watch_info(IVFPQ_INFO_PARAMS)
{
	ListCell   *lc;

	if (previous_info)
		previous_info(IVFPQ_INFO_ARGS);
	if (plan_watch == NULL || plan_watch->depth != 1 ||
		IVFPQ_INFO_TABLE != plan_watch->only_table)
		return;
	foreach(lc, rel->indexlist)
	{
		const IndexOptInfo *info = lfirst(lc);

		if (info->amcanorderbyop && info->indexoid != plan_watch->only_index)
			rel->indexlist = foreach_delete_current(rel->indexlist, lc);
	}
}

static PlannedStmt *
plan_unwatched(IVFPQ_PLANNER_PARAMS)
{
	return previous_planner ? previous_planner(IVFPQ_PLANNER_ARGS) :
		standard_planner(IVFPQ_PLANNER_ARGS);
}

/*
 * planner_hook.  Counts how deep calls of the planner are nested.  The planner
 * calls functions to simplify expressions, and such a function may plan and
 * run statements with the rights of another user.  The doctor must neither
 * report on these nested statements nor change their plans.
 */
static PlannedStmt *
watch_planner(IVFPQ_PLANNER_PARAMS)
{
	PlannedStmt *plan = NULL;

	if (plan_watch == NULL)
		return plan_unwatched(IVFPQ_PLANNER_ARGS);
	plan_watch->depth++;
	PG_TRY();
	{
		plan = plan_unwatched(IVFPQ_PLANNER_ARGS);
	}
	PG_FINALLY();
	{
		plan_watch->depth--;
	}
	PG_END_TRY();
	return plan;
}

/* Plans a statement while the hooks observe the planner. */
static PlannedStmt *
plan_watched(Query *query, const char *source, PlanWatch *how)
{
	PlannedStmt *plan = NULL;

	if (plan_watch != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("gpuvec_doctor cannot be called recursively")));

	if (!is_hooked)
	{
		previous_pathlist = set_rel_pathlist_hook;
		previous_info = IVFPQ_INFO_HOOK;
		previous_planner = planner_hook;
		planner_hook = watch_planner;
		set_rel_pathlist_hook = watch_paths;
		IVFPQ_INFO_HOOK = watch_info;
		is_hooked = true;
	}
	plan_watch = how;
	PG_TRY();
	{
		plan = IvfpqPlanQuery(copyObject(query), source,
							  CURSOR_OPT_PARALLEL_OK);
	}
	PG_FINALLY();
	{
		plan_watch = NULL;
	}
	PG_END_TRY();
	return plan;
}

/* Returns whether a plan node is the scan that is searched for. */
static bool
is_scan_of(Plan *plan, const PlanSearch *search)
{
	const IndexScan *scan = (IndexScan *) plan;
	Bitmapset  *relids = NULL;
	int			relid = -1;

	if (OidIsValid(search->index))
		return IsA(plan, IndexScan) && scan->indexid == search->index &&
			scan->indexorderby != NIL;
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
			if (((Scan *) plan)->scanrelid > 0)
				relids = bms_make_singleton((int) ((Scan *) plan)->scanrelid);
			break;
		case T_ForeignScan:
			relids = ((ForeignScan *) plan)->fs_relids;
			break;
		default:
			break;
	}
	while ((relid = bms_next_member(relids, relid)) >= 0)
	{
		if (rt_fetch(relid, search->stmt->rtable)->relid == search->table)
			return true;
	}
	return false;
}

/*
 * Searches a plan, from the top down, for the scan.  Returns whether the scan
 * was found.  Notes the first match, and whether a Limit or a Sort is above
 * it.
 */
static bool
find_scan(Plan *plan, PlanSearch *search)
{
	List	   *children;
	ListCell   *lc;

	if (plan == NULL)
		return false;
	if (is_scan_of(plan, search))
	{
		search->found = plan;
		return true;
	}
	children = list_concat_copy(IvfpqFurtherChildren(plan),
								list_make2(plan->lefttree, plan->righttree));
	foreach(lc, children)
	{
		if (!find_scan(lfirst(lc), search))
			continue;
		if (IsA(plan, Limit))
			search->is_limited = true;
		else if (IsA(plan, Sort) && !search->is_limited)
			search->is_sorted = true;
		return true;
	}
	return false;
}

/*
 * Searches a statement's plan for a scan of a table: for the scan in the order
 * of `index` or, if this is InvalidOid, for any scan.
 */
static PlanSearch
search_plan(const PlannedStmt *stmt, Oid table, Oid index)
{
	PlanSearch	search = {.stmt = stmt, .table = table, .index = index};
	bool		found = find_scan(stmt->planTree, &search);
	ListCell   *lc;

	foreach(lc, stmt->subplans)
		found = found || find_scan(lfirst(lc), &search);
	return search;
}

/* Returns the name of a scan for the report. */
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
 * Returns the reason why the planner expects the index to cost more than the
 * chosen scan, and advice.  Either may be NULL.
 */
static IvfpqReason
why_dearer(const TableReport *report, const Plan *chosen)
{
	IvfpqReason why = {NULL, NULL};
	const IndexScan *scan = (const IndexScan *) chosen;

	/* the table is read in the order of another method's index */
	if (chosen != NULL && IsA(chosen, IndexScan) &&
		scan->indexorderby != NIL && !IvfpqIsOursByOid(scan->indexid))
	{
		Relation	index = index_open(scan->indexid, AccessShareLock);

		why.state = psprintf(DOCTOR_SAME_ORDER,
							 get_am_name(index->rd_rel->relam));
		why.advice = DOCTOR_USE_ALWAYS;
		index_close(index, AccessShareLock);
	}
	else if (report->limit == 0 && !report->limit_is_known)
	{
		why.state = DOCTOR_LIMIT_UNKNOWN;
		why.advice = DOCTOR_WRITE_LIMIT;
	}
	else if (report->is_unlimited)
		why.state = DOCTOR_NO_LIMIT_COSTS;
	else if (report->is_kept && report->limit <= report->tuples * LARGE_FRACTION)
		why.advice = DOCTOR_LEFT_JOIN;
	else if (report->tuples < FEW_ROWS)
		why.state = DOCTOR_FEW_ROWS;
	else if (report->limit > report->tuples * LARGE_FRACTION)
		why.state = psprintf(DOCTOR_LIMIT_LARGE, report->limit,
							 report->tuples);
	else if (report->is_distinct)
		why.state = DOCTOR_DISTINCT;
	else if (report->is_joined)
		why.state = DOCTOR_JOIN_COSTS;
	else if (report->filters == NIL)
		why.advice = psprintf(DOCTOR_ANALYZE,
							  IvfpqRelationName(report->table));
	return why;
}

/*
 * Plans the statement once more, so that it reads the table in the order of an
 * index that the chosen plan does not use.  Returns a sentence with the costs
 * of both plans.
 */
static const char *
compare_costs(Query *query, const char *source, const PlannedStmt *chosen,
			  const TableReport *report, const Plan *scan)
{
	PlanWatch	only = {
		.context = CurrentMemoryContext,
		.only_table = report->table,
		.only_index = report->index
	};
	PlannedStmt *forced = plan_watched(query, source, &only);
	Cost		cost = chosen->planTree->total_cost;
	Cost		by_index = forced->planTree->total_cost;

	if (search_plan(forced, report->table, report->index).found == NULL)
		return DOCTOR_NO_PATH;
	if (by_index <= SAME_COST * cost && cost <= SAME_COST * by_index)
		return psprintf(DOCTOR_SAME_COSTS, by_index, name_scan(scan), cost);
	return psprintf(DOCTOR_COSTS,
					by_index, cost, name_scan(scan),
					by_index / Max(cost, 0.01));
}

/* Reports the findings on one index, or on a table without an index. */
static void
add_findings(ReturnSetInfo *result, Query *query, const char *source,
			 const PlannedStmt *plan, const TableReport *report)
{
	bool		has_index = OidIsValid(report->index);
	char	   *name = IvfpqRelationName(has_index ? report->index :
										 report->table);
	PlanSearch	search = search_plan(plan, report->table, InvalidOid);
	ListCell   *lc;

	if (has_index &&
		search_plan(plan, report->table, report->index).found != NULL)
		IvfpqAddFinding(result, name, DOCTOR_USED, NULL);
	else if (report->why.state != NULL)
		IvfpqAddFinding(result, name,
						psprintf(has_index ? DOCTOR_NOT_USED : "%s",
								 report->why.state), report->why.advice);
	else if (report->is_foreign && !search.is_sorted)
		IvfpqAddFinding(result, name, DOCTOR_FOREIGN_ORDER, NULL);
	else if (!report->is_foreign && !enable_indexscan)
		IvfpqAddFinding(result, name,
						DOCTOR_INDEXSCAN_OFF,
						DOCTOR_ENABLE_INDEXSCAN);
	else
	{
		IvfpqReason why = why_dearer(report,
									 report->is_foreign ? NULL : search.found);
		const char *state = report->is_foreign ?
		DOCTOR_FOREIGN_COSTS :
		compare_costs(query, source, plan, report, search.found);

		IvfpqAddFinding(result, name,
						psprintf("%s%s%s", state, why.state ? ": " : "",
								 why.state ? why.state : ""), why.advice);
	}
	foreach(lc, report->filters)
	{
		const IvfpqReason *reason = lfirst(lc);

		IvfpqAddFinding(result, name, reason->state, reason->advice);
	}
}

/*
 * Returns whether an earlier report on the same index has the same contents.
 * This may happen if a statement names a table twice.
 */
static bool
is_repeated(const List *reports, const TableReport *report)
{
	ListCell   *lc;

	foreach(lc, reports)
	{
		const TableReport *earlier = lfirst(lc);

		if (earlier == report)
			return false;
		if (earlier->table == report->table && earlier->index == report->index &&
			earlier->filters == NIL && report->filters == NIL &&
			(earlier->why.state == NULL) == (report->why.state == NULL) &&
			(report->why.state == NULL ||
			 strcmp(earlier->why.state, report->why.state) == 0))
			return true;
	}
	return false;
}

/*
 * Error context callback.  Reports the error's position as a position in the
 * doctor's argument, because the parser read this argument.
 */
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

/*
 * Parses and analyzes the text, which must be one SELECT that changes nothing.
 * The query returned has views and policies expanded.
 */
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
				 errmsg("only a single read-only SELECT can be examined"),
				 errhint("Pass the SELECT part of the statement.")));
	return query;
}

/* gpuvec_doctor(query text) */
Datum
gpuvec_doctor_statement(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *source = text_to_cstring(PG_GETARG_TEXT_PP(0));
	PlanWatch	all = {.context = CurrentMemoryContext};
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
	foreach(lc, all.reports)
	{
		if (!is_repeated(all.reports, lfirst(lc)))
			add_findings(result, query, source, plan, lfirst(lc));
	}
	if (all.reports == NIL)
		IvfpqAddFinding(result, "statement",
						DOCTOR_NO_TABLE,
						NULL);
	return (Datum) 0;
}
