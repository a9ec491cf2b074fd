/*
 * exactset.c
 *		Exact search over rows that come by batches.
 *
 * Rows become panels, a block of them at a time, and all queries are
 * multiplied with them, a tile at a time: what a screen (gv_screen.h) cannot
 * discard is measured by gv_set_distance.  A query's limit falls with its first
 * rows, so of n rows in random order about k (1 + log(n / k)) are measured.
 *
 * With lists (gv_nearlists.h) blocks are larger, their rows and the queries lie
 * by lists, and a tile of queries of one list meets the panels of lists near to
 * it, the nearest first.  Where all lists are near they make no difference.
 *
 * Memory, besides queries and what they have found: a block.
 */
#include <math.h>
#include <string.h>

#include "cpu/gv_cpu_set.h"
#include "cpu/gv_nearlists.h"
#include "cpu/gv_screen.h"

#define TILE_QUERIES	GV_CPU_TILE_ROWS
#define BLOCK_FLOATS	(1 << 21)	/* of its panels, for large dims */
#define BLOCK_PANELS	8
#define FEW_QUERIES		4		/* below this panels do not pay */

typedef struct Exact
{
	GvSetSpec	spec;
	int64_t		kept;			/* neighbours that there can be: <= k */
	float	   *queries;		/* [nqueries][dims] */
	int64_t    *self;			/* [nqueries], with spec.self */
	GvNear	   *nearest;		/* [nqueries][kept] */
	GvScreen	screen;
	float	   *mean;			/* [dims] of the screen */
	GvScreened *screened;		/* [nqueries] */
	float	   *limits;			/* [nqueries] */
	int32_t		npanels;		/* of a block */
	float	   *placed;			/* [TILE_QUERIES][dims] rows or queries */
	float	   *panels;			/* [npanels] see gv_screen_panel */
	float	   *squares;		/* [npanels][GV_SCREEN_ROWS] */
	float	   *products;		/* [TILE_QUERIES][GV_SCREEN_ROWS] */

	/* without lists */
	int64_t		tile[TILE_QUERIES]; /* numbers of queries */
	int32_t		in_order[GV_SCREEN_ROWS];	/* 0, 1, 2, .. */

	/* with lists, else NULL */
	GvNearLists *lists;
	float	   *gathered;		/* [GV_SCREEN_ROWS][dims] rows of a panel */
} Exact;

/* A panel and the queries that it meets. */
typedef struct Meeting
{
	const float *rows;			/* [..][dims] */
	int64_t		first;			/* the first row's position */
	const int32_t *places;		/* [nrows] where the panel's rows are */
	int			nrows;			/* <= GV_SCREEN_ROWS */
	const float *panel;
	const float *squares;		/* [GV_SCREEN_ROWS] */
	const int64_t *queries;		/* [nqueries] their numbers */
	int			nqueries;		/* <= TILE_QUERIES */
} Meeting;

/* Do lists make a difference? */
static bool
has_lists(const GvSetSpec *spec)
{
	return spec->probes < spec->nlists;
}

static int64_t
kept_of(const GvSetSpec *spec)
{
	return spec->k < spec->nrows ? spec->k : spec->nrows;
}

static int32_t
panels_of(const GvSetSpec *spec)
{
	int32_t		most = (int32_t) (BLOCK_FLOATS / gv_screen_panel(spec->dims));

	if (has_lists(spec))
		return gv_near_lists_panels(spec);
	if (most < 1)
		return 1;
	return most < BLOCK_PANELS ? most : BLOCK_PANELS;
}

/* See gv_set_size. */
static int64_t
cpu_size(const GvSetSpec *spec)
{
	int64_t		query = (int64_t) sizeof(float) * (spec->dims + 1) +
		(int64_t) sizeof(int64_t) * spec->self +
		(int64_t) sizeof(GvNear) * kept_of(spec) +
		(int64_t) sizeof(GvScreened);
	int64_t		block = (int64_t) gv_screen_panel(spec->dims) *
		panels_of(spec) + (int64_t) TILE_QUERIES * spec->dims;
	int64_t		lists = has_lists(spec) ? gv_near_lists_size(spec) : 0;

	return spec->nqueries * query + (int64_t) sizeof(float) * block + lists;
}

static void
cpu_drop(void *state)
{
	Exact	   *exact = state;

	free(exact->queries);
	free(exact->self);
	free(exact->nearest);
	free(exact->mean);
	free(exact->screened);
	free(exact->limits);
	free(exact->placed);
	free(exact->panels);
	free(exact->squares);
	free(exact->products);
	gv_near_lists_drop(exact->lists);
	free(exact->gathered);
	free(exact);
}

/* The memory of a set; false: there is none. */
static bool
take_memory(Exact *exact)
{
	const GvSetSpec *spec = &exact->spec;
	int64_t		panel = (int64_t) gv_screen_panel(spec->dims);
	int64_t		n = spec->nqueries;

	exact->queries = gv_cpu_take(n * spec->dims, sizeof(float));
	exact->self = gv_cpu_take(spec->self ? n : 0, sizeof(int64_t));
	exact->nearest = gv_cpu_take(n * exact->kept, sizeof(GvNear));
	exact->mean = gv_cpu_take(spec->dims, sizeof(float));
	exact->screened = gv_cpu_take(n, sizeof(GvScreened));
	exact->limits = gv_cpu_take(n, sizeof(float));
	exact->placed = gv_cpu_take((int64_t) TILE_QUERIES * spec->dims,
								sizeof(float));
	exact->panels = gv_cpu_take(exact->npanels * panel, sizeof(float));
	exact->squares = gv_cpu_take(exact->npanels * (int64_t) GV_SCREEN_ROWS,
								 sizeof(float));
	exact->products = gv_cpu_take(TILE_QUERIES * GV_SCREEN_ROWS,
								  sizeof(float));
	exact->gathered = gv_cpu_take((int64_t) GV_SCREEN_ROWS * spec->dims,
								  sizeof(float));
	if (has_lists(spec))
		exact->lists = gv_near_lists_make(spec);
	return exact->queries != NULL && exact->self != NULL &&
		exact->nearest != NULL && exact->mean != NULL &&
		exact->screened != NULL && exact->limits != NULL &&
		exact->placed != NULL && exact->panels != NULL &&
		exact->squares != NULL && exact->products != NULL &&
		exact->gathered != NULL &&
		(exact->lists != NULL || !has_lists(spec));
}

/* See gv_set_create. */
static GvStatus
cpu_create(const GvSetSpec *spec, void **state)
{
	Exact	   *made = calloc(1, sizeof(Exact));
	int			i;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->kept = kept_of(spec);
	made->npanels = panels_of(spec);
	if (!take_memory(made))
	{
		cpu_drop(made);
		return GV_NO_MEMORY;
	}
	gv_screen_reset(&made->screen, (GvSetMetric) spec->metric, spec->dims,
					made->mean);
	for (i = 0; i < GV_SCREEN_ROWS; i++)
		made->in_order[i] = i;
	*state = made;
	return GV_OK;
}

/* Queries [n], the first of which has number `first`. */
static GvStatus
put_queries(Exact *exact, const float *queries, int64_t first, int64_t n,
			const GvStop *stop)
{
	GvPoll		poll = {stop, 0};
	int64_t		dims = exact->spec.dims;
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		if (gv_poll(&poll, dims + exact->kept))
			return GV_CANCELLED;
		memcpy(exact->queries + (first + i) * dims, queries + i * dims,
			   sizeof(float) * (size_t) dims);
		gv_nearest_reset(exact->nearest + (first + i) * exact->kept,
						 exact->kept);
	}
	return GV_OK;
}

/* A query's neighbours, the last of them first. */
static GvNear *
nearest_of(const Exact *exact, int64_t query)
{
	return exact->nearest + query * exact->kept;
}

/* Measure a pair.  True when the query's last neighbour is another now. */
static bool
measure(Exact *exact, int64_t query, const float *row, int64_t position)
{
	const GvSetSpec *spec = &exact->spec;
	GvNear	   *nearest = nearest_of(exact, query);
	GvNear		last = nearest[0];
	double		distance;

	if (spec->self && exact->self[query] == position)
		return false;
	/* rows do not come in their order, so that many would be measured */
	if (exact->lists != NULL && last.distance != last.distance &&
		last.position < position && exact->screened[query].is_null)
		return false;
	distance = gv_set_distance((GvSetMetric) spec->metric,
							   exact->queries + query * spec->dims, row,
							   spec->dims);
	gv_nearest_push(nearest, exact->kept, distance, position);
	return nearest[0].position != last.position;
}

/*
 * What the fp32 square of a row's distance to a query must not exceed.  It is
 * off by (dims / 16 + 6) u of itself, unless it overflows, because no term is
 * negative; twice that, and FLT_MIN for what underflows.
 */
static float
direct_limit(const Exact *exact, int64_t query)
{
	double		last = nearest_of(exact, query)[0].distance;
	double		slack = (exact->spec.dims / 8 + 32) * GV_FILTER_UNIT;
	double		limit = last * last * (1.0 + slack) + FLT_MIN;

	return limit < 1e36 ? (float) limit : HUGE_VALF;
}

/* n <= GV_SCREEN_ROWS rows and one query. */
static void
measure_some(Exact *exact, int64_t query, const float *rows, int64_t first,
			 int n)
{
	int64_t		dims = exact->spec.dims;
	bool		direct = exact->spec.metric == GV_SET_L2;
	float		limit = HUGE_VALF;
	float		squares[GV_SCREEN_ROWS];
	int			i;

	if (direct)
	{
		limit = direct_limit(exact, query);
		gv_kernels->sqdists(exact->queries + query * dims, rows, n,
							exact->spec.dims, squares);
	}
	for (i = 0; i < n; i++)
	{
		if (direct && squares[i] > limit)
			continue;
		if (measure(exact, query, rows + i * dims, first + i) && direct)
			limit = direct_limit(exact, query);
	}
}

/* Rows [n] and all queries, which are few: panels would not pay. */
static GvStatus
measure_rows(Exact *exact, const float *rows, int64_t first, int64_t n,
			 const GvStop *stop)
{
	int64_t		dims = exact->spec.dims;
	GvPoll		poll = {stop, 0};
	int64_t		query;
	int64_t		done;

	for (done = 0; done < n; done += GV_SCREEN_ROWS)
		for (query = 0; query < exact->spec.nqueries; query++)
		{
			if (gv_poll(&poll, 4 * GV_SCREEN_ROWS * dims))
				return GV_CANCELLED;
			measure_some(exact, query, rows + done * dims, first + done,
						 n - done < GV_SCREEN_ROWS ? (int) (n - done) :
						 GV_SCREEN_ROWS);
		}
	return GV_OK;
}

/* What a query's rows must not exceed, from what it has found. */
static float
limit_of(const Exact *exact, int64_t query)
{
	const GvScreened *screened = &exact->screened[query];

	/* earlier rows may come later; all are as far */
	if (exact->lists != NULL && screened->is_null)
		return HUGE_VALF;
	return gv_screen_limit(&exact->screen, screened,
						   nearest_of(exact, query)[0]);
}

/* With the first rows: the screen, and what it has to know of queries. */
static bool
prepare(Exact *exact, const float *rows, int64_t n, GvPoll *poll)
{
	const GvSetSpec *spec = &exact->spec;
	int64_t		query;

	gv_screen_fit(&exact->screen, rows, n < TILE_QUERIES ? n : TILE_QUERIES,
				  exact->placed);
	for (query = 0; query < spec->nqueries; query++)
	{
		if (gv_poll(poll, 8 * (int64_t) spec->dims))
			return false;
		exact->screened[query] =
			gv_screen_query(&exact->screen,
							exact->queries + query * spec->dims,
							exact->placed);
		exact->limits[query] = limit_of(exact, query);
	}
	return true;
}

/* Measure what of a panel comes through the screen of one query. */
static bool
sift(Exact *exact, const Meeting *meeting, int i, GvPoll *poll)
{
	const float *products = exact->products + i * GV_SCREEN_ROWS;
	int64_t		query = meeting->queries[i];
	float	   *limit = &exact->limits[query];
	uint64_t	left = gv_kernels->within(meeting->squares, products, *limit);

	if (meeting->nrows < GV_SCREEN_ROWS)
		left &= (UINT64_C(1) << meeting->nrows) - 1;
	for (; left != 0; left &= left - 1)
	{
		int			row = __builtin_ctzll(left);
		int64_t		place;

		/* the limit may have fallen since */
		if (meeting->squares[row] - 2.0f * products[row] > *limit)
			continue;
		if (gv_poll(poll, 4 * (int64_t) exact->spec.dims))
			return false;
		place = meeting->places[row];
		if (measure(exact, query, meeting->rows + place * exact->spec.dims,
					meeting->first + place))
			*limit = limit_of(exact, query);
	}
	return true;
}

/* A panel and a tile of queries, which lie in exact->placed. */
static bool
meet(Exact *exact, const Meeting *meeting, GvPoll *poll)
{
	int32_t		dims = exact->spec.dims;
	int32_t		first;
	int			i;

	if (gv_poll(poll, (int64_t) meeting->nqueries * GV_SCREEN_ROWS * dims))
		return false;
	memset(exact->products, 0,
		   sizeof(float) * meeting->nqueries * GV_SCREEN_ROWS);
	for (first = 0; first < dims; first += GV_CPU_SLICE_DIMS)
		gv_kernels->estimate(exact->placed + first, dims, meeting->nqueries,
							 dims - first < GV_CPU_SLICE_DIMS ?
							 dims - first : GV_CPU_SLICE_DIMS,
							 meeting->panel + (size_t) first * GV_SCREEN_ROWS,
							 exact->products);
	for (i = 0; i < meeting->nqueries; i++)
		if (!sift(exact, meeting, i, poll))
			return false;
	return true;
}

/* The panels of a block of n rows. */
static bool
make_panels(Exact *exact, const float *rows, int64_t n, GvPoll *poll)
{
	int64_t		dims = exact->spec.dims;
	int32_t		p;

	for (p = 0; p * (int64_t) GV_SCREEN_ROWS < n; p++)
	{
		int64_t		done = p * (int64_t) GV_SCREEN_ROWS;

		if (gv_poll(poll, 8 * GV_SCREEN_ROWS * dims))
			return false;
		gv_screen_rows(&exact->screen, rows + done * dims,
					   n - done < GV_SCREEN_ROWS ? (int) (n - done) :
					   GV_SCREEN_ROWS, exact->placed,
					   exact->panels + p * gv_screen_panel((int32_t) dims),
					   exact->squares + done);
	}
	return true;
}

/* The queries of a tile, to be multiplied with panels. */
static void
place_queries(Exact *exact, const int64_t *queries, int n)
{
	int64_t		dims = exact->spec.dims;
	int			i;

	for (i = 0; i < n; i++)
		gv_screen_place(&exact->screen, &exact->screened[queries[i]],
						exact->queries + queries[i] * dims,
						exact->placed + i * dims);
}

/* A block of n rows and all queries. */
static bool
screen_block(Exact *exact, const float *rows, int64_t first, int64_t n,
			 GvPoll *poll)
{
	const GvSetSpec *spec = &exact->spec;
	Meeting		meeting = {.queries = exact->tile,.places = exact->in_order};
	int64_t		query;
	int64_t		done;
	int			i;

	if (!make_panels(exact, rows, n, poll))
		return false;
	for (query = 0; query < spec->nqueries; query += TILE_QUERIES)
	{
		int64_t		left = spec->nqueries - query;

		meeting.nqueries = left < TILE_QUERIES ? (int) left : TILE_QUERIES;
		for (i = 0; i < meeting.nqueries; i++)
			exact->tile[i] = query + i;
		place_queries(exact, exact->tile, meeting.nqueries);
		meeting.panel = exact->panels;
		for (done = 0; done < n; done += GV_SCREEN_ROWS)
		{
			meeting.rows = rows + done * spec->dims;
			meeting.first = first + done;
			meeting.nrows = n - done < GV_SCREEN_ROWS ? (int) (n - done) :
				GV_SCREEN_ROWS;
			meeting.squares = exact->squares + done;
			if (!meet(exact, &meeting, poll))
				return false;
			meeting.panel += gv_screen_panel(spec->dims);
		}
	}
	return true;
}

/* A panel of rows of one list. */
static void
gather_panel(Exact *exact, const int32_t *places, int n, int32_t panel)
{
	int64_t		dims = exact->spec.dims;
	const float *rows = exact->lists->rows;
	int			i;

	for (i = 0; i < n; i++)
		memcpy(exact->gathered + i * dims, rows + places[i] * dims,
			   sizeof(float) * (size_t) dims);
	gv_screen_rows(&exact->screen, exact->gathered, n, exact->placed,
				   exact->panels + panel * gv_screen_panel((int32_t) dims),
				   exact->squares + panel * (int64_t) GV_SCREEN_ROWS);
}

/*
 * The panels of the block's lists from `from` on, as many lists as there is
 * room for, at least one, since no list has more rows than the block.  Returns
 * the first list that is left, -1 when cancelled.
 */
static int32_t
gather_panels(Exact *exact, int32_t from, GvPoll *poll)
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

		if (npanels + (n + GV_SCREEN_ROWS - 1) / GV_SCREEN_ROWS >
			exact->npanels)
			break;
		lists->panels[list] = npanels;
		for (done = 0; done < n; done += GV_SCREEN_ROWS)
		{
			if (gv_poll(poll, 8 * GV_SCREEN_ROWS * dims))
				return -1;
			gather_panel(exact, lists->row_order + first + done,
						 n - done < GV_SCREEN_ROWS ? (int) (n - done) :
						 GV_SCREEN_ROWS, npanels++);
		}
	}
	return list;
}

/* A tile of queries, which are placed, and the rows of a list. */
static bool
meet_list(Exact *exact, Meeting *meeting, int32_t list, GvPoll *poll)
{
	const GvNearLists *lists = exact->lists;
	int64_t		panel = lists->panels[list];
	int64_t		next = lists->row_starts[list];
	int64_t		end = lists->row_starts[list + 1];

	for (; next < end; next += GV_SCREEN_ROWS)
	{
		meeting->places = lists->row_order + next;
		meeting->nrows = end - next < GV_SCREEN_ROWS ? (int) (end - next) :
			GV_SCREEN_ROWS;
		meeting->panel = exact->panels +
			panel * gv_screen_panel(exact->spec.dims);
		meeting->squares = exact->squares + panel * GV_SCREEN_ROWS;
		if (!meet(exact, meeting, poll))
			return false;
		panel++;
	}
	return true;
}

/* The queries of a list and the rows of near lists from .. to - 1. */
static bool
meet_near(Exact *exact, int32_t list, int32_t from, int32_t to, GvPoll *poll)
{
	const GvNearLists *lists = exact->lists;
	const int32_t *near = lists->near + list * (int64_t) exact->spec.probes;
	Meeting		meeting = {.rows = lists->rows,.first = lists->first};
	int64_t		next = lists->query_starts[list];
	int64_t		end = lists->query_starts[list + 1];
	int32_t		i;

	for (; next < end; next += TILE_QUERIES)
	{
		meeting.queries = lists->query_order + next;
		meeting.nqueries = end - next < TILE_QUERIES ? (int) (end - next) :
			TILE_QUERIES;
		place_queries(exact, meeting.queries, meeting.nqueries);
		if (gv_poll(poll, exact->spec.probes +
					8 * (int64_t) TILE_QUERIES * exact->spec.dims))
			return false;
		for (i = 0; i < exact->spec.probes; i++)
			if (near[i] >= from && near[i] < to &&
				!meet_list(exact, &meeting, near[i], poll))
				return false;
	}
	return true;
}

/* The rows that have been gathered. */
static GvStatus
search_lists(Exact *exact, const GvStop *stop)
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
	if (!exact->screen.is_fitted &&
		!prepare(exact, lists->rows, lists->nrows, &poll))
		return GV_CANCELLED;
	for (from = 0; from < exact->spec.nlists; from = to)
	{
		to = gather_panels(exact, from, &poll);
		if (to < 0)
			return GV_CANCELLED;
		for (list = 0; list < exact->spec.nlists; list++)
			if (!meet_near(exact, list, from, to, &poll))
				return GV_CANCELLED;
	}
	gv_near_lists_next(lists);
	return GV_OK;
}

/* Rows [n] of which only those of near lists count. */
static GvStatus
put_listed(Exact *exact, const float *rows, int64_t n, const GvStop *stop)
{
	int64_t		done = 0;

	while (done < n)
	{
		done += gv_near_lists_add(exact->lists,
								  rows + done * exact->spec.dims, n - done);
		if (exact->lists->nrows == exact->lists->room)
		{
			GvStatus	status = search_lists(exact, stop);

			if (status != GV_OK)
				return status;
		}
	}
	return GV_OK;
}

/* Rows [n], the first of which has position `first`. */
static GvStatus
put_rows(Exact *exact, const float *rows, int64_t first, int64_t n,
		 const GvStop *stop)
{
	int64_t		block = exact->npanels * (int64_t) GV_SCREEN_ROWS;
	int64_t		dims = exact->spec.dims;
	GvPoll		poll = {stop, 0};
	int64_t		done;

	if (exact->lists != NULL)
		return put_listed(exact, rows, n, stop);
	if (exact->spec.nqueries < FEW_QUERIES)
		return measure_rows(exact, rows, first, n, stop);
	if (!exact->screen.is_fitted && !prepare(exact, rows, n, &poll))
		return GV_CANCELLED;
	for (done = 0; done < n; done += block)
		if (!screen_block(exact, rows + done * dims, first + done,
						  n - done < block ? n - done : block, &poll))
			return GV_CANCELLED;
	return GV_OK;
}

/* See gv_set_put. */
static GvStatus
cpu_put(void *state, GvSetInput input, const void *items, int64_t first,
		int64_t n, const GvStop *stop)
{
	Exact	   *exact = state;

	if (input == GV_SET_QUERIES)
		return put_queries(exact, items, first, n, stop);
	if (input == GV_SET_ROWS)
		return put_rows(exact, items, first, n, stop);
	if (input == GV_SET_LISTS)
	{
		if (exact->lists != NULL)
			gv_near_lists_put(exact->lists, items, first, n);
		return GV_OK;
	}
	memcpy(exact->self + first, items, sizeof(int64_t) * (size_t) n);
	return GV_OK;
}

/* See gv_set_run: what rows are left, and neighbours in their order. */
static GvStatus
cpu_run(void *state, GvSetDone *done, const GvStop *stop)
{
	Exact	   *exact = state;
	GvPoll		poll = {stop, 0};
	int64_t		q;

	if (exact->lists != NULL)
	{
		GvStatus	status = search_lists(exact, stop);

		if (status != GV_OK)
			return status;
	}
	for (q = 0; q < exact->spec.nqueries; q++)
	{
		if (gv_poll(&poll, 16 * exact->kept))
			return GV_CANCELLED;
		gv_nearest_sort(exact->nearest + q * exact->kept, exact->kept);
	}
	done->passes = 1;
	done->finished = 1;
	return GV_OK;
}

/* The neighbour that is item `item` of the outputs; free places are -1. */
static GvNear
neighbour(const Exact *exact, int64_t item)
{
	static const GvNear none = {NAN, -1};
	int64_t		query = item / exact->spec.k;
	int64_t		rank = item % exact->spec.k;
	GvNear		found = none;

	if (rank < exact->kept)
		found = exact->nearest[query * exact->kept + rank];
	return found.position != GV_NO_ROW ? found : none;
}

/* See gv_set_get. */
static GvStatus
cpu_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		void *items)
{
	const Exact *exact = state;
	int64_t    *positions = items;
	double	   *distances = items;
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		GvNear		found = neighbour(exact, first + i);

		if (output == GV_SET_POSITIONS)
			positions[i] = found.position;
		else
			distances[i] = found.distance;
	}
	return GV_OK;
}

const GvSetOps gv_cpu_exact_set = {
	.size = cpu_size,
	.create = cpu_create,
	.drop = cpu_drop,
	.put = cpu_put,
	.run = cpu_run,
	.get = cpu_get,
};
