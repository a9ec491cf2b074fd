/*
 * ivfpqinsert.c
 *		One row into one list, or onto the pending list of an untrained index.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "am/ivfpq.h"

/* Encode a transformed vector and append it to its list. */
static void
insert_copy(Relation index, const IvfpqModel *model, const float *vector,
			ItemPointer tid)
{
	float	   *centroid = palloc(model->meta.dims * sizeof(float));
	uint8	   *code = palloc(gv_code_bytes(model->gv.m));
	IvfpqCopy	copy;
	int			list;

	list = IvfpqNearestList(index, model, vector, centroid);
	copy.tid = *tid;
	copy.code = code;
	IvfpqCheckStatus(gv_encode(&model->gv, vector, centroid, 1, code, &copy.t));
	IvfpqListAppend(index, &model->meta, list, &copy);
}

/* Index a value that is not NULL. */
static void
insert_value(Relation index, Datum value, ItemPointer tid)
{
	IvfpqType	type;
	IvfpqModel *model;
	const float *raw;
	int			dims;
	int			fixed;

	IvfpqTypeInit(&type, index);
	raw = IvfpqValueFloats(&type, value, &dims);
	fixed = IvfpqIndexDims(index, &type);
	if (fixed > 0)
		IvfpqCheckDims(fixed, dims);

	if (!IvfpqIsPlaceable(&type, raw, dims))
		return;

	model = IvfpqModelGet(index);
	if (model->meta.nlists > 0)
	{
		float	   *vector = palloc(dims * sizeof(float));

		IvfpqCheckDims(model->meta.dims, dims);
		gv_transform(&model->gv, raw, 1, vector);
		insert_copy(index, model, vector, tid);
	}
	else
		IvfpqPendingAppend(index, tid);
}

/*
 * aminsert.  NULLs, and zero vectors under cosine, are not indexed.
 */
bool
ivfpqinsert(Relation index, Datum *values, bool *isnull,
			ItemPointer tid, Relation heap, IndexUniqueCheck checkUnique,
			bool indexUnchanged, IndexInfo *indexInfo)
{
	MemoryContext context;
	MemoryContext oldcontext;

	if (isnull[0])
		return false;

	context = AllocSetContextCreate(CurrentMemoryContext, "gpuivfpq insert",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	insert_value(index, values[0], tid);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return false;
}
