/*
 * exactlists.cu
 *		Lists of vectors, lists near lists, and everything in their order.
 *
 * Which list a vector is of, and which are near, are exact searches among the
 * centroids like any other, a piece of the vectors at a time.  A stable radix
 * sort by list keeps vectors of a list in their own order.
 */
#include <stdlib.h>

#include "gpu/common/common.cuh"
#include "gpu/common/gv_group.h"
#include "gpu/exact/gv_exactlists.h"

#define THREADS			256

/* The lists of a piece of vectors become keys, beside their numbers. */
static __global__ void __launch_bounds__(THREADS)
keys_kernel(const int64_t *d_positions, int64_t first, int64_t n,
			uint32_t *d_keys, uint32_t *d_numbers)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i >= n)
		return;
	d_keys[first + i] = (uint32_t) d_positions[i];
	d_numbers[first + i] = (uint32_t) (first + i);
}

/* Rows in the lists near each list, one after the other; a thread a list. */
static __global__ void __launch_bounds__(THREADS)
offsets_kernel(const int64_t *d_nearest, const uint32_t *d_starts,
			   uint32_t nlists, int32_t probes, uint32_t *d_offsets,
			   uint32_t *d_totals)
{
	int64_t		list = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	uint32_t   *offsets = d_offsets + list * (probes + 1);
	uint32_t	sum = 0;

	if (list >= nlists)
		return;
	for (int32_t i = 0; i < probes; i++)
	{
		int64_t		other = d_nearest[list * probes + i];

		offsets[i] = sum;
		sum += d_starts[other + 1] - d_starts[other];
	}
	offsets[probes] = sum;
	d_totals[list] = sum;
}

/* Half copies of centroids, as a metric wants them. */
static GvStatus
see_centroids(GvExactByList *lists, int32_t metric)
{
	cudaStream_t stream = lists->asking.stream;

	lists->space.metric = metric;
	GV_TRY(gv_gpu_exact_frame(&lists->space, lists->d_centroids,
							  lists->spec.nlists, stream));
	return gv_gpu_exact_rows(&lists->space, &lists->centroids, stream);
}

/* Clear some queries' answers, and search all centroids for them. */
static GvStatus
ask(const GvExactByList *lists, GvExactWork *work,
	const GvExactQueries *queries, const GvStop *stop)
{
	GV_TRY(gv_gpu_exact_clear(queries, work->stream));
	return gv_gpu_exact_search(work, &lists->space, &lists->centroids, queries,
							   stop);
}

/* near.d_positions. */
static GvStatus
find_nearest(GvExactByList *lists, const GvStop *stop)
{
	GvExactAmount amount = gv_gpu_exact_nearest_amount(lists);
	GvExactWork work = {};
	GvStatus	status;

	GV_CUDA_TRY(cudaStreamSynchronize(lists->asking.stream));
	status = gv_gpu_exact_work(&work, lists->spec.device, &lists->space,
							   &amount);
	if (status == GV_OK)
		status = ask(lists, &work, &lists->near, stop);
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamSynchronize(work.stream));
	gv_gpu_exact_work_drop(&work);
	return status;
}

/* Vectors [n][dims] by list. */
static GvStatus
group(GvExactByList *lists, const float *d_vectors, int64_t n,
	  const GvExactGroups *groups, const GvStop *stop)
{
	cudaStream_t stream = lists->asking.stream;
	GvGroup		group = {n, (uint32_t) lists->spec.nlists, lists->d_keys,
		lists->d_numbers, lists->d_sorted, groups->d_order, groups->d_starts,
	lists->d_sort, lists->sort_bytes};
	double		since = 0.0;

	gv_gpu_exact_lists_measure(&lists->asking);
	GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_ASK, stream, &since));
	for (int64_t done = 0; done < n; done += lists->piece)
	{
		GvExactQueries asked = lists->asked;

		if (n - done < asked.n)
			asked.n = n - done;
		asked.d_queries = d_vectors + done * lists->spec.dims;
		GV_TRY(ask(lists, &lists->asking, &asked, stop));
		GV_LAUNCH(keys_kernel, gv_exact_blocks(asked.n, THREADS), THREADS, 0,
				  stream, (const int64_t *) asked.d_positions, done, asked.n,
				  lists->d_keys, lists->d_numbers);
	}
	GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_ASK, stream, &since));
	gv_gpu_exact_lists_add(&lists->asking, GV_EXACT_ASK_STEPS);
	GV_CUDA_TRY(cudaGetLastError());
	GV_TRY(gv_gpu_group(&group, stream));
	return gv_gpu_exact_lists_note(GV_EXACT_GROUP, stream, &since);
}

/* The queries' parts, from where their lists begin. */
static GvStatus
make_parts(GvExactByList *lists, const GvExactQueries *queries)
{
	uint32_t	most = (uint32_t)
		gv_gpu_exact_part_most(&lists->streams[0].work, queries);
	const uint32_t *starts = lists->starts;
	int64_t		n = 0;

	for (int32_t list = 0; list < lists->spec.nlists; list++)
		n += (starts[list + 1] - starts[list] + most - 1) / most;
	lists->parts = (GvExactListPart *) malloc(n * sizeof(GvExactListPart));
	lists->counts = (uint32_t *) malloc(2 * n * sizeof(uint32_t));
	if (lists->parts == NULL || lists->counts == NULL)
		return GV_NO_MEMORY;
	for (int32_t list = 0; list < lists->spec.nlists; list++)
		for (uint32_t q = starts[list]; q < starts[list + 1]; q += most)
			lists->parts[lists->nparts++] = {(uint32_t) list, q,
				starts[list + 1] - q < most ? starts[list + 1] - q : most};
	return GV_OK;
}

/* See gv_exactlists.h. */
GvStatus
gv_gpu_exact_lists_begin(GvExactByList *lists, const GvExactQueries *queries,
						 const GvStop *stop)
{
	cudaStream_t stream = lists->asking.stream;
	int32_t		metric = lists->spec.metric;
	double		since = 0.0;

	GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_NEAREST_LISTS, stream, &since));
	GV_TRY(see_centroids(lists, metric));
	GV_TRY(find_nearest(lists, stop));
	/* by inner products long centroids would have all vectors */
	if (metric == GV_SET_IP)
		GV_TRY(see_centroids(lists, GV_SET_L2));
	GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_NEAREST_LISTS, stream, &since));
	GV_TRY(group(lists, queries->d_queries, queries->n, &lists->queries,
				 stop));
	GV_CUDA_TRY(cudaMemcpyAsync(lists->starts, lists->queries.d_starts,
								((size_t) lists->spec.nlists + 1) *
								sizeof(uint32_t), cudaMemcpyDeviceToHost,
								stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	return make_parts(lists, queries);
}

/* See gv_exactlists.h. */
GvStatus
gv_gpu_exact_lists_rows(GvExactByList *lists, GvExactRows *rows,
						const GvStop *stop)
{
	cudaStream_t stream = lists->asking.stream;
	uint32_t	nlists = (uint32_t) lists->spec.nlists;

	GV_TRY(group(lists, rows->d_rows, rows->n, &lists->rows, stop));
	rows->d_order = lists->rows.d_order;
	GV_LAUNCH(offsets_kernel, gv_exact_blocks(nlists, THREADS), THREADS, 0,
			  stream, (const int64_t *) lists->near.d_positions,
			  (const uint32_t *) lists->rows.d_starts, nlists,
			  lists->spec.probes, lists->d_offsets, lists->d_totals);
	GV_CUDA_TRY(cudaMemcpyAsync(lists->totals, lists->d_totals,
								nlists * sizeof(uint32_t),
								cudaMemcpyDeviceToHost, stream));
	return gv_cuda_status(cudaStreamSynchronize(stream));
}
