/*
 * batch.c
 *		Batches of a scan: the search parameters of the next one, its
 *		candidates, and their rows, which it reranks or bounds.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/tupdesc.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "executor/nodeHash.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/scan/scan.h"
#include "am/search/heaptids.h"
#include "am/search/rerank.h"
#include "client/client.h"
#include "page/injection.h"
#include "page/pending.h"
#include "pgcompat.h"

static void filter_full_pass(IvfpqScan *state,
								void (*take) (IvfpqScan *state, uint64 id,
											  double distance));

/*
 * Fetches and reranks a row.  Returns false when the snapshot does not see it,
 * or the filter or the key quals reject it.
 */
bool
IvfpqScanRerankRow(IvfpqScan *state, uint64 id, double *distance)
{
	bool		reranked = IvfpqRerankRow(state->rerank, id, distance);
	bool		rejected = state->rerank->rejected;
	TidSetEntry *entry;

	state->report.filter.rejected += rejected;
	state->report.reranked += !rejected;
	state->fetched++;
	state->invisible += !reranked && !rejected;
	/* the entry says already that the row matches, or that it may not */
	if (state->in_full_pass ||
		(IvfpqScanAsksRows(state) ? rejected : reranked))
		return reranked;
	entry = tidset_lookup(state->reranked, id);
	entry->matched = !rejected;
	entry->invisible = !reranked;
	return reranked;
}

/*
 * Reranks rows [count] in heap order and hands those that the snapshot sees
 * and that match to `take`.  Reorders ids.
 */
static void
scan_rerank(IvfpqScan *state, uint64 *ids, int64 count,
				void (*take) (IvfpqScan *state, uint64 id, double distance))
{
	double		distance;

	IvfpqSortNumbers(ids, count);
	IvfpqRerankPrefetchSorted(state->rerank, ids, count);
	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (IvfpqScanRerankRow(state, ids[i], &distance))
			take(state, ids[i], distance);
	}
	IvfpqRerankPause(state->rerank);
}

static void
enqueue_reranked(IvfpqScan *state, uint64 id, double distance)
{
	if (state->filter != NULL)
		IvfpqRadiusCount(state, distance);
	IvfpqQueueAdd(&state->queue, id, distance);
}

/* Put rows into the queue unless they were reranked before. */
static void
rerank_rows(IvfpqScan *state, uint64 *ids, int64 count)
{
	int64		kept = 0;

	for (int64 i = 0; i < count; i++)
	{
		bool		found;
		TidSetEntry *entry = tidset_insert(state->reranked, ids[i], &found);

		if (found)
			continue;
		/* unless the row says otherwise */
		entry->matched = !IvfpqScanAsksRows(state);
		entry->invisible = false;
		ids[kept++] = ids[i];
	}
	IvfpqQueueReserve(&state->queue, kept);
	scan_rerank(state, ids, kept, enqueue_reranked);
}

/*
 * Put the rows whose refine records are at these addresses into the queue
 * with their bounds, unless they were in it before.
 */
static void
bound_rows(IvfpqScan *state, uint64 *ids, int64 count)
{
	IvfpqRowBounds *bounds = palloc_extended(Max(count, 1) *
											 sizeof(IvfpqRowBounds),
											 MCXT_ALLOC_HUGE);
	int64		added = 0;

	count = IvfpqRecordBounds(&state->search, state->bound_query, ids, count,
							  bounds);
	state->report.refined += count;
	IvfpqQueueReserve(&state->queue, count);
	for (int64 i = 0; i < count; i++)
	{
		bool		found;

		tidset_insert(state->reranked, ids[i], &found);
		if (found)
			continue;
		IvfpqQueueAddBounded(&state->queue, ids[i], &bounds[i]);
		if (state->filter != NULL && state->filter->radius.by_all)
			IvfpqRadiusCount(state, bounds[i].least);
		added++;
	}
	pfree(bounds);
	if (IvfpqRerankIsCold(state->rerank))
		IvfpqQueuePrefetch(&state->queue, added);
	/* the pages read so far were those of the index */
	IvfpqRerankPrefetch(state->rerank, NULL, 0);
}

/*
 * Reranks all pending rows.  Returns false when they are too many, or memory
 * is too small, and a full pass is better.
 */
static bool
rerank_pending(IvfpqScan *state)
{
	IvfpqPendingReader reader;
	int64		total = 0;
	int			count;
	bool		fits = true;

	bool		asks_all = state->rerank->asks_all;

	state->rerank->asks_all = true;
	IvfpqRerankDims(state->rerank, state->pending_dims,
					&state->warned_mismatched);
	IvfpqPendingOpen(&reader, state->index, &state->model->meta);
	while (fits && IvfpqPendingNext(&reader, &count))
	{
		uint64	   *ids = palloc(Max(count, 1) * sizeof(uint64));

		for (int i = 0; i < count; i++)
			ids[i] = IvfpqTidToId(&reader.tids[i]);
		rerank_rows(state, ids, count);
		pfree(ids);
		total += count;
		fits = total <= IVFPQ_MIN_RERANKED &&
			IvfpqBatchFits(state, 0, total);
	}
	IvfpqPendingClose(&reader);
	IvfpqRerankDims(state->rerank, 0, NULL);
	state->rerank->asks_all = asks_all;
	state->fetched = state->invisible = 0;	/* no candidates */
	return fits;
}

/* Lists that a scan may probe. */
static int
most_probes(const IvfpqScan *state)
{
	IvfpqSearchParams first;

	if (ivfpq_max_probes == 0)
		return state->model->meta.nlists;
	IvfpqParamsForBatch(&first, state->index, &state->model->meta,
						state->recall,
						0);
	return Min(state->model->meta.nlists,
			   Max(ivfpq_max_probes, first.probes));
}

/*
 * Sets the search parameters of the next batch: no more lists than may be
 * probed, no more candidates than these have postings.  If the batch before
 * found all rows of its lists, there are more lists, even if a damaged
 * calibration says otherwise.  Returns false when a full pass is better.  That
 * would read lists that may not be probed, if gpuvec.max_probes is set; then
 * all lists that may be probed are the last batch instead.
 */
static bool
size_batch(IvfpqScan *state, bool *last)
{
	IvfpqSearchParams *params = &state->params;
	int			most;
	bool		is_last = false;

	IvfpqDepthNext(state);
	state->search.query.deep = params->beyond_parents ||
		params->quota > IVFPQ_PARENTS_ROWS;
	if (state->batch == 0)
	{
		state->report.probes = params->probes;
		state->report.candidates = params->candidates;
	}
	if (params->read_all ||
		(state->batch == 0 && !rerank_pending(state)))
		return false;
	most = most_probes(state);
	if (IvfpqDepthRest(state, false) != IVFPQ_REST_NONE)
	{
		if (ivfpq_max_probes == 0)
			return false;
		is_last = true;
		params->probes = most;
		params->candidates = PG_INT32_MAX / 4;	/* all there are */
	}
	if (state->is_drained && params->probes <= state->drained)
		params->probes = 2 * state->drained;
	params->probes = Min(params->probes, most);
	*last = params->probes == most;
	if (state->asks_keys)
		IvfpqScanAimKeys(state, most, is_last);
	else
	{
		state->wanted = params->candidates;
		params->candidates = IvfpqScanCandidates(state, params->probes);
	}
	return IvfpqBatchFits(state, params->probes, params->candidates);
}

/*
 * Returns the candidates wanted, but no more than there are postings in that
 * many lists, and one.  That one is not found, which tells that there are no
 * more.
 */
int
IvfpqScanCandidates(IvfpqScan *state, int probes)
{
	int64		postings;

	if (state->wanted <= IVFPQ_FEW_CANDIDATES)
		return state->wanted;
	postings = IvfpqSearchCount(&state->search, probes);
	IvfpqInjectionPoint("scan: counted");
	return (int) Min(state->wanted, postings + 1);
}

/*
 * Returns whether the batch has to be searched for again, with room for more
 * candidates.  Other sessions may insert rows after the limit was chosen; the
 * search then leaves some out.  A later batch would find these, but out of
 * order.
 */
static bool
lists_have_grown(IvfpqScan *state)
{
	IvfpqSearchParams *params = &state->params;
	int			candidates = (int) Min(state->wanted,
									   2 * (int64) params->candidates);

	/* a search with conditions on keys may have asked for fewer */
	if (state->search.found_all || candidates == params->candidates ||
		state->search.candidates.capacity <
		params->candidates * state->model->meta.lists_per_row ||
		!IvfpqBatchFits(state, params->probes, candidates))
		return false;
	params->candidates = candidates;
	return true;
}

/*
 * Reranks the batch's candidates, or bounds them, and sets the quota of rows
 * that may come up before the next batch: those that match within the depth.
 * Rows that are only bounded have not been tested yet; those that are rejected
 * count when they come up.
 */
static void
take_candidates(IvfpqScan *state)
{
	GvTopK	   *candidates = &state->search.candidates;
	int64		n = candidates->count;
	uint64	   *ordered;

	state->quota = state->params.quota;
	state->depth = state->params.quota;
	if (state->search.addresses)
		bound_rows(state, candidates->ids, n);
	else
	{
		n = Min(n, state->params.quota);
		ordered = palloc_extended(Max(n, 1) * sizeof(uint64),
								  MCXT_ALLOC_HUGE);
		memcpy(ordered, candidates->ids, n * sizeof(uint64));
		rerank_rows(state, candidates->ids, candidates->count);
		state->quota = IvfpqDepthQuota(state, ordered, n);
		if (state->filter != NULL)
			IvfpqRadiusWatch(state, ordered, n);
		pfree(ordered);
	}
}

/* Get the next batch of candidates, or finish. */
void
IvfpqNextBatch(IvfpqScan *state)
{
	IvfpqSearchParams *params = &state->params;
	MemoryContext oldcontext = MemoryContextSwitchTo(state->batches);
	bool		last;

	/* stop the prefetch of rows of the queue: their order will change */
	if (state->rerank != NULL && IvfpqRerankIsPrefetching(state->rerank))
		IvfpqRerankPause(state->rerank);
	if (state->filter != NULL && IvfpqRadiusIsRead(state))
	{
		MemoryContextSwitchTo(oldcontext);
		state->exhausted = true;
		return;
	}
	if (!size_batch(state, &last))
	{
		MemoryContextSwitchTo(oldcontext);
		IvfpqFullPassBegin(state);
		return;
	}
	if (state->asks_keys)
	{
		IvfpqKeyGoal goal = state->goal;

		do
		{
			state->goal = goal;
			state->goal.candidates = params->candidates;
			IvfpqSearchKeys(&state->search, &state->goal);
		} while (lists_have_grown(state));
		state->key_selectivity = state->goal.selectivity;
		state->exhausted = state->goal.is_all;
	}
	else
	{
		do
			IvfpqSearchRun(&state->search, params->probes,
						   params->candidates);
		while (lists_have_grown(state));
		state->is_drained = state->search.found_all &&
			state->search.candidates.count < params->candidates;
		state->drained = params->probes;
		state->exhausted = last && state->is_drained;
	}
	if (state->asks_keys && state->goal.everything)
	{
		MemoryContextSwitchTo(oldcontext);
		IvfpqFullPassBegin(state);
		return;
	}
	take_candidates(state);
	MemoryContextSwitchTo(oldcontext);
	state->batch++;
}

/* ----
 * The end of a scan that reads everything: all TIDs of the index in heap
 * order, each row reranked once, and a sort by distance.  Both sorts go
 * to disk beyond work_mem.  This file also says when a scan needs it.
 */

/* Memory of a search for a list and, where gpuvecd answers, for a posting. */
#define LIST_BYTES		(64 + 2 * sizeof(IvfpqDirEntry))
#define ANSWER_BYTES	(32 + sizeof(IvfpqKnownRecord))

/* The least memory that a sort takes. */
#define SORT_KB			64

/* Rows whose pages are prefetched together. */
#define ROWS_AT_ONCE	1024

#define SORT_DISTANCE	1
#define SORT_ID			2

/* Bytes of a set of n rows. */
static double
set_bytes(double n)
{
	return sizeof(TidSetEntry) *
		(double) pg_nextpower2_64((uint64) (n / 0.9) + 2);
}

/*
 * May a batch of that size begin?  All that a scan holds, with what the batch
 * adds to it, stays within what a hash table may take.
 */
bool
IvfpqBatchFits(const IvfpqScan *state, int probes, int64 candidates)
{
	const IvfpqMetaData *meta = &state->model->meta;
	double		postings = (double) candidates * meta->lists_per_row;
	double		found;			/* the best postings */
	double		search;			/* scratch, and the rows of these postings */
	double		rows;			/* in the queue, and in the set, which grows */
	Size		row_bytes = sizeof(IvfpqQueuedRow);

	if (candidates <= IVFPQ_FEW_CANDIDATES)
		return true;
	found = postings * (sizeof(float) + sizeof(uint64)) + probes * LIST_BYTES;
	if (IvfpqServerIsWanted())
		found += postings * ANSWER_BYTES;
	search = gv_scan_scratch(state->model->gv.m,
							 (int32) Min(postings, PG_INT32_MAX)) +
		set_bytes(candidates);
	if (state->search.addresses)	/* bounds, and what is prefetched */
		row_bytes += sizeof(IvfpqQueuedRow) + sizeof(IvfpqNextRow) +
			sizeof(IvfpqRowBounds) + 2 * sizeof(uint64);
	rows = candidates * row_bytes +
		1.5 * set_bytes((double) state->reranked->members + candidates);
	return MemoryContextMemAllocated(state->context, true) + found +
		Max(search, rows) <= get_hash_memory_limit();
}

/*
 * Memory for each of the pass's two sorts: half of what the scan does not hold
 * already.
 */
static int
sort_memory(const IvfpqScan *state)
{
	double		left = (double) get_hash_memory_limit() -
	MemoryContextMemAllocated(state->context, true);

	return (int) Min(work_mem, Max(SORT_KB, left / 2 / 1024));
}

/* A sort of (distance, TID), and the slot that its rows go through. */
static TupleDesc
begin_distance_sort(IvfpqScan *state, int sort_mem)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_ID);
	AttrNumber	columns[] = {SORT_DISTANCE, SORT_ID};
	Oid			operators[] = {Float8LessOperator, Int8LessOperator};
	Oid			collations[] = {InvalidOid, InvalidOid};
	bool		nulls_first[] = {false, false};

	TupleDescInitEntry(desc, SORT_DISTANCE, "distance", FLOAT8OID, -1, 0);
	TupleDescInitEntry(desc, SORT_ID, "tid", INT8OID, -1, 0);
	IvfpqFinishTupleDesc(desc);
	state->full_pass_sort = tuplesort_begin_heap(desc, 2, columns, operators,
												 collations, nulls_first,
												 sort_mem, NULL, TUPLESORT_NONE);
	state->full_pass_slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	return desc;
}

static void
put_row(IvfpqScan *state, uint64 id, double distance)
{
	TupleTableSlot *slot = state->full_pass_slot;

	ExecClearTuple(slot);
	slot->tts_values[SORT_DISTANCE - 1] = Float8GetDatum(distance);
	slot->tts_values[SORT_ID - 1] = Int64GetDatum((int64) id);
	slot->tts_isnull[SORT_DISTANCE - 1] = false;
	slot->tts_isnull[SORT_ID - 1] = false;
	ExecStoreVirtualTuple(slot);
	tuplesort_puttupleslot(state->full_pass_sort, slot);
}

/* Put rows [n] of ascending ids into the sort. */
static void
put_rows(IvfpqScan *state, uint64 *ids, int n)
{
	Datum		value;

	if (!state->null_query)
	{
		scan_rerank(state, ids, n, put_row);
		return;
	}
	for (int i = 0; i < n; i++)
	{
		/* without conditions there is nothing to ask of rows */
		if (state->rerank != NULL &&
			!IvfpqRerankFetch(state->rerank, ids[i], &value))
			continue;
		if (state->rerank != NULL)
			IvfpqRerankDone(state->rerank);
		put_row(state, ids[i], 0);
	}
}

/*
 * Rerank every row of the index that was not reranked before; with conditions
 * on keys those that may satisfy them.
 */
static void
rerank_rest(IvfpqScan *state, int sort_mem)
{
	Tuplesortstate *tids = IvfpqSortTids(state->index,
										 state->asks_keys ?
										 &state->quals.condition : NULL,
										 sort_mem);
	uint64		ids[ROWS_AT_ONCE];
	uint64		last = 0;
	int			n = 0;
	Datum		value;
	bool		isnull;

	while (IvfpqTuplesortGetDatum(tids, &value, &isnull))
	{
		uint64		id = (uint64) DatumGetInt64(value);

		CHECK_FOR_INTERRUPTS();
		if (id == last)
			continue;
		last = id;
		if (tidset_lookup(state->reranked, id) != NULL)
			continue;
		ids[n++] = id;
		if (n == ROWS_AT_ONCE)
		{
			put_rows(state, ids, n);
			n = 0;
		}
	}
	put_rows(state, ids, n);
	tuplesort_end(tids);
}

/* Rows of the queue go into the sort, unless they are only bounded. */
static void
empty_queue(IvfpqScan *state)
{
	IvfpqQueuedRow *row;

	while ((row = IvfpqQueueTake(&state->queue)) != NULL)
	{
		if (row->bounded)
			tidset_delete(state->reranked, row->id);
		else
			put_row(state, row->id, row->distance);
	}
}

/*
 * Sort all rows not returned yet, those in the queue included; rows that are
 * only bounded are reranked in the pass, in heap order.  From here on they
 * come from the sort.  A filtered scan that reads the table finds those in the
 * queue again.
 */
void
IvfpqFullPassBegin(IvfpqScan *state)
{
	int			sort_mem = sort_memory(state);
	TupleDesc	desc = begin_distance_sort(state, sort_mem);
	IvfpqRest	rest = state->asks_keys ? IVFPQ_REST_LISTS :
	IVFPQ_REST_FULL_PASS;
	bool		by_lists = state->filter == NULL;

	if (state->filter != NULL)
	{
		rest = IvfpqDepthRest(state, true);
		by_lists = rest == IVFPQ_REST_LISTS;
	}
	state->report.filter.rest = rest;
	if (by_lists)
		empty_queue(state);
	MemoryContextDelete(state->batches);
	state->in_full_pass = true;
	state->exhausted = true;
	if (state->rerank != NULL)
	{
		IvfpqRerankDims(state->rerank, state->pending_dims, &state->warned_mismatched);
		state->rerank->asks_all = true;
	}
	if (!by_lists)
		filter_full_pass(state, put_row);
	else
		rerank_rest(state, sort_mem);
	tuplesort_performsort(state->full_pass_sort);

	ExecDropSingleTupleTableSlot(state->full_pass_slot);
	state->full_pass_slot =
		MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
}

/* The next nearest row; false at the end. */
bool
IvfpqFullPassNext(IvfpqScan *state, IvfpqNextRow *row)
{
	bool		isnull;

	if (!tuplesort_gettupleslot(state->full_pass_sort, true, false,
								state->full_pass_slot, NULL))
		return false;
	row->least = row->most =
		DatumGetFloat8(slot_getattr(state->full_pass_slot, SORT_DISTANCE,
									&isnull));
	row->id =
		(uint64) DatumGetInt64(slot_getattr(state->full_pass_slot, SORT_ID,
											&isnull));
	row->reranked = true;
	return true;
}

/* Close the sort, with its files. */
void
IvfpqFullPassEnd(IvfpqScan *state)
{
	if (state->full_pass_slot)
		ExecDropSingleTupleTableSlot(state->full_pass_slot);
	if (state->full_pass_sort)
		tuplesort_end(state->full_pass_sort);
	state->full_pass_slot = NULL;
	state->full_pass_sort = NULL;
	state->in_full_pass = false;
}

/* ----
 * The full pass of a filtered scan: over the table, or over those of its
 * rows that another index names.  The condition comes first, and only
 * rows that match are reranked.
 *
 * Rows are named by where they are.  An entry of an index may name the head of
 * a HOT chain instead, so the scan notes where the rows are that it returns.
 */

/*
 * A row of the rest.  The predicate comes first: it may stand for a policy,
 * whose condition it proves, and no other may be asked of rows that that
 * hides.
 */
static void
offer_row(IvfpqScan *state, TupleTableSlot *row,
		  void (*take) (IvfpqScan *state, uint64 id, double distance))
{
	IvfpqFilter *filter = state->filter;
	uint64		id;
	double		distance;

	CHECK_FOR_INTERRUPTS();
	if (!IvfpqRerankAdmits(state->rerank, row))
		return;
	if ((state->asks_keys && !IvfpqRerankMatches(state->rerank, row, true)) ||
		!filter->satisfies(filter->arg, row))
	{
		state->report.filter.rejected++;
		return;
	}
	id = IvfpqTidToId(&row->tts_tid);
	if (state->returned_tids != NULL &&
		tidset_lookup(state->returned_tids, id) != NULL)
		return;
	state->report.reranked++;
	if (IvfpqRerankOther(state->rerank, row, &distance) &&
		!IvfpqIsOutside(state, distance))
		take(state, id, distance);
}

/*
 * Give every row that passes and has not been returned to `take`, named by
 * where it is; state->report says by which way.
 */
static void
filter_full_pass(IvfpqScan *state,
					void (*take) (IvfpqScan *state, uint64 id, double distance))
{
	IvfpqFilter *filter = state->filter;
	IvfpqRerank *rerank = state->rerank;
	TupleTableSlot *row;
	TableScanDesc scan;
	IvfpqPrefetchPage pages;

	IvfpqRerankOthers(rerank);
	if (state->report.filter.rest == IVFPQ_REST_MATCHES)
	{
		while ((row = filter->next_match(filter->arg)) != NULL)
			offer_row(state, row, take);
		return;
	}
	IvfpqPrefetchPageBegin(&pages, rerank->heap);
	scan = IvfpqTableBeginScan(rerank->heap, rerank->snapshot);
	row = rerank->slot;
	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		IvfpqPrefetchPageTo(&pages,
							ItemPointerGetBlockNumber(&row->tts_tid));
		offer_row(state, row, take);
	}
	ExecClearTuple(row);
	table_endscan(scan);
	IvfpqPrefetchPageEnd(&pages);
}

/*
 * Fetch the row that comes up into the filter's slot, and note where it is.
 * id is an entry's or, of the rest, says where the row is.  False if it has
 * vanished, which a snapshot does not allow.
 */
bool
IvfpqFilterFetch(IndexScanDesc scan, uint64 id)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;
	TupleTableSlot *row = state->filter->row;
	bool		found;

	IvfpqIdToTid(id, &scan->xs_heaptid);
	if (state->in_full_pass && state->report.filter.rest != IVFPQ_REST_LISTS)
		return table_tuple_fetch_row_version(scan->heapRelation,
											 &scan->xs_heaptid,
											 scan->xs_snapshot, row);
	if (!index_fetch_heap(scan, row))
		return false;
	if (state->returned_tids == NULL)
		state->returned_tids = tidset_create(state->context, 16, NULL);
	tidset_insert(state->returned_tids, IvfpqTidToId(&row->tts_tid), &found);
	return true;
}
