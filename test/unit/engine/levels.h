/*
 * levels.h
 *		What the checks of a level's kernels share.
 */
#ifndef LEVELS_H
#define LEVELS_H

#include "cpu/simd/kernels.h"
#include "unit.h"

static const GvKernels *const portable = &gv_portable_kernels;

/* n numbers that begin `shift` bytes behind aligned memory. */
static inline float *
shifted(const float *x, size_t n, int shift, char **memory)
{
	*memory = unit_alloc(n * sizeof(float) + (size_t) shift);
	return memcpy(*memory + shift, x, n * sizeof(float));
}

/* check_level_scans.c */
extern void check_scanning(const GvKernels *kernels, int32_t dims);
extern void check_lists(const GvKernels *kernels);
extern void check_odd_tables(void);

#endif							/* LEVELS_H */
