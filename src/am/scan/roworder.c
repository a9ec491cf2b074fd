/*
 * roworder.c
 *		The rows of a scan, from candidates until they are returned in order.
 *
 * Rows wait in a queue.  Each of them was reranked, or only bounds of its
 * distance are known.  The nearest row leaves the queue first.  A bounded row
 * that leaves the queue is reranked and put back, unless its upper bound is
 * below the lower bounds of all other rows.  In that case the row is returned
 * without being fetched, because the executor fetches it anyway, and the
 * access method would only fetch it twice.
 *
 * So the scan does not know the exact distance of such a row.  When the row is
 * returned, no row in the queue is nearer than its upper bound.  If a later
 * batch brings a row whose lower bound is below that upper bound, the later
 * row is reranked.  If the later row may still be nearer than the row returned
 * last, the row returned last is reranked, too.  No other distances have to be
 * known, because rows returned earlier are not farther away than that row.
 *
 * The scan does not know either whether the snapshot sees such a row.  The
 * executor skips an invisible row without reporting this to the scan.  An
 * invisible row does not count as returned.  So the scan itself checks the
 * visibility where it matters, which is before the quota of a batch counts as
 * used up, and before a row counts as out of order.
 *
 * A row that was reranked is visible.  Distances and visibility matter only
 * for the order of rows and for the quotas of batches.  After the last batch
 * neither matters, so rows need not be remembered.
 *
 * If gpuvecd tells the distances of a batch's rows, most of these rows never
 * leave the queue.  So they are sorted at once, in an array beside the heap,
 * and enter the set of rows seen only when they leave the array.  As the order
 * in which they leave it is known, rows that the executor will fetch soon are
 * brought into the processor's cache.
 *
 * Each batch reserves the memory of its queued rows.  This memory is not freed
 * row by row, but when the full pass begins or the scan ends.  A row's entry
 * in the set of rows seen stays until the scan ends.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/float.h"

#include "am/common/enginecall.h"
#include "am/scan/scan.h"

/* Sorted rows are prefetched so many rows before they leave the queue. */
#define SEEK_PLACES		16
#define SEEK_ROWS		8
#define SEEK_TUPLES		4

/*
 * pairingheap comparator.  Orders rows by ascending distance and then by TID,
 * so that the nearest row is the first of the heap.  A bounded row may be as
 * near as its lower bound, so it comes before reranked rows of that distance.
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

/* Creates the queue in the current context, and `seen` in run->context. */
void
IvfpqRowsInit(IvfpqScanRun *run)
{
	run->rows.queue = pairingheap_allocate(compare_queued, NULL);
	run->rows.seen = tidset_create(run->context, 256, NULL);
}

/*
 * Reserves memory for the rows of the next batch, at most n.  Ends prefetching
 * of rows of earlier batches.
 */
void
IvfpqRowsReserve(IvfpqScanRows *rows, int64 n)
{
	rows->nprefetch = rows->nprefetched = 0;
	rows->next_slot = palloc_extended(Max(n, 1) * sizeof(IvfpqQueuedRow),
									  MCXT_ALLOC_HUGE);
}

/*
 * Adds a row to the queue, in memory that IvfpqRowsReserve has reserved.  Also
 * counts whether the row, or its lower bound, is within the radius.  A bounded
 * row was not tested, so it counts only if any row may end the scan.
 */
void
IvfpqRowsAdd(IvfpqScanRun *run, uint64 id, double lower, double upper,
			 bool bounded)
{
	const IvfpqRadius *asked = &run->filter->radius;
	IvfpqScanRadius *radius = &run->depth.radius;
	IvfpqQueuedRow *row = run->rows.next_slot++;

	row->lower = lower;
	row->upper = upper;
	row->id = id;
	row->bounded = bounded;
	pairingheap_add(run->rows.queue, &row->node);
	if (!bounded || asked->ends_on_any_row)
	{
		radius->counted++;
		radius->counted_within += !IvfpqIsOutside(asked, lower);
	}
}

/* Puts a reranked row into the full pass's sort. */
void
IvfpqRowsSort(IvfpqScanRun *run, uint64 id, double distance)
{
	IvfpqSortPut(&run->pass.sort, Float8GetDatum(distance),
				 Int64GetDatum((int64) id), NULL);
}

/* Returns the heap's first row without taking it, or NULL. */
static IvfpqQueuedRow *
first_of_heap(const IvfpqScanRows *rows)
{
	return pairingheap_is_empty(rows->queue) ? NULL :
		pairingheap_container(IvfpqQueuedRow, node,
							  pairingheap_first(rows->queue));
}

/* Returns the first row of the sorted rows without taking it, or NULL. */
static const IvfpqSortedRow *
first_of_sorted(const IvfpqScanRows *rows)
{
	return rows->next_sorted == rows->nsorted ? NULL :
		&rows->sorted[rows->next_sorted];
}

/* Orders sorted rows as compare_queued orders bounded rows; no bound is NaN. */
static inline int
compare_sorted(const IvfpqSortedRow *a, const IvfpqSortedRow *b)
{
	if (a->lower != b->lower)
		return a->lower < b->lower ? -1 : 1;
	return (a->id > b->id) - (a->id < b->id);
}

#define ST_SORT sort_rows
#define ST_ELEMENT_TYPE IvfpqSortedRow
#define ST_COMPARE(a, b) compare_sorted(a, b)
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/*
 * Brings the tuple of the i-th of the sorted rows into the processor's cache.
 * It will be reranked if another row may be as near, and then needs its vector.
 */
static void
seek_tuple(const IvfpqScanRun *run, int64 i)
{
	const IvfpqSortedRow *row = &run->rows.sorted[i];
	bool		overlaps = (i > 0 && row[-1].upper >= row->lower) ||
	(i + 1 < run->rows.nsorted && row->upper >= row[1].lower);

	IvfpqRerankSeekTuple(run->rerank, row->id, overlaps);
}

/*
 * Sets the queue's sorted rows to bounded rows [n], which are not in `seen`.
 * The memory is the caller's, and lives as long as the batch's.
 */
void
IvfpqRowsAddSorted(IvfpqScanRun *run, IvfpqSortedRow *sorted, int64 n)
{
	IvfpqScanRows *rows = &run->rows;

	Assert(first_of_sorted(rows) == NULL);
	sort_rows(sorted, n);
	rows->sorted = sorted;
	rows->nsorted = n;
	rows->next_sorted = 0;
	for (int64 i = 0; i < Min(n, SEEK_PLACES); i++)
		IvfpqRerankSeekPlace(run->rerank, sorted[i].id);
	for (int64 i = 0; i < Min(n, SEEK_ROWS); i++)
		IvfpqRerankSeekRow(run->rerank, sorted[i].id);
	for (int64 i = 0; i < Min(n, SEEK_TUPLES); i++)
		seek_tuple(run, i);
}

/* Takes the first of the sorted rows, of which there is one. */
static IvfpqQueuedRow *
take_sorted(IvfpqScanRun *run)
{
	IvfpqScanRows *rows = &run->rows;
	int64		i = rows->next_sorted++;
	const IvfpqSortedRow *sorted = &rows->sorted[i];
	IvfpqQueuedRow *row = rows->next_slot++;
	bool		found;

	if (i + SEEK_PLACES < rows->nsorted)
		IvfpqRerankSeekPlace(run->rerank, sorted[SEEK_PLACES].id);
	if (i + SEEK_ROWS < rows->nsorted)
		IvfpqRerankSeekRow(run->rerank, sorted[SEEK_ROWS].id);
	if (i + SEEK_TUPLES < rows->nsorted)
		seek_tuple(run, i + SEEK_TUPLES);
	(void) tidset_insert(rows->seen, sorted->id, &found);
	row->lower = sorted->lower;
	row->upper = sorted->upper;
	row->id = sorted->id;
	row->bounded = true;
	return row;
}

/* Moves the sorted rows to the heap, before the next batch. */
void
IvfpqRowsUnsort(IvfpqScanRun *run)
{
	while (first_of_sorted(&run->rows) != NULL)
		pairingheap_add(run->rows.queue, &take_sorted(run)->node);
}

/*
 * Takes the first row out of the queue.  Returns NULL if the queue is empty, or
 * if a candidate that gpuvecd has left out may be nearer than its first row.
 */
IvfpqQueuedRow *
IvfpqRowsPop(IvfpqScanRun *run)
{
	const IvfpqQueuedRow *queued = first_of_heap(&run->rows);
	const IvfpqSortedRow *sorted = first_of_sorted(&run->rows);
	int			c;

	if (sorted != NULL && queued != NULL)
	{
		c = float8_cmp_internal(sorted->lower, queued->lower);
		if (c > 0 || (c == 0 && queued->bounded && queued->id < sorted->id))
			sorted = NULL;
	}
	if (run->rows.nomitted > 0 &&
		(sorted != NULL || queued != NULL) &&
		float8_cmp_internal(sorted != NULL ? sorted->lower : queued->lower,
							run->rows.omitted_lower) >= 0)
		return NULL;
	if (sorted != NULL)
		return take_sorted(run);
	if (queued == NULL)
		return NULL;
	return pairingheap_container(IvfpqQueuedRow, node,
								 pairingheap_remove_first(run->rows.queue));
}

/*
 * Returns the least lower bound of the queue's rows, and of the candidates that
 * gpuvecd has left out, or infinity.
 */
static double
least_lower(const IvfpqScanRows *rows)
{
	const IvfpqQueuedRow *queued = first_of_heap(rows);
	const IvfpqSortedRow *sorted = first_of_sorted(rows);
	double		least = rows->nomitted > 0 ? rows->omitted_lower :
	get_float8_infinity();

	if (queued != NULL)
		least = float8_min(least, queued->lower);
	return sorted != NULL ? float8_min(least, sorted->lower) : least;
}

/* qsort comparator for the order in which rows leave the queue */
static int
compare_rows(const void *a, const void *b)
{
	return -compare_queued(&((const IvfpqQueuedRow *) a)->node,
						   &((const IvfpqQueuedRow *) b)->node, NULL);
}

/*
 * Notes the order in which the batch's rows, the n rows added last, will leave
 * the queue, so that their pages can be prefetched.
 */
void
IvfpqRowsPrefetchQueued(IvfpqScanRows *rows, int64 n)
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

/* Likewise for a batch of sorted rows. */
void
IvfpqRowsPrefetch(IvfpqScanRows *rows)
{
	if (rows->prefetch)
		pfree(rows->prefetch);
	rows->prefetch = palloc_extended(Max(rows->nsorted, 1) * sizeof(uint64),
									 MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < rows->nsorted; i++)
		rows->prefetch[i] = rows->sorted[i].id;
	rows->nprefetch = rows->nsorted;
}

/*
 * Fetches and reranks a row.  Returns false if the snapshot does not see the
 * row, if the filter or the key quals reject it, or if it has other
 * dimensions.  A row of other dimensions counts as invisible.
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

	/*
	 * A row of a full pass has no entry in `seen`.  The entry of another row
	 * is correct already if what the caller assumed about the row is true.
	 */
	if (run->pass.active ||
		(run->rows.counts_matching ? rejected : reranked))
		return reranked;
	entry = tidset_lookup(run->rows.seen, id);
	entry->matched = !rejected;
	entry->invisible = !reranked;
	return reranked;
}

/*
 * Reranks the rows ids [count] in heap order.  Puts each row that matches and
 * that the snapshot sees into the queue or, in the full pass, into the sort.
 * Sorts ids.
 */
void
IvfpqRowsRerank(IvfpqScanRun *run, uint64 *ids, int64 count)
{
	double		distance;

	IvfpqSortNumbers(ids, count);
	IvfpqRerankPrefetch(run->rerank, ids, count, true);
	for (int64 i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!rerank_row(run, ids[i], &distance))
			continue;
		if (run->pass.active)
			IvfpqRowsSort(run, ids[i], distance);
		else
			IvfpqRowsAdd(run, ids[i], distance, distance, false);
	}
	IvfpqRerankReleasePages(run->rerank);
}

/*
 * Returns whether all rows of the batch's quota have left the queue, or so
 * many rows were out of order that a full pass must follow.  If rows are
 * bounded, once half of the quota has left the queue, the quota shrinks if the
 * snapshot sees too few of the rows fetched so far (IvfpqDepthVisibleQuota).
 */
static bool
is_quota_popped(const IvfpqScanRun *run)
{
	const IvfpqScanRows *rows = &run->rows;

	if (rows->popped >= rows->quota || IvfpqDepthNeedsFullPass(run))
		return true;
	return rows->bounded && rows->popped >= rows->quota / 2 &&
		rows->popped >=
		IvfpqDepthVisibleQuota(rows->quota, IvfpqCandidatesFound(&run->search),
							   rows->fetched, rows->invisible);
}

/*
 * Reranks bounded rows, beginning with `row`, which has left the queue.  Each
 * reranked row goes back into the queue with its distance.  Returns the first
 * row to leave the queue that was reranked, that can be returned by its
 * bounds, or whose lower bound is outside of the radius.  Returns NULL if no
 * row can leave the queue, or if rows that the filter rejects use up the quota.
 */
static IvfpqQueuedRow *
pop_bounded(IvfpqScanRun *run, IvfpqQueuedRow *row)
{
	IvfpqScanRows *rows = &run->rows;
	const IvfpqRadius *radius = &run->filter->radius;
	double		others;			/* least lower bound of the other rows */
	double		distance;

	/* prefetch pages of the rows that leave the queue next, up to the quota */
	if (rows->nprefetched < rows->nprefetch &&
		!IvfpqRerankIsPrefetching(run->rerank))
		IvfpqRerankPrefetch(run->rerank,
							rows->prefetch + rows->nprefetched,
							Max(0, Min(rows->nprefetch - rows->nprefetched,
									   rows->quota - rows->returned)), false);
	for (; row != NULL && row->bounded; row = IvfpqRowsPop(run))
	{
		CHECK_FOR_INTERRUPTS();
		/* an untested row may end the scan only if ends_on_any_row is set */
		if (radius->ends_on_any_row && IvfpqIsOutside(radius, row->lower))
			break;
		if (rows->nprefetched < rows->nprefetch &&
			rows->prefetch[rows->nprefetched] == row->id)
			rows->nprefetched++;

		/*
		 * Return the row without reranking it if no other row can be nearer,
		 * and only the executor needs the row.  A filter needs the row's
		 * distance, and key quals are rechecked on the row (README, "Keys").
		 */
		others = least_lower(rows);
		if (!rows->needs_distance && row->upper < others)
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
 * Sets *next to the nearest row, taken out of the queue or, in the full pass,
 * out of the sort.  Returns false if there is none, if rows that the filter
 * rejects use up the quota, or if candidates that gpuvecd has left out have to
 * be added first.
 */
bool
IvfpqRowsNext(IvfpqScanRun *run, IvfpqNextRow *next)
{
	const IvfpqSort *sort = &run->pass.sort;
	IvfpqQueuedRow *row;

	if (run->pass.active)
	{
		if (!IvfpqSortNext(&run->pass.sort))
			return false;
		next->lower = next->upper = DatumGetFloat8(sort->keys[0]);
		next->id = (uint64) DatumGetInt64(sort->keys[1]);
		next->reranked = true;
		return true;
	}
	row = IvfpqRowsPop(run);
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
 * Counts a row as returned.  Remembers it if later rows are compared with it.
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
	/* after the last batch, no later row can be nearer than `row` */
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
 * Fetches the rows that were returned without being fetched.  The executor has
 * skipped those that the snapshot does not see, so they count as invisible
 * candidates, and not as returned.  Returns whether there are any invisible
 * rows.
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
 * Returns whether the batch has returned all rows of its quota.  A row that
 * was returned without being fetched counts only if the snapshot sees it.
 */
bool
IvfpqRowsQuotaIsUsed(IvfpqScanRun *run)
{
	return is_quota_popped(run) &&
		(!check_returned(run) || is_quota_popped(run));
}

/* Reranks a row if it is only bounded.  Returns false if it is invisible. */
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
 * Returns whether a row that has left the queue must not be returned, because
 * order is strict and the row is nearer than one that was returned before.
 * The row may have to be reranked to find out.  If that shows that the
 * snapshot does not see the row, it must not be returned either.
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
