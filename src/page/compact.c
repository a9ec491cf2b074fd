/*
 * compact.c
 *		VACUUM writes the pending list anew when most of it is holes.
 *
 * Empty pages are given back at the head only, since a link leads to every
 * other one, and one old row would keep all pages behind it.  So the list is
 * frozen up to its tail (IvfpqPendingFreeze), its TIDs are written to new
 * pages that lead to the new tail, and one record makes these the head.
 * Readers that are in the midst of the old pages come to the new tail as well
 * or, when those are freed, start again.  The new pages have numbers that were
 * left out for them before the tail's, which no page ever had.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "page/pending.h"
#include "page/stoppoint.h"
#include "pgcompat.h"

/* Pages that a list may have beyond twice those that its TIDs need. */
#define SPARE_PAGES		2

/* The list in the making. */
typedef struct Compaction
{
	Relation	index;
	const IvfpqFrozen *frozen;
	Buffer		buf;			/* page to be filled: ours, pinned */
	uint64		seq;			/* its number */
	ItemPointerData *tids;		/* [IVFPQ_PENDING_PER_PAGE] for it */
	int			count;
	bool		mismatched;		/* all of them come from mismatched pages */
} Compaction;

/* Pages that ntids TIDs take. */
static int64
pages_needed(int64 ntids)
{
	return (ntids + IVFPQ_PENDING_PER_PAGE - 1) / IVFPQ_PENDING_PER_PAGE;
}

/* Returns whether a list of npages pages has too few TIDs. */
bool
IvfpqPendingIsSparse(int64 npages, int64 ntids)
{
	return npages > 2 * pages_needed(ntids) + SPARE_PAGES;
}

/* Returns the number of frozen TIDs. */
static int64
count_frozen(Relation index, const IvfpqFrozen *frozen)
{
	IvfpqPendingReader reader;
	int64		total = 0;
	int			count;

	IvfpqPendingOpenFrozen(&reader, index, frozen);
	while (reader.next != frozen->tail && IvfpqPendingNext(&reader, &count))
		total += count;
	IvfpqPendingClose(&reader);
	return total;
}

/*
 * A page that is ours, though it is not locked.  It is a pending page at once,
 * for a free one may be taken by who knows it from before.  One record.
 */
static Buffer
take_page(Relation index, uint64 seq)
{
	Buffer		buf = IvfpqGetFreePage(index);
	GenericXLogState *state = GenericXLogStart(index);

	IvfpqPendingInit(GenericXLogRegisterBuffer(state, buf,
											   GENERIC_XLOG_FULL_IMAGE),
					 seq, InvalidBlockNumber, 0, NULL, 0);
	GenericXLogFinish(state);
	LockBuffer(buf, BUFFER_LOCK_UNLOCK);
	return buf;
}

/* Write the page that has been gathered.  One record, one page. */
static void
write_page(Compaction *to)
{
	Relation	index = to->index;
	bool		last = to->seq + 1 == to->frozen->tail_seq;
	Buffer		next = last ? InvalidBuffer : take_page(index, to->seq + 1);
	GenericXLogState *state;
	Page		page;

	LockBuffer(to->buf, BUFFER_LOCK_EXCLUSIVE);
	if (!IvfpqPendingIs(BufferGetPage(to->buf), to->seq))
		elog(ERROR, "block %u of index \"%s\" was taken by someone else",
			 BufferGetBlockNumber(to->buf), RelationGetRelationName(index));
	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, to->buf, GENERIC_XLOG_FULL_IMAGE);
	IvfpqPendingInit(page, to->seq,
					 last ? to->frozen->tail : BufferGetBlockNumber(next),
					 to->seq + 1, to->tids, to->count);
	if (to->mismatched)
		IvfpqPageSpecial(page)->flags |= IVFPQ_PENDING_MISMATCHED;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(to->buf);
	to->buf = next;
	to->seq++;
	to->count = 0;
	to->mismatched = true;
	IvfpqInjectionPoint("compact: page");
}

/* Writes the frozen TIDs to pages numbered from to->seq on. */
static void
write_pages(Compaction *to)
{
	IvfpqPendingReader reader;
	int			count;

	IvfpqPendingOpenFrozen(&reader, to->index, to->frozen);
	while (reader.next != to->frozen->tail &&
		   IvfpqPendingNext(&reader, &count))
	{
		IvfpqVacuumDelayPoint();
		for (int i = 0; i < count; i++)
		{
			if (to->count == IVFPQ_PENDING_PER_PAGE)
				write_page(to);
			to->tids[to->count++] = reader.tids[i];
			to->mismatched &= reader.mismatched;
		}
	}
	write_page(to);
	IvfpqPendingClose(&reader);
}

/* Make another page the head of the list.  One record: the metapage. */
static void
switch_head(Relation index, BlockNumber head, uint64 head_seq)
{
	Buffer		buf;
	GenericXLogState *state;
	IvfpqMetaData *meta;

	buf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_META, NULL);
	state = GenericXLogStart(index);
	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, buf, 0));
	meta->pending_head = head;
	meta->pending_head_seq = head_seq;
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);
}

/*
 * Write the pending list anew.  The caller excludes VACUUM, training and
 * flushing by the table's lock; rows are appended meanwhile.
 */
void
IvfpqPendingCompact(Relation index)
{
	IvfpqFrozen frozen;
	Compaction	to = {.index = index, .frozen = &frozen, .mismatched = true};
	BlockNumber head;
	uint64		head_seq;
	int64		npages;

	if (!IvfpqPendingFreeze(index, &frozen, true))
		return;
	IvfpqInjectionPoint("compact: sealed");
	npages = pages_needed(count_frozen(index, &frozen));
	head = frozen.tail;
	head_seq = frozen.tail_seq - npages;
	if (npages > 0)
	{
		to.tids = palloc(IVFPQ_PENDING_PER_PAGE * sizeof(ItemPointerData));
		to.seq = head_seq;
		to.buf = take_page(index, to.seq);
		head = BufferGetBlockNumber(to.buf);
		write_pages(&to);
		pfree(to.tids);
	}
	switch_head(index, head, head_seq);
	IvfpqInjectionPoint("compact: switched");
	IvfpqPendingFree(index, &frozen);
}
