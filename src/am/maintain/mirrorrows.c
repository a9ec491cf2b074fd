/*
 * mirrorrows.c
 *		Rows of an index's table for the index's mirror in gpuvecd.
 *
 * A loader reads rows in a worker, whose user is a superuser.  So it acts as
 * the table's owner, and evaluates only expressions whose stored form calls
 * nothing but C functions.  The form in the relation cache must not be looked
 * at for this: to make it, PostgreSQL evaluates functions of constants.
 *
 * A row that is not boundable stays unknown, so each session that meets it
 * reports it once a second, and a loader looks in vain.  Such lengths are rare,
 * and a catch-up without changes takes milliseconds.
 *
 * search/README, "Rows in a mirror", has the proof that a row read here is the
 * row that sessions see at its TID.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/maintain/maintain.h"
#include "am/search/rerank.h"
#include "client/client.h"

/* IvfpqRowSource.form */
static GvRowForm
row_form(Relation index, Relation heap)
{
	IvfpqType	type;

	/* other access methods may move a row without another TID */
	if (heap->rd_tableam != GetHeapamTableAmRoutine() ||
		IvfpqIsInterpreted(index, false))
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
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);
	IvfpqIdentity caller;
	IvfpqType	type;
	IvfpqRerank rerank;
	int			nthere = 0;		/* the table may have been truncated since */
	int			count = 0;

	snapshot = RegisterSnapshot(snapshot != NULL ? snapshot :
								GetLatestSnapshot());
	IvfpqTypeInit(&type, index);
	IvfpqTypeStudy(&type);
	for (int i = 0; i < n; i++)
	{
		ids[i] = IvfpqTidToId(&tids[i]);
		if (ItemPointerGetBlockNumberNoCheck(&tids[i]) < nblocks)
			nthere = i + 1;
	}
	IvfpqActAsOwner(&caller, heap);
	IvfpqRerankBegin(&rerank, heap, index, snapshot);
	IvfpqRerankPrefetch(&rerank, ids, nthere, true);
	for (int i = 0; i < n; i++)
	{
		GvRowItem  *item = (GvRowItem *) (items + count * stride);
		const float *vector = NULL;
		int			row_dims;

		CHECK_FOR_INTERRUPTS();
		memset(item, 0, stride);
		memcpy(item->rowid, &tids[i], sizeof(item->rowid));
		if (i < nthere && ItemPointerIsValid(&tids[i]))
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
	IvfpqActAsCaller(&caller);
	UnregisterSnapshot(snapshot);
	pfree(ids);
	return count;
}

const IvfpqRowSource ivfpq_rows_of_tables = {row_form, read_rows};
