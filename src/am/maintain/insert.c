/*
 * insert.c
 *		Inserts: one row into its lists, or onto the pending list of an
 *		untrained index.
 *
 * Rows come one at a time (README, "Inserts").  What the rows of a statement
 * share is looked up once and kept with the statement's IndexInfo: the vector
 * type, the keys and the model.  The metapage is read for every row, because
 * training in place may come between two rows, and the first row of an index
 * may decide on its dimensions.
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
 * What the rows of a statement share: indexInfo->ii_AmCache, which lives in
 * ii_Context.  It points to nothing of the relcache entry, which an
 * invalidation may rebuild between two rows.
 */
typedef struct InsertState
{
	IvfpqType	type;
	IvfpqKeys	keys;
	IvfpqModel *model;			/* with the metapage as of this row; NULL
								 * before the first row */
	MemoryContext context;		/* indexInfo->ii_Context */
	MemoryContext row_context;	/* in it; reset after each row */
} InsertState;

/*
 * Looks up what the rows of a statement share.  ii_AmCache is set only when
 * that is complete, so an error leaves nothing behind.
 */
static InsertState *
begin_insert(Relation index, IndexInfo *indexInfo)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(indexInfo->ii_Context);
	InsertState *state = palloc0(sizeof(InsertState));

	IvfpqTypeInit(&state->type, index);
	IvfpqKeysInit(&state->keys, index);
	state->context = indexInfo->ii_Context;
	state->row_context = AllocSetContextCreate(state->context,
											   "gpuivfpq insert",
											   ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(oldcontext);
	indexInfo->ii_AmCache = state;
	return state;
}

/*
 * Brings state->model up to date.  Reads the metapage, once unless the index
 * was trained since the row before; the model stays while the build_id and the
 * lists are those that it was read for.
 */
static void
refresh_model(InsertState *state, Relation index)
{
	MemoryContext oldcontext;
	IvfpqModel *model;

	if (state->model != NULL)
	{
		IvfpqMetaData meta;

		IvfpqMetaRead(index, &meta);
		if (meta.build_id == state->model->meta.build_id &&
			meta.nlists == state->model->meta.nlists)
		{
			state->model->meta = meta;
			return;
		}
	}
	oldcontext = MemoryContextSwitchTo(state->context);
	model = IvfpqModelGet(index);
	MemoryContextSwitchTo(oldcontext);
	if (model->meta.nlists > 0)
		IvfpqModelCheckKeys(index, model, &state->keys.form);
	if (state->model != NULL)
		pfree(state->model);
	state->model = model;
}

/*
 * Adds a row to the pending list, unless it has other dimensions than rows
 * before it.  If the metapage does not give these, the row's inserter must not
 * have expressions computed for rows that the inserter may not see.
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
 * Indexes a row whose vector, the first of its values, is not NULL.  The
 * metapage says which dimensions the vector must have: a changed option is for
 * the next build.  Zero vectors under cosine are not indexed.
 */
static void
insert_row(InsertState *state, Relation heap, Relation index,
		   const Datum *values, const bool *isnull, ItemPointer tid)
{
	IvfpqType  *type = &state->type;
	const IvfpqModel *model;
	IvfpqKeyAbbrevs abbrevs;
	const float *raw;
	float	   *vector;
	int			dims;

	raw = IvfpqValueFloats(type, values[0], &dims);
	refresh_model(state, index);
	model = state->model;
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
	IvfpqInsertPostings(index, model, vector,
						IvfpqIsBoundable(type, raw, dims), tid, &abbrevs,
						NULL);
}

/*
 * aminsert.  NULLs are not indexed, whatever the row's keys are.  An error ends
 * the statement, and with it the IndexInfo: there is nothing to clean up.
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
		state = begin_insert(index, indexInfo);
	oldcontext = MemoryContextSwitchTo(state->row_context);
	insert_row(state, heap, index, values, isnull, tid);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(state->row_context);
	return false;
}

/*
 * Encodes a transformed vector and appends it to its lists, one WAL record for
 * each posting.  The refine record that the postings point to comes first; it
 * bounds nothing unless the raw vector is boundable.  A row that is pending
 * leaves the pending list with its first posting.  `keys` are read if the
 * index has keys.
 */
void
IvfpqInsertPostings(Relation index, const IvfpqModel *model,
					const float *vector, bool boundable, ItemPointer tid,
					const IvfpqKeyAbbrevs *keys,
					const IvfpqPendingPlace *pending)
{
	static const int32 first_two[2] = {0, 1};	/* of centroids */
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

	/* the nearest list, and the one that complements it */
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
		IvfpqRecordAppend(index, IvfpqRecordCodeBytes(meta->refine, dims),
						  record, &refine);
	}
	for (int i = 0; i < npostings; i++)
	{
		IvfpqPosting posting = {.tid = *tid, .code = codes + i * code_bytes,
		.t = t[i], .secondary = i > 0, .refine = refine, .keys = keys};

		IvfpqListAppend(index, meta, (uint32) lists[i], &posting,
						i == 0 ? pending : NULL);
		if (pending != NULL)
			IvfpqInjectionPoint("drain: copy");
	}
}
