/*
 * gv_nearest.h
 *		The t nearest of the centroids that each of many vectors is offered.
 *
 * A vector is offered centroids by panels; what a panel's estimates rank among
 * its nearest so far is kept, a few more than are needed.  In the end these
 * are rescored, and nearest.c proves that nothing else would be nearer: so the
 * answer is that of gv_cpu_sqdist, ties to the smaller number, whatever the
 * order of the offers.  A vector for which the proof fails, because too many
 * lie equally near, is to be rescored with all that it was offered.
 */
#ifndef GV_NEAREST_H
#define GV_NEAREST_H

#include "cpu/code/gv_assign.h"

#define GV_NEAREST_ROWS		(4 * GV_CPU_TILE_ROWS)	/* offered at a time */
#define GV_NEAREST_FETCHED	512 /* bytes of a vector */
#define GV_NEAREST_CAPACITY		GV_CPU_COMPARED /* of a row, for what it keeps */

/* State of n vectors; the arrays lie in the caller's scratch. */
typedef struct GvNearest
{
	int32_t		dims;
	int			wanted;			/* t */
	int			kept;			/* some more than that */
	int32_t    *counts;			/* [n] of what follows */
	float	   *limits;			/* [n] what is not below it is not kept */
	float	   *values;			/* [n][GV_NEAREST_CAPACITY] estimates, less
								 * |x|^2; when rescored, squared distances */
	int32_t    *ids;			/* [n][GV_NEAREST_CAPACITY]; when rescored the
								 * nearest first, -1: none */
} GvNearest;

/*
 * Centroids offered: all, or with `members` those of these numbers.  A
 * centroid that was offered before to some rows has others[i], a number that
 * is among what these rows have tried.
 */
typedef struct GvOffered
{
	const float *centroids;		/* [..][dims] */
	int32_t		n;
	const int32_t *members;		/* [n], or NULL: 0 .. n - 1 */
	const int32_t *others;		/* [n], -1: none; NULL: none has */
	const int32_t *tried;		/* [..][GV_TRIED_GROUPS], -1: none, by rows */
	int			ntried;			/* of these, at most */
} GvOffered;

/* Memory for a panel of centroids and its sources: [dims] each. */
typedef struct GvPanel
{
	float	   *some;			/* [GV_CPU_TILE_CENTS][dims] */
	float	   *slices;			/* gv_nearest_slices (dims) */
} GvPanel;

/* Floats of the slices of a panel. */
static inline size_t
gv_nearest_slices(int32_t dims)
{
	int32_t		n = (dims + GV_CPU_SLICE_DIMS - 1) / GV_CPU_SLICE_DIMS;

	return (size_t) n * GV_CPU_SLICE_DIMS * GV_CPU_TILE_CENTS;
}

/* Have a vector fetched: its first bytes, then it is a stream. */
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

/* The i-th nearest of a row. */
static inline int32_t
gv_nearest_id(const GvNearest *nearest, int64_t row, int i)
{
	return nearest->ids[row * GV_NEAREST_CAPACITY + i];
}

/*
 * Lays out the memory for n rows, or with NULL only computes its size; and for
 * a panel.
 */
extern void gv_nearest_carve(GvNearest *nearest, int32_t dims, int wanted,
							 int64_t n, char *scratch, size_t *next);
extern void gv_panel_carve(GvPanel *panel, int32_t dims, char *scratch,
						   size_t *next);

/* Begin: the first n rows have nothing. */
extern void gv_nearest_begin(GvNearest *nearest, int64_t n);

/*
 * Offer nrows <= GV_NEAREST_ROWS vectors x [nrows][dims] some centroids; what
 * they keep is that of rows [nrows].
 */
extern bool gv_nearest_offer(GvNearest *nearest, const float *x,
							 const int32_t *rows, int nrows,
							 const GvOffered *offered, GvPanel *panel,
							 GvPoll *poll);

/*
 * All has been offered to a row: gets ready to rescore, some rows ahead of
 * that, so that the memory of what it has kept is there by then.
 */
extern void gv_nearest_prepare(GvNearest *nearest, int64_t row,
							   const float *centroids);

/*
 * All has been offered to a row, whose vector x [dims] is: rescores what it
 * has kept.  False: that may not be the nearest ones; then the row has none,
 * and is to be rescored with all that it was offered.
 */
extern bool gv_nearest_rescore(GvNearest *nearest, int64_t row, const float *x,
							   const float *centroids);
extern void gv_nearest_rerank(GvNearest *nearest, int64_t row,
							  const float *x, const GvOffered *offered);

#endif							/* GV_NEAREST_H */
