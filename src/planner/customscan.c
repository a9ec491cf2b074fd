/*
 * customscan.c
 *		Custom Scan (GpuvecScan): runs the node, rechecks rows, and shows the
 *		node in EXPLAIN.
 *
 * Core initializes the ordered index scan below the node, with its keys and
 * its index.  The node takes the IndexScanDesc of that scan and drives it.
 * The access method fetches rows, asks the node whether they match
 * (am/scan/scanfilter.h), and gives the node their distances.
 *
 * Each row of the node is made from a row of the table.  It has columns of the
 * table, in the order of custom_scan_tlist, and the distance.  Early
 * conditions are evaluated on the row of the table, late conditions on the row
 * of the node.
 *
 * In a recheck of READ COMMITTED, EvalPlanQual provides the row, as a row of
 * the table.  The node makes its own row from that row, too, so that its rows
 * always have the same columns.  Therefore the node does not use ExecScan.
 *
 * EXPLAIN shows the same as for core's scans, and also the search parameters
 * with which the node begins.  With ANALYZE it also shows how much the node
 * has read.  PostgreSQL 18 and later have a hook through which we add the same
 * lines to a plain index scan.  Counts of rows are shown only to users from
 * whom policies hide no rows.
 */
#include "postgres.h"

#include <float.h>
#include <math.h>

#include "access/genam.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "commands/explain.h"
#include "executor/execdebug.h"
#include "executor/executor.h"
#include "executor/nodeIndexscan.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "utils/datum.h"
#include "utils/float.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"

#include "am/common/options.h"
#include "am/scan/scan.h"
#include "page/metapage.h"
#include "pgcompat.h"
#include "planner/planner.h"

/* Layout of custom_private and custom_exprs; each change gets a new number. */
#define FILTER_LAYOUT	1

/* An IvfpqBound of a running node. */
typedef struct BoundState
{
	ExprState  *from;
	ExprState  *less;
	ExprState  *query;			/* NULL, like `ordered`, if the scan orders by
								 * the bounded distance */
	ExprState  *ordered;
	bool		query_byval;
	int16		query_len;
	bool		with_nan;
} BoundState;

/* A running node; CustomScanState must be first. */
typedef struct FilterScan
{
	CustomScanState css;
	IvfpqFilterPlan plan;
	IndexScanState *index;
	PlanState  *bitmap;			/* or NULL */
	bool		bitmap_used;	/* started since the last rescan */
	ExprState  *early;
	ExprState  *late;
	int			nbounds;
	BoundState *bounds;			/* [nbounds] */
	bool		radius_known;	/* radius was set since the last rescan */
	ProjectionInfo *columns;	/* makes the node's row from a table row */
	ExprState  *distance;		/* computes the distance of a rechecked row */
	AttrNumber	distance_column;	/* column of the first distance */
	ExprContext *row_context;	/* its scan tuple is a row of the table */
	IvfpqScanFilter filter;
} FilterScan;

static IvfpqExplainHook previous_hook = NULL;

/*
 * Returns a number as a node.  The number is written with an exponent, so that
 * it is read back as a float.
 */
static Node *
make_number(double number)
{
	return (Node *) makeFloat(psprintf("%.9e", number));
}

/* Returns *plan as a list of nodes, which parallel workers can read. */
List *
IvfpqFilterPrivate(const IvfpqFilterPlan *plan)
{
	const IvfpqFilterGoal *goal = &plan->goal;

	return list_make2(list_make5(make_number(goal->rows_needed),
								 make_number(goal->selectivity),
								 make_number(goal->key_selectivity),
								 make_number(goal->qual_ns),
								 make_number(goal->bitmap_rows)),
					  list_make4_int(FILTER_LAYOUT, plan->ndistances,
									 plan->ends_on_any_row, plan->any_order));
}

/*
 * Sets *plan from custom_private.  Raises an error if the plan has a different
 * layout.  This can happen in a parallel worker: the leader makes the plan,
 * and the worker loads the library's file later, when the file may have been
 * replaced.
 */
void
IvfpqFilterPlanOf(const CustomScan *scan, IvfpqFilterPlan *plan)
{
	const List *goal;
	const List *others;

	if (list_length(scan->custom_private) != 2 ||
		!IsA(lsecond(scan->custom_private), IntList) ||
		linitial_int(lsecond(scan->custom_private)) != FILTER_LAYOUT)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("plan was created by another version of gpuvec"),
				 errhint("Reconnect to the server.  The library was replaced while this session was running.")));
	goal = linitial(scan->custom_private);
	others = lsecond(scan->custom_private);
	plan->goal.rows_needed = floatVal(linitial(goal));
	plan->goal.selectivity = floatVal(lsecond(goal));
	plan->goal.key_selectivity = floatVal(lthird(goal));
	plan->goal.qual_ns = floatVal(lfourth(goal));
	plan->goal.bitmap_rows = floatVal(llast(goal));
	plan->ndistances = lsecond_int(others);
	plan->ends_on_any_row = lthird_int(others);
	plan->any_order = lfourth_int(others);
}

/* Returns whether the plan is a node of ours. */
bool
IvfpqIsFilterScan(const Plan *plan)
{
	return IsA(plan, CustomScan) &&
		((const CustomScan *) plan)->methods == &ivfpq_scan_methods;
}

/*
 * Replaces columns of the node's rows by the expressions that compute these
 * columns from the table's row.
 */
static Node *
as_table_columns(Node *node, void *columns)
{
	if (node != NULL && IsA(node, Var) && ((Var *) node)->varno == INDEX_VAR)
	{
		TargetEntry *column = list_nth(columns, ((Var *) node)->varattno - 1);

		return copyObject((Node *) column->expr);
	}
	return expression_tree_mutator(node, as_table_columns, columns);
}

/*
 * Returns whether an expression over the rows of a finished node is the
 * distance by which the node orders its rows.
 */
bool
IvfpqIsFilterDistance(const CustomScan *scan, Node *expr)
{
	List	   *columns = scan->custom_scan_tlist;
	Node	   *computed = as_table_columns(expr, columns);
	IvfpqFilterPlan plan;

	IvfpqFilterPlanOf(scan, &plan);
	for (int i = list_length(columns) - plan.ndistances;
		 i < list_length(columns); i++)
		if (equal(computed, list_nth_node(TargetEntry, columns, i)->expr))
			return true;
	return false;
}

/* Makes the node's row from a table row, except for the distance. */
static void
make_row(FilterScan *state, TupleTableSlot *row)
{
	TupleTableSlot *slot = state->css.ss.ss_ScanTupleSlot;

	ResetExprContext(state->row_context);
	state->row_context->ecxt_scantuple = row;
	(void) ExecProject(state->columns);
	slot->tts_tid = row->tts_tid;	/* for CURRENT OF */
	slot->tts_tableOid = row->tts_tableOid;
	state->css.ss.ps.ps_ExprContext->ecxt_scantuple = slot;
}

static void
put_distance(FilterScan *state, double distance, bool isnull)
{
	TupleTableSlot *slot = state->css.ss.ss_ScanTupleSlot;

	for (int i = 0; i < state->plan.ndistances; i++)
	{
		slot->tts_values[state->distance_column - 1 + i] =
			Float8GetDatum(distance);
		slot->tts_isnull[state->distance_column - 1 + i] = isnull;
	}
}

/* IvfpqScanFilter.early_qual */
static bool
row_satisfies(void *arg, TupleTableSlot *row)
{
	FilterScan *state = arg;
	ExprContext *context = state->row_context;

	ResetExprContext(context);
	context->ecxt_scantuple = row;
	if (ExecQual(state->early, context))
		return true;
	InstrCountFiltered1(state, 1);
	return false;
}

/*
 * IvfpqScanFilter.late_qual callback.  Builds the node's row from the row that
 * left the queue, and evaluates the late conditions on it.
 */
static bool
row_is_admitted(void *arg, double distance)
{
	FilterScan *state = arg;
	ExprContext *context = state->css.ss.ps.ps_ExprContext;
	bool		admitted;

	ResetExprContext(context);
	make_row(state, state->filter.row);
	put_distance(state, distance,
				 IvfpqScanIsOfNull(state->index->iss_ScanDesc));
	admitted = ExecQual(state->late, context);
	if (!admitted)
		InstrCountFiltered1(state, 1);
	return admitted;
}

/* IvfpqScanFilter.next_bitmap_row */
static TupleTableSlot *
next_bitmap_row(void *arg)
{
	FilterScan *state = arg;
	MemoryContext oldcontext;
	TupleTableSlot *row;

	/* use the statement's memory, not the memory of the calling scan */
	oldcontext = MemoryContextSwitchTo(state->bitmap->state->es_query_cxt);
	if (!state->bitmap_used)
	{
		state->bitmap_used = true;
		if (state->bitmap->chgParam == NULL)
			ExecReScan(state->bitmap);
	}
	row = ExecProcNode(state->bitmap);
	MemoryContextSwitchTo(oldcontext);
	return TupIsNull(row) ? NULL :
		((ScanState *) state->bitmap)->ss_ScanTupleSlot;
}

/* Returns the target recall of the node. */
static double
filter_recall(const FilterScan *state)
{
	return state->plan.any_order ? ivfpq_radius_recall : ivfpq_recall;
}

/* Evaluates an expression of a bound.  Returns false if it is NULL. */
static bool
evaluate(ExprState *expr, ExprContext *context, double *value)
{
	bool		isnull;
	Datum		datum = ExecEvalExprSwitchContext(expr, context, &isnull);

	*value = isnull ? 0 : DatumGetFloat8(datum);
	return !isnull;
}

/*
 * Returns the greatest distance that the bound `from - less` allows, plus a
 * margin for the rounding of this difference and of the condition.
 */
static double
greatest(double from, double less)
{
	double		most = from - less;

	if (less == 0 || !isfinite(most))
		return most;
	return most + 4 * DBL_EPSILON * (fabs(from) + fabs(less));
}

/* Returns whether the bound's query has the same value as the scan's query. */
static bool
is_of_query(const BoundState *bound, ExprContext *context)
{
	bool		isnull;
	bool		ordered_isnull;
	Datum		query = ExecEvalExprSwitchContext(bound->query, context,
												  &isnull);
	Datum		ordered = ExecEvalExprSwitchContext(bound->ordered, context,
													&ordered_isnull);

	return !isnull && !ordered_isnull &&
		datum_image_eq(query, ordered, bound->query_byval, bound->query_len);
}

/* Sets the filter's radius from the current values of the bounds. */
static void
find_radius(FilterScan *state)
{
	ExprContext *context = state->css.ss.ps.ps_ExprContext;
	IvfpqRadius *radius = &state->filter.radius;
	double		from;
	double		less;

	state->filter.recall = filter_recall(state);
	radius->is_set = false;
	radius->is_empty = false;
	radius->with_nan = true;
	radius->most = get_float8_nan();
	for (int i = 0; i < state->nbounds; i++)
	{
		const BoundState *bound = &state->bounds[i];

		if (bound->query != NULL && !is_of_query(bound, context))
			continue;
		radius->is_set = true;
		radius->with_nan &= bound->with_nan;
		if (evaluate(bound->from, context, &from) &&
			evaluate(bound->less, context, &less))
			radius->most = float8_min(radius->most, greatest(from, less));
		else
			radius->is_empty = true;
	}
}

/*
 * Initializes the expressions that are computed from the table's rows: early
 * conditions, columns and distance.
 *
 * The table's rows are in the table's kind of slot, but core expects the
 * node's rows to be in virtual slots.  So the early conditions and the columns
 * have no parent node.  The distance may have sub-plans, which need a parent
 * node, so the distance is computed by the expression of the index scan below,
 * whose rows are rows of the table.
 */
static void
begin_rows(FilterScan *state, EState *estate)
{
	CustomScan *scan = (CustomScan *) state->css.ss.ps.plan;
	List	   *early = linitial(scan->custom_exprs);
	Relation	table = state->css.ss.ss_currentRelation;
	TupleDesc	desc = RelationGetDescr(table);
	TupleTableSlot *slot = state->css.ss.ss_ScanTupleSlot;
	List	   *all = scan->custom_scan_tlist;
	int			ncolumns = list_length(all) - state->plan.ndistances;
	List	   *columns = list_copy_head(all, ncolumns);
	TargetEntry *distance = list_nth_node(TargetEntry, all, ncolumns);

	state->row_context = CreateExprContext(estate);
	state->early = ExecInitQual((List *) as_table_columns((Node *) early, all),
								NULL);
	state->columns = ExecBuildProjectionInfo(columns, state->row_context,
											 slot, NULL, desc);
	state->distance = linitial(state->index->indexorderbyorig);
	state->distance_column = distance->resno;
	state->filter.row = IvfpqAllocTableSlot(estate, desc,
											table_slot_callbacks(table));
}

/* Initializes the expressions of the bounds, which depend on no row. */
static void
begin_bounds(FilterScan *state, const List *bounds)
{
	PlanState  *parent = &state->css.ss.ps;

	state->nbounds = list_length(bounds);
	state->bounds = palloc(state->nbounds * sizeof(BoundState));
	for (int i = 0; i < state->nbounds; i++)
	{
		BoundState *bound = &state->bounds[i];
		List	   *exprs = list_nth(bounds, i);
		Expr	   *query = list_nth(exprs, 3);

		bound->from = ExecInitExpr(lsecond(exprs), parent);
		bound->less = ExecInitExpr(lthird(exprs), parent);
		bound->query = ExecInitExpr(query, parent);
		bound->ordered = ExecInitExpr(list_nth(exprs, 4), parent);
		if (query != NULL)
			get_typlenbyval(exprType((Node *) query), &bound->query_len,
							&bound->query_byval);
		bound->with_nan = DatumGetBool(llast_node(Const, exprs)->constvalue);
	}
}

/* BeginCustomScan */
static void
begin_filter_scan(CustomScanState *node, EState *estate, int eflags)
{
	FilterScan *state = (FilterScan *) node;
	CustomScan *scan = (CustomScan *) node->ss.ps.plan;
	List	   *plans = scan->custom_plans;
	IvfpqScanFilter *filter = &state->filter;

	IvfpqFilterPlanOf(scan, &state->plan);
	state->index = castNode(IndexScanState, ExecInitNode(linitial(plans),
														 estate, eflags));
	node->custom_ps = list_make1(state->index);
	if (list_length(plans) > 1)
	{
		state->bitmap = ExecInitNode(lsecond(plans), estate, eflags);
		node->custom_ps = lappend(node->custom_ps, state->bitmap);
	}
	state->late = ExecInitQual(lsecond(scan->custom_exprs), &node->ss.ps);
	begin_bounds(state, lthird(scan->custom_exprs));
	begin_rows(state, estate);
	filter->early_qual = row_satisfies;
	filter->late_qual = row_is_admitted;
	filter->next_bitmap_row = state->bitmap != NULL ? next_bitmap_row : NULL;
	filter->arg = state;
	filter->any_order = state->plan.any_order;
	filter->radius.ends_on_any_row = state->plan.ends_on_any_row;
	filter->goal = state->plan.goal;
}

/*
 * Gets the next row from the index scan.  Returns false at the end.  The first
 * call begins the scan in the same way as core's own node.
 */
static bool
next_row(FilterScan *state)
{
	IndexScanState *index = state->index;
	IvfpqNodeInstrumentation *instrument = index->ss.ps.instrument;
	bool		found;

	/* evaluate keys that are known only at run time */
	if (index->ss.ps.chgParam != NULL ||
		(index->iss_NumRuntimeKeys != 0 && !index->iss_RuntimeKeysReady))
		ExecReScan((PlanState *) index);
	if (index->iss_ScanDesc == NULL)
	{
		index->iss_ScanDesc = IvfpqIndexBeginScanOf(index);
		IvfpqScanSetFilter(index->iss_ScanDesc, &state->filter);
		index_rescan(index->iss_ScanDesc,
					 index->iss_ScanKeys, index->iss_NumScanKeys,
					 index->iss_OrderByKeys, index->iss_NumOrderByKeys);
	}
	if (!state->radius_known)
		find_radius(state);
	state->radius_known = true;
	if (instrument)
		InstrStartNode(instrument);
	found = index_getnext_tid(index->iss_ScanDesc,
							  ForwardScanDirection) != NULL;
	if (instrument)
		InstrStopNode(instrument, found ? 1.0 : 0.0);
	return found;
}

/*
 * Does the same as ExecScanFetch.  In a recheck, sets *row to the row of the
 * table to be rechecked, or to NULL if there is no row, and returns true.
 * Otherwise returns false, and the node runs as usual.
 */
static bool
recheck_row(FilterScan *state, TupleTableSlot **row)
{
	EPQState   *epq = state->css.ss.ps.state->es_epq_active;
	int			i = (int) ((Scan *) state->css.ss.ps.plan)->scanrelid - 1;

	if (epq == NULL)
		return false;
	*row = NULL;
	if (epq->relsubs_done[i])
		return true;
	if (epq->relsubs_slot[i] != NULL)
		*row = epq->relsubs_slot[i];
	else if (epq->relsubs_rowmark[i] != NULL)
	{
		*row = state->filter.row;
		if (!EvalPlanQualFetchRowMark(epq, i + 1, *row))
			*row = NULL;
	}
	else
		return false;
	epq->relsubs_done[i] = true;
	if (TupIsNull(*row))
		*row = NULL;
	return true;
}

/*
 * Makes the node's row from a row of the table, and returns whether the row
 * satisfies all conditions, including the conditions of the index scan.
 */
static bool
recheck(FilterScan *state, TupleTableSlot *row)
{
	ExprContext *context = state->css.ss.ps.ps_ExprContext;
	Datum		distance;
	bool		isnull;

	make_row(state, row);
	distance = ExecEvalExprSwitchContext(state->distance, state->row_context,
										 &isnull);
	put_distance(state, isnull ? 0 : DatumGetFloat8(distance), isnull);
	return ExecQual(state->index->indexqualorig, state->row_context) &&
		ExecQual(state->early, state->row_context) &&
		ExecQual(state->late, context);
}

/* ExecCustomScan */
static TupleTableSlot *
exec_filter_scan(CustomScanState *node)
{
	FilterScan *state = (FilterScan *) node;
	ProjectionInfo *projection = node->ss.ps.ps_ProjInfo;
	TupleTableSlot *row;
	bool		found;

	CHECK_FOR_INTERRUPTS();
	ResetExprContext(node->ss.ps.ps_ExprContext);
	if (recheck_row(state, &row))
		found = row != NULL && recheck(state, row);
	else
		found = next_row(state);
	if (!found)
	{
		ExecClearTuple(node->ss.ss_ScanTupleSlot);
		return projection == NULL ? node->ss.ss_ScanTupleSlot :
			ExecClearTuple(projection->pi_state.resultslot);
	}
	return projection == NULL ? node->ss.ss_ScanTupleSlot :
		ExecProject(projection);
}

/* ReScanCustomScan */
static void
rescan_filter_scan(CustomScanState *node)
{
	FilterScan *state = (FilterScan *) node;
	ListCell   *lc;

	/* core passes changed parameters to left and right children only */
	if (node->ss.ps.chgParam != NULL)
		foreach(lc, node->custom_ps)
			UpdateChangedParamSet(lfirst(lc), node->ss.ps.chgParam);
	state->bitmap_used = false;
	state->radius_known = false;
	ExecScanReScan(&node->ss);
	if (state->index->ss.ps.chgParam == NULL)
		ExecReScan((PlanState *) state->index);
}

/* EndCustomScan */
static void
end_filter_scan(CustomScanState *node)
{
	ListCell   *lc;

	foreach(lc, node->custom_ps)
		ExecEndNode(lfirst(lc));
}

static void
show_ands(const char *name, List *conditions, List *context, ExplainState *es)
{
	Node	   *all = (Node *) make_ands_explicit(conditions);

	if (conditions != NIL)
		ExplainPropertyText(name,
							deparse_expression(all, context, es->verbose ||
											   list_length(es->rtable) > 1,
											   false), es);
}

/*
 * Shows the target recall, and the search parameters with which a scan of the
 * index begins.  The parameters are estimates, so COSTS OFF leaves them out.
 */
static void
show_params(Oid indexid, double recall, ExplainState *es)
{
	Relation	index;
	IvfpqMetaData meta;
	IvfpqSearchParams params;

	ExplainPropertyFloat("Recall", NULL, recall, 3, es);
	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(indexid)))
		return;					/* the index is hypothetical */
	index = index_open(indexid, AccessShareLock);
	IvfpqMetaRead(index, &meta);
	IvfpqParamsForBatch(&params, index, &meta, recall, 0);
	if (es->costs && !params.read_all)
	{
		ExplainPropertyInteger("Probes", NULL, params.probes, es);
		ExplainPropertyInteger("Candidates", NULL, params.candidates, es);
	}
	index_close(index, AccessShareLock);
}

/* Shows the work of the last scan. */
static void
show_work(IndexScanDesc desc, ExplainState *es)
{
	static const char *const sources[] = {
		[IVFPQ_REST_NONE] = "index",
		[IVFPQ_REST_TABLE] = "table",
		[IVFPQ_REST_BITMAP] = "bitmap",
		[IVFPQ_REST_LISTS] = "lists"
	};
	IvfpqScanReport report;
	const int64 *counts = report.counts;

	IvfpqScanReportOf(desc->opaque, &report);
	ExplainPropertyText("Engine", report.engine[0] ? report.engine : "session",
						es);
	if (!IvfpqSeesAllRows(report.index))
		return;
	ExplainPropertyText("Rows From", sources[report.source], es);
	ExplainPropertyInteger("Batches", NULL, counts[IVFPQ_COUNT_BATCHES], es);
	ExplainPropertyInteger("Lists Read", NULL, counts[IVFPQ_COUNT_LISTS], es);
	ExplainPropertyInteger("Postings Read", NULL,
						   counts[IVFPQ_COUNT_POSTINGS], es);
	if (report.asks_keys)
		ExplainPropertyInteger("Postings Matched", NULL,
							   counts[IVFPQ_COUNT_MATCHED], es);
	ExplainPropertyInteger("Rows Reranked", NULL,
						   counts[IVFPQ_COUNT_RERANKED], es);
	ExplainPropertyInteger("Rows Out of Order", NULL,
						   counts[IVFPQ_COUNT_OUT_OF_ORDER], es);
	if (counts[IVFPQ_COUNT_STALE_LISTS] > 0 ||
		counts[IVFPQ_COUNT_TAIL_POSTINGS] > 0)
	{
		ExplainPropertyInteger("Stale Lists", NULL,
							   counts[IVFPQ_COUNT_STALE_LISTS], es);
		ExplainPropertyInteger("Postings Behind", NULL,
							   counts[IVFPQ_COUNT_TAIL_POSTINGS], es);
	}
}

/* ExplainCustomScan */
static void
explain_filter(CustomScanState *node, List *ancestors, ExplainState *es)
{
	FilterScan *state = (FilterScan *) node;
	IndexScan  *index = (IndexScan *) state->index->ss.ps.plan;
	CustomScan *scan = (CustomScan *) node->ss.ps.plan;
	IvfpqNodeInstrumentation *instrument = node->ss.ps.instrument;
	List	   *context = set_deparse_context_plan(es->deparse_cxt,
												   &scan->scan.plan,
												   ancestors);
	List	   *bounds = NIL;
	ListCell   *lc;

	foreach(lc, lthird(scan->custom_exprs))
		bounds = lappend(bounds, linitial(lfirst(lc)));
	show_ands("Distance Bound", bounds, context, es);
	show_ands("Filter", list_concat_copy(linitial(scan->custom_exprs),
										 lsecond(scan->custom_exprs)),
			  context, es);
	if (es->analyze && instrument != NULL && instrument->nloops > 0 &&
		(instrument->nfiltered1 > 0 || es->format != EXPLAIN_FORMAT_TEXT))
		ExplainPropertyFloat("Rows Removed by Filter", NULL,
							 instrument->nfiltered1 / instrument->nloops, 0,
							 es);
	show_params(index->indexid, filter_recall(state), es);
	if (es->analyze && state->index->iss_ScanDesc != NULL)
		show_work(state->index->iss_ScanDesc, es);
}

static const CustomExecMethods exec_methods = {
	.CustomName = IVFPQ_CUSTOM_NAME,
	.BeginCustomScan = begin_filter_scan,
	.ExecCustomScan = exec_filter_scan,
	.EndCustomScan = end_filter_scan,
	.ReScanCustomScan = rescan_filter_scan,
	.ExplainCustomScan = explain_filter
};

/* CreateCustomScanState */
static Node *
create_filter_scan(CustomScan *scan)
{
	FilterScan *state = palloc0(sizeof(FilterScan));

	NodeSetTag(state, T_CustomScanState);
	state->css.flags = scan->flags;
	state->css.methods = &exec_methods;
	return (Node *) state;
}

const CustomScanMethods ivfpq_scan_methods = {
	.CustomName = IVFPQ_CUSTOM_NAME,
	.CreateCustomScanState = create_filter_scan
};

/*
 * explain_per_node_hook.  Adds our lines to an ordered index scan that is not
 * below a node of ours.  With COSTS OFF and without ANALYZE nothing is added,
 * so that plans look the same on all versions.
 */
static void
explain_index_scan(PlanState *planstate, List *ancestors,
				   const char *relationship, const char *plan_name,
				   ExplainState *es)
{
	IndexScanState *state = (IndexScanState *) planstate;
	IndexScan  *scan = (IndexScan *) planstate->plan;

	if (previous_hook)
		previous_hook(planstate, ancestors, relationship, plan_name, es);
	if (!IsA(planstate, IndexScanState) || scan->indexorderby == NIL ||
		!(es->costs || es->analyze) || !IvfpqIsOursByOid(scan->indexid) ||
		(ancestors != NIL && IvfpqIsFilterScan(linitial(ancestors))))
		return;
	show_params(scan->indexid, ivfpq_recall, es);
	if (es->analyze && state->iss_ScanDesc != NULL)
		show_work(state->iss_ScanDesc, es);
}

/* Called once in a process. */
void
IvfpqInitExplain(void)
{
	previous_hook = IvfpqHookExplain(explain_index_scan);
}
