/*
 * doctorquery.c
 *		gpuvec_doctor(query): why a statement does not use an index.
 *
 * The statement is planned, as EXPLAIN plans it, and never executed.  While
 * the planner works it is observed: when it has made all paths of a table with
 * an index of ours, what can be said of that table is noted.  Where an index
 * is not used although it could provide the order, the statement is planned
 * once more, with no other path to that table: the difference is what the
 * planner takes the index to cost more.
 *
 * Parameters have the types that the statement gives them, and no values: the
 * plan is the generic one.
 */
#include "postgres.h"

#include <math.h>

#include "access/genam.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/pg_index.h"
#include "catalog/pg_opclass.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "nodes/pathnodes.h"
#include "optimizer/appendinfo.h"
#include "optimizer/clauses.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/pathnode.h"
#include "optimizer/paths.h"
#include "optimizer/plancat.h"
#include "optimizer/planner.h"
#include "optimizer/restrictinfo.h"
#include "optimizer/tlist.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteManip.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "am/common/options.h"
#include "am/scan/scan.h"
#include "inspect/doctor.h"
#include "pgcompat.h"
#include "planner/planner.h"

static bool is_no_search(const PlannerInfo *root, const RelOptInfo *rel,
							IndexOptInfo *info);
static bool is_ordered_by(PlannerInfo *root, const RelOptInfo *rel,
							 IndexOptInfo *info);
static IvfpqReason why_no_order(PlannerInfo *root, RelOptInfo *rel,
								   IndexOptInfo *info, bool has_path);
static OpExpr *ordered_distance(PlannerInfo *root, RelOptInfo *rel,
									Var **column, char **class);
static IvfpqReason why_no_index(PlannerInfo *root, RelOptInfo *rel);
static void why_filters(PlannerInfo *root, IndexOptInfo *info,
							const IndexPath *path, List **reasons);
static void why_joins(PlannerInfo *root, IndexOptInfo *info,
						  List **reasons);
static bool is_order_sent(const PlannerInfo *root, const RelOptInfo *rel);
static IvfpqReason why_not_sent(Oid table, Oid operator);
static Plan *scan_in_plan(const PlannedStmt *stmt, Oid table, Oid index);
static bool is_sorted_in_plan(const PlannedStmt *stmt, Oid table);
static char *name_scan(const Plan *plan);

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

static Watch *observer = NULL;	/* NULL: no statement is observed */
static bool is_hooked = false;
static planner_hook_type previous_planner = NULL;
static set_rel_pathlist_hook_type previous_pathlist = NULL;
static IvfpqInfoHook previous_info = NULL;

PG_FUNCTION_INFO_V1(gpuvec_doctor_statement);

/* ---- while the planner works */

/*
 * Do left joins alone add to the rows of a table, so that its first rows in
 * their order come first in the statement, each once or oftener?
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

static void
see_index(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	Sight	   *sight;
	IndexPath  *path;

	if (is_no_search(root, rel, info))
		return;
	sight = add_sight(root, rel, info->indexoid);
	path = IvfpqOrderedPath(root, info, NIL);
	sight->why = why_no_order(root, rel, info, path != NULL);
	if (info->nkeycolumns > 1 && is_ordered_by(root, rel, info))
	{
		why_filters(root, info,
						path && IsA(path, IndexPath) ? path : NULL,
						&sight->filters);
		why_joins(root, info, &sight->filters);
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

/* An index of ours that the planner was not shown. */
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

/* All that can be said of a table. */
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
		IvfpqReason why = why_no_index(root, rel);

		if (why.state != NULL)
			add_sight(root, rel, InvalidOid)->why = why;
	}
	list_free(indexes);
	table_close(table, NoLock);
}

static void
see_foreign(PlannerInfo *root, RelOptInfo *rel)
{
	Var		   *column;
	char	   *class;
	OpExpr	   *distance = ordered_distance(root, rel, &column, &class);
	Sight	   *sight;

	if (distance == NULL)
		return;
	sight = add_sight(root, rel, InvalidOid);
	sight->is_foreign = true;
	if (!is_order_sent(root, rel))
		sight->why = why_not_sent(sight->table, distance->opno);
}

/*
 * Let all paths of a table but the one by the order of an index cost what no
 * plan would.  The ordered path is not among them in a join (../filter).
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
 * Is it the planner's own "ORDER BY ... LIMIT 1" for min() or max()?  What
 * it was made of has been seen.
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
 * IVFPQ_INFO_HOOK.  Indexes that bring the same order would drive the
 * only one out before paths can be chosen.
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
 * Nothing is told of such, nor are they planned otherwise.
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

/* ---- what is said */

/*
 * The access method of an index not of ours by whose order a scan reads, or
 * NULL.
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

/* The index could bring the order, and is not used. */
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

/* Rows of one index. */
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
 * Was the same said of an index before?  A statement may name a table twice.
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

/* Error context: a position is one in the doctor's argument. */
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

/* ----
 * Why an index does not provide the order that a statement requests.
 *
 * Asked of the planner's own structures, when it has made all paths of a
 * table: expressions are simplified, views and policies are part of the
 * statement, and what is to be ordered is known.  A partition's order is its
 * parent's, in its own columns.
 */

static const IvfpqReason no_reason = {NULL, NULL};

static IvfpqReason
reason(char *state, char *advice)
{
	IvfpqReason reason = {state, advice};

	return reason;
}

/* ---- names */

/* The index's column, as a user would write it. */
static char *
index_column(const IndexOptInfo *info, int column)
{
	Datum		name = DirectFunctionCall3(pg_get_indexdef_ext,
										   ObjectIdGetDatum(info->indexoid),
										   Int32GetDatum(column + 1),
										   BoolGetDatum(true));

	return text_to_cstring(DatumGetTextPP(name));
}

/*
 * Returns whether an operator is one of those that distances are written with.
 */
static bool
is_distance_operator(Oid operator)
{
	static const char *const names[] = {
		"<->", "<#>", "<=>", "<+>", "<~>", "<%>"
	};
	char	   *name = get_opname(operator);

	for (int i = 0; name != NULL && i < (int) lengthof(names); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

/* The operator that the index's class serves, or InvalidOid. */
static Oid
operator_of(const IndexOptInfo *info)
{
	for (int16 strategy = 1; strategy <= 3; strategy++)
	{
		Oid			operator = get_opfamily_member(info->opfamily[0],
												   info->opcintype[0],
												   info->opcintype[0],
												   strategy);

		if (OidIsValid(operator))
			return operator;
	}
	return InvalidOid;
}

/* The name of the index's class; *type gets what it begins with. */
static char *
class_of(const IndexOptInfo *info, char **type)
{
	HeapTuple	index = SearchSysCache1(INDEXRELID,
										ObjectIdGetDatum(info->indexoid));
	HeapTuple	tuple;
	oidvector  *classes;
	Datum		datum;
	bool		isnull;
	char	   *name;

	*type = NULL;
	if (!HeapTupleIsValid(index))
		return NULL;
	datum = SysCacheGetAttr(INDEXRELID, index, Anum_pg_index_indclass,
							&isnull);
	classes = (oidvector *) DatumGetPointer(datum);
	tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(classes->values[0]));
	ReleaseSysCache(index);
	if (!HeapTupleIsValid(tuple))
		return NULL;
	name = pstrdup(NameStr(((Form_pg_opclass) GETSTRUCT(tuple))->opcname));
	ReleaseSysCache(tuple);
	if (strchr(name, '_') != NULL)
		*type = pnstrdup(name, strchr(name, '_') - name);
	return name;
}

/* The class that would serve a distance operator, or NULL. */
static char *
class_for(const char *type, Oid operator)
{
	char	   *name = get_opname(operator);
	const char *metric = name == NULL || type == NULL ? NULL :
	strcmp(name, "<->") == 0 ? "l2" : strcmp(name, "<#>") == 0 ? "ip" :
	strcmp(name, "<=>") == 0 ? "cosine" : NULL;

	return metric ? psprintf("%s_%s_ops", type, metric) : NULL;
}

/* ---- what an expression holds */

typedef struct ColumnSearch
{
	IndexOptInfo *info;
	int			column;
	Oid			sortfamily;
	Node	   *found;
} ColumnSearch;

/* Find the index's column, as it is or within something else. */
static bool
find_column(Node *node, void *context)
{
	ColumnSearch *search = context;

	if (node == NULL)
		return false;
	if (match_index_to_operand(node, search->column, search->info))
	{
		search->found = node;
		return true;
	}
	return expression_tree_walker(node, find_column, context);
}

static bool
has_column(Node *node, IndexOptInfo *info)
{
	ColumnSearch search = {info, 0, InvalidOid, NULL};

	return find_column(node, &search);
}

/* Finds a distance that the index orders by, or one that it might. */
static bool
find_distance(Node *node, void *context)
{
	ColumnSearch *search = context;

	if (node == NULL)
		return false;
	if (IsA(node, OpExpr) && is_distance_operator(((OpExpr *) node)->opno) &&
		has_column(node, search->info))
	{
		search->found = node;
		return true;
	}
	return expression_tree_walker(node, find_distance, context);
}

/* The expression in a partition's columns, which is made for its parent's. */
static Node *
in_columns_of(PlannerInfo *root, const RelOptInfo *rel, Node *expr)
{
	AppendRelInfo *chain[32];
	int			n = 0;
	Index		relid = rel->relid;

	while (root->append_rel_array != NULL &&
		   root->append_rel_array[relid] != NULL && n < (int) lengthof(chain))
	{
		chain[n++] = root->append_rel_array[relid];
		relid = chain[n - 1]->parent_relid;
	}
	while (n > 0)
		expr = adjust_appendrel_attrs(root, expr, 1, &chain[--n]);
	return expr;
}

/* ---- reasons */

/* Is all of FROM tables, joined by inner joins? */
static bool
is_inner_joined(Node *node)
{
	ListCell   *lc;

	if (IsA(node, RangeTblRef))
		return true;
	if (IsA(node, JoinExpr))
		return ((JoinExpr *) node)->jointype == JOIN_INNER &&
			is_inner_joined(((JoinExpr *) node)->larg) &&
			is_inner_joined(((JoinExpr *) node)->rarg);
	foreach(lc, ((FromExpr *) node)->fromlist)
		if (!is_inner_joined(lfirst(lc)))
		return false;
	return true;
}

/*
 * Returns whether the order is that of rows as they are joined, cut off behind
 * LIMIT of them.
 */
static bool
is_plain_limit(const Query *parse)
{
	return parse->limitCount != NULL && parse->limitOffset == NULL &&
		parse->limitOption == LIMIT_OPTION_COUNT &&
		parse->groupClause == NIL && parse->groupingSets == NIL &&
		!parse->hasAggs && !parse->hasWindowFuncs &&
		!parse->hasTargetSRFs && parse->distinctClause == NIL &&
		parse->setOperations == NULL && parse->rowMarks == NIL;
}

/* The other side of a distance is no query that is the same for all rows. */
static IvfpqReason
why_query(PlannerInfo *root, const RelOptInfo *rel, Node *query)
{

	if (contain_volatile_functions(query))
		return reason("the query vector is volatile: it may be another one for each row",
					  "if it is one for all rows: ORDER BY column <-> (SELECT ...)");
	if (!contain_var_clause(query))
		return no_reason;
	if (bms_equal(pull_varnos(root, query), rel->relids))
		return reason("the distance is between two columns of a row, not to one query",
					  NULL);
	return reason("the query vector is a column of another table that is joined: there is no one order",
				  is_plain_limit(root->parse) &&
				  is_inner_joined((Node *) root->parse->jointree) ?
				  "put the table with its conditions into LATERAL (SELECT ... ORDER BY ... LIMIT n), and keep the same ORDER BY and LIMIT outside" :
				  NULL);
}

/* A distance that is not the index's: by which of its sides? */
static IvfpqReason
why_distance(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
			 OpExpr *expr)
{
	Node	   *left = linitial(expr->args);
	Node	   *right = lsecond(expr->args);
	Node	   *column = has_column(left, info) ? left : right;
	Node	   *query = column == left ? right : left;
	char	   *type;
	char	   *class = class_of(info, &type);
	char	   *needed = class_for(type, expr->opno);
	IvfpqReason why;

	if (!match_index_to_operand(column, 0, info))
		return reason(psprintf("the column %s is cast to %s, or is in an expression: that is not what is indexed",
							   index_column(info, 0),
							   format_type_be(exprType(column))),
					  "index that expression");
	why = why_query(root, rel, query);
	if (why.state != NULL)
		return why;
	if (get_op_opfamily_strategy(expr->opno, info->opfamily[0]) == 0 &&
		!OidIsValid(get_op_opfamily_sortfamily(expr->opno, info->opfamily[0])))
		return reason(psprintf("ORDER BY is by the operator %s (%s, %s); the index, of class %s, serves %s",
							   get_opname(expr->opno),
							   format_type_be(exprType(left)),
							   format_type_be(exprType(right)),
							   class ? class : "?",
							   OidIsValid(operator_of(info)) ?
							   get_opname(operator_of(info)) : "no distance"),
					  needed == NULL || (class && strcmp(needed, class) == 0) ?
					  NULL : psprintf("create an index with class %s", needed));
	return no_reason;
}

/*
 * Returns whether this is a call of a distance's function, where the index
 * needs the operator.
 */
static bool
is_distance_call(const FuncExpr *call, const IndexOptInfo *info)
{
	for (int16 strategy = 1; strategy <= 3; strategy++)
	{
		Oid			operator = get_opfamily_member(info->opfamily[0],
												   info->opcintype[0],
												   info->opcintype[0],
												   strategy);

		if (OidIsValid(operator) && get_opcode(operator) == call->funcid)
			return true;
	}
	return false;
}

/* Returns whether it is known that no row lacks a vector. */
static bool
has_all_vectors(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info)
{
	int			attno = info->indexkeys[0];
	ListCell   *lc;

	if (attno > 0)
	{
		HeapTuple	tuple =
		SearchSysCache2(ATTNUM,
						ObjectIdGetDatum(planner_rt_fetch(rel->relid, root)->relid),
						Int16GetDatum(attno));
		bool		notnull = HeapTupleIsValid(tuple) &&
		((Form_pg_attribute) GETSTRUCT(tuple))->attnotnull;

		if (HeapTupleIsValid(tuple))
			ReleaseSysCache(tuple);
		if (notnull)
			return true;
	}
	foreach(lc, rel->baserestrictinfo)
	{
		NullTest   *test = (NullTest *) lfirst_node(RestrictInfo, lc)->clause;

		if (IsA(test, NullTest) && test->nulltesttype == IS_NOT_NULL &&
			match_index_to_operand((Node *) test->arg, 0, info))
			return true;
	}
	return false;
}

/* A finite number, not 0, that is the same for all rows; else 0. */
static double
constant_number(Node *node)
{
	Const	   *value = (Const *) node;

	if (!IsA(value, Const) || value->constisnull ||
		value->consttype != FLOAT8OID ||
		!isfinite(DatumGetFloat8(value->constvalue)))
		return 0;
	return DatumGetFloat8(value->constvalue);
}

/*
 * Does an expression around a distance ascend with it, 1, or descend, -1?
 * Where it may be equal for several distances any order of these will do.  0:
 * neither, as far as is known.
 */
static int
slope_of(Node *expr, Node *distance)
{
	Oid			function;
	List	   *args;
	double		left;
	double		right;

	check_stack_depth();
	while (IsA(expr, RelabelType))
		expr = (Node *) ((RelabelType *) expr)->arg;
	if (expr == distance)
		return 1;
	if (IsA(expr, FuncExpr))
	{
		function = ((FuncExpr *) expr)->funcid;
		args = ((FuncExpr *) expr)->args;
		return function == F_FLOAT4_FLOAT8 || function == F_NUMERIC_FLOAT8 ||
			function == F_DSQRT || function == F_SQRT_FLOAT8 ?
			slope_of(linitial(args), distance) : 0;
	}
	if (!is_opclause(expr))
		return 0;
	function = get_opcode(((OpExpr *) expr)->opno);
	args = ((OpExpr *) expr)->args;
	if (function == F_FLOAT8UM)
		return -slope_of(linitial(args), distance);
	if (list_length(args) != 2)
		return 0;
	left = constant_number(linitial(args));
	right = constant_number(lsecond(args));
	switch (function)
	{
		case F_FLOAT8PL:
			return left != 0 ? slope_of(lsecond(args), distance) :
				right != 0 ? slope_of(linitial(args), distance) : 0;
		case F_FLOAT8MI:
			return left != 0 ? -slope_of(lsecond(args), distance) :
				right != 0 ? slope_of(linitial(args), distance) : 0;
		case F_FLOAT8MUL:
			return left != 0 ?
				(left > 0 ? 1 : -1) * slope_of(lsecond(args), distance) :
				right != 0 ?
				(right > 0 ? 1 : -1) * slope_of(linitial(args), distance) : 0;
		case F_FLOAT8DIV:
			return right != 0 ?
				(right > 0 ? 1 : -1) * slope_of(linitial(args), distance) : 0;
		default:
			return 0;
	}
}

/*
 * ORDER BY an expression around the index's distance.  The distance itself has
 * the same order where that ascends with it; but rows without one, NULL or
 * NaN, stay last.
 */
static IvfpqReason
why_around(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
		   Node *expr, Node *distance)
{
	char	   *state = "ORDER BY is by an expression around the distance";
	const PathKey *key = root->sort_pathkeys == NIL ? NULL :
	linitial(root->sort_pathkeys);
	int			slope = slope_of(expr, distance);
	bool		has_first;

	if (key == NULL || slope == 0 || IvfpqIsAscending(key) != (slope > 0))
		return reason(state, NULL);
	has_first = (key->pk_nulls_first && !has_all_vectors(root, rel, info)) ||
		(slope < 0 && strcmp(get_opname(((OpExpr *) distance)->opno), "<=>") == 0);
	return reason(state,
				  psprintf("order by the distance itself, %s %s query, ascending, and compute the expression among what is selected%s",
						   index_column(info, 0),
						   get_opname(((OpExpr *) distance)->opno),
						   has_first ?
						   "; but not if rows without a distance (no vector, or by cosine a vector of zeros), which now come first, are wanted" : ""));
}

/* ORDER BY begins with an expression that is no distance of the index. */
static IvfpqReason
why_expression(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info,
			   Node *expr)
{
	ColumnSearch search = {info, 0, InvalidOid, NULL};
	char	   *column = index_column(info, 0);
	char	   *operator = OidIsValid(operator_of(info)) ?
	get_opname(operator_of(info)) : "<->";

	while (IsA(expr, RelabelType))
		expr = (Node *) ((RelabelType *) expr)->arg;
	if (IsA(expr, Const) && ((Const *) expr)->constisnull)
		return reason("the query vector is NULL, so all rows are equally near",
					  "leave such a search out");
	if (!has_column(expr, info))
		return reason(psprintf("ORDER BY does not begin with a distance to %s",
							   column),
					  NULL);
	if (IsA(expr, OpExpr) && list_length(((OpExpr *) expr)->args) == 2 &&
		is_distance_operator(((OpExpr *) expr)->opno))
		return why_distance(root, rel, info, (OpExpr *) expr);
	if (IsA(expr, FuncExpr) && is_distance_call((FuncExpr *) expr, info))
		return reason("ORDER BY calls the distance's function",
					  psprintf("write the operator: ORDER BY %s %s query",
							   column, operator));
	if (find_distance(expr, &search))
	{
		IvfpqReason why = why_distance(root, rel, info,
									   (OpExpr *) search.found);

		return why.state != NULL ? why :
			why_around(root, rel, info, expr, search.found);
	}
	return reason(psprintf("ORDER BY is by an expression of %s that is no distance",
						   column), NULL);
}

/*
 * Is this a WITH query that is planned by itself, and would give the same rows
 * if it were a part of the statement?  Such are planned in their order, before
 * all else.
 */
static bool
is_separate_with(const PlannerInfo *root)
{
	const PlannerInfo *above = root->parent_root;
	const		CommonTableExpr *with;
	const Query *query;

	if (above == NULL ||
		list_length(above->cte_plan_ids) >= list_length(above->parse->cteList))
		return false;
	with = list_nth_node(CommonTableExpr, above->parse->cteList,
						 list_length(above->cte_plan_ids));
	query = (const Query *) with->ctequery;
	return !with->cterecursive && query->commandType == CMD_SELECT &&
		query->rowMarks == NIL &&
		!contain_volatile_functions(with->ctequery);
}

/* Returns whether one of the conditions on a table is on the distance. */
static bool
has_distance_condition(const RelOptInfo *rel, IndexOptInfo *info)
{
	ColumnSearch search = {info, 0, InvalidOid, NULL};
	ListCell   *lc;

	foreach(lc, rel->baserestrictinfo)
	{
		if (find_distance((Node *) lfirst_node(RestrictInfo, lc)->clause,
						  &search))
			return true;
	}
	return false;
}

/*
 * Returns whether a table is read for something else than its nearest rows: by
 * a sub-select in an expression, as for the query's vector, that has no
 * distance.
 */
static bool
is_no_search(const PlannerInfo *root, const RelOptInfo *rel,
				IndexOptInfo *info)
{
	ColumnSearch search = {info, 0, InvalidOid, NULL};
	ListCell   *lc;

	if (root->parent_root == NULL || root->parse->sortClause != NIL ||
		root->parent_root->parse->cteList != NIL)
		return false;
	foreach(lc, root->parent_root->parse->rtable)
	{
		/* it may be this one */
		if (lfirst_node(RangeTblEntry, lc)->rtekind == RTE_SUBQUERY)
			return false;
	}
	return !find_distance((Node *) root->processed_tlist, &search) &&
		!has_distance_condition(rel, info);
}

/* Nothing orders rows where the table is read. */
static IvfpqReason
why_without_order(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	const PlannerInfo *above;

	if (root->parse->hasAggs || root->parse->groupClause != NIL)
	{
		ColumnSearch search = {info, 0, InvalidOid, NULL};

		if (find_distance((Node *) root->processed_tlist, &search))
			return reason("GROUP BY or an aggregate takes all rows, in no order",
						  NULL);
	}
	if (has_distance_condition(rel, info))
		return reason("a condition on the distance without ORDER BY is answered exactly, and by no index",
					  "if nearly all of these rows are enough: SET gpuvec.radius_recall to the share, .99 for instance");
	for (above = root->parent_root; above != NULL; above = above->parent_root)
		if (above->parse->sortClause != NIL)
			return reason("ORDER BY stands outside of the sub-select or WITH query that reads the table",
						  is_separate_with(root) ?
						  "write AS NOT MATERIALIZED behind the name of the WITH query" :
						  NULL);
	return reason("nothing orders rows by their distance where the table is read",
				  NULL);
}

/* Finds window functions that have to know how many rows there are. */
static bool
counts_rows(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, WindowFunc))
		switch (((WindowFunc *) node)->winfnoid)
		{
			case F_NTILE:
			case F_PERCENT_RANK_:
			case F_CUME_DIST_:
				return true;
		}
	return expression_tree_walker(node, counts_rows, context);
}

/*
 * Returns whether a window function needs all rows before it returns the first
 * one.  It does not if it is over the rows so far, in the order of ORDER BY.
 */
static bool
has_window_of_all(const Query *parse, List *targets)
{
	const int	so_far = FRAMEOPTION_START_UNBOUNDED_PRECEDING |
	FRAMEOPTION_END_CURRENT_ROW;
	ListCell   *lc;

	if (!parse->hasWindowFuncs)
		return false;
	foreach(lc, parse->windowClause)
	{
		const		WindowClause *window = lfirst_node(WindowClause, lc);

		if (window->partitionClause != NIL || window->orderClause == NIL ||
			parse->sortClause == NIL ||
			linitial_node(SortGroupClause, window->orderClause)->tleSortGroupRef !=
			linitial_node(SortGroupClause, parse->sortClause)->tleSortGroupRef ||
			(window->frameOptions & so_far) != so_far)
			return true;
	}
	return counts_rows((Node *) targets, NULL);
}

/* Something needs all rows, before ORDER BY. */
static IvfpqReason
why_grouped(const PlannerInfo *root)
{
	const Query *parse = root->parse;

	if (parse->setOperations != NULL)
		return reason("UNION, INTERSECT or EXCEPT stands between ORDER BY and the table",
					  NULL);
	if (parse->groupClause != NIL || parse->groupingSets != NIL ||
		parse->hasAggs)
		return reason("GROUP BY or an aggregate stands between ORDER BY and the table",
					  NULL);
	if (parse->hasTargetSRFs)
		return reason("a function among what is selected makes several rows of one",
					  NULL);
	if (has_window_of_all(parse, root->processed_tlist))
		return reason("a window function wants all rows: it has PARTITION BY, another order or frame, or counts them, as count(*) OVER () does",
					  NULL);
	return no_reason;
}

/* The table or, of a partition, the one that the statement names. */
static Relids
relids_of(const RelOptInfo *rel)
{
	return rel->top_parent_relids ? rel->top_parent_relids : rel->relids;
}

/*
 * Returns why, if an outer join looks up rows of the table, or makes rows of
 * NULLs.
 */
static IvfpqReason
why_looked_for(const PlannerInfo *root, const RelOptInfo *rel)
{
	ListCell   *lc;

	foreach(lc, root->join_info_list)
	{
		SpecialJoinInfo *join = lfirst(lc);

		if (bms_overlap(relids_of(rel), join->syn_righthand) ||
			(join->jointype == JOIN_FULL &&
			 bms_overlap(relids_of(rel), join->syn_lefthand)))
			return reason("the table is on the inner side of an outer join, or of IN or EXISTS: its rows come in the order of another one",
						  NULL);
	}
	return no_reason;
}

/* All rows are requested, or they come in the order of another table. */
static IvfpqReason
why_unlimited(const PlannerInfo *root, const RelOptInfo *rel)
{
	if (root->tuple_fraction <= 0 && enable_seqscan && enable_sort)
		return reason("no LIMIT: the whole order is wanted, and all rows are sorted for it",
					  "if the first rows are enough say so by LIMIT, or read them from a cursor (DECLARE); FOR loops of PL/pgSQL and fetch sizes of drivers look like no LIMIT");
	if (!enable_nestloop && bms_membership(root->all_baserels) == BMS_MULTIPLE)
		return reason("in a join its order is kept by nested loops only, and enable_nestloop is off",
					  "SET enable_nestloop = on");
	return why_looked_for(root, rel);
}

/* The direction of the first key. */
static IvfpqReason
why_direction(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info)
{
	const PathKey *key;

	if (root->sort_pathkeys == NIL)
		return no_reason;
	key = linitial(root->sort_pathkeys);
	if (!IvfpqIsAscending(key))
		return reason("ORDER BY is DESC: an index finds the nearest rows, not the farthest",
					  NULL);
	if (key->pk_nulls_first)
		return reason("ORDER BY has NULLS FIRST, and the index has no rows without a vector",
					  has_all_vectors(root, rel, info) ?
					  "leave it out: no row lacks a vector" : NULL);
	return no_reason;
}

/*
 * Returns whether the first key of the requested order is a distance of the
 * index.
 */
static bool
is_first_key(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info)
{
	PathKey    *key;
	ListCell   *lc;

	if (root->query_pathkeys == NIL)
		return false;
	key = linitial(root->query_pathkeys);
	if (!IvfpqIsAscending(key) || key->pk_nulls_first)
		return false;
	foreach(lc, key->pk_eclass->ec_members)
	{
		EquivalenceMember *member = lfirst(lc);
		Oid			sortfamily;

		if (!member->em_is_child &&
			IvfpqMatchDistance(info, (Expr *)
							   in_columns_of(root, rel,
												(Node *) member->em_expr),
							   &sortfamily) != NULL)
			return true;
	}
	return false;
}

/* Does ORDER BY begin with a distance of the index, ascending? */
static bool
is_ordered_by(PlannerInfo *root, const RelOptInfo *rel, IndexOptInfo *info)
{
	Node	   *expr;
	Oid			sortfamily;
	const PathKey *key;

	if (root->parse->sortClause == NIL || root->sort_pathkeys == NIL)
		return false;
	key = linitial(root->sort_pathkeys);
	expr = get_sortgroupclause_expr(linitial(root->parse->sortClause),
									root->processed_tlist);
	return IvfpqIsAscending(key) && !key->pk_nulls_first &&
		IvfpqMatchDistance(info, (Expr *) in_columns_of(root, rel, expr),
						   &sortfamily) != NULL;
}

/* Late rows would be out of an order that something relies on. */
static IvfpqReason
why_relaxed(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info)
{
	char	   *advice = "SET gpuvec.scan_order = strict";

	if (ivfpq_order != IVFPQ_ORDER_RELAXED ||
		!is_first_key(root, rel, info) || !IvfpqReliesOnOrder(root))
		return no_reason;
	if (root->query_pathkeys == root->sort_pathkeys &&
		list_length(root->query_pathkeys) > 1)
		return reason("ORDER BY has further keys, and gpuvec.scan_order is relaxed",
					  advice);
	return reason("DISTINCT, GROUP BY, a window function, WITH TIES, UNION or a join would rely on the order of the distance, and gpuvec.scan_order is relaxed",
				  advice);
}

/* The predicate of a partial index, as it is written. */
static char *
predicate_of(Oid indexoid)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(indexoid));
	char	   *words = "its WHERE";
	Datum		predicate;
	bool		isnull;

	if (!HeapTupleIsValid(tuple))
		return words;
	predicate = SysCacheGetAttr(INDEXRELID, tuple, Anum_pg_index_indpred,
								&isnull);
	if (!isnull)
	{
		Oid			table = ((Form_pg_index) GETSTRUCT(tuple))->indrelid;

		predicate = DirectFunctionCall2(pg_get_expr, predicate,
										ObjectIdGetDatum(table));
		words = text_to_cstring(DatumGetTextPP(predicate));
	}
	ReleaseSysCache(tuple);
	return words;
}

/*
 * Why is a table not read by the order of this index, by a path that there is
 * or without one?  No reason: there may be a plan that does.
 */
static IvfpqReason
why_no_order(PlannerInfo *root, RelOptInfo *rel, IndexOptInfo *info,
				bool has_path)
{
	const Query *parse = root->parse;
	IvfpqReason why;
	Node	   *expr;
	Oid			sortfamily;

	if (has_path)
	{
		why = why_grouped(root);
		return why.state != NULL ? why : why_unlimited(root, rel);
	}
	if (info->indpred != NIL && !info->predOK)
		return reason(psprintf("the index has only rows with %s, and the statement's conditions do not say that it wants no others",
							   predicate_of(info->indexoid)),
					  "if it wants no others, add that condition to WHERE, with constants as in the index");
	if (planner_rt_fetch(rel->relid, root)->tablesample != NULL)
		return reason("TABLESAMPLE reads the table", NULL);
	why = why_relaxed(root, rel, info);
	if (why.state != NULL)
		return why;
	if (parse->sortClause == NIL && parse->setOperations == NULL)
		return why_without_order(root, rel, info);
	why = why_grouped(root);
	if (why.state != NULL || parse->sortClause == NIL)
		return why;

	expr = get_sortgroupclause_expr(linitial(parse->sortClause),
									root->processed_tlist);
	/* the outer join may have changed the column to NULL */
	if (bms_overlap(pull_varnos(root, expr), relids_of(rel)))
		why = why_looked_for(root, rel);
	if (why.state != NULL)
		return why;
	expr = in_columns_of(root, rel, expr);
	if (IvfpqMatchDistance(info, (Expr *) expr, &sortfamily) == NULL)
	{
		why = why_expression(root, rel, info, expr);
		if (why.state != NULL)
			return why;
	}
	why = why_direction(root, rel, info);
	if (why.state != NULL)
		return why;
	if (IvfpqWouldLeak(root, info, false))
		return reason("a policy hides rows from you, and the index's expression calls functions that are not in C",
					  "index the column itself, or an expression of C functions");
	if (ivfpq_use_index == IVFPQ_USE_NEVER)
		return reason("gpuvec.use_index is never",
					  "SET gpuvec.use_index = auto");
	if (!enable_incremental_sort && list_length(root->query_pathkeys) > 1)
		return reason("ORDER BY has further keys, and enable_incremental_sort is off",
					  "SET enable_incremental_sort = on");
	why = why_unlimited(root, rel);
	if (why.state == NULL && parse->distinctClause != NIL)
		return reason("DISTINCT stands between ORDER BY and the table", NULL);
	return why;
}

/*
 * The class that would serve a distance operator on a type, or NULL: other
 * extensions give operators of the same names to types of their own.  Classes
 * of pgvector's types may not be there yet.
 */
static char *
class_for_type(Oid type, Oid operator)
{
	char	   *name = format_type_be(type);

	if (type == FLOAT4ARRAYOID)
		return class_for("real", operator);
	if (!OidIsValid(GetDefaultOpClass(type, get_am_oid("gpuivfpq", true))) &&
		strcmp(name, "vector") != 0 && strcmp(name, "halfvec") != 0)
		return NULL;
	return class_for(name, operator);
}

/*
 * The distance that the statement orders by first, if it is one of a column of
 * this table; or NULL.  Sets the column and the class that would serve it.
 */
static OpExpr *
ordered_distance(PlannerInfo *root, RelOptInfo *rel, Var **column,
					 char **class)
{
	const Query *parse = root->parse;
	OpExpr	   *distance;
	ListCell   *lc;

	if (parse->sortClause == NIL)
		return NULL;
	distance = (OpExpr *)
		in_columns_of(root, rel,
						 get_sortgroupclause_expr(linitial(parse->sortClause),
												  root->processed_tlist));
	if (!IsA(distance, OpExpr) || !is_distance_operator(distance->opno))
		return NULL;
	foreach(lc, distance->args)
	{
		Var		   *var = lfirst(lc);

		while (IsA(var, RelabelType))	/* a domain */
			var = (Var *) ((RelabelType *) var)->arg;
		if (!IsA(var, Var) || var->varno != (int) rel->relid ||
			var->varattno <= 0)
			continue;
		*class = class_for_type(getBaseType(var->vartype), distance->opno);
		if (*class == NULL)
			continue;
		*column = var;
		return distance;
	}
	return NULL;
}

/*
 * A table without an index of ours: does the statement order by a distance of
 * one of its columns?  Then it lacks one.
 */
static IvfpqReason
why_no_index(PlannerInfo *root, RelOptInfo *rel)
{
	Oid			table = planner_rt_fetch(rel->relid, root)->relid;
	Var		   *column;
	char	   *class;

	if (ordered_distance(root, rel, &column, &class) == NULL)
		return no_reason;
	return reason("no gpuivfpq index is on it, and the statement orders by a distance to one of its columns",
				  psprintf("CREATE INDEX ON %s USING gpuivfpq (%s %s)",
						   IvfpqRelationName(table),
						   quote_identifier(get_attname(table,
														column->varattno,
														false)),
						   class));
}

/* ----
 * Why conditions on keys of an index are filters beside it, or joins.
 */

typedef struct KeySearch
{
	IndexOptInfo *info;
	int			column;			/* found: behind the vector */
} KeySearch;

/* Find a key of the index in an expression. */
static bool
find_key(Node *node, void *context)
{
	KeySearch  *search = context;

	if (node == NULL)
		return false;
	for (int column = 1; column < search->info->nkeycolumns; column++)
		if (match_index_to_operand(node, column, search->info))
		{
			search->column = column;
			return true;
		}
	return expression_tree_walker(node, find_key, context);
}

/*
 * Puts a NULL in the place of each sub-select, which only a finished plan can
 * be printed with; `context` is a list of how these NULLs are printed.
 */
static Node *
replace_subselects(Node *node, void *context)
{
	List	  **printed = context;
	Oid			type;

	if (node == NULL)
		return NULL;
	if (IsA(node, AlternativeSubPlan))
		return replace_subselects(linitial(((AlternativeSubPlan *) node)->subplans),
								  context);
	if (IsA(node, SubPlan) && ((SubPlan *) node)->testexpr != NULL)
		return replace_subselects(((SubPlan *) node)->testexpr, context);
	if (!IsA(node, SubPlan) &&
		!(IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXEC))
		return expression_tree_mutator(node, replace_subselects, context);
	type = exprType(node);
	*printed = lappend(*printed, psprintf("NULL::%s", format_type_be(type)));
	return (Node *) makeNullConst(type, -1, InvalidOid);
}

/*
 * A condition of one table, as a user would write it, with dates that every
 * session reads alike.
 */
static char *
condition_text(PlannerInfo *root, const RelOptInfo *rel, Node *clause)
{
	Oid			table = planner_rt_fetch(rel->relid, root)->relid;
	int			level = NewGUCNestLevel();
	List	   *printed = NIL;
	ListCell   *lc;
	char	   *text;

	clause = replace_subselects(copyObject(clause), &printed);
	ChangeVarNodes(clause, (int) rel->relid, 1, 0);
	(void) set_config_option("datestyle", "ISO", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	text = deparse_expression(clause,
							  deparse_context_for(get_rel_name(table), table),
							  false, false);

	AtEOXact_GUC(true, level);
	foreach(lc, printed)
	{
		const char *null = lfirst(lc);
		char	   *found = strstr(text, null);

		if (found != NULL)
			text = psprintf("%.*s(SELECT ...)%s", (int) (found - text), text,
							found + strlen(null));
	}
	return text;
}

/* Both sides of a comparison, or NULLs. */
static void
get_sides(const RestrictInfo *condition, Oid *operator, Oid *collation,
		  Node **left, Node **right)
{
	List	   *args = NIL;

	*operator = *collation = InvalidOid;
	*left = *right = NULL;
	if (is_opclause(condition->clause))
	{
		OpExpr	   *expr = (OpExpr *) condition->clause;

		args = expr->args;
		*operator = expr->opno;
		*collation = expr->inputcollid;
	}
	else if (IsA(condition->clause, ScalarArrayOpExpr))
	{
		ScalarArrayOpExpr *expr = (ScalarArrayOpExpr *) condition->clause;

		args = expr->args;
		*operator = expr->useOr ? expr->opno : InvalidOid;
		*collation = expr->inputcollid;
	}
	if (list_length(args) != 2 || !OidIsValid(*operator))
		return;
	*left = linitial(args);
	*right = lsecond(args);
}

/* Returns why the key does not answer a condition. */
static char *
why_filter(IndexOptInfo *info, int column, RestrictInfo *condition)
{
	Oid			operator;
	Oid			collation;
	Oid			wanted = info->indexcollations[column];
	Node	   *left;
	Node	   *right;
	Node	   *key;
	Node	   *value;

	if (!restriction_is_securely_promotable(condition, info->rel))
		return "a policy or a security barrier has to be asked before it";
	if (is_orclause(condition->clause))
		return "it is an OR";
	get_sides(condition, &operator, &collation, &left, &right);
	if (left == NULL)
		return "it is no comparison that keys answer";
	if (match_index_to_operand(left, column, info))
		key = left;
	else if (match_index_to_operand(right, column, info))
		key = right;
	else
	{
		key = contain_var_clause(left) ? left : right;
		return psprintf("the key is cast to %s, or is in an expression",
						format_type_be(exprType(key)));
	}
	value = key == left ? right : left;
	if (contain_var_clause(value))
		return "it compares the key with another column";
	if (contain_volatile_functions(value))
		return "what it compares the key with is volatile";
	if (key == right && IsA(condition->clause, ScalarArrayOpExpr))
		return "keys that are arrays answer @> and &&, and not ANY";
	if (OidIsValid(wanted) && wanted != collation)
		return "it is of another collation than the key";
	if (key == right)
		operator = get_commutator(operator);
	if (!OidIsValid(operator) ||
		!op_in_opfamily(operator, info->opfamily[column]))
		return psprintf("the key's class does not have its operator, %s (%s, %s)",
						OidIsValid(operator) ? get_opname(operator) : "?",
						format_type_be(exprType(left)),
						format_type_be(exprType(right)));
	return "the planner did not give it to the index";
}

/* Returns how to write a condition so that a key answers it, or NULL. */
static char *
advise_rewriting(PlannerInfo *root, IndexOptInfo *info,
				 const RestrictInfo *condition)
{
	for (int column = 1; column < info->nkeycolumns; column++)
	{
		bool		beside;
		Expr	   *better = IvfpqRewriteForKey(info, column,
												condition->clause, &beside);

		if (better != NULL)
			return psprintf(beside ? "add %s beside it" :
							"write %s in its place",
							condition_text(root, info->rel, (Node *) better));
	}
	return NULL;
}

static void
add_reason(List **reasons, char *state, char *advice)
{
	IvfpqReason *reason = palloc(sizeof(IvfpqReason));

	reason->state = state;
	reason->advice = advice;
	*reasons = lappend(*reasons, reason);
}

/*
 * Adds an IvfpqReason to *reasons for each condition on keys that is a filter,
 * or would be in a path of the index; `path` is one that there is, or NULL.
 */
static void
why_filters(PlannerInfo *root, IndexOptInfo *info, const IndexPath *path,
				List **reasons)
{
	List	   *answered = IvfpqKeyClauses(root, info,
										   path ? path->indexclauses : NIL);
	ListCell   *lc;

	foreach(lc, info->indrestrictinfo)
	{
		RestrictInfo *condition = lfirst_node(RestrictInfo, lc);
		KeySearch	search = {info, 0};

		if (condition->pseudoconstant ||
			is_redundant_with_indexclauses(condition, answered) ||
			!find_key((Node *) condition->clause, &search))
			continue;
		add_reason(reasons,
				   psprintf("%s is a filter, not a condition of the index: %s",
							condition_text(root, info->rel,
										   (Node *) condition->clause),
							why_filter(info, search.column, condition)),
				   restriction_is_securely_promotable(condition, info->rel) ?
				   advise_rewriting(root, info, condition) : NULL);
	}
}

/* ---- key IN (SELECT ...) */

/* Returns the tables of a node of FROM. */
static Relids
tables_in(Node *node)
{
	Relids		tables = NULL;
	ListCell   *lc;

	if (IsA(node, RangeTblRef))
		return bms_make_singleton(((RangeTblRef *) node)->rtindex);
	if (IsA(node, JoinExpr))
		return bms_union(tables_in(((JoinExpr *) node)->larg),
						 tables_in(((JoinExpr *) node)->rarg));
	foreach(lc, ((FromExpr *) node)->fromlist)
		tables = bms_add_members(tables, tables_in(lfirst(lc)));
	return tables;
}

/* Which key is equal to something of these tables alone?  0 = none is. */
static int
key_equal_to(PlannerInfo *root, IndexOptInfo *info, OpExpr *equal,
			 Relids tables)
{
	if (!is_opclause(equal) || list_length(equal->args) != 2)
		return 0;
	for (int i = 0; i < 2; i++)
	{
		Node	   *side = in_columns_of(root, info->rel,
											list_nth(equal->args, i));
		Node	   *other = list_nth(equal->args, 1 - i);
		Oid			operator = i == 0 ? equal->opno :
		get_commutator(equal->opno);

		if (!OidIsValid(operator) ||
			!bms_is_subset(pull_varnos(root, other), tables))
			continue;
		for (int column = 1; column < info->nkeycolumns; column++)
		{
			if (match_index_to_operand(side, column, info) &&
				get_op_opfamily_strategy(operator, info->opfamily[column]) ==
				BTEqualStrategyNumber)
				return column;
		}
	}
	return 0;
}

/*
 * Does a semi-join ask nothing else of this table than that a key is among
 * what other tables hold?  The key, or 0.
 */
static int
key_of_semi_join(PlannerInfo *root, IndexOptInfo *info, JoinExpr *join)
{
	Relids		tables = tables_in(join->rarg);
	int			key = 0;
	int			table = -1;
	ListCell   *lc;

	while ((table = bms_next_member(tables, table)) >= 0)
	{
		const RelOptInfo *rel = root->simple_rel_array[table];

		if (rel == NULL || !bms_is_empty(rel->lateral_relids))
			return 0;
	}
	foreach(lc, (List *) join->quals)
	{
		Node	   *condition = lfirst(lc);

		if (bms_is_subset(pull_varnos(root, condition), tables))
			continue;
		if (key != 0)
			return 0;
		key = key_equal_to(root, info, (OpExpr *) condition, tables);
		if (key == 0)
			return 0;
	}
	return key;
}

static void
look_for_semi_joins(PlannerInfo *root, IndexOptInfo *info, Node *node,
					List **reasons)
{
	ListCell   *lc;

	if (IsA(node, FromExpr))
		foreach(lc, ((FromExpr *) node)->fromlist)
			look_for_semi_joins(root, info, lfirst(lc), reasons);
	if (!IsA(node, JoinExpr))
		return;
	look_for_semi_joins(root, info, ((JoinExpr *) node)->larg, reasons);
	look_for_semi_joins(root, info, ((JoinExpr *) node)->rarg, reasons);
	if (((JoinExpr *) node)->jointype == JOIN_SEMI)
	{
		int			key = key_of_semi_join(root, info, (JoinExpr *) node);

		if (key == 0)
			return;
		add_reason(reasons,
				   psprintf("%s IN (SELECT ...), or EXISTS, is a join, not a condition of the index",
							index_column(info, key)),
				   psprintf("write %s = ANY (ARRAY(SELECT ...)), of the same SELECT, in its place",
							index_column(info, key)));
	}
}

/* Adds an IvfpqReason to *reasons for each join that could be a condition. */
static void
why_joins(PlannerInfo *root, IndexOptInfo *info, List **reasons)
{
	look_for_semi_joins(root, info, (Node *) root->parse->jointree, reasons);
}

/* ----
 * Is the server of a foreign table asked for a statement's order?
 *
 * If not, all of its rows come here to be sorted.  postgres_fdw sends an order
 * by operators of those extensions that the server's option "extensions"
 * names.
 */

/* Does a path of the table bring what the statement orders by first? */
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

/* The server's option "extensions", or NULL. */
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

/* Why no path brings an order by such an operator, and what to do. */
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

/* ----
 * How a finished plan reads a table.
 */

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

static bool find_scan(Plan *plan, PlanSearch *search);

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

/* Find the first node that is_scan_of says yes to. */
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
 * How a plan reads a table, by the order of an index or in any way; or NULL.
 */
static Plan *
scan_in_plan(const PlannedStmt *stmt, Oid table, Oid index)
{
	PlanSearch	search = {.stmt = stmt, .table = table, .index = index};

	find_in_statement(&search);
	return search.found;
}

/* Are rows of a table sorted before a LIMIT takes the first ones? */
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
