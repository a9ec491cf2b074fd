/*
 * insert.c
 *		One row into one list, or onto the pending list of an untrained index.
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
#include "page/pending.h"

/* Chooses the lists for a transformed vector; returns how many. */
static int
choose_lists(Relation index, const IvfpqModel *model, const float *vector,
			 int lists[2], float *centroids /* [GV_SOAR_LISTS][dims] */ )
{
	int			dims = model->meta.dims;
	float		scores[GV_SOAR_LISTS];
	uint64_t	ids[GV_SOAR_LISTS];
	GvTopK		nearest = {.capacity = GV_SOAR_LISTS, .scores = scores,
	.ids = ids};
	const float *others[GV_SOAR_LISTS];
	IvfpqQuery	row;
	int			second;
	int			n;

	IvfpqQueryInit(&row, model, GV_L2);
	IvfpqQuerySet(&row, vector);
	IvfpqNearestLists(index, model, &row, &nearest);
	n = model->meta.lists_per_row == 1 ? 1 : nearest.count;
	IvfpqArrayFetchSome(index, model->meta.centroids, dims, ids, n, centroids);
	lists[0] = (int) ids[0];
	if (n == 1)
		return 1;

	for (int i = 1; i < n; i++)
		others[i - 1] = centroids + (Size) i * dims;
	second = gv_soar(dims, vector, centroids, others, n - 1) + 1;
	lists[1] = (int) ids[second];
	memmove(centroids + dims, centroids + (Size) second * dims,
			dims * sizeof(float));
	return 2;
}

/*
 * Encode a transformed vector and append it to its lists, a record each, after
 * the refine record that they point to, which bounds nothing unless the raw
 * vector is boundable.  A row that is pending leaves the pending list with its
 * first posting.  `keys` are read where the index has some.
 */
void
IvfpqInsertPostings(Relation index, const IvfpqModel *model,
					const float *vector, bool boundable, ItemPointer tid,
					const IvfpqKeyAbbrevs *keys,
					const IvfpqPendingPlace *pending)
{
	static const int32 both[2] = {0, 1};	/* the first of centroids */
	int			dims = model->meta.dims;
	float	   *centroids = palloc(GV_SOAR_LISTS * dims * sizeof(float));
	int			code_bytes = gv_code_bytes(model->gv.m);
	uint8	   *codes = palloc(2 * code_bytes);
	float		t[2];
	int			lists[2];
	int			npostings =
	choose_lists(index, model, vector, lists, centroids);
	ItemPointerData refine = {0};

	IvfpqCheckStatus(gv_encode(&model->gv, vector, centroids, both, 1,
							   npostings,
							   codes, t));
	if (model->meta.refine != IVFPQ_REFINE_NONE)
	{
		IvfpqRefine kind = model->meta.refine;
		IvfpqRecord *record = IvfpqRecordAlloc(kind, dims);

		IvfpqRecordMake(kind, record, &model->gv, vector, boundable, tid);
		IvfpqRecordAppend(index, IvfpqRecordCodeBytes(kind, dims), record,
						  &refine);
	}
	for (int i = 0; i < npostings; i++)
	{
		IvfpqPosting posting = {.tid = *tid, .code = codes + i * code_bytes,
		.t = t[i], .secondary = i > 0, .refine = refine, .keys = keys};

		IvfpqListAppend(index, &model->meta, lists[i], &posting,
						i == 0 ? pending : NULL);
		if (pending != NULL)
			IvfpqInjectionPoint("drain: copy");
	}
}

/* Images of the keys of a row that was fetched. */
void
IvfpqFetchedKeys(IvfpqKeys *keys, IvfpqRerank *rows, IvfpqKeyAbbrevs *abbrevs)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnull[INDEX_MAX_KEYS];

	if (keys->nkeys == 0)
		return;
	IvfpqRerankColumns(rows, values, isnull);
	IvfpqKeysMake(keys, values, isnull, abbrevs);
}

/*
 * Adds a row to the pending list, unless it has other dimensions than rows
 * before it.  Where pages do not say which those are, who inserts has no
 * expression computed for rows that it may not see.
 */
static void
insert_pending(Relation heap, Relation index, const IvfpqType *type,
			   const IvfpqMetaData *known, ItemPointer tid, int dims)
{
	IvfpqMetaData meta = *known;
	int			expected = meta.dims > 0 || IvfpqMayAct(heap, index) ?
	IvfpqRowDims(heap, index, &meta) : 0;

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
 * Index a row whose vector, the first of its values, is not NULL.  The
 * metapage says which dimensions it must have: a changed option is for the
 * next build.
 */
static void
insert_row(Relation heap, Relation index, const Datum *values,
		   const bool *isnull, ItemPointer tid)
{
	IvfpqType	type;
	IvfpqKeys	keys;
	IvfpqKeyAbbrevs abbrevs;
	IvfpqModel *model;
	const float *raw;
	int			dims;

	IvfpqTypeInit(&type, index);
	raw = IvfpqValueFloats(&type, values[0], &dims);
	model = IvfpqModelGet(index);
	if (model->meta.dims > 0 &&
		(model->meta.nlists > 0 ||
		 !(model->meta.dims_flags & IVFPQ_DIMS_BY_ROW)))
		IvfpqCheckDims(model->meta.dims, dims);

	if (!IvfpqIsPlaceable(&type, raw, dims))
		return;

	if (model->meta.nlists > 0)
	{
		float	   *vector = palloc(dims * sizeof(float));

		IvfpqKeysInit(&keys, index);
		IvfpqModelCheckKeys(index, model, &keys.form);
		IvfpqKeysMake(&keys, values, isnull, &abbrevs);
		IvfpqTransform(index, model, raw, vector);
		IvfpqInsertPostings(index, model, vector,
							IvfpqIsBoundable(&type, raw, dims), tid, &abbrevs,
							NULL);
	}
	else
		insert_pending(heap, index, &type, &model->meta, tid, dims);
}

/*
 * aminsert.  NULLs, and zero vectors under cosine, are not indexed, whatever
 * the row's keys are.
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
	insert_row(heap, index, values, isnull, tid);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	return false;
}
