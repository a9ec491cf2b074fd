/*
 * near.cuh
 *		What near.cu, product.cu and choose.cu share: the nearest lists of many
 *		queries, by a filter that loses none.
 */
#ifndef GV_NEAR_CUH
#define GV_NEAR_CUH

#include "gv_cuda.h"

#define GV_RUN			32		/* lists side by side */

/* Arrays of a batch beside GvBatch's, passed to kernels by value. */
struct GvNear
{
	int32_t		nruns;			/* nlists / GV_RUN, rounded up */
	uint16_t   *d_queries;		/* [n][half_dims], rounded to half precision */
	float	   *d_margins;		/* [n] how far the approximate score of one of
								 * the nearest lists may lie behind that of
								 * another list; infinite: nobody knows */
	float	   *d_least;		/* [n][nruns] the least score of each run */
	unsigned   *d_outcomes;		/* [GV_NEAR_WAYS] queries that went each way */
};

/* How a query's nearest lists were chosen. */
enum GvNearWay
{
	GV_NEAR_RUNS,				/* from the runs whose least score is near */
	GV_NEAR_ALL,				/* from all approximate scores */
	GV_NEAR_EXACT,				/* from all exact scores */
	GV_NEAR_WAYS
};

/* product.cu: d_coarse and d_least */
extern GvStatus gv_gpu_product(const GvCardModel *card, const GvBatch *batch,
							   const GvNear *near, cudaStream_t stream);

/* choose.cu: d_probed, d_starts and nprobed */
extern GvStatus gv_gpu_choose(const GvCardModel *card, const GvBatch *batch,
							  const GvNear *near, cudaStream_t stream);

/* For checks: how many of a searcher's queries went each way so far. */
extern "C" GvStatus gv_gpu_near_ways(GvSearcher *searcher,
									 uint32_t ways[GV_NEAR_WAYS]);

#endif							/* GV_NEAR_CUH */
