/*
 * listscores.cu
 *		Approximate scores of all lists for many queries: a matrix product of
 *		half-precision copies, with sums in fp32.  Large batches on cards of
 *		compute capability 9.0 have hopperproduct.cu instead.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/coarse/listscores.cuh"
#include "gpu/product/product.cuh"

/* d_coarse, approximate, and d_least of a batch. */
GvStatus
gv_gpu_list_scores(const GvCardModel *card, const GvBatch *batch,
				   const GvSearcher *searcher)
{
	GvProduct	product = {batch->approx.d_halves, batch->n, card->d_halves,
	card->nlists, card->half_dims};
	GvListScores scores = {*card, *batch};

	if (searcher->blas == NULL && gv_gpu_hopper_fits(batch, searcher) &&
		gv_gpu_hopper_multiplies())
		return gv_gpu_hopper_product(card, batch, searcher);
	return gv_gpu_product<false>(searcher->blas, &product, scores,
								 batch->overlap, searcher->stream);
}
