/*
 * tid.h
 *		TIDs as numbers: the block above the offset.
 */
#ifndef IVFPQ_TID_H
#define IVFPQ_TID_H

#include "storage/itemptr.h"

#define IVFPQ_ID_SHIFT			16

/* No row has this one: of InvalidBlockNumber. */
#define IVFPQ_NO_ROW			UINT64CONST(0xFFFFFFFFFFFF)

static inline uint64
IvfpqTidToId(const ItemPointerData *tid)
{
	return ((uint64) ItemPointerGetBlockNumberNoCheck(tid) << IVFPQ_ID_SHIFT) |
		ItemPointerGetOffsetNumberNoCheck(tid);
}

/* The same of three words, as the engine has them. */
static inline uint64
IvfpqWordsToId(const uint16 *words)
{
	return (uint64) words[0] << 32 | (uint64) words[1] << 16 | words[2];
}

static inline void
IvfpqIdToTid(uint64 id, ItemPointer tid)
{
	ItemPointerSet(tid, (BlockNumber) (id >> 16), (OffsetNumber) (id & 0xFFFF));
}

#endif							/* IVFPQ_TID_H */
