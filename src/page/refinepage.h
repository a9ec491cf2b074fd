/*
 * refinepage.h
 *		Refine records: reading, appending, freeing and bulk writing.
 */
#ifndef IVFPQ_REFINEPAGE_H
#define IVFPQ_REFINEPAGE_H

#include "port/atomics.h"

#include "page/bufcache.h"
#include "page/page.h"

extern IvfpqRecord *IvfpqRecordGet(Page page, int code_bytes, uint32 slot);
extern IvfpqRecordHeader *IvfpqRecordPageHeader(Page page);
extern bool IvfpqRecordAppend(Relation index, uint64 build_id, int code_bytes,
							  const IvfpqRecord *record,
							  ItemPointer address);
extern void IvfpqRecordRead(Relation index, int code_bytes,
							const ItemPointerData *addresses, int n,
							char *records, IvfpqPrefetch *prefetch);
extern bool IvfpqRecordPageCopy(Relation index, const IvfpqMetaData *meta,
								BlockNumber blkno,
								BufferAccessStrategy strategy, char *page);
extern void IvfpqRecordVacuum(Relation index, const IvfpqMetaData *known,
							  BlockNumber blkno,
							  BufferAccessStrategy strategy,
							  IndexBulkDeleteCallback callback,
							  void *callback_state);

/* State of writing records in bulk, to an index that has none yet. */
typedef struct IvfpqRecordBuilder
{
	Relation	index;
	uint32		training;		/* number of the training (metapage) */
	int			code_bytes;		/* bytes of a record's codes */
	bool		shared;			/* others use the index */
	bool		log;			/* WAL-log each page */
	BlockNumber blkno;			/* page being filled, or InvalidBlockNumber */
	BlockNumber next;			/* first reserved page that is not used yet */
	BlockNumber end;			/* page after the last reserved page */
	BlockNumber reserved;		/* number of pages reserved so far */
	char	   *page;			/* [BLCKSZ] contents for block blkno */
} IvfpqRecordBuilder;

extern void IvfpqRecordBuilderInit(IvfpqRecordBuilder *builder,
								   Relation index, uint32 training,
								   int code_bytes, bool shared);
extern void IvfpqRecordBuilderAdd(IvfpqRecordBuilder *builder,
								  const IvfpqRecord *record,
								  ItemPointer address);
extern void IvfpqRecordBuilderFinish(IvfpqRecordBuilder *builder,
									 pg_atomic_uint32 *head);

#endif							/* IVFPQ_REFINEPAGE_H */
