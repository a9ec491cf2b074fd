/*
 * sampleselect.cu
 *		SampleSelect: the first k items of any rows, and several ranks of one
 *		array, exactly or approximately.
 *
 * Source: Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019.
 *
 * Section IV.B has three kernels: the sample kernel sorts a sample and takes
 * splitters from it (plant), the count kernel finds each item's bucket in a
 * search tree of splitters in array order and counts it in shared memory
 * (count_items, after section IV.G), the filter kernel copies the bucket that
 * has the wanted rank, and the recursion of section IV.E goes on with it.
 * This file differs from the paper as follows:
 *
 *	- Items are distinct (gv_select.h), so the equality buckets of section IV.C
 *	  are not needed.
 *	- The filter kernel copies the items in and before the bucket (section
 *	  IV.I, top-k), and only when few more than k items are left.  Until then
 *	  each level reads the row again and skips items outside the range, so that
 *	  every input needs the same memory, and no oracles are stored.
 *	- Only the first range, which has all items, is divided by splitters; each
 *	  later range is divided evenly, into 2,048 parts.  As 64 bits are 11 times
 *	  5 and 9, and 96 are 11 times 8 and 8, no input takes more than 6 even
 *	  divisions, or 9 of doubles.
 *	- One kernel does all levels, because for short rows a launch for each
 *	  level would take longer than everything else.
 *
 * Ranks of an array (quantiles) take one level.  The rank of a splitter is the
 * number of items in the buckets before it, and the nearest splitter is the
 * approximate answer of section II.C.  For exact answers a second read gathers
 * the items of the buckets that have a wanted rank, and these items are sorted
 * together.  A rank of the array, less the number of smaller items that were
 * left out, is a rank among the gathered items.
 */
#include <algorithm>

#include <cub/device/device_radix_sort.cuh>

#include "gpu/select/rows.cuh"

#define THREADS			512		/* of a block that counts */
#define BLOCKS_A_SM		2		/* resident blocks: more would have too few
								 * registers for loads in flight */
#ifndef TREE_BITS				/* the bench defines others */
#define TREE_BITS		8
#endif
#define BUCKETS			(1 << TREE_BITS)
#define SPLITTERS		(BUCKETS - 1)
#define SAMPLED			4096	/* number of items of a sample */
#define DIGIT_BITS		11		/* bits of an item that an even division
								 * divides by */
#define DIGITS			(1 << DIGIT_BITS)
#define CHUNK_VALUES	8		/* loads in flight, of a thread */
#define CHUNK			(THREADS * CHUNK_VALUES)	/* values that a block
													 * loads at once */

/* -- splitters, buckets, chunks of a row */

/*
 * Splitters of a sorted sample, in ascending order and as a search tree.
 * Bucket b has the items that are at least sorted[b - 1] and below sorted[b].
 * The tree and the sample are the same as in src/cpu/select: the sample has
 * one random item from each of 4,096 equal stretches of the row.
 */
template <typename Item>
struct Tree
{
	Item		sorted[SPLITTERS];
	Item		nodes[SPLITTERS];	/* children of i: 2 i + 1, 2 i + 2 */
};

/* Returns the position of the sample's item from stretch j of n values. */
static __device__ __forceinline__ int64_t
stretch_position(int64_t n, uint32_t j)
{
	int64_t		begin = j * n / SAMPLED;
	int64_t		end = (j + 1) * n / SAMPLED;
	uint64_t	hash = (j + UINT64_C(0x5A3D)) * UINT64_C(0x9E3779B97F4A7C15);

	hash = (hash ^ hash >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	return begin + (int64_t) ((hash >> 32) % (uint64_t) (end - begin));
}

/*
 * Makes the tree of a row of n >= SAMPLED values, by all threads of a block.
 * `items` [SAMPLED] is shared memory for the sample.  Ends with a barrier.
 */
template <typename Value>
static __device__ __forceinline__ void
plant(const Value *row, int64_t n, GvItem<Value> *items,
	  Tree<GvItem<Value>> *tree)
{
	for (uint32_t j = threadIdx.x; j < SAMPLED; j += THREADS)
	{
		int64_t		position = stretch_position(n, j);

		items[j] = gv_row_item(row[position], position);
	}
	__syncthreads();
	gv_block_sort(items, SAMPLED);
	for (uint32_t i = threadIdx.x; i < SPLITTERS; i += THREADS)
	{
		uint32_t	level = 31 - __clz(i + 1);
		uint32_t	reach = BUCKETS / 2 >> level;
		uint32_t	j = i + 1 - (1u << level);
		uint32_t	number = (2 * j + 1) * reach - 1;

		tree->sorted[i] = items[(i + 1) * (SAMPLED / BUCKETS)];
		tree->nodes[i] = items[(number + 1) * (SAMPLED / BUCKETS)];
	}
	__syncthreads();
}

template <typename Item>
static __device__ __forceinline__ uint32_t
bucket_of(const Tree<Item> *tree, Item item)
{
	uint32_t	i = 0;

#pragma unroll
	for (int level = 0; level < TREE_BITS; level++)
		i = 2 * i + 1 + (item >= tree->nodes[i]);
	return i - SPLITTERS;
}

/*
 * For each lane whose counts_for is true, counts the lane's item in its
 * bucket.  If all these items are in one bucket, as in rows with few different
 * values, one lane adds for all (section IV.G).
 */
static __device__ __forceinline__ void
count_bucket(uint32_t *counts, uint32_t bucket, bool counts_for)
{
	uint32_t	lanes = __ballot_sync(GV_FULL_WARP, counts_for);
	uint32_t	same;

	if (lanes == 0)
		return;
	same = __shfl_sync(GV_FULL_WARP, bucket, __ffs((int) lanes) - 1);
	if (!__any_sync(GV_FULL_WARP, counts_for && bucket != same))
	{
		if (threadIdx.x % GV_WARP == 0)
			atomicAdd(&counts[same], (uint32_t) __popc(lanes));
	}
	else if (counts_for)
		atomicAdd(&counts[bucket], 1u);
}

/*
 * Returns the position in the row of this thread's value r of the chunk at
 * `first`.
 */
static __device__ __forceinline__ int64_t
chunk_position(int64_t first, int r)
{
	return first + r * THREADS + threadIdx.x;
}

/*
 * Loads the chunk at `first` of a row of n values.  Values beyond the row's
 * end are 0.
 */
template <typename Value>
static __device__ __forceinline__ void
load_chunk(const Value *row, int64_t n, int64_t first,
		   Value (&values)[CHUNK_VALUES])
{
#pragma unroll
	for (int r = 0; r < CHUNK_VALUES; r++)
	{
		int64_t		i = chunk_position(first, r);

		values[r] = i < n ? __ldcs(&row[i]) : Value(0);
	}
}

/*
 * Appends items of a chunk to d_items [capacity], by all threads of a block.
 * A thread appends the item of its value r if bit r of its mask is set.
 * *count, in the device's memory, is the number of items appended so far.
 * Begins with a barrier.
 */
template <typename Value>
static __device__ __forceinline__ void
append(const Value (&values)[CHUNK_VALUES], int64_t first, uint32_t mask,
	   uint32_t *count, GvItem<Value> *d_items, uint32_t capacity)
{
	__shared__ uint32_t block_count;
	__shared__ uint32_t block_at;
	uint32_t	at;

	__syncthreads();
	if (threadIdx.x == 0)
		block_count = 0;
	__syncthreads();
	at = gv_reserve(__popc(mask), &block_count);
	__syncthreads();
	if (threadIdx.x == 0 && block_count > 0)
		block_at = atomicAdd(count, block_count);
	__syncthreads();
	at += block_count > 0 ? block_at : 0;
#pragma unroll
	for (int r = 0; r < CHUNK_VALUES; r++)
		if (mask & 1u << r)
		{
			if (at < capacity)
				d_items[at] = gv_row_item(values[r], chunk_position(first, r));
			at++;
		}
}

/* Sorts d_items [n] by CUB and stores the sorted items from d_items + n on. */
template <typename Item>
static GvStatus
sort_items(GvSelector *selector, Item *d_items, int64_t n,
		   cudaStream_t stream)
{
	size_t		bytes = 0;

	GV_CUDA_TRY(cub::DeviceRadixSort::SortKeys(NULL, bytes,
											   (const Item *) NULL,
											   (Item *) NULL, n));
	GV_TRY(gv_buffer_need(&selector->d_sort, bytes));
	return gv_cuda_status(cub::DeviceRadixSort::SortKeys(
							  selector->d_sort.memory, bytes,
							  (const Item *) d_items, d_items + n, n, 0,
							  sizeof(Item) > 8 ? 96 : 64, stream));
}

/* -- the first k items of rows */

/* The number of items that a block sorts, at most. */
template <typename Value>
constexpr int64_t CAPACITY = GV_ROWS_BYTES / sizeof(GvItem<Value>);

/* The memory that the blocks of a row share.  It is zero before a launch. */
struct alignas(16) Shared
{
	uint32_t	counts[3][DIGITS];	/* used in turn: blocks count in one while
									 * the next is cleared */
	uint32_t	arrived;		/* arrivals of blocks at all barriers so far */
	uint32_t	gathered;		/* number of items gathered */
};

/* The parameters of a launch besides the rows. */
template <typename Item>
struct Levels
{
	bool		is_sampled;		/* the first division is by splitters */
	uint32_t	capacity;		/* capacity for the gathered items of a row, at
								 * least k */
	Shared	   *d_shared;		/* [teams]: a team is the blocks that share a
								 * row */
	Item	   *d_items;		/* [teams][capacity] */
};

/* A range that contains the k-th item of a row. */
template <typename Item>
struct Range
{
	Item		first;
	Item		last;
	uint32_t	count;			/* number of items in the range */
	uint32_t	before;			/* number of items below the range */
};

/* The shared memory of a block besides its items. */
template <typename Item>
struct Block
{
	uint32_t	counts[DIGITS];
	Tree<Item>	tree;
	Range<Item> range;
	uint32_t	sums[THREADS / GV_WARP];
};

/* A block's part in the work on a row that blocks share. */
struct Member
{
	Shared	   *shared;
	uint32_t	nmembers;
	uint32_t	number;
	uint32_t	waits;			/* barriers so far */
	uint32_t	turn;			/* index of the array in shared->counts that
								 * this level uses */

	/* Waits for all blocks of the row.  Their writes are visible then. */
	__device__ __forceinline__ void
	wait()
	{
		__syncthreads();
		if (nmembers == 1)
			return;
		waits++;
		if (threadIdx.x == 0)
		{
			__threadfence();
			atomicAdd(&shared->arrived, 1u);
			while (*(volatile uint32_t *) &shared->arrived < waits * nmembers)
				;
			__threadfence();
		}
		__syncthreads();
	}
};

/* Returns the number of low bits that remain in a part of an even division. */
template <typename Item>
static __device__ __forceinline__ int
part_bits(const Range<Item> &range)
{
	Item		width = range.last - range.first;
	uint64_t	high = (uint64_t) (width >> 32);
	int			bits = high > 0 ? 96 - __clzll((long long) high) :
		64 - __clzll((long long) width);

	return max(0, bits - DIGIT_BITS);
}

/*
 * Counts, by bucket, those items of this block's chunks that are in the range.
 */
template <typename Value>
static __device__ __forceinline__ void
count_items(const Value *row, int64_t n, const Member &member,
			Block<GvItem<Value>> &block, bool by_tree)
{
	Range<GvItem<Value>> range = block.range;
	int			bits = part_bits(range);

#pragma unroll 1
	for (int64_t first = (int64_t) member.number * CHUNK; first < n;
		 first += (int64_t) member.nmembers * CHUNK)
	{
		Value		values[CHUNK_VALUES];

		load_chunk(row, n, first, values);
#pragma unroll
		for (int r = 0; r < CHUNK_VALUES; r++)
		{
			int64_t		i = chunk_position(first, r);
			GvItem<Value> item = gv_row_item(values[r], i);
			GvItem<Value> offset = item - range.first;
			bool		inside = i < n && offset <= range.last - range.first;
			uint32_t	bucket = 0;

			if (inside)
				bucket = by_tree ? bucket_of(&block.tree, item) :
					(uint32_t) (offset >> bits);
			count_bucket(block.counts, bucket, inside);
		}
	}
}

/* Narrows the range to the bucket that has the item of this rank. */
template <typename Item>
static __device__ __forceinline__ void
enter_bucket(Block<Item> &block, uint32_t rank, bool by_tree)
{
	constexpr int EACH = DIGITS / THREADS;
	Range<Item> range = block.range;
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	mine[EACH];
	uint32_t	sum = 0;
	uint32_t	upto;
	uint32_t	before = range.before;

#pragma unroll
	for (int e = 0; e < EACH; e++)
		sum += mine[e] = block.counts[threadIdx.x * EACH + e];
	upto = gv_upto_lane(sum);
	if (lane == GV_WARP - 1)
		block.sums[threadIdx.x / GV_WARP] = upto;
	__syncthreads();
	for (uint32_t w = 0; w < threadIdx.x / GV_WARP; w++)
		before += block.sums[w];
	before += upto - sum;
	if (rank >= before && rank < before + sum)
	{
		uint32_t	b = threadIdx.x * EACH;

#pragma unroll
		for (int e = 0; e < EACH; e++)
		{
			if (rank >= before && rank < before + mine[e])
			{
				b += e;
				range.count = mine[e];
				break;
			}
			before += mine[e];
		}
		range.before = before;
		if (by_tree)
		{
			if (b > 0)
				range.first = block.tree.sorted[b - 1];
			if (b < SPLITTERS)
				range.last = block.tree.sorted[b] - 1;
		}
		else
		{
			int			bits = part_bits(range);
			Item		end = ((Item) b << bits) + (((Item) 1 << bits) - 1);

			if (end < range.last - range.first)
				range.last = range.first + end;
			range.first += (Item) b << bits;
		}
		block.range = range;
	}
	__syncthreads();
}

/*
 * Divides the range once, which is one level, and enters the bucket of the
 * k-th item.
 */
template <typename Value>
static __device__ __forceinline__ void
divide(const Value *row, const GvCallOf<Value> &call, Member &member,
	   Block<GvItem<Value>> &block, bool by_tree)
{
	bool		alone = member.nmembers == 1;
	uint32_t   *counts = member.shared->counts[member.turn];

	member.turn = (member.turn + 1) % 3;
	for (int i = threadIdx.x; i < DIGITS; i += THREADS)
	{
		block.counts[i] = 0;
		if (!alone && member.number == 0)
			member.shared->counts[member.turn][i] = 0;
	}
	__syncthreads();
	count_items(row, call.columns, member, block, by_tree);
	__syncthreads();
	if (!alone)
	{
		for (int i = threadIdx.x; i < DIGITS; i += THREADS)
			if (block.counts[i] > 0)
				atomicAdd(&counts[i], block.counts[i]);
		__threadfence();
		member.wait();
		for (int i = threadIdx.x; i < DIGITS; i += THREADS)
			block.counts[i] = __ldcg(&counts[i]);
		__syncthreads();
	}
	enter_bucket(block, (uint32_t) call.k - 1, by_tree);
}

/*
 * Appends the items of this block's chunks that are not above `last` to
 * d_items [capacity].
 */
template <typename Value>
static __device__ __forceinline__ void
gather(const Value *row, int64_t n, const Member &member, GvItem<Value> last,
	   GvItem<Value> *d_items, uint32_t capacity)
{
#pragma unroll 1
	for (int64_t first = (int64_t) member.number * CHUNK; first < n;
		 first += (int64_t) member.nmembers * CHUNK)
	{
		Value		values[CHUNK_VALUES];
		uint32_t	mask = 0;

		load_chunk(row, n, first, values);
#pragma unroll
		for (int r = 0; r < CHUNK_VALUES; r++)
		{
			int64_t		i = chunk_position(first, r);

			if (i < n && gv_row_item(values[r], i) <= last)
				mask |= 1u << r;
		}
		append(values, first, mask, &member.shared->gathered, d_items,
			   capacity);
	}
}

/* Selects from one row. */
template <typename Value>
static __device__ __forceinline__ void
select_row(const GvCallOf<Value> &call, const Levels<GvItem<Value>> &levels,
		   int64_t number, GvItem<Value> *d_items, Member &member,
		   Block<GvItem<Value>> &block, GvItem<Value> *items)
{
	const Value *row = call.d_values + number * call.columns;
	bool		by_tree = levels.is_sampled && call.columns >= SAMPLED;
	uint32_t	count;

	if (by_tree && call.columns > levels.capacity)
		plant(row, call.columns, items, &block.tree);
	__syncthreads();
	if (threadIdx.x == 0)
		block.range = {0, gv_no_item<GvItem<Value>>, (uint32_t) call.columns,
			0};
	__syncthreads();
	while (block.range.before + block.range.count > levels.capacity)
	{
		divide(row, call, member, block, by_tree);
		by_tree = false;
	}
	count = block.range.before + block.range.count;
	gather(row, call.columns, member, block.range.last, d_items,
		   levels.capacity);
	__threadfence();
	member.wait();
	if (member.number != 0)
		return;
	if (levels.capacity <= CAPACITY<Value>)
	{
		for (uint32_t i = threadIdx.x; i < count; i += THREADS)
			items[i] = gv_read_item(&d_items[i]);
		__syncthreads();
		gv_block_write(items, count, call, number);
	}
	else
		for (uint32_t i = count + threadIdx.x; i < levels.capacity;
			 i += THREADS)
			d_items[i] = gv_no_item<GvItem<Value>>;
	if (threadIdx.x == 0)
		member.shared->gathered = 0;
	__threadfence();
	__syncthreads();
}

/*
 * Selects from rows.  A block takes rows one after the other.  If rows are
 * fewer than blocks, several blocks share a row and wait for each other; this
 * cannot hang because all blocks are resident.  Shared memory: items [CAPACITY].
 */
template <typename Value>
static __global__ void __launch_bounds__(THREADS, BLOCKS_A_SM)
sampleselect_kernel(GvCallOf<Value> call, Levels<GvItem<Value>> levels)
{
	GV_SHARED(memory);
	__shared__ Block<GvItem<Value>> block;
	uint32_t	nrows = (uint32_t) call.rows;
	uint32_t	nteams = min(nrows, gridDim.x);
	uint32_t	nmembers = gridDim.x / nteams;
	uint32_t	team = blockIdx.x / nmembers;
	Member		member = {&levels.d_shared[team], nmembers,
		blockIdx.x % nmembers, 0, 0};

	for (uint32_t i = team; i < nrows && team < nteams; i += nteams)
		select_row(call, levels, i, levels.d_items +
				   (int64_t) team * levels.capacity, member, block,
				   (GvItem<Value> *) memory);
}

/*
 * Finds how many blocks of sampleselect_kernel are resident at once.  Emulated
 * blocks run one after the other, so only one of them is resident.
 */
template <typename Value>
static GvStatus
find_blocks(const GvSelector *selector, int *nblocks)
{
	GV_TRY(gv_allow_shared((const void *) sampleselect_kernel<Value>,
						   GV_ROWS_BYTES));
#ifdef __CUDACC__
	GV_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
					nblocks, sampleselect_kernel<Value>, THREADS,
					GV_ROWS_BYTES));
	*nblocks *= selector->nsms;
	return *nblocks > 0 ? GV_OK : GV_FAILED;
#else
	*nblocks = 1;
	return GV_OK;
#endif
}

template <typename Value>
static GvStatus
launch(GvCallOf<Value> call, Levels<GvItem<Value>> levels, int nblocks,
	   cudaStream_t stream)
{
#ifdef __CUDACC__
	void	   *arguments[] = {&call, &levels};

	return gv_cuda_status(cudaLaunchCooperativeKernel(
							  (const void *) sampleselect_kernel<Value>,
							  dim3(nblocks), dim3(THREADS), arguments,
							  GV_ROWS_BYTES, stream));
#else
	return gv_launch(sampleselect_kernel<Value>, nblocks, THREADS,
					 GV_ROWS_BYTES, stream, call, levels);
#endif
}

/* Writes the first k of a row's sorted items, a thread for each item. */
template <typename Value>
static __global__ void __launch_bounds__(THREADS)
write_kernel(GvCallOf<Value> call, const GvItem<Value> *sorted)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < call.k)
		gv_write_item(call, 0, i, sorted[i]);
}

/*
 * Returns the capacity for the gathered items of a row, which is at least
 * CAPACITY.
 */
template <typename Value>
static int64_t
capacity_for(int64_t k)
{
	if (k + k / 8 <= CAPACITY<Value>)
		return CAPACITY<Value>;
	return k + (k / 8 > 4096 ? k / 8 : 4096);
}

size_t
gv_sample_bytes(int64_t k, bool doubles)
{
	int64_t		capacity = doubles ? capacity_for<double>(k) :
		capacity_for<float>(k);
	size_t		item_bytes = doubles ? sizeof(GvItem<double>) :
		sizeof(GvItem<float>);
	size_t		bytes = sizeof(Shared) + 2 * item_bytes * capacity +
		(size_t) gv_sort_most_bytes(capacity, item_bytes);

	return bytes + bytes / 4;
}

template <typename Value>
GvStatus
gv_rows_sample(GvSelector *selector, const GvCallOf<Value> *call,
			   bool is_sampled, cudaStream_t stream)
{
	using Item = GvItem<Value>;
	int64_t		capacity = capacity_for<Value>(call->k);
	/*
	 * a block cannot sort this many items, so rows are taken one by one; SQL
	 * has only one row
	 */
	bool		large = capacity > CAPACITY<Value>;
	int64_t		step = large ? 1 : call->rows;
	int			nblocks;
	int64_t		nteams;

	GV_TRY(find_blocks<Value>(selector, &nblocks));
	nteams = std::min(step, (int64_t) nblocks);
	GV_TRY(gv_buffer_need(&selector->d_work,
						  (sizeof(Shared) + 2 * sizeof(Item) * capacity) *
						  nteams));
	for (int64_t first = 0; first < call->rows; first += step)
	{
		Shared	   *d_shared = (Shared *) selector->d_work.memory;
		Levels<Item> levels = {is_sampled, (uint32_t) capacity, d_shared,
			(Item *) (d_shared + nteams)};
		GvCallOf<Value> some = {call->d_values + first * call->columns,
			call->columns, step, call->d_positions + first * call->k,
			call->d_selected + first * call->k, call->k};

		GV_CUDA_TRY(gv_clear(d_shared, nteams, stream));
		GV_TRY(launch(some, levels, nblocks, stream));
		if (!large)
			break;
		GV_TRY(sort_items(selector, levels.d_items, capacity, stream));
		GV_TRY(gv_launch(write_kernel<Value>, gv_blocks_for(call->k, THREADS),
						 THREADS, 0, stream, some,
						 (const Item *) levels.d_items + capacity));
	}
	return GV_OK;
}

template GvStatus gv_rows_sample(GvSelector *, const GvCallOf<float> *, bool,
								 cudaStream_t);
template GvStatus gv_rows_sample(GvSelector *, const GvCallOf<double> *, bool,
								 cudaStream_t);

/* -- ranks of an array */

/*
 * The buckets of a level.  The host reads the counts and chooses the buckets
 * that are wanted.
 */
template <typename Item>
struct Buckets
{
	Item		sorted[SPLITTERS];
	uint32_t	counts[BUCKETS];
	uint32_t	wanted[BUCKETS];
	uint32_t	gathered;
};

/* Makes the items of an array, a thread for each item. */
template <typename Value>
static __global__ void __launch_bounds__(THREADS)
items_kernel(const Value *values, int64_t n, GvItem<Value> *items)
{
	int64_t		i = (int64_t) blockIdx.x * THREADS + threadIdx.x;

	if (i < n)
		items[i] = gv_row_item(values[i], i);
}

/*
 * If `items` is NULL, counts an array's items by bucket.  Otherwise gathers
 * the items of the wanted buckets in `items` [capacity].  A block takes every
 * gridDim.x-th chunk, and makes its own copy of the splitters.  Shared memory:
 * items [SAMPLED].
 */
template <typename Value>
static __global__ void __launch_bounds__(THREADS)
bucket_kernel(const Value *values, int64_t n, Buckets<GvItem<Value>> *buckets,
			  GvItem<Value> *items, uint32_t capacity)
{
	GV_SHARED(memory);
	__shared__ Tree<GvItem<Value>> tree;
	__shared__ uint32_t counts[BUCKETS];	/* counts, or flags of wanted
											 * buckets */

	for (int i = threadIdx.x; i < BUCKETS; i += THREADS)
		counts[i] = items == NULL ? 0 : buckets->wanted[i];
	plant(values, n, (GvItem<Value> *) memory, &tree);
#pragma unroll 1
	for (int64_t first = (int64_t) blockIdx.x * CHUNK; first < n;
		 first += (int64_t) gridDim.x * CHUNK)
	{
		Value		some[CHUNK_VALUES];
		uint32_t	mask = 0;

		load_chunk(values, n, first, some);
#pragma unroll
		for (int r = 0; r < CHUNK_VALUES; r++)
		{
			int64_t		i = chunk_position(first, r);
			uint32_t	b = bucket_of(&tree, gv_row_item(some[r], i));

			if (items == NULL)
				count_bucket(counts, b, i < n);
			else if (i < n && counts[b])
				mask |= 1u << r;
		}
		if (items != NULL)
			append(some, first, mask, &buckets->gathered, items, capacity);
	}
	__syncthreads();
	if (items != NULL)
		return;
	for (int i = threadIdx.x; i < BUCKETS; i += THREADS)
		if (counts[i] > 0)
			atomicAdd(&buckets->counts[i], counts[i]);
	for (int i = threadIdx.x; blockIdx.x == 0 && i < SPLITTERS; i += THREADS)
		buckets->sorted[i] = tree.sorted[i];
}

/*
 * Stores the values at the given ranks of sorted items, a thread for each
 * rank.
 */
template <typename Value>
static __global__ void __launch_bounds__(THREADS)
pick_kernel(const GvItem<Value> *sorted, const int64_t *ranks, int32_t nranks,
			Value *quantiles)
{
	int			i = blockIdx.x * THREADS + threadIdx.x;

	if (i < nranks)
		quantiles[i] = gv_item_value(sorted[ranks[i]]);
}

/* A call of gv_gpu_quantiles. */
template <typename Value>
struct Quantiles
{
	using Item = GvItem<Value>;
	GvSelector *selector;
	const Value *d_values;		/* [n] */
	int64_t		n;
	const int64_t *ranks;		/* [nranks] */
	int32_t		nranks;
	Value	   *quantiles;		/* [nranks] */
	int64_t    *rank_errors;	/* [nranks] */
	cudaStream_t stream;
	Buckets<Item> *d_buckets;
	Buckets<Item> buckets;
	int64_t		starts[BUCKETS + 1];	/* first rank of each bucket */
	int64_t		kept[BUCKETS + 1];	/* first rank of each bucket among the
									 * gathered items */
};

/*
 * Counts the items of each bucket if d_items is NULL.  Otherwise gathers the
 * items of the wanted buckets in d_items.
 */
template <typename Value>
static GvStatus
run_level(const Quantiles<Value> *q, GvItem<Value> *d_items, int64_t capacity)
{
	GV_CUDA_TRY(gv_upload(q->d_buckets, &q->buckets, 1, q->stream));
	return gv_launch(bucket_kernel<Value>, BLOCKS_A_SM * q->selector->nsms,
					 THREADS, sizeof(GvItem<Value>) * SAMPLED, q->stream, q->d_values, q->n, q->d_buckets,
					 d_items, (uint32_t) capacity);
}

template <typename Value>
static GvStatus
count_buckets(Quantiles<Value> *q)
{
	GV_TRY(gv_buffer_need(&q->selector->d_small,
						  sizeof(Buckets<GvItem<Value>>)));
	q->d_buckets = (Buckets<GvItem<Value>> *) q->selector->d_small.memory;
	GV_TRY(run_level(q, (GvItem<Value> *) NULL, 0));
	GV_CUDA_TRY(gv_download(&q->buckets, q->d_buckets, 1, q->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(q->stream));
	for (int b = 0; b < BUCKETS; b++)
		q->starts[b + 1] = q->starts[b] + q->buckets.counts[b];
	return GV_OK;
}

/* Returns the bucket that contains the item of that rank. */
template <typename Value>
static int
bucket_of_rank(const Quantiles<Value> *q, int64_t rank)
{
	int			low = 0;
	int			high = BUCKETS - 1;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (q->starts[middle + 1] > rank)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

/*
 * Gathers all items, or the items of buckets that contain a wanted rank.
 * Returns their number in *count.
 */
template <typename Value>
static GvStatus
gather_items(Quantiles<Value> *q, int64_t *count)
{
	GvBuffer   *items = &q->selector->d_work;

	*count = q->n;
	if (q->n <= SAMPLED)
	{
		GV_TRY(gv_buffer_need(items, 2 * sizeof(GvItem<Value>) * *count));
		return gv_launch(items_kernel<Value>, gv_blocks_for(q->n, THREADS), THREADS,
						 0, q->stream, q->d_values, q->n,
						 (GvItem<Value> *) items->memory);
	}
	GV_TRY(count_buckets(q));
	for (int32_t i = 0; i < q->nranks; i++)
		q->buckets.wanted[bucket_of_rank(q, q->ranks[i])] = 1;
	for (int b = 0; b < BUCKETS; b++)
		q->kept[b + 1] = q->kept[b] +
			(q->buckets.wanted[b] ? q->buckets.counts[b] : 0);
	*count = q->kept[BUCKETS];
	GV_TRY(gv_buffer_need(items, 2 * sizeof(GvItem<Value>) * *count));
	return run_level(q, (GvItem<Value> *) items->memory, *count);
}

/* Sorts the gathered items and reads those of the ranks. */
template <typename Value>
static GvStatus
answer_exactly(Quantiles<Value> *q)
{
	GvSelector *selector = q->selector;
	size_t		rank_bytes = sizeof(int64_t) + sizeof(Value);
	GvItem<Value> *d_items;
	int64_t    *d_ranks;
	Value	   *d_quantiles;
	int64_t		count;

	GV_TRY(gather_items(q, &count));
	d_items = (GvItem<Value> *) selector->d_work.memory;
	GV_TRY(sort_items(selector, d_items, count, q->stream));

	/*
	 * turn ranks into ranks among the gathered items.  All errors are 0, so
	 * rank_errors can hold these ranks meanwhile
	 */
	for (int32_t i = 0; i < q->nranks; i++)
	{
		int			b = bucket_of_rank(q, q->ranks[i]);

		q->rank_errors[i] = q->ranks[i] - (q->starts[b] - q->kept[b]);
	}
	GV_TRY(gv_buffer_need(&selector->d_sort, rank_bytes * q->nranks));
	d_ranks = (int64_t *) selector->d_sort.memory;
	d_quantiles = (Value *) (d_ranks + q->nranks);
	GV_CUDA_TRY(gv_upload(d_ranks, q->rank_errors, q->nranks, q->stream));
	GV_TRY(gv_launch(pick_kernel<Value>, gv_blocks_for(q->nranks, THREADS), THREADS,
					 0, q->stream, (const GvItem<Value> *) d_items + count, d_ranks, q->nranks,
					 d_quantiles));
	GV_CUDA_TRY(gv_download(q->quantiles, d_quantiles, q->nranks, q->stream));
	GV_CUDA_TRY(cudaStreamSynchronize(q->stream));
	for (int32_t i = 0; i < q->nranks; i++)
		q->rank_errors[i] = 0;
	return GV_OK;
}

/* Returns an item's value, on the host. */
static float
value_of(uint64_t item)
{
	return gv_select_value((uint32_t) (item >> 32));
}

static double
value_of(unsigned __int128 item)
{
	return gv_select_value_double((uint64_t) (item >> 32));
}

/*
 * Answers each rank with the splitter whose rank is nearest and, if two
 * splitters are equally near, with the smaller one (section II.C).
 */
template <typename Value>
static GvStatus
answer_by_splitters(Quantiles<Value> *q)
{
	GV_TRY(count_buckets(q));
	for (int32_t i = 0; i < q->nranks; i++)
	{
		/* splitter s has rank starts[s + 1] */
		int			s = bucket_of_rank(q, q->ranks[i]);

		if (s == SPLITTERS || (s > 0 && q->ranks[i] -
							   q->starts[s] <= q->starts[s + 1] - q->ranks[i]))
			s--;
		q->quantiles[i] = value_of(q->buckets.sorted[s]);
		q->rank_errors[i] = q->starts[s + 1] - q->ranks[i];
	}
	return GV_OK;
}

template <typename Value>
static GvStatus
find_quantiles(GvSelector *selector, const GvQuantiles *spec,
			   const void *d_values, const int64_t *ranks, void *quantiles,
			   int64_t *rank_errors, void *stream)
{
	Quantiles<Value> q = {selector, (const Value *) d_values, spec->n, ranks,
		spec->nranks, (Value *) quantiles, rank_errors, (cudaStream_t) stream,
		NULL, {}, {}, {}};

	return spec->approximate && q.n > SAMPLED ? answer_by_splitters(&q) :
		answer_exactly(&q);
}

extern "C" GvStatus
gv_gpu_quantiles(GvSelector *selector, const GvQuantiles *spec,
				 const void *d_values, const int64_t *ranks, void *quantiles,
				 int64_t *rank_errors, void *stream)
{
	return (spec->doubles ? find_quantiles<double> : find_quantiles<float>)
		(selector, spec, d_values, ranks, quantiles, rank_errors, stream);
}
