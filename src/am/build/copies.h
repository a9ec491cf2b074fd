/*
 * copies.h
 *		Copies of rows on their way from the engine to lists (copies.c).
 */
#ifndef IVFPQ_COPIES_H
#define IVFPQ_COPIES_H

#include "utils/tuplesort.h"

#include "page/page.h"

/* A copy in memory or in a file; its code [code_bytes] follows. */
typedef struct IvfpqStoredCopy
{
	uint32		list;
	float4		t;
	ItemPointerData tid;
	ItemPointerData refine;
	bool		second;
} IvfpqStoredCopy;

/* Store a copy and its code. */
static inline void
IvfpqStoreCopy(IvfpqStoredCopy *item, uint32 list, const IvfpqCopy *copy,
			   int code_bytes)
{
	memset(item, 0, sizeof(*item));
	item->list = list;
	item->t = copy->t;
	item->tid = copy->tid;
	item->refine = copy->refine;
	item->second = copy->second;
	memcpy(item + 1, copy->code, code_bytes);
}

/* What was stored, with its code where that is. */
static inline void
IvfpqTakeCopy(const IvfpqStoredCopy *item, const void *code, IvfpqCopy *copy)
{
	copy->t = item->t;
	copy->tid = item->tid;
	copy->refine = item->refine;
	copy->second = item->second;
	copy->code = code;
}

typedef struct IvfpqCopies
{
	int			nlists;
	int			code_bytes;
	Size		limit;			/* bytes of memory to be used */
	uint32	   *counts;			/* [nlists] copies of each list */
	int64		n;				/* of all */

	/* as long as they fit into memory */
	Size		item_bytes;
	char	  **chunks;			/* [nchunks] of CHUNK_ITEMS items each */
	int			nchunks;
	uint32	   *order;			/* [n] once they are sorted */
	int64		next;			/* to hand out */

	/* when they do not */
	Tuplesortstate *sort;		/* NULL: they do */
	TupleTableSlot *slot;
	bytea	   *item;			/* column of the sort */
} IvfpqCopies;

extern void IvfpqCopiesBegin(IvfpqCopies *copies, int nlists, int code_bytes,
							 Size limit);
extern void IvfpqCopiesPut(IvfpqCopies *copies, uint32 list,
						   const IvfpqCopy *copy);
extern void IvfpqCopiesSort(IvfpqCopies *copies);
extern void IvfpqCopiesNext(void *arg, IvfpqCopy *copy);
extern void IvfpqCopiesEnd(IvfpqCopies *copies);

#endif							/* IVFPQ_COPIES_H */
