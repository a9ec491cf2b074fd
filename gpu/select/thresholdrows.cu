/*
 * thresholdrows.cu
 *		Long rows, few wanted: a threshold from a sample, one read of the row.
 *
 * The threshold is an item of the sample that is not before the k-th of the
 * row but rarely, see thresholdplan.cu; a few times k items at most are not
 * after it.  A block that has seen its piece of the row hands them over, and
 * the last block of the row sorts them.  As items are compared, values with
 * their positions, equal values are no special case.
 *
 * Where fewer than k or more than fit are found, samplerows.cu
 * selects again.
 */
#include "gpu/select/buckets.cuh"
#include "gpu/select/groups.cuh"
#include "gpu/select/guess.cuh"

#define READERS			512		/* threads of stream_kernel */
#define AHEAD			4		/* vectors that a thread has on their way */
#define PIECE			(16 * READERS * AHEAD * 4)	/* values a block, where
													 * there are enough */
#define WHOLE_BLOCKS	3		/* resident, of whole_kernel */
#define WARP_ITEMS		16		/* of a lane that selects from what was kept */
#define WARP_SORTED		32
#define WARP_MOST_K		24
#define DENSE			2000	/* columns of which more than one is wanted */

/*
 * A row's threshold, by plan.samplers blocks, of which the last chooses among
 * what the groups begin with.  Shared: items [samplers * groups].
 */
static __global__ void __launch_bounds__(GV_GROUP_THREADS)
sample_kernel(GvRowsCall call, GvGroupPlan plan, GvRowState *states,
			  uint64_t *d_firsts)
{
	GV_SHARED(memory);
	__shared__ uint64_t sampled[GV_BLOCK_GROUPS];
	__shared__ bool last;
	uint64_t   *items = (uint64_t *) memory;
	int64_t		slot = blockIdx.x / plan.samplers;
	int			block = blockIdx.x % plan.samplers;
	uint32_t	total = plan.samplers * plan.groups;
	GvRowState *state = &states[slot];
	uint64_t	threshold;

	gv_wait_for_last();
	gv_let_next_begin();
	gv_sample_groups<GV_MOST_VECTORS>(plan,
									  GvRowVectors(call, call.first + slot),
									  block, sampled, items);
	if (plan.samplers > 1)
	{
		uint64_t   *mine = d_firsts + slot * total;

		for (int g = threadIdx.x; g < plan.groups; g += GV_GROUP_THREADS)
			mine[block * plan.groups + g] = items[g];
		__threadfence();
		__syncthreads();
		if (threadIdx.x == 0)
			last = atomicAdd(&state->sampled, 1u) + 1 ==
				(uint32_t) plan.samplers;
		__syncthreads();
		if (!last)
			return;
		__threadfence();
		for (uint32_t i = threadIdx.x; i < total; i += GV_GROUP_THREADS)
			items[i] = __ldcg(&mine[i]);
	}
	__syncthreads();
	threshold = gv_find_threshold(plan, items, total);
	if (threadIdx.x == 0)
	{
		state->threshold = threshold;
		state->sampled = 0;
	}
}

/* A block's items, in shared memory; count goes on where room ends. */
struct Kept
{
	uint64_t   *items;			/* [capacity] */
	uint32_t   *count;
	uint32_t	capacity;
	uint64_t	threshold;
	float		value;			/* its */

	/* NaN on either side, and what is equal, has to be looked at. */
	__device__ __forceinline__ bool
	may(float value_) const
	{
		return !(value_ > value);
	}

	__device__ __forceinline__ bool
	is(float value_, int64_t position) const
	{
		return value_ < value ||
			(may(value_) && gv_row_item(value_, position) <= threshold);
	}

	__device__ __forceinline__ void
	put(uint32_t at, float value_, int64_t position)
	{
		if (at < capacity)
			items[at] = gv_row_item(value_, position);
	}

	__device__ __forceinline__ void
	offer(float value_, int64_t position)
	{
		if (is(value_, position))
			put(atomicAdd(count, 1u), value_, position);
	}

	/* One place is taken for all four: atomics are what many cost. */
	__device__ __forceinline__ void
	offer(float4 v, int64_t position)
	{
		if (may(v.x) || may(v.y) || may(v.z) || may(v.w))
		{
			bool		x = is(v.x, position);
			bool		y = is(v.y, position + 1);
			bool		z = is(v.z, position + 2);
			bool		w = is(v.w, position + 3);
			uint32_t	at = atomicAdd(count, (uint32_t) (x + y + z + w));

			if (x)
				put(at++, v.x, position);
			if (y)
				put(at++, v.y, position + 1);
			if (z)
				put(at++, v.z, position + 2);
			if (w)
				put(at, v.w, position + 3);
		}
	}
};

/* A thread's first vectors of a piece, on their way early. */
struct Ahead
{
	float4		v[AHEAD];
	int64_t		i;				/* the first's number */
	int64_t		end;			/* of the piece */
	bool		full;			/* there are AHEAD of them */

	__device__ __forceinline__ void
	load(const GvRowVectors &row)
	{
		full = i + (AHEAD - 1) * READERS < end;
		if (full)
#pragma unroll
			for (int a = 0; a < AHEAD; a++)
				v[a] = row.at(i + a * READERS);
	}
};

/* The rest of a piece, and by the first block what of the row is in none. */
static __device__ __forceinline__ void
read_piece(const GvRowVectors &row, Ahead &ahead, bool first, Kept &kept)
{
	int64_t		position;

#pragma unroll 1
	while (ahead.full)
	{
#pragma unroll
		for (int a = 0; a < AHEAD; a++)
			kept.offer(ahead.v[a], row.head + 4 * (ahead.i + a * READERS));
		ahead.i += AHEAD * READERS;
		ahead.load(row);
	}
#pragma unroll 1
	for (; ahead.i < ahead.end; ahead.i += READERS)
		kept.offer(row.at(ahead.i), row.head + 4 * ahead.i);
	if (first && threadIdx.x < 8 && row.rest(threadIdx.x, &position))
		kept.offer(row.row[position], position);
}

/*
 * All of a row where many are kept: in the place of items values that are
 * before `beyond`, which the threshold's is, with their positions.  Not +0:
 * see gv_mark_before.
 */
static __device__ __forceinline__ void
read_many(const GvRowVectors &row, float beyond, Kept &kept)
{
	GvTaken    *taken = (GvTaken *) kept.items;
	int64_t		position;

#pragma unroll 1
	for (int64_t first = 0; first < row.count; first += AHEAD * READERS)
	{
		float4		v[AHEAD];
		uint32_t	mask = 0;
		uint32_t	mine;
		uint32_t	at;

#pragma unroll
		for (int a = 0; a < AHEAD; a++)
		{
			int64_t		i = first + a * READERS + threadIdx.x;

			v[a] = make_float4(INFINITY, INFINITY, INFINITY, INFINITY);
			if (i < row.count)
				v[a] = row.at(i);
		}
#pragma unroll
		for (int a = 0; a < AHEAD; a++)
		{
			mask = gv_mark_before(mask, v[a].x, beyond);
			mask = gv_mark_before(mask, v[a].y, beyond);
			mask = gv_mark_before(mask, v[a].z, beyond);
			mask = gv_mark_before(mask, v[a].w, beyond);
		}
		mine = (uint32_t) __popc(mask);
		at = gv_reserve(mine, kept.count);
		if (at + mine > kept.capacity)
			continue;
		position = row.head + 4 * (first + threadIdx.x);
#pragma unroll
		for (int a = 0; a < AHEAD; a++)
		{
			uint32_t	p = (uint32_t) position + 4 * a * READERS;

			if (v[a].x < beyond)
				taken[at++] = {v[a].x, p};
			if (v[a].y < beyond)
				taken[at++] = {v[a].y, p + 1};
			if (v[a].z < beyond)
				taken[at++] = {v[a].z, p + 2};
			if (v[a].w < beyond)
				taken[at++] = {v[a].w, p + 3};
		}
	}
	if (threadIdx.x < 8 && row.rest(threadIdx.x, &position) &&
		row.row[position] < beyond)
	{
		uint32_t	at = atomicAdd(kept.count, 1u);

		if (at < kept.capacity)
			taken[at] = {row.row[position], (uint32_t) position};
	}
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < min(*kept.count, kept.capacity);
		 i += READERS)
		kept.items[i] = gv_row_item(taken[i].value, taken[i].position);
}

/* Bring a block's items to the row's, capacity of them; is it the last to? */
static __device__ __forceinline__ bool
hand_over(GvRowState *state, const Kept &kept, uint32_t pieces,
		  uint64_t *d_items)
{
	__shared__ uint32_t at;
	__shared__ bool last;
	uint32_t	count = *kept.count;

	if (threadIdx.x == 0)
		at = count > 0 ? atomicAdd(&state->count, count) : 0;
	__syncthreads();
	/* what has no room makes the count too large, whatever else comes */
	if (count <= kept.capacity && at <= kept.capacity - count)
		for (uint32_t i = threadIdx.x; i < count; i += READERS)
			d_items[at + i] = kept.items[i];
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0)
		last = atomicAdd(&state->done, 1u) + 1 == pieces;
	__syncthreads();
	return last;
}

/*
 * Give the k first of count items, by all threads.  Of few a warp first finds
 * those that it can sort.
 */
static __device__ __forceinline__ void
write_kept(GvBuckets &buckets, uint32_t count, const GvRowsOut &out,
		  int64_t row)
{
	__shared__ bool written;
	__shared__ uint32_t place;

	if (out.k <= WARP_MOST_K && count <= WARP_ITEMS * GV_WARP)
	{
		if (threadIdx.x < GV_WARP)
		{
			float		values[WARP_ITEMS];
			GvTeam<GV_WARP> team = {};
			bool		done;

#pragma unroll
			for (int r = 0; r < WARP_ITEMS; r++)
			{
				uint32_t	i = r * GV_WARP + threadIdx.x;

				values[r] = i < count ? gv_item_value(buckets.items[i]) : NAN;
			}
			done = gv_write_estimated<WARP_SORTED / GV_WARP>(values, [&](int r)
			{
				return (uint32_t) buckets.items[r * GV_WARP + threadIdx.x];
			}, count, team, (GvTaken *) buckets.ends, &place, out, row);
			if (threadIdx.x == 0)
				written = done;
		}
		__syncthreads();
		if (written)
			return;
	}
	gv_buckets_write<READERS>(buckets, count, out, row);
}

/*
 * The `pieces` blocks of a row collect the items that are not after its
 * threshold; the last of them makes the answer.  Shared: gv_bucket_bytes.
 */
static __global__ void __launch_bounds__(READERS)
stream_kernel(GvRowsCall call, uint32_t pieces, uint32_t capacity,
			  GvRowState *states, uint64_t *d_items, GvMissed *missed,
			  uint32_t *d_list)
{
	GV_SHARED(memory);
	__shared__ uint32_t kept_count;
	int64_t		slot = blockIdx.x / pieces;
	uint32_t	piece = blockIdx.x % pieces;
	GvRowState *state = &states[slot];
	GvRowVectors		row(call, call.first + slot);
	GvBuckets	buckets(memory, capacity);
	Kept		kept = {buckets.items, &kept_count, capacity, 0, 0.0f};
	Ahead		ahead;
	uint32_t	count;

	/* 1. this block's piece */
	ahead.i = row.count * piece / pieces + threadIdx.x;
	ahead.end = row.count * (piece + 1) / pieces;
	ahead.load(row);
	if (threadIdx.x == 0)
		kept_count = 0;
	gv_wait_for_last();
	kept.threshold = __ldcg(&state->threshold);
	kept.value = gv_item_value(kept.threshold);
	__syncthreads();
	read_piece(row, ahead, piece == 0, kept);
	__syncthreads();

	/* 2. all pieces together */
	count = kept_count;
	if (pieces > 1)
	{
		uint64_t   *mine = d_items + slot * capacity;

		if (!hand_over(state, kept, pieces, mine))
			return;
		__threadfence();
		count = __ldcg(&state->count);
		for (uint32_t i = threadIdx.x; i < min(count, capacity); i += READERS)
			kept.items[i] = __ldcg(&mine[i]);
	}
	__syncthreads();
	if (threadIdx.x == 0)
	{
		state->count = 0;
		state->done = 0;
	}

	/* 3. the answer, or none */
	if (count >= call.out.k && count <= capacity)
		write_kept(buckets, count, call.out, call.first + slot);
	else if (threadIdx.x == 0)
		d_list[atomicAdd(&missed->n, 1u)] = (uint32_t) (call.first + slot);
}

/*
 * Both at once, a block a row, where rows are many: while one is sampled or
 * sorted others are read.  Shared: gv_bucket_bytes.
 */
static __global__ void __launch_bounds__(READERS, WHOLE_BLOCKS)
whole_kernel(GvRowsCall call, GvGroupPlan plan, GvMissed *missed,
			 uint32_t *d_list)
{
	GV_SHARED(memory);
	__shared__ uint32_t count;
	int64_t		number = call.first + blockIdx.x;
	GvRowVectors		row(call, number);
	GvBuckets	buckets(memory, plan.capacity);
	Kept		kept = {buckets.items, &count, plan.capacity, 0, 0.0f};
	Ahead		ahead;

	gv_step_begins();

	/* 1. the threshold; what the sort takes later is free */
	if (threadIdx.x == 0)
		count = 0;
	gv_sample_groups<AHEAD>(plan, row, 0, (uint64_t *) buckets.ends,
							buckets.items);
	__syncthreads();
	kept.threshold = gv_find_threshold(plan, buckets.items, plan.groups);
	kept.value = gv_item_value(kept.threshold);
	__syncthreads();

	/* 2. what is not after it; with all that equal it, unless too many */
	if (call.out.k > call.columns / DENSE)
	{
		float		beyond =
			gv_unordered((uint32_t) (kept.threshold >> 32) + 1);

		read_many(row, beyond == 0.0f ? -0.0f : beyond, kept);
		__syncthreads();
	}
	if (count < call.out.k || count > plan.capacity)
	{
		__syncthreads();
		if (threadIdx.x == 0)
			count = 0;
		__syncthreads();
		ahead.i = threadIdx.x;
		ahead.end = row.count;
		ahead.load(row);
		read_piece(row, ahead, true, kept);
	}
	__syncthreads();

	/* 3. the answer, or none */
	if (count >= call.out.k && count <= plan.capacity)
		write_kept(buckets, count, call.out, number);
	else if (threadIdx.x == 0)
		d_list[atomicAdd(&missed->n, 1u)] = (uint32_t) number;
}

size_t
gv_threshold_bytes(int64_t columns, int64_t k)
{
	GvGroupPlan plan = gv_threshold_plan(columns, k);

	return sizeof(uint64_t) * (plan.capacity + plan.samplers * plan.groups);
}

/* Rows that gv_gpu_rows_can names. */
GvStatus
gv_rows_threshold(GvSelector *selector, const GvRowsCall *call,
				  cudaStream_t stream)
{
	GvGroupPlan plan = gv_threshold_plan(call->columns, call->out.k);
	int64_t		total = plan.samplers * plan.groups;
	uint64_t   *d_items = (uint64_t *) selector->d_work.memory;
	uint64_t   *d_firsts = d_items + call->rows * plan.capacity;
	int64_t		pieces = 3 * (int64_t) selector->nsms / call->rows;
	int64_t		fair = (call->columns + PIECE - 1) / PIECE;

	/*
	 * as many as are resident, in pieces of one size, or many that are dealt
	 * as they come; but a piece is not to be too short
	 */
	if (call->rows > 1 && pieces < fair)
		pieces = fair;
	if (pieces > (call->columns + PIECE / 16 - 1) / (PIECE / 16))
		pieces = (call->columns + PIECE / 16 - 1) / (PIECE / 16);
	if (pieces < 1)
		pieces = 1;
	if (pieces == 1 && plan.samplers == 1)
	{
		GV_TRY(gv_launch_early(selector->overlap, whole_kernel, call->rows,
							   READERS,
							   gv_bucket_bytes(plan.capacity,
											   (uint32_t) call->out.k),
							   stream, *call, plan, selector->d_missed,
							   (uint32_t *) selector->d_list.memory));
		return gv_rows_repair(selector, call, stream);
	}
	GV_TRY(gv_launch_early(selector->overlap, sample_kernel,
						   call->rows * plan.samplers, GV_GROUP_THREADS,
						   sizeof(uint64_t) * gv_power(total, GV_WARP), stream,
						   *call, plan, selector->d_states, d_firsts));
	GV_TRY(gv_launch_early(selector->overlap, stream_kernel,
						   call->rows * pieces, READERS,
						   gv_bucket_bytes(plan.capacity,
										   (uint32_t) call->out.k),
						   stream, *call, (uint32_t) pieces, plan.capacity,
						   selector->d_states, d_items, selector->d_missed,
						   (uint32_t *) selector->d_list.memory));
	return gv_rows_repair(selector, call, stream);
}
