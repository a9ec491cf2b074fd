/*
 * copies.h
 *		Postings on their way from the engine to lists (copies.c).
 */
#ifndef IVFPQ_COPIES_H
#define IVFPQ_COPIES_H

#include "utils/tuplesort.h"

#include "page/page.h"

/* A posting in memory or in a file; its code and abbreviated keys follow. */
typedef struct IvfpqStoredPosting
{
	uint32		list;
	float4		t;
	ItemPointerData tid;
	ItemPointerData refine;
	bool		secondary;
} IvfpqStoredPosting;

/*
 * The form of what follows an IvfpqStoredPosting: a code and, with keys, a
 * byte that tells which keys are NULL, then the abbreviated keys.
 */
typedef struct IvfpqStoredForm
{
	int			code_bytes;
	IvfpqKeyForm keys;
	int			bytes;			/* with the IvfpqStoredPosting */
} IvfpqStoredForm;

typedef struct IvfpqPostings
{
	int			nlists;
	IvfpqStoredForm form;
	Size		limit;			/* bytes of memory to be used */
	uint32	   *counts;			/* [nlists] postings of each list */
	int64		n;				/* of all */

	/* as long as they fit into memory */
	Size		item_bytes;
	char	  **chunks;			/* [nchunks] of CHUNK_ITEMS items each */
	int			nchunks;
	uint32	   *order;			/* [n] once they are sorted */
	int64		next;			/* to return */

	/* when they do not */
	Tuplesortstate *sort;		/* NULL: they do */
	TupleTableSlot *slot;
	bytea	   *item;			/* column of the sort */

	IvfpqKeyAbbrevs abbrevs;	/* of the posting returned last */
} IvfpqPostings;

extern void IvfpqStoredInit(IvfpqStoredForm *form, int code_bytes,
							const IvfpqKeyForm *keys);
extern void IvfpqStorePosting(const IvfpqStoredForm *form,
							  IvfpqStoredPosting *item,
							  uint32 list, const IvfpqPosting *posting);
extern void IvfpqTakePosting(const IvfpqStoredForm *form, const char *item,
							 IvfpqPosting *posting, IvfpqKeyAbbrevs *abbrevs);
extern void IvfpqPostingsBegin(IvfpqPostings *postings, int nlists,
							   const IvfpqStoredForm *form, Size limit);
extern void IvfpqPostingsPut(IvfpqPostings *postings, uint32 list,
							 const IvfpqPosting *posting);
extern void IvfpqPostingsSort(IvfpqPostings *postings);
extern void IvfpqPostingsNext(void *arg, IvfpqPosting *posting);
extern void IvfpqPostingsEnd(IvfpqPostings *postings);

#endif							/* IVFPQ_COPIES_H */
