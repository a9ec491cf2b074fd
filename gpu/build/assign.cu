/*
 * assign.cu
 *		The vectors that are nearest to each of many rows, found as a search
 *		finds its lists: the vectors are the lists, the rows the queries.
 */
#include <algorithm>
#include <string.h>

#include "gpu/build/build.h"

#define THREADS			256
#define MOST_SCORES		(INT64_C(64) << 20) /* most scores of a piece of the
											 * rows */
#define MOST_TERMS		(INT64_C(1) << 36)	/* most terms of a piece, which
											 * take a few ms */
#define MOST_ROWS		(1 << 18)	/* most rows of a piece, so that the grid
									 * is not too large */
#define MOST_HALF		(INT64_C(96) << 20) /* most bytes of the rows' half
											 * copies */

/* Makes memory for `capacity` vectors.  After a failure it can be dropped. */
GvStatus
gv_centroids_create(GvCentroids *centroids, GvMetric metric, int32_t dims,
					int32_t capacity, cudaStream_t stream)
{
	GvMirror   *mirror = &centroids->mirror;

	memset(centroids, 0, sizeof(*centroids));
	centroids->capacity = capacity;
	mirror->model.metric = metric;
	mirror->model.dims = dims;
	mirror->model.nlists = capacity;
	mirror->stream = stream;
	GV_CUDA_TRY(gv_device_alloc(&centroids->d_lists, capacity));
	GV_CUDA_TRY(gv_clear(centroids->d_lists, capacity, stream));
	mirror->model.d_lists = centroids->d_lists;
	GV_CUDA_TRY(cudaEventCreateWithFlags(&mirror->changed,
										 cudaEventDisableTiming));
	return gv_gpu_half_create(mirror);
}

void
gv_centroids_drop(GvCentroids *centroids)
{
	if (centroids->mirror.changed != NULL)
		(void) cudaEventDestroy(centroids->mirror.changed);
	(void) cudaFree(centroids->d_lists);
	gv_gpu_half_drop(&centroids->mirror);
}

/* Sets the vectors [n][dims], which are not copied. */
GvStatus
gv_centroids_set(GvCentroids *centroids, const float *d_vectors, int32_t n)
{
	GvMirror   *mirror = &centroids->mirror;

	mirror->model.nlists = n;
	/* kernels only read them */
	mirror->model.d_centroids = (float *) d_vectors;
	/* limits only grow, so clear the limits of the vectors before */
	GV_CUDA_TRY(gv_clear(mirror->model.d_limits, 1, mirror->stream));
	return gv_gpu_half_update(mirror, 0, (int64_t) n * mirror->model.dims);
}

void
gv_assigner_drop(GvAssigner *assigner)
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
		params[i] = {p, 1, 0.0};
}

/* Returns how many rows are searched for at once, for p vectors each. */
static int32_t
piece_of(const GvDeviceModel *model, int64_t n, int32_t p)
{
	bool		all = gv_gpu_coarse_rows(model, MOST_ROWS, p) == MOST_ROWS;
	int64_t		most = std::min({MOST_SCORES /
		(all ? model->nlists : gv_ncolumn_groups(model->nlists)),
		MOST_TERMS / model->nlists / model->dims,
		MOST_HALF / 2 / model->half_dims, (int64_t) MOST_ROWS, n});

	return most > 1 ? (int32_t) most : 1;
}

/* Makes memory for pieces of n rows. */
static GvStatus
prepare(GvAssigner *assigner, const GvDeviceModel *model, int32_t n, int32_t p,
		GvBatch *batch)
{
	GvCoarseFilter *filter = &batch->filter;
	char	   *memory = NULL;

	memset(batch, 0, sizeof(*batch));
	batch->nprobe = p;
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

GvStatus
gv_gpu_assign(GvAssigner *assigner, const GvCentroids *centroids,
			  const float *d_rows, int64_t n, int32_t p, GvProbe *d_nearest,
			  const GvStop *stop)
{
	const GvDeviceModel *model = &centroids->mirror.model;
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
