/*
 * gv_cpu_set.h
 *		The kinds of gv_cpu_sets, and the memory that they take.
 */
#ifndef GV_CPU_SET_H
#define GV_CPU_SET_H

#include <stdlib.h>

#include "engine/gv_set.h"

extern const GvSetOps gv_cpu_exact_set;
extern const GvSetOps gv_cpu_kmeans_set;
extern const GvSetOps gv_cpu_select_set;
extern const GvSetOps gv_cpu_quantiles_set;

/* Memory for n elements, aligned as scratch has to be; NULL: there is none. */
static inline void *
gv_cpu_take(int64_t n, size_t bytes)
{
	void	   *memory;

	if (posix_memalign(&memory, GV_ALIGN, (size_t) n * bytes + 1) != 0)
		return NULL;
	return memory;
}

#endif							/* GV_CPU_SET_H */
