/*
 * check_builder_use.c
 *		How good training is; what builders refuse; being stopped.
 */
#include "making.h"

/* Is training as good as the engine's own k-means, even, and repeatable? */
static void
check_quality(int32_t n, int32_t dims, int32_t m, int32_t nlists)
{
	GvBuilderSpec spec = make_spec(GV_L2, dims, m, nlists);
	Making		making = begin_making(spec, clustered(n, dims, nlists / 2 + 1,
													  0.2f), n, n);
	GvKmeans	kmeans = {dims, n, nlists, spec.iterations, spec.max_imbalance,
	spec.seed};
	OWN float  *own = unit_alloc(sizeof(float) * nlists * dims);
	OWN char   *scratch = unit_alloc(gv_kmeans_scratch(&kmeans));
	OWN float  *first = NULL;
	double		mse;
	double		own_mse;
	int64_t		most;
	int32_t		found;

	(void) gv_kmeans(&kmeans, making.moved, own, &found, scratch, NULL);
	(void) biggest_cluster(dims, own, found, making.moved, n, &own_mse);
	CHECK(train_making(&making) == GV_OK, "train");
	get_model(&making);
	most = biggest_cluster(dims, making.centroids, making.trained.nlists,
						   making.moved, n, &mse);
	CHECK(making.trained.nlists == nlists, "%d lists of %d",
		  making.trained.nlists, nlists);
	CHECK(most <= spec.max_imbalance * n / nlists + 1,
		  "%d rows of %d in a list",
		  (int) most, n);
	CHECK(mse <= own_mse * 1.05, "error %g, not %g", mse, own_mse);

	first = making.centroids;
	gv_builder_drop(making.builder);
	CHECK(train_making(&making) == GV_OK, "train again");
	making.centroids = get_array(&making, GV_CENTROIDS);
	CHECK(memcmp(first, making.centroids,
				 sizeof(float) * nlists * dims) == 0, "other centroids");
	end_making(&making);
}

/* Codes must keep as much as those of the engine's own codebooks. */
static void
check_codebook_quality(int32_t n, int32_t dims, int32_t m)
{
	GvBuilderSpec spec = make_spec(GV_L2, dims, m, 1);
	Making		making = begin_making(spec, clustered(n, dims, 50, 0.1f), n,
									  n);
	OWN float  *residuals = unit_alloc(sizeof(float) * n * dims);
	OWN float  *own = unit_alloc(sizeof(float) * GV_CODEWORDS * dims);
	OWN char   *scratch = unit_alloc(gv_codebooks_scratch(dims, m, n));
	GvModel		model;
	double		error;
	double		own_error;
	int32_t		j;

	CHECK(train_making(&making) == GV_OK, "train");
	get_model(&making);
	for (j = 0; j < n * dims; j++)
		residuals[j] = making.moved[j] - making.centroids[j % dims];
	(void) gv_codebooks(dims, m, n, residuals, 1, own, scratch, NULL);
	model = making.model;
	error = code_error(&model, residuals, n);
	model.codebooks = own;
	own_error = code_error(&model, residuals, n);
	/* k-means from other rows ends some percent away */
	CHECK(error <= own_error * 1.15, "error %g, not %g", error, own_error);
	end_making(&making);
}

#define BAD(change) (bad = making.spec, bad.change, \
	gv_builder_create(&bad, making.mean, &builder))

static void
check_refusals(void)
{
	GvBuilderSpec spec = make_spec(GV_L2, 4, 2, 6);
	Making		making = begin_making(spec, unit_floats(4 * 50, 1.0f), 50, 40);
	GvBuilder  *builder = NULL;
	GvBuilder  *copy;
	GvBuilderSpec copied;
	GvBuilderSpec bad;
	GvTrained	trained;
	GvEncoded	encoded = new_encoded(&spec, 50);
	float		nan4[4] = {0, NAN, 0, 0};

	INVALID(gv_builders_open(&UNIT_BUILDERS));
	INVALID(BAD(device = -1));
	INVALID(BAD(device = gv_ndevices()));
	INVALID(BAD(metric = (GvMetric) 4));
	INVALID(BAD(dims = 0));
	INVALID(BAD(m = 5));
	INVALID(BAD(lists_per_row = 3));
	INVALID(BAD(lists_per_row = 0));
	INVALID(BAD(refine = GV_RECORDS_HALF + 1));
	INVALID(BAD(refine = -1));
	INVALID(BAD(nlists = 0));
	INVALID(BAD(nparents = 7));
	INVALID(BAD(nqueries = GV_MAX_QUERIES + 1));
	INVALID(BAD(depth = 0));
	INVALID(BAD(depth = GV_MAX_DEPTH + 1));
	INVALID(BAD(nqueries = 0));
	INVALID(BAD(batch_rows = 0));
	INVALID(BAD(batch_rows = GV_MAX_BATCH_ROWS + 1));
	INVALID(BAD(iterations = -1));
	INVALID(BAD(scale = 0));
	INVALID(BAD(scale = NAN));
	INVALID(BAD(max_imbalance = 1.0));
	INVALID(BAD(sample_rows = 0));
	CHECK(gv_builder_size(&bad) == 0, "size of an invalid spec");
	CHECK(gv_builder_size(&making.spec) > 40 * 16, "size");
	INVALID(gv_builder_create(&making.spec, nan4, &builder));
	INVALID(gv_builder_create(&making.spec, NULL, &builder));
	INVALID(gv_builder_create(&making.spec, making.mean, NULL));

	OK(gv_builder_create(&making.spec, making.mean, &builder));
	INVALID(gv_builder_train(builder, &trained, NULL));
	INVALID(gv_builder_put_rows(builder, GV_SAMPLE, making.rows, 41));
	INVALID(gv_builder_put_rows(builder, GV_QUERIES, making.rows, 4));
	INVALID(gv_builder_put_rows(builder, (GvRows) 2, making.rows, 4));
	INVALID(gv_builder_put_rows(builder, GV_SAMPLE, nan4, 1));
	INVALID(gv_builder_put_rows(builder, GV_SAMPLE, NULL, 1));
	INVALID(gv_builder_put_rows(builder, GV_SAMPLE, making.rows, -1));
	INVALID(gv_builder_encode(builder, making.rows, 1, &encoded, NULL));
	INVALID(gv_builder_get_array(builder, GV_PARENT_OFFSETS, 0, 1, nan4));
	copied = gv_builder_copy_spec(&making.spec, 0);
	INVALID(gv_builder_copy(builder, &copied, &copy));
	OK(gv_builder_put_rows(builder, GV_SAMPLE, making.rows, 40));
	INVALID(gv_builder_train(builder, &trained, NULL));
	gv_builder_drop(builder);

	CHECK(train_making(&making) == GV_OK, "train");
	get_model(&making);
	INVALID(gv_builder_train(making.builder, &trained, NULL));
	INVALID(gv_builder_copy(making.builder, &copied, NULL));
	copied = gv_builder_copy_spec(&making.spec, gv_ndevices());
	INVALID(gv_builder_copy(making.builder, &copied, &copy));
	INVALID(gv_builder_put_rows(making.builder, GV_SAMPLE, making.rows, 1));
	INVALID(gv_builder_encode(making.builder, nan4, 1, &encoded, NULL));
	INVALID(gv_builder_encode(making.builder, making.rows, 0, &encoded,
							  NULL));
	INVALID(gv_builder_encode(making.builder, making.rows, 101, &encoded,
							  NULL));
	INVALID(gv_builder_encode(making.builder, making.rows, 1, NULL, NULL));
	INVALID(gv_builder_encode(NULL, making.rows, 1, &encoded, NULL));
	OK(gv_builder_encode(making.builder, making.rows, 50, &encoded, NULL));
	end_making(&making);
	free_encoded(&encoded);
}

/* Every device makes the same of the same rows. */
static void
check_other_devices(void)
{
	GvBuilderSpec spec = make_spec(GV_L2, 8, 4, 10);
	Making		first = begin_making(spec, clustered(300, 8, 10, 0.2f), 300,
									 300);
	int32_t		i;

	CHECK(train_making(&first) == GV_OK, "train");
	get_model(&first);
	for (i = 1; i < gv_ndevices(); i++)
	{
		Making		other = first;
		OWN float  *centroids = NULL;
		OWN float  *codebooks = NULL;

		other.spec.device = i;
		CHECK(train_making(&other) == GV_OK, "train on %d", i);
		centroids = get_array(&other, GV_CENTROIDS);
		codebooks = get_array(&other, GV_CODEBOOKS);
		CHECK(other.trained.nlists == first.trained.nlists &&
			  memcmp(centroids, first.centroids, sizeof(float) * 8 *
					 first.trained.nlists) == 0 &&
			  memcmp(codebooks, first.codebooks,
					 sizeof(float) * GV_CODEWORDS * 8) == 0,
			  "device %d makes something else", i);
		gv_builder_drop(other.builder);
	}
	end_making(&first);
}

/* Training ends when it is asked to; nobody else is disturbed. */
static void
check_stop(void)
{
	GvBuilderSpec spec = make_spec(GV_L2, 64, 32, 300);
	Making		making = begin_making(spec, clustered(4000, 64, 100, 0.2f),
									  4000, 4000);
	GvStop		stop = {unit_stop_now, NULL};

	CHECK(gv_builder_create(&making.spec, making.mean,
							&making.builder) == GV_OK &&
		  gv_builder_put_rows(making.builder, GV_SAMPLE, making.rows,
							  4000) == GV_OK &&
		  gv_builder_put_rows(making.builder, GV_QUERIES, making.rows,
							  3) == GV_OK, "begin");
	CHECK(gv_builder_train(making.builder, &making.trained,
						   &stop) == GV_CANCELED, "goes on");
	end_making(&making);
}

void
test_builder_use(void)
{
	check_refusals();
	check_other_devices();
	check_quality(unit_small ? 1500 : 6000, 12, 6, unit_small ? 20 : 50);
	check_codebook_quality(unit_small ? 500 : 3000, 10, 4);
	if (unit_small)
		return;
	check_quality(20000, 16, 8, 300);
	check_stop();
}
