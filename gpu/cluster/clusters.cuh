/*
 * clusters.cuh
 *		Device code of k-means over a set: the scale, and parts of eps
 *		(gv_clusters.h).
 */
#ifndef GV_CLUSTERS_CUH
#define GV_CLUSTERS_CUH

#include <stdint.h>

#include "gpu/cluster/gv_clusters.h"
#include "gpu/common/mma.cuh"
#include "gpu/common/warpselect.cuh"

/* s: a power of two that brings the largest number below 2^14, if it can. */
static __device__ __forceinline__ float
gv_clusters_scale(const GvClusters &cl)
{
	int			exponent = 13 + 127 - (int) (*cl.d_most >> 23);

	exponent = exponent < -50 ? -50 : exponent > 60 ? 60 : exponent;
	return __uint_as_float((uint32_t) (exponent + 127) << 23);
}

/*
 * The term of eps for (Q + E)^2 or (L + F)^2, `length` being the sum; infinite
 * where a score with a vector of this length may overflow.
 */
static __device__ __forceinline__ float
gv_clusters_rest(const GvClusters &cl, float length, float scale)
{
	float		square = length * length;

	if (!(square < 0x1p118f * (scale * scale)))
		return __int_as_float(0x7F800000);
	return 1.001f * 2.0f * square * (float) (cl.dims / 16 + 64) * 0x1p-24f;
}

/* The terms of eps that depend on the row alone. */
static __device__ __forceinline__ float
gv_clusters_row_rest(const GvClusters &cl, float2 lengths, float scale)
{
	return gv_clusters_rest(cl, lengths.x + lengths.y, scale) +
		(float) cl.dims * 0x1p-148f * scale * scale + 1e-30f;
}

#endif							/* GV_CLUSTERS_CUH */
