/*
 * batch.c
 *		Gets more rows for a scan: from the next batch, whose candidates are
 *		reranked or bounded, or from the full pass, which finds all remaining
 *		rows.
 *
 * The full pass takes TIDs from the index in heap order, reranks each row
 * once, and sorts the rows by distance.  The sort of the TIDs and the sort of
 * the rows go to disk if they need more than work_mem.  A filtered scan may
 * instead read the table, or the rows that another index finds.  It then tests
 * the conditions first, and reranks only rows that match.
 *
 * A posting may hold the TID of the root of a HOT chain.  A full pass that
 * does not read postings identifies each row by the TID of the row's own
 * tuple.  So a filtered scan notes the TIDs of the tuples that it returns, and
 * such a full pass leaves these tuples out.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/scan/scan.h"
#include "am/search/heaptids.h"
#include "page/injection.h"
#include "page/pending.h"

/* Number of rows whose pages are prefetched together. */
#define ROWS_AT_ONCE	1024

/* IvfpqScanSink callback.  Puts a reranked row into the queue. */
static void
queue_reranked(IvfpqScanRun *run, uint64 id, double distance)
{
	IvfpqRadiusCount(run, distance);
	IvfpqRowsAdd(&run->rows, id, distance, distance, false);
}

/* Reranks and queues the rows ids [count] that were not reranked before. */
static void
rerank_rows(IvfpqScanRun *run, uint64 *ids, int64 count)
{
	int64		kept = 0;

	for (int64 i = 0; i < count; i++)
	{
		bool		found;
		TidSetEntry *entry = tidset_insert(run->rows.seen, ids[i], &found);

		if (found)
			continue;

		/*
		 * If counts_matching is true, assume that the row is rejected,
		 * otherwise that the row matches.  If the assumption is wrong,
		 * rerank_row() changes both fields.
		 */
		entry->matched = !run->rows.counts_matching;
		entry->invisible = false;
		ids[kept++] = ids[i];
	}
	IvfpqRowsReserve(&run->rows, kept);
	IvfpqRowsRerank(run, ids, kept, queue_reranked);
}

/*
 * Reads the refine records at the addresses ids [count], and puts their rows
 * into the queue with bounds.  Leaves out rows that were in the queue before.
 */
static void
bound_rows(IvfpqScanRun *run, uint64 *ids, int64 count)
{
	IvfpqRowBounds *bounds = palloc_extended(Max(count, 1) *
											 sizeof(IvfpqRowBounds),
											 MCXT_ALLOC_HUGE);
	int64		added = 0;

	count = IvfpqRecordBounds(&run->search, run->query.bound_query, ids, count,
							  bounds);
	run->report.counts[IVFPQ_COUNT_REFINED] += count;
	IvfpqRowsReserve(&run->rows, count);
	for (int64 i = 0; i < count; i++)
	{
		bool		found;

		tidset_insert(run->rows.seen, ids[i], &found);
		if (found)
			continue;
		IvfpqRowsAdd(&run->rows, ids[i], bounds[i].least, bounds[i].most,
					 true);
		if (run->filter->radius.ends_on_any_row)
			IvfpqRadiusCount(run, bounds[i].least);
		added++;
	}
	pfree(bounds);
	if (IvfpqRerankReadsFromDisk(run->rerank))
		IvfpqRowsPrefetch(&run->rows, added);
	/* count page reads anew, without the reads of refine pages above */
	IvfpqRerankPrefetch(run->rerank, NULL, 0, false);
}

/*
 * Reranks all pending rows.  Returns false if there are too many of them, or
 * if memory is short, so that a full pass is better.
 */
static bool
rerank_pending(IvfpqScanRun *run)
{
	IvfpqPendingReader reader;
	int64		total = 0;
	int			count;
	bool		fits = true;
	bool		recheck_all_keys = run->rerank->recheck_all_keys;

	/* pending rows have no abbreviated keys */
	run->rerank->recheck_all_keys = true;
	run->rerank->dims = run->query.pending_dims;
	run->rerank->warned = run->query.warned_mismatched;
	IvfpqPendingOpen(&reader, run->index, &run->model->meta);
	while (fits && IvfpqPendingNext(&reader, &count))
	{
		uint64	   *ids = palloc(Max(count, 1) * sizeof(uint64));

		for (int i = 0; i < count; i++)
			ids[i] = IvfpqTidToId(&reader.tids[i]);
		rerank_rows(run, ids, count);
		pfree(ids);
		total += count;
		fits = total <= IVFPQ_MIN_RERANKED && IvfpqDepthFits(run, 0, total);
	}
	IvfpqPendingClose(&reader);
	run->rerank->dims = 0;
	run->rerank->recheck_all_keys = recheck_all_keys;
	run->rows.fetched = run->rows.invisible = 0;	/* pending rows are not
													 * candidates */
	return fits;
}

/*
 * Returns whether the batch must be searched again, with capacity for more
 * candidates.  If so, raises params->candidates.  Other sessions may insert
 * rows after the number of candidates was limited to the number of postings,
 * and the search then leaves out some rows.  A later batch would find these
 * rows, but out of order.
 */
static bool
lists_have_grown(IvfpqScanRun *run)
{
	IvfpqSearchParams *params = &run->depth.params;
	int			candidates = (int) Min(run->depth.wanted,
									   2 * (int64) params->candidates);

	/* a search with key quals may look for fewer than params->candidates */
	if (run->search.found_all || candidates == params->candidates ||
		run->search.candidates.capacity <
		params->candidates * run->model->meta.lists_per_row ||
		!IvfpqDepthFits(run, params->probes, candidates))
		return false;
	params->candidates = candidates;
	return true;
}

/*
 * Finds the candidates of the batch.  `last` is true if the batch searches all
 * lists that may be probed.  Sets run->exhausted if no rows are left for
 * another batch.  Returns false if only a full pass can reach the target
 * recall with these key quals.
 */
static bool
find_candidates(IvfpqScanRun *run, bool last)
{
	IvfpqSearchParams *params = &run->depth.params;
	IvfpqKeyGoal *goal = &run->keys.goal;
	IvfpqKeyGoal aim = *goal;
	bool		is_drained;

	if (!run->keys.any)
	{
		do
			IvfpqSearchRun(&run->search, params->probes, params->candidates);
		while (lists_have_grown(run));
		is_drained = run->search.found_all &&
			run->search.candidates.count < params->candidates;
		run->depth.ndrained = is_drained ? params->probes : 0;
		run->exhausted = last && is_drained;
		return true;
	}
	do
	{
		*goal = aim;
		goal->candidates = params->candidates;
		IvfpqSearchKeys(&run->search, goal);
	} while (lists_have_grown(run));
	run->keys.selectivity = goal->selectivity;
	run->exhausted = goal->is_all;
	return !goal->everything;
}

/*
 * Reranks or bounds the candidates of the batch.  Sets the quota, the number
 * of rows that may leave the queue before the next batch, to the number of
 * matching rows within the depth.  Rows that are only bounded have not been
 * tested yet.  If such a row is rejected later, it still counts as having left
 * the queue.
 */
static void
take_candidates(IvfpqScanRun *run)
{
	GvTopK	   *candidates = &run->search.candidates;
	int64		quota = run->depth.params.quota;
	int64		n = Min(candidates->count, quota);
	uint64	   *ordered;

	run->depth.rows = quota;
	run->rows.quota = quota;
	if (run->search.addresses)
	{
		bound_rows(run, candidates->ids, candidates->count);
		return;
	}
	ordered = palloc_extended(Max(n, 1) * sizeof(uint64), MCXT_ALLOC_HUGE);
	memcpy(ordered, candidates->ids, n * sizeof(uint64));
	rerank_rows(run, candidates->ids, candidates->count);
	run->rows.quota = IvfpqDepthQuota(run, ordered, n);
	IvfpqRadiusProbeRanks(run, ordered, n);
	pfree(ordered);
}

/*
 * Puts the rows of the next batch into the queue.  Returns false if a full
 * pass is better.  Pending rows are read before any list.  No row is missed
 * that way, because rows move from the pending list to lists, and never back.
 */
static bool
read_batch(IvfpqScanRun *run)
{
	IvfpqSearchParams *params = &run->depth.params;
	bool		last;

	IvfpqDepthNext(run);
	run->search.query.deep = params->beyond_parents ||
		params->quota > IVFPQ_PARENTS_ROWS;
	if (run->depth.batches == 0)
	{
		run->report.probes = params->probes;
		run->report.candidates = params->candidates;
	}
	if (params->read_all ||
		(run->depth.batches == 0 && !rerank_pending(run)) ||
		!IvfpqDepthLimit(run, &last) ||
		!find_candidates(run, last))
		return false;
	take_candidates(run);
	run->depth.batches++;
	return true;
}

/* Reads the next batch, or does the full pass if that is better. */
void
IvfpqScanNextBatch(IvfpqScanRun *run)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(run->batches);

	/* stop prefetching, because the order of the queue's rows will change */
	if (run->rerank != NULL && IvfpqRerankIsPrefetching(run->rerank))
		IvfpqRerankReleasePages(run->rerank);
	if (IvfpqRadiusIsRead(run))
		run->exhausted = true;
	else if (!read_batch(run))
	{
		MemoryContextSwitchTo(oldcontext);
		IvfpqFullPassBegin(run);
		return;
	}
	MemoryContextSwitchTo(oldcontext);
}

/* IvfpqScanSink callback.  Puts a reranked row into the full pass's sort. */
static void
sort_row(IvfpqScanRun *run, uint64 id, double distance)
{
	IvfpqSortPut(&run->pass.sort, Float8GetDatum(distance),
				 Int64GetDatum((int64) id), NULL);
}

/* Puts the rows ids [n], which are in ascending order, into the sort. */
static void
sort_rows(IvfpqScanRun *run, uint64 *ids, int n)
{
	Datum		value;

	if (!run->query.is_null)
	{
		IvfpqRowsRerank(run, ids, n, sort_row);
		return;
	}
	for (int i = 0; i < n; i++)
	{
		/* run->rerank is NULL if there are no conditions to test */
		if (run->rerank != NULL &&
			!IvfpqRerankFetch(run->rerank, ids[i], &value))
			continue;
		if (run->rerank != NULL)
			IvfpqRerankDone(run->rerank);
		sort_row(run, ids[i], 0);
	}
}

/*
 * Moves the reranked rows of the queue into the sort.  Forgets the bounded
 * rows, so that the full pass finds them again.
 */
static void
empty_queue(IvfpqScanRun *run)
{
	IvfpqQueuedRow *row;

	while ((row = IvfpqRowsPop(&run->rows)) != NULL)
	{
		if (row->bounded)
			tidset_delete(run->rows.seen, row->id);
		else
			sort_row(run, row->id, row->lower);
	}
}

/*
 * Puts into the sort all rows of the index that were not reranked before.
 * Leaves out rows that cannot satisfy the key quals.  Reads the rows in heap
 * order.
 */
static void
pass_over_index(IvfpqScanRun *run, int sort_kb)
{
	IvfpqSort	tids;
	uint64		ids[ROWS_AT_ONCE];
	uint64		id = 0;
	int			n = 0;

	IvfpqSortTids(&tids, run->index, run->keys.any ?
				  &run->keys.quals.condition : NULL, sort_kb);
	while (IvfpqNextTid(&tids, &id))
	{
		if (tidset_lookup(run->rows.seen, id) != NULL)
			continue;
		ids[n++] = id;
		if (n == ROWS_AT_ONCE)
		{
			sort_rows(run, ids, n);
			n = 0;
		}
	}
	sort_rows(run, ids, n);
	IvfpqSortEnd(&tids);
}

/*
 * Puts a row of the table into the sort if the row matches and was not
 * returned before.  In the sort, the TID of the row's own tuple identifies the
 * row.
 */
static void
offer_row(IvfpqScanRun *run, TupleTableSlot *row)
{
	uint64		id;
	double		distance;

	CHECK_FOR_INTERRUPTS();
	if (!IvfpqRerankTableMatches(run->rerank, row))
	{
		run->rows.rejected += run->rerank->rejected;
		return;
	}
	id = IvfpqTidToId(&row->tts_tid);
	if (run->rows.returned_tids != NULL &&
		tidset_lookup(run->rows.returned_tids, id) != NULL)
		return;
	run->report.counts[IVFPQ_COUNT_RERANKED]++;
	if (IvfpqRerankTableRow(run->rerank, row, &distance) &&
		!IvfpqIsOutside(&run->filter->radius, distance))
		sort_row(run, id, distance);
}

/*
 * Puts into the sort all matching rows that were not returned before,
 * including those in the queue.  If by_bitmap is set, reads only the rows that
 * another index finds, otherwise the whole table.
 */
static void
pass_over_table(IvfpqScanRun *run, bool by_bitmap)
{
	const IvfpqScanFilter *filter = run->filter;
	TupleTableSlot *row;

	IvfpqRerankTableBegin(run->rerank);
	while ((row = by_bitmap ? filter->next_bitmap_row(filter->arg) :
			IvfpqRerankTableNext(run->rerank)) != NULL)
		offer_row(run, row);
}

/*
 * Does the full pass: puts into the sort all rows that were not returned
 * before, including those in the queue.  After that, rows come from the sort.
 */
void
IvfpqFullPassBegin(IvfpqScanRun *run)
{
	/* each of the two sorts may have half of the memory that is left */
	double		left = (double) get_hash_memory_limit() -
	MemoryContextMemAllocated(run->context, true);
	int			sort_kb = (int) Min(work_mem, Max(0, left / 2 / 1024));
	IvfpqRestSource rest = IvfpqDepthRest(run, true);

	/* without a filter, IVFPQ_REST_TABLE means all TIDs of the index */
	bool		by_index = rest == IVFPQ_REST_LISTS ||
	run->filter == &ivfpq_no_filter;

	IvfpqSortBegin(&run->pass.sort, FLOAT8OID, INT8OID, 0, sort_kb);
	run->pass.source = rest;
	if (by_index)
		empty_queue(run);
	MemoryContextDelete(run->batches);
	run->pass.active = true;
	run->exhausted = true;
	if (run->rerank != NULL)
	{
		run->rerank->dims = run->query.pending_dims;
		run->rerank->warned = run->query.warned_mismatched;
		run->rerank->recheck_all_keys = true;
	}
	if (by_index)
		pass_over_index(run, sort_kb);
	else
		pass_over_table(run, rest == IVFPQ_REST_BITMAP);
	IvfpqSortPerform(&run->pass.sort);
}

/* Sets *row to the next row of the sort.  Returns false if there is none. */
bool
IvfpqFullPassNext(IvfpqScanRun *run, IvfpqNextRow *row)
{
	const IvfpqSort *sort = &run->pass.sort;

	if (!IvfpqSortNext(&run->pass.sort))
		return false;
	row->lower = row->upper = DatumGetFloat8(sort->keys[0]);
	row->id = (uint64) DatumGetInt64(sort->keys[1]);
	row->reranked = true;
	return true;
}

/*
 * Fetches a row that has left the queue or the sort into the filter's slot.
 * `id` is the TID of the row's tuple if the full pass has read the table or a
 * bitmap.  Otherwise it is a posting's TID, and the TID of the row's tuple is
 * noted.  Returns false if the row is gone, which cannot happen under a
 * snapshot.
 */
bool
IvfpqFilterFetch(IvfpqScanRun *run, IndexScanDesc desc, uint64 id)
{
	TupleTableSlot *row = run->filter->row;
	bool		found;

	IvfpqIdToTid(id, &desc->xs_heaptid);
	if (run->pass.active && run->pass.source != IVFPQ_REST_LISTS)
		return table_tuple_fetch_row_version(desc->heapRelation,
											 &desc->xs_heaptid,
											 desc->xs_snapshot, row);
	if (!index_fetch_heap(desc, row))
		return false;
	if (run->rows.returned_tids == NULL)
		run->rows.returned_tids = tidset_create(run->context, 16, NULL);
	tidset_insert(run->rows.returned_tids, IvfpqTidToId(&row->tts_tid),
				  &found);
	return true;
}
