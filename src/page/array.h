/*
 * array.h
 *		Immutable arrays of vectors: mean, codebooks, centroids, their codes.
 *
 * An array is a stream of floats over consecutive pages.  It is written before
 * anything points to it and never changes, so readers pin its pages and lock
 * none of them.
 */
#ifndef IVFPQ_ARRAY_H
#define IVFPQ_ARRAY_H

#include "page/page.h"

/* Number of floats on a page of an array. */
#define IVFPQ_FLOATS_PER_PAGE	((int64) (IVFPQ_PAGE_BYTES / sizeof(float4)))

/* State of reading an array of vectors. */
typedef struct IvfpqArrayReader
{
	Relation	index;
	BlockNumber first;			/* first page of the array */
	int			dims;			/* floats in a vector */
	int64		nvectors;
	int64		next;			/* number of the vector to return next */
	Buffer		buffer;			/* page read last, pinned, or InvalidBuffer */
	float	   *spill;			/* [dims] copy of a vector on several pages */
	bool		fetches;		/* caller reads all pages: prefetch them */
} IvfpqArrayReader;

/*
 * Returns the number of floats in a block of the centroids' codes.  The array
 * of these codes consists of blocks, each of which is read as one vector.  A
 * block is like a block of a list, but has only T and codes, and its centroids
 * all have the same parent:
 *		t		float4 [32]
 *		codes	uint8 [code_bytes][32]
 */
static inline int
IvfpqCodeBlockFloats(const IvfpqMetaData *meta)
{
	return IVFPQ_BLOCK_POSTINGS +
		(meta->pq_dim + 1) / 2 * IVFPQ_BLOCK_POSTINGS /
		(int) sizeof(float4);
}

/*
 * Returns the number of a parent's first block, given the parent's first list.
 *
 * A parent with n lists needs ceil(n / 32) blocks.  Each parent has at least
 * that many, because from one parent to the next, floor(first_list / 32) grows
 * by at least floor(n / 32), and `parent` grows by 1.  Blocks that no parent
 * needs are all zero.
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

/* reading all vectors, in order; IvfpqArrayClose releases the pin */
extern void IvfpqArrayOpen(IvfpqArrayReader *reader, Relation index,
						   BlockNumber first, int dims, int64 nvectors);
extern const float *IvfpqArrayNext(IvfpqArrayReader *reader, int *count);
extern void IvfpqArrayPrefetch(const IvfpqArrayReader *reader, int64 i);
extern void IvfpqArrayClose(IvfpqArrayReader *reader);

/* copying single vectors; these functions leave no pin */
extern void IvfpqArrayFetch(Relation index, BlockNumber first, int dims,
							int64 i, float *out);
extern void IvfpqArrayFetchSome(Relation index, BlockNumber first, int dims,
								const uint64 *ids, int n, float *out);

extern void IvfpqArrayWrite(Relation index, const IvfpqMetaData *meta,
							BlockNumber first,
							const float *values, int64 nvalues, bool shared);

#endif							/* IVFPQ_ARRAY_H */
