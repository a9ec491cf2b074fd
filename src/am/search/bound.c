/*
 * bound.c
 *		Refine records: made from rows, and what they say about a distance.
 *
 * The engine bounds distances in its own space; here the bound becomes one of
 * the operator's own result, which may have been summed in fp32 (pgvector) or
 * double.  So whatever the operator returns for a row is not below the row's
 * bound, and a row whose bound has not come up need not be fetched.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/float.h"

#include "am/common/engine.h"
#include "am/common/options.h"
#include "am/common/tid.h"
#include "am/search/search.h"

/* Rounding to fp32: relative error of one operation. */
#define UNIT_ROUNDOFF	(1.0 / 16777216.0)

/* What sums of squares, of products lose where terms underflow in fp32. */
#define LEAST_LENGTH	1e-20
#define LEAST_PRODUCT	1e-37

/* Records read and bounded at once. */
#define CHUNK			64

/* ERROR if the rows of an index with refine records have too many dims. */
void
IvfpqRecordCheckDims(Relation index, int dims)
{
	if (IvfpqGetOptions(index)->refine != IVFPQ_REFINE_NONE &&
		dims > IvfpqRecordMaxDims())
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("option refine takes %d dimensions at most, not %d",
						IvfpqRecordMaxDims(), dims),
				 errhint("Create the index without refine.")));
}

/* Memory for a record. */
IvfpqRecord *
IvfpqRecordAlloc(int dims)
{
	return palloc0(IvfpqRecordSlotBytes(dims));
}

/*
 * Make the record of a row from its transformed vector [dims].  Of one that is
 * not boundable (IvfpqIsBoundable) it bounds nothing: the row is measured.
 */
void
IvfpqRecordMake(IvfpqRecord *record, const float *vector, int dims,
				bool boundable, const ItemPointerData *tid)
{
	record->tid = *tid;
	IvfpqCheckStatus(gv_refine_encode(dims, vector, 1, record->codes,
									  &record->min, &record->step,
									  &record->error));
	if (!boundable)
		record->error = get_float4_infinity();
}

/*
 * From the engine's bound on |q - x| or -<q, x> to one on what the operator
 * returns.  The engine's q and x are rounded: each by u times its length, and
 * |x| <= |q| + |q - x|.  The operator may sum in fp32, with an error of dims
 * roundings; of an inner product the engine's bound covers that, of a cosine
 * it is absolute.  Vectors too short or too long for sums in fp32 do not come
 * here with a bound: IvfpqIsBoundable has told them apart.
 */
static double
operator_bound(const GvModel *gv, double bound, double query_length)
{
	double		scale = gv->scale;
	double		slack = (gv->dims + 64) * UNIT_ROUNDOFF;
	double		length;
	double		result;

	if (gv->metric == GV_IP)
	{
		result = bound / (scale * scale);
		result -= fabs(result) * 4 * UNIT_ROUNDOFF + LEAST_PRODUCT;
	}
	else
	{
		length = bound * (1 - 4 * UNIT_ROUNDOFF) -
			2 * UNIT_ROUNDOFF * query_length - FLT_MIN;
		length = Max(length, 0) / scale;
		if (gv->metric == GV_L2)
			result = length * (1 - slack) - LEAST_LENGTH;
		else
			result = length * length / 2 * (1 - slack) - 4 * slack;
	}
	return isnan(result) ? -get_float8_infinity() : result;
}

/* The records at ids [n <= CHUNK]; see IvfpqRecordBounds. */
static int
bound_chunk(const IvfpqSearch *search, const float *query,
			double query_length, uint64 *ids, int n, double *bounds,
			char *memory, IvfpqPrefetch *prefetch)
{
	const IvfpqModel *model = search->model;
	int			dims = model->meta.dims;
	ItemPointerData addresses[CHUNK] = {0};
	GvRefine	records[CHUNK];
	float		engine_bounds[CHUNK];
	int			count = 0;

	for (int i = 0; i < n; i++)
		IvfpqIdToTid(ids[i], &addresses[i]);
	IvfpqRecordRead(search->index, dims, addresses, n, memory, prefetch);
	for (int i = 0; i < n; i++)
	{
		const IvfpqRecord *record = (const IvfpqRecord *)
		(memory + i * IvfpqRecordSlotBytes(dims));

		if (!ItemPointerIsValid(&record->tid))
			continue;			/* free: the row is dead */
		records[count].min = record->min;
		records[count].step = record->step;
		records[count].error = record->error;
		records[count].codes = record->codes;
		ids[count++] = IvfpqTidToId(&record->tid);
	}
	if (count > 0 && query != NULL)
		IvfpqCheckStatus(gv_refine_bound(model->gv.metric, dims, query,
										 records, count, engine_bounds));
	for (int i = 0; i < count; i++)
		bounds[i] = query == NULL ? -get_float8_infinity() :
			operator_bound(&model->gv, engine_bounds[i], query_length);
	return count;
}

/*
 * Take out of the addresses ids [n] those that gpuvecd's answer told about:
 * their rows and bounds go to rows, bounds; returns how many.  *left: how many
 * are left in ids.  Candidates keep the answer's order, so one pass finds all.
 */
static int64
take_known(const IvfpqSearch *search, const float *query,
		   double query_length, uint64 *ids, int64 n, uint64 *rows,
		   double *bounds, int64 *left)
{
	const IvfpqRemote *remote = &search->remote;
	const GvModel *gv = &search->model->gv;
	int64		count = 0;
	int			k = 0;

	*left = 0;
	for (int64 i = 0; i < n; i++)
	{
		while (k < remote->nknown && remote->known[k].address != ids[i])
			k++;
		if (k == remote->nknown || !remote->known[k].is_known)
		{
			ids[(*left)++] = ids[i];
			continue;
		}
		rows[count] = remote->known[k].tid;
		bounds[count++] = query == NULL ? -get_float8_infinity() :
			operator_bound(gv, remote->known[k].bound, query_length);
	}
	return count;
}

/* Read the records at ids [n] from pages, in the order of these. */
static int64
read_bounds(const IvfpqSearch *search, const float *query,
			double query_length, uint64 *ids, int64 n, uint64 *rows,
			double *bounds)
{
	const IvfpqModel *model = search->model;
	char	   *memory = palloc(CHUNK *
								IvfpqRecordSlotBytes(model->meta.dims));
	int64		count = 0;
	IvfpqPrefetch prefetch;

	IvfpqSortNumbers(ids, n);
	IvfpqPrefetchBegin(&prefetch, search->index, ids, n, IVFPQ_ID_SHIFT);
	for (int64 done = 0; done < n; done += CHUNK)
	{
		int			some = (int) Min(CHUNK, n - done);

		CHECK_FOR_INTERRUPTS();
		memcpy(rows + count, ids + done, some * sizeof(uint64));
		count += bound_chunk(search, query, query_length, rows + count, some,
							 bounds + count, memory, &prefetch);
	}
	IvfpqPrefetchEnd(&prefetch);
	pfree(memory);
	return count;
}

/*
 * What the refine records at the addresses ids [n], the search's candidates,
 * say of a transformed query [dims], or NULL when nothing is known of what the
 * operator will make of it: from gpuvecd's answer, as far as it told, and from
 * pages.  ids becomes the TIDs of the rows, bounds their bounds; returns how
 * many.  Records of dead rows are left out.
 */
int64
IvfpqRecordBounds(const IvfpqSearch *search, const float *query, uint64 *ids,
				  int64 n, double *bounds)
{
	uint64	   *rows = palloc_extended(Max(n, 1) * sizeof(uint64),
									   MCXT_ALLOC_HUGE);
	double		query_length = 0;
	int64		count;
	int64		left;

	if (query != NULL)
		query_length = sqrt(-gv_distance_ip(query, query,
											search->model->meta.dims));
	count = take_known(search, query, query_length, ids, n, rows, bounds,
					   &left);
	if (left > 0)
		count += read_bounds(search, query, query_length, ids, left,
							 rows + count, bounds + count);
	memcpy(ids, rows, count * sizeof(uint64));
	pfree(rows);
	return count;
}
