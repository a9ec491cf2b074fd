/*
 * choose.cu
 *		The nearest lists of each query, from approximate scores and a margin
 *		(near.cu), with exact scores only where they decide.
 *
 * One block of threads a query, which wants its p nearest lists:
 *	1. a bound that at least p lists, and few more, do not exceed, by halving an
 *	   interval of scores and counting.  The least scores of runs of 32 lists
 *	   are enough for that when p is small beside their number: a run whose
 *	   least does not exceed the bound has a list that does not.
 *	2. the lists up to the bound and the margin, into shared memory
 *	3. the same among these, since a bound from runs may be wide
 *	4. their exact scores, sorted
 * When they are more than there is room for, step 1 takes the scores of all
 * lists; when these are still too many, or the margin is infinite, all scores
 * are computed exactly and take the place of the approximate ones.
 */
#include "select.cuh"
#include "near.cuh"
#include "score.cuh"

#define MANY_THREADS	512		/* of a block, while there are SMs enough */
#define FEW_THREADS		128
#define FEW_QUERIES		128
#define LEAST_ROOM		1024	/* for lists in shared memory; a power of 2 */
#define RUN_SHARE		2		/* so many runs to a probe are enough */
#define BY_VALUE		16		/* first so many times values are halved */
#define AT_ONCE			4		/* runs that a warp reads */
#define LAST_ITEM		UINT64_C(0xFFFFFFFFFFFFFFFF)

/* What the threads of a block tell each other, one barrier a time. */
struct Talk
{
	uint32_t	(*said)[GV_WARP];	/* [2], in turn; a number of each warp */
	int			turn;

	/* This lane's of the numbers of all warps; 0 when there are fewer. */
	__device__ __forceinline__ uint32_t
	tell(uint32_t warps_number)
	{
		uint32_t	lane = threadIdx.x % GV_WARP;

		turn ^= 1;
		if (lane == 0)
			said[turn][threadIdx.x / GV_WARP] = warps_number;
		__syncthreads();
		return lane < blockDim.x / GV_WARP ? said[turn][lane] : 0;
	}

	/* The sum of all threads' numbers. */
	__device__ __forceinline__ uint32_t
	sum(uint32_t mine)
	{
		mine = tell(__reduce_add_sync(GV_FULL_WARP, mine));
		return __reduce_add_sync(GV_FULL_WARP, mine);
	}

	/* The largest. */
	__device__ __forceinline__ uint32_t
	most(uint32_t mine)
	{
		mine = tell(__reduce_max_sync(GV_FULL_WARP, mine));
		return __reduce_max_sync(GV_FULL_WARP, mine);
	}
};

/* count keys do not exceed key; lower is one that fewer than p do not. */
struct Bound
{
	uint32_t	key;
	uint32_t	count;			/* >= p */
	uint32_t	lower;
	uint32_t	lower_count;	/* < p */
};

/*
 * A bound of keys(0) .. keys(n - 1) with a count of at most p + spare.  When
 * more than that are equal, key is theirs and lower the number before it.
 */
template <typename Keys>
static __device__ __forceinline__ Bound
find_bound(const Keys &keys, uint32_t n, uint32_t p, uint32_t spare,
		   Talk &talk)
{
	uint32_t	least = 0xFFFFFFFFu;
	uint32_t	most = 0;
	Bound		bound;

	for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
	{
		uint32_t	key = keys(i);

		least = min(least, key);
		most = max(most, key);
	}
	/* no float has key 0 */
	bound.lower = ~talk.most(~least) - 1;
	bound.lower_count = 0;
	bound.key = talk.most(most);
	bound.count = n;
	for (int round = 0; bound.count > p + spare &&
		 bound.lower + 1 < bound.key; round++)
	{
		uint32_t	middle = bound.lower + (bound.key - bound.lower) / 2;
		uint32_t	count = 0;

		/* scores lie evenly between bounds, keys do not; but keys end */
		if (round < BY_VALUE)
		{
			uint32_t	value = gv_ordered(0.5f * gv_unordered(bound.lower) +
										   0.5f * gv_unordered(bound.key));

			if (value > bound.lower && value < bound.key)
				middle = value;
		}
		for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
			count += keys(i) <= middle;
		count = talk.sum(count);
		if (count >= p)
		{
			bound.key = middle;
			bound.count = count;
		}
		else
		{
			bound.lower = middle;
			bound.lower_count = count;
		}
	}
	return bound;
}

/* Lists in shared memory: items are key << 32 | list. */
struct Items
{
	uint64_t   *items;			/* [room] */
	uint32_t   *count;			/* shared; may exceed room */
	uint32_t	room;

	/* Append the items of those lanes of a warp that have one. */
	__device__ __forceinline__ void
	append(bool mine, uint32_t key, uint32_t list)
	{
		uint32_t	lanes = __ballot_sync(GV_FULL_WARP, mine);
		uint32_t	lane = threadIdx.x % GV_WARP;
		uint32_t	at = 0;

		if (lanes == 0)
			return;
		if (lane == 0)
			at = atomicAdd(count, (uint32_t) __popc(lanes));
		at = __shfl_sync(GV_FULL_WARP, at, 0) +
			__popc(lanes & ((1u << lane) - 1));
		if (mine && at < room)
			items[at] = (uint64_t) key << 32 | list;
	}

	/* How many, after a barrier. */
	__device__ __forceinline__ uint32_t
	total()
	{
		__syncthreads();
		return *count;
	}

	/* Begin anew; all threads have read the count before. */
	__device__ __forceinline__ void
	clear()
	{
		__syncthreads();
		if (threadIdx.x == 0)
			*count = 0;
		__syncthreads();
	}
};

/* The last key within the margin of a bound. */
static __device__ __forceinline__ uint32_t
widen(const Bound &bound, float margin)
{
	return gv_ordered(gv_unordered(bound.key) + margin);
}

/* Lists whose scores [nlists] have keys up to the last. */
static __device__ __forceinline__ void
take_lists(const float *scores, int nlists, uint32_t last, Items &items)
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

/* The same of the runs whose least scores [nruns] do not exceed it. */
static __device__ __forceinline__ void
take_runs(const float *scores, int nlists, const float *least, int nruns,
		  uint32_t last, Items &items)
{
	int			lane = threadIdx.x % GV_WARP;

	for (int first = threadIdx.x / GV_WARP * GV_WARP; first < nruns;
		 first += blockDim.x)
	{
		int			run = first + lane;
		uint32_t	runs = __ballot_sync(GV_FULL_WARP, run < nruns &&
										 gv_ordered(least[run]) <= last);

		while (runs != 0)
		{
			uint32_t	keys[AT_ONCE];
			int			lists[AT_ONCE];

#pragma unroll
			for (int i = 0; i < AT_ONCE; i++)
			{
				lists[i] = runs == 0 ? nlists :
					(first + __ffs(runs) - 1) * GV_RUN + lane;
				runs &= runs - 1;
				keys[i] = lists[i] < nlists ? gv_ordered(scores[lists[i]]) :
					0xFFFFFFFFu;
			}
#pragma unroll
			for (int i = 0; i < AT_ONCE; i++)
				items.append(keys[i] <= last, keys[i], lists[i]);
		}
	}
}

/* Exact keys in the place of approximate ones; four lanes a list. */
template <bool PRODUCT>
static __device__ __forceinline__ void
score_items(const GvCardModel &card, const float *query, uint64_t *items,
			uint32_t n)
{
	uint32_t	quad = threadIdx.x / GV_QUAD;

	for (uint32_t first = 0; first < n; first += blockDim.x / GV_QUAD)
	{
		uint32_t	i = first + quad;
		uint32_t	list = i < n ? (uint32_t) items[i] : 0;
		float		score = gv_quad_score<PRODUCT>(query, card.d_centroids +
												   (int64_t) list * card.dims,
												   card.dims);

		if (threadIdx.x % GV_QUAD == 0 && i < n)
			items[i] = (uint64_t) gv_ordered(score) << 32 | list;
	}
}

/* The p nearest of all lists, exactly; scores [nlists] are set. */
template <bool PRODUCT>
static __device__ __forceinline__ void
take_exactly(const GvCardModel &card, const float *query, float *scores,
			 uint32_t p, Items &items, Talk &talk)
{
	int			nlists = card.nlists;
	uint32_t	ties;
	Bound		bound;

	for (int first = 0; first < nlists; first += blockDim.x / GV_QUAD)
	{
		int			list = first + threadIdx.x / GV_QUAD;
		float		score = gv_quad_score<PRODUCT>(query, card.d_centroids +
												   (int64_t) min(list, nlists - 1) *
												   card.dims, card.dims);

		if (threadIdx.x % GV_QUAD == 0 && list < nlists)
			scores[list] = score;
	}
	__syncthreads();
	bound = find_bound([=](uint32_t i) { return gv_ordered(scores[i]); },
					   nlists, p, 0, talk);
	if (bound.count == p)
	{
		take_lists(scores, nlists, bound.key, items);
		return;
	}

	/* of equal scores the first lists count */
	take_lists(scores, nlists, bound.lower, items);
	ties = p - bound.lower_count;
	for (int first = 0; first < nlists && ties > 0; first += GV_WARP)
	{
		int			list = first + threadIdx.x % GV_WARP;
		bool		tie = list < nlists && gv_ordered(scores[list]) == bound.key;
		uint32_t	lanes = __ballot_sync(GV_FULL_WARP, tie);

		tie = tie && (uint32_t) __popc(lanes & ((1u << threadIdx.x % GV_WARP) -
												1)) < ties;
		if (threadIdx.x < GV_WARP)
			items.append(tie, bound.key, list);
		ties -= min(ties, (uint32_t) __popc(lanes));
	}
}

/* Sort items [n], n a power of 2, ascending. */
static __device__ __forceinline__ void
sort_items(uint64_t *items, uint32_t n)
{
	for (uint32_t size = 2; size <= n; size *= 2)
		for (uint32_t stride = size / 2; stride > 0; stride /= 2)
		{
			__syncthreads();
			for (uint32_t i = threadIdx.x; i < n / 2; i += blockDim.x)
			{
				uint32_t	low = 2 * i - (i & (stride - 1));
				bool		up = (low & size) == 0;
				uint64_t	a = items[low];
				uint64_t	b = items[low + stride];

				if ((b < a) == up)
				{
					items[low] = b;
					items[low + stride] = a;
				}
			}
		}
	__syncthreads();
}

/* Sorted items [p] as a query's probes, and where their blocks start. */
static __device__ __forceinline__ void
put_probes(const GvCardModel &card, const GvBatch &batch, int query,
		   const uint64_t *items, uint32_t p)
{
	GvProbe    *probed = batch.d_probed + (int64_t) query * batch.probes;
	uint32_t   *starts = batch.d_starts + (int64_t) query * (batch.probes + 1);
	uint32_t	lane = threadIdx.x;
	uint32_t	sum = 0;

	for (uint32_t i = threadIdx.x; i < p; i += blockDim.x)
		probed[i] = {(int32_t) (uint32_t) items[i],
			gv_unordered((uint32_t) (items[i] >> 32))};
	if (threadIdx.x >= GV_WARP)
		return;
	for (uint32_t first = 0; first < p; first += GV_WARP)
	{
		uint32_t	i = first + lane;
		uint32_t	mine = i < p ?
			card.d_lists[(uint32_t) items[i]].nblocks : 0;
		uint32_t	upto = mine;

#pragma unroll
		for (int d = 1; d < GV_WARP; d *= 2)
		{
			uint32_t	before = __shfl_up_sync(GV_FULL_WARP, upto, d);

			if ((int) lane >= d)
				upto += before;
		}
		if (i < p)
			starts[i] = sum + upto - mine;
		sum += __shfl_sync(GV_FULL_WARP, upto, GV_WARP - 1);
	}
	if (lane == 0)
	{
		starts[p] = sum;
		batch.d_found[query].nprobed = p;
	}
}

/* Query blockIdx.x.  Shared: two Items [room]. */
template <bool PRODUCT>
static __global__ void __launch_bounds__(MANY_THREADS, 1)
choose_kernel(GvCardModel card, GvBatch batch, GvNear near, uint32_t room)
{
	GV_SHARED(memory);
	__shared__ uint32_t said[2][GV_WARP];
	__shared__ uint32_t counts[2];
	int			query = blockIdx.x;
	const float *q = batch.d_queries + (int64_t) query * card.dims;
	float	   *scores = batch.d_coarse + (int64_t) query * card.nlists;
	const float *least = near.d_least + (int64_t) query * near.nruns;
	float		margin = near.d_margins[query];
	uint32_t	p = min(batch.d_wanted[query].probes, card.nlists);
	Items		near_by = {(uint64_t *) memory, &counts[0], room};
	Items		nearest = {(uint64_t *) memory + room, &counts[1], room};
	Talk		talk = {said, 0};
	int			way = GV_NEAR_EXACT;
	uint32_t	n = 0;
	uint32_t	sorted = 1;

	if (threadIdx.x < 2)
		counts[threadIdx.x] = 0;
	__syncthreads();

	/* 1, 2. lists near enough */
	if (margin < FLT_MAX && p * RUN_SHARE <= (uint32_t) near.nruns)
	{
		Bound		bound = find_bound([=](uint32_t i) { return gv_ordered(least[i]); },
									   near.nruns, p, p / 8 + 4, talk);

		take_runs(scores, card.nlists, least, near.nruns,
				  widen(bound, margin), near_by);
		n = near_by.total();
		way = GV_NEAR_RUNS;
	}
	if (margin < FLT_MAX && (way == GV_NEAR_EXACT || n > room))
	{
		Bound		bound = find_bound([=](uint32_t i) { return gv_ordered(scores[i]); },
									   card.nlists, p, p / 8 + 4, talk);

		near_by.clear();
		take_lists(scores, card.nlists, widen(bound, margin), near_by);
		n = near_by.total();
		way = n > room ? GV_NEAR_EXACT : GV_NEAR_ALL;
	}

	/* 3, 4. the nearest of them */
	if (way != GV_NEAR_EXACT)
	{
		const uint64_t *items = near_by.items;
		Bound		bound = find_bound([=](uint32_t i) { return (uint32_t) (items[i] >> 32); },
									   n, p, p / 16, talk);
		uint32_t	last = widen(bound, margin);

		for (uint32_t first = threadIdx.x / GV_WARP * GV_WARP; first < n;
			 first += blockDim.x)
		{
			uint32_t	i = first + threadIdx.x % GV_WARP;
			uint64_t	item = i < n ? items[i] : LAST_ITEM;

			nearest.append((uint32_t) (item >> 32) <= last,
						   (uint32_t) (item >> 32), (uint32_t) item);
		}
		n = nearest.total();
		score_items<PRODUCT>(card, q, nearest.items, n);
	}
	else
	{
		take_exactly<PRODUCT>(card, q, scores, p, nearest, talk);
		n = nearest.total();
	}
	while (sorted < n)
		sorted *= 2;
	for (uint32_t i = n + threadIdx.x; i < sorted; i += blockDim.x)
		nearest.items[i] = LAST_ITEM;
	sort_items(nearest.items, sorted);
	put_probes(card, batch, query, nearest.items, p);
	if (threadIdx.x == 0)
		atomicAdd(&near.d_outcomes[way], 1u);
}

/* See near.cuh. */
GvStatus
gv_gpu_choose(const GvCardModel *card, const GvBatch *batch,
			  const GvNear *near, cudaStream_t stream)
{
	uint32_t	room = LEAST_ROOM;
	int			threads = batch->n <= FEW_QUERIES ? MANY_THREADS : FEW_THREADS;
	int			bytes;

	while (room < 2 * (uint32_t) batch->probes)
		room *= 2;
	bytes = (int) (2 * room * sizeof(uint64_t));
	if (bytes > 47 * 1024)
	{
		GV_CUDA_TRY(cudaFuncSetAttribute(choose_kernel<true>,
										 cudaFuncAttributeMaxDynamicSharedMemorySize,
										 bytes));
		GV_CUDA_TRY(cudaFuncSetAttribute(choose_kernel<false>,
										 cudaFuncAttributeMaxDynamicSharedMemorySize,
										 bytes));
	}
	if (card->metric == GV_IP)
		GV_LAUNCH(choose_kernel<true>, batch->n, threads, bytes, stream,
				  *card, *batch, *near, room);
	else
		GV_LAUNCH(choose_kernel<false>, batch->n, threads, bytes, stream,
				  *card, *batch, *near, room);
	return gv_cuda_status(cudaGetLastError());
}
