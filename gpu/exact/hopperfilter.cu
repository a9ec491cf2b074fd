/*
 * hopperfilter.cu
 *		The filter's product on devices of compute capability 9.0: finds the
 *		slots that reach a query's threshold, by products of warpgroups
 *		(gpu/product/wgmma.cuh).
 *
 * A unit of work is a tile of queries and some tiles of rows, which are
 * multiplied one after the other.  If shared memory is large enough, the
 * queries' half copies stay there, so that only rows come from L2, through the
 * ring:
 *
 *	queries		rows	dimensions		bytes from L2 for 2,048 products
 *	256			128		up to 192		16
 *	128			256		up to 448		32
 *	128			256		more			48, as queries come with each slice
 *
 * In a clock an SM computes 2,048 products, and L2 delivers some 31 bytes to
 * it.  Each of two warpgroups has half of the queries of a tile, and 128 sums
 * a thread, in two groups of 64 queries x 128 rows.
 *
 * A sum begins with the row's bias less the query's threshold, so only the
 * sign of the result matters.  The signs of several sums are tested together,
 * and sums are looked at one by one only if one of them is not negative, which
 * is rare.
 *
 * Turns.  If the ring holds the slices of two tiles, the warpgroups multiply
 * in turn, so that one looks at its sums while the other uses the tensor
 * cores.  With a smaller ring, one warpgroup would wait for slices whose
 * stages the other one could free only in its own turn.
 */
#include "gpu/exact/exact.cuh"
#include "gpu/product/wgmma.cuh"

#define MORE_QUERIES	64		/* up to this many queries, filter.cu wastes
								 * less */

/* If true, products are computed as on other devices. */
GV_TUNABLE bool gv_exact_no_hopper = false;

#define BOX				128		/* rows of one copy, and of one product */
#define BOX_BYTES		(BOX * GV_HOPPER_ROW)
#define MOST_STAGES		10
#define MOST_TILES		256		/* maximum row tiles of a unit */
#define QUERY_SLICES	4		/* number of slices whose products take as long
								 * as the copy of a unit's queries */
#define TURN			1		/* first named barrier of turns; barrier 0 is
								 * __syncthreads */

/* The work of a launch, and its division into units. */
struct Work
{
	GvExactMatmul matmul;
	int			nsteps;			/* slices of a tile */
	int			stages;			/* stages of the ring */
	int			query_tiles;
	int			row_tiles;
	int			per_unit;		/* row tiles of a unit */
	int			nunits;
	bool		turns;
};

/*
 * The shape of tiles.  Each warpgroup has BLOCKS blocks of 64 queries.  If
 * KEEPS is true, queries stay in shared memory.
 */
template <int BLOCKS, bool KEEPS>
struct Shape
{
	static constexpr int QUERIES = 64 * GV_RING_GROUPS * BLOCKS;
	static constexpr int ROWS = 2 * BOX / BLOCKS;
	static constexpr int PARTS = ROWS / BOX;
	static constexpr int BOXES = QUERIES / BOX; /* of queries */
	/*
	 * the bytes that a stage has of queries (none if queries stay in shared
	 * memory) and of rows, and the bytes of a tile's biases
	 */
	static constexpr int QUERY_BYTES = KEEPS ? 0 : BOXES * BOX_BYTES;
	static constexpr int ROW_BYTES = PARTS * BOX_BYTES;
	static constexpr int BYTES = QUERY_BYTES + ROW_BYTES;
	static constexpr int BIAS_BYTES = ROWS * 4;
};

#if GV_HOPPER

/* The layout of shared memory. */
struct Memory
{
	char	   *queries;		/* [nsteps][QUERIES] slices of queries, if
								 * queries stay */
	GvRing		ring;
	char	   *biases;			/* [stages][ROWS] */
	uint64_t   *kept;			/* [2] barriers: the queries have arrived, and
								 * all warps are done with them */
};

/* A unit's tiles. */
struct Unit
{
	int			query_tile;
	int			first;			/* first row tile */
	int			last;			/* the row tile behind the last one */
};

static __device__ __forceinline__ Unit
unit_at(const Work &work, int number)
{
	int			first = number / work.query_tiles * work.per_unit;

	return {number % work.query_tiles, first,
		min(first + work.per_unit, work.row_tiles)};
}

/*
 * Waits until a stage is free, and copies a slice to the stage.  Called by one
 * thread.
 */
template <int BLOCKS, bool KEEPS>
static __device__ __forceinline__ void
send_slice(const Work &work, const GvRingMaps &maps, const Memory &memory,
		   GvPlace place, int query, int row, int step)
{
	using S = Shape<BLOCKS, KEEPS>;
	const GvRing &ring = memory.ring;
	uint64_t   *full = &ring.full[place.stage];
	char	   *to = ring.slices + place.stage * S::BYTES;

	ring.expect(place, S::BYTES + (step == 0 ? S::BIAS_BYTES : 0));
	if (step == 0)
		gv_copy_bytes(memory.biases + place.stage * S::BIAS_BYTES,
					  work.matmul.d_bias + row, S::BIAS_BYTES, full);
	gv_copy_boxes<S::PARTS>(to + S::QUERY_BYTES, &maps.rows, step, row, BOX,
							full);
	if (!KEEPS)
		gv_copy_boxes<S::BOXES>(to, &maps.queries, step, query, BOX, full);
}

/* Copies all slices of the block's units.  Called by one thread. */
template <int BLOCKS, bool KEEPS>
static __device__ __forceinline__ void
send_units(const Work &work, const GvRingMaps &maps, const Memory &memory)
{
	using S = Shape<BLOCKS, KEEPS>;
	GvPlace		place = {0, 0};
	int			odd = 0;		/* parity of the number of units so far */

	for (int u = blockIdx.x; u < work.nunits; u += gridDim.x)
	{
		Unit		unit = unit_at(work, u);
		int			query = unit.query_tile * S::QUERIES;

		if (KEEPS)
		{
			gv_barrier_wait(&memory.kept[1], odd ^ 1);
			gv_barrier_expect(&memory.kept[0],
							  work.nsteps * S::BOXES * BOX_BYTES);
			for (int step = 0; step < work.nsteps; step++)
				gv_copy_boxes<S::BOXES>(memory.queries +
										step * S::BOXES * BOX_BYTES,
										&maps.queries, step, query, BOX,
										&memory.kept[0]);
			odd ^= 1;
		}
		for (int tile = unit.first; tile < unit.last; tile++)
			for (int step = 0; step < work.nsteps; step++)
			{
				send_slice<BLOCKS, KEEPS>(work, maps, memory, place, query,
										  tile * S::ROWS, step);
				place.advance(work.stages);
			}
	}
}

/*
 * Waits for this warpgroup's turn to multiply.  turn_ends begins the turn of
 * the other warpgroup.
 */
static __device__ __forceinline__ void
turn_begins(int group)
{
	gv_named_sync(TURN + group, GV_RING_GROUPS * GV_WARPGROUP);
}

static __device__ __forceinline__ void
turn_ends(int group)
{
	gv_named_arrive(TURN + (group ^ 1), GV_RING_GROUPS * GV_WARPGROUP);
}

/* A thread's queries. */
template <int BLOCKS>
struct Mine
{
	int			query;			/* number of the first query; the others follow
								 * in steps of 8 and 64 */
	float		thresholds[2 * BLOCKS];
};

/*
 * Sets each sum to the row's bias less the query's threshold.  The biases come
 * with a tile's first slice.
 */
template <int BLOCKS, int PARTS>
static __device__ __forceinline__ void
begin_sums(float (&sums)[BLOCKS * PARTS][BOX / 8][4],
		   const Mine<BLOCKS> &mine, const float *biases)
{
	int			column = threadIdx.x % 4 * 2;

#pragma unroll
	for (int p = 0; p < PARTS; p++)
#pragma unroll
		for (int j = 0; j < BOX / 8; j++)
		{
			float2		bias = *(const float2 *) (biases + p * BOX + j * 8 +
												  column);

#pragma unroll
			for (int b = 0; b < BLOCKS; b++)
#pragma unroll
				for (int h = 0; h < 2; h++)
				{
					float	   *pair = sums[b * PARTS + p][j] + 2 * h;

					pair[0] = bias.x - mine.thresholds[2 * b + h];
					pair[1] = bias.y - mine.thresholds[2 * b + h];
				}
		}
}

/*
 * Appends the rows that reach a query's threshold to the query's candidates,
 * for 64 queries and BOX rows.
 */
static __device__ __forceinline__ void
run_epilogue(const float (&sums)[BOX / 8][4], const GvExactMatmul &matmul,
			 int query, int row)
{
	constexpr int SOME = 4;		/* tiles of 8 rows whose signs are tested
								 * together */
	int			column = threadIdx.x % 4 * 2;

#pragma unroll
	for (int first = 0; first < BOX / 8; first += SOME)
	{
		int			signs = -1;

#pragma unroll
		for (int j = first; j < first + SOME; j++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				signs &= __float_as_int(sums[j][c]);
		if (signs < 0)
			continue;
#pragma unroll
		for (int j = first; j < first + SOME; j++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				/* false for NaN: see thresholds.cu */
				if (sums[j][c] >= 0.0f)
					gv_exact_append(matmul.filter, query + c / 2 * 8,
									matmul.first + row + j * 8 + column +
									c % 2);
	}
}

/* Searches a unit's rows for this warpgroup's half of the queries. */
template <int BLOCKS, bool KEEPS>
static __device__ __forceinline__ void
search_unit(const Work &work, const Memory &memory, const Unit &unit,
			int group, GvPlace &place)
{
	using S = Shape<BLOCKS, KEEPS>;
	const GvExactMatmul &matmul = work.matmul;
	Mine<BLOCKS> mine;

	mine.query = unit.query_tile * S::QUERIES + group * BLOCKS * 64 +
		threadIdx.x % GV_WARPGROUP / GV_WARP * 16 + threadIdx.x % GV_WARP / 4;
#pragma unroll
	for (int i = 0; i < 2 * BLOCKS; i++)
	{
		int			q = mine.query + i / 2 * 64 + i % 2 * 8;

		mine.thresholds[i] = q < matmul.n ? matmul.filter.d_thresholds[q] :
			GV_INFINITY;
	}
	for (int tile = unit.first; tile < unit.last; tile++)
	{
		float		sums[2][BOX / 8][4];

		gv_barrier_wait(&memory.ring.full[place.stage], place.odd);
		begin_sums<BLOCKS, S::PARTS>(sums, mine, (const float *)
									 (memory.biases +
									  place.stage * S::BIAS_BYTES));
		__syncwarp();			/* whole warps must issue the products
								 * together */
		if (work.turns)
			turn_begins(group);
		/*
		 * end the turn when the last products are issued, so that the tensor
		 * cores continue with the other group's products without a pause
		 */
		gv_ring_multiply<BLOCKS, KEEPS>(sums, memory.ring, place, work.nsteps,
										memory.queries, group, [&]
		{
			if (work.turns)
				turn_ends(group);
		});
#pragma unroll
		for (int i = 0; i < 2; i++)
			run_epilogue(sums[i], matmul, mine.query + i / S::PARTS * 64,
						 tile * S::ROWS + i % S::PARTS * BOX);
	}
}

#endif							/* GV_HOPPER */

/*
 * Filters a product.  Block b has units b, b + gridDim.x and so on.  Each of
 * two warpgroups has half of a unit's queries, and one thread of the third
 * warpgroup copies.  In code for other devices the kernel is empty.  Shared
 * memory, from a multiple of 1,024 on: the queries if they stay, the ring, and
 * the biases.
 */
template <int BLOCKS, bool KEEPS>
static __global__ void __launch_bounds__(GV_RING_THREADS, 1)
exact_hopper_kernel(Work work, const __grid_constant__ GvRingMaps maps)
{
#if GV_HOPPER
	using S = Shape<BLOCKS, KEEPS>;
	GV_SHARED(shared);
	__shared__ uint64_t barriers[2 * MOST_STAGES + 2];
	char	   *start = (char *) shared +
		-gv_shared_address(shared) % GV_RING_ALIGNMENT;
	char	   *slices = start +
		(KEEPS ? work.nsteps * S::BOXES * BOX_BYTES : 0);
	Memory		memory = {start, {slices, barriers, barriers + MOST_STAGES,
		S::BYTES, work.stages}, slices + work.stages * S::BYTES,
		barriers + 2 * MOST_STAGES};
	int			group = threadIdx.x / GV_WARPGROUP;

	if (threadIdx.x == 0)
	{
		gv_barrier_init(&memory.kept[0], 1);
		gv_barrier_init(&memory.kept[1], GV_RING_WARPS);
	}
	memory.ring.prepare();

	/* 1. one thread of the last group copies */
	if (group == GV_RING_GROUPS)
	{
		gv_registers_give<GV_COPY_REGISTERS>();
		if (threadIdx.x % GV_WARPGROUP == 0)
			send_units<BLOCKS, KEEPS>(work, maps, memory);
		return;
	}

	/* 2. the other groups multiply and look at the sums */
	gv_registers_take<GV_MANY_REGISTERS>();

	GvPlace		place = {0, 0};
	int			odd = 0;

	/* begin the first group's first turn */
	if (work.turns && group == 1)
		turn_ends(group);
	for (int u = blockIdx.x; u < work.nunits; u += gridDim.x)
	{
		if (KEEPS)
			gv_barrier_wait(&memory.kept[0], odd);
		search_unit<BLOCKS, KEEPS>(work, memory, unit_at(work, u), group,
								   place);
		if (KEEPS && threadIdx.x % GV_WARP == 0)
			gv_barrier_arrive(&memory.kept[1]);
		odd ^= 1;
	}
	/* wait once for the other group's last turn_ends */
	if (work.turns && group == 0)
		turn_begins(group);
#endif
}

/*
 * Returns the best number of row tiles of a unit.  Blocks take units in
 * rounds, and the last round may be partly empty.  For each unit a block waits
 * for the queries, 64 to 112 KB from L2, which take 3,000 to 4,500 clocks.
 * The product of a slice takes 1,024 clocks.
 */
static int
tiles_of_unit(const Work *work, int nsms)
{
	int64_t		least = INT64_MAX;
	int			best = 1;

	for (int tiles = 1; tiles <= MOST_TILES && tiles <= work->row_tiles;
		 tiles++)
	{
		int64_t		units = (int64_t) work->query_tiles *
			((work->row_tiles + tiles - 1) / tiles);
		int64_t		rounds = (units + nsms - 1) / nsms;
		int64_t		slices = rounds * ((int64_t) tiles * work->nsteps +
									   QUERY_SLICES);

		if (slices < least)
		{
			least = slices;
			best = tiles;
		}
	}
	return best;
}

/* Divides a product into units. */
template <int BLOCKS, bool KEEPS>
static Work
deal(const GvExactMatmul *matmul, int nsms)
{
	using S = Shape<BLOCKS, KEEPS>;
	Work		work = {};

	work.matmul = *matmul;
	work.nsteps = (matmul->half_dims + GV_HOPPER_SLICE - 1) / GV_HOPPER_SLICE;
	work.stages = (GV_RING_BYTES -
				   (KEEPS ? work.nsteps * S::BOXES * BOX_BYTES : 0)) /
		(S::BYTES + S::BIAS_BYTES);
	if (work.stages > MOST_STAGES)
		work.stages = MOST_STAGES;
	work.turns = work.stages >= 2 * work.nsteps;
	work.query_tiles = (matmul->n + S::QUERIES - 1) / S::QUERIES;
	work.row_tiles = (int) ((matmul->nslots + S::ROWS - 1) / S::ROWS);
	work.per_unit = tiles_of_unit(&work, nsms);
	work.nunits = work.query_tiles *
		((work.row_tiles + work.per_unit - 1) / work.per_unit);
	return work;
}

template <int BLOCKS, bool KEEPS>
static GvStatus
launch(const GvExactMatmul *matmul, int nsms, cudaStream_t stream)
{
	Work		work = deal<BLOCKS, KEEPS>(matmul, nsms);
	GvRingMaps	maps;

	GV_TRY(gv_gpu_hopper_map(&maps.queries, matmul->d_queries, matmul->n,
							 matmul->half_dims, BOX));
	GV_TRY(gv_gpu_hopper_map(&maps.rows, matmul->d_half_rows, matmul->nslots,
							 matmul->half_dims, BOX));
	return gv_launch(exact_hopper_kernel<BLOCKS, KEEPS>,
					 min(work.nunits, nsms), GV_RING_THREADS,
					 GV_RING_BYTES + GV_RING_ALIGNMENT, stream, work, maps);
}

/* Returns whether this filter is the best one for a product. */
bool
gv_gpu_exact_hopper_fits(const GvExactMatmul *matmul, int32_t device)
{
	return !gv_exact_no_hopper && matmul->d_scores == NULL && matmul->n >
		MORE_QUERIES && gv_has_hopper(device) && gv_gpu_hopper_multiplies();
}

GvStatus
gv_gpu_exact_hopper(const GvExactMatmul *matmul, int nsms, cudaStream_t stream)
{
	int			nsteps = (matmul->half_dims + GV_HOPPER_SLICE - 1) /
		GV_HOPPER_SLICE;

	if (nsteps <= 3 && matmul->n > 128)
		return launch<2, true>(matmul, nsms, stream);
	if (nsteps <= 7)
		return launch<1, true>(matmul, nsms, stream);
	return launch<1, false>(matmul, nsms, stream);
}
