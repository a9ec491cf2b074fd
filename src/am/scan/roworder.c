/*
 * roworder.c
 *		Rows of a scan that are reranked, or bounded, and not returned yet.
 *
 * Memory for them is taken by the batch, and given back when the scan ends: a
 * row's place in the set of those reranked stays as long, too.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/float.h"

#include "am/scan/scan.h"

/*
 * Ascending distance, ties by TID: the nearest row is the heap's first.  A
 * bounded row may be as near as its bound, so it comes before reranked ones.
 */
static int
compare_queued(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const IvfpqQueuedRow *x = pairingheap_const_container(IvfpqQueuedRow,
														  node, a);
	const IvfpqQueuedRow *y = pairingheap_const_container(IvfpqQueuedRow,
														  node, b);
	int			c = float8_cmp_internal(y->distance, x->distance);

	if (c != 0)
		return c;
	if (x->bounded != y->bounded)
		return x->bounded ? 1 : -1;
	return (x->id < y->id) - (x->id > y->id);
}

/* An empty queue; memory from the current context. */
void
IvfpqQueueInit(IvfpqQueue *queue)
{
	memset(queue, 0, sizeof(*queue));
	queue->heap = pairingheap_allocate(compare_queued, NULL);
}

/*
 * Reserve memory for the next batch, no more than n rows; none is prefetched.
 */
void
IvfpqQueueReserve(IvfpqQueue *queue, int64 n)
{
	queue->nprefetch = queue->ntaken = 0;
	queue->next_row = palloc_extended(Max(n, 1) * sizeof(IvfpqQueuedRow),
									  MCXT_ALLOC_HUGE);
}

static void
add_row(IvfpqQueue *queue, uint64 id, double least, double most, bool bounded)
{
	IvfpqQueuedRow *row = queue->next_row++;

	row->distance = least;
	row->most = most;
	row->id = id;
	row->bounded = bounded;
	pairingheap_add(queue->heap, &row->node);
}

/* Add a row that was reranked. */
void
IvfpqQueueAdd(IvfpqQueue *queue, uint64 id, double distance)
{
	add_row(queue, id, distance, distance, false);
}

/* Add a row that was not. */
void
IvfpqQueueAddBounded(IvfpqQueue *queue, uint64 id,
					 const IvfpqRowBounds *bounds)
{
	add_row(queue, id, bounds->least, bounds->most, true);
}

/* No row in the queue is nearer. */
double
IvfpqQueueLeast(const IvfpqQueue *queue)
{
	if (pairingheap_is_empty(queue->heap))
		return get_float8_infinity();
	return pairingheap_container(IvfpqQueuedRow, node,
								 pairingheap_first(queue->heap))->distance;
}

/* Take the first row out; NULL when there is none. */
IvfpqQueuedRow *
IvfpqQueueTake(IvfpqQueue *queue)
{
	if (pairingheap_is_empty(queue->heap))
		return NULL;
	return pairingheap_container(IvfpqQueuedRow, node,
								 pairingheap_remove_first(queue->heap));
}

/* Put a row back that was taken, and reranked. */
void
IvfpqQueueReturn(IvfpqQueue *queue, IvfpqQueuedRow *row, double distance)
{
	row->distance = row->most = distance;
	row->bounded = false;
	pairingheap_add(queue->heap, &row->node);
}

/* In the order in which rows are taken. */
static int
compare_rows(const void *a, const void *b)
{
	return -compare_queued(&((const IvfpqQueuedRow *) a)->node,
						   &((const IvfpqQueuedRow *) b)->node, NULL);
}

/*
 * Note in which order the batch's rows [n], which were added last, will be
 * taken, so that their pages can be prefetched.
 */
void
IvfpqQueuePrefetch(IvfpqQueue *queue, int64 n)
{
	IvfpqQueuedRow *rows = palloc_extended(Max(n, 1) * sizeof(IvfpqQueuedRow),
										   MCXT_ALLOC_HUGE);

	memcpy(rows, queue->next_row - n, n * sizeof(IvfpqQueuedRow));
	qsort(rows, n, sizeof(IvfpqQueuedRow), compare_rows);
	if (queue->prefetch)
		pfree(queue->prefetch);
	queue->prefetch = palloc_extended(Max(n, 1) * sizeof(uint64),
									  MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < n; i++)
		queue->prefetch[i] = rows[i].id;
	queue->nprefetch = n;
	pfree(rows);
}

/* ----
 * Rows that were returned, as far as later ones have to do with them.
 *
 * A row whose upper bound is below the lower bounds of all others is returned
 * as it is: the executor fetches it anyway, and the access method would only
 * do so once more to rerank it.  Two things are not known then:
 *
 *	its distance	is between its bounds.  No row that waits is nearer than the
 * 			upper one.  A row that a later batch brings, whose lower
 * 			bound is below that, is reranked, and if it may still be
 * 			the nearer one then so is the row returned last.  That
 * 			one is all that has to be known: rows returned before it
 * 			are no farther away.
 *	whether it is	the executor passes over a row that the snapshot does not
 *	seen			see, and does not say so.  It does not count as returned;
 * 			so where that matters, before a batch is taken for spent
 * 			and before a row is called out of order, we look ourselves.
 *
 * Rows that are reranked were seen.  All this is for the order and for what
 * batches are good for, both of which end with the last batch: from then on
 * rows need not be remembered.
 */

/* The row returned last, whether the snapshot sees it or not; or NULL. */
static const IvfpqNextRow *
last_returned(const IvfpqReturned *returned)
{
	if (returned->nunseen > returned->nolder)
		return &returned->unseen[returned->nunseen - 1];
	return returned->has_last ? &returned->last : NULL;
}

/* A row is returned. */
void
IvfpqReturnedAdd(IvfpqScan *state, const IvfpqNextRow *row)
{
	IvfpqReturned *returned = &state->rows_returned;

	state->returned++;
	if (row->reranked)
	{
		returned->has_last = true;
		returned->last = *row;
		returned->nolder = returned->nunseen;
		return;
	}
	/* rows that still wait are no nearer, and no others come */
	if (state->exhausted)
		return;
	if (returned->nunseen == returned->capacity)
	{
		int			capacity = Max(16, 2 * returned->capacity);
		Size		bytes = capacity * sizeof(IvfpqNextRow);

		returned->unseen = returned->unseen == NULL ?
			MemoryContextAllocHuge(state->context, bytes) :
			repalloc_huge(returned->unseen, bytes);
		returned->capacity = capacity;
	}
	returned->unseen[returned->nunseen++] = *row;
}

/*
 * Look at the rows that nobody has looked at: those that the snapshot does not
 * see were not returned, but are candidates that are gone.  Returns whether
 * there are such.
 */
bool
IvfpqReturnedCheck(IvfpqScan *state)
{
	IvfpqReturned *returned = &state->rows_returned;
	int64		invisible = 0;

	if (returned->nunseen == 0)
		return false;
	for (int i = 0; i < returned->nunseen; i++)
	{
		const IvfpqNextRow *row = &returned->unseen[i];

		CHECK_FOR_INTERRUPTS();
		if (!IvfpqRerankSees(state->rerank, row->id))
			invisible++;
		else if (i >= returned->nolder)
		{
			returned->has_last = true;
			returned->last = *row;
		}
	}
	IvfpqRerankPause(state->rerank);
	state->fetched += returned->nunseen;
	state->invisible += invisible;
	state->returned -= invisible;
	state->taken -= invisible;
	returned->nunseen = returned->nolder = 0;
	return invisible > 0;
}

/* Rerank a row that comes up or was returned; false if it is not there. */
static bool
rerank_bounded(IvfpqScan *state, IvfpqNextRow *row)
{
	double		distance;

	if (row->reranked)
		return true;
	if (!IvfpqRerankRow(state->rerank, row->id, &distance))
		return false;
	state->report.reranked++;
	row->least = row->most = distance;
	row->reranked = true;
	return true;
}

/*
 * Is a row that comes up not to be returned, because it is nearer than one
 * that was, and order is strict?  It may be reranked for that; then it is not
 * returned either if the snapshot does not see it.
 */
bool
IvfpqReturnedIsOutOfOrder(IvfpqScan *state, IvfpqNextRow *row)
{
	IvfpqReturned *returned = &state->rows_returned;
	const IvfpqNextRow *last = last_returned(returned);
	bool		is_out_of_order;

	if (!state->is_strict || last == NULL ||
		float8_cmp_internal(row->least, last->most) >= 0)
		return false;

	(void) IvfpqReturnedCheck(state);
	if (!returned->has_last ||
		float8_cmp_internal(row->least, returned->last.most) >= 0)
		return false;
	if (!row->reranked)
	{
		state->fetched++;
		if (!rerank_bounded(state, row))
		{
			state->invisible++;
			return true;
		}
	}
	is_out_of_order = float8_cmp_internal(row->least, returned->last.most) <
		0 &&
		rerank_bounded(state, &returned->last) &&
		float8_cmp_internal(row->least, returned->last.least) < 0;
	IvfpqRerankPause(state->rerank);
	state->out_of_order += is_out_of_order;
	return is_out_of_order;
}
