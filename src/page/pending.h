/*
 * pending.h
 *		The pending list: rows that no list has yet.
 */
#ifndef IVFPQ_PENDING_H
#define IVFPQ_PENDING_H

#include "page/page.h"

/*
 * pending.c, pending.c: rows without a list.  Freezing the pending list ends the
 * part that training reads: pages from head up to tail get no more rows,
 * because new ones are appended behind.
 */
typedef struct IvfpqFrozen
{
	BlockNumber head;
	uint64		head_seq;
	BlockNumber tail;			/* first page behind the frozen part */
	uint64		tail_seq;
} IvfpqFrozen;

typedef struct IvfpqPendingReader
{
	Relation	index;
	BlockNumber next;			/* page to read next */
	uint64		next_seq;		/* its expected seq */
	bool		restarted;		/* set when TIDs may come twice; yours to
								 * clear */
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
extern int	IvfpqPendingAppend(Relation index, ItemPointer tid, int dims);
extern int	IvfpqPendingSettleDims(Relation index, int dims);
extern bool IvfpqPendingFreeDims(Relation index,
								 const IvfpqPendingReader *last, int count);
extern int64 IvfpqPendingEstimate(Relation index);
extern int64 IvfpqPendingTrim(Relation index);
extern int64 IvfpqPendingVacuum(Relation index,
								IndexBulkDeleteCallback callback,
								void *callback_state, int64 *nleft);

/* pending.c: rows on their way from the pending list to lists */
extern bool IvfpqPendingFreeze(Relation index, IvfpqFrozen *frozen,
							   bool renumber);
extern void IvfpqPendingKeep(Relation index, const IvfpqFrozen *frozen,
							 const ItemPointerData *tids, int64 ntids,
							 IvfpqMetaData *meta);
extern void IvfpqPendingPublish(Relation index, const IvfpqMetaData *meta);
extern void IvfpqPendingFree(Relation index, const IvfpqFrozen *frozen);
extern void IvfpqPendingSetMismatched(Relation index,
									  const IvfpqPendingPlace *place,
									  int count);
extern Buffer IvfpqPendingRemove(Relation index,
								 const IvfpqPendingPlace *place,
								 const ItemPointerData *tid,
								 GenericXLogState *state);

/* pending.c: a pending list without the holes that VACUUM made */
extern void IvfpqPendingCompact(Relation index);

#endif							/* IVFPQ_PENDING_H */
