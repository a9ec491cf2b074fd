/*
 * listread.h
 *		Reading inverted lists, block by block (listread.c).
 *
 * A reader reads one list at a time, from the newest block to the oldest.
 * README, "Locks", has the read protocol, and "Optimistic Reads" says why
 * blocks may be read where they lie.
 */
#ifndef IVFPQ_LISTREAD_H
#define IVFPQ_LISTREAD_H

#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "page/layout.h"

#define IVFPQ_OPTIMISTIC_BLOCKS	4	/* at a time */

/*
 * A place some blocks ahead of the reader, in lists that are read one after
 * another: their blocks are fetched into the processor's cache.  It follows
 * from directory entries, as if each list had been written at once.
 */
typedef struct IvfpqFetchPlace
{
	const IvfpqDirEntry *entry; /* of the next list to fetch from */
	const IvfpqDirEntry *end;	/* after the last one */
	const IvfpqDirEntry *located;	/* first list whose pages' addresses were
									 * not looked up yet */
	uint32		nblocks;		/* blocks left of the list before `entry` */
	IvfpqAddress next;			/* where the first of them most likely is */
	const char *page;			/* that page, where it was lately, or NULL */
} IvfpqFetchPlace;

typedef struct IvfpqListReader
{
	Relation	index;
	const IvfpqMetaData *meta;
	IvfpqLayout layout;
	BufferAccessStrategy strategy;

	/*
	 * Returns whether a block whose keys have these heads may have a posting
	 * that the caller needs; other blocks are passed over.  NULL: all blocks
	 * are read.  It is called under the page's lock, and only computes.
	 */
	bool		(*wants) (const void *arg, const IvfpqSlotHeader *header,
						  const char *keys);
	const void *wants_arg;

	/* lists to read one after another (IvfpqListReaderStart) */
	const uint64 *lists;		/* [nlists] */
	IvfpqDirEntry *entries;		/* [nlists] as read at the start */
	int			nlists;
	int			nprefetched;	/* lists from 0 on whose pages in files were
								 * prefetched, if they had to be */
	int64		had_read;		/* IvfpqCountReads */

	/* the open list */
	uint32		list;
	IvfpqDirEntry entry;		/* as read when the list was opened */
	const IvfpqDirEntry *following; /* of the list that is read next, or NULL */
	bool		looks_ahead;	/* IvfpqListReaderOpen opened the list */
	bool		reread;			/* a second reading is under way, in which
								 * postings may come again */
	IvfpqAddress next;			/* block to read next */
	uint32		nleft;			/* postings in it and in all older blocks */

	/* copies of slots */
	char	   *page;			/* [BLCKSZ] slots, where they are on the page */
	BlockNumber cached;			/* that page, or invalid */
	uint32		copied;			/* bit i: slot i was copied, */
	uint32		passed;			/* bit i: only its header and heads of keys */
	char	   *body;			/* [body_bytes] block gathered from parts */

	/* blocks that are read optimistically */
	bool		copies_next;	/* they changed: the next block is copied */
	Buffer		optimistic;		/* their page, pinned, or invalid */
	int			noptimistic;	/* 0: the last block is a copy */
	uint32		slots[IVFPQ_OPTIMISTIC_BLOCKS];
	IvfpqSlotHeader headers[IVFPQ_OPTIMISTIC_BLOCKS];	/* as they were */

	/* what comes next */
	Buffer		prefetched;		/* page, pinned, or invalid */
	const char *fetch_at;		/* what of it is still to be fetched into the */
	const char *fetch_end;		/* cache, up to here; NULL: none */
	bool		passing;		/* the last block was passed over */
	IvfpqFetchPlace fetching;
} IvfpqListReader;

/* layout: the index's, or NULL if the caller does not have it */
extern void IvfpqListReaderInit(IvfpqListReader *reader, Relation index,
								const IvfpqMetaData *meta,
								const IvfpqLayout *layout,
								BufferAccessStrategy strategy);
extern void IvfpqListReaderFree(IvfpqListReader *reader);

/* any list, by copies of its blocks */
extern void IvfpqListOpen(IvfpqListReader *reader, uint32 list);
extern bool IvfpqListNext(IvfpqListReader *reader, IvfpqBlockView *view);

/* lists that are known beforehand, by blocks where they lie or copies */
extern void IvfpqListReaderStart(IvfpqListReader *reader, const uint64 *lists,
								 int n);
extern void IvfpqListReaderOpen(IvfpqListReader *reader, int i);
extern int	IvfpqListReaderNext(IvfpqListReader *reader,
								IvfpqBlockView *views);
extern bool IvfpqListReaderConfirm(IvfpqListReader *reader,
								   const IvfpqBlockView *views);
extern void IvfpqListReaderStop(IvfpqListReader *reader);

#endif							/* IVFPQ_LISTREAD_H */
