/*
 * gv_nearest.h
 *		The rows nearest to one query so far.
 *
 * A heap with the last one on top, by distance, NaN behind all numbers, ties
 * by position.  It is full from the start, of places that come behind every
 * row, so that a row costs one comparison, or log(n) of them where it enters.
 */
#ifndef GV_NEAREST_H
#define GV_NEAREST_H

#include "cpu/gv_cpu.h"

#define GV_NO_ROW	INT64_MAX	/* position of a free place */

/* What putting a pair into a heap takes, for gv_poll: of a large one. */
#define GV_NEAR_WORK	256

typedef struct GvNear
{
	double		distance;		/* NaN of a free place */
	int64_t		position;
} GvNear;

/* nearest.c */
extern void gv_nearest_reset(GvNear *heap, int64_t n);
extern void gv_nearest_push(GvNear *heap, int64_t n, double distance,
							int64_t position);
extern bool gv_nearest_sort(GvNear *heap, int64_t n, GvPoll *poll);

#endif							/* GV_NEAREST_H */
