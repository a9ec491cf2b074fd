/*
 * exactset.c
 *		Exact search over rows that come in batches.
 *
 * A block of rows at a time is made into panels, and all queries are
 * multiplied with the panels, a tile of queries at a time.  Pairs that the
 * prefilter (exact.h) cannot discard are rescored by gv_set_distance.  A
 * query's limit falls with its first rows, so of n rows in random order about
 * k (1 + log(n / k)) are rescored.
 *
 * Near lists have a section of their own below.  If all lists are near, lists
 * make no difference and are ignored.
 *
 * The memory that is needed, besides the queries and their neighbors, is that
 * of a block.
 */
#include <math.h>
#include <string.h>

#include "cpu/exact/exact.h"

/* The lists of a search with near lists, and the rows that are gathered. */
typedef struct NearLists
{
	GvSetSpec	spec;
	float	   *centroids;		/* [nlists][dims] */
	int32_t    *near;			/* [nlists][probes] lists, the nearest first */
	bool		has_queries;	/* near and query_order are filled */

	int64_t    *query_order;	/* [nqueries] numbers of queries, ordered by
								 * list */
	int64_t    *query_starts;	/* [nlists + 1] where each list begins in
								 * query_order */

	/* the block that is being gathered */
	int64_t		first;			/* position of its first row */
	int64_t		nrows;			/* rows gathered so far */
	int64_t		capacity;		/* rows of a block, at most */
	float	   *rows;			/* [capacity][dims] in the order in which they
								 * came */
	int32_t    *row_order;		/* [capacity] places in `rows`, ordered by
								 * list */
	int64_t    *row_starts;		/* [nlists + 1] where each list begins in
								 * row_order */
	int32_t    *panels;			/* [nlists] first panel of each list, for the
								 * caller */

	int32_t    *found;			/* [max(nqueries, capacity)] list of each
								 * vector */
} NearLists;

#define TILE_QUERIES	GV_CPU_TILE_ROWS	/* queries of a tile */

/* State of a set: its rows, if they are kept, and those of one question. */
typedef struct Exact
{
	GvSetSpec	spec;
	int64_t		kept;			/* neighbors that a query can have, <= k */
	bool		keeps;			/* rows are kept, for several questions */
	float	   *rows;			/* [nrows][dims] if they are kept */
	int64_t		nrows;
	float	   *queries;		/* [nqueries][dims]; if spec.own, part of
								 * `rows` */
	int64_t    *self;			/* [nqueries], if spec.self */
	GvKnn	   *nearest;		/* [nqueries][kept] neighbors */
	GvPrefilter prefilter;
	float	   *mean;			/* [dims] of the prefilter */
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
	int64_t		tile[TILE_QUERIES]; /* numbers of queries */
	int32_t		in_order[GV_PREFILTER_ROWS];	/* 0, 1, 2, .. */

	/* used with lists; else nlists of its spec is 0 */
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
	const float *panel;
	const float *squares;		/* [GV_PREFILTER_ROWS] */
	const int64_t *queries;		/* [nqueries] numbers of the queries */
	int			nqueries;		/* <= TILE_QUERIES */
} Pairing;

/* Returns a query's neighbors, which are a heap: the last of them is first. */
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

/*
 * The row that was rescored last for a query.  If all rows are equal, no
 * prefilter can discard any, but the next row is at the same distance.
 */
typedef struct Reranked
{
	const float *row;			/* NULL: no row was rescored */
	double		distance;
} Reranked;

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
	if (a.distance != a.distance || b.distance != b.distance)
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

/* Makes a heap of n free places. */
static void
knn_reset(GvKnn *heap, int64_t n)
{
	int64_t		i;

	for (i = 0; i < n; i++)
	{
		heap[i].distance = NAN;
		heap[i].position = GV_NO_ROW;
	}
}

/* Keeps a row if it comes before the last row kept, which is then dropped. */
static void
knn_push(GvKnn *heap, int64_t n, double distance, int64_t position)
{
	GvKnn		pair = {distance, position};

	if (is_before(pair, heap[0]))
		replace_top(heap, n, pair);
}

/*
 * Orders the pairs: the nearest row first, free places last.  They are no heap
 * afterwards.  Returns false if the caller must give up.
 */
static bool
knn_sort(GvKnn *heap, int64_t n, GvPoll *poll)
{
	while (n > 1)
	{
		GvKnn		last = heap[0];

		if (gv_poll(poll, GV_KNN_WORK))
			return false;
		n--;
		replace_top(heap, n, heap[n]);
		heap[n] = last;
	}
	return true;
}

/* ----
 * Compares a panel of rows with a tile of queries, and rescores pairs.
 */

#define MANY_LEFT		8		/* rows left from which on it pays to look for
								 * twins */

/* Rescores a pair.  Returns true if this changed the query's last neighbor. */
static bool
rerank_pair(Exact *exact, int64_t query, const float *row,
			int64_t position, Reranked *reranked)
{
	const GvSetSpec *spec = &exact->spec;
	GvKnn	   *nearest = knn_of(exact, query);
	GvKnn		last = nearest[0];

	if (is_self(exact, query, position))
		return false;

	/*
	 * All distances of this query are NaN, so the smallest positions count.
	 * Rows do not come in the order of their positions, so without this test
	 * many would be rescored.
	 */
	if (exact->lists.spec.nlists > 0 && last.distance != last.distance &&
		last.position < position && exact->prefiltered[query].is_null)
		return false;
	if (reranked->row == NULL ||
		memcmp(reranked->row, row, sizeof(float) * (size_t) spec->dims) != 0)
		reranked->distance = gv_set_distance((GvSetMetric) spec->metric,
											 exact->queries +
											 query * spec->dims, row,
											 spec->dims);
	reranked->row = row;
	knn_push(nearest, exact->kept, reranked->distance, position);
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

	/* rows with smaller positions may still come, and all have distance NaN */
	if (exact->lists.spec.nlists > 0 && prefiltered->is_null)
		return HUGE_VALF;
	return gv_prefilter_limit(&exact->prefilter, prefiltered,
							  knn_of(exact, query)[0]);
}

/*
 * Fits the prefilter to the first rows [n], and computes what the prefilter
 * needs of all queries.  Returns false if the caller must give up.
 */
static bool
prepare(Exact *exact, const float *rows, int64_t n, GvPoll *poll)
{
	const GvSetSpec *spec = &exact->spec;
	int64_t		query;

	gv_prefilter_fit(&exact->prefilter, rows,
					 gv_at_most(n, TILE_QUERIES), exact->placed);
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
	int			row;

	for (row = 0; row < pairing->nrows; row++)
	{
		int			twin = 0;

		/*
		 * rows with the same bits have the same square, and few other rows
		 * have it
		 */
		while (twin < row &&
			   (pairing->squares[twin] != pairing->squares[row] ||
				memcmp(rows + pairing->places[twin] * bytes,
					   rows + pairing->places[row] * bytes, bytes) != 0))
			twin++;
		exact->twins[row] = (uint8_t) twin;
	}
	exact->has_twins = true;
}

/*
 * Returns whether a row that was rescored, and did not change the query's last
 * neighbor, was too far away.  If so, every later row with the same bits is
 * too far, too, because it comes after this one.
 */
static bool
is_refused(const Exact *exact, int64_t query, int64_t position)
{
	return knn_of(exact, query)[0].position != GV_NO_ROW &&
		!is_self(exact, query, position);
}

/*
 * Rescores the rows of a panel that the prefilter of one query lets through.
 * Returns false if the caller must give up.
 */
static bool
sift(Exact *exact, const Pairing *pairing, int i, GvPoll *poll)
{
	uint64_t	refused = 0;	/* twins whose other rows are not rescored */
	const float *products = exact->products + i * GV_PREFILTER_ROWS;
	int64_t		query = pairing->queries[i];
	float	   *limit = &exact->limits[query];
	uint64_t	left = gv_kernels->within(pairing->squares, products, *limit);
	Reranked	reranked = {NULL, 0.0};

	if (pairing->nrows < GV_PREFILTER_ROWS)
		left &= (UINT64_C(1) << pairing->nrows) - 1;
	if (!exact->has_twins && __builtin_popcountll(left) >= MANY_LEFT)
		find_twins(exact, pairing);
	for (; left != 0; left &= left - 1)
	{
		int			row = __builtin_ctzll(left);
		int			twin = exact->has_twins ? exact->twins[row] : row;
		int64_t		place;

		if ((refused >> twin & 1) != 0)
			continue;

		/*
		 * the limit may have fallen since the estimates were compared with it
		 */
		if (pairing->squares[row] - 2.0f * products[row] > *limit)
			continue;
		if (gv_poll(poll, 4 * (int64_t) exact->spec.dims + GV_KNN_WORK))
			return false;
		place = pairing->places[row];
		if (rerank_pair(exact, query,
						pairing->rows + place * exact->spec.dims,
						pairing->first + place, &reranked))
			*limit = limit_of(exact, query);
		else if (is_refused(exact, query, pairing->first + place))
			refused |= UINT64_C(1) << twin;
	}
	return true;
}

/*
 * Compares a panel with a tile of queries that place_queries has placed.
 * Returns false if the caller must give up.
 */
static bool
compare_panel(Exact *exact, const Pairing *pairing, GvPoll *poll)
{
	int32_t		dims = exact->spec.dims;
	int			i;

	if (gv_poll(poll, (int64_t) pairing->nqueries * GV_PREFILTER_ROWS * dims))
		return false;
	exact->has_twins = false;
	gv_cpu_multiply(exact->placed, dims, pairing->nqueries, pairing->panel,
					exact->products);
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
place_queries(Exact *exact, const int64_t *queries, int n)
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
 * only (gv_set.h, "With nlists > 0").
 *
 * Rows are gathered until there is a block, so that a block has many rows of
 * each list.  Then they are ordered by list.
 *
 * The nearest lists are defined by an exact search among centroids, and are
 * found by it.
 */

#define GATHERED_FLOATS	(1 << 23)	/* floats of the rows of a block */
#define ROWS_OF_LIST	1024	/* rows of a list; more do not help */
#define ASKED_VECTORS	4096	/* vectors searched for at a time */
#define ASKED_RESULTS	(1 << 20)	/* results of a search, about */

/*
 * Returns the number of rows in a block.  In a panel each row takes at least a
 * whole slice.
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

/*
 * Returns the number of panels that are enough for all lists of a block, or
 * for most of them.  Allows for panels that are half empty, on average.
 */
static int32_t
near_lists_panels(const GvSetSpec *spec)
{
	return (int32_t) (2 * (block_rows(spec) / GV_PREFILTER_ROWS + 1));
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

/* Returns the bytes of such a search and its results. */
static int64_t
search_size(const GvSetSpec *spec, int32_t k)
{
	int64_t		n = asked_at_a_time(k);
	GvSetSpec	search = search_spec(spec, (GvSetMetric) spec->metric, k, n);

	return gv_cpu_exact_set.size(&search) + n * k * (int64_t) sizeof(int64_t);
}

static int64_t
found_of(const GvSetSpec *spec)
{
	int64_t		rows = block_rows(spec);

	return spec->nqueries > rows ? spec->nqueries : rows;
}

/* Returns the bytes of everything that lists need. */
static int64_t
near_lists_size(const GvSetSpec *spec)
{
	int64_t		nlists = spec->nlists;
	int64_t		list = (int64_t) sizeof(float) * spec->dims +
	(int64_t) sizeof(int32_t) * (spec->probes + 1) +
	2 * (int64_t) sizeof(int64_t);
	int64_t		row = (int64_t) sizeof(float) * spec->dims +
	(int64_t) sizeof(int32_t);
	int64_t		asked = search_size(spec, 1);
	int64_t		asked_near = search_size(spec, spec->probes);

	return nlists * list + block_rows(spec) * row +
		spec->nqueries * (int64_t) sizeof(int64_t) +
		found_of(spec) * (int64_t) sizeof(int32_t) +
		(asked > asked_near ? asked : asked_near);
}

/* Lays out the arrays behind *next of `memory`, like gv_carve. */
static void
near_lists_carve(NearLists *lists, const GvSetSpec *spec, char *memory,
				 size_t *next)
{
	size_t		nlists = (size_t) spec->nlists;
	size_t		capacity = (size_t) block_rows(spec);
	size_t		vector = sizeof(float) * (size_t) spec->dims;

	lists->spec = *spec;
	lists->capacity = (int64_t) capacity;
	lists->centroids = gv_carve(memory, next, vector * nlists);
	lists->near = gv_carve(memory, next,
						   sizeof(int32_t) * nlists * spec->probes);
	lists->query_order = gv_carve(memory, next, sizeof(int64_t) *
								  (size_t) spec->nqueries);
	lists->query_starts = gv_carve(memory, next,
								   sizeof(int64_t) * (nlists + 1));
	lists->rows = gv_carve(memory, next, vector * capacity);
	lists->row_order = gv_carve(memory, next, sizeof(int32_t) * capacity);
	lists->row_starts = gv_carve(memory, next,
								 sizeof(int64_t) * (nlists + 1));
	lists->panels = gv_carve(memory, next, sizeof(int32_t) * nlists);
	lists->found = gv_carve(memory, next, sizeof(int32_t) *
							(size_t) found_of(spec));
}

/* Stores centroids [n][dims], the first of which has number `first`. */
static void
near_lists_put(NearLists *lists, const float *centroids, int64_t first,
			   int64_t n)
{
	int64_t		dims = lists->spec.dims;

	memcpy(lists->centroids + first * dims, centroids,
		   sizeof(float) * (size_t) (n * dims));
}

/*
 * Gathers rows, as many as fit the memory.  Returns how many were gathered.
 */
static int64_t
near_lists_add(NearLists *lists, const float *rows, int64_t n)
{
	int64_t		dims = lists->spec.dims;
	int64_t		left = lists->capacity - lists->nrows;

	if (n > left)
		n = left;
	memcpy(lists->rows + lists->nrows * dims, rows,
		   sizeof(float) * (size_t) (n * dims));
	lists->nrows += n;
	return n;
}

/* Removes the rows of the block, and begins the next block. */
static void
near_lists_next(NearLists *lists)
{
	lists->first += lists->nrows;
	lists->nrows = 0;
}

/* Finds the centroids nearest to each of some vectors -> found [n][k]. */
static GvStatus
ask_some(const NearLists *lists, const GvSetSpec *search,
		 const float *vectors, int32_t *found, const GvStop *stop)
{
	const GvSetOps *ops = &gv_cpu_exact_set;
	int64_t		n = search->nqueries * search->k;
	int64_t    *numbers = gv_cpu_take(n, sizeof(int64_t));
	GvSetDone	done = {0};
	void	   *state;
	GvStatus	status;
	int64_t		i;

	status = numbers == NULL ? GV_NO_MEMORY : ops->create(search, &state);
	if (status != GV_OK)
	{
		free(numbers);
		return status;
	}
	status = ops->put(state, GV_SET_QUERIES, vectors, 0, search->nqueries,
					  stop);
	if (status == GV_OK)
		status = ops->put(state, GV_SET_ROWS, lists->centroids, 0,
						  search->nrows, stop);
	if (status == GV_OK)
		status = ops->run(state, &done, stop);
	if (status == GV_OK)
		status = ops->get(state, GV_SET_POSITIONS, 0, n, numbers);
	for (i = 0; status == GV_OK && i < n; i++)
		found[i] = (int32_t) numbers[i];
	ops->drop(state);
	free(numbers);
	return status;
}

/* Like ask_some, for any number of vectors [n][dims]. */
static GvStatus
ask(const NearLists *lists, GvSetMetric metric, int32_t k,
	const float *vectors, int64_t n, int32_t *found, const GvStop *stop)
{
	int64_t		most = asked_at_a_time(k);
	GvStatus	status = GV_OK;
	int64_t		done;

	for (done = 0; status == GV_OK && done < n; done += most)
	{
		GvSetSpec	search = search_spec(&lists->spec, metric, k,
										 n - done < most ? n - done : most);

		status = ask_some(lists, &search, vectors + done * search.dims,
						  found + done * k, stop);
	}
	return status;
}

/* Finds the list of each vector, and stores it in lists->found. */
static GvStatus
find_lists(NearLists *lists, const float *vectors, int64_t n,
		   const GvStop *stop)
{
	GvSetMetric metric = (GvSetMetric) lists->spec.metric;

	return ask(lists, metric == GV_SET_IP ? GV_SET_L2 : metric, 1, vectors, n,
			   lists->found, stop);
}

/*
 * Computes from lists->found [n] where each list begins, if vectors are
 * ordered by list.
 */
static void
count(const NearLists *lists, int64_t n, int64_t *starts)
{
	int64_t		i;
	int32_t		list;

	memset(starts, 0, sizeof(int64_t) * ((size_t) lists->spec.nlists + 1));
	for (i = 0; i < n; i++)
		starts[lists->found[i] + 1]++;
	for (list = 0; list < lists->spec.nlists; list++)
		starts[list + 1] += starts[list];
}

/*
 * Orders the queries by list, and finds the lists that are near to each list.
 */
static GvStatus
sort_queries(NearLists *lists, const float *queries, const GvStop *stop)
{
	const GvSetSpec *spec = &lists->spec;
	int64_t    *starts = lists->query_starts;
	GvStatus	status;
	int64_t		i;

	status = ask(lists, (GvSetMetric) spec->metric, spec->probes,
				 lists->centroids, spec->nlists, lists->near, stop);
	if (status == GV_OK)
		status = find_lists(lists, queries, spec->nqueries, stop);
	if (status != GV_OK)
		return status;
	count(lists, spec->nqueries, starts);
	for (i = 0; i < spec->nqueries; i++)
		lists->query_order[starts[lists->found[i]]++] = i;
	/* each start has become the end of its list */
	memmove(starts + 1, starts, sizeof(int64_t) * (size_t) spec->nlists);
	starts[0] = 0;
	lists->has_queries = true;
	return GV_OK;
}

/*
 * Orders the gathered rows by list and, in the first call, queries
 * [nqueries][dims], too.
 */
static GvStatus
near_lists_sort(NearLists *lists, const float *queries,
				const GvStop *stop)
{
	int64_t    *starts = lists->row_starts;
	GvStatus	status = GV_OK;
	int64_t		i;

	if (!lists->has_queries)
		status = sort_queries(lists, queries, stop);
	if (status == GV_OK)
		status = find_lists(lists, lists->rows, lists->nrows, stop);
	if (status != GV_OK)
		return status;
	count(lists, lists->nrows, starts);
	for (i = 0; i < lists->nrows; i++)
		lists->row_order[starts[lists->found[i]]++] = (int32_t) i;
	memmove(starts + 1, starts, sizeof(int64_t) * (size_t) lists->spec.nlists);
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

/* Makes panel number `panel` from n rows of one list. */
static void
gather_panel(Exact *exact, const int32_t *places, int n, int32_t panel)
{
	int64_t		dims = exact->spec.dims;
	const float *rows = exact->lists.rows;
	int			i;

	for (i = 0; i < n; i++)
		memcpy(exact->gathered + i * dims, rows + places[i] * dims,
			   sizeof(float) * (size_t) dims);
	gv_prefilter_rows(&exact->prefilter, exact->gathered, n, exact->placed,
					  exact->panels + panel * gv_cpu_panel((int32_t) dims),
					  exact->squares + panel * (int64_t) GV_PREFILTER_ROWS);
}

/*
 * Makes the panels of the block's lists from `from` on, of as many lists as
 * fit the memory.  At least one list fits, because no list has more rows than
 * the block.  Returns the first list that is left, or -1 if the caller must
 * give up.
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
						 gv_at_most(n - done, GV_PREFILTER_ROWS), npanels++);
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
	int64_t		panel = lists->panels[list];
	int64_t		next = lists->row_starts[list];
	int64_t		end = lists->row_starts[list + 1];

	for (; next < end; next += GV_PREFILTER_ROWS)
	{
		pairing->places = lists->row_order + next;
		pairing->nrows = gv_at_most(end - next, GV_PREFILTER_ROWS);
		pairing->panel = exact->panels +
			panel * gv_cpu_panel(exact->spec.dims);
		pairing->squares = exact->squares + panel * GV_PREFILTER_ROWS;
		if (!compare_panel(exact, pairing, poll))
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
	GvPoll		poll = {stop, 0};
	GvStatus	status;
	int32_t		from;
	int32_t		to;
	int32_t		list;

	if (lists->nrows == 0)
		return GV_OK;
	status = near_lists_sort(lists, exact->queries, stop);
	if (status != GV_OK)
		return status;
	if (!exact->prefilter.is_fitted &&
		!prepare(exact, lists->rows, lists->nrows, &poll))
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
	near_lists_next(lists);
	return GV_OK;
}

/* Gathers rows [n], and searches each block that is full. */
static GvStatus
put_listed(Exact *exact, const float *rows, int64_t n,
		   const GvStop *stop)
{
	int64_t		done = 0;

	while (done < n)
	{
		done += near_lists_add(&exact->lists,
							   rows + done * exact->spec.dims, n - done);
		if (exact->lists.nrows == exact->lists.capacity)
		{
			GvStatus	status = search_lists(exact, stop);

			if (status != GV_OK)
				return status;
		}
	}
	return GV_OK;
}

/* ---- the set ---- */

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
	(int32_t) (BLOCK_FLOATS / gv_cpu_panel(spec->dims));

	if (has_lists(spec))
		return near_lists_panels(spec);
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
	int64_t		block = (int64_t) gv_cpu_panel(spec->dims) *
	panels_of(spec) + (int64_t) TILE_QUERIES * spec->dims;
	int64_t		lists = has_lists(spec) ? near_lists_size(spec) : 0;

	return spec->nqueries * query + (int64_t) sizeof(float) * block + lists +
		(spec->own ? spec->nrows * vector : 0);
}

static void
cpu_drop(void *state)
{
	Exact	   *exact = state;

	free(exact->memory);
	free(exact->rows);
	free(exact);
}

/*
 * Lays out the arrays of a question in `memory`, and returns their size.  If
 * `memory` is NULL, only computes the size.
 */
static size_t
carve_question(Exact *exact, char *memory)
{
	const GvSetSpec *spec = &exact->spec;
	size_t		vector = sizeof(float) * (size_t) spec->dims;
	size_t		n = (size_t) spec->nqueries;
	size_t		npanels = (size_t) exact->npanels;
	size_t		next = 0;

	if (spec->own)
		exact->queries = exact->rows + spec->first * spec->dims;
	else
		exact->queries = gv_carve(memory, &next, vector * n);
	exact->self = gv_carve(memory, &next, spec->self ? sizeof(int64_t) * n : 0);
	exact->nearest = gv_carve(memory, &next,
							  sizeof(GvKnn) * n * (size_t) exact->kept);
	exact->mean = gv_carve(memory, &next, vector);
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
		near_lists_carve(&exact->lists, spec, memory, &next);
	return next;
}

/*
 * Begins a question.  Rows may be there already.  Returns false if there is no
 * memory.
 */
static bool
begin_question(Exact *exact, const GvSetSpec *spec)
{
	int			i;

	exact->spec = *spec;
	exact->kept = kept_of(spec);
	exact->npanels = panels_of(spec);
	exact->memory = gv_cpu_take((int64_t) carve_question(exact, NULL), 1);
	if (exact->memory == NULL)
		return false;
	(void) carve_question(exact, exact->memory);
	gv_prefilter_reset(&exact->prefilter, (GvSetMetric) spec->metric,
					   spec->dims, exact->mean);
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
	Exact	   *exact = state;
	Exact		rows = {.keeps = true, .rows = exact->rows,
	.nrows = exact->nrows};

	free(exact->memory);
	*exact = rows;
	return begin_question(exact, spec) ? GV_OK : GV_NO_MEMORY;
}

/*
 * Copies vectors [n] to their places in `to`.  `first` is the number of the
 * first one.
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
	int64_t		i;

	for (i = first; i < first + n; i++)
	{
		if (gv_poll(poll, exact->kept))
			return false;
		knn_reset(exact->nearest + i * exact->kept, exact->kept);
	}
	return true;
}

static GvStatus
put_queries(Exact *exact, const float *queries, int64_t first, int64_t n,
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
direct_limit(const Exact *exact, int64_t query)
{
	double		last = knn_of(exact, query)[0].distance;
	double		slack = (exact->spec.dims / 8 + 32) * GV_FILTER_UNIT;
	double		limit = last * last * (1.0 + slack) + FLT_MIN;

	return limit < 1e36 ? (float) limit : HUGE_VALF;
}

/* Rescores n <= GV_PREFILTER_ROWS rows for one query. */
static void
rerank_some(Exact *exact, int64_t query, const float *rows, int64_t first,
			int n)
{
	int64_t		dims = exact->spec.dims;
	bool		direct = exact->spec.metric == GV_SET_L2;
	float		limit = HUGE_VALF;
	float		squares[GV_PREFILTER_ROWS];
	Reranked	reranked = {NULL, 0.0};
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
		if (rerank_pair(exact, query, rows + i * dims, first + i,
						&reranked) && direct)
			limit = direct_limit(exact, query);
	}
}

/* Rescores rows [n] for all queries, which are fewer than FEW_QUERIES. */
static GvStatus
rerank_rows(Exact *exact, const float *rows, int64_t first, int64_t n,
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
						gv_at_most(n - done, GV_PREFILTER_ROWS));
		}
	return GV_OK;
}

/* Makes the panels of a block of n rows. */
static bool
make_panels(Exact *exact, const float *rows, int64_t n, GvPoll *poll)
{
	int64_t		dims = exact->spec.dims;
	int32_t		p;

	for (p = 0; p * (int64_t) GV_PREFILTER_ROWS < n; p++)
	{
		int64_t		done = p * (int64_t) GV_PREFILTER_ROWS;

		if (gv_poll(poll, 8 * GV_PREFILTER_ROWS * dims))
			return false;
		gv_prefilter_rows(&exact->prefilter, rows + done * dims,
						  gv_at_most(n - done, GV_PREFILTER_ROWS),
						  exact->placed,
						  exact->panels + p * gv_cpu_panel((int32_t) dims),
						  exact->squares + done);
	}
	return true;
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

	if (!make_panels(exact, rows, n, poll))
		return false;
	for (query = 0; query < spec->nqueries; query += TILE_QUERIES)
	{
		pairing.nqueries = gv_at_most(spec->nqueries - query, TILE_QUERIES);
		for (i = 0; i < pairing.nqueries; i++)
			exact->tile[i] = query + i;
		place_queries(exact, exact->tile, pairing.nqueries);
		pairing.panel = exact->panels;
		for (done = 0; done < n; done += GV_PREFILTER_ROWS)
		{
			pairing.rows = rows + done * spec->dims;
			pairing.first = first + done;
			pairing.nrows = gv_at_most(n - done, GV_PREFILTER_ROWS);
			pairing.squares = exact->squares + done;
			if (!compare_panel(exact, &pairing, poll))
				return false;
			pairing.panel += gv_cpu_panel(spec->dims);
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

	if (exact->lists.spec.nlists > 0)
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

static GvStatus
put_rows(Exact *exact, const float *rows, int64_t first, int64_t n,
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
search_kept(Exact *exact, const GvStop *stop)
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
	Exact	   *exact = state;

	if (input == GV_SET_QUERIES)
		return put_queries(exact, items, first, n, stop);
	if (input == GV_SET_ROWS)
		return put_rows(exact, items, first, n, stop);
	if (input == GV_SET_LISTS)
	{
		if (exact->lists.spec.nlists > 0)
			near_lists_put(&exact->lists, items, first, n);
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
	Exact	   *exact = state;
	GvPoll		poll = {stop, 0};
	GvStatus	status = exact->keeps ? search_kept(exact, stop) : GV_OK;
	int64_t		q;

	if (status == GV_OK && exact->lists.spec.nlists > 0)
		status = search_lists(exact, stop);
	if (status != GV_OK)
		return status;
	for (q = 0; q < exact->spec.nqueries; q++)
		if (!knn_sort(knn_of(exact, q), exact->kept, &poll))
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
neighbor(const Exact *exact, int64_t item)
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
	const Exact *exact = state;
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
