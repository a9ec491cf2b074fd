/*
 * page.h
 *		Pages of any kind.
 *
 * src/page is the only code that reads and changes the pages of an index.  It
 * knows lists, blocks and TIDs, but no distance.  Each change of a page is one
 * generic WAL record of at most four buffers, or a whole page that is logged
 * while nothing leads to it; a build, which no other backend sees, is logged
 * at its end.  README draws the pages and states the order of locks.
 *
 * format.h has the structs on pages, layout.h their bytes, metapage.h what is
 * found by the metapage; each further kind of page has a header of its own.
 */
#ifndef IVFPQ_PAGE_H
#define IVFPQ_PAGE_H

#include "access/genam.h"
#include "access/generic_xlog.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "page/layout.h"

/* Where a row is pending. */
typedef struct IvfpqPendingPlace
{
	BlockNumber page;
	uint64		seq;			/* of that page */
} IvfpqPendingPlace;

/*
 * page.c
 *
 * Functions that return a buffer return it pinned, and locked as they say; the
 * caller releases both.  Damage raises an error (IvfpqCorrupted).
 */
extern void IvfpqPageInit(Page page, IvfpqPageKind kind);
extern bool IvfpqPageIs(Page page, IvfpqPageKind kind);
extern bool IvfpqPageIsTrained(Page page);
extern void IvfpqCorrupted(Relation index, BlockNumber blkno,
						   const char *fmt,...)
			__attribute__((format(printf, 3, 4), noreturn));
extern bool IvfpqBlockExists(Relation index, BlockNumber blkno);
extern Buffer IvfpqReadPage(Relation index, BlockNumber blkno, int lockmode,
							IvfpqPageKind kind, BufferAccessStrategy strategy);

/* single pages, exclusively locked */
extern Buffer IvfpqExtend(Relation index);
extern Buffer IvfpqGetFreePage(Relation index);
extern void IvfpqFreePage(Relation index, Buffer buf);

/* runs of pages that builds and training fill; the caller holds no lock */
extern BlockNumber IvfpqReserve(Relation index, BlockNumber npages,
								bool shared);
extern void IvfpqFillPage(Relation index, BlockNumber blkno, Page page,
						  bool log);
extern void IvfpqPutPage(Relation index, BlockNumber blkno, Page page,
						 bool shared);

/* sort.c: uint64, among them TIDs as numbers (IvfpqTidToId) */
extern int	IvfpqCompareNumbers(const void *a, const void *b);
extern void IvfpqSortNumbers(uint64 *numbers, Size n);
extern void IvfpqSortBits(uint64 *numbers, uint64 *scratch, int64 n, int bit);

#endif							/* IVFPQ_PAGE_H */
