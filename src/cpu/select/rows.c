/*
 * rows.c
 *		The first k items of each row, by WarpSelect, quick multi-select or
 *		SampleSelect.
 *
 * WarpSelect keeps a threshold, as the paper's queues do: the k-th of the
 * items seen so far.  A row's items below the threshold are appended to the k
 * best items.  When more than k + WAITING items have been appended,
 * quickselect keeps the k best of all, and the threshold falls.
 *
 * Sources: Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs",
 * 2017, section 4.2 (WarpSelect); quick multi-select: see multiselect.c.
 */
#include "cpu/select/items.h"
#include "cpu/simd/kernels.h"

#define COMPARED	GV_CPU_COMPARED
#define WAITING		64			/* quickselect runs when more than k + WAITING
								 * items have been appended */

/*
 * Returns the number of items for which WarpSelect needs memory: the k best,
 * those appended to them, and those of a chunk.
 */
static size_t
warp_items(const GvSelect *spec)
{
	return 2 * (size_t) spec->k + WAITING + COMPARED;
}

/*
 * Appends those items of values first .. end - 1 of a row, at most a chunk,
 * that are below the threshold to items [count].  Returns the new number of
 * items.  An item that has the same value as the threshold is above it,
 * because its position is later.
 */
static int64_t
take_below(const GvValue *row, int64_t first, int64_t end, GvItem threshold,
		   GvItem *items, int64_t count)
{
	GvValue		limit = gv_item_value(threshold);
	int64_t		i;

#ifndef GV_DOUBLES
	if (threshold != GV_LAST_ITEM && end - first == COMPARED)
	{
		uint64_t	maybe;

		/*
		 * the kernel also sets the bits of NaN values, or all bits if the
		 * threshold is NaN, so compare the items
		 */
		for (maybe = gv_kernels->below(row + first, limit); maybe != 0;
			 maybe &= maybe - 1)
		{
			i = first + __builtin_ctzll(maybe);
			items[count] = gv_item(row[i], i);
			count += items[count] < threshold;
		}
		return count;
	}
#endif
	for (i = first; i < end; i++)
	{
		if (row[i] > limit)
			continue;
		items[count] = gv_item(row[i], i);
		count += items[count] < threshold;
	}
	return count;
}

static bool
warp_row(const GvSelect *spec, const GvValue *row, GvItem *items, GvPoll *poll)
{
	GvItem		threshold = GV_LAST_ITEM;
	int64_t		most = (int64_t) (warp_items(spec) - COMPARED);
	int64_t		count = 0;
	int64_t		first;

	for (first = 0; first < spec->columns; first += COMPARED)
	{
		int64_t		rest = spec->columns - first;

		if (gv_poll(poll, COMPARED))
			return false;
		count = take_below(row, first, first + (rest < COMPARED ? rest : COMPARED),
						   threshold, items, count);
		if (count <= most)
			continue;
		if (!gv_items_pick(items, count, spec->k - 1, poll))
			return false;
		count = spec->k;
		threshold = items[count - 1];
	}
	return gv_items_pick(items, count, spec->k - 1, poll) &&
		gv_items_sort(items, spec->k, poll);
}

static bool
multi_row(const GvSelect *spec, const GvValue *row, GvItem *items,
		  GvPoll *poll)
{
	int64_t		first;

	for (first = 0; first < spec->columns; first += GV_ITEMS_SLICE)
	{
		int64_t		count = spec->columns - first;

		if (gv_poll(poll, GV_ITEMS_SLICE))
			return false;
		gv_items_load(row + first,
					  count < GV_ITEMS_SLICE ? count : GV_ITEMS_SLICE, first,
					  items + first);
	}
	return gv_items_pick(items, spec->columns, spec->k - 1, poll) &&
		gv_items_sort(items, spec->k, poll);
}

/* Implements GvSelectOps.rows_scratch. */
static size_t
rows_scratch(const GvSelect *spec)
{
	if (spec->method == GV_SELECT_SAMPLE)
		return gv_sampleselect_scratch(spec->k);
	return sizeof(GvItem) * (spec->method == GV_SELECT_WARP ?
							 warp_items(spec) : (size_t) spec->columns);
}

/* Implements GvSelectOps.rows. */
static GvStatus
rows(const GvSelect *spec, const void *values, uint32_t *positions,
	 void *selected, void *scratch, const GvStop *stop)
{
	GvItem	   *items = scratch;	/* begins with the first k items of a row */
	GvValue    *found = selected;
	GvPoll		poll = {stop, 0};
	int64_t		row;

	for (row = 0; row < spec->rows; row++)
	{
		int64_t		first = row * spec->k;
		const GvValue *from = (const GvValue *) values + row * spec->columns;
		bool		done;
		int32_t		i;

		if (spec->method == GV_SELECT_WARP)
			done = warp_row(spec, from, items, &poll);
		else if (spec->method == GV_SELECT_SAMPLE)
			done = gv_sampleselect(from, spec->columns, spec->k, items, &poll);
		else
			done = multi_row(spec, from, items, &poll);
		if (!done)
			return GV_CANCELED;
		for (i = 0; i < spec->k; i++)
		{
			positions[first + i] = gv_item_position(items[i]);
			found[first + i] = gv_item_value(items[i]);
		}
	}
	return GV_OK;
}

const GvSelectOps
GV_OF(gv_select) =
{
	.rows_scratch = rows_scratch,
		.rows = rows,
		.quantiles_scratch = gv_ranks_scratch,
		.quantiles = gv_ranks,
};
