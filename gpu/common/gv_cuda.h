/*
 * gv_cuda.h
 *		What the files of the CUDA engine share: errors, a mirror in the card's
 *		memory, a searcher's buffers, and the launchers of the kernels.
 *
 * Host functions return a GvStatus; nothing exits, aborts or prints.  Every
 * CUDA call goes through GV_CUDA_TRY.  Device pointers begin with d_.
 */
#ifndef GV_CUDA_H
#define GV_CUDA_H

#include <cuda_runtime.h>

extern "C"
{
#include "engine/mirror/gv_mirror.h"
}

/*
 * A call's failure.  One that leaves the card as it was, memory that is not
 * there or a launch that is refused, is survivable: there is no room for what
 * was asked.  All else is not.
 */
static inline GvStatus
gv_cuda_status(cudaError_t error)
{
	if (error == cudaSuccess)
		return GV_OK;
	(void) cudaGetLastError();	/* or the next launch reports it again */
	switch (error)
	{
		case cudaErrorMemoryAllocation:
		case cudaErrorInvalidValue:
		case cudaErrorInvalidConfiguration:
		case cudaErrorLaunchOutOfResources:
		case cudaErrorCooperativeLaunchTooLarge:
		case cudaErrorNotSupported:
			return GV_NO_MEMORY;
		default:
			/* a graph whose recording failed */
			return error >= cudaErrorStreamCaptureUnsupported &&
				error <= cudaErrorStreamCaptureWrongThread ? GV_NO_MEMORY :
				GV_FAILED;
	}
}

/*
 * The same of a step of a change to a mirror that the host has noted already:
 * there is no way back, so even a launch that is refused is not survivable.
 */
static inline GvStatus
gv_noted_status(cudaError_t error)
{
	return gv_cuda_status(error) == GV_OK ? GV_OK : GV_FAILED;
}

#define GV_CUDA_TRY(call) \
	do { \
		GvStatus	status_ = gv_cuda_status(call); \
		if (status_ != GV_OK) \
			return status_; \
	} while (0)

/*
 * Launches and a block's dynamic shared memory, by name, because the checks
 * compile these files without nvcc, too (test/unit/gpu).  Lines: it begins with
 * one of 128 bytes, for bulk copies of lines.
 */
#ifdef __CUDACC__
#define GV_LAUNCH(kernel, grid, threads, shared_bytes, stream, ...) \
	kernel<<<grid, threads, shared_bytes, stream>>>(__VA_ARGS__)
#define GV_SHARED(name)		extern __shared__ uint4 name[]
#define GV_SHARED_LINES(name)	extern __shared__ __align__(128) uint4 name[]
#else
#define GV_LAUNCH(kernel, grid, threads, shared_bytes, stream, ...) \
	(void) gv_emulate_launch(false, grid, threads, shared_bytes, stream, \
							 kernel, __VA_ARGS__)
#define GV_SHARED(name)		uint4 *name = gv_emulated_shared()
#define GV_SHARED_LINES(name)	GV_SHARED(name)
#endif

#define GV_USUAL_SHARED		(32 * 1024) /* bytes that are there unasked */
#define GV_EARLY_CODE		900 /* __CUDA_ARCH__ from which on kernels wait */

/* launch.cu */

/*
 * Before a launch with more than that: so much dynamic shared memory is allowed
 * to a kernel on the chosen device from now on.
 */
extern GvStatus gv_allow_shared(const void *kernel, size_t bytes);

/*
 * May kernels that begin with gv_step_begins be launched early?  Not where they
 * run code in which that is empty, made for older cards than the chosen device.
 */
extern GvStatus gv_gpu_overlaps(bool *overlaps);

/*
 * Launch a kernel that begins with gv_step_begins: with overlap, see
 * gv_gpu_overlaps, while the one before it still runs.
 */
template <typename... Parameters, typename... Arguments>
static inline GvStatus
gv_launch_early(bool overlap, void (*kernel) (Parameters...), dim3 grid,
				int threads, size_t shared_bytes, cudaStream_t stream,
				const Arguments &... arguments)
{
	if (shared_bytes > GV_USUAL_SHARED)
	{
		GvStatus	status = gv_allow_shared((const void *) kernel,
											 shared_bytes);

		if (status != GV_OK)
			return status;
	}
#ifdef __CUDACC__
	cudaLaunchConfig_t config = {};
	cudaLaunchAttribute attribute = {};

	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared_bytes;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = overlap ? 1 : 0;
	return gv_cuda_status(cudaLaunchKernelEx(&config, kernel, arguments...));
#else
	return gv_cuda_status(gv_emulate_launch(overlap, grid, threads,
											shared_bytes, stream, kernel,
											arguments...));
#endif
}

/* The same for what returns a GvStatus itself. */
#define GV_TRY(call) \
	do { \
		GvStatus	status_ = (call); \
		if (status_ != GV_OK) \
			return status_; \
	} while (0)

/*
 * A block on the card, block_bytes long:
 *		codes	[chunks][32] of 16 bytes: chunk c of copy i holds its code
 *				bytes 16c .. 16c + 15, so that a warp whose lane i works on
 *				copy i reads 512 bytes side by side; what is missing from the
 *				last chunk is 0
 *		t		float [32]
 *		high	uint32 [32]: the first two words of a row id
 *		low		uint16 [32]: the third
 *		live	uint32; and 12 bytes of nothing, so that blocks are aligned
 */
#define GV_CHUNK			16	/* code bytes that a lane loads at once */

struct GvBlockShape
{
	int32_t		code_bytes;
	int32_t		chunks;
	int32_t		t;				/* offsets in a block */
	int32_t		high;
	int32_t		low;
	int32_t		live;
	int32_t		block_bytes;
};

static inline GvBlockShape
gv_block_shape(int32_t m)
{
	GvBlockShape shape;

	shape.code_bytes = gv_code_bytes(m);
	shape.chunks = (shape.code_bytes + GV_CHUNK - 1) / GV_CHUNK;
	shape.t = shape.chunks * GV_CHUNK * GV_BLOCK;
	shape.high = shape.t + GV_BLOCK * 4;
	shape.low = shape.high + GV_BLOCK * 4;
	shape.live = shape.low + GV_BLOCK * 2;
	shape.block_bytes = shape.live + 16;
	return shape;
}

/* Bytes of shared memory that a scan needs beside a look-up table. */
#define GV_SCAN_OWN			1024

/* Elements of a query's look-up table [chunks * 32][GV_CODEWORDS]. */
static inline int32_t
gv_table_floats(const GvBlockShape *shape)
{
	return shape->chunks * 2 * GV_CHUNK * GV_CODEWORDS;
}

/* A list as kernels see it. */
struct GvCardList
{
	const uint8_t *d_blocks;
	uint32_t	nblocks;
	uint32_t	nlive;			/* copies that are */
};

/*
 * A refine record on the card: min, step, error, the row id's two parts as in
 * a block (low 0: no record), 12 bytes of nothing, and codes [dims].
 */
struct GvCardRecord
{
	float		min;
	float		step;
	float		error;
	uint32_t	high;
	uint32_t	low;
	uint32_t	unused[3];
};

static inline int32_t
gv_record_bytes(int32_t dims)
{
	return (int32_t) sizeof(GvCardRecord) + (dims + 15) / 16 * 16;
}

/* Tables of pages of refine records, by the two words of a page's number. */
#define GV_TABLE_PAGES		65536

/*
 * What is true of every centroid c and its half copy c'; infinite or NaN when
 * there is one that half precision cannot hold.
 */
struct GvHalfLimits
{
	float		length;			/* |c| is at most this */
	float		error;			/* |c - c'| is at most this */
};

/* What kernels need of a mirror, passed by value. */
struct GvCardModel
{
	int32_t		metric;
	int32_t		dims;
	int32_t		m;
	int32_t		nlists;
	GvBlockShape shape;
	const float *d_codebooks;	/* [16 * dims] */
	const float *d_centroids;	/* [nlists][dims] */
	const GvCardList *d_lists;	/* [nlists] */
	int32_t		half_dims;		/* dims, rounded up to 16 */
	uint16_t   *d_halves;		/* [nlists][half_dims] centroids, rounded to
								 * half precision; 0 beyond dims */
	float	   *d_squares;		/* [nlists] |c|^2; 0 for GV_IP */
	GvHalfLimits *d_limits;
	int32_t		refine_slots;	/* of a page; 0: no refine records */
	int32_t		record_bytes;
	uint8_t *const *const *d_tables;	/* [GV_TABLE_PAGES] [GV_TABLE_PAGES]
										 * refine_slots records, or NULL, at
										 * both levels */
};

/* The card's memory for blocks (pool.cu). */
struct GvPool;

extern GvStatus gv_pool_create(int64_t block_bytes, int64_t expected_blocks,
							   GvPool **pool);
extern void gv_pool_drop(GvPool *pool);
extern GvStatus gv_pool_take(GvPool *pool, uint32_t nblocks, uint8_t **blocks,
							 uint32_t *capacity);
extern void gv_pool_give(GvPool *pool, uint8_t *blocks, uint32_t capacity);
extern int64_t gv_pool_bytes(const GvPool *pool);

/* The host's side of a list. */
struct GvHostList
{
	uint8_t    *d_blocks;
	uint32_t	nblocks;
	uint32_t	capacity;		/* of d_blocks */
	uint32_t	noted;			/* of live */
	uint32_t   *live;			/* [nblocks] */
	int64_t		nlive;
};

/*
 * Pieces on their way to the card: host memory and the card's side by side,
 * filled front to back; when it is full the stream has to catch up.
 */
struct GvStaging
{
	uint8_t    *memory;			/* pinned */
	uint8_t    *d_memory;
	size_t		bytes;
	size_t		used;
};

struct GvMirror
{
	GvMirrorSpec spec;
	GvCardModel card;
	float	   *d_codebooks;
	float	   *d_centroids;
	GvCardList *d_lists;
	float	   *parents;		/* [nparents][dims], which no kernel needs */
	int32_t    *starts;			/* [nparents + 1] */
	bool		checked;		/* starts were, and are good */
	GvPool	   *pool;
	GvHostList *lists;			/* [nlists] */
	GvPool	   *record_pool;	/* pages of refine records, if there are any */
	struct GvTable **tables;	/* [GV_TABLE_PAGES] the host's note, or NULL */
	uint8_t  ***d_tables;
	int64_t		table_bytes;	/* on the card */
	uint32_t	longest;		/* blocks of the longest list ever */
	int64_t		nblocks;		/* of all lists */
	cudaStream_t stream;		/* of changes; nobody waits for it */
	cudaEvent_t changed;		/* ... but searches, for the last change */
	uint64_t	version;		/* of the last change: a number of its own, in
								 * the whole process */
	GvStaging	staging;
	uint8_t    *raw;			/* [block_bytes] a block read back */
	uint8_t    *view;			/* ... and as GvBlock wants it */
};

/* Device memory that grows and is kept. */
struct GvBuffer
{
	void	   *memory;
	size_t		bytes;
	bool		pinned;			/* host memory that the card can reach */
};

/* Advance *next by bytes, rounded up; returns what it was. */
static inline size_t
gv_carve(size_t *next, size_t bytes)
{
	size_t		start = *next;

	*next += (bytes + 255) / 256 * 256;
	return start;
}

/* Give an array of n its place in memory; without memory it only counts. */
template <typename T>
static inline void
gv_place(T **array, char *memory, size_t *bytes, int64_t n)
{
	size_t		at = gv_carve(bytes, (size_t) n * sizeof(T));

	*array = memory == NULL ? NULL : (T *) (memory + at);
}

/* device.cu */
extern GvStatus gv_gpu_open(const char *devices, GvDevice *found,
							int32_t *nfound);
extern size_t gv_most_shared(int32_t device);
extern "C" bool gv_has_hopper(int32_t device);
extern GvStatus gv_choose_device(int32_t device);
extern GvStatus gv_buffer_need(GvBuffer *buffer, size_t bytes);
extern void gv_buffer_free(GvBuffer *buffer);

/* What one search wants; the kernels' part of GvSearch. */
struct GvWanted
{
	int32_t		probes;
	int32_t		capacity;
	double		length;			/* of the query */
};

/* Beyond these sort.cu selects, and no graph can. */
#define GV_MANY_PROBES		2048
#define GV_MANY_COPIES		2048

struct GvFound
{
	int32_t		nprobed;
	int32_t		nhits;
	int64_t		copies;			/* in the probed lists */
	uint32_t	nblocks;		/* likewise; of batches of up to GV_MANY_PROBES
								 * only */
};

/* How a query's nearest lists were chosen from approximate scores (approximate.cu). */
enum GvNearWay
{
	GV_NEAR_RUNS,				/* by the least score of every 32 lists */
	GV_NEAR_ALL,				/* by all approximate scores */
	GV_NEAR_EXACT,				/* by all exact scores */
	GV_NEAR_WAYS
};

/* What approximate.cu needs beside; nothing unless gv_gpu_near_fits. */
struct GvNear
{
	uint16_t   *d_halves;		/* [n][half_dims] queries in half precision */
	int32_t		nparts;			/* that a query comes in */
	float2	   *d_squares;		/* [n][nparts] |q|^2 and |q - q'|^2 of each
								 * part of q, whose half copy is q' */
	float	   *d_least;		/* [n][nruns] the least score of each run */
	unsigned   *d_ways;			/* [GV_NEAR_WAYS] queries that went each way;
								 * the searcher's, and it only counts */
};

#define GV_RUN				32	/* lists side by side */

/* Runs of a number of lists. */
static __host__ __device__ inline int32_t
gv_nruns(int32_t nlists)
{
	return (nlists + GV_RUN - 1) / GV_RUN;
}

/*
 * A batch under way, passed to kernels by value.  n searches, whose arrays lie
 * side by side with room for the largest of each.  in_ and out_ are the host's
 * memory, which the card reads once and writes once, across the bus; what
 * kernels hand each other is the card's.  Of a long batch, which copies serve
 * better, in_ and out_ are the d_ arrays of that name.  Hits are written 16
 * bytes at a time.
 */
struct GvBatch
{
	int32_t		n;
	int32_t		probes;			/* most of any search */
	int32_t		capacity;
	bool		overlap;		/* a step may be launched before the last one
								 * has ended: see gv_step_begins */
	int64_t		copies;			/* room for scores of a search */
	const float *in_queries;	/* [n][dims] */
	const GvWanted *in_wanted;	/* [n] */
	float	   *d_queries;
	GvWanted   *d_wanted;
	float	   *d_tables;		/* [n][chunks * 32][GV_CODEWORDS] */
	float	   *d_coarse;		/* [n][nlists] */
	GvProbe    *d_probed;		/* [n][probes] */
	uint32_t   *d_starts;		/* [n][probes + 1] first block of each probe */
	const uint8_t **d_first;	/* [n][probes] where it is; NULL: not wanted */
	float	   *d_scores;		/* [n][copies]; dead: +infinity */
	uint64_t   *d_ids;			/* [n][copies] gv_copy_id; NULL where sort.cu
								 * finds the best copies */
	uint4	   *d_hits;			/* GvHit [n][capacity] */
	GvBound    *d_bounds;		/* [n][capacity], where a copy takes them out */
	GvFound    *d_found;		/* [n] */
	GvNear		near;
	GvProbe    *out_probed;		/* [n][probes] */
	uint4	   *out_hits;		/* GvHit [n][capacity] */
	GvBound    *out_bounds;		/* [n][capacity], or NULL */
	GvFound    *out_found;		/* [n] */
};

/* A batch's launches, recorded to be made again at once (replay.cu). */
struct GvReplay
{
	GvCardModel card;			/* what all kernels were given */
	GvBatch		batch;
	cudaGraphExec_t graph;		/* NULL: none */
	uint64_t	used;			/* when, by the searcher's clock */
};

#define GV_REPLAYS			64

/*
 * A graph gives way to another one only when it was not used for so many
 * batches: of more shapes in turn than there is room for, some are replayed and
 * the others launched step by step, where making all of them again and again
 * took longer.
 */
#define GV_REPLAY_KEPT		(4 * GV_REPLAYS)

/* What became of a lane's small batches. */
struct GvReplayCounts
{
	int64_t		replayed;
	int64_t		made;			/* graphs, each used at once */
	int64_t		again;			/* ... in the place of another one */
	int64_t		launched;		/* without a graph */
};

struct GvSearcher
{
	int32_t		device;
	int64_t		most_work;		/* bytes that one part of a batch may have */
	cudaStream_t stream;
	int			nsms;
	bool		hopper;			/* see gv_has_hopper */
	bool		overlap;		/* of batches */
	uint64_t	version;		/* of a mirror: its changes are done */
	GvBuffer	in;				/* pinned: queries, wanted */
	GvBuffer	out;			/* pinned: found, probed, hits, bounds */
	GvBuffer	d_work;			/* all that kernels hand each other */
	GvBuffer	d_sort;			/* of long selections */
	GvSearcher *beside;			/* a second lane, of which only stream, d_work,
								 * d_sort and replays are used; or NULL */
	bool		both;			/* it has work, too */
	GvReplay	replays[GV_REPLAYS];
	GvReplayCounts counts;
	uint64_t	clock;			/* small batches */
	GvBuffer	d_ways;			/* see GvNear */
	GvSearch   *searches;		/* [n] that are under way */
	int32_t		n;
};

/* A step of a batch, which may begin early. */
template <typename... Parameters, typename... More>
static inline GvStatus
gv_launch_step(void (*kernel) (Parameters...), dim3 grid, int threads,
			   size_t shared_bytes, cudaStream_t stream,
			   const GvCardModel *card, const GvBatch *batch,
			   const More &... more)
{
	return gv_launch_early(batch->overlap, kernel, grid, threads, shared_bytes,
						   stream, *card, *batch, more...);
}

/*
 * table.cu, coarse.cu, best.cu, scan.cu, sort.cu, bound.cu: each one step of
 * a batch.
 */
extern GvStatus gv_gpu_table(const GvCardModel *card, const GvBatch *batch,
							 cudaStream_t stream);
extern GvStatus gv_gpu_coarse(const GvCardModel *card, const GvBatch *batch,
							  cudaStream_t stream);
extern GvStatus gv_gpu_probes(const GvCardModel *card, const GvBatch *batch,
							  GvSearcher *searcher);
extern GvStatus gv_gpu_scan(const GvCardModel *card, const GvBatch *batch,
							GvSearcher *searcher);
extern GvStatus gv_gpu_select(const GvCardModel *card, const GvBatch *batch,
							  GvSearcher *searcher);
extern bool gv_gpu_sorts_copies(const GvBatch *batch);
extern GvStatus gv_gpu_bound(const GvCardModel *card, const GvBatch *batch,
							 cudaStream_t stream);
extern GvStatus gv_gpu_sort_probes(const GvCardModel *card,
								   const GvBatch *batch,
								   GvSearcher *searcher);
extern GvStatus gv_gpu_sort_copies(const GvCardModel *card,
								   const GvBatch *batch,
								   GvSearcher *searcher);

/* replay.cu */
extern GvStatus gv_gpu_steps(const GvCardModel *card, const GvBatch *batch,
							 GvSearcher *searcher);
extern GvStatus gv_gpu_replay(const GvCardModel *card, const GvBatch *batch,
							  GvSearcher *searcher);
extern void gv_gpu_replays_drop(GvSearcher *searcher);

/* For checks: what became of a searcher's small batches, both lanes'. */
extern "C" void gv_gpu_replay_counts(const GvSearcher *searcher,
									 GvReplayCounts *counts);

/*
 * approximate.cu: what coarse.cu and best.cu find, for many queries or lists; in
 * three steps, of which gv_gpu_table does the first for batches that come from
 * the host, product.cu has the second and choose.cu the third.
 */
extern bool gv_gpu_near_fits(const GvCardModel *card, const GvBatch *batch);
extern GvStatus gv_gpu_near(const GvCardModel *card, const GvBatch *batch,
							const GvSearcher *searcher);
extern GvStatus gv_gpu_product(const GvCardModel *card, const GvBatch *batch,
							   const GvSearcher *searcher);
extern GvStatus gv_gpu_choose(const GvCardModel *card, const GvBatch *batch,
							  cudaStream_t stream);

/*
 * What only cards of compute capability 9.0 have (hopper.cuh): is the chosen
 * device such, and code for it there?  And which parts of batches have use for
 * it?
 */
extern bool gv_gpu_hopper_works();
extern bool gv_gpu_hopper_fits(const GvBatch *batch,
							   const GvSearcher *searcher);

/* hopperproduct.cu: the product of such, where the driver can describe it */
extern "C" bool gv_gpu_hopper_multiplies();
extern GvStatus gv_gpu_hopper_product(const GvCardModel *card,
									  const GvBatch *batch,
									  const GvSearcher *searcher);

/* hopperscan.cu: the scan, of mirrors whose blocks are not too long for it */
extern bool gv_gpu_hopper_scans(const GvCardModel *card);
extern GvStatus gv_gpu_hopper_scan(const GvCardModel *card,
								   const GvBatch *batch,
								   const GvSearcher *searcher);

/*
 * For checks: nothing fits (0), or tiles of the product have so many lists;
 * negative: as is best.  False: there are no such tiles.
 */
extern "C" bool gv_gpu_hopper(int32_t lists);

/*
 * For checks: from how many terms of exact scores on a batch goes this way;
 * negative: as is best.
 */
extern "C" void gv_gpu_near_from(int64_t terms);

/* For checks: how many of a searcher's queries went each way so far. */
extern "C" GvStatus gv_gpu_near_ways(GvSearcher *searcher,
									 uint32_t ways[GV_NEAR_WAYS]);

/* halves.cu: half copies of a mirror's centroids */
extern int64_t gv_gpu_halves_bytes(const GvMirrorSpec *spec);
extern GvStatus gv_gpu_halves_create(GvMirror *mirror);
extern void gv_gpu_halves_drop(GvMirror *mirror);
extern GvStatus gv_gpu_put_halves(GvMirror *mirror, int64_t first, int64_t n);

/* search.cu */
extern int64_t gv_gpu_budget(size_t nfree, size_t total);
extern GvStatus gv_gpu_searcher(int32_t device, GvSearcher **searcher);
extern void gv_gpu_searcher_drop(GvSearcher *searcher);
extern GvStatus gv_gpu_begin(GvSearcher *searcher, GvMirror *mirror,
							 GvSearch *searches, int32_t n);
extern bool gv_gpu_done(GvSearcher *searcher);
extern GvStatus gv_gpu_finish(GvSearcher *searcher);

/* records.cu: refine records of a mirror */
extern int64_t gv_gpu_records_size(const GvMirrorSpec *spec);
extern GvStatus gv_gpu_records_create(GvMirror *mirror);
extern void gv_gpu_records_drop(GvMirror *mirror);
extern GvStatus gv_gpu_put_refine(GvMirror *mirror, const GvRefineItem *items,
								  int32_t n);
extern GvStatus gv_gpu_get_refine(GvMirror *mirror, const uint16_t *addresses,
								  int32_t n, GvRefineItem *items);

/* mirror.cu */
extern GvStatus gv_mirror_changed(GvMirror *mirror);
extern GvStatus gv_staging_take(GvMirror *mirror, size_t bytes,
								size_t *offset);
extern int64_t gv_gpu_size(const GvMirrorSpec *spec);
extern GvStatus gv_gpu_create(const GvMirrorSpec *spec, GvMirror **mirror);
extern void gv_gpu_drop(GvMirror *mirror);
extern int64_t gv_gpu_bytes(const GvMirror *mirror);
extern GvStatus gv_gpu_put_array(GvMirror *mirror, GvArray array,
								 int64_t first, int64_t n, const void *values);
extern GvStatus gv_gpu_put_list(GvMirror *mirror, const GvListPiece *piece);
extern GvStatus gv_gpu_get_array(GvMirror *mirror, GvArray array,
								 int64_t first, int64_t n, void *values);
extern GvStatus gv_gpu_get_block(GvMirror *mirror, int32_t list, int32_t block,
								 GvBlock *view);

#endif							/* GV_CUDA_H */
