/*
 * gv_exactset.h
 *		A batch of rows against all queries (batch.cu), and how sets take rows
 *		(exactset.cu).
 *
 * Read filter/gv_exact.h first: it has the steps in order; then batch.cu,
 * which says which way queries go, exactset.cu, which is behind gv_set.h, and
 * exactlists.cu, listwork.cu and units.cu, where only near lists are searched.
 */
#ifndef GV_EXACTSET_H
#define GV_EXACTSET_H

#include "gpu/exact/filter/gv_exact.h"

/*
 * batch.cu: the rows of a batch, after those that work->seen counts, which the
 * caller raises; the first batch comes with half copies of queries, of which
 * nothing is found before.
 */
extern GvStatus gv_gpu_exact_search(GvExactWork *work,
									const GvExactSpace *space,
									const GvExactRows *rows,
									const GvExactQueries *queries,
									const GvStop *stop);

/*
 * For units of units.cu, rows that are in an order, padded to
 * GV_EXACT_ALIGN, and queries by a list, as many at once as _part_most says.
 * _part: launched, not waited for; queries that need another way go to lists.
 * _others: these, until it is over.
 */
extern int64_t gv_gpu_exact_part_most(const GvExactWork *work,
									  const GvExactQueries *queries);
extern GvStatus gv_gpu_exact_part(GvExactWork *work,
								  const GvExactSpace *space,
								  const GvExactRows *rows,
								  const GvExactQueries *queries,
								  const GvExactPart *part,
								  const GvExactLists *lists);
extern GvStatus gv_gpu_exact_others(GvExactWork *work,
									const GvExactSpace *space,
									const GvExactRows *rows,
									const GvExactQueries *queries,
									const GvExactLists *lists,
									const uint32_t counts[2],
									const GvStop *stop);

/* exactset.cu: bytes, a whole number of slots, and how they are taken */
extern int64_t gv_gpu_exact_padded(int64_t n);
extern int64_t gv_gpu_exact_stride(int64_t n);

#ifdef GV_TEST_BUILD
/* How many queries so far went by the matrix, first rows apart, and slowly. */
extern "C" void gv_gpu_exact_ways(int64_t ways[2]);
#endif

#endif							/* GV_EXACTSET_H */
