/*
 * check_builder.c
 *		An index in the making, against the engine's own operations.
 *
 * Of the portable engine, or of the one that UNIT_BUILDERS names when this is
 * compiled (test/unit/gpu).  Both are held to the same: what has to be exact
 * is found from the arrays that were trained, whatever they are.
 */
#include "making.h"

/* The second list that a row must have. */
static int32_t
second_list(const Making *making, const float *row)
{
	int32_t		dims = making->spec.dims;
	GvModel		model = making->model;
	OwnTopK		near = new_topk(GV_SOAR_LISTS, false);
	const float *others[GV_SOAR_LISTS];
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
	return second;
}

/* Postings of n rows, from row `first` on: lists, codes, T. */
static void
check_postings(const Making *making, int32_t first, int32_t n,
			 const GvEncoded *encoded)
{
	const GvBuilderSpec *spec = &making->spec;
	size_t		code_bytes = gv_code_bytes(spec->m);
	OWN uint8_t *code = unit_alloc(code_bytes);
	OWN int32_t *nearest = unit_alloc(sizeof(int32_t) * n);
	const float *rows = making->moved + (size_t) first * spec->dims;
	int			wrong_lists = 0;
	int			wrong_codes = 0;
	int32_t		i;

	(void) gv_assign(spec->dims, making->centroids, making->trained.nlists,
					 rows, n, nearest, NULL, NULL);
	for (i = 0; i < n * spec->lists_per_row; i++)
	{
		const float *row = rows + (size_t) (i / spec->lists_per_row) *
			spec->dims;
		bool		is_second = i % spec->lists_per_row > 0;
		int32_t		list = is_second ? second_list(making, row) :
			nearest[i / spec->lists_per_row];
		float		t = 0.0f;

		wrong_lists += encoded->lists[i] != list;
		(void) gv_encode(&making->model, row, making->centroids, &list, 1, 1,
						 code, &t);
		wrong_codes += memcmp(code, encoded->codes + i * code_bytes,
							  code_bytes) != 0 ||
			memcmp(&t, &encoded->t[i], sizeof(t)) != 0;
	}
	CHECK(wrong_lists == 0, "%d of %d lists, dims %d", wrong_lists,
		  n * spec->lists_per_row, spec->dims);
	CHECK(wrong_codes == 0, "%d of %d codes, dims %d m %d", wrong_codes,
		  n * spec->lists_per_row, spec->dims, spec->m);
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
	bare.lists_per_row = 1;
	right = new_encoded(&bare, n);
	if (bare.refine == GV_RECORDS_HALF)
	{
		memset(right.min, 0, n * sizeof(float));
		memset(right.step, 0, n * sizeof(float));
		(void) gv_half_encode((int32_t) dims, making->moved + first * dims,
								n, (uint16_t *) (void *) right.records,
								right.error);
	}
	else
		(void) gv_refine_encode((int32_t) dims, making->moved + first * dims,
								n, right.records, right.min, right.step,
								right.error);
	CHECK(memcmp(right.records, encoded->records,
				 n * gv_record_code_bytes((GvRecords) bare.refine,
										  (int32_t) dims)) == 0 &&
		  memcmp(right.min, encoded->min, n * sizeof(float)) == 0 &&
		  memcmp(right.step, encoded->step, n * sizeof(float)) == 0 &&
		  memcmp(right.error, encoded->error, n * sizeof(float)) == 0,
		  "refine records, dims %zu", dims);
	free_encoded(&right);
}

/* Do the neighbors, all pushed, give what the whole table gives? */
static void
check_neighbors(const Making *making, GvTopK *found)
{
	const GvBuilderSpec *spec = &making->spec;
	OWN uint64_t *ids = unit_alloc(sizeof(uint64_t) * making->n);
	int			wrong = 0;
	int32_t		q;
	int32_t		i;

	for (i = 0; i < making->n; i++)
		ids[i] = i;
	for (q = 0; q < spec->nqueries; q++)
	{
		OwnTopK		right = new_topk(spec->depth, false);

		(void) gv_exact(spec->metric, spec->dims,
						making->queries + (size_t) q * spec->dims, 1,
						making->moved, making->n, ids, &right, NULL);
		gv_topk_sort(&right);
		gv_topk_sort(&found[q]);
		wrong += right.count != found[q].count;
		for (i = 0; i < right.count && wrong == 0; i++)
			wrong += right.ids[i] != found[q].ids[i] ||
				right.scores[i] != found[q].scores[i];
	}
	CHECK(wrong == 0, "%d wrong neighbors, dims %d", wrong, spec->dims);
}

/* Encode all rows, in batches of all sizes, by n builders in turn. */
static void
check_encode(const Making *making, GvBuilder *const *builders, int n)
{
	const GvBuilderSpec *spec = &making->spec;
	FREED GvTopK *found = calloc(spec->nqueries + 1, sizeof(GvTopK));
	int32_t		some = 1;
	int32_t		done;
	int			turn = 0;
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
		OK(gv_builder_encode(builders[turn++ % n], making->rows +
							 (size_t) done * spec->dims, some, &encoded,
							 NULL));
		check_postings(making, done, some, &encoded);
		check_records(making, done, some, &encoded);
		for (i = 0; i < encoded.nneighbors; i++)
		{
			const GvNeighbor *neighbor = &encoded.neighbors[i];

			gv_topk_push(&found[neighbor->query], neighbor->score,
						 (uint64_t) done + neighbor->row);
		}
		free_encoded(&encoded);
	}
	check_neighbors(making, found);
	for (i = 0; i < spec->nqueries; i++)
		free_topk(&found[i]);
}

/* Copies of the builder on all devices, two on the first, do what it does. */
static void
check_copied(const Making *making)
{
	GvBuilder  *copies[GV_MAX_DEVICES + 1];
	GvEncoded	encoded = new_encoded(&making->spec, 1);
	GvTrained	trained;
	int			n = gv_ndevices() + 1;
	int			i;

	for (i = 0; i < n; i++)
	{
		GvBuilderSpec spec = gv_builder_copy_spec(&making->spec,
												  i % gv_ndevices());

		CHECK(gv_builder_copy(making->builder, &spec, &copies[i]) == GV_OK,
			  "copy %d", i);
	}
	check_encode(making, copies, n);
	INVALID(gv_builder_encode_sample(copies[0], 0, 1, &encoded, NULL));
	INVALID(gv_builder_put_rows(copies[0], GV_SAMPLE, making->rows, 1));
	INVALID(gv_builder_train(copies[0], &trained, NULL));
	for (i = 0; i < n; i++)
		gv_builder_drop(copies[i]);
	free_encoded(&encoded);
}

/* Rows that the builder has from training give what they give otherwise. */
static void
check_sample(const Making *making)
{
	const GvBuilderSpec *spec = &making->spec;
	int32_t		n = (int32_t) spec->sample_rows;
	GvEncoded	encoded;
	int32_t		first = n > 1;

	INVALID(gv_builder_encode_sample(making->builder, n, 1, NULL, NULL));
	if (n - first < spec->batch_rows)
		n -= first;
	else
		n = spec->batch_rows;
	encoded = new_encoded(spec, n);
	INVALID(gv_builder_encode_sample(making->builder, spec->sample_rows, 1,
									 &encoded, NULL));
	INVALID(gv_builder_encode_sample(making->builder, -1, 1, &encoded, NULL));
	OK(gv_builder_encode_sample(making->builder, first, n, &encoded, NULL));
	check_postings(making, first, n, &encoded);
	check_records(making, first, n, &encoded);
	free_encoded(&encoded);
}

/* Everything about one table; rows are given up. */
static void
check_making(GvBuilderSpec spec, float *rows, int32_t n, int32_t nsample)
{
	Making		making = begin_making(spec, rows, n, nsample);

	CHECK(train_making(&making) == GV_OK, "train, dims %d", spec.dims);
	get_model(&making);
	check_copied(&making);
	check_encode(&making, &making.builder, 1);
	check_sample(&making);
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

/* n numbers, few of which differ, and these by more than a float can hold. */
static float *
apart(int32_t n)
{
	static const float values[] = {0.5f, 1.0f, 2.0f, 3.4e38f, -3.4e38f};
	float	   *rows = unit_alloc(sizeof(float) * n);
	int32_t		i;

	for (i = 0; i < n; i++)
		rows[i] = values[unit_random() % 5];
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
		spec.lists_per_row = 1 + i % 2;
		spec.refine = i % 5 == 3 ? GV_RECORDS_NONE :
			i % 3 == 1 ? GV_RECORDS_HALF : GV_RECORDS_BYTES;
		spec.nqueries = i % 4;
		spec.depth = spec.nqueries == 0 ? 0 : 1 + 40 * (i % 3);
		check_making(spec, clustered(n, dims, 20, 0.2f), n, n - n / 5);
	}
}

static void
check_odd_tables(void)
{
	GvBuilderSpec spec = make_spec(GV_L2, 1, 1, 3);
	uint64_t	seed = unit_seed;
	int			i;

	spec.lists_per_row = 2;
	for (i = 0; i < 10; i++)
		check_making(spec, apart(400), 400, 400);
	unit_seed = seed;			/* what follows compares k-means of few rows */
	spec = make_spec(GV_L2, 5, 3, 40);
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

void
test_builder(void)
{
	INVALID(gv_builders_open(NULL));
	CHECK(gv_builders_open(&UNIT_BUILDERS) == GV_OK, "open");
	check_shapes();
	check_odd_tables();
	test_builder_use();
}
