/*
 * rerank.c
 *		The operator's own distance of a row, from the heap's value that the
 *		scan's snapshot sees.
 */
#include "postgres.h"

#include <math.h>

#include "access/heapam.h"
#include "access/tableam.h"
#include "am/search/params.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "storage/bufpage.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/search/rerank.h"
#include "page/bufcache.h"
#include "pgcompat.h"

static void prefetch_row_begin(IvfpqPrefetchRow *rows, Relation heap,
								  const uint64 *ids, int64 n);
static Buffer prefetch_row_take(IvfpqPrefetchRow *rows, uint64 id);

/* Is a column of the index an expression? */
static bool
has_expression(Relation index)
{
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
		if (index->rd_index->indkey.values[i] == 0)
			return true;
	return false;
}

/* Begin to fetch rows; memory from the current context. */
void
IvfpqRerankBegin(IvfpqRerank *rerank, Relation heap, Relation index,
				 Snapshot snapshot)
{
	memset(rerank, 0, sizeof(*rerank));
	rerank->index = index;
	rerank->heap = heap;
	rerank->heap_blocks = RelationGetNumberOfBlocks(heap);
	rerank->snapshot = snapshot;
	rerank->fetch = IvfpqTableBeginFetch(heap);
	rerank->slot = table_slot_create(heap, NULL);
	rerank->is_heap = heap->rd_tableam == GetHeapamTableAmRoutine();
	rerank->attnum = index->rd_index->indkey.values[0];
	if (has_expression(index))
	{
		MemoryContext oldcontext;

		rerank->estate = CreateExecutorState();
		oldcontext = MemoryContextSwitchTo(rerank->estate->es_query_cxt);
		rerank->indexInfo = IvfpqIndexInfo(index);
		MemoryContextSwitchTo(oldcontext);
	}
	rerank->context = AllocSetContextCreate(CurrentMemoryContext,
											"gpuivfpq measure",
											ALLOCSET_DEFAULT_SIZES);
	IvfpqRerankPrefetch(rerank, NULL, 0);
}

/* Sets what is computed from now on: distance(row's value, query). */
void
IvfpqRerankQuery(IvfpqRerank *rerank, FmgrInfo *distance, Oid collation,
				 Datum query)
{
	rerank->distance = distance;
	rerank->collation = collation;
	rerank->query = query;
}

/* All that the index has of a row. */
static void
index_values(IvfpqRerank *rerank, TupleTableSlot *row, Datum *values,
			 bool *isnulls)
{
	GetPerTupleExprContext(rerank->estate)->ecxt_scantuple = row;
	FormIndexDatum(rerank->indexInfo, row, rerank->estate, values, isnulls);
	IvfpqRowDone();
}

/* The indexed value of a row. */
static Datum
indexed_value(IvfpqRerank *rerank, TupleTableSlot *row, bool *isnull)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnulls[INDEX_MAX_KEYS];

	if (rerank->attnum != 0)
		return slot_getattr(row, rerank->attnum, isnull);
	index_values(rerank, row, values, isnulls);
	*isnull = isnulls[0];
	return values[0];
}

/* Free what was computed of a row. */
static void
forget_row(IvfpqRerank *rerank)
{
	MemoryContextReset(rerank->context);
	if (rerank->estate)
		ResetPerTupleExprContext(rerank->estate);
}

/* Rows that do not satisfy these tests do not pass. */
void
IvfpqRerankKeys(IvfpqRerank *rerank, const IvfpqKeyQuals *quals)
{
	rerank->quals = quals;
}

/*
 * Do a row's keys satisfy what is asked of them: all of it, or what
 * abbreviated keys do not answer?  Nothing of the vector is touched, unless
 * it is an expression.
 */
bool
IvfpqRerankMatches(IvfpqRerank *rerank, TupleTableSlot *row, bool asks_all)
{
	const IvfpqKeyQuals *quals = rerank->quals;
	int			n = asks_all ? quals->nrows : quals->nrechecks;
	Datum		values[INDEX_MAX_KEYS] = {0};
	bool		isnulls[INDEX_MAX_KEYS] = {0};
	MemoryContext oldcontext;
	bool		matches;

	if (n == 0)
		return true;
	oldcontext = MemoryContextSwitchTo(rerank->context);
	if (rerank->indexInfo != NULL)
		index_values(rerank, row, values, isnulls);
	else
		for (int i = 0; i < n; i++)
		{
			int			column = quals->rows[i].scan_key->sk_attno - 1;

			/* of the vector it is asked only that there is one, as there is */
			if (column > 0)
				values[column] =
					slot_getattr(row,
								 rerank->index->rd_index->indkey.values[column],
								 &isnulls[column]);
		}
	matches = IvfpqKeyQualsMatch(quals, values, isnulls, !asks_all);
	MemoryContextSwitchTo(oldcontext);
	forget_row(rerank);
	return matches;
}

/*
 * A damaged index may name a row that no table could have.  The table cannot
 * have been truncated since the entry was read, because that takes a lock
 * which the running statement excludes.
 */
static void
check_tid(IvfpqRerank *rerank, const ItemPointerData *tid)
{
	BlockNumber blkno = ItemPointerGetBlockNumberNoCheck(tid);

	if (blkno >= rerank->heap_blocks)
		rerank->heap_blocks = RelationGetNumberOfBlocks(rerank->heap);
	if (blkno >= rerank->heap_blocks || !ItemPointerIsValid(tid))
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" points to row (%u,%u), which table \"%s\" cannot have",
						RelationGetRelationName(rerank->index), blkno,
						ItemPointerGetOffsetNumberNoCheck(tid),
						RelationGetRelationName(rerank->heap)),
				 errhint("Rebuild it with REINDEX; gpuvec_verify_index says where it is damaged.")));
}

/* Do rows mostly come from files, so that it helps to prefetch their pages? */
bool
IvfpqRerankIsCold(const IvfpqRerank *rerank)
{
	return rerank->is_heap && IvfpqPrefetchHelps(rerank->heap);
}

/*
 * Pass over rows that have other dimensions, with one warning, unless *told;
 * dims = 0: rerank all.
 */
void
IvfpqRerankDims(IvfpqRerank *rerank, int dims, bool *told)
{
	rerank->dims = dims;
	rerank->told = told;
	if (dims > 0)
		IvfpqTypeInit(&rerank->type, rerank->index);
}

/*
 * Prefetch the pages of rows [n] that may be fetched, in this order, before
 * IvfpqRerankPause; ids must stay as they are until then.  Only of a heap's
 * rows is it known which pages they are on.
 */
void
IvfpqRerankPrefetch(IvfpqRerank *rerank, const uint64 *ids, int64 n)
{
	IvfpqPrefetchBegin(&rerank->prefetch, rerank->heap, ids,
					   rerank->is_heap ? n : 0, IVFPQ_ID_SHIFT);
}

/* Are there rows left whose pages are to be prefetched? */
bool
IvfpqRerankIsPrefetching(const IvfpqRerank *rerank)
{
	return rerank->prefetch.next < rerank->prefetch.n;
}

/*
 * The same of rows [n] of ascending ids that will all be fetched: they are
 * brought into the processor's cache as well.
 */
void
IvfpqRerankPrefetchSorted(IvfpqRerank *rerank, const uint64 *ids, int64 n)
{
	IvfpqRerankPrefetch(rerank, ids, n);
	if (rerank->is_heap)
		prefetch_row_begin(&rerank->prefetch_row, rerank->heap, ids, n);
}

/*
 * Have a heap's fetch begin with a page, which it would look for in the hash
 * table otherwise; its pin, `held` or one of our own, becomes the fetch's.
 */
static void
give_page(Relation heap, IndexFetchTableData *scan, BlockNumber blkno,
		  Buffer held)
{
	IndexFetchHeapData *fetch = (IndexFetchHeapData *) scan;

	if (BufferIsValid(fetch->xs_cbuf) &&
		BufferGetBlockNumber(fetch->xs_cbuf) == blkno)
	{
		if (BufferIsValid(held))
			ReleaseBuffer(held);
		return;
	}
	if (!BufferIsValid(held))
		held = IvfpqBufHintRead(heap, blkno, NULL);
	IvfpqGiveHeapPage(heap, fetch, held);
}

/* Fetch the row that an index entry points to, if the snapshot sees one. */
static bool
fetch_row(IvfpqRerank *rerank, uint64 id)
{
	ItemPointerData tid;
	bool		call_again = false;

	IvfpqIdToTid(id, &tid);
	check_tid(rerank, &tid);
	IvfpqPrefetchTo(&rerank->prefetch, ItemPointerGetBlockNumber(&tid));
	if (rerank->is_heap)
		give_page(rerank->heap, rerank->fetch,
				  ItemPointerGetBlockNumber(&tid),
				  prefetch_row_take(&rerank->prefetch_row, id));
	return table_index_fetch_tuple(rerank->fetch, &tid, rerank->snapshot,
								   rerank->slot, &call_again,
								   rerank->asks_dead ?
								   &rerank->all_dead : NULL);
}

/* Does the snapshot see the row that an index entry points to? */
bool
IvfpqRerankSees(IvfpqRerank *rerank, uint64 id)
{
	bool		sees = fetch_row(rerank, id);

	ExecClearTuple(rerank->slot);
	return sees;
}

/*
 * Somebody else will fetch the row that an index entry points to: for
 * prefetching, which goes on, it is as if the page was read here.
 */
void
IvfpqRerankForesee(IvfpqRerank *rerank, uint64 id)
{
	ItemPointerData tid;

	IvfpqIdToTid(id, &tid);
	check_tid(rerank, &tid);
	IvfpqPrefetchTo(&rerank->prefetch, ItemPointerGetBlockNumber(&tid));
	table_index_fetch_reset(rerank->fetch);
}

/*
 * The executor will fetch the row that an index entry points to by a fetch of
 * its own: spare it the look for the page.
 */
void
IvfpqRerankHandOver(const IvfpqRerank *rerank, IndexFetchTableData *fetch,
					uint64 id)
{
	if (rerank->is_heap)
		give_page(rerank->heap, fetch, (BlockNumber) (id >> IVFPQ_ID_SHIFT),
				  InvalidBuffer);
}

/*
 * Get the indexed value of the row that an index entry points to, good until
 * IvfpqRerankDone.  False when the snapshot sees no row there, or NULL, or
 * one that does not pass, which rerank->rejected tells.
 */
bool
IvfpqRerankFetch(IvfpqRerank *rerank, uint64 id, Datum *value)
{
	MemoryContext oldcontext;
	bool		isnull;

	rerank->rejected = false;
	if (!fetch_row(rerank, id))
		return false;
	if ((rerank->quals != NULL &&
		 !IvfpqRerankMatches(rerank, rerank->slot, rerank->asks_all)) ||
		(rerank->satisfies != NULL &&
		 !rerank->satisfies(rerank->satisfies_arg, rerank->slot)))
	{
		rerank->rejected = true;
		ExecClearTuple(rerank->slot);
		return false;
	}

	oldcontext = MemoryContextSwitchTo(rerank->context);
	*value = indexed_value(rerank, rerank->slot, &isnull);
	MemoryContextSwitchTo(oldcontext);
	if (isnull)
		IvfpqRerankDone(rerank);
	return !isnull;
}

/*
 * Values of all columns of the index, [INDEX_MAX_KEYS], of the row fetched;
 * good as long as its indexed value.
 */
void
IvfpqRerankColumns(IvfpqRerank *rerank, Datum *values, bool *isnull)
{
	Relation	index = rerank->index;
	MemoryContext oldcontext = MemoryContextSwitchTo(rerank->context);

	if (rerank->indexInfo != NULL)
		index_values(rerank, rerank->slot, values, isnull);
	else
		for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
			values[i] = slot_getattr(rerank->slot,
									 index->rd_index->indkey.values[i],
									 &isnull[i]);
	MemoryContextSwitchTo(oldcontext);
}

/* Let go of the row fetched, and of all that was made in rerank->context. */
void
IvfpqRerankDone(IvfpqRerank *rerank)
{
	forget_row(rerank);
	ExecClearTuple(rerank->slot);
}

/* A row has other dimensions than the index, and is not reranked: say so. */
static void
warn_mismatched(IvfpqRerank *rerank, const ItemPointerData *tid, int dims)
{
	if (*rerank->told)
		return;
	*rerank->told = true;
	ereport(WARNING,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("row (%u,%u) of table \"%s\" has %d dimensions, not the %d of index \"%s\", and is left out",
					ItemPointerGetBlockNumber(tid),
					ItemPointerGetOffsetNumber(tid),
					RelationGetRelationName(rerank->heap), dims,
					rerank->dims,
					RelationGetRelationName(rerank->index)),
			 errhint("gpuvec_verify_index names all such rows; delete or update them.")));
}

/*
 * Has the indexed value of the row at tid the dimensions rerank->dims?  *value
 * may become whole.  Call in rerank->context.
 */
static bool
has_dims(IvfpqRerank *rerank, Datum *value, const ItemPointerData *tid)
{
	int			dims;

	if (rerank->dims == 0)
		return true;
	if (!rerank->type.has_toreal)
		*value = PointerGetDatum(PG_DETOAST_DATUM(*value));
	(void) IvfpqValueFloats(&rerank->type, *value, &dims);
	if (dims == rerank->dims)
		return true;
	warn_mismatched(rerank, tid, dims);
	return false;
}

/*
 * Rerank the indexed value of the row at tid.  False when it has other
 * dimensions than rerank->dims.  Call in rerank->context.
 */
static bool
rerank_value(IvfpqRerank *rerank, Datum value, const ItemPointerData *tid,
			 double *distance)
{
	if (!has_dims(rerank, &value, tid))
		return false;
	*distance = DatumGetFloat8(FunctionCall2Coll(rerank->distance,
												 rerank->collation,
												 value, rerank->query));
	return true;
}

/*
 * Rerank the row that an index entry points to.  False when the snapshot
 * sees no row there, one that does not pass (rerank->rejected), or one of
 * other dimensions than rerank->dims.
 */
bool
IvfpqRerankRow(IvfpqRerank *rerank, uint64 id, double *distance)
{
	MemoryContext oldcontext;
	ItemPointerData tid;
	Datum		value;
	bool		reranked;

	if (!IvfpqRerankFetch(rerank, id, &value))
		return false;
	IvfpqIdToTid(id, &tid);
	oldcontext = MemoryContextSwitchTo(rerank->context);
	reranked = rerank_value(rerank, value, &tid, distance);
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(rerank);
	return reranked;
}

/*
 * The same of a row that will be reranked for many queries: its value whole in
 * memory, good until IvfpqRerankDone; its TID is in rerank->slot.
 */
bool
IvfpqRerankWhole(IvfpqRerank *rerank, uint64 id, Datum *value)
{
	MemoryContext oldcontext;
	ItemPointerData tid;
	bool		fits;

	if (!IvfpqRerankFetch(rerank, id, value))
		return false;
	IvfpqIdToTid(id, &tid);
	oldcontext = MemoryContextSwitchTo(rerank->context);
	*value = PointerGetDatum(PG_DETOAST_DATUM(*value));
	fits = has_dims(rerank, value, &tid);
	MemoryContextSwitchTo(oldcontext);
	if (!fits)
		IvfpqRerankDone(rerank);
	return fits;
}

/*
 * Get ready to rerank rows that do not come by the index, and may not be in
 * it: also without a query.
 */
void
IvfpqRerankOthers(IvfpqRerank *rerank)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(rerank->index);

	IvfpqTypeInit(&rerank->type, rerank->index);
	if (indexInfo->ii_Predicate == NIL)
		return;
	if (rerank->estate == NULL)
		rerank->estate = CreateExecutorState();
	rerank->predicate = ExecPrepareQual(indexInfo->ii_Predicate,
										rerank->estate);
}

/* Is the row within the index's predicate? */
bool
IvfpqRerankAdmits(IvfpqRerank *rerank, TupleTableSlot *row)
{
	MemoryContext oldcontext;
	ExprContext *context;
	bool		admits;

	if (rerank->predicate == NULL)
		return true;
	oldcontext = MemoryContextSwitchTo(rerank->context);
	context = GetPerTupleExprContext(rerank->estate);
	context->ecxt_scantuple = row;
	admits = ExecQual(rerank->predicate, context);
	MemoryContextSwitchTo(oldcontext);
	forget_row(rerank);
	return admits;
}

/*
 * Rerank a row that the snapshot sees, within the predicate.  False when it is
 * not in the index: NULL, without a place, or of other dimensions.  Without a
 * query the distance is 0.
 */
bool
IvfpqRerankOther(IvfpqRerank *rerank, TupleTableSlot *row,
				 double *distance)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(rerank->context);
	bool		isnull;
	Datum		value = indexed_value(rerank, row, &isnull);
	bool		is_indexed = !isnull;

	if (is_indexed && rerank->distance == NULL)
	{
		is_indexed = IvfpqHasPlace(&rerank->type, value, rerank->dims);
		*distance = 0;
	}
	else if (is_indexed)
		is_indexed = rerank_value(rerank, value, &row->tts_tid, distance) &&
			(!isnan(*distance) ||
			 IvfpqHasPlace(&rerank->type, value, rerank->dims));
	MemoryContextSwitchTo(oldcontext);
	forget_row(rerank);
	return is_indexed;
}

/* Let go of pages between batches; no row is prefetched any more. */
void
IvfpqRerankPause(IvfpqRerank *rerank)
{
	IvfpqPrefetchRowEnd(&rerank->prefetch_row);
	IvfpqPrefetchEnd(&rerank->prefetch);
	IvfpqRerankPrefetch(rerank, NULL, 0);
	table_index_fetch_reset(rerank->fetch);
}

/* Let go of everything. */
void
IvfpqRerankEnd(IvfpqRerank *rerank)
{
	IvfpqPrefetchRowEnd(&rerank->prefetch_row);
	ExecDropSingleTupleTableSlot(rerank->slot);
	table_index_fetch_end(rerank->fetch);
	if (rerank->estate)
		FreeExecutorState(rerank->estate);
	MemoryContextDelete(rerank->context);
}

/* ----
 * Rows of a table on their way into the processor's cache before they are
 * reranked.
 *
 * A row takes three accesses to memory, each of which says where the next one
 * goes: the page's buffer, the row's line pointer, the row.  Alone they take
 * longer than to compute a distance.  So those of several rows are under way
 * at once: a few rows ahead, where pages were found lately is looked up
 * (bufcache.c), nearer ones are pinned and their line pointers read.
 *
 * That is without a lock, as nothing but the processor's cache depends on it.
 */

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

/* See rerank.h. */
static void
prefetch_row_begin(IvfpqPrefetchRow *rows, Relation heap, const uint64 *ids,
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

/* See rerank.h. */
static Buffer
prefetch_row_take(IvfpqPrefetchRow *rows, uint64 id)
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

/* See rerank.h. */
void
IvfpqPrefetchRowEnd(IvfpqPrefetchRow *rows)
{
	for (int i = 0; i < IVFPQ_HELD_PAGES; i++)
		if (BufferIsValid(rows->held[i]))
			ReleaseBuffer(rows->held[i]);
	memset(rows, 0, sizeof(*rows));
}

/* ----
 * Rows of a table that is read from end to end, on their way into the
 * processor's cache.
 *
 * A condition looks at a few bytes of each row.  With rows as wide as vectors
 * these are far apart, so that no processor guesses where it goes on, and
 * reading a table waits for memory most of the time.  So while the rows of a
 * page are asked, those of the next one are fetched, and the line pointers of
 * the one behind that, which say where its rows are.
 *
 * That is without a lock, as nothing but the processor's cache depends on it.
 */

#define ROW_BYTES		128		/* the row's header, and columns behind it */
#define POINTERS_BYTES	128		/* the page's header, and line pointers */

/* Pin a page, if there is one, and have its line pointers fetched. */
static void
hold_page(IvfpqPrefetchPage *pages, BlockNumber blkno)
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
 * See rerank.h.  A table that PostgreSQL reads through a ring of buffers
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

/* See rerank.h. */
void
IvfpqPrefetchPageTo(IvfpqPrefetchPage *pages, BlockNumber blkno)
{
	if (blkno == pages->at || pages->nblocks == 0)
		return;
	pages->at = blkno;
	if (!BufferIsValid(pages->held))
		hold_page(pages, blkno + 1);
	fetch_rows(pages);
	hold_page(pages, blkno + 2);
}

/* See rerank.h. */
void
IvfpqPrefetchPageEnd(IvfpqPrefetchPage *pages)
{
	if (BufferIsValid(pages->held))
		ReleaseBuffer(pages->held);
	pages->held = InvalidBuffer;
}
