/*
 * choose.cu
 *		The nearest lists of each query, from approximate scores and a margin
 *		(approximate.cu), with exact scores only where they decide.
 *
 * One block of threads a query, which wants its p nearest lists:
 *	1. a bound that at least p lists, and few more, do not exceed, by halving
 *	   an interval of scores and counting.  The least scores of runs of 32
 *	   lists are enough for that when p is small beside their number: a run
 *	   whose least does not exceed the bound has a list that does not.
 *	2. the lists up to the bound and the margin, into shared memory
 *	3. the same among these, since a bound from runs may be wide, unless they
 *	   are few
 *	4. their exact scores, sorted
 * When they are more than fit, step 1 takes the scores of all
 * lists; when these are still too many, or the margin is infinite, all scores
 * are computed exactly.
 *
 * Where scores do not go to memory (gv_gpu_coarse_rows), only the least ones
 * of runs, step 2 makes those of near runs again, by sums of its own, for
 * which the same proof holds; when too many are close, all of near runs are
 * scored exactly.
 */
#include "gpu/coarse/approximate.cuh"
#include "gpu/coarse/gv_coarse.h"
#include "gpu/coarse/items.cuh"
#include "gpu/coarse/number.cuh"
#include "gpu/common/sift.cuh"

#define MANY_THREADS	512		/* of a block, while there are SMs enough */
#define FEW_THREADS		128
#define FEW_QUERIES		128
#define LEAST_LISTS		1024	/* for lists in shared memory */
#define KEYS_PER_PROBE		2		/* keys of runs that are enough for a
									 * probe */
#define AT_ONCE			4		/* runs that a warp reads */
#define PASSES			(GV_RUN / (GV_WARP / GV_QUAD))	/* of a warp over a run
														 * by four lanes a
														 * list */
#define MOST_KEYS		4096	/* that the bound is found from */
#define ALL_AHEAD		24		/* loads of a score, for few queries */
#define SIFT_KEYS		20		/* of a thread, where all lists are sifted */
#define SIFT_LISTS		(SIFT_KEYS * GV_SIFT_THREADS)

/* A number of eight in half precision. */
static __device__ __forceinline__ float
half_of(const uint4 &eight, int i)
{
	uint32_t	pair = i < 2 ? eight.x : i < 4 ? eight.y : i < 6 ? eight.z :
		eight.w;

	return gv_from_half((uint16_t) (pair >> i % 2 * 16));
}

/* The last key within the margin of a bound. */
static __device__ __forceinline__ uint32_t
widen(const GvLimit &bound, float margin)
{
	return gv_ordered(gv_unordered(bound.key) + margin);
}

/* Lists whose scores [nlists] have keys up to the last. */
static __device__ __forceinline__ void
take_lists(const float *scores, int nlists, uint32_t last, GvItems &items)
{
	for (int first = threadIdx.x / GV_WARP * GV_WARP; first < nlists;
		 first += blockDim.x)
	{
		int			list = first + threadIdx.x % GV_WARP;
		uint32_t	key = list < nlists ? gv_ordered(scores[list]) :
			0xFFFFFFFFu;

		items.append(key <= last, key, list);
	}
}

/*
 * The same of runs, which are dealt to all warps, because near ones lie side
 * by side.
 */
static __device__ __forceinline__ void
take_runs(const float *scores, int nlists, const uint64_t *runs,
		  uint32_t nruns, uint32_t last, GvItems &items)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	nwarps = blockDim.x / GV_WARP;

	for (uint32_t first = threadIdx.x / GV_WARP; first < nruns;
		 first += AT_ONCE * nwarps)
	{
		uint32_t	keys[AT_ONCE];
		int			lists[AT_ONCE];

#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
		{
			uint32_t	r = first + i * nwarps;

			lists[i] = r < nruns ? (int) ((uint32_t) runs[r] * GV_RUN + lane) :
				nlists;
			keys[i] = lists[i] < nlists ? gv_ordered(scores[lists[i]]) :
				0xFFFFFFFFu;
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
			items.append(keys[i] <= last, keys[i], lists[i]);
	}
}

/*
 * By four lanes: approximate scores, as listscores.cu makes them but for the
 * order of sums, of a list and of every eighth one behind it, all that a
 * warp's lanes have of a run; of those beyond the last, the last one's.
 */
static __device__ __forceinline__ void
score_again(const GvDeviceModel &model, const uint16_t *query, int list,
			float (&scores)[PASSES])
{
	const uint4 *half_query = (const uint4 *) query;
	const uint4 *rows[PASSES];
	float		sums[PASSES] = {};

#pragma unroll
	for (int i = 0; i < PASSES; i++)
		rows[i] = (const uint4 *)
			(model.d_half_centroids +
			 (int64_t) min(list + i * GV_WARP / GV_QUAD,
										   model.nlists - 1) *
											model.half_dims);
#pragma unroll 2
	for (int d = threadIdx.x % GV_QUAD; d < model.half_dims / 8; d += GV_QUAD)
	{
		uint4		y = half_query[d];
		uint4		x[PASSES];

#pragma unroll
		for (int i = 0; i < PASSES; i++)
			x[i] = rows[i][d];
		/* products are exact */
#pragma unroll
		for (int i = 0; i < PASSES; i++)
#pragma unroll
			for (int j = 0; j < 8; j++)
				sums[i] = fmaf(half_of(x[i], j), half_of(y, j), sums[i]);
	}
#pragma unroll
	for (int i = 0; i < PASSES; i++)
	{
		sums[i] += __shfl_xor_sync(GV_FULL_WARP, sums[i], 1);
		sums[i] += __shfl_xor_sync(GV_FULL_WARP, sums[i], 2);
		scores[i] = fmaf(model.metric == GV_IP ? -1.0f : -2.0f, sums[i],
						 model.d_squares[min(list + i * GV_WARP / GV_QUAD,
											model.nlists - 1)]);
	}
}

/* The lists of runs whose scores, made again, have keys up to the last. */
static __device__ __forceinline__ void
take_runs_again(const GvDeviceModel &model, const uint16_t *query,
				const uint64_t *runs, uint32_t nruns, uint32_t last,
				GvItems &items)
{
	for (uint32_t r = threadIdx.x / GV_WARP; r < nruns;
		 r += blockDim.x / GV_WARP)
	{
		int			list = (int) ((uint32_t) runs[r] * GV_RUN +
								  threadIdx.x % GV_WARP / GV_QUAD);
		float		scores[PASSES];

		score_again(model, query, list, scores);
#pragma unroll
		for (int i = 0; i < PASSES; i++, list += GV_WARP / GV_QUAD)
		{
			uint32_t	key = gv_ordered(scores[i]);

			items.append(threadIdx.x % GV_QUAD == 0 && list < model.nlists &&
						 key <= last, key, list);
		}
	}
}

/* One query's search for its lists. */
struct Choice
{
	const GvDeviceModel &model;
	const float *query;			/* [dims] */
	const uint16_t *half_query;		/* [half_dims] of it */
	const float *scores;		/* [nlists]; NULL: only runs have any */
	const float *least;			/* [nruns] */
	float		margin;
	uint32_t	p;				/* lists wanted */
	uint32_t   *keys;			/* [nkeys] shared: of the least scores of
								 * runs */
	uint32_t	nkeys;
	uint32_t	nnear;			/* runs in close.items: only their lists; 0:
								 * all */
	GvItems		close;			/* by approximate scores */
	GvItems		nearest;		/* by exact ones */
	GvTalk		talk;
};

/* The keys of all scores, some a thread: lists i * 512 + gv_sift_mine(). */
static __device__ __forceinline__ void
load_keys(const float *scores, int nlists, uint32_t (&keys)[SIFT_KEYS])
{
#pragma unroll
	for (int i = 0; i < SIFT_KEYS; i++)
	{
		int			list = i * GV_SIFT_THREADS + gv_sift_mine();

		keys[i] = list < nlists ? gv_ordered(scores[list]) : GV_SIFT_NONE;
	}
}

/*
 * How many keys runs have: run i has key i % nkeys.  Near runs are neighbors,
 * and so have keys of their own.
 */
static __host__ __device__ inline uint32_t
keys_of(int nlists)
{
	return min(gv_nruns(nlists), MOST_KEYS);
}

/*
 * The keys that the bound of runs is found from, by reading again and again.
 */
static __device__ __forceinline__ void
load_least(const Choice &choice)
{
	int			nruns = gv_nruns(choice.model.nlists);

	for (uint32_t i = threadIdx.x; i < choice.nkeys; i += blockDim.x)
	{
		float		least = choice.least[i];

		for (int run = i + choice.nkeys; run < nruns; run += choice.nkeys)
			least = fminf(least, choice.least[run]);
		choice.keys[i] = gv_ordered(least);
	}
	__syncthreads();
}

/*
 * Steps 1 and 2 of few queries and not too many lists: all scores at once in
 * registers, a bound as in a sift, which takes a tenth of the time of halving.
 * False, with nothing gathered: too many are close.
 */
static __device__ __forceinline__ bool
gather_at_once(Choice &choice, const uint32_t (&keys)[SIFT_KEYS],
			   uint32_t (&bounds)[GV_SIFT_WARPS])
{
	GvLimit		bound = {};
	uint32_t	last;
	uint32_t	mine = 0;
	uint32_t	at;

	bound.key = gv_sift_bound(keys, (int) choice.p, bounds);
	last = min(widen(bound, choice.margin), GV_SIFT_NONE - 1);
#pragma unroll
	for (int i = 0; i < SIFT_KEYS; i++)
		mine += keys[i] <= last;
	at = gv_reserve(mine, choice.close.count);
#pragma unroll
	for (int i = 0; i < SIFT_KEYS; i++)
		if (keys[i] <= last)
			choice.close.put(at++, keys[i],
							 i * GV_SIFT_THREADS + gv_sift_mine());
	if (choice.close.total() <= choice.close.capacity)
		return true;
	choice.close.clear();
	return false;
}

/*
 * Near runs have too many close lists: all of theirs are to be scored exactly.
 */
static __device__ __forceinline__ void
keep_runs(Choice &choice)
{
	choice.nnear = *choice.nearest.count;
	for (uint32_t i = threadIdx.x; i < choice.nnear; i += blockDim.x)
		choice.close.items[i] = choice.nearest.items[i];
	choice.nearest.clear();
}

/*
 * Steps 1 and 2: close holds all lists that may be among the nearest, unless
 * it is GV_COARSE_EXACT.  FEW: by keys, if it can.
 */
template <bool FEW>
static __device__ __forceinline__ GvCoarseWay
gather(Choice &choice, const uint32_t (&keys)[SIFT_KEYS],
	   uint32_t (&bounds)[GV_SIFT_WARPS])
{
	int			nlists = choice.model.nlists;
	uint32_t	spare = choice.p / 8 + 4;
	GvLimit		bound;

	if (!(choice.margin < FLT_MAX))
		return GV_COARSE_EXACT;
	if (FEW && gather_at_once(choice, keys, bounds))
		return GV_COARSE_ALL;
	if (choice.p * KEYS_PER_PROBE <= choice.nkeys)
	{
		GvItems	   &runs = choice.nearest;	/* not needed before step 3 */
		uint32_t	last;

		load_least(choice);
		bound = gv_find_bound(GvSharedKeys {choice.keys}, choice.nkeys, choice.p,
							  spare, choice.talk);
		last = widen(bound, choice.margin);
		take_lists(choice.least, gv_nruns(nlists), last, runs);
		if (runs.total() <= runs.capacity)
		{
			if (choice.scores != NULL)
				take_runs(choice.scores, nlists, runs.items, *runs.count, last,
						  choice.close);
			else
				take_runs_again(choice.model, choice.half_query, runs.items,
								*runs.count, last, choice.close);
			if (choice.close.total() > choice.close.capacity &&
				choice.scores == NULL)
			{
				keep_runs(choice);
				return GV_COARSE_EXACT;
			}
			runs.clear();
			if (*choice.close.count <= choice.close.capacity)
				return choice.scores != NULL ? GV_COARSE_RUNS :
					GV_COARSE_LEAST;
			choice.close.clear();
		}
		else
			runs.clear();
	}
	if (choice.scores == NULL)
		return GV_COARSE_EXACT;
	bound = gv_find_bound(GvScoreKeys {choice.scores}, nlists, choice.p, spare,
					   choice.talk);
	take_lists(choice.scores, nlists, widen(bound, choice.margin),
			   choice.close);
	return choice.close.total() <= choice.close.capacity ? GV_COARSE_ALL :
		GV_COARSE_EXACT;
}

/* Step 3: those close ones that may still be, to nearest. */
static __device__ __forceinline__ void
narrow(Choice &choice)
{
	const uint64_t *items = choice.close.items;
	uint32_t	n = *choice.close.count;
	uint32_t	last = 0xFFFFFFFFu;

	/* what all lanes score at once need not be fewer */
	if (n > blockDim.x / GV_QUAD)
		last = widen(gv_find_bound(GvItemKeys {items}, n, choice.p, choice.p / 16,
								choice.talk), choice.margin);
	for (uint32_t first = threadIdx.x / GV_WARP * GV_WARP; first < n;
		 first += blockDim.x)
	{
		uint32_t	i = first + threadIdx.x % GV_WARP;
		uint64_t	item = i < n ? items[i] : GV_LAST_ITEM;

		choice.nearest.append(i < n && (uint32_t) (item >> 32) <= last,
							  (uint32_t) (item >> 32), (uint32_t) item);
	}
}

/*
 * The nearest of all lists, or of those of near runs, by exact scores, sorted:
 * as many at a time as there is memory for beside the nearest so far.
 */
template <bool PRODUCT>
static __device__ __forceinline__ void
take_exactly(Choice &choice)
{
	const GvDeviceModel &model = choice.model;
	GvItems	   &nearest = choice.nearest;
	uint32_t	all = choice.nnear > 0 ? choice.nnear * GV_RUN :
		(uint32_t) model.nlists;
	uint32_t	kept = 0;

	for (uint32_t done = 0; done < all;)
	{
		uint32_t	n = min(nearest.capacity - kept, all - done);

		for (uint32_t i = threadIdx.x; i < nearest.capacity - kept;
			 i += blockDim.x)
		{
			uint32_t	list = done + i;

			if (choice.nnear > 0 && i < n)
				list = (uint32_t) choice.close.items[list / GV_RUN] * GV_RUN +
					list % GV_RUN;
			nearest.items[kept + i] = i < n && list < (uint32_t) model.nlists ?
				list : GV_LAST_ITEM;
		}
		__syncthreads();
		gv_score_items<PRODUCT, GV_AHEAD>(model, choice.query,
									   nearest.items + kept, n);
		gv_sort_items(nearest.items, nearest.capacity);
		done += n;
		kept = min(choice.p, done);
	}
	if (threadIdx.x == 0)
		*nearest.count = kept;
}

/* Lists that there is memory for; a power of 2. */
static __host__ __device__ inline uint32_t
capacity_for(int32_t probes)
{
	uint32_t	capacity = LEAST_LISTS;

	while (capacity < 2 * (uint32_t) probes)
		capacity *= 2;
	return capacity;
}

/*
 * Query blockIdx.x; alone: only runs have scores.  Shared: two GvItems
 * [capacity], and keys.  Of many queries eight blocks share an SM, since each
 * waits most of the time; a lone query's has more registers for loads.
 */
template <bool PRODUCT, bool FEW>
static __global__ void __launch_bounds__(MANY_THREADS, FEW ? 1 : 2)
choose_kernel(GvDeviceModel model, GvBatch batch, bool alone)
{
	GV_SHARED(memory);
	alignas(16) __shared__ uint32_t bounds[GV_SIFT_WARPS];
	__shared__ uint32_t said[2][GV_WARP];
	__shared__ uint32_t counts[2];
	__shared__ float margin;
	int64_t		query = blockIdx.x;
	uint32_t	capacity = capacity_for(batch.probes);
	uint64_t   *items = (uint64_t *) memory + capacity;

	gv_step_follows();

	Choice		choice = {model, batch.d_queries + query * model.dims,
		batch.approx.d_half_queries + query * model.half_dims,
		alone ? NULL : batch.d_coarse + query * model.nlists,
		batch.approx.d_least + query * gv_nruns(model.nlists),
		0.0f,
		(uint32_t) min(batch.d_wanted[query].probes, model.nlists),
		(uint32_t *) (items + capacity), keys_of(model.nlists),
		0,
		{(uint64_t *) memory, &counts[0], capacity},
		{items, &counts[1], capacity},
		{said, 0}
	};
	uint32_t	keys[SIFT_KEYS] = {};
	uint32_t	sorted = 1;
	uint32_t	n;
	GvCoarseWay	way;

	if (FEW)					/* on their way while the margin is computed */
		load_keys(choice.scores, model.nlists, keys);
	if (threadIdx.x < 2)
		counts[threadIdx.x] = 0;
	if (threadIdx.x < GV_WARP)
		margin = gv_approx_margin_of(model, batch, (int) query);
	__syncthreads();
	choice.margin = margin;
	if (choice.p > 0)			/* a batch's spare places want none */
	{
		way = gather<FEW>(choice, keys, bounds);
		if (way == GV_COARSE_EXACT)
			take_exactly<PRODUCT>(choice);
		else
			narrow(choice);
		n = choice.nearest.total();
		if (way != GV_COARSE_EXACT)
			gv_score_items<PRODUCT, FEW ? ALL_AHEAD : GV_AHEAD>(model,
															 choice.query,
															 items, n);
		if (n <= blockDim.x / GV_QUAD)
			gv_rank_items(items, n);
		else
		{
			while (sorted < n)
				sorted *= 2;
			for (uint32_t i = n + threadIdx.x; i < sorted; i += blockDim.x)
				items[i] = GV_LAST_ITEM;
			gv_sort_items(items, sorted);
		}
		GV_TEST_ONLY(if (threadIdx.x == 0)
					 atomicAdd(&batch.approx.d_ways[way], 1u);)
	}
	gv_number_lists(model, batch, (int) query, (int) choice.p, [&](int i)
	{
		return GvNearestList {(uint32_t) (items[i] >> 32), (uint32_t) items[i]};
	});
}

template <bool PRODUCT, bool FEW>
static GvStatus
launch(const GvDeviceModel *model, const GvBatch *batch, int threads,
	   cudaStream_t stream)
{
	int			bytes =
		(int) (2 * capacity_for(batch->probes) * sizeof(uint64_t) +
							   keys_of(model->nlists) * sizeof(uint32_t));

	return gv_launch_step(choose_kernel<PRODUCT, FEW>, batch->n, threads,
						  bytes, stream, model, batch,
						  gv_gpu_least_alone(model, batch));
}

/*
 * d_probed, d_starts and nprobed of a batch, from what gv_gpu_list_scores
 * found.
 */
GvStatus
gv_gpu_choose(const GvDeviceModel *model, const GvBatch *batch,
			  cudaStream_t stream)
{
	bool		few = batch->n <= FEW_QUERIES;
	bool		sift = few && model->nlists <= SIFT_LISTS &&
		batch->probes <= GV_SIFT_MOST && !gv_gpu_least_alone(model, batch);

	if (model->metric == GV_IP)
		return sift ? launch<true, true>(model, batch, MANY_THREADS, stream) :
			launch<true, false>(model, batch, few ? MANY_THREADS : FEW_THREADS,
								stream);
	return sift ? launch<false, true>(model, batch, MANY_THREADS, stream) :
		launch<false, false>(model, batch, few ? MANY_THREADS : FEW_THREADS,
							 stream);
}
