/*
 * gv_knn.h
 *		The rows nearest to one query so far: its neighbors.
 *
 * A heap with the last of them on top, by distance, NaN behind all numbers,
 * ties by position.  It is full from the start, of free places behind every
 * row, so a row costs one comparison, or log(n) of them where it enters.
 */
#ifndef GV_KNN_H
#define GV_KNN_H

#include "cpu/gv_cpu.h"

#define GV_NO_ROW	INT64_MAX	/* position of a free place */

/* The work of putting a pair into a large heap, for gv_poll. */
#define GV_KNN_WORK	256

/* One neighbor. */
typedef struct GvKnn
{
	double		distance;		/* NaN of a free place */
	int64_t		position;
} GvKnn;

/* knn.c */
extern void gv_knn_reset(GvKnn *heap, int64_t n);
extern void gv_knn_push(GvKnn *heap, int64_t n, double distance,
						int64_t position);
extern bool gv_knn_sort(GvKnn *heap, int64_t n, GvPoll *poll);

#endif							/* GV_KNN_H */
