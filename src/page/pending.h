/*
 * pending.h
 *		The pending list: rows that no list has yet.
 */
#ifndef IVFPQ_PENDING_H
#define IVFPQ_PENDING_H

#include "page/page.h"

/*
 * The frozen part of the pending list, which training or a compaction reads.
 * The pages from `head` to the page before `tail` get no more rows, because
 * new rows are appended to `tail` or to pages after it.
 */
typedef struct IvfpqFrozen
{
	BlockNumber head;
	uint64		head_seq;
	BlockNumber tail;			/* first page after the frozen part */
	uint64		tail_seq;
	uint64		least_seq;		/* new pages may have numbers from this one to
								 * tail_seq - 1 */
} IvfpqFrozen;

/* State of reading the pending list, page by page. */
typedef struct IvfpqPendingReader
{
	Relation	index;
	BlockNumber next;			/* page to read next */
	uint64		next_seq;		/* sequence number that this page must have */
	bool		restarted;		/* reading was restarted, so TIDs may come
								 * twice; the caller resets this flag */
	uint64		restarted_at;	/* head's seq at the last restart; 0 = never */
	uint64		build_id;		/* build_id when reading began or restarted */
	IvfpqPendingPlace place;	/* page from which `tids` come */
	XLogRecPtr	lsn;			/* LSN of that page when it was copied */
	bool		mismatched;		/* that page is marked as mismatched */
	ItemPointerData *tids;		/* [IVFPQ_PENDING_PER_PAGE] TIDs of one page */
} IvfpqPendingReader;

extern void IvfpqPendingOpen(IvfpqPendingReader *reader, Relation index,
							 const IvfpqMetaData *meta);
extern bool IvfpqPendingNext(IvfpqPendingReader *reader, int *count);
extern void IvfpqPendingClose(IvfpqPendingReader *reader);
extern bool IvfpqPendingWasRead(Relation index, const IvfpqMetaData *meta);
extern bool IvfpqPendingMayLeave(Relation index, const IvfpqMetaData *meta);
extern int64 IvfpqPendingEstimate(Relation index);

/* Inserts: rows become pending, and determine the dimensions. */
extern int	IvfpqPendingSettleDims(Relation index, int dims);
extern bool IvfpqPendingFreeDims(Relation index,
								 const IvfpqPendingReader *last, int count);
extern int	IvfpqPendingAppend(Relation index, ItemPointer tid, int dims);

/* Training and flushing: rows move from the pending list to lists. */
extern bool IvfpqPendingFreeze(Relation index, IvfpqFrozen *frozen,
							   bool renumber, int64 more);
extern void IvfpqPendingKeep(Relation index, const IvfpqFrozen *frozen,
							 const ItemPointerData *tids, int64 ntids,
							 IvfpqMetaData *meta);
extern void IvfpqPendingPublish(Relation index, const IvfpqMetaData *old,
								const IvfpqMetaData *trained);
extern void IvfpqPendingFree(Relation index, const IvfpqFrozen *frozen);
extern Buffer IvfpqPendingRemove(Relation index,
								 const IvfpqPendingPlace *place,
								 const ItemPointerData *tid,
								 GenericXLogState *state);
extern void IvfpqPendingSetMismatched(Relation index,
									  const IvfpqPendingPlace *place,
									  int count);

/* VACUUM: removing dead rows, and compacting the list. */
extern int64 IvfpqPendingVacuum(Relation index,
								IndexBulkDeleteCallback callback,
								void *callback_state, int64 *nleft);
extern int64 IvfpqPendingTrim(Relation index);
extern void IvfpqPendingCompact(Relation index);

/* VACUUM: reclaiming pages that training left unused. */
typedef struct IvfpqReclaim
{
	Relation	index;
	IvfpqMetaData meta;			/* when reclaiming began */
	bool		retired;		/* pages of earlier trainings may be freed */
	BlockNumber nblocks;		/* size of the index when reclaiming began */
	uint8	   *listed;			/* [nblocks] bits: the page is in the list */
	uint64		last_seq;		/* sequence number of the list's last page */
} IvfpqReclaim;

extern void IvfpqReclaimBegin(IvfpqReclaim *reclaim, Relation index,
							  bool retired);
extern void IvfpqReclaimPage(IvfpqReclaim *reclaim, BlockNumber blkno,
							 BufferAccessStrategy strategy);
extern void IvfpqReclaimEnd(IvfpqReclaim *reclaim);
extern void IvfpqReclaimLater(Relation index);
extern void IvfpqReclaimAll(Relation index, bool retired,
							BufferAccessStrategy strategy);

#endif							/* IVFPQ_PENDING_H */
