/*
 * gv_coarse.h
 *		The lists nearest to queries: exactly (coarse.cu) or from approximate
 *		scores (approximate.cu), and half copies of centroids (halves.cu).
 *
 * Read coarse.cu and score.cuh first; then approximate.cu, which says in three
 * steps what listscores.cu and choose.cu are for.
 */
#ifndef GV_COARSE_H
#define GV_COARSE_H

#include "gpu/common/gv_batch.h"

/* coarse.cu: d_coarse of a batch, exact */
extern GvStatus gv_gpu_coarse(const GvDeviceModel *model, const GvBatch *batch,
							  cudaStream_t stream);

/*
 * approximate.cu: what coarse.cu and best.cu find, for many queries or lists;
 * in three steps, of which gv_gpu_table does the first for batches that come
 * from the host, listscores.cu has the second and choose.cu the third.
 */
extern bool gv_gpu_approximate_fits(const GvDeviceModel *model,
									const GvBatch *batch);
extern GvStatus gv_gpu_approximate(const GvDeviceModel *model,
								   const GvBatch *batch,
								   const GvSearcher *searcher);
extern GvStatus gv_gpu_list_scores(const GvDeviceModel *model,
								   const GvBatch *batch,
								   const GvSearcher *searcher);
extern GvStatus gv_gpu_choose(const GvDeviceModel *model, const GvBatch *batch,
							  cudaStream_t stream);

/*
 * Scores of lists are read where they are near, and of many lists few are:
 * where there are more than GV_SCORES_KEPT, which L2 holds, it is cheaper to
 * make these again than to write them all.  gv_gpu_coarse_rows returns the
 * queries that d_coarse needs memory for, of n that want `probes` lists each;
 * where these are fewer than n, only the least scores of runs go to memory.
 */
#define GV_SCORES_KEPT		((int64_t) 4 << 20)
extern int32_t gv_gpu_coarse_rows(const GvDeviceModel *model, int32_t n,
								  int32_t probes);

static inline bool
gv_gpu_least_alone(const GvDeviceModel *model, const GvBatch *batch)
{
	return gv_gpu_coarse_rows(model, batch->n, batch->probes) < batch->n;
}

#ifdef GV_TEST_BUILD

/*
 * From how many terms of exact scores on a batch goes this way, and another
 * number of scores than GV_SCORES_KEPT; negative: as is best.
 */
extern "C" void gv_gpu_approximate_from(int64_t terms);
extern "C" void gv_gpu_scores_kept(int64_t scores);

/* How many of a searcher's queries went each way so far. */
extern "C" GvStatus gv_gpu_approximate_ways(GvSearcher *searcher,
									 uint32_t ways[GV_COARSE_WAYS]);

#endif

/* halves.cu: half copies of a mirror's centroids */
extern int64_t gv_gpu_half_bytes(const GvMirrorSpec *spec);
extern GvStatus gv_gpu_half_create(GvMirror *mirror);
extern void gv_gpu_half_drop(GvMirror *mirror);
extern GvStatus gv_gpu_half_update(GvMirror *mirror, int64_t first, int64_t n);

#endif							/* GV_COARSE_H */
