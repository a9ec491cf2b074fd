/*
 * making.h
 *		A table of rows and a builder that is trained on them, for the tests of
 *		builders.
 */
#ifndef MAKING_H
#define MAKING_H

#include "unit.h"

#include "test/oracle/gv_oracle.h"

#ifndef UNIT_BUILDERS
#define UNIT_BUILDERS	gv_cpu_builders
#endif

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
	int32_t    *parent_offsets;
	float	   *centroids;
} Making;

static inline GvBuilderSpec
make_spec(GvMetric metric, int32_t dims, int32_t m, int32_t nlists)
{
	GvBuilderSpec spec = {
		.metric = metric,
		.dims = dims,
		.m = m,
		.lists_per_row = 2,
		.refine = 1,
		.nlists = nlists,
		.nparents = nlists < 4 ? 1 : nlists / 4,
		.nqueries = 3,
		.depth = 5,
		.batch_rows = 100,
		.iterations = 6,
		.max_imbalance = 2.0,
		.seed = 5
	};

	return spec;
}

/* Find mean and scale; the queries are rows of the end. */
static inline Making
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

/* Puts sample and queries in, in two batches each, and trains. */
static inline GvStatus
train_making(Making *making)
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

static inline void *
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
static inline void
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
	making->parent_offsets = get_array(making, GV_PARENT_OFFSETS);
	making->centroids = get_array(making, GV_CENTROIDS);
	making->model.codebooks = making->codebooks;
	CHECK(all_finite(making->codebooks, (size_t) GV_CODEWORDS * spec->dims) &&
		  all_finite(making->parents,
					 (size_t) trained->nparents * spec->dims) &&
		  all_finite(making->centroids,
					 (size_t) trained->nlists * spec->dims),
		  "not finite, dims %d", spec->dims);
	CHECK(making->parent_offsets[0] == 0 &&
		  making->parent_offsets[trained->nparents] == trained->nlists,
			"starts");
	for (p = 0; p < trained->nparents; p++)
		CHECK(making->parent_offsets[p] < making->parent_offsets[p + 1],
			  "parent %d", p);
}

static inline void
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
	unit_free(making->parent_offsets);
	unit_free(making->centroids);
}

/* Arrays for n rows. */
static inline GvEncoded
new_encoded(const GvBuilderSpec *spec, int32_t n)
{
	size_t		postings = (size_t) n * spec->lists_per_row;
	GvEncoded	encoded = {0};

	encoded.lists = unit_alloc(sizeof(int32_t) * postings);
	encoded.t = unit_alloc(sizeof(float) * postings);
	encoded.codes = unit_alloc(postings * gv_code_bytes(spec->m));
	encoded.neighbors = unit_alloc(sizeof(GvNeighbor) *
									gv_builder_most_neighbors(spec, n));
	if (spec->refine)
	{
		encoded.min = unit_alloc(sizeof(float) * n);
		encoded.step = unit_alloc(sizeof(float) * n);
		encoded.error = unit_alloc(sizeof(float) * n);
		encoded.records =
			unit_alloc(n * gv_record_code_bytes((GvRecords) spec->refine,
												spec->dims));
	}
	return encoded;
}

static inline void
free_encoded(GvEncoded *encoded)
{
	unit_free(encoded->lists);
	unit_free(encoded->t);
	unit_free(encoded->codes);
	unit_free(encoded->neighbors);
	if (encoded->min == NULL)
		return;
	unit_free(encoded->min);
	unit_free(encoded->step);
	unit_free(encoded->error);
	unit_free(encoded->records);
}

/* check_builder_use.c */
extern void test_builder_use(void);

#endif							/* MAKING_H */
