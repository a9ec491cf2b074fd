/*
 * rows.cuh
 *		Items of rows and their sort by a block, and the three methods that
 *		selectset.cu calls.  Values are floats or doubles.
 */
#ifndef GV_ROWS_CUH
#define GV_ROWS_CUH

#include "gpu/device/kbound.cuh"
#include "gpu/select/select.h"

#define GV_NO_KEY			0xFFFFFFFFu /* after every key */
#define GV_ROWS_BYTES		65536	/* of the most items that a block sorts */
#define GV_ROWS_CAPACITY	8192	/* floats' items that take these bytes */

template <typename Value> struct GvItemOf { using Type = uint64_t; };
template <> struct GvItemOf<double> { using Type = unsigned __int128; };
template <typename Value> using GvItem = typename GvItemOf<Value>::Type;

/* After every item; of 128 bits 96 are used. */
template <typename Item>
constexpr Item gv_no_item = ~Item(0) >> (sizeof(Item) > 8 ? 32 : 0);

/* gv_select_key on the device. */
static __device__ __forceinline__ uint32_t
gv_row_key(float value)
{
	return value != value ? 0xFFC00000u : gv_ordered(value);
}

static __device__ __forceinline__ uint64_t
gv_row_key(double value)
{
	uint64_t	bits = (uint64_t) __double_as_longlong(value + 0.0);

	if (value != value)
		return UINT64_C(0xFFF8) << 48;
	return bits >> 63 ? ~bits : bits | UINT64_C(1) << 63;
}

template <typename Value>
static __device__ __forceinline__ GvItem<Value>
gv_row_item(Value value, int64_t position)
{
	return (GvItem<Value>) gv_row_key(value) << 32 | (uint32_t) position;
}

static __device__ __forceinline__ float
gv_item_value(uint64_t item)
{
	return gv_unordered((uint32_t) (item >> 32));
}

static __device__ __forceinline__ double
gv_item_value(unsigned __int128 item)
{
	uint64_t	key = (uint64_t) (item >> 32);

	return __longlong_as_double((long long) (key >> 63 ? key << 1 >> 1 : ~key));
}

/* Returns the item of the lane `stride` lanes off. */
static __device__ __forceinline__ uint64_t
gv_other_item(uint64_t item, uint32_t stride)
{
	return __shfl_xor_sync(GV_FULL_WARP, item, (int) stride);
}

static __device__ __forceinline__ unsigned __int128
gv_other_item(unsigned __int128 item, uint32_t stride)
{
	return (unsigned __int128) gv_other_item((uint64_t) (item >> 64), stride)
		<< 64 | gv_other_item((uint64_t) item, stride);
}

/* Reads an item that another block has written. */
static __device__ __forceinline__ uint64_t
gv_read_item(const uint64_t *item)
{
	return __ldcg(item);
}

static __device__ __forceinline__ unsigned __int128
gv_read_item(const unsigned __int128 *item)
{
	const uint64_t *halves = (const uint64_t *) item;

	return (unsigned __int128) __ldcg(&halves[1]) << 64 | __ldcg(&halves[0]);
}

/*
 * Compares item i with the item `stride` lanes off, as a bitonic network does.
 * Returns the item that stays at i.
 */
template <typename Item>
static __device__ __forceinline__ Item
gv_lane_exchange(Item item, uint32_t i, uint32_t size, uint32_t stride)
{
	Item		other = gv_other_item(item, stride);
	bool		first = ((i & size) == 0) == ((i & stride) == 0);

	return (other < item) == first ? other : item;
}

/*
 * Sorts items [n] in shared memory with a bitonic network, by all threads of a
 * block.  n is a power of two and at least 32.  Exchanges within 32 items are
 * shuffles.  The caller must have synchronized the block, and this function
 * ends with a barrier.
 */
template <typename Item>
static __device__ __forceinline__ void
gv_block_sort(Item *items, uint32_t n)
{
	for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
	{
		Item		item = items[i];

#pragma unroll 1
		for (uint32_t size = 2; size <= GV_WARP; size *= 2)
			for (uint32_t stride = size / 2; stride > 0; stride /= 2)
				item = gv_lane_exchange(item, i, size, stride);
		items[i] = item;
	}
	__syncthreads();
#pragma unroll 1
	for (uint32_t size = 2 * GV_WARP; size <= n; size *= 2)
	{
#pragma unroll 1
		for (uint32_t stride = size / 2; stride >= GV_WARP; stride /= 2)
		{
			for (uint32_t p = threadIdx.x; p < n / 2; p += blockDim.x)
			{
				uint32_t	low = 2 * p - (p & (stride - 1));
				Item		a = items[low];
				Item		b = items[low + stride];

				if ((b < a) == ((low & size) == 0))
				{
					items[low] = b;
					items[low + stride] = a;
				}
			}
			__syncthreads();
		}
		for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
		{
			Item		item = items[i];

#pragma unroll
			for (uint32_t stride = GV_WARP / 2; stride > 0; stride /= 2)
				item = gv_lane_exchange(item, i, size, stride);
			items[i] = item;
		}
		__syncthreads();
	}
}

/* The rows to select from, and the arrays for the answers. */
template <typename Value>
struct GvCallOf
{
	const Value *d_values;		/* [rows][columns] */
	int64_t		columns;
	int64_t		rows;
	uint32_t   *d_positions;	/* [rows][k] */
	Value	   *d_selected;		/* [rows][k] */
	int64_t		k;
};

using GvRowsCall = GvCallOf<float>;

template <typename Value>
static __device__ __forceinline__ void
gv_write_item(const GvCallOf<Value> &call, int64_t row, int64_t i,
			  GvItem<Value> item)
{
	call.d_positions[row * call.k + i] = (uint32_t) item;
	call.d_selected[row * call.k + i] = gv_item_value(item);
}

/*
 * Sorts `count` items in shared memory and writes the first k of them to the
 * answers of a row.  The shared memory must hold a power of two of items that
 * is at least `count` and 32.  Called by all threads of a block.
 */
template <typename Value>
static __device__ __forceinline__ void
gv_block_write(GvItem<Value> *items, uint32_t count,
			   const GvCallOf<Value> &call, int64_t row)
{
	uint32_t	size = GV_WARP;

	while (size < count)
		size *= 2;
	for (uint32_t i = count + threadIdx.x; i < size; i += blockDim.x)
		items[i] = gv_no_item<GvItem<Value>>;
	__syncthreads();
	gv_block_sort(items, size);
	for (uint32_t i = threadIdx.x; i < call.k; i += blockDim.x)
		gv_write_item(call, row, i, items[i]);
}

struct GvSelector
{
	int			nsms;
	bool		pdl;			/* see gv_pdl_wait */
	GvBuffer	d_work;			/* items and states of a call */
	GvBuffer	d_small;		/* buckets of quantiles */
	GvBuffer	d_sort;			/* memory of CUB */
};

/* Selects by warpselect.cu, k <= GV_WARP_MAX_K. */
extern GvStatus gv_rows_warp(GvSelector *selector, const GvRowsCall *call,
							 cudaStream_t stream);

/* Selects by multiselect.cu from rows that fit into a block's registers. */
extern bool gv_multi_fits(int64_t columns, int64_t k);
extern GvStatus gv_rows_multi(GvSelector *selector, const GvRowsCall *call,
							  cudaStream_t stream);

/*
 * Selects by sampleselect.cu from any rows.  If is_sampled is true, the first
 * division is by splitters.  _bytes returns the bytes of the selector's memory
 * that one row takes, as gv_buffer_need allocates it.
 */
template <typename Value>
GvStatus	gv_rows_sample(GvSelector *selector, const GvCallOf<Value> *call,
						   bool is_sampled, cudaStream_t stream);
extern size_t gv_sample_bytes(int64_t k, bool doubles);

#endif							/* GV_ROWS_CUH */
