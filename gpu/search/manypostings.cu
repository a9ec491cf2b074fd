/*
 * manypostings.cu
 *		Selects the best postings of a search that asks for too many of them to
 *		be sorted by one block of threads.
 *
 * Scores are spread about evenly between the least and the greatest one, so
 * bins of equal width have few postings each (bins.cuh).  Of all queries of a
 * batch together,
 *
 * range_kernel		finds the least and the greatest score
 * count_kernel		counts the postings of each bin
 * take_kernel		finds the last bin that has one of the k best postings, and
 *					stores the postings of the bins up to it, bin by bin
 * rank_kernel		counts which postings of its bin are before each of these,
 *					which gives its place in the answer, and writes it there
 *
 * Nothing depends on how many blocks a query has.  If all scores fall into one
 * bin, as those of copies of one row do, a posting's count ends as soon as it
 * exceeds k.  So a query costs at most n * k comparisons, mostly much less.
 * CUB's sort, which takes the queries one by one and sorts all postings, took
 * 100 us longer for one query of 500 lists (RESULTS, "card").
 */
#include <algorithm>

#include "gpu/search/answers.cuh"
#include "gpu/search/bins.cuh"
#include "gpu/search/listscan.cuh"
#include "gpu/search/search.h"

#define THREADS			GV_BINS_THREADS
#define MOST_POSTINGS	(INT64_C(1) << 20)	/* of a query */
#define LEAST_SHARE		4096	/* postings that are worth a block */
#define LOOKED			32		/* postings compared until k is checked */

/* A query's bins, which are cleared before the first kernel. */
struct ManyBins
{
	uint32_t	least;			/* the complement of the least key */
	uint32_t	most;			/* the greatest key */
	uint32_t	nlive;			/* postings that are not dead */
	uint32_t	ntaken;			/* postings that take_kernel stores */
	uint32_t	counts[GV_BINS];	/* postings of each bin */
	uint32_t	stored[GV_BINS];	/* how many of them are stored */
	uint32_t	begins[GV_BINS + 1];	/* the first place of each bin that is
										 * taken, and the end of the last one */
};

/* A stored posting: its key, row id and probe. */
typedef uint4 Posting;

/* -- what all kernels do */

/* The postings of a query that a block takes: every n-th run of THREADS. */
struct Postings
{
	const float *scores;
	uint32_t	n;

	__device__ __forceinline__
	Postings(const GvBatch &batch, int query) :
		scores(batch.d_scores + (int64_t) query * batch.postings),
		n((uint32_t) min((int64_t) batch.d_search_counts[query].nblocks *
						 GV_BLOCK, batch.postings))
	{
	}

	/* Calls visit(i, key) for each posting of the block that is not dead. */
	template <typename Visit>
	__device__ __forceinline__ void
	each(Visit visit) const
	{
		uint32_t	dead = gv_ordered(GV_INFINITY);

		for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < n;
			 i += gridDim.x * THREADS)
		{
			uint32_t	key = gv_ordered(scores[i]);

			if (key < dead)
				visit(i, key);
		}
	}
};

static __device__ __forceinline__ ManyBins &
bins_of(const GvBatch &batch, int query)
{
	return ((ManyBins *) batch.d_bins)[query];
}

/* The bin of a key.  If bins cannot separate the keys, all are in one bin. */
struct Scale
{
	GvBinScale	scale;
	bool		separates;

	__device__ __forceinline__
	Scale(const ManyBins &bins)
	{
		separates = scale.set(~bins.least, bins.most);
	}

	__device__ __forceinline__ uint32_t
	bin(uint32_t key) const
	{
		return separates ? scale.bin(key) : 0;
	}
};

/* Returns the number of postings that the query's answer has. */
static __device__ __forceinline__ uint32_t
count_hits(const GvBatch &batch, int query)
{
	return min((uint32_t) batch.d_params[query].k,
			   bins_of(batch, query).nlive);
}

/* -- the kernels; block (x, y) takes a share of query y */

static __global__ void __launch_bounds__(THREADS)
range_kernel(GvBatch batch)
{
	int			query = blockIdx.y;
	ManyBins   &bins = bins_of(batch, query);
	uint32_t	least = 0;
	uint32_t	most = 0;
	uint32_t	nlive = 0;

	Postings(batch, query).each([&](uint32_t, uint32_t key)
	{
		least = max(least, ~key);
		most = max(most, key);
		nlive++;
	});
	least = __reduce_max_sync(GV_FULL_WARP, least);
	most = __reduce_max_sync(GV_FULL_WARP, most);
	nlive = __reduce_add_sync(GV_FULL_WARP, nlive);
	if (threadIdx.x % GV_WARP == 0 && nlive > 0)
	{
		atomicMax(&bins.least, least);
		atomicMax(&bins.most, most);
		atomicAdd(&bins.nlive, nlive);
	}
}

static __global__ void __launch_bounds__(THREADS)
count_kernel(GvBatch batch)
{
	__shared__ uint32_t counts[GV_BINS];
	int			query = blockIdx.y;
	ManyBins   &bins = bins_of(batch, query);
	Scale		scale(bins);

	for (int b = threadIdx.x; b < GV_BINS; b += THREADS)
		counts[b] = 0;
	__syncthreads();
	Postings(batch, query).each([&](uint32_t, uint32_t key)
	{
		atomicAdd(&counts[scale.bin(key)], 1u);
	});
	__syncthreads();
	for (int b = threadIdx.x; b < GV_BINS; b += THREADS)
		if (counts[b] > 0)
			atomicAdd(&bins.counts[b], counts[b]);
}

static __global__ void __launch_bounds__(THREADS)
take_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ GvBins sums;
	int			query = blockIdx.y;
	ManyBins   &bins = bins_of(batch, query);
	const uint32_t *starts = batch.d_starts +
		(int64_t) query * (batch.nprobe + 1);
	const uint8_t **blocks = batch.d_list_blocks +
		(int64_t) query * batch.nprobe;
	int			nprobed = batch.d_search_counts[query].nprobed;
	Posting    *stored = (Posting *) batch.d_stored + (int64_t) query *
		batch.postings;
	uint32_t	nhits = count_hits(batch, query);
	Scale		scale(bins);

	if (nhits == 0)
	{
		if (blockIdx.x == 0 && threadIdx.x == 0)
			batch.d_search_counts[query].nhits = 0;
		return;
	}

	/* 1. where each bin begins; each block computes this again */
	for (int b = threadIdx.x; b < GV_BINS; b += THREADS)
		sums.ends[b] = bins.counts[b];
	gv_bins_sum(sums, nhits);
	if (blockIdx.x == 0)
	{
		for (uint32_t b = threadIdx.x; b <= sums.last; b += THREADS)
			bins.begins[b] = sums.ends[b];
		if (threadIdx.x == 0)
		{
			bins.begins[sums.last + 1] = sums.taken;
			bins.ntaken = sums.taken;
			batch.d_search_counts[query].nhits = (int32_t) nhits;
		}
	}

	/* 2. store the postings of the bins that are taken */
	Postings(batch, query).each([&](uint32_t i, uint32_t key)
	{
		uint32_t	bin = scale.bin(key);
		uint32_t	b = i / GV_BLOCK;
		uint64_t	rowid;
		int			probe;

		if (bin > sums.last)
			return;
		probe = gv_probe_of(starts, nprobed, b);
		rowid = gv_id_in(blocks[probe] + (int64_t) (b - starts[probe]) *
						 model.shape.block_bytes, model.shape, i % GV_BLOCK,
						 0) >> 16;
		stored[sums.ends[bin] + atomicAdd(&bins.stored[bin], 1u)] =
			make_uint4((uint32_t) probe, (uint32_t) rowid,
					   (uint32_t) (rowid >> 32), key);
	});
}

/* Returns whether posting number i is before posting number j, i != j. */
static __device__ __forceinline__ bool
is_before(const Posting &a, uint32_t i, const Posting &b, uint32_t j)
{
	if (a.w != b.w)
		return a.w < b.w;
	if (a.z != b.z)
		return a.z < b.z;
	if (a.y != b.y)
		return a.y < b.y;
	/* a row that is stored twice */
	return a.x != b.x ? a.x < b.x : i < j;
}

static __global__ void __launch_bounds__(THREADS)
rank_kernel(GvBatch batch)
{
	int			query = blockIdx.y;
	const ManyBins &bins = bins_of(batch, query);
	const Posting *stored = (const Posting *) batch.d_stored +
		(int64_t) query * batch.postings;
	uint32_t	nhits = count_hits(batch, query);
	Scale		scale(bins);

	if (nhits == 0)
		return;
	for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < bins.ntaken;
		 i += gridDim.x * THREADS)
	{
		Posting		mine = stored[i];
		uint32_t	bin = scale.bin(mine.w);
		uint32_t	rank = bins.begins[bin];
		uint32_t	end = bins.begins[bin + 1];

		for (uint32_t j = rank; j < end && rank < nhits;)
			for (uint32_t stop = min(end, j + LOOKED); j < stop; j++)
				rank += j != i && is_before(stored[j], j, mine, i);
		if (rank < nhits)
			gv_download_hit(batch, (int64_t) query * batch.k + rank, mine.w,
							(uint64_t) mine.z << 32 | mine.y, mine.x);
	}
}

/* -- the step */

bool
gv_gpu_bins_postings(const GvBatch *batch)
{
	return gv_gpu_sorts_postings(batch) && batch->postings <= MOST_POSTINGS;
}

void
gv_gpu_place_bins(GvBatch *batch, char *memory, size_t *bytes)
{
	gv_place((ManyBins **) &batch->d_bins, memory, bytes, batch->n);
	gv_place((Posting **) &batch->d_stored, memory, bytes,
			 batch->n * batch->postings);
}

GvStatus
gv_gpu_bin_postings(const GvDeviceModel *model, const GvBatch *batch,
					const GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int64_t		share = std::max<int64_t>(LEAST_SHARE, batch->n *
										  batch->postings /
										  (2 * searcher->nsms));
	dim3		grid(gv_blocks_for(batch->postings, (int) share), batch->n);

	if (batch->postings == 0)
		return GV_OK;
	GV_CUDA_TRY(gv_clear((ManyBins *) batch->d_bins, batch->n, stream));
	GV_TRY(gv_launch(range_kernel, grid, THREADS, 0, stream, *batch));
	GV_TRY(gv_launch(count_kernel, grid, THREADS, 0, stream, *batch));
	GV_TRY(gv_launch(take_kernel, grid, THREADS, 0, stream, *model, *batch));
	return gv_launch(rank_kernel, grid, THREADS, 0, stream, *batch);
}
