/*
 * fewqueries.cuh
 *		What fewqueries.cu and fewnearest.cu share.
 */
#ifndef GV_FEWQUERIES_CUH
#define GV_FEWQUERIES_CUH

#include <stdint.h>

#include "gpu/common/hopper.cuh"
#include "gpu/exact/few/fewscan.cuh"
#include "gpu/exact/few/gv_few.h"
#include "gpu/exact/filter/distance.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define ROWS			GV_FEW_ROWS
#define KEPT			4		/* tiles whose scores wait for cuts */
#define MOST_NEIGHBORS	160
#define RERANK_AHEAD	24		/* loads on their way, of a row */

/* How rows go through shared memory. */
struct GvExactFewShape
{
	int			pieces;			/* of a row */
	int			depth;			/* halves of a piece, the last may be less */
	int			stages;			/* of a warp */
	uint32_t	blocks;
	bool		whole;			/* rows side by side, a copy a tile */
};

/* Tiles that a warp has for itself: those that it asks for before cuts. */
static __host__ __device__ inline uint32_t
gv_exact_own_tiles(const GvExactFewShape &shape)
{
	return KEPT + shape.stages;
}

#if GV_HOPPER

/*
 * By a warp: pairs of query and slot that lanes found, to that query's; four
 * at once are reranked.
 */
template <int METRIC>
static __device__ __forceinline__ void
gv_exact_rerank_found(const GvExactNearest &nearest, bool found, int q,
					   uint32_t slot)
{
	uint32_t	mask = __ballot_sync(GV_FULL_WARP, found);
	int			team = threadIdx.x % GV_WARP / LANES;

	while (mask != 0)
	{
		uint32_t	rest = mask;
		int			from;
		int			query;
		GvExactPair pair;

		for (int t = 0; t < team; t++)
			rest &= rest - 1;
		from = __ffs(rest != 0 ? rest : mask) - 1;
		query = __shfl_sync(GV_FULL_WARP, q, from);
		pair = gv_exact_rerank<METRIC, RERANK_AHEAD>
			(nearest.rows, nearest.queries, nearest.dims, nearest.position,
			 query, __shfl_sync(GV_FULL_WARP, slot, from));
		if (rest != 0 && threadIdx.x % LANES == 0)
		{
			uint32_t	at = atomicAdd(&nearest.filter.d_counts[query], 1u);
			int64_t		to = (int64_t) query * nearest.filter.capacity + at;

			if (at < nearest.filter.capacity)
			{
				nearest.found.d_distances[to] = pair.distance;
				nearest.filter.d_slots[to] = pair.row;
			}
		}
		for (int t = 0; t < TEAMS; t++)
			mask &= mask - 1;
	}
}

#endif

/* fewnearest.cu: the second launch */
extern GvStatus gv_gpu_exact_few_nearest(const GvExactFew *few,
										 const GvExactFewShape *shape,
										 cudaStream_t stream);

#endif							/* GV_FEWQUERIES_CUH */
