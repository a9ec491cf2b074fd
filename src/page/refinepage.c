/*
 * refinepage.c
 *		Refine records: a row's vector in 8 bits a dimension or in half
 *		precision, once a row, in a slot whose address all postings of the row
 *		have.
 *
 * An inserter writes the record before the postings; VACUUM frees it when the
 * row is dead, without regard to postings.  So a posting may have the address
 * of a slot that is free, or another row's by now, but only the posting of a
 * row that no snapshot sees any more.  A stale address can cost nothing but a
 * dead row, because rows are returned by what the heap says of the TID found
 * in the record.  Records without postings, of inserts cut short, are of
 * aborted rows, which VACUUM frees like other dead ones.
 *
 * Pages with free slots form a chain.  Inserters fill its head; who finds it
 * full takes the metapage exclusively and pops it.  VACUUM pushes pages that
 * are not in the chain when it frees slots of theirs.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/freespace.h"

#include "page/bufcache.h"
#include "page/delta.h"
#include "page/injection.h"
#include "page/refinepage.h"

#define MOST_RESERVED	64		/* pages at once */

/* Records that the processor fetches side by side, while as many are read. */
#define FETCHED_TOGETHER	8

IvfpqRecordHeader *
IvfpqRecordPageHeader(Page page)
{
	return (IvfpqRecordHeader *) PageGetContents(page);
}

/* Slot number `slot` of a refine page. */
IvfpqRecord *
IvfpqRecordGet(Page page, int code_bytes, uint32 slot)
{
	Assert(slot < (uint32) IvfpqRecordSlots(code_bytes));
	return (IvfpqRecord *) (PageGetContents(page) +
							sizeof(IvfpqRecordHeader) +
							(Size) slot * IvfpqRecordSlotBytes(code_bytes));
}

/* Make a refine page of free slots: all zero, which is what free ones are. */
static void
init_page(Page page)
{
	IvfpqPageInit(page, IVFPQ_KIND_REFINE);
	IvfpqRecordPageHeader(page)->next = InvalidBlockNumber;
}

static bool
is_free(const IvfpqRecord *record)
{
	return ItemPointerGetOffsetNumberNoCheck(&record->tid) ==
		InvalidOffsetNumber;
}

/* A free slot of the page, of which its header says that there is one. */
static uint32
find_free(Relation index, BlockNumber blkno, Page page, int code_bytes)
{
	uint32		slot = 0;

	while (slot < (uint32) IvfpqRecordSlots(code_bytes) &&
		   !is_free(IvfpqRecordGet(page, code_bytes, slot)))
		slot++;
	if (slot == (uint32) IvfpqRecordSlots(code_bytes))
		IvfpqCorrupted(index, blkno, "it has no free slot, but counts %u used",
					   IvfpqRecordPageHeader(page)->nused);
	return slot;
}

/* Put a record into a free slot of the page; *address gets its place. */
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
 * Puts a record on the locked head page unless it is full.  One record, one
 * page.
 */
static bool
append_to_head(Relation index, Buffer buf, int code_bytes,
			   const IvfpqRecord *record, ItemPointer address)
{
	Page		page = BufferGetPage(buf);
	const IvfpqRecordHeader *header = IvfpqRecordPageHeader(page);
	uint16		nused = header->nused + 1;
	IvfpqPatch	patch;
	uint32		slot;

	if (!header->chained)
		IvfpqCorrupted(index, BufferGetBlockNumber(buf),
					   "it is first of the refine pages with free slots, but says that it is none");
	if (header->nused >= IvfpqRecordSlots(code_bytes))
		return false;
	slot = find_free(index, BufferGetBlockNumber(buf), page, code_bytes);
	IvfpqPatchInit(&patch, buf);
	IvfpqPatchAdd(&patch, (const char *) &header->nused - page, &nused,
				  sizeof(nused));
	IvfpqPatchAdd(&patch, (char *) IvfpqRecordGet(page, code_bytes, slot) - page,
				  record, offsetof(IvfpqRecord, codes) + code_bytes);
	IvfpqPatchLog(index, &patch, 1);
	ItemPointerSet(address, BufferGetBlockNumber(buf), slot + 1);
	return true;
}

/*
 * Take the full head page out of the chain.  One record: metapage and page,
 * both exclusively locked.
 */
static void
pop_head(Relation index, Buffer metabuf, Buffer buf)
{
	GenericXLogState *state = GenericXLogStart(index);
	IvfpqMetaData *meta;
	IvfpqRecordHeader *header;

	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, metabuf, 0));
	header = IvfpqRecordPageHeader(GenericXLogRegisterBuffer(state, buf, 0));
	meta->refine_head = header->next;
	header->next = InvalidBlockNumber;
	header->chained = 0;
	GenericXLogFinish(state);
}

/*
 * Add a page that holds the record to the chain, which is empty.  One record:
 * metapage, exclusively locked, and new page.
 */
static void
append_page(Relation index, Buffer metabuf, int code_bytes,
			const IvfpqRecord *record, ItemPointer address)
{
	Buffer		buf = IvfpqGetFreePage(index);
	BlockNumber blkno = BufferGetBlockNumber(buf);
	GenericXLogState *state = GenericXLogStart(index);
	Page		page;

	page = GenericXLogRegisterBuffer(state, metabuf, 0);
	IvfpqMetaGet(index, page)->refine_head = blkno;
	page = GenericXLogRegisterBuffer(state, buf, GENERIC_XLOG_FULL_IMAGE);
	init_page(page);
	IvfpqRecordPageHeader(page)->chained = 1;
	put_record(index, blkno, page, code_bytes, record, address);
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);
}

/*
 * Write a row's record; *address gets where.  Inserters share the metapage and
 * take the head one after another; whoever finds it full, or none, takes the
 * metapage exclusively and checks again.
 */
void
IvfpqRecordAppend(Relation index, int code_bytes, const IvfpqRecord *record,
				  ItemPointer address)
{
	int			mode = BUFFER_LOCK_SHARE;
	bool		done = false;

	while (!done)
	{
		Buffer		metabuf;
		BlockNumber head;

		CHECK_FOR_INTERRUPTS();
		metabuf = IvfpqReadPage(index, IVFPQ_METAPAGE, mode, IVFPQ_KIND_META,
								NULL);
		head = IvfpqMetaGet(index, BufferGetPage(metabuf))->refine_head;
		if (head != InvalidBlockNumber)
		{
			Buffer		buf = IvfpqReadPage(index, head,
											BUFFER_LOCK_EXCLUSIVE,
											IVFPQ_KIND_REFINE, NULL);

			done = append_to_head(index, buf, code_bytes, record, address);
			if (!done && mode == BUFFER_LOCK_EXCLUSIVE)
				pop_head(index, metabuf, buf);
			UnlockReleaseBuffer(buf);
		}
		else if (mode == BUFFER_LOCK_EXCLUSIVE)
		{
			append_page(index, metabuf, code_bytes, record, address);
			done = true;
		}
		UnlockReleaseBuffer(metabuf);
		mode = BUFFER_LOCK_EXCLUSIVE;
	}
}

/*
 * Records at addresses [n] will be read soon: have the processor fetch them.
 */
static void
fetch_records(Relation index, int code_bytes, const ItemPointerData *addresses,
			  int n)
{
	Size		slot_bytes = IvfpqRecordSlotBytes(code_bytes);

	for (int i = 0; i < n; i++)
	{
		uint32		slot = ItemPointerGetOffsetNumberNoCheck(&addresses[i]);
		Size		at = MAXALIGN(SizeOfPageHeaderData) + sizeof(IvfpqRecordHeader) +
		(slot - 1) * slot_bytes;
		const char *page;

		if (slot < 1 || slot > (uint32) IvfpqRecordSlots(code_bytes))
			continue;
		page = IvfpqBufHintFetch(index, ItemPointerGetBlockNumberNoCheck(&addresses[i]),
								 at, slot_bytes);
		if (page != NULL)
			__builtin_prefetch(page + BLCKSZ - sizeof(IvfpqSpecialData));
	}
}

/*
 * Copy the records at n addresses into records [n][IvfpqRecordSlotBytes].
 * Addresses of one page should stand together; each run of them costs one
 * share lock.  A slot may be free by now.  prefetch: of these pages, or NULL.
 */
void
IvfpqRecordRead(Relation index, int code_bytes, const ItemPointerData *addresses,
				int n, char *records, IvfpqPrefetch *prefetch)
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
						   "a copy points to refine record %u of %d", slot,
						   IvfpqRecordSlots(code_bytes));
		memcpy(records + i * slot_bytes,
			   IvfpqRecordGet(BufferGetPage(buf), code_bytes, slot - 1), slot_bytes);
	}
	if (n > 0)
		UnlockReleaseBuffer(buf);
}

/* Copy a page out if it holds refine records; false if not. */
bool
IvfpqRecordPageCopy(Relation index, BlockNumber blkno,
					BufferAccessStrategy strategy, char *page)
{
	Buffer		buf;
	bool		is_refine;

	buf = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	is_refine = IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_REFINE);
	if (is_refine)
		memcpy(page, BufferGetPage(buf), BLCKSZ);
	UnlockReleaseBuffer(buf);
	return is_refine;
}

/*
 * Free slots of a page, and push it onto the chain unless it is there.  One
 * record: metapage and page.
 */
static void
free_slots(Relation index, int code_bytes, BlockNumber blkno, const uint32 *slots,
		   int nslots)
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
	meta = IvfpqMetaGet(index, GenericXLogRegisterBuffer(state, metabuf, 0));
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqRecordPageHeader(page);
	for (int i = 0; i < nslots; i++)
		ItemPointerSetInvalid(&IvfpqRecordGet(page, code_bytes, slots[i])->tid);
	if (header->nused < nslots)
		IvfpqCorrupted(index, blkno, "it counts %u used slots of at least %d",
					   header->nused, nslots);
	header->nused -= nslots;
	if (!header->chained)
	{
		header->chained = 1;
		header->next = meta->refine_head;
		meta->refine_head = blkno;
	}
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);
	UnlockReleaseBuffer(metabuf);
}

/*
 * VACUUM: ask the callback about every row of a page, if it is a refine page,
 * and free the slots of those it names.  Nothing else frees slots, so what is
 * in use when the page is copied still is when it is locked.
 */
void
IvfpqRecordVacuum(Relation index, int code_bytes, BlockNumber blkno,
				  BufferAccessStrategy strategy,
				  IndexBulkDeleteCallback callback, void *callback_state)
{
	int			nslots = IvfpqRecordSlots(code_bytes);
	ItemPointerData *tids = palloc(nslots * sizeof(ItemPointerData));
	uint32	   *dead = palloc(nslots * sizeof(uint32));
	int			ndead = 0;
	Buffer		buf;
	bool		is_refine;

	buf = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	is_refine = IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_REFINE);
	for (int i = 0; is_refine && i < nslots; i++)
		tids[i] = IvfpqRecordGet(BufferGetPage(buf), code_bytes, i)->tid;
	UnlockReleaseBuffer(buf);

	for (int i = 0; is_refine && i < nslots; i++)
		if (ItemPointerIsValid(&tids[i]) && callback(&tids[i], callback_state))
			dead[ndead++] = i;
	if (ndead > 0)
	{
		free_slots(index, code_bytes, blkno, dead, ndead);
		IvfpqInjectionPoint("refine: freed");
	}
	pfree(tids);
	pfree(dead);
}

/* Begin to write records in bulk; memory from the current context. */
void
IvfpqRecordBuilderInit(IvfpqRecordBuilder *builder, Relation index, int code_bytes,
					   bool log)
{
	builder->index = index;
	builder->code_bytes = code_bytes;
	builder->log = log && RelationNeedsWAL(index);
	builder->blkno = InvalidBlockNumber;
	builder->next = builder->end = 0;
	builder->reserved = 0;
	builder->page = palloc(BLCKSZ);
}

/*
 * A new page.  They are reserved in runs, as many at once as there were
 * before, up to a limit: participants of a parallel build need a lock for
 * that, which they would hand each other for every page.
 */
static BlockNumber
next_page(IvfpqRecordBuilder *builder)
{
	if (builder->next == builder->end)
	{
		BlockNumber n = Max(1, Min(MOST_RESERVED, builder->reserved));

		builder->next = IvfpqReserve(builder->index, n, builder->log);
		builder->end = builder->next + n;
		builder->reserved += n;
	}
	return builder->next++;
}

/* Let others have what was reserved and is not needed. */
static void
give_pages(IvfpqRecordBuilder *builder)
{
	BlockNumber first = builder->next;

	if (first == builder->end)
		return;
	while (builder->next < builder->end)
		RecordPageWithFreeSpace(builder->index, builder->next++, BLCKSZ - 1);
	FreeSpaceMapVacuumRange(builder->index, first, builder->end);
}

/*
 * Put the page on disk.  One record, one page, if it is to be logged; until
 * then it is new there, which a crash may leave it.
 */
static void
write_page(IvfpqRecordBuilder *builder)
{
	IvfpqFillPage(builder->index, builder->blkno, (Page) builder->page,
				  builder->log);
	builder->blkno = InvalidBlockNumber;
}

/*
 * Write a row's record; *address gets where.  No page is held between calls,
 * so callers may take their time.
 */
void
IvfpqRecordBuilderAdd(IvfpqRecordBuilder *builder,
					  const IvfpqRecord *record, ItemPointer address)
{
	if (builder->blkno == InvalidBlockNumber)
	{
		builder->blkno = next_page(builder);
		init_page((Page) builder->page);
	}
	put_record(builder->index, builder->blkno, (Page) builder->page,
			   builder->code_bytes, record, address);
	if (IvfpqRecordPageHeader((Page) builder->page)->nused ==
		IvfpqRecordSlots(builder->code_bytes))
		write_page(builder);
}

/*
 * Write the last page.  If it has free slots it becomes the head of the chain
 * of such pages, for the metapage, before that of another builder, or
 * InvalidBlockNumber.
 */
void
IvfpqRecordBuilderFinish(IvfpqRecordBuilder *builder, pg_atomic_uint32 *head)
{
	if (builder->blkno != InvalidBlockNumber)
	{
		IvfpqRecordHeader *header =
		IvfpqRecordPageHeader((Page) builder->page);

		header->chained = 1;
		header->next = pg_atomic_exchange_u32(head, builder->blkno);
		write_page(builder);
	}
	give_pages(builder);
	pfree(builder->page);
}
