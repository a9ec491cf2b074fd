/*
 * order.cuh
 *		Rows of a query in order of distance, merged with its neighbors so far.
 *
 * Two ordered arrays are merged by ranks: an item's place is its own and the
 * number of those in the other that are before it, found by halving.  No two
 * rows are equal in order; of free places, which are, the neighbors' come
 * first.
 */
#ifndef GV_ORDER_CUH
#define GV_ORDER_CUH

#include <stdint.h>

#include "gpu/exact/filter/exact.cuh"

/* The first i of low .. high - 1 that is not before something, else high. */
template <typename Before>
static __device__ __forceinline__ int64_t
gv_exact_count(int64_t low, int64_t high, const Before &before)
{
	while (low < high)
	{
		int64_t		middle = (low + high) / 2;

		if (before(middle))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * By all threads of a block: shared arrays [size] in order, size a power of
 * two, by a bitonic network.  Threads meet before and behind.
 */
static __device__ __forceinline__ void
gv_exact_sort(double *distances, uint32_t *rows, uint32_t size)
{
	for (uint32_t width = 2; width <= size; width *= 2)
		for (uint32_t stride = width / 2; stride > 0; stride /= 2)
		{
			__syncthreads();
			for (uint32_t i = threadIdx.x; i < size / 2; i += blockDim.x)
			{
				uint32_t	low = 2 * i - (i & (stride - 1));
				uint32_t	high = low + stride;
				double		a = distances[low];
				double		b = distances[high];
				uint32_t	a_row = rows[low];
				uint32_t	b_row = rows[high];

				if (gv_exact_before(b, b_row, a, a_row) ==
					((low & width) == 0))
				{
					distances[low] = b;
					distances[high] = a;
					rows[low] = b_row;
					rows[high] = a_row;
				}
			}
		}
	__syncthreads();
}

/* The inputs of a query's merge: its k neighbors, and its nearest new rows. */
struct GvExactMerge
{
	int64_t		k;
	int64_t		query;
	const double *d_distances;	/* [][k] of all queries */
	const int64_t *d_positions;
	int64_t		count;			/* of rows, at most k */
	const double *distances;	/* [count] in order */
	const uint32_t *rows;
	int64_t		position;		/* of row 0 */
};

static __device__ __forceinline__ int64_t
gv_exact_query(const GvExactPart &part, int64_t i)
{
	return part.d_list != NULL ? (int64_t) part.d_list[i] : part.first + i;
}

static __device__ __forceinline__ int64_t
gv_exact_position(const GvExactMerge &merge, int64_t i)
{
	return merge.rows[i] == GV_EXACT_NO_ROW ? INT64_MAX :
		merge.position + merge.rows[i];
}

/* Item j of k neighbors and count rows to merged arrays [k], if it counts. */
static __device__ __forceinline__ void
gv_exact_place(const GvExactMerge &merge, int64_t j, double *merged,
			   int64_t *merged_positions)
{
	int64_t		k = merge.k;
	const double *distances = merge.d_distances + merge.query * k;
	const int64_t *positions = merge.d_positions + merge.query * k;
	double		distance;
	int64_t		position;
	int64_t		place;

	if (j < k)
	{
		distance = distances[j];
		position = positions[j];
		place = j + gv_exact_count(0, merge.count, [&] (int64_t other)
		{
			return gv_exact_before(merge.distances[other],
								   gv_exact_position(merge, other), distance,
								   position);
		});
	}
	else
	{
		distance = merge.distances[j - k];
		position = gv_exact_position(merge, j - k);
		place = j - k + gv_exact_count(0, k, [&] (int64_t other)
		{
			return !gv_exact_before(distance, position, distances[other],
									positions[other]);
		});
	}
	if (place < k)
	{
		merged[place] = distance;
		merged_positions[place] = position;
	}
}

#endif							/* GV_ORDER_CUH */
