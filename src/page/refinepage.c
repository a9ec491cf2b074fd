/*
 * refinepage.c
 *		Refine records: a row's vector in 8 bits a dimension or in half
 *		precision.
 *
 * A row has one refine record, in a slot whose address is in all postings of
 * the row.  An inserter writes the record before the postings.  VACUUM frees
 * the record when the row is dead, without looking at postings.  A posting may
 * therefore have the address of a slot that is free, or that the record of
 * another row has taken, but only if no snapshot sees the posting's row any
 * more.  With such a stale address a search can lose only a dead row, because
 * the search takes the row's TID from the record.  An insert that was cut
 * short leaves a record without postings.  The row is aborted, and VACUUM
 * frees the record like that of any other dead row.
 *
 * Pages with free slots form a chain, whose head the metapage names.
 * Inserters put records on the head page.  An inserter that finds the head
 * page full locks the metapage exclusively and removes the page from the
 * chain.  When VACUUM frees slots of a page that is not in the chain, it makes
 * the page the new head.
 *
 * Builds and training write the records of many rows, page by page, to an
 * index that has no records yet (IvfpqRecordBuilder).
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/freespace.h"

#include "page/bufcache.h"
#include "page/delta.h"
#include "page/injection.h"
#include "page/metapage.h"
#include "page/refinepage.h"

/* Maximum number of pages that a builder reserves at a time. */
#define MOST_RESERVED	64

/*
 * Records are prefetched into the processor's cache in groups of this many,
 * one group ahead of the group that is being copied.
 */
#define FETCHED_TOGETHER	8

IvfpqRecordHeader *
IvfpqRecordPageHeader(Page page)
{
	return (IvfpqRecordHeader *) PageGetContents(page);
}

/* Returns slot number `slot` of a refine page. */
IvfpqRecord *
IvfpqRecordGet(Page page, int code_bytes, uint32 slot)
{
	Assert(slot < (uint32) IvfpqRecordSlots(code_bytes));
	return (IvfpqRecord *) (PageGetContents(page) +
							sizeof(IvfpqRecordHeader) +
							(Size) slot * IvfpqRecordSlotBytes(code_bytes));
}

/* Initializes a refine page.  Its slots are free, because they are zero. */
static void
init_page(Page page, uint32 training)
{
	IvfpqTrainedPageInit(page, IVFPQ_KIND_REFINE, training);
	IvfpqRecordPageHeader(page)->next = InvalidBlockNumber;
}

/* Returns a free slot of the page, whose header says that there is one. */
static uint32
find_free(Relation index, BlockNumber blkno, Page page, int code_bytes)
{
	for (uint32 slot = 0; slot < (uint32) IvfpqRecordSlots(code_bytes); slot++)
	{
		const IvfpqRecord *record = IvfpqRecordGet(page, code_bytes, slot);

		if (ItemPointerGetOffsetNumberNoCheck(&record->tid) ==
			InvalidOffsetNumber)
			return slot;
	}
	IvfpqCorrupted(index, blkno, "it has no free slot, but counts %u used slots",
				   IvfpqRecordPageHeader(page)->nused);
}

/* Puts a record into a free slot, and sets *address to the slot's address. */
static void
put_record(Relation index, BlockNumber blkno, Page page, int code_bytes,
		   const IvfpqRecord *record, ItemPointer address)
{
	uint32		slot = find_free(index, blkno, page, code_bytes);

	memcpy(IvfpqRecordGet(page, code_bytes, slot), record,
		   offsetof(IvfpqRecord, codes) + code_bytes);
	IvfpqRecordPageHeader(page)->nused++;
	ItemPointerSet(address, blkno, slot + 1);
}

/*
 * Writes a row's refine record, and sets *address to the record's address.
 *
 * Inserters take a share lock on the metapage, and lock the head page of the
 * chain one after another.  The WAL record of the refine record covers the
 * head page only.  An inserter that finds the head page full, or the chain
 * empty, locks the metapage exclusively and checks again.  If the head page is
 * still full, the inserter removes it from the chain by one WAL record, which
 * covers the metapage and that page, and tries the next page.  If the chain is
 * still empty, the inserter starts it with a new page that holds the refine
 * record; this WAL record covers the metapage and the new page.
 *
 * Returns false, and writes nothing, if the index was trained again since
 * build_id was read.
 */
bool
IvfpqRecordAppend(Relation index, uint64 build_id, int code_bytes,
				  const IvfpqRecord *record, ItemPointer address)
{
	int			mode = BUFFER_LOCK_SHARE;
	bool		done = false;

	while (!done)
	{
		Buffer		metabuf;
		Buffer		buf;
		const IvfpqMetaData *now;
		BlockNumber blkno;

		CHECK_FOR_INTERRUPTS();
		metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, mode, IVFPQ_KIND_META,
								NULL);
		now = IvfpqMetaGet(index, BufferGetPage(metabuf));
		if (now->build_id != build_id)
		{
			UnlockReleaseBuffer(metabuf);
			return false;
		}
		blkno = now->refine_head;
		if (blkno != InvalidBlockNumber)
		{
			const IvfpqRecordHeader *header;
			Page		page;

			buf = IvfpqReadPage(index, blkno, BUFFER_LOCK_EXCLUSIVE,
								IVFPQ_KIND_REFINE, NULL);
			page = BufferGetPage(buf);
			header = IvfpqRecordPageHeader(page);
			if (!header->chained)
				IvfpqCorrupted(index, blkno,
							   "it is the first refine page with free slots, but is marked as having none");
			if (header->nused < IvfpqRecordSlots(code_bytes))
			{
				/* put the record on the head page */
				uint32		slot = find_free(index, blkno, page, code_bytes);
				uint16		nused = header->nused + 1;
				IvfpqPatch	patch;

				IvfpqPatchInit(&patch, buf);
				IvfpqPatchAdd(&patch, (const char *) &header->nused - page,
							  &nused, sizeof(nused));
				IvfpqPatchAdd(&patch,
							  (char *) IvfpqRecordGet(page, code_bytes, slot) - page,
							  record, offsetof(IvfpqRecord, codes) + code_bytes);
				IvfpqPatchLog(index, &patch, 1);
				ItemPointerSet(address, blkno, slot + 1);
				done = true;
			}
			else if (mode == BUFFER_LOCK_EXCLUSIVE)
			{
				/* remove the full head page from the chain */
				GenericXLogState *state = GenericXLogStart(index);
				IvfpqMetaData *meta;
				IvfpqRecordHeader *full;

				page = GenericXLogRegisterBuffer(state, metabuf, 0);
				meta = IvfpqMetaGet(index, page);
				page = GenericXLogRegisterBuffer(state, buf, 0);
				full = IvfpqRecordPageHeader(page);
				meta->refine_head = full->next;
				full->next = InvalidBlockNumber;
				full->chained = 0;
				GenericXLogFinish(state);
			}
			UnlockReleaseBuffer(buf);
		}
		else if (mode == BUFFER_LOCK_EXCLUSIVE)
		{
			/* start the empty chain with a new page */
			GenericXLogState *state;
			uint32		training = now->training;
			Page		page;

			buf = IvfpqGetFreePage(index);
			blkno = BufferGetBlockNumber(buf);
			state = GenericXLogStart(index);
			page = GenericXLogRegisterBuffer(state, metabuf, 0);
			IvfpqMetaGet(index, page)->refine_head = blkno;
			page = GenericXLogRegisterBuffer(state, buf,
											 GENERIC_XLOG_FULL_IMAGE);
			init_page(page, training);
			IvfpqRecordPageHeader(page)->chained = 1;
			put_record(index, blkno, page, code_bytes, record, address);
			GenericXLogFinish(state);
			UnlockReleaseBuffer(buf);
			done = true;
		}
		UnlockReleaseBuffer(metabuf);
		mode = BUFFER_LOCK_EXCLUSIVE;
	}
	return true;
}

/* Prefetches the records at addresses [n] into the processor's cache. */
static void
fetch_records(Relation index, int code_bytes, const ItemPointerData *addresses,
			  int n)
{
	Size		slot_bytes = IvfpqRecordSlotBytes(code_bytes);

	for (int i = 0; i < n; i++)
	{
		BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(&addresses[i]);
		uint32		slot = ItemPointerGetOffsetNumberNoCheck(&addresses[i]);
		const char *page;

		if (slot < 1 || slot > (uint32) IvfpqRecordSlots(code_bytes))
			continue;
		page = IvfpqBufHintFetch(index, blkno,
								 MAXALIGN(SizeOfPageHeaderData) +
								 sizeof(IvfpqRecordHeader) +
								 (slot - 1) * slot_bytes,
								 slot_bytes);
		/* also fetch the page's kind, which the reader checks */
		if (page != NULL)
			__builtin_prefetch(page + BLCKSZ - sizeof(IvfpqSpecialData));
	}
}

/*
 * Copies the refine records at addresses [n] to records
 * [n][IvfpqRecordSlotBytes].  Addresses on the same page should be adjacent,
 * because each run of such addresses takes one share lock.  A slot may have
 * become free meanwhile.  If `prefetch` is not NULL, it is used to prefetch
 * the pages from files.
 */
void
IvfpqRecordRead(Relation index, int code_bytes,
				const ItemPointerData *addresses, int n, char *records,
				IvfpqPrefetch *prefetch)
{
	Size		slot_bytes = IvfpqRecordSlotBytes(code_bytes);
	Buffer		buf = InvalidBuffer;

	fetch_records(index, code_bytes, addresses, Min(n, FETCHED_TOGETHER));
	for (int i = 0; i < n; i++)
	{
		BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(&addresses[i]);
		uint32		slot = ItemPointerGetOffsetNumberNoCheck(&addresses[i]);
		int			next = i + FETCHED_TOGETHER;

		if (i % FETCHED_TOGETHER == 0 && next < n)
			fetch_records(index, code_bytes, addresses + next,
						  Min(n - next, FETCHED_TOGETHER));
		if (i == 0 ||
			blkno != ItemPointerGetBlockNumberNoCheck(&addresses[i - 1]))
		{
			if (i > 0)
				UnlockReleaseBuffer(buf);
			if (prefetch != NULL)
				IvfpqPrefetchTo(prefetch, blkno);
			buf = IvfpqReadPage(index, blkno, BUFFER_LOCK_SHARE,
								IVFPQ_KIND_REFINE, NULL);
		}
		if (slot < 1 || slot > (uint32) IvfpqRecordSlots(code_bytes))
			IvfpqCorrupted(index, blkno,
						   "a posting points to refine record %u of %d", slot,
						   IvfpqRecordSlots(code_bytes));
		memcpy(records + i * slot_bytes,
			   IvfpqRecordGet(BufferGetPage(buf), code_bytes, slot - 1), slot_bytes);
	}
	if (n > 0)
		UnlockReleaseBuffer(buf);
}

/*
 * Copies a page to `page` if it is a refine page of the index *meta; otherwise
 * returns false.
 */
bool
IvfpqRecordPageCopy(Relation index, const IvfpqMetaData *meta,
					BlockNumber blkno, BufferAccessStrategy strategy,
					char *page)
{
	Buffer		buf;
	bool		is_refine;

	buf = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	is_refine = IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_REFINE) &&
		IvfpqPageTraining(BufferGetPage(buf), meta->training) == 0;
	if (is_refine)
		memcpy(page, BufferGetPage(buf), BLCKSZ);
	UnlockReleaseBuffer(buf);
	return is_refine;
}

/*
 * For VACUUM.  If the page is a refine page, calls the callback for each row
 * that has a record there, and frees the slots of the rows that are dead.
 * Nothing else frees slots.  So a slot that is in use when the page is copied
 * is still in use when the page is locked later.
 *
 * A page with freed slots is added to the chain unless it is there already.
 * Writes one WAL record, which covers the metapage and the page.
 */
void
IvfpqRecordVacuum(Relation index, const IvfpqMetaData *known,
				  BlockNumber blkno, BufferAccessStrategy strategy,
				  IndexBulkDeleteCallback callback, void *callback_state)
{
	int			code_bytes = IvfpqRecordCodeBytes(known->refine, known->dims);
	int			nslots = IvfpqRecordSlots(code_bytes);
	char	   *copy = palloc(BLCKSZ);
	uint32	   *dead = palloc(nslots * sizeof(uint32));
	int			ndead = 0;

	if (IvfpqRecordPageCopy(index, known, blkno, strategy, copy))
	{
		for (int i = 0; i < nslots; i++)
		{
			ItemPointer tid = &IvfpqRecordGet((Page) copy, code_bytes, i)->tid;

			if (ItemPointerIsValid(tid) && callback(tid, callback_state))
				dead[ndead++] = i;
		}
	}
	if (ndead > 0)
	{
		Buffer		metabuf;
		Buffer		buf;
		GenericXLogState *state;
		IvfpqMetaData *meta;
		IvfpqRecordHeader *header;
		Page		page;

		metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, BUFFER_LOCK_EXCLUSIVE,
								IVFPQ_KIND_META, NULL);
		buf = IvfpqReadPage(index, blkno, BUFFER_LOCK_EXCLUSIVE,
							IVFPQ_KIND_REFINE, NULL);
		state = GenericXLogStart(index);
		meta = IvfpqMetaGet(index,
							GenericXLogRegisterBuffer(state, metabuf, 0));
		page = GenericXLogRegisterBuffer(state, buf, 0);
		header = IvfpqRecordPageHeader(page);
		for (int i = 0; i < ndead; i++)
			ItemPointerSetInvalid(&IvfpqRecordGet(page, code_bytes,
												  dead[i])->tid);
		if (header->nused < ndead)
			IvfpqCorrupted(index, blkno,
						   "it counts %u used slots, but has at least %d",
						   header->nused, ndead);
		header->nused -= ndead;
		if (!header->chained)
		{
			header->chained = 1;
			header->next = meta->refine_head;
			meta->refine_head = blkno;
		}
		GenericXLogFinish(state);
		UnlockReleaseBuffer(buf);
		UnlockReleaseBuffer(metabuf);
		IvfpqInjectionPoint("refine: freed");
	}
	pfree(copy);
	pfree(dead);
}

/* Prepares to write records in bulk, with memory from the current context. */
void
IvfpqRecordBuilderInit(IvfpqRecordBuilder *builder, Relation index,
					   uint32 training, int code_bytes, bool shared)
{
	builder->index = index;
	builder->training = training;
	builder->code_bytes = code_bytes;
	builder->shared = shared;
	builder->log = shared && RelationNeedsWAL(index);
	builder->blkno = InvalidBlockNumber;
	builder->next = builder->end = 0;
	builder->reserved = 0;
	builder->page = palloc(BLCKSZ);
}

/*
 * Writes a row's refine record, and sets *address to the record's address.  No
 * page is locked or pinned between calls, so a caller may be slow.  A page is
 * filled in memory and written to its block when it is full; if pages are to
 * be logged, that is one WAL record for each page.  Until then the block is a
 * new page, and a crash may leave it new.
 *
 * Pages are reserved in runs.  Each run is as long as all earlier runs
 * together, up to MOST_RESERVED pages.  Participants of a parallel build need
 * a lock for each run.  If they reserved single pages, they would need this
 * lock for every page.
 */
void
IvfpqRecordBuilderAdd(IvfpqRecordBuilder *builder,
					  const IvfpqRecord *record, ItemPointer address)
{
	if (builder->blkno == InvalidBlockNumber)
	{
		if (builder->next == builder->end)
		{
			BlockNumber n = 1;

			builder->next = InvalidBlockNumber;
			if (builder->shared)
				builder->next = IvfpqTakeFreePage(builder->index);
			if (builder->next == InvalidBlockNumber)
			{
				n = Max(1, Min(MOST_RESERVED, builder->reserved));
				builder->next = IvfpqReserve(builder->index, n,
											 builder->shared);
				builder->reserved += n;
			}
			builder->end = builder->next + n;
		}
		builder->blkno = builder->next++;
		init_page((Page) builder->page, builder->training);
	}
	put_record(builder->index, builder->blkno, (Page) builder->page,
			   builder->code_bytes, record, address);
	if (IvfpqRecordPageHeader((Page) builder->page)->nused ==
		IvfpqRecordSlots(builder->code_bytes))
	{
		IvfpqFillPage(builder->index, builder->blkno, (Page) builder->page,
					  builder->log);
		builder->blkno = InvalidBlockNumber;
	}
}

/*
 * Writes the last page.  Reserved pages that were not needed are recorded in
 * the free space map, so that other backends can use them.
 *
 * If the last page has free slots, it becomes the head of the chain of such
 * pages: sets *head, which the caller puts into the metapage.  The old *head
 * becomes the next page of the chain; it is a page of another builder, or
 * InvalidBlockNumber.
 */
void
IvfpqRecordBuilderFinish(IvfpqRecordBuilder *builder, pg_atomic_uint32 *head)
{
	BlockNumber first;

	if (builder->blkno != InvalidBlockNumber)
	{
		IvfpqRecordHeader *header =
		IvfpqRecordPageHeader((Page) builder->page);

		header->chained = 1;
		header->next = pg_atomic_exchange_u32(head, builder->blkno);
		IvfpqFillPage(builder->index, builder->blkno, (Page) builder->page,
					  builder->log);
	}

	first = builder->next;
	if (first < builder->end)
	{
		while (builder->next < builder->end)
			RecordPageWithFreeSpace(builder->index, builder->next++,
									BLCKSZ - 1);
		FreeSpaceMapVacuumRange(builder->index, first, builder->end);
	}
	pfree(builder->page);
}
