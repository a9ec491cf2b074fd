/*
 * distance.cuh
 *		Device code that computes the distances of gv_set_distance, bit for bit
 *		unless they are NaN.
 *
 * Distances are computed in double, in the order of operations of
 * gv_set_distance.  A team of eight lanes takes a pair of vectors.  Lane l has
 * partial sum l, of dimensions l, l + 8 and so on; then lane l adds the sums
 * of lanes l + 4, l + 2 and l + 1.
 */
#ifndef GV_DISTANCE_CUH
#define GV_DISTANCE_CUH

#include "gpu/device/warp.cuh"

#define GV_TEAM_LANES	8		/* number of partial sums of gv_set_distance */

/*
 * Returns the sum of a team's partial sums, to all lanes of the team.  Called
 * by all teams of a warp.
 */
static __device__ __forceinline__ double
gv_add_team(double sum)
{
#pragma unroll
	for (int half = GV_TEAM_LANES / 2; half > 0; half /= 2)
		sum = __dadd_rn(sum, __shfl_down_sync(GV_FULL_WARP, sum, half,
											  GV_TEAM_LANES));
	return __shfl_sync(GV_FULL_WARP, sum, 0, GV_TEAM_LANES);
}

/* A lane's partial sums for a distance between vectors a and b. */
template <int METRIC>
struct GvDistanceSums
{
	double		sum;			/* of squared differences, or of products */
	double		a_square;		/* GV_SET_COSINE only */
	double		b_square;

	/* Adds one of the lane's dimensions. */
	__device__ __forceinline__ void
	add(double a, double b)
	{
		double		diff = __dadd_rn(a, -b);

		sum = __dadd_rn(sum, METRIC == GV_SET_L2 ? __dmul_rn(diff, diff) :
						__dmul_rn(a, b));
		if (METRIC != GV_SET_COSINE)
			return;
		a_square = __dadd_rn(a_square, __dmul_rn(a, a));
		b_square = __dadd_rn(b_square, __dmul_rn(b, b));
	}

	/*
	 * Returns the distance, to all lanes of a team.  Called by all teams of a
	 * warp.  A cosine is limited to -1 .. 1.
	 */
	__device__ __forceinline__ double
	distance() const
	{
		double		total = gv_add_team(sum);
		double		cosine;

		if (METRIC == GV_SET_L2)
			return __dsqrt_rn(total);
		if (METRIC == GV_SET_IP)
			return -total;
		cosine = __ddiv_rn(total,
						   __dsqrt_rn(__dmul_rn(gv_add_team(a_square),
												gv_add_team(b_square))));
		if (cosine > 1.0)
			cosine = 1.0;
		else if (cosine < -1.0)
			cosine = -1.0;
		return __dadd_rn(1.0, -cosine);
	}
};

#endif							/* GV_DISTANCE_CUH */
