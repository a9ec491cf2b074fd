/*
 * best.cu
 *		The nearest lists of a query, and the best postings in them.
 *
 * One block of threads a query.  Few are sifted out (sift.cuh).  Many lists,
 * of not too many, are counted and sorted in bins (bins.cuh).  More are
 * selected by WarpSelect (warpselect.cuh): each warp from its share of the
 * scores; the bound of one is a bound for all, through shared memory; then the
 * warps' queues are merged.  Numbers that WarpSelect cannot take are left to
 * sort.cu.
 */
#include "gpu/coarse/number.cuh"
#include "gpu/common/bins.cuh"
#include "gpu/common/bisect.cuh"
#include "gpu/common/common.cuh"
#include "gpu/common/sift.cuh"
#include "gpu/index/give.cuh"
#include "gpu/index/gv_index.h"

#define MAX_PROBES		65536	/* GvNearestPosting has 16 bits for the
								 * probe */
#define MOST_SIFTED		(INT64_C(1) << 30)	/* postings: they are int there */
#define OWN_SHARED		64		/* bytes that the kernels themselves declare */
#define PICK_THREADS	GV_BINS_THREADS
#define PICK_CAPACITY		3072	/* GV_MANY_PROBES, and what a bin has
									 * beyond */
#define PICKED_FROM		20		/* lists of a thread, whose scores stay in */
#define MOST_PICKED_FROM	40	/* registers, and in L1 */

/*
 * Lower the block's bound to this warp's, and this warp's to the block's.
 * shared_key: an upper bound of the k-th key of all; only keys are shared, so
 * an item with the same key still counts.
 */
template <typename Select>
static __device__ __forceinline__ void
share_bound(Select &select, uint32_t *shared_key)
{
	uint32_t	key = select.bound.key;

	if (threadIdx.x % GV_WARP == 0)
		key = min(key, atomicMin(shared_key, key));
	select.limit_key(__shfl_sync(GV_FULL_WARP, key, 0));
}

/* How many of the first k items of a sorted array are real? */
template <typename Item>
static __device__ __forceinline__ int
count_real(const Item *items, int k)
{
	int			low = 0;
	int			high = k;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (items[middle].key != 0xFFFFFFFFu)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* All lists, as a source for gv_sift. */
struct ListSource
{
	static constexpr int KEYS = 20;
	const float *scores;

	__device__ __forceinline__ uint32_t
	key(int i) const
	{
		return gv_ordered(scores[i]);
	}

	__device__ __forceinline__ uint64_t
	id(int i) const
	{
		return i;
	}
};

/* Notes for gv_sift: where the blocks of the lists chosen are. */
struct ListNotes
{
	typedef GvDeviceList Note;
	const GvDeviceList *lists;
	GvDeviceList *chosen;			/* shared */

	__device__ __forceinline__ GvDeviceList
	note(int i, uint64_t id) const
	{
		return lists[i];
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

/* The nearest lists of query blockIdx.x, few, and where their blocks start. */
static __global__ void __launch_bounds__(GV_SIFT_THREADS, 2)
sift_lists_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ GvSift sift;
	alignas(16) __shared__ GvDeviceList chosen[GV_SIFT_MOST];
	int			query = blockIdx.x;
	ListSource	source = {batch.d_coarse + (int64_t) query * model.nlists};
	int			k;

	gv_step_follows();
	k = min(batch.d_wanted[query].probes, model.nlists);
	gv_sift(source, ListNotes {model.d_lists, chosen}, model.nlists, k, sift);
	gv_number_lists(model, batch, query, k, [&](int i)
	{
		return GvNearestList {sift.keys[i], (uint32_t) sift.places[i]};
	}, [&](int i)
	{
		return chosen[i];
	});
}

/* Many lists, while they are chosen. */
struct Pick
{
	uint64_t	items[PICK_CAPACITY];	/* key and list, to be sorted */
	GvBins		bins;
	GvNumbering numbering;
	uint32_t	said[2][GV_WARP];	/* see GvTalk */
	uint32_t	count;
};

/*
 * Ascending; n is a power of two, 64 or more.  At strides up to 32 a warp's
 * pairs are 64 items of its own, so barriers are few.  Begins and ends with
 * one.
 */
static __device__ __forceinline__ void
sort_items(uint64_t *items, int n)
{
	__syncthreads();
	for (int size = 2; size <= n; size *= 2)
		for (int stride = size / 2; stride > 0; stride /= 2)
		{
			int			next = stride > 1 ? stride / 2 : size;

			for (int pair = threadIdx.x; pair < n / 2; pair += PICK_THREADS)
			{
				int			low = 2 * pair - (pair & (stride - 1));
				uint64_t	a = items[low];
				uint64_t	b = items[low + stride];

				if ((a > b) == ((low & size) == 0))
				{
					items[low] = b;
					items[low + stride] = a;
				}
			}
			if (stride > GV_WARP || next > GV_WARP)
				__syncthreads();
			else
				__syncwarp();
		}
}

/*
 * The k nearest of all lists, k > 0, sorted, to pick.items, however their
 * scores lie: those within a bound, and few others.  Where more lists are as
 * far as the last of them than fit, those of the smallest numbers.  Rare, so
 * not inlined.
 */
static __device__ __noinline__ void
pick_by_halving(ListSource source, int nlists, int k, Pick &pick)
{
	GvTalk		talk = {pick.said, 0};
	int			capacity = PICK_THREADS;
	GvLimit		bound;
	uint32_t	limit;
	bool		fits;
	int			lane = threadIdx.x % GV_WARP;

	while (capacity < k)
		capacity *= 2;
	if (threadIdx.x == 0)
		pick.count = 0;
	bound = gv_find_bound([&](uint32_t i)
	{
		return source.key(i);
	}, nlists, k, capacity - k, talk);
	fits = bound.count <= (uint32_t) capacity;
	limit = fits ? bound.key : bound.lower;
	for (int i = threadIdx.x; i < capacity; i += PICK_THREADS)
		pick.items[i] = ~UINT64_C(0);
	__syncthreads();
	for (int first = 0; first < nlists; first += PICK_THREADS)
	{
		int			i = first + threadIdx.x;
		uint32_t	key = i < nlists ? source.key(i) : GV_SIFT_NONE;

		if (i < nlists && key <= limit)
			pick.items[atomicAdd(&pick.count, 1u)] = (uint64_t) key << 32 | i;
	}
	if (!fits && threadIdx.x < GV_WARP)
	{
		uint32_t	at = bound.lower_count;

		for (int first = 0; first < nlists && at < (uint32_t) k;
			 first += GV_WARP)
		{
			int			i = first + lane;
			bool		tied = i < nlists && source.key(i) == bound.key;
			uint32_t	mask = __ballot_sync(GV_FULL_WARP, tied);
			uint32_t	to = at + __popc(mask & ((1u << lane) - 1));

			if (tied && to < (uint32_t) k)
				pick.items[to] = (uint64_t) bound.key << 32 | i;
			at += __popc(mask);
		}
	}
	sort_items(pick.items, capacity);
}

/* Many, of up to KEYS * PICK_THREADS. */
template <int KEYS>
static __global__ void __launch_bounds__(PICK_THREADS)
pick_lists_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ Pick pick;
	int			query = blockIdx.x;
	ListSource	source = {batch.d_coarse + (int64_t) query * model.nlists};
	uint32_t	keys[KEYS];
	int			k;

	gv_step_follows();
	k = min(batch.d_wanted[query].probes, model.nlists);
#pragma unroll
	for (int i = 0; i < KEYS; i++)
	{
		int			list = i * PICK_THREADS + threadIdx.x;

		keys[i] = list < model.nlists ? source.key(list) : GV_SIFT_NONE;
	}
	/* a batch's spare places want none */
	if (k > 0 &&
		!gv_bins_nearest<PICK_CAPACITY>(keys, model.nlists, k, pick.bins,
											 pick.items))
		pick_by_halving(source, model.nlists, k, pick);
	gv_number_many<PICK_THREADS>(model, batch, query, k, [&](int i)
	{
		return GvNearestList {(uint32_t) (pick.items[i] >> 32),
							  (uint32_t) pick.items[i]};
	}, pick.numbering);
}

/*
 * The same of many more.  Shared: items [warps / 2 or 1][32 NW].
 */
template <int NW, int NT, int WARPS>
static __global__ void __launch_bounds__(WARPS *GV_WARP)
probe_kernel(GvDeviceModel model, GvBatch batch)
{
	GV_SHARED(memory);
	__shared__ uint32_t bound;
	GvNearestList *items = (GvNearestList *) memory;
	int			query = blockIdx.x;
	int			k = min(batch.d_wanted[query].probes, model.nlists);
	const float *scores = batch.d_coarse + (int64_t) query * model.nlists;
	GvWarpSelect<GvNearestList, NW, NT> select;

	/* 1. every warp its share of the lists */
	if (threadIdx.x == 0)
		bound = 0xFFFFFFFFu;
	__syncthreads();
	select.begin(max(k, 1));	/* a batch's spare places want none */
	for (int first = 0; first < model.nlists; first += WARPS * GV_WARP)
	{
		int			list = first + threadIdx.x;
		GvNearestList	item = GvNearestList::worst();

		if (list < model.nlists)
			item = {gv_ordered(scores[list]), (uint32_t) list};
		select.offer(item);
		share_bound(select, &bound);
	}
	select.flush();

	/* 2. the warps' together */
	gv_block_merge(select, items);
	if (threadIdx.x < GV_WARP)
		select.store(items);
	__syncthreads();

	/* 3. out */
	gv_number_lists(model, batch, query, k, [&](int i)
	{
		return items[i];
	});
}

/* The postings of a query's probes, as a source for gv_sift. */
template <int KEYS_AT_ONCE>
struct CopySource
{
	static constexpr int KEYS = KEYS_AT_ONCE;
	const float *scores;
	const uint64_t *ids;

	__device__ __forceinline__ uint32_t
	key(int i) const
	{
		uint32_t	key = gv_ordered(scores[i]);

		return key < gv_ordered(__int_as_float(0x7F800000)) ? key :
			GV_SIFT_NONE;
	}

	__device__ __forceinline__ uint64_t
	id(int i) const
	{
		return ids[i];
	}
};

/*
 * Notes for gv_sift: where bounds follow, the addresses of the refine records
 * of the postings chosen.  The records come to L2 meanwhile.
 */
struct CopyNotes
{
	/* a table of pages, then a page's record */
	struct Note
	{
		const uint8_t *const *table;
		const uint8_t *record;
	};

	const GvDeviceModel &model;
	const uint8_t **records;	/* NULL: they are not wanted */

	__device__ __forceinline__ Note
	note(int i, uint64_t id) const
	{
		return {records == NULL ? NULL : model.d_tables[id >> 48], NULL};
	}

	__device__ __forceinline__ void
	go_on(Note &note, uint64_t id) const
	{
		if (note.table != NULL)
			note.record =
				gv_record_at(model, note.table[(uint32_t) (id >> 32) &
														0xFFFF],
									   (uint32_t) id >> 16);
	}

	__device__ __forceinline__ void
	keep(uint32_t rank, const Note &note) const
	{
		if (records == NULL)
			return;
		records[rank] = note.record;
		for (int at = 0; note.record != NULL && at < model.record_bytes;
			 at += GV_L2_LINE)
			gv_bring_line(note.record + at);
	}
};

/*
 * Of postings that a scan has filtered: a small block, so that many are
 * resident.
 */
typedef GvSiftOf<GV_SIFT_FEW_THREADS, GV_SIFT_FEW_ROOM> FewSift;

/*
 * The best postings of query blockIdx.x, few, ascending by (S, row id); KEYS
 * for each thread at once.
 */
template <typename Sift, int KEYS, int RESIDENT>
static __global__ void __launch_bounds__(Sift::THREADS, RESIDENT)
sift_copies_kernel(GvDeviceModel model, GvBatch batch)
{
	__shared__ Sift sift;
	__shared__ GvFound kept;	/* the first thread's: registers are for
								 * keys */
	int			query = blockIdx.x;
	int			k = gv_early(&batch.d_wanted[query].capacity);
	GvFound		found = gv_early_found(batch, query);
	int64_t		first_posting = (int64_t) query * batch.postings;
	int64_t		first_hit = (int64_t) query * batch.capacity;
	CopySource<KEYS> source = {batch.d_scores + first_posting,
		batch.d_ids + first_posting};
	CopyNotes	notes = {model, batch.d_records == NULL ? NULL :
		batch.d_records + first_hit};
	int			count;

	gv_step_follows();
	if (batch.postings == 0)		/* there was no scan: lists were numbered
									 * last */
		found = batch.d_found[query];
	if (threadIdx.x == 0)
		kept = found;
	count = (int) gv_sift(source, notes, (int) gv_nscores(batch, query,
												   found.nblocks), k, sift);
	if (gv_select_downloads(batch))
		gv_download_probes(batch, query, found.nprobed);
	for (int i = threadIdx.x; i < count; i += Sift::THREADS)
		gv_download_hit(batch, first_hit + i, sift.keys[i],
					(uint32_t) (sift.ids[i] >> 32),
					(uint32_t) sift.ids[i] >> 16, sift.ids[i] & 0xFFFF);
	if (threadIdx.x == 0)
		gv_download_found(batch, query, kept, count);
}

/*
 * The same of many postings, or in many lists.
 * Shared: items [warps / 2 or 1][32 NW].
 */
template <int NW, int NT, int WARPS>
static __global__ void __launch_bounds__(WARPS *GV_WARP)
best_postings_kernel(GvDeviceModel model, GvBatch batch)
{
	GV_SHARED(memory);
	__shared__ uint32_t bound;
	GvNearestPosting *items = (GvNearestPosting *) memory;
	int			query = blockIdx.x;
	int			lane = threadIdx.x % GV_WARP;
	int			k = batch.d_wanted[query].capacity;
	int64_t		first_posting = (int64_t) query * batch.postings;
	const float *scores = batch.d_scores + first_posting;
	const uint64_t *ids = batch.d_ids + first_posting;
	int64_t		first_hit = (int64_t) query * batch.capacity;
	int			nprobed = batch.d_found[query].nprobed;
	uint32_t	n = gv_nscores(batch, query,
							   batch.d_starts[(int64_t) query *
											  (batch.probes + 1) + nprobed]);
	GvWarpSelect<GvNearestPosting, NW, NT> select;
	int			count;

	/* 1. every warp its share of the blocks; row ids only where they matter */
	if (threadIdx.x == 0)
		bound = 0xFFFFFFFFu;
	__syncthreads();
	select.begin(max(k, 1));	/* a batch's spare places want none */
	for (uint32_t first = threadIdx.x / GV_WARP * GV_WARP; first < n;
		 first += WARPS * GV_WARP)
	{
		uint32_t	i = first + lane;
		uint32_t	key = i < n ? gv_ordered(scores[i]) : GV_SIFT_NONE;
		bool		near = key <= select.bound.key &&
			key < gv_ordered(__int_as_float(0x7F800000));
		GvNearestPosting	item = GvNearestPosting::worst();

		if (__any_sync(GV_FULL_WARP, near))
		{
			if (near)
			{
				uint64_t	id = ids[i];

				item = {key, (uint32_t) (id >> 32), (uint32_t) id};
			}
			select.offer(item);
			share_bound(select, &bound);
		}
	}
	select.flush();

	/* 2. the warps' together */
	gv_block_merge(select, items);
	if (threadIdx.x < GV_WARP)
		select.store(items);
	__syncthreads();

	/* 3. out */
	count = count_real(items, k);
	for (int i = threadIdx.x; i < count; i += WARPS * GV_WARP)
		gv_download_hit(batch, first_hit + i, items[i].key, items[i].high,
					items[i].low >> 16, items[i].low & 0xFFFF);
	if (threadIdx.x < GV_WARP)
		gv_download_all(model, batch, query, count);
}

/* One block of WARPS warps a query, with shared memory for their queues. */
template <typename Item, int NW, int WARPS, typename Kernel>
static GvStatus
launch(Kernel kernel, const GvDeviceModel *model, const GvBatch *batch,
	   cudaStream_t stream)
{
	constexpr int bytes = (WARPS > 1 ? WARPS / 2 : 1) * NW * GV_WARP *
		(int) sizeof(Item);

	if (bytes + OWN_SHARED > 48 * 1024)
		GV_TRY(gv_allow_shared((const void *) kernel, bytes));
	GV_LAUNCH(kernel, batch->n, WARPS * GV_WARP, bytes, stream, *model,
			  *batch);
	return gv_cuda_status(cudaGetLastError());
}

template <int NW, int NT, int WARPS>
static GvStatus
launch_probes(const GvDeviceModel *model, const GvBatch *batch,
			  cudaStream_t stream)
{
	return launch<GvNearestList, NW, WARPS>(probe_kernel<NW, NT, WARPS>, model,
										 batch, stream);
}

template <int NW, int NT, int WARPS>
static GvStatus
launch_postings(const GvDeviceModel *model, const GvBatch *batch,
			  cudaStream_t stream)
{
	return launch<GvNearestPosting, NW,
		WARPS>(best_postings_kernel<NW, NT, WARPS>, model,
										 batch, stream);
}

/* d_probed, d_starts and nprobed of a batch, from d_coarse. */
GvStatus
gv_gpu_probes(const GvDeviceModel *model, const GvBatch *batch,
			  GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int			k = batch->probes;

	if (k > GV_MANY_PROBES)
		return gv_gpu_sort_probes(model, batch, searcher);
	if (k <= GV_SIFT_MOST)
		return gv_launch_step(sift_lists_kernel, batch->n, GV_SIFT_THREADS, 0,
							  stream, model, batch);
	if (model->nlists <= MOST_PICKED_FROM * PICK_THREADS)
		return gv_launch_step(model->nlists <= PICKED_FROM * PICK_THREADS ?
							  pick_lists_kernel<PICKED_FROM> :
							  pick_lists_kernel<MOST_PICKED_FROM>, batch->n,
							  PICK_THREADS, 0, stream, model, batch);
	if (k <= 512)
		return launch_probes<16, 8, 8>(model, batch, stream);
	if (k <= 1024)
		return launch_probes<32, 8, 8>(model, batch, stream);
	return launch_probes<64, 8, 4>(model, batch, stream);
}

/* Are the best postings more, or of more probes, than is selected here? */
bool
gv_gpu_sorts_postings(const GvBatch *batch)
{
	return batch->capacity > GV_MANY_POSTINGS || batch->probes > MAX_PROBES;
}

/* Are they sifted out? */
bool
gv_gpu_sifts_copies(const GvBatch *batch)
{
	/* of those that satisfy a condition there are fewer: more can be sifted */
	int			most = batch->tests > 0 ? GV_SIFT_ROOM / 2 : GV_SIFT_MOST;

	return batch->capacity <= most && batch->probes <= GV_MANY_PROBES &&
		batch->postings <= MOST_SIFTED;
}

/* d_hits and all that comes out of a batch but bounds, from d_scores. */
GvStatus
gv_gpu_select(const GvDeviceModel *model, const GvBatch *batch,
			  GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;
	int			k = batch->capacity;

	if (gv_gpu_sorts_postings(batch))
		return gv_gpu_sort_postings(model, batch, searcher);
	if (gv_gpu_sifts_copies(batch) && batch->d_kept != NULL &&
		batch->tests == 0)
		return gv_launch_step(sift_copies_kernel<FewSift, 4, 8>, batch->n,
							  FewSift::THREADS, 0, stream, model, batch);
	if (gv_gpu_sifts_copies(batch))
		return gv_launch_step(sift_copies_kernel<GvSift, 20, 2>, batch->n,
							  GvSift::THREADS, 0, stream, model, batch);
	if (k <= 256)
		return launch_postings<8, 4, 16>(model, batch, stream);
	if (k <= 512)
		return launch_postings<16, 8, 8>(model, batch, stream);
	if (k <= 1024)
		return launch_postings<32, 8, 4>(model, batch, stream);
	return launch_postings<64, 8, 4>(model, batch, stream);
}
