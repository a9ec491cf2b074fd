/*
 * build.cu
 *		An index under construction in a device's memory: created, filled with
 *		a sample, trained, and used to encode rows.
 *
 *		train	lists		k-means of the sample
 *				parents		k-means of the lists, which the host then sorts by
 *							their parents
 *				codebooks	k-means of the residuals of the first sampled rows
 *		encode	copies rows to the device, transforms them, chooses their
 *				lists, computes codes, T and refine records, copies these
 *				results back together, and finds the rows nearest to queries
 *
 * Nearest vectors are found as a search finds its lists: the vectors take the
 * place of the lists, and the rows take the place of the queries.  All kernels
 * run on one stream, whose priority is lower than that of searches, and in
 * pieces of a few milliseconds.  The host waits after each batch.
 */
#include <algorithm>
#include <stdlib.h>
#include <string.h>

#include "gpu/build/build.h"
#include "gpu/search/search.h"

#define THREADS			256
#define MOST_SCORES		(INT64_C(64) << 20) /* maximum scores of a piece of the
											 * rows */
#define MOST_TERMS		(INT64_C(1) << 36)	/* maximum terms of a piece, which
											 * take a few ms */
#define MOST_ROWS		(1 << 18)	/* max rows of a piece, so that the grid
									 * is not too large */
#define MOST_HALF		(INT64_C(96) << 20) /* maximum bytes of the rows' half
											 * copies */

/*
 * The vectors among which nearest vectors are searched for.  They are stored
 * as the part of a mirror that a search for lists needs.
 */
struct Targets
{
	GvMirror	mirror;			/* only its model, device, stream and `changed`
								 * are used */
	GvDeviceList *d_lists;		/* [vectors] all empty */
};

/* The memory of a search for the nearest vectors. */
struct Assigner
{
	GvSearcher	searcher;		/* stream, cuBLAS, d_sort, d_work */
	GvBuffer	d_batch;		/* scores, starts, wanted, found */
};

struct GvBuilder
{
	GvBuilderSpec spec;
	cudaStream_t stream;
	Assigner	assigner;
	float	   *d_mean;
	float	   *d_sample;		/* [sample_rows][dims] transformed */
	int64_t		nsample;
	float	   *d_queries;		/* [nqueries][dims] transformed */
	int32_t		nqueries;
	GvTrained	trained;		/* nlists is 0 before training */
	float	   *d_codebooks;
	float	   *d_centroids;	/* [nlists][dims] */
	float	   *parents;		/* the host's [nparents][dims] */
	int32_t    *parent_offsets; /* the host's [nparents + 1] */
	Targets		lists;			/* the centroids */
	Targets		nearest_rows;	/* the rows of a batch, for the queries */
	GvTopK	   *best;			/* [nqueries] the rows nearest to each query */
	uint64_t	nencoded;		/* number of rows encoded so far */
	GvBuffer	d_in;			/* rows of a batch */
	GvBuffer	d_out;			/* results of a batch */
	GvBuffer	out;			/* pinned: results of a batch, and nearest
								 * rows */
	GvBuffer	d_nearest;		/* nearest lists of rows, or nearest rows of
								 * queries */
};

/* -- nearest vectors */

/*
 * Allocates memory for `capacity` vectors.  After a failure, drop_targets must
 * be called all the same.
 */
static GvStatus
create_targets(Targets *targets, GvMetric metric, int32_t dims,
			   int32_t capacity, cudaStream_t stream)
{
	GvMirror   *mirror = &targets->mirror;

	mirror->model.metric = metric;
	mirror->model.dims = dims;
	mirror->model.nlists = capacity;
	mirror->stream = stream;
	GV_CUDA_TRY(gv_device_alloc(&targets->d_lists, capacity));
	GV_CUDA_TRY(gv_clear(targets->d_lists, capacity, stream));
	mirror->model.d_lists = targets->d_lists;
	GV_CUDA_TRY(cudaEventCreateWithFlags(&mirror->changed,
										 cudaEventDisableTiming));
	return gv_gpu_half_create(mirror);
}

static void
drop_targets(Targets *targets)
{
	if (targets->mirror.changed != NULL)
		(void) cudaEventDestroy(targets->mirror.changed);
	(void) cudaFree(targets->d_lists);
	gv_gpu_half_drop(&targets->mirror);
}

/* Sets the vectors [n][dims], which are not copied. */
static GvStatus
set_targets(Targets *targets, const float *d_vectors, int32_t n)
{
	GvMirror   *mirror = &targets->mirror;

	mirror->model.nlists = n;
	/* kernels only read them */
	mirror->model.d_centroids = (float *) d_vectors;
	/* limits only grow, so clear the limits of the previous vectors */
	GV_CUDA_TRY(gv_clear(mirror->model.d_limits, 1, mirror->stream));
	return gv_gpu_half_update(mirror, 0, (int64_t) n * mirror->model.dims);
}

static void
drop_assigner(Assigner *assigner)
{
	gv_blas_drop(assigner->searcher.blas);
	gv_buffer_free(&assigner->d_batch);
	gv_buffer_free(&assigner->searcher.d_sort);
	gv_buffer_free(&assigner->searcher.d_work);
}

static __global__ void __launch_bounds__(THREADS)
params_kernel(GvSearchParams *params, int n, int p)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		params[i] = {p, 1, 0.0, 0, 0};
}

/*
 * Returns the number of rows whose p nearest vectors are searched for at once.
 */
static int32_t
piece_of(const GvDeviceModel *model, int64_t n, int32_t p)
{
	bool		all = gv_gpu_coarse_rows(model, MOST_ROWS, p) == MOST_ROWS;
	int64_t		most = std::min({MOST_SCORES /
		(all ? gv_score_stride(model->nlists) :
			 gv_ncolumn_groups(model->nlists)),
		MOST_TERMS / model->nlists / model->dims,
		MOST_HALF / 2 / model->half_dims, (int64_t) MOST_ROWS, n});

	return most > 1 ? (int32_t) most : 1;
}

/* Allocates memory for pieces of n rows, and points *batch at the memory. */
static GvStatus
prepare(Assigner *assigner, const GvDeviceModel *model, int32_t n, int32_t p,
		GvBatch *batch)
{
	GvCoarseFilter *filter = &batch->filter;
	char	   *memory = NULL;

	memset(batch, 0, sizeof(*batch));
	batch->nprobe = batch->nselected = p;
	batch->k = 1;
	filter->nsquares = 1;
	/* count the bytes first, then place the arrays */
	for (size_t bytes = 0;; bytes = 0)
	{
		gv_place(&batch->d_coarse, memory, &bytes,
				 gv_gpu_coarse_rows(model, n, p) *
				 gv_score_stride(model->nlists));
		gv_place(&batch->d_starts, memory, &bytes, (int64_t) n * (p + 1));
		gv_place(&batch->d_params, memory, &bytes, n);
		gv_place(&batch->d_search_counts, memory, &bytes, n);
		gv_place(&filter->d_half_queries, memory, &bytes,
				 (int64_t) n * model->half_dims);
		gv_place(&filter->d_squares, memory, &bytes, n);
		gv_place(&filter->d_group_min, memory, &bytes,
				 (int64_t) n * gv_ncolumn_groups(model->nlists));
		GV_TEST_ONLY(gv_place(&filter->d_path_counts, memory, &bytes,
							  GV_COARSE_PATHS);) if (memory != NULL) break;
		GV_TRY(gv_buffer_need(&assigner->d_batch, bytes));
		memory = (char *) assigner->d_batch.memory;
	}
	GV_TEST_ONLY(GV_CUDA_TRY(gv_clear(filter->d_path_counts, GV_COARSE_PATHS,
									  assigner->searcher.stream));)
	return gv_launch(params_kernel, gv_blocks_for(n, THREADS), THREADS, 0,
					 assigner->searcher.stream, batch->d_params, n, p);
}

/*
 * Sets d_nearest [n][p] to the p nearest targets of rows [n][dims], ascending
 * by (score, target).  Scores are gv_coarse's; p is at most the number of
 * targets.
 */
static GvStatus
assign(Assigner *assigner, const Targets *targets, const float *d_rows,
	   int64_t n, int32_t p, GvProbe *d_nearest, const GvStop *stop)
{
	const GvDeviceModel *model = &targets->mirror.model;
	int32_t		piece = piece_of(model, n, p);
	GvBatch		batch;

	GV_TRY(prepare(assigner, model, piece, p, &batch));
	for (int64_t done = 0; done < n; done += piece)
	{
		batch.n = n - done < piece ? (int32_t) (n - done) : piece;
		/* kernels only read queries */
		batch.d_queries = (float *) d_rows + done * model->dims;
		batch.d_probed = d_nearest + done * p;
		if (gv_gpu_coarse_filter_pays(model, &batch))
			GV_TRY(gv_gpu_coarse_filter(model, &batch, &assigner->searcher));
		else
		{
			GV_TRY(gv_gpu_coarse(model, &batch, assigner->searcher.stream));
			GV_TRY(gv_gpu_select_lists(model, &batch, &assigner->searcher));
		}
		if (gv_is_stopped(stop))
			return GV_CANCELED;
	}
	return GV_OK;
}

/* -- memory */

/*
 * Places the results of n rows in memory, in the order in which results are
 * copied back.  Returns the bytes of the results.
 */
static size_t
place_results(const GvBuilderSpec *spec, int32_t n, char *memory,
			  GvDeviceRows *rows)
{
	int64_t		postings = (int64_t) n * spec->lists_per_row;
	int64_t		records = spec->refine != GV_RECORDS_NONE ? n : 0;
	size_t		bytes = 0;

	gv_place(&rows->d_lists, memory, &bytes, postings);
	gv_place(&rows->d_terms, memory, &bytes, postings);
	gv_place(&rows->d_codes, memory, &bytes,
			 postings * gv_code_bytes(spec->m));
	gv_place(&rows->d_min, memory, &bytes, records);
	gv_place(&rows->d_step, memory, &bytes, records);
	gv_place(&rows->d_error, memory, &bytes, records);
	gv_place(&rows->d_records, memory, &bytes, records *
			 gv_record_code_bytes((GvRecords) spec->refine, spec->dims));
	return bytes;
}

/*
 * See gv_builder_size.  Counts the sample, the lists and parents, the larger
 * k-means, and the memory that encoding needs.
 */
static int64_t
cuda_size(const GvBuilderSpec *spec)
{
	int64_t		row = spec->dims * 4 + 64;
	int64_t		batch = (int64_t) spec->batch_rows *
		(2 * row + GV_SOAR_LISTS * 8 +
		 spec->lists_per_row * (8 + gv_code_bytes(spec->m)));
	/* `prepare` takes no more for scores, half copies and small arrays */
	int64_t		scores = std::max((int64_t) spec->nlists * 8,
								  INT64_C(1) << 29);
	int64_t		lists = std::min((int64_t) spec->nlists, spec->sample_rows);
	int64_t		kmeans =
		std::max(gv_gpu_kmeans_bytes(spec->dims, spec->sample_rows,
									 spec->nlists),
				 gv_gpu_kmeans_bytes(spec->dims, lists, spec->nparents));

	return spec->sample_rows * spec->dims * (int64_t) sizeof(float) +
		(2 * (int64_t) spec->nlists + spec->nparents) * row + kmeans +
		(int64_t) spec->nqueries * (row + spec->depth * 8) + batch + scores +
		2 * GV_CODEBOOK_ROWS * (2 * row + 5 * (int64_t) spec->m) +
		gv_blas_bytes(spec->device, spec->dims);
}

static void
cuda_drop(GvBuilder *builder)
{
	(void) gv_choose_device(builder->spec.device);
	if (builder->stream != NULL)
		(void) cudaStreamSynchronize(builder->stream);
	drop_targets(&builder->lists);
	drop_targets(&builder->nearest_rows);
	drop_assigner(&builder->assigner);
	(void) cudaFree(builder->d_mean);
	(void) cudaFree(builder->d_sample);
	(void) cudaFree(builder->d_queries);
	(void) cudaFree(builder->d_codebooks);
	(void) cudaFree(builder->d_centroids);
	gv_buffer_free(&builder->d_in);
	gv_buffer_free(&builder->d_out);
	gv_buffer_free(&builder->out);
	gv_buffer_free(&builder->d_nearest);
	if (builder->stream != NULL)
		(void) cudaStreamDestroy(builder->stream);
	if (builder->best != NULL)
	{
		free(builder->best[0].scores);
		free(builder->best[0].ids);
	}
	free(builder->best);
	free(builder->parents);
	free(builder->parent_offsets);
	free(builder);
}

/* Makes the host's memory. */
static GvStatus
make_host_memory(GvBuilder *builder)
{
	const GvBuilderSpec *spec = &builder->spec;
	size_t		pairs = (size_t) spec->nqueries * spec->depth;
	float	   *scores;
	uint64_t   *ids;

	builder->parents = (float *) calloc((size_t) spec->nparents * spec->dims,
										sizeof(float));
	builder->parent_offsets =
		(int32_t *) calloc(spec->nparents + 1, sizeof(int32_t));
	if (builder->parents == NULL || builder->parent_offsets == NULL)
		return GV_NO_MEMORY;
	if (spec->nqueries == 0)
		return GV_OK;
	builder->best = (GvTopK *) calloc(spec->nqueries, sizeof(GvTopK));
	if (builder->best == NULL)
		return GV_NO_MEMORY;
	builder->best[0].scores = scores = (float *) malloc(pairs * sizeof(float));
	builder->best[0].ids = ids = (uint64_t *) malloc(pairs * sizeof(uint64_t));
	if (scores == NULL || ids == NULL)
		return GV_NO_MEMORY;
	for (int32_t i = 0; i < spec->nqueries; i++)
	{
		builder->best[i].capacity = spec->depth;
		builder->best[i].scores = scores + (size_t) i * spec->depth;
		builder->best[i].ids = ids + (size_t) i * spec->depth;
	}
	return GV_OK;
}

/* Makes the stream and the device's memory. */
static GvStatus
make_memory(GvBuilder *builder, const float *mean)
{
	const GvBuilderSpec *spec = &builder->spec;
	int32_t		dims = spec->dims;

	GV_TRY(gv_choose_device(builder->spec.device));
	GV_TRY(gv_gpu_low_stream(&builder->stream));
	builder->assigner.searcher.stream = builder->stream;
	builder->assigner.searcher.hopper = gv_has_hopper(spec->device);
	GV_TRY(gv_blas_create(spec->device, spec->dims, builder->stream,
						  &builder->assigner.searcher.blas));
	GV_TRY(gv_gpu_nsms(&builder->assigner.searcher.nsms));
	GV_CUDA_TRY(gv_device_alloc(&builder->d_mean, dims));
	GV_CUDA_TRY(gv_device_alloc(&builder->d_sample, spec->sample_rows * dims));
	GV_CUDA_TRY(gv_device_alloc(&builder->d_queries,
								(int64_t) spec->nqueries * dims));
	GV_CUDA_TRY(gv_device_alloc(&builder->d_codebooks,
								(int64_t) GV_CODEWORDS * dims));
	GV_CUDA_TRY(gv_device_alloc(&builder->d_centroids,
								(int64_t) spec->nlists * dims));
	GV_TRY(create_targets(&builder->lists, GV_L2, dims, spec->nlists,
						  builder->stream));
	GV_TRY(create_targets(&builder->nearest_rows, spec->metric, dims,
						  spec->batch_rows, builder->stream));
	GV_CUDA_TRY(gv_upload(builder->d_mean, mean, dims, builder->stream));
	return gv_cuda_status(cudaStreamSynchronize(builder->stream));
}

/* See gv_builder_create. */
static GvStatus
cuda_create(const GvBuilderSpec *spec, const float *mean, GvBuilder **builder)
{
	return gv_make(builder, [=] (GvBuilder *made)
	{
		made->spec = *spec;
		made->out.pinned = true;
		GV_TRY(make_host_memory(made));
		return make_memory(made, mean);
	}, cuda_drop);
}

/* Returns rows in the form that kernels take, without arrays for outputs. */
static GvDeviceRows
rows_of(const GvBuilder *builder, float *d_rows, int32_t n)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvDeviceRows rows;

	memset(&rows, 0, sizeof(rows));
	rows.metric = spec->metric;
	rows.dims = spec->dims;
	rows.m = spec->m;
	rows.n = n;
	rows.lists_per_row = spec->lists_per_row;
	rows.scale = spec->scale;
	rows.d_mean = builder->d_mean;
	rows.d_codebooks = builder->d_codebooks;
	rows.d_centroids = builder->d_centroids;
	rows.d_rows = d_rows;
	return rows;
}

/* Copies raw rows to the device and transforms them there. */
static GvStatus
bring_rows(GvBuilder *builder, const float *rows, int32_t n, float *d_rows)
{
	GvDeviceRows device_rows = rows_of(builder, d_rows, n);

	GV_CUDA_TRY(gv_upload(d_rows, rows, (int64_t) n * builder->spec.dims,
						  builder->stream));
	return gv_gpu_transform(&device_rows, builder->stream);
}

/* See gv_builder_put_rows. */
static GvStatus
cuda_put_rows(GvBuilder *builder, GvRows kind, const float *rows, int32_t n)
{
	const GvBuilderSpec *spec = &builder->spec;
	int64_t		dims = spec->dims;
	float	   *d_rows;

	if (builder->trained.nlists > 0 || !gv_is_finite(rows, n * dims) ||
		(kind == GV_SAMPLE ? n > spec->sample_rows - builder->nsample :
		 n > spec->nqueries - builder->nqueries))
		return GV_INVALID;
	if (n == 0)
		return GV_OK;
	GV_TRY(gv_choose_device(builder->spec.device));
	d_rows = kind == GV_SAMPLE ? builder->d_sample + builder->nsample * dims :
		builder->d_queries + builder->nqueries * dims;
	GV_TRY(bring_rows(builder, rows, n, d_rows));
	if (kind == GV_SAMPLE)
		builder->nsample += n;
	else
		builder->nqueries += n;
	return gv_cuda_status(cudaStreamSynchronize(builder->stream));
}

/* Finds the lists of n transformed rows, n <= batch_rows. */
static GvStatus
find_lists(GvBuilder *builder, GvDeviceRows *rows, const GvStop *stop)
{
	rows->near = builder->trained.nlists < GV_SOAR_LISTS ?
		builder->trained.nlists : GV_SOAR_LISTS;
	if (rows->lists_per_row < 2)
		rows->near = 1;
	GV_TRY(gv_buffer_need(&builder->d_nearest, (size_t) rows->n * rows->near *
						  sizeof(GvProbe)));
	rows->d_nearest = (const GvProbe *) builder->d_nearest.memory;
	GV_TRY(assign(&builder->assigner, &builder->lists, rows->d_rows, rows->n,
				  rows->near, (GvProbe *) builder->d_nearest.memory, stop));
	return gv_gpu_lists(rows, builder->stream);
}

/* Runs k-means with the builder's parameters; see gv_gpu_kmeans. */
static GvStatus
run_kmeans(GvBuilder *builder, const float *d_x, int64_t n, int32_t k,
		   float *d_centroids, int32_t *owners, GvKmeansFound *found,
		   const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	const GvSearcher *searcher = &builder->assigner.searcher;
	GvMatmulContext context = {searcher->blas, searcher->hopper,
		searcher->nsms, false, searcher->stream};
	GvKmeans	kmeans = {spec->dims, n, k, spec->iterations,
		spec->max_imbalance, spec->seed};

	return gv_gpu_kmeans(&kmeans, d_x, d_centroids, owners, found, &context,
						 stop);
}

/* Sorts the lists by their parents, on the host. */
static GvStatus
reorder(GvBuilder *builder, const float *d_parents, int32_t nparents,
		const int32_t *owners, float *lists, float *grouped)
{
	int32_t		dims = builder->spec.dims;
	int64_t		values = (int64_t) builder->trained.nlists * dims;

	GV_CUDA_TRY(gv_download(lists, builder->d_centroids, values,
							builder->stream));
	GV_CUDA_TRY(gv_download(builder->parents, d_parents,
							(int64_t) nparents * dims, builder->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(builder->stream));
	builder->trained.nparents =
		gv_group_lists(dims, builder->trained.nlists, lists, owners, nparents,
					   builder->parents, builder->parent_offsets, grouped);
	GV_CUDA_TRY(gv_upload(builder->d_centroids, grouped, values,
						  builder->stream));
	return gv_cuda_status(cudaStreamSynchronize(builder->stream));
}

/*
 * Computes the parents of the lists by k-means, and sorts the lists by parent.
 */
static GvStatus
group(GvBuilder *builder, const GvStop *stop)
{
	int64_t		dims = builder->spec.dims;
	int32_t		nlists = builder->trained.nlists;
	GvKmeansFound parents;
	size_t		values = (size_t) nlists * dims;
	float	   *lists = (float *) malloc(2 * values * sizeof(float));
	int32_t    *owners = (int32_t *) malloc(nlists * sizeof(int32_t));
	float	   *d_parents = NULL;
	GvStatus	status = GV_NO_MEMORY;

	if (lists != NULL && owners != NULL)
		status =
			gv_cuda_status(gv_device_alloc(&d_parents,
										   builder->spec.nparents * dims));
	if (status == GV_OK)
		status = run_kmeans(builder, builder->d_centroids, nlists,
							builder->spec.nparents, d_parents, owners,
							&parents, stop);
	if (status == GV_OK)
		status = reorder(builder, d_parents, parents.k, owners, lists,
						 lists + values);
	(void) cudaFree(d_parents);
	free(lists);
	free(owners);
	return status;
}

/* Trains codebooks from the residuals of the sample's first rows. */
static GvStatus
train_codebooks(GvBuilder *builder, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	int32_t		n = builder->nsample < GV_CODEBOOK_ROWS ?
		(int32_t) builder->nsample : GV_CODEBOOK_ROWS;
	GvDeviceRows rows = rows_of(builder, builder->d_sample, n);
	float	   *d_residuals = NULL;
	GvStatus	status;

	GV_TRY(gv_buffer_need(&builder->d_out, (size_t) n * spec->lists_per_row *
						  sizeof(int32_t)));
	rows.d_lists = (int32_t *) builder->d_out.memory;
	GV_TRY(find_lists(builder, &rows, stop));
	GV_CUDA_TRY(gv_device_alloc(&d_residuals, (int64_t) n *
								spec->lists_per_row * spec->dims));
	status = gv_gpu_residuals(&rows, d_residuals, builder->stream);
	if (status == GV_OK)
		status = gv_gpu_codebooks(spec->dims, spec->m,
								  n * spec->lists_per_row, d_residuals,
								  spec->seed, builder->d_codebooks,
								  builder->stream);
	(void) cudaStreamSynchronize(builder->stream);
	(void) cudaFree(d_residuals);
	return status;
}

/* Sets d_codebooks, d_centroids, parents, parent_offsets and `trained`. */
static GvStatus
train(GvBuilder *builder, const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvTrainTimes *times = &builder->trained.times;
	double		begun = gv_seconds();
	GvKmeansFound found;

	GV_TRY(gv_choose_device(builder->spec.device));
	GV_TRY(run_kmeans(builder, builder->d_sample, builder->nsample,
					  spec->nlists, builder->d_centroids, NULL, &found, stop));
	times->lists = gv_lap(&begun);
	times->splits = found.split_s;
	times->passes = found.passes;
	builder->trained.nlists = found.k;
	builder->trained.nparents = 1;
	builder->parent_offsets[1] = found.k;
	if (spec->nparents > 1)
		GV_TRY(group(builder, stop));
	times->parents = gv_lap(&begun);
	GV_TRY(set_targets(&builder->lists, builder->d_centroids, found.k));
	GV_TRY(train_codebooks(builder, stop));
	times->codebooks = gv_lap(&begun);
	return GV_OK;
}

/* See gv_builder_train. */
static GvStatus
cuda_train(GvBuilder *builder, GvTrained *trained, const GvStop *stop)
{
	GvStatus	status;

	if (builder->trained.nlists > 0 || builder->nsample == 0 ||
		builder->nqueries < builder->spec.nqueries)
		return GV_INVALID;
	status = train(builder, stop);
	if (status != GV_OK)
		builder->trained.nlists = 0;
	*trained = builder->trained;
	return status;
}

/* See gv_builder_get_array. */
static GvStatus
cuda_get_array(GvBuilder *builder, GvArray array, int64_t first, int64_t n,
			   void *values)
{
	const float *d_array = array == GV_CODEBOOKS ? builder->d_codebooks :
		builder->d_centroids;

	if (builder->trained.nlists == 0 || first +
		n > gv_builder_array_length(&builder->spec, &builder->trained, array))
		return GV_INVALID;
	if (n == 0)
		return GV_OK;
	if (array == GV_PARENTS || array == GV_PARENT_OFFSETS)
	{
		const char *from = array == GV_PARENTS ?
			(const char *) builder->parents :
			(const char *) builder->parent_offsets;

		memcpy(values, from + 4 * first, 4 * n);
		return GV_OK;
	}
	GV_TRY(gv_choose_device(builder->spec.device));
	GV_CUDA_TRY(gv_download((float *) values, d_array + first, n,
							builder->stream));
	return gv_cuda_status(cudaStreamSynchronize(builder->stream));
}

/*
 * Copies floats from one device to another through the host, because not all
 * devices reach each other.  `values` [n] is memory of the host for the copy.
 */
static GvStatus
bring_floats(GvBuilder *from, const float *d_from, GvBuilder *to, float *d_to,
			 int64_t n, float *values)
{
	GV_TRY(gv_choose_device(from->spec.device));
	GV_CUDA_TRY(gv_download(values, d_from, n, from->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(from->stream));
	GV_TRY(gv_choose_device(to->spec.device));
	GV_CUDA_TRY(gv_upload(d_to, values, n, to->stream));
	return gv_cuda_status(cudaStreamSynchronize(to->stream));
}

/*
 * Copies the results of a builder's training to another builder.  `values` is
 * memory of the host for the copies.
 */
static GvStatus
fill_copy(GvBuilder *builder, GvBuilder *made, float *values)
{
	const GvBuilderSpec *spec = &made->spec;
	int64_t		dims = spec->dims;

	GV_TRY(bring_floats(builder, builder->d_mean, made, made->d_mean, dims,
						values));
	GV_TRY(bring_floats(builder, builder->d_codebooks, made,
						made->d_codebooks, GV_CODEWORDS * dims, values));
	GV_TRY(bring_floats(builder, builder->d_centroids, made, made->d_centroids,
						builder->trained.nlists * dims, values));
	if (spec->nqueries > 0)
		GV_TRY(bring_floats(builder, builder->d_queries, made,
							made->d_queries, spec->nqueries * dims, values));
	memcpy(made->parents, builder->parents,
		   (size_t) spec->nparents * dims * sizeof(float));
	memcpy(made->parent_offsets, builder->parent_offsets,
		   (spec->nparents + 1) * sizeof(int32_t));
	made->nqueries = builder->nqueries;
	made->trained = builder->trained;
	return set_targets(&made->lists, made->d_centroids, made->trained.nlists);
}

/* See gv_builder_copy. */
static GvStatus
cuda_copy(GvBuilder *builder, const GvBuilderSpec *spec, GvBuilder **copy)
{
	size_t		most = std::max({spec->nlists, spec->nqueries, GV_CODEWORDS});
	float	   *values;
	GvBuilder  *made;
	GvStatus	status;

	if (builder->trained.nlists == 0)
		return GV_INVALID;
	/* zeros, which serve as the mean until fill_copy has copied it */
	values = (float *) calloc(most * spec->dims, sizeof(float));
	if (values == NULL)
		return GV_NO_MEMORY;
	status = cuda_create(spec, values, &made);
	if (status == GV_OK)
	{
		status = fill_copy(builder, made, values);
		if (status != GV_OK)
			cuda_drop(made);
	}
	free(values);
	if (status == GV_OK)
		*copy = made;
	return status;
}

/* Launches the search for the *p rows that are nearest to each query. */
static GvStatus
find_neighbors(GvBuilder *builder, const float *d_rows, int32_t n, int32_t *p,
			   const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;

	*p = n < spec->depth ? n : spec->depth;
	if (spec->nqueries == 0)
		return GV_OK;
	GV_TRY(gv_buffer_need(&builder->d_nearest, (size_t) spec->nqueries * *p *
						  sizeof(GvProbe)));
	GV_TRY(set_targets(&builder->nearest_rows, d_rows, n));
	return assign(&builder->assigner, &builder->nearest_rows,
				  builder->d_queries, spec->nqueries, *p,
				  (GvProbe *) builder->d_nearest.memory, stop);
}

/*
 * Adds the rows of this batch that are near to queries to `best`, and reports
 * in *encoded the rows that are among the best.
 */
static void
take_neighbors(GvBuilder *builder, const GvProbe *near, int32_t p,
			   GvEncoded *encoded)
{
	encoded->nneighbors = 0;
	for (int32_t q = 0; q < builder->spec.nqueries; q++)
	{
		GvTopK	   *best = &builder->best[q];

		for (int32_t i = 0; i < p; i++)
		{
			const GvProbe *row = &near[(size_t) q * p + i];

			/* of rows with equal scores the one that came first is kept */
			if (best->count == best->capacity &&
				!(row->base < best->scores[0]))
				break;
			gv_topk_push(best, row->base, builder->nencoded +
						 (uint64_t) row->list);
		}
		for (int32_t i = 0; i < best->count; i++)
			if (best->ids[i] >= builder->nencoded)
				encoded->neighbors[encoded->nneighbors++] =
					{q, (int32_t) (best->ids[i] - builder->nencoded),
						best->scores[i]};
	}
}

/*
 * Copies results to *encoded from the arrays in pinned memory that *rows
 * points to.
 */
static void
unpack_encoded(const GvBuilderSpec *spec, const GvDeviceRows *rows, int32_t n,
			   GvEncoded *encoded)
{
	size_t		postings = (size_t) n * spec->lists_per_row;

	memcpy(encoded->lists, rows->d_lists, postings * sizeof(int32_t));
	memcpy(encoded->t, rows->d_terms, postings * sizeof(float));
	memcpy(encoded->codes, rows->d_codes, postings * gv_code_bytes(spec->m));
	if (spec->refine == GV_RECORDS_NONE)
		return;
	memcpy(encoded->min, rows->d_min, n * sizeof(float));
	memcpy(encoded->step, rows->d_step, n * sizeof(float));
	memcpy(encoded->error, rows->d_error, n * sizeof(float));
	memcpy(encoded->records, rows->d_records,
		   n * gv_record_code_bytes((GvRecords) spec->refine, spec->dims));
}

/* Encodes n transformed rows in the device's memory. */
static GvStatus
encode(GvBuilder *builder, float *d_rows, int32_t n, GvEncoded *encoded,
	   const GvStop *stop)
{
	const GvBuilderSpec *spec = &builder->spec;
	GvDeviceRows device_rows = rows_of(builder, d_rows, n);
	GvDeviceRows results = {};	/* in pinned memory */
	size_t		bytes = place_results(spec, n, NULL, &results);
	char	   *out;
	GvProbe    *near;
	int32_t		p;

	GV_TRY(gv_buffer_need(&builder->d_out, bytes));
	GV_TRY(gv_buffer_need(&builder->out, bytes +
						  gv_builder_most_neighbors(spec, n) *
						  sizeof(GvProbe)));
	out = (char *) builder->out.memory;
	(void) place_results(spec, n, out, &results);
	(void) place_results(spec, n, (char *) builder->d_out.memory,
						 &device_rows);
	GV_TRY(find_lists(builder, &device_rows, stop));
	GV_TRY(gv_gpu_codes(&device_rows, (GvRecords) spec->refine,
						builder->stream));
	GV_CUDA_TRY(gv_download(out, (char *) builder->d_out.memory, bytes,
							builder->stream));
	GV_TRY(find_neighbors(builder, device_rows.d_rows, n, &p, stop));
	near = (GvProbe *) (out + bytes);
	if (spec->nqueries > 0)
		GV_CUDA_TRY(gv_download(near, (GvProbe *) builder->d_nearest.memory,
								(int64_t) spec->nqueries * p,
								builder->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(builder->stream));
	unpack_encoded(spec, &results, n, encoded);
	take_neighbors(builder, near, p, encoded);
	builder->nencoded += n;
	return GV_OK;
}

/* See gv_builder_encode. */
static GvStatus
cuda_encode(GvBuilder *builder, const float *rows, int32_t n,
			GvEncoded *encoded, const GvStop *stop)
{
	int64_t		values = (int64_t) n * builder->spec.dims;
	float	   *d_rows;

	if (!gv_builder_can_encode(&builder->spec, &builder->trained, n,
							   encoded) || !gv_is_finite(rows, values))
		return GV_INVALID;
	GV_TRY(gv_choose_device(builder->spec.device));
	GV_TRY(gv_buffer_need(&builder->d_in, values * sizeof(float)));
	d_rows = (float *) builder->d_in.memory;
	GV_TRY(bring_rows(builder, rows, n, d_rows));
	return encode(builder, d_rows, n, encoded, stop);
}

/* See gv_builder_encode_sample. */
static GvStatus
cuda_encode_sample(GvBuilder *builder, int64_t first, int32_t n,
				   GvEncoded *encoded, const GvStop *stop)
{
	if (!gv_builder_can_encode(&builder->spec, &builder->trained, n,
							   encoded) || first > builder->nsample - n)
		return GV_INVALID;
	GV_TRY(gv_choose_device(builder->spec.device));
	return encode(builder, builder->d_sample + first * builder->spec.dims, n,
				  encoded, stop);
}

extern "C" const GvBuilderBackend gv_cuda_builders = {
	.name = "cuda",
	.size = cuda_size,
	.create = cuda_create,
	.drop = cuda_drop,
	.put_rows = cuda_put_rows,
	.train = cuda_train,
	.copy = cuda_copy,
	.get_array = cuda_get_array,
	.encode = cuda_encode,
	.encode_sample = cuda_encode_sample
};
