/*
 * bufhint.h
 *		In which shared buffers a backend found pages lately (bufhint.c).
 */
#ifndef IVFPQ_BUFHINT_H
#define IVFPQ_BUFHINT_H

#include "storage/bufmgr.h"
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

#endif							/* IVFPQ_BUFHINT_H */
