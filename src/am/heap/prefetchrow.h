/*
 * prefetchrow.h
 *		Rows of a table on their way into the processor's cache before they are
 *		measured (prefetchrow.c).
 */
#ifndef IVFPQ_PREFETCHROW_H
#define IVFPQ_PREFETCHROW_H

#include "storage/bufmgr.h"
#include "utils/relcache.h"

#define IVFPQ_HELD_PAGES	4	/* pinned ahead */

typedef struct IvfpqComing
{
	Relation	heap;
	const uint64 *ids;			/* [n] the caller's, in the order of reading */
	int64		n;
	int64		next;			/* to be read */
	Buffer		held[IVFPQ_HELD_PAGES]; /* of ids[i], i >= next, at i modulo
										 * that many */
} IvfpqComing;

/*
 * Rows of a heap, of ascending ids, will be read; ids must stay as they are until IvfpqComingEnd,
 * and pages are pinned until then.
 */
extern void IvfpqComingBegin(IvfpqComing *coming, Relation heap,
							 const uint64 *ids, int64 n);

/*
 * A row is read now: its page, pinned for the caller, or InvalidBuffer where
 * that is not known.
 */
extern Buffer IvfpqComingTake(IvfpqComing *coming, uint64 id);

/* No more rows are read. */
extern void IvfpqComingEnd(IvfpqComing *coming);

#endif							/* IVFPQ_PREFETCHROW_H */
