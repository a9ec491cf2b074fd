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

#define PAGES_AHEAD		8		/* rows whose pages are looked up */

static inline BlockNumber
block_of(const IvfpqComing *coming, int64 i)
{
	return (BlockNumber) (coming->ids[i] >> IVFPQ_ID_SHIFT);
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
look_up(const IvfpqComing *coming, int64 i)
{
	int			at;

	if (i < coming->n && find_line_pointer(coming->ids[i], &at))
		IvfpqRecentFetch(coming->heap, block_of(coming, i), at,
						 sizeof(ItemIdData));
}

/* Pin the page of row i, if there is one, and have the row fetched. */
static void
hold(IvfpqComing *coming, int64 i)
{
	Buffer		buffer;
	ItemIdData	item;
	const char *page;
	int			at;

	if (i >= coming->n || !find_line_pointer(coming->ids[i], &at))
		return;
	buffer = IvfpqRecentPin(coming->heap, block_of(coming, i));
	coming->held[i % IVFPQ_HELD_PAGES] = buffer;
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
pass(IvfpqComing *coming, int64 i)
{
	Buffer	   *held = &coming->held[i % IVFPQ_HELD_PAGES];
	Buffer		buffer = *held;

	*held = InvalidBuffer;
	hold(coming, i + IVFPQ_HELD_PAGES);
	look_up(coming, i + PAGES_AHEAD);
	return buffer;
}

/* See prefetchrow.h. */
void
IvfpqComingBegin(IvfpqComing *coming, Relation heap, const uint64 *ids,
				 int64 n)
{
	memset(coming, 0, sizeof(*coming));
	coming->heap = heap;
	coming->ids = ids;
	coming->n = n;
	for (int i = 0; i < PAGES_AHEAD; i++)
		look_up(coming, i);
	for (int i = 0; i < IVFPQ_HELD_PAGES; i++)
		hold(coming, i);
}

/* See prefetchrow.h. */
Buffer
IvfpqComingTake(IvfpqComing *coming, uint64 id)
{
	while (coming->next < coming->n && coming->ids[coming->next] <= id)
	{
		bool		found = coming->ids[coming->next] == id;
		Buffer		buffer = pass(coming, coming->next++);

		if (found)
			return buffer;
		if (BufferIsValid(buffer))
			ReleaseBuffer(buffer);
	}
	return InvalidBuffer;
}

/* See prefetchrow.h. */
void
IvfpqComingEnd(IvfpqComing *coming)
{
	for (int i = 0; i < IVFPQ_HELD_PAGES; i++)
		if (BufferIsValid(coming->held[i]))
			ReleaseBuffer(coming->held[i]);
	memset(coming, 0, sizeof(*coming));
}
