/*
 * rerank.c
 *		Rows of the table, fetched under a snapshot, and their distances by
 *		the operator's own function.
 *
 * Scans fetch the rows of their candidates here, and compute the distance of
 * the heap's value, not of its code.  Training in place, flushing and checks
 * fetch their rows here, too.  A row is named by the TID of its index entry,
 * as a number (IvfpqTidToId), or comes from a scan of the whole table.
 *
 * A row that a scan returns is fetched once more, by the executor.  The
 * executor's fetch is given the page's pin (IvfpqRerankGivePage), as the
 * scan's own fetches are.  Otherwise it would look for the page in
 * PostgreSQL's hash table of buffers, which takes half a microsecond a row.
 *
 * Rows are brought into the processor's cache before they are fetched.  This
 * takes no lock, because the data that are read affect only the cache.
 *
 * Fetching a row takes three accesses to memory: to the page's buffer, the
 * row's line pointer, and the row.  Each access depends on the result of the
 * previous access, so that together they take longer than computing a
 * distance.  So the accesses for several rows are made at the same time.  For
 * rows that come soon, pages are looked up in the buffers where they were
 * found recently (bufcache.c).  For rows that come next, the pages are pinned
 * and the line pointers are read.
 *
 * A scan of the whole table reads a few bytes of each row to test a condition.
 * Rows with vectors lie so far apart that the hardware prefetcher cannot
 * predict the next address, and the scan would wait for memory most of the
 * time.  So while the rows of a page are tested, the rows of the next page are
 * prefetched.  The line pointers of the page after next are prefetched as
 * well, because they say where that page's rows are.
 */
#include "postgres.h"

#include <math.h>

#include "access/heapam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/bufpage.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/identity.h"
#include "am/common/util.h"
#include "am/search/params.h"
#include "am/search/rerank.h"
#include "page/bufcache.h"
#include "pgcompat.h"

/*
 * Number of rows prefetched per step.  A TLB miss costs as much as a cache
 * miss, and the processor handles several misses in parallel.
 */
#define ROWS_TOGETHER	4

/* Number of rows whose pages are looked up before the first row is fetched. */
#define ROWS_SOUGHT		64

#define ROW_BYTES		128		/* the row's header, and its first columns */
#define POINTERS_BYTES	128		/* the page's header, and line pointers */

StaticAssertDecl(IVFPQ_HELD_PAGES == 2 * ROWS_TOGETHER,
				 "those that are fetched, and the next ones");

/*
 * Begins to fetch rows of an index's table.  Memory comes from the current
 * context, which must live until IvfpqRerankEnd.
 */
void
IvfpqRerankBegin(IvfpqRerank *rerank, Relation heap, Relation index,
				 Snapshot snapshot)
{
	bool		has_expression = false;

	memset(rerank, 0, sizeof(*rerank));
	rerank->index = index;
	rerank->heap = heap;
	rerank->heap_blocks = RelationGetNumberOfBlocks(heap);
	rerank->snapshot = snapshot;
	rerank->fetch = IvfpqTableBeginFetch(heap);
	rerank->slot = table_slot_create(heap, NULL);
	rerank->is_heap = heap->rd_tableam == GetHeapamTableAmRoutine();
	rerank->attnum = index->rd_index->indkey.values[0];
	for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
		has_expression |= index->rd_index->indkey.values[i] == 0;
	if (has_expression)
	{
		MemoryContext oldcontext;

		rerank->estate = CreateExecutorState();
		oldcontext = MemoryContextSwitchTo(rerank->estate->es_query_cxt);
		rerank->indexInfo = IvfpqIndexInfo(index);
		MemoryContextSwitchTo(oldcontext);
	}
	rerank->context = AllocSetContextCreate(CurrentMemoryContext,
											"gpuivfpq rerank",
											ALLOCSET_DEFAULT_SIZES);
	IvfpqRerankPrefetch(rerank, NULL, 0, false);
}

/*
 * Sets *at to the offset of a row's line pointer in its page.  Returns false
 * if no page can have this line pointer.
 */
static bool
find_line_pointer(uint64 id, int *at)
{
	*at = (int) (SizeOfPageHeaderData + sizeof(ItemIdData) *
				 (((int) id & 0xFFFF) - FirstOffsetNumber));
	return *at >= (int) SizeOfPageHeaderData &&
		*at + sizeof(ItemIdData) <= BLCKSZ;
}

/* Prefetches the data of hold() for ROWS_TOGETHER rows, from number i on. */
static void
look_up(const IvfpqPrefetchRow *rows, int64 i)
{
	int64		end = Min(i + ROWS_TOGETHER, rows->n);
	int			at;

	for (; i < end; i++)
		if (find_line_pointer(rows->ids[i], &at))
			IvfpqBufHintFetch(rows->heap,
							  (BlockNumber) (rows->ids[i] >> IVFPQ_ID_SHIFT),
							  at, sizeof(ItemIdData));
}

/*
 * Pins the pages of ROWS_TOGETHER rows, from number i on, and prefetches the
 * rows.  Skips a page whose buffer is not known.
 */
static void
hold(IvfpqPrefetchRow *rows, int64 i)
{
	const char *from[ROWS_TOGETHER] = {NULL};	/* NULL: not on a held page */
	const char *end[ROWS_TOGETHER] = {NULL};
	int			n = (int) Max(Min(ROWS_TOGETHER, rows->n - i), 0);

	for (int r = 0; r < n; r++)
		rows->held[(i + r) % IVFPQ_HELD_PAGES] =
			IvfpqBufHintPin(rows->heap,
							(BlockNumber) (rows->ids[i + r] >> IVFPQ_ID_SHIFT));
	for (int r = 0; r < n; r++)
	{
		Buffer		buffer = rows->held[(i + r) % IVFPQ_HELD_PAGES];
		const char *page;
		ItemIdData	item;
		int			at;

		if (!BufferIsValid(buffer) ||
			!find_line_pointer(rows->ids[i + r], &at))
			continue;
		page = (const char *) BufferGetPage(buffer);
		memcpy(&item, page + at, sizeof(item));
		if (item.lp_off + item.lp_len > BLCKSZ)
			continue;
		from[r] = page + item.lp_off;
		end[r] = from[r] + item.lp_len;
	}
	/* fetch the first byte of each row, so that the TLB misses overlap */
	for (int r = 0; r < n; r++)
		__builtin_prefetch(from[r], 0, 2);
	for (int r = 0; r < n; r++)
		IvfpqFetch(from[r], end[r]);
}

/*
 * Advances past the row with this id, and prefetches further rows.  Returns
 * the row's page, pinned for the caller, or InvalidBuffer if no pin is held.
 */
static Buffer
take_page(IvfpqPrefetchRow *rows, uint64 id)
{
	while (rows->next < rows->n && rows->ids[rows->next] <= id)
	{
		int64		i = rows->next++;
		Buffer		buffer = rows->held[i % IVFPQ_HELD_PAGES];

		rows->held[i % IVFPQ_HELD_PAGES] = InvalidBuffer;
		if (i % ROWS_TOGETHER == 0)
		{
			hold(rows, i + ROWS_TOGETHER);
			if (i + 2 * ROWS_TOGETHER >= ROWS_SOUGHT)
				look_up(rows, i + 2 * ROWS_TOGETHER);
		}
		if (rows->ids[i] == id)
			return buffer;
		if (BufferIsValid(buffer))
			ReleaseBuffer(buffer);
	}
	return InvalidBuffer;
}

/* Releases the pages that are held, and clears *rows. */
static void
end_prefetch_row(IvfpqPrefetchRow *rows)
{
	for (int i = 0; i < IVFPQ_HELD_PAGES; i++)
		if (BufferIsValid(rows->held[i]))
			ReleaseBuffer(rows->held[i]);
	memset(rows, 0, sizeof(*rows));
}

/*
 * Prefetches the pages of rows [n] that may be fetched, in this order, before
 * IvfpqRerankReleasePages.  ids must not change until then.  If fetches_all is
 * true, ids ascend and all the rows will be fetched.  Then the rows are also
 * brought into the processor's cache, and a few of their pages are pinned.
 *
 * Rows of a table that is not a heap are not prefetched, because their TIDs
 * need not contain page numbers.
 */
void
IvfpqRerankPrefetch(IvfpqRerank *rerank, const uint64 *ids, int64 n,
					bool fetches_all)
{
	IvfpqPrefetchRow *rows = &rerank->prefetch_row;

	IvfpqPrefetchBegin(&rerank->prefetch, rerank->heap, ids,
					   rerank->is_heap ? n : 0, IVFPQ_ID_SHIFT);
	if (!fetches_all || !rerank->is_heap)
		return;
	memset(rows, 0, sizeof(*rows));
	rows->heap = rerank->heap;
	rows->ids = ids;
	rows->n = n;
	for (int64 i = 0; i < Min(n, ROWS_SOUGHT); i += ROWS_TOGETHER)
		look_up(rows, i);
	hold(rows, 0);
}

/*
 * Prefetch a row that will be fetched soon, but perhaps not by us, without
 * pinning its page: first what tells its buffer, then its line pointer, and
 * some rows later its tuple, whole or the header and the first columns.  What
 * is read meanwhile may belong to another page, which affects only what is
 * prefetched.
 */
void
IvfpqRerankSeekPlace(const IvfpqRerank *rerank, uint64 id)
{
	if (rerank->is_heap)
		IvfpqBufHintSeek(rerank->heap, (BlockNumber) (id >> IVFPQ_ID_SHIFT));
}

void
IvfpqRerankSeekRow(const IvfpqRerank *rerank, uint64 id)
{
	int			at;

	if (rerank->is_heap && find_line_pointer(id, &at))
		(void) IvfpqBufHintFetch(rerank->heap,
								 (BlockNumber) (id >> IVFPQ_ID_SHIFT), at,
								 sizeof(ItemIdData));
}

void
IvfpqRerankSeekTuple(const IvfpqRerank *rerank, uint64 id, bool whole)
{
	const char *page;
	ItemIdData	item;
	int			at;

	if (!rerank->is_heap || !find_line_pointer(id, &at))
		return;
	page = IvfpqBufHintFetch(rerank->heap,
							 (BlockNumber) (id >> IVFPQ_ID_SHIFT), at, 0);
	if (page == NULL)
		return;
	memcpy(&item, page + at, sizeof(item));
	if (item.lp_off + item.lp_len <= BLCKSZ)
		IvfpqFetch(page + item.lp_off,
				   page + item.lp_off +
				   (whole ? item.lp_len : Min(item.lp_len, ROW_BYTES)));
}

/* Releases all pages, as is done between batches, and ends prefetching. */
void
IvfpqRerankReleasePages(IvfpqRerank *rerank)
{
	end_prefetch_row(&rerank->prefetch_row);
	IvfpqPrefetchEnd(&rerank->prefetch);
	IvfpqRerankPrefetch(rerank, NULL, 0, false);
	table_index_fetch_reset(rerank->fetch);
}

/* Returns whether most rows are read from files, so that prefetching helps. */
bool
IvfpqRerankReadsFromDisk(const IvfpqRerank *rerank)
{
	return rerank->is_heap && IvfpqPrefetchHelps(rerank->heap);
}

/*
 * Sets *tid to the TID of a row that is fetched next, and prefetches the pages
 * of rows after it.  Raises an error if the table cannot have a row with this
 * TID, which a damaged index may contain.  The table cannot have been
 * truncated since the entry was read, because truncation takes a lock that
 * conflicts with the lock of the running statement.
 */
static void
prefetch_to(IvfpqRerank *rerank, uint64 id, ItemPointer tid)
{
	BlockNumber blkno = (BlockNumber) (id >> IVFPQ_ID_SHIFT);

	IvfpqIdToTid(id, tid);
	if (blkno >= rerank->heap_blocks)
		rerank->heap_blocks = RelationGetNumberOfBlocks(rerank->heap);
	if (blkno >= rerank->heap_blocks || !ItemPointerIsValid(tid))
		ereport(ERROR,
				(errcode(ERRCODE_INDEX_CORRUPTED),
				 errmsg("index \"%s\" points to row (%u,%u), which cannot exist in table \"%s\"",
						RelationGetRelationName(rerank->index), blkno,
						ItemPointerGetOffsetNumberNoCheck(tid),
						RelationGetRelationName(rerank->heap)),
				 errhint("Rebuild the index with REINDEX.  To find the damage, call gpuvec_verify_index.")));
	IvfpqPrefetchTo(&rerank->prefetch, blkno);
}

/*
 * Gives a row's page to a fetch of the executor or of the scan, which fetches
 * the row next, so that the fetch need not look the page up in the hash table
 * of buffers.  The fetch takes over the pin of `held`.  If held is
 * InvalidBuffer, the page is pinned here.
 */
void
IvfpqRerankGivePage(const IvfpqRerank *rerank, IndexFetchTableData *scan,
					uint64 id, Buffer held)
{
	IndexFetchHeapData *fetch = (IndexFetchHeapData *) scan;
	BlockNumber blkno = (BlockNumber) (id >> IVFPQ_ID_SHIFT);

	if (!rerank->is_heap)
		return;
	if (BufferIsValid(fetch->xs_cbuf) &&
		BufferGetBlockNumber(fetch->xs_cbuf) == blkno)
	{
		if (BufferIsValid(held))
			ReleaseBuffer(held);
		return;
	}
	if (!BufferIsValid(held))
		held = IvfpqBufHintRead(rerank->heap, blkno, NULL);
	IvfpqGiveHeapPage(rerank->heap, fetch, held);
}

/*
 * Returns whether pages tell which rows the snapshot sees (IvfpqRerankLook).
 *
 * A page's flag is not used by a snapshot that was taken during recovery, as in
 * PostgreSQL's own scans.  A serializable transaction fetches all rows, because
 * a fetch takes the row's predicate lock and meets conflicts.  Before
 * PostgreSQL 17, a row that an old snapshot does not see may be taken to be
 * visible to all, if old_snapshot_threshold is set.
 */
bool
IvfpqRerankMayLook(const IvfpqRerank *rerank)
{
	Snapshot	snapshot = rerank->snapshot;

	return rerank->is_heap && snapshot->snapshot_type == SNAPSHOT_MVCC &&
		!snapshot->takenDuringRecovery && !IsolationIsSerializable() &&
		!IvfpqSnapshotsExpire();
}

/*
 * Sets seen[i] for each of ids [n], which ascend: true if the page says that
 * all its rows are visible to everybody, and has a tuple, neither a pointer to
 * another one nor nothing, at that TID.
 *
 * That tuple is then visible to the snapshot; README, "Many queries at once",
 * says why it is the row that the index entry was made for.  Locks one page at
 * a time, shared.
 */
void
IvfpqRerankLook(IvfpqRerank *rerank, const uint64 *ids, int n, bool *seen)
{
	IvfpqPrefetchRow rows = {.heap = rerank->heap, .ids = ids, .n = n};

	IvfpqPrefetchBegin(&rerank->prefetch, rerank->heap, ids, n,
					   IVFPQ_ID_SHIFT);
	for (int i = 0; i < Min(n, ROWS_SOUGHT); i += ROWS_TOGETHER)
		look_up(&rows, i);
	for (int i = 0; i < n;)
	{
		BlockNumber blkno = (BlockNumber) (ids[i] >> IVFPQ_ID_SHIFT);
		ItemPointerData tid;
		Buffer		buffer;
		Page		page;
		bool		is_all_visible;
		OffsetNumber last;

		CHECK_FOR_INTERRUPTS();
		prefetch_to(rerank, ids[i], &tid);
		buffer = IvfpqBufHintRead(rerank->heap, blkno, NULL);
		page = BufferGetPage(buffer);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		is_all_visible = PageIsAllVisible(page);
		last = PageGetMaxOffsetNumber(page);
		for (; i < n && ids[i] >> IVFPQ_ID_SHIFT == blkno; i++)
		{
			OffsetNumber offset = (OffsetNumber) (ids[i] & 0xFFFF);

			seen[i] = is_all_visible && OffsetNumberIsValid(offset) &&
				offset <= last && ItemIdIsNormal(PageGetItemId(page, offset));
			if (i % ROWS_TOGETHER == 0)
				look_up(&rows, i + ROWS_SOUGHT);
		}
		LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
		ReleaseBuffer(buffer);
	}
	IvfpqPrefetchEnd(&rerank->prefetch);
	IvfpqPrefetchBegin(&rerank->prefetch, rerank->heap, NULL, 0,
					   IVFPQ_ID_SHIFT);
}

/* Computes the values of all columns of an index that has expressions. */
static void
index_values(IvfpqRerank *rerank, TupleTableSlot *row, Datum *values,
			 bool *isnulls)
{
	GetPerTupleExprContext(rerank->estate)->ecxt_scantuple = row;
	FormIndexDatum(rerank->indexInfo, row, rerank->estate, values, isnulls);
	IvfpqRowDone();
}

/* Returns the indexed value of a row. */
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

/* Frees what was computed for a row. */
static void
forget_row(IvfpqRerank *rerank)
{
	MemoryContextReset(rerank->context);
	if (rerank->estate)
		ResetPerTupleExprContext(rerank->estate);
}

/*
 * Returns whether a row satisfies the key quals and the early qual.  Of the
 * key quals, tests all if all_keys is true, else only those that must be
 * rechecked.  Their test does not read the vector, unless the index has
 * expressions.
 */
static bool
row_matches(IvfpqRerank *rerank, TupleTableSlot *row, bool all_keys)
{
	const IvfpqKeyQuals *quals = rerank->quals;
	int			n = 0;			/* number of key quals to test */

	if (quals != NULL)
		n = all_keys ? quals->nrows : quals->nrechecks;
	if (n > 0)
	{
		const int16 *columns = rerank->index->rd_index->indkey.values;
		Datum		values[INDEX_MAX_KEYS] = {0};
		bool		isnulls[INDEX_MAX_KEYS] = {0};
		MemoryContext oldcontext = MemoryContextSwitchTo(rerank->context);
		bool		matches;

		if (rerank->indexInfo != NULL)
			index_values(rerank, row, values, isnulls);
		else
			for (int i = 0; i < n; i++)
			{
				int			column = quals->rows[i].scan_key->sk_attno - 1;

				/*
				 * column 0 is the vector: its only qual is IS NOT NULL, and a
				 * row whose vector is NULL is not in the index
				 */
				if (column > 0)
					values[column] = slot_getattr(row, columns[column],
												  &isnulls[column]);
			}
		matches = IvfpqKeyQualsMatch(quals, values, isnulls, !all_keys);
		MemoryContextSwitchTo(oldcontext);
		forget_row(rerank);
		if (!matches)
			return false;
	}
	return rerank->early_qual == NULL ||
		rerank->early_qual(rerank->early_qual_arg, row);
}

/* Returns the type of the index's vectors.  The first call looks it up. */
static IvfpqType *
vector_type(IvfpqRerank *rerank)
{
	if (!OidIsValid(rerank->type.type))
	{
		MemoryContext parent = MemoryContextGetParent(rerank->context);
		MemoryContext oldcontext = MemoryContextSwitchTo(parent);

		IvfpqTypeInit(&rerank->type, rerank->index);
		MemoryContextSwitchTo(oldcontext);
	}
	return &rerank->type;
}

/*
 * Returns whether the indexed value of the row at tid has rerank->dims
 * dimensions.  If it does not, raises a warning, unless *rerank->warned says
 * that this was done before.  *value may be detoasted.  Must be called in
 * rerank->context.
 */
static bool
has_dims(IvfpqRerank *rerank, Datum *value, const ItemPointerData *tid)
{
	IvfpqType  *type;
	int			dims;

	if (rerank->dims == 0)
		return true;
	type = vector_type(rerank);
	*value = PointerGetDatum(PG_DETOAST_DATUM(*value));
	(void) IvfpqValueFloats(type, *value, &dims);
	if (dims == rerank->dims)
		return true;
	if (*rerank->warned)
		return false;
	*rerank->warned = true;
	ereport(WARNING,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("skipping row (%u,%u) of table \"%s\"",
					ItemPointerGetBlockNumber(tid),
					ItemPointerGetOffsetNumber(tid),
					RelationGetRelationName(rerank->heap)),
			 errdetail("It has %d dimensions, but index \"%s\" has %d.",
					   dims, RelationGetRelationName(rerank->index),
					   rerank->dims),
			 errhint("Delete or update such rows.  To list them, call gpuvec_verify_index.")));
	return false;
}

/*
 * Fetches the row that an index entry points to.  Returns false if the
 * snapshot sees no row there, if the row is rejected (rerank->rejected), or if
 * its indexed value is NULL or of other dimensions than rerank->dims.
 * Otherwise *value is the indexed value, which is valid until IvfpqRerankDone.
 *
 * If value is NULL, only returns whether the snapshot sees a row there: no
 * value is computed, and the row is not kept.
 */
bool
IvfpqRerankFetch(IvfpqRerank *rerank, uint64 id, Datum *value)
{
	MemoryContext oldcontext;
	ItemPointerData tid;
	bool		call_again = false;
	bool		isnull;
	bool		is_indexed;

	rerank->rejected = false;
	prefetch_to(rerank, id, &tid);
	IvfpqRerankGivePage(rerank, rerank->fetch, id,
						take_page(&rerank->prefetch_row, id));
	if (!table_index_fetch_tuple(rerank->fetch, &tid, rerank->snapshot,
								 rerank->slot, &call_again,
								 rerank->want_all_dead ?
								 &rerank->all_dead : NULL))
		return false;
	rerank->tid = rerank->slot->tts_tid;
	if (value != NULL)
		rerank->rejected = !row_matches(rerank, rerank->slot,
										rerank->recheck_all_keys);
	if (value == NULL || rerank->rejected)
	{
		ExecClearTuple(rerank->slot);
		return value == NULL;
	}

	IvfpqIdToTid(id, &tid);		/* the fetch may have changed it */
	oldcontext = MemoryContextSwitchTo(rerank->context);
	*value = indexed_value(rerank, rerank->slot, &isnull);
	is_indexed = !isnull && has_dims(rerank, value, &tid);
	MemoryContextSwitchTo(oldcontext);
	if (!is_indexed)
		IvfpqRerankDone(rerank);
	return is_indexed;
}

/*
 * Fetches a row like IvfpqRerankFetch, and returns its vector [*dims] as
 * floats, or NULL.  The vector is valid until IvfpqRerankDone.
 */
const float *
IvfpqRerankFetchVector(IvfpqRerank *rerank, IvfpqType *type, uint64 id,
					   int *dims)
{
	MemoryContext oldcontext;
	const float *vector;
	Datum		value;

	if (!IvfpqRerankFetch(rerank, id, &value))
		return NULL;
	oldcontext = MemoryContextSwitchTo(rerank->context);
	vector = IvfpqValueFloats(type, value, dims);
	MemoryContextSwitchTo(oldcontext);
	return vector;
}

/* Makes the abbreviated keys, if any, of the row that was fetched last. */
void
IvfpqRerankMakeKeys(IvfpqRerank *rerank, IvfpqKeys *keys,
					IvfpqKeyAbbrevs *abbrevs)
{
	const int16 *columns = rerank->index->rd_index->indkey.values;
	Datum		values[INDEX_MAX_KEYS];
	bool		isnulls[INDEX_MAX_KEYS];
	MemoryContext oldcontext;

	if (keys->nkeys == 0)
		return;
	oldcontext = MemoryContextSwitchTo(rerank->context);
	if (rerank->indexInfo != NULL)
		index_values(rerank, rerank->slot, values, isnulls);
	else
		for (int i = 0; i <= keys->nkeys; i++)
			values[i] = slot_getattr(rerank->slot, columns[i], &isnulls[i]);
	IvfpqKeysMake(keys, values, isnulls, abbrevs);
	MemoryContextSwitchTo(oldcontext);
}

/* Releases the row that was fetched last, and resets rerank->context. */
void
IvfpqRerankDone(IvfpqRerank *rerank)
{
	forget_row(rerank);
	ExecClearTuple(rerank->slot);
}

/*
 * Reranks the row that an index entry points to.  Fetches it like
 * IvfpqRerankFetch, sets *distance, and releases the row.
 */
bool
IvfpqRerankRow(IvfpqRerank *rerank, uint64 id, double *distance)
{
	MemoryContext oldcontext;
	Datum		value;

	if (!IvfpqRerankFetch(rerank, id, &value))
		return false;
	oldcontext = MemoryContextSwitchTo(rerank->context);
	*distance = DatumGetFloat8(FunctionCall2Coll(rerank->distance,
												 rerank->collation, value,
												 rerank->query));
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(rerank);
	return true;
}

/*
 * Advances the prefetcher past a row that only the executor will fetch.
 * Releases the page of the row that was fetched last.
 */
void
IvfpqRerankSkip(IvfpqRerank *rerank, uint64 id)
{
	ItemPointerData tid;

	prefetch_to(rerank, id, &tid);
	table_index_fetch_reset(rerank->fetch);
}

/*
 * Prepares to test rows of the table that do not come from the index, and may
 * not be in it.  They come from IvfpqRerankTableNext or from another source.
 */
void
IvfpqRerankTableBegin(IvfpqRerank *rerank)
{
	IndexInfo  *indexInfo = IvfpqIndexInfo(rerank->index);

	if (indexInfo->ii_Predicate == NIL)
		return;
	if (rerank->estate == NULL)
		rerank->estate = CreateExecutorState();
	rerank->table.predicate = ExecPrepareQual(indexInfo->ii_Predicate,
											  rerank->estate);
}

/* Pins a page of the table, if it exists, and prefetches line pointers. */
static void
hold_page(IvfpqRerankTable *table, Relation heap, BlockNumber blkno)
{
	const char *page;

	if (blkno >= table->nblocks)
		return;
	table->held = IvfpqBufHintRead(heap, blkno, NULL);
	page = (const char *) BufferGetPage(table->held);
	IvfpqFetch(page, page + POINTERS_BYTES);
}

/*
 * Returns the next row of the table that the snapshot sees, in rerank->slot.
 * At the end, ends the scan and returns NULL.  A page stays pinned between
 * calls.
 */
TupleTableSlot *
IvfpqRerankTableNext(IvfpqRerank *rerank)
{
	IvfpqRerankTable *table = &rerank->table;
	BlockNumber blkno;

	if (table->scan == NULL)
	{
		BlockNumber nblocks = RelationGetNumberOfBlocks(rerank->heap);

		/*
		 * PostgreSQL reads a larger table through a ring of buffers.  Pages
		 * that are prefetched here would not go through the ring, and would
		 * evict the pages of other tables.
		 */
		table->nblocks = rerank->is_heap &&
			nblocks <= (BlockNumber) NBuffers / 4 ? nblocks : 0;
		table->current = InvalidBlockNumber;
		table->held = InvalidBuffer;
		table->scan = IvfpqTableBeginScan(rerank->heap, rerank->snapshot);
	}
	if (!table_scan_getnextslot(table->scan, ForwardScanDirection,
								rerank->slot))
	{
		ExecClearTuple(rerank->slot);
		table_endscan(table->scan);
		table->scan = NULL;
		if (BufferIsValid(table->held))
			ReleaseBuffer(table->held);
		table->held = InvalidBuffer;
		return NULL;
	}
	blkno = ItemPointerGetBlockNumber(&rerank->slot->tts_tid);
	if (blkno != table->current && table->nblocks > 0)
	{
		table->current = blkno;
		if (!BufferIsValid(table->held))
			hold_page(table, rerank->heap, blkno + 1);
		if (BufferIsValid(table->held))
		{
			/* prefetch the rows of the page that is held */
			Page		page = BufferGetPage(table->held);
			OffsetNumber n = Min(PageGetMaxOffsetNumber(page),
								 MaxHeapTuplesPerPage);

			for (OffsetNumber i = FirstOffsetNumber; i <= n; i++)
			{
				ItemIdData	item = *PageGetItemId(page, i);
				const char *start = (const char *) page + item.lp_off;

				if (item.lp_off + item.lp_len <= BLCKSZ)
					IvfpqFetch(start, start + Min(item.lp_len, ROW_BYTES));
			}
			ReleaseBuffer(table->held);
			table->held = InvalidBuffer;
		}
		hold_page(table, rerank->heap, blkno + 2);
	}
	return rerank->slot;
}

/*
 * Returns whether a row of the table satisfies the index's predicate, all key
 * quals and the early qual.  Sets rerank->rejected if the quals are not
 * satisfied.  The predicate is tested first: it may imply a policy, and no
 * other qual may see rows that the policy hides.
 */
bool
IvfpqRerankTableMatches(IvfpqRerank *rerank, TupleTableSlot *row)
{
	rerank->rejected = false;
	if (rerank->table.predicate != NULL)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(rerank->context);
		ExprContext *context = GetPerTupleExprContext(rerank->estate);
		bool		in_predicate;

		context->ecxt_scantuple = row;
		in_predicate = ExecQual(rerank->table.predicate, context);
		MemoryContextSwitchTo(oldcontext);
		forget_row(rerank);
		if (!in_predicate)
			return false;
	}
	rerank->rejected = !row_matches(rerank, row, true);
	return !rerank->rejected;
}

/*
 * Reranks a row of the table for which IvfpqRerankTableMatches returned true.
 * Returns false if the row is not in the index, because its value is NULL, has
 * other dimensions, or cannot be indexed under the metric (for example, the
 * zero vector under cosine distance).  Without a distance function *distance
 * is 0.
 */
bool
IvfpqRerankTableRow(IvfpqRerank *rerank, TupleTableSlot *row,
					double *distance)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(rerank->context);
	bool		isnull;
	Datum		value = indexed_value(rerank, row, &isnull);
	bool		is_indexed = !isnull;

	if (is_indexed && rerank->distance == NULL)
	{
		is_indexed = IvfpqHasPlace(vector_type(rerank), value, rerank->dims);
		*distance = 0;
	}
	else if (is_indexed && has_dims(rerank, &value, &row->tts_tid))
	{
		*distance = DatumGetFloat8(FunctionCall2Coll(rerank->distance,
													 rerank->collation, value,
													 rerank->query));
		is_indexed = !isnan(*distance) ||
			IvfpqHasPlace(vector_type(rerank), value, rerank->dims);
	}
	else
		is_indexed = false;
	MemoryContextSwitchTo(oldcontext);
	forget_row(rerank);
	return is_indexed;
}

/* Ends fetching, and frees what IvfpqRerankBegin allocated. */
void
IvfpqRerankEnd(IvfpqRerank *rerank)
{
	end_prefetch_row(&rerank->prefetch_row);
	ExecDropSingleTupleTableSlot(rerank->slot);
	table_index_fetch_end(rerank->fetch);
	if (rerank->estate)
		FreeExecutorState(rerank->estate);
	MemoryContextDelete(rerank->context);
}
