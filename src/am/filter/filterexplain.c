/*
 * filterexplain.c
 *		What EXPLAIN says of the node; from PostgreSQL 18 on, where there is a
 *		hook for that, also of a plain index scan.
 *
 * Beside what core says of a scan: how much is read first; and with ANALYZE
 * how much was read.  Counts of rows are shown only to a user whom policies
 * hide none from.
 */
#include "postgres.h"

#include "access/genam.h"
#include "commands/explain.h"
#include "nodes/makefuncs.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/syscache.h"

#include "am/common/options.h"
#include "am/filter/customscan.h"
#include "am/scan/scan.h"
#include "pgcompat.h"

static IvfpqExplainHook previous_hook = NULL;

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
show_conditions(IvfpqFilterScan *state, List *ancestors, ExplainState *es)
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
		case IVFPQ_REST_FULL_PASS:
			return "table";
		case IVFPQ_REST_MATCHES:
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
void
IvfpqExplainFilter(CustomScanState *node, List *ancestors, ExplainState *es)
{
	IvfpqFilterScan *state = (IvfpqFilterScan *) node;
	IndexScan  *index = (IndexScan *) state->index->ss.ps.plan;

	show_conditions(state, ancestors, es);
	show_params(index->indexid, IvfpqFilterRecall(state), es);
	if (es->analyze && state->index->iss_ScanDesc != NULL)
		show_work(state->index->iss_ScanDesc, es);
}

/*
 * explain_per_node_hook: an ordered index scan that is no node's of ours.
 * Where costs are left out, nothing is added, so that plans look the same on
 * all versions.
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
