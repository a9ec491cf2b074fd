/*
 * hopperscan.cu
 *		The scan of scan.cu, of many queries, on devices of compute capability
 *		9.0.
 *
 * There the blocks of a warp come one after the other to registers, and
 * while it waits for one it adds nothing.  Here one lane asks for a whole
 * block, which comes to shared memory while the warp adds up the one before:
 * so fewer warps are enough to keep look-ups going, and there are registers
 * for more of those on their way.  All other work for a block is done by one
 * lane, or for 32 blocks at once.
 *
 * Where few postings are wanted, a block of threads leaves few scores: nearest
 * lists come first, and beyond the k-th of what it had before no posting is
 * kept (scanfilter.cuh).
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/common/hopper.cuh"
#include "gpu/index/gv_index.h"
#include "gpu/index/scan.cuh"
#include "gpu/index/scanfilter.cuh"

#define MOST_CHUNKS		8		/* of a posting's codes, in registers */
#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define RESIDENT		768		/* threads of an SM, for 80 registers each */
#define LIVE_BYTES		16		/* a block's mask, and what is beside it */
#define MOST_FILTERED	(INT64_C(1) << 30)	/* postings: their numbers are 32
											 * bits */

typedef GvFilter<THREADS> Filter;

/* Bytes of a block that are copied: codes and t, and the mask. */
static __host__ __device__ __forceinline__ int
place_bytes(const GvBlockShape &shape)
{
	return shape.high + LIVE_BYTES;
}

#if GV_HOPPER

/* A warp's blocks of postings, which come one after the other. */
struct Deal
{
	char	   *place;			/* shared: where they come to */
	uint64_t   *arrived;		/* likewise: a barrier */
	uint64_t	policy;
	uint32_t	first;			/* the warp's first of its query's blocks */
	uint32_t	step;			/* from a block of the warp's to the next */
	int			odd;			/* phase of the barrier */

	/* of each lane, one of 32 blocks: */
	const uint8_t *block;
	float		base;			/* the score of its list */
	int			probe;

	/* Which block comes in a turn? */
	__device__ __forceinline__ uint32_t
	number(uint32_t turn) const
	{
		return first + turn * step;
	}

	/* Look where the blocks of 32 turns are, of nblocks blocks. */
	__device__ __forceinline__ void
	look(const GvDeviceModel &model, const GvProbes &probes,
		 const GvKept &kept,
		 uint32_t turn, uint32_t nblocks)
	{
		uint32_t	b = number(turn + threadIdx.x % GV_WARP);

		if (b >= nblocks)
			return;
		probe = probes.one_of(kept, b);
		block = probes.block_of(kept, b, probe, model.shape.block_bytes,
								&base);
	}

	/* By a warp that has read what was there: ask for the block of a turn. */
	__device__ __forceinline__ void
	ask(const GvBlockShape &shape, uint32_t turn)
	{
		__syncwarp();
		if (threadIdx.x % GV_WARP == turn % GV_WARP)
		{
			gv_barrier_expect(arrived, place_bytes(shape));
			gv_copy_bytes(place, block, shape.high, arrived, policy);
			gv_copy_bytes(place + shape.high, block + shape.live, LIVE_BYTES,
						  arrived, policy);
		}
	}

	/* The first. */
	__device__ __forceinline__ void
	begin(const GvDeviceModel &model, const GvProbes &probes,
		  const GvKept &kept,
		  uint32_t nblocks)
	{
		look(model, probes, kept, 0, nblocks);
		if (first < nblocks)
			ask(model.shape, 0);
	}

	__device__ __forceinline__ void
	wait()
	{
		gv_barrier_wait(arrived, odd);
		odd ^= 1;
	}

	/* Of a turn whose block was looked for: what its postings are known by. */
	__device__ __forceinline__ uint64_t
	id_of(const GvBlockShape &shape, uint32_t turn) const
	{
		uint64_t	at = __shfl_sync(GV_FULL_WARP, (uint64_t) block,
									 turn % GV_WARP);

		return gv_id_in((const uint8_t *) at, shape, threadIdx.x % GV_WARP,
						__shfl_sync(GV_FULL_WARP, probe, turn % GV_WARP));
	}
};

/* Of a posting, what its lane takes from the place. */
template <int CHUNKS>
struct Posting
{
	uint4		codes[CHUNKS];
	float		t;
	bool		live;

	__device__ __forceinline__ void
	take(const GvBlockShape &shape, const char *place)
	{
		int			lane = threadIdx.x % GV_WARP;

#pragma unroll
		for (int i = 0; i < CHUNKS; i++)
			codes[i] = ((const uint4 *) place)[i * GV_WARP + lane];
		t = ((const float *) (place + shape.t))[lane];
		live = *(const uint32_t *) (place + shape.high) >> lane & 1;
	}
};

/*
 * Scores of a block, of which none is filtered out: each to its posting's
 * place, or where there is one among those that others have left.
 */
static __device__ __forceinline__ void
put_block(const GvBatch &batch, int query, uint32_t b, bool live, float score,
		  uint64_t id)
{
	int			lane = threadIdx.x % GV_WARP;
	uint32_t	at = b * GV_WARP;
	int64_t		to;

	if (batch.d_kept != NULL)
	{
		if (lane == 0)
			at = atomicAdd(&batch.d_kept[query], (uint32_t) GV_WARP);
		at = __shfl_sync(GV_FULL_WARP, at, 0);
	}
	to = (int64_t) query * batch.postings + at + lane;
	batch.d_scores[to] = live ? score : __int_as_float(0x7F800000);
	if (batch.d_ids != NULL)
		batch.d_ids[to] = id;
}

/*
 * By all threads: what a filter has within a limit, beside what others have.
 */
static __device__ __forceinline__ void
put_kept(const GvDeviceModel &model, const GvBatch &batch, int query,
		 const GvProbes &probes, const GvKept &kept, const Filter &filter,
		 float limit)
{
	int			lane = threadIdx.x % GV_WARP;
	int64_t		first = (int64_t) query * batch.postings;

	for (uint32_t some = threadIdx.x - lane; some < filter.count;
		 some += THREADS)
	{
		uint32_t	i = some + lane;
		float		score = i < filter.count ? gv_unordered(filter.keys[i]) :
			__int_as_float(0x7F800000);
		bool		near = i < filter.count && score <= limit;
		uint32_t	at = gv_take_place(__ballot_sync(GV_FULL_WARP, near),
										   &batch.d_kept[query]);

		if (near)
		{
			uint32_t	b = filter.places[i] / GV_WARP;
			int			probe = probes.one_of(kept, b);
			float		base;
			const uint8_t *block = probes.block_of(kept, b, probe,
												   model.shape.block_bytes,
												   &base);

			batch.d_scores[first + at] = score;
			batch.d_ids[first + at] = gv_id_in(block, model.shape,
											   filter.places[i] % GV_WARP,
											   probe);
		}
	}
}

#endif							/* GV_HOPPER */

/*
 * Block (x, y): query y, its blocks x, x + gridDim.x, ... by warps, of
 * postings with CHUNKS chunks of codes.
 * Shared: table [chunks * 32][16] floats, a place for each warp and, where
 * scores are filtered, the filter.
 * Code for other devices is empty.  Keys are left where they are: batches with
 * conditions go the way of scan.cu, where most codes are never read.
 */
template <int CHUNKS>
static __global__ void __launch_bounds__(THREADS, RESIDENT / THREADS)
scan_hopper_kernel(GvDeviceModel model, GvBatch batch)
{
#if GV_HOPPER
	GV_SHARED(table);
	__shared__ GvKept kept;
	__shared__ uint64_t arrived[WARPS];
	char	   *places = (char *) table + CHUNKS * GV_CHUNK_BYTES;
	Filter	   &filter = *(Filter *) (places + WARPS * place_bytes(model.shape));
	int			query = blockIdx.y;
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	int			words = (model.shape.code_bytes + 3) / 4 -
		(CHUNKS - 1) * GV_CHUNK_WORDS;	/* of the last chunk */
	Deal		deal = {places + warp * place_bytes(model.shape),
		&arrived[warp], gv_read_once(), blockIdx.x * WARPS + warp,
		gridDim.x * WARPS, 0, NULL, 0.0f, 0};
	bool		filters = batch.d_kept != NULL;
	float		limit = __int_as_float(0x7F800000);
	uint32_t	turn = 0;
	uint32_t	upto = filters ? GV_FILTER_FIRST : ~0u;
	GvProbes	probes;
	uint32_t	nblocks;

	if (batch.d_whole != NULL && !batch.d_whole[query])
		return;
	if (lane == 0)
	{
		gv_barrier_init(&arrived[warp], 1);
		gv_barriers_ready();
	}
	if (filters)
		filter.begin();
	nblocks = gv_scan_begins<THREADS>(model, batch, query, blockIdx.x * WARPS,
									  table, &kept, probes);
	if (nblocks == 0)
		return;
	deal.begin(model, probes, kept, nblocks);
	for (;;)
	{
		uint32_t	more;

		/* 1. each warp's blocks */
		for (; turn < upto && deal.number(turn) < nblocks; turn++)
		{
			Posting<CHUNKS> posting;
			uint32_t	b = deal.number(turn);
			uint64_t	id = 0;
			float		score;

			deal.wait();
			posting.take(model.shape, deal.place);
			score = __fadd_rn(__shfl_sync(GV_FULL_WARP, deal.base,
										  turn % GV_WARP), posting.t);
			if (!filters)
				id = deal.id_of(model.shape, turn);
			if (deal.number(turn + 1) < nblocks)
			{
				if ((turn + 1) % GV_WARP == 0)
					deal.look(model, probes, kept, turn + 1, nblocks);
				deal.ask(model.shape, turn + 1);
			}
			score = gv_device_score(__fadd_rn(score,
											gv_add_chunks(posting.codes, words,
														  (const char *)
														  table)));
			if (filters)
				filter.offer(posting.live && score <= limit, score,
							 b * GV_WARP + lane);
			else
				put_block(batch, query, b, posting.live, score, id);
		}
		if (!filters)
			return;

		/* 2. a bound for those that come */
		if (upto == GV_FILTER_FIRST)
			limit = filter.first_bound(batch.d_wanted[query].capacity);
		__syncthreads();
		if (blockIdx.x * WARPS + upto * deal.step >= nblocks)
			break;
		more = filter.tighten(batch.d_wanted[query].capacity, &limit);
		upto += more;
		if (more == 0)
		{
			/* too many are equal: all scores, after what was asked for */
			if (deal.number(turn) < nblocks)
				deal.wait();
			filters = false;
			upto = ~0u;
			turn = 0;
			deal.begin(model, probes, kept, nblocks);
		}
		__syncthreads();
	}

	/* 3. what is left */
	put_kept(model, batch, query, probes, kept, filter, limit);
#endif
}

template <int CHUNKS>
static GvStatus
launch(const GvDeviceModel *model, const GvBatch *batch, dim3 grid, int bytes,
	   cudaStream_t stream)
{
	if (model->shape.chunks != CHUNKS)
		return launch<CHUNKS - 1>(model, batch, grid, bytes, stream);
	return gv_launch_step(scan_hopper_kernel<CHUNKS>, grid, THREADS, bytes,
						  stream, model, batch);
}

template <>
GvStatus
launch<0>(const GvDeviceModel *, const GvBatch *, dim3, int, cudaStream_t)
{
	return GV_INVALID;
}

/* See gv_index.h. */
bool
gv_gpu_hopper_scans(const GvDeviceModel *model)
{
	return model->shape.chunks <= MOST_CHUNKS;
}

/* See gv_index.h. */
bool
gv_gpu_hopper_filters(const GvDeviceModel *model, const GvBatch *batch,
					  const GvSearcher *searcher)
{
	return batch->tests == 0 && batch->postings > 0 &&
		batch->postings <= MOST_FILTERED &&
		batch->capacity <= GV_FILTER_WANTED && !gv_gpu_sorts_postings(batch) &&
		gv_gpu_hopper_fits(batch, searcher) && gv_gpu_hopper_scans(model);
}

/*
 * d_scores [n][postings] of a batch, in the order of its blocks or, filtered,
 * in none.
 */
GvStatus
gv_gpu_hopper_scan(const GvDeviceModel *model, const GvBatch *batch,
				   const GvSearcher *searcher)
{
	int64_t		most = (batch->postings / GV_WARP + WARPS - 1) / WARPS;
	int64_t		share = gv_share_of(RESIDENT / THREADS * searcher->nsms,
									batch->n);
	dim3		grid((unsigned) (share < most ? share : most), batch->n);
	int			bytes = model->shape.chunks * GV_CHUNK_BYTES +
		WARPS * place_bytes(model->shape) +
		(batch->d_kept != NULL ? (int) sizeof(Filter) : 0);

	if (grid.x == 0)
		return GV_OK;
	return launch<MOST_CHUNKS>(model, batch, grid, bytes, searcher->stream);
}
