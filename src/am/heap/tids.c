/*
 * tids.c
 *		Every TID of an index, in heap order.
 */
#include "postgres.h"

#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/tuplesort.h"

#include "am/common/enginecall.h"
#include "am/heap/tids.h"
#include "page/injection.h"
#include "page/listread.h"

static void
put_tids(Tuplesortstate *sort, const ItemPointerData *tids, int count,
		 uint32 live)
{
	for (int i = 0; i < count; i++)
		if (live & (1U << (i % IVFPQ_BLOCK_POSTINGS)))
			tuplesort_putdatum(sort,
							   Int64GetDatum((int64) IvfpqTidToId(&tids[i])),
							   false);
}

/* The pending rows on pages before `end`. */
static void
put_pending(Tuplesortstate *sort, Relation index, const IvfpqMetaData *meta,
			BlockNumber end)
{
	IvfpqPendingReader reader;
	int			count;

	IvfpqPendingOpen(&reader, index, meta);
	while (reader.next != end && IvfpqPendingNext(&reader, &count))
	{
		put_tids(sort, reader.tids, count, 0xFFFFFFFF);
		IvfpqInjectionPoint("read: pending page");
	}
	IvfpqPendingClose(&reader);
}

/* Those in lists; with a condition on keys only those that satisfy it. */
static void
put_lists(Tuplesortstate *sort, Relation index, const IvfpqMetaData *meta,
		  const GvCondition *condition)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	IvfpqListReader reader;
	IvfpqBlockView view;

	IvfpqListReaderInit(&reader, index, meta, strategy);
	if (condition != NULL)
		reader.wants = IvfpqWantsBlock;
	reader.wants_arg = condition;
	for (int list = 0; list < meta->nlists; list++)
	{
		CHECK_FOR_INTERRUPTS();
		IvfpqListOpen(&reader, list);
		while (IvfpqListNext(&reader, &view))
		{
			uint32		wanted = view.live;

			if (view.passed_over)
				continue;
			if (condition != NULL)
				wanted &= gv_match(condition, view.keys);
			put_tids(sort, view.tids, IVFPQ_BLOCK_POSTINGS, wanted);
		}
	}
	IvfpqListReaderFree(&reader);
	FreeAccessStrategy(strategy);
}

static Tuplesortstate *
begin_sort(int sort_mem)
{
	return tuplesort_begin_datum(INT8OID, Int8LessOperator, InvalidOid, false,
								 sort_mem, NULL, TUPLESORT_NONE);
}

/*
 * Sort the TIDs of all entries that are not dead, as int8 (IvfpqTidToId); one
 * may come more than once.  Ready to be read; the caller ends the sort.  With
 * a condition on keys those whose abbreviated keys do not satisfy it are left
 * out, but not those pending, of which nothing is known.
 *
 * Rows move from the pending list to lists, never back, and an untrained
 * index may be trained at any moment.  So pending rows come first, and only
 * then the metapage says which lists there are.
 */
Tuplesortstate *
IvfpqSortTids(Relation index, const GvCondition *condition, int sort_mem)
{
	Tuplesortstate *sort = begin_sort(sort_mem);
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	put_pending(sort, index, &meta, InvalidBlockNumber);
	IvfpqMetaRead(index, &meta);
	if (meta.nlists > 0)
		put_lists(sort, index, &meta, condition);
	tuplesort_performsort(sort);
	return sort;
}

/* The same of the rows that were pending when the list was cut. */
Tuplesortstate *
IvfpqSortFrozen(Relation index, const IvfpqFrozen *frozen, int sort_mem)
{
	Tuplesortstate *sort = begin_sort(sort_mem);
	IvfpqMetaData meta;

	IvfpqMetaRead(index, &meta);
	meta.pending_head = frozen->head;
	meta.pending_head_seq = frozen->head_seq;
	put_pending(sort, index, &meta, frozen->tail);
	tuplesort_performsort(sort);
	return sort;
}
