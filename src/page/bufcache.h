/*
 * bufcache.h
 *		In which shared buffers a backend found pages lately (bufcache.c).
 */
#ifndef IVFPQ_BUFCACHE_H
#define IVFPQ_BUFCACHE_H

#include "storage/block.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#define IVFPQ_FETCH_BYTES	64	/* what a processor fetches at once */

/* Pin a page of the main fork that exists: ReadBufferExtended, but faster. */
extern Buffer IvfpqBufHintRead(Relation rel, BlockNumber blkno,
							   BufferAccessStrategy strategy);

/*
 * The same where a look tells that it still is where it was; else, and where
 * that is not known, InvalidBuffer.
 */
extern Buffer IvfpqBufHintPin(Relation rel, BlockNumber blkno);

/*
 * The page will soon be pinned, and some bytes of it from an offset on looked
 * at: have the processor fetch these.  Returns where the page was the last
 * time, for more to be fetched and nothing else; NULL, without effect, where
 * that is not known.  Never waits.
 */
extern const char *IvfpqBufHintFetch(Relation rel, BlockNumber blkno, Size offset,
									 Size bytes);

/* Have the processor fetch what lies from one place to another. */
static inline void
IvfpqFetch(const char *from, const char *end)
{
	for (; from < end; from += IVFPQ_FETCH_BYTES)
		__builtin_prefetch(from, 0, 2);
}

/* ----
 * Pages asked for before they are read, so that the disk works on several
 * at once.
 *
 * A caller that knows which pages it will read says so, and names each page
 * just before it reads it as usual.  Nothing is asked for while all pages that
 * were read lately lay in shared buffers, so it costs next to nothing there.
 */

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

#endif							/* IVFPQ_BUFCACHE_H */
