/*
 * units.cu
 *		The queries of a list and the rows of its near lists, list by list.
 *
 * A unit is some seven launches of 5 to 50 us, and the host does not look at
 * what came of it until all are done: queries that need another way are
 * counted by parts, and their units are made once more.  Lanes, streams with
 * memory of their own, take units in turn, so that one's last blocks run
 * beside the next one's first.
 *
 * The rows of its own list and of the next are a query's nearest, mostly.  So
 * cuts are taken from the first slots of a unit, and all others are filtered
 * with these at once.
 */
#include <cub/device/device_radix_sort.cuh>

#include "gpu/exact/filter/exact.cuh"
#include "gpu/exact/gv_exactlists.h"

#define THREADS			256
#define TILE			64		/* slots of a block */
#define BETWEEN			(64 * GV_EXACT_STREAMS)	/* units from one question
												 * whether to stop to the
												 * next */
#define NO_SLOT			UINT32_MAX

/* The arguments that all steps of a batch share. */
struct Units
{
	GvExactByList *lists;
	const GvExactSpace *space;
	const GvExactRows *rows;	/* of the batch */
	const GvExactQueries *queries;
	const GvStop *stop;
};

/* The rows of lists near a list, from the first-th of them on. */
struct Source
{
	GvExactRows rows;
	const int64_t *d_nearest;		/* [probes] */
	const uint32_t *d_offsets;	/* [probes + 1] */
	const uint32_t *d_starts;	/* [nlists + 1] */
	int32_t		probes;
	uint32_t	first;
};

/* The batch's slot of a unit's row. */
static __device__ __forceinline__ uint32_t
slot_of(const Source &source, uint32_t i)
{
	int32_t		low = 0;
	int32_t		high = source.probes - 1;
	uint32_t	at = source.first + i;

	/* the first list that ends behind it */
	while (low < high)
	{
		int32_t		middle = (low + high) / 2;

		if (source.d_offsets[middle + 1] <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return source.d_starts[source.d_nearest[low]] + at - source.d_offsets[low];
}

/*
 * A block TILE slots of a unit; those up to GV_EXACT_ALIGN have zeros and a
 * bias that reaches nothing.  pieces: of 16 bytes of a half copy.
 */
static __global__ void __launch_bounds__(THREADS)
unit_kernel(Source source, int pieces, GvExactRows unit, uint32_t *d_order)
{
	__shared__ uint32_t from[TILE];
	uint32_t	first = blockIdx.x * TILE;
	uint32_t	n = (uint32_t) unit.n;

	if (threadIdx.x < TILE)
	{
		uint32_t	i = first + threadIdx.x;
		uint32_t	slot = i < n ? slot_of(source, i) : NO_SLOT;

		from[threadIdx.x] = slot;
		unit.d_bias[i] = i < n ? source.rows.d_bias[slot] :
			__int_as_float(0xFF800000);
		unit.d_slack[i] = i < n ? source.rows.d_slack[slot] : 0.0f;
		d_order[i] = i < n ? source.rows.d_order[slot] : 0;
	}
	__syncthreads();
	for (int p = threadIdx.x; p < TILE * pieces; p += THREADS)
	{
		uint32_t	slot = from[p / pieces];

		((uint4 *) unit.d_half_rows)[(int64_t) first * pieces + p] =
			slot == NO_SLOT ? make_uint4(0, 0, 0, 0) :
			((const uint4 *) source.rows.d_half_rows)
			[(int64_t) slot * pieces + p % pieces];
	}
}

/* The order of a unit's rows alone; a thread a row. */
static __global__ void __launch_bounds__(THREADS)
unit_order_kernel(Source source, uint32_t n, uint32_t *d_order)
{
	uint32_t	i = blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		d_order[i] = source.rows.d_order[slot_of(source, i)];
}

static Source
source_of(const Units *units, uint32_t list, uint32_t first)
{
	const GvExactByList *lists = units->lists;
	int32_t		probes = lists->spec.probes;

	return {*units->rows, lists->near.d_positions + (int64_t) list * probes,
		lists->d_offsets + (int64_t) list * (probes + 1),
		lists->rows.d_starts, probes, first};
}

/* n rows of the lists near a list come to lie side by side in a stream. */
static GvStatus
gather(const Units *units, GvExactStream *stream, uint32_t list,
	   uint32_t first,
	   uint32_t n)
{
	GvExactWork *work = &stream->work;
	double		since = 0.0;

	if (work->measures)
		GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_GATHER, work->stream, &since));
	stream->unit.d_rows = units->rows->d_rows;
	stream->unit.n = n;
	GV_LAUNCH(unit_kernel, (int) (gv_gpu_exact_padded(n) / TILE), THREADS, 0,
			  work->stream, source_of(units, list, first),
			  units->space->half_dims / 8, stream->unit, stream->d_order);
	GV_CUDA_TRY(cudaGetLastError());
	if (work->measures)
		GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_GATHER, work->stream, &since));
	return GV_OK;
}

/* Where the queries of a part go that need another way. */
static GvExactLists
others_of(const GvExactByList *lists, int64_t part)
{
	uint32_t	first = lists->parts[part].first;

	return {lists->others.d_counts + 2 * part, lists->others.d_matrix + first,
		lists->others.d_slow + first};
}

/* Search the rows of the stream for a part's queries that need another way. */
static GvStatus
finish(const Units *units, GvExactStream *stream, int64_t part,
	   const uint32_t counts[2])
{
	GvExactLists others = others_of(units->lists, part);

	if (counts[0] == 0 && counts[1] == 0)
		return GV_OK;
	return gv_gpu_exact_others(&stream->work, units->space, &stream->unit,
							   units->queries, &others, counts, units->stop);
}

/*
 * The same before the next rows come, where the stream cannot have all rows of
 * the part at once.
 */
static GvStatus
finish_now(const Units *units, GvExactStream *stream, int64_t part)
{
	uint32_t   *d_counts = units->lists->others.d_counts + 2 * part;
	uint32_t	counts[2];

	GV_CUDA_TRY(cudaMemcpyAsync(counts, d_counts, sizeof(counts),
								cudaMemcpyDeviceToHost, stream->work.stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream->work.stream));
	GV_TRY(finish(units, stream, part, counts));
	GV_CUDA_TRY(cudaMemsetAsync(d_counts, 0, sizeof(counts),
								stream->work.stream));
	return units->stop != NULL && units->stop->requested(units->stop->arg) ?
		GV_CANCELED : GV_OK;
}

/* A part's queries, and all rows near them. */
static GvStatus
search_part(const Units *units, int64_t number)
{
	GvExactByList *lists = units->lists;
	const GvExactListPart *of = &lists->parts[number];
	GvExactStream *stream = &lists->streams[number % GV_EXACT_STREAMS];
	uint32_t	total = lists->totals[of->list];
	GvExactPart part = {lists->queries.d_order + of->first, 0,
	(int32_t) of->n};
	GvExactLists others = others_of(lists, number);

	for (uint32_t first = 0; first < total;
		 first += (uint32_t) lists->unit_capacity)
	{
		uint32_t	n = total - first < lists->unit_capacity ? total - first :
			(uint32_t) lists->unit_capacity;

		GV_TRY(gather(units, stream, of->list, first, n));
		GV_TRY(gv_gpu_exact_part(&stream->work, units->space, &stream->unit,
								 units->queries, &part, &others));
		if (total > lists->unit_capacity)
			GV_TRY(finish_now(units, stream, number));
	}
	return GV_OK;
}

static GvStatus
wait_for_streams(const Units *units)
{
	for (int i = 0; i < GV_EXACT_STREAMS; i++)
		GV_CUDA_TRY(cudaStreamSynchronize(units->lists->streams[i].work.stream));
	return GV_OK;
}

/* Parts of which some queries need another way. */
static GvStatus
search_others(const Units *units)
{
	GvExactByList *lists = units->lists;
	GvExactStream *stream = &lists->streams[0];

	GV_CUDA_TRY(cudaMemcpyAsync(lists->counts, lists->others.d_counts,
								2 * lists->nparts * sizeof(uint32_t),
								cudaMemcpyDeviceToHost, stream->work.stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream->work.stream));
	for (int64_t i = 0; i < lists->nparts; i++)
	{
		const uint32_t *counts = lists->counts + 2 * i;
		uint32_t	list = lists->parts[i].list;

		if (counts[0] == 0 && counts[1] == 0)
			continue;
		GV_TRY(gather(units, stream, list, 0, lists->totals[list]));
		GV_TRY(finish(units, stream, i, counts));
	}
	return gv_cuda_status(cudaStreamSynchronize(stream->work.stream));
}

/*
 * Queries whose distances are all NaN: of these the rows that come first are
 * the nearest, of those near the first list, which is theirs.
 */
static GvStatus
search_voids(const Units *units)
{
	GvExactByList *lists = units->lists;
	GvExactWork *work = &lists->streams[0].work;
	GvExactLists others = lists->others;
	GvExactRows rows = *units->rows;
	size_t		bytes = lists->sort_bytes;
	uint32_t	total = lists->totals[0];
	uint32_t	counts[2];

	if ((units->space->metric != GV_SET_COSINE &&
		 units->space->metric != GV_SET_PEARSON) || total == 0)
		return GV_OK;
	GV_CUDA_TRY(cudaMemsetAsync(others.d_counts, 0, sizeof(counts),
								work->stream));
	GV_TRY(gv_gpu_exact_voids(units->queries, &others, work->stream));
	GV_CUDA_TRY(cudaMemcpyAsync(counts, others.d_counts, sizeof(counts),
								cudaMemcpyDeviceToHost, work->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(work->stream));
	if (counts[1] == 0)
		return GV_OK;
	GV_LAUNCH(unit_order_kernel, gv_exact_blocks(total, THREADS), THREADS, 0,
			  work->stream, source_of(units, 0, 0), total, lists->d_keys);
	GV_CUDA_TRY(cub::DeviceRadixSort::SortKeys(lists->d_sort, bytes,
											   (const uint32_t *) lists->d_keys,
											   lists->d_sorted,
											   (int64_t) total, 0, 32,
											   work->stream));
	rows.d_order = lists->d_sorted;
	/* one may be its own */
	rows.n = total < units->queries->k + 1 ? total : units->queries->k + 1;
	return gv_gpu_exact_others(work, units->space, &rows, units->queries,
							   &others, counts, units->stop);
}

/*
 * Prepare the streams, search the void queries, and clear the counts of
 * queries that need another way.
 */
static GvStatus
begin(const Units *units, int64_t seen)
{
	GvExactByList *lists = units->lists;
	cudaStream_t stream = lists->streams[0].work.stream;

	for (int i = 0; i < GV_EXACT_STREAMS; i++)
	{
		lists->streams[i].work.seen = seen;
		gv_gpu_exact_lists_measure(&lists->streams[i].work);
	}
	GV_TRY(search_voids(units));
	GV_CUDA_TRY(cudaMemsetAsync(lists->others.d_counts, 0,
								2 * lists->nparts * sizeof(uint32_t), stream));
	return gv_cuda_status(cudaStreamSynchronize(stream));
}

/* See gv_exactlists.h. */
GvStatus
gv_gpu_exact_units(GvExactByList *lists, const GvExactSpace *space,
				   const GvExactRows *rows, const GvExactQueries *queries,
				   int64_t seen, const GvStop *stop)
{
	Units		units = {lists, space, rows, queries, stop};
	cudaStream_t stream = lists->asking.stream;
	double		since = 0.0;

	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_UNITS, stream, &since));
	GV_TRY(begin(&units, seen));
	for (int64_t i = 0; i < lists->nparts; i++)
	{
		GV_TRY(search_part(&units, i));
		if (stop == NULL || i % BETWEEN != 0)
			continue;
		GV_TRY(wait_for_streams(&units));
		if (stop->requested(stop->arg))
			return GV_CANCELED;
	}
	GV_TRY(wait_for_streams(&units));
	GV_TRY(gv_gpu_exact_lists_note(GV_EXACT_UNITS, stream, &since));
	GV_TRY(search_others(&units));
	for (int i = 0; i < GV_EXACT_STREAMS; i++)
		gv_gpu_exact_lists_add(&lists->streams[i].work, GV_EXACT_UNIT_STEPS);
	return gv_gpu_exact_lists_note(GV_EXACT_OTHERS, stream, &since);
}
