/*
 * coarsefilter.cu
 *		Finds the nearest lists for many queries, or among very many lists.
 *		Tensor cores compute scores in half precision, and only lists that may
 *		be among the nearest get exact scores.
 *
 *		halve	half copies of queries, and their errors (in gv_gpu_table if
 *				queries come from the host)
 *		product	approximate scores of all lists
 *		filter	the lists near enough, their exact scores, the nearest
 *
 * Proof.  Let q', c' be the half copies of q and c, and
 *		a = w * sum + |c|^2,  w = -2 and |c|^2 in fp32 (L2, cosine), or
 *		a = w * sum,          w = -1 (inner product)
 * the approximate score, sum being what tensor cores make of <q', c'>.  With
 * Q >= |q|, E >= |q - q'|, C >= |c|, F >= |c - c'| (measured, the latter two
 * the largest of any list):
 *	- |<q', c'> - <q, c>| <= E (C + F) + Q F, by Cauchy and Schwarz
 *	- sum differs from <q', c'> by at most (dims + 32) 2^-22 (Q + E)(C + F), in
 *	  whatever order it is made (gpu/product/product.h)
 *	- the exact score, and |c|^2 and the last two roundings of a, have relative
 *	  errors below (dims / 16 + 32) 2^-24 of numbers below (Q + C + E + F)^2
 *	- underflow loses less than 2^-100
 * So a (plus |q|^2, of the query alone) and the fp32 score differ by at most
 * eps, the sum of these, the first two times |w|.  p lists have approximate
 * scores up to the p-th, a_p; the p-th exact score is then at most a_p + eps,
 * and a list that has no larger one has an approximate score up to
 * a_p + 2 eps: the margin.
 */
#include "gpu/device/kbound.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/product/product.cuh"
#include "gpu/search/answers.cuh"
#include "gpu/search/bins.cuh"
#include "gpu/search/coarse.cuh"
#include "gpu/search/search.h"
#include "gpu/search/sift.cuh"

#define THREADS			256
#define WARPS			(THREADS / GV_WARP)

/*
 * Below both limits, exact scores of all lists cost less than a filter (H200,
 * 2026-11-21, test/gpu/run.sh lists): with 8,192 lists of 384 dimensions, a
 * filter takes 22 us for up to 64 queries; exact scores take 19 us for 16
 * queries (50 M terms) and 25 us for 32 queries.  With 500 lists of 50
 * dimensions, exact scores take 13 us for 128 queries, and longer than a
 * filter only from 1,024 queries on, because the nearest lists must be
 * selected among all scores.  If hundreds of lists are probed, a filter takes
 * 60 us, because it computes hundreds of exact scores.
 */
#define LEAST_TERMS		((int64_t) 1 << 24)
#define LEAST_OF_MANY	((int64_t) 1 << 27) /* if more lists are probed than
											 * sifted */
#define MANY_QUERIES	1024

/*
 * Centroids of more than this size do not fit in L2, so that even one query is
 * faster if it reads half of the bytes.
 */
#define LARGE_CENTROIDS	(INT64_C(32) << 20)

#define LEAST_FRACTION		4	/* a filter must keep out most of the lists */

/*
 * If only the least scores of groups are stored, then for each probed list the
 * scores of a group are computed again, which reads the group's half copies at
 * random.  This pays only if these reads are fewer than half of the bytes of
 * writing one score for each list (RESULTS, "card lists").  AGAIN_BYTES is the
 * size of one dimension of a group's half copies.
 */
#define AGAIN_BYTES		((int64_t) (GV_COLUMN_GROUP * sizeof(uint16_t)))
#define SCORE_BYTES		((int64_t) sizeof(float))	/* of a list */
#define AGAIN_FACTOR	2

/*
 * A warp makes the half copy of a query, and stores the query's squares as a
 * single part.
 */
static __global__ void __launch_bounds__(THREADS)
queries_to_half_kernel(GvDeviceModel model, GvBatch batch)
{
	int64_t		query = blockIdx.x * WARPS + threadIdx.x / GV_WARP;
	const float *from = batch.d_queries + query * model.dims;
	GvHalfRounding<float> rounding;

	gv_pdl_wait();
	if (query >= batch.n)
		return;
	rounding = gv_to_half_vector<float>([=](int d)
	{
		return d < model.dims ? from[d] : 0.0f;
	}, model.half_dims, batch.filter.d_half_queries + query * model.half_dims);
	if (threadIdx.x % GV_WARP == 0)
		batch.filter.d_squares[query] = {rounding.square, rounding.error};
}

/*
 * For tests.  The filter is used if exact scores would have at least
 * gv_coarse_filter_from terms; if negative, when it is faster.  At most
 * gv_scores_kept scores are stored; if negative, at most GV_SCORES_KEPT.
 */
GV_TUNABLE int64_t gv_coarse_filter_from = -1;
GV_TUNABLE int64_t gv_scores_kept = -1;

#ifdef GV_TEST_BUILD

/* Reads how many queries of a searcher took each path so far. */
extern "C" GvStatus
gv_gpu_coarse_paths(GvSearcher *searcher, uint32_t paths[GV_COARSE_PATHS])
{
	GV_TRY(gv_choose_device(searcher->device));
	GV_CUDA_TRY(gv_download(paths, (uint32_t *) searcher->d_path_counts.memory,
							GV_COARSE_PATHS, searcher->stream));
	return gv_cuda_status(cudaStreamSynchronize(searcher->stream));
}

#endif

/*
 * Returns the number of queries from which on exact scores of all lists cost
 * more than a filter.
 */
static int64_t
least_queries(const GvDeviceModel *model, int32_t probes)
{
	int64_t		terms = (int64_t) model->nlists * model->dims;
	int64_t		least = probes <= GV_SIFT_MOST ? LEAST_TERMS : LEAST_OF_MANY;

	if (gv_coarse_filter_from < 0 &&
		terms * (int64_t) sizeof(float) > LARGE_CENTROIDS)
		return 1;
	least = ((gv_coarse_filter_from >= 0 ? gv_coarse_filter_from : least) +
			 terms - 1) / terms;
	return gv_coarse_filter_from >= 0 || least < MANY_QUERIES ? least :
		MANY_QUERIES;
}

/* Returns whether the filter is cheaper than exact scores of all lists. */
bool
gv_gpu_coarse_filter_pays(const GvDeviceModel *model, const GvBatch *batch)
{
	return batch->n >= least_queries(model, batch->nprobe) && batch->nprobe <=
		GV_MANY_PROBES && batch->nprobe <= model->nlists / LEAST_FRACTION;
}

int32_t
gv_gpu_coarse_rows(const GvDeviceModel *model, int32_t n, int32_t probes)
{
	int64_t		rows = (gv_scores_kept >= 0 ? gv_scores_kept :
						GV_SCORES_KEPT) / model->nlists;
	int64_t		exact = least_queries(model, probes) - 1;

	if (probes > GV_MANY_PROBES ||
		probes * AGAIN_BYTES * model->half_dims * AGAIN_FACTOR >
		SCORE_BYTES * model->nlists)
		return n;
	if (rows < exact)
		rows = exact;
	return rows < n ? (int32_t) rows : n;
}

/*
 * ----
 * A query's margin: the approximate score of one of the nearest lists exceeds
 * the approximate score of any other list by at most the margin.  If no such
 * bound is known, the margin is infinite.
 */

/*
 * Returns an upper bound of the length of a vector whose squares, at most
 * 16,000, were added in fp32.
 */
static __device__ __forceinline__ float
length_of(float square)
{
	return sqrtf(square) * 1.0001f + 1e-18f;
}

/*
 * Returns 2 eps of the proof, or infinity if the lengths are too large for the
 * proof.
 */
static __device__ __forceinline__ float
margin_of_lengths(const GvDeviceModel &model, float query, float query_error)
{
	float		c = model.d_limits->length;
	float		c_error = model.d_limits->error;
	float		all = query + query_error + c + c_error;
	float		dot = query_error * (c + c_error) + query * c_error +
		(query + query_error) * (c + c_error) * (model.dims + 32) * 0x1p-22f;
	float		eps = (model.metric == GV_IP ? 1.0f : 2.0f) * dot +
		all * all * (model.dims / 16 + 64) * 0x1p-24f + 0x1p-100f;

	return eps < 1e30f ? 2.0f * 1.001f * eps : GV_INFINITY;
}

/* Returns a query's margin to all lanes of a warp. */
static __device__ __forceinline__ float
margin_of(const GvDeviceModel &model, const GvBatch &batch, int query)
{
	const float2 *parts = batch.filter.d_squares +
		(int64_t) query * batch.filter.nsquares;
	float2		squares = {0.0f, 0.0f};

	for (int p = threadIdx.x % GV_WARP; p < batch.filter.nsquares;
		 p += GV_WARP)
	{
		squares.x += parts[p].x;
		squares.y += parts[p].y;
	}
	return margin_of_lengths(model, length_of(gv_add_warp(squares.x)),
							 length_of(gv_add_warp(squares.y)));
}

/*
 * ----
 * Approximate scores of all lists for many queries: a matrix product of half
 * copies (gpu/product), with sums in fp32.
 */

#define TILES	(GV_COLUMN_GROUP / 8)

/*
 * An epilogue that converts the sums of queries and lists to approximate
 * scores.  It stores the least score of every group and, if ALL, also all
 * scores.  The scores of lists beyond the last one are infinite.
 */
template <bool ALL>
struct ListScores : GvNoRow
{
	GvDeviceModel model;
	GvBatch		batch;

	struct ColumnState
	{
		float2		squares[TILES];
	};

	__device__ __forceinline__ float
	square(int list) const
	{
		/*
		 * __ldg allows the compiler to move the load before the stores of the
		 * group before
		 */
		return list < model.nlists ? __ldg(&model.d_squares[list]) :
			GV_INFINITY;
	}

	__device__ __forceinline__ ColumnState
	column_state(int group) const
	{
		int			mine = group * GV_COLUMN_GROUP + threadIdx.x % 4 * 2;
		ColumnState found;

#pragma unroll
		for (int j = 0; j < TILES; j++)
			found.squares[j] = make_float2(square(mine + j * 8),
										   square(mine + j * 8 + 1));
		return found;
	}

	__device__ __forceinline__ void
	consume(const ColumnState &of, Row *, int q, int group,
			const float2 (&sums)[TILES]) const
	{
		int			mine = group * GV_COLUMN_GROUP + threadIdx.x % 4 * 2;
		int			ngroups = gv_ncolumn_groups(model.nlists);
		float		weight = model.metric == GV_IP ? -1.0f : -2.0f;
		float2		scores[TILES];
		float		least = GV_INFINITY;

#pragma unroll
		for (int j = 0; j < TILES; j++)
		{
			/* the product is exact */
			scores[j] = make_float2(fmaf(weight, sums[j].x, of.squares[j].x),
									fmaf(weight, sums[j].y, of.squares[j].y));
			least = fminf(least, fminf(scores[j].x, scores[j].y));
		}
		least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 1));
		least = fminf(least, __shfl_xor_sync(GV_FULL_WARP, least, 2));
		if (q >= batch.n || group >= ngroups)
			return;
		if (ALL)
		{
			float	   *to = batch.d_coarse +
				q * gv_score_stride(model.nlists) + mine;

#pragma unroll
			for (int j = 0; j < TILES; j++)
				*(float2 *) (to + j * 8) = scores[j];
		}
		if (threadIdx.x % 4 == 0)
			batch.filter.d_group_min[(int64_t) q * ngroups + group] = least;
	}
};

/* Returns whether only the least scores of groups are stored. */
static bool
is_group_min_alone(const GvDeviceModel *model, const GvBatch *batch)
{
	return gv_gpu_coarse_rows(model, batch->n, batch->nprobe) < batch->n;
}

/*
 * Launches the product that makes d_group_min and, if there is memory for all
 * scores, d_coarse.
 */
static GvStatus
score_lists(const GvDeviceModel *model, const GvBatch *batch,
			const GvSearcher *searcher)
{
	GvMatmul	matmul =
		{batch->filter.d_half_queries, batch->n, model->d_half_centroids,
			model->nlists, model->half_dims};
	GvMatmulContext context = {searcher->blas, searcher->hopper,
		searcher->nsms, batch->pdl, searcher->stream};

	if (is_group_min_alone(model, batch))
		return gv_gpu_matmul<false>(&context, &matmul,
									ListScores<false> {{}, *model, *batch});
	return gv_gpu_matmul<false>(&context, &matmul,
								ListScores<true> {{}, *model, *batch});
}

/*
 * ----
 * A query's lists in shared memory, which a block of threads collects, scores
 * exactly and sorts.
 */

/* Lists in shared memory. */
struct Items
{
	GvListItem *items;			/* [capacity] */
	uint32_t   *count;			/* shared; may exceed capacity */
	uint32_t	capacity;

	/*
	 * Stores an item at a place that was reserved, if the place is below the
	 * capacity.
	 */
	__device__ __forceinline__ void
	put(uint32_t at, uint32_t key, uint32_t list)
	{
		if (at < capacity)
			items[at] = {key, list};
	}

	/*
	 * Appends an item for each lane for which `mine` is true; called by a
	 * whole warp.
	 */
	__device__ __forceinline__ void
	append(bool mine, uint32_t key, uint32_t list)
	{
		uint32_t	lanes = __ballot_sync(GV_FULL_WARP, mine);
		uint32_t	at;

		if (lanes == 0)
			return;
		at = gv_take_place(lanes, count);
		if (mine)
			put(at, key, list);
	}

	/* Appends all items at(0) .. at(n - 1) whose keys are at most `last`. */
	template <typename At>
	__device__ __forceinline__ void
	append_near(uint32_t n, uint32_t last, At at)
	{
		for (uint32_t first = threadIdx.x / GV_WARP * GV_WARP; first < n;
			 first += blockDim.x)
		{
			uint32_t	i = first + threadIdx.x % GV_WARP;
			GvListItem	item = i < n ? at(i) : GvListItem::worst();

			append(item.key <= last && i < n, item.key, item.list);
		}
	}

	/* Returns whether the items of all threads were stored. */
	__device__ __forceinline__ bool
	fits()
	{
		__syncthreads();
		return *count <= capacity;
	}

	/* Removes all items, after all threads have read the count. */
	__device__ __forceinline__ void
	clear()
	{
		__syncthreads();
		if (threadIdx.x == 0)
			*count = 0;
		__syncthreads();
	}
};

/*
 * Replaces the approximate keys of items by exact keys.  Four lanes score a
 * list, each with AHEAD loads in flight.
 */
template <bool PRODUCT, int AHEAD>
static __device__ __forceinline__ void
score_items(const GvDeviceModel &model, const float *query, GvListItem *items,
			uint32_t n)
{
	uint32_t	lane_group = threadIdx.x / GV_LANE_GROUP;

	for (uint32_t first = 0; first < n; first += blockDim.x / GV_LANE_GROUP)
	{
		uint32_t	i = first + lane_group;
		uint32_t	list = i < n ? items[i].list : GvListItem::worst().list;
		bool		there = list != GvListItem::worst().list;
		float		score =
			gv_lane_group_score<PRODUCT, AHEAD>(query, model.d_centroids +
												(int64_t) (there ? list : 0) *
												model.dims, model.dims);

		__syncwarp();			/* all four have read the list's number */
		if (threadIdx.x % GV_LANE_GROUP == 0 && there)
			items[i].key = gv_ordered(score);
	}
}

/*
 * ----
 * Finds the nearest lists of each query from approximate scores and a margin,
 * and computes exact scores only where they decide.
 *
 * One block of threads takes a query that probes p lists:
 *	1.  Find a bound that the approximate scores of at least p lists, and few
 *	   more, do not exceed, by halving an interval of scores and counting.  If
 *	   p is small compared to the number of groups of 32 lists, the groups'
 *	   least scores are enough for this: if a group's least score does not
 *	   exceed the bound, the group has a list whose score does not exceed the
 *	   bound.
 *	2.  Collect the lists with scores up to the bound plus the margin in shared
 *	memory.
 *	3.  Unless these lists are few, find a narrower bound from their scores and
 *	   keep only the lists up to this bound plus the margin, because a bound
 *	   from groups may be wide.
 *	4.  Compute their exact scores, and sort the lists.  If more lists are
 * collected than fit, step 1 is repeated with the scores of all lists.  If
 * there are still too many lists, or the margin is infinite, the scores of all
 * lists are computed exactly.
 *
 * If only the least scores of groups are stored (see gv_gpu_coarse_rows), step
 * 2 computes the scores of near groups again.  The proof holds for these sums,
 * too.  If too many lists are near, all lists of near groups are scored
 * exactly.
 */

#define MANY_THREADS	512		/* of a block, if there are enough SMs */
#define FEW_THREADS		128
#define FEW_QUERIES		128
#define LEAST_LISTS		1024	/* of the room in shared memory */
#define KEYS_PER_PROBE	2		/* least keys of groups for each probe */
#define AT_ONCE			4		/* groups that a warp reads */
/* passes of a warp over a group; in each pass four lanes have a list */
#define PASSES			(GV_COLUMN_GROUP / (GV_WARP / GV_LANE_GROUP))
#define MOST_KEYS		4096	/* keys that the bound is found from */
#define ALL_AHEAD		24		/* loads of a score in flight, for few
								 * queries */
#define SIFT_KEYS		20		/* keys of a thread, if all lists are sifted */
#define SIFT_LISTS		(SIFT_KEYS * GV_SIFT_THREADS)

/* Returns number i of eight half-precision numbers. */
static __device__ __forceinline__ float
half_of(const uint4 &eight, int i)
{
	uint32_t	pair = i < 2 ? eight.x : i < 4 ? eight.y : i < 6 ? eight.z :
		eight.w;

	return gv_from_half((uint16_t) (pair >> i % 2 * 16));
}

/* Returns the largest key within the margin of a bound. */
static __device__ __forceinline__ uint32_t
add_margin(uint32_t bound, float margin)
{
	return gv_ordered(gv_unordered(bound) + margin);
}

/*
 * Appends all lists whose keys, made from scores [nlists], are at most `last`.
 */
static __device__ __forceinline__ void
take_lists(const float *scores, int nlists, uint32_t last, Items &items)
{
	items.append_near(nlists, last, [&](uint32_t i)
	{
		return GvListItem {gv_ordered(scores[i]), i};
	});
}

/*
 * Like take_lists, for the lists of some groups only.  Consecutive groups go
 * to different warps, because near groups are often consecutive.
 */
static __device__ __forceinline__ void
take_groups(const float *scores, int nlists, const GvListItem *groups,
			uint32_t ngroups, uint32_t last, Items &items)
{
	uint32_t	lane = threadIdx.x % GV_WARP;
	uint32_t	nwarps = blockDim.x / GV_WARP;

	for (uint32_t first = threadIdx.x / GV_WARP; first < ngroups;
		 first += AT_ONCE * nwarps)
	{
		uint32_t	keys[AT_ONCE];
		int			lists[AT_ONCE];

#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
		{
			uint32_t	r = first + i * nwarps;

			lists[i] = r < ngroups ?
				(int) (groups[r].list * GV_COLUMN_GROUP + lane) : nlists;
			keys[i] = lists[i] < nlists ? gv_ordered(scores[lists[i]]) :
				0xFFFFFFFFu;
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
			items.append(keys[i] <= last, keys[i], lists[i]);
	}
}

/*
 * Computes approximate scores again, with four lanes for each list.  The
 * scores differ from the product's only by the order of additions.  Four lanes
 * take `list` and every eighth list behind it, so that a warp takes a whole
 * group.  In place of lists beyond the last one, they take the last list.
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
			 (int64_t) min(list + i * GV_WARP / GV_LANE_GROUP,
						   model.nlists - 1) * model.half_dims);
#pragma unroll 2
	for (int d = threadIdx.x % GV_LANE_GROUP; d < model.half_dims / 8;
		 d += GV_LANE_GROUP)
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
		scores[i] =
			fmaf(model.metric == GV_IP ? -1.0f : -2.0f, sums[i],
				 model.d_squares[min(list + i * GV_WARP / GV_LANE_GROUP,
									 model.nlists - 1)]);
	}
}

/* Like take_groups, but computes the scores of the groups' lists again. */
static __device__ __forceinline__ void
take_groups_again(const GvDeviceModel &model, const uint16_t *query,
				  const GvListItem *groups, uint32_t ngroups, uint32_t last,
				  Items &items)
{
	for (uint32_t r = threadIdx.x / GV_WARP; r < ngroups;
		 r += blockDim.x / GV_WARP)
	{
		int			list = (int) (groups[r].list * GV_COLUMN_GROUP +
								  threadIdx.x % GV_WARP / GV_LANE_GROUP);
		float		scores[PASSES];

		score_again(model, query, list, scores);
#pragma unroll
		for (int i = 0; i < PASSES; i++, list += GV_WARP / GV_LANE_GROUP)
		{
			uint32_t	key = gv_ordered(scores[i]);

			items.append(threadIdx.x % GV_LANE_GROUP == 0 &&
						 list < model.nlists && key <= last, key, list);
		}
	}
}

/* One query's choice of lists. */
struct Choice
{
	const GvDeviceModel &model;
	const float *query;			/* [dims] */
	const uint16_t *half_query; /* [half_dims] its half copy */
	const float *scores;		/* [nlists]; NULL: not stored */
	const float *group_min;		/* [ngroups] */
	float		margin;
	uint32_t	p;				/* lists that the query probes */
	uint32_t   *keys;			/* [nkeys] in shared memory: keys of the least
								 * scores of groups */
	uint32_t	nkeys;
	uint32_t	nnear;			/* if not 0, only the lists of this many groups
								 * in candidates.items are scored exactly */
	Items		candidates;		/* lists by approximate scores */
	Items		exact;			/* lists by exact scores */
	GvBlockReduce reduce;
};

/*
 * Loads the keys of all scores.  A thread has the keys of lists i * 512 +
 * gv_sift_mine().
 */
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
 * Returns nkeys, the number of keys for the least scores of groups.  Group i
 * belongs to key i % nkeys.  Near groups are neighbors, so they belong to
 * different keys.
 */
static __host__ __device__ inline uint32_t
keys_of(int nlists)
{
	return min(gv_ncolumn_groups(nlists), MOST_KEYS);
}

/*
 * Loads the keys of groups into shared memory, because finding the bound reads
 * them many times.
 */
static __device__ __forceinline__ void
load_group_min(const Choice &choice)
{
	int			ngroups = gv_ncolumn_groups(choice.model.nlists);

	for (uint32_t i = threadIdx.x; i < choice.nkeys; i += blockDim.x)
	{
		float		least = choice.group_min[i];

		for (int group = i + choice.nkeys; group < ngroups;
			 group += choice.nkeys)
			least = fminf(least, choice.group_min[group]);
		choice.keys[i] = gv_ordered(least);
	}
	__syncthreads();
}

/*
 * Does steps 1 and 2 for few queries and not too many lists.  All scores are
 * in registers, and gv_minima_bound finds the bound, which takes a tenth of
 * the time of halving.  Returns whether all candidates fit.
 */
static __device__ __forceinline__ bool
collect_at_once(Choice &choice, const uint32_t (&keys)[SIFT_KEYS],
				uint32_t (&bounds)[GV_SIFT_WARPS])
{
	uint32_t	bound = gv_minima_bound(keys, (int) choice.p, bounds);
	uint32_t	last = min(add_margin(bound, choice.margin), GV_SIFT_NONE - 1);
	uint32_t	mine = 0;
	uint32_t	at;

#pragma unroll
	for (int i = 0; i < SIFT_KEYS; i++)
		mine += keys[i] <= last;
	at = gv_reserve(mine, choice.candidates.count);
#pragma unroll
	for (int i = 0; i < SIFT_KEYS; i++)
		if (keys[i] <= last)
			choice.candidates.put(at++, keys[i],
								  i * GV_SIFT_THREADS + gv_sift_mine());
	return choice.candidates.fits();
}

/*
 * Does steps 1 and 2 by the least scores of groups.  Returns whether all
 * candidates fit.  If they do not fit and only the least scores are stored,
 * but the near groups fit, keeps the near groups, so that all their lists are
 * scored exactly.
 */
static __device__ __forceinline__ bool
collect_by_groups(Choice &choice)
{
	Items	   &groups = choice.exact;	/* unused before step 3 */
	Items	   &candidates = choice.candidates;
	int			nlists = choice.model.nlists;
	uint32_t	last;
	bool		fits = false;

	load_group_min(choice);
	last = add_margin(gv_find_kth_bound([&](uint32_t i)
	{
		return choice.keys[i];
	}, choice.nkeys, choice.p, choice.p / 8 + 4, choice.reduce),
		choice.margin);
	take_lists(choice.group_min, gv_ncolumn_groups(nlists), last, groups);
	if (groups.fits())
	{
		if (choice.scores != NULL)
			take_groups(choice.scores, nlists, groups.items, *groups.count,
						last, candidates);
		else
			take_groups_again(choice.model, choice.half_query, groups.items,
							  *groups.count, last, candidates);
		fits = candidates.fits();
		if (!fits && choice.scores == NULL)
		{
			choice.nnear = *groups.count;
			for (uint32_t i = threadIdx.x; i < choice.nnear; i += blockDim.x)
				candidates.items[i] = groups.items[i];
		}
	}
	groups.clear();
	return fits;
}

/*
 * Does steps 1 and 2: collects all lists that may be among the nearest in
 * choice.candidates, unless it returns GV_COARSE_EXACT.  If FEW, tries
 * collect_at_once with `keys` first.
 */
template <bool FEW>
static __device__ __forceinline__ GvCoarsePath
collect_candidates(Choice &choice, const uint32_t (&keys)[SIFT_KEYS],
				   uint32_t (&bounds)[GV_SIFT_WARPS])
{
	const float *scores = choice.scores;
	int			nlists = choice.model.nlists;
	uint32_t	bound;

	if (!(choice.margin < FLT_MAX))
		return GV_COARSE_EXACT;
	if (FEW)
	{
		if (collect_at_once(choice, keys, bounds))
			return GV_COARSE_ALL;
		choice.candidates.clear();
	}
	if (choice.p * KEYS_PER_PROBE <= choice.nkeys)
	{
		if (collect_by_groups(choice))
			return scores != NULL ? GV_COARSE_GROUPS : GV_COARSE_GROUPS_ALONE;
		choice.candidates.clear();
	}
	if (scores == NULL)
		return GV_COARSE_EXACT;
	bound = gv_find_kth_bound([&](uint32_t i)
	{
		return gv_ordered(scores[i]);
	}, nlists, choice.p, choice.p / 8 + 4, choice.reduce);
	take_lists(scores, nlists, add_margin(bound, choice.margin),
			   choice.candidates);
	return choice.candidates.fits() ? GV_COARSE_ALL : GV_COARSE_EXACT;
}

/*
 * Does step 3: copies the candidates that may still be among the nearest to
 * choice.exact.
 */
static __device__ __forceinline__ void
tighten(Choice &choice)
{
	const GvListItem *items = choice.candidates.items;
	uint32_t	n = *choice.candidates.count;
	uint32_t	last = 0xFFFFFFFFu;

	/* no need to reduce candidates that all lanes together score at once */
	if (n > blockDim.x / GV_LANE_GROUP)
		last = add_margin(gv_find_kth_bound([&](uint32_t i)
		{
			return items[i].key;
		}, n, choice.p, choice.p / 16, choice.reduce), choice.margin);
	choice.exact.append_near(n, last, [&](uint32_t i)
	{
		return items[i];
	});
}

/*
 * Finds and sorts the nearest lists by exact scores, among all lists or among
 * the lists of near groups.  Lists are scored in portions: the shared memory
 * holds the nearest lists so far, and the next portion fills the rest of it.
 */
template <bool PRODUCT>
static __device__ __forceinline__ void
take_exactly(Choice &choice)
{
	const GvDeviceModel &model = choice.model;
	Items	   &nearest = choice.exact;
	uint32_t	all = choice.nnear > 0 ? choice.nnear * GV_COLUMN_GROUP :
		(uint32_t) model.nlists;
	uint32_t	kept = 0;

	for (uint32_t done = 0; done < all;)
	{
		uint32_t	n = min(nearest.capacity - kept, all - done);

		for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
		{
			uint32_t	list = done + i;

			if (choice.nnear > 0)
				list = choice.candidates.items[list / GV_COLUMN_GROUP].list *
					GV_COLUMN_GROUP + list % GV_COLUMN_GROUP;
			nearest.items[kept + i] = list < (uint32_t) model.nlists ?
				GvListItem {0, list} : GvListItem::worst();
		}
		__syncthreads();
		score_items<PRODUCT, GV_AHEAD>(model, choice.query,
									   nearest.items + kept, n);
		gv_bitonic_sort(nearest.items, kept + n);
		done += n;
		kept = min(choice.p, done);
	}
}

/*
 * Returns the number of lists that an Items array has memory for, a power of
 * two.
 */
static __host__ __device__ inline uint32_t
capacity_for(int32_t probes)
{
	uint32_t	capacity = LEAST_LISTS;

	while (capacity < 2 * (uint32_t) probes)
		capacity *= 2;
	return capacity;
}

/*
 * A block chooses the lists of query blockIdx.x.  If `alone`, only the least
 * scores of groups are stored.  For many queries, eight blocks share an SM,
 * because each block waits most of the time.  For few queries, a block has
 * more registers for loads.  Shared memory: two arrays of items [capacity],
 * and the keys of groups.
 */
template <bool PRODUCT, bool FEW>
static __global__ void __launch_bounds__(MANY_THREADS, FEW ? 1 : 2)
filter_lists_kernel(GvDeviceModel model, GvBatch batch, bool alone)
{
	GV_SHARED(memory);
	alignas(16) __shared__ uint32_t bounds[GV_SIFT_WARPS];
	__shared__ uint32_t slots[2][GV_WARP];
	__shared__ uint32_t counts[2];
	__shared__ float margin;
	__shared__ GvNumbering numbering;
	int64_t		query = blockIdx.x;
	uint32_t	capacity = capacity_for(batch.nprobe);
	GvListItem *items = (GvListItem *) memory + capacity;

	gv_pdl_trigger_after_wait();

	Choice		choice = {model, batch.d_queries + query * model.dims,
		batch.filter.d_half_queries + query * model.half_dims,
		alone ? NULL : batch.d_coarse + query * gv_score_stride(model.nlists),
		batch.filter.d_group_min + query * gv_ncolumn_groups(model.nlists),
		0.0f,
		(uint32_t) min(batch.d_params[query].nprobe, model.nlists),
		(uint32_t *) (items + capacity), keys_of(model.nlists),
		0,
		{(GvListItem *) memory, &counts[0], capacity},
		{items, &counts[1], capacity},
		{slots, 0}
	};
	uint32_t	keys[SIFT_KEYS] = {};

	if (FEW)					/* in flight while the margin is computed */
		load_keys(choice.scores, model.nlists, keys);
	if (threadIdx.x < 2)
		counts[threadIdx.x] = 0;
	if (threadIdx.x < GV_WARP)
		margin = margin_of(model, batch, (int) query);
	__syncthreads();
	choice.margin = margin;
	if (choice.p > 0)			/* padding queries probe none */
	{
		GvCoarsePath path = collect_candidates<FEW>(choice, keys, bounds);

		if (path == GV_COARSE_EXACT)
			take_exactly<PRODUCT>(choice);
		else
		{
			uint32_t	n;

			tighten(choice);
			__syncthreads();
			n = *choice.exact.count;
			score_items<PRODUCT, FEW ? ALL_AHEAD : GV_AHEAD>(model,
															 choice.query,
															 items, n);
			if (n <= blockDim.x / GV_QUAD)
				gv_sort_by_counting(items, n);
			else
				gv_bitonic_sort(items, n);
		}
		GV_TEST_ONLY(if (threadIdx.x == 0)
					 atomicAdd(&batch.filter.d_path_counts[path], 1u);)
	}
	gv_number_lists<1>(model, batch, (int) query, (int) choice.p, [&](int i)
	{
		return items[i];
	}, numbering);
}

template <bool PRODUCT, bool FEW>
static GvStatus
launch_filter(const GvDeviceModel *model, const GvBatch *batch, int threads,
			  bool alone, cudaStream_t stream)
{
	int			bytes =
		(int) (2 * capacity_for(batch->nprobe) * sizeof(GvListItem) +
			   keys_of(model->nlists) * sizeof(uint32_t));

	return gv_launch_step(filter_lists_kernel<PRODUCT, FEW>, batch->n, threads,
						  bytes, stream, model, batch, alone);
}

/*
 * Launches all steps, which make d_probed, d_starts and d_search_counts.  If
 * the queries came from the host, gv_gpu_table has made their half copies
 * already.
 */
GvStatus
gv_gpu_coarse_filter(const GvDeviceModel *model, const GvBatch *batch,
					 const GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	bool		alone = is_group_min_alone(model, batch);
	bool		few = batch->n <= FEW_QUERIES;
	bool		sift = few && model->nlists <= SIFT_LISTS &&
		batch->nprobe <= GV_SIFT_MOST && !alone;
	int			threads = few ? MANY_THREADS : FEW_THREADS;

	if (batch->in_queries == NULL)
		GV_TRY(gv_launch_step(queries_to_half_kernel,
							  gv_blocks_for(batch->n, WARPS), THREADS, 0,
							  stream, model, batch));
	GV_TRY(score_lists(model, batch, searcher));
	if (model->metric == GV_IP)
		return (sift ? launch_filter<true, true> : launch_filter<true, false>)
			(model, batch, threads, alone, stream);
	return (sift ? launch_filter<false, true> : launch_filter<false, false>)
		(model, batch, threads, alone, stream);
}
