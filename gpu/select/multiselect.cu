/*
 * multiselect.cu
 *		Quick multi-select: many rows of one matrix, each in the registers of a
 *		block.
 *
 * Source: Komarov, Dashti, D'Souza, "Fast k-NNG construction with GPU-based
 * quick multi-select", 2014, Algorithm 1.
 *
 * Algorithm 1 partitions a row by a pivot: L elements below it stand on the
 * left.  If k > L the left side is kept and k - L are selected from the right
 * side, else the right side is discarded; and so on until the sides meet.  Its
 * partition moves 32 elements at a time through shared memory, by warp votes
 * and population counts, into an auxiliary array.
 *
 * Here the row stays in registers, where counting the whole row again costs
 * less than moving it.  So the keys that are not above a pivot are only
 * counted, which gives L.  `lower` and `upper`, the two ends of the
 * algorithm's range, are the last pivots that were too low and not too low;
 * `below` is the number of items on the left side that is kept.  In every
 * second round the next pivot is where the wanted rank would be if keys were
 * spread evenly between the two ends.  In the other rounds it halves the range
 * of keys, which bounds the rounds at 64.  The rounds end as soon as `most`
 * items or fewer are left, an eighth more than k, and a bitonic network sorts
 * these items.  If too many keys are equal, their positions are divided in the
 * same way.  As in the paper, a block takes a row; one launch takes all rows.
 */
#include "gpu/select/rows.cuh"

#define MOST_COLUMNS	16384

/* One thread's keys of the row that its block has. */
template <int THREADS, int KEYS>
struct Row
{
	uint32_t	keys[KEYS];		/* key r is at position THREADS * r +
								 * threadIdx.x of the row */
	uint32_t	n;
	GvBlockReduce reduce;

	__device__ __forceinline__ void
	load(const float *values)
	{
#pragma unroll
		for (int r = 0; r < KEYS; r++)
		{
			uint32_t	i = r * THREADS + threadIdx.x;

			keys[r] = i < n ? gv_row_key(__ldcs(&values[i])) : GV_NO_KEY;
		}
	}

	/* Returns how many keys of the row are not above this one. */
	__device__ __forceinline__ uint32_t
	count(uint32_t key)
	{
		uint32_t	mine = 0;

#pragma unroll
		for (int r = 0; r < KEYS; r++)
			mine += keys[r] <= key;
		return reduce.sum(mine);
	}

	/*
	 * Returns how many items of the row are not after the item of this key and
	 * position.
	 */
	__device__ __forceinline__ uint32_t
	count(uint32_t key, uint32_t position)
	{
		int			reach = (int) position - (int) threadIdx.x;
		uint32_t	mine = 0;

		/*
		 * positions are computed, because registers cannot hold them as well
		 */
#pragma unroll
		for (int r = 0; r < KEYS; r++)
			mine += keys[r] < key || (keys[r] == key && r * THREADS <= reach);
		return reduce.sum(mine);
	}
};

/* The last one of the items that are sorted. */
struct Last
{
	uint32_t	key;
	uint32_t	position;
};

/*
 * Returns a pivot between two keys.  Its value is at this fraction of the way
 * from the value of the lower key to that of the upper key.
 */
static __device__ __forceinline__ uint32_t
estimate_pivot(uint32_t lower, uint32_t upper, float fraction)
{
	uint32_t	key = gv_ordered((1.0f - fraction) * gv_unordered(lower) +
								 fraction * gv_unordered(upper));

	/* infinities and NaN give a key that may be anywhere */
	return key > lower && key < upper ? key : lower + (upper - lower) / 2;
}

/*
 * Returns an item of the row such that at least k and at most `most` items,
 * itself included, are not after it.
 */
template <int THREADS, int KEYS>
static __device__ __forceinline__ Last
find_last(Row<THREADS, KEYS> &row, uint32_t k, uint32_t most)
{
	uint32_t	least = GV_NO_KEY;
	uint32_t	greatest = 0;
	uint32_t	below = 0;
	uint32_t	within = row.n;
	uint32_t	first = 0;
	uint32_t	lower;
	uint32_t	upper;
	Last		last;

#pragma unroll
	for (uint32_t key : row.keys)
	{
		least = min(least, key);
		if (key != GV_NO_KEY)
			greatest = max(greatest, key);
	}
	lower = ~row.reduce.largest(~least) - 1;	/* no float has key 0 */
	upper = row.reduce.largest(greatest);

	/*
	 * the number of keys that are not above lower is `below`, which is less
	 * than k; the number of keys that are not above upper is `within`, which
	 * is at least k
	 */
#pragma unroll 1
	for (int round = 0; within > most && lower + 1 < upper; round++)
	{
		uint32_t	pivot = lower + (upper - lower) / 2;
		uint32_t	count;

		if (round % 2 == 0)
			pivot = estimate_pivot(lower, upper, ((k + most) / 2 - below) /
								   (float) (within - below));
		count = row.count(pivot);
		if (count >= k)
		{
			upper = pivot;
			within = count;
		}
		else
		{
			lower = pivot;
			below = count;
		}
	}

	/*
	 * if there are still too many items, many keys are equal to upper: divide
	 * the positions
	 */
	last = {upper, row.n - 1};
	while (within > most)
	{
		uint32_t	middle = first + (last.position - first) / 2;
		uint32_t	count = row.count(last.key, middle);

		if (count >= k)
		{
			last.position = middle;
			within = count;
		}
		else
			first = middle + 1;
	}
	return last;
}

/*
 * Selects from rows, a block for each row.  Shared memory: items [most];
 * `most` is a power of two.
 */
template <int THREADS, int KEYS, int BLOCKS>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
multiselect_kernel(GvRowsCall call, uint32_t most)
{
	GV_SHARED(memory);
	/* row.reduce uses this array, but nvcc's front end does not see it */
	[[maybe_unused]] __shared__ uint32_t slots[2][GV_WARP];
	__shared__ uint32_t count;
	uint64_t   *items = (uint64_t *) memory;
	Row<THREADS, KEYS> row;
	Last		last;

	gv_pdl_wait();
	row.n = (uint32_t) call.columns;
	row.reduce = {slots, 0};
	if (threadIdx.x == 0)
		count = 0;
	row.load(call.d_values + blockIdx.x * call.columns);
	last = find_last(row, (uint32_t) call.k, min(most, row.n));
	__syncthreads();
#pragma unroll
	for (int r = 0; r < KEYS; r++)
	{
		uint32_t	i = r * THREADS + threadIdx.x;

		if (row.keys[r] < last.key ||
			(row.keys[r] == last.key && i <= last.position))
			items[atomicAdd(&count, 1u)] = (uint64_t) row.keys[r] << 32 | i;
	}
	__syncthreads();
	gv_block_write(items, count, call, blockIdx.x);
}

/*
 * Returns the most items that a block sorts.  There are more than k of them,
 * so that few rounds suffice.
 */
static int64_t
most_items(int64_t columns, int64_t k)
{
	int64_t		wanted = k + k / 8 + 8;
	int64_t		most = GV_WARP;

	while (most < wanted && most < columns)
		most *= 2;
	return most;
}

bool
gv_multi_fits(int64_t columns, int64_t k)
{
	return columns <= MOST_COLUMNS &&
		most_items(columns, k) <= GV_ROWS_CAPACITY;
}

template <int THREADS, int KEYS, int BLOCKS>
static GvStatus
launch(GvSelector *selector, const GvRowsCall *call, cudaStream_t stream)
{
	int64_t		most = most_items(call->columns, call->k);

	return gv_launch_pdl(selector->pdl,
						 multiselect_kernel<THREADS, KEYS, BLOCKS>, call->rows,
						 THREADS, sizeof(uint64_t) * most, stream, *call,
						 (uint32_t) most);
}

GvStatus
gv_rows_multi(GvSelector *selector, const GvRowsCall *call,
			  cudaStream_t stream)
{
	if (call->columns <= 1024)
		return launch<128, 8, 8>(selector, call, stream);
	if (call->columns <= 4096)
		return launch<256, 16, 4>(selector, call, stream);
	if (call->columns <= 10240)
		return launch<512, 20, 2>(selector, call, stream);
	return launch<512, MOST_COLUMNS / 512, 2>(selector, call, stream);
}
