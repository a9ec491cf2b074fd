/*
 * mirrorrows.c
 *		Rows of an index's table for the index's mirror in gpuvecd.
 *
 * A loader reads rows in a worker, whose user is a superuser.  So it evaluates
 * expressions only if they call nothing but C functions, which superusers have
 * made: an owner's function in SQL or a procedural language never runs there.
 *
 * search/README, "Rows in a mirror", has the proof that a row read here is the
 * row that sessions see at its TID.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "catalog/pg_language_d.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "am/common/enginecall.h"
#include "am/maintain/maintain.h"
#include "am/search/rerank.h"
#include "client/client.h"

/* Returns whether a function is not in C. */
static bool
is_interpreted(Oid function, void *context)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Oid			language = InvalidOid;

	if (HeapTupleIsValid(tuple))
	{
		language = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
		ReleaseSysCache(tuple);
	}
	return language != INTERNALlanguageId && language != ClanguageId;
}

/*
 * Returns whether an expression may run code that is not in C.  The checks of
 * a domain are expressions of their own, which are not looked at.
 */
static bool
runs_interpreted_code(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, CoerceToDomain) ||
		check_functions_in_node(node, is_interpreted, context))
		return true;
	return expression_tree_walker(node, runs_interpreted_code, context);
}

/* IvfpqRowSource.form */
static GvRowForm
row_form(Relation index, Relation heap)
{
	IvfpqType	type;

	/* other access methods may move a row without another TID */
	if (heap->rd_tableam != GetHeapamTableAmRoutine() ||
		runs_interpreted_code((Node *) RelationGetIndexExpressions(index),
							  NULL))
		return GV_ROWS_NONE;
	IvfpqTypeInit(&type, index);
	IvfpqTypeStudy(&type);
	if (!type.has_toreal || type.stored == IVFPQ_STORED_FLOATS)
		return GV_ROWS_FLOAT;
	return type.stored == IVFPQ_STORED_HALF ? GV_ROWS_HALF : GV_ROWS_NONE;
}

/* Sets the values of an item from a row's vector [dims]. */
static void
store_vector(GvRowItem *item, GvRowForm form, const float *vector, int dims)
{
	float		error;

	item->known = 1;
	if (form == GV_ROWS_FLOAT)
		memcpy(item->values, vector, dims * sizeof(float));
	else						/* exact, because the floats come from halves */
		IvfpqCheckStatus(gv_half_encode(dims, vector, 1,
										(uint16 *) (void *) item->values,
										&error));
}

/* IvfpqRowSource.read */
static int
read_rows(Relation index, Relation heap, Snapshot snapshot, GvRowForm form,
		  int dims, const ItemPointerData *tids, int n, bool only_known,
		  char *items)
{
	Size		stride = gv_row_stride(form, dims);
	uint64	   *ids = palloc(n * sizeof(uint64));
	IvfpqType	type;
	IvfpqRerank rerank;
	int			count = 0;

	snapshot = RegisterSnapshot(snapshot != NULL ? snapshot :
								GetLatestSnapshot());
	IvfpqTypeInit(&type, index);
	IvfpqTypeStudy(&type);
	for (int i = 0; i < n; i++)
		ids[i] = IvfpqTidToId(&tids[i]);
	IvfpqRerankBegin(&rerank, heap, index, snapshot);
	IvfpqRerankPrefetch(&rerank, ids, n, true);
	for (int i = 0; i < n; i++)
	{
		GvRowItem  *item = (GvRowItem *) (items + count * stride);
		const float *vector;
		int			row_dims;

		CHECK_FOR_INTERRUPTS();
		memset(item, 0, stride);
		memcpy(item->rowid, &tids[i], sizeof(item->rowid));
		vector = IvfpqRerankFetchVector(&rerank, &type, ids[i], &row_dims);
		if (vector != NULL)
		{
			if (row_dims == dims && IvfpqIsBoundable(&type, vector, dims))
				store_vector(item, form, vector, dims);
			IvfpqRerankDone(&rerank);
		}
		count += item->known || !only_known;
	}
	IvfpqRerankReleasePages(&rerank);
	IvfpqRerankEnd(&rerank);
	UnregisterSnapshot(snapshot);
	pfree(ids);
	return count;
}

const IvfpqRowSource ivfpq_rows_of_tables = {row_form, read_rows};
