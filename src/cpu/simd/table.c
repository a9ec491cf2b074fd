/*
 * table.c
 *		A query's look-up table, and its filter: a table in bytes, which proves
 *		for most postings that they are not among the best.
 *
 * The kernels make both (gv_table.h).  A posting's S is (base + T) + sum,
 * where sum adds up the posting's entries a of the table.  Most postings of a
 * long list are far above the worst score that is kept.  For these a lower
 * bound of the sum is enough, and sums of bytes are found by shuffles, 32 or
 * 64 at once.
 *
 * The bound.  Let lo_j be the least entry of sub-quantizer j, and let all
 * sub-quantizers have the same step.  Byte q stands for lo_j + step * q and is
 * rounded down, so that
 *	a >= lo_j + step * q - 8 u A_j,  u = 2^-24,
 * where A_j is the largest magnitude of an entry of j; the last term is for
 * the fp32 arithmetic that finds q.  m entries added up in fp32 are off by
 * less than (m + 32) u M, where M is the sum of all A_j, even for the largest
 * m, GV_MAX_DIMS.  So with lift = (m + 64) u M - sum of lo_j, the sum is at
 * least step * (sum of q) - lift.
 *
 * A posting may be left out if S is above the worst useful score w.  Rounding
 * is monotonic, so this is true if (base + T) + sum, unrounded, is at least
 * w', the float after w:
 *	step * (sum of q) >= reach - (base + T),  reach >= w' + lift
 * The difference is computed in fp32 (relative error u) and multiplied by an
 * inverse of the step that is slightly too large.  The sum of bytes, which is
 * exact as a float because it is below 2^24, must be above the product.
 */
#include <math.h>

#include "cpu/simd/gv_kernels.h"
#include "engine/gv_call.h"

/* Returns the bytes of a table for gv_table. */
size_t
gv_table_bytes(int32_t m)
{
	return (size_t) m * GV_CODEWORDS * sizeof(float) + sizeof(GvFilter) +
		gv_filter_place((m + 3) / 4 * 4) + GV_ALIGN;
}

GvStatus
gv_table(const GvModel *model, const float *query /* [dims] */ ,
		 float *table /* [m][GV_CODEWORDS], and the filter */ )
{
	GV_CALL(gv_engine_calls, gv_valid_model(model) &&
			model->codebooks != NULL && query != NULL && table != NULL);
	gv_kernels->table(model, query, table);
	return GV_OK;
}

/*
 * Returns the filter, which is behind the entries and is aligned even if they
 * are not.
 */
const GvFilter *
gv_filter_of(const float *table, int32_t m)
{
	uintptr_t	end = (uintptr_t) (table + (size_t) m * GV_CODEWORDS);

	return (const GvFilter *) ((end + GV_ALIGN - 1) / GV_ALIGN * GV_ALIGN);
}

/*
 * Sets *cut, except cut->base, so that the filter leaves out postings above
 * `score`.  Returns false if there is no such filter.
 */
bool
gv_filter_cut(const GvFilter *filter, float score, GvCut *cut)
{
	double		worst = score;
	double		lift = filter->lift;

	if (!filter->usable || !(fabs(worst) < GV_FILTER_HUGE))
		return false;
	cut->reach = (float) (worst + lift + FLT_MIN +
						  4.0 * GV_FILTER_UNIT * (fabs(worst) + fabs(lift)));
	cut->inverse = (float) ((1.0 + 16.0 * GV_FILTER_UNIT) / filter->step);
	return true;
}
