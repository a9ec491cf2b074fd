/*
 * select.cu
 *		Selects the nearest lists of a query, and the best postings of these
 *		lists.
 *
 * If one block of threads for each query is enough, this block selects few
 * items by sift.cuh, or many lists by bins.cuh if there are at most
 * MOST_BINNED lists.  All other selections are made in two passes.  Two passes
 * could make all selections, but take .6 to 5 us longer for one query
 * (RESULTS, "card").  If more than GV_MANY_POSTINGS postings are selected,
 * manypostings.cu sorts them.  If more than GV_MANY_PROBES lists are selected,
 * or postings of more than a million, CUB sorts.  A search by_number takes all
 * lists as they are.
 */
#include <algorithm>

#include <cub/device/device_radix_sort.cuh>

#include "gpu/device/kbound.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/search/answers.cuh"
#include "gpu/search/bins.cuh"
#include "gpu/search/listscan.cuh"
#include "gpu/search/search.h"
#include "gpu/search/sift.cuh"

#define MOST_SIFTED		(INT64_C(1) << 30)	/* max postings; sift.cuh numbers
											 * them by int */
#define NTHREADS		GV_BINS_THREADS
#define KEYS			20		/* keys of a thread in registers, */
#define MOST_KEYS		40		/* or mostly in L1 */
#define MOST_BINNED		(MOST_KEYS * NTHREADS)	/* lists */
#define EACH			4		/* lists that a thread numbers at once */
#define EACH_OF_ALL		8		/* likewise, of all lists */
#define MAX_PROBES		65536	/* ids have 16 bits for the probe */

/* -- sources: the items of a query, and what to do with selected items */

/*
 * A source of all lists.  The step before makes the scores of lists and, if
 * there are no slices, may also write k.  So both are read only after
 * gv_pdl_trigger_after_wait.
 */
struct AllLists
{
	typedef GvListItem Item;
	static constexpr bool IS_EARLY = false;
	const float *scores;
	uint32_t	n;
	uint32_t	k;				/* 0 if all lists are taken by_number */
	bool		by_number;
	bool		sums;			/* only sums are requested */

	/* The shared memory that finish needs. */
	typedef GvNumbering Shared;

	static __host__ __device__ __forceinline__ const GvSlices &
	slices(const GvBatch &batch)
	{
		return batch.list_slices;
	}

	__device__ __forceinline__ void
	begin(const GvDeviceModel &model, const GvBatch &batch, int query)
	{
		scores = batch.d_coarse + query * gv_score_stride(model.nlists);
		n = model.nlists;
		by_number =
			gv_read_before_wait(&batch.d_params[query].by_number) != 0;
		sums = gv_read_before_wait(&batch.d_params[query].sums) != 0;
		k = by_number ? 0 :
			min(gv_read_before_wait(&batch.d_params[query].nprobe),
				model.nlists);
	}

	/* Reads results of the step before. */
	__device__ __forceinline__ void
	follow(const GvBatch &batch, int query, Shared &shared)
	{
	}

	/*
	 * Stores all lists as probes if they are taken by_number, and returns
	 * whether they are; called by all threads of a block.
	 */
	__device__ __forceinline__ bool
	take_all(const GvDeviceModel &model, const GvBatch &batch, int query,
			 Shared &shared) const
	{
		if (by_number)
			gv_number_lists<EACH_OF_ALL>(model, batch, query, (int) n,
										 [&](int i)
			{
				return GvListItem {key(i), (uint32_t) i};
			}, shared);
		/* the thread that has stored the counts */
		if (sums && threadIdx.x == 0)
			batch.d_search_counts[query].nlisted = 0;
		return by_number;
	}

	__device__ __forceinline__ uint32_t
	key(int i) const
	{
		return gv_ordered(__ldcg(scores + i));
	}

	__device__ __forceinline__ uint64_t
	id(int i) const
	{
		return i;
	}

	/*
	 * mark returns an item that contains its number in place of its id;
	 * resolve returns the item with its id.  A list's number is its id.
	 */
	static __device__ __forceinline__ Item
	mark(uint32_t key, uint32_t i)
	{
		return {key, i};
	}

	__device__ __forceinline__ Item
	resolve(const Item &marked) const
	{
		return marked;
	}

	/*
	 * Stores the selected lists, items [count], as probes; called by all
	 * threads of a block.
	 */
	static __device__ __forceinline__ void
	finish(const GvDeviceModel &model, const GvBatch &batch, int query,
		   const Item *items, uint32_t count, Shared &shared)
	{
		gv_number_lists<EACH>(model, batch, query, (int) count, [&](int i)
		{
			return items[i];
		}, shared);
	}
};

/*
 * A posting with its score and its probe.  There are at most MAX_PROBES
 * probes.
 */
struct PostingItem
{
	uint32_t	key;			/* gv_ordered(S) */
	uint32_t	high;			/* upper half of gv_posting_id */
	uint32_t	low;

	__device__ __forceinline__ bool
	before(const PostingItem &other) const
	{
		if (key != other.key)
			return key < other.key;
		return high < other.high || (high == other.high && low < other.low);
	}

	static __device__ __forceinline__ PostingItem
	worst()
	{
		return {0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu};
	}
};

/*
 * Notes for gv_sift.  If the last step needs refine records or rows, stores
 * the addresses of those of the selected postings.  Prefetches them to L2 if
 * all of the batch's fit there beside what steps hand to each other.
 */
#define PREFETCHED		((int64_t) 24 << 20)	/* maximum bytes of a batch's
												 * items to prefetch */

struct PostingNotes
{
	/*
	 * note() loads the address of a table of pages, and go_on() the address of
	 * the item
	 */
	struct Note
	{
		const GvDevicePage *table;
		const uint8_t *item;
	};

	const GvDeviceModel &model;
	const uint8_t **items;		/* of the query; NULL: no step needs them */
	int			prefetched;		/* bytes of an item to prefetch */

	__device__ __forceinline__ Note
	note(uint64_t id) const
	{
		return {items == NULL ? NULL : model.d_tables[id >> 48], NULL};
	}

	__device__ __forceinline__ void
	go_on(Note &note, uint64_t id) const
	{
		if (note.table != NULL)
			note.item =
				gv_item_at(model, note.table[(uint32_t) (id >> 32) & 0xFFFF],
						   (uint32_t) id >> 16);
	}

	__device__ __forceinline__ void
	keep(uint32_t rank, const Note &note) const
	{
		if (items == NULL)
			return;
		items[rank] = note.item;
		for (int at = 0; note.item != NULL && at < prefetched;
			 at += GV_L2_LINE)
			gv_bring_line(note.item + at);
	}
};

static __device__ __forceinline__ PostingNotes
notes_of(const GvDeviceModel &model, const GvBatch &batch, int query)
{
	return {model, batch.d_items == NULL ? NULL :
		batch.d_items + (int64_t) query * batch.k,
		(int64_t) batch.n * batch.k * model.item_bytes <= PREFETCHED ?
		model.item_bytes : 0};
}

/* A source of all postings of a query's probes. */
struct AllPostings
{
	typedef PostingItem Item;
	static constexpr bool IS_EARLY = true;
	const float *scores;
	const uint64_t *ids;
	uint32_t	n;
	uint32_t	k;
	GvSearchCounts early;		/* read before the wait */

	/* The counts, in shared memory because registers are for keys. */
	typedef GvSearchCounts Shared;

	static __host__ __device__ __forceinline__ const GvSlices &
	slices(const GvBatch &batch)
	{
		return batch.posting_slices;
	}

	__device__ __forceinline__ void
	begin(const GvDeviceModel &model, const GvBatch &batch, int query)
	{
		k = gv_read_before_wait(&batch.d_params[query].k);
		early = gv_counts_before_wait(batch, query);
		scores = batch.d_scores + (int64_t) query * batch.postings;
		ids = batch.d_ids + (int64_t) query * batch.postings;
		n = early.nblocks * GV_BLOCK;
	}

	__device__ __forceinline__ void
	follow(const GvBatch &batch, int query, Shared &shared)
	{
		/*
		 * If there was no scan, the step before has just numbered the lists,
		 * so its counts must be read after the wait.
		 */
		if (threadIdx.x == 0)
			shared = batch.postings == 0 ? batch.d_search_counts[query] :
				early;
		if (batch.postings == 0)
			n = 0;
		else if (batch.d_nscores != NULL)
			n = batch.d_nscores[query];
	}

	__device__ __forceinline__ bool
	take_all(const GvDeviceModel &, const GvBatch &, int, Shared &) const
	{
		return false;
	}

	__device__ __forceinline__ uint32_t
	key(int i) const
	{
		uint32_t	key = gv_ordered(__ldcg(scores + i));

		return key < gv_ordered(GV_INFINITY) ? key : GV_SIFT_NONE;
	}

	__device__ __forceinline__ uint64_t
	id(int i) const
	{
		return ids[i];
	}

	static __device__ __forceinline__ Item
	mark(uint32_t key, uint32_t i)
	{
		return {key, i, 0};
	}

	__device__ __forceinline__ Item
	resolve(const Item &marked) const
	{
		uint64_t	id = ids[marked.high];

		return {marked.key, (uint32_t) (id >> 32), (uint32_t) id};
	}

	/*
	 * Writes a query's answer; called by all threads of a block.  Hit i has
	 * key key_at(i) and id id_at(i).
	 */
	template <typename KeyAt, typename IdAt>
	static __device__ __forceinline__ void
	write(const GvBatch &batch, int query, uint32_t count, KeyAt key_at,
		  IdAt id_at, const Shared &shared)
	{
		if (gv_select_downloads(batch))
			gv_download_probes(batch, query, shared.nlisted);
		for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
			gv_download_hit(batch, (int64_t) query * batch.k + i, key_at(i),
							id_at(i) >> 16, id_at(i) & 0xFFFF);
		if (threadIdx.x == 0)
			gv_download_counts(batch, query, shared, count);
	}

	/*
	 * Writes a query's answer and, if there is a bounds step, the addresses of
	 * the hits' refine records.
	 */
	static __device__ __forceinline__ void
	finish(const GvDeviceModel &model, const GvBatch &batch, int query,
		   const Item *items, uint32_t count, const Shared &shared)
	{
		PostingNotes notes = notes_of(model, batch, query);
		auto		id_at = [&](uint32_t i)
		{
			return (uint64_t) items[i].high << 32 | items[i].low;
		};

		write(batch, query, count, [&](uint32_t i)
		{
			return items[i].key;
		}, id_at, shared);
		for (uint32_t i = threadIdx.x; i < count; i += NTHREADS)
		{
			PostingNotes::Note note = notes.note(id_at(i));

			notes.go_on(note, id_at(i));
			notes.keep(i, note);
		}
	}
};

/*
 * ----
 * Selections of few items by one block of threads for each query.
 */

/* Notes for gv_sift.  They load the entries of the selected lists. */
struct ListNotes
{
	typedef GvDeviceList Note;
	const GvDeviceList *lists;
	GvDeviceList *chosen;		/* shared */

	__device__ __forceinline__ GvDeviceList
	note(uint64_t id) const
	{
		return lists[id];
	}

	__device__ __forceinline__ void
	go_on(GvDeviceList &note, uint64_t id) const
	{
	}

	__device__ __forceinline__ void
	keep(uint32_t rank, const GvDeviceList &note) const
	{
		chosen[rank] = note;
	}
};

/*
 * A block selects the nearest lists of query blockIdx.x, up to GV_SIFT_MOST,
 * and numbers their blocks.
 */
static __global__ void __launch_bounds__(GV_SIFT_THREADS, 2)
sift_lists_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ GvSift sift;
	alignas(16) __shared__ GvDeviceList chosen[GV_SIFT_MOST];
	__shared__ GvNumbering numbering;
	int			query = blockIdx.x;
	AllLists	source;

	gv_pdl_trigger_after_wait();
	source.begin(model, batch, query);
	if (source.take_all(model, batch, query, numbering))
		return;
	gv_sift<KEYS>(source, ListNotes {model.d_lists, chosen}, source.n,
				  source.k, sift);
	gv_number_lists<1>(batch, query, source.k, [&](int i)
	{
		return GvListItem {sift.keys[i], (uint32_t) sift.places[i]};
	}, [&](int i, const GvListItem &)
	{
		return chosen[i];
	}, numbering);
}

/* For filtered postings, blocks are small, so that an SM has eight of them. */
typedef GvSiftOf<GV_SIFT_FEW_THREADS, GV_SIFT_FEW_ROOM> FewSift;

/*
 * A block selects the best postings of query blockIdx.x, up to GV_SIFT_MOST,
 * in ascending order of (S, row id).  Each thread loads AT_ONCE keys at a
 * time.
 */
template <typename Sift, int AT_ONCE, int RESIDENT>
static __global__ void __launch_bounds__(Sift::THREADS, RESIDENT)
sift_postings_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ Sift sift;
	__shared__ GvSearchCounts found;
	int			query = blockIdx.x;
	AllPostings source;
	uint32_t	count;

	source.begin(model, batch, query);
	gv_pdl_trigger_after_wait();
	source.follow(batch, query, found);
	__syncthreads();
	count = gv_sift<AT_ONCE>(source, notes_of(model, batch, query), source.n,
							 source.k, sift);
	AllPostings::write(batch, query, count, [&](uint32_t i)
	{
		return sift.keys[i];
	}, [&](uint32_t i)
	{
		return sift.ids[i];
	}, found);
}

/*
 * ----
 * Selection in two passes.
 *
 * After Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs",
 * 2017, sections 4.2 (WarpSelect) and 5.3 ("Multi-pass kernels").  As in the
 * paper, one comparison drops an item beyond a threshold, and other items are
 * appended to an unsorted queue.  A full queue is sorted and merged with the k
 * smallest items so far, and the k-th of these is the next threshold.  Unlike
 * in the paper, the queue and the k smallest items are one array in the shared
 * memory of a block, and a threshold is found before any item is taken: all
 * keys are read once, each thread keeps minima of some of its keys, and a key
 * that k minima do not exceed is at least the k-th smallest of all keys.  So
 * the queue is usually sorted only once, and k can be 2,048 without more
 * registers.
 *
 * If there are too few queries to fill the device, the items of each query are
 * divided into slices, and the first pass takes these:
 *
 * thresholds_kernel	c = k / slices of a slice's keys do not exceed its
 *					threshold, so k of all keys do not exceed the greatest of
 *					the slices' thresholds
 * filter_kernel	stores the items that do not exceed that, some dozens of
 *					each slice
 * select_kernel	a block a query sorts them: the second pass; or it does
 *					everything, if there is one slice
 *
 * Nothing is kept from one batch to the next, and no block waits for another.
 *
 * A slice has every n-th line of 32 items, because good items are often
 * consecutive: lists are scanned in the order of their distance.  Ties are
 * broken by row id, so items whose key is equal to the threshold are kept,
 * too.  If more items are kept than fit, mostly because of ties, the block
 * begins again, takes NTHREADS items at a time, and sorts as often as
 * necessary.  This is slower, but correct for any input, even for damaged
 * lists that contain one row a thousand times.
 */

#define GROUPS			8		/* minima that a thread keeps to find a
								 * threshold */
#define FEW				2048	/* items in shared memory; k is at most a
								 * quarter of them */
#define MANY			4096
#define ANY_KEY			(GV_SIFT_NONE - 1)	/* all items are within it */
#define MAX_POSTINGS	(INT64_C(1) << 31)	/* numbered by 32 bits */
#define MAX_SLICES		64		/* each lane of a warp has the counts of two
								 * slices */
#define LEAST_SLICE		8192	/* least items of a slice */

/*
 * For tests.  gv_select_by tells what is always selected in two passes: lists
 * (1), postings (2) or both (3); 0: two passes are used only if nothing else
 * works, and CUB sorts in place of manypostings.cu; negative: the faster way is
 * used.  If gv_least_slice is not 0, slices have about this many items, however
 * many slices there are then; 0: the best number.
 */
GV_TUNABLE int32_t gv_select_by = -1;
GV_TUNABLE int32_t gv_least_slice = 0;

#define BY_LISTS		1		/* bits of gv_select_by */
#define BY_POSTINGS		2

/* -- reading keys, and a threshold of them */

/* A block's share of a query's items. */
struct SliceShare
{
	uint32_t	slice;
	uint32_t	nslices;

	/* Returns item number `slot` of this thread. */
	__device__ __forceinline__ uint32_t
	at(uint32_t slot) const
	{
		uint32_t	line = slot * (NTHREADS / GV_WARP) + threadIdx.x / GV_WARP;

		return (line * nslices + slice) * GV_WARP + threadIdx.x % GV_WARP;
	}

	/* Returns the slots of each thread, of n items. */
	__device__ __forceinline__ uint32_t
	nslots(uint32_t n) const
	{
		uint32_t	step = NTHREADS * nslices;

		return (n + step - 1) / step;
	}
};

/* Returns into how many slices n items are divided. */
static __device__ __forceinline__ uint32_t
count_slices(const GvSlices &slices, uint32_t n)
{
	return slices.n <= 1 ? 1 : max(1u, min(slices.n, n / slices.least));
}

/*
 * Loads the keys of a thread's items from slot first_slot on.  The key of an
 * item that does not exist is GV_SIFT_NONE.
 */
template <typename Source, int N>
static __device__ __forceinline__ void
load_keys(const Source &source, const SliceShare &share, uint32_t first_slot,
		  uint32_t (&keys)[N])
{
#pragma unroll
	for (int r = 0; r < N; r++)
	{
		uint32_t	i = share.at(first_slot + r);

		keys[r] = i < source.n ? source.key(i) : GV_SIFT_NONE;
	}
}

/*
 * Returns a key that at least c items of the share, and few more, do not
 * exceed, or ANY_KEY if there are too few items.  A thread keeps GROUPS
 * minima, each over every GROUPS-th of its items, because neighboring items
 * are similar.  keys contains the keys of the thread's first slots on entry,
 * and those of its last slots on return.
 */
template <typename Source, int N>
static __device__ __forceinline__ uint32_t
find_threshold(const Source &source, const SliceShare &share, uint32_t c,
			   uint32_t (&keys)[N], uint32_t (*slots)[GV_WARP])
{
	GvBlockReduce reduce = {slots, 0};
	uint32_t	nslots = share.nslots(source.n);
	uint32_t	minima[GROUPS];
	uint32_t	least;
	uint32_t	most = 0;
	uint32_t	nreal = 0;

#pragma unroll
	for (int g = 0; g < GROUPS; g++)
		minima[g] = GV_SIFT_NONE;
	for (uint32_t first = 0; first < nslots; first += N)
	{
		if (first > 0)
			load_keys(source, share, first, keys);
#pragma unroll
		for (int r = 0; r < N; r++)
			minima[r % GROUPS] = min(minima[r % GROUPS], keys[r]);
	}
	least = minima[0];
#pragma unroll
	for (int g = 0; g < GROUPS; g++)
	{
		least = min(least, minima[g]);
		most = max(most, minima[g] == GV_SIFT_NONE ? 0 : minima[g]);
		nreal += minima[g] != GV_SIFT_NONE;
	}
	nreal = reduce.sum(nreal);
	if (nreal < c)
		return ANY_KEY;
	return gv_narrow_bound(least, most, nreal, c, c / 8 + 1, [&](uint32_t key)
	{
		uint32_t	count = 0;

#pragma unroll
		for (int g = 0; g < GROUPS; g++)
			count += minima[g] <= key;
		return count;
	}, reduce);
}

/*
 * Stores the share's items whose keys do not exceed a threshold, as
 * Source::mark returns them, and returns how many there are.  Items beyond the
 * capacity are not stored.  If a thread has at most N items, keys contains
 * their keys already.  *count is in shared memory, and 0 on entry.  Ends with
 * a barrier.
 */
template <typename Source, int N>
static __device__ __forceinline__ uint32_t
collect(const Source &source, const SliceShare &share, uint32_t threshold,
		uint32_t (&keys)[N], typename Source::Item *items,
		uint32_t capacity, uint32_t *count)
{
	uint32_t	nslots = share.nslots(source.n);

	for (uint32_t first = 0; first < nslots; first += N)
	{
		uint32_t	mine = 0;
		uint32_t	at;

		if (nslots > N)
			load_keys(source, share, first, keys);
#pragma unroll
		for (int r = 0; r < N; r++)
			mine += keys[r] <= threshold;
		at = gv_reserve(mine, count);
		if (mine == 0)
			continue;
#pragma unroll
		for (int r = 0; r < N; r++)
			if (keys[r] <= threshold)
			{
				if (at < capacity)
					items[at] = Source::mark(keys[r], share.at(first + r));
				at++;
			}
	}
	__syncthreads();
	return *count;
}

/*
 * Sorts n <= CAPACITY items in shared memory.  Only the first k items are sure
 * to be correct afterwards.  Begins and ends with a barrier.
 */
template <int CAPACITY, typename Item>
static __device__ __forceinline__ void
sort_items(Item *items, uint32_t n, uint32_t k, GvBins &bins)
{
	if (n <= NTHREADS / GV_QUAD)
		gv_sort_by_counting(items, n);
	else if (!gv_bins_sort<CAPACITY>(items, n, min(k, n), bins))
		gv_bitonic_sort(items, n);
}

/* -- the first pass */

/* Block (x, y) finds the threshold of slice x of query y. */
template <typename Source>
static __global__ void __launch_bounds__(NTHREADS, 2)
thresholds_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ uint32_t slots[2][GV_WARP];
	const GvSlices &slices = Source::slices(batch);
	int			query = blockIdx.y;
	uint32_t	keys[KEYS];
	Source		source;
	uint32_t	nslices;
	uint32_t	threshold;

	gv_pdl_trigger_after_wait();
	source.begin(model, batch, query);
	nslices = count_slices(slices, source.n);
	if (nslices == 1 || blockIdx.x >= nslices)
		return;

	SliceShare	share = {blockIdx.x, nslices};

	load_keys(source, share, 0, keys);
	threshold = find_threshold(source, share,
							   (source.k + nslices - 1) / nslices, keys,
							   slots);
	if (threadIdx.x == 0)
		slices.d_thresholds[query * slices.n + blockIdx.x] = threshold;
}

/*
 * Returns the greatest value of a query's slices; called by a whole warp.
 * Sets own[0] and own[1] to this lane's value among the first 32 slices and
 * among the other slices, or to 0 if there is none.
 */
static __device__ __forceinline__ uint32_t
greatest_of(const uint32_t *values, uint32_t nslices, uint32_t (&own)[2])
{
	uint32_t	lane = threadIdx.x % GV_WARP;

	own[0] = lane < nslices ? values[lane] : 0;
	own[1] = lane + GV_WARP < nslices ? values[lane + GV_WARP] : 0;
	return __reduce_max_sync(GV_FULL_WARP, max(own[0], own[1]));
}

/*
 * Block (x, y) stores the items of slice x of query y that are within the
 * threshold, and the number of these items.  Keys are read before the wait,
 * because they are older than the thresholds.  Shared memory: items
 * [slices.capacity].
 */
template <typename Source>
static __global__ void __launch_bounds__(NTHREADS, 2)
filter_kernel(GvDeviceModel model, GvBatch batch)
{
	GV_SHARED(memory);
	__shared__ uint32_t count;
	typedef typename Source::Item Item;
	Item	   *items = (Item *) memory;
	const GvSlices &slices = Source::slices(batch);
	int			query = blockIdx.y;
	int64_t		place = (int64_t) query * slices.n + blockIdx.x;
	Item	   *left = (Item *) slices.d_items + place * slices.capacity;
	uint32_t	keys[KEYS];
	uint32_t	each[2];
	Source		source;
	uint32_t	nslices;
	uint32_t	threshold;
	uint32_t	n;

	source.begin(model, batch, query);
	nslices = count_slices(slices, source.n);

	SliceShare	share = {blockIdx.x, nslices};

	if (nslices > 1 && blockIdx.x < nslices)
		load_keys(source, share, 0, keys);
	gv_pdl_trigger_after_wait();
	if (nslices == 1 || blockIdx.x >= nslices)
		return;
	if (threadIdx.x == 0)
		count = 0;
	threshold = greatest_of(slices.d_thresholds + query * slices.n, nslices,
							each);
	__syncthreads();
	n = collect(source, share, threshold, keys, items, slices.capacity,
				&count);
	if (threadIdx.x == 0)
		slices.d_counts[place] = n;
	for (uint32_t i = threadIdx.x; i < min(n, slices.capacity); i += NTHREADS)
		left[i] = source.resolve(items[i]);
}

/* -- the second pass */

/*
 * Copies the items that the first pass kept of a query to shared memory, and
 * returns their number.  If the number is larger than `capacity`, items are
 * missing.  Sets *threshold to the threshold of the query's items.
 */
template <typename Item>
static __device__ __forceinline__ uint32_t
gather(const GvSlices &slices, uint32_t nslices, int query, Item *items,
	   uint32_t capacity, uint32_t *threshold)
{
	const Item *left = (const Item *) slices.d_items +
		(int64_t) query * slices.n * slices.capacity;
	uint32_t	counts[2];
	uint32_t	upto[2];
	uint32_t	total;

	*threshold = greatest_of(slices.d_thresholds + query * slices.n, nslices,
							 counts);
	if (greatest_of(slices.d_counts + query * slices.n, nslices, counts) >
		slices.capacity)
		return capacity + 1;
	upto[0] = gv_upto_lane(counts[0]);
	upto[1] = gv_upto_lane(counts[1]) +
		__shfl_sync(GV_FULL_WARP, upto[0], GV_WARP - 1);
	total = __shfl_sync(GV_FULL_WARP, upto[1], GV_WARP - 1);
	if (total > capacity)
		return total;
	for (uint32_t p = threadIdx.x / GV_WARP; p < nslices;
		 p += NTHREADS / GV_WARP)
	{
		bool		is_first = p < GV_WARP;
		uint32_t	end = __shfl_sync(GV_FULL_WARP, is_first ? upto[0] :
									  upto[1], p % GV_WARP);
		uint32_t	n = __shfl_sync(GV_FULL_WARP, is_first ? counts[0] :
									counts[1], p % GV_WARP);

		for (uint32_t i = threadIdx.x % GV_WARP; i < n; i += GV_WARP)
			items[end - n + i] = left[(int64_t) p * slices.capacity + i];
	}
	return total;
}

/*
 * A block selects the k smallest items of query blockIdx.x, k + NTHREADS <=
 * CAPACITY.  If BINNED > 0, items are lists, up to BINNED for each thread, and
 * the block first tries to sort the lists in bins.  Shared memory: items
 * [CAPACITY].
 */
template <typename Source, int CAPACITY, int BINNED>
static __global__ void __launch_bounds__(NTHREADS, CAPACITY == FEW ? 2 : 1)
select_kernel(GvDeviceModel model, GvBatch batch)
{
	GV_SHARED(memory);
	__shared__ uint32_t slots[2][GV_WARP];
	__shared__ uint32_t count;
	__shared__ typename Source::Shared shared;
	__shared__ GvBins bins;
	typedef typename Source::Item Item;
	Item	   *items = (Item *) memory;
	const GvSlices &slices = Source::slices(batch);
	bool		is_early = Source::IS_EARLY || slices.n > 1;
	int			query = blockIdx.x;
	uint32_t	threshold = ANY_KEY;
	uint32_t	total = 0;
	uint32_t	nslots;
	uint32_t	slot;
	bool		is_sorted = false;
	Item		last = Item::worst();
	SliceShare	all = {0, 1};
	Source		source;

	if (is_early)
		source.begin(model, batch, query);
	gv_pdl_trigger_after_wait();
	if (!is_early)
		source.begin(model, batch, query);
	source.follow(batch, query, shared);
	if (source.take_all(model, batch, query, shared))
		return;
	if (threadIdx.x == 0)
		count = 0;
	__syncthreads();

	/* 1. find the items within a threshold */
	nslots = all.nslots(source.n);
	if (source.k > 0)			/* a padding query has k = 0 */
	{
		uint32_t	nslices = count_slices(slices, source.n);

		if (nslices > 1)
			total = gather(slices, nslices, query, items, CAPACITY,
						   &threshold);
		else
		{
			uint32_t	keys[BINNED > 0 ? BINNED : KEYS];

			load_keys(source, all, 0, keys);
			if constexpr (BINNED > 0)
				is_sorted =
					gv_bins_nearest<CAPACITY, BINNED>(items, source.n,
													  source.k, bins,
													  [&](int r)
				{
					return keys[r];
				}, [&](int r)
				{
					return Source::mark(keys[r], all.at(r));
				});
			if (is_sorted)
				total = source.k;
			else
			{
				/* if there are only a few items, sort all of them */
				if (source.n > 2 * source.k)
					threshold = find_threshold(source, all, source.k, keys,
											   slots);
				total = collect(source, all, threshold, keys, items, CAPACITY,
								&count);
				if (total <= CAPACITY)
#pragma unroll 2
					for (uint32_t i = threadIdx.x; i < total; i += NTHREADS)
						items[i] = source.resolve(items[i]);
			}
		}
	}

	/*
	 * 2. Find the k smallest of these items.  If they do not fit, find the k
	 * smallest of all items: take as many items at a time as fit behind the k
	 * smallest items so far.
	 */
	slot = total <= CAPACITY ? nslots : 0;
	if (total > CAPACITY)
	{
		total = 0;
		__syncthreads();
		if (threadIdx.x == 0)
			count = 0;
	}
	while (!is_sorted)
	{
		for (; slot < nslots && total + NTHREADS <= CAPACITY; slot++)
		{
			uint32_t	i = all.at(slot);
			uint32_t	key = i < source.n ? source.key(i) : GV_SIFT_NONE;
			Item		item = Item::worst();
			bool		is_taken;
			uint32_t	at;

			if (key <= threshold)
				item = source.resolve(Source::mark(key, i));
			is_taken = item.before(last);
			__syncthreads();
			at = gv_take_place(__ballot_sync(GV_FULL_WARP, is_taken), &count);
			if (is_taken)
				items[at] = item;
			__syncthreads();
			total = count;
		}
		sort_items<CAPACITY>(items, total, source.k, bins);
		total = min(total, source.k);
		is_sorted = slot >= nslots;
		if (!is_sorted && total == source.k)
			last = items[total - 1];
		if (threadIdx.x == 0)
			count = total;
	}

	Source::finish(model, batch, query, items, total, shared);
}

/* -- selections too large for select_kernel: CUB sorts, query by query */

typedef unsigned __int128 SortItem; /* key, row id, probe */

#define KEY_BIT			80		/* first bit of the key */
#define ROWID_BIT		32
#define SORT_BITS		112

/*
 * Sorts n items from the array `first` into the array `second`.  Both arrays
 * are in searcher->d_sort.
 */
template <typename Item>
struct CubSort
{
	Item	   *first;
	Item	   *second;
	void	   *temporary;
	size_t		temporary_bytes;

	GvStatus
	take_memory(GvSearcher *searcher, int64_t n)
	{
		size_t		item_bytes = (n * sizeof(Item) + 255) / 256 * 256;
		char	   *memory;

		GV_CUDA_TRY(cub::DeviceRadixSort::SortKeys(NULL, temporary_bytes,
												   (const Item *) NULL,
												   (Item *) NULL, n));
		GV_TRY(gv_buffer_need(&searcher->d_sort,
							  2 * item_bytes + temporary_bytes));
		memory = (char *) searcher->d_sort.memory;
		first = (Item *) memory;
		second = (Item *) (memory + item_bytes);
		temporary = memory + 2 * item_bytes;
		return GV_OK;
	}

	GvStatus
	run(int64_t n, int first_bit, int end_bit, cudaStream_t stream) const
	{
		size_t		bytes = temporary_bytes;

		return gv_cuda_status(cub::DeviceRadixSort::SortKeys(temporary, bytes,
															 (const Item *)
															 first, second, n,
															 first_bit,
															 end_bit, stream));
	}
};

/*
 * A thread makes the item of a list.  The sort is stable, and items are in the
 * order of lists, so the sort need not compare the lists' numbers.
 */
static __global__ void
list_items_kernel(const float *scores, int n, uint64_t *items)
{
	int			i = blockIdx.x * NTHREADS + threadIdx.x;

	if (i < n)
		items[i] = (uint64_t) gv_ordered(scores[i]) << 32 | (uint32_t) i;
}

/* One block numbers the nearest lists. */
static __global__ void __launch_bounds__(NTHREADS)
number_kernel(GvDeviceModel model, GvBatch batch, int query,
			  const uint64_t *items)
{
	__shared__ GvNumbering numbering;
	AllLists	source;

	source.begin(model, batch, query);
	if (source.take_all(model, batch, query, numbering))
		return;
	gv_number_lists<EACH>(model, batch, query, (int) source.k, [&](int i)
	{
		return GvListItem {(uint32_t) (items[i] >> 32), (uint32_t) items[i]};
	}, numbering);
}

static GvStatus
sort_lists(const GvDeviceModel *model, const GvBatch *batch,
		   GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int64_t		n = model->nlists;
	CubSort<uint64_t> sort;

	GV_TRY(sort.take_memory(searcher, n));
	for (int query = 0; query < batch->n; query++)
	{
		GV_TRY(gv_launch(list_items_kernel, gv_blocks_for(n, NTHREADS),
						 NTHREADS, 0, stream, batch->d_coarse +
						 query * gv_score_stride(model->nlists), (int) n,
						 sort.first));
		GV_TRY(sort.run(n, 32, 64, stream));
		GV_TRY(gv_launch(number_kernel, 1, NTHREADS, 0, stream, *model, *batch,
						 query, sort.second));
	}
	return GV_OK;
}

/*
 * A thread makes one of n items, one for each score that the query has memory
 * for.
 */
static __global__ void
posting_items_kernel(GvDeviceModel model, GvBatch batch, int query, int64_t n,
					 SortItem *items)
{
	const uint32_t *starts = batch.d_starts +
		(int64_t) query * (batch.nprobe + 1);
	int64_t		i = (int64_t) blockIdx.x * NTHREADS + threadIdx.x;
	uint32_t	b = (uint32_t) (i / GV_BLOCK);
	uint32_t	key = GV_SIFT_NONE;
	uint64_t	rowid = 0;
	int			probe = 0;

	if (i >= n)
		return;
	if (b < batch.d_search_counts[query].nblocks)
		key = gv_ordered(batch.d_scores[(int64_t) query * batch.postings + i]);
	if (key < gv_ordered(GV_INFINITY))
	{
		const uint8_t *block;

		probe = gv_probe_of(starts, batch.d_search_counts[query].nprobed, b);
		block = batch.d_list_blocks[(int64_t) query * batch.nprobe + probe] +
			(int64_t) (b - starts[probe]) * model.shape.block_bytes;
		rowid = gv_id_in(block, model.shape, i % GV_BLOCK, 0) >> 16;
	}
	items[i] = (SortItem) key << KEY_BIT | (SortItem) rowid << ROWID_BIT |
		(uint32_t) probe;
}

/*
 * A thread writes a hit, and the thread of the last hit stores the number of
 * hits.
 */
static __global__ void
sorted_hits_kernel(GvBatch batch, int query, int64_t n, const SortItem *items)
{
	uint32_t	dead = gv_ordered(GV_INFINITY);
	int64_t		k = min((int64_t) batch.d_params[query].k, n);
	int64_t		i = (int64_t) blockIdx.x * NTHREADS + threadIdx.x;

	if (i == 0 && (k == 0 || (uint32_t) (items[0] >> KEY_BIT) >= dead))
		batch.d_search_counts[query].nhits = 0;
	if (i >= k || (uint32_t) (items[i] >> KEY_BIT) >= dead)
		return;
	if (i + 1 == k || (uint32_t) (items[i + 1] >> KEY_BIT) >= dead)
		batch.d_search_counts[query].nhits = (int32_t) i + 1;
	gv_download_hit(batch, (int64_t) query * batch.k + i,
					(uint32_t) (items[i] >> KEY_BIT),
					(uint64_t) (items[i] >> ROWID_BIT) & 0xFFFFFFFFFFFF,
					(uint32_t) items[i]);
}

/* A block writes the probes and counts of query blockIdx.x to the host. */
static __global__ void
sorted_found_kernel(GvBatch batch)
{
	int			query = blockIdx.x;
	GvSearchCounts found = batch.d_search_counts[query];

	if (gv_select_downloads(batch))
		gv_download_probes(batch, query, found.nlisted);
	__syncthreads();
	if (threadIdx.x == 0)
		gv_download_counts(batch, query, found,
						   batch.postings > 0 ? found.nhits : 0);
}

static GvStatus
sort_postings(const GvDeviceModel *model, const GvBatch *batch,
			  GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int64_t		n = batch->d_bins != NULL ? 0 : batch->postings;
	CubSort<SortItem> sort;

	if (batch->d_bins != NULL)
		GV_TRY(gv_gpu_bin_postings(model, batch, searcher));
	if (n > 0)
		GV_TRY(sort.take_memory(searcher, n));
	for (int query = 0; query < batch->n && n > 0; query++)
	{
		GV_TRY(gv_launch(posting_items_kernel, gv_blocks_for(n, NTHREADS),
						 NTHREADS, 0, stream, *model, *batch, query, n,
						 sort.first));
		GV_TRY(sort.run(n, ROWID_BIT, SORT_BITS, stream));
		GV_TRY(gv_launch(sorted_hits_kernel,
				  gv_blocks_for(n < batch->k ? n : batch->k, NTHREADS),
				  NTHREADS, 0, stream, *batch, query, n, sort.second));
	}
	return gv_launch(sorted_found_kernel, batch->n, NTHREADS, 0, stream,
					 *batch);
}

/* -- the steps of a batch */

/*
 * Determines the slices of n queries with nitems items each, and places the
 * arrays of the first pass, which keeps the items that may be among the k
 * smallest.
 */
static void
place_slices(GvSlices *slices, int nsms, int32_t n, int64_t nitems, int32_t k,
			 size_t item_bytes, char *memory, size_t *bytes)
{
	int32_t		least = gv_least_slice > 0 ? gv_least_slice : LEAST_SLICE;
	int64_t		most = gv_least_slice > 0 ? MAX_SLICES :
		2 * (int64_t) nsms / n;

	most = std::min({most, nitems / least, (int64_t) MAX_SLICES});
	if (most <= 1)
		return;
	slices->n = (uint32_t) most;
	slices->least = (uint32_t) least / 2;
	/* a slice may keep much more than an equal part of k */
	slices->capacity = (uint32_t) std::max(k, (k <= FEW / 4 ? FEW : MANY) / 4);
	gv_place(&slices->d_thresholds, memory, bytes, n * most);
	gv_place(&slices->d_counts, memory, bytes, n * most);
	gv_place((char **) &slices->d_items, memory, bytes,
			 n * most * slices->capacity * (int64_t) item_bytes);
}

/*
 * Postings are divided into slices only if the scan does not filter them,
 * because a scan that filters leaves few scores, however many there is memory
 * for.
 */
void
gv_gpu_place_slices(const GvDeviceModel *model, const GvSearcher *searcher,
					GvBatch *batch, char *memory, size_t *bytes)
{
	/*
	 * store gv_select_by, so that a graph that was recorded for one way is not
	 * replayed for another
	 */
	batch->list_slices.select_by = gv_select_by;
	if (gv_select_by != 0 && model->nlists > MOST_BINNED &&
		batch->nselected > 0 && batch->nselected <= GV_MANY_PROBES &&
		!gv_gpu_coarse_filter_pays(model, batch))
		place_slices(&batch->list_slices, searcher->nsms, batch->n,
					 model->nlists, batch->nselected, sizeof(GvListItem),
					 memory, bytes);
	if (gv_select_by != 0 && batch->tests == 0 && !batch->by_list &&
		!gv_gpu_sorts_postings(batch))
		place_slices(&batch->posting_slices, searcher->nsms, batch->n,
					 batch->postings, batch->k,
					 sizeof(PostingItem), memory, bytes);
}

/* Launches the second pass, or the only one. */
template <typename Source, int CAPACITY, int BINNED>
static GvStatus
launch_select(const GvDeviceModel *model, const GvBatch *batch,
			  cudaStream_t stream)
{
	return gv_launch_step(select_kernel<Source, CAPACITY, BINNED>, batch->n,
						  NTHREADS, CAPACITY * sizeof(typename Source::Item),
						  stream, model, batch);
}

template <typename Source>
static GvStatus
launch_passes(const GvDeviceModel *model, const GvBatch *batch, int32_t k,
			  cudaStream_t stream)
{
	const GvSlices &slices = Source::slices(*batch);
	dim3		grid(slices.n, batch->n);

	if (slices.n > 1)
	{
		GV_TRY(gv_launch_step(thresholds_kernel<Source>, grid, NTHREADS, 0,
							  stream, model, batch));
		GV_TRY(gv_launch_step(filter_kernel<Source>, grid, NTHREADS,
							  slices.capacity *
							  sizeof(typename Source::Item), stream, model,
							  batch));
	}
	return (k <= FEW / 4 ? launch_select<Source, FEW, 0> :
			launch_select<Source, MANY, 0>) (model, batch, stream);
}

bool
gv_gpu_sorts_postings(const GvBatch *batch)
{
	return batch->k > GV_MANY_POSTINGS || batch->nprobe > MAX_PROBES ||
		batch->postings > MAX_POSTINGS;
}

bool
gv_gpu_can_sift(const GvBatch *batch)
{
	return batch->k <= GV_SIFT_MOST &&
		batch->nprobe <= GV_MANY_PROBES && batch->postings <= MOST_SIFTED;
}

/*
 * Launches the selection of lists, which makes d_probed, d_starts and
 * d_search_counts from d_coarse.
 */
GvStatus
gv_gpu_select_lists(const GvDeviceModel *model, const GvBatch *batch,
					GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;

	if (batch->nselected > GV_MANY_PROBES)
		return sort_lists(model, batch, searcher);
	if ((gv_select_by > 0 && (gv_select_by & BY_LISTS) != 0) ||
		batch->list_slices.n > 1 || (batch->nselected > GV_SIFT_MOST &&
									 model->nlists > MOST_BINNED))
		return launch_passes<AllLists>(model, batch, batch->nselected, stream);
	if (batch->nselected <= GV_SIFT_MOST)
		return gv_launch_step(sift_lists_kernel, batch->n, GV_SIFT_THREADS, 0,
							  stream, model, batch);
	return (model->nlists <= KEYS * NTHREADS ?
			launch_select<AllLists, MANY, KEYS> :
			launch_select<AllLists, MANY, MOST_KEYS>) (model, batch, stream);
}

/* A block numbers the lists of query blockIdx.x, which were chosen before. */
static __global__ void __launch_bounds__(GV_SIFT_THREADS)
take_lists_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ GvNumbering numbering;
	int			query = blockIdx.x;
	const GvProbe *probes = batch.in_probed + (int64_t) query * batch.nprobe;

	gv_pdl_trigger_after_wait();
	gv_number_lists<1>(model, batch, query, batch.d_params[query].nprobe,
					   [&](int i)
	{
		return GvListItem {gv_ordered(probes[i].base),
			(uint32_t) probes[i].list};
	}, numbering);
}

GvStatus
gv_gpu_take_lists(const GvDeviceModel *model, const GvBatch *batch,
				  const GvSearcher *searcher)
{
	return gv_launch_step(take_lists_kernel, batch->n, GV_SIFT_THREADS, 0,
						  searcher->stream, model, batch);
}

/*
 * Launches the selection of postings, which makes d_hits and all other answers
 * except bounds from d_scores.
 */
GvStatus
gv_gpu_select_postings(const GvDeviceModel *model, const GvBatch *batch,
					   GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;

	if (gv_gpu_sorts_postings(batch))
		return sort_postings(model, batch, searcher);
	if ((gv_select_by > 0 && (gv_select_by & BY_POSTINGS) != 0) ||
		batch->posting_slices.n > 1 || !gv_gpu_can_sift(batch))
		return launch_passes<AllPostings>(model, batch, batch->k, stream);
	if (batch->by_list)
		return gv_launch_step(sift_postings_kernel<FewSift, 4, 8>, batch->n,
							  FewSift::THREADS, 0, stream, model, batch);
	return gv_launch_step(sift_postings_kernel<GvSift, KEYS, 2>, batch->n,
						  GvSift::THREADS, 0, stream, model, batch);
}
