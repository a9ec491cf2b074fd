/*
 * fewqueries.cu
 *		All rows of a batch for a few queries, in two launches, on devices of
 *		compute capability 9.0.
 *
 * Rows are read once, which takes longer than all else, so all else happens
 * meanwhile, half copies of queries, too, which each block makes for itself.
 * Each warp has a ring of stages in shared memory, which copies of
 * rows fill while it multiplies others: an SM has some 200 KB on their way.
 *
 *	1. The first SEEDS tiles of each warp are seeds: the largest A - 2 e(x)
 *	   that a warp has of a query's rows goes to memory.
 *	2. The block that comes last makes cuts from these: of k warps the largest
 *	   is that of k rows.  Meanwhile the others multiply tiles up to KEPT.
 *	3. Each warp reranks the rows that it finds to reach a query's cut, first
 *	   in the tiles whose scores stayed in registers.  It takes further tiles
 *	   from a counter, some at once, so no SM is late.
 *	4. The second launch, a block a query, puts the nearest in order.
 *
 * Blocks do not count on each other: one that has waited for cuts in vain
 * (other kernels may have the SMs that the rest needs, and wait themselves)
 * writes its scores to memory and is over; what is left is for blocks that
 * come later, the scores for the second launch.
 */
#include "gpu/exact/few/ring.cuh"
#include "gpu/exact/filter/halve.cuh"

#define TILE			GV_FEW_TILE
#define SEEDS			2		/* tiles of a warp that cuts are from */
#define MOST_STAGES		4
#define MOST_PIECES		32		/* of a row, in as many stages */
#define MOST_EACH		8		/* rows that a warp reranks, about */
#define KEYS			(GV_EXACT_FEW_WARPS / GV_WARP)
#ifdef __CUDACC__
#define CAPACITY		(226 * 1024)	/* shared bytes of a block */
#define LOOKS			20000	/* for cuts, while others make them: 2 ms */
#else
#define CAPACITY			(95 * 1024)
#define LOOKS			1		/* emulated blocks do not wait */
#endif

static __host__ __device__ inline int
query_bytes(int half_dims)
{
	return COLUMNS * TILE * gv_exact_few_stride(half_dims) *
		(int) sizeof(uint16_t);
}

#if GV_HOPPER

/*
 * By a block: half copies of queries [COLUMNS * TILE][stride], shared, zeros
 * where there is none.  The first block puts these and what else is known of
 * queries into memory, for cuts and for other ways.
 */
static __device__ __forceinline__ void
queries_to_half(const GvExactFew &few, uint16_t *half_queries)
{
	const GvExactQueries &queries = few.nearest.queries;
	int			half_dims = few.space.half_dims;
	int			stride = gv_exact_few_stride(half_dims);
	int			lane = threadIdx.x % GV_WARP;

	for (int q = threadIdx.x / GV_WARP; q < COLUMNS * TILE; q += WARPS)
	{
		uint16_t   *own = half_queries + q * stride;
		bool		there = q < few.nearest.part.n;
		GvExactQuery seen;

		for (int d = lane + (there ? half_dims : 0); d < stride; d += GV_WARP)
			own[d] = 0;
		if (!there)
			continue;
		seen = gv_exact_query_to_half(few.space, queries.d_queries +
									(int64_t) q * few.space.dims, own);
		if (blockIdx.x > 0)
			continue;
		for (int d = lane; d < half_dims; d += GV_WARP)
			queries.d_half_queries[q * half_dims + d] = own[d];
		if (lane == 0)
			queries.d_seen[q] = seen;
		if (few.nearest.position == 0)
			gv_exact_free_places(queries, q);
	}
}

/* Row and query of a lane's sums[i / 4][i % 4]. */
static __device__ __forceinline__ int64_t
row_of(uint32_t tile, int i)
{
	return (int64_t) tile * ROWS + threadIdx.x % GV_WARP / 4 + i % 4 / 2 * 8;
}

static __device__ __forceinline__ int
query_of(int i)
{
	return i / 4 * TILE + threadIdx.x % 4 * 2 + i % 2;
}

/* A warp's seeds: scores, and of each query the largest A - 2 e(x). */
static __device__ __forceinline__ void
take_seeds(const Scan &scan, Ring *ring, float (&kept)[KEPT][COLUMNS][4])
{
	const GvExactFew &few = *scan.few;
	float		bests[COLUMNS][2];
	float		slack[SEEDS][2];

#pragma unroll
	for (int i = 0; i < 2 * SEEDS; i++)
	{
		int64_t		row = row_of((i / 2) * scan.nwarps + scan.warp, i % 2 * 2);

		slack[i / 2][i % 2] = row < few.nearest.rows.n ?
			few.nearest.rows.d_slack[row] : 0.0f;
	}
#pragma unroll
	for (int i = 0; i < 2 * COLUMNS; i++)
		bests[i / 2][i % 2] = -GV_EXACT_INFINITE;
#pragma unroll
	for (int s = 0; s < SEEDS; s++)
	{
		uint32_t	tile = multiply_tile(scan, ring, kept[s]);

#pragma unroll
		for (int i = 0; i < 4 * COLUMNS; i++)
		{
			float		score = kept[s][i / 4][i % 4];
			int64_t		row = row_of(tile, i);

			/* a row that cannot be held may be anywhere */
			if (tile != NO_TILE && row < few.nearest.rows.n &&
				score < GV_EXACT_INFINITE)
				bests[i / 4][i % 2] =
					fmaxf(bests[i / 4][i % 2],
						  score - 2.0f * slack[s][i % 4 / 2]);
		}
	}
#pragma unroll
	for (int i = 0; i < 2 * COLUMNS; i++)
	{
		float		best = bests[i / 2][i % 2];
		int			q = i / 2 * TILE + threadIdx.x % 4 * 2 + i % 2;

#pragma unroll
		for (int apart = 4; apart < GV_WARP; apart *= 2)
			best = fmaxf(best, __shfl_xor_sync(GV_FULL_WARP, best, apart));
		if (threadIdx.x % GV_WARP < 4 && q < few.nearest.part.n)
			few.d_bests[q * scan.nwarps + scan.warp] = best;
	}
}

/*
 * By a warp: what at least `wanted` of a query's bests are not below, and few
 * others: bits of it, from the first in which they differ.
 */
static __device__ __forceinline__ float
find_least(const float *bests, uint32_t n, uint32_t wanted)
{
	uint32_t	keys[KEYS];
	uint32_t	least;
	uint32_t	most = 0;
	uint32_t	other = 0;		/* the largest complement */

#pragma unroll
	for (int i = 0; i < KEYS; i++)
	{
		uint32_t	at = i * GV_WARP + threadIdx.x % GV_WARP;

		keys[i] = at < n ? gv_ordered(__ldcg(bests + at)) : 0;
		most = max(most, keys[i]);
		other = max(other, at < n ? ~keys[i] : 0);
	}
	most = __reduce_max_sync(GV_FULL_WARP, most);
	least = ~__reduce_max_sync(GV_FULL_WARP, other);
	if (least == most)
		return gv_unordered(least);
	other = 0x80000000u >> __clz((int) (least ^ most));
	least &= ~(2 * other - 1);
	for (uint32_t bit = other; bit != 0; bit /= 2)
	{
		uint32_t	counts[4] = {};
		uint32_t	count;

#pragma unroll
		for (int i = 0; i < KEYS; i++)
			counts[i % 4] += keys[i] >= (least | bit);
		count = __reduce_add_sync(GV_FULL_WARP, counts[0] + counts[1] +
								  counts[2] + counts[3]);
		if (count >= wanted)
			least |= bit;
		if (count >= wanted && count <= wanted + wanted / 8)
			break;
	}
	return gv_unordered(least);
}

/* By a block when all have their bests: cuts, and nothing found. */
static __device__ __forceinline__ void
make_cuts(const Scan &scan)
{
	const GvExactFew &few = *scan.few;
	const GvExactQueries &queries = few.nearest.queries;
	uint32_t	wanted = (uint32_t) queries.k + (queries.d_self != NULL);

	if (threadIdx.x < 2)
		few.lists.d_counts[threadIdx.x] = 0;
	for (int q = threadIdx.x / GV_WARP; q < few.nearest.part.n; q += WARPS)
	{
		GvExactQuery seen = queries.d_seen[q];
		float		least = find_least(few.d_bests + q * scan.nwarps,
									   scan.nwarps, wanted);

		if (threadIdx.x % GV_WARP != 0)
			continue;
		few.nearest.filter.d_counts[q] = 0;
		few.nearest.filter.d_cuts[q] =
			gv_exact_raise_cut(gv_exact_first_cut(few.space, queries, seen, q),
							   least, seen.slack, few.space.half_dims);
	}
}

/*
 * By all threads of a block whose bests are there.  The last block makes cuts.
 */
static __device__ __forceinline__ void
arrive(const Scan &scan)
{
	__shared__ bool last;
	GvExactTurn *turn = scan.few->d_turn;

	__syncthreads();
	if (threadIdx.x == 0)
	{
		__threadfence();
		last = atomicAdd(&turn->arrived, 1u) == gridDim.x - 1;
		__threadfence();
	}
	__syncthreads();
	if (!last)
		return;
	make_cuts(scan);
	__syncthreads();
	if (threadIdx.x == 0)
	{
		__threadfence();
		*(volatile uint32_t *) &turn->ready = 1;
	}
}

/* By all threads of a block: are there cuts, after some time at most? */
static __device__ __forceinline__ bool
has_cuts(const Scan &scan)
{
	__shared__ bool yes;

	if (threadIdx.x == 0)
	{
		yes = false;
		for (int i = 0; i < LOOKS && !yes; i++)
		{
			yes = *(volatile uint32_t *) &scan.few->d_turn->ready != 0;
#ifdef __CUDACC__
			if (!yes)
				__nanosleep(100);
#endif
		}
		__threadfence();
	}
	__syncthreads();
	return yes;
}

/* Rerank the rows of a tile that reach a query's cut. */
template <int METRIC>
static __device__ __forceinline__ void
take_found(const Scan &scan, uint32_t tile, const float (&sums)[COLUMNS][4],
		   const float (&cuts)[COLUMNS][2])
{
	uint32_t	found = 0;

#pragma unroll
	for (int i = 0; i < 4 * COLUMNS; i++)
		if (sums[i / 4][i % 4] >= cuts[i / 4][i % 2] &&
			row_of(tile, i) < scan.few->nearest.rows.n)
			found |= 1u << i;
	while (__any_sync(GV_FULL_WARP, found != 0))
	{
		int			i = found != 0 ? __ffs(found) - 1 : 0;

		gv_exact_rerank_found<METRIC>(scan.few->nearest, found != 0,
									   query_of(i),
									   (uint32_t) row_of(tile, i));
		found &= found - 1;
	}
}

/* A tile's scores to memory: [n][own_tiles][nwarps][ROWS]. */
static __device__ __forceinline__ void
put_scores(const Scan &scan, uint32_t tile, const float (&sums)[COLUMNS][4])
{
	int64_t		stride = (int64_t) gv_exact_own_tiles(scan.shape) *
		scan.nwarps * ROWS;

#pragma unroll
	for (int i = 0; i < 4 * COLUMNS; i++)
		if (query_of(i) < scan.few->nearest.part.n)
			scan.few->d_scores[query_of(i) * stride + row_of(tile, i)] =
				sums[i / 4][i % 4];
}

/* A block without cuts ends: scores of its own tiles, to memory. */
static __device__ __forceinline__ void
leave(const Scan &scan, Ring *ring, const float (&kept)[KEPT][COLUMNS][4])
{
	GvExactTurn *turn = scan.few->d_turn;
	float		sums[COLUMNS][4];
	uint32_t	tile;

#pragma unroll
	for (int s = 0; s < KEPT; s++)
		if (s * scan.nwarps + scan.warp < scan.ntiles)
			put_scores(scan, s * scan.nwarps + scan.warp, kept[s]);
	while ((tile = multiply_tile(scan, ring, sums)) != NO_TILE)
		put_scores(scan, tile, sums);
	if (threadIdx.x == 0)
		turn->left[atomicAdd(&turn->nleft, 1u)] = blockIdx.x;
}

/* With cuts: what was kept, then all tiles that there are. */
template <int METRIC>
static __device__ __forceinline__ void
take_tiles(const Scan &scan, Ring *ring,
		   const float (&kept)[KEPT][COLUMNS][4])
{
	float		cuts[COLUMNS][2];	/* nothing reaches NaN */
	float		sums[COLUMNS][4];
	uint32_t	tile;

	if (threadIdx.x % GV_WARP == 0)
		ring->ticket = atomicAdd(&scan.few->d_turn->next, 1u);
	ring->open = true;
#pragma unroll
	for (int i = 0; i < 2 * COLUMNS; i++)
	{
		int			q = i / 2 * TILE + threadIdx.x % 4 * 2 + i % 2;

		cuts[i / 2][i % 2] = q < scan.few->nearest.part.n ?
			__ldcg(scan.few->nearest.filter.d_cuts + q) :
			__int_as_float(0x7FC00000);
	}
#pragma unroll
	for (int s = 0; s < KEPT; s++)
		if (s * scan.nwarps + scan.warp < scan.ntiles)
			take_found<METRIC>(scan, s * scan.nwarps + scan.warp, kept[s],
							   cuts);
	while ((tile = multiply_tile(scan, ring, sums)) != NO_TILE)
		take_found<METRIC>(scan, tile, sums, cuts);
}

/* Before the last step is over: what of the ring comes to L2. */
static __device__ __forceinline__ void
expect_rows(const Scan &scan)
{
	const GvExactRows &rows = scan.few->nearest.rows;
	int			half_dims = scan.few->space.half_dims;
	int64_t		first = ((int64_t) (threadIdx.x % GV_WARP) * scan.nwarps +
						 scan.warp) * ROWS;

	if ((int) (threadIdx.x % GV_WARP) < scan.shape.stages &&
		first + ROWS <= rows.n)
		gv_expect_bytes(rows.d_half_rows + first * half_dims,
						ROWS * half_dims * (int) sizeof(uint16_t));
}

/*
 * As many blocks as there are SMs, one on each.
 * Shared: queries [COLUMNS * TILE][stride], then stages [WARPS][stages], all
 * in whole lines.
 */
template <int METRIC>
static __global__ void __launch_bounds__(THREADS, 1)
few_kernel(const __grid_constant__ GvExactFew few, GvExactFewShape shape)
{
	GV_SHARED_LINES(memory);
	__shared__ uint64_t arrived[WARPS][MOST_STAGES];
	__shared__ uint32_t tiles[WARPS][MOST_STAGES];
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	int			stride = gv_exact_few_stride(few.space.half_dims);
	uint16_t   *queries = (uint16_t *) memory;
	Scan		scan = {&few, shape, blockIdx.x * WARPS + warp,
		gridDim.x * WARPS, (uint32_t) ((few.nearest.rows.n + ROWS - 1) / ROWS),
	queries + lane / 4 * stride + lane % 4 * 8, stride};
	Ring		ring = {(char *) memory + query_bytes(few.space.half_dims) +
		warp * shape.stages * stage_bytes(shape), arrived[warp], tiles[warp],
	gv_read_once(), 0, 0, 0, NO_TILE, 0, 0, 0, 0, false};
	float		kept[KEPT][COLUMNS][4];

	if (lane < shape.stages)
		gv_barrier_init(&arrived[warp][lane], 1);
	gv_barriers_ready();
	expect_rows(scan);
	gv_step_begins();
	__syncwarp();
	for (int stage = 0; stage < shape.stages; stage++)
		fill(scan, &ring, stage);
	queries_to_half(few, queries);
	__syncthreads();
	take_seeds(scan, &ring, kept);
	arrive(scan);
#pragma unroll
	for (int i = SEEDS; i < KEPT; i++)
		(void) multiply_tile(scan, &ring, kept[i]);
	if (has_cuts(scan))
		take_tiles<METRIC>(scan, &ring, kept);
	else
		leave(scan, &ring, kept);
}

#else

template <int METRIC>
static __global__ void
few_kernel(const __grid_constant__ GvExactFew few, GvExactFewShape shape)
{
}

#endif

/*
 * As many bytes on their way as there is memory for; false where there is not.
 */
static bool
find_shape(GvExactFewShape *found, int half_dims)
{
	int			most = 0;

	for (int pieces = 0; pieces <= MOST_PIECES; pieces++)
	{
		GvExactFewShape shape = {pieces, half_dims, 0, 0, pieces == 0};
		int			bytes;

		if (pieces == 0)
			shape.pieces = 1;
		else
			shape.depth = ((half_dims + pieces - 1) / pieces +
						   GV_FEW_DEPTH - 1) / GV_FEW_DEPTH * GV_FEW_DEPTH;
		if ((pieces - 1) * shape.depth >= half_dims)
			continue;
		shape.stages = min(MOST_STAGES, (CAPACITY - query_bytes(half_dims)) /
						   (WARPS * stage_bytes(shape)));
		bytes = shape.stages * shape.depth;
		if (shape.stages < 2 || bytes <= most)
			continue;
		*found = shape;
		/* 16 copies a tile are slower */
		if (shape.whole)
			return true;
		most = bytes;
	}
	return most > 0;
}

/* Blocks for a seed of about `seed` rows, of which each has its share. */
static uint32_t
blocks_for(int nsms, int64_t seed)
{
	int64_t		blocks = seed / (WARPS * SEEDS * ROWS);
	int64_t		most = min(nsms, GV_EXACT_FEW_WARPS / WARPS);

	/* a seed that is not asked for is one of all SMs */
	if (blocks > most || seed == GV_EXACT_FEW_SEED)
		blocks = most;
	return (uint32_t) (blocks > 1 ? blocks : 1);
}

/* See gv_exact.h. */
bool
gv_gpu_exact_few_fits(const GvExactSpace *space, const GvExactRows *rows,
					  const GvExactQueries *queries, const GvExactWork *work,
					  int64_t seed)
{
	GvExactFewShape shape;
	int64_t		blocks = blocks_for(work->nsms, seed);
	int64_t		warps = blocks * WARPS;
	int64_t		wanted = queries->k + (queries->d_self != NULL);
	int64_t		seeds = SEEDS * warps * ROWS;

	if (queries->n > GV_EXACT_FEW || !gv_has_hopper(work->device) ||
		gv_gpu_exact_hopper_forbidden() ||
		!gv_gpu_exact_nearest_fits(&work->filter) ||
		!find_shape(&shape, space->half_dims))
		return false;
	if (wanted > warps || wanted > MOST_NEIGHBORS || rows->n < 4 * seeds ||
		queries->n * gv_exact_own_tiles(shape) * warps * ROWS > work->nscores)
		return false;
	/* else it works, but a seed of one's own choice is for checks */
	return seed != GV_EXACT_FEW_SEED ||
		(8 * wanted <= warps &&
		 queries->n * wanted * (rows->n / seeds) <= MOST_EACH * warps);
}

template <int METRIC>
static GvStatus
launch(const GvExactFew &few, const GvExactFewShape &shape,
	   cudaStream_t stream)
{
	GV_TRY(gv_launch_early(few.nearest.filter.overlap, few_kernel<METRIC>,
						   shape.blocks, THREADS,
						   query_bytes(few.space.half_dims) +
						   WARPS * shape.stages * stage_bytes(shape), stream,
						   few, shape));
	return gv_gpu_exact_few_nearest(&few, &shape, stream);
}

/* See gv_exact.h. */
GvStatus
gv_gpu_exact_few(const GvExactFew *few, int nsms, int64_t seed,
				 cudaStream_t stream)
{
	GvExactFewShape shape;

	if (!find_shape(&shape, few->space.half_dims))
		return GV_FAILED;
	shape.blocks = blocks_for(nsms, seed);
	switch (few->space.metric)
	{
		case GV_SET_L2:
			return launch<GV_SET_L2>(*few, shape, stream);
		case GV_SET_IP:
			return launch<GV_SET_IP>(*few, shape, stream);
		case GV_SET_COSINE:
			return launch<GV_SET_COSINE>(*few, shape, stream);
		default:
			return launch<GV_SET_PEARSON>(*few, shape, stream);
	}
}
