/*
 * prefetchpage.c
 *		Rows of a table that is read from end to end, on their way into the
 *		processor's cache.
 *
 * A condition looks at a few bytes of each row.  With rows as wide as vectors
 * these are far apart, so that no processor guesses where it goes on, and
 * reading a table waits for memory most of the time.  So while the rows of a
 * page are asked, those of the next one are fetched, and the line pointers of
 * the one behind that, which say where its rows are.
 *
 * That is without a lock, as nothing but the processor's cache depends on it.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "storage/bufpage.h"
#include "utils/rel.h"

#include "am/heap/prefetchpage.h"
#include "page/bufcache.h"

#define ROW_BYTES		128		/* the row's header, and columns behind it */
#define POINTERS_BYTES	128		/* the page's header, and line pointers */

/* Pin a page, if there is one, and have its line pointers fetched. */
static void
hold(IvfpqPrefetchPage *pages, BlockNumber blkno)
{
	const char *page;

	if (blkno >= pages->nblocks)
		return;
	pages->held = IvfpqBufHintRead(pages->heap, blkno, NULL);
	page = (const char *) BufferGetPage(pages->held);
	IvfpqFetch(page, page + POINTERS_BYTES);
}

/* Have the rows of the page that is held fetched, and let go of it. */
static void
fetch_rows(IvfpqPrefetchPage *pages)
{
	Page		page;
	OffsetNumber n;

	if (!BufferIsValid(pages->held))
		return;
	page = BufferGetPage(pages->held);
	n = Min(PageGetMaxOffsetNumber(page), MaxHeapTuplesPerPage);
	for (OffsetNumber i = FirstOffsetNumber; i <= n; i++)
	{
		ItemIdData	item = *PageGetItemId(page, i);
		const char *row = (const char *) page + item.lp_off;

		if (item.lp_off + item.lp_len <= BLCKSZ)
			IvfpqFetch(row, row + Min(item.lp_len, ROW_BYTES));
	}
	ReleaseBuffer(pages->held);
	pages->held = InvalidBuffer;
}

/*
 * See prefetchpage.h.  A table that PostgreSQL reads through a ring of buffers
 * would throw out others' pages if its pages were read any other way.
 */
void
IvfpqPrefetchPageBegin(IvfpqPrefetchPage *pages, Relation heap)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(heap);

	pages->heap = heap;
	pages->nblocks = heap->rd_tableam == GetHeapamTableAmRoutine() &&
		nblocks <= (BlockNumber) NBuffers / 4 ? nblocks : 0;
	pages->at = InvalidBlockNumber;
	pages->held = InvalidBuffer;
}

/* See prefetchpage.h. */
void
IvfpqPrefetchPageTo(IvfpqPrefetchPage *pages, BlockNumber blkno)
{
	if (blkno == pages->at || pages->nblocks == 0)
		return;
	pages->at = blkno;
	if (!BufferIsValid(pages->held))
		hold(pages, blkno + 1);
	fetch_rows(pages);
	hold(pages, blkno + 2);
}

/* See prefetchpage.h. */
void
IvfpqPrefetchPageEnd(IvfpqPrefetchPage *pages)
{
	if (BufferIsValid(pages->held))
		ReleaseBuffer(pages->held);
	pages->held = InvalidBuffer;
}
