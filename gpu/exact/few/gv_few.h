/*
 * gv_few.h
 *		Few queries, for which the time of a pass over all half copies counts:
 *		their filter (fewscan.cu), and the whole of their search in one pass
 *		(fewqueries.cu, fewnearest.cu).
 */
#ifndef GV_FEW_H
#define GV_FEW_H

#include "gpu/exact/filter/gv_exact.h"

/* fewscan.cu: the filter */
extern size_t gv_exact_scan_bytes(const GvExactMatmul *matmul);	/* shared */
extern GvStatus gv_gpu_exact_scan(const GvExactMatmul *matmul, int nsms,
								  cudaStream_t stream);

/* The arguments of fewqueries.cu. */
struct GvExactFew
{
	GvExactSpace space;
	GvExactNearest nearest;		/* of all queries */
	GvExactLists lists;
	GvExactTurn *d_turn;
	float	   *d_bests;		/* [n][warps] */
	float	   *d_scores;		/* of blocks that left */
	uint32_t   *counts;			/* pinned [2] of the lists, for the host */
};

/*
 * fewqueries.cu: few queries and all rows of a batch, with cuts from about
 * `seed` rows; queries with too many slots and void ones are listed, and
 * counted where the host sees it.  Half copies of queries it makes itself, and
 * free places where rows are the first.  Only what fits.
 */
extern bool gv_gpu_exact_few_fits(const GvExactSpace *space,
								  const GvExactRows *rows,
								  const GvExactQueries *queries,
								  const GvExactWork *work, int64_t seed);
extern GvStatus gv_gpu_exact_few(const GvExactFew *few, int nsms, int64_t seed,
								 cudaStream_t stream);

#endif							/* GV_FEW_H */
