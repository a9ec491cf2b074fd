/*
 * refinerecord.c
 *		Refine records: making them from rows, and bounding distances by them.
 *
 * The engine bounds distances in its own space; here its bounds become those
 * of the operator's own result, which may have been summed in fp32 (pgvector)
 * or double.  So the operator returns no less for a row than the row's lower
 * bound, and a row need not be fetched before its bound is the least of all.
 * With records in half precision it returns no more than the upper bound
 * either, and a row that no other can come before need not be fetched at all.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/float.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/search/search.h"

/* Rounding to fp32: relative error of one operation. */
#define UNIT_ROUNDOFF	(1.0 / 16777216.0)

/* The loss of a sum of squares, of products where terms underflow in fp32. */
#define LEAST_LENGTH	1e-20
#define LEAST_PRODUCT	1e-37

/* A longer distance may overflow in fp32, where it is squared. */
#define MOST_LENGTH		1e18

/* Records read and bounded at once. */
#define CHUNK			64

/*
 * Raises an error if the rows of an index with refine records have too many
 * dimensions.
 */
void
IvfpqRecordCheckDims(Relation index, int dims)
{
	IvfpqRefine refine = IvfpqGetOptions(index)->refine;

	if (refine != IVFPQ_REFINE_NONE && dims > IvfpqRecordMaxDims(refine))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("option refine takes %d dimensions at most, not %d",
						IvfpqRecordMaxDims(refine), dims),
				 errhint("Create the index without refine.")));
}

/* Allocates a record of this kind. */
IvfpqRecord *
IvfpqRecordAlloc(IvfpqRefine refine, int dims)
{
	return palloc0(IvfpqRecordSlotBytes(IvfpqRecordCodeBytes(refine, dims)));
}

/*
 * Makes the errors [n] of records of transformed vectors [n][dims] allow for
 * the rotation.  Its rho, gv_rotation_error, is below 1e-4; with q', x' as they
 * were rotated and Q q, Q x as they ought to have been,
 *		||q' - x'| - |q - x||	<= rho (|q| + |x|)
 *		|<q', x'> - <q, x>|		<= (2 rho + rho^2) |q| |x|
 * and |x| <= |x'| / (1 - rho), likewise |q|.  3 rho |x'| in the record are
 * enough for the row's part of the first and for all of the second, where the
 * engine's bound multiplies a record's error by |q'|; operator_bound allows
 * for the query's part of the first.
 */
void
IvfpqRecordAllow(const GvModel *gv, const float *vectors, int64 n,
				 float *errors)
{
	int			dims = gv->dims;

	if (gv->rotation_error == 0)
		return;
	for (int64 i = 0; i < n; i++)
	{
		const float *vector = vectors + i * dims;
		double		error = errors[i] + 3 * (double) gv->rotation_error *
		sqrt(-gv_distance_ip(vector, vector, dims));

		/* rounded to float, and up */
		errors[i] = (float) (error * (1 + 2 * UNIT_ROUNDOFF));
	}
}

/*
 * Makes the record of a row from its transformed vector [dims].  A record of a
 * vector that is not boundable (IvfpqIsBoundable) bounds nothing, so that the
 * row is always reranked.
 */
void
IvfpqRecordMake(IvfpqRefine refine, IvfpqRecord *record, const GvModel *gv,
				const float *vector, bool boundable,
				const ItemPointerData *tid)
{
	int			dims = gv->dims;

	record->tid = *tid;
	if (refine == IVFPQ_REFINE_HALF)
	{
		record->min = record->step = 0;
		IvfpqCheckStatus(gv_half_encode(dims, vector, 1,
										(uint16 *) (void *) record->codes,
										&record->error));
	}
	else
		IvfpqCheckStatus(gv_refine_encode(dims, vector, 1, record->codes,
										  &record->min, &record->step,
										  &record->error));
	IvfpqRecordAllow(gv, vector, 1, &record->error);
	if (!boundable)
		record->error = get_float4_infinity();
}

/*
 * Returns whether the query [dims], as the engine has it, is near enough to the
 * vector asked for to bound inner products.  What scaling made subnormal is off
 * by up to 2^-150 an element, which a long row multiplies.  Of a rotated query
 * rho |q'| covers that, unless it is tiny.
 */
bool
IvfpqQueryIsBoundable(const GvModel *gv, const float *asked, const float *query)
{
	if (gv->metric != GV_IP)
		return true;
	if (gv->rotation_error > 0)
		return sqrt(-gv_distance_ip(query, query, gv->dims)) > 64.0 * FLT_MIN;
	for (int i = 0; i < gv->dims; i++)
		if (query[i] != asked[i] * (double) gv->scale)
			return false;
	return true;
}

/*
 * Returns the bound of the operator's result that follows from the engine's
 * bound on |q - x| or -<q, x>; side = -1 for a lower bound, 1 for an upper one.
 *
 * The engine's q and x are rounded: each by u times its length, and |x| <= |q|
 * + |q - x|.  For what a rotation loses see IvfpqRecordAllow, for what
 * underflows in a query IvfpqQueryIsBoundable.  The operator may sum in fp32,
 * with an error of dims roundings; of an inner product the engine's bound
 * covers that, of a cosine it is absolute.  Vectors too short or too long for
 * sums in fp32 do not come here with a bound: IvfpqIsBoundable has told them
 * apart.  But by L2 they do, for a distance that overflows is above every lower
 * bound, and one that loses digits is no more above an upper one than
 * LEAST_LENGTH.
 */
static double
operator_bound(const GvModel *gv, double bound, double query_length, int side)
{
	double		scale = gv->scale;
	double		slack = (gv->dims + 64) * UNIT_ROUNDOFF;
	double		length;
	double		result;

	if (gv->metric == GV_IP)
	{
		result = bound / (scale * scale);
		result += side * (fabs(result) * 4 * UNIT_ROUNDOFF + LEAST_PRODUCT);
	}
	else
	{
		length = bound * (1 + side * 4 * UNIT_ROUNDOFF) +
			side * ((2 * UNIT_ROUNDOFF + 2 * (double) gv->rotation_error) *
					query_length + FLT_MIN);
		length = Max(length, 0) / scale;
		if (side > 0 && length > MOST_LENGTH)
			return get_float8_infinity();
		if (gv->metric == GV_L2)
			result = length * (1 + side * slack) + side * LEAST_LENGTH;
		else
			result = length * length / 2 * (1 + side * slack) +
				side * 4 * slack;
	}
	return isnan(result) ? side * get_float8_infinity() : result;
}

/* Returns the bounds of a row about which nothing is known. */
static IvfpqRowBounds
no_bound(void)
{
	IvfpqRowBounds bound = {-get_float8_infinity(), get_float8_infinity()};

	return bound;
}

/* Returns bounds of the operator's result by the engine's lower bound. */
static IvfpqRowBounds
lower_bound(const GvModel *gv, float least, double query_length)
{
	IvfpqRowBounds bound = no_bound();

	bound.least = operator_bound(gv, least, query_length, -1);
	return bound;
}

/* Computes bounds [n <= CHUNK] by records of 8 bits a dimension. */
static void
bound_bytes(const GvModel *gv, const float *query, double query_length,
			const IvfpqRecord *const *records, int n, IvfpqRowBounds *bounds)
{
	GvRefine	refine[CHUNK] = {0};
	float		least[CHUNK];

	for (int i = 0; i < n; i++)
	{
		refine[i].min = records[i]->min;
		refine[i].step = records[i]->step;
		refine[i].error = records[i]->error;
		refine[i].codes = records[i]->codes;
	}
	IvfpqCheckStatus(gv_refine_bound(gv->metric, gv->dims, query, refine, n,
									 least));
	for (int i = 0; i < n; i++)
		bounds[i] = lower_bound(gv, least[i], query_length);
}

/* Computes bounds [n <= CHUNK] by records in half precision. */
static void
bound_half(const GvModel *gv, const float *query, double query_length,
		   const IvfpqRecord *const *records, int n, IvfpqRowBounds *bounds)
{
	GvHalfRecord half_records[CHUNK] = {0};
	GvRange		ranges[CHUNK];

	for (int i = 0; i < n; i++)
		half_records[i] = IvfpqHalfRecord(records[i]);
	IvfpqCheckStatus(gv_half_range(gv->metric, gv->dims, query, half_records,
								   n, ranges));
	for (int i = 0; i < n; i++)
	{
		bounds[i].least = operator_bound(gv, ranges[i].least, query_length,
										 -1);
		bounds[i].most = operator_bound(gv, ranges[i].most, query_length, 1);
	}
}

/* IvfpqRecordBounds of the records at ids [n <= CHUNK], on pages. */
static int
bound_chunk(const IvfpqSearch *search, const float *query,
			double query_length, uint64 *ids, int n, IvfpqRowBounds *bounds,
			char *memory, IvfpqPrefetch *prefetch)
{
	const IvfpqModel *model = search->model;
	IvfpqRefine refine = model->meta.refine;
	int			code_bytes = IvfpqRecordCodeBytes(refine, model->meta.dims);
	ItemPointerData addresses[CHUNK] = {0};
	const IvfpqRecord *records[CHUNK];
	int			count = 0;

	for (int i = 0; i < n; i++)
		IvfpqIdToTid(ids[i], &addresses[i]);
	IvfpqRecordRead(search->index, code_bytes, addresses, n, memory, prefetch);
	for (int i = 0; i < n; i++)
	{
		const IvfpqRecord *record = (const IvfpqRecord *)
		(memory + i * IvfpqRecordSlotBytes(code_bytes));

		if (!ItemPointerIsValid(&record->tid))
			continue;			/* free: the row is dead */
		records[count] = record;
		bounds[count] = no_bound();
		ids[count++] = IvfpqTidToId(&record->tid);
	}
	if (count > 0 && query != NULL)
		(refine == IVFPQ_REFINE_HALF ? bound_half : bound_bytes)
			(&model->gv, query, query_length, records, count, bounds);
	return count;
}

/*
 * Takes the addresses out of ids [n] that gpuvecd's answer told about, and puts
 * their rows and bounds into rows and bounds.  Returns how many; *left are left
 * in ids.  Candidates keep the answer's order, so one pass finds all.
 */
static int64
take_known(const IvfpqSearch *search, const float *query,
		   double query_length, uint64 *ids, int64 n, uint64 *rows,
		   IvfpqRowBounds *bounds, int64 *left)
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
		bounds[count++] = query == NULL ? no_bound() :
			lower_bound(gv, remote->known[k].bound, query_length);
	}
	return count;
}

/* IvfpqRecordBounds of the records at ids [n], page by page. */
static int64
read_bounds(const IvfpqSearch *search, const float *query,
			double query_length, uint64 *ids, int64 n, uint64 *rows,
			IvfpqRowBounds *bounds)
{
	const IvfpqMetaData *meta = &search->model->meta;
	int			code_bytes = IvfpqRecordCodeBytes(meta->refine, meta->dims);
	char	   *memory = palloc(CHUNK * IvfpqRecordSlotBytes(code_bytes));
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
 * Bounds the operator's results by the refine records at the addresses ids
 * [n], the search's candidates: from gpuvecd's answer, as far as it has them,
 * else from pages.  query [dims] is transformed, or NULL if nothing is known
 * of the operator's results for it.  Replaces ids by the TIDs of the rows, puts
 * their bounds into bounds, and returns how many these are.  Records of dead
 * rows are left out.
 */
int64
IvfpqRecordBounds(const IvfpqSearch *search, const float *query, uint64 *ids,
				  int64 n, IvfpqRowBounds *bounds)
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
