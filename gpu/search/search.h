/*
 * search.h
 *		A batch of searches under way on a device, the searcher whose memory it
 *		has, and its steps.
 *
 * Read search.cu first: it has the steps of a batch in their order, tables.cu,
 * coarse.cu and select.cu or coarsefilter.cu, listscan.cu or bylist.cu,
 * select.cu and bounds.cu.  batch.cu cuts a batch into parts.
 */
#ifndef GV_SEARCH_H
#define GV_SEARCH_H

extern "C"
{
#include "engine/mirror/gv_parallel.h"
}

#include "gpu/mirror/mirror.h"
#include "gpu/product/product.h"

/* The parameters of one search; the kernels' part of GvSearch. */
struct GvSearchParams
{
	int32_t		nprobe;
	int32_t		k;
	double		length;			/* of the query */
};

/* A GvKeyTest as kernels see it; kind 0: none, and none behind it. */
struct GvDeviceTest
{
	uint64_t	low;			/* of a set: its least value, */
	uint64_t	high;			/* and its greatest */
	int32_t		first;			/* of the batch's values */
	int32_t		nvalues;
	int32_t		abbrevs_at;		/* where a block's abbreviated keys
									 * begin */
	uint8_t		key;
	uint8_t		kind;			/* GvTestKind */
	uint8_t		width;			/* bytes of an abbreviated key */
	uint8_t		unused;
};

/* Beyond these select.cu sorts, and no graph can. */
#define GV_MANY_PROBES		2048
#define GV_MANY_POSTINGS		2048

struct GvSearchCounts
{
	int32_t		nprobed;
	int32_t		nhits;
	int64_t		postings;		/* in the probed lists */
	uint32_t	nblocks;		/* likewise */
};

/* A search's question about the sample. */
struct GvSampleQuery
{
	int32_t		rank;			/* 0: nothing; negative: what is not beyond */
	float		limit;
};

/* See GvSearch.nearer. */
struct GvSampleCount
{
	int64_t		postings;
	int64_t		squares;
};

/*
 * How a query's nearest lists were chosen from approximate scores
 * (coarsefilter.cu).
 */
enum GvCoarsePath
{
	GV_COARSE_GROUPS,				/* by the least score of every 32 lists */
	GV_COARSE_GROUPS_ALONE,			/* by that, and scores made again */
	GV_COARSE_ALL,				/* by all approximate scores */
	GV_COARSE_EXACT,			/* by exact scores of all, or of near runs */
	GV_COARSE_PATHS
};

/* Memory for coarsefilter.cu; none unless gv_gpu_coarse_filter_pays. */
struct GvCoarseFilter
{
	uint16_t   *d_half_queries;	/* [n][half_dims] queries in half
									 * precision */
	int32_t		nsquares;			/* that a query comes in */
	float2	   *d_squares;		/* [n][nparts] |q|^2 and |q - q'|^2 of each
								 * part of q, whose half copy is q' */
	float	   *d_group_min;		/* [n][nruns] the least score of each run */
	unsigned   *d_path_counts;	/* [GV_COARSE_PATHS] queries that went each
								 * way; the searcher's; test build only */
};

/*
 * The slices that a query's items come in where queries alone do not fill the
 * device, and what select.cu finds of each in its first pass.
 */
struct GvSlices
{
	uint32_t	n;				/* of a query; 0 and 1: there is no first pass */
	uint32_t	least;			/* items of a slice that is worth a block */
	uint32_t	capacity;		/* items that a slice may leave */
	int32_t	select_by;				/* gv_select_by */
	uint32_t   *d_thresholds;	/* [queries][n] */
	uint32_t   *d_counts;		/* [queries][n] items left; beyond the
								 * capacity: not all are there */
	void	   *d_items;		/* [queries][n][capacity] */
};

/*
 * A batch under way, passed to kernels by value.  n searches, whose arrays lie
 * side by side with memory for the largest of each.  in_ and out_ are the
 * host's memory, which the device reads once and writes once, across the bus;
 * what kernels hand each other is the device's.  Of a long batch, which copies
 * serve better, in_ and out_ are the d_ arrays of that name.  Hits are written
 * 16 bytes at a time.
 */
struct GvBatch
{
	int32_t		n;
	int32_t		nprobe;			/* most of any search */
	int32_t		k;
	bool		pdl;		/* a step may be launched before the last one
								 * has ended: see gv_pdl_wait */
	bool		by_list;		/* scanned list by list (bylist.cu) */
	int64_t		postings;		/* memory for scores of a search */
	int32_t		tests;			/* most of any search's condition; 0: none has
								 * one */
	int32_t		values;			/* memory for those of all their sets */
	const float *in_queries;	/* [n][dims] */
	const GvSearchParams *in_params;	/* [n] */
	float	   *d_queries;
	GvSearchParams *d_params;
	float	   *d_tables;		/* [n][chunks * 32][GV_CODEWORDS] */
	float	   *d_coarse;		/* [n][nlists]; see gv_gpu_coarse_rows */
	GvProbe	   *d_probed;		/* [n][probes] */
	uint32_t   *d_starts;		/* [n][probes + 1] first block of each probe */
	const uint8_t **d_list_blocks;	/* [n][probes] where it is; NULL: not
									 * wanted */
	float	   *d_scores;		/* [n][postings]; dead: +infinity */
	uint64_t   *d_ids;			/* [n][postings] gv_posting_id; NULL where
								 * the best postings are sorted out */
	uint4	   *d_hits;			/* GvHit [n][capacity] */
	GvBound	   *d_bounds;		/* [n][capacity], where a copy takes them
								 * out */
	const uint8_t **d_records;	/* [n][capacity] refine records of d_hits;
								 * NULL: no bounds follow, or the best
								 * postings are sorted out */
	GvSearchCounts	   *d_search_counts;		/* [n] */
	uint32_t   *d_overflowed;	/* [n] of a batch that was scanned list by
								 * list: is the query to be scanned again?
								 * NULL: each is scanned, once */
	GvCoarseFilter filter;
	GvSlices	list_slices;	/* of lists, while they are selected, */
	GvSlices	posting_slices;	/* and of postings */
	GvProbe	   *out_probed;		/* [n][probes] */
	uint4	   *out_hits;		/* GvHit [n][capacity] */
	GvBound	   *out_bounds;		/* [n][capacity], or NULL */
	GvSearchCounts	   *out_counts;		/* [n] */

	/* of batches with conditions: */
	const GvDeviceTest *in_tests;	/* [n][tests] */
	const uint64_t *in_values;	/* [values] */
	GvDeviceTest *d_tests;
	uint64_t   *d_values;
	uint32_t   *d_matches;		/* [n][probes] postings that satisfy them */
	uint32_t   *d_nscores;		/* [n] scores of them, side by side, or of what
								 * a scan list by list left: gv_score_count */
	uint32_t   *out_matches;

	/* of those in which a search asks how near the sample is: */
	bool		sampled;		/* it is such a batch */
	const GvSampleQuery *in_sample_queries;	/* [n] */
	GvSampleQuery *d_sample_queries;
	float	   *d_sampled;		/* [n][postings] scores of sampled blocks, side
								 * by side, in no order; dead: +infinity */
	uint32_t   *d_nsampled;		/* [n] such blocks */
	GvSampleCount *out_sample;	/* [n] */
};

/*
 * Returns how many scores a query's scan of nblocks blocks has stored: one for
 * each posting or, of batches with conditions and those scanned list by list,
 * for each that is left, in no order.  Not where d_ids is NULL.
 */
static __host__ __device__ __forceinline__ uint32_t
gv_score_count(const GvBatch &batch, int query, uint32_t nblocks)
{
	return batch.d_nscores != NULL ? batch.d_nscores[query] :
		nblocks * GV_BLOCK;
}

/* A batch's launches, recorded to be made again at once (search.cu). */
struct GvGraph
{
	GvDeviceModel model;		/* what all kernels were given */
	GvBatch		batch;
	cudaGraphExec_t exec;		/* NULL: none */
	uint64_t	used;			/* when, by the searcher's clock */
};

#define GV_GRAPHS			64

/*
 * A graph is evicted for another one only when it was not used for this number
 * of batches: of more shapes in turn than fit, some are replayed and the
 * others launched step by step, where making all of them again and again took
 * longer.
 */
#define GV_GRAPH_KEPT		(4 * GV_GRAPHS)

/* How a stream's small batches were launched. */
struct GvGraphCounts
{
	int64_t		reused;
	int64_t		made;			/* graphs, each used at once */
	int64_t		evicted;			/* graphs made in the place of another one */
	int64_t		launched;		/* without a graph */
};

/* Where one search's answer comes. */
struct GvAnswer
{
	const GvSearchCounts *found;
	const GvProbe *probed;		/* [nprobed] */
	const GvHit *hits;			/* [nhits] */
	const GvBound *bounds;		/* [nhits], or NULL */
};

/* Answers of a stream's small batch that are looked for (search.cu). */
struct GvCompletion
{
	int32_t		n;				/* searches; 0: the stream is asked instead */
	int32_t		query;			/* of which these are there, */
	int64_t		words;			/* and so much of the next one */
	double		asked;			/* when the stream was */
	GvBatch		batch;
};

struct GvSearcher
{
	int32_t		device;
	int64_t		most_work;		/* bytes that one part of a batch may have */
	cudaStream_t stream;
	int			nsms;
	GvBlas	   *blas;			/* NULL: products by loops of ours */
	bool		hopper;			/* see gv_has_hopper */
	bool		pdl;		/* of batches */
	uint64_t	version;		/* of a mirror: its changes are done */
	GvBuffer	in;				/* pinned: queries, wanted */
	GvBuffer	out;			/* pinned: found, probed, hits, bounds */
	GvBuffer	d_work;			/* all that kernels hand each other */
	GvBuffer	d_sort;			/* of long selections */
	GvSearcher *second_stream;	/* a second stream, of which only stream,
								 * d_work, d_sort, arrivals and replays are
								 * used; or NULL */
	bool		both;			/* it has work, too */
	GvCompletion completion;
	GvGraph		graphs[GV_GRAPHS];
	GvGraphCounts counts;		/* test build only */
	uint64_t	clock;			/* small batches */
	GvBuffer	d_path_counts;	/* test build only, see GvCoarseFilter */
	GvSearch   *searches;		/* [n] that are under way */
	int32_t		n;
	bool		bounds_only;			/* hits are, and only bounds come back */
};

/* A step of a batch, which may begin early. */
template <typename... Parameters, typename... More>
static inline GvStatus
gv_launch_step(void (*kernel) (Parameters...), dim3 grid, int threads,
			   size_t shared_bytes, cudaStream_t stream,
			   const GvDeviceModel *model, const GvBatch *batch,
			   const More &... more)
{
	return gv_launch_pdl(batch->pdl, kernel, grid, threads, shared_bytes,
						 stream, *model, *batch, more...);
}

/* bylist.cu's own */
struct GvQueryLimit;
struct GvCandidate;
struct GvPairing;
struct GvPairGroup;

#define GV_INT8_DIMS		4	/* dimensions of a sub-quantizer, at most */
#define GV_INT8_CHUNKS		8	/* of a posting's codes, at most */

/*
 * Scans list by list (bylist.cu).  Parts of a batch are gathered (batch.cu).
 * Of each part, when its lists are chosen: its queries in 8 bits, their
 * margins, a limit of each from its nearest lists, and how many queries meet
 * each list.  Of all of them together: who meets which list, and postings that
 * may be among the best, list by list, from approximate scores.  Then of each
 * part again: exact scores of these, and what follows any scan.
 *
 * Arrays of queries are those of all that are gathered, or, given to a step of
 * a part, the part's.
 */
struct GvListScan
{
	int32_t		steps;			/* of products: 8 sub-quantizers each */
	int32_t		first;			/* the part's first query */
	int32_t		most_groups;	/* room in d_groups */
	uint32_t   *d_codewords8;	/* [steps][8][16] codewords in 8 bits: that of
								 * sub-quantizer 8s + 2t + h is [s][4h + t] */
	float	   *d_scales;		/* [8 * steps] what 1 of them stands for */
	uint32_t   *d_queries;		/* [n][8 * steps] in 8 bits */
	GvQueryLimit *d_query_limits;	/* [n] */
	uint32_t   *d_counts;		/* [n] postings near enough; more than there is
								 * room for: unknown */
	uint32_t   *d_overflowed;	/* [n] GvBatch's */
	GvCandidate *d_candidates;	/* [n][MAX_CANDIDATES] */
	uint32_t   *d_starts;		/* [nlists] first how many meet each list,
								 * then where they are entered next */
	GvPairing  *d_pairs;		/* [n * probes] by list */
	GvPairGroup *d_groups;
	unsigned long long *d_totals;	/* pairs that have a place in d_pairs, and
									 * times 2^32 groups that have one */
};

/* Bytes of memory that arrays of parts have so far. */
struct GvLayout
{
	size_t		in_bytes;		/* the host's */
	size_t		out_bytes;
	size_t		batch_bytes;		/* the lane's, each part its own */
	size_t		batch_from;		/* where these begin: behind what all share, of
								 * which */
	size_t		shared_bytes;	/* is the most that any has */
};

/*
 * Parts that are searched together, a stream's work at a time; one, if that is
 * all.
 */
#define GV_MOST_TOGETHER	8

struct GvBatchTurn
{
	int			nbatches;
	int32_t		n;				/* searches */
	int32_t		taken[GV_MOST_TOGETHER];	/* of each part */
	bool		small;			/* one part, for a graph */
	GvBatch		batches[GV_MOST_TOGETHER];
	size_t		work_bytes;		/* of the lane, and where in it: */
	size_t		batch_from;
	bool		by_list;
	GvListScan	lists;
};

/*
 * batch.cu: parts of the first searches of a batch, of which n are left, and
 * their sizes; where their arrays are; queries into the memory that the device
 * reads
 */
extern void gv_gpu_next_turn(const GvSearcher *searcher,
							 const GvMirror *mirror, const GvSearch *searches,
							 int32_t n, int32_t all, GvBatchTurn *turn);
extern void gv_gpu_place_turn(const GvDeviceModel *model, GvSearcher *searcher,
							  GvSearcher *stream, GvLayout *layout,
							  GvBatchTurn *turn);
extern size_t gv_gpu_counts_bytes(int32_t n, size_t *sample_at);
extern void gv_gpu_upload_queries(const GvDeviceModel *model,
								  const GvBatch *batch,
								  const GvSearch *searches, int32_t n);

/* Queries of gathered parts that threads write; gv_helpers_end ends that. */
struct GvUpload
{
	const GvDeviceModel *model;
	const GvBatchTurn *turn;
	const GvSearch *searches;	/* of the first part, and so on */
	int32_t		next;			/* task that no thread has taken */
	int32_t		left[GV_MOST_TOGETHER];	/* tasks of each part that are not
										 * done */
	GvHelpers	helpers;
};

extern void gv_gpu_upload_begin(GvUpload *upload, const GvDeviceModel *model,
								const GvBatchTurn *turn,
								const GvSearch *searches);
extern void gv_gpu_wait_for_upload(GvUpload *upload, int sub_batch);

/* tables.cu: d_queries, d_params and d_tables of a batch */
extern GvStatus gv_gpu_table(const GvDeviceModel *model, const GvBatch *batch,
							 cudaStream_t stream);

/* coarse.cu: d_coarse of a batch, exact */
extern GvStatus gv_gpu_coarse(const GvDeviceModel *model, const GvBatch *batch,
							  cudaStream_t stream);

/*
 * coarsefilter.cu: what coarse.cu and select.cu find, for many queries or
 * lists; in three steps, of which gv_gpu_table does the first for batches that
 * come from the host.
 */
extern bool gv_gpu_coarse_filter_pays(const GvDeviceModel *model,
									  const GvBatch *batch);
extern GvStatus gv_gpu_coarse_filter(const GvDeviceModel *model,
									 const GvBatch *batch,
									 const GvSearcher *searcher);
extern GvStatus gv_gpu_list_scores(const GvDeviceModel *model,
								   const GvBatch *batch,
								   const GvSearcher *searcher);
extern GvStatus gv_gpu_filter_lists(const GvDeviceModel *model,
									const GvBatch *batch, cudaStream_t stream);

/*
 * Scores of lists are read where they are near, and of many lists few are:
 * where there are more than GV_SCORES_KEPT, which L2 holds, it is cheaper to
 * make these again than to write them all.  gv_gpu_coarse_rows returns the
 * queries that d_coarse needs memory for, of n that want `probes` lists each;
 * where these are fewer than n, only the least scores of runs go to memory.
 */
#define GV_SCORES_KEPT		((int64_t) 4 << 20)
extern int32_t gv_gpu_coarse_rows(const GvDeviceModel *model, int32_t n,
								  int32_t probes);

static inline bool
gv_gpu_group_min_alone(const GvDeviceModel *model, const GvBatch *batch)
{
	return gv_gpu_coarse_rows(model, batch->n, batch->nprobe) < batch->n;
}

/*
 * select.cu: the nearest lists, and the best postings.  The memory of first
 * passes begins at byte *bytes of `memory`.  Can a block of threads sift the
 * best postings out?  Or are they, or their probes, more than it selects?
 */
extern GvStatus gv_gpu_select_lists(const GvDeviceModel *model,
									const GvBatch *batch,
									GvSearcher *searcher);
extern GvStatus gv_gpu_select_postings(const GvDeviceModel *model,
									   const GvBatch *batch,
									   GvSearcher *searcher);
extern void gv_gpu_place_slices(const GvDeviceModel *model,
								const GvSearcher *searcher, GvBatch *batch,
								char *memory, size_t *bytes);
extern bool gv_gpu_can_sift(const GvBatch *batch);
extern bool gv_gpu_sorts_postings(const GvBatch *batch);

/*
 * listscan.cu: d_scores; conditions on keys as devices see them; and counts of
 * what satisfies them, the last step where bounds do not follow
 */
extern GvStatus gv_gpu_scan(const GvDeviceModel *model, const GvBatch *batch,
							GvSearcher *searcher);
extern void gv_gpu_upload_conditions(const GvBatch *batch,
									 const GvSearch *searches, int32_t n);
extern GvStatus gv_gpu_download_matches(const GvDeviceModel *model,
										const GvBatch *batch,
										cudaStream_t stream);

/* bylist.cu: see GvListScan */
extern void gv_gpu_place_lists(const GvDeviceModel *model, char *work,
							   size_t *bytes, int64_t n, int64_t npairs,
							   GvListScan *lists);
extern GvStatus gv_gpu_begin_lists(const GvDeviceModel *model,
								   const GvListScan *lists,
								   cudaStream_t stream);
extern GvStatus gv_gpu_add_queries(const GvDeviceModel *model,
								   const GvBatch *batch,
								   const GvListScan *lists, int32_t first,
								   cudaStream_t stream);
extern GvStatus gv_gpu_scan_lists(const GvDeviceModel *model,
								  const GvBatchTurn *turn,
								  cudaStream_t stream);
extern GvStatus gv_gpu_rescore(const GvDeviceModel *model,
							   const GvBatch *batch, const GvListScan *lists,
							   int32_t first, cudaStream_t stream);

/* bounds.cu: what refine records prove of hits */
extern GvStatus gv_gpu_bound(const GvDeviceModel *model, const GvBatch *batch,
							 cudaStream_t stream);

/* search.cu */
extern "C" bool gv_answer_is_complete(const GvAnswer *answer, int64_t *words);

#endif							/* GV_SEARCH_H */
