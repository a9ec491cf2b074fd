/*
 * count.c
 *		How many rows an index has, in lists and pending.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "am/common/count.h"
#include "page/pending.h"

/* Sum up the directory. */
void
IvfpqSumLists(Relation index, const IvfpqMetaData *meta,
			  IvfpqListTotals *totals)
{
	memset(totals, 0, sizeof(*totals));
	for (int list = 0; list < meta->nlists; list++)
	{
		IvfpqListEntry entry;
		int64		live;

		CHECK_FOR_INTERRUPTS();
		IvfpqListEntryRead(index, meta, list, &entry);
		live = (int64) entry.nitems - entry.ndead;
		totals->rows += entry.nfirst;
		totals->live += live;
		totals->dead += entry.ndead;
		totals->blocks += (entry.nitems + IVFPQ_BLOCK_COPIES - 1) /
			IVFPQ_BLOCK_COPIES;
		if (live > totals->longest)
		{
			totals->longest = live;
			totals->longest_list = list;
		}
	}
}

/* The rows in lists. */
int64
IvfpqCountRows(Relation index, const IvfpqMetaData *meta)
{
	IvfpqListTotals totals;

	IvfpqSumLists(index, meta, &totals);
	return totals.rows;
}

/*
 * Has the index at least that many rows?  Statistics may be old, so they are
 * not believed when they say no.
 */
bool
IvfpqHasRows(Relation index, const IvfpqMetaData *meta, double rows)
{
	return rows <= index->rd_rel->reltuples ||
		rows <= meta->rows_at_training ||
		rows <= IvfpqCountRows(index, meta);
}

/* The pending rows, counted. */
int64
IvfpqCountPending(Relation index, const IvfpqMetaData *meta)
{
	IvfpqPendingReader reader;
	int64		total = 0;
	int			count;

	IvfpqPendingOpen(&reader, index, meta);
	while (IvfpqPendingNext(&reader, &count))
	{
		if (reader.restarted)
			total = 0;
		reader.restarted = false;
		total += count;
	}
	IvfpqPendingClose(&reader);
	return total;
}
