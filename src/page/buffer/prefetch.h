/*
 * prefetch.h
 *		Pages asked for before they are read, so that the disk works on several
 *		at once.
 *
 * A caller that knows which pages it will read says so, and names each page
 * just before it reads it as usual.  Nothing is asked for while all pages that
 * were read lately lay in shared buffers, so it costs next to nothing there.
 */
#ifndef IVFPQ_PREFETCH_H
#define IVFPQ_PREFETCH_H

#include "storage/block.h"
#include "utils/rel.h"

typedef struct IvfpqPrefetch
{
	Relation	rel;
	const uint64 *numbers;		/* [n] the caller's, in the order of reading */
	int64		n;
	int			shift;			/* a page's block is number >> shift */
	int64		next;			/* first number behind the page read now */
	int64		asked;			/* first number whose page is not asked for */
	int			count;			/* pages of the numbers from next to asked */
	int			most;			/* pages at most; -1: not looked up yet */
	BlockNumber current;		/* page read now */
	BlockNumber nblocks;		/* of rel, as far as we looked */
	int64		had_read;		/* what IvfpqCountReads said */
} IvfpqPrefetch;

extern void IvfpqPrefetchBegin(IvfpqPrefetch *prefetch, Relation rel,
							   const uint64 *numbers, int64 n, int shift);
extern void IvfpqPrefetchTo(IvfpqPrefetch *prefetch, BlockNumber blkno);
extern void IvfpqPrefetchEnd(IvfpqPrefetch *prefetch);
extern int64 IvfpqCountReads(void);
extern void IvfpqPrefetchNotice(Relation rel, int64 *had_read);
extern bool IvfpqPrefetchHelps(Relation rel);

#endif							/* IVFPQ_PREFETCH_H */
