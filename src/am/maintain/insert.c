/*
 * insert.c
 *		Inserts a row into its lists or, while the index is untrained or its
 *		lists are frozen, appends it to the pending list.
 *
 * Rows come one at a time (README, "Inserts").  The vector type, the keys and
 * the model are the same for all rows of a statement, so they are looked up
 * once and kept with the statement's IndexInfo.  The metapage is read for
 * every row, because the index may be trained in place between two rows, and
 * because the first row of an index may determine the dimensions of all rows.
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/maintain/maintain.h"
#include "am/search/heaptids.h"
#include "am/search/search.h"
#include "am/types/keys.h"
#include "am/types/vector.h"
#include "page/array.h"
#include "page/injection.h"
#include "page/listwrite.h"
#include "page/metapage.h"
#include "page/pending.h"
#include "page/refinepage.h"

/*
 * The state that all rows of a statement share, in indexInfo->ii_AmCache.  It
 * is allocated in ii_Context.  It has no pointer into the index's relcache
 * entry, because an invalidation may rebuild that entry between two rows.
 */
typedef struct InsertState
{
	IvfpqType	type;
	IvfpqKeys	keys;
	IvfpqModel *model;			/* its `meta` is read again for each row; NULL
								 * before the first row */
	MemoryContext context;		/* indexInfo->ii_Context */
	MemoryContext row_context;	/* child of `context`; reset after each row */
} InsertState;

/*
 * Appends a row to the pending list, or raises an error if the row has other
 * dimensions than the rows before it.  If the metapage does not give the
 * dimensions, IvfpqRowDims gets them from pending rows, and computes the
 * index's expressions for these rows.  The inserting user may have no right to
 * see the pending rows, so this is done only if IvfpqMayAct permits it.
 */
static void
insert_pending(Relation heap, Relation index, const IvfpqType *type,
			   const IvfpqMetaData *known, ItemPointer tid, int dims)
{
	IvfpqMetaData meta = *known;
	int			expected = 0;

	if (meta.dims > 0 || IvfpqMayAct(heap, index))
		expected = IvfpqRowDims(heap, index, &meta);
	if (expected == 0 || expected == dims)
	{
		IvfpqInjectionPoint("insert: pending");
		expected = IvfpqPendingAppend(index, tid, dims);
	}
	while (expected != dims && type->typmod_dims == 0)
	{
		IvfpqMetaRead(index, &meta);
		if (meta.nlists > 0 || !IvfpqFreeDims(heap, index, &meta, tid))
			break;
		expected = IvfpqPendingAppend(index, tid, dims);
	}
	IvfpqCheckDims(expected, dims);
}

/*
 * Indexes a row whose vector, values[0], is not NULL.  The vector must have
 * the dimensions in the metapage, even if the option `dims` was changed,
 * because the option takes effect only at the next build.  A zero vector under
 * cosine is not indexed.
 */
static void
insert_row(InsertState *state, Relation heap, Relation index,
		   const Datum *values, const bool *isnull, ItemPointer tid)
{
	IvfpqType  *type = &state->type;
	IvfpqModel *model = state->model;
	bool		is_current = false;
	IvfpqKeyAbbrevs abbrevs;
	const float *raw;
	float	   *vector;
	int			dims;

	raw = IvfpqValueFloats(type, values[0], &dims);

	/*
	 * Read the metapage.  If build_id or the number of lists has changed, the
	 * index was trained after the previous row, and the model is read again.
	 * Otherwise only the metapage in the model is replaced.
	 */
	if (model != NULL)
	{
		IvfpqMetaData meta;

		IvfpqMetaRead(index, &meta);
		is_current = meta.build_id == model->meta.build_id &&
			meta.nlists == model->meta.nlists;
		if (is_current)
			model->meta = meta;
	}
	if (!is_current)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(state->context);

		model = IvfpqModelGet(index);
		MemoryContextSwitchTo(oldcontext);
		if (model->meta.nlists > 0)
			IvfpqModelCheckKeys(index, model, &state->keys.form);
		if (state->model != NULL)
			pfree(state->model);
		state->model = model;
	}

	if (model->meta.dims > 0 &&
		(model->meta.nlists > 0 ||
		 !(model->meta.dims_flags & IVFPQ_DIMS_BY_ROW)))
		IvfpqCheckDims(model->meta.dims, dims);
	if (!IvfpqIsPlaceable(type, raw, dims))
		return;
	if (model->meta.nlists == 0)
	{
		insert_pending(heap, index, type, &model->meta, tid, dims);
		return;
	}
	IvfpqKeysMake(&state->keys, values, isnull, &abbrevs);
	vector = palloc(dims * sizeof(float));
	IvfpqTransform(index, model, raw, vector);
	if (!IvfpqInsertPostings(index, model, vector,
							 IvfpqIsBoundable(type, raw, dims), tid, &abbrevs,
							 NULL, NULL))
		insert_pending(heap, index, type, &model->meta, tid, dims);
}

/*
 * aminsert callback.  A row whose vector is NULL is not indexed, whatever its
 * keys are.  After an error nothing has to be cleaned up, because the error
 * ends the statement and frees the IndexInfo.
 */
bool
ivfpqinsert(Relation index, Datum *values, bool *isnull,
			ItemPointer tid, Relation heap, IndexUniqueCheck checkUnique,
			bool indexUnchanged, IndexInfo *indexInfo)
{
	InsertState *state = indexInfo->ii_AmCache;
	MemoryContext oldcontext;

	if (isnull[0])
		return false;
	if (state == NULL)
	{
		oldcontext = MemoryContextSwitchTo(indexInfo->ii_Context);
		state = palloc0(sizeof(InsertState));
		IvfpqTypeInit(&state->type, index);
		IvfpqKeysInit(&state->keys, index);
		state->context = indexInfo->ii_Context;
		state->row_context = AllocSetContextCreate(state->context,
												   "gpuivfpq insert",
												   ALLOCSET_DEFAULT_SIZES);
		MemoryContextSwitchTo(oldcontext);
		/* do this last, so that an error leaves no unfinished state behind */
		indexInfo->ii_AmCache = state;
	}
	oldcontext = MemoryContextSwitchTo(state->row_context);
	insert_row(state, heap, index, values, isnull, tid);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(state->row_context);
	return false;
}

/*
 * Encodes a transformed vector and appends one posting to each of its lists.
 * Each posting is one WAL record.  The refine record, to which the postings
 * point, is written before them.  If the raw vector is not boundable, the
 * error in the refine record is infinite.  If `pending` is not NULL, the row
 * is pending, and the WAL record of its first posting also removes it from the
 * pending list.  `keys` is read only if the index has keys.  If `records` is
 * not NULL, the model is not published yet, and the refine record goes there.
 *
 * Returns false if a new training replaces, or has replaced, the model.  The
 * row has no posting then.  If the row has its first posting and the list of
 * the second is frozen, the result is true: the training finds the row by its
 * first posting.
 */
bool
IvfpqInsertPostings(Relation index, const IvfpqModel *model,
					const float *vector, bool boundable, ItemPointer tid,
					const IvfpqKeyAbbrevs *keys,
					const IvfpqPendingPlace *pending,
					IvfpqRecordBuilder *records)
{
	static const int32 first_two[2] = {0, 1};	/* indexes into `centroids` */
	const IvfpqMetaData *meta = &model->meta;
	int			dims = meta->dims;
	int			code_bytes = gv_code_bytes(model->gv.m);
	float	   *centroids = palloc(GV_SOAR_LISTS * dims * sizeof(float));
	uint8	   *codes = palloc(2 * code_bytes);
	float		t[2];
	float		scores[GV_SOAR_LISTS];
	uint64_t	lists[GV_SOAR_LISTS];
	GvTopK		nearest = {.capacity = GV_SOAR_LISTS, .scores = scores,
	.ids = lists};
	IvfpqQuery	query;
	int			n;
	int			npostings = 1;
	ItemPointerData refine = {0};

	/* find the nearest list and, if rows have two lists, the secondary list */
	IvfpqQueryInit(&query, model, GV_L2);
	IvfpqQuerySet(&query, vector);
	IvfpqNearestLists(index, model, &query, NULL, 1, &nearest);
	n = meta->lists_per_row == 1 ? 1 : nearest.count;
	IvfpqArrayFetchSome(index, meta->centroids, dims, lists, n, centroids);
	if (n > 1)
	{
		const float *others[GV_SOAR_LISTS];
		int			second;

		for (int i = 1; i < n; i++)
			others[i - 1] = centroids + (Size) i * dims;
		second = gv_soar(dims, vector, centroids, others, n - 1) + 1;
		lists[1] = lists[second];
		memmove(centroids + dims, centroids + (Size) second * dims,
				dims * sizeof(float));
		npostings = 2;
	}

	IvfpqCheckStatus(gv_encode(&model->gv, vector, centroids, first_two, 1,
							   npostings, codes, t));
	if (meta->refine != IVFPQ_REFINE_NONE)
	{
		IvfpqRecord *record = IvfpqRecordAlloc(meta->refine, dims);

		IvfpqRecordMake(meta->refine, record, &model->gv, vector, boundable,
						tid);
		if (records != NULL)
			IvfpqRecordBuilderAdd(records, record, &refine);
		else if (!IvfpqRecordAppend(index, meta->build_id,
									IvfpqRecordCodeBytes(meta->refine, dims),
									record, &refine))
			return false;
	}
	for (int i = 0; i < npostings; i++)
	{
		IvfpqPosting posting = {.tid = *tid, .code = codes + i * code_bytes,
		.t = t[i], .secondary = i > 0, .refine = refine, .keys = keys};

		if (i == 0)
			IvfpqInjectionPoint("insert: posting");
		if (!IvfpqListAppend(index, meta, &model->layout, (uint32) lists[i],
							 &posting, i == 0 ? pending : NULL))
			return i > 0;
		if (pending != NULL)
			IvfpqInjectionPoint("drain: copy");
	}
	return true;
}
