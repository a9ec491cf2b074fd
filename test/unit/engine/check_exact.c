/*
 * check_exact.c
 *		Exact search against a sort of all scores.
 */
#include "unit.h"

/* Every query must get what sorting the scores of all rows gives. */
static void
check_exact(GvMetric metric, int32_t dims, const float *queries,
			int32_t nqueries, const float *x, int64_t n, int32_t k)
{
	FREED GvTopK *best = calloc(nqueries, sizeof(GvTopK));
	OWN uint64_t *ids = unit_alloc(sizeof(uint64_t) * n);
	FREED Pair *pairs = calloc(n, sizeof(Pair));
	int64_t		half = (n + 1) / 2;
	int64_t		row;
	int32_t		q;

	for (row = 0; row < n; row++)
		ids[row] = (uint64_t) (row * 7 % n);
	for (q = 0; q < nqueries; q++)
		best[q] = new_topk(k, false);

	/* in two calls: what was found before must count */
	OK(gv_exact(metric, dims, queries, nqueries, x, half, ids, best, NULL));
	if (n > half)
		CHECK(gv_exact(metric, dims, queries, nqueries, x + half * dims,
					   n - half, ids + half, best, NULL) == GV_OK, "exact");
	for (q = 0; q < nqueries; q++)
	{
		for (row = 0; row < n; row++)
		{
			float		value = lanes16(queries + (size_t) q * dims,
										x + row * dims, dims,
										metric == GV_IP);

			pairs[row].score = score_of(metric == GV_IP ? -value : value);
			pairs[row].id = ids[row];
		}
		check_topk(&best[q], pairs, (int) n);
		free_topk(&best[q]);
	}
}

static void
check_shapes(int32_t dims)
{
	static const int64_t rows[] = {1, 63, 64, 65, 300};
	int			r;

	for (r = 0; r < 5; r++)
	{
		int64_t		n = rows[r];
		OWN float  *x = clustered(n, dims, 5, 0.2f);
		OWN float  *queries = unit_floats((size_t) 130 * dims, 1.0f);
		int64_t		i;

		check_exact(GV_L2, dims, queries, 130, x, n, 10);
		check_exact(GV_IP, dims, queries, 1, x, n, 3);
		check_exact(GV_COSINE, dims, x, 1, x, n, 400);
		/* far from the origin: the filter may prove nothing, but not lie */
		for (i = 0; i < n * dims; i++)
			x[i] += 1000.0f;
		check_exact(GV_L2, dims, x, (int32_t) (n < 9 ? n : 9), x, n, 5);
		check_exact(GV_IP, dims, x, 1, x, n, 5);
	}
}

/* Equal, huge and tiny rows. */
static void
check_extremes(float factor)
{
	int32_t		dims = 20;
	OWN float  *x = unit_floats((size_t) 200 * dims, factor);

	memcpy(x + 100 * dims, x, (size_t) 100 * dims * sizeof(float));
	check_exact(GV_L2, dims, x, 20, x, 200, 7);
	check_exact(GV_IP, dims, x, 20, x, 200, 7);
}

/*
 * Rows so tiny that their squares are 0 in fp32, and nearly alike, so that only an
 * allowance for what products are rounded by tells them apart.
 */
static void
check_tiny_rows(void)
{
	int32_t		dims = 300;
	int64_t		n = 400;
	OWN float  *x = unit_floats((size_t) n * dims, 1e-24f);
	OWN float  *queries = unit_floats((size_t) 130 * dims, 1e15f);
	int64_t		row;
	int32_t		d;

	/* products nearly cancel out, so that an allowance by them is none */
	for (d = 1; d < dims; d += 2)
		x[d] = x[d - 1];
	for (d = 0; d < 130 * dims; d += 2)
		queries[d + 1] = -queries[d];
	for (row = 1; row < n; row++)
		for (d = 0; d < dims; d++)
			x[row * dims + d] = x[d] * (1.0f + 1e-7f * (float) (unit_random() % 9));
	check_exact(GV_IP, dims, queries, 130, x, n, 5);
	check_exact(GV_L2, dims, x, 130, x, n, 5);
}

void
test_exact(void)
{
	GvStop		stop = {unit_stop_now, NULL};
	int32_t		dims = 4096;
	int64_t		n = 128;		/* x 128 queries: two slices of work */
	float	   *x = unit_floats((size_t) n * dims, 1.0f);
	uint64_t   *ids = unit_alloc(sizeof(uint64_t) * n);
	GvTopK		top[128];
	int			i;

	for (i = 0; i < NDIMS; i++)
		if (all_dims[i] <= 1025)
			check_shapes(all_dims[i]);
	check_extremes(1e-30f);
	check_extremes(1e18f);
	check_extremes(3e38f);
	check_tiny_rows();

	memset(ids, 0, sizeof(uint64_t) * n);
	for (i = 0; i < n; i++)
		top[i] = new_topk(3, false);
	CHECK(gv_exact(GV_L2, dims, x, (int32_t) n, x, n, ids, top, &stop) ==
		  GV_CANCELED, "not stopped");
	INVALID(gv_exact(GV_L2, 0, x, 1, x, 1, ids, top, NULL));
	INVALID(gv_exact(GV_L2, 4, x, 0, x, 1, ids, top, NULL));
	INVALID(gv_exact(GV_L2, 4, x, 1, x, 1, NULL, top, NULL));
	INVALID(gv_exact(GV_L2, 4, x, 1, x, 1, ids, NULL, NULL));
	unit_free(x);
	unit_free(ids);
	for (i = 0; i < n; i++)
		free_topk(&top[i]);
}
