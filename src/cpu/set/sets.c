/*
 * sets.c
 *		The table of set operations on processors, which are the oracle for
 *		those of every other engine.
 */
#include "cpu/exact/exact.h"
#include "cpu/set/gv_cpu_set.h"

const GvSetBackend gv_cpu_sets = {
	.name = "cpu",
	.kinds = {
		[GV_SET_EXACT] = &gv_cpu_exact_set,
		[GV_SET_KMEANS] = &gv_cpu_kmeans_set,
		[GV_SET_SELECT] = &gv_cpu_select_set,
		[GV_SET_QUANTILES] = &gv_cpu_quantiles_set,
	},
};
