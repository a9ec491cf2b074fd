/*
 * check_builder.c
 *		An index in the making, against the engine's own operations; what
 *		builders refuse; faults.
 *
 * Of the portable engine, or of the one that UNIT_BUILDERS names when this is
 * compiled (test/unit/gpu).  Both are held to the same: what has to be exact
 * is found from the arrays that were trained, whatever they are.
 */
#include "unit.h"

#include "engine/gv_builder.h"

#ifndef UNIT_BUILDERS
#define UNIT_BUILDERS	gv_cpu_builders
#endif

#define INVALID(call)	CHECK((call) == GV_INVALID, "accepted")

/* Rows of a table, and a builder that was trained on the first of them. */
typedef struct Making
{
	GvBuilderSpec spec;
	int32_t		n;				/* rows */
	float	   *rows;			/* [n][dims] raw */
	float	   *moved;			/* [n][dims] transformed */
	float	   *queries;		/* [nqueries][dims] transformed */
	float	   *mean;			/* [dims] */
	GvModel		model;
	GvBuilder  *builder;
	GvTrained	trained;
	float	   *codebooks;
	float	   *parents;
	int32_t    *starts;
	float	   *centroids;
} Making;

static GvBuilderSpec
make_spec(GvMetric metric, int32_t dims, int32_t m, int32_t nlists)
{
	GvBuilderSpec spec = {
		.metric = metric,
		.dims = dims,
		.m = m,
		.copies = 2,
		.refine = 1,
		.nlists = nlists,
		.nparents = nlists < 4 ? 1 : nlists / 4,
		.nqueries = 3,
		.depth = 5,
		.batch_rows = 100,
		.iterations = 6,
		.max_share = 2.0,
		.seed = 5
	};

	return spec;
}

/* Find mean and scale; the queries are rows of the end. */
static Making
begin_making(GvBuilderSpec spec, float *rows, int32_t n, int32_t nsample)
{
	Making		making = {.spec = spec,.n = n,.rows = rows};
	size_t		dims = spec.dims;

	making.mean = unit_alloc(sizeof(float) * dims);
	gv_fit_transform(spec.metric, spec.dims, rows, n, making.mean,
					 &making.spec.scale);
	making.spec.sample_rows = nsample;
	making.model.metric = spec.metric;
	making.model.dims = spec.dims;
	making.model.m = spec.m;
	making.model.scale = making.spec.scale;
	making.model.mean = making.mean;
	making.moved = unit_alloc(sizeof(float) * n * dims);
	(void) gv_transform(&making.model, rows, n, making.moved);
	making.queries = unit_alloc(sizeof(float) * spec.nqueries * dims + 4);
	memcpy(making.queries, making.moved + (n - spec.nqueries) * dims,
		   sizeof(float) * spec.nqueries * dims);
	return making;
}

/* Put sample and queries in, in two pieces each, and train. */
static GvStatus
train(Making *making)
{
	const GvBuilderSpec *spec = &making->spec;
	size_t		dims = spec->dims;
	const float *queries = making->rows + (making->n - spec->nqueries) * dims;
	int32_t		half = (int32_t) spec->sample_rows / 2;
	GvBuilder  *builder = NULL;
	GvStatus	status;

	status = gv_builder_create(spec, making->mean, &builder);
	making->builder = builder;
	if (status == GV_OK)
		status = gv_builder_put_rows(builder, GV_SAMPLE, making->rows, half);
	if (status == GV_OK && spec->nqueries > 0)
		status = gv_builder_put_rows(builder, GV_QUERIES, queries, 1);
	if (status == GV_OK && spec->nqueries > 1)
		status = gv_builder_put_rows(builder, GV_QUERIES, queries + dims,
									 spec->nqueries - 1);
	if (status == GV_OK)
		status = gv_builder_put_rows(builder, GV_SAMPLE,
									 making->rows + half * dims,
									 (int32_t) spec->sample_rows - half);
	if (status == GV_OK)
		status = gv_builder_train(builder, &making->trained, NULL);
	return status;
}

static void *
get_array(const Making *making, GvArray array)
{
	int64_t		n = gv_builder_array_length(&making->spec, &making->trained,
											array);
	char	   *values = unit_alloc(4 * n);

	CHECK(gv_builder_get_array(making->builder, array, 0, n / 2,
							   values) == GV_OK &&
		  gv_builder_get_array(making->builder, array, n / 2, n - n / 2,
							   values + n / 2 * 4) == GV_OK, "array %d",
		  array);
	INVALID(gv_builder_get_array(making->builder, array, n, 1, values));
	return values;
}

/* The arrays, and whether they make sense. */
static void
get_model(Making *making)
{
	const GvBuilderSpec *spec = &making->spec;
	const GvTrained *trained = &making->trained;
	int32_t		p;

	CHECK(trained->nlists >= 1 && trained->nlists <= spec->nlists &&
		  trained->nparents >= 1 && trained->nparents <= spec->nparents,
		  "%d lists, %d parents", trained->nlists, trained->nparents);
	making->codebooks = get_array(making, GV_CODEBOOKS);
	making->parents = get_array(making, GV_PARENTS);
	making->starts = get_array(making, GV_STARTS);
	making->centroids = get_array(making, GV_CENTROIDS);
	making->model.codebooks = making->codebooks;
	CHECK(all_finite(making->codebooks, (size_t) GV_CODEWORDS * spec->dims) &&
		  all_finite(making->parents,
					 (size_t) trained->nparents * spec->dims) &&
		  all_finite(making->centroids,
					 (size_t) trained->nlists * spec->dims),
		  "not finite, dims %d", spec->dims);
	CHECK(making->starts[0] == 0 &&
		  making->starts[trained->nparents] == trained->nlists, "starts");
	for (p = 0; p < trained->nparents; p++)
		CHECK(making->starts[p] < making->starts[p + 1], "parent %d", p);
}

static void
end_making(Making *making)
{
	gv_builder_drop(making->builder);
	unit_free(making->rows);
	unit_free(making->moved);
	unit_free(making->queries);
	unit_free(making->mean);
	if (making->codebooks == NULL)
		return;
	unit_free(making->codebooks);
	unit_free(making->parents);
	unit_free(making->starts);
	unit_free(making->centroids);
}

/* Arrays for n rows. */
static GvEncoded
new_encoded(const GvBuilderSpec *spec, int32_t n)
{
	size_t		copies = (size_t) n * spec->copies;
	GvEncoded	encoded = {0};

	encoded.lists = unit_alloc(sizeof(int32_t) * copies);
	encoded.t = unit_alloc(sizeof(float) * copies);
	encoded.codes = unit_alloc(copies * gv_code_bytes(spec->m));
	encoded.neighbours = unit_alloc(sizeof(GvNeighbour) *
									gv_builder_most_neighbours(spec, n));
	if (spec->refine)
	{
		encoded.min = unit_alloc(sizeof(float) * n);
		encoded.step = unit_alloc(sizeof(float) * n);
		encoded.error = unit_alloc(sizeof(float) * n);
		encoded.records = unit_alloc((size_t) n * spec->dims);
	}
	return encoded;
}

static void
free_encoded(GvEncoded *encoded)
{
	unit_free(encoded->lists);
	unit_free(encoded->t);
	unit_free(encoded->codes);
	unit_free(encoded->neighbours);
	if (encoded->min == NULL)
		return;
	unit_free(encoded->min);
	unit_free(encoded->step);
	unit_free(encoded->error);
	unit_free(encoded->records);
}

/* The second list that a row must have. */
static int32_t
second_list(const Making *making, const float *row)
{
	int32_t		dims = making->spec.dims;
	GvModel		model = making->model;
	GvTopK		near = new_topk(GV_NEAR, false);
	const float *others[GV_NEAR];
	int32_t		second;
	int32_t		i;

	model.metric = GV_L2;
	(void) gv_coarse(&model, row, making->centroids, making->trained.nlists,
					 0, &near);
	gv_topk_sort(&near);
	for (i = 1; i < near.count; i++)
		others[i - 1] = making->centroids + (size_t) near.ids[i] * dims;
	second = gv_soar(dims, row, making->centroids +
					 (size_t) near.ids[0] * dims, others, near.count - 1);
	second = second < 0 ? -1 : (int32_t) near.ids[second + 1];
	free_topk(&near);
	return second;
}

/* Copies of n rows, from row `first` on: lists, codes, T. */
static void
check_copies(const Making *making, int32_t first, int32_t n,
			 const GvEncoded *encoded)
{
	const GvBuilderSpec *spec = &making->spec;
	size_t		code_bytes = gv_code_bytes(spec->m);
	uint8_t    *code = unit_alloc(code_bytes);
	int32_t    *nearest = unit_alloc(sizeof(int32_t) * n);
	const float *rows = making->moved + (size_t) first * spec->dims;
	int			wrong_lists = 0;
	int			wrong_codes = 0;
	int32_t		i;

	(void) gv_assign(spec->dims, making->centroids, making->trained.nlists,
					 rows, n, nearest, NULL, NULL);
	for (i = 0; i < n * spec->copies; i++)
	{
		const float *row = rows + (size_t) (i / spec->copies) * spec->dims;
		bool		is_second = i % spec->copies > 0;
		int32_t		list = is_second ? second_list(making, row) :
			nearest[i / spec->copies];
		float		t = 0.0f;

		wrong_lists += encoded->lists[i] != list;
		memset(code, 0, code_bytes);
		if (list >= 0)
			(void) gv_encode(&making->model, row, making->centroids +
							 (size_t) list * spec->dims, 1, code, &t);
		wrong_codes += memcmp(code, encoded->codes + i * code_bytes,
							  code_bytes) != 0 ||
			memcmp(&t, &encoded->t[i], sizeof(t)) != 0;
	}
	CHECK(wrong_lists == 0, "%d of %d lists, dims %d", wrong_lists,
		  n * spec->copies, spec->dims);
	CHECK(wrong_codes == 0, "%d of %d codes, dims %d m %d", wrong_codes,
		  n * spec->copies, spec->dims, spec->m);
	unit_free(code);
	unit_free(nearest);
}

static void
check_records(const Making *making, int32_t first, int32_t n,
			  const GvEncoded *encoded)
{
	size_t		dims = making->spec.dims;
	GvBuilderSpec bare = making->spec;
	GvEncoded	right;

	if (!making->spec.refine)
		return;
	bare.copies = 1;
	right = new_encoded(&bare, n);
	(void) gv_refine_encode((int32_t) dims, making->moved + first * dims, n,
							right.records, right.min, right.step,
							right.error);
	CHECK(memcmp(right.records, encoded->records, n * dims) == 0 &&
		  memcmp(right.min, encoded->min, n * sizeof(float)) == 0 &&
		  memcmp(right.step, encoded->step, n * sizeof(float)) == 0 &&
		  memcmp(right.error, encoded->error, n * sizeof(float)) == 0,
		  "refine records, dims %zu", dims);
	free_encoded(&right);
}

/* Do the neighbours, all pushed, give what the whole table gives? */
static void
check_neighbours(const Making *making, GvTopK *found)
{
	const GvBuilderSpec *spec = &making->spec;
	uint64_t   *ids = unit_alloc(sizeof(uint64_t) * making->n);
	int			wrong = 0;
	int32_t		q;
	int32_t		i;

	for (i = 0; i < making->n; i++)
		ids[i] = i;
	for (q = 0; q < spec->nqueries; q++)
	{
		GvTopK		right = new_topk(spec->depth, false);

		(void) gv_exact(spec->metric, spec->dims,
						making->queries + (size_t) q * spec->dims, 1,
						making->moved, making->n, ids, &right, NULL);
		gv_topk_sort(&right);
		gv_topk_sort(&found[q]);
		wrong += right.count != found[q].count;
		for (i = 0; i < right.count && wrong == 0; i++)
			wrong += right.ids[i] != found[q].ids[i] ||
				right.scores[i] != found[q].scores[i];
		free_topk(&right);
	}
	CHECK(wrong == 0, "%d wrong neighbours, dims %d", wrong, spec->dims);
	unit_free(ids);
}

/* Encode all rows, in batches of all sizes. */
static void
check_encode(const Making *making)
{
	const GvBuilderSpec *spec = &making->spec;
	GvTopK	   *found = calloc(spec->nqueries + 1, sizeof(GvTopK));
	int32_t		some = 1;
	int32_t		done;
	int32_t		i;

	for (i = 0; i < spec->nqueries; i++)
		found[i] = new_topk(spec->depth, false);
	for (done = 0; done < making->n; done += some)
	{
		GvEncoded	encoded;

		some = done == 0 ? 1 : some * 3 + 1;
		if (some > spec->batch_rows)
			some = spec->batch_rows;
		if (some > making->n - done)
			some = making->n - done;
		encoded = new_encoded(spec, some);
		CHECK(gv_builder_encode(making->builder, making->rows +
								(size_t) done * spec->dims, some, &encoded,
								NULL) == GV_OK, "encode");
		check_copies(making, done, some, &encoded);
		check_records(making, done, some, &encoded);
		for (i = 0; i < encoded.nneighbours; i++)
		{
			const GvNeighbour *neighbour = &encoded.neighbours[i];

			gv_topk_push(&found[neighbour->query], neighbour->score,
						 (uint64_t) done + neighbour->row);
		}
		free_encoded(&encoded);
	}
	check_neighbours(making, found);
	for (i = 0; i < spec->nqueries; i++)
		free_topk(&found[i]);
	free(found);
}

/* Everything about one table; rows are given up. */
static void
check_making(GvBuilderSpec spec, float *rows, int32_t n, int32_t nsample)
{
	Making		making = begin_making(spec, rows, n, nsample);

	CHECK(train(&making) == GV_OK, "train, dims %d", spec.dims);
	get_model(&making);
	check_encode(&making);
	end_making(&making);
}

/* Is training as good as the engine's own k-means, even, and repeatable? */
static void
check_quality(int32_t n, int32_t dims, int32_t m, int32_t nlists)
{
	GvBuilderSpec spec = make_spec(GV_L2, dims, m, nlists);
	Making		making = begin_making(spec, clustered(n, dims, nlists / 2 + 1,
													  0.2f), n, n);
	GvKmeans	kmeans = {dims, n, nlists, spec.iterations, spec.max_share,
	spec.seed};
	float	   *own = unit_alloc(sizeof(float) * nlists * dims);
	char	   *scratch = unit_alloc(gv_kmeans_scratch(&kmeans));
	float	   *first;
	double		mse;
	double		own_mse;
	int64_t		most;
	int32_t		found;

	(void) gv_kmeans(&kmeans, making.moved, own, &found, scratch, NULL);
	(void) biggest_cluster(dims, own, found, making.moved, n, &own_mse);
	CHECK(train(&making) == GV_OK, "train");
	get_model(&making);
	most = biggest_cluster(dims, making.centroids, making.trained.nlists,
						   making.moved, n, &mse);
	CHECK(making.trained.nlists == nlists, "%d lists of %d",
		  making.trained.nlists, nlists);
	CHECK(most <= spec.max_share * n / nlists + 1, "%d rows of %d in a list",
		  (int) most, n);
	CHECK(mse <= own_mse * 1.05, "error %g, not %g", mse, own_mse);

	first = making.centroids;
	gv_builder_drop(making.builder);
	CHECK(train(&making) == GV_OK, "train again");
	making.centroids = get_array(&making, GV_CENTROIDS);
	CHECK(memcmp(first, making.centroids,
				 sizeof(float) * nlists * dims) == 0, "other centroids");
	unit_free(first);
	unit_free(own);
	unit_free(scratch);
	end_making(&making);
}

/* Codes must keep as much as those of the engine's own codebooks. */
static void
check_codebook_quality(int32_t n, int32_t dims, int32_t m)
{
	GvBuilderSpec spec = make_spec(GV_L2, dims, m, 1);
	Making		making = begin_making(spec, clustered(n, dims, 50, 0.1f), n,
									  n);
	float	   *residuals = unit_alloc(sizeof(float) * n * dims);
	float	   *own = unit_alloc(sizeof(float) * GV_CODEWORDS * dims);
	char	   *scratch = unit_alloc(gv_codebooks_scratch(dims, m, n));
	double		errors[2] = {0, 0};
	int			side;
	int32_t		j;

	CHECK(train(&making) == GV_OK, "train");
	get_model(&making);
	for (j = 0; j < n * dims; j++)
		residuals[j] = making.moved[j] - making.centroids[j % dims];
	(void) gv_codebooks(dims, m, n, residuals, 1, own, scratch, NULL);
	for (side = 0; side < 2; side++)
		for (j = 0; j < m; j++)
		{
			int32_t		start = gv_sub_start(&making.model, j);
			int32_t		len = gv_sub_start(&making.model, j + 1) - start;
			const float *words = (side ? own : making.codebooks) +
				GV_CODEWORDS * start;
			int32_t		i;

			for (i = 0; i < n; i++)
			{
				double		best = INFINITY;
				int			k;

				for (k = 0; k < GV_CODEWORDS; k++)
					best = fmin(best, naive_sqdist(residuals + i * dims +
												   start, words + k * len,
												   len));
				errors[side] += best;
			}
		}
	CHECK(errors[0] <= errors[1] * 1.05, "error %g, not %g", errors[0],
		  errors[1]);
	unit_free(residuals);
	unit_free(own);
	unit_free(scratch);
	end_making(&making);
}

/* n rows, of which `distinct` differ. */
static float *
repeated(int32_t n, int32_t dims, int32_t distinct)
{
	float	   *rows = unit_floats((size_t) n * dims, 1.0f);
	int32_t		i;

	for (i = distinct; i < n; i++)
		memcpy(rows + (size_t) i * dims,
			   rows + (size_t) (i % distinct) * dims, sizeof(float) * dims);
	return rows;
}

/* Numbers from the ends of the range, and zeros. */
static float *
extremes(int32_t n, int32_t dims)
{
	static const float values[] = {0.0f, 1.0f, -1.0f, 3e38f, -3e38f, 1e-38f,
	1e20f, -1e18f, 1e-45f};
	float	   *rows = unit_alloc(sizeof(float) * n * dims);
	int32_t		i;

	for (i = 0; i < n * dims; i++)
		rows[i] = unit_random() % 3 == 0 ? unit_float() :
			values[unit_random() % 9];
	return rows;
}

static void
check_shapes(void)
{
	static const GvMetric metrics[] = {GV_L2, GV_IP, GV_COSINE};
	int			i;

	for (i = 0; i < NDIMS; i++)
	{
		int32_t		dims = all_dims[i];
		int32_t		n = dims > 1000 || unit_small ? 60 : 300;
		GvBuilderSpec spec = make_spec(metrics[i % 3], dims,
									   (dims + 1 + i % 2) / (1 + i % 3 +
															 (dims > 9)),
									   3 + 5 * (i % 4));

		if (spec.m < 1 || spec.m > dims)
			spec.m = dims;
		if (unit_small && (dims > 2000 || i % 2 > 0))
			continue;
		spec.copies = 1 + i % 2;
		spec.refine = i % 5 != 3;
		spec.nqueries = i % 4;
		spec.depth = spec.nqueries == 0 ? 0 : 1 + 40 * (i % 3);
		check_making(spec, clustered(n, dims, 20, 0.2f), n, n - n / 5);
	}
}

static void
check_odd_tables(void)
{
	GvBuilderSpec spec = make_spec(GV_L2, 5, 3, 40);

	check_making(spec, repeated(90, 5, 1), 90, 90);
	check_making(spec, repeated(90, 5, 7), 90, 80);
	check_making(spec, repeated(500, 5, 30), 500, 500);
	check_making(spec, unit_floats(5 * 30, 1.0f), 30, 4);
	check_making(spec, extremes(200, 5), 200, 200);
	spec.metric = GV_COSINE;
	check_making(spec, extremes(200, 5), 200, 200);
	spec.metric = GV_IP;
	check_making(spec, extremes(200, 5), 200, 150);
	spec.nlists = 1;
	spec.nparents = 1;
	check_making(spec, unit_floats(5 * 70, 1.0f), 70, 70);
	spec.nlists = 17;
	spec.depth = GV_MAX_DEPTH;
	check_making(spec, unit_floats(5 * 400, 100.0f), 400, 300);
}

#define BAD(change) (bad = making.spec, bad.change, \
	gv_builder_create(&bad, making.mean, &builder))

static void
check_refusals(void)
{
	GvBuilderSpec spec = make_spec(GV_L2, 4, 2, 6);
	Making		making = begin_making(spec, unit_floats(4 * 50, 1.0f), 50, 40);
	GvBuilder  *builder = NULL;
	GvBuilderSpec bad;
	GvTrained	trained;
	GvEncoded	encoded = new_encoded(&spec, 50);
	float		nan4[4] = {0, NAN, 0, 0};

	INVALID(gv_builders_open(&UNIT_BUILDERS));
	INVALID(BAD(metric = (GvMetric) 4));
	INVALID(BAD(dims = 0));
	INVALID(BAD(m = 5));
	INVALID(BAD(copies = 3));
	INVALID(BAD(copies = 0));
	INVALID(BAD(refine = 2));
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
	INVALID(BAD(max_share = 1.0));
	INVALID(BAD(sample_rows = 0));
	CHECK(gv_builder_size(&bad) == 0, "size of an invalid spec");
	CHECK(gv_builder_size(&making.spec) > 40 * 16, "size");
	INVALID(gv_builder_create(&making.spec, nan4, &builder));
	INVALID(gv_builder_create(&making.spec, NULL, &builder));
	INVALID(gv_builder_create(&making.spec, making.mean, NULL));

	CHECK(gv_builder_create(&making.spec, making.mean, &builder) == GV_OK,
		  "create");
	INVALID(gv_builder_train(builder, &trained, NULL));
	INVALID(gv_builder_put_rows(builder, GV_SAMPLE, making.rows, 41));
	INVALID(gv_builder_put_rows(builder, GV_QUERIES, making.rows, 4));
	INVALID(gv_builder_put_rows(builder, (GvRows) 2, making.rows, 4));
	INVALID(gv_builder_put_rows(builder, GV_SAMPLE, nan4, 1));
	INVALID(gv_builder_put_rows(builder, GV_SAMPLE, NULL, 1));
	INVALID(gv_builder_put_rows(builder, GV_SAMPLE, making.rows, -1));
	INVALID(gv_builder_encode(builder, making.rows, 1, &encoded, NULL));
	INVALID(gv_builder_get_array(builder, GV_STARTS, 0, 1, nan4));
	CHECK(gv_builder_put_rows(builder, GV_SAMPLE, making.rows, 40) == GV_OK,
		  "sample");
	INVALID(gv_builder_train(builder, &trained, NULL));
	gv_builder_drop(builder);

	CHECK(train(&making) == GV_OK, "train");
	get_model(&making);
	INVALID(gv_builder_train(making.builder, &trained, NULL));
	INVALID(gv_builder_put_rows(making.builder, GV_SAMPLE, making.rows, 1));
	INVALID(gv_builder_encode(making.builder, nan4, 1, &encoded, NULL));
	INVALID(gv_builder_encode(making.builder, making.rows, 0, &encoded,
							  NULL));
	INVALID(gv_builder_encode(making.builder, making.rows, 101, &encoded,
							  NULL));
	INVALID(gv_builder_encode(making.builder, making.rows, 1, NULL, NULL));
	INVALID(gv_builder_encode(NULL, making.rows, 1, &encoded, NULL));
	CHECK(gv_builder_encode(making.builder, making.rows, 50, &encoded,
							NULL) == GV_OK, "encode after refusals");
	end_making(&making);
	free_encoded(&encoded);
}

static void
check_faults(void)
{
	GvBuilderSpec spec = make_spec(GV_L2, 4, 2, 6);
	int			n;

	for (n = 1; n <= 7; n++)
	{
		Making		making = begin_making(spec, unit_floats(4 * 50, 1.0f), 50,
										  40);
		GvEncoded	encoded = new_encoded(&spec, 1);
		GvStatus	status;

		gv_builder_fault(n, GV_FAILED);
		status = train(&making);
		if (status == GV_OK)
			status = gv_builder_encode(making.builder, making.rows, 1,
									   &encoded, NULL);
		CHECK(status == GV_FAILED, "call %d", n);
		gv_builder_fault(0, GV_OK);
		end_making(&making);
		free_encoded(&encoded);
	}
}

static bool
stop_now(void *arg)
{
	return --*(int *) arg <= 0;
}

/* Training ends when it is asked to; nobody else is disturbed. */
static void
check_stop(void)
{
	GvBuilderSpec spec = make_spec(GV_L2, 64, 32, 300);
	Making		making = begin_making(spec, clustered(4000, 64, 100, 0.2f),
									  4000, 4000);
	int			left = 1;
	GvStop		stop = {stop_now, &left};

	CHECK(gv_builder_create(&making.spec, making.mean,
							&making.builder) == GV_OK &&
		  gv_builder_put_rows(making.builder, GV_SAMPLE, making.rows,
							  4000) == GV_OK &&
		  gv_builder_put_rows(making.builder, GV_QUERIES, making.rows,
							  3) == GV_OK, "begin");
	CHECK(gv_builder_train(making.builder, &making.trained,
						   &stop) == GV_CANCELLED, "goes on");
	end_making(&making);
}

void
test_builder(void)
{
	INVALID(gv_builders_open(NULL));
	CHECK(gv_builders_open(&UNIT_BUILDERS) == GV_OK, "open");
	check_shapes();
	check_odd_tables();
	check_refusals();
	check_faults();
	check_quality(unit_small ? 500 : 6000, 12, 6, unit_small ? 20 : 50);
	check_codebook_quality(unit_small ? 500 : 3000, 10, 4);
	if (unit_small)
		return;
	check_quality(20000, 16, 8, 300);
	check_stop();
}
