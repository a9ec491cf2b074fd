/*
 * page.h
 *		Pages of any kind.
 *
 * src/page is the only code that reads and changes the pages of an index.  It
 * deals with lists, blocks and TIDs, but not with distances.  Each change of a
 * page is one generic WAL record of at most four buffers, or a whole page that
 * is WAL-logged while no link leads to it.  No other backend sees a build,
 * which is logged at its end.  README draws the pages, and states the order in
 * which pages are locked.
 */
#ifndef IVFPQ_PAGE_H
#define IVFPQ_PAGE_H

#include "access/genam.h"
#include "access/generic_xlog.h"
#include "access/transam.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "page/layout.h"
#include "page/sort.h"

/* The place of a pending row. */
typedef struct IvfpqPendingPlace
{
	BlockNumber page;
	uint64		seq;			/* sequence number of that page */
} IvfpqPendingPlace;

/*
 * page.c: functions that return a buffer return it pinned, and locked as their
 * comments say; the caller releases both.  Damage raises an error.
 */
extern void IvfpqPageInit(Page page, IvfpqPageKind kind);
extern void IvfpqTrainedPageInit(Page page, IvfpqPageKind kind,
								 uint32 training);
extern bool IvfpqPageIs(Page page, IvfpqPageKind kind);
extern bool IvfpqPageIsFree(Page page);
extern int	IvfpqPageTraining(Page page, uint32 training);
extern bool IvfpqPageIsTrained(Page page);
extern void IvfpqCorrupted(Relation index, BlockNumber blkno,
						   const char *fmt,...)
			__attribute__((format(printf, 3, 4), noreturn));
extern bool IvfpqBlockExists(Relation index, BlockNumber blkno);
extern Buffer IvfpqReadPage(Relation index, BlockNumber blkno, int lockmode,
							IvfpqPageKind kind, BufferAccessStrategy strategy);

/* single pages, which are exclusively locked */
extern Buffer IvfpqGetFreePage(Relation index);
extern void IvfpqFreePage(Relation index, Buffer buf);
extern void IvfpqLogReuse(Relation index, FullTransactionId xid);

/* pages that builds and training fill; the caller holds no lock */
extern BlockNumber IvfpqTakeFreePage(Relation index);
extern BlockNumber IvfpqTakeRun(Relation index, BlockNumber npages);
extern BlockNumber IvfpqReserve(Relation index, BlockNumber npages,
								bool shared);
extern void IvfpqFillPage(Relation index, BlockNumber blkno, Page page,
						  bool log);
extern void IvfpqPutPage(Relation index, BlockNumber blkno, Page page,
						 bool shared);

#endif							/* IVFPQ_PAGE_H */
