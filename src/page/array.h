/*
 * array.h
 *		Immutable arrays of vectors: mean, codebooks, centroids and their codes.
 *
 * An array is a stream of floats over consecutive pages.  It never changes
 * once something points to it, so readers pin its pages and lock none.
 */
#ifndef IVFPQ_ARRAY_H
#define IVFPQ_ARRAY_H

#include "page/page.h"

/* Floats on a page of an array. */
#define IVFPQ_FLOATS_PER_PAGE	((int64) (IVFPQ_PAGE_BYTES / sizeof(float4)))

/* Reads whole vectors, front to back. */
typedef struct IvfpqArrayReader
{
	Relation	index;
	BlockNumber first;			/* page of vector 0 */
	int			dims;			/* floats in a vector */
	int64		nvectors;
	int64		next;			/* vector that is returned next */
	Buffer		buffer;			/* pinned, not locked, or InvalidBuffer */
	float	   *spill;			/* [dims] a vector that crosses pages */
	bool		fetches;		/* prefetch each next page: all are read */
} IvfpqArrayReader;

/*
 * The array of centroids' codes has blocks as lists do, but of T and codes
 * only, each of centroids of one parent.  A block is a vector of the array:
 *		t		float4 [32]
 *		codes	uint8 [code_bytes][32]
 */
static inline int
IvfpqCodeBlockFloats(const IvfpqMetaData *meta)
{
	return IVFPQ_BLOCK_POSTINGS +
		IvfpqCodeBytes(meta->pq_dim) * IVFPQ_BLOCK_POSTINGS /
		(int) sizeof(float4);
}

/*
 * Returns the number of a parent's first block, given its first list.  The
 * numbers before it suffice for the blocks of all parents before; blocks that
 * none of them needs are 0.
 */
static inline int64
IvfpqCodeBlock(int parent, int first_list)
{
	return first_list / IVFPQ_BLOCK_POSTINGS + parent;
}

static inline int64
IvfpqCodeBlocks(const IvfpqMetaData *meta)
{
	return IvfpqCodeBlock(meta->nparents, meta->nlists);
}

/* all vectors, in order; IvfpqArrayClose releases the pin */
extern void IvfpqArrayOpen(IvfpqArrayReader *reader, Relation index,
						   BlockNumber first, int dims, int64 nvectors);
extern const float *IvfpqArrayNext(IvfpqArrayReader *reader, int *count);
extern void IvfpqArrayPrefetch(const IvfpqArrayReader *reader, int64 i);
extern void IvfpqArrayClose(IvfpqArrayReader *reader);

/* single vectors, copied; no pin is left */
extern void IvfpqArrayFetch(Relation index, BlockNumber first, int dims,
							int64 i, float *out);
extern void IvfpqArrayFetchSome(Relation index, BlockNumber first, int dims,
								const uint64 *ids, int n, float *out);

extern void IvfpqArrayWrite(Relation index, BlockNumber first,
							const float *values, int64 nvalues, bool shared);

#endif							/* IVFPQ_ARRAY_H */
