/*
 * directory.c
 *		The directory: where lists begin.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "page/bufcache.h"
#include "page/page.h"

/* The directory page that holds a list's entry. */
BlockNumber
IvfpqDirectoryPage(const IvfpqMetaData *meta, uint32 list)
{
	return meta->directory + list / IVFPQ_ENTRIES_PER_PAGE;
}

/* A list's entry on its directory page. */
IvfpqDirEntry *
IvfpqDirEntryGet(Page page, uint32 list)
{
	return (IvfpqDirEntry *) PageGetContents(page) +
		list % IVFPQ_ENTRIES_PER_PAGE;
}

/*
 * Copy a list's entry from its locked page.  Counts that cannot be are not
 * handed on, for searches add them up.
 */
static void
copy_entry(Relation index, Buffer buf, uint32 list, IvfpqDirEntry *entry)
{
	*entry = *IvfpqDirEntryGet(BufferGetPage(buf), list);
	if (entry->ndead > entry->nitems)
		IvfpqCorrupted(index, BufferGetBlockNumber(buf),
					   "list %u has %u dead copies of %u", list,
					   entry->ndead, entry->nitems);
}

/* Copy a list's entry out. */
void
IvfpqDirEntryRead(Relation index, const IvfpqMetaData *meta, uint32 list,
				  IvfpqDirEntry *entry)
{
	Buffer		buf;

	buf = IvfpqReadPage(index, IvfpqDirectoryPage(meta, list),
						BUFFER_LOCK_SHARE, IVFPQ_KIND_DIRECTORY, NULL);
	copy_entry(index, buf, list, entry);
	UnlockReleaseBuffer(buf);
}

/*
 * Copy the entries of lists [n] out, page by page, of which one at a time is
 * locked: near lists often have one parent, and so one page, which everybody
 * else who searches wants, too.
 */
void
IvfpqDirEntriesRead(Relation index, const IvfpqMetaData *meta,
					const uint64 *lists, int n, IvfpqDirEntry *entries)
{
	uint64	   *places = palloc_extended(Max(n, 1) * sizeof(uint64),
										 MCXT_ALLOC_HUGE);
	BlockNumber blkno = InvalidBlockNumber;
	Buffer		buf = InvalidBuffer;
	IvfpqPrefetch prefetch;

	for (int i = 0; i < n; i++)
		places[i] = (uint64) IvfpqDirectoryPage(meta, (uint32) lists[i]) << 32 |
			(uint32) i;
	IvfpqSortNumbers(places, n);
	IvfpqPrefetchBegin(&prefetch, index, places, n, 32);
	for (int j = 0; j < n; j++)
	{
		BlockNumber wanted = (BlockNumber) (places[j] >> 32);
		uint32		i = (uint32) places[j];

		if (wanted != blkno)
		{
			if (BufferIsValid(buf))
				UnlockReleaseBuffer(buf);
			CHECK_FOR_INTERRUPTS();
			IvfpqPrefetchTo(&prefetch, wanted);
			buf = IvfpqReadPage(index, wanted, BUFFER_LOCK_SHARE,
								IVFPQ_KIND_DIRECTORY, NULL);
			blkno = wanted;
		}
		copy_entry(index, buf, (uint32) lists[i], &entries[i]);
	}
	if (BufferIsValid(buf))
		UnlockReleaseBuffer(buf);
	IvfpqPrefetchEnd(&prefetch);
	pfree(places);
}
