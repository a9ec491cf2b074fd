/*
 * candidates.cu
 *		The centroids that may be nearest to each of many rows: a matrix product
 *		of half copies whose sums never leave registers (gv_clusters.h has the
 *		proof).
 *
 * A block of threads has ROWS rows, which meet all centroids, LISTS at a time,
 * each of its warps a part of them.  Slices of rows and centroids (slices.cuh)
 * come to shared memory STAGES - 1 ahead, those of the next centroids while the
 * sums of the last are looked at.  Of up to 128 dimensions rows stay there, or
 * they would be a third of what comes from L2, 29 bytes a clock and SM in 128 x
 * 256 products of halves, as much as it gives.
 *
 * A row has a bound, which falls as centroids are met and is the better the
 * sooner it is low: hence the one that it starts from (settle.cu).  Of a run of 32
 * centroids and a row a quad of lanes finds the least score; eps, from what is
 * known of the run, is taken off it once.  Only where that is within the bound,
 * in one of 128 runs when clusters are 4,096, scores are looked at one by one.
 * That is a product and a minimum for each score, and half an operation for eps.
 */
#include "gpu/cluster/clusters.cuh"
#include "gpu/common/gv_batch.h"
#include "gpu/common/slices.cuh"

#define STAGES			3
#define HELD			4		/* slices of rows that may stay */
#define FEW_ROWS		4096	/* large tiles leave SMs without work */
#define FEW_LISTS		64		/* ... or are empty */
#define TILES			(GV_RUN / 8)	/* of products, in a run */

/* What is known of centroids: squares [LISTS], then spans [LISTS / 32]. */
template <int LISTS>
struct Sides
{
	static constexpr int SQUARES = LISTS / 4;	/* in pieces of 16 bytes */
	static constexpr int PIECES_ALL = SQUARES + LISTS / GV_RUN;
};

/* A block's rows, in shared memory. */
struct Rows
{
	float4	   *parts;			/* [ROWS] factors of a run's 2 (L + F) and 2 F,
								 * eps's own part less Q^2, Q^2 */
	int		   *bounds;			/* [ROWS] with Q^2; a float's bits, which ascend
								 * as it does because it is not negative */
	uint32_t   *counts;			/* [ROWS] close centroids */
	GvClose    *close;			/* the card's [ROWS][GV_CLOSE_ROOM] */
	int			n;				/* that there are */
	int			k;
};

/* eps - Q^2 of a row and a run. */
static __device__ __forceinline__ float
shift_of(float4 row, float4 span)
{
	return fmaf(row.x, span.x, fmaf(row.y, span.y, row.z + span.z));
}

/*
 * A row and a run, of whose 32 approximate scores each of the quad's lanes has
 * eight, two of every 8 from `list` on: the bound, and those within it.
 */
static __device__ __forceinline__ void
note_close(const Rows &rows, int row, float shift, const float2 (&scores)[TILES],
		   int list)
{
	float		least = __int_as_float(0x7F800000);
	float		bound = __int_as_float(rows.bounds[row]);
	float		found;

#pragma unroll
	for (int j = 0; j < TILES; j++)
		least = fminf(least, fminf(scores[j].x, scores[j].y));
	least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 1));
	least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 2));

	found = least + (shift + 2.0f * rows.parts[row].w); /* a + eps + Q^2 */
	if (found < bound)
	{
		bound = fmaxf(found, 0.0f);
		if (threadIdx.x % 4 == 0)
			atomicMin(&rows.bounds[row], (int) __float_as_uint(bound));
	}
#pragma unroll
	for (int i = 0; i < 2 * TILES; i++)
	{
		float		score = (i % 2 == 0 ? scores[i / 2].x : scores[i / 2].y) -
			shift;
		uint32_t	c = (uint32_t) (list + i / 2 * 8 + i % 2);

		if (!(score > bound) && (int) c < rows.k && row < rows.n)
		{
			uint32_t	at = atomicAdd(&rows.counts[row], 1u);

			if (at < GV_CLOSE_ROOM)
				rows.close[row * GV_CLOSE_ROOM + at] =
					{c, score};
		}
	}
}

/*
 * A warp's sums of QM x 16 rows and NTILES x 8 centroids, as mma.cuh has D;
 * `tile` is the first centroid of the tile, `list` the warp's first in it.
 */
template <int QM, int NTILES, int LISTS>
static __device__ __forceinline__ void
look_at(const Rows &rows, float (&sums)[QM][NTILES][4], int row, int tile,
		int list, const uint4 *sides)
{
	int			lane = threadIdx.x % GV_WARP;

#pragma unroll
	for (int r = 0; r < NTILES / TILES; r++)
	{
		int			mine = list + r * GV_RUN + lane % 4 * 2;
		const float *all = (const float *) sides;
		float4		span = ((const float4 *) (sides + Sides<LISTS>::SQUARES))
			[list / GV_RUN + r];
		float2		squares[TILES];
		uint32_t	hits = 0;

#pragma unroll
		for (int j = 0; j < TILES; j++)
			squares[j] = *(const float2 *) (all + mine + j * 8);
#pragma unroll
		for (int i = 0; i < 2 * QM; i++)
		{
			float4		parts = rows.parts[row + i * 8 + lane / 4];
			float		bound =
				__int_as_float(rows.bounds[row + i * 8 + lane / 4]);
			float		least = __int_as_float(0x7F800000);

#pragma unroll
			for (int j = 0; j < TILES; j++)
			{
				float	   *pair = sums[i / 2][r * TILES + j] + i % 2 * 2;

				/* the product is exact */
				pair[0] = fmaf(-2.0f, pair[0], squares[j].x);
				pair[1] = fmaf(-2.0f, pair[1], squares[j].y);
				least = fminf(least, fminf(pair[0], pair[1]));
			}
			if (!(least - shift_of(parts, span) > bound))
				hits |= 1u << i;
		}
		if (!__any_sync(GV_FULL_WARP, hits != 0))
			continue;
#pragma unroll
		for (int i = 0; i < 2 * QM; i++)
		{
			int			at = row + i * 8 + lane / 4;
			float2		scores[TILES];

			if (!__any_sync(GV_FULL_WARP, (hits >> i & 1) != 0))
				continue;
#pragma unroll
			for (int j = 0; j < TILES; j++)
			{
				const float *pair = sums[i / 2][r * TILES + j] + i % 2 * 2;

				scores[j] = make_float2(pair[0], pair[1]);
			}
			note_close(rows, at, shift_of(rows.parts[at], span), scores,
					   tile + mine);
		}
	}
}

/* What a row brings: see Rows. */
static __device__ __forceinline__ void
begin_row(const GvClusters &cl, const Rows &rows, int row, int64_t number,
		  float bound)
{
	float		scale = gv_clusters_scale(cl);
	float4		parts = {0.0f, 0.0f, 0.0f, 0.0f};

	if (row < rows.n)
	{
		float2		lengths = cl.d_lengths[number];
		float		both = lengths.x + lengths.y;

		parts.w = lengths.x * lengths.x;
		parts.x = 1.001f * (lengths.y + both * (float) (cl.dims + 32) *
							0x1p-22f);
		parts.y = 1.001f * lengths.x;
		parts.z = gv_clusters_row_rest(cl, lengths, scale) - parts.w;
	}
	rows.parts[row] = parts;
	rows.bounds[row] = (int) __float_as_uint(bound);
	rows.counts[row] = 0;
}

/*
 * Where slices are in shared memory: NHELD slices of rows that stay, if that is
 * not 0, then STAGES slices of LISTS centroids, each behind its rows if these
 * do not.
 */
template <int ROWS, int LISTS, int NHELD>
struct Slices
{
	static constexpr int ROW_PIECES = ROWS * GV_PIECES;
	static constexpr int STAGE = (NHELD > 0 ? 0 : ROW_PIECES) + LISTS * GV_PIECES;
	static constexpr int BYTES = (NHELD * ROW_PIECES + STAGES * STAGE) *
		(int) sizeof(uint4);

	/* Slice number s, which is the step-th of its tile. */
	static __device__ __forceinline__ uint4 *
	rows(uint4 *memory, int s, int step)
	{
		return memory + (NHELD > 0 ? step * ROW_PIECES : s % STAGES * STAGE);
	}

	static __device__ __forceinline__ uint4 *
	lists(uint4 *memory, int s)
	{
		return memory + (NHELD > 0 ? NHELD * ROW_PIECES : ROW_PIECES) +
			s % STAGES * STAGE;
	}
};

/* What a block sends to shared memory, slice after slice of tile after tile. */
template <int ROWS, int LISTS, int THREADS, int NHELD>
struct Sending
{
	static constexpr int SQUARES = Sides<LISTS>::SQUARES;
	static constexpr int SIDES = Sides<LISTS>::PIECES_ALL;
	using Where = Slices<ROWS, LISTS, NHELD>;

	uint4	   *memory;
	uint4		(*sides)[SIDES];	/* [STAGES] */
	int64_t		first;			/* row of the piece, */
	int			block;			/* the block's first in it, */
	int			n;				/* and all of the piece */
	int			nsteps;			/* slices of a tile, */
	int			total;			/* and of all */
	int			sent;
	int			step;			/* of the next one in its tile */
	int			tile;

	/* What is known of a tile's centroids, with its first slice. */
	__device__ __forceinline__ void
	send_sides(const GvClusters &cl) const
	{
		int			i = threadIdx.x;
		const void *from = cl.d_squares + tile * LISTS + i * 4;

		if (i >= SIDES)
			return;
		if (i >= SQUARES)
			from = cl.d_spans + tile * (LISTS / GV_RUN) + i - SQUARES;
		gv_copy_async(&sides[tile % STAGES][i], from, true);
	}

	/* The next slice on its way; beyond the last one a group is empty. */
	__device__ __forceinline__ void
	next(const GvClusters &cl)
	{
		if (sent < total)
		{
			if (NHELD == 0 || tile == 0)
				gv_send_rows<ROWS, THREADS>(Where::rows(memory, sent, step),
											cl.d_row_halves +
											first * cl.half_dims, block, n,
											cl.half_dims, step);
			gv_send_rows<LISTS, THREADS>(Where::lists(memory, sent),
										 cl.d_halves, tile * LISTS, cl.k,
										 cl.half_dims, step);
			if (step == 0)
				send_sides(cl);
			if (++step == nsteps)
			{
				step = 0;
				tile++;
			}
		}
		sent++;
		gv_commit_copies();
	}
};

template <int QM, int NTILES>
static __device__ __forceinline__ void
clear(float (&sums)[QM][NTILES][4])
{
#pragma unroll
	for (int i = 0; i < QM; i++)
#pragma unroll
		for (int j = 0; j < NTILES; j++)
#pragma unroll
			for (int d = 0; d < 4; d++)
				sums[i][j][d] = 0.0f;
}

/*
 * Rows first + blockIdx.x * ROWS .. of a piece that has n from first on; warps
 * stand 2 x ACROSS.  Shared: Slices.
 */
template <int ROWS, int LISTS, int ACROSS, int NHELD>
static __global__ void __launch_bounds__(2 * ACROSS *GV_WARP)
candidates_kernel(GvClusters cl, int64_t first, int n)
{
	constexpr int THREADS = 2 * ACROSS * GV_WARP;
	constexpr int QM = ROWS / 2 / 16;
	constexpr int LN = LISTS / ACROSS / 16;
	using Where = Slices<ROWS, LISTS, NHELD>;
	GV_SHARED(memory);
	__shared__ float4 parts[ROWS];
	__shared__ int bounds[ROWS];
	__shared__ uint32_t counts[ROWS];
	__shared__ uint4 sides[STAGES][Sides<LISTS>::PIECES_ALL];
	int			block = blockIdx.x * ROWS;	/* in the piece */
	Rows		rows = {parts, bounds, counts,
	cl.d_close + (int64_t) block * GV_CLOSE_ROOM, min(ROWS, n - block), cl.k};
	int			warp = threadIdx.x / GV_WARP;
	int			warp_row = warp / ACROSS * (ROWS / 2);
	int			warp_list = warp % ACROSS * (LISTS / ACROSS);
	int			nsteps = (cl.half_dims + GV_SLICE - 1) / GV_SLICE;
	int			total = nsteps * ((cl.k + LISTS - 1) / LISTS);
	Sending<ROWS, LISTS, THREADS, NHELD> sending =
		{memory, sides, first, block, n, nsteps, total, 0, 0, 0};
	int			step = 0;		/* of the tile that is multiplied */
	int			tile = 0;
	float		sums[QM][2 * LN][4] = {};

	for (int s = 0; s < STAGES - 1; s++)
		sending.next(cl);
	if (threadIdx.x < ROWS)
		begin_row(cl, rows, threadIdx.x, first + block + threadIdx.x,
				  (int) threadIdx.x < rows.n ?
				  cl.d_reach[block + threadIdx.x] : 0.0f);

	/* the barrier is for a slice, which all threads sent, and for the one
	 * before it, whose memory is filled anew */
	for (int s = 0; s < total; s++)
	{
		gv_wait_copies<STAGES - 2>();
		__syncthreads();
		sending.next(cl);
		gv_multiply_slice<QM, LN>(sums, Where::rows(memory, s, step), warp_row,
								  Where::lists(memory, s), warp_list);
		if (++step < nsteps)
			continue;
		look_at<QM, 2 * LN, LISTS>(rows, sums, warp_row, tile * LISTS,
								   warp_list, sides[tile % STAGES]);
		step = 0;
		tile++;
		clear(sums);
	}
	__syncthreads();
	if ((int) threadIdx.x < rows.n)
	{
		cl.d_counts[block + threadIdx.x] = counts[threadIdx.x];
		cl.d_reach[block + threadIdx.x] =
			__int_as_float(bounds[threadIdx.x]);
	}
}

template <int ROWS, int LISTS, int ACROSS, int NHELD>
static GvStatus
launch(const GvClusters *cl, int64_t first, int32_t n, cudaStream_t stream)
{
	constexpr int bytes = Slices<ROWS, LISTS, NHELD>::BYTES;

	static_assert(GV_CLOSE_LISTS % LISTS == 0, "what is beside them is there");
	if (bytes > 40 * 1024)
		GV_TRY(gv_allow_shared((const void *)
							   candidates_kernel<ROWS, LISTS, ACROSS, NHELD>,
							   bytes));
	GV_LAUNCH((candidates_kernel<ROWS, LISTS, ACROSS, NHELD>),
			  gv_blocks_for(n, ROWS), 2 * ACROSS * GV_WARP, bytes, stream, *cl,
			  first, (int) n);
	return gv_cuda_status(cudaGetLastError());
}

/* See gv_clusters.h. */
GvStatus
gv_gpu_candidates(const GvClusters *cl, int64_t first, int32_t n,
			   cudaStream_t stream)
{
	if (n <= FEW_ROWS || cl->k <= FEW_LISTS)
		return launch<32, 64, 2, 0>(cl, first, n, stream);
	if (cl->half_dims <= HELD * GV_SLICE)
		return launch<128, 256, 4, HELD>(cl, first, n, stream);
	return launch<128, 256, 4, 0>(cl, first, n, stream);
}
