/*
 * builder.c
 *		An index in the making, in plain C: what the engine's operations do,
 *		with the memory that they want.
 *
 * All lists are compared with a row, as devices do it; a backend goes through
 * parents and is faster.  This is the oracle, and the tests' substitute for a
 * device.
 */
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"
#include "test/oracle/gv_oracle.h"

struct GvBuilder
{
	GvBuilderSpec spec;
	GvModel		model;
	float	   *mean;			/* [dims] */
	float	   *sample;			/* [sample_rows][dims], transformed */
	int64_t		nsample;
	float	   *queries;		/* [nqueries][dims], transformed */
	int32_t		nqueries;		/* that have come */
	GvTrained	trained;		/* nlists 0: not yet */
	float	   *codebooks;		/* [GV_CODEWORDS * dims] */
	float	   *parents;		/* [nparents][dims] */
	int32_t    *parent_offsets; /* [nparents + 1] */
	float	   *centroids;		/* [nlists][dims] */
	uint64_t   *numbers;		/* [nlists] 0, 1, .. */
	float	   *rows;			/* [batch_rows][dims] */
	GvTopK	   *near;			/* [batch_rows] nearest lists */
	uint64_t   *ids;			/* [batch_rows] */
	uint64_t	nencoded;		/* rows */
	GvTopK	   *best;			/* [nqueries] rows nearest to each */
};

/* n >= 1 empty heaps; NULL when there is no memory. */
static GvTopK *
take_heaps(int64_t n, int32_t capacity)
{
	size_t		pairs = (size_t) n * (size_t) capacity;
	GvTopK	   *heaps = gv_cpu_take(n, sizeof(GvTopK));
	float	   *scores = gv_cpu_take((int64_t) pairs, sizeof(float));
	uint64_t   *ids = gv_cpu_take((int64_t) pairs, sizeof(uint64_t));
	int64_t		i;

	if (heaps == NULL || scores == NULL || ids == NULL)
	{
		free(heaps);
		free(scores);
		free(ids);
		return NULL;
	}
	for (i = 0; i < n; i++)
	{
		heaps[i].capacity = capacity;
		heaps[i].count = 0;
		heaps[i].unique = false;
		heaps[i].scores = scores + (size_t) i * (size_t) capacity;
		heaps[i].ids = ids + (size_t) i * (size_t) capacity;
	}
	return heaps;
}

static void
free_heaps(GvTopK *heaps)
{
	if (heaps == NULL)
		return;
	free(heaps[0].scores);
	free(heaps[0].ids);
	free(heaps);
}

/* See gv_builder_size. */
static int64_t
cpu_size(const GvBuilderSpec *spec)
{
	int64_t		rows = spec->sample_rows + 2 * (int64_t) spec->nlists +
	spec->nparents + spec->nqueries + spec->batch_rows;

	/* twelve: what k-means wants for a row, and more than that of a list */
	return rows * (spec->dims * 4 + 12) +
		(int64_t) spec->batch_rows * GV_SOAR_LISTS * 12 +
		(int64_t) spec->nqueries * spec->depth * 12 +
		2 * GV_CODEBOOK_ROWS * (int64_t) spec->dims * 4;
}

static void
cpu_drop(GvBuilder *builder)
{
	free(builder->mean);
	free(builder->sample);
	free(builder->queries);
	free(builder->codebooks);
	free(builder->parents);
	free(builder->parent_offsets);
	free(builder->centroids);
	free(builder->numbers);
	free(builder->rows);
	free_heaps(builder->near);
	free(builder->ids);
	free_heaps(builder->best);
	free(builder);
}

/* See gv_builder_create. */
static GvStatus
cpu_create(const GvBuilderSpec *spec, const float *mean, GvBuilder **builder)
{
	GvBuilder  *made = calloc(1, sizeof(GvBuilder));
	int64_t		dims = spec->dims;
	int32_t		i;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->mean = gv_cpu_take(dims, sizeof(float));
	made->sample = gv_cpu_take(spec->sample_rows * dims, sizeof(float));
	made->queries = gv_cpu_take(spec->nqueries * dims, sizeof(float));
	made->codebooks = gv_cpu_take(GV_CODEWORDS * dims, sizeof(float));
	made->parents = gv_cpu_take(spec->nparents * dims, sizeof(float));
	made->parent_offsets =
		gv_cpu_take((int64_t) spec->nparents + 1, sizeof(int32_t));
	made->centroids = gv_cpu_take(spec->nlists * dims, sizeof(float));
	made->numbers = gv_cpu_take(spec->nlists, sizeof(uint64_t));
	made->rows = gv_cpu_take(spec->batch_rows * dims, sizeof(float));
	made->near = take_heaps(spec->batch_rows, GV_SOAR_LISTS);
	made->ids = gv_cpu_take(spec->batch_rows, sizeof(uint64_t));
	if (spec->nqueries > 0)
		made->best = take_heaps(spec->nqueries, spec->depth);
	if (made->mean == NULL || made->sample == NULL || made->queries == NULL ||
		made->codebooks == NULL || made->parents == NULL ||
		made->parent_offsets == NULL || made->centroids == NULL ||
		made->numbers == NULL || made->rows == NULL || made->near == NULL ||
		made->ids == NULL || (made->best == NULL && spec->nqueries > 0))
	{
		cpu_drop(made);
		return GV_NO_MEMORY;
	}
	memcpy(made->mean, mean, sizeof(float) * (size_t) dims);
	for (i = 0; i < spec->nlists; i++)
		made->numbers[i] = (uint64_t) i;
	made->model.metric = spec->metric;
	made->model.dims = spec->dims;
	made->model.m = spec->m;
	made->model.scale = spec->scale;
	made->model.mean = made->mean;
	made->model.codebooks = made->codebooks;
	*builder = made;
	return GV_OK;
}

/* See gv_builder_put_rows. */
static GvStatus
cpu_put_rows(GvBuilder *builder, GvRows kind, const float *rows, int32_t n)
{
	const GvBuilderSpec *spec = &builder->spec;
	size_t		dims = (size_t) spec->dims;

	if (builder->trained.nlists > 0 || !gv_is_finite(rows, n * (int64_t) dims))
		return GV_INVALID;
	if (kind == GV_SAMPLE)
	{
		if (n > spec->sample_rows - builder->nsample)
			return GV_INVALID;
		(void) gv_transform(&builder->model, rows, n, builder->sample +
							(size_t) builder->nsample * dims);
		builder->nsample += n;
		return GV_OK;
	}
	if (n > spec->nqueries - builder->nqueries)
		return GV_INVALID;
	(void) gv_transform(&builder->model, rows, n,
						builder->queries + (size_t) builder->nqueries * dims);
	builder->nqueries += n;
	return GV_OK;
}

/* k-means of rows [n][dims] with scratch of its own. */
static GvStatus
cluster(const GvBuilder *builder, const float *rows, int64_t n, int32_t k,
		float *centroids, int32_t *found, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvKmeans	kmeans = {
		.dims = spec->dims,
		.n = n,
		.k = k,
		.iterations = spec->iterations,
		.max_imbalance = spec->max_imbalance,
		.seed = spec->seed
	};
	void	   *scratch = gv_cpu_take((int64_t) gv_kmeans_scratch(&kmeans), 1);
	GvStatus	status;

	if (scratch == NULL)
		return GV_NO_MEMORY;
	status = gv_kmeans(&kmeans, rows, centroids, found, scratch, stop);
	free(scratch);
	return status;
}

/* Parents of the lists, which are brought into their order. */
static GvStatus
group(GvBuilder *builder, const GvStop *stop)
{
	int32_t		dims = builder->spec.dims;
	int32_t		nlists = builder->trained.nlists;
	int32_t		nparents = builder->spec.nparents;
	size_t		values = (size_t) nlists * (size_t) dims;
	float	   *grouped = gv_cpu_take((int64_t) values, sizeof(float));
	int32_t    *owners = gv_cpu_take(nlists, sizeof(int32_t));
	GvStatus	status = GV_NO_MEMORY;

	if (grouped != NULL && owners != NULL)
		status = cluster(builder, builder->centroids, nlists, nparents,
						 builder->parents, &nparents, stop);
	if (status == GV_OK)
		status = gv_assign(dims, builder->parents, nparents,
						   builder->centroids, nlists, owners, NULL,
						   stop);
	if (status == GV_OK)
	{
		builder->trained.nparents =
			gv_group_lists(dims, nlists, builder->centroids, owners, nparents,
						   builder->parents, builder->parent_offsets, grouped);
		memcpy(builder->centroids, grouped, sizeof(float) * values);
	}
	free(grouped);
	free(owners);
	return status;
}

/* The lists of n transformed rows, n <= batch_rows. */
static GvStatus
place(GvBuilder *builder, const float *rows, int32_t n, int32_t *lists,
	  const GvStop *stop)
{
	int32_t		dims = builder->spec.dims;
	int32_t		lists_per_row = builder->spec.lists_per_row;
	GvStatus	status;
	int32_t		i;

	for (i = 0; i < n; i++)
		gv_topk_reset(&builder->near[i]);
	status = gv_exact(GV_L2, dims, rows, n, builder->centroids,
					  builder->trained.nlists, builder->numbers,
					  builder->near, stop);
	for (i = 0; i < n && status == GV_OK; i++)
	{
		GvTopK	   *near = &builder->near[i];
		const float *others[GV_SOAR_LISTS];
		const float *first;
		int32_t		second;
		int32_t		j;

		gv_topk_sort(near);
		lists[i * lists_per_row] = (int32_t) near->ids[0];
		if (lists_per_row < 2)
			continue;
		first = builder->centroids + (size_t) near->ids[0] * (size_t) dims;
		for (j = 1; j < near->count; j++)
			others[j - 1] = builder->centroids +
				(size_t) near->ids[j] * (size_t) dims;
		second = gv_soar(dims, rows + (size_t) i * (size_t) dims, first,
						 others, near->count - 1);
		lists[i * lists_per_row + 1] = second < 0 ? -1 :
			(int32_t) near->ids[second + 1];
	}
	return status;
}

/* Residuals of the first rows of the sample in their lists. */
static GvStatus
find_residuals(GvBuilder *builder, float *residuals, int64_t *nresiduals,
			   const GvStop *stop)
{
	int32_t		dims = builder->spec.dims;
	int32_t		lists_per_row = builder->spec.lists_per_row;
	int64_t		n = builder->nsample < GV_CODEBOOK_ROWS ? builder->nsample :
	GV_CODEBOOK_ROWS;
	int64_t		most = (int64_t) builder->spec.batch_rows * lists_per_row;
	int32_t    *lists = gv_cpu_take(most, sizeof(int32_t));
	GvStatus	status = lists == NULL ? GV_NO_MEMORY : GV_OK;
	int64_t		done;
	int32_t		some = 0;

	*nresiduals = 0;
	for (done = 0; done < n && status == GV_OK; done += some)
	{
		const float *rows = builder->sample + (size_t) done * (size_t) dims;
		int32_t		i;
		int32_t		d;

		some = n - done < builder->spec.batch_rows ? (int32_t) (n - done) :
			builder->spec.batch_rows;
		status = place(builder, rows, some, lists, stop);
		for (i = 0; i < some * lists_per_row && status == GV_OK; i++)
		{
			const float *row = rows + (size_t) (i / lists_per_row) *
			(size_t) dims;
			const float *centroid;
			float	   *residual = residuals +
			(size_t) *nresiduals * (size_t) dims;

			if (lists[i] < 0)
				continue;
			centroid = builder->centroids + (size_t) lists[i] * (size_t) dims;
			for (d = 0; d < dims; d++)
				residual[d] = gv_difference(row[d], centroid[d]);
			++*nresiduals;
		}
	}
	free(lists);
	return status;
}

static GvStatus
train_codebooks(GvBuilder *builder, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	int64_t		most = (int64_t) GV_CODEBOOK_ROWS * spec->lists_per_row;
	float	   *residuals = gv_cpu_take(most * spec->dims, sizeof(float));
	void	   *scratch = NULL;
	int64_t		n = 0;
	GvStatus	status = GV_NO_MEMORY;

	if (residuals != NULL)
		status = find_residuals(builder, residuals, &n, stop);
	if (status == GV_OK)
	{
		scratch = gv_cpu_take((int64_t) gv_codebooks_scratch(spec->dims,
															 spec->m, n), 1);
		if (scratch == NULL)
			status = GV_NO_MEMORY;
	}
	if (status == GV_OK)
		status = gv_codebooks(spec->dims, spec->m, n, residuals,
							  spec->seed, builder->codebooks, scratch,
							  stop);
	free(scratch);
	free(residuals);
	return status;
}

/* See gv_builder_train. */
static GvStatus
cpu_train(GvBuilder *builder, GvTrained *trained, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvTrainTimes *times = &builder->trained.times;
	double		begun = gv_seconds();
	int32_t		found;
	GvStatus	status;

	if (builder->trained.nlists > 0 || builder->nsample == 0 ||
		builder->nqueries < spec->nqueries)
		return GV_INVALID;
	status = cluster(builder, builder->sample, builder->nsample,
					 spec->nlists, builder->centroids, &found, stop);
	times->lists = gv_lap(&begun);
	if (status == GV_OK)
	{
		builder->trained.nlists = found;
		builder->trained.nparents = 1;
		memset(builder->parents, 0, sizeof(float) * (size_t) spec->dims);
		builder->parent_offsets[0] = 0;
		builder->parent_offsets[1] = found;
		if (spec->nparents > 1)
			status = group(builder, stop);
	}
	times->parents = gv_lap(&begun);
	if (status == GV_OK)
		status = train_codebooks(builder, stop);
	times->codebooks = gv_lap(&begun);
	if (status != GV_OK)
		builder->trained.nlists = 0;
	*trained = builder->trained;
	return status;
}

/* See gv_builder_copy. */
static GvStatus
cpu_copy(GvBuilder *builder, const GvBuilderSpec *spec, GvBuilder **copy)
{
	size_t		vector = sizeof(float) * (size_t) spec->dims;
	GvBuilder  *made;
	GvStatus	status;

	if (builder->trained.nlists == 0)
		return GV_INVALID;
	status = cpu_create(spec, builder->mean, &made);
	if (status != GV_OK)
		return status;
	memcpy(made->queries, builder->queries, vector * (size_t) spec->nqueries);
	memcpy(made->codebooks, builder->codebooks, vector * GV_CODEWORDS);
	memcpy(made->parents, builder->parents,
		   vector * (size_t) builder->trained.nparents);
	memcpy(made->parent_offsets, builder->parent_offsets,
		   sizeof(int32_t) * ((size_t) builder->trained.nparents + 1));
	memcpy(made->centroids, builder->centroids,
		   vector * (size_t) builder->trained.nlists);
	made->nqueries = builder->nqueries;
	made->trained = builder->trained;
	*copy = made;
	return GV_OK;
}

/* See gv_builder_get_array. */
static GvStatus
cpu_get_array(GvBuilder *builder, GvArray array, int64_t first, int64_t n,
			  void *values)
{
	const char *const arrays[GV_NARRAYS] = {
		[GV_CODEBOOKS] = (const char *) builder->codebooks,
		[GV_PARENTS] = (const char *) builder->parents,
		[GV_PARENT_OFFSETS] = (const char *) builder->parent_offsets,
		[GV_CENTROIDS] = (const char *) builder->centroids
	};

	if (builder->trained.nlists == 0 ||
		first + n > gv_builder_array_length(&builder->spec, &builder->trained,
											array))
		return GV_INVALID;
	if (n > 0)
		memcpy(values, arrays[array] + 4 * first, 4 * (size_t) n);
	return GV_OK;
}

/* Offer n transformed rows to the queries; note which were taken. */
static GvStatus
find_neighbors(GvBuilder *builder, const float *rows, int32_t n,
			   GvEncoded *encoded, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvStatus	status;
	int32_t		i;
	int32_t		q;

	encoded->nneighbors = 0;
	if (spec->nqueries == 0)
		return GV_OK;
	for (i = 0; i < n; i++)
		builder->ids[i] = builder->nencoded + (uint64_t) i;
	status = gv_exact(spec->metric, spec->dims, builder->queries,
					  spec->nqueries, rows, n, builder->ids,
					  builder->best, stop);
	for (q = 0; q < spec->nqueries && status == GV_OK; q++)
	{
		const GvTopK *best = &builder->best[q];

		for (i = 0; i < best->count; i++)
			if (best->ids[i] >= builder->nencoded)
			{
				GvNeighbor *neighbor =
				&encoded->neighbors[encoded->nneighbors++];

				neighbor->query = q;
				neighbor->row = (int32_t) (best->ids[i] - builder->nencoded);
				neighbor->score = best->scores[i];
			}
	}
	return status;
}

/* Encode n transformed rows. */
static GvStatus
encode_rows(GvBuilder *builder, const float *rows, int32_t n,
			GvEncoded *encoded, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvStatus	status;

	status = place(builder, rows, n, encoded->lists, stop);
	if (status == GV_OK)
		status = gv_encode(&builder->model, rows, builder->centroids,
						   encoded->lists, n, spec->lists_per_row,
						   encoded->codes, encoded->t);
	if (status == GV_OK && spec->refine == GV_RECORDS_BYTES)
		status = gv_refine_encode(spec->dims, rows, n,
								  encoded->records, encoded->min,
								  encoded->step, encoded->error);
	if (status == GV_OK && spec->refine == GV_RECORDS_HALF)
	{
		memset(encoded->min, 0, (size_t) n * sizeof(float));
		memset(encoded->step, 0, (size_t) n * sizeof(float));
		status = gv_half_encode(spec->dims, rows, n,
								(uint16_t *) (void *) encoded->records,
								encoded->error);
	}
	if (status == GV_OK)
		status = find_neighbors(builder, rows, n, encoded, stop);
	builder->nencoded += (uint64_t) n;
	return status;
}

/* See gv_builder_encode. */
static GvStatus
cpu_encode(GvBuilder *builder, const float *rows, int32_t n,
		   GvEncoded *encoded, const GvStop *stop)
{
	if (!gv_builder_can_encode(&builder->spec, &builder->trained, n,
							   encoded) ||
		!gv_is_finite(rows, n * (int64_t) builder->spec.dims))
		return GV_INVALID;
	(void) gv_transform(&builder->model, rows, n, builder->rows);
	return encode_rows(builder, builder->rows, n, encoded, stop);
}

/* See gv_builder_encode_sample. */
static GvStatus
cpu_encode_sample(GvBuilder *builder, int64_t first, int32_t n,
				  GvEncoded *encoded, const GvStop *stop)
{
	if (!gv_builder_can_encode(&builder->spec, &builder->trained, n,
							   encoded) || first > builder->nsample - n)
		return GV_INVALID;
	return encode_rows(builder, builder->sample +
					   (size_t) first * (size_t) builder->spec.dims, n,
					   encoded, stop);
}

const GvBuilderBackend gv_cpu_builders = {
	.name = "cpu",
	.size = cpu_size,
	.create = cpu_create,
	.drop = cpu_drop,
	.put_rows = cpu_put_rows,
	.train = cpu_train,
	.copy = cpu_copy,
	.get_array = cpu_get_array,
	.encode = cpu_encode,
	.encode_sample = cpu_encode_sample
};
