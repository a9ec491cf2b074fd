/*
 * exact.h
 *		Exact search on the device: arrays, and the functions of its files.
 *
 *	rows	of a batch: half copies, biases (rows.cu)
 *	queries	half copies, and what the filter knows of them (rows.cu)
 *	and for slots first .. last - 1 of a batch
 *		cuts	what each query's rows have to reach (thresholds.cu)
 *		filter	the slots that reach it (filter.cu, hopperfilter.cu)
 *		nearest	the nearest of these by exact distances, and of those before
 *				(nearest.cu)
 *	Queries without a cut, or with more slots than fit, go
 *		matrix	all approximations to memory, a cut from these (thresholds.cu),
 *				and again filter and nearest
 *	and if too many slots reach that cut as well
 *		slowly	all rows are reranked
 * Johnson, Douze, Jegou, 2017, section 5.1, and Komarov, Dashti, D'Souza,
 * 2014, write all distances to memory and select from there; here a filter
 * with a proven error lets few rows pass, and scores go to memory only for
 * cuts. batch.cu has the steps in order.  nearlists.cu does the same for the
 * rows of near lists alone, and exactset.cu is behind gv_set.h.
 */
#ifndef GV_EXACT_H
#define GV_EXACT_H

#include "gpu/product/product.h"

extern "C"
{
#include "engine/gv_set.h"
}

#define GV_EXACT_NO_ROW	UINT32_C(0xFFFFFFFF)
#define GV_EXACT_ALIGN	256		/* slots; the batch's last may be fewer */
#define GV_EXACT_FEW	16		/* queries that are few */
#define GV_EXACT_COLUMNS (INT64_C(1) << 20) /* slots of a matrix, at most */
#define GV_EXACT_SEED	2048	/* slots that first cuts are from */
#define GV_EXACT_FEW_SEED	32768	/* the same for few queries */

/* Numbers common to all vectors of a set. */
struct GvExactScale
{
	double		scale;			/* of rows */
	double		length;			/* |m| */
};

struct GvExactNormalization
{
	int32_t		metric;			/* GvSetMetric */
	int32_t		dims;
	int32_t		half_dims;		/* rounded up to 16 */
	double	   *d_mean;			/* [dims] m */
	GvExactScale *d_scale;
};

/* Rows of a batch. */
struct GvExactRows
{
	const float *d_rows;		/* [n][dims] */
	int64_t		n;				/* below 2^31 */
	int64_t		stride;
	uint16_t   *d_half_rows;	/* [n][half_dims], by slots */
	float	   *d_bias;			/* [n], and -infinity up to GV_EXACT_ALIGN */
	float	   *d_error_bounds;		/* [n] e(x) */
	const uint32_t *d_order;	/* [n] rows by slots; NULL: by the stride */
};

/* A query, as the filter sees it. */
struct GvExactQuery
{
	double		square;			/* |p|^2; of L2 */
	double		unit;			/* of S, in inner products; 1 for L2 */
	double		offset;			/* unit <u(q), m>; 0 for L2 */
	float		error_bound;			/* e(q) without what a cut adds */
	int32_t		kind;			/* GvExactKind */
};

/* Queries and what was found for them. */
struct GvExactQueries
{
	int64_t		n;
	int64_t		k;				/* neighbors that there can be */
	const float *d_queries;		/* [n][dims] */
	const int64_t *d_self;		/* [n], or NULL */
	uint16_t   *d_half_queries;	/* [n][half_dims] */
	GvExactQuery *d_forms;		/* [n] */
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
	float	   *d_thresholds;			/* [n] what A has to reach */
	uint32_t   *d_counts;		/* [n] slots found; may exceed capacity */
	uint32_t   *d_candidates;		/* [n][capacity]; rows, once reranked */
	uint32_t	capacity;
	bool		pdl;		/* some steps may be launched early */
};

/* Their distances, and memory to order them. */
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
struct GvExactOverflowed
{
	uint32_t   *d_counts;		/* [2] of each list */
	uint32_t   *d_full_scores;		/* [n] numbers of queries */
	uint32_t   *d_brute_force;			/* [n] */
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

/* Returns the slots that n rows have memory for. */
static inline __host__ __device__ int64_t
gv_exact_padded(int64_t n)
{
	return (n + GV_EXACT_ALIGN - 1) / GV_EXACT_ALIGN * GV_EXACT_ALIGN;
}

/* -- steps */

/*
 * rows.cu: the frame, from n rows; half copies, biases and slacks of rows;
 * half copies of queries, for which nothing is found yet; half copies of a
 * list of queries side by side.  _stride: of slots, for n rows.
 */
extern GvStatus gv_gpu_exact_normalization(const GvExactNormalization *norm,
										   const float *d_rows, int64_t n,
										   cudaStream_t stream);
extern GvStatus gv_gpu_exact_rows(const GvExactNormalization *norm,
								  const GvExactRows *rows,
								  cudaStream_t stream);
extern GvStatus gv_gpu_exact_queries(const GvExactNormalization *norm,
									 const GvExactQueries *queries,
									 cudaStream_t stream);
extern int64_t gv_gpu_exact_stride(int64_t n);

/*
 * The filter's product.  filter.cu: _scan, of few queries, and _matmul, of
 * any; hopperfilter.cu: _hopper, on devices of compute capability 9.0.
 */
extern bool gv_gpu_exact_scan_fits(const GvExactMatmul *matmul);
extern GvStatus gv_gpu_exact_scan(const GvExactMatmul *matmul, int nsms,
								  cudaStream_t stream);
extern GvStatus gv_gpu_exact_matmul(const GvExactMatmul *matmul,
									const GvBlas *blas, cudaStream_t stream);
extern bool gv_gpu_exact_hopper_fits(const GvExactMatmul *matmul,
									 int32_t device);
extern GvStatus gv_gpu_exact_hopper(const GvExactMatmul *matmul, int nsms,
									cudaStream_t stream);

/* Memory for searches. */
struct GvExactWork
{
	int32_t		device;
	int			nsms;
	cudaStream_t stream;
	GvBlas	   *blas;			/* NULL: products by loops of ours */
	GvBuffer	d_work;			/* all of the following */
	int32_t		piece;			/* queries at a time */
	int32_t		nfull;			/* queries of the matrix way at a time */
	int64_t		nscores;		/* memory for scores */
	float	   *d_scores;
	uint16_t   *d_gathered;		/* [matrix][half_dims] */
	GvExactFilter filter;		/* of a piece */
	GvExactFound found;
	GvExactOverflowed lists;
	uint32_t   *counts;			/* pinned [2] */
	int64_t		seen;			/* rows, before this batch */
};

/* A search of the rows of a batch, or of a tile of them. */
struct GvExactSearch
{
	GvExactWork *work;
	const GvExactNormalization *norm;
	const GvExactRows *rows;
	const GvExactQueries *queries;
	const GvStop *stop;
};

/*
 * thresholds.cu.  _cuts: cuts of a part from its neighbors, and with lists,
 * where queries without a cut go.  _voids: lists the queries whose distances
 * are all NaN.  _choose: cuts and slots from a product's scores; _first: the
 * same before any neighbor is found, and with lists, empty ones.  If these
 * cuts are for more slots, queries without one overflow, because
 * hopperfilter.cu cannot compare sums with none.  _take_all: all of some
 * slots.
 */
extern GvStatus gv_gpu_exact_thresholds(const GvExactSearch *search,
										const GvExactPart *part,
										const GvExactOverflowed *lists);
extern GvStatus gv_gpu_exact_undefined(const GvExactSearch *search,
									   const GvExactOverflowed *lists);
extern GvStatus gv_gpu_exact_choose(const GvExactSearch *search,
									const GvExactPart *part,
									const GvExactMatmul *matmul);
extern bool gv_gpu_exact_first_fits(const GvExactQueries *queries,
									int64_t nslots);
extern GvStatus gv_gpu_exact_first(const GvExactSearch *search,
								   const GvExactPart *part,
								   const GvExactMatmul *matmul,
								   const GvExactOverflowed *lists);
extern GvStatus gv_gpu_exact_all_candidates(const GvExactSearch *search,
											const GvExactPart *part,
											uint32_t first, uint32_t nslots);

/* rows.cu: half copies of a part's queries, side by side, to d_gathered */
extern GvStatus gv_gpu_exact_gather(const GvExactSearch *search,
									const GvExactPart *part);

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
	int32_t		dims;
	int32_t		across;			/* blocks of a query, which it sets itself */
};

extern GvStatus gv_gpu_exact_nearest(GvExactNearest *nearest, int32_t metric,
									 cudaStream_t stream);

/* -- batch.cu */

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
									  const GvExactNormalization *norm,
									  const GvExactAmount *amount);
extern GvStatus gv_gpu_exact_work(GvExactWork *work, int32_t device,
								  const GvExactNormalization *norm,
								  const GvExactAmount *amount);
extern void gv_gpu_exact_work_drop(GvExactWork *work);

/*
 * Searches the rows of a batch, after those that work->seen counts, which the
 * caller raises.  The first batch makes half copies of queries.
 */
extern GvStatus gv_gpu_exact_search(const GvExactSearch *search);

/*
 * For units of nearlists.cu: rows in an order, padded to GV_EXACT_ALIGN, and
 * queries by a list, as many at once as _part_most says.  _part: launches,
 * does not wait, and lists queries that need another way.  _others: searches
 * these to the end.
 */
extern int64_t gv_gpu_exact_tile_most(const GvExactWork *work,
									  const GvExactQueries *queries);
extern GvStatus gv_gpu_exact_tile(const GvExactSearch *search,
								  const GvExactPart *part,
								  const GvExactOverflowed *lists);
extern GvStatus gv_gpu_exact_finish(const GvExactSearch *search,
									const GvExactOverflowed *lists,
									const uint32_t counts[2]);

/* -- nearlists.cu */

struct GvExactByList;

/*
 * _batch: rows of a batch, at most.  _create: for batches of up to `capacity`
 * rows and `kept` neighbors of a query; *d_centroids [nlists][dims] is for the
 * caller to fill, by *stream.  _search: a batch's rows, after `seen` of those
 * before; all queries and centroids are there, and the frame is known.
 */
extern int64_t gv_gpu_exact_lists_batch(int32_t dims);
extern size_t gv_gpu_exact_lists_bytes(const GvSetSpec *spec, int64_t kept,
									   int64_t capacity);
extern GvStatus gv_gpu_exact_lists_create(const GvSetSpec *spec, int64_t kept,
										  int64_t capacity,
										  GvExactByList **made,
										  float **d_centroids,
										  cudaStream_t *stream);
extern void gv_gpu_exact_lists_drop(GvExactByList *lists);
extern GvStatus gv_gpu_exact_lists_search(GvExactByList *lists,
										  const GvExactNormalization *norm,
										  GvExactRows *rows,
										  const GvExactQueries *queries,
										  int64_t seen, const GvStop *stop);

#endif							/* GV_EXACT_H */
