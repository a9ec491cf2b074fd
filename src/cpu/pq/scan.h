/*
 * scan.h
 *		The buffers in the scratch of a GvScan: postings to be scored, and the
 *		pairs among which the best are.
 */
#ifndef GV_SCAN_H
#define GV_SCAN_H

#include "cpu/simd/kernels.h"

#define GV_KEPT_BINS	256

/*
 * Pairs that may be among the best `capacity` of all that were kept, in no
 * order.  Scores are counted in bins of equal width.  The bins show, to within
 * a bin, the score of the last of the best.
 */
typedef struct GvKept
{
	int32_t		capacity;
	int32_t		allocated;		/* pairs for which there is memory */
	int32_t		count;
	float		worst;			/* pairs above this score are not among the
								 * best */
	int32_t		nadded;			/* pairs added since all were last counted */
	int32_t		last;			/* bin of the last of the best; -1: not
								 * counted */
	int32_t		nbest;			/* pairs in bins 0 .. last */
	float		least;			/* score at which bin 0 begins */
	float		scale;			/* bins for a unit of score */
	float	   *scores;			/* [allocated] */
	uint64_t   *ids;			/* [allocated] */
	int32_t		bins[GV_KEPT_BINS];
} GvKept;

/*
 * GV_ENOUGH is the number of postings from which on it is worth scoring them.
 * GV_KEPT_MOST is the largest number of postings gathered, or of their pairs,
 * at a time: fewer than GV_ENOUGH, and then those of an optimistic read.
 */
#define GV_ENOUGH		64
#define GV_KEPT_MOST	(GV_ENOUGH + GV_OPTIMISTIC_BLOCKS * GV_BLOCK)

/* These are in scan.c, and are exported for check_keep.c. */
extern int32_t gv_kept_allocation(int32_t capacity);
extern void gv_kept_reset(GvKept *kept, float worst);
extern void gv_keep(GvKept *kept, const float *scores, const uint64_t *ids,
					int32_t n, GvTopK *best);
extern void gv_kept_give(GvKept *kept, GvTopK *best);

#endif							/* GV_SCAN_H */
