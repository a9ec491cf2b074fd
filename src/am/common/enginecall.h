/*
 * enginecall.h
 *		Calls of the engine from a backend, and TIDs in the form that the
 *		engine uses (enginecall.c).
 */
#ifndef IVFPQ_ENGINECALL_H
#define IVFPQ_ENGINECALL_H

#include "common/hashfn.h"
#include "storage/itemptr.h"

#include "engine/gv_engine.h"
#include "page/format.h"

extern const GvStop ivfpq_stop;

extern void IvfpqCheckStatus(GvStatus status);
extern void *IvfpqAllocScratch(Size size, void **chunk);
extern void IvfpqTopKResize(GvTopK *top, int capacity);
extern bool IvfpqWantsBlock(const void *condition,
							const IvfpqSlotHeader *header,
							const char *keys);

/* An "id" is a TID as a number: the block number, then the offset number. */
#define IVFPQ_ID_SHIFT			16

/* An id that no row has, because its block is InvalidBlockNumber. */
#define IVFPQ_NO_ROW			UINT64CONST(0xFFFFFFFFFFFF)

static inline uint64
IvfpqTidToId(const ItemPointerData *tid)
{
	return ((uint64) ItemPointerGetBlockNumberNoCheck(tid) << IVFPQ_ID_SHIFT) |
		ItemPointerGetOffsetNumberNoCheck(tid);
}

/* Returns the id of a TID in the engine's form, words [3]. */
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

/* Sets of ids, made by simplehash: tidset_insert() and other functions. */
typedef struct TidSetEntry
{
	uint64		id;
	char		status;
	bool		matched;		/* neither the scan's filter nor its key quals
								 * reject the row; see depth.c */
	bool		invisible;		/* the snapshot does not see the row */
} TidSetEntry;

#define SH_PREFIX			tidset
#define SH_ELEMENT_TYPE		TidSetEntry
#define SH_KEY_TYPE			uint64
#define SH_KEY				id
#define SH_HASH_KEY(tb, key) \
	murmurhash32((uint32) (key) ^ murmurhash32((uint32) ((key) >> 32)))
#define SH_EQUAL(tb, a, b)	((a) == (b))
#define SH_SCOPE			static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#endif							/* IVFPQ_ENGINECALL_H */
