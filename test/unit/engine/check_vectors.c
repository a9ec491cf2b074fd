/*
 * check_vectors.c
 *		k-selection, distances, the transformation, assignment and list scores.
 */
#include "unit.h"

/* ---------- k-selection ---------- */

/* The pairs left of a copy's first n are those that sorting puts first. */
static void
check_first(const GvTopK *top, int n)
{
	OwnTopK		sorted = new_topk(top->capacity, false);
	OwnTopK		first = new_topk(top->capacity, false);
	int			kept = n < top->count ? n : top->count;

	sorted.count = first.count = top->count;
	memcpy(sorted.scores, top->scores, sizeof(float) * (size_t) top->count);
	memcpy(sorted.ids, top->ids, sizeof(uint64_t) * (size_t) top->count);
	memcpy(first.scores, top->scores, sizeof(float) * (size_t) top->count);
	memcpy(first.ids, top->ids, sizeof(uint64_t) * (size_t) top->count);
	gv_topk_sort(&sorted);
	gv_topk_first(&first, n);
	CHECK(first.count == kept, "%d pairs of %d, first %d", first.count,
		  top->count, n);
	CHECK(memcmp(first.scores, sorted.scores,
				 sizeof(float) * (size_t) kept) == 0 &&
		  memcmp(first.ids, sorted.ids, sizeof(uint64_t) * (size_t) kept) == 0,
		  "first %d of %d", n, top->count);
}

static void
test_topk(void)
{
	static Pair pairs[500];
	int			round;

	for (round = 0; round < 400; round++)
	{
		int			n = (int) (unit_random() % 500);
		bool		unique = round % 2;
		OwnTopK		top = new_topk(1 + (int) (unit_random() % 60), unique);
		int			nheld = 0;
		int			i;
		int			j;

		for (i = 0; i < n; i++)
		{
			float		score = (float) (unit_random() % 20) - 5.0f;
			uint64_t	id = unit_random() % (unique ? 50 : 1000000000);

			gv_topk_push(&top, score, id);
			for (j = 0; unique && j < nheld && pairs[j].id != id; j++)
				;
			if (!unique || j == nheld)
				pairs[nheld++] = (Pair) {score, id};
			else if (score < pairs[j].score)
				pairs[j].score = score;
		}
		check_first(&top, (int) (unit_random() % 70));
		check_topk(&top, pairs, nheld);
		gv_topk_reset(&top);
		gv_topk_push(&top, NAN, 7);
		CHECK(top.count == 1 && top.scores[0] == GV_SCORE_MAX, "NaN");
		gv_topk_push(&top, 1.0f, 8);
		gv_topk_sort(&top);
		CHECK(top.scores[0] == 1.0f && top.ids[0] == 8, "1 before NaN");
	}
}

/* ---------- distances and the transformation ---------- */

static void
test_distance(void)
{
	int			i;

	for (i = 0; i < NDIMS; i++)
	{
		int32_t		dims = all_dims[i];
		OWN float  *a = unit_floats(dims, 3.0f);
		OWN float  *b = unit_floats(dims, 3.0f);
		double		ab = 0.0;
		double		aa = 0.0;
		double		bb = 0.0;
		double		l2 = sqrt(naive_sqdist(a, b, dims));
		int32_t		d;

		for (d = 0; d < dims; d++)
		{
			ab += (double) a[d] * b[d];
			aa += (double) a[d] * a[d];
			bb += (double) b[d] * b[d];
		}
		CHECK(fabs(gv_distance_l2(a, b, dims) - l2) <= 1e-12 * l2, "l2 %d",
			  dims);
		CHECK(fabs(gv_distance_ip(a, b, dims) + ab) <= 1e-11 * sqrt(aa * bb),
			  "ip %d", dims);
		CHECK(fabs(gv_distance_cosine(a, b, dims) - 1 + ab / sqrt(aa * bb)) <
			  1e-11, "cosine %d", dims);
		CHECK(gv_distance_cosine_of(a, gv_square(a, dims), b,
									gv_square(b, dims), dims) ==
			  gv_distance_cosine(a, b, dims), "cosine of squares %d", dims);
		CHECK(gv_distance_l2(a, a, dims) == 0.0, "l2 to itself");
		CHECK(gv_distance_cosine(a, a, dims) == 0.0, "cosine to itself");
		memset(b, 0, sizeof(float) * dims);
		CHECK(isnan(gv_distance_cosine(a, b, dims)), "cosine to zero");
		for (d = 0; d < dims; d++)
			a[d] = d % 2 ? 3e38f : -3e38f;
		CHECK(isfinite(gv_distance_l2(a, b, dims)), "huge");
		CHECK(gv_distance_cosine(a, a, dims) == 0.0, "huge to itself");
		for (d = 0; d < dims; d++)
			a[d] = 1e-45f;
		CHECK(gv_distance_cosine(a, a, dims) == 0.0, "denormal to itself");
	}
}

static void
check_transform(GvMetric metric, int32_t dims, float factor)
{
	int64_t		n = dims > 2000 ? 5 : 40;
	OWN float  *x = unit_floats((size_t) n * dims, factor);
	OWN float  *y = unit_alloc(sizeof(float) * n * dims);
	OWN float  *mean = unit_alloc(sizeof(float) * dims);
	GvModel		model = {.metric = metric,.dims = dims,.m = 1,.mean = mean};
	int64_t		nzero;
	int			exponent;
	double		square = 0.0;
	double		worst = 0.0;
	int64_t		row;
	int32_t		d;

	for (d = 0; d < dims; d++)
		x[d] = 0.0f;
	gv_fit_transform(metric, dims, x, n, mean, &model.scale);
	CHECK(all_finite(mean, dims), "mean, dims %d factor %g", dims, factor);
	CHECK(isfinite(model.scale) && frexp(model.scale, &exponent) == 0.5,
		  "scale %g", model.scale);
	for (d = 0; d < dims; d++)
		CHECK(metric != GV_IP || mean[d] == 0.0f, "mean %g", mean[d]);
	nzero = gv_transform(&model, x, n, y);
	CHECK(nzero == (metric == GV_COSINE), "%d zero", (int) nzero);
	CHECK(all_finite(y, (size_t) n * dims), "transformed");
	for (row = 0; row < n; row++)
	{
		float	   *from = x + row * dims;
		double		length = sqrt(-gv_distance_ip(from, from, dims));
		double		divisor = metric == GV_COSINE && row > 0 ? length : 1.0;

		for (d = 0; d < dims; d++)
		{
			double		want = (from[d] / divisor - mean[d]) * model.scale;

			worst = fmax(worst, fabs(want - y[row * dims + d]) /
						 (1e-30 + fabs(want)));
			square += (double) y[row * dims + d] * y[row * dims + d];
		}
	}
	CHECK(worst < 1e-6, "error %g, dims %d factor %g", worst, dims, factor);
	square = sqrt(square / (double) n);
	CHECK((square > 0.70 && square < 1.42) ||
		  factor > 1e37f || factor < 1e-37f,
		  "root mean square %g, factor %g", square, factor);
	(void) gv_transform(&model, x, n, x);
	CHECK(memcmp(x, y, sizeof(float) * n * dims) == 0, "in place");
}

static void
test_transform(void)
{
	static const float factors[] = {1.0f, 1e-3f, 7e4f, 3e38f, 1e-42f};
	int			metric;
	int			f;
	int			i;

	for (metric = GV_L2; metric <= GV_COSINE; metric++)
		for (i = 0; i < NDIMS; i++)
			for (f = 0; f < 5; f++)
				if (all_dims[i] > 1 || metric != GV_COSINE)
					check_transform(metric, all_dims[i], factors[f]);
}

/* ---------- assignment and list scores ---------- */

static void
check_assign(int32_t dims, const float *centroids, int32_t k, const float *x,
			 int64_t n, const char *what)
{
	OWN int32_t *nearest = unit_alloc(sizeof(int32_t) * n);
	OWN int32_t *again = unit_alloc(sizeof(int32_t) * n);
	OWN float  *sqdist = unit_alloc(sizeof(float) * n);
	int			nwrong = 0;
	int64_t		row;
	int32_t		c;

	CHECK(gv_assign(dims, centroids, k, x, n, nearest, sqdist, NULL) == GV_OK,
		  "%s", what);
	CHECK(gv_assign(dims, centroids, k, x, n, again, NULL, NULL) == GV_OK,
		  "%s", what);
	CHECK(memcmp(nearest, again, sizeof(int32_t) * n) == 0, "%s", what);
	for (row = 0; row < n; row++)
	{
		int32_t		best = 0;
		float		least = GV_SCORE_MAX;

		for (c = 0; c < k; c++)
		{
			float		dist = score_of(lanes16(x + row * dims,
												centroids + (size_t) c * dims,
												dims, false));

			if (dist < least)
			{
				least = dist;
				best = c;
			}
		}
		nwrong += nearest[row] != best || sqdist[row] != least;
	}
	CHECK(nwrong == 0, "%d of %d wrong, dims %d k %d: %s", nwrong, (int) n,
		  dims, k, what);
}

static void
test_assign(void)
{
	static const float factors[] = {1.0f, 1e-22f, 1e-42f, 1e19f, 3e38f};
	int			i;
	int			f;
	size_t		j;

	for (i = 0; i < NDIMS; i++)
		for (f = 0; f < 5; f++)
		{
			int32_t		dims = all_dims[i];
			int32_t		k = dims > 2000 ? 9 : 1 + unit_random() % 150;
			int64_t		n = dims > 2000 ? 6 : 1 + unit_random() % 150;
			OWN float  *x = unit_floats((size_t) n * dims, factors[f]);
			OWN float  *c = unit_floats((size_t) k * dims, factors[f]);

			check_assign(dims, c, k, x, n, "random");
			for (j = 0; j < (size_t) k * dims; j++)
				c[j] = (float) (unit_random() % 2);
			for (j = 0; j < (size_t) n * dims; j++)
				x[j] = (float) (unit_random() % 3);
			check_assign(dims, c, k, x, n, "ties");
			for (j = 0; j < (size_t) k * dims; j++)
				c[j] = 10000.0f + unit_float();
			for (j = 0; j < (size_t) n * dims; j++)
				x[j] = 10000.0f + unit_float();
			check_assign(dims, c, k, x, n, "offset");
			for (j = 0; j < (size_t) (k < n ? k : n) * dims; j++)
				c[j] = x[j];
			check_assign(dims, c, k, x, n, "rows");
			c[0] = 3e38f;
			x[0] = -3e38f;
			check_assign(dims, c, k, x, n, "one huge");
		}
}

static void
test_coarse(void)
{
	int			i;
	int			metric;
	int32_t		c;

	for (i = 0; i < NDIMS; i++)
		for (metric = GV_L2; metric <= GV_COSINE; metric++)
		{
			int32_t		dims = all_dims[i];
			int32_t		n = 1 + unit_random() % 70;
			GvModel		model = {.metric = metric,.dims = dims,.m = 1};
			OWN float  *q = unit_floats(dims, 1.0f);
			OWN float  *x = unit_floats((size_t) n * dims, 1.0f);
			OwnTopK		top = new_topk(1 + unit_random() % 40, false);
			Pair		pairs[70];

			if (n > 1)
				memcpy(x + dims, x, sizeof(float) * dims);
			x[(size_t) (n - 1) * dims] = 3e38f;
			q[0] = metric == GV_IP ? -3e38f : q[0];
			for (c = 0; c < n; c++)
			{
				float		v = lanes16(q, x + (size_t) c * dims, dims,
										metric == GV_IP);

				pairs[c] = (Pair) {score_of(metric == GV_IP ? -v : v), 90 + c};
			}
			CHECK(gv_coarse(&model, q, x, n, 90, &top) == GV_OK, "coarse");
			check_topk(&top, pairs, n);
		}
}

void
test_vectors(void)
{
	test_topk();
	test_distance();
	test_transform();
	test_assign();
	test_coarse();
}
