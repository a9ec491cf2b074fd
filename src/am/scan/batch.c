/*
 * batch.c
 *		Batches of a scan: the search parameters of the next one, its
 *		candidates, and their rows, which it reranks or bounds.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "am/common/enginecall.h"
#include "am/common/options.h"
#include "am/scan/scan.h"
#include "page/injection.h"
#include "page/pending.h"

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
void
IvfpqScanRerank(IvfpqScan *state, uint64 *ids, int64 count,
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
	IvfpqScanRerank(state, ids, kept, enqueue_reranked);
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
