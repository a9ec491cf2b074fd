/*
 * listscan.cu
 *		Lists scanned for all the queries that meet them: approximate scores by
 *		tensor cores, and what may be among the best noted.
 *
 * A posting's codes become numbers of 8 bits by look-ups, each in the register
 * of the lane that a product wants it in, once for up to 32 queries.  rough.cu
 * proves how far the sums may be from S: a posting farther from a query's
 * limit than that is none of its best.  The others, all that are, are noted,
 * in no order.
 */
#include "gpu/common/common.cuh"
#include "gpu/common/mma.cuh"
#include "gpu/index/gv_listscan.h"

#define THREADS			128
#define WARPS			(THREADS / GV_WARP)
#define RESIDENT		5		/* blocks of an SM */
#define TILES			(GV_PAIRS_TOGETHER / 8)	/* of 8 queries */
#define HALVES			(GV_BLOCK / 16)		/* of a block of postings */
#define STEP_WORDS		(GV_ROUGH_SUBS * GV_CODEWORDS)	/* codewords of a
														 * step */
#define STEP_BYTES		(GV_ROUGH_SUBS * 4)	/* of a query */

/*
 * Bytes from one query to the next in shared memory: an odd number of steps.
 */
static __host__ __device__ __forceinline__ int
row_bytes(int steps)
{
	return (steps | 1) * STEP_BYTES;
}

/*
 * Of a tile's sums: those of 8 queries and a block's postings.  Where g = lane
 * / 4 and t = lane % 4, a lane has postings g, g + 8, g + 16 and g + 24 for
 * queries 2t and 2t + 1.
 */
static __device__ __forceinline__ void
note_near(const GvListScan &lists, const GvPairing *pairs, int nqueries,
		  uint32_t b, const float (&ts)[2 * HALVES], uint32_t live,
		  const int32_t (&sums)[HALVES][4])
{
	int			lane = threadIdx.x % GV_WARP;
	int			g = lane / 4;
	int			t = lane % 4;

#pragma unroll
	for (int c = 0; c < 2; c++)
	{
		int			q = 2 * t + c;
		GvPairing	mine = pairs[q];
		float		scores[2 * HALVES];
		float		lengths = 0.0f;
		uint32_t	near = 0;

#pragma unroll
		for (int i = 0; i < 2 * HALVES; i++)
		{
			/* the product of halves of 24 bits is exact in this */
			scores[i] = fmaf(mine.scale, (float) sums[i / 2][i % 2 * 2 + c],
							 ts[i]);
			near |= (scores[i] <= mine.limit ? 1u : 0u) << i;
			lengths += fabsf(ts[i]);
		}
		near &= live;
		if (q >= nqueries)
			near = 0;
		else if (!(lengths <= mine.most))
		{
			/* nothing is known of such numbers */
			if (live != 0)
				atomicAdd(&lists.d_counts[mine.query],
						  (uint32_t) (GV_NEAR_CAPACITY + 1));
			near = 0;
		}
		if (!__any_sync(GV_FULL_WARP, near != 0))
			continue;

		uint32_t	count = __popc(near);
		uint32_t	upto = count;
		uint32_t	at = 0;

		/* of the 8 lanes of a query, the last asks for room */
#pragma unroll
		for (int d = 4; d < GV_WARP; d *= 2)
		{
			uint32_t	before = __shfl_up_sync(GV_FULL_WARP, upto, d);

			upto += lane >= d ? before : 0;
		}
		if (g == 7 && upto > 0)
			at = atomicAdd(&lists.d_counts[mine.query], upto);
		at = __shfl_sync(GV_FULL_WARP, at, 28 + t) + upto - count;
#pragma unroll
		for (int i = 0; i < 2 * HALVES; i++)
			if (near >> i & 1)
			{
				if (at < GV_NEAR_CAPACITY)
					lists.d_near[(int64_t) mine.query * GV_NEAR_CAPACITY +
								 at] =
						{scores[i] + mine.base,
						 mine.first + b * GV_BLOCK + i * 8 + g};
				at++;
			}
	}
}

/*
 * A step: 8 codes of each posting, of which lane (g, t) has two of each of its
 * postings, in byte t of a word of each, and the same of queries.
 */
template <int NTILES>
static __device__ __forceinline__ void
add_step(int32_t (&sums)[TILES][HALVES][4], const uint32_t (&codes)[2 * HALVES],
		 const char *words, const char *queries, int stride)
{
	int			shift = threadIdx.x % 4 * 8;
	uint32_t	a[HALVES][4];

#pragma unroll
	for (int i = 0; i < 2 * HALVES; i++)
	{
		uint32_t	low = codes[i] << 2 >> shift & 0x3C;
		uint32_t	high = codes[i] >> (shift + 2) & 0x3C;

		a[i / 2][i % 2] = *(const uint32_t *) (words + low);
		a[i / 2][i % 2 + 2] = *(const uint32_t *) (words + high +
												   STEP_WORDS / 2 * 4);
	}
#pragma unroll
	for (int tile = 0; tile < NTILES; tile++)
	{
		uint64_t	b = *(const uint64_t *) (queries + tile * 8 * stride);

#pragma unroll
		for (int h = 0; h < HALVES; h++)
			gv_mma_bytes(sums[tile][h], a[h], (uint32_t) b,
						 (uint32_t) (b >> 32));
	}
}

/* By a warp: what is read of a block comes to L2. */
static __device__ __forceinline__ void
bring_block(const GvDeviceModel &model, const GvDeviceList &list, uint32_t b)
{
	int			at = threadIdx.x % GV_WARP * GV_L2_LINE;

	if (b < list.nblocks)
		for (; at < model.shape.high; at += GV_WARP * GV_L2_LINE)
			gv_bring_line(list.d_blocks + (int64_t) b * model.shape.block_bytes +
						  at);
}

/* A warp's blocks of a list, for up to 8 * NTILES queries. */
template <int NTILES>
static __device__ __forceinline__ void
scan_blocks(const GvDeviceModel &model, const GvListScan &lists,
			const GvDeviceList &list, const char *words, const char *rows,
			const GvPairing *pairs, int nqueries)
{
	int			lane = threadIdx.x % GV_WARP;
	int			g = lane / 4;
	int			t = lane % 4;
	int			stride = row_bytes(lists.steps);
	const char *mine = words + t * GV_CODEWORDS * 4;
	const char *queries = rows + g * stride + t * 8;

	for (uint32_t b = threadIdx.x / GV_WARP; b < list.nblocks; b += WARPS)
	{
		const uint8_t *block = list.d_blocks +
			(int64_t) b * model.shape.block_bytes;
		uint32_t	mask = *(const uint32_t *) (block + model.shape.live);
		int32_t		sums[TILES][HALVES][4] = {};
		float		ts[2 * HALVES];
		uint32_t	live = 0;

		bring_block(model, list, b + WARPS);
#pragma unroll
		for (int i = 0; i < 2 * HALVES; i++)
		{
			bool		there = mask >> (i * 8 + g) & 1;

			ts[i] = there ? ((const float *) (block + model.shape.t))[i * 8 + g] :
				0.0f;
			live |= (there ? 1u : 0u) << i;
		}
		for (int c = 0; c < model.shape.chunks; c++)
		{
			const uint4 *from = (const uint4 *) block + c * GV_BLOCK + g;
			uint4		chunk[2 * HALVES];

#pragma unroll
			for (int i = 0; i < 2 * HALVES; i++)
				chunk[i] = __ldcs(from + i * 8);
#pragma unroll
			for (int w = 0; w < GV_CHUNK / 4; w++)
			{
				int			s = c * (GV_CHUNK / 4) + w;
				uint32_t	codes[2 * HALVES];

				if (s >= lists.steps)
					break;
#pragma unroll
				for (int i = 0; i < 2 * HALVES; i++)
					codes[i] = w == 0 ? chunk[i].x : w == 1 ? chunk[i].y :
						w == 2 ? chunk[i].z : chunk[i].w;
				add_step<NTILES>(sums, codes, mine + s * STEP_WORDS * 4,
								 queries + s * STEP_BYTES, stride);
			}
		}
#pragma unroll
		for (int tile = 0; tile < NTILES; tile++)
			note_near(lists, pairs + tile * 8, nqueries - tile * 8, b, ts,
					  live,
					  sums[tile]);
	}
}

/*
 * Block: some queries that meet a list.
 * Shared: the codewords [steps][8][16], and these queries, row_bytes apart.
 */
static __global__ void __launch_bounds__(THREADS, RESIDENT)
list_scan_kernel(GvDeviceModel model, GvListScan lists)
{
	GV_SHARED(memory);
	__shared__ GvPairing pairs[GV_PAIRS_TOGETHER];
	int			stride = row_bytes(lists.steps);
	int			nwords = lists.steps * STEP_WORDS / 4;	/* of 16 bytes */
	int			npieces = lists.steps * STEP_BYTES / 16;	/* likewise */
	char	   *rows = (char *) (memory + nwords);
	GvPairGroup		group = lists.d_groups[blockIdx.x];	/* if there is one */
	GvDeviceList	list;
	int			q;
	int			piece;

	if (blockIdx.x >= *lists.d_totals >> 32)
		return;
	list = model.d_lists[group.list];
	if (threadIdx.x < GV_PAIRS_TOGETHER)
		pairs[threadIdx.x] = threadIdx.x < group.n ?
			lists.d_pairs[group.first + threadIdx.x] : GvPairing {};
	bring_block(model, list, threadIdx.x / GV_WARP);
	for (int i = threadIdx.x; i < nwords; i += THREADS)
		memory[i] = ((const uint4 *) lists.d_words)[i];
	__syncthreads();
	q = threadIdx.x / npieces;
	piece = threadIdx.x % npieces;
	while (q < (int) (group.n + 7) / 8 * 8)
	{
		((uint4 *) (rows + q * stride))[piece] = q < (int) group.n ?
			((const uint4 *) lists.d_queries)[(int64_t) pairs[q].query *
											  npieces + piece] :
			make_uint4(0, 0, 0, 0);
		q += THREADS / npieces;
		piece += THREADS % npieces;
		if (piece >= npieces)
		{
			piece -= npieces;
			q++;
		}
	}
	__syncthreads();
	if (group.n <= 8)
		scan_blocks<1>(model, lists, list, (const char *) memory, rows, pairs,
					   group.n);
	else if (group.n <= 16)
		scan_blocks<2>(model, lists, list, (const char *) memory, rows, pairs,
					   group.n);
	else if (group.n <= 24)
		scan_blocks<3>(model, lists, list, (const char *) memory, rows, pairs,
					   group.n);
	else
		scan_blocks<4>(model, lists, list, (const char *) memory, rows, pairs,
					   group.n);
}

/* d_near and d_counts of all that are gathered. */
GvStatus
gv_gpu_list_scan(const GvDeviceModel *model, const GvListScan *lists,
				 cudaStream_t stream)
{
	int			bytes = lists->steps * STEP_WORDS * 4 +
		GV_PAIRS_TOGETHER * row_bytes(lists->steps);

	return gv_launch_early(false, list_scan_kernel, lists->most_groups,
						   THREADS,
						   bytes, stream, *model, *lists);
}
