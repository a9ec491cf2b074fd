/*
 * array.h
 *		Immutable arrays of vectors, a stream of floats over consecutive pages
 *		(array.c).
 */
#ifndef IVFPQ_ARRAY_H
#define IVFPQ_ARRAY_H

#include "page/page.h"

/* Floats on a page of an array. */
#define IVFPQ_FLOATS_PER_PAGE	((int64) (IVFPQ_PAGE_BYTES / sizeof(float4)))

/*
 * Centroids' codes: blocks as lists have them, of T and codes, each of one
 * parent's centroids.  A block is a vector of an array:
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
 * Number of a parent's first block, given its first list: the numbers before
 * it suffice for all blocks of the parents before, and the blocks that are
 * left over are 0.
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

/* Hands out runs of whole vectors; pointers are good until the next call. */
typedef struct IvfpqArrayReader
{
	Relation	index;
	BlockNumber first;			/* page of vector 0 */
	int			dims;			/* floats in a vector */
	int64		nvectors;
	int64		next;			/* next vector to hand out */
	Buffer		buffer;			/* pinned, not locked, or InvalidBuffer */
	float	   *spill;			/* [dims] a vector that crosses pages */
	bool		fetches;		/* the next page, as all are read */
} IvfpqArrayReader;

extern void IvfpqArrayOpen(IvfpqArrayReader *reader, Relation index,
						   BlockNumber first, int dims, int64 nvectors);
extern const float *IvfpqArrayNext(IvfpqArrayReader *reader, int *count);
extern void IvfpqArrayPrefetch(const IvfpqArrayReader *reader, int64 i);
extern void IvfpqArrayClose(IvfpqArrayReader *reader);
extern void IvfpqArrayFetch(Relation index, BlockNumber first, int dims,
							int64 i, float *out);
extern void IvfpqArrayFetchSome(Relation index, BlockNumber first, int dims,
								const uint64 *ids, int n, float *out);
extern void IvfpqArrayWrite(Relation index, BlockNumber first,
							const float *values, int64 nvalues, bool shared);

#endif							/* IVFPQ_ARRAY_H */
