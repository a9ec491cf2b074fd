/*
 * ivfpqreport.c
 *		gpuvec_last_scan: what this session's last index scan did.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "fmgr.h"
#include "funcapi.h"

#include "am/ivfpqscan.h"

/* Columns of the result, in its order. */
enum
{
	REPORT_INDEX,
	REPORT_RECALL,
	REPORT_PROBES,
	REPORT_CANDIDATES,
	REPORT_BATCHES,
	REPORT_LISTS,
	REPORT_COPIES,
	REPORT_REFINED,
	REPORT_MEASURED,
	REPORT_GIVEN,
	REPORT_LATE,
	REPORT_FINISHED,
	REPORT_NCOLUMNS
};

/* index is InvalidOid until a scan has ended */
static IvfpqScanReport last;

PG_FUNCTION_INFO_V1(gpuvec_last_scan);

/* Remember what a scan did that ends now. */
void
IvfpqReportScan(const IvfpqScan *state)
{
	last = state->report;
	last.index = RelationGetRelid(state->index);
	last.batches = state->batch;
	last.lists = state->search.lists_read;
	last.copies = state->search.copies_read;
	last.given = state->given;
	last.late = state->late;
	last.finished = state->finishing;
}

/* gpuvec_last_scan() */
Datum
gpuvec_last_scan(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[REPORT_NCOLUMNS];
	bool		nulls[REPORT_NCOLUMNS] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[REPORT_INDEX] = ObjectIdGetDatum(last.index);
	values[REPORT_RECALL] = Float8GetDatum(last.recall);
	values[REPORT_PROBES] = Int32GetDatum(last.probes);
	values[REPORT_CANDIDATES] = Int32GetDatum(last.candidates);
	values[REPORT_BATCHES] = Int32GetDatum(last.batches);
	values[REPORT_LISTS] = Int64GetDatum(last.lists);
	values[REPORT_COPIES] = Int64GetDatum(last.copies);
	values[REPORT_REFINED] = Int64GetDatum(last.refined);
	values[REPORT_MEASURED] = Int64GetDatum(last.measured);
	values[REPORT_GIVEN] = Int64GetDatum(last.given);
	values[REPORT_LATE] = Int64GetDatum(last.late);
	values[REPORT_FINISHED] = BoolGetDatum(last.finished);
	if (!OidIsValid(last.index))
		memset(nulls, true, sizeof(nulls));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}
