/*
 * version.c
 *		Which version of its directory an index has: a number that another one
 *		can be compared with.
 *
 * Every change of a directory page is logged, and leaves the record's place in
 * the log (LSN) on the page, under the page's exclusive lock.  LSNs ascend.  So
 * a page that has the LSN that it had is as it was, and a directory whose pages
 * have the LSNs that they had is.  A standby's replay leaves the same LSNs.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/rel.h"

#include "page/page.h"

/* More are not worth it, nor is it to look at more pages than lists. */
#define MOST_PAGES		128

/* The number of directory pages. */
BlockNumber
IvfpqDirectoryPages(const IvfpqMetaData *meta)
{
	return (meta->nlists + IVFPQ_ENTRIES_PER_PAGE - 1) /
		IVFPQ_ENTRIES_PER_PAGE;
}

/* Bijective in each of both, and each bit depends on all. */
static uint64
mix(uint64 version, XLogRecPtr lsn)
{
	version ^= lsn;
	version = (version ^ version >> 33) * UINT64CONST(0xFF51AFD7ED558CCD);
	version = (version ^ version >> 33) * UINT64CONST(0xC4CEB9FE1A85EC53);
	return version ^ version >> 33;
}

/*
 * The version of a trained index's directory, by the LSNs of its pages, of
 * which one at a time is share-locked, in order; 0: it has none.  Where changes
 * are not logged they leave no LSN.
 *
 * If it is the same twice, then at any time between, after the last page was
 * looked at for the first time and before the first one was for the second, the
 * entries of all lists were what they are.
 */
uint64
IvfpqDirectoryVersion(Relation index, const IvfpqMetaData *meta)
{
	BlockNumber npages = IvfpqDirectoryPages(meta);
	uint64		version = 0;

	if (!RelationNeedsWAL(index) || npages > MOST_PAGES)
		return 0;
	for (BlockNumber i = 0; i < npages; i++)
	{
		Buffer		buf = IvfpqReadPage(index, meta->directory + i,
										BUFFER_LOCK_SHARE,
										IVFPQ_KIND_DIRECTORY, NULL);

		version = mix(version, PageGetLSN(BufferGetPage(buf)));
		UnlockReleaseBuffer(buf);
		CHECK_FOR_INTERRUPTS();
	}
	return version != 0 ? version : 1;
}
