/*
 * hopperproduct.cu
 *		The product of product.cu on cards of compute capability 9.0, by what
 *		only they have: products of a warpgroup that take their operands from
 *		shared memory, and copies that one thread asks for (hopper.cuh).
 *
 * A tile is 128 queries x LISTS lists, its slices 64 dimensions of its rows,
 * in a ring of STAGES places.  One thread asks for slices as places become
 * free; two warpgroups, each with half of the queries, multiply.  There is a
 * block for each SM, which takes every gridDim.x-th tile: slices of the next
 * one come while the sums of this one go out.
 *
 * Bytes from L2: a slice of 128 x 256 is 48 KB for 2 M products, 1,024 clocks;
 * L2 gives an SM some 31 a clock when all read, so a slice takes 1,500, and it
 * is the sum of queries and lists that counts, 4 clocks a row.  A score goes
 * out at some 24 bytes a clock and SM, 21 clocks a list of 128 queries.
 *
 * A batch's tiles seldom fill all SMs evenly: 500 x 8,450 are 136 tiles of 128
 * x 256, two rounds for 132 SMs, but 120 of 128 x 288.  So there are tiles of
 * several widths, and the one is taken that takes the fewest clocks by this
 * model.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/common/common.cuh"

#define MORE_QUERIES	128		/* of fewer, tiles of product.cu waste less */

static int32_t forced = -1;		/* see gv_gpu_hopper */

/* Is this the way for a part of a batch? */
bool
gv_gpu_hopper_fits(const GvBatch *batch, const GvSearcher *searcher)
{
	return searcher->hopper && forced != 0 && batch->n > MORE_QUERIES;
}

#include "gpu/coarse/product.cuh"
#include "gpu/common/hopper.cuh"

#define GROUPS			2		/* of warps, that multiply */
#define QUERIES			(64 * GROUPS)
#define GROUP_WARPS		(GV_WARPGROUP / GV_WARP)
#define THREADS			((GROUPS + 1) * GV_WARPGROUP)	/* one more copies */
#define COPY_REGISTERS	40		/* of threads that copy, which begin with 168 */
#define MANY_REGISTERS	232		/* of those that multiply */
#define SLICE			(GV_HOPPER_ROW / 2) /* dimensions at a time */
#define ALIGNMENT		1024	/* of operands */
#define ROOM			(224 * 1024)	/* bytes for slices */
/* Where boxes come from: [half_dims] x rows, a box being SLICE x some rows. */
struct Maps
{
	CUtensorMap queries;		/* QUERIES rows at once */
	CUtensorMap lists;			/* as many as one product has columns */
};

/* What a launch is made of. */
struct Tiles
{
	int			nqueries;		/* tiles side by side for the same lists */
	int			n;
};

template <int LISTS>
static __host__ __device__ inline Tiles
tiles_of(const GvCardModel &card, const GvBatch &batch)
{
	int			nqueries = (batch.n + QUERIES - 1) / QUERIES;

	return {nqueries, nqueries * ((card.nlists + LISTS - 1) / LISTS)};
}

/* A slice: queries, then PARTS times WIDTH lists. */
template <int WIDTH, int PARTS>
struct Slice
{
	static constexpr int LISTS = WIDTH * PARTS;
	static constexpr int BYTES = (QUERIES + LISTS) * GV_HOPPER_ROW;
	static constexpr int STAGES = ROOM / BYTES;

	static_assert(WIDTH % GV_RUN == 0, "a warp finds the least of runs");
	static_assert(STAGES >= 4, "three slices are on their way");
};

#if GV_HOPPER

/* The ring: slices, and two barriers for each. */
template <int WIDTH, int PARTS>
struct Ring
{
	using Shape = Slice<WIDTH, PARTS>;

	char	   *slices;
	uint64_t   *full;			/* [STAGES] its bytes are there */
	uint64_t   *empty;			/* [STAGES] all warps have multiplied it */

	__device__ __forceinline__ char *
	at(int number) const
	{
		return slices + number % Shape::STAGES * Shape::BYTES;
	}

	/* Wait until the block's slice of that number may be filled. */
	__device__ __forceinline__ void
	wait_empty(int number) const
	{
		gv_barrier_wait(&empty[number % Shape::STAGES],
						(number / Shape::STAGES + 1) % 2);
	}

	/* ... and until it is there. */
	__device__ __forceinline__ void
	wait_full(int number) const
	{
		gv_barrier_wait(&full[number % Shape::STAGES],
						number / Shape::STAGES % 2);
	}

	/* A warp needs a slice no longer. */
	__device__ __forceinline__ void
	leave(int number) const
	{
		if (threadIdx.x % GV_WARP == 0)
			gv_barrier_arrive(&empty[number % Shape::STAGES]);
	}

	/* Ask for the lists of a slice, and expect its queries, too. */
	__device__ __forceinline__ void
	send_lists(int number, const Maps &maps, int list, int step) const
	{
		uint64_t   *barrier = &full[number % Shape::STAGES];
		char	   *to = at(number) + QUERIES * GV_HOPPER_ROW;

		gv_barrier_expect(barrier, Shape::BYTES);
#pragma unroll
		for (int p = 0; p < PARTS; p++)
			gv_copy_box(to + p * WIDTH * GV_HOPPER_ROW, &maps.lists,
						step * SLICE, list + p * WIDTH, barrier);
	}

	__device__ __forceinline__ void
	send_queries(int number, const Maps &maps, int query, int step) const
	{
		gv_copy_box(at(number), &maps.queries, step * SLICE, query,
					&full[number % Shape::STAGES]);
	}
};

/*
 * By one thread: ask for all slices of the block's tiles, as there is room;
 * the first ones of lists before the queries are there, where steps overlap.
 */
template <int WIDTH, int PARTS>
static __device__ __forceinline__ void
send_tiles(const Ring<WIDTH, PARTS> &ring, const Maps &maps,
		   const Tiles &tiles, int nsteps)
{
	constexpr int LISTS = WIDTH * PARTS;
	int			ahead = min(Slice<WIDTH, PARTS>::STAGES, nsteps);
	int			number = 0;

	for (int step = 0; step < ahead; step++)
		ring.send_lists(step, maps, blockIdx.x / tiles.nqueries * LISTS, step);
	gv_step_begins();
	for (int tile = blockIdx.x; tile < tiles.n; tile += gridDim.x)
		for (int step = 0; step < nsteps; step++)
		{
			if (number >= ahead)
			{
				ring.wait_empty(number);
				ring.send_lists(number, maps, tile / tiles.nqueries * LISTS,
								step);
			}
			ring.send_queries(number, maps, tile % tiles.nqueries * QUERIES,
							  step);
			number++;
		}
}

/*
 * By a warpgroup: its products of a tile, whose slices begin at number
 * `first`.  A slice is left when the next one's products have begun.
 */
template <int WIDTH, int PARTS>
static __device__ __forceinline__ void
multiply(float (&sums)[PARTS][1][WIDTH / 8][4], const Ring<WIDTH, PARTS> &ring,
		 int group, int first, int nsteps)
{
#pragma unroll
	for (int p = 0; p < PARTS; p++)
		gv_sums_settle(sums[p][0]);
	for (int step = 0; step < nsteps; step++)
	{
		const char *slice = ring.at(first + step);
		uint64_t	a = gv_operand(slice + group * 64 * GV_HOPPER_ROW);
		uint64_t	b = gv_operand(slice + QUERIES * GV_HOPPER_ROW);

		ring.wait_full(first + step);
		gv_products_begin();
#pragma unroll
		for (int k = 0; k < SLICE / GV_HOPPER_DEPTH; k++)
#pragma unroll
			for (int p = 0; p < PARTS; p++)
				gv_product(sums[p][0], gv_operand_at(a, k),
						   gv_operand_at(b, k) +
						   p * (WIDTH * GV_HOPPER_ROW / 16));
		gv_products_commit();
		gv_products_wait<1>();
		if (step > 0)
			ring.leave(first + step - 1);
	}
	gv_products_wait<0>();
	ring.leave(first + nsteps - 1);
#pragma unroll
	for (int p = 0; p < PARTS; p++)
		gv_sums_settle(sums[p][0]);
}

#endif							/* GV_HOPPER */

/*
 * Tiles blockIdx.x, blockIdx.x + gridDim.x, ...  Shared: STAGES slices, from a
 * multiple of 1,024 on.  Code for other cards is empty.
 */
template <int WIDTH, int PARTS>
static __global__ void __launch_bounds__(THREADS, 1)
product_hopper_kernel(GvCardModel card, GvBatch batch,
					  const __grid_constant__ Maps maps)
{
#if GV_HOPPER
	constexpr int LISTS = WIDTH * PARTS;
	constexpr int STAGES = Slice<WIDTH, PARTS>::STAGES;
	GV_SHARED(memory);
	__shared__ uint64_t barriers[2][STAGES];
	uint32_t	offset = -gv_shared_address(memory) % ALIGNMENT;
	Ring<WIDTH, PARTS> ring = {(char *) memory + offset, barriers[0],
	barriers[1]};
	Tiles		tiles = tiles_of<LISTS>(card, batch);
	int			warp = threadIdx.x / GV_WARP;
	int			nsteps = (card.half_dims + SLICE - 1) / SLICE;
	int			number = 0;

	if (threadIdx.x == 0)
	{
		for (int i = 0; i < STAGES; i++)
		{
			gv_barrier_init(&ring.full[i], 1);
			gv_barrier_init(&ring.empty[i], GROUPS * GROUP_WARPS);
		}
		gv_barriers_ready();
	}
	__syncthreads();

	/* 1. one thread of the last group copies */
	if (warp >= GROUPS * GROUP_WARPS)
	{
		gv_registers_give<COPY_REGISTERS>();
		if (threadIdx.x == GROUPS * GV_WARPGROUP)
			send_tiles(ring, maps, tiles, nsteps);
		return;
	}

	/* 2. the others multiply what comes, and write */
	gv_registers_take<MANY_REGISTERS>();
	gv_step_begins();
	for (int tile = blockIdx.x; tile < tiles.n; tile += gridDim.x)
	{
		float		sums[PARTS][1][WIDTH / 8][4] = {};

		multiply(sums, ring, warp / GROUP_WARPS, number, nsteps);
		number += nsteps;
#pragma unroll
		for (int p = 0; p < PARTS; p++)
			gv_put_sums(card, batch, sums[p], tile % tiles.nqueries * QUERIES +
						warp * 16, tile / tiles.nqueries * LISTS + p * WIDTH);
	}
#endif
}

template <int WIDTH, int PARTS>
static GvStatus
launch(const GvCardModel *card, const GvBatch *batch,
	   const GvSearcher *searcher)
{
	constexpr int bytes = Slice<WIDTH, PARTS>::STAGES *
		Slice<WIDTH, PARTS>::BYTES + ALIGNMENT;
	Tiles		tiles = tiles_of<WIDTH * PARTS>(*card, *batch);
	Maps		maps;

	GV_TRY(gv_gpu_hopper_map(&maps.queries, batch->approx.d_halves, batch->n,
							 card->half_dims, QUERIES));
	GV_TRY(gv_gpu_hopper_map(&maps.lists, card->d_halves, card->nlists,
							 card->half_dims, WIDTH));
	return gv_launch_step(product_hopper_kernel<WIDTH, PARTS>,
						  min(tiles.n, searcher->nsms), THREADS, bytes,
						  searcher->stream, card, batch, maps);
}

/* Tiles that there are. */
static const struct
{
	int			lists;
	GvStatus	(*launch) (const GvCardModel *card, const GvBatch *batch,
						   const GvSearcher *searcher);
}			widths[] = {
	{320, launch<160, 2>},
	{288, launch<96, 3>},
	{256, launch<128, 2>},
	{192, launch<96, 2>},
	{160, launch<160, 1>},
	{128, launch<128, 1>},
	{96, launch<96, 1>}
};

/* Clocks that all tiles of a width take; see above. */
static int64_t
clocks_of(const GvCardModel *card, const GvBatch *batch, int nsms, int lists)
{
	int64_t		ntiles = (int64_t) ((batch->n + QUERIES - 1) / QUERIES) *
		((card->nlists + lists - 1) / lists);
	int64_t		rounds = (ntiles + nsms - 1) / nsms;
	int64_t		nsteps = (card->half_dims + SLICE - 1) / SLICE;

	return rounds * (nsteps * (QUERIES + lists) * 4 + lists * 21 + 500);
}

/* See gv_coarse.h. */
bool
gv_gpu_hopper(int32_t lists)
{
	forced = lists;
	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
		if (widths[i].lists == lists)
			return true;
	return lists <= 0;
}

/* d_coarse, approximate, and d_least of a batch. */
GvStatus
gv_gpu_hopper_product(const GvCardModel *card, const GvBatch *batch,
					  const GvSearcher *searcher)
{
	int64_t		fewest = INT64_MAX;
	size_t		best = 0;

	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
	{
		int64_t		clocks = widths[i].lists == forced ? 0 :
			clocks_of(card, batch, searcher->nsms, widths[i].lists);

		if (clocks < fewest)
		{
			fewest = clocks;
			best = i;
		}
	}
	return widths[best].launch(card, batch, searcher);
}
