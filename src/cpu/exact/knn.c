/*
 * knn.c
 *		The rows nearest to one query so far: see gv_knn.h.
 */
#include "cpu/exact/gv_knn.h"

#include <math.h>

/* Does a come before b? */
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

/* Put a pair where the top of a heap of n was. */
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

/* No rows yet, n free places. */
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

/* Keep a row if it comes before one that is kept, which is dropped. */
void
gv_knn_push(GvKnn *heap, int64_t n, double distance, int64_t position)
{
	GvKnn		pair = {distance, position};

	if (is_before(pair, heap[0]))
		replace_top(heap, n, pair);
}

/*
 * Order a heap: the nearest row first, free places last.  A heap no more.
 * False: the GvStop asked for the end.
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
