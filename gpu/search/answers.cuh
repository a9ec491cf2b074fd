/*
 * answers.cuh
 *		Stores the chosen lists of a query as probes and numbers their blocks,
 *		and writes a batch's answers to the host's memory.
 */
#include "gpu/device/kbound.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/device/warpselect.cuh"
#include "gpu/search/search.h"

/* The shared memory of gv_number_lists: sums over each warp's probes. */
struct GvNumbering
{
	uint32_t	nblocks[GV_WARP];
	int64_t		postings[GV_WARP];
};

/*
 * Stores a query's k probes, the number of each probe's first block, and the
 * addresses of the lists' blocks, so that the scan need not read the lists.
 * Called by all threads of a block.  at(i) returns the i-th nearest list, a
 * GvListItem, and list_at(i, item) returns its GvDeviceList.  Each thread
 * takes EACH consecutive probes at a time, so that the loads of their lists
 * are in flight together.
 */
template <int EACH, typename At, typename ListAt>
static __device__ __forceinline__ void
gv_number_lists(const GvBatch &batch, int query, int k, At at, ListAt list_at,
				GvNumbering &numbering)
{
	int64_t		first_probe = (int64_t) query * batch.nprobe;
	uint32_t   *starts = batch.d_starts + (int64_t) query * (batch.nprobe + 1);
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	bool		is_warp = lane < (int) blockDim.x / GV_WARP;
	uint32_t	sum = 0;
	int64_t		postings = 0;

	for (int done = 0; done < k; done += EACH * blockDim.x)
	{
		int			first = done + threadIdx.x * EACH;
		uint32_t	nblocks[EACH];
		uint32_t	mine = 0;
		uint32_t	upto;
		uint32_t	of_warp;
		uint32_t	begin;
		int64_t		live = 0;

#pragma unroll
		for (int e = 0; e < EACH; e++)
		{
			int			i = first + e;
			GvDeviceList list = {};

			if (i < k)
			{
				GvListItem	near = at(i);

				list = list_at(i, near);
				batch.d_probed[first_probe + i] =
					{(int32_t) near.list, gv_unordered(near.key)};
				if (batch.d_list_blocks != NULL)
					batch.d_list_blocks[first_probe + i] = list.d_blocks;
			}
			nblocks[e] = list.nblocks;
			mine += list.nblocks;
			live += list.nlive;
		}
		upto = gv_upto_lane(mine);
		live = gv_add_warp(live);
		if (done > 0)
			__syncthreads();
		if (lane == GV_WARP - 1)
		{
			numbering.nblocks[warp] = upto;
			numbering.postings[warp] = live;
		}
		__syncthreads();
		of_warp = is_warp ? numbering.nblocks[lane] : 0;
		begin = sum + upto - mine +
			__reduce_add_sync(GV_FULL_WARP, lane < warp ? of_warp : 0);
		sum += __reduce_add_sync(GV_FULL_WARP, of_warp);
		postings += gv_add_warp(is_warp ? numbering.postings[lane] : 0);
#pragma unroll
		for (int e = 0; e < EACH; e++)
		{
			if (first + e < k)
				starts[first + e] = begin;
			begin += nblocks[e];
		}
	}
	if (threadIdx.x == 0)
	{
		starts[k] = sum;
		batch.d_search_counts[query] = {k, k, 0, sum, postings, 0};
	}
}

/* Like the function above, but reads the lists from model.d_lists. */
template <int EACH, typename At>
static __device__ __forceinline__ void
gv_number_lists(const GvDeviceModel &model, const GvBatch &batch, int query,
				int k, At at, GvNumbering &numbering)
{
	gv_number_lists<EACH>(batch, query, k, at,
						  [&](int, const GvListItem &near)
	{
		return model.d_lists[near.list];
	}, numbering);
}

/*
 * ----
 * Writes of answers to the host's memory by the last steps of a batch.
 *
 * These writes cross the bus, so they are long and consecutive if possible,
 * and no thread reads host memory that it wrote.
 */

static_assert(sizeof(GvHit) == sizeof(uint4), "hits are written whole");

/*
 * Returns whether the selection writes the answers to host memory.  If there
 * is a step for bounds or distances, that step writes them instead: a step
 * ends only when its writes have crossed the bus, so the last step would have
 * to wait for the writes of the selection.
 */
static __device__ __forceinline__ bool
gv_select_downloads(const GvBatch &batch)
{
	return batch.out_bounds == NULL && batch.out_distances == NULL;
}

/* Writes a GvHit. rowid contains the 48 bits of the row id. */
static __device__ __forceinline__ void
gv_download_hit(const GvBatch &batch, int64_t at, uint32_t key, uint64_t rowid,
				uint32_t probe)
{
	uint32_t	high = (uint32_t) (rowid >> 16);
	uint4		hit = make_uint4(__float_as_uint(gv_unordered(key)), probe,
								 high >> 16 | high << 16,
								 (uint32_t) rowid & 0xFFFF);

	if (gv_select_downloads(batch))
		batch.out_hits[at] = hit;
	else
		batch.d_hits[at] = hit;
}

/* Reads a query's counts before a step's wait; see gv_read_before_wait. */
static __device__ __forceinline__ GvSearchCounts
gv_counts_before_wait(const GvBatch &batch, int query)
{
	static_assert(sizeof(GvSearchCounts) == 4 * sizeof(uint64_t),
				  "four words");
	const uint64_t *from = (const uint64_t *) &batch.d_search_counts[query];
	union
	{
		uint64_t	words[4];
		GvSearchCounts found;
	};

	for (int i = 0; i < 4; i++)
		words[i] = gv_read_before_wait(from + i);
	return found;
}

/*
 * Writes the probes that are in a query's answer to host memory; called by all
 * threads of a block.
 */
static __device__ __forceinline__ void
gv_download_probes(const GvBatch &batch, int query, int nlisted)
{
	int64_t		first = (int64_t) query * batch.nprobe;

	for (int p = threadIdx.x;
		 p < nlisted && batch.out_probed != batch.d_probed; p += blockDim.x)
		batch.out_probed[first + p] = batch.d_probed[first + p];
}

/*
 * Writes the counts of a query that has nhits hits; called by one thread.  The
 * scan has counted the postings that satisfy the query's condition.  A padding
 query has no probes, and its counts are not written to host memory,
 * because its place there belongs to the next sub-batch.
 */
static __device__ __forceinline__ void
gv_download_counts(const GvBatch &batch, int query, GvSearchCounts found,
				   int nhits)
{
	found.nhits = nhits;
	found.matched = batch.tests > 0 ? batch.d_nscores[query] : 0;
	batch.d_search_counts[query] = found;
	if (gv_select_downloads(batch) && found.nprobed > 0)
		batch.out_counts[query] = found;
}

/* Sampled blocks of a warp whose scores are in flight at once. */
#define GV_NEAR_AT_ONCE	16

/*
 * Writes a query's probes and counts to host memory, if the selection did not.
 * Called by all threads of a block.
 */
static __device__ __forceinline__ void
gv_download_found(const GvBatch &batch, int query, GvSearchCounts found)
{
	gv_download_probes(batch, query, found.nlisted);
	if (threadIdx.x == 0 && found.nprobed > 0 &&
		batch.out_counts != batch.d_search_counts)
		batch.out_counts[query] = found;
}

/*
 * Returns the refine record or row of a hit, which is number `at` of the
 * batch's hits, or NULL.  If the hit does not exist, the result is
 * meaningless.
 */
static __device__ __forceinline__ const uint8_t *
gv_find_item(const GvDeviceModel &model, const GvBatch &batch, int64_t at,
			 uint4 hit)
{
	const GvDevicePage *table;

	if (batch.d_items != NULL)
		return batch.d_items[at];
	table = model.d_tables[hit.z & 0xFFFF];
	return table == NULL ? NULL :
		gv_item_at(model, table[hit.z >> 16], hit.w);
}

/*
 * Counts the postings in a query's nblocks sampled blocks whose scores do not
 * exceed `last`, as far as they are in the given one of GV_COUNT_PARTS parts.
 * Called by all threads of a block; each warp takes GV_NEAR_AT_ONCE sampled
 * blocks at a time.  Only the first thread gets the result.
 */
template <int THREADS>
static __device__ __forceinline__ GvSampleCount
gv_count_near(const GvBatch &batch, int query, int part, uint32_t nblocks,
			  float last)
{
	constexpr int block_warps = THREADS / GV_WARP;
	constexpr int warps = GV_COUNT_PARTS * block_warps;
	__shared__ GvSampleCount counted[block_warps];
	int			warp = part * block_warps + threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;
	const float *scores = batch.d_sampled + (int64_t) query * batch.postings +
		lane;
	GvSampleCount near = {};

	for (uint32_t first = warp; first < nblocks;
		 first += warps * GV_NEAR_AT_ONCE)
	{
		float		some[GV_NEAR_AT_ONCE];

#pragma unroll
		for (int i = 0; i < GV_NEAR_AT_ONCE; i++)
			if (first + i * warps < nblocks)
				some[i] = scores[(int64_t) (first + i * warps) * GV_WARP];
#pragma unroll
		for (int i = 0; i < GV_NEAR_AT_ONCE; i++)
		{
			int			count =
				__popc(__ballot_sync(GV_FULL_WARP,
									 first + i * warps < nblocks &&
									 some[i] <= last));

			near.postings += count;
			near.squares += count * count;
		}
	}
	if (lane == 0)
		counted[threadIdx.x / GV_WARP] = near;
	__syncthreads();
	near = counted[0];
	for (int w = 1; w < block_warps; w++)
	{
		near.postings += counted[w].postings;
		near.squares += counted[w].squares;
	}
	return near;
}

/*
 * Writes one of GV_COUNT_PARTS parts of a query's counts: of each probe that
 * is in the answer, the number of matching postings; and if the query asks
 * about the sample, how many sampled postings are at most as far as hit number
 * `rank`, or as the query's limit.  Called by all THREADS threads of a block.
 * The hits must be on the device.
 */
template <int THREADS>
static __device__ __forceinline__ void
gv_download_matches(const GvBatch &batch, int query, int part,
					const GvSearchCounts &found)
{
	int64_t		first_probe = (int64_t) query * batch.nprobe;
	int64_t		first_hit = (int64_t) query * batch.k;
	GvSampleCount near = {};
	GvSampleQuery asked;

	for (int p = part * THREADS + threadIdx.x; p < found.nlisted;
		 p += GV_COUNT_PARTS * THREADS)
		batch.out_matches[first_probe + p] = batch.d_matches[first_probe + p];
	/* a padding query's place in host memory belongs to the next sub-batch */
	if (!batch.sampled || found.nprobed == 0)
		return;
	asked = batch.d_sample_queries[query];
	if (asked.rank > 0 && found.nhits >= asked.rank)
		asked.limit = __uint_as_float(batch.d_hits[first_hit +
												   asked.rank - 1].x);
	if (asked.rank < 0 || (asked.rank > 0 && found.nhits >= asked.rank))
		near = gv_count_near<THREADS>(batch, query, part,
									  batch.d_nsampled[query], asked.limit);
	if (threadIdx.x == 0)
		batch.out_sample[(int64_t) query * GV_COUNT_PARTS + part] = near;
}
