/*
 * kmeansset.cu
 *	k-means over a set: passes as gv_set.h defines them, with the rows kept
 *	in the device's memory.
 *
 * The host waits once a pass, for a GvSetCluster of each cluster.
 * gv_set_end_pass decides which clusters are reseeded.
 */
#include <algorithm>
#include <stdlib.h>
#include <string.h>

#include "gpu/device/warp.cuh"
#include "gpu/kmeans/kmeans.h"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)	/* at least GV_SET_SLICES */

/*
 * limits of a piece's terms and rows, and of the values of a copy; `stop` is
 * checked between pieces and between copies
 */
#define MOST_TERMS		(INT64_C(1) << 41)
#define MOST_PIECE		(INT64_C(1) << 20)
#define LEAST_PIECE		(INT64_C(1) << 14)
#define PUT_VALUES		(INT64_C(1) << 27)

struct GvKmeansSet
{
	GvSetSpec	spec;
	GvClusters	cl;
	cudaStream_t stream;
	GvBlas	   *blas;			/* NULL if gpu/product's own kernels compute
								 * products */
	char	   *d_memory;		/* all arrays of cl */
	GvBuffer	host;			/* pinned memory of the arrays below */
	GvSetCluster *found;		/* [k] */
	GvSetReseed *reseeds;		/* [k] */
	int32_t    *order;			/* [k] see gv_set_end_pass; finally the
								 * clusters that have rows */
};

/* Returns the number of rows of a set or of a part. */
static int64_t
count_rows(const GvSetSpec *spec)
{
	return gv_set_slice(spec, gv_set_nslices(spec));
}

/* Sets the shape of a set.  Allocates no memory. */
static void
set_shape(const GvSetSpec *spec, GvClusters *cl)
{
	int32_t		nslices = gv_set_nslices(spec);

	memset(cl, 0, sizeof(*cl));
	gv_clusters_shape(cl, gv_set_slice(spec, nslices), spec->dims, spec->k,
					  MOST_TERMS,
					  std::clamp(MOST_TERMS / spec->k / spec->dims,
								 LEAST_PIECE, MOST_PIECE), true);
	cl->nslices = nslices;
	for (int32_t i = 0; i < nslices; i++)
		cl->slice_ends[i] = (uint32_t) gv_set_slice(spec, i + 1);
}

/* Places all arrays in memory, and returns their size in bytes. */
static size_t
place_all(GvKmeansSet *set, char *memory)
{
	GvClusters *cl = &set->cl;
	int64_t		k = cl->k;
	size_t		bytes = 0;

	gv_place(&cl->d_rows, memory, &bytes, cl->n * cl->dims);
	gv_place(&cl->d_centroids, memory, &bytes, k * cl->dims);
	gv_clusters_place(cl, memory, &bytes);
	gv_place(&cl->d_found, memory, &bytes, k);
	gv_place(&cl->d_reseeds, memory, &bytes, k);
	if (set->spec.nslices > 0)
		gv_place(&cl->d_sums, memory, &bytes, k * cl->dims);
	return bytes;
}

/* Places the host's arrays in memory, and returns their size in bytes. */
static size_t
place_host(GvKmeansSet *set, char *memory)
{
	int64_t		k = set->spec.k;
	size_t		bytes = 0;

	gv_place(&set->found, memory, &bytes, k);
	gv_place(&set->reseeds, memory, &bytes, k);
	gv_place(&set->order, memory, &bytes, k);
	return bytes;
}

/* See gv_set_size. */
static int64_t
kmeans_size(const GvSetSpec *spec)
{
	GvKmeansSet set = {};

	if (count_rows(spec) > INT32_MAX)
		return INT64_MAX;
	set.spec = *spec;
	set_shape(spec, &set.cl);
	set.cl.sort_bytes = (size_t) gv_sort_most_bytes(set.cl.n, 8);
	return (int64_t) place_all(&set, NULL) +
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
	gv_buffer_free(&set->host);
	if (set->stream != NULL)
		(void) cudaStreamDestroy(set->stream);
	free(set);
}

/* Creates the stream and allocates all memory. */
static GvStatus
make_memory(GvKmeansSet *set)
{
	GvClusters *cl = &set->cl;

	if (count_rows(&set->spec) > INT32_MAX)
		return GV_NO_MEMORY;
	GV_TRY(gv_choose_device(set->spec.device));
	GV_TRY(gv_gpu_low_stream(&set->stream));
	GV_TRY(gv_blas_create(set->spec.device, set->spec.dims, set->stream,
						  &set->blas));
	set_shape(&set->spec, cl);
	GV_TRY(gv_gpu_nsms(&cl->nsms));
	GV_TRY(gv_gpu_group_bytes(cl->n, &cl->sort_bytes));
	GV_CUDA_TRY(gv_device_alloc(&set->d_memory, place_all(set, NULL)));
	(void) place_all(set, set->d_memory);
	GV_TRY(gv_buffer_need(&set->host, place_host(set, NULL)));
	(void) place_host(set, (char *) set->host.memory);
	return GV_OK;
}

/* See gv_set_create. */
static GvStatus
kmeans_create(const GvSetSpec *spec, void **state)
{
	return gv_make((GvKmeansSet **) state, [=] (GvKmeansSet *made)
	{
		made->spec = *spec;
		made->host.pinned = true;
		return make_memory(made);
	}, kmeans_drop);
}

/* See gv_set_put.  The items may also be in the device's memory. */
static GvStatus
kmeans_put(void *state, GvSetInput input, const void *items, int64_t first,
		   int64_t n, const GvStop *stop)
{
	GvKmeansSet *set = (GvKmeansSet *) state;
	int64_t		dims = set->spec.dims;
	int64_t		most = PUT_VALUES / dims;
	float	   *d_to =
		input == GV_SET_SEEDS ? set->cl.d_centroids : set->cl.d_rows;

	GV_TRY(gv_choose_device(set->spec.device));
	for (int64_t done = 0; done < n; done += most)
	{
		int64_t		some = n - done < most ? n - done : most;

		if (gv_is_stopped(stop))
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

/*
 * Returns in *n how many rows so far had more candidates than
 * GV_KMEANS_CANDIDATES.
 */
extern "C" GvStatus
gv_gpu_kmeans_overflowed(void *state, uint32_t *n)
{
	GvKmeansSet *set = (GvKmeansSet *) state;

	GV_TRY(gv_choose_device(set->spec.device));
	GV_CUDA_TRY(gv_download(n, set->cl.d_noverflowed + 1, 1, set->stream));
	return gv_cuda_status(cudaStreamSynchronize(set->stream));
}

#endif

/*
 * Computes the sum of a cluster's squared distances and the first of its
 * farthest rows.  Each block has a cluster, and each of its warps a slice.
 */
static __global__ void __launch_bounds__(THREADS)
errors_kernel(GvClusters cl)
{
	__shared__ double sums[WARPS];
	__shared__ uint64_t farthest[WARPS];
	int			c = blockIdx.x;
	int			warp = threadIdx.x / GV_WARP;
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	start = cl.d_starts[c];
	uint32_t	end = cl.d_starts[c + 1];
	uint32_t	first = gv_slice_start(cl, warp, start, end);
	uint32_t	stop = gv_slice_start(cl, warp + 1, start, end);
	double		sum = 0.0;
	uint64_t	most = 0;

	for (; first < stop; first += GV_WARP)
	{
		uint32_t	n = min(stop - first, (uint32_t) GV_WARP);
		uint32_t	row = lane < n ? cl.d_order[first + lane] : 0;
		float		mine = lane < n ? cl.d_sqdist[row] : 0.0f;

		/* the larger distance is kept and, of equal ones, the smaller row */
		if (lane < n)
			most = max(most, (uint64_t) __float_as_uint(mine) << 32 | ~row);
		for (uint32_t l = 0; l < n; l++)
			sum += (double) __shfl_sync(GV_FULL_WARP, mine, (int) l);
	}
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		most = max(most, __shfl_xor_sync(GV_FULL_WARP, most, half));
	if (lane == 0)
	{
		sums[warp] = sum;
		farthest[warp] = most;
	}
	__syncthreads();
	if (threadIdx.x > 0)
		return;
	for (int w = 1; w < WARPS; w++)
		most = max(most, farthest[w]);
	cl.d_found[c] = {gv_slices_total(cl, sums, 1), end - start,
		__uint_as_float((uint32_t) (most >> 32)), ~(uint32_t) most};
}

/* Copies farthest rows to reseeded centroids, a block each. */
static __global__ void __launch_bounds__(THREADS)
reseed_kernel(GvClusters cl)
{
	GvSetReseed reseed = cl.d_reseeds[blockIdx.x];
	const float *row = cl.d_rows +
		(int64_t) cl.d_found[reseed.from].farthest * cl.dims;

	for (int d = threadIdx.x; d < cl.dims; d += THREADS)
		cl.d_centroids[(int64_t) reseed.to * cl.dims + d] = row[d];
}

/* See gv_set_run.  Runs a pass. */
static GvStatus
kmeans_run(void *state, GvSetDone *done, const GvStop *stop)
{
	GvKmeansSet *set = (GvKmeansSet *) state;
	const GvClusters *cl = &set->cl;
	bool		last = done->passes == set->spec.iterations;
	int32_t		nreseeds;
	GvMatmulContext context = {set->blas, gv_has_hopper(set->spec.device),
		cl->nsms, false, set->stream};
	GvAssignment all = {cl->n, cl->d_all, cl->k, cl->d_all,
		done->passes > 0 ? GV_BOUND_NEAREST : GV_BOUND_NONE, true};

	GV_TRY(gv_choose_device(set->spec.device));
	if (done->passes == 0)
		GV_TRY(gv_gpu_kmeans_begin(cl, set->stream));
	GV_TRY(gv_gpu_nearest(cl, &all, &context, stop));
	GV_TRY(gv_gpu_group_clusters(cl, set->stream));
	GV_TRY(gv_launch(errors_kernel, cl->k, THREADS, 0, set->stream, *cl));
	if (!last)
		GV_TRY(gv_gpu_means(cl, set->stream));
	GV_CUDA_TRY(gv_download(set->found, cl->d_found, cl->k, set->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(set->stream));
	if (gv_is_stopped(stop))
		return GV_CANCELED;
	done->again = 0;			/* the caller need not put the rows again */
	if (set->spec.nslices > 0)
	{
		done->passes++;
		done->finished = last;
		return GV_OK;
	}
	nreseeds = gv_set_end_pass(&set->spec, set->found, 1, set->reseeds,
							   set->order, done);
	if (nreseeds == 0)
		return GV_OK;
	GV_CUDA_TRY(gv_upload(cl->d_reseeds, set->reseeds, nreseeds, set->stream));
	return gv_launch(reseed_kernel, nreseeds, THREADS, 0, set->stream, *cl);
}

/* See gv_set_get.  Centroids that lie side by side are copied together. */
static GvStatus
kmeans_get(void *state, GvSetOutput output, int64_t first, int64_t n,
		   void *items)
{
	GvKmeansSet *set = (GvKmeansSet *) state;
	int64_t		dims = set->spec.dims;
	int64_t		run;

	if (output == GV_SET_SIZES)
		gv_set_copy(set->order + first, n, 0, set->found, NULL, output, items);
	if (output == GV_SET_CLUSTERS)
		memcpy(items, set->found + first, sizeof(GvSetCluster) * (size_t) n);
	GV_TRY(gv_choose_device(set->spec.device));
	if (output == GV_SET_SUMS)
		GV_CUDA_TRY(gv_download((double *) items, set->cl.d_sums +
								first * dims, n * dims, set->stream));
	for (int64_t i = 0; i < n && output == GV_SET_FARTHEST; i++)
		GV_CUDA_TRY(gv_download((float *) items + i * dims, set->cl.d_rows +
								set->found[first + i].farthest * dims, dims,
								set->stream));
	for (int64_t i = 0; i < n && output == GV_SET_CENTROIDS; i += run)
	{
		const int32_t *some = set->order + first + i;

		for (run = 1; i + run < n && some[run] == some[0] + run; run++)
			;
		GV_CUDA_TRY(gv_download((float *) items + i * dims,
								set->cl.d_centroids + some[0] * dims,
								run * dims, set->stream));
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
