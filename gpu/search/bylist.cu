/*
 * bylist.cu
 *		Scans lists for many queries.  Each list is scanned once for all
 *		queries that probe it, by approximate scores from 8-bit numbers, and
 *		the postings that may be among a query's best get exact scores.
 *
 *		codewords8_kernel	codewords in 8 bits
 *		limit_kernel		a query in 8 bits, the margin of its approximate
 *							scores, and a limit from its nearest lists
 *		group_kernel,		for each list, the queries that probe it
 *		pair_kernel
 *		list_scan_kernel	candidates: postings within limit and margin
 *		rescore_kernel		their exact scores
 *
 * Of sub-quantizer j, with u_j the largest magnitude in its codewords / 127,
 * let C_jk be codeword k / u_j, rounded; of a query, with z = u_j q in each
 * dimension of j and s the largest |z| / 127, let Q be z / s, rounded.  Then
 * an entry of the look-up table, w <q_j, codeword k>, is nearly w s <Q_j,
 * C_jk>; products of such numbers, at most 4 x 256 of 127 x 127, are below
 * 2^24, so sums of them are exact in int32 and in fp32.  The approximate score
 * of a posting is
 *		a = list score + (w s sum + T).
 *
 * Proof.  Let E be the sum over j of the largest difference, of any
 * k, between the entry and w s <Q_j, C_jk>, and M that of the largest |entry|.
 * Both are taken from the table that S is made of, so nothing is asked of how
 * numbers were rounded.  Then
 *	- the sum of a posting's entries, added in fp32, is off by at most m 2^-24
 *	  M (1 + m 2^-24), and differs from w s sum by at most E besides
 *	- S and a are rounded twice each, in numbers below |list score| + |T| + M +
 *	  E; the limit less the list score, with which w s sum + T is compared,
 *	  once, in one below |limit| + |list score|: 2^-22 of those numbers is more
 *	  than all of these errors
 *	- differences of E are off by 2^-22 of M and E, sums by (m + 32) 2^-24
 * The margin is E and (m + 64) 2^-20 M, and a part more for list score, T and
 * limit up to 2^16 times that: 3/64.  Beyond, or where it is not finite, the
 * query is scanned as others are.
 */
#include "gpu/device/kbound.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/device/mma.cuh"
#include "gpu/search/listscan.cuh"
#include "gpu/search/search.h"

#define INT8_SUBS		8		/* sub-quantizers of a step of products */
#define PAIRS_TOGETHER	32		/* queries that a list is scanned for at
								 * once */
#define MAX_CANDIDATES	2048	/* candidates of a query */

/* A query's limit, and the error bounds of its approximate scores. */
struct GvQueryLimit
{
	float		scale;			/* factor of a sum of products of 8 bits */
	float		margin;			/* infinite: approximate scores of this query
								 * have no bound */
	float		most;			/* the margin does not hold if |T|, |list
								 * score| or |limit| is larger */
	float		limit;			/* no posting with a larger S is among the
								 * best; infinite: unknown */
};

/* A posting that may be among the best postings of a query. */
struct GvCandidate
{
	float		score;			/* approximate */
	uint32_t	place;			/* number of the posting among the query's */
};

/* A pair of a query and a list that it probes. */
struct alignas(16) GvPairing
{
	float		scale;			/* GvQueryLimit's */
	float		limit;			/* limit of a posting's scaled sum plus T */
	float		list_score;
	float		most;			/* largest |T| for which the margin holds;
								 * negative: the margin does not hold */
	uint32_t	query;			/* number among all queries */
	uint32_t	first;			/* number of the list's first posting among all
								 * postings of the query */
	uint32_t	unused[2];
};

/* Up to PAIRS_TOGETHER pairs of a list. */
struct GvPairGroup
{
	uint32_t	list;
	uint32_t	first;			/* first of d_pairs */
	uint32_t	n;
	uint32_t	unused;
};

#define LIMIT_THREADS	256
#define LIMIT_WARPS		(LIMIT_THREADS / GV_WARP)
/* rows of the table that a block reads at a time */
#define TABLE_ROWS		(LIMIT_THREADS / GV_CODEWORDS)
#define LARGEST			127.0f
#define PIECES			(GV_CODEWORDS / 4)	/* pieces of 16 bytes of a row */
#define LIMIT_BLOCKS	2		/* blocks of each warp from which a limit is
								 * found */
#define LIMIT_POSTINGS	(LIMIT_BLOCKS * LIMIT_WARPS * GV_BLOCK)

/* Returns the offset of sub-quantizer j's codewords in d_codewords8. */
static __device__ __forceinline__ int
words_at(int j)
{
	int			in = j % INT8_SUBS;

	return (j - in + in % 2 * 4 + in / 2) * GV_CODEWORDS;
}

/*
 * Returns weight * x[0 .. n - 1] as 8-bit multiples of unit, in one word.  Its
 * bytes from n on are 0.
 */
static __device__ __forceinline__ uint32_t
round_word(const float *x, int n, float weight, float unit)
{
	uint32_t	word = 0;

#pragma unroll
	for (int d = 0; d < GV_INT8_DIMS; d++)
	{
		float		number = d < n ? rintf(weight * x[d] / unit) : 0.0f;

		/*
		 * NaN, or a unit of 0, gives 0; the margin includes the resulting
		 * error
		 */
		if (fabsf(number) <= LARGEST)
			word |= (uint32_t) (uint8_t) (int) number << 8 * d;
	}
	return word;
}

/*
 * A block owns TABLE_ROWS sub-quantizers, and a thread one codeword.  The
 * first thread of the grid also clears d_totals.
 */
static __global__ void __launch_bounds__(LIMIT_THREADS)
codewords8_kernel(GvDeviceModel model, GvListScan lists)
{
	int			j = blockIdx.x * TABLE_ROWS + threadIdx.x / GV_CODEWORDS;
	int			k = threadIdx.x % GV_CODEWORDS;
	int			start = gv_device_sub_start(model, min(j, model.m));
	int			ndims = gv_device_sub_start(model, min(j + 1, model.m)) -
		start;
	const float *words = model.d_codebooks + (int64_t) GV_CODEWORDS * start;
	float		most = 0.0f;
	float		unit;

	if (blockIdx.x == 0 && threadIdx.x == 0)
		*lists.d_totals = 0;
	if (j >= INT8_SUBS * lists.steps)
		return;
	for (int i = 0; i < GV_CODEWORDS * ndims; i++)
		most = fmaxf(most, fabsf(words[i]));
	unit = most / LARGEST;
	lists.d_codewords8[words_at(j) + k] = round_word(words + k * ndims, ndims,
													 1.0f, unit);
	if (k == 0)
		lists.d_scales[j] = unit;
}

/*
 * Reduces the numbers of all threads of a block to one by the function both().
 * All threads get the result.
 */
template <typename Both>
static __device__ __forceinline__ float
of_all(float mine, float *partials, Both both)
{
	for (int half = GV_WARP / 2; half > 0; half /= 2)
		mine = both(mine, __shfl_xor_sync(GV_FULL_WARP, mine, half));
	__syncthreads();
	if (threadIdx.x % GV_WARP == 0)
		partials[threadIdx.x / GV_WARP] = mine;
	__syncthreads();
	mine = partials[0];
	for (int w = 1; w < LIMIT_WARPS; w++)
		mine = both(mine, partials[w]);
	return mine;
}

/*
 * Stores a query as 8-bit numbers, and returns their unit.  Called by all
 * threads of a block.
 */
static __device__ __forceinline__ float
round_query(const GvDeviceModel &model, const GvListScan &lists,
			const float *query, uint32_t *words, float *partials, uint32_t *to)
{
	int			j = threadIdx.x;
	int			start = gv_device_sub_start(model, min(j, model.m));
	int			ndims = gv_device_sub_start(model, min(j + 1, model.m)) -
		start;
	bool		mine = j < INT8_SUBS * lists.steps;
	float		unit = mine ? lists.d_scales[j] : 0.0f;
	float		numbers[GV_INT8_DIMS];
	float		most = 0.0f;

#pragma unroll
	for (int d = 0; d < GV_INT8_DIMS; d++)
	{
		numbers[d] = d < ndims ? query[start + d] : 0.0f;
		most = fmaxf(most, fabsf(unit * numbers[d]));
	}
	most = of_all(most, partials, [](float a, float b)
	{
		return fmaxf(a, b);
	});
	if (mine)
		to[j] = words[j] = round_word(numbers, ndims, unit, most / LARGEST);
	return most / LARGEST;
}

/*
 * Differences between the entries of a row of the look-up table and their
 * approximations from 8-bit numbers.
 */
struct Row
{
	float		far;			/* the largest difference */
	float		length;			/* the largest magnitude of an entry */
	float		nothing;		/* 0, or NaN if an entry is NaN or infinite */

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
 * Computes a query's margin (see the proof) from its look-up table, and
 * returns it to all threads.  A thread has one row of the table.  Neighboring
 * threads begin with different pieces of their rows to avoid bank conflicts,
 * because rows are 16 banks apart.
 */
static __device__ __forceinline__ float
find_margin(const GvDeviceModel &model, const GvListScan &lists,
			const uint4 *table, const uint32_t *words, float scale,
			float *partials)
{
	int			j = threadIdx.x;
	Row			row = {};
	float		margin;

	if (j < model.m)
	{
		const uint4 *from = (const uint4 *) (lists.d_codewords8 + words_at(j));
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
					row.nothing, partials, [](float a, float b)
	{
		return a + b;
	}) + 0x1p-100f;
	return margin < 1e30f ? margin : GV_INFINITY;
}

/* A posting, some of whose bytes are in flight. */
template <int CHUNKS>
struct Sample
{
	uint4		codes[CHUNKS];
	float		list_score;
	float		term;
	bool		live;

	/*
	 * Begins to load this lane's posting of block b of a query.  If `there` is
	 * false, the block does not exist, and the posting counts as dead.
	 */
	__device__ __forceinline__ void
	ask(const GvDeviceModel &model, const GvProbes &probes, const GvKept &kept,
		uint32_t b, bool there)
	{
		int			lane = threadIdx.x % GV_WARP;
		const uint8_t *block;

		live = false;
		if (!there)
			return;
		block = probes.block_of(kept, b, probes.find(kept, b),
								model.shape.block_bytes, &list_score);
#pragma unroll
		for (int i = 0; i < CHUNKS; i++)
			codes[i] = ((const uint4 *) block)[i * GV_WARP + lane];
		term = ((const float *) (block + model.shape.terms))[lane];
		live = *(const uint32_t *) (block + model.shape.live) >> lane & 1;
	}

	__device__ __forceinline__ float
	score(int words, const char *table) const
	{
		float		sum = gv_add_chunks(codes, words, table);

		return gv_device_score(__fadd_rn(__fadd_rn(list_score, term), sum));
	}
};

/*
 * Returns a score that at least k of the sampled live postings do not exceed,
 * or infinity if there are fewer than k.  Called by all threads of a block.
 * keys, slots and *count are in shared memory, and *count is 0 at first.
 */
template <int CHUNKS>
static __device__ __forceinline__ float
find_limit(const Sample<CHUNKS> (&samples)[LIMIT_BLOCKS], int last_words,
		   const char *table, uint32_t k, uint32_t *keys, uint32_t *count,
		   uint32_t (*slots)[GV_WARP])
{
	GvBlockReduce reduce = {slots, 0};

#pragma unroll
	for (int i = 0; i < LIMIT_BLOCKS; i++)
	{
		uint32_t	at = gv_take_place(__ballot_sync(GV_FULL_WARP,
													 samples[i].live), count);

		if (samples[i].live)
			keys[at] = gv_ordered(samples[i].score(last_words, table));
	}
	__syncthreads();
	if (*count < k || k == 0)
		return GV_INFINITY;
	return gv_unordered(gv_find_kth_bound([&](uint32_t i)
	{
		return keys[i];
	}, *count, k, k / 8, reduce));
}

/*
 * A block owns query blockIdx.x of a sub-batch, and stores the query's
 * elements of d_queries, d_query_limits and d_counts.  The limit is found from
 * the scores S of the first postings of the query's nearest lists.  The block
 * also counts the query in d_starts for each list that the query probes.
 * Shared memory: table [chunks * 32][16] floats.
 */
template <int CHUNKS>
static __global__ void __launch_bounds__(LIMIT_THREADS, CHUNKS <= 5 ? 3 : 2)
limit_kernel(GvDeviceModel model, GvBatch batch, GvListScan lists)
{
	GV_SHARED(table);
	__shared__ GvKept kept;
	__shared__ uint32_t words[LIMIT_THREADS];
	__shared__ uint32_t keys[LIMIT_POSTINGS];
	__shared__ uint32_t slots[2][GV_WARP];
	__shared__ float partials[LIMIT_WARPS];
	__shared__ uint32_t count;
	int			query = blockIdx.x;
	int			number = batch.first + query;
	int			last_words = (model.shape.code_bytes + 3) / 4 -
		(CHUNKS - 1) * GV_CHUNK_WORDS;
	uint32_t	k = batch.d_params[query].k;
	float		limit;
	Sample<CHUNKS> samples[LIMIT_BLOCKS];
	GvProbes	probes;
	uint32_t	nblocks;
	float		scale;
	float		margin;

	/* 1. begin to load postings, which arrive during step 2 */
	if (threadIdx.x == 0)
		count = 0;
	nblocks = gv_scan_begins<LIMIT_THREADS>(model, batch, query, 0, table,
											&kept, probes);
	__syncthreads();
#pragma unroll
	for (int i = 0; i < LIMIT_BLOCKS; i++)
	{
		uint32_t	b = i * LIMIT_WARPS + threadIdx.x / GV_WARP;

		samples[i].ask(model, probes, kept, b, b < nblocks);
	}

	/* 2. compute the query in 8-bit numbers, and its margin */
	scale = round_query(model, lists,
						batch.d_queries + (int64_t) query * model.dims, words,
						partials, lists.d_queries + (int64_t) number *
						INT8_SUBS * lists.steps) *
		(model.metric == GV_IP ? -1.0f : -2.0f);
	__syncthreads();
	margin = find_margin(model, lists, table, words, scale, partials);

	/* 3. the limit */
	limit = find_limit(samples, last_words, (const char *) table, k, keys,
					   &count, slots);
	if (threadIdx.x == 0)
	{
		lists.d_query_limits[number] =
			{scale, margin * 1.0625f, margin * 0x1p16f, limit};
		lists.d_counts[number] = margin < 1e30f ? 0 : MAX_CANDIDATES + 1;
	}

	/* 4. count the query for the lists that it probes */
	for (int p = threadIdx.x; p < probes.nprobed && margin < 1e30f;
		 p += LIMIT_THREADS)
		atomicAdd(&lists.d_starts[probes.probed[p].list], 1u);
}

/*
 * ----
 * The queries that probe a list: limit_kernel counted them, and these kernels
 * store them consecutively.
 *
 * The order of queries within a list differs from run to run, because it
 * depends on which thread is first.  The results do not depend on this order.
 */

#define PAIR_THREADS	256

/*
 * A thread owns a list.  It replaces the number of the list's pairs in
 * d_starts by the offset in d_pairs where they begin, and writes the list's
 * groups.  A warp reserves memory for its 32 lists at once, so the order of
 * the lists in d_pairs is undefined.  Nothing depends on this order.
 */
static __global__ void __launch_bounds__(PAIR_THREADS)
group_kernel(GvDeviceModel model, GvListScan lists)
{
	uint32_t	list = blockIdx.x * PAIR_THREADS + threadIdx.x;
	uint32_t	n = (int) list < model.nlists ? lists.d_starts[list] : 0;
	uint32_t	ngroups = (n + PAIRS_TOGETHER - 1) / PAIRS_TOGETHER;
	uint32_t	start = gv_upto_lane(n);
	uint32_t	group = gv_upto_lane(ngroups);
	unsigned long long before = 0;

	if (threadIdx.x % GV_WARP == GV_WARP - 1)
		before = atomicAdd(lists.d_totals,
						   (unsigned long long) group << 32 | start);
	before = __shfl_sync(GV_FULL_WARP, before, GV_WARP - 1);
	start += (uint32_t) before - n;
	group += (uint32_t) (before >> 32) - ngroups;
	if ((int) list < model.nlists)
		lists.d_starts[list] = start;
	for (uint32_t i = 0; i < ngroups; i++)
		lists.d_groups[group + i] = {list, start + i * PAIRS_TOGETHER,
			min(n - i * PAIRS_TOGETHER, (uint32_t) PAIRS_TOGETHER), 0};
}

/*
 * A thread owns one probe of a query of a sub-batch, and stores the pair of
 * query and list.
 */
static __global__ void __launch_bounds__(PAIR_THREADS)
pair_kernel(GvBatch batch, GvListScan lists)
{
	int			i = blockIdx.x * PAIR_THREADS + threadIdx.x;
	int			query = i / batch.nprobe;
	int			p = i % batch.nprobe;
	int			number = batch.first + query;
	GvProbe		probe;
	GvQueryLimit own;

	if (query >= batch.n || p >= batch.d_search_counts[query].nprobed ||
		lists.d_counts[number] > 0)
		return;
	probe = batch.d_probed[i];
	own = lists.d_query_limits[number];
	lists.d_pairs[atomicAdd(&lists.d_starts[probe.list], 1u)] =
		{own.scale, own.limit - probe.base + own.margin, probe.base,
			fabsf(own.limit) <= own.most && fabsf(probe.base) <= own.most ?
			own.most : -1.0f, (uint32_t) number,
			batch.d_starts[(int64_t) query * (batch.nprobe + 1) +
						   p] * GV_BLOCK, {}};
}

/*
 * ----
 * Scans of lists for all queries that probe them, with approximate scores from
 * tensor cores.
 *
 * The four dimensions of a sub-quantizer are one register.  For each code of a
 * posting, a look-up puts the codeword into the lane and register in which
 * mma.sync m16n8k32 needs it, once for up to 32 queries, so that no decoded
 * posting is written to memory.  A posting whose approximate score exceeds a
 * query's limit by more than the margin is not among the query's best.  All
 * other postings become candidates, in no particular order.
 */

#define LIST_THREADS	128
#define LIST_WARPS		(LIST_THREADS / GV_WARP)
#define RESIDENT		5		/* blocks of an SM */
#define TILES			(PAIRS_TOGETHER / 8)	/* tiles of 8 queries */
#define HALVES			(GV_BLOCK / 16) /* halves of a block of postings */
#define STEP_WORDS		(INT8_SUBS * GV_CODEWORDS)	/* codewords of a step */
#define STEP_BYTES		(INT8_SUBS * 4) /* bytes of a query */

/*
 * Returns the stride of queries in shared memory, in bytes.  It is an odd
 * number of steps, to avoid bank conflicts.
 */
static __host__ __device__ __forceinline__ int
row_bytes(int steps)
{
	return (steps | 1) * STEP_BYTES;
}

/*
 * Stores the candidates among a block's postings for the 8 queries of a tile,
 * whose sums are given.  With g = lane / 4 and t = lane % 4, a lane has the
 * sums of postings g, g + 8, g + 16 and g + 24 with queries 2t and 2t + 1.
 */
static __device__ __forceinline__ void
keep_candidates(const GvListScan &lists, const GvPairing *pairs, int nqueries,
				uint32_t b, const float (&terms)[2 * HALVES], uint32_t live,
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
			/* fmaf rounds only once, and the sum is exact in fp32 */
			scores[i] = fmaf(mine.scale, (float) sums[i / 2][i % 2 * 2 + c],
							 terms[i]);
			near |= (scores[i] <= mine.limit ? 1u : 0u) << i;
			lengths += fabsf(terms[i]);
		}
		near &= live;
		if (q >= nqueries)
			near = 0;
		else if (!(lengths <= mine.most))
		{
			/* the margin does not hold for numbers this large */
			if (live != 0)
				atomicAdd(&lists.d_counts[mine.query],
						  (uint32_t) (MAX_CANDIDATES + 1));
			near = 0;
		}
		if (!__any_sync(GV_FULL_WARP, near != 0))
			continue;

		uint32_t	count = __popc(near);
		uint32_t	upto = count;
		uint32_t	at = 0;

		/*
		 * the last of the 8 lanes of a query reserves places for all 8 lanes
		 */
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
				if (at < MAX_CANDIDATES)
					lists.d_candidates[(int64_t) mine.query * MAX_CANDIDATES +
									   at] = {scores[i] + mine.list_score,
						mine.first + b * GV_BLOCK + i * 8 + g};
				at++;
			}
	}
}

/*
 * Adds the products of a step to sums.  A step is 8 sub-quantizers, so
 * codes[i] are the 8 codes of one of this lane's postings, of which lane (g,
 * t) uses the two in byte t.
 */
template <int NTILES>
static __device__ __forceinline__ void
add_step(int32_t (&sums)[TILES][HALVES][4],
		 const uint32_t (&codes)[2 * HALVES], const char *words,
		 const char *queries, int stride)
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

/*
 * Prefetches to L2 the part of a block that scans read; called by a whole
 * warp.
 */
static __device__ __forceinline__ void
bring_block(const GvDeviceModel &model, const GvDeviceList &list, uint32_t b)
{
	int			at = threadIdx.x % GV_WARP * GV_L2_LINE;

	if (b < list.nblocks)
		for (; at < model.shape.high; at += GV_WARP * GV_L2_LINE)
			gv_bring_line(list.d_blocks +
						  (int64_t) b * model.shape.block_bytes + at);
}

/* Scans this warp's blocks of a list for up to 8 * NTILES queries. */
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

	for (uint32_t b = threadIdx.x / GV_WARP; b < list.nblocks; b += LIST_WARPS)
	{
		const uint8_t *block = list.d_blocks +
			(int64_t) b * model.shape.block_bytes;
		uint32_t	mask = *(const uint32_t *) (block + model.shape.live);
		int32_t		sums[TILES][HALVES][4] = {};
		float		terms[2 * HALVES];
		uint32_t	live = 0;

		bring_block(model, list, b + LIST_WARPS);
#pragma unroll
		for (int i = 0; i < 2 * HALVES; i++)
		{
			bool		there = mask >> (i * 8 + g) & 1;

			terms[i] = there ?
				((const float *) (block + model.shape.terms))[i * 8 + g] :
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
			keep_candidates(lists, pairs + tile * 8, nqueries - tile * 8, b,
							terms, live, sums[tile]);
	}
}

/*
 * A thread block owns a group of pairs of a list, and a warp takes every
 * LIST_WARPS-th block of the list.  The sums of its 32 postings and up to 32
 * queries are in registers.  Shared memory: the codewords [steps][8][16], and
 * the group's queries with a stride of row_bytes.
 */
static __global__ void __launch_bounds__(LIST_THREADS, RESIDENT)
list_scan_kernel(GvDeviceModel model, GvListScan lists)
{
	GV_SHARED(memory);
	__shared__ GvPairing pairs[PAIRS_TOGETHER];
	int			stride = row_bytes(lists.steps);
	int			nwords = lists.steps * STEP_WORDS / 4;	/* int4 of codewords */
	int			npieces = lists.steps * STEP_BYTES / 16;	/* of a query */
	char	   *rows = (char *) (memory + nwords);
	GvPairGroup group = lists.d_groups[blockIdx.x]; /* undefined if there is
													 * none */
	GvDeviceList list;
	int			q;
	int			piece;

	if (blockIdx.x >= *lists.d_totals >> 32)
		return;
	list = model.d_lists[group.list];
	if (threadIdx.x < PAIRS_TOGETHER)
		pairs[threadIdx.x] = threadIdx.x < group.n ?
			lists.d_pairs[group.first + threadIdx.x] : GvPairing {};
	bring_block(model, list, threadIdx.x / GV_WARP);
	for (int i = threadIdx.x; i < nwords; i += LIST_THREADS)
		memory[i] = ((const uint4 *) lists.d_codewords8)[i];
	__syncthreads();
	q = threadIdx.x / npieces;
	piece = threadIdx.x % npieces;
	while (q < (int) (group.n + 7) / 8 * 8)
	{
		((uint4 *) (rows + q * stride))[piece] = q < (int) group.n ?
			((const uint4 *) lists.d_queries)[(int64_t) pairs[q].query *
											  npieces + piece] :
			make_uint4(0, 0, 0, 0);
		q += LIST_THREADS / npieces;
		piece += LIST_THREADS % npieces;
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

/*
 * ----
 * Exact scores of the candidates.
 *
 * The candidates' approximate scores give a narrower limit than the limit by
 * which they were chosen.  The scores S of k candidates do not exceed the k-th
 * smallest approximate score plus the margin.  So a candidate whose
 * approximate score exceeds this sum by more than the margin is not among the
 * k best.  The other candidates, some 100 for each query, get their scores S.
 * These are stored where a scan with a condition stores scores, so the
 * selection treats both in the same way.  Queries that have more candidates
 * than fit, or no margin, are left to scan_kernel (see GvBatch.d_overflowed).
 */

#define RESCORE_THREADS	128
#define RESCORE_GROUP	8		/* chunks of codes in flight at once */

/*
 * A block owns query blockIdx.x of a sub-batch.  Shared memory: table [chunks
 * * 32][16] floats.
 */
static __global__ void __launch_bounds__(RESCORE_THREADS)
rescore_kernel(GvDeviceModel model, GvBatch batch, GvListScan lists)
{
	GV_SHARED(table);
	__shared__ GvKept kept;
	__shared__ uint32_t places[MAX_CANDIDATES];
	__shared__ uint32_t partials[2][GV_WARP];
	__shared__ uint32_t count;
	int			query = blockIdx.x;
	int			number = batch.first + query;
	int64_t		first_posting = (int64_t) query * batch.postings;
	const GvCandidate *near = lists.d_candidates + (int64_t) number *
		MAX_CANDIDATES;
	uint32_t	n = lists.d_counts[number];
	uint32_t	k = batch.d_params[query].k;
	uint32_t	last = 0xFFFFFFFFu;
	GvBlockReduce reduce = {partials, 0};
	GvProbes	probes;

	if (threadIdx.x == 0)
	{
		batch.d_overflowed[query] = n > MAX_CANDIDATES;
		count = 0;
	}
	if (n > MAX_CANDIDATES)
		return;
	(void) gv_scan_begins<RESCORE_THREADS>(model, batch, query, 0, table,
										   &kept, probes);
	__syncthreads();

	/* 1. find the candidates within a narrower limit */
	if (n > k)
		last = gv_ordered(gv_unordered(gv_find_kth_bound([&](uint32_t i)
		{
			return gv_ordered(near[i].score);
		}, n, max(k, 1u), k / 8,
			reduce)) + 2.01f * lists.d_query_limits[number].margin);
	for (uint32_t some = threadIdx.x / GV_WARP * GV_WARP; some < n;
		 some += RESCORE_THREADS)
	{
		uint32_t	i = some + threadIdx.x % GV_WARP;
		GvCandidate mine = i < n ? near[i] : GvCandidate {0.0f, 0};
		bool		is_near = i < n && gv_ordered(mine.score) <= last;
		uint32_t	at = gv_take_place(__ballot_sync(GV_FULL_WARP, is_near),
									   &count);

		if (is_near)
			places[at] = mine.place;
	}
	__syncthreads();

	/* 2. their scores */
	for (uint32_t i = threadIdx.x; i < count; i += RESCORE_THREADS)
	{
		uint32_t	b = places[i] / GV_WARP;
		int			posting = places[i] % GV_WARP;
		int			probe = gv_probe_of(probes.starts, probes.nprobed, b);
		float		list_score;
		const uint8_t *block = probes.block_of(kept, b, probe,
											   model.shape.block_bytes,
											   &list_score);
		float		term =
			((const float *) (block + model.shape.terms))[posting];
		uint64_t	id = gv_id_in(block, model.shape, posting, probe);
		float		sum =
			gv_add_codes<RESCORE_GROUP>((const uint4 *) block + posting,
										model.shape.chunks,
										(const char *) table);

		batch.d_scores[first_posting + i] =
			gv_device_score(__fadd_rn(__fadd_rn(list_score, term), sum));
		batch.d_ids[first_posting + i] = id;
	}
	if (threadIdx.x == 0)
		batch.d_nscores[query] = count;
}

/* ----
 * Launches.
 */

/*
 * Places the arrays for n queries and npairs pairs of a query and a list in
 * `work`, from offset *bytes on.
 */
void
gv_gpu_place_lists(const GvDeviceModel *model, char *work, size_t *bytes,
				   int64_t n, int64_t npairs, GvListScan *lists)
{
	int64_t		nsubs;

	lists->steps = (model->m + INT8_SUBS - 1) / INT8_SUBS;
	lists->most_groups = (int32_t) (npairs / PAIRS_TOGETHER + model->nlists);
	nsubs = lists->steps * INT8_SUBS;
	gv_place(&lists->d_codewords8, work, bytes, nsubs * GV_CODEWORDS);
	gv_place(&lists->d_scales, work, bytes, nsubs);
	gv_place(&lists->d_queries, work, bytes, n * nsubs);
	gv_place(&lists->d_query_limits, work, bytes, n);
	gv_place(&lists->d_counts, work, bytes, n);
	gv_place(&lists->d_candidates, work, bytes, n * MAX_CANDIDATES);
	gv_place(&lists->d_starts, work, bytes, model->nlists);
	gv_place(&lists->d_pairs, work, bytes, npairs);
	gv_place(&lists->d_groups, work, bytes, lists->most_groups);
	gv_place(&lists->d_totals, work, bytes, 1);
}

/*
 * Launches the kernel that makes d_codewords8 and d_scales, and sets all
 * counts in d_starts to 0.
 */
GvStatus
gv_gpu_begin_lists(const GvDeviceModel *model, const GvListScan *lists,
				   cudaStream_t stream)
{
	int			nsubs = INT8_SUBS * lists->steps;

	GV_CUDA_TRY(gv_clear(lists->d_starts, model->nlists, stream));
	return gv_launch(codewords8_kernel, gv_blocks_for(nsubs, TABLE_ROWS),
					 LIMIT_THREADS, 0, stream, *model, *lists);
}

/*
 * Launches the kernel that makes d_queries, d_query_limits and d_counts of a
 * sub-batch whose lists are chosen already.
 */
GvStatus
gv_gpu_add_queries(const GvDeviceModel *model, const GvBatch *batch,
				   const GvListScan *lists, cudaStream_t stream)
{
	static void (*const kernels[GV_INT8_CHUNKS]) (GvDeviceModel, GvBatch,
												  GvListScan) = {
		limit_kernel<1>, limit_kernel<2>, limit_kernel<3>, limit_kernel<4>,
		limit_kernel<5>, limit_kernel<6>, limit_kernel<7>, limit_kernel<8>
	};
	int			chunks = model->shape.chunks;

	return gv_launch(kernels[chunks - 1], batch->n, LIMIT_THREADS,
					 chunks * GV_CHUNK_BYTES, stream, *model, *batch, *lists);
}

/*
 * Launches the scan of all sub-batches, which makes d_candidates and d_counts.
 */
GvStatus
gv_gpu_scan_lists(const GvDeviceModel *model, const GvBatchTurn *turn,
				  cudaStream_t stream)
{
	const GvListScan *lists = &turn->lists;
	int			bytes = lists->steps * STEP_WORDS * 4 +
		PAIRS_TOGETHER * row_bytes(lists->steps);

	GV_TRY(gv_launch(group_kernel, gv_blocks_for(model->nlists, PAIR_THREADS),
					 PAIR_THREADS, 0, stream, *model, *lists));
	for (int i = 0; i < turn->nbatches; i++)
	{
		const GvBatch *batch = &turn->batches[i];

		GV_TRY(gv_launch(pair_kernel,
						 gv_blocks_for(batch->n * batch->nprobe, PAIR_THREADS),
						 PAIR_THREADS, 0, stream, *batch, *lists));
	}
	return gv_launch(list_scan_kernel, lists->most_groups, LIST_THREADS, bytes,
					 stream, *model, *lists);
}

/*
 * Launches the kernel that makes d_scores, d_ids, d_nscores and d_overflowed
 * of a sub-batch.
 */
GvStatus
gv_gpu_rescore(const GvDeviceModel *model, const GvBatch *batch,
			   const GvListScan *lists, cudaStream_t stream)
{
	return gv_launch(rescore_kernel, batch->n, RESCORE_THREADS,
					 model->shape.chunks * GV_CHUNK_BYTES, stream, *model,
					 *batch, *lists);
}
