/*
 * reader.h
 *		What the files of the lists' reader share.
 */
#ifndef IVFPQ_READER_H
#define IVFPQ_READER_H

#include "page/list/list.h"

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

/* list.c */
extern void IvfpqReaderCheckNibbles(const IvfpqListReader *reader,
									const IvfpqBlockView *view);

/* listpages.c: pages and blocks that come next */
extern void IvfpqReaderDropOptimistic(IvfpqListReader *reader);
extern void IvfpqReaderDropPrefetched(IvfpqListReader *reader);
extern Buffer IvfpqReaderPin(IvfpqListReader *reader, BlockNumber blkno);
extern void IvfpqReaderPrefetchNext(IvfpqListReader *reader,
									const IvfpqSlotHeader *last);
extern void IvfpqReaderFetchSlot(IvfpqListReader *reader);
extern const uint8 *IvfpqReaderFetchAhead(IvfpqListReader *reader);

#endif							/* IVFPQ_READER_H */
