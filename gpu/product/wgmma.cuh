/*
 * wgmma.cuh
 *		Instructions that only devices of compute capability 9.0 have, in code
 *		for sm_90a: matrix products by a warpgroup, whose operands stay in
 *		shared memory, and copies of boxes to shared memory, which one thread
 *		starts.
 *
 * An operand is a matrix of halves [rows][64].  A row is 128 bytes, and the
 * operand begins at a multiple of 1,024 bytes.  Piece c (16 bytes) of row r is
 * stored as piece c ^ (r % 8) of its row (swizzle of 128 bytes); the copies
 * write this layout and the products read it.
 *
 * A barrier counts arrivals, and bytes in flight.  When all arrivals and bytes
 * of a phase have come, the next phase begins.  A thread that waits for the
 * end of a phase passes the last bit of the phase's number.
 *
 * Source: PTX ISA, sections of wgmma, mbarrier and cp.async.bulk.tensor.
 */
#ifndef GV_WGMMA_CUH
#define GV_WGMMA_CUH

#ifdef __CUDACC__
#include <cuda.h>
#include <cudaTypedefs.h>
#endif

#include "gpu/device/mma.cuh"
#include "gpu/product/product.h"

#define GV_HOPPER_ROW		128 /* bytes of a row: 64 halves */
#define GV_HOPPER_DEPTH		16	/* halves of each row in one product */
#define GV_WARPGROUP		128 /* threads */

#ifndef __CUDACC__
#include <emulated_hopper.h>
#else

/* -- maps of arrays, which the driver makes */

typedef PFN_cuTensorMapEncodeTiled_v12000 GvTensorMapEncode;

/*
 * Returns the driver's function, or NULL if there is none.  The function is
 * looked up at run time because the driver is not linked.
 */
static inline GvTensorMapEncode
gv_find_encode()
{
	static const char name[] = "cuTensorMapEncodeTiled";
	void	   *found = NULL;
	cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
	cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000,
														 cudaEnableDefault,
														 &result);
#else
	cudaError_t error = cudaGetDriverEntryPoint(name, &found,
												cudaEnableDefault, &result);
#endif

	if (error == cudaSuccess && result == cudaDriverEntryPointSuccess)
		return (GvTensorMapEncode) found;
	(void) cudaGetLastError();
	return NULL;
}

static inline GvTensorMapEncode
gv_encode_function()
{
	static const GvTensorMapEncode found = gv_find_encode();

	return found;
}

/*
 * Returns whether the driver can make maps of arrays, which copies of boxes
 * need.
 */
static inline bool
gv_gpu_hopper_multiplies()
{
	return gv_encode_function() != NULL;
}

/*
 * Makes a map of an array of half-precision numbers [nrows][half_dims] on the
 * device.  Copies by this map have boxes of box_rows rows and 64 numbers,
 * swizzled as described at the top of this file.
 */
static inline GvStatus
gv_gpu_hopper_map(CUtensorMap *map, const uint16_t *array, int64_t nrows,
				  int half_dims, int box_rows)
{
	cuuint64_t	shape[2] = {(cuuint64_t) half_dims, (cuuint64_t) nrows};
	cuuint64_t	row_bytes[1] = {half_dims * sizeof(uint16_t)};
	cuuint32_t	box[2] = {GV_HOPPER_ROW / 2, (cuuint32_t) box_rows};
	cuuint32_t	each[2] = {1, 1};
	CUresult	result;

	result = gv_encode_function() (map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
								   (void *) array, shape, row_bytes, box, each,
								   CU_TENSOR_MAP_INTERLEAVE_NONE,
								   CU_TENSOR_MAP_SWIZZLE_128B,
								   CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
								   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	return result == CUDA_SUCCESS ? GV_OK : GV_FAILED;
}

/*
 * -- registers: a whole warpgroup gives registers back, or gets more of them
 */

template <int COUNT>
static __device__ __forceinline__ void
gv_registers_give()
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

template <int COUNT>
static __device__ __forceinline__ void
gv_registers_take()
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

/* -- barriers, in shared memory */

static __device__ __forceinline__ void
gv_barrier_init(uint64_t *barrier, int arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
				 :: "r"(gv_shared_address(barrier)), "r"(arrivals) : "memory");
}

/*
 * Makes new barriers visible to copies.  Call it after gv_barrier_init and
 * before the block's first barrier.
 */
static __device__ __forceinline__ void
gv_barriers_ready()
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void
gv_barrier_arrive(uint64_t *barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
				 :: "r"(gv_shared_address(barrier)) : "memory");
}

/*
 * Arrives at a barrier, and tells it how many bytes will arrive in this phase.
 */
static __device__ __forceinline__ void
gv_barrier_expect(uint64_t *barrier, int bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
				 :: "r"(gv_shared_address(barrier)), "r"(bytes) : "memory");
}

/*
 * Waits for the end of an even phase if odd is 0, and of an odd phase if odd
 * is 1.  A new barrier is in phase 0, and waiting for an odd phase then
 * returns at once.
 */
static __device__ __forceinline__ void
gv_barrier_wait(uint64_t *barrier, int odd)
{
	uint32_t	over;

	do
	{
		asm volatile("{\n"
					 ".reg .pred p;\n"
					 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
					 "selp.u32 %0, 1, 0, p;\n"
					 "}\n"
					 : "=r"(over)
					 : "r"(gv_shared_address(barrier)), "r"(odd) : "memory");
	} while (!over);
}

/*
 * Named barriers; number 0 is the block's own.  The first function arrives and
 * waits until nthreads threads have arrived; the second arrives without
 * waiting.
 */
static __device__ __forceinline__ void
gv_named_sync(int number, int nthreads)
{
	asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(nthreads) : "memory");
}

static __device__ __forceinline__ void
gv_named_arrive(int number, int nthreads)
{
	asm volatile("bar.arrive %0, %1;"
				 :: "r"(number), "r"(nthreads) : "memory");
}

/* -- copies */

/*
 * Begins to copy a box of a map to shared memory; the box begins at dimension
 * `d` of row `row`.  The barrier counts the bytes that arrive.  Numbers
 * outside the map are 0, and their bytes count as well.
 */
static __device__ __forceinline__ void
gv_copy_box(void *shared, const CUtensorMap *map, int d, int row,
			uint64_t *barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier"
				 "::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
				 :: "r"(gv_shared_address(shared)), "l"(map), "r"(d), "r"(row),
					 "r"(gv_shared_address(barrier)) : "memory");
}

/*
 * Begins to copy consecutive bytes to shared memory.  Both addresses and the
 * number of bytes are multiples of 16.  The barrier counts the bytes that
 * arrive.  L2 may evict these bytes first, because they are read only once.
 */
static __device__ __forceinline__ void
gv_copy_bytes(void *shared, const void *global, int bytes, uint64_t *barrier)
{
	uint64_t	policy;

	asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier"
				 "::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
				 :: "r"(gv_shared_address(shared)), "l"(global), "r"(bytes),
				 "r"(gv_shared_address(barrier)), "l"(policy) : "memory");
}

/* -- products, by all threads of a warpgroup together */

/*
 * Returns the descriptor of an operand: its address in shared memory, the
 * stride of 1,024 bytes between groups of 8 rows, and the swizzle.  The
 * address and the stride are in units of 16 bytes.
 */
static __device__ __forceinline__ uint64_t
gv_operand(const void *shared)
{
	return UINT64_C(1) << 62 | (uint64_t) (8 * GV_HOPPER_ROW / 16) << 32 |
		UINT64_C(1) << 16 | (gv_shared_address(shared) & 0x3FFFF) / 16;
}

/* Returns the descriptor of an operand's dimensions from 16 k on. */
static __device__ __forceinline__ uint64_t
gv_operand_at(uint64_t operand, int k)
{
	return operand + k * (GV_HOPPER_DEPTH * 2 / 16);
}

/* Orders earlier writes to sums before the products that follow. */
static __device__ __forceinline__ void
gv_products_begin()
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Closes a group of products: those that began since the last call. */
static __device__ __forceinline__ void
gv_products_commit()
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/*
 * Waits until all groups of products except the last LEFT groups are complete.
 */
template <int LEFT>
static __device__ __forceinline__ void
gv_products_wait()
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}

/* Keeps the compiler from moving accesses to sums across this point. */
template <int N>
static __device__ __forceinline__ void
gv_sums_settle(float (&sums)[N][4])
{
#pragma unroll
	for (int j = 0; j < N; j++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			asm volatile("" : "+f"(sums[j][i]) :: "memory");
}

/*
 * Computes D += A B with A [64][16] and B [16][8 * N], in fp32.  Warp w of the
 * group has rows 16w .. 16w + 15 of D, in N tiles of 8 columns, each as in
 * mma.cuh.
 */
#define SUMS_2(i) \
	"+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), \
	"+f"(d[i + 1][0]), "+f"(d[i + 1][1]), "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
#define SUMS_8(i)	SUMS_2(i), SUMS_2(i + 2), SUMS_2(i + 4), SUMS_2(i + 6)

#define SUMS_NAMES_48 \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
	"%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
	"%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
	"%44, %45, %46, %47"
#define SUMS_NAMES_64	SUMS_NAMES_48 \
	", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
	"%61, %62, %63"
#define SUMS_NAMES_80	SUMS_NAMES_64 \
	", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, " \
	"%77, %78, %79"

static __device__ __forceinline__ void
gv_product(float (&d)[12][4], uint64_t a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
				 SUMS_NAMES_48 "}, %48, %49, 1, 1, 1, 0, 0;"
				 : SUMS_8(0), SUMS_2(8), SUMS_2(10) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void
gv_product(float (&d)[16][4], uint64_t a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
				 SUMS_NAMES_64 "}, %64, %65, 1, 1, 1, 0, 0;"
				 : SUMS_8(0), SUMS_8(8) : "l"(a), "l"(b));
}

static __device__ __forceinline__ void
gv_product(float (&d)[20][4], uint64_t a, uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n160k16.f32.f16.f16 {"
				 SUMS_NAMES_80 "}, %80, %81, 1, 1, 1, 0, 0;"
				 : SUMS_8(0), SUMS_8(8), SUMS_2(16), SUMS_2(18)
				 : "l"(a), "l"(b));
}

#undef SUMS_2
#undef SUMS_8
#undef SUMS_NAMES_48
#undef SUMS_NAMES_64
#undef SUMS_NAMES_80

#endif							/* __CUDACC__ */

/*
 * ----
 * Products of queries and rows by a ring of slices.
 *
 * A tile is multiplied slice by slice.  A slice is 64 dimensions of the tile's
 * queries and rows, and occupies a stage of a ring in shared memory.  One
 * thread of a block copies slices into free stages.  Two warpgroups multiply;
 * each has half of the queries.
 */

/* warpgroups that multiply; one more copies */
#define GV_RING_GROUPS		2
#define GV_RING_THREADS		((GV_RING_GROUPS + 1) * GV_WARPGROUP)
#define GV_RING_WARPS		(GV_RING_GROUPS * GV_WARPGROUP / GV_WARP)
#define GV_COPY_REGISTERS	40	/* of threads that copy; all begin with 168 */
#define GV_MANY_REGISTERS	232 /* of threads that multiply */
#define GV_HOPPER_SLICE		(GV_HOPPER_ROW / 2) /* dimensions at a time */
#define GV_RING_ALIGNMENT	1024	/* of operands */
#define GV_RING_BYTES		(224 * 1024)	/* bytes of a block */

/*
 * Maps of the arrays [rows][half_dims] from which boxes are copied; a box is
 * 64 dimensions wide, like a slice.
 */
struct GvRingMaps
{
	CUtensorMap queries;
	CUtensorMap rows;
};

/*
 * A stage of the ring, and whether the current round through the ring is odd.
 */
struct GvPlace
{
	int			stage;
	int			odd;

	__device__ __forceinline__ void
	advance(int stages)
	{
		if (++stage == stages)
		{
			stage = 0;
			odd ^= 1;
		}
	}
};

struct GvRing
{
	char	   *slices;			/* [stages] queries, then rows; no queries if
								 * these are kept elsewhere */
	uint64_t   *full;			/* [stages] its bytes have arrived */
	uint64_t   *empty;			/* [stages] all warps have multiplied it */
	int			bytes;			/* of a slice */
	int			stages;

	/* Initializes the barriers.  All threads of the block call this first. */
	__device__ __forceinline__ void
	prepare() const
	{
		if (threadIdx.x == 0)
		{
			for (int i = 0; i < stages; i++)
			{
				gv_barrier_init(&full[i], 1);
				gv_barrier_init(&empty[i], GV_RING_WARPS);
			}
			gv_barriers_ready();
		}
		__syncthreads();
	}

	/*
	 * Waits until a stage is free, and tells its barrier to expect n bytes;
	 * called by one thread.
	 */
	__device__ __forceinline__ void
	expect(GvPlace place, int n) const
	{
		gv_barrier_wait(&empty[place.stage], place.odd ^ 1);
		gv_barrier_expect(&full[place.stage], n);
	}
};

/*
 * Begins to copy N boxes of box_rows rows, one below the other; called by one
 * thread.
 */
template <int N>
static __device__ __forceinline__ void
gv_copy_boxes(char *to, const CUtensorMap *map, int step, int row,
			  int box_rows, uint64_t *barrier)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		gv_copy_box(to + i * box_rows * GV_HOPPER_ROW, map,
					step * GV_HOPPER_SLICE, row + i * box_rows, barrier);
}

/*
 * Adds the products of a tile's slices to sums, and advances `place` past
 * these slices; called by a whole warpgroup.  The sums are of BLOCKS groups of
 * 64 queries and N / BLOCKS groups of TILES * 8 rows; sums[i] belongs to query
 * group i / (N / BLOCKS).  If KEEPS, the queries are in `kept`, slice after
 * slice.  A stage is freed when the products of the next slice have begun, and
 * begun() is called when the products of the last slice have begun.
 */
template <int BLOCKS, bool KEEPS, int N, int TILES, typename Begun>
static __device__ __forceinline__ void
gv_ring_multiply(float (&sums)[N][TILES][4], const GvRing &ring,
				 GvPlace &place, int nsteps, const char *kept, int group,
				 const Begun &begun)
{
	constexpr int PARTS = N / BLOCKS;
	constexpr int BLOCK_BYTES = 64 * GV_HOPPER_ROW;
	constexpr int QUERY_BYTES = GV_RING_GROUPS * BLOCKS * BLOCK_BYTES;
	bool		leads = threadIdx.x % GV_WARP == 0;
	int			last = -1;		/* stage that is not freed yet */

#pragma unroll
	for (int i = 0; i < N; i++)
		gv_sums_settle(sums[i]);
	for (int step = 0; step < nsteps; step++)
	{
		const char *slice = ring.slices + place.stage * ring.bytes;
		const char *queries = KEEPS ? kept + step * QUERY_BYTES : slice;
		uint64_t	a = gv_operand(queries + group * BLOCKS * BLOCK_BYTES);
		uint64_t	b = gv_operand(slice + (KEEPS ? 0 : QUERY_BYTES));

		gv_barrier_wait(&ring.full[place.stage], place.odd);
		gv_products_begin();
#pragma unroll
		for (int k = 0; k < GV_HOPPER_SLICE / GV_HOPPER_DEPTH; k++)
#pragma unroll
			for (int i = 0; i < N; i++)
				gv_product(sums[i], gv_operand_at(a, k) + i /
						   PARTS * (BLOCK_BYTES / 16), gv_operand_at(b, k) +
						   i % PARTS * (TILES * 8 * GV_HOPPER_ROW / 16));
		gv_products_commit();
		gv_products_wait<1>();
		if (last >= 0 && leads)
			gv_barrier_arrive(&ring.empty[last]);
		last = place.stage;
		place.advance(ring.stages);
	}
	begun();
	gv_products_wait<0>();
#pragma unroll
	for (int i = 0; i < N; i++)
		gv_sums_settle(sums[i]);
	if (leads)
		gv_barrier_arrive(&ring.empty[last]);
}

/*
 * ----
 * The product of two matrices.
 *
 * A tile is 128 rows x COLUMNS columns.  Each SM has one block, which takes
 * tile after tile: slices of the next tile arrive while the sums of this tile
 * go to the epilogue.  If FULL_ROWS, a block has all tiles of its rows.
 *
 * Bytes from L2: a slice of 128 x 256 is 48 KB for 2 M products, 1,024 clocks.
 * L2 delivers some 31 bytes a clock to each SM when all SMs read, so this
 * slice takes 1,500 clocks.  So the time is proportional to the sum of rows
 * and columns, 4 clocks for each.  An SM stores scores at some 24 bytes a
 * clock, which is 21 clocks for a column of 128 rows.
 *
 * A product's tiles seldom fill all SMs evenly: 500 x 8,450 sums are 136 tiles
 * of 128 x 256, which take 132 SMs two rounds, but only 120 tiles of 128 x
 * 288, which take one round.  So there are tiles of several widths, and this
 * model chooses the width that takes the fewest clocks.  If a block has all
 * columns of its rows, the width does not matter.
 */

#define GV_TILE_ROWS	(64 * GV_RING_GROUPS)

/* The layout of a slice: rows, then PARTS times WIDTH columns. */
template <typename F, int WIDTH, int PARTS>
struct GvHopperShape
{
	static constexpr int COLUMNS = WIDTH * PARTS;
	static constexpr int BYTES = (GV_TILE_ROWS + COLUMNS) * GV_HOPPER_ROW;
	/*
	 * a block has 3 KB more than GV_RING_BYTES, of which alignment and
	 * barriers take 2 KB
	 */
	static constexpr int STAGES =
		(GV_RING_BYTES + 1024 -
		 GV_TILE_ROWS * (int) sizeof(typename F::Row)) / BYTES;

	static_assert(WIDTH % GV_COLUMN_GROUP == 0, "sums are looked at by runs");
	static_assert(STAGES >= 4, "three slices are on their way");
};

/* The tiles of a block, one after the other. */
template <bool FULL_ROWS>
struct GvHopperWalk
{
	int			nrows;			/* of tiles */
	int			ncolumns;
	int			row;			/* the current tile */
	int			column;

	__host__ __device__ __forceinline__
	GvHopperWalk(const GvMatmul &matmul, int columns, int first)
		: nrows((matmul.nrows + GV_TILE_ROWS - 1) / GV_TILE_ROWS),
			ncolumns((matmul.ncolumns + columns - 1) / columns),
			row(FULL_ROWS ? first : first % nrows),
			column(FULL_ROWS ? 0 : first / nrows)
	{
	}

	/* Returns how many blocks have work. */
	__host__ __device__ __forceinline__ int
	blocks() const
	{
		return FULL_ROWS ? nrows : nrows * ncolumns;
	}

	__device__ __forceinline__ bool
	there() const
	{
		return FULL_ROWS ? row < nrows : column < ncolumns;
	}

	__device__ __forceinline__ void
	advance()
	{
		if (FULL_ROWS)
		{
			if (++column < ncolumns)
				return;
			column = 0;
			row += gridDim.x;
		}
		else
		{
			int			tile = column * nrows + row + gridDim.x;

			row = tile % nrows;
			column = tile / nrows;
		}
	}
};

#if GV_HOPPER

/*
 * Begins to copy the columns of a slice.  The barrier expects the slice's
 * columns and rows.
 */
template <int WIDTH, int PARTS>
static __device__ __forceinline__ void
gv_send_columns(const GvRing &ring, GvPlace place, const GvRingMaps &maps,
				int column, int step)
{
	ring.expect(place, ring.bytes);
	gv_copy_boxes<PARTS>(ring.slices + place.stage * ring.bytes +
						 GV_TILE_ROWS * GV_HOPPER_ROW, &maps.rows, step,
						 column * WIDTH * PARTS, WIDTH,
						 &ring.full[place.stage]);
}

/*
 * Copies all slices of the block's tiles as stages become free; called by one
 * thread.  The first slices of columns are copied before the kernel waits for
 * the rows.
 */
template <int WIDTH, int PARTS, bool FULL_ROWS>
static __device__ __forceinline__ void
gv_send_tiles(const GvRing &ring, const GvRingMaps &maps,
			  GvHopperWalk<FULL_ROWS> walk, int nsteps)
{
	int			ahead = min(ring.stages, nsteps);
	GvPlace		place = {0, 0};
	GvPlace		early = {0, 0};

	for (int step = 0; step < ahead; step++, early.advance(ring.stages))
		gv_send_columns<WIDTH, PARTS>(ring, early, maps, walk.column, step);
	gv_pdl_wait();
	for (; walk.there(); walk.advance(), ahead = 0)
		for (int step = 0; step < nsteps; step++, place.advance(ring.stages))
		{
			if (step >= ahead)
				gv_send_columns<WIDTH, PARTS>(ring, place, maps, walk.column,
											  step);
			gv_copy_boxes<1>(ring.slices + place.stage * ring.bytes,
							 &maps.queries, step, walk.row * GV_TILE_ROWS,
							 GV_TILE_ROWS, &ring.full[place.stage]);
		}
}

#endif							/* GV_HOPPER */

/*
 * A block takes one tile of 128 rows after the other.  One thread copies the
 * tiles' slices, and each warp of two warpgroups owns 16 rows.  In code for
 * other devices the kernel is empty.  Shared memory: STAGES slices, from a
 * multiple of 1,024 bytes on.
 */
template <typename F, int WIDTH, int PARTS, bool FULL_ROWS>
static __global__ void __launch_bounds__(GV_RING_THREADS, 1)
hopper_kernel(GvMatmul matmul, F epilogue,
			  const __grid_constant__ GvRingMaps maps)
{
#if GV_HOPPER
	using Shape = GvHopperShape<F, WIDTH, PARTS>;
	GV_SHARED(memory);
	__shared__ uint64_t barriers[2][Shape::STAGES];
	__shared__ typename F::Row rows[GV_TILE_ROWS];
	uint32_t	offset = -gv_shared_address(memory) % GV_RING_ALIGNMENT;
	GvRing		ring = {(char *) memory + offset, barriers[0], barriers[1],
		Shape::BYTES, Shape::STAGES};
	GvHopperWalk<FULL_ROWS> walk(matmul, Shape::COLUMNS, blockIdx.x);
	int			group = threadIdx.x / GV_WARPGROUP;
	int			lane = threadIdx.x % GV_WARP;
	int			mine = threadIdx.x / GV_WARP * 16;	/* the warp's first row */
	int			nsteps = (matmul.half_dims + GV_HOPPER_SLICE - 1) /
		GV_HOPPER_SLICE;
	GvPlace		place = {0, 0};

	ring.prepare();

	/* 1. one thread of the last group copies */
	if (group == GV_RING_GROUPS)
	{
		gv_registers_give<GV_COPY_REGISTERS>();
		if (threadIdx.x % GV_WARPGROUP == 0)
			gv_send_tiles<WIDTH, PARTS>(ring, maps, walk, nsteps);
		return;
	}

	/* 2. the others multiply, and run the epilogue */
	gv_registers_take<GV_MANY_REGISTERS>();
	gv_pdl_wait();
	for (; walk.there(); walk.advance())
	{
		int			row = walk.row * GV_TILE_ROWS + mine;
		float		sums[PARTS][WIDTH / 8][4] = {};

		if ((!FULL_ROWS || walk.column == 0) && lane < 16)
			epilogue.begin(&rows[mine + lane], row + lane);
		__syncwarp();
		gv_ring_multiply<1, false>(sums, ring, place, nsteps, NULL, group, []
		{
		});
#pragma unroll
		for (int p = 0; p < PARTS; p++)
			gv_apply_epilogue<1>(epilogue, rows + mine, &sums[p], row,
								 walk.column * Shape::COLUMNS + p * WIDTH);
		__syncwarp();
		if ((!FULL_ROWS || walk.column + 1 == walk.ncolumns) && lane < 16)
			epilogue.end(&rows[mine + lane], row + lane);
	}
#endif
}

template <int WIDTH, int PARTS, bool FULL_ROWS, typename F>
static GvStatus
gv_hopper_launch(const GvMatmulContext *context, const GvMatmul *matmul,
				 const F &epilogue)
{
	using Shape = GvHopperShape<F, WIDTH, PARTS>;
	GvHopperWalk<FULL_ROWS> walk(*matmul, Shape::COLUMNS, 0);
	GvRingMaps	maps;

	GV_TRY(gv_gpu_hopper_map(&maps.queries, matmul->d_rows, matmul->nrows,
							 matmul->half_dims, GV_TILE_ROWS));
	GV_TRY(gv_gpu_hopper_map(&maps.rows, matmul->d_columns,
							 matmul->ncolumns, matmul->half_dims, WIDTH));
	return gv_launch_pdl(context->pdl,
						 hopper_kernel<F, WIDTH, PARTS, FULL_ROWS>,
						 min(walk.blocks(), context->nsms), GV_RING_THREADS,
						 Shape::STAGES * Shape::BYTES + GV_RING_ALIGNMENT,
						 context->stream, *matmul, epilogue, maps);
}

/*
 * Returns how many clocks a product takes with tiles of `columns` columns,
 * according to the model above.
 */
static inline int64_t
gv_hopper_clocks(const GvMatmul *matmul, int nsms, int columns)
{
	GvHopperWalk<false> walk(*matmul, columns, 0);
	int64_t		rounds = (walk.blocks() + nsms - 1) / nsms;
	int64_t		nsteps = (matmul->half_dims + GV_HOPPER_SLICE - 1) /
		GV_HOPPER_SLICE;

	return rounds * (nsteps * (GV_TILE_ROWS + columns) * 4 + columns * 21 +
					 500);
}

/*
 * Launches a product with tiles of the best width, or of gv_matmul_width
 * columns.
 */
template <typename F>
static GvStatus
gv_hopper_best(const GvMatmulContext *context, const GvMatmul *matmul,
			   const F &epilogue)
{
	static const struct
	{
		int			columns;
		GvStatus	(*launch) (const GvMatmulContext *context,
							   const GvMatmul *matmul, const F &epilogue);
	}			widths[] = {
		{320, gv_hopper_launch<160, 2, false, F>},
		{288, gv_hopper_launch<96, 3, false, F>},
		{256, gv_hopper_launch<128, 2, false, F>},
		{192, gv_hopper_launch<96, 2, false, F>},
		{160, gv_hopper_launch<160, 1, false, F>},
		{128, gv_hopper_launch<128, 1, false, F>},
		{96, gv_hopper_launch<96, 1, false, F>}
	};
	int64_t		fewest = INT64_MAX;
	size_t		best = 0;

	for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
	{
		int64_t		clocks = widths[i].columns == gv_matmul_width ? 0 :
			gv_hopper_clocks(matmul, context->nsms, widths[i].columns);

		if (clocks < fewest)
		{
			fewest = clocks;
			best = i;
		}
	}
	GV_TEST_ONLY(if (gv_matmul_width > 0 && fewest > 0) return GV_INVALID;)
	return widths[best].launch(context, matmul, epilogue);
}

template <bool FULL_ROWS, typename F>
static GvStatus
gv_hopper_matmul(const GvMatmulContext *context, const GvMatmul *matmul,
				 const F &epilogue)
{
	if constexpr (!FULL_ROWS)
		return gv_hopper_best(context, matmul, epilogue);
	else if (matmul->ncolumns <= 128)
		return gv_hopper_launch<128, 1, true>(context, matmul, epilogue);
	else
		return gv_hopper_launch<128, 2, true>(context, matmul, epilogue);
}

#endif							/* GV_WGMMA_CUH */
