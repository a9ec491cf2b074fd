/*
 * nearlists.c
 *		Lists of queries and rows (see gv_nearlists.h).
 *
 * The nearest lists are defined by an exact search among centroids, and are
 * found by it.
 */
#include "cpu/exact/gv_nearlists.h"

#include <string.h>

#include "cpu/exact/gv_exactset.h"

#define BLOCK_FLOATS	(1 << 23)	/* floats of the rows of a block */
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
	int64_t		rows = BLOCK_FLOATS / floats;

	if (rows < GV_PREFILTER_ROWS)
		rows = GV_PREFILTER_ROWS;
	if (rows > spec->nlists * (int64_t) ROWS_OF_LIST)
		rows = spec->nlists * (int64_t) ROWS_OF_LIST;
	return rows < spec->nrows ? rows : spec->nrows;
}

/* Allows for panels that are half empty, on average. */
int32_t
gv_near_lists_panels(const GvSetSpec *spec)
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

int64_t
gv_near_lists_size(const GvSetSpec *spec)
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

void
gv_near_lists_drop(GvNearLists *lists)
{
	if (lists == NULL)
		return;
	free(lists->centroids);
	free(lists->near);
	free(lists->query_order);
	free(lists->query_starts);
	free(lists->rows);
	free(lists->row_order);
	free(lists->row_starts);
	free(lists->panels);
	free(lists->found);
	free(lists);
}

GvNearLists *
gv_near_lists_make(const GvSetSpec *spec)
{
	GvNearLists *lists = calloc(1, sizeof(*lists));
	int64_t		nlists = spec->nlists;

	if (lists == NULL)
		return NULL;
	lists->spec = *spec;
	lists->capacity = block_rows(spec);
	lists->centroids = gv_cpu_take(nlists * spec->dims, sizeof(float));
	lists->near = gv_cpu_take(nlists * spec->probes, sizeof(int32_t));
	lists->query_order = gv_cpu_take(spec->nqueries, sizeof(int64_t));
	lists->query_starts = gv_cpu_take(nlists + 1, sizeof(int64_t));
	lists->rows = gv_cpu_take(lists->capacity * spec->dims, sizeof(float));
	lists->row_order = gv_cpu_take(lists->capacity, sizeof(int32_t));
	lists->row_starts = gv_cpu_take(nlists + 1, sizeof(int64_t));
	lists->panels = gv_cpu_take(nlists, sizeof(int32_t));
	lists->found = gv_cpu_take(found_of(spec), sizeof(int32_t));
	if (lists->centroids != NULL && lists->near != NULL &&
		lists->query_order != NULL && lists->query_starts != NULL &&
		lists->rows != NULL && lists->row_order != NULL &&
		lists->row_starts != NULL && lists->panels != NULL &&
		lists->found != NULL)
		return lists;
	gv_near_lists_drop(lists);
	return NULL;
}

void
gv_near_lists_put(GvNearLists *lists, const float *centroids, int64_t first,
				  int64_t n)
{
	int64_t		dims = lists->spec.dims;

	memcpy(lists->centroids + first * dims, centroids,
		   sizeof(float) * (size_t) (n * dims));
}

int64_t
gv_near_lists_add(GvNearLists *lists, const float *rows, int64_t n)
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

void
gv_near_lists_next(GvNearLists *lists)
{
	lists->first += lists->nrows;
	lists->nrows = 0;
}

/* Finds the centroids nearest to each of some vectors -> found [n][k]. */
static GvStatus
ask_some(const GvNearLists *lists, const GvSetSpec *search,
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
ask(const GvNearLists *lists, GvSetMetric metric, int32_t k,
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
find_lists(GvNearLists *lists, const float *vectors, int64_t n,
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
count(const GvNearLists *lists, int64_t n, int64_t *starts)
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
sort_queries(GvNearLists *lists, const float *queries, const GvStop *stop)
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

GvStatus
gv_near_lists_sort(GvNearLists *lists, const float *queries,
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
