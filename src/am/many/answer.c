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
#include "am/heap/dims.h"
#include "am/many/many.h"

/*
 * Has the index all rows that the snapshot sees?  One that was built where rows
 * had changed in place has only what they became.
 */
bool
IvfpqManyIsWhole(Relation index)
{
	return !index->rd_index->indcheckxmin ||
		TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
							  TransactionXmin);
}

/* Look up the operator's function that the index serves. */
static void
find_distance(IvfpqMany *many)
{
	Oid			type = many->type.type;
	Oid			family = many->index->rd_opfamily[0];
	Oid			operator = InvalidOid;

	for (int s = 1; s <= IVFPQ_NSTRATEGIES && !OidIsValid(operator); s++)
		operator = get_opfamily_member(family, type, type, s);
	fmgr_info(get_opcode(operator), &many->distance);
	many->real_distance = IvfpqRealDistanceOf(&many->distance);
	many->is_cosine = many->real_distance == gv_distance_cosine;
}

/*
 * ERROR unless the queries have the dimensions of the index's rows; pending
 * rows that do not are passed over, as a scan does.
 */
static void
check_dims(IvfpqMany *many)
{
	const IvfpqMetaData *meta = &many->model->meta;
	int			expected = IvfpqRowDims(many->heap, many->index, meta);

	if (expected > 0 && expected != many->queries.dims &&
		(meta->nlists > 0 || IvfpqDimsBind(many->heap, many->index, meta)))
		IvfpqCheckDims(expected, many->queries.dims);
	if (many->type.typmod_dims == 0 &&
		!(meta->dims_flags & IVFPQ_DIMS_CHECKED))
		many->pending_dims = expected;
}

/*
 * Answer all queries: sink gets the rows of each, nearest first.  As the table's
 * owner, if the index has expressions.
 */
void
IvfpqManyAnswer(IvfpqMany *many, IvfpqManySink sink, void *arg)
{
	int			n;

	IvfpqTypeInit(&many->type, many->index);
	find_distance(many);
	check_dims(many);
	IvfpqCastBegin(&many->cast, many->type.type);
	IvfpqManyBegin(many);
	for (int first = 0; first < many->queries.n; first += n)
	{
		n = IvfpqManyNext(many, first);
		for (int q = 0; q < n; q++)
		{
			const IvfpqManyQuery *query = &many->asked[q];

			CHECK_FOR_INTERRUPTS();
			sink(arg, first + q, query->rows, query->nrows);
			many->report.returned += query->nrows;
		}
	}
	IvfpqManyEnd(many);
}

/*
 * What was done counts as a scan for each query; `more`: of the call that was
 * counted last.
 */
void
IvfpqManyCount(IvfpqMany *many, bool more)
{
	IvfpqScanReport *report = &many->report;

	report->index = RelationGetRelid(many->index);
	report->recall = ivfpq_recall;
	if (many->searches != NULL)
		report->remote = many->searches[0].remote.report;
	IvfpqReportMany(report, many->queries.n, more);
	for (int i = 0; i < many->queries.n; i++)
		pgstat_count_index_scan(many->index);
}
