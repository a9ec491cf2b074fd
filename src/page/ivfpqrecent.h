/*
 * ivfpqrecent.h
 *		In which shared buffers a backend found pages lately (ivfpqrecent.c).
 */
#ifndef IVFPQRECENT_H
#define IVFPQRECENT_H

#include "storage/bufmgr.h"
#include "utils/relcache.h"

/* Pin a page of the main fork that exists: ReadBufferExtended, but faster. */
extern Buffer IvfpqRecentRead(Relation rel, BlockNumber blkno,
							  BufferAccessStrategy strategy);

/*
 * The page will soon be read: have the processor fetch what that looks at
 * first.  Without effect where it is not known; never waits.
 */
extern void IvfpqRecentFetch(Relation rel, BlockNumber blkno);

#endif							/* IVFPQRECENT_H */
