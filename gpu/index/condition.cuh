/*
 * condition.cuh
 *		A condition on keys, asked of a block by a warp, lane i copy i.
 *
 * A test's head and images are asked for together: where heads of random keys
 * rarely tell, two reads in turn would take twice as long, and images are a
 * small part of what codes are.
 */
#ifndef GV_CONDITION_CUH
#define GV_CONDITION_CUH

#include <stdint.h>

#include "gpu/common/common.cuh"
#include "gpu/common/gv_batch.h"
#include "gpu/common/warpselect.cuh"

/* An image of `width` bytes. */
static __device__ __forceinline__ uint64_t
gv_image(const uint8_t *images, int width, int i)
{
	switch (width)
	{
		case 1:
			return images[i];
		case 2:
			return ((const uint16_t *) images)[i];
		case 4:
			return ((const uint32_t *) images)[i];
		default:
			return ((const uint64_t *) images)[i];
	}
}

/* May some copy of the block fulfil the test? */
static __device__ __forceinline__ bool
gv_head_may(const GvCardTest &test, const GvKeyHead &head)
{
	if (test.head == GV_HEAD_NULLS)
		return head.nulls != 0;
	if (head.nulls == 0xFFFFFFFFu)
		return false;
	switch (test.head)
	{
		case GV_HEAD_RANGE:
			return head.low <= head.high && test.low <= head.high &&
				test.high >= head.low;
		case GV_HEAD_ANY_BIT:
			return (head.low & test.bits) != 0;
		case GV_HEAD_ALL_BITS:
			return (head.low & test.bits) == test.bits;
		default:
			return true;
	}
}

/* Is an image among values [n], ascending? */
static __device__ __forceinline__ bool
gv_among(const uint64_t *values, int n, uint64_t image)
{
	int			place = 0;

	if (n == 0)
		return false;
	while (n > 1)
	{
		int			half = n / 2;

		place += values[place + half - 1] < image ? half : 0;
		n -= half;
	}
	return values[place] == image;
}

/* Does a key that is not NULL fulfil the test? */
static __device__ __forceinline__ bool
gv_fulfils(const GvCardTest &test, const uint64_t *values, uint64_t image)
{
	switch (test.kind)
	{
		case GV_TEST_RANGE:
			return test.low <= image && image <= test.high;
		case GV_TEST_SET:
			return gv_among(values + test.first, test.nvalues, image);
		case GV_TEST_ANY_BIT:
			return (image & test.bits) != 0;
		case GV_TEST_ALL_BITS:
			return (image & test.bits) == test.bits;
		default:
			return test.kind == GV_TEST_NOT_NULL;
	}
}

/*
 * By a warp: bit i: copy i of a block, whose keys these are, fulfils tests [n].
 * A call, so that it takes no registers from what follows.
 */
static __device__ __noinline__ uint32_t
gv_card_match(const GvCardTest *tests, int n, const uint64_t *values,
			  const uint8_t *keys)
{
	const GvKeyHead *heads = (const GvKeyHead *) keys;
	int			lane = threadIdx.x % GV_WARP;
	uint32_t	matching = GV_FULL_WARP;

	for (int i = 0; i < n && matching != 0 && tests[i].kind != 0; i++)
	{
		const GvCardTest &test = tests[i];
		GvKeyHead	head = heads[test.key];
		uint64_t	image = gv_image(keys + test.images, test.width, lane);
		bool		is_null = (head.nulls >> lane & 1) != 0;

		if (!gv_head_may(test, head))
			return 0;
		matching &= __ballot_sync(GV_FULL_WARP,
								  is_null ? test.kind == GV_TEST_NULL :
								  gv_fulfils(test, values, image));
	}
	return matching;
}

#endif							/* GV_CONDITION_CUH */
