/*
 * nearlists.cu
 *		Exact search that compares a query only with the rows of near lists.
 *
 * Once, before the first batch:
 *	near lists	finds the lists near each list, and the list of each query, by
 *				exact searches among the centroids, for a piece of the queries
 *				at a time
 *	queries		sorts the queries by list; the radix sort is stable, so the
 *				queries of a list keep their order
 *
 * For each batch of rows:
 *	rows		finds the rows' lists and sorts the rows by list in the same
 *				way, and makes half copies in this order
 *	tiles		for each group of queries of one list, copies the half copies
 *				of the rows of its near lists side by side, the nearest list's
 *				first, and searches them
 *
 * A tile takes some seven launches of 5 to 50 us, and the host reads results
 * only when all tiles are done.  Queries that overflow are counted for each
 * group, and the tiles of groups with such queries are made once more.
 * Several streams, each with memory of its own, take tiles in turn, so that
 * the last blocks of one tile run beside the first blocks of the next tile.
 */
#include <algorithm>
#include <stdlib.h>

#include "gpu/exact/exact.cuh"

#define THREADS			256
#define TILE			64		/* slots that a block copies */
#define STREAMS			3		/* tiles in flight at once */
#define BETWEEN			(64 * STREAMS)	/* groups between two checks of
										 * `stop` */
#define NO_SLOT			UINT32_MAX
#define MOST_BATCH_BYTES	(INT64_C(4) << 30)	/* of a batch's rows in fp32;
												 * large, because each list
												 * needs many rows */
#define MOST_BATCH		(INT64_C(1) << 27)	/* rows */
#define MOST_PIECE		(INT64_C(1) << 17)	/* maximum vectors whose lists are
											 * found at once */
#define MOST_GROUP		INT64_C(8192)	/* maximum queries of a tile */
#define TILE_BYTES		(INT64_C(256) << 20)	/* max bytes of a tile's half
												 * copies */
#define CAPACITY		512		/* least capacity of a query for candidates:
								 * thresholds from near lists let more slots
								 * pass than thresholds from a chunk */

/* maximum rows of a batch and of a tile; 0 for the default */
GV_TUNABLE int64_t gv_exact_batch = 0;
GV_TUNABLE int64_t gv_exact_tile = 0;

/* Vectors sorted by list.  The vectors of a list keep their original order. */
struct ByList
{
	uint32_t   *d_order;		/* [n] numbers of vectors */
	uint32_t   *d_starts;		/* [nlists + 1] where each list begins in
								 * d_order */
};

/* Queries of one list, so few that there is memory for their candidates. */
struct QueryGroup
{
	uint32_t	list;
	uint32_t	first;			/* place of the first query in
								 * queries.d_order */
	uint32_t	n;
};

/* A stream, and the memory of its tile. */
struct Stream
{
	GvExactWork work;
	GvExactRows tile;			/* [tile_capacity] */
};

struct GvExactByList
{
	GvSetSpec	spec;
	int64_t		capacity;		/* maximum rows of a batch */
	int64_t		tile_capacity;	/* maximum rows of a tile */
	GvExactAmount near_amount;	/* sizes of the search for near lists */
	GvExactAmount asked_amount; /* sizes of searches for the lists of
								 * vectors */
	GvExactAmount tile_amount;	/* sizes of searches of a tile */
	GvExactNormalization norm;	/* of centroids */
	float	   *d_centroids;	/* [nlists][dims] */
	GvExactRows centroids;
	GvExactWork asking;
	int64_t		piece;			/* maximum vectors whose lists are found at
								 * once */
	GvExactQueries asked;		/* [piece] vectors whose lists are found; k is
								 * 1 */
	GvExactQueries near;		/* [nlists] the centroids as queries; k is
								 * probes, and d_positions are the near
								 * lists */
	uint32_t   *d_offsets;		/* [nlists][probes + 1] running sums of a
								 * batch's rows in the lists near each list */
	uint32_t   *d_totals;		/* [nlists] number of a batch's rows in the
								 * lists near each list */
	ByList		queries;
	ByList		rows;
	uint32_t   *d_keys;			/* [max(nqueries, capacity)], like the next two
								 * arrays */
	uint32_t   *d_sorted;
	uint32_t   *d_numbers;
	void	   *d_sort;
	size_t		sort_bytes;
	GvExactOverflowed overflowed;	/* counts [ngroups][2]; the lists of a
									 * group begin at the group's `first` */
	Stream		streams[STREAMS];
	char	   *d_memory;		/* memory of all arrays above */
	QueryGroup *groups;			/* [ngroups] */
	int64_t		ngroups;
	uint32_t   *starts;			/* [nlists + 1] copy of queries.d_starts */
	uint32_t   *totals;			/* [nlists] copy of d_totals */
	uint32_t   *counts;			/* [ngroups][2] copy of overflowed.d_counts */
};

/* -- memory */

static int64_t
most_vectors(const GvExactByList *lists)
{
	return std::max(lists->spec.nqueries, lists->capacity);
}

/*
 * Places all arrays in memory and returns their size in bytes.  If memory is NULL,
 * only counts the bytes.
 */
static size_t
place_all(GvExactByList *lists, char *memory)
{
	const GvSetSpec *spec = &lists->spec;
	int32_t		half_dims = lists->norm.half_dims;
	int64_t		nlists = spec->nlists;
	int64_t		most = most_vectors(lists);
	size_t		bytes = 0;

	gv_place(&lists->norm.d_mean, memory, &bytes, spec->dims);
	gv_place(&lists->norm.d_scale, memory, &bytes, 1);
	gv_place(&lists->d_centroids, memory, &bytes, nlists * spec->dims);
	gv_exact_place_rows(&lists->centroids, gv_exact_padded(nlists), half_dims,
						memory, &bytes);
	gv_exact_place_queries(&lists->asked, half_dims, memory, &bytes);
	gv_exact_place_queries(&lists->near, half_dims, memory, &bytes);
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
	gv_place(&lists->overflowed.d_counts, memory, &bytes, 2 * spec->nqueries);
	gv_place(&lists->overflowed.d_full_scores, memory, &bytes, spec->nqueries);
	gv_place(&lists->overflowed.d_brute_force, memory, &bytes, spec->nqueries);
	for (int i = 0; i < STREAMS; i++)
	{
		GvExactRows *tile = &lists->streams[i].tile;

		gv_exact_place_rows(tile, lists->tile_capacity, half_dims, memory,
							&bytes);
		gv_place(&tile->d_order, memory, &bytes, lists->tile_capacity);
	}
	return bytes;
}

/* Sets all sizes.  Allocates no memory. */
static void
shape(GvExactByList *lists, const GvSetSpec *spec, int64_t kept,
	  int64_t capacity)
{
	int32_t		half_dims = (spec->dims + 15) / 16 * 16;
	int64_t		tile = gv_exact_tile > 0 ? gv_exact_tile :
		TILE_BYTES / (2 * (int64_t) half_dims);

	lists->spec = *spec;
	lists->capacity = capacity;
	lists->tile_capacity = gv_exact_padded(std::min(tile, capacity));
	lists->norm.metric = spec->metric;
	lists->norm.dims = spec->dims;
	lists->norm.half_dims = half_dims;
	lists->centroids.n = spec->nlists;
	lists->centroids.stride = gv_gpu_exact_stride(spec->nlists);
	lists->piece = std::min(most_vectors(lists), MOST_PIECE);
	lists->asked.n = lists->piece;
	lists->asked.k = 1;
	lists->near.n = spec->nlists;
	lists->near.k = spec->probes;
	lists->near_amount = {spec->nlists, spec->probes, spec->nlists, 0};
	lists->asked_amount = {lists->piece, 1, spec->nlists, 0};
	lists->tile_amount = {std::min(spec->nqueries, MOST_GROUP), kept,
		lists->tile_capacity, CAPACITY};
}

int64_t
gv_gpu_exact_lists_batch(const GvSetSpec *spec)
{
	int64_t		most = spec->own ? GV_SET_OWN_BYTES : MOST_BATCH_BYTES;

	return std::min(most / (4 * (int64_t) spec->dims),
					gv_exact_batch > 0 ? gv_exact_batch : MOST_BATCH);
}

size_t
gv_gpu_exact_lists_bytes(const GvSetSpec *spec, int64_t kept, int64_t capacity)
{
	GvExactByList lists = {};

	shape(&lists, spec, kept, capacity);
	lists.sort_bytes = (size_t) gv_sort_most_bytes(most_vectors(&lists), 8);
	return place_all(&lists, NULL) +
		gv_gpu_exact_work_bytes(spec->device, &lists.norm,
								&lists.near_amount) +
		gv_gpu_exact_work_bytes(spec->device, &lists.norm,
								&lists.asked_amount) +
		STREAMS * gv_gpu_exact_work_bytes(spec->device, &lists.norm,
										  &lists.tile_amount);
}

static GvStatus
make(GvExactByList *lists)
{
	int64_t		nlists = lists->spec.nlists;

	GV_TRY(gv_gpu_group_bytes(most_vectors(lists), &lists->sort_bytes));
	GV_CUDA_TRY(gv_device_alloc(&lists->d_memory, place_all(lists, NULL)));
	(void) place_all(lists, lists->d_memory);
	lists->centroids.d_rows = lists->d_centroids;
	lists->near.d_queries = lists->d_centroids;
	lists->starts = (uint32_t *) malloc((nlists + 1) * sizeof(uint32_t));
	lists->totals = (uint32_t *) malloc(nlists * sizeof(uint32_t));
	if (lists->starts == NULL || lists->totals == NULL)
		return GV_NO_MEMORY;
	GV_TRY(gv_gpu_exact_work(&lists->asking, lists->spec.device, &lists->norm,
							 &lists->asked_amount));
	for (int i = 0; i < STREAMS; i++)
		GV_TRY(gv_gpu_exact_work(&lists->streams[i].work, lists->spec.device,
								 &lists->norm, &lists->tile_amount));
	return GV_OK;
}

GvStatus
gv_gpu_exact_lists_create(const GvSetSpec *spec, int64_t kept,
						  int64_t capacity, GvExactByList **made,
						  float **d_centroids, cudaStream_t *stream)
{
	GV_TRY(gv_make(made, [=] (GvExactByList *lists)
	{
		shape(lists, spec, kept, capacity);
		return make(lists);
	}, gv_gpu_exact_lists_drop));
	*d_centroids = (*made)->d_centroids;
	*stream = (*made)->asking.stream;
	return GV_OK;
}

void
gv_gpu_exact_lists_drop(GvExactByList *lists)
{
	if (lists == NULL)
		return;
	gv_gpu_exact_work_drop(&lists->asking);
	for (int i = 0; i < STREAMS; i++)
		gv_gpu_exact_work_drop(&lists->streams[i].work);
	(void) cudaFree(lists->d_memory);
	free(lists->groups);
	free(lists->starts);
	free(lists->totals);
	free(lists->counts);
	free(lists);
}

/* -- lists */

/*
 * Stores the lists of a piece of vectors as sort keys, and the numbers of the
 * vectors as values.
 */
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

/*
 * Computes running sums of the rows in the lists near each list, a thread for
 * each list.
 */
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

/* Computes the normalization and the half copies of centroids for a metric. */
static GvStatus
see_centroids(GvExactByList *lists, int32_t metric)
{
	cudaStream_t stream = lists->asking.stream;

	lists->norm.metric = metric;
	GV_TRY(gv_gpu_exact_normalization(&lists->norm, lists->d_centroids,
									  lists->spec.nlists, stream));
	return gv_gpu_exact_rows(&lists->norm, &lists->centroids, stream);
}

/* Finds the lists near each list and stores them in near.d_positions. */
static GvStatus
find_nearest(GvExactByList *lists, const GvStop *stop)
{
	GvExactWork work = {};
	GvExactSearch search = {&work, &lists->norm, &lists->centroids,
		&lists->near, stop};
	GvStatus	status;

	GV_CUDA_TRY(cudaStreamSynchronize(lists->asking.stream));
	status = gv_gpu_exact_work(&work, lists->spec.device, &lists->norm,
							   &lists->near_amount);
	if (status == GV_OK)
		status = gv_gpu_exact_search(&search);
	if (status == GV_OK)
		status = gv_cuda_status(cudaStreamSynchronize(work.stream));
	gv_gpu_exact_work_drop(&work);
	return status;
}

/* Finds the lists of vectors [n][dims], and groups the vectors by list. */
static GvStatus
group(GvExactByList *lists, const float *d_vectors, int64_t n,
	  const ByList *groups, const GvStop *stop)
{
	cudaStream_t stream = lists->asking.stream;
	GvGroup		group = {n, (uint32_t) lists->spec.nlists, lists->d_keys,
		lists->d_numbers, lists->d_sorted, groups->d_order, groups->d_starts,
		lists->d_sort, lists->sort_bytes};

	for (int64_t done = 0; done < n; done += lists->piece)
	{
		GvExactQueries asked = lists->asked;
		GvExactSearch search = {&lists->asking, &lists->norm,
			&lists->centroids, &asked, stop};

		asked.n = std::min(asked.n, n - done);
		asked.d_queries = d_vectors + done * lists->spec.dims;
		GV_TRY(gv_gpu_exact_search(&search));
		GV_TRY(gv_launch(keys_kernel, gv_blocks_for(asked.n, THREADS),
						 THREADS, 0, stream, asked.d_positions, done, asked.n,
						 lists->d_keys, lists->d_numbers));
	}
	return gv_gpu_group(&group, stream);
}

/*
 * Divides the queries of each list into groups that the memory of searches can
 * hold.
 */
static GvStatus
make_groups(GvExactByList *lists, const GvExactQueries *queries)
{
	uint32_t	most = (uint32_t)
		gv_gpu_exact_tile_most(&lists->streams[0].work, queries);
	const uint32_t *starts = lists->starts;
	int64_t		n = 0;

	for (int32_t list = 0; list < lists->spec.nlists; list++)
		n += (starts[list + 1] - starts[list] + most - 1) / most;
	lists->groups = (QueryGroup *) malloc(n * sizeof(QueryGroup));
	lists->counts = (uint32_t *) malloc(2 * n * sizeof(uint32_t));
	if (lists->groups == NULL || lists->counts == NULL)
		return GV_NO_MEMORY;
	for (int32_t list = 0; list < lists->spec.nlists; list++)
		for (uint32_t q = starts[list]; q < starts[list + 1]; q += most)
			lists->groups[lists->ngroups++] = {(uint32_t) list, q,
				starts[list + 1] - q < most ? starts[list + 1] - q : most};
	return GV_OK;
}

/* Finds the lists near each list, and sorts all queries by list. */
static GvStatus
begin_lists(GvExactByList *lists, const GvExactQueries *queries,
			const GvStop *stop)
{
	cudaStream_t stream = lists->asking.stream;
	int32_t		metric = lists->spec.metric;

	GV_TRY(see_centroids(lists, metric));
	GV_TRY(find_nearest(lists, stop));
	/*
	 * if vectors were assigned by inner product, long centroids would get all
	 * of them
	 */
	if (metric == GV_SET_IP)
		GV_TRY(see_centroids(lists, GV_SET_L2));
	GV_TRY(group(lists, queries->d_queries, queries->n, &lists->queries,
				 stop));
	GV_CUDA_TRY(gv_download(lists->starts, lists->queries.d_starts,
							lists->spec.nlists + 1, stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	return make_groups(lists, queries);
}

/*
 * Sorts a batch's rows by list, and sums up the rows near each list.  Half
 * copies of the rows are made afterwards, in the sorted order.
 */
static GvStatus
group_rows(GvExactByList *lists, GvExactRows *rows, const GvStop *stop)
{
	cudaStream_t stream = lists->asking.stream;
	uint32_t	nlists = (uint32_t) lists->spec.nlists;

	GV_TRY(group(lists, rows->d_rows, rows->n, &lists->rows, stop));
	rows->d_order = lists->rows.d_order;
	GV_TRY(gv_launch(offsets_kernel, gv_blocks_for(nlists, THREADS), THREADS,
					 0, stream, lists->near.d_positions, lists->rows.d_starts,
					 nlists, lists->spec.probes, lists->d_offsets,
					 lists->d_totals));
	GV_CUDA_TRY(gv_download(lists->totals, lists->d_totals, nlists, stream));
	return gv_cuda_status(cudaStreamSynchronize(stream));
}

/* -- tiles */

/* The arguments that all steps of a batch share. */
struct TileSearch
{
	GvExactByList *lists;
	const GvExactNormalization *norm;
	const GvExactRows *rows;	/* of the batch */
	const GvExactQueries *queries;
	const GvStop *stop;
};

/* Returns the search of a stream's tile. */
static GvExactSearch
search_of(const TileSearch *search, Stream *stream)
{
	return {&stream->work, search->norm, &stream->tile, search->queries,
		search->stop};
}

/*
 * The source of a tile: the rows of the lists near one list, in the order of
 * these lists and without the first `first` rows.
 */
struct Source
{
	GvExactRows rows;
	const int64_t *d_nearest;		/* [probes] */
	const uint32_t *d_offsets;	/* [probes + 1] */
	const uint32_t *d_starts;	/* [nlists + 1] */
	int32_t		probes;
	uint32_t	first;
};

/* Returns the batch's slot from which slot i of a tile is copied. */
static __device__ __forceinline__ uint32_t
slot_of(const Source &source, uint32_t i)
{
	int32_t		low = 0;
	int32_t		high = source.probes - 1;
	uint32_t	at = source.first + i;

	/* find the first near list that ends behind this row */
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
 * Copies a batch's slots to a tile, TILE slots for each block.  Slots beyond
 * the tile's last row, up to a multiple of GV_EXACT_ALIGN, get zeros and a
 * bias that reaches no threshold.  `pieces` is the number of 16-byte pieces of
 * a half copy.
 */
static __global__ void __launch_bounds__(THREADS)
tile_kernel(Source source, int pieces, GvExactRows tile)
{
	__shared__ uint32_t from[TILE];
	uint32_t	first = blockIdx.x * TILE;
	uint32_t	n = (uint32_t) tile.n;

	if (threadIdx.x < TILE)
	{
		uint32_t	i = first + threadIdx.x;
		uint32_t	slot = i < n ? slot_of(source, i) : NO_SLOT;

		from[threadIdx.x] = slot;
		tile.d_bias[i] = i < n ? source.rows.d_bias[slot] : -GV_INFINITY;
		tile.d_error_bounds[i] = i < n ? source.rows.d_error_bounds[slot] :
			0.0f;
		tile.d_order[i] = i < n ? source.rows.d_order[slot] : 0;
	}
	__syncthreads();
	for (int p = threadIdx.x; p < TILE * pieces; p += THREADS)
	{
		uint32_t	slot = from[p / pieces];

		((uint4 *) tile.d_half_rows)[(int64_t) first * pieces + p] =
			slot == NO_SLOT ? make_uint4(0, 0, 0, 0) :
			((const uint4 *) source.rows.d_half_rows)
			[(int64_t) slot * pieces + p % pieces];
	}
}

/*
 * Fills a stream's tile with n rows of the lists near a list, from number
 * `first` among these rows on.
 */
static GvStatus
gather(const TileSearch *search, Stream *stream, uint32_t list, uint32_t first,
	   uint32_t n)
{
	const GvExactByList *lists = search->lists;
	int32_t		probes = lists->spec.probes;
	Source		source = {*search->rows,
		lists->near.d_positions + (int64_t) list * probes,
		lists->d_offsets + (int64_t) list * (probes + 1),
		lists->rows.d_starts, probes, first};

	stream->tile.d_rows = search->rows->d_rows;
	stream->tile.n = n;
	return gv_launch(tile_kernel, (int) (gv_exact_padded(n) / TILE), THREADS,
					 0, stream->work.stream, source,
					 search->norm->half_dims / 8, stream->tile);
}

/*
 * Returns the lists to which the queries of a group that overflow are
 * appended.
 */
static GvExactOverflowed
overflowed_of(const GvExactByList *lists, int64_t part)
{
	uint32_t	first = lists->groups[part].first;

	return {lists->overflowed.d_counts + 2 * part,
		lists->overflowed.d_full_scores + first,
		lists->overflowed.d_brute_force + first};
}

/*
 * Searches a stream's tile again for the queries of a group that overflowed.
 * Called if the group needs several tiles, before the next one overwrites this
 * tile.
 */
static GvStatus
finish_now(const GvExactSearch *search, const GvExactOverflowed *overflowed)
{
	cudaStream_t stream = search->work->stream;
	uint32_t	counts[2];

	GV_CUDA_TRY(gv_download(counts, overflowed->d_counts, 2, stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	GV_TRY(gv_gpu_exact_finish(search, overflowed, counts));
	GV_CUDA_TRY(gv_clear(overflowed->d_counts, 2, stream));
	return gv_is_stopped(search->stop) ? GV_CANCELED : GV_OK;
}

/* Searches the rows of all lists near the list of a group of queries. */
static GvStatus
search_group(const TileSearch *search, int64_t number)
{
	GvExactByList *lists = search->lists;
	const QueryGroup *of = &lists->groups[number];
	Stream *stream = &lists->streams[number % STREAMS];
	int64_t		total = lists->totals[of->list];
	GvExactPart part = {lists->queries.d_order + of->first, 0,
		(int32_t) of->n};
	GvExactOverflowed overflowed = overflowed_of(lists, number);
	GvExactSearch of_stream = search_of(search, stream);

	for (int64_t first = 0; first < total; first += lists->tile_capacity)
	{
		uint32_t	n = (uint32_t) std::min(total - first,
											lists->tile_capacity);

		GV_TRY(gather(search, stream, of->list, (uint32_t) first, n));
		GV_TRY(gv_gpu_exact_tile(&of_stream, &part, &overflowed));
		if (total > lists->tile_capacity)
			GV_TRY(finish_now(&of_stream, &overflowed));
	}
	return GV_OK;
}

static GvStatus
wait_for_streams(const TileSearch *search)
{
	for (int i = 0; i < STREAMS; i++)
		GV_CUDA_TRY(cudaStreamSynchronize(
						search->lists->streams[i].work.stream));
	return GV_OK;
}

/*
 * Searches the queries that overflowed.  Makes the tiles of their groups
 * again, because other tiles have overwritten them.
 */
static GvStatus
search_overflowed(const TileSearch *search)
{
	GvExactByList *lists = search->lists;
	Stream *stream = &lists->streams[0];
	GvExactSearch of_stream = search_of(search, stream);

	GV_CUDA_TRY(gv_download(lists->counts, lists->overflowed.d_counts,
							2 * lists->ngroups, stream->work.stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream->work.stream));
	for (int64_t i = 0; i < lists->ngroups; i++)
	{
		const uint32_t *counts = lists->counts + 2 * i;
		uint32_t	list = lists->groups[i].list;
		GvExactOverflowed overflowed = overflowed_of(lists, i);

		if (counts[0] == 0 && counts[1] == 0)
			continue;
		GV_TRY(gather(search, stream, list, 0, lists->totals[list]));
		GV_TRY(gv_gpu_exact_finish(&of_stream, &overflowed, counts));
	}
	return gv_cuda_status(cudaStreamSynchronize(stream->work.stream));
}

/*
 * Searches undefined queries.  They belong to list 0, because all centroids
 * are equally far from them.  Their nearest rows are those that come first in
 * the lists near list 0, so they are among the first rows of each of these
 * lists.
 */
static GvStatus
search_undefined(const TileSearch *search)
{
	GvExactByList *lists = search->lists;
	GvExactWork *work = &lists->streams[0].work;
	GvExactOverflowed overflowed = lists->overflowed;
	GvExactRows rows = *search->rows;
	GvExactSearch first = {work, search->norm, &rows, search->queries,
		search->stop};
	uint32_t	counts[2];

	if (search->norm->metric != GV_SET_COSINE &&
		search->norm->metric != GV_SET_PEARSON)
		return GV_OK;
	GV_CUDA_TRY(gv_clear(overflowed.d_counts, 2, work->stream));
	GV_TRY(gv_gpu_exact_undefined(&first, &overflowed));
	GV_CUDA_TRY(gv_download(counts, overflowed.d_counts, 2, work->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(work->stream));
	for (int32_t i = 0; i < lists->spec.probes && counts[1] > 0; i++)
	{
		int64_t		list;
		uint32_t	ends[2];

		GV_CUDA_TRY(gv_download(&list, lists->near.d_positions + i, 1,
								work->stream));
		GV_CUDA_TRY(cudaStreamSynchronize(work->stream));
		GV_CUDA_TRY(gv_download(ends, lists->rows.d_starts + list, 2,
								work->stream));
		GV_CUDA_TRY(cudaStreamSynchronize(work->stream));
		rows.d_order = lists->rows.d_order + ends[0];
		/*
		 * one row more than k, because the query's own row may be one of them
		 */
		rows.n = std::min((int64_t) (ends[1] - ends[0]),
						  search->queries->k + 1);
		GV_TRY(gv_gpu_exact_finish(&first, &overflowed, counts));
	}
	return GV_OK;
}

GvStatus
gv_gpu_exact_lists_search(GvExactByList *lists,
						  const GvExactNormalization *norm, GvExactRows *rows,
						  const GvExactQueries *queries, int64_t seen,
						  const GvStop *stop)
{
	TileSearch	search = {lists, norm, rows, queries, stop};
	cudaStream_t stream = lists->asking.stream;

	if (lists->groups == NULL)
	{
		GV_TRY(gv_gpu_exact_queries(norm, queries, stream));
		GV_TRY(begin_lists(lists, queries, stop));
	}
	GV_TRY(group_rows(lists, rows, stop));
	GV_TRY(gv_gpu_exact_rows(norm, rows, stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	for (int i = 0; i < STREAMS; i++)
		lists->streams[i].work.seen = seen;
	GV_TRY(search_undefined(&search));
	stream = lists->streams[0].work.stream;
	GV_CUDA_TRY(gv_clear(lists->overflowed.d_counts, 2 * lists->ngroups,
						 stream));
	GV_CUDA_TRY(cudaStreamSynchronize(stream));
	for (int64_t i = 0; i < lists->ngroups; i++)
	{
		GV_TRY(search_group(&search, i));
		if (stop == NULL || i % BETWEEN != 0)
			continue;
		GV_TRY(wait_for_streams(&search));
		if (gv_is_stopped(stop))
			return GV_CANCELED;
	}
	GV_TRY(wait_for_streams(&search));
	return search_overflowed(&search);
}
