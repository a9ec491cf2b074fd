/* Stands in for CUB's header of that name: a stable sort on the host. */
#ifndef DEVICE_RADIX_SORT_CUH
#define DEVICE_RADIX_SORT_CUH

#include <numeric>
#include <vector>

#include <cuda_runtime.h>

namespace cub
{
struct DeviceRadixSort
{
	template <typename Key, typename Value>
	static cudaError_t
	SortPairs(void *temporary, size_t &bytes, const Key *keys_in,
			  Key *keys_out, const Value *values_in, Value *values_out,
			  int64_t n, int first_bit = 0, int end_bit = 8 * sizeof(Key),
			  cudaStream_t stream = NULL)
	{
		Key			mask = end_bit - first_bit == 8 * (int) sizeof(Key) ?
			~Key(0) : (Key(1) << (end_bit - first_bit)) - 1;

		if (temporary == NULL)
		{
			/* as CUB has it: a second buffer, and counts */
			bytes = n * (sizeof(Key) + sizeof(Value)) + n / 4 + 1;
			return cudaSuccess;
		}
		gv_emulated_tell(stream, {[=]
		{
			std::vector<int64_t> order(n);

			std::iota(order.begin(), order.end(), 0);
			std::stable_sort(order.begin(), order.end(),
							 [&](int64_t a, int64_t b) {
								 return (keys_in[a] >> first_bit & mask) <
									 (keys_in[b] >> first_bit & mask);
							 });
			for (int64_t i = 0; i < n; i++)
			{
				keys_out[i] = keys_in[order[i]];
				values_out[i] = values_in[order[i]];
			}
		}, NULL, 0});
		return cudaSuccess;
	}

	template <typename Key>
	static cudaError_t
	SortKeys(void *temporary, size_t &bytes, const Key *keys_in,
			 Key *keys_out, int64_t n, int first_bit = 0,
			 int end_bit = 8 * sizeof(Key), cudaStream_t stream = NULL)
	{
		Key			mask = end_bit - first_bit == 8 * (int) sizeof(Key) ?
			~Key(0) : (Key(1) << (end_bit - first_bit)) - 1;

		if (temporary == NULL)
		{
			bytes = n * sizeof(Key) + n / 4 + 1;
			return cudaSuccess;
		}
		gv_emulated_tell(stream, {[=]
		{
			std::copy(keys_in, keys_in + n, keys_out);
			std::stable_sort(keys_out, keys_out + n, [=](Key a, Key b) {
				return (a >> first_bit & mask) < (b >> first_bit & mask);
			});
		}, NULL, 0});
		return cudaSuccess;
	}
};
}

#endif							/* DEVICE_RADIX_SORT_CUH */
