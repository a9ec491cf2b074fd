/*
 * listscan.cuh
 *		Code that the scans of lists share: a query's table and probes in
 *		shared memory, the look-ups, and the stores of scores and ids.
 *
 * A row of the table is 16 words in 16 banks, so look-ups never conflict.  A
 * byte of codes, masked and shifted, is the offset of an entry in its row, in
 * bytes.  One byte permutation puts this offset below the chunk's offset, and
 * the row's own offset is a constant.  So a look-up is a permutation, a load,
 * an addition, and half an operation for masks: 3.5 instructions, while the
 * compiler without this trick needs 7.  In a clock an SM issues four
 * instructions, for 32 lanes each, but answers only 32 look-ups, so look-ups
 * are the limit.
 *
 * Lanes read chunks of 16 bytes of 32 consecutive postings, so a warp reads
 * 512 consecutive bytes.  Codes are read with the hint to evict them first, so
 * that centroids stay in L2.
 */
#include "gpu/device/warp.cuh"
#include "gpu/search/search.h"

#define GV_CHUNK_BYTES	(2 * GV_CHUNK * GV_CODEWORDS * 4)	/* of the table */
#define GV_ROW_BYTES	(GV_CODEWORDS * 4)
#define GV_CHUNK_WORDS	(GV_CHUNK / 4)	/* of codes */
#define GV_KEPT			64		/* probes of a query in shared memory */

/*
 * Returns the id of a posting: the 48 bits of its row id, then 16 bits for its
 * probe.  Postings with equal scores are ordered by row id.
 */
static __device__ __forceinline__ uint64_t
gv_posting_id(uint32_t high, uint32_t low, int probe)
{
	return (uint64_t) high << 32 | low << 16 | (uint32_t) probe;
}

/*
 * Returns the probe that contains block b of a search, which is the last probe
 * that starts at or before b.  starts [n + 1] ascends from 0.
 */
static __device__ __forceinline__ int
gv_probe_of(const uint32_t *starts, int n, uint32_t b)
{
	int			low = 0;
	int			high = n - 1;

	while (low < high)
	{
		int			middle = (low + high + 1) / 2;

		if (starts[middle] <= b)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

/*
 * Adds the table entries of eight codes, which are in the four bytes of a
 * word, the lowest code first.
 */
static __device__ __forceinline__ float
gv_add_word(float sum, uint32_t word, const char *rows, uint32_t chunk)
{
	uint32_t	low = word << 2 & 0x3C3C3C3C;
	uint32_t	high = word >> 2 & 0x3C3C3C3C;

#pragma unroll
	for (int i = 0; i < 4; i++)
	{
		/*
		 * byte i of low or high, and above it the three upper bytes of chunk
		 */
		uint32_t	even = __byte_perm(low, chunk, 0x7650 | i);
		uint32_t	odd = __byte_perm(high, chunk, 0x7650 | i);

		sum = __fadd_rn(sum, *(const float *) (rows + even +
											   2 * i * GV_ROW_BYTES));
		sum = __fadd_rn(sum, *(const float *) (rows + odd +
											   (2 * i + 1) * GV_ROW_BYTES));
	}
	return sum;
}

/*
 * Adds the entries of a chunk of codes, which has `words` words and whose rows
 * begin at byte `chunk` of the table.  If chunk is a constant, the compiler
 * makes it the only immediate operand of the permutation, and moves the
 * permutation's selector to a register each time.
 */
static __device__ __forceinline__ float
gv_add_chunk(float sum, uint4 codes, int words, const char *table,
			 uint32_t chunk)
{
	sum = gv_add_word(sum, codes.x, table, chunk);
	if (words > 1)
		sum = gv_add_word(sum, codes.y, table + 8 * GV_ROW_BYTES, chunk);
	if (words > 2)
		sum = gv_add_word(sum, codes.z, table + 16 * GV_ROW_BYTES, chunk);
	if (words > 3)
		sum = gv_add_word(sum, codes.w, table + 24 * GV_ROW_BYTES, chunk);
	return sum;
}

/*
 * Returns the sum of the table entries of a posting's codes, which begin at
 * `codes`.  GROUP chunks are in flight at a time.
 */
template <int GROUP>
static __device__ __forceinline__ float
gv_add_codes(const uint4 *codes, int chunks, const char *table)
{
	float		sum = 0.0f;

	for (int first = 0; first < chunks; first += GROUP)
	{
		uint4		words[GROUP];

#pragma unroll
		for (int i = 0; i < GROUP; i++)
			if (first + i < chunks)
				words[i] = __ldcs(codes + (first + i) * GV_WARP);
#pragma unroll
		for (int i = 0; i < GROUP; i++)
			if (first + i < chunks)
				sum = gv_add_chunk(sum, words[i], GV_CHUNK_WORDS, table,
								   (first + i) * GV_CHUNK_BYTES);
	}
	return sum;
}

/*
 * Like gv_add_codes, for chunks that are loaded already.  The last chunk has
 * `words` words.
 */
template <int CHUNKS>
static __device__ __forceinline__ float
gv_add_chunks(const uint4 (&codes)[CHUNKS], int words, const char *table)
{
	float		sum = 0.0f;

#pragma unroll
	for (int i = 0; i < CHUNKS; i++)
		sum = gv_add_chunk(sum, codes[i], i + 1 < CHUNKS ? GV_CHUNK_WORDS :
						   words, table + i * GV_CHUNK_BYTES, 0);
	return sum;
}

struct GvKept
{
	uint32_t	starts[GV_KEPT];
	float		list_scores[GV_KEPT];
	const uint8_t *firsts[GV_KEPT];
};

static_assert(sizeof(GvKept) <= GV_SCAN_OWN, "room beside a table");

/* The probes of a query. */
struct GvProbes
{
	const uint32_t *starts;		/* [nprobed + 1] */
	const uint8_t *const *firsts;
	const GvProbe *probed;
	int			nprobed;

	/*
	 * Sets the pointers to a query's arrays, and copies the query's first
	 * probes to *kept unless kept is NULL.  Called by all threads of a block.
	 * The arrays always have batch.nprobe elements, so this need not know the
	 * number of probes.
	 */
	__device__ __forceinline__ void
	load(const GvBatch &batch, int query, GvKept *kept)
	{
		int			p = threadIdx.x;

		starts = batch.d_starts + (int64_t) query * (batch.nprobe + 1);
		firsts = batch.d_list_blocks + (int64_t) query * batch.nprobe;
		probed = batch.d_probed + (int64_t) query * batch.nprobe;
		if (kept != NULL && p < GV_KEPT && p < batch.nprobe)
		{
			kept->starts[p] = starts[p];
			kept->firsts[p] = firsts[p];
			kept->list_scores[p] = probed[p].base;
		}
	}

	/*
	 * Returns the last probe that starts at or before block b; called by a
	 * whole warp.
	 */
	__device__ __forceinline__ int
	find(const GvKept &kept, uint32_t b) const
	{
		int			n = 0;

#pragma unroll
		for (int first = 0; first < GV_KEPT; first += GV_WARP)
		{
			int			p = first + threadIdx.x % GV_WARP;

			n += __popc(__ballot_sync(GV_FULL_WARP,
									  p < nprobed && kept.starts[p] <= b));
		}
		if (n == GV_KEPT && nprobed > n)
			n = gv_probe_of(starts, nprobed, b) + 1;
		return n - 1;
	}

	/*
	 * Returns the address of block b, which is in list number `probe` of the
	 * query's lists, and sets *list_score to this list's score.
	 */
	__device__ __forceinline__ const uint8_t *
	block_of(const GvKept &kept, uint32_t b, int probe, int block_bytes,
			 float *list_score) const
	{
		bool		is_kept = probe < GV_KEPT;
		uint32_t	start = is_kept ? kept.starts[probe] : starts[probe];

		*list_score = is_kept ? kept.list_scores[probe] : probed[probe].base;
		return (is_kept ? kept.firsts[probe] : firsts[probe]) +
			(int64_t) (b - start) * block_bytes;
	}
};

/*
 * Begins a scan: copies a query's table to shared memory, waits for the step
 * before, and loads the query's probes.  Called by all threads of a block;
 * kept may be NULL.  Returns the number of the query's blocks, or 0 if this
 * number is not larger than `first`.
 */
template <int THREADS>
static __device__ __forceinline__ uint32_t
gv_scan_begins(const GvDeviceModel &model, const GvBatch &batch, int query,
			   uint32_t first, uint4 *table, GvKept *kept, GvProbes &probes)
{
	int			npieces = model.shape.chunks * GV_CHUNK_BYTES / GV_CHUNK;
	const uint4 *made = (const uint4 *) batch.d_tables +
		(int64_t) query * npieces;
	GvSearchCounts found;

	/* the table is older than the step before */
#pragma unroll 4
	for (int i = threadIdx.x; i < npieces; i += THREADS)
		table[i] = gv_read_before_wait(made + i);
	gv_pdl_trigger_after_wait();
	probes.load(batch, query, kept);
	found = batch.d_search_counts[query];
	probes.nprobed = found.nprobed;
	if (first >= found.nblocks)
		return 0;
	__syncthreads();
	return found.nblocks;
}

/* Returns the id of posting i of a block. */
static __device__ __forceinline__ uint64_t
gv_id_in(const uint8_t *block, const GvBlockShape &shape, int i, int probe)
{
	return gv_posting_id(((const uint32_t *) (block + shape.high))[i],
						 ((const uint16_t *) (block + shape.low))[i], probe);
}

/*
 * Stores a posting's score and id at index `to`.  live is the mask of live
 * postings of its block; the score of a dead posting is +infinity.
 */
static __device__ __forceinline__ void
gv_store_posting(const GvBatch &batch, int64_t to, uint32_t live, float score,
				 uint32_t high, uint32_t low, int probe)
{
	batch.d_scores[to] = live >> threadIdx.x % GV_WARP & 1 ?
		gv_device_score(score) : GV_INFINITY;
	if (batch.d_ids != NULL)
		batch.d_ids[to] = gv_posting_id(high, low, probe);
}
