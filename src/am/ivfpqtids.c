/*
 * ivfpqtids.c
 *		Every TID of an index, in heap order.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/tuplesort.h"

#include "am/ivfpq.h"

static void
put_tids(Tuplesortstate *sort, const ItemPointerData *tids, int count,
		 uint32 live)
{
	for (int i = 0; i < count; i++)
		if (live & (1U << (i % IVFPQ_BLOCK_COPIES)))
			tuplesort_putdatum(sort,
							   Int64GetDatum((int64) IvfpqTidToId(&tids[i])),
							   false);
}

/* Pending rows come first: a row may move from there to a list. */
static void
put_pending(Tuplesortstate *sort, Relation index, const IvfpqMetaData *meta)
{
	IvfpqPendingReader reader;
	int			count;

	IvfpqPendingOpen(&reader, index, meta);
	while (IvfpqPendingNext(&reader, &count))
		put_tids(sort, reader.tids, count, 0xFFFFFFFF);
	IvfpqPendingClose(&reader);
}

static void
put_lists(Tuplesortstate *sort, Relation index, const IvfpqMetaData *meta)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	IvfpqListReader reader;
	IvfpqBlockView view;

	IvfpqListReaderInit(&reader, index, meta, strategy);
	for (int list = 0; list < meta->nlists; list++)
	{
		CHECK_FOR_INTERRUPTS();
		IvfpqListOpen(&reader, list);
		while (IvfpqListNext(&reader, &view))
			put_tids(sort, view.tids, IVFPQ_BLOCK_COPIES, view.live);
	}
	IvfpqListReaderFree(&reader);
	FreeAccessStrategy(strategy);
}

/*
 * Sort the TIDs of all entries that are not dead, as int8 (IvfpqTidToId); one
 * may come more than once.  Ready to be read; the caller ends the sort.
 */
Tuplesortstate *
IvfpqSortTids(Relation index, const IvfpqMetaData *meta, int sort_mem)
{
	Tuplesortstate *sort;

	sort = tuplesort_begin_datum(INT8OID, Int8LessOperator, InvalidOid, false,
								 sort_mem, NULL, TUPLESORT_NONE);
	put_pending(sort, index, meta);
	if (meta->nlists > 0)
		put_lists(sort, index, meta);
	tuplesort_performsort(sort);
	return sort;
}
