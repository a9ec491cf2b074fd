/*
 * search.h
 *		A batch of searches on a device, the searcher whose memory it uses, and
 *		its steps.
 *
 * Read search.cu first.  It runs the steps of a batch in order: tables.cu,
 * coarse.cu and select.cu or coarsefilter.cu, listscan.cu or bylist.cu,
 * select.cu, bounds.cu or distances.cu.  batch.cu divides a batch into
 * sub-batches.
 */
#ifndef GV_SEARCH_H
#define GV_SEARCH_H

extern "C"
{
#include "engine/mirror/gv_parallel.h"
}

#include "gpu/mirror/mirror.h"
#include "gpu/product/product.h"

/* The parameters of one search, in the form that kernels read. */
struct GvSearchParams
{
	int32_t		nprobe;
	int32_t		k;
	double		length;			/* length of the query */
	int32_t		by_number;		/* GvSearch.by_number: 0 or 1 */
	int32_t		sums;			/* GvSearch.sums: 0 or 1 */
};

/*
 * A GvKeyTest in the form that kernels read.  A test of kind 0 ends a
 * condition's tests.
 */
struct GvDeviceTest
{
	uint64_t	low;			/* of a set: its least value */
	uint64_t	high;			/* of a set: its greatest value */
	int32_t		first;			/* offset of its values among the batch's
								 * values */
	int32_t		nvalues;
	int32_t		abbrevs_at;		/* offset of a block's abbreviated keys */
	uint8_t		key;
	uint8_t		kind;			/* GvTestKind */
	uint8_t		width;			/* bytes of an abbreviated key */
	uint8_t		unused;
};

/*
 * Largest numbers of probes and of postings that the selections in select.cu
 * can select.  For larger numbers CUB sorts, and the batch does not run as a
 * CUDA graph.
 */
#define GV_MANY_PROBES		2048
#define GV_MANY_POSTINGS	2048

struct GvSearchCounts
{
	int32_t		nprobed;
	int32_t		nlisted;		/* number of probes in the answer: nprobed, or
								 * 0 if only sums are requested */
	int32_t		nhits;
	uint32_t	nblocks;		/* blocks in the probed lists */
	int64_t		postings;		/* postings in the probed lists */
	uint32_t	matched;		/* how many of them satisfy the condition; 0 in
								 * batches without conditions */
};

/* A search's question about the sample: GvSearch.rank and limit. */
struct GvSampleQuery
{
	int32_t		rank;			/* 0: the search does not ask; negative: it
								 * asks how many sampled postings are not
								 * beyond limit */
	float		limit;
};

/* The answer, or a part of it; see GvSearch.nearer. */
struct GvSampleCount
{
	int64_t		postings;
	int64_t		squares;
};

/* How coarsefilter.cu found a query's nearest lists. */
enum GvCoarsePath
{
	GV_COARSE_GROUPS,			/* by the least score of each group of lists */
	GV_COARSE_GROUPS_ALONE,		/* by the groups' least scores alone, and
								 * scores computed again */
	GV_COARSE_ALL,				/* by all approximate scores */
	GV_COARSE_EXACT,			/* by exact scores of all lists, or of all
								 * lists of near groups */
	GV_COARSE_PATHS
};

/*
 * The arrays of coarsefilter.cu.  They are NULL unless
 * gv_gpu_coarse_filter_pays.
 */
struct GvCoarseFilter
{
	uint16_t   *d_half_queries; /* [n][half_dims] half copies of queries */
	int32_t		nsquares;		/* parts of a query; each part has its own sums
								 * of squares */
	float2	   *d_squares;		/* [n][nsquares] |q|^2 and |q - q'|^2 of each
								 * part of a query q with half copy q' */
	float	   *d_group_min;	/* [n][ngroups] the least score of each group
								 * of lists */
	unsigned   *d_path_counts;	/* [GV_COARSE_PATHS] number of the searcher's
								 * queries for each path; test build only */
};

/*
 * If there are too few queries to fill the device, the items of each query are
 * divided into slices.  This struct describes the slices, and what the first
 * pass of select.cu finds in each slice.
 */
struct GvSlices
{
	uint32_t	n;				/* slices of a query; if 0 or 1, there is no
								 * first pass */
	uint32_t	least;			/* least number of items of a slice, so that it
								 * is worth a block */
	uint32_t	capacity;		/* maximum items that a slice keeps */
	int32_t		select_by;		/* gv_select_by */
	uint32_t   *d_thresholds;	/* [queries][n] */
	uint32_t   *d_counts;		/* [queries][n] number of items within the
								 * threshold; if it is larger than capacity,
								 * not all items are kept */
	void	   *d_items;		/* [queries][n][capacity] */
};

/*
 * A batch of n searches, passed to kernels by value.  Each array has the same
 * capacity for each search, which is enough for the largest search.  Arrays
 * with in_ and out_ are in host memory, which the device reads and writes only
 * once, across the bus.  Arrays with d_ pass data from kernel to kernel.  The
 * queries and answers of a large batch are copied, and then kernels get the d_
 * arrays in place of the in_ and out_ arrays.  Hits are written 16 bytes at a
 * time.
 */
struct GvBatch
{
	int32_t		n;
	int32_t		nprobe;			/* largest of any search */
	int32_t		nselected;		/* largest number of lists that are selected
								 * for a search, which is 0 for a search
								 * by_number */
	int32_t		k;
	bool		pdl;			/* steps may be launched early: see
								 * gv_pdl_wait */
	bool		by_list;		/* scanned by bylist.cu */
	bool		asked;			/* distances are requested */
	GvSearchSteps steps;		/* not GV_STEPS_LAST, which needs no batch of
								 * all steps */
	bool		listed;			/* some searches request more than sums; if
								 * not, arrays of probes and matches in the
								 * answers have no elements */
	int32_t		first;			/* if by_list, number of the first query among
								 * the queries that are scanned together */
	int64_t		postings;		/* number of scores that each search has memory
								 * for */
	int32_t		tests;			/* maximum number of tests in a search's
								 * condition; 0 if no search has one */
	int32_t		values;			/* number of values of all sets in all
								 * conditions */
	const float *in_queries;	/* [n][dims] */
	const float *in_asked;		/* [n][dims] queries as they were asked; used
								 * only if `asked` */
	const GvSearchParams *in_params;	/* [n] */
	const GvProbe *in_probed;	/* [n][nprobe]; GV_STEPS_SCAN only */
	float	   *d_queries;
	float	   *d_asked;
	GvSearchParams *d_params;
	float	   *d_tables;		/* [n][chunks * 32][GV_CODEWORDS] */
	float	   *d_coarse;		/* [n][gv_score_stride] list scores; see
								 * gv_gpu_coarse_rows */
	GvProbe    *d_probed;		/* [n][nprobe] */
	uint32_t   *d_starts;		/* [n][nprobe + 1] first block of each probe */
	const uint8_t **d_list_blocks;	/* [n][nprobe] address of the first block
									 * of each probe; or NULL */
	float	   *d_scores;		/* [n][postings] S; dead postings: +infinity */
	uint64_t   *d_ids;			/* [n][postings] gv_posting_id of each score;
								 * NULL if the postings are sorted */
	void	   *d_bins;			/* [n] bins of the postings, and */
	void	   *d_stored;		/* [n][postings] those of some bins, if the
								 * postings are sorted in bins
								 * (manypostings.cu); else NULL */
	GvBound    *d_bounds;		/* [n][k]; used only if bounds are copied to
								 * the host */
	uint4	   *d_distances;	/* GvRowDistance [n][k]; likewise */
	uint4	   *d_hits;			/* GvHit [n][k] */
	const uint8_t **d_items;	/* [n][k] refine records or rows of d_hits;
								 * NULL if there is no step that needs them, or
								 * if the postings are sorted */
	GvSearchCounts *d_search_counts;	/* [n] */
	uint32_t   *d_overflowed;	/* [n] in a batch that bylist.cu scans: not 0
								 * if scan_kernel must scan the query.  NULL:
								 * scan_kernel scans all queries */
	GvCoarseFilter filter;
	GvSlices	list_slices;	/* of lists */
	GvSlices	posting_slices; /* of postings */
	GvProbe    *out_probed;		/* [n][nprobe]; not used if only sums are
								 * requested */
	GvBound    *out_bounds;		/* [n][k], or NULL */
	uint4	   *out_distances;	/* GvRowDistance [n][k]; NULL unless `asked` */
	uint4	   *out_hits;		/* GvHit [n][k] */
	GvSearchCounts *out_counts; /* [n] */

	/* used in batches with conditions */
	const GvDeviceTest *in_tests;	/* [n][tests] */
	const uint64_t *in_values;	/* [values] */
	GvDeviceTest *d_tests;
	uint64_t   *d_values;
	uint32_t   *d_matches;		/* [n][nprobe] number of postings that satisfy
								 * the condition; not used if only sums are
								 * requested */
	uint32_t   *d_nscores;		/* [n] number of postings that a scan which
								 * filters postings has kept; without a sort it
								 * stores a score for each of these, in no
								 * particular order.  NULL: there is a score
								 * for each posting */
	uint32_t   *out_matches;	/* likewise d_matches */

	/* used in batches in which a search asks about the sample */
	bool		sampled;		/* there is such a search */
	const GvSampleQuery *in_sample_queries; /* [n] */
	GvSampleQuery *d_sample_queries;
	float	   *d_sampled;		/* [n][postings] scores of sampled blocks, in
								 * no particular order; dead postings:
								 * +infinity */
	uint32_t   *d_nsampled;		/* [n] number of sampled blocks */
	GvSampleCount *out_sample;	/* [n][GV_COUNT_PARTS], which the host adds
								 * up */
};

/*
 * In batches with conditions, this number of blocks of threads download each
 * query's counts.  A search of all lists has thousands of counts, and some
 * thousand sampled blocks, which one block of threads would read in dozens of
 * dependent steps.
 */
#define GV_COUNT_PARTS		8

/* Returns the stride of queries in d_coarse, in scores. */
static __host__ __device__ __forceinline__ int64_t
gv_score_stride(int32_t nlists)
{
	return (int64_t) gv_ncolumn_groups(nlists) * GV_COLUMN_GROUP;
}

/*
 * A CUDA graph of the recorded launches of a batch, and the arguments of these
 * launches (search.cu).
 */
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
 * A graph is evicted only if none of the last GV_GRAPH_KEPT batches used it.
 * If batches alternate between more shapes than there are graphs, some batches
 * are replayed and the others are launched step by step, because recording
 * graphs again and again took longer.
 */
#define GV_GRAPH_KEPT		(4 * GV_GRAPHS)

struct GvGraphCounts
{
	int64_t		reused;
	int64_t		made;			/* graphs recorded; each ran at once */
	int64_t		evicted;		/* graphs that another graph replaced */
	int64_t		launched;		/* without a graph */
};

/* The arrays of one search's answer. */
struct GvAnswer
{
	const GvSearchCounts *found;
	const GvProbe *probed;		/* [nprobed] */
	const GvHit *hits;			/* [nhits] */
	const GvBound *bounds;		/* [nhits], or NULL */
	const GvRowDistance *distances; /* [nhits], or NULL */
};

/* The state of polling the answers of a small batch (search.cu). */
struct GvCompletion
{
	int32_t		n;				/* number of searches; if 0, the stream is
								 * queried instead */
	int32_t		query;			/* number of searches whose answers are
								 * complete */
	int64_t		words;			/* words of the next search's answer that have
								 * arrived */
	double		asked;			/* time of the last query of the stream */
	GvBatch		batch;
};

struct GvSearcher
{
	int32_t		device;
	int64_t		most_work;		/* max work memory of a sub-batch, in bytes */
	cudaStream_t stream;
	int			nsms;
	GvBlas	   *blas;			/* NULL: products by our loops */
	bool		hopper;			/* see gv_has_hopper */
	bool		pdl;			/* see GvBatch */
	uint64_t	version;		/* version of a mirror whose changes are
								 * complete */
	GvBuffer	in;				/* pinned: queries and parameters */
	GvBuffer	out;			/* pinned: answers */
	GvBuffer	d_work;			/* all that kernels pass to each other */
	GvBuffer	d_sort;			/* for CUB's sorts */
	GvSearcher *second_stream;	/* a second stream, or NULL; of its struct,
								 * only stream, d_work, d_sort, completion and
								 * graphs are used */
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
	bool		last_only;		/* the searches have hits already, and get only
								 * bounds or distances */
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

#define GV_INT8_DIMS		4	/* maximum dimensions of a sub-quantizer */
#define GV_INT8_CHUNKS		8	/* maximum chunks of a posting's codes */

/*
 * The arrays of a scan list by list (bylist.cu), for all sub-batches that are
 * searched together.  When the lists of a sub-batch are chosen, its queries
 * are stored as 8-bit numbers, together with their margins and limits, and the
 * queries that probe each list are counted.  Then all sub-batches are scanned
 * together: pairs of queries and lists are stored, and approximate scores
 * determine candidates.  Last, each sub-batch gets exact scores of its
 * candidates, and the steps that follow any scan.
 */
struct GvListScan
{
	int32_t		steps;			/* steps of a product; each step is 8
								 * sub-quantizers */
	int32_t		most_groups;	/* groups that d_groups has memory for */
	uint32_t   *d_codewords8;	/* [steps][8][16] codewords as 8-bit numbers;
								 * the codewords of sub-quantizer 8s + 2t + h
								 * are at [s][4h + t] */
	float	   *d_scales;		/* [8 * steps] unit of the codewords of each
								 * sub-quantizer */
	uint32_t   *d_queries;		/* [n][8 * steps] queries as 8-bit numbers */
	GvQueryLimit *d_query_limits;	/* [n] */
	uint32_t   *d_counts;		/* [n] number of candidates; if more than
								 * MAX_CANDIDATES, some are missing */
	GvCandidate *d_candidates;	/* [n][MAX_CANDIDATES] */
	uint32_t   *d_starts;		/* [nlists] number of queries that probe each
								 * list; later the offset of the list's next
								 * pair in d_pairs */
	GvPairing  *d_pairs;		/* [n * nprobe] pairs, grouped by list */
	GvPairGroup *d_groups;
	unsigned long long *d_totals;	/* number of pairs, plus 2^32 times the
									 * number of groups */
};

/*
 * The maximum number of sub-batches that are searched together on a stream.
 * Only sub-batches that are scanned list by list are searched together.
 */
#define GV_MOST_TOGETHER	8

struct GvBatchTurn
{
	int			nbatches;
	int32_t		n;				/* searches of all of them */
	int32_t		taken[GV_MOST_TOGETHER];	/* searches of each */
	bool		small;			/* one sub-batch, small enough for a graph */
	GvBatch		batches[GV_MOST_TOGETHER];
	size_t		in_bytes;		/* host memory that the device reads */
	size_t		out_bytes;		/* host memory that the device writes */
	size_t		work_bytes;		/* the stream's work memory */
	size_t		shared_bytes;	/* first part of work_bytes, which all
								 * sub-batches share */
	bool		by_list;
	GvListScan	lists;
};

/*
 * The largest sub-batch that runs as a CUDA graph.  Compared to the work of
 * larger sub-batches, their launches cost almost nothing.
 */
#define GV_MOST_OF_GRAPH	64

/*
 * Functions of batch.cu.  gv_gpu_next_turn takes the next sub-batches from the
 * n searches that remain of a batch of `all` searches, and computes how many
 * bytes their arrays need.  gv_gpu_place_turn places these arrays in memory.
 * gv_gpu_upload_queries writes queries to host memory that the device reads.
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

/* An upload of queries by several threads. gv_helpers_end ends the upload. */
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

/* tables.cu: makes d_queries, d_params and d_tables of a batch */
extern GvStatus gv_gpu_table(const GvDeviceModel *model, const GvBatch *batch,
							 cudaStream_t stream);

/* coarse.cu: makes d_coarse of a batch, with exact scores */
extern GvStatus gv_gpu_coarse(const GvDeviceModel *model, const GvBatch *batch,
							  cudaStream_t stream);

/*
 * Functions of coarsefilter.cu, which does the work of coarse.cu and select.cu
 * for many queries or many lists.
 */
extern bool gv_gpu_coarse_filter_pays(const GvDeviceModel *model,
									  const GvBatch *batch);
extern GvStatus gv_gpu_coarse_filter(const GvDeviceModel *model,
									 const GvBatch *batch,
									 const GvSearcher *searcher);

/*
 * Only a few of the list scores are read.  If there are more than
 * GV_SCORES_KEPT scores, they do not fit in L2, and it is cheaper to compute
 * these few scores again than to store all.  Returns for how many of n queries
 * that probe `probes` lists each d_coarse has memory.  If this number is less
 * than n, only the least scores of groups are stored.
 */
#define GV_SCORES_KEPT		((int64_t) 4 << 20)
extern int32_t gv_gpu_coarse_rows(const GvDeviceModel *model, int32_t n,
								  int32_t probes);

/*
 * Functions of select.cu, which selects the nearest lists and the best
 * postings.  gv_gpu_take_lists makes what gv_gpu_select_lists makes from lists
 * that were chosen before.  gv_gpu_place_slices places the arrays of first passes in
 * `memory`, from offset *bytes on.  gv_gpu_can_sift returns whether sift.cuh
 * can select the best postings with one block of threads for each query.
 * gv_gpu_sorts_postings returns whether a sort must select the best postings,
 * because the batch exceeds the limits of the other selections.
 */
extern GvStatus gv_gpu_select_lists(const GvDeviceModel *model,
									const GvBatch *batch,
									GvSearcher *searcher);
extern GvStatus gv_gpu_take_lists(const GvDeviceModel *model,
								  const GvBatch *batch,
								  const GvSearcher *searcher);
extern GvStatus gv_gpu_select_postings(const GvDeviceModel *model,
									   const GvBatch *batch,
									   GvSearcher *searcher);
extern void gv_gpu_place_slices(const GvDeviceModel *model,
								const GvSearcher *searcher, GvBatch *batch,
								char *memory, size_t *bytes);
extern bool gv_gpu_can_sift(const GvBatch *batch);
extern bool gv_gpu_sorts_postings(const GvBatch *batch);

/*
 * Functions of manypostings.cu, which sorts postings in bins.
 * gv_gpu_bins_postings returns whether it sorts a batch's postings; otherwise
 * CUB does.  gv_gpu_place_bins places its arrays as gv_gpu_place_slices does.
 */
extern bool gv_gpu_bins_postings(const GvBatch *batch);
extern void gv_gpu_place_bins(GvBatch *batch, char *memory, size_t *bytes);
extern GvStatus gv_gpu_bin_postings(const GvDeviceModel *model,
									const GvBatch *batch,
									const GvSearcher *searcher);

/*
 * Functions of listscan.cu.  gv_gpu_scan makes d_scores of a batch.
 * gv_gpu_upload_conditions writes the conditions on keys for the device.
 * gv_gpu_download_matches writes the counts of postings that satisfy these
 * conditions to the host, as the last step if there is no step for bounds or
 * distances.
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

/*
 * The last step of a batch.  bounds.cu computes bounds of hits from their
 * refine records, and distances.cu distances of hits from their rows.
 */
extern GvStatus gv_gpu_bound(const GvDeviceModel *model, const GvBatch *batch,
							 cudaStream_t stream);
extern GvStatus gv_gpu_distances(const GvDeviceModel *model,
								 const GvBatch *batch, cudaStream_t stream);

/* search.cu */
extern "C" bool gv_answer_is_complete(const GvAnswer *answer, int64_t *words);

#endif							/* GV_SEARCH_H */
