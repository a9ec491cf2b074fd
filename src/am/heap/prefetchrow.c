/*
 * prefetchrow.c
 *		Rows of a table on their way into the processor's cache before they are
 *		measured.
 *
 * A row takes three accesses to memory, each of which says where the next one
 * goes: the page's buffer, the row's line pointer, the row.  Alone they take
 * longer than to compute a distance.  So those of several rows are under way
 * at once: a few rows ahead, where pages were found lately is looked up
 * (bufhint.c), nearer ones are pinned and their line pointers read.
 *
 * That is without a lock, as nothing but the processor's cache depends on it.
 */
#include "postgres.h"

#include "am/common/tid.h"
#include "am/heap/prefetchrow.h"
#include "page/buffer/bufhint.h"

#define PREFETCHED_PAGES	8	/* rows whose pages are looked up */

static inline BlockNumber
block_of(const IvfpqPrefetchRow *rows, int64 i)
{
	return (BlockNumber) (rows->ids[i] >> IVFPQ_ID_SHIFT);
}

/* Where a page has a row's line pointer; false: no page could have it. */
static bool
find_line_pointer(uint64 id, int *at)
{
	*at = (int) (SizeOfPageHeaderData + sizeof(ItemIdData) *
				 (((int) id & 0xFFFF) - FirstOffsetNumber));
	return *at >= (int) SizeOfPageHeaderData &&
		*at + sizeof(ItemIdData) <= BLCKSZ;
}

/* The page of row i, if there is one, will be pinned soon. */
static void
look_up(const IvfpqPrefetchRow *rows, int64 i)
{
	int			at;

	if (i < rows->n && find_line_pointer(rows->ids[i], &at))
		IvfpqBufHintFetch(rows->heap, block_of(rows, i), at,
						  sizeof(ItemIdData));
}

/* Pin the page of row i, if there is one, and have the row fetched. */
static void
hold(IvfpqPrefetchRow *rows, int64 i)
{
	Buffer		buffer;
	ItemIdData	item;
	const char *page;
	int			at;

	if (i >= rows->n || !find_line_pointer(rows->ids[i], &at))
		return;
	buffer = IvfpqBufHintPin(rows->heap, block_of(rows, i));
	rows->held[i % IVFPQ_HELD_PAGES] = buffer;
	if (!BufferIsValid(buffer))
		return;
	page = (const char *) BufferGetPage(buffer);
	memcpy(&item, page + at, sizeof(item));
	if (item.lp_off + item.lp_len > BLCKSZ)
		return;
	IvfpqFetch(page + item.lp_off, page + item.lp_off + item.lp_len);
}

/* Pass row i: its page's pin is the caller's. */
static Buffer
pass(IvfpqPrefetchRow *rows, int64 i)
{
	Buffer	   *held = &rows->held[i % IVFPQ_HELD_PAGES];
	Buffer		buffer = *held;

	*held = InvalidBuffer;
	hold(rows, i + IVFPQ_HELD_PAGES);
	look_up(rows, i + PREFETCHED_PAGES);
	return buffer;
}

/* See prefetchrow.h. */
void
IvfpqPrefetchRowBegin(IvfpqPrefetchRow *rows, Relation heap, const uint64 *ids,
					  int64 n)
{
	memset(rows, 0, sizeof(*rows));
	rows->heap = heap;
	rows->ids = ids;
	rows->n = n;
	for (int i = 0; i < PREFETCHED_PAGES; i++)
		look_up(rows, i);
	for (int i = 0; i < IVFPQ_HELD_PAGES; i++)
		hold(rows, i);
}

/* See prefetchrow.h. */
Buffer
IvfpqPrefetchRowTake(IvfpqPrefetchRow *rows, uint64 id)
{
	while (rows->next < rows->n && rows->ids[rows->next] <= id)
	{
		bool		found = rows->ids[rows->next] == id;
		Buffer		buffer = pass(rows, rows->next++);

		if (found)
			return buffer;
		if (BufferIsValid(buffer))
			ReleaseBuffer(buffer);
	}
	return InvalidBuffer;
}

/* See prefetchrow.h. */
void
IvfpqPrefetchRowEnd(IvfpqPrefetchRow *rows)
{
	for (int i = 0; i < IVFPQ_HELD_PAGES; i++)
		if (BufferIsValid(rows->held[i]))
			ReleaseBuffer(rows->held[i]);
	memset(rows, 0, sizeof(*rows));
}
