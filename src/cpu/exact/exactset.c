/*
 * exactset.c
 *		Exact search over rows that come in batches.
 *
 * A block of rows at a time is made into panels, and all queries are
 * multiplied with the panels, a tile of queries at a time.  Pairs that the
 * prefilter (gv_screen.h) cannot discard are rescored by gv_set_distance.  A
 * query's limit falls with its first rows, so of n rows in random order about
 * k (1 + log(n / k)) are rescored.
 *
 * exactlists.c handles lists.  If all lists are near, lists make no difference
 * and are ignored.
 *
 * The memory that is needed, besides the queries and their neighbors, is that
 * of a block.
 */
#include <math.h>
#include <string.h>

#include "cpu/exact/gv_exactset.h"

#define BLOCK_FLOATS	(1 << 21)	/* floats in a block's panels, about, for
									 * large dims */
#define BLOCK_PANELS	8
#define FEW_QUERIES		4		/* with fewer queries than this panels do not
								 * pay */

/* Returns whether lists make a difference. */
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
	int32_t		most =
	(int32_t) (BLOCK_FLOATS / gv_prefilter_panel(spec->dims));

	if (has_lists(spec))
		return gv_near_lists_panels(spec);
	if (most < 1)
		return 1;
	return most < BLOCK_PANELS ? most : BLOCK_PANELS;
}

/* Implements gv_set_size. */
static int64_t
cpu_size(const GvSetSpec *spec)
{
	int64_t		vector = (int64_t) sizeof(float) * spec->dims;
	int64_t		query = (spec->own ? 0 : vector) + (int64_t) sizeof(float) +
	(int64_t) sizeof(int64_t) * spec->self +
	(int64_t) sizeof(GvKnn) * kept_of(spec) +
	(int64_t) sizeof(GvPrefiltered);
	int64_t		block = (int64_t) gv_prefilter_panel(spec->dims) *
	panels_of(spec) + (int64_t) GV_EXACT_QUERIES * spec->dims;
	int64_t		lists = has_lists(spec) ? gv_near_lists_size(spec) : 0;

	return spec->nqueries * query + (int64_t) sizeof(float) * block + lists +
		(spec->own ? spec->nrows * vector : 0);
}

/* Frees the state of a question, but not the rows that are kept. */
static void
drop_question(GvExact *exact)
{
	if (!exact->spec.own)
		free(exact->queries);
	free(exact->self);
	free(exact->nearest);
	free(exact->mean);
	free(exact->prefiltered);
	free(exact->limits);
	free(exact->placed);
	free(exact->panels);
	free(exact->squares);
	free(exact->products);
	gv_near_lists_drop(exact->lists);
	free(exact->gathered);
}

static void
cpu_drop(void *state)
{
	GvExact    *exact = state;

	drop_question(exact);
	free(exact->rows);
	free(exact);
}

/* Allocates the memory for a question.  Returns false if there is none. */
static bool
take_memory(GvExact *exact)
{
	const GvSetSpec *spec = &exact->spec;
	int64_t		panel = (int64_t) gv_prefilter_panel(spec->dims);
	int64_t		n = spec->nqueries;

	exact->queries = spec->own ? exact->rows + spec->first * spec->dims :
		gv_cpu_take(n * spec->dims, sizeof(float));
	exact->self = gv_cpu_take(spec->self ? n : 0, sizeof(int64_t));
	exact->nearest = gv_cpu_take(n * exact->kept, sizeof(GvKnn));
	exact->mean = gv_cpu_take(spec->dims, sizeof(float));
	exact->prefiltered = gv_cpu_take(n, sizeof(GvPrefiltered));
	exact->limits = gv_cpu_take(n, sizeof(float));
	exact->placed = gv_cpu_take((int64_t) GV_EXACT_QUERIES * spec->dims,
								sizeof(float));
	exact->panels = gv_cpu_take(exact->npanels * panel, sizeof(float));
	exact->squares = gv_cpu_take(exact->npanels * (int64_t) GV_PREFILTER_ROWS,
								 sizeof(float));
	exact->products = gv_cpu_take(GV_EXACT_QUERIES * GV_PREFILTER_ROWS,
								  sizeof(float));
	exact->gathered = gv_cpu_take((int64_t) GV_PREFILTER_ROWS * spec->dims,
								  sizeof(float));
	if (has_lists(spec))
		exact->lists = gv_near_lists_make(spec);
	return exact->queries != NULL && exact->self != NULL &&
		exact->nearest != NULL && exact->mean != NULL &&
		exact->prefiltered != NULL && exact->limits != NULL &&
		exact->placed != NULL && exact->panels != NULL &&
		exact->squares != NULL && exact->products != NULL &&
		exact->gathered != NULL &&
		(exact->lists != NULL || !has_lists(spec));
}

/*
 * Begins a question.  Rows may be there already.  Returns false if there is no
 * memory.
 */
static bool
begin_question(GvExact *exact, const GvSetSpec *spec)
{
	int			i;

	exact->spec = *spec;
	exact->kept = kept_of(spec);
	exact->npanels = panels_of(spec);
	if (!take_memory(exact))
		return false;
	gv_prefilter_reset(&exact->prefilter, (GvSetMetric) spec->metric,
					   spec->dims,
					   exact->mean);
	for (i = 0; i < GV_PREFILTER_ROWS; i++)
		exact->in_order[i] = i;
	return true;
}

/* Implements gv_set_create. */
static GvStatus
cpu_create(const GvSetSpec *spec, void **state)
{
	GvExact    *made = calloc(1, sizeof(GvExact));

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec.own = spec->own;
	made->keeps = spec->own != 0;
	made->rows = gv_cpu_take(made->keeps ? spec->nrows * spec->dims : 0,
							 sizeof(float));
	if (made->rows == NULL || !begin_question(made, spec))
	{
		cpu_drop(made);
		return GV_NO_MEMORY;
	}
	*state = made;
	return GV_OK;
}

/* Implements gv_set_ask. */
static GvStatus
cpu_ask(void *state, const GvSetSpec *spec)
{
	GvExact    *exact = state;
	GvExact		rows = {.keeps = true, .rows = exact->rows,
	.nrows = exact->nrows};

	drop_question(exact);
	*exact = rows;
	return begin_question(exact, spec) ? GV_OK : GV_NO_MEMORY;
}

/*
 * Copies vectors [n] to their places in `to`.  `first` is the number of the
 * first one.
 */
static bool
copy_vectors(const GvExact *exact, float *to, const float *vectors,
			 int64_t first, int64_t n, GvPoll *poll)
{
	int64_t		dims = exact->spec.dims;
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		if (gv_poll(poll, dims))
			return false;
		memcpy(to + (first + i) * dims, vectors + i * dims,
			   sizeof(float) * (size_t) dims);
	}
	return true;
}

/* Removes the neighbors of queries first .. first + n - 1. */
static bool
reset_nearest(GvExact *exact, int64_t first, int64_t n, GvPoll *poll)
{
	int64_t		i;

	for (i = first; i < first + n; i++)
	{
		if (gv_poll(poll, exact->kept))
			return false;
		gv_knn_reset(exact->nearest + i * exact->kept, exact->kept);
	}
	return true;
}

static GvStatus
put_queries(GvExact *exact, const float *queries, int64_t first, int64_t n,
			const GvStop *stop)
{
	GvPoll		poll = {stop, 0};

	return copy_vectors(exact, exact->queries, queries, first, n, &poll) &&
		reset_nearest(exact, first, n, &poll) ? GV_OK : GV_CANCELED;
}

/*
 * Returns the limit of the fp32 square of a row's distance to a query.  The
 * relative error of the square is (dims / 16 + 6) u, unless the square
 * overflows, because no term is negative.  The limit allows for twice that,
 * and has FLT_MIN for underflow.
 */
static float
direct_limit(const GvExact *exact, int64_t query)
{
	double		last = gv_exact_knn(exact, query)[0].distance;
	double		slack = (exact->spec.dims / 8 + 32) * GV_FILTER_UNIT;
	double		limit = last * last * (1.0 + slack) + FLT_MIN;

	return limit < 1e36 ? (float) limit : HUGE_VALF;
}

/* Rescores n <= GV_PREFILTER_ROWS rows for one query. */
static void
rerank_some(GvExact *exact, int64_t query, const float *rows, int64_t first,
			int n)
{
	int64_t		dims = exact->spec.dims;
	bool		direct = exact->spec.metric == GV_SET_L2;
	float		limit = HUGE_VALF;
	float		squares[GV_PREFILTER_ROWS];
	GvReranked	reranked = {NULL, 0.0};
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
		if (gv_exact_rerank(exact, query, rows + i * dims, first + i,
							&reranked) && direct)
			limit = direct_limit(exact, query);
	}
}

/* Rescores rows [n] for all queries, which are fewer than FEW_QUERIES. */
static GvStatus
rerank_rows(GvExact *exact, const float *rows, int64_t first, int64_t n,
			const GvStop *stop)
{
	int64_t		dims = exact->spec.dims;
	GvPoll		poll = {stop, 0};
	int64_t		query;
	int64_t		done;

	for (done = 0; done < n; done += GV_PREFILTER_ROWS)
		for (query = 0; query < exact->spec.nqueries; query++)
		{
			if (gv_poll(&poll, GV_PREFILTER_ROWS * (4 * dims + GV_KNN_WORK)))
				return GV_CANCELED;
			rerank_some(exact, query, rows + done * dims, first + done,
						n - done < GV_PREFILTER_ROWS ? (int) (n - done) :
						GV_PREFILTER_ROWS);
		}
	return GV_OK;
}

/* Makes the panels of a block of n rows. */
static bool
make_panels(GvExact *exact, const float *rows, int64_t n, GvPoll *poll)
{
	int64_t		dims = exact->spec.dims;
	int32_t		p;

	for (p = 0; p * (int64_t) GV_PREFILTER_ROWS < n; p++)
	{
		int64_t		done = p * (int64_t) GV_PREFILTER_ROWS;

		if (gv_poll(poll, 8 * GV_PREFILTER_ROWS * dims))
			return false;
		gv_prefilter_rows(&exact->prefilter, rows + done * dims,
						  n - done < GV_PREFILTER_ROWS ? (int) (n - done) :
						  GV_PREFILTER_ROWS, exact->placed,
						  exact->panels + p * gv_prefilter_panel((int32_t) dims),
						  exact->squares + done);
	}
	return true;
}

/* Compares a block of n rows with all queries. */
static bool
prefilter_block(GvExact *exact, const float *rows, int64_t first, int64_t n,
				GvPoll *poll)
{
	const GvSetSpec *spec = &exact->spec;
	GvPairing	pairing = {.queries = exact->tile,
	.places = exact->in_order};
	int64_t		query;
	int64_t		done;
	int			i;

	if (!make_panels(exact, rows, n, poll))
		return false;
	for (query = 0; query < spec->nqueries; query += GV_EXACT_QUERIES)
	{
		int64_t		left = spec->nqueries - query;

		pairing.nqueries = left < GV_EXACT_QUERIES ? (int) left :
			GV_EXACT_QUERIES;
		for (i = 0; i < pairing.nqueries; i++)
			exact->tile[i] = query + i;
		gv_exact_place(exact, exact->tile, pairing.nqueries);
		pairing.panel = exact->panels;
		for (done = 0; done < n; done += GV_PREFILTER_ROWS)
		{
			pairing.rows = rows + done * spec->dims;
			pairing.first = first + done;
			pairing.nrows = n - done < GV_PREFILTER_ROWS ? (int) (n - done) :
				GV_PREFILTER_ROWS;
			pairing.squares = exact->squares + done;
			if (!gv_exact_pairs(exact, &pairing, poll))
				return false;
			pairing.panel += gv_prefilter_panel(spec->dims);
		}
	}
	return true;
}

/* Searches rows [n], the first of which has position `first`. */
static GvStatus
search_rows(GvExact *exact, const float *rows, int64_t first, int64_t n,
			const GvStop *stop)
{
	int64_t		block = exact->npanels * (int64_t) GV_PREFILTER_ROWS;
	int64_t		dims = exact->spec.dims;
	GvPoll		poll = {stop, 0};
	int64_t		done;

	if (exact->lists != NULL)
		return gv_exact_put_listed(exact, rows, n, stop);
	if (exact->spec.nqueries < FEW_QUERIES)
		return rerank_rows(exact, rows, first, n, stop);
	if (!exact->prefilter.is_fitted &&
		!gv_exact_prepare(exact, rows, n, &poll))
		return GV_CANCELED;
	for (done = 0; done < n; done += block)
		if (!prefilter_block(exact, rows + done * dims, first + done,
							 n - done < block ? n - done : block, &poll))
			return GV_CANCELED;
	return GV_OK;
}

static GvStatus
put_rows(GvExact *exact, const float *rows, int64_t first, int64_t n,
		 const GvStop *stop)
{
	GvPoll		poll = {stop, 0};

	if (!exact->keeps)
		return search_rows(exact, rows, first, n, stop);
	exact->nrows = first + n;
	return copy_vectors(exact, exact->rows, rows, first, n, &poll) ?
		GV_OK : GV_CANCELED;
}

/* Searches the rows that were kept.  The queries may be among them. */
static GvStatus
search_kept(GvExact *exact, const GvStop *stop)
{
	GvPoll		poll = {stop, 0};

	if (exact->spec.own &&
		!reset_nearest(exact, 0, exact->spec.nqueries, &poll))
		return GV_CANCELED;
	return search_rows(exact, exact->rows, 0, exact->nrows, stop);
}

/* Implements gv_set_put. */
static GvStatus
cpu_put(void *state, GvSetInput input, const void *items, int64_t first,
		int64_t n, const GvStop *stop)
{
	GvExact    *exact = state;

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

/*
 * Implements gv_set_run: searches the rows that are left, and orders the
 * neighbors.
 */
static GvStatus
cpu_run(void *state, GvSetDone *done, const GvStop *stop)
{
	GvExact    *exact = state;
	GvPoll		poll = {stop, 0};
	GvStatus	status = exact->keeps ? search_kept(exact, stop) : GV_OK;
	int64_t		q;

	if (status == GV_OK && exact->lists != NULL)
		status = gv_exact_search_lists(exact, stop);
	if (status != GV_OK)
		return status;
	for (q = 0; q < exact->spec.nqueries; q++)
		if (!gv_knn_sort(gv_exact_knn(exact, q), exact->kept, &poll))
			return GV_CANCELED;
	done->passes = 1;
	done->finished = 1;
	return GV_OK;
}

/*
 * Returns the neighbor that is item number `item` of the outputs.  A free
 * place has position -1.
 */
static GvKnn
neighbor(const GvExact *exact, int64_t item)
{
	static const GvKnn none = {NAN, -1};
	int64_t		query = item / exact->spec.k;
	int64_t		rank = item % exact->spec.k;
	GvKnn		found = none;

	if (rank < exact->kept)
		found = exact->nearest[query * exact->kept + rank];
	return found.position != GV_NO_ROW ? found : none;
}

/* Implements gv_set_get. */
static GvStatus
cpu_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		void *items)
{
	const GvExact *exact = state;
	int64_t    *positions = items;
	double	   *distances = items;
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		GvKnn		found = neighbor(exact, first + i);

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
	.ask = cpu_ask,
};
