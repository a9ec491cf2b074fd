/*
 * exactset.cu
 *		Exact search as a set (gv_set.h).
 *
 * Rows are kept on the device until they are enough for a batch, which is then
 * searched.  All rows are kept as long as the set exists if the queries are
 * rows of the set, or if gv_set_ask may ask about the rows again.  The
 * normalization is computed from the first batch, so half copies of the
 * queries are made when the first batch is searched.
 */
#include <algorithm>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/exact/exact.cuh"

#define MOST_BATCH		(INT64_C(1) << 20)	/* rows */
#define BATCH_BYTES		(INT64_C(512) << 20)	/* of rows in fp32 */
#define THREADS			256

struct Exact
{
	GvSetSpec	spec;
	GvExactNormalization norm;
	GvExactQueries queries;
	GvExactRows rows;			/* rows of a batch */
	GvExactWork work;			/* with near lists, only `seen` of this is
								 * used */
	GvExactByList *lists;		/* NULL if queries are compared with all
								 * rows */
	cudaStream_t stream;		/* the stream of `work` or of `lists`, or
								 * `copying` */
	cudaStream_t copying;		/* the stream while there are no queries */
	int64_t		capacity;		/* maximum rows of a batch */
	int64_t		nrows;			/* rows that are on the device */
	bool		keeps;			/* all rows are kept */
	bool		is_normalized;	/* norm is known */
	GvBuffer	d_kept;			/* rows */
	GvBuffer	d_set;			/* queries and neighbors */
	GvBuffer	d_batch;		/* arrays of a batch, except its rows */
	float	   *d_queries;
	float	   *d_centroids;	/* centroids of near lists */
	int64_t    *d_self;
	float	   *d_rows;			/* rows of a batch, or all rows */
};

/* Returns how many neighbors of each query are kept. */
static int64_t
kept_of(const GvSetSpec *spec)
{
	return std::min((int64_t) spec->k, spec->nrows);
}

static int64_t
batch_rows(const GvSetSpec *spec)
{
	return std::min(spec->nrows, spec->nlists > 0 ?
					gv_gpu_exact_lists_batch(spec) :
					std::min(BATCH_BYTES / (4 * (int64_t) spec->dims),
							 MOST_BATCH));
}

/*
 * Places the arrays of queries and neighbors in memory, and sets the shape of
 * the normalization.  Returns the bytes of these arrays.
 */
static size_t
place_set(Exact *exact, char *memory)
{
	const GvSetSpec *spec = &exact->spec;
	GvExactNormalization *norm = &exact->norm;
	GvExactQueries *queries = &exact->queries;
	int64_t		n = spec->nqueries;
	size_t		bytes = 0;

	*norm = {spec->metric, spec->dims, (spec->dims + 15) / 16 * 16, NULL,
		NULL};
	*queries = {n, kept_of(spec), NULL, NULL, NULL, NULL, NULL, NULL};
	gv_place(&exact->d_queries, memory, &bytes, spec->own ? 0 :
			 n * spec->dims);
	gv_place(&exact->d_self, memory, &bytes, spec->self || spec->own ? n : 0);
	gv_exact_place_queries(queries, norm->half_dims, memory, &bytes);
	gv_place(&norm->d_mean, memory, &bytes, spec->dims);
	gv_place(&norm->d_scale, memory, &bytes, 1);
	return bytes;
}

/*
 * Places the arrays of a batch, except its rows, in memory.  Returns the bytes
 * of these arrays.
 */
static size_t
place_batch(Exact *exact, char *memory)
{
	size_t		bytes = 0;

	exact->rows = {exact->d_rows, 0, 1, NULL, NULL, NULL, NULL};
	gv_exact_place_rows(&exact->rows,
						gv_exact_padded(batch_rows(&exact->spec)),
						exact->norm.half_dims, memory, &bytes);
	return bytes;
}

/* Returns the sizes of searches that compare queries with all rows. */
static GvExactAmount
amount_of(const GvSetSpec *spec)
{
	return {spec->nqueries, kept_of(spec), batch_rows(spec), 0};
}

/* Returns the bytes of memory for rows: all rows, or those of a batch. */
static size_t
rows_bytes(const GvSetSpec *spec)
{
	return (size_t) (spec->own ? spec->nrows : batch_rows(spec)) * spec->dims *
		sizeof(float);
}

/* See gv_set_size. */
static int64_t
exact_size(const GvSetSpec *spec)
{
	Exact		exact = {};
	GvExactAmount amount = amount_of(spec);
	size_t		bytes = rows_bytes(spec);

	exact.spec = *spec;
	if (spec->nqueries > 0)
	{
		bytes += place_set(&exact, NULL);	/* sets norm for the rest */
		bytes += place_batch(&exact, NULL);
	}
	if (spec->nlists > 0)
		bytes += gv_gpu_exact_lists_bytes(spec, kept_of(spec),
										  batch_rows(spec));
	else if (spec->nqueries > 0)
		bytes += gv_gpu_exact_work_bytes(spec->device, &exact.norm, &amount);
	return (int64_t) (bytes + bytes / 4);	/* gv_buffer_need allocates this
											 * much */
}

static void
drop_work(Exact *exact)
{
	gv_gpu_exact_work_drop(&exact->work);
	gv_gpu_exact_lists_drop(exact->lists);
	exact->work = {};
	exact->lists = NULL;
}

static void
exact_drop(void *state)
{
	Exact	   *exact = (Exact *) state;

	(void) gv_choose_device(exact->spec.device);
	drop_work(exact);
	if (exact->copying != NULL)
		(void) cudaStreamDestroy(exact->copying);
	gv_buffer_free(&exact->d_kept);
	gv_buffer_free(&exact->d_set);
	gv_buffer_free(&exact->d_batch);
	free(exact);
}

/*
 * Stores the position of each query among the rows, a thread for each query.
 */
static __global__ void __launch_bounds__(THREADS)
own_kernel(int64_t first, int64_t n, int64_t *d_self)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		d_self[i] = first + i;
}

/* Allocates memory for queries, neighbors, a batch, and searches. */
static GvStatus
make_question(Exact *exact)
{
	const GvSetSpec *spec = &exact->spec;
	GvExactAmount amount = amount_of(spec);

	exact->capacity = batch_rows(spec);
	GV_TRY(gv_buffer_need(&exact->d_set, place_set(exact, NULL)));
	if (spec->nlists > 0)
		GV_TRY(gv_gpu_exact_lists_create(spec, kept_of(spec), exact->capacity,
										 &exact->lists, &exact->d_centroids,
										 &exact->stream));
	else
	{
		GV_TRY(gv_gpu_exact_work(&exact->work, spec->device, &exact->norm,
								 &amount));
		exact->stream = exact->work.stream;
	}
	GV_TRY(gv_buffer_need(&exact->d_batch, place_batch(exact, NULL)));
	(void) place_set(exact, (char *) exact->d_set.memory);
	(void) place_batch(exact, (char *) exact->d_batch.memory);
	if (spec->own)
		exact->d_queries = exact->d_rows + spec->first * spec->dims;
	exact->queries.d_queries = exact->d_queries;
	exact->queries.d_self = spec->self || spec->own ? exact->d_self : NULL;
	if (!spec->own)
		return GV_OK;
	return gv_launch(own_kernel, gv_blocks_for(spec->nqueries, THREADS),
					 THREADS, 0, exact->stream, spec->first, spec->nqueries,
					 exact->d_self);
}

/* Allocates memory for the rows of a set and, if it has queries, for these. */
static GvStatus
make(Exact *exact)
{
	GV_TRY(gv_buffer_need(&exact->d_kept, rows_bytes(&exact->spec)));
	exact->d_rows = (float *) exact->d_kept.memory;
	if (exact->spec.nqueries > 0)
		return make_question(exact);
	GV_CUDA_TRY(cudaStreamCreateWithFlags(&exact->copying,
										  cudaStreamNonBlocking));
	exact->stream = exact->copying;
	return GV_OK;
}

/* See gv_set_create. */
static GvStatus
exact_create(const GvSetSpec *spec, void **state)
{
	return gv_make((Exact **) state, [=] (Exact *made)
	{
		made->spec = *spec;
		made->keeps = spec->own != 0;
		GV_TRY(gv_choose_device(spec->device));
		return make(made);
	}, exact_drop);
}

/* See gv_set_ask. */
static GvStatus
exact_ask(void *state, const GvSetSpec *spec)
{
	Exact	   *exact = (Exact *) state;

	GV_TRY(gv_choose_device(exact->spec.device));
	drop_work(exact);
	exact->is_normalized = false;
	exact->spec = *spec;
	return make_question(exact);
}

/* Searches a batch, which is the n rows from d_rows on. */
static GvStatus
search(Exact *exact, const float *d_rows, int64_t n, const GvStop *stop)
{
	GvExactRows *rows = &exact->rows;
	GvExactSearch search = {&exact->work, &exact->norm, rows, &exact->queries,
		stop};

	rows->d_rows = d_rows;
	rows->n = n;
	rows->stride = gv_gpu_exact_stride(rows->n);
	if (!exact->is_normalized)
		GV_TRY(gv_gpu_exact_normalization(&exact->norm, rows->d_rows, rows->n,
										  exact->stream));
	exact->is_normalized = true;
	if (exact->lists != NULL)
		GV_TRY(gv_gpu_exact_lists_search(exact->lists, &exact->norm, rows,
										 &exact->queries, exact->work.seen,
										 stop));
	else
	{
		GV_TRY(gv_gpu_exact_rows(&exact->norm, rows, exact->stream));
		GV_TRY(gv_gpu_exact_search(&search));
	}
	exact->work.seen += rows->n;
	return GV_OK;
}

/* Searches the rows that are on the device, a batch at a time. */
static GvStatus
search_held(Exact *exact, const GvStop *stop)
{
	int64_t		nrows = exact->nrows;

	if (!exact->keeps)
		exact->nrows = 0;
	for (int64_t done = 0; done < nrows; done += exact->capacity)
		GV_TRY(search(exact, exact->d_rows + done * exact->spec.dims,
					  std::min(nrows - done, exact->capacity), stop));
	return GV_OK;
}

static GvStatus
put_rows(Exact *exact, const float *items, int64_t n, const GvStop *stop)
{
	int64_t		dims = exact->spec.dims;
	int64_t		most = exact->keeps ? exact->spec.nrows : exact->capacity;

	while (n > 0)
	{
		int64_t		count = std::min(n, most - exact->nrows);

		GV_CUDA_TRY(cudaMemcpyAsync(exact->d_rows + exact->nrows * dims,
									items, count * dims * sizeof(float),
									cudaMemcpyDefault, exact->stream));
		exact->nrows += count;
		items += count * dims;
		n -= count;
		if (exact->nrows == most && !exact->keeps)
			GV_TRY(search_held(exact, stop));
	}
	return GV_OK;
}

/* See gv_set_put.  The items may also be in the device's memory. */
static GvStatus
exact_put(void *state, GvSetInput input, const void *items, int64_t first,
		  int64_t n, const GvStop *stop)
{
	Exact	   *exact = (Exact *) state;
	int64_t		vector = exact->spec.dims * (int64_t) sizeof(float);
	cudaStream_t stream = exact->stream;

	GV_TRY(gv_choose_device(exact->spec.device));
	if (input == GV_SET_ROWS)
		GV_TRY(put_rows(exact, (const float *) items, n, stop));
	else if (input == GV_SET_SELF)
		GV_CUDA_TRY(cudaMemcpyAsync(exact->d_self + first, items,
									n * sizeof(int64_t), cudaMemcpyDefault,
									stream));
	else
	{
		float	   *d_to = input == GV_SET_QUERIES ? exact->d_queries :
			exact->d_centroids;

		GV_CUDA_TRY(cudaMemcpyAsync((char *) d_to + first * vector, items,
									n * vector, cudaMemcpyDefault, stream));
	}
	/* the copies may read pinned items until the stream is done */
	return gv_cuda_status(cudaStreamSynchronize(stream));
}

/* See gv_set_run. */
static GvStatus
exact_run(void *state, GvSetDone *done, const GvStop *stop)
{
	Exact	   *exact = (Exact *) state;

	GV_TRY(gv_choose_device(exact->spec.device));
	GV_TRY(search_held(exact, stop));
	GV_CUDA_TRY(cudaStreamSynchronize(exact->stream));
	done->passes = 1;
	done->finished = 1;
	return GV_OK;
}

/*
 * Copies items `first` .. first + n - 1 of an output [nqueries][k] to the
 * host.  If there are fewer than k rows, the set keeps fewer neighbors of each
 * query, and the other places of the output are left unchanged.  If no rows
 * have come, nothing is copied, because the device has no neighbors.
 */
static GvStatus
get_places(Exact *exact, const void *d_from, int64_t first, int64_t n,
		   void *items)
{
	int64_t		k = exact->spec.k;
	int64_t		kept = exact->queries.k;
	int64_t		last = exact->work.seen > 0 ? first + n : first;
	int64_t		next;

	for (int64_t item = first; item < last; item = next)
	{
		int64_t		query = item / k;
		int64_t		there = std::min(query * k + kept, last);

		next = std::min((query + 1) * k, last);
		if (k == kept)
			next = there = last;
		if (item < there)
			GV_CUDA_TRY(gv_download((int64_t *) items + (item - first),
									(const int64_t *) d_from + item -
									query * (k - kept), there - item,
									exact->stream));
	}
	return gv_cuda_status(cudaStreamSynchronize(exact->stream));
}

/* See gv_set_get. */
static GvStatus
exact_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		  void *items)
{
	Exact	   *exact = (Exact *) state;
	int64_t    *positions = (int64_t *) items;

	GV_TRY(gv_choose_device(exact->spec.device));
	if (output == GV_SET_DISTANCES)
	{
		for (int64_t i = 0; i < n; i++)
			((double *) items)[i] = NAN;
		return get_places(exact, exact->queries.d_distances, first, n, items);
	}
	for (int64_t i = 0; i < n; i++)
		positions[i] = -1;
	GV_TRY(get_places(exact, exact->queries.d_positions, first, n, items));
	for (int64_t i = 0; i < n; i++)
		if (positions[i] == INT64_MAX)
			positions[i] = -1;
	return GV_OK;
}

const GvSetOps gv_gpu_exact_set = {
	.size = exact_size,
	.create = exact_create,
	.drop = exact_drop,
	.put = exact_put,
	.run = exact_run,
	.get = exact_get,
	.ask = exact_ask
};
