/*
 * gv_setmend.c
 *		Reseeding clusters that have lost their rows: see gv_set.h.
 *
 * Givers wait in a heap, the first on top, because most of them never give:
 * there are fewer takers.
 */
#include "engine/gv_set.h"

#include <string.h>

/* By what givers are ordered, and what makes one. */
typedef struct Givers
{
	const int64_t *sizes;		/* [k] */
	const double *errors;		/* [k]; NULL: by sizes */
	int32_t    *heap;			/* [n] clusters */
	int32_t		n;
} Givers;

/* Returns whether cluster a gives before b. */
static bool
gives_before(const Givers *givers, int32_t a, int32_t b)
{
	if (givers->errors != NULL && givers->errors[a] != givers->errors[b])
		return givers->errors[a] > givers->errors[b];
	if (givers->errors == NULL && givers->sizes[a] != givers->sizes[b])
		return givers->sizes[a] > givers->sizes[b];
	return a < b;
}

/* Let the cluster at a place of the heap sink to where it belongs. */
static void
sink(Givers *givers, int32_t place)
{
	int32_t		moved = givers->heap[place];

	while (place < givers->n / 2)
	{
		int32_t		child = 2 * place + 1;

		if (child + 1 < givers->n &&
			gives_before(givers, givers->heap[child + 1],
						 givers->heap[child]))
			child++;
		if (!gives_before(givers, givers->heap[child], moved))
			break;
		givers->heap[place] = givers->heap[child];
		place = child;
	}
	givers->heap[place] = moved;
}

/* Take the first out of the heap, which is not empty. */
static int32_t
next_giver(Givers *givers)
{
	int32_t		first = givers->heap[0];

	givers->heap[0] = givers->heap[--givers->n];
	if (givers->n > 0)
		sink(givers, 0);
	return first;
}

static bool
takes(const GvSetSpec *spec, int64_t size)
{
	int64_t		quarters = 4 * (int64_t) spec->k;

	/* of a balanced set: quarters * size < nrows, which might overflow */
	return size == 0 ||
		(spec->balanced && size <= (spec->nrows - 1) / quarters);
}

static bool
gives(const GvSetSpec *spec, int64_t size, float far_distance)
{
	return far_distance > 0.0f &&
		(!spec->balanced || size > spec->nrows / spec->k);
}

/* See gv_set.h. */
int32_t
gv_set_reseed(const GvSetSpec *spec, const int64_t *sizes,
			  const double *errors,
			  const float *far_distances, const float *farthest,
			  float *centroids, int32_t *order)
{
	Givers		givers = {sizes, spec->balanced ? NULL : errors, order, 0};
	size_t		dims = (size_t) spec->dims;
	int32_t		ntaken = 0;
	int32_t		c;

	for (c = 0; c < spec->k; c++)
		if (gives(spec, sizes[c], far_distances[c]))
			order[givers.n++] = c;
	for (c = givers.n / 2; c > 0; c--)
		sink(&givers, c - 1);
	for (c = 0; c < spec->k && givers.n > 0; c++)
		if (takes(spec, sizes[c]))
		{
			memcpy(centroids + (size_t) c * dims,
				   farthest + (size_t) next_giver(&givers) * dims,
				   sizeof(float) * dims);
			ntaken++;
		}
	return ntaken;
}
