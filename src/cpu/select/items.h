/*
 * items.h
 *		Items, which gv_select.h makes of values and their positions: how to
 *		split, pick and sort them.  No two items are equal.
 *
 * Functions that return bool return false if the caller must give up.  All
 * items are then still there, in any order.
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
 * gv_items_pick puts the item of the given rank, counted from 0, where sorting
 * would put it, and all smaller items before it.  It takes 3 n steps, at most
 * 72 n.
 *
 * gv_items_sort sorts the items.  It takes n log n steps, at most 72 n.
 */
extern bool gv_items_pick(uint64_t *items, int64_t n, int64_t rank,
						  GvPoll *poll);
extern bool gv_items_sort(uint64_t *items, int64_t n, GvPoll *poll);

/* ----
 * SampleSelect's splitters: a sample of items that divides all items into
 * buckets.
 *
 * Bucket b has the items that are not below sorted[b - 1] (if b > 0) and are
 * below sorted[b] (if b < GV_BUCKETS - 1).  `tree` has the same splitters as a
 * complete binary tree in an array, in which the children of node i are 2 i +
 * 1 and 2 i + 2.  So an item's bucket is found without a branch:
 *
 *	i = 0; 8 times: i = 2 i + 1 + (item >= tree[i]); bucket = i - 255
 *
 * Items are distinct, so sorted[b] is the first item of bucket b + 1, and its
 * rank is the number of items in the buckets before that one.
 *
 * Functions that return bool return false if the caller must give up.
 */

#define GV_BUCKET_BITS	8
#define GV_BUCKETS		(1 << GV_BUCKET_BITS)
#define GV_NSPLITTERS	(GV_BUCKETS - 1)
#define GV_SAMPLE_ITEMS	(16 * GV_BUCKETS)

/*
 * Number of items that are sorted or picked from without being divided, at
 * most.
 */
#define GV_UNDIVIDED_ITEMS (1 << 16)

typedef struct GvSplitters
{
	uint64_t	sorted[GV_NSPLITTERS];
	uint64_t	tree[GV_NSPLITTERS];
	int64_t		counts[GV_BUCKETS]; /* number of items in each bucket */
} GvSplitters;

/* The items of a row from `first` to `last`, both included. */
typedef struct GvItemRange
{
	uint64_t	first;
	uint64_t	last;
	int64_t		count;
	int64_t		nbefore;		/* items below first */
} GvItemRange;

static inline int
gv_bucket(const GvSplitters *splitters, uint64_t item)
{
	uint32_t	i = 0;
	int			level;

	for (level = 0; level < GV_BUCKET_BITS; level++)
		i = 2 * i + 1 + (item >= splitters->tree[i]);
	return (int) i - GV_NSPLITTERS;
}

static inline bool
gv_in_range(const GvItemRange *range, uint64_t item)
{
	return item - range->first <= range->last - range->first;
}

/* Returns the range of all items of n values. */
static inline GvItemRange
gv_whole_range(int64_t n)
{
	return (GvItemRange)
	{
		0, UINT64_MAX, n, 0
	};
}

/*
 * gv_splitters_make makes splitters for those items of values [n] that are in
 * the range, more than GV_SAMPLE_ITEMS.  `level` is the level of division,
 * from 0.  The items are divided into GV_SAMPLE_ITEMS stretches of equal
 * length, and the sample takes one item at random from each.  scratch
 * [GV_SAMPLE_ITEMS].  From level GV_SAMPLED_LEVELS on the range is divided
 * evenly.  As 64 bits are 8 times 8, no input takes more than 8 such levels.
 *
 * gv_splitters_count counts the items of the range in each bucket.
 *
 * gv_splitters_enter narrows a range to its bucket that has the item of the
 * given rank.
 */
extern bool gv_splitters_make(GvSplitters *splitters, const float *values,
							  int64_t n, const GvItemRange *range, int level,
							  uint64_t *scratch, GvPoll *poll);
extern bool gv_splitters_count(GvSplitters *splitters, const float *values,
							   int64_t n, const GvItemRange *range,
							   GvPoll *poll);
extern void gv_splitters_enter(const GvSplitters *splitters, int64_t rank,
							   GvItemRange *range);

/*
 * Returns the place, below n, from which the sample takes an item in stretch
 * j.  Tests call it, too.
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
