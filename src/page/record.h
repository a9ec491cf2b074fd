/*
 * record.h
 *		Refine records: their pages, and what reads and writes them.
 */
#ifndef IVFPQ_RECORD_H
#define IVFPQ_RECORD_H

#include "port/atomics.h"

#include "page/buffer/prefetch.h"
#include "page/page.h"

/*
 * Refine page: a header, then equal slots, one for each row.  Pages with free
 * slots are chained from the metapage; a page that has become full stays in
 * the chain until it is its head and an inserter finds it so.  In a trained
 * index a refine page never becomes a page of another kind, so what a copy's
 * address leads to is always a slot.
 */
typedef struct IvfpqRecordHeader
{
	BlockNumber next;			/* in the chain; InvalidBlockNumber = end */
	uint16		chained;		/* 1: the page is in the chain */
	uint16		nused;			/* slots that are not free */
} IvfpqRecordHeader;

/*
 * A slot: a row's vector in 8 bits a dimension (GvRefine).  Its address, as
 * copies carry it, is an ItemPointerData of block and slot + 1.
 */
typedef struct IvfpqRecord
{
	float4		min;
	float4		step;
	float4		error;
	ItemPointerData tid;		/* the row; offset 0 = the slot is free */
	uint8		codes[FLEXIBLE_ARRAY_MEMBER];	/* [dims] */
} IvfpqRecord;

StaticAssertDecl(sizeof(IvfpqRecordHeader) == 8, "refine header is 8 bytes");
StaticAssertDecl(offsetof(IvfpqRecord, codes) == 18,
				 "a refine record's codes follow its TID");

/* layout.c */
extern int	IvfpqRecordMaxDims(void);
extern int	IvfpqRecordSlotBytes(int dims);
extern int	IvfpqRecordSlots(int dims);

/*
 * record.c: refine records.  A builder writes those of rows in bulk,
 * page by page, of an index that has none yet.
 */
typedef struct IvfpqRecordBuilder
{
	Relation	index;
	int			dims;
	bool		log;			/* log each page: others see the index */
	BlockNumber blkno;			/* page being filled, or InvalidBlockNumber */
	BlockNumber next;			/* reserved pages from here ... */
	BlockNumber end;			/* ... to before here */
	BlockNumber reserved;		/* so far */
	char	   *page;			/* [BLCKSZ] its image; on disk it is new yet */
} IvfpqRecordBuilder;

extern IvfpqRecord *IvfpqRecordGet(Page page, int dims, uint32 slot);
extern IvfpqRecordHeader *IvfpqRecordPageHeader(Page page);
extern void IvfpqRecordAppend(Relation index, int dims,
							  const IvfpqRecord *record,
							  ItemPointer address);
extern void IvfpqRecordRead(Relation index, int dims,
							const ItemPointerData *addresses, int n,
							char *records, IvfpqPrefetch *prefetch);
extern bool IvfpqRecordPageCopy(Relation index, BlockNumber blkno,
								BufferAccessStrategy strategy, char *page);
extern void IvfpqRecordVacuum(Relation index, int dims, BlockNumber blkno,
							  BufferAccessStrategy strategy,
							  IndexBulkDeleteCallback callback,
							  void *callback_state);
extern void IvfpqRecordBuilderInit(IvfpqRecordBuilder *builder,
								   Relation index, int dims, bool log);
extern void IvfpqRecordBuilderAdd(IvfpqRecordBuilder *builder,
								  const IvfpqRecord *record,
								  ItemPointer address);
extern void IvfpqRecordBuilderFinish(IvfpqRecordBuilder *builder,
									 pg_atomic_uint32 *head);

#endif							/* IVFPQ_RECORD_H */
