/*
 * gv_scan.h
 *		What waits in the scratch of a GvScan: postings to be scored, and pairs
 *		among which the best are.
 */
#ifndef GV_SCAN_H
#define GV_SCAN_H

#include "cpu/simd/gv_kernels.h"

#define GV_KEPT_BINS	256

/*
 * Pairs that may be among the best `capacity` of all that were kept, in no
 * order.  Scores are counted in bins of equal width, which tell the score of
 * the last of the best to within a bin.
 */
typedef struct GvKept
{
	int32_t		capacity;
	int32_t		allocated;		/* pairs that there is memory for */
	int32_t		count;
	float		worst;			/* what is above is not among the best */
	int32_t		nadded;			/* since they were counted anew */
	int32_t		last;			/* bin of the last one; -1: not counted */
	int32_t		nbest;			/* pairs in bins 0 .. last */
	float		least;			/* where bin 0 begins */
	float		scale;			/* bins a unit of score */
	float	   *scores;			/* [capacity] */
	uint64_t   *ids;			/* [capacity] */
	int32_t		bins[GV_KEPT_BINS];
} GvKept;

/*
 * Postings that are worth scoring, and the most gathered, and pairs, by then:
 * those of optimistic reads come to fewer than are worth it.
 */
#define GV_ENOUGH		64
#define GV_KEPT_MOST	(GV_ENOUGH + GV_OPTIMISTIC_BLOCKS * GV_BLOCK)

/* match.c */
extern bool gv_condition_fits(const GvCondition *condition);

/* keep.c */
extern int32_t gv_kept_allocation(int32_t capacity);
extern void gv_kept_reset(GvKept *kept, float worst);
extern void gv_keep(GvKept *kept, const float *scores, const uint64_t *ids,
					int32_t n, GvTopK *best);
extern void gv_kept_give(GvKept *kept, GvTopK *best);

#endif							/* GV_SCAN_H */
