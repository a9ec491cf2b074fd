/*
 * append.c
 *		Appending to inverted lists.
 */
#include "postgres.h"

#include "page/delta.h"
#include "page/pending.h"

/*
 * Appends postings, no more than fit the newest block or a new one, to a
 * list whose entry is *entry, as part of a record that may
 * already hold the directory page.  Updates *entry.  The block's pages stay
 * locked until the caller has finished the record.
 */
static void
append_postings(Relation index, const IvfpqLayout *layout, uint32 list,
				IvfpqDirEntry *entry, const IvfpqPosting *postings,
				int npostings,
				GenericXLogState *state, IvfpqBlockPages *block)
{
	IvfpqSlotHeader *headers[IVFPQ_MAX_PARTS];
	char	   *parts[IVFPQ_MAX_PARTS];
	uint32		ordinal = entry->nitems / IVFPQ_BLOCK_POSTINGS;
	int			used = entry->nitems % IVFPQ_BLOCK_POSTINGS;

	Assert(npostings > 0 && used + npostings <= IVFPQ_BLOCK_POSTINGS);
	if (used > 0)
		IvfpqBlockLock(index, layout, entry->head, list, entry->gen, ordinal,
					   block);
	else
		IvfpqBlockAllocate(index, layout, block);

	IvfpqBlockRegister(state, layout, block, headers);
	if (used == 0)
		IvfpqBlockOccupy(block, headers, list, entry->gen, ordinal,
						 entry->head);
	for (int p = 0; p < layout->nparts; p++)
		parts[p] = IvfpqSlabBody(headers[p]);
	for (int i = 0; i < npostings; i++)
	{
		IvfpqBodySet(layout, headers[0], parts, used + i, &postings[i]);
		entry->nfirst += !postings[i].secondary;
	}

	entry->head = IvfpqBlockAddress(block);
	entry->nitems += npostings;
}

/*
 * Appends a posting to the newest block of a list, which is not full, as a
 * record of known changes: the directory page, exclusively locked, and the
 * block's pages, which stay locked.
 */
static void
patch_list(Relation index, const IvfpqLayout *layout, uint32 list,
		   Buffer dirbuf, const IvfpqPosting *posting, IvfpqBlockPages *block)
{
	Page		page = BufferGetPage(dirbuf);
	const IvfpqDirEntry *from = IvfpqDirEntryGet(page, list);
	IvfpqDirEntry entry = *from;
	IvfpqPatch	patches[1 + IVFPQ_MAX_PARTS];
	const IvfpqSlotHeader *header = NULL;
	int			slots_at[IVFPQ_MAX_PARTS];

	IvfpqBlockLock(index, layout, entry.head, list, entry.gen,
				   entry.nitems / IVFPQ_BLOCK_POSTINGS, block);
	for (int p = layout->nparts - 1; p >= 0; p--)
	{
		Page		part = BufferGetPage(block->buffers[p]);

		header = IvfpqSlabSlot(part, layout, block->slots[p]);
		slots_at[p] = (int) ((const char *) header - part);
		IvfpqPatchInit(&patches[1 + p], block->buffers[p]);
	}
	IvfpqBodyPatch(layout, header, slots_at,
				   entry.nitems % IVFPQ_BLOCK_POSTINGS, posting, patches + 1);

	entry.nitems++;
	entry.nfirst += !posting->secondary;
	IvfpqPatchInit(&patches[0], dirbuf);
	IvfpqPatchAdd(&patches[0], (const char *) from - page, &entry,
				  offsetof(IvfpqDirEntry, del_seq));
	IvfpqPatchLog(index, patches, 1 + layout->nparts);
}

/*
 * Appends a posting to a list.  One record: the directory page, the pages of
 * the newest block or of a new one and, when the row is pending, its page,
 * from which it is removed.  The directory page is locked throughout, so no
 * other process appends to the list or rewrites it.
 */
void
IvfpqListAppend(Relation index, const IvfpqMetaData *meta, uint32 list,
				const IvfpqPosting *posting, const IvfpqPendingPlace *pending)
{
	IvfpqLayout layout;
	IvfpqBlockPages block;
	Buffer		dirbuf;
	Buffer		pendbuf = InvalidBuffer;
	Page		page;

	if (!IvfpqLayoutGet(&layout, meta))
		IvfpqCorrupted(index, IVFPQ_METAPAGE, "its parameters are out of range");

	dirbuf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						   BUFFER_LOCK_EXCLUSIVE, IVFPQ_KIND_DIRECTORY, NULL);
	page = BufferGetPage(dirbuf);
	if (pending == NULL && IvfpqDirEntryGet(page, list)->nitems %
		IVFPQ_BLOCK_POSTINGS > 0)
		patch_list(index, &layout, list, dirbuf, posting, &block);
	else
	{
		GenericXLogState *state = GenericXLogStart(index);

		page = GenericXLogRegisterBuffer(state, dirbuf, 0);
		if (pending != NULL)
			pendbuf = IvfpqPendingRemove(index, pending, &posting->tid, state);
		append_postings(index, &layout, list, IvfpqDirEntryGet(page, list),
						posting, 1, state, &block);
		GenericXLogFinish(state);
	}

	if (BufferIsValid(pendbuf))
		UnlockReleaseBuffer(pendbuf);
	UnlockReleaseBuffer(dirbuf);
	IvfpqBlockRelease(index, &layout, &block);
}

/*
 * Appends postings to a chain that no directory entry shows yet: a list being
 * rewritten.  No more than fit its newest block or a new one.
 * One record: the pages of the block.
 */
void
IvfpqChainAppend(Relation index, const IvfpqLayout *layout, uint32 list,
				 IvfpqDirEntry *chain, const IvfpqPosting *postings,
				 int npostings)
{
	IvfpqBlockPages block;
	GenericXLogState *state;

	state = GenericXLogStart(index);
	append_postings(index, layout, list, chain, postings, npostings, state,
					&block);
	GenericXLogFinish(state);
	IvfpqBlockRelease(index, layout, &block);
}
