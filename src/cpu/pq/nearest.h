/*
 * nearest.h
 *		The t nearest of the centroids that are offered to each of many
 *		vectors.
 *
 * A vector is offered centroids panel by panel.  It keeps those centroids that
 * a panel's estimates rank among its nearest so far, and a few more than are
 * needed.  In the end the kept centroids are rescored, and place.c proves
 * that no other is nearer.  So the answer is that of gv_cpu_sqdist, ties to
 * the smaller number, whatever the order of the offers.  The proof fails for a
 * vector if too many centroids are equally near; then all centroids that it
 * was offered must be rescored.
 */
#ifndef GV_NEAREST_H
#define GV_NEAREST_H

#include "cpu/pq/assign.h"

#define GV_NEAREST_ROWS		(4 * GV_CPU_TILE_ROWS)	/* vectors offered
													 * centroids at a time */
#define GV_NEAREST_FETCHED	512 /* bytes of a vector that are prefetched */
#define GV_NEAREST_CAPACITY		GV_CPU_COMPARED /* centroids that a row keeps,
												 * at most */

/* State of n vectors.  The arrays are in the caller's scratch. */
typedef struct GvNearest
{
	int32_t		dims;
	int			wanted;			/* t, the number of centroids needed */
	int			kept;			/* number that a row keeps, somewhat more than
								 * t */
	int32_t    *counts;			/* [n] centroids that each row has now */
	float	   *limits;			/* [n] estimates not below it are not kept */
	float	   *values;			/* [n][GV_NEAREST_CAPACITY] estimates, less
								 * |x|^2; squared distances after rescoring */
	int32_t    *ids;			/* [n][GV_NEAREST_CAPACITY]; after rescoring
								 * the nearest first, -1: none */
} GvNearest;

/*
 * Centroids that are offered to rows: centroids 0 .. n - 1 or, with `members`,
 * those with these numbers.  others[i] is the other group of the i-th
 * centroid, if that group was offered before this one.  A row that has tried
 * that group was offered the centroid already.
 */
typedef struct GvOffered
{
	const float *centroids;		/* [..][dims] */
	int32_t		n;
	const int32_t *members;		/* [n], or NULL: 0 .. n - 1 */
	const int32_t *others;		/* [n]; -1: none.  NULL: all are -1 */
	const int32_t *tried;		/* [..][GV_TRIED_GROUPS] groups that each row
								 * tries; -1: none */
	int			ntried;			/* groups that a row tries, at most */
} GvOffered;

/* Memory for a panel of centroids, and for copies of the centroids in it. */
typedef struct GvPanel
{
	float	   *some;			/* [GV_CPU_TILE_CENTS][dims] */
	float	   *slices;			/* [gv_nearest_slices(dims)] */
} GvPanel;

/* Returns the number of floats in the slices of a panel. */
static inline size_t
gv_nearest_slices(int32_t dims)
{
	int32_t		n = (dims + GV_CPU_SLICE_DIMS - 1) / GV_CPU_SLICE_DIMS;

	return (size_t) n * GV_CPU_SLICE_DIMS * GV_CPU_TILE_CENTS;
}

/*
 * Prefetches the first bytes of a vector.  The processor prefetches the rest
 * by itself, because the bytes are read in order.
 */
static inline void
gv_nearest_fetch(const float *x, int32_t dims)
{
	const uint8_t *at = (const uint8_t *) x;
	size_t		bytes = sizeof(float) * dims;
	size_t		byte;

	for (byte = 0; byte < bytes && byte < GV_NEAREST_FETCHED;
		 byte += GV_FETCHED)
		gv_fetch(at + byte);
}

/* Returns the i-th nearest centroid of a row. */
static inline int32_t
gv_nearest_id(const GvNearest *nearest, int64_t row, int i)
{
	return nearest->ids[row * GV_NEAREST_CAPACITY + i];
}

/*
 * Lay out the memory of a GvNearest for n rows, or of a panel, in `scratch`
 * from *next on, and advance *next.  If `scratch` is NULL, only advance *next.
 */

/* Begins with n rows, which have no centroids yet. */

/*
 * Offers centroids to the vectors x [nrows][dims], nrows <= GV_NEAREST_ROWS.
 * rows [nrows] has their numbers in the GvNearest.  Returns false if the
 * caller must give up.
 */

/*
 * Prepares to rescore a row to which everything has been offered, and
 * prefetches the centroids that the row has kept.  Callers do this some rows
 * ahead, so that the centroids are in the cache when the row is rescored.
 */

/*
 * gv_nearest_rescore rescores the centroids that a row has kept, after
 * everything has been offered.  x [dims] is the row's vector.  Returns false
 * if these may not include the nearest ones.  Then the row has no centroids,
 * and gv_nearest_rerank must be called with everything that was offered to it.
 */
extern bool gv_nearest_rescore(GvNearest *nearest, int64_t row, const float *x,
							   const float *centroids);
extern void gv_nearest_rerank(GvNearest *nearest, int64_t row,
							  const float *x, const GvOffered *offered);

#endif							/* GV_NEAREST_H */
