/*
 * listscan.cu
 *		Computes the score S of every live posting of the probed lists.
 *
 * The unit of work is a block of 32 postings, one for each lane, so lists of
 * 100 rows waste little.  The blocks of all probes of a query are numbered,
 * and are divided evenly among warps.  There are as many blocks of threads as
 * are resident at a time, or a small multiple of this number.  S is computed
 * exactly as defined: with an fp32 table, as an fp32 sum in the order of the
 * sub-quantizers, without contraction.
 */
#include <algorithm>
#include <string.h>

#include "gpu/device/warp.cuh"
#include "gpu/search/answers.cuh"
#include "gpu/search/listscan.cuh"
#include "gpu/search/search.h"

#define GROUP			8		/* chunks of codes in flight at once */
#define MOST_RESIDENT	1024	/* threads of an SM, with 64 registers each */
#define MOST_WAVES		4
#define FEW_QUERIES		4		/* up to this number of queries, blocks of
								 * threads are small */

/*
 * Each warp owns every n-th block of postings of query blockIdx.y, where n is
 * the number of warps of all thread blocks of this query.  If the batch was
 * scanned list by list, only the queries that are set in d_overflowed are
 * scanned here, and the first thread block of such a query stores the number
 * of its scores.  Shared memory: table [chunks * 32][16] floats.
 */
template <int THREADS>
static __global__ void
__launch_bounds__(THREADS, MOST_RESIDENT / THREADS)
scan_kernel(GvDeviceModel model, GvBatch batch)
{
	constexpr int warps = THREADS / GV_WARP;
	GV_SHARED(table);
	__shared__ GvKept kept;
	int			query = blockIdx.y;
	int			lane = threadIdx.x % GV_WARP;
	int64_t		first_posting = (int64_t) query * batch.postings;
	GvProbes	probes;
	uint32_t	nblocks;

	if (batch.d_overflowed != NULL && !batch.d_overflowed[query])
		return;
	nblocks = gv_scan_begins<THREADS>(model, batch, query, blockIdx.x * warps,
									  table, &kept, probes);
	if (batch.d_overflowed != NULL && blockIdx.x == 0 && threadIdx.x == 0)
		batch.d_nscores[query] = nblocks * GV_BLOCK;
	for (uint32_t b = blockIdx.x * warps + threadIdx.x / GV_WARP; b < nblocks;
		 b += gridDim.x * warps)
	{
		int			probe = probes.find(kept, b);
		float		list_score;
		const uint8_t *block = probes.block_of(kept, b, probe,
											   model.shape.block_bytes,
											   &list_score);
		float		term =
			__ldcs((const float *) (block + model.shape.terms) + lane);
		uint32_t	live = *(const uint32_t *) (block + model.shape.live);
		uint32_t	high =
			__ldcs((const uint32_t *) (block + model.shape.high) + lane);
		uint32_t	low = __ldcs((const uint16_t *) (block + model.shape.low) +
								 lane);
		float		sum = gv_add_codes<GROUP>((const uint4 *) block + lane,
											  model.shape.chunks,
											  (const char *) table);

		gv_store_posting(batch, first_posting + (int64_t) b * GV_WARP + lane,
						 live, __fadd_rn(__fadd_rn(list_score, term), sum),
						 high, low, probe);
	}
}

/*
 * ----
 * Tests of a condition on keys.  A warp tests some blocks at a time, and lane
 * i tests posting i of each block.
 *
 * The head of a block's keys is not tested first.  If the head did not decide,
 * the abbreviated keys would have to be read after the head, and two dependent
 * reads take twice as long.  Compared to codes, abbreviated keys are only a
 * few bytes.
 */

#define AT_ONCE			4		/* blocks tested at once */

/* Returns abbreviated key i, of `width` bytes. */
static __device__ __forceinline__ uint64_t
load_abbrev(const uint8_t *abbrevs, int width, int i)
{
	switch (width)
	{
		case 1:
			return abbrevs[i];
		case 2:
			return ((const uint16_t *) abbrevs)[i];
		case 4:
			return ((const uint32_t *) abbrevs)[i];
		default:
			return ((const uint64_t *) abbrevs)[i];
	}
}

/*
 * Returns whether an abbreviated key is one of values [n], n > 0, which
 * ascend.
 */
static __device__ __forceinline__ bool
is_among(const uint64_t *values, int n, uint64_t abbrev)
{
	int			place = 0;

	while (n > 1)
	{
		int			half = n / 2;

		place += values[place + half - 1] < abbrev ? half : 0;
		n -= half;
	}
	return values[place] == abbrev;
}

/* Returns whether a key that is not NULL satisfies the test. */
static __device__ __forceinline__ bool
matches(const GvDeviceTest &test, const uint64_t *values, uint64_t abbrev)
{
	switch (test.kind)
	{
		case GV_TEST_RANGE:
			return test.low <= abbrev && abbrev <= test.high;
		case GV_TEST_SET:
			return test.nvalues > 0 && test.low <= abbrev &&
				abbrev <= test.high &&
				is_among(values + test.first, test.nvalues, abbrev);
		case GV_TEST_ANY_BIT:
			return (abbrev & test.low) != 0;
		case GV_TEST_ALL_BITS:
			return (abbrev & test.low) == test.low;
		default:
			return test.kind == GV_TEST_NOT_NULL;
	}
}

/*
 * Clears the bits of postings that do not satisfy all tests [n]; called by a
 * whole warp.  For each of AT_ONCE blocks, keys is the address of the block's
 * keys, and bit i of matching stands for posting i.
 */
static __device__ __forceinline__ void
test_blocks(const GvDeviceTest *tests, int n, const uint64_t *values,
			const uint8_t *const (&keys)[AT_ONCE],
			uint32_t (&matching)[AT_ONCE])
{
	int			lane = threadIdx.x % GV_WARP;
	uint32_t	left = 1;

	for (int i = 0; i < n && left != 0 && tests[i].kind != 0; i++)
	{
		const GvDeviceTest &test = tests[i];
		uint32_t	nulls[AT_ONCE];
		uint64_t	abbrevs[AT_ONCE];

#pragma unroll
		for (int b = 0; b < AT_ONCE; b++)
		{
			nulls[b] = ((const GvKeyHead *) keys[b])[test.key].nulls;
			abbrevs[b] =
				load_abbrev(keys[b] + test.abbrevs_at, test.width, lane);
		}
		left = 0;
#pragma unroll
		for (int b = 0; b < AT_ONCE; b++)
		{
			matching[b] &= __ballot_sync(GV_FULL_WARP,
										 (nulls[b] >> lane & 1) != 0 ?
										 test.kind == GV_TEST_NULL :
										 matches(test, values, abbrevs[b]));
			left |= matching[b];
		}
	}
}

/*
 * ----
 * The scan of batches with conditions on keys.  It computes the scores of live
 * postings that satisfy their query's condition, stores these scores without
 * gaps, and also computes the scores of the sample.
 *
 * Perhaps only one of 100 postings satisfies a condition, and a warp takes as
 * long to score one posting as to score 32.  So a warp tests a run of blocks,
 * several at a time.  It buffers the postings that satisfy the condition in
 * shared memory until there is one for each lane; they may come from different
 * blocks.  In the end, the warps of a thread block divide the remaining
 * postings among them.  Scores of all warps are stored one behind the other,
 * so that a selection reads no other values.  Only a sort gets a score for
 * each posting, which is infinity if the posting does not match.
 *
 * A hash chooses one of 32 blocks for the sample.  In these blocks all live
 * postings are scored in addition, and their scores are stored in a separate
 * array.  With 80 registers a thread and 5 chunks in flight no registers are
 * spilled.  With 64 registers and 8 chunks, five times as many bytes were
 * spilled as were read from lists.
 */

#define MANY_THREADS	256
#define FEW_THREADS		64		/* if a long table leaves too little shared
								 * memory for MANY_THREADS threads */
#define KEYSCAN_GROUP	5		/* chunks of codes in flight at once */
#define KEYSCAN_RESIDENT	768 /* threads of an SM, with 80 registers each */
#define MOST_RUN		GV_WARP /* blocks of a run, a lane each */
#define BUFFER_CAPACITY	(2 * GV_WARP - 1)	/* postings in a warp's buffer */

/* A posting that satisfies its query's condition. */
struct BufferedPosting
{
	uint32_t	block;			/* number among the query's */
	uint32_t	posting;		/* probe * GV_BLOCK + number in the block */
};

/* The buffers of a block of threads. */
template <int THREADS>
struct PostingBuffer
{
	/* of each warp */
	BufferedPosting postings[THREADS / GV_WARP][BUFFER_CAPACITY];
	uint32_t	left[THREADS / GV_WARP];	/* postings left in the end */
};

static_assert(sizeof(PostingBuffer<FEW_THREADS>) <= GV_SCAN_OWN,
			  "room beside a table");

/* A run of blocks, one a lane. */
struct BlockRun
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

	/* Returns the score of a posting of a block. */
	__device__ __forceinline__ float
	score(const uint8_t *block, int probe, int posting) const
	{
		float		list_score = probes.probed[probe].base;
		float		term =
			__ldcs((const float *) (block + model.shape.terms) + posting);

		return __fadd_rn(__fadd_rn(list_score, term),
						 gv_add_codes<KEYSCAN_GROUP>((const uint4 *) block +
													 posting,
													 model.shape.chunks,
													 table));
	}

	/*
	 * Returns the last probe that starts at or before block b.  Called by a
	 * whole warp, which tests 32 probes at a time.
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
			uint32_t	before = __ballot_sync(GV_FULL_WARP, p < high &&
											   probes.starts[p] <= b);

			low += (__popc(before) - 1) * step;
			high = min(high, low + step);
		}
		return low;
	}

	/*
	 * Like find_probe, but each lane has its own block b.  `first` is the
	 * first of these blocks.
	 */
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
		/*
		 * if the probe is not one of the next 32 probes, many lists are empty
		 */
		return __shfl_sync(GV_FULL_WARP, next, n) <= b ?
			gv_probe_of(probes.starts, probes.nprobed, b) : low + n;
	}

	/*
	 * Returns the run of n blocks from `first` on.  Lane i gets block first +
	 * i, and lanes from n on get the last block.
	 */
	__device__ __forceinline__ BlockRun
	take(uint32_t first, int n) const
	{
		int			lane = threadIdx.x % GV_WARP;
		uint32_t	ordinal;
		BlockRun	run;

		run.number = first + min(lane, n - 1);
		run.probe = find_probes(first, run.number);
		ordinal = run.number - probes.starts[run.probe];
		run.block = probes.firsts[run.probe] +
			(int64_t) ordinal * model.shape.block_bytes;
		run.sampled = lane < n && batch.sampled &&
			batch.d_sample_queries[query].rank != 0 &&
			gv_sampled((uint32_t) probes.probed[run.probe].list, ordinal);
		return run;
	}

	/* Returns the address of lane `from`'s block. */
	static __device__ __forceinline__ const uint8_t *
	block_of(const BlockRun &run, int from)
	{
		return (const uint8_t *) __shfl_sync(GV_FULL_WARP,
											 (unsigned long long) run.block,
											 from);
	}

	/* Scores and stores n buffered postings, one a lane. */
	__device__ __forceinline__ void
	write_scores(const BufferedPosting &buffered, int n) const
	{
		int			lane = threadIdx.x % GV_WARP;
		int			probe = buffered.posting / GV_BLOCK;
		int			posting = buffered.posting % GV_BLOCK;
		uint32_t	to = 0;
		uint32_t	high = 0;
		uint32_t	low = 0;
		float		sum = 0.0f;

		if (lane == 0)
			to = atomicAdd(&batch.d_nscores[query], (uint32_t) n);
		if (lane < n)
		{
			const uint8_t *block = probes.firsts[probe] +
				(int64_t) (buffered.block - probes.starts[probe]) *
				model.shape.block_bytes;

			high = __ldcs((const uint32_t *) (block + model.shape.high) +
						  posting);
			low = __ldcs((const uint16_t *) (block + model.shape.low) +
						 posting);
			sum = score(block, probe, posting);
		}
		/*
		 * use the result of atomicAdd only here, so that loads of codes need
		 * not wait for it
		 */
		to = batch.d_ids != NULL ? __shfl_sync(GV_FULL_WARP, to, 0) + lane :
			buffered.block * GV_BLOCK + posting;
		if (lane < n)
			gv_store_posting(batch, first_posting + to, GV_FULL_WARP, sum,
							 high, low, probe);
	}

	/*
	 * Scores all live postings of the run's sampled blocks, and stores the
	 * scores in d_sampled.
	 */
	__device__ __forceinline__ void
	write_sampled(const BlockRun &run) const
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
							lane] = live >> lane & 1 ? gv_device_score(sum) :
				GV_INFINITY;
		}
	}

	/*
	 * Tests the keys of a run of n blocks.  Returns the mask of live postings
	 * in this lane's block that satisfy the condition.
	 */
	__device__ __forceinline__ uint32_t
	test_keys(const BlockRun &run, int n) const
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
			test_blocks(batch.d_tests + (int64_t) query * batch.tests,
								 batch.tests, batch.d_values, keys, matching);
#pragma unroll
			for (int i = 0; i < AT_ONCE; i++)
				mine = lane == at + i ? matching[i] : mine;
		}
		return lane < n ? mine : 0;
	}

	/*
	 * Appends the matching postings of a run to the n < 32 postings in the
	 * buffer, and scores the buffered postings whenever there are 32.  Returns
	 * how many postings remain in the buffer.
	 */
	__device__ __forceinline__ int
	buffer(const BlockRun &run, uint32_t matching, BufferedPosting *buffered,
		   int n) const
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
				buffered[n + __popc(some & ((1u << lane) - 1))] =
					{number, (uint32_t) (probe * GV_BLOCK + lane)};
			n += __popc(some);
			__syncwarp();
			if (n < GV_WARP)
				continue;
			n -= GV_WARP;
			write_scores(buffered[n + lane], GV_WARP);
			__syncwarp();
		}
		return n;
	}

	/*
	 * Stores infinity as the scores of postings that do not match, because a
	 * sort reads the scores of all postings.
	 */
	__device__ __forceinline__ void
	write_infinity(const BlockRun &run, uint32_t matching, int n) const
	{
		int			lane = threadIdx.x % GV_WARP;

		for (int from = 0; from < n; from++)
		{
			uint32_t	some = __shfl_sync(GV_FULL_WARP, matching, from);
			uint32_t	number = __shfl_sync(GV_FULL_WARP, run.number, from);

			if ((some >> lane & 1) == 0)
				batch.d_scores[first_posting + (int64_t) number * GV_BLOCK +
							   lane] = GV_INFINITY;
		}
	}
};

/*
 * Each warp owns every n-th run of blocks of query blockIdx.y, where n is the
 * number of warps of all thread blocks of this query.  Shared memory: table
 * [chunks * 32][16] floats.
 */
template <int THREADS>
static __global__ void __launch_bounds__(THREADS, KEYSCAN_RESIDENT / THREADS)
keyscan_kernel(GvDeviceModel model, GvBatch batch)
{
	constexpr int warps = THREADS / GV_WARP;
	GV_SHARED(table);
	__shared__ PostingBuffer<THREADS> buffer;
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	Scan		scan = {model, batch, (int) blockIdx.y, {},
		(const char *) table, (int64_t) blockIdx.y * batch.postings};
	uint32_t	nblocks = gv_scan_begins<THREADS>(model, batch, scan.query,
												  blockIdx.x * warps, table,
												  NULL, scan.probes);
	uint32_t	nwarps = gridDim.x * warps;
	uint32_t	length = min((nblocks + nwarps - 1) / nwarps,
							 (uint32_t) MOST_RUN);
	uint32_t	total = 0;
	int			nbuffered = 0;

	if (nblocks == 0)
		return;
	for (uint32_t first = (blockIdx.x * warps + warp) * length;
		 first < nblocks; first += nwarps * length)
	{
		int			n = (int) min(length, nblocks - first);
		BlockRun	run = scan.take(first, n);
		uint32_t	matching = scan.test_keys(run, n);

		if (batch.listed && matching != 0)
			atomicAdd(&batch.d_matches[(int64_t) scan.query * batch.nprobe +
									   run.probe],
					  (uint32_t) __popc(matching));
		if (batch.d_ids == NULL)
			scan.write_infinity(run, matching, n);
		nbuffered = scan.buffer(run, matching, buffer.postings[warp],
								nbuffered);
		scan.write_sampled(run);
	}

	/* the postings left in all warps' buffers */
	if (lane == 0)
		buffer.left[warp] = nbuffered;
	__syncthreads();
	for (int w = 0; w < warps; w++)
		total += buffer.left[w];
	for (uint32_t first = warp * GV_WARP; first < total; first += THREADS)
	{
		uint32_t	i = first + lane;
		uint32_t	before = 0;
		int			w = 0;

		for (; w < warps - 1 && i >= before + buffer.left[w]; w++)
			before += buffer.left[w];
		scan.write_scores(i < total ? buffer.postings[w][i - before] :
						  BufferedPosting {0, 0},
						  (int) min(total - first, (uint32_t) GV_WARP));
	}
}

/*
 * Launches a scan by blocks of `threads` threads; an SM runs `resident`
 * threads at a time.  The grid's y dimension is the number of queries, and its
 * x dimension the number of blocks for each query.  The x dimension is chosen
 * so that the last wave leaves as little of the device idle as possible.
 */
static GvStatus
launch(void (*kernel) (GvDeviceModel model, GvBatch batch), int threads,
	   int resident, const GvDeviceModel *model, const GvBatch *batch,
	   GvSearcher *searcher)
{
	int64_t		most = gv_blocks_for(batch->postings, threads);
	int64_t		together = (int64_t) resident / threads * searcher->nsms;
	int64_t		best = 1;
	double		best_use = 0;

	if (most == 0)
		return GV_OK;
	for (int waves = 1; waves <= MOST_WAVES; waves++)
	{
		int64_t		share = waves * together / batch->n;
		double		use = (double) (share * batch->n) / (waves * together);

		if (use > best_use + 0.02)
		{
			best = share;
			best_use = use;
		}
	}
	return gv_launch_step(kernel, dim3(std::min(best, most), batch->n),
						  threads, model->shape.chunks * GV_CHUNK_BYTES,
						  searcher->stream, model, batch);
}

/*
 * Launches the scan of a batch, or only of the queries that are set in
 * d_overflowed.
 */
GvStatus
gv_gpu_scan(const GvDeviceModel *model, const GvBatch *batch,
			GvSearcher *searcher)
{
	/* few queries have few blocks, which should be divided among many SMs */
	if (batch->tests == 0 && batch->n <= FEW_QUERIES)
		return launch(scan_kernel<64>, 64, MOST_RESIDENT, model, batch,
					  searcher);
	if (batch->tests == 0)
		return launch(scan_kernel<256>, 256, MOST_RESIDENT, model, batch,
					  searcher);
	if (model->shape.chunks * GV_CHUNK_BYTES +
		sizeof(PostingBuffer<MANY_THREADS>) <=
		gv_most_shared(searcher->device))
		return launch(keyscan_kernel<MANY_THREADS>, MANY_THREADS,
					  KEYSCAN_RESIDENT, model, batch, searcher);
	return launch(keyscan_kernel<FEW_THREADS>, FEW_THREADS, KEYSCAN_RESIDENT,
				  model, batch, searcher);
}

/*
 * ----
 * Uploads of conditions on keys to the device, and downloads of the counts of
 * matches.
 */

#define MATCH_THREADS	256

/*
 * Writes the conditions and sample queries of n searches to host memory, from
 * where the first step (tables.cu) copies them to the device.
 */
void
gv_gpu_upload_conditions(const GvBatch *batch, const GvSearch *searches,
						 int32_t n)
{
	GvDeviceTest *tests = (GvDeviceTest *) batch->in_tests;
	uint64_t   *values = (uint64_t *) batch->in_values;
	int32_t		nvalues = 0;

	memset(tests, 0, (size_t) batch->n * batch->tests * sizeof(GvDeviceTest));
	for (int32_t i = 0; batch->sampled && i < batch->n; i++)
		((GvSampleQuery *) batch->in_sample_queries)[i] = i >= n ?
			GvSampleQuery {0, 0.0f} :
			GvSampleQuery {searches[i].limited ? -1 : searches[i].rank,
				searches[i].limit};
	for (int32_t i = 0; i < n; i++)
	{
		const GvCondition *condition = searches[i].condition;
		GvDeviceTest *out = tests + (size_t) i * batch->tests;

		for (int32_t t = 0; condition != NULL && t < condition->ntests;
			 t++, out++)
		{
			const GvKeyTest *test = &condition->tests[t];
			const GvKeyForm *form = &condition->form;

			out->low = test->low;
			out->high = test->high;
			out->key = (uint8_t) test->key;
			out->kind = (uint8_t) test->kind;
			out->width = form->width[test->key];
			out->abbrevs_at = (int32_t) gv_keys_at(form, test->key);
			if (test->kind != GV_TEST_SET || test->nvalues == 0)
				continue;
			out->low = test->values[0];
			out->high = test->values[test->nvalues - 1];
			out->first = nvalues;
			out->nvalues = test->nvalues;
			memcpy(values + nvalues, test->values,
				   test->nvalues * sizeof(uint64_t));
			nvalues += test->nvalues;
		}
	}
}

/*
 * A block writes part blockIdx.x of the counts of matches of query blockIdx.y
 * to the host.  The first block also writes all other answers if they are
 * still on the device.
 */
static __global__ void __launch_bounds__(MATCH_THREADS)
download_matches_kernel(GvDeviceModel model, GvBatch batch)
{
	int			part = blockIdx.x;
	int			query = blockIdx.y;
	int64_t		first_hit = (int64_t) query * batch.k;
	GvSearchCounts found;

	gv_pdl_wait();
	found = batch.d_search_counts[query];
	gv_download_matches<MATCH_THREADS>(batch, query, part, found);
	if (part > 0 || !batch.sampled || found.nprobed == 0 ||
		batch.out_hits == batch.d_hits)
		return;
	gv_download_probes(batch, query, found.nlisted);
	for (int i = threadIdx.x; i < found.nhits; i += MATCH_THREADS)
		batch.out_hits[first_hit + i] = batch.d_hits[first_hit + i];
	if (threadIdx.x == 0)
		batch.out_counts[query] = found;
}

/* Launches the last step of a batch that has conditions and no bounds step. */
GvStatus
gv_gpu_download_matches(const GvDeviceModel *model, const GvBatch *batch,
						cudaStream_t stream)
{
	return gv_launch_step(download_matches_kernel,
						  dim3(GV_COUNT_PARTS, batch->n), MATCH_THREADS, 0,
						  stream, model, batch);
}
