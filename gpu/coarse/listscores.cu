/*
 * listscores.cu
 *		Approximate scores of all lists for many queries: a matrix product of
 *		half-precision copies (gpu/product), with sums in fp32.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/coarse/listscores.cuh"
#include "gpu/product/product.cuh"

/* See gv_coarse.h. */
bool
gv_gpu_hopper_fits(const GvBatch *batch, const GvSearcher *searcher)
{
	return searcher->hopper && gv_product_forced() != 0 &&
		batch->n > GV_HOPPER_ROWS;
}

/* d_coarse, approximate, and d_least of a batch. */
GvStatus
gv_gpu_list_scores(const GvCardModel *card, const GvBatch *batch,
				   const GvSearcher *searcher)
{
	GvProduct	product = {batch->approx.d_halves, batch->n, card->d_halves,
	card->nlists, card->half_dims};
	GvProductBy by = {searcher->blas, searcher->hopper, searcher->nsms,
	batch->overlap, searcher->stream};

	return gv_gpu_product<false>(&by, &product, GvListScores {*card, *batch});
}
