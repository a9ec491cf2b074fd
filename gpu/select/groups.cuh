/*
 * groups.cuh
 *		A sample of a row in groups, of which the first items count.
 *
 * To find the r-th of a large sample quickly it is divided into groups, of
 * which only the first item each counts; there are many more than r, so that
 * the r first of the sample are mostly in different ones, and if not the
 * threshold is only some ranks higher.  Lines of 64 bytes are read, at random
 * places of equal stretches of the row; what lies side by side goes to
 * different groups, because good items often do.  Longer lines would be read
 * quicker, but of a row that ascends the k first lie in too few of them.
 *
 * Source of groups: Johnson, Douze, Jegou, "Billion-scale similarity search
 * with GPUs", 2017, section 4 (lanes).
 */
#ifndef GV_GROUPS_CUH
#define GV_GROUPS_CUH

#include <stdint.h>

#include "gpu/select/guess.cuh"

#define GV_GROUP_THREADS	512 /* of a block that samples */
#define GV_GROUP_WARPS		(GV_GROUP_THREADS / GV_WARP)
#define GV_LINE				4	/* vectors of 4 values, read together */
#define GV_WARP_LINES		(GV_WARP / GV_LINE)
#define GV_MOST_VECTORS		8	/* that a thread samples */
#define GV_BLOCK_GROUPS		1024	/* at most */
#define GV_LEAST_GROUPS		(GV_LINE * 4)	/* a line's all differ */
#define GV_MOST_GROUPS		2048
#define GV_ESTIMATED_ITEMS	16	/* of a lane that finds a threshold */

struct GvGroupPlan
{
	int			samplers;		/* blocks a row */
	int			groups;			/* of each, divides GV_BLOCK_GROUPS */
	int			lanes;			/* of a warp whose items are kept apart */
	int			vectors;		/* of a thread */
	int			rank;			/* of the threshold among groups, from 0 */
	int			spare;			/* the rank may be larger by this */
	uint32_t	capacity;			/* items a row */
	uint32_t	gap;			/* between lines, at most */
	int64_t		stretch;		/* vectors for a line, in 2^-32 */
};

/* thresholdplan.cu: for the k first of `columns`, k <= columns / 5. */
extern GvGroupPlan gv_threshold_plan(int64_t columns, int64_t k);

/* A row's vectors, aligned to 16 bytes, and what lies before and behind. */
struct GvRowVectors
{
	const float *row;
	int64_t		n;
	int			head;			/* values before the first */
	int64_t		count;

	__device__ __forceinline__
	GvRowVectors(const GvRowsCall &call, int64_t number)
	{
		row = gv_row(call, number);
		n = call.columns;
		head = (int) (-((uintptr_t) row / sizeof(float)) % 4);
		count = (n - head) / 4;
	}

	__device__ __forceinline__ float4
	at(int64_t i) const
	{
		return __ldcs((const float4 *) (row + head) + i);
	}

	/* The few that are in none: number and position; false: no more. */
	__device__ __forceinline__ bool
	rest(int i, int64_t *position) const
	{
		*position = i < head ? i : 4 * count + i;
		return *position < n;
	}
};

static __device__ __forceinline__ uint64_t
gv_first_of(uint64_t a, uint64_t b)
{
	return b < a ? b : a;
}

/*
 * A place for line j: where in its stretch is as good as random.  But the
 * first and the last are in the middle: of a row that ascends or descends one
 * of them alone may tell where few items end.
 */
static __device__ __forceinline__ int64_t
gv_line_place(const GvGroupPlan &plan, int64_t nlines, int64_t j)
{
	int64_t		begin = j * plan.stretch >> 32;
	uint32_t	hash = (uint32_t) j * 0x9E3779B1u;

	if (j == 0 || j == nlines - 1)
		return begin + plan.gap / 2;
	hash = (hash ^ hash >> 15) * 0x85EBCA6Bu;
	hash = (hash ^ hash >> 13) * 0xC2B2AE35u;
	return begin + (int64_t) ((uint64_t) hash * (plan.gap + 1) >> 32);
}

/*
 * The first items of a block's groups into firsts [plan.groups], in shared
 * memory; sampled [GV_BLOCK_GROUPS] is in it, too.  A thread has VECTORS on
 * their way at a time.
 */
template <int VECTORS>
static __device__ __forceinline__ void
gv_sample_groups(const GvGroupPlan &plan, const GvRowVectors &row, int block,
				 uint64_t *sampled, uint64_t *firsts)
{
	int64_t		nwarps = (int64_t) plan.samplers * GV_GROUP_WARPS;
	int64_t		nlines = nwarps * GV_WARP_LINES * plan.vectors;
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	uint64_t	items[4] = {GV_NO_ITEM, GV_NO_ITEM, GV_NO_ITEM, GV_NO_ITEM};

#pragma unroll 1
	for (int first = 0; first < plan.vectors; first += VECTORS)
	{
		float4		values[VECTORS];
		int64_t		at[VECTORS];

#pragma unroll
		for (int b = 0; b < VECTORS; b++)
		{
			/* neighbors go to different blocks, then warps: other groups */
			int64_t		line = warp * plan.samplers + block +
				((first + b) * GV_WARP_LINES + lane / GV_LINE) * nwarps;

			at[b] = gv_line_place(plan, nlines, line) + lane % GV_LINE;
			if (first + b < plan.vectors)
				values[b] = row.at(at[b]);
		}
#pragma unroll
		for (int b = 0; b < VECTORS; b++)
			if (first + b < plan.vectors)
			{
				int64_t		position = row.head + 4 * at[b];

				items[0] = gv_first_of(items[0],
									   gv_row_item(values[b].x, position));
				items[1] = gv_first_of(items[1],
									   gv_row_item(values[b].y, position + 1));
				items[2] = gv_first_of(items[2],
									   gv_row_item(values[b].z, position + 2));
				items[3] = gv_first_of(items[3],
									   gv_row_item(values[b].w, position + 3));
			}
	}
#pragma unroll
	for (int c = 0; c < 4; c++)
	{
		for (int lanes = plan.lanes; lanes < GV_WARP; lanes *= 2)
			items[c] = gv_first_of(items[c],
								   __shfl_xor_sync(GV_FULL_WARP, items[c],
												   lanes));
		if (lane < plan.lanes)
			sampled[(warp * plan.lanes + lane) * 4 + c] = items[c];
	}
	__syncthreads();
	for (int g = threadIdx.x; g < plan.groups; g += GV_GROUP_THREADS)
	{
		uint64_t	item = GV_NO_ITEM;

		for (int i = g; i < GV_GROUP_WARPS * plan.lanes * 4; i += plan.groups)
			item = gv_first_of(item, sampled[i]);
		firsts[g] = item;
	}
}

/*
 * A threshold that plan.rank + 1 of few items [total] or some more are not
 * after, by a warp; false: it has not found one.
 */
static __device__ __forceinline__ bool
gv_estimate_threshold(const GvGroupPlan &plan, const uint64_t *items,
				   uint32_t total, uint64_t *threshold)
{
	__shared__ float bound;

	if (total > GV_ESTIMATED_ITEMS * GV_WARP)
		return false;
	if (threadIdx.x < GV_WARP)
	{
		float		values[GV_ESTIMATED_ITEMS];
		GvTeam<GV_WARP> team = {};
		uint32_t	mask;
		float		found;

#pragma unroll
		for (int r = 0; r < GV_ESTIMATED_ITEMS; r++)
		{
			uint32_t	i = r * GV_WARP + threadIdx.x;

			values[r] = i < total ? gv_item_value(items[i]) : NAN;
		}
		found = gv_estimate_bound(values, total, plan.rank + 1,
							   plan.rank + 2 + plan.rank / 8, &mask, team);
		if (threadIdx.x == 0)
			bound = found;
	}
	__syncthreads();
	*threshold = (uint64_t) gv_ordered(bound) << 32;
	return bound == bound;
}

/*
 * Returns an item that plan.rank + 1 of the groups' items [total] are not
 * after, and few more than plan.spare others; sorts them where many are equal.
 */
static __device__ __forceinline__ uint64_t
gv_find_threshold(const GvGroupPlan &plan, uint64_t *items, uint32_t total)
{
	__shared__ uint32_t said[2][GV_WARP];
	GvTalk		talk = {said, 0};
	uint64_t	threshold;

	if (plan.spare > 0)
	{
		uint32_t	rank = plan.rank + 1;
		GvLimit		limit = gv_find_bound([&](uint32_t i)
		{
			return (uint32_t) (items[i] >> 32);
		}, total, rank, plan.spare, talk);

		if (limit.count <= rank + plan.spare)
			return (uint64_t) limit.key << 32 | 0xFFFFFFFFu;
		__syncthreads();
	}
	else if (gv_estimate_threshold(plan, items, total, &threshold))
		return threshold;
	total = gv_team_pad<GV_GROUP_THREADS>(items, total);
	gv_team_sort<GV_GROUP_THREADS>(items, total);
	return items[plan.rank];
}

#endif							/* GV_GROUPS_CUH */
