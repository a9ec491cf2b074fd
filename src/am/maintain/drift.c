/*
 * drift.c
 *		Finds out whether an index's codes still reach the rows that it holds.
 *
 * A code stands for a row's residual r by the mean r^ of training's residuals
 * nearest to it.  So over rows like those of training <r, r^> is |r^|^2, on
 * average and however coarse codes are.  A row that lies beyond all codewords
 * has a multiple of that: as far as its code tells it lies much nearer to its
 * centroid than it does, and all such rows look equally near.  Inner product
 * suffers most: for it rows that became longer are the nearest to every query,
 * and their lengths are what codes do not tell.
 */
#include "postgres.h"

#include <math.h>

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/build/train.h"
#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/maintain/maintain.h"
#include "am/search/rerank.h"
#include "page/array.h"
#include "page/listread.h"
#include "page/pending.h"

#define DRAWN		500			/* postings drawn */
#define FEWEST		100			/* with fewer no drift is reported, */
#define FEWEST_DIMS		8		/* nor of fewer dimensions, which do not even
								 * out: a new index of 3 had a tenth of its
								 * rows beyond reach */

/*
 * A row is beyond reach when it is this many times as far as its code: more
 * where the code tells less, its sub-quantizers having many dimensions each,
 * and where they are few, so that they do not even out.
 */
#define REACH		1.1
#define REACH_OF_DIMENSIONS	0.15	/* of a sub-quantizer */
#define REACH_OF_ONE	1.0

/*
 * Codes do not fit when this fraction of rows is beyond reach.  Of rows like
 * those of training a tenth of that is, also where lengths vary a lot.
 */
#define FAR_FRACTION	0.015

/*
 * A row lies at its centroid when its residual's square is at most this, where
 * a row's own is about 1.  Rows are copies of few vectors when this fraction
 * of the postings lie there; every second posting may be a secondary one.
 */
#define CENTERED_SQUARE	1e-3
#define CENTERED_FRACTION	0.25

#define SAME_SQUARE		1e-12	/* the same where a codebook is zeros, as a
								 * fraction of the row's own square */

typedef struct Drift
{
	Relation	index;
	IvfpqType	type;
	const IvfpqModel *model;
	IvfpqRerank rows;			/* fetches them */
	MemoryContext context;		/* reset after every row */
	float	   *centroid;		/* [dims] of the list at hand */
	uint8	   *code;
	double		reach;
	bool		zeros;			/* all codewords are */
	IvfpqDrift *found;
} Drift;

/*
 * Judge a transformed vector [dims].  Codebooks of zeros reach nothing but the
 * centroid, where all rows of training were, as when they were equal.
 */
static void
judge(Drift *drift, const float *vector)
{
	static const int32 list = 0;
	const GvModel *gv = &drift->model->gv;
	double		product = 0;
	double		square = 0;
	double		residual_square = 0;
	float		t;

	IvfpqCheckStatus(gv_encode(gv, vector, drift->centroid, &list, 1, 1,
							   drift->code, &t));
	for (int j = 0; j < gv->m; j++)
	{
		int			start = gv_sub_start(gv, j);
		int			dims = gv_sub_start(gv, j + 1) - start;
		int			code = drift->code[j / 2] >> (j % 2 * 4) & 0xF;
		const float *word = gv->codebooks +
		(Size) GV_CODEWORDS * start + code * dims;

		for (int d = 0; d < dims; d++)
		{
			double		residual = (double) vector[start + d] -
			drift->centroid[start + d];

			product += residual * word[d];
			square += (double) word[d] * word[d];
			residual_square += residual * residual;
		}
	}
	drift->found->drawn++;
	if (drift->zeros)
		drift->found->far += residual_square >
			SAME_SQUARE * gv_square(vector, gv->dims);
	else if (gv->dims >= FEWEST_DIMS && square > 0)
		drift->found->far += product / square > drift->reach;
	drift->found->centered += residual_square <= CENTERED_SQUARE;
}

/* Judges a row of the list at hand, if the snapshot sees it. */
static void
look_at_row(Drift *drift, const ItemPointerData *tid)
{
	const IvfpqModel *model = drift->model;
	MemoryContext oldcontext;
	const float *raw;
	Datum		value;
	int			dims;

	if (!IvfpqRerankFetch(&drift->rows, IvfpqTidToId(tid), &value))
		return;
	oldcontext = MemoryContextSwitchTo(drift->context);
	raw = IvfpqValueFloats(&drift->type, value, &dims);
	if (dims == model->meta.dims)
	{
		float	   *vector = palloc(dims * sizeof(float));

		IvfpqTransform(drift->index, model, raw, vector);
		judge(drift, vector);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(drift->context);
	IvfpqRerankDone(&drift->rows);
}

/*
 * Judges rows of a list: those of its live postings whose numbers, counted
 * from `first`, are among the ascending numbers [n].
 */
static void
look_at_list(Drift *drift, IvfpqListReader *reader, int list, int64 first,
			 const uint64 *numbers, int n)
{
	const IvfpqMetaData *meta = &drift->model->meta;
	IvfpqBlockView view;
	int			done = 0;

	IvfpqArrayFetch(drift->index, meta->centroids, meta->dims, list,
					drift->centroid);
	IvfpqListOpen(reader, list);
	while (done < n && IvfpqListNext(reader, &view))
		for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
		{
			if ((view.live & (1U << i)) == 0)
				continue;
			for (; done < n && numbers[done] == (uint64) first; done++)
				look_at_row(drift, &view.tids[i]);
			first++;
		}
}

/*
 * Draws from all live postings, `postings` of them, and judges the rows in
 * their order.
 */
static void
look_at_lists(Drift *drift, int64 postings)
{
	const IvfpqMetaData *meta = &drift->model->meta;
	uint64		numbers[DRAWN];
	IvfpqListReader reader;
	int64		first = 0;
	int			done = 0;

	for (int i = 0; i < DRAWN; i++)
		numbers[i] = pg_prng_uint64_range(&pg_global_prng_state, 0,
										  postings - 1);
	IvfpqSortNumbers(numbers, DRAWN);
	IvfpqListReaderInit(&reader, drift->index, meta, NULL);
	for (int list = 0; list < meta->nlists && done < DRAWN; list++)
	{
		IvfpqDirEntry entry;
		int64		end;
		int			n = 0;

		CHECK_FOR_INTERRUPTS();
		IvfpqDirEntryRead(drift->index, meta, list, &entry);
		end = first + entry.nitems - entry.ndead;
		while (done + n < DRAWN && numbers[done + n] < (uint64) end)
			n++;
		if (n > 0)
			look_at_list(drift, &reader, list, first, numbers + done, n);
		done += n;
		first = end;
	}
	IvfpqListReaderFree(&reader);
}

/*
 * Sets *found to whether rows of a trained index of that many live postings
 * lie beyond what its codes reach.  An inspection of an index must not run its
 * owner's code, so indexes of expressions are left out.  The caller has an
 * active snapshot.
 */
void
IvfpqLookForDrift(Relation heap, Relation index, int64 postings,
				  IvfpqDrift *found)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq drift",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	Drift		drift = {.index = index, .model = IvfpqModelGet(index),
	.found = found};

	memset(found, 0, sizeof(*found));
	if (drift.model->meta.nlists > 0 && postings > 0 &&
		index->rd_index->indisvalid &&
		index->rd_index->indkey.values[0] != 0)
	{
		IvfpqTypeInit(&drift.type, index);
		drift.context = AllocSetContextCreate(context, "gpuivfpq drift row",
											  ALLOCSET_DEFAULT_SIZES);
		drift.reach = REACH +
			REACH_OF_DIMENSIONS * drift.model->gv.dims / drift.model->gv.m +
			REACH_OF_ONE / sqrt(drift.model->gv.m);
		drift.zeros = gv_square(drift.model->gv.codebooks,
								GV_CODEWORDS * drift.model->gv.dims) == 0;
		drift.centroid = palloc(drift.model->meta.dims * sizeof(float));
		drift.code = palloc(gv_code_bytes(drift.model->gv.m));
		IvfpqRerankBegin(&drift.rows, heap, index, GetActiveSnapshot());
		look_at_lists(&drift, postings);
		IvfpqRerankEnd(&drift.rows);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	found->has_drifted = found->drawn >= FEWEST &&
		found->far > FAR_FRACTION * found->drawn;
	found->has_copies = found->drawn >= FEWEST &&
		found->centered > CENTERED_FRACTION * found->drawn;
}

/* Hashes of rows that are pending. */
typedef struct Hashes
{
	int			n;
	uint64		values[DRAWN];
} Hashes;

/*
 * Returns how often the most frequent of them occurs, if that is more than
 * half.
 */
static int
count_most(const Hashes *hashes)
{
	uint64		most = 0;
	int			lead = 0;
	int			count = 0;

	for (int i = 0; i < hashes->n; i++)
	{
		if (lead == 0)
			most = hashes->values[i];
		lead += hashes->values[i] == most ? 1 : -1;
	}
	for (int i = 0; i < hashes->n; i++)
		count += hashes->values[i] == most;
	return count;
}

/*
 * Returns whether an untrained index of that many pending rows seems to wait
 * because nearly all rows are equal.  False for indexes of expressions, as
 * above.
 */
bool
IvfpqLooksEqual(Relation heap, Relation index, int64 pending)
{
	MemoryContext context;
	MemoryContext oldcontext;
	Hashes		hashes = {0};
	IvfpqType	type;
	IvfpqRerank rows;
	IvfpqMetaData meta;
	IvfpqPendingReader reader;
	int64		every = Max(pending / DRAWN, 1);
	int64		seen = 0;
	int			count;

	if (!index->rd_index->indisvalid || index->rd_index->indkey.values[0] == 0)
		return false;
	context = AllocSetContextCreate(CurrentMemoryContext,
									"gpuivfpq pending rows",
									ALLOCSET_DEFAULT_SIZES);
	oldcontext = MemoryContextSwitchTo(context);
	IvfpqTypeInit(&type, index);
	IvfpqMetaRead(index, &meta);
	IvfpqRerankBegin(&rows, heap, index, GetActiveSnapshot());
	IvfpqPendingOpen(&reader, index, &meta);
	while (hashes.n < DRAWN && IvfpqPendingNext(&reader, &count))
		for (int i = 0; i < count && hashes.n < DRAWN; i++)
		{
			MemoryContext old;
			const float *vector;
			Datum		value;
			int			dims;

			if (seen++ % every != 0 ||
				!IvfpqRerankFetch(&rows,
								  IvfpqTidToId(&reader.tids[i]), &value))
				continue;
			old = MemoryContextSwitchTo(rows.context);
			vector = IvfpqValueFloats(&type, value, &dims);
			hashes.values[hashes.n++] = IvfpqVectorHash(vector, dims, 0);
			MemoryContextSwitchTo(old);
			IvfpqRerankDone(&rows);
		}
	IvfpqPendingClose(&reader);
	IvfpqRerankEnd(&rows);
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	count = hashes.n - count_most(&hashes);
	return hashes.n >= FEWEST &&
		IvfpqIsNearlyOne((double) count / hashes.n * pending, pending,
						 IvfpqLeastRows(index));
}
