/*
 * ring.cuh
 *		How rows come to a warp of fewqueries.cu: which tiles it has, and a
 *		ring of stages in shared memory that copies fill while it multiplies
 *		others.
 */
#ifndef GV_RING_CUH
#define GV_RING_CUH

#include <stdint.h>

#include "gpu/exact/few/fewqueries.cuh"

#define COLUMNS			GV_FEW_COLUMNS
#define RUN				8		/* tiles of a ticket, at first */
#define NO_TILE			0xFFFFFFFFu

/* Halves from a row to the next of a stage. */
static __host__ __device__ inline int
row_stride(const GvExactFewShape &shape)
{
	return shape.whole ? shape.depth : gv_exact_few_stride(shape.depth);
}

static __host__ __device__ inline int
stage_bytes(const GvExactFewShape &shape)
{
	return ROWS * row_stride(shape) * (int) sizeof(uint16_t);
}

#if GV_HOPPER

/* A warp's view of the search. */
struct Scan
{
	const GvExactFew *few;
	GvExactFewShape shape;
	uint32_t	warp;			/* of the grid */
	uint32_t	nwarps;
	uint32_t	ntiles;
	const uint16_t *query;		/* this lane's, shared */
	int			query_stride;
};

/* A warp's ring of stages. */
struct Ring
{
	char	   *stages;			/* shared [stages][ROWS][stride] */
	uint64_t   *arrived;		/* shared [stages] barriers */
	uint32_t   *tiles;			/* shared [stages] whose rows they have */
	uint64_t	policy;
	uint32_t	odd;			/* a bit of each barrier's phase */
	int			at;				/* the stage that is next */
	int			piece;			/* that will be asked for next */
	uint32_t	tile;			/* that the piece is of */
	uint32_t	count;			/* tiles asked for */
	uint32_t	ticket;			/* lane 0: what the counter gave */
	uint32_t	run;			/* tiles that a ticket gave, the next */
	uint32_t	run_end;
	bool		open;			/* may tiles be taken from the counter? */
};

/*
 * The tiles of a ticket: at first RUN at once, in the end one, since a counter
 * gives one number in 3 ns, about the time in which a tile is read.
 */
static __device__ __forceinline__ void
take_run(const Scan &scan, Ring *ring, uint32_t ticket)
{
	uint32_t	first = gv_exact_own_tiles(scan.shape) * scan.nwarps;
	uint32_t	left = scan.ntiles > first ? scan.ntiles - first : 0;
	uint32_t	runs = left / 8 * 5 / RUN;
	uint32_t	pairs = (left - runs * RUN) / 8 * 3;

	if (ticket < runs)
	{
		ring->run = first + ticket * RUN;
		ring->run_end = ring->run + RUN;
	}
	else if (ticket < runs + pairs)
	{
		ring->run = first + runs * RUN + (ticket - runs) * 2;
		ring->run_end = ring->run + 2;
	}
	else
	{
		ring->run = first + runs * RUN + pairs * 2 + (ticket - runs - pairs);
		ring->run_end = ring->run + 1;
	}
}

/* The tile to be asked for next. */
static __device__ __forceinline__ uint32_t
next_tile(const Scan &scan, Ring *ring)
{
	uint32_t	i = ring->count++;
	uint32_t	tile = NO_TILE;

	if (i < gv_exact_own_tiles(scan.shape))
		tile = i * scan.nwarps + scan.warp;
	else if (ring->open)
	{
		if (ring->run == ring->run_end)
		{
			take_run(scan, ring, __shfl_sync(GV_FULL_WARP, ring->ticket, 0));
			/* the next one is on its way for as long as this one takes */
			if (threadIdx.x % GV_WARP == 0 && ring->run < scan.ntiles)
				ring->ticket = atomicAdd(&scan.few->d_turn->next, 1u);
		}
		tile = ring->run < scan.ntiles ? ring->run++ : NO_TILE;
	}
	return tile < scan.ntiles ? tile : NO_TILE;
}

/* By a warp that has read what was there: ask for the next piece. */
static __device__ __forceinline__ void
fill(const Scan &scan, Ring *ring, int stage)
{
	const GvExactRows &rows = scan.few->nearest.rows;
	int			half_dims = scan.few->space.half_dims;
	int			lane = threadIdx.x % GV_WARP;
	int			first = ring->piece * scan.shape.depth;
	int			bytes = min(scan.shape.depth, half_dims - first) *
		(int) sizeof(uint16_t);
	int64_t		row;
	int			nrows;

	if (ring->piece == 0)
		ring->tile = next_tile(scan, ring);
	ring->piece = ring->piece + 1 == scan.shape.pieces ? 0 : ring->piece + 1;
	row = (int64_t) ring->tile * ROWS;
	nrows = ring->tile == NO_TILE ? 0 : (int) min((int64_t) ROWS, rows.n - row);
	__syncwarp();
	if (lane == 0)
	{
		ring->tiles[stage] = ring->tile;
		if (nrows > 0)
			gv_barrier_expect(&ring->arrived[stage], nrows * bytes);
	}
	__syncwarp();
	if (scan.shape.whole)
	{
		if (lane == 0 && nrows > 0)
			gv_copy_bytes(ring->stages + stage * stage_bytes(scan.shape),
						  rows.d_half_rows + row * half_dims, nrows * bytes,
						  &ring->arrived[stage], ring->policy);
	}
	else if (lane < nrows)
		gv_copy_bytes(ring->stages + stage * stage_bytes(scan.shape) +
					  lane * row_stride(scan.shape) * sizeof(uint16_t),
					  rows.d_half_rows + (row + lane) * half_dims + first,
						bytes,
					  &ring->arrived[stage], ring->policy);
}

/* Scores of the next tile, which is returned, as mma.cuh has D. */
static __device__ __forceinline__ uint32_t
multiply_tile(const Scan &scan, Ring *ring, float (&sums)[COLUMNS][4])
{
	const GvExactRows &rows = scan.few->nearest.rows;
	int			half_dims = scan.few->space.half_dims;
	int			lane = threadIdx.x % GV_WARP;
	int			stride = row_stride(scan.shape);
	uint32_t	tile = ring->tiles[ring->at];
	float		bias[2];

	if (tile == NO_TILE)
		return NO_TILE;
	/* there are biases up to a multiple of GV_EXACT_ALIGN */
	for (int h = 0; h < 2; h++)
		bias[h] = rows.d_bias[(int64_t) tile * ROWS + lane / 4 + 8 * h];
	for (int j = 0; j < COLUMNS; j++)
		for (int i = 0; i < 4; i++)
			sums[j][i] = 0.0f;
	for (int first = 0; first < half_dims; first += scan.shape.depth)
	{
		int			stage = ring->at;
		const uint16_t *row = (const uint16_t *)
			(ring->stages + stage * stage_bytes(scan.shape)) +
			lane / 4 * stride + lane % 4 * 8;
		int			depth = min(scan.shape.depth, half_dims - first);
		int			left = depth - lane % 4 * 8;

		gv_barrier_wait(&ring->arrived[stage], ring->odd >> stage & 1);
		ring->odd ^= 1u << stage;
#pragma unroll 4
		for (int d = 0; d < depth; d += GV_FEW_DEPTH)
		{
			uint4		low = make_uint4(0, 0, 0, 0);
			uint4		high = make_uint4(0, 0, 0, 0);

			if (d < left)
			{
				low = *(const uint4 *) (row + d);
				high = *(const uint4 *) (row + 8 * stride + d);
			}
			gv_exact_few_multiply(sums, low, high, scan.query + first + d,
								  scan.query_stride);
		}
		fill(scan, ring, stage);
		ring->at = stage + 1 == scan.shape.stages ? 0 : stage + 1;
	}
	for (int j = 0; j < COLUMNS; j++)
		for (int i = 0; i < 4; i++)
			sums[j][i] += bias[i / 2];
	return tile;
}

#endif

#endif							/* GV_RING_CUH */
