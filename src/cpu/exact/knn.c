/*
 * knn.c
 *		The rows nearest to one query so far (see gv_knn.h).
 */
#include "cpu/exact/gv_knn.h"

#include <math.h>

/* Returns whether a comes before b. */
static inline bool
is_before(GvKnn a, GvKnn b)
{
	if (a.distance < b.distance)
		return true;
	if (a.distance > b.distance)
		return false;
	if (a.distance != a.distance || b.distance != b.distance)
		if ((a.distance != a.distance) != (b.distance != b.distance))
			return b.distance != b.distance;
	return a.position < b.position;
}

/* Removes the top of a heap of n pairs, and inserts `moved`. */
static void
replace_top(GvKnn *heap, int64_t n, GvKnn moved)
{
	int64_t		place = 0;

	while (place < n / 2)
	{
		int64_t		child = 2 * place + 1;

		if (child + 1 < n && is_before(heap[child], heap[child + 1]))
			child++;
		if (!is_before(moved, heap[child]))
			break;
		heap[place] = heap[child];
		place = child;
	}
	heap[place] = moved;
}

/* Makes a heap of n free places. */
void
gv_knn_reset(GvKnn *heap, int64_t n)
{
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		heap[i].distance = NAN;
		heap[i].position = GV_NO_ROW;
	}
}

/* Keeps a row if it comes before the last row kept, which is then dropped. */
void
gv_knn_push(GvKnn *heap, int64_t n, double distance, int64_t position)
{
	GvKnn		pair = {distance, position};

	if (is_before(pair, heap[0]))
		replace_top(heap, n, pair);
}

/*
 * Orders the pairs: the nearest row first, free places last.  They are no heap
 * afterwards.  Returns false if the caller must give up.
 */
bool
gv_knn_sort(GvKnn *heap, int64_t n, GvPoll *poll)
{
	while (n > 1)
	{
		GvKnn		last = heap[0];

		if (gv_poll(poll, GV_KNN_WORK))
			return false;
		n--;
		replace_top(heap, n, heap[n]);
		heap[n] = last;
	}
	return true;
}
