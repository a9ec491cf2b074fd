/*
 * lastscan.c
 *		gpuvec_last_scan: what this session's last index scan did.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rls.h"
#include "utils/syscache.h"

#include "am/scan/counters.h"
#include "am/scan/scan.h"
#include "client/client.h"

/* Columns of the result, in its order. */
enum
{
	REPORT_INDEX,
	REPORT_RECALL,
	REPORT_PROBES,
	REPORT_CANDIDATES,
	REPORT_BATCHES,
	REPORT_LISTS,
	REPORT_POSTINGS,
	REPORT_REFINED,
	REPORT_RERANKED,
	REPORT_RETURNED,
	REPORT_OUT_OF_ORDER,
	REPORT_FULL_PASS,
	REPORT_ENGINE,
	REPORT_BATCH_SIZE,
	REPORT_STALE_LISTS,
	REPORT_TAIL_POSTINGS,
	REPORT_QUEUED_US,
	REPORT_ENGINE_US,
	REPORT_TRIP_US,
	REPORT_FALLBACK,
	REPORT_MATCHED,
	REPORT_NCOLUMNS
};

/*
 * Columns that rows count in, also rows that a policy or a view's condition
 * took out of the result.
 */
static const int counts[] = {
	REPORT_BATCHES, REPORT_LISTS, REPORT_POSTINGS, REPORT_REFINED,
	REPORT_RERANKED, REPORT_RETURNED, REPORT_OUT_OF_ORDER, REPORT_FULL_PASS,
	REPORT_STALE_LISTS, REPORT_TAIL_POSTINGS, REPORT_MATCHED
};

/* index is InvalidOid until a scan has ended */
static IvfpqScanReport last;

PG_FUNCTION_INFO_V1(gpuvec_last_scan);

/*
 * Does a scan end in a pass over the whole table?  Another index may name the
 * rows instead, or keys, but while there are no lists these name all of them.
 */
static bool
is_full_pass(const IvfpqScan *state)
{
	IvfpqRest	rest = state->report.filter.rest;

	return state->in_full_pass && (rest == IVFPQ_REST_FULL_PASS ||
								   (rest == IVFPQ_REST_LISTS &&
									state->model->meta.nlists == 0));
}

/* Sets *report to the work of a scan so far. */
void
IvfpqScanReportOf(const IvfpqScan *state, IvfpqScanReport *report)
{
	*report = state->report;
	report->index = RelationGetRelid(state->index);
	report->batches = state->batch;
	report->lists = state->search.lists_read;
	report->postings = state->search.postings_read;
	report->asks_keys = state->asks_keys;
	report->matched = state->search.matched;
	report->returned = state->returned;
	report->out_of_order = state->out_of_order;
	report->full_pass = is_full_pass(state);
	report->remote = state->search.remote.report;
}

/* Remember what a scan did that ends now. */
void
IvfpqReportScan(const IvfpqScan *state)
{
	IvfpqScanReportOf(state, &last);
	IvfpqCountScans(1, last.out_of_order, last.full_pass);
	IvfpqCountersAdd(&last, 1);
}

/* Add what was done before. */
static void
add_remote(IvfpqRemoteReport *remote, const IvfpqRemoteReport *before)
{
	if (before->engine[0] != '\0')
		IvfpqReportEngine(remote, before->engine);
	remote->asked |= before->asked;
	remote->answered |= before->answered;
	remote->stale_lists += before->stale_lists;
	remote->tail_postings += before->tail_postings;
	remote->queued_us += before->queued_us;
	remote->engine_us += before->engine_us;
	remote->trip_us += before->trip_us;
}

static void
add_report(IvfpqScanReport *report, const IvfpqScanReport *before)
{
	report->probes = before->probes;	/* of the first batch */
	report->candidates = before->candidates;
	report->batches += before->batches;
	report->lists += before->lists;
	report->postings += before->postings;
	report->matched += before->matched;
	report->refined += before->refined;
	report->reranked += before->reranked;
	report->returned += before->returned;
	report->out_of_order += before->out_of_order;
	report->full_pass |= before->full_pass;
	add_remote(&report->remote, &before->remote);
}

/*
 * Remember the work of `searches` searches that were made at once; `more`:
 * add it to the work that was remembered last.
 */
void
IvfpqReportBulk(const IvfpqScanReport *report, int64 searches, bool more)
{
	IvfpqScanReport before = last;

	last = *report;
	if (more)
		add_report(&last, &before);
	IvfpqCountScans(searches, report->out_of_order, report->full_pass);
	IvfpqCountersAdd(report, searches);
}

/* The columns about gpuvecd; NULL what it had no part in. */
static void
report_remote(const IvfpqRemoteReport *remote, Datum *values, bool *nulls)
{
	const char *engine = remote->engine[0] ? remote->engine : "session";

	values[REPORT_ENGINE] = CStringGetTextDatum(engine);
	values[REPORT_BATCH_SIZE] = Int32GetDatum((int32) remote->batch_size);
	nulls[REPORT_BATCH_SIZE] = !remote->answered;
	values[REPORT_STALE_LISTS] = Int64GetDatum(remote->stale_lists);
	values[REPORT_TAIL_POSTINGS] = Int64GetDatum(remote->tail_postings);
	values[REPORT_QUEUED_US] = Int64GetDatum(remote->queued_us);
	nulls[REPORT_QUEUED_US] = !remote->answered;
	values[REPORT_ENGINE_US] = Int64GetDatum(remote->engine_us);
	nulls[REPORT_ENGINE_US] = !remote->answered;
	values[REPORT_TRIP_US] = Int64GetDatum(remote->trip_us);
	nulls[REPORT_TRIP_US] = !remote->asked;
	nulls[REPORT_FALLBACK] = remote->fallback == NULL;
	if (remote->fallback != NULL)
		values[REPORT_FALLBACK] = CStringGetTextDatum(remote->fallback);
}

/*
 * Would a SELECT of the indexed column show the current user all rows?  The
 * scan may have run in a view or a function, with the rights of its owner.  Of
 * an index that was dropped nothing is known any more.
 */
bool
IvfpqSeesAllRows(Oid index)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	AttrNumber	key;
	Oid			table;

	if (!HeapTupleIsValid(tuple))
		return false;
	form = (Form_pg_index) GETSTRUCT(tuple);
	key = form->indkey.values[0];	/* 0: an expression */
	table = form->indrelid;
	ReleaseSysCache(tuple);
	return (pg_class_aclcheck(table, GetUserId(), ACL_SELECT) == ACLCHECK_OK ||
			(key > 0 && pg_attribute_aclcheck(table, key, GetUserId(),
											  ACL_SELECT) == ACLCHECK_OK)) &&
		check_enable_rls(table, InvalidOid, true) != RLS_ENABLED;
}

/* gpuvec_last_scan() */
Datum
gpuvec_last_scan(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[REPORT_NCOLUMNS] = {0};
	bool		nulls[REPORT_NCOLUMNS] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[REPORT_INDEX] = ObjectIdGetDatum(last.index);
	values[REPORT_RECALL] = Float8GetDatum(last.recall);
	values[REPORT_PROBES] = Int32GetDatum(last.probes);
	values[REPORT_CANDIDATES] = Int32GetDatum(last.candidates);
	values[REPORT_BATCHES] = Int32GetDatum(last.batches);
	values[REPORT_LISTS] = Int64GetDatum(last.lists);
	values[REPORT_POSTINGS] = Int64GetDatum(last.postings);
	values[REPORT_REFINED] = Int64GetDatum(last.refined);
	values[REPORT_RERANKED] = Int64GetDatum(last.reranked);
	values[REPORT_RETURNED] = Int64GetDatum(last.returned);
	values[REPORT_OUT_OF_ORDER] = Int64GetDatum(last.out_of_order);
	values[REPORT_FULL_PASS] = BoolGetDatum(last.full_pass);
	report_remote(&last.remote, values, nulls);
	values[REPORT_MATCHED] = Int64GetDatum(last.matched);
	nulls[REPORT_MATCHED] = !last.asks_keys;
	if (!OidIsValid(last.index))
		memset(nulls, true, sizeof(nulls));
	else if (!IvfpqSeesAllRows(last.index))
		for (int i = 0; i < (int) lengthof(counts); i++)
			nulls[counts[i]] = true;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
