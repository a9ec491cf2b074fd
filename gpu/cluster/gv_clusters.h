/*
 * gv_clusters.h
 *		What the files of k-means over a set share: rows and clusters in the
 *		device's memory, and the steps of a pass.
 *
 *		center	once: rows moved to their middle, in half precision, and what
 *				that did to them (center.cu)
 *		halve	the same of the centroids, in every pass
 *		assign	the nearest centroid of every row, piece by piece: a bound from
 *				the one that was nearest before, the few that may be nearer by
 *				tensor cores (candidates.cu), exact distances (settle.cu)
 *		group	rows by cluster, ascending (clustersums.cu)
 *		sum		errors, farthest rows, means (clustersums.cu)
 *
 * Proof.  With m the middle and s a power of two, X = s (x - m) and
 * C = s (c - m) are row and centroid moved, x' and c' their half copies, and
 *		a = |C|^2 - 2 sum
 * the approximate score, sum being what tensor cores make of <x', c'>.  With
 * Q >= |X|, E >= |X - x'|, L >= |C|, F >= |C - c'| (measured, the latter two
 * of the 32 centroids of a run together), approximate.cu's proof, with what
 * gpu/product/gv_product.h says of sums, gives
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
 * included: the close ones.  Both are kept with Q^2 added, so that they are
 * not negative, and the square in eps is taken as 2 (Q + E)^2 + 2 (L + F)^2,
 * so that eps is made of two products and two sums.  A score S that is known
 * from before is such a bound, too: s^2 S - |X|^2.  Where scores may overflow,
 * eps is infinite, and all centroids are close.
 */
#ifndef GV_CLUSTERS_H
#define GV_CLUSTERS_H

#include "gpu/build/build.h"
#include "gpu/product/gv_product.h"

#define GV_CLOSE_CAPACITY		16	/* close centroids of a row that are
									 * noted */
#define GV_CLOSE_LISTS		256 /* that centroids come in */

/* A centroid that may be a row's nearest. */
struct alignas(8) GvClose
{
	uint32_t	number;
	float		score;			/* a - eps + Q^2 */
};

/* A cluster that is reseeded. */
struct GvReseed
{
	uint32_t	taker;			/* its centroid becomes */
	uint32_t	giver;			/* the farthest row of this one */
};

/* All of it, passed to kernels by value. */
struct GvClusters
{
	int64_t		n;				/* rows, less than 2^31 */
	int32_t		dims;
	int32_t		half_dims;		/* rounded up to 16 */
	int32_t		k;
	int32_t		padded_k;			/* k rounded up to GV_CLOSE_LISTS */
	int32_t		piece;			/* rows assigned at once */
	int			nsms;
	float	   *d_rows;			/* [n][dims] */
	float	   *d_centroids;	/* [k][dims] */

	/* moved, and in half precision */
	float	   *d_middle;		/* [dims] */
	uint32_t   *d_most;			/* the largest |x_i - m_i|, as a float's
								 * bits */
	uint16_t   *d_half_rows;	/* [n][half_dims]; 0 beyond dims */
	float2	   *d_lengths;		/* [n] Q and E */
	uint16_t   *d_half_centroids;		/* [k][half_dims] */
	float	   *d_squares;		/* [padded_k] |C|^2; infinite beyond k */
	float4	   *d_spans;		/* [padded_k / GV_RUN] of a run: 2 (L + F), 2
								 * F, what the squares above take of it, 0 */

	/* which clusters rows are in */
	uint32_t   *d_nearest;		/* [n] */
	float	   *d_sqdist;		/* [n] */
	uint32_t   *d_all;			/* [n] 0, 1, 2, ... */
	uint32_t   *d_keys;			/* [n] clusters, ascending */
	uint32_t   *d_order;		/* [n] their rows, ascending in each */
	uint32_t   *d_starts;		/* [k + 1] of clusters in d_order */
	void	   *d_sort;
	size_t		sort_bytes;

	/* of a piece */
	float	   *d_reach;		/* [piece] the bound, with Q^2 */
	uint32_t   *d_counts;		/* [piece] close centroids */
	GvClose    *d_close;		/* [piece][GV_CLOSE_CAPACITY] */
	uint32_t   *d_hard;			/* [piece] rows that have more than there is
								 * memory for */
	uint32_t   *d_nhard;		/* [2] how many; and of all pieces so far */

	/* of clusters */
	double	   *d_errors;		/* [k] */
	float	   *d_far;			/* [k] largest squared distance */
	uint32_t   *d_far_rows;		/* [k] ... of this row, if it is not 0 */
	GvReseed	   *d_reseeds;		/* [k] */
};

/* center.cu */
extern GvStatus gv_gpu_center(const GvClusters *cl, cudaStream_t stream);
extern GvStatus gv_gpu_to_half(const GvClusters *cl, cudaStream_t stream);

/*
 * candidates.cu: of rows first .. first + n - 1, a piece of them, the bound
 * and the close centroids, from a bound that is there.
 */
extern GvStatus gv_gpu_candidates(const GvClusters *cl, int64_t first,
								  int32_t n, const GvMatmulContext *by);

/*
 * settle.cu: the bounds that a piece begins with, from the clusters that rows
 * were in, or infinite (`known` false); and after gv_gpu_candidates the
 * nearest centroids and squared distances.
 */
extern GvStatus gv_gpu_bounds(const GvClusters *cl, int64_t first, int32_t n,
							  bool known, cudaStream_t stream);
extern GvStatus gv_gpu_rescore_close(const GvClusters *cl, int64_t first,
									 int32_t n,
							  bool known, cudaStream_t stream);

/* clustersums.cu */
extern GvStatus gv_gpu_number_rows(const GvClusters *cl, cudaStream_t stream);
extern GvStatus gv_gpu_group_clusters(const GvClusters *cl,
									  cudaStream_t stream);
extern GvStatus gv_gpu_errors(const GvClusters *cl, cudaStream_t stream);
extern GvStatus gv_gpu_means(const GvClusters *cl, cudaStream_t stream);

/* d_reseeds [n] done: takers' centroids become givers' farthest rows. */
extern GvStatus gv_gpu_reseed(const GvClusters *cl, int32_t n,
							cudaStream_t stream);

/* The steps of a pass, for those who measure them. */
typedef enum GvKmeansStep
{
	GV_KMEANS_BEGIN,			/* of a pass; the others are over */
	GV_KMEANS_CENTER,
	GV_KMEANS_TO_HALF,
	GV_KMEANS_BOUNDS,			/* of each piece */
	GV_KMEANS_CLOSEST,
	GV_KMEANS_RESCORE,
	GV_KMEANS_GROUP,
	GV_KMEANS_SUM,
	GV_KMEANS_RESEED
} GvKmeansStep;

#define GV_NKMEANS_STEPS	(GV_KMEANS_RESEED + 1)

#ifdef GV_TEST_BUILD

/* To be called after each step is launched; NULL: nothing. */
typedef void (*GvKmeansWatch) (GvKmeansStep step, cudaStream_t stream);

extern "C" void gv_gpu_kmeans_watch(GvKmeansWatch watch);

/* Sets the rows of a piece in sets to come; 0: as is best. */
extern "C" void gv_gpu_kmeans_piece(int32_t rows);

/* Rows so far that had more close centroids than are noted. */
extern "C" GvStatus gv_gpu_kmeans_hard(void *state, uint32_t *n);

#endif

#endif							/* GV_CLUSTERS_H */
