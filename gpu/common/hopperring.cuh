/*
 * hopperring.cuh
 *		Products of queries and rows on devices of compute capability 9.0
 *		(hopper.cuh): the loop of hopperloop.cuh and hopperfilter.cu, which say
 *		what becomes of the sums.
 *
 * A tile is multiplied in slices of 64 dimensions of its queries and rows, in
 * a ring of places in shared memory.  One thread of a block asks for slices as
 * places become free; two warpgroups, each with half of the queries, multiply.
 */
#ifndef GV_HOPPERRING_CUH
#define GV_HOPPERRING_CUH

#include "gpu/common/hopper.cuh"
#include "gpu/common/warpselect.cuh"

#define GV_RING_GROUPS		2	/* of warps, that multiply */
#define GV_RING_THREADS		((GV_RING_GROUPS + 1) * GV_WARPGROUP)	/* one more
																	 * copies */
#define GV_RING_WARPS		(GV_RING_GROUPS * GV_WARPGROUP / GV_WARP)
#define GV_COPY_REGISTERS	40	/* of threads that copy, which begin with
								 * 168 */
#define GV_MANY_REGISTERS	232 /* of those that multiply */
#define GV_HOPPER_SLICE		(GV_HOPPER_ROW / 2) /* dimensions at a time */
#define GV_RING_ALIGNMENT	1024	/* of operands */
#define GV_RING_BYTES		(224 * 1024)	/* bytes of a block */

/* Where boxes come from: arrays [half_dims] x rows, a box being a slice. */
struct GvRingMaps
{
	CUtensorMap queries;
	CUtensorMap rows;
};

/* A place in the ring, and which time round it is. */
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
	char	   *slices;			/* [stages] queries, unless they stay; rows */
	uint64_t   *full;			/* [stages] its bytes are there */
	uint64_t   *empty;			/* [stages] all warps have multiplied it */
	int			bytes;			/* of a slice */
	int			stages;

	/* By all threads of a block, before any uses a barrier. */
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

	/* By one thread: wait until a place is free, and expect n bytes. */
	__device__ __forceinline__ void
	expect(GvPlace place, int n) const
	{
		gv_barrier_wait(&empty[place.stage], place.odd ^ 1);
		gv_barrier_expect(&full[place.stage], n);
	}
};

/* By one thread: N boxes of box_rows rows, one below the other. */
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
 * By a warpgroup: products of a tile's slices, from `place` on, which goes on,
 * are added to sums: of BLOCKS groups of 64 queries and N / BLOCKS of TILES *
 * 8 rows, sums[i] being of group i / (N / BLOCKS).  Queries stay in `kept`,
 * slice after slice, if KEEPS.  A slice is left when the next one's products
 * have begun; begun() is called when the last ones have.
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
	int			last = -1;		/* stage that is not left yet */

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
				gv_product(sums[i],
						   gv_operand_at(a, k) + i / PARTS * (BLOCK_BYTES / 16),
						   gv_operand_at(b, k) +
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

#endif							/* GV_HOPPERRING_CUH */
