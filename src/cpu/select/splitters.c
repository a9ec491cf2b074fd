/*
 * splitters.c
 *		SampleSelect's splitters: the sample, the search tree, and the
 *		histogram.
 *
 * Sources: Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019; the
 * tree is that of Sanders, Winkel, "Super Scalar Sample Sort", 2004.
 */
#include "cpu/select/gv_splitters.h"

#define CHUNK	256				/* items made at a time */

/*
 * Makes the tree of the sorted splitters.  The lowest level has every second
 * splitter, and each level above it every second one of the rest.
 */
static void
plant(GvSplitters *splitters)
{
	int			level;
	int			j;
	int			node = 0;

	for (level = 0; level < GV_BUCKET_BITS; level++)
	{
		int			reach = 1 << (GV_BUCKET_BITS - 1 - level);

		for (j = 0; j < 1 << level; j++)
			splitters->tree[node++] =
				splitters->sorted[(2 * j + 1) * reach - 1];
	}
}

/* Takes a sample of a range that covers all of values [n]. */
static void
sample_whole(const float *values, int64_t n, uint64_t state, uint64_t *sample)
{
	int64_t		j;

	for (j = 0; j < GV_SAMPLE_ITEMS; j++)
	{
		int64_t		place = gv_sample_place(&state, j, n);

		sample[j] = gv_item(values[place], place);
	}
}

/*
 * Takes a sample of a range that covers a part of the values, which must be
 * counted to find the places.
 */
static bool
sample_range(const float *values, int64_t n, const GvItemRange *range,
			 uint64_t state, uint64_t *sample, GvPoll *poll)
{
	int64_t		next = gv_sample_place(&state, 0, range->count);
	int64_t		j = 0;
	int64_t		nseen = 0;
	int64_t		i;

	for (i = 0; i < n && j < GV_SAMPLE_ITEMS; i++)
	{
		uint64_t	item = gv_item(values[i], i);

		if (i % CHUNK == 0 && gv_poll(poll, 2 * CHUNK))
			return false;
		if (!gv_in_range(range, item) || nseen++ < next)
			continue;
		sample[j++] = item;
		if (j < GV_SAMPLE_ITEMS)
			next = gv_sample_place(&state, j, range->count);
	}
	return true;
}

/* Sets splitters that divide a range of 64-bit numbers into equal parts. */
static void
divide_evenly(GvSplitters *splitters, const GvItemRange *range)
{
	uint64_t	part = (range->last - range->first) / GV_BUCKETS;
	int			i;

	for (i = 0; i < GV_NSPLITTERS; i++)
		splitters->sorted[i] = range->first + ((uint64_t) i + 1) * part;
}

bool
gv_splitters_make(GvSplitters *splitters, const float *values, int64_t n,
				  const GvItemRange *range, int level, uint64_t *scratch,
				  GvPoll *poll)
{
	int			i;

	if (level >= GV_SAMPLED_LEVELS)
	{
		divide_evenly(splitters, range);
		plant(splitters);
		return true;
	}
	if (range->count == n)
		sample_whole(values, n, GV_SAMPLE_SEED(level), scratch);
	else if (!sample_range(values, n, range, GV_SAMPLE_SEED(level), scratch,
						   poll))
		return false;
	if (!gv_items_sort(scratch, GV_SAMPLE_ITEMS, poll))
		return false;
	for (i = 0; i < GV_NSPLITTERS; i++)
		splitters->sorted[i] =
			scratch[(i + 1) * (GV_SAMPLE_ITEMS / GV_BUCKETS)];
	plant(splitters);
	return true;
}

bool
gv_splitters_count(GvSplitters *splitters, const float *values, int64_t n,
				   const GvItemRange *range, GvPoll *poll)
{
	uint64_t	items[CHUNK];
	int64_t		first;

	memset(splitters->counts, 0, sizeof(splitters->counts));
	for (first = 0; first < n; first += CHUNK)
	{
		int64_t		count = n - first < CHUNK ? n - first : CHUNK;
		int64_t		i;

		if (gv_poll(poll, 8 * CHUNK))
			return false;
		gv_items_load(values + first, count, first, items);
		for (i = 0; i < count; i++)
			if (gv_in_range(range, items[i]))
				splitters->counts[gv_bucket(splitters, items[i])]++;
	}
	return true;
}

void
gv_splitters_enter(const GvSplitters *splitters, int64_t rank,
				   GvItemRange *range)
{
	int			b = 0;

	for (; rank - range->nbefore >= splitters->counts[b]; b++)
		range->nbefore += splitters->counts[b];
	range->count = splitters->counts[b];
	if (b > 0)
		range->first = splitters->sorted[b - 1];
	if (b < GV_NSPLITTERS)
		range->last = splitters->sorted[b] - 1;
}
