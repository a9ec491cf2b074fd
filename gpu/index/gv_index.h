/*
 * gv_index.h
 *		Mirrors and searches of them on a device.
 *
 * Read search.cu first: it has the steps of a batch in order, table.cu,
 * best.cu or select.cu, scan.cu or keyscan.cu, again best.cu or select.cu, and
 * bound.cu, which given.cu has alone; parts.cu cuts it into parts, replay.cu
 * launches the steps of small ones at once, gather.cu scans the lists of many
 * queries for all of them (gv_listscan.h).
 * mirror.cu, records.cu and pool.cu keep what is searched.
 */
#ifndef GV_INDEX_H
#define GV_INDEX_H

extern "C"
{
#include "engine/mirror/gv_parallel.h"
}

#include "gpu/common/gv_batch.h"
#include "gpu/index/gv_listscan.h"

/* pool.cu: the device's memory for blocks */
extern GvStatus gv_pool_create(int64_t block_bytes, int64_t expected_blocks,
							   GvPool **pool);
extern void gv_pool_drop(GvPool *pool);
extern GvStatus gv_pool_take(GvPool *pool, uint32_t nblocks, uint8_t **blocks,
							 uint32_t *capacity);
extern void gv_pool_give(GvPool *pool, uint8_t *blocks, uint32_t capacity);
extern int64_t gv_pool_bytes(const GvPool *pool);

/* table.cu, best.cu, scan.cu, bound.cu: each one step of a batch */
extern GvStatus gv_gpu_table(const GvDeviceModel *model, const GvBatch *batch,
							 cudaStream_t stream);
extern GvStatus gv_gpu_probes(const GvDeviceModel *model, const GvBatch *batch,
							  GvSearcher *searcher);
extern GvStatus gv_gpu_scan(const GvDeviceModel *model, const GvBatch *batch,
							GvSearcher *searcher);
extern GvStatus gv_gpu_select(const GvDeviceModel *model, const GvBatch *batch,
							  GvSearcher *searcher);
extern bool gv_gpu_can_sift(const GvBatch *batch);
extern GvStatus gv_gpu_bound(const GvDeviceModel *model, const GvBatch *batch,
							 cudaStream_t stream);

/*
 * select.cu: what best.cu does, for batches that best.cu cannot take or that
 * select.cu is better for.  The memory of its first pass begins at byte *bytes
 * of `memory`.
 */
extern bool gv_gpu_selects_lists(const GvDeviceModel *model,
								 const GvBatch *batch);
extern bool gv_gpu_selects_postings(const GvBatch *batch);
extern bool gv_gpu_sorts_postings(const GvBatch *batch);
extern GvStatus gv_gpu_select_lists(const GvDeviceModel *model,
									const GvBatch *batch,
									GvSearcher *searcher);
extern GvStatus gv_gpu_select_postings(const GvDeviceModel *model,
									   const GvBatch *batch,
									   GvSearcher *searcher);
extern void gv_gpu_place_pieces(const GvDeviceModel *model,
								const GvSearcher *searcher, GvBatch *batch,
								char *memory, size_t *bytes);

#define GV_SELECT_LISTS		1
#define GV_SELECT_POSTINGS	2

#ifdef GV_TEST_BUILD
/*
 * select.cu takes lists, postings or both also where best.cu is better, or, by
 * 0, nothing that best.cu can; negative: as is best.  A piece has `piece` items,
 * however many pieces the device has use for; 0: as is best.
 */
extern "C" void gv_gpu_select_by(int32_t what, int32_t piece);
#endif

/* keyscan.cu: the scan, of batches with conditions */
extern GvStatus gv_gpu_keyscan(const GvDeviceModel *model,
							   const GvBatch *batch,
							   GvSearcher *searcher);

/*
 * condition.cu: conditions as devices see them, and what satisfies them goes
 * out
 */
extern void gv_gpu_upload_conditions(const GvBatch *batch,
								  const GvSearch *searches, int32_t n);
extern GvStatus gv_gpu_download_matches(const GvDeviceModel *model,
									const GvBatch *batch,
									cudaStream_t stream);

/*
 * replay.cu: all steps of a batch, or the first, up to the choice of lists,
 * and those behind the scan
 */
extern GvStatus gv_gpu_first_steps(const GvDeviceModel *model,
								   const GvBatch *batch,
								   GvSearcher *searcher);
extern GvStatus gv_gpu_last_steps(const GvDeviceModel *model,
								  const GvBatch *batch, GvSearcher *searcher);
extern GvStatus gv_gpu_steps(const GvDeviceModel *model, const GvBatch *batch,
							 GvSearcher *searcher);
extern GvStatus gv_gpu_replay(const GvDeviceModel *model, const GvBatch *batch,
							  GvSearcher *searcher);
extern void gv_gpu_replays_drop(GvSearcher *searcher);

/* arrive.cu: answers of small batches, noticed as they arrive */
extern "C" bool gv_answer_is_complete(const GvAnswer *answer, int64_t *words);
extern void gv_gpu_expect(GvSearcher *searcher, const GvBatch *batch,
						  int32_t n);
extern bool gv_gpu_is_complete(GvSearcher *searcher);
extern GvStatus gv_gpu_wait(GvSearcher *searcher);
extern GvStatus gv_gpu_wait_whole(GvSearcher *searcher);

#ifdef GV_TEST_BUILD
/*
 * Counts of a searcher's small batches, of both streams: launched, replayed
 * ...
 */
extern "C" void gv_gpu_replay_counts(const GvSearcher *searcher,
									 GvReplayCounts *counts);
#endif

/* Bytes of memory that arrays of parts have so far. */
struct GvPlaces
{
	size_t		in_bytes;		/* the host's */
	size_t		out_bytes;
	size_t		own_bytes;		/* the lane's, each part its own */
	size_t		own_from;		/* where these begin: behind what all share, of
								 * which */
	size_t		common_bytes;	/* is the most that any has */
};

/* parts.cu: what a batch is cut into, and where the arrays of a part are */
extern int32_t gv_gpu_part_of(int32_t n);
extern int32_t gv_gpu_next_part(const GvSearcher *searcher,
								const GvMirror *mirror,
								const GvSearch *searches, int32_t n,
								GvBatch *batch, bool *small);
extern void gv_gpu_place_part(const GvDeviceModel *model, GvSearcher *searcher,
							  GvSearcher *stream, GvPlaces *places,
							  GvBatch *batch);
extern size_t gv_gpu_found_bytes(int32_t n, size_t *near_at);

/*
 * gather.cu: parts that are searched together, a stream's work at a time; one,
 * if that is all.
 */
#define GV_MOST_GATHERED	8

struct GvGathered
{
	int			nparts;
	int32_t		n;				/* searches */
	int32_t		taken[GV_MOST_GATHERED];	/* of each part */
	bool		small;			/* one part, for a graph */
	GvBatch		parts[GV_MOST_GATHERED];
	size_t		work_bytes;		/* of the lane, and where in it: */
	size_t		own_from;
	bool		by_lists;
	GvListScan	lists;
};

/* Of the first searches of a batch, of which n are left; and their sizes. */
extern void gv_gpu_gather_parts(const GvSearcher *searcher, const GvMirror *mirror,
						  const GvSearch *searches, int32_t n, int32_t all,
						  GvGathered *gathered);
extern void gv_gpu_place_gathered(const GvDeviceModel *model,
								  GvSearcher *searcher, GvSearcher *stream,
								  GvPlaces *places, GvGathered *gathered);

/* Start a part whose queries and answers are copied, or some together. */
extern GvStatus gv_gpu_start_long(const GvDeviceModel *model,
								  const GvBatch *batch, GvSearcher *searcher);
extern GvStatus gv_gpu_start_gathered(const GvDeviceModel *model,
									  const GvGathered *gathered,
									  const GvSearch *searches,
									  GvSearcher *searcher);

#ifdef GV_TEST_BUILD
/*
 * Parts of n queries are gathered, also where that is slower; 0: none;
 * negative: as is best.
 */
extern "C" void gv_gpu_gather_by(int32_t n);
#endif

/* given.cu: bounds of hits that are returned */
extern GvStatus gv_gpu_begin_given(GvSearcher *searcher,
								   const GvDeviceModel *model,
								   GvSearch *searches, int32_t n);

/* search.cu */
extern GvStatus gv_gpu_need(GvSearcher *searcher, size_t in_bytes,
							size_t out_bytes);
extern GvStatus gv_gpu_grow_work(GvSearcher *searcher, size_t bytes);

/* put.cu: queries into the memory that the device reads */
extern void gv_gpu_upload_queries(const GvDeviceModel *model,
								  const GvBatch *batch,
							   const GvSearch *searches, int32_t n);

/* Those of parts that are gathered, under way. */
struct GvUpload
{
	const GvDeviceModel *model;
	const GvGathered *gathered;
	const GvSearch *searches;	/* of the first part, and so on */
	int32_t		next;			/* task that nobody has taken */
	int32_t		left[GV_MOST_GATHERED];	/* tasks of each part that are not
										 * there yet */
	GvHelpers		helpers;
};

/*
 * Threads begin to put queries there, if that is worth it; part by part, those
 * of one are there when it returns, by the caller's help; the end, whatever
 * happened meanwhile.
 */
extern void gv_gpu_upload_begin(GvUpload *upload, const GvDeviceModel *model,
							 const GvGathered *gathered,
							 const GvSearch *searches);
extern void gv_gpu_upload_part(GvUpload *upload, int part);
extern void gv_gpu_upload_end(GvUpload *upload);

/* search.cu */
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
extern GvStatus gv_gpu_put_list(GvMirror *mirror, const GvListChunk *chunk);
extern GvStatus gv_gpu_get_array(GvMirror *mirror, GvArray array,
								 int64_t first, int64_t n, void *values);
extern GvStatus gv_gpu_get_block(GvMirror *mirror, int32_t list, int32_t block,
								 GvBlock *view);

#endif							/* GV_INDEX_H */
