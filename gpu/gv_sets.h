/*
 * gv_sets.h
 *		What the CUDA engine does with sets, one table for each kind of work.
 */
#ifndef GV_SETS_H
#define GV_SETS_H

extern "C"
{
#include "engine/gv_set.h"

extern const GvSetOps gv_gpu_exact_set;
extern const GvSetOps gv_gpu_kmeans_set;
extern const GvSetOps gv_gpu_select_set;
extern const GvSetOps gv_gpu_quantiles_set;
}

#endif							/* GV_SETS_H */
