/*
 * items.h
 *		Functions that select and sort items.  An item is made of a value and
 *		its position (gv_select.h), so no two items are equal.  If a function
 *		gives up, all items are still in the array, in any order.
 *
 * All functions here exist twice.  The files that define them are compiled for
 * floats by themselves, and for doubles by doubles.c, which defines GV_DOUBLES.
 */
#ifndef GV_ITEMS_H
#define GV_ITEMS_H

#include "cpu/cpu.h"
#include "engine/gv_select.h"

#ifdef GV_DOUBLES
typedef double GvValue;
typedef unsigned __int128 GvItem;

#define GV_ITEM_BITS	96
#define GV_OF(name)		name##_doubles
#define gv_key			gv_select_key_double
#define gv_key_value	gv_select_value_double
#else
typedef float GvValue;
typedef uint64_t GvItem;

#define GV_ITEM_BITS	64
#define GV_OF(name)		name##_floats
#define gv_key			gv_select_key
#define gv_key_value	gv_select_value
#endif

#define gv_items_pick	GV_OF(gv_items_pick)
#define gv_items_sort	GV_OF(gv_items_sort)
#define gv_sampleselect_scratch	GV_OF(gv_sampleselect_scratch)
#define gv_sampleselect	GV_OF(gv_sampleselect)
#define gv_ranks_scratch	GV_OF(gv_ranks_scratch)
#define gv_ranks		GV_OF(gv_ranks)

/* The last item of all. */
#define GV_LAST_ITEM	((GvItem) -1 >> (8 * sizeof(GvItem) - GV_ITEM_BITS))

/* Number of items that are handled between two polls. */
#define GV_ITEMS_SLICE	4096

static inline GvItem
gv_item(GvValue value, int64_t position)
{
	return (GvItem) gv_key(value) << 32 | (GvItem) position;
}

static inline GvValue
gv_item_value(GvItem item)
{
	return gv_key_value(item >> 32);
}

static inline uint32_t
gv_item_position(GvItem item)
{
	return (uint32_t) item;
}

/* Makes items of values [n], the first of which has position `first`. */
static inline void
gv_items_load(const GvValue *values, int64_t n, int64_t first, GvItem *items)
{
	int64_t		i;

	for (i = 0; i < n; i++)
		items[i] = gv_item(values[i], first + i);
}

/*
 * gv_items_pick moves the item of the given rank, counted from 0, to the place
 * where sorting would put the item, and moves all smaller items to places
 * before it.  It takes about 3 n steps, and at most 72 n, or
 * 104 n for doubles.
 *
 * gv_items_sort sorts the items.  It takes about n log n steps, and at most as
 * many.
 */
extern bool gv_items_pick(GvItem *items, int64_t n, int64_t rank,
						  GvPoll *poll);
extern bool gv_items_sort(GvItem *items, int64_t n, GvPoll *poll);

/* Constants of SampleSelect (sampleselect.c), which tests use, too. */
#ifndef GV_BUCKET_BITS			/* the bench defines others */
#define GV_BUCKET_BITS	8
#endif
#define GV_BUCKETS		(1 << GV_BUCKET_BITS)
#define GV_NSPLITTERS	(GV_BUCKETS - 1)
#define GV_SAMPLE_ITEMS	(16 * GV_BUCKETS)

/*
 * Maximum number of items that are sorted, or searched for a rank, without
 * being divided into buckets.
 */
#define GV_UNDIVIDED_ITEMS (1 << 16)

/* Maximum number of values that are copied as items where that is faster. */
#define GV_LONG_ROW		(INT64_C(1) << 24)

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
extern bool gv_sampleselect(const GvValue *values, int64_t n, int64_t k,
							void *scratch, GvPoll *poll);
extern size_t gv_ranks_scratch(const GvQuantiles *spec);
extern GvStatus gv_ranks(const GvQuantiles *spec, const void *values,
						 const int64_t *ranks, void *quantiles,
						 int64_t *rank_errors, void *scratch,
						 const GvStop *stop);

/*
 * What select.c calls for a type of values.  The arguments are valid, and the
 * method is not GV_SELECT_AUTO.
 */
typedef struct GvSelectOps
{
	size_t		(*rows_scratch) (const GvSelect *spec);
	GvStatus	(*rows) (const GvSelect *spec, const void *values,
						 uint32_t *positions, void *selected, void *scratch,
						 const GvStop *stop);
	size_t		(*quantiles_scratch) (const GvQuantiles *spec);
	GvStatus	(*quantiles) (const GvQuantiles *spec, const void *values,
							  const int64_t *ranks, void *quantiles,
							  int64_t *rank_errors, void *scratch,
							  const GvStop *stop);
} GvSelectOps;

extern const GvSelectOps gv_select_floats;
extern const GvSelectOps gv_select_doubles;

#endif							/* GV_ITEMS_H */
