/*
 * answer.c
 *		The answers to many queries, one after another.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "am/common/options.h"
#include "am/many/many.h"
#include "am/search/heaptids.h"

/*
 * Has the index all rows that the snapshot sees?  One that was built where
 * rows had changed in place has only what they became.
 */
bool
IvfpqBulkIsWhole(Relation index)
{
	return !index->rd_index->indcheckxmin ||
		TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
							  TransactionXmin);
}

/* Look up the operator's function that the index serves. */
static void
find_distance(IvfpqBulk *bulk)
{
	Oid			type = bulk->type.type;
	Oid			family = bulk->index->rd_opfamily[0];
	Oid			operator = InvalidOid;

	for (int s = 1; s <= IVFPQ_NSTRATEGIES && !OidIsValid(operator); s++)
		operator = get_opfamily_member(family, type, type, s);
	fmgr_info(get_opcode(operator), &bulk->distance);
	bulk->real_distance = IvfpqRealDistanceOf(&bulk->distance);
	bulk->is_cosine = bulk->real_distance == gv_distance_cosine;
}

/*
 * ERROR unless the queries have the dimensions of the index's rows; pending
 * rows that do not are passed over, as a scan does.
 */
static void
check_dims(IvfpqBulk *bulk)
{
	const IvfpqMetaData *meta = &bulk->model->meta;
	int			expected = IvfpqRowDims(bulk->heap, bulk->index, meta);

	if (expected > 0 && expected != bulk->queries.dims &&
		(meta->nlists > 0 || IvfpqDimsBind(bulk->heap, bulk->index, meta)))
		IvfpqCheckDims(expected, bulk->queries.dims);
	if (bulk->type.typmod_dims == 0 &&
		!(meta->dims_flags & IVFPQ_DIMS_CHECKED))
		bulk->pending_dims = expected;
}

/*
 * Answer all queries: sink gets the rows of each, nearest first.  As the
 * table's owner, if the index has expressions.
 */
void
IvfpqBulkAnswer(IvfpqBulk *bulk, IvfpqBulkSink sink, void *arg)
{
	int			n;

	IvfpqTypeInit(&bulk->type, bulk->index);
	find_distance(bulk);
	check_dims(bulk);
	IvfpqCastBegin(&bulk->cast, bulk->type.type);
	IvfpqBulkBegin(bulk);
	for (int first = 0; first < bulk->queries.n; first += n)
	{
		n = IvfpqBulkNext(bulk, first);
		for (int q = 0; q < n; q++)
		{
			const IvfpqBulkQuery *query = &bulk->asked[q];

			CHECK_FOR_INTERRUPTS();
			sink(arg, first + q, query->rows, query->nrows);
			bulk->report.returned += query->nrows;
		}
	}
	IvfpqBulkEnd(bulk);
}

/*
 * Counts what was done as a scan for each query.  `more`: it belongs to the
 * call that was counted last.
 */
void
IvfpqBulkCount(IvfpqBulk *bulk, bool more)
{
	IvfpqScanReport *report = &bulk->report;

	report->index = RelationGetRelid(bulk->index);
	report->recall = ivfpq_recall;
	if (bulk->searches != NULL)
		report->remote = bulk->searches[0].remote.report;
	IvfpqReportBulk(report, bulk->queries.n, more);
	for (int i = 0; i < bulk->queries.n; i++)
		pgstat_count_index_scan(bulk->index);
}
