/*
 * coarse.cuh
 *		Computes list scores by groups of four lanes.  They are equal to
 *		gv_coarse's to the last bit.
 *
 * Dimension i is added to partial sum i mod 16.  Lane l of the four has
 * partial sums 4l .. 4l + 3, so that it reads 16 bytes at a time.  Dimensions
 * beyond the last one are 0, which does not change the sums.
 */
#include "gpu/device/warp.cuh"

#define GV_LANE_GROUP	4		/* lanes that share a score */
#define GV_SUMS			16		/* partial sums of a score */
#define GV_AHEAD		8		/* loads in flight */

/*
 * Returns elements i .. i + 3 of row [dims].  If ALIGNED, dims is a multiple
 * of 4 and the row begins at a multiple of 16 bytes.
 */
template <bool ALIGNED>
static __device__ __forceinline__ float4
gv_load_four(const float *row, int i, int dims)
{
	if (ALIGNED)
		return *(const float4 *) (row + i);
	return make_float4(i < dims ? row[i] : 0.0f, i + 1 < dims ? row[i + 1] :
					   0.0f, i + 2 < dims ? row[i + 2] : 0.0f,
					   i + 3 < dims ? row[i + 3] : 0.0f);
}

template <bool PRODUCT>
static __device__ __forceinline__ float
gv_add_term(float sum, float x, float y)
{
	float		diff = PRODUCT ? 0.0f : __fsub_rn(x, y);

	return __fadd_rn(sum, PRODUCT ? __fmul_rn(x, y) : __fmul_rn(diff, diff));
}

template <bool PRODUCT>
static __device__ __forceinline__ void
gv_add_four(float (&sums)[4], float4 x, float4 y)
{
	sums[0] = gv_add_term<PRODUCT>(sums[0], x.x, y.x);
	sums[1] = gv_add_term<PRODUCT>(sums[1], x.y, y.y);
	sums[2] = gv_add_term<PRODUCT>(sums[2], x.z, y.z);
	sums[3] = gv_add_term<PRODUCT>(sums[3], x.w, y.w);
}

/*
 * Adds up the partial sums of all four lanes.  Only the first lane gets the
 * score.
 */
template <bool PRODUCT>
static __device__ __forceinline__ float
gv_add_sums(float (&sums)[4])
{
	float		sum;

	/*
	 * partial sums that are 8 apart are two lanes apart; those that are 4
	 * apart are one lane apart
	 */
#pragma unroll
	for (int apart = GV_LANE_GROUP / 2; apart > 0; apart /= 2)
#pragma unroll
		for (int j = 0; j < 4; j++)
			sums[j] = __fadd_rn(sums[j],
								__shfl_down_sync(0xFFFFFFFFu, sums[j], apart,
												 GV_LANE_GROUP));
	sum = __fadd_rn(__fadd_rn(sums[0], sums[2]), __fadd_rn(sums[1], sums[3]));
	return gv_device_score(PRODUCT ? -sum : sum);
}

/*
 * Adds a lane's terms from dimension i on to sums, with AHEAD loads in flight
 * at a time.
 */
template <bool PRODUCT, bool ALIGNED, int AHEAD>
static __device__ __forceinline__ void
gv_add_rows(float (&sums)[4], const float *query, const float *centroid, int i,
			int dims)
{
	for (; i + (AHEAD - 1) * GV_SUMS < dims; i += AHEAD * GV_SUMS)
	{
		float4		y[AHEAD];

#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			y[j] = gv_load_four<ALIGNED>(centroid, i + j * GV_SUMS, dims);
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			gv_add_four<PRODUCT>(sums, gv_load_four<ALIGNED>(query,
															 i + j * GV_SUMS,
															 dims), y[j]);
	}
	for (; i < dims; i += GV_SUMS)
		gv_add_four<PRODUCT>(sums, gv_load_four<ALIGNED>(query, i, dims),
							 gv_load_four<ALIGNED>(centroid, i, dims));
}

template <bool PRODUCT, bool ALIGNED, int AHEAD>
static __device__ __forceinline__ float
gv_score_rows(const float *query, const float *centroid, int dims)
{
	float		sums[4] = {};

	gv_add_rows<PRODUCT, ALIGNED, AHEAD>(sums, query, centroid, threadIdx.x %
										 GV_LANE_GROUP * 4, dims);
	return gv_add_sums<PRODUCT>(sums);
}

/*
 * Returns the score of centroid [dims] for query [dims] to the first of the
 * four lanes.  Both are rows of arrays that begin at a multiple of 16 bytes.
 * All lanes of a warp call this together.
 */
template <bool PRODUCT, int AHEAD = GV_AHEAD>
static __device__ __forceinline__ float
gv_lane_group_score(const float *query, const float *centroid, int dims)
{
	return dims % 4 == 0 ?
		gv_score_rows<PRODUCT, true, AHEAD>(query, centroid, dims) :
		gv_score_rows<PRODUCT, false, GV_AHEAD>(query, centroid, dims);
}
