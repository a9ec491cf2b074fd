/*
 * kmeansset.cu
 *		k-means over a set: passes as gv_set.h defines them, with the rows kept
 *		in the device's memory.
 *
 * The host waits once a pass, for sizes, errors and farthest distances of the
 * clusters, 16 bytes each; which of them are reseeded is gv_set_reseed's to
 * say, which is given the clusters' numbers in the place of rows.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu/cluster/gv_clusters.h"
#include "gpu/common/gv_batch.h"
#include "gpu/common/gv_group.h"
#include "gpu/common/gv_sets.h"
#include "gpu/product/gv_product.h"

#define MOST_PIECE		(INT64_C(1) << 20)	/* rows between two questions */
#define MOST_TERMS		(INT64_C(1) << 41)	/* whether to stop */
#define PUT_VALUES		(INT64_C(1) << 27)	/* the same */
#define LEAST_PIECE		(INT64_C(1) << 14)

/* see gv_gpu_kmeans_piece */
static GV_TUNABLE int32_t forced_piece = 0;

struct GvKmeansSet
{
	GvSetSpec	spec;
	GvClusters	cl;
	cudaStream_t stream;
	GvBlas	   *blas;			/* NULL: products by loops of ours */
	char	   *d_memory;		/* of all arrays of cl */
	GvBuffer	out;			/* pinned: the next three */
	uint32_t   *starts;			/* [k + 1] */
	double	   *errors;			/* [k] */
	float	   *far;			/* [k] */
	int64_t    *sizes;			/* [k]; at last of those found */
	GvReseed	   *reseeds;			/* [k] */
	int32_t    *order;			/* [k] for gv_set_reseed, then those found */
	float	   *numbers;		/* [k] 0, 1, 2, ..., for farthest rows, */
	float	   *takers;			/* [k] and the like for centroids: -1 */
	int32_t		passes;
};

/* The shape of a set, without memory. */
static void
shape(const GvSetSpec *spec, GvClusters *cl)
{
	int64_t		piece = MOST_TERMS / spec->k / spec->dims;

	if (piece < LEAST_PIECE)
		piece = LEAST_PIECE;
	if (piece > MOST_PIECE)
		piece = MOST_PIECE;
	if (forced_piece > 0)
		piece = forced_piece;
	if (piece > spec->nrows)
		piece = spec->nrows;
	memset(cl, 0, sizeof(*cl));
	cl->n = spec->nrows;
	cl->dims = spec->dims;
	cl->half_dims = (spec->dims + 15) / 16 * 16;
	cl->k = spec->k;
	cl->padded_k = (spec->k + GV_CLOSE_LISTS - 1) / GV_CLOSE_LISTS * GV_CLOSE_LISTS;
	cl->piece = (int32_t) piece;
}

/* All arrays; returns their bytes.  Without memory it only counts. */
static size_t
place_all(GvClusters *cl, char *memory)
{
	int64_t		n = cl->n;
	int64_t		k = cl->k;
	size_t		bytes = 0;

	gv_place(&cl->d_rows, memory, &bytes, n * cl->dims);
	gv_place(&cl->d_centroids, memory, &bytes, k * cl->dims);
	gv_place(&cl->d_middle, memory, &bytes, cl->dims);
	gv_place(&cl->d_most, memory, &bytes, 1);
	gv_place(&cl->d_half_rows, memory, &bytes, n * cl->half_dims);
	gv_place(&cl->d_lengths, memory, &bytes, n);
	gv_place(&cl->d_half_centroids, memory, &bytes, k * cl->half_dims);
	gv_place(&cl->d_squares, memory, &bytes, cl->padded_k);
	gv_place(&cl->d_spans, memory, &bytes, cl->padded_k / GV_RUN);
	gv_place(&cl->d_nearest, memory, &bytes, n);
	gv_place(&cl->d_sqdist, memory, &bytes, n);
	gv_place(&cl->d_all, memory, &bytes, n);
	gv_place(&cl->d_keys, memory, &bytes, n);
	gv_place(&cl->d_order, memory, &bytes, n);
	gv_place(&cl->d_starts, memory, &bytes, k + 1);
	gv_place((char **) &cl->d_sort, memory, &bytes, (int64_t) cl->sort_bytes);
	gv_place(&cl->d_reach, memory, &bytes, cl->piece);
	gv_place(&cl->d_counts, memory, &bytes, cl->piece);
	gv_place(&cl->d_close, memory, &bytes,
			 (int64_t) cl->piece * GV_CLOSE_CAPACITY);
	gv_place(&cl->d_hard, memory, &bytes, cl->piece);
	gv_place(&cl->d_nhard, memory, &bytes, 2);
	gv_place(&cl->d_errors, memory, &bytes, k);
	gv_place(&cl->d_far, memory, &bytes, k);
	gv_place(&cl->d_far_rows, memory, &bytes, k);
	gv_place(&cl->d_reseeds, memory, &bytes, k);
	return bytes;
}

/* See gv_set_size. */
static int64_t
kmeans_size(const GvSetSpec *spec)
{
	GvClusters	cl;

	if (spec->nrows > INT32_MAX)
		return INT64_MAX;
	shape(spec, &cl);
	cl.sort_bytes = (size_t) gv_sort_most_bytes(spec->nrows, 8);
	return (int64_t) place_all(&cl, NULL) +
		gv_blas_bytes(spec->device, spec->dims);
}

static void
kmeans_drop(void *state)
{
	GvKmeansSet *set = (GvKmeansSet *) state;

	(void) gv_choose_device(set->spec.device);
	if (set->stream != NULL)
		(void) cudaStreamSynchronize(set->stream);
	gv_blas_drop(set->blas);
	(void) cudaFree(set->d_memory);
	gv_buffer_free(&set->out);
	if (set->stream != NULL)
		(void) cudaStreamDestroy(set->stream);
	free(set->sizes);
	free(set->reseeds);
	free(set->order);
	free(set->numbers);
	free(set->takers);
	free(set);
}

/* The host's memory. */
static GvStatus
make_host_memory(GvKmeansSet *set)
{
	size_t		k = (size_t) set->spec.k;
	size_t		bytes = 0;
	size_t		starts = gv_carve(&bytes, (k + 1) * sizeof(uint32_t));
	size_t		errors = gv_carve(&bytes, k * sizeof(double));
	size_t		far = gv_carve(&bytes, k * sizeof(float));
	char	   *memory;

	set->sizes = (int64_t *) calloc(k, sizeof(int64_t));
	set->reseeds = (GvReseed *) calloc(k, sizeof(GvReseed));
	set->order = (int32_t *) calloc(k, sizeof(int32_t));
	set->numbers = (float *) calloc(k, sizeof(float));
	set->takers = (float *) calloc(k, sizeof(float));
	if (set->sizes == NULL || set->reseeds == NULL || set->order == NULL ||
		set->numbers == NULL || set->takers == NULL)
		return GV_NO_MEMORY;
	static_assert(GV_SET_MAX_CLUSTERS <= 1 << 24, "floats hold the numbers");
	for (size_t c = 0; c < k; c++)
		set->numbers[c] = (float) c;
	GV_TRY(gv_buffer_need(&set->out, bytes));
	memory = (char *) set->out.memory;
	set->starts = (uint32_t *) (memory + starts);
	set->errors = (double *) (memory + errors);
	set->far = (float *) (memory + far);
	return GV_OK;
}

/* The stream and the device's memory. */
static GvStatus
make_memory(GvKmeansSet *set)
{
	GvClusters *cl = &set->cl;
	int			least;
	int			most;
	int			device;

	if (set->spec.nrows > INT32_MAX)
		return GV_NO_MEMORY;
	GV_TRY(gv_choose_device(set->spec.device));
	GV_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &most));
	GV_CUDA_TRY(cudaStreamCreateWithPriority(&set->stream,
											 cudaStreamNonBlocking, least));
	GV_CUDA_TRY(cudaGetDevice(&device));
	GV_TRY(gv_blas_create(set->spec.device, set->spec.dims, set->stream,
						  &set->blas));
	shape(&set->spec, cl);
	GV_CUDA_TRY(cudaDeviceGetAttribute(&cl->nsms,
									   cudaDevAttrMultiProcessorCount,
									   device));
	GV_TRY(gv_gpu_group_bytes(cl->n, &cl->sort_bytes));
	GV_CUDA_TRY(cudaMalloc((void **) &set->d_memory, place_all(cl, NULL)));
	(void) place_all(cl, set->d_memory);
	GV_TRY(make_host_memory(set));
	GV_CUDA_TRY(cudaMemsetAsync(cl->d_nhard, 0, 2 * sizeof(uint32_t),
								set->stream));
	return gv_gpu_number_rows(cl, set->stream);
}

/* See gv_set_create. */
static GvStatus
kmeans_create(const GvSetSpec *spec, void **state)
{
	GvKmeansSet *made = (GvKmeansSet *) calloc(1, sizeof(GvKmeansSet));
	GvStatus	status;

	if (made == NULL)
		return GV_NO_MEMORY;
	made->spec = *spec;
	made->out.pinned = true;
	status = make_memory(made);
	if (status != GV_OK)
	{
		kmeans_drop(made);
		return status;
	}
	*state = made;
	return GV_OK;
}

static bool
is_stopped(const GvStop *stop)
{
	return stop != NULL && stop->requested(stop->arg);
}

/* See gv_set_put.  Items may be on the device as well. */
static GvStatus
kmeans_put(void *state, GvSetInput input, const void *items, int64_t first,
		   int64_t n, const GvStop *stop)
{
	GvKmeansSet *set = (GvKmeansSet *) state;
	int64_t		dims = set->spec.dims;
	int64_t		most = PUT_VALUES / dims;
	float	   *d_to = input == GV_SET_SEEDS ? set->cl.d_centroids :
		set->cl.d_rows;

	GV_TRY(gv_choose_device(set->spec.device));
	for (int64_t done = 0; done < n; done += most)
	{
		int64_t		some = n - done < most ? n - done : most;

		if (is_stopped(stop))
			return GV_CANCELED;
		GV_CUDA_TRY(cudaMemcpyAsync(d_to + (first + done) * dims,
									(const float *) items + done * dims,
									(size_t) (some * dims) * sizeof(float),
									cudaMemcpyDefault, set->stream));
		GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
	}
	return GV_OK;
}

#ifdef GV_TEST_BUILD

static GvKmeansWatch watch;		/* see gv_gpu_kmeans_watch */

/* See gv_clusters.h. */
extern "C" void
gv_gpu_kmeans_watch(GvKmeansWatch by)
{
	watch = by;
}

/* See gv_clusters.h. */
extern "C" void
gv_gpu_kmeans_piece(int32_t rows)
{
	forced_piece = rows;
}

/* See gv_clusters.h. */
extern "C" GvStatus
gv_gpu_kmeans_hard(void *state, uint32_t *n)
{
	GvKmeansSet *set = (GvKmeansSet *) state;

	GV_TRY(gv_choose_device(set->spec.device));
	GV_CUDA_TRY(cudaMemcpyAsync(n, set->cl.d_nhard + 1, sizeof(*n),
								cudaMemcpyDeviceToHost, set->stream));
	return gv_cuda_status(cudaStreamSynchronize(set->stream));
}

#endif

static void
tell(const GvKmeansSet *set, GvKmeansStep step)
{
	GV_TEST_ONLY(if (watch != NULL) watch(step, set->stream);)
}

/* The nearest centroid of every row. */
static GvStatus
assign_rows(GvKmeansSet *set, const GvStop *stop)
{
	const GvClusters *cl = &set->cl;
	GvMatmulContext by = {set->blas, gv_has_hopper(set->spec.device), cl->nsms,
	false, set->stream};
	bool		known = set->passes > 0;

	for (int64_t done = 0; done < cl->n; done += cl->piece)
	{
		int32_t		n = cl->n - done < cl->piece ? (int32_t) (cl->n - done) :
			cl->piece;

		GV_TRY(gv_gpu_bounds(cl, done, n, known, set->stream));
		tell(set, GV_KMEANS_BOUNDS);
		GV_TRY(gv_gpu_candidates(cl, done, n, &by));
		tell(set, GV_KMEANS_CLOSEST);
		GV_TRY(gv_gpu_rescore_close(cl, done, n, known, set->stream));
		tell(set, GV_KMEANS_RESCORE);
		if (done + n < cl->n)
			GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
		if (is_stopped(stop))
			return GV_CANCELED;
	}
	return GV_OK;
}

/* Sizes, errors and far distances come to the host; returns the error. */
static GvStatus
bring_clusters(GvKmeansSet *set, double *error)
{
	const GvClusters *cl = &set->cl;
	size_t		k = (size_t) cl->k;

	GV_CUDA_TRY(cudaMemcpyAsync(set->starts, cl->d_starts,
								(k + 1) * sizeof(uint32_t),
								cudaMemcpyDeviceToHost, set->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(set->errors, cl->d_errors, k * sizeof(double),
								cudaMemcpyDeviceToHost, set->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(set->far, cl->d_far, k * sizeof(float),
								cudaMemcpyDeviceToHost, set->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
	*error = 0.0;
	for (size_t c = 0; c < k; c++)
	{
		*error += set->errors[c];
		set->sizes[c] = set->starts[c + 1] - set->starts[c];
	}
	return GV_OK;
}

/* Reseed clusters, by the rule of all engines. */
static GvStatus
reseed(GvKmeansSet *set)
{
	GvSetSpec	spec = set->spec;
	int32_t		n = 0;

	spec.dims = 1;
	for (int32_t c = 0; c < spec.k; c++)
		set->takers[c] = -1.0f;
	if (gv_set_reseed(&spec, set->sizes, set->errors, set->far, set->numbers,
					set->takers, set->order) == 0)
		return GV_OK;
	for (int32_t c = 0; c < spec.k; c++)
		if (set->takers[c] >= 0.0f)
			set->reseeds[n++] = {(uint32_t) c, (uint32_t) set->takers[c]};
	GV_CUDA_TRY(cudaMemcpyAsync(set->cl.d_reseeds, set->reseeds,
								(size_t) n * sizeof(GvReseed),
								cudaMemcpyHostToDevice, set->stream));
	return gv_gpu_reseed(&set->cl, n, set->stream);
}

/* Those that have rows: order, sizes; returns how many. */
static int32_t
close_gaps(GvKmeansSet *set)
{
	int32_t		found = 0;

	for (int32_t c = 0; c < set->spec.k; c++)
	{
		if (set->sizes[c] == 0)
			continue;
		set->sizes[found] = set->sizes[c];
		set->order[found++] = c;
	}
	return found;
}

/* See gv_set_run: a pass. */
static GvStatus
kmeans_run(void *state, GvSetDone *done, const GvStop *stop)
{
	GvKmeansSet *set = (GvKmeansSet *) state;
	const GvClusters *cl = &set->cl;
	bool		last = set->passes == set->spec.iterations;

	GV_TRY(gv_choose_device(set->spec.device));
	tell(set, GV_KMEANS_BEGIN);
	if (set->passes == 0)
		GV_TRY(gv_gpu_center(cl, set->stream));
	tell(set, GV_KMEANS_CENTER);
	GV_TRY(gv_gpu_to_half(cl, set->stream));
	tell(set, GV_KMEANS_TO_HALF);
	GV_TRY(assign_rows(set, stop));
	GV_TRY(gv_gpu_group_clusters(cl, set->stream));
	tell(set, GV_KMEANS_GROUP);
	GV_TRY(gv_gpu_errors(cl, set->stream));
	if (!last)
		GV_TRY(gv_gpu_means(cl, set->stream));
	tell(set, GV_KMEANS_SUM);
	GV_TRY(bring_clusters(set, &done->error));
	if (is_stopped(stop))
		return GV_CANCELED;
	done->passes = ++set->passes;
	done->finished = last;
	done->again = 0;			/* rows are kept */
	if (last)
		done->found = close_gaps(set);
	else
		GV_TRY(reseed(set));
	tell(set, GV_KMEANS_RESEED);
	return GV_OK;
}

/* See gv_set_get: centroids in runs that lie side by side. */
static GvStatus
kmeans_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		   void *items)
{
	GvKmeansSet *set = (GvKmeansSet *) state;
	int64_t		dims = set->spec.dims;
	int64_t		run;

	if (output == GV_SET_SIZES)
	{
		memcpy(items, set->sizes + first, sizeof(int64_t) * (size_t) n);
		return GV_OK;
	}
	GV_TRY(gv_choose_device(set->spec.device));
	for (int64_t i = 0; i < n; i += run)
	{
		const int32_t *some = set->order + first + i;

		for (run = 1; i + run < n && some[run] == some[0] + run; run++)
			;
		GV_CUDA_TRY(cudaMemcpyAsync((float *) items + i * dims,
									set->cl.d_centroids + some[0] * dims,
									(size_t) (run * dims) * sizeof(float),
									cudaMemcpyDeviceToHost, set->stream));
	}
	return gv_cuda_status(cudaStreamSynchronize(set->stream));
}

extern "C" const GvSetOps gv_gpu_kmeans_set = {
	.size = kmeans_size,
	.create = kmeans_create,
	.drop = kmeans_drop,
	.put = kmeans_put,
	.run = kmeans_run,
	.get = kmeans_get,
	.ask = NULL
};
