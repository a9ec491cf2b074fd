/*
 * gv_batch.h
 *		A batch of searches under way, and the searcher whose memory it has.
 */
#ifndef GV_BATCH_H
#define GV_BATCH_H

#include "gpu/common/gv_card.h"

/* The parameters of one search; the kernels' part of GvSearch. */
struct GvWanted
{
	int32_t		probes;
	int32_t		capacity;
	double		length;			/* of the query */
};

/* A GvKeyTest as kernels see it; kind 0: none, and none behind it. */
struct GvDeviceTest
{
	uint64_t	low;			/* of a set: its least value, */
	uint64_t	high;			/* and its greatest */
	int32_t		first;			/* of the batch's values */
	int32_t		nvalues;
	int32_t		abbrevs_at;			/* where a block's abbreviated keys
									 * begin */
	uint8_t		key;
	uint8_t		kind;			/* GvTestKind */
	uint8_t		width;			/* bytes of an abbreviated key */
	uint8_t		unused;
};

/* Beyond these select.cu sorts, and no graph can. */
#define GV_MANY_PROBES		2048
#define GV_MANY_POSTINGS		2048

struct GvFound
{
	int32_t		nprobed;
	int32_t		nhits;
	int64_t		postings;			/* in the probed lists */
	uint32_t	nblocks;		/* likewise */
};

/* A search's question about the sample. */
struct GvRank
{
	int32_t		rank;			/* 0: nothing; negative: what is not beyond */
	float		limit;
};

/* See GvSearch.nearer. */
struct GvNear
{
	int64_t		postings;
	int64_t		squares;
};

/*
 * How a query's nearest lists were chosen from approximate scores
 * (approximate.cu).
 */
enum GvCoarseWay
{
	GV_COARSE_RUNS,				/* by the least score of every 32 lists */
	GV_COARSE_LEAST,			/* by that, and scores made again */
	GV_COARSE_ALL,				/* by all approximate scores */
	GV_COARSE_EXACT,			/* by exact scores of all, or of near runs */
	GV_COARSE_WAYS
};

/* Memory for approximate.cu; none unless gv_gpu_approximate_fits. */
struct GvApproximate
{
	uint16_t   *d_half_queries;		/* [n][half_dims] queries in half
									 * precision */
	int32_t		nparts;			/* that a query comes in */
	float2	   *d_squares;		/* [n][nparts] |q|^2 and |q - q'|^2 of each
								 * part of q, whose half copy is q' */
	float	   *d_least;		/* [n][nruns] the least score of each run */
	unsigned   *d_ways;			/* [GV_COARSE_WAYS] queries that went each way;
								 * the searcher's; test build only */
};

#define GV_RUN				32	/* lists side by side */

/* Runs of a number of lists. */
static __host__ __device__ inline int32_t
gv_nruns(int32_t nlists)
{
	return (nlists + GV_RUN - 1) / GV_RUN;
}

/*
 * The pieces that a query's items come in where queries alone do not fill the
 * device, and what select.cu finds of each in its first pass.
 */
struct GvPieces
{
	uint32_t	n;				/* of a query; 0 and 1: there is no first pass */
	uint32_t	least;			/* items of a piece that is worth a block */
	uint32_t	capacity;		/* items that a piece may leave */
	int32_t		by;				/* see gv_gpu_select_by */
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
	int32_t		probes;			/* most of any search */
	int32_t		capacity;
	bool		overlap;		/* a step may be launched before the last one
								 * has ended: see gv_step_begins */
	bool		by_lists;		/* scanned list by list (gv_listscan.h) */
	int64_t		postings;			/* memory for scores of a search */
	int32_t		tests;			/* most of any search's condition; 0: none has
								 * one */
	int32_t		values;			/* memory for those of all their sets */
	const float *in_queries;	/* [n][dims] */
	const GvWanted *in_wanted;	/* [n] */
	float	   *d_queries;
	GvWanted   *d_wanted;
	float	   *d_tables;		/* [n][chunks * 32][GV_CODEWORDS] */
	float	   *d_coarse;		/* [n][nlists]; see gv_gpu_coarse_rows */
	GvProbe    *d_probed;		/* [n][probes] */
	uint32_t   *d_starts;		/* [n][probes + 1] first block of each probe */
	const uint8_t **d_first;	/* [n][probes] where it is; NULL: not wanted */
	float	   *d_scores;		/* [n][postings]; dead: +infinity */
	uint64_t   *d_ids;			/* [n][postings] gv_posting_id; NULL where
								 * the best postings are sorted out */
	uint4	   *d_hits;			/* GvHit [n][capacity] */
	GvBound    *d_bounds;		/* [n][capacity], where a copy takes them
								 * out */
	const uint8_t **d_records;	/* [n][capacity] refine records of d_hits;
								 * NULL: no bounds follow, or the best
								 * postings are sorted out */
	GvFound    *d_found;		/* [n] */
	uint32_t   *d_whole;		/* [n] of a batch that was scanned list by
								 * list: is the query to be scanned again?
								 * NULL: each is scanned, once */
	GvApproximate		approx;
	GvPieces	list_pieces;	/* of lists, while they are selected, */
	GvPieces	posting_pieces; /* and of postings */
	GvProbe    *out_probed;		/* [n][probes] */
	uint4	   *out_hits;		/* GvHit [n][capacity] */
	GvBound    *out_bounds;		/* [n][capacity], or NULL */
	GvFound    *out_found;		/* [n] */

	/* of batches with conditions: */
	const GvDeviceTest *in_tests; /* [n][tests] */
	const uint64_t *in_values;	/* [values] */
	GvDeviceTest *d_tests;
	uint64_t   *d_values;
	uint32_t   *d_matches;		/* [n][probes] postings that satisfy them */
	uint32_t   *d_kept;			/* [n] scores of them, side by side, or of what
								 * a scan list by list left; see gv_nscores */
	uint32_t   *out_matches;

	/* of those in which a search asks how near the sample is: */
	bool		sampled;		/* it is such a batch */
	const GvRank *in_ranks;		/* [n] */
	GvRank	   *d_ranks;
	float	   *d_sampled;		/* [n][postings] scores of sampled blocks, side
								 * by side, in no order; dead: +infinity */
	uint32_t   *d_nsampled;		/* [n] such blocks */
	GvNear	   *out_near;		/* [n] */
};

/*
 * Returns how many scores a query's scan of nblocks blocks has stored: one for
 * each posting or, of batches with conditions and those scanned list by list,
 * for each that is left, in no order.  Not where d_ids is NULL.
 */
static __host__ __device__ __forceinline__ uint32_t
gv_nscores(const GvBatch &batch, int query, uint32_t nblocks)
{
	return batch.d_kept != NULL ? batch.d_kept[query] : nblocks * GV_BLOCK;
}

/* A batch's launches, recorded to be made again at once (replay.cu). */
struct GvReplay
{
	GvDeviceModel model;			/* what all kernels were given */
	GvBatch		batch;
	cudaGraphExec_t graph;		/* NULL: none */
	uint64_t	used;			/* when, by the searcher's clock */
};

#define GV_REPLAYS			64

/*
 * A graph is evicted for another one only when it was not used for this number
 * of batches: of more shapes in turn than fit, some are replayed and the
 * others launched step by step, where making all of them again and again took
 * longer.
 */
#define GV_REPLAY_KEPT		(4 * GV_REPLAYS)

/* How a stream's small batches were launched. */
struct GvReplayCounts
{
	int64_t		replayed;
	int64_t		made;			/* graphs, each used at once */
	int64_t		again;			/* graphs made in the place of another one */
	int64_t		launched;		/* without a graph */
};

/* Where one search's answer comes. */
struct GvAnswer
{
	const GvFound *found;
	const GvProbe *probed;		/* [nprobed] */
	const GvHit *hits;			/* [nhits] */
	const GvBound *bounds;		/* [nhits], or NULL */
};

/* Answers of a stream's small batch that are looked for (arrive.cu). */
struct GvCompletion
{
	int32_t		n;				/* searches; 0: the stream is asked instead */
	int32_t		query;			/* of which these are there, */
	int64_t		words;			/* and so much of the next one */
	double		asked;			/* when the stream was */
	GvBatch		batch;
};

struct GvBlas;					/* gpu/product/gv_product.h */

struct GvSearcher
{
	int32_t		device;
	int64_t		most_work;		/* bytes that one part of a batch may have */
	cudaStream_t stream;
	int			nsms;
	GvBlas	   *blas;			/* NULL: products by loops of ours */
	bool		hopper;			/* see gv_has_hopper */
	bool		overlap;		/* of batches */
	uint64_t	version;		/* of a mirror: its changes are done */
	GvBuffer	in;				/* pinned: queries, wanted */
	GvBuffer	out;			/* pinned: found, probed, hits, bounds */
	GvBuffer	d_work;			/* all that kernels hand each other */
	GvBuffer	d_sort;			/* of long selections */
	GvSearcher *beside;			/* a second stream, of which only stream,
								 * d_work, d_sort, arrivals and replays are
								 * used; or NULL */
	bool		both;			/* it has work, too */
	GvCompletion	completion;
	GvReplay	replays[GV_REPLAYS];
	GvReplayCounts counts;		/* test build only */
	uint64_t	clock;			/* small batches */
	GvBuffer	d_ways;			/* test build only, see GvApproximate */
	GvSearch   *searches;		/* [n] that are under way */
	int32_t		n;
	bool		given;			/* hits are, and only bounds come back */
};

/* A step of a batch, which may begin early. */
template <typename... Parameters, typename... More>
static inline GvStatus
gv_launch_step(void (*kernel) (Parameters...), dim3 grid, int threads,
			   size_t shared_bytes, cudaStream_t stream,
			   const GvDeviceModel *model, const GvBatch *batch,
			   const More &... more)
{
	return gv_launch_early(batch->overlap, kernel, grid, threads, shared_bytes,
						   stream, *model, *batch, more...);
}

#endif							/* GV_BATCH_H */
