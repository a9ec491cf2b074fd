/*
 * keyscan.cu
 *		The list scanner of batches with conditions on keys: scores of the live
 *		postings that satisfy their query's, side by side, and of the sample.
 *
 * Of a block's 32 postings few satisfy a condition, and a warp that adds up
 * the codes of one takes as long as for all.  So a warp asks the condition of
 * a run of blocks, some at once, and postings that satisfy it wait in shared
 * memory until there is one for each lane, from whatever blocks.  The warps of
 * a block of threads share those that are left in the end.
 */
#include "gpu/coarse/gv_coarse.h"
#include "gpu/index/condition.cuh"
#include "gpu/index/gv_index.h"
#include "gpu/index/scan.cuh"

#define MANY_THREADS	256
#define FEW_THREADS		64		/* where a long table leaves no shared memory
								 * for MANY_THREADS */
#define GROUP			5		/* chunks of codes on their way at once */
#define MOST_RESIDENT	768		/* threads of an SM, for 80 registers each */
#define MOST_RUN		GV_WARP	/* blocks that a warp takes, a lane each */
#define AT_ONCE			4		/* of which so many are asked at once */
#define CAPACITY			(2 * GV_WARP - 1)	/* for postings that wait */

/* A posting that satisfies its query's condition. */
struct Waiting
{
	uint32_t	block;			/* number among the query's */
	uint32_t	posting;			/* probe * GV_BLOCK + number in the
									 * block */
};

/* A block of threads' shared memory, beside a table. */
template <int THREADS>
struct Wait
{
	Waiting		postings[THREADS / GV_WARP][CAPACITY];	/* of each warp */
	uint32_t	left[THREADS / GV_WARP];	/* so many, in the end */
};

static_assert(sizeof(Wait<FEW_THREADS>) <= GV_SCAN_OWN, "room beside a table");

/* A run of blocks, one a lane. */
struct Run
{
	uint32_t	number;			/* among the query's blocks */
	int			probe;
	const uint8_t *block;
	bool		sampled;
};

/* A query's scan, by a warp. */
struct Scan
{
	const GvDeviceModel &model;
	const GvBatch &batch;
	int			query;
	GvProbes	probes;
	const char *table;
	int64_t		first_posting;

	/* The score of a posting of a block. */
	__device__ __forceinline__ float
	score(const uint8_t *block, int probe, int posting) const
	{
		float		base = probes.probed[probe].base;
		float		t =
			__ldcs((const float *) (block + model.shape.t) + posting);

		return __fadd_rn(__fadd_rn(base, t),
						 gv_add_codes<GROUP>((const uint4 *) block + posting,
											 model.shape.chunks, table));
	}

	/*
	 * The last probe that starts at or before block b: 32 are asked at once.
	 */
	__device__ __forceinline__ int
	find_probe(uint32_t b) const
	{
		int			low = 0;	/* it is one of low .. high - 1 */
		int			high = probes.nprobed;

		while (high - low > 1)
		{
			int			step = (high - low + GV_WARP - 1) / GV_WARP;
			int			p = low + (int) (threadIdx.x % GV_WARP) * step;
			uint32_t	before = __ballot_sync(GV_FULL_WARP,
											   p < high &&
											   probes.starts[p] <= b);

			low += (__popc(before) - 1) * step;
			high = min(high, low + step);
		}
		return low;
	}

	/* The same for each lane's own block, of which the first is `first`. */
	__device__ __forceinline__ int
	find_probes(uint32_t first, uint32_t b) const
	{
		int			low = find_probe(first);
		int			p = low + 1 + threadIdx.x % GV_WARP;
		uint32_t	next = p < probes.nprobed ? probes.starts[p] : 0xFFFFFFFFu;
		int			n = 0;

#pragma unroll
		for (int step = GV_WARP / 2; step > 0; step /= 2)
			n += __shfl_sync(GV_FULL_WARP, next, n + step - 1) <= b ? step : 0;
		/* lists without a block are many, if it is none of the next 32 */
		return __shfl_sync(GV_FULL_WARP, next, n) <= b ?
			gv_probe_of(probes.starts, probes.nprobed, b) : low + n;
	}

	/* Lane i's is block first + i; lanes beyond n have the last. */
	__device__ __forceinline__ Run
	take(uint32_t first, int n) const
	{
		int			lane = threadIdx.x % GV_WARP;
		uint32_t	ordinal;
		Run			run;

		run.number = first + min(lane, n - 1);
		run.probe = find_probes(first, run.number);
		ordinal = run.number - probes.starts[run.probe];
		run.block = probes.firsts[run.probe] +
			(int64_t) ordinal * model.shape.block_bytes;
		run.sampled = lane < n && batch.sampled && batch.d_ranks[query].rank != 0 &&
			gv_sampled((uint32_t) probes.probed[run.probe].list, ordinal);
		return run;
	}

	/* Where lane `from` has its block. */
	static __device__ __forceinline__ const uint8_t *
	block_of(const Run &run, int from)
	{
		return (const uint8_t *) __shfl_sync(GV_FULL_WARP,
											 (unsigned long long) run.block,
											 from);
	}

	/* Scores of n postings that wait, up to one a lane. */
	__device__ __forceinline__ void
	write_scores(const Waiting &waiting, int n) const
	{
		int			lane = threadIdx.x % GV_WARP;
		int			probe = waiting.posting / GV_BLOCK;
		int			posting = waiting.posting % GV_BLOCK;
		uint32_t	to = 0;
		uint32_t	high = 0;
		uint32_t	low = 0;
		float		sum = 0.0f;

		if (batch.d_ids != NULL && lane == 0)
			to = atomicAdd(&batch.d_kept[query], (uint32_t) n);
		if (lane < n)
		{
			const uint8_t *block = probes.firsts[probe] +
				(int64_t) (waiting.block - probes.starts[probe]) *
				model.shape.block_bytes;

			high = __ldcs((const uint32_t *) (block + model.shape.high) +
						  posting);
			low = __ldcs((const uint16_t *) (block + model.shape.low) +
						 posting);
			sum = score(block, probe, posting);
		}
		/* only now, so that codes did not wait for what lane 0 asked for */
		to = batch.d_ids != NULL ? __shfl_sync(GV_FULL_WARP, to, 0) + lane :
			waiting.block * GV_BLOCK + posting;
		if (lane < n)
			gv_store_posting(batch, first_posting + to, GV_FULL_WARP, sum,
							 high, low,
						probe);
	}

	/* All live postings of the run's sampled blocks. */
	__device__ __forceinline__ void
	write_sampled(const Run &run) const
	{
		int			lane = threadIdx.x % GV_WARP;
		uint32_t	lanes = __ballot_sync(GV_FULL_WARP, run.sampled);
		uint32_t	place = 0;

		if (lanes == 0)
			return;
		if (lane == 0)
			place = atomicAdd(&batch.d_nsampled[query],
							  (uint32_t) __popc(lanes));
		place = __shfl_sync(GV_FULL_WARP, place, 0);
		for (; lanes != 0; lanes &= lanes - 1, place++)
		{
			int			from = __ffs(lanes) - 1;
			const uint8_t *block = block_of(run, from);
			int			probe = __shfl_sync(GV_FULL_WARP, run.probe, from);
			uint32_t	live = *(const uint32_t *) (block + model.shape.live);
			float		sum = score(block, probe, lane);

			batch.d_sampled[first_posting + (int64_t) place * GV_BLOCK +
							lane] =
				live >> lane & 1 ? gv_device_score(sum) :
				__int_as_float(0x7F800000);
		}
	}

	/*
	 * The live postings of this lane's block that satisfy the condition, of a
	 * run of n.
	 */
	__device__ __forceinline__ uint32_t
	ask(const Run &run, int n) const
	{
		int			lane = threadIdx.x % GV_WARP;
		uint32_t	mine = 0;

		for (int at = 0; at < n; at += AT_ONCE)
		{
			const uint8_t *keys[AT_ONCE];
			uint32_t	matching[AT_ONCE];

#pragma unroll
			for (int i = 0; i < AT_ONCE; i++)
			{
				const uint8_t *block = block_of(run, min(at + i, n - 1));

				keys[i] = block + model.shape.keys;
				matching[i] = *(const uint32_t *) (block + model.shape.live);
			}
			gv_device_match<AT_ONCE>(batch.d_tests + (int64_t) query *
								   batch.tests, batch.tests, batch.d_values,
								   keys, matching);
#pragma unroll
			for (int i = 0; i < AT_ONCE; i++)
				mine = lane == at + i ? matching[i] : mine;
		}
		return lane < n ? mine : 0;
	}

	/* Postings of a run that satisfy the condition wait behind n others, up to
	 * 31; how many wait then. */
	__device__ __forceinline__ int
	wait(const Run &run, uint32_t matching, Waiting *waiting, int n) const
	{
		int			lane = threadIdx.x % GV_WARP;
		uint32_t	lanes = __ballot_sync(GV_FULL_WARP, matching != 0);

		for (; lanes != 0; lanes &= lanes - 1)
		{
			int			from = __ffs(lanes) - 1;
			uint32_t	some = __shfl_sync(GV_FULL_WARP, matching, from);
			uint32_t	number = __shfl_sync(GV_FULL_WARP, run.number, from);
			int			probe = __shfl_sync(GV_FULL_WARP, run.probe, from);

			if ((some >> lane & 1) != 0)
				waiting[n + __popc(some & ((1u << lane) - 1))] =
					{number, (uint32_t) (probe * GV_BLOCK + lane)};
			n += __popc(some);
			__syncwarp();
			if (n < GV_WARP)
				continue;
			n -= GV_WARP;
			write_scores(waiting[n + lane], GV_WARP);
			__syncwarp();
		}
		return n;
	}

	/*
	 * Selections that sort look at all postings, those that do not satisfy it,
	 * too.
	 */
	__device__ __forceinline__ void
	pass_over(const Run &run, uint32_t matching, int n) const
	{
		int			lane = threadIdx.x % GV_WARP;

		for (int from = 0; from < n; from++)
		{
			uint32_t	some = __shfl_sync(GV_FULL_WARP, matching, from);
			uint32_t	number = __shfl_sync(GV_FULL_WARP, run.number, from);

			if ((some >> lane & 1) == 0)
				batch.d_scores[first_posting + (int64_t) number * GV_BLOCK + lane] =
					__int_as_float(0x7F800000);
		}
	}
};

/*
 * Block (x, y): query y, runs x, x + gridDim.x, ... of its blocks, by warps.
 * Shared: table [chunks * 32][16] floats.
 */
template <int THREADS>
static __global__ void __launch_bounds__(THREADS, MOST_RESIDENT / THREADS)
keyscan_kernel(GvDeviceModel model, GvBatch batch)
{
	constexpr int warps = THREADS / GV_WARP;
	GV_SHARED(table);
	__shared__ Wait<THREADS> wait;
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	Scan		scan = {model, batch, (int) blockIdx.y, {}, (const char *) table,
		(int64_t) blockIdx.y * batch.postings};
	uint32_t	nblocks = gv_scan_begins<THREADS>(model, batch, scan.query,
												  blockIdx.x * warps, table,
												  NULL, scan.probes);
	uint32_t	nwarps = gridDim.x * warps;
	uint32_t	length = min((nblocks + nwarps - 1) / nwarps,
							 (uint32_t) MOST_RUN);
	uint32_t	total = 0;
	int			nwaiting = 0;

	if (nblocks == 0)
		return;
	for (uint32_t first = (blockIdx.x * warps + warp) * length;
		 first < nblocks; first += nwarps * length)
	{
		int			n = (int) min(length, nblocks - first);
		Run			run = scan.take(first, n);
		uint32_t	matching = scan.ask(run, n);

		if (matching != 0)
			atomicAdd(&batch.d_matches[(int64_t) scan.query * batch.probes +
									   run.probe],
					  (uint32_t) __popc(matching));
		if (batch.d_ids == NULL)
			scan.pass_over(run, matching, n);
		nwaiting = scan.wait(run, matching, wait.postings[warp], nwaiting);
		scan.write_sampled(run);
	}

	/* what waits still, of all warps */
	if (lane == 0)
		wait.left[warp] = nwaiting;
	__syncthreads();
	for (int w = 0; w < warps; w++)
		total += wait.left[w];
	for (uint32_t first = warp * GV_WARP; first < total; first += THREADS)
	{
		uint32_t	i = first + lane;
		uint32_t	before = 0;
		int			w = 0;

		for (; w < warps - 1 && i >= before + wait.left[w]; w++)
			before += wait.left[w];
		scan.write_scores(i < total ? wait.postings[w][i - before] :
						  Waiting {0, 0},
				  (int) min(total - first, (uint32_t) GV_WARP));
	}
}

template <int THREADS>
static GvStatus
launch(const GvDeviceModel *model, const GvBatch *batch, GvSearcher *searcher,
	   size_t table_bytes)
{
	dim3		grid = gv_scan_grid<THREADS>(*batch, *searcher, MOST_RESIDENT);

	if (grid.x == 0)
		return GV_OK;
	return gv_launch_step(keyscan_kernel<THREADS>, grid, THREADS, table_bytes,
						  searcher->stream, model, batch);
}

/* See gv_index.h. */
GvStatus
gv_gpu_keyscan(const GvDeviceModel *model, const GvBatch *batch,
			   GvSearcher *searcher)
{
	size_t		table_bytes = (size_t) model->shape.chunks * GV_CHUNK_BYTES;

	if (table_bytes + sizeof(Wait<MANY_THREADS>) <=
		gv_most_shared(searcher->device))
		return launch<MANY_THREADS>(model, batch, searcher, table_bytes);
	return launch<FEW_THREADS>(model, batch, searcher, table_bytes);
}
