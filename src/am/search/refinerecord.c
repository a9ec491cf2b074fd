/*
 * refinerecord.c
 *		Refine records: making them from rows, and bounding distances by them.
 *
 * The engine bounds distances in its own space.  This file turns the engine's
 * bounds into bounds of the operator's own result, which may have been summed
 * in fp32 (pgvector) or in double.  The operator's result for a row is no less
 * than the row's lower bound.  So a row is fetched only when no other row has
 * a smaller lower bound.  Records in half precision also give an upper bound.
 * So a row that no other row can precede need not be fetched at all.
 *
 * The same holds for distances that gpuvecd computes of the rows in a mirror,
 * which are exact.  There only the rounding of the operator is in the way.
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "utils/float.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/search/search.h"

/* The relative error of one operation that rounds to fp32. */
#define UNIT_ROUNDOFF	(1.0 / 16777216.0)

/*
 * Terms that underflow in fp32 change a distance, the root of a sum of
 * squares, by at most LEAST_LENGTH, and an inner product by at most
 * LEAST_PRODUCT.
 */
#define LEAST_LENGTH	1e-20
#define LEAST_PRODUCT	1e-37

/* A longer distance may overflow in fp32 when it is squared. */
#define MOST_LENGTH		1e18

/* Maximum number of records that are read and bounded together. */
#define CHUNK			64

/* The bounds of a row about which nothing is known. */
static const IvfpqRowBounds no_bound = {-INFINITY, INFINITY};

/* Raises an error if `dims` is too large for the index's refine records. */
void
IvfpqRecordCheckDims(Relation index, int dims)
{
	IvfpqRefine refine = IvfpqGetOptions(index)->refine;

	if (refine != IVFPQ_REFINE_NONE && dims > IvfpqRecordMaxDims(refine))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("option \"refine\" supports at most %d dimensions, not %d",
						IvfpqRecordMaxDims(refine), dims),
				 errhint("Create the index without option \"refine\".")));
}

/* Allocates a refine record of the given kind. */
IvfpqRecord *
IvfpqRecordAlloc(IvfpqRefine refine, int dims)
{
	return palloc0(IvfpqRecordSlotBytes(IvfpqRecordCodeBytes(refine, dims)));
}

/*
 * Increases errors [n] of the records of vectors [n][dims], because the
 * rotation that transformed the vectors is not exact.  rho, gv_rotation_error,
 * is below 1e-4.  Let q', x' be the vectors as they were rotated, and Q q, Q x
 * the vectors that an exact rotation would give.  Then
 *		||q' - x'| - |q - x||	<= rho (|q| + |x|)
 *		|<q', x'> - <q, x>|		<= (2 rho + rho^2) |q| |x|
 * and |x| <= |x'| / (1 - rho), likewise for |q|.  So 3 rho |x'| is added to
 * the record's error.  This is enough for the row's part of the first
 * difference.  It is also enough for all of the second difference, because
 * there the engine's bound multiplies a record's error by |q'|.
 * operator_bound allows for the query's part of the first difference.
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

		/* round up, because the error is stored as a float */
		errors[i] = (float) (error * (1 + 2 * UNIT_ROUNDOFF));
	}
}

/*
 * Makes the record of a row from its transformed vector [dims].  The record of
 * a vector that is not boundable (IvfpqIsBoundable) gets an infinite error and
 * bounds nothing, so that the row is always reranked.
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
 * Returns whether inner products with a query can be bounded.  `asked` [dims]
 * is the user's query, and `query` [dims] is that query transformed for the
 * engine.  Elements that scaling made subnormal are off by up to 2^-150 each,
 * and the product with a row multiplies this error by the row's length.  So
 * the inner products cannot be bounded if scaling changed an element.  If the
 * query is rotated, the allowance of rho |q'| covers this error, unless the
 * query is tiny.
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
 * bound on |q - x| or -<q, x>.  side is -1 for a lower, 1 for an upper bound.
 *
 * Errors of the engine: q and x are rounded, each by up to UNIT_ROUNDOFF times
 * its length, where |x| <= |q| + |q - x|.  IvfpqRecordAllow covers the error
 * of a rotation, and IvfpqQueryIsBoundable covers underflow in a query.
 *
 * Errors of the operator: it may sum in fp32, with `dims` roundings.  For an
 * inner product the engine's bound covers these roundings.  For a cosine their
 * error is absolute.
 *
 * Sums in fp32 underflow or overflow if vectors are too short or too long.
 * For the inner product and the cosine, IvfpqIsBoundable excludes such
 * vectors.  For L2, an overflow gives infinity, which is above every lower
 * bound, and underflow changes the distance by at most LEAST_LENGTH.
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

/*
 * Computes bounds[n], n <= CHUNK, from records with 8 bits a dimension or in
 * half precision.  The caller has set bounds to no_bound.
 */
static void
bound_records(const GvModel *gv, IvfpqRefine refine, const float *query,
			  double query_length, const IvfpqRecord *const *records, int n,
			  IvfpqRowBounds *bounds)
{
	if (refine == IVFPQ_REFINE_HALF)
	{
		GvHalfRecord half_records[CHUNK] = {0};
		GvRange		ranges[CHUNK];

		for (int i = 0; i < n; i++)
			half_records[i] = IvfpqHalfRecord(records[i]);
		IvfpqCheckStatus(gv_half_range(gv->metric, gv->dims, query,
									   half_records, n, ranges));
		for (int i = 0; i < n; i++)
		{
			bounds[i].least = operator_bound(gv, ranges[i].least, query_length,
											 -1);
			bounds[i].most = operator_bound(gv, ranges[i].most, query_length,
											1);
		}
	}
	else
	{
		GvRefine	byte_records[CHUNK] = {0};
		float		least[CHUNK];

		for (int i = 0; i < n; i++)
		{
			byte_records[i].min = records[i]->min;
			byte_records[i].step = records[i]->step;
			byte_records[i].error = records[i]->error;
			byte_records[i].codes = records[i]->codes;
		}
		IvfpqCheckStatus(gv_refine_bound(gv->metric, gv->dims, query,
										 byte_records, n, least));
		for (int i = 0; i < n; i++)
			bounds[i].least = operator_bound(gv, least[i], query_length, -1);
	}
}

/* Like IvfpqRecordBounds, for records on pages only.  Puts TIDs into rows. */
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
		int			nread = (int) Min(CHUNK, n - done);
		int			found = 0;
		ItemPointerData addresses[CHUNK] = {0};
		const IvfpqRecord *records[CHUNK];

		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < nread; i++)
			IvfpqIdToTid(ids[done + i], &addresses[i]);
		IvfpqRecordRead(search->index, code_bytes, addresses, nread, memory,
						&prefetch);
		for (int i = 0; i < nread; i++)
		{
			const IvfpqRecord *record = (const IvfpqRecord *)
			(memory + i * IvfpqRecordSlotBytes(code_bytes));

			if (!ItemPointerIsValid(&record->tid))
				continue;		/* the slot is free: the row is dead */
			records[found] = record;
			bounds[count + found] = no_bound;
			rows[count + found++] = IvfpqTidToId(&record->tid);
		}
		if (found > 0 && query != NULL)
			bound_records(&search->model->gv, meta->refine, query,
						  query_length, records, found, bounds + count);
		count += found;
	}
	IvfpqPrefetchEnd(&prefetch);
	pfree(memory);
	return count;
}

/*
 * Computes bounds of the operator's results from refine records.  ids [n] are
 * the addresses of the records of the search's candidates.  Records that
 * gpuvecd's answer describes are taken from the answer, and other records are
 * read from their pages.  query [dims] is transformed, or NULL if nothing is
 * known about the operator's results for the query.
 *
 * Replaces ids by the TIDs of the rows, puts their bounds into bounds, and
 * returns the number of rows.  Records of dead rows are left out.
 */
int64
IvfpqRecordBounds(const IvfpqSearch *search, const float *query, uint64 *ids,
				  int64 n, IvfpqRowBounds *bounds)
{
	const IvfpqRemote *remote = &search->remote;
	uint64	   *rows = palloc_extended(Max(n, 1) * sizeof(uint64),
									   MCXT_ALLOC_HUGE);
	double		query_length = 0;
	int64		count = 0;
	int64		left = 0;
	int			k = 0;

	if (query != NULL)
		query_length = sqrt(-gv_distance_ip(query, query,
											search->model->meta.dims));

	/*
	 * Take the records that the answer describes, and leave the addresses of
	 * other records in ids [left].  Candidates are in the order of the
	 * answer, so one pass finds all records.
	 */
	for (int64 i = 0; i < n; i++)
	{
		while (k < remote->nknown && remote->known[k].address != ids[i])
			k++;
		if (k == remote->nknown || !remote->known[k].is_known)
		{
			ids[left++] = ids[i];
			continue;
		}
		rows[count] = remote->known[k].tid;
		bounds[count] = no_bound;
		if (query != NULL)
			bounds[count].least = operator_bound(&search->model->gv,
												 remote->known[k].bound,
												 query_length, -1);
		count++;
	}
	if (left > 0)
		count += read_bounds(search, query, query_length, ids, left,
							 rows + count, bounds + count);
	memcpy(ids, rows, count * sizeof(uint64));
	pfree(rows);
	return count;
}

/*
 * Returns bounds of the operator's result from the exact distance of a row.
 * magnitude is as in GvRowDistance.  is_exact says that the operator returns
 * gv_set_distance itself.
 *
 * Other operators may sum in fp32.  Let u be UNIT_ROUNDOFF and n the
 * dimensions.  A sum of n terms, each rounded at most three times, has an error
 * of at most (n + 2) u (1 + 2^-10) times the sum of the terms' absolute values,
 * in any order, with fused operations or without, because (n + 2) u < 2^-10.
 *		L2		the terms are squares, so the error is relative, and the root
 *				halves it; a root that is rounded to fp32 adds u
 *		IP		the sum of absolute values is the magnitude
 *		cosine	the product has this error relative to |q| |x|, which is a
 *				cosine's denominator, and the denominator, a root of two sums
 *				of squares, has it, too; the cosine is at most 1
 * slack is (n + 64) u, which covers the error of the distance itself, in
 * double, and final roundings.  Underflow and overflow are as in
 * operator_bound.
 */
IvfpqRowBounds
IvfpqDistanceBounds(const GvModel *gv, double distance, float magnitude,
					bool is_exact)
{
	double		slack = (gv->dims + 64) * UNIT_ROUNDOFF;
	double		width;

	if (isnan(distance))
		return no_bound;
	if (is_exact)
		width = 0;
	else if (gv->metric == GV_L2)
		width = distance * slack / 2 + LEAST_LENGTH;
	else if (gv->metric == GV_IP)
		width = magnitude * slack + LEAST_PRODUCT;
	else
		width = 2.5 * slack;
	if (!is_exact && gv->metric == GV_L2 && distance > MOST_LENGTH)
		return (IvfpqRowBounds)
	{
		distance - width, get_float8_infinity()
	};
	return (IvfpqRowBounds)
	{
		distance - width, distance + width
	};
}

/*
 * Computes bounds of the operator's results from the distances that gpuvecd's
 * answer tells.  ids [n] are the TIDs of the search's candidates, the first n
 * of them.  Moves the TIDs of rows whose distance is known to the front, in
 * the order of their bounds, and those of other rows behind them.  Returns the
 * number of rows that are known.
 */
int64
IvfpqKnownBounds(const IvfpqSearch *search, bool is_exact, uint64 *ids,
				 int64 n, IvfpqRowBounds *bounds)
{
	const float *scores = search->candidates.scores;
	uint64	   *others = palloc_extended(Max(n, 1) * sizeof(uint64),
										 MCXT_ALLOC_HUGE);
	int64		count = 0;
	int64		left = 0;
	int			next = 0;

	for (int64 i = 0; i < n; i++)
	{
		const IvfpqKnownDistance *known =
		IvfpqNextDistance(&search->remote, &next, scores[i], ids[i]);

		if (known == NULL)
		{
			others[left++] = ids[i];
			continue;
		}
		bounds[count] = IvfpqDistanceBounds(&search->model->gv,
											known->distance, known->magnitude,
											is_exact);
		ids[count++] = ids[i];
	}
	memcpy(ids + count, others, left * sizeof(uint64));
	pfree(others);
	return count;
}
