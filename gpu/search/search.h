/*
 * search.h
 *		A batch of searches on a device, the searcher whose memory it uses, and
 *		its steps.
 *
 * Read search.cu first.  It runs the steps of a batch in order: tables.cu,
 * coarse.cu and select.cu or coarsefilter.cu, listscan.cu or bylist.cu,
 * select.cu, bounds.cu.  batch.cu divides a batch into sub-batches.
 */
#ifndef GV_SEARCH_H
#define GV_SEARCH_H

extern "C"
{
#include "engine/mirror/gv_parallel.h"
}

#include "gpu/mirror/mirror.h"
#include "gpu/product/product.h"

/* The parameters of one search, as kernels read them. */
struct GvSearchParams
{
	int32_t		nprobe;
	int32_t		k;
	double		length;			/* length of the query */
};

/* A GvKeyTest, as kernels see it.  kind 0 ends a condition's tests. */
struct GvDeviceTest
{
	uint64_t	low;			/* of a set: its least value */
	uint64_t	high;			/* of a set: its greatest value */
	int32_t		first;			/* first of its values among the batch's */
	int32_t		nvalues;
	int32_t		abbrevs_at;		/* offset of a block's abbreviated keys */
	uint8_t		key;
	uint8_t		kind;			/* GvTestKind */
	uint8_t		width;			/* bytes of an abbreviated key */
	uint8_t		unused;
};

/*
 * Limits of the selections in select.cu.  Larger requests are sorted by CUB,
 * and never captured in a graph.
 */
#define GV_MANY_PROBES		2048
#define GV_MANY_POSTINGS	2048

struct GvSearchCounts
{
	int32_t		nprobed;
	int32_t		nhits;
	int64_t		postings;		/* postings in the probed lists */
	uint32_t	nblocks;		/* blocks in the probed lists */
};

/* A search's question about the sample: GvSearch.rank and limit. */
struct GvSampleQuery
{
	int32_t		rank;			/* 0: none; negative: how many are not beyond
								 * limit */
	float		limit;
};

/* The answer; see GvSearch.nearer. */
struct GvSampleCount
{
	int64_t		postings;
	int64_t		squares;
};

/* How coarsefilter.cu found a query's nearest lists. */
enum GvCoarsePath
{
	GV_COARSE_GROUPS,			/* by the least score of each group of lists */
	GV_COARSE_GROUPS_ALONE,		/* by that alone, and computing scores again */
	GV_COARSE_ALL,				/* by all approximate scores */
	GV_COARSE_EXACT,			/* by exact scores of all lists, or of those in
								 * near groups */
	GV_COARSE_PATHS
};

/* The arrays of coarsefilter.cu; none unless gv_gpu_coarse_filter_pays. */
struct GvCoarseFilter
{
	uint16_t   *d_half_queries; /* [n][half_dims] half copies of queries */
	int32_t		nsquares;		/* parts of a query whose squares are apart */
	float2	   *d_squares;		/* [n][nsquares] |q|^2 and |q - q'|^2 of each
								 * part of q, whose half copy is q' */
	float	   *d_group_min;	/* [n][ngroups] the least score of each group
								 * of lists */
	unsigned   *d_path_counts;	/* [GV_COARSE_PATHS] queries by path, of the
								 * searcher; test build only */
};

/*
 * The slices of a query's items, if there are too few queries to fill the
 * device, and what the first pass of select.cu finds of each.
 */
struct GvSlices
{
	uint32_t	n;				/* slices of a query; 0 and 1: no first pass */
	uint32_t	least;			/* items that make a slice worth a block */
	uint32_t	capacity;		/* most items that a slice keeps */
	int32_t		select_by;		/* gv_select_by */
	uint32_t   *d_thresholds;	/* [queries][n] */
	uint32_t   *d_counts;		/* [queries][n] items within the threshold; if
								 * more than capacity, not all are kept */
	void	   *d_items;		/* [queries][n][capacity] */
};

/*
 * A batch of n searches, passed to kernels by value.  An array has the same
 * room for each search, enough for the largest.  in_ and out_ are the host's
 * memory, which the device reads once and writes once, across the bus; d_ is
 * what kernels pass to each other.  In a large batch, which is copied, in_ and
 * out_ are the d_ arrays of that name.  Hits are written 16 bytes at a time.
 */
struct GvBatch
{
	int32_t		n;
	int32_t		nprobe;			/* largest of any search */
	int32_t		k;
	bool		pdl;			/* steps may be launched early: see
								 * gv_pdl_wait */
	bool		by_list;		/* scanned by bylist.cu, */
	int32_t		first;			/* where this is the number of its first query
								 * among all that are scanned together */
	int64_t		postings;		/* scores that each search has memory for */
	int32_t		tests;			/* most tests of any search's condition; 0:
								 * there is no condition */
	int32_t		values;			/* values of all their sets */
	const float *in_queries;	/* [n][dims] */
	const GvSearchParams *in_params;	/* [n] */
	float	   *d_queries;
	GvSearchParams *d_params;
	float	   *d_tables;		/* [n][chunks * 32][GV_CODEWORDS] */
	float	   *d_coarse;		/* [n][gv_score_stride] list scores; see
								 * gv_gpu_coarse_rows */
	GvProbe    *d_probed;		/* [n][nprobe] */
	uint32_t   *d_starts;		/* [n][nprobe + 1] first block of each probe */
	const uint8_t **d_list_blocks;	/* [n][nprobe] address of that block; or
									 * NULL */
	float	   *d_scores;		/* [n][postings] S; dead postings: +infinity */
	uint64_t   *d_ids;			/* [n][postings] gv_posting_id; NULL if the
								 * best postings are sorted by CUB */
	uint4	   *d_hits;			/* GvHit [n][k] */
	GvBound    *d_bounds;		/* [n][k], if they are copied out */
	const uint8_t **d_records;	/* [n][k] refine records of d_hits; NULL: no
								 * bounds step, or sorted by CUB */
	GvSearchCounts *d_search_counts;	/* [n] */
	uint32_t   *d_overflowed;	/* [n] of a batch scanned by bylist.cu: must
								 * the query be scanned by scan_kernel? NULL:
								 * all are */
	GvCoarseFilter filter;
	GvSlices	list_slices;	/* of lists */
	GvSlices	posting_slices; /* of postings */
	GvProbe    *out_probed;		/* [n][nprobe] */
	uint4	   *out_hits;		/* GvHit [n][k] */
	GvBound    *out_bounds;		/* [n][k], or NULL */
	GvSearchCounts *out_counts; /* [n] */

	/* of batches with conditions */
	const GvDeviceTest *in_tests;	/* [n][tests] */
	const uint64_t *in_values;	/* [values] */
	GvDeviceTest *d_tests;
	uint64_t   *d_values;
	uint32_t   *d_matches;		/* [n][nprobe] postings that satisfy them */
	uint32_t   *d_nscores;		/* [n] scores that a scan which filtered
								 * postings has stored, in no order; NULL: one
								 * for each posting */
	uint32_t   *out_matches;

	/* of batches in which a search asks about the sample */
	bool		sampled;		/* there is such a search */
	const GvSampleQuery *in_sample_queries; /* [n] */
	GvSampleQuery *d_sample_queries;
	float	   *d_sampled;		/* [n][postings] scores of sampled blocks, in
								 * no order; dead postings: +infinity */
	uint32_t   *d_nsampled;		/* [n] number of sampled blocks */
	GvSampleCount *out_sample;	/* [n] */
};

/* Returns the scores from one query's to the next one's in d_coarse. */
static __host__ __device__ __forceinline__ int64_t
gv_score_stride(int32_t nlists)
{
	return (int64_t) gv_ncolumn_groups(nlists) * GV_COLUMN_GROUP;
}

/* The recorded launches of a batch, and their arguments (search.cu). */
struct GvGraph
{
	GvDeviceModel model;		/* the model that all kernels got */
	GvBatch		batch;
	cudaGraphExec_t exec;		/* NULL: none */
	uint64_t	used;			/* time of the last use, by the searcher's
								 * clock */
};

#define GV_GRAPHS			64

/*
 * A graph is evicted only if this many batches did not use it.  If there are
 * more shapes in turn than graphs, some batches are replayed and the others
 * launched step by step, because recording all of them again and again took
 * longer.
 */
#define GV_GRAPH_KEPT		(4 * GV_GRAPHS)

struct GvGraphCounts
{
	int64_t		reused;
	int64_t		made;			/* graphs recorded, each used at once */
	int64_t		evicted;		/* graphs that another one replaced */
	int64_t		launched;		/* without a graph */
};

/* The arrays of one search's answer. */
struct GvAnswer
{
	const GvSearchCounts *found;
	const GvProbe *probed;		/* [nprobed] */
	const GvHit *hits;			/* [nhits] */
	const GvBound *bounds;		/* [nhits], or NULL */
};

/* The answers of a small batch, while the host polls them (search.cu). */
struct GvCompletion
{
	int32_t		n;				/* searches; 0: the stream is queried
								 * instead */
	int32_t		query;			/* searches whose answers are complete */
	int64_t		words;			/* words of the next one's answer that have
								 * come */
	double		asked;			/* time of the last query of the stream */
	GvBatch		batch;
};

struct GvSearcher
{
	int32_t		device;
	int64_t		most_work;		/* bytes of work memory that a sub-batch may
								 * have */
	cudaStream_t stream;
	int			nsms;
	GvBlas	   *blas;			/* NULL: products by our loops */
	bool		hopper;			/* see gv_has_hopper */
	bool		pdl;			/* see GvBatch */
	uint64_t	version;		/* of a mirror whose changes are done */
	GvBuffer	in;				/* pinned: queries and parameters */
	GvBuffer	out;			/* pinned: answers */
	GvBuffer	d_work;			/* all that kernels pass to each other */
	GvBuffer	d_sort;			/* for CUB's sorts */
	GvSearcher *second_stream;	/* a second stream, or NULL; it uses only
								 * stream, d_work, d_sort, completion and
								 * graphs */
	bool		both;			/* the second stream has work, too */
	GvCompletion completion;
	GvGraph		graphs[GV_GRAPHS];
	GvGraphCounts counts;		/* test build only */
	uint64_t	clock;			/* small batches so far */
	GvBuffer	d_path_counts;	/* test build only, see GvCoarseFilter */
	GvSearchCounts *found;		/* in `out`, of each search */
	GvSampleCount *near;
	GvSearch   *searches;		/* [n] running */
	int32_t		n;
	bool		bounds_only;	/* the searches have hits, and get bounds
								 * alone */
};

/* Launches a step of a batch, early if the batch allows it. */
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

/* types of bylist.cu */
struct GvQueryLimit;
struct GvCandidate;
struct GvPairing;
struct GvPairGroup;

#define GV_INT8_DIMS		4	/* most dimensions of a sub-quantizer */
#define GV_INT8_CHUNKS		8	/* most chunks of a posting's codes */

/*
 * The arrays of a scan list by list (bylist.cu), of all sub-batches that are
 * searched together.  After its lists are chosen, each sub-batch adds its
 * queries in 8 bits, their margins and limits, and how many queries probe each
 * list.  Then all sub-batches are scanned at once: pairs of queries and lists,
 * and candidates by approximate scores.  Then each sub-batch gets exact scores
 * of its candidates, and goes on as after any scan.
 */
struct GvListScan
{
	int32_t		steps;			/* steps of a product, 8 sub-quantizers each */
	int32_t		most_groups;	/* groups that d_groups has memory for */
	uint32_t   *d_codewords8;	/* [steps][8][16] codewords in 8 bits; that of
								 * sub-quantizer 8s + 2t + h is [s][4h + t] */
	float	   *d_scales;		/* [8 * steps] the value of 1 of them */
	uint32_t   *d_queries;		/* [n][8 * steps] in 8 bits */
	GvQueryLimit *d_query_limits;	/* [n] */
	uint32_t   *d_counts;		/* [n] candidates; more than MAX_CANDIDATES:
								 * unknown */
	GvCandidate *d_candidates;	/* [n][MAX_CANDIDATES] */
	uint32_t   *d_starts;		/* [nlists] queries that probe each list; then
								 * the place of its next pair */
	GvPairing  *d_pairs;		/* [n * nprobe] by list */
	GvPairGroup *d_groups;
	unsigned long long *d_totals;	/* number of pairs placed, plus 2^32 times
									 * the number of groups */
};

/*
 * The sub-batches that are searched together on a stream; one, unless they are
 * scanned list by list.
 */
#define GV_MOST_TOGETHER	8

struct GvBatchTurn
{
	int			nbatches;
	int32_t		n;				/* searches of all of them */
	int32_t		taken[GV_MOST_TOGETHER];	/* searches of each */
	bool		small;			/* one sub-batch, small enough for a graph */
	GvBatch		batches[GV_MOST_TOGETHER];
	size_t		in_bytes;		/* host memory that the device reads, */
	size_t		out_bytes;		/* and that it writes */
	size_t		work_bytes;		/* of the stream's work memory, */
	size_t		shared_bytes;	/* whose first bytes all sub-batches share */
	bool		by_list;
	GvListScan	lists;
};

/*
 * The largest sub-batch that is a graph.  Launches of larger ones cost next to
 * nothing in comparison.
 */
#define GV_MOST_OF_GRAPH	64

/*
 * batch.cu.  _next_turn: the sub-batches of the first of n searches, which are
 * left of a batch of `all`, and the bytes of their arrays.  _place_turn: places
 * these in memory.  _upload_queries: writes queries where the device reads
 * them.
 */
extern void gv_gpu_next_turn(const GvSearcher *searcher,
							 const GvMirror *mirror, const GvSearch *searches,
							 int32_t n, int32_t all, GvBatchTurn *turn);
extern void gv_gpu_place_turn(const GvDeviceModel *model,
							  const GvSearcher *searcher, char *in, char *out,
							  char *work, GvBatchTurn *turn);
extern void gv_gpu_upload_queries(const GvDeviceModel *model,
								  const GvBatch *batch,
								  const GvSearch *searches, int32_t n);

/* An upload of queries by several threads; gv_helpers_end ends it. */
struct GvUpload
{
	const GvDeviceModel *model;
	const GvBatchTurn *turn;
	const GvSearch *searches;	/* of the first sub-batch, and so on */
	int32_t		next;			/* the first task that no thread has taken */
	int32_t		left[GV_MOST_TOGETHER]; /* tasks of each sub-batch that are not
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
 * coarsefilter.cu: the results of coarse.cu and select.cu, for many queries or
 * lists.  _list_scores: its second step, d_coarse and d_group_min.
 */
extern bool gv_gpu_coarse_filter_pays(const GvDeviceModel *model,
									  const GvBatch *batch);
extern GvStatus gv_gpu_coarse_filter(const GvDeviceModel *model,
									 const GvBatch *batch,
									 const GvSearcher *searcher);
extern GvStatus gv_gpu_list_scores(const GvDeviceModel *model,
								   const GvBatch *batch,
								   const GvSearcher *searcher);

/*
 * Few of many list scores are read.  If there are more than GV_SCORES_KEPT,
 * which L2 holds, it is cheaper to compute these few again than to store all.
 * Returns for how many of n queries, which probe `probes` lists each, d_coarse
 * has memory.  If that is fewer than n, only the least scores of groups are
 * stored.
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
 * select.cu: the nearest lists and the best postings.  _place_slices: places
 * the arrays of first passes in `memory`, from *bytes on.  _can_sift: can one
 * block of threads sift the best postings out?  _sorts_postings: are they too
 * many for all but a sort?
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
 * listscan.cu: d_scores of a batch; the conditions on keys for the device; the
 * counts of postings that satisfy them, which is the last step if there is no
 * bounds step
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
								   const GvListScan *lists,
								   cudaStream_t stream);
extern GvStatus gv_gpu_scan_lists(const GvDeviceModel *model,
								  const GvBatchTurn *turn,
								  cudaStream_t stream);
extern GvStatus gv_gpu_rescore(const GvDeviceModel *model,
							   const GvBatch *batch, const GvListScan *lists,
							   cudaStream_t stream);

/* bounds.cu: bounds of hits from refine records */
extern GvStatus gv_gpu_bound(const GvDeviceModel *model, const GvBatch *batch,
							 cudaStream_t stream);

/* search.cu */
extern "C" bool gv_answer_is_complete(const GvAnswer *answer, int64_t *words);

#endif							/* GV_SEARCH_H */
