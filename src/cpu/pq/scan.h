/*
 * scan.h
 *		The buffer of pairs in the scratch of a GvScan.  A pair is the score and
 *		the row id of a posting.
 */
#ifndef GV_SCAN_H
#define GV_SCAN_H

#include "cpu/simd/kernels.h"

#define GV_KEPT_BINS	256

/*
 * A buffer of pairs, in no order, that contains the best `capacity` of all
 * pairs that were added.  Lower scores are better.  Scores are counted in bins
 * of equal width, and the counts show in which bin the last of the best
 * `capacity` pairs is.
 */
typedef struct GvKept
{
	int32_t		capacity;
	int32_t		allocated;		/* pairs for which there is memory */
	int32_t		count;
	float		worst;			/* pairs above this score are not among the
								 * best */
	int32_t		nadded;			/* pairs added since all pairs were last
								 * counted */
	int32_t		last;			/* bin of the last of the best `capacity`
								 * pairs; -1 if pairs are not counted yet */
	int32_t		nbest;			/* pairs in bins 0 .. last */
	float		least;			/* score at which bin 0 begins */
	float		scale;			/* bins for a unit of score */
	float	   *scores;			/* [allocated] */
	uint64_t   *ids;			/* [allocated] */
	int32_t		bins[GV_KEPT_BINS];
} GvKept;

/*
 * GV_ENOUGH is the maximum number of gathered postings for which a scan waits
 * before it scores them.  GV_KEPT_MOST is the maximum number of postings that
 * are gathered, and of pairs that are added, at a time: fewer than GV_ENOUGH
 * postings, followed by those of an optimistic read.
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
