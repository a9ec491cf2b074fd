/*
 * items.h
 *		Functions that select and sort items.  An item is made of a value and
 *		its position (gv_select.h), so no two items are equal.  If a function
 *		gives up, all items are still in the array, in any order.
 */
#ifndef GV_ITEMS_H
#define GV_ITEMS_H

#include "cpu/cpu.h"
#include "engine/gv_select.h"

/* Number of items that are handled between two polls. */
#define GV_ITEMS_SLICE	4096

static inline uint64_t
gv_item(float value, int64_t position)
{
	return (uint64_t) gv_select_key(value) << 32 | (uint64_t) position;
}

static inline float
gv_item_value(uint64_t item)
{
	return gv_select_value((uint32_t) (item >> 32));
}

static inline uint32_t
gv_item_position(uint64_t item)
{
	return (uint32_t) item;
}

/* Makes items of values [n], the first of which has position `first`. */
static inline void
gv_items_load(const float *values, int64_t n, int64_t first, uint64_t *items)
{
	int64_t		i;

	for (i = 0; i < n; i++)
		items[i] = gv_item(values[i], first + i);
}

/*
 * gv_items_pick moves the item of the given rank, counted from 0, to the place
 * where sorting would put the item, and moves all smaller items to places
 * before it.  It takes about 3 n steps, and at most 72 n.
 *
 * gv_items_sort sorts the items.  It takes about n log n steps, and at most 72
 * n.
 */
extern bool gv_items_pick(uint64_t *items, int64_t n, int64_t rank,
						  GvPoll *poll);
extern bool gv_items_sort(uint64_t *items, int64_t n, GvPoll *poll);

/* Constants of SampleSelect (sampleselect.c), which tests use, too. */
#define GV_BUCKET_BITS	8
#define GV_BUCKETS		(1 << GV_BUCKET_BITS)
#define GV_NSPLITTERS	(GV_BUCKETS - 1)
#define GV_SAMPLE_ITEMS	(16 * GV_BUCKETS)

/*
 * Maximum number of items that are sorted, or searched for a rank, without
 * being divided into buckets.
 */
#define GV_UNDIVIDED_ITEMS (1 << 16)

/*
 * Returns a random place in stretch j of n items, which are divided into
 * GV_SAMPLE_ITEMS stretches.  The sample takes the item at that place.
 */
static inline int64_t
gv_sample_place(uint64_t *state, int64_t j, int64_t n)
{
	int64_t		begin = j * n / GV_SAMPLE_ITEMS;
	int64_t		end = (j + 1) * n / GV_SAMPLE_ITEMS;

	return begin + gv_random_below(state, end - begin);
}

#define GV_SAMPLE_SEED(level)	(UINT64_C(0x5A3D) + (uint64_t) (level))
#define GV_SAMPLED_LEVELS		8

/* These are in sampleselect.c. */
extern size_t gv_sampleselect_scratch(int64_t k);
extern bool gv_sampleselect(const float *values, int64_t n, int64_t k,
							void *scratch, GvPoll *poll);

#endif							/* GV_ITEMS_H */
