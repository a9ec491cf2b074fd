/*
 * drift.c
 *		Do an index's codes still reach the rows that it holds?
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

#include "am/common/engine.h"
#include "am/common/tid.h"
#include "am/heap/measure.h"
#include "am/maintain/maintain.h"
#include "page/array.h"
#include "page/list/list.h"

#define DRAWN		500			/* copies looked at */
#define FEWEST		100			/* with fewer nothing is said, */
#define FEWEST_DIMS		8		/* nor of fewer dimensions, which do not even
								 * out: a new index of 3 had a tenth of its
								 * rows beyond reach */

/*
 * A row is beyond reach when it is so many times as far as its code: more
 * where the code tells less, its sub-quantizers having many dimensions each,
 * and where they are few, so that they do not even out.
 */
#define REACH		1.1
#define REACH_OF_DIMENSIONS	0.15	/* of a sub-quantizer */
#define REACH_OF_ONE	1.0

/*
 * Codes do not fit when this share of rows is.  Of rows like those of training
 * it is a tenth of that, also where lengths vary a lot.
 */
#define FAR_SHARE	0.015

typedef struct Drift
{
	Relation	index;
	IvfpqType	type;
	const IvfpqModel *model;
	IvfpqMeasure rows;			/* fetches them */
	MemoryContext context;		/* reset after every row */
	float	   *centroid;		/* [dims] of the list at hand */
	uint8	   *code;
	double		reach;
	int			drawn;			/* rows looked at */
	int			far;			/* of them are beyond reach */
} Drift;

/* How many times as far as its code a transformed vector [dims] lies. */
static double
stretch(const Drift *drift, const float *vector)
{
	static const int32 list = 0;
	const GvModel *gv = &drift->model->gv;
	double		product = 0;
	double		square = 0;
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
		}
	}
	return square > 0 ? product / square : 0;
}

/* Look at a row of the list at hand, if the snapshot sees it. */
static void
look_at_row(Drift *drift, const ItemPointerData *tid)
{
	const IvfpqModel *model = drift->model;
	MemoryContext oldcontext;
	const float *raw;
	Datum		value;
	int			dims;

	if (!IvfpqMeasureFetch(&drift->rows, IvfpqTidToId(tid), &value))
		return;
	oldcontext = MemoryContextSwitchTo(drift->context);
	raw = IvfpqValueFloats(&drift->type, value, &dims);
	if (dims == model->meta.dims)
	{
		float	   *vector = palloc(dims * sizeof(float));

		IvfpqTransform(drift->index, model, raw, vector);
		drift->drawn++;
		drift->far += stretch(drift, vector) > drift->reach;
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextReset(drift->context);
	IvfpqMeasureDone(&drift->rows);
}

/*
 * Look at rows of a list: at those of its live copies whose numbers, counted
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
		for (int i = 0; i < IVFPQ_BLOCK_COPIES; i++)
		{
			if ((view.live & (1U << i)) == 0)
				continue;
			for (; done < n && numbers[done] == (uint64) first; done++)
				look_at_row(drift, &view.tids[i]);
			first++;
		}
}

/* Draw from all live copies, of which there are so many; in their order. */
static void
look_at_lists(Drift *drift, int64 copies)
{
	const IvfpqMetaData *meta = &drift->model->meta;
	uint64		numbers[DRAWN];
	IvfpqListReader reader;
	int64		first = 0;
	int			done = 0;

	for (int i = 0; i < DRAWN; i++)
		numbers[i] = pg_prng_uint64_range(&pg_global_prng_state, 0,
										  copies - 1);
	IvfpqSortNumbers(numbers, DRAWN);
	IvfpqListReaderInit(&reader, drift->index, meta, NULL);
	for (int list = 0; list < meta->nlists && done < DRAWN; list++)
	{
		IvfpqListEntry entry;
		int64		end;
		int			n = 0;

		CHECK_FOR_INTERRUPTS();
		IvfpqListEntryRead(drift->index, meta, list, &entry);
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
 * Have rows that a trained index of so many live copies holds left what its
 * codes reach?  *drawn says of how many that was found out, *far how many of
 * them did.  Looking into an index is not to run its owner's code, so nothing
 * is said of expressions.  The caller has an active snapshot.
 */
bool
IvfpqHasDrifted(Relation heap, Relation index, int64 copies, int *drawn,
				int *far)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "gpuivfpq drift",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	Drift		drift = {.index = index, .model = IvfpqModelGet(index)};

	if (drift.model->meta.nlists > 0 && copies > 0 &&
		drift.model->gv.dims >= FEWEST_DIMS && index->rd_index->indisvalid &&
		index->rd_index->indkey.values[0] != 0)
	{
		IvfpqTypeInit(&drift.type, index);
		drift.context = AllocSetContextCreate(context, "gpuivfpq drift row",
											  ALLOCSET_DEFAULT_SIZES);
		drift.reach = REACH +
			REACH_OF_DIMENSIONS * drift.model->gv.dims / drift.model->gv.m +
			REACH_OF_ONE / sqrt(drift.model->gv.m);
		drift.centroid = palloc(drift.model->meta.dims * sizeof(float));
		drift.code = palloc(gv_code_bytes(drift.model->gv.m));
		IvfpqMeasureBegin(&drift.rows, heap, index, GetActiveSnapshot());
		look_at_lists(&drift, copies);
		IvfpqMeasureEnd(&drift.rows);
	}
	MemoryContextSwitchTo(oldcontext);
	MemoryContextDelete(context);
	*drawn = drift.drawn;
	*far = drift.far;
	return drift.drawn >= FEWEST && drift.far > FAR_SHARE * drift.drawn;
}
