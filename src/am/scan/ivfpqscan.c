/*
 * ivfpqscan.c
 *		The ordered scan.
 *
 * Candidates come in batches.  A batch takes ever more candidates from ever
 * more lists (params.c), reranks those not reranked before, and returns the
 * rows of its quota.  The rest waits in a queue for the next batch.  So the AM
 * needs no LIMIT and cuts none.
 *
 * With refine records a batch reranks nothing: rows enter the queue with
 * bounds of their distances, and one is fetched and reranked only when it
 * comes up, which most rows of a batch never do, and when it has an upper
 * bound not even then, if no other row may be nearer (roworder.c).
 *
 * When a batch would rerank or return too many rows, or take too much
 * memory, or the index is untrained, the scan finishes with one pass over all
 * remaining TIDs in heap order (batch.c), so that its worst case is
 * about a sequential scan and a sort.
 */
#include "postgres.h"

#include "access/relscan.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/float.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "am/common/enginecall.h"
#include "am/common/model.h"
#include "am/common/options.h"
#include "am/scan/querylog.h"
#include "am/scan/scan.h"
#include "am/scan/scanstats.h"
#include "am/search/heaptids.h"
#include "pgcompat.h"

IndexScanDesc
ivfpqbeginscan(Relation index, int nkeys, int norderbys)
{
	IndexScanDesc scan = RelationGetIndexScan(index, nkeys, norderbys);
	IvfpqScan  *state = palloc0(sizeof(IvfpqScan));

	state->index = index;
	state->context = AllocSetContextCreate(CurrentMemoryContext,
										   "gpuivfpq scan",
										   ALLOCSET_DEFAULT_SIZES);
	scan->opaque = state;
	return scan;
}

/* Forgets the running scan, but not what lives as long as the descriptor. */
static void
reset_scan(IvfpqScan *state)
{
	if (state->started)
		IvfpqReportScan(state);
	IvfpqFullPassEnd(state);
	if (state->rerank)
		IvfpqRerankEnd(state->rerank);
	state->rerank = NULL;
	MemoryContextReset(state->context);
	memset(&state->queue, 0, sizeof(state->queue));
	memset(&state->rows_returned, 0, sizeof(state->rows_returned));
	state->reranked = NULL;
	state->batches = NULL;
	state->returned_tids = NULL;
	state->model = NULL;
	state->started = false;
	state->exhausted = false;
	state->is_drained = false;
	state->batch = 0;
	state->returned = 0;
	state->taken = 0;
	state->quota = 0;
	state->depth = 0;
	state->matched = state->matched_near = 0;
	state->out_of_order = 0;
	state->fetched = 0;
	state->invisible = 0;
	state->bound_query = NULL;
	state->within = 0;
	state->counted = 0;
	state->counted_within = 0;
	state->watched.n = 0;
}

/*
 * Takes keys [n] of a scan.  As in GiST, a key keeps the data that its
 * operator's function has stored with it: every rescan would make that anew
 * otherwise, in memory that only the end of the statement gives back.
 */
static void
take_keys(IvfpqScan *state, ScanKey keys, const ScanKeyData *given, int n)
{
	for (int i = 0; i < n; i++)
	{
		FmgrInfo	function = keys[i].sk_func;
		FmgrInfo	wanted = given[i].sk_func;

		keys[i] = given[i];
		if (state->has_keys && function.fn_oid == wanted.fn_oid)
			keys[i].sk_func = function;
		else if (OidIsValid(wanted.fn_oid)) /* IS NULL has none */
			fmgr_info_copy(&keys[i].sk_func, &wanted,
						   GetMemoryChunkContext(state));
	}
}

void
ivfpqrescan(IndexScanDesc scan, ScanKey keys, int nkeys,
			ScanKey orderbys, int norderbys)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;

	reset_scan(state);
	if (keys != NULL)
		take_keys(state, scan->keyData, keys, scan->numberOfKeys);
	if (orderbys != NULL && !state->has_keys)
		state->limit = IvfpqLimitOf(orderbys, &state->planned);
	if (orderbys != NULL)
		take_keys(state, scan->orderByData, orderbys, scan->numberOfOrderBys);
	state->has_keys = true;
}

void
ivfpqendscan(IndexScanDesc scan)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;

	reset_scan(state);
	MemoryContextDelete(state->context);
	pfree(state);
	scan->opaque = NULL;
}

/*
 * Prepare to search for the query.  An operator of another type than the
 * column's may round the query to that, and then bounds are of no use; those
 * of real[] do not.  Nor are they for a query that the operator cannot tell
 * from others.
 */
static void
start_search(IvfpqScan *state, ScanKey key)
{
	IvfpqType	type;
	const float *vector;
	float	   *transformed;
	int			dims;

	IvfpqTypeInit(&type, state->index);
	vector = IvfpqQueryFloats(&type, key->sk_subtype, key->sk_argument, &dims);
	IvfpqCheckDims(state->model->meta.dims, dims);
	if (ivfpq_keep_queries)
		IvfpqLogQuery(state->index, vector, dims);
	transformed = palloc(dims * sizeof(float));
	IvfpqTransform(state->index, state->model, vector, transformed);
	IvfpqSearchInit(&state->search, state->index, state->model);
	state->search.addresses = state->model->meta.refine != IVFPQ_REFINE_NONE;
	/* the record of a dead row's posting may be another row's: see README */
	state->rerank->asks_all = state->search.addresses;
	if (state->asks_keys)
		IvfpqSearchCondition(&state->search, &state->quals.condition);
	IvfpqSearchQuery(&state->search, transformed);
	if ((!type.has_toreal || !OidIsValid(key->sk_subtype) ||
		 key->sk_subtype == type.type) &&
		IvfpqIsBoundable(&type, vector, dims) &&
		IvfpqQueryIsBoundable(&state->model->gv, vector, transformed))
		state->bound_query = transformed;
}

/*
 * Checks the dimensions of an index whose declaration does not give them.  If
 * it is untrained, the query must have those of its rows.  Pending rows of
 * other dimensions are to be skipped.
 */
static void
check_row_dims(IvfpqScan *state, Relation heap, ScanKey key)
{
	const IvfpqMetaData *meta = &state->model->meta;
	IvfpqType	type;
	int			expected;
	int			dims;

	state->pending_dims = 0;
	/* nearly all scans end here */
	if (meta->nlists > 0 && (meta->dims_flags & IVFPQ_DIMS_CHECKED))
		return;
	IvfpqTypeInit(&type, state->index);
	if (type.typmod_dims > 0)
		return;
	expected = IvfpqRowDims(heap, state->index, meta);
	if (meta->nlists == 0 && expected > 0)
	{
		(void) IvfpqQueryFloats(&type, key->sk_subtype, key->sk_argument,
								&dims);
		if (dims != expected && IvfpqDimsBind(heap, state->index, meta))
			IvfpqCheckDims(expected, dims);
	}
	if (!(meta->dims_flags & IVFPQ_DIMS_CHECKED))
		state->pending_dims = expected;
}

/* First call after a rescan. */
static void
start_scan(IndexScanDesc scan)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;
	ScanKey		key = scan->orderByData;

	if (scan->numberOfOrderBys != 1)
		elog(ERROR, "gpuivfpq index \"%s\" cannot be scanned without ORDER BY",
			 RelationGetRelationName(state->index));
	if (!IsMVCCSnapshot(scan->xs_snapshot))
		elog(ERROR, "gpuivfpq indexes need an MVCC snapshot");

	pgstat_count_index_scan(state->index);
	IvfpqCountIndexSearch(scan);
	IvfpqCountersOpen();
	state->started = true;
	memset(&state->report, 0, sizeof(state->report));
	memset(&state->search, 0, sizeof(state->search));
	state->recall = state->filter != NULL ? state->filter->recall : ivfpq_recall;
	state->is_strict = ivfpq_order == IVFPQ_ORDER_STRICT &&
		(state->filter == NULL || !state->filter->any_order);
	state->report.recall = state->recall;
	state->model = IvfpqModelGet(state->index);
	state->batches = AllocSetContextCreate(state->context, "gpuivfpq batches",
										   ALLOCSET_DEFAULT_SIZES);
	IvfpqQueueInit(&state->queue);
	state->reranked = tidset_create(state->context, 256, NULL);
	state->null_query = (key->sk_flags & SK_ISNULL) != 0;
	state->rows_needed = IvfpqLimitRows(state->limit);
	if (state->rows_needed == 0 && state->filter != NULL)
		state->rows_needed = state->filter->rows_needed;
	state->visible = IvfpqVisibleFraction(state->index, &state->model->meta,
										  scan->heapRelation);
	if (!IvfpqScanBeginKeys(scan))
	{
		state->exhausted = true;
		return;
	}
	if (state->filter != NULL && state->filter->radius.is_set &&
		(state->filter->radius.is_empty || state->null_query))
	{
		state->exhausted = true;
		return;
	}
	if (state->null_query && state->filter == NULL && !state->asks_keys)
	{
		IvfpqFullPassBegin(state);
		return;
	}

	state->rerank = palloc(sizeof(IvfpqRerank));
	IvfpqRerankBegin(state->rerank, scan->heapRelation, state->index,
					 scan->xs_snapshot);
	if (state->filter != NULL)
	{
		state->rerank->satisfies = state->filter->satisfies;
		state->rerank->satisfies_arg = state->filter->arg;
	}
	if (state->asks_keys)
		IvfpqRerankKeys(state->rerank, &state->quals);
	if (state->null_query)
	{
		IvfpqFullPassBegin(state);
		return;
	}
	IvfpqRerankQuery(state->rerank, &key->sk_func, key->sk_collation,
					 key->sk_argument);
	check_row_dims(state, scan->heapRelation, key);
	if (state->model->meta.nlists > 0)
		start_search(state, key);
}

/*
 * Returns whether a bounded row may be returned without a rerank.  No other
 * row may be nearer, and only the executor may need the row: a filter needs
 * its distance, and key quals are rechecked on the row (README, "Keys").
 */
static bool
is_decided(const IvfpqScan *state, const IvfpqQueuedRow *row)
{
	return state->filter == NULL && !state->asks_keys &&
		row->most < IvfpqQueueLeast(&state->queue);
}

/*
 * Returns whether the rows of the batch's quota have come up.  With refine
 * records the rows fetched so far, once they are enough, tell which fraction
 * of the candidates the snapshot sees, and the quota shrinks to that.
 */
static bool
is_quota_taken(const IvfpqScan *state)
{
	int64		quota = state->quota;
	double		seen;

	if (state->taken >= quota || IvfpqDepthNeedsFullPass(state))
		return true;
	if (!state->search.addresses || state->invisible == 0 ||
		state->taken < quota / 2)
		return false;
	seen = 1 - (double) state->invisible / state->fetched;
	return IvfpqDepthManyInvisible(state) && state->taken >= quota * seen;
}

/*
 * Takes the nearest row of the queue.  Returns false when the queue is empty
 * or, where a filter rejects rows that come up, when the quota is used up.
 * Bounded rows that come up are reranked and go back into the queue.  This
 * ends when a reranked row is first, or a bounded row that no other row can
 * be nearer than, or one that is beyond the radius, however far away it is.
 */
static bool
queue_next(IvfpqScan *state, IvfpqNextRow *next)
{
	IvfpqQueue *queue = &state->queue;
	IvfpqQueuedRow *row = IvfpqQueueTake(queue);
	bool		decided = false;
	double		distance;

	if (row != NULL && row->bounded)
	{
		/* pages of the rows that come up next, up to the quota */
		if (queue->ntaken < queue->nprefetch &&
			!IvfpqRerankIsPrefetching(state->rerank))
			IvfpqRerankPrefetch(state->rerank,
								queue->prefetch + queue->ntaken,
								Max(0, Min(queue->nprefetch - queue->ntaken,
										   state->quota - state->returned)));
		for (; row != NULL && row->bounded; row = IvfpqQueueTake(queue))
		{
			CHECK_FOR_INTERRUPTS();
			if (IvfpqIsBoundOutside(state, row->distance))
				break;
			if (queue->ntaken < queue->nprefetch &&
				queue->prefetch[queue->ntaken] == row->id)
				queue->ntaken++;
			decided = is_decided(state, row);
			if (decided)
			{
				IvfpqRerankForesee(state->rerank, row->id);
				break;
			}
			if (IvfpqScanRerankRow(state, row->id, &distance))
				IvfpqQueueReturn(queue, row, distance);
			else if (state->rerank->rejected)
			{
				state->taken++;
				if (!state->exhausted && is_quota_taken(state))
				{
					row = NULL;
					break;
				}
			}
		}
		if (!decided)
			IvfpqRerankPause(state->rerank);
	}
	if (row == NULL)
		return false;
	next->id = row->id;
	next->least = row->distance;
	next->most = row->most;
	next->reranked = !row->bounded;
	return true;
}

/* Takes the nearest row of the queue or, in a full pass, of its sort. */
static bool
take_row(IvfpqScan *state, IvfpqNextRow *row)
{
	if (state->in_full_pass)
		return IvfpqFullPassNext(state, row);
	return queue_next(state, row);
}

/*
 * Returns whether the batch has returned its quota.  Rows returned unfetched
 * count only if the snapshot sees them.
 */
static bool
batch_is_spent(IvfpqScan *state)
{
	return is_quota_taken(state) &&
		(!IvfpqReturnedCheck(state) || is_quota_taken(state));
}

/*
 * Returns the row that comes up to the executor, unless a filter refuses it.
 * A refused row does not count as returned, so no other row is out of order
 * because of it.
 */
static bool
return_row(IndexScanDesc scan, const IvfpqNextRow *row)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;
	IvfpqFilter *filter = state->filter;

	state->taken++;
	if (filter != NULL &&
		(!IvfpqFilterFetch(scan, row->id) ||
		 !filter->admits(filter->arg, row->least)))
	{
		state->report.filter.refused++;
		return false;
	}
	IvfpqReturnedAdd(state, row);
	return true;
}

/* The next row to return; false at the end. */
static bool
next_row(IndexScanDesc scan, IvfpqNextRow *row)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (!state->exhausted && batch_is_spent(state))
			IvfpqNextBatch(state);
		else if (!take_row(state, row))
		{
			if (state->exhausted)
				return false;
			IvfpqNextBatch(state);
		}
		else if (IvfpqIsOutside(state, row->least))
		{
			/*
			 * All other rows that have a distance are outside, too, and those
			 * within have been read.
			 */
			state->exhausted = true;
			if (!state->filter->radius.with_nan)
				return false;
		}
		else if (!IvfpqReturnedIsOutOfOrder(state, row) &&
				 return_row(scan, row))
			return true;
	}
}

/* amgettuple */
bool
ivfpqgettuple(IndexScanDesc scan, ScanDirection dir)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;
	MemoryContext oldcontext;
	IvfpqNextRow row;
	bool		found;

	Assert(ScanDirectionIsForward(dir));
	oldcontext = MemoryContextSwitchTo(state->context);
	if (!state->started)
		start_scan(scan);
	found = next_row(scan, &row);
	MemoryContextSwitchTo(oldcontext);

	if (found)
	{
		if (state->rerank != NULL && scan->xs_heapfetch != NULL)
			IvfpqRerankHandOver(state->rerank, scan->xs_heapfetch, row.id);
		IvfpqIdToTid(row.id, &scan->xs_heaptid);
		scan->xs_recheck = false;
		scan->xs_recheckorderby = false;
	}
	return found;
}

/*
 * Makes the scan return only rows that satisfy the filter, or all again
 * (NULL); to be called before the first row.
 */
void
IvfpqScanFilter(IndexScanDesc scan, IvfpqFilter *filter)
{
	((IvfpqScan *) scan->opaque)->filter = filter;
}

/* Returns whether the query is NULL, and so are all distances. */
bool
IvfpqScanIsOfNull(IndexScanDesc scan)
{
	return ((IvfpqScan *) scan->opaque)->null_query;
}
