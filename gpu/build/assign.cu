/*
 * assign.cu
 *		The vectors that are nearest to each of many rows, found as a search
 *		finds its lists (by coarsefilter.cu, or by coarse.cu and select.cu where
 *		that does not pay): the vectors are the lists, the rows the queries.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu/build/build.h"
#include "gpu/search/search.h"
#include "gpu/product/gv_product.h"

#define THREADS			256
#define MOST_SCORES		(INT64_C(64) << 20) /* of a piece of the rows */
#define MOST_TERMS		(INT64_C(1) << 36)	/* of a piece: a few ms */
#define MOST_ROWS		(1 << 18)	/* of a piece, for the grid's numbers */
#define MOST_HALF		(INT64_C(96) << 20) /* bytes of their half copies */

/* Makes memory for `capacity` vectors.  After a failure it can be dropped. */
GvStatus
gv_targets_create(GvTargets *targets, GvMetric metric, int32_t dims,
				  int32_t capacity, cudaStream_t stream)
{
	GvMirror   *mirror = &targets->mirror;

	memset(targets, 0, sizeof(*targets));
	targets->capacity = capacity;
	mirror->model.metric = metric;
	mirror->model.dims = dims;
	mirror->model.nlists = capacity;
	mirror->stream = stream;
	GV_TRY(gv_device_alloc(&targets->d_lists, capacity));
	GV_CUDA_TRY(cudaMemsetAsync(targets->d_lists, 0,
								capacity * sizeof(GvDeviceList), stream));
	mirror->model.d_lists = targets->d_lists;
	GV_CUDA_TRY(cudaEventCreateWithFlags(&mirror->changed,
										 cudaEventDisableTiming));
	return gv_gpu_half_create(mirror);
}

void
gv_targets_drop(GvTargets *targets)
{
	if (targets->mirror.changed != NULL)
		(void) cudaEventDestroy(targets->mirror.changed);
	(void) cudaFree(targets->d_lists);
	gv_gpu_half_drop(&targets->mirror);
}

/* Sets the vectors [n][dims], which are not copied. */
GvStatus
gv_targets_set(GvTargets *targets, const float *d_vectors, int32_t n)
{
	GvMirror   *mirror = &targets->mirror;

	mirror->model.nlists = n;
	mirror->model.d_centroids = d_vectors;
	/* limits only grow, so those of other vectors must be cleared */
	GV_CUDA_TRY(cudaMemsetAsync(mirror->model.d_limits, 0,
								sizeof(GvHalfLimits), mirror->stream));
	return gv_gpu_half_update(mirror, 0, (int64_t) n * mirror->model.dims);
}

void
gv_finder_drop(GvFinder *finder)
{
	gv_blas_drop(finder->searcher.blas);
	gv_buffer_free(&finder->d_batch);
	gv_buffer_free(&finder->searcher.d_sort);
	gv_buffer_free(&finder->searcher.d_work);
}

static __global__ void __launch_bounds__(THREADS)
wanted_kernel(GvSearchParams *wanted, int n, int p)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		wanted[i] = {p, 1, 0.0};
}

/* Returns how many rows are searched for at once, for p vectors each. */
static int32_t
piece_of(const GvDeviceModel *model, int64_t n, int32_t p)
{
	bool		all = gv_gpu_coarse_rows(model, MOST_ROWS, p) == MOST_ROWS;
	int64_t		most = MOST_SCORES /
		(all ? model->nlists : gv_nruns(model->nlists));
	int64_t		by_terms = MOST_TERMS / model->nlists / model->dims;
	int64_t		by_half = MOST_HALF / 2 / model->half_dims;

	if (most > by_terms)
		most = by_terms;
	if (most > by_half)
		most = by_half;
	if (most > MOST_ROWS)
		most = MOST_ROWS;
	if (most > n)
		most = n;
	return most > 1 ? (int32_t) most : 1;
}

/* Makes memory for pieces of n rows. */
static GvStatus
prepare(GvFinder *finder, const GvDeviceModel *model, int32_t n, int32_t p,
		GvBatch *batch)
{
	size_t		scored = gv_gpu_coarse_rows(model, n, p);
	size_t		bytes = 0;
	size_t		coarse = gv_carve(&bytes, scored * model->nlists * 4);
	size_t		starts = gv_carve(&bytes, (size_t) n * (p + 1) * 4);
	size_t		wanted = gv_carve(&bytes, (size_t) n * sizeof(GvSearchParams));
	size_t		found = gv_carve(&bytes, (size_t) n * sizeof(GvFound));
	size_t		half_queries =
		gv_carve(&bytes, (size_t) n * model->half_dims * 2);
	size_t		squares = gv_carve(&bytes, (size_t) n * sizeof(float2));
	size_t		least = gv_carve(&bytes, (size_t) n *
								 gv_nruns(model->nlists) * 4);
	GV_TEST_ONLY(size_t ways = gv_carve(&bytes, GV_COARSE_PATHS *
										sizeof(unsigned));)
	char	   *memory;

	GV_TRY(gv_buffer_need(&finder->d_batch, bytes));
	memory = (char *) finder->d_batch.memory;
	memset(batch, 0, sizeof(*batch));
	batch->probes = p;
	batch->capacity = 1;
	batch->d_coarse = (float *) (memory + coarse);
	batch->d_starts = (uint32_t *) (memory + starts);
	batch->d_params = (GvSearchParams *) (memory + wanted);
	batch->d_found = (GvFound *) (memory + found);
	batch->approx.d_half_queries = (uint16_t *) (memory + half_queries);
	batch->approx.nparts = 1;
	batch->approx.d_squares = (float2 *) (memory + squares);
	batch->approx.d_least = (float *) (memory + least);
#ifdef GV_TEST_BUILD
	batch->approx.d_path_counts = (unsigned *) (memory + ways);
	GV_CUDA_TRY(cudaMemsetAsync(batch->approx.d_path_counts, 0,
								GV_COARSE_PATHS * sizeof(unsigned),
								finder->searcher.stream));
#endif
	GV_LAUNCH(wanted_kernel, gv_blocks_for(n, THREADS), THREADS, 0,
			  finder->searcher.stream, batch->d_params, n, p);
	return gv_cuda_status(cudaGetLastError());
}

/* See build.h. */
GvStatus
gv_gpu_assign(GvFinder *finder, const GvTargets *targets,
			   const float *d_rows, int64_t n, int32_t p, GvProbe *d_nearest,
			   const GvStop *stop)
{
	const GvDeviceModel *model = &targets->mirror.model;
	int32_t		piece = piece_of(model, n, p);
	GvBatch		batch;

	GV_TRY(prepare(finder, model, piece, p, &batch));
	for (int64_t done = 0; done < n; done += piece)
	{
		batch.n = n - done < piece ? (int32_t) (n - done) : piece;
		/* kernels only read queries */
		batch.d_queries = (float *) d_rows + done * model->dims;
		batch.d_probed = d_nearest + done * p;
		if (gv_gpu_coarse_filter_pays(model, &batch))
			GV_TRY(gv_gpu_approximate(model, &batch, &finder->searcher));
		else
		{
			GV_TRY(gv_gpu_coarse(model, &batch, finder->searcher.stream));
			GV_TRY(gv_gpu_select_lists(model, &batch, &finder->searcher));
		}
		if (stop != NULL && stop->requested(stop->arg))
			return GV_CANCELED;
	}
	return GV_OK;
}
