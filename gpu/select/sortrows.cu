/*
 * sortrows.cu
 *		More items than a block sorts, by CUB.
 *
 * One array is sorted by all of the device, and rows one after the other, each
 * in some eighty microseconds at least; many short ones side by side, a block
 * a row.
 */
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_segmented_radix_sort.cuh>

#include "gpu/select/rows.cuh"

#define THREADS			256
#define SIDE_BY_SIDE	4096	/* items of a row for each row, at most */

/* See rows.cuh. */
GvStatus
gv_sort_items(uint64_t *d_items, int64_t n, GvBuffer *d_sort,
			  const uint64_t **d_sorted, cudaStream_t stream)
{
	size_t		bytes = 0;

	GV_CUDA_TRY(cub::DeviceRadixSort::SortKeys(NULL, bytes,
											   (const uint64_t *) NULL,
											   (uint64_t *) NULL, n));
	GV_TRY(gv_buffer_need(d_sort, bytes));
	GV_CUDA_TRY(cub::DeviceRadixSort::SortKeys(d_sort->memory, bytes,
											   (const uint64_t *) d_items,
											   d_items + n, n, 0, 64,
											   stream));
	*d_sorted = d_items + n;
	return GV_OK;
}

/* Where items of rows begin and end: ends [2][rows]. */
static __global__ void __launch_bounds__(THREADS)
ends_kernel(uint32_t *ends, uint32_t rows, uint32_t capacity)
{
	uint32_t	i = blockIdx.x * THREADS + threadIdx.x;

	if (i < rows)
	{
		ends[i] = 2 * i * capacity;
		ends[rows + i] = 2 * i * capacity + capacity;
	}
}

static GvStatus
sort_side_by_side(GvSelector *selector, uint64_t *d_items, int64_t rows,
				  uint32_t capacity, cudaStream_t stream)
{
	size_t		bytes = 0;
	uint32_t   *d_ends;

	GV_TRY(gv_buffer_need(&selector->d_list, 2 * sizeof(uint32_t) * rows));
	d_ends = (uint32_t *) selector->d_list.memory;
	GV_LAUNCH(ends_kernel, (unsigned) ((rows + THREADS - 1) / THREADS),
			  THREADS, 0, stream, d_ends, (uint32_t) rows, capacity);
	GV_CUDA_TRY(cudaGetLastError());
	GV_CUDA_TRY(cub::DeviceSegmentedRadixSort::SortKeys(
					NULL, bytes, (const uint64_t *) NULL, (uint64_t *) NULL,
					2 * rows * capacity, (int) rows, d_ends, d_ends + rows));
	GV_TRY(gv_buffer_need(&selector->d_sort, bytes));
	GV_CUDA_TRY(cub::DeviceSegmentedRadixSort::SortKeys(
					selector->d_sort.memory, bytes,
					(const uint64_t *) d_items, d_items + capacity,
					2 * rows * capacity, (int) rows, d_ends, d_ends + rows, 0,
						64,
					stream));
	return GV_OK;
}

/* Sorted items, the k first of each row to where they belong. */
static __global__ void __launch_bounds__(THREADS)
write_kernel(GvRowsOut out, int64_t first, const uint64_t *items,
			 uint32_t capacity)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < out.k)
		gv_write_item(out, first + blockIdx.y, i,
					 items[2 * (int64_t) blockIdx.y * capacity + i]);
}

/* See rows.cuh. */
GvStatus
gv_write_rows(GvSelector *selector, const GvRowsCall *call, uint64_t *d_items,
			 uint32_t capacity, cudaStream_t stream)
{
	int64_t		most = 65535;	/* blocks along y */

	if (call->rows > 1 && capacity / SIDE_BY_SIDE < call->rows)
		GV_TRY(sort_side_by_side(selector, d_items, call->rows, capacity,
								 stream));
	else
		for (int64_t i = 0; i < call->rows; i++)
		{
			const uint64_t *d_sorted;

			GV_TRY(gv_sort_items(d_items + 2 * i * capacity, capacity,
								 &selector->d_sort, &d_sorted, stream));
		}
	for (int64_t first = 0; first < call->rows; first += most)
	{
		int64_t		rows = call->rows - first < most ? call->rows - first :
			most;

		GV_LAUNCH(write_kernel,
				  dim3((unsigned) ((call->out.k + THREADS - 1) / THREADS),
					   (unsigned) rows), THREADS, 0, stream, call->out,
				  call->first + first, d_items + (2 * first + 1) * capacity,
					capacity);
		GV_CUDA_TRY(cudaGetLastError());
	}
	return GV_OK;
}
