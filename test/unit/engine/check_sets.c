/*
 * check_sets.c
 *		Exact search over sets, of all rows and of those of near lists, against
 *		what gv_set.h says of it, done one pair after the other: nothing that
 *		counts is discarded.
 */
#include "sets.h"

typedef struct Neighbor
{
	double		distance;
	int64_t		position;
} Neighbor;

static int
compare_neighbors(const void *a, const void *b)
{
	const Neighbor *x = a;
	const Neighbor *y = b;
	bool		x_last = isnan(x->distance);
	bool		y_last = isnan(y->distance);

	if (x_last != y_last)
		return x_last ? 1 : -1;
	if (!x_last && x->distance != y->distance)
		return x->distance < y->distance ? -1 : 1;
	return x->position < y->position ? -1 : x->position > y->position;
}

/* Eight partial sums, added pairwise: the sums that gv_set.h prescribes. */
static double
lanes8(const double *terms, int32_t n)
{
	double		sums[8] = {0};
	int32_t		i;
	int			half;

	for (i = 0; i < n; i++)
		sums[i % 8] += terms[i];
	for (half = 4; half > 0; half /= 2)
		for (i = 0; i < half; i++)
			sums[i] += sums[i + half];
	return sums[0];
}

static double
naive_dot(const float *a, double a_shift, const float *b, double b_shift,
		  int32_t dims, bool squares)
{
	static double terms[GV_MAX_DIMS];
	int32_t		i;

	for (i = 0; i < dims; i++)
	{
		double		x = (double) a[i] - a_shift;
		double		y = (double) b[i] - b_shift;

		terms[i] = squares ? (x - y) * (x - y) : x * y;
	}
	return lanes8(terms, dims);
}

static double
naive_mean(const float *a, int32_t dims)
{
	static double terms[GV_MAX_DIMS];
	int32_t		i;

	for (i = 0; i < dims; i++)
		terms[i] = a[i];
	return lanes8(terms, dims) / dims;
}

static double
naive_distance(GvSetMetric metric, const float *a, const float *b,
			   int32_t dims)
{
	double		a_mean = 0.0;
	double		b_mean = 0.0;
	double		cosine;

	if (metric == GV_SET_L2)
		return sqrt(naive_dot(a, 0.0, b, 0.0, dims, true));
	if (metric == GV_SET_IP)
		return -naive_dot(a, 0.0, b, 0.0, dims, false);
	if (metric == GV_SET_PEARSON)
	{
		a_mean = naive_mean(a, dims);
		b_mean = naive_mean(b, dims);
	}
	cosine = naive_dot(a, a_mean, b, b_mean, dims, false) /
		sqrt(naive_dot(a, a_mean, a, a_mean, dims, false) *
			 naive_dot(b, b_mean, b, b_mean, dims, false));
	return isnan(cosine) ? NAN : 1.0 - fmax(-1.0, fmin(1.0, cosine));
}

/* Rows [nrows] in order, for a query; to be freed. */
static Neighbor *
sorted_rows(GvSetMetric metric, int32_t dims, const float *query,
			const float *rows, int64_t nrows)
{
	Neighbor   *sorted = malloc(sizeof(Neighbor) * nrows);
	int64_t		i;

	for (i = 0; i < nrows; i++)
		sorted[i] = (Neighbor) {naive_distance(metric, query, rows + i * dims,
											   dims), i};
	qsort(sorted, nrows, sizeof(Neighbor), compare_neighbors);
	return sorted;
}

/* The number of the nearest centroid. */
static int32_t
list_of(const GvSetSpec *spec, const SetInputs *inputs, const float *vector)
{
	GvSetMetric metric = spec->metric == GV_SET_IP ? GV_SET_L2 : spec->metric;
	FREED Neighbor *sorted = sorted_rows(metric, spec->dims, vector,
										 inputs->lists, spec->nlists);

	return (int32_t) sorted[0].position;
}

/*
 * The *n rows that may be neighbors of a query, in order: all, or those of
 * near lists.
 */
static Neighbor *
expect_rows(const GvSetSpec *spec, const SetInputs *inputs,
			const float *query, const int32_t *row_lists, int64_t *n)
{
	Neighbor   *rows = sorted_rows(spec->metric, spec->dims, query,
								   inputs->rows, inputs->nrows);
	FREED Neighbor *lists = NULL;
	int64_t		i;
	int32_t		l;

	*n = inputs->nrows;
	if (spec->nlists == 0)
		return rows;
	lists = sorted_rows(spec->metric, spec->dims, inputs->lists +
						(int64_t) list_of(spec, inputs, query) * spec->dims,
						inputs->lists, spec->nlists);
	*n = 0;
	for (i = 0; i < inputs->nrows; i++)
	{
		for (l = 0; l < spec->probes; l++)
			if (lists[l].position == row_lists[rows[i].position])
				break;
		if (l < spec->probes)
			rows[(*n)++] = rows[i];
	}
	return rows;
}

/* How many of a query's neighbors are not what they ought to be? */
static int64_t
count_wrong(const GvSetSpec *spec, const Neighbor *sorted, int64_t nrows,
			int64_t self, const int64_t *positions, const double *distances)
{
	int64_t		next = 0;
	int64_t		nwrong = 0;
	int32_t		rank;

	for (rank = 0; rank < spec->k; rank++)
	{
		if (next < nrows && sorted[next].position == self)
			next++;
		if (next >= nrows)
			nwrong += positions[rank] != -1 || !isnan(distances[rank]);
		else
			nwrong += positions[rank] != sorted[next].position ||
				(isnan(sorted[next].distance) ? !isnan(distances[rank]) :
				 distances[rank] != sorted[next].distance);
		next++;
	}
	return nwrong;
}

/* One search, whose result must be sorted [nqueries][nsorted[i]]. */
static void
check_search(const GvSetSpec *spec, const SetInputs *inputs,
			 Neighbor *const *sorted, const int64_t *nsorted)
{
	int64_t		n = spec->nqueries * spec->k;
	OWN int64_t *positions = unit_alloc(sizeof(int64_t) * n);
	OWN double *distances = unit_alloc(sizeof(double) * n);
	int64_t		nwrong = 0;
	int64_t		i;

	find_neighbors(spec, inputs, positions, distances);
	for (i = 0; i < spec->nqueries; i++)
		nwrong += count_wrong(spec, sorted[i], nsorted[i],
							  spec->own ? spec->first + i :
							  spec->self ? inputs->self[i] : -1,
							  positions + i * spec->k,
							  distances + i * spec->k);
	CHECK(nwrong == 0, "%ld wrong, metric %d dims %d k %d queries %ld "
		  "rows %ld by %ld self %d own %d lists %d probes %d", (long) nwrong,
		  spec->metric, spec->dims, spec->k, (long) spec->nqueries,
		  (long) inputs->nrows, (long) inputs->batch, spec->self, spec->own,
		  spec->nlists, spec->probes);
}

/*
 * Some k and batches, with and without self, at some levels, of queries that
 * may be rows themselves.
 */
static void
check_inputs(GvSetSpec spec, SetInputs inputs)
{
	int64_t		nrows = inputs.nrows;
	const int64_t ks[] = {1, 3, 10, nrows, nrows + 7};
	const float *queries = spec.own ? inputs.rows + spec.first * spec.dims :
		inputs.queries;
	int64_t		n = spec.nqueries;
	FREED Neighbor **sorted = malloc(sizeof(Neighbor *) * n);
	FREED int64_t *nsorted = malloc(sizeof(int64_t) * n);
	FREED int32_t *row_lists = malloc(sizeof(int32_t) * nrows);
	int64_t		i;
	int			k;

	for (i = 0; spec.nlists > 0 && i < nrows; i++)
		row_lists[i] = list_of(&spec, &inputs, inputs.rows + i * spec.dims);
	for (i = 0; i < n; i++)
		sorted[i] = expect_rows(&spec, &inputs, queries + i * spec.dims,
								row_lists, &nsorted[i]);
	for (k = 0; k < 5; k++)
	{
		const int64_t batches[] = {1 + (int64_t) (unit_random() % nrows),
		nrows, 64};

		inputs.batch = batches[k % 3];
		spec.k = (int32_t) ks[k];
		spec.nrows = nrows + (k == 2 ? 5 : 0);
		spec.self = (uint8_t) (!spec.own && unit_random() % 2);
		gv_simd_use(k < 2 ? unit_simd() :
					(GvSimd) (GV_SIMD_PORTABLE +
							  (k + spec.metric) % (GV_NSIMD - 1)));
		check_search(&spec, &inputs, sorted, nsorted);
	}
	gv_simd_use(unit_simd());
	for (i = 0; i < n; i++)
		free(sorted[i]);
}

/* All metrics; with lists, of all rows or, if nlists is 0, none. */
static void
check_kind(Kind kind, int32_t dims, int64_t nqueries, int64_t nrows,
		   int32_t nlists)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.dims = dims,
	.nqueries = nqueries,.nlists = nlists};
	OwnInputs	inputs = make_inputs(&spec, kind, nrows);

	for (spec.metric = GV_SET_L2; spec.metric <= GV_SET_PEARSON; spec.metric++)
	{
		GvSetSpec	own;
		int64_t		most;

		if (nlists > 0)
			spec.probes = 1 + (int32_t) (unit_random() % nlists);
		check_inputs(spec, inputs);
		if (nlists > 0 && spec.metric != GV_SET_L2 + (int32_t) kind % 4)
			continue;
		own = spec;
		own.own = 1;
		own.first = (int64_t) (unit_random() % (uint64_t) nrows);
		most = nrows - own.first < 40 ? nrows - own.first : 40;
		own.nqueries = 1 + (int64_t) (unit_random() % (uint64_t) most);
		check_inputs(own, inputs);
	}
}

void
test_exact_sets(void)
{
	Kind		kind;
	int32_t		dims;

	for (kind = 0; kind < NKINDS; kind++)
	{
		check_kind(kind, 1 + (int32_t) (unit_random() % 40), 3, 1, 0);
		check_kind(kind, 7, 200, 70, 0);
		check_kind(kind, 64, 5, 1100, 0);
		check_kind(kind, 129, 9, 300, 0);
	}
	for (dims = 1; dims <= 300; dims += unit_small ? 23 : 1)
		check_kind((Kind) (dims % NKINDS), dims,
				   1 + (int64_t) (unit_random() % 12),
				   1 + (int64_t) (unit_random() % 200), 0);
	check_kind(KIND_UNIFORM, 2100, 5, 300, 0);
	check_kind(KIND_OFFSET, 2100, 5, 100, 0);
}

void
test_near_sets(void)
{
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.metric = GV_SET_L2,.dims = 3,
	.nqueries = 20,.nlists = 4};
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
	/* all rows of more than one block, and all probes */
	for (spec.probes = 1; spec.probes <= spec.nlists; spec.probes++)
	{
		OwnInputs	inputs = make_inputs(&spec, KIND_UNIFORM,
										 unit_small ? 6000 : 13000);

		check_inputs(spec, inputs);
	}
}
