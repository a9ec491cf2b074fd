/*
 * exactlists.cu
 *		Lists of vectors, lists near lists, and everything in their order.
 *
 * Which list a vector is of, and which are near, are exact searches among the
 * centroids like any other, a piece of the vectors at a time.  A stable radix
 * sort by list keeps vectors of a list in their own order.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cub/device/device_radix_sort.cuh>

#include "common.cuh"
#include "gv_exactlists.h"

#define THREADS			256
#define MOST_PIECE		(1 << 17)	/* vectors asked for at once */
#define MOST_PART		8192	/* queries of a unit */
#define UNIT_BYTES		(INT64_C(256) << 20)	/* of half copies of a unit */
#define CAPACITY		512		/* slots of a query: cuts are from near lists
								 * alone, and let more pass than a chunk does */

static int64_t forced_batch;
static int64_t forced_unit;
static double *watcher;			/* [GV_EXACT_LIST_STEPS] */
static bool watches_each;

/* See gv_exactlists.h. */
extern "C" void
gv_gpu_exact_lists_force(int64_t batch, int64_t unit)
{
	forced_batch = batch;
	forced_unit = unit;
}

/* See gv_exactlists.h. */
int64_t
gv_gpu_exact_forced_batch(void)
{
	return forced_batch;
}

/* See gv_exactlists.h. */
extern "C" void
gv_gpu_exact_lists_watch(double *seconds, bool each)
{
	watcher = seconds;
	watches_each = each;
}

static double
now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

/* See gv_exactlists.h. */
GvStatus
gv_gpu_exact_lists_note(GvExactListStep step, cudaStream_t stream,
						double *since)
{
	double		before = *since;

	if (watcher == NULL)
		return GV_OK;
	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	*since = now();
	if (before > 0.0)
		watcher[step] += *since - before;
	return GV_OK;
}

/* See gv_exactlists.h. */
bool
gv_gpu_exact_lists_each(void)
{
	return watcher != NULL && watches_each;
}

/* The steps of a lane's searches. */
void
gv_gpu_exact_lists_add(GvExactWork *work)
{
	for (int i = 0; i < GV_EXACT_STEPS; i++)
	{
		if (watcher != NULL)
			watcher[GV_EXACT_GATHER + 1 + i] += work->seconds[i];
		work->seconds[i] = 0.0;
	}
}

/* -- memory */

/* Give an array its place in a piece of memory. */
template <typename T>
static void
place(T **array, char *memory, size_t *bytes, int64_t n)
{
	size_t		at = gv_carve(bytes, (size_t) n * sizeof(T));

	*array = memory == NULL ? NULL : (T *) (memory + at);
}

/* Arrays of queries, but for the vectors themselves. */
static void
place_queries(GvExactQueries *queries, int32_t half_dims, char *memory,
			  size_t *bytes)
{
	int64_t		pairs = queries->n * queries->k;

	place(&queries->d_halves, memory, bytes, queries->n * half_dims);
	place(&queries->d_seen, memory, bytes, queries->n);
	place(&queries->d_distances, memory, bytes, pairs);
	place(&queries->d_positions, memory, bytes, pairs);
}

static int64_t
most_vectors(const GvExactByList *lists)
{
	return lists->spec.nqueries > lists->room ? lists->spec.nqueries :
		lists->room;
}

/* All arrays; returns their bytes.  Without memory it only counts. */
static size_t
place_all(GvExactByList *lists, char *memory)
{
	const GvSetSpec *spec = &lists->spec;
	int32_t		half_dims = lists->space.half_dims;
	int64_t		nlists = spec->nlists;
	int64_t		slots = gv_gpu_exact_room(nlists);
	int64_t		most = most_vectors(lists);
	size_t		bytes = 0;

	place(&lists->space.d_mean, memory, &bytes, spec->dims);
	place(&lists->space.d_frame, memory, &bytes, 1);
	place(&lists->d_centroids, memory, &bytes, nlists * spec->dims);
	place(&lists->centroids.d_halves, memory, &bytes, slots * half_dims);
	place(&lists->centroids.d_bias, memory, &bytes, slots);
	place(&lists->centroids.d_slack, memory, &bytes, slots);
	place_queries(&lists->asked, half_dims, memory, &bytes);
	place_queries(&lists->near, half_dims, memory, &bytes);
	place(&lists->d_offsets, memory, &bytes, nlists * (spec->probes + 1));
	place(&lists->d_totals, memory, &bytes, nlists);
	place(&lists->queries.d_order, memory, &bytes, spec->nqueries);
	place(&lists->queries.d_starts, memory, &bytes, nlists + 1);
	place(&lists->rows.d_order, memory, &bytes, lists->room);
	place(&lists->rows.d_starts, memory, &bytes, nlists + 1);
	place(&lists->d_keys, memory, &bytes, most);
	place(&lists->d_sorted, memory, &bytes, most);
	place(&lists->d_numbers, memory, &bytes, most);
	place((char **) &lists->d_sort, memory, &bytes,
		  (int64_t) lists->sort_bytes);
	place(&lists->others.d_counts, memory, &bytes, 2 * spec->nqueries);
	place(&lists->others.d_matrix, memory, &bytes, spec->nqueries);
	place(&lists->others.d_slow, memory, &bytes, spec->nqueries);
	for (int i = 0; i < GV_EXACT_LANES; i++)
	{
		GvExactLane *lane = &lists->lanes[i];

		place(&lane->unit.d_halves, memory, &bytes,
			  lists->unit_room * half_dims);
		place(&lane->unit.d_bias, memory, &bytes, lists->unit_room);
		place(&lane->unit.d_slack, memory, &bytes, lists->unit_room);
		place(&lane->d_order, memory, &bytes, lists->unit_room);
	}
	return bytes;
}

/* The shape of everything, without memory. */
static void
shape(GvExactByList *lists, const GvSetSpec *spec, int64_t room)
{
	int32_t		half_dims = (spec->dims + 15) / 16 * 16;
	int64_t		unit = UNIT_BYTES / (2 * (int64_t) half_dims);

	if (forced_unit > 0)
		unit = forced_unit;
	lists->spec = *spec;
	lists->room = room;
	lists->unit_room = gv_gpu_exact_room(unit < room ? unit : room);
	lists->space.metric = spec->metric;
	lists->space.dims = spec->dims;
	lists->space.half_dims = half_dims;
	lists->centroids.n = spec->nlists;
	lists->centroids.stride = gv_gpu_exact_stride(spec->nlists);
	lists->piece = most_vectors(lists);
	if (lists->piece > MOST_PIECE)
		lists->piece = MOST_PIECE;
	lists->asked.n = lists->piece;
	lists->asked.k = 1;
	lists->near.n = spec->nlists;
	lists->near.k = spec->probes;
}

/* What searches are for: near lists, lists of vectors, units. */
static GvExactAmount
near_amount(const GvExactByList *lists)
{
	return {lists->near.n, lists->near.k, lists->near.n, 0};
}

static GvExactAmount
asked_amount(const GvExactByList *lists)
{
	return {lists->piece, 1, lists->spec.nlists, 0};
}

static GvExactAmount
unit_amount(const GvExactByList *lists, int64_t kept)
{
	int64_t		n = lists->spec.nqueries;

	return {n < MOST_PART ? n : MOST_PART, kept, lists->unit_room, CAPACITY};
}

/* See gv_exactlists.h; a sort has little memory of its own. */
size_t
gv_gpu_exact_lists_bytes(const GvSetSpec *spec, int64_t kept, int64_t room)
{
	GvExactByList lists = {};
	GvExactAmount near;
	GvExactAmount asked;
	GvExactAmount unit;

	shape(&lists, spec, room);
	near = near_amount(&lists);
	asked = asked_amount(&lists);
	unit = unit_amount(&lists, kept);
	lists.sort_bytes = (size_t) (most_vectors(&lists) / 64 + (1 << 20));
	return place_all(&lists, NULL) +
		gv_gpu_exact_work_bytes(&lists.space, &near) +
		gv_gpu_exact_work_bytes(&lists.space, &asked) +
		GV_EXACT_LANES * gv_gpu_exact_work_bytes(&lists.space, &unit);
}

/* Bytes that the largest sort wants. */
static GvStatus
find_sort_bytes(GvExactByList *lists)
{
	int64_t		n = most_vectors(lists);
	size_t		keys = 0;

	GV_CUDA_TRY(cub::DeviceRadixSort::SortPairs(NULL, lists->sort_bytes,
												(const uint32_t *) NULL,
												(uint32_t *) NULL,
												(const uint32_t *) NULL,
												(uint32_t *) NULL, n));
	GV_CUDA_TRY(cub::DeviceRadixSort::SortKeys(NULL, keys,
											   (const uint32_t *) NULL,
											   (uint32_t *) NULL, n));
	if (keys > lists->sort_bytes)
		lists->sort_bytes = keys;
	return GV_OK;
}

static GvStatus
make(GvExactByList *lists, int64_t kept)
{
	int64_t		nlists = lists->spec.nlists;
	GvExactAmount asked = asked_amount(lists);
	GvExactAmount unit = unit_amount(lists, kept);

	GV_TRY(find_sort_bytes(lists));
	GV_CUDA_TRY(cudaMalloc((void **) &lists->d_memory,
						   place_all(lists, NULL)));
	(void) place_all(lists, lists->d_memory);
	lists->centroids.d_rows = lists->d_centroids;
	lists->near.d_queries = lists->d_centroids;
	lists->starts = (uint32_t *) malloc((nlists + 1) * sizeof(uint32_t));
	lists->totals = (uint32_t *) malloc(nlists * sizeof(uint32_t));
	if (lists->starts == NULL || lists->totals == NULL)
		return GV_NO_MEMORY;
	GV_TRY(gv_gpu_exact_work(&lists->asking, lists->spec.device, &lists->space,
							 &asked));
	for (int i = 0; i < GV_EXACT_LANES; i++)
	{
		GV_TRY(gv_gpu_exact_work(&lists->lanes[i].work, lists->spec.device,
								 &lists->space, &unit));
		lists->lanes[i].unit.d_order = lists->lanes[i].d_order;
	}
	return GV_OK;
}

/* See gv_exactlists.h. */
GvStatus
gv_gpu_exact_lists_create(const GvSetSpec *spec, int64_t kept, int64_t room,
						  GvExactByList **made)
{
	GvExactByList *lists = (GvExactByList *) calloc(1, sizeof(GvExactByList));
	GvStatus	status;

	if (lists == NULL)
		return GV_NO_MEMORY;
	shape(lists, spec, room);
	status = make(lists, kept);
	if (status != GV_OK)
	{
		gv_gpu_exact_lists_drop(lists);
		return status;
	}
	*made = lists;
	return GV_OK;
}

void
gv_gpu_exact_lists_drop(GvExactByList *lists)
{
	if (lists == NULL)
		return;
	gv_gpu_exact_work_drop(&lists->asking);
	for (int i = 0; i < GV_EXACT_LANES; i++)
		gv_gpu_exact_work_drop(&lists->lanes[i].work);
	(void) cudaFree(lists->d_memory);
	free(lists->parts);
	free(lists->starts);
	free(lists->totals);
	free(lists->counts);
	free(lists);
}

/* -- lists */

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

/* Where each list begins among n sorted keys: the first not below it. */
static __global__ void __launch_bounds__(THREADS)
starts_kernel(const uint32_t *d_sorted, uint32_t n, uint32_t nlists,
			  uint32_t *d_starts)
{
	int64_t		list = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	uint32_t	low = 0;
	uint32_t	high = n;

	if (list > nlists)
		return;
	while (low < high)
	{
		uint32_t	middle = low + (high - low) / 2;

		if ((int64_t) d_sorted[middle] < list)
			low = middle + 1;
		else
			high = middle;
	}
	d_starts[list] = low;
}

/* Rows in the lists near each list, one after the other; a thread a list. */
static __global__ void __launch_bounds__(THREADS)
offsets_kernel(const int64_t *d_near, const uint32_t *d_starts,
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
		int64_t		other = d_near[list * probes + i];

		offsets[i] = sum;
		sum += d_starts[other + 1] - d_starts[other];
	}
	offsets[probes] = sum;
	d_totals[list] = sum;
}

static int
bits_of(uint32_t n)
{
	int			bits = 1;

	while (bits < 32 && n >> bits != 0)
		bits++;
	return bits;
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

/* What is asked of centroids for some queries, whose answers are cleared. */
static GvStatus
ask(const GvExactByList *lists, GvExactWork *work,
	const GvExactQueries *queries, const GvStop *stop)
{
	GV_TRY(gv_gpu_exact_clear(queries, work->stream));
	GV_TRY(gv_gpu_exact_queries(&lists->space, queries, work->stream));
	return gv_gpu_exact_search(work, &lists->space, &lists->centroids, queries,
							   stop);
}

/* near.d_positions. */
static GvStatus
find_near(GvExactByList *lists, const GvStop *stop)
{
	GvExactAmount amount = near_amount(lists);
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
	uint32_t	nlists = (uint32_t) lists->spec.nlists;
	size_t		bytes = lists->sort_bytes;
	double		since = 0.0;

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
	GV_CUDA_TRY(cub::DeviceRadixSort::SortPairs(lists->d_sort, bytes,
												(const uint32_t *) lists->d_keys,
												lists->d_sorted,
												(const uint32_t *) lists->d_numbers,
												groups->d_order, n, 0,
												bits_of(nlists), stream));
	GV_LAUNCH(starts_kernel, gv_exact_blocks((int64_t) nlists + 1, THREADS),
			  THREADS, 0, stream, (const uint32_t *) lists->d_sorted,
			  (uint32_t) n, nlists, groups->d_starts);
	GV_CUDA_TRY(cudaGetLastError());
	return gv_gpu_exact_lists_note(GV_EXACT_GROUP, stream, &since);
}

/* The queries' parts, from where their lists begin. */
static GvStatus
make_parts(GvExactByList *lists, const GvExactQueries *queries)
{
	uint32_t	most = (uint32_t)
		gv_gpu_exact_part_most(&lists->lanes[0].work, queries);
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

	GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_NEAR_LISTS, stream, &since));
	GV_TRY(see_centroids(lists, metric));
	GV_TRY(find_near(lists, stop));
	/* by inner products long centroids would have all vectors */
	if (metric == GV_SET_IP)
		GV_TRY(see_centroids(lists, GV_SET_L2));
	GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_NEAR_LISTS, stream, &since));
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
