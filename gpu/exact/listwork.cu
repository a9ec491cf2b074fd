/*
 * listwork.cu
 *		Memory for exact search among near lists, and where its time goes.
 */
#include <stdlib.h>

#include <cub/device/device_radix_sort.cuh>

#include "gpu/common/gv_group.h"
#include "gpu/exact/gv_exactlists.h"

#define MOST_PIECE		(1 << 17)	/* vectors asked for at once */
#define MOST_PART		8192	/* queries of a unit */
#define UNIT_BYTES		(INT64_C(256) << 20)	/* of half copies of a unit */
#define CAPACITY		512		/* slots of a query: cuts are from near lists
								 * alone, and let more pass than a chunk
								 * does */

static GV_TUNABLE int64_t forced_unit = 0;

#ifdef GV_TEST_BUILD

static int64_t forced_batch;
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

#endif

/* See gv_exactlists.h. */
GvStatus
gv_gpu_exact_lists_note(GvExactListStep step, cudaStream_t stream,
						double *since)
{
#ifdef GV_TEST_BUILD
	double		before = *since;

	if (watcher == NULL)
		return GV_OK;
	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	*since = gv_seconds();
	if (before > 0.0)
		watcher[step] += *since - before;
#endif
	return GV_OK;
}

/* See gv_exactlists.h. */
void
gv_gpu_exact_lists_measure(GvExactWork *work)
{
	GV_TEST_ONLY(work->measures = watcher != NULL && watches_each;)
}

/* See gv_exactlists.h. */
void
gv_gpu_exact_lists_add(GvExactWork *work, int first)
{
#ifdef GV_TEST_BUILD
	for (int i = 0; i < GV_EXACT_STEPS; i++)
	{
		if (watcher != NULL)
			watcher[first + i] += work->seconds[i];
		work->seconds[i] = 0.0;
	}
#endif
}

/* -- memory */

/* Arrays of queries, but for the vectors themselves. */
static void
place_queries(GvExactQueries *queries, int32_t half_dims, char *memory,
			  size_t *bytes)
{
	int64_t		pairs = queries->n * queries->k;

	gv_place(&queries->d_half_queries, memory, bytes, queries->n * half_dims);
	gv_place(&queries->d_seen, memory, bytes, queries->n);
	gv_place(&queries->d_distances, memory, bytes, pairs);
	gv_place(&queries->d_positions, memory, bytes, pairs);
}

static int64_t
most_vectors(const GvExactByList *lists)
{
	return lists->spec.nqueries > lists->capacity ? lists->spec.nqueries :
		lists->capacity;
}

/* All arrays; returns their bytes.  Without memory it only counts. */
static size_t
place_all(GvExactByList *lists, char *memory)
{
	const GvSetSpec *spec = &lists->spec;
	int32_t		half_dims = lists->space.half_dims;
	int64_t		nlists = spec->nlists;
	int64_t		slots = gv_gpu_exact_padded(nlists);
	int64_t		most = most_vectors(lists);
	size_t		bytes = 0;

	gv_place(&lists->space.d_mean, memory, &bytes, spec->dims);
	gv_place(&lists->space.d_frame, memory, &bytes, 1);
	gv_place(&lists->d_centroids, memory, &bytes, nlists * spec->dims);
	gv_place(&lists->centroids.d_half_rows, memory, &bytes, slots * half_dims);
	gv_place(&lists->centroids.d_bias, memory, &bytes, slots);
	gv_place(&lists->centroids.d_slack, memory, &bytes, slots);
	place_queries(&lists->asked, half_dims, memory, &bytes);
	place_queries(&lists->near, half_dims, memory, &bytes);
	gv_place(&lists->d_offsets, memory, &bytes, nlists * (spec->probes + 1));
	gv_place(&lists->d_totals, memory, &bytes, nlists);
	gv_place(&lists->queries.d_order, memory, &bytes, spec->nqueries);
	gv_place(&lists->queries.d_starts, memory, &bytes, nlists + 1);
	gv_place(&lists->rows.d_order, memory, &bytes, lists->capacity);
	gv_place(&lists->rows.d_starts, memory, &bytes, nlists + 1);
	gv_place(&lists->d_keys, memory, &bytes, most);
	gv_place(&lists->d_sorted, memory, &bytes, most);
	gv_place(&lists->d_numbers, memory, &bytes, most);
	gv_place((char **) &lists->d_sort, memory, &bytes,
			 (int64_t) lists->sort_bytes);
	gv_place(&lists->others.d_counts, memory, &bytes, 2 * spec->nqueries);
	gv_place(&lists->others.d_matrix, memory, &bytes, spec->nqueries);
	gv_place(&lists->others.d_slow, memory, &bytes, spec->nqueries);
	for (int i = 0; i < GV_EXACT_STREAMS; i++)
	{
		GvExactStream *stream = &lists->streams[i];

		gv_place(&stream->unit.d_half_rows, memory, &bytes,
				 lists->unit_capacity * half_dims);
		gv_place(&stream->unit.d_bias, memory, &bytes, lists->unit_capacity);
		gv_place(&stream->unit.d_slack, memory, &bytes, lists->unit_capacity);
		gv_place(&stream->d_order, memory, &bytes, lists->unit_capacity);
	}
	return bytes;
}

/* The shape of everything, without memory. */
static void
shape(GvExactByList *lists, const GvSetSpec *spec, int64_t capacity)
{
	int32_t		half_dims = (spec->dims + 15) / 16 * 16;
	int64_t		unit = UNIT_BYTES / (2 * (int64_t) half_dims);

	if (forced_unit > 0)
		unit = forced_unit;
	lists->spec = *spec;
	lists->capacity = capacity;
	lists->unit_capacity =
		gv_gpu_exact_padded(unit < capacity ? unit : capacity);
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

/* Amounts of searches: for near lists, for lists of vectors, in units. */
GvExactAmount
gv_gpu_exact_nearest_amount(const GvExactByList *lists)
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

	return {n < MOST_PART ? n : MOST_PART, kept, lists->unit_capacity,
		CAPACITY};
}

/* See gv_exactlists.h. */
size_t
gv_gpu_exact_lists_bytes(const GvSetSpec *spec, int64_t kept, int64_t capacity)
{
	GvExactByList lists = {};
	GvExactAmount near;
	GvExactAmount asked;
	GvExactAmount unit;

	shape(&lists, spec, capacity);
	near = gv_gpu_exact_nearest_amount(&lists);
	asked = asked_amount(&lists);
	unit = unit_amount(&lists, kept);
	lists.sort_bytes = (size_t) gv_sort_most_bytes(most_vectors(&lists), 8);
	return place_all(&lists, NULL) +
		gv_gpu_exact_work_bytes(spec->device, &lists.space, &near) +
		gv_gpu_exact_work_bytes(spec->device, &lists.space, &asked) +
		GV_EXACT_STREAMS * gv_gpu_exact_work_bytes(spec->device, &lists.space,
												 &unit);
}

/* Bytes that the largest sort wants. */
static GvStatus
find_sort_bytes(GvExactByList *lists)
{
	int64_t		n = most_vectors(lists);
	size_t		keys = 0;

	GV_TRY(gv_gpu_group_bytes(n, &lists->sort_bytes));
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
	for (int i = 0; i < GV_EXACT_STREAMS; i++)
	{
		GV_TRY(gv_gpu_exact_work(&lists->streams[i].work, lists->spec.device,
								 &lists->space, &unit));
		lists->streams[i].unit.d_order = lists->streams[i].d_order;
	}
	return GV_OK;
}

/* See gv_exactlists.h. */
GvStatus
gv_gpu_exact_lists_create(const GvSetSpec *spec, int64_t kept,
						  int64_t capacity,
						  GvExactByList **made)
{
	GvExactByList *lists = (GvExactByList *) calloc(1, sizeof(GvExactByList));
	GvStatus	status;

	if (lists == NULL)
		return GV_NO_MEMORY;
	shape(lists, spec, capacity);
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
	for (int i = 0; i < GV_EXACT_STREAMS; i++)
		gv_gpu_exact_work_drop(&lists->streams[i].work);
	(void) cudaFree(lists->d_memory);
	free(lists->parts);
	free(lists->starts);
	free(lists->totals);
	free(lists->counts);
	free(lists);
}
