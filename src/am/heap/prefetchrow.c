/*
 * prefetchrow.c
 *		Rows of a table on their way into the processor's cache before they are
 *		reranked.
 *
 * A row takes three accesses to memory, each of which says where the next one
 * goes: the page's buffer, the row's line pointer, the row.  Alone they take
 * longer than to compute a distance.  So those of several rows are under way
 * at once: a few rows ahead, where pages were found lately is looked up
 * (bufcache.c), nearer ones are pinned and their line pointers read.
 *
 * That is without a lock, as nothing but the processor's cache depends on it.
 */
#include "postgres.h"

#include "am/common/enginecall.h"
#include "am/heap/prefetchrow.h"
#include "page/bufcache.h"

/*
 * Rows whose turn comes together.  To find out where an address is in memory
 * takes as long as to fetch from there, and the processor does it for several
 * at once.
 */
#define ROWS_TOGETHER	4

/* Rows of which that is found out at once, before the first is looked at. */
#define ROWS_SOUGHT		64

StaticAssertDecl(IVFPQ_HELD_PAGES == 2 * ROWS_TOGETHER,
				 "those that are read, and the next ones");

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

/* The pages of ROWS_TOGETHER rows from number i on will be pinned soon. */
static void
look_up(const IvfpqPrefetchRow *rows, int64 i)
{
	int64		end = Min(i + ROWS_TOGETHER, rows->n);
	int			at;

	for (; i < end; i++)
		if (find_line_pointer(rows->ids[i], &at))
			IvfpqBufHintFetch(rows->heap, block_of(rows, i), at,
							  sizeof(ItemIdData));
}

/* Where a row is on a page, [*from, *end); nowhere: NULL. */
static void
find_row(Buffer buffer, uint64 id, const char **from, const char **end)
{
	const char *page;
	ItemIdData	item;
	int			at;

	*from = *end = NULL;
	if (!BufferIsValid(buffer) || !find_line_pointer(id, &at))
		return;
	page = (const char *) BufferGetPage(buffer);
	memcpy(&item, page + at, sizeof(item));
	if (item.lp_off + item.lp_len > BLCKSZ)
		return;
	*from = page + item.lp_off;
	*end = *from + item.lp_len;
}

/*
 * Pin the pages of as many rows from number i on, and have the rows fetched.
 */
static void
hold(IvfpqPrefetchRow *rows, int64 i)
{
	const char *from[ROWS_TOGETHER];
	const char *end[ROWS_TOGETHER];
	int			n = (int) Max(Min(ROWS_TOGETHER, rows->n - i), 0);

	for (int r = 0; r < n; r++)
		rows->held[(i + r) % IVFPQ_HELD_PAGES] =
			IvfpqBufHintPin(rows->heap, block_of(rows, i + r));
	for (int r = 0; r < n; r++)
		find_row(rows->held[(i + r) % IVFPQ_HELD_PAGES], rows->ids[i + r],
				 &from[r], &end[r]);
	/* the first of each, and so where they are in memory, side by side */
	for (int r = 0; r < n; r++)
		__builtin_prefetch(from[r], 0, 2);
	for (int r = 0; r < n; r++)
		IvfpqFetch(from[r], end[r]);
}

/* Pass row i: its page's pin is the caller's. */
static Buffer
pass(IvfpqPrefetchRow *rows, int64 i)
{
	Buffer	   *held = &rows->held[i % IVFPQ_HELD_PAGES];
	Buffer		buffer = *held;

	*held = InvalidBuffer;
	if (i % ROWS_TOGETHER == 0)
	{
		hold(rows, i + ROWS_TOGETHER);
		if (i + 2 * ROWS_TOGETHER >= ROWS_SOUGHT)
			look_up(rows, i + 2 * ROWS_TOGETHER);
	}
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
	for (int64 i = 0; i < Min(n, ROWS_SOUGHT); i += ROWS_TOGETHER)
		look_up(rows, i);
	hold(rows, 0);
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
