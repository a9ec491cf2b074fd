/*
 * bufhint.c
 *		In which shared buffers a backend found pages lately.
 *
 * A query reads some hundred pages, of index and table, and to find one in
 * PostgreSQL's hash table takes a chain of accesses to memory that is not
 * in the cache, a third of a microsecond each time.  Most pages are where
 * they were the last time, and there is a function to look whether one still
 * is: ReadRecentBuffer.
 *
 * It does not raise a buffer's usage count, though, and pages that are only
 * read so would be the first to be thrown out.  So it is used where the count
 * cannot be raised any more; all others go the usual way.  Which pages stay is
 * thus the same with and without.
 *
 * Many pages share a slot of the table, which has the one that was read last.
 * ReadRecentBuffer checks the slot's buffer again, so the table needs neither
 * names nor invalidation.
 */
#include "postgres.h"

#include "pgstat.h"
#include "port/pg_bitutils.h"
#ifndef IVFPQ_PLAIN_BUFFERS
#include "storage/buf_internals.h"
#endif
#include "utils/memutils.h"
#include "utils/rel.h"

#include "page/buffer/bufhint.h"
#include "pgcompat.h"

#ifdef IVFPQ_PLAIN_BUFFERS

/* The same without relying on PostgreSQL's internals: see README. */

Buffer
IvfpqBufHintPin(Relation rel, BlockNumber blkno)
{
	return InvalidBuffer;
}

Buffer
IvfpqBufHintRead(Relation rel, BlockNumber blkno,
				 BufferAccessStrategy strategy)
{
	return ReadBufferExtended(rel, MAIN_FORKNUM, blkno, RBM_NORMAL, strategy);
}

const char *
IvfpqBufHintFetch(Relation rel, BlockNumber blkno, Size offset, Size bytes)
{
	return NULL;
}

#else

#define MOST_PLACES		(1 << 18)	/* 1 MB */

static Buffer *places = NULL;	/* [nplaces] or InvalidBuffer */
static uint32 nplaces;

/* No more than there are buffers. */
static void
make_places(void)
{
	uint32		n = pg_nextpower2_32(Min(Max(NBuffers, 16), MOST_PLACES));

	places = MemoryContextAllocZero(TopMemoryContext, n * sizeof(Buffer));
	nplaces = n;
}

/* Where a page's buffer is noted: neighbors' side by side. */
static inline Buffer *
place_of(Relation rel, BlockNumber blkno)
{
	return &places[(RelationGetRelid(rel) * 0x9E3779B1U + blkno) &
				   (nplaces - 1)];
}

/* Would another use leave the buffer's count as it is? */
static inline bool
is_hot(Buffer buffer)
{
	BufferDesc *desc = GetBufferDescriptor(buffer - 1);

	return IvfpqBufferUsage(desc) == BM_MAX_USAGE_COUNT;
}

/* See bufhint.h. */
Buffer
IvfpqBufHintPin(Relation rel, BlockNumber blkno)
{
	Buffer		buffer;

	if (places == NULL || RelationUsesLocalBuffers(rel))
		return InvalidBuffer;
	buffer = *place_of(rel, blkno);
	if (!BufferIsValid(buffer) || !is_hot(buffer) ||
		!IvfpqReadRecentBuffer(rel, blkno, buffer))
		return InvalidBuffer;
	pgstat_count_buffer_read(rel);
	pgstat_count_buffer_hit(rel);
	return buffer;
}

/* See bufhint.h. */
Buffer
IvfpqBufHintRead(Relation rel, BlockNumber blkno,
				 BufferAccessStrategy strategy)
{
	Buffer		buffer;

	if (strategy != NULL || RelationUsesLocalBuffers(rel))
		return ReadBufferExtended(rel, MAIN_FORKNUM, blkno, RBM_NORMAL,
								  strategy);
	if (places == NULL)
		make_places();
	buffer = IvfpqBufHintPin(rel, blkno);
	if (!BufferIsValid(buffer))
		*place_of(rel, blkno) = buffer = ReadBuffer(rel, blkno);
	return buffer;
}

/* See bufhint.h. */
const char *
IvfpqBufHintFetch(Relation rel, BlockNumber blkno, Size offset, Size bytes)
{
	const char *page;
	Buffer		buffer;

	if (places == NULL || RelationUsesLocalBuffers(rel))
		return NULL;
	buffer = *place_of(rel, blkno);
	if (!BufferIsValid(buffer))
		return NULL;
	page = (const char *) BufferGetPage(buffer);
	__builtin_prefetch(GetBufferDescriptor(buffer - 1));
	__builtin_prefetch(page);
	IvfpqFetch(page + offset, page + offset + bytes);
	return page;
}

#endif
