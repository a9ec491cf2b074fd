/*
 * request.c
 *		gpuvec_search: arguments, rights, and the answer's rows.
 *
 * An expression of the index is computed for rows as the table's owner, as
 * gpuvec_recall does it (am/README, "Rights").
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "fmgr.h"
#include "funcapi.h"
#include "storage/predicate.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "am/common/identity.h"
#include "am/common/options.h"
#include "am/many/many.h"
#include "am/scan/querylog.h"
#include "am/scan/scanstats.h"

/* Queries that are kept, the last of all (querylog.c). */
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

/* ERROR unless the index has all rows that the snapshot sees. */
static void
check_whole(Relation index)
{
	IvfpqCheckValid(index);
	if (!IvfpqBulkIsWhole(index))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("index \"%s\" is too new for this transaction",
						RelationGetRelationName(index)),
				 errdetail("It lacks rows that changed while transactions that are still running could see them."),
				 errhint("Try again when the transactions that were running when it was built have ended.")));
}

/*
 * Keeps the last queries in the query log, if that is on; not as the table's
 * owner.
 */
static void
keep_queries(const IvfpqBulk *bulk)
{
	const IvfpqQueries *queries = &bulk->queries;

	if (!ivfpq_keep_queries || bulk->model->meta.nlists == 0)
		return;
	for (int i = Max(queries->n - MOST_KEPT, 0); i < queries->n; i++)
		IvfpqLogQuery(bulk->index, queries->vectors +
					  (Size) i * queries->dims, queries->dims);
}

/* The answer to a query, counted from 0. */
static void
put_answer(void *arg, int64 query, const IvfpqBulkRow *rows, int n)
{
	ReturnSetInfo *rsinfo = arg;

	for (int i = 0; i < n; i++)
	{
		Datum		values[3];
		bool		nulls[3] = {false};

		values[0] = Int32GetDatum((int32) query + 1);
		values[1] = PointerGetDatum(&rows[i].tid);
		values[2] = Float8GetDatum(rows[i].distance);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
}

/* gpuvec_search(index regclass, queries real[][], k integer) */
Datum
gpuvec_search(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IvfpqIdentity caller;
	IvfpqBulk	bulk = {0};

	bulk.queries = IvfpqQueriesOfArray(PG_GETARG_ARRAYTYPE_P(1));
	bulk.k = PG_GETARG_INT32(2);
	if (bulk.k < 1 || bulk.k > IVFPQ_BULK_MOST_K)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("k must be between 1 and %d, not %d", IVFPQ_BULK_MOST_K, bulk.k),
				 errhint("k is how many rows each query wants.")));
	InitMaterializedSRF(fcinfo, 0);
	bulk.index = IvfpqOpenIndexTable(PG_GETARG_OID(0), AccessShareLock,
									 &bulk.heap);
	check_rights(bulk.heap, bulk.index);
	check_whole(bulk.index);
	if (bulk.queries.n > 0)
	{
		bulk.model = IvfpqModelGet(bulk.index);
		bulk.snapshot = RegisterSnapshot(GetActiveSnapshot());
		PredicateLockRelation(bulk.index, bulk.snapshot);
		IvfpqCountersOpen();
		IvfpqActAsOwner(&caller, bulk.heap);
		IvfpqBulkAnswer(&bulk, put_answer, rsinfo);
		IvfpqActAsCaller(&caller);
		keep_queries(&bulk);
		IvfpqBulkCount(&bulk, false);
		UnregisterSnapshot(bulk.snapshot);
	}
	/* locks stay, as those of a SELECT do */
	relation_close(bulk.index, NoLock);
	table_close(bulk.heap, NoLock);
	return (Datum) 0;
}
