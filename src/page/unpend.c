/*
 * unpend.c
 *		Rows on their way from the pending list to inverted lists.
 *
 * Training in place: the pending list is frozen (IvfpqPendingFreeze), lists
 * are written with the frozen rows, those that have to stay pending are
 * written to a chain that leads to the new tail (IvfpqPendingKeep), and one
 * record shows both instead of the frozen pages (IvfpqPendingPublish), which
 * are then freed (IvfpqPendingFree).  Flushing removes single rows
 * (IvfpqPendingRemove).  The caller excludes VACUUM and other such callers by
 * the table's lock; rows are appended meanwhile.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/freespace.h"

#include "page/pending.h"
#include "page/stoppoint.h"

/*
 * Freezes the pending list up to its last TID: an empty tail takes what comes.
 * With renumber as many numbers as it has pages are left out before the
 * tail's.  One record: metapage, old tail, new page; none if the tail is empty
 * already and numbers do not matter.  False when there is no list.
 */
bool
IvfpqPendingFreeze(Relation index, IvfpqFrozen *frozen, bool renumber)
{
	Buffer		metabuf;
	Buffer		tailbuf;
	IvfpqMetaData *meta;
	bool		exists;

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	meta = IvfpqMetaGet(index, BufferGetPage(metabuf));
	exists = meta->pending_tail != InvalidBlockNumber;
	if (exists)
	{
		tailbuf = IvfpqReadPage(index, meta->pending_tail,
								BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_PENDING,
								NULL);
		frozen->head = meta->pending_head;
		frozen->head_seq = meta->pending_head_seq;
		frozen->tail_seq = IvfpqPendingGet(BufferGetPage(tailbuf))->seq;
		/* numbers are reckoned from these */
		if (frozen->head == meta->pending_tail ?
			frozen->head_seq != frozen->tail_seq :
			frozen->head_seq >= frozen->tail_seq)
			IvfpqCorrupted(index, IVFPQ_METAPAGE,
						   "the pending list's pages do not ascend");
		if (renumber || IvfpqPendingGet(BufferGetPage(tailbuf))->count > 0)
		{
			uint64		gap = renumber ?
			frozen->tail_seq - frozen->head_seq + 1 : 0;

			IvfpqPendingAddTail(index, metabuf, tailbuf, NULL, gap);
			frozen->tail_seq += gap + 1;
		}
		frozen->tail = meta->pending_tail;
		UnlockReleaseBuffer(tailbuf);
	}
	UnlockReleaseBuffer(metabuf);
	return exists;
}

/*
 * Write TIDs to new pending pages, which lead to the tail behind the frozen
 * part and which no reader finds until *meta, whose pending head they become,
 * is published.  One record a page.  The pages take the numbers just below the
 * tail's, of which the frozen pages have at least as many.
 */
void
IvfpqPendingKeep(Relation index, const IvfpqFrozen *frozen,
				 const ItemPointerData *tids, int64 ntids,
				 IvfpqMetaData *meta)
{
	meta->pending_head = frozen->tail;
	meta->pending_head_seq = frozen->tail_seq;
	while (ntids > 0)
	{
		int			count = (int) Min(ntids, IVFPQ_PENDING_PER_PAGE);
		GenericXLogState *state;
		Buffer		buf;

		CHECK_FOR_INTERRUPTS();
		if (meta->pending_head_seq <= frozen->head_seq)
			elog(ERROR, "more rows stay pending than were");
		ntids -= count;
		buf = IvfpqGetFreePage(index);
		state = GenericXLogStart(index);
		IvfpqPendingInit(GenericXLogRegisterBuffer(state, buf,
												   GENERIC_XLOG_FULL_IMAGE),
						 meta->pending_head_seq - 1, meta->pending_head,
						 meta->pending_head_seq, tids + ntids, count);
		GenericXLogFinish(state);
		meta->pending_head = BufferGetBlockNumber(buf);
		meta->pending_head_seq--;
		UnlockReleaseBuffer(buf);
		IvfpqInjectionPoint("train: kept");
	}
}

/*
 * Turn the index into the trained one that *meta describes, all at once.  One
 * record: the metapage.  The pending tail stays what it has become since.
 */
void
IvfpqPendingPublish(Relation index, const IvfpqMetaData *trained)
{
	Buffer		metabuf;
	GenericXLogState *state;
	IvfpqMetaData *meta;
	BlockNumber tail;
	int			flags;

	metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_META, NULL);
	state = GenericXLogStart(index);
	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, metabuf, 0));
	if (meta->nlists > 0)
		elog(ERROR, "index \"%s\" was trained by someone else",
			 RelationGetRelationName(index));
	if (meta->dims != trained->dims)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("rows of index \"%s\" have had %d dimensions while it was trained, and have %d now",
						RelationGetRelationName(index), trained->dims,
						meta->dims),
				 errhint("Train it again.")));
	tail = meta->pending_tail;
	flags = meta->dims_flags;
	*meta = *trained;
	meta->pending_tail = tail;
	meta->dims_flags = flags;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(metabuf);
}

/*
 * Frees the frozen pages, which nothing leads to any more.  One record a
 * page; what a crash leaves of them, VACUUM reclaims.
 */
void
IvfpqPendingFree(Relation index, const IvfpqFrozen *frozen)
{
	BlockNumber blkno = frozen->head;
	uint64		seq = frozen->head_seq;

	while (blkno != frozen->tail)
	{
		Buffer		buf;
		IvfpqPendingHeader header;

		CHECK_FOR_INTERRUPTS();
		buf = IvfpqReadPage(index, blkno, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_PENDING, NULL);
		if (!IvfpqPendingIs(BufferGetPage(buf), seq))
			IvfpqCorrupted(index, blkno,
						   "it is not the next page of the pending list");
		header = *IvfpqPendingGet(BufferGetPage(buf));
		IvfpqFreePage(index, buf);
		UnlockReleaseBuffer(buf);
		RecordPageWithFreeSpace(index, blkno, BLCKSZ - 1);
		blkno = header.next;
		seq = header.next_seq;
		IvfpqInjectionPoint("pending: freed");
	}
	FreeSpaceMapVacuum(index);
}

/*
 * Removes the TID at `place` as part of a record: the page's last TID takes
 * its place.  Returns the page, which stays locked until the caller has
 * finished the record.
 */
Buffer
IvfpqPendingRemove(Relation index, const IvfpqPendingPlace *place,
				   const ItemPointerData *tid, GenericXLogState *state)
{
	Buffer		buf;
	IvfpqPendingHeader *header;
	ItemPointerData *tids;
	uint32		i = 0;
	Page		page;

	buf = IvfpqReadPage(index, place->page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_PENDING, NULL);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqPendingGet(page);
	tids = IvfpqPendingTids(page);
	if (!IvfpqPendingIs(page, place->seq))
		IvfpqCorrupted(index, place->page,
					   "it is not the next page of the pending list");
	while (i < header->count &&
		   memcmp(&tids[i], tid, sizeof(ItemPointerData)) != 0)
		i++;
	if (i == header->count)
		elog(ERROR, "row (%u,%u) is pending no more",
			 ItemPointerGetBlockNumberNoCheck(tid),
			 ItemPointerGetOffsetNumberNoCheck(tid));
	tids[i] = tids[--header->count];
	return buf;
}

/*
 * Note that no list can take any of the `count` rows at `place`, unless others
 * have come there since.  One record, one page.
 */
void
IvfpqPendingSetMismatched(Relation index, const IvfpqPendingPlace *place,
						  int count)
{
	GenericXLogState *state;
	Buffer		buf;
	Page		page;

	buf = IvfpqReadPage(index, place->page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_PENDING, NULL);
	page = BufferGetPage(buf);
	if (IvfpqPendingIs(page, place->seq) &&
		IvfpqPendingGet(page)->count == (uint32) count)
	{
		state = GenericXLogStart(index);
		page = GenericXLogRegisterBuffer(state, buf, 0);
		IvfpqPageSpecial(page)->flags |= IVFPQ_PENDING_MISMATCHED;
		GenericXLogFinish(state);
	}
	UnlockReleaseBuffer(buf);
}
