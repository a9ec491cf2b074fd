/*
 * condition.cuh
 *		A condition on keys, asked of some blocks by a warp, lane i posting i.
 *
 * A block's head is not asked whether any posting may satisfy a test: where it
 * did not tell, abbreviated keys were read after it, and two reads in turn
 * take twice as long; abbreviated keys are a small part of what codes are.
 */
#ifndef GV_CONDITION_CUH
#define GV_CONDITION_CUH

#include <stdint.h>

#include "gpu/common/common.cuh"
#include "gpu/common/gv_batch.h"
#include "gpu/common/warpselect.cuh"

/* An abbreviated key of `width` bytes. */
static __device__ __forceinline__ uint64_t
gv_load_abbrev(const uint8_t *abbrevs, int width, int i)
{
	switch (width)
	{
		case 1:
			return abbrevs[i];
		case 2:
			return ((const uint16_t *) abbrevs)[i];
		case 4:
			return ((const uint32_t *) abbrevs)[i];
		default:
			return ((const uint64_t *) abbrevs)[i];
	}
}

/* Is an abbreviated key among values [n], n > 0, ascending? */
static __device__ __forceinline__ bool
gv_among(const uint64_t *values, int n, uint64_t abbrev)
{
	int			place = 0;

	while (n > 1)
	{
		int			half = n / 2;

		place += values[place + half - 1] < abbrev ? half : 0;
		n -= half;
	}
	return values[place] == abbrev;
}

/* Does a key that is not NULL satisfy the test? */
static __device__ __forceinline__ bool
gv_matches(const GvDeviceTest &test, const uint64_t *values, uint64_t abbrev)
{
	switch (test.kind)
	{
		case GV_TEST_RANGE:
			return test.low <= abbrev && abbrev <= test.high;
		case GV_TEST_SET:
			return test.nvalues > 0 && test.low <= abbrev &&
				abbrev <= test.high &&
				gv_among(values + test.first, test.nvalues, abbrev);
		case GV_TEST_ANY_BIT:
			return (abbrev & test.low) != 0;
		case GV_TEST_ALL_BITS:
			return (abbrev & test.low) == test.low;
		default:
			return test.kind == GV_TEST_NOT_NULL;
	}
}

/*
 * By a warp: of matching [N], bit i for posting i of a block, those that
 * satisfy tests [n]; of N blocks, whose keys these are.
 */
template <int N>
static __device__ __forceinline__ void
gv_device_match(const GvDeviceTest *tests, int n, const uint64_t *values,
			  const uint8_t *const (&keys)[N], uint32_t (&matching)[N])
{
	int			lane = threadIdx.x % GV_WARP;
	uint32_t	left = 1;

	for (int i = 0; i < n && left != 0 && tests[i].kind != 0; i++)
	{
		const GvDeviceTest &test = tests[i];
		uint32_t	nulls[N];
		uint64_t	abbrevs[N];

#pragma unroll
		for (int b = 0; b < N; b++)
		{
			nulls[b] = ((const GvKeyHead *) keys[b])[test.key].nulls;
			abbrevs[b] =
				gv_load_abbrev(keys[b] + test.abbrevs_at, test.width, lane);
		}
		left = 0;
#pragma unroll
		for (int b = 0; b < N; b++)
		{
			matching[b] &= __ballot_sync(GV_FULL_WARP,
										 (nulls[b] >> lane & 1) != 0 ?
										 test.kind == GV_TEST_NULL :
										 gv_matches(test, values, abbrevs[b]));
			left |= matching[b];
		}
	}
}

#endif							/* GV_CONDITION_CUH */
