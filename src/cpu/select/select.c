/*
 * select.c
 *		The first k items of each row: WarpSelect, quick multi-select, and the
 *		choice of the method.
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
#include "engine/gv_call.h"

#define CHUNK		GV_CPU_COMPARED
#define WAITING		64			/* quickselect runs when more than k + WAITING
								 * items have been appended */

/*
 * GV_SELECT_AUTO chooses WarpSelect if at most one in SPARSE values is
 * selected, because most values are then above WarpSelect's threshold.
 * Otherwise it chooses quick multi-select, which searches no tree of
 * splitters, unless its copy of a row would take more than 128 MB (LONG_ROW
 * items).
 */
#define SPARSE		16
#define LONG_ROW	(INT64_C(1) << 24)

/*
 * Returns the number of items for which WarpSelect needs memory: the k best,
 * those appended to them, and those of a chunk.
 */
static size_t
warp_items(const GvSelect *spec)
{
	return 2 * (size_t) spec->k + WAITING + CHUNK;
}

/*
 * Appends those items of values first .. end - 1 of a row, at most a chunk,
 * that are below the threshold to items [count].  Returns the new number of
 * items.  An item that has the same value as the threshold is above it,
 * because its position is later.
 */
static int64_t
take_below(const float *row, int64_t first, int64_t end, uint64_t threshold,
		   uint64_t *items, int64_t count)
{
	uint64_t	maybe;
	int64_t		i;

	if (threshold == UINT64_MAX || end - first < CHUNK)
	{
		for (i = first; i < end; i++)
		{
			items[count] = gv_item(row[i], i);
			count += items[count] < threshold;
		}
		return count;
	}

	/*
	 * the kernel also sets the bits of NaN values, or all bits if the
	 * threshold is NaN, so compare the items
	 */
	for (maybe = gv_kernels->below(row + first, gv_item_value(threshold));
		 maybe != 0; maybe &= maybe - 1)
	{
		i = first + __builtin_ctzll(maybe);
		items[count] = gv_item(row[i], i);
		count += items[count] < threshold;
	}
	return count;
}

static bool
warp_row(const GvSelect *spec, const float *row, uint64_t *items, GvPoll *poll)
{
	uint64_t	threshold = UINT64_MAX;
	int64_t		most = (int64_t) (warp_items(spec) - CHUNK);
	int64_t		count = 0;
	int64_t		first;

	for (first = 0; first < spec->columns; first += CHUNK)
	{
		int64_t		rest = spec->columns - first;

		if (gv_poll(poll, CHUNK))
			return false;
		count = take_below(row, first, first + (rest < CHUNK ? rest : CHUNK),
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
multi_row(const GvSelect *spec, const float *row, uint64_t *items,
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

const char *
gv_select_name(GvSelectMethod method)
{
	static const char *const names[GV_NSELECT] = {
		[GV_SELECT_AUTO] = "auto",
		[GV_SELECT_WARP] = "warp",
		[GV_SELECT_SAMPLE] = "sample",
		[GV_SELECT_MULTI] = "multi",
	};

	return names[method];
}

static bool
valid_spec(const GvSelect *spec)
{
	return spec != NULL &&
		spec->columns >= 1 && spec->columns <= GV_SELECT_MAX_N &&
		spec->rows >= 1 && spec->rows <= INT64_MAX / 8 / spec->columns &&
		spec->k >= 1 && spec->k <= spec->columns &&
		(uint32_t) spec->method < GV_NSELECT &&
		(spec->method != GV_SELECT_WARP || spec->k <= GV_WARP_MAX_K);
}

GvSelectMethod
gv_select_choose(const GvSelect *spec)
{
	if (!valid_spec(spec))
		return GV_SELECT_AUTO;
	if (spec->method != GV_SELECT_AUTO)
		return spec->method;
	if (spec->k <= GV_WARP_MAX_K && spec->k <= spec->columns / SPARSE)
		return GV_SELECT_WARP;
	return spec->columns <= LONG_ROW ? GV_SELECT_MULTI : GV_SELECT_SAMPLE;
}

size_t
gv_select_scratch(const GvSelect *spec)
{
	GvSelectMethod method = gv_select_choose(spec);

	if (method == GV_SELECT_SAMPLE)
		return gv_sampleselect_scratch(spec->k);
	return method == GV_SELECT_AUTO ? 0 : sizeof(uint64_t) *
		(method == GV_SELECT_WARP ? warp_items(spec) : (size_t) spec->columns);
}

GvStatus
gv_select(const GvSelect *spec, const float *values, uint32_t *positions,
		  float *selected, void *scratch, const GvStop *stop)
{
	uint64_t   *items = scratch;	/* begins with the first k items of a row */
	GvPoll		poll = {stop, 0};
	GvSelectMethod chosen;
	int64_t		row;

	GV_CALL(gv_engine_calls, valid_spec(spec) && values != NULL &&
			positions != NULL && selected != NULL &&
			gv_valid_scratch(scratch) && gv_valid_stop(stop));
	chosen = gv_select_choose(spec);
	for (row = 0; row < spec->rows; row++)
	{
		int64_t		first = row * spec->k;
		const float *from = values + row * spec->columns;
		bool		done;
		int32_t		i;

		if (chosen == GV_SELECT_WARP)
			done = warp_row(spec, from, items, &poll);
		else if (chosen == GV_SELECT_SAMPLE)
			done = gv_sampleselect(from, spec->columns, spec->k, items, &poll);
		else
			done = multi_row(spec, from, items, &poll);
		if (!done)
			return GV_CANCELED;
		for (i = 0; i < spec->k; i++)
		{
			positions[first + i] = gv_item_position(items[i]);
			selected[first + i] = gv_item_value(items[i]);
		}
	}
	return GV_OK;
}
