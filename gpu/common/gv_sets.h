/*
 * gv_sets.h
 *		The kinds of sets on a device, of which gv_cuda_sets is made.
 */
#ifndef GV_SETS_H
#define GV_SETS_H

#ifdef __cplusplus
extern "C"
{
#endif

#include "engine/gv_set.h"

extern const GvSetOps gv_gpu_exact_set;
extern const GvSetOps gv_gpu_kmeans_set;
extern const GvSetOps gv_gpu_select_set;
extern const GvSetOps gv_gpu_quantiles_set;

#ifdef __cplusplus
}
#endif

#endif							/* GV_SETS_H */
