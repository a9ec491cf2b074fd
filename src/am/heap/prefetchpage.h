/*
 * prefetchpage.h
 *		Rows of a table that is read from end to end, on their way into the
 *		processor's cache (prefetchpage.c).
 */
#ifndef IVFPQ_PREFETCHPAGE_H
#define IVFPQ_PREFETCHPAGE_H

#include "storage/bufmgr.h"
#include "utils/relcache.h"

typedef struct IvfpqPrefetchPage
{
	Relation	heap;
	BlockNumber nblocks;		/* 0: nothing is fetched */
	BlockNumber at;				/* where the reader is */
	Buffer		held;			/* the page after the next, or InvalidBuffer */
} IvfpqPrefetchPage;

/* A table will be read, front to back.  Until the end a page is pinned. */
extern void IvfpqPrefetchPageBegin(IvfpqPrefetchPage *pages, Relation heap);

/* The reader has got a row of this page. */
extern void IvfpqPrefetchPageTo(IvfpqPrefetchPage *pages, BlockNumber blkno);

/* No more is read. */
extern void IvfpqPrefetchPageEnd(IvfpqPrefetchPage *pages);

#endif							/* IVFPQ_PREFETCHPAGE_H */
