/*
 * gv_sample.h
 *		Which blocks of an index's lists are its sample: one of
 *		GV_SAMPLED_ONE_OF, the same for all that ask, backends and engines.
 */
#ifndef GV_SAMPLE_H
#define GV_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#define GV_SAMPLED_ONE_OF	32	/* a power of two */

/* Kernels ask, too. */
#ifdef __CUDACC__
#define GV_SAMPLE_INLINE	static __host__ __device__ inline
#else
#define GV_SAMPLE_INLINE	static inline
#endif

/*
 * Is a block of a list one of the sample?  Blocks of a list are numbered from
 * 0, the oldest.  A hash (the end of MurmurHash3) of both numbers, so that no
 * pattern of lists is taken.
 */
GV_SAMPLE_INLINE bool
gv_sampled(uint32_t list, uint32_t block)
{
	uint32_t	hash = list ^ block * UINT32_C(0x9E3779B1);

	hash ^= hash >> 16;
	hash *= UINT32_C(0x85EBCA6B);
	hash ^= hash >> 13;
	hash *= UINT32_C(0xC2B2AE35);
	hash ^= hash >> 16;
	return hash % GV_SAMPLED_ONE_OF == 0;
}

#endif							/* GV_SAMPLE_H */
