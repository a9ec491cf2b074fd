/*
 * rewrite.c
 *		VACUUM's side of lists: marking postings dead, rewriting lists, and
 *		giving slots back.
 *
 * Only one VACUUM works on an index at a time, and only VACUUM changes a
 * list's gen or frees slots.  A list is rewritten beside itself: a new chain
 * under gen + 1, invisible until one record switches the directory entry to
 * it; then the old blocks are freed.  A crash in between leaves slots whose
 * gen is not their list's: the next VACUUM's pass over the slabs frees them,
 * before it rewrites any list and so before that gen can become current.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/freespace.h"

#include "page/listread.h"
#include "page/page.h"
#include "pgcompat.h"

/* A list is rewritten when at least one posting in this many is dead. */
#define REWRITE_DIVISOR	10

/* Times a rewrite catches up with inserts before it leaves the list alone. */
#define MAX_CATCH_UP	10

/*
 * Copy a slab page out.  A page that is unused is offered to the free space
 * map instead, and a page of another kind passed over: false.
 */
bool
IvfpqSlabRead(Relation index, BlockNumber blkno,
			  BufferAccessStrategy strategy, char *page)
{
	Buffer		buf;
	bool		is_slab;
	bool		is_free;

	buf = ReadBufferExtended(index, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
	LockBuffer(buf, BUFFER_LOCK_SHARE);
	is_slab = IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_SLAB);
	is_free = PageIsNew(BufferGetPage(buf)) ||
		IvfpqPageIs(BufferGetPage(buf), IVFPQ_KIND_FREE);
	if (is_slab)
		memcpy(page, BufferGetPage(buf), BLCKSZ);
	UnlockReleaseBuffer(buf);
	if (is_free)
		RecordPageWithFreeSpace(index, blkno, BLCKSZ - 1);
	return is_slab;
}

/*
 * Tell the free space map about free slots of a slab page, of which it may
 * not know after a crash.
 */
void
IvfpqSlabRecordFree(Relation index, const IvfpqLayout *layout,
					BlockNumber blkno, Page page)
{
	int			nfree = IvfpqSlabFreeSlots(page, layout);

	if (nfree > 0)
		RecordPageWithFreeSpace(index, blkno, nfree * layout->slot_bytes);
}

/*
 * Set dead flags of a block of the list, under its directory entry's lock.
 * One record: the directory page and the block's first page.
 */
void
IvfpqMarkDead(Relation index, const IvfpqMetaData *meta,
			  IvfpqAddress address, uint32 list, uint32 gen, uint32 dead)
{
	IvfpqLayout layout;
	Buffer		dirbuf;
	Buffer		buf;
	GenericXLogState *state;
	IvfpqDirEntry *entry;
	IvfpqSlotHeader *header;
	Page		page;

	if (!IvfpqLayoutGet(&layout, meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");
	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	buf = IvfpqReadPage(index, address.page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_SLAB, NULL);

	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, dirbuf, 0);
	entry = IvfpqDirEntryGet(page, list);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqSlabSlot(page, &layout, address.slot);
	if (header->list != list || header->gen != gen || entry->gen != gen)
		IvfpqCorrupted(index, address.page,
					   "slot %u changed hands during VACUUM", address.slot);
	dead &= ~header->dead;
	header->dead |= dead;
	entry->ndead += pg_popcount32(dead);
	entry->nfirst -= pg_popcount32(dead & ~header->secondary);
	entry->del_seq++;
	GenericXLogFinish(state);

	UnlockReleaseBuffer(buf);
	UnlockReleaseBuffer(dirbuf);
}

/*
 * Free a slot if it still belongs to this list and gen.  The last slot of a
 * page frees the page for any use.  One record, one page.
 */
void
IvfpqSlabReclaim(Relation index, const IvfpqLayout *layout,
				 IvfpqAddress address, uint32 list, uint32 gen)
{
	Buffer		buf;
	GenericXLogState *state;
	IvfpqSlotHeader *header;
	Page		page;
	int			nfree;

	buf = IvfpqReadPage(index, address.page, BUFFER_LOCK_EXCLUSIVE,
						IVFPQ_KIND_SLAB, NULL);
	state = GenericXLogStart(index);
	page = GenericXLogRegisterBuffer(state, buf, 0);
	header = IvfpqSlabSlot(page, layout, address.slot);
	if (header->list != list || header->gen != gen)
	{
		GenericXLogAbort(state);
		UnlockReleaseBuffer(buf);
		return;
	}
	header->list = IVFPQ_NO_LIST;
	nfree = IvfpqSlabFreeSlots(page, layout);
	if (nfree == layout->slots_per_page)
		IvfpqPageInit(page, IVFPQ_KIND_FREE);
	GenericXLogFinish(state);
	UnlockReleaseBuffer(buf);

	/* to the map's upper levels too, so that the next rewrite finds it */
	RecordPageWithFreeSpace(index, address.page,
							nfree == layout->slots_per_page ?
							BLCKSZ - 1 : nfree * layout->slot_bytes);
	FreeSpaceMapVacuumRange(index, address.page, address.page + 1);
}

static uint32
blocks_for(uint32 postings)
{
	return (postings + IVFPQ_BLOCK_POSTINGS - 1) / IVFPQ_BLOCK_POSTINGS;
}

/* Free every block of a chain that no reader can find any more. */
static void
free_chain(Relation index, const IvfpqLayout *layout, uint32 list,
		   const IvfpqDirEntry *chain)
{
	IvfpqAddress next = chain->head;

	for (uint32 left = blocks_for(chain->nitems); left > 0; left--)
	{
		IvfpqAddress here = next;

		for (int p = 0; p < layout->nparts; p++)
		{
			IvfpqSlotHeader header;
			Buffer		buf;

			CHECK_FOR_INTERRUPTS();
			buf = IvfpqReadPage(index, here.page, BUFFER_LOCK_SHARE,
								IVFPQ_KIND_SLAB, NULL);
			header = *IvfpqSlabSlot(BufferGetPage(buf), layout, here.slot);
			UnlockReleaseBuffer(buf);
			if (p == 0)
			{
				next.page = header.prev_page;
				next.slot = header.prev_slot;
			}
			IvfpqSlabReclaim(index, layout, here, list, chain->gen);
			here.page = header.next_part;
			here.slot = 0;
		}
	}
}

/* Postings on their way from the old chain to the new one, at most a block. */
typedef struct Batch
{
	IvfpqPosting postings[IVFPQ_BLOCK_POSTINGS];
	IvfpqKeyAbbrevs keys[IVFPQ_BLOCK_POSTINGS];
	uint8	   *codes;			/* [IVFPQ_BLOCK_POSTINGS][code_bytes] */
	int			n;
} Batch;

static void
flush_batch(Batch *batch, IvfpqListReader *reader, IvfpqDirEntry *chain)
{
	if (batch->n > 0)
		IvfpqChainAppend(reader->index, &reader->layout, reader->list, chain,
						 batch->postings, batch->n);
	batch->n = 0;
}

/*
 * Adds posting i of a block to the batch; write it when the new block is full.
 */
static void
batch_posting(Batch *batch, const IvfpqBlockView *view, int i,
			  IvfpqListReader *reader, IvfpqDirEntry *chain)
{
	int			code_bytes = reader->layout.code_bytes;
	uint8	   *code = batch->codes + batch->n * code_bytes;

	for (int p = 0; p < code_bytes; p++)
		code[p] = view->codes[p * IVFPQ_BLOCK_POSTINGS + i];
	batch->postings[batch->n].tid = view->tids[i];
	batch->postings[batch->n].t = view->t[i];
	batch->postings[batch->n].code = code;
	batch->postings[batch->n].secondary = (view->secondary & (1U << i)) != 0;
	if (view->refine)
		batch->postings[batch->n].refine = view->refine[i];
	if (view->keys)
	{
		IvfpqKeyAbbrevsGet(&reader->layout.keys, view->keys, i,
						   &batch->keys[batch->n]);
		batch->postings[batch->n].keys = &batch->keys[batch->n];
	}
	batch->n++;
	if ((chain->nitems + batch->n) % IVFPQ_BLOCK_POSTINGS == 0)
		flush_batch(batch, reader, chain);
}

/*
 * Appends to `chain` the live postings of the list at positions from `from`
 * on, as of one reading.  Returns the position to go on from.
 */
static uint32
copy_live(IvfpqListReader *reader, uint32 list, uint32 from,
		  IvfpqDirEntry *chain)
{
	IvfpqBlockView view;
	Batch		batch;

	batch.codes = palloc(IVFPQ_BLOCK_POSTINGS * reader->layout.code_bytes);
	batch.n = 0;
	IvfpqListOpen(reader, list);
	while (reader->nleft > from && IvfpqListNext(reader, &view))
	{
		for (int i = 0; i < IVFPQ_BLOCK_POSTINGS; i++)
			if ((view.live & (1U << i)) && reader->nleft + i >= from)
				batch_posting(&batch, &view, i, reader, chain);
		CHECK_FOR_INTERRUPTS();
	}
	flush_batch(&batch, reader, chain);
	pfree(batch.codes);
	return reader->entry.nitems;
}

/*
 * Switch the list to `chain` if nothing was appended since `nitems`.  One
 * record: the directory page.  *old gets the entry replaced.
 */
static bool
switch_list(Relation index, const IvfpqMetaData *meta, uint32 list,
			uint32 nitems, const IvfpqDirEntry *chain, IvfpqDirEntry *old)
{
	Buffer		dirbuf;
	bool		same;

	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	*old = *IvfpqDirEntryGet(BufferGetPage(dirbuf), list);
	same = old->nitems == nitems;
	if (same)
	{
		GenericXLogState *state = GenericXLogStart(index);
		Page		page = GenericXLogRegisterBuffer(state, dirbuf, 0);
		IvfpqDirEntry *entry = IvfpqDirEntryGet(page, list);

		*entry = *chain;
		entry->del_seq = old->del_seq + 1;
		GenericXLogFinish(state);
	}
	UnlockReleaseBuffer(dirbuf);
	return same;
}

/* Would a rewrite give blocks back, and is enough of the list dead? */
static bool
worth_rewriting(const IvfpqDirEntry *entry)
{
	return (uint64) entry->ndead * REWRITE_DIVISOR >= entry->nitems &&
		blocks_for(entry->nitems) > blocks_for(entry->nitems - entry->ndead);
}

/*
 * Rewrites a list without its dead postings, if that gives space back.
 * Inserts go on meanwhile; what they append is copied in further rounds.  The
 * caller is the only VACUUM and holds no lock on any page.
 */
bool
IvfpqListRewrite(Relation index, const IvfpqMetaData *meta, uint32 list,
				 BufferAccessStrategy strategy)
{
	IvfpqListReader reader;
	IvfpqDirEntry old;
	IvfpqDirEntry chain;
	uint32		done = 0;
	bool		switched = false;

	IvfpqDirEntryRead(index, meta, list, &old);
	if (old.ndead == 0 || !worth_rewriting(&old))
		return false;

	memset(&chain, 0, sizeof(chain));
	chain.gen = old.gen + 1;
	chain.head.page = InvalidBlockNumber;
	IvfpqListReaderInit(&reader, index, meta, strategy);
	for (int round = 0; round < MAX_CATCH_UP && !switched; round++)
	{
		done = copy_live(&reader, list, done, &chain);
		switched = switch_list(index, meta, list, done, &chain, &old);
	}
	free_chain(index, &reader.layout, list, switched ? &old : &chain);
	IvfpqListReaderFree(&reader);
	return switched;
}
