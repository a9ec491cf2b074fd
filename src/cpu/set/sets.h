/*
 * sets.h
 *		Those kinds of gv_cpu_sets that are in src/cpu/set.
 */
#ifndef GV_SETS_H
#define GV_SETS_H

#include "engine/gv_set.h"

extern const GvSetOps gv_cpu_kmeans_set;
extern const GvSetOps gv_cpu_select_set;
extern const GvSetOps gv_cpu_quantiles_set;

#endif							/* GV_SETS_H */
