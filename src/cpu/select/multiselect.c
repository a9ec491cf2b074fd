/*
 * multiselect.c
 *		Quickselect and quicksort of distinct items, in place.  Quick
 *		multi-select uses them for a row on one processor.
 *
 * The pivot is one of nine items that are evenly spread: the median of three
 * medians of three.  Whatever the input, some of the other eight items are
 * smaller and some are greater, so neither side is empty.  If splits are
 * uneven again and again, as in inputs made for that purpose, the pivot
 * becomes the middle of the range of numbers that the items span.  Such a
 * pivot halves the range, so GV_ITEM_BITS splits are enough.
 *
 * Sources: Hoare, "Algorithm 65: Find", 1961; Bentley, McIlroy, "Engineering a
 * sort function", 1993 (the nine items); Govindaraju et al., "Fast computation
 * of database operations using graphics processors", 2004 (the middle of the
 * range); Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014, Algorithm 1 (quick multi-select).
 */
#include "cpu/select/items.h"

#define INSERTION	16			/* items that insertion sort sorts, at most */
#define PATIENCE	8			/* uneven splits before the range is halved */

static inline GvItem
smaller(GvItem a, GvItem b)
{
	return a < b ? a : b;
}

static inline GvItem
greater(GvItem a, GvItem b)
{
	return a < b ? b : a;
}

static inline GvItem
median(GvItem a, GvItem b, GvItem c)
{
	return greater(smaller(a, b), smaller(greater(a, b), c));
}

/* Returns a pivot for more than INSERTION items. */
static GvItem
ninther(const GvItem *items, int64_t n)
{
	GvItem		medians[3];
	int64_t		step = (n - 1) / 8;
	int			i;

	for (i = 0; i < 3; i++)
		medians[i] = median(items[3 * i * step], items[(3 * i + 1) * step],
							items[(3 * i + 2) * step]);
	return median(medians[0], medians[1], medians[2]);
}

/*
 * Sets *pivot to the middle of the range that the items span, rounded up, so
 * that the least item is below the pivot.
 */
static bool
middle(const GvItem *items, int64_t n, GvItem *pivot, GvPoll *poll)
{
	GvItem		least = GV_LAST_ITEM;
	GvItem		most = 0;
	int64_t		i = 0;

	while (i < n)
	{
		int64_t		end = n - i > GV_ITEMS_SLICE ? i + GV_ITEMS_SLICE : n;

		if (gv_poll(poll, end - i))
			return false;
		for (; i < end; i++)
		{
			least = smaller(least, items[i]);
			most = greater(most, items[i]);
		}
	}
	*pivot = least + (most - least) / 2 + 1;
	return true;
}

/*
 * Moves the items below the pivot to the front.  Returns their number, or -1
 * if the caller must give up.  The inner loop has no branch, because the
 * outcome of the comparison cannot be predicted.
 */
static int64_t
split(GvItem *items, int64_t n, GvItem pivot, GvPoll *poll)
{
	int64_t		nbefore = 0;
	int64_t		i = 0;

	while (i < n)
	{
		int64_t		end = n - i > GV_ITEMS_SLICE ? i + GV_ITEMS_SLICE : n;

		if (gv_poll(poll, 2 * (end - i)))
			return -1;
		for (; i < end; i++)
		{
			GvItem		item = items[i];

			items[i] = items[nbefore];
			items[nbefore] = item;
			nbefore += item < pivot;
		}
	}
	return nbefore;
}

/*
 * Chooses a pivot, and splits n > INSERTION items by it.  Lowers *patience if
 * the split is uneven.  Returns the number of items below the pivot, 1 .. n -
 * 1, or -1 if the caller must give up.
 */
static int64_t
split_somewhere(GvItem *items, int64_t n, int *patience, GvPoll *poll)
{
	GvItem		pivot;
	int64_t		nbefore;

	if (*patience > 0)
		pivot = ninther(items, n);
	else if (!middle(items, n, &pivot, poll))
		return -1;
	nbefore = split(items, n, pivot, poll);
	if (nbefore < n / 16 || nbefore > n - n / 16)
		*patience -= 1;
	return nbefore;
}

static void
insertion_sort(GvItem *items, int64_t n)
{
	int64_t		i;

	for (i = 1; i < n; i++)
	{
		GvItem		item = items[i];
		int64_t		hole = i;

		for (; hole > 0 && item < items[hole - 1]; hole--)
			items[hole] = items[hole - 1];
		items[hole] = item;
	}
}

bool
gv_items_pick(GvItem *items, int64_t n, int64_t rank, GvPoll *poll)
{
	int			patience = PATIENCE;

	while (n > INSERTION)
	{
		int64_t		nbefore = split_somewhere(items, n, &patience, poll);

		if (nbefore < 0)
			return false;
		if (rank < nbefore)
			n = nbefore;
		else
		{
			items += nbefore;
			rank -= nbefore;
			n -= nbefore;
		}
	}
	insertion_sort(items, n);
	return true;
}

/*
 * Sorts items.  Calls itself for the shorter part only, so that calls are no
 * deeper than log2 n.
 */
static bool
sort_part(GvItem *items, int64_t n, int patience, GvPoll *poll)
{
	while (n > INSERTION)
	{
		int64_t		nbefore = split_somewhere(items, n, &patience, poll);
		bool		first = nbefore < n - nbefore;

		if (nbefore < 0)
			return false;
		if (!sort_part(first ? items : items + nbefore,
					   first ? nbefore : n - nbefore, patience, poll))
			return false;
		if (first)
			items += nbefore;
		n = first ? n - nbefore : nbefore;
	}
	insertion_sort(items, n);
	return true;
}

bool
gv_items_sort(GvItem *items, int64_t n, GvPoll *poll)
{
	return sort_part(items, n, PATIENCE, poll);
}
