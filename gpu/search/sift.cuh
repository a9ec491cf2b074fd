/*
 * sift.cuh
 *		Finds the k smallest items of an array, where k is small and the array
 *		is large, by a block of threads in few dependent steps.
 *
 * WarpSelect takes items one by one.  For a single query this is a long chain
 * of loads and merges that wait for each other.  Here all keys are loaded
 * together, some by each thread, and kbound.cuh finds an upper bound of the
 * k-th smallest key.  Warps take runs of 8 items in turn, because good items
 * are often consecutive.  Items within the bound, about 2 k of 10,240 items,
 * go to shared memory, and for each of them we count how many are before it.
 * If there are more than k + GV_SIFT_SPARE items, a tighter bound is found
 * first.
 *
 * Ties are broken by id.  Ids are loaded only for items within the bound, and
 * we wait for them only after comparing keys.  If more items are within the
 * bound than fit in shared memory, mostly because of ties, the block begins
 * again and each thread takes one item at a time.
 *
 * Source is a struct with
 *		uint32_t key(int i) const			of item i; GV_SIFT_NONE: no item
 *		uint64_t id(int i) const			decides between equal keys
 * and Notes is a struct for more data of the chosen items, with
 *		Note								the data of an item
 *		Note note(uint64_t id) const		begins to load it during ranking
 *		void go_on(Note &note, uint64_t id) const	a second load that the
 *											first leads to
 *		void keep(uint32_t rank, const Note &note) const	stores it
 */
#include "gpu/device/kbound.cuh"
#include "gpu/device/warpselect.cuh"

#define GV_SIFT_THREADS		512
#define GV_SIFT_WARPS		(GV_SIFT_THREADS / GV_WARP)
#define GV_SIFT_ROOM		1024	/* items within the bound */
#define GV_SIFT_MOST		256 /* largest k for many items: a quarter of
								 * GV_SIFT_ROOM */
#define GV_SIFT_NONE		0xFFFFFFFFu
#define GV_SIFT_SPARE		256 /* maximum items beyond k that are ranked */
#define GV_SIFT_RUN			8	/* consecutive items of a warp */

#define GV_SIFT_FEW_THREADS	128 /* if items are some hundreds */
#define GV_SIFT_FEW_ROOM	512 /* items within the bound then */

/*
 * The shared memory of a block of BLOCK_THREADS threads.  It has a capacity of
 * BLOCK_ROOM items within the bound, and contains `count` items.
 */
template <int BLOCK_THREADS, int BLOCK_ROOM>
struct GvSiftOf
{
	static constexpr int THREADS = BLOCK_THREADS;
	static constexpr int WARPS = THREADS / GV_WARP;
	static constexpr int ROOM = BLOCK_ROOM;
	static constexpr int OWN = ROOM / THREADS;	/* items of a thread */

	alignas(16) uint32_t keys[ROOM];
	alignas(16) uint32_t bounds[WARPS];
	uint64_t	ids[ROOM];		/* after sorting */
	int			places[ROOM];	/* their numbers in the array */
	uint32_t	ranks[ROOM];	/* keys before an item's */
	uint32_t	same[ROOM];		/* items of a rank */
	uint32_t	slots[2][GV_WARP];	/* see GvBlockReduce */
	uint32_t	count;
	uint32_t	tied;
};

typedef GvSiftOf<GV_SIFT_THREADS, GV_SIFT_ROOM> GvSift;

/* Returns the offset of this thread's item in each run of WARPS * 32 items. */
template <int WARPS = GV_SIFT_WARPS>
static __device__ __forceinline__ int
gv_sift_mine()
{
	int			warp = threadIdx.x / GV_WARP;
	int			lane = threadIdx.x % GV_WARP;

	return (lane / GV_SIFT_RUN * WARPS + warp) * GV_SIFT_RUN +
		lane % GV_SIFT_RUN;
}

/* Stores an item if there is room. */
template <typename Sift>
static __device__ __forceinline__ void
gv_sift_put(Sift &sift, uint32_t at, uint32_t key, int place)
{
	if (at < Sift::ROOM)
	{
		sift.keys[at] = key;
		sift.places[at] = place;
	}
}

/*
 * Stores the items of this thread whose keys are within the bound.  keys[r] is
 * the key of this thread's item in the run of THREADS items that begins at
 * item first + THREADS * r.
 */
template <int KEYS, typename Sift>
static __device__ __forceinline__ void
gv_sift_collect(const uint32_t (&keys)[KEYS], int first,
				uint32_t bound, Sift &sift)
{
	uint32_t	mine = 0;
	uint32_t	at;

#pragma unroll
	for (int r = 0; r < KEYS; r++)
		mine += keys[r] <= bound && keys[r] != GV_SIFT_NONE;
	at = gv_reserve(mine, &sift.count);
	if (mine == 0)
		return;
#pragma unroll
	for (int r = 0; r < KEYS; r++)
		if (keys[r] <= bound && keys[r] != GV_SIFT_NONE)
			gv_sift_put(sift, at++, keys[r], first + r * Sift::THREADS +
						gv_sift_mine<Sift::WARPS>());
}

/*
 * Adds to ranks[i] how many keys are less than the key of item i, for all
 * items; all threads share the work.
 */
template <typename Sift>
static __device__ __forceinline__ void
gv_sift_rank(Sift &sift, uint32_t count)
{
	uint32_t	width = min((count + GV_WARP - 1) / GV_WARP * GV_WARP,
							(uint32_t) Sift::THREADS);
	uint32_t	parts = Sift::THREADS / width;
	uint32_t	part = threadIdx.x / width;
	uint32_t	share = ((count + 3) / 4 + parts - 1) / parts;
	const uint4 *keys = (const uint4 *) sift.keys;

	if (part >= parts)
		return;
	for (uint32_t i = threadIdx.x % width; i < count; i += width)
	{
		uint32_t	key = sift.keys[i];
		uint32_t	last = min((part + 1) * share, (count + 3) / 4);
		uint32_t	rank = 0;

#pragma unroll 4
		for (uint32_t j = part * share; j < last; j++)
		{
			uint4		some = keys[j];

			rank += (some.x < key) + (some.y < key) + (some.z < key) +
				(some.w < key);
		}
		atomicAdd(&sift.ranks[i], rank);
	}
}

/*
 * Returns the final rank of item i: `rank`, which is the number of smaller
 * keys, plus the number of items with the same key and a smaller id.
 */
template <typename Sift>
static __device__ __forceinline__ uint32_t
gv_sift_tied(const Sift &sift, uint32_t count, uint32_t i, uint32_t rank)
{
	uint32_t	key = sift.keys[i];
	uint64_t	id = sift.ids[i];
	const uint4 *keys = (const uint4 *) sift.keys;
	auto		before = [&](uint32_t j)
	{
		return sift.ids[j] < id || (sift.ids[j] == id && j < i);
	};

	/*
	 * Compare four keys at a time, because hardly any key is equal.  Keys from
	 * count on are GV_SIFT_NONE, so they are never equal.
	 */
#pragma unroll 4
	for (uint32_t j = 0; 4 * j < count; j++)
	{
		uint4		some = keys[j];

		if (some.x == key)
			rank += before(4 * j);
		if (some.y == key)
			rank += before(4 * j + 1);
		if (some.z == key)
			rank += before(4 * j + 2);
		if (some.w == key)
			rank += before(4 * j + 3);
	}
	return rank;
}

/*
 * Finds a tighter bound and keeps only the items within this bound, which are
 * at least k.  Must be called after a barrier, and ends with a barrier.
 */
template <typename Sift>
static __device__ __forceinline__ void
gv_sift_tighten(int k, Sift &sift)
{
	GvBlockReduce reduce = {sift.slots, 0};
	uint32_t	count = sift.count;
	uint32_t	keys[Sift::OWN];
	int			places[Sift::OWN];
	uint32_t	limit = gv_find_kth_bound([&](uint32_t i)
	{
		return sift.keys[i];
	}, count, k, k / 8 + GV_WARP, reduce);

#pragma unroll
	for (int r = 0; r < Sift::OWN; r++)
	{
		uint32_t	i = r * Sift::THREADS + threadIdx.x;

		keys[r] = i < count ? sift.keys[i] : GV_SIFT_NONE;
		places[r] = i < count ? sift.places[i] : 0;
	}
	__syncthreads();
	if (threadIdx.x == 0)
		sift.count = 0;
	__syncthreads();
#pragma unroll
	for (int r = 0; r < Sift::OWN; r++)
		if (keys[r] <= limit && keys[r] != GV_SIFT_NONE)
			gv_sift_put(sift, atomicAdd(&sift.count, 1u), keys[r], places[r]);
	__syncthreads();
}

/* Sorts the items and keeps the first k.  Begins and ends with a barrier. */
template <typename Source, typename Notes, typename Sift>
static __device__ __forceinline__ void
gv_sift_settle(const Source &source, const Notes &wanted, int k, Sift &sift)
{
	uint32_t	keys[Sift::OWN] = {};
	int			places[Sift::OWN] = {};
	uint64_t	ids[Sift::OWN] = {};
	typename Notes::Note notes[Sift::OWN] = {};
	uint32_t	ranks[Sift::OWN];
	uint32_t	count;

	__syncthreads();
	if (sift.count == 0)
		return;
	if (sift.count > (uint32_t) k + GV_SIFT_SPARE)
		gv_sift_tighten(k, sift);
	count = sift.count;

	/* 1. each thread loads some of the items */
#pragma unroll
	for (int r = 0; r < Sift::OWN; r++)
	{
		uint32_t	i = r * Sift::THREADS + threadIdx.x;

		if (i < count)
		{
			keys[r] = sift.keys[i];
			places[r] = sift.places[i];
			ids[r] = source.id(places[r]);
		}
		else
			sift.keys[i] = GV_SIFT_NONE;
		sift.ranks[i] = 0;
		sift.same[i] = 0;
	}
	if (threadIdx.x == 0)
		sift.tied = 0;
	__syncthreads();

	/* 2. their ranks, by keys and then among ties */
	gv_sift_rank(sift, count);
#pragma unroll
	for (int r = 0; r < Sift::OWN; r++)
		if (r * Sift::THREADS + threadIdx.x < count)
			notes[r] = wanted.note(ids[r]);
	__syncthreads();
#pragma unroll
	for (int r = 0; r < Sift::OWN; r++)
	{
		uint32_t	i = r * Sift::THREADS + threadIdx.x;

		ranks[r] = GV_SIFT_NONE;
		if (i < count)
		{
			sift.ids[i] = ids[r];
			ranks[r] = sift.ranks[i];
			if (atomicAdd(&sift.same[ranks[r]], 1u) > 0)
				atomicAdd(&sift.tied, 1u);
			wanted.go_on(notes[r], ids[r]);
		}
	}
	__syncthreads();
#pragma unroll
	for (int r = 0; r < Sift::OWN; r++)
	{
		uint32_t	i = r * Sift::THREADS + threadIdx.x;

		if (i < count && sift.tied && sift.same[ranks[r]] > 1)
			ranks[r] = gv_sift_tied(sift, count, i, ranks[r]);
	}
	__syncthreads();

	/* 3. each item is stored at its rank */
#pragma unroll
	for (int r = 0; r < Sift::OWN; r++)
		if (ranks[r] < (uint32_t) k)
		{
			sift.keys[ranks[r]] = keys[r];
			sift.places[ranks[r]] = places[r];
			sift.ids[ranks[r]] = ids[r];
			wanted.keep(ranks[r], notes[r]);
		}
	if (threadIdx.x == 0)
		sift.count = min(count, (uint32_t) k);
	__syncthreads();
}

/*
 * Stores the k smallest of n items, k <= Sift::ROOM / 2, in sift.keys,
 * sift.places and sift.ids, in ascending order of (key, id).  All
 * Sift::THREADS threads of the block call this, and each thread loads KEYS
 * keys at a time.  Returns the number of stored items, which is less than k if
 * there are fewer items.
 */
template <int KEYS, typename Source, typename Notes, typename Sift>
static __device__ __forceinline__ uint32_t
gv_sift(const Source &source, const Notes &notes, int n, int k, Sift &sift)
{
	uint32_t	bound = GV_SIFT_NONE;
	int			step = KEYS * Sift::THREADS;

	if (threadIdx.x == 0)
		sift.count = 0;
	if (n == 0)
		return 0;
	for (int first = 0; first < n; first += step)
	{
		uint32_t	keys[KEYS];
		uint32_t	told;
		int			end = min(n, first + step);

#pragma unroll
		for (int r = 0; r < KEYS; r++)
		{
			int			i = first + r * Sift::THREADS +
				gv_sift_mine<Sift::WARPS>();

			keys[r] = i < end ? source.key(i) : GV_SIFT_NONE;
		}
		/*
		 * k may still be in flight, so use it only after the loads of keys
		 * have begun
		 */
		if (k == 0)
			return 0;
		told = gv_minima_bound(keys, k, sift.bounds);
		/*
		 * gv_minima_bound is valid only if k is at most the number of threads,
		 * because each warp has only one minimum for each lane
		 */
		if (Sift::WARPS * GV_WARP >= Sift::ROOM / 2 ||
			k <= Sift::WARPS * GV_WARP)
			bound = min(bound, told);
		gv_sift_collect(keys, first, bound, sift);
		__syncthreads();
		if (sift.count > Sift::ROOM)
		{
			/*
			 * half of the capacity is always enough for the items of one round
			 */
			step = Sift::THREADS;
			first = -step;
			__syncthreads();
			if (threadIdx.x == 0)
				sift.count = 0;
		}
		else if (end == n || sift.count > Sift::ROOM / 2)
		{
			gv_sift_settle(source, notes, k, sift);
			/*
			 * in long arrays, the k-th smallest key so far is a better bound
			 */
			bound = min(bound, sift.keys[k - 1]);
		}
	}
	return sift.count;
}
