/*
 * page.h
 *		The pages of an index: the only code that reads and changes them.
 *
 * Pages know lists, blocks and TIDs; they never know a distance.  Every
 * change of a page is one generic WAL record of at most four buffers, except
 * during a build, which no other backend sees and which is logged whole at its
 * end.  README draws every page and states the lock order:
 *		metapage -> directory -> slab, refine and pending pages
 *
 * Read in this order: format.h and layout.c, what stands where; page.c and
 * metapage.c, pages of any kind; listwrite.c, listwrite.c and list/, a list's blocks;
 * refinepage.c, refine records; pending.c, pending.c and pending.c, rows that no list
 * has yet; listwrite.c and array.c, what a build writes; list/rewrite.c,
 * pending.c and pending.c, VACUUM; buffer/ has what all of these ask of
 * PostgreSQL's buffers, check/ looks for damage.
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

/* sort.c: of uint64, among them TIDs as numbers (IvfpqTidToId) */
extern int	IvfpqCompareNumbers(const void *a, const void *b);
extern void IvfpqSortNumbers(uint64 *numbers, Size n);
extern void IvfpqSortBits(uint64 *numbers, uint64 *scratch, int64 n, int bit);

/* page.c: pages of any kind */
extern void IvfpqPageInit(Page page, IvfpqPageKind kind);
extern Buffer IvfpqReadPage(Relation index, BlockNumber blkno, int lockmode,
							IvfpqPageKind kind, BufferAccessStrategy strategy);
extern bool IvfpqPageIs(Page page, IvfpqPageKind kind);
extern bool IvfpqPageIsTrained(Page page);
extern void IvfpqCorrupted(Relation index, BlockNumber blkno,
						   const char *fmt,...)
			__attribute__((format(printf, 3, 4), noreturn));
extern Buffer IvfpqExtend(Relation index);
extern Buffer IvfpqGetFreePage(Relation index);
extern void IvfpqFreePage(Relation index, Buffer buf);
extern BlockNumber IvfpqReserve(Relation index, BlockNumber npages,
								bool shared);
extern void IvfpqFillPage(Relation index, BlockNumber blkno, Page page,
						  bool log);
extern void IvfpqPutPage(Relation index, BlockNumber blkno, Page page,
						 bool shared);
extern bool IvfpqBlockExists(Relation index, BlockNumber blkno);

/* metapage.c: the metapage */
extern void IvfpqMetaInit(IvfpqMetaData *meta, int metric, int dims,
						  const IvfpqKeyForm *keys);
extern void IvfpqMetaCreate(Relation index, ForkNumber fork,
							const IvfpqMetaData *meta);
extern void IvfpqMetaRewrite(Relation index, const IvfpqMetaData *meta);
extern void IvfpqMetaRead(Relation index, IvfpqMetaData *meta);
extern bool IvfpqMetaCalibrate(Relation index, const IvfpqMetaData *meta);
extern void IvfpqMetaAdvised(Relation index, int64 rows);
extern BlockNumber IvfpqMetaPlace(IvfpqMetaData *meta, BlockNumber first);
extern BlockNumber IvfpqModelPages(const IvfpqMetaData *meta);
extern bool IvfpqIsFixedPage(const IvfpqMetaData *meta, BlockNumber blkno);
extern bool IvfpqIsOutdated(Relation index);
extern bool IvfpqMetaHasKeys(const IvfpqMetaData *meta,
							 const IvfpqKeyForm *keys);
extern bool IvfpqMetaIsInRange(const IvfpqMetaData *meta);
extern IvfpqMetaData *IvfpqMetaGet(Relation index, Page page);

/* metapage.c: where lists begin */
extern BlockNumber IvfpqDirectoryPage(const IvfpqMetaData *meta, uint32 list);
extern IvfpqDirEntry *IvfpqDirEntryGet(Page page, uint32 list);
extern void IvfpqDirEntryRead(Relation index, const IvfpqMetaData *meta,
							  uint32 list, IvfpqDirEntry *entry);
extern void IvfpqDirEntriesRead(Relation index, const IvfpqMetaData *meta,
								const uint64 *lists, int n,
								IvfpqDirEntry *entries);

/* metapage.c: which version the directory is */
extern BlockNumber IvfpqDirectoryPages(const IvfpqMetaData *meta);
extern uint64 IvfpqDirectoryVersion(Relation index,
									const IvfpqMetaData *meta);

/* listwrite.c: appending to lists */
extern void IvfpqListAppend(Relation index, const IvfpqMetaData *meta,
							uint32 list, const IvfpqPosting *posting,
							const IvfpqPendingPlace *pending);

/* listwrite.c: slots and blocks on slab pages */
extern IvfpqSlotHeader *IvfpqSlabSlot(Page page, const IvfpqLayout *layout,
									  uint32 slot);
extern char *IvfpqSlabBody(IvfpqSlotHeader *slot);

/*
 * A block's pages while they are changed: exclusively locked, part by part.
 * Every part is on a page of its own, so nothing is locked twice.
 */
typedef struct IvfpqBlockPages
{
	int			nparts;
	Buffer		buffers[IVFPQ_MAX_PARTS];
	uint32		slots[IVFPQ_MAX_PARTS];
	bool		init[IVFPQ_MAX_PARTS];	/* page must be made a slab first */
} IvfpqBlockPages;


/* pending.c: reclaims pages that a crash during training left unused */
typedef struct IvfpqReclaim
{
	Relation	index;
	bool		trained;
	BlockNumber nblocks;		/* of the index when reclaiming began */
	uint8	   *listed;			/* a bit for every page of the pending list */
	uint64		last_seq;		/* of its last page */
} IvfpqReclaim;

extern void IvfpqReclaimBegin(IvfpqReclaim *reclaim, Relation index);
extern void IvfpqReclaimPage(IvfpqReclaim *reclaim, BlockNumber blkno,
							 BufferAccessStrategy strategy);
extern void IvfpqReclaimEnd(IvfpqReclaim *reclaim);
extern void IvfpqReclaimUntrained(Relation index,
								  BufferAccessStrategy strategy);

/*
 * listwrite.c: writing lists and the directory.  Pages are filled in memory
 * and put to blocks reserved for them.
 */
typedef struct IvfpqWriter
{
	Relation	index;
	bool		shared;			/* others use the index meanwhile */
	IvfpqLayout layout;
	struct
	{
		BlockNumber next;		/* page to be filled next */
		BlockNumber end;		/* page behind the last */
	}			reserved[2];	/* pages to fill, and those after them */
	BlockNumber nleft;			/* pages that will be reserved later */
	BlockNumber slab_blkno;		/* where `slab` belongs; invalid = no page */
	char	   *slab;			/* [BLCKSZ] page of slots being filled */
	uint32		slot;			/* next free slot of it */
	char	   *body;			/* [nparts][part_bytes] */
	uint32		secondary;		/* bit i: posting i is secondary */
} IvfpqWriter;

extern void IvfpqWriterInit(IvfpqWriter *writer, Relation index,
							const IvfpqMetaData *meta, const uint32 *counts,
							int nlists, bool shared);
extern void IvfpqWriterList(IvfpqWriter *writer, uint32 list, uint32 nitems,
							void (*next) (void *arg, IvfpqPosting *posting),
							void *arg, IvfpqDirEntry *entry);
extern void IvfpqWriterFinish(IvfpqWriter *writer);
extern void IvfpqDirectoryWrite(Relation index, const IvfpqMetaData *meta,
								const IvfpqDirEntry *entries, bool shared);
extern void IvfpqLogBuild(Relation index, BlockNumber first,
						  BlockNumber end);

#endif							/* IVFPQ_PAGE_H */
