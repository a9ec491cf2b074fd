/*
 * queue.c
 *		Rows of a scan that are reranked, or bounded, and not returned yet.
 *
 * Memory for them is taken by the batch, and given back when the scan ends: a
 * row's place in the set of those reranked stays as long, too.
 */
#include "postgres.h"

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
