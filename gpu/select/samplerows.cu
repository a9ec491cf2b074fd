/*
 * samplerows.cu
 *		SampleSelect, and selection by digits: any k, any row.
 *
 * A range of items holds the k-th; all items of the row in it are counted by
 * buckets, and the range becomes the bucket that has the k-th; until what is
 * in and before it are few more than k.  Then those are gathered and sorted.
 * The first range, all items, is divided by splitters from a sample, or like
 * all others: evenly, in 2,048 parts.  As 64 bits are 11 times 5 and 9, no
 * input takes more than 6 divisions of that.  The paper copies the bucket;
 * here the row is read again and what is outside the range passed over, so
 * memory is the same for every input.
 *
 * One kernel does all of it, because which rows there are to do may be known
 * to the device alone: rows that a threshold did not hold for.  Its blocks are
 * resident, all at once, and divided among the rows; where more than one has a
 * row they wait for each other.
 *
 * Source: Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019.
 */
#include "gpu/select/samples.cuh"

/* with registers for these, enough values are on their way */
#define BLOCKS_A_SM		2
#define ALONE_COLUMNS	(1 << 20)	/* a block repairs in a millisecond */

/* Which rows, and how. */
struct Exact
{
	bool		sampled;		/* the first division is by splitters */
	bool		alone;			/* a block has a row for itself */
	uint32_t	capacity;			/* items gathered of a row, k at least */
	GvTogether *d_together;		/* [gridDim.x] */
	uint64_t   *d_items;		/* [gridDim.x][capacity]; [rows][2 capacity]
								 * where room is above GV_ROWS_CAPACITY */
	GvMissed   *missed;			/* rows are those listed, or NULL: all */
	const uint32_t *d_list;
};

/* A range that holds the k-th item of a row. */
struct Range
{
	uint64_t	first;
	uint64_t	last;
	uint32_t	count;			/* items in it */
	uint32_t	before;			/* items below first */
};

/* Shared memory of a block, beside its items. */
struct Shared
{
	uint32_t	counts[GV_DIGITS];
	GvTree256	splitters;
	Range		range;
	uint32_t	sums[GV_SAMPLERS / GV_WARP];
};

/* This block's part of the blocks that have a row together. */
struct Member
{
	GvTogether *together;
	uint32_t	nmembers;
	uint32_t	number;
	uint32_t	waits;			/* so far */
	uint32_t	turn;			/* of together->counts */

	/* All have come, and see what the others have done. */
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
			atomicAdd(&together->arrived, 1u);
			while (*(volatile uint32_t *) &together->arrived <
				   waits * nmembers)
				;
			__threadfence();
		}
		__syncthreads();
	}
};

/* The items of a part of a range divided evenly, as a power of two. */
static __device__ __forceinline__ int
part_bits(const Range &range)
{
	return max(0, 64 - __clzll((long long) (range.last - range.first)) -
			   GV_DIGIT_BITS);
}

/* Count the row's items in the range, this block's share, by buckets. */
static __device__ __forceinline__ void
count_items(const float *row, int64_t n, const Member &member, Shared &shared,
			bool by_tree)
{
	Range		range = shared.range;
	int			bits = part_bits(range);

#pragma unroll 1
	for (int64_t first = (int64_t) member.number * GV_CHUNK_STEP; first < n;
		 first += (int64_t) member.nmembers * GV_CHUNK_STEP)
	{
		float		values[GV_CHUNK_VALUES];

		gv_load_chunk(row, n, first, values);
#pragma unroll
		for (int r = 0; r < GV_CHUNK_VALUES; r++)
		{
			int64_t		i = first + r * GV_SAMPLERS + threadIdx.x;
			uint64_t	item = gv_row_item(values[r], i);
			uint64_t	offset = item - range.first;
			bool		inside = i < n && offset <= range.last - range.first;
			uint32_t	bucket = 0;

			if (inside)
				bucket = by_tree ? gv_tree_bucket(&shared.splitters, item) :
					(uint32_t) (offset >> bits);
			gv_count_bucket(shared.counts, bucket, inside);
		}
	}
}

/* The range becomes the bucket in it that has the item of that rank. */
static __device__ __forceinline__ void
enter_bucket(Shared &shared, uint32_t rank, bool by_tree)
{
	constexpr int EACH = GV_DIGITS / GV_SAMPLERS;
	Range		range = shared.range;
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	mine[EACH];
	uint32_t	sum = 0;
	uint32_t	upto;
	uint32_t	before = range.before;

#pragma unroll
	for (int e = 0; e < EACH; e++)
		sum += mine[e] = shared.counts[threadIdx.x * EACH + e];
	upto = gv_upto_lane(sum);
	if (lane == GV_WARP - 1)
		shared.sums[threadIdx.x / GV_WARP] = upto;
	__syncthreads();
	for (uint32_t w = 0; w < threadIdx.x / GV_WARP; w++)
		before += shared.sums[w];
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
				range.first = shared.splitters.sorted[b - 1];
			if (b < GV_TREE_SPLITTERS)
				range.last = shared.splitters.sorted[b] - 1;
		}
		else
		{
			int			bits = part_bits(range);
			uint64_t	end = ((uint64_t) b << bits) +
				((UINT64_C(1) << bits) - 1);

			range.last = range.first + min(end, range.last - range.first);
			range.first += (uint64_t) b << bits;
		}
		shared.range = range;
	}
	__syncthreads();
}

/* Divide the range once. */
static __device__ __forceinline__ void
divide(const float *row, const GvRowsCall &call, Member &member,
	   Shared &shared, bool by_tree)
{
	GvTogether *together = member.together;
	uint32_t   *next = together->counts[(member.turn + 1) % 3];

	for (int i = threadIdx.x; i < GV_DIGITS; i += GV_SAMPLERS)
	{
		shared.counts[i] = 0;
		if (member.number == 0)
			next[i] = 0;
	}
	__syncthreads();
	count_items(row, call.columns, member, shared, by_tree);
	__syncthreads();
	/* one block alone counts for itself */
	if (member.nmembers > 1)
		for (int i = threadIdx.x; i < GV_DIGITS; i += GV_SAMPLERS)
			if (shared.counts[i] > 0)
				atomicAdd(&together->counts[member.turn][i],
						  shared.counts[i]);
	__threadfence();
	member.wait();
	if (member.nmembers > 1)
		for (int i = threadIdx.x; i < GV_DIGITS; i += GV_SAMPLERS)
			shared.counts[i] = __ldcg(&together->counts[member.turn][i]);
	__syncthreads();
	enter_bucket(shared, (uint32_t) call.out.k - 1, by_tree);
	member.turn = (member.turn + 1) % 3;
}

/* Items up to the range's last, this block's share, to d_items [capacity]. */
static __device__ __forceinline__ void
gather(const float *row, int64_t n, const Member &member, uint64_t last,
	   uint64_t *d_items, uint32_t capacity)
{
#pragma unroll 1
	for (int64_t first = (int64_t) member.number * GV_CHUNK_STEP; first < n;
		 first += (int64_t) member.nmembers * GV_CHUNK_STEP)
	{
		float		values[GV_CHUNK_VALUES];
		uint32_t	mask = 0;

		gv_load_chunk(row, n, first, values);
#pragma unroll
		for (int r = 0; r < GV_CHUNK_VALUES; r++)
		{
			int64_t		i = first + r * GV_SAMPLERS + threadIdx.x;

			if (i < n && gv_row_item(values[r], i) <= last)
				mask |= 1u << r;
		}
		gv_append(values, first, mask, &member.together->gathered, d_items,
				  capacity);
	}
}

/* The k first of one row. */
static __device__ __forceinline__ void
do_row(const GvRowsCall &call, const Exact &exact, int64_t number,
	   uint64_t *d_items, Member &member, Shared &shared, uint64_t *items)
{
	const float *row = gv_row(call, number);
	bool		by_tree = exact.sampled && call.columns >= GV_SAMPLED;
	uint32_t	count;

	if (by_tree && call.columns > exact.capacity)
		gv_plant(row, call.columns, items, &shared.splitters);
	__syncthreads();
	if (threadIdx.x == 0)
		shared.range = {0, GV_NO_ITEM, (uint32_t) call.columns, 0};
	__syncthreads();
	while (shared.range.before + shared.range.count > exact.capacity)
	{
		divide(row, call, member, shared, by_tree);
		by_tree = false;
	}
	count = shared.range.before + shared.range.count;
	gather(row, call.columns, member, shared.range.last, d_items,
		   exact.capacity);
	__threadfence();
	member.wait();
	if (member.number == 0)
	{
		if (exact.capacity <= GV_ROWS_CAPACITY)
		{
			for (uint32_t i = threadIdx.x; i < count; i += GV_SAMPLERS)
				items[i] = __ldcg(&d_items[i]);
			__syncthreads();
			gv_team_write<GV_SAMPLERS>(items, count, call.out, number);
		}
		else
			for (uint32_t i = count + threadIdx.x; i < exact.capacity;
				 i += GV_SAMPLERS)
				d_items[i] = GV_NO_ITEM;
		if (threadIdx.x == 0)
			member.together->gathered = 0;
		__threadfence();
	}
	__syncthreads();
}

/* The last block to leave puts things back to what the next call finds. */
static __device__ __forceinline__ void
leave(const Exact &exact, const Member &member)
{
	GvTogether *together = member.together;

	__syncthreads();
	GV_TEST_ONLY(if (blockIdx.x == 0 && threadIdx.x == 0 &&
					 exact.missed != NULL)
				 exact.missed->total += exact.missed->n;)
	if (threadIdx.x == 0 && member.nmembers > 1 &&
		atomicAdd(&together->left, 1u) + 1 == member.nmembers)
	{
		together->arrived = 0;
		together->left = 0;
	}
	__threadfence();
	if (threadIdx.x == 0 && exact.missed != NULL &&
		atomicAdd(&exact.missed->left, 1u) + 1 == gridDim.x)
	{
		exact.missed->n = 0;
		exact.missed->left = 0;
	}
}

/*
 * Rows to blocks: one to several, or several to one.  All blocks are resident.
 * Shared: items [GV_ROWS_CAPACITY].
 */
static __global__ void __launch_bounds__(GV_SAMPLERS, BLOCKS_A_SM)
exact_kernel(GvRowsCall call, Exact exact)
{
	GV_SHARED(memory);
	__shared__ Shared shared;
	uint32_t	nrows = (uint32_t) call.rows;	/* at most GV_ROWS_PASS */
	uint32_t	nteams;
	Member		member;
	uint32_t	team;

	gv_step_begins();
	if (exact.missed != NULL)
		nrows = __ldcg(&exact.missed->n);
	if (nrows == 0)
		return;
	nteams = min(nrows, gridDim.x);
	member.nmembers = exact.alone ? 1 : gridDim.x / nteams;
	member.number = blockIdx.x % member.nmembers;
	team = blockIdx.x / member.nmembers;
	if (team >= nteams)
		member.nmembers = 1;	/* to spare */
	member.together = &exact.d_together[team];
	member.waits = 0;
	member.turn = 0;
	if (member.number == 0)
		for (int i = threadIdx.x; i < GV_DIGITS; i += GV_SAMPLERS)
			member.together->counts[0][i] = 0;
	__threadfence();
	member.wait();
	for (uint32_t i = team; i < nrows && team < nteams; i += nteams)
	{
		int64_t		number = exact.missed != NULL ? exact.d_list[i] :
			call.first + i;
		int64_t		offset = exact.capacity <= GV_ROWS_CAPACITY ?
			(int64_t) team * GV_ROWS_CAPACITY : 2 * (int64_t) i *
				exact.capacity;

		do_row(call, exact, number, exact.d_items + offset, member, shared,
			   (uint64_t *) memory);
	}
	leave(exact, member);
}

/* Blocks of a launch: all are resident, by the driver's word. */
static GvStatus
launch(GvSelector *selector, GvRowsCall call, Exact exact,
	   cudaStream_t stream)
{
	size_t		bytes = sizeof(uint64_t) * GV_ROWS_CAPACITY;

	GV_TRY(gv_allow_shared((const void *) exact_kernel, bytes));
#ifdef __CUDACC__
	void	   *arguments[] = {&call, &exact};

	return gv_cuda_status(cudaLaunchCooperativeKernel((const void *)
													  exact_kernel,
													  dim3(selector->nblocks),
													  dim3(GV_SAMPLERS),
													  arguments, bytes,
													  stream));
#else
	GV_LAUNCH(exact_kernel, selector->nblocks, GV_SAMPLERS, bytes, stream,
			  call, exact);
	return gv_cuda_status(cudaGetLastError());
#endif
}

/* How many blocks of exact_kernel are resident; emulated ones run in turn. */
int
gv_exact_blocks(int nsms)
{
#ifdef __CUDACC__
	size_t		bytes = sizeof(uint64_t) * GV_ROWS_CAPACITY;
	int			nblocks = 0;

	if (gv_allow_shared((const void *) exact_kernel, bytes) != GV_OK ||
		cudaOccupancyMaxActiveBlocksPerMultiprocessor(&nblocks, exact_kernel,
													  GV_SAMPLERS,
													  bytes) != cudaSuccess)
		return 0;
	return nsms * nblocks;
#else
	return 1;
#endif
}

/* Items gathered of a row, beyond what a block sorts anyway. */
static int64_t
exact_capacity(int64_t k)
{
	if (k + k / 8 <= GV_ROWS_CAPACITY)
		return GV_ROWS_CAPACITY;
	return k + (k / 8 > 4096 ? k / 8 : 4096);
}

size_t
gv_exact_bytes(int64_t k)
{
	int64_t		capacity = exact_capacity(k);

	return capacity <= GV_ROWS_CAPACITY ? 0 : 2 * sizeof(uint64_t) * capacity;
}

/* Any rows, any k. */
GvStatus
gv_rows_exact(GvSelector *selector, const GvRowsCall *call, GvRowsWay way,
			  cudaStream_t stream)
{
	Exact		exact = {};

	exact.sampled = way != GV_ROWS_RADIX;
	exact.capacity = (uint32_t) exact_capacity(call->out.k);
	exact.d_together = selector->d_together;
	exact.d_items = exact.capacity <= GV_ROWS_CAPACITY ? selector->d_items :
		(uint64_t *) selector->d_work.memory;
	GV_TRY(launch(selector, *call, exact, stream));
	return exact.capacity <= GV_ROWS_CAPACITY ? GV_OK :
		gv_write_rows(selector, call, exact.d_items, exact.capacity, stream);
}

/*
 * Rows of a pass that a threshold did not hold for.  Mostly there are none,
 * and a cooperative launch cannot begin early; so where one block is not too
 * long about a row, none waits for others.
 */
GvStatus
gv_rows_repair(GvSelector *selector, const GvRowsCall *call,
			   cudaStream_t stream)
{
	Exact		exact = {};

	exact.capacity = GV_ROWS_CAPACITY;
	exact.d_together = selector->d_together;
	exact.d_items = selector->d_items;
	exact.missed = selector->d_missed;
	exact.d_list = (const uint32_t *) selector->d_list.memory;
	exact.alone = call->columns <= ALONE_COLUMNS;
	if (exact.alone)
		return gv_launch_early(selector->overlap, exact_kernel,
							   call->rows < selector->nblocks ? call->rows :
							   selector->nblocks, GV_SAMPLERS,
							   sizeof(uint64_t) * GV_ROWS_CAPACITY, stream,
								*call,
							   exact);
	return launch(selector, *call, exact, stream);
}
