/*
 * rough.cu
 *		Codewords and queries in 8 bits, and how far what is made of them lies
 *		from S.
 *
 * Of sub-quantizer j, with u_j the largest magnitude in its codewords / 127,
 * let C_jk be codeword k / u_j, rounded; of a query, with z = u_j q in each
 * dimension of j and s the largest |z| / 127, let Q be z / s, rounded.  Then
 * an entry of the look-up table, w <q_j, codeword k>, is nearly w s <Q_j,
 * C_jk>; products of such numbers, at most 4 x 256 of 127 x 127, are below
 * 2^24, so sums of them are exact in int32 and in fp32.  The approximate score
 * of a posting is
 *		a = base + (w s sum + T).
 *
 * Proof.  Let E be the sum over j of the largest difference, of any
 * k, between the entry and w s <Q_j, C_jk>, and M that of the largest |entry|.
 * Both are taken from the table that S is made of, so nothing is asked of how
 * numbers were rounded.  Then
 *	- the sum of a posting's entries, added in fp32, is off by at most m 2^-24
 *	  M (1 + m 2^-24), and differs from w s sum by at most E besides
 *	- S and a are rounded twice each, in numbers below |base| + |T| + M + E;
 *	  the limit less the base, with which w s sum + T is compared, once, in one
 *	  below |limit| + |base|: 2^-22 of those is more than all of that
 *	- differences of E are off by 2^-22 of M and E, sums by (m + 32) 2^-24
 * The margin is E and (m + 64) 2^-20 M, and a part more for base, T and limit
 * up to 2^16 times that: 3/64.  Beyond, or where it is not finite, the query
 * is scanned as others are.
 */
#include "gpu/common/bisect.cuh"
#include "gpu/common/mma.cuh"
#include "gpu/index/gv_listscan.h"
#include "gpu/index/scan.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)
#define ROWS			(THREADS / GV_CODEWORDS)	/* of the table at once */
#define LARGEST			127.0f
#define PIECES			(GV_CODEWORDS / 4)	/* of 16 bytes, of a row */
#define BLOCKS			2		/* of postings, that a warp finds a limit
								 * from */
#define LIMIT_POSTINGS	(BLOCKS * WARPS * GV_BLOCK)

/* Where the codewords of sub-quantizer j are. */
static __device__ __forceinline__ int
words_at(int j)
{
	int			in = j % GV_ROUGH_SUBS;

	return (j - in + in % 2 * 4 + in / 2) * GV_CODEWORDS;
}

/* Four numbers, of which n are there, in units of 8 bits. */
static __device__ __forceinline__ uint32_t
round_word(const float *x, int n, float weight, float unit)
{
	uint32_t	word = 0;

#pragma unroll
	for (int d = 0; d < GV_ROUGH_DIMS; d++)
	{
		float		number = d < n ? rintf(weight * x[d] / unit) : 0.0f;

		/* of no number, or a unit of 0, nothing: the margin tells */
		if (fabsf(number) <= LARGEST)
			word |= (uint32_t) (uint8_t) (int) number << 8 * d;
	}
	return word;
}

/* Block: ROWS sub-quantizers, a codeword a thread; and d_totals. */
static __global__ void __launch_bounds__(THREADS)
rough_words_kernel(GvDeviceModel model, GvListScan lists)
{
	int			j = blockIdx.x * ROWS + threadIdx.x / GV_CODEWORDS;
	int			k = threadIdx.x % GV_CODEWORDS;
	int			start = gv_device_sub_start(model, min(j, model.m));
	int			ndims = gv_device_sub_start(model, min(j + 1, model.m)) -
		start;
	const float *words = model.d_codebooks + (int64_t) GV_CODEWORDS * start;
	float		most = 0.0f;
	float		unit;

	if (blockIdx.x == 0 && threadIdx.x == 0)
		*lists.d_totals = 0;
	if (j >= GV_ROUGH_SUBS * lists.steps)
		return;
	for (int i = 0; i < GV_CODEWORDS * ndims; i++)
		most = fmaxf(most, fabsf(words[i]));
	unit = most / LARGEST;
	lists.d_words[words_at(j) + k] = round_word(words + k * ndims, ndims, 1.0f,
												unit);
	if (k == 0)
		lists.d_units[j] = unit;
}

/* The largest, or the sum, of what all threads bring, in all of them. */
template <typename Both>
static __device__ __forceinline__ float
of_all(float mine, float *said, Both both)
{
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		mine = both(mine, __shfl_xor_sync(GV_FULL_WARP, mine, half));
	__syncthreads();
	if (threadIdx.x % GV_WARP == 0)
		said[threadIdx.x / GV_WARP] = mine;
	__syncthreads();
	mine = said[0];
	for (int w = 1; w < WARPS; w++)
		mine = both(mine, said[w]);
	return mine;
}

/*
 * By all threads: a query in 8 bits, to words and to `to`.  Returns its unit.
 */
static __device__ __forceinline__ float
round_query(const GvDeviceModel &model, const GvListScan &lists,
			const float *query, uint32_t *words, float *said, uint32_t *to)
{
	int			j = threadIdx.x;
	int			start = gv_device_sub_start(model, min(j, model.m));
	int			ndims = gv_device_sub_start(model, min(j + 1, model.m)) -
		start;
	bool		mine = j < GV_ROUGH_SUBS * lists.steps;
	float		unit = mine ? lists.d_units[j] : 0.0f;
	float		numbers[GV_ROUGH_DIMS];
	float		most = 0.0f;

#pragma unroll
	for (int d = 0; d < GV_ROUGH_DIMS; d++)
	{
		numbers[d] = d < ndims ? query[start + d] : 0.0f;
		most = fmaxf(most, fabsf(unit * numbers[d]));
	}
	most = of_all(most, said, [](float a, float b)
	{
		return fmaxf(a, b);
	});
	if (mine)
		to[j] = words[j] = round_word(numbers, ndims, unit, most / LARGEST);
	return most / LARGEST;
}

/* How far entries of a row of the table are from what 8 bits make of them. */
struct Row
{
	float		far;			/* the largest difference */
	float		length;			/* the largest magnitude of an entry */
	float		nothing;		/* no number, where an entry is none */

	__device__ __forceinline__ void
	take(float entry, float rough)
	{
		float		off = fabsf(entry - rough);
		float		size = fabsf(entry);

		nothing += (off - off) + (size - size);
		far = fmaxf(far, off);
		length = fmaxf(length, size);
	}
};

/*
 * By all threads: the margin of a query, see above, from its table and what 8
 * bits make of that.  A thread has a row; it begins with another piece of it
 * than its neighbors do, since rows are 16 banks apart.
 */
static __device__ __forceinline__ float
find_margin(const GvDeviceModel &model, const GvListScan &lists,
			const uint4 *table, const uint32_t *words, float scale, float *said)
{
	int			j = threadIdx.x;
	Row			row = {};
	float		margin;

	if (j < model.m)
	{
		const uint4 *from = (const uint4 *) (lists.d_words + words_at(j));
		uint32_t	word = words[j];

#pragma unroll
		for (int i = 0; i < PIECES; i++)
		{
			int			piece = (i + j / 2) % PIECES;
			uint4		roughs = from[piece];
			uint4		entries = table[j * PIECES + piece];

#define TAKE(x) \
	row.take(__uint_as_float(entries.x), \
			 scale * (float) gv_dot_bytes(word, roughs.x))
			TAKE(x);
			TAKE(y);
			TAKE(z);
			TAKE(w);
#undef TAKE
		}
	}
	margin = of_all(1.001f * row.far + (model.m + 64) * 0x1p-20f * row.length +
					row.nothing, said, [](float a, float b)
	{
		return a + b;
	}) + 0x1p-100f;
	return margin < 1e30f ? margin : __int_as_float(0x7F800000);
}

/* A posting, some of whose bytes are on their way. */
template <int CHUNKS>
struct Sample
{
	uint4		codes[CHUNKS];
	float		base;
	float		t;
	bool		live;

	/* By a warp: of block b of a query's, one each lane, if it is there. */
	__device__ __forceinline__ void
	ask(const GvDeviceModel &model, const GvProbes &probes, const GvKept &kept,
		uint32_t b, bool there)
	{
		int			lane = threadIdx.x % GV_WARP;
		const uint8_t *block;

		live = false;
		if (!there)
			return;
		block = probes.block_of(kept, b, probes.one_of(kept, b),
								model.shape.block_bytes, &base);
#pragma unroll
		for (int i = 0; i < CHUNKS; i++)
			codes[i] = ((const uint4 *) block)[i * GV_WARP + lane];
		t = ((const float *) (block + model.shape.t))[lane];
		live = *(const uint32_t *) (block + model.shape.live) >> lane & 1;
	}

	__device__ __forceinline__ float
	score(int words, const char *table) const
	{
		float		sum = gv_add_chunks(codes, words, table);

		return gv_device_score(__fadd_rn(__fadd_rn(base, t), sum));
	}
};

/*
 * By all threads: a score that k of the postings do not exceed; infinite where
 * they are fewer.  keys, *count, which is 0, and talked are shared.
 */
template <int CHUNKS>
static __device__ __forceinline__ float
find_limit(const Sample<CHUNKS> (&samples)[BLOCKS], int last_words,
		   const char *table, uint32_t k, uint32_t *keys, uint32_t *count,
		   uint32_t (*talked)[GV_WARP])
{
	GvTalk		talk = {talked, 0};

#pragma unroll
	for (int i = 0; i < BLOCKS; i++)
	{
		uint32_t	at = gv_take_place(__ballot_sync(GV_FULL_WARP,
													 samples[i].live), count);

		if (samples[i].live)
			keys[at] = gv_ordered(samples[i].score(last_words, table));
	}
	__syncthreads();
	if (*count < k || k == 0)
		return __int_as_float(0x7F800000);
	return gv_unordered(gv_find_bound([&](uint32_t i)
	{
		return keys[i];
	}, *count, k, k / 8, talk).key);
}

/*
 * Query blockIdx.x of a part: its d_queries, d_aims and d_counts, a limit from
 * S of the first postings of its nearest lists, and a meeting more of each
 * list.  Shared: table [chunks * 32][16] floats.
 */
template <int CHUNKS>
static __global__ void __launch_bounds__(THREADS, CHUNKS <= 5 ? 3 : 2)
aim_kernel(GvDeviceModel model, GvBatch batch, GvListScan lists)
{
	GV_SHARED(table);
	__shared__ GvKept kept;
	__shared__ uint32_t words[THREADS];
	__shared__ uint32_t keys[LIMIT_POSTINGS];
	__shared__ uint32_t talked[2][GV_WARP];
	__shared__ float said[WARPS];
	__shared__ uint32_t count;
	int			query = blockIdx.x;
	int			last_words = (model.shape.code_bytes + 3) / 4 -
		(CHUNKS - 1) * GV_CHUNK_WORDS;
	uint32_t	k = batch.d_wanted[query].capacity;
	float		limit;
	Sample<CHUNKS> samples[BLOCKS];
	GvProbes	probes;
	uint32_t	nblocks;
	float		scale;
	float		margin;

	/* 1. the postings, whose bytes are on their way meanwhile */
	if (threadIdx.x == 0)
		count = 0;
	nblocks = gv_scan_begins<THREADS>(model, batch, query, 0, table, &kept,
									  probes);
	__syncthreads();
#pragma unroll
	for (int i = 0; i < BLOCKS; i++)
	{
		uint32_t	b = i * WARPS + threadIdx.x / GV_WARP;

		samples[i].ask(model, probes, kept, b, b < nblocks);
	}

	/* 2. the query in 8 bits, and what that does to its table */
	scale = round_query(model, lists,
						batch.d_queries + (int64_t) query * model.dims, words,
						said, lists.d_queries + (int64_t) query *
						GV_ROUGH_SUBS * lists.steps) *
		(model.metric == GV_IP ? -1.0f : -2.0f);
	__syncthreads();
	margin = find_margin(model, lists, table, words, scale, said);

	/* 3. a limit */
	limit = find_limit(samples, last_words, (const char *) table, k, keys,
					   &count, talked);
	if (threadIdx.x == 0)
	{
		lists.d_aims[query] = {scale, margin * 1.0625f, margin * 0x1p16f, limit};
		lists.d_counts[query] = margin < 1e30f ? 0 : GV_NEAR_CAPACITY + 1;
	}

	/* 4. whom it meets */
	for (int p = threadIdx.x; p < probes.nprobed && margin < 1e30f; p += THREADS)
		atomicAdd(&lists.d_starts[probes.probed[p].list], 1u);
}

/* d_words and d_units, and no pairs. */
GvStatus
gv_gpu_rough_words(const GvDeviceModel *model, const GvListScan *lists,
				   cudaStream_t stream)
{
	int			nsubs = GV_ROUGH_SUBS * lists->steps;

	GV_CUDA_TRY(cudaMemsetAsync(lists->d_starts, 0,
								model->nlists * sizeof(uint32_t), stream));
	return gv_launch_early(false, rough_words_kernel, (nsubs + ROWS - 1) / ROWS,
						   THREADS, 0, stream, *model, *lists);
}

template <int CHUNKS>
static GvStatus
launch(const GvDeviceModel *model, const GvBatch *batch,
	   const GvListScan *lists,
	   cudaStream_t stream)
{
	if (model->shape.chunks != CHUNKS)
		return launch<CHUNKS - 1>(model, batch, lists, stream);
	return gv_launch_early(false, aim_kernel<CHUNKS>, batch->n, THREADS,
						   CHUNKS * GV_CHUNK_BYTES, stream, *model, *batch,
						   *lists);
}

template <>
GvStatus
launch<0>(const GvDeviceModel *, const GvBatch *, const GvListScan *,
		  cudaStream_t)
{
	return GV_INVALID;
}

/* A part's d_queries, d_aims and d_counts, when its lists are chosen. */
GvStatus
gv_gpu_aim(const GvDeviceModel *model, const GvBatch *batch,
		   const GvListScan *lists, cudaStream_t stream)
{
	return launch<GV_ROUGH_CHUNKS>(model, batch, lists, stream);
}
