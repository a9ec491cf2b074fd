/*
 * pending.h
 *		The pending list: rows that no list has yet.
 */
#ifndef IVFPQ_PENDING_H
#define IVFPQ_PENDING_H

#include "page/page.h"

/*
 * The part of the pending list that training or a compaction reads.  Pages
 * from head up to the one before tail get no more rows, because new rows are
 * appended to the tail or to pages after it.
 */
typedef struct IvfpqFrozen
{
	BlockNumber head;
	uint64		head_seq;
	BlockNumber tail;			/* first page after the frozen part */
	uint64		tail_seq;
} IvfpqFrozen;

/* Reading the list, page by page. */
typedef struct IvfpqPendingReader
{
	Relation	index;
	BlockNumber next;			/* page to read next */
	uint64		next_seq;		/* its expected seq */
	bool		restarted;		/* set when TIDs may come twice; the caller
								 * clears it */
	uint64		restarted_at;	/* head's seq when last restarted; 0 = never */
	uint64		build_id;		/* of the index then */
	IvfpqPendingPlace place;	/* where `tids` come from */
	XLogRecPtr	lsn;			/* of that page then */
	bool		mismatched;		/* IVFPQ_PENDING_MISMATCHED of that page */
	ItemPointerData *tids;		/* [IVFPQ_PENDING_PER_PAGE] of one page */
} IvfpqPendingReader;

extern void IvfpqPendingOpen(IvfpqPendingReader *reader, Relation index,
							 const IvfpqMetaData *meta);
extern bool IvfpqPendingNext(IvfpqPendingReader *reader, int *count);
extern void IvfpqPendingClose(IvfpqPendingReader *reader);
extern bool IvfpqPendingMayLeave(Relation index, const IvfpqMetaData *meta);
extern int64 IvfpqPendingEstimate(Relation index);

/* Inserts: rows become pending, and decide on dimensions. */
extern int	IvfpqPendingSettleDims(Relation index, int dims);
extern bool IvfpqPendingFreeDims(Relation index,
								 const IvfpqPendingReader *last, int count);
extern int	IvfpqPendingAppend(Relation index, ItemPointer tid, int dims);

/* Training and flushing: rows move from the pending list to lists. */
extern bool IvfpqPendingFreeze(Relation index, IvfpqFrozen *frozen,
							   bool renumber);
extern void IvfpqPendingKeep(Relation index, const IvfpqFrozen *frozen,
							 const ItemPointerData *tids, int64 ntids,
							 IvfpqMetaData *meta);
extern void IvfpqPendingPublish(Relation index, const IvfpqMetaData *meta);
extern void IvfpqPendingFree(Relation index, const IvfpqFrozen *frozen);
extern Buffer IvfpqPendingRemove(Relation index,
								 const IvfpqPendingPlace *place,
								 const ItemPointerData *tid,
								 GenericXLogState *state);
extern void IvfpqPendingSetMismatched(Relation index,
									  const IvfpqPendingPlace *place,
									  int count);

/* VACUUM: dead rows leave, and the list loses its holes. */
extern int64 IvfpqPendingVacuum(Relation index,
								IndexBulkDeleteCallback callback,
								void *callback_state, int64 *nleft);
extern int64 IvfpqPendingTrim(Relation index);
extern void IvfpqPendingCompact(Relation index);

/* VACUUM: reclaiming pages that a crash during training left unused. */
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

#endif							/* IVFPQ_PENDING_H */
