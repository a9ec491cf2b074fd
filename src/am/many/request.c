/*
 * request.c
 *		gpuvec_search: arguments, rights, and the answer's rows.
 *
 * What the rows of a table with an expression in its index take is computed
 * as the table's owner, as gpuvec_recall does it (am/README, "Rights").
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/predicate.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/heap/dims.h"
#include "am/many/many.h"
#include "am/scan/counters.h"
#include "am/scan/livequeries.h"
#include "pgcompat.h"

/* A scan whose LIMIT is larger is as good. */
#define MAX_K			10000

/* Queries that are kept, the last of all (livequeries.c). */
#define MOST_KEPT		1000

PG_FUNCTION_INFO_V1(gpuvec_search);

/* ERROR unless the caller may have this index searched. */
static void
check_rights(Relation heap, Relation index)
{
	IvfpqCheckSelect(heap, index);
	IvfpqCheckActing(heap, index);
	if (check_enable_rls(RelationGetRelid(heap), InvalidOid, true) == RLS_ENABLED)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" cannot be searched under row-level security",
						RelationGetRelationName(index)),
				 errdetail("Policies of table \"%s\" hide rows from the current user.",
						   RelationGetRelationName(heap)),
				 errhint("Use SELECT ... ORDER BY, which policies apply to.")));
}

/*
 * ERROR unless the index has all rows that the snapshot sees.  One that was
 * built where rows had changed in place has only what they became.
 */
static void
check_whole(Relation index)
{
	IvfpqCheckValid(index);
	if (index->rd_index->indcheckxmin &&
		!TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
							   TransactionXmin))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is too new for this transaction",
						RelationGetRelationName(index)),
				 errdetail("It lacks rows that changed while transactions that are still running could see them."),
				 errhint("Try again when the transactions that were running when it was built have ended.")));
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

	if (expected > 0)
		IvfpqCheckDims(expected, many->queries.dims);
	if (many->type.typmod_dims == 0 &&
		!(meta->dims_flags & IVFPQ_DIMS_CHECKED))
		many->pending_dims = expected;
}

/* Keep the last queries, if that is wanted; not as the table's owner. */
static void
keep_queries(const IvfpqMany *many)
{
	const IvfpqQueries *queries = &many->queries;

	if (!ivfpq_keep_queries || many->model->meta.nlists == 0)
		return;
	for (int i = Max(queries->n - MOST_KEPT, 0); i < queries->n; i++)
		IvfpqKeepQuery(many->index, queries->vectors +
					   (Size) i * queries->dims, queries->dims);
}

/* The answer of a portion, whose first query has that number. */
static void
put_answer(IvfpqMany *many, int first, int n, ReturnSetInfo *rsinfo)
{
	for (int q = 0; q < n; q++)
	{
		const IvfpqManyQuery *query = &many->asked[q];

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < query->nrows; i++)
		{
			Datum		values[3];
			bool		nulls[3] = {false};

			values[0] = Int32GetDatum(first + q + 1);
			values[1] = PointerGetDatum(&query->rows[i].tid);
			values[2] = Float8GetDatum(query->rows[i].distance);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
								 nulls);
		}
		many->report.given += query->nrows;
	}
}

/* Answer all queries; as the table's owner. */
static void
answer_queries(IvfpqMany *many, ReturnSetInfo *rsinfo)
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
		put_answer(many, first, n, rsinfo);
	}
	IvfpqManyEnd(many);
}

/* What was done counts as a scan for each query. */
static void
count_queries(IvfpqMany *many)
{
	IvfpqScanReport *report = &many->report;

	report->index = RelationGetRelid(many->index);
	report->recall = ivfpq_recall;
	if (many->searches != NULL)
		report->remote = many->searches[0].remote.report;
	IvfpqReportMany(report, many->queries.n);
	for (int i = 0; i < many->queries.n; i++)
		pgstat_count_index_scan(many->index);
}

/* gpuvec_search(index regclass, queries real[][], k integer) */
Datum
gpuvec_search(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IvfpqIdentity caller;
	IvfpqMany	many = {0};

	many.queries = IvfpqQueriesOfArray(PG_GETARG_ARRAYTYPE_P(1));
	many.k = PG_GETARG_INT32(2);
	if (many.k < 1 || many.k > MAX_K)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("k must be between 1 and %d, not %d", MAX_K, many.k),
				 errhint("k is how many rows each query wants.")));
	InitMaterializedSRF(fcinfo, 0);
	many.index = IvfpqOpenIndexTable(PG_GETARG_OID(0), AccessShareLock,
									 &many.heap);
	check_rights(many.heap, many.index);
	check_whole(many.index);
	if (many.queries.n > 0)
	{
		many.model = IvfpqModelGet(many.index);
		many.snapshot = RegisterSnapshot(GetActiveSnapshot());
		PredicateLockRelation(many.index, many.snapshot);
		IvfpqCountersOpen();
		IvfpqActAsOwner(&caller, many.heap);
		answer_queries(&many, rsinfo);
		IvfpqActAsCaller(&caller);
		keep_queries(&many);
		count_queries(&many);
		UnregisterSnapshot(many.snapshot);
	}
	/* locks stay, as those of a SELECT do */
	relation_close(many.index, NoLock);
	table_close(many.heap, NoLock);
	return (Datum) 0;
}
