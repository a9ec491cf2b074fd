/*
 * bufcache.h
 *		Finding pages fast, and prefetching them before they are needed.
 *
 * Before a page can be used, it must be read from a file if no buffer holds it
 * (IvfpqPrefetch), its buffer must be found (IvfpqBufHintRead), and its bytes
 * must come into the processor's cache (IvfpqBufHintFetch).  These functions
 * begin the steps early or make them fast.
 */
#ifndef IVFPQ_BUFCACHE_H
#define IVFPQ_BUFCACHE_H

#include "storage/block.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#define IVFPQ_FETCH_BYTES	64	/* bytes of a cache line */

/*
 * Each backend has a table of the buffers in which it lately found pages of
 * the main fork.  These functions use that table.
 *
 * IvfpqBufHintRead does what ReadBufferExtended does, but faster.  It returns
 * the buffer of a page, which must exist; the buffer is pinned and not locked.
 *
 * IvfpqBufHintPin does the same, but only if the page is still in the buffer
 * that the table has for it, and the buffer's usage count is at its maximum.
 * Otherwise it returns InvalidBuffer.  It never reads a page from a file.
 *
 * IvfpqBufHintFetch prefetches `bytes` bytes of a page, from `offset` on, into
 * the processor's cache, for a caller that will soon pin the page and read the
 * bytes.  It returns the address that the page had the last time, so that the
 * caller can prefetch more of the page.  The caller must not read at this
 * address, because the buffer may hold another page by then.  If the table has
 * no buffer for the page, the function prefetches nothing and returns NULL.
 * It never waits.  IvfpqBufHintSeek prefetches the table's entry for that.
 */
extern Buffer IvfpqBufHintRead(Relation rel, BlockNumber blkno,
							   BufferAccessStrategy strategy);
extern Buffer IvfpqBufHintPin(Relation rel, BlockNumber blkno);
extern void IvfpqBufHintSeek(Relation rel, BlockNumber blkno);
extern const char *IvfpqBufHintFetch(Relation rel, BlockNumber blkno, Size offset,
									 Size bytes);

/* Prefetches the bytes from `from` up to `end` into the second-level cache. */
static inline void
IvfpqFetch(const char *from, const char *end)
{
	for (; from < end; from += IVFPQ_FETCH_BYTES)
		__builtin_prefetch(from, 0, 2);
}

/*
 * Prefetching of pages from files.
 *
 * A caller that knows which pages it will read passes them to
 * IvfpqPrefetchBegin.  It calls IvfpqPrefetchTo with each page just before it
 * reads that page as usual, and IvfpqPrefetchEnd at the end.  Then the disk
 * reads several of the next pages at the same time.  As long as the pages that
 * were read lately were all in shared buffers, nothing is prefetched, and a
 * call costs almost nothing.  These functions take no lock or pin.
 */
typedef struct IvfpqPrefetch
{
	Relation	rel;
	const uint64 *numbers;		/* [n] caller's array, in reading order */
	int64		n;
	int			shift;			/* the block of a page is number >> shift */
	int64		next;			/* index of first number after current page */
	int64		asked;			/* first number whose page is not prefetched */
	int			count;			/* number of pages between next and asked */
	int			most;			/* limit of count; -1 = not looked up yet */
	BlockNumber current;		/* page that is being read */
	BlockNumber nblocks;		/* rel has at least this many blocks */
	int64		had_read;		/* result of the last IvfpqCountReads */
} IvfpqPrefetch;

extern void IvfpqPrefetchBegin(IvfpqPrefetch *prefetch, Relation rel,
							   const uint64 *numbers, int64 n, int shift);
extern void IvfpqPrefetchTo(IvfpqPrefetch *prefetch, BlockNumber blkno);
extern void IvfpqPrefetchEnd(IvfpqPrefetch *prefetch);

/*
 * These functions tell callers that read pages in other ways whether
 * prefetching helps.
 */
extern int64 IvfpqCountReads(void);
extern bool IvfpqPrefetchNotice(Relation rel, int64 *had_read);
extern bool IvfpqPrefetchHelps(Relation rel);

#endif							/* IVFPQ_BUFCACHE_H */
