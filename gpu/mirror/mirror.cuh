/*
 * mirror.cuh
 *		Device code that reads a mirror.
 */
#ifndef GV_MIRROR_CUH
#define GV_MIRROR_CUH

#include "gpu/mirror/mirror.h"

/*
 * Returns the first dimension of sub-quantizer j <= m; see gv_sub_start.  The
 * product fits in 32 bits, and a 64-bit division took longer than an entry of
 * a look-up table.
 */
static __device__ __forceinline__ int
gv_device_sub_start(const GvDeviceModel &model, int j)
{
	static_assert(GV_MAX_DIMS < 1 << 15, "a product of two fits 32 bits");

	return (int) ((uint32_t) j * (uint32_t) model.dims / (uint32_t) model.m);
}

/* Returns the record in a slot of a page of refine records, or NULL. */
static __device__ __forceinline__ const uint8_t *
gv_record_at(const GvDeviceModel &model, const uint8_t *page, int slot)
{
	return page == NULL || slot < 1 || slot > model.refine_slots ? NULL :
		page + (int64_t) (slot - 1) * model.record_bytes;
}

#endif							/* GV_MIRROR_CUH */
