/*
 * exactset.c
 *		Exact search over rows that come in batches.
 *
 * Rows are made into panels, a block of rows at a time, and all queries are
 * multiplied with the panels, a tile of queries at a time.  Pairs that the
 * prefilter (exact.h) cannot discard are rescored by gv_set_distance.  A
 * query's limit falls with its first rows, so of n rows in random order about
 * k (1 + log(n / k)) are rescored.
 *
 * Near lists have a section of their own below.  If all lists are near, lists
 * make no difference and are ignored.  Besides the queries and their
 * neighbors, only a block of rows takes memory, unless the set keeps its rows.
 */
#include <math.h>
#include <string.h>

#include "cpu/exact/exact.h"

/* The lists of a search with near lists, and the rows that are gathered. */
typedef struct NearLists
{
	float	   *centroids;		/* [nlists][dims] */
	int32_t    *near;			/* [nlists][probes] lists near to each list,
								 * the nearest first */
	bool		has_queries;	/* near and query_order are filled */

	int32_t    *query_order;	/* [nqueries] numbers of queries, ordered by
								 * list */
	int64_t    *query_starts;	/* [nlists + 1] where each list begins in
								 * query_order */

	/* the block that is being gathered */
	int64_t		first;			/* position of its first row */
	int64_t		nrows;			/* rows gathered so far */
	int64_t		capacity;		/* maximum number of rows in a block */
	float	   *rows;			/* [capacity][dims] in the order in which they
								 * came */
	int32_t    *row_order;		/* [capacity] places in `rows`, ordered by
								 * list */
	int64_t    *row_starts;		/* [nlists + 1] where each list begins in
								 * row_order */
	int32_t    *panels;			/* [nlists] first panel of each list */

	int32_t    *found;			/* [max(nqueries, capacity)] list of each
								 * vector */
} NearLists;

#define TILE_QUERIES	GV_CPU_TILE_ROWS	/* queries of a tile */

/*
 * State of a set: its rows, if the set keeps them, and the data of one
 * question.
 */
typedef struct Exact
{
	GvSetSpec	spec;
	int64_t		kept;			/* neighbors that a query can have, <= k */
	float	   *rows;			/* [nrows][dims] if the set keeps its rows for
								 * several questions, else NULL */
	int64_t		nrows;
	float	   *queries;		/* [nqueries][dims]; if spec.own, part of
								 * `rows` */
	int64_t    *self;			/* [nqueries], if spec.self */
	GvKnn	   *nearest;		/* [nqueries][kept] neighbors */
	GvPrefilter prefilter;
	GvPrefiltered *prefiltered; /* [nqueries] */
	float	   *limits;			/* [nqueries] limits of the prefilter */
	int32_t		npanels;		/* panels of a block */
	float	   *placed;			/* [TILE_QUERIES][dims] placed rows or queries */
	float	   *panels;			/* [npanels], each of gv_cpu_panel floats */
	float	   *squares;		/* [npanels][GV_PREFILTER_ROWS] */
	float	   *products;		/* [TILE_QUERIES][GV_PREFILTER_ROWS] */
	bool		has_twins;		/* `twins` belongs to the current panel */
	uint8_t		twins[GV_PREFILTER_ROWS];	/* [row] the first row of the
											 * panel with the same bits */

	/* used without lists */
	int32_t		tile[TILE_QUERIES]; /* numbers of queries */
	int32_t		in_order[GV_PREFILTER_ROWS];	/* 0, 1, 2, .. */

	/* used with lists */
	NearLists	lists;
	float	   *gathered;		/* [GV_PREFILTER_ROWS][dims] rows of a panel */

	void	   *memory;			/* of all arrays of the question */
} Exact;

/* A panel, and the queries with which it is compared. */
typedef struct Pairing
{
	const float *rows;			/* [..][dims] */
	int64_t		first;			/* the first row's position */
	const int32_t *places;		/* [nrows] places of the panel's rows in
								 * `rows`, ascending */
	int			nrows;			/* <= GV_PREFILTER_ROWS */
	int64_t		panel;			/* number of the panel */
	const int32_t *queries;		/* [nqueries] numbers of the queries */
	int			nqueries;		/* <= TILE_QUERIES */
} Pairing;

/*
 * Returns a query's neighbors, which are a heap whose first element is the
 * last neighbor.
 */
static inline GvKnn *
knn_of(const Exact *exact, int64_t query)
{
	return exact->nearest + query * exact->kept;
}

/* Returns whether a row is the query itself. */
static inline bool
is_self(const Exact *exact, int64_t query, int64_t position)
{
	if (exact->spec.own)
		return exact->spec.first + query == position;
	return exact->spec.self && exact->self[query] == position;
}

/* Returns whether lists make a difference. */
static bool
has_lists(const GvSetSpec *spec)
{
	return spec->probes < spec->nlists;
}

/* ----
 * The neighbors of one query (exact.h).
 */

/* Returns whether a comes before b. */
static inline bool
is_before(GvKnn a, GvKnn b)
{
	if (a.distance < b.distance)
		return true;
	if (a.distance > b.distance)
		return false;
	if ((a.distance != a.distance) != (b.distance != b.distance))
		return b.distance != b.distance;
	return a.position < b.position;
}

/* Removes the top of a heap of n pairs, and inserts `moved`. */
static void
replace_top(GvKnn *heap, int64_t n, GvKnn moved)
{
	int64_t		place = 0;

	while (place < n / 2)
	{
		int64_t		child = 2 * place + 1;

		if (child + 1 < n && is_before(heap[child], heap[child + 1]))
			child++;
		if (!is_before(moved, heap[child]))
			break;
		heap[place] = heap[child];
		place = child;
	}
	heap[place] = moved;
}

/* ----
 * Compares a panel of rows with a tile of queries, and rescores pairs.
 */

#define KNN_WORK		256		/* work, as gv_poll counts it, of a push to a
								 * large heap */
#define MANY_LEFT		8		/* minimum number of rows left for which it
								 * pays to look for twins */

/* Rescores a pair.  Returns true if this changed the query's last neighbor. */
static bool
rerank_pair(Exact *exact, int64_t query, const float *row, int64_t position)
{
	const GvSetSpec *spec = &exact->spec;
	GvKnn	   *nearest = knn_of(exact, query);
	GvKnn		last = nearest[0];
	GvKnn		pair = {.position = position};

	if (is_self(exact, query, position))
		return false;

	/*
	 * If all distances of the query are NaN, its neighbors are the rows with
	 * the smallest positions.  With lists, rows do not come in the order of
	 * their positions, so many rows would be rescored without this test.
	 */
	if (has_lists(spec) && last.distance != last.distance &&
		last.position < position && exact->prefiltered[query].is_null)
		return false;
	pair.distance = gv_set_distance((GvSetMetric) spec->metric,
									exact->queries + query * spec->dims, row,
									spec->dims);
	if (!is_before(pair, last))
		return false;
	replace_top(nearest, exact->kept, pair);
	return nearest[0].position != last.position;
}

/*
 * Returns the limit of a query's estimates, which follows from the neighbors
 * that the query has found.
 */
static float
limit_of(const Exact *exact, int64_t query)
{
	const GvPrefiltered *prefiltered = &exact->prefiltered[query];

	/*
	 * all rows have distance NaN, and rows with smaller positions may still
	 * come
	 */
	if (has_lists(&exact->spec) && prefiltered->is_null)
		return HUGE_VALF;
	return gv_prefilter_limit(&exact->prefilter, prefiltered,
							  knn_of(exact, query)[0]);
}

/*
 * Fits the prefilter to the first rows [n], and computes the numbers of all
 * queries that the prefilter needs.
 */
static bool
prepare(Exact *exact, const float *rows, int64_t n, GvPoll *poll)
{
	const GvSetSpec *spec = &exact->spec;
	int64_t		query;

	gv_prefilter_fit(&exact->prefilter, (GvSetMetric) spec->metric, spec->dims,
					 rows, gv_at_most(n, TILE_QUERIES), exact->placed);
	for (query = 0; query < spec->nqueries; query++)
	{
		if (gv_poll(poll, 8 * (int64_t) spec->dims))
			return false;
		exact->prefiltered[query] =
			gv_prefilter_query(&exact->prefilter,
							   exact->queries + query * spec->dims,
							   exact->placed);
		exact->limits[query] = limit_of(exact, query);
	}
	return true;
}

/*
 * Finds for each row of a panel its twin: the first row of the panel that has
 * the same bits.
 */
static void
find_twins(Exact *exact, const Pairing *pairing)
{
	size_t		bytes = sizeof(float) * (size_t) exact->spec.dims;
	const char *rows = (const char *) pairing->rows;
	const float *squares = exact->squares + pairing->panel * GV_PREFILTER_ROWS;
	int			row;

	for (row = 0; row < pairing->nrows; row++)
	{
		int			twin = 0;

		/*
		 * compare the squares first: rows with the same bits have the same
		 * square, and few other rows have that square
		 */
		while (twin < row &&
			   (squares[twin] != squares[row] ||
				memcmp(rows + pairing->places[twin] * bytes,
					   rows + pairing->places[row] * bytes, bytes) != 0))
			twin++;
		exact->twins[row] = (uint8_t) twin;
	}
	exact->has_twins = true;
}

/*
 * Rescores the rows of a panel that the prefilter does not discard for query i
 * of a tile.
 */
static bool
sift(Exact *exact, const Pairing *pairing, int i, GvPoll *poll)
{
	uint64_t	refused = 0;	/* twins whose equal rows are too far away */
	const float *squares = exact->squares + pairing->panel * GV_PREFILTER_ROWS;
	const float *products = exact->products + i * GV_PREFILTER_ROWS;
	int64_t		query = pairing->queries[i];
	float	   *limit = &exact->limits[query];
	uint64_t	left = gv_kernels->within(squares, products, *limit);

	if (pairing->nrows < GV_PREFILTER_ROWS)
		left &= (UINT64_C(1) << pairing->nrows) - 1;
	if (!exact->has_twins && __builtin_popcountll(left) >= MANY_LEFT)
		find_twins(exact, pairing);
	for (; left != 0; left &= left - 1)
	{
		int			row = __builtin_ctzll(left);
		int			twin = exact->has_twins ? exact->twins[row] : row;
		int64_t		place = pairing->places[row];
		int64_t		position = pairing->first + place;

		/*
		 * the limit may have fallen since the estimates were compared with it
		 */
		if ((refused >> twin & 1) != 0 ||
			squares[row] - 2.0f * products[row] > *limit)
			continue;
		if (gv_poll(poll, 4 * (int64_t) exact->spec.dims + KNN_WORK))
			return false;

		/*
		 * If a row is too far away, every later row with the same bits is too
		 * far away, too: at the same distance, the later row comes last.
		 */
		if (rerank_pair(exact, query,
						pairing->rows + place * exact->spec.dims, position))
			*limit = limit_of(exact, query);
		else if (knn_of(exact, query)[0].position != GV_NO_ROW &&
				 !is_self(exact, query, position))
			refused |= UINT64_C(1) << twin;
	}
	return true;
}

/* Compares a panel with a tile of queries that place_queries has placed. */
static bool
compare_panel(Exact *exact, const Pairing *pairing, GvPoll *poll)
{
	int32_t		dims = exact->spec.dims;
	int			i;

	if (gv_poll(poll, (int64_t) pairing->nqueries * GV_PREFILTER_ROWS * dims))
		return false;
	exact->has_twins = false;
	gv_cpu_multiply(exact->placed, dims, pairing->nqueries, exact->panels +
					pairing->panel * gv_cpu_panel(dims), exact->products);
	for (i = 0; i < pairing->nqueries; i++)
		if (!sift(exact, pairing, i, poll))
			return false;
	return true;
}

/*
 * Places n <= TILE_QUERIES queries in exact->placed, to be compared with
 * panels.
 */
static void
place_queries(Exact *exact, const int32_t *queries, int n)
{
	int64_t		dims = exact->spec.dims;
	int			i;

	for (i = 0; i < n; i++)
		gv_prefilter_place(&exact->prefilter, &exact->prefiltered[queries[i]],
						   exact->queries + queries[i] * dims,
						   exact->placed + i * dims);
}

/* ----
 * Lists of queries and rows, for an exact search among the rows of near lists
 * only (gv_set.h, "If nlists > 0").
 *
 * Rows are gathered until they fill a block, so that a block has many rows of
 * each list.  Then the rows are ordered by list.
 *
 * The lists that are nearest to a vector are defined by an exact search among
 * centroids, and are found by such a search.
 */

#define GATHERED_FLOATS	(1 << 23)	/* floats of the rows of a block */
#define ROWS_OF_LIST	1024	/* rows of a list in a block; more rows do not
								 * help */
#define ASKED_VECTORS	4096	/* vectors searched for at a time */
#define ASKED_RESULTS	(1 << 20)	/* approximate number of results of a
									 * search */

/*
 * Returns the number of rows in a block.  A row of few dimensions counts as a
 * whole slice, because it takes that much memory in a panel.
 */
static int64_t
block_rows(const GvSetSpec *spec)
{
	int64_t		floats = spec->dims > GV_CPU_SLICE_DIMS ? spec->dims :
	GV_CPU_SLICE_DIMS;
	int64_t		rows = GATHERED_FLOATS / floats;

	if (rows < GV_PREFILTER_ROWS)
		rows = GV_PREFILTER_ROWS;
	if (rows > spec->nlists * (int64_t) ROWS_OF_LIST)
		rows = spec->nlists * (int64_t) ROWS_OF_LIST;
	return rows < spec->nrows ? rows : spec->nrows;
}

/* Returns the spec of an exact search among centroids, for n vectors. */
static GvSetSpec
search_spec(const GvSetSpec *spec, GvSetMetric metric, int32_t k, int64_t n)
{
	GvSetSpec	search = {.kind = GV_SET_EXACT, .metric = metric,
	.dims = spec->dims, .k = k, .nqueries = n, .nrows = spec->nlists};

	return search;
}

/*
 * Returns the number of vectors to search for at a time, if k centroids are
 * needed for each.
 */
static int64_t
asked_at_a_time(int32_t k)
{
	int64_t		most = ASKED_RESULTS / k;

	if (most < 1)
		return 1;
	return most < ASKED_VECTORS ? most : ASKED_VECTORS;
}

/* Returns the size in bytes of a search for k centroids and of its results. */
static int64_t
search_size(const GvSetSpec *spec, int32_t k)
{
	int64_t		n = asked_at_a_time(k);
	GvSetSpec	search = search_spec(spec, (GvSetMetric) spec->metric, k, n);

	return gv_cpu_exact_set.size(&search) + n * k * (int64_t) sizeof(int64_t);
}

/*
 * Lays out the arrays of `lists` in `memory`, from offset *next on, like
 * gv_carve.
 */
static void
carve_lists(NearLists *lists, const GvSetSpec *spec, char *memory,
			size_t *next)
{
	size_t		nlists = (size_t) spec->nlists;
	size_t		nqueries = (size_t) spec->nqueries;
	size_t		capacity = (size_t) block_rows(spec);
	size_t		vector = sizeof(float) * (size_t) spec->dims;

	lists->capacity = (int64_t) capacity;
	lists->centroids = gv_carve(memory, next, vector * nlists);
	lists->near = gv_carve(memory, next,
						   sizeof(int32_t) * nlists * spec->probes);
	lists->query_order = gv_carve(memory, next, sizeof(int32_t) * nqueries);
	lists->query_starts = gv_carve(memory, next,
								   sizeof(int64_t) * (nlists + 1));
	lists->rows = gv_carve(memory, next, vector * capacity);
	lists->row_order = gv_carve(memory, next, sizeof(int32_t) * capacity);
	lists->row_starts = gv_carve(memory, next,
								 sizeof(int64_t) * (nlists + 1));
	lists->panels = gv_carve(memory, next, sizeof(int32_t) * nlists);
	lists->found = gv_carve(memory, next, sizeof(int32_t) *
							(nqueries > capacity ? nqueries : capacity));
}

/*
 * Finds the k centroids that are nearest to each of vectors [n][dims], and
 * stores their numbers in found [n][k].
 */
static GvStatus
find_centroids(const Exact *exact, GvSetMetric metric, int32_t k,
			   const float *vectors, int64_t n, int32_t *found,
			   const GvStop *stop)
{
	const GvSetOps *ops = &gv_cpu_exact_set;
	int64_t		most = asked_at_a_time(k);
	GvSetSpec	search = search_spec(&exact->spec, metric, k,
									 n < most ? n : most);
	int64_t    *numbers = gv_cpu_take(search.nqueries * k, sizeof(int64_t));
	GvStatus	status = numbers == NULL ? GV_NO_MEMORY : GV_OK;
	int64_t		done;

	for (done = 0; status == GV_OK && done < n; done += search.nqueries)
	{
		GvSetDone	outcome = {0};
		void	   *state;
		int64_t		nfound;
		int64_t		i;

		if (n - done < search.nqueries)
			search.nqueries = n - done;
		nfound = search.nqueries * k;
		status = ops->create(&search, &state);
		if (status != GV_OK)
			break;
		status = ops->put(state, GV_SET_QUERIES, vectors + done * search.dims,
						  0, search.nqueries, stop);
		if (status == GV_OK)
			status = ops->put(state, GV_SET_ROWS, exact->lists.centroids, 0,
							  search.nrows, stop);
		if (status == GV_OK)
			status = ops->run(state, &outcome, stop);
		if (status == GV_OK)
			status = ops->get(state, GV_SET_POSITIONS, 0, nfound, numbers);
		for (i = 0; status == GV_OK && i < nfound; i++)
			found[done * k + i] = (int32_t) numbers[i];
		ops->drop(state);
	}
	free(numbers);
	return status;
}

/*
 * Orders vectors [n] by list.  Stores the vectors' numbers in order [n], and
 * the place in `order` where each list begins in starts [nlists + 1].
 */
static GvStatus
order_by_list(Exact *exact, const float *vectors, int64_t n, int32_t *order,
			  int64_t *starts, const GvStop *stop)
{
	GvSetMetric metric = (GvSetMetric) exact->spec.metric;
	int32_t    *found = exact->lists.found;
	size_t		nlists = (size_t) exact->spec.nlists;
	GvStatus	status;
	size_t		list;
	int64_t		i;

	status = find_centroids(exact, metric == GV_SET_IP ? GV_SET_L2 : metric, 1,
							vectors, n, found, stop);
	if (status != GV_OK)
		return status;
	memset(starts, 0, sizeof(int64_t) * (nlists + 1));
	for (i = 0; i < n; i++)
		starts[found[i] + 1]++;
	for (list = 0; list < nlists; list++)
		starts[list + 1] += starts[list];
	for (i = 0; i < n; i++)
		order[starts[found[i]]++] = (int32_t) i;
	/* each start has become the end of its list */
	memmove(starts + 1, starts, sizeof(int64_t) * nlists);
	starts[0] = 0;
	return GV_OK;
}

/* ----
 * Exact search among the rows of near lists only.
 *
 * Rows and queries are ordered by list (see above).  A tile of queries of
 * one list is compared with the panels of the lists near to that list, the
 * nearest list first, so that limits fall before most rows are compared.
 */

/* Makes panel number `panel` from n <= GV_PREFILTER_ROWS rows. */
static bool
make_panel(Exact *exact, const float *rows, int n, int64_t panel, GvPoll *poll)
{
	int32_t		dims = exact->spec.dims;

	if (gv_poll(poll, 8 * GV_PREFILTER_ROWS * (int64_t) dims))
		return false;
	gv_prefilter_rows(&exact->prefilter, rows, n, exact->placed,
					  exact->panels + panel * gv_cpu_panel(dims),
					  exact->squares + panel * GV_PREFILTER_ROWS);
	return true;
}

/*
 * Makes the panels of the block's lists, from list `from` on, for as many
 * lists as the memory holds.  At least one list fits, because no list has more
 * rows than the block.  Returns the first list that is left, or -1 if the
 * caller must give up.
 */
static int32_t
gather_panels(Exact *exact, int32_t from, GvPoll *poll)
{
	NearLists  *lists = &exact->lists;
	int64_t		dims = exact->spec.dims;
	int32_t		npanels = 0;
	int32_t		list;

	for (list = from; list < exact->spec.nlists; list++)
	{
		int64_t		next = lists->row_starts[list];
		int64_t		end = lists->row_starts[list + 1];

		if (npanels + (end - next + GV_PREFILTER_ROWS - 1) / GV_PREFILTER_ROWS >
			exact->npanels)
			break;
		lists->panels[list] = npanels;
		for (; next < end; next += GV_PREFILTER_ROWS)
		{
			int			n = gv_at_most(end - next, GV_PREFILTER_ROWS);
			int			i;

			for (i = 0; i < n; i++)
				memcpy(exact->gathered + i * dims, lists->rows +
					   lists->row_order[next + i] * dims,
					   sizeof(float) * (size_t) dims);
			if (!make_panel(exact, exact->gathered, n, npanels++, poll))
				return -1;
		}
	}
	return list;
}

/*
 * Compares a tile of queries, which place_queries has placed, with the rows
 * of a list.
 */
static bool
pair_list(Exact *exact, Pairing *pairing, int32_t list, GvPoll *poll)
{
	const NearLists *lists = &exact->lists;
	int64_t		next = lists->row_starts[list];
	int64_t		end = lists->row_starts[list + 1];

	pairing->panel = lists->panels[list];
	for (; next < end; next += GV_PREFILTER_ROWS, pairing->panel++)
	{
		pairing->places = lists->row_order + next;
		pairing->nrows = gv_at_most(end - next, GV_PREFILTER_ROWS);
		if (!compare_panel(exact, pairing, poll))
			return false;
	}
	return true;
}

/*
 * Compares the queries of a list with the rows of those near lists whose
 * numbers are from .. to - 1.
 */
static bool
pair_near(Exact *exact, int32_t list, int32_t from, int32_t to, GvPoll *poll)
{
	const NearLists *lists = &exact->lists;
	const int32_t *near = lists->near + list * (int64_t) exact->spec.probes;
	Pairing		pairing = {.rows = lists->rows, .first = lists->first};
	int64_t		next = lists->query_starts[list];
	int64_t		end = lists->query_starts[list + 1];
	int32_t		i;

	for (; next < end; next += TILE_QUERIES)
	{
		pairing.queries = lists->query_order + next;
		pairing.nqueries = gv_at_most(end - next, TILE_QUERIES);
		place_queries(exact, pairing.queries, pairing.nqueries);
		if (gv_poll(poll, exact->spec.probes +
					8 * (int64_t) TILE_QUERIES * exact->spec.dims))
			return false;
		for (i = 0; i < exact->spec.probes; i++)
			if (near[i] >= from && near[i] < to &&
				!pair_list(exact, &pairing, near[i], poll))
				return false;
	}
	return true;
}

/* Searches the rows that are gathered. */
static GvStatus
search_lists(Exact *exact, const GvStop *stop)
{
	NearLists  *lists = &exact->lists;
	const GvSetSpec *spec = &exact->spec;
	GvPoll		poll = {stop, 0};
	GvStatus	status = GV_OK;
	int32_t		from;
	int32_t		to;
	int32_t		list;

	if (lists->nrows == 0)
		return GV_OK;
	if (!lists->has_queries)
	{
		status = find_centroids(exact, (GvSetMetric) spec->metric, spec->probes,
								lists->centroids, spec->nlists, lists->near,
								stop);
		if (status == GV_OK)
			status = order_by_list(exact, exact->queries, spec->nqueries,
								   lists->query_order, lists->query_starts,
								   stop);
		lists->has_queries = status == GV_OK;
	}
	if (status == GV_OK)
		status = order_by_list(exact, lists->rows, lists->nrows,
							   lists->row_order, lists->row_starts, stop);
	if (status != GV_OK)
		return status;
	if (!exact->prefilter.is_fitted &&
		!prepare(exact, lists->rows, lists->nrows, &poll))
		return GV_CANCELED;
	for (from = 0; from < spec->nlists; from = to)
	{
		to = gather_panels(exact, from, &poll);
		if (to < 0)
			return GV_CANCELED;
		for (list = 0; list < spec->nlists; list++)
			if (!pair_near(exact, list, from, to, &poll))
				return GV_CANCELED;
	}
	lists->first += lists->nrows;	/* the next block begins */
	lists->nrows = 0;
	return GV_OK;
}

/* Gathers rows [n], and searches each block that is full. */
static GvStatus
put_listed(Exact *exact, const float *rows, int64_t n, const GvStop *stop)
{
	NearLists  *lists = &exact->lists;
	int64_t		dims = exact->spec.dims;
	GvStatus	status = GV_OK;

	while (n > 0 && status == GV_OK)
	{
		int64_t		left = lists->capacity - lists->nrows;
		int64_t		some = n < left ? n : left;

		memcpy(lists->rows + lists->nrows * dims, rows,
			   sizeof(float) * (size_t) (some * dims));
		lists->nrows += some;
		rows += some * dims;
		n -= some;
		if (lists->nrows == lists->capacity)
			status = search_lists(exact, stop);
	}
	return status;
}

/* ---- the set ---- */

#define BLOCK_FLOATS	(1 << 21)	/* approximate number of floats in a
									 * block's panels, for large dims */
#define BLOCK_PANELS	8
#define FEW_QUERIES		4		/* with fewer queries than this, panels do not
								 * pay */

/*
 * Returns the number of panels for which a block has memory.  With lists, this
 * is enough for all lists or for most of them, although panels may be only
 * half full on average.
 */
static int32_t
panels_of(const GvSetSpec *spec)
{
	int32_t		most = (int32_t) (BLOCK_FLOATS / gv_cpu_panel(spec->dims));

	if (has_lists(spec))
		return (int32_t) (2 * (block_rows(spec) / GV_PREFILTER_ROWS + 1));
	if (most < 1)
		return 1;
	return most < BLOCK_PANELS ? most : BLOCK_PANELS;
}

static void
cpu_drop(void *state)
{
	Exact	   *exact = state;

	free(exact->memory);
	free(exact->rows);
	free(exact);
}

/* Lays out the arrays of a question, and returns their size. */
static size_t
carve_question(Exact *exact, const GvSetSpec *spec, char *memory)
{
	size_t		vector = sizeof(float) * (size_t) spec->dims;
	size_t		n = (size_t) spec->nqueries;
	size_t		npanels = (size_t) panels_of(spec);
	size_t		next = 0;

	exact->kept = spec->k < spec->nrows ? spec->k : spec->nrows;
	exact->npanels = (int32_t) npanels;
	exact->queries = gv_carve(memory, &next, spec->own ? 0 : vector * n);
	exact->self = gv_carve(memory, &next, spec->self ? sizeof(int64_t) * n : 0);
	exact->nearest = gv_carve(memory, &next,
							  sizeof(GvKnn) * n * (size_t) exact->kept);
	exact->prefilter.mean = gv_carve(memory, &next, vector);
	exact->prefiltered = gv_carve(memory, &next, sizeof(GvPrefiltered) * n);
	exact->limits = gv_carve(memory, &next, sizeof(float) * n);
	exact->placed = gv_carve(memory, &next, vector * TILE_QUERIES);
	exact->panels = gv_carve(memory, &next, sizeof(float) * npanels *
							 gv_cpu_panel(spec->dims));
	exact->squares = gv_carve(memory, &next,
							  sizeof(float) * npanels * GV_PREFILTER_ROWS);
	exact->products = gv_carve(memory, &next, sizeof(float) * TILE_QUERIES *
							   GV_PREFILTER_ROWS);
	exact->gathered = gv_carve(memory, &next, vector * GV_PREFILTER_ROWS);
	if (has_lists(spec))
		carve_lists(&exact->lists, spec, memory, &next);
	return next;
}

/* Implements gv_set_size. */
static int64_t
cpu_size(const GvSetSpec *spec)
{
	Exact		exact;
	int64_t		bytes = (int64_t) carve_question(&exact, spec, NULL);
	int64_t		asked = 0;

	if (has_lists(spec))
		asked = search_size(spec, 1);
	if (has_lists(spec) && search_size(spec, spec->probes) > asked)
		asked = search_size(spec, spec->probes);
	return bytes + asked +
		(spec->own ? spec->nrows * (int64_t) sizeof(float) * spec->dims : 0);
}

/*
 * Begins a question to a set, which may have rows already.  Returns false if
 * out of memory.
 */
static bool
begin_question(Exact *exact, const GvSetSpec *spec)
{
	int			i;

	exact->spec = *spec;
	exact->memory = gv_cpu_take((int64_t) carve_question(exact, spec, NULL), 1);
	if (exact->memory == NULL)
		return false;
	(void) carve_question(exact, spec, exact->memory);
	if (spec->own)
		exact->queries = exact->rows + spec->first * spec->dims;
	for (i = 0; i < GV_PREFILTER_ROWS; i++)
		exact->in_order[i] = i;
	return true;
}

/* Implements gv_set_create. */
static GvStatus
cpu_create(const GvSetSpec *spec, void **state)
{
	Exact	   *made = calloc(1, sizeof(Exact));

	if (made == NULL)
		return GV_NO_MEMORY;
	if (spec->own)
		made->rows = gv_cpu_take(spec->nrows * spec->dims, sizeof(float));
	if ((spec->own && made->rows == NULL) || !begin_question(made, spec))
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
	Exact	   *exact = state;
	Exact		rows = {.rows = exact->rows, .nrows = exact->nrows};

	free(exact->memory);
	*exact = rows;
	return begin_question(exact, spec) ? GV_OK : GV_NO_MEMORY;
}

/*
 * Copies vectors [n] to their places in `to`.  `first` is the number of the
 * first vector.
 */
static bool
copy_vectors(const Exact *exact, float *to, const float *vectors,
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
reset_nearest(Exact *exact, int64_t first, int64_t n, GvPoll *poll)
{
	static const GvKnn free_place = {NAN, GV_NO_ROW};
	int64_t		query;
	int64_t		i;

	for (query = first; query < first + n; query++)
	{
		if (gv_poll(poll, exact->kept))
			return false;
		for (i = 0; i < exact->kept; i++)
			knn_of(exact, query)[i] = free_place;
	}
	return true;
}

/*
 * Returns a limit for the square, in fp32, of a row's distance to a query: if
 * the square is above the limit, the row is farther than the query's last
 * neighbor.  The relative error of the square is (dims / 16 + 6) u, unless the
 * square overflows, because no term is negative.  The limit allows for twice
 * this error, and for underflow by FLT_MIN.
 */
static float
direct_limit(const Exact *exact, int64_t query)
{
	double		last = knn_of(exact, query)[0].distance;
	double		slack = (exact->spec.dims / 8 + 32) * GV_FILTER_UNIT;
	double		limit = last * last * (1.0 + slack) + FLT_MIN;

	return limit < 1e36 ? (float) limit : HUGE_VALF;
}

/*
 * Rescores rows [n] for all queries, which are fewer than FEW_QUERIES.  For L2
 * most rows are discarded before, by their distances in fp32.
 */
static GvStatus
rerank_rows(Exact *exact, const float *rows, int64_t first, int64_t n,
			const GvStop *stop)
{
	int64_t		dims = exact->spec.dims;
	bool		direct = exact->spec.metric == GV_SET_L2;
	float		squares[GV_PREFILTER_ROWS];
	GvPoll		poll = {stop, 0};
	int64_t		query;
	int64_t		done;
	int64_t		i;

	for (done = 0; done < n; done += GV_PREFILTER_ROWS)
		for (query = 0; query < exact->spec.nqueries; query++)
		{
			int			some = gv_at_most(n - done, GV_PREFILTER_ROWS);
			float		limit = direct ? direct_limit(exact, query) : 0.0f;

			if (gv_poll(&poll, GV_PREFILTER_ROWS * (4 * dims + KNN_WORK)))
				return GV_CANCELED;
			if (direct)
				gv_kernels->sqdists(exact->queries + query * dims,
									rows + done * dims, some,
									exact->spec.dims, squares);
			for (i = done; i < done + some; i++)
				if (!(direct && squares[i - done] > limit) &&
					rerank_pair(exact, query, rows + i * dims, first + i) &&
					direct)
					limit = direct_limit(exact, query);
		}
	return GV_OK;
}

/* Compares a block of n rows with all queries. */
static bool
prefilter_block(Exact *exact, const float *rows, int64_t first, int64_t n,
				GvPoll *poll)
{
	const GvSetSpec *spec = &exact->spec;
	Pairing		pairing = {.queries = exact->tile,
	.places = exact->in_order};
	int64_t		query;
	int64_t		done;
	int			i;

	for (done = 0; done < n; done += GV_PREFILTER_ROWS)
		if (!make_panel(exact, rows + done * spec->dims,
						gv_at_most(n - done, GV_PREFILTER_ROWS),
						done / GV_PREFILTER_ROWS, poll))
			return false;
	for (query = 0; query < spec->nqueries; query += TILE_QUERIES)
	{
		pairing.nqueries = gv_at_most(spec->nqueries - query, TILE_QUERIES);
		for (i = 0; i < pairing.nqueries; i++)
			exact->tile[i] = (int32_t) query + i;
		place_queries(exact, exact->tile, pairing.nqueries);
		for (done = 0; done < n; done += GV_PREFILTER_ROWS)
		{
			pairing.rows = rows + done * spec->dims;
			pairing.first = first + done;
			pairing.nrows = gv_at_most(n - done, GV_PREFILTER_ROWS);
			pairing.panel = done / GV_PREFILTER_ROWS;
			if (!compare_panel(exact, &pairing, poll))
				return false;
		}
	}
	return true;
}

/* Searches rows [n], the first of which has position `first`. */
static GvStatus
search_rows(Exact *exact, const float *rows, int64_t first, int64_t n,
			const GvStop *stop)
{
	int64_t		block = exact->npanels * (int64_t) GV_PREFILTER_ROWS;
	int64_t		dims = exact->spec.dims;
	GvPoll		poll = {stop, 0};
	int64_t		done;

	if (has_lists(&exact->spec))
		return put_listed(exact, rows, n, stop);
	if (exact->spec.nqueries < FEW_QUERIES)
		return rerank_rows(exact, rows, first, n, stop);
	if (!exact->prefilter.is_fitted &&
		!prepare(exact, rows, n, &poll))
		return GV_CANCELED;
	for (done = 0; done < n; done += block)
		if (!prefilter_block(exact, rows + done * dims, first + done,
							 n - done < block ? n - done : block, &poll))
			return GV_CANCELED;
	return GV_OK;
}

/* Implements gv_set_put. */
static GvStatus
cpu_put(void *state, GvSetInput input, const void *items, int64_t first,
		int64_t n, const GvStop *stop)
{
	Exact	   *exact = state;
	int64_t		dims = exact->spec.dims;
	GvPoll		poll = {stop, 0};

	switch (input)
	{
		case GV_SET_QUERIES:
			return copy_vectors(exact, exact->queries, items, first, n, &poll) &&
				reset_nearest(exact, first, n, &poll) ? GV_OK : GV_CANCELED;
		case GV_SET_ROWS:
			if (exact->rows == NULL)
				return search_rows(exact, items, first, n, stop);
			exact->nrows = first + n;
			return copy_vectors(exact, exact->rows, items, first, n, &poll) ?
				GV_OK : GV_CANCELED;
		case GV_SET_LISTS:
			if (has_lists(&exact->spec))
				memcpy(exact->lists.centroids + first * dims, items,
					   sizeof(float) * (size_t) (n * dims));
			return GV_OK;
		default:				/* GV_SET_SELF */
			memcpy(exact->self + first, items, sizeof(int64_t) * (size_t) n);
			return GV_OK;
	}
}

/*
 * Implements gv_set_run: searches the rows that have not been searched yet,
 * and orders the neighbors.
 */
static GvStatus
cpu_run(void *state, GvSetDone *done, const GvStop *stop)
{
	Exact	   *exact = state;
	GvPoll		poll = {stop, 0};
	GvStatus	status = GV_OK;
	int64_t		q;
	int64_t		n;

	if (exact->spec.own &&
		!reset_nearest(exact, 0, exact->spec.nqueries, &poll))
		return GV_CANCELED;
	if (exact->rows != NULL)
		status = search_rows(exact, exact->rows, 0, exact->nrows, stop);
	if (status == GV_OK && has_lists(&exact->spec))
		status = search_lists(exact, stop);
	if (status != GV_OK)
		return status;

	/*
	 * sort the heap, so that the nearest row is first, and free places are
	 * last
	 */
	for (q = 0; q < exact->spec.nqueries; q++)
		for (n = exact->kept - 1; n > 0; n--)
		{
			GvKnn	   *heap = knn_of(exact, q);
			GvKnn		last = heap[0];

			if (gv_poll(&poll, KNN_WORK))
				return GV_CANCELED;
			replace_top(heap, n, heap[n]);
			heap[n] = last;
		}
	done->passes = 1;
	done->finished = 1;
	return GV_OK;
}

/* Implements gv_set_get.  A place that is free has position -1. */
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
		int64_t		rank = (first + i) % exact->spec.k;
		GvKnn		found = {NAN, GV_NO_ROW};

		if (rank < exact->kept)
			found = knn_of(exact, (first + i) / exact->spec.k)[rank];
		if (output == GV_SET_DISTANCES)
			distances[i] = found.distance;
		else
			positions[i] = found.position != GV_NO_ROW ? found.position : -1;
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
