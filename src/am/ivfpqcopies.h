/*
 * ivfpqcopies.h
 *		Copies of rows on their way from the engine to lists (ivfpqcopies.c).
 */
#ifndef IVFPQCOPIES_H
#define IVFPQCOPIES_H

#include "utils/tuplesort.h"

#include "page/ivfpqpage.h"

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

#endif							/* IVFPQCOPIES_H */
