/*
 * prefetch.h
 *		Pages asked for before they are read, so that the disk works on several
 *		at once.
 *
 * Whoever knows which pages will be read says so, and names each page just
 * before reading it as usual.  Nothing is asked for while all pages that were
 * read lately lay in shared buffers, so it costs next to nothing there.
 */
#ifndef IVFPQ_PREFETCH_H
#define IVFPQ_PREFETCH_H

#include "storage/block.h"
#include "utils/rel.h"

typedef struct IvfpqAhead
{
	Relation	rel;
	const uint64 *numbers;		/* [n] the caller's, in the order of reading */
	int64		n;
	int			shift;			/* a page's block is number >> shift */
	int64		next;			/* first number behind the page read now */
	int64		asked;			/* first number whose page is not asked for */
	int			count;			/* pages of the numbers from next to asked */
	int			most;			/* may be so many; -1: not looked up yet */
	BlockNumber current;		/* page read now */
	BlockNumber nblocks;		/* of rel, as far as we looked */
	int64		had_read;		/* what IvfpqCountReads said */
} IvfpqAhead;

extern void IvfpqAheadBegin(IvfpqAhead *ahead, Relation rel,
							const uint64 *numbers, int64 n, int shift);
extern void IvfpqAheadTo(IvfpqAhead *ahead, BlockNumber blkno);
extern void IvfpqAheadEnd(IvfpqAhead *ahead);
extern int64 IvfpqCountReads(void);
extern void IvfpqAheadNotice(Relation rel, int64 *had_read);
extern bool IvfpqAheadHelps(Relation rel);

#endif							/* IVFPQ_PREFETCH_H */
