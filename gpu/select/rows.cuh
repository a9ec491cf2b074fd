/*
 * rows.cuh
 *		What the ways of selection share: items, teams of threads that sort and
 *		count together, a selector's memory, launches.
 *
 * A team is a warp or all threads of a block, THREADS of them; its members
 * meet in gv_team_sync and see then what others have written to shared memory.
 */
#ifndef GV_ROWS_CUH
#define GV_ROWS_CUH

#include <stdint.h>

#include "gpu/common/bisect.cuh"
#include "gpu/select/gv_selection.h"

#define GV_NO_ITEM		(~UINT64_C(0))	/* after every item */
#define GV_NO_KEY		0xFFFFFFFFu	/* after every key */
#define GV_ROWS_CAPACITY	8192	/* items that a block sorts */
#define GV_TEAM_MAX_K	2048
#define GV_THRESHOLD_MAX_K	4096
#define GV_DIGIT_BITS	11
#define GV_DIGITS		(1 << GV_DIGIT_BITS)

/* gv_select_key */
static __device__ __forceinline__ uint32_t
gv_row_key(float value)
{
	return value != value ? 0xFFC00000u : gv_ordered(value);
}

static __device__ __forceinline__ uint64_t
gv_row_item(float value, int64_t position)
{
	return (uint64_t) gv_row_key(value) << 32 | (uint32_t) position;
}

static __device__ __forceinline__ float
gv_item_value(uint64_t item)
{
	return gv_unordered((uint32_t) (item >> 32));
}

/* A value that may be selected, and where it was; not yet an item. */
struct GvTaken
{
	float		value;
	uint32_t	position;
};

/*
 * mask * 2, and 1 more where a is before b, which is not +0: the sign of their
 * difference, that is.  -0 less +0 has one, and is no less.  NaN is before
 * nothing.
 */
static __device__ __forceinline__ uint32_t
gv_mark_before(uint32_t mask, float a, float b)
{
	float		apart = a - b;

#ifdef __CUDA_ARCH__
	/* no NaN that a device makes has a sign */
	return __funnelshift_l(__float_as_uint(apart), mask, 1);
#else
	return mask << 1 | (apart == apart ? __float_as_uint(apart) >> 31 : 0);
#endif
}

template <int THREADS>
static __device__ __forceinline__ void
gv_team_sync()
{
	if constexpr (THREADS == GV_WARP)
		__syncwarp();
	else
		__syncthreads();
}

/* Sums and exchanges over the threads of a team. */
template <int THREADS>
struct GvTeam
{
	GvTalk		talk;			/* of a block */

	__device__ __forceinline__ uint32_t
	sum(uint32_t mine)
	{
		if constexpr (THREADS == GV_WARP)
			return __reduce_add_sync(GV_FULL_WARP, mine);
		else
			return talk.sum(mine);
	}

	/* The largest. */
	__device__ __forceinline__ uint32_t
	most(uint32_t mine)
	{
		if constexpr (THREADS == GV_WARP)
			return __reduce_max_sync(GV_FULL_WARP, mine);
		else
			return talk.most(mine);
	}
};

/* The item that stays at i when it meets the one `stride` lanes away. */
static __device__ __forceinline__ uint64_t
gv_lane_exchange(uint64_t item, uint32_t i, uint32_t size, uint32_t stride)
{
	uint64_t	other = __shfl_xor_sync(GV_FULL_WARP, item, (int) stride);
	bool		first = ((i & size) == 0) == ((i & stride) == 0);

	return (other < item) == first ? other : item;
}

/*
 * Sort items [n] in shared memory, n a power of two and at least 32, by all of
 * a team, for which they are there already.  A bitonic network; what stays in
 * 32 items goes by shuffles.
 */
template <int THREADS>
static __device__ __forceinline__ void
gv_team_sort(uint64_t *items, uint32_t n)
{
	uint32_t	me = threadIdx.x % THREADS;

	for (uint32_t i = me; i < n; i += THREADS)
	{
		uint64_t	item = items[i];

#pragma unroll 1
		for (uint32_t size = 2; size <= GV_WARP; size *= 2)
			for (uint32_t stride = size / 2; stride > 0; stride /= 2)
				item = gv_lane_exchange(item, i, size, stride);
		items[i] = item;
	}
	gv_team_sync<THREADS>();
#pragma unroll 1
	for (uint32_t size = 2 * GV_WARP; size <= n; size *= 2)
	{
#pragma unroll 1
		for (uint32_t stride = size / 2; stride >= GV_WARP; stride /= 2)
		{
			for (uint32_t p = me; p < n / 2; p += THREADS)
			{
				uint32_t	low = 2 * p - (p & (stride - 1));
				uint64_t	a = items[low];
				uint64_t	b = items[low + stride];

				if ((b < a) == ((low & size) == 0))
				{
					items[low] = b;
					items[low + stride] = a;
				}
			}
			gv_team_sync<THREADS>();
		}
		for (uint32_t i = me; i < n; i += THREADS)
		{
			uint64_t	item = items[i];

#pragma unroll
			for (uint32_t stride = GV_WARP / 2; stride > 0; stride /= 2)
				item = gv_lane_exchange(item, i, size, stride);
			items[i] = item;
		}
		gv_team_sync<THREADS>();
	}
}

/* Fill items up to a power of two that can be sorted; returns that. */
template <int THREADS>
static __device__ __forceinline__ uint32_t
gv_team_pad(uint64_t *items, uint32_t count)
{
	uint32_t	size = GV_WARP;

	while (size < count)
		size *= 2;
	for (uint32_t i = count + threadIdx.x % THREADS; i < size; i += THREADS)
		items[i] = GV_NO_ITEM;
	gv_team_sync<THREADS>();
	return size;
}

/* Where a call's answers go. */
struct GvRowsOut
{
	uint32_t   *d_positions;	/* [rows][k] */
	float	   *d_selected;		/* [rows][k] */
	int64_t		k;
};

static __device__ __forceinline__ void
gv_write_item(const GvRowsOut &out, int64_t row, int64_t i, uint64_t item)
{
	out.d_positions[row * out.k + i] = (uint32_t) item;
	out.d_selected[row * out.k + i] = gv_item_value(item);
}

/* The k first of count items, in shared memory with memory for 2^n of them. */
template <int THREADS>
static __device__ __forceinline__ void
gv_team_write(uint64_t *items, uint32_t count, const GvRowsOut &out,
			 int64_t row)
{
	gv_team_sort<THREADS>(items, gv_team_pad<THREADS>(items, count));
	for (uint32_t i = threadIdx.x % THREADS; i < out.k; i += THREADS)
		gv_write_item(out, row, i, items[i]);
}

/* A row's items so far; 0, but for the threshold, between calls. */
struct GvRowState
{
	uint64_t	threshold;
	uint32_t	sampled;		/* blocks that have */
	uint32_t	count;			/* items that are not after the threshold */
	uint32_t	done;			/* blocks that are */
	uint32_t	bound;			/* no key above ~bound is wanted */
};

/* Rows that a threshold did not hold for. */
struct GvMissed
{
	uint32_t	n;				/* of this pass */
	uint32_t	left;			/* blocks that have seen to them */
	uint32_t	total;
	uint32_t	unused;
};

/* Blocks that have a row together; between calls all but counts is 0. */
struct GvTogether
{
	uint32_t	counts[3][GV_DIGITS];	/* in turn: one is counted in while the
										 * next is cleared */
	uint32_t	arrived;		/* at all barriers so far */
	uint32_t	left;
	uint32_t	gathered;		/* items */
	uint32_t	unused;
};

#define GV_ROWS_PASS	(1 << 16)	/* rows at a time, at most */
#define GV_ROWS_MEMORY	(INT64_C(256) << 20)	/* bytes for theirs */

struct GvSelector
{
	int			nsms;
	int			nblocks;		/* of exact_kernel that are resident */
	bool		overlap;		/* see gv_step_begins */
	GvRowState *d_states;		/* [GV_ROWS_PASS] */
	GvMissed   *d_missed;
	GvTogether *d_together;		/* [nblocks] */
	uint64_t   *d_items;		/* [nblocks][GV_ROWS_CAPACITY] */
	GvBuffer	d_work;			/* of one pass over rows */
	GvBuffer	d_list;			/* uint32 [rows] that a threshold missed */
	GvBuffer	d_sort;			/* CUB's */
};

/* One pass: rows from first on. */
struct GvRowsCall
{
	const float *d_values;		/* [rows][columns] */
	int64_t		columns;
	int64_t		all_rows;
	int64_t		first;
	int64_t		rows;			/* of this pass */
	GvRowsOut	out;
};

static __device__ __forceinline__ const float *
gv_row(const GvRowsCall &call, int64_t row)
{
	return call.d_values + row * call.columns;
}

/* The least power of two that is no less, at least `least`. */
static inline int64_t
gv_power(int64_t n, int64_t least)
{
	int64_t		power = least;

	while (power < n)
		power *= 2;
	return power;
}

/* guessrows.cu: k that it selects of rows so long, and those */
extern int64_t gv_estimate_most(int64_t columns);
extern GvStatus gv_rows_estimate(GvSelector *selector, const GvRowsCall *call,
							cudaStream_t stream);

/* multirows.cu, thresholdrows.cu, warprows.cu, samplerows.cu: one way each */
extern GvStatus gv_rows_team(GvSelector *selector, const GvRowsCall *call,
							 cudaStream_t stream);
extern GvStatus gv_rows_threshold(GvSelector *selector,
								  const GvRowsCall *call,
								  cudaStream_t stream);
extern GvStatus gv_rows_warp(GvSelector *selector, const GvRowsCall *call,
							 cudaStream_t stream);
extern GvStatus gv_rows_exact(GvSelector *selector, const GvRowsCall *call,
							  GvRowsWay way, cudaStream_t stream);
extern GvStatus gv_rows_repair(GvSelector *selector, const GvRowsCall *call,
							   cudaStream_t stream);

/* Bytes of d_work that a row takes, and how many blocks can be resident. */
extern size_t gv_threshold_bytes(int64_t columns, int64_t k);
extern size_t gv_warp_bytes(const GvSelector *selector, int64_t rows,
							int64_t columns, int64_t k);
extern size_t gv_exact_bytes(int64_t k);
extern int gv_exact_blocks(int nsms);

/* sortrows.cu: sort items [2][n], the first half; where sorted ones are */
extern GvStatus gv_sort_items(uint64_t *d_items, int64_t n, GvBuffer *d_sort,
							  const uint64_t **d_sorted, cudaStream_t stream);

/*
 * Sorts the first half of each row's items [rows][2][capacity] and writes its
 * k first.
 */
extern GvStatus gv_write_rows(GvSelector *selector, const GvRowsCall *call,
							 uint64_t *d_items, uint32_t capacity,
							 cudaStream_t stream);

#endif							/* GV_ROWS_CUH */
