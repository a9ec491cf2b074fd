/*
 * gv_knn.h
 *		The neighbors of one query: the rows nearest to it so far.
 *
 * The neighbors are a heap with the last of them on top.  They are ordered by
 * distance, NaN after all numbers, ties by position.  The heap is full from
 * the start: its free places come after every row.  So a row costs one
 * comparison, and log(n) comparisons if it enters.
 */
#ifndef GV_KNN_H
#define GV_KNN_H

#include "cpu/cpu.h"

#define GV_NO_ROW	INT64_MAX	/* position of a free place */

/* The work of pushing a pair to a large heap, for gv_poll. */
#define GV_KNN_WORK	256

/* One neighbor. */
typedef struct GvKnn
{
	double		distance;		/* NaN in a free place */
	int64_t		position;
} GvKnn;

/* These are in knn.c. */
extern void gv_knn_reset(GvKnn *heap, int64_t n);
extern void gv_knn_push(GvKnn *heap, int64_t n, double distance,
						int64_t position);
extern bool gv_knn_sort(GvKnn *heap, int64_t n, GvPoll *poll);

#endif							/* GV_KNN_H */
