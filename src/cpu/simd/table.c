/*
 * table.c
 *		A query's look-up table, and its filter: the table in bytes, which
 *		proves of most postings that they are not among the best.
 *
 * The kernels make both (gv_table.h).  A posting's S is (base + T) + sum, the
 * sum over its entries a of the table, and most postings of a long list are
 * far from the worst that is kept.  For them a lower bound of the sum will do,
 * and sums of bytes are found by shuffles, 32 or 64 at once.
 *
 * The bound.  With lo_j the least entry of sub-quantizer j and one step for
 * all of them, byte q stands for lo_j + step * q and is rounded down, so that
 *		a >= lo_j + step * q - 8 u A_j,  u = 2^-24,
 * A_j the largest magnitude of an entry of j, for the fp32 arithmetic that
 * finds q.  m entries added up in
 * fp32 are off by less than (m + 32) u M, M the sum of all A_j, also for the
 * largest m, GV_MAX_DIMS.  So with lift = (m + 64) u M - sum of
 * lo_j the sum is at least step * (sum of q) - lift.
 *
 * A posting may be left out when S is above the worst score w of use, and
 * since rounding is monotonic that is so when (base + T) + sum, unrounded, is
 * at least the float after w:
 *		step * (sum of q) >= reach - (base + T),  reach >= w' + lift
 * The difference is taken in fp32 (relative error u), multiplied by an
 * inverse of the step that is a little large, and the sum of bytes, exact as
 * a float because it is below 2^24, has to be above the product.
 */
#include <math.h>

#include "cpu/simd/gv_kernels.h"
#include "engine/gv_call.h"

/* Bytes of a table for gv_table; see gv_engine.h. */
size_t
gv_table_bytes(int32_t m)
{
	return (size_t) m * GV_CODEWORDS * sizeof(float) + sizeof(GvFilter) +
		gv_filter_place((m + 3) / 4 * 4) + GV_ALIGN;
}

/* See "The score S" in gv_engine.h. */
GvStatus
gv_table(const GvModel *model, const float *query /* [dims] */ ,
		 float *table /* [m][GV_CODEWORDS], and the filter */ )
{
	GV_CALL(gv_engine_calls, gv_valid_model(model) &&
			model->codebooks != NULL && query != NULL && table != NULL);
	gv_kernels->table(model, query, table);
	return GV_OK;
}

/* The filter lies behind the entries, aligned wherever these are. */
const GvFilter *
gv_filter_of(const float *table, int32_t m)
{
	uintptr_t	end = (uintptr_t) (table + (size_t) m * GV_CODEWORDS);

	return (const GvFilter *) ((end + GV_ALIGN - 1) / GV_ALIGN * GV_ALIGN);
}

/*
 * Makes the filter that leaves out postings above `score`, but for cut->base;
 * false: there is none.
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
