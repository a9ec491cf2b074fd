/*
 * customscan.c
 *		Custom Scan (GpuvecScan): how it runs, rechecks rows, and is explained.
 *
 * Core initializes the ordered index scan below the node, with its keys and
 * its index.  The node takes the IndexScanDesc and drives it.  The access
 * method asks the node whether rows match (am/scan/scanfilter.h), fetches
 * them, and says how far away they are.
 *
 * A row of the node is made of a row of the table: its columns, in the order
 * of custom_scan_tlist, and the distance.  Early conditions are evaluated on
 * the row of the table, late ones on the node's.
 *
 * In a recheck of READ COMMITTED (EvalPlanQual) the row comes from there, as a
 * row of the table.  The node makes its own row of that, too, so that both
 * have the same columns; therefore it does not go through ExecScan.
 *
 * EXPLAIN shows, besides what core shows of a scan, how much the node reads
 * first; and with ANALYZE how much it has read.  From PostgreSQL 18 on, which
 * has a hook for that, it shows the same of a plain index scan.  Counts of
 * rows are shown only to a user from whom policies hide none.
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

/* The items of custom_private, as private_of() in custompath.c makes them. */
enum
{
	PRIVATE_NEARLY,
	PRIVATE_ROWS_NEEDED,
	PRIVATE_SELECTIVITY,
	PRIVATE_QUAL_NS,
	PRIVATE_BITMAP_ROWS,
	PRIVATE_KEY_SELECTIVITY,
	PRIVATE_NDISTANCES,
	PRIVATE_NBOUNDS,
	PRIVATE_ENDS_ON_ANY_ROW,
	PRIVATE_ANY_ORDER
};

/* An IvfpqBound of a running node. */
typedef struct BoundState
{
	ExprState  *from;
	ExprState  *less;
	ExprState  *query;			/* or NULL, as `ordered` */
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
	bool		bitmap_used;	/* since the last rescan */
	ExprState  *early;
	ExprState  *late;
	BoundState *bounds;			/* [plan.nbounds] */
	bool		radius_known;	/* since the last rescan */
	ProjectionInfo *columns;	/* from a row of the table to the node's */
	ExprState  *distance;		/* for rows that do not come by the index */
	AttrNumber	distance_column;	/* the first */
	ExprContext *row_context;	/* its scan tuple is a row of the table */
	IvfpqScanFilter filter;
} FilterScan;

static IvfpqExplainHook previous_hook = NULL;

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
	plan->bitmap_rows = number_at(scan, PRIVATE_BITMAP_ROWS);
	plan->key_selectivity = number_at(scan, PRIVATE_KEY_SELECTIVITY);
	plan->ndistances = intVal(list_nth(private, PRIVATE_NDISTANCES));
	plan->nbounds = intVal(list_nth(private, PRIVATE_NBOUNDS));
	plan->ends_on_any_row = intVal(list_nth(private, PRIVATE_ENDS_ON_ANY_ROW));
	plan->any_order = intVal(list_nth(private, PRIVATE_ANY_ORDER));
}

/* Returns whether the plan is a node of ours. */
bool
IvfpqIsFilterScan(const Plan *plan)
{
	return IsA(plan, CustomScan) &&
		((const CustomScan *) plan)->methods == &ivfpq_scan_methods;
}

/* Replaces columns of the node's rows by those of the table's. */
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
 * distance in whose order the node returns them.
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

/* Makes the node's row of a row of the table: all columns but the distance. */
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

/* IvfpqScanFilter.late_qual: the row that was popped becomes the node's. */
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

	/* a node's memory is the statement's, not that of the scan that asks */
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

/* Returns the recall that is asked of the node. */
static double
filter_recall(const FilterScan *state)
{
	return state->plan.any_order ? ivfpq_radius_recall : ivfpq_recall;
}

/* Sets *value to the value of a bound's expression; false if that is NULL. */
static bool
evaluate(ExprState *expr, ExprContext *context, double *value)
{
	bool		isnull;
	Datum		datum = ExecEvalExprSwitchContext(expr, context, &isnull);

	*value = isnull ? 0 : DatumGetFloat8(datum);
	return !isnull;
}

/*
 * Returns the greatest distance that from - less allows, with a margin for its
 * rounding and that of the condition.
 */
static double
greatest(double from, double less)
{
	double		most = from - less;

	if (less == 0 || !isfinite(most))
		return most;
	return most + 4 * DBL_EPSILON * (fabs(from) + fabs(less));
}

/*
 * Returns whether a condition bounds the distance to the query that the scan
 * has.
 */
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

/* Sets the radius by the values that the bounds have at present. */
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
	for (int i = 0; i < state->plan.nbounds; i++)
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
 * Initializes the expressions that are computed of the table's rows: early
 * conditions, columns and distance.  These rows have the table's kind of slot,
 * while core takes the node's rows for virtual ones.  So the expressions have
 * no parent.  The distance may have sub-plans, which need one; the index
 * scan's expression is taken for it, whose rows are the table's.
 */
static void
begin_rows(FilterScan *state, EState *estate)
{
	CustomScan *scan = (CustomScan *) state->css.ss.ps.plan;
	List	   *early = list_copy_head(scan->custom_exprs, state->plan.nearly);
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

/*
 * Initializes the expressions that are computed of the node's rows (late
 * conditions), or of no row (bounds).
 */
static void
begin_conditions(FilterScan *state)
{
	PlanState  *parent = &state->css.ss.ps;
	List	   *exprs = ((CustomScan *) parent->plan)->custom_exprs;
	int			nconditions = list_length(exprs) -
	IVFPQ_BOUND_EXPRS * state->plan.nbounds;
	List	   *late = list_copy_tail(list_copy_head(exprs, nconditions),
									  state->plan.nearly);

	state->late = ExecInitQual(late, parent);
	state->bounds = palloc(state->plan.nbounds * sizeof(BoundState));
	for (int i = 0; i < state->plan.nbounds; i++)
	{
		BoundState *bound = &state->bounds[i];
		int			first = nconditions + i * IVFPQ_BOUND_EXPRS;
		Expr	   *query = list_nth(exprs, first + 3);

		bound->from = ExecInitExpr(list_nth(exprs, first + 1), parent);
		bound->less = ExecInitExpr(list_nth(exprs, first + 2), parent);
		bound->query = ExecInitExpr(query, parent);
		bound->ordered = ExecInitExpr(list_nth(exprs, first + 4), parent);
		if (query != NULL)
			get_typlenbyval(exprType((Node *) query), &bound->query_len,
							&bound->query_byval);
		bound->with_nan =
			DatumGetBool(list_nth_node(Const, exprs, first + 5)->constvalue);
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
	begin_conditions(state);
	begin_rows(state, estate);
	filter->early_qual = row_satisfies;
	filter->late_qual = row_is_admitted;
	filter->next_bitmap_row = state->bitmap != NULL ? next_bitmap_row : NULL;
	filter->arg = state;
	filter->any_order = state->plan.any_order;
	filter->radius.ends_on_any_row = state->plan.ends_on_any_row;
	filter->rows_needed = state->plan.rows_needed;
	filter->selectivity = state->plan.selectivity;
	filter->qual_ns = state->plan.qual_ns;
	filter->bitmap_rows = state->plan.bitmap_rows;
	filter->key_selectivity = state->plan.key_selectivity;
}

/*
 * Returns the index scan that core has prepared, begun as the first row of
 * core's own node would begin it.
 */
static IndexScanDesc
get_index_scan(FilterScan *state)
{
	IndexScanState *index = state->index;
	IndexScanDesc scan = index->iss_ScanDesc;

	if (scan != NULL && index->ss.ps.chgParam == NULL)
		return scan;
	/* keys that are known only at run time */
	if (index->ss.ps.chgParam != NULL ||
		(index->iss_NumRuntimeKeys != 0 && !index->iss_RuntimeKeysReady))
		ExecReScan((PlanState *) index);
	if (scan != NULL)
		return scan;
	scan = IvfpqIndexBeginScanOf(index);
	index->iss_ScanDesc = scan;
	IvfpqScanSetFilter(scan, &state->filter);
	index_rescan(scan, index->iss_ScanKeys, index->iss_NumScanKeys,
				 index->iss_OrderByKeys, index->iss_NumOrderByKeys);
	return scan;
}

/* Gets the next row by the index; false at the end. */
static bool
next_row(FilterScan *state)
{
	IvfpqNodeInstrumentation *instrument = state->index->ss.ps.instrument;
	IndexScanDesc scan = get_index_scan(state);
	bool		found;

	if (!state->radius_known)
		find_radius(state);
	state->radius_known = true;
	if (instrument)
		InstrStartNode(instrument);
	found = index_getnext_tid(scan, ForwardScanDirection) != NULL;
	if (instrument)
		InstrStopNode(instrument, found ? 1.0 : 0.0);
	return found;
}

/*
 * In a recheck sets *row to the row of the table to be rechecked, NULL if
 * there is none.  Returns false if the node is to run as usual.  It does what
 * ExecScanFetch does.
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
 * Makes a row of the table the node's row, and returns whether it satisfies
 * all conditions, those of the index included.
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

	/* core hands changed parameters to left and right children only */
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

static void
show_conditions(FilterScan *state, List *ancestors, ExplainState *es)
{
	CustomScan *scan = (CustomScan *) state->css.ss.ps.plan;
	IvfpqNodeInstrumentation *instrument = state->css.ss.ps.instrument;
	List	   *context = set_deparse_context_plan(es->deparse_cxt,
												   &scan->scan.plan,
												   ancestors);
	List	   *exprs = scan->custom_exprs;
	int			nconditions = list_length(exprs) -
	IVFPQ_BOUND_EXPRS * state->plan.nbounds;
	List	   *bounds = NIL;

	for (int i = nconditions; i < list_length(exprs); i += IVFPQ_BOUND_EXPRS)
		bounds = lappend(bounds, list_nth(exprs, i));
	show_ands("Distance Bound", bounds, context, es);
	show_ands("Filter", list_copy_head(exprs, nconditions), context, es);
	if (es->analyze && instrument != NULL && instrument->nloops > 0 &&
		(instrument->nfiltered1 > 0 || es->format != EXPLAIN_FORMAT_TEXT))
		ExplainPropertyFloat("Rows Removed by Filter", NULL,
							 instrument->nfiltered1 / instrument->nloops, 0,
							 es);
}

/*
 * Shows the search parameters that a scan of the index begins with; they are
 * estimates, so COSTS OFF leaves them out.
 */
static void
show_params(Oid indexid, double recall, ExplainState *es)
{
	Relation	index;
	IvfpqMetaData meta;
	IvfpqSearchParams params;

	ExplainPropertyFloat("Recall", NULL, recall, 3, es);
	if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(indexid)))
		return;					/* hypothetical */
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

static const char *
rest_name(const IvfpqScanReport *report)
{
	switch (report->filter.rest)
	{
		case IVFPQ_REST_NONE:
			return "index";
		case IVFPQ_REST_TABLE:
			return "table";
		case IVFPQ_REST_BITMAP:
			return "bitmap";
		case IVFPQ_REST_LISTS:
			return "lists";
	}
	return "";
}

/* Shows the work of the last scan. */
static void
show_work(IndexScanDesc scan, ExplainState *es)
{
	IvfpqScanReport report;

	IvfpqScanReportOf((IvfpqScan *) scan->opaque, &report);
	ExplainPropertyText("Engine", report.remote.engine[0] ?
						report.remote.engine : "session", es);
	if (!IvfpqSeesAllRows(report.index))
		return;
	ExplainPropertyText("Rows From", rest_name(&report), es);
	ExplainPropertyInteger("Batches", NULL, report.batches, es);
	ExplainPropertyInteger("Lists Read", NULL, report.lists, es);
	ExplainPropertyInteger("Postings Read", NULL, report.postings, es);
	if (report.asks_keys)
		ExplainPropertyInteger("Postings Matched", NULL, report.matched, es);
	ExplainPropertyInteger("Rows Reranked", NULL, report.reranked, es);
	ExplainPropertyInteger("Rows Out of Order", NULL, report.out_of_order, es);
	if (report.remote.stale_lists > 0 || report.remote.tail_postings > 0)
	{
		ExplainPropertyInteger("Stale Lists", NULL, report.remote.stale_lists,
							   es);
		ExplainPropertyInteger("Postings Behind", NULL,
							   report.remote.tail_postings, es);
	}
}

/* ExplainCustomScan */
static void
explain_filter(CustomScanState *node, List *ancestors, ExplainState *es)
{
	FilterScan *state = (FilterScan *) node;
	IndexScan  *index = (IndexScan *) state->index->ss.ps.plan;

	show_conditions(state, ancestors, es);
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
 * explain_per_node_hook, for an ordered index scan that is not below a node of
 * ours.  With COSTS OFF nothing is added, so that plans look the same on all
 * versions.
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

/* Call once a process. */
void
IvfpqInitExplain(void)
{
	previous_hook = IvfpqHookExplain(explain_index_scan);
}
