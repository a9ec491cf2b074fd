/*
 * refinepage.h
 *		Refine records: what reads and writes them.
 */
#ifndef IVFPQ_REFINEPAGE_H
#define IVFPQ_REFINEPAGE_H

#include "port/atomics.h"

#include "page/bufcache.h"
#include "page/page.h"

/*
 * refinepage.c: refine records.  A builder writes those of rows in bulk,
 * page by page, of an index that has none yet.
 */
typedef struct IvfpqRecordBuilder
{
	Relation	index;
	int			code_bytes;		/* of a record */
	bool		log;			/* log each page: others see the index */
	BlockNumber blkno;			/* page being filled, or InvalidBlockNumber */
	BlockNumber next;			/* reserved pages: from this one */
	BlockNumber end;			/* to before this one */
	BlockNumber reserved;		/* so far */
	char	   *page;			/* [BLCKSZ] its contents; on disk it is new
								 * yet */
} IvfpqRecordBuilder;

extern IvfpqRecord *IvfpqRecordGet(Page page, int code_bytes, uint32 slot);
extern IvfpqRecordHeader *IvfpqRecordPageHeader(Page page);
extern void IvfpqRecordAppend(Relation index, int code_bytes,
							  const IvfpqRecord *record,
							  ItemPointer address);
extern void IvfpqRecordRead(Relation index, int code_bytes,
							const ItemPointerData *addresses, int n,
							char *records, IvfpqPrefetch *prefetch);
extern bool IvfpqRecordPageCopy(Relation index, BlockNumber blkno,
								BufferAccessStrategy strategy, char *page);
extern void IvfpqRecordVacuum(Relation index, int code_bytes, BlockNumber blkno,
							  BufferAccessStrategy strategy,
							  IndexBulkDeleteCallback callback,
							  void *callback_state);
extern void IvfpqRecordBuilderInit(IvfpqRecordBuilder *builder,
								   Relation index, int code_bytes, bool log);
extern void IvfpqRecordBuilderAdd(IvfpqRecordBuilder *builder,
								  const IvfpqRecord *record,
								  ItemPointer address);
extern void IvfpqRecordBuilderFinish(IvfpqRecordBuilder *builder,
									 pg_atomic_uint32 *head);

#endif							/* IVFPQ_REFINEPAGE_H */
