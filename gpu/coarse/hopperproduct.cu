/*
 * hopperproduct.cu
 *		The product of listscores.cu on cards of compute capability 9.0, by what
 *		only they have: products of a warpgroup that take their operands from
 *		shared memory, and copies that one thread asks for (hopperring.cuh).
 *
 * A tile is 128 queries x LISTS lists.  There is a block for each SM, which
 * takes every gridDim.x-th tile: slices of the next one come while the sums of
 * this one go out.
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

#define MORE_QUERIES	128		/* of fewer, tiles of loop.cuh waste less */

static int32_t forced = -1;		/* see gv_gpu_hopper */

/* Is this the way for a part of a batch? */
bool
gv_gpu_hopper_fits(const GvBatch *batch, const GvSearcher *searcher)
{
	return searcher->hopper && forced != 0 && batch->n > MORE_QUERIES;
}

#include "gpu/coarse/listscores.cuh"
#include "gpu/common/hopperring.cuh"
#include "gpu/product/become.cuh"

#define QUERIES			(64 * GV_RING_GROUPS)

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
	static constexpr int STAGES = GV_RING_ROOM / BYTES;

	static_assert(WIDTH % GV_RUN == 0, "a warp finds the least of runs");
	static_assert(STAGES >= 4, "three slices are on their way");
};

#if GV_HOPPER

/* Ask for the lists of a slice, and expect its queries, too. */
template <int WIDTH, int PARTS>
static __device__ __forceinline__ void
send_lists(const GvRing &ring, GvPlace place, const GvRingMaps &maps, int list,
		   int step)
{
	ring.expect(place, ring.bytes);
	gv_copy_boxes<PARTS>(ring.slices + place.stage * ring.bytes +
						 QUERIES * GV_HOPPER_ROW, &maps.rows, step, list,
						 WIDTH, &ring.full[place.stage]);
}

/*
 * By one thread: ask for all slices of the block's tiles, as there is room;
 * the first ones of lists before the queries are there, where steps overlap.
 */
template <int WIDTH, int PARTS>
static __device__ __forceinline__ void
send_tiles(const GvRing &ring, const GvRingMaps &maps, const Tiles &tiles,
		   int nsteps)
{
	constexpr int LISTS = WIDTH * PARTS;
	int			ahead = min(ring.stages, nsteps);
	GvPlace		place = {0, 0};
	GvPlace		early = {0, 0};

	for (int step = 0; step < ahead; step++, early.advance(ring.stages))
		send_lists<WIDTH, PARTS>(ring, early, maps,
								 blockIdx.x / tiles.nqueries * LISTS, step);
	gv_step_begins();
	for (int tile = blockIdx.x; tile < tiles.n; tile += gridDim.x)
		for (int step = 0; step < nsteps; step++, place.advance(ring.stages))
		{
			if (step >= ahead || tile != (int) blockIdx.x)
				send_lists<WIDTH, PARTS>(ring, place, maps,
										 tile / tiles.nqueries * LISTS, step);
			gv_copy_boxes<1>(ring.slices + place.stage * ring.bytes,
							 &maps.queries, step,
							 tile % tiles.nqueries * QUERIES, QUERIES,
							 &ring.full[place.stage]);
		}
}

#endif							/* GV_HOPPER */

/*
 * Tiles blockIdx.x, blockIdx.x + gridDim.x, ...  Shared: STAGES slices, from a
 * multiple of 1,024 on.  Code for other cards is empty.
 */
template <int WIDTH, int PARTS>
static __global__ void __launch_bounds__(GV_RING_THREADS, 1)
product_hopper_kernel(GvCardModel card, GvBatch batch,
					  const __grid_constant__ GvRingMaps maps)
{
#if GV_HOPPER
	constexpr int LISTS = WIDTH * PARTS;
	constexpr int STAGES = Slice<WIDTH, PARTS>::STAGES;
	GV_SHARED(memory);
	__shared__ uint64_t barriers[2][STAGES];
	uint32_t	offset = -gv_shared_address(memory) % GV_RING_ALIGNMENT;
	GvRing		ring = {(char *) memory + offset, barriers[0], barriers[1],
	Slice<WIDTH, PARTS>::BYTES, STAGES};
	Tiles		tiles = tiles_of<LISTS>(card, batch);
	int			group = threadIdx.x / GV_WARPGROUP;
	int			nsteps = (card.half_dims + GV_HOPPER_SLICE - 1) /
		GV_HOPPER_SLICE;
	GvListScores scores = {card, batch};
	GvPlace		place = {0, 0};

	ring.prepare();

	/* 1. one thread of the last group copies */
	if (group == GV_RING_GROUPS)
	{
		gv_registers_give<GV_COPY_REGISTERS>();
		if (threadIdx.x % GV_WARPGROUP == 0)
			send_tiles<WIDTH, PARTS>(ring, maps, tiles, nsteps);
		return;
	}

	/* 2. the others multiply what comes, and write */
	gv_registers_take<GV_MANY_REGISTERS>();
	gv_step_begins();
	for (int tile = blockIdx.x; tile < tiles.n; tile += gridDim.x)
	{
		float		sums[PARTS][WIDTH / 8][4] = {};

		gv_ring_multiply<1, false>(sums, ring, place, nsteps, NULL, group, []
		{
		});
#pragma unroll
		for (int p = 0; p < PARTS; p++)
			gv_become<1>(scores, (GvListScores::Row *) NULL, &sums[p],
						 tile % tiles.nqueries * QUERIES +
						 threadIdx.x / GV_WARP * 16,
						 tile / tiles.nqueries * LISTS + p * WIDTH);
	}
#endif
}

template <int WIDTH, int PARTS>
static GvStatus
launch(const GvCardModel *card, const GvBatch *batch,
	   const GvSearcher *searcher)
{
	constexpr int bytes = Slice<WIDTH, PARTS>::STAGES *
		Slice<WIDTH, PARTS>::BYTES + GV_RING_ALIGNMENT;
	Tiles		tiles = tiles_of<WIDTH * PARTS>(*card, *batch);
	GvRingMaps	maps;

	GV_TRY(gv_gpu_hopper_map(&maps.queries, batch->approx.d_halves, batch->n,
							 card->half_dims, QUERIES));
	GV_TRY(gv_gpu_hopper_map(&maps.rows, card->d_halves, card->nlists,
							 card->half_dims, WIDTH));
	return gv_launch_step(product_hopper_kernel<WIDTH, PARTS>,
						  min(tiles.n, searcher->nsms), GV_RING_THREADS, bytes,
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
	int64_t		nsteps = (card->half_dims + GV_HOPPER_SLICE - 1) /
		GV_HOPPER_SLICE;

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
