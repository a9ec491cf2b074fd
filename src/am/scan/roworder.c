/*
 * roworder.c
 *		Rows of a scan, from candidates until they are returned in order.
 *
 * Rows wait in a queue, reranked, or known by bounds of their distance.  The
 * nearest leaves the queue first.  A bounded row that leaves it is reranked
 * and goes back, unless its upper bound is below the lower bounds of all
 * others: then it is returned as it is, since the executor fetches it anyway,
 * and the access method would only do so once more.  Two facts are unknown
 * then:
 *
 * Its distance is between its bounds.  No row that waits is nearer than the
 * upper one.  A row that a later batch brings, whose lower bound is below
 * that, is reranked, and if it may still be the nearer one, then the row
 * returned last is reranked, too.  No more has to be known: rows returned
 * before that one are no farther away.
 *
 * Its visibility: the executor passes over a row that the snapshot does not
 * see, and does not say so.  Such a row does not count as returned.  So where
 * that matters, before the quota of a batch counts as used up and before a row
 * is called out of order, the scan checks the visibility itself.
 *
 * A row that was reranked is visible.  All this serves the order and the
 * quotas of batches, both of which end with the last batch: from then on rows
 * need not be remembered.
 *
 * Memory of queued rows is taken by the batch, and freed when the scan ends,
 * because a row's entry in the set of rows seen stays as long.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/float.h"

#include "am/common/enginecall.h"
#include "am/scan/scan.h"

/*
 * pairingheap comparator: ascending distance, ties by TID; the nearest row is
 * the heap's first.  A bounded row may be as near as its bound, so it comes
 * before reranked ones.
 */
static int
compare_queued(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const IvfpqQueuedRow *x = pairingheap_const_container(IvfpqQueuedRow,
														  node, a);
	const IvfpqQueuedRow *y = pairingheap_const_container(IvfpqQueuedRow,
														  node, b);
	int			c = float8_cmp_internal(y->lower, x->lower);

	if (c != 0)
		return c;
	if (x->bounded != y->bounded)
		return x->bounded ? 1 : -1;
	return (x->id < y->id) - (x->id > y->id);
}

/*
 * Initializes the queue and the set of rows seen; memory comes from the
 * current context and run->context.
 */
void
IvfpqRowsInit(IvfpqScanRun *run)
{
	run->rows.queue = pairingheap_allocate(compare_queued, NULL);
	run->rows.seen = tidset_create(run->context, 256, NULL);
}

/*
 * Reserves memory for the next batch, no more than n rows; no row of earlier
 * batches is prefetched any more.
 */
void
IvfpqRowsReserve(IvfpqScanRows *rows, int64 n)
{
	rows->nprefetch = rows->nprefetched = 0;
	rows->next_slot = palloc_extended(Max(n, 1) * sizeof(IvfpqQueuedRow),
									  MCXT_ALLOC_HUGE);
}

/* Adds a row to the queue, in the memory reserved for it. */
void
IvfpqRowsAdd(IvfpqScanRows *rows, uint64 id, double lower, double upper,
			 bool bounded)
{
	IvfpqQueuedRow *row = rows->next_slot++;

	row->lower = lower;
	row->upper = upper;
	row->id = id;
	row->bounded = bounded;
	pairingheap_add(rows->queue, &row->node);
}

/* Takes the first row out of the queue; NULL if there is none. */
IvfpqQueuedRow *
IvfpqRowsPop(IvfpqScanRows *rows)
{
	if (pairingheap_is_empty(rows->queue))
		return NULL;
	return pairingheap_container(IvfpqQueuedRow, node,
								 pairingheap_remove_first(rows->queue));
}

/* qsort comparator: in the order in which rows leave the queue. */
static int
compare_rows(const void *a, const void *b)
{
	return -compare_queued(&((const IvfpqQueuedRow *) a)->node,
						   &((const IvfpqQueuedRow *) b)->node, NULL);
}

/*
 * Notes in which order the batch's rows [n], which were added last, will leave
 * the queue, so that their pages can be prefetched.
 */
void
IvfpqRowsPrefetch(IvfpqScanRows *rows, int64 n)
{
	IvfpqQueuedRow *sorted = palloc_extended(Max(n, 1) *
											 sizeof(IvfpqQueuedRow),
											 MCXT_ALLOC_HUGE);

	memcpy(sorted, rows->next_slot - n, n * sizeof(IvfpqQueuedRow));
	qsort(sorted, n, sizeof(IvfpqQueuedRow), compare_rows);
	if (rows->prefetch)
		pfree(rows->prefetch);
	rows->prefetch = palloc_extended(Max(n, 1) * sizeof(uint64),
									 MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < n; i++)
		rows->prefetch[i] = sorted[i].id;
	rows->nprefetch = n;
	pfree(sorted);
}

/*
 * Fetches and reranks a row.  Returns false if the snapshot does not see it, if
 * the filter or the key quals reject it, or if it has other dimensions, which
 * counts as invisible.
 */
static bool
rerank_row(IvfpqScanRun *run, uint64 id, double *distance)
{
	bool		reranked = IvfpqRerankRow(run->rerank, id, distance);
	bool		rejected = run->rerank->rejected;
	TidSetEntry *entry;

	run->report.counts[IVFPQ_COUNT_RERANKED] += !rejected;
	run->rows.rejected += rejected;
	run->rows.fetched++;
	run->rows.invisible += !reranked && !rejected;
	/* no change if what rerank_rows() put into the entry holds */
	if (run->pass.active ||
		(run->rows.counts_matching ? rejected : reranked))
		return reranked;
	entry = tidset_lookup(run->rows.seen, id);
	entry->matched = !rejected;
	entry->invisible = !reranked;
	return reranked;
}

/*
 * Reranks rows [count] in heap order and hands those that the snapshot sees
 * and that match to `sink`.  Reorders ids.
 */
void
IvfpqRowsRerank(IvfpqScanRun *run, uint64 *ids, int64 count,
				IvfpqScanSink sink)
{
	double		distance;

	IvfpqSortNumbers(ids, count);
	IvfpqRerankPrefetch(run->rerank, ids, count, true);
	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (rerank_row(run, ids[i], &distance))
			sink(run, ids[i], distance);
	}
	IvfpqRerankReleasePages(run->rerank);
}

/*
 * Returns whether the rows of the batch's quota have left the queue, or so
 * many rows were out of order that a full pass is to follow.  With refine
 * records the rows fetched so far, once half of the quota has left the queue,
 * tell which fraction of the candidates the snapshot sees, and the quota
 * shrinks to that.
 */
static bool
is_quota_popped(const IvfpqScanRun *run)
{
	const IvfpqScanRows *rows = &run->rows;

	if (rows->popped >= rows->quota || IvfpqDepthNeedsFullPass(run))
		return true;
	return run->search.addresses && rows->popped >= rows->quota / 2 &&
		rows->popped >= IvfpqDepthVisibleQuota(rows->quota,
											   run->search.candidates.count,
											   rows->fetched,
											   rows->invisible);
}

/*
 * Returns whether a bounded row may be returned without being reranked.  No
 * other row may be nearer, and only the executor may need the row: a filter
 * needs its distance, and key quals are rechecked on the row (README, "Keys").
 */
static bool
is_decided(const IvfpqScanRows *rows, const IvfpqQueuedRow *row)
{
	double		others = get_float8_infinity(); /* least of lower bounds */

	if (rows->needs_distance)
		return false;
	if (!pairingheap_is_empty(rows->queue))
		others = pairingheap_container(IvfpqQueuedRow, node,
									   pairingheap_first(rows->queue))->lower;
	return row->upper < others;
}

/*
 * Reranks bounded rows, beginning with `row`, which has left the queue; each
 * goes back with its distance.  Returns the first row that leaves the queue
 * reranked or decided, or whose lower bound ends the scan.  Returns NULL if
 * the queue is empty, or if rows that the filter rejects use up the quota.
 */
static IvfpqQueuedRow *
pop_bounded(IvfpqScanRun *run, IvfpqQueuedRow *row)
{
	IvfpqScanRows *rows = &run->rows;
	const IvfpqRadius *radius = &run->filter->radius;
	double		distance;

	/* pages of the rows that leave the queue next, up to the quota */
	if (rows->nprefetched < rows->nprefetch &&
		!IvfpqRerankIsPrefetching(run->rerank))
		IvfpqRerankPrefetch(run->rerank,
							rows->prefetch + rows->nprefetched,
							Max(0, Min(rows->nprefetch - rows->nprefetched,
									   rows->quota - rows->returned)), false);
	for (; row != NULL && row->bounded; row = IvfpqRowsPop(rows))
	{
		CHECK_FOR_INTERRUPTS();
		/* only then may a row whose conditions were not tested end the scan */
		if (radius->ends_on_any_row && IvfpqIsOutside(radius, row->lower))
			break;
		if (rows->nprefetched < rows->nprefetch &&
			rows->prefetch[rows->nprefetched] == row->id)
			rows->nprefetched++;
		if (is_decided(rows, row))
		{
			IvfpqRerankSkip(run->rerank, row->id);
			return row;
		}
		if (rerank_row(run, row->id, &distance))
		{
			row->lower = row->upper = distance;
			row->bounded = false;
			pairingheap_add(rows->queue, &row->node);
		}
		else if (run->rerank->rejected)
		{
			rows->popped++;
			if (!run->exhausted && is_quota_popped(run))
			{
				row = NULL;
				break;
			}
		}
	}
	IvfpqRerankReleasePages(run->rerank);
	return row;
}

/*
 * Sets *next to the nearest row, which leaves the queue.  Returns false when
 * the queue is empty or, where a filter rejects rows that leave it, when the
 * quota is used up.
 */
bool
IvfpqRowsNext(IvfpqScanRun *run, IvfpqNextRow *next)
{
	IvfpqQueuedRow *row = IvfpqRowsPop(&run->rows);

	if (row != NULL && row->bounded)
		row = pop_bounded(run, row);
	if (row == NULL)
		return false;
	next->id = row->id;
	next->lower = row->lower;
	next->upper = row->upper;
	next->reranked = !row->bounded;
	return true;
}

/*
 * Counts a row that is returned, and remembers it as far as later rows need.
 */
void
IvfpqRowReturned(IvfpqScanRun *run, const IvfpqNextRow *row)
{
	IvfpqScanRows *rows = &run->rows;

	rows->returned++;
	if (row->reranked)
	{
		rows->has_last = true;
		rows->last = *row;
		rows->nbefore_last = rows->nunchecked;
		return;
	}
	/* rows that still wait are no nearer, and no others follow */
	if (run->exhausted)
		return;
	if (rows->nunchecked == rows->capacity)
	{
		int			capacity = Max(16, 2 * rows->capacity);
		Size		bytes = capacity * sizeof(IvfpqNextRow);

		rows->unchecked = rows->unchecked == NULL ?
			MemoryContextAllocHuge(run->context, bytes) :
			repalloc_huge(rows->unchecked, bytes);
		rows->capacity = capacity;
	}
	rows->unchecked[rows->nunchecked++] = *row;
}

/*
 * Fetches the rows that were returned unfetched.  The executor passed over
 * those that the snapshot does not see; they count as invisible candidates,
 * not as returned.  Returns whether there are any.
 */
static bool
check_returned(IvfpqScanRun *run)
{
	IvfpqScanRows *rows = &run->rows;
	int64		invisible = 0;

	if (rows->nunchecked == 0)
		return false;
	for (int i = 0; i < rows->nunchecked; i++)
	{
		const IvfpqNextRow *row = &rows->unchecked[i];

		CHECK_FOR_INTERRUPTS();
		if (!IvfpqRerankFetch(run->rerank, row->id, NULL))
			invisible++;
		else if (i >= rows->nbefore_last)
		{
			rows->has_last = true;
			rows->last = *row;
		}
	}
	IvfpqRerankReleasePages(run->rerank);
	rows->fetched += rows->nunchecked;
	rows->invisible += invisible;
	rows->returned -= invisible;
	rows->popped -= invisible;
	rows->nunchecked = rows->nbefore_last = 0;
	return invisible > 0;
}

/*
 * Returns whether the batch has returned its quota.  Rows returned unfetched
 * count only if the snapshot sees them.
 */
bool
IvfpqRowsQuotaIsUsed(IvfpqScanRun *run)
{
	return is_quota_popped(run) &&
		(!check_returned(run) || is_quota_popped(run));
}

/* Reranks a row unless that was done.  Returns false if it is invisible. */
static bool
rerank_bounded(IvfpqScanRun *run, IvfpqNextRow *row)
{
	double		distance;

	if (row->reranked)
		return true;
	if (!IvfpqRerankRow(run->rerank, row->id, &distance))
		return false;
	run->report.counts[IVFPQ_COUNT_RERANKED]++;
	row->lower = row->upper = distance;
	row->reranked = true;
	return true;
}

/*
 * Returns whether a row that left the queue is not to be returned, because it
 * is nearer than one that was, and order is strict.  The row may be reranked
 * for that; then it is not returned either if the snapshot does not see it.
 */
bool
IvfpqRowIsOutOfOrder(IvfpqScanRun *run, IvfpqNextRow *row)
{
	IvfpqScanRows *rows = &run->rows;
	bool		is_unchecked = rows->nunchecked > rows->nbefore_last;
	const IvfpqNextRow *last = is_unchecked ?
	&rows->unchecked[rows->nunchecked - 1] : &rows->last;
	bool		is_out_of_order;

	if (!run->query.strict || (!is_unchecked && !rows->has_last) ||
		float8_cmp_internal(row->lower, last->upper) >= 0)
		return false;

	(void) check_returned(run);
	if (!rows->has_last ||
		float8_cmp_internal(row->lower, rows->last.upper) >= 0)
		return false;
	if (!row->reranked)
	{
		rows->fetched++;
		if (!rerank_bounded(run, row))
		{
			rows->invisible++;
			return true;
		}
	}
	is_out_of_order =
		float8_cmp_internal(row->lower, rows->last.upper) < 0 &&
		rerank_bounded(run, &rows->last) &&
		float8_cmp_internal(row->lower, rows->last.lower) < 0;
	IvfpqRerankReleasePages(run->rerank);
	rows->out_of_order += is_out_of_order;
	return is_out_of_order;
}
