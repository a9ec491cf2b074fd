/*
 * orderedscan.c
 *		The ordered scan.
 *
 * Candidates come in batches.  A batch takes ever more candidates from ever
 * more lists (effort.c), measures those not measured before, and gives
 * out as many rows as its candidates are known to be good for.  The rest
 * waits in a queue for the next batch.  So the AM needs no LIMIT and cuts
 * none.
 *
 * With refine records a batch measures nothing: rows enter the queue with
 * lower bounds of their distances, and one is fetched and measured only when
 * it comes up, which most rows of a batch never do.
 *
 * When a batch would measure or give out too many rows, or take too much
 * memory, or the index is untrained, the scan finishes with one pass over all
 * remaining TIDs in heap order (fullpass.c), so that its worst case is
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

#include "am/common/options.h"
#include "am/common/tid.h"
#include "am/heap/dims.h"
#include "am/scan/livequeries.h"
#include "am/scan/scan.h"
#include "page/pending.h"
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

/* Forget the running scan; what lives as long as the descriptor stays. */
static void
reset_scan(IvfpqScan *state)
{
	if (state->started)
		IvfpqReportScan(state);
	IvfpqFullPassEnd(state);
	if (state->measure)
		IvfpqMeasureEnd(state->measure);
	state->measure = NULL;
	MemoryContextReset(state->context);
	memset(&state->queue, 0, sizeof(state->queue));
	state->measured = NULL;
	state->batches = NULL;
	state->model = NULL;
	state->started = false;
	state->exhausted = false;
	state->batch = 0;
	state->given = 0;
	state->quota = 0;
	state->late = 0;
	state->tried = 0;
	state->gone = 0;
	state->bound_query = NULL;
}

/*
 * Take the keys of a scan.  What an operator's function has kept with its key
 * stays, as in GiST: it would be made anew by every rescan otherwise, in
 * memory that only the end of the statement gives back.
 */
static void
take_keys(IndexScanDesc scan, ScanKey orderbys)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;

	for (int i = 0; i < scan->numberOfOrderBys; i++)
	{
		ScanKey		key = &scan->orderByData[i];
		FmgrInfo	distance = key->sk_func;
		bool		same = state->has_keys &&
		distance.fn_oid == orderbys[i].sk_func.fn_oid;

		*key = orderbys[i];
		if (same)
			key->sk_func = distance;
		else
			fmgr_info_copy(&key->sk_func, &orderbys[i].sk_func,
						   GetMemoryChunkContext(state));
	}
	state->has_keys = true;
}

void
ivfpqrescan(IndexScanDesc scan, ScanKey keys, int nkeys,
			ScanKey orderbys, int norderbys)
{
	reset_scan((IvfpqScan *) scan->opaque);
	if (orderbys && scan->numberOfOrderBys > 0)
		take_keys(scan, orderbys);
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

/* Fetch and measure a row; false when the snapshot does not see it. */
static bool
measure_row(IvfpqScan *state, uint64 id, double *distance)
{
	bool		seen = IvfpqMeasureRow(state->measure, id, distance);

	state->report.measured++;
	state->tried++;
	state->gone += !seen;
	return seen;
}

/*
 * Measure rows [count] in heap order and give those that the snapshot sees to
 * `take`.  Reorders ids.
 */
void
IvfpqScanMeasure(IvfpqScan *state, uint64 *ids, int64 count,
				 void (*take) (IvfpqScan *state, uint64 id, double distance))
{
	double		distance;

	qsort(ids, count, sizeof(uint64), IvfpqCompareNumbers);
	IvfpqMeasurePrefetchSorted(state->measure, ids, count);
	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (measure_row(state, ids[i], &distance))
			take(state, ids[i], distance);
	}
	IvfpqMeasurePause(state->measure);
}

static void
enqueue_measured(IvfpqScan *state, uint64 id, double distance)
{
	IvfpqQueueAdd(&state->queue, id, distance, false);
}

/* Put rows into the queue unless they were measured before. */
static void
measure_rows(IvfpqScan *state, uint64 *ids, int64 count)
{
	int64		kept = 0;

	for (int64 i = 0; i < count; i++)
	{
		bool		found;

		tidset_insert(state->measured, ids[i], &found);
		if (!found)
			ids[kept++] = ids[i];
	}
	IvfpqQueueReserve(&state->queue, kept);
	IvfpqScanMeasure(state, ids, kept, enqueue_measured);
}

/*
 * Put the rows whose refine records are at these addresses into the queue
 * with their bounds, unless they were in it before.
 */
static void
bound_rows(IvfpqScan *state, uint64 *ids, int64 count)
{
	double	   *bounds = palloc_extended(Max(count, 1) * sizeof(double),
										 MCXT_ALLOC_HUGE);
	int64		added = 0;

	count = IvfpqRecordBounds(&state->search, state->bound_query, ids, count,
							  bounds);
	state->report.refined += count;
	IvfpqQueueReserve(&state->queue, count);
	for (int64 i = 0; i < count; i++)
	{
		bool		found;

		tidset_insert(state->measured, ids[i], &found);
		if (found)
			continue;
		IvfpqQueueAdd(&state->queue, ids[i], bounds[i], true);
		added++;
	}
	pfree(bounds);
	if (IvfpqMeasureIsCold(state->measure))
		IvfpqQueuePrefetch(&state->queue, added);
}

/*
 * Measure all pending rows; false when they are so many, or memory is so
 * little, that the scan should rather finish with a pass.
 */
static bool
measure_pending(IvfpqScan *state)
{
	IvfpqPendingReader reader;
	int64		total = 0;
	int			count;
	bool		fits = true;

	IvfpqMeasureDims(state->measure, state->pending_dims, &state->told_odd);
	IvfpqPendingOpen(&reader, state->index, &state->model->meta);
	while (fits && IvfpqPendingNext(&reader, &count))
	{
		uint64	   *ids = palloc(Max(count, 1) * sizeof(uint64));

		for (int i = 0; i < count; i++)
			ids[i] = IvfpqTidToId(&reader.tids[i]);
		measure_rows(state, ids, count);
		pfree(ids);
		total += count;
		fits = total <= IVFPQ_MIN_MEASURED &&
			IvfpqBatchFits(state, 0, total);
	}
	IvfpqPendingClose(&reader);
	IvfpqMeasureDims(state->measure, 0, NULL);
	state->tried = state->gone = 0; /* no candidates */
	return fits;
}

/* Lists that a scan may probe. */
static int
most_probes(const IvfpqScan *state)
{
	IvfpqEffort first;

	if (ivfpq_max_probes == 0)
		return state->model->meta.nlists;
	IvfpqGetEffort(&first, state->index, &state->model->meta, 0);
	return Min(state->model->meta.nlists,
			   Max(ivfpq_max_probes, first.probes));
}

/*
 * How much the next batch takes: of lists no more than may be probed, of
 * candidates no more than there are copies in these.  False: the scan should
 * rather finish with a pass.  Where that would read lists that may not be
 * probed, all of the others are the last batch.
 */
static bool
size_batch(IvfpqScan *state, bool *last)
{
	IvfpqEffort *effort = &state->effort;
	int			most;

	IvfpqGetEffort(effort, state->index, &state->model->meta, state->batch);
	if (state->batch == 0)
	{
		state->report.probes = effort->probes;
		state->report.candidates = effort->candidates;
	}
	if (effort->everything ||
		(state->batch == 0 && !measure_pending(state)))
		return false;
	most = most_probes(state);
	if (IvfpqFullPassIsBetter(state))
	{
		if (ivfpq_max_probes == 0)
			return false;
		effort->probes = most;
		effort->candidates = PG_INT32_MAX / 4;	/* all there are */
	}
	effort->probes = Min(effort->probes, most);
	*last = effort->probes == most;
	if (effort->candidates > IVFPQ_FEW_CANDIDATES)
	{
		int64		copies = IvfpqSearchCount(&state->search, effort->probes);

		/* the one more is not found, which tells that there is none */
		effort->candidates = Min(effort->candidates, copies + 1);
	}
	return IvfpqBatchFits(state, effort->probes, effort->candidates);
}

/* Get the next batch of candidates, or finish. */
static void
next_batch(IvfpqScan *state)
{
	IvfpqEffort *effort = &state->effort;
	GvTopK	   *candidates = &state->search.candidates;
	MemoryContext oldcontext = MemoryContextSwitchTo(state->batches);
	bool		last;

	if (!size_batch(state, &last))
	{
		MemoryContextSwitchTo(oldcontext);
		IvfpqFullPassBegin(state);
		return;
	}
	IvfpqSearchRun(&state->search, effort->probes, effort->candidates);
	if (last && candidates->count < effort->candidates)
		state->exhausted = true;
	if (state->search.addresses)
		bound_rows(state, candidates->ids, candidates->count);
	else
		measure_rows(state, candidates->ids, candidates->count);
	MemoryContextSwitchTo(oldcontext);
	state->quota = effort->quota;
	state->batch++;
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
		IvfpqKeepQuery(state->index, vector, dims);
	transformed = palloc(dims * sizeof(float));
	gv_transform(&state->model->gv, vector, 1, transformed);
	IvfpqSearchInit(&state->search, state->index, state->model);
	state->search.addresses = state->model->meta.refine != IVFPQ_REFINE_NONE;
	IvfpqSearchQuery(&state->search, transformed);
	if ((!type.has_toreal || !OidIsValid(key->sk_subtype) ||
		 key->sk_subtype == type.type) &&
		IvfpqIsBoundable(&type, vector, dims))
		state->bound_query = transformed;
}

/*
 * Of an index whose declaration does not say how many dimensions rows have:
 * the query of an untrained one must have as many, and pending rows that do
 * not are to be passed over.
 */
static void
check_row_dims(IvfpqScan *state, Relation heap, ScanKey key)
{
	const IvfpqMetaData *meta = &state->model->meta;
	IvfpqType	type;
	int			expected;
	int			dims;

	state->pending_dims = 0;
	/* so it is with nearly all scans */
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
	state->started = true;
	memset(&state->report, 0, sizeof(state->report));
	memset(&state->search, 0, sizeof(state->search));
	state->report.recall = ivfpq_recall;
	state->model = IvfpqModelGet(state->index);
	state->batches = AllocSetContextCreate(state->context, "gpuivfpq batches",
										   ALLOCSET_DEFAULT_SIZES);
	IvfpqQueueInit(&state->queue);
	state->measured = tidset_create(state->context, 256, NULL);
	state->null_query = (key->sk_flags & SK_ISNULL) != 0;
	if (state->null_query)
	{
		IvfpqFullPassBegin(state);
		return;
	}

	state->measure = palloc(sizeof(IvfpqMeasure));
	IvfpqMeasureBegin(state->measure, scan->heapRelation, state->index,
					  scan->xs_snapshot);
	IvfpqMeasureQuery(state->measure, &key->sk_func, key->sk_collation,
					  key->sk_argument);
	check_row_dims(state, scan->heapRelation, key);
	if (state->model->meta.nlists > 0)
		start_search(state, key);
}

/*
 * The nearest row of the queue; false when it is empty.  Bounded rows that
 * come up are measured and go back, until a measured one is first: no other
 * can be nearer.
 */
static bool
queue_next(IvfpqScan *state, double *distance, uint64 *id)
{
	IvfpqQueue *queue = &state->queue;
	IvfpqQueuedRow *row = IvfpqQueueTake(queue);

	if (row != NULL && row->bounded)
	{
		/* pages of rows that come up next, as many as the batch is good for */
		IvfpqMeasurePrefetch(state->measure,
							 queue->prefetch + queue->ntaken,
							 Max(0, Min(queue->nprefetch - queue->ntaken,
										state->quota - state->given)));
		for (; row != NULL && row->bounded; row = IvfpqQueueTake(queue))
		{
			CHECK_FOR_INTERRUPTS();
			if (queue->ntaken < queue->nprefetch &&
				queue->prefetch[queue->ntaken] == row->id)
				queue->ntaken++;
			if (measure_row(state, row->id, distance))
				IvfpqQueueReturn(queue, row, *distance);
		}
		IvfpqMeasurePause(state->measure);
	}
	if (row == NULL)
		return false;
	*distance = row->distance;
	*id = row->id;
	return true;
}

/* The nearest row that waits: in the queue or, in a full pass, in its sort. */
static bool
take_row(IvfpqScan *state, double *distance, uint64 *id)
{
	if (state->finishing)
		return IvfpqFullPassNext(state, distance, id);
	return queue_next(state, distance, id);
}

/*
 * Has the batch given out the rows that it is good for?  Candidates that the
 * snapshot does not see are taken from those beyond, which are there because
 * scores are not exact; where half of these are lost, a batch is good for no
 * more than its share of rows seen: its last ones would come before nearer
 * rows that were no candidates.  With refine records that is told from those
 * fetched so far, once they are enough.
 */
static bool
batch_is_spent(const IvfpqScan *state)
{
	int64		quota = state->quota;
	int32		candidates = state->search.candidates.count;
	double		seen;

	if (state->given >= quota)
		return true;
	if (state->gone == 0 || state->given < quota / 2)
		return false;
	seen = 1 - (double) state->gone / state->tried;
	return candidates * seen < (candidates + quota) / 2.0 &&
		state->given >= quota * seen;
}

/* The next row to give out; false at the end. */
static bool
next_row(IvfpqScan *state, uint64 *id)
{
	double		distance;

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (!state->exhausted && batch_is_spent(state))
			next_batch(state);
		else if (!take_row(state, &distance, id))
		{
			if (state->exhausted)
				return false;
			next_batch(state);
		}
		else if (ivfpq_order == IVFPQ_ORDER_STRICT && state->given > 0 &&
				 float8_cmp_internal(distance, state->last_distance) < 0)
			state->late++;
		else
		{
			state->last_distance = distance;
			state->given++;
			return true;
		}
	}
}

/* amgettuple */
bool
ivfpqgettuple(IndexScanDesc scan, ScanDirection dir)
{
	IvfpqScan  *state = (IvfpqScan *) scan->opaque;
	MemoryContext oldcontext;
	uint64		id;
	bool		found;

	Assert(ScanDirectionIsForward(dir));
	oldcontext = MemoryContextSwitchTo(state->context);
	if (!state->started)
		start_scan(scan);
	found = next_row(state, &id);
	MemoryContextSwitchTo(oldcontext);

	if (found)
	{
		IvfpqIdToTid(id, &scan->xs_heaptid);
		scan->xs_recheck = false;
		scan->xs_recheckorderby = false;
	}
	return found;
}
