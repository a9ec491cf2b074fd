/*
 * gv_group.h
 *		Numbers on the device brought together by key: rows by cluster, vectors
 *		by list; and what sorts take.
 */
#ifndef GV_GROUP_H
#define GV_GROUP_H

#include "gpu/common/gv_cuda.h"

struct GvGroup
{
	int64_t		n;				/* below 2^31 */
	uint32_t	nkeys;
	const uint32_t *d_keys;		/* [n] below nkeys */
	const uint32_t *d_numbers;	/* [n] */
	uint32_t   *d_sorted;		/* [n] the keys, ascending */
	uint32_t   *d_order;		/* [n] their numbers, of a key as they came */
	uint32_t   *d_starts;		/* [nkeys + 1] where each key begins in both */
	void	   *d_memory;		/* gv_gpu_group_bytes */
	size_t		bytes;
};

/*
 * Bytes, at most, that CUB's radix sort of n items takes besides what it reads
 * and writes: the items once more, and 1 KB for each tile of 2,048 or more.
 * CUB says it exactly, but to a thread that has a device.
 */
static inline int64_t
gv_sort_most_bytes(int64_t n, int64_t item_bytes)
{
	return n * item_bytes + n / 2 + (1 << 20);
}

/*
 * group.cu: bytes for grouping up to n numbers; grouping them, by CUB's radix
 * sort, which is stable.
 */
extern GvStatus gv_gpu_group_bytes(int64_t n, size_t *bytes);
extern GvStatus gv_gpu_group(const GvGroup *group, cudaStream_t stream);

#endif							/* GV_GROUP_H */
