/*
 * measure.c
 *		The operator's own distance of a row, from the heap's value that the
 *		scan's snapshot sees.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/identity.h"
#include "am/common/tid.h"
#include "am/heap/measure.h"
#include "page/buffer/bufhint.h"

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
	rerank->fetch = table_index_fetch_begin(heap);
	rerank->slot = table_slot_create(heap, NULL);
	rerank->is_heap = heap->rd_tableam == GetHeapamTableAmRoutine();
	rerank->attnum = index->rd_index->indkey.values[0];
	if (rerank->attnum == 0)
	{
		rerank->indexInfo = IvfpqIndexInfo(index);
		rerank->estate = CreateExecutorState();
	}
	rerank->context = AllocSetContextCreate(CurrentMemoryContext,
											"gpuivfpq rerank",
											ALLOCSET_DEFAULT_SIZES);
	IvfpqRerankForesee(rerank, NULL, 0);
}

/* What to measure from now on: distance(row's value, query). */
void
IvfpqRerankQuery(IvfpqRerank *rerank, FmgrInfo *distance, Oid collation,
				 Datum query)
{
	rerank->distance = distance;
	rerank->collation = collation;
	rerank->query = query;
}

/* The indexed value of the row in the slot. */
static Datum
indexed_value(IvfpqRerank *rerank, bool *isnull)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		isnulls[INDEX_MAX_KEYS];

	if (rerank->attnum != 0)
		return slot_getattr(rerank->slot, rerank->attnum, isnull);

	GetPerTupleExprContext(rerank->estate)->ecxt_scantuple = rerank->slot;
	FormIndexDatum(rerank->indexInfo, rerank->slot, rerank->estate,
				   values, isnulls);
	*isnull = isnulls[0];
	return values[0];
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

/* Do rows mostly come from files, so that it helps to expect them? */
bool
IvfpqRerankIsCold(const IvfpqRerank *rerank)
{
	return rerank->is_heap && IvfpqAheadHelps(rerank->heap);
}

/*
 * Pass over rows that have other dimensions, with one warning, unless *told;
 * dims = 0: measure all.
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
 * These rows [n] may be fetched, in this order, before IvfpqRerankPause; ids
 * must stay as they are until then.  What pages they are on is known of heaps
 * only.
 */
void
IvfpqRerankForesee(IvfpqRerank *rerank, const uint64 *ids, int64 n)
{
	IvfpqAheadBegin(&rerank->ahead, rerank->heap, ids,
					rerank->is_heap ? n : 0, IVFPQ_ID_SHIFT);
}

/*
 * These rows [n], of ascending ids, will be fetched before IvfpqRerankPause;
 * ids must stay as they are until then.
 */
void
IvfpqRerankExpect(IvfpqRerank *rerank, const uint64 *ids, int64 n)
{
	IvfpqRerankForesee(rerank, ids, n);
	if (rerank->is_heap)
		IvfpqComingBegin(&rerank->coming, rerank->heap, ids, n);
}

/*
 * Have a heap's fetch begin with the row's page, which it would look for in
 * the hash table otherwise.
 */
static void
give_page(IvfpqRerank *rerank, uint64 id)
{
	IndexFetchHeapData *fetch = (IndexFetchHeapData *) rerank->fetch;
	BlockNumber blkno = (BlockNumber) (id >> IVFPQ_ID_SHIFT);
	Buffer		buffer = IvfpqComingTake(&rerank->coming, id);

	if (BufferIsValid(fetch->xs_cbuf) &&
		BufferGetBlockNumber(fetch->xs_cbuf) == blkno)
	{
		if (BufferIsValid(buffer))
			ReleaseBuffer(buffer);
		return;
	}
	if (!BufferIsValid(buffer))
		buffer = IvfpqRecentRead(rerank->heap, blkno, NULL);
	if (BufferIsValid(fetch->xs_cbuf))
		ReleaseBuffer(fetch->xs_cbuf);
	fetch->xs_cbuf = buffer;
	heap_page_prune_opt(rerank->heap, buffer);
}

/*
 * Get the indexed value of the row that an index entry points to, good until
 * IvfpqRerankDone.  False when the snapshot sees no row there, or NULL.
 */
bool
IvfpqRerankFetch(IvfpqRerank *rerank, uint64 id, Datum *value)
{
	ItemPointerData tid;
	MemoryContext oldcontext;
	bool		call_again = false;
	bool		isnull;

	IvfpqIdToTid(id, &tid);
	check_tid(rerank, &tid);
	IvfpqAheadTo(&rerank->ahead, ItemPointerGetBlockNumber(&tid));
	if (rerank->is_heap)
		give_page(rerank, id);
	if (!table_index_fetch_tuple(rerank->fetch, &tid, rerank->snapshot,
								 rerank->slot, &call_again,
								 rerank->asks_dead ? &rerank->all_dead : NULL))
		return false;

	oldcontext = MemoryContextSwitchTo(rerank->context);
	*value = indexed_value(rerank, &isnull);
	MemoryContextSwitchTo(oldcontext);
	if (isnull)
		IvfpqRerankDone(rerank);
	return !isnull;
}

/* Let go of the row fetched, and of all that was made in rerank->context. */
void
IvfpqRerankDone(IvfpqRerank *rerank)
{
	MemoryContextReset(rerank->context);
	if (rerank->estate)
		ResetPerTupleExprContext(rerank->estate);
	ExecClearTuple(rerank->slot);
}

/* A row has other dimensions than the index, and is not measured: say so. */
static void
tell_odd(IvfpqRerank *rerank, uint64 id, int dims)
{
	ItemPointerData tid;

	if (*rerank->told)
		return;
	*rerank->told = true;
	IvfpqIdToTid(id, &tid);
	ereport(WARNING,
			(errcode(ERRCODE_DATA_EXCEPTION),
			 errmsg("row (%u,%u) of table \"%s\" has %d dimensions, not the %d of index \"%s\", and is left out",
					ItemPointerGetBlockNumber(&tid),
					ItemPointerGetOffsetNumber(&tid),
					RelationGetRelationName(rerank->heap), dims, rerank->dims,
					RelationGetRelationName(rerank->index)),
			 errhint("gpuvec_verify_index names all such rows; delete or update them.")));
}

/*
 * Measure the row that an index entry points to.  False when the snapshot
 * sees no row there, or one of other dimensions than rerank->dims.
 */
bool
IvfpqRerankRow(IvfpqRerank *rerank, uint64 id, double *distance)
{
	MemoryContext oldcontext;
	Datum		value;

	if (!IvfpqRerankFetch(rerank, id, &value))
		return false;
	oldcontext = MemoryContextSwitchTo(rerank->context);
	if (rerank->dims > 0)
	{
		int			dims;

		if (!rerank->type.has_toreal)
			value = PointerGetDatum(PG_DETOAST_DATUM(value));
		(void) IvfpqValueFloats(&rerank->type, value, &dims);
		if (dims != rerank->dims)
		{
			MemoryContextSwitchTo(oldcontext);
			tell_odd(rerank, id, dims);
			IvfpqRerankDone(rerank);
			return false;
		}
	}
	*distance = DatumGetFloat8(FunctionCall2Coll(rerank->distance,
												 rerank->collation,
												 value, rerank->query));
	MemoryContextSwitchTo(oldcontext);
	IvfpqRerankDone(rerank);
	return true;
}

/* Let go of pages between batches, and expect no rows. */
void
IvfpqRerankPause(IvfpqRerank *rerank)
{
	IvfpqComingEnd(&rerank->coming);
	IvfpqAheadEnd(&rerank->ahead);
	IvfpqRerankForesee(rerank, NULL, 0);
	table_index_fetch_reset(rerank->fetch);
}

/* Let go of everything. */
void
IvfpqRerankEnd(IvfpqRerank *rerank)
{
	IvfpqComingEnd(&rerank->coming);
	ExecDropSingleTupleTableSlot(rerank->slot);
	table_index_fetch_end(rerank->fetch);
	if (rerank->estate)
		FreeExecutorState(rerank->estate);
	MemoryContextDelete(rerank->context);
}
