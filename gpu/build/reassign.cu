/*
 * reassign.cu
 *		The nearest centroid of every row again, when few centroids changed.
 *
 *		orphans	rows whose own centroid changed: compared with all
 *		all		rows: compared with the changed ones, which may be nearer than
 *				their own
 *
 * The result is that of comparing everything, ties included, because scores
 * are exact and changed centroids keep their order.
 */
#include <algorithm>

#include "gpu/build/build.h"

#define THREADS			256
#define LEAST_PIECE		8192	/* orphans, or all if fewer, whatever k */

/* To [n][dims] = rows from[order[i]], a block each. */
static __global__ void __launch_bounds__(THREADS)
gather_kernel(const float *from, const uint32_t *order, int dims, float *to)
{
	const float *row = from + (int64_t) order[blockIdx.x] * dims;

	for (int d = threadIdx.x; d < dims; d += THREADS)
		to[(int64_t) blockIdx.x * dims + d] = row[d];
}

/* See build.h. */
GvStatus
gv_gpu_gather(const float *d_from, const uint32_t *d_order, int32_t n,
			  int32_t dims, float *d_to, cudaStream_t stream)
{
	if (n > 0)
		GV_LAUNCH(gather_kernel, n, THREADS, 0, stream, d_from, d_order, dims,
				  d_to);
	return gv_cuda_status(cudaGetLastError());
}

/* Changed cluster b's rows to their place among the orphans, a block each. */
static __global__ void __launch_bounds__(THREADS)
orphans_kernel(const uint32_t *order, const uint32_t *starts,
			   const uint32_t *changed, const uint32_t *places,
			   uint32_t *orphans)
{
	uint32_t	start = starts[changed[blockIdx.x]];
	uint32_t	n = starts[changed[blockIdx.x] + 1] - start;

	for (uint32_t i = threadIdx.x; i < n; i += THREADS)
		orphans[places[blockIdx.x] + i] = order[start + i];
}

/* Orphans [n] have new nearest centroids. */
static __global__ void __launch_bounds__(THREADS)
adopt_kernel(const uint32_t *orphans, const GvProbe *found, int n,
			 GvProbe *near)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		near[orphans[i]] = found[i];
}

/* Of a row's nearest and the nearest of the changed, the nearer. */
static __global__ void __launch_bounds__(THREADS)
prefer_kernel(const GvProbe *found, const uint32_t *changed, int n,
			  GvProbe *near)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		gv_take_nearer(near + i, (int32_t) changed[found[i].list],
					   found[i].base);
}

/* Memory for changes of k centroids; half made, it can be dropped. */
GvStatus
gv_reassign_create(GvReassign *re, int32_t dims, int64_t n, int32_t k,
				   cudaStream_t stream)
{
	re->most_changed = k / 4 > 1 ? k / 4 : 1;
	re->most_orphans = n / 4;
	/* of few clusters each has many: pieces of k were mostly launches */
	re->piece = (int32_t) std::min((int64_t) std::max(k, LEAST_PIECE),
								   std::max(n / 4, INT64_C(1)));
	GV_TRY(gv_device_alloc(&re->d_changed, re->most_changed));
	GV_TRY(gv_device_alloc(&re->d_places, re->most_changed));
	GV_TRY(gv_device_alloc(&re->d_centroids,
						   (int64_t) re->most_changed * dims));
	GV_TRY(gv_device_alloc(&re->d_orphans, re->most_orphans));
	GV_TRY(gv_device_alloc(&re->d_rows, (int64_t) re->piece * dims));
	GV_TRY(gv_device_alloc(&re->d_found, n));
	return gv_targets_create(&re->targets, GV_L2, dims, re->most_changed,
							 stream);
}

void
gv_reassign_drop(GvReassign *re)
{
	gv_targets_drop(&re->targets);
	(void) cudaFree(re->d_changed);
	(void) cudaFree(re->d_places);
	(void) cudaFree(re->d_centroids);
	(void) cudaFree(re->d_orphans);
	(void) cudaFree(re->d_rows);
	(void) cudaFree(re->d_found);
}

/* Compare orphans [n] with all centroids. */
static GvStatus
place_orphans(const GvReassign *re, const GvClustered *of, int32_t n,
			  GvFinder *finder, const GvStop *stop)
{
	int32_t		dims = of->targets->mirror.model.dims;
	cudaStream_t stream = finder->searcher.stream;

	for (int32_t done = 0; done < n; done += re->piece)
	{
		int32_t		some = std::min(n - done, re->piece);
		const uint32_t *d_orphans = re->d_orphans + done;

		GV_TRY(gv_gpu_gather(of->d_x, d_orphans, some, dims, re->d_rows,
							 stream));
		GV_TRY(gv_gpu_assign(finder, of->targets, re->d_rows, some, 1,
							  re->d_found, stop));
		GV_LAUNCH(adopt_kernel, gv_blocks_for(some, THREADS), THREADS, 0,
				  stream, d_orphans, re->d_found, some, of->d_nearest);
		GV_CUDA_TRY(cudaGetLastError());
	}
	return GV_OK;
}

/* See build.h. */
GvStatus
gv_gpu_reassign(GvReassign *re, const GvClustered *of,
				const uint32_t *changed, const uint32_t *places,
				int32_t nchanged, int32_t norphans, GvFinder *finder,
				const GvStop *stop)
{
	int32_t		dims = of->targets->mirror.model.dims;
	cudaStream_t stream = finder->searcher.stream;
	size_t		bytes = nchanged * sizeof(uint32_t);

	GV_CUDA_TRY(cudaMemcpyAsync(re->d_changed, changed, bytes,
								cudaMemcpyHostToDevice, stream));
	GV_CUDA_TRY(cudaMemcpyAsync(re->d_places, places, bytes,
								cudaMemcpyHostToDevice, stream));
	GV_LAUNCH(orphans_kernel, nchanged, THREADS, 0, stream, of->d_order,
			  of->d_starts, re->d_changed, re->d_places, re->d_orphans);
	GV_CUDA_TRY(cudaGetLastError());
	GV_TRY(place_orphans(re, of, norphans, finder, stop));

	GV_TRY(gv_gpu_gather(of->d_centroids, re->d_changed, nchanged, dims,
						 re->d_centroids, stream));
	GV_TRY(gv_targets_set(&re->targets, re->d_centroids, nchanged));
	GV_TRY(gv_gpu_assign(finder, &re->targets, of->d_x, of->n, 1,
						  re->d_found, stop));
	GV_LAUNCH(prefer_kernel, gv_blocks_for(of->n, THREADS), THREADS, 0, stream,
			  re->d_found, re->d_changed, (int) of->n, of->d_nearest);
	return gv_cuda_status(cudaGetLastError());
}
