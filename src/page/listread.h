/*
 * listread.h
 *		Reading inverted lists, block by block, and rewriting them.
 *
 * ../README states the read protocol, and why blocks may be read where they
 * lie.
 */
#ifndef IVFPQ_LISTREAD_H
#define IVFPQ_LISTREAD_H

#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "page/layout.h"

/* listread.c: blocks on their way into the processor's cache */
typedef struct IvfpqFetchPlace
{
	const IvfpqDirEntry *entry; /* of the next list to fetch of, */
	const IvfpqDirEntry *end;	/* and behind the last one */
	const IvfpqDirEntry *sought;	/* pages of those before are sought */
	uint32		nblocks;		/* of the list before that are left, */
	IvfpqAddress next;			/* the first of them most likely there */
	const char *page;			/* that page where it was, or NULL */
} IvfpqFetchPlace;


#define IVFPQ_OPTIMISTIC_BLOCKS	4	/* at a time */

typedef struct IvfpqListReader
{
	Relation	index;
	const IvfpqMetaData *meta;
	IvfpqLayout layout;
	BufferAccessStrategy strategy;
	uint32		list;
	IvfpqDirEntry entry;		/* as read when the list was opened */
	IvfpqAddress next;			/* block to read next */
	uint32		nleft;			/* postings in it and in all older blocks */
	bool		reread;			/* a second reading is under way */

	/*
	 * Returns whether a block with these heads of keys may have a posting
	 * that is wanted; else it is passed over.  NULL: all are wanted.  Called
	 * under the page's lock, it computes, and no more.
	 */
	bool		(*wants) (const void *arg, const IvfpqSlotHeader *header,
						  const char *keys);
	const void *wants_arg;
	BlockNumber cached;			/* page of which `page` has */
	uint32		copied;			/* these slots, a bit each, */
	uint32		passed;			/* of these the front only: header and heads */
	char	   *page;			/* [BLCKSZ] copy of parts of a slab page */
	bool		prefetches;		/* IvfpqListOpenAt opened it */
	Buffer		prefetched;		/* page that comes next, or invalid */
	const char *fetch_at;		/* what of it is wanted: so much is not */
	const char *fetch_end;		/* asked for yet */
	bool		passing;		/* the last block was passed over */
	const IvfpqDirEntry *following; /* list that comes next, or NULL */
	IvfpqFetchPlace fetching;	/* by IvfpqListsBegin */
	char	   *body;			/* [body_bytes] block gathered from parts */

	/* blocks that are read optimistically: */
	Buffer		optimistic;		/* their page, pinned, or invalid */
	int			noptimistic;
	uint32		slots[IVFPQ_OPTIMISTIC_BLOCKS];
	IvfpqSlotHeader headers[IVFPQ_OPTIMISTIC_BLOCKS];	/* as they were */
} IvfpqListReader;

extern void IvfpqListReaderInit(IvfpqListReader *reader, Relation index,
								const IvfpqMetaData *meta,
								BufferAccessStrategy strategy);
extern void IvfpqListsBegin(IvfpqListReader *reader,
							const IvfpqDirEntry *entries, int n);
extern void IvfpqListOpen(IvfpqListReader *reader, uint32 list);
extern void IvfpqListOpenAt(IvfpqListReader *reader, uint32 list,
							const IvfpqDirEntry *entry,
							const IvfpqDirEntry *following);
extern bool IvfpqListNext(IvfpqListReader *reader, IvfpqBlockView *view);
extern int	IvfpqListNextOptimistic(IvfpqListReader *reader,
									IvfpqBlockView *views);
extern bool IvfpqListConfirm(IvfpqListReader *reader,
							 const IvfpqBlockView *views);
extern void IvfpqListReaderFree(IvfpqListReader *reader);

/* listread.c: pages of many lists, before these are read */
extern int	IvfpqPrefetchLists(const IvfpqListReader *reader,
							   const uint64 *lists,
							   const IvfpqDirEntry *entries, int n);

/* listwrite.c: VACUUM's side of lists */
extern bool IvfpqSlabRead(Relation index, BlockNumber blkno,
						  BufferAccessStrategy strategy, char *page);
extern void IvfpqSlabRecordFree(Relation index, const IvfpqLayout *layout,
								BlockNumber blkno, Page page);
extern void IvfpqMarkDead(Relation index, const IvfpqMetaData *meta,
						  IvfpqAddress address, uint32 list, uint32 gen,
						  uint32 dead);
extern void IvfpqSlabReclaim(Relation index, const IvfpqLayout *layout,
							 IvfpqAddress address, uint32 list, uint32 gen);
extern bool IvfpqListRewrite(Relation index, const IvfpqMetaData *meta,
							 uint32 list, BufferAccessStrategy strategy);

/* ----
 * What the files of the lists' reader share.
 */

/* Bytes of a slot before its keys. */
static inline int
IvfpqBeforeKeys(const IvfpqLayout *layout)
{
	return (int) sizeof(IvfpqSlotHeader) + layout->keys_at;
}

/* Returns whether blocks can be read optimistically. */
static inline bool
IvfpqReaderIsOptimistic(const IvfpqListReader *reader)
{
	return reader->wants == NULL && reader->layout.nparts == 1;
}

/*
 * Returns how many postings the newest block has, where nleft are left in it
 * and older ones.
 */
static inline int
IvfpqPostingsInBlock(uint32 nleft)
{
	return (nleft - 1) % IVFPQ_BLOCK_POSTINGS + 1;
}

/* The block that is next older. */
static inline IvfpqAddress
IvfpqOlderBlock(const IvfpqSlotHeader *header)
{
	IvfpqAddress address = {.page = header->prev_page,
	.slot = header->prev_slot};

	return address;
}

/* listread.c */

/* listread.c: pages and blocks that come next */

#endif							/* IVFPQ_LISTREAD_H */
