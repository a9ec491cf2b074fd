/* Stands in for CUB's header of that name: a sort on the host. */
#ifndef DEVICE_SEGMENTED_RADIX_SORT_CUH
#define DEVICE_SEGMENTED_RADIX_SORT_CUH

#include <algorithm>

#include <cuda_runtime.h>

namespace cub
{
struct DeviceSegmentedRadixSort
{
	template <typename Key, typename Offset>
	static cudaError_t
	SortKeys(void *temporary, size_t &bytes, const Key *keys_in,
			 Key *keys_out, int64_t n, int64_t nsegments, Offset *begins,
			 Offset *ends, int first_bit = 0, int end_bit = 8 * sizeof(Key),
			 cudaStream_t stream = NULL)
	{
		if (temporary == NULL)
		{
			bytes = n * sizeof(Key) + 1;	/* a second buffer */
			return cudaSuccess;
		}
		gv_emulated_tell(stream, {[=]
		{
			for (int64_t s = 0; s < nsegments; s++)
			{
				std::copy(keys_in + begins[s], keys_in + ends[s],
						  keys_out + begins[s]);
				std::sort(keys_out + begins[s], keys_out + ends[s]);
			}
		}, NULL, 0});
		return cudaSuccess;
	}
};
}

#endif							/* DEVICE_SEGMENTED_RADIX_SORT_CUH */
