/*
 * gv_exact.h
 *		Exact search on the device: arrays, and the launchers of its steps.
 *
 *	rows	of a batch: half copies, biases (rows.cu)
 *	queries	likewise
 *	and for slots first .. last - 1 of a batch
 *		cuts	what each query's rows have to reach (cut.cu)
 *		filter	the slots that reach it: filterproduct.cu, hopperfilter.cu, or
 *				fewscan.cu for few queries
 *		measure	exact distances (measure.cu)
 *		merge	the nearest of these and of those before (merge.cu)
 *				or both at once (nearest.cu)
 *	Queries without a cut, or with more slots than fit, go
 *		matrix	all approximations to memory, a cut from these
 *				(cut.cu), and again filter, rerank, merge
 *	and where that are too many as well
 *		slowly	all rows are reranked
 * batch.cu has them in order, exactset.cu is behind gv_set.h.
 */
#ifndef GV_EXACT_H
#define GV_EXACT_H

#include "gpu/product/gv_product.h"

extern "C"
{
#include "engine/gv_set.h"
}

#define GV_EXACT_NO_ROW	UINT32_C(0xFFFFFFFF)
#define GV_EXACT_ALIGN	256		/* slots; the batch's last may be fewer */
#define GV_EXACT_FEW	16		/* queries that fewscan.cu takes */
#define GV_EXACT_COLUMNS (INT64_C(1) << 20) /* slots of a matrix, at most */
#define GV_EXACT_SEED	2048	/* slots that first cuts are from */
#define GV_EXACT_FEW_SEED	32768	/* the same for few queries */

/* Numbers common to all vectors of a set. */
struct GvExactFrame
{
	double		scale;			/* of rows */
	double		length;			/* |m| */
};

struct GvExactSpace
{
	int32_t		metric;			/* GvSetMetric */
	int32_t		dims;
	int32_t		half_dims;		/* rounded up to 16 */
	double	   *d_mean;			/* [dims] m */
	GvExactFrame *d_frame;
};

/* Rows of a batch. */
struct GvExactRows
{
	const float *d_rows;		/* [n][dims] */
	int64_t		n;				/* below 2^31 */
	int64_t		stride;
	uint16_t   *d_half_rows;		/* [n][half_dims], by slots */
	float	   *d_bias;			/* [n], and -infinity up to GV_EXACT_ALIGN */
	float	   *d_slack;		/* [n] e(x) */
	const uint32_t *d_order;	/* [n] rows by slots; NULL: by the stride */
};

/* A query, as the filter sees it. */
struct GvExactQuery
{
	double		square;			/* |p|^2; of L2 */
	double		unit;			/* of S, in inner products; 1 for L2 */
	double		offset;			/* unit <u(q), m>; 0 for L2 */
	float		slack;			/* e(q) without what a cut adds */
	int32_t		kind;			/* GvExactKind */
};

/* Queries and what was found of them. */
struct GvExactQueries
{
	int64_t		n;
	int64_t		k;				/* neighbors that there can be */
	const float *d_queries;		/* [n][dims] */
	const int64_t *d_self;		/* [n], or NULL */
	uint16_t   *d_half_queries;		/* [n][half_dims] */
	GvExactQuery *d_seen;		/* [n] */
	double	   *d_distances;	/* [n][k] in order; free places: NaN */
	int64_t    *d_positions;	/* [n][k] free places: INT64_MAX */
};

/*
 * Some queries: those of a list, or `n` from `first` on.  Arrays that steps
 * pass on to each other are indexed by the number among these.
 */
struct GvExactPart
{
	const uint32_t *d_list;		/* [n], or NULL */
	int64_t		first;
	int32_t		n;
};

/* The slots that may be among the nearest, which steps fill and use up. */
struct GvExactFilter
{
	float	   *d_cuts;			/* [n] what A has to reach */
	uint32_t   *d_counts;		/* [n] slots found; may exceed capacity */
	uint32_t   *d_slots;		/* [n][capacity]; rows, once reranked */
	uint32_t	capacity;
	bool		overlap;		/* some steps may be launched early */
};

/* Their distances, and room to order them. */
struct GvExactFound
{
	double	   *d_distances;	/* [n][capacity] */
	double	   *d_other;		/* [n][capacity] and */
	uint32_t   *d_other_rows;	/* [n][capacity], for sorting */
	double	   *d_merged;		/* [n][k] */
	int64_t    *d_merged_positions;
	uint32_t   *d_ready;		/* [n] blocks that have reranked; 0 */
};

/* Queries that take another way. */
struct GvExactLists
{
	uint32_t   *d_counts;		/* [2] of each list */
	uint32_t   *d_matrix;		/* [n] numbers of queries */
	uint32_t   *d_slow;			/* [n] */
};

/* A product: of n queries and slots first .. first + nslots - 1. */
struct GvExactMatmul
{
	int32_t		half_dims;
	int32_t		n;
	uint32_t	first;
	uint32_t	nslots;
	const uint16_t *d_queries;	/* [n][half_dims] */
	const uint16_t *d_half_rows;	/* [nslots][half_dims] */
	const float *d_bias;		/* [nslots] */
	float	   *d_scores;		/* [n][nslots], where A goes; NULL: filter */
	bool		more;			/* cuts from scores are for other slots, too */
	GvExactFilter filter;
};

static inline int
gv_exact_blocks(int64_t n, int threads)
{
	return (int) ((n + threads - 1) / threads);
}

/* rows.cu */
extern GvStatus gv_gpu_exact_frame(const GvExactSpace *space,
								   const float *d_rows, int64_t n,
								   cudaStream_t stream);
extern GvStatus gv_gpu_exact_rows(const GvExactSpace *space,
								  const GvExactRows *rows,
								  cudaStream_t stream);
extern GvStatus gv_gpu_exact_queries(const GvExactSpace *space,
									 const GvExactQueries *queries,
									 cudaStream_t stream);
extern GvStatus gv_gpu_exact_gather(const GvExactSpace *space,
									const GvExactQueries *queries,
									const GvExactPart *part, uint16_t *d_half_queries,
									cudaStream_t stream);

/* fewscan.cu: up to GV_EXACT_FEW queries; its shared bytes */
extern size_t gv_exact_scan_bytes(const GvExactMatmul *matmul);
extern GvStatus gv_gpu_exact_scan(const GvExactMatmul *matmul, int nsms,
								  cudaStream_t stream);

/* filterproduct.cu, hopperfilter.cu */
extern GvStatus gv_gpu_exact_matmul(const GvExactMatmul *matmul,
									 const GvBlas *blas, cudaStream_t stream);
extern bool gv_gpu_exact_hopper_fits(const GvExactMatmul *matmul,
									 int32_t device);
extern GvStatus gv_gpu_exact_hopper(const GvExactMatmul *matmul, int nsms,
									cudaStream_t stream);
/* cut.cu */
extern GvStatus gv_gpu_exact_cuts(const GvExactSpace *space,
								  const GvExactQueries *queries,
								  const GvExactPart *part,
								  const GvExactFilter *filter,
								  const GvExactLists *lists,
								  cudaStream_t stream);
extern GvStatus gv_gpu_exact_overflows(const GvExactPart *part,
									   const GvExactFilter *filter,
									   uint32_t *d_count, uint32_t *d_list,
									   cudaStream_t stream);
extern GvStatus gv_gpu_exact_choose(const GvExactSpace *space,
									const GvExactQueries *queries,
									const GvExactPart *part,
									const GvExactMatmul *matmul,
									const float *d_slack, cudaStream_t stream);
/*
 * Cuts and slots from a product's scores, and with lists, empty ones.  If
 * these cuts are for more slots queries without one overflow, as hopper's sums
 * cannot be compared with none.
 */
extern bool gv_gpu_exact_first_fits(const GvExactQueries *queries,
									int64_t nslots);
extern GvStatus gv_gpu_exact_first(const GvExactSpace *space,
								   const GvExactQueries *queries,
								   const GvExactPart *part,
								   const GvExactMatmul *matmul,
								   const float *d_slack,
								   const GvExactLists *lists,
								   cudaStream_t stream);
extern GvStatus gv_gpu_exact_take_all(const GvExactPart *part,
									  const GvExactFilter *filter,
									  uint32_t first, uint32_t nslots,
									  cudaStream_t stream);
extern GvStatus gv_gpu_exact_voids(const GvExactQueries *queries,
								   const GvExactLists *lists,
								   cudaStream_t stream);

/* measure.cu */
extern GvStatus gv_gpu_exact_rerank(const GvExactSpace *space,
									 const GvExactRows *rows,
									 const GvExactQueries *queries,
									 const GvExactPart *part,
									 const GvExactFilter *filter,
									 const GvExactFound *found,
									 int64_t position, cudaStream_t stream);

/* The arguments of nearest.cu, which lists queries with too many slots. */
struct GvExactNearest
{
	GvExactRows rows;
	GvExactQueries queries;
	GvExactPart part;
	GvExactFilter filter;
	GvExactFound found;
	uint32_t   *d_list_count;
	uint32_t   *d_list;
	int64_t		position;		/* of row 0 */
	int32_t		dims;			/* this and the next it sets itself: */
	int32_t		across;			/* blocks of a query */
};

/* nearest.cu: reranks and merges, where there are not too many slots */
extern bool gv_gpu_exact_nearest_fits(const GvExactFilter *filter);
extern GvStatus gv_gpu_exact_nearest(const GvExactSpace *space,
									 const GvExactNearest *nearest,
									 cudaStream_t stream);

/* merge.cu */
extern GvStatus gv_gpu_exact_merge(const GvExactQueries *queries,
								   const GvExactPart *part,
								   const GvExactFilter *filter,
								   const GvExactFound *found, int64_t position,
								   cudaStream_t stream);
extern GvStatus gv_gpu_exact_clear(const GvExactQueries *queries,
								   cudaStream_t stream);

/* The steps whose time is measured, where it is. */
enum GvExactStep
{
	GV_EXACT_FILTER,			/* products, and what they append */
	GV_EXACT_CHOOSE,			/* all of the matrix way but distances */
	GV_EXACT_RERANK,
	GV_EXACT_MERGE,
	GV_EXACT_STEPS
};

/* work.cu: memory for searches */
struct GvExactWork
{
	int32_t		device;
	int			nsms;
	cudaStream_t stream;
	GvBlas	   *blas;			/* NULL: products by loops of ours */
	GvBuffer	d_work;			/* all of the following */
	int32_t		piece;			/* queries at a time */
	int32_t		matrix;			/* queries of the matrix way at a time */
	int64_t		nscores;		/* memory for scores */
	float	   *d_scores;
	uint16_t   *d_gathered;		/* [matrix][half_dims] */
	GvExactFilter filter;		/* of a piece */
	GvExactFound found;
	GvExactLists lists;
	uint32_t   *counts;			/* pinned [2] */
	int64_t		seen;			/* rows, before this batch */
	bool		measures;		/* the host waits for each step: */
	double		seconds[GV_EXACT_STEPS];
};

/* The sizes that memory for searches follows from. */
struct GvExactAmount
{
	int64_t		n;				/* queries */
	int64_t		k;				/* neighbors of each */
	int64_t		nrows;			/* that come at once */
	int32_t		capacity;		/* slots of a query, at least; 0: as usual */
};

/*
 * gv_gpu_exact_work allocates memory for this amount, and _bytes says how
 * many bytes that is.  _drop may be called where it was half made.
 */
extern size_t gv_gpu_exact_work_bytes(int32_t device,
									  const GvExactSpace *space,
									  const GvExactAmount *amount);
extern GvStatus gv_gpu_exact_work(GvExactWork *work, int32_t device,
								  const GvExactSpace *space,
								  const GvExactAmount *amount);
extern void gv_gpu_exact_work_drop(GvExactWork *work);

#ifdef GV_TEST_BUILD

/*
 * Sets the slots that a query has memory for, and those that first cuts are
 * from; 0: as is best.
 */
extern "C" void gv_gpu_exact_force(int32_t capacity, int32_t seed);
extern int32_t gv_gpu_exact_forced_seed(void);

#else
#define gv_gpu_exact_forced_seed() 0
#endif

#endif							/* GV_EXACT_H */
