/*
 * check_training.c
 *		k-means and codebooks: quality, determinism, limits, cancellation.
 */
#include "unit.h"

/* ---------- training ---------- */

/* Number of distinct rows. */
static int32_t
count_distinct(const float *x, int64_t n, int32_t dims)
{
	int32_t		ndistinct = 0;
	int64_t		i;
	int64_t		j;

	for (i = 0; i < n; i++)
	{
		for (j = 0; j < i; j++)
			if (memcmp(x + i * dims, x + j * dims, sizeof(float) * dims) == 0)
				break;
		ndistinct += j == i;
	}
	return ndistinct;
}

/* Train, twice; the caller frees the centroids. */
static float *
check_kmeans(const GvKmeans *spec, const float *x, int32_t *found)
{
	size_t		bytes = gv_kmeans_scratch(spec);
	size_t		nfloats = (size_t) spec->k * spec->dims;
	OWN void   *scratch = unit_alloc(bytes);
	float	   *centroids = unit_alloc(sizeof(float) * nfloats);
	OWN float  *again = unit_alloc(sizeof(float) * nfloats);
	int32_t		found_again = -1;

	*found = -1;
	CHECK(bytes > 0, "scratch");
	CHECK(gv_kmeans(spec, x, centroids, found, scratch, NULL) == GV_OK, " ");
	memset(scratch, 1, bytes);
	OK(gv_kmeans(spec, x, again, &found_again, scratch, NULL));
	CHECK(*found >= 1 && *found <= spec->k && *found == found_again,
		  "found %d, then %d", *found, found_again);
	nfloats = (size_t) *found * spec->dims;
	CHECK(memcmp(centroids, again, sizeof(float) * nfloats) == 0,
		  "not deterministic");
	CHECK(all_finite(centroids, nfloats), "centroids");
	return centroids;
}

static void
test_kmeans_small(void)
{
	static const float factors[] = {1.0f, 1e-44f, 1e19f, 3e38f};
	int			round;

	/* each count of dimensions with each kind, once or more */
	for (round = 0; round < (unit_small ? 5 * NDIMS : 300); round++)
	{
		GvKmeans	spec = {.dims = all_dims[round % NDIMS],
			.n = 1 + (int64_t) (unit_random() % 60),
			.k = 1 + (int32_t) (unit_random() % 40),
			.iterations = round % 7,
		.max_imbalance = 1.01 + round % 3,.seed = (uint64_t) round};
		int			kind = round % 5;
		size_t		nfloats;
		int32_t		found;
		OWN float  *x = NULL;
		size_t		i;

		if (spec.dims > 2000)
			spec.n = 1 + spec.n % 5;
		nfloats = (size_t) spec.n * spec.dims;
		x = unit_floats(nfloats, factors[kind % 4]);
		if (kind == 4)			/* few distinct rows */
			for (i = 0; i < nfloats; i++)
				x[i] = i % spec.dims == 0 ? (float) (unit_random() % 9) : 2.0f;
		unit_free(check_kmeans(&spec, x, &found));
		if (kind == 0 || kind == 4)
		{
			int32_t		ndistinct = count_distinct(x, spec.n, spec.dims);

			CHECK(found == (ndistinct < spec.k ? ndistinct : spec.k),
				  "found %d of %d, distinct %d, n %d", found, spec.k,
				  ndistinct, (int) spec.n);
		}
	}
}

static void
test_kmeans_even(void)
{
	static const double imbalances[] = {3.0, 2.0, 1.5};
	int			i;

	for (i = 0; i < (unit_small ? 3 : 6); i++)
	{
		GvKmeans	spec = {.dims = 16,.n = i < 3 ? 6000 : 20000,.k = 60,
		.iterations = 10,.max_imbalance = imbalances[i % 3],.seed = 5};
		OWN float  *x = clustered(spec.n, spec.dims, 25, i % 2 ? 0.02f : 0.3f);
		int32_t		found;
		OWN float  *centroids = check_kmeans(&spec, x, &found);
		double		mse;
		int64_t		most = biggest_cluster(spec.dims, centroids, found, x,
										   spec.n, &mse);

		CHECK(found == spec.k, "found %d", found);
		CHECK(most <= spec.max_imbalance * spec.n / spec.k,
			  "share %.2f of %.2f", (double) most * spec.k / spec.n,
			  spec.max_imbalance);
	}
}

/* Half of the rows identical: they stay together and nothing else grows. */
static void
test_kmeans_identical(void)
{
	GvKmeans	spec = {.dims = 8,.n = 4000,.k = 40,.iterations = 8,
	.max_imbalance = 2.0,.seed = 3};
	OWN float  *x = unit_floats((size_t) spec.n * spec.dims, 1.0f);
	int32_t		found;
	OWN float  *centroids = NULL;
	double		mse;
	int64_t		most;
	size_t		i;

	for (i = 0; i < (size_t) spec.n / 2 * spec.dims; i++)
		x[i] = 0.25f;
	centroids = check_kmeans(&spec, x, &found);
	most = biggest_cluster(spec.dims, centroids, found, x, spec.n, &mse);
	CHECK(found == spec.k && most >= 2000 && most < 2000 + 200,
		  "found %d most %d", found, (int) most);
	most = biggest_cluster(spec.dims, centroids, found,
						   x + (size_t) spec.n / 2 * spec.dims, spec.n / 2,
						   &mse);
	CHECK(most <= 200, "most %d", (int) most);
}

static float *
check_codebooks(int32_t dims, int32_t m, int64_t n, const float *x)
{
	size_t		bytes = gv_codebooks_scratch(dims, m, n);
	size_t		size = sizeof(float) * GV_CODEWORDS * dims;
	OWN void   *scratch = unit_alloc(bytes);
	float	   *books = unit_alloc(size);
	OWN float  *again = unit_alloc(size);

	CHECK(gv_codebooks(dims, m, n, x, 9, books, scratch, NULL) == GV_OK, " ");
	memset(scratch, 1, bytes);
	CHECK(gv_codebooks(dims, m, n, x, 9, again, scratch, NULL) == GV_OK, " ");
	CHECK(memcmp(books, again, size) == 0, "not deterministic");
	CHECK(all_finite(books, (size_t) GV_CODEWORDS * dims), "codebooks");
	return books;
}

static void
test_codebooks(void)
{
	static const float factors[] = {1.0f, 1e-44f, 1e19f, 3e38f};
	int			round;

	/* likewise, with each factor */
	for (round = 0; round < (unit_small ? 4 * NDIMS : 120); round++)
	{
		int32_t		dims = all_dims[round % NDIMS];
		int32_t		m = round % 4 == 0 ? dims :
			1 + (int32_t) (unit_random() % dims);
		int64_t		n = 1 + unit_random() % (dims > 2000 ? 3 : 100);
		OWN float  *x = unit_floats((size_t) n * dims, factors[round % 4]);
		OWN float  *books = check_codebooks(dims, m, n, x);
		GvModel		model = {.metric = GV_L2,.dims = dims,.m = m,
		.codebooks = books};
		OWN uint8_t *codes = unit_alloc((size_t) n * gv_code_bytes(m));
		OWN float  *t = unit_alloc(sizeof(float) * n);
		FREED float *zero = calloc(dims, sizeof(float));
		int32_t		lists[100] = {0};
		int64_t		row;
		int32_t		j;

		/* up to 16 distinct vectors are encoded exactly */
		OK(gv_encode(&model, x, zero, lists, n, 1, codes, t));
		for (row = 0; row < n && n <= GV_CODEWORDS && round % 4 == 0; row++)
			for (j = 0; j < m; j++)
			{
				int32_t		start;
				int32_t		width;
				const float *word = unit_word(&model, codes + row *
											  gv_code_bytes(m), j, &start,
											  &width);

				CHECK(memcmp(word, x + row * dims + start,
							 sizeof(float) * width) == 0,
					  "row %d not met, dims %d m %d n %d", (int) row, dims, m,
					  (int) n);
			}
	}
}

/* Every question of a GvStop can end a call. */
static void
test_cancel(void)
{
	GvKmeans	spec = {.dims = 384,.n = 3000,.k = 100,.iterations = 3,
	.max_imbalance = 2.0,.seed = 1};
	OWN float  *x = unit_floats((size_t) spec.n * spec.dims, 1.0f);
	OWN float  *out = unit_alloc(sizeof(float) * GV_CODEWORDS * 100 * 384);
	OWN int32_t *nearest = unit_alloc(sizeof(int32_t) * spec.n);
	size_t		bytes = gv_codebooks_scratch(384, 192, spec.n);
	int			most = unit_small ? 3 : 120;
	OWN void   *scratch = NULL;
	int			call;

	if (bytes < gv_kmeans_scratch(&spec))
		bytes = gv_kmeans_scratch(&spec);
	scratch = unit_alloc(bytes);
	for (call = 0; call < 3; call++)
	{
		Patience	patience = {0, 0};
		GvStop		stop = {lose_patience, &patience};
		int			nasked = 0;
		int			at;

		for (at = 0; at <= nasked; at++)
		{
			GvStatus	status;
			int32_t		found;

			patience = (Patience) {0, at};
			if (call == 0)
				status = gv_kmeans(&spec, x, out, &found, scratch, &stop);
			else if (call == 1)
				status = gv_codebooks(384, 192, spec.n, x, 1, out, scratch,
									  &stop);
			else
				status = gv_assign(384, x, 1500, x, spec.n, nearest, NULL,
								   &stop);
			CHECK(status == (at == 0 ? GV_OK : GV_CANCELED),
				  "call %d stopped at %d: %d", call, at, status);
			CHECK(at == 0 || patience.asked == at, "asked %d after %d",
				  patience.asked, at);
			if (at == 0)
				nasked = patience.asked < most ? patience.asked : most;
		}
		CHECK(nasked > 2, "call %d asked %d times", call, nasked);
	}
}

void
test_training(void)
{
	test_kmeans_small();
	test_kmeans_even();
	test_kmeans_identical();
	test_codebooks();
	test_cancel();
}
