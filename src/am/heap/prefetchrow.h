/*
 * prefetchrow.h
 *		Rows of a table on their way into the processor's cache before they are
 *		reranked (prefetchrow.c).
 */
#ifndef IVFPQ_PREFETCHROW_H
#define IVFPQ_PREFETCHROW_H

#include "storage/bufmgr.h"
#include "utils/relcache.h"

#define IVFPQ_HELD_PAGES	8	/* pinned before they are read, at most */

typedef struct IvfpqPrefetchRow
{
	Relation	heap;
	const uint64 *ids;			/* [n] the caller's, in the order of reading */
	int64		n;
	int64		next;			/* to be read */
	Buffer		held[IVFPQ_HELD_PAGES]; /* of ids[i], i >= next, at i modulo
										 * that many */
} IvfpqPrefetchRow;

/*
 * Rows of a heap, of ascending ids, will be read.  Until IvfpqPrefetchRowEnd
 * ids must stay as they are, and a few pages are pinned.
 */
extern void IvfpqPrefetchRowBegin(IvfpqPrefetchRow *rows, Relation heap,
								  const uint64 *ids, int64 n);

/*
 * A row is read now: its page, pinned for the caller, or InvalidBuffer where
 * that is not known.
 */
extern Buffer IvfpqPrefetchRowTake(IvfpqPrefetchRow *rows, uint64 id);

/* No more rows are read. */
extern void IvfpqPrefetchRowEnd(IvfpqPrefetchRow *rows);

#endif							/* IVFPQ_PREFETCHROW_H */
