/*
 * exactlists.c
 *		Exact search among the rows of near lists only.
 *
 * Rows and queries are ordered by list (gv_nearlists.h).  A tile of queries of
 * one list is compared with the panels of the lists near to that list, the
 * nearest list first, so that limits fall before most rows are compared.
 */
#include "cpu/exact/gv_exactset.h"

#include <string.h>

/* Makes panel number `panel` from n rows of one list. */
static void
gather_panel(GvExact *exact, const int32_t *places, int n, int32_t panel)
{
	int64_t		dims = exact->spec.dims;
	const float *rows = exact->lists->rows;
	int			i;

	for (i = 0; i < n; i++)
		memcpy(exact->gathered + i * dims, rows + places[i] * dims,
			   sizeof(float) * (size_t) dims);
	gv_prefilter_rows(&exact->prefilter, exact->gathered, n, exact->placed,
					  exact->panels + panel * gv_prefilter_panel((int32_t) dims),
					  exact->squares + panel * (int64_t) GV_PREFILTER_ROWS);
}

/*
 * Makes the panels of the block's lists from `from` on, of as many lists as
 * fit the memory.  At least one list fits, because no list has more rows than
 * the block.  Returns the first list that is left, or -1 if the caller must
 * give up.
 */
static int32_t
gather_panels(GvExact *exact, int32_t from, GvPoll *poll)
{
	GvNearLists *lists = exact->lists;
	int64_t		dims = exact->spec.dims;
	int32_t		npanels = 0;
	int32_t		list;

	for (list = from; list < exact->spec.nlists; list++)
	{
		int64_t		first = lists->row_starts[list];
		int64_t		n = lists->row_starts[list + 1] - first;
		int64_t		done;

		if (npanels + (n + GV_PREFILTER_ROWS - 1) / GV_PREFILTER_ROWS >
			exact->npanels)
			break;
		lists->panels[list] = npanels;
		for (done = 0; done < n; done += GV_PREFILTER_ROWS)
		{
			if (gv_poll(poll, 8 * GV_PREFILTER_ROWS * dims))
				return -1;
			gather_panel(exact, lists->row_order + first + done,
						 n - done < GV_PREFILTER_ROWS ? (int) (n - done) :
						 GV_PREFILTER_ROWS, npanels++);
		}
	}
	return list;
}

/*
 * Compares a tile of queries, which gv_exact_place has placed, with the rows
 * of a list.
 */
static bool
pair_list(GvExact *exact, GvPairing *pairing, int32_t list, GvPoll *poll)
{
	const GvNearLists *lists = exact->lists;
	int64_t		panel = lists->panels[list];
	int64_t		next = lists->row_starts[list];
	int64_t		end = lists->row_starts[list + 1];

	for (; next < end; next += GV_PREFILTER_ROWS)
	{
		pairing->places = lists->row_order + next;
		pairing->nrows = end - next < GV_PREFILTER_ROWS ? (int) (end - next) :
			GV_PREFILTER_ROWS;
		pairing->panel = exact->panels +
			panel * gv_prefilter_panel(exact->spec.dims);
		pairing->squares = exact->squares + panel * GV_PREFILTER_ROWS;
		if (!gv_exact_pairs(exact, pairing, poll))
			return false;
		panel++;
	}
	return true;
}

/*
 * Compares the queries of a list with the rows of those near lists that are in
 * from .. to - 1.
 */
static bool
pair_near(GvExact *exact, int32_t list, int32_t from, int32_t to, GvPoll *poll)
{
	const GvNearLists *lists = exact->lists;
	const int32_t *near = lists->near + list * (int64_t) exact->spec.probes;
	GvPairing	pairing = {.rows = lists->rows, .first = lists->first};
	int64_t		next = lists->query_starts[list];
	int64_t		end = lists->query_starts[list + 1];
	int32_t		i;

	for (; next < end; next += GV_EXACT_QUERIES)
	{
		pairing.queries = lists->query_order + next;
		pairing.nqueries = end - next < GV_EXACT_QUERIES ? (int) (end - next) :
			GV_EXACT_QUERIES;
		gv_exact_place(exact, pairing.queries, pairing.nqueries);
		if (gv_poll(poll, exact->spec.probes +
					8 * (int64_t) GV_EXACT_QUERIES * exact->spec.dims))
			return false;
		for (i = 0; i < exact->spec.probes; i++)
			if (near[i] >= from && near[i] < to &&
				!pair_list(exact, &pairing, near[i], poll))
				return false;
	}
	return true;
}

GvStatus
gv_exact_search_lists(GvExact *exact, const GvStop *stop)
{
	GvNearLists *lists = exact->lists;
	GvPoll		poll = {stop, 0};
	GvStatus	status;
	int32_t		from;
	int32_t		to;
	int32_t		list;

	if (lists->nrows == 0)
		return GV_OK;
	status = gv_near_lists_sort(lists, exact->queries, stop);
	if (status != GV_OK)
		return status;
	if (!exact->prefilter.is_fitted &&
		!gv_exact_prepare(exact, lists->rows, lists->nrows, &poll))
		return GV_CANCELED;
	for (from = 0; from < exact->spec.nlists; from = to)
	{
		to = gather_panels(exact, from, &poll);
		if (to < 0)
			return GV_CANCELED;
		for (list = 0; list < exact->spec.nlists; list++)
			if (!pair_near(exact, list, from, to, &poll))
				return GV_CANCELED;
	}
	gv_near_lists_next(lists);
	return GV_OK;
}

GvStatus
gv_exact_put_listed(GvExact *exact, const float *rows, int64_t n,
					const GvStop *stop)
{
	int64_t		done = 0;

	while (done < n)
	{
		done += gv_near_lists_add(exact->lists,
								  rows + done * exact->spec.dims, n - done);
		if (exact->lists->nrows == exact->lists->capacity)
		{
			GvStatus	status = gv_exact_search_lists(exact, stop);

			if (status != GV_OK)
				return status;
		}
	}
	return GV_OK;
}
