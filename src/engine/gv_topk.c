/*
 * gv_topk.c
 *		The k best (score, id) pairs, and lists grouped by parent.
 *
 * A GvTopK keeps the best pairs seen so far.  Once it is full it is a heap
 * with the farthest pair at the root, so that one comparison rejects most
 * pairs, and a nearer pair replaces the root.  Quickselect orders the first n
 * pairs, or all.
 *
 * gv_group_lists rearranges a tree's lists so that each parent's lists are
 * contiguous.
 *
 * Engines and their callers share these functions.
 */
#include <string.h>

#include "engine/gv_engine.h"

#define INSERTION	16			/* insertion sort is used for at most this
								 * many pairs */

/* Returns whether pair a precedes pair b in the order of results. */
static inline bool
before(float a_score, uint64_t a_id, float b_score, uint64_t b_id)
{
	if (a_score != b_score)
		return a_score < b_score;
	return a_id < b_id;
}

/* Places the pair at `hole` or below it, in a heap of `count` pairs. */
static void
sift_down(GvTopK *top, int32_t count, int32_t hole, float score, uint64_t id)
{
	while (hole < count / 2)
	{
		int32_t		child = 2 * hole + 1;

		if (child + 1 < count &&
			before(top->scores[child], top->ids[child],
				   top->scores[child + 1], top->ids[child + 1]))
			child++;
		if (!before(score, id, top->scores[child], top->ids[child]))
			break;
		top->scores[hole] = top->scores[child];
		top->ids[hole] = top->ids[child];
		hole = child;
	}
	top->scores[hole] = score;
	top->ids[hole] = id;
}

/* Turns the pairs, which may be in any order, into a heap. */
static void
make_heap(GvTopK *top)
{
	int32_t		i;

	for (i = top->count / 2 - 1; i >= 0; i--)
		sift_down(top, top->count, i, top->scores[i], top->ids[i]);
}

/*
 * Returns whether the id is present already, for a GvTopK that is `unique`.
 * If so, keeps the nearer of the id's two scores.
 */
static bool
merge_held(GvTopK *top, float score, uint64_t id)
{
	int32_t		i;

	for (i = 0; i < top->count; i++)
	{
		if (top->ids[i] != id)
			continue;
		if (!(score < top->scores[i]))
			return true;
		top->scores[i] = score;
		if (top->count == top->capacity)
			sift_down(top, top->count, i, score, id);
		return true;
	}
	return false;
}

void
gv_topk_reset(GvTopK *top)
{
	top->count = 0;
}

void
gv_topk_push(GvTopK *top, float score, uint64_t id)
{
	bool		full = top->count >= top->capacity;

	if (!(score < GV_SCORE_MAX))
		score = GV_SCORE_MAX;
	if (full && !before(score, id, top->scores[0], top->ids[0]))
		return;
	if (top->unique && merge_held(top, score, id))
		return;

	if (full)
	{
		sift_down(top, top->count, 0, score, id);
		return;
	}
	top->scores[top->count] = score;
	top->ids[top->count++] = id;
	if (top->count == top->capacity)
		make_heap(top);
}

static inline void
swap(GvTopK *top, int32_t i, int32_t j)
{
	float		score = top->scores[i];
	uint64_t	id = top->ids[i];

	top->scores[i] = top->scores[j];
	top->ids[i] = top->ids[j];
	top->scores[j] = score;
	top->ids[j] = id;
}

/* Returns whether pair i precedes pair j. */
static inline bool
pair_before(const GvTopK *top, int32_t i, int32_t j)
{
	return before(top->scores[i], top->ids[i], top->scores[j], top->ids[j]);
}

static void
insertion_sort(GvTopK *top)
{
	int32_t		i;

	for (i = 1; i < top->count; i++)
	{
		float		score = top->scores[i];
		uint64_t	id = top->ids[i];
		int32_t		hole = i;

		for (; hole > 0 && before(score, id, top->scores[hole - 1],
								  top->ids[hole - 1]); hole--)
		{
			top->scores[hole] = top->scores[hole - 1];
			top->ids[hole] = top->ids[hole - 1];
		}
		top->scores[hole] = score;
		top->ids[hole] = id;
	}
}

static void
sort_heap(GvTopK *top)
{
	int32_t		i;

	make_heap(top);
	for (i = top->count - 1; i > 0; i--)
	{
		float		score = top->scores[i];
		uint64_t	id = top->ids[i];

		top->scores[i] = top->scores[0];
		top->ids[i] = top->ids[0];
		sift_down(top, i, 0, score, id);
	}
}

/*
 * Partitions the pairs around a pivot, the median of three.  Moves the pivot
 * to its place in sorted order, moves the pairs that precede the pivot before
 * it, and returns the pivot's place.  The loop has no branch, because the
 * outcome of the comparison cannot be predicted.
 */
static int32_t
split(GvTopK *top)
{
	int32_t		middle = top->count / 2;
	int32_t		last = top->count - 1;
	int32_t		nbefore = 0;
	float		score;
	uint64_t	id;
	int32_t		i;

	/* move the median of three to the front */
	if (pair_before(top, middle, last))
		swap(top, middle, last);
	if (pair_before(top, 0, last))
		swap(top, 0, last);
	if (pair_before(top, 0, middle))
		swap(top, 0, middle);
	swap(top, 0, middle);
	score = top->scores[0];
	id = top->ids[0];
	for (i = 1; i <= last; i++)
	{
		float		moved = top->scores[i];
		uint64_t	moved_id = top->ids[i];

		top->scores[i] = top->scores[nbefore + 1];
		top->ids[i] = top->ids[nbefore + 1];
		top->scores[nbefore + 1] = moved;
		top->ids[nbefore + 1] = moved_id;
		nbefore += (moved < score) | ((moved == score) & (moved_id < id));
	}
	swap(top, 0, nbefore);
	return nbefore;
}

/*
 * Orders the first `wanted` pairs of a range by quickselect.  Falls back to
 * heapsort after `splits` splits, because quickselect needs that many splits
 * only if too many of them were uneven.
 */
static void
sort_part(GvTopK part, int32_t wanted, int splits)
{
	while (part.count > INSERTION)
	{
		GvTopK		rest = part;
		int32_t		nbefore;

		if (splits-- == 0)
		{
			sort_heap(&part);
			return;
		}
		nbefore = split(&part);
		part.count = nbefore;
		if (nbefore + 1 >= wanted)
			continue;
		rest.scores += nbefore + 1;
		rest.ids += nbefore + 1;
		rest.count -= nbefore + 1;
		sort_part(rest, wanted - (nbefore + 1), splits);
	}
	insertion_sort(&part);
}

void
gv_topk_first(GvTopK *top, int32_t n)
{
	int			splits = 0;
	int32_t		left;

	for (left = top->count; left > 0; left /= 2)
		splits += 2;
	sort_part(*top, n, splits);
	if (n < top->count)
		top->count = n;
}

void
gv_topk_sort(GvTopK *top)
{
	gv_topk_first(top, top->count);
}

/* Sorts the lists by owner, by a counting sort. */
int32_t
gv_group_lists(int32_t dims, int32_t nlists, const float *centroids,
			   const int32_t *owners, int32_t nparents, float *parents,
			   int32_t *parent_offsets, float *grouped)
{
	size_t		bytes = sizeof(float) * (size_t) dims;
	int32_t		kept = 0;
	int32_t		next = 0;
	int32_t		i;
	int32_t		p;

	memset(parent_offsets, 0, sizeof(int32_t) * ((size_t) nparents + 1));
	for (i = 0; i < nlists; i++)
		parent_offsets[owners[i]]++;
	for (p = 0; p < nparents; p++)
	{
		int32_t		count = parent_offsets[p];

		parent_offsets[p] = next;
		next += count;
	}

	/*
	 * offset p becomes the end of parent p's lists, where the next parent's
	 * lists begin
	 */
	for (i = 0; i < nlists; i++)
		memcpy(grouped + (size_t) parent_offsets[owners[i]]++ * (size_t) dims,
			   centroids + (size_t) i * (size_t) dims, bytes);
	for (p = 0; p < nparents; p++)
	{
		int32_t		begin = kept > 0 ? parent_offsets[kept - 1] : 0;

		if (parent_offsets[p] == begin)
			continue;
		if (kept < p)
			memcpy(parents + (size_t) kept * (size_t) dims,
				   parents + (size_t) p * (size_t) dims, bytes);
		parent_offsets[kept++] = parent_offsets[p];
	}
	memmove(parent_offsets + 1, parent_offsets,
			sizeof(int32_t) * (size_t) kept);
	parent_offsets[0] = 0;
	return kept;
}
