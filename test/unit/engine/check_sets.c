/*
 * check_sets.c
 *		Exact search over sets against qsort: nothing that counts is discarded.
 */
#include "sets.h"

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

/* See sets.h. */
Neighbor *
sorted_rows(const GvSetSpec *spec, const float *query, const float *rows,
			int64_t nrows)
{
	Neighbor  *sorted = malloc(sizeof(Neighbor) * nrows);
	int64_t		i;

	for (i = 0; i < nrows; i++)
		sorted[i] = (Neighbor) {naive_distance(spec->metric, query,
												rows + i * spec->dims,
												spec->dims), i};
	qsort(sorted, nrows, sizeof(Neighbor), compare_neighbors);
	return sorted;
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

/* See sets.h. */
void
check_search(const GvSetSpec *spec, const SetInputs *inputs,
			 Neighbor *const *sorted, const int64_t *nsorted)
{
	int64_t		n = spec->nqueries * spec->k;
	OWN int64_t *positions = unit_alloc(sizeof(int64_t) * n);
	OWN double *distances = unit_alloc(sizeof(double) * n);
	int64_t		nwrong = 0;
	GvSetDone	done;
	GvSet	   *set = finished_set(spec, inputs, &done, NULL);
	int64_t		i;

	if (set != NULL)
	{
		CHECK(done.passes == 1 && !done.again && done.found == 0, "done");
		CHECK(gv_set_get(set, GV_SET_POSITIONS, 0, n, positions) == GV_OK &&
			  gv_set_get(set, GV_SET_DISTANCES, 0, n / 2,
						 distances) == GV_OK &&
			  gv_set_get(set, GV_SET_DISTANCES, n / 2, n - n / 2,
						 distances + n / 2) == GV_OK, "get");
		for (i = 0; i < spec->nqueries; i++)
			nwrong += count_wrong(spec, sorted[i], nsorted[i],
								  spec->own ? spec->first + i :
								  spec->self ? inputs->self[i] : -1,
								  positions + i * spec->k,
								  distances + i * spec->k);
		CHECK(nwrong == 0, "%ld wrong, metric %d dims %d k %d queries %ld "
			  "rows %ld by %ld self %d own %d lists %d probes %d %s", (long) nwrong, spec->metric,
			  spec->dims, spec->k, (long) spec->nqueries,
			  (long) inputs->nrows, (long) inputs->batch, spec->self, spec->own,
			  spec->nlists, spec->probes, gv_simd_name(unit_simd()));
	}
	gv_set_drop(set);
}

/*
 * All metrics, some k and batches, with and without self, at each level; queries
 * may be rows themselves, from `own` on, or else it is -1.
 */
static void
check_vectors(int32_t dims, const float *queries, int64_t nqueries,
			  const float *rows, int64_t nrows, int64_t own)
{
	const int64_t ks[] = {1, 3, 10, nrows - 1, nrows, nrows + 7};
	FREED Neighbor **sorted = malloc(sizeof(Neighbor *) * nqueries);
	FREED int64_t *nsorted = malloc(sizeof(int64_t) * nqueries);
	FREED int64_t *self = malloc(sizeof(int64_t) * nqueries);
	GvSetSpec	spec = {.kind = GV_SET_EXACT,.dims = dims,
		.nqueries = nqueries,.own = own >= 0,
	.first = own >= 0 ? own : 0};
	int64_t		i;
	int			k;

	for (i = 0; i < nqueries; i++)
	{
		nsorted[i] = nrows;
		self[i] = (int64_t) (unit_random() % (nrows + 3)) - 1;
	}
	for (spec.metric = GV_SET_L2; spec.metric <= GV_SET_PEARSON; spec.metric++)
	{
		for (i = 0; i < nqueries; i++)
			sorted[i] = sorted_rows(&spec, queries + i * dims, rows, nrows);
		for (k = 0; k < 6; k++)
		{
			const int64_t batches[] = {1 + (int64_t) (unit_random() % nrows),
			nrows, 64};
			SetInputs	inputs = {queries, self, rows, nrows,
			batches[k % 3], NULL};

			if (ks[k] < 1)
				continue;
			spec.k = (int32_t) ks[k];
			spec.nrows = nrows + (k == 4 ? 5 : 0);
			spec.self = (uint8_t) (own < 0 && unit_random() % 2);
			gv_simd_use(k < 3 ? unit_simd() :
						(GvSimd) (GV_SIMD_PORTABLE + k % (GV_NSIMD - 1)));
			check_search(&spec, &inputs, sorted, nsorted);
		}
		for (i = 0; i < nqueries; i++)
			free(sorted[i]);
	}
	gv_simd_use(unit_simd());
}

/* See sets.h. */
void
make_vector(Kind kind, float *x, int32_t dims, const float *earlier,
			int64_t nearlier)
{
	float		size = 1.0f;
	float		offset = 0.0f;
	uint64_t	choice = unit_random();
	int32_t		i;

	if (kind == KIND_OFFSET)
		offset = 1000.0f;
	else if (kind == KIND_FAR_OFFSET)
		offset = 1e6f;
	else if (kind == KIND_TINY)
		size = 1e-30f;
	else if (kind == KIND_SUBNORMAL)
		size = 1e-43f;
	else if (kind == KIND_HUGE)
		size = 1e30f;
	else if (kind == KIND_MIXED)
		size = powf(10.0f, 30.0f * unit_float());
	for (i = 0; i < dims; i++)
		x[i] = offset + size * unit_float();
	for (i = 0; kind == KIND_FEW_VALUES && i < dims; i++)
		x[i] = (float) (unit_random() % 3);
	for (i = 0; (kind == KIND_ZEROS && choice % 3 == 0) && i < dims; i++)
		x[i] = choice % 2 ? 0.0f : 0.1f;
	for (i = 0; kind == KIND_ALL_EQUAL && i < dims; i++)
		x[i] = 0.5f + (float) i;
	if (kind == KIND_DUPLICATES && nearlier > 0 && choice % 4 != 0)
		memcpy(x, earlier + choice / 4 % nearlier * dims,
			   sizeof(float) * dims);
}

static void
check_kind(Kind kind, int32_t dims, int64_t nqueries, int64_t nrows)
{
	OWN float  *rows = unit_alloc(sizeof(float) * nrows * dims);
	OWN float  *queries = unit_alloc(sizeof(float) * nqueries * dims);
	int64_t		i;

	for (i = 0; i < nrows; i++)
		make_vector(kind, rows + i * dims, dims, rows, i);
	for (i = 0; i < nqueries; i++)
		if (unit_random() % 3 == 0)
			memcpy(queries + i * dims, rows + unit_random() % nrows * dims,
				   sizeof(float) * dims);
		else
			make_vector(kind, queries + i * dims, dims, rows, nrows);
	check_vectors(dims, queries, nqueries, rows, nrows, -1);
	i = (int64_t) (unit_random() % (uint64_t) nrows);
	check_vectors(dims, rows + i * dims, nrows - i < nqueries ? nrows - i :
				  nqueries, rows, nrows, i);
}

/* A query and rows whose distances differ by their last bits only. */
static void
check_near_ties(int32_t dims)
{
	int64_t		nrows = 300;
	OWN float  *rows = unit_alloc(sizeof(float) * nrows * dims);
	OWN float  *queries = unit_floats((size_t) 6 * dims, 1.0f);
	int64_t		i;
	int32_t		d;

	for (i = 0; i < nrows; i++)
		for (d = 0; d < dims; d++)
			rows[i * dims + d] = nextafterf(queries[d] + 1.0f,
											unit_float() > 0 ? 9.0f : -9.0f);
	check_vectors(dims, queries, 6, rows, nrows, -1);
}

void
test_exact_sets(void)
{
	Kind		kind;
	int32_t		dims;

	for (kind = 0; kind < NKINDS; kind++)
	{
		check_kind(kind, 1 + (int32_t) (unit_random() % 40), 3, 1);
		check_kind(kind, 7, 200, 70);
		check_kind(kind, 64, 5, 1100);
		check_kind(kind, 129, 9, 300);
	}
	for (dims = 1; dims <= 300; dims += unit_small ? 23 : 1)
		check_kind((Kind) (dims % NKINDS), dims,
				   1 + (int64_t) (unit_random() % 12),
				   1 + (int64_t) (unit_random() % 200));
	check_kind(KIND_UNIFORM, 2100, 5, 300);
	check_kind(KIND_OFFSET, 2100, 5, 100);
	for (dims = 2; dims < 400; dims = dims * 3 + 1)
		check_near_ties(dims);
}
