/*
 * verifyrecord.c
 *		Checks whether refine records bound their rows.
 *
 * A scan in strict order returns a row when bounds prove that no other can
 * come before it.  A record whose numbers are changed, but are numbers, is
 * noticed by nothing else, and rows are returned in a wrong order.  So the row
 * of each record is fetched: the lower bound of its distance from itself must
 * be 0.  That is so where x^ is no farther away than the error, from which
 * both bounds follow.
 *
 * A record's TID is its row's as long as a snapshot that is older than the
 * page's copy sees the row: VACUUM frees records before TIDs are used again.
 */
#include "postgres.h"

#include <math.h>

#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/maintain/maintain.h"
#include "am/search/search.h"
#include "page/refinepage.h"

/* Begin to compare the records of a trained index, whose model is sound. */
void
IvfpqVerifyRecordsBegin(IvfpqVerifyRecords *verify, Relation heap,
						Relation index, Snapshot snapshot)
{
	verify->index = index;
	verify->model = IvfpqModelGet(index);
	verify->vector = palloc(verify->model->meta.dims * sizeof(float));
	IvfpqTypeInit(&verify->type, index);
	IvfpqRerankBegin(&verify->rows, heap, index, snapshot);
}

void
IvfpqVerifyRecordsEnd(IvfpqVerifyRecords *verify)
{
	IvfpqRerankEnd(&verify->rows);
	pfree(verify->vector);
	pfree(verify->model);
}

/* Does the record bound distances of a row with this value? */
static bool
bounds_value(IvfpqVerifyRecords *verify, const IvfpqRecord *record,
			 Datum value)
{
	const GvModel *gv = &verify->model->gv;
	GvRefine	refine = {record->min, record->step, record->error,
	record->codes};
	GvHalfRecord half_record = IvfpqHalfRecord(record);
	GvRange		range = {0, 0};
	const float *raw;
	int			dims;

	raw = IvfpqValueFloats(&verify->type, value, &dims);
	if (dims != gv->dims || !IvfpqIsPlaceable(&verify->type, raw, dims))
		return true;			/* another row's: that is compared elsewhere */
	if (!IvfpqIsBoundable(&verify->type, raw, dims))
		return isinf(record->error);
	IvfpqTransform(verify->index, verify->model, raw, verify->vector);
	if (verify->model->meta.refine == IVFPQ_REFINE_HALF)
		IvfpqCheckStatus(gv_half_range(GV_L2, dims, verify->vector,
									   &half_record,
									   1, &range));
	else
		IvfpqCheckStatus(gv_refine_bound(GV_L2, dims, verify->vector, &refine,
										 1, &range.least));
	return range.least <= 0;
}

/*
 * Returns whether a record bounds its row.  The record of a row that the
 * snapshot does not see does not matter.
 */
bool
IvfpqVerifyRecord(IvfpqVerifyRecords *verify, const IvfpqRecord *record)
{
	MemoryContext oldcontext;
	Datum		value;
	bool		bounds;

	if (!IvfpqRerankFetch(&verify->rows, IvfpqTidToId(&record->tid), &value))
		return true;
	oldcontext = MemoryContextSwitchTo(verify->rows.context);
	bounds = bounds_value(verify, record, value);
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(&verify->rows);
	return bounds;
}
