/*
 * kmeans.h
 *		k-means on a device: rows and clusters in its memory, the steps of a
 *		pass, and the proof of the filter.
 *
 *		nearest.cu		the nearest centroid of each row
 *		update.cu		rows grouped; means
 *		evenkmeans.cu	k-means with even clusters, for builds
 *		kmeansset.cu	k-means over a set
 *
 * Proof.  With m the middle and s a power of two, X = s (x - m) and
 * C = s (c - m) are row and centroid moved, x' and c' their half copies, and
 *		a = |C|^2 - 2 sum
 * the approximate score, sum being what tensor cores make of <x', c'>.  With
 * Q >= |X|, E >= |X - x'|, L >= |C|, F >= |C - c'| (measured, the latter two
 * of the 32 centroids of a group together), coarsefilter.cu's proof, with what
 * gpu/product/product.h says of sums, gives
 *		|a - (|X - C|^2 - |X|^2)| <= 2 (E (L + F) + Q F) +
 *			2 (Q + E)(L + F)(dims + 32) 2^-22 +
 *			(Q + E + L + F)^2 (dims / 16 + 56) 2^-24
 * of which the last is for |C|^2 and a in fp32; E and F include the rounding
 * of x - m, 2^-24 of it.  gv_assign's score S of
 * x and c, in fp32, has a relative error below (dims / 16 + 8) 2^-24, and
 * loses dims 2^-149 to underflow, so
 *		|a - (s^2 S - |X|^2)| <= eps,
 * the sum of the above and of dims 2^-148 s^2.  Then
 *		least (a + eps)
 * of any centroids is no less than what the nearest has of s^2 S - |X|^2, and
 * those whose a - eps is not larger are all that can be the nearest, ties
 * included: the candidates.  Both are kept with Q^2 added, so that they are
 * not negative, and the square in eps is taken as 2 (Q + E)^2 + 2 (L + F)^2,
 * so that eps is made of two products and two sums.  A score S that is known
 * from before is such a bound, too: s^2 S - |X|^2.  Where scores may overflow,
 * eps is infinite, and all centroids are candidates.
 */
#ifndef GV_KMEANS_H
#define GV_KMEANS_H

#include "gpu/product/product.h"

#define GV_KMEANS_CANDIDATES	16	/* maximum candidates of a row; a row with
									 * more overflows */
#define GV_KMEANS_ALIGN		256 /* arrays of centroids that the filter reads
								 * are padded to a multiple of this */

/* A centroid that may be the nearest of a row. */
struct alignas(8) GvKmeansCandidate
{
	uint32_t	number;			/* among the centroids that are compared */
	float		score;			/* a - eps + Q^2 */
};

/* Rows and clusters, passed to kernels by value. */
struct GvClusters
{
	int64_t		n;				/* rows, less than 2^31 */
	int32_t		dims;
	int32_t		half_dims;		/* rounded up to 16 */
	int32_t		k;				/* at most n */
	int32_t		piece;			/* maximum rows that are assigned at once */
	int32_t		columns;		/* maximum centroids that a piece is multiplied
								 * with at once, a multiple of
								 * GV_KMEANS_ALIGN */
	bool		kept;			/* all rows have half copies, not only the rows
								 * of a piece */
	int			nsms;
	int			nslices;		/* whose sums are added pairwise (gv_set.h); 1:
								 * sums are in the order of rows */
	uint32_t	slice_ends[GV_SET_SLICES];	/* the first row behind each slice */
	float	   *d_rows;			/* [n][dims] */
	float	   *d_centroids;	/* [k][dims] */

	/* moved vectors, in half precision */
	float	   *d_middle;		/* [dims] */
	uint32_t   *d_most;			/* the largest |x_i - m_i|, as a float's
								 * bits */
	uint16_t   *d_half_rows;	/* [n or piece][half_dims]; 0 beyond dims */
	float2	   *d_lengths;		/* [n or piece] Q and E */
	uint16_t   *d_half_centroids;	/* [k][half_dims] of the centroids that
									 * rows are compared with */
	float	   *d_squares;		/* [k padded] |C|^2; infinite beyond the last
								 * centroid compared */
	float4	   *d_group_norms;	/* [k padded / GV_COLUMN_GROUP] of each 32
								 * centroids: 2 (L + F), 2 F, the squares' term
								 * of eps, 0 */

	/* the clusters of rows */
	uint32_t   *d_nearest;		/* [n] */
	float	   *d_sqdist;		/* [n] */
	uint32_t   *d_all;			/* [n] 0, 1, 2, ... */
	uint32_t   *d_keys;			/* [n] clusters of the rows of d_order,
								 * ascending */
	uint32_t   *d_order;		/* [n] rows sorted by cluster and, in each,
								 * ascending */
	uint32_t   *d_starts;		/* [k + 1] where each cluster begins in
								 * d_order */
	void	   *d_sort;
	size_t		sort_bytes;

	/* arrays of a piece */
	float	   *d_bounds;		/* [piece] bounds, with Q^2 added */
	uint32_t   *d_counts;		/* [piece] number of candidates */
	GvKmeansCandidate *d_candidates;	/* [piece][GV_KMEANS_CANDIDATES] */
	uint32_t   *d_overflowed;	/* [piece] rows with too many candidates */
	uint32_t   *d_noverflowed;	/* [2] number of such rows of the piece, and in
								 * the test build of all pieces so far */

	/* arrays of clusters, for sets only */
	GvSetCluster *d_found;		/* [k] of a pass; `farthest` is a row's number */
	GvSetReseed *d_reseeds;		/* [k] */
	double	   *d_sums;			/* [k][dims] sums of rows, for parts only;
								 * otherwise NULL */
};

/* The bounds that rows begin with. */
enum GvKmeansBound
{
	GV_BOUND_NONE,				/* infinite bounds; d_nearest is not set */
	GV_BOUND_NEAREST,			/* the score of d_nearest, computed again */
	GV_BOUND_SQDIST				/* d_sqdist, which is the score of d_nearest */
};

/*
 * Rows and the centroids that they are compared with.  With a bound, the
 * centroid in d_nearest may remain a row's nearest even if it is not among
 * these centroids.
 */
struct GvAssignment
{
	int64_t		n;
	const uint32_t *d_rows;		/* [n] numbers of the rows; if half copies are
								 * kept, this must be d_all */
	int32_t		k;
	const uint32_t *d_centroids;	/* [k] numbers of the centroids,
									 * ascending */
	GvKmeansBound bound;
	bool		wait;			/* wait for each piece before the next one is
								 * launched */
};

/* -- nearest.cu */

/*
 * Sets the shape of *cl: `piece` rows, or all if there are fewer, are assigned
 * at once, by products of about `terms` terms.  If `kept`, all rows have half
 * copies from the beginning; otherwise only the rows of the current piece have
 * them.
 */
extern void gv_clusters_shape(GvClusters *cl, int64_t n, int32_t dims,
							  int32_t k, int64_t terms, int64_t piece,
							  bool kept);

/*
 * Places the arrays for assignment and grouping in memory, from *bytes on, and
 * adds their bytes to *bytes.  If memory is NULL, only counts the bytes.
 */
extern void gv_clusters_place(GvClusters *cl, char *memory, size_t *bytes);

/*
 * Prepares the first assignment.  Rows and centroids must have been copied to
 * the device.
 */
extern GvStatus gv_gpu_kmeans_begin(const GvClusters *cl, cudaStream_t stream);

/*
 * Sets d_nearest and d_sqdist of each row to the nearest centroid, as
 * gv_assign finds it, and the squared distance.  Of equally near centroids the
 * first one is taken.
 */
extern GvStatus gv_gpu_nearest(const GvClusters *cl,
							   const GvAssignment *assignment,
							   const GvMatmulContext *context,
							   const GvStop *stop);

/* -- update.cu */

/* Sets d_order and d_starts from d_nearest. */
extern GvStatus gv_gpu_group_clusters(const GvClusters *cl,
									  cudaStream_t stream);

/*
 * Moves each centroid to the mean of its grouped rows.  Centroids without rows
 * stay.  For parts, sets d_sums instead.
 */
extern GvStatus gv_gpu_means(const GvClusters *cl, cudaStream_t stream);

/*
 * Returns where the rows of a slice (gv_set.h) begin among rows start .. end - 1
 * of d_order, which are a cluster's.
 */
static __device__ __forceinline__ uint32_t
gv_slice_start(const GvClusters &cl, int slice, uint32_t start, uint32_t end)
{
	if (slice == 0)
		return start;
	if (slice >= cl.nslices)
		return end;
	while (start < end)
	{
		uint32_t	middle = start + (end - start) / 2;

		if (cl.d_order[middle] < cl.slice_ends[slice - 1])
			start = middle + 1;
		else
			end = middle;
	}
	return start;
}

/*
 * Adds up the sums of slices pairwise, in shared memory, where they are `stride`
 * apart; by one thread.
 */
static __device__ __forceinline__ double
gv_slices_total(const GvClusters &cl, double *sums, int stride)
{
	for (int step = 1; step < cl.nslices; step *= 2)
		for (int s = 0; s + step < cl.nslices; s += 2 * step)
			sums[s * stride] += sums[(s + step) * stride];
	return sums[0];
}

/* -- evenkmeans.cu */

/* The outcome of k-means, and its costs. */
struct GvKmeansFound
{
	int32_t		k;
	int32_t		passes;			/* passes that compared all rows with all
								 * centroids */
	double		split_s;		/* seconds spent on splits */
};

/*
 * See gv_kmeans.  Computes d_centroids [k][dims] from d_x [n][dims] and,
 * unless owners is NULL, each row's nearest centroid, owners [n] in the host's
 * memory.
 */
extern GvStatus gv_gpu_kmeans(const GvKmeans *spec, const float *d_x,
							  float *d_centroids, int32_t *owners,
							  GvKmeansFound *found,
							  const GvMatmulContext *context,
							  const GvStop *stop);

/* Returns the bytes that gv_gpu_kmeans takes at most, on any device. */
extern int64_t gv_gpu_kmeans_bytes(int32_t dims, int64_t n, int32_t k);

/* -- for k-means and builds */

/* Returns the next 64 random bits of splitmix64. */
static __host__ __device__ __forceinline__ uint64_t
gv_device_random(uint64_t *state)
{
	uint64_t	z = (*state += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

/*
 * Rounds a value to float.  A value beyond the range of float becomes the
 * largest float of the same sign.
 */
static __device__ __forceinline__ float
gv_device_clamp(double value)
{
	if (value > (double) FLT_MAX)
		return FLT_MAX;
	if (value < -(double) FLT_MAX)
		return -FLT_MAX;
	return (float) value;
}

#endif							/* GV_KMEANS_H */
