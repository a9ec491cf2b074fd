/*
 * samples.cuh
 *		SampleSelect's splitters, in a block's shared memory: 255 items of a
 *		sorted sample, as a search tree.
 *
 * Bucket b holds the items from sorted[b - 1] on that are below sorted[b]; the
 * tree is that of cpu/select/gv_splitters.h, and so is the sample: an item at
 * random of each of 4,096 equal stretches.
 *
 * Source: Ribizel, Anzt, "Approximate and Exact Selection on GPUs", 2019.
 */
#ifndef GV_SAMPLES_CUH
#define GV_SAMPLES_CUH

#include <stdint.h>

#include "gpu/select/rows.cuh"

#define GV_SAMPLERS			512	/* threads of a block that counts */
#define GV_TREE_BITS		8
#define GV_TREE_BUCKETS		(1 << GV_TREE_BITS)
#define GV_TREE_SPLITTERS	(GV_TREE_BUCKETS - 1)
#define GV_SAMPLED			(16 * GV_TREE_BUCKETS)

struct GvTree256
{
	uint64_t	sorted[GV_TREE_SPLITTERS];
	uint64_t	tree[GV_TREE_SPLITTERS];
};

/* The place in stretch j of a row of n. */
static __device__ __forceinline__ int64_t
gv_stretch_place(int64_t n, uint32_t j)
{
	int64_t		begin = j * n / GV_SAMPLED;
	int64_t		end = (j + 1) * n / GV_SAMPLED;
	uint64_t	hash = (j + UINT64_C(0x5A3D)) * UINT64_C(0x9E3779B97F4A7C15);

	hash = (hash ^ hash >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
	return begin + (int64_t) ((hash >> 32) % (uint64_t) (end - begin));
}

/*
 * Splitters of a row of n >= GV_SAMPLED values, by all threads of the block;
 * items [GV_SAMPLED] is shared memory for a while.  Ends with a barrier.
 */
static __device__ __forceinline__ void
gv_plant(const float *row, int64_t n, uint64_t *items, GvTree256 *tree)
{
	for (uint32_t j = threadIdx.x; j < GV_SAMPLED; j += GV_SAMPLERS)
	{
		int64_t		place = gv_stretch_place(n, j);

		items[j] = gv_row_item(row[place], place);
	}
	__syncthreads();
	gv_team_sort<GV_SAMPLERS>(items, GV_SAMPLED);
	for (uint32_t i = threadIdx.x; i < GV_TREE_SPLITTERS; i += GV_SAMPLERS)
	{
		uint32_t	level = 31 - __clz(i + 1);
		uint32_t	reach = GV_TREE_BUCKETS / 2 >> level;
		uint32_t	j = i + 1 - (1u << level);
		uint32_t	number = (2 * j + 1) * reach - 1;

		tree->sorted[i] = items[(i + 1) * (GV_SAMPLED / GV_TREE_BUCKETS)];
		tree->tree[i] = items[(number + 1) * (GV_SAMPLED / GV_TREE_BUCKETS)];
	}
	__syncthreads();
}

static __device__ __forceinline__ uint32_t
gv_tree_bucket(const GvTree256 *tree, uint64_t item)
{
	uint32_t	i = 0;

#pragma unroll
	for (int level = 0; level < GV_TREE_BITS; level++)
		i = 2 * i + 1 + (item >= tree->tree[i]);
	return i - GV_TREE_SPLITTERS;
}

/*
 * Count an item of each lane in its bucket.  Where all lanes have the same, as
 * in rows of few values, one of them does it for all.
 */
static __device__ __forceinline__ void
gv_count_bucket(uint32_t *counts, uint32_t bucket, bool counts_for)
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

#define GV_CHUNK_VALUES		8	/* that a thread has on their way */
#define GV_CHUNK_STEP		(GV_SAMPLERS * GV_CHUNK_VALUES)

/*
 * Values first .. of a row, GV_CHUNK_STEP of them in one block: value r of
 * this thread stands at first + GV_SAMPLERS r + threadIdx.x, if that is below
 * n.
 */
static __device__ __forceinline__ void
gv_load_chunk(const float *row, int64_t n, int64_t first,
			  float (&values)[GV_CHUNK_VALUES])
{
#pragma unroll
	for (int r = 0; r < GV_CHUNK_VALUES; r++)
	{
		int64_t		i = first + r * GV_SAMPLERS + threadIdx.x;

		values[r] = i < n ? __ldcs(&row[i]) : 0.0f;
	}
}

/*
 * Append items of the threads of a block, those of mask, bit r for value r,
 * behind *count in the device's memory, capacity of them; *count goes on where
 * it ends.  Begins with a barrier.
 */
static __device__ __forceinline__ void
gv_append(const float (&values)[GV_CHUNK_VALUES], int64_t first,
		  uint32_t mask, uint32_t *count, uint64_t *d_items, uint32_t capacity)
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
	for (int r = 0; r < GV_CHUNK_VALUES; r++)
		if (mask & 1u << r)
		{
			if (at < capacity)
				d_items[at] = gv_row_item(values[r], first + r * GV_SAMPLERS +
										  threadIdx.x);
			at++;
		}
}

#endif							/* GV_SAMPLES_CUH */
