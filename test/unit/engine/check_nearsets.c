/*
 * check_nearsets.c
 *		Exact search of only the rows of near lists, against what gv_set.h
 *		says of it, done one pair after the other.
 */
#include "sets.h"

/* Vectors of one check. */
typedef struct Case
{
	GvSetSpec	spec;
	float	   *queries;		/* [nqueries][dims] */
	float	   *rows;			/* [nrows][dims] */
	float	   *lists;			/* [nlists][dims] */
	int64_t    *self;			/* [nqueries] */
	int64_t		nrows;
} Case;

/* The number of the nearest centroid. */
static int32_t
list_of(const Case *test, const float *vector)
{
	GvSetSpec	spec = test->spec;
	FREED Neighbor *sorted = NULL;
	int32_t		list;

	if (spec.metric == GV_SET_IP)
		spec.metric = GV_SET_L2;
	sorted = sorted_rows(&spec, vector, test->lists, spec.nlists);
	list = (int32_t) sorted[0].position;
	return list;
}

/* The rows of near lists in order, for a query; how many. */
static Neighbor *
near_rows(const Case *test, const float *query, const int32_t *row_lists,
		  int64_t *n)
{
	const GvSetSpec *spec = &test->spec;
	const float *centroid = test->lists + list_of(test, query) * spec->dims;
	FREED Neighbor *lists = sorted_rows(spec, centroid, test->lists,
									spec->nlists);
	Neighbor  *rows = sorted_rows(spec, query, test->rows, test->nrows);
	int64_t		i;
	int32_t		l;

	*n = 0;
	for (i = 0; i < test->nrows; i++)
	{
		for (l = 0; l < spec->probes; l++)
			if (lists[l].position == row_lists[rows[i].position])
				break;
		if (l < spec->probes)
			rows[(*n)++] = rows[i];
	}
	return rows;
}

/* One set of vectors, for some k and batches. */
static void
check_case(Case *test)
{
	GvSetSpec  *spec = &test->spec;
	const int32_t ks[] = {1, 4, 10, (int32_t) test->nrows + 3};
	int64_t		n = spec->nqueries;
	FREED Neighbor **sorted = malloc(sizeof(Neighbor *) * n);
	FREED int64_t *nsorted = malloc(sizeof(int64_t) * n);
	FREED int32_t *row_lists = malloc(sizeof(int32_t) * test->nrows);
	int64_t		i;
	int			k;

	for (i = 0; i < test->nrows; i++)
		row_lists[i] = list_of(test, test->rows + i * spec->dims);
	for (i = 0; i < n; i++)
		sorted[i] = near_rows(test, test->queries + i * spec->dims, row_lists,
							  &nsorted[i]);
	for (k = 0; k < 4; k++)
	{
		SetInputs	inputs = {test->queries, test->self, test->rows,
			test->nrows, 1 + (int64_t) (unit_random() % test->nrows),
		test->lists};

		spec->k = ks[k];
		spec->nrows = test->nrows + (k == 2 ? 5 : 0);
		spec->self = (uint8_t) (!spec->own && unit_random() % 2);
		gv_simd_use(k < 2 ? unit_simd() :
					(GvSimd) (GV_SIMD_PORTABLE + k % (GV_NSIMD - 1)));
		check_search(spec, &inputs, sorted, nsorted);
	}
	gv_simd_use(unit_simd());
	for (i = 0; i < n; i++)
		free(sorted[i]);
}

/*
 * Centroids of the rows' kind, some of them rows, some twice: lists of any
 * size, and lists that are not near themselves.
 */
static void
make_lists(Case *test, Kind kind)
{
	int32_t		dims = test->spec.dims;
	int32_t		l;

	for (l = 0; l < test->spec.nlists; l++)
	{
		uint64_t	choice = unit_random();
		const float *like = NULL;

		if (choice % 4 == 0)
			like = test->rows + choice / 4 % test->nrows * dims;
		else if (choice % 4 == 1 && l > 0)
			like = test->lists + choice / 4 % l * dims;
		if (like != NULL)
			memcpy(test->lists + l * dims, like, sizeof(float) * dims);
		else
			make_vector(kind, test->lists + l * dims, dims, test->rows,
						test->nrows);
	}
}

/* Queries that are rows, some or all of them. */
static void
check_own(const Case *test)
{
	Case		own = *test;

	own.spec.own = 1;
	own.spec.first = (int64_t) (unit_random() % (uint64_t) test->nrows);
	own.spec.nqueries = 1 + (int64_t)
		(unit_random() % (uint64_t) (test->nrows - own.spec.first));
	own.queries = test->rows + own.spec.first * test->spec.dims;
	check_case(&own);
}

static void
check_kind(Kind kind, int32_t dims, int64_t nqueries, int64_t nrows,
		   int32_t nlists)
{
	Case		test = {.spec = {.kind = GV_SET_EXACT,.dims = dims,
	.nqueries = nqueries,.nlists = nlists},.nrows = nrows};
	int64_t		i;

	test.rows = unit_alloc(sizeof(float) * nrows * dims);
	test.queries = unit_alloc(sizeof(float) * nqueries * dims);
	test.lists = unit_alloc(sizeof(float) * nlists * dims);
	test.self = unit_alloc(sizeof(int64_t) * nqueries);
	for (i = 0; i < nrows; i++)
		make_vector(kind, test.rows + i * dims, dims, test.rows, i);
	for (i = 0; i < nqueries; i++)
	{
		test.self[i] = (int64_t) (unit_random() % (nrows + 3)) - 1;
		if (unit_random() % 3 == 0)
			memcpy(test.queries + i * dims,
				   test.rows + unit_random() % nrows * dims,
				   sizeof(float) * dims);
		else
			make_vector(kind, test.queries + i * dims, dims, test.rows, nrows);
	}
	make_lists(&test, kind);
	for (test.spec.metric = GV_SET_L2; test.spec.metric <= GV_SET_PEARSON;
		 test.spec.metric++)
	{
		test.spec.probes = 1 + (int32_t) (unit_random() % nlists);
		check_case(&test);
		if (test.spec.metric == GV_SET_L2 + (int32_t) kind % 4)
			check_own(&test);
	}
	unit_free(test.rows);
	unit_free(test.queries);
	unit_free(test.lists);
	unit_free(test.self);
}

/* All rows of more than one block, and all probes. */
static void
check_blocks(void)
{
	int32_t		dims = 3;
	int32_t		nlists = 4;
	Case		test = {.spec = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,
			.dims = dims,.nqueries = 20,.nlists = nlists},
	.nrows = unit_small ? 6000 : 13000};

	test.rows = unit_floats((size_t) test.nrows * dims, 1.0f);
	test.queries = unit_floats((size_t) test.spec.nqueries * dims, 1.0f);
	test.lists = unit_floats((size_t) nlists * dims, 1.0f);
	test.self = unit_alloc(sizeof(int64_t) * test.spec.nqueries);
	for (int64_t i = 0; i < test.spec.nqueries; i++)
		test.self[i] = 100 * i;
	for (test.spec.probes = 1; test.spec.probes <= nlists; test.spec.probes++)
		check_case(&test);
	unit_free(test.rows);
	unit_free(test.queries);
	unit_free(test.lists);
	unit_free(test.self);
}

void
test_near_sets(void)
{
	Kind		kind;
	int			i;

	for (kind = 0; kind < NKINDS; kind++)
	{
		check_kind(kind, 1 + (int32_t) (unit_random() % 40), 3, 1, 1);
		check_kind(kind, 7, 60, 170, 9);
		check_kind(kind, 64, 5, 500, 3);
		check_kind(kind, 129, 9, 200, 70);
	}
	for (i = 0; i < (unit_small ? 12 : 200); i++)
		check_kind((Kind) (i % NKINDS), 1 + (int32_t) (unit_random() % 150),
				   1 + (int64_t) (unit_random() % 30),
				   1 + (int64_t) (unit_random() % 200),
				   1 + (int32_t) (unit_random() % 25));
	check_blocks();
}
