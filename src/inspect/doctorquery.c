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
#include "pgcompat.h"
#include "planner/planner.h"

/* A table of fewer rows is read faster than an index of it. */
#define FEW_ROWS		10000

/* Requested rows are many from this fraction of all on. */
#define LARGE_FRACTION		0.05

/*
 * A table with an index of ours, or one that lacks it, as the planner saw it.
 */
typedef struct TableReport
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
} TableReport;

/*
 * State that the hooks work for.  They stay in place: a library that is loaded
 * while a statement is planned chains to them.
 */
typedef struct PlanWatch
{
	MemoryContext context;
	List	   *reports;		/* TableReport */
	Oid			only_table;		/* may be read by only_index's order only */
	Oid			only_index;		/* or 0 */
	int			depth;			/* 1 = it is the statement that is planned */
} PlanWatch;

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

static PlanWatch *plan_watch = NULL;	/* NULL: no statement is observed */
static bool is_hooked = false;
static planner_hook_type previous_planner = NULL;
static set_rel_pathlist_hook_type previous_pathlist = NULL;
static IvfpqInfoHook previous_info = NULL;

PG_FUNCTION_INFO_V1(gpuvec_doctor_statement);

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
	report->is_joined = bms_membership(root->all_baserels) == BMS_MULTIPLE &&
		!IS_OTHER_REL(rel);
	report->is_kept = report->is_joined && is_only_added_to(root, rel);
	plan_watch->reports = lappend(plan_watch->reports, report);
	return report;
}

/* Notes what can be said of an index. */
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

/* Notes an index of ours that the planner was not shown. */
static void
see_left_out(PlannerInfo *root, const RelOptInfo *rel, Oid indexoid)
{
	IvfpqReason *why = &add_report(root, rel, indexoid)->why;
	Relation	index = index_open(indexoid, NoLock);

	if (!index->rd_index->indisvalid)
	{
		why->state = "the index is not valid: its build failed, or is under way";
		why->advice = psprintf("if none is: REINDEX INDEX CONCURRENTLY %s",
							   IvfpqRelationName(indexoid));
	}
	else if (index->rd_index->indcheckxmin)
	{
		why->state = "the index is younger than this transaction, and rows were changed while it was built";
		why->advice = "begin a new transaction";
	}
	else
		why->state = "the planner leaves the index out";
	index_close(index, NoLock);
}

/* Notes all that can be said of a table. */
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

		why->state = "no gpuivfpq index is on it, and the statement orders by a distance to one of its columns";
		why->advice = psprintf("CREATE INDEX ON %s USING gpuivfpq (%s %s)",
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
 * Sets *why to the reason that no path of a foreign table provides an order by
 * such an operator, and to what to do.
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

	why->state = "its server is not asked for the order: all rows are fetched from there and sorted here";
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
		why->advice = "order by a distance to a constant, a parameter or a sub-select, by functions that the server has, too";
		return;
	}
	initStringInfo(&wanted);
	appendStringInfoString(&wanted, option ? option : "");
	for (int i = 0; i < (int) lengthof(ours); i++)
	{
		/* gpuvec's own operators need no other extension */
		if (!has_name(names, ours[i]) &&
			(strcmp(extension, "gpuvec") != 0 ||
			 strcmp(ours[i], "gpuvec") == 0))
			appendStringInfo(&wanted, "%s%s", wanted.len > 0 ? ", " : "",
							 ours[i]);
	}
	why->advice = psprintf("ALTER SERVER %s OPTIONS (%s extensions %s)",
						   quote_identifier(server->servername),
						   option ? "SET" : "ADD",
						   quote_literal_cstr(wanted.data));
}

/*
 * Notes what can be said of a foreign table.  Its server is asked for the
 * order if a path provides the statement's first key.
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
	if (plan_watch == NULL || plan_watch->depth != 1 ||
		rte->rtekind != RTE_RELATION || rte->inh || IS_DUMMY_REL(rel) ||
		(rte->relkind != RELKIND_RELATION && rte->relkind != RELKIND_MATVIEW &&
		 rte->relkind != RELKIND_FOREIGN_TABLE) ||
		(root->processed_tlist != NIL && is_minmax(root)))
		return;
	if (OidIsValid(plan_watch->only_table))
	{
		if (rte->relid == plan_watch->only_table)
			keep_only(rel, plan_watch->only_index);
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
 * IVFPQ_INFO_HOOK.  Indexes that provide the same order would drive the only
 * one out before paths can be chosen, so they are removed.
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
 * planner_hook.  To simplify an expression the planner calls functions, and
 * these may have statements of their own planned, with the rights of others.
 * The doctor tells nothing of such statements and does not change their plans.
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

/* Plans a statement while it is observed. */
static PlannedStmt *
plan_watched(Query *query, const char *source, PlanWatch *how)
{
	PlannedStmt *plan = NULL;

	if (plan_watch != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("gpuvec_doctor is called while it plans a statement")));

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

/* Returns whether a node is a scan that is searched for. */
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
 * Finds the first scan that is searched for in a plan and those below it, and
 * what is above it.
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
 * Searches a plan for the scan by which it reads a table, in the order of an
 * index or in any way.
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
 * Returns why the index seems to cost more, if there is more to say than
 * numbers, and what to do.
 */
static IvfpqReason
why_dearer(const TableReport *report, const Plan *chosen)
{
	IvfpqReason why = {NULL, NULL};
	const IndexScan *scan = (const IndexScan *) chosen;

	/* an index not of ours in whose order the table is read */
	if (chosen != NULL && IsA(chosen, IndexScan) &&
		scan->indexorderby != NIL && !IvfpqIsOursByOid(scan->indexid))
	{
		Relation	index = index_open(scan->indexid, AccessShareLock);

		why.state = psprintf("that one, of %s, brings the same order",
							 get_am_name(index->rd_rel->relam));
		why.advice = "SET gpuvec.use_index = always, and compare their times";
		index_close(index, AccessShareLock);
	}
	else if (report->limit == 0 && !report->limit_is_known)
	{
		why.state = "LIMIT is not known when this is planned, so a tenth of all rows is taken to be wanted";
		why.advice = "write a number, or SET plan_cache_mode = force_custom_plan";
	}
	else if (report->is_unlimited)
		why.state = "no LIMIT, the whole order is wanted";
	else if (report->is_kept && report->limit <= report->tuples * LARGE_FRACTION)
		why.advice = "put the table, with its conditions, ORDER BY and LIMIT, into a sub-select, LEFT JOIN what it finds, and keep ORDER BY and LIMIT outside";
	else if (report->tuples < FEW_ROWS)
		why.state = "of so few rows that is quicker";
	else if (report->limit > report->tuples * LARGE_FRACTION)
		why.state = psprintf("LIMIT asks for %.0f of %.0f rows", report->limit,
							 report->tuples);
	else if (report->is_joined)
		why.state = "rows of a join are wanted, which may take many of the nearest";
	else if (report->filters == NIL)
		why.advice = psprintf("ANALYZE %s, if its statistics are old",
							  IvfpqRelationName(report->table));
	return why;
}

/*
 * Plans the statement by an index that could provide the order, and is not
 * used.  Returns what the planner takes it to cost.
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
		return "not used: the plan that the order of this index would serve is not among those that the planner looks at";
	return psprintf("not used: the planner takes the statement to cost %.0f by this index and %.0f by %s, %.1f times as much",
					by_index, cost, name_scan(scan),
					by_index / Max(cost, 0.01));
}

/* Adds the rows of one index, or of a table without one. */
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
		IvfpqAddFinding(result, name, "used", NULL);
	else if (report->why.state != NULL)
		IvfpqAddFinding(result, name,
						psprintf(has_index ? "not used: %s" : "%s",
								 report->why.state), report->why.advice);
	else if (report->is_foreign && !search.is_sorted)
		IvfpqAddFinding(result, name, "its server brings the order", NULL);
	else if (!report->is_foreign && !enable_indexscan)
		IvfpqAddFinding(result, name,
						"not used: enable_indexscan is off",
						"SET enable_indexscan = on");
	else
	{
		IvfpqReason why = why_dearer(report,
									 report->is_foreign ? NULL : search.found);
		const char *state = report->is_foreign ?
		"its server could bring the order; the planner takes it to cost less to fetch and to sort all rows" :
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
 * Returns whether the same was said of an index before: a statement may name a
 * table twice.
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
						"it reads no table that has a gpuivfpq index, or could do with one",
						NULL);
	return (Datum) 0;
}
