/*
 * bufcache.h
 *		Finding pages fast, and having them read before they are needed.
 *
 * Three things come before a page is used: its bytes into the processor's
 * cache (IvfpqBufHintFetch), its buffer (IvfpqBufHintRead), and if it is in no
 * buffer its block from a file (IvfpqPrefetch).
 */
#ifndef IVFPQ_BUFCACHE_H
#define IVFPQ_BUFCACHE_H

#include "storage/block.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#define IVFPQ_FETCH_BYTES	64	/* of a cache line */

/*
 * Buffers in which this backend found pages of the main fork lately.
 *
 * IvfpqBufHintRead does what ReadBufferExtended does, but faster: it returns
 * the buffer of a page that exists, pinned and not locked.
 *
 * IvfpqBufHintPin returns that only if the page is where it was the last time,
 * and InvalidBuffer if it is not or that is not known.  It never reads a page.
 *
 * IvfpqBufHintFetch prefetches bytes of a page, from an offset on, which will
 * be looked at when the page is pinned soon.  It returns where the page was
 * the last time, for more of it to be prefetched: nothing may be read there,
 * because the buffer may hold another page.  It returns NULL, and prefetches
 * nothing, if that is not known.  It never waits.
 */
extern Buffer IvfpqBufHintRead(Relation rel, BlockNumber blkno,
							   BufferAccessStrategy strategy);
extern Buffer IvfpqBufHintPin(Relation rel, BlockNumber blkno);
extern const char *IvfpqBufHintFetch(Relation rel, BlockNumber blkno, Size offset,
									 Size bytes);

/* Prefetches the bytes from one address to another into the second cache. */
static inline void
IvfpqFetch(const char *from, const char *end)
{
	for (; from < end; from += IVFPQ_FETCH_BYTES)
		__builtin_prefetch(from, 0, 2);
}

/*
 * Pages on their way from files.
 *
 * A caller that knows which pages it will read passes them to
 * IvfpqPrefetchBegin, calls IvfpqPrefetchTo with each page just before it
 * reads that page as usual, and IvfpqPrefetchEnd at the end.  Then the disk
 * works on several of the next pages at once.  While all pages that were read
 * lately lay in shared buffers nothing is prefetched, and a call costs next to
 * nothing.  No lock or pin is taken.
 */
typedef struct IvfpqPrefetch
{
	Relation	rel;
	const uint64 *numbers;		/* [n] the caller's, in the order of reading */
	int64		n;
	int			shift;			/* a page's block is number >> shift */
	int64		next;			/* first number of a page after the current */
	int64		asked;			/* first number of a page not prefetched */
	int			count;			/* pages of the numbers from next to asked */
	int			most;			/* pages at most; -1 = not looked up */
	BlockNumber current;		/* page that is being read */
	BlockNumber nblocks;		/* of rel, at least */
	int64		had_read;		/* IvfpqCountReads at the last look */
} IvfpqPrefetch;

extern void IvfpqPrefetchBegin(IvfpqPrefetch *prefetch, Relation rel,
							   const uint64 *numbers, int64 n, int shift);
extern void IvfpqPrefetchTo(IvfpqPrefetch *prefetch, BlockNumber blkno);
extern void IvfpqPrefetchEnd(IvfpqPrefetch *prefetch);

/* Whether that helps, for callers that read pages otherwise. */
extern int64 IvfpqCountReads(void);
extern void IvfpqPrefetchNotice(Relation rel, int64 *had_read);
extern bool IvfpqPrefetchHelps(Relation rel);

#endif							/* IVFPQ_BUFCACHE_H */
