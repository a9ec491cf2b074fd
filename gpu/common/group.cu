/*
 * group.cu
 *		See gv_group.h.
 */
#include <cub/device/device_radix_sort.cuh>

#include "gpu/common/gv_group.h"

#define THREADS			256

static int
bits_of(uint32_t n)
{
	int			bits = 1;

	while (bits < 32 && n >> bits != 0)
		bits++;
	return bits;
}

/* See gv_group.h. */
GvStatus
gv_gpu_group_bytes(int64_t n, size_t *bytes)
{
	*bytes = 0;
	return gv_cuda_status(cub::DeviceRadixSort::SortPairs(NULL, *bytes,
														  (const uint32_t *) NULL,
														  (uint32_t *) NULL,
														  (const uint32_t *) NULL,
														  (uint32_t *) NULL, n));
}

/* Where each key begins among the sorted ones: the first not below it. */
static __global__ void __launch_bounds__(THREADS)
starts_kernel(GvGroup group)
{
	int64_t		key = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	uint32_t	low = 0;
	uint32_t	high = (uint32_t) group.n;

	if (key > group.nkeys)
		return;
	while (low < high)
	{
		uint32_t	middle = low + (high - low) / 2;

		if ((int64_t) group.d_sorted[middle] < key)
			low = middle + 1;
		else
			high = middle;
	}
	group.d_starts[key] = low;
}

/* See gv_group.h. */
GvStatus
gv_gpu_group(const GvGroup *group, cudaStream_t stream)
{
	size_t		bytes = group->bytes;

	GV_CUDA_TRY(cub::DeviceRadixSort::SortPairs(group->d_memory, bytes,
												group->d_keys,
												group->d_sorted,
												group->d_numbers,
												group->d_order, group->n, 0,
												bits_of(group->nkeys),
												stream));
	GV_LAUNCH(starts_kernel, (int) (group->nkeys / THREADS + 1), THREADS, 0,
			  stream, *group);
	return gv_cuda_status(cudaGetLastError());
}
