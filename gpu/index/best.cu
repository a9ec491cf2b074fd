/*
 * best.cu
 *		The nearest lists of a query, and the best postings in them, where one
 *		block of threads a query is enough.
 *
 * Few are sifted out (sift.cuh).  Many lists, of not too many, are counted and
 * sorted in bins (bins.cuh).  All else is select.cu's, which does these, too,
 * but takes .6 to 5 us longer for one query (RESULTS, "card").
 */
#include "gpu/coarse/number.cuh"
#include "gpu/common/bins.cuh"
#include "gpu/common/bisect.cuh"
#include "gpu/common/common.cuh"
#include "gpu/common/sift.cuh"
#include "gpu/index/give.cuh"
#include "gpu/index/gv_index.h"

#define MOST_SIFTED		(INT64_C(1) << 30)	/* postings: they are int there */
#define PICK_THREADS	GV_BINS_THREADS
#define PICK_CAPACITY		3072	/* GV_MANY_PROBES, and what a bin has
									 * beyond */
#define PICKED_FROM		20		/* lists of a thread, whose scores stay in */
#define MOST_PICKED_FROM	(GV_MOST_PICKED / PICK_THREADS)	/* registers, and
															 * in L1 */

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
	GvNearestList items[PICK_CAPACITY];
	GvBins		bins;
	GvNumbering numbering;
	uint32_t	said[2][GV_WARP];	/* see GvTalk */
	uint32_t	count;
};

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
		pick.items[i] = GvNearestList::worst();
	__syncthreads();
	for (int first = 0; first < nlists; first += PICK_THREADS)
	{
		int			i = first + threadIdx.x;
		uint32_t	key = i < nlists ? source.key(i) : GV_SIFT_NONE;

		if (i < nlists && key <= limit)
			pick.items[atomicAdd(&pick.count, 1u)] = {key, (uint32_t) i};
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
				pick.items[to] = {bound.key, (uint32_t) i};
			at += __popc(mask);
		}
	}
	gv_bitonic_sort(pick.items, capacity);
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
		return pick.items[i];
	}, pick.numbering);
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

/* d_probed, d_starts and d_found of a batch, from d_coarse. */
GvStatus
gv_gpu_probes(const GvDeviceModel *model, const GvBatch *batch,
			  GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;

	if (gv_gpu_selects_lists(model, batch))
		return gv_gpu_select_lists(model, batch, searcher);
	if (batch->probes <= GV_SIFT_MOST)
		return gv_launch_step(sift_lists_kernel, batch->n, GV_SIFT_THREADS, 0,
							  stream, model, batch);
	return gv_launch_step(model->nlists <= PICKED_FROM * PICK_THREADS ?
						  pick_lists_kernel<PICKED_FROM> :
						  pick_lists_kernel<MOST_PICKED_FROM>, batch->n,
						  PICK_THREADS, 0, stream, model, batch);
}

/* Can the best postings be sifted out? */
bool
gv_gpu_can_sift(const GvBatch *batch)
{
	return batch->capacity <= GV_SIFT_MOST &&
		batch->probes <= GV_MANY_PROBES && batch->postings <= MOST_SIFTED;
}

/* d_hits and all that comes out of a batch but bounds, from d_scores. */
GvStatus
gv_gpu_select(const GvDeviceModel *model, const GvBatch *batch,
			  GvSearcher *searcher)
{
	cudaStream_t stream = searcher->stream;

	if (gv_gpu_selects_postings(batch))
		return gv_gpu_select_postings(model, batch, searcher);
	if (batch->d_kept != NULL && batch->tests == 0)
		return gv_launch_step(sift_copies_kernel<FewSift, 4, 8>, batch->n,
							  FewSift::THREADS, 0, stream, model, batch);
	return gv_launch_step(sift_copies_kernel<GvSift, 20, 2>, batch->n,
						  GvSift::THREADS, 0, stream, model, batch);
}
