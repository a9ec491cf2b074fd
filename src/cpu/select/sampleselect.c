/*
 * sampleselect.c
 *		SampleSelect of one row: its first k items, in order.
 *
 * The paper copies the bucket that has the k-th item before it divides that
 * bucket.  Here the bucket is a range of items, and the items in the range are
 * read again.  So the memory is the same whatever the input, and the first
 * level, which mostly is the last, writes nothing.
 *
 * Source: Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019.
 */
#include "cpu/select/gv_splitters.h"

#define CHUNK	256

/*
 * The scratch has the result [k] and the last bucket [GV_UNDIVIDED_ITEMS].
 * Each has space for one more item, because gather() writes an item before it
 * knows whether the item belongs there.
 */
size_t
gv_sampleselect_scratch(int64_t k)
{
	size_t		bytes = 0;

	gv_carve(&bytes, sizeof(uint64_t) * ((size_t) k + 1));
	gv_carve(&bytes, sizeof(uint64_t) * (GV_UNDIVIDED_ITEMS + 1));
	return bytes;
}

/*
 * Finds the range, of at most GV_UNDIVIDED_ITEMS items, that has the item of
 * the given rank.
 */
static bool
narrow(const float *values, int64_t n, int64_t rank, uint64_t *scratch,
	   GvItemRange *range, GvPoll *poll)
{
	int			level;

	*range = gv_whole_range(n);
	for (level = 0; range->count > GV_UNDIVIDED_ITEMS; level++)
	{
		GvSplitters splitters;

		if (!gv_splitters_make(&splitters, values, n, range, level, scratch,
							   poll) ||
			!gv_splitters_count(&splitters, values, n, range, poll))
			return false;
		gv_splitters_enter(&splitters, rank, range);
	}
	return true;
}

/*
 * Copies the items below the range to before [range->nbefore], and those in
 * the range to inside [range->count].
 */
static bool
gather(const float *values, int64_t n, const GvItemRange *range,
	   uint64_t *before, uint64_t *inside, GvPoll *poll)
{
	uint64_t	items[CHUNK];
	int64_t		nbefore = 0;
	int64_t		ninside = 0;
	int64_t		first;

	for (first = 0; first < n; first += CHUNK)
	{
		int64_t		count = n - first < CHUNK ? n - first : CHUNK;
		int64_t		i;

		if (gv_poll(poll, 2 * CHUNK))
			return false;
		gv_items_load(values + first, count, first, items);
		for (i = 0; i < count; i++)
		{
			before[nbefore] = items[i];
			nbefore += items[i] < range->first;
			inside[ninside] = items[i];
			ninside += gv_in_range(range, items[i]);
		}
	}
	return true;
}

/* Stores the first k items of values [n], k <= n, in scratch [k]. */
bool
gv_sampleselect(const float *values, int64_t n, int64_t k, void *scratch,
				GvPoll *poll)
{
	size_t		next = 0;
	uint64_t   *selected = scratch;
	uint64_t   *inside;
	GvItemRange range;
	int64_t		rest;

	gv_carve(&next, sizeof(uint64_t) * ((size_t) k + 1));
	inside = (uint64_t *) ((char *) scratch + next);
	if (!narrow(values, n, k - 1, inside, &range, poll) ||
		!gather(values, n, &range, selected, inside, poll))
		return false;
	rest = k - range.nbefore;
	if (!gv_items_pick(inside, range.count, rest - 1, poll))
		return false;
	memcpy(selected + range.nbefore, inside, sizeof(uint64_t) * (size_t) rest);
	return gv_items_sort(selected, k, poll);
}
