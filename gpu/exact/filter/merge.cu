/*
 * merge.cu
 *		The nearest of a query's reranked rows and of its neighbors so far.
 *
 *		runs	of up to RUN rows sorted in shared memory
 *		passes	pairs of runs merged, each as long as capacity asks for
 *		merge	with the k neighbors, which are in order
 *
 * However many they are: nearest.cu does all this at once for those that
 * fit shared memory.
 */
#include "gpu/exact/filter/order.cuh"

#define THREADS			256
#define RUN				1024	/* rows that a block sorts */

/* Rows of a query, and their distances. */
struct Rows
{
	const double *distances;
	const uint32_t *rows;

	/* Is row i before such a one? */
	__device__ __forceinline__ bool
	before(uint32_t i, double distance, int64_t row) const
	{
		return gv_exact_before(distances[i], (int64_t) rows[i], distance, row);
	}
};

/* Run blockIdx.y of query blockIdx.x, filled up to a power of two. */
static __global__ void __launch_bounds__(THREADS)
runs_kernel(GvExactFilter filter, double *d_distances)
{
	__shared__ double distances[RUN];
	__shared__ uint32_t rows[RUN];
	int64_t		at = (int64_t) blockIdx.x * filter.capacity +
		(int64_t) blockIdx.y * RUN;
	int64_t		left = (int64_t) filter.d_counts[blockIdx.x] -
		(int64_t) blockIdx.y * RUN;
	uint32_t	n = left < RUN ? (uint32_t) left : RUN;
	uint32_t	size = 2;

	if (left <= 0)
		return;
	while (size < n)
		size *= 2;
	for (uint32_t i = threadIdx.x; i < size; i += THREADS)
	{
		distances[i] = i < n ? d_distances[at + i] : GV_EXACT_NAN;
		rows[i] = i < n ? filter.d_slots[at + i] : GV_EXACT_NO_ROW;
	}
	gv_exact_sort(distances, rows, size);
	for (uint32_t i = threadIdx.x; i < n; i += THREADS)
	{
		d_distances[at + i] = distances[i];
		filter.d_slots[at + i] = rows[i];
	}
}

/* Runs of `width` become such of twice that; a thread a row. */
static __global__ void __launch_bounds__(THREADS)
pass_kernel(GvExactFilter filter, const double *d_distances,
			double *d_to_distances, uint32_t *d_to_rows, uint32_t width,
			int blocks)
{
	int64_t		query = blockIdx.x / blocks;
	uint32_t	j = blockIdx.x % blocks * THREADS + threadIdx.x;
	uint32_t	count = filter.d_counts[query];
	int64_t		at = query * filter.capacity;
	Rows		all = {d_distances + at, filter.d_slots + at};
	uint32_t	run;
	int64_t		other;
	int64_t		end;
	int64_t		place;

	if (j >= count)
		return;
	run = j / width;
	other = (int64_t) (run ^ 1) * width;
	end = min(other + (int64_t) width, (int64_t) count);
	place = (int64_t) (run / 2) * 2 * width + j % width;
	if (other < (int64_t) count)
		place += gv_exact_count(other, end, [&] (int64_t i)
		{
			return all.before((uint32_t) i, all.distances[j], all.rows[j]);
		}) - other;
	d_to_distances[at + place] = all.distances[j];
	d_to_rows[at + place] = all.rows[j];
}

/* The arguments of the last step. */
struct Merge
{
	GvExactQueries queries;
	GvExactPart part;
	const uint32_t *d_counts;	/* [n] */
	const double *d_distances;	/* [n][capacity] in order */
	const uint32_t *d_rows;
	uint32_t	capacity;
	int64_t		position;		/* of row 0 */
	double	   *d_merged;		/* [n][k] */
	int64_t    *d_merged_positions;
};

/* A thread a neighbor or a row, of `each` of a query. */
static __global__ void __launch_bounds__(THREADS)
merge_kernel(Merge merge, int64_t each)
{
	int64_t		at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		i = at / each;
	int64_t		j = at % each;
	GvExactMerge from;

	if (i >= merge.part.n || merge.d_counts[i] == 0)
		return;
	from = {merge.queries.k, gv_exact_query(merge.part, i),
		merge.queries.d_distances, merge.queries.d_positions,
		min((int64_t) merge.d_counts[i], merge.queries.k),
		merge.d_distances + i * merge.capacity,
	merge.d_rows + i * merge.capacity, merge.position};
	if (j < from.k + from.count)
		gv_exact_place(from, j, merge.d_merged + i * from.k,
					   merge.d_merged_positions + i * from.k);
}

/* A thread a neighbor: back to where they belong. */
static __global__ void __launch_bounds__(THREADS)
put_back_kernel(Merge merge)
{
	int64_t		at = (int64_t) blockIdx.x * THREADS + threadIdx.x;
	int64_t		k = merge.queries.k;
	int64_t		i = at / k;
	int64_t		to;

	if (i >= merge.part.n || merge.d_counts[i] == 0)
		return;
	to = gv_exact_query(merge.part, i) * k + at % k;
	merge.queries.d_distances[to] = merge.d_merged[at];
	merge.queries.d_positions[to] = merge.d_merged_positions[at];
}

static __global__ void __launch_bounds__(THREADS)
clear_kernel(GvExactQueries queries)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < queries.n * queries.k)
	{
		queries.d_distances[i] = GV_EXACT_NAN;
		queries.d_positions[i] = INT64_MAX;
	}
}

/* The neighbors of a part, with the rows that were reranked. */
GvStatus
gv_gpu_exact_merge(const GvExactQueries *queries, const GvExactPart *part,
				   const GvExactFilter *filter, const GvExactFound *found,
				   int64_t position, cudaStream_t stream)
{
	GvExactFilter from = *filter;
	double	   *d_distances = found->d_distances;
	double	   *d_other = found->d_other;
	uint32_t   *d_other_rows = found->d_other_rows;
	int			blocks = gv_exact_blocks(filter->capacity, THREADS);
	int64_t		each = queries->k +
		(queries->k < filter->capacity ? queries->k : filter->capacity);
	Merge		merge;

	GV_LAUNCH(runs_kernel, dim3(part->n, gv_exact_blocks(filter->capacity,
														 RUN)), THREADS, 0,
			  stream, from, d_distances);
	for (uint32_t width = RUN; width < filter->capacity; width *= 2)
	{
		double	   *d_distances_were = d_distances;
		uint32_t   *d_rows_were = from.d_slots;

		GV_LAUNCH(pass_kernel, part->n * blocks, THREADS, 0, stream, from,
				  (const double *) d_distances, d_other, d_other_rows, width,
				  blocks);
		d_distances = d_other;
		from.d_slots = d_other_rows;
		d_other = d_distances_were;
		d_other_rows = d_rows_were;
	}
	merge = {*queries, *part, filter->d_counts, d_distances, from.d_slots,
		filter->capacity, position, found->d_merged,
		found->d_merged_positions};
	GV_LAUNCH(merge_kernel, gv_exact_blocks(part->n * each, THREADS), THREADS,
			  0, stream, merge, each);
	GV_LAUNCH(put_back_kernel, gv_exact_blocks(part->n * queries->k, THREADS),
			  THREADS, 0, stream, merge);
	return gv_cuda_status(cudaGetLastError());
}

/* No neighbors yet. */
GvStatus
gv_gpu_exact_clear(const GvExactQueries *queries, cudaStream_t stream)
{
	GV_LAUNCH(clear_kernel, gv_exact_blocks(queries->n * queries->k, THREADS),
			  THREADS, 0, stream, *queries);
	return gv_cuda_status(cudaGetLastError());
}
