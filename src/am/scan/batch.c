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
 * tuple.  So a filtered scan notes the TIDs of the tuples that it returns
 * (ivfpqscan.c), and such a full pass leaves these tuples out.
 */
#include "postgres.h"

#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "am/common/enginecall.h"
#include "am/scan/scan.h"
#include "am/search/heaptids.h"
#include "client/client.h"
#include "page/injection.h"
#include "page/pending.h"

/* Number of rows whose pages are prefetched together. */
#define ROWS_AT_ONCE	1024

/*
 * Rows are ordered by distances from gpuvecd if it tells the distances of at
 * least this fraction of the candidates.
 */
#define MOSTLY_KNOWN	0.5

/*
 * If LIMIT is n, gpuvecd is asked for the nearest n + Max(LEAST_SPARE, n *
 * SPARE) candidates, since the snapshot may not see some of them.
 */
#define LEAST_SPARE		16
#define SPARE			0.125

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
	IvfpqRowsRerank(run, ids, kept);
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
		IvfpqRowsAdd(run, ids[i], bounds[i].least, bounds[i].most, true);
		added++;
	}
	pfree(bounds);
	if (IvfpqRerankReadsFromDisk(run->rerank))
		IvfpqRowsPrefetchQueued(&run->rows, added);
	/* count page reads anew, without the reads of refine pages above */
	IvfpqRerankPrefetch(run->rerank, NULL, 0, false);
}

/*
 * Puts candidates ids [count] into the queue: with bounds if gpuvecd's answer
 * tells their distances, else reranked.  Leaves out rows that were in the queue
 * before.  Returns false and does nothing if the answer tells too few distances,
 * or if rows must be tested to count those that match.
 */
static bool
bound_by_distances(IvfpqScanRun *run, uint64 *ids, int64 count)
{
	IvfpqRowBounds *bounds;
	IvfpqSortedRow *sorted;
	int64		known;
	int64		n = 0;

	if (run->rows.counts_matching ||
		run->search.remote.ndistances < count * MOSTLY_KNOWN)
		return false;
	bounds = palloc_extended(Max(count, 1) * sizeof(IvfpqRowBounds),
							 MCXT_ALLOC_HUGE);
	known = IvfpqKnownBounds(&run->search, run->query.is_exact, ids, count,
							 bounds);
	run->report.counts[IVFPQ_COUNT_REFINED] += known +
		run->search.remote.omitted.n;
	rerank_rows(run, ids + known, count - known);
	IvfpqRowsReserve(&run->rows, known);
	sorted = palloc_extended(Max(known, 1) * sizeof(IvfpqSortedRow),
							 MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < known; i++)
		if (run->rows.seen->members == 0 ||
			tidset_lookup(run->rows.seen, ids[i]) == NULL)
			sorted[n++] = (IvfpqSortedRow)
		{
			bounds[i].least, bounds[i].most, ids[i]
		};
	pfree(bounds);
	IvfpqRowsAddSorted(run, sorted, n);
	if (IvfpqRerankReadsFromDisk(run->rerank))
		IvfpqRowsPrefetch(&run->rows);
	return true;
}

/* Reports rows that the mirror lacks and the snapshot sees. */
static void
report_lacking(IvfpqScanRun *run)
{
	const IvfpqRemote *remote = &run->search.remote;
	ItemPointerData tids[IVFPQ_LACKING] = {0};
	int			n = 0;

	for (int i = 0; i < remote->nlacking; i++)
	{
		TidSetEntry *entry = tidset_lookup(run->rows.seen, remote->lacking[i]);

		if (entry != NULL && !entry->invisible)
		{
			IvfpqIdToTid(remote->lacking[i], &tids[n]);
			n++;
		}
	}
	IvfpqMirrorLacksRows(run->index, &run->model->meta, tids, n);
}

/*
 * Reranks all pending rows.  Returns false if there are too many of them, or
 * if memory is short, so that a full pass is better, or if a new training was
 * published meanwhile, so that only a full pass finds all rows.
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
	IvfpqInjectionPoint("scan: pending");
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
	if (run->model->meta.pending_head != InvalidBlockNumber)
		fits = fits && IvfpqPendingWasRead(run->index, &run->model->meta);
	run->rerank->dims = 0;
	run->rerank->recheck_all_keys = recheck_all_keys;
	run->rows.fetched = run->rows.invisible = 0;	/* pending rows are not
													 * candidates */
	return fits;
}

/*
 * Finds the candidates of the batch.  gpuvecd's answer may leave out some of
 * them if `keep` > 0 (IvfpqSearch.keep).  Sets run->exhausted if no rows are
 * left for another batch.  Returns false if only a full pass can reach the
 * target recall with these key quals.
 */
static bool
find_candidates(IvfpqScanRun *run, int keep)
{
	IvfpqSearchParams *params = &run->depth.params;
	IvfpqKeyGoal *goal = &run->keys.goal;
	bool		is_drained;

	run->search.keep = keep;

	/*
	 * Other sessions may insert rows after the number of candidates was
	 * limited to the number of postings, and the search then leaves out some
	 * rows.  A later batch would find these rows, but out of order.  So
	 * search again, with capacity for more candidates.
	 */
	for (;;)
	{
		int			more = (int) Min(run->depth.wanted,
									 2 * (int64) params->candidates);

		if (run->keys.any)
		{
			*goal = run->keys.aim;
			goal->candidates = params->candidates;
			IvfpqSearchKeys(&run->search, goal);
		}
		else
			IvfpqSearchRun(&run->search, params->probes, params->candidates);

		/* a search with key quals may look for fewer than params->candidates */
		if (run->search.found_all || more == params->candidates ||
			run->search.candidates.capacity <
			params->candidates * run->model->meta.lists_per_row ||
			!IvfpqDepthFits(run, params->probes, more))
			break;
		params->candidates = more;
	}
	if (run->keys.any)
	{
		run->keys.selectivity = goal->selectivity;
		run->exhausted = goal->is_all;
		return !goal->everything;
	}
	is_drained = run->search.found_all &&
		IvfpqCandidatesFound(&run->search) < params->candidates;
	run->depth.ndrained = is_drained ? params->probes : 0;
	run->exhausted = run->depth.is_last && is_drained;
	return true;
}

/*
 * Returns how many of the nearest candidates the first batch needs, or 0 for
 * all.
 */
static int
candidates_to_keep(const IvfpqScanRun *run)
{
	double		rows = run->depth.rows_needed;

	if (run->depth.batches > 0 || rows == 0)
		return 0;
	return (int) Min(rows + Max(LEAST_SPARE, rows * SPARE), PG_INT32_MAX);
}

/* Notes the candidates that gpuvecd's answer has left out. */
static void
note_omitted(IvfpqScanRun *run)
{
	const GvOmitted *omitted = &run->search.remote.omitted;

	run->rows.nomitted = omitted->n;
	run->rows.omitted_lower =
		IvfpqDistanceBounds(&run->model->gv, omitted->distance,
							omitted->magnitude, run->query.is_exact).least;
}

/*
 * Puts the candidates that gpuvecd has left out into the queue.  It is asked
 * once more, for all of the batch's candidates, which counts as one search.
 * Returns false if only a full pass can reach the target recall.
 */
static bool
add_omitted(IvfpqScanRun *run)
{
	GvTopK	   *candidates = &run->search.candidates;
	int64		refined = run->report.counts[IVFPQ_COUNT_REFINED];
	int64		lists_read = run->search.lists_read;
	int64		postings_read = run->search.postings_read;
	int64		matched = run->search.matched;

	run->rows.nomitted = 0;
	if (!find_candidates(run, 0))
		return false;
	IvfpqRowsUnsort(run);
	if (!bound_by_distances(run, candidates->ids, candidates->count))
		rerank_rows(run, candidates->ids, candidates->count);
	run->report.counts[IVFPQ_COUNT_REFINED] = refined;
	run->search.lists_read = lists_read;
	run->search.postings_read = postings_read;
	run->search.matched = matched;
	report_lacking(run);
	return true;
}

/*
 * Puts the rows of the next batch into the queue, or does the full pass if
 * that is better.  If gpuvecd has left out candidates of the current batch,
 * adds only these.  Sets the quota, the number of rows that may leave the queue
 * before the next batch, to the number of matching rows within the depth.
 */
void
IvfpqScanNextBatch(IvfpqScanRun *run)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(run->batches);
	IvfpqSearchParams *params = &run->depth.params;
	GvTopK	   *candidates = &run->search.candidates;

	/* stop prefetching, because the order of the queue's rows will change */
	if (run->rerank != NULL && IvfpqRerankIsPrefetching(run->rerank))
		IvfpqRerankReleasePages(run->rerank);
	if (IvfpqRadiusIsRead(run))
	{
		run->exhausted = true;
		MemoryContextSwitchTo(oldcontext);
		return;
	}
	if (run->rows.nomitted > 0)
	{
		bool		added = add_omitted(run);

		MemoryContextSwitchTo(oldcontext);
		if (!added)
			IvfpqFullPassBegin(run);
		return;
	}
	IvfpqDepthNext(run);
	run->search.query.deep = params->beyond_parents ||
		params->quota > IVFPQ_PARENTS_ROWS;
	if (run->depth.batches == 0)
	{
		run->report.probes = params->probes;
		run->report.candidates = params->candidates;
	}

	/*
	 * Pending rows are read before any list.  No row is missed that way,
	 * because rows move from the pending list to the model's lists, and never
	 * back, until a new training is published.
	 */
	if (params->read_all ||
		(run->depth.batches == 0 && !rerank_pending(run)) ||
		!IvfpqDepthLimit(run) ||
		!find_candidates(run, candidates_to_keep(run)))
	{
		MemoryContextSwitchTo(oldcontext);
		IvfpqFullPassBegin(run);
		return;
	}

	IvfpqRowsUnsort(run);
	run->depth.rows = params->quota;
	run->rows.quota = params->quota;

	/*
	 * Rows that are only bounded have not been tested yet.  If such a row is
	 * rejected later, it still counts as having left the queue.
	 */
	run->rows.bounded = run->search.addresses;
	if (run->search.addresses)
		bound_rows(run, candidates->ids, candidates->count);
	else if (bound_by_distances(run, candidates->ids, candidates->count))
		run->rows.bounded = true;
	else
	{
		int64		n = Min(candidates->count, params->quota);
		uint64	   *ordered = palloc_extended(Max(n, 1) * sizeof(uint64),
											  MCXT_ALLOC_HUGE);

		memcpy(ordered, candidates->ids, n * sizeof(uint64));
		rerank_rows(run, candidates->ids, candidates->count);
		run->rows.quota = IvfpqDepthQuota(run, ordered, n);
		pfree(ordered);
	}
	note_omitted(run);
	report_lacking(run);
	run->depth.batches++;
	MemoryContextSwitchTo(oldcontext);
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
	bool		more = true;

	(void) IvfpqSortTids(&tids, run->index, run->keys.any ?
						 &run->keys.quals.condition : NULL, PG_INT64_MAX,
						 sort_kb);
	while (more)
	{
		more = IvfpqNextTid(&tids, &id);
		if (more && tidset_lookup(run->rows.seen, id) == NULL)
			ids[n++] = id;
		if (more && n < ROWS_AT_ONCE)
			continue;
		if (!run->query.is_null)
			IvfpqRowsRerank(run, ids, n);
		for (int i = 0; i < n && run->query.is_null; i++)
		{
			Datum		value;

			/* run->rerank is NULL if there are no conditions to test */
			if (run->rerank != NULL &&
				!IvfpqRerankFetch(run->rerank, ids[i], &value))
				continue;
			if (run->rerank != NULL)
				IvfpqRerankDone(run->rerank);
			IvfpqRowsSort(run, ids[i], 0);
		}
		n = 0;
	}
	IvfpqSortEnd(&tids);
}

/*
 * Puts into the sort all matching rows of the table that were not returned
 * before, including those in the queue.  In the sort, the TID of a row's own
 * tuple identifies the row.  If by_bitmap is set, reads only the rows that
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
	{
		uint64		id = IvfpqTidToId(&row->tts_tid);
		double		distance;

		CHECK_FOR_INTERRUPTS();
		if (!IvfpqRerankTableMatches(run->rerank, row))
		{
			run->rows.rejected += run->rerank->rejected;
			continue;
		}
		if (run->rows.returned_tids != NULL &&
			tidset_lookup(run->rows.returned_tids, id) != NULL)
			continue;
		run->report.counts[IVFPQ_COUNT_RERANKED]++;
		if (IvfpqRerankTableRow(run->rerank, row, &distance) &&
			!IvfpqIsOutside(&run->filter->radius, distance))
			IvfpqRowsSort(run, id, distance);
	}
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
	bool		by_index = rest == IVFPQ_REST_LISTS || !run->is_filtered;
	IvfpqQueuedRow *row;

	run->rows.nomitted = 0;
	IvfpqSortBegin(&run->pass.sort, FLOAT8OID, INT8OID, 0, sort_kb);
	run->pass.source = rest;

	/*
	 * Keep the reranked rows of the queue.  Forget the bounded rows, so that
	 * the full pass finds them again.
	 */
	while (by_index && (row = IvfpqRowsPop(run)) != NULL)
	{
		if (row->bounded)
			tidset_delete(run->rows.seen, row->id);
		else
			IvfpqRowsSort(run, row->id, row->lower);
	}
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
