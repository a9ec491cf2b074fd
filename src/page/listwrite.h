/*
 * listwrite.h
 *		Slots of small-list pages, and functions that change inverted lists.
 */
#ifndef IVFPQ_LISTWRITE_H
#define IVFPQ_LISTWRITE_H

#include "page/page.h"

/*
 * Returns slot number `slot` of a small-list page.  The slot's header is
 * followed by a part of a block's body.
 */
static inline IvfpqSlotHeader *
IvfpqSlabSlot(Page page, const IvfpqLayout *layout, uint32 slot)
{
	Assert(slot < (uint32) layout->slots_per_page);
	return (IvfpqSlotHeader *) (PageGetContents(page) +
								(Size) slot * layout->slot_bytes);
}

/* Inserts and flushing: appending a posting. */
extern bool IvfpqListAppend(Relation index, const IvfpqMetaData *meta,
							const IvfpqLayout *layout, uint32 list,
							const IvfpqPosting *posting,
							const IvfpqPendingPlace *pending);
extern void IvfpqFreezeLists(Relation index, const IvfpqMetaData *meta,
							 bool freeze);

/* Builds and training: writing whole lists, and the directory. */
typedef struct IvfpqWriter
{
	Relation	index;
	bool		shared;			/* other backends use the index */
	IvfpqLayout layout;
	struct
	{
		BlockNumber next;		/* page to be filled next */
		BlockNumber end;		/* first page after the run */
	}			reserved[2];	/* run being filled, and the run after it */
	BlockNumber nleft;			/* pages needed but not reserved yet */
	BlockNumber slab_blkno;		/* block for `slab`, or InvalidBlockNumber */
	char	   *slab;			/* [BLCKSZ] page of slots being filled */
	uint32		slot;			/* next free slot of that page */
	char	   *body;			/* [nparts][part_bytes] block being filled */
} IvfpqWriter;

extern void IvfpqWriterInit(IvfpqWriter *writer, Relation index,
							const IvfpqMetaData *meta, const uint32 *counts,
							int nlists, bool shared);
extern void IvfpqWriterList(IvfpqWriter *writer, uint32 list, uint32 nitems,
							void (*next) (void *arg, IvfpqPosting *posting),
							void *arg, IvfpqDirEntry *entry);
extern void IvfpqWriterFinish(IvfpqWriter *writer);
extern void IvfpqDirectoryWrite(Relation index, const IvfpqMetaData *meta,
								const IvfpqDirEntry *entries, bool shared);
extern void IvfpqLogBuild(Relation index, BlockNumber first,
						  BlockNumber end);

/* VACUUM: marking postings dead, rewriting lists, and freeing slots. */
extern bool IvfpqSlabRead(Relation index, const IvfpqLayout *layout,
						  BlockNumber blkno, BufferAccessStrategy strategy,
						  char *page);
extern void IvfpqSlabRecordFree(Relation index, const IvfpqLayout *layout,
								BlockNumber blkno, Page page);
extern void IvfpqMarkDead(Relation index, const IvfpqMetaData *meta,
						  const IvfpqLayout *layout, IvfpqAddress address,
						  uint32 list, uint32 gen, uint32 dead);
extern void IvfpqSlabReclaim(Relation index, const IvfpqLayout *layout,
							 IvfpqAddress address, uint32 list, uint32 gen);
extern bool IvfpqListRewrite(Relation index, const IvfpqMetaData *meta,
							 const IvfpqLayout *layout, uint32 list,
							 BufferAccessStrategy strategy);

#endif							/* IVFPQ_LISTWRITE_H */
