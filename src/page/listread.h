/*
 * listread.h
 *		Reading inverted lists, block by block (listread.c).
 *
 * A reader reads one list at a time, from the newest block to the oldest.
 * README, "Locks", describes the read protocol, and README, "Optimistic
 * Reads", says why blocks may be read in place.
 */
#ifndef IVFPQ_LISTREAD_H
#define IVFPQ_LISTREAD_H

#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "page/layout.h"

#define IVFPQ_OPTIMISTIC_BLOCKS	4	/* maximum read at a time */

/*
 * The next block to fetch into the processor's cache, some blocks ahead of the
 * reader.  Its address is computed from directory entries, as if each list had
 * been written as a whole.
 */
typedef struct IvfpqFetchPlace
{
	const IvfpqDirEntry *entry; /* entry of the next list to fetch from */
	const IvfpqDirEntry *end;	/* after the entry of the last list */
	const IvfpqDirEntry *located;	/* next entry for locate_lists */
	uint32		nblocks;		/* blocks to fetch before that list */
	IvfpqAddress next;			/* most likely address of the next block */
	const char *page;			/* last known address of next.page, or NULL */
} IvfpqFetchPlace;

typedef struct IvfpqListReader
{
	Relation	index;
	const IvfpqMetaData *meta;
	IvfpqLayout layout;
	BufferAccessStrategy strategy;

	/*
	 * Returns whether a block whose keys have these heads may have a posting
	 * that the caller needs.  The reader passes over all other blocks.  If
	 * this is NULL, all blocks are read.  The function is called while the
	 * page is locked, so it must do nothing but compute.
	 */
	bool		(*wants) (const void *arg, const IvfpqSlotHeader *header,
						  const char *keys);
	const void *wants_arg;

	/* lists to read one after another (IvfpqListReaderStart) */
	const uint64 *lists;		/* [nlists] */
	IvfpqDirEntry *entries;		/* [nlists] as they were at the start */
	int			nlists;
	int			nprefetched;	/* number of lists prefetched from files */
	int64		had_read;		/* result of the last IvfpqCountReads */

	/* the open list */
	uint32		list;
	IvfpqDirEntry entry;		/* entry of the list when reading began */
	const IvfpqDirEntry *following; /* entry of the next list, or NULL */
	bool		looks_ahead;	/* opened by IvfpqListReaderOpen */
	bool		reread;			/* second reading: postings may come twice */
	IvfpqAddress next;			/* block to read next */
	uint32		nleft;			/* postings in `next` and all older blocks */

	/* copies of slots */
	char	   *page;			/* [BLCKSZ] slots, placed as on their page */
	BlockNumber cached;			/* page copied, or InvalidBlockNumber */
	uint32		copied;			/* bit i: slot i was copied */
	uint32		passed;			/* bit i: only header and heads were copied */
	char	   *body;			/* [nparts][part_bytes] the parts of a block */

	/* blocks that are read optimistically */
	bool		copies_next;	/* blocks have changed: copy the next one */
	Buffer		optimistic;		/* their page, pinned, or InvalidBuffer */
	int			noptimistic;	/* number of blocks; 0 = the view is a copy */
	uint32		slots[IVFPQ_OPTIMISTIC_BLOCKS];
	IvfpqSlotHeader headers[IVFPQ_OPTIMISTIC_BLOCKS];	/* copied headers */

	/* looking ahead */
	Buffer		prefetched;		/* next page, pinned, or InvalidBuffer */
	const char *fetch_at;		/* next slot of that page to fetch, or NULL */
	const char *fetch_end;		/* end of the slots to fetch */
	bool		passing;		/* the caller did not need the last block */
	IvfpqFetchPlace fetching;
} IvfpqListReader;

/* layout is that of the index, or NULL if the caller does not have it */
extern void IvfpqListReaderInit(IvfpqListReader *reader, Relation index,
								const IvfpqMetaData *meta,
								const IvfpqLayout *layout,
								BufferAccessStrategy strategy);
extern void IvfpqListReaderFree(IvfpqListReader *reader);

/* reading any list; its blocks are copied */
extern void IvfpqListOpen(IvfpqListReader *reader, uint32 list);
extern bool IvfpqListNext(IvfpqListReader *reader, IvfpqBlockView *view);

/* reading lists known beforehand; blocks are read in place or copied */
extern void IvfpqListReaderStart(IvfpqListReader *reader, const uint64 *lists,
								 int n);
extern void IvfpqListReaderOpen(IvfpqListReader *reader, int i);
extern int	IvfpqListReaderNext(IvfpqListReader *reader,
								IvfpqBlockView *views);
extern bool IvfpqListReaderConfirm(IvfpqListReader *reader,
								   const IvfpqBlockView *views);
extern void IvfpqListReaderStop(IvfpqListReader *reader);

#endif							/* IVFPQ_LISTREAD_H */
